//! Weights, schedules and hashes.

use std::collections::BTreeMap;
use std::time::Duration;

use metaroute_core::rules::{AllZero, Balance, ZonePreference};
use metaroute_core::{Basis, Instance, InstanceId, NoPickReason, Outcome, Reason, Request, RuleSet, Selector, Update};

use crate::{check, count, fits, fleet, instance, must, rules, selector, selector_for};

fn with(balance: Balance) -> RuleSet {
    let mut set = RuleSet::default();
    set.balance = balance;
    set
}

fn every() -> impl Iterator<Item = Balance> {
    Balance::NAMES.into_iter().map(|name| name.parse().unwrap()).chain([Balance::SeataConsistentHash])
}

#[test]
fn t17_all_weights_zero() {
    for balance in every() {
        let selector = selector(with(balance.clone()), &["m1 w=0", "m2 w=0"]);
        for _ in 0..1000 {
            assert_eq!(selector.select(&()).unwrap_err().reason, NoPickReason::AllZeroWeight, "{balance}");
        }
        let mut set = with(balance.clone());
        set.all_zero = AllZero::Uniform;
        let uniform = crate::selector(set, &["m1 w=0", "m2 w=0"]);
        assert_eq!(uniform.explain(&()).outcome, Ok(Reason::AllZeroUniform), "{balance}");
        let shares = uniform.distribution(&()).shares;
        let mut lane = uniform.rules();
        lane.rules = vec![must("lane == $req.lane?")];
        let dependent = crate::selector(lane, &["m1 w=0", "m2 w=0", "far w=1 lane=y"]);
        let request = dependent.request([("lane", "y")]);
        assert_eq!(dependent.select(&request).unwrap().instance().id.as_str(), "far", "{balance}");
        let tolerance = if balance.needs_key() { 0.25 } else { 1e-9 };
        assert!(shares.iter().all(|(_, share)| (share - 0.5).abs() <= tolerance), "{balance} {shares:?}");
    }
}

/// The ill have no say in whether "every weight is 0": of the healthy ones it is, so the answer that is given without the
/// rule (`all_zero_weight`) is the one the rule changes.
#[test]
fn all_zero_looks_at_who_is_healthy() {
    let lines = ["drained w=0", "ill w=5 u", "off w=5 off"];
    for balance in every() {
        let refused = selector(with(balance.clone()), &lines);
        assert_eq!(refused.select(&()).unwrap_err().reason, NoPickReason::AllZeroWeight, "{balance}");
        let mut set = with(balance.clone());
        set.all_zero = AllZero::Uniform;
        let uniform = selector(set.clone(), &lines);
        check(&uniform, &Request::default(), &[("drained", 100.0)], Ok(Reason::AllZeroUniform));
        set.rules = vec![must("!exists(x)")];
        let ruled = selector(set.clone(), &[lines[0], lines[1], "other x=1"]);
        check(&ruled, &Request::default(), &[("drained", 100.0)], Ok(Reason::AllZeroUniform));
        // Panic, where it is on, goes by weights and comes first.
        set.panic = Some(0.5);
        let panicking = selector(set, &lines);
        check(&panicking, &Request::default(), &[("ill", 100.0)], Ok(Reason::Panic));
    }
}

/// A strict zone stays strict when all weights are 0.
#[test]
fn all_zero_stays_in_a_strict_zone() {
    let mut set = RuleSet::default();
    set.all_zero = AllZero::Uniform;
    let mut zone = ZonePreference::default();
    zone.strict = true;
    set.prefer.zone = Some(zone);
    let own = [("zone", "z1")];
    let both = selector_for(set.clone(), &own, &["a zone=z1 w=0", "b zone=z2 w=0"]);
    check(&both, &Request::default(), &[("a", 100.0)], Ok(Reason::AllZeroUniform));
    let elsewhere = selector_for(set, &own, &["b zone=z2 w=0"]);
    assert_eq!(elsewhere.select(&()).unwrap_err().reason, NoPickReason::Filtered);
}

