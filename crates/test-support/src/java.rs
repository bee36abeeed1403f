//! Running the Java peers that `cargo xtask peers` compiled into the cache.

use std::process::Command;

use crate::{Missing, cache, program};

/// A command that runs class `main` of the peer `name`; arguments can be added.
///
/// The flags keep a small program small: a quarter of a gigabyte at most, one collector thread, only the quick compiler.
///
/// # Errors
/// [`Missing`] if Java or the peer is not on the machine.
pub fn class(name: &str, main: &str) -> Result<Command, Missing> {
    let (java, dir) = (program("java")?, cache::peer(name)?);
    let mut command = Command::new(java);
    command
        .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"])
        .arg(format!("{}/lib/*:{}/classes", dir.display(), dir.display()))
        .arg(main);
    Ok(command)
}
