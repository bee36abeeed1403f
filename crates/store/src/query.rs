//! What readers ask and what they get.
//!
//! A page is bounded by work, not only by rows: a million overwritten entries between two live rows
//! is a normal state for a store fed by a log, so every walk carries a budget of entries and says how
//! far it came. A cursor is a position in key order, never a row, so deleting the row it came from
//! changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::filter::Filter;
use crate::key::TimeKey;
use crate::table::Table;
use crate::value::{ColumnType, Value, unscaled};
use crate::version::Version;

/// A flag by which a reader can be told to stop. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A flag that is not raised.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Raises the flag; running walks end within a few hundred entries.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// True once raised.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How much a walk may do before it hands out a page.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Entries looked at, including dead ones and rows read beside the index.
    pub entries: u64,
    /// Bytes of stored values among the rows returned.
    pub bytes: u64,
    /// When to stop whatever was found.
    pub deadline: Option<Instant>,
}

impl Default for Budget {
    /// 100,000 entries, 64 MiB, no deadline.
    fn default() -> Self {
        Budget { entries: 100_000, bytes: 64 << 20, deadline: None }
    }
}

/// Order of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Lowest first.
    #[default]
    Ascending,
    /// Highest first.
    Descending,
}

/// Says which ids a walk may see; others are passed over as if they were not stored.
pub type Owned<'a> = &'a (dyn Fn(u64) -> bool + Send + Sync);

/// Parts all walks have in common.
#[derive(Clone, Copy)]
pub struct Walk<'a> {
    /// The table.
    pub table: &'a Table,
    /// Rows to return at most; at least 1.
    pub limit: usize,
    /// Order.
    pub direction: Direction,
    /// Which rows.
    pub filter: Option<&'a Filter>,
    /// Which ids are this shard's.
    pub owned: Option<Owned<'a>>,
    /// Ordinals of the columns to return, in the order of [`Row::values`].
    pub columns: &'a [usize],
    /// Work allowed.
    pub budget: Budget,
    /// Stops the walk with [`crate::Error::Cancelled`].
    pub cancel: Option<&'a Cancel>,
}

impl<'a> Walk<'a> {
    /// All rows of a table in ascending order, `columns` of each, 100 to a page.
    pub fn of(table: &'a Table, columns: &'a [usize]) -> Walk<'a> {
        Walk {
            table,
            limit: 100,
            direction: Direction::Ascending,
            filter: None,
            owned: None,
            columns,
            budget: Budget::default(),
            cancel: None,
        }
    }
}

/// Where a row stands in its tenant's listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListPosition {
    /// The row's time; `None` (NULL, or no time column) is below every time.
    pub time: Option<TimeKey>,
    /// The row's id, which breaks ties.
    pub id: u64,
}

/// A tenant's rows ordered by time, then id.
#[derive(Clone, Copy)]
pub struct ListQuery<'a> {
    /// Filter, order, limits.
    pub walk: Walk<'a>,
    /// Whose rows.
    pub tenant: u64,
    /// Earliest time, inclusive. A bound on either side leaves out rows without a time.
    pub from: Option<TimeKey>,
    /// Latest time, exclusive.
    pub to: Option<TimeKey>,
    /// Start behind this position (in the walk's order).
    pub after: Option<ListPosition>,
}

/// Rows of all tenants ordered by id.
#[derive(Clone, Copy)]
pub struct ScanQuery<'a> {
    /// Filter, order, limits.
    pub walk: Walk<'a>,
    /// Lowest id, inclusive.
    pub from: u64,
    /// Highest id, inclusive.
    pub to: u64,
    /// Start behind this id (in the walk's order).
    pub after: Option<u64>,
    /// Also report tombstones. They do not count towards the limit and no filter applies to them.
    pub tombstones: bool,
}

