//! What README.md and the guide show is what the commands print.

use std::path::{Path, PathBuf};

use crate::run::command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What a command of a page prints, asked in the folder of the examples.
fn output(line: &str) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_metaroute"));
    let path = std::env::var("PATH").unwrap_or_default();
    let folder = binary.parent().expect("a folder").display();
    let output = std::process::Command::new("sh")
        .args(["-c", &format!("{line} 2>&1")])
        .current_dir(root().join("docs/examples"))
        .env("PATH", format!("{folder}:{path}"))
        .env_remove("CLICOLOR_FORCE")
        .output()
        .expect("a shell");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The page with the output of its commands as they are now.
fn current(text: &str) -> String {
    let mut out = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        out.push_str(&format!("{line}\n"));
        if line != "```console" {
            continue;
        }
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let ours = |line: &&str| line.starts_with("$ metaroute ") || line.starts_with("$ cat ");
        if block.first().is_some_and(ours) {
            for line in block.iter().filter(|line| ours(line)) {
                out.push_str(&format!("{line}\n{}", output(&line[2..])));
            }
        } else {
            block.iter().for_each(|line| out.push_str(&format!("{line}\n")));
        }
        out.push_str("```\n");
    }
    out
}

#[track_caller]
fn check(page: &str) {
    let path = root().join(page);
    let have = std::fs::read_to_string(&path).expect("the page");
    let now = current(&have);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &now).expect("write the page");
        return;
    }
    let different = have.lines().zip(now.lines()).find(|(have, now)| have != now);
    assert!(have == now, "{page} is out of date: run this test with UPDATE_DOCS=1\n{different:#?}");
}

#[test]
fn the_readme_shows_what_is_printed() {
    check("README.md");
}

#[test]
fn the_guide_shows_what_is_printed() {
    check("docs/guide-operators.md");
}

#[test]
fn links_of_the_pages_lead_somewhere() {
    for page in ["README.md", "docs/guide-operators.md"] {
        let text = std::fs::read_to_string(root().join(page)).expect("the page");
        let folder = root().join(page).parent().expect("a folder").to_owned();
        for part in text.split("](").skip(1) {
            let target = part.split(')').next().expect("an end");
            let file = target.split('#').next().expect("a start");
            assert!(file.starts_with("http") || folder.join(file).exists(), "{page}: {target}");
        }
    }
}

/// The two commands of the README exist: the binary has `up`, and xtask has `test`.
#[test]
fn the_two_commands_exist() {
    assert!(command().args(["up", "--help"]).output().expect("metaroute runs").status.success());
    let usage = std::fs::read_to_string(root().join("xtask/src/main.rs")).expect("xtask");
    assert!(usage.contains("usage: cargo xtask COMMAND") && usage.contains("\n  test "));
}
