//! The writing side of a selector: one lock, one writer, one publication per change or merge window.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Options;
use crate::bitset::BitSet;
use crate::evaluate::Scratch;
use crate::extension::Extensions;
use crate::fleet::{Entry, Fleet, State};
use crate::hash::socket_text;
use crate::instance::Instance;
use crate::intake::{Freshness, GuardOptions, Held, Rejects, Update};
use crate::metrics::{Counters, Metrics};
use crate::plan::{Plan, RequestSlots, RuleError};
use crate::pool::HashTable;
use crate::resilience::ejection::Ejector;
use crate::rules::{Balance, RuleSet};
use crate::snapshot::{Memo, Misses, Snapshot};
use crate::view::{Known, View};

/// How often shares follow the ramp while somebody warms up.
const WARMUP_STEP: Duration = Duration::from_secs(1);

/// How often outcomes are looked at while ejection is on.
const EJECTION_STEP: Duration = Duration::from_secs(1);

/// Above this many changed slots whole columns are read again instead of single slots.
const SINGLE_SLOTS_MAX: usize = 512;

/// Times of one slot.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// When this client first saw it ready; `None` while it was not, and for the first list, whose age nobody knows.
    ready_since: Option<Duration>,
    /// Came with the first list, or was ready when the ramp was over.
    warm: bool,
    /// Since when its weight is 0.
    zero_since: Option<Duration>,
}

pub(super) struct Builder {
    view: View,
    slots: RequestSlots,
    extensions: Extensions,
    guard: GuardOptions,
    rejects: Rejects,
    times: Vec<Times>,
    held: Option<Held>,
    held_total: Duration,
    freshness: Freshness,
    confirmed: Option<Duration>,
    last_published: Option<Duration>,
    /// Changes wait for the end of the merge window.
    dirty: bool,
    revision: u64,
    next_epoch: u64,
    warmup_suspended: bool,
    warming: usize,
    ramp_at: Option<Duration>,
    ejector: Option<Ejector<u64>>,
    pub(super) attention: Arc<AtomicBool>,
    scratch: Scratch,
}

impl Builder {
    pub(super) fn new(rules: RuleSet, options: Options) -> Result<(Self, Snapshot), RuleError> {
        let mut slots = RequestSlots::default();
        let plan = Plan::compile(rules, options.caller, &options.extensions, &mut slots)?;
        let ejector = plan.set.ejection.map(Ejector::new);
        let mut builder = Self {
            view: View::empty(plan),
            slots,
            extensions: options.extensions,
            guard: options.guard,
            rejects: Rejects::default(),
            times: Vec::new(),
            held: None,
            held_total: Duration::ZERO,
            freshness: Freshness::Fresh,
            confirmed: None,
            last_published: None,
            dirty: false,
            revision: 0,
            next_epoch: 1,
            warmup_suspended: false,
            warming: 0,
            ramp_at: None,
            ejector,
            attention: Arc::default(),
            scratch: Scratch::default(),
        };
        let snapshot = builder.snapshot(None);
        Ok((builder, snapshot))
    }

    pub(super) fn slots(&self) -> &RequestSlots {
        &self.slots
    }

    /// Starts the per-rule counters of the current rules anew.
    pub(super) fn count_rules(&self, counters: &Counters) {
        let fresh: Vec<AtomicU64> = self.view.plan.set.rules.iter().map(|_| AtomicU64::new(0)).collect();
        counters.rules.store(Arc::new(fresh));
    }

