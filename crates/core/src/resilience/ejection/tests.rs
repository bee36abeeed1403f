use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A service whose instances are numbered from 0, with a clock that `tick` moves by a second.
struct Fleet {
    ejector: Ejector<usize>,
    counters: Vec<OutcomeCounters>,
    now: Duration,
}

impl Fleet {
    fn new(size: usize, policy: EjectionPolicy) -> Self {
        Self {
            ejector: Ejector::new(policy),
            counters: (0..size).map(|_| OutcomeCounters::new()).collect(),
            now: Duration::ZERO,
        }
    }

    fn fail(&self, instance: usize, times: u32) {
        (0..times).for_each(|_| self.counters[instance].record(false));
    }

    fn tick(&mut self) -> Transitions<usize> {
        self.now += SECOND;
        self.ejector.tick(self.now, self.counters.iter().enumerate())
    }

    /// Ticks until something changes, at most an hour.
    fn tick_until_change(&mut self) -> (Duration, Transitions<usize>) {
        let start = self.now;
        for _ in 0..3600 {
            let transitions = self.tick();
            if !transitions.is_empty() {
                return (self.now - start, transitions);
            }
        }
        panic!("nothing changed within an hour");
    }

    fn states(&self) -> Vec<State> {
        (0..self.counters.len()).map(|instance| self.ejector.state(&instance)).collect()
    }
}

fn percent(max_ejected_percent: u8) -> EjectionPolicy {
    EjectionPolicy { max_ejected_percent, ..EjectionPolicy::default() }
}

#[track_caller]
fn check_ejected(size: usize, policy: EjectionPolicy, expected: &[usize]) {
    let mut fleet = Fleet::new(size, policy);
    (0..size).for_each(|instance| fleet.fail(instance, 5));
    assert_eq!(fleet.tick().ejected, expected);
    assert!(fleet.tick().is_empty(), "a second tick must not overshoot");
}

#[test]
fn t39_ejection_limits() {
    check_ejected(3, percent(50), &[0]);
    check_ejected(1, percent(50), &[]);
    check_ejected(1, percent(100), &[]);
    check_ejected(5, percent(10), &[0]);
    check_ejected(5, EjectionPolicy { at_least_one: false, ..percent(10) }, &[]);
    check_ejected(4, EjectionPolicy { at_least_one: false, ..percent(50) }, &[0, 1]);
    check_ejected(2, percent(10), &[0]);
}

#[test]
fn t39_failures_that_arrive_one_by_one_do_not_overshoot_either() {
    let mut fleet = Fleet::new(3, percent(50));
    for instance in 0..3 {
        fleet.fail(instance, 5);
        let expected: &[usize] = if instance == 0 { &[0] } else { &[] };
        assert_eq!(fleet.tick().ejected, expected);
    }
}

#[test]
fn t57_everything_tripped_recovers_one_probe_at_a_time() {
    let mut fleet = Fleet::new(3, percent(100));
    (0..3).for_each(|instance| fleet.fail(instance, 5));
    assert_eq!(fleet.tick().ejected, [0, 1, 2]);
    assert_eq!(fleet.states(), [State::Open; 3], "a picker sees at once that there is nobody to ask");
    assert_eq!(fleet.ejector.next_deadline(), Some(fleet.now + SECOND * 30));

    let (after, transitions) = fleet.tick_until_change();
    assert_eq!((after, transitions.half_open), (SECOND * 30, vec![0, 1, 2]));
    for counters in &fleet.counters {
        assert!(counters.try_probe());
        assert!(!counters.try_probe(), "one probe at a time");
    }
    fleet.counters[0].probe_done(ProbeOutcome::Ok);
    fleet.counters[1].probe_done(ProbeOutcome::Failed);
    fleet.counters[2].probe_done(ProbeOutcome::Abandoned);
    let transitions = fleet.tick();
    assert_eq!((transitions.restored, transitions.ejected), (vec![0], vec![1]));
    assert_eq!(fleet.states(), [State::Closed, State::Open, State::HalfOpen]);
    assert!(fleet.counters[2].try_probe(), "an abandoned probe leaves the permit to the next call");
}

#[test]
fn t38_the_ejector_changes_nothing_for_healthy_instances() {
    let mut fleet = Fleet::new(2, percent(50));
    for _ in 0..1000 {
        fleet.counters.iter().for_each(|counters| counters.record(true));
        fleet.fail(0, 4);
        fleet.counters[0].record(true);
        assert!(fleet.tick().is_empty());
    }
    assert_eq!(fleet.states(), [State::Closed; 2]);
}

