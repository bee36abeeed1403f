//! Logical checkpoints: everything a store holds, as one stream.
//!
//! The engine has no online backup, and copying its files would tie a backup to its version. A
//! checkpoint is written from one published view (rows, tombstones, positions and named values that
//! belong together), compressed and checksummed frame by frame, and restored by ingestion, rebuilding
//! index and counters on the way. The view keeps what it sees on disk meanwhile, so a checkpoint has
//! limits in time and in bytes and gives up rather than fill the disk. The format is described in
//! `docs/storage-format.md`.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, Result};
use crate::ingest::Chunk;
use crate::key::{self, Lane, Parsed};
use crate::opening;
use crate::options::OpenOptions;
use crate::query::Cancel;
use crate::record::{CellFormat, FORMAT, Kind, Reader, Record, RecordError, put_block, put_varint, unseal};
use crate::schema::Schema;
use crate::state::TableState;
use crate::store::Store;
use crate::table::Table;
use crate::view::View;
use crate::writer::{Shared, Writer};

/// First bytes of every checkpoint; the last one is the format version. In version 1 rows come without their format
/// byte, which is 1.
const MAGIC: [u8; 8] = *b"MRCKPT\0\x02";
const HEAD: u8 = 1;
const ROWS: u8 = 2;
const END: u8 = 3;
/// A frame of rows is closed at this many bytes before compression.
const FRAME_BYTES: usize = 1 << 20;
/// No frame is longer than this, compressed or not: one row of the greatest length and some more.
const FRAME_BYTES_MAX: usize = 2 * crate::record::ROW_BYTES_MAX;
/// Fast, and within a few percent of what higher levels reach on rows.
const ZSTD_LEVEL: i32 = 3;
/// Rows and bytes per chunk of a restore.
const CHUNK_ROWS: usize = 100_000;
const CHUNK_BYTES: usize = 64 << 20;

/// How long, and for how much disk, a checkpoint may hold on to its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointLimits {
    /// Longest time.
    pub time: Duration,
    /// How far table files may grow meanwhile; part of the growth are values only the checkpoint
    /// still sees.
    pub growth_bytes: u64,
}

impl Default for CheckpointLimits {
    /// An hour, 16 GiB.
    fn default() -> Self {
        CheckpointLimits { time: Duration::from_secs(3_600), growth_bytes: 16 << 30 }
    }
}

/// What a checkpoint contains, or what was restored from one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointSummary {
    /// Tables.
    pub tables: u64,
    /// Live rows.
    pub rows: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Length of the stream in bytes.
    pub bytes: u64,
}

/// A stream that is counted and hashed as it passes.
struct Tap<S> {
    stream: S,
    hash: Xxh3,
    bytes: u64,
}

impl<S> Tap<S> {
    fn new(stream: S) -> Self {
        Tap { stream, hash: Xxh3::new(), bytes: 0 }
    }

    fn pass(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }
}

fn write_error(e: std::io::Error) -> Error {
    Error::io("cannot write", "checkpoint", e)
}

impl<W: Write> Tap<W> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.pass(bytes);
        self.stream.write_all(bytes).map_err(write_error)
    }

    fn frame(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        let packed = zstd::bulk::compress(payload, ZSTD_LEVEL).map_err(write_error)?;
        let mut head = [0; 13];
        head[0] = kind;
        head[1..5].copy_from_slice(&(packed.len() as u32).to_le_bytes());
        head[5..9].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        head[9..13].copy_from_slice(&crc32fast::hash(&packed).to_le_bytes());
        self.put(&head)?;
        self.put(&packed)
    }
}

fn refused(what: impl Into<String>) -> Error {
    Error::Checkpoint(what.into())
}

