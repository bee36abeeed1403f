//! From all instances to the candidates of one request, with the exact share of each.
//!
//! The same steps serve the table that is built ahead, the pick that finds no table yet, and `explain`: rules in order,
//! each with its fallbacks and terminal; the own cluster; tiers by zone and health; weights. Working memory belongs to
//! the caller and is reused, so an evaluation allocates nothing once it has grown to the size of the service.

use metaroute_expr::{Node, Outcome};

use crate::bitset::BitSet;
use crate::instance::Instance;
use crate::outcome::{NoPickReason, Reason, StageKind, StageOutcome, StageTally};
use crate::plan::{AtomSource, Selection, Step, When};
use crate::request::Context;
use crate::rules::{AllZero, Balance, MinUsable, Profile, Terminal, WeightFrom};
use crate::tiers::{TierHealth, TierLoad, locality_shares, priority_loads};
use crate::view::{Known, View};

/// Reusable working memory of evaluations.
#[derive(Clone, Default)]
pub(crate) struct Scratch {
    /// Candidates so far.
    pub(crate) set: BitSet,
    matched: BitSet,
    spare: Vec<BitSet>,
    tallies: Vec<TierHealth>,
    loads: Vec<TierLoad>,
    sums: Vec<f64>,
    localities: Vec<(f64, TierHealth)>,
    /// What may own a session: everything that isolating rules leave.
    pub(crate) owners: BitSet,
    /// The final candidates with a share or, for hash balancers, a place in the table; slots in id order.
    pub(crate) members: Vec<u32>,
    /// Share of all traffic by member, summing to 1.
    pub(crate) shares: Vec<f64>,
    /// Whether a member may be chosen now.
    pub(crate) open: Vec<bool>,
    pub(crate) stages: Vec<StageTally>,
    /// What a half-open instance must be in to be probed: the candidates, or what the failing rule matched.
    pub(crate) probes: BitSet,
    /// Slots of open members and whether their shares are equal; see [`Scratch::finish`].
    pub(crate) open_slots: BitSet,
    pub(crate) even: bool,
}

impl Scratch {
    /// Derives what a choice without a pool needs.
    pub(crate) fn finish(&mut self, view: &View) {
        self.even = self.has_even_shares();
        if view.plan.set.balance.needs_key() {
            let memory = std::mem::take(&mut self.open_slots);
            self.open_slots = self.open_members(view.fleet.slots(), memory);
        }
    }

    /// Whether all members have the same share.
    pub(crate) fn has_even_shares(&self) -> bool {
        let first = self.shares.first().copied().unwrap_or(0.0);
        self.shares.iter().all(|&share| (share - first).abs() < 1e-12)
    }

    /// Slots of open members, in the memory of other bits.
    pub(crate) fn open_members(&self, slots: usize, mut bits: BitSet) -> BitSet {
        bits.grow(slots);
        bits.clear();
        for (&slot, &open) in self.members.iter().zip(&self.open) {
            bits.put(slot as usize, open);
        }
        bits
    }

    fn take(&mut self, slots: usize) -> BitSet {
        let mut bits = self.spare.pop().unwrap_or_default();
        bits.grow(slots);
        bits.clear();
        bits
    }
}

/// The outcome of an evaluation; the details are in the scratch memory.
pub(crate) type Verdict = Result<Reason, NoPickReason>;

