//! All shards of a small deployment in one process, over one data folder.
//!
//! The folder is the deployment: its shape (how many groups, how many shards each), the topology with its history, the
//! key that seals cursors, the clock's bound and one store per shard. Opening it with another shape than it was made
//! with is refused, because every row would be looked for in the wrong place.
//!
//! ```text
//! DIR/shape.json               groups and shards it was made with
//! DIR/lock                     held while a process has the folder open
//! DIR/topology/current.json    the topology document; former ones under topology/history/
//! DIR/cursor.key               seals cursors
//! DIR/clock                    upper bound of all version stamps given out
//! DIR/shards/GROUP/SHARD/      a store
//! DIR/shards/made              which of them were made: one that is gone is missed, not made anew
//! ```

mod made;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use metaroute_cluster::Topology;
use metaroute_cluster::client::LocalShards;
use metaroute_cluster::cursor::{CursorKeys, KeyError};
use metaroute_cluster::protocol::ShardId;
use metaroute_cluster::replicas::{self, Replicas};
use metaroute_cluster::topology::{Apply, Defect, FileStore, Prepared, StoreError, TopologyStore, Watcher};
use metaroute_core::{Address, Instance, InstanceId, Update};
use metaroute_store::{Durability, OpenOptions, PoolSize, Schema};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::shard::{Condition, ShardHost, StartError, with_causes};
use made::Made;

/// Groups and shards per group that a data folder was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Server groups.
    pub groups: u32,
    /// Shards of each group.
    pub shards: u32,
}

impl Default for Shape {
    /// 2 groups of 2 shards.
    fn default() -> Self {
        Shape { groups: 2, shards: 2 }
    }
}

/// `2 groups of 2 shards`.
impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = |n: u32| if n == 1 { "" } else { "s" };
        let Shape { groups, shards } = *self;
        write!(f, "{groups} group{} of {shards} shard{}", s(groups), s(shards))
    }
}

/// Which parts of the shape the caller insists on.
#[derive(Clone, Copy, Debug, Default)]
pub struct WantedShape {
    /// Server groups.
    pub groups: Option<u32>,
    /// Shards of each group.
    pub shards: Option<u32>,
}

/// How a data folder is opened.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// The folder; made when there is none.
    pub data: PathBuf,
    /// The shape; a new folder takes the default for what is not said.
    pub shape: WantedShape,
    /// The stores, the built-in one included.
    pub stores: Vec<Arc<Schema>>,
    /// When writes are acknowledged.
    pub durability: Durability,
    /// Block cache of all shards together, in bytes.
    pub cache_bytes: u64,
}

