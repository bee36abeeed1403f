//! The services of the registry, and deciders over them.
//!
//! Each service has one live selector without rules: it follows the registry, and its guard is the only one. A request
//! over HTTP brings rules of its own, so every distinct set of rules gets a selector fed from the live one. Those are
//! kept, because a round robin that starts anew with each request would always answer the same; the number kept is
//! bounded, because requests decide how many there are.
//!
//! A hub of `up` follows every service all the time. A router's registry may be a large one that it needs for one service
//! only, so its hub follows the others while somebody asks about them, and at most [`FOLLOWED_MAX`] that nobody named.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use metaroute::{Connection, LiveSelector};
use metaroute_core::{GuardOptions, Instance, Metrics, Options, Picker, RuleSet, Selector, Update};
use metaroute_registry::{Memory, Registry, State, Subscription};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::metrics::PickMetrics;
use super::problem::Problem;
use crate::failure::Failure;
use crate::status::Status;

/// How often a registry in this process is asked which services there are; a new one appears within this time.
const LIST_EVERY: Duration = Duration::from_millis(500);

/// The same for a registry of others, while somebody looks.
const LIST_REMOTE_EVERY: Duration = Duration::from_secs(5);

/// How long after the last question services that are not always followed are left.
const LEFT_AFTER: Duration = Duration::from_secs(60);

/// Services followed because they are listed; any other one is followed once it is asked for by name.
const FOLLOWED_MAX: usize = 200;

/// How long the first question waits for what the registry says about the services it has just begun to follow.
const RESOLVED_WITHIN: Duration = Duration::from_secs(2);

/// Deciders kept over all services.
const DECIDERS_MAX: usize = 256;

/// Which services are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Following {
    /// All, all the time.
    All,
    /// All while somebody asks, this one all the time.
    WhileAsked(&'static str),
}

/// The services of a registry, and deciders over them.
pub(crate) struct Hub {
    connection: Connection,
    following: Following,
    services: RwLock<BTreeMap<String, Service>>,
    /// What the registry listed last.
    listed: Mutex<Vec<Box<str>>>,
    deciders: Mutex<Deciders>,
    start: Instant,
    lister: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    /// When somebody asked last.
    asked: Mutex<Instant>,
    pub(crate) metrics: PickMetrics,
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

/// What is known of one service.
pub(crate) struct Known {
    pub(crate) name: String,
    /// What the registry says, while it is followed.
    pub(crate) seen: Option<(State, Metrics)>,
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
    fn new(connection: Connection, following: Following) -> Arc<Self> {
        Arc::new(Self {
            connection,
            following,
            services: RwLock::default(),
            listed: Mutex::default(),
            deciders: Mutex::default(),
            start: Instant::now(),
            lister: tokio::sync::Mutex::default(),
            asked: Mutex::new(Instant::now()),
            metrics: PickMetrics::default(),
        })
    }

    /// Follows every service of a registry in this process.
    pub(crate) async fn start(connection: Connection) -> Result<Arc<Self>, Failure> {
        let hub = Self::new(connection, Following::All);
        hub.list().await?;
        *hub.lister.lock().await = Some(hub.listing(LIST_EVERY));
        Ok(hub)
    }

    /// Follows `always`, and the other services of a registry while somebody asks.
    pub(crate) async fn while_asked(connection: Connection, always: &'static str) -> Arc<Self> {
        let hub = Self::new(connection, Following::WhileAsked(always));
        if let Err(failure) = hub.follow(always).await {
            tracing::warn!(error = failure.message, service = always, "a service cannot be followed");
        }
        hub
    }

    /// A hub that knows no service.
    pub(crate) fn without_registry() -> Arc<Self> {
        Self::new(Connection::new(Registry::new(Memory::new())), Following::All)
    }

