//! The one ordered key space and who lives where in it.
//!
//! Everything a shard knows shares one key space, told apart by a first byte, so that one batch and
//! one ingestion cover rows, index, counters and positions together, and so that a position written
//! in every batch never pins a journal of its own. Integers are big-endian, which makes byte order
//! numeric order; every key starts with kind and format and carries its table id.

use crate::value::{ColumnType, Value, ValueRef};

/// Format of every key written by this build; the second byte of each.
const FORMAT: u8 = 1;

/// Keys whose first byte is below this are rows, all others are not; the engine keeps the two apart.
pub(crate) const ROWS_END: u8 = 0x20;

const HEADER: u8 = 0x20;
const SCHEMA: u8 = 0x21;
const STATE: u8 = 0x22;
const POSITION: u8 = 0x23;
const INTENT: u8 = 0x24;
const COUNTER: u8 = 0x25;
const ATTRIBUTE: u8 = 0x26;
const ROW: u8 = 0x10;
const INDEX: u8 = 0x30;

/// The listing index; the byte is kept so that more indexes can come.
const LISTING_INDEX: u8 = 0;

/// A table's number inside its store: given in order of creation, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub(crate) u16);

impl TableId {
    /// The bare number.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl std::fmt::Display for TableId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A time in the form index keys order by: an unsigned number whose order is the column's order.
/// Comparable only between values of one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeKey(pub u64);

impl TimeKey {
    /// The key form of a time column's value; `None` for NULL (which sorts below every time) and for
    /// values of types that cannot be a time column.
    pub fn of(value: ValueRef<'_>) -> Option<TimeKey> {
        const SIGN: u64 = 1 << 63;
        match value {
            ValueRef::Timestamp(v) | ValueRef::Datetime(v) | ValueRef::I64(v) => Some(TimeKey(v as u64 ^ SIGN)),
            ValueRef::Date(v) => Some(TimeKey(i64::from(v) as u64 ^ SIGN)),
            ValueRef::U64(v) => Some(TimeKey(v)),
            _ => None,
        }
    }

    /// The value this key stands for in a column of type `ty`.
    pub fn to_value(self, ty: ColumnType) -> Value {
        let signed = (self.0 ^ (1 << 63)) as i64;
        match ty {
            ColumnType::Timestamp { .. } => Value::Timestamp(signed),
            ColumnType::Datetime { .. } => Value::Datetime(signed),
            ColumnType::Date => Value::Date(signed as i32),
            ColumnType::I64 => Value::I64(signed),
            _ => Value::U64(self.0),
        }
    }
}

/// Which lane of which log a position belongs to: an opaque name of at most [`Lane::MAX_LEN`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(Vec<u8>);

impl Lane {
    /// Longest lane name in bytes.
    pub const MAX_LEN: usize = 1_024;

    /// Takes `name` as a lane; `None` when it is longer than [`Lane::MAX_LEN`].
    pub fn new(name: impl Into<Vec<u8>>) -> Option<Lane> {
        let name = name.into();
        (name.len() <= Self::MAX_LEN).then_some(Lane(name))
    }