impl LocalOptions {
    /// The built-in store, a cache of 256 MiB, the default shape and durability.
    pub fn new(data: impl Into<PathBuf>) -> LocalOptions {
        LocalOptions {
            data: data.into(),
            shape: WantedShape::default(),
            stores: crate::stores::with_built_in(Vec::new()),
            durability: Durability::default(),
            cache_bytes: 256 << 20,
        }
    }
}

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// It was made with another shape.
    #[error("{} was made with {stored}, not with {wanted}", data.display())]
    OtherShape {
        /// The folder.
        data: PathBuf,
        /// What it has.
        stored: Shape,
        /// What was asked for.
        wanted: Shape,
    },
    /// The shape is not possible.
    #[error("this shape is not possible")]
    Shape(#[source] Defect),
    /// Another process has it open.
    #[error("{} is open in another process", .0.display())]
    Locked(PathBuf),
    /// A file in it is not what it should be.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It holds shards and not the file that says what they are.
    #[error("{} is gone, and {} holds shards", path.display(), data.display())]
    Gone {
        /// The file.
        path: PathBuf,
        /// The folder.
        data: PathBuf,
    },
    /// The topology cannot be used.
    #[error("the topology cannot be used")]
    Topology(#[source] StoreError),
    /// The key that seals cursors cannot be used.
    #[error("the cursor key cannot be used")]
    Key(#[source] KeyError),
    /// A shard's store cannot be opened.
    #[error("a shard cannot start")]
    Shard(#[source] StartError),
    /// The operating system refused.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> OpenError {
    move |source| OpenError::Io { what, path: path.to_owned(), source }
}

/// The shards of a data folder, running.
#[derive(Debug)]
pub struct Local {
    options: LocalOptions,
    shape: Shape,
    topology_store: FileStore,
    watcher: Watcher,
    hosts: Mutex<BTreeMap<ShardId, ShardHost>>,
    made: Made,
    clients: LocalShards,
    replicas: Replicas,
    changed: watch::Sender<u64>,
    publishing: Mutex<()>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    _lock: File,
}

impl Local {
    /// Opens a data folder and begins to open its shards; [`Local::opened`] waits for them. Must be used inside a tokio
    /// runtime.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(options: LocalOptions) -> Result<Arc<Local>, OpenError> {
        let data = options.data.clone();
        fs::create_dir_all(&data).map_err(io("create", &data))?;
        let lock = lock(&data)?;
        let made = Made::read(&data).map_err(io("read", &data.join("shards/made")))?;
        let shape = shape(&data, options.shape)?;
        let topology_store = FileStore::new(data.join("topology"));
        if topology_store.load().await.map_err(OpenError::Topology)?.is_none() {
            // The topology is stored before the first shard is made.
            if holds_shards(&data) {
                return Err(OpenError::Gone { path: data.join("topology/current.json"), data });
            }
            let initial = Topology::initial(shape.groups, shape.shards).map_err(OpenError::Shape)?;
            let document = initial.document().clone();
            let prepared = Prepared::new(&topology_store, document, Apply::default());
            let prepared = prepared.await.map_err(OpenError::Topology)?;
            prepared.commit(&topology_store).await.map_err(OpenError::Topology)?;
        }
        let (mut watcher, feeding) = Watcher::start(Arc::new(topology_store.clone()));
        let feeding = tokio::spawn(feeding);
        while watcher.topology().is_none() {
            if let Some(trouble) = watcher.trouble() {
                return Err(OpenError::Damaged { path: topology_store.folder().to_owned(), what: trouble });
            }
            if !watcher.changed().await {
                break;
            }
        }
        let local = Arc::new(Local {
            shape,
            topology_store,
            watcher,
            hosts: Mutex::default(),
            made,
            clients: LocalShards::new(),
            replicas: Replicas::new(None, 0),
            changed: watch::Sender::new(0),
            publishing: Mutex::default(),
            tasks: Mutex::new(vec![feeding]),
            options,
            _lock: lock,
        });
        local.follow_topology();
        Ok(local)
    }

    /// Waits until every shard has its store open.
    ///
    /// # Errors
    /// The first that could not.
    pub async fn opened(&self) -> Result<(), OpenError> {
        for host in self.hosts() {
            let mut condition = host.watch();
            let opened =
                condition.wait_for(|condition| condition.state != metaroute_cluster::protocol::ShardState::Loading);
            if let Ok(condition) = opened.await
                && let Some(reason) = &condition.reason
            {
                let path = self.folder(host.id());
                return Err(OpenError::Damaged { path, what: reason.clone() });
            }
        }
        // Whoever waited asks next, and must not find the list of a moment ago.
        self.publish();
        Ok(())
    }

    /// The folder's shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The data folder.
    pub fn data(&self) -> &Path {
        &self.options.data
    }

    /// The stores.
    pub fn stores(&self) -> &[Arc<Schema>] {
        &self.options.stores
    }

    /// Where the topology is kept.
    pub fn topology_store(&self) -> &FileStore {
        &self.topology_store
    }

    /// Follows the topology.
    pub fn watcher(&self) -> &Watcher {
        &self.watcher
    }

    /// The copies, for the router.
    pub fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// How the router reaches them.
    pub fn clients(&self) -> &LocalShards {
        &self.clients
    }

    /// The shards, by group and name.
    pub fn hosts(&self) -> Vec<ShardHost> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// A shard.
    pub fn host(&self, id: &ShardId) -> Option<ShardHost> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// The keys that seal cursors, made on first use.
    ///
    /// # Errors
    /// When the file cannot be read or made.
    pub fn cursor_keys(&self) -> Result<CursorKeys, OpenError> {
        CursorKeys::in_file(&self.options.data.join("cursor.key")).map_err(OpenError::Key)
    }

    /// The stored bound of the clock; 0 for a new folder.
    ///
    /// # Errors
    /// When the file cannot be read or holds something else.
    pub fn clock_bound(&self) -> Result<u64, OpenError> {
        let path = self.options.data.join("clock");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(io("read", &path)(error)),
        };
        text.trim().parse().map_err(|_| OpenError::Damaged { what: format!("`{}` is no number", text.trim()), path })
    }

    /// Stores the clock's bound, durably.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn store_clock_bound(data: &Path, bound: u64) -> Result<(), std::io::Error> {
        write_synced(&data.join("clock"), &format!("{bound}\n"))
    }

    /// Lists the copies as instances of the service `metaserver`.
    pub fn instances(&self) -> Vec<Instance> {
        self.hosts().iter().map(|host| instance(host.id(), &host.condition())).collect()
    }

    /// Follows the list of copies: the number changes with every change of it.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Takes nothing new, finishes what has begun, flushes and closes every store.
    pub async fn shutdown(&self, within: Duration) {
        let deadline = Instant::now() + within;
        for task in std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner)) {
            task.abort();
        }
        let draining: Vec<_> =
            self.hosts().into_iter().map(|host| tokio::spawn(async move { host.drain(deadline).await })).collect();
        for task in draining {
            if task.await.is_err() {
                tracing::error!("draining a shard panicked");
            }
        }
    }

    fn folder(&self, id: &ShardId) -> PathBuf {
        self.options.data.join("shards").join(&*id.group).join(&*id.shard)
    }

    /// Opens shards that the topology names and closes those it no longer does, now and with every change.
    fn follow_topology(self: &Arc<Self>) {
        self.match_topology();
        let weak = Arc::downgrade(self);
        let mut watcher = self.watcher.clone();
        let task = tokio::spawn(async move {
            while watcher.changed().await {
                let Some(local) = weak.upgrade() else { return };
                local.match_topology();
            }
        });
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    fn match_topology(self: &Arc<Self>) {
        let Some(topology) = self.watcher.topology() else { return };
        let wanted: Vec<ShardId> = topology.shards().map(|shard| shard.id.clone()).collect();
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<ShardId> = hosts.keys().filter(|id| !wanted.contains(id)).cloned().collect();
        for id in gone {
            if let Some(host) = hosts.remove(&id) {
                self.clients.remove(&instance(&id, &host.condition()).id);
                tracing::info!(shard = %id, "shard is no longer in the topology");
                self.note(&id, false);
                self.own(async move { host.drain(Instant::now() + Duration::from_secs(10)).await });
            }
        }
        let share = self.options.cache_bytes / (wanted.len() as u64).max(1);
        for id in wanted {
            if hosts.contains_key(&id) {
                continue;
            }
            let host = ShardHost::new(id.clone(), self.watcher.clone());
            hosts.insert(id.clone(), host.clone());
            self.clients.insert(instance(&id, &host.condition()).id, Arc::new(host.clone()));
            let weak = Arc::downgrade(self);
            let mut condition = host.watch();
            self.own(async move {
                while condition.changed().await.is_ok() {
                    let Some(local) = weak.upgrade() else { return };
                    local.publish();
                }
            });
            let path = self.folder(&id);
            if self.made.has(&id) && is_empty(&path) {
                let reason = "its store is gone; an empty one in its place would deny every row it held";
                tracing::error!(shard = %id, path = %path.display(), "{reason}");
                host.set_condition(Condition::failed(reason));
                continue;
            }
            let options = self.store_options(share);
            let stores = self.options.stores.clone();
            let weak = Arc::downgrade(self);
            self.own(async move {
                // What went wrong is the shard's condition from now on.
                match host.open(path, options, &stores).await {
                    Ok(()) => {
                        if let Some(local) = weak.upgrade() {
                            local.note(&id, true);
                        }
                    }
                    Err(error) => tracing::error!(error = with_causes(&error), "a shard did not start"),
                }
            });
        }
        drop(hosts);
        self.publish();
    }

    fn note(&self, id: &ShardId, made: bool) {
        if let Err(error) = self.made.set(id, made) {
            tracing::warn!(shard = %id, %error, "it could not be noted that this shard is there");
        }
    }

    fn own(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|task| !task.is_finished());
        tasks.push(tokio::spawn(task));
    }

    fn store_options(&self, cache_bytes: u64) -> OpenOptions {
        OpenOptions {
            durability: self.options.durability,
            cache_bytes: cache_bytes.max(8 << 20),
            // Several stores share a machine here; each needs few threads.
            points: PoolSize { threads: 1, queue: 1_024 },
            scans: PoolSize { threads: 2, queue: 256 },
            ..OpenOptions::default()
        }
    }

    fn publish(&self) {
        // Looking and telling as one step, or an older look could be told last.
        let _one_at_a_time = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        self.replicas.apply(Update::Snapshot(self.instances()));
        self.changed.send_modify(|number| *number += 1);
    }
}

