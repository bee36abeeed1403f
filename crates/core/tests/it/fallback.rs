//! Matching, fallbacks and terminals.

use metaroute_core::rules::{Fallback, Filter, MinUsable, Mode, Rule, Terminal};
use metaroute_core::{NoPickReason, Reason, Request, StageOutcome};

use crate::{check, expr, must, prefer, rules, selector, selector_for, shares};

fn flag(selector: &metaroute_core::Selector, value: Option<&str>) -> Request {
    selector.request(value.map(|value| ("flag", value)))
}

#[test]
fn t01_unhealthy_subset_falls_back_when_health_counts() {
    let fleet = ["mk1 ring=canary u", "mk2 ring=stable", "mk3 ring=stable"];
    let rule = |min| {
        let fallback = vec![Fallback::Match(expr("ring == stable"))];
        let mut rule = prefer("ring == canary", fallback, Terminal::Fail);
        rule.min_usable = MinUsable::Count(min);
        rules(vec![rule])
    };
    let aware = selector(rule(1), &fleet);
    check(&aware, &Request::default(), &[("mk2", 50.0), ("mk3", 50.0)], Ok(Reason::Fallback { rule: 0, step: 0 }));
    let stage = &aware.explain(&()).stages[1];
    assert_eq!((stage.matched, stage.usable, stage.outcome), (1, 0, StageOutcome::Fallback(0)));
    assert_eq!(aware.explain(&()).outcome.unwrap().to_string(), "fallback:0");
    check(&selector(rule(0), &fleet), &Request::default(), &[], Err(NoPickReason::AllUnhealthy));
}

#[test]
fn t02_a_more_specific_rule_does_not_swallow_the_general_policy() {
    let mut specific = must("tag == $req.tag && canary == $req.canary");
    specific.when = Some(expr("exists($req.tag)"));
    let general = prefer("canary == $req.canary", vec![], Terminal::Any);
    let selector = selector(rules(vec![specific, general]), &["a canary=yes", "b"]);
    let request = selector.request([("canary", "ghost")]);
    check(&selector, &request, &[("a", 50.0), ("b", 50.0)], Ok(Reason::Relaxed { rule: 1 }));
}

#[test]
fn t04_default_subset_itself_empty() {
    let rule =
        |terminal| rules(vec![prefer("stage == canary", vec![Fallback::Match(expr("stage == prod"))], terminal)]);
    let any = selector(rule(Terminal::Any), &["q1 stage=beta"]);
    check(&any, &Request::default(), &[("q1", 100.0)], Ok(Reason::Relaxed { rule: 0 }));
    let fail = selector(rule(Terminal::Fail), &["q1 stage=beta"]);
    check(&fail, &Request::default(), &[], Err(NoPickReason::Filtered));
    let none = fail.select(&()).unwrap_err();
    assert_eq!(none.to_string(), "the rules left no instance (rule:prefer: 1 in, 0 matched, 0 usable)");
}

#[test]
fn t05_canary_in_three_states() {
    let set = || {
        let mut flagged = prefer("canary == y", vec![Fallback::LackingAll(vec!["canary".into()])], Terminal::Fail);
        flagged.when = Some(expr("$req.flag == canary"));
        let mut others = Rule::new("others", expr("!exists(canary)"));
        others.when = Some(expr("!($req.flag == canary)"));
        others.terminal = Some(Terminal::Fail);
        rules(vec![flagged, others])
    };
    let healthy = selector(set(), &["c1 canary=y", "s1", "s2"]);
    check(&healthy, &flag(&healthy, Some("canary")), &[("c1", 100.0)], Ok(Reason::Matched));
    check(&healthy, &flag(&healthy, None), &[("s1", 50.0), ("s2", 50.0)], Ok(Reason::Matched));
    let down = selector(set(), &["c1 canary=y u", "s1", "s2"]);
    let fallback = Ok(Reason::Fallback { rule: 0, step: 0 });
    check(&down, &flag(&down, Some("canary")), &[("s1", 50.0), ("s2", 50.0)], fallback);
    let only = selector(set(), &["c1 canary=y", "s1 u", "s2 u"]);
    check(&only, &flag(&only, None), &[], Err(NoPickReason::AllUnhealthy));
}

#[test]
fn t06_untagged_callers_stay_off_tagged_instances() {
    let set = || {
        let mut tagged = must("tag == $req.tag");
        tagged.when = Some(expr("exists($req.tag)"));
        let mut untagged = must("!exists(tag)");
        untagged.when = Some(expr("!exists($req.tag)"));
        rules(vec![tagged, untagged])
    };
    check(
        &selector(set(), &["a1 tag=grey", "a2 tag=blue", "a3"]),
        &Request::default(),
        &[("a3", 100.0)],
        Ok(Reason::Matched),
    );
    let without = selector(set(), &["a1 tag=grey", "a2 tag=blue"]);
    check(&without, &Request::default(), &[], Err(NoPickReason::Filtered));
}

