//! The router's core: one question in, many shards asked, one honest answer out.
//!
//! A [`Router`] resolves placement, picks copies through the routing core, scatters slot-scoped sub-requests with a
//! deadline, asks again where slots have moved, hedges slow copies within a budget, merges streams and counts what the
//! answer covers. It opens no listener and spawns no task: everything a request does happens inside the future that
//! answers it, so when the client leaves and the future is dropped, every sub-request ends too.
//!
//! Topology comes from a [`Watcher`], copies from a registry through [`Replicas`], and the way to them is a
//! [`ShardClient`]. Hand the same three to several routers or to one; routers share nothing else.

mod explain;
mod hedge;
mod names;
mod open;
mod read;
mod walk;
mod write;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use metaroute_core::resilience::budget::RetryBudget;
use tokio::sync::{Mutex, Semaphore};

use crate::client::ShardClient;
use crate::cursor::CursorKeys;
use crate::failure::{Code, Failure};
use crate::protocol::{Moved, WorkBudget};
use crate::replicas::Replicas;
use crate::scatter::Rights;
use crate::topology::{Topology, Watcher};
use hedge::Latencies;

pub use explain::{Denied, Explanation, ReplicaExplained, TargetExplained, TenantExplained};
pub(crate) use read::Portion;
pub use read::{Answer, Count, Export};
pub use write::Written;

/// How often a sub-request may be sent on because slots have moved.
const HOPS_MAX: u32 = 2;

/// Locks that serialise writes of one id; a batch takes those of all its ids.
const WRITE_STRIPES: usize = 256;

/// A source of stamps for written rows: given a number of rows, the first of as many stamps in a row. It may wait for a
/// disk; routers call it off the async threads.
pub type Stamps = Arc<dyn Fn(u64) -> Result<u64, String> + Send + Sync>;

/// What a router is given besides its three sources.
#[derive(Clone)]
pub struct RouterOptions {
    /// Work each shard may do for one page.
    pub budget: WorkBudget,
    /// Bytes of rows a request may hold at the router; more is `result_too_large`.
    pub merge_bytes: usize,
    /// When a second copy is asked because the first is slow.
    pub hedge: HedgeOptions,
    /// How long a newer topology is waited for when an answer shows that there is one.
    pub refresh: Duration,
    /// Global queries (C and CI) that may run at once; more are `overloaded`.
    pub global_queries: usize,
    /// Stamps for writes; `None` where this process does not own all shards: writes are `read_only` then.
    pub stamps: Option<Stamps>,
}

impl Default for RouterOptions {
    fn default() -> Self {
        RouterOptions {
            budget: WorkBudget::default(),
            merge_bytes: 64 << 20,
            hedge: HedgeOptions::default(),
            refresh: Duration::from_millis(200),
            global_queries: 32,
            stamps: None,
        }
    }
}

impl std::fmt::Debug for RouterOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RouterOptions")
            .field("budget", &self.budget)
            .field("merge_bytes", &self.merge_bytes)
            .field("hedge", &self.hedge)
            .field("writable", &self.stamps.is_some())
            .finish_non_exhaustive()
    }
}

/// When a second copy is asked. Path C is never hedged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HedgeOptions {
    /// Off: only failures lead to another copy.
    pub enabled: bool,
    /// The delay is the 98th percentile of the shard's latency, but at most this: a sick host drags its own percentile
    /// along.
    pub after_max: Duration,
    /// Extra requests per request; 0.05 is 5 %.
    pub ratio: f64,
}

impl Default for HedgeOptions {
    fn default() -> Self {
        HedgeOptions { enabled: true, after_max: Duration::from_millis(50), ratio: 0.05 }
    }
}

/// The runtime's clock rather than the system's, so that tests can stop it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// What a caller brings along with its question.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its name in logs, here and at the shards.
    pub request_id: Arc<str>,
    /// When an answer is no longer of use.
    pub deadline: Instant,
    /// What the caller may do.
    pub rights: Rights,
}

impl Call {
    /// A call with all rights that must be answered within `timeout`.
    pub fn within(timeout: Duration) -> Call {
        Call { request_id: "".into(), deadline: now() + timeout, rights: Rights::ALL }
    }
}

/// Answers questions by asking shards. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Router {
    inner: Arc<Inner>,
}

