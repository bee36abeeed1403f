//! How long to wait before trying again, and when to stop trying.
//!
//! Clients that fail together and wait equally long come back together, so every wait of an exponential policy is drawn
//! at random ([`Jitter`]). A [`Policy`] is the immutable description, with a text form (`exponential:1s,1.5,60s,0.5`);
//! a [`Backoff`] is the state of one retried task.
//!
//! # The law
//!
//! Let `d` be the current interval. It starts at `initial`; after each failure it becomes `min(d × multiplier, cap)`. A
//! wait is
//!
//! | jitter | wait | largest wait |
//! |---|---|---|
//! | `none` | `d` | `cap` |
//! | `full` | uniform in `[0, d]` | `cap` |
//! | `equal` | uniform in `[d/2, d]` | `cap` |
//! | `decorrelated` | `min(cap, uniform in [initial, previous wait × multiplier])`, the first "previous wait" being `initial` | `cap` |
//! | factor `f` | uniform in `[d(1−f), d(1+f)]` | `cap × (1+f)` |
//!
//! The factor form is the randomisation of the widespread exponential back-off libraries that grew out of Google's HTTP
//! client: the cap limits the *interval*, the randomisation is applied afterwards, so a cap of 60 s with a factor of
//! 0.5 waits between 30 s and 90 s. The other three follow the "Exponential Backoff and Jitter" article of the AWS
//! Architecture Blog (2015), which uses a multiplier of 3 for `decorrelated`. All ends are inclusive and all arithmetic
//! is in whole nanoseconds, saturating.
//!
//! # When not to use it
//!
//! Waiting helps against a callee that is down or overloaded. It does not help against an error that repeating cannot
//! cure: say so with [`Failure::Permanent`]. And it does not bound the *sum* of all retries of all callers: that is
//! what [`budget`](super::budget) is for.
//!
//! # Use with `backon`
//!
//! [`Policy::delays`] is an iterator over waits, which is all that crate `backon` asks of a back-off:
//! `call.retry(policy.delays(rng)).when(|e| e.is_transient()).notify(|e, wait| …)`.

mod text;

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::time::Duration;

use rand::{Rng, RngExt};

pub use text::{ParsePolicyError, parse_duration};

/// The longest server hint ([`Failure::After`]) that is honoured: 10 minutes.
///
/// A wrong `Retry-After` of days must not silence a client for days; ten minutes is longer than any back-off cap in use
/// here.
pub const SERVER_HINT_MAX: Duration = Duration::from_secs(600);

/// How the wait is drawn from the current interval. The exact law of each variant is in the [module
/// documentation](self).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Jitter {
    /// No randomness. For tests and for tasks of which there is exactly one.
    None,
    /// Uniform in `[0, d]`: spreads best, may wait next to nothing.
    Full,
    /// Uniform in `[d/2, d]`: spreads half as wide, never retries at once.
    Equal,
    /// Grows from the wait drawn before instead of from the number of failures.
    Decorrelated,
    /// Uniform in `[d(1−f), d(1+f)]` for a factor `f` in `0..=1`.
    Factor(f64),
}

/// What kind of failure a retried task met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Trying again may help.
    Transient,
    /// Trying again may help, but not before this long (a server's `Retry-After`).
    ///
    /// The wait is the hint, at most [`SERVER_HINT_MAX`], *plus* the policy's own wait: clients that were given the
    /// same hint do not come back together.
    After(Duration),
    /// Trying again cannot help: a rejected argument, a missing permission, a closed client.
    Permanent,
}

/// Why a task is not tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GiveUp {
    /// The failure was [`Failure::Permanent`].
    #[error("the failure is permanent")]
    Permanent,
    /// The policy's number of attempts is used up.
    #[error("all attempts are used up")]
    Attempts,
    /// The next attempt would start later than the policy's time limit after the first failure.
    #[error("the time limit is used up")]
    Elapsed,
}

