//! What evaluations read: a service under one plan, with everything that is the same for all requests derived ahead.
//!
//! Comparisons, weights, tiers and usability are kept as columns over the slots of the fleet, and a change refreshes the slots it
//! touches. A request then works on whole columns at a time.

use std::sync::Arc;

use metaroute_expr::{KeyId, Outcome};
use rustc_hash::FxHashMap;

use crate::bitset::BitSet;
use crate::evaluate::Scratch;
use crate::fleet::Fleet;
use crate::instance::Instance;
use crate::plan::{AtomSource, Fixed, Plan};
use crate::rules::{Profile, WeightFrom};
use crate::weight;

/// What is known about the service itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// No registry has answered yet.
    Unresolved,
    /// The registry knows no such service.
    Unknown,
    Yes,
}

/// One consistent state of a service under one plan: everything an evaluation reads. Immutable once published.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) plan: Arc<Plan>,
    pub(crate) known: Known,
    pub(crate) fleet: Fleet,
    pub(crate) atom_bits: Vec<BitSet>,
    pub(crate) fixed_bits: Vec<BitSet>,
    /// Weight by slot, before warm-up.
    pub(crate) weights: Vec<f64>,
    /// Slots whose weight is above 0.
    pub(crate) weighted: BitSet,
    /// Slots with a Seata weight key, for Seata's all-or-nothing rule.
    pub(crate) explicit: BitSet,
    /// Warm-up factor by slot; empty while nothing warms up.
    pub(crate) ramp: Vec<f64>,
    pub(crate) ejected: BitSet,
    pub(crate) half_open: BitSet,
    /// Slots of weight 0 whose sessions must move as well.
    pub(crate) drained: BitSet,
    /// Enabled, healthy, not ejected, weight above 0 (Seata's profile has no weights here).
    pub(crate) usable: BitSet,
    pub(crate) own_cluster: BitSet,
    /// Tier by slot, in the order of preference or of `zone_weights`.
    pub(crate) tier: Vec<u16>,
    pub(crate) tiers: usize,
    /// The slots of each tier; empty when there is one.
    pub(crate) tier_bits: Vec<BitSet>,
    /// Slots by value of each key that is compared with request values, where values are few.
    pub(crate) by_value: FxHashMap<KeyId, ByValue>,
    pub(crate) zone_weights: Vec<f64>,
    /// `host:port` in every spelling an XID may use; filled for the balancer `xid` only.
    pub(crate) by_address: FxHashMap<Box<str>, u32>,
}

/// The slots of every value of one column.
#[derive(Clone)]
pub(crate) struct ByValue {
    pub(crate) values: Vec<BitSet>,
    pub(crate) absent: BitSet,
}

/// Columns with more distinct values than this are compared slot by slot.
const VALUES_MAX: usize = 64;

impl View {
    /// Reads derived per-slot values of one slot again after its instance changed.
    pub(crate) fn refresh_slot(&mut self, slot: u32) {
        let at = slot as usize;
        let slots = self.fleet.slots();
        for bits in self.atom_bits.iter_mut().chain(&mut self.fixed_bits) {
            bits.grow(slots);
        }
        self.grow_columns(slots);
        let plan = Arc::clone(&self.plan);
        let Some(entry) = self.fleet.entries[at].clone() else {
            for bits in self.atom_bits.iter_mut().chain(&mut self.fixed_bits) {
                bits.put(at, false);
            }
            for bits in [&mut self.weighted, &mut self.explicit, &mut self.usable, &mut self.own_cluster] {
                bits.put(at, false);
            }
            return;
        };
        let record = self.fleet.record(slot);
        let caller = plan.caller_values();
        for (atom, bits) in plan.atoms.iter().zip(&mut self.atom_bits) {
            bits.put(at, atom.test(&record, &caller) == Outcome::True);
        }
        for (fixed, bits) in plan.fixed.iter().zip(&mut self.fixed_bits) {
            let atoms = &self.atom_bits;
            let present = |key| metaroute_expr::Record::get(&record, key).is_some();
            bits.put(at, fixed.test(|atom| atoms[atom].get(at), present));
        }
        self.set_weight(slot, &entry.instance);
        self.own_cluster.put(at, plan.own("cluster").is_some_and(|own| *entry.instance.cluster == *own));
        self.tier[at] = self.tier_of(&entry.instance);
        self.refresh_usable(slot);
    }

    /// Reads derived values of all slots: like [`Self::refresh_slot`] on each, but whole columns at a time.
    pub(crate) fn refresh_all(&mut self) {
        let slots = self.fleet.slots();
        let plan = Arc::clone(&self.plan);
        let caller = plan.caller_values();
        self.atom_bits = plan.atoms.iter().map(|atom| self.atom_column(atom, &caller)).collect();
        self.fixed_bits = plan.fixed.iter().map(|fixed| self.fixed_column(fixed)).collect();
        self.grow_columns(slots);
        let own = plan.own("cluster");
        for at in 0..slots {
            if let Some(entry) = self.fleet.entries[at].clone() {
                self.set_weight(at as u32, &entry.instance);
                self.own_cluster.put(at, own.is_some_and(|own| *entry.instance.cluster == *own));
                self.tier[at] = self.tier_of(&entry.instance);
                self.refresh_usable(at as u32);
            }
        }
    }

