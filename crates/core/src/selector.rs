//! The live choice between the instances of one service.
//!
//! [`Selector`] takes what a registry saw (`apply`), lets time pass (`tick`) and publishes immutable snapshots.
//! Picking reads a snapshot and nothing else: no lock, no clock, no allocation. Time is a [`Duration`] since any fixed
//! moment the caller likes, as long as it never runs backwards.

mod builder;
mod picker;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use rand::SeedableRng;
use rand::rngs::SmallRng;

pub use picker::{OwnedPick, Pick, Picker};

use crate::choose::Turns;
use crate::explain::{Distribution, Explanation};
use crate::extension::Extensions;
use crate::hash::mix64;
use crate::instance::{Instance, InstanceId};
use crate::intake::{Freshness, GuardOptions, Update};
use crate::metrics::{Counters, Metrics};
use crate::outcome::{NoPick, Stage};
use crate::plan::RuleError;
use crate::request::{Context, Request, RequestSlot};
use crate::rules::RuleSet;
use crate::snapshot::Snapshot;
use builder::Builder;

/// What a selector is given besides rules.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// When to doubt a push.
    pub guard: GuardOptions,
    /// Seed of every random choice; the same seed and inputs give the same picks.
    pub seed: u64,
    /// Custom routers and balancers.
    pub extensions: Extensions,
    /// The caller's own metadata: `$caller.key`, and `cluster`, `zone`, `region` for the preferences.
    pub caller: BTreeMap<String, String>,
}

/// Routes calls to the instances of one service. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Selector {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) current: Arc<ArcSwap<Snapshot>>,
    pub(crate) counters: Counters,
    /// Something happened that the next tick should look at soon.
    attention: Arc<AtomicBool>,
    builder: Mutex<Builder>,
    /// Different for every selector of the process.
    number: u64,
    seed: u64,
    pickers: AtomicU64,
}

impl Selector {
    /// A selector that has seen no instance yet.
    ///
    /// # Errors
    /// When a rule does not bind, names an unknown router or balancer, or a number is out of range.
    pub fn new(rules: RuleSet, options: Options) -> Result<Self, RuleError> {
        let seed = options.seed;
        let (builder, snapshot) = Builder::new(rules, options)?;
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let shared = Shared {
            current: Arc::new(ArcSwap::from_pointee(snapshot)),
            counters: Counters::default(),
            attention: Arc::clone(&builder.attention),
            builder: Mutex::new(builder),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            seed,
            pickers: AtomicU64::new(0),
        };
        let selector = Self { shared: Arc::new(shared) };
        selector.builder().count_rules(&selector.shared.counters);
        Ok(selector)
    }

    fn builder(&self) -> MutexGuard<'_, Builder> {
        // A panic while building leaves the last published snapshot serving; the builder's own state is replaced step
        // by step and stays usable.
        self.shared.builder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a registry saw at `now`.
    pub fn apply(&self, update: Update, now: Duration) {
        self.builder().apply(update, now, &self.shared.current);
    }

    /// Takes the registry layer's word on how far the current list can be trusted.
    pub fn set_freshness(&self, freshness: Freshness, now: Duration) {
        self.builder().set_freshness(freshness, now, &self.shared.current);
    }

    /// Replaces the rules. The instances, their state and the request slots stay.
    ///
    /// # Errors
    /// As [`Selector::new`]; the old rules stay in force then.
    pub fn set_rules(&self, rules: RuleSet, now: Duration) -> Result<(), RuleError> {
        let mut builder = self.builder();
        builder.set_rules(rules, now, &self.shared.current)?;
        builder.count_rules(&self.shared.counters);
        Ok(())
    }

    /// Lets time pass: warm-ups, ejections, held pushes, merged changes and remembered answers. Returns when it must be
    /// called next, or `None` when only an update or [`Selector::wants_tick`] makes that necessary.
    pub fn tick(&self, now: Duration) -> Option<Duration> {
        self.shared.attention.store(false, Ordering::Relaxed);
        self.builder().tick(now, &self.shared.current)
    }

    /// Whether something asks for a tick before the time the last one returned: a request-dependent answer to build, or
    /// a failure that may eject an instance. Cheap enough to poll ten times a second.
    pub fn wants_tick(&self) -> bool {
        self.shared.attention.load(Ordering::Relaxed) || self.shared.current.load().misses.pending()
    }

    /// The slot of a `$req` key; `None` when no rule reads it.
    pub fn slot(&self, name: &str) -> Option<RequestSlot> {
        self.builder().slots().find(name)
    }

