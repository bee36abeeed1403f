//! What can go wrong, sorted by what the caller does about it.
//!
//! The layer above decides between "ask again", "ask another copy", "tell the client" and "wake
//! somebody up", so every error knows which of these it is; the text is for the log.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::key::Lane;
use crate::record::RecordError;
use crate::schema::{RowError, SchemaError};

/// Result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the store. Cloneable, because one failed commit is the answer to every request in it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A declaration is invalid or does not continue the stored schema.
    #[error("schema refused")]
    Schema(#[from] SchemaError),
    /// No table of that name or number.
    #[error("no table {0:?}")]
    UnknownTable(String),
    /// A row does not fit its table. Whole batches are refused for it.
    #[error("table {table:?} refuses row {id}")]
    Row {
        /// The table.
        table: String,
        /// The row, where it is known.
        id: u64,
        /// What is wrong with it.
        #[source]
        source: RowError,
    },
    /// A request is malformed in itself: a limit of zero, ids out of order.
    #[error("bad request: {0}")]
    BadRequest(String),
    /// Partial updates met rows that are not there. Nothing of the batch was applied; send full rows.
    #[error("{} rows of table {table:?} are not here to be updated in part", ids.len())]
    NeedsFullRow {
        /// The table.
        table: String,
        /// The rows, in order of the batch.
        ids: Vec<u64>,
    },
    /// A batch expected its lane elsewhere. Nothing of it was applied.
    #[error("lane is at another position than the batch expects")]
    PositionMismatch {
        /// The lane.
        lane: Lane,
        /// Where it is; `None` when the lane is new.
        found: Option<Vec<u8>>,
    },
    /// A bulk chunk has ids at or below one already stored, so ingestion could bury newer rows.
    #[error("chunk starts at id {first}, not above id {highest} already stored; use batches")]
    NotAbove {
        /// First id of the chunk.
        first: u64,
        /// Highest id that a row or tombstone ever had.
        highest: u64,
    },
    /// A queue is full. Ask again later or elsewhere.
    #[error("{queue} queue is full")]
    Overloaded {
        /// Which queue.
        queue: &'static str,
    },
    /// Writes were held back longer than the request allowed. Nothing of it was applied.
    #[error("write held back for {waited:?}: {reason}")]
    Stalled {
        /// How long this request waited.
        waited: Duration,
        /// What the gate was waiting for.
        reason: String,
    },
    /// The caller gave up before the work was done.
    #[error("cancelled")]
    Cancelled,
    /// The store is read-only after a failed write; see [`crate::Store::recover`].
    #[error("store is read-only: {reason}")]
    Failed {
        /// What failed.
        reason: Arc<str>,
        /// True when the disk was full, so that freeing space and recovering will do.
        disk_full: bool,
    },
    /// The store was closed.
    #[error("store is closed")]
    Closed,
    /// Stored bytes are damaged.
    #[error("damaged data in {}: {what}", file.display())]
    Corrupt {
        /// The damaged file, or the folder where the engine could not say which.
        file: PathBuf,
        /// What was found.
        what: String,
    },
    /// A record does not decode although the engine delivered it undamaged.
    #[error("damaged record under key {key}")]
    Record {
        /// The key in hexadecimal.
        key: String,
        /// What is wrong with it.
        #[source]
        source: RecordError,
    },
    /// The write-ahead journal is damaged before its end. It was copied aside and nothing was changed.
    #[error(
        "journal {} is damaged at byte {offset}, with {lost_bytes} bytes of later commits behind; \
         copied to {}", file.display(), copy.display()
    )]
    JournalDamaged {
        /// The journal file.
        file: PathBuf,
        /// Where the undamaged part ends.
        offset: u64,
        /// Bytes behind that point.
        lost_bytes: u64,
        /// Where the copy lies.
        copy: PathBuf,
    },
    /// Another process has the store open.
    #[error("store {} is open in another process", .0.display())]
    Locked(PathBuf),
    /// The folder holds something else, an unfinished restore, or a format of a later build.
    #[error("{} cannot be opened: {reason}", path.display())]
    NotAStore {
        /// The folder.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A checkpoint cannot be read.
    #[error("checkpoint refused: {0}")]
    Checkpoint(String),
    /// A checkpoint would hold old data on disk for longer, or more of it, than allowed.
    #[error("checkpoint given up: {0}")]
    CheckpointLimit(String),
    /// The operating system refused.
    #[error("{what} {}", path.display())]
    Io {
        /// What was being done.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The engine reported something that has no class of its own.
    #[error("storage engine: {0}")]
    Engine(String),
}

impl Error {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Error {
        Error::Io { what, path: path.into(), source: Arc::new(source) }
    }

    pub(crate) fn record(key: &[u8], source: RecordError) -> Error {
        let key = key.iter().map(|b| format!("{b:02x}")).collect();
        Error::Record { key, source }
    }

    /// Asking again a little later can succeed without anybody doing anything.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Overloaded { .. } | Error::Stalled { .. })
    }

    /// Data on disk is not what was written; another copy must answer.
    pub fn is_corruption(&self) -> bool {
        matches!(self, Error::Corrupt { .. } | Error::Record { .. } | Error::JournalDamaged { .. })
    }

    /// The request itself is at fault.
    pub fn is_request(&self) -> bool {
        matches!(
            self,
            Error::Schema(_)
                | Error::UnknownTable(_)
                | Error::Row { .. }
                | Error::BadRequest(_)
                | Error::NotAbove { .. }
        )
    }

    /// The disk is full, now or when the store failed.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Error::Failed { disk_full, .. } => *disk_full,
            Error::Io { source, .. } => is_full(source),
            _ => false,
        }
    }
}

pub(crate) fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}
