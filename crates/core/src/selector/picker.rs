//! Picking: the hot path and the guard that carries the outcome back.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;
use rand::Rng;

use super::{Selector, Shared};
use crate::choose::{Candidates, Turns, owner};
use crate::evaluate::Scratch;
use crate::fleet::Entry;
use crate::instance::{Instance, InstanceId};
use crate::metrics::Tally;
use crate::outcome::{NoPick, NoPickReason, Outcome, Reason};
use crate::pool::{Pool, Table, named};
use crate::request::Context;
use crate::resilience::ejection::ProbeOutcome;
use crate::rules::Balance;
use crate::snapshot::{Remembered, Snapshot, fingerprint};

/// Remembered answers a picker keeps at hand, so that a repeated request touches no shared memory.
const RECENT: usize = 16;

/// Remembered answers by fingerprint.
type Recent = [Option<(u64, Arc<Remembered>)>; RECENT];

/// Picks for one thread or task. Owns its random numbers, its turns and a handle on the snapshot; holds the snapshot it
/// last used until it is used again or dropped.
pub struct Picker {
    shared: Arc<Shared>,
    cache: Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>,
    turns: Turns,
    counts: Arc<Tally>,
    desk: Desk,
}

/// What a picker needs for picks that are more than a draw.
#[derive(Default)]
struct Desk {
    scratch: Scratch,
    recent: Box<Recent>,
    recent_revision: u64,
}

impl Desk {
    #[inline(never)]
    fn pick<'a, C: Context + ?Sized>(
        &'a mut self,
        shared: &Shared,
        snapshot: &'a Snapshot,
        turns: &mut Turns,
        counts: &Tally,
        request: &C,
        tried: &[InstanceId],
    ) -> Result<Pick<'a>, NoPick> {
        if self.recent_revision != snapshot.revision {
            *self.recent = [const { None }; RECENT];
            self.recent_revision = snapshot.revision;
        }
        let remembered = match &snapshot.pool {
            Some(_) => None,
            None => recall(snapshot, request, &mut self.recent),
        };
        let pool = snapshot.pool.as_deref().or(remembered.map(|remembered| &remembered.pool));
        let found = find(snapshot, pool, request, tried, turns, &mut self.scratch);
        counts.count(found.as_ref().map(|found| found.reason).map_err(|none| none.reason));
        if let Ok(found) = &found
            && let Some(rule) = found.reason.rule()
        {
            shared.counters.count_rule(rule);
        }
        found.map(|found| found.start(snapshot.revision))
    }
}

impl Picker {
    pub(super) fn new(shared: Arc<Shared>, turns: Turns) -> Self {
        Self {
            cache: Cache::new(Arc::clone(&shared.current)),
            counts: shared.counters.enter(),
            shared,
            turns,
            desk: Desk::default(),
        }
    }

    /// Picks an instance.
    ///
    /// # Errors
    /// [`NoPick`] with the reason and the counts per stage.
    #[inline]
    pub fn pick<C: Context + ?Sized>(&mut self, request: &C) -> Result<Pick<'_>, NoPick> {
        // Most picks are one draw from one table: that much is inlined, everything else is a call.
        let snapshot = self.cache.load();
        if let Some(pool) = &snapshot.pool
            && pool.plain
            && request.affinity().is_none()
            && let Ok(reason) = pool.verdict
        {
            let revision = snapshot.revision;
            self.counts.count_kind(pool.kind);
            let entry = &pool.entries[pool.alias.pick(self.turns.rng.next_u64())];
            return Ok(Pick { entry, reason, revision, use_: Use::default() });
        }
        self.desk.pick(&self.shared, snapshot, &mut self.turns, &self.counts, request, &[])
    }

    /// Picks an instance that is not among `tried`; see [`super::Selector::select_next`].
    ///
    /// # Errors
    /// [`NoPick`] with the reason and the counts per stage.
    pub fn pick_next<C: Context + ?Sized>(&mut self, request: &C, tried: &[InstanceId]) -> Result<Pick<'_>, NoPick> {
        let snapshot = self.cache.load();
        self.desk.pick(&self.shared, snapshot, &mut self.turns, &self.counts, request, tried)
    }

    /// Revision of the snapshot the next pick would use.
    pub fn revision(&mut self) -> u64 {
        self.cache.load().revision
    }
}

impl Drop for Picker {
    fn drop(&mut self) {
        self.shared.counters.leave(&self.counts);
    }
}

impl fmt::Debug for Picker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Picker").finish_non_exhaustive()
    }
}

