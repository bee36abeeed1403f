//! Sets of slots.
//!
//! Requests, answers and topology entries all speak about sets of slots: those one shard is asked for, those that have
//! moved, those nobody answered. A group has a few thousand of them, so a bitmap costs half a kilobyte, and the two
//! shapes that occur in practice, every n-th slot and a run of slots, have a short text.

use std::fmt;
use std::str::FromStr;

/// Most slots a group may have: as many as the largest possible number of shards needs.
pub const SLOTS_MAX: u32 = 1 << 16;

/// A set of slots of one group. Two sets are equal when they hold the same slots.
///
/// Its text is a comma-separated list of `a`, `a-b` and `a-b/step`, the last meaning a, a + step, … up to b:
///
/// ```
/// use metaroute_cluster::slots::SlotSet;
/// let odd: SlotSet = "1-4095/2".parse()?;
/// assert_eq!(odd.len(), 2048);
/// assert_eq!(odd.to_string(), "1-4095/2");
/// # Ok::<(), metaroute_cluster::slots::BadSlots>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct SlotSet {
    // A bitmap without its leading and trailing zero words, so that equality is that of the sets, and so that the set of
    // one slot, which every question about one row passes around, needs no memory of its own.
    /// Number of the first word; 0 in the empty set.
    base: usize,
    /// That word; 0 in the empty set only.
    first: u64,
    /// The words behind it; the last one is not 0.
    rest: Vec<u64>,
}

impl SlotSet {
    /// The empty set.
    pub const fn new() -> SlotSet {
        SlotSet { base: 0, first: 0, rest: Vec::new() }
    }

    /// All slots below `count`.
    ///
    /// # Panics
    /// When that are more than [`SLOTS_MAX`].
    pub fn all(count: u32) -> SlotSet {
        assert!(count <= SLOTS_MAX, "{count} slots are too many");
        let whole = std::iter::repeat_n(u64::MAX, count as usize / 64);
        SlotSet::of_words(0, whole.chain([(1 << (count % 64)) - 1]))
    }

    /// The set with these words from a number on.
    fn of_words(mut base: usize, words: impl Iterator<Item = u64>) -> SlotSet {
        let mut words = words;
        let first = loop {
            match words.next() {
                None => return SlotSet::new(),
                Some(0) => base += 1,
                Some(word) => break word,
            }
        };
        let mut rest: Vec<u64> = words.collect();
        trim(&mut rest);
        SlotSet { base, first, rest }
    }

    /// A word of the bitmap.
    fn word(&self, at: usize) -> u64 {
        match at.checked_sub(self.base) {
            None => 0,
            Some(0) => self.first,
            Some(behind) => self.rest.get(behind - 1).copied().unwrap_or(0),
        }
    }

    /// The number behind the last word's.
    fn end(&self) -> usize {
        if self.is_empty() { 0 } else { self.base + 1 + self.rest.len() }
    }

