//! A pick allocates nothing. Alone in its binary, so that nobody else allocates while it counts.

#![allow(clippy::field_reassign_with_default, reason = "rule sets are built as their users build them")]

use std::alloc::System;
use std::time::Duration;

use metaroute_core::expr::Expr;
use metaroute_core::rules::{Balance, Rule, Terminal};
use metaroute_core::{GuardOptions, Instance, Options, Outcome, Request, RuleSet, Selector, Update};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn selector(text: &str, balance: &Balance) -> Selector {
    let mut rule = Rule::new("rule", Expr::parse(text).unwrap());
    rule.terminal = Some(Terminal::Fail);
    let mut set = RuleSet::default();
    set.rules = vec![rule];
    set.balance = balance.clone();
    let selector = Selector::new(set, Options { guard: GuardOptions::off(), ..Options::default() }).unwrap();
    let instance = |n: usize| {
        let instance = Instance::new(format!("10.0.{}.{}:80", n / 250, n % 250).parse().unwrap());
        instance
            .with_weight((n % 9) as f64)
            .with_meta("version", ["2.9", "2.10"][n % 2])
            .with_meta("lane", ["x", "y"][n % 2])
    };
    selector.apply(Update::Snapshot((0..1000).map(instance).collect()), Duration::ZERO);
    selector
}

/// What a thousand picks in both forms allocate, after one of each has made room. Of several rounds the least: the thread that
/// runs the tests may allocate during one of them, and a pick that does, does in all.
fn allocations(selector: &Selector, request: &Request) -> usize {
    let mut picker = selector.picker();
    let tried = [picker.pick(request).unwrap().instance().id.clone()];
    drop(picker.pick_next(request, &tried));
    drop(selector.select_next(request, &tried));
    let mut round = || {
        let region = Region::new(ALLOCATOR);
        for _ in 0..1000 {
            let pick = picker.pick(request).unwrap();
            pick.complete(Outcome::Success, Duration::from_millis(1));
            drop(picker.pick_next(request, &tried).unwrap());
            drop(picker.pick(request).unwrap().into_owned());
            drop(selector.select(request).unwrap());
        }
        region.change().allocations
    };
    least(&mut round)
}

fn least(round: &mut impl FnMut() -> usize) -> usize {
    (0..4).map(|_| round()).find(|count| *count == 0).unwrap_or_else(round)
}

#[test]
fn picks_allocate_nothing() {
    for name in Balance::NAMES {
        let balance: Balance = name.parse().unwrap();
        let fixed = selector("version >= 2.10", &balance);
        assert_eq!(allocations(&fixed, &Request::default()), 0, "{name}");
        let keyed = Request::default().with_key("user-7").with_xid("10.0.0.1:80:77");
        assert_eq!(allocations(&fixed, &keyed), 0, "{name} with key");
        let dependent = selector("version >= 2.10 && lane == $req.lane", &balance);
        let request = dependent.request([("lane", "y")]);
        assert_eq!(allocations(&dependent, &request), 0, "{name} from the bitsets");
        dependent.tick(Duration::from_secs(1));
        assert_eq!(allocations(&dependent, &request), 0, "{name} remembered");
    }
    let none = selector("version >= 99", &Balance::WeightedRandom);
    let mut picker = none.picker();
    let mut refusals = || {
        let region = Region::new(ALLOCATOR);
        for _ in 0..1000 {
            picker.pick(&()).unwrap_err();
        }
        region.change().allocations
    };
    assert_eq!(least(&mut refusals), 0, "a refusal is as cheap");
}