    pub(super) fn apply(&mut self, update: Update, now: Duration, current: &ArcSwap<Snapshot>) {
        self.confirmed = Some(now);
        self.freshness = Freshness::Fresh;
        match update {
            Update::Snapshot(list) => {
                let list = self.rejects.sift(list);
                self.offer(list, false, now, current);
            }
            Update::UnknownService => self.offer(Vec::new(), true, now, current),
            Update::Emptied => {
                self.release(now);
                self.install(Vec::new(), Known::Yes, now);
                self.publish_or_wait(now, current);
            }
            Update::Delta { upsert, remove } => {
                let upsert = self.rejects.sift(upsert);
                let from = self.view.fleet.order.len();
                // A registry may name an id twice; it goes once. One that is both removed and added is replaced.
                let mut gone: Vec<u32> = remove.iter().filter_map(|id| self.view.fleet.find(id.as_str())).collect();
                gone.sort_unstable();
                gone.dedup();
                let doubtful = self.guard.doubt(from, from - gone.len()).is_some();
                if self.held.is_some() || doubtful {
                    let base = match &self.held {
                        Some(held) => held.list.clone(),
                        None => self.list(),
                    };
                    let replaced: FxHashSet<&str> =
                        upsert.iter().map(|i| i.id.as_str()).chain(remove.iter().map(|id| id.as_str())).collect();
                    let mut list: Vec<Instance> =
                        base.into_iter().filter(|instance| !replaced.contains(instance.id.as_str())).collect();
                    list.extend(upsert);
                    list.sort_by(|a, b| a.id.cmp(&b.id));
                    self.offer(list, false, now, current);
                } else {
                    let fleet = &self.view.fleet;
                    let slots = upsert.into_iter().map(|instance| {
                        let slot = fleet.find(instance.id.as_str());
                        (slot.filter(|slot| gone.binary_search(slot).is_err()), instance)
                    });
                    let differs = |(slot, instance): &(Option<u32>, Instance)| {
                        slot.is_none_or(|slot| fleet.entry(slot).instance != *instance)
                    };
                    let upsert = slots.filter(differs).collect();
                    self.change(upsert, gone, now);
                    self.view.known = Known::Yes;
                    self.publish_or_wait(now, current);
                }
            }
        }
    }

    fn list(&self) -> Vec<Instance> {
        let fleet = &self.view.fleet;
        fleet.order.iter().map(|&slot| fleet.entry(slot).instance.clone()).collect()
    }

    /// Installs a whole list, or holds it back.
    fn offer(&mut self, list: Vec<Instance>, unknown_service: bool, now: Duration, current: &ArcSwap<Snapshot>) {
        if let Some(why) = self.guard.doubt(self.view.fleet.order.len(), list.len()) {
            let since = self.held.as_ref().map_or(now, |held| held.since);
            let fresh = self.held.is_none();
            self.held = Some(Held { why, since, list, unknown_service });
            if fresh || now >= since + self.guard.confirm_after {
                if now >= since + self.guard.confirm_after {
                    self.believe(now);
                }
                self.publish_or_wait(now, current);
            }
            return;
        }
        self.release(now);
        self.install(list, if unknown_service { Known::Unknown } else { Known::Yes }, now);
        self.publish_or_wait(now, current);
    }

    /// Drops a held list: the registry took it back.
    fn release(&mut self, now: Duration) {
        if let Some(held) = self.held.take() {
            self.held_total += now.saturating_sub(held.since);
        }
    }

    /// Installs the held list: nobody took it back in time.
    fn believe(&mut self, now: Duration) {
        if let Some(held) = self.held.take() {
            self.held_total += now.saturating_sub(held.since);
            self.install(held.list, if held.unknown_service { Known::Unknown } else { Known::Yes }, now);
        }
    }

    fn install(&mut self, list: Vec<Instance>, known: Known, now: Duration) {
        self.view.known = known;
        let fleet = &self.view.fleet;
        let mut removed: Vec<u32> = Vec::new();
        let mut changed: Vec<(Option<u32>, Instance)> = Vec::new();
        // Both sides are in id order.
        let mut list = list.into_iter().peekable();
        for &slot in &fleet.order {
            let old = &fleet.entry(slot).instance;
            while let Some(new) = list.next_if(|new| new.id < old.id) {
                changed.push((None, new));
            }
            match list.next_if(|new| new.id == old.id) {
                Some(new) if new == *old => {}
                Some(new) => changed.push((Some(slot), new)),
                None => removed.push(slot),
            }
        }
        changed.extend(list.map(|new| (None, new)));
        self.change(changed, removed, now);
    }

    /// Applies changes to the fleet and to everything derived from it: new or different instances with the slots their
    /// ids have, and slots to empty.
    fn change(&mut self, upsert: Vec<(Option<u32>, Instance)>, removed: Vec<u32>, now: Duration) {
        let plan = Arc::clone(&self.view.plan);
        let keys = plan.keys.keys();
        // Nobody knows how old the members of the first list are; ramping a whole fleet up because this client started
        // would be wrong.
        let first = self.view.fleet.order.is_empty() && self.last_published.is_none();
        self.view.fleet.remove(&removed);
        for &slot in &removed {
            self.times[slot as usize] = Times::default();
        }
        let mut touched = removed;
        let mut fresh = Vec::new();
        for (slot, instance) in upsert {
            let Some(slot) = slot else {
                let entry = self.entry(instance);
                fresh.push(entry);
                continue;
            };
            let old = Arc::clone(self.view.fleet.entry(slot));
            let entry = if old.instance.incarnation == instance.incarnation {
                Entry {
                    instance,
                    state: Arc::clone(&old.state),
                    epoch: old.epoch,
                    attention: Arc::clone(&old.attention),
                }
            } else {
                self.times[slot as usize] = Times::default();
                self.entry(instance)
            };
            self.view.fleet.replace(slot, entry, keys);
            touched.push(slot);
        }
        touched.extend(self.view.fleet.put_new(fresh, keys));
        self.times.resize(self.view.fleet.slots(), Times::default());
        if touched.len() > SINGLE_SLOTS_MAX {
            self.view.refresh_all();
        } else {
            for &slot in &touched {
                self.view.refresh_slot(slot);
            }
        }
        for &slot in &touched {
            self.note_times(slot, first, now);
        }
        if !touched.is_empty() {
            self.forget_ejections(&touched);
        }
    }

