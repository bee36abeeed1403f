//! Repeats failed background calls until they succeed, without anybody waiting for them.
//!
//! Registering, deregistering, subscribing and reporting must succeed in the end, but the caller cannot stand still
//! until they do. A [`Failback`] queue takes such a call over: it waits by the task's own
//! [back-off](metaroute_core::resilience::backoff), tries again and tells a hook what happened.
//!
//! The failback queues of the field have four faults that this one is built around:
//!
//! - They look at the head of one list only, so a task that waits long, or an attempt that hangs, holds up everybody
//!   behind it. Here every task has its own due time, attempts run side by side up to [`Config::concurrency`], and each
//!   is cut off after [`Config::attempt_timeout`].
//! - They pile up contradicting calls for one thing. Here a newer task replaces the older one of the same key, and two
//!   attempts of one key never overlap: a deregistration cannot be overtaken by the registration it follows.
//! - They drop a task with a log line when they are full. Here [`SubmitError::Full`] tells the caller.
//! - They forget what is queued on shutdown. Here [`Failback::shutdown`] gives everything one last attempt and returns
//!   what is left.
//!
//! # When not to use it
//!
//! Not for calls somebody waits for; those retry in place under a [retry budget](metaroute_core::resilience::budget) or
//! fail. Not for calls that must survive the process: the queue is memory.

mod worker;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metaroute_core::resilience::backoff::Backoff;
pub use metaroute_core::resilience::backoff::{Failure, GiveUp, Policy};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::Instrument;

/// What names a task. At most one task per key is queued.
pub type Key = Arc<str>;

/// The limits of a queue.
#[derive(Debug, Clone)]
pub struct Config {
    /// How each task waits between attempts. Default: 1 s × 1.5 up to 60 s, ±50 %, for ever.
    pub policy: Policy,
    /// The most tasks queued or under way at a time. Default: 1,000.
    pub capacity: NonZeroUsize,
    /// The most attempts under way at a time. Default: 16.
    pub concurrency: NonZeroUsize,
    /// An attempt that takes longer is dropped and counts as a transient failure. Default: 30 s.
    pub attempt_timeout: Duration,
    /// Makes the waits repeatable. Default: `None`, a fresh seed.
    pub seed: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            capacity: NonZeroUsize::new(1000).expect("1000 is not zero"),
            concurrency: NonZeroUsize::new(16).expect("16 is not zero"),
            attempt_timeout: Duration::from_secs(30),
            seed: None,
        }
    }
}

/// A failed attempt: what kind of failure, and why.
#[derive(Debug)]
pub struct TaskError {
    failure: Failure,
    source: Box<dyn Error + Send + Sync>,
}

impl TaskError {
    /// An error with a kind of its own.
    pub fn new(failure: Failure, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { failure, source: source.into() }
    }

    /// An error that another attempt may cure.
    pub fn transient(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Failure::Transient, source)
    }

    /// An error that no further attempt can cure.
    pub fn permanent(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Failure::Permanent, source)
    }

    /// The kind of failure.
    pub const fn failure(&self) -> Failure {
        self.failure
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.failure {
            Failure::Permanent => "permanent failure",
            Failure::Transient | Failure::After(_) => "transient failure",
        })
    }
}

impl Error for TaskError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// Why a task was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The queue holds [`Config::capacity`] tasks with other keys.
    #[error("the failback queue is full with {capacity} tasks, `{key}` was not taken")]
    Full {
        /// The queue's capacity.
        capacity: usize,
        /// The task's key.
        key: Key,
    },
    /// [`Failback::shutdown`] was called.
    #[error("the failback queue is shut down, `{0}` was not taken")]
    ShutDown(Key),
    /// The failure so far already ends the policy.
    #[error("`{key}` is not tried again")]
    GaveUp {
        /// The task's key.
        key: Key,
        /// Why.
        #[source]
        reason: GiveUp,
    },
}

