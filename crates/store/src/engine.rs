//! The seam to the storage engine: the only module that knows which one it is.
//!
//! Above it there is one ordered key space with batches, snapshots, scans both ways, ingestion of a
//! sorted stream and numbers about its state; a second engine could stand here without anything
//! above noticing. Below, the key space is cut in two at one key, each half a tree of its own: rows arrive in
//! order of id and are then never written again, while the index and the small records are merged all the time.
//! In one tree every merge of the index would write new rows again, and both would have to do with the
//! same blocks. Batches, snapshots and the journal span both trees. The engine is fjall, pinned exactly because some numbers come from fields it does
//! not promise. Its known traits are dealt with here or one level up, and named by their number in
//! `docs/storage-format.md`:
//!
//! - A snapshot taken while a batch commits can see half of it (hazard 1). Only the writer thread
//!   calls [`Engine::commit`], [`Engine::ingest`] and [`Engine::snapshot`], one after the other.
//! - A write waits inside the engine, without end or error, while 4 memtables are sealed or L0 has 30
//!   runs (hazards 5 and 6). The gate above keeps writes out long before; [`Engine::is_poisoned`] tells
//!   it when waiting has become pointless.

use std::io::Read;
use std::ops::{Bound, Deref};
use std::panic::RefUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fjall::compaction::Leveled;
use fjall::compaction::filter::{CompactionFilter, Context, Factory, ItemAccessor, Verdict};
use fjall::config::{BlockSizePolicy, CompressionPolicy, FilterPolicy};
use fjall::{
    AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, LsmError, PersistMode, Readable, Slice,
};

use crate::error::{Error, Result, is_full};

/// The tree of everything not in [`LOW_TREE`].
const TREE: &str = "data";
/// The tree of the keys below the cut.
const LOW_TREE: &str = "rows";

/// Says whether a stored pair can be thrown away for good; called by compaction into the last level.
pub(crate) type Discard = Arc<dyn Fn(&[u8], &[u8]) -> bool + Send + Sync + RefUnwindSafe>;

/// What the engine is opened with.
#[derive(Clone, Debug)]
pub(crate) struct Tuning {
    pub(crate) cache_bytes: u64,
    pub(crate) memtable_bytes: u64,
    pub(crate) worker_threads: usize,
    /// Keys whose first byte is below it have a tree of their own; `None` for stores made before there were two.
    /// Must be the same at every open.
    pub(crate) cut: Option<u8>,
}

/// A stored value or key, shared with the engine's cache.
#[derive(Clone, Debug)]
pub(crate) struct Bytes(Slice);

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Bytes(Slice::new(bytes))
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// An open engine.
pub(crate) struct Engine {
    db: Database,
    trees: Trees,
}

/// The one or two trees that make up the key space.
#[derive(Clone)]
struct Trees {
    /// Keys whose first byte is below the number.
    low: Option<(u8, Keyspace)>,
    /// All others.
    rest: Keyspace,
}

impl Trees {
    fn of(&self, key: &[u8]) -> &Keyspace {
        match &self.low {
            Some((cut, low)) if key.first().is_some_and(|first| first < cut) => low,
            _ => &self.rest,
        }
    }

    /// In key order.
    fn all(&self) -> impl Iterator<Item = &Keyspace> {
        self.low.iter().map(|(_, low)| low).chain([&self.rest])
    }
}

/// One state of the whole key space; keeps what it sees alive on disk.
#[derive(Clone)]
pub(crate) struct Snapshot {
    inner: fjall::Snapshot,
    trees: Trees,
}

/// Writes that become visible together.
#[derive(Default)]
pub(crate) struct WriteSet {
    pub(crate) items: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl WriteSet {
    pub(crate) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.items.push((key, Some(value)));
    }

    pub(crate) fn remove(&mut self, key: Vec<u8>) {
        self.items.push((key, None));
    }
}

/// How an engine call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The disk is full.
    DiskFull(String),
    /// Data on disk is damaged.
    Damaged(String),
    /// Another process holds the lock.
    Locked,
    /// Anything else.
    Other(String),
}

