//! An open store: the handle everything goes through.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::batch::{Applied, Batch};
use crate::engine::EngineGauges;
use crate::error::{Error, Result};
use crate::gate::GateState;
use crate::ingest::Chunk;
use crate::opening::{self, FolderLock};
use crate::options::OpenOptions;
use crate::pending::Pending;
use crate::pool::{Pool, PoolGauges};
use crate::query::Cancel;
use crate::schema::Schema;
use crate::table::Table;
use crate::view::View;
use crate::writer::{Shared, Status, Writer};

/// An open store. Clones share it; it closes when the last one is dropped, or on [`Store::close`].
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    points: Mutex<Pool>,
    scans: Mutex<Pool>,
    writer: Mutex<Option<JoinHandle<()>>>,
    lock: Mutex<Option<FolderLock>>,
}

/// Whether a store takes writes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Reads and writes.
    Running,
    /// Reads only, of what was published before the failure.
    Failed {
        /// What failed.
        reason: String,
        /// Whether the disk was full.
        disk_full: bool,
        /// For how long.
        since: Duration,
    },
    /// Neither.
    Closed,
}

/// The store's condition as numbers. Taking them may wait for a lock the engine holds during an
/// fsync, so take them on a blocking thread.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Gauges {
    /// Whether writes are taken.
    pub state: State,
    /// What the gate would say now.
    pub gate: GateState,
    /// Sorted runs in level 0; every listing looks into each.
    pub l0_runs: usize,
    /// Full memtables waiting to be flushed.
    pub sealed_memtables: usize,
    /// Bytes in the memtable being written.
    pub active_memtable_bytes: u64,
    /// Flushes waiting or running.
    pub pending_flushes: usize,
    /// Compactions running.
    pub running_compactions: usize,
    /// Compactions finished since the store was opened.
    pub finished_compactions: usize,
    /// Time spent compacting since the store was opened, over all threads.
    pub compacting: Duration,
    /// Table files.
    pub tables: usize,
    /// Bytes in table files.
    pub table_bytes: u64,
    /// Journal files.
    pub journals: usize,
    /// Bytes in journal files.
    pub journal_bytes: u64,
    /// Bytes in the block cache.
    pub cache_bytes: u64,
    /// Requests waiting to be written.
    pub write_queue: usize,
    /// Bytes of the requests waiting to be written.
    pub write_queue_bytes: usize,
    /// Commits since the store was opened.
    pub commits: u64,
    /// Batches in those commits.
    pub batches: u64,
    /// Changes in those batches.
    pub changes: u64,
    /// Changes that were stale or duplicates.
    pub stale: u64,
    /// Changes in conflict with what is stored at the same version.
    pub conflicts: u64,
    /// Rows that came by ingestion.
    pub ingested_rows: u64,
    /// Syncs to stable storage.
    pub syncs: u64,
    /// Writes refused because the queue was full.
    pub refused: u64,
    /// How often a write found the gate closed.
    pub gate_waits: u64,
    /// Time writes spent at the closed gate.
    pub gate_waited: Duration,
    /// Time writes were delayed by the half-open gate.
    pub slowed: Duration,
    /// Age of the oldest view a reader still holds; what it sees cannot leave the disk.
    pub oldest_view: Duration,
    /// The pool for single rows.
    pub points: PoolGauges,
    /// The pool for listings and scans.
    pub scans: PoolGauges,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.0.shared.path).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store in `path`. Blocks: recovery replays up to 64 MiB of journal.
    ///
    /// # Errors
    /// When the folder is in use, holds something else, or is damaged; see [`Error`].
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Store> {
        let path = path.as_ref();
        let lock = opening::lock_folder(path, options.create)?;
        let opened = opening::open_engine(path, &options, false)?;
        let points = Pool::start("points", options.points)?;
        let scans = Pool::start("scans", options.scans)?;
        let shared = Arc::new(Shared::new(path.to_owned(), options));
        let writer = Writer::new(shared.clone(), opened);
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || writer.run())
            .map_err(|e| Error::io("cannot start the writer thread for", path, e))?;
        Ok(Store(Arc::new(Inner {
            shared,
            points: Mutex::new(points),
            scans: Mutex::new(scans),
            writer: Mutex::new(Some(thread)),
            lock: Mutex::new(Some(lock)),
        })))
    }

    /// The store's folder.
    pub fn path(&self) -> &Path {
        &self.0.shared.path
    }

    /// The last published state. Cheap; reading from it blocks, see [`View`].
    ///
    /// # Errors
    /// When the store is closed, or is being recovered.
    pub fn view(&self) -> Result<View> {
        self.0.shared.view()
    }

    /// Runs a short read (single rows, positions, totals) on the pool for those. [`Error::Overloaded`]
    /// when its queue is full; dropping the answer cancels.
    pub fn read_points<T: Send + 'static>(
        &self,
        read: impl FnOnce(&View, &Cancel) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        self.read(&self.0.points, read)
    }

    /// Runs a walk (listing, scan, aggregate) on the pool for those. [`Error::Overloaded`] when its
    /// queue is full; dropping the answer cancels.
    pub fn read_scans<T: Send + 'static>(
        &self,
        read: impl FnOnce(&View, &Cancel) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        self.read(&self.0.scans, read)
    }

    fn read<T: Send + 'static>(
        &self,
        pool: &Mutex<Pool>,
        read: impl FnOnce(&View, &Cancel) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let shared = self.0.shared.clone();
        let pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.call(move |cancel| read(&shared.view()?, cancel))
    }

    /// Writes a batch. The answer comes when it is as durable as [`OpenOptions::durability`] says and
    /// visible to every later read. Dropping the answer does not undo it.
    pub fn apply(&self, batch: Batch) -> Pending<Applied> {
        self.0.shared.apply(batch)
    }

    /// Loads a chunk by ingestion; the answer is its number of rows. Its rows and positions become
    /// visible together. Fails with [`Error::NotAbove`] when the table has ids at or above its first.
    pub fn ingest(&self, chunk: Chunk) -> Pending<u64> {
        self.0.shared.ingest(chunk)
    }

    /// Makes a table, or opens the stored one of that name, adding the nullable columns it lacks.
    pub fn create_table(&self, schema: Schema) -> Pending<Table> {
        self.0.shared.task(move |writer| writer.create_table(schema))
    }

    /// A table by name.
    ///
    /// # Errors
    /// When there is none.
    pub fn table(&self, name: &str) -> Result<Table> {
        self.view()?.table(name)
    }

    /// Puts everything acknowledged so far on stable storage; before confirming a log position
    /// upstream, for example.
    pub fn sync(&self) -> Pending<()> {
        self.0.shared.task(Writer::sync)
    }

    /// Writes memtables out as tables.
    pub fn flush(&self) -> Pending<()> {
        self.0.shared.task(|writer| writer.flush(Duration::from_secs(60)))
    }

    /// Merges all tables into the last level and drops what no reader can see any more. Long, and
    /// writes wait meanwhile; for maintenance and measurements.
    pub fn compact(&self) -> Pending<()> {
        self.0.shared.task(Writer::compact)
    }

    /// After a failure whose cause is gone: closes the failed engine and opens it again from what is
    /// on disk. Nothing acknowledged is lost by it. Does nothing on a running store.
    pub fn recover(&self) -> Pending<()> {
        self.0.shared.task(Writer::recover)
    }

    /// Blocks until the write gate is open or half open, at most until `deadline`; returns the time
    /// waited. For loaders that want to hold back before they build a chunk.
    ///
    /// # Errors
    /// [`Error::Stalled`] when the deadline passes first.
    pub fn wait_for_gate(&self, deadline: Instant) -> Result<Duration> {
        let shared = &self.0.shared;
        if let Some(error) = shared.failed() {
            return Err(error);
        }
        let engine = shared.engine.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let engine = engine.ok_or(Error::Closed)?;
        shared.wait_for_gate(&engine, deadline).map(|(_, waited)| waited)
    }

    /// Whether writes are taken.
    pub fn state(&self) -> State {
        if self.0.lock.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return State::Closed;
        }
        match &*self.0.shared.status.lock().unwrap_or_else(PoisonError::into_inner) {
            Status::Running => State::Running,
            Status::Failed { reason, disk_full, since } => {
                State::Failed { reason: reason.to_string(), disk_full: *disk_full, since: since.elapsed() }
            }
        }
    }

    /// The store's condition as numbers.
    pub fn gauges(&self) -> Gauges {
        let shared = &self.0.shared;
        let engine = shared.engine.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let engine = engine.map_or_else(EngineGauges::default, |engine| engine.gauges());
        let gate = shared.gate.lock().unwrap_or_else(PoisonError::into_inner).observe(&engine);
        let (write_queue, write_queue_bytes) = shared.queued();
        let numbers = &shared.numbers;
        let count = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        let pool = |pool: &Mutex<Pool>| pool.lock().unwrap_or_else(PoisonError::into_inner).gauges();
        Gauges {
            state: self.state(),
            gate,
            l0_runs: engine.l0_runs,
            sealed_memtables: engine.sealed_memtables,
            active_memtable_bytes: engine.active_memtable_bytes,
            pending_flushes: engine.pending_flushes,
            running_compactions: engine.running_compactions,
            finished_compactions: engine.finished_compactions,
            compacting: engine.compacting,
            tables: engine.tables,
            table_bytes: engine.table_bytes,
            journals: engine.journals,
            journal_bytes: engine.journal_bytes,
            cache_bytes: engine.cache_bytes,
            write_queue,
            write_queue_bytes,
            commits: count(&numbers.commits),
            batches: count(&numbers.requests),
            changes: count(&numbers.changes),
            stale: count(&numbers.stale),
            conflicts: count(&numbers.conflicts),
            ingested_rows: count(&numbers.ingested_rows),
            syncs: count(&numbers.syncs),
            refused: count(&numbers.refused),
            gate_waits: count(&numbers.gate_waits),
            gate_waited: Duration::from_micros(count(&numbers.gate_waited_us)),
            slowed: Duration::from_micros(count(&numbers.slowed_us)),
            oldest_view: shared.oldest_view(),
            points: pool(&self.0.points),
            scans: pool(&self.0.scans),
        }
    }

    /// Serves what waits, flushes, syncs and closes. Blocks; later calls fail with
    /// [`Error::Closed`]. Views still held stay readable, and keep the folder from being opened anew.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Inner {
    fn close(&self) {
        self.shared.close();
        for pool in [&self.points, &self.scans] {
            pool.lock().unwrap_or_else(PoisonError::into_inner).stop();
        }
        let thread = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!(path = %self.shared.path.display(), "the store's writer panicked");
        }
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}
