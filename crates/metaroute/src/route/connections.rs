//! Connections by instance: one per incarnation, a bounded number of them, dialled by one caller while the others wait
//! for what comes of it.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metaroute_core::{Address, Incarnation, Instance, InstanceId};
use tokio::time::Instant;

use super::BoxError;
use crate::live::LiveSelector;

/// How often connections to instances that are gone are looked for, at most. It reads the whole list.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Connections<S> {
    state: Mutex<State<S>>,
    max: usize,
    /// Revision at the last look for instances that are gone.
    followed: AtomicU64,
}

struct State<S> {
    entries: HashMap<InstanceId, Entry<S>>,
    /// Grows with every use, so that the largest is the latest.
    uses: u64,
    followed_at: Option<Instant>,
}

struct Entry<S> {
    incarnation: Incarnation,
    address: Address,
    /// The connection and its number.
    connection: Option<(S, u64)>,
    dial: Arc<Dial>,
    used: u64,
}

/// The place where callers that need the same connection meet.
#[derive(Default)]
pub(super) struct Dial {
    ended: AtomicU64,
    /// What came of the last dial that failed.
    turn: tokio::sync::Mutex<Option<SharedError>>,
}

/// An error that several callers get.
#[derive(Clone, Debug)]
struct SharedError(Arc<dyn Error + Send + Sync>);

impl std::fmt::Display for SharedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

impl Error for SharedError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl<S: Clone> Connections<S> {
    pub(super) fn kept(&self, instance: &Instance) -> Result<(S, u64), Arc<Dial>> {
        let mut state = self.state();
        state.uses += 1;
        let used = state.uses;
        match state.entries.get_mut(&instance.id) {
            Some(entry) if entry.is_for(instance) => {
                entry.used = used;
                entry.connection.clone().ok_or_else(|| Arc::clone(&entry.dial))
            }
            _ => {
                let dial = Arc::new(Dial::default());
                let entry = Entry {
                    incarnation: instance.incarnation.clone(),
                    address: instance.address.clone(),
                    connection: None,
                    dial: Arc::clone(&dial),
                    used,
                };
                let old = state.entries.insert(instance.id.clone(), entry);
                let rested = (state.entries.len() > self.max).then(|| state.take_rested());
                drop(state);
                // Closing may do anything; not under the lock.
                drop((old, rested));
                Err(dial)
            }
        }
    }

    /// Makes the connection, or takes part in somebody else's attempt. One that began before ours may end it: if it
    /// failed, dialling again for everybody who waits would take one timeout each.
    pub(super) async fn dial<F>(
        &self,
        instance: &Instance,
        dial: &Dial,
        connect: impl FnOnce() -> F,
    ) -> Result<S, BoxError>
    where
        F: Future<Output = Result<S, BoxError>>,
    {
        let before = dial.ended.load(Ordering::Acquire);
        let mut turn = dial.turn.lock().await;
        if dial.ended.load(Ordering::Acquire) != before {
            if let Ok((connection, _)) = self.kept(instance) {
                return Ok(connection);
            }
            if let Some(error) = &*turn {
                return Err(Box::new(error.clone()));
            }
        }
        let result = connect().await;
        dial.ended.fetch_add(1, Ordering::Release);
        match result {
            Ok(connection) => {
                *turn = None;
                self.keep(instance, connection.clone());
                Ok(connection)
            }
            Err(error) => {
                let error = SharedError(error.into());
                *turn = Some(error.clone());
                Err(Box::new(error))
            }
        }
    }
}

impl<S> Connections<S> {
    pub(super) fn new(max: usize) -> Self {
        let state = State { entries: HashMap::new(), uses: 0, followed_at: None };
        Self { state: Mutex::new(state), max, followed: AtomicU64::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        // Entries are put and taken whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections kept now.
    pub(super) fn len(&self) -> usize {
        self.state().entries.values().filter(|entry| entry.connection.is_some()).count()
    }

    fn keep(&self, instance: &Instance, connection: S) {
        let mut state = self.state();
        state.uses += 1;
        let number = state.uses;
        // Gone when it was pushed out meanwhile, and another's when the instance was born again: used once then.
        if let Some(entry) = state.entries.get_mut(&instance.id).filter(|entry| entry.is_for(instance)) {
            let old = entry.connection.replace((connection, number));
            drop(state);
            drop(old);
        }
    }

    /// Drops the connection of an instance; with a number, only that one.
    pub(super) fn forget(&self, instance: &Instance, number: Option<u64>) {
        let mut state = self.state();
        let entry = state.entries.get_mut(&instance.id).filter(|entry| entry.is_for(instance));
        let old = entry.and_then(|entry| {
            let is_it = entry.connection.as_ref().is_some_and(|(_, made)| number.is_none_or(|number| number == *made));
            if is_it { entry.connection.take() } else { None }
        });
        drop(state);
        drop(old);
    }

    /// Drops connections to instances that are gone or were born again.
    pub(super) fn follow(&self, live: &LiveSelector) {
        let revision = live.selector().revision();
        if self.followed.load(Ordering::Relaxed) == revision {
            return;
        }
        let mut state = self.state();
        if state.entries.is_empty() || state.followed_at.is_some_and(|at| at.elapsed() < FOLLOW_EVERY) {
            return;
        }
        state.followed_at = Some(Instant::now());
        self.followed.store(revision, Ordering::Relaxed);
        let listed = live.selector().instances();
        let listed: HashSet<_> = listed.iter().map(|i| (&i.id, &i.incarnation, &i.address)).collect();
        let gone: Vec<InstanceId> = state
            .entries
            .iter()
            .filter(|(id, entry)| !listed.contains(&(*id, &entry.incarnation, &entry.address)))
            .map(|(id, _)| id.clone())
            .collect();
        let gone: Vec<_> = gone.iter().map(|id| state.entries.remove(id)).collect();
        drop(state);
        drop(gone);
    }
}

impl<S> State<S> {
    /// Takes out the entry that rested longest.
    fn take_rested(&mut self) -> Option<Entry<S>> {
        let id = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(id, _)| id.clone())?;
        self.entries.remove(&id)
    }
}

impl<S> Entry<S> {
    fn is_for(&self, instance: &Instance) -> bool {
        self.incarnation == instance.incarnation && self.address == instance.address
    }
}
