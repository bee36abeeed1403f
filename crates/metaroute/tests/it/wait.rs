//! Waiting for something that another task does.

use std::time::Duration;

/// Looks until a condition holds. On a paused clock this costs no time.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    // Generous: the machine may be busy with other builds.
    let attempts = 3000;
    for _ in 0..attempts {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited in vain until {what}");
}
