//! Keeps retries a small share of the traffic.
//!
//! A caller that tries three times triples the load exactly when the callee can bear it least, and tiers of such
//! callers multiply: three tiers with three attempts each turn one request into 27. A [`RetryBudget`] lets a caller
//! retry only as long as its retries stay below a share of its requests, so that an outage costs the callee at most
//! `1 + ratio` times the usual load per tier (1.2×, and 1.2³ = 1.728× through three tiers), whatever the number of
//! attempts each call may make.
//!
//! # The law
//!
//! Every request deposits `ratio` of a retry, every retry withdraws one. Over each interval between two
//! [`tick`](RetryBudget::tick)s the deposits are topped up to `min_per_second`, which lets a quiet caller retry at all;
//! a caller whose traffic earns more gets no top-up. So over any run that starts with an empty budget
//!
//! ```text
//! retries ≤ Σ over intervals of max(ratio × requests, min_per_second × seconds)
//! ```
//!
//! Unspent retries expire: from the first tick on the bucket holds what [`BURST_WINDOW`] of the latest traffic
//! deposits, and at least one retry.
//!
//! The shape is Finagle's `RetryBudget` and tower's `TpsBudget` (their default ratio is 20 % too). Two things differ:
//! their reserve is paid on top of the ratio, which triples a slow caller's load, and theirs reads the clock on every
//! call.
//!
//! Deposits and withdrawals are lock-free and may come from any thread; `tick` belongs to one timer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How much of the recent traffic's deposits may be saved up: 5 s.
///
/// Long enough to retry everything that was in flight on an instance that dies, short enough that an outage does not
/// begin with a minute's worth of saved retries.
pub const BURST_WINDOW: Duration = Duration::from_secs(5);

/// A million units are one retry, so that a ratio of one in a million still counts.
const RETRY: u64 = 1_000_000;

/// A ratio or reserve out of range, with the offending value.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidBudget {
    /// The ratio is not in `0..=1000`, the range of Finagle's budget.
    #[error("the retry ratio must be between 0 and 1000, not {0}")]
    Ratio(f64),
    /// The reserve is not in `0..=1000000`.
    #[error("the retries per second must be between 0 and 1000000, not {0}")]
    MinPerSecond(f64),
}

/// A token bucket that requests fill and retries drain. The law is in the [module documentation](self).
///
/// ```
/// use std::time::Duration;
/// use metaroute_core::resilience::budget::RetryBudget;
///
/// let budget = RetryBudget::new(0.2, 0.0, Duration::ZERO)?;
/// for _ in 0..5 {
///     budget.deposit();
/// }
/// assert!(budget.try_withdraw());
/// assert!(!budget.try_withdraw(), "five requests pay for one retry");
/// # Ok::<(), metaroute_core::resilience::budget::InvalidBudget>(())
/// ```
#[derive(Debug)]
pub struct RetryBudget {
    /// Units that one request deposits.
    deposit: u64,
    /// Units that a second yields at least.
    reserve: u64,
    units: AtomicU64,
    capacity: AtomicU64,
    /// Units deposited since the last tick, also those that found the bucket full.
    deposited: AtomicU64,
    ticked_ns: AtomicU64,
}

impl RetryBudget {
    /// An empty budget: `ratio` retries per request (0.2 is 20 %), but at least `min_per_second` retries a second.
    ///
    /// # Errors
    ///
    /// [`InvalidBudget`] when a number is negative, not a number or absurdly large.
    pub fn new(ratio: f64, min_per_second: f64, now: Duration) -> Result<Self, InvalidBudget> {
        if !(0.0..=1000.0).contains(&ratio) {
            return Err(InvalidBudget::Ratio(ratio));
        }
        if !(0.0..=1_000_000.0).contains(&min_per_second) {
            return Err(InvalidBudget::MinPerSecond(min_per_second));
        }
        let reserve = units(min_per_second);
        Ok(Self {
            deposit: units(ratio),
            reserve,
            units: AtomicU64::new(0),
            // How much traffic there is, and so what may be saved up, is known from the first tick on.
            capacity: AtomicU64::new(u64::MAX),
            deposited: AtomicU64::new(0),
            ticked_ns: AtomicU64::new(nanos(now)),
        })
    }

    /// Finagle's and tower's 20 %, and one retry a second for a quiet caller.
    pub fn standard(now: Duration) -> Self {
        Self::new(0.2, 1.0, now).expect("the standard numbers are in range")
    }

