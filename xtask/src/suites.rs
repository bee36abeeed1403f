//! Running the test binaries: one after the other, each with its time, its own degree of parallelism and a limit.
//!
//! `cargo test` builds them and hides the rest: which one takes the minutes, and which one hangs for ever. So cargo only
//! builds here and says where the binaries are. Tests of the registries mostly wait for leases and pushes, so more of
//! them run at once than there are cores.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use test_support::NOT_RUN_FILE_ENV;

use crate::command::{cargo, shown};
use crate::steps::FEATURES;
use crate::tally::Tally;

/// No suite takes a quarter of it on a quiet machine.
const LIMIT: Duration = Duration::from_secs(25 * 60);

/// Suites that wait more than they compute, and how many of their tests run at once.
const WAITING: &[(&str, usize)] = &[("metaroute-registry it", 6)];

/// One test binary.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Suite {
    /// The package and, unless it is the package's own unit tests, the target.
    pub(crate) name: String,
    package: String,
    folder: PathBuf,
    binary: PathBuf,
}

/// How a suite ended.
pub(crate) struct Ran {
    pub(crate) name: String,
    pub(crate) took: Duration,
    /// What is wrong beyond single failed tests: a crash, or the limit.
    pub(crate) trouble: Option<String>,
    pub(crate) success: bool,
}

/// Builds all tests; `None` when they do not compile, which cargo has said by then.
pub(crate) fn build(locked: &[&str]) -> Result<Option<Vec<Suite>>> {
    let mut command = cargo(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    command.args(FEATURES).args(locked).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run `{}`", shown(&command)))?;
    let stdout = child.stdout.take().context("the output of cargo is a pipe")?;
    let mut suites = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.context("cannot read the output of cargo")?;
        suites.extend(suite(&line)?);
    }
    Ok(child.wait()?.success().then_some(suites))
}

/// The suite in one message of cargo, if there is one in it.
fn suite(message: &str) -> Result<Option<Suite>> {
    let Ok(message) = serde_json::from_str::<Value>(message) else { return Ok(None) };
    let Some(binary) = message["executable"].as_str().filter(|_| message["profile"]["test"] == true) else {
        return Ok(None);
    };
    let manifest = Path::new(message["manifest_path"].as_str().context("a test binary without a manifest")?);
    let target = message["target"]["name"].as_str().context("a test binary without a target")?;
    let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
    let id = message["package_id"].as_str().context("a test binary without a package")?;
    let package = package_name(id).with_context(|| format!("no package name in {id:?}"))?;
    let name = match kind {
        "lib" => package.to_owned(),
        "bin" => format!("{package} bin {target}"),
        _ => format!("{package} {target}"),
    };
    let folder = manifest.parent().context("a manifest without a folder")?.to_owned();
    Ok(Some(Suite { name, package: package.to_owned(), folder, binary: binary.into() }))
}

/// `path+file:///a/crates/core#metaroute-core@0.1.0`, or `…/crates/test-support#0.1.0` where folder and package are named alike.
fn package_name(id: &str) -> Option<&str> {
    let (path, fragment) = id.rsplit_once('#')?;
    match fragment.split_once('@') {
        Some((name, _)) => Some(name),
        None => path.rsplit('/').next(),
    }
}

impl Suite {
    /// Runs it, its output on the terminal and in the tally.
    pub(crate) fn run(&self, not_run: &Path, tally: &mut Tally) -> Result<Ran> {
        println!("\n--- {}", self.name);
        let mut command = Command::new(&self.binary);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("CARGO_PKG_NAME", &self.package)
            .env(NOT_RUN_FILE_ENV, not_run);
        if let Some((_, threads)) = WAITING.iter().find(|(name, _)| *name == self.name) {
            command.arg(format!("--test-threads={threads}"));
        }
        watch(&self.name, command, tally)
    }
}

/// The examples in the documentation, all of them.
pub(crate) fn documentation(locked: &[&str], not_run: &Path, tally: &mut Tally) -> Result<Ran> {
    println!("\n--- examples in the documentation");
    let mut command = cargo(["test", "--workspace", "--doc", "--no-fail-fast"]);
    command.args(FEATURES).args(locked).env(NOT_RUN_FILE_ENV, not_run);
    watch("examples in the documentation", command, tally)
}

fn watch(name: &str, mut command: Command, tally: &mut Tally) -> Result<Ran> {
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // A suite that hangs is killed with everything it started.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run `{}`", shown(&command)))?;
    let stdout = child.stdout.take().context("the output is a pipe")?;
    let (ended, limit) = mpsc::sync_channel::<()>(0);
    let group = Pid::from_child(&child);
    let guard = std::thread::spawn(move || {
        let late = limit.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout);
        if late {
            let _ = kill_process_group(group, Signal::KILL);
        }
        late
    });
    let reported = tally.failed;
    read(stdout, tally)?;
    let status = wait(&mut child)?;
    drop(ended);
    let late = guard.join().unwrap_or(false);
    let trouble = if late {
        Some(format!("{name} did not end within {} min and was killed", LIMIT.as_secs() / 60))
    } else if !status.success() && tally.failed == reported {
        Some(format!("{name} ended with {status}"))
    } else {
        None
    };
    Ok(Ran { name: name.to_owned(), took: started.elapsed(), trouble, success: status.success() })
}

fn read(stdout: impl Read, tally: &mut Tally) -> Result<()> {
    for line in BufReader::new(stdout).split(b'\n') {
        // Tests print what they like, in any encoding.
        let line = line.context("cannot read the output of a test")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        tally.line(&line);
    }
    Ok(())
}

fn wait(child: &mut Child) -> Result<ExitStatus> {
    match child.wait() {
        Ok(status) => Ok(status),
        Err(error) => bail!("cannot wait for a test: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_binary_is_found_in_cargos_messages() {
        let message = r#"{"reason":"compiler-artifact","package_id":"path+file:///a/crates/core#metaroute-core@0.1.0",
            "manifest_path":"/a/crates/core/Cargo.toml","target":{"kind":["test"],"name":"it"},"profile":{"test":true},
            "executable":"/a/target/debug/deps/it-1"}"#;
        let found = suite(message).expect("well-formed").expect("a test");
        assert_eq!(found.name, "metaroute-core it");
        assert_eq!(found.folder, Path::new("/a/crates/core"));
        let plain = message.replace(r#""test":true"#, r#""test":false"#);
        assert_eq!(suite(&plain).expect("well-formed"), None, "a program that is no test");
        assert_eq!(suite("warning: something").expect("no message"), None);
    }

    #[test]
    fn a_package_is_named_in_both_forms_of_its_id() {
        assert_eq!(package_name("path+file:///a/crates/core#metaroute-core@0.1.0"), Some("metaroute-core"));
        assert_eq!(package_name("path+file:///a/crates/test-support#0.1.0"), Some("test-support"));
    }

    #[test]
    fn a_suite_that_fails_without_a_failed_test_is_trouble() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'test result: ok. 2 passed; 0 failed'; exit 3"]);
        let mut tally = Tally::default();
        let ran = watch("odd", command, &mut tally).expect("it runs");
        assert!(!ran.success && ran.trouble.is_some_and(|trouble| trouble.contains("odd ended with")));
        assert_eq!(tally.passed, 2);
    }
}
