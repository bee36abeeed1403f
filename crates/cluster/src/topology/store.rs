//! Keeping the document: the seam, the rules of changing it, the folder implementation and the watcher.
//!
//! Whoever keeps the document (a folder, etcd, ZooKeeper) only needs to store bytes with compare-and-swap and to say
//! that something changed. Everything that can go wrong in between (an accident that empties the document, two
//! operators at once, a change that was meant for an older state) is decided here, once for all of them.

mod file;
mod watch;

use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future::BoxFuture;
use serde::Serialize;

use super::{Defect, Document, Plan, Topology, shrinks};

pub use file::{FileStore, HISTORY_MAX};
pub use watch::{Watched, Watcher};

/// A store's own version of the document; equal exactly when nothing changed. For the folder it is the epoch, for etcd
/// the modification revision, for ZooKeeper the node version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Revision(pub u64);

/// The document as a store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The store's version of it.
    pub revision: Revision,
    /// The document, as stored.
    pub document: Document,
}

/// A former document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HistoryEntry {
    /// Its epoch.
    pub epoch: u64,
    /// When it was stored, in milliseconds since 1970.
    pub stored_unix_ms: u64,
    /// How many groups it has.
    pub groups: usize,
    /// How many shards it has.
    pub shards: usize,
}

/// Why a topology store could not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Somebody else changed the document first, or the expected epoch is not the current one.
    #[error("topology epoch is {current}, not {expected}", expected = .expected.map_or("absent".into(), |e| e.to_string()),
            current = .current.map_or("absent".into(), |e| e.to_string()))]
    EpochMismatch {
        /// What the caller expected; `None`: no document yet.
        expected: Option<u64>,
        /// What is there.
        current: Option<u64>,
    },
    /// The document looks like an accident.
    #[error("refused: {reason}")]
    Shrinks {
        /// What would get lost.
        reason: String,
    },
    /// The document is not valid.
    #[error("not a valid topology")]
    Invalid(#[source] Defect),
    /// The stored document cannot be read as one.
    #[error("stored topology is damaged: {0}")]
    Damaged(String),
    /// There is no such document, or none yet.
    #[error("no topology {0}")]
    NotFound(String),
    /// A watch was asked to continue from where the store no longer remembers; list again.
    #[error("topology history before the watched revision is gone")]
    Gap,
    /// The store could not be read or written.
    #[error("{what}")]
    Io {
        /// What was being done, with the path or address.
        what: String,
        /// The cause.
        #[source]
        source: Arc<std::io::Error>,
    },
}

/// Where the document lives.
pub trait TopologyStore: Send + Sync + 'static {
    /// The document in force; `None` when there never was one.
    fn load(&self) -> BoxFuture<'_, Result<Option<Snapshot>, StoreError>>;

    /// Replaces the document if the current one still has this revision (`None`: if there is none), and keeps the old
    /// one in the history. The document is stored as it is; [`Prepared::commit`] is the way to change a topology.
    ///
    /// # Errors
    /// [`StoreError::EpochMismatch`] when somebody was faster.
    fn replace(&self, expected: Option<Revision>, document: Document) -> BoxFuture<'_, Result<Revision, StoreError>>;

    /// The former documents that are kept, newest first, the current one included.
    fn history(&self) -> BoxFuture<'_, Result<Vec<HistoryEntry>, StoreError>>;

    /// A kept document by epoch.
    fn at_epoch(&self, epoch: u64) -> BoxFuture<'_, Result<Document, StoreError>>;

    /// Waits until the document's revision is another than `seen`.
    ///
    /// # Errors
    /// [`StoreError::Gap`] when changes since `seen` may have been forgotten; the watcher lists again then.
    fn changed(&self, seen: Option<Revision>) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// How a change is to be applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Apply {
    /// The epoch the change was made against; anything else is refused.
    pub expected: Option<u64>,
    /// Accept a document that is empty or loses groups or shards. Needs `expected`.
    pub force: bool,
}

/// A checked change, not yet stored: look at its plan, then [`commit`](Prepared::commit) it, or drop it (a dry run).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Prepared {
    /// The topology in force, if any.
    pub before: Option<Topology>,
    /// What it would become, with its new epochs.
    pub after: Topology,
    /// What that moves; empty for a first topology.
    pub plan: Plan,
    base: Option<Revision>,
}

/// A stored change.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// The topology now in force.
    pub topology: Topology,
    /// The store's version of it.
    pub revision: Revision,
    /// What it moved.
    pub plan: Plan,
}

impl Prepared {
    /// Checks a document against what is in force. Its own epochs are not looked at: they are stamped anew, and only
    /// entries that change hands get the new one.
    ///
    /// # Errors
    /// When the expected epoch is not the current one, the document is invalid, or it looks like an accident and is not
    /// forced.
    pub async fn new(store: &dyn TopologyStore, document: Document, options: Apply) -> Result<Prepared, StoreError> {
        let current = store.load().await?;
        let epoch = current.as_ref().map(|current| current.document.epoch);
        if options.expected.is_some() && options.expected != epoch {
            return Err(StoreError::EpochMismatch { expected: options.expected, current: epoch });
        }
        // What is in force was accepted once, so it is served even where today's rules are stricter.
        let before = current.as_ref().map(|current| Topology::with_gaps(current.document.clone())).transpose();
        let before = before.map_err(|defect| StoreError::Damaged(defect.to_string()))?;
        let forced = options.force && options.expected.is_some();
        if let Some(before) = &before
            && !forced
            && let Some(reason) = shrinks(before, &document)
        {
            tracing::error!(%reason, "topology change refused");
            let how = if options.force { "; forcing it needs the expected epoch" } else { "" };
            return Err(StoreError::Shrinks { reason: format!("{reason}{how}") });
        }
        let checked = if forced && document.groups.is_empty() { Topology::with_gaps } else { Topology::new };
        // Overlaps must be found before entries are split and merged by epoch.
        let mut unstamped = document;
        unstamped.epoch = u64::MAX;
        let valid = checked(unstamped).map_err(StoreError::Invalid)?;
        let next = epoch.unwrap_or(0) + 1;
        let mut document = valid.document().stamped(before.as_ref(), next);
        document.forced_over = forced.then_some(epoch).flatten();
        let after = checked(document).map_err(StoreError::Invalid)?;
        let plan = before.as_ref().map(|before| Plan::between(before, &after)).unwrap_or_default();
        Ok(Prepared { before, after, plan, base: current.map(|current| current.revision) })
    }

    /// The change that brings an old document back: its content under a new epoch.
    ///
    /// # Errors
    /// As [`Prepared::new`], and when that epoch is no longer kept.
    pub async fn rollback(store: &dyn TopologyStore, epoch: u64, options: Apply) -> Result<Prepared, StoreError> {
        let document = store.at_epoch(epoch).await?;
        Prepared::new(store, document, options).await
    }

    /// Stores it.
    ///
    /// # Errors
    /// When somebody changed the document since it was prepared, or it cannot be written.
    pub async fn commit(self, store: &dyn TopologyStore) -> Result<Accepted, StoreError> {
        let revision = store.replace(self.base, self.after.document().clone()).await?;
        tracing::info!(topology = %self.after.shape(), changes = self.plan.changes.len(), "topology changed");
        Ok(Accepted { topology: self.after, revision, plan: self.plan })
    }
}

#[cfg(test)]
mod tests;
