//! Following one service.

use std::sync::Arc;
use std::time::Duration;

use metaroute_core::resilience::backoff::{Backoff, Policy};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::driver::{Cursor, Driver, DriverError, ErrorKind, Seen, SeenState, Snapshot};

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
}

impl View {
    /// How long the list has not been confirmed; zero while it is fresh.
    pub fn age(&self, now: Instant) -> Duration {
        match (self.state, self.since) {
            (State::Stale | State::Unreachable, Some(since)) => now.saturating_duration_since(since),
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

/// The task behind all subscriptions to one service.
pub(super) struct Follow {
    pub(super) service: Box<str>,
    pub(super) driver: Arc<dyn Driver>,
    pub(super) policy: Policy,
    pub(super) view: watch::Sender<View>,
    pub(super) stop: watch::Receiver<bool>,
}

impl Follow {
    /// Runs until the registry stops or `unwatched` says that nobody is interested any more.
    pub(super) async fn run(mut self, unwatched: impl Fn() -> bool) {
        let mut backoff = Backoff::new(self.policy);
        let started = Instant::now();
        let mut cursor: Option<Cursor> = None;
        loop {
            let seen = tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => return,
                () = self.view.closed() => {
                    if unwatched() {
                        return;
                    }
                    continue;
                }
                seen = self.driver.watch(&self.service, cursor.as_ref()) => seen,
            };
            match seen {
                Ok(seen) => {
                    backoff.reset();
                    cursor = Some(seen.cursor.clone());
                    self.publish(seen);
                }
                Err(error) => {
                    let wait = backoff.on_failure(error.failure(), started.elapsed(), &mut rand::rng());
                    // A watch is never given up: what is permanent today may be allowed or mended tomorrow.
                    let wait = wait.unwrap_or_else(|_| self.policy.wait_max());
                    let state = if error.kind() == ErrorKind::Unreachable { State::Unreachable } else { State::Stale };
                    self.degrade(state, error);
                    tokio::select! {
                        _ = self.stop.wait_for(|stop| *stop) => return,
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        }
    }

    fn publish(&self, Seen { cursor, state }: Seen) {
        match state {
            SeenState::Service(snapshot) => {
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
                    true
                });
            }
            SeenState::UnknownService => {
                self.view.send_if_modified(|view| {
                    view.cursor = Some(cursor);
                    if view.state == State::UnknownService {
                        return false;
                    }
                    self.log(view.state, State::UnknownService, None);
                    view.since = Some(Instant::now());
                    view.state = State::UnknownService;
                    view.snapshot = None;
                    view.error = None;
                    true
                });
            }
            SeenState::Unusable(error) => self.degrade(State::Stale, error),
            SeenState::Unreachable(error) => self.degrade(State::Unreachable, error),
        }
    }

    /// Keeps what is known and says that it is no longer confirmed.
    fn degrade(&self, state: State, error: DriverError) {
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
            view.state = state;
            view.error = Some(error);
            true
        });
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