impl Failure {
    fn of(error: fjall::Error) -> Failure {
        let text = format!("{error:?}");
        let io = match &error {
            fjall::Error::Io(io) | fjall::Error::Storage(LsmError::Io(io)) => Some(io),
            _ => None,
        };
        if let Some(io) = io {
            if is_full(io) {
                return Failure::DiskFull(io.to_string());
            }
            return match io.kind() {
                std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::InvalidData => Failure::Damaged(io.to_string()),
                _ => Failure::Other(io.to_string()),
            };
        }
        match error {
            fjall::Error::Locked => Failure::Locked,
            fjall::Error::Poisoned => Failure::Other("an earlier write or sync failed".into()),
            fjall::Error::Storage(_)
            | fjall::Error::JournalRecovery(_)
            | fjall::Error::InvalidVersion(_)
            | fjall::Error::Decompress(_)
            | fjall::Error::InvalidTrailer
            | fjall::Error::InvalidTag(_)
            | fjall::Error::Unrecoverable => Failure::Damaged(text),
            _ => Failure::Other(text),
        }
    }

    pub(crate) fn is_disk_full(&self) -> bool {
        matches!(self, Failure::DiskFull(_))
    }

    pub(crate) fn reason(self) -> String {
        match self {
            Failure::DiskFull(text) | Failure::Damaged(text) | Failure::Other(text) => text,
            Failure::Locked => "locked".into(),
        }
    }
}

struct FilterFactory(Discard);

impl Factory for FilterFactory {
    fn name(&self) -> &str {
        "metaroute"
    }

    fn make_filter(&self, ctx: &Context) -> Box<dyn CompactionFilter> {
        Box::new(Filter { discard: self.0.clone(), last_level: ctx.is_last_level })
    }
}

struct Filter {
    discard: Discard,
    last_level: bool,
}

impl CompactionFilter for Filter {
    /// `Remove` and never `Destroy`: an older value of the key further down must stay covered. And
    /// only into the last level, where the engine drops the tombstone at once; higher up it would
    /// pile up the very runs of engine deletes that one `next()` must wade through (hazard 6).
    fn filter_item(
        &mut self,
        item: ItemAccessor<'_>,
        _: &Context,
    ) -> fjall::compaction::filter::CompactionFilterResult {
        if self.last_level && (self.discard)(item.key(), &item.value()?) {
            return Ok(Verdict::Remove);
        }
        Ok(Verdict::Keep)
    }
}

/// The engine's state as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EngineGauges {
    pub(crate) l0_runs: usize,
    pub(crate) sealed_memtables: usize,
    pub(crate) active_memtable_bytes: u64,
    pub(crate) pending_flushes: usize,
    pub(crate) running_compactions: usize,
    pub(crate) finished_compactions: usize,
    pub(crate) compacting: Duration,
    pub(crate) tables: usize,
    pub(crate) table_bytes: u64,
    pub(crate) journals: usize,
    pub(crate) journal_bytes: u64,
    pub(crate) cache_bytes: u64,
}

impl Engine {
    /// Opens or creates the engine in `root`.
    pub(crate) fn open(root: &Path, tuning: &Tuning, discard: Discard) -> Result<Engine> {
        clear_unfinished(root)?;
        check_manifests(root)?;
        let open = || -> Result<Engine, fjall::Error> {
            let factory: Arc<dyn Factory> = Arc::new(FilterFactory(discard.clone()));
            let db = Database::builder(root)
                .cache_size(tuning.cache_bytes)
                .worker_threads(tuning.worker_threads.max(WORKERS_MIN))
                // The smallest the engine takes; it is replayed at every open.
                .max_journaling_size(64 * 1024 * 1024)
                .with_compaction_filter_factories(Arc::new(move |_| Some(factory.clone())))
                .open()?;
            let options = || {
                KeyspaceCreateOptions::default()
                    .max_memtable_size(tuning.memtable_bytes)
                    .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
            };
            let rest = db.keyspace(TREE, || {
                options()
                    .data_block_size_policy(BlockSizePolicy::all(INDEX_BLOCK_BYTES))
                    .filter_policy(FilterPolicy::disabled())
                    .compaction_strategy(Arc::new(
                        Leveled::default().with_l0_threshold(INDEX_L0_TABLES).with_table_target_size(INDEX_TABLE_BYTES),
                    ))
            })?;
            let low = match tuning.cut {
                None => None,
                Some(cut) => {
                    let low = db.keyspace(LOW_TREE, || {
                        options()
                            .data_block_size_policy(BlockSizePolicy::all(ROW_BLOCK_BYTES))
                            .compaction_strategy(Arc::new(Leveled::default().with_l0_threshold(ROW_L0_TABLES)))
                    })?;
                    Some((cut, low))
                }
            };
            Ok(Engine { db, trees: Trees { low, rest } })
        };
        open().map_err(|error| match Failure::of(error) {
            Failure::Locked => Error::Locked(root.to_owned()),
            Failure::Damaged(what) => Error::Corrupt { file: damaged_file(root), what },
            Failure::DiskFull(reason) => Error::Failed { reason: reason.into(), disk_full: true },
            Failure::Other(what) => Error::Engine(what),
        })
    }

