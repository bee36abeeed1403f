//! Leaves instances alone that keep failing, and finds out carefully when they are well again.
//!
//! A registry learns late, or never, that an instance answers every call with an error; its callers know at once. Each
//! instance has a circuit breaker ([`State`]), *closed* while traffic flows: enough failures open it and the instance
//! is **ejected**; after a while it is half open and gets one **probe** at a time; one good probe closes it, a bad one
//! opens it again, for longer.
//!
//! What keeps the cure from being worse than the illness:
//!
//! - At most [`EjectionPolicy::max_ejected_percent`] of the members are out, checked *after* rounding and again
//!   whenever members leave (Envoy overshot here, envoyproxy/envoy #26877), and a lone member never is.
//! - When more fail than may be ejected, the worst go first.
//! - State belongs to a key of the caller's choice. Use one that a new incarnation on an old address does not share,
//!   and nobody inherits an ejection. Keys that are no longer members are forgotten.
//! - Nothing here knows localities, weights or health flags, so switching ejection on cannot change how healthy
//!   instances share the traffic (istio/istio #39477).
//!
//! The division of work: the *pick path* touches only [`OutcomeCounters`], which are atomics; [`Ejector::tick`] runs on
//! a timer, about once a second, and decides. Ejection needs outcomes, so a service with a call a minute gains nothing
//! from it.
//!
//! Sources: Envoy's outlier detection and gRPC A50 for counting, limits and growing times; the half-open state is
//! Nygard's circuit breaker.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

/// What came of a half-open probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The instance answered.
    Ok,
    /// It did not.
    Failed,
    /// The call was given up before it could tell; the next one may probe.
    Abandoned,
}

/// The outcomes of one instance, written by the calls that used it.
///
/// Everything is lock-free and takes `&self`. Counts that do not fit in 32 bits between two ticks wrap; the consecutive
/// failures saturate.
#[derive(Debug, Default)]
pub struct OutcomeCounters {
    consecutive_failures: AtomicU32,
    ok: AtomicU32,
    failed: AtomicU32,
    probing: AtomicBool,
    /// 0 none, 1 ok, 2 failed; a failure is never overwritten by a success.
    probe_result: AtomicU8,
}

const PROBE_OK: u8 = 1;
const PROBE_FAILED: u8 = 2;

impl OutcomeCounters {
    /// Counters of an instance that has not been called yet.
    pub const fn new() -> Self {
        Self {
            consecutive_failures: AtomicU32::new(0),
            ok: AtomicU32::new(0),
            failed: AtomicU32::new(0),
            probing: AtomicBool::new(false),
            probe_result: AtomicU8::new(0),
        }
    }

    /// Notes the outcome of one completed call. An abandoned call has none and must not be recorded.
    pub fn record(&self, ok: bool) {
        if ok {
            self.ok.fetch_add(1, Ordering::Relaxed);
            // A load first: in the common case the line stays shared.
            if self.consecutive_failures.load(Ordering::Relaxed) != 0 {
                self.consecutive_failures.store(0, Ordering::Relaxed);
            }
        } else {
            self.failed.fetch_add(1, Ordering::Relaxed);
            self.consecutive_failures.update(Ordering::Relaxed, Ordering::Relaxed, |count| count.saturating_add(1));
        }
    }

    /// Asks for the permit to send one probe to a half-open instance. Whoever gets `true` must call
    /// [`probe_done`](Self::probe_done) exactly once, and [`record`](Self::record) not at all.
    ///
    /// A permit that is never given back counts as a failed probe after the policy's base time. Should it come back
    /// later all the same, its outcome counts for the probe then under way.
    #[must_use]
    pub fn try_probe(&self) -> bool {
        !self.probing.load(Ordering::Relaxed) && !self.probing.swap(true, Ordering::Acquire)
    }

    /// Gives the permit back with what the probe found.
    pub fn probe_done(&self, outcome: ProbeOutcome) {
        match outcome {
            ProbeOutcome::Ok => {
                self.probe_result.fetch_max(PROBE_OK, Ordering::Relaxed);
            }
            ProbeOutcome::Failed => {
                self.probe_result.fetch_max(PROBE_FAILED, Ordering::Relaxed);
            }
            ProbeOutcome::Abandoned => {}
        }
        self.probing.store(false, Ordering::Release);
    }

    /// Failures since the last success.
    pub fn consecutive_failures(&self) -> u32 {
        self.consecutive_failures.load(Ordering::Relaxed)
    }

