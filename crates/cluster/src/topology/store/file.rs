//! The document in a folder, for everything that runs as one process.
//!
//! `current.json` is replaced by writing beside it, syncing and renaming, so that after a crash there is the old
//! document or the new one and nothing in between. Every accepted document is also kept under `history/` until
//! [`HISTORY_MAX`] newer ones exist. A lock file keeps two processes from replacing it at once.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use metaroute_registry::document::Format;
use tokio::sync::watch;

use super::{HistoryEntry, Revision, Snapshot, StoreError, SystemTime, TopologyStore};
use crate::topology::Document;

/// How many documents are kept, the current one included.
pub const HISTORY_MAX: usize = 100;

/// How often another process's change is looked for.
const POLL: Duration = Duration::from_secs(1);

/// A topology store in a folder. Clones share it.
#[derive(Clone, Debug)]
pub struct FileStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    changed: watch::Sender<()>,
}

impl FileStore {
    /// A store in `folder`, which is created when something is stored.
    pub fn new(folder: impl Into<PathBuf>) -> FileStore {
        FileStore(Arc::new(Inner { folder: folder.into(), changed: watch::Sender::new(()) }))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.0);
        match tokio::task::spawn_blocking(move || work(&inner)).await {
            Ok(result) => result,
            Err(error) => Err(io("the topology folder was not read", std::io::Error::other(error.to_string()))),
        }
    }
}

fn io(what: impl Into<String>, source: std::io::Error) -> StoreError {
    StoreError::Io { what: what.into(), source: Arc::new(source) }
}

impl Inner {
    fn current(&self) -> PathBuf {
        self.folder.join("current.json")
    }

    fn kept(&self, epoch: u64) -> PathBuf {
        // Twenty digits hold every epoch, so names sort by epoch.
        self.folder.join("history").join(format!("{epoch:020}.json"))
    }

    fn read(&self, path: &Path) -> Result<Option<Document>, StoreError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Err(StoreError::Damaged(format!("{} is not UTF-8", path.display())));
            }
            Err(error) => return Err(io(format!("cannot read {}", path.display()), error)),
        };
        let document = Document::parse(&path.display().to_string(), &text, Format::Json);
        document.map(Some).map_err(|error| StoreError::Damaged(error.to_string()))
    }

    fn load(&self) -> Result<Option<Snapshot>, StoreError> {
        let document = self.read(&self.current())?;
        Ok(document.map(|document| Snapshot { revision: Revision(document.epoch), document }))
    }

    fn replace(&self, expected: Option<Revision>, document: &Document) -> Result<Revision, StoreError> {
        let history = self.folder.join("history");
        fs::create_dir_all(&history).map_err(|error| io(format!("cannot create {}", history.display()), error))?;
        let lock = self.folder.join("lock");
        let lock = File::create(&lock).map_err(|error| io(format!("cannot create {}", lock.display()), error))?;
        // Held until the file is closed at the end of this function.
        lock.lock().map_err(|error| io(format!("cannot lock {}", self.folder.display()), error))?;
        let current = self.load()?.map(|snapshot| snapshot.revision);
        if current != expected {
            return Err(StoreError::EpochMismatch {
                expected: expected.map(|revision| revision.0),
                current: current.map(|revision| revision.0),
            });
        }
        let text = document.to_json();
        write_synced(&self.kept(document.epoch), &text)?;
        write_synced(&self.current(), &text)?;
        self.forget_old();
        self.changed.send_replace(());
        Ok(Revision(document.epoch))
    }

    /// Removes what is beyond [`HISTORY_MAX`]. What cannot be removed now goes the next time.
    fn forget_old(&self) {
        let Ok(epochs) = self.epochs() else { return };
        for epoch in epochs.iter().rev().skip(HISTORY_MAX) {
            if let Err(error) = fs::remove_file(self.kept(*epoch)) {
                tracing::warn!(epoch, %error, "an old topology was not removed");
            }
        }
    }

    /// Kept epochs, ascending.
    fn epochs(&self) -> Result<Vec<u64>, StoreError> {
        let history = self.folder.join("history");
        let entries = match fs::read_dir(&history) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io(format!("cannot read {}", history.display()), error)),
        };
        let mut epochs = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| io(format!("cannot read {}", history.display()), error))?;
            let name = entry.file_name();
            let epoch: Option<u64> =
                name.to_str().and_then(|name| name.strip_suffix(".json")).and_then(|name| name.parse().ok());
            epochs.extend(epoch);
        }
        epochs.sort_unstable();
        Ok(epochs)
    }

    fn history(&self) -> Result<Vec<HistoryEntry>, StoreError> {
        let mut entries = Vec::new();
        for epoch in self.epochs()?.into_iter().rev() {
            let path = self.kept(epoch);
            // A kept file may have been forgotten meanwhile.
            let Some(document) = self.read(&path)? else { continue };
            let modified = fs::metadata(&path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
            entries.push(HistoryEntry {
                epoch,
                stored_unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
                groups: document.groups.len(),
                shards: document.groups.iter().map(|group| group.shards.len()).sum(),
            });
        }
        Ok(entries)
    }
}

/// Replaces a file so that a crash leaves the old one or the new one.
fn write_synced(path: &Path, text: &str) -> Result<(), StoreError> {
    let beside = path.with_extension("json.new");
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()
    });
    written
        .and_then(|()| fs::rename(&beside, path))
        // The rename itself is durable only once the folder is.
        .and_then(|()| path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all()))
        .map_err(|error| io(format!("cannot write {}", path.display()), error))
}

impl TopologyStore for FileStore {
    fn load(&self) -> BoxFuture<'_, Result<Option<Snapshot>, StoreError>> {
        Box::pin(self.blocking(Inner::load))
    }

    fn replace(&self, expected: Option<Revision>, document: Document) -> BoxFuture<'_, Result<Revision, StoreError>> {
        Box::pin(self.blocking(move |inner| inner.replace(expected, &document)))
    }

    fn history(&self) -> BoxFuture<'_, Result<Vec<HistoryEntry>, StoreError>> {
        Box::pin(self.blocking(Inner::history))
    }

    fn at_epoch(&self, epoch: u64) -> BoxFuture<'_, Result<Document, StoreError>> {
        Box::pin(self.blocking(move |inner| {
            inner.read(&inner.kept(epoch))?.ok_or_else(|| StoreError::NotFound(format!("with epoch {epoch} is kept")))
        }))
    }

    fn changed(&self, seen: Option<Revision>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let mut signal = self.0.changed.subscribe();
            loop {
                // Nothing stored between the subscription and this look is missed.
                let current = self.blocking(Inner::load).await?.map(|snapshot| snapshot.revision);
                if current != seen {
                    return Ok(());
                }
                // The sender lives as long as `self`, so an error cannot occur; a time-out is the poll.
                let _ = tokio::time::timeout(POLL, signal.changed()).await;
            }
        })
    }
}