impl View {
    /// Evaluates for one request. Candidates, shares and stage counts are left in `s`; `trace` receives the candidates
    /// after each stage. Members are in id order if `ordered`, else in no particular order, which is cheaper.
    pub(crate) fn evaluate<C: Context + ?Sized>(
        &self,
        request: &C,
        ordered: bool,
        s: &mut Scratch,
        mut trace: Option<&mut Vec<BitSet>>,
    ) -> Verdict {
        let plan = &*self.plan;
        s.stages.clear();
        s.members.clear();
        s.shares.clear();
        s.open.clear();
        s.set.copy_from(&self.fleet.live);
        if plan.set.profile == Profile::Seata {
            // Seata routes among the servers it is connected to.
            s.set.and(&self.usable);
        }
        let everyone = self.fleet.order.len();
        let usable = self.usable.count();
        s.stages.push(StageTally {
            kind: StageKind::Registry,
            entered: everyone,
            matched: everyone,
            usable,
            left: s.set.count(),
            outcome: StageOutcome::Matched,
        });
        if let Some(trace) = trace.as_deref_mut() {
            trace.clear();
            trace.push(s.set.clone());
        }
        s.owners.copy_from(&s.set);
        s.probes.clear();
        if everyone == 0 {
            return Err(match self.known {
                Known::Unresolved => NoPickReason::Unresolved,
                Known::Unknown => NoPickReason::UnknownService,
                Known::Yes => NoPickReason::EmptyRegistry,
            });
        }
        let mut reason = Reason::Matched;
        for (number, step) in plan.steps.iter().enumerate() {
            let runs = match &step.when {
                When::Always => true,
                When::Never => false,
                When::Request(program) => program.eval(&(), &plan.values(request)),
            };
            if runs {
                let outcome = self.step(step, request, s);
                if let Some(trace) = trace.as_deref_mut() {
                    trace.push(s.set.clone());
                }
                match outcome {
                    Ok(StageOutcome::Fallback(n)) => {
                        reason.worsen(Reason::Fallback { rule: step.rule as u16, step: n as u16 })
                    }
                    Ok(StageOutcome::Relaxed) => reason.worsen(Reason::Relaxed { rule: step.rule as u16 }),
                    Ok(_) => {}
                    Err(none) => {
                        s.owners.clear();
                        return Err(none);
                    }
                }
            }
            if plan.last_isolation == Some(number) {
                s.owners.copy_from(&s.set);
            }
        }
        s.probes.copy_from(&s.set);
        self.prefer_cluster(s, &mut reason, trace.as_deref_mut());
        let verdict = self.share_out(ordered, s, &mut reason);
        if let Some(trace) = trace {
            let mut kept = BitSet::new(self.fleet.slots());
            for (&slot, &open) in s.members.iter().zip(&s.open) {
                kept.put(slot as usize, open);
            }
            trace.push(kept);
        }
        verdict.map(|()| reason)
    }

    /// One rule: narrows `s.set` or says why nothing is left.
    fn step<C: Context + ?Sized>(
        &self,
        step: &Step,
        request: &C,
        s: &mut Scratch,
    ) -> Result<StageOutcome, NoPickReason> {
        let entered = s.set.count();
        let mut tally = StageTally {
            kind: StageKind::Rule(step.rule),
            entered,
            matched: 0,
            usable: 0,
            left: 0,
            outcome: StageOutcome::Matched,
        };
        let mut primary = s.take(self.fleet.slots());
        self.select(&step.filter, request, s);
        primary.copy_from(&s.matched);
        tally.matched = primary.count();
        tally.usable = primary.count_and(&self.usable);
        let mut outcome = self.fulfilled(step.min, &primary).then_some(StageOutcome::Matched);
        if outcome.is_some() {
            s.set.copy_from(&primary);
        } else {
            for (n, fallback) in step.fallbacks.iter().enumerate() {
                self.select(fallback, request, s);
                if self.fulfilled(step.min, &s.matched) {
                    outcome = Some(StageOutcome::Fallback(n));
                    let Scratch { set, matched, .. } = s;
                    set.copy_from(matched);
                    break;
                }
            }
        }
        // Health-aware fallbacks come first; only then may panic or the all-zero rule serve what matched.
        if outcome.is_none() && self.rescued(&primary) {
            s.set.copy_from(&primary);
            outcome = Some(StageOutcome::Matched);
        }
        let result = match (outcome, step.terminal) {
            (Some(outcome), _) => Ok(outcome),
            (None, Terminal::Any) => Ok(StageOutcome::Relaxed),
            (None, Terminal::Fail) => {
                s.probes.copy_from(&primary);
                s.set.clear();
                Err(if tally.usable > 0 { NoPickReason::Filtered } else { self.why_none(&primary) })
            }
        };
        tally.left = s.set.count();
        tally.outcome = result.as_ref().copied().unwrap_or(StageOutcome::Failed);
        s.stages.push(tally);
        s.spare.push(primary);
        result
    }

