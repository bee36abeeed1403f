//! What a back-off policy does to a dead callee, replayed in virtual time.
//!
//! A policy that looks harmless for one client can be a storm for the callee: a hundred clients that fail together and
//! wait equally long return together, again and again, and a loop that forgets to wait is a denial of service. Both are
//! easy to see once the calls per second are counted, and this module counts them: an hour of a hundred clients takes
//! no time worth mentioning.
//!
//! The callee never answers, so the clients do not influence each other and each one is replayed on its own. That makes
//! the model exact for an outage and silent about the moment of recovery.
//!
//! # The clock
//!
//! Everything starts at 0. With [`Start::FailedTogether`] each client's original call failed at that very moment; it is
//! not counted, only the retries are. With [`Start::CallingTogether`] the first attempt starts at 0 and counts. An
//! attempt fails `latency` after it starts, then the policy's wait runs. With a `tick`, waiting tasks are looked at
//! only at multiples of it, as failback queues do: the attempt starts at the first tick at or after its due time, but
//! never twice at the same tick.

use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

use super::backoff::{Backoff, Policy};

/// The longest window that can be counted: a week of one-second cells.
pub const WINDOW_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The most attempts that are replayed for one policy, some seconds of computing.
pub const CALLS_MAX: u64 = 500_000_000;

/// What happens at time 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The original call of every client has just failed. Only retries are counted.
    FailedTogether,
    /// Every client makes its first attempt, which is counted like the others.
    CallingTogether,
}

/// A fleet of equal clients and a callee that never answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// How many clients.
    pub clients: u32,
    /// What happens at time 0.
    pub start: Start,
    /// How often waiting tasks are looked at; zero means that each one has its own timer.
    pub tick: Duration,
    /// How long an attempt takes to fail.
    pub latency: Duration,
}

/// The attempts that started within one window, from 0 up to but not including its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowCount {
    /// The window's length.
    pub window: Duration,
    /// All attempts.
    pub calls: u64,
    /// Attempts by whole second, `⌈window⌉` cells; the last one is cut where the window ends.
    pub per_second: Vec<u64>,
}

impl WindowCount {
    fn new(window: Duration) -> Self {
        let seconds = window.as_secs() + u64::from(window.subsec_nanos() > 0);
        // Bounded by WINDOW_MAX.
        Self { window, calls: 0, per_second: vec![0; seconds as usize] }
    }

    fn add(&mut self, start: Duration, clients: u64) {
        if start < self.window
            && let Some(cell) = self.per_second.get_mut(start.as_secs() as usize)
        {
            *cell += clients;
            self.calls += clients;
        }
    }

    /// The attempts of the busiest second; 0 for an empty window.
    pub fn peak_per_second(&self) -> u64 {
        self.per_second.iter().copied().max().unwrap_or(0)
    }

    /// The attempts per second on average; 0 for an empty window.
    pub fn mean_per_second(&self) -> f64 {
        if self.window.is_zero() { 0.0 } else { self.calls as f64 / self.window.as_secs_f64() }
    }
}

/// A scenario that cannot be replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StormError {
    /// A window of no length has no calls, one beyond [`WINDOW_MAX`] too many cells.
    #[error("a window must be longer than 0s and at most {WINDOW_MAX:?}, not {0:?}")]
    Window(Duration),
    /// A loop that neither waits nor takes time makes infinitely many calls.
    #[error("without a wait, a tick or a latency the loop makes infinitely many calls; give a tick or a latency")]
    Standstill,
    /// More than [`CALLS_MAX`] attempts would have to be replayed to the end of the longest window.
    #[error(
        "more than {CALLS_MAX} calls within the longest window; give fewer clients, a shorter window or a longer latency"
    )]
    TooManyCalls,
}

/// Replays `scenario` under `policy` and counts the attempts within each window, in the order given.
///
/// The same randomness gives the same counts: every client draws from a generator of its own that is seeded from `rng`,
/// so neither the windows nor the waits of one client change what another one does.
///
/// ```
/// use std::time::Duration;
/// use metaroute_core::resilience::storm::{Scenario, Start, replay};
///
/// let scenario =
///     Scenario { clients: 100, start: Start::FailedTogether, tick: Duration::from_secs(1), latency: Duration::ZERO };
/// let counts = replay(&scenario, &"fixed:5s".parse()?, &[Duration::from_secs(12)], &mut rand::rng())?;
/// assert_eq!(counts[0].per_second, [0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 100, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`StormError`] when a window is empty or too long, or the calls would be too many to count.
pub fn replay(
    scenario: &Scenario,
    policy: &Policy,
    windows: &[Duration],
    rng: &mut (impl Rng + ?Sized),
) -> Result<Vec<WindowCount>, StormError> {
    if let Some(window) = windows.iter().find(|window| window.is_zero() || **window > WINDOW_MAX) {
        return Err(StormError::Window(*window));
    }
    if policy.wait_max().is_zero() && scenario.tick.is_zero() && scenario.latency.is_zero() {
        return Err(StormError::Standstill);
    }
    let mut counts: Vec<_> = windows.iter().map(|window| WindowCount::new(*window)).collect();
    let end = windows.iter().max().copied().unwrap_or_default();
    // Clients that wait equally long do all the same, so one of them stands for all.
    let (replays, weight) = match scenario.clients {
        0 => (0, 0),
        clients if policy.is_random() => (clients, 1),
        clients => (1, u64::from(clients)),
    };
    let mut replayed = 0;
    for _ in 0..replays {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(rng.next_u64());
        let mut backoff = Backoff::new(*policy);
        let mut now = Duration::ZERO;
        let mut start = match scenario.start {
            Start::CallingTogether => Some(Duration::ZERO),
            Start::FailedTogether => backoff.next_delay(now, rng).map(|wait| due(now, wait, scenario.tick)),
        };
        while let Some(attempt) = start
            && attempt < end
        {
            replayed += 1;
            if replayed > CALLS_MAX {
                return Err(StormError::TooManyCalls);
            }
            counts.iter_mut().for_each(|count| count.add(attempt, weight));
            now = attempt.saturating_add(scenario.latency);
            start = backoff.next_delay(now, rng).map(|wait| due(now, wait, scenario.tick));
        }
    }
    Ok(counts)
}

