//! The bytes of a stored value.
//!
//! Rows and index entries share one self-describing form, so that one reader, one checksum and one
//! fuzz target cover both: format byte, kind, version, cells, CRC-32. The checksum covers the key as
//! well, which turns a value that ended up under the wrong key into an error instead of a wrong row.
//! Every cell list carries its own length, so columns added later read as NULL in older records.
//! The layout is drawn byte by byte in `docs/storage-format.md`.

use crate::schema::Schema;
use crate::value::{ColumnType, ValueRef, micros_per_unit};
use crate::version::Version;

/// Format byte of everything that has no cells.
pub(crate) const FORMAT: u8 = 1;

/// How the cells of a live record are written; the record's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CellFormat {
    /// All times count from 1970.
    One = 1,
    /// Times of the same type as the row's time count from that one. Times of one row lie close together, and their
    /// low bits are what compression can do nothing about.
    Two = 2,
}

/// What the times of a record count from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// 1970.
    #[default]
    Epoch,
    /// The row's time, microseconds since 1970, for timestamps.
    Timestamp(i64),
    /// The same for datetimes.
    Datetime(i64),
}

impl Origin {
    /// The origin that a row's time sets.
    pub(crate) fn of(time: ValueRef<'_>) -> Origin {
        match time {
            ValueRef::Timestamp(micros) => Origin::Timestamp(micros),
            ValueRef::Datetime(micros) => Origin::Datetime(micros),
            _ => Origin::Epoch,
        }
    }

    /// In units of a column, rounded down.
    fn units(self, ty: ColumnType) -> i64 {
        match (self, ty) {
            (Origin::Timestamp(micros), ColumnType::Timestamp { digits })
            | (Origin::Datetime(micros), ColumnType::Datetime { digits }) => micros.div_euclid(micros_per_unit(digits)),
            _ => 0,
        }
    }
}
/// Longest encoded record; above it a row is refused before it is written.
pub const ROW_BYTES_MAX: usize = 16 * 1024 * 1024;
const CRC_LEN: usize = 4;

/// What a stored value says about its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A live row or index entry.
    Live = 0,
    /// A deleted row whose version still outlaws older writes.
    Tombstone = 1,
    /// Nothing: an overwritten index entry or a dropped row, until compaction takes it away.
    Void = 2,
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Fewer bytes than the structure announces.
    #[error("record ends early")]
    Truncated,
    /// The CRC-32 at the end does not match.
    #[error("checksum mismatch")]
    Checksum,
    /// The format byte is not one this build reads.
    #[error("record format {0} is not known")]
    Format(u8),
    /// A field holds a value that is never written.
    #[error("record has a bad {0}")]
    Bad(&'static str),
}

