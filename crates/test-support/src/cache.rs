//! The folder outside the checkout where downloads and builds are kept.
//!
//! Peers cost minutes to fetch or build, so they outlive the checkout: `$METAROUTE_CACHE`, else `$XDG_CACHE_HOME/metaroute`, else
//! `~/.cache/metaroute`. `cargo xtask peers` fills it, tests read it. The folder of a peer carries a checksum of its recipe
//! (`peers/<name>/` in the checkout), so two checkouts with different recipes share the cache without disturbing each
//! other, and a changed recipe is built anew.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::Missing;

/// Name of the empty file that marks a peer's folder as complete; it is written last.
pub const COMPLETE: &str = ".complete";

/// The cache folder; it need not exist yet.
pub fn dir() -> PathBuf {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("METAROUTE_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("metaroute")))
        .or_else(|| var("HOME").map(|dir| dir.join(".cache/metaroute")))
        .unwrap_or_else(|| std::env::temp_dir().join("metaroute-cache"))
}

/// The recipe folder `peers/<name>` of this checkout.
pub fn recipe_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers").join(name)
}

/// Where the build of this checkout's recipe for `name` lives or will live.
///
/// # Errors
/// The recipe cannot be read.
pub fn peer_dir(name: &str) -> io::Result<PathBuf> {
    let key = tree_checksum(&recipe_dir(name))?;
    Ok(dir().join("peers").join(format!("{name}-{key:08x}")))
}

/// The complete build of a peer.
///
/// # Errors
/// [`Missing`] if it was never built from this checkout's recipe, or not to the end.
pub fn peer(name: &str) -> Result<PathBuf, Missing> {
    let missing = || Missing { what: format!("peer {name}"), remedy: format!("`cargo xtask peers {name}` builds it") };
    let dir = peer_dir(name).map_err(|_| missing())?;
    if dir.join(COMPLETE).is_file() { Ok(dir) } else { Err(missing()) }
}

/// Where version `version` of the program that crate `name` builds lives or will live.
pub fn crate_dir(name: &str, version: &str) -> PathBuf {
    dir().join("crates").join(format!("{name}-{version}"))
}

/// The program that crate `name` builds, at this version.
///
/// # Errors
/// [`Missing`] if it was never built, or not to the end.
pub fn program_of_crate(name: &str, version: &str) -> Result<PathBuf, Missing> {
    let dir = crate_dir(name, version);
    let program = dir.join("bin").join(name);
    if program.is_file() && dir.join(COMPLETE).is_file() {
        return Ok(program);
    }
    Err(Missing { what: format!("program {name} {version}"), remedy: format!("`cargo xtask peers {name}` builds it") })
}

/// CRC-32 over the sorted relative paths and contents of the files below `dir`. Equal recipes give equal sums on every machine.
fn tree_checksum(dir: &Path) -> io::Result<u32> {
    let mut files = Vec::new();
    collect(dir, &mut files)?;
    files.sort();
    let mut hasher = crc32fast::Hasher::new();
    for file in files {
        let name = file.strip_prefix(dir).unwrap_or(&file);
        hasher.update(name.as_os_str().as_encoded_bytes());
        hasher.update(&[0]);
        hasher.update(&fs::read(&file)?);
        hasher.update(&[0]);
    }
    Ok(hasher.finalize())
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scratch;

    #[test]
    fn the_checksum_follows_names_and_contents() {
        let scratch = Scratch::new("checksum");
        let write = |name: &str, text: &str| {
            let file = scratch.path().join(name);
            fs::create_dir_all(file.parent().expect("inside the scratch folder")).expect("create");
            fs::write(file, text).expect("write");
        };
        write("a/one", "1");
        write("two", "2");
        let first = tree_checksum(scratch.path()).expect("sum");
        assert_eq!(first, tree_checksum(scratch.path()).expect("sum"), "the same tree has the same sum");
        write("two", "3");
        let second = tree_checksum(scratch.path()).expect("sum");
        assert_ne!(first, second, "a changed file changes the sum");
        fs::rename(scratch.path().join("two"), scratch.path().join("three")).expect("rename");
        assert_ne!(second, tree_checksum(scratch.path()).expect("sum"), "a renamed file changes the sum");
    }

    #[test]
    fn a_peer_without_a_recipe_is_missing() {
        let missing = peer("no-such-peer").expect_err("no recipe");
        assert_eq!(missing.what, "peer no-such-peer");
    }
}