    /// A request with these `$req` values. Values that no rule reads are left out.
    pub fn request<'a>(&self, values: impl IntoIterator<Item = (&'a str, &'a str)>) -> Request {
        let builder = self.builder();
        let slots = builder.slots();
        values.into_iter().fold(Request::default(), |request, (name, value)| match slots.find(name) {
            Some(slot) => request.with(slot, value),
            None => request,
        })
    }

    /// The `$req` keys that rules read or have read, with their slots, in slot order.
    pub fn request_keys(&self) -> Vec<(String, RequestSlot)> {
        self.builder().slots().all().map(|(name, slot)| (name.to_owned(), slot)).collect()
    }

    /// Whether requests with different values may get different candidates under the rules in force.
    pub fn depends_on_request(&self) -> bool {
        self.shared.current.load().pool.is_none()
    }

    /// What each stage did for a request, in order; where no rule reads the request this costs nothing.
    pub fn stages<C: Context + ?Sized>(&self, request: &C) -> Arc<[Stage]> {
        let snapshot = self.shared.current.load();
        match &snapshot.pool {
            Some(pool) => Arc::clone(&pool.stages),
            None => snapshot.stages(request),
        }
    }

    /// A picker of its own, for one thread or task: the fastest way to pick.
    pub fn picker(&self) -> Picker {
        let number = self.shared.pickers.fetch_add(1, Ordering::Relaxed);
        self.make_picker(number, false)
    }

    /// A picker whose round robins begin at their start, so that a sequence is what the textbook shows. Fresh clients
    /// in production should not all begin there: use [`Selector::picker`].
    pub fn picker_aligned(&self) -> Picker {
        self.make_picker(0, true)
    }

    fn make_picker(&self, number: u64, aligned: bool) -> Picker {
        let seed = mix64(self.shared.seed ^ mix64(number.wrapping_add(1)));
        Picker::new(Arc::clone(&self.shared), Turns::new(SmallRng::seed_from_u64(seed), aligned))
    }

    /// Picks an instance: the convenient form, from any thread. It uses a [`Picker`] that the thread keeps for this
    /// selector; a thread keeps a few and drops those of selectors that nobody else holds.
    ///
    /// # Errors
    /// [`NoPick`] with the reason and the counts per stage.
    pub fn select<C: Context + ?Sized>(&self, request: &C) -> Result<OwnedPick, NoPick> {
        picker::with_own(self, |picker| picker.pick(request).map(Pick::into_owned))
    }

    /// Picks an instance that is not among `tried`. When all candidates are, one of them is offered again with reason
    /// `exclusion_relaxed`, unless the rules forbid that.
    ///
    /// # Errors
    /// [`NoPick`] with the reason and the counts per stage.
    pub fn select_next<C: Context + ?Sized>(&self, request: &C, tried: &[InstanceId]) -> Result<OwnedPick, NoPick> {
        picker::with_own(self, |picker| picker.pick_next(request, tried).map(Pick::into_owned))
    }

    /// Says for every instance what kept or dropped it and its exact probability.
    pub fn explain<C: Context + ?Sized>(&self, request: &C) -> Explanation {
        crate::explain::explain(&self.shared.current.load(), request)
    }

    /// Exact shares by instance, without the explanation.
    pub fn distribution<C: Context + ?Sized>(&self, request: &C) -> Distribution {
        crate::explain::distribution(&self.shared.current.load(), request)
    }

    /// The instances of the current snapshot, in id order.
    pub fn instances(&self) -> Vec<Instance> {
        let snapshot = self.shared.current.load();
        let fleet = &snapshot.view.fleet;
        fleet.order.iter().map(|&slot| fleet.entry(slot).instance.clone()).collect()
    }

    /// Whether a registry has answered yet.
    pub fn is_resolved(&self) -> bool {
        self.shared.current.load().view.known != crate::view::Known::Unresolved
    }

    /// Revision of the current snapshot.
    pub fn revision(&self) -> u64 {
        self.shared.current.load().revision
    }

    /// The rules in force.
    pub fn rules(&self) -> RuleSet {
        self.shared.current.load().view.plan.set.clone()
    }

    /// Sums and state at `now`, for a metrics page.
    pub fn metrics(&self, now: Duration) -> Metrics {
        self.builder().metrics(now, &self.shared.current.load(), &self.shared.counters)
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let snapshot = self.shared.current.load();
        f.debug_struct("Selector")
            .field("revision", &snapshot.revision)
            .field("instances", &snapshot.view.fleet.order.len())
            .finish_non_exhaustive()
    }
}
