//! A selector that follows its registry, its rules file and the time by itself.
//!
//! The core's [`Selector`] does nothing on its own: somebody must hand it what the registry saw, let time pass and
//! replace its rules. [`LiveSelector`] owns the one task that does this, with these promises:
//!
//! - A bad edit of the rules file changes nothing. The last good rules stay in force and the refusal shows in
//!   [`Status::rules`], in one log line and in the metrics.
//! - A registry that goes away, a push that would empty the list, an instance that keeps failing: each shows in
//!   [`Status`] and in one log line when it begins and one when it ends, never per pick.
//! - While nothing happens the task sleeps. Only rules that read the request, and ejection, need to look every
//!   50 ms whether picks left work behind.
//! - The task ends with [`LiveSelector::shutdown`], or when the last clone of the handle is dropped. Picks go on from
//!   what was known last.
//!
//! When not to use it: where instances come from no registry, drive a [`Selector`] directly.

mod builder;
mod changes;
mod rules;
mod task;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use metaroute_core::{
    Context, Distribution, Explanation, Freshness, Hold, InstanceId, Metrics, NoPick, NoPickReason, OwnedPick, Picker,
    Request, RequestSlot, Selector,
};
use metaroute_registry::{DriverError, State};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use builder::ServiceBuilder;
pub use rules::{Rules, RulesError};

use crate::connection::Connection;
use rules::{Overlay, Watched};

/// A selector that is kept up to date. Clones share everything; when the last one is dropped the task behind it ends.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use metaroute::{Connection, Instance, Memory, Outcome, Registry};
///
/// let memory = Memory::new();
/// memory.register("orders", Instance::new("10.0.0.1:80".parse()?).with_meta("version", "2.2"))?;
/// memory.register("orders", Instance::new("10.0.0.2:80".parse()?).with_meta("version", "2.10"))?;
///
/// let connection = Connection::new(Registry::new(memory));
/// let orders = connection.service("orders").rules("version >= 2.3").start().await?;
/// orders.ready(Duration::from_secs(5)).await?;
///
/// let pick = orders.select(&())?;
/// assert_eq!(pick.instance().address.to_string(), "10.0.0.2:80");
/// pick.complete(Outcome::Success, Duration::from_millis(3));
/// assert!(orders.shutdown(Duration::from_secs(1)).await);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LiveSelector {
    inner: Arc<Inner>,
}

struct Inner {
    connection: Connection,
    selector: Selector,
    /// Whether picks of the convenient form are explained in the log.
    explains: bool,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// What the task tells its handles.
struct Shared {
    service: Box<str>,
    /// What durations given to the selector count from.
    epoch: Instant,
    /// The published revision, for those who wait for a change.
    revision: watch::Sender<u64>,
    /// Request slots by key, sorted, so that making a request takes no lock.
    slots: ArcSwap<Vec<(String, RequestSlot)>>,
    /// By rule: whether a pick of the convenient form fell back since the task last looked. The core's sums may lag by
    /// some hundred picks, which is minutes for a quiet caller.
    fell: ArcSwap<Vec<AtomicBool>>,
    /// What routes over this selector did.
    #[cfg(any(feature = "tower", feature = "metrics"))]
    routed: Routed,
    state: Mutex<Progress>,
}

/// What all routes over one selector did, for the metrics.
#[cfg(any(feature = "tower", feature = "metrics"))]
#[derive(Debug, Default)]
pub(crate) struct Routed {
    pub(crate) requests: std::sync::atomic::AtomicU64,
    pub(crate) moved: std::sync::atomic::AtomicU64,
    pub(crate) refused: std::sync::atomic::AtomicU64,
}

/// What the task knows besides the selector.
#[derive(Clone, Debug, Default)]
struct Progress {
    registry: State,
    error: Option<DriverError>,
    rules: RulesStatus,
    fallbacks: Vec<String>,
}

/// How rules reloading is going. Everything but `file` stays as it is where rules come from no file.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RulesStatus {
    /// The watched file; `None` where rules were given as data.
    pub file: Option<PathBuf>,
    /// Edits that took effect since the start.
    pub reloads: u64,
    /// Edits that were refused since the start.
    pub rejected: u64,
    /// Why what the file says now is not in force; `None` while it is.
    pub error: Option<RulesError>,
}

/// The state of a live selector at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// How far the registry's word can be trusted.
    pub registry: State,
    /// Why it cannot be trusted, where there is a reason.
    pub error: Option<DriverError>,
    /// Why the latest push is being held back, if it is.
    pub held: Option<Hold>,
    /// Revision of the current snapshot.
    pub revision: u64,
    /// Instances in it.
    pub instances: usize,
    /// How many of them are usable: enabled, healthy, not ejected, weight above 0.
    pub usable: usize,
    /// How many are ejected for their failures.
    pub ejected: usize,
    /// How rules reloading is going.
    pub rules: RulesStatus,
    /// Names of the rules that fall back or are relaxed at present, in the order of the rules.
    pub fallbacks: Vec<String>,
    /// Whether the task still runs; `false` after a shutdown.
    pub running: bool,
}