    /// Lists again and again; ends when the hub is gone, or nobody asks any more.
    fn listing(self: &Arc<Self>, every: Duration) -> JoinHandle<()> {
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let Some(hub) = weak.upgrade() else { return };
                if hub.following != Following::All {
                    // Held until the end, so that whoever asks now finds a listing that runs or none.
                    let mut lister = hub.lister.lock().await;
                    let last = *lock(&hub.asked);
                    if last.elapsed() > LEFT_AFTER {
                        hub.leave(|_| false).await;
                        *lister = None;
                        return;
                    }
                }
                if let Err(failure) = hub.list().await {
                    tracing::debug!(error = failure.message, "services cannot be listed");
                }
            }
        })
    }

    /// Notes that somebody asks, about one service or all of them. What is followed only then is followed from here on.
    pub(crate) async fn asked(self: &Arc<Self>, about: Option<&str>) {
        if self.following == Following::All {
            return;
        }
        *lock(&self.asked) = Instant::now();
        let mut lister = self.lister.lock().await;
        if lister.is_none() {
            if let Err(failure) = self.list().await {
                tracing::warn!(error = failure.message, "services cannot be listed");
            }
            *lister = Some(self.listing(LIST_REMOTE_EVERY));
        }
        let missing = about.filter(|name| self.service(name).is_none() && self.is_listed(name));
        if let Some(name) = missing
            && let Err(failure) = self.follow(name).await
        {
            tracing::warn!(error = failure.message, service = name, "a service cannot be followed");
        }
        drop(lister);
        let until = Instant::now() + RESOLVED_WITHIN;
        let resolved = || self.read().values().all(|service| service.live.selector().is_resolved());
        while !resolved() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn is_listed(&self, name: &str) -> bool {
        lock(&self.listed).iter().any(|listed| **listed == *name)
    }

    async fn follow(&self, name: &str) -> Result<(), Failure> {
        let internal = |error: &dyn std::error::Error| Failure::new(Status::Bug, "internal", error.to_string());
        let live = self.connection.service(name).start().await.map_err(|error| internal(&error))?;
        let view = self.connection.registry().subscribe(name);
        tracing::info!(service = %name, "service found");
        self.write().insert(name.to_owned(), Service { live, view });
        Ok(())
    }

    /// Follows services that are new and leaves those that are gone.
    async fn list(&self) -> Result<(), Failure> {
        let registry = self.connection.registry();
        let names = registry.services().await.map_err(|error| crate::source::driver_failure(&error))?;
        let most = if self.following == Following::All { usize::MAX } else { FOLLOWED_MAX };
        for name in names.iter().take(most) {
            if self.service(name).is_none() {
                self.follow(name).await?;
            }
        }
        *lock(&self.listed) = names.clone();
        self.leave(|name| names.iter().any(|listed| **listed == *name)).await;
        Ok(())
    }

    /// Leaves services, but never the one that is always followed.
    async fn leave(&self, stays: impl Fn(&str) -> bool) {
        let mut gone = Vec::new();
        self.write().retain(|name, service| {
            let stays = stays(name) || matches!(self.following, Following::WhileAsked(always) if always == name);
            if !stays {
                tracing::info!(service = %name, "service left");
                gone.push(service.live.clone());
            }
            stays
        });
        if !gone.is_empty() {
            let known: Vec<String> = self.read().keys().cloned().collect();
            lock(&self.deciders).forget(|service| !known.iter().any(|name| name == service));
        }
        for live in gone {
            live.shutdown(Duration::from_secs(1)).await;
        }
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

    /// Every service, by name; of one that is listed and not followed nothing but the name is known.
    pub(crate) fn known(&self) -> Vec<Known> {
        let mut known: BTreeMap<String, Option<(State, Metrics)>> =
            lock(&self.listed).iter().map(|name| (name.to_string(), None)).collect();
        for (name, service) in &*self.read() {
            known.insert(name.clone(), Some((service.view.current().state, service.live.metrics())));
        }
        known.into_iter().map(|(name, seen)| Known { name, seen }).collect()
    }

    /// The live selectors, for metrics.
    pub(crate) fn live(&self) -> Vec<LiveSelector> {
        self.read().values().map(|service| service.live.clone()).collect()
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

    /// Why questions cannot be answered yet, if they cannot.
    pub(crate) fn unready(&self) -> Option<String> {
        if self.following != Following::All {
            // Rows do not depend on what else is in the registry.
            return None;
        }
        let services = self.read();
        let unresolved: Vec<&str> = services
            .iter()
            .filter(|(_, service)| !service.live.selector().is_resolved())
            .map(|(name, _)| name.as_str())
            .collect();
        (!unresolved.is_empty()).then(|| format!("the registry has not answered about {}", unresolved.join(", ")))
    }

    /// Stops everything that was started.
    pub(crate) async fn shutdown(&self, deadline: Duration) {
        if let Some(lister) = self.lister.lock().await.take() {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hub_over(services: usize) -> Connection {
        let instance = "instances: [{address: \"10.0.0.1:80\"}]";
        let names = (0..services).map(|n| format!("s{n:03}")).chain(["always".to_owned()]);
        let text: String = names.map(|name| format!("- {{name: {name}, {instance}}}\n")).collect();
        let text = format!("services:\n{text}");
        let fleet = metaroute_registry::Fleet::parse("fleet", &text, metaroute_registry::document::Format::Yaml);
        Connection::new(Registry::new(Memory::with_fleet(&fleet.expect("legal"))))
    }

    fn followed(hub: &Hub) -> Vec<String> {
        hub.read().keys().cloned().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn others_are_followed_only_while_somebody_asks() {
        let hub = Hub::while_asked(hub_over(2), "always").await;
        assert_eq!(followed(&hub), ["always"]);
        for _ in 0..2 {
            hub.asked(None).await;
            assert_eq!(followed(&hub), ["always", "s000", "s001"]);
            assert!(hub.known().iter().all(|known| known.seen.as_ref().is_some_and(|(_, seen)| seen.instances == 1)));
            tokio::time::sleep(LEFT_AFTER / 2).await;
            hub.asked(Some("s000")).await;
            tokio::time::sleep(LEFT_AFTER / 2 + LIST_REMOTE_EVERY).await;
            assert_eq!(followed(&hub), ["always", "s000", "s001"], "the last question is not long ago");
            tokio::time::sleep(LEFT_AFTER + LIST_REMOTE_EVERY).await;
            assert_eq!(followed(&hub), ["always"]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_large_registry_a_part_is_followed_and_what_is_named() {
        let hub = Hub::while_asked(hub_over(FOLLOWED_MAX + 20), "always").await;
        hub.asked(None).await;
        assert_eq!(followed(&hub).len(), FOLLOWED_MAX);
        assert_eq!(hub.known().len(), FOLLOWED_MAX + 21, "all are listed");
        let last = format!("s{:03}", FOLLOWED_MAX + 19);
        assert!(hub.instances(&last).is_none());
        hub.asked(Some(&last)).await;
        assert_eq!(hub.instances(&last).map(|found| found.list.len()), Some(1));
        hub.asked(Some("nobody")).await;
        assert!(hub.instances("nobody").is_none());
    }
}
