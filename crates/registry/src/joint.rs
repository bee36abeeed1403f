//! Something that many need and one makes: a connection, a lease.
//!
//! Whoever waited while an attempt failed gets that attempt's error. Otherwise a thousand registrations at a silent server
//! would try one after the other, each for as long as a silent server takes, and the last would know after an hour.

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::driver::{DriverError, ErrorKind};

/// The shared thing, and how the last attempt went.
pub(crate) struct Joint<T>(Mutex<Held<T>>);

/// The shared thing while one uses it.
pub(crate) struct Held<T> {
    pub(crate) value: Option<T>,
    failed: Option<(Instant, DriverError)>,
}

impl<T> Default for Joint<T> {
    fn default() -> Self {
        Self(Mutex::new(Held { value: None, failed: None }))
    }
}

impl<T> Joint<T> {
    /// Waits for one's turn.
    ///
    /// # Errors
    /// That of an attempt that began before and failed meanwhile.
    pub(crate) async fn enter(&self) -> Result<MutexGuard<'_, Held<T>>, DriverError> {
        let asked = Instant::now();
        let held = self.0.lock().await;
        match &held.failed {
            Some((at, error)) if *at > asked => Err(error.clone()),
            _ => Ok(held),
        }
    }

    /// Waits for one's turn, however the last attempt went.
    pub(crate) async fn enter_anyway(&self) -> MutexGuard<'_, Held<T>> {
        self.0.lock().await
    }
}

impl<T> Held<T> {
    /// Remembers how an attempt went, for those who wait.
    pub(crate) fn outcome<R>(&mut self, result: Result<R, DriverError>) -> Result<R, DriverError> {
        self.failed = match &result {
            Err(error) if error.kind() == ErrorKind::Unreachable => Some((Instant::now(), error.clone())),
            _ => None,
        };
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_share_a_failure_and_later_ones_try_again() {
        let joint: Arc<Joint<()>> = Arc::default();
        let attempts = Arc::new(AtomicUsize::new(0));
        let attempt = || {
            let (joint, attempts) = (Arc::clone(&joint), Arc::clone(&attempts));
            async move {
                let mut held = joint.enter().await?;
                attempts.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_secs(5)).await;
                held.outcome(Err::<(), _>(DriverError::new(ErrorKind::Unreachable, "silent")))
            }
        };
        let started = Instant::now();
        let tasks: Vec<_> = (0..100).map(|_| tokio::spawn(attempt())).collect();
        for task in tasks {
            assert_eq!(task.await.expect("no panic").expect_err("silent").to_string(), "silent");
        }
        assert_eq!((attempts.load(Ordering::SeqCst), started.elapsed().as_secs()), (1, 5));
        assert!(attempt().await.is_err());
        assert_eq!(attempts.load(Ordering::SeqCst), 2);
    }
}
