//! Row versions: who makes them and how their bytes order.
//!
//! Stores compare versions bytewise and never look inside ([`metaroute_store::Version`]). What is inside is decided here,
//! once for everybody who feeds a store: the change stream numbers rows by its log's positions, HTTP writes by a
//! [`HybridClock`].

use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use metaroute_store::Version;

/// Where a version comes from; the lower one loses a tie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VersionKind {
    /// A row of a full load: below every stream event with the same numbers.
    Snapshot,
    /// A change.
    Stream,
}

/// The parts of a version, most significant first; their order is the order of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowVersion {
    /// Raised whenever old and new numbers cannot be compared.
    pub source_epoch: u32,
    /// High part: a GTID domain or index, a file number, the hybrid clock.
    pub hi: u64,
    /// Low part: a sequence number, a position, an offset.
    pub lo: u64,
    /// Which row of the transaction or event.
    pub row: u32,
    /// Full load or stream.
    pub kind: VersionKind,
}

impl RowVersion {
    /// The version of a row written through the API at a stamp of the hybrid clock.
    pub fn of_stamp(stamp: u64) -> RowVersion {
        RowVersion { source_epoch: 0, hi: stamp, lo: 0, row: 0, kind: VersionKind::Stream }
    }

    /// The bytes: each number as its length and its significant bytes, big-endian, then one byte for the kind. Longer is
    /// larger, so bytewise order is numeric order; at most 29 bytes, 13 for a stamp.
    pub fn to_version(self) -> Version {
        let mut bytes = [0; Version::MAX_LEN];
        let mut at = 0;
        for number in [u64::from(self.source_epoch), self.hi, self.lo, u64::from(self.row)] {
            let significant = (64 - number.leading_zeros()).div_ceil(8) as usize;
            bytes[at] = significant as u8;
            bytes[at + 1..at + 1 + significant].copy_from_slice(&number.to_be_bytes()[8 - significant..]);
            at += 1 + significant;
        }
        bytes[at] = match self.kind {
            VersionKind::Snapshot => 0,
            VersionKind::Stream => 1,
        };
        Version::new(&bytes[..=at]).expect("four numbers and a byte are at most 29 bytes")
    }

    /// Reads [`RowVersion::to_version`]; `None` for other bytes.
    pub fn from_version(version: &Version) -> Option<RowVersion> {
        let mut rest = version.as_bytes();
        let mut number = |most: usize| {
            let (&length, tail) = rest.split_first()?;
            let (digits, tail) = tail.split_at_checked(usize::from(length))?;
            if digits.len() > most || digits.first() == Some(&0) {
                return None;
            }
            rest = tail;
            Some(digits.iter().fold(0_u64, |number, &digit| number << 8 | u64::from(digit)))
        };
        let source_epoch = number(4)? as u32;
        let (hi, lo) = (number(8)?, number(8)?);
        let row = number(4)? as u32;
        let kind = match rest {
            [0] => VersionKind::Snapshot,
            [1] => VersionKind::Stream,
            _ => return None,
        };
        Some(RowVersion { source_epoch, hi, lo, row, kind })
    }
}

/// Low bits of a stamp that count within a millisecond.
const COUNTER_BITS: u32 = 20;

/// How far ahead of the clock its bound is stored: one write to disk covers a second of stamps.
const BOUND_STEP: u64 = 1_000 << COUNTER_BITS;

/// A clock whose stamps only grow: milliseconds since 1970 in the upper bits, a counter in the lower 20.
///
/// A wall clock alone goes back when it is corrected, and a write stamped below an older one would be dropped as stale.
/// So a stamp is the larger one of the wall clock and the last stamp + 1, and an upper bound of all stamps is kept on
/// disk *before* any stamp below it is given out: after a restart the clock begins at the bound, whatever the wall
/// clock says (Kulkarni et al., *Logical Physical Clocks*, 2014).
#[derive(Debug)]
pub struct HybridClock<B> {
    bound: B,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    last: u64,
    /// Stamps up to here are covered by what is on disk.
    covered: u64,
}

/// Where the clock's upper bound is kept.
pub trait Bound: Send + Sync {
    /// Why it could not be kept.
    type Error;

    /// Stores the bound durably before it returns.
    fn store(&self, bound: u64) -> Result<(), Self::Error>;
}

impl<E, F: Fn(u64) -> Result<(), E> + Send + Sync> Bound for F {
    type Error = E;

    fn store(&self, bound: u64) -> Result<(), E> {
        self(bound)
    }
}