impl<R: Read> Tap<R> {
    fn take(&mut self, buffer: &mut [u8]) -> Result<()> {
        match self.stream.read_exact(buffer) {
            Ok(()) => {
                self.pass(buffer);
                Ok(())
            }
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(refused(format!("it ends early, after {} bytes", self.bytes)))
            }
            Err(e) => Err(Error::io("cannot read", "checkpoint", e)),
        }
    }

    fn next_frame(&mut self) -> Result<(u8, Vec<u8>)> {
        let at = self.bytes;
        let mut head = [0; 13];
        self.take(&mut head)?;
        let number = |from: usize| u32::from_le_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]]);
        let (packed_len, len) = (number(1) as usize, number(5) as usize);
        if packed_len > FRAME_BYTES_MAX || len > FRAME_BYTES_MAX {
            return Err(refused(format!("the frame at byte {at} claims {packed_len} bytes for {len}")));
        }
        // Grows as bytes arrive, so a lying length costs no memory.
        let mut packed = Vec::new();
        while packed.len() < packed_len {
            let from = packed.len();
            packed.resize(packed_len.min(from + (64 << 10)), 0);
            self.take(&mut packed[from..])?;
        }
        if crc32fast::hash(&packed) != number(9) {
            return Err(refused(format!("the frame at byte {at} has a bad checksum")));
        }
        // Said twice, once under the checksum: nothing is reserved for a length that only the head claims.
        match zstd::zstd_safe::get_frame_content_size(&packed) {
            Ok(Some(content)) if content == len as u64 => {}
            _ => return Err(refused(format!("the frame at byte {at} has another length than it says"))),
        }
        let payload = zstd::bulk::decompress(&packed, len)
            .map_err(|e| refused(format!("the frame at byte {at} does not decompress: {e}")))?;
        if payload.len() != len {
            return Err(refused(format!("the frame at byte {at} has another length than it says")));
        }
        Ok((head[0], payload))
    }
}

/// What the first frame says.
#[derive(Debug, Default)]
struct Head {
    tables: Vec<(u16, Schema, TableState)>,
    positions: Vec<(Lane, Vec<u8>)>,
    attributes: Vec<(String, Vec<u8>)>,
}

impl Head {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.tables.len() as u64);
        for (id, schema, state) in &self.tables {
            put_varint(&mut out, u64::from(*id));
            put_block(&mut out, &schema.encode());
            // The state as stored, under an empty key.
            put_block(&mut out, &state.encode(b""));
        }
        put_varint(&mut out, self.positions.len() as u64);
        for (lane, position) in &self.positions {
            put_block(&mut out, lane.as_bytes());
            put_block(&mut out, position);
        }
        put_varint(&mut out, self.attributes.len() as u64);
        for (name, value) in &self.attributes {
            put_block(&mut out, name.as_bytes());
            put_block(&mut out, value);
        }
        out
    }

    fn decode(payload: &[u8]) -> Result<Head> {
        let bad = |e: RecordError| refused(format!("its head: {e}"));
        let mut reader = Reader::new(payload);
        let mut head = Head::default();
        for _ in 0..reader.varint().map_err(bad)? {
            let id = u16::try_from(reader.varint().map_err(bad)?).map_err(|_| bad(RecordError::Bad("table id")))?;
            let schema = Schema::decode(reader.block().map_err(bad)?)?;
            let state = TableState::decode(b"", reader.block().map_err(bad)?).map_err(bad)?;
            head.tables.push((id, schema, state));
        }
        for _ in 0..reader.varint().map_err(bad)? {
            let lane = Lane::new(reader.block().map_err(bad)?).ok_or_else(|| bad(RecordError::Bad("lane")))?;
            head.positions.push((lane, reader.block().map_err(bad)?.to_vec()));
        }
        for _ in 0..reader.varint().map_err(bad)? {
            let name = String::from_utf8(reader.block().map_err(bad)?.to_vec())
                .map_err(|_| bad(RecordError::Bad("attribute")))?;
            head.attributes.push((name, reader.block().map_err(bad)?.to_vec()));
        }
        if reader.is_empty() { Ok(head) } else { Err(bad(RecordError::Bad("length"))) }
    }
}

/// A frame of rows being filled.
struct Rows {
    table: u16,
    count: u64,
    last: u64,
    bytes: Vec<u8>,
}

impl Rows {
    fn new(table: u16) -> Rows {
        Rows { table, count: 0, last: 0, bytes: Vec::with_capacity(FRAME_BYTES + 4_096) }
    }

    /// Adds a stored value without its checksum, which is made anew on restore.
    fn push(&mut self, id: u64, body: &[u8]) {
        put_varint(&mut self.bytes, id - self.last);
        put_block(&mut self.bytes, body);
        self.last = id;
        self.count += 1;
    }

    fn write<W: Write>(&mut self, out: &mut Tap<W>) -> Result<()> {
        if self.count > 0 {
            let mut payload = Vec::with_capacity(self.bytes.len() + 16);
            put_varint(&mut payload, u64::from(self.table));
            put_varint(&mut payload, self.count);
            payload.append(&mut self.bytes);
            out.frame(ROWS, &payload)?;
            (self.count, self.last) = (0, 0);
        }
        Ok(())
    }
}

