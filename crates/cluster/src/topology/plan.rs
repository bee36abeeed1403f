//! What a change of topology moves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::{Document, Owner, Topology};
use crate::slots::SlotSet;

/// One difference between two topologies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Change {
    /// A group appears.
    GroupAdded {
        /// Which.
        group: String,
    },
    /// A group disappears.
    GroupRemoved {
        /// Which.
        group: String,
    },
    /// A group has another number of slots or base shards: every row of it would be placed anew.
    GroupReshaped {
        /// Which.
        group: String,
    },
    /// A shard appears.
    ShardAdded {
        /// Its group.
        group: String,
        /// Which.
        shard: String,
    },
    /// A shard disappears.
    ShardRemoved {
        /// Its group.
        group: String,
        /// Which.
        shard: String,
    },
    /// A shard's copies listen elsewhere.
    ReplicasChanged {
        /// Its group.
        group: String,
        /// Which.
        shard: String,
    },
    /// Slots go from one shard to another; `from` is absent where nobody had them.
    SlotsMoved {
        /// Their group.
        group: String,
        /// Which.
        #[serde(serialize_with = "text")]
        slots: SlotSet,
        /// How many.
        count: u32,
        /// Their owner before.
        from: Option<String>,
        /// Their owner after.
        to: Option<String>,
    },
    /// Buckets of tenants go from one group to another.
    BucketsMoved {
        /// Which.
        #[serde(serialize_with = "text")]
        buckets: SlotSet,
        /// How many.
        count: u32,
        /// Their group before.
        from: Option<String>,
        /// Their group after.
        to: Option<String>,
    },
    /// One tenant is placed elsewhere by an override that was added, changed or removed.
    TenantMoved {
        /// Which.
        #[serde(serialize_with = "text")]
        tenant: u64,
        /// Its group before.
        from: Option<String>,
        /// Its group after.
        to: Option<String>,
    },
    /// The tenants in a range are placed elsewhere, as far as no override says otherwise.
    RangeMoved {
        /// First tenant.
        #[serde(serialize_with = "text")]
        first: u64,
        /// Last tenant.
        #[serde(serialize_with = "text")]
        last: u64,
        /// Their group before; absent: by bucket.
        from: Option<String>,
        /// Their group after; absent: by bucket.
        to: Option<String>,
    },
    /// A store's ids become slots in another way: nearly every row of it would move.
    SlotFunctionChanged {
        /// Which.
        store: String,
    },
    /// A tenant's rows are spread over other shards of its group.
    SpanChanged {
        /// Which.
        #[serde(serialize_with = "text")]
        tenant: u64,
    },
}

fn text<S: serde::Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl Change {
    /// Whether rows would have to move for it.
    pub fn moves_rows(&self) -> bool {
        !matches!(self, Change::GroupAdded { .. } | Change::ShardAdded { .. } | Change::ReplicasChanged { .. })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "nobody".into());
        match self {
            Change::GroupAdded { group } => write!(f, "group {group} is added"),
            Change::GroupRemoved { group } => write!(f, "group {group} is removed"),
            Change::GroupReshaped { group } => write!(f, "group {group} gets another number of slots"),
            Change::ShardAdded { group, shard } => write!(f, "shard {group}/{shard} is added"),
            Change::ShardRemoved { group, shard } => write!(f, "shard {group}/{shard} is removed"),
            Change::ReplicasChanged { group, shard } => write!(f, "copies of {group}/{shard} listen elsewhere"),
            Change::SlotsMoved { group, slots, count, from, to } => {
                write!(f, "{count} slots of {group} go from {} to {}: {slots}", name(from), name(to))
            }
            Change::BucketsMoved { buckets, count, from, to } => {
                write!(f, "{count} tenant buckets go from {} to {}: {buckets}", name(from), name(to))
            }
            Change::TenantMoved { tenant, from, to } => {
                write!(f, "tenant {tenant} goes from {} to {}", name(from), name(to))
            }
            Change::RangeMoved { first, last, from, to } => {
                let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "their buckets' groups".into());
                write!(f, "tenants {first} to {last} go from {} to {}", name(from), name(to))
            }
            Change::SlotFunctionChanged { store } => write!(f, "ids of store {store} become slots in another way"),
            Change::SpanChanged { tenant } => write!(f, "tenant {tenant} is spread over other shards"),
        }
    }
}

/// Everything a change of topology would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The differences, groups first; empty when only epochs differ.
    pub changes: Vec<Change>,
}