/// What happened to a task, for the hook.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An attempt succeeded; the task is done.
    Succeeded {
        /// The task's key.
        key: &'a str,
        /// The queue's attempts, this one included.
        attempts: u32,
    },
    /// An attempt failed and another one will follow.
    Retrying {
        /// The task's key.
        key: &'a str,
        /// The queue's attempts so far.
        attempts: u32,
        /// How long until the next one.
        wait: Duration,
        /// What went wrong.
        error: &'a (dyn Error + 'static),
    },
    /// An attempt failed and the task is dropped.
    GaveUp {
        /// The task's key.
        key: &'a str,
        /// The queue's attempts.
        attempts: u32,
        /// Why there is no further attempt; `None` when the task panicked.
        reason: Option<GiveUp>,
        /// What went wrong.
        error: &'a (dyn Error + 'static),
    },
    /// A newer task took the key of this one before it succeeded.
    Replaced {
        /// The key of both.
        key: &'a str,
    },
}

/// Totals since the start and the present size, each read on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Tasks taken.
    pub submitted: u64,
    /// Tasks refused because the queue was full.
    pub rejected: u64,
    /// Tasks that gave way to a newer one of their key.
    pub replaced: u64,
    /// Tasks that were cancelled.
    pub cancelled: u64,
    /// Attempts that failed or panicked.
    pub failed_attempts: u64,
    /// Tasks that succeeded.
    pub succeeded: u64,
    /// Tasks that were given up.
    pub gave_up: u64,
    /// Tasks queued or under way now.
    pub queued: usize,
}

/// A task that had not succeeded when the queue was shut down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// The task's key.
    pub key: Key,
    /// The queue's attempts, one that was cut off included.
    pub attempts: u32,
    /// The latest error with its causes, as text; `None` when no attempt came to an end.
    pub error: Option<String>,
}

