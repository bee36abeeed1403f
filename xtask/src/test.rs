//! `cargo xtask test`: the plan, the run, the summary.

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use test_support::in_ci;

use crate::command::root;
use crate::install::Background;
use crate::needs;
use crate::steps::{self, Outcome, Run, Step};
use crate::tally::Tally;

/// What the user asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    fast: bool,
    install: bool,
    steps: Vec<String>,
}

impl Options {
    pub(crate) fn parse(args: &[&str]) -> Result<Self, String> {
        let mut options = Self { install: true, ..Self::default() };
        for arg in args {
            match *arg {
                "--fast" => (options.fast, options.install) = (true, false),
                "--no-install" => options.install = false,
                flag if flag.starts_with('-') => return Err(format!("unknown flag {flag:?}")),
                name if steps::ALL.iter().any(|step| step.name == name) => options.steps.push(name.to_owned()),
                name => {
                    let known: Vec<_> = steps::ALL.iter().map(|step| step.name).collect();
                    return Err(format!("unknown step {name:?}; known are {}", known.join(", ")));
                }
            }
        }
        Ok(options)
    }

    fn wants(&self, step: &Step) -> bool {
        if self.steps.is_empty() { !self.fast || step.fast } else { self.steps.iter().any(|name| name == step.name) }
    }
}

/// Runs the steps wanted, prints the summary and returns whether everything passed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let steps: Vec<&Step> = steps::ALL.iter().filter(|step| options.wants(step) && (step.applies)()).collect();
    println!("plan:");
    for step in &steps {
        println!("  {:<9} {}", step.name, step.what);
    }
    let has = |name| steps.iter().any(|step| step.name == name);
    let needed: Vec<_> = needs::ALL
        .iter()
        .filter(|need| if need.name == "cargo-deny" { has("deny") } else { has("peers") || has("test") })
        .copied()
        .collect();
    let background = options.install.then(|| Background::start(&needed));

    let target = root().join("target/xtask");
    fs::create_dir_all(&target).with_context(|| format!("cannot make {}", target.display()))?;
    let not_run_file = target.join("not-run.txt");
    fs::write(&not_run_file, "")?;

    let started = Instant::now();
    let mut run = Run { tally: Tally::default(), not_run_file, background, broken: false };
    let mut results = Vec::new();
    for step in steps {
        println!("\n=== {}: {}", step.name, step.what);
        let step_started = Instant::now();
        let outcome = (step.run)(&mut run).unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        let took = step_started.elapsed();
        println!("=== {}: {} ({})", step.name, outcome, minutes(took));
        results.push((step, outcome, took));
    }
    // A run without the step that waits for them still must not end under them.
    run.wait_for_needs();

    let not_run = fs::read_to_string(&run.not_run_file).unwrap_or_default();
    print!("{}", summary(&results, &run.tally, &not_run, started.elapsed()));
    Ok(results.iter().all(|(_, outcome, _)| !outcome.is_failure()))
}

/// The words at the end. The last line is the one other programs read.
fn summary(results: &[(&Step, Outcome, Duration)], tally: &Tally, not_run: &str, took: Duration) -> String {
    let mut text =
        format!("\nSummary, {}{}\n", minutes(took), if in_ci() { ", nothing may be left out (CI)" } else { "" });
    for (step, outcome, took) in results {
        let _ = writeln!(text, "  {:<9} {:>8}  {outcome}", step.name, minutes(*took));
    }
    if !tally.failures.is_empty() {
        text.push_str("Failed tests:\n");
        for name in &tally.failures {
            let _ = writeln!(text, "  {name}");
        }
    }
    let not_run: Vec<&str> = not_run.lines().collect();
    if !not_run.is_empty() {
        text.push_str("Tests that did not run:\n");
        for line in &not_run {
            let _ = writeln!(text, "  {}", line.replace('\t', ": "));
        }
    }
    let failed_steps = results.iter().filter(|(_, outcome, _)| outcome.is_failure()).count();
    let test_step_failed = results.iter().any(|(step, outcome, _)| step.name == "test" && outcome.is_failure());
    // A failed test step is already counted by its tests, unless it failed before any could.
    let failed = tally.failed + failed_steps - usize::from(test_step_failed && tally.failed > 0);
    let passed = tally.passed.saturating_sub(not_run.len());
    let skipped = tally.ignored + not_run.len();
    let _ = writeln!(text, "\n{passed} passed, {failed} failed, {skipped} skipped");
    text
}

fn minutes(took: Duration) -> String {
    format!("{:.1} min", took.as_secs_f64() / 60.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str) -> &'static Step {
        steps::ALL.iter().find(|step| step.name == name).expect("a known step")
    }

    #[test]
    fn the_last_line_counts_tests_that_did_not_run_as_skipped() {
        let tally = Tally { passed: 10, failed: 0, ignored: 1, failures: vec![] };
        let results = [(step("test"), Outcome::Passed, Duration::from_secs(90))];
        let text = summary(&results, &tally, "a::b\tpeer ribbon is missing\n", Duration::from_secs(120));
        assert!(text.ends_with("\n9 passed, 0 failed, 2 skipped\n"), "{text}");
        assert!(text.contains("a::b: peer ribbon is missing"), "{text}");
        assert!(text.contains("1.5 min"), "{text}");
    }

    #[test]
    fn a_failed_step_counts_even_without_a_failed_test() {
        let failed = || Outcome::Failed("exit status 1".into());
        let last = |results: &[(&Step, Outcome, Duration)], tally: &Tally| {
            summary(results, tally, "", Duration::ZERO).lines().last().map(str::to_owned)
        };
        let none = Tally::default();
        let two = Tally { passed: 5, failed: 2, ignored: 0, failures: vec!["x".into(), "y".into()] };
        let both = [(step("fmt"), failed(), Duration::ZERO), (step("test"), failed(), Duration::ZERO)];
        assert_eq!(last(&both[1..], &none).as_deref(), Some("0 passed, 1 failed, 0 skipped"));
        assert_eq!(last(&both[1..], &two).as_deref(), Some("5 passed, 2 failed, 0 skipped"));
        assert_eq!(last(&both, &two).as_deref(), Some("5 passed, 3 failed, 0 skipped"));
    }

    #[test]
    fn flags_and_steps_are_read() {
        let fast = Options::parse(&["--fast"]).expect("a flag");
        assert!(fast.wants(step("test")) && !fast.wants(step("features")) && !fast.install);
        let one = Options::parse(&["fmt"]).expect("a step");
        assert!(one.wants(step("fmt")) && !one.wants(step("test")) && one.install);
        assert!(Options::parse(&["--quick"]).expect_err("unknown").contains("--quick"));
        assert!(Options::parse(&["lint"]).expect_err("unknown").contains("clippy"));
    }
}
