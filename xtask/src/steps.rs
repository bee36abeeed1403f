//! The checks, in the order they run.
//!
//! What compiles comes first and the tests last, so that servers and tools arrive in the background meanwhile. All steps share one target
//! folder and no step sets `RUSTFLAGS`, which would build everything again.

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use test_support::{in_ci, program};

use crate::command::{cargo, root, shown, succeeds};
use crate::install::{Background, Unmet};
use crate::needs;
use crate::suites;
use crate::tally::Tally;

/// One check.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// Part of `--fast`.
    pub(crate) fast: bool,
    /// Whether this checkout has something for it.
    pub(crate) applies: fn() -> bool,
    pub(crate) run: fn(&mut Run) -> Result<Outcome>,
}

/// What the steps of one run share.
pub(crate) struct Run {
    pub(crate) tally: Tally,
    /// Where tests report that they did not run.
    pub(crate) not_run_file: PathBuf,
    /// What is being brought, until somebody waited for it.
    pub(crate) background: Option<Background>,
    /// A workspace that does not compile would only say so once more instead of running tests.
    pub(crate) broken: bool,
}

/// How a step ended.
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    /// Outside CI only.
    NotRun(String),
}

impl Outcome {
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    fn of(success: bool, what: &str) -> Self {
        if success { Self::Passed } else { Self::Failed(what.to_owned()) }
    }

    /// For what the machine lacks: a failure in CI.
    fn lacking(reason: String) -> Self {
        if in_ci() { Self::Failed(reason) } else { Self::NotRun(reason) }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed(why) => write!(f, "FAILED: {why}"),
            Self::NotRun(why) => write!(f, "not run: {why}"),
        }
    }
}

impl Run {
    /// Waits until everything being brought is there or has failed.
    pub(crate) fn wait_for_needs(&mut self) -> Vec<Unmet> {
        self.background.take().map(Background::finish).unwrap_or_default()
    }
}

/// Every step.
pub(crate) const ALL: &[Step] = &[
    Step { name: "fmt", what: "source is formatted", fast: true, applies: always, run: fmt },
    Step {
        name: "clippy",
        what: "no lint fires in any target of the workspace",
        fast: true,
        applies: always,
        run: clippy,
    },
    Step { name: "build", what: "all tests compile", fast: true, applies: always, run: build },
    Step { name: "doc", what: "the documentation builds without a warning", fast: false, applies: always, run: doc },
    Step {
        name: "features",
        what: "each crate compiles alone, without features, with the default ones, with each one where they are few, and with all",
        fast: false,
        applies: always,
        run: features,
    },
    Step {
        name: "fuzz",
        what: "the fuzz targets compile",
        fast: false,
        applies: || root().join("fuzz/Cargo.toml").is_file(),
        run: fuzz,
    },
    Step {
        name: "peers",
        what: "the real servers and tools are on the machine",
        fast: false,
        applies: always,
        run: peers,
    },
    Step { name: "deny", what: "dependencies: licences, bans, sources", fast: false, applies: always, run: deny },
    Step { name: "test", what: "unit, integration and documentation tests", fast: true, applies: always, run: test },
];

fn always() -> bool {
    true
}

/// Features that are not among the default ones and are tested all the same. One set for all steps, so that nothing is
/// built twice; that the default ones alone compile is the step `features`.
pub(crate) const FEATURES: &[&str] = &["--features", "metaroute-registry/kubernetes"];

/// In CI the lock file is law; elsewhere somebody may be changing a manifest.
fn locked() -> &'static [&'static str] {
    if in_ci() { &["--locked"] } else { &[] }
}

