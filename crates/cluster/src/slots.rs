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
    /// Without trailing zero words, so that equality is that of the sets.
    words: Vec<u64>,
}

impl SlotSet {
    /// The empty set.
    pub const fn new() -> SlotSet {
        SlotSet { words: Vec::new() }
    }

    /// All slots below `count`.
    ///
    /// # Panics
    /// When that are more than [`SLOTS_MAX`].
    pub fn all(count: u32) -> SlotSet {
        assert!(count <= SLOTS_MAX, "{count} slots are too many");
        let mut words = vec![u64::MAX; count as usize / 64];
        if !count.is_multiple_of(64) {
            words.push((1 << (count % 64)) - 1);
        }
        SlotSet { words }
    }

    /// Whether the slot is in the set.
    pub fn contains(&self, slot: u32) -> bool {
        self.words.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Adds a slot; `false` when it was there already.
    ///
    /// # Panics
    /// When the slot is not below [`SLOTS_MAX`]; topology and wire check that first.
    pub fn insert(&mut self, slot: u32) -> bool {
        assert!(slot < SLOTS_MAX, "slot {slot} is out of range");
        let at = slot as usize / 64;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        let bit = 1 << (slot % 64);
        let fresh = self.words[at] & bit == 0;
        self.words[at] |= bit;
        fresh
    }

    /// Takes a slot out; `false` when it was not there.
    pub fn remove(&mut self, slot: u32) -> bool {
        let Some(word) = self.words.get_mut(slot as usize / 64) else { return false };
        let bit = 1 << (slot % 64);
        let had = *word & bit != 0;
        *word &= !bit;
        self.trim();
        had
    }

    /// How many slots it holds.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The slots, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
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

    /// The highest slot.
    pub fn last(&self) -> Option<u32> {
        let word = self.words.last()?;
        Some((self.words.len() as u32 - 1) * 64 + 63 - word.leading_zeros())
    }

    /// Adds all slots of another set.
    pub fn extend_from(&mut self, other: &SlotSet) {
        if other.words.len() > self.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (mine, theirs) in self.words.iter_mut().zip(&other.words) {
            *mine |= theirs;
        }
    }

    /// The slots in both sets.
    #[must_use]
    pub fn intersection(&self, other: &SlotSet) -> SlotSet {
        let words = self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect();
        SlotSet { words }.trimmed()
    }

    /// The slots in this set and not in the other.
    #[must_use]
    pub fn difference(&self, other: &SlotSet) -> SlotSet {
        let theirs = other.words.iter().copied().chain(std::iter::repeat(0));
        let words = self.words.iter().zip(theirs).map(|(a, b)| a & !b).collect();
        SlotSet { words }.trimmed()
    }

    /// Little-endian bitmap without trailing zero bytes: the form on the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
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
        Some(SlotSet { words: words.collect() })
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

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }

    fn trimmed(mut self) -> SlotSet {
        self.trim();
        self
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
            prop_assert_eq!(set.last(), slots.iter().next_back().copied());
        }

        #[test]
        fn set_algebra_is_that_of_sets(
            a in prop::collection::btree_set(0u32..500, 0..80),
            b in prop::collection::btree_set(0u32..500, 0..80),
        ) {
            let (x, y): (SlotSet, SlotSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            prop_assert_eq!(x.intersection(&y), a.intersection(&b).copied().collect());
            prop_assert_eq!(x.difference(&y), a.difference(&b).copied().collect());
            let mut union = x.clone();
            union.extend_from(&y);
            prop_assert_eq!(union, a.union(&b).copied().collect());
        }
    }
}
