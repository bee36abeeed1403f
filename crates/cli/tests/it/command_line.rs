//! What holds for every command: help, versions, usage errors, streams.

use std::io::Read as _;
use std::process::Stdio;

use crate::run::{command, metaroute};

#[test]
fn alone_it_prints_help() {
    let run = metaroute::<&str>([]);
    assert_eq!(run.status, 0);
    assert!(run.stdout.contains("Usage: metaroute"), "{run:?}");
    assert!(run.stdout.contains("Examples:"), "{run:?}");
    assert!(run.stderr.is_empty(), "{run:?}");
}

#[test]
fn every_command_says_its_version_and_prints_help_with_examples() {
    let version = metaroute(["--version"]);
    assert_eq!((version.status, version.stdout.trim()), (0, concat!("metaroute ", env!("CARGO_PKG_VERSION"))));
    for words in [&["expr", "eval"][..], &["expr", "check"], &["expr", "fmt"], &["completions"]] {
        let run = metaroute(words.iter().copied().chain(["--help"]));
        assert_eq!(run.status, 0, "{words:?}");
        assert!(run.stdout.contains("Examples:\n  metaroute "), "{words:?}: {}", run.stdout);
    }
}

#[test]
fn the_long_help_lists_the_exit_statuses() {
    let run = metaroute(["--help"]);
    assert!(run.stdout.contains("70  a bug of ours"), "{run:?}");
}

#[test]
fn usage_errors_are_status_2_in_the_form_asked_for() {
    let text = metaroute(["expr", "eval", "a == 1", "--wiht", "a=1"]);
    assert_eq!(text.status, 2);
    assert!(text.stdout.is_empty() && text.stderr.contains("--with"), "{text:?}");

    for (args, code) in [
        (&["expr", "eval", "a == 1", "--wiht", "a=1"][..], "unknown_argument"),
        (&["exrp"], "unknown_command"),
        (&["expr"], "missing_command"),
        (&["expr", "eval"], "missing_argument"),
        (&["expr", "fmt", "a == 1", "-f", "x"], "conflicting_arguments"),
        (&["expr", "eval", "a == 1", "--with", "a"], "bad_value"),
        (&["expr", "eval", "a == 1", "--dialect", "v2"], "bad_value"),
    ] {
        let run = metaroute(args.iter().copied().chain(["--format", "json"]));
        assert_eq!(run.status, 2, "{args:?}");
        assert!(run.stdout.is_empty(), "{args:?}");
        let error = run.error();
        assert_eq!(error["code"], code, "{args:?}: {error}");
        assert!(!error["message"].as_str().unwrap().starts_with("error"), "{error}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = command()
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("metaroute starts");
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("UTF-8");
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{stderr}");
    assert_eq!(stderr, "");
}

#[test]
fn colours_only_where_they_are_wanted() {
    let run = |set: &[(&str, &str)]| {
        let output =
            command().args(["expr", "check", "a == 1"]).envs(set.iter().copied()).output().expect("metaroute runs");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    assert!(!run(&[]).contains('\x1b'), "no terminal, no colours");
    assert!(run(&[("CLICOLOR_FORCE", "1")]).contains('\x1b'), "unless forced");
    assert!(!run(&[("CLICOLOR_FORCE", "0"), ("NO_COLOR", "1")]).contains('\x1b'));
}

#[test]
fn completions_exist_for_the_usual_shells() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = metaroute(["completions", shell]);
        assert_eq!(run.status, 0, "{shell}");
        assert!(run.stdout.contains("metaroute"), "{shell}");
    }
}
