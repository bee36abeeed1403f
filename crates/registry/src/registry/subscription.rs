//! Following one service.

use std::sync::Arc;
use std::time::Duration;

use metaroute_core::resilience::backoff::{Backoff, Failure, Policy};
use tokio::sync::watch;
use tokio::time::Instant;

use super::cache::{Cache, Cached};
use crate::driver::{Answer, Cursor, Driver, DriverError, ErrorKind, Seen, SeenState, Snapshot};

/// How far a view can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// The registry has not answered yet.
    #[default]
    Unresolved,
    /// The registry says so.
    Fresh,
    /// The registry is there, but what it says cannot be used (a bad edit, a refused login); the last good list stays.
    Stale,
    /// The registry cannot be reached; the last good list stays.
    Unreachable,
    /// The registry answers and knows no such service.
    UnknownService,
}

/// What is known about a service.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// How far the rest can be trusted.
    pub state: State,
    /// The last good list; `None` before the first, and while the registry knows no such service.
    pub snapshot: Option<Arc<Snapshot>>,
    /// Where in the registry's history that is.
    pub cursor: Option<Cursor>,
    /// Why the state is not fresh, where there is a reason.
    pub error: Option<DriverError>,
    /// Since when the state is what it is; `None` before the first answer.
    pub since: Option<Instant>,
    /// For a list that an earlier process left on disk ([`Options::cache_dir`](super::Options::cache_dir)): how old it
    /// was when it was read. `None` for one that the registry gave to this process.
    pub kept: Option<Duration>,
}

impl View {
    /// How long the list has not been confirmed; zero while it is fresh.
    pub fn age(&self, now: Instant) -> Duration {
        match (self.state, self.since) {
            (State::Stale | State::Unreachable, Some(since)) => {
                now.saturating_duration_since(since).saturating_add(self.kept.unwrap_or_default())
            }
            _ => Duration::ZERO,
        }
    }
}

/// The latest view of a service. Clones follow on their own.
#[derive(Clone, Debug)]
pub struct Subscription {
    view: watch::Receiver<View>,
}

/// The registry was shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the registry was shut down")]
pub struct Closed;

impl Subscription {
    pub(super) fn new(mut view: watch::Receiver<View>) -> Self {
        // Where another subscription got the first answer already, this one has not seen it.
        if view.borrow().state != State::Unresolved {
            view.mark_changed();
        }
        Self { view }
    }

    /// The view now.
    pub fn current(&self) -> View {
        self.view.borrow().clone()
    }

    /// Counts the current view as returned.
    pub(crate) fn mark_seen(&mut self) {
        self.view.mark_unchanged();
    }

    /// Waits for a view that was not returned yet; the first call returns the first answer of the registry.
    ///
    /// # Errors
    /// When the registry was shut down. Dropping the future loses nothing.
    pub async fn changed(&mut self) -> Result<View, Closed> {
        self.view.changed().await.map_err(|_| Closed)?;
        Ok(self.view.borrow_and_update().clone())
    }

    /// Waits for a view that satisfies a condition; the current one may.
    ///
    /// # Errors
    /// When the registry was shut down.
    pub async fn wait_for(&mut self, condition: impl FnMut(&View) -> bool) -> Result<View, Closed> {
        self.view.wait_for(condition).await.map(|view| view.clone()).map_err(|_| Closed)
    }
}

/// A registry that says nothing for this long at the start is as good as down: what is kept on disk serves meanwhile.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// An answer that came at once and says what was known is worth this pause before the next question: a driver that
/// should wait for a change and does not must not keep a processor busy.
const IDLE_PAUSE: Duration = Duration::from_millis(100);

/// Changes are written to disk at most this often.
const KEEP_EVERY: Duration = Duration::from_secs(1);

/// How often the time of an unchanged list is written anew. A process that is killed leaves a list that looks at most this
/// much older than it is.
const CONFIRM_EVERY: Duration = Duration::from_secs(600);