impl<B: Bound> HybridClock<B> {
    /// A clock that goes on from a stored bound; 0 for a new one.
    pub fn new(stored: u64, bound: B) -> HybridClock<B> {
        HybridClock { bound, state: Mutex::new(State { last: stored, covered: stored }) }
    }

    /// The next stamps, `count` of them in a row; returns the first. The bound is stored first where that is needed, so
    /// this may wait for a disk about once a second.
    ///
    /// # Errors
    /// When the bound could not be stored; no stamp was given out then.
    pub fn next(&self, count: u64) -> Result<u64, B::Error> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.next_at(u64::try_from(since.as_millis()).unwrap_or(0), count)
    }

    /// The same at a given wall-clock time in milliseconds.
    ///
    /// # Errors
    /// As [`HybridClock::next`].
    pub fn next_at(&self, wall_ms: u64, count: u64) -> Result<u64, B::Error> {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let wall = wall_ms.min(u64::MAX >> (COUNTER_BITS + 1)) << COUNTER_BITS;
        let first = wall.max(state.last.saturating_add(1));
        let last = first.saturating_add(count.saturating_sub(1));
        if last > state.covered {
            let bound = last.saturating_add(BOUND_STEP);
            self.bound.store(bound)?;
            state.covered = bound;
        }
        state.last = last;
        Ok(first)
    }

    /// The highest stamp given out.
    pub fn last(&self) -> u64 {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner).last
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stamps_grow_when_the_wall_clock_does_not() {
        let clock = HybridClock::new(0, |_| Ok::<_, Infallible>(()));
        let first = clock.next_at(1_000, 1).expect("kept");
        assert_eq!(first, 1_000 << 20);
        assert_eq!(clock.next_at(999, 3).expect("kept"), first + 1);
        assert_eq!(clock.next_at(0, 1).expect("kept"), first + 4);
        assert_eq!(clock.next_at(1_001, 1).expect("kept"), 1_001 << 20);
    }

    #[test]
    fn a_restart_never_repeats_a_stamp() {
        let disk = Arc::new(AtomicU64::new(0));
        let keep = || {
            let disk = Arc::clone(&disk);
            move |bound| {
                disk.store(bound, Ordering::Relaxed);
                Ok::<_, Infallible>(())
            }
        };
        let mut last = 0;
        // The wall clock runs backwards over ten restarts.
        for restart in 0..10_u64 {
            let clock = HybridClock::new(disk.load(Ordering::Relaxed), keep());
            for _ in 0..100 {
                let stamp = clock.next_at(1_000_000 - restart * 50_000, 2).expect("kept");
                assert!(stamp > last);
                last = stamp + 1;
                assert!(disk.load(Ordering::Relaxed) >= last, "covered before it is given out");
            }
        }
    }

    #[test]
    fn no_stamp_without_a_stored_bound() {
        let clock = HybridClock::new(0, |_| Err("disk full"));
        assert_eq!(clock.next_at(5, 1), Err("disk full"));
        assert_eq!(clock.last(), 0);
    }

    #[test]
    fn one_write_covers_a_second() {
        let writes = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&writes);
        let clock = HybridClock::new(0, move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(())
        });
        for ms in 0..1_000 {
            clock.next_at(5_000 + ms, 10).expect("kept");
        }
        assert_eq!(writes.load(Ordering::Relaxed), 1);
    }

    /// As published in `docs/placement.md`.
    #[test]
    fn the_published_version_holds() {
        let version = RowVersion::of_stamp(0x0000_019a_0000_0000).to_version();
        assert_eq!(version.as_bytes(), [0, 6, 1, 0x9a, 0, 0, 0, 0, 0, 0, 1]);
    }

    fn version() -> impl Strategy<Value = RowVersion> {
        let number = || prop_oneof![0..3_u64, Just(255), Just(256), Just(u64::MAX), any::<u64>()];
        (any::<u32>(), number(), number(), 0..300_u32, any::<bool>()).prop_map(|(source_epoch, hi, lo, row, stream)| {
            let kind = if stream { VersionKind::Stream } else { VersionKind::Snapshot };
            RowVersion { source_epoch: source_epoch % 300, hi, lo, row, kind }
        })
    }

    proptest! {
        #[test]
        fn bytes_order_as_the_parts_do(a in version(), b in version()) {
            prop_assert_eq!(a.to_version().cmp(&b.to_version()), a.cmp(&b));
            prop_assert_eq!(RowVersion::from_version(&a.to_version()), Some(a));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..=32)) {
            let version = Version::new(&bytes).expect("short");
            if let Some(parts) = RowVersion::from_version(&version) {
                prop_assert_eq!(parts.to_version(), version);
            }
        }
    }
}
