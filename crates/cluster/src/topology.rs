//! Who owns what: the topology document.
//!
//! Everything routers and shards must agree on is one small document: the groups, their shards and addresses, which
//! tenants belong to which group, which slots to which shard, and since which epoch. It is validated as a whole before
//! anything accepts it, changed only by compare-and-swap, and every router and shard serves from the last good one.
//!
//! - A *bucket*, *range* or *override* says which group a tenant belongs to; an override wins over a range, a range over
//!   the bucket.
//! - A *slot* of a group is owned by exactly one shard of that group, in all stores alike.
//! - The *topology epoch* grows by one with every accepted change. An owner entry carries the epoch at which it last
//!   changed hands; it is that number requests and answers compare, so an unrelated change disturbs nobody.
//!
//! [`Document`] is the text as written; [`Topology`] the validated value everything else uses.

mod document;
mod plan;
mod read;
mod store;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::placement::{self, BUCKETS, SkewWarning, SlotFunction, Span};
use crate::protocol::{Moved, ShardId};
use crate::slots::SlotSet;

pub use document::{
    BucketEntry, Defect, Document, FORMAT_VERSION, GroupEntry, OverrideEntry, OwnerEntry, RangeEntry, ReplicaEntry,
    ShardEntry, Step, Tenants,
};
pub use plan::{Change, Plan, shrinks};
pub use store::{
    Accepted, Apply, FileStore, HISTORY_MAX, HistoryEntry, Prepared, Revision, Snapshot, StoreError, TopologyStore,
    Watched, Watcher,
};

/// Index of a group in [`Topology::groups`].
pub type GroupIndex = u32;
/// Index of a shard in [`Group::shards`].
pub type ShardIndex = u32;

/// The owner of a piece, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Index of the owning group or shard.
    pub index: u32,
    /// Topology epoch at which it last changed hands.
    pub epoch: u64,
}

/// A shard of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its name, unique in the group.
    pub id: ShardId,
    /// Where its copies listen, for deployments without a registry; may be empty.
    pub replicas: Vec<ReplicaEntry>,
}

/// A server group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name, unique.
    pub name: Arc<str>,
    /// Shards at creation: the modulus that placement stays compatible with.
    pub base_shards: u32,
    /// Its shards.
    pub shards: Vec<Shard>,
    owners: Vec<Option<Owner>>,
    /// The same by shard, because every listing asks for all slots of its group.
    parts: Vec<Part>,
    all: SlotSet,
}

/// Slots of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The owner.
    pub shard: ShardIndex,
    /// Its slots.
    pub slots: SlotSet,
    /// The highest epoch among their entries.
    pub epoch: u64,
}

impl Group {
    fn new(name: Arc<str>, base_shards: u32, shards: Vec<Shard>, owners: Vec<Option<Owner>>) -> Group {
        let all = SlotSet::all(owners.len() as u32);
        let mut group = Group { name, base_shards, shards, owners, parts: Vec::new(), all };
        group.parts = group.parts_of(group.all.iter());
        group
    }

    /// Slots by owner, in order of the owners' index.
    fn parts_of(&self, slots: impl Iterator<Item = u32>) -> Vec<Part> {
        let mut parts: BTreeMap<ShardIndex, Part> = BTreeMap::new();
        for slot in slots {
            if let Some(owner) = self.owner(slot) {
                let fresh = || Part { shard: owner.index, slots: SlotSet::new(), epoch: 0 };
                let part = parts.entry(owner.index).or_insert_with(fresh);
                part.slots.insert(slot);
                part.epoch = part.epoch.max(owner.epoch);
            }
        }
        parts.into_values().collect()
    }

    /// How many slots it has.
    pub fn slots(&self) -> u32 {
        self.owners.len() as u32
    }

    /// Who owns a slot; `None` where nobody does or there is no such slot.
    pub fn owner(&self, slot: u32) -> Option<Owner> {
        self.owners.get(slot as usize).copied().flatten()
    }

    /// The index of a shard by name.
    pub fn shard(&self, name: &str) -> Option<ShardIndex> {
        self.shards.iter().position(|shard| &*shard.id.shard == name).map(|at| at as u32)
    }

    /// The slots of one shard.
    pub fn owned_by(&self, shard: ShardIndex) -> SlotSet {
        let part = self.parts.iter().find(|part| part.shard == shard);
        part.map(|part| part.slots.clone()).unwrap_or_default()
    }

    /// The highest epoch among the owner entries of these slots; 0 for none.
    pub fn epoch_of(&self, slots: &SlotSet) -> u64 {
        slots.iter().filter_map(|slot| self.owner(slot)).map(|owner| owner.epoch).max().unwrap_or(0)
    }

