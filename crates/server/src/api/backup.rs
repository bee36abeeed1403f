//! A backup of a running server, as one stream.
//!
//! All shards are looked at in the same moment: saved one after the other, a row that moved to another group meanwhile
//! could be in no checkpoint at all. The small files of the data folder come after the shards, so that the clock's bound
//! in a backup lies above every version in it.
//!
//! The stream is the backup folder that `metaroute backup` makes of a closed data folder, in frames: a kind, the length
//! of the payload (four bytes, little-endian), the payload. A file is a [`FILE`] with its path, any number of [`DATA`];
//! the stream ends with an [`END`] that holds `backup.json`, without which nothing is complete.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, StatusCode, header};
use metaroute_store::{Cancel, CheckpointLimits, Store, View};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use super::observe::{Answered, Asked, Done};
use super::problem::Problem;
use crate::shard::with_causes;

/// A file begins; the payload is its path in the backup.
pub const FILE: u8 = 1;
/// More of the file.
pub const DATA: u8 = 2;
/// Everything was sent; the payload is `backup.json`.
pub const END: u8 = 3;

/// Longest payload of a frame of data.
const FRAME_MAX: usize = 256 << 10;

/// Frames that wait for the client; behind them the checkpoint waits.
const AHEAD: usize = 8;

/// Each backup holds on to what its views see, so the process makes one at a time.
static RUNNING: Semaphore = Semaphore::const_new(1);

/// How long one waits for another to end: long enough for a client that asks again as soon as it has the last frame.
const TURN_WITHIN: Duration = Duration::from_secs(1);

/// `GET /v1/backup`
pub(super) async fn backup(asked: Asked) -> Answered {
    let Some(local) = asked.service.local.clone() else {
        let problem = Problem::not_found("this server has no shards of its own");
        return Err(problem.hint("back up the data folders of the shards"));
    };
    let running = match tokio::time::timeout(TURN_WITHIN, RUNNING.acquire()).await {
        Ok(Ok(running)) => running,
        _ => return Err(Problem::overloaded("a backup is running already")),
    };
    let mut shards = Vec::new();
    for host in local.hosts() {
        let not_ready = |why: String| {
            let detail = format!("shard {} cannot be backed up now: {why}", host.id());
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", detail)
        };
        let store = host.store().ok_or_else(|| not_ready(host.condition().to_string()))?;
        let view = store.view().map_err(|error| not_ready(with_causes(&error)))?;
        shards.push(Saving { path: format!("shards/{}/{}", host.id().group, host.id().shard), store, view });
    }
    let (frames, receiver) = mpsc::channel(AHEAD);
    let data = local.data().to_owned();
    tokio::task::spawn_blocking(move || send(&data, shards, &Frames(frames), running));
    let mut response = Response::new(Body::from_stream(ReceiverStream::new(receiver)));
    let kind = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok((response, Done { streaming: true, ..Done::PLAIN }))
}

/// A shard's state, to be saved.
struct Saving {
    path: String,
    store: std::sync::Arc<Store>,
    view: View,
}

type Frame = Result<Bytes, std::io::Error>;

/// The way to the client. Sending fails once it has left.
struct Frames(mpsc::Sender<Frame>);

impl Frames {
    fn put(&self, kind: u8, payload: &[u8]) -> std::io::Result<()> {
        let mut frame = Vec::with_capacity(payload.len() + 5);
        frame.push(kind);
        frame.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        frame.extend_from_slice(payload);
        let left = || std::io::Error::new(ErrorKind::BrokenPipe, "the client left");
        self.0.blocking_send(Ok(frame.into())).map_err(|_| left())
    }

    fn data(&self, bytes: &[u8]) -> std::io::Result<()> {
        bytes.chunks(FRAME_MAX).try_for_each(|chunk| self.put(DATA, chunk))
    }
}

/// The content of a file.
struct Content<'a>(&'a Frames);

impl Write for Content<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.data(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Sends everything. What goes wrong breaks the transfer off, and without its last frame it is no backup.
fn send(data: &Path, shards: Vec<Saving>, frames: &Frames, _running: SemaphorePermit<'static>) {
    let sent = shards
        .into_iter()
        .map(|shard| save(shard, frames))
        .collect::<Result<Vec<Value>, String>>()
        .and_then(|stores| others(data, data, frames).map(|()| stores).map_err(|error| error.to_string()))
        .and_then(|stores| {
            let manifest = json!({ "version": 1, "stores": stores }).to_string();
            frames.put(END, manifest.as_bytes()).map_err(|error| error.to_string())
        });
    if let Err(detail) = sent {
        tracing::warn!(detail, "a backup broke off");
        // Nobody listens any more when it was the client that left.
        let _ = frames.0.blocking_send(Err(std::io::Error::other(detail)));
    }
}

/// Sends a shard's checkpoint; its line in `backup.json`.
fn save(shard: Saving, frames: &Frames) -> Result<Value, String> {
    let Saving { path, store, view } = shard;
    let file = format!("{}.checkpoint", path.replace('/', "."));
    frames.put(FILE, file.as_bytes()).map_err(|error| error.to_string())?;
    let mut out = std::io::BufWriter::with_capacity(FRAME_MAX, Content(frames));
    let summary = store.checkpoint_of(&view, &mut out, CheckpointLimits::default(), &Cancel::new());
    let summary = summary.map_err(|error| format!("{path}: {}", with_causes(&error)))?;
    out.into_inner().map_err(|error| error.to_string())?;
    Ok(json!({
        "path": path, "file": file, "rows": summary.rows, "tombstones": summary.tombstones, "bytes": summary.bytes,
    }))
}

/// Sends the files of the data folder that belong to no store.
fn others(data: &Path, folder: &Path, frames: &Frames) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let relative = path.strip_prefix(data).unwrap_or(&path);
        if relative == Path::new("shards") || relative == Path::new("lock") {
            continue;
        }
        if path.is_dir() {
            others(data, &path, frames)?;
            continue;
        }
        let content = match std::fs::read(&path) {
            Ok(content) => content,
            // A draft that has got its name meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        frames.put(FILE, format!("files/{}", relative.display()).as_bytes())?;
        frames.data(&content)?;
    }
    Ok(())
}
