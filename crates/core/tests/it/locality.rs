//! Clusters, zones, health, panic and ejection.

use std::time::Duration;

use metaroute_core::resilience::ejection::EjectionPolicy;
use metaroute_core::rules::{Balance, ZonePreference};
use metaroute_core::{NoPickReason, Outcome, Reason, Request, RuleSet, Update};

use crate::{check, fleet, must, rules, selector, selector_for, shares};

fn zoned(strict: bool) -> RuleSet {
    let mut set = RuleSet::default();
    let mut zone = ZonePreference::default();
    zone.strict = strict;
    set.prefer.zone = Some(zone);
    set
}

fn in_zone(healthy: usize, total: usize, zone: &str) -> Vec<String> {
    (0..total).map(|i| format!("{zone}-{i:03} zone={zone}{}", if i < healthy { "" } else { " u" })).collect()
}

fn zone_share(set: RuleSet, healthy: [usize; 2]) -> (f64, Result<Reason, NoPickReason>) {
    let lines: Vec<String> = [in_zone(healthy[0], 100, "z1"), in_zone(healthy[1], 100, "z2")].concat();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let selector = selector_for(set, &[("zone", "z1")], &lines);
    let own = shares(&selector, &Request::default())
        .iter()
        .filter(|(id, _)| id.starts_with("z1"))
        .map(|(_, share)| share)
        .sum();
    (own, selector.explain(&()).outcome)
}

#[test]
fn t34_overflow_to_the_next_zone() {
    for (healthy, own) in [(100, 100.0), (72, 100.0), (71, 99.4), (50, 70.0), (25, 35.0), (0, 0.0)] {
        let (share, outcome) = zone_share(zoned(false), [healthy, 100]);
        assert!((share - own).abs() < 0.5, "{healthy} %: {share}");
        assert_eq!(outcome, Ok(Reason::Matched));
    }
    let mut set = zoned(false);
    set.panic = Some(0.5);
    let (share, outcome) = zone_share(set, [25, 25]);
    assert!((share - 50.0).abs() < 0.5);
    assert_eq!(outcome, Ok(Reason::Panic));
}

#[test]
fn t37_nothing_in_my_zone() {
    let lines = ["a zone=z1", "b zone=z2"];
    let open = selector_for(zoned(false), &[("zone", "z9")], &lines);
    check(&open, &Request::default(), &[("a", 50.0), ("b", 50.0)], Ok(Reason::Matched));
    let strict = selector_for(zoned(true), &[("zone", "z9")], &lines);
    assert_eq!(strict.select(&()).unwrap_err().reason, NoPickReason::Filtered);
    // The reason is about the zone that may serve, whatever the others have.
    for (here, reason) in [("u", NoPickReason::AllUnhealthy), ("w=0", NoPickReason::AllZeroWeight)] {
        let here = format!("c zone=z9 {here}");
        let strict = selector_for(zoned(true), &[("zone", "z9")], &[lines[0], lines[1], &here]);
        assert_eq!(strict.select(&()).unwrap_err().reason, reason);
    }
}

#[test]
fn a_region_is_the_tier_between_the_zone_and_the_rest() {
    let own = [("zone", "z1"), ("region", "eu")];
    let lines = ["a zone=z1 region=eu u", "b zone=z2 region=eu", "c zone=z1 region=us"];
    check(&selector_for(zoned(false), &own, &lines), &Request::default(), &[("b", 100.0)], Ok(Reason::Matched));
}

#[test]
fn t25_a_zone_emptied_by_a_rule_loses_its_weight() {
    let mut set = rules(vec![must("group == A")]);
    let mut zone = ZonePreference::default();
    zone.weights = [("l1".into(), 50.0), ("l2".into(), 50.0)].into();
    set.prefer.zone = Some(zone);
    let lines = ["a zone=l1 group=A", "b zone=l1 group=A", "c zone=l2 group=B", "d zone=l2 group=B"];
    check(&selector(set, &lines), &Request::default(), &[("a", 50.0), ("b", 50.0)], Ok(Reason::Matched));
}

#[test]
fn golden_zone_weights() {
    let mut set = RuleSet::default();
    let mut zone = ZonePreference::default();
    zone.weights = [("x".into(), 60.0), ("y".into(), 20.0), ("z".into(), 20.0)].into();
    set.prefer.zone = Some(zone);
    let selector = selector(set, &["x zone=x", "y zone=y", "z1 zone=z", "z2 zone=z u"]);
    check(&selector, &Request::default(), &[("x", 63.83), ("y", 21.28), ("z1", 14.89)], Ok(Reason::Matched));
}

#[test]
fn t40_panic_is_counted_in_the_subset() {
    let mut lines: Vec<String> = (0..96).map(|i| format!("other{i} ring=b")).collect();
    lines.extend(["p0 ring=a", "p1 ring=a u", "p2 ring=a u", "p3 ring=a u"].map(str::to_owned));
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let mut set = rules(vec![must("ring == a")]);
    set.panic = Some(0.5);
    let expected = [("p0", 25.0), ("p1", 25.0), ("p2", 25.0), ("p3", 25.0)];
    let selector = selector(set.clone(), &lines);
    check(&selector, &Request::default(), &expected, Ok(Reason::Panic));
    assert!(!selector.instances().iter().find(|i| i.id.as_str() == "p1").unwrap().healthy, "health flags stay");
    set.rules = vec![must("ring == b")];
    assert_eq!(crate::selector(set, &lines).explain(&()).outcome, Ok(Reason::Matched));
}