    /// Candidates of `s.set` that a selection keeps, into `s.matched`.
    fn select<C: Context + ?Sized>(&self, selection: &Selection, request: &C, s: &mut Scratch) {
        let slots = self.fleet.slots();
        s.matched.grow(slots);
        match selection {
            Selection::Fixed(number) => s.matched.copy_from(&self.fixed_bits[*number]),
            Selection::Request { program, atoms } => {
                let values = self.plan.values(request);
                let mut out = s.take(slots);
                let atom =
                    &mut |i: usize, out: &mut BitSet| self.request_atom(program.atoms(), i, atoms[i], &values, out);
                if self.node(program.root(), &mut out, s, atom) {
                    s.matched.copy_from(&out);
                } else {
                    s.matched.copy_from(&self.fleet.live);
                }
                s.spare.push(out);
            }
            Selection::Custom(router) => {
                s.matched.clear();
                let slots: Vec<u32> =
                    self.fleet.order.iter().copied().filter(|&slot| s.set.get(slot as usize)).collect();
                let candidates: Vec<&Instance> = slots.iter().map(|&slot| &self.fleet.entry(slot).instance).collect();
                let mut keep = vec![true; candidates.len()];
                router.route(&candidates, &self.plan.caller, &mut keep);
                for (slot, keep) in slots.into_iter().zip(keep) {
                    s.matched.put(slot as usize, keep);
                }
            }
        }
        let Scratch { set, matched, .. } = s;
        matched.and(set);
    }

    /// One comparison over all slots; false when it is removed from its expression.
    fn request_atom(
        &self,
        atoms: &[metaroute_expr::Atom],
        i: usize,
        source: AtomSource,
        values: &impl metaroute_expr::Context,
        out: &mut BitSet,
    ) -> bool {
        use metaroute_expr::{Columns, Value};
        match source {
            AtomSource::Fixed(number) => out.copy_from(&self.atom_bits[number]),
            AtomSource::Dropped => return false,
            AtomSource::Request => {
                let atom = &atoms[i];
                match atom.key() {
                    Some(key) => {
                        let absent = atom.test_value(None, values);
                        if absent == Outcome::Removed {
                            return false;
                        }
                        let Some(column) = self.fleet.column(key) else {
                            return true;
                        };
                        if let Some(by_value) = self.by_value.get(&key) {
                            if absent == Outcome::True {
                                out.or(&by_value.absent);
                            }
                            for (value, slots) in column.values.iter().zip(&by_value.values) {
                                if atom.test_value(Some(Value::Parsed(value)), values) == Outcome::True {
                                    out.or(slots);
                                }
                            }
                            return true;
                        }
                        // Values are few and repeat: each is tested when it first differs from the one before.
                        let mut last = (metaroute_expr::Column::ABSENT, absent == Outcome::True);
                        for &slot in &self.fleet.order {
                            let code =
                                column.codes.get(slot as usize).copied().unwrap_or(metaroute_expr::Column::ABSENT);
                            if code != last.0 {
                                let value = column.values.get(code as usize).map(Value::Parsed);
                                last = (code, atom.test_value(value, values) == Outcome::True);
                            }
                            out.put(slot as usize, last.1);
                        }
                    }
                    None => {
                        for &slot in &self.fleet.order {
                            match atom.test(&self.fleet.record(slot), values) {
                                Outcome::Removed => return false,
                                outcome => out.put(slot as usize, outcome == Outcome::True),
                            }
                        }
                    }
                }
            }
        }
        true
    }

