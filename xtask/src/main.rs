//! The commands behind the README's test line and CI.
//!
//! `cargo xtask test` is the one way this project is checked, by people and by machines; CI calls it and adds nothing. It brings
//! what it needs (servers, Java classes, tools) into a cache folder outside the checkout while cargo compiles, runs every
//! check, and ends with a summary in words: what ran, how long it took, and what did not run and why. Where `CI=true`
//! nothing may be left out.
//!
//! Arguments are read by hand and the dependencies are few, because everything waits for this crate to be built.
#![forbid(unsafe_code)]
// The whole purpose is to talk to the terminal.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod command;
mod fuzz;
mod install;
mod needs;
mod steps;
mod suites;
mod tally;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [--fast] [--no-install] [STEP...]
        every check of the project, or only the steps named
        --fast        fmt, clippy and the tests, with the peers that are already on the machine
        --no-install  bring nothing: neither Debian packages nor downloads
  peers [NAME...]
        bring what the tests need, all of it or only the names given
  fuzz [--runs N] [TARGET...]
        run the fuzz targets, a million executions each unless told otherwise (needs the nightly toolchain)
  bench
        how to run the benchmarks

  METAROUTE_CACHE=DIR   where downloads and builds are kept (default ~/.cache/metaroute)
  CI=true               whatever is missing is a failure
";

const BENCH: &str = "\
The benchmarks are a workspace of their own, so that the rivals stay out of our lock file:

  cd bench && cargo bench                    all of them (cmake is needed to build one of the rivals)
  cd bench && cargo bench --bench pick       picking against pingora, volo and tower
  cd bench && cargo bench --bench expr       expressions against cel
  cd bench && cargo bench --bench rebuild    full rebuild and delta

docs/benchmarks.md has the results with machine, date and command. Let nothing else run on the machine.
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["test", rest @ ..] => match test::Options::parse(rest) {
            Ok(options) => test::run(&options),
            Err(message) => return usage(&message),
        },
        ["peers", names @ ..] => match needs::by_names(names) {
            Ok(needs) => install::all(&needs),
            Err(message) => return usage(&message),
        },
        ["fuzz", rest @ ..] => match fuzz::Options::parse(rest) {
            Ok(options) => fuzz::run(&options),
            Err(message) => return usage(&message),
        },
        ["bench"] => {
            print!("{BENCH}");
            Ok(true)
        }
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(true)
        }
        [] => return usage("a command is missing"),
        [other, ..] => return usage(&format!("unknown command or argument {other:?}")),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage(message: &str) -> ExitCode {
    eprint!("xtask: {message}\n\n{USAGE}");
    ExitCode::from(2)
}
