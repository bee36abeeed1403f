//! What happens to a test whose peer is not on the machine.
//!
//! libtest has no "skipped" a test can choose at run time, and a test that returns early counts as passed. So the decision is made
//! in one place: in CI a missing peer is a failure; elsewhere the test says on the real standard error that it did not run,
//! and leaves a line in the file named by [`NOT_RUN_FILE_ENV`], from which `cargo xtask test` corrects its count.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Environment variable with the path of the file that collects tests not run, one `test<TAB>reason` a line.
pub const NOT_RUN_FILE_ENV: &str = "METAROUTE_NOT_RUN";

/// Something a test needs and the machine lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// What is missing, as a person would name it: `program mariadbd`, `peer ribbon`.
    pub what: String,
    /// The command that brings it.
    pub remedy: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is missing; {}", self.what, self.remedy)
    }
}

impl std::error::Error for Missing {}

impl Missing {
    /// Records that the calling test did not run; `module` is the caller's `module_path!()`.
    ///
    /// # Panics
    /// Where `CI=true`: there nothing may be left out.
    pub fn report(&self, module: &str) {
        assert!(!in_ci(), "{self} (CI=true: a missing peer is a failure)");
        // libtest names each test's thread after the test. Integration test binaries are all called `it`, so the package's
        // name, which cargo gives to what it runs, says more than the module path.
        let thread = std::thread::current();
        let package = std::env::var("CARGO_PKG_NAME");
        let package = package.as_deref().unwrap_or_else(|_| module.split("::").next().unwrap_or(module));
        let test = format!("{package}::{}", thread.name().unwrap_or("unnamed"));
        // Not `eprintln!`: libtest swallows that for passing tests.
        let _ = writeln!(std::io::stderr(), "not run: {test}: {self}");
        if let Some(file) = std::env::var_os(NOT_RUN_FILE_ENV)
            && let Ok(mut file) = OpenOptions::new().create(true).append(true).open(file)
        {
            // One write call: appends of this size from several test binaries do not interleave.
            let _ = file.write_all(format!("{test}\t{self}\n").as_bytes());
        }
    }
}

/// Unwraps what a test needs, or leaves the test as *not run* (a failure where `CI=true`).
///
/// ```no_run
/// fn talks_to_a_database() {
///     let program = test_support::require!(test_support::program("mariadbd"));
///     println!("would start {}", program.display());
/// }
/// ```
#[macro_export]
macro_rules! require {
    ($need:expr) => {
        match $need {
            Ok(found) => found,
            Err(missing) => {
                let missing: $crate::Missing = missing;
                missing.report(module_path!());
                return;
            }
        }
    };
}

/// Whether this is a CI run, where nothing may be left out: `CI=true` or `CI=1`.
pub fn in_ci() -> bool {
    matches!(std::env::var("CI").as_deref(), Ok("true" | "1"))
}

/// Finds a program on `PATH` or in the system folders where servers live (`/usr/sbin` is not on everybody's `PATH`).
///
/// # Errors
/// [`Missing`], naming the program.
pub fn program(name: &str) -> Result<PathBuf, Missing> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
        .ok_or_else(|| Missing {
            what: format!("program {name}"),
            remedy: "`cargo xtask peers` installs it on Debian as root".to_owned(),
        })
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_name() {
        assert!(program("sh").expect("every machine has sh").is_absolute());
    }

    #[test]
    fn an_absent_program_names_itself_and_the_remedy() {
        let missing = program("no-such-program-here").expect_err("absent");
        assert_eq!(missing.what, "program no-such-program-here");
        assert!(missing.to_string().contains("cargo xtask peers"), "{missing}");
    }
}
