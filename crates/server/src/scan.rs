//! Filling the built-in store with the real files of a tree.
//!
//! The tree is read on a thread of its own, rows are written in batches while the server already answers, and at the end
//! rows of files that have vanished are deleted. A vanished file is one whose folder could be read and that was not
//! there; what is below an unreadable folder stays.

mod tree;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use metaroute_cluster::router::Call;
use metaroute_cluster::{Failure, Query, QueryRequest, Router};
use metaroute_store::{Schema, Value};
use tokio::sync::{mpsc, watch};

pub use tree::{FileRow, Tree, file_id, top_dir_tenant};

/// Rows of one write.
const BATCH: usize = 1_000;
/// Batches that may wait between the tree and the writer.
const QUEUE: usize = 4;
/// How often a write that found the server too busy or not ready is repeated.
const RETRIES: u32 = 60;
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Whose a file is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScanTenant {
    /// Its owner's user id.
    #[default]
    Owner,
    /// The top folder's it is in: [`top_dir_tenant`] of the folder's name.
    TopDir,
}

/// A word that names no tenant rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown scan tenant `{0}`; one of owner, top-dir")]
pub struct UnknownScanTenant(pub String);

impl FromStr for ScanTenant {
    type Err = UnknownScanTenant;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "owner" => Ok(ScanTenant::Owner),
            "top-dir" => Ok(ScanTenant::TopDir),
            other => Err(UnknownScanTenant(other.to_owned())),
        }
    }
}

/// What to scan.
#[derive(Clone, Debug)]
pub struct ScanOptions {
    /// The tree's root; made absolute first.
    pub root: PathBuf,
    /// Whose a file is.
    pub tenant: ScanTenant,
    /// Whether to hash the contents.
    pub hash: bool,
}

/// How far a scan is.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Files found.
    pub found: u64,
    /// Rows written.
    pub written: u64,
    /// Folders known and not yet read.
    pub folders_left: u64,
    /// Rows of vanished files deleted.
    pub deleted: u64,
    /// The tree is read to its end.
    pub walked: bool,
}

/// What a scan did.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Scanned {
    /// Rows written.
    pub written: u64,
    /// Rows of vanished files deleted.
    pub deleted: u64,
    /// What could not be read.
    pub unreadable: Vec<PathBuf>,
    /// Files by tenant, most first; at most ten, with the top folder's name where that is the tenant.
    pub tenants: Vec<(u64, u64, Option<String>)>,
    /// How long it took.
    pub took: Duration,
}

