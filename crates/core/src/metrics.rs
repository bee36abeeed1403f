//! Counters that picks leave behind, without a shared write per pick.
//!
//! Every picker writes counters of its own, on cache lines of its own, and whoever asks sums them up: exact at any
//! moment, and a pick pays for a plain store. Picks through a fallback or a relaxed rule are counted per rule as well,
//! in one shared counter: that is the exception, not the path every pick takes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::intake::{Freshness, Hold, Rejects};
use crate::outcome::{NoPickReason, Reason};

/// Sums over the life of a selector and its state now.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Metrics {
    /// Picks by reason code (`fallback` without its number).
    pub picks: ByCode,
    /// Requests that got no instance, by reason code.
    pub no_picks: ByCode,
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

/// Sums by stable code.
pub type ByCode = Vec<(&'static str, u64)>;

/// Counts of one picker.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    picks: [AtomicU64; Reason::KINDS],
    no_picks: [AtomicU64; NoPickReason::ALL.len()],
}

impl Tally {
    /// Counts one.
    #[inline]
    pub(crate) fn count(&self, verdict: Result<Reason, NoPickReason>) {
        match verdict {
            Ok(reason) => self.count_kind(reason.kind()),
            Err(reason) => increment(&self.no_picks[reason as usize]),
        }
    }

    /// Counts a pick whose kind is known already: [`Reason::kind`].
    #[inline]
    pub(crate) fn count_kind(&self, kind: usize) {
        increment(&self.picks[kind % Reason::KINDS]);
    }

    fn absorb(&self, other: &Tally) {
        for (sum, n) in self.picks.iter().zip(&other.picks).chain(self.no_picks.iter().zip(&other.no_picks)) {
            sum.fetch_add(n.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// Only the owner of a tally writes it, so a load and a store do.
#[inline]
fn increment(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Counters of everything that picks from one selector.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Of pickers that are gone.
    retired: Tally,
    live: Mutex<Vec<Arc<Tally>>>,
    /// By index of the rule in the current set; started anew when rules are replaced.
    pub(crate) rules: ArcSwap<Vec<AtomicU64>>,
}

impl Counters {
    /// Counters for a new picker.
    pub(crate) fn enter(&self) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        self.live().push(Arc::clone(&tally));
        tally
    }

    /// Takes over the counters of a picker that goes.
    pub(crate) fn leave(&self, tally: &Arc<Tally>) {
        let mut live = self.live();
        if let Some(at) = live.iter().position(|known| Arc::ptr_eq(known, tally)) {
            live.swap_remove(at);
            self.retired.absorb(tally);
        }
    }

    fn live(&self) -> MutexGuard<'_, Vec<Arc<Tally>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count_rule(&self, rule: usize) {
        if let Some(counter) = self.rules.load().get(rule) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Picks and refusals by code.
    pub(crate) fn sums(&self) -> (ByCode, ByCode) {
        let total = Tally::default();
        let live = self.live();
        total.absorb(&self.retired);
        live.iter().for_each(|tally| total.absorb(tally));
        let sum = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let picks = Reason::KIND_NAMES.iter().copied().zip(total.picks.iter().map(sum)).collect();
        let codes = NoPickReason::ALL.iter().map(|reason| reason.code());
        (picks, codes.zip(total.no_picks.iter().map(sum)).collect())
    }
}