    /// A boolean tree over bitsets; false when all of it is removed.
    pub(crate) fn node(
        &self,
        node: &Node,
        out: &mut BitSet,
        s: &mut Scratch,
        atom: &mut impl FnMut(usize, &mut BitSet) -> bool,
    ) -> bool {
        match node {
            Node::Atom(i) => atom(*i, out),
            Node::Not(inner) => {
                if !self.node(inner, out, s, atom) {
                    return false;
                }
                out.not();
                out.and(&self.fleet.live);
                true
            }
            Node::And(parts) | Node::Or(parts) => {
                let all = matches!(node, Node::And(_));
                let mut part = s.take(self.fleet.slots());
                let mut any = false;
                for inner in parts {
                    part.clear();
                    if self.node(inner, &mut part, s, atom) {
                        match (any, all) {
                            (false, _) => out.copy_from(&part),
                            (true, true) => out.and(&part),
                            (true, false) => out.or(&part),
                        }
                        any = true;
                    }
                }
                s.spare.push(part);
                if parts.is_empty() {
                    // The empty conjunction is true, the empty disjunction false.
                    if all {
                        out.copy_from(&self.fleet.live);
                    } else {
                        out.clear();
                    }
                    return true;
                }
                any
            }
        }
    }

    fn fulfilled(&self, min: MinUsable, set: &BitSet) -> bool {
        if self.plan.set.profile == Profile::Seata {
            return !set.is_empty();
        }
        match min {
            MinUsable::Count(0) => !set.is_empty(),
            MinUsable::Count(n) => set.count_and(&self.usable) >= n,
            MinUsable::Percent(percent) => {
                let usable = set.count_and(&self.usable);
                usable > 0 && usable as f64 * 100.0 >= percent * self.counted(set) as f64
            }
        }
    }

    /// Members of a set that a health ratio counts: enabled, with weight.
    fn counted(&self, set: &BitSet) -> usize {
        let words = set.words().iter().zip(self.weighted.words()).zip(self.fleet.enabled.words());
        words.map(|((a, b), c)| (a & b & c).count_ones() as usize).sum()
    }

    /// Members of a set that could serve if weights did not matter.
    fn fit(&self, set: &BitSet) -> usize {
        let words = set
            .words()
            .iter()
            .zip(self.fleet.enabled.words())
            .zip(self.fleet.healthy.words())
            .zip(self.ejected.words());
        words.map(|(((a, b), c), d)| (a & b & c & !d).count_ones() as usize).sum()
    }

    /// Whether a set without usable members can be served all the same: by the all-zero rule, or in panic.
    fn rescued(&self, set: &BitSet) -> bool {
        if self.plan.set.profile == Profile::Seata || set.count_and(&self.usable) > 0 {
            return false;
        }
        (self.plan.set.all_zero == AllZero::Uniform && self.fit(set) > 0) || self.panics(set)
    }

    /// Whether a set without usable members is in panic: it has weights, and the rules ignore health in the end.
    fn panics(&self, set: &BitSet) -> bool {
        self.plan.set.panic.is_some_and(|limit| limit > 0.0) && self.counted(set) > 0
    }

    /// How many tiers may serve: a strict preference never leaves its own zone, or those that have a weight.
    fn open_tiers(&self) -> usize {
        match &self.plan.set.prefer.zone {
            Some(zone) if zone.strict && self.zone_weights.is_empty() => 1,
            // The last one is for zones without a weight.
            Some(zone) if zone.strict => self.zone_weights.len() - 1,
            _ => self.tiers,
        }
    }

    /// Why the candidates cannot serve, as far as their zones may.
    fn why_none_serves(&self, s: &mut Scratch) -> NoPickReason {
        let tiers = self.open_tiers();
        if tiers >= self.tiers {
            return self.why_none(&s.set);
        }
        let mut within = s.take(self.fleet.slots());
        for bits in &self.tier_bits[..tiers] {
            within.or(bits);
        }
        within.and(&s.set);
        let why = self.why_none(&within);
        s.spare.push(within);
        why
    }

