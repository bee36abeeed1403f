//! A table of an open store and the bytes its rows become.
//!
//! Encoding happens in the caller's thread, where there are many, so that the one writer thread only
//! compares versions and copies bytes.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::key::{self, TableId, TimeKey};
use crate::record::{self, CellFormat, Origin, ROW_BYTES_MAX, Record, RecordError};
use crate::schema::{RowError, Schema};
use crate::value::{Value, ValueRef, unscaled};
use crate::version::Version;

/// A handle on a table: its number and its schema as of when the handle was taken. Handles stay
/// valid when columns are added; rows made with an old one have NULL in the new columns.
#[derive(Clone, Debug)]
pub struct Table(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: TableId,
    schema: Schema,
    /// How this table's records are written; the same in all of a store.
    cells: CellFormat,
}

/// A row ready to be stored.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) tenant: u64,
    pub(crate) index_key: Vec<u8>,
    pub(crate) row: Vec<u8>,
    pub(crate) entry: Vec<u8>,
    pub(crate) sums: Vec<i128>,
}

/// What replacing or deleting a stored row has to undo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Traces {
    pub(crate) tenant: u64,
    pub(crate) time: Option<TimeKey>,
    pub(crate) sums: Vec<i128>,
}

impl Table {
    pub(crate) fn new(id: TableId, schema: Schema, cells: CellFormat) -> Table {
        Table(Arc::new(Inner { id, schema, cells }))
    }

    pub(crate) fn cells(&self) -> CellFormat {
        self.0.cells
    }

    /// The table's number.
    pub fn id(&self) -> TableId {
        self.0.id
    }

    /// The table's schema.
    pub fn schema(&self) -> &Schema {
        &self.0.schema
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        self.0.schema.name()
    }

    /// The id of a row given as one value per column.
    pub(crate) fn id_of(&self, row: &[Value]) -> u64 {
        match row.get(self.schema().id()) {
            Some(Value::U64(id)) => *id,
            _ => 0,
        }
    }

    /// Checks a row and encodes it with its index entry.
    pub(crate) fn prepare(&self, row: Vec<Value>, version: &Version) -> Result<(u64, Prepared)> {
        let refuse = |id, source| Error::Row { table: self.name().to_owned(), id, source };
        let id = self.id_of(&row);
        let row = self.schema().check_row(row).map_err(|source| refuse(id, source))?;
        let id = self.id_of(&row);
        let prepared = self.encode(id, version, |at| row[at].as_ref());
        if prepared.row.len() > ROW_BYTES_MAX {
            return Err(refuse(id, RowError::TooLong { bytes: prepared.row.len() }));
        }
        Ok((id, prepared))
    }

    /// Where a row given as one value per column stands in the listing.
    pub(crate) fn place_of(&self, row: &[Value]) -> (u64, Option<TimeKey>) {
        let schema = self.schema();
        let tenant = match &row[schema.tenant()] {
            Value::U64(tenant) => *tenant,
            _ => 0,
        };
        (tenant, schema.time().and_then(|at| TimeKey::of(row[at].as_ref())))
    }

    /// What a row given as one value per column adds to each sum.
    pub(crate) fn addends(&self, row: &[Value]) -> impl ExactSizeIterator<Item = i128> {
        self.schema().summed().iter().map(|&at| addend(row[at].as_ref()))
    }

    /// Encodes a row that was checked.
    pub(crate) fn encode<'v>(&self, id: u64, version: &Version, row: impl Fn(usize) -> ValueRef<'v>) -> Prepared {
        let schema = self.schema();
        let tenant = match row(schema.tenant()) {
            ValueRef::U64(tenant) => tenant,
            _ => 0,
        };
        let time = schema.time().and_then(|at| TimeKey::of(row(at)));
        let row_key = key::row(self.id(), id);
        let index_key = key::index(self.id(), tenant, time, id);
        Prepared {
            tenant,
            row: record::live(self.cells(), &row_key, version, schema, schema.row_cells(), &row),
            entry: record::live(self.cells(), &index_key, version, schema, schema.listing(), &row),
            index_key,
            sums: schema.summed().iter().map(|&at| addend(row(at))).collect(),
        }
    }

    /// Reads from a stored row what else the store keeps about it.
    pub(crate) fn traces(&self, record: &Record<'_>) -> Result<Traces, RecordError> {
        let schema = self.schema();
        let mut traces = Traces { tenant: 0, time: None, sums: vec![0; schema.summed().len()] };
        // No sum and no place in the listing depends on a time other than the row's own.
        record.cells.for_each(schema, schema.row_cells(), Origin::Epoch, |at, value| {
            if at == schema.tenant() {
                if let ValueRef::U64(tenant) = value {
                    traces.tenant = tenant;
                }
            } else if Some(at) == schema.time() {
                traces.time = TimeKey::of(value);
            } else if let Ok(n) = schema.summed().binary_search(&at) {
                traces.sums[n] = addend(value);
            }
        })?;
        Ok(traces)
    }

    /// All values of a stored row, by ordinal.
    pub(crate) fn values(&self, id: u64, record: &Record<'_>) -> Result<Vec<Value>, RecordError> {
        let schema = self.schema();
        let mut row = vec![Value::Null; schema.columns().len()];
        row[schema.id()] = Value::U64(id);
        let origin = record.cells.own_origin(schema, schema.row_cells())?;
        record.cells.for_each(schema, schema.row_cells(), origin, |at, v| row[at] = v.into_owned())?;
        Ok(row)
    }
}

/// What a cell adds to its column's sum.
fn addend(value: ValueRef<'_>) -> i128 {
    match value {
        ValueRef::U64(v) => i128::from(v),
        ValueRef::I64(v) => i128::from(v),
        ValueRef::Decimal(v) => unscaled(v).unwrap_or(0),
        _ => 0,
    }
}