    /// These slots by owner, and those nobody owns (or that do not exist).
    pub fn split(&self, slots: &SlotSet) -> (Vec<Part>, SlotSet) {
        if *slots == self.all {
            let gaps = self.parts.iter().fold(slots.clone(), |left, part| left.difference(&part.slots));
            return (self.parts.clone(), gaps);
        }
        // Nearly always all of them are one shard's.
        let owner = slots.first().and_then(|slot| self.owner(slot));
        let part = owner.and_then(|owner| self.parts.iter().find(|part| part.shard == owner.index));
        if let Some(part) = part.filter(|part| part.slots.contains_all(slots)) {
            let epoch = if part.slots == *slots { part.epoch } else { self.epoch_of(slots) };
            return (vec![Part { shard: part.shard, slots: slots.clone(), epoch }], SlotSet::new());
        }
        let parts = self.parts_of(slots.iter());
        let gaps = parts.iter().fold(slots.clone(), |left, part| left.difference(&part.slots));
        (parts, gaps)
    }

    /// All slots.
    pub fn all_slots(&self) -> SlotSet {
        self.all.clone()
    }
}

/// Which rule placed a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlacedBy {
    /// An override for this very tenant.
    Override,
    /// A range of tenants.
    Range,
    /// The tenant's bucket.
    Bucket,
}

/// Where a tenant's rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantPlace {
    /// Its group.
    pub group: GroupIndex,
    /// Since when.
    pub epoch: u64,
    /// Which rule said so.
    pub by: PlacedBy,
    /// Its bucket, whether that decided or not.
    pub bucket: u32,
    /// Over which classes of the group its rows are spread.
    pub span: Span,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    from: u64,
    to: u64,
    owner: Owner,
}

/// A validated topology. Immutable; a change makes a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    epoch: u64,
    groups: Vec<Group>,
    buckets: Vec<Option<Owner>>,
    /// Ascending, disjoint.
    ranges: Vec<Range>,
    overrides: HashMap<u64, (Owner, Option<Span>)>,
    slot_functions: BTreeMap<String, SlotFunction>,
    document: Document,
}

impl Topology {
    /// A fresh topology: `groups` groups `g0`, `g1`, … of `shards` shards `s0`, `s1`, … each, tenant buckets dealt out
    /// evenly, slot owners as `id mod shards`.
    ///
    /// # Errors
    /// When a number is 0 or out of range.
    pub fn initial(groups: u32, shards: u32) -> Result<Topology, Defect> {
        Topology::new(Document::initial(groups, shards)?)
    }

    /// Validates a document: every reference resolves, buckets and slots are covered completely and once.
    ///
    /// # Errors
    /// The first defect, with the path to it.
    pub fn new(document: Document) -> Result<Topology, Defect> {
        document.validate(false)
    }

    /// Accepts a document whose buckets or slots are not completely covered, as another tool may have forced it into a
    /// shared store. What nobody owns is answered with `coverage_gap`, everything else is served.
    ///
    /// # Errors
    /// Any other defect.
    pub fn with_gaps(document: Document) -> Result<Topology, Defect> {
        document.validate(true)
    }

    /// The document it was made of.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// Counts up with every change.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The groups, in document order.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// A group and its index by name.
    pub fn group(&self, name: &str) -> Option<(GroupIndex, &Group)> {
        self.groups.iter().enumerate().find(|(_, group)| &*group.name == name).map(|(at, group)| (at as u32, group))
    }

    /// How the ids of a store become slots; `mod` where the topology does not say.
    pub fn slot_function(&self, store: &str) -> SlotFunction {
        self.slot_functions.get(store).copied().unwrap_or_default()
    }

    /// Where a tenant's rows are; `None` where nobody owns its bucket.
    pub fn tenant(&self, tenant: u64) -> Option<TenantPlace> {
        let bucket = placement::bucket(tenant);
        let (owner, by, span) = if let Some((owner, span)) = self.overrides.get(&tenant) {
            (*owner, PlacedBy::Override, *span)
        } else if let Some(range) = self.range_of(tenant) {
            (range.owner, PlacedBy::Range, None)
        } else {
            (self.buckets.get(bucket as usize).copied().flatten()?, PlacedBy::Bucket, None)
        };
        let group = self.groups.get(owner.index as usize)?;
        let span = span.unwrap_or(Span::whole(group.base_shards));
        Some(TenantPlace { group: owner.index, epoch: owner.epoch, by, bucket, span })
    }

    fn range_of(&self, tenant: u64) -> Option<&Range> {
        let at = self.ranges.partition_point(|range| range.from <= tenant);
        self.ranges[..at].last().filter(|range| tenant <= range.to)
    }

    /// The slot of an id in a group, for a tenant with this span.
    ///
    /// # Panics
    /// Never for a group of this topology: validation guarantees that slots are a multiple of base shards.
    pub fn slot(&self, group: GroupIndex, span: Span, store: &str, id: u64) -> u32 {
        let group = &self.groups[group as usize];
        span.slot(self.slot_function(store).apply(id), group.base_shards, group.slots())
    }

