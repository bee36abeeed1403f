//! Waiting for a condition instead of for a guess.

use std::thread;
use std::time::{Duration, Instant};

/// Longest pause between two looks: short against what servers take to start, long against the cost of a look.
const POLL_MAX: Duration = Duration::from_millis(50);

/// Polls `condition` until it holds or `timeout` has passed; returns whether it held.
///
/// The first looks come after 1 ms, 2 ms, 4 ms …, so that what is fast stays fast.
pub fn wait_until(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    backoff_poll(timeout, || condition().then_some(())).is_some()
}

/// Like [`wait_until`], and hands on what the condition found.
pub fn backoff_poll<T>(timeout: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(POLL_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stops_at_the_first_yes() {
        let mut looks = 0;
        assert!(wait_until(Duration::from_secs(60), || {
            looks += 1;
            looks == 4
        }));
        assert_eq!(looks, 4);
    }

    #[test]
    fn it_gives_up_after_a_last_look_at_the_deadline() {
        let mut looks = 0;
        let started = Instant::now();
        assert!(!wait_until(Duration::from_millis(300), || {
            looks += 1;
            false
        }));
        assert!(started.elapsed() >= Duration::from_millis(300));
        assert!(looks >= 2, "looked {looks} times");
    }
}