/// The remembered answer to a request, from the picker's own few or from the snapshot.
fn recall<'a, C: Context + ?Sized>(snapshot: &Snapshot, request: &C, recent: &'a mut Recent) -> Option<&'a Remembered> {
    let reads = &snapshot.view.plan.reads;
    let key = fingerprint(reads, request);
    let place = &mut recent[key as usize % RECENT];
    let here = place.as_ref().is_some_and(|(have, remembered)| *have == key && remembered.answers(reads, request));
    if !here {
        match snapshot.memo.load().get(&key) {
            Some(remembered) if remembered.answers(reads, request) => *place = Some((key, Arc::clone(remembered))),
            _ => {
                snapshot.misses.note(reads, request);
                return None;
            }
        }
    }
    place.as_ref().map(|(_, remembered)| &**remembered)
}

/// What a pick found.
struct Found<'a> {
    entry: &'a Arc<Entry>,
    reason: Reason,
    probe: bool,
    tracked: bool,
}

impl<'a> Found<'a> {
    fn begin(&self) -> Use {
        if self.tracked {
            self.entry.state.in_flight.fetch_add(1, Ordering::Relaxed);
        }
        Use { tracked: self.tracked, probe: self.probe }
    }

    fn start(self, revision: u64) -> Pick<'a> {
        Pick { entry: self.entry, reason: self.reason, revision, use_: self.begin() }
    }
}

/// The general way to a pick: affinity, half-open probes, then the balancer, then the same without exclusion.
fn find<'a, C: Context + ?Sized>(
    snapshot: &'a Snapshot,
    pool: Option<&Pool>,
    request: &C,
    tried: &[InstanceId],
    turns: &mut Turns,
    scratch: &mut Scratch,
) -> Result<Found<'a>, NoPick> {
    let plan = &snapshot.view.plan;
    let tracked =
        matches!(plan.set.balance, Balance::LeastActive | Balance::PeakEwma) || plan.set.hash.bounded_load.is_some();
    let verdict = match pool {
        Some(pool) => pool.verdict,
        None => {
            let in_turn = matches!(plan.set.balance, Balance::RoundRobin | Balance::SmoothWeightedRoundRobin);
            snapshot.view.evaluate(request, in_turn, scratch, None)
        }
    };
    let owners = pool.map_or(&scratch.owners, |pool| &pool.owners);
    if let Some(entry) = owner(snapshot, owners, request, tried) {
        return Ok(Found { entry, reason: Reason::Affinity, probe: false, tracked });
    }
    let probes = match pool {
        Some(pool) => !pool.probes.is_empty(),
        None => !snapshot.view.half_open.is_empty(),
    };
    if probes {
        let probing = |slot: u32| match pool {
            Some(pool) => pool.probes.get(slot as usize),
            None => scratch.probes.get(slot as usize) && snapshot.view.half_open.get(slot as usize),
        };
        for &slot in snapshot.view.fleet.order.iter().filter(|&&slot| probing(slot)) {
            let entry = snapshot.view.fleet.entry(slot);
            if !tried.contains(&entry.instance.id) && entry.state.outcomes.try_probe() {
                let reason = verdict.unwrap_or(Reason::Matched);
                return Ok(Found { entry, reason, probe: true, tracked });
            }
        }
    }
    let none = |reason| {
        let stages = match pool {
            Some(pool) => Arc::clone(&pool.stages),
            None => named(&snapshot.view, &snapshot.tallies(request)),
        };
        NoPick { reason, revision: snapshot.revision, stages }
    };
    let reason = verdict.map_err(none)?;
    let candidates = match pool {
        Some(pool) => Candidates::of(snapshot, pool),
        None => {
            scratch.finish(&snapshot.view);
            Candidates {
                snapshot,
                slots: &scratch.members,
                shares: &scratch.shares,
                alias: None,
                even: scratch.even,
                table: &Table::None,
                open: &scratch.open_slots,
            }
        }
    };
    if let Some(entry) = candidates.choose(request, turns, tried) {
        return Ok(Found { entry, reason, probe: false, tracked });
    }
    if plan.set.reuse_tried
        && !tried.is_empty()
        && let Some(entry) = candidates.choose(request, turns, &[])
    {
        return Ok(Found { entry, reason: Reason::ExclusionRelaxed, probe: false, tracked });
    }
    Err(none(NoPickReason::Excluded))
}

/// Pickers a thread keeps for the convenient form of picking.
const KEPT: usize = 16;

thread_local! {
    static OWN: RefCell<Vec<Picker>> = const { RefCell::new(Vec::new()) };
}

