//! Debian packages, by name.
//!
//! System packages are only installed where that surprises nobody: as root on a machine with apt, which is what containers and
//! CI machines are. Everybody else is told the names.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use test_support::program;

use super::Site;
use crate::command::logged;

/// The package manager: one user at a time, its lists fetched once per run.
#[derive(Default)]
pub(crate) struct Debian {
    updated: Mutex<bool>,
}

/// Installs packages.
pub(crate) fn bring(site: &Site, packages: &[&str]) -> Result<()> {
    if program("apt-get").is_err() {
        bail!("no apt-get here; it is in the Debian packages {}", packages.join(" "));
    }
    if !rustix::process::geteuid().is_root() {
        bail!("not root; `apt-get install {}` brings it", packages.join(" "));
    }
    let mut updated = site.debian.updated.lock().unwrap_or_else(PoisonError::into_inner);
    if !*updated {
        logged(apt().arg("update"), &site.log)?;
        *updated = true;
    }
    logged(apt().args(["install", "--yes", "--no-install-recommends"]).args(packages), &site.log)
}

/// Installs those packages whose program is not there: pairs of program and package.
pub(crate) fn bring_programs(site: &Site, programs: &[(&str, &str)]) -> Result<()> {
    let packages: Vec<&str> =
        programs.iter().filter(|(name, _)| program(name).is_err()).map(|(_, package)| *package).collect();
    if packages.is_empty() { Ok(()) } else { bring(site, &packages) }
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    // Another apt on the machine is waited for, not failed on.
    command.args(["-q", "-o", "DPkg::Lock::Timeout=300"]).env("DEBIAN_FRONTEND", "noninteractive");
    command
}