    /// Writes a set atomically; with `sync`, it is on stable storage when this returns. After an
    /// error the engine takes no more writes until it is opened anew.
    pub(crate) fn commit(&self, set: WriteSet, sync: bool) -> Result<(), Failure> {
        let mode = if sync { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch = fjall::OwnedWriteBatch::with_capacity(self.db.clone(), set.items.len()).durability(Some(mode));
        for (key, value) in set.items {
            match value {
                Some(value) => batch.insert(self.trees.of(&key), key, value),
                None => batch.remove(self.trees.of(&key), key),
            }
        }
        batch.commit().map_err(Failure::of)
    }

    /// Brings a sorted, duplicate-free stream in as finished tables, atomically. Existing keys are replaced without a
    /// look (hazard 2), so callers prove first that there are none worth keeping. All keys must lie on the same side
    /// of the cut.
    pub(crate) fn ingest(&self, items: impl IntoIterator<Item = (Bytes, Bytes)>) -> Result<(), Failure> {
        let mut items = items.into_iter().peekable();
        let Some((first, _)) = items.peek() else { return Ok(()) };
        let mut ingestion = self.trees.of(first).start_ingestion().map_err(Failure::of)?;
        for (key, value) in items {
            ingestion.write(key.0, value.0).map_err(Failure::of)?;
        }
        ingestion.finish().map_err(Failure::of)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot { inner: self.db.snapshot(), trees: self.trees.clone() }
    }

    /// What [`Snapshot::sequence`] of a snapshot taken now would be.
    pub(crate) fn sequence(&self) -> u64 {
        self.db.visible_seqno()
    }

    /// Makes everything committed so far survive power loss.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        self.db.persist(PersistMode::SyncData).map_err(Failure::of)
    }

    /// True when a flush, compaction or sync has failed and no write will succeed any more.
    pub(crate) fn is_poisoned(&self) -> bool {
        matches!(self.db.persist(PersistMode::Buffer), Err(fjall::Error::Poisoned))
    }