impl<'a> ScanQuery<'a> {
    /// The whole table.
    pub fn all(walk: Walk<'a>) -> ScanQuery<'a> {
        ScanQuery { walk, from: 0, to: u64::MAX, after: None, tombstones: false }
    }
}

/// A row as read.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Row {
    /// Its id.
    pub id: u64,
    /// Its tenant.
    pub tenant: u64,
    /// Its time in key form; `None` for NULL or where the table has no time column.
    pub time: Option<TimeKey>,
    /// Its version; of two copies the higher one is right.
    pub version: Version,
    /// The asked-for columns, in the asked-for order.
    pub values: Vec<Value>,
}

impl Row {
    /// Its position in its tenant's listing.
    pub fn position(&self) -> ListPosition {
        ListPosition { time: self.time, id: self.id }
    }
}

/// A deleted row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tombstone {
    /// Its id.
    pub id: u64,
    /// The version it was deleted at.
    pub version: Version,
}

/// What a point read found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Lookup {
    /// A live row.
    Found(Row),
    /// A row deleted at this version.
    Deleted(Version),
    /// Nothing, or a row the filter or the owned ids leave out.
    Absent,
}

impl Lookup {
    /// The row, if there is one.
    pub fn into_row(self) -> Option<Row> {
        match self {
            Lookup::Found(row) => Some(row),
            Lookup::Deleted(_) | Lookup::Absent => None,
        }
    }
}

/// Why a page ends where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stopped {
    /// There is nothing more.
    End,
    /// The limit was reached and at least one more row matches.
    Limit,
    /// The budget of entries or bytes, or the deadline, ran out.
    Budget,
}

/// A page of a walk.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page<P> {
    /// Rows in the walk's order.
    pub rows: Vec<Row>,
    /// Tombstones in the walk's order, where asked for.
    pub tombstones: Vec<Tombstone>,
    /// Where to go on; `None` exactly when the walk is finished. May be set on an empty page.
    pub next: Option<P>,
    /// Why it ended.
    pub stopped: Stopped,
    /// Entries looked at.
    pub examined: u64,
    /// Rows read beside the index because a column is not in the listing.
    pub row_reads: u64,
}

/// Counts, sums and extremes over the rows of a walk; the walk's limit and columns play no part.
#[derive(Clone, Copy)]
pub struct AggregateQuery<'a> {
    /// Filter, owned ids, budget.
    pub walk: Walk<'a>,
    /// One tenant (through the index), or all (by id).
    pub tenant: Option<u64>,
    /// Earliest time, inclusive.
    pub from: Option<TimeKey>,
    /// Latest time, exclusive.
    pub to: Option<TimeKey>,
    /// Ordinals to aggregate, in the order of [`Aggregate::columns`].
    pub columns: &'a [usize],
    /// Start behind this position.
    pub after: Option<ListPosition>,
}

/// The part of an aggregate computed so far; add up the parts until `next` is `None`.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Aggregate {
    /// Rows counted.
    pub rows: u64,
    /// One per asked-for column.
    pub columns: Vec<ColumnAggregate>,
    /// Where to go on (the time is `None` when walking by id); `None` when finished.
    pub next: Option<ListPosition>,
    /// Entries looked at.
    pub examined: u64,
}

/// Aggregates of one column over the values that are not NULL.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ColumnAggregate {
    /// How many values are not NULL.
    pub values: u64,
    /// Their sum, for numeric columns; `None` as well when it does not fit 128 bits.
    pub sum: Option<Sum>,
    /// The smallest.
    pub min: Option<Value>,
    /// The largest.
    pub max: Option<Value>,
}

/// An exact sum of integers or decimals, or a sum of floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sum {
    /// Of integers.
    Integer(i128),
    /// Of decimals: the sum times 10^`scale`.
    Decimal {
        /// Sum times 10^`scale`.
        unscaled: i128,
        /// Digits after the point.
        scale: u8,
    },
    /// Of floats, in the order of the walk.
    Float(f64),
}

