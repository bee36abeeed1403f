//! Where log lines go.
//!
//! A server says one line per request, and a system call for each costs as much as reading a row. So lines of a server
//! whose log is a file or a pipe are held for a moment and written together; warnings and errors, and everything before
//! them, go at once, as does every line where a person looks on. A process that is killed may take the last moment's
//! lines about ordinary requests with it.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::output::Format;

/// How long a line may wait for company.
const HELD: Duration = Duration::from_millis(20);
/// Bytes that are not held back any longer: who logs faster than stderr takes it waits for stderr.
const HELD_MAX: usize = 256 << 10;

/// Sends log lines to stderr: text for people, JSON where JSON was asked for. `RUST_LOG` chooses what is said. What is
/// held when the answer is dropped is written then.
pub(crate) fn log_to_stderr(format: Format) -> impl Drop {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = Arc::new(Lines::new(io::stderr(), io::stderr().is_terminal()));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    let builder = builder.with_writer(ToLines(Arc::clone(&lines)));
    // A second subscriber can only mean that a test set one.
    let _ = match format {
        Format::Text => {
            let colours = anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never;
            builder.with_ansi(colours).try_init()
        }
        Format::Json | Format::Ndjson => builder.json().flatten_event(true).try_init(),
    };
    let holding = Arc::clone(&lines);
    // Without the thread a line goes out with the next one that must not wait.
    if let Err(error) = std::thread::Builder::new().name("log".to_owned()).spawn(move || holding.write_in_time()) {
        tracing::warn!(%error, "log lines are written late");
    }
    Flush(lines)
}

/// Lines on their way out.
#[derive(Debug)]
struct Lines<W> {
    /// Written so far, in order.
    held: Mutex<Vec<u8>>,
    /// There is something to write.
    some: Condvar,
    /// Where to, and what is being written. Locked before `held`, so that two writers keep the order.
    out: Mutex<(W, Vec<u8>)>,
    /// Whether no line waits.
    eager: bool,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W: Write> Lines<W> {
    fn new(out: W, eager: bool) -> Lines<W> {
        Lines { held: Mutex::default(), some: Condvar::new(), out: Mutex::new((out, Vec::new())), eager }
    }

    fn add(&self, line: &[u8], at_once: bool) -> io::Result<()> {
        let (was_empty, bytes) = {
            let mut held = lock(&self.held);
            let was_empty = held.is_empty();
            held.extend_from_slice(line);
            (was_empty, held.len())
        };
        if at_once || self.eager || bytes >= HELD_MAX {
            return self.flush();
        }
        if was_empty {
            self.some.notify_one();
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let (out, writing) = &mut *lock(&self.out);
        std::mem::swap(writing, &mut *lock(&self.held));
        let written = out.write_all(writing);
        // Nobody is helped by lines that pile up because nobody reads them.
        writing.clear();
        written
    }

    fn write_in_time(&self) {
        loop {
            drop(self.some.wait_while(lock(&self.held), |held| held.is_empty()));
            std::thread::sleep(HELD);
            // Where the log cannot be written there is nowhere to say so.
            let _ = self.flush();
        }
    }
}

/// Writes what is held when it is dropped.
struct Flush<W: Write>(Arc<Lines<W>>);

impl<W: Write> Drop for Flush<W> {
    fn drop(&mut self) {
        let _ = self.0.flush();
    }
}

struct ToLines<W>(Arc<Lines<W>>);

impl<'a, W: Write + 'a> MakeWriter<'a> for ToLines<W> {
    type Writer = Line<'a, W>;

    fn make_writer(&'a self) -> Line<'a, W> {
        Line { lines: &self.0, at_once: true }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line<'a, W> {
        Line { lines: &self.0, at_once: *meta.level() <= Level::WARN }
    }
}

/// One event's text.
struct Line<'a, W> {
    lines: &'a Lines<W>,
    at_once: bool,
}

impl<W: Write> Write for Line<'_, W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.lines.add(text, self.at_once)?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Shown(Arc<Mutex<Vec<u8>>>);

    impl Write for Shown {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Shown {
        fn text(&self) -> String {
            String::from_utf8(lock(&self.0).clone()).expect("text")
        }
    }

    #[test]
    fn ordinary_lines_wait_and_go_before_what_must_not_wait() {
        let shown = Shown::default();
        let lines = Lines::new(shown.clone(), false);
        lines.add(b"one\n", false).expect("held");
        lines.add(b"two\n", false).expect("held");
        assert_eq!(shown.text(), "");
        lines.add(b"trouble\n", true).expect("written");
        assert_eq!(shown.text(), "one\ntwo\ntrouble\n");
        lines.add(b"last\n", false).expect("held");
        drop(Flush(Arc::new(lines)));
        assert_eq!(shown.text(), "one\ntwo\ntrouble\nlast\n");
    }

    #[test]
    fn no_line_waits_where_a_person_looks_on_or_too_much_is_held() {
        let shown = Shown::default();
        Lines::new(shown.clone(), true).add(b"seen\n", false).expect("written");
        assert_eq!(shown.text(), "seen\n");
        let shown = Shown::default();
        let lines = Lines::new(shown.clone(), false);
        for _ in 0..HELD_MAX / 4 - 1 {
            lines.add(b"1234", false).expect("held");
        }
        assert_eq!(shown.text(), "");
        lines.add(b"5678", false).expect("written");
        assert_eq!(shown.text().len(), HELD_MAX);
    }

    #[test]
    fn a_line_that_waits_is_written_soon_and_many_threads_lose_none() {
        let shown = Shown::default();
        let lines = Arc::new(Lines::new(shown.clone(), false));
        let holding = Arc::clone(&lines);
        std::thread::spawn(move || holding.write_in_time());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let lines = &lines;
                scope.spawn(move || {
                    for n in 0..1_000 {
                        lines.add(format!("{thread} {n}\n").as_bytes(), n % 97 == 0).expect("taken");
                    }
                });
            }
        });
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while shown.text().lines().count() < 4_000 {
            assert!(std::time::Instant::now() < deadline, "{} lines", shown.text().lines().count());
            std::thread::sleep(HELD);
        }
        for thread in 0..4 {
            let text = shown.text();
            let own = text.lines().filter_map(|line| line.strip_prefix(&format!("{thread} ")));
            assert!(own.map(|n| n.parse::<u32>().expect("whole lines")).eq(0..1_000), "in order");
        }
    }
}
