//! Bulk loading by sorted ingestion.
//!
//! Ingestion writes finished tables and costs a fraction of the ordinary write path, but it is blind:
//! it replaces newer rows and revives deleted ones without a look, and it cannot carry counters and
//! positions along. Two rules make it safe here. A chunk must lie above every id the table ever had,
//! so there is nothing to bury. And before the engine sees it, an *intent* is put on stable storage:
//! the very batch of counters and positions that will complete the chunk, with what a restart needs to
//! tell how far the chunk came. A restart then either finishes the chunk or forgets it; the caller's
//! position says which, and loading goes on from there.
//!
//! Rows and index entries are ingested one after the other and not as one stream. Tables are cut by
//! size only, so in one stream a table would hold the last rows and the first index entries, would
//! overlap everything, and each compaction would write all rows again: four times the work at two
//! million rows, and growing. Apart, the rows of ascending chunks never overlap.

use std::collections::BTreeMap;

use crate::batch::{Expected, PositionChange};
use crate::error::{Error, Result};
use crate::key::{self, Lane};
use crate::record::{self, FORMAT, Kind, Reader, Record, RecordError, put_block, put_varint, seal};
use crate::state::{Totals, decode_plain};
use crate::table::Table;
use crate::value::Value;
use crate::version::Version;

/// Rows of one table in ascending order of id, loaded as one unit. 100,000 to 200,000 rows make a
/// good chunk; it is held in memory.
#[derive(Clone, Debug)]
pub struct Chunk {
    pub(crate) table: Table,
    pub(crate) rows: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) entries: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) first: Option<u64>,
    pub(crate) last: Option<u64>,
    pub(crate) lowest_version: Version,
    pub(crate) highest_version: Version,
    pub(crate) total: Totals,
    pub(crate) tenants: BTreeMap<u64, Totals>,
    pub(crate) positions: Vec<PositionChange>,
    bytes: usize,
}

impl Chunk {
    /// An empty chunk.
    pub fn new(table: &Table) -> Chunk {
        Chunk {
            table: table.clone(),
            rows: Vec::new(),
            entries: Vec::new(),
            first: None,
            last: None,
            lowest_version: Version::LOWEST,
            highest_version: Version::LOWEST,
            total: Totals::default(),
            tenants: BTreeMap::new(),
            positions: Vec::new(),
            bytes: 0,
        }
    }

    /// Rows in it.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// About how many bytes it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a row, one value per ordinal; its id must be above the last one's.
    ///
    /// # Errors
    /// When it does not fit the table or is out of order; the chunk is unchanged then.
    pub fn push(&mut self, version: Version, row: Vec<Value>) -> Result<()> {
        let (id, prepared) = self.table.prepare(row, &version)?;
        self.see(id, &version)?;
        self.total.add(&prepared.sums, 1);
        self.tenants.entry(prepared.tenant).or_default().add(&prepared.sums, 1);
        self.bytes += prepared.row.len() + prepared.entry.len() + prepared.index_key.len() + 120;
        self.rows.push((key::row(self.table.id(), id), prepared.row));
        self.entries.push((prepared.index_key, prepared.entry));
        Ok(())
    }

    /// Adds a tombstone: a row known to be deleted at `version`.
    ///
    /// # Errors
    /// When it is out of order.
    pub fn push_tombstone(&mut self, version: Version, id: u64) -> Result<()> {
        self.see(id, &version)?;
        let key = key::row(self.table.id(), id);
        let value = record::tombstone(&key, &version);
        self.bytes += key.len() + value.len() + 48;
        self.rows.push((key, value));
        Ok(())
    }