#[test]
fn t18_weight_zero_in_hashing_keeps_updates_going() {
    for balance in every().filter(|balance| *balance != Balance::SeataConsistentHash) {
        let selector = selector(with(balance.clone()), &["n1 w=0", "n2 w=5", "n3 w=5"]);
        assert_eq!(selector.distribution(&()).shares[0].1, 0.0, "{balance}");
        let counts = count(&selector, &Request::default(), 1000);
        assert!(!counts.contains_key("n1"), "{balance}");
        selector.apply(Update::Snapshot(fleet(&["n1 w=0", "n4 w=5"])), Duration::from_secs(1));
        assert!(count(&selector, &Request::default(), 10).contains_key("n4"), "{balance}");
    }
}

/// The seeded picks of every balancer follow the exact shares of `explain`.
#[test]
fn picks_follow_explained_shares() {
    let lines = ["a w=1", "b w=2", "c w=0", "d w=7 u", "e w=7"];
    for balance in every() {
        let selector = selector(with(balance.clone()), &lines);
        let shares = selector.distribution(&()).shares;
        let counts = count(&selector, &Request::default(), 20_000);
        match balance {
            // Turns are more even than chance, so chi-square cannot fail them; the counts must be exact.
            Balance::RoundRobin | Balance::SmoothWeightedRoundRobin => {
                for (id, share) in &shares {
                    let seen = counts.get(id.as_str()).copied().unwrap_or(0) as f64;
                    assert!((seen - share * 20_000.0).abs() <= 2.0, "{balance} {counts:?}");
                }
            }
            _ => assert!(fits(&counts, &shares), "{balance} {counts:?} {shares:?}"),
        }
    }
}

#[test]
fn t21_sessions_stay_while_draining_and_leave_at_the_deadline() {
    let mut set = RuleSet::default();
    set.drain_deadline = Some(Duration::from_secs(60));
    let selector = selector(set, &["r1 w=1", "r2 w=1"]);
    selector.apply(Update::Snapshot(fleet(&["r1 w=0", "r2 w=1"])), Duration::from_secs(10));
    let session = Request::default().with_instance("r1".into());
    let at = |request: &Request| {
        let pick = selector.select(request).unwrap();
        (pick.instance().id.to_string(), pick.reason())
    };
    assert_eq!(at(&session), ("r1".into(), Reason::Affinity));
    assert!(!count(&selector, &Request::default(), 1000).contains_key("r1"));
    assert_eq!(selector.tick(Duration::from_secs(20)), Some(Duration::from_secs(70)));
    selector.tick(Duration::from_secs(70));
    assert_eq!(at(&session), ("r2".into(), Reason::Matched));
}

#[test]
fn t22_the_first_pick_of_fresh_clients_honours_weights() {
    for balance in [Balance::WeightedRandom, Balance::SmoothWeightedRoundRobin, Balance::LeastActive] {
        let selector = selector(with(balance.clone()), &["heavy w=99", "light w=1"]);
        let first = |_| selector.picker().pick(&()).unwrap().instance().id.as_str() == "light";
        let light = (0..1000).map(first).filter(|&light| light).count();
        assert!((1..=25).contains(&light), "{balance}: {light}");
    }
}

#[test]
fn t23_weighted_mode_is_entered_whichever_member_changes() {
    let selector = selector(RuleSet::default(), &["a", "b", "c"]);
    selector.apply(Update::Snapshot(fleet(&["a", "b", "c w=98"])), Duration::from_secs(1));
    check(&selector, &Request::default(), &[("a", 1.0), ("b", 1.0), ("c", 98.0)], Ok(Reason::Matched));
}

#[test]
fn t27_smooth_sequence() {
    let selector = selector(with(Balance::SmoothWeightedRoundRobin), &["a w=5", "b w=1", "c w=1"]);
    let mut picker = selector.picker_aligned();
    let sequence: String = (0..14).map(|_| picker.pick(&()).unwrap().instance().id.to_string()).collect();
    assert_eq!(sequence, "aabacaaaabacaa");
}

#[test]
fn round_robin_takes_everyone_in_turn() {
    let selector = selector(with(Balance::RoundRobin), &["a w=5", "b w=1", "c w=0", "d w=2"]);
    let mut picker = selector.picker_aligned();
    let sequence: String = (0..6).map(|_| picker.pick(&()).unwrap().instance().id.to_string()).collect();
    assert_eq!(sequence, "abdabd");
    let shared: String = (0..6).map(|_| selector.select(&()).unwrap().instance().id.to_string()).collect();
    assert!(["abdabd", "bdabda", "dabdab"].contains(&shared.as_str()), "{shared}");
}

