//! What a caller asks to be written, as one unit.
//!
//! A batch is applied as a whole or not at all: rows, index, counters, log positions and attributes
//! land in one commit. That is what makes a store restartable: the position it finds says exactly
//! which changes the rows contain.

use crate::error::{Error, Result};
use crate::key::Lane;
use crate::table::{Prepared, Table};
use crate::value::Value;
use crate::version::Version;

/// Longest attribute name in bytes.
pub const ATTRIBUTE_NAME_MAX: usize = 256;

/// Changes that become visible together. Applied in order; a later change sees the earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) changes: Vec<Change>,
    pub(crate) positions: Vec<PositionChange>,
    pub(crate) attributes: Vec<(String, Option<Vec<u8>>)>,
    pub(crate) bytes: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) table: Table,
    pub(crate) id: u64,
    pub(crate) version: Version,
    pub(crate) op: Op,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Upsert(Prepared),
    Update(Vec<(usize, Value)>),
    Delete { tenant: Option<u64> },
    Evict,
    Truncate,
    ExpireTombstones,
}

#[derive(Clone, Debug)]
pub(crate) struct PositionChange {
    pub(crate) lane: Lane,
    pub(crate) expected: Expected,
    pub(crate) to: Option<Vec<u8>>,
}

/// Where a batch expects its lane to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Anywhere.
    Any,
    /// The lane has no position yet.
    Absent,
    /// Exactly there; otherwise the batch fails with [`Error::PositionMismatch`].
    At(Vec<u8>),
}

/// What became of one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It took effect. `replaced` tells whether a live row was there before.
    Applied {
        /// Whether a live row was there before.
        replaced: bool,
    },
    /// A newer version (or the very truncate that outlaws it) is stored; nothing changed.
    Stale,
    /// This very change is stored already; nothing changed.
    Duplicate,
    /// The stored version is the same but the content differs: two sources disagree, somebody
    /// should look. Nothing changed.
    Conflict,
    /// The row belongs to another tenant than the change names; nothing changed.
    OtherTenant,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// True when it would change nothing.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.positions.is_empty() && self.attributes.is_empty()
    }

    /// How many changes of rows it holds; [`Applied::outcomes`] has as many.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// About how many bytes it will write.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Stores a full row, one value per ordinal of the table's schema, unless a version at or above
    /// `version` is stored.
    ///
    /// # Errors
    /// When the row does not fit the table; the batch is unchanged then.
    pub fn upsert(&mut self, table: &Table, version: Version, row: Vec<Value>) -> Result<()> {
        let (id, prepared) = table.prepare(row, &version)?;
        self.bytes += prepared.row.len() + prepared.entry.len() + prepared.index_key.len() + 16;
        self.push(table, id, version, Op::Upsert(prepared));
        Ok(())
    }

    /// Overlays some columns of a stored row. Where no complete row is stored, the whole batch fails
    /// with [`Error::NeedsFullRow`].
    ///
    /// # Errors
    /// When a value does not fit its column or the id is among them; the batch is unchanged then.
    pub fn update(&mut self, table: &Table, version: Version, id: u64, set: Vec<(usize, Value)>) -> Result<()> {
        let refuse = |source| Error::Row { table: table.name().to_owned(), id, source };
        let schema = table.schema();
        let mut checked = Vec::with_capacity(set.len());
        for (at, value) in set {
            if at == schema.id() && value != Value::U64(id) {
                return Err(Error::BadRequest(format!("update of row {id} changes its id")));
            }
            checked.push((at, schema.check_value(at, value).map_err(refuse)?));
        }
        self.bytes += 200;
        self.push(table, id, version, Op::Update(checked));
        Ok(())
    }

    /// Deletes a row and leaves a tombstone, also where no row is. With `tenant`, only a row of that
    /// tenant is deleted and otherwise nothing is left behind.
    pub fn delete(&mut self, table: &Table, version: Version, id: u64, tenant: Option<u64>) {
        self.push(table, id, version, Op::Delete { tenant });
    }

    /// Drops whatever is stored under an id, without a version and without a tombstone: for rows
    /// that have moved to another shard, never for rows deleted at the source.
    pub fn evict(&mut self, table: &Table, id: u64) {
        self.push(table, id, Version::LOWEST, Op::Evict);
    }

    /// Makes all rows and tombstones of a table with a version below `version` disappear. Quick when
    /// nothing stored is newer; otherwise the survivors are counted by a scan.
    pub fn truncate(&mut self, table: &Table, version: Version) {
        self.push(table, 0, version, Op::Truncate);
    }

    /// Lets tombstones with a version below `version` go: promise that no change below it will come
    /// again.
    pub fn expire_tombstones(&mut self, table: &Table, version: Version) {
        self.push(table, 0, version, Op::ExpireTombstones);
    }

    /// Moves a lane to a position, in the same commit as the rows; `None` forgets the lane.
    pub fn set_position(&mut self, lane: Lane, expected: Expected, to: Option<Vec<u8>>) {
        self.bytes += to.as_ref().map_or(0, Vec::len) + lane.as_bytes().len();
        self.positions.push(PositionChange { lane, expected, to });
    }

    /// Keeps a small named value with the store (its shape, a clock's bound); `None` removes it.
    ///
    /// # Errors
    /// When the name is empty or longer than [`ATTRIBUTE_NAME_MAX`] bytes.
    pub fn set_attribute(&mut self, name: &str, value: Option<Vec<u8>>) -> Result<()> {
        if name.is_empty() || name.len() > ATTRIBUTE_NAME_MAX {
            return Err(Error::BadRequest(format!("bad attribute name {name:?}")));
        }
        self.bytes += value.as_ref().map_or(0, Vec::len) + name.len();
        self.attributes.push((name.to_owned(), value));
        Ok(())
    }

    fn push(&mut self, table: &Table, id: u64, version: Version, op: Op) {
        self.bytes += 64;
        self.changes.push(Change { table: table.clone(), id, version, op });
    }
}

/// What became of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// One per change, in order.
    pub outcomes: Vec<Outcome>,
}

impl Applied {
    /// Changes that took effect.
    pub fn applied(&self) -> usize {
        self.outcomes.iter().filter(|o| matches!(o, Outcome::Applied { .. })).count()
    }
}
