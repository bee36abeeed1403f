//! The instances of one service as columns and bitsets.
//!
//! Every instance lives in a numbered *slot* that it keeps for its whole incarnation, so a change of fifty instances
//! touches fifty bits per atom and not ten thousand. What must not depend on arrival order (hash tables, tie-breaks,
//! explanations) walks `order`, the slots sorted by id. A metadata value is parsed once, when it enters its column.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use metaroute_expr::{Attribute, Column as ColumnView, Columns, Key, KeyId, Parsed, Record, Value};
use rustc_hash::FxHashMap;

use crate::bitset::BitSet;
use crate::instance::{Instance, MetaValue};
use crate::resilience::ejection::OutcomeCounters;

/// One instance in its slot.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) instance: Instance,
    pub(crate) state: Arc<State>,
    /// Different for every incarnation that ever held a slot of this selector.
    pub(crate) epoch: u64,
    /// Raised when an outcome asks for a tick soon; one per selector.
    pub(crate) attention: Arc<AtomicBool>,
}

/// What picks learn about one incarnation. On cache lines of its own, because every caller writes here.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct State {
    pub(crate) in_flight: AtomicU32,
    /// Peak EWMA of latency in nanoseconds; 0 until the first sample.
    latency: AtomicU64,
    pub(crate) outcomes: OutcomeCounters,
}

/// Weight of one sample in the moving average of latency.
const LATENCY_GAIN: f64 = 0.1;

impl State {
    /// Peak-sensitive moving average (Finagle): a sample above the average replaces it, one below pulls it down slowly.
    pub(crate) fn record_latency(&self, nanos: u64) {
        let sample = nanos.max(1);
        // A lost race loses one sample of an average; nothing is counted here.
        let old = self.latency.load(Ordering::Relaxed);
        let new = if old == 0 || sample > old {
            sample
        } else {
            (old as f64 + LATENCY_GAIN * (sample as f64 - old as f64)) as u64
        };
        self.latency.store(new.max(1), Ordering::Relaxed);
    }

    pub(crate) fn latency(&self) -> u64 {
        self.latency.load(Ordering::Relaxed)
    }
}

/// A dictionary-encoded metadata column.
#[derive(Clone, Debug, Default)]
pub(crate) struct Column {
    codes: Vec<u32>,
    values: Vec<Parsed>,
    uses: Vec<u32>,
    free: Vec<u32>,
    texts: FxHashMap<Box<str>, u32>,
    lists: FxHashMap<Box<[Box<str>]>, u32>,
}

impl Column {
    fn intern(&mut self, value: &MetaValue) -> u32 {
        match value {
            MetaValue::Text(text) | MetaValue::Number(text) | MetaValue::Json(text) => self.intern_text(text),
            MetaValue::Bool(value) => self.intern_text(if *value { "true" } else { "false" }),
            MetaValue::List(items) => match self.lists.get(items) {
                Some(&code) => code,
                None => {
                    let code = self.place(Parsed::list(items.iter().cloned()));
                    self.lists.insert(items.clone(), code);
                    code
                }
            },
        }
    }

    fn intern_text(&mut self, text: &str) -> u32 {
        match self.texts.get(text) {
            Some(&code) => code,
            None => {
                let code = self.place(Parsed::text(text));
                self.texts.insert(text.into(), code);
                code
            }
        }
    }

    fn place(&mut self, value: Parsed) -> u32 {
        match self.free.pop() {
            Some(code) => {
                self.values[code as usize] = value;
                code
            }
            None => {
                self.values.push(value);
                self.uses.push(0);
                self.values.len() as u32 - 1
            }
        }
    }

    fn set(&mut self, slot: usize, code: Option<u32>) {
        if slot >= self.codes.len() {
            self.codes.resize(slot + 1, ColumnView::ABSENT);
        }
        if let Some(code) = code {
            self.uses[code as usize] += 1;
        }
        let old = std::mem::replace(&mut self.codes[slot], code.unwrap_or(ColumnView::ABSENT));
        if old != ColumnView::ABSENT {
            self.uses[old as usize] -= 1;
            if self.uses[old as usize] == 0 {
                self.forget(old);
            }
        }
    }

    /// Values nobody has any more leave the dictionary, so that churning labels cannot grow it (envoy #11032).
    fn forget(&mut self, code: u32) {
        let value = &self.values[code as usize];
        match value.as_list() {
            Some(items) => self.lists.retain(|key, _| &**key != items),
            None => drop(self.texts.remove(value.as_text())),
        }
        self.free.push(code);
    }

