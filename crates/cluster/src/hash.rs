//! The one hash of placement.
//!
//! Where a row lives is decided by every router and every shard on its own, in whatever language they are written, and
//! for as long as the data exists. So the hash is not "whatever the standard library does" but a named function with
//! published vectors (`docs/placement.md`): the finaliser of SplitMix64.

/// The finaliser of SplitMix64 (Steele, Lea and Flood, *Fast Splittable Pseudorandom Number Generators*, 2014; variant
/// 13 of Stafford's mixers): a bijection on 64-bit numbers that spreads neighbouring ids evenly.
///
/// Placement depends on it for ever; it never changes. `mix64(0)` is 0.
///
/// ```
/// use metaroute_cluster::hash::mix64;
/// assert_eq!(mix64(1), 0x5692_161d_100b_05e5);
/// ```
#[inline]
pub const fn mix64(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