impl Store {
    /// Writes a checkpoint of the last published state. Blocks for as long as it takes, so give it a
    /// thread of its own. The stream is complete only when this returns `Ok`.
    ///
    /// # Errors
    /// When `out` fails, a limit is reached, `cancel` is raised or data cannot be read.
    pub fn checkpoint(
        &self,
        out: &mut dyn Write,
        limits: CheckpointLimits,
        cancel: &Cancel,
    ) -> Result<CheckpointSummary> {
        self.checkpoint_of(&self.view()?, out, limits, cancel)
    }

    /// Writes a checkpoint of a view taken earlier, for checkpoints of several stores that belong together. Limits
    /// count from now.
    ///
    /// # Errors
    /// As for [`Store::checkpoint`].
    pub fn checkpoint_of(
        &self,
        view: &View,
        out: &mut dyn Write,
        limits: CheckpointLimits,
        cancel: &Cancel,
    ) -> Result<CheckpointSummary> {
        let start = Instant::now();
        let bytes_before = self.gauges().table_bytes;
        let guard = || -> Result<()> {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            if start.elapsed() > limits.time {
                return Err(Error::CheckpointLimit(format!("not finished after {:?}", limits.time)));
            }
            let growth = self.gauges().table_bytes.saturating_sub(bytes_before);
            if growth > limits.growth_bytes {
                return Err(Error::CheckpointLimit(format!(
                    "tables grew by {growth} bytes meanwhile, allowed are {}",
                    limits.growth_bytes
                )));
            }
            Ok(())
        };
        let mut head = Head { positions: view.positions()?, attributes: view.attributes()?, ..Head::default() };
        for at in &view.catalog().tables {
            let key = key::state(at.table.id());
            let state = match view.snapshot().get(&key)? {
                None => TableState::default(),
                Some(bytes) => TableState::decode(&key, &bytes).map_err(|e| Error::record(&key, e))?,
            };
            head.tables.push((at.table.id().get(), at.table.schema().clone(), state));
        }
        let mut summary = CheckpointSummary { tables: head.tables.len() as u64, ..Default::default() };
        let mut out = Tap::new(out);
        out.put(&MAGIC)?;
        out.frame(HEAD, &head.encode())?;
        for at in &view.catalog().tables {
            let mut rows = Rows::new(at.table.id().get());
            for entry in view.prefix(&key::row_prefix(at.table.id())) {
                let (key, bytes) = entry?;
                let Parsed::Row { id, .. } = key::parse(&key) else { continue };
                let record = Record::read(&key, &bytes).map_err(|e| Error::record(&key, e))?;
                match record.kind {
                    Kind::Live if record.version() >= at.truncated_below => summary.rows += 1,
                    Kind::Tombstone if record.version() >= at.tombstone_floor => summary.tombstones += 1,
                    _ => continue,
                }
                let body = unseal(&key, &bytes).map_err(|e| Error::record(&key, e))?;
                rows.push(id, body);
                if rows.bytes.len() >= FRAME_BYTES {
                    rows.write(&mut out)?;
                    guard()?;
                }
            }
            rows.write(&mut out)?;
        }
        guard()?;
        let mut end = Vec::new();
        put_varint(&mut end, summary.rows);
        put_varint(&mut end, summary.tombstones);
        end.extend_from_slice(&out.hash.digest().to_le_bytes());
        out.frame(END, &end)?;
        out.stream.flush().map_err(write_error)?;
        summary.bytes = out.bytes;
        Ok(summary)
    }

    /// Makes a new store in the empty folder `path` from a checkpoint. Blocks. When it fails or is
    /// interrupted the folder stays marked as unfinished, is not opened as a store, and can be the
    /// target of another try.
    ///
    /// # Errors
    /// When the folder is not empty, the stream is damaged or ends early, or writing fails.
    pub fn restore(
        path: impl AsRef<Path>,
        from: &mut dyn Read,
        options: OpenOptions,
        cancel: &Cancel,
    ) -> Result<CheckpointSummary> {
        let path = path.as_ref();
        let mut stream = Tap::new(from);
        // Looked at before the folder is touched, so that a wrong file leaves nothing behind.
        let (format, head) = read_head(&mut stream)?;
        opening::begin_restore(path)?;
        let opened = opening::open_restore(path, &options)?;
        let shared = Arc::new(Shared::new(path.to_owned(), options));
        let mut writer = Writer::new(shared, opened);
        let restored = fill(&mut writer, format, head, &mut stream, cancel);
        let closed = writer.shut();
        let summary = restored?;
        closed?;
        opening::finish_restore(path)?;
        Ok(summary)
    }
}

