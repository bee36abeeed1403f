//! Walking a tree of files.
//!
//! Only regular files become rows; links are not followed, so a tree that links to itself ends. A folder that cannot be
//! read is noted and passed over: what is below it is unknown, which is something else than gone.

use std::fs::{self, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use metaroute_store::{ColumnType, Value};
use xxhash_rust::xxh3::xxh3_64;

use super::ScanTenant;

/// One file as found.
#[derive(Clone, Debug, PartialEq)]
pub struct FileRow {
    /// xxh3-64 of the absolute path's bytes.
    pub file_id: u64,
    /// Whose it is.
    pub user_id: u64,
    /// The absolute path; bytes that are no UTF-8 are shown as `U+FFFD`.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// By the name's extension.
    pub mime: Option<&'static str>,
    /// BLAKE3 of the content, where asked for and readable.
    pub content_hash: Option<Vec<u8>>,
    /// When it was made, or last changed where the file system does not know; microseconds since 1970. `None` too where
    /// the file system says something that no column holds: files can be dated into any year.
    pub created_at: Option<i64>,
    /// When it was last changed, likewise.
    pub updated_at: Option<i64>,
}

impl FileRow {
    /// Its cells in the order of the built-in store's columns.
    pub fn into_values(self) -> Vec<Value> {
        let time = |micros: Option<i64>| micros.map_or(Value::Null, Value::Timestamp);
        vec![
            Value::U64(self.file_id),
            Value::U64(self.user_id),
            Value::String(self.path),
            Value::U64(self.size),
            self.mime.map_or(Value::Null, |mime| Value::String(mime.to_owned())),
            self.content_hash.map_or(Value::Null, Value::Bytes),
            time(self.created_at),
            time(self.updated_at),
        ]
    }
}

/// The id of a path.
pub fn file_id(path: &Path) -> u64 {
    xxh3_64(path.as_os_str().as_bytes())
}

/// The tenant of everything below a top folder: xxh3-64 of its name. Files directly in the tree's root are 0's.
pub fn top_dir_tenant(name: &std::ffi::OsStr) -> u64 {
    xxh3_64(name.as_bytes())
}

/// The files of a tree, folder by folder.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    tenant: ScanTenant,
    hash: bool,
    folders: Vec<PathBuf>,
    /// Folders that could not be read: nothing is known of what is below.
    unreadable: Vec<PathBuf>,
    unwanted: Arc<AtomicBool>,
}

impl Tree {
    /// A walk over `root`, which must be absolute.
    pub fn new(root: PathBuf, tenant: ScanTenant, hash: bool) -> Tree {
        Tree { folders: vec![root.clone()], root, tenant, hash, unreadable: Vec::new(), unwanted: Arc::default() }
    }

    /// Set it, and no content is read any more: hashing one file may take hours.
    pub fn unwanted(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.unwanted)
    }

    /// The files of the next folder; `None` when there is none left.
    pub fn next_folder(&mut self) -> Option<Vec<FileRow>> {
        let folder = self.folders.pop()?;
        let Ok(entries) = fs::read_dir(&folder) else {
            self.unreadable.push(folder);
            return Some(Vec::new());
        };
        let mut rows = Vec::new();
        for entry in entries {
            let Ok(entry) = entry else {
                self.unreadable.push(folder.clone());
                continue;
            };
            let path = entry.path();
            // Not followed: the entry itself.
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                self.unreadable.push(path);
                continue;
            };
            if metadata.is_dir() {
                self.folders.push(path);
            } else if metadata.is_file() {
                rows.push(self.row(&path, &metadata));
            }
        }
        Some(rows)
    }

    /// Folders still to be read, as far as they are known.
    pub fn folders_left(&self) -> usize {
        self.folders.len()
    }

    /// Whether a path that was not found is known to be gone.
    pub fn is_gone(&self, path: &Path) -> bool {
        path.starts_with(&self.root) && !self.unreadable.iter().any(|unread| path.starts_with(unread))
    }

    /// What could not be read.
    pub fn unreadable(&self) -> &[PathBuf] {
        &self.unreadable
    }

    fn row(&self, path: &Path, metadata: &Metadata) -> FileRow {
        let user_id = match self.tenant {
            ScanTenant::Owner => u64::from(metadata.uid()),
            ScanTenant::TopDir => self.top_dir(path),
        };
        let updated_at = micros(metadata.modified().ok());
        FileRow {
            file_id: file_id(path),
            user_id,
            path: path.to_string_lossy().into_owned(),
            size: metadata.len(),
            mime: mime_guess::from_path(path).first_raw(),
            content_hash: if self.hash { content_hash(path, &self.unwanted) } else { None },
            created_at: micros(metadata.created().ok()).or(updated_at),
            updated_at,
        }
    }

    fn top_dir(&self, path: &Path) -> u64 {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        let mut parts = below.components();
        match (parts.next(), parts.next()) {
            (Some(top), Some(_)) => top_dir_tenant(top.as_os_str()),
            _ => 0,
        }
    }
}

