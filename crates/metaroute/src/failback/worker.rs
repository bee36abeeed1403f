//! The one task that starts attempts, takes in their outcomes and, in the end, drains.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use metaroute_core::resilience::backoff::{Failure, GiveUp};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::{Event, Key, Shared, State, Task, TaskError, Unfinished, due};

/// An attempt exceeded [`Config::attempt_timeout`](super::Config::attempt_timeout).
#[derive(Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
struct TimedOut(Duration);

/// A job whose time has come, out of the queue.
struct Started {
    key: Key,
    generation: u64,
    task: Task,
}

/// An attempt that came to an end; it gives the task back for the next one.
struct Ended {
    key: Key,
    generation: u64,
    task: Task,
    result: Result<(), TaskError>,
}

/// What the hook is told once the lock is released.
enum Told {
    Succeeded { attempts: u32 },
    Retrying { attempts: u32, wait: Duration },
    GaveUp { attempts: u32, reason: Option<GiveUp> },
}

/// Runs until the queue is shut down and drained. Dropping the future aborts the attempts under way, which the set
/// owns.
pub(super) async fn run(shared: Arc<Shared>) -> Vec<Unfinished> {
    let concurrency = shared.config.concurrency.get();
    let mut attempts: JoinSet<Ended> = JoinSet::new();
    let mut running: HashMap<Id, (Key, u64)> = HashMap::new();
    loop {
        let (next, closing) = {
            let mut state = shared.lock();
            while attempts.len() < concurrency
                && let Some(started) = state.start(Instant::now())
            {
                let (key, generation) = (Arc::clone(&started.key), started.generation);
                let handle = attempts.spawn(attempt(started, shared.config.attempt_timeout));
                running.insert(handle.id(), (key, generation));
            }
            (state.due.first().map(|(due, _)| *due), state.closing)
        };
        if closing.is_some() && attempts.is_empty() && next.is_none() {
            break;
        }
        // With every place taken, only the end of an attempt can start another one.
        let next = next.filter(|_| attempts.len() < concurrency);
        tokio::select! {
            Some(joined) = attempts.join_next_with_id() => {
                let id = joined.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
                if let Some((key, generation)) = running.remove(&id) {
                    match joined {
                        Ok((_, ended)) => take_in(&shared, ended),
                        Err(error) => take_in_panic(&shared, &key, generation, &error),
                    }
                }
            }
            () = sleep_until(next) => {}
            () = shared.changed.notified() => {}
            () = sleep_until(closing) => break,
        }
    }
    attempts.shutdown().await;
    let left = std::mem::take(&mut shared.lock().tasks);
    left.into_iter()
        .filter_map(|(key, slot)| {
            let job = slot.wanted?;
            Some(Unfinished { key, attempts: job.attempts, error: job.last_error })
        })
        .collect()
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn attempt(started: Started, timeout: Duration) -> Ended {
    let Started { key, generation, mut task } = started;
    let result = match tokio::time::timeout(timeout, task()).await {
        Ok(result) => result,
        Err(_) => Err(TaskError::transient(TimedOut(timeout))),
    };
    Ended { key, generation, task, result }
}

fn take_in(shared: &Shared, ended: Ended) {
    let Ended { key, generation, task, result } = ended;
    let mut task = Some(task);
    if result.is_err() {
        shared.totals.failed_attempts.fetch_add(1, Ordering::Relaxed);
    }
    let failed = result.as_ref().err().map(|error| (error.failure(), with_causes(error)));
    let told = shared.lock().end(&key, generation, &mut task, failed, Instant::now(), shared.epoch);
    // The task's own error is the one worth telling; `TaskError` only adds the kind.
    let error = result.as_ref().err().map(|error| &*error.source as &(dyn std::error::Error + 'static));
    tell(shared, &key, told, error);
}

fn take_in_panic(shared: &Shared, key: &Key, generation: u64, error: &JoinError) {
    shared.totals.failed_attempts.fetch_add(1, Ordering::Relaxed);
    let failed = Some((Failure::Permanent, error.to_string()));
    let told = shared.lock().end(key, generation, &mut None, failed, Instant::now(), shared.epoch);
    tell(shared, key, told, Some(error));
}

fn tell(shared: &Shared, key: &str, told: Option<Told>, error: Option<&(dyn std::error::Error + 'static)>) {
    match (told, error) {
        (Some(Told::Succeeded { attempts }), _) => {
            shared.totals.succeeded.fetch_add(1, Ordering::Relaxed);
            shared.tell(&Event::Succeeded { key, attempts });
        }
        (Some(Told::Retrying { attempts, wait }), Some(error)) => {
            shared.tell(&Event::Retrying { key, attempts, wait, error });
        }
        (Some(Told::GaveUp { attempts, reason }), Some(error)) => {
            shared.totals.gave_up.fetch_add(1, Ordering::Relaxed);
            shared.tell(&Event::GaveUp { key, attempts, reason, error });
        }
        (Some(Told::Retrying { .. } | Told::GaveUp { .. }), None) | (None, _) => {}
    }
}

fn with_causes(error: &TaskError) -> String {
    let mut text = error.source.to_string();
    let mut cause = error.source.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

impl State {
    /// Takes the first job out that is due by now; while closing, every job is.
    fn start(&mut self, now: Instant) -> Option<Started> {
        let (due, _) = self.due.first()?;
        if *due > now && self.closing.is_none() {
            return None;
        }
        let (_, key) = self.due.pop_first()?;
        let slot = self.tasks.get_mut(&key).expect("every due time belongs to a task");
        slot.running = true;
        let job = slot.wanted.as_mut().expect("every due time belongs to a wanted job");
        job.attempts = job.attempts.saturating_add(1);
        let task = job.task.take().expect("a job that is not running holds its task");
        Some(Started { key, generation: job.generation, task })
    }

    /// Takes in the end of an attempt: `failed` is the kind of failure and its text, `task` is absent when it panicked.
    /// The task is taken only if it is needed again, so that nothing foreign is dropped under the lock.
    fn end(
        &mut self,
        key: &Key,
        generation: u64,
        task: &mut Option<Task>,
        failed: Option<(Failure, String)>,
        now: Instant,
        epoch: Instant,
    ) -> Option<Told> {
        let slot = self.tasks.get_mut(key)?;
        slot.running = false;
        let Some(job) = slot.wanted.as_mut() else {
            // Cancelled meanwhile.
            self.tasks.remove(key);
            return None;
        };
        if job.generation != generation {
            // Replaced meanwhile; the newer job may start now.
            self.due.insert((job.due, Arc::clone(key)));
            return None;
        }
        let attempts = job.attempts;
        let Some((failure, error)) = failed else {
            self.tasks.remove(key);
            return Some(Told::Succeeded { attempts });
        };
        job.last_error = Some(error);
        if task.is_none() {
            self.tasks.remove(key);
            return Some(Told::GaveUp { attempts, reason: None });
        }
        match job.backoff.on_failure(failure, now - epoch, &mut self.rng) {
            Err(reason) => {
                self.tasks.remove(key);
                Some(Told::GaveUp { attempts, reason: Some(reason) })
            }
            // This was the last attempt; the job stays where the shutdown finds it.
            Ok(_) if self.closing.is_some() => None,
            Ok(wait) => {
                job.due = due(now, wait);
                job.task = task.take();
                self.due.insert((job.due, Arc::clone(key)));
                Some(Told::Retrying { attempts, wait })
            }
        }
    }
}
