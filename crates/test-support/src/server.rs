//! One real server process under a test's control.
//!
//! The process runs in its own process group, so that a Ctrl-C at the terminal reaches the test runner and not the server, and so
//! that its children die with it. It is addressed by process id only, never by name: other tests run the same program. A
//! small guard process holds the read end of a pipe whose write end is ours; if the test binary is killed, the pipe closes and
//! the guard kills the group, so nothing outlives a test run.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::wait::{backoff_poll, wait_until};

/// A server may take this long to be ready; a JVM on two cores, with a compiler and five others beside it, needs two minutes.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a server may take to end after SIGTERM before SIGKILL follows.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// How much of the log an error carries.
const TAIL_BYTES: u64 = 4096;

/// Why a server did not come up. The message ends with the tail of its log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The log could not be opened or the program not be started.
    #[error("cannot start {name}")]
    Spawn {
        /// The server's name in messages.
        name: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It ended before it was ready.
    #[error("{name} ended before it was ready ({status}); its log ends:\n{log}")]
    Exited {
        /// The server's name in messages.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// The tail of its log.
        log: String,
    },
    /// The deadline passed.
    #[error("{name} was not ready after {timeout:?}; its log ends:\n{log}")]
    NotReady {
        /// The server's name in messages.
        name: String,
        /// The deadline that passed.
        timeout: Duration,
        /// The tail of its log.
        log: String,
    },
}

/// When a server counts as ready.
pub enum Ready {
    /// A TCP connection to this address is accepted.
    Connects(SocketAddr),
    /// The log has a line containing this text, written since the latest start.
    LogSays(String),
    /// The closure returns true.
    Check(Box<dyn FnMut() -> bool + Send>),
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connects(address) => f.debug_tuple("Connects").field(address).finish(),
            Self::LogSays(text) => f.debug_tuple("LogSays").field(text).finish(),
            Self::Check(_) => f.write_str("Check(..)"),
        }
    }
}

/// A server process that can be stopped, killed, paused and started again with the same arguments.
///
/// Dropping it kills the whole process group; a panicking test first gets the tail of the log.
#[derive(Debug)]
pub struct Server {
    name: String,
    command: Command,
    log: PathBuf,
    /// Length of the log when the latest start began.
    log_start: u64,
    ready: Ready,
    start_timeout: Duration,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    guard: Child,
}

impl Server {
    /// Starts `command` and waits until it is ready. Output goes to `log`, which later starts append to.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start(name: &str, command: Command, log: &Path, ready: Ready) -> Result<Self, ServerError> {
        Self::start_within(START_TIMEOUT, name, command, log, ready)
    }

    /// Like [`start`](Self::start) with a deadline of its own.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start_within(
        timeout: Duration,
        name: &str,
        command: Command,
        log: &Path,
        ready: Ready,
    ) -> Result<Self, ServerError> {
        let mut server = Self {
            name: name.to_owned(),
            command,
            log: log.to_owned(),
            log_start: 0,
            ready,
            start_timeout: timeout,
            running: None,
        };
        server.command.stdin(Stdio::null()).process_group(0);
        server.start_again()?;
        Ok(server)
    }

    /// Starts the process with the arguments it was first given, and waits until it is ready. A running one is killed before.
    ///
    /// # Errors
    /// See [`ServerError`]. The process does not run then.
    pub fn start_again(&mut self) -> Result<(), ServerError> {
        self.kill();
        self.running = Some(self.spawn().map_err(|source| ServerError::Spawn { name: self.name.clone(), source })?);
        let result = self.wait_ready();
        if result.is_err() {
            self.kill();
        }
        result
    }

    fn spawn(&mut self) -> io::Result<Running> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        self.log_start = log.metadata()?.len();
        let mut child = self.command.stdout(log.try_clone()?).stderr(log).spawn()?;
        // The guard has no other job than to outlive us by one system call.
        let guard = Command::new("sh")
            .args(["-c", r#"read -r _; kill -9 "-$0""#])
            .arg(child.id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        match guard {
            Ok(guard) => Ok(Running { child, guard }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    fn wait_ready(&mut self) -> Result<(), ServerError> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let (log, log_start) = (&self.log, self.log_start);
        let outcome = backoff_poll(self.start_timeout, || {
            // Ended first: another process may be answering on the port.
            if let Ok(Some(status)) = running.child.try_wait() {
                return Some(Err(status));
            }
            let ready = match &mut self.ready {
                Ready::Connects(address) => TcpStream::connect_timeout(address, Duration::from_millis(500)).is_ok(),
                Ready::LogSays(text) => read_from(log, log_start).lines().any(|line| line.contains(text.as_str())),
                Ready::Check(check) => check(),
            };
            ready.then_some(Ok(()))
        });
        match outcome {
            Some(Ok(())) => Ok(()),
            Some(Err(status)) => Err(ServerError::Exited { name: self.name.clone(), status, log: self.log_tail() }),
            None => Err(ServerError::NotReady {
                name: self.name.clone(),
                timeout: self.start_timeout,
                log: self.log_tail(),
            }),
        }
    }

    /// Asks the process to end (SIGTERM), and kills it if it has not after twenty seconds. Returns its status, `None` if it did not run.
    pub fn stop(&mut self) -> Option<ExitStatus> {
        self.signal(Signal::TERM);
        // A paused process would keep the request pending.
        self.signal(Signal::CONT);
        let child = &mut self.running.as_mut()?.child;
        wait_until(STOP_TIMEOUT, || !matches!(child.try_wait(), Ok(None)));
        self.kill()
    }

    /// Kills the process group (SIGKILL), as a power cut would. Returns the status, `None` if it did not run.
    pub fn kill(&mut self) -> Option<ExitStatus> {
        let mut running = self.running.take()?;
        // The group may outlive its leader, so it is signalled even if the leader has ended; reaping comes after, which keeps the id ours.
        let _ = kill_process_group(Pid::from_child(&running.child), Signal::KILL);
        let status = running.child.wait().ok();
        let _ = running.guard.kill();
        let _ = running.guard.wait();
        status
    }

    /// Stops the process from running (SIGSTOP): connections stay open and nothing answers, like a partition.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a paused process go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(running) = &self.running {
            // An error here means the process has just ended, which the caller sees by other means.
            let _ = kill_process(Pid::from_child(&running.child), signal);
        }
    }

    /// The process id, `None` while it does not run.
    pub fn id(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    /// Whether the process is there (paused ones are).
    pub fn is_running(&mut self) -> bool {
        self.running.as_mut().is_some_and(|running| matches!(running.child.try_wait(), Ok(None)))
    }

    /// The whole log, all starts together.
    pub fn log(&self) -> String {
        read_from(&self.log, 0)
    }

    /// The last 4 KiB of the log.
    pub fn log_tail(&self) -> String {
        let len = self.log.metadata().map_or(0, |meta| meta.len());
        read_from(&self.log, len.saturating_sub(TAIL_BYTES))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "--- log of {} ends:\n{}\n---", self.name, self.log_tail());
        }
        self.kill();
    }
}

/// The log from `offset` on; what cannot be read or is not UTF-8 is left out or replaced, since this is for people.
fn read_from(log: &Path, offset: u64) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests;