    fn at(&self, slot: usize) -> Option<&Parsed> {
        self.codes.get(slot).and_then(|&code| self.values.get(code as usize))
    }
}

/// All instances of a service, with one column per key that the rules read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fleet {
    pub(crate) entries: Vec<Option<Arc<Entry>>>,
    /// Epoch of the holder by slot; 0 for an empty one.
    pub(crate) epochs: Vec<u64>,
    /// Occupied slots in id order.
    pub(crate) order: Vec<u32>,
    free: Vec<u32>,
    pub(crate) live: BitSet,
    pub(crate) enabled: BitSet,
    /// What the registry says; ejection is not in here.
    pub(crate) healthy: BitSet,
    columns: Vec<Arc<Column>>,
}

impl Fleet {
    /// The same instances with columns for other keys.
    pub(crate) fn with_keys(&self, keys: &[Key]) -> Self {
        let mut fleet = Self { columns: vec![Arc::default(); keys.len()], ..self.clone() };
        for &slot in &self.order {
            fleet.fill(slot as usize, keys);
        }
        fleet
    }

    /// Number of slots, occupied or not.
    pub(crate) fn slots(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn entry(&self, slot: u32) -> &Arc<Entry> {
        self.entries[slot as usize].as_ref().expect("order holds occupied slots only")
    }

    /// The slot of an id.
    pub(crate) fn find(&self, id: &str) -> Option<u32> {
        let at = self.rank(id).ok()?;
        Some(self.order[at])
    }

    fn rank(&self, id: &str) -> Result<usize, usize> {
        self.order.binary_search_by(|&slot| self.entry(slot).instance.id.as_str().cmp(id))
    }

    /// Puts an entry into the slot that its id has already. The caller sorts out incarnations.
    pub(crate) fn replace(&mut self, slot: u32, entry: Entry, keys: &[Key]) {
        self.occupy(slot, entry);
        self.fill(slot as usize, keys);
    }

    /// Adds entries with ids that are not here yet, in one pass.
    pub(crate) fn put_new(&mut self, mut entries: Vec<Entry>, keys: &[Key]) -> Vec<u32> {
        entries.sort_unstable_by(|a, b| a.instance.id.cmp(&b.instance.id));
        let mut slots = Vec::with_capacity(entries.len());
        for entry in entries {
            let slot = self.free.pop().unwrap_or(self.entries.len() as u32);
            self.occupy(slot, entry);
            self.fill(slot as usize, keys);
            slots.push(slot);
        }
        let mut merged = Vec::with_capacity(self.order.len() + slots.len());
        let id = |slot: &u32| &self.entry(*slot).instance.id;
        let (mut old, mut new) = (self.order.iter().peekable(), slots.iter().peekable());
        while let (Some(a), Some(b)) = (old.peek(), new.peek()) {
            merged.push(if id(a) < id(b) { *old.next().expect("peeked") } else { *new.next().expect("peeked") });
        }
        merged.extend(old);
        merged.extend(new);
        self.order = merged;
        slots
    }

    fn occupy(&mut self, slot: u32, entry: Entry) {
        let at = slot as usize;
        if at == self.entries.len() {
            self.entries.push(None);
            self.epochs.push(0);
            for bits in [&mut self.live, &mut self.enabled, &mut self.healthy] {
                bits.grow(at + 1);
            }
        }
        self.live.put(at, true);
        self.enabled.put(at, entry.instance.enabled);
        self.healthy.put(at, entry.instance.healthy);
        self.epochs[at] = entry.epoch;
        self.entries[at] = Some(Arc::new(entry));
    }

    /// Empties these slots.
    pub(crate) fn remove(&mut self, gone: &[u32]) {
        for &slot in gone {
            let at = slot as usize;
            for bits in [&mut self.live, &mut self.enabled, &mut self.healthy] {
                bits.put(at, false);
            }
            for column in &mut self.columns {
                if column.at(at).is_some() {
                    Arc::make_mut(column).set(at, None);
                }
            }
            self.epochs[at] = 0;
            self.entries[at] = None;
            self.free.push(slot);
        }
        if !gone.is_empty() {
            let live = &self.live;
            self.order.retain(|&slot| live.get(slot as usize));
        }
    }

    fn fill(&mut self, slot: usize, keys: &[Key]) {
        let entry = self.entries[slot].clone().expect("the slot was just filled");
        let instance = &entry.instance;
        for (key, column) in keys.iter().zip(&mut self.columns) {
            let column = Arc::make_mut(column);
            let code = match key {
                Key::Name(name) => instance.metadata.get(&**name).map(|value| column.intern(value)),
                Key::Attribute(attribute) => attribute_text(instance, *attribute).map(|text| column.intern_text(&text)),
            };
            column.set(slot, code);
        }
    }

    /// A view of one slot for single evaluations.
    pub(crate) fn record(&self, slot: u32) -> SlotRecord<'_> {
        SlotRecord { fleet: self, slot: slot as usize }
    }
}

