//! The `seata` profile: list order, routers that give up, weights from metadata.

use metaroute_core::expr::{Dialect, Expr};
use metaroute_core::rules::{Balance, Mode, Profile, Rule, Terminal, WeightFrom};
use metaroute_core::{MetaValue, Reason, Request, RuleSet, Update};

use crate::{check, count, fits, fleet, selector};

fn router(name: &str, text: &str, fallback: bool) -> Rule {
    let mut rule = Rule::new(name, Expr::parse_as(text, Dialect::Seata).unwrap());
    rule.mode = Mode::Prefer;
    rule.terminal = Some(if fallback { Terminal::Any } else { Terminal::Fail });
    rule
}

fn chain(routers: Vec<Rule>, balance: Balance) -> RuleSet {
    let mut set = RuleSet::default();
    set.profile = Profile::Seata;
    set.dialect = Dialect::Seata;
    set.balance = balance;
    if set.balance == Balance::WeightedRandom {
        set.weight_from = WeightFrom::Seata;
    }
    set.rules = routers;
    set
}

#[test]
fn t14_a_router_that_finds_nothing_is_ignored() {
    let fleet = ["f1 zone_name=east version=2.1", "f2 zone_name=west version=9.0"];
    let routers = vec![router("r1", "zone_name == east", true), router("r2", "version >= 9", true)];
    let selector = selector(chain(routers, Balance::Random), &fleet);
    check(&selector, &Request::default(), &[("f1", 100.0)], Ok(Reason::Relaxed { rule: 1 }));
}

#[test]
fn a_router_may_undo_what_an_earlier_one_asked_for() {
    let fleet = ["f1 zone_name=west version=9.0"];
    let routers = vec![router("r1", "zone_name == east", true), router("r2", "version >= 9", true)];
    check(
        &selector(chain(routers, Balance::Random), &fleet),
        &Request::default(),
        &[("f1", 100.0)],
        Ok(Reason::Relaxed { rule: 0 }),
    );
}

#[test]
fn without_fallback_nothing_comes_back() {
    let routers = vec![router("r1", "zone_name == east", false), router("r2", "version >= 9", true)];
    let selector = selector(chain(routers, Balance::Random), &["f1 zone_name=west version=9.0"]);
    assert!(selector.select(&()).is_err());
}

#[test]
fn weights_count_for_weighted_random_only() {
    let lines = ["a weight=1", "b weight=3", "c weight=0"];
    let weighted = selector(chain(vec![], Balance::WeightedRandom), &lines);
    check(&weighted, &Request::default(), &[("a", 25.0), ("b", 75.0)], Ok(Reason::Matched));
    for balance in [Balance::Random, Balance::Xid, Balance::RoundRobin, Balance::LeastActive] {
        let even = selector(chain(vec![], balance), &lines);
        check(&even, &Request::default(), &[("a", 33.33), ("b", 33.33), ("c", 33.33)], Ok(Reason::Matched));
    }
}

#[test]
fn all_zero_or_overflowing_weights_are_even() {
    for lines in [["a weight=0", "b weight=0"], ["a weight=0", "b weight=-3"], ["a weight=2147483647", "b weight=1"]] {
        let selector = selector(chain(vec![], Balance::WeightedRandom), &lines);
        check(&selector, &Request::default(), &[("a", 50.0), ("b", 50.0)], Ok(Reason::AllZeroUniform));
    }
    // Only the absence of any weight key is plain.
    let plain = selector(chain(vec![], Balance::WeightedRandom), &["a", "b"]);
    check(&plain, &Request::default(), &[("a", 50.0), ("b", 50.0)], Ok(Reason::Matched));
    // An explicit zero beside an instance without the key: no positive weight is explicit, so all are even.
    let mixed = selector(chain(vec![], Balance::WeightedRandom), &["a weight=0", "b"]);
    check(&mixed, &Request::default(), &[("a", 50.0), ("b", 50.0)], Ok(Reason::AllZeroUniform));
    let drained = selector(chain(vec![], Balance::WeightedRandom), &["a weight=0", "b", "c weight=2"]);
    check(&drained, &Request::default(), &[("b", 33.33), ("c", 66.67)], Ok(Reason::Matched));
}

#[test]
fn the_kind_of_a_weight_matters() {
    let selector = selector(chain(vec![], Balance::WeightedRandom), &[]);
    let mut list = fleet(&["n", "t"]);
    list[0].metadata.insert("weight".into(), MetaValue::Number("2.5".into()));
    list[1].metadata.insert("weight".into(), MetaValue::Text("2.5".into()));
    selector.apply(Update::Snapshot(list), std::time::Duration::ZERO);
    check(&selector, &Request::default(), &[("n", 66.67), ("t", 33.33)], Ok(Reason::Matched));
}

/// Routing off or unconfigured: candidates and distribution as without any routing.
#[test]
fn routing_off_is_as_if_we_were_not_there() {
    let lines = ["a version=1 weight=9", "b version=2", "c"];
    let off = selector(chain(vec![], Balance::Random), &lines);
    let plain = {
        let mut set = RuleSet::default();
        set.balance = Balance::Random;
        selector(set, &lines)
    };
    assert_eq!(off.distribution(&()).shares, plain.distribution(&()).shares);
    assert!(fits(&count(&off, &Request::default(), 9000), &plain.distribution(&()).shares));
}
