//! A ring of virtual nodes (Karger 1997).
//!
//! The number of nodes of a member follows its own weight through a factor that is a power of two, so a weight that
//! changes adds or removes nodes of that member only: keys move to it or away from it and nowhere else (T46). Nodes
//! are nested: the first m nodes of a member are the same whatever its weight.

use super::{Member, hash_id};

/// Nodes a member of average weight aims at. Shares then stay within about 8 % of exact (1 / √180). Not a power of two
/// times 1, 5, 10, 50 or 100: for such averages the factor stays the same over a change of 10 %.
const NODES_PER_MEMBER: f64 = 180.0;

/// All nodes of one ring, so that 100,000 members stay below 16 MiB.
const NODES_MAX: f64 = 1_048_576.0;

#[derive(Clone, Debug)]
pub(crate) struct Ring {
    hashes: Box<[u64]>,
    owners: Box<[u32]>,
}

/// Nodes per unit of weight for members whose weights are `weights`: a power of two.
pub(crate) fn nodes_per_weight(weights: impl Iterator<Item = f64>) -> f64 {
    let (count, total) = weights.filter(|&w| w > 0.0).fold((0.0, 0.0), |(count, total), w| (count + 1.0, total + w));
    if count == 0.0 {
        return 1.0;
    }
    let aim = NODES_PER_MEMBER.min(NODES_MAX / count);
    (aim / (total / count)).log2().floor().exp2()
}

impl Ring {
    /// `nodes_per_weight` comes from the whole service, so that the ring of a subset is the ring of the service without
    /// the others.
    pub(crate) fn new(members: &[Member<'_>], nodes_per_weight: f64) -> Self {
        let mut nodes: Vec<(u64, u32)> = Vec::new();
        for (i, member) in members.iter().enumerate() {
            if member.weight <= 0.0 {
                continue;
            }
            let count = ((member.weight * nodes_per_weight).floor() as u64).max(1);
            nodes.extend((0..count).map(|n| (hash_id(member.id, n), i as u32)));
        }
        // Two nodes on one spot would be ordered by list position; the id decides instead.
        nodes.sort_unstable_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| members[a.1 as usize].id.cmp(members[b.1 as usize].id))
        });
        let (hashes, owners): (Vec<u64>, Vec<u32>) = nodes.into_iter().unzip();
        Self { hashes: hashes.into(), owners: owners.into() }
    }

    /// The first allowed owner at or after `key`, going round once.
    pub(crate) fn lookup(&self, key: u64, allowed: impl Fn(usize) -> bool) -> Option<usize> {
        let start = self.hashes.partition_point(|&hash| hash < key);
        let (before, after) = self.owners.split_at(start);
        after.iter().chain(before).map(|&owner| owner as usize).find(|&owner| allowed(owner))
    }

    /// The part of the key space of each of `members` members, given which are allowed.
    pub(crate) fn shares(&self, members: usize, allowed: impl Fn(usize) -> bool) -> Vec<f64> {
        let mut shares = vec![0.0; members];
        let live: Vec<(u64, u32)> = self
            .hashes
            .iter()
            .copied()
            .zip(self.owners.iter().copied())
            .filter(|&(_, o)| allowed(o as usize))
            .collect();
        let Some(&(last, _)) = live.last() else { return shares };
        let mut previous = last;
        for &(hash, owner) in &live {
            // The arc before the first node wraps; with one node only it is the whole circle.
            let arc = if live.len() == 1 { TWO_POW_64 } else { hash.wrapping_sub(previous) as f64 };
            shares[owner as usize] += arc / TWO_POW_64;
            previous = hash;
        }
        shares
    }
}

const TWO_POW_64: f64 = 18_446_744_073_709_551_616.0;
