//! A set of slots as bits: what atoms, rules and tiers are combined in.
//!
//! Fixed length, no growth during a pick. Kept here and not taken from a crate because the whole use is six loops.

/// A set of numbers below its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BitSet {
    words: Vec<u64>,
}

impl BitSet {
    /// Room for `len` bits, none set.
    pub(crate) fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(64)] }
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// Makes room for `len` bits; new ones are clear.
    pub(crate) fn grow(&mut self, len: usize) {
        let words = len.div_ceil(64);
        if words > self.words.len() {
            self.words.resize(words, 0);
        }
    }

    pub(crate) fn get(&self, bit: usize) -> bool {
        self.words.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    pub(crate) fn put(&mut self, bit: usize, on: bool) {
        let mask = 1 << (bit % 64);
        if on {
            self.words[bit / 64] |= mask;
        } else {
            self.words[bit / 64] &= !mask;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Becomes a copy of `other`, reusing the memory.
    pub(crate) fn copy_from(&mut self, other: &BitSet) {
        self.words.clone_from(&other.words);
    }

    pub(crate) fn and(&mut self, other: &BitSet) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
    }

    pub(crate) fn or(&mut self, other: &BitSet) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
    }

    /// Flips every bit; bits beyond the live ones must be masked by the caller.
    pub(crate) fn not(&mut self) {
        for word in &mut self.words {
            *word = !*word;
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// How many bits both sets share.
    pub(crate) fn count_and(&self, other: &BitSet) -> usize {
        self.words.iter().zip(&other.words).map(|(a, b)| (a & b).count_ones() as usize).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// The set bits, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            std::iter::successors((word != 0).then_some(word), |word| {
                let rest = word & (word - 1);
                (rest != 0).then_some(rest)
            })
            .map(move |word| at * 64 + word.trailing_zeros() as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combines_word_by_word() {
        let mut a = BitSet::new(130);
        let mut b = BitSet::new(130);
        for bit in [0, 64, 129] {
            a.put(bit, true);
        }
        for bit in [64, 65] {
            b.put(bit, true);
        }
        assert_eq!(a.count_and(&b), 1);
        let mut both = a.clone();
        both.and(&b);
        assert_eq!(both.iter().collect::<Vec<_>>(), [64]);
        let mut either = a.clone();
        either.or(&b);
        assert_eq!(either.count(), 4);
        assert!(!a.get(10_000));
    }
}
