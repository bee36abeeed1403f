//! What all kinds of registries share: registrations that stay alive, subscriptions that never end, and one way to say
//! how far a list can be trusted.
//!
//! A [`Registry`] owns every task it starts. Registrations are a desired state: each id has a task that applies it, renews
//! it, applies it again after every loss, and withdraws it at the end, one step after the other, so a registration and
//! the deregistration that follows it cannot overtake each other. Subscriptions to one service share a task and hand out
//! the latest state, not a queue: a slow reader misses intermediate states and nothing piles up.
//!
//! ```
//! use metaroute_core::instance::Instance;
//! use metaroute_registry::{Memory, Registry, State};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let registry = Registry::new(Memory::new());
//! let mut orders = registry.subscribe("orders");
//! let registration = registry.register("orders", Instance::new("10.0.0.1:80".parse()?))?;
//! let view = orders.wait_for(|view| view.state == State::Fresh).await?;
//! assert_eq!(view.snapshot.as_ref().map(|s| s.instances.len()), Some(1));
//! registration.deregister().await;
//! registry.shutdown(std::time::Duration::from_secs(1)).await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metaroute_core::instance::{Instance, InstanceId};
use metaroute_core::resilience::backoff::Policy;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::driver::{Capabilities, Cursor, Driver, DriverError, ErrorKind, Limits, Seen, SeenState, Snapshot};
use crate::several::{Combine, Several};
use crate::url::{RegistryUrl, Scheme};

mod cache;
mod readiness;
mod registration;
mod subscription;

pub use readiness::WhenReady;
pub use registration::{Drained, Registration, RegistrationState};
pub use subscription::{Closed, State, Subscription, View};

/// How a registry waits between attempts, and what it keeps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Waits after a failed call: connecting, watching, registering. By default the core's: 1 s growing by half to 60 s,
    /// each ±50 %.
    pub policy: Policy,
    /// A folder in which the last good list of each service that is followed is kept, so that a start while the registry
    /// is down has something to serve; it then shows as [`State::Unreachable`] with its age. `None`, the default, keeps
    /// nothing. Counts only for registries that are opened by their address, which names the files; fleet files and
    /// memory need no such thing. [`Options::default_cache_dir`] is where programs usually keep it.
    pub cache_dir: Option<PathBuf>,
}

impl Options {
    /// `$XDG_CACHE_HOME/metaroute/registry`, or the same under `~/.cache`; `None` where there is neither.
    pub fn default_cache_dir() -> Option<PathBuf> {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
        Some(cache.join("metaroute/registry"))
    }
}

/// A connection to one registry. Clones share it.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    driver: Arc<dyn Driver>,
    options: Options,
    cache: Option<cache::Cache>,
    stop: watch::Sender<bool>,
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks {
    closed: bool,
    watches: HashMap<Box<str>, Watch>,
    registrations: HashMap<(Box<str>, InstanceId), Registered>,
}

struct Registered {
    kept: registration::Kept,
    task: JoinHandle<()>,
}

struct Watch {
    view: watch::Sender<View>,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

/// Why there is no registry behind an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// This build has no back end for it.
    #[error("registries of kind `{0}` are not part of this build")]
    NotBuiltIn(Scheme),
    /// A part of the address does not fit this kind of registry.
    #[error("{0}")]
    Address(String),
}

impl Registry {
    /// A registry over a driver, with default options. Must be used inside a tokio runtime.
    pub fn new(driver: impl Driver) -> Self {
        Self::with_options(driver, Options::default())
    }

    /// A registry over a driver.
    pub fn with_options(driver: impl Driver, options: Options) -> Self {
        Self::over(Arc::new(driver), options, None)
    }