fn micros(time: Option<SystemTime>) -> Option<i64> {
    let time = time?;
    let micros = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_micros()).ok()?,
        Err(before) => -i64::try_from(before.duration().as_micros()).ok()?,
    };
    let held = Value::Timestamp(micros).for_column(ColumnType::Timestamp { digits: 6 }, false);
    held.is_ok().then_some(micros)
}

/// Read in pieces, so that a huge file costs no memory and reading it can be called off.
fn content_hash(path: &Path, unwanted: &AtomicBool) -> Option<Vec<u8>> {
    let mut file = fs::File::open(path).ok()?;
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; 1 << 17];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Some(hasher.finalize().as_bytes().to_vec()),
            Ok(read) => hasher.update(&piece[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => return None,
        };
        if unwanted.load(Ordering::Relaxed) {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(tree: &mut Tree) -> Vec<FileRow> {
        let mut rows: Vec<FileRow> = std::iter::from_fn(|| tree.next_folder()).flatten().collect();
        rows.sort_by(|a, b| a.path.cmp(&b.path));
        rows
    }

    #[test]
    fn files_become_rows_and_links_do_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("there");
        fs::create_dir_all(root.join("photos/2024")).expect("made");
        fs::write(root.join("photos/2024/a.jpg"), b"abc").expect("written");
        fs::write(root.join("notes.txt"), b"").expect("written");
        std::os::unix::fs::symlink(&root, root.join("photos/loop")).expect("linked");
        let mut tree = Tree::new(root.clone(), ScanTenant::TopDir, true);
        let rows = all(&mut tree);
        let short: Vec<(&str, u64, Option<&str>, u64)> = rows
            .iter()
            .map(|row| {
                (row.path.strip_prefix(root.to_str().expect("UTF-8")).expect("below"), row.size, row.mime, row.user_id)
            })
            .collect();
        let photos = top_dir_tenant(std::ffi::OsStr::new("photos"));
        assert_eq!(
            short,
            [("/notes.txt", 0, Some("text/plain"), 0), ("/photos/2024/a.jpg", 3, Some("image/jpeg"), photos)]
        );
        assert_eq!(rows[1].file_id, xxh3_64(root.join("photos/2024/a.jpg").as_os_str().as_bytes()));
        assert_eq!(rows[1].content_hash.as_deref(), Some(blake3::hash(b"abc").as_bytes().as_slice()));
        assert!(rows[1].updated_at.expect("known") > 1_600_000_000_000_000);
        assert!(tree.is_gone(&root.join("photos/old.jpg")));
        assert!(!tree.is_gone(Path::new("/elsewhere")));
        let values = rows[0].clone().into_values();
        assert!(crate::stores::file_metadata().check_row(values).is_ok());
    }

    #[test]
    fn a_date_that_no_column_holds_is_unknown() {
        use std::time::Duration;
        let at = |seconds: u64| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(micros(at(1_000_000_000)), Some(1_000_000_000_000_000));
        assert_eq!(micros(at(253_402_300_799)), Some(253_402_300_799_000_000), "the last second of 9999");
        assert_eq!(micros(at(253_402_300_800)), None);
        assert_eq!(micros(at(1 << 40)), None);
        let before = |seconds: u64| SystemTime::UNIX_EPOCH.checked_sub(Duration::from_secs(seconds));
        assert_eq!(micros(before(1)), Some(-1_000_000));
        assert_eq!(micros(before(1 << 40)), None);
    }

    #[test]
    fn reading_a_huge_file_can_be_called_off() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("there");
        // A hole: no disk, and hours to read.
        fs::File::create(root.join("huge")).and_then(|file| file.set_len(1 << 42)).expect("made");
        let mut tree = Tree::new(root, ScanTenant::Owner, true);
        let unwanted = tree.unwanted();
        let reading = std::thread::spawn(move || all(&mut tree));
        std::thread::sleep(std::time::Duration::from_millis(20));
        unwanted.store(true, Ordering::Relaxed);
        let rows = reading.join().expect("it ends");
        assert_eq!((rows[0].size, &rows[0].content_hash), (1 << 42, &None));
    }

    #[test]
    fn what_is_below_an_unreadable_folder_is_not_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("there");
        let mut tree = Tree::new(root.clone(), ScanTenant::Owner, false);
        // A folder that vanishes between being seen and being read stands for one without permission.
        tree.folders.push(root.join("secret"));
        all(&mut tree);
        assert_eq!(tree.unreadable(), [root.join("secret")]);
        assert!(!tree.is_gone(&root.join("secret/diary.txt")));
        assert!(tree.is_gone(&root.join("public/diary.txt")));
    }
}