    /// Why a set without usable members has none.
    fn why_none(&self, set: &BitSet) -> NoPickReason {
        if set.is_empty() {
            NoPickReason::Filtered
        } else if self.fit(set) > 0 {
            NoPickReason::AllZeroWeight
        } else {
            NoPickReason::AllUnhealthy
        }
    }

    fn prefer_cluster(&self, s: &mut Scratch, reason: &mut Reason, trace: Option<&mut Vec<BitSet>>) {
        if !self.plan.set.prefer.cluster || self.plan.own("cluster").is_none() {
            return;
        }
        let entered = s.set.count();
        s.matched.copy_from(&s.set);
        s.matched.and(&self.own_cluster);
        let matched = s.matched.count();
        let usable = s.matched.count_and(&self.usable);
        let elsewhere = s.set.count_and(&self.usable) > 0;
        // Nothing usable anywhere: whatever panic allows stays at home.
        let outcome = if usable > 0 || (!elsewhere && self.rescued(&s.matched)) {
            let Scratch { set, matched, .. } = s;
            set.copy_from(matched);
            StageOutcome::Matched
        } else {
            reason.worsen(Reason::CrossCluster);
            StageOutcome::CrossCluster
        };
        s.stages.push(StageTally { kind: StageKind::Cluster, entered, matched, usable, left: s.set.count(), outcome });
        if let Some(trace) = trace {
            trace.push(s.set.clone());
        }
    }

    /// Tiers, panic, weights: the members and their shares.
    fn share_out(&self, ordered: bool, s: &mut Scratch, reason: &mut Reason) -> Result<(), NoPickReason> {
        let entered = s.set.count();
        let usable = s.set.count_and(&self.usable);
        let result = self.fill_members(ordered, s, reason);
        let left = s.open.iter().filter(|&&open| open).count();
        let outcome = if result.is_ok() { StageOutcome::Matched } else { StageOutcome::Failed };
        s.stages.push(StageTally { kind: StageKind::Usable, entered, matched: entered, usable, left, outcome });
        if result.is_err() {
            s.members.clear();
            s.shares.clear();
            s.open.clear();
        }
        result
    }

    fn fill_members(&self, ordered: bool, s: &mut Scratch, reason: &mut Reason) -> Result<(), NoPickReason> {
        let set = &self.plan.set;
        let seata = set.profile == Profile::Seata;
        if !seata && s.set.count_and(&self.usable) == 0 && !self.panics(&s.set) {
            // Whoever is healthy has weight 0; what is ill has no say in it, whatever its weight.
            if set.all_zero == AllZero::Uniform && self.fit(&s.set) > 0 {
                self.uniform(s);
                if !s.members.is_empty() {
                    reason.worsen(Reason::AllZeroUniform);
                    return Ok(());
                }
            }
            return Err(self.why_none_serves(s));
        }
        self.tier_loads(s);
        if s.loads.iter().all(|load| load.share == 0.0) {
            return Err(self.why_none_serves(s));
        }
        if s.loads.iter().any(|load| load.panic && load.share > 0.0) {
            reason.worsen(Reason::Panic);
        }
        let hashed = set.balance.needs_key();
        let weighted = set.balance.is_weighted();
        s.sums.clear();
        s.sums.resize(s.loads.len(), 0.0);
        let mut visit = |at: usize| {
            let load = s.loads[self.tier[at] as usize];
            let counts = self.fleet.enabled.get(at) && (seata || self.weighted.get(at));
            let open = load.share > 0.0 && (self.usable.get(at) || (load.panic && counts));
            // Hash tables hold the members that are out as well, so that their keys alone move and come back.
            let kept = open || (hashed && counts);
            if !kept {
                return;
            }
            let weight = if weighted && !seata { self.weights[at] } else { 1.0 };
            let weight = weight * self.ramp.get(at).copied().unwrap_or(1.0);
            s.members.push(at as u32);
            s.open.push(open);
            s.shares.push(weight);
            if open {
                s.sums[self.tier[at] as usize] += weight;
            }
        };
        if ordered {
            self.fleet.order.iter().map(|&slot| slot as usize).filter(|&at| s.set.get(at)).for_each(&mut visit);
        } else {
            s.set.iter().for_each(&mut visit);
        }
        if seata && set.weight_from == WeightFrom::Seata && set.balance == Balance::WeightedRandom {
            return self.seata_weights(s, reason);
        }
        for ((&slot, share), &open) in s.members.iter().zip(&mut s.shares).zip(&s.open) {
            let tier = self.tier[slot as usize] as usize;
            *share = if open { s.loads[tier].share * *share / s.sums[tier] } else { 0.0 };
        }
        Ok(())
    }

