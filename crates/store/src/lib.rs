//! MetaStorage: typed tables on an LSM engine that lose nothing and show their state.
//!
//! A [`Store`] holds tables declared by a [`Schema`]. Rows have an id, a tenant and usually a time;
//! they are read by id, listed per tenant in order of time without touching the rows themselves, or
//! scanned, each time filtered by the same expression language that routes requests. Writes are
//! *changes* with opaque versions, applied idempotently, together with the positions of the logs they
//! came from, so that a store is a deterministic function of its logs and can always be continued
//! from where it is.
//!
//! ```
//! use metaroute_store::{Batch, Declaration, OpenOptions, Schema, Store, Value, Version, Walk, ListQuery};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let declaration: Declaration = serde_json::from_str(
//!     r#"{"name": "files", "id": "file_id", "tenant": "user_id", "time": "created_at",
//!         "columns": {"file_id": "u64", "user_id": "u64", "created_at": "timestamp(6)?", "path": "string"},
//!         "listing": ["path"]}"#,
//! )?;
//! let store = Store::open(folder.path(), OpenOptions::default())?;
//! let files = store.create_table(Schema::parse(&declaration)?).wait()?;
//!
//! let mut batch = Batch::new();
//! batch.upsert(&files, Version::from(1), vec![
//!     Value::U64(7), Value::U64(42), Value::Timestamp(1_700_000_000_000_000), Value::String("/a".into()),
//! ])?;
//! store.apply(batch).wait()?;
//!
//! let columns = files.schema().default_columns();
//! let listing = ListQuery { walk: Walk::of(&files, &columns), tenant: 42, from: None, to: None, after: None };
//! let page = store.view()?.list(&listing)?;
//! assert_eq!(page.rows[0].id, 7);
//! # store.close();
//! # Ok(())
//! # }
//! ```
//!
//! The store is synchronous and knows no async runtime. Writes and pooled reads answer with a
//! [`Pending`], which can be awaited anywhere or waited for. It knows nothing of shards, users or
//! HTTP: which ids are whose comes in as a predicate with each read.
#![forbid(unsafe_code)]

mod value;
mod version;

mod record;
mod schema;
mod state;

mod key;

mod engine;
mod journal;

mod batch;
mod ingest;
mod table;

mod apply;
mod gate;
mod opening;
mod retention;
mod writer;

mod check;
mod checkpoint;
mod filter;
mod query;
mod view;

mod pending;
mod pool;

mod error;
mod options;
mod store;

pub use batch::{ATTRIBUTE_NAME_MAX, Applied, Batch, Expected, Outcome};
pub use check::{CheckReport, Dumped, Problem, TableReport};
pub use checkpoint::{CheckpointLimits, CheckpointSummary, verify_checkpoint};
pub use error::{Error, Result};
pub use filter::Filter;
pub use gate::{Debt, GateLimits, GateState};
pub use ingest::Chunk;
pub use key::{Lane, TableId, TimeKey};
pub use options::{Durability, OpenOptions, QueueSize};
pub use pending::Pending;
pub use pool::{PoolGauges, PoolSize};
pub use query::{
    Aggregate, AggregateQuery, Budget, Cancel, ColumnAggregate, Direction, ListPosition, ListQuery, Lookup, Owned,
    Page, Row, ScanQuery, Stopped, Sum, Tombstone, Walk,
};
pub use record::{ROW_BYTES_MAX, RecordError};
pub use schema::{COLUMNS_MAX, Column, Declaration, DeclaredColumns, NAME_BYTES_MAX, RowError, Schema, SchemaError};
pub use state::Totals;
pub use store::{Gauges, State, Store};
pub use table::Table;
pub use value::{ColumnType, UnknownType, Value, ValueError, ValueRef};
pub use version::Version;
pub use view::View;

/// Doors for fuzz targets; no part of the API.
#[doc(hidden)]
pub mod fuzz {
    use crate::{Schema, Table, Value, Version, key, record};

    /// Reads arbitrary bytes as a row, once as they are and once with a matching checksum. Whatever
    /// decodes must survive being encoded and decoded again.
    pub fn row(schema: &Schema, bytes: &[u8]) {
        let table = Table::new(key::TableId(0), schema.clone(), record::CellFormat::Two);
        let key = key::row(table.id(), 7);
        let read = |bytes: &[u8]| -> Option<(Version, Vec<Value>)> {
            let record = record::Record::read(&key, bytes).ok()?;
            let mut offsets = Vec::new();
            let cells = schema.row_cells();
            let types: Vec<_> = cells.iter().map(|&at| schema.columns()[at].ty).collect();
            if record.cells.locate(&types, &mut offsets).is_ok() {
                for (n, &at) in cells.iter().enumerate() {
                    let _ = record.cells.cell_at(offsets[n], schema.columns()[at].ty, record::Origin::Epoch);
                }
            }
            if record.kind != record::Kind::Live {
                return None;
            }
            Some((record.version(), table.values(7, &record).ok()?))
        };
        let _ = read(bytes);
        let mut sealed = bytes.to_vec();
        record::seal(&key, &mut sealed);
        if let Some((version, row)) = read(&sealed) {
            let again = table.encode(7, &version, |at| row[at].as_ref());
            let (version_again, row_again) = read(&again.row).expect("its own bytes");
            assert_eq!(version, version_again);
            assert_eq!(format!("{row:?}"), format!("{row_again:?}"));
        }
    }

    /// Looks arbitrary bytes over as an engine journal.
    pub fn journal(bytes: &[u8]) {
        let found = crate::journal::inspect_bytes(bytes);
        assert!(found.good <= found.len);
    }

    /// Reads arbitrary bytes as a checkpoint whose frames have matching checksums: each frame's
    /// payload is the input's next piece.
    pub fn checkpoint_frames(bytes: &[u8]) {
        crate::checkpoint::fuzz_frames(bytes);
    }
}