/// A cursor over encoded bytes.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    pub(crate) fn at(bytes: &'a [u8], at: usize) -> Self {
        Reader { bytes, at }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], RecordError> {
        let end = self.at.checked_add(len).ok_or(RecordError::Truncated)?;
        let taken = self.bytes.get(self.at..end).ok_or(RecordError::Truncated)?;
        self.at = end;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, RecordError> {
        Ok(self.take(1)?[0])
    }

    /// LEB128, at most 64 bits.
    pub(crate) fn varint(&mut self) -> Result<u64, RecordError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(RecordError::Bad("varint"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(RecordError::Bad("varint"))
    }

    pub(crate) fn zigzag(&mut self) -> Result<i64, RecordError> {
        let raw = self.varint()?;
        Ok(((raw >> 1) as i64) ^ -((raw & 1) as i64))
    }

    pub(crate) fn zigzag128(&mut self) -> Result<i128, RecordError> {
        let mut raw = 0_u128;
        for shift in (0..128).step_by(7) {
            let byte = self.u8()?;
            let bits = u128::from(byte & 0x7f);
            if shift == 126 && bits > 3 {
                return Err(RecordError::Bad("varint"));
            }
            raw |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(((raw >> 1) as i128) ^ -((raw & 1) as i128));
            }
        }
        Err(RecordError::Bad("varint"))
    }

    /// A varint length and that many bytes.
    pub(crate) fn block(&mut self) -> Result<&'a [u8], RecordError> {
        let len = usize::try_from(self.varint()?).map_err(|_| RecordError::Truncated)?;
        self.take(len)
    }
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_zigzag(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

pub(crate) fn put_zigzag128(out: &mut Vec<u8>, value: i128) {
    let mut raw = ((value << 1) ^ (value >> 127)) as u128;
    while raw >= 0x80 {
        out.push(raw as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

pub(crate) fn put_block(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends the checksum of `key` and everything in `out`.
pub(crate) fn seal(key: &[u8], out: &mut Vec<u8>) {
    seal_from(0, key, out);
}

/// Appends the checksum of `key` and everything in `out` from `start` on.
fn seal_from(start: usize, key: &[u8], out: &mut Vec<u8>) {
    let crc = crc(key, &out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// Checks and removes the checksum at the end of a sealed value.
pub(crate) fn unseal<'a>(key: &[u8], sealed: &'a [u8]) -> Result<&'a [u8], RecordError> {
    let split = sealed.len().checked_sub(CRC_LEN).ok_or(RecordError::Truncated)?;
    let (body, tail) = sealed.split_at(split);
    if crc(key, body).to_le_bytes() != tail {
        return Err(RecordError::Checksum);
    }
    Ok(body)
}

fn crc(key: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(body);
    hasher.finalize()
}

fn start(format: u8, kind: Kind, version: &Version, out: &mut Vec<u8>) {
    out.push(format);
    out.push(kind as u8);
    out.push(version.as_bytes().len() as u8);
    out.extend_from_slice(version.as_bytes());
}

/// A tombstone's value.
pub(crate) fn tombstone(key: &[u8], version: &Version) -> Vec<u8> {
    let mut out = Vec::with_capacity(40);
    append_tombstone(&mut out, key, version);
    out
}

/// Appends a tombstone's value.
pub(crate) fn append_tombstone(out: &mut Vec<u8>, key: &[u8], version: &Version) {
    let start_at = out.len();
    start(FORMAT, Kind::Tombstone, version, out);
    seal_from(start_at, key, out);
}

/// The value that stands for "nothing here".
pub(crate) fn void(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8);
    out.push(FORMAT);
    out.push(Kind::Void as u8);
    seal(key, &mut out);
    out
}

/// A live record holding `ordinals` of `schema`, read from `row` (one value per ordinal).
pub(crate) fn live<'v>(
    format: CellFormat,
    key: &[u8],
    version: &Version,
    schema: &Schema,
    ordinals: &[usize],
    row: impl Fn(usize) -> ValueRef<'v>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(224);
    append_live(&mut out, format, key, version, schema, ordinals, row);
    out
}

/// Appends what [`live`] makes.
pub(crate) fn append_live<'v>(
    out: &mut Vec<u8>,
    format: CellFormat,
    key: &[u8],
    version: &Version,
    schema: &Schema,
    ordinals: &[usize],
    row: impl Fn(usize) -> ValueRef<'v>,
) {
    let start_at = out.len();
    start(format as u8, Kind::Live, version, out);
    put_varint(out, ordinals.len() as u64);
    let nulls_at = out.len();
    out.resize(nulls_at + ordinals.len().div_ceil(8), 0);
    let origin = match (format, schema.time()) {
        (CellFormat::Two, Some(time)) => Origin::of(row(time)),
        _ => Origin::Epoch,
    };
    for (n, &ordinal) in ordinals.iter().enumerate() {
        let ty = schema.columns()[ordinal].ty;
        let origin = if schema.time() == Some(ordinal) { Origin::Epoch } else { origin };
        if !put_cell(out, ty, origin, row(ordinal)) {
            out[nulls_at + n / 8] |= 1 << (n % 8);
        }
    }
    seal_from(start_at, key, out);
}

/// Writes a cell; false for NULL, which is a bit and no bytes. Values were checked against the
/// schema before, so a value of another type cannot arrive here.
fn put_cell(out: &mut Vec<u8>, ty: ColumnType, origin: Origin, value: ValueRef<'_>) -> bool {
    match (ty, value) {
        (_, ValueRef::Null) => return false,
        (_, ValueRef::U64(v)) => put_varint(out, v),
        (_, ValueRef::I64(v)) => put_zigzag(out, v),
        (_, ValueRef::F64(v)) => out.extend_from_slice(&v.to_le_bytes()),
        (_, ValueRef::Bool(v)) => out.push(u8::from(v)),
        (_, ValueRef::Decimal(v) | ValueRef::String(v) | ValueRef::Json(v)) => {
            put_block(out, v.as_bytes());
        }
        (_, ValueRef::Bytes(v)) => put_block(out, v),
        (
            ColumnType::Timestamp { digits } | ColumnType::Datetime { digits },
            ValueRef::Timestamp(v) | ValueRef::Datetime(v),
        ) => put_zigzag(out, v / micros_per_unit(digits) - origin.units(ty)),
        (_, ValueRef::Timestamp(v) | ValueRef::Datetime(v)) => put_zigzag(out, v),
        (_, ValueRef::Date(v)) => put_zigzag(out, i64::from(v)),
    }
    true
}

fn read_cell<'a>(reader: &mut Reader<'a>, ty: ColumnType, origin: Origin) -> Result<ValueRef<'a>, RecordError> {
    let text = |bytes: &'a [u8]| std::str::from_utf8(bytes).map_err(|_| RecordError::Bad("text"));
    let scaled = |raw: i64, digits: u8| {
        let units = raw.checked_add(origin.units(ty)).ok_or(RecordError::Bad("time"))?;
        units.checked_mul(micros_per_unit(digits)).ok_or(RecordError::Bad("time"))
    };
    Ok(match ty {
        ColumnType::U64 => ValueRef::U64(reader.varint()?),
        ColumnType::I64 => ValueRef::I64(reader.zigzag()?),
        ColumnType::F64 => {
            let mut raw = [0; 8];
            raw.copy_from_slice(reader.take(8)?);
            ValueRef::F64(f64::from_le_bytes(raw))
        }
        ColumnType::Bool => match reader.u8()? {
            0 => ValueRef::Bool(false),
            1 => ValueRef::Bool(true),
            _ => return Err(RecordError::Bad("bool")),
        },
        ColumnType::Decimal { .. } => ValueRef::Decimal(text(reader.block()?)?),
        ColumnType::String => ValueRef::String(text(reader.block()?)?),
        ColumnType::Json => ValueRef::Json(text(reader.block()?)?),
        ColumnType::Bytes => ValueRef::Bytes(reader.block()?),
        ColumnType::Timestamp { digits } => ValueRef::Timestamp(scaled(reader.zigzag()?, digits)?),
        ColumnType::Datetime { digits } => ValueRef::Datetime(scaled(reader.zigzag()?, digits)?),
        ColumnType::Date => ValueRef::Date(i32::try_from(reader.zigzag()?).map_err(|_| RecordError::Bad("date"))?),
    })
}