/// When the next attempt starts after a failure at `now`: at the first tick at or after the due time, later than
/// `now`'s own tick.
fn due(now: Duration, wait: Duration, tick: Duration) -> Duration {
    let due = now.saturating_add(wait);
    let tick = tick.as_nanos();
    if tick == 0 {
        return due;
    }
    let number = due.as_nanos().div_ceil(tick).max(now.as_nanos() / tick + 1);
    let nanos = number.saturating_mul(tick);
    match u64::try_from(nanos / 1_000_000_000) {
        Ok(seconds) => Duration::new(seconds, (nanos % 1_000_000_000) as u32),
        Err(_) => Duration::MAX,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::Xoshiro256PlusPlus;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const STORM: Scenario =
        Scenario { clients: 100, start: Start::FailedTogether, tick: SECOND, latency: Duration::ZERO };
    const LOOP: Scenario =
        Scenario { clients: 1, start: Start::CallingTogether, tick: Duration::ZERO, latency: Duration::from_millis(1) };

    fn rng(seed: u64) -> Xoshiro256PlusPlus {
        Xoshiro256PlusPlus::seed_from_u64(seed)
    }

    fn count(scenario: &Scenario, policy: &str, window: Duration, seed: u64) -> WindowCount {
        let policy = policy.parse().unwrap_or_else(|error| panic!("{policy}: {error}"));
        let mut counts = replay(scenario, &policy, &[window], &mut rng(seed)).expect("a legal scenario");
        counts.pop().expect("one window")
    }

    #[test]
    fn fixed_waits_come_back_in_waves() {
        let short = count(&STORM, "fixed:5s", SECOND * 12, 1);
        assert_eq!((short.calls, short.peak_per_second()), (200, 100));
        assert_eq!(short.per_second, [0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 100, 0]);
        let long = count(&STORM, "fixed:5s", SECOND * 60, 1);
        assert_eq!((long.calls, long.peak_per_second()), (1100, 100), "the wave at 60 s is outside");
    }

    #[test]
    fn an_attempt_that_takes_time_misses_its_tick() {
        // The original's queue: 5 s after a failure at 5.001 s is looked at by the tick of 11 s.
        let counts = count(&Scenario { latency: Duration::from_millis(1), ..STORM }, "fixed:5s", SECOND * 18, 1);
        let waves: Vec<_> = (0..18).filter(|second| counts.per_second[*second] > 0).collect();
        assert_eq!(waves, [5, 11, 17]);
    }

    #[test]
    fn randomised_waits_spread_the_first_wave_over_two_ticks() {
        // Waits of 0.5 to 1.5 s are due at the ticks of 1 s and 2 s, about half each; whoever failed again at 1 s may
        // be there at 2 s too.
        let counts = count(&STORM, "exponential:1s,1.5,60s,0.5", SECOND * 12, 1);
        assert_eq!(counts.per_second[0], 0);
        assert!((35..=65).contains(&counts.per_second[1]), "{counts:?}");
        assert!(counts.peak_per_second() < 100, "{counts:?}");
        let late = count(&STORM, "exponential:1s,1.5,60s,0.5", SECOND * 60, 1);
        assert!(late.per_second[30..].iter().max() < Some(&20), "{late:?}");
    }

    #[test]
    fn without_a_tick_the_waits_are_exact() {
        let scenario = Scenario { clients: 1, tick: Duration::ZERO, ..STORM };
        let counts = count(&scenario, "exponential:1s,2,60s,none", SECOND * 16, 1);
        let starts: Vec<_> = (0..16).filter(|second| counts.per_second[*second] > 0).collect();
        assert_eq!(starts, [1, 3, 7, 15]);
    }

    #[test]
    fn a_loop_without_pause_makes_millions_of_calls_an_hour() {
        let hour = count(&LOOP, "none", SECOND * 3600, 1);
        assert_eq!((hour.calls, hour.peak_per_second()), (3_600_000, 1000));
    }

    #[test]
    fn a_loop_that_backs_off_makes_about_130_calls_an_hour() {
        // Without randomness exactly: 0 s, nine growing waits up to 74.4 s, then one call every 30.001 s.
        let exact = count(&LOOP, "exponential:1s,1.5,30s,none", SECOND * 3600, 1);
        assert_eq!(exact.calls, 127);
        for seed in 0..20 {
            let calls = count(&LOOP, "exponential:1s,1.5,30s,0.5", SECOND * 3600, seed).calls;
            assert!((110..=150).contains(&calls), "{calls} calls with seed {seed}");
        }
    }

    #[test]
    fn no_wait_still_waits_for_the_tick() {
        let counts = count(&STORM, "none", SECOND * 5, 1);
        assert_eq!(counts.per_second, [0, 100, 100, 100, 100]);
    }

    #[test]
    fn one_client_stands_for_all_that_wait_equally_long() {
        let hour = count(&Scenario { clients: 10_000, ..LOOP }, "none", SECOND * 3600, 1);
        assert_eq!((hour.calls, hour.peak_per_second()), (36_000_000_000, 10_000_000));
        assert_eq!(count(&Scenario { clients: 0, ..LOOP }, "none", SECOND, 1).calls, 0);
    }

    #[test]
    fn limits_end_the_retries() {
        assert_eq!(count(&STORM, "fixed:1s,attempts=3", SECOND * 60, 1).calls, 200, "two retries each");
        assert_eq!(count(&STORM, "fixed:1s,elapsed=2s", SECOND * 60, 1).calls, 200);
    }

    #[test]
    fn a_window_may_end_within_a_second() {
        let counts = count(&STORM, "fixed:500ms", Duration::from_millis(2500), 1);
        assert_eq!((counts.per_second, counts.calls), (vec![0, 100, 100], 200));
        let scenario = Scenario { tick: Duration::ZERO, ..STORM };
        let counts = count(&scenario, "fixed:500ms", Duration::from_millis(2500), 1);
        assert_eq!(counts.per_second, [100, 200, 100]);
        assert_eq!(counts.mean_per_second(), 160.0);
    }

    #[test]
    fn scenarios_without_end_are_refused() {
        let replay = |scenario: &Scenario, policy: Policy, window| replay(scenario, &policy, &[window], &mut rng(1));
        let still = Scenario { tick: Duration::ZERO, ..STORM };
        assert_eq!(replay(&still, Policy::none(), SECOND), Err(StormError::Standstill));
        assert_eq!(replay(&still, Policy::fixed(Duration::ZERO), SECOND), Err(StormError::Standstill));
        assert_eq!(replay(&STORM, Policy::none(), Duration::ZERO), Err(StormError::Window(Duration::ZERO)));
        assert_eq!(replay(&STORM, Policy::none(), Duration::MAX), Err(StormError::Window(Duration::MAX)));
    }

    proptest! {
        #[test]
        fn counts_agree_with_each_other(
            clients in 0u32..20,
            tick_ms in prop_oneof![Just(0u64), 1u64..3000],
            latency_ms in 1u64..500,
            calling: bool,
            window_ms in 1u64..40_000,
            seed: u64,
        ) {
            let start = if calling { Start::CallingTogether } else { Start::FailedTogether };
            let scenario = Scenario {
                clients,
                start,
                tick: Duration::from_millis(tick_ms),
                latency: Duration::from_millis(latency_ms),
            };
            let window = Duration::from_millis(window_ms);
            let policy = "exponential:200ms,1.5,5s,full".parse().expect("legal");
            let counts = replay(&scenario, &policy, &[window, window * 2], &mut rng(seed)).expect("legal");
            let alone = replay(&scenario, &policy, &[window], &mut rng(seed)).expect("legal");
            prop_assert_eq!(&counts[..1], &alone, "the seed decides, not the company");
            for count in &counts {
                prop_assert_eq!(count.per_second.iter().sum::<u64>(), count.calls);
                prop_assert_eq!(count.per_second.len() as u128, count.window.as_millis().div_ceil(1000));
            }
            let whole = (window_ms / 1000) as usize;
            prop_assert_eq!(&counts[0].per_second[..whole], &counts[1].per_second[..whole], "a longer window sees the same calls");
        }

        #[test]
        fn attempts_start_at_the_first_tick_that_is_due(now_ns in 0u64..1u64 << 40, wait_ns in 0u64..1u64 << 40, tick_ns in 1u64..1 << 40) {
            let (now, wait, tick) = (Duration::from_nanos(now_ns), Duration::from_nanos(wait_ns), Duration::from_nanos(tick_ns));
            let start = due(now, wait, tick);
            prop_assert_eq!(start.as_nanos() % tick.as_nanos(), 0);
            prop_assert!(start >= now + wait && start > now);
            prop_assert!(start - tick < now + wait || start - tick <= now);
        }
    }
}
