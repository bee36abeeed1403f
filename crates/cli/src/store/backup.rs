//! `metaroute backup` and `restore`: checkpoints of all stores of a data folder, and the small files beside them.
//!
//! A closed data folder is read here; a running server saves itself and sends the same files (see
//! [`metaroute_server::api::backup`]).
//!
//! A backup is a folder: one `NAME.checkpoint` per store, `files/` with everything else of the data folder, and
//! `backup.json`, written last, which makes it complete. A backup without it is not restored.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Component, Path, PathBuf};

use clap::Args;
use metaroute_server::api::backup::{DATA, END, FILE};
use metaroute_store::{Cancel, CheckpointLimits, CheckpointSummary, OpenOptions, Store, verify_checkpoint};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::client::{Client, ServerArg};
use crate::failure::{Failure, Outcome};
use crate::output::{GOOD, Out, paint};
use crate::source;
use crate::status::Status;

const MANIFEST: &str = "backup.json";
const FILES: &str = "files";
/// More than any frame of a server has; a list of all shards is the longest.
const FRAME_BYTES_MAX: usize = 16 << 20;

#[derive(Args)]
#[command(after_help = "\
Examples:
  metaroute backup /backups/monday                  # of the server that runs here
  metaroute backup /backups/monday --server http://127.0.0.1:7401
  metaroute backup /backups/monday --data data      # of a folder no server has open
  metaroute restore /backups/monday --data data-new")]
pub(crate) struct Backup {
    /// Where to write it: an empty or new folder, also as file:PATH
    #[arg(value_name = "DIR|URL")]
    to: String,
    /// The data folder, read without a server; none may have it open
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  metaroute restore /backups/monday --data data-new
  metaroute up --data data-new")]
pub(crate) struct Restore {
    /// A backup
    #[arg(value_name = "DIR|URL")]
    from: String,
    /// The data folder to make; empty or new
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

/// `backup.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    version: u32,
    stores: Vec<Saved>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    /// Folder of the store in the data folder; empty for the data folder itself.
    path: String,
    /// The checkpoint's file.
    file: String,
    rows: u64,
    tombstones: u64,
    bytes: u64,
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage("io", format!("cannot {what} {}: {error}", path.display()))
}

/// A folder by its path or `file:` address.
fn folder(text: &str) -> Result<PathBuf, Failure> {
    if let Some(path) = text.strip_prefix("file://").or_else(|| text.strip_prefix("file:")) {
        return Ok(path.into());
    }
    if text.contains("://") {
        return Err(Failure::usage("unsupported_url", format!("{text} is no folder"))
            .expected(["a folder", "file:PATH"])
            .hint("copy the folder there yourself; backup.json last, which makes it complete"));
    }
    Ok(text.into())
}

fn must_be_empty(path: &Path, code: &'static str) -> Result<(), Failure> {
    fs::create_dir_all(path).map_err(|e| cannot("make", path, &e))?;
    let mut entries = fs::read_dir(path).map_err(|e| cannot("list", path, &e))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(Failure::usage(code, format!("{} is not empty", path.display()))),
    }
}

impl Backup {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let to = folder(&self.to)?;
        let manifest = match &self.data {
            Some(data) => closed(data, &to)?,
            None => source::runtime()?.block_on(running(&self.server, &to))?,
        };
        report(out, "backed up", &manifest)
    }
}

/// Backs up a data folder that nobody has open.
fn closed(data: &Path, to: &Path) -> Result<Manifest, Failure> {
    let stores = super::find(data)?;
    must_be_empty(to, "backup_exists")?;
    let mut manifest = Manifest { version: 1, stores: Vec::new() };
    for path in &stores {
        let relative = path.strip_prefix(data).unwrap_or(Path::new("")).to_string_lossy().into_owned();
        let name = if relative.is_empty() { "store".to_owned() } else { relative.replace('/', ".") };
        let file = format!("{name}.checkpoint");
        let summary = checkpoint(path, &to.join(&file)).map_err(|failure| match &*failure.code {
            "store_locked" => failure.hint("leave --data out to back up a running server, or stop it"),
            _ => failure,
        })?;
        manifest.stores.push(Saved {
            path: relative,
            file,
            rows: summary.rows,
            tombstones: summary.tombstones,
            bytes: summary.bytes,
        });
    }
    copy_others(data, &to.join(FILES), &stores)?;
    write_manifest(to, &manifest)?;
    Ok(manifest)
}