/// Why a scan ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The root cannot be read.
    #[error("cannot read {}", path.display())]
    Root {
        /// The root.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The built-in store is replaced by another one.
    #[error("store `file_metadata` does not have the built-in columns")]
    OtherStore,
    /// Rows could not be written or read.
    #[error("scanned rows cannot be stored")]
    Store(#[source] Box<Failure>),
}

impl ScanOptions {
    /// The absolute root, when it is a folder that can be read.
    ///
    /// # Errors
    /// [`ScanError::Root`].
    pub fn checked_root(&self) -> Result<PathBuf, ScanError> {
        let bad = |source| ScanError::Root { path: self.root.clone(), source };
        let root = self.root.canonicalize().map_err(bad)?;
        std::fs::read_dir(&root).map_err(bad)?;
        Ok(root)
    }
}

enum Found {
    Rows(Vec<FileRow>, usize),
    End(Box<Tree>),
}

/// Scans a tree into the built-in store. `progress` is kept up to date meanwhile. Dropping the future stops it.
///
/// # Errors
/// When the root cannot be read, or rows cannot be stored however often it is tried.
pub async fn run(
    router: Router,
    store: Arc<Schema>,
    options: ScanOptions,
    progress: watch::Sender<Progress>,
) -> Result<Scanned, ScanError> {
    let started = Instant::now();
    let root = options.checked_root()?;
    if store.to_declaration() != crate::stores::file_metadata().to_declaration() {
        return Err(ScanError::OtherStore);
    }
    let (sender, mut receiver) = mpsc::channel(QUEUE);
    let tree = Tree::new(root.clone(), options.tenant, options.hash);
    // Dropped with this future; nobody waits for the thread, which may be reading from a disk that does not answer.
    let _unwanted = SetOnDrop(tree.unwanted());
    let walking = std::thread::Builder::new().name("scan".to_owned()).spawn(move || walk(tree, &sender));
    walking.map_err(|source| ScanError::Root { path: root.clone(), source })?;
    let mut seen: HashSet<u64> = HashSet::new();
    let mut tenants: std::collections::HashMap<u64, (u64, Option<String>)> = std::collections::HashMap::new();
    let mut ended = None;
    let mut written = 0;
    while let Some(found) = receiver.recv().await {
        match found {
            Found::Rows(rows, left) => {
                for row in &rows {
                    seen.insert(row.file_id);
                    let name = || top_name(&root, &row.path).filter(|_| options.tenant == ScanTenant::TopDir);
                    tenants.entry(row.user_id).or_insert_with(|| (0, name())).0 += 1;
                }
                let values: Vec<Vec<Value>> = rows.into_iter().map(FileRow::into_values).collect();
                written += write(&router, &store, values).await?;
                progress.send_modify(|progress| {
                    progress.found = seen.len() as u64;
                    progress.written = written;
                    progress.folders_left = left as u64;
                });
            }
            Found::End(tree) => ended = Some(tree),
        }
    }
    if ended.is_none() {
        tracing::error!("reading the tree ended with a bug");
    }
    progress.send_modify(|progress| progress.walked = true);
    let mut deleted = 0;
    let mut unreadable = Vec::new();
    if let Some(tree) = ended {
        deleted = sweep(&router, &store, &tree, &seen, &progress).await?;
        unreadable = tree.unreadable().to_vec();
    }
    let mut tenants: Vec<(u64, u64, Option<String>)> =
        tenants.into_iter().map(|(tenant, (files, name))| (tenant, files, name)).collect();
    tenants.sort_by_key(|(tenant, files, _)| (std::cmp::Reverse(*files), *tenant));
    tenants.truncate(10);
    Ok(Scanned { written, deleted, unreadable, tenants, took: started.elapsed() })
}

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn top_name(root: &Path, path: &str) -> Option<String> {
    let mut parts = Path::new(path).strip_prefix(root).ok()?.components();
    let top = parts.next()?;
    parts.next()?;
    Some(top.as_os_str().to_string_lossy().into_owned())
}

/// Reads the tree and hands out batches until it ends or nobody listens.
fn walk(mut tree: Tree, sender: &mpsc::Sender<Found>) {
    let mut batch = Vec::with_capacity(BATCH);
    while let Some(rows) = tree.next_folder() {
        for row in rows {
            batch.push(row);
            if batch.len() == BATCH {
                let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
                if sender.blocking_send(Found::Rows(full, tree.folders_left())).is_err() {
                    return;
                }
            }
        }
    }
    if batch.is_empty() || sender.blocking_send(Found::Rows(batch, 0)).is_ok() {
        // Without a listener there is nobody to tell.
        let _ = sender.blocking_send(Found::End(Box::new(tree)));
    }
}

async fn write(router: &Router, store: &Arc<Schema>, rows: Vec<Vec<Value>>) -> Result<u64, ScanError> {
    let mut tries = 0;
    loop {
        let call = Call { request_id: "scan".into(), ..Call::within(Duration::from_secs(60)) };
        match router.write(store, rows.clone(), &call).await {
            Ok(written) => return Ok(written.rows),
            Err(failure) if failure.code.is_retryable() && tries < RETRIES => {
                tries += 1;
                tokio::time::sleep(RETRY_AFTER).await;
            }
            Err(failure) => return Err(ScanError::Store(Box::new(failure))),
        }
    }
}

/// Deletes rows of the tree whose files were not found.
async fn sweep(
    router: &Router,
    store: &Arc<Schema>,
    tree: &Tree,
    seen: &HashSet<u64>,
    progress: &watch::Sender<Progress>,
) -> Result<u64, ScanError> {
    let failed = |failure: Failure| ScanError::Store(Box::new(failure));
    let fields = ["file_id", "user_id", "path"].map(str::to_owned).to_vec();
    let request = QueryRequest { fields: Some(fields), allow_global: true, ..QueryRequest::default() };
    let query = Query::new(store, request).map_err(failed)?;
    let call = || Call { request_id: "scan".into(), ..Call::within(Duration::from_secs(3_600)) };
    let mut export = router.export(&query, &call()).await.map_err(failed)?;
    let mut deleted = 0;
    while let Some(rows) = export.next().await.map_err(failed)? {
        for row in rows {
            let path = match row.values.get(2) {
                Some(Value::String(path)) => path.as_str(),
                _ => continue,
            };
            if seen.contains(&row.id) || !tree.is_gone(Path::new(path)) {
                continue;
            }
            deleted += u64::from(router.delete(store, row.tenant, row.id, &call()).await.map_err(failed)?);
            progress.send_modify(|progress| progress.deleted = deleted);
        }
    }
    Ok(deleted)
}
