//! Maglev table (Eisenbud et al., NSDI 2016, section 3.4) with weights as in Envoy: in every round a member claims a
//! slot only when its share of the heaviest weight has built up to one.

use super::{Member, hash_id, mix64};

/// Primes about ten times apart: the smallest that gives each member at least 100 slots is used (5.2 of the design
/// asks for 100; Maglev's own evaluation uses 65,537).
const SIZES: [usize; 3] = [65_537, 655_373, 10_000_019];

/// Rehashes tried when the slot's owner is out, before the caller must scan.
const PROBES: u64 = 32;

#[derive(Clone, Debug)]
pub(crate) struct Maglev {
    table: Box<[u32]>,
    counts: Box<[u32]>,
}

impl Maglev {
    /// Members must be sorted by id. Members of weight 0 own no slot.
    pub(crate) fn new(members: &[Member<'_>]) -> Self {
        Self::with_size(members, SIZES.into_iter().find(|&size| size >= members.len() * 100).unwrap_or(SIZES[2]))
    }

    fn with_size(members: &[Member<'_>], size: usize) -> Self {
        struct Walk {
            member: u32,
            next: u64,
            skip: u64,
            weight: f64,
            target: f64,
        }
        let heaviest = members.iter().map(|m| m.weight).fold(0.0, f64::max);
        let mut counts = vec![0; members.len()].into_boxed_slice();
        if heaviest <= 0.0 {
            return Self { table: Box::default(), counts };
        }
        let m = size as u64;
        let mut walks: Vec<Walk> = (0u32..)
            .zip(members)
            .filter(|(_, member)| member.weight > 0.0)
            .map(|(i, member)| Walk {
                member: i,
                next: hash_id(member.id, 0) % m,
                skip: hash_id(member.id, 1) % (m - 1) + 1,
                weight: member.weight / heaviest,
                target: 0.0,
            })
            .collect();
        const FREE: u32 = u32::MAX;
        let mut table = vec![FREE; size].into_boxed_slice();
        let mut free = size;
        let mut round = 1.0;
        while free > 0 {
            for walk in &mut walks {
                if round * walk.weight < walk.target {
                    continue;
                }
                walk.target += 1.0;
                while table[walk.next as usize] != FREE {
                    walk.next = (walk.next + walk.skip) % m;
                }
                table[walk.next as usize] = walk.member;
                counts[walk.member as usize] += 1;
                free -= 1;
                if free == 0 {
                    break;
                }
            }
            round += 1.0;
        }
        Self { table, counts }
    }

    /// The member a key belongs to; when that one is not allowed, the key is rehashed a bounded number of times. `None`
    /// when all probes met members that are not allowed.
    pub(crate) fn lookup(&self, key: u64, allowed: impl Fn(usize) -> bool) -> Option<usize> {
        if self.table.is_empty() {
            return None;
        }
        let mut hash = key;
        for probe in 1..=PROBES {
            let owner = self.table[(hash % self.table.len() as u64) as usize] as usize;
            if allowed(owner) {
                return Some(owner);
            }
            hash = mix64(key.wrapping_add(probe.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        }
        None
    }

    /// The part of the key space of each member, given which are allowed.
    pub(crate) fn shares(&self, allowed: impl Fn(usize) -> bool) -> Vec<f64> {
        let live: u64 = self.counts.iter().enumerate().filter(|&(i, _)| allowed(i)).map(|(_, &c)| u64::from(c)).sum();
        let share = |i: usize, count: u32| if allowed(i) && live > 0 { f64::from(count) / live as f64 } else { 0.0 };
        self.counts.iter().enumerate().map(|(i, &count)| share(i, count)).collect()
    }

    /// The part of the key space whose probes all meet members that are not allowed.
    pub(crate) fn missed(&self, allowed: impl Fn(usize) -> bool) -> f64 {
        let live: u64 = self.counts.iter().enumerate().filter(|&(i, _)| allowed(i)).map(|(_, &c)| u64::from(c)).sum();
        let out = 1.0 - live as f64 / self.table.len().max(1) as f64;
        out.powi(PROBES as i32)
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> &[u32] {
        &self.table
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> &[u32] {
        &self.counts
    }
}