type Attempt = Pin<Box<dyn Future<Output = Result<(), TaskError>> + Send>>;
type Task = Box<dyn FnMut() -> Attempt + Send>;
type Hook = Box<dyn Fn(&Event<'_>) + Send + Sync>;

/// A queue of background calls that are repeated until they succeed.
///
/// ```
/// use metaroute::failback::{Config, Failback, Failure, TaskError};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let queue = Failback::start(Config::default(), |event| println!("{event:?}"));
/// // The first registration has just failed; the queue takes it from here.
/// queue.retry("register orders", Failure::Transient, || async { register().await.map_err(TaskError::transient) })?;
/// let unfinished = queue.shutdown(std::time::Duration::from_secs(5)).await;
/// assert!(unfinished.is_empty());
/// # Ok(())
/// # }
/// # async fn register() -> Result<(), std::io::Error> { Ok(()) }
/// ```
///
/// Dropping the queue stops it at once: attempts under way are aborted, and what is queued is lost. Prefer
/// [`shutdown`](Self::shutdown).
pub struct Failback {
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<Vec<Unfinished>>>>,
}

impl Failback {
    /// Starts an empty queue. `hook` is told every [`Event`]; it runs between attempts, so it must be quick.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with its timer switched on, as every `tokio::spawn`.
    pub fn start(config: Config, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        let rng = match config.seed {
            Some(seed) => Xoshiro256PlusPlus::seed_from_u64(seed),
            None => Xoshiro256PlusPlus::from_rng(&mut rand::rng()),
        };
        let shared = Arc::new(Shared {
            config,
            epoch: Instant::now(),
            hook: Box::new(hook),
            state: Mutex::new(State {
                rng,
                tasks: BTreeMap::new(),
                due: BTreeSet::new(),
                next_generation: 0,
                closing: None,
            }),
            changed: Notify::new(),
            totals: Totals::default(),
        });
        let worker = tokio::spawn(worker::run(Arc::clone(&shared)).instrument(tracing::info_span!("failback")));
        Self { shared, worker: Mutex::new(Some(worker)) }
    }

    /// Takes over a task whose first attempt shall start at once.
    ///
    /// `task` is called for every attempt and must not block. A queued task of the same key is replaced; if an attempt
    /// of it is under way, that one is left to end and its outcome is ignored.
    ///
    /// # Errors
    ///
    /// [`SubmitError`] when the queue is full or shut down; the task is dropped then.
    pub fn run<F>(&self, key: impl Into<Key>, mut task: impl FnMut() -> F + Send + 'static) -> Result<(), SubmitError>
    where
        F: Future<Output = Result<(), TaskError>> + Send + 'static,
    {
        self.submit(key.into(), None, Box::new(move || Box::pin(task())))
    }

    /// Takes over a call that has already failed once; the next attempt follows after the policy's first wait.
    ///
    /// Otherwise like [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// Also [`SubmitError::GaveUp`] when the policy allows no further attempt after `failure`.
    pub fn retry<F>(
        &self,
        key: impl Into<Key>,
        failure: Failure,
        mut task: impl FnMut() -> F + Send + 'static,
    ) -> Result<(), SubmitError>
    where
        F: Future<Output = Result<(), TaskError>> + Send + 'static,
    {
        self.submit(key.into(), Some(failure), Box::new(move || Box::pin(task())))
    }

    fn submit(&self, key: Key, failed: Option<Failure>, task: Task) -> Result<(), SubmitError> {
        // The replaced job is dropped after the lock is released, as every foreign closure.
        let submitted = self.shared.lock().submit(&self.shared, &key, failed, task);
        match submitted {
            Ok(replaced) => {
                self.shared.totals.submitted.fetch_add(1, Ordering::Relaxed);
                self.shared.changed.notify_one();
                if replaced.is_some() {
                    self.shared.totals.replaced.fetch_add(1, Ordering::Relaxed);
                    self.shared.tell(&Event::Replaced { key: &key });
                }
                Ok(())
            }
            Err(error) => {
                if matches!(error, SubmitError::Full { .. }) {
                    self.shared.totals.rejected.fetch_add(1, Ordering::Relaxed);
                }
                Err(error)
            }
        }
    }

    /// Takes a task out of the queue, `false` when there was none. An attempt under way is left to end, and its outcome
    /// ignored.
    pub fn cancel(&self, key: &str) -> bool {
        let cancelled = self.shared.lock().cancel(key);
        if cancelled.is_some() {
            self.shared.totals.cancelled.fetch_add(1, Ordering::Relaxed);
            self.shared.changed.notify_one();
        }
        cancelled.is_some()
    }

    /// Totals and present size.
    pub fn counters(&self) -> Counters {
        let totals = &self.shared.totals;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            submitted: read(&totals.submitted),
            rejected: read(&totals.rejected),
            replaced: read(&totals.replaced),
            cancelled: read(&totals.cancelled),
            failed_attempts: read(&totals.failed_attempts),
            succeeded: read(&totals.succeeded),
            gave_up: read(&totals.gave_up),
            queued: self.shared.lock().wanted(),
        }
    }

    /// Takes no more tasks, gives every queued one a last attempt without waiting, and returns those that have not
    /// succeeded by then or by the deadline, in key order. Attempts under way at the deadline are aborted.
    ///
    /// A second call returns nothing. Dropping the future stops the queue as dropping the queue does.
    pub async fn shutdown(&self, deadline: Duration) -> Vec<Unfinished> {
        let Some(worker) = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Vec::new() };
        self.shared.lock().closing = Some(due(Instant::now(), deadline));
        self.shared.changed.notify_one();
        AbortOnDrop(worker).join().await
    }
}

impl fmt::Debug for Failback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failback").field("config", &self.shared.config).field("counters", &self.counters()).finish()
    }
}

impl Drop for Failback {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            worker.abort();
        }
    }
}

/// Keeps the worker owned while somebody waits for it.
struct AbortOnDrop(JoinHandle<Vec<Unfinished>>);

impl AbortOnDrop {
    async fn join(mut self) -> Vec<Unfinished> {
        match (&mut self.0).await {
            Ok(unfinished) => unfinished,
            // Only the destructor of a task can panic in the worker; whoever shuts down sees it, as one who joins a
            // thread.
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Vec::new(),
        }
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Default)]
struct Totals {
    submitted: AtomicU64,
    rejected: AtomicU64,
    replaced: AtomicU64,
    cancelled: AtomicU64,
    failed_attempts: AtomicU64,
    succeeded: AtomicU64,
    gave_up: AtomicU64,
}

