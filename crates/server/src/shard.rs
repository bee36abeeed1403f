//! The shard role: one copy of one shard, answering the cluster protocol over a store.
//!
//! A shard decides slot by slot. What it owns it answers, what it does not own it passes on, and while it is not
//! [`ShardState::Ready`] it answers nothing: an empty list from a copy that is still filling itself would be a lie with
//! status 200. What it owns comes from the topology it follows, never from the registry and never from the asker.

mod condition;
mod filters;
mod read;
mod write;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use metaroute_cluster::SlotSet;
use metaroute_cluster::protocol::{
    BoxFuture, ReadRequest, ReadStream, Shard, ShardError, ShardErrorKind, ShardId, ShardState, WriteAnswer,
    WriteRequest,
};
use metaroute_cluster::topology::{Ownership, Split, Topology, Watcher};
use metaroute_store::{Error as StoreError, OpenOptions, Schema, Store};
use tokio::sync::watch;

pub use condition::Condition;
use filters::Filters;

/// How long a shard that is asked with a newer epoch than it knows waits for the topology to reach it.
pub const REFRESH_WAIT: Duration = Duration::from_millis(200);

/// The asking threads are the process's, whichever shard is asked.
static PER_PROCESS: std::sync::LazyLock<Arc<read::Inline>> = std::sync::LazyLock::new(Arc::default);

/// The store attribute that names every slot this copy ever took rows for.
const SLOTS_ATTRIBUTE: &str = "shard.slots";

/// One copy of a shard. Clones share it.
#[derive(Clone, Debug)]
pub struct ShardHost(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: ShardId,
    topology: Watcher,
    condition: watch::Sender<Condition>,
    store: ArcSwapOption<Store>,
    filters: Filters,
    /// Every slot rows may be stored for. While all of them are asked for, the store's counters are exact.
    ever_owned: ArcSwap<SlotSet>,
    remembering: tokio::sync::Mutex<()>,
    in_flight: AtomicUsize,
    inline: Arc<read::Inline>,
    answered: Counters,
}

/// What a shard has done since it started.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads begun.
    pub reads: std::sync::atomic::AtomicU64,
    /// Writes begun.
    pub writes: std::sync::atomic::AtomicU64,
    /// Sub-requests answered with at least one moved slot.
    pub moved: std::sync::atomic::AtomicU64,
    /// Sub-requests answered "not ready".
    pub not_ready: std::sync::atomic::AtomicU64,
    /// Sub-requests whose reader left before the end.
    pub abandoned: std::sync::atomic::AtomicU64,
}

/// Why a shard could not start.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// Its store could not be opened.
    #[error("shard {shard} cannot open its store")]
    Store {
        /// Which shard.
        shard: ShardId,
        /// The store's error.
        #[source]
        source: StoreError,
    },
}

impl ShardHost {
    /// A copy that is loading: it exists for routers and probes, and answers nothing yet.
    pub fn new(id: ShardId, topology: Watcher) -> ShardHost {
        ShardHost(Arc::new(Inner {
            id,
            topology,
            condition: watch::Sender::new(Condition::loading(0)),
            store: ArcSwapOption::empty(),
            filters: Filters::default(),
            ever_owned: ArcSwap::default(),
            remembering: tokio::sync::Mutex::default(),
            in_flight: AtomicUsize::new(0),
            inline: PER_PROCESS.clone(),
            answered: Counters::default(),
        }))
    }

    /// Opens the store in `path`, makes or opens the declared tables, and serves. A copy that cannot is
    /// [`ShardState::Failed`] and stays so until somebody looks.
    ///
    /// # Errors
    /// When the store cannot be opened or holds tables of another shape.
    pub async fn open(&self, path: PathBuf, options: OpenOptions, stores: &[Arc<Schema>]) -> Result<(), StartError> {
        let started = Instant::now();
        let stores: Vec<Schema> = stores.iter().map(|schema| (**schema).clone()).collect();
        let opened = tokio::task::spawn_blocking(move || open_store(&path, options, stores)).await;
        let failed = |source: StoreError| {
            tracing::error!(shard = %self.0.id, error = %with_causes(&source), "the store cannot be opened");
            self.0.condition.send_replace(Condition::failed(&with_causes(&source)));
            StartError::Store { shard: self.0.id.clone(), source }
        };
        let (store, slots) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return Err(failed(error)),
            Err(_) => return Err(failed(StoreError::Closed)),
        };
        self.0.ever_owned.store(Arc::new(slots));
        self.0.store.store(Some(Arc::new(store)));
        self.0.condition.send_replace(Condition::of(ShardState::Ready));
        tracing::info!(shard = %self.0.id, took_ms = started.elapsed().as_millis() as u64, "shard is ready");
        Ok(())
    }

    /// Which shard it is a copy of.
    pub fn id(&self) -> &ShardId {
        &self.0.id
    }

    /// What it is doing now.
    pub fn condition(&self) -> Condition {
        self.0.condition.borrow().clone()
    }

    /// Follows what it is doing.
    pub fn watch(&self) -> watch::Receiver<Condition> {
        self.0.condition.subscribe()
    }

    /// Says what it is doing, for whoever fills the copy.
    pub fn set_condition(&self, condition: Condition) {
        self.0.condition.send_replace(condition);
    }

    /// The store, once it is open.
    pub fn store(&self) -> Option<Arc<Store>> {
        self.0.store.load_full()
    }

    /// Sub-requests being worked on.
    pub fn in_flight(&self) -> usize {
        self.0.in_flight.load(Ordering::Relaxed)
    }

    /// What it has done.
    pub fn counters(&self) -> &Counters {
        &self.0.answered
    }

    /// The slots it owns now.
    pub fn owned(&self) -> SlotSet {
        self.0.owned()
    }

    /// Takes nothing new, finishes what it has begun (at most until `deadline`), and closes the store: everything
    /// acknowledged is then on stable storage.
    pub async fn drain(&self, deadline: Instant) {
        self.0.condition.send_if_modified(|condition| {
            let draining = condition.state != ShardState::Failed;
            if draining {
                *condition = Condition::of(ShardState::Draining);
            }
            draining
        });
        while self.in_flight() > 0 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if let Some(store) = self.0.store.swap(None)
            && tokio::task::spawn_blocking(move || store.close()).await.is_err()
        {
            tracing::error!(shard = %self.0.id, "closing the store panicked");
        }
    }
}

