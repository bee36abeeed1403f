//! The services of the registry, and deciders over them.
//!
//! Each service has one live selector without rules: it follows the registry, and its guard is the only one. A request
//! over HTTP brings rules of its own, so every distinct set of rules gets a selector fed from the live one. Those are
//! kept, because a round robin that starts anew with each request would always answer the same; the number kept is
//! bounded, because requests decide how many there are.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use metaroute::{Connection, LiveSelector};
use metaroute_core::{GuardOptions, Instance, Metrics, Options, Picker, RuleSet, Selector, Update};
use metaroute_registry::{State, Subscription};
use tokio::task::JoinHandle;

use super::metrics::PickMetrics;
use super::problem::Problem;
use crate::failure::Failure;
use crate::status::Status;

/// How often the registry is asked which services there are; a new one appears within this time.
const LIST_EVERY: Duration = Duration::from_millis(500);

/// Deciders kept over all services.
const DECIDERS_MAX: usize = 256;

/// Everything behind the HTTP surface.
pub(crate) struct Hub {
    connection: Connection,
    services: RwLock<BTreeMap<String, Service>>,
    deciders: Mutex<Deciders>,
    start: Instant,
    draining: AtomicBool,
    lister: Mutex<Option<JoinHandle<()>>>,
    pub(crate) metrics: PickMetrics,
    /// The rows.
    pub(crate) rows: Arc<metaroute_server::Service>,
}

#[derive(Clone)]
struct Service {
    live: LiveSelector,
    view: Subscription,
}

#[derive(Default)]
struct Deciders {
    by_key: HashMap<String, Arc<Decider>>,
    /// Keys in the order they were added.
    order: VecDeque<String>,
}

/// A selector for one set of rules, fed from the live one.
pub(crate) struct Decider {
    pub(crate) selector: Selector,
    pub(crate) rules: RuleSet,
    /// One for all requests: turns that each thread takes on its own are no round robin to a client.
    picker: Mutex<Picker>,
    /// Revision of the live selector whose instances it has; `None` before the first.
    fed: Mutex<Option<u64>>,
}

/// What is known of one service, for lists and metrics.
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) metrics: Metrics,
}