/// The format version and the first frame.
fn read_head<R: Read>(stream: &mut Tap<R>) -> Result<(u8, Head)> {
    let mut magic = [0; 8];
    stream.take(&mut magic)?;
    if magic[..7] != MAGIC[..7] {
        return Err(refused("it is none"));
    }
    if !(1..=MAGIC[7]).contains(&magic[7]) {
        return Err(refused(format!("its format {} is not known to this build", magic[7])));
    }
    match stream.next_frame()? {
        (HEAD, payload) => Ok((magic[7], Head::decode(&payload)?)),
        (kind, _) => Err(refused(format!("it starts with a frame of kind {kind}"))),
    }
}

fn fill<R: Read>(
    writer: &mut Writer,
    format: u8,
    head: Head,
    stream: &mut Tap<R>,
    cancel: &Cancel,
) -> Result<CheckpointSummary> {
    let mut summary = CheckpointSummary::default();
    let mut tables: Vec<(u16, Table)> = Vec::new();
    for (id, schema, state) in head.tables {
        if tables.iter().any(|(other, table)| *other == id || table.name() == schema.name()) {
            return Err(refused(format!("it has table {:?} twice", schema.name())));
        }
        let table = writer.create_table(schema)?;
        writer.restore_state(&table, state)?;
        tables.push((id, table));
        summary.tables += 1;
    }
    let mut chunk: Option<(u16, Chunk)> = None;
    loop {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let hash = stream.hash.digest();
        let (kind, payload) = stream.next_frame()?;
        match kind {
            ROWS => {
                let mut reader = Reader::new(&payload);
                let bad = |e: RecordError| refused(format!("a frame of rows: {e}"));
                let id = u16::try_from(reader.varint().map_err(bad)?).unwrap_or(u16::MAX);
                let table = tables
                    .iter()
                    .find(|(other, _)| *other == id)
                    .map(|(_, table)| table.clone())
                    .ok_or_else(|| refused(format!("rows of table {id}, which it does not declare")))?;
                if chunk.as_ref().is_some_and(|(other, _)| *other != id) {
                    load(writer, &mut chunk)?;
                }
                let (_, into) = chunk.get_or_insert_with(|| (id, Chunk::new(&table)));
                read_rows(format, &mut reader, into, &mut summary).map_err(|e| match e {
                    RowsError::Bytes(e) => bad(e),
                    RowsError::Store(e) => e,
                })?;
                if into.len() >= CHUNK_ROWS || into.bytes() >= CHUNK_BYTES {
                    load(writer, &mut chunk)?;
                }
            }
            END => {
                load(writer, &mut chunk)?;
                let mut reader = Reader::new(&payload);
                let bad = |e: RecordError| refused(format!("its end: {e}"));
                let rows = reader.varint().map_err(bad)?;
                let tombstones = reader.varint().map_err(bad)?;
                let sum = reader.take(8).map_err(bad)?;
                if (rows, tombstones) != (summary.rows, summary.tombstones) {
                    return Err(refused(format!(
                        "it says {rows} rows and {tombstones} tombstones but holds {} and {}",
                        summary.rows, summary.tombstones
                    )));
                }
                if sum != hash.to_le_bytes() {
                    return Err(refused("frames are missing or out of order"));
                }
                break;
            }
            kind => return Err(refused(format!("a frame of unknown kind {kind}"))),
        }
    }
    writer.restore_names(head.positions, head.attributes)?;
    summary.bytes = stream.bytes;
    Ok(summary)
}

fn load(writer: &mut Writer, chunk: &mut Option<(u16, Chunk)>) -> Result<()> {
    if let Some((_, chunk)) = chunk.take() {
        writer.ingest(chunk, Instant::now() + Duration::from_secs(600))?;
    }
    Ok(())
}

enum RowsError {
    Bytes(RecordError),
    Store(Error),
}

impl From<RecordError> for RowsError {
    fn from(e: RecordError) -> Self {
        RowsError::Bytes(e)
    }
}