    /// The slots of a group that a tenant's rows can be in.
    pub fn span_slots(&self, place: &TenantPlace) -> SlotSet {
        let group = &self.groups[place.group as usize];
        let n0 = group.base_shards;
        if place.span.width >= n0 {
            return group.all_slots();
        }
        let in_span = |slot: &u32| (slot % n0 + n0 - place.span.base) % n0 < place.span.width;
        (0..group.slots()).filter(in_span).collect()
    }

    /// The spans that tenants of a group can have: the whole group, and those narrower ones that overrides give.
    pub fn spans_of(&self, group: GroupIndex) -> Vec<Span> {
        let mut spans = vec![Span::whole(self.groups[group as usize].base_shards)];
        for (owner, span) in self.overrides.values() {
            if let Some(span) = span
                && owner.index == group
                && !spans.contains(span)
            {
                spans.push(*span);
            }
        }
        spans
    }

    /// Every shard of every group.
    pub fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.groups.iter().flat_map(|group| &group.shards)
    }

    /// How many shards there are.
    pub fn shard_count(&self) -> usize {
        self.groups.iter().map(|group| group.shards.len()).sum()
    }

    /// The same topology after hearing from a shard that slots of a group belong to another one. `None` when nothing
    /// follows from it: the shard is unknown here, or what is known is as new.
    pub fn learn(&self, group: &str, moved: &Moved) -> Option<Topology> {
        let (index, known) = self.group(group)?;
        let to = known.shard(&moved.to)?;
        let mut owners = known.owners.clone();
        let mut changed = false;
        for slot in moved.slots.iter() {
            let Some(entry) = owners.get_mut(slot as usize) else { continue };
            if entry.is_none_or(|owner| owner.epoch < moved.epoch) {
                *entry = Some(Owner { index: to, epoch: moved.epoch });
                changed = true;
            }
        }
        changed.then(|| {
            let mut learned = self.clone();
            let Group { name, base_shards, shards, .. } = known.clone();
            learned.groups[index as usize] = Group::new(name, base_shards, shards, owners);
            learned
        })
    }

    /// How a shard answers for the asked-for slots, from what it knows of ownership. Whether its copy is ready is another
    /// question.
    ///
    /// A stale `epoch` alone is never an error: owned slots are answered and others are moved. When the request knows
    /// something newer, [`Ownership::Behind`] asks the shard to refresh first.
    pub fn ownership(&self, shard: &ShardId, slots: &SlotSet, epoch: u64) -> Ownership {
        let Some((_, group)) = self.group(&shard.group) else { return Ownership::Behind };
        let (parts, nobody) = group.split(slots);
        let known = parts.iter().map(|part| part.epoch).max().unwrap_or(0);
        if epoch > known || slots.last().is_some_and(|slot| slot >= group.slots()) {
            return Ownership::Behind;
        }
        let mut split = Split { nobody, ..Split::default() };
        for Part { shard: owner, slots, epoch } in parts {
            let name = &group.shards[owner as usize].id.shard;
            if *name == shard.shard {
                split.owned = slots;
            } else {
                split.moved.push(Moved { slots, to: Arc::clone(name), epoch });
            }
        }
        Ownership::Known(split)
    }

    /// Skews to warn of when a source's ids grow in steps.
    pub fn skew(&self, store: &str, increment: u32) -> Vec<SkewWarning> {
        let function = self.slot_function(store);
        self.groups
            .iter()
            .filter_map(|group| placement::skew(&group.name, group.base_shards, function, increment))
            .collect()
    }

    /// `groups × shards` in words, for logs.
    pub fn shape(&self) -> Shape<'_> {
        Shape(self)
    }
}

/// What a shard knows about slots it is asked for; see [`Topology::ownership`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The request relies on newer knowledge than this topology has. Refresh for a short while; then it is "not ready".
    Behind,
    /// Every slot is accounted for.
    Known(Split),
}

/// Asked-for slots by what becomes of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// This shard's own.
    pub owned: SlotSet,
    /// Other shards'.
    pub moved: Vec<Moved>,
    /// Nobody's.
    pub nobody: SlotSet,
}

/// Prints as `2 groups × 3 shards, epoch 7`.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a>(&'a Topology);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Topology { groups, epoch, .. } = self.0;
        let sizes: Vec<usize> = groups.iter().map(|group| group.shards.len()).collect();
        let even = sizes.windows(2).all(|pair| pair[0] == pair[1]);
        match sizes.first() {
            Some(each) if even => write!(f, "{} groups × {each} shards, epoch {epoch}", groups.len()),
            _ => write!(f, "{} groups, {} shards, epoch {epoch}", groups.len(), self.0.shard_count()),
        }
    }
}

/// How many buckets there are; the length of a complete bucket table.
pub(crate) const BUCKET_COUNT: usize = BUCKETS as usize;

#[cfg(test)]
mod tests;