    /// The name, as given.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

fn table_key(kind: u8, table: TableId, more: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(4 + more);
    key.extend_from_slice(&[kind, FORMAT]);
    key.extend_from_slice(&table.0.to_be_bytes());
    key
}

pub(crate) fn header() -> Vec<u8> {
    vec![HEADER, FORMAT]
}

pub(crate) fn schema(table: TableId) -> Vec<u8> {
    table_key(SCHEMA, table, 0)
}

pub(crate) fn state(table: TableId) -> Vec<u8> {
    table_key(STATE, table, 0)
}

pub(crate) fn intent(table: TableId) -> Vec<u8> {
    table_key(INTENT, table, 0)
}

fn named_key(kind: u8, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(2 + name.len());
    key.extend_from_slice(&[kind, FORMAT]);
    key.extend_from_slice(name);
    key
}

pub(crate) fn position(lane: &Lane) -> Vec<u8> {
    named_key(POSITION, &lane.0)
}

pub(crate) fn attribute(name: &str) -> Vec<u8> {
    named_key(ATTRIBUTE, name.as_bytes())
}

/// The counter of one tenant, or of the whole table, in one counter generation.
pub(crate) fn counter(table: TableId, generation: u32, tenant: Option<u64>) -> Vec<u8> {
    let mut key = table_key(COUNTER, table, 13);
    key.extend_from_slice(&generation.to_be_bytes());
    match tenant {
        None => key.push(0),
        Some(tenant) => {
            key.push(1);
            key.extend_from_slice(&tenant.to_be_bytes());
        }
    }
    key
}

pub(crate) fn row(table: TableId, id: u64) -> Vec<u8> {
    row_bytes(table, id).to_vec()
}

/// The id in a row's key; `None` for other keys.
pub(crate) fn row_id(key: &[u8]) -> Option<u64> {
    match key.split_at_checked(4)? {
        ([ROW, FORMAT, ..], id) => Some(u64::from_be_bytes(id.try_into().ok()?)),
        _ => None,
    }
}

/// [`row`] without an allocation.
pub(crate) fn row_bytes(table: TableId, id: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..2].copy_from_slice(&[ROW, FORMAT]);
    key[2..4].copy_from_slice(&table.0.to_be_bytes());
    key[4..].copy_from_slice(&id.to_be_bytes());
    key
}

/// Where a row stands in its tenant's listing.
pub(crate) fn index(table: TableId, tenant: u64, time: Option<TimeKey>, id: u64) -> Vec<u8> {
    IndexKey::new(table, tenant, time, id).to_vec()
}

/// An index key without an allocation.
pub(crate) struct IndexKey {
    bytes: [u8; 30],
    len: usize,
}

impl IndexKey {
    pub(crate) fn new(table: TableId, tenant: u64, time: Option<TimeKey>, id: u64) -> IndexKey {
        let mut key = IndexKey { bytes: [0; 30], len: 0 };
        key.put(&[INDEX, FORMAT]);
        key.put(&table.0.to_be_bytes());
        key.put(&[LISTING_INDEX]);
        key.put(&tenant.to_be_bytes());
        match time {
            None => key.put(&[0]),
            Some(time) => {
                key.put(&[1]);
                key.put(&time.0.to_be_bytes());
            }
        }
        key.put(&id.to_be_bytes());
        key
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

impl std::ops::Deref for IndexKey {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What every index key of a tenant starts with.
pub(crate) fn index_tenant(table: TableId, tenant: u64) -> Vec<u8> {
    let mut key = index_prefix(table);
    key.extend_from_slice(&tenant.to_be_bytes());
    key
}

/// The lowest index key of a tenant at or above `time`.
pub(crate) fn index_from(table: TableId, tenant: u64, time: TimeKey) -> Vec<u8> {
    let mut key = index_tenant(table, tenant);
    key.push(1);
    key.extend_from_slice(&time.0.to_be_bytes());
    key
}

pub(crate) fn index_prefix(table: TableId) -> Vec<u8> {
    let mut key = table_key(INDEX, table, 26);
    key.push(LISTING_INDEX);
    key
}

pub(crate) fn row_prefix(table: TableId) -> Vec<u8> {
    table_key(ROW, table, 8)
}

pub(crate) fn counter_prefix(table: TableId) -> Vec<u8> {
    table_key(COUNTER, table, 0)
}

pub(crate) fn position_prefix() -> Vec<u8> {
    vec![POSITION, FORMAT]
}

pub(crate) fn attribute_prefix() -> Vec<u8> {
    vec![ATTRIBUTE, FORMAT]
}

pub(crate) fn schema_prefix() -> Vec<u8> {
    vec![SCHEMA, FORMAT]
}

/// The first key above every key that starts with `prefix`; `None` when there is none.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < u8::MAX {
            *last += 1;
            return Some(end);
        }
        end.pop();
    }
    None
}

/// A key taken apart. Bytes that are no key of this format give `Unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    Header,
    Schema(TableId),
    State(TableId),
    Position(&'a [u8]),
    Intent(TableId),
    Counter { table: TableId, generation: u32, tenant: Option<u64> },
    Attribute(&'a [u8]),
    Row { table: TableId, id: u64 },
    Index { table: TableId, tenant: u64, time: Option<TimeKey>, id: u64 },
    Unknown,
}

fn u64_at(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*head), rest))
}

