//! What registries push and what becomes of it.

use std::time::Duration;

use metaroute_core::{
    Freshness, GuardOptions, Hold, Instance, InstanceId, NoPickReason, Options, Request, RuleSet, Selector, Update,
};

use crate::{fleet, instance, must, rules, selector, shares};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn guarded() -> Selector {
    let mut guard = GuardOptions::default();
    guard.merge_window = Duration::ZERO;
    Selector::new(RuleSet::default(), Options { guard, ..Options::default() }).unwrap()
}

fn many(n: usize) -> Vec<Instance> {
    (0..n).map(|i| instance(&format!("h{i:03}"))).collect()
}

fn size(selector: &Selector) -> usize {
    selector.instances().len()
}

#[test]
fn t47_an_empty_push_is_held_for_a_bounded_visible_time() {
    let selector = guarded();
    selector.apply(Update::Snapshot(many(12)), secs(0));
    selector.apply(Update::Snapshot(vec![]), secs(10));
    assert_eq!(size(&selector), 12);
    let metrics = selector.metrics(secs(15));
    assert_eq!((metrics.held, metrics.held_total), (Some(Hold::Empty), secs(5)));
    assert_eq!(selector.tick(secs(20)), Some(secs(40)));
    assert_eq!(size(&selector), 12);
    selector.tick(secs(40));
    assert_eq!(size(&selector), 0);
    assert_eq!(selector.select(&()).unwrap_err().reason, NoPickReason::EmptyRegistry);
    assert_eq!(selector.metrics(secs(50)).held_total, secs(30));
}

#[test]
fn t47_an_explicit_tombstone_and_a_switched_off_guard_are_believed_at_once() {
    let selector = guarded();
    selector.apply(Update::Snapshot(many(12)), secs(0));
    selector.apply(Update::Emptied, secs(1));
    assert_eq!(size(&selector), 0);
    let off = crate::selector(RuleSet::default(), &["a", "b"]);
    off.apply(Update::Snapshot(vec![]), secs(1));
    assert_eq!(off.select(&()).unwrap_err().reason, NoPickReason::EmptyRegistry);
}

#[test]
fn t47_a_push_that_is_taken_back_leaves_no_trace_but_the_time() {
    let selector = guarded();
    selector.apply(Update::Snapshot(many(12)), secs(0));
    selector.apply(Update::UnknownService, secs(10));
    selector.apply(Update::Snapshot(many(11)), secs(12));
    assert_eq!(size(&selector), 11);
    assert_eq!(selector.metrics(secs(60)).held, None);
    assert_eq!(selector.metrics(secs(60)).held_total, secs(2));
    assert_eq!(selector.tick(secs(100)), None);
    assert_eq!(size(&selector), 11);
}

#[test]
fn t49_a_collapsing_push_is_held_and_a_gradual_one_is_not() {
    let selector = guarded();
    selector.apply(Update::Snapshot(many(100)), secs(0));
    selector.apply(Update::Snapshot(many(35)), secs(1));
    assert_eq!(size(&selector), 100);
    assert_eq!(selector.metrics(secs(2)).held, Some(Hold::Shrink { from: 100, to: 35 }));
    // The same view again does not restart the clock.
    selector.apply(Update::Snapshot(many(34)), secs(20));
    selector.tick(secs(31));
    assert_eq!(size(&selector), 34);
    let gradual = guarded();
    for (step, n) in (35..=100).rev().step_by(5).enumerate() {
        gradual.apply(Update::Snapshot(many(n)), secs(step as u64));
        assert_eq!(size(&gradual), n);
    }
}

#[test]
fn deltas_are_guarded_like_lists() {
    let selector = guarded();
    selector.apply(Update::Snapshot(many(10)), secs(0));
    let remove = (0..9).map(|i| InstanceId::new(format!("h{i:03}"))).collect();
    selector.apply(Update::Delta { upsert: vec![], remove }, secs(1));
    assert_eq!(size(&selector), 10);
    selector.apply(Update::Delta { upsert: vec![instance("extra")], remove: vec![] }, secs(2));
    assert_eq!(size(&selector), 10, "still held: two of ten would remain");
    selector.tick(secs(31));
    assert_eq!(size(&selector), 2);
}

#[test]
fn t51_a_metadata_only_change_is_a_change() {
    let selector = selector(rules(vec![must("lane == x")]), &["a lane=x w=5", "b lane=x w=5"]);
    let before = selector.revision();
    selector.apply(Update::Snapshot(fleet(&["a lane=x w=0", "b lane=x w=5"])), secs(1));
    assert_eq!(shares(&selector, &Request::default()), [("b".to_owned(), 100.0)]);
    selector.apply(Update::Snapshot(fleet(&["a lane=x w=5", "b lane=y w=5"])), secs(2));
    assert_eq!(shares(&selector, &Request::default()), [("a".to_owned(), 100.0)]);
    assert_eq!(selector.revision(), before + 2);
}

