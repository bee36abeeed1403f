//! Consistent hashing: the same key finds the same instance on every client that sees the same list.
//!
//! Everything here is a function of (id, weight) of the members alone: not of their order, of health, of earlier lists
//! or of any other field (envoy #20703, grpc-go #6927, volo's zero-padded weights). Health is applied at lookup: a key
//! whose instance is out goes to the next candidate and returns when the instance does, and no other key moves.
//!
//! The hash is XXH3-64, available in every language; `docs/hashing.md` holds the test vectors.

mod maglev;
mod ring;
mod seata;

pub(crate) use maglev::Maglev;
pub(crate) use ring::{Ring, nodes_per_weight};
pub(crate) use seata::{SeataRing, socket_text};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Hash of a request key.
pub fn hash_key(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// Hash number `n` of an instance id.
fn hash_id(id: &str, n: u64) -> u64 {
    xxh3_64_with_seed(id.as_bytes(), n)
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that spreads every input bit.
pub(crate) fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// One member of a hash structure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) id: &'a str,
    /// Finite; a member of weight 0 owns no key.
    pub(crate) weight: f64,
}

/// Weighted rendezvous (Thaler and Ravishankar 1996; weights after Schindelhauer and Schomaker 2005): the member with
/// the largest `-weight / ln(u)` wins, `u` being the hash of (member, key) scaled to (0, 1). Needs no table; costs one
/// logarithm per member and lookup.
#[derive(Clone, Debug)]
pub(crate) struct Rendezvous {
    members: Box<[(u64, f64)]>,
    /// All weights are the same, so the largest hash wins without a logarithm.
    even: bool,
}

impl Rendezvous {
    pub(crate) fn new(members: &[Member<'_>]) -> Self {
        let first = members.first().map_or(0.0, |m| m.weight);
        Self {
            members: members.iter().map(|m| (hash_id(m.id, 0), m.weight)).collect(),
            even: first > 0.0 && members.iter().all(|m| m.weight == first),
        }
    }

    /// The member a key belongs to among the allowed ones.
    pub(crate) fn lookup(&self, key: u64, allowed: impl Fn(usize) -> bool) -> Option<usize> {
        if self.even {
            let mut best: Option<(u64, usize)> = None;
            for (i, &(id, _)) in self.members.iter().enumerate() {
                let score = mix64(id ^ key) >> 11;
                if best.is_none_or(|(top, _)| score > top) && allowed(i) {
                    best = Some((score, i));
                }
            }
            return best.map(|(_, i)| i);
        }
        let mut best: Option<(f64, usize)> = None;
        for (i, &(id, weight)) in self.members.iter().enumerate() {
            if weight <= 0.0 || !allowed(i) {
                continue;
            }
            // 53 bits give an exactly representable fraction; the half step keeps it away from 0 and 1.
            let unit = ((mix64(id ^ key) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            let score = -weight / unit.ln();
            if best.is_none_or(|(top, _)| score > top) {
                best = Some((score, i));
            }
        }
        best.map(|(_, i)| i)
    }
}

#[cfg(test)]
mod tests;
