//! Schemathesis (PyPI) against everything that `up` serves.

use std::process::Command;

use test_support::cache;

use crate::rows::Process;

/// Documents, limits and status codes of services, rows and topology agree with what is answered. `/metrics` has no schema
/// to speak of, and the console is no API.
#[test]
fn schemathesis_finds_nothing_in_up() {
    let peer = test_support::require!(cache::peer("schemathesis"));
    let folder = tempfile::tempdir().expect("a folder");
    let up = Process::up(folder.path(), &[]);
    let output = Command::new(peer.join("venv/bin/schemathesis"))
        .current_dir(folder.path())
        .arg("--config-file")
        .arg(cache::recipe_dir("schemathesis").join("schemathesis.toml"))
        .args(["run", &format!("{}/openapi.json", up.address())])
        .args(["--seed", "2", "--max-examples", "20", "--workers", "1", "--no-color"])
        .args(["--phases", "examples,coverage,fuzzing"])
        .output()
        .expect("it starts");
    let text = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
}