impl Shard for ShardHost {
    fn read(&self, request: ReadRequest, deadline: Instant) -> ReadStream {
        read::read(self.0.clone(), request, deadline)
    }

    fn write(&self, request: WriteRequest, deadline: Instant) -> BoxFuture<Result<WriteAnswer, ShardError>> {
        let inner = self.0.clone();
        Box::pin(write::write(inner, request, deadline))
    }
}

/// Counts a sub-request while it lives.
struct InFlight(Arc<Inner>);

impl InFlight {
    fn enter(inner: &Arc<Inner>) -> InFlight {
        inner.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(inner.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inner {
    /// Which of the asked-for slots are whose, and the topology that says so. Waits a little where the asker knows
    /// something newer. `None` when the news did not come in time.
    async fn ownership(&self, slots: &SlotSet, epoch: u64, deadline: Instant) -> Option<(Arc<Topology>, Split)> {
        if let Some(known) = self.known(slots, epoch) {
            return Some(known);
        }
        let until = deadline.min(Instant::now() + REFRESH_WAIT);
        let mut watcher = self.topology.clone();
        let refreshed = async {
            while watcher.changed().await {
                if let Some(known) = self.known(slots, epoch) {
                    return Some(known);
                }
            }
            // Nobody feeds the watcher any more; its last word stands.
            None
        };
        tokio::time::timeout_at(until.into(), refreshed).await.ok().flatten()
    }

    fn known(&self, slots: &SlotSet, epoch: u64) -> Option<(Arc<Topology>, Split)> {
        let topology = self.topology.topology()?;
        match topology.ownership(&self.id, slots, epoch) {
            Ownership::Known(split) => Some((topology, split)),
            Ownership::Behind => None,
        }
    }

    fn owned(&self) -> SlotSet {
        let Some(topology) = self.topology.topology() else { return SlotSet::new() };
        let Some((_, group)) = topology.group(&self.id.group) else { return SlotSet::new() };
        group.shard(&self.id.shard).map(|at| group.owned_by(at)).unwrap_or_default()
    }

    fn store(&self) -> Result<Arc<Store>, ShardError> {
        let gone = || ShardError::new(ShardErrorKind::Unavailable, format!("shard {} is closed", self.id));
        self.store.load_full().ok_or_else(gone)
    }

    fn wrong_shard(&self, asked: &ShardId) -> Result<(), ShardError> {
        if *asked == self.id {
            return Ok(());
        }
        let message = format!("this is shard {}, not {asked}", self.id);
        Err(ShardError::new(ShardErrorKind::Unavailable, message))
    }
}

fn open_store(
    path: &std::path::Path,
    options: OpenOptions,
    stores: Vec<Schema>,
) -> metaroute_store::Result<(Store, SlotSet)> {
    let store = Store::open(path, options)?;
    for schema in stores {
        store.create_table(schema).wait()?;
    }
    let slots = store.view()?.attribute(SLOTS_ATTRIBUTE)?;
    let slots = slots.and_then(|bytes| SlotSet::from_bytes(&bytes)).unwrap_or_default();
    Ok((store, slots))
}

/// What a failure of the store means to the asker.
fn shard_error(error: &StoreError) -> ShardError {
    let kind = match error {
        StoreError::Overloaded { .. } | StoreError::Stalled { .. } => ShardErrorKind::Overloaded,
        StoreError::Cancelled => ShardErrorKind::Cancelled,
        StoreError::Closed => ShardErrorKind::Unavailable,
        StoreError::UnknownTable(_) => ShardErrorKind::UnknownStore,
        StoreError::Failed { .. } => ShardErrorKind::ReadOnly,
        error if error.is_corruption() => ShardErrorKind::CorruptData,
        error if error.is_request() => ShardErrorKind::BadRequest,
        _ => ShardErrorKind::Internal,
    };
    ShardError::new(kind, with_causes(error))
}

/// An error and what caused it, in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