#[test]
fn t28_odd_weights() {
    let selector = selector(RuleSet::default(), &["a w=2147483647", "b w=2147483647", "c w=1"]);
    let shares = selector.distribution(&()).shares;
    assert!((shares[0].1 - 0.5).abs() < 1e-9 && shares[0].1 == shares[1].1 && shares[2].1 > 0.0 && shares[2].1 < 1e-9);
    let bad = ["nan w=NaN", "inf w=inf", "neg w=-1", "ok w=3"];
    selector.apply(Update::Snapshot(fleet(&bad)), Duration::from_secs(1));
    check(&selector, &Request::default(), &[("ok", 100.0)], Ok(Reason::Matched));
    assert_eq!(selector.metrics(Duration::from_secs(1)).rejects.count, 3);
}

#[test]
fn t31_a_rising_weight_never_takes_more_than_its_share() {
    let at = |weight: usize| {
        let old = (0..10).map(|i| format!("old{i} w=100"));
        let new = (0..10).map(|i| format!("new{i} w={weight}"));
        old.chain(new).map(|line| instance(&line)).collect::<Vec<_>>()
    };
    let selector = selector(with(Balance::SmoothWeightedRoundRobin), &[]);
    let mut picker = selector.picker();
    let mut window: Vec<(bool, f64)> = Vec::new();
    for second in 1..=300 {
        selector.apply(Update::Snapshot(at(second)), Duration::from_secs(second as u64));
        let share = second as f64 / (second as f64 + 100.0);
        for _ in 0..100 {
            window.push((picker.pick(&()).unwrap().instance().id.as_str().starts_with("new"), share));
        }
        if window.len() > 1000 {
            window.drain(..100);
        }
        if window.len() == 1000 {
            let seen = window.iter().filter(|(new, _)| *new).count() as f64;
            let fair: f64 = window.iter().map(|(_, share)| share).sum();
            assert!(seen <= fair * 1.1 + 1.0, "second {second}: {seen} of {fair}");
        }
    }
}

/// `routing.md` T41 and T42: the mapping is a function of the final list alone.
#[test]
fn t41_t42_history_and_order_do_not_change_the_mapping() {
    for balance in every().filter(Balance::needs_key) {
        let lines: Vec<String> = (0..7).map(|i| format!("h{i} w={}", i + 1)).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let direct = selector(with(balance.clone()), &lines);
        let stepwise = selector(with(balance.clone()), &[]);
        for (i, line) in lines.iter().rev().enumerate() {
            let upsert = vec![instance(line).with_weight(50.0)];
            stepwise.apply(Update::Delta { upsert, remove: vec![] }, Duration::from_secs(i as u64));
        }
        let upsert = lines.iter().rev().map(|line| instance(line)).collect();
        stepwise.apply(Update::Delta { upsert, remove: vec![] }, Duration::from_secs(100));
        let owner = |selector: &Selector, key: u32| {
            let request = Request::default().with_key(key.to_string());
            selector.select(&request).unwrap().instance().id.clone()
        };
        for key in 0..10_000 {
            assert_eq!(owner(&direct, key), owner(&stepwise, key), "{balance} key {key}");
        }
    }
}

/// `routing.md` T45 through the selector: only keys of the dead move and they return.
#[test]
fn t45_keys_of_the_dead_move_and_return() {
    for balance in every().filter(Balance::needs_key) {
        let selector = selector(with(balance.clone()), &["a", "b", "c"]);
        let owners = || -> Vec<InstanceId> {
            let key = |key: u32| Request::default().with_key(key.to_string());
            (0..2000).map(|k| selector.select(&key(k)).unwrap().instance().id.clone()).collect()
        };
        let before = owners();
        selector.apply(Update::Snapshot(fleet(&["a", "b u", "c"])), Duration::from_secs(1));
        let during = owners();
        for (before, during) in before.iter().zip(&during) {
            assert!(before == during || before.as_str() == "b", "{balance}");
            assert_ne!(during.as_str(), "b", "{balance}");
        }
        selector.apply(Update::Snapshot(fleet(&["a", "b", "c"])), Duration::from_secs(2));
        assert_eq!(owners(), before, "{balance}");
    }
}

