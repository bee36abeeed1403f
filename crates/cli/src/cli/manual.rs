//! `docs/cli.md` is the binary's own help, so it cannot say anything else.

use std::fmt::Write as _;
use std::path::Path;

use clap::CommandFactory as _;

use super::Cli;
use crate::status;

const HEAD: &str = "\
# Command line

This page is printed from the binary's own help; a test fails when it is out of date (`UPDATE_DOCS=1 cargo test -p
metaroute-cli manual` writes it anew).

Data goes to stdout, messages and errors to stderr. `--format json` prints one JSON document, `--format ndjson` one object a
line where results stream; errors then are one JSON object on stderr:

```json
{\"error\":{\"code\":\"bad_expression\",\"message\":\"…\",\"at\":{\"line\":1,\"column\":13},\"expected\":[\"…\"],\"hint\":\"…\"}}
```

`code` is stable. Files are read by their extension: `.yaml`, `.yml`, `.json`, `.toml`, `.properties`; `-` is stdin. Colours appear
on terminals only and never with `NO_COLOR`.
";

/// Every command with a help of its own, in order.
fn leaves(command: &clap::Command, path: &str, out: &mut String) {
    if !command.has_subcommands() {
        let help = command.clone().bin_name(path).term_width(100).render_long_help().to_string();
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        // Writing to a string cannot fail.
        let _ = write!(out, "\n## {path}\n\n```text\n{}\n```\n", help.join("\n").trim_end());
        return;
    }
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        leaves(sub, &format!("{path} {}", sub.get_name()), out);
    }
}

#[test]
fn the_manual_is_current() {
    let mut command = Cli::command();
    command.build();
    let mut text = format!("{HEAD}\n## Exit status\n\n```text\n{}\n```\n", status::TABLE);
    leaves(&command, "metaroute", &mut text);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).expect("write the manual");
    }
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(have == text, "docs/cli.md is out of date: run this test with UPDATE_DOCS=1");
}

#[test]
fn every_command_has_examples() {
    fn check(command: &clap::Command, path: &str) {
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        if !command.has_subcommands() {
            assert!(after.starts_with("Examples:\n  "), "{path}");
        }
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            check(sub, &format!("{path} {}", sub.get_name()));
        }
    }
    let mut command = Cli::command();
    command.build();
    check(&command, "metaroute");
}