    /// Forgets everything and frees the probe permit.
    fn clear(&self) {
        self.consecutive_failures.store(0, Ordering::Relaxed);
        self.ok.store(0, Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
        self.probe_result.store(0, Ordering::Relaxed);
        self.probing.store(false, Ordering::Release);
    }
}

/// When to eject, for how long, and how many at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EjectionPolicy {
    /// Ejects after this many failures without a success between them. `None` switches the rule off.
    pub consecutive_failures: Option<u32>,
    /// Ejects an instance whose share of failures reaches a limit. `None` switches the rule off.
    pub failure_rate: Option<FailureRate>,
    /// The first ejection lasts this long, the n-th in a row n times as long. Every such span of good behaviour takes
    /// one off again.
    pub base_time: Duration,
    /// No ejection lasts longer.
    pub max_time: Duration,
    /// The share of the members, in percent and rounded down, that may be open or half open at a time. More than 100
    /// means 100.
    pub max_ejected_percent: u8,
    /// Allows one ejection where the percentage rounds down to none, except of a lone member.
    pub at_least_one: bool,
}

/// Ejection by the share of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureRate {
    /// Ejects when at least this share of the outcomes are failures, in percent.
    pub percent: u8,
    /// Looks only at instances with at least this many outcomes within the interval; fewer say nothing.
    pub min_volume: u32,
    /// Outcomes are added up over this span and then forgotten.
    pub interval: Duration,
}

impl Default for EjectionPolicy {
    /// Envoy's numbers: 5 failures in a row, 30 s growing to 300 s, at most 10 % but at least one; no failure rate.
    fn default() -> Self {
        Self {
            consecutive_failures: Some(5),
            failure_rate: None,
            base_time: Duration::from_secs(30),
            max_time: Duration::from_secs(300),
            max_ejected_percent: 10,
            at_least_one: true,
        }
    }
}

impl EjectionPolicy {
    /// How many out of `members` may be open or half open at a time.
    ///
    /// ```
    /// use metaroute_core::resilience::ejection::EjectionPolicy;
    ///
    /// let policy = EjectionPolicy { max_ejected_percent: 50, ..EjectionPolicy::default() };
    /// assert_eq!(policy.ejected_max(3), 1);
    /// assert_eq!(policy.ejected_max(1), 0, "a lone member is never ejected");
    /// ```
    pub fn ejected_max(&self, members: usize) -> usize {
        if members < 2 {
            return 0;
        }
        let percent = u128::from(self.max_ejected_percent.min(100));
        // At most `members`, so it fits again.
        let share = (members as u128 * percent / 100) as usize;
        share.max(usize::from(self.at_least_one))
    }

    fn ejection_time(&self, ejections: u32) -> Duration {
        self.base_time.saturating_mul(ejections).min(self.max_time)
    }
}

/// The circuit breaker of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// Traffic flows.
    #[default]
    Closed,
    /// Ejected: no pick may use the instance.
    Open,
    /// One probe at a time may use it, with [`OutcomeCounters::try_probe`].
    HalfOpen,
}

/// What one [`Ejector::tick`] changed, each list in key order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transitions<K> {
    /// Now open, freshly or again after a failed probe.
    pub ejected: Vec<K>,
    /// Now waiting for a probe.
    pub half_open: Vec<K>,
    /// Now closed, after a good probe or because fewer members may be out.
    pub restored: Vec<K>,
}

impl<K> Transitions<K> {
    /// Whether nothing changed, so that nothing needs to be rebuilt.
    pub fn is_empty(&self) -> bool {
        self.ejected.is_empty() && self.half_open.is_empty() && self.restored.is_empty()
    }
}

#[derive(Debug)]
enum Breaker {
    Closed {
        /// The next moment at which good behaviour takes one off `ejections`.
        forgive_at: Duration,
        /// Outcomes since `interval_start`, for the failure rate.
        ok: u32,
        failed: u32,
        interval_start: Duration,
    },
    Open {
        until: Duration,
    },
    HalfOpen {
        /// When a probe that has not come back counts as failed, set on the first tick that sees it under way.
        probe_deadline: Option<Duration>,
    },
}

#[derive(Debug)]
struct Member {
    breaker: Breaker,
    /// Ejections in a row, less what good behaviour took off.
    ejections: u32,
    /// The tick that saw this member last.
    seen: u64,
}

impl Member {
    fn new(now: Duration, policy: &EjectionPolicy) -> Self {
        let mut member = Self { breaker: Breaker::HalfOpen { probe_deadline: None }, ejections: 0, seen: 0 };
        member.close(now, policy);
        member
    }

    fn close(&mut self, now: Duration, policy: &EjectionPolicy) {
        self.breaker =
            Breaker::Closed { forgive_at: now.saturating_add(policy.base_time), ok: 0, failed: 0, interval_start: now };
    }

