//! The Nacos same-cluster / same-version preset.

use metaroute_core::{NoPickReason, Reason, Request, RuleSet};

use crate::{caller, check, selector_for};

const FLEET: [&str; 5] = [
    "a cluster=hz version=2.0 w=1",
    "b cluster=hz version=2.0 w=3",
    "c cluster=sh version=2.0 w=5",
    "d cluster=hz version=1.0 w=7",
    "e cluster=hz version=2.0 u",
];

fn preset(own: &[(&str, &str)], lines: &[&str], expected: &[(&str, f64)], outcome: Result<Reason, NoPickReason>) {
    let selector = selector_for(RuleSet::nacos_cluster(&caller(own)), own, lines);
    check(&selector, &Request::default(), expected, outcome);
}

#[test]
fn own_cluster_and_target_version() {
    preset(&[("cluster", "hz"), ("target-version", "2.0")], &FLEET, &[("a", 25.0), ("b", 75.0)], Ok(Reason::Matched));
}

#[test]
fn other_clusters_only_when_the_own_has_none() {
    preset(&[("cluster", "bj"), ("target-version", "1.0")], &FLEET, &[("d", 100.0)], Ok(Reason::CrossCluster));
    let zero = ["a cluster=hz version=2.0 w=0", "c cluster=sh version=2.0 w=5"];
    preset(&[("cluster", "hz"), ("target-version", "2.0")], &zero, &[("c", 100.0)], Ok(Reason::CrossCluster));
}

#[test]
fn no_such_version_is_no_instance() {
    preset(&[("cluster", "hz"), ("target-version", "9")], &FLEET, &[], Err(NoPickReason::Filtered));
    // The original compares strings: 2.0 is not 2.0.0.
    preset(&[("cluster", "hz"), ("target-version", "2.0.0")], &FLEET, &[], Err(NoPickReason::Filtered));
}

#[test]
fn blank_values_switch_their_part_off() {
    let all_hz = [("a", 9.09), ("b", 27.27), ("d", 63.64)];
    preset(&[("cluster", "hz"), ("target-version", " ")], &FLEET, &all_hz, Ok(Reason::Matched));
    let all_2 = [("a", 11.11), ("b", 33.33), ("c", 55.56)];
    preset(&[("cluster", ""), ("target-version", "2.0")], &FLEET, &all_2, Ok(Reason::Matched));
}

#[test]
fn all_weights_zero_is_none_said_clearly() {
    let zero = ["a cluster=hz version=2.0 w=0", "b cluster=sh version=2.0 w=0"];
    preset(&[("cluster", "hz"), ("target-version", "2.0")], &zero, &[], Err(NoPickReason::AllZeroWeight));
}
