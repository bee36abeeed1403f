//! The document as written, and its validation.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use serde::{Serialize, Serializer};

use super::{BUCKET_COUNT, Group, Owner, Range, Shard, Topology};
use crate::placement::{BUCKETS, SlotFunction, Span, slot_count};
use crate::protocol::ShardId;
use crate::slots::{SLOTS_MAX, SlotSet};

/// Version of the document format this build reads and writes.
pub const FORMAT_VERSION: u32 = 1;

/// Longest group, shard or store name.
const NAME_BYTES_MAX: usize = 64;
/// Most groups; as many as there are buckets.
const GROUPS_MAX: usize = 4_096;
/// Most slots of all groups together: a thousand groups of the usual size. A short document must not make its readers
/// run out of memory.
const SLOTS_TOTAL_MAX: u64 = 1 << 22;

/// A topology document, nothing checked. It serialises to the JSON form; see `docs/placement.md` for the format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Document {
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// Topology epoch; what a store accepts gets the next one.
    pub epoch: u64,
    /// The epoch this document replaced by force although it is empty or lost groups or shards; written by the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forced_over: Option<u64>,
    /// Slot function by store; stores not named here use `mod`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub slot_functions: BTreeMap<String, SlotFunction>,
    /// Which tenants belong where.
    pub tenants: Tenants,
    /// The groups.
    pub groups: Vec<GroupEntry>,
}

/// Which tenants belong to which group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tenants {
    /// Buckets; together all of them, each once.
    pub buckets: Vec<BucketEntry>,
    /// Ranges of tenant ids; they win over buckets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<RangeEntry>,
    /// Single tenants; they win over ranges.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<OverrideEntry>,
}

/// Buckets of one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BucketEntry {
    /// Which, as `0-4095/2`.
    #[serde(serialize_with = "text")]
    pub buckets: SlotSet,
    /// Whose.
    pub group: String,
    /// Since when.
    pub epoch: u64,
}

/// A range of tenant ids of one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RangeEntry {
    /// First tenant, inclusive.
    #[serde(serialize_with = "text")]
    pub from: u64,
    /// Last tenant, inclusive.
    #[serde(serialize_with = "text")]
    pub to: u64,
    /// Whose.
    pub group: String,
    /// Since when.
    pub epoch: u64,
}

/// One tenant placed by hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OverrideEntry {
    /// The tenant.
    #[serde(serialize_with = "text")]
    pub tenant: u64,
    /// Its group.
    pub group: String,
    /// Since when.
    pub epoch: u64,
    /// Its span; absent: the whole group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span: Option<Span>,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupEntry {
    /// Its name.
    pub name: String,
    /// Shards at creation.
    pub base_shards: u32,
    /// Number of slots, a multiple of `base_shards`.
    pub slots: u32,
    /// Its shards.
    pub shards: Vec<ShardEntry>,
    /// Slot owners; together all slots, each once.
    pub owners: Vec<OwnerEntry>,
}

/// A shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShardEntry {
    /// Its name, unique in the group.
    pub name: String,
    /// Where its copies listen; empty where a registry knows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<ReplicaEntry>,
}

/// A copy of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplicaEntry {
    /// `host:port`.
    pub address: String,
    /// Its zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// Slots of one shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OwnerEntry {
    /// Which, as `0-4095/2`.
    #[serde(serialize_with = "text")]
    pub slots: SlotSet,
    /// Whose.
    pub shard: String,
    /// Since when.
    pub epoch: u64,
}

fn text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// One step of the way to a place in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A key of a map.
    Key(&'static str),
    /// An item of a list.
    Item(usize),
}

/// What makes a document unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", at(.path))]
pub struct Defect {
    /// Stable snake_case word.
    pub code: &'static str,
    /// What is wrong, with the offending value.
    pub message: String,
    /// Where; empty: the document as a whole.
    pub path: Vec<Step>,
}