/// No instance was there in time.
#[derive(Clone, Debug, thiserror::Error)]
#[error("service `{service}` is not ready after {waited:?}: {reason}")]
#[non_exhaustive]
pub struct NotReady {
    /// The service.
    pub service: String,
    /// How long it was waited for.
    pub waited: Duration,
    /// What is missing.
    pub reason: NoPickReason,
    /// What the registry's trouble is, if it has any.
    #[source]
    pub source: Option<DriverError>,
}

/// What the builder made.
struct Start {
    connection: Connection,
    service: Box<str>,
    selector: Selector,
    watched: Option<Watched>,
    overlay: Overlay,
    explains: bool,
}

impl LiveSelector {
    fn start(start: Start) -> Self {
        let Start { connection, service, selector, watched, overlay, explains } = start;
        let rules = RulesStatus { file: watched.as_ref().map(|w| w.path().to_owned()), ..RulesStatus::default() };
        let shared = Arc::new(Shared {
            service,
            epoch: Instant::now(),
            revision: watch::Sender::new(selector.revision()),
            slots: ArcSwap::default(),
            fell: ArcSwap::default(),
            #[cfg(any(feature = "tower", feature = "metrics"))]
            routed: Routed::default(),
            state: Mutex::new(Progress { rules, ..Progress::default() }),
        });
        shared.read_rules(&selector);
        let stop = watch::Sender::new(false);
        let subscription = connection.registry().subscribe(&shared.service);
        let task = task::start(selector.clone(), Arc::clone(&shared), subscription, watched, overlay, stop.subscribe());
        Self { inner: Arc::new(Inner { connection, selector, explains, shared, stop, task: Mutex::new(Some(task)) }) }
    }

    /// Name of the service.
    pub fn service(&self) -> &str {
        &self.inner.shared.service
    }

    /// Waits until a request can get an instance: the registry has answered and, where no rule reads the request, the
    /// rules leave somebody; where one does, some instance is usable.
    ///
    /// # Errors
    /// [`NotReady`] with what is missing when the time is over. The selector stays live.
    pub async fn ready(&self, timeout: Duration) -> Result<(), NotReady> {
        let mut revisions = self.inner.shared.revision.subscribe();
        let wait = async {
            while self.unready().is_some() {
                if revisions.changed().await.is_err() {
                    // The sender lives in what this handle holds.
                    std::future::pending::<()>().await;
                }
            }
        };
        if tokio::time::timeout(timeout, wait).await.is_ok() {
            return Ok(());
        }
        match self.unready() {
            None => Ok(()),
            Some(reason) => Err(NotReady {
                service: self.service().to_owned(),
                waited: timeout,
                reason,
                source: self.inner.shared.state().error.clone(),
            }),
        }
    }

    /// What keeps a request without values from getting an instance.
    fn unready(&self) -> Option<NoPickReason> {
        let selector = &self.inner.selector;
        if !selector.is_resolved() {
            return Some(NoPickReason::Unresolved);
        }
        if selector.depends_on_request() && self.metrics().usable > 0 {
            return None;
        }
        selector.distribution(&()).outcome.err()
    }

    /// The state now.
    pub fn status(&self) -> Status {
        let metrics = self.metrics();
        let Progress { registry, error, rules, fallbacks } = self.inner.shared.state().clone();
        Status {
            registry,
            error,
            held: metrics.held,
            revision: metrics.revision,
            instances: metrics.instances,
            usable: metrics.usable,
            ejected: metrics.ejected,
            rules,
            fallbacks,
            running: self.inner.task().as_ref().is_some_and(|task| !task.is_finished()),
        }
    }

    /// Sums and state for a metrics page. The age of the list is 0 while the registry is there to correct it.
    pub fn metrics(&self) -> Metrics {
        let mut metrics = self.inner.selector.metrics(self.inner.shared.now());
        if metrics.freshness == Freshness::Fresh {
            metrics.age = metrics.age.map(|_| Duration::ZERO);
        }
        metrics
    }

    /// A picker of its own, for one thread or task: the fastest way to pick.
    pub fn picker(&self) -> Picker {
        self.inner.selector.picker()
    }

    /// Picks an instance: the convenient form, from any thread.
    ///
    /// # Errors
    /// [`NoPick`] with the reason and the counts per stage.
    pub fn select<C: Context + ?Sized>(&self, request: &C) -> Result<OwnedPick, NoPick> {
        self.select_next(request, &[])
    }

    /// Picks an instance that is not among `tried`; see [`Selector::select_next`].
    ///
    /// # Errors
    /// [`NoPick`] with the reason and the counts per stage.
    pub fn select_next<C: Context + ?Sized>(&self, request: &C, tried: &[InstanceId]) -> Result<OwnedPick, NoPick> {
        let picked = self.inner.selector.select_next(request, tried);
        if let Ok(pick) = &picked
            && let Some(rule) = pick.reason().rule()
            && let Some(fell) = self.inner.shared.fell.load().get(rule)
        {
            fell.store(true, Ordering::Relaxed);
        }
        if self.inner.explains {
            self.explain_in_log(request, picked.as_ref());
        }
        picked
    }