    fn over(driver: Arc<dyn Driver>, options: Options, cache: Option<cache::Cache>) -> Self {
        let shared = Shared { driver, options, cache, stop: watch::Sender::new(false), tasks: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// The registry at an address. Nothing is contacted yet.
    ///
    /// # Errors
    /// When this build cannot speak to that kind of registry, or a part of the address does not fit it.
    pub fn connect(url: &RegistryUrl) -> Result<Self, ConnectError> {
        Self::connect_with(url, Options::default())
    }

    /// The registry at an address, with options. Nothing is contacted yet.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with(url: &RegistryUrl, options: Options) -> Result<Self, ConnectError> {
        let cache = match url.scheme() {
            Scheme::File | Scheme::Memory | Scheme::Static => None,
            _ => options.cache_dir.clone().map(|folder| cache::Cache::new(folder, &url.to_string())),
        };
        Ok(Self::over(crate::backend::open(url)?, options, cache))
    }

    /// The registries at several addresses as one, the primary first; see [`several`](crate::several). Nothing is
    /// contacted yet. What is kept on disk is the combined list.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), for the first address that is not good; and when there is none.
    pub fn connect_all(urls: &[RegistryUrl], combine: Combine, options: Options) -> Result<Self, ConnectError> {
        let names: Vec<String> = urls.iter().map(ToString::to_string).collect();
        match urls {
            [] => return Err(ConnectError::Address("no registry is named".into())),
            [one] => return Self::connect_with(one, options),
            _ => {}
        }
        let mut members = Vec::new();
        for (url, name) in urls.iter().zip(&names) {
            let options = Options { cache_dir: None, ..options.clone() };
            members.push((name.as_str(), Self::connect_with(url, options)?));
        }
        let cache = options.cache_dir.clone().map(|folder| cache::Cache::new(folder, &names.join(",")));
        Ok(Self::over(Arc::new(Several::new(members, combine)), options, cache))
    }

    /// What this registry can do.
    pub fn capabilities(&self) -> Capabilities {
        self.shared.driver.capabilities()
    }

    /// What this registry accepts.
    pub fn limits(&self) -> Limits {
        self.shared.driver.limits()
    }

    /// The services, sorted.
    ///
    /// # Errors
    /// When the registry cannot be reached, refuses, or cannot list services.
    pub async fn services(&self) -> Result<Vec<Box<str>>, DriverError> {
        self.shared.driver.list().await
    }

    /// One look at a service, without a subscription; `None` when the registry does not know it.
    ///
    /// # Errors
    /// When the registry cannot be reached, refuses, or what it says cannot be used.
    pub async fn instances(&self, service: &str) -> Result<Option<(Snapshot, Cursor)>, DriverError> {
        let Seen { cursor, state } = self.shared.driver.watch(service, None).await?;
        match state {
            SeenState::Service(snapshot) => Ok(Some((snapshot, cursor))),
            SeenState::UnknownService => Ok(None),
            SeenState::Unusable(error) | SeenState::Unreachable(error) => Err(error),
        }
    }

    /// Follows a service. Never ends by itself; a dead registry shows in [`View::state`].
    pub fn subscribe(&self, service: &str) -> Subscription {
        let mut tasks = self.shared.tasks();
        if let Some(watch) = tasks.watches.get(service) {
            return Subscription::new(watch.view.subscribe());
        }
        let view = watch::Sender::new(View::default());
        let subscription = Subscription::new(view.subscribe());
        if !tasks.closed {
            let follow = subscription::Follow {
                service: service.into(),
                driver: Arc::clone(&self.shared.driver),
                policy: self.shared.options.policy,
                cache: self.shared.cache.clone(),
                view: view.clone(),
                stop: self.shared.stop.subscribe(),
            };
            let shared = Arc::downgrade(&self.shared);
            let name: Box<str> = service.into();
            let task = tokio::spawn(async move {
                follow
                    .run(|| {
                        // The last subscriber may leave just as another one comes: whoever holds the lock decides.
                        let Some(shared) = shared.upgrade() else { return true };
                        let mut tasks = shared.tasks();
                        let unwatched = tasks.watches.get(&name).is_none_or(|watch| watch.view.receiver_count() == 0);
                        if unwatched {
                            tasks.watches.remove(&name);
                        }
                        unwatched
                    })
                    .await;
            });
            tasks.watches.insert(service.into(), Watch { view, task });
        }
        subscription
    }

    /// Registers an instance and keeps it registered until the answer is told otherwise or dropped. Call it when the
    /// instance can serve: from then on others send it requests. An id that is registered already is taken over.
    ///
    /// # Errors
    /// At once when the registry is read-only or closed, or the instance is beyond what it accepts; nothing was sent
    /// then. Whether the registry took it shows in [`Registration::state`].
    pub fn register(&self, service: &str, instance: Instance) -> Result<Registration, DriverError> {
        self.writable(&instance)?;
        let mut tasks = self.shared.tasks();
        if tasks.closed {
            return Err(DriverError::new(ErrorKind::Unsupported, "this registry was shut down"));
        }
        let key = (Box::from(service), instance.id.clone());
        if let Some(known) = tasks.registrations.get(&key) {
            return Ok(known.kept.take_over(&self.shared, service, instance));
        }
        let span = tracing::info_span!("registration", service, id = %instance.id);
        let (registration, kept, keeper) =
            registration::start(&self.shared, service, instance, self.shared.stop.subscribe());
        let (shared, ours) = (Arc::downgrade(&self.shared), key.clone());
        let unwanted = move || {
            // Somebody may register the id again just as it was withdrawn: whoever holds the lock decides.
            let Some(shared) = shared.upgrade() else { return true };
            let mut tasks = shared.tasks();
            let unwanted = tasks.registrations.get(&ours).is_none_or(|known| known.kept.is_unwanted());
            if unwanted {
                tasks.registrations.remove(&ours);
            }
            unwanted
        };
        let task = tokio::spawn(keeper.run(unwanted).instrument(span));
        tasks.registrations.insert(key, Registered { kept, task });
        Ok(registration)
    }

    /// Changes an instance once that another process keeps registered, in place; who wants to keep it that way registers
    /// it. The owner may overwrite it when it registers again.
    ///
    /// # Errors
    /// When the registry cannot be reached, refuses, cannot change what others registered, or the instance is beyond
    /// what it accepts.
    pub async fn amend(&self, service: &str, instance: &Instance) -> Result<(), DriverError> {
        self.writable(instance)?;
        self.shared.driver.amend(service, instance).await
    }

    /// Writes an instance once and leaves it there: for registries where registrations have no owner.
    ///
    /// # Errors
    /// When the registration would end with its owner (nobody renews it), and as [`amend`](Self::amend).
    pub async fn put(&self, service: &str, instance: &Instance) -> Result<(), DriverError> {
        self.writable(instance)?;
        if self.capabilities().liveness {
            let message = "a registration lives only as long as somebody renews it in this kind of registry";
            return Err(DriverError::new(ErrorKind::Unsupported, message));
        }
        self.shared.driver.apply(service, instance).await.map(|_| ())
    }

    /// Takes an instance away once, whoever registered it; one that is not there was taken away already. An owner that
    /// is alive may register it again.
    ///
    /// # Errors
    /// When the registry cannot be reached, refuses or is only read.
    pub async fn remove(&self, service: &str, id: &InstanceId) -> Result<(), DriverError> {
        self.writes()?;
        self.shared.driver.withdraw(service, id).await
    }

    fn writes(&self) -> Result<(), DriverError> {
        if self.capabilities().register {
            return Ok(());
        }
        Err(DriverError::only_read())
    }

    fn writable(&self, instance: &Instance) -> Result<(), DriverError> {
        self.writes()?;
        self.shared.driver.limits().check(instance)
    }

    /// Withdraws every registration, ends every subscription and stops all tasks. What is not done within the deadline
    /// is abandoned. Returns whether everything ended in time. Later calls do nothing.
    pub async fn shutdown(&self, deadline: Duration) -> bool {
        let end = tokio::time::Instant::now() + deadline;
        let (watches, registrations) = {
            let mut tasks = self.shared.tasks();
            tasks.closed = true;
            (std::mem::take(&mut tasks.watches), std::mem::take(&mut tasks.registrations))
        };
        self.shared.stop.send_replace(true);
        let mut in_time = true;
        // The registrations' last wishes stay known until their tasks have ended.
        let registrations = registrations.into_values().map(|known| (known.task, Some(known.kept)));
        let watches = watches.into_values().map(|watch| (watch.task, None));
        for (mut task, _kept) in registrations.chain(watches) {
            if tokio::time::timeout_at(end, &mut task).await.is_err() {
                task.abort();
                in_time = false;
            }
        }
        in_time & tokio::time::timeout_at(end, self.shared.driver.close()).await.is_ok()
    }
}

impl Shared {
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        // Nothing panics while it is held.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Registrations see this and withdraw; whoever wants to wait for that calls `shutdown`.
        self.stop.send_replace(true);
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