/// A copy in this process as an instance. Nobody dials its address; it only has to be unique and stable.
fn instance(id: &ShardId, condition: &Condition) -> Instance {
    let host = format!("{}.{}.local", id.shard, id.group).to_ascii_lowercase();
    let host: String = host.chars().map(|c| if c == '_' || c == '$' { '-' } else { c }).collect();
    let address: Address = format!("{host}:7400")
        .parse()
        .unwrap_or_else(|_| "shard.local:7400".parse().expect("a plain host name is an address"));
    let mut instance = replicas::instance(address, id, condition.state, None);
    instance.id = InstanceId::new(id.to_string());
    instance
}

fn lock(data: &Path) -> Result<File, OpenError> {
    let path = data.join("lock");
    let file = File::create(&path).map_err(io("create", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(OpenError::Locked(data.to_owned())),
        Err(fs::TryLockError::Error(error)) => Err(io("lock", &path)(error)),
    }
}

/// Whether there are shards in a data folder.
fn holds_shards(data: &Path) -> bool {
    !is_empty(&data.join("shards"))
}

/// Whether a folder is not there or has nothing in it.
fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none())
}

/// The folder's shape, written there when it is new.
fn shape(data: &Path, wanted: WantedShape) -> Result<Shape, OpenError> {
    let path = data.join("shape.json");
    let stored: Option<Shape> = match fs::read_to_string(&path) {
        Ok(text) => {
            let read = serde_json::from_str(&text);
            Some(read.map_err(|error| OpenError::Damaged { path: path.clone(), what: error.to_string() })?)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(io("read", &path)(error)),
    };
    let base = stored.unwrap_or_default();
    let wanted = Shape { groups: wanted.groups.unwrap_or(base.groups), shards: wanted.shards.unwrap_or(base.shards) };
    match stored {
        Some(stored) if stored == wanted => Ok(stored),
        Some(stored) => Err(OpenError::OtherShape { data: data.to_owned(), stored, wanted }),
        // The shape is written before anything else.
        None if holds_shards(data) => Err(OpenError::Gone { path, data: data.to_owned() }),
        None => {
            Topology::initial(wanted.groups, wanted.shards).map_err(OpenError::Shape)?;
            let text = serde_json::to_string(&wanted).expect("two numbers serialise");
            write_synced(&path, &text).map_err(io("write", &path))?;
            Ok(wanted)
        }
    }
}

/// Replaces a file so that a crash leaves the old one or the new one.
fn write_synced(path: &Path, text: &str) -> Result<(), std::io::Error> {
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    // The rename itself is durable only once the folder is.
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_keeps_the_shape_it_was_made_with() {
        let folder = tempfile::tempdir().expect("a folder");
        let wanted = WantedShape { groups: Some(2), shards: Some(3) };
        assert_eq!(shape(folder.path(), wanted).expect("new"), Shape { groups: 2, shards: 3 });
        assert_eq!(shape(folder.path(), WantedShape::default()).expect("as stored"), Shape { groups: 2, shards: 3 });
        let other = WantedShape { shards: Some(2), ..WantedShape::default() };
        let error = shape(folder.path(), other).expect_err("refused").to_string();
        assert!(error.contains("2 groups of 3 shards") && error.contains("2 groups of 2 shards"), "{error}");
        let none = WantedShape { groups: Some(0), shards: None };
        let fresh = tempfile::tempdir().expect("a folder");
        assert!(matches!(shape(fresh.path(), none), Err(OpenError::Shape(_))));
    }

    /// Removes a part of a folder with rows' shards; what opening it says then.
    async fn without(part: &str) -> Result<Arc<Local>, OpenError> {
        let folder = tempfile::tempdir().expect("a folder");
        let wanted = WantedShape { groups: Some(1), shards: Some(2) };
        let options = || LocalOptions { shape: wanted, ..LocalOptions::new(folder.path()) };
        let local = Local::open(options()).await.expect("opens");
        local.opened().await.expect("all shards");
        local.shutdown(Duration::from_secs(5)).await;
        drop(local);
        let part = folder.path().join(part);
        if part.is_dir() {
            fs::remove_dir_all(&part).expect("removed");
        } else {
            fs::remove_file(&part).expect("removed");
        }
        let local = Local::open(options()).await?;
        local.opened().await?;
        local.shutdown(Duration::from_secs(5)).await;
        Ok(local)
    }

    #[tokio::test]
    async fn what_is_gone_is_not_made_anew() {
        for part in ["shards/g0/s1", "shards/g0", "shape.json", "topology"] {
            let error = without(part).await.map(drop).expect_err(part);
            let text = with_causes(&error);
            assert!(text.contains("gone"), "{part}: {text}");
        }
        // A folder of an older build has no list.
        let opened = without("shards/made").await.map(drop);
        assert!(opened.is_ok(), "{opened:?}");
    }

    #[tokio::test]
    async fn one_process_at_a_time_and_a_second_start_finds_the_topology() {
        let folder = tempfile::tempdir().expect("a folder");
        let local = Local::open(LocalOptions::new(folder.path())).await.expect("opens");
        local.opened().await.expect("all shards");
        assert_eq!(local.hosts().len(), 4);
        assert!(matches!(Local::open(LocalOptions::new(folder.path())).await, Err(OpenError::Locked(_))));
        let epoch = local.watcher().topology().expect("there").epoch();
        local.shutdown(Duration::from_secs(5)).await;
        drop(local);
        let again = Local::open(LocalOptions::new(folder.path())).await.expect("opens again");
        again.opened().await.expect("all shards");
        assert_eq!(again.watcher().topology().expect("there").epoch(), epoch);
        again.shutdown(Duration::from_secs(5)).await;
    }
}