    fn entry(&mut self, instance: Instance) -> Entry {
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        Entry { instance, state: Arc::new(State::default()), epoch, attention: Arc::clone(&self.attention) }
    }

    fn note_times(&mut self, slot: u32, first: bool, now: Duration) {
        let at = slot as usize;
        let ready = self.view.fleet.live.get(at) && self.view.fleet.enabled.get(at) && self.view.fleet.healthy.get(at);
        let times = &mut self.times[at];
        if ready && times.ready_since.is_none() {
            times.ready_since = Some(now);
            times.warm = first;
        }
        let zero = self.view.fleet.live.get(at) && !self.view.weighted.get(at);
        times.zero_since = if zero { times.zero_since.or(Some(now)) } else { None };
        if !zero {
            self.view.drained.put(at, false);
        }
    }

    /// A slot that changed hands starts without the ejection of its former holder.
    fn forget_ejections(&mut self, touched: &[u32]) {
        let Some(ejector) = &self.ejector else { return };
        for &slot in touched {
            let epoch = self.view.fleet.entries[slot as usize].as_ref().map(|entry| entry.epoch);
            let state = epoch.map_or(crate::resilience::ejection::State::Closed, |epoch| ejector.state(&epoch));
            self.view.set_ejection(slot, state);
        }
    }

    pub(super) fn set_freshness(&mut self, freshness: Freshness, now: Duration, current: &ArcSwap<Snapshot>) {
        if freshness == Freshness::Fresh {
            self.confirmed = Some(now);
        }
        if self.freshness != freshness {
            self.freshness = freshness;
            self.publish_or_wait(now, current);
        }
    }

    pub(super) fn set_rules(
        &mut self,
        rules: RuleSet,
        now: Duration,
        current: &ArcSwap<Snapshot>,
    ) -> Result<(), RuleError> {
        let caller = self.view.plan.caller.clone();
        let plan = Plan::compile(rules, caller, &self.extensions, &mut self.slots)?;
        match (&plan.set.ejection, &mut self.ejector) {
            (Some(policy), Some(ejector)) => ejector.set_policy(*policy),
            (Some(policy), none) => *none = Some(Ejector::new(*policy)),
            (None, ejector) => {
                *ejector = None;
                self.view.ejected.clear();
                self.view.half_open.clear();
            }
        }
        self.view.set_plan(plan);
        for slot in self.view.fleet.order.clone() {
            self.note_times(slot, false, now);
        }
        self.publish(now, current);
        Ok(())
    }

    pub(super) fn tick(&mut self, now: Duration, current: &ArcSwap<Snapshot>) -> Option<Duration> {
        if self.held.as_ref().is_some_and(|held| now >= held.since + self.guard.confirm_after) {
            self.believe(now);
            self.dirty = true;
        }
        self.eject(now);
        self.drain(now);
        if self.ramp_at.is_some_and(|at| now >= at) {
            self.dirty = true;
        }
        if self.dirty && self.window_over(now) {
            self.publish(now, current);
        }
        let snapshot = current.load();
        for values in snapshot.misses.take() {
            snapshot.remember(values, &mut self.scratch);
        }
        self.next_deadline(now)
    }

    fn next_deadline(&self, now: Duration) -> Option<Duration> {
        let held = self.held.as_ref().map(|held| held.since + self.guard.confirm_after);
        let merged = self.dirty.then(|| self.last_published.unwrap_or(now) + self.guard.merge_window);
        let ejection = self.ejector.as_ref().map(|ejector| {
            ejector.next_deadline().map_or(now + EJECTION_STEP, |deadline| deadline.min(now + EJECTION_STEP))
        });
        let drain = self.view.plan.set.drain_deadline.and_then(|limit| {
            let waiting = |at: usize| self.view.fleet.live.get(at) && !self.view.drained.get(at);
            self.times
                .iter()
                .enumerate()
                .filter(|&(at, _)| waiting(at))
                .filter_map(|(_, times)| times.zero_since.map(|since| since + limit))
                .min()
        });
        [held, merged, ejection, drain, self.ramp_at].into_iter().flatten().min()
    }

