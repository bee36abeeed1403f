//! A program that answers each line on its standard input with a line on its standard output: how foreign clients are driven.
//!
//! The program ends when its input does, so nothing outlives a test, not even one that was killed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use crate::Scratch;

/// An answer may take this long; a JVM that connects somewhere on two busy cores needs two minutes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

/// A running program.
#[derive(Debug)]
pub struct Dialogue {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    scratch: Scratch,
}

impl Dialogue {
    /// Starts a program and gives it with its first line.
    ///
    /// # Panics
    /// It does not start, or says nothing in time; the message has what it wrote on standard error.
    pub fn start(name: &str, mut command: Command) -> (Self, String) {
        let scratch = Scratch::new(name);
        let log = std::fs::File::create(scratch.path().join("log")).expect("the scratch folder is writable");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("its output is piped");
        let (sender, lines) = sync_channel(64);
        // Ends with the program's output, or when nobody reads any more.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let dialogue = Self { name: name.to_owned(), child, stdin, lines, scratch };
        let first = dialogue.line();
        (dialogue, first)
    }

    /// Says a line and gives the answer.
    ///
    /// # Panics
    /// The program ended or does not answer in time.
    pub fn ask(&mut self, line: &str) -> String {
        let stdin = self.stdin.as_mut().expect("its input is open until the end");
        if let Err(error) = writeln!(stdin, "{line}").and_then(|()| stdin.flush()) {
            panic!("{} takes no more input: {error}\n{}", self.name, log(self.scratch.path()));
        }
        self.line()
    }

    /// The next line it says by itself.
    ///
    /// # Panics
    /// The program ended or says nothing in time.
    pub fn line(&self) -> String {
        self.lines.recv_timeout(ANSWER_TIMEOUT).unwrap_or_else(|error| {
            let why = match error {
                RecvTimeoutError::Timeout => "does not answer",
                RecvTimeoutError::Disconnected => "ended",
            };
            panic!("{} {why}:\n{}", self.name, log(self.scratch.path()));
        })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Dialogue {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("log")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_answered_in_order() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready; while read -r line; do echo \"<$line>\"; done"]);
        let (mut dialogue, first) = Dialogue::start("echo", command);
        assert_eq!(first, "ready");
        assert_eq!(dialogue.ask("a b"), "<a b>");
        assert_eq!(dialogue.ask("c"), "<c>");
    }
}