struct Inner {
    watcher: Watcher,
    /// What moved answers taught, and the topology they corrected; void once the watcher knows another one.
    learned: ArcSwapOption<(Arc<Topology>, Arc<Topology>)>,
    replicas: Replicas,
    client: Arc<dyn ShardClient>,
    keys: CursorKeys,
    options: RouterOptions,
    latencies: Latencies,
    names: names::Kept,
    hedges: RetryBudget,
    retries: RetryBudget,
    started: Instant,
    ticked_s: std::sync::atomic::AtomicU64,
    global: Arc<Semaphore>,
    stripes: Vec<Mutex<()>>,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

impl Router {
    /// A router over a topology, the copies of its shards and the way to them.
    ///
    /// # Panics
    /// When the hedge ratio is not between 0 and 1000; configuration checks that.
    pub fn new(
        watcher: Watcher,
        replicas: Replicas,
        client: Arc<dyn ShardClient>,
        keys: CursorKeys,
        options: RouterOptions,
    ) -> Router {
        let hedges = RetryBudget::new(options.hedge.ratio, 0.0, Duration::ZERO).expect("the ratio was checked");
        let retries = RetryBudget::new(0.2, 10.0, Duration::ZERO).expect("constants in range");
        // A fresh budget is empty; the first second's reserve lets a router fail over from its first request on.
        retries.tick(Duration::from_secs(1));
        let global = Arc::new(Semaphore::new(options.global_queries.max(1)));
        let inner = Inner {
            watcher,
            learned: ArcSwapOption::empty(),
            replicas,
            client,
            keys,
            latencies: Latencies::default(),
            names: names::Kept::default(),
            hedges,
            retries,
            started: now(),
            ticked_s: std::sync::atomic::AtomicU64::new(1),
            global,
            stripes: (0..WRITE_STRIPES).map(|_| Mutex::new(())).collect(),
            options,
        };
        Router { inner: Arc::new(inner) }
    }

    /// The topology queries use now, corrections learned from shards included.
    ///
    /// # Errors
    /// `no_topology` while there is none, or an empty one.
    pub fn topology(&self) -> Result<Arc<Topology>, Failure> {
        self.inner.topology()
    }

    /// The copies of the shards.
    pub fn replicas(&self) -> &Replicas {
        &self.inner.replicas
    }

    /// The source of the topology.
    pub fn watcher(&self) -> &Watcher {
        &self.inner.watcher
    }
}

impl Inner {
    fn topology(&self) -> Result<Arc<Topology>, Failure> {
        let none = |what: &str| {
            let failure = Failure::new(Code::NoTopology, what);
            match self.watcher.trouble() {
                Some(trouble) => failure.hint(trouble),
                None => failure,
            }
        };
        let base = self.watcher.topology().ok_or_else(|| none("there is no topology yet"))?;
        if base.groups().is_empty() {
            return Err(none("the topology has no group"));
        }
        match &*self.learned.load() {
            Some(learned) if Arc::ptr_eq(&learned.0, &base) => Ok(Arc::clone(&learned.1)),
            _ => Ok(base),
        }
    }

    /// Corrects the topology from what a shard said. Returns the new owner's topology to go on with: the corrected one,
    /// or a newer one that arrives within [`RouterOptions::refresh`] when the named owner is unknown here.
    async fn learn(&self, group: &str, moved: &Moved, deadline: Instant) -> Option<Arc<Topology>> {
        let known = self.topology().ok()?;
        let knows = |topology: &Topology| {
            let found = topology.group(group).and_then(|(_, known)| known.shard(&moved.to));
            found.is_some()
        };
        let known = if knows(&known) {
            known
        } else {
            let until = deadline.min(now() + self.options.refresh);
            let newer = self.watcher.at_least(moved.epoch);
            tokio::time::timeout_at(until.into(), newer).await.ok().flatten().filter(|topology| knows(topology))?
        };
        match known.learn(group, moved) {
            None => Some(known),
            Some(learned) => {
                let learned = Arc::new(learned);
                if let Some(base) = self.watcher.topology() {
                    self.learned.store(Some(Arc::new((base, Arc::clone(&learned)))));
                }
                tracing::debug!(group, to = &*moved.to, slots = %moved.slots, epoch = moved.epoch, "slots have moved");
                Some(learned)
            }
        }
    }

    /// Lets the budgets' second pass when it has.
    fn tick(&self) {
        use std::sync::atomic::Ordering;
        let now = self.started.elapsed() + Duration::from_secs(1);
        let second = now.as_secs();
        if self.ticked_s.fetch_max(second, Ordering::Relaxed) < second {
            self.hedges.tick(now);
            self.retries.tick(now);
        }
    }
}
