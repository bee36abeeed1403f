//! Counters that picks leave behind, without a shared write per pick.
//!
//! A [`crate::Picker`] counts in its own memory and hands the sums over now and then, to one of a few striped counters.
//! A picker that rests keeps what it counted last: the sums of picks may lag by up to 255 per picker. Requests that got
//! nothing are counted at once.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::intake::{Freshness, Hold, Rejects};
use crate::outcome::{NoPickReason, Reason};

/// Sums over the life of a selector and its state now.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Metrics {
    /// Picks by reason code (`fallback` without its number).
    pub picks: Vec<(&'static str, u64)>,
    /// Requests that got no instance, by reason code.
    pub no_picks: Vec<(&'static str, u64)>,
    /// Picks that came through a fallback or a relaxed rule, by rule name.
    pub fallbacks: Vec<(String, u64)>,
    /// Instances left out at intake.
    pub rejects: Rejects,
    /// Why the latest push is being held back, if it is.
    pub held: Option<Hold>,
    /// All the time pushes were held back.
    pub held_total: Duration,
    /// Time since the registry last confirmed or changed the list; `None` before the first list.
    pub age: Option<Duration>,
    /// What the registry layer says about its source.
    pub freshness: Freshness,
    /// Revision of the current snapshot; grows by one with each publication.
    pub revision: u64,
    /// Instances in the current snapshot.
    pub instances: usize,
    /// How many of them are usable.
    pub usable: usize,
    /// How many are ejected.
    pub ejected: usize,
    /// How many are warming up.
    pub warming: usize,
    /// Everybody is new, so nobody is held back.
    pub warmup_suspended: bool,
    /// Request-dependent answers remembered in the current snapshot.
    pub memo: usize,
}

/// Counts of one picker or stripe.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    picks: [AtomicU64; Reason::KINDS],
    no_picks: [AtomicU64; NoPickReason::ALL.len()],
}

impl Tally {
    fn add(&self, verdict: Result<Reason, NoPickReason>, n: u64) {
        match verdict {
            Ok(reason) => self.picks[reason.kind()].fetch_add(n, Ordering::Relaxed),
            Err(reason) => self.no_picks[reason as usize].fetch_add(n, Ordering::Relaxed),
        };
    }
}

/// Stripes of the shared counters: enough that the cores of a usual server rarely meet.
const STRIPES: usize = 16;

/// Counters shared by everything that picks from one selector.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    stripes: [Tally; STRIPES],
    /// By index of the rule in the current set; started anew when rules are replaced.
    pub(crate) rules: ArcSwap<Vec<AtomicU64>>,
}

impl Counters {
    /// The stripe of this thread.
    fn stripe(&self) -> &Tally {
        thread_local!(static STRIPE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        &self.stripes[STRIPE.with(|stripe| *stripe)]
    }

    pub(crate) fn count_rule(&self, rule: usize, n: u64) {
        if let Some(counter) = self.rules.load().get(rule) {
            counter.fetch_add(n, Ordering::Relaxed);
        }
    }

    pub(crate) fn picks(&self) -> Vec<(&'static str, u64)> {
        let sum = |kind: usize| self.stripes.iter().map(|s| s.picks[kind].load(Ordering::Relaxed)).sum();
        Reason::KIND_NAMES.iter().enumerate().map(|(kind, &name)| (name, sum(kind))).collect()
    }

    pub(crate) fn no_picks(&self) -> Vec<(&'static str, u64)> {
        let sum = |reason: NoPickReason| {
            self.stripes.iter().map(|s| s.no_picks[reason as usize].load(Ordering::Relaxed)).sum()
        };
        NoPickReason::ALL.iter().map(|&reason| (reason.code(), sum(reason))).collect()
    }
}

/// Counts kept by one picker until they are handed over: most picks in a row have the same reason, so a run length is
/// all there is to keep.
#[derive(Debug, Default)]
pub(crate) struct LocalCounts {
    last: Option<Result<Reason, NoPickReason>>,
    /// Revision of the fixed answer that `last` belongs to; 0 when it came from anywhere else.
    revision: u64,
    run: u64,
}

/// Picks of one kind counted before they are handed over.
const RUN_MAX: u64 = 256;

impl LocalCounts {
    /// Counts one pick of the fixed answer of a revision, which has one reason.
    #[inline]
    pub(crate) fn count_fixed(&mut self, revision: u64, reason: Reason, counters: &Counters) {
        if self.revision == revision && self.run < RUN_MAX {
            self.run += 1;
        } else {
            self.begin(Ok(reason), counters);
            self.revision = revision;
        }
    }

    /// Counts one. A request that got nothing is counted at once: it is rare, no hurry is lost on it, and somebody may
    /// wait to be alarmed.
    pub(crate) fn count(&mut self, verdict: Result<Reason, NoPickReason>, counters: &Counters) {
        if verdict.is_err() {
            counters.stripe().add(verdict, 1);
        } else if self.last == Some(verdict) && self.run < RUN_MAX {
            self.run += 1;
            self.revision = 0;
        } else {
            self.begin(verdict, counters);
        }
    }

    #[cold]
    fn begin(&mut self, verdict: Result<Reason, NoPickReason>, counters: &Counters) {
        self.flush(counters);
        self.last = Some(verdict);
        self.run = 1;
    }

    pub(crate) fn flush(&mut self, counters: &Counters) {
        if let Some(verdict) = self.last.take() {
            counters.stripe().add(verdict, self.run);
            if let Ok(reason) = verdict
                && let Some(rule) = reason.rule()
            {
                counters.count_rule(rule, self.run);
            }
        }
        self.run = 0;
        self.revision = 0;
    }
}