    #[cold]
    fn explain_in_log<C: Context + ?Sized>(&self, request: &C, picked: Result<&OwnedPick, &NoPick>) {
        let stages: Vec<String> = self
            .inner
            .selector
            .stages(request)
            .iter()
            .map(|stage| format!("{} {} -> {}", stage.name, stage.entered, stage.left))
            .collect();
        match picked {
            Ok(pick) => {
                let (instance, reason) = (&pick.instance().id, pick.reason());
                tracing::info!(service = self.service(), %instance, %reason, ?stages, "picked");
            }
            Err(none) => tracing::info!(service = self.service(), reason = %none.reason, ?stages, "none picked"),
        }
    }

    /// Says for every instance what kept or dropped it and its exact probability.
    pub fn explain<C: Context + ?Sized>(&self, request: &C) -> Explanation {
        self.inner.selector.explain(request)
    }

    /// Exact shares by instance, without the explanation.
    pub fn distribution<C: Context + ?Sized>(&self, request: &C) -> Distribution {
        self.inner.selector.distribution(request)
    }

    /// A request with these `$req` values. Values that no rule reads are left out. Takes no lock.
    pub fn request<'a>(&self, values: impl IntoIterator<Item = (&'a str, &'a str)>) -> Request {
        let slots = self.inner.shared.slots.load();
        values.into_iter().fold(Request::default(), |request, (name, value)| {
            match slots.binary_search_by(|(key, _)| key.as_str().cmp(name)) {
                Ok(at) => request.with(slots[at].1, value),
                Err(_) => request,
            }
        })
    }

    /// The slot of a `$req` key, for a [`Context`] of your own; `None` when no rule reads it so far.
    pub fn slot(&self, name: &str) -> Option<RequestSlot> {
        let slots = self.inner.shared.slots.load();
        slots.binary_search_by(|(key, _)| key.as_str().cmp(name)).ok().map(|at| slots[at].1)
    }

    /// The selector inside. Feeding it updates or rules by hand would fight with the task.
    pub fn selector(&self) -> &Selector {
        &self.inner.selector
    }

    /// Follows the revision of the published snapshot: what to wait on to react to changes.
    pub fn revisions(&self) -> watch::Receiver<u64> {
        self.inner.shared.revision.subscribe()
    }

    #[cfg(any(feature = "tower", feature = "metrics"))]
    pub(crate) fn routed(&self) -> &Routed {
        &self.inner.shared.routed
    }

    /// A handle that keeps nothing alive.
    #[cfg(feature = "metrics")]
    pub(crate) fn downgrade(&self) -> WeakLiveSelector {
        WeakLiveSelector { inner: Arc::downgrade(&self.inner) }
    }

    /// Stops the task, for all clones, and waits for its end; where nobody else uses the connection, that is shut down
    /// too. What is not done within the deadline is aborted. Returns whether everything ended in time; a second call
    /// does nothing and returns `true`.
    ///
    /// # Panics
    /// When the task panicked, with its panic: it is joined as a thread is.
    pub async fn shutdown(&self, deadline: Duration) -> bool {
        let end = Instant::now() + deadline;
        self.inner.stop.send_replace(true);
        let task = self.inner.task().take();
        let mut in_time = true;
        if let Some(mut task) = task {
            match tokio::time::timeout_at(end, &mut task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Ok(Err(_)) => {}
                Err(_) => {
                    task.abort();
                    in_time = false;
                }
            }
            if self.inner.connection.is_last() {
                let left = end.saturating_duration_since(Instant::now());
                in_time &= self.inner.connection.shutdown(left).await;
            }
        }
        in_time
    }
}

/// A handle that keeps nothing alive.
#[cfg(feature = "metrics")]
#[derive(Clone)]
pub(crate) struct WeakLiveSelector {
    inner: std::sync::Weak<Inner>,
}

#[cfg(feature = "metrics")]
impl WeakLiveSelector {
    /// The handle, while another one is left.
    pub(crate) fn upgrade(&self) -> Option<LiveSelector> {
        self.inner.upgrade().map(|inner| LiveSelector { inner })
    }
}

#[cfg(feature = "metrics")]
impl fmt::Debug for WeakLiveSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakLiveSelector").finish_non_exhaustive()
    }
}

impl fmt::Debug for LiveSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveSelector")
            .field("service", &self.service())
            .field("registry", &self.inner.connection.url())
            .field("selector", &self.inner.selector)
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn task(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        // Nothing panics while it is held.
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(task) = self.task().take() {
            task.abort();
        }
    }
}

impl Shared {
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn state(&self) -> MutexGuard<'_, Progress> {
        // Every change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what the rules in force read and how many they are.
    fn read_rules(&self, selector: &Selector) {
        let mut slots = selector.request_keys();
        slots.sort();
        self.slots.store(Arc::new(slots));
        let fell = selector.rules().rules.iter().map(|_| AtomicBool::new(false)).collect();
        self.fell.store(Arc::new(fell));
    }
}
