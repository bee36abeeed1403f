//! Small records kept beside the rows: per table what was truncated and how far ids go, per tenant
//! how many rows there are and what they add up to.
//!
//! Counting rows by scanning them costs a second per million, and a listing's total or a quota is
//! asked for far more often than that allows. The counters are therefore written in the same batch as
//! the rows they count, from the row before and the row after, so repeating a change counts nothing.

use crate::record::{FORMAT, Reader, RecordError, put_block, put_varint, put_zigzag128, seal, unseal};
use crate::version::Version;

/// What is known of a table as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableState {
    /// Rows and tombstones with a lower version are gone.
    pub(crate) truncated_below: Version,
    /// Tombstones with a lower version are gone: nothing can replay below it any more.
    pub(crate) tombstones_below: Version,
    /// Highest id a row or tombstone ever had; ingestion must start above it.
    pub(crate) highest_id: Option<u64>,
    /// Highest version a row or tombstone ever had; a truncate above it leaves nothing.
    pub(crate) highest_version: Version,
    /// Counters of other generations are garbage. Raised by a truncate, so that resetting the
    /// counters of a million tenants is one write.
    pub(crate) counter_generation: u32,
}

impl TableState {
    pub(crate) fn encode(&self, key: &[u8]) -> Vec<u8> {
        let mut out = vec![FORMAT];
        for version in [&self.truncated_below, &self.tombstones_below, &self.highest_version] {
            put_block(&mut out, version.as_bytes());
        }
        match self.highest_id {
            None => out.push(0),
            Some(id) => {
                out.push(1);
                put_varint(&mut out, id);
            }
        }
        put_varint(&mut out, u64::from(self.counter_generation));
        seal(key, &mut out);
        out
    }

    pub(crate) fn decode(key: &[u8], bytes: &[u8]) -> Result<TableState, RecordError> {
        let mut reader = open(key, bytes)?;
        let mut version = || Version::new(reader.block()?).ok_or(RecordError::Bad("version"));
        let (truncated_below, tombstones_below, highest_version) = (version()?, version()?, version()?);
        let highest_id = match reader.u8()? {
            0 => None,
            1 => Some(reader.varint()?),
            _ => return Err(RecordError::Bad("highest id")),
        };
        let counter_generation = u32::try_from(reader.varint()?).map_err(|_| RecordError::Bad("generation"))?;
        Ok(TableState { truncated_below, tombstones_below, highest_id, highest_version, counter_generation })
    }

    /// Takes note of a row or tombstone.
    pub(crate) fn saw(&mut self, id: u64, version: &Version) {
        self.highest_id = Some(self.highest_id.map_or(id, |highest| highest.max(id)));
        self.highest_version = self.highest_version.max(*version);
    }

    /// The version below which a stored tombstone no longer counts.
    pub(crate) fn tombstone_floor(&self) -> Version {
        self.tombstones_below.max(self.truncated_below)
    }
}

/// Rows of a tenant or table and the sums of its summed columns, in the schema's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Live rows.
    pub rows: u64,
    /// One sum per [`crate::Schema::summed`] column, NULL counting as nothing; decimals times
    /// 10^scale. Columns added later may be missing at the end: their sum is 0.
    pub sums: Vec<i128>,
}

impl Totals {
    /// The sum of the `n`th summed column.
    pub fn sum(&self, n: usize) -> i128 {
        self.sums.get(n).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, sums: &[i128], sign: i128) {
        self.rows = if sign < 0 { self.rows.saturating_sub(1) } else { self.rows + 1 };
        if self.sums.len() < sums.len() {
            self.sums.resize(sums.len(), 0);
        }
        for (total, value) in self.sums.iter_mut().zip(sums) {
            *total = total.wrapping_add(sign * value);
        }
    }