fn at(path: &[Step]) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            Step::Key(key) if out.is_empty() => out.push_str(key),
            Step::Key(key) => {
                out.push('.');
                out.push_str(key);
            }
            Step::Item(index) => out.push_str(&format!("[{index}]")),
        }
    }
    if !out.is_empty() {
        out.push_str(": ");
    }
    out
}

/// Keeps the way while validation goes down.
struct Way<'w>(Option<&'w Way<'w>>, Option<Step>);

impl<'w> Way<'w> {
    const ROOT: Way<'static> = Way(None, None);

    fn key(&'w self, key: &'static str) -> Way<'w> {
        Way(Some(self), Some(Step::Key(key)))
    }

    fn item(&'w self, index: usize) -> Way<'w> {
        Way(Some(self), Some(Step::Item(index)))
    }

    fn defect(&self, code: &'static str, message: impl Into<String>) -> Defect {
        let mut path = Vec::new();
        let mut way = Some(self);
        while let Some(Way(up, step)) = way {
            path.extend(step.clone());
            way = *up;
        }
        path.reverse();
        Defect { code, message: message.into(), path }
    }
}

impl Document {
    /// See [`Topology::initial`].
    pub(super) fn initial(groups: u32, shards: u32) -> Result<Document, Defect> {
        let bad = |what, number| Way::ROOT.defect("out_of_range", format!("{number} {what} are not possible"));
        if groups == 0 || groups as usize > GROUPS_MAX {
            return Err(bad("groups", groups));
        }
        let slots = slot_count(shards).ok_or_else(|| bad("shards", shards))?;
        if u64::from(slots) * u64::from(groups) > SLOTS_TOTAL_MAX {
            return Err(bad("groups of that many shards", groups));
        }
        let name = |group: u32| format!("g{group}");
        let owned = |shard: u32| (0..slots).filter(|slot| slot % shards == shard).collect();
        Ok(Document {
            version: FORMAT_VERSION,
            epoch: 1,
            forced_over: None,
            slot_functions: BTreeMap::new(),
            tenants: Tenants {
                buckets: (0..groups)
                    .map(|group| BucketEntry {
                        buckets: (0..BUCKETS).filter(|bucket| bucket % groups == group).collect(),
                        group: name(group),
                        epoch: 1,
                    })
                    // More groups than buckets leaves some without any.
                    .filter(|entry| !entry.buckets.is_empty())
                    .collect(),
                ..Tenants::default()
            },
            groups: (0..groups)
                .map(|group| GroupEntry {
                    name: name(group),
                    base_shards: shards,
                    slots,
                    shards: (0..shards)
                        .map(|shard| ShardEntry { name: format!("s{shard}"), replicas: Vec::new() })
                        .collect(),
                    owners: (0..shards)
                        .map(|shard| OwnerEntry { slots: owned(shard), shard: format!("s{shard}"), epoch: 1 })
                        .collect(),
                })
                .collect(),
        })
    }