#[test]
fn the_worst_go_first() {
    let mut fleet = Fleet::new(4, percent(50));
    fleet.fail(0, 5);
    fleet.fail(1, 9);
    fleet.fail(2, 7);
    assert_eq!(fleet.tick().ejected, [1, 2]);
}

#[test]
fn a_success_restarts_the_count() {
    let mut fleet = Fleet::new(2, percent(50));
    fleet.fail(0, 4);
    fleet.counters[0].record(true);
    fleet.fail(0, 4);
    assert!(fleet.tick().is_empty());
    fleet.fail(0, 1);
    assert_eq!(fleet.tick().ejected, [0]);
}

fn rate(percent: u8) -> EjectionPolicy {
    EjectionPolicy {
        consecutive_failures: None,
        failure_rate: Some(FailureRate { percent, min_volume: 10, interval: SECOND * 10 }),
        max_ejected_percent: 50,
        ..EjectionPolicy::default()
    }
}

#[test]
fn the_failure_rate_needs_volume_within_its_interval() {
    let mut fleet = Fleet::new(2, rate(50));
    fleet.fail(0, 9);
    assert!(fleet.tick().is_empty(), "nine outcomes say nothing");
    for _ in 0..9 {
        fleet.tick();
    }
    fleet.fail(0, 9);
    assert!(fleet.tick().is_empty(), "the first nine are forgotten after ten seconds");
    fleet.fail(0, 1);
    assert_eq!(fleet.tick().ejected, [0], "outcomes add up over ticks within the interval");
}

#[test]
fn the_failure_rate_is_reached_not_exceeded() {
    let mut fleet = Fleet::new(4, rate(50));
    for (instance, failures) in [(0, 49), (1, 50), (2, 51)] {
        fleet.fail(instance, failures);
        (failures..100).for_each(|_| fleet.counters[instance].record(true));
    }
    assert_eq!(fleet.tick().ejected, [1, 2]);
}

#[test]
fn ejections_grow_and_good_behaviour_is_forgiven() {
    let mut fleet = Fleet::new(2, percent(50));
    fleet.fail(0, 5);
    fleet.tick();
    for expected in [30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300] {
        let (after, transitions) = fleet.tick_until_change();
        assert_eq!((after, transitions.half_open), (SECOND * expected, vec![0]));
        assert!(fleet.counters[0].try_probe());
        fleet.counters[0].probe_done(ProbeOutcome::Failed);
        assert_eq!(fleet.tick().ejected, [0]);
    }
    // Eleven ejections and one under way make twelve; ten spans of 30 s forgive ten of them.
    fleet.tick_until_change();
    assert!(fleet.counters[0].try_probe());
    fleet.counters[0].probe_done(ProbeOutcome::Ok);
    assert_eq!(fleet.tick().restored, [0]);
    for _ in 0..300 {
        assert!(fleet.tick().is_empty());
    }
    fleet.fail(0, 5);
    fleet.tick();
    assert_eq!(fleet.tick_until_change().0, SECOND * 90);
}

#[test]
fn late_outcomes_do_not_decide_a_half_open_breaker() {
    let mut fleet = Fleet::new(2, percent(50));
    fleet.fail(0, 5);
    fleet.tick();
    fleet.tick_until_change();
    assert_eq!(fleet.ejector.state(&0), State::HalfOpen);
    fleet.counters[0].record(true);
    fleet.fail(0, 20);
    assert!(fleet.tick().is_empty(), "only the probe decides");
}

#[test]
fn a_lost_probe_counts_as_failed_after_the_base_time() {
    let mut fleet = Fleet::new(2, percent(50));
    fleet.fail(0, 5);
    fleet.tick();
    fleet.tick_until_change();
    assert!(fleet.counters[0].try_probe());
    let (after, transitions) = fleet.tick_until_change();
    assert_eq!((after, transitions.ejected), (SECOND * 31, vec![0]), "30 s from the tick that first saw it");
    assert_eq!(fleet.tick_until_change().1.half_open, [0]);
    assert!(fleet.counters[0].try_probe(), "the lost permit is free again");
}