    /// Notes one request. Call it for first attempts only, never for retries.
    pub fn deposit(&self) {
        self.deposited.fetch_add(self.deposit, Ordering::Relaxed);
        self.fill(self.deposit);
    }

    /// Pays for one retry; `false` means that the failure must be passed on instead.
    #[must_use]
    pub fn try_withdraw(&self) -> bool {
        self.units.try_update(Ordering::Relaxed, Ordering::Relaxed, |units| units.checked_sub(RETRY)).is_ok()
    }

    /// Tops up to the reserve and lets savings expire. Call it about once a second; a longer pause only delays both.
    pub fn tick(&self, now: Duration) {
        let now = nanos(now);
        let elapsed = now.saturating_sub(self.ticked_ns.fetch_max(now, Ordering::Relaxed));
        if elapsed == 0 {
            return;
        }
        let deposited = self.deposited.swap(0, Ordering::Relaxed);
        let reserve = scale(self.reserve, elapsed, NANOS_PER_SECOND);
        let per_second = scale(deposited.max(reserve), NANOS_PER_SECOND, elapsed);
        let capacity = capacity(per_second);
        self.capacity.store(capacity, Ordering::Relaxed);
        self.units.update(Ordering::Relaxed, Ordering::Relaxed, |units| units.min(capacity));
        self.fill(reserve.saturating_sub(deposited));
    }

    /// The retries that could be paid for at this moment.
    pub fn balance(&self) -> u64 {
        self.units.load(Ordering::Relaxed) / RETRY
    }

