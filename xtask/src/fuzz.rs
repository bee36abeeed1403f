//! `cargo xtask fuzz`: every fuzz target for a number of executions.
//!
//! A test run only compiles the targets; finding something takes minutes each and the nightly toolchain, so it is a command of its own.
//! What a target finds stays under `fuzz/artifacts`, what it learns under `fuzz/corpus`; both are ignored by Git: a
//! finding becomes a named plain test.

use std::fs;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::command::{root, succeeds};
use crate::install::Background;
use crate::needs;

/// What the user asked for.
pub(crate) struct Options {
    runs: u64,
    targets: Vec<String>,
}

impl Options {
    pub(crate) fn parse(args: &[&str]) -> Result<Self, String> {
        let mut options = Self { runs: 1_000_000, targets: Vec::new() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--runs" => {
                    let value = args.next().ok_or("--runs needs a number")?;
                    options.runs = value.parse().map_err(|_| format!("--runs needs a number, not {value:?}"))?;
                }
                flag if flag.starts_with('-') => return Err(format!("unknown flag {flag:?}")),
                target => options.targets.push(target.to_owned()),
            }
        }
        Ok(options)
    }
}

/// Runs the targets one after the other; returns whether none found anything.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let known = targets()?;
    if let Some(unknown) = options.targets.iter().find(|target| !known.contains(target)) {
        bail!("unknown target {unknown:?}; known are {}", known.join(", "));
    }
    if let Some(unmet) = Background::start(&[needs::CARGO_FUZZ]).finish().first() {
        bail!("cargo-fuzz is missing: {}", unmet.why);
    }
    let cargo_fuzz = needs::cargo_fuzz()?;
    let chosen = if options.targets.is_empty() { &known } else { &options.targets };
    let mut lines = Vec::new();
    let mut clean = true;
    for target in chosen {
        let started = Instant::now();
        let mut command = Command::new("rustup");
        command
            .current_dir(root())
            .args(["run", "nightly"])
            .arg(&cargo_fuzz)
            .args(["fuzz", "run", target, "--"])
            .arg(format!("-runs={}", options.runs))
            // Long inputs are slow and rarely find what short ones do not.
            .args(["-max_len=4096", "-print_final_stats=1"]);
        let found_nothing = succeeds(&mut command)?;
        clean &= found_nothing;
        let verdict = if found_nothing { "nothing found" } else { "FAILED, see above" };
        lines.push(format!("  {target:<20} {:>6.1} min  {verdict}", started.elapsed().as_secs_f64() / 60.0));
    }
    println!("\n{} executions each:\n{}", options.runs, lines.join("\n"));
    Ok(clean)
}

/// The names of the files in `fuzz/fuzz_targets`, as `cargo fuzz list` has them.
fn targets() -> Result<Vec<String>> {
    let dir = root().join("fuzz/fuzz_targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && let Some(stem) = path.file_stem()
        {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_targets_are_read() {
        let options = Options::parse(&["--runs", "500", "expr"]).expect("they are valid");
        assert_eq!((options.runs, options.targets), (500, vec!["expr".to_owned()]));
        assert!(Options::parse(&["--runs", "many"]).is_err());
        assert!(Options::parse(&["--runs"]).is_err());
        assert!(Options::parse(&["--jobs"]).is_err());
    }
}