fn read_rows(
    format: u8,
    reader: &mut Reader<'_>,
    chunk: &mut Chunk,
    summary: &mut CheckpointSummary,
) -> Result<(), RowsError> {
    let count = reader.varint()?;
    let mut id = 0_u64;
    for _ in 0..count {
        id = id.checked_add(reader.varint()?).ok_or(RecordError::Bad("id"))?;
        let block = reader.block()?;
        let pushed = match format {
            1 => chunk.push_stored(id, &[&[FORMAT], block].concat()),
            _ => chunk.push_stored(id, block),
        };
        match pushed {
            Ok(true) => summary.rows += 1,
            Ok(false) => summary.tombstones += 1,
            Err(error) => return Err(RowsError::Store(error)),
        }
    }
    if reader.is_empty() { Ok(()) } else { Err(RecordError::Bad("length").into()) }
}

/// Reads a whole checkpoint without storing anything: whether it could be restored.
///
/// # Errors
/// When the stream is damaged, ends early or is no checkpoint.
pub fn verify_checkpoint(from: &mut dyn Read) -> Result<CheckpointSummary> {
    let mut stream = Tap::new(from);
    let (format, head) = read_head(&mut stream)?;
    let mut summary = verify(format, head, || {
        let hash = stream.hash.digest();
        let (kind, payload) = stream.next_frame()?;
        Ok(Frame { kind, payload, hash })
    })?;
    summary.bytes = stream.bytes;
    Ok(summary)
}

/// A frame taken apart.
struct Frame {
    kind: u8,
    payload: Vec<u8>,
    /// Of every byte before it.
    hash: u64,
}

fn verify(format: u8, head: Head, mut next: impl FnMut() -> Result<Frame>) -> Result<CheckpointSummary> {
    let mut summary = CheckpointSummary { tables: head.tables.len() as u64, ..Default::default() };
    let table = |(id, schema, _)| (id, Table::new(key::TableId(id), schema, CellFormat::Two));
    let tables: Vec<(u16, Table)> = head.tables.into_iter().map(table).collect();
    let mut last: Option<(u16, u64)> = None;
    loop {
        let Frame { kind, payload, hash } = next()?;
        let mut reader = Reader::new(&payload);
        let bad = |e: RecordError| refused(format!("a frame: {e}"));
        match kind {
            ROWS => {
                let id = u16::try_from(reader.varint().map_err(bad)?).unwrap_or(u16::MAX);
                let (_, table) = tables
                    .iter()
                    .find(|(other, _)| *other == id)
                    .ok_or_else(|| refused(format!("rows of table {id}, which it does not declare")))?;
                let mut chunk = Chunk::new(table);
                match read_rows(format, &mut reader, &mut chunk, &mut summary) {
                    Ok(()) => {}
                    Err(RowsError::Bytes(e)) => return Err(bad(e)),
                    Err(RowsError::Store(e)) => return Err(e),
                }
                if let (Some(first), Some((table, before))) = (chunk.first, last)
                    && table == id
                    && first <= before
                {
                    return Err(refused(format!("row {first} of table {id} comes after row {before}")));
                }
                last = chunk.last.map(|row| (id, row)).or(last);
            }
            END => {
                let rows = reader.varint().map_err(bad)?;
                let tombstones = reader.varint().map_err(bad)?;
                let sum = reader.take(8).map_err(bad)?;
                if (rows, tombstones) != (summary.rows, summary.tombstones) || sum != hash.to_le_bytes() {
                    return Err(refused("frames are missing or out of order"));
                }
                return Ok(summary);
            }
            kind => return Err(refused(format!("a frame of unknown kind {kind}"))),
        }
    }
}

/// Reads pieces of the input as payloads of frames, so that a fuzzer need guess neither checksums nor compression: a
/// byte for the format, then per frame a byte for the kind, two for the length, the payload. The first is the head, and
/// the hash of everything is 0.
pub(crate) fn fuzz_frames(input: &[u8]) {
    let Some((format, mut input)) = input.split_first() else { return };
    let mut next = || match input {
        [kind, low, high, rest @ ..] => {
            let (payload, behind) = rest.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()));
            input = behind;
            Ok(Frame { kind: *kind, payload: payload.to_vec(), hash: 0 })
        }
        _ => Err(refused("it ends early")),
    };
    let head = next().and_then(|frame| Head::decode(&frame.payload));
    if let Ok(head) = head {
        let _ = verify(1 + format % 2, head, next);
    }
}