    /// The JSON form, indented; reading it back gives an equal document.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings, numbers and lists always serialise")
    }

    /// Checks the whole document.
    pub(super) fn validate(self, gaps: bool) -> Result<Topology, Defect> {
        let root = Way::ROOT;
        if self.version != FORMAT_VERSION {
            let message = format!("format version {} is not known; this build reads {FORMAT_VERSION}", self.version);
            return Err(root.key("version").defect("unknown_version", message));
        }
        let way = root.key("groups");
        if self.groups.is_empty() && !gaps {
            return Err(way.defect("empty", "a topology needs at least one group"));
        }
        if self.groups.len() > GROUPS_MAX {
            return Err(way.defect("too_many", format!("{} groups; at most {GROUPS_MAX}", self.groups.len())));
        }
        let slots: u64 = self.groups.iter().map(|group| u64::from(group.slots)).sum();
        if slots > SLOTS_TOTAL_MAX {
            return Err(way.defect("too_many", format!("{slots} slots in all groups; at most {SLOTS_TOTAL_MAX}")));
        }
        for store in self.slot_functions.keys() {
            check_name(&root.key("slot_functions"), "store", store)?;
        }
        let mut names: HashMap<&str, u32> = HashMap::new();
        let mut groups = Vec::with_capacity(self.groups.len());
        for (at, entry) in self.groups.iter().enumerate() {
            let way = way.item(at);
            check_name(&way.key("name"), "group", &entry.name)?;
            if names.insert(&entry.name, at as u32).is_some() {
                return Err(way.key("name").defect("duplicate", format!("group `{}` is listed twice", entry.name)));
            }
            groups.push(group(&way, entry, self.epoch, gaps)?);
        }
        let way = root.key("tenants");
        let find = |way: &Way<'_>, name: &str, epoch: u64| match names.get(name) {
            None => Err(way.key("group").defect("unknown_group", format!("there is no group `{name}`"))),
            Some(_) if epoch > self.epoch => Err(way.key("epoch").defect("epoch_ahead", ahead(epoch, self.epoch))),
            Some(&index) => Ok(Owner { index, epoch }),
        };
        let mut buckets: Vec<Option<Owner>> = vec![None; BUCKET_COUNT];
        for (at, entry) in self.tenants.buckets.iter().enumerate() {
            let (list, key) = (way.key("buckets"), "buckets");
            let way = list.item(at);
            let owner = find(&way, &entry.group, entry.epoch)?;
            if let Some(last) = entry.buckets.last().filter(|&last| last >= BUCKETS) {
                return Err(way
                    .key(key)
                    .defect("out_of_range", format!("there is no bucket {last}; they go up to 4095")));
            }
            for bucket in entry.buckets.iter() {
                if buckets[bucket as usize].replace(owner).is_some() {
                    return Err(way.key(key).defect("overlap", format!("bucket {bucket} has two owners")));
                }
            }
        }
        if !gaps && let Some(missing) = missing(&buckets) {
            let message = format!("{} buckets have no owner: {missing}", missing.len());
            return Err(way.key("buckets").defect("gap", message));
        }
        let mut ranges = Vec::with_capacity(self.tenants.ranges.len());
        for (at, entry) in self.tenants.ranges.iter().enumerate() {
            let list = way.key("ranges");
            let way = list.item(at);
            let owner = find(&way, &entry.group, entry.epoch)?;
            if entry.from > entry.to {
                let message = format!("the range {}-{} runs backwards", entry.from, entry.to);
                return Err(way.key("to").defect("out_of_range", message));
            }
            ranges.push((at, Range { from: entry.from, to: entry.to, owner }));
        }
        ranges.sort_by_key(|(_, range)| range.from);
        if let Some(pair) = ranges.windows(2).find(|pair| pair[0].1.to >= pair[1].1.from) {
            let message = format!("tenant {} is in two ranges", pair[1].1.from);
            return Err(way.key("ranges").item(pair[1].0).defect("overlap", message));
        }
        let mut overrides = HashMap::with_capacity(self.tenants.overrides.len());
        for (at, entry) in self.tenants.overrides.iter().enumerate() {
            let list = way.key("overrides");
            let way = list.item(at);
            let owner = find(&way, &entry.group, entry.epoch)?;
            if let Some(span) = entry.span {
                let shards = groups[owner.index as usize].base_shards;
                if span.width == 0 || span.width > shards || span.base >= shards {
                    let message = format!("span {}+{} does not fit {shards} base shards", span.base, span.width);
                    return Err(way.key("span").defect("out_of_range", message));
                }
            }
            if overrides.insert(entry.tenant, (owner, entry.span)).is_some() {
                return Err(way.key("tenant").defect("overlap", format!("tenant {} has two overrides", entry.tenant)));
            }
        }
        let ranges = ranges.into_iter().map(|(_, range)| range).collect();
        let slot_functions = self.slot_functions.clone();
        Ok(Topology { epoch: self.epoch, groups, buckets, ranges, overrides, slot_functions, document: self })
    }
}