#[test]
fn t07_the_callers_own_tag_does_not_colour_providers() {
    let set = rules(vec![prefer("tag == $caller.tag", vec![Fallback::LackingAll(vec!["tag".into()])], Terminal::Fail)]);
    let selector = selector_for(set, &[("tag", "dev")], &["b1 tag=qa", "b2"]);
    check(&selector, &Request::default(), &[("b2", 100.0)], Ok(Reason::Fallback { rule: 0, step: 0 }));
    assert!(selector.instances()[1].metadata.is_empty());
}

#[test]
fn t08_lacking_all_and_lacking_any_are_two_things() {
    let with = |fallback| {
        let set = rules(vec![prefer("set == 0 && lane == x", vec![fallback], Terminal::Fail)]);
        shares(&selector(set, &["d1 set=1", "d2 set=2 lane=y", "d3"]), &Request::default())
    };
    let keys = || vec!["set".to_owned(), "lane".to_owned()];
    assert_eq!(with(Fallback::LackingAll(keys())), [("d3".to_owned(), 100.0)]);
    assert_eq!(with(Fallback::LackingAny(keys())), [("d1".to_owned(), 50.0), ("d3".to_owned(), 50.0)]);
}

#[test]
fn t09_a_missing_key_is_no_error() {
    let fleet = ["e1 rack=r1", "e2"];
    let found = |text| shares(&selector(rules(vec![must(text)]), &fleet), &Request::default());
    assert_eq!(found("rack == r1"), [("e1".to_owned(), 100.0)]);
    assert_eq!(found("!(rack == r1)"), [("e2".to_owned(), 100.0)]);
    assert_eq!(found("rack != r1"), []);
}

#[test]
fn t11_a_rule_without_condition_matches_all() {
    let selector = selector(rules(vec![must("")]), &["a", "b"]);
    check(&selector, &Request::default(), &[("a", 50.0), ("b", 50.0)], Ok(Reason::Matched));
}

#[test]
fn t12_fallback_can_be_forbidden() {
    let selector = selector(rules(vec![must("ring == ghost")]), &["a ring=x"]);
    check(&selector, &Request::default(), &[], Err(NoPickReason::Filtered));
}

#[test]
fn t14_must_rules_are_a_conjunction() {
    let fleet = ["f1 zone_name=east version=2.1", "f2 zone_name=west version=9.0"];
    let both = selector(rules(vec![must("zone_name == east"), must("version >= 9")]), &fleet);
    check(&both, &Request::default(), &[], Err(NoPickReason::Filtered));
    let wishes =
        vec![prefer("zone_name == east", vec![], Terminal::Any), prefer("version >= 9", vec![], Terminal::Any)];
    check(&selector(rules(wishes), &fleet), &Request::default(), &[("f1", 100.0)], Ok(Reason::Relaxed { rule: 1 }));
}

#[test]
fn t15_versions_are_ordered_as_versions() {
    let fleet = [
        "g1 version=2.9",
        "g2 version=2.10",
        "g3 version=2.10.0-rc.1",
        "g4 version=v2.11+build7",
        "g5 version=2.3.1",
        "g6 version=latest",
    ];
    let ids = |text: &str| -> Vec<String> {
        shares(&selector(rules(vec![must(text)]), &fleet), &Request::default()).into_iter().map(|(id, _)| id).collect()
    };
    assert_eq!(ids("version >= 2.10"), ["g2", "g4"]);
    assert_eq!(ids("version > 2.9"), ["g2", "g3", "g4"]);
    assert_eq!(ids("version == 2.10"), ["g2"]);
}

#[test]
fn t16_host_names_and_ipv6_are_as_good_as_ipv4() {
    let selector = selector(rules(vec![]), &[]);
    let hosts = ["quill.internal:80", "10.1.2.3:80", "[fd00::7]:80"]
        .map(|host| metaroute_core::Instance::new(host.parse().unwrap()));
    selector.apply(metaroute_core::Update::Snapshot(hosts.into()), std::time::Duration::ZERO);
    assert_eq!(shares(&selector, &Request::default()).len(), 3);
}

#[test]
fn must_bounds_every_later_fallback() {
    let set = rules(vec![
        prefer("tier == gold", vec![Fallback::Match(expr("tier == silver"))], Terminal::Any),
        must("env == prod"),
    ]);
    let selector = selector(set, &["a env=dev tier=silver", "b env=prod tier=iron"]);
    check(&selector, &Request::default(), &[("b", 100.0)], Ok(Reason::Relaxed { rule: 0 }));
}

#[test]
fn drop_keys_keeps_the_rest_of_the_expression() {
    let drop = |keys: &[&str]| {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        let set = rules(vec![prefer("tier == 9 && env == prod", vec![Fallback::DropKeys(keys)], Terminal::Fail)]);
        shares(&selector(set, &["a env=prod tier=1", "b env=dev tier=1"]), &Request::default())
    };
    assert_eq!(drop(&["tier"]), [("a".to_owned(), 100.0)]);
    assert_eq!(drop(&["tier", "env"]).len(), 2, "nothing is left of the expression, so everything matches");
    assert_eq!(drop(&["absent"]), []);
}