fn skip_cell(reader: &mut Reader<'_>, ty: ColumnType) -> Result<(), RecordError> {
    match ty {
        ColumnType::U64
        | ColumnType::I64
        | ColumnType::Timestamp { .. }
        | ColumnType::Datetime { .. }
        | ColumnType::Date => reader.varint().map(drop),
        ColumnType::F64 => reader.take(8).map(drop),
        ColumnType::Bool => reader.take(1).map(drop),
        ColumnType::Decimal { .. } | ColumnType::String | ColumnType::Json | ColumnType::Bytes => {
            reader.block().map(drop)
        }
    }
}

/// A checked record, borrowing its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) kind: Kind,
    pub(crate) version: &'a [u8],
    pub(crate) cells: Cells<'a>,
}

/// The cells of a live record; empty for the other kinds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cells<'a> {
    /// Whether times count from the row's.
    relative: bool,
    count: usize,
    nulls: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// Reads the bytes stored under `key`, checksum first.
    pub(crate) fn read(key: &[u8], sealed: &'a [u8]) -> Result<Record<'a>, RecordError> {
        Record::read_body(unseal(key, sealed)?)
    }

    /// Reads what is left of stored bytes without their checksum.
    pub(crate) fn read_body(body: &'a [u8]) -> Result<Record<'a>, RecordError> {
        let mut reader = Reader::new(body);
        let relative = match reader.u8()? {
            1 => false,
            2 => true,
            format => return Err(RecordError::Format(format)),
        };
        let kind = match reader.u8()? {
            0 => Kind::Live,
            1 => Kind::Tombstone,
            2 => Kind::Void,
            _ => return Err(RecordError::Bad("kind")),
        };
        let mut record = Record { kind, version: &[], cells: Cells::default() };
        if kind != Kind::Void {
            let len = usize::from(reader.u8()?);
            if len > Version::MAX_LEN {
                return Err(RecordError::Bad("version"));
            }
            record.version = reader.take(len)?;
        }
        if kind == Kind::Live {
            let count = usize::try_from(reader.varint()?).map_err(|_| RecordError::Truncated)?;
            let nulls = reader.take(count.div_ceil(8))?;
            record.cells = Cells { relative, count, nulls, bytes: &body[reader.at..] };
        } else if !reader.is_empty() {
            return Err(RecordError::Bad("length"));
        }
        Ok(record)
    }

    /// The version by value.
    pub(crate) fn version(&self) -> Version {
        Version::new(self.version).expect("the reader checked the length")
    }
}

/// Where a NULL cell "starts".
const NO_CELL: u32 = u32::MAX;

impl<'a> Cells<'a> {
    fn is_null(&self, n: usize) -> bool {
        n >= self.count || self.nulls[n / 8] & (1 << (n % 8)) != 0
    }

    /// Finds where the first cells start, as many as types are given. `offsets` is scratch that callers keep between rows.
    pub(crate) fn locate(&self, types: &[ColumnType], offsets: &mut Vec<u32>) -> Result<(), RecordError> {
        offsets.clear();
        let mut reader = Reader::new(self.bytes);
        for (n, &ty) in types.iter().enumerate() {
            if self.is_null(n) {
                offsets.push(NO_CELL);
            } else {
                offsets.push(reader.at as u32);
                skip_cell(&mut reader, ty)?;
            }
        }
        Ok(())
    }

    /// What the times of these cells count from in a row of this time.
    pub(crate) fn origin(&self, time: ValueRef<'_>) -> Origin {
        if self.relative { Origin::of(time) } else { Origin::Epoch }
    }

    /// What the times of these cells count from when the row's time is one of them.
    pub(crate) fn own_origin(&self, schema: &Schema, ordinals: &[usize]) -> Result<Origin, RecordError> {
        let Some(time) = schema.time().filter(|_| self.relative) else { return Ok(Origin::Epoch) };
        let mut reader = Reader::new(self.bytes);
        for (n, &ordinal) in ordinals.iter().enumerate() {
            if self.is_null(n) {
                continue;
            }
            let ty = schema.columns()[ordinal].ty;
            if ordinal == time {
                return Ok(self.origin(read_cell(&mut reader, ty, Origin::Epoch)?));
            }
            skip_cell(&mut reader, ty)?;
        }
        Ok(Origin::Epoch)
    }

    /// The cell that starts where [`Cells::locate`] said. `origin` is for a time that is not the row's.
    pub(crate) fn cell_at(&self, offset: u32, ty: ColumnType, origin: Origin) -> Result<ValueRef<'a>, RecordError> {
        if offset == NO_CELL {
            return Ok(ValueRef::Null);
        }
        read_cell(&mut Reader::at(self.bytes, offset as usize), ty, origin)
    }

    /// Calls `each` with every cell in order; columns newer than the record come as NULL. Surplus
    /// bytes or cells are an error, so a record read with the wrong schema does not pass.
    pub(crate) fn for_each(
        &self,
        schema: &Schema,
        ordinals: &[usize],
        origin: Origin,
        mut each: impl FnMut(usize, ValueRef<'a>),
    ) -> Result<(), RecordError> {
        if self.count > ordinals.len() {
            return Err(RecordError::Bad("cell count"));
        }
        let mut reader = Reader::new(self.bytes);
        for (n, &ordinal) in ordinals.iter().enumerate() {
            let value = if self.is_null(n) {
                ValueRef::Null
            } else {
                let origin = if schema.time() == Some(ordinal) { Origin::Epoch } else { origin };
                read_cell(&mut reader, schema.columns()[ordinal].ty, origin)?
            };
            each(ordinal, value);
        }
        if reader.is_empty() { Ok(()) } else { Err(RecordError::Bad("length")) }
    }
}

#[cfg(test)]
mod tests;