    /// Makes room for slots; there are never fewer than before.
    fn grow_columns(&mut self, slots: usize) {
        for bits in [
            &mut self.weighted,
            &mut self.explicit,
            &mut self.ejected,
            &mut self.half_open,
            &mut self.drained,
            &mut self.usable,
            &mut self.own_cluster,
        ] {
            bits.grow(slots);
        }
        self.weights.resize(slots, 0.0);
        self.tier.resize(slots, 0);
    }

    fn atom_column(&self, atom: &metaroute_expr::Atom, caller: &impl metaroute_expr::Context) -> BitSet {
        use metaroute_expr::{Column, Columns, Value};
        let mut bits = BitSet::new(self.fleet.slots());
        match atom.key().and_then(|key| self.fleet.column(key)) {
            // One test per distinct value, then one lookup per instance.
            Some(column) => {
                let truth: Vec<bool> = column
                    .values
                    .iter()
                    .map(|value| atom.test_value(Some(Value::Parsed(value)), caller) == Outcome::True)
                    .collect();
                let absent = atom.test_value(None, caller) == Outcome::True;
                for &slot in &self.fleet.order {
                    let code = column.codes.get(slot as usize).copied().unwrap_or(Column::ABSENT);
                    bits.put(slot as usize, truth.get(code as usize).copied().unwrap_or(absent));
                }
            }
            None => {
                for &slot in &self.fleet.order {
                    bits.put(slot as usize, atom.test(&self.fleet.record(slot), caller) == Outcome::True);
                }
            }
        }
        bits
    }

    fn fixed_column(&self, fixed: &Fixed) -> BitSet {
        let slots = self.fleet.slots();
        let mut bits = BitSet::new(slots);
        match fixed {
            Fixed::Program { program, atoms } => {
                let mut scratch = Scratch::default();
                if self.node(program.root(), &mut bits, &mut scratch, &mut |i, out: &mut BitSet| {
                    match atoms[i] {
                        AtomSource::Fixed(number) => out.copy_from(&self.atom_bits[number]),
                        AtomSource::Request | AtomSource::Dropped => return false,
                    }
                    true
                }) {
                    bits.and(&self.fleet.live);
                } else {
                    bits.copy_from(&self.fleet.live);
                }
            }
            Fixed::Lacking { .. } => {
                for &slot in &self.fleet.order {
                    let record = self.fleet.record(slot);
                    let present = |key| metaroute_expr::Record::get(&record, key).is_some();
                    bits.put(slot as usize, fixed.test(|_| false, present));
                }
            }
        }
        bits
    }

    fn set_weight(&mut self, slot: u32, instance: &Instance) {
        let at = slot as usize;
        let (weight, explicit) = match &self.plan.set.weight_from {
            WeightFrom::Weight => (instance.weight, false),
            WeightFrom::Metadata(key) => (weight::from_metadata(instance, key), false),
            WeightFrom::Seata => weight::seata(instance),
        };
        self.weights[at] = weight;
        self.weighted.put(at, weight > 0.0);
        self.explicit.put(at, explicit);
    }

    fn tier_of(&self, instance: &Instance) -> u16 {
        let Some(zone) = &self.plan.set.prefer.zone else { return 0 };
        let here = &instance.locality;
        if !zone.weights.is_empty() {
            // The last tier is for zones that were given no weight.
            return zone.weights.keys().position(|name| *name == here.zone).unwrap_or(zone.weights.len()) as u16;
        }
        let (own_zone, own_region) = (self.plan.own("zone"), self.plan.own("region"));
        let same_region = own_region.is_none_or(|own| here.region.is_empty() || *here.region == *own);
        match (own_zone, own_region) {
            (None, None) => 0,
            (Some(own), _) if same_region && *here.zone == *own => 0,
            (None, Some(own)) if *here.region == *own => 0,
            (Some(_), Some(own)) if *here.region == *own => 1,
            _ => 2,
        }
    }

    /// Usability of one slot, after health, weight or ejection changed.
    pub(crate) fn refresh_usable(&mut self, slot: u32) {
        let at = slot as usize;
        let fit = self.fleet.enabled.get(at) && self.fleet.healthy.get(at) && !self.ejected.get(at);
        self.usable.put(at, fit && (self.plan.set.profile == Profile::Seata || self.weighted.get(at)));
    }

    /// Prepares what evaluations of single requests and of zones read, after slots have changed.
    pub(crate) fn index(&mut self) {
        use metaroute_expr::{Column, Columns};
        let slots = self.fleet.slots();
        self.tier_bits.clear();
        if self.tiers > 1 {
            self.tier_bits.resize(self.tiers, BitSet::new(slots));
            for &slot in &self.fleet.order {
                self.tier_bits[self.tier[slot as usize] as usize].put(slot as usize, true);
            }
        }
        self.by_value.clear();
        for &key in &self.plan.request_keys {
            let Some(column) = self.fleet.column(key).filter(|column| column.values.len() <= VALUES_MAX) else {
                continue;
            };
            let mut found =
                ByValue { values: vec![BitSet::new(slots); column.values.len()], absent: BitSet::new(slots) };
            for &slot in &self.fleet.order {
                let code = column.codes.get(slot as usize).copied().unwrap_or(Column::ABSENT);
                found.values.get_mut(code as usize).unwrap_or(&mut found.absent).put(slot as usize, true);
            }
            self.by_value.insert(key, found);
        }
    }
}