    fn eject(&mut self, now: Duration) {
        let Some(ejector) = &mut self.ejector else { return };
        let fleet = &self.view.fleet;
        let members: Vec<(u64, u32, Arc<State>)> = fleet
            .order
            .iter()
            .map(|&slot| (fleet.entry(slot).epoch, slot, Arc::clone(&fleet.entry(slot).state)))
            .collect();
        let transitions = ejector.tick(now, members.iter().map(|(epoch, _, state)| (*epoch, &state.outcomes)));
        if transitions.is_empty() {
            return;
        }
        let changed: FxHashSet<u64> =
            transitions.ejected.iter().chain(&transitions.half_open).chain(&transitions.restored).copied().collect();
        for (epoch, slot, _) in members {
            if changed.contains(&epoch) {
                self.view.set_ejection(slot, ejector.state(&epoch));
            }
        }
        self.dirty = true;
    }

    /// Sessions leave an instance whose weight has been 0 for too long.
    fn drain(&mut self, now: Duration) {
        let Some(limit) = self.view.plan.set.drain_deadline else { return };
        for (at, times) in self.times.iter().enumerate() {
            if times.zero_since.is_some_and(|since| now >= since + limit) && !self.view.drained.get(at) {
                self.view.drained.put(at, true);
                self.dirty = true;
            }
        }
    }

    fn window_over(&self, now: Duration) -> bool {
        self.last_published.is_none_or(|last| now >= last + self.guard.merge_window)
    }

    fn publish_or_wait(&mut self, now: Duration, current: &ArcSwap<Snapshot>) {
        if self.window_over(now) {
            self.publish(now, current);
        } else {
            self.dirty = true;
        }
    }

    fn publish(&mut self, now: Duration, current: &ArcSwap<Snapshot>) {
        self.warm_up(now);
        self.revision += 1;
        self.dirty = false;
        self.last_published = Some(now);
        let former = current.load_full();
        let snapshot = self.snapshot(Some(&former));
        current.store(Arc::new(snapshot));
    }

    /// The factor of every slot at `now`.
    fn warm_up(&mut self, now: Duration) {
        self.view.ramp.clear();
        self.warming = 0;
        self.warmup_suspended = false;
        self.ramp_at = None;
        let Some(warmup) = self.view.plan.set.warmup else { return };
        let mut ready = 0;
        let mut ramp = vec![1.0; self.view.fleet.slots()];
        for &slot in &self.view.fleet.order {
            let at = slot as usize;
            let times = &mut self.times[at];
            let Some(since) = times.ready_since else { continue };
            let counts = self.view.fleet.enabled.get(at) && self.view.fleet.healthy.get(at);
            ready += usize::from(counts);
            let age = now.saturating_sub(since);
            if !times.warm && age >= warmup.window {
                times.warm = true;
            }
            if !times.warm && counts {
                self.warming += 1;
                ramp[at] = warmup.factor(age);
            }
        }
        if self.warming == 0 {
            return;
        }
        self.ramp_at = Some(now + WARMUP_STEP);
        if self.warming == ready {
            // Everybody is new: holding everybody back would change nothing but the first instance's fate.
            self.warmup_suspended = true;
        } else {
            self.view.ramp = ramp;
        }
    }

    fn snapshot(&mut self, former: Option<&Snapshot>) -> Snapshot {
        self.view.index();
        self.view.index_addresses();
        let view = self.view.clone();
        let plan = Arc::clone(&view.plan);
        let ring = plan.set.balance == Balance::ConsistentHash;
        let candidates = |slot: &&u32| view.fleet.enabled.get(**slot as usize) && view.weighted.get(**slot as usize);
        let nodes_per_weight = if ring {
            let weights = view.fleet.order.iter().filter(candidates).map(|&slot| view.weights[slot as usize]);
            crate::hash::nodes_per_weight(weights)
        } else {
            1.0
        };
        let full = (plan.set.balance.needs_key() && !plan.is_fixed()).then(|| {
            let slots: Box<[u32]> = view.fleet.order.iter().filter(candidates).copied().collect();
            let members: Vec<(&Instance, f64)> =
                slots.iter().map(|&slot| (&view.fleet.entry(slot).instance, view.weights[slot as usize])).collect();
            let kept = former
                .and_then(|former| former.full.as_ref())
                .filter(|(table, _)| table.fits(&members, nodes_per_weight));
            let table = match kept {
                Some((table, _)) => Arc::clone(table),
                None => Arc::new(HashTable::build(&plan.set.balance, &plan.set.hash, &members, nodes_per_weight)),
            };
            (table, slots)
        });
        let mut snapshot = Snapshot {
            revision: self.revision,
            view,
            freshness: self.freshness,
            held: self.held.as_ref().map(|held| held.why),
            warmup_suspended: self.warmup_suspended,
            nodes_per_weight,
            full,
            pool: None,
            memo: ArcSwap::from_pointee(Memo::default()),
            misses: Misses::new(!plan.is_fixed()),
        };
        if plan.is_fixed() {
            let old = former.and_then(|former| former.pool.as_deref());
            snapshot.pool = Some(Arc::new(snapshot.build(&(), &mut self.scratch, old)));
        }
        snapshot
    }