/// A policy whose numbers make no sense, with the offending value.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPolicy {
    /// An interval of zero can never grow.
    #[error("the initial interval must be longer than 0s")]
    InitialZero,
    /// Intervals must not shrink, and must be a number.
    #[error("the multiplier must be a finite number of at least 1, not {0}")]
    Multiplier(f64),
    /// The cap would cut the very first interval.
    #[error("the cap {cap:?} is shorter than the initial interval {initial:?}")]
    Cap {
        /// First interval.
        initial: Duration,
        /// Largest interval.
        cap: Duration,
    },
    /// A factor above 1 would give negative waits.
    #[error("the randomisation factor must be between 0 and 1, not {0}")]
    Factor(f64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    None,
    Fixed { wait: Duration },
    Exponential { initial: Duration, multiplier: f64, cap: Duration, jitter: Jitter },
}

/// An immutable retry policy: how waits grow, and optional limits on attempts and time.
///
/// The text form ([`FromStr`](std::str::FromStr) and [`Display`](std::fmt::Display)) is
///
/// ```text
/// none                                        try again at once, for ever
/// fixed:5s                                    wait 5 s each time
/// exponential:1s,1.5,60s,0.5                  initial, multiplier, cap, randomisation factor
/// exponential:1s,2,30s,full                   … or none | full | equal | decorrelated
/// exponential:1s,1.5,60s                      the factor defaults to 0.5
/// fixed:5s,attempts=3,elapsed=2m              at most 3 attempts, none later than 2 min after the first failure
/// ```
///
/// ```
/// use metaroute_core::resilience::backoff::Policy;
///
/// let policy: Policy = "exponential:1s,1.5,60s".parse()?;
/// assert_eq!(policy.to_string(), "exponential:1s,1.5,60s,0.5");
/// # Ok::<(), metaroute_core::resilience::backoff::ParsePolicyError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    shape: Shape,
    attempts_max: Option<NonZeroU32>,
    elapsed_max: Option<Duration>,
}

impl Policy {
    /// The randomisation factor that the text form implies when it names none.
    pub const DEFAULT_FACTOR: f64 = 0.5;

    /// Tries again at once, for ever. Only good for measuring how bad that is.
    pub const fn none() -> Self {
        Self::unlimited(Shape::None)
    }

    /// Waits equally long each time, for ever.
    pub const fn fixed(wait: Duration) -> Self {
        Self::unlimited(Shape::Fixed { wait })
    }

    /// Waits that grow from `initial` by `multiplier` up to `cap`, for ever.
    ///
    /// # Errors
    ///
    /// [`InvalidPolicy`] when `initial` is zero, `multiplier` is below 1 or not finite, `cap` is below `initial` or a
    /// factor is outside `0..=1`.
    pub fn exponential(
        initial: Duration,
        multiplier: f64,
        cap: Duration,
        jitter: Jitter,
    ) -> Result<Self, InvalidPolicy> {
        if initial.is_zero() {
            return Err(InvalidPolicy::InitialZero);
        }
        if !multiplier.is_finite() || multiplier < 1.0 {
            return Err(InvalidPolicy::Multiplier(multiplier));
        }
        if cap < initial {
            return Err(InvalidPolicy::Cap { initial, cap });
        }
        if let Jitter::Factor(factor) = jitter
            && !(0.0..=1.0).contains(&factor)
        {
            return Err(InvalidPolicy::Factor(factor));
        }
        Ok(Self::unlimited(Shape::Exponential { initial, multiplier, cap, jitter }))
    }

    const fn unlimited(shape: Shape) -> Self {
        Self { shape, attempts_max: None, elapsed_max: None }
    }

    /// Limits the attempts, the first one included: with 3 there are at most 2 waits.
    #[must_use]
    pub const fn with_attempts_max(mut self, attempts: NonZeroU32) -> Self {
        self.attempts_max = Some(attempts);
        self
    }