    /// Writes memtables out as tables, so that the next open has little to replay. Gives up after
    /// `deadline` or when the engine has failed; the engine's own wait has no way out of that.
    pub(crate) fn flush(&self, deadline: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        for tree in self.trees.all() {
            tree.rotate_memtable().map_err(Failure::of)?;
        }
        while self.trees.all().any(|tree| tree.tree.sealed_memtable_count() > 0) {
            if self.is_poisoned() {
                return Err(Failure::of(fjall::Error::Poisoned));
            }
            if start.elapsed() > deadline {
                return Err(Failure::Other(format!("flush not finished after {deadline:?}")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Merges everything into the last level; for maintenance windows and tests. Values that no
    /// snapshot at or above `oldest` sees are dropped.
    pub(crate) fn compact(&self, oldest: u64) -> Result<(), Failure> {
        // The engine's own rule: one below the oldest snapshot.
        let watermark = oldest.saturating_sub(1);
        for tree in self.trees.all() {
            tree.tree.major_compact(64 * 1024 * 1024, watermark).map_err(|e| Failure::of(e.into()))?;
        }
        Ok(())
    }

    /// Lets go of files that no snapshot at or above `oldest` sees. The engine does so by itself only at the next
    /// flush or compaction, which an idle store never reaches.
    pub(crate) fn forget_before(&self, oldest: u64) {
        for tree in self.trees.all() {
            let tree = &tree.tree;
            let path = &tree.tree_config().path;
            if let Err(error) = tree.get_version_history_lock().maintenance(path, oldest.saturating_sub(1)) {
                tracing::warn!(?error, "old manifests not removed");
            }
        }
    }

    pub(crate) fn gauges(&self) -> EngineGauges {
        let mut gauges = EngineGauges {
            pending_flushes: self.db.outstanding_flushes(),
            running_compactions: self.db.active_compactions(),
            finished_compactions: self.db.compactions_completed(),
            compacting: self.db.time_compacting(),
            journals: self.db.journal_count(),
            journal_bytes: self.db.journal_disk_space().unwrap_or(0),
            cache_bytes: self.db.cache_size(),
            ..EngineGauges::default()
        };
        for tree in self.trees.all() {
            let tree = &tree.tree;
            // The engine stops writes for each tree by itself, so the worse one counts.
            gauges.l0_runs = gauges.l0_runs.max(tree.l0_run_count());
            gauges.sealed_memtables = gauges.sealed_memtables.max(tree.sealed_memtable_count());
            gauges.active_memtable_bytes += tree.active_memtable().size();
            gauges.tables += tree.table_count();
            gauges.table_bytes += tree.disk_space();
        }
        gauges
    }
}

/// One worker leaves the memtable without a limit (hazard 3). The first of several leaves compactions to the others
/// and, while these are busy, takes the request for one out of the queue and puts it back without a pause; a third
/// takes it, sees that there is nothing more to do, and ends that.
const WORKERS_MIN: usize = 3;

/// Tables in level 0 of the rows at which they are merged down. Bulk chunks do not wait for it: their rows lie above
/// all others and are moved, not merged.
const ROW_L0_TABLES: u8 = 6;
/// The same for the index. A bulk chunk leaves two tables, and each merge writes the first level's part of the index
/// again, so a smaller number would make loading dearer; the gate slows writes from 6 runs on.
const INDEX_L0_TABLES: u8 = 8;
/// Size of a table of the index, and with [`INDEX_L0_TABLES`] of its first level: 128 MiB. Every bulk chunk spreads over
/// all tenants, so each merge of level 0 writes all of the first level again; with the engine's 64 MiB per table that
/// is four times as much.
const INDEX_TABLE_BYTES: u64 = 16 << 20;

/// Small, because a row is read by itself: at 16 KiB a point read decompresses four times as much for a sixth less
/// disk.
const ROW_BLOCK_BYTES: u32 = 8 * 1024;
/// A listing of 100 reads one or two such blocks. Nobody asks the index for single keys, so it has no Bloom filter
/// either; the counters beside it are few and cached.
const INDEX_BLOCK_BYTES: u32 = 32 * 1024;

/// An entry delivered by a scan.
pub(crate) type Entry = (Bytes, Bytes);

impl Snapshot {
    /// Orders snapshots of one engine by age.
    pub(crate) fn sequence(&self) -> u64 {
        self.inner.seqno()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.inner.get(self.trees.of(key), key) {
            Ok(value) => Ok(value.map(Bytes)),
            Err(error) => Err(self.read_error(error, Some(key))),
        }
    }

    /// Entries of `range` in key order.
    pub(crate) fn scan(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Scan {
        let range = |tree| self.inner.range::<&[u8], _>(tree, (from, to));
        let first_byte = |bound: Bound<&[u8]>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => key.first().copied(),
            Bound::Unbounded => None,
        };
        let (low, rest) = match &self.trees.low {
            Some((cut, low)) => (
                first_byte(from).is_none_or(|first| first < *cut).then(|| range(low)),
                first_byte(to).is_none_or(|last| last >= *cut).then(|| range(&self.trees.rest)),
            ),
            None => (None, Some(range(&self.trees.rest))),
        };
        Scan { low, rest, snapshot: self.clone(), delivered: 0, near: None }
    }

    fn read_error(&self, error: fjall::Error, near: Option<&[u8]>) -> Error {
        match Failure::of(error) {
            Failure::Damaged(what) => {
                let file = self.damaged_table(near).unwrap_or_else(|| self.trees.rest.path().to_owned());
                Error::Corrupt { file, what }
            }
            other => Error::Engine(other.reason()),
        }
    }

    /// Reads every block of every table file; returns the files with damage.
    pub(crate) fn damaged_tables(&self, cancel: &crate::Cancel) -> Result<Vec<PathBuf>> {
        let mut damaged = Vec::new();
        for tree in self.trees.all() {
            for table in tree.tree.current_version().iter_tables() {
                if !is_whole(table) {
                    damaged.push(table.path.to_path_buf());
                }
                if cancel.is_cancelled() {
                    return Err(Error::Cancelled);
                }
            }
        }
        Ok(damaged)
    }

    /// Finds the table file a failed read stumbled over: the engine's error does not name it. Looks
    /// at the neighbourhood of `near` in every table first, then at everything.
    fn damaged_table(&self, near: Option<&[u8]>) -> Option<PathBuf> {
        const NEIGHBOURHOOD: usize = 10_000;
        let versions: Vec<_> = self.trees.all().map(|tree| tree.tree.current_version()).collect();
        let tables = || versions.iter().flat_map(|version| version.iter_tables());
        if let Some(table) = tables().find(|table| !opens(&table.path)) {
            return Some(table.path.to_path_buf());
        }
        if let Some(key) = near {
            let key = Slice::from(key);
            for table in tables() {
                let after = table.range(key.clone()..).take(NEIGHBOURHOOD);
                let before = table.range(..=key.clone()).rev().take(NEIGHBOURHOOD);
                if after.chain(before).any(|item| item.is_err()) {
                    return Some(table.path.to_path_buf());
                }
            }
        }
        let damaged = tables().find(|table| !is_whole(table));
        damaged.map(|table| table.path.to_path_buf())
    }
}

/// A scan over a snapshot, from either end.
pub(crate) struct Scan {
    /// What is left of each tree; `None` when nothing is.
    low: Option<fjall::Iter>,
    rest: Option<fjall::Iter>,
    snapshot: Snapshot,
    /// Entries delivered, and the key of one of the last [`MARK_EVERY`]: where to look for damage.
    delivered: usize,
    near: Option<Bytes>,
}

/// Well within the neighbourhood that is searched.
const MARK_EVERY: usize = 256;

impl Scan {
    fn take(&mut self, guard: fjall::Guard) -> Result<Entry> {
        match guard.into_inner() {
            Ok((key, value)) => {
                if self.delivered.is_multiple_of(MARK_EVERY) {
                    self.near = Some(Bytes(key.clone()));
                }
                self.delivered += 1;
                Ok((Bytes(key), Bytes(value)))
            }
            Err(error) => Err(self.snapshot.read_error(error, self.near.as_deref())),
        }
    }
}

impl Iterator for Scan {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(low) = &mut self.low {
            match low.next() {
                Some(guard) => return Some(self.take(guard)),
                None => self.low = None,
            }
        }
        let guard = self.rest.as_mut()?.next()?;
        Some(self.take(guard))
    }
}

impl DoubleEndedIterator for Scan {
    fn next_back(&mut self) -> Option<Self::Item> {
        if let Some(rest) = &mut self.rest {
            match rest.next_back() {
                Some(guard) => return Some(self.take(guard)),
                None => self.rest = None,
            }
        }
        let guard = self.low.as_mut()?.next_back()?;
        Some(self.take(guard))
    }
}

/// Removes what an engine leaves that was killed while it was made for the first time: it would
/// stumble over its own half-made files for ever. The version marker is the last thing written then,
/// so without it, and without any content, nothing was ever stored.
fn clear_unfinished(root: &Path) -> Result<()> {
    let marker = root.join("version");
    let finished = std::fs::metadata(&marker).is_ok_and(|m| m.len() > 0);
    if finished || !root.exists() {
        return Ok(());
    }
    let journals = crate::journal::files(root).map_err(|e| Error::io("cannot list", root, e))?;
    let has_content = journals.iter().any(|file| crate::journal::inspect(file).is_ok_and(|f| f.len > 0))
        || std::fs::read_dir(root.join("keyspaces"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|folder| std::fs::read_dir(folder.path().join("tables")).ok())
            .any(|tables| tables.count() > 0);
    if has_content {
        return Err(Error::Corrupt { file: marker, what: "missing beside existing data".into() });
    }
    std::fs::remove_dir_all(root).map_err(|e| Error::io("cannot remove", root, e))
}

/// Checks what the engine reads first. It trusts its version marker and manifests, and bytes that
/// are not what it wrote make it panic on the way in and abort on the way out.
fn check_manifests(root: &Path) -> Result<()> {
    let corrupt = |file: PathBuf, what: &str| Error::Corrupt { file, what: what.into() };
    let marker = root.join("version");
    match std::fs::read(&marker) {
        Ok(bytes) if bytes == [b'F', b'J', b'L', 3] => {}
        Ok(_) => return Err(corrupt(marker, "not the engine's version marker")),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io("cannot read", marker, e)),
    }
    let folders = root.join("keyspaces");
    let entries = std::fs::read_dir(&folders).map_err(|e| Error::io("cannot list", &folders, e))?;
    for entry in entries {
        let folder = entry.map_err(|e| Error::io("cannot list", &folders, e))?.path();
        if !folder.is_dir() {
            continue;
        }
        if folder.file_name().and_then(|n| n.to_str()?.parse::<u64>().ok()).is_none() {
            return Err(corrupt(folder, "not a folder of the engine"));
        }
        let current = folder.join("current");
        let bytes = match std::fs::read(&current) {
            Ok(bytes) => bytes,
            // A folder that was being made; the engine removes it.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(Error::io("cannot read", current, e)),
        };
        // The manifest's number, its XXH3-128, and a 0 for the kind of checksum.
        let (Some(number), Some(sum), 25) = (bytes.first_chunk::<8>(), bytes.get(8..24), bytes.len()) else {
            return Err(corrupt(current, "not as long as it must be"));
        };
        let manifest = folder.join(format!("v{}", u64::from_le_bytes(*number)));
        let content = match std::fs::read(&manifest) {
            Ok(content) => content,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(corrupt(current, "names a manifest that is not there"));
            }
            Err(e) => return Err(Error::io("cannot read", manifest, e)),
        };
        if xxhash_rust::xxh3::xxh3_128(&content).to_le_bytes() != sum {
            return Err(corrupt(manifest, "checksum mismatch"));
        }
    }
    Ok(())
}

/// Whether a table's file is what was written, every byte of it: the manifest has its XXH3-128.
fn is_whole(table: &lsm_tree::Table) -> bool {
    let hash = || -> std::io::Result<u128> {
        let mut file = std::fs::File::open(&*table.path)?;
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        let mut piece = vec![0; 256 << 10];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(hash.digest128()),
                len => hash.update(&piece[..len]),
            }
        }
    };
    hash().is_ok_and(|hash| hash == table.checksum().into_u128())
}

/// Whether a table's footer, index and filter are whole; its data blocks are not looked at.
fn opens(table: &Path) -> bool {
    let opened = lsm_tree::Table::recover(
        table.to_owned(),
        lsm_tree::Checksum::from_raw(0),
        0,
        0,
        Arc::new(lsm_tree::Cache::with_capacity_bytes(0)),
        None,
        true,
        true,
    );
    opened.is_ok()
}

/// Which table keeps the engine from opening; `root` itself when none can be named.
fn damaged_file(root: &Path) -> PathBuf {
    let folders = std::fs::read_dir(root.join("keyspaces")).into_iter().flatten().flatten();
    for folder in folders {
        let files = std::fs::read_dir(folder.path().join("tables")).into_iter().flatten().flatten();
        for file in files {
            if !opens(&file.path()) {
                return file.path();
            }
        }
    }
    root.to_owned()
}
