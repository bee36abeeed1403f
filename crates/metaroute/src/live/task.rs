//! The one task behind a live selector.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use metaroute_core::rules::RuleSet;
use metaroute_core::{Freshness, Selector, Update};
use metaroute_registry::{ConfigError, Snapshot, State, Subscription, View};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tracing::Instrument;

use super::Shared;
use super::changes::{Difference, Said};
use super::rules::{Overlay, RulesError, Watched};

/// How often to ask whether picks left work behind, where they can: a remembered answer to build, a failure to look at.
/// A request with new values is served from the bitsets meanwhile, so nobody waits for this.
const ATTENTION_POLL: Duration = Duration::from_millis(50);

/// How often counters are read, where only they show that rules fall back.
const COUNTER_LOOK: Duration = Duration::from_secs(1);

/// Shortest pause between two ticks for one deadline: a deadline inside a merge window stays due until that ends.
const TICK_PAUSE: Duration = Duration::from_millis(10);

/// Starts the task; it ends when `stop` becomes true or its sender is dropped.
pub(super) fn start(
    selector: Selector,
    shared: Arc<Shared>,
    subscription: Subscription,
    watched: Option<Watched>,
    overlay: Overlay,
    stop: watch::Receiver<bool>,
) -> JoinHandle<()> {
    let span = tracing::info_span!("live_selector", service = %shared.service);
    // One change at a time is enough: the watcher holds the next one until this one was taken.
    let (changes, edits) = mpsc::channel(1);
    let mut task = Task {
        rules: RuleFacts::of(&selector),
        selector,
        shared,
        subscription: Some(subscription),
        overlay,
        watcher: JoinSet::new(),
        edits: watched.is_some().then_some(edits),
        served: None,
        offered: None,
        said: Said::default(),
    };
    tokio::spawn(
        async move {
            if let Some(watched) = watched {
                task.watcher.spawn(watched.run(changes));
            }
            task.run(stop).await;
        }
        .instrument(span),
    )
}

/// What the task must know of the rules in force.
#[derive(Clone, Copy)]
struct RuleFacts {
    /// Whether only counters show that a rule falls back.
    counts: bool,
    /// Whether picks may leave work behind.
    polls: bool,
}

impl RuleFacts {
    fn of(selector: &Selector) -> Self {
        let set = selector.rules();
        let request = selector.depends_on_request();
        Self { counts: request && !set.rules.is_empty(), polls: request || set.ejection.is_some() }
    }
}

struct Task {
    rules: RuleFacts,
    selector: Selector,
    shared: Arc<Shared>,
    /// `None` after the registry was shut down.
    subscription: Option<Subscription>,
    overlay: Overlay,
    /// Owns the rules watcher, which ends with it.
    watcher: JoinSet<()>,
    edits: Option<mpsc::Receiver<Result<RuleSet, ConfigError>>>,
    /// The list that serves.
    served: Option<Arc<Snapshot>>,
    /// The list that came last; another one than `served` while it is held.
    offered: Option<Arc<Snapshot>>,
    said: Said,
}

enum Event {
    Stop,
    View(View),
    /// The registry was shut down.
    Closed,
    Edit(Result<RuleSet, ConfigError>),
    Time,
}

impl Task {
    async fn run(&mut self, mut stop: watch::Receiver<bool>) {
        let mut deadline = self.settle();
        loop {
            let event = tokio::select! {
                _ = stop.wait_for(|stop| *stop) => Event::Stop,
                event = self.event(deadline) => event,
            };
            match event {
                Event::Stop => return,
                Event::View(view) => self.view(view),
                Event::Closed => self.closed(),
                Event::Edit(edit) => self.edit(edit),
                Event::Time => {}
            }
            deadline = self.settle();
        }
    }

    /// Lets time pass, tells the handles and the log what is new, and returns when to come back.
    fn settle(&mut self) -> Option<Instant> {
        let now = self.shared.now();
        let tick = self.selector.tick(now).map(|at| at.max(now + TICK_PAUSE));
        let revision = self.selector.revision();
        let counts = self.rules.counts;
        let is_new = self.shared.revision.send_if_modified(|last| std::mem::replace(last, revision) != revision);
        if is_new || counts {
            let metrics = self.selector.metrics(now);
            if metrics.held.is_none() {
                self.serve();
            }
            let fell = self.shared.fell.load();
            let fell = |rule: usize| fell.get(rule).is_some_and(|fell| fell.swap(false, Ordering::Relaxed));
            let active = self.said.look(&self.shared.service, &self.selector, &metrics, fell, now);
            self.shared.state().fallbacks = active;
        }
        let look = counts.then(|| now + COUNTER_LOOK);
        [tick, look].into_iter().flatten().min().map(|at| self.shared.epoch + at)
    }

