//! From a folder to an open engine, and back.
//!
//! A store folder holds `FORMAT` (what this is), `LOCK` (one process at a time), `engine/` (the
//! engine's own files), `CLEAN` (only while closed after a clean stop) and, after an unclean stop,
//! `journal-copies/` (the journal as it was found: opening may cut it). A folder with `RESTORING` is
//! the unfinished work of a restore and is not opened.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use crate::engine::{Engine, Snapshot, Tuning, WriteSet};
use crate::error::{Error, Result};
use crate::ingest::Intent;
use crate::journal;
use crate::key::{self, Parsed};
use crate::options::OpenOptions;
use crate::record::{CellFormat, Kind, Record, RecordError};
use crate::retention::Retention;
use crate::schema::Schema;
use crate::state::{TableState, decode_plain, encode_plain};
use crate::table::Table;
use crate::view::TableView;

const FORMAT_FILE: &str = "FORMAT";
const LOCK_FILE: &str = "LOCK";
const CLEAN_FILE: &str = "CLEAN";
const RESTORING_FILE: &str = "RESTORING";
const ENGINE_DIR: &str = "engine";
const COPIES_DIR: &str = "journal-copies";
/// Copies of journals kept; each is at most the journal's limit.
const COPIES_KEPT: usize = 3;

/// What the folder's files say they are. A store keeps the format it was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// One tree for everything; all times count from 1970.
    One,
    /// Rows in a tree of their own; times count from the row's.
    Two,
}

impl Format {
    const NEWEST: Format = Format::Two;

    /// What the folder's `FORMAT` file holds.
    fn text(self) -> &'static str {
        match self {
            Format::One => "metaroute store 1\n",
            Format::Two => "metaroute store 2\n",
        }
    }

    /// What the header record holds: the same once more, inside what it is about.
    fn header(self) -> &'static [u8] {
        match self {
            Format::One => b"1",
            Format::Two => b"2",
        }
    }

    fn of_text(text: &str) -> Option<Format> {
        [Format::One, Format::Two].into_iter().find(|format| format.text() == text)
    }

    /// Where the engine cuts the key space.
    fn cut(self) -> Option<u8> {
        match self {
            Format::One => None,
            Format::Two => Some(key::ROWS_END),
        }
    }

    fn cells(self) -> CellFormat {
        match self {
            Format::One => CellFormat::One,
            Format::Two => CellFormat::Two,
        }
    }

    /// The format of a folder whose lock is held. One without the file is new, or the target of a restore.
    fn of_folder(path: &Path) -> Result<Format> {
        let file = path.join(FORMAT_FILE);
        match fs::read_to_string(&file) {
            Ok(text) => Format::of_text(&text).ok_or_else(|| unknown_format(path, &text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Format::NEWEST),
            Err(e) => Err(Error::io("cannot read", file, e)),
        }
    }
}

fn unknown_format(path: &Path, text: &str) -> Error {
    no_store(path, format!("format {:?} is not known to this build", text.trim()))
}

/// An engine that is ready to be written to.
pub(crate) struct Opened {
    pub(crate) engine: Engine,
    pub(crate) retention: Retention,
    pub(crate) tables: Vec<TableView>,
    /// How new tables write their records.
    pub(crate) cells: CellFormat,
}

/// Held while the folder is in use.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _file: File,
}

fn no_store(path: &Path, reason: impl Into<String>) -> Error {
    Error::NotAStore { path: path.to_owned(), reason: reason.into() }
}