    /// Seata's weighted random: even when no candidate has a positive weight of its own or the 32-bit sum overflows.
    fn seata_weights(&self, s: &mut Scratch, reason: &mut Reason) -> Result<(), NoPickReason> {
        let explicit = |slot: &&u32| self.explicit.get(**slot as usize);
        let any_positive = s.members.iter().filter(explicit).any(|&slot| self.weights[slot as usize] > 0.0);
        let total: f64 = s.members.iter().map(|&slot| self.weights[slot as usize]).sum();
        let by_weight = any_positive && total > 0.0 && total <= f64::from(i32::MAX);
        if !by_weight && s.members.iter().any(|slot| explicit(&slot)) {
            reason.worsen(Reason::AllZeroUniform);
        }
        let even = 1.0 / s.members.len() as f64;
        for (&slot, share) in s.members.iter().zip(&mut s.shares) {
            *share = if by_weight { self.weights[slot as usize] / total } else { even };
        }
        Ok(())
    }

    /// Everybody who is fit shares evenly, whatever its weight and tier; a strict preference stays in its zones.
    fn uniform(&self, s: &mut Scratch) {
        let tiers = self.open_tiers();
        for &slot in &self.fleet.order {
            let at = slot as usize;
            let fit = self.fleet.enabled.get(at) && self.fleet.healthy.get(at) && !self.ejected.get(at);
            if s.set.get(at) && fit && usize::from(self.tier[at]) < tiers {
                s.members.push(slot);
            }
        }
        let even = 1.0 / s.members.len() as f64;
        s.shares.resize(s.members.len(), even);
        s.open.resize(s.members.len(), true);
    }

    /// What each tier of the candidates gets, into `s.loads`.
    fn tier_loads(&self, s: &mut Scratch) {
        let set = &self.plan.set;
        let seata = set.profile == Profile::Seata;
        s.tallies.clear();
        s.tallies.resize(self.tiers, TierHealth::default());
        s.loads.clear();
        s.loads.resize(self.tiers, TierLoad::default());
        for (tier, tally) in s.tallies.iter_mut().enumerate() {
            let inside = |at: usize| self.tier_bits.get(tier).map_or(u64::MAX, |bits| bits.words()[at]);
            for (at, word) in s.set.words().iter().enumerate() {
                let weight = if seata { u64::MAX } else { self.weighted.words()[at] };
                let counted = word & inside(at) & weight & self.fleet.enabled.words()[at];
                tally.total += counted.count_ones() as usize;
                tally.healthy += (counted & self.usable.words()[at]).count_ones() as usize;
            }
        }
        let Some(zone) = &set.prefer.zone else {
            priority_loads(&s.tallies, 1.0, set.panic, &mut s.loads);
            return;
        };
        if !self.zone_weights.is_empty() {
            s.localities.clear();
            s.localities.extend(self.zone_weights.iter().copied().zip(s.tallies.iter().copied()));
            if let Some(shares) = locality_shares(&s.localities, zone.overflow) {
                for (load, share) in s.loads.iter_mut().zip(shares) {
                    load.share = share;
                }
                return;
            }
            if zone.strict {
                return;
            }
            // No weighted zone can serve: the rest may.
            priority_loads(&s.tallies, 1.0, set.panic, &mut s.loads);
            return;
        }
        let first = if zone.strict { 1 } else { s.tallies.len() };
        priority_loads(&s.tallies[..first], zone.overflow, set.panic, &mut s.loads[..first]);
    }
}