/// The task behind all subscriptions to one service.
pub(super) struct Follow {
    pub(super) service: Box<str>,
    pub(super) driver: Arc<dyn Driver>,
    pub(super) policy: Policy,
    pub(super) cache: Option<Cache>,
    pub(super) view: watch::Sender<View>,
    pub(super) stop: watch::Receiver<bool>,
}

/// Why waiting for the registry ended.
enum Event {
    Stop,
    /// Nobody is interested any more, it seems.
    Unwatched,
    Seen(Result<Seen, DriverError>),
    /// The time for something on disk has come.
    Due,
}

impl Follow {
    /// Runs until the registry stops or `unwatched` says that nobody is interested any more.
    pub(super) async fn run(mut self, unwatched: impl Fn() -> bool) {
        self.follow(unwatched).await;
        self.keep().await;
    }

    async fn follow(&mut self, unwatched: impl Fn() -> bool) {
        let mut backoff = Backoff::new(self.policy);
        let started = Instant::now();
        let (driver, service) = (Arc::clone(&self.driver), self.service.clone());
        let mut cursor: Option<Cursor> = None;
        let mut written = None;
        let mut due = self.cache.as_ref().map(|_| started + SILENCE_MAX);
        loop {
            let asked = Instant::now();
            let after = cursor.clone();
            let mut watch = driver.watch(&service, after.as_ref());
            let seen = loop {
                match self.event(Some(&mut watch), due).await {
                    Event::Stop => return,
                    Event::Unwatched if unwatched() => return,
                    Event::Unwatched => {}
                    Event::Seen(seen) => break seen,
                    Event::Due => due = self.due(&mut written).await,
                }
            };
            let pause = match seen {
                Ok(seen) => {
                    backoff.reset();
                    cursor = Some(seen.cursor.clone());
                    let news = self.publish(seen).await;
                    if news && self.cache.is_some() {
                        let now = Instant::now();
                        due = Some(written.map_or(now, |written: Instant| now.max(written + KEEP_EVERY)));
                    }
                    (!news && asked.elapsed() < IDLE_PAUSE).then_some(IDLE_PAUSE)
                }
                Err(error) => {
                    // An answer that makes no sense is rarely the registry's: a proxy before it, or a server that is
                    // just starting.
                    let failure = match error.kind() {
                        ErrorKind::Invalid => Failure::Transient,
                        _ => error.failure(),
                    };
                    let wait = backoff.on_failure(failure, started.elapsed(), &mut rand::rng());
                    // A watch is never given up: what is permanent today may be allowed or mended tomorrow.
                    let wait = wait.unwrap_or_else(|_| self.policy.wait_max());
                    let state = if error.kind() == ErrorKind::Unreachable { State::Unreachable } else { State::Stale };
                    self.degrade(state, error).await;
                    // A list that did not change meanwhile must be confirmed, too: asked with the cursor, a registry
                    // that is back would say nothing before the next change.
                    cursor = None;
                    Some(wait)
                }
            };
            let Some(end) = pause.map(|pause| Instant::now() + pause) else { continue };
            while Instant::now() < end {
                match self.event(None, Some(due.map_or(end, |due| due.min(end)))).await {
                    Event::Stop => return,
                    Event::Unwatched if unwatched() => return,
                    Event::Due if due.is_some_and(|due| due <= Instant::now()) => due = self.due(&mut written).await,
                    _ => {}
                }
            }
        }
    }