/// Built-in attributes as text; an unknown cluster, zone or region is a missing key.
fn attribute_text(instance: &Instance, attribute: Attribute) -> Option<Box<str>> {
    let known = |text: &str| (!text.is_empty()).then(|| text.into());
    match attribute {
        Attribute::Cluster => known(&instance.cluster),
        Attribute::Zone => known(&instance.locality.zone),
        Attribute::Region => known(&instance.locality.region),
        Attribute::Id => known(instance.id.as_str()),
        Attribute::Host => known(instance.address.host()),
        Attribute::Port => Some(instance.address.port().to_string().into()),
        Attribute::Weight => Some(instance.weight.to_string().into()),
        Attribute::Healthy => Some(instance.healthy.to_string().into()),
    }
}

impl Columns for Fleet {
    fn len(&self) -> usize {
        self.slots()
    }

    fn column(&self, key: KeyId) -> Option<ColumnView<'_>> {
        let column = self.columns.get(key.0 as usize)?;
        Some(ColumnView { codes: &column.codes, values: &column.values })
    }
}

/// One instance, read through the columns.
pub(crate) struct SlotRecord<'a> {
    fleet: &'a Fleet,
    slot: usize,
}

impl Record for SlotRecord<'_> {
    fn get(&self, key: KeyId) -> Option<Value<'_>> {
        self.fleet.columns.get(key.0 as usize)?.at(self.slot).map(Value::Parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, version: &str) -> Entry {
        let instance = Instance::new("h:1".parse().unwrap()).with_id(id).with_meta("version", version);
        Entry { instance, state: Arc::default(), epoch: 0, attention: Arc::default() }
    }

    fn ids(fleet: &Fleet) -> Vec<&str> {
        fleet.order.iter().map(|&slot| fleet.entry(slot).instance.id.as_str()).collect()
    }

    #[test]
    fn slots_are_kept_and_order_follows_ids() {
        let keys = [Key::Name("version".into())];
        let mut fleet = Fleet::default().with_keys(&keys);
        fleet.put_new(vec![entry("c", "1"), entry("a", "1")], &keys);
        let slot = fleet.find("c").unwrap();
        fleet.put_new(vec![entry("b", "2")], &keys);
        fleet.replace(slot, entry("c", "3"), &keys);
        assert_eq!(ids(&fleet), ["a", "b", "c"]);
        assert_eq!(fleet.find("c"), Some(slot));
        fleet.remove(&[fleet.find("a").unwrap()]);
        assert_eq!(ids(&fleet), ["b", "c"]);
        fleet.put_new(vec![entry("d", "3"), entry("aa", "9")], &keys);
        assert_eq!(ids(&fleet), ["aa", "b", "c", "d"]);
        assert_eq!(fleet.slots(), 4, "the slot of `a` is used again");
    }

    /// `routing.md` T53: ten thousand labels that come and go leave no trace in the dictionary.
    #[test]
    fn t53_values_nobody_has_are_forgotten() {
        let keys = [Key::Name("version".into())];
        let mut fleet = Fleet::default().with_keys(&keys);
        let slots = fleet.put_new(vec![entry("a", "0")], &keys);
        for n in 0..10_000 {
            fleet.replace(slots[0], entry("a", &n.to_string()), &keys);
        }
        assert!(fleet.columns[0].values.len() <= 2);
        assert_eq!(fleet.columns[0].texts.len(), 1);
    }

    #[test]
    fn latency_follows_peaks_up_and_decays_down() {
        let state = State::default();
        state.record_latency(1_000);
        state.record_latency(9_000);
        assert_eq!(state.latency(), 9_000);
        state.record_latency(1_000);
        assert_eq!(state.latency(), 8_200);
    }
}
