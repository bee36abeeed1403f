//! Our selectors over the same fleet, with metadata and rules on top.

use std::time::Duration;

use metaroute_core::rules::{Balance, MinUsable, Mode, Rule, Terminal};
use metaroute_core::{Address, GuardOptions, Instance, Options, RuleSet, Selector, Update};
use metaroute_expr::Expr;

use crate::fleet::Member;

/// The moment everything here happens at; nothing that is measured waits.
pub const NOW: Duration = Duration::ZERO;

/// Lanes that requests ask for in [`by_request`].
pub const LANES: usize = 8;

/// The members as instances with seven metadata keys, as a mid-sized company has them.
pub fn instances(members: &[Member]) -> Vec<Instance> {
    members.iter().enumerate().map(|(i, member)| instance(i, member)).collect()
}

fn instance(i: usize, member: &Member) -> Instance {
    let address =
        Address::new(&member.address.ip().to_string(), member.address.port()).expect("an address is an address");
    Instance::new(address)
        .with_weight(f64::from(member.weight))
        .with_cluster(["hz", "sh", "bj"][i % 3])
        .with_zone(["a", "b", "c", "d"][i % 4])
        .with_meta("app", "orders")
        .with_meta("version", format!("2.{}.{}", i % 7, i % 3))
        .with_meta("tier", (i % 5).to_string())
        .with_meta("lane", format!("lane-{}", i % LANES))
        .with_meta("rack", format!("r{}", i % 40))
        .with_meta("cpu", ["x86", "arm"][i % 2])
        .with_meta("build", format!("b{}", i % 100))
}

/// A selector that has seen these instances.
pub fn selector(rules: RuleSet, instances: Vec<Instance>) -> Selector {
    // The guard would hold back what a benchmark does on purpose.
    let options = Options { guard: GuardOptions::off(), ..Options::default() };
    let selector = Selector::new(rules, options).expect("the rules are valid");
    selector.apply(Update::Snapshot(instances), NOW);
    selector
}

/// One mandatory rule on metadata that keeps every instance, so that all contenders choose among the same ones.
pub fn keeps_all(balance: Balance) -> RuleSet {
    let mut rules = RuleSet::must(parse("app == orders && version >= 2.0"));
    rules.balance = balance;
    rules
}

/// One wish on the request's lane.
pub fn by_request() -> RuleSet {
    let mut rules = RuleSet::default();
    rules.rules = vec![wish("lane", "lane == $req.lane")];
    rules
}

/// `n` rules over the keys of [`instances`], as different from each other as an organisation's are.
pub fn many(n: usize) -> RuleSet {
    let mut rules = RuleSet::default();
    rules.rules = (0..n)
        .map(|i| {
            let text = match i % 5 {
                0 => format!("version >= 2.{} && tier in ({}, {})", i % 7, i % 5, (i + 1) % 5),
                1 => format!("rack like r{}* || cpu == arm", i % 4),
                2 => format!("!(lane == lane-{}) && build != b{i}", i % LANES),
                3 => format!("$self.zone != z{i} && (tier >= {} || exists(rack))", i % 5),
                _ => format!("version < 2.{}.9 || app == orders", i % 7),
            };
            wish(&format!("rule-{i}"), &text)
        })
        .collect();
    rules
}

fn wish(name: &str, text: &str) -> Rule {
    let mut rule = Rule::new(name, parse(text));
    rule.mode = Mode::Prefer;
    rule.min_usable = MinUsable::Count(1);
    rule.terminal = Some(Terminal::Any);
    rule
}

fn parse(text: &str) -> Expr {
    Expr::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}
