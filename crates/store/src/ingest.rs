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

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::batch::{Expected, PositionChange};
use crate::engine::Bytes;
use crate::error::{Error, Result};
use crate::key::{self, IndexKey, Lane, TableId, TimeKey};
use crate::record::{self, FORMAT, Kind, ROW_BYTES_MAX, Reader, Record, RecordError, put_block, put_varint, seal};
use crate::schema::RowError;
use crate::state::{Totals, decode_plain};
use crate::table::Table;
use crate::value::Value;
use crate::version::Version;

/// Rows of one table in ascending order of id, loaded as one unit. 100,000 to 200,000 rows make a
/// good chunk; it is held in memory.
///
/// All values lie in two buffers, one of rows and one of index entries. A vector per key and value would be
/// allocated on the thread that makes the chunk and freed on the one that writes it, which costs more than
/// encoding does.
#[derive(Clone, Debug)]
pub struct Chunk {
    pub(crate) table: Table,
    rows: Vec<StoredAt>,
    row_bytes: Vec<u8>,
    entries: Vec<Listed>,
    entry_bytes: Vec<u8>,
    pub(crate) first: Option<u64>,
    pub(crate) last: Option<u64>,
    pub(crate) lowest_version: Version,
    pub(crate) highest_version: Version,
    pub(crate) total: Totals,
    pub(crate) tenants: FxHashMap<u64, Totals>,
    pub(crate) positions: Vec<PositionChange>,
}

/// Where a row's value ends; it starts where the one before ends.
#[derive(Clone, Copy, Debug)]
struct StoredAt {
    id: u64,
    end: usize,
}

/// An index entry: its key's parts in the order in which keys compare, and where its value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Listed {
    tenant: u64,
    time: Option<TimeKey>,
    id: u64,
    start: usize,
    end: usize,
}

impl Listed {
    fn key(&self, table: TableId) -> IndexKey {
        IndexKey::new(table, self.tenant, self.time, self.id)
    }

    fn value(&self) -> Range<usize> {
        self.start..self.end
    }
}

impl Chunk {
    /// An empty chunk.
    pub fn new(table: &Table) -> Chunk {
        Chunk {
            table: table.clone(),
            rows: Vec::new(),
            row_bytes: Vec::new(),
            entries: Vec::new(),
            entry_bytes: Vec::new(),
            first: None,
            last: None,
            lowest_version: Version::LOWEST,
            highest_version: Version::LOWEST,
            total: Totals::default(),
            tenants: FxHashMap::default(),
            positions: Vec::new(),
        }
    }

    /// Rows in it, tombstones included.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// About how many bytes it holds.
    pub fn bytes(&self) -> usize {
        self.row_bytes.len()
            + self.entry_bytes.len()
            + std::mem::size_of_val(&*self.rows)
            + std::mem::size_of_val(&*self.entries)
    }

    /// Adds a row, one value per ordinal; its id must be above the last one's.
    ///
    /// # Errors
    /// When it does not fit the table or is out of order; the chunk is unchanged then.
    pub fn push(&mut self, version: Version, row: Vec<Value>) -> Result<()> {
        let table = &self.table;
        let schema = table.schema();
        let refuse = |id, source| Error::Row { table: table.name().to_owned(), id, source };
        let given = table.id_of(&row);
        let row = schema.check_row(row).map_err(|source| refuse(given, source))?;
        let id = table.id_of(&row);
        self.in_order(id)?;
        let (tenant, time) = table.place_of(&row);
        let value = |at: usize| row[at].as_ref();
        let row_at = self.row_bytes.len();
        let row_key = key::row_bytes(table.id(), id);
        let cells = table.cells();
        record::append_live(&mut self.row_bytes, cells, &row_key, &version, schema, schema.row_cells(), value);
        let bytes = self.row_bytes.len() - row_at;
        if bytes > ROW_BYTES_MAX {
            self.row_bytes.truncate(row_at);
            return Err(refuse(id, RowError::TooLong { bytes }));
        }
        let entry_at = self.entry_bytes.len();
        let index_key = IndexKey::new(table.id(), tenant, time, id);
        record::append_live(&mut self.entry_bytes, cells, &index_key, &version, schema, schema.listing(), value);
        self.entries.push(Listed { tenant, time, id, start: entry_at, end: self.entry_bytes.len() });
        self.total.add_row(table.addends(&row));
        self.tenants.entry(tenant).or_default().add_row(table.addends(&row));
        self.see(id, &version);
        Ok(())
    }

    /// Adds a tombstone: a row known to be deleted at `version`.
    ///
    /// # Errors
    /// When it is out of order.
    pub fn push_tombstone(&mut self, version: Version, id: u64) -> Result<()> {
        self.in_order(id)?;
        record::append_tombstone(&mut self.row_bytes, &key::row_bytes(self.table.id(), id), &version);
        self.see(id, &version);
        Ok(())
    }

    /// Adds a row or tombstone in stored form, of any format, without its checksum; true for a row.
    pub(crate) fn push_stored(&mut self, id: u64, body: &[u8]) -> Result<bool> {
        let key = key::row_bytes(self.table.id(), id);
        let damaged = |e| Error::record(&key, e);
        let record = Record::read_body(body).map_err(damaged)?;
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

    fn in_order(&self, id: u64) -> Result<()> {
        match self.last {
            Some(last) if id <= last => Err(Error::BadRequest(format!("row {id} of a chunk comes after row {last}"))),
            _ => Ok(()),
        }
    }

    /// Takes note of the row or tombstone just appended.
    fn see(&mut self, id: u64, version: &Version) {
        self.rows.push(StoredAt { id, end: self.row_bytes.len() });
        if self.first.is_none() {
            self.first = Some(id);
            self.lowest_version = *version;
        }
        self.last = Some(id);
        self.lowest_version = self.lowest_version.min(*version);
        self.highest_version = self.highest_version.max(*version);
    }

    /// Moves a lane when the chunk is in, so that loading can go on behind it after a restart.
    pub fn set_position(&mut self, lane: Lane, expected: Expected, to: Option<Vec<u8>>) {
        self.positions.push(PositionChange { lane, expected, to });
    }

    /// Puts the index entries in key order.
    pub(crate) fn sort(&mut self) {
        self.entries.sort_unstable();
    }

    /// The lowest index key of a sorted chunk; empty when it has none.
    pub(crate) fn lowest_entry(&self) -> Vec<u8> {
        self.entries.first().map_or_else(Vec::new, |entry| entry.key(self.table.id()).to_vec())
    }

    /// The rows in key order, as stored.
    pub(crate) fn stored_rows(&self) -> impl Iterator<Item = (Bytes, Bytes)> {
        let mut start = 0;
        self.rows.iter().map(move |row| {
            let value = &self.row_bytes[start..row.end];
            start = row.end;
            (Bytes::from(&key::row_bytes(self.table.id(), row.id)[..]), Bytes::from(value))
        })
    }

    /// The index entries of a sorted chunk in key order, as stored.
    pub(crate) fn stored_entries(&self) -> impl Iterator<Item = (Bytes, Bytes)> {
        let table = self.table.id();
        self.entries
            .iter()
            .map(move |entry| (Bytes::from(&*entry.key(table)), Bytes::from(&self.entry_bytes[entry.value()])))
    }
}

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