    fn fill(&self, amount: u64) {
        let capacity = self.capacity.load(Ordering::Relaxed);
        self.units.update(Ordering::Relaxed, Ordering::Relaxed, |units| {
            units.saturating_add(amount).min(capacity.max(units))
        });
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

fn units(retries: f64) -> u64 {
    (retries * RETRY as f64).round() as u64
}

fn capacity(units_per_second: u64) -> u64 {
    units_per_second.saturating_mul(BURST_WINDOW.as_secs()).max(RETRY)
}

/// `value × numerator ÷ denominator`, saturating.
fn scale(value: u64, numerator: u64, denominator: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(numerator) / u128::from(denominator)).unwrap_or(u64::MAX)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn budget(ratio: f64, min_per_second: f64) -> RetryBudget {
        RetryBudget::new(ratio, min_per_second, Duration::ZERO).expect("legal numbers")
    }

    /// One caller that sends `rps` requests a second into a dead backend and wants `retries` retries for each. Returns
    /// the requests and the attempts that reached the backend.
    fn outage(budget: &RetryBudget, rps: u32, retries: u32, start: u64, seconds: u64) -> (u32, u32) {
        let (mut requests, mut attempts) = (0, 0);
        for second in start..start + seconds {
            for _ in 0..rps {
                requests += 1;
                attempts += 1;
                budget.deposit();
                attempts += (0..retries).take_while(|_| budget.try_withdraw()).count() as u32;
            }
            budget.tick(SECOND * u32::try_from(second + 1).expect("short runs"));
        }
        (requests, attempts)
    }

    #[test]
    fn t56_ten_thousand_callers_offer_at_most_one_fifth_more() {
        // 10,000 callers × 10 requests a second, 2 retries each, everything fails for 60 s.
        let (mut requests, mut attempts) = (0u64, 0u64);
        for _ in 0..10_000 {
            let (sent, offered) = outage(&RetryBudget::standard(Duration::ZERO), 10, 2, 0, 60);
            requests += u64::from(sent);
            attempts += u64::from(offered);
        }
        assert_eq!(requests, 6_000_000);
        assert_eq!(attempts, 7_200_000, "exactly 1.2×");
    }

    #[test]
    fn t56_without_a_budget_the_same_callers_offer_three_times() {
        let (requests, attempts) = outage(&budget(1000.0, 0.0), 10, 2, 0, 60);
        assert_eq!((requests, attempts), (600, 1800));
    }

    #[test]
    fn t56_three_tiers_multiply_to_1_728_not_27() {
        // Each attempt of a tier is a request of the tier below, which has its own budget.
        fn call(tiers: &[RetryBudget]) -> u32 {
            let Some((budget, below)) = tiers.split_first() else { return 1 };
            budget.deposit();
            let mut load = call(below);
            for _ in 0..2 {
                if !budget.try_withdraw() {
                    break;
                }
                load += call(below);
            }
            load
        }
        let tiers = [budget(0.2, 0.0), budget(0.2, 0.0), budget(0.2, 0.0)];
        let load: u32 = (0..125_000).map(|_| call(&tiers)).sum();
        assert_eq!(load, 216_000, "125,000 × 1.2³");
        assert_eq!(f64::from(load) / 125_000.0, 1.728);
        let unlimited = [budget(1000.0, 0.0), budget(1000.0, 0.0), budget(1000.0, 0.0)];
        assert_eq!((0..1000).map(|_| call(&unlimited)).sum::<u32>(), 27_000);
    }

    #[test]
    fn savings_of_a_healthy_minute_allow_one_burst_window_more() {
        let budget = RetryBudget::standard(Duration::ZERO);
        for second in 1..=60 {
            (0..10).for_each(|_| budget.deposit());
            budget.tick(SECOND * second);
        }
        assert_eq!(budget.balance(), 10, "5 s × 10 a second × 20 %");
        let (requests, attempts) = outage(&budget, 10, 2, 60, 60);
        // The first deposit finds the bucket full, which leaves 9.8 + 120 = 129.8 retries.
        assert_eq!((requests, attempts), (600, 600 + 129));
    }

    #[test]
    fn a_quiet_caller_may_retry_once_a_second() {
        let budget = RetryBudget::standard(Duration::ZERO);
        assert!(!budget.try_withdraw(), "a fresh budget is empty");
        budget.tick(SECOND);
        assert!(budget.try_withdraw());
        assert!(!budget.try_withdraw());
        budget.tick(SECOND * 100);
        assert_eq!(budget.balance(), 5, "and does not save more than five");
    }

    #[test]
    fn a_busy_caller_gets_no_reserve_on_top() {
        let budget = budget(0.2, 2.0);
        (0..10).for_each(|_| budget.deposit());
        assert_eq!(budget.balance(), 2);
        budget.tick(SECOND);
        assert_eq!(budget.balance(), 2);
    }

    #[test]
    fn savings_expire_when_the_traffic_stops() {
        let budget = budget(0.2, 0.0);
        budget.tick(SECOND);
        (0..1000).for_each(|_| budget.deposit());
        budget.tick(SECOND * 2);
        (0..1000).for_each(|_| budget.deposit());
        assert!(budget.balance() > 100);
        budget.tick(SECOND * 3);
        budget.tick(SECOND * 4);
        assert_eq!(budget.balance(), 1);
    }

    #[test]
    fn time_that_stands_still_or_runs_backwards_yields_nothing() {
        let budget = RetryBudget::new(0.0, 5.0, SECOND).expect("legal numbers");
        budget.tick(SECOND);
        budget.tick(Duration::ZERO);
        assert_eq!(budget.balance(), 0);
    }

    #[test]
    fn concurrent_callers_never_spend_more_than_was_paid_in() {
        let budget = budget(0.2, 0.0);
        let spent: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..10_000)
                            .filter(|_| {
                                budget.deposit();
                                budget.try_withdraw()
                            })
                            .count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum()
        });
        assert_eq!(spent as u64 + budget.balance(), 8_000, "exactly 20 % of 40,000");
    }

    #[test]
    fn absurd_numbers_are_refused() {
        for ratio in [-0.1, f64::NAN, f64::INFINITY, 1000.1] {
            assert!(matches!(RetryBudget::new(ratio, 0.0, Duration::ZERO), Err(InvalidBudget::Ratio(_))));
        }
        for reserve in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(RetryBudget::new(0.2, reserve, Duration::ZERO), Err(InvalidBudget::MinPerSecond(_))));
        }
    }

    proptest! {
        #[test]
        fn retries_stay_within_the_law(
            ratio in 0.0..2.0f64,
            min_per_second in 0.0..20.0f64,
            steps in prop::collection::vec((0u32..50, 0u32..80, 1u64..3_000), 1..60),
        ) {
            let budget = budget(ratio, min_per_second);
            let mut now = Duration::ZERO;
            let (mut retries, mut allowed) = (0.0, 0.0);
            for (requests, wanted, step_ms) in steps {
                (0..requests).for_each(|_| budget.deposit());
                retries += (0..wanted).filter(|_| budget.try_withdraw()).count() as f64;
                // What was earned within the interval may be spent at once, the top-up only after it.
                prop_assert!(retries <= allowed + ratio * f64::from(requests) + 0.001, "{retries} retries, {allowed} allowed");
                let step = Duration::from_millis(step_ms);
                now += step;
                budget.tick(now);
                allowed += (ratio * f64::from(requests)).max(min_per_second * step.as_secs_f64());
            }
        }
    }
}
