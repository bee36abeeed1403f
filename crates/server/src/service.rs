//! What the HTTP API stands on: the router, the stores, the topology and, where they are in this process, the shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use metaroute_cluster::Router;
use metaroute_cluster::protocol::ShardState;
use metaroute_cluster::topology::{TopologyStore, Watcher};
use metaroute_store::Schema;
use tokio::sync::Semaphore;

use crate::admission::Admission;
use crate::local::Local;
use crate::metrics::Metrics;

/// Limits of the HTTP API.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// How long a request may take when it does not say.
    pub timeout: Duration,
    /// Requests slower than this are logged with their plan.
    pub slow_log: Duration,
    /// Requests that may run at once; more are refused as overloaded.
    pub requests: usize,
    /// Cost units per second that all tenants share fairly; `None`: no quota.
    pub capacity: Option<f64>,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        ServiceOptions {
            timeout: Duration::from_secs(10),
            slow_log: Duration::from_secs(1),
            requests: 1_024,
            capacity: None,
        }
    }
}

/// Everything behind the HTTP API.
pub struct Service {
    pub(crate) router: Router,
    stores: Vec<Arc<Schema>>,
    declared: Vec<Declared>,
    pub(crate) topology: Arc<dyn TopologyStore>,
    pub(crate) watcher: Watcher,
    pub(crate) local: Option<Arc<Local>>,
    pub(crate) options: ServiceOptions,
    pub(crate) metrics: Metrics,
    pub(crate) permits: Semaphore,
    pub(crate) admission: Option<Admission>,
    draining: AtomicBool,
}

/// A store and its name, to be handed on without copying.
#[derive(Debug)]
pub(crate) struct Declared {
    pub(crate) name: Arc<str>,
    pub(crate) schema: Arc<Schema>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Service {
    /// A service over a router. `local` are the shards of this process, if it has any; with them rows can be written and
    /// readiness is theirs.
    pub fn new(
        router: Router,
        stores: Vec<Arc<Schema>>,
        topology: Arc<dyn TopologyStore>,
        local: Option<Arc<Local>>,
        options: ServiceOptions,
    ) -> Arc<Service> {
        let watcher = router.watcher().clone();
        Arc::new(Service {
            watcher,
            declared: stores
                .iter()
                .map(|schema| Declared { name: schema.name().into(), schema: schema.clone() })
                .collect(),
            stores,
            topology,
            local,
            metrics: Metrics::default(),
            permits: Semaphore::new(options.requests.max(1)),
            admission: options.capacity.map(Admission::new),
            options,
            router,
            draining: AtomicBool::new(false),
        })
    }

    /// A store by name.
    pub fn store(&self, name: &str) -> Option<&Arc<Schema>> {
        self.declared(name).map(|declared| &declared.schema)
    }

    pub(crate) fn declared(&self, name: &str) -> Option<&Declared> {
        self.declared.iter().find(|declared| *declared.name == *name)
    }

    /// The stores, the built-in one first.
    pub fn stores(&self) -> &[Arc<Schema>] {
        &self.stores
    }

    /// The router.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// The numbers behind `/metrics`.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Says not ready from now on, so that balancers send nothing new.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Why requests cannot be answered completely right now; `None` when they can.
    pub fn unready(&self) -> Option<String> {
        if self.draining.load(Ordering::Relaxed) {
            return Some("draining".into());
        }
        let topology = match self.router.topology() {
            Ok(topology) => topology,
            Err(failure) => return Some(failure.message),
        };
        if let Some(local) = &self.local {
            let conditions: Vec<_> = local.hosts().iter().map(|host| (host.id().clone(), host.condition())).collect();
            // The shard that has furthest to go speaks for all.
            let rank = |state: ShardState| match state {
                ShardState::Failed => 0,
                ShardState::Draining => 1,
                ShardState::Loading => 2,
                ShardState::CatchingUp => 3,
                ShardState::Ready => 4,
            };
            let worst = conditions.iter().min_by_key(|(_, at)| (rank(at.state), at.loaded_permille));
            return match worst {
                Some((id, condition)) if !condition.state.is_ready() => Some(format!("{condition} ({id})")),
                _ => None,
            };
        }
        let instances = self.router.replicas().selector().instances();
        let ready: std::collections::HashSet<_> = instances
            .iter()
            .filter(|instance| metaroute_cluster::replicas::state_of(instance).is_some_and(ShardState::is_ready))
            .filter_map(metaroute_cluster::replicas::shard_of)
            .collect();
        let missing: Vec<String> =
            topology.shards().filter(|shard| !ready.contains(&shard.id)).map(|shard| shard.id.to_string()).collect();
        (!missing.is_empty()).then(|| format!("no ready copy of {}", missing.join(", ")))
    }
}
