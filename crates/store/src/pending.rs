//! The way back from a blocking thread: an answer that can be awaited or waited for.
//!
//! The store knows no async runtime, yet async callers must not block on it. A [`Pending`] is a plain
//! future that any executor can poll, and a blocking handle for threads. Dropping it raises the
//! work's [`Cancel`] flag: a client that has gone away costs nothing more.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::{Error, Result};
use crate::query::Cancel;

/// An answer that will come. Yields exactly once; [`Error::Closed`] when the store went away before
/// it came.
#[must_use = "dropping it cancels reads"]
pub struct Pending<T> {
    slot: Arc<Slot<T>>,
    cancel: Cancel,
}

/// The other end of a [`Pending`].
pub(crate) struct Promise<T> {
    slot: Arc<Slot<T>>,
    kept: bool,
}

struct Slot<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
}

struct State<T> {
    answer: Option<Result<T>>,
    taken: bool,
    waker: Option<Waker>,
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A promise and the answer it will give.
pub(crate) fn pending<T>() -> (Promise<T>, Pending<T>) {
    let state = State { answer: None, taken: false, waker: None };
    let slot = Arc::new(Slot { state: Mutex::new(state), arrived: Condvar::new() });
    (Promise { slot: slot.clone(), kept: false }, Pending { slot, cancel: Cancel::new() })
}

impl<T> Promise<T> {
    pub(crate) fn keep(mut self, answer: Result<T>) {
        self.kept = true;
        self.put(answer);
    }

    fn put(&self, answer: Result<T>) {
        let waker = {
            let mut state = self.slot.lock();
            state.answer = Some(answer);
            state.waker.take()
        };
        self.slot.arrived.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if !self.kept {
            self.put(Err(Error::Closed));
        }
    }
}

impl<T> Pending<T> {
    /// An answer that is there already.
    pub(crate) fn ready(answer: Result<T>) -> Pending<T> {
        let (promise, pending) = pending();
        promise.keep(answer);
        pending
    }

    pub(crate) fn cancel_flag(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Blocks until the answer is there.
    ///
    /// # Errors
    /// The work's own.
    pub fn wait(self) -> Result<T> {
        let mut state = self.slot.lock();
        loop {
            if let Some(answer) = state.answer.take() {
                state.taken = true;
                return answer;
            }
            if state.taken {
                return Err(Error::Closed);
            }
            state = self.slot.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.lock();
        if let Some(answer) = state.answer.take() {
            state.taken = true;
            return Poll::Ready(answer);
        }
        if state.taken {
            return Poll::Ready(Err(Error::Closed));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_polls_and_reports_a_broken_promise() {
        let (promise, answer) = pending();
        let other = std::thread::spawn(move || promise.keep(Ok(7)));
        assert_eq!(answer.wait().expect("kept"), 7);
        other.join().expect("no panic");

        let (promise, mut answer) = pending::<u8>();
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut answer).poll(&mut context).is_pending());
        drop(promise);
        assert!(matches!(Pin::new(&mut answer).poll(&mut context), Poll::Ready(Err(Error::Closed))));

        let (_promise, answer) = pending::<u8>();
        let cancel = answer.cancel_flag();
        drop(answer);
        assert!(cancel.is_cancelled());
    }
}
