//! Warm-up of new instances.

use std::time::Duration;

use metaroute_core::rules::Warmup;
use metaroute_core::{Incarnation, Request, RuleSet, Selector, Update};

use crate::{fleet, selector, shares};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn warming(window: u64) -> RuleSet {
    let mut set = RuleSet::default();
    set.warmup = Some(Warmup::over(secs(window)));
    set
}

fn share(selector: &Selector, id: &str) -> f64 {
    shares(selector, &Request::default()).into_iter().find(|(found, _)| found == id).map_or(0.0, |(_, share)| share)
}

#[test]
fn t29_a_newcomer_is_not_starved_and_grows_steadily() {
    let selector = selector(warming(60), &["old"]);
    selector.apply(Update::Snapshot(fleet(&["old", "new"])), secs(100));
    let mut last = 0.0;
    for second in 0..=60 {
        let next = selector.tick(secs(100 + second));
        let now = share(&selector, "new");
        assert!(now >= last, "{second}");
        assert_eq!(next.is_some(), second < 60, "the clock is needed while somebody warms up");
        if second == 3 {
            assert!((now - 9.09).abs() < 0.01, "10 % of weight 1 against 1: {now}");
        }
        last = now;
    }
    assert_eq!(last, 50.0);
}

#[test]
fn t32_when_everyone_is_new_nobody_is_held_back() {
    let selector = selector(warming(60), &[]);
    let four = ["a", "b", "c", "d"];
    selector.apply(Update::Snapshot(fleet(&four)), secs(100));
    assert!(shares(&selector, &Request::default()).iter().all(|(_, share)| *share == 25.0));
    let metrics = selector.metrics(secs(100));
    assert!(metrics.warmup_suspended && metrics.warming == 4);
    let one = crate::selector(warming(60), &["a", "b", "c"]);
    one.apply(Update::Snapshot(fleet(&four)), secs(100));
    assert!(share(&one, "d") < 4.0 && !one.metrics(secs(100)).warmup_suspended);
}

#[test]
fn t33_the_clock_starts_when_we_first_see_it_ready_and_again_for_a_new_incarnation() {
    let selector = selector(warming(300), &["old"]);
    selector.apply(Update::Snapshot(fleet(&["old", "new u"])), secs(1));
    selector.apply(Update::Snapshot(fleet(&["old", "new"])), secs(60));
    selector.tick(secs(61));
    assert_eq!(share(&selector, "new"), 9.09, "the minimum, not 20 %");
    selector.tick(secs(400));
    assert_eq!(share(&selector, "new"), 50.0);
    let mut again = fleet(&["old", "new"]);
    again[1].incarnation = Incarnation::new("second");
    // A provider's own idea of time is metadata like any other.
    again[1].metadata.insert("timestamp".into(), "1893456000000".into());
    selector.apply(Update::Snapshot(again), secs(900));
    assert_eq!(share(&selector, "new"), 9.09);
}

#[test]
fn the_first_list_is_warm() {
    let selector = selector(warming(60), &["a", "b w=3"]);
    assert_eq!(share(&selector, "b"), 75.0);
    assert_eq!(selector.tick(secs(1)), None);
}
