//! Runs the binary and reads what it said.

use std::ffi::OsStr;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

/// What one run said and how it ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// Stdout as one JSON document.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The last line of stderr as an error object, its content; log lines may stand before it.
    pub(crate) fn error(&self) -> Value {
        let last = self.stderr.lines().last().unwrap_or_default();
        let value: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        value["error"].clone()
    }
}

/// The binary, not started.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_metaroute"));
    command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env_remove("RUST_LOG");
    command
}

/// Runs `metaroute` with these arguments.
pub(crate) fn metaroute<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    metaroute_with(args, "")
}

/// Runs `metaroute` with these arguments and this standard input.
pub(crate) fn metaroute_with<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>, input: &str) -> Run {
    let mut child = command()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("metaroute starts");
    // A command that does not read its input may be gone already.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("metaroute ends");
    Run {
        status: output.status.code().expect("no signal ended it"),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}