    /// Adds one row, given what it adds to each sum.
    pub(crate) fn add_row(&mut self, sums: impl ExactSizeIterator<Item = i128>) {
        self.rows += 1;
        if self.sums.len() < sums.len() {
            self.sums.resize(sums.len(), 0);
        }
        for (total, value) in self.sums.iter_mut().zip(sums) {
            *total = total.wrapping_add(value);
        }
    }

    pub(crate) fn merge(&mut self, other: &Totals) {
        self.rows += other.rows;
        if self.sums.len() < other.sums.len() {
            self.sums.resize(other.sums.len(), 0);
        }
        for (total, value) in self.sums.iter_mut().zip(&other.sums) {
            *total = total.wrapping_add(*value);
        }
    }

    pub(crate) fn encode(&self, key: &[u8]) -> Vec<u8> {
        let mut out = vec![FORMAT];
        put_varint(&mut out, self.rows);
        put_varint(&mut out, self.sums.len() as u64);
        for sum in &self.sums {
            put_zigzag128(&mut out, *sum);
        }
        seal(key, &mut out);
        out
    }

    pub(crate) fn decode(key: &[u8], bytes: &[u8]) -> Result<Totals, RecordError> {
        let mut reader = open(key, bytes)?;
        let rows = reader.varint()?;
        let count = reader.varint()?;
        let mut sums = Vec::new();
        for _ in 0..count {
            sums.push(reader.zigzag128()?);
        }
        Ok(Totals { rows, sums })
    }

    /// Equal apart from sums of zero at the end.
    pub(crate) fn same(&self, other: &Totals) -> bool {
        let len = self.sums.len().max(other.sums.len());
        self.rows == other.rows && (0..len).all(|n| self.sum(n) == other.sum(n))
    }
}

/// A value of the store's own that is just bytes: positions and attributes.
pub(crate) fn encode_plain(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 5);
    out.push(FORMAT);
    out.extend_from_slice(bytes);
    seal(key, &mut out);
    out
}

/// Reads [`encode_plain`].
pub(crate) fn decode_plain<'a>(key: &[u8], sealed: &'a [u8]) -> Result<&'a [u8], RecordError> {
    let body = unseal(key, sealed)?;
    match body.split_first() {
        None => Err(RecordError::Truncated),
        Some((&FORMAT, bytes)) => Ok(bytes),
        Some((&format, _)) => Err(RecordError::Format(format)),
    }
}

fn open<'a>(key: &[u8], sealed: &'a [u8]) -> Result<Reader<'a>, RecordError> {
    Ok(Reader::new(decode_plain(key, sealed)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn version() -> impl Strategy<Value = Version> {
        proptest::collection::vec(any::<u8>(), 0..=32).prop_map(|b| Version::new(&b).expect("short"))
    }

    proptest! {
        #[test]
        fn states_round_trip(a in version(), b in version(), c in version(), id: Option<u64>, generation: u32) {
            let state = TableState {
                truncated_below: a, tombstones_below: b, highest_version: c, highest_id: id,
                counter_generation: generation,
            };
            prop_assert_eq!(TableState::decode(b"k", &state.encode(b"k")), Ok(state));
        }

        #[test]
        fn totals_round_trip(rows: u64, sums in proptest::collection::vec(any::<i128>(), 0..5)) {
            let totals = Totals { rows, sums };
            prop_assert_eq!(Totals::decode(b"k", &totals.encode(b"k")), Ok(totals));
        }

        #[test]
        fn any_bytes_read_without_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            seal(b"k", &mut bytes);
            let _ = TableState::decode(b"k", &bytes);
            let _ = Totals::decode(b"k", &bytes);
            let _ = decode_plain(b"k", &bytes);
        }

        #[test]
        fn what_is_added_and_taken_is_gone(values in proptest::collection::vec(any::<u64>(), 1..20)) {
            let mut totals = Totals::default();
            for v in &values { totals.add(&[i128::from(*v), -i128::from(*v)], 1); }
            for v in &values { totals.add(&[i128::from(*v), -i128::from(*v)], -1); }
            prop_assert!(totals.same(&Totals::default()));
        }
    }
}