impl Plan {
    /// Compares two topologies.
    pub fn between(before: &Topology, after: &Topology) -> Plan {
        let mut changes = Vec::new();
        groups(before, after, &mut changes);
        slots(before, after, &mut changes);
        tenants(before, after, &mut changes);
        let stores: BTreeSet<&String> = before.slot_functions.keys().chain(after.slot_functions.keys()).collect();
        for store in stores {
            if before.slot_function(store) != after.slot_function(store) {
                changes.push(Change::SlotFunctionChanged { store: store.clone() });
            }
        }
        Plan { changes }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes for which rows would have to move.
    pub fn moving(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.moves_rows())
    }

    /// How many slots change hands.
    pub fn slots_moved(&self) -> u32 {
        let count = |change: &Change| match change {
            Change::SlotsMoved { count, .. } => *count,
            _ => 0,
        };
        self.changes.iter().map(count).sum()
    }
}

fn groups(before: &Topology, after: &Topology, changes: &mut Vec<Change>) {
    for group in after.groups() {
        let name = group.name.to_string();
        let Some((_, old)) = before.group(&name) else {
            changes.push(Change::GroupAdded { group: name });
            continue;
        };
        if (old.base_shards, old.slots()) != (group.base_shards, group.slots()) {
            changes.push(Change::GroupReshaped { group: name.clone() });
        }
        for shard in &group.shards {
            let id = shard.id.shard.to_string();
            match old.shard(&id) {
                None => changes.push(Change::ShardAdded { group: name.clone(), shard: id }),
                Some(at) if old.shards[at as usize].replicas != shard.replicas => {
                    changes.push(Change::ReplicasChanged { group: name.clone(), shard: id });
                }
                Some(_) => {}
            }
        }
        for shard in old.shards.iter().filter(|shard| group.shard(&shard.id.shard).is_none()) {
            changes.push(Change::ShardRemoved { group: name.clone(), shard: shard.id.shard.to_string() });
        }
    }
    for group in before.groups().iter().filter(|group| after.group(&group.name).is_none()) {
        changes.push(Change::GroupRemoved { group: group.name.to_string() });
    }
}

fn slots(before: &Topology, after: &Topology, changes: &mut Vec<Change>) {
    for group in after.groups() {
        let Some((_, old)) = before.group(&group.name) else { continue };
        let mut moved: BTreeMap<(Option<&str>, Option<&str>), SlotSet> = BTreeMap::new();
        for slot in 0..group.slots().min(old.slots()) {
            let from = old.owner(slot).map(|owner| &*old.shards[owner.index as usize].id.shard);
            let to = group.owner(slot).map(|owner| &*group.shards[owner.index as usize].id.shard);
            if from != to {
                moved.entry((from, to)).or_default().insert(slot);
            }
        }
        changes.extend(moved.into_iter().map(|((from, to), slots)| Change::SlotsMoved {
            group: group.name.to_string(),
            count: slots.len(),
            slots,
            from: from.map(str::to_owned),
            to: to.map(str::to_owned),
        }));
    }
}

fn tenants(before: &Topology, after: &Topology, changes: &mut Vec<Change>) {
    let group_of = |topology: &Topology, owner: Option<Owner>| {
        owner.and_then(|owner| topology.groups().get(owner.index as usize)).map(|group| group.name.to_string())
    };
    let mut moved: BTreeMap<(Option<String>, Option<String>), SlotSet> = BTreeMap::new();
    for (bucket, (from, to)) in before.buckets.iter().zip(&after.buckets).enumerate() {
        let (from, to) = (group_of(before, *from), group_of(after, *to));
        if from != to {
            moved.entry((from, to)).or_default().insert(bucket as u32);
        }
    }
    changes.extend(moved.into_iter().map(|((from, to), buckets)| Change::BucketsMoved {
        count: buckets.len(),
        buckets,
        from,
        to,
    }));
    // Ranges cut the tenants into pieces within which both sides are constant.
    let mut starts: BTreeSet<u64> = BTreeSet::new();
    for range in before.ranges.iter().chain(&after.ranges) {
        starts.insert(range.from);
        starts.extend(range.to.checked_add(1));
    }
    let starts: Vec<u64> = starts.into_iter().collect();
    let mut pieces: Vec<(u64, u64, Option<String>, Option<String>)> = Vec::new();
    for (at, &first) in starts.iter().enumerate() {
        let last = starts.get(at + 1).map_or(u64::MAX, |next| next - 1);
        let from = before.range_of(first).and_then(|range| group_of(before, Some(range.owner)));
        let to = after.range_of(first).and_then(|range| group_of(after, Some(range.owner)));
        if from == to {
            continue;
        }
        match pieces.last_mut() {
            Some(piece) if piece.1.checked_add(1) == Some(first) && (&piece.2, &piece.3) == (&from, &to) => {
                piece.1 = last
            }
            _ => pieces.push((first, last, from, to)),
        }
    }
    changes.extend(pieces.into_iter().map(|(first, last, from, to)| Change::RangeMoved { first, last, from, to }));
    let overridden: BTreeSet<u64> = before.overrides.keys().chain(after.overrides.keys()).copied().collect();
    for tenant in overridden {
        let (old, new) = (before.tenant(tenant), after.tenant(tenant));
        let name = |topology: &Topology, place: Option<super::TenantPlace>| {
            place.map(|place| topology.groups()[place.group as usize].name.to_string())
        };
        let (from, to) = (name(before, old), name(after, new));
        if from != to {
            changes.push(Change::TenantMoved { tenant, from, to });
        } else if old.map(|place| place.span) != new.map(|place| place.span) {
            changes.push(Change::SpanChanged { tenant });
        }
    }
}