    fn open(&mut self, now: Duration, policy: &EjectionPolicy, counters: &OutcomeCounters) {
        self.ejections = self.ejections.saturating_add(1);
        self.breaker = Breaker::Open { until: now.saturating_add(policy.ejection_time(self.ejections)) };
        counters.clear();
    }

    /// Takes in the outcomes and makes every transition that does not depend on the other members. Returns the new
    /// state if it changed.
    fn advance(&mut self, now: Duration, policy: &EjectionPolicy, counters: &OutcomeCounters) -> Option<State> {
        let newly_ok = counters.ok.swap(0, Ordering::Relaxed);
        let newly_failed = counters.failed.swap(0, Ordering::Relaxed);
        match &mut self.breaker {
            Breaker::Closed { forgive_at, ok, failed, interval_start } => {
                if now >= *forgive_at {
                    self.ejections = self.ejections.saturating_sub(1);
                    *forgive_at = now.saturating_add(policy.base_time);
                }
                if policy.failure_rate.is_some_and(|rate| now.saturating_sub(*interval_start) >= rate.interval) {
                    (*ok, *failed, *interval_start) = (0, 0, now);
                }
                *ok = ok.saturating_add(newly_ok);
                *failed = failed.saturating_add(newly_failed);
                None
            }
            // Calls that were under way when the breaker opened come back now and say nothing new.
            Breaker::Open { until } if now >= *until => {
                counters.clear();
                self.breaker = Breaker::HalfOpen { probe_deadline: None };
                Some(State::HalfOpen)
            }
            Breaker::Open { .. } => None,
            Breaker::HalfOpen { probe_deadline } => {
                let result = counters.probe_result.swap(0, Ordering::Relaxed);
                let probing = counters.probing.load(Ordering::Relaxed);
                let patience = *probe_deadline.get_or_insert(now.saturating_add(policy.base_time));
                if result == PROBE_OK {
                    counters.clear();
                    self.close(now, policy);
                    return Some(State::Closed);
                }
                if result == PROBE_FAILED || (probing && now >= patience) {
                    self.open(now, policy, counters);
                    return Some(State::Open);
                }
                if !probing {
                    *probe_deadline = None;
                }
                None
            }
        }
    }

    /// How much this member deserves to be ejected, if it does.
    fn severity(&self, policy: &EjectionPolicy, counters: &OutcomeCounters) -> Option<Severity> {
        let Breaker::Closed { ok, failed, .. } = self.breaker else { return None };
        let consecutive_failures = counters.consecutive_failures();
        let (failed, total) = (u64::from(failed), u64::from(ok) + u64::from(failed));
        let in_a_row = policy.consecutive_failures.is_some_and(|limit| consecutive_failures >= limit.max(1));
        let by_rate = policy.failure_rate.is_some_and(|rate| {
            failed > 0 && total >= u64::from(rate.min_volume) && failed * 100 >= total * u64::from(rate.percent)
        });
        (in_a_row || by_rate).then(|| Severity { consecutive_failures, failed_per_mille: failed * 1000 / total.max(1) })
    }
}

/// Decides who is ejected, one per service.
///
/// ```
/// use std::time::Duration;
/// use metaroute_core::resilience::ejection::{EjectionPolicy, Ejector, OutcomeCounters, State};
///
/// let counters = [OutcomeCounters::new(), OutcomeCounters::new(), OutcomeCounters::new()];
/// let mut ejector = Ejector::new(EjectionPolicy::default());
/// for _ in 0..5 {
///     counters[1].record(false);
/// }
/// let transitions = ejector.tick(Duration::ZERO, counters.iter().enumerate());
/// assert_eq!(transitions.ejected, [1]);
/// assert_eq!(ejector.state(&1), State::Open);
/// assert_eq!(ejector.state(&2), State::Closed);
/// ```
#[derive(Debug)]
pub struct Ejector<K> {
    policy: EjectionPolicy,
    members: BTreeMap<K, Member>,
    ticks: u64,
}

impl<K: Ord + Clone> Ejector<K> {
    /// An ejector that knows no member yet.
    pub const fn new(policy: EjectionPolicy) -> Self {
        Self { policy, members: BTreeMap::new(), ticks: 0 }
    }

    /// The policy.
    pub const fn policy(&self) -> &EjectionPolicy {
        &self.policy
    }

    /// Replaces the policy; running ejections keep their end, and the new limits hold from the next tick on.
    pub const fn set_policy(&mut self, policy: EjectionPolicy) {
        self.policy = policy;
    }