#[test]
fn a_key_has_one_owner_and_explain_knows_it() {
    for balance in every().filter(Balance::needs_key) {
        let selector = selector(with(balance.clone()), &["a", "b w=3", "c u"]);
        let request = Request::default().with_key("user-42");
        let explained = selector.explain(&request);
        assert_eq!(explained.basis, Basis::Key);
        let owner = explained.instances.iter().find(|found| found.probability == 1.0).unwrap();
        for _ in 0..10 {
            assert_eq!(selector.select(&request).unwrap().instance().id, owner.instance.id, "{balance}");
        }
        assert_eq!(selector.explain(&()).basis, Basis::KeySpace);
    }
}

/// Weightless candidates that only the all-zero rule serves, under rules that read the request.
#[test]
fn weightless_subsets_are_served_by_key_too() {
    for balance in every().filter(Balance::needs_key) {
        let mut set = rules(vec![must("lane == $req.lane")]);
        set.balance = balance.clone();
        set.all_zero = AllZero::Uniform;
        let selector = selector(set, &["a lane=x w=0", "b lane=x w=0", "c lane=y w=1"]);
        let request = selector.request([("lane", "x")]).with_key("k");
        let before = selector.select(&request).unwrap().instance().id.clone();
        assert_eq!(selector.explain(&request).instances.iter().map(|i| i.probability).sum::<f64>(), 1.0, "{balance}");
        selector.tick(Duration::from_secs(1));
        assert_eq!(selector.select(&request).unwrap().instance().id, before, "{balance}");
    }
}

/// A request-dependent rule may narrow to any subset: keys keep the owner they have once the answer is remembered.
#[test]
fn remembered_and_unremembered_answers_agree() {
    for balance in every() {
        let mut set = rules(vec![must("lane == $req.lane")]);
        set.balance = balance.clone();
        let selector = selector(set, &["a lane=x", "b lane=x w=2", "c lane=y", "d lane=x u"]);
        let request = selector.request([("lane", "x")]).with_key("k");
        let keyed = |selector: &Selector| selector.select(&request).unwrap().instance().id.clone();
        let fresh = keyed(&selector);
        let shares = selector.distribution(&selector.request([("lane", "x")])).shares;
        let unkeyed = selector.request([("lane", "x")]);
        let before = count(&selector, &unkeyed, 5000);
        assert!(selector.wants_tick());
        selector.tick(Duration::from_secs(1));
        assert_eq!(selector.metrics(Duration::from_secs(1)).memo, 1);
        if balance.needs_key() {
            assert_eq!(fresh, keyed(&selector), "{balance}");
        }
        let after = count(&selector, &unkeyed, 5000);
        if !matches!(balance, Balance::RoundRobin | Balance::SmoothWeightedRoundRobin) {
            assert!(fits(&before, &shares) && fits(&after, &shares), "{balance} {before:?} {after:?} {shares:?}");
        }
    }
}

#[test]
fn least_active_avoids_the_busy() {
    let selector = selector(with(Balance::LeastActive), &["a", "b"]);
    let mut picker = selector.picker();
    let held: Vec<_> = (0..200).map(|_| picker.pick(&()).unwrap().into_owned()).collect();
    let of_a = held.iter().filter(|pick| pick.instance().id.as_str() == "a").count();
    assert!((90..=110).contains(&of_a), "two choices keep both level: {of_a}");
    drop(held);
    let freed = count(&selector, &Request::default(), 1000);
    assert!(freed["a"] > 400 && freed["b"] > 400, "dropped picks are no longer in flight");
}

/// `routing.md` T58: a newcomer without samples is tried at once, one call at a time until it has answered.
#[test]
fn t58_a_newcomer_gets_traffic_soon() {
    let selector = selector(with(Balance::PeakEwma), &["a", "b"]);
    let mut picker = selector.picker();
    for _ in 0..100 {
        picker.pick(&()).unwrap().complete(Outcome::Success, Duration::from_millis(5));
    }
    selector.apply(Update::Snapshot(fleet(&["a", "b", "new"])), Duration::from_secs(1));
    let mut first = None;
    for n in 0..100 {
        let pick = picker.pick(&()).unwrap();
        if pick.instance().id.as_str() == "new" {
            first.get_or_insert(n);
        }
        pick.complete(Outcome::Success, Duration::from_millis(5));
    }
    assert!(first.is_some());
    // A slow one is avoided.
    for _ in 0..500 {
        let pick = picker.pick(&()).unwrap();
        let slow = pick.instance().id.as_str() == "a";
        pick.complete(Outcome::Success, Duration::from_millis(if slow { 500 } else { 5 }));
    }
    let counts = count(&selector, &Request::default(), 1000);
    assert!(counts.get("a").copied().unwrap_or(0) < 250, "{counts:?}");
}

