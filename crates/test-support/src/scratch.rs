//! Temporary folders that survive a failing test.

use std::io::Write;
use std::path::Path;

use tempfile::TempDir;

/// A folder removed on drop, or kept and named on standard error when the test is panicking.
#[derive(Debug)]
pub struct Scratch {
    dir: TempDir,
}

impl Scratch {
    /// Makes a folder whose name starts with `metaroute-<name>-`.
    ///
    /// # Panics
    /// The temporary folder is not writable.
    pub fn new(name: &str) -> Self {
        let dir = tempfile::Builder::new()
            .prefix(&format!("metaroute-{name}-"))
            .tempdir()
            .expect("the temporary folder is writable");
        Self { dir }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.dir.disable_cleanup(true);
            let _ = writeln!(std::io::stderr(), "kept for a look: {}", self.dir.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_with_a_passing_test_and_stays_with_a_failing_one() {
        let gone = Scratch::new("gone").path().to_owned();
        assert!(!gone.exists());

        let kept = std::thread::spawn(|| {
            let scratch = Scratch::new("kept");
            std::panic::panic_any(scratch.path().to_owned());
        })
        .join()
        .expect_err("it panicked");
        let kept = kept.downcast::<std::path::PathBuf>().expect("the panic carries the path");
        assert!(kept.exists());
        std::fs::remove_dir_all(*kept).expect("remove");
    }
}
