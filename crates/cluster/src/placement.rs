//! Where a row lives: tenant → bucket → group, id → slot → shard.
//!
//! Both levels go through a fixed number of virtual pieces (buckets of tenants, slots of ids) whose owners are looked up
//! in a table, because hashing straight onto the number of groups or shards makes that number permanent: going from 12
//! to 16 shards by `id mod n` moves 75 % of all rows, with slots it moves the 25 % that have to move.
//!
//! The functions here are pure and published with vectors in `docs/placement.md`; the tables are in
//! [`crate::topology`].

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::hash::mix64;

/// How many buckets tenants fall into.
pub const BUCKETS: u32 = 4_096;

/// A group has at least as many slots.
pub const SLOTS_MIN: u32 = 4_096;

/// Most shards a group may be created with.
pub const BASE_SHARDS_MAX: u32 = 1 << 16;

/// The bucket of a tenant: `mix64(user_id) mod 4096`. Tenant 0 is legal and falls into bucket 0.
///
/// ```
/// use metaroute_cluster::placement::bucket;
/// assert_eq!(bucket(0), 0);
/// assert_eq!(bucket(1), 1509);
/// ```
#[inline]
pub const fn bucket(tenant: u64) -> u32 {
    (mix64(tenant) % BUCKETS as u64) as u32
}

/// How many slots a group created with `base_shards` shards has: the smallest multiple of it that is at least
/// [`SLOTS_MIN`]. `None` for 0 or more than [`BASE_SHARDS_MAX`] shards.
///
/// Because the count is a multiple, `(id mod slots) mod base_shards` is `id mod base_shards`: a deployment that placed
/// rows by `id mod n` keeps every row where it is.
///
/// ```
/// use metaroute_cluster::placement::slot_count;
/// assert_eq!(slot_count(3), Some(4098));
/// assert_eq!(slot_count(16), Some(4096));
/// assert_eq!(slot_count(12), Some(4104));
/// ```
pub const fn slot_count(base_shards: u32) -> Option<u32> {
    if base_shards == 0 || base_shards > BASE_SHARDS_MAX {
        return None;
    }
    Some(SLOTS_MIN.div_ceil(base_shards) * base_shards)
}

/// How an id becomes the number that is spread over slots. Part of the topology, one per store; changing it moves
/// nearly every row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SlotFunction {
    /// The id itself: the placement of `id mod n`. Skewed where the source counts ids in steps, see [`used_shards`].
    #[default]
    Mod,
    /// [`mix64`] of the id: even whatever the ids are.
    Mix64,
}

impl SlotFunction {
    /// The number whose remainder decides.
    #[inline]
    pub const fn apply(self, id: u64) -> u64 {
        match self {
            SlotFunction::Mod => id,
            SlotFunction::Mix64 => mix64(id),
        }
    }
}

impl fmt::Display for SlotFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SlotFunction::Mod => "mod",
            SlotFunction::Mix64 => "mix64",
        })
    }
}

/// A word that names no slot function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown slot function `{0}`; one of mod, mix64")]
pub struct UnknownSlotFunction(pub String);

impl FromStr for SlotFunction {
    type Err = UnknownSlotFunction;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "mod" => Ok(SlotFunction::Mod),
            "mix64" => Ok(SlotFunction::Mix64),
            other => Err(UnknownSlotFunction(other.to_owned())),
        }
    }
}

/// Over which residue classes of a group a tenant's rows are spread: `width` of them from `base` on.
///
/// The format carries spans now; narrower ones than the whole group are not handed out yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Span {
    /// First class, below the group's `base_shards`.
    pub base: u32,
    /// Number of classes, 1 to the group's `base_shards`.
    pub width: u32,
}

impl Span {
    /// The span over the whole group, under which the slot does not depend on the tenant.
    pub const fn whole(base_shards: u32) -> Span {
        Span { base: 0, width: base_shards }
    }

    /// The slot of an id: with `n0` base shards, `S` slots, `x` = the slot function of the id, base `b` and width `w`,
    /// `((b + x mod w) mod n0) + n0 × ((x div w) mod (S / n0))`. For the whole span that is `x mod S`.
    ///
    /// `slots` must be a multiple of `base_shards`, both not zero; width not zero. Topology validation makes sure.
    #[inline]
    pub const fn slot(self, x: u64, base_shards: u32, slots: u32) -> u32 {
        let (n0, w) = (base_shards as u64, self.width as u64);
        let class = (self.base as u64 + x % w) % n0;
        let row = (x / w) % (slots as u64 / n0);
        (class + n0 * row) as u32
    }
}

/// How many of `shards` shards get rows when ids grow in steps of `increment` and the slot function is `mod`:
/// `shards / gcd(shards, increment)`. An increment of 0 counts as 1.
///
/// ```
/// use metaroute_cluster::placement::used_shards;
/// assert_eq!(used_shards(12, 3), 4);
/// assert_eq!(used_shards(16, 3), 16);
/// ```
pub const fn used_shards(shards: u32, increment: u32) -> u32 {
    let (mut a, mut b) = (shards, if increment == 0 { 1 } else { increment });
    while b != 0 {
        (a, b) = (b, a % b);
    }
    // The divisor is 0 only for 0 shards.
    match shards.checked_div(a) {
        Some(used) => used,
        None => 0,
    }
}