    /// Waits for whatever comes first. Dropping the future loses nothing.
    async fn event(&mut self, watch: Option<&mut Answer<'_, Seen>>, due: Option<Instant>) -> Event {
        tokio::select! {
            _ = self.stop.wait_for(|stop| *stop) => Event::Stop,
            () = self.view.closed() => Event::Unwatched,
            seen = async {
                match watch {
                    Some(watch) => watch.await,
                    None => std::future::pending().await,
                }
            } => Event::Seen(seen),
            () = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            } => Event::Due,
        }
    }

    /// The time for something on disk has come; returns when it comes again.
    async fn due(&mut self, written: &mut Option<Instant>) -> Option<Instant> {
        if self.view.borrow().state == State::Unresolved {
            let message = format!("the registry has not answered for {} s", SILENCE_MAX.as_secs());
            let kept = self.kept().await?;
            self.degrade_to(State::Unreachable, DriverError::new(ErrorKind::Unreachable, message), Some(kept));
        } else {
            self.keep().await;
            *written = Some(Instant::now());
        }
        Some(Instant::now() + CONFIRM_EVERY)
    }

    /// Writes the list to disk, if it is one that the registry stands by. An empty one would help nobody who starts
    /// while the registry is down.
    async fn keep(&self) {
        let Some(cache) = &self.cache else { return };
        let snapshot = {
            let view = self.view.borrow();
            let fresh = view.state == State::Fresh;
            view.snapshot.clone().filter(|snapshot| fresh && !snapshot.instances.is_empty())
        };
        if let Some(snapshot) = snapshot {
            cache.save(&self.service, snapshot).await;
        }
    }

    /// What an earlier process left on disk.
    async fn kept(&self) -> Option<Cached> {
        self.cache.as_ref()?.load(&self.service).await
    }

    /// Returns whether anything is new.
    async fn publish(&self, Seen { cursor, state }: Seen) -> bool {
        match state {
            SeenState::Service(mut snapshot) => {
                // Order means nothing, so another order is no news.
                snapshot.instances.sort_by(|a, b| a.id.cmp(&b.id));
                self.view.send_if_modified(|view| {
                    let same = view.state == State::Fresh && view.snapshot.as_deref() == Some(&snapshot);
                    view.cursor = Some(cursor);
                    if same {
                        return false;
                    }
                    self.log(view.state, State::Fresh, None);
                    if view.state != State::Fresh {
                        view.since = Some(Instant::now());
                    }
                    view.state = State::Fresh;
                    view.snapshot = Some(Arc::new(snapshot));
                    view.error = None;
                    view.kept = None;
                    true
                })
            }
            SeenState::UnknownService => self.view.send_if_modified(|view| {
                view.cursor = Some(cursor);
                if view.state == State::UnknownService {
                    return false;
                }
                self.log(view.state, State::UnknownService, None);
                view.since = Some(Instant::now());
                view.state = State::UnknownService;
                view.snapshot = None;
                view.error = None;
                view.kept = None;
                true
            }),
            SeenState::Unusable(error) => self.degrade(State::Stale, error).await,
            SeenState::Unreachable(error) => self.degrade(State::Unreachable, error).await,
        }
    }

    /// Keeps what is known and says that it is no longer confirmed. Where nothing is known yet, what is kept on disk is.
    async fn degrade(&self, state: State, error: DriverError) -> bool {
        // The registry stood by the list until now.
        self.keep().await;
        let unresolved = self.view.borrow().state == State::Unresolved;
        let kept = if unresolved { self.kept().await } else { None };
        self.degrade_to(state, error, kept)
    }

    fn degrade_to(&self, state: State, error: DriverError, kept: Option<Cached>) -> bool {
        self.view.send_if_modified(|view| {
            let same_error = view.error.as_ref().is_some_and(|old| old.to_string() == error.to_string());
            if view.state == state && same_error {
                return false;
            }
            self.log(view.state, state, Some(&error));
            // The list has been unconfirmed since it last was fresh, whatever went wrong in between.
            if !matches!(view.state, State::Stale | State::Unreachable) {
                view.since = Some(Instant::now());
            }
            if let Some(kept) = kept {
                let age = kept.age.as_secs();
                tracing::warn!(service = %self.service, age, "the list kept on disk serves until the registry answers");
                view.snapshot = Some(Arc::new(kept.snapshot));
                view.kept = Some(kept.age);
            }
            view.state = state;
            view.error = Some(error);
            true
        })
    }

    /// One line per change of state.
    fn log(&self, from: State, to: State, error: Option<&DriverError>) {
        if from == to {
            return;
        }
        match error {
            Some(error) => tracing::warn!(service = %self.service, state = ?to, %error, "registry state changed"),
            None => tracing::info!(service = %self.service, state = ?to, "registry state changed"),
        }
    }
}