impl Sum {
    /// Of no values of a column of this type; `None` for a type that has no sum.
    pub fn zero(ty: ColumnType) -> Option<Sum> {
        match ty {
            ColumnType::U64 | ColumnType::I64 => Some(Sum::Integer(0)),
            ColumnType::F64 => Some(Sum::Float(0.0)),
            ColumnType::Decimal { scale, .. } => Some(Sum::Decimal { unscaled: 0, scale }),
            _ => None,
        }
    }

    /// Of one value. Decimals are canonical, so their digits say their scale.
    pub fn of(value: &Value) -> Option<Sum> {
        match value {
            Value::U64(v) => Some(Sum::Integer(i128::from(*v))),
            Value::I64(v) => Some(Sum::Integer(i128::from(*v))),
            Value::F64(v) => Some(Sum::Float(*v)),
            Value::Decimal(text) => {
                let scale = text.find('.').map_or(0, |point| text.len() - point - 1);
                Some(Sum::Decimal { unscaled: unscaled(text)?, scale: u8::try_from(scale).ok()? })
            }
            _ => None,
        }
    }

    /// Both together; `None` when it does not fit 128 bits or the kinds differ.
    pub fn plus(self, other: Sum) -> Option<Sum> {
        match (self, other) {
            (Sum::Integer(a), Sum::Integer(b)) => a.checked_add(b).map(Sum::Integer),
            (Sum::Decimal { unscaled: a, scale }, Sum::Decimal { unscaled: b, scale: other }) if scale == other => {
                a.checked_add(b).map(|unscaled| Sum::Decimal { unscaled, scale })
            }
            (Sum::Float(a), Sum::Float(b)) => Some(Sum::Float(a + b)),
            _ => None,
        }
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Sum::Integer(v) => v.fmt(f),
            Sum::Float(v) => v.fmt(f),
            Sum::Decimal { unscaled, scale } => {
                let scale = usize::from(*scale);
                let digits = format!("{:0>width$}", unscaled.unsigned_abs(), width = scale + 1);
                let (whole, fraction) = digits.split_at(digits.len() - scale);
                let sign = if *unscaled < 0 { "-" } else { "" };
                if scale == 0 { write!(f, "{sign}{whole}") } else { write!(f, "{sign}{whole}.{fraction}") }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_print_exactly_and_refuse_to_overflow() {
        let decimal = |unscaled, scale| Sum::Decimal { unscaled, scale };
        assert_eq!(decimal(-5, 2).to_string(), "-0.05");
        assert_eq!(decimal(12_345, 2).to_string(), "123.45");
        assert_eq!(decimal(7, 0).to_string(), "7");
        assert_eq!(Sum::Integer(i128::MAX).plus(Sum::Integer(1)), None);
        assert_eq!(decimal(1, 2).plus(decimal(1, 3)), None);
        assert_eq!(decimal(1, 2).plus(decimal(2, 2)), Some(decimal(3, 2)));
    }

    #[test]
    fn what_values_add_has_the_kind_of_their_column() {
        let decimal = ColumnType::Decimal { precision: 10, scale: 2 };
        for (ty, value, sum) in [
            (ColumnType::U64, Value::U64(u64::MAX), Sum::Integer(i128::from(u64::MAX))),
            (ColumnType::I64, Value::I64(-3), Sum::Integer(-3)),
            (ColumnType::F64, Value::F64(0.5), Sum::Float(0.5)),
            (decimal, Value::Decimal("-0.05".into()), Sum::Decimal { unscaled: -5, scale: 2 }),
        ] {
            assert_eq!(Sum::of(&value), Some(sum));
            assert_eq!(Sum::zero(ty).and_then(|zero| zero.plus(sum)), Some(sum), "{ty}");
        }
        assert_eq!((Sum::zero(ColumnType::Bool), Sum::of(&Value::Bool(true))), (None, None));
    }
}
