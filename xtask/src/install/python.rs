//! Python peers: a `requirements.txt` with pinned versions becomes a virtual environment in the cache.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use test_support::{cache, program};

use super::{Site, debian};
use crate::command::logged;

/// Builds the peer `name` into the cache: `venv/bin` has its programs.
pub(crate) fn bring(site: &Site, name: &str) -> Result<()> {
    debian::bring_programs(site, &[("python3", "python3-venv")])?;
    let recipe = cache::recipe_dir(name);
    let dir = cache::peer_dir(name).with_context(|| format!("cannot read {}", recipe.display()))?;
    if dir.exists() {
        // An interrupted build.
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let venv = dir.join("venv");
    logged(Command::new(program("python3")?).args(["-m", "venv"]).arg(&venv), &site.log)?;
    logged(
        Command::new(venv.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "--requirement"])
            .arg(recipe.join("requirements.txt")),
        &site.log,
    )?;
    fs::write(dir.join(cache::COMPLETE), "")?;
    Ok(())
}
