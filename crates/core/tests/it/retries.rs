//! Going on to another instance after a failure.

use std::time::Duration;

use metaroute_core::rules::Balance;
use metaroute_core::{InstanceId, NoPickReason, Reason, Request, RuleSet};

use crate::{fits, must, rules, selector};

fn ids(list: &[&str]) -> Vec<InstanceId> {
    list.iter().map(|id| InstanceId::from(*id)).collect()
}

#[test]
fn t55_a_single_host_is_offered_again_unless_that_is_forbidden() {
    let again = selector(RuleSet::default(), &["only"]);
    let pick = again.select_next(&(), &ids(&["only"])).unwrap();
    assert_eq!((pick.instance().id.as_str(), pick.reason()), ("only", Reason::ExclusionRelaxed));
    let mut set = RuleSet::default();
    set.reuse_tried = false;
    let none = selector(set, &["only"]).select_next(&(), &ids(&["only"])).unwrap_err();
    assert_eq!(none.reason, NoPickReason::Excluded);
}

/// What remains after an exclusion keeps its proportions; the neighbour of a heavy host does not get its whole load.
#[test]
fn the_second_choice_follows_the_remaining_weights_under_every_balancer() {
    for name in Balance::NAMES {
        let mut set = RuleSet::default();
        set.balance = name.parse().unwrap();
        let selector = selector(set, &["a w=1", "b w=97", "c w=2", "d w=0"]);
        let mut picker = selector.picker();
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..6000 {
            let pick = picker.pick_next(&(), &ids(&["b"])).unwrap();
            assert_eq!(pick.reason(), Reason::Matched, "{name}");
            *counts.entry(pick.instance().id.to_string()).or_insert(0) += 1;
        }
        assert!(!counts.contains_key("b") && !counts.contains_key("d"), "{name} {counts:?}");
        let even = ["random", "round-robin", "xid"].contains(&name);
        let expected = if even { [0.5, 0.5] } else { [1.0 / 3.0, 2.0 / 3.0] };
        if !["consistent-hash", "maglev"].contains(&name) {
            assert!(fits(&counts, &[("a".into(), expected[0]), ("c".into(), expected[1])]), "{name} {counts:?}");
        }
    }
}

#[test]
fn a_hash_key_goes_to_the_next_owner() {
    for name in ["consistent-hash", "rendezvous", "maglev"] {
        let mut set = RuleSet::default();
        set.balance = name.parse().unwrap();
        let selector = selector(set, &["a", "b", "c"]);
        let request = Request::default().with_key("k");
        let first = selector.select(&request).unwrap().instance().id.clone();
        let second = selector.select_next(&request, std::slice::from_ref(&first)).unwrap().instance().id.clone();
        let third = selector.select_next(&request, &[first.clone(), second.clone()]).unwrap().instance().id.clone();
        assert!(first != second && second != third && first != third, "{name}");
        assert_eq!(
            selector.select_next(&request, std::slice::from_ref(&first)).unwrap().instance().id,
            second,
            "{name}"
        );
    }
}

#[test]
fn exclusion_works_before_an_answer_is_remembered() {
    let selector = selector(rules(vec![must("lane == $req.lane")]), &["a lane=x", "b lane=x", "c lane=y"]);
    let request = selector.request([("lane", "x")]);
    for _ in 0..50 {
        assert_eq!(selector.select_next(&request, &ids(&["a"])).unwrap().instance().id.as_str(), "b");
    }
    selector.tick(Duration::from_secs(1));
    assert_eq!(selector.select_next(&request, &ids(&["a"])).unwrap().instance().id.as_str(), "b");
    assert_eq!(selector.select_next(&request, &ids(&["a", "b"])).unwrap().reason(), Reason::ExclusionRelaxed);
}