    pub(super) fn metrics(&self, now: Duration, snapshot: &Snapshot, counters: &Counters) -> Metrics {
        let running = self.held.as_ref().map_or(Duration::ZERO, |held| now.saturating_sub(held.since));
        let view = &snapshot.view;
        let rules = counters.rules.load();
        let (picks, no_picks) = counters.sums();
        let names = view.plan.set.rules.iter().map(|rule| rule.name.clone());
        Metrics {
            picks,
            no_picks,
            fallbacks: names.zip(rules.iter().map(|n| n.load(std::sync::atomic::Ordering::Relaxed))).collect(),
            rejects: self.rejects.clone(),
            held: snapshot.held,
            held_total: self.held_total + running,
            age: self.confirmed.map(|confirmed| now.saturating_sub(confirmed)),
            freshness: snapshot.freshness,
            revision: snapshot.revision,
            instances: view.fleet.order.len(),
            usable: view.usable.count_and(&view.fleet.live),
            ejected: view.ejected.count_and(&view.fleet.live),
            warming: self.warming,
            warmup_suspended: snapshot.warmup_suspended,
            memo: snapshot.memo.load().len(),
        }
    }
}

impl View {
    fn empty(plan: Plan) -> Self {
        let mut view = Self {
            plan: Arc::new(plan),
            known: Known::Unresolved,
            fleet: Fleet::default(),
            atom_bits: Vec::new(),
            fixed_bits: Vec::new(),
            weights: Vec::new(),
            weighted: BitSet::default(),
            explicit: BitSet::default(),
            ramp: Vec::new(),
            ejected: BitSet::default(),
            half_open: BitSet::default(),
            drained: BitSet::default(),
            usable: BitSet::default(),
            own_cluster: BitSet::default(),
            tier: Vec::new(),
            tiers: 1,
            tier_bits: Vec::new(),
            by_value: FxHashMap::default(),
            zone_weights: Vec::new(),
            by_address: FxHashMap::default(),
        };
        view.read_plan();
        view
    }

    /// Puts other rules over the same instances.
    fn set_plan(&mut self, plan: Plan) {
        self.plan = Arc::new(plan);
        self.read_plan();
    }

    fn read_plan(&mut self) {
        self.fleet = self.fleet.with_keys(self.plan.keys.keys());
        self.zone_weights.clear();
        self.tiers = match &self.plan.set.prefer.zone {
            None => 1,
            Some(zone) if zone.weights.is_empty() => 3,
            Some(zone) => {
                self.zone_weights.extend(zone.weights.values());
                self.zone_weights.push(0.0);
                zone.weights.len() + 1
            }
        };
        self.refresh_all();
    }

    fn set_ejection(&mut self, slot: u32, state: crate::resilience::ejection::State) {
        use crate::resilience::ejection::State;
        let at = slot as usize;
        self.ejected.put(at, !matches!(state, State::Closed));
        self.half_open.put(at, matches!(state, State::HalfOpen));
        self.refresh_usable(slot);
    }

    /// Every spelling under which an XID may name an instance.
    fn index_addresses(&mut self) {
        self.by_address.clear();
        if self.plan.set.balance != Balance::Xid {
            return;
        }
        // In reverse, so that of two instances with one address the first by id has it.
        for &slot in self.fleet.order.iter().rev() {
            let address = &self.fleet.entry(slot).instance.address;
            let java = socket_text(address);
            for spelling in [
                address.to_string(),
                format!("{}:{}", address.host(), address.port()),
                java.trim_start_matches('/').to_owned(),
                java.trim_start_matches('/').replace(['[', ']'], ""),
            ] {
                self.by_address.insert(spelling.into(), slot);
            }
        }
    }
}