/// Backs up a running server.
async fn running(server: &ServerArg, to: &Path) -> Result<Manifest, Failure> {
    let client = server.client()?;
    let mut response = client.send(reqwest::Method::GET, "/v1/backup", &[], None).await?;
    // Only now, so that a server that cannot be reached leaves nothing behind.
    must_be_empty(to, "backup_exists")?;
    let mut unpacking = Unpacking { to, held: Vec::new(), file: None };
    while let Some(bytes) = response.chunk().await.map_err(|error| cut(&client, &error))? {
        unpacking.held.extend_from_slice(&bytes);
        if let Some(manifest) = unpacking.take_frames()? {
            write_manifest(to, &manifest)?;
            return Ok(manifest);
        }
    }
    let ended = "the backup ended before it was complete";
    Err(Failure::new(Status::Incomplete, "incomplete", ended).hint("the server's log says why"))
}

fn cut(client: &Client, error: &reqwest::Error) -> Failure {
    let reached = client.unreachable(error);
    Failure::new(Status::Incomplete, "incomplete", format!("the backup broke off: {}", reached.message))
}

/// A stream of frames becoming files.
struct Unpacking<'a> {
    to: &'a Path,
    /// What has arrived of frames that are not whole yet.
    held: Vec<u8>,
    file: Option<(PathBuf, BufWriter<File>)>,
}

impl Unpacking<'_> {
    /// Takes what has arrived; the manifest at the end.
    fn take_frames(&mut self) -> Result<Option<Manifest>, Failure> {
        let mut at = 0;
        let manifest = loop {
            let Some((&[kind, a, b, c, d], behind)) = self.held[at..].split_first_chunk::<5>() else { break None };
            let len = u32::from_le_bytes([a, b, c, d]) as usize;
            if len > FRAME_BYTES_MAX {
                return Err(bad_answer(format!("a frame of {len} bytes")));
            }
            let Some(payload) = behind.get(..len) else { break None };
            match kind {
                FILE => {
                    close(self.file.take())?;
                    let name = std::str::from_utf8(payload).map_err(|_| bad_answer("a name that is not UTF-8"))?;
                    self.file = Some(create(self.to, name)?);
                }
                DATA => {
                    let (path, file) = self.file.as_mut().ok_or_else(|| bad_answer("data of no file"))?;
                    file.write_all(payload).map_err(|e| cannot("write", path, &e))?;
                }
                END => {
                    close(self.file.take())?;
                    let manifest = serde_json::from_slice(payload);
                    break Some(manifest.map_err(|e| bad_answer(format!("no {MANIFEST}: {e}")))?);
                }
                kind => return Err(bad_answer(format!("a frame of kind {kind}"))),
            }
            at += 5 + len;
        };
        self.held.drain(..at);
        Ok(manifest)
    }
}

fn bad_answer(what: impl std::fmt::Display) -> Failure {
    Failure::new(Status::Unreachable, "bad_answer", format!("the server sent {what}, which is no backup"))
}

/// A new file of a backup, which must lie within it.
fn create(to: &Path, name: &str) -> Result<(PathBuf, BufWriter<File>), Failure> {
    if name.is_empty() || !stays_inside(name) {
        return Err(bad_answer(format!("the file name {name:?}")));
    }
    let path = to.join(name);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|e| cannot("make", folder, &e))?;
    }
    let file = File::create_new(&path).map_err(|e| cannot("write", &path, &e))?;
    Ok((path, BufWriter::with_capacity(1 << 20, file)))
}

fn close(file: Option<(PathBuf, BufWriter<File>)>) -> Result<(), Failure> {
    let Some((path, file)) = file else { return Ok(()) };
    let file = file.into_inner().map_err(|e| cannot("write", &path, e.error()))?;
    file.sync_all().map_err(|e| cannot("sync", &path, &e))
}

/// Whether a relative path leads nowhere else.
fn stays_inside(text: &str) -> bool {
    Path::new(text).components().all(|c| matches!(c, Component::Normal(_)))
}