fn group(way: &Way<'_>, entry: &GroupEntry, epoch: u64, gaps: bool) -> Result<Group, Defect> {
    if slot_count(entry.base_shards).is_none() {
        let message = format!("{} base shards are not possible", entry.base_shards);
        return Err(way.key("base_shards").defect("out_of_range", message));
    }
    if entry.slots == 0 || entry.slots > SLOTS_MAX || !entry.slots.is_multiple_of(entry.base_shards) {
        let message =
            format!("{} slots are no multiple of {} base shards up to {SLOTS_MAX}", entry.slots, entry.base_shards);
        return Err(way.key("slots").defect("out_of_range", message));
    }
    if entry.shards.is_empty() {
        return Err(way.key("shards").defect("empty", format!("group `{}` has no shard", entry.name)));
    }
    let mut names: HashMap<&str, u32> = HashMap::new();
    let mut addresses = HashSet::new();
    let group: std::sync::Arc<str> = entry.name.as_str().into();
    let mut shards = Vec::with_capacity(entry.shards.len());
    for (at, shard) in entry.shards.iter().enumerate() {
        let list = way.key("shards");
        let way = list.item(at);
        check_name(&way.key("name"), "shard", &shard.name)?;
        if names.insert(&shard.name, at as u32).is_some() {
            return Err(way.key("name").defect("duplicate", format!("shard `{}` is listed twice", shard.name)));
        }
        for (at, replica) in shard.replicas.iter().enumerate() {
            let list = way.key("replicas");
            let way = list.item(at);
            if let Err(error) = replica.address.parse::<metaroute_core::Address>() {
                return Err(way.key("address").defect("bad_address", error.to_string()));
            }
            if !addresses.insert(replica.address.as_str()) {
                let message = format!("address `{}` is listed twice", replica.address);
                return Err(way.key("address").defect("duplicate", message));
            }
        }
        let id = ShardId { group: group.clone(), shard: shard.name.as_str().into() };
        shards.push(Shard { id, replicas: shard.replicas.clone() });
    }
    let mut owners: Vec<Option<Owner>> = vec![None; entry.slots as usize];
    for (at, owner) in entry.owners.iter().enumerate() {
        let list = way.key("owners");
        let way = list.item(at);
        let Some(&index) = names.get(owner.shard.as_str()) else {
            let message = format!("group `{}` has no shard `{}`", entry.name, owner.shard);
            return Err(way.key("shard").defect("unknown_shard", message));
        };
        if owner.epoch > epoch {
            return Err(way.key("epoch").defect("epoch_ahead", ahead(owner.epoch, epoch)));
        }
        if let Some(last) = owner.slots.last().filter(|&last| last >= entry.slots) {
            let message = format!("there is no slot {last}; group `{}` has {}", entry.name, entry.slots);
            return Err(way.key("slots").defect("out_of_range", message));
        }
        for slot in owner.slots.iter() {
            if owners[slot as usize].replace(Owner { index, epoch: owner.epoch }).is_some() {
                let message = format!("slot {slot} of group `{}` has two owners", entry.name);
                return Err(way.key("slots").defect("overlap", message));
            }
        }
    }
    if !gaps && let Some(missing) = missing(&owners) {
        let message = format!("{} slots of group `{}` have no owner: {missing}", missing.len(), entry.name);
        return Err(way.key("owners").defect("gap", message));
    }
    Ok(Group::new(group, entry.base_shards, shards, owners))
}

fn ahead(epoch: u64, topology: u64) -> String {
    format!("owner epoch {epoch} is ahead of the topology's epoch {topology}")
}

fn missing(owners: &[Option<Owner>]) -> Option<SlotSet> {
    let missing: SlotSet =
        owners.iter().enumerate().filter(|(_, owner)| owner.is_none()).map(|(at, _)| at as u32).collect();
    (!missing.is_empty()).then_some(missing)
}

fn check_name(way: &Way<'_>, what: &str, name: &str) -> Result<(), Defect> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'$');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(legal) {
        let message =
            format!("bad {what} name {name:?}: letters, digits, '_', '-', '.' and '$' only, at most 64 bytes");
        return Err(way.defect("bad_name", message));
    }
    Ok(())
}