/// Rows that some shards will never get; see [`used_shards`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkewWarning {
    /// The group.
    pub group: String,
    /// Its shards at creation.
    pub shards: u32,
    /// The source's `auto_increment_increment`.
    pub increment: u32,
    /// Shards that will get rows.
    pub used: u32,
}

impl fmt::Display for SkewWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, shards, increment, used } = self;
        write!(
            f,
            "ids grow in steps of {increment} (auto_increment_increment), so with slot function `mod` only {used} of \
             the {shards} shards of group `{group}` get rows; use slot function `mix64` or a shard count without a \
             common divisor with {increment}"
        )
    }
}

/// The warning for one group, when there is something to warn of.
pub fn skew(group: &str, base_shards: u32, function: SlotFunction, increment: u32) -> Option<SkewWarning> {
    let used = used_shards(base_shards, increment);
    (function == SlotFunction::Mod && used < base_shards).then(|| SkewWarning {
        group: group.to_owned(),
        shards: base_shards,
        increment,
        used,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slot_counts_keep_todays_placement() {
        for (shards, slots) in [(1, 4096), (3, 4098), (4, 4096), (8, 4096), (16, 4096), (12, 4104), (24, 4104)] {
            assert_eq!(slot_count(shards), Some(slots), "{shards} shards");
        }
        assert_eq!(slot_count(5_000), Some(5_000));
        assert_eq!(slot_count(0), None);
        assert_eq!(slot_count(BASE_SHARDS_MAX + 1), None);
    }

    #[test]
    fn residue_skew_is_counted() {
        for (shards, increment, used) in [(12, 2, 6), (12, 3, 4), (10, 5, 2), (16, 3, 16), (12, 1, 12), (12, 0, 12)] {
            assert_eq!(used_shards(shards, increment), used, "{shards} shards, steps of {increment}");
        }
        let warning = skew("g0", 12, SlotFunction::Mod, 3).expect("skewed");
        assert!(warning.to_string().contains("only 4 of the 12 shards"), "{warning}");
        assert_eq!(skew("g0", 12, SlotFunction::Mix64, 3), None);
        assert_eq!(skew("g0", 16, SlotFunction::Mod, 3), None);
    }

    #[test]
    fn the_highest_id_has_a_slot() {
        let slots = slot_count(3).expect("legal");
        assert_eq!(Span::whole(3).slot(u64::MAX, 3, slots), (u64::MAX % u64::from(slots)) as u32);
    }

    /// The published table is what the code computes.
    #[test]
    fn published_vectors_hold() {
        let page = include_str!("../../../docs/placement.md");
        let rows = page.lines().filter(|line| line.contains("| `0x"));
        let mut count = 0;
        for line in rows {
            let cells: Vec<&str> =
                line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
            let x: u64 = cells[0].parse().expect("a number");
            let mixed = u64::from_str_radix(cells[1].trim_start_matches("0x"), 16).expect("hexadecimal");
            assert_eq!(mix64(x), mixed, "{x}");
            let slot = |function: SlotFunction, slots: u32, shards: u32| {
                Span::whole(shards).slot(function.apply(x), shards, slots)
            };
            let computed = [
                bucket(x),
                slot(SlotFunction::Mod, 4096, 4),
                slot(SlotFunction::Mod, 4098, 3),
                slot(SlotFunction::Mod, 4104, 12),
                slot(SlotFunction::Mix64, 4098, 3),
                slot(SlotFunction::Mix64, 4104, 24),
            ];
            let published: Vec<u32> = cells[2..].iter().map(|cell| cell.parse().expect("a number")).collect();
            assert_eq!(computed, published[..], "{x}");
            count += 1;
        }
        assert_eq!(count, 12);
    }

    proptest! {
        #[test]
        fn mod_is_the_placement_of_id_mod_n(id: u64, shards in 1u32..200) {
            let slots = slot_count(shards).expect("legal");
            let slot = Span::whole(shards).slot(SlotFunction::Mod.apply(id), shards, slots);
            prop_assert_eq!(u64::from(slot), id % u64::from(slots));
            prop_assert_eq!(u64::from(slot % shards), id % u64::from(shards));
        }

        #[test]
        fn narrow_spans_use_exactly_their_classes(x: u64, shards in 1u32..40, base in 0u32..40, width in 1u32..40) {
            let (base, width) = (base % shards, width.min(shards));
            let slots = slot_count(shards).expect("legal");
            let slot = Span { base, width }.slot(x, shards, slots);
            prop_assert!(slot < slots);
            let class = (slot % shards + shards - base) % shards;
            prop_assert!(class < width);
        }

        #[test]
        fn used_shards_is_what_counting_finds(shards in 1u32..64, increment in 1u32..64, start: u32) {
            let classes: std::collections::BTreeSet<u64> = (0..u64::from(shards))
                .map(|n| (u64::from(start) + n * u64::from(increment)) % u64::from(shards))
                .collect();
            prop_assert_eq!(classes.len() as u32, used_shards(shards, increment));
        }
    }
}