pub(crate) fn parse(key: &[u8]) -> Parsed<'_> {
    fn inner(key: &[u8]) -> Option<Parsed<'_>> {
        let (&[kind, format], rest) = key.split_first_chunk::<2>()?;
        if format != FORMAT {
            return None;
        }
        match kind {
            HEADER if rest.is_empty() => return Some(Parsed::Header),
            POSITION => return Some(Parsed::Position(rest)),
            ATTRIBUTE => return Some(Parsed::Attribute(rest)),
            _ => {}
        }
        let (table, rest) = rest.split_first_chunk::<2>()?;
        let table = TableId(u16::from_be_bytes(*table));
        Some(match kind {
            SCHEMA if rest.is_empty() => Parsed::Schema(table),
            STATE if rest.is_empty() => Parsed::State(table),
            INTENT if rest.is_empty() => Parsed::Intent(table),
            COUNTER => {
                let (generation, rest) = rest.split_first_chunk::<4>()?;
                let generation = u32::from_be_bytes(*generation);
                let tenant = match rest.split_first()? {
                    (0, []) => None,
                    (1, rest) => match u64_at(rest)? {
                        (tenant, []) => Some(tenant),
                        _ => return None,
                    },
                    _ => return None,
                };
                Parsed::Counter { table, generation, tenant }
            }
            ROW => match u64_at(rest)? {
                (id, []) => Parsed::Row { table, id },
                _ => return None,
            },
            INDEX => {
                let (&LISTING_INDEX, rest) = rest.split_first()? else { return None };
                let (tenant, rest) = u64_at(rest)?;
                let (time, rest) = match rest.split_first()? {
                    (0, rest) => (None, rest),
                    (1, rest) => {
                        let (time, rest) = u64_at(rest)?;
                        (Some(TimeKey(time)), rest)
                    }
                    _ => return None,
                };
                match u64_at(rest)? {
                    (id, []) => Parsed::Index { table, tenant, time, id },
                    _ => return None,
                }
            }
            _ => return None,
        })
    }
    inner(key).unwrap_or(Parsed::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn null_times_sort_below_all_and_ids_break_ties() {
        let t = TableId(3);
        let time = |v: i64| TimeKey::of(ValueRef::Timestamp(v));
        let keys = [
            index(t, 7, None, 1),
            index(t, 7, None, u64::MAX),
            index(t, 7, time(i64::MIN), 0),
            index(t, 7, time(-1), 5),
            index(t, 7, time(0), 4),
            index(t, 7, time(0), 5),
            index(t, 7, time(i64::MAX), 0),
            index(t, 8, None, 0),
            index(TableId(4), 0, None, 0),
        ];
        assert!(keys.is_sorted());
        assert!(index_from(t, 7, TimeKey(0)) <= keys[2] && index_from(t, 7, TimeKey(0)) > keys[1]);
    }

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(after_prefix(&[1, 2]), Some(vec![1, 3]));
        assert_eq!(after_prefix(&[1, 255, 255]), Some(vec![2]));
        assert_eq!(after_prefix(&[255]), None);
    }

    fn apart(key: &[u8], want: Parsed<'_>) {
        assert_eq!(parse(key), want);
    }

    proptest! {
        #[test]
        fn keys_come_apart_as_they_were_put_together(table: u16, tenant: u64, time: Option<u64>, id: u64, generation: u32, count_for: Option<u64>, name in proptest::collection::vec(any::<u8>(), 0..20)) {
            let t = TableId(table);
            let time = time.map(TimeKey);
            apart(&row(t, id), Parsed::Row { table: t, id });
            prop_assert_eq!(row_id(&row(t, id)), Some(id));
            prop_assert_eq!(row_id(&index(t, tenant, time, id)), None);
            apart(&index(t, tenant, time, id), Parsed::Index { table: t, tenant, time, id });
            apart(&counter(t, generation, count_for), Parsed::Counter { table: t, generation, tenant: count_for });
            let lane = Lane::new(name.clone()).expect("short");
            apart(&position(&lane), Parsed::Position(&name));
            apart(&schema(t), Parsed::Schema(t));
            apart(&state(t), Parsed::State(t));
            apart(&intent(t), Parsed::Intent(t));
        }

        #[test]
        fn any_bytes_parse_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn byte_order_is_value_order(a: i64, b: i64) {
            let k = |v| TimeKey::of(ValueRef::Datetime(v)).expect("a time");
            prop_assert_eq!(a.cmp(&b), k(a).cmp(&k(b)));
            prop_assert_eq!(k(a).to_value(ColumnType::Datetime { digits: 6 }), Value::Datetime(a));
        }
    }
}
