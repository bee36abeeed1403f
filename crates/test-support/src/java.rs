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
    class_with(name, main, None)
}

/// Like [`class`], with a folder of the recipe (configuration files) first on the class path.
///
/// # Errors
/// [`Missing`] if Java or the peer is not on the machine.
pub fn class_with(name: &str, main: &str, folder: Option<&str>) -> Result<Command, Missing> {
    let (java, dir) = (program("java")?, cache::peer(name)?);
    let mut path = format!("{}/lib/*:{}/classes", dir.display(), dir.display());
    if let Some(folder) = folder {
        path = format!("{}:{path}", cache::recipe_dir(name).join(folder).display());
    }
    let mut command = Command::new(java);
    command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]).arg(path).arg(main);
    Ok(command)
}
