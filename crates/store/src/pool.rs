//! Bounded reader threads.
//!
//! The engine is synchronous and a read may wait for a disk or for a lock held across an fsync, so
//! reads run on threads of their own. Points and scans have separate pools: a few exports must not
//! keep everybody's single rows waiting. A full queue refuses at once; an answer that would come
//! after its deadline helps nobody.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::pending::{Pending, pending};
use crate::query::Cancel;

/// Size of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// Threads.
    pub threads: usize,
    /// Calls that may wait beside those being served.
    pub queue: usize,
}

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    name: &'static str,
    capacity: usize,
    queue: Mutex<Queue>,
    wake: Condvar,
    running: AtomicUsize,
    refused: AtomicU64,
}

struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// What a pool is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolGauges {
    /// Calls waiting.
    pub queued: usize,
    /// Calls being served.
    pub running: usize,
    /// Calls refused since the store was opened.
    pub refused: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        loop {
            let job = {
                let mut queue = self.lock();
                loop {
                    if let Some(job) = queue.jobs.pop_front() {
                        break job;
                    }
                    if queue.closed {
                        return;
                    }
                    queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            self.running.fetch_add(1, Ordering::Relaxed);
            // A panic must not take the thread with it: the pool would shrink silently. The caller
            // learns of it because the promise inside the job is dropped.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                tracing::error!(pool = self.name, "a read panicked");
            }
            self.running.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Pool {
    pub(crate) fn start(name: &'static str, size: PoolSize) -> Result<Pool> {
        let shared = Arc::new(Shared {
            name,
            capacity: size.queue + size.threads,
            queue: Mutex::new(Queue { jobs: VecDeque::new(), closed: false }),
            wake: Condvar::new(),
            running: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
        });
        let mut pool = Pool { shared, threads: Vec::new() };
        for _ in 0..size.threads.max(1) {
            let shared = pool.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("store-{name}"))
                .spawn(move || shared.serve())
                .map_err(|e| Error::io("cannot start a reader thread", name, e))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Queues a call; refused with [`Error::Overloaded`] when full. A call whose answer nobody waits
    /// for any more when its turn comes is not made.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Cancel) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (promise, pending) = pending();
        let cancel = pending.cancel_flag();
        let job: Job = Box::new(move || {
            if !cancel.is_cancelled() {
                promise.keep(work(&cancel));
            }
        });
        {
            let mut queue = self.shared.lock();
            if queue.closed {
                return Pending::ready(Err(Error::Closed));
            }
            if queue.jobs.len() + self.shared.running.load(Ordering::Relaxed) >= self.shared.capacity {
                drop(queue);
                self.shared.refused.fetch_add(1, Ordering::Relaxed);
                return Pending::ready(Err(Error::Overloaded { queue: self.shared.name }));
            }
            queue.jobs.push_back(job);
        }
        self.shared.wake.notify_one();
        pending
    }

    pub(crate) fn gauges(&self) -> PoolGauges {
        PoolGauges {
            queued: self.shared.lock().jobs.len(),
            running: self.shared.running.load(Ordering::Relaxed),
            refused: self.shared.refused.load(Ordering::Relaxed),
        }
    }

    /// Refuses new calls, drops waiting ones and waits for those being served.
    pub(crate) fn stop(&mut self) {
        {
            let mut queue = self.shared.lock();
            queue.closed = true;
            queue.jobs.clear();
        }
        self.shared.wake.notify_all();
        let own = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // The last handle of a store may be dropped inside one of its own calls.
            if thread.thread().id() != own {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_full_queue_refuses_and_a_panic_costs_no_thread() {
        let pool = Pool::start("test", PoolSize { threads: 1, queue: 1 }).expect("threads");
        let (go, wait) = mpsc::sync_channel::<()>(1);
        let (started, has_started) = mpsc::sync_channel::<()>(1);
        let first = pool.call(move |_| {
            started.send(()).expect("test listens");
            wait.recv().expect("test sends");
            Ok(1)
        });
        has_started.recv().expect("job runs");
        let second = pool.call(|_| Ok(2));
        let third = pool.call(|_| Ok(3));
        assert!(matches!(third.wait(), Err(Error::Overloaded { queue: "test" })));
        go.send(()).expect("job waits");
        assert_eq!(first.wait().expect("answered"), 1);
        assert_eq!(second.wait().expect("answered"), 2);
        assert_eq!(pool.gauges().refused, 1);

        let broken = pool.call::<()>(|_| panic!("as a read might"));
        assert!(matches!(broken.wait(), Err(Error::Closed)));
        let after = loop {
            match pool.call(|_| Ok(4)).wait() {
                Err(Error::Overloaded { .. }) => std::thread::yield_now(),
                other => break other,
            }
        };
        assert_eq!(after.expect("the thread lives"), 4);
    }

    #[test]
    fn abandoned_calls_are_not_made() {
        let pool = Pool::start("test", PoolSize { threads: 1, queue: 8 }).expect("threads");
        let (go, wait) = mpsc::sync_channel::<()>(1);
        let (started, has_started) = mpsc::sync_channel::<()>(1);
        let first = pool.call(move |_| {
            started.send(()).expect("test listens");
            wait.recv().expect("test sends");
            Ok(())
        });
        has_started.recv().expect("job runs");
        let (ran, has_run) = mpsc::sync_channel::<()>(1);
        drop(pool.call(move |_| {
            ran.send(()).expect("test listens");
            Ok(())
        }));
        go.send(()).expect("job waits");
        first.wait().expect("answered");
        pool.call(|_| Ok(())).wait().expect("answered");
        assert!(has_run.try_recv().is_err(), "the dropped call ran");
    }
}