/// Why a document looks like an accident: it has no group, or loses groups or shards the current one has. Such a
/// document is applied only when forced against the exact revision it replaces.
pub fn shrinks(before: &Topology, after: &Document) -> Option<String> {
    if after.groups.is_empty() {
        return Some(format!("the document has no group, the topology in force has {}", before.groups().len()));
    }
    let lost = |what: &str, names: Vec<String>| {
        let shown = names.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        let more = if names.len() > 5 { ", …" } else { "" };
        format!("{} {what} would disappear: {shown}{more}", names.len())
    };
    let groups: Vec<String> = before
        .groups()
        .iter()
        .map(|group| group.name.to_string())
        .filter(|name| !after.groups.iter().any(|group| group.name == *name))
        .collect();
    if !groups.is_empty() {
        return Some(lost("groups", groups));
    }
    let shards: Vec<String> = before
        .shards()
        .filter(|shard| {
            let group = after.groups.iter().find(|group| *group.name == *shard.id.group);
            group.is_some_and(|group| !group.shards.iter().any(|have| *have.name == *shard.id.shard))
        })
        .map(|shard| shard.id.to_string())
        .collect();
    (!shards.is_empty()).then(|| lost("shards", shards))
}

impl Document {
    /// The document with the epochs a store gives it: `epoch` for itself and for every entry that changes hands, the old
    /// epoch for pieces whose owner stays. Entries are split and merged as that needs.
    #[must_use]
    pub(super) fn stamped(&self, before: Option<&Topology>, epoch: u64) -> Document {
        let mut document = self.clone();
        document.epoch = epoch;
        let old_group = |topology: &Topology, owner: Owner| topology.groups()[owner.index as usize].name.to_string();
        let mut buckets: BTreeMap<(String, u64), SlotSet> = BTreeMap::new();
        for entry in &self.tenants.buckets {
            for bucket in entry.buckets.iter() {
                let old = before.and_then(|topology| {
                    let owner = topology.buckets.get(bucket as usize).copied().flatten()?;
                    (old_group(topology, owner) == entry.group).then_some(owner.epoch)
                });
                buckets.entry((entry.group.clone(), old.unwrap_or(epoch))).or_default().insert(bucket);
            }
        }
        document.tenants.buckets =
            buckets.into_iter().map(|((group, epoch), buckets)| super::BucketEntry { buckets, group, epoch }).collect();
        for range in &mut document.tenants.ranges {
            let same = before.and_then(|topology| {
                let old = topology.ranges.iter().find(|old| (old.from, old.to) == (range.from, range.to))?;
                (old_group(topology, old.owner) == range.group).then_some(old.owner.epoch)
            });
            range.epoch = same.unwrap_or(epoch);
        }
        for entry in &mut document.tenants.overrides {
            let same = before.and_then(|topology| {
                let (owner, span) = topology.overrides.get(&entry.tenant)?;
                (old_group(topology, *owner) == entry.group && *span == entry.span).then_some(owner.epoch)
            });
            entry.epoch = same.unwrap_or(epoch);
        }
        for group in &mut document.groups {
            let old = before.and_then(|topology| topology.group(&group.name)).map(|(_, old)| old);
            let order: Vec<String> = group.shards.iter().map(|shard| shard.name.clone()).collect();
            let mut owners: BTreeMap<(usize, String, u64), SlotSet> = BTreeMap::new();
            for entry in &group.owners {
                for slot in entry.slots.iter() {
                    let same = old.and_then(|old| {
                        let owner = old.owner(slot)?;
                        (*old.shards[owner.index as usize].id.shard == *entry.shard).then_some(owner.epoch)
                    });
                    let rank = order.iter().position(|name| *name == entry.shard).unwrap_or(usize::MAX);
                    owners.entry((rank, entry.shard.clone(), same.unwrap_or(epoch))).or_default().insert(slot);
                }
            }
            group.owners = owners
                .into_iter()
                .map(|((_, shard, epoch), slots)| super::OwnerEntry { slots, shard, epoch })
                .collect();
        }
        document
    }
}