#[test]
fn panic_never_uses_disabled_or_weightless_instances() {
    let mut set = RuleSet::default();
    set.panic = Some(0.5);
    let selector = selector(set, &["a u", "b u w=0", "c u off"]);
    check(&selector, &Request::default(), &[("a", 100.0)], Ok(Reason::Panic));
}

#[test]
fn own_cluster_first_and_others_only_when_it_has_none_usable() {
    let mut set = RuleSet::default();
    set.prefer.cluster = true;
    let own = [("cluster", "hz")];
    let at = |lines: &[&str]| selector_for(set.clone(), &own, lines);
    check(&at(&["a cluster=hz w=1", "b cluster=sh w=9"]), &Request::default(), &[("a", 100.0)], Ok(Reason::Matched));
    for out in ["a cluster=hz u", "a cluster=hz w=0", "a cluster=hz off", "a cluster=bj"] {
        check(
            &at(&[out, "b cluster=sh u", "c cluster=sh"]),
            &Request::default(),
            if out.ends_with("bj") { &[("a", 50.0), ("c", 50.0)] } else { &[("c", 100.0)] },
            Ok(Reason::CrossCluster),
        );
    }
}

fn ejecting(percent: u8) -> RuleSet {
    let mut set = RuleSet::default();
    let mut policy = EjectionPolicy::default();
    policy.consecutive_failures = Some(3);
    policy.max_ejected_percent = percent;
    policy.base_time = Duration::from_secs(30);
    set.ejection = Some(policy);
    set
}

/// Fails every call to `down` until nothing picks it any more or `calls` are made.
fn fail(selector: &metaroute_core::Selector, down: &str, calls: usize) {
    for _ in 0..calls {
        if let Ok(pick) = selector.select(&()) {
            let outcome = if pick.instance().id.as_str() == down { Outcome::Failure } else { Outcome::Success };
            pick.complete(outcome, Duration::from_millis(1));
        }
    }
}

#[test]
fn t38_ejection_alone_changes_nothing_for_healthy_instances() {
    let set = ejecting(50);
    let selector = selector_for(set, &[("zone", "z1")], &["s1 zone=z1", "s2 zone=z2"]);
    check(&selector, &Request::default(), &[("s1", 50.0), ("s2", 50.0)], Ok(Reason::Matched));
}

#[test]
fn t39_an_ejected_instance_gets_one_probe_and_returns() {
    let selector = selector(ejecting(50), &["a", "b", "c"]);
    fail(&selector, "a", 60);
    assert!(selector.wants_tick());
    selector.tick(Duration::from_secs(1));
    assert_eq!(shares(&selector, &Request::default()).len(), 2);
    assert_eq!(selector.metrics(Duration::from_secs(1)).ejected, 1);
    assert_eq!(selector.explain(&()).instances[0].clause.as_deref(), Some("ejected"));
    fail(&selector, "b", 60);
    selector.tick(Duration::from_secs(2));
    assert_eq!(shares(&selector, &Request::default()).len(), 2, "50 % of three is one");
    selector.tick(Duration::from_secs(31));
    let probe = selector.select(&()).unwrap();
    assert_eq!(probe.instance().id.as_str(), "a", "half-open: the next call is the probe");
    assert_ne!(selector.select(&()).unwrap().instance().id.as_str(), "a", "one at a time");
    probe.complete(Outcome::Success, Duration::from_millis(1));
    selector.tick(Duration::from_secs(32));
    assert!(shares(&selector, &Request::default()).iter().any(|(id, _)| id == "a"));
}

#[test]
fn t57_everything_tripped_fails_fast_and_probes_one_at_a_time() {
    let mut set = ejecting(100);
    set.rules = vec![must("")];
    let selector = selector(set, &["a", "b", "c"]);
    for _ in 0..100 {
        selector.select(&()).unwrap().complete(Outcome::Failure, Duration::from_millis(1));
    }
    selector.tick(Duration::from_secs(1));
    assert_eq!(selector.select(&()).unwrap_err().reason, NoPickReason::AllUnhealthy);
    selector.tick(Duration::from_secs(31));
    let probes: Vec<_> = (0..3).map(|_| selector.select(&()).unwrap()).collect();
    assert_eq!(
        selector.select(&()).unwrap_err().reason,
        NoPickReason::AllUnhealthy,
        "each of the three is being probed"
    );
    drop(probes);
    assert!(selector.select(&()).is_ok(), "an abandoned probe frees its place");
}

#[test]
fn a_new_incarnation_starts_without_the_old_ones_ejection_or_load() {
    let mut set = ejecting(50);
    set.balance = Balance::LeastActive;
    let selector = selector(set, &["a", "b", "c"]);
    fail(&selector, "a", 60);
    selector.tick(Duration::from_secs(1));
    let mut list = fleet(&["a", "b", "c"]);
    list[0].incarnation = metaroute_core::Incarnation::new("2");
    selector.apply(Update::Snapshot(list), Duration::from_secs(2));
    assert_eq!(selector.metrics(Duration::from_secs(2)).ejected, 0);
    assert_eq!(shares(&selector, &Request::default()).len(), 3);
}