/// Minimal Rust installations have neither rustfmt nor clippy.
fn lacks_component(subcommand: &str, component: &str) -> Result<Option<Outcome>> {
    let mut command = cargo([subcommand, "--version"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let reason = format!("`rustup component add {component}` brings it");
    Ok(if succeeds(&mut command)? { None } else { Some(Outcome::lacking(reason)) })
}

fn fmt(_: &mut Run) -> Result<Outcome> {
    if let Some(outcome) = lacks_component("fmt", "rustfmt")? {
        return Ok(outcome);
    }
    Ok(Outcome::of(succeeds(&mut cargo(["fmt", "--all", "--check"]))?, "`cargo fmt --all` changes files"))
}

fn clippy(_: &mut Run) -> Result<Outcome> {
    if let Some(outcome) = lacks_component("clippy", "clippy")? {
        return Ok(outcome);
    }
    let mut command = cargo(["clippy", "--workspace", "--all-targets", "--keep-going"]);
    command.args(FEATURES).args(locked()).args(["--", "-D", "warnings"]);
    Ok(Outcome::of(succeeds(&mut command)?, "see the warnings above"))
}

fn build(run: &mut Run) -> Result<Outcome> {
    let mut command = cargo(["test", "--workspace", "--no-run"]);
    run.broken = !succeeds(command.args(FEATURES).args(locked()))?;
    Ok(Outcome::of(!run.broken, "see the errors above"))
}

fn doc(_: &mut Run) -> Result<Outcome> {
    // Libraries only: the binary has the name of one of them, and the pages of one would overwrite the other's.
    let mut command = cargo(["doc", "--workspace", "--no-deps", "--lib", "--keep-going"]);
    command.args(FEATURES).args(locked()).env("RUSTDOCFLAGS", "-D warnings");
    Ok(Outcome::of(succeeds(&mut command)?, "see the warnings above"))
}

/// Crates with more features than this are checked without any, with the default ones and with all: each alone would take
/// longer than the tests, and features that stand for one registry each do not meet one another.
const EACH_ALONE_UP_TO: usize = 5;

/// Building the workspace unifies features and so hides what a crate alone lacks.
fn features(_: &mut Run) -> Result<Outcome> {
    let mut broken = Vec::new();
    for (name, features) in crates_and_features()? {
        let mut sets: Vec<Vec<String>> = vec![vec![]];
        if !features.is_empty() {
            sets.push(vec!["--no-default-features".into()]);
            let named = features.iter().filter(|feature| *feature != "default");
            let alone = if named.clone().count() > EACH_ALONE_UP_TO { 0 } else { EACH_ALONE_UP_TO };
            sets.extend(
                named
                    .take(alone)
                    .map(|feature| vec!["--no-default-features".into(), "--features".into(), feature.clone()]),
            );
            sets.push(vec!["--all-features".into()]);
        }
        for set in sets {
            let mut command = cargo(["check", "--quiet", "--package", &name]);
            command.args(locked()).args(&set);
            println!("{}", shown(&command));
            if !succeeds(&mut command)? {
                broken.push(format!("{name} {}", set.join(" ")).trim_end().to_owned());
            }
        }
    }
    Ok(Outcome::of(broken.is_empty(), &format!("does not compile alone: {}", broken.join(", "))))
}

fn crates_and_features() -> Result<Vec<(String, Vec<String>)>> {
    let mut command = cargo(["metadata", "--format-version", "1", "--no-deps"]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot run `cargo metadata`")?;
    if !output.status.success() {
        bail!("`cargo metadata` failed ({})", output.status);
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("cannot read what `cargo metadata` printed")?;
    let packages = metadata["packages"].as_array().context("`cargo metadata` lists no packages")?;
    packages
        .iter()
        .map(|package| {
            let name = package["name"].as_str().context("a package without a name")?.to_owned();
            let features = package["features"].as_object().context("a package without a feature table")?;
            Ok((name, features.keys().cloned().collect()))
        })
        .collect()
}

/// Running them needs the nightly toolchain and time; compiling them keeps them from rotting.
fn fuzz(_: &mut Run) -> Result<Outcome> {
    if program("c++").is_err() {
        return Ok(Outcome::lacking("libFuzzer needs a C++ compiler (g++)".to_owned()));
    }
    // Its own lock file may lag behind: nothing of it is shipped, and every change of a dependency of ours would change it too.
    let mut command = cargo(["check", "--manifest-path", "fuzz/Cargo.toml", "--target-dir", "target"]);
    Ok(Outcome::of(succeeds(&mut command)?, "see the errors above"))
}

fn peers(run: &mut Run) -> Result<Outcome> {
    let unmet = run.wait_for_needs();
    let mut missing = Vec::new();
    for need in needs::ALL {
        if let Err(absent) = (need.check)() {
            let failed = unmet.iter().find(|unmet| unmet.need.name == need.name);
            missing.push(format!("{} ({})", need.name, failed.map_or(absent.to_string(), |unmet| unmet.why.clone())));
        }
    }
    if missing.is_empty() {
        return Ok(Outcome::Passed);
    }
    Ok(Outcome::lacking(format!("missing: {}; tests that need them do not run", missing.join(", "))))
}

fn deny(run: &mut Run) -> Result<Outcome> {
    run.wait_for_needs();
    let binary = match needs::cargo_deny() {
        Ok(binary) => binary,
        Err(missing) => return Ok(Outcome::lacking(missing.to_string())),
    };
    let mut command = Command::new(binary);
    command.current_dir(root()).args(["check", "licenses", "bans", "sources"]);
    Ok(Outcome::of(succeeds(&mut command)?, "see the errors above"))
}

fn test(run: &mut Run) -> Result<Outcome> {
    run.wait_for_needs();
    if run.broken {
        return Ok(Outcome::Failed("no test ran: they do not compile".to_owned()));
    }
    let Some(suites) = suites::build(locked())? else {
        return Ok(Outcome::Failed("no test ran: they do not compile".to_owned()));
    };
    let mut ran = Vec::new();
    for suite in &suites {
        ran.push(suite.run(&run.not_run_file, &mut run.tally)?);
    }
    ran.push(suites::documentation(locked(), &run.not_run_file, &mut run.tally)?);
    println!("\nminutes per suite:");
    for suite in ran.iter().filter(|suite| suite.took.as_secs() >= 3) {
        println!("  {:>5.1}  {}", suite.took.as_secs_f64() / 60.0, suite.name);
    }
    let mut wrong: Vec<String> = ran.iter().filter_map(|suite| suite.trouble.clone()).collect();
    if run.tally.failed > 0 {
        wrong.push(format!("{} of {} tests", run.tally.failed, run.tally.failed + run.tally.passed));
    }
    Ok(Outcome::of(ran.iter().all(|suite| suite.success), &wrong.join("; ")))
}
