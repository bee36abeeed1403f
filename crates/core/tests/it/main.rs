#![allow(clippy::field_reassign_with_default, reason = "rule sets are built as their users build them")]
//! The routing core as its users meet it. Test names carry the case number of the field's public bug reports they settle.

mod balancing;
mod extensions;
mod fallback;
mod locality;
mod nacos;
mod properties;
mod pushes;
mod retries;
mod seata;
mod warmup;

use std::collections::BTreeMap;
use std::time::Duration;

use metaroute_core::expr::Expr;
use metaroute_core::rules::{Fallback, Mode, Rule, Terminal};
use metaroute_core::{GuardOptions, Instance, NoPickReason, Options, Reason, Request, RuleSet, Selector, Update};

fn expr(text: &str) -> Expr {
    Expr::parse(text).unwrap()
}

/// `id key=value …`, with `w=`, `cluster=`, `zone=`, `region=` as the instance's own fields, `u` for unhealthy and
/// `off` for disabled.
fn instance(text: &str) -> Instance {
    let mut words = text.split_whitespace();
    let id = words.next().unwrap();
    let mut instance = Instance::new(format!("{id}.test:80").parse().unwrap()).with_id(id);
    for word in words {
        match word.split_once('=') {
            None if word == "u" => instance.healthy = false,
            None if word == "off" => instance.enabled = false,
            None => panic!("{word}"),
            Some(("w", weight)) => instance.weight = weight.parse().unwrap(),
            Some(("cluster", cluster)) => instance.cluster = cluster.into(),
            Some(("zone", zone)) => instance.locality.zone = zone.into(),
            Some(("region", region)) => instance.locality.region = region.into(),
            Some((key, value)) => instance = instance.with_meta(key, value),
        }
    }
    instance
}

fn fleet(lines: &[&str]) -> Vec<Instance> {
    lines.iter().map(|line| instance(line)).collect()
}

fn caller(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn selector_for(rules: RuleSet, own: &[(&str, &str)], instances: &[&str]) -> Selector {
    let options = Options { guard: GuardOptions::off(), seed: 7, caller: caller(own), ..Options::default() };
    let selector = Selector::new(rules, options).unwrap();
    selector.apply(Update::Snapshot(fleet(instances)), Duration::ZERO);
    selector
}

fn selector(rules: RuleSet, instances: &[&str]) -> Selector {
    selector_for(rules, &[], instances)
}

fn rules(list: Vec<Rule>) -> RuleSet {
    let mut set = RuleSet::default();
    set.rules = list;
    set
}

fn must(text: &str) -> Rule {
    let mut rule = Rule::new("must", expr(text));
    rule.terminal = Some(Terminal::Fail);
    rule
}

fn prefer(text: &str, on_empty: Vec<Fallback>, terminal: Terminal) -> Rule {
    let mut rule = Rule::new("prefer", expr(text));
    rule.mode = Mode::Prefer;
    rule.on_empty = on_empty;
    rule.terminal = Some(terminal);
    rule
}

/// Exact shares in percent, by id, of everything that has one.
fn shares(selector: &Selector, request: &Request) -> Vec<(String, f64)> {
    let distribution = selector.distribution(request);
    let total: f64 = distribution.shares.iter().map(|(_, share)| share).sum();
    assert!((total - 1.0).abs() < 1e-9 || total == 0.0, "shares sum to 1 or are all 0: {total}");
    assert_eq!(distribution.outcome.is_ok(), total > 0.0);
    let some = distribution.shares.into_iter().filter(|(_, share)| *share > 0.0);
    some.map(|(id, share)| (id.to_string(), (share * 10_000.0).round() / 100.0)).collect()
}

/// Checks the exact shares, that picks follow them, and the reason.
fn check(selector: &Selector, request: &Request, expected: &[(&str, f64)], reason: Result<Reason, NoPickReason>) {
    let found = shares(selector, request);
    assert_eq!(found.iter().map(|(id, share)| (id.as_str(), *share)).collect::<Vec<_>>(), expected);
    assert_eq!(selector.explain(request).outcome, reason);
    let mut picker = selector.picker();
    for _ in 0..200 {
        match picker.pick(request) {
            Ok(pick) => {
                assert!(expected.iter().any(|(id, _)| pick.instance().id.as_str() == *id), "{:?}", pick.instance().id);
                assert_eq!(Ok(pick.reason()), reason);
            }
            Err(none) => assert_eq!(Err(none.reason), reason),
        }
        assert_eq!(selector.select(request).map(|pick| pick.reason()).map_err(|none| none.reason), reason);
    }
}

/// How often each id is picked in `n` picks of one picker.
fn count(selector: &Selector, request: &Request, n: usize) -> BTreeMap<String, usize> {
    let mut picker = selector.picker();
    let mut counts = BTreeMap::new();
    for _ in 0..n {
        let pick = picker.pick(request).unwrap();
        *counts.entry(pick.instance().id.to_string()).or_insert(0) += 1;
    }
    counts
}

/// Whether observed counts can come from exact shares: the chi-square statistic against the 0.999 quantile
/// (Wilson and Hilferty's approximation).
fn fits(counts: &BTreeMap<String, usize>, shares: &[(metaroute_core::InstanceId, f64)]) -> bool {
    let n: usize = counts.values().sum();
    let open: Vec<_> = shares.iter().filter(|(_, share)| *share > 0.0).collect();
    if counts.keys().any(|id| !open.iter().any(|(open, _)| open.as_str() == id)) {
        return false;
    }
    let statistic: f64 = open
        .iter()
        .map(|(id, share)| {
            let expected = share * n as f64;
            let seen = counts.get(id.as_str()).copied().unwrap_or(0) as f64;
            (seen - expected).powi(2) / expected
        })
        .sum();
    let k = (open.len() - 1).max(1) as f64;
    let quantile = k * (1.0 - 2.0 / (9.0 * k) + 3.09 * (2.0 / (9.0 * k)).sqrt()).powi(3);
    statistic < quantile
}