#[test]
fn t52_flapping_health_publishes_once_per_window_and_delays_nothing_longer() {
    let selector = Selector::new(RuleSet::default(), Options::default()).unwrap();
    let mut list = many(1000);
    selector.apply(Update::Snapshot(list.clone()), secs(0));
    let start = selector.revision();
    let mut deadline = None;
    let mut late = 0;
    for step in 0..2400u64 {
        let now = Duration::from_millis(1000 + step * 25);
        if deadline.is_some_and(|deadline| now >= deadline) {
            deadline = selector.tick(now);
        }
        let at = (step * 37 % 1000) as usize;
        list[at].healthy = !list[at].healthy;
        selector.apply(Update::Delta { upsert: vec![list[at].clone()], remove: vec![] }, now);
        deadline = deadline.or(selector.tick(now));
        let visible = selector.instances()[at].healthy == list[at].healthy;
        late += usize::from(!visible && deadline.is_none_or(|deadline| deadline > now + Duration::from_millis(100)));
    }
    let published = selector.revision() - start;
    assert!(published <= 601, "60 s in windows of 100 ms: {published}");
    assert_eq!(late, 0);
}

#[test]
fn t53_answers_to_made_up_attributes_stay_bounded() {
    let selector = selector(rules(vec![must("lane == $req.lane")]), &["a lane=x", "b lane=y"]);
    for n in 0..10_000 {
        let request = selector.request([("lane", n.to_string().as_str())]);
        assert_eq!(selector.select(&request).unwrap_err().reason, NoPickReason::Filtered);
        if n % 16 == 0 {
            selector.tick(secs(n));
        }
    }
    assert!(selector.metrics(secs(0)).memo <= 1024);
}

#[test]
fn unresolved_unknown_and_empty_are_three_answers() {
    let selector = guarded();
    let reason = || selector.select(&()).unwrap_err().reason;
    assert_eq!(reason(), NoPickReason::Unresolved);
    assert!(!selector.is_resolved());
    selector.apply(Update::UnknownService, secs(0));
    assert_eq!(reason(), NoPickReason::UnknownService);
    selector.apply(Update::Snapshot(vec![]), secs(1));
    assert_eq!(reason(), NoPickReason::EmptyRegistry);
}

#[test]
fn freshness_is_reported_and_changes_no_list() {
    let selector = selector(RuleSet::default(), &["a"]);
    selector.set_freshness(Freshness::Unreachable, secs(50));
    let metrics = selector.metrics(secs(60));
    assert_eq!((metrics.freshness, metrics.age, metrics.instances), (Freshness::Unreachable, Some(secs(60)), 1));
    selector.apply(Update::Snapshot(fleet(&["a"])), secs(70));
    assert_eq!(selector.metrics(secs(71)).age, Some(secs(1)));
}

#[test]
fn rules_are_replaced_without_losing_instances_or_slots() {
    let selector = selector(rules(vec![must("lane == $req.lane")]), &["a lane=x", "b lane=y"]);
    let request = selector.request([("lane", "y")]);
    assert_eq!(shares(&selector, &request), [("b".to_owned(), 100.0)]);
    selector.set_rules(rules(vec![must("exists(lane) && lane != $req.lane")]), secs(1)).unwrap();
    assert_eq!(shares(&selector, &request), [("a".to_owned(), 100.0)], "the slot means the same value");
    let broken = rules(vec![{
        let mut rule = must("a == b");
        rule.when = Some(crate::expr("a == b"));
        rule
    }]);
    assert!(selector.set_rules(broken, secs(2)).is_err());
    assert_eq!(shares(&selector, &request), [("a".to_owned(), 100.0)], "bad rules leave the old ones in force");
}

#[test]
fn a_request_that_gets_nothing_is_counted_at_once() {
    let selector = crate::selector(rules(vec![must("tier == 9")]), &["a tier=1"]);
    let mut picker = selector.picker();
    for n in 1..=3 {
        assert!(picker.pick(&()).is_err());
        let counted = selector.metrics(secs(1)).no_picks.into_iter().find(|(reason, _)| *reason == "filtered");
        assert_eq!(counted, Some(("filtered", n)));
    }
}

/// Found by `deltas_equal_a_rebuild`.
#[test]
fn an_id_that_a_delta_removes_twice_goes_once() {
    let selector = crate::selector(RuleSet::default(), &["a"]);
    let id = selector.instances()[0].id.clone();
    selector.apply(Update::Delta { upsert: vec![], remove: vec![id.clone(), id] }, secs(1));
    assert_eq!(size(&selector), 0);
}

#[test]
fn picks_are_counted_at_once_and_for_good() {
    let relaxed = crate::prefer("tier == 9", vec![], metaroute_core::rules::Terminal::Any);
    let selector = crate::selector(rules(vec![relaxed]), &["a tier=1"]);
    let counted =
        |reason: &str| selector.metrics(secs(1)).picks.into_iter().find(|(code, _)| *code == reason).unwrap().1;
    let mut picker = selector.picker();
    for n in 1..=5 {
        picker.pick(&()).unwrap();
        assert_eq!(counted("relaxed"), n);
    }
    assert_eq!(selector.metrics(secs(1)).fallbacks, [("prefer".to_owned(), 5)]);
    selector.set_rules(RuleSet::default(), secs(1)).unwrap();
    picker.pick(&()).unwrap();
    drop(picker);
    selector.select(&()).unwrap();
    assert_eq!((counted("relaxed"), counted("matched")), (5, 2));
}