struct Shared {
    config: Config,
    /// Where the back-off's time starts.
    epoch: Instant,
    hook: Hook,
    state: Mutex<State>,
    /// Wakes the worker after a change it did not make itself.
    changed: Notify,
    totals: Totals,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock runs foreign code, so a poisoned state is still a consistent one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: &Event<'_>) {
        match event {
            Event::Succeeded { key, attempts } => tracing::info!(key, attempts, "background call succeeded"),
            Event::Retrying { key, attempts, wait, error } => {
                tracing::debug!(key, attempts, ?wait, error, "background call failed, will retry");
            }
            Event::GaveUp { key, attempts, reason, error } => {
                tracing::warn!(key, attempts, ?reason, error, "background call given up");
            }
            Event::Replaced { key } => tracing::debug!(key, "background call replaced by a newer one"),
        }
        // A hook that panics must not take the queue with it.
        if std::panic::catch_unwind(AssertUnwindSafe(|| (self.hook)(event))).is_err() {
            tracing::error!(?event, "the failback hook panicked");
        }
    }
}

/// What is wanted for one key.
struct Job {
    /// Tells the outcome of this job's attempts from those of a job it replaced.
    generation: u64,
    /// Absent while an attempt of this very job is under way.
    task: Option<Task>,
    backoff: Backoff,
    attempts: u32,
    last_error: Option<String>,
    due: Instant,
}

#[derive(Default)]
struct Slot {
    /// Absent when the task was cancelled while an attempt was under way.
    wanted: Option<Job>,
    /// An attempt of this key is under way, perhaps of a job that is no longer wanted.
    running: bool,
}

struct State {
    rng: Xoshiro256PlusPlus,
    tasks: BTreeMap<Key, Slot>,
    /// Exactly the wanted jobs that are not running, by due time.
    due: BTreeSet<(Instant, Key)>,
    next_generation: u64,
    /// The deadline of the shutdown.
    closing: Option<Instant>,
}

impl State {
    /// The older job that was replaced, if there was one.
    fn submit(
        &mut self,
        shared: &Shared,
        key: &Key,
        failed: Option<Failure>,
        task: Task,
    ) -> Result<Option<Job>, SubmitError> {
        if self.closing.is_some() {
            return Err(SubmitError::ShutDown(Arc::clone(key)));
        }
        let capacity = shared.config.capacity.get();
        if self.tasks.len() >= capacity && !self.tasks.contains_key(key) {
            return Err(SubmitError::Full { capacity, key: Arc::clone(key) });
        }
        let now = Instant::now();
        let mut backoff = Backoff::new(shared.config.policy);
        let wait = match failed {
            Some(failure) => backoff
                .on_failure(failure, now - shared.epoch, &mut self.rng)
                .map_err(|reason| SubmitError::GaveUp { key: Arc::clone(key), reason })?,
            None => Duration::ZERO,
        };
        self.next_generation += 1;
        let due = due(now, wait);
        let job =
            Job { generation: self.next_generation, task: Some(task), backoff, attempts: 0, last_error: None, due };
        let slot = self.tasks.entry(Arc::clone(key)).or_default();
        let running = slot.running;
        let replaced = slot.wanted.replace(job);
        if let Some(replaced) = &replaced {
            self.due.remove(&(replaced.due, Arc::clone(key)));
        }
        if !running {
            self.due.insert((due, Arc::clone(key)));
        }
        Ok(replaced)
    }

    fn cancel(&mut self, key: &str) -> Option<Job> {
        let slot = self.tasks.get_mut(key)?;
        let job = slot.wanted.take()?;
        if !slot.running {
            self.due.remove(&(job.due, Key::from(key)));
            self.tasks.remove(key);
        }
        Some(job)
    }

    fn wanted(&self) -> usize {
        self.tasks.values().filter(|slot| slot.wanted.is_some()).count()
    }
}

/// `now + wait`, or about 30 years from now where the clock cannot reach that far.
fn due(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or_else(|| now + Duration::from_secs(30 * 365 * 24 * 3600))
}