#[test]
fn forgotten_keys_start_fresh() {
    let mut fleet = Fleet::new(2, percent(50));
    fleet.fail(0, 5);
    assert_eq!(fleet.tick().ejected, [0]);
    fleet.ejector.tick(fleet.now, fleet.counters.iter().enumerate().skip(1));
    assert_eq!(fleet.ejector.state(&0), State::Closed);
    assert!(fleet.tick().is_empty(), "the same key again is a new member");
    assert_eq!(fleet.states(), [State::Closed; 2]);
}

#[test]
fn shrinking_membership_restores_whoever_is_too_many() {
    let mut fleet = Fleet::new(10, percent(30));
    for instance in [2, 5, 7] {
        fleet.fail(instance, 5);
        fleet.tick();
    }
    assert_eq!(fleet.ejector.ejected().map(|(key, _)| *key).collect::<Vec<_>>(), [2, 5, 7]);
    // Of 10 members 5 remain: the limit falls from 3 to 1, the youngest ejection stays.
    let survivors = [2, 3, 5, 7, 9].map(|instance| (instance, &fleet.counters[instance]));
    let transitions = fleet.ejector.tick(fleet.now, survivors.into_iter());
    assert_eq!(transitions.restored, [2, 5]);
    assert_eq!(fleet.ejector.state(&7), State::Open);
}

#[test]
fn counters_are_safe_to_share() {
    let counters = OutcomeCounters::new();
    let granted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    (0..1000).for_each(|_| counters.record(false));
                    usize::from(counters.try_probe())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum()
    });
    assert_eq!(granted, 1);
    assert_eq!(counters.consecutive_failures(), 4000);
}

#[derive(Debug, Clone)]
enum Step {
    Record(usize, bool, u32),
    Probe(usize, bool),
    Resize(usize),
    Tick(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0usize..12, any::<bool>(), 1u32..8).prop_map(|(instance, ok, times)| Step::Record(instance, ok, times)),
        2 => (0usize..12, any::<bool>()).prop_map(|(instance, ok)| Step::Probe(instance, ok)),
        1 => (0usize..=12).prop_map(Step::Resize),
        4 => (0u64..40).prop_map(Step::Tick),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    #[test]
    fn the_limit_holds_after_every_tick(
        steps in steps(),
        max_ejected_percent in 0u8..=110,
        at_least_one: bool,
        by_rate: bool,
    ) {
        let base = if by_rate { rate(40) } else { EjectionPolicy::default() };
        let policy = EjectionPolicy { max_ejected_percent, at_least_one, ..base };
        let mut ejector = Ejector::new(policy);
        let counters: Vec<_> = (0..12).map(|_| OutcomeCounters::new()).collect();
        let mut before: BTreeMap<usize, State> = BTreeMap::new();
        let (mut size, mut now) = (12, Duration::ZERO);
        for step in steps {
            match step {
                Step::Record(instance, ok, times) => (0..times).for_each(|_| counters[instance].record(ok)),
                Step::Probe(instance, ok) => {
                    if ejector.state(&instance) == State::HalfOpen && counters[instance].try_probe() {
                        counters[instance].probe_done(if ok { ProbeOutcome::Ok } else { ProbeOutcome::Failed });
                    }
                }
                Step::Resize(to) => size = to,
                Step::Tick(seconds) => {
                    now += SECOND * u32::try_from(seconds).expect("small");
                    let transitions = ejector.tick(now, counters.iter().enumerate().take(size));
                    let out: Vec<_> = ejector.ejected().map(|(key, _)| *key).collect();
                    prop_assert!(out.len() <= policy.ejected_max(size), "{out:?} of {size} are out");
                    prop_assert!(size < 2 || out.len() < size || max_ejected_percent >= 100);
                    prop_assert!(out.iter().all(|key| *key < size), "forgotten keys are gone");
                    // The transitions tell exactly what changed.
                    for key in 0..size {
                        let (old, new) = (before.get(&key).copied().unwrap_or_default(), ejector.state(&key));
                        prop_assert_eq!(transitions.ejected.contains(&key), new == State::Open && old != new, "{}", key);
                        prop_assert_eq!(transitions.half_open.contains(&key), new == State::HalfOpen && old != new, "{}", key);
                        prop_assert_eq!(transitions.restored.contains(&key), new == State::Closed && old != new, "{}", key);
                    }
                    before = (0..size).map(|key| (key, ejector.state(&key))).collect();
                }
            }
        }
    }
}
