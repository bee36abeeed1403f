//! Weighted choice in constant time: Walker's alias method with Vose's linear build (1991).
//!
//! One entry of eight bytes per member: a 32-bit threshold and the index that takes the rest. A draw is one 64-bit
//! random number: its upper half scales to the entry, its lower half is compared with the threshold, and a conditional
//! move replaces the branch that would be mispredicted half of the time. Shares are exact to 2⁻³² of an entry.

/// A packed alias table.
#[derive(Clone, Debug, Default)]
pub(crate) struct AliasTable {
    entries: Box<[Entry]>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The member itself is taken when the low half of the draw is below this.
    threshold: u32,
    alias: u32,
}

impl AliasTable {
    /// A table for `weights`, all finite and not negative, at least one positive. An empty slice gives an empty table.
    pub(crate) fn new(weights: &[f64]) -> Self {
        let n = weights.len();
        let total: f64 = weights.iter().sum();
        if n == 0 || total <= 0.0 {
            return Self::default();
        }
        let scale = n as f64 / total;
        let mut scaled: Vec<f64> = weights.iter().map(|w| w * scale).collect();
        let mut entries = vec![Entry { threshold: u32::MAX, alias: 0 }; n];
        for (i, entry) in entries.iter_mut().enumerate() {
            entry.alias = i as u32;
        }
        let (mut small, mut large): (Vec<u32>, Vec<u32>) = (0..n as u32).partition(|&i| scaled[i as usize] < 1.0);
        while let (Some(&less), Some(&more)) = (small.last(), large.last()) {
            small.pop();
            let (less, rest) = (less as usize, more as usize);
            entries[less] = Entry { threshold: (scaled[less] * TWO_POW_32) as u32, alias: more };
            scaled[rest] -= 1.0 - scaled[less];
            if scaled[rest] < 1.0 {
                large.pop();
                small.push(more);
            }
        }
        // What is left on either side differs from 1 only by rounding. A weight of exactly 0 can be left over so too;
        // it must never be drawn, so it hands its whole entry to the heaviest member.
        let heaviest = (0..n).max_by(|&a, &b| weights[a].total_cmp(&weights[b])).unwrap_or(0) as u32;
        for i in small {
            if weights[i as usize] == 0.0 {
                entries[i as usize] = Entry { threshold: 0, alias: heaviest };
            }
        }
        Self { entries: entries.into() }
    }

    /// The member that `draw`, a uniform 64-bit number, falls on. The table must not be empty.
    #[inline]
    pub(crate) fn pick(&self, draw: u64) -> usize {
        let index = (((draw >> 32) * self.entries.len() as u64) >> 32) as usize;
        let entry = self.entries[index];
        let own = (draw as u32) < entry.threshold || entry.alias == index as u32;
        if own { index } else { entry.alias as usize }
    }

    /// The exact share of each member that draws from this table get, summing to 1.
    #[cfg(test)]
    pub(crate) fn shares(&self) -> Vec<f64> {
        let n = self.entries.len();
        let mut shares = vec![0.0; n];
        for (i, entry) in self.entries.iter().enumerate() {
            let own = if entry.alias == i as u32 { 1.0 } else { f64::from(entry.threshold) / TWO_POW_32 };
            shares[i] += own / n as f64;
            shares[entry.alias as usize] += (1.0 - own) / n as f64;
        }
        shares
    }
}

const TWO_POW_32: f64 = 4_294_967_296.0;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(weights: &[f64]) {
        let total: f64 = weights.iter().sum();
        let shares = AliasTable::new(weights).shares();
        // Each entry loses at most 2⁻³² of its own 1/n, and a member may stand in all n entries.
        let tolerance = 1e-9 + f64::EPSILON * weights.len() as f64;
        for (i, (&weight, share)) in weights.iter().zip(&shares).enumerate() {
            assert!((weight / total - share).abs() < tolerance, "member {i}: {} but {share}", weight / total);
            if weight == 0.0 {
                assert_eq!(*share, 0.0, "weight 0 is never drawn");
            }
        }
    }

    #[test]
    fn shares_of_plain_cases() {
        check(&[1.0]);
        check(&[5.0, 1.0, 1.0]);
        check(&[0.0, 1.0, 0.0, 3.0]);
        check(&[2_147_483_647.0, 2_147_483_647.0, 1.0]);
        check(&vec![1.0; 1000]);
    }

    #[test]
    fn draws_reach_both_ends() {
        let table = AliasTable::new(&[1.0, 1.0, 2.0]);
        assert_eq!(table.pick(0), 0);
        assert!(table.pick(u64::MAX) < 3);
    }

    proptest! {
        #[test]
        fn shares_equal_exact_weights(weights in proptest::collection::vec(prop_oneof![Just(0.0), 0.001..1000.0, Just(4294967295.0)], 1..200)) {
            prop_assume!(weights.iter().any(|&w| w > 0.0));
            check(&weights);
        }
    }
}