    /// Adds a row or tombstone in stored form without format byte and checksum; true for a row.
    pub(crate) fn push_stored(&mut self, id: u64, body: &[u8]) -> Result<bool> {
        let key = key::row(self.table.id(), id);
        let damaged = |e| Error::record(&key, e);
        let mut value = Vec::with_capacity(body.len() + 5);
        value.push(FORMAT);
        value.extend_from_slice(body);
        seal(&key, &mut value);
        let record = Record::read(&key, &value).map_err(damaged)?;
        let version = record.version();
        match record.kind {
            Kind::Void => Err(damaged(RecordError::Bad("kind"))),
            Kind::Tombstone => self.push_tombstone(version, id).map(|()| false),
            Kind::Live => {
                let row = self.table.values(id, &record).map_err(damaged)?;
                self.push(version, row).map(|()| true)
            }
        }
    }

    fn see(&mut self, id: u64, version: &Version) -> Result<()> {
        if let Some(last) = self.last
            && id <= last
        {
            return Err(Error::BadRequest(format!("row {id} of a chunk comes after row {last}")));
        }
        if self.first.is_none() {
            self.first = Some(id);
            self.lowest_version = *version;
        }
        self.last = Some(id);
        self.lowest_version = self.lowest_version.min(*version);
        self.highest_version = self.highest_version.max(*version);
        Ok(())
    }

    /// Moves a lane when the chunk is in, so that loading can go on behind it after a restart.
    pub fn set_position(&mut self, lane: Lane, expected: Expected, to: Option<Vec<u8>>) {
        self.positions.push(PositionChange { lane, expected, to });
    }

    /// Rows and index entries, each in key order.
    pub(crate) fn into_parts(self) -> (Pairs, Pairs) {
        let mut entries = self.entries;
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        (self.rows, entries)
    }
}

/// Keys with their values.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// What completes a chunk, written before it: see the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Intent {
    /// Lowest id of the chunk; its row is stored if and only if the chunk's rows arrived.
    pub(crate) first: u64,
    /// Highest id of the chunk.
    pub(crate) last: u64,
    /// An index entry of the chunk, stored if and only if its index arrived; empty when it has none.
    pub(crate) entry: Vec<u8>,
    /// The batch that completes the chunk.
    pub(crate) writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Intent {
    pub(crate) fn encode(&self, key: &[u8]) -> Vec<u8> {
        let mut out = vec![FORMAT];
        put_varint(&mut out, self.first);
        put_varint(&mut out, self.last);
        put_block(&mut out, &self.entry);
        put_varint(&mut out, self.writes.len() as u64);
        for (key, value) in &self.writes {
            put_block(&mut out, key);
            match value {
                None => out.push(0),
                Some(value) => {
                    out.push(1);
                    put_block(&mut out, value);
                }
            }
        }
        seal(key, &mut out);
        out
    }

    pub(crate) fn decode(key: &[u8], sealed: &[u8]) -> Result<Intent, RecordError> {
        let mut reader = Reader::new(decode_plain(key, sealed)?);
        let (first, last) = (reader.varint()?, reader.varint()?);
        let entry = reader.block()?.to_vec();
        let count = reader.varint()?;
        let mut writes = Vec::new();
        for _ in 0..count {
            let key = reader.block()?.to_vec();
            let value = match reader.u8()? {
                0 => None,
                1 => Some(reader.block()?.to_vec()),
                _ => return Err(RecordError::Bad("intent")),
            };
            writes.push((key, value));
        }
        if !reader.is_empty() {
            return Err(RecordError::Bad("length"));
        }
        Ok(Intent { first, last, entry, writes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn intents_round_trip(
            (first, last) in any::<(u64, u64)>(),
            entry in proptest::collection::vec(any::<u8>(), 0..20),
            writes in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 0..20), proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20))), 0..5),
        ) {
            let intent = Intent { first, last, entry, writes };
            prop_assert_eq!(Intent::decode(b"k", &intent.encode(b"k")), Ok(intent));
        }

        #[test]
        fn any_bytes_read_without_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            seal(b"k", &mut bytes);
            let _ = Intent::decode(b"k", &bytes);
        }
    }
}