    /// Limits the time: no attempt starts later than this after the first failure.
    #[must_use]
    pub const fn with_elapsed_max(mut self, elapsed: Duration) -> Self {
        self.elapsed_max = Some(elapsed);
        self
    }

    /// The attempts allowed in all, the first one included; `None` is for ever.
    pub const fn attempts_max(&self) -> Option<NonZeroU32> {
        self.attempts_max
    }

    /// The time allowed between the first failure and the start of the last attempt; `None` is for ever.
    pub const fn elapsed_max(&self) -> Option<Duration> {
        self.elapsed_max
    }

    /// The longest wait this policy ever draws by itself; a server's hint comes on top.
    pub fn wait_max(&self) -> Duration {
        match self.shape {
            Shape::None => Duration::ZERO,
            Shape::Fixed { wait } => wait,
            Shape::Exponential { cap, jitter: Jitter::Factor(factor), .. } => {
                let cap = nanos(cap);
                Duration::from_nanos(cap.saturating_add(spread(cap, factor)))
            }
            Shape::Exponential { cap, .. } => cap,
        }
    }

    /// Whether the waits are drawn at random. Tasks of a policy that is not random and that fail together stay
    /// together.
    pub fn is_random(&self) -> bool {
        match self.shape {
            Shape::None | Shape::Fixed { .. } => false,
            Shape::Exponential { jitter, .. } => !matches!(jitter, Jitter::None | Jitter::Factor(0.0)),
        }
    }

    /// The waits of one task, one after each failure, as an iterator that owns its randomness.
    ///
    /// An iterator knows no clock: the time limit is held against the *sum of the waits*, so time spent in the attempts
    /// themselves does not count. Use [`Backoff`] where it must.
    pub fn delays<R: Rng>(&self, rng: R) -> Delays<R> {
        Delays { backoff: Backoff::new(*self), waited: Duration::ZERO, rng }
    }

    fn interval_first(&self) -> u64 {
        match self.shape {
            Shape::Exponential { initial, .. } => nanos(initial),
            Shape::None | Shape::Fixed { .. } => 0,
        }
    }
}

impl Default for Policy {
    /// `exponential:1s,1.5,60s,0.5`: the parameters of the widespread failback queues.
    fn default() -> Self {
        Self::unlimited(Shape::Exponential {
            initial: Duration::from_secs(1),
            multiplier: 1.5,
            cap: Duration::from_secs(60),
            jitter: Jitter::Factor(Self::DEFAULT_FACTOR),
        })
    }
}

/// The back-off state of one retried task.
///
/// ```
/// use std::time::Duration;
/// use metaroute_core::resilience::backoff::{Backoff, Failure, GiveUp, Policy};
///
/// let mut rng = rand::rng();
/// let policy: Policy = "exponential:1s,2,30s,none,attempts=3".parse()?;
/// let mut backoff = Backoff::new(policy);
/// let now = Duration::ZERO;
/// assert_eq!(backoff.on_failure(Failure::Transient, now, &mut rng), Ok(Duration::from_secs(1)));
/// assert_eq!(backoff.on_failure(Failure::Transient, now, &mut rng), Ok(Duration::from_secs(2)));
/// assert_eq!(backoff.on_failure(Failure::Transient, now, &mut rng), Err(GiveUp::Attempts));
/// backoff.reset();
/// assert_eq!(backoff.on_failure(Failure::Permanent, now, &mut rng), Err(GiveUp::Permanent));
/// # Ok::<(), metaroute_core::resilience::backoff::ParsePolicyError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Backoff {
    policy: Policy,
    /// Nanoseconds: the interval that the next wait is drawn from, or the wait drawn before where the jitter is
    /// decorrelated.
    interval: u64,
    failures: u32,
    first_failure: Option<Duration>,
}

impl Backoff {
    /// A task that has not failed yet.
    pub fn new(policy: Policy) -> Self {
        Self { policy, interval: policy.interval_first(), failures: 0, first_failure: None }
    }