    /// The state of a member; an unknown key is closed.
    pub fn state(&self, key: &K) -> State {
        self.members.get(key).map_or(State::Closed, |member| match member.breaker {
            Breaker::Closed { .. } => State::Closed,
            Breaker::Open { .. } => State::Open,
            Breaker::HalfOpen { .. } => State::HalfOpen,
        })
    }

    /// The members that are open or half open, in key order.
    pub fn ejected(&self) -> impl Iterator<Item = (&K, State)> {
        self.members.keys().map(|key| (key, self.state(key))).filter(|(_, state)| *state != State::Closed)
    }

    /// When the next tick is certain to change something, if any is: the earliest end of an ejection or of a probe's
    /// patience. Failures are seen only by ticks, so tick at a steady pace besides.
    pub fn next_deadline(&self) -> Option<Duration> {
        let deadline = |member: &Member| match member.breaker {
            Breaker::Closed { .. } => None,
            Breaker::Open { until } => Some(until),
            Breaker::HalfOpen { probe_deadline } => probe_deadline,
        };
        self.members.values().filter_map(deadline).min()
    }

    /// Takes in the outcomes since the last tick and moves the breakers.
    ///
    /// `members` are *all* instances of the service (of a key that comes twice the later counters are ignored); whoever
    /// is missing is forgotten. `now` must not run backwards.
    pub fn tick<'a>(
        &mut self,
        now: Duration,
        members: impl Iterator<Item = (K, &'a OutcomeCounters)>,
    ) -> Transitions<K> {
        self.ticks += 1;
        let mut transitions = Transitions { ejected: Vec::new(), half_open: Vec::new(), restored: Vec::new() };
        let mut suspects: Vec<Suspect<'a, K>> = Vec::new();
        let mut present: BTreeMap<K, &'a OutcomeCounters> = BTreeMap::new();
        for (key, counters) in members {
            present.entry(key).or_insert(counters);
        }
        for (key, counters) in &present {
            let policy = self.policy;
            let member = self.members.entry(key.clone()).or_insert_with(|| Member::new(now, &policy));
            member.seen = self.ticks;
            match member.advance(now, &policy, counters) {
                Some(State::Open) => transitions.ejected.push(key.clone()),
                Some(State::HalfOpen) => transitions.half_open.push(key.clone()),
                Some(State::Closed) => transitions.restored.push(key.clone()),
                None => {
                    if let Some(severity) = member.severity(&policy, counters) {
                        suspects.push(Suspect { severity, key: key.clone(), counters });
                    }
                }
            }
        }
        let ticks = self.ticks;
        self.members.retain(|_, member| member.seen == ticks);
        self.enforce_limit(now, suspects, &present, &mut transitions);
        transitions.ejected.sort();
        transitions.half_open.sort();
        transitions.restored.sort();
        transitions
    }

    /// Ejects the worst suspects up to the limit, or restores members where even those already out are too many.
    fn enforce_limit(
        &mut self,
        now: Duration,
        mut suspects: Vec<Suspect<'_, K>>,
        present: &BTreeMap<K, &OutcomeCounters>,
        transitions: &mut Transitions<K>,
    ) {
        let limit = self.policy.ejected_max(self.members.len());
        let mut out: Vec<(Duration, K)> = self
            .members
            .iter()
            .filter_map(|(key, member)| match member.breaker {
                Breaker::Closed { .. } => None,
                Breaker::Open { until } => Some((until, key.clone())),
                Breaker::HalfOpen { .. } => Some((Duration::ZERO, key.clone())),
            })
            .collect();
        if out.len() > limit {
            // Whoever is closest to coming back comes back: half open first, then by the end of the ejection.
            out.sort();
            for (_, key) in out.drain(..out.len() - limit) {
                if let Some(member) = self.members.get_mut(&key) {
                    member.close(now, &self.policy);
                }
                if let Some(counters) = present.get(&key) {
                    counters.clear();
                }
                transitions.ejected.retain(|ejected| *ejected != key);
                transitions.half_open.retain(|half_open| *half_open != key);
                transitions.restored.push(key);
            }
            return;
        }
        suspects.sort_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.key.cmp(&b.key)));
        for suspect in suspects.into_iter().take(limit - out.len()) {
            if let Some(member) = self.members.get_mut(&suspect.key) {
                member.open(now, &self.policy, suspect.counters);
                transitions.ejected.push(suspect.key);
            }
        }
    }
}

struct Suspect<'a, K> {
    severity: Severity,
    key: K,
    counters: &'a OutcomeCounters,
}

/// How bad a suspect is: the failures in a row, then the failed share in thousandths.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Severity {
    consecutive_failures: u32,
    failed_per_mille: u64,
}