    /// Waits for whatever comes first. Dropping the future loses nothing.
    async fn event(&mut self, deadline: Option<Instant>) -> Event {
        let Self { rules, selector, subscription, edits, .. } = self;
        tokio::select! {
            view = async {
                match subscription {
                    Some(subscription) => subscription.changed().await,
                    None => std::future::pending().await,
                }
            } => view.map_or(Event::Closed, Event::View),
            Some(edit) = async {
                match edits {
                    Some(edits) => edits.recv().await,
                    None => std::future::pending().await,
                }
            } => Event::Edit(edit),
            () = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            } => Event::Time,
            () = async {
                loop {
                    // Pause first: under a storm of failures somebody always wants a tick.
                    tokio::time::sleep(ATTENTION_POLL).await;
                    if selector.wants_tick() {
                        break;
                    }
                }
            }, if rules.polls => Event::Time,
        }
    }

    fn view(&mut self, view: View) {
        let now = self.shared.now();
        {
            let mut state = self.shared.state();
            state.registry = view.state;
            state.error = view.error.clone();
        }
        let is_new = match (&view.snapshot, &self.offered) {
            (Some(new), Some(old)) => !Arc::ptr_eq(new, old),
            (Some(_), None) => true,
            (None, _) => false,
        };
        if let Some(snapshot) = view.snapshot.filter(|_| is_new || view.state == State::Fresh) {
            // Also when it is the same as before: that confirms it.
            self.selector.apply(Update::Snapshot(snapshot.instances.clone()), now);
            self.offered = Some(snapshot);
        }
        match view.state {
            State::UnknownService => {
                self.selector.apply(Update::UnknownService, now);
                self.offered = None;
            }
            State::Stale => self.doubt(Freshness::Stale, now),
            State::Unreachable => self.doubt(Freshness::Unreachable, now),
            _ => {}
        }
    }

    /// The registry confirmed the list up to now, and no longer does.
    fn doubt(&self, freshness: Freshness, now: Duration) {
        if self.selector.metrics(now).freshness == Freshness::Fresh && self.selector.is_resolved() {
            self.selector.set_freshness(Freshness::Fresh, now);
        }
        self.selector.set_freshness(freshness, now);
    }

    fn closed(&mut self) {
        self.subscription = None;
        self.shared.state().registry = State::Unreachable;
        self.doubt(Freshness::Unreachable, self.shared.now());
        tracing::warn!(service = %self.shared.service, "the registry was shut down, the last list stays");
    }

    /// The offered list serves now: says how it differs from the one before.
    fn serve(&mut self) {
        let same = match (&self.served, &self.offered) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if same {
            return;
        }
        let list = |snapshot: &Option<Arc<Snapshot>>| snapshot.as_ref().map_or(&[][..], |s| &s.instances).to_vec();
        let (old, new) = (list(&self.served), list(&self.offered));
        let difference = Difference::between(&old, &new);
        if !difference.is_none() {
            let Difference { added, removed, changed } = difference;
            tracing::info!(service = %self.shared.service, added, removed, changed, total = new.len(), "instances changed");
        }
        self.served = self.offered.clone();
    }

    fn edit(&mut self, edit: Result<RuleSet, ConfigError>) {
        let service = &*self.shared.service;
        let result = edit.map_err(|error| RulesError::File(Box::new(error))).and_then(|set| {
            let set = self.overlay.over(set);
            let same = set == self.selector.rules();
            if !same {
                self.selector.set_rules(set, self.shared.now()).map_err(|error| RulesError::Unfit(Box::new(error)))?;
                self.shared.read_rules(&self.selector);
                self.rules = RuleFacts::of(&self.selector);
                self.said.rules_changed();
            }
            Ok(same)
        });
        let mut state = self.shared.state();
        match result {
            Ok(true) => {
                if state.rules.error.take().is_some() {
                    tracing::info!(service, "the rules file says again what is in force");
                }
            }
            Ok(false) => {
                state.rules.error = None;
                state.rules.reloads += 1;
                tracing::info!(service, rules = self.selector.rules().rules.len(), "rules reloaded");
            }
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::warn!(service, %error, cause = source, "rules rejected, the last good ones stay");
                state.rules.error = Some(error);
                state.rules.rejected += 1;
            }
        }
    }
}