/// Calls `pick` with this thread's picker for a selector.
#[inline]
pub(super) fn with_own<R>(selector: &Selector, pick: impl FnOnce(&mut Picker) -> R) -> R {
    OWN.with(|own| match own.try_borrow_mut() {
        Ok(mut own) => {
            let number = selector.shared.number;
            let at = match own.iter().position(|picker| picker.shared.number == number) {
                Some(at) => at,
                None => keep(&mut own, selector.picker()),
            };
            pick(&mut own[at])
        }
        // A request that picks while it is being read gets a picker of its own.
        Err(_) => pick(&mut selector.picker()),
    })
}

/// Keeps a picker, in the place of one whose selector is gone or, failing that, of the oldest.
#[cold]
fn keep(own: &mut Vec<Picker>, picker: Picker) -> usize {
    own.retain(|picker| Arc::strong_count(&picker.shared) > 1);
    if own.len() == KEPT {
        own.remove(0);
    }
    own.push(picker);
    own.len() - 1
}

/// What must be given back when a pick ends.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// Counted as in flight.
    tracked: bool,
    /// Holds the permit to probe a half-open instance.
    probe: bool,
}

impl Use {
    fn end(self, entry: &Entry, result: Option<(Outcome, Duration)>) {
        if self.tracked {
            entry.state.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some((outcome, latency)) = result {
            if self.tracked {
                entry.state.record_latency(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
            }
            if !self.probe {
                entry.state.outcomes.record(outcome == Outcome::Success);
            }
            if outcome == Outcome::Failure || self.probe {
                entry.attention.store(true, Ordering::Relaxed);
            }
        }
        if self.probe {
            entry.state.outcomes.probe_done(match result {
                Some((Outcome::Success, _)) => ProbeOutcome::Ok,
                Some((Outcome::Failure, _)) => ProbeOutcome::Failed,
                None => ProbeOutcome::Abandoned,
            });
        }
    }
}

/// A picked instance, borrowed from its picker. Report the outcome with [`Pick::complete`]; dropping it without one
/// means the call was abandoned: it is no longer in flight and says nothing about the instance.
pub struct Pick<'a> {
    entry: &'a Arc<Entry>,
    reason: Reason,
    revision: u64,
    use_: Use,
}

impl Pick<'_> {
    /// The instance to call.
    pub fn instance(&self) -> &Instance {
        &self.entry.instance
    }

    /// Why this one.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Revision of the snapshot it comes from.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Reports how the call ended and how long it took.
    pub fn complete(mut self, outcome: Outcome, latency: Duration) {
        std::mem::take(&mut self.use_).end(self.entry, Some((outcome, latency)));
    }

    /// The same pick, free of its picker: for calls that cross an await.
    pub fn into_owned(mut self) -> OwnedPick {
        OwnedPick {
            entry: Arc::clone(self.entry),
            reason: self.reason,
            revision: self.revision,
            use_: std::mem::take(&mut self.use_),
        }
    }
}

impl Drop for Pick<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.use_.tracked || self.use_.probe {
            self.use_.end(self.entry, None);
        }
    }
}

impl fmt::Debug for Pick<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show("Pick", self.instance(), self.reason, self.revision, f)
    }
}

/// A picked instance that stands on its own; otherwise as [`Pick`].
pub struct OwnedPick {
    entry: Arc<Entry>,
    reason: Reason,
    revision: u64,
    use_: Use,
}

impl OwnedPick {
    /// The instance to call.
    pub fn instance(&self) -> &Instance {
        &self.entry.instance
    }

    /// Why this one.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Revision of the snapshot it comes from.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Reports how the call ended and how long it took.
    pub fn complete(mut self, outcome: Outcome, latency: Duration) {
        std::mem::take(&mut self.use_).end(&self.entry, Some((outcome, latency)));
    }
}

impl Drop for OwnedPick {
    fn drop(&mut self) {
        if self.use_.tracked || self.use_.probe {
            self.use_.end(&self.entry, None);
        }
    }
}

impl fmt::Debug for OwnedPick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show("OwnedPick", self.instance(), self.reason, self.revision, f)
    }
}

fn show(name: &str, instance: &Instance, reason: Reason, revision: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(name).field("instance", &instance.id).field("reason", &reason).field("revision", &revision).finish()
}

impl Snapshot {
    /// Named stages of a request, evaluated afresh.
    pub(super) fn stages<C: Context + ?Sized>(&self, request: &C) -> Arc<[crate::outcome::Stage]> {
        named(&self.view, &self.tallies(request))
    }

    /// Stage counts of a request that was not remembered; only for requests that got nothing.
    fn tallies<C: Context + ?Sized>(&self, request: &C) -> Vec<crate::outcome::StageTally> {
        let mut scratch = Scratch::default();
        // The verdict is known to the caller.
        let _ = self.view.evaluate(request, false, &mut scratch, None);
        scratch.stages
    }
}