#[test]
fn bounded_load_spills_over() {
    let mut set = with(Balance::ConsistentHash);
    set.hash.bounded_load = Some(1.25);
    let selector = selector(set, &["a", "b", "c", "d"]);
    let request = Request::default().with_key("hot");
    let held: Vec<_> = (0..40).map(|_| selector.select(&request).unwrap()).collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for pick in &held {
        *counts.entry(pick.instance().id.as_str()).or_default() += 1;
    }
    assert!(counts.values().all(|&n| n <= 13), "ceil(1.25 × 40 / 4) = 13: {counts:?}");
}

#[test]
fn xid_finds_its_owner_before_preference_but_not_past_must() {
    let lines = ["a", "b"];
    let named = |set: RuleSet| {
        let selector = selector(set, &[]);
        let list = lines.iter().map(|id| {
            let host = if *id == "a" { "10.0.0.1:8091" } else { "tc.internal:8091" };
            Instance::new(host.parse().unwrap()).with_id(*id).with_meta("env", if *id == "a" { "dev" } else { "prod" })
        });
        selector.apply(Update::Snapshot(list.collect()), Duration::ZERO);
        selector
    };
    let mut wish = with(Balance::Xid);
    wish.rules = vec![crate::prefer("env == prod", vec![], metaroute_core::rules::Terminal::Any)];
    let selector = named(wish);
    let at = |xid: &str| {
        let pick = selector.select(&Request::default().with_xid(xid)).unwrap();
        (pick.instance().id.to_string(), pick.reason())
    };
    assert_eq!(at("10.0.0.1:8091:2612341"), ("a".into(), Reason::Affinity));
    assert_eq!(at("tc.internal:8091:77"), ("b".into(), Reason::Affinity));
    for other in ["order:create", "no colon", "", "10.0.0.9:8091:5", ":", "::"] {
        assert_eq!(at(other), ("b".into(), Reason::Matched), "{other}");
    }
    let mut isolated = with(Balance::Xid);
    isolated.rules = vec![must("env == prod")];
    let selector = named(isolated);
    let pick = selector.select(&Request::default().with_xid("10.0.0.1:8091:1")).unwrap();
    assert_eq!((pick.instance().id.as_str(), pick.reason()), ("b", Reason::Matched));
}

#[test]
fn xid_of_an_ipv6_server_in_every_spelling() {
    let selector = selector(with(Balance::Xid), &["other"]);
    let list = vec![Instance::new("[::1]:8091".parse().unwrap()).with_id("six"), instance("other")];
    selector.apply(Update::Snapshot(list), Duration::ZERO);
    for xid in ["[::1]:8091:9", "::1:8091:9", "0:0:0:0:0:0:0:1:8091:9", "[0:0:0:0:0:0:0:1]:8091:9"] {
        let pick = selector.select(&Request::default().with_xid(xid)).unwrap();
        assert_eq!((pick.instance().id.as_str(), pick.reason()), ("six", Reason::Affinity), "{xid}");
    }
}

#[test]
fn sizes_from_none_to_a_hundred_thousand() {
    for balance in every() {
        let selector = selector(with(balance.clone()), &[]);
        assert_eq!(selector.select(&()).unwrap_err().reason, NoPickReason::EmptyRegistry, "{balance}");
        selector.apply(Update::Snapshot(fleet(&["only"])), Duration::ZERO);
        assert_eq!(selector.select(&()).unwrap().instance().id.as_str(), "only", "{balance}");
        let many = (0..100_000).map(|i| instance(&format!("h{i} w={}", i % 7)));
        selector.apply(Update::Snapshot(many.collect()), Duration::from_secs(1));
        assert!(selector.select(&()).is_ok(), "{balance}");
    }
}