    fn words(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.first).chain(self.rest.iter().copied())
    }

    /// Whether the slot is in the set.
    pub fn contains(&self, slot: u32) -> bool {
        self.word(slot as usize / 64) >> (slot % 64) & 1 == 1
    }

    /// Whether all slots of another set are in this one.
    pub fn contains_all(&self, other: &SlotSet) -> bool {
        other.words().zip(other.base..).all(|(theirs, at)| theirs & !self.word(at) == 0)
    }

    /// Adds a slot; `false` when it was there already.
    ///
    /// # Panics
    /// When the slot is not below [`SLOTS_MAX`]; topology and wire check that first.
    pub fn insert(&mut self, slot: u32) -> bool {
        assert!(slot < SLOTS_MAX, "slot {slot} is out of range");
        let (at, bit) = (slot as usize / 64, 1 << (slot % 64));
        if self.is_empty() {
            *self = SlotSet { base: at, first: bit, rest: Vec::new() };
            return true;
        }
        let word = match at.checked_sub(self.base) {
            None => {
                let between = std::iter::repeat_n(0, self.base - at - 1);
                self.rest.splice(..0, between.chain([self.first]));
                (self.base, self.first) = (at, 0);
                &mut self.first
            }
            Some(0) => &mut self.first,
            Some(behind) => {
                if behind > self.rest.len() {
                    self.rest.resize(behind, 0);
                }
                &mut self.rest[behind - 1]
            }
        };
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// Takes a slot out; `false` when it was not there.
    pub fn remove(&mut self, slot: u32) -> bool {
        if !self.contains(slot) {
            return false;
        }
        let (behind, bit) = (slot as usize / 64 - self.base, 1 << (slot % 64));
        if behind > 0 {
            self.rest[behind - 1] &= !bit;
            trim(&mut self.rest);
            return true;
        }
        self.first &= !bit;
        if self.first == 0 {
            *self = SlotSet::of_words(self.base + 1, std::mem::take(&mut self.rest).into_iter());
        }
        true
    }

    /// How many slots it holds.
    pub fn len(&self) -> u32 {
        self.words().map(u64::count_ones).sum()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.first == 0
    }

    /// The slots, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words().zip(self.base..).flat_map(|(word, at)| {
            let mut left = word;
            std::iter::from_fn(move || {
                (left != 0).then(|| {
                    let bit = left.trailing_zeros();
                    left &= left - 1;
                    at as u32 * 64 + bit
                })
            })
        })
    }

    /// The lowest slot.
    pub fn first(&self) -> Option<u32> {
        (!self.is_empty()).then(|| self.base as u32 * 64 + self.first.trailing_zeros())
    }

    /// The highest slot.
    pub fn last(&self) -> Option<u32> {
        let word = self.rest.last().copied().unwrap_or(self.first);
        (!self.is_empty()).then(|| (self.end() as u32 - 1) * 64 + 63 - word.leading_zeros())
    }

    /// Adds all slots of another set.
    pub fn extend_from(&mut self, other: &SlotSet) {
        if !other.is_empty() && !self.contains_all(other) {
            let base = if self.is_empty() { other.base } else { self.base.min(other.base) };
            let end = self.end().max(other.end());
            *self = SlotSet::of_words(base, (base..end).map(|at| self.word(at) | other.word(at)));
        }
    }

    /// The slots in both sets.
    #[must_use]
    pub fn intersection(&self, other: &SlotSet) -> SlotSet {
        let (base, end) = (self.base.max(other.base), self.end().min(other.end()));
        SlotSet::of_words(base, (base..end).map(|at| self.word(at) & other.word(at)))
    }

    /// The slots in this set and not in the other.
    #[must_use]
    pub fn difference(&self, other: &SlotSet) -> SlotSet {
        SlotSet::of_words(self.base, self.words().zip(self.base..).map(|(mine, at)| mine & !other.word(at)))
    }

    /// Little-endian bitmap without trailing zero bytes: the form on the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.base * 8];
        bytes.extend(self.words().flat_map(u64::to_le_bytes));
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        bytes
    }

    /// Reads [`SlotSet::to_bytes`]; trailing zero bytes are allowed. `None` when a slot is not below [`SLOTS_MAX`].
    pub fn from_bytes(bytes: &[u8]) -> Option<SlotSet> {
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
        if used > SLOTS_MAX as usize / 8 {
            return None;
        }
        let words = bytes[..used].chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        Some(SlotSet::of_words(0, words))
    }

    /// The text with runs of this stride preferred where they are shorter; [`Display`](fmt::Display) tries the strides
    /// up to 64.
    fn write(&self, f: &mut fmt::Formatter<'_>, stride: u32) -> fmt::Result {
        let mut left = self.clone();
        let mut first = true;
        for slot in self.iter() {
            if !left.contains(slot) {
                continue;
            }
            let mut last = slot;
            while last.checked_add(stride).is_some_and(|next| left.contains(next)) {
                last += stride;
            }
            let mut member = slot;
            while member <= last {
                left.remove(member);
                member += stride;
            }
            if !first {
                f.write_str(",")?;
            }
            first = false;
            match (last == slot, stride) {
                (true, _) => write!(f, "{slot}")?,
                (false, 1) => write!(f, "{slot}-{last}")?,
                (false, _) => write!(f, "{slot}-{last}/{stride}")?,
            }
        }
        Ok(())
    }

    /// How many items the text would have with this stride.
    fn items(&self, stride: u32) -> usize {
        self.iter().filter(|&slot| slot < stride || !self.contains(slot - stride)).count()
    }
}

fn trim(words: &mut Vec<u64>) {
    while words.last() == Some(&0) {
        words.pop();
    }
}

impl FromIterator<u32> for SlotSet {
    fn from_iter<I: IntoIterator<Item = u32>>(slots: I) -> SlotSet {
        let mut set = SlotSet::new();
        for slot in slots {
            set.insert(slot);
        }
        set
    }
}

impl fmt::Display for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut best = (self.items(1), 1);
        for stride in 2..=64 {
            if best.0 <= 1 {
                break;
            }
            best = best.min((self.items(stride), stride));
        }
        self.write(f, best.1)
    }
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// A text that is no set of slots.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad slots `{text}`: {reason}")]
pub struct BadSlots {
    /// The offending item.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl FromStr for SlotSet {
    type Err = BadSlots;

