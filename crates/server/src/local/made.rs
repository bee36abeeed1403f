//! Which shards of a data folder have been made.
//!
//! Opening a store that is not there makes an empty one, which is right once. A folder whose shard was deleted, or whose
//! disk was not mounted, would come up with that part empty and answer as if it had never held a row. So what was made is
//! written down: one `GROUP/SHARD` a line in `DIR/shards/made`. A folder without the file, from an older build or a
//! backup, gets it when its shards are open.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use metaroute_cluster::protocol::ShardId;

/// The list, kept on disk.
#[derive(Debug)]
pub(super) struct Made {
    path: PathBuf,
    shards: Mutex<BTreeSet<String>>,
}

impl Made {
    /// Reads the list of a data folder; none is an empty one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn read(data: &Path) -> Result<Made, std::io::Error> {
        let path = data.join("shards").join("made");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let shards = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
        Ok(Made { path, shards: Mutex::new(shards) })
    }

    /// Whether a shard was made.
    pub(super) fn has(&self, id: &ShardId) -> bool {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner).contains(&id.to_string())
    }

    /// Notes that a shard is there, or that the topology no longer wants it.
    ///
    /// # Errors
    /// When that cannot be written; it counts in this process all the same.
    pub(super) fn set(&self, id: &ShardId, made: bool) -> Result<(), std::io::Error> {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = if made { shards.insert(id.to_string()) } else { shards.remove(&id.to_string()) };
        if !changed {
            return Ok(());
        }
        let text: String = shards.iter().map(|shard| format!("{shard}\n")).collect();
        super::write_synced(&self.path, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("shards")).expect("made");
        let made = Made::read(folder.path()).expect("none yet");
        let (a, b) = (ShardId::new("g0", "s0"), ShardId::new("g0", "s1"));
        assert!(!made.has(&a));
        made.set(&a, true).expect("written");
        made.set(&b, true).expect("written");
        made.set(&b, false).expect("written");
        let again = Made::read(folder.path()).expect("readable");
        assert!(again.has(&a) && !again.has(&b));
    }
}