/// Takes the lock of a store's folder, making the folder where allowed.
pub(crate) fn lock_folder(path: &Path, create: bool) -> Result<FolderLock> {
    let format_file = path.join(FORMAT_FILE);
    match fs::read_to_string(&format_file) {
        Ok(text) if Format::of_text(&text).is_some() => {}
        Ok(text) => return Err(unknown_format(path, &text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            if !create {
                return Err(no_store(path, "there is no store"));
            }
            fs::create_dir_all(path).map_err(|e| Error::io("cannot make", path, e))?;
            let strangers = fs::read_dir(path)
                .map_err(|e| Error::io("cannot list", path, e))?
                .filter_map(|entry| entry.ok())
                .any(|entry| entry.file_name() != LOCK_FILE && entry.file_name() != "lost+found");
            if strangers {
                return Err(no_store(path, "it is not empty and holds no store"));
            }
        }
        Err(e) => return Err(Error::io("cannot read", format_file, e)),
    }
    let lock_path = path.join(LOCK_FILE);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&lock_path)
        .map_err(|e| Error::io("cannot open", &lock_path, e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(Error::Locked(path.to_owned())),
        Err(TryLockError::Error(e)) => return Err(Error::io("cannot lock", lock_path, e)),
    }
    if path.join(RESTORING_FILE).exists() {
        return Err(no_store(path, "a restore into it was not finished; restore again"));
    }
    if !format_file.exists() {
        write_durably(&format_file, Format::NEWEST.text().as_bytes())?;
    }
    Ok(FolderLock { _file: file })
}

/// Marks a folder as the target of a restore, emptying what an earlier try left there. The folder
/// must hold nothing else.
pub(crate) fn begin_restore(path: &Path) -> Result<()> {
    let marker = path.join(RESTORING_FILE);
    fs::create_dir_all(path).map_err(|e| Error::io("cannot make", path, e))?;
    if marker.exists() {
        for entry in fs::read_dir(path).map_err(|e| Error::io("cannot list", path, e))? {
            let entry = entry.map_err(|e| Error::io("cannot list", path, e))?;
            let at = entry.path();
            if at == marker || entry.file_name() == "lost+found" {
                continue;
            }
            let removed = if at.is_dir() { fs::remove_dir_all(&at) } else { fs::remove_file(&at) };
            removed.map_err(|e| Error::io("cannot remove", at, e))?;
        }
    } else {
        let strangers = fs::read_dir(path)
            .map_err(|e| Error::io("cannot list", path, e))?
            .filter_map(|entry| entry.ok())
            .any(|entry| entry.file_name() != "lost+found");
        if strangers {
            return Err(no_store(path, "the target of a restore must be empty"));
        }
        write_durably(&marker, b"")?;
    }
    Ok(())
}

/// Opens the target of a running restore.
pub(crate) fn open_restore(path: &Path, options: &OpenOptions) -> Result<Opened> {
    open_engine(path, options, true)
}

/// Makes a restored folder a store.
pub(crate) fn finish_restore(path: &Path) -> Result<()> {
    write_durably(&path.join(FORMAT_FILE), Format::NEWEST.text().as_bytes())?;
    mark_clean(path);
    let marker = path.join(RESTORING_FILE);
    fs::remove_file(&marker).map_err(|e| Error::io("cannot remove", marker, e))?;
    sync_dir(path)
}

/// Opens the engine of a locked folder. After an unclean stop the journal is looked at and copied
/// first; `fresh` says there is nothing to look at.
pub(crate) fn open_engine(path: &Path, options: &OpenOptions, fresh: bool) -> Result<Opened> {
    let root = path.join(ENGINE_DIR);
    let clean = path.join(CLEAN_FILE);
    if !fresh {
        let was_clean = clean.exists();
        guard_journal(path, &root, was_clean, options.accept_damaged_journal)?;
        if was_clean {
            fs::remove_file(&clean).map_err(|e| Error::io("cannot remove", &clean, e))?;
            sync_dir(path)?;
        }
    }
    let mut retention = Retention::new();
    let format = Format::of_folder(path)?;
    let tuning = Tuning {
        cut: format.cut(),
        cache_bytes: options.cache_bytes,
        memtable_bytes: options.memtable_bytes,
        worker_threads: options.worker_threads,
    };
    let engine = Engine::open(&root, &tuning, retention.discard())?;
    check_header(path, &engine, format)?;
    let cells = format.cells();
    finish_intents(&engine, &read_tables(&engine.snapshot(), cells)?)?;
    let tables = read_tables(&engine.snapshot(), cells)?;
    retention.changed(None, &crate::view::Catalog { tables: tables.clone() });
    Ok(Opened { engine, retention, tables, cells })
}

fn check_header(path: &Path, engine: &Engine, format: Format) -> Result<()> {
    let snapshot = engine.snapshot();
    let key = key::header();
    if let Some(bytes) = snapshot.get(&key)? {
        let version = decode_plain(&key, &bytes).map_err(|e| Error::record(&key, e))?;
        if version != format.header() {
            let version = String::from_utf8_lossy(version).into_owned();
            return Err(no_store(path, format!("data version {version:?} is not known to this build")));
        }
        return Ok(());
    }
    if snapshot.scan(Bound::Unbounded, Bound::Unbounded).next().transpose()?.is_some() {
        return Err(no_store(path, "its data has no header"));
    }
    let mut set = WriteSet::default();
    let value = encode_plain(&key, format.header());
    set.put(key, value);
    engine
        .commit(set, true)
        .map_err(|failure| Error::Failed { disk_full: failure.is_disk_full(), reason: failure.reason().into() })
}

/// Completes chunks whose rows arrived and forgets those whose rows did not.
fn finish_intents(engine: &Engine, tables: &[TableView]) -> Result<()> {
    let snapshot = engine.snapshot();
    let first = key::intent(key::TableId(0));
    let last = key::intent(key::TableId(u16::MAX));
    let entries: Vec<_> = snapshot.scan(Bound::Included(&first), Bound::Included(&last)).collect::<Result<_>>()?;
    for (key, bytes) in entries {
        let intent = Intent::decode(&key, &bytes).map_err(|e| Error::record(&key, e))?;
        let Parsed::Intent(id) = key::parse(&key) else { continue };
        let at = tables.iter().find(|t| t.table.id() == id);
        let at = at.ok_or_else(|| Error::record(&key, RecordError::Bad("table")))?;
        let rows_arrived = counts(&snapshot, at, &key::row(id, intent.first))?;
        let index_arrived = intent.entry.is_empty() || counts(&snapshot, at, &intent.entry)?;
        tracing::info!(table = at.table.name(), rows_arrived, index_arrived, "an interrupted bulk chunk was found");
        let mut set = WriteSet::default();
        if rows_arrived {
            set.items = intent.writes;
            if !index_arrived {
                index_rows(&snapshot, at, intent.first, intent.last, &mut set)?;
            }
        }
        set.remove(key.to_vec());
        engine
            .commit(set, true)
            .map_err(|failure| Error::Failed { disk_full: failure.is_disk_full(), reason: failure.reason().into() })?;
    }
    Ok(())
}

/// Whether something is stored under a key of a chunk that the chunk itself must have put there. After a truncate ids
/// start over, and rows of the time before it may still lie under the same keys.
fn counts(snapshot: &Snapshot, at: &TableView, key: &[u8]) -> Result<bool> {
    let Some(bytes) = snapshot.get(key)? else { return Ok(false) };
    let record = Record::read(key, &bytes).map_err(|e| Error::record(key, e))?;
    Ok(record.kind != Kind::Void && record.version() >= at.truncated_below)
}

/// Makes the index entries of rows that were ingested without them.
fn index_rows(snapshot: &Snapshot, at: &TableView, first: u64, last: u64, set: &mut WriteSet) -> Result<()> {
    let table = &at.table;
    let (from, to) = (key::row(table.id(), first), key::row(table.id(), last));
    for entry in snapshot.scan(Bound::Included(&from), Bound::Included(&to)) {
        let (key, bytes) = entry?;
        let damaged = |e| Error::record(&key, e);
        let Parsed::Row { id, .. } = key::parse(&key) else { continue };
        let record = Record::read(&key, &bytes).map_err(damaged)?;
        if record.kind == Kind::Live && record.version() >= at.truncated_below {
            let row = table.values(id, &record).map_err(damaged)?;
            let prepared = table.encode(id, &record.version(), |at| row[at].as_ref());
            set.put(prepared.index_key, prepared.entry);
        }
    }
    Ok(())
}

pub(crate) fn read_tables(snapshot: &Snapshot, cells: CellFormat) -> Result<Vec<TableView>> {
    let prefix = key::schema_prefix();
    let end = key::after_prefix(&prefix);
    let mut tables = Vec::new();
    for entry in snapshot.scan(Bound::Included(&prefix), end.as_deref().map_or(Bound::Unbounded, Bound::Excluded)) {
        let (key, bytes) = entry?;
        let Parsed::Schema(id) = key::parse(&key) else { continue };
        let bytes = decode_plain(&key, &bytes).map_err(|e| Error::record(&key, e))?;
        let table = Table::new(id, Schema::decode(bytes)?, cells);
        let state_key = key::state(id);
        let state = match snapshot.get(&state_key)? {
            None => TableState::default(),
            Some(bytes) => TableState::decode(&state_key, &bytes).map_err(|e| Error::record(&state_key, e))?,
        };
        tables.push(TableView::of(table, &state));
    }
    Ok(tables)
}

/// Looks at the journal before the engine does; see [`crate::journal`].
fn guard_journal(path: &Path, root: &Path, clean: bool, accept_damage: bool) -> Result<()> {
    let files = journal::files(root).map_err(|e| Error::io("cannot list", root, e))?;
    let mut damage = None;
    for (n, file) in files.iter().enumerate() {
        let found = journal::inspect(file).map_err(|e| Error::io("cannot read", file, e))?;
        let torn_with_more_behind = found.good < found.len && n + 1 < files.len();
        if found.damaged || torn_with_more_behind {
            damage = Some((n, found));
            break;
        }
    }
    let mut copy = PathBuf::new();
    if !clean || damage.is_some() {
        match copy_aside(path, &files) {
            Ok(made) => copy = made,
            // A full disk is a reason to be here; an undamaged journal needs no copy badly enough to
            // stay down for it.
            Err(e) if damage.is_none() => {
                tracing::warn!(path = %path.display(), error = %e, "journal not copied aside");
            }
            Err(e) => return Err(e),
        }
    }
    let Some((n, found)) = damage else { return Ok(()) };
    let file = files[n].clone();
    let behind: u64 = files[n + 1..].iter().filter_map(|f| fs::metadata(f).ok()).map(|m| m.len()).sum();
    let lost_bytes = found.len - found.good + behind;
    if !accept_damage {
        return Err(Error::JournalDamaged { file, offset: found.good, lost_bytes, copy });
    }
    tracing::warn!(
        file = %file.display(), offset = found.good, lost_bytes, copy = %copy.display(),
        "damaged journal cut by request"
    );
    // What is left must be an exact prefix of what was written, so later files go as well.
    let cut = File::options().write(true).open(&file).and_then(|f| {
        f.set_len(found.good)?;
        f.sync_all()
    });
    cut.map_err(|e| Error::io("cannot cut", &file, e))?;
    for later in &files[n + 1..] {
        fs::remove_file(later).map_err(|e| Error::io("cannot remove", later, e))?;
    }
    sync_dir(root)
}

fn copy_aside(path: &Path, files: &[PathBuf]) -> Result<PathBuf> {
    let copies = path.join(COPIES_DIR);
    if files.is_empty() {
        return Ok(copies);
    }
    fs::create_dir_all(&copies).map_err(|e| Error::io("cannot make", &copies, e))?;
    let mut numbers: Vec<u64> = fs::read_dir(&copies)
        .map_err(|e| Error::io("cannot list", &copies, e))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let next = numbers.last().map_or(1, |last| last + 1);
    // Older copies go first: they must not keep a new one from fitting.
    while numbers.len() >= COPIES_KEPT {
        let old = copies.join(numbers.remove(0).to_string());
        fs::remove_dir_all(&old).map_err(|e| Error::io("cannot remove", &old, e))?;
    }
    let copy = copies.join(next.to_string());
    fs::create_dir_all(&copy).map_err(|e| Error::io("cannot make", &copy, e))?;
    for file in files {
        let name = file.file_name().unwrap_or_default();
        if let Err(e) = journal::copy(file, &copy.join(name)) {
            let _ = fs::remove_dir_all(&copy);
            return Err(Error::io("cannot copy", file, e));
        }
    }
    Ok(copy)
}

/// Notes that everything is flushed and nothing will be written any more.
pub(crate) fn mark_clean(path: &Path) {
    // Without the mark the next open copies a journal it need not; that is all.
    if let Err(error) = write_durably(&path.join(CLEAN_FILE), b"") {
        tracing::warn!(path = %path.display(), %error, "clean stop not noted");
    }
}

/// True when `bytes` can be written next to the store's files.
pub(crate) fn has_space(path: &Path, bytes: usize) -> bool {
    let probe = path.join("space-probe");
    let written = File::create(&probe).and_then(|mut file| {
        file.write_all(&vec![0; bytes])?;
        file.sync_all()
    });
    let _ = fs::remove_file(&probe);
    written.is_ok()
}

fn write_durably(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = File::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|e| Error::io("cannot write", path, e))?;
    match path.parent() {
        Some(parent) => sync_dir(parent),
        None => Ok(()),
    }
}

fn sync_dir(path: &Path) -> Result<()> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(|e| Error::io("cannot sync", path, e))
}

#[cfg(test)]
mod tests;
