//! Servers that are Rust programs: built once from crates.io, at an exact version with the author's lock file.
//!
//! They are peers and no tools: a debug build answers fast enough, and costs a fraction of the time. The build is told to leave the
//! processors to whoever works beside it.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use test_support::cache;

use super::Site;
use crate::command::logged;

/// Builds the binary of crate `name` into the cache, where `test_support::cache::program_of_crate` finds it.
pub(crate) fn bring(site: &Site, name: &str, version: &str) -> Result<()> {
    let dir = cache::crate_dir(name, version);
    if dir.exists() {
        // An interrupted build.
        fs::remove_dir_all(&dir)?;
    }
    let build = dir.join("build");
    fs::create_dir_all(&build).with_context(|| format!("cannot make {}", build.display()))?;
    let mut command = Command::new("nice");
    command
        .args(["-n", "15"])
        .arg(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["install", name, "--locked", "--debug", "--no-track", "--version", version])
        .arg("--root")
        .arg(&dir)
        // Not the folder of the checkout: its lock would stop every other build.
        .env("CARGO_TARGET_DIR", &build)
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_INCREMENTAL", "0")
        // The checkout's settings are not this program's.
        .current_dir(&dir);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "RUSTFLAGS" {
            command.env_remove(name);
        }
    }
    logged(&mut command, &site.log)?;
    fs::remove_dir_all(&build)?;
    fs::write(dir.join(cache::COMPLETE), "")?;
    Ok(())
}