    /// Reads a list of `a`, `a-b`, `a-b/step`; blanks around items are ignored, a slot named twice is an error.
    fn from_str(text: &str) -> Result<SlotSet, BadSlots> {
        let mut set = SlotSet::new();
        if text.trim().is_empty() {
            return Ok(set);
        }
        for item in text.split(',') {
            let item = item.trim();
            let bad = |reason| BadSlots { text: item.chars().take(40).collect(), reason };
            let number = |digits: &str| {
                if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(bad("expected a number, `a-b` or `a-b/step`"));
                }
                let number = digits.parse::<u32>().ok().filter(|&slot| slot < SLOTS_MAX);
                number.ok_or_else(|| bad("slots are below 65536"))
            };
            let (range, step) = match item.split_once('/') {
                Some((range, step)) => (range, number(step)?),
                None => (item, 1),
            };
            let (first, last) = match range.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None if item.contains('/') => return Err(bad("a step needs a range")),
                None => {
                    let slot = number(range)?;
                    (slot, slot)
                }
            };
            if step == 0 {
                return Err(bad("a step of 0 goes nowhere"));
            }
            if first > last {
                return Err(bad("the range runs backwards"));
            }
            let mut slot = first;
            while slot <= last {
                if !set.insert(slot) {
                    return Err(bad("a slot is named twice"));
                }
                slot += step;
            }
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(slots: &[u32]) -> SlotSet {
        slots.iter().copied().collect()
    }

    #[test]
    fn text_is_short_for_the_shapes_that_occur() {
        assert_eq!(set(&[]).to_string(), "");
        assert_eq!(set(&[7]).to_string(), "7");
        assert_eq!(SlotSet::all(4096).to_string(), "0-4095");
        let third: SlotSet = (0..4104).filter(|slot| slot % 12 == 5).collect();
        assert_eq!(third.to_string(), "5-4097/12");
        assert_eq!(set(&[1, 2, 3, 9]).to_string(), "1-3,9");
    }

    #[test]
    fn all_is_every_slot_below_the_count() {
        for count in [0, 1, 63, 64, 65, 4098, SLOTS_MAX] {
            assert_eq!(SlotSet::all(count), (0..count).collect(), "{count}");
        }
    }

    #[test]
    fn bad_texts_are_refused_with_the_item() {
        for (text, reason) in [
            ("1,x", "expected a number, `a-b` or `a-b/step`"),
            ("5-3", "the range runs backwards"),
            ("1-9/0", "a step of 0 goes nowhere"),
            ("4/2", "a step needs a range"),
            ("1,1", "a slot is named twice"),
            ("99999999", "slots are below 65536"),
            ("-1", "expected a number, `a-b` or `a-b/step`"),
        ] {
            assert_eq!(text.parse::<SlotSet>().expect_err(text).reason, reason, "{text}");
        }
    }

    #[test]
    fn oversized_bitmaps_are_refused() {
        let mut bytes = vec![0; SLOTS_MAX as usize / 8];
        bytes.extend([0, 0]);
        assert_eq!(SlotSet::from_bytes(&bytes), Some(SlotSet::new()), "zeros say nothing");
        bytes.push(1);
        assert_eq!(SlotSet::from_bytes(&bytes), None);
    }

    proptest! {
        #[test]
        fn text_and_bytes_read_back(slots in prop::collection::btree_set(0u32..3000, 0..300)) {
            let set: SlotSet = slots.iter().copied().collect();
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), slots.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.to_string().parse::<SlotSet>().expect("own text"), set.clone());
            prop_assert_eq!(SlotSet::from_bytes(&set.to_bytes()).expect("own bytes"), set.clone());
            prop_assert_eq!(set.len() as usize, slots.len());
            prop_assert_eq!(set.first(), slots.first().copied());
            prop_assert_eq!(set.last(), slots.last().copied());
        }

        #[test]
        fn set_algebra_is_that_of_sets(
            a in prop::collection::btree_set(0u32..500, 0..80),
            b in prop::collection::btree_set(0u32..500, 0..80),
        ) {
            let (x, y): (SlotSet, SlotSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            prop_assert_eq!(x.intersection(&y), a.intersection(&b).copied().collect());
            prop_assert_eq!(x.difference(&y), a.difference(&b).copied().collect());
            prop_assert_eq!(x.contains_all(&y), a.is_superset(&b));
            let mut union = x.clone();
            union.extend_from(&y);
            prop_assert_eq!(&union, &a.union(&b).copied().collect::<SlotSet>());
            prop_assert!(union.contains_all(&x) && union.contains_all(&y));
        }

        #[test]
        fn insert_and_remove_are_those_of_sets(ops in prop::collection::vec((any::<bool>(), 0u32..400), 0..200)) {
            let (mut set, mut model) = (SlotSet::new(), std::collections::BTreeSet::new());
            for (add, slot) in ops {
                if add {
                    prop_assert_eq!(set.insert(slot), model.insert(slot));
                } else {
                    prop_assert_eq!(set.remove(slot), model.remove(&slot));
                }
                prop_assert_eq!(&set, &model.iter().copied().collect::<SlotSet>());
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