#[test]
fn min_usable_counts_and_percents() {
    let with = |min, fleet: &[&str]| {
        let mut rule = prefer("ring == a", vec![], Terminal::Any);
        rule.min_usable = min;
        shares(&selector(rules(vec![rule]), fleet), &Request::default()).len()
    };
    let fleet = ["a1 ring=a", "a2 ring=a u", "a3 ring=a u", "a4 ring=a w=0", "b"];
    assert_eq!(with(MinUsable::Count(1), &fleet), 1);
    assert_eq!(with(MinUsable::Count(2), &fleet), 2, "the rule is dropped: a1 and b");
    assert_eq!(with(MinUsable::Percent(33.0), &fleet), 1, "weight 0 is on neither side: 1 of 3");
    assert_eq!(with(MinUsable::Percent(34.0), &fleet), 2);
}

#[test]
fn when_reads_caller_and_request_only() {
    let mut rule = must("a == b");
    rule.when = Some(expr("env == prod"));
    let error = metaroute_core::Selector::new(rules(vec![rule]), metaroute_core::Options::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rule `must`: `when` may read $caller and $req only, `env` is a key of the instances"
    );
}

#[test]
fn explain_names_rule_clause_and_value() {
    let set = rules(vec![must("version >= 2.3 && env == prod")]);
    let selector =
        selector(set, &["a version=2.10 env=prod", "b version=2.2 env=prod", "c version=3 ", "d version=3 env=prod u"]);
    let explained = selector.explain(&());
    let line = |id: &str| {
        let found = explained.instances.iter().find(|found| found.instance.id.as_str() == id).unwrap();
        (found.kept, found.stage.as_str(), found.clause.as_deref(), found.value.as_deref(), found.probability)
    };
    assert_eq!(line("a"), (true, "rule:must", Some("env == prod"), Some("prod"), 1.0));
    assert_eq!(line("b"), (false, "rule:must", Some("version >= 2.3"), Some("2.2"), 0.0));
    assert_eq!(line("c"), (false, "rule:must", Some("env == prod"), None, 0.0));
    assert_eq!(line("d"), (false, "usable", Some("healthy"), Some("false"), 0.0));
    let counts: Vec<_> = explained.stages.iter().map(|s| (&*s.name, s.entered, s.matched, s.usable, s.left)).collect();
    assert_eq!(counts, [("registry", 4, 4, 3, 4), ("rule:must", 4, 2, 1, 2), ("usable", 2, 2, 1, 1)]);
}

#[test]
fn optional_request_values_drop_their_comparison() {
    let selector =
        selector(rules(vec![must("lane == $req.lane? && env == prod")]), &["a lane=x env=prod", "b env=prod"]);
    assert_eq!(shares(&selector, &Request::default()).len(), 2);
    assert_eq!(shares(&selector, &selector.request([("lane", "x")])), [("a".to_owned(), 100.0)]);
}

/// `zone == $caller.zone?` is no condition for a caller without a zone; it is decided with the plan and not per request.
#[test]
fn optional_values_of_the_caller_drop_their_comparison() {
    let lines = ["a zone_of=z1 env=prod", "b zone_of=z2 env=prod", "c env=dev"];
    let ids = |text: &str, own: &[(&str, &str)], request: &[(&str, &str)]| {
        let selector = selector_for(rules(vec![must(text)]), own, &lines);
        let request = selector.request(request.iter().copied());
        shares(&selector, &request).into_iter().map(|(id, _)| id).collect::<String>()
    };
    let zone = [("zone", "z1")];
    for (text, with, without) in [
        ("zone_of == $caller.zone?", "a", "abc"),
        ("zone_of != $caller.zone?", "b", "abc"),
        ("!(zone_of == $caller.zone?)", "bc", "abc"),
        ("zone_of in ($caller.zone?, z9)", "a", "abc"),
        ("zone_of == $caller.zone? && env == prod", "a", "ab"),
        ("zone_of == $caller.zone? || env == dev", "ac", "c"),
        ("$caller.zone? == z1 && env == dev", "c", "c"),
        ("zone_of == $caller.zone? && env == $req.env?", "a", "abc"),
    ] {
        assert_eq!((ids(text, &zone, &[]).as_str(), ids(text, &[], &[]).as_str()), (with, without), "{text}");
    }
    assert_eq!(ids("zone_of == $caller.zone? && env == $req.env?", &[], &[("env", "dev")]), "c");
    let fallback = Fallback::Match(expr("env == prod && zone_of == $caller.zone?"));
    let set = rules(vec![prefer("env == none", vec![fallback], Terminal::Fail)]);
    check(
        &selector(set, &lines),
        &Request::default(),
        &[("a", 50.0), ("b", 50.0)],
        Ok(Reason::Fallback { rule: 0, step: 0 }),
    );
}

#[test]
fn a_custom_filter_is_part_of_the_rule_model() {
    let rule = must("a == b");
    assert!(matches!(rule.filter, Filter::Match(_)) && rule.mode == Mode::Must && rule.expr().is_some());
}