/// Instances of one service as the live selector has them.
pub(crate) struct Instances {
    pub(crate) list: Vec<Instance>,
    pub(crate) cursor: Option<String>,
    pub(crate) stale: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in here is left half-changed by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// Follows every service of a registry.
    pub(crate) async fn start(
        connection: Connection,
        rows: Arc<metaroute_server::Service>,
    ) -> Result<Arc<Self>, Failure> {
        let hub = Arc::new(Self {
            connection,
            services: RwLock::default(),
            deciders: Mutex::default(),
            start: Instant::now(),
            draining: AtomicBool::new(false),
            lister: Mutex::default(),
            metrics: PickMetrics::default(),
            rows,
        });
        hub.list().await?;
        let weak = Arc::downgrade(&hub);
        let lister = tokio::spawn(async move {
            let mut every = tokio::time::interval(LIST_EVERY);
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                every.tick().await;
                let Some(hub) = weak.upgrade() else { return };
                if let Err(failure) = hub.list().await {
                    tracing::debug!(error = failure.message, "services cannot be listed");
                }
            }
        });
        *lock(&hub.lister) = Some(lister);
        Ok(hub)
    }

    /// Follows services that are new and leaves those that are gone.
    async fn list(&self) -> Result<(), Failure> {
        let registry = self.connection.registry();
        let names = registry.services().await.map_err(|error| crate::source::driver_failure(&error))?;
        for name in &names {
            if self.service(name).is_some() {
                continue;
            }
            let live = self
                .connection
                .service(name.as_ref())
                .start()
                .await
                .map_err(|error| Failure::new(Status::Bug, "internal", error.to_string()))?;
            let view = registry.subscribe(name);
            tracing::info!(service = %name, "service found");
            self.write().insert(name.to_string(), Service { live, view });
        }
        let mut gone = Vec::new();
        self.write().retain(|name, service| {
            let listed = names.iter().any(|listed| **listed == **name);
            if !listed {
                tracing::info!(service = %name, "service gone");
                gone.push(service.live.clone());
            }
            listed
        });
        if !gone.is_empty() {
            let known: Vec<String> = self.read().keys().cloned().collect();
            lock(&self.deciders).forget(|service| !known.iter().any(|name| name == service));
        }
        for live in gone {
            live.shutdown(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Service>> {
        self.services.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<String, Service>> {
        self.services.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn service(&self, name: &str) -> Option<Service> {
        self.read().get(name).cloned()
    }

    /// Every service, by name.
    pub(crate) fn known(&self) -> Vec<Known> {
        let services: Vec<(String, Service)> =
            self.read().iter().map(|(name, service)| (name.clone(), service.clone())).collect();
        services
            .into_iter()
            .map(|(name, service)| Known { name, state: service.view.current().state, metrics: service.live.metrics() })
            .collect()
    }

    /// The instances of a service; `None` when the registry knows none of this name.
    pub(crate) fn instances(&self, name: &str) -> Option<Instances> {
        let service = self.service(name)?;
        let view = service.view.current();
        let held = service.live.metrics().held.is_some();
        Some(Instances {
            list: service.live.selector().instances(),
            cursor: view.cursor.as_ref().map(ToString::to_string),
            stale: held || view.state != State::Fresh,
        })
    }

    /// The decider of a service for rules, made when there is none. `key` tells rules apart; without one the decider
    /// serves this request alone. `None` when the registry knows no such service.
    pub(crate) fn decider(
        &self,
        service: &str,
        key: Option<&str>,
        make: impl FnOnce() -> Result<(RuleSet, Options), Problem>,
    ) -> Result<Option<Arc<Decider>>, Problem> {
        let Some(Service { live, view }) = self.service(service) else { return Ok(None) };
        let key = key.map(|key| format!("{service}\n{key}"));
        let found = key.as_ref().and_then(|key| lock(&self.deciders).by_key.get(key).cloned());
        let decider = match found {
            Some(decider) => decider,
            None => {
                let (rules, options) = make()?;
                // The live selector has doubted the list already.
                let options = Options { guard: GuardOptions::off(), ..options };
                let selector =
                    Selector::new(rules.clone(), options).map_err(|error| Problem::from(Failure::rules(&error)))?;
                let picker = Mutex::new(selector.picker());
                let decider = Arc::new(Decider { selector, rules, picker, fed: Mutex::new(None) });
                if let Some(key) = key {
                    lock(&self.deciders).add(key, Arc::clone(&decider));
                }
                decider
            }
        };
        decider.feed(&live, view.current().state, self.start.elapsed());
        Ok(Some(decider))
    }

    /// Why requests should go elsewhere, if they should.
    pub(crate) fn unready(&self) -> Option<String> {
        if self.draining.load(Ordering::Relaxed) {
            return Some("draining".into());
        }
        let services = self.read();
        let unresolved: Vec<&str> = services
            .iter()
            .filter(|(_, service)| !service.live.selector().is_resolved())
            .map(|(name, _)| name.as_str())
            .collect();
        if !unresolved.is_empty() {
            return Some(format!("the registry has not answered about {}", unresolved.join(", ")));
        }
        self.rows.unready()
    }

    /// Says from now on that it is not ready.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Stops everything that was started.
    pub(crate) async fn shutdown(&self, deadline: Duration) {
        if let Some(lister) = lock(&self.lister).take() {
            lister.abort();
        }
        let services = std::mem::take(&mut *self.write());
        for service in services.into_values() {
            service.live.shutdown(deadline).await;
        }
        self.connection.shutdown(deadline).await;
    }
}

impl Deciders {
    fn add(&mut self, key: String, decider: Arc<Decider>) {
        if self.by_key.insert(key.clone(), decider).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > DECIDERS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.by_key.remove(&oldest);
            }
        }
    }

    fn forget(&mut self, gone: impl Fn(&str) -> bool) {
        let is_gone = |key: &String| key.split('\n').next().is_some_and(&gone);
        self.order.retain(|key| !is_gone(key));
        self.by_key.retain(|key, _| !is_gone(key));
    }
}

impl Decider {
    /// The picker whose turns all requests take.
    pub(crate) fn picker(&self) -> MutexGuard<'_, Picker> {
        lock(&self.picker)
    }

    /// Takes over what the live selector has, when that is newer, and lets time pass.
    fn feed(&self, live: &LiveSelector, state: State, now: Duration) {
        let revision = live.selector().revision();
        let mut fed = lock(&self.fed);
        if *fed == Some(revision) || !live.selector().is_resolved() {
            drop(fed);
            self.selector.tick(now);
            return;
        }
        let update = match state {
            State::UnknownService => Update::UnknownService,
            _ => Update::Snapshot(live.selector().instances()),
        };
        // Large fleets take milliseconds to compile.
        tokio::task::block_in_place(|| self.selector.apply(update, now));
        *fed = Some(revision);
        drop(fed);
        self.selector.tick(now);
    }
}