fn checkpoint(store: &Path, file: &Path) -> Result<CheckpointSummary, Failure> {
    let options = OpenOptions { create: false, ..OpenOptions::default() };
    let store = Store::open(store, options).map_err(|error| super::failure(&error))?;
    let made = File::create(file).map_err(|e| cannot("write", file, &e))?;
    let mut out = BufWriter::with_capacity(1 << 20, made);
    let summary = store
        .checkpoint(&mut out, CheckpointLimits::default(), &Cancel::new())
        .map_err(|error| super::failure(&error))?;
    let made = out.into_inner().map_err(|e| cannot("write", file, e.error()))?;
    made.sync_all().map_err(|e| cannot("sync", file, &e))?;
    store.close();
    Ok(summary)
}

fn write_manifest(to: &Path, manifest: &Manifest) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(manifest).expect("a manifest is plain data");
    let (draft, path) = (to.join("backup.json.part"), to.join(MANIFEST));
    let written = File::create(&draft).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, &path)?;
        File::open(to)?.sync_all()
    });
    written.map_err(|e| cannot("write", &path, &e))
}

/// Copies what is no store: the shape of a data folder, its keys.
fn copy_others(from: &Path, to: &Path, stores: &[PathBuf]) -> Result<(), Failure> {
    if stores.iter().any(|store| store == from) {
        return Ok(());
    }
    for entry in fs::read_dir(from).map_err(|e| cannot("list", from, &e))? {
        let path = entry.map_err(|e| cannot("list", from, &e))?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_others(&path, &target, stores)?;
        } else if path.is_file() {
            fs::create_dir_all(to).map_err(|e| cannot("make", to, &e))?;
            fs::copy(&path, &target).map_err(|e| cannot("copy", &path, &e))?;
        }
    }
    Ok(())
}

impl Restore {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let from = folder(&self.from)?;
        let path = from.join(MANIFEST);
        let text = fs::read_to_string(&path).map_err(|e| {
            Failure::usage("bad_backup", format!("{} is no complete backup: {MANIFEST}: {e}", from.display()))
        })?;
        let manifest: Manifest = serde_json::from_str(&text)
            .map_err(|e| Failure::usage("bad_backup", format!("{} cannot be read: {e}", path.display())))?;
        if manifest.version != 1 {
            let message = format!("backup version {} is not known to this build", manifest.version);
            return Err(Failure::usage("bad_backup", message));
        }
        must_be_empty(&self.data, "data_exists")?;
        // Everything is looked over before anything is made.
        for saved in &manifest.stores {
            if !stays_inside(&saved.path) || !stays_inside(&saved.file) {
                return Err(Failure::usage("bad_backup", format!("{:?} leads out of the backup", saved.path)));
            }
            let file = from.join(&saved.file);
            let summary = verify_checkpoint(&mut open(&file)?).map_err(|error| {
                Failure::usage("bad_backup", format!("{}: {}", file.display(), super::explain(&error)))
            })?;
            if (summary.rows, summary.tombstones) != (saved.rows, saved.tombstones) {
                return Err(Failure::usage("bad_backup", format!("{} is another checkpoint", file.display())));
            }
        }
        for saved in &manifest.stores {
            let target = if saved.path.is_empty() { self.data.clone() } else { self.data.join(&saved.path) };
            let mut file = open(&from.join(&saved.file))?;
            Store::restore(&target, &mut file, OpenOptions::default(), &Cancel::new())
                .map_err(|error| super::failure(&error))?;
        }
        let files = from.join(FILES);
        if files.is_dir() {
            copy_others(&files, &self.data, &[])?;
        }
        report(out, "restored", &manifest)
    }
}

fn open(path: &Path) -> Result<BufReader<File>, Failure> {
    let file = File::open(path).map_err(|e| cannot("read", path, &e))?;
    Ok(BufReader::with_capacity(1 << 20, file))
}

fn report(out: &mut Out, done: &str, manifest: &Manifest) -> Outcome {
    if out.is_text() {
        for saved in &manifest.stores {
            let name = if saved.path.is_empty() { "store" } else { &saved.path };
            let (rows, tombstones, bytes) = (saved.rows, saved.tombstones, saved.bytes);
            out.line(format!("{} {name}: {rows} rows, {tombstones} tombstones, {bytes} bytes", paint(GOOD, done)))?;
        }
    } else {
        out.json(&json!({ "stores": manifest.stores }))?;
    }
    Ok(Status::Done)
}