    /// Notes a failed attempt at `now` and returns the wait before the next one.
    ///
    /// The attempts and the time are counted from the first failure after [`new`](Self::new) or [`reset`](Self::reset).
    ///
    /// # Errors
    ///
    /// [`GiveUp`] when there shall be no further attempt.
    pub fn on_failure(
        &mut self,
        failure: Failure,
        now: Duration,
        rng: &mut (impl Rng + ?Sized),
    ) -> Result<Duration, GiveUp> {
        self.failures = self.failures.saturating_add(1);
        let first_failure = *self.first_failure.get_or_insert(now);
        let hint = match failure {
            Failure::Permanent => return Err(GiveUp::Permanent),
            Failure::Transient => Duration::ZERO,
            Failure::After(hint) => hint.min(SERVER_HINT_MAX),
        };
        if self.policy.attempts_max.is_some_and(|max| self.failures >= max.get()) {
            return Err(GiveUp::Attempts);
        }
        let wait = hint.saturating_add(self.draw(rng));
        let start = now.saturating_sub(first_failure).saturating_add(wait);
        if self.policy.elapsed_max.is_some_and(|max| start > max) {
            return Err(GiveUp::Elapsed);
        }
        Ok(wait)
    }

    /// [`on_failure`](Self::on_failure) for a transient failure, `None` when there shall be no further attempt.
    pub fn next_delay(&mut self, now: Duration, rng: &mut (impl Rng + ?Sized)) -> Option<Duration> {
        self.on_failure(Failure::Transient, now, rng).ok()
    }

    /// Forgets all failures; call it after a success.
    pub fn reset(&mut self) {
        *self = Self::new(self.policy);
    }

    /// The failures since [`new`](Self::new) or [`reset`](Self::reset).
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// The policy this state follows.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    fn draw(&mut self, rng: &mut (impl Rng + ?Sized)) -> Duration {
        let (initial, multiplier, cap, jitter) = match self.policy.shape {
            Shape::None => return Duration::ZERO,
            Shape::Fixed { wait } => return wait,
            Shape::Exponential { initial, multiplier, cap, jitter } => (nanos(initial), multiplier, nanos(cap), jitter),
        };
        let interval = self.interval;
        let wait = match jitter {
            Jitter::None => interval,
            Jitter::Full => rng.random_range(0..=interval),
            Jitter::Equal => rng.random_range(interval.div_ceil(2)..=interval),
            Jitter::Decorrelated => rng.random_range(initial..=grow(interval, multiplier, u64::MAX)).min(cap),
            Jitter::Factor(factor) => {
                let spread = spread(interval, factor);
                rng.random_range(interval - spread..=interval.saturating_add(spread))
            }
        };
        self.interval = match jitter {
            Jitter::Decorrelated => wait,
            _ => grow(interval, multiplier, cap),
        };
        Duration::from_nanos(wait)
    }
}

/// The waits of one task, from [`Policy::delays`]. Ends when the policy gives up.
#[derive(Debug, Clone)]
pub struct Delays<R> {
    backoff: Backoff,
    waited: Duration,
    rng: R,
}

impl<R: Rng> Iterator for Delays<R> {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.backoff.next_delay(self.waited, &mut self.rng)?;
        self.waited = self.waited.saturating_add(wait);
        Some(wait)
    }
}

/// Whole nanoseconds, saturating at 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// `interval × multiplier`, at most `cap` and never less than `interval`.
fn grow(interval: u64, multiplier: f64, cap: u64) -> u64 {
    // A float to integer cast saturates, so a product beyond u64 becomes u64::MAX before the cap cuts it.
    ((interval as f64 * multiplier) as u64).max(interval).min(cap)
}

/// The half width of the randomised range, never wider than the interval itself.
fn spread(interval: u64, factor: f64) -> u64 {
    ((interval as f64 * factor) as u64).min(interval)
}
