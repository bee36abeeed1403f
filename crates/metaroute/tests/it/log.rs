//! What was logged on this thread, as lines.
//!
//! One subscriber serves the whole test binary and writes to the log of the thread it is called on: subscribers that
//! come and go per thread make `tracing` forget call sites of others.

use std::cell::RefCell;
use std::io::Write;
use std::sync::Once;

thread_local! {
    static LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The log of the current thread, on which single-threaded tests run whole.
pub(crate) struct Log;

impl Log {
    pub(crate) fn capture() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing_subscriber::fmt().with_ansi(false).with_writer(|| Thread).init());
        LINES.with_borrow_mut(Vec::clear);
        Self
    }

    pub(crate) fn text(&self) -> String {
        LINES.with_borrow(|lines| String::from_utf8_lossy(lines).into_owned())
    }

    /// Lines that contain a text.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.text().lines().filter(|line| line.contains(text)).count()
    }
}

struct Thread;

impl Write for Thread {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
