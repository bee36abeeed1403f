//! Column types and cell values.
//!
//! Rows come from MySQL columns, and every place that touches them (load, stream, HTTP, filter,
//! backup) must agree on what a value *is*: an unsigned 64-bit number never passes through a float,
//! a decimal keeps its digits, a time keeps its unit. One closed set of types with one canonical
//! in-memory form each makes equality, sums and round trips exact.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use jiff::SignedDuration;
use jiff::civil::DateTime;

mod civil;

/// Microseconds from 1970-01-01 to 0000-01-01, the earliest time a column can hold.
const MICROS_MIN: i64 = -62_167_219_200_000_000;
/// 9999-12-31T23:59:59.999999 in microseconds since 1970-01-01, the latest time a column can hold.
const MICROS_MAX: i64 = 253_402_300_799_999_999;
const MICROS_PER_DAY: i64 = 86_400_000_000;

/// The type of a column, as written in a store declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ColumnType {
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// IEEE 754 double; infinities and NaN are refused.
    F64,
    /// True or false.
    Bool,
    /// Exact decimal with `precision` digits in all, `scale` of them after the point.
    Decimal {
        /// Digits in all, 1 to 65.
        precision: u8,
        /// Digits after the point, at most 30 and at most `precision`.
        scale: u8,
    },
    /// UTF-8 text.
    String,
    /// Any bytes.
    Bytes,
    /// A JSON document, kept verbatim.
    Json,
    /// An instant, with `digits` (0 to 6) digits of a second.
    Timestamp {
        /// Digits of a second, 0 to 6.
        digits: u8,
    },
    /// A date and time without a zone, with `digits` (0 to 6) digits of a second.
    Datetime {
        /// Digits of a second, 0 to 6.
        digits: u8,
    },
    /// A day.
    Date,
}

impl ColumnType {
    /// True for types that can order a tenant's listing (the `time` column of a declaration).
    pub fn can_be_time(self) -> bool {
        matches!(
            self,
            ColumnType::Timestamp { .. }
                | ColumnType::Datetime { .. }
                | ColumnType::Date
                | ColumnType::U64
                | ColumnType::I64
        )
    }

    /// True for types whose values are stored as the distance from the row's time, where that is of the same type.
    pub(crate) fn counts_from_row_time(self) -> bool {
        matches!(self, ColumnType::Timestamp { .. } | ColumnType::Datetime { .. })
    }

    /// True for types whose sum per tenant the store maintains: integers, and decimals of at most 28
    /// digits, so that a sum over 10^10 rows fits 128 bits.
    pub(crate) fn is_summed(self) -> bool {
        match self {
            ColumnType::U64 | ColumnType::I64 => true,
            ColumnType::Decimal { precision, .. } => precision <= 28,
            _ => false,
        }
    }
}

/// Why a type could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown column type {0:?}; expected u64, i64, f64, bool, decimal(p,s), string, bytes, json, \
     timestamp(f), datetime(f) or date"
)]
pub struct UnknownType(pub String);

impl FromStr for ColumnType {
    type Err = UnknownType;

    /// Reads `u64 i64 f64 bool decimal(p,s) string bytes json timestamp(f) datetime(f) date`;
    /// `timestamp` and `datetime` without digits mean 0, as in SQL.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || UnknownType(text.to_owned());
        let (name, args) = match text.split_once('(') {
            None => (text.trim(), Vec::new()),
            Some((name, rest)) => {
                let inside = rest.trim_end().strip_suffix(')').ok_or_else(bad)?;
                let args = inside
                    .split(',')
                    .map(|n| {
                        let n = n.trim();
                        if n.is_empty() || n.len() > 3 || !n.bytes().all(|b| b.is_ascii_digit()) {
                            return Err(bad());
                        }
                        n.parse::<u8>().map_err(|_| bad())
                    })
                    .collect::<Result<Vec<u8>, _>>()?;
                (name.trim(), args)
            }
        };
        Ok(match (name, args.as_slice()) {
            ("u64", []) => ColumnType::U64,
            ("i64", []) => ColumnType::I64,
            ("f64", []) => ColumnType::F64,
            ("bool", []) => ColumnType::Bool,
            ("string", []) => ColumnType::String,
            ("bytes", []) => ColumnType::Bytes,
            ("json", []) => ColumnType::Json,
            ("date", []) => ColumnType::Date,
            ("decimal", &[precision, scale]) if (1..=65).contains(&precision) && scale <= 30 && scale <= precision => {
                ColumnType::Decimal { precision, scale }
            }
            ("timestamp", []) => ColumnType::Timestamp { digits: 0 },
            ("timestamp", &[digits @ 0..=6]) => ColumnType::Timestamp { digits },
            ("datetime", []) => ColumnType::Datetime { digits: 0 },
            ("datetime", &[digits @ 0..=6]) => ColumnType::Datetime { digits },
            _ => return Err(bad()),
        })
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ColumnType::U64 => f.write_str("u64"),
            ColumnType::I64 => f.write_str("i64"),
            ColumnType::F64 => f.write_str("f64"),
            ColumnType::Bool => f.write_str("bool"),
            ColumnType::Decimal { precision, scale } => write!(f, "decimal({precision},{scale})"),
            ColumnType::String => f.write_str("string"),
            ColumnType::Bytes => f.write_str("bytes"),
            ColumnType::Json => f.write_str("json"),
            ColumnType::Timestamp { digits } => write!(f, "timestamp({digits})"),
            ColumnType::Datetime { digits } => write!(f, "datetime({digits})"),
            ColumnType::Date => f.write_str("date"),
        }
    }
}

/// One cell. The variant must be that of the column's type, or `Null` where the column allows it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// SQL NULL.
    Null,
    /// For `u64`.
    U64(u64),
    /// For `i64`.
    I64(i64),
    /// For `f64`; finite.
    F64(f64),
    /// For `bool`.
    Bool(bool),
    /// For `decimal(p,s)`: canonical digits, `-?digits[.digits]`, exactly `s` of them after the point.
    Decimal(String),
    /// For `string`.
    String(String),
    /// For `bytes`.
    Bytes(Vec<u8>),
    /// For `json`, verbatim.
    Json(String),
    /// For `timestamp(f)`: microseconds since 1970-01-01T00:00:00Z.
    Timestamp(i64),
    /// For `datetime(f)`: microseconds since 1970-01-01T00:00:00, no zone.
    Datetime(i64),
    /// For `date`: days since 1970-01-01.
    Date(i32),
}

/// A borrowed cell: what [`Value`] is without owning its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants are those of `Value`")]
pub enum ValueRef<'a> {
    Null,
    U64(u64),
    I64(i64),
    F64(f64),
    Bool(bool),
    Decimal(&'a str),
    String(&'a str),
    Bytes(&'a [u8]),
    Json(&'a str),
    Timestamp(i64),
    Datetime(i64),
    Date(i32),
}

impl ValueRef<'_> {
    /// Copies the cell out of what it borrows from.
    pub fn into_owned(self) -> Value {
        match self {
            ValueRef::Null => Value::Null,
            ValueRef::U64(v) => Value::U64(v),
            ValueRef::I64(v) => Value::I64(v),
            ValueRef::F64(v) => Value::F64(v),
            ValueRef::Bool(v) => Value::Bool(v),
            ValueRef::Decimal(v) => Value::Decimal(v.to_owned()),
            ValueRef::String(v) => Value::String(v.to_owned()),
            ValueRef::Bytes(v) => Value::Bytes(v.to_vec()),
            ValueRef::Json(v) => Value::Json(v.to_owned()),
            ValueRef::Timestamp(v) => Value::Timestamp(v),
            ValueRef::Datetime(v) => Value::Datetime(v),
            ValueRef::Date(v) => Value::Date(v),
        }
    }
}

/// Why a value does not fit its column.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The variant is not the column's.
    #[error("expected {expected}, got {got}")]
    WrongType {
        /// The column's type.
        expected: ColumnType,
        /// A word for what was given.
        got: &'static str,
    },
    /// NULL in a column that is not nullable.
    #[error("null in a column that is not nullable")]
    Null,
    /// The value is of the right kind but cannot be held exactly.
    #[error("{value:?} is out of range for {expected}")]
    OutOfRange {
        /// The column's type.
        expected: ColumnType,
        /// The offending value.
        value: String,
    },
    /// The text is not a value of the type.
    #[error("{value:?} is not a {expected}")]
    Malformed {
        /// The column's type.
        expected: ColumnType,
        /// The offending text.
        value: String,
    },
}

impl Value {
    /// The same cell, borrowed.
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Value::Null => ValueRef::Null,
            Value::U64(v) => ValueRef::U64(*v),
            Value::I64(v) => ValueRef::I64(*v),
            Value::F64(v) => ValueRef::F64(*v),
            Value::Bool(v) => ValueRef::Bool(*v),
            Value::Decimal(v) => ValueRef::Decimal(v),
            Value::String(v) => ValueRef::String(v),
            Value::Bytes(v) => ValueRef::Bytes(v),
            Value::Json(v) => ValueRef::Json(v),
            Value::Timestamp(v) => ValueRef::Timestamp(*v),
            Value::Datetime(v) => ValueRef::Datetime(*v),
            Value::Date(v) => ValueRef::Date(*v),
        }
    }

    /// True for `Null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F64(_) => "f64",
            Value::Bool(_) => "bool",
            Value::Decimal(_) => "decimal",
            Value::String(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::Json(_) => "json",
            Value::Timestamp(_) => "timestamp",
            Value::Datetime(_) => "datetime",
            Value::Date(_) => "date",
        }
    }

    /// Checks the value against a column and brings it into canonical form (decimals get exactly
    /// their scale). `u64` and `i64` accept each other where the number fits.
    ///
    /// # Errors
    /// When the value has another type, is NULL where that is not allowed, or cannot be held exactly;
    /// nothing is clamped or rounded.
    pub fn for_column(self, ty: ColumnType, nullable: bool) -> Result<Value, ValueError> {
        let out_of_range = |value: String| Err(ValueError::OutOfRange { expected: ty, value });
        match (ty, self) {
            (_, Value::Null) if nullable => Ok(Value::Null),
            (_, Value::Null) => Err(ValueError::Null),
            (ColumnType::U64, v @ Value::U64(_))
            | (ColumnType::I64, v @ Value::I64(_))
            | (ColumnType::Bool, v @ Value::Bool(_))
            | (ColumnType::String, v @ Value::String(_))
            | (ColumnType::Bytes, v @ Value::Bytes(_)) => Ok(v),
            (ColumnType::U64, Value::I64(v)) => match u64::try_from(v) {
                Ok(v) => Ok(Value::U64(v)),
                Err(_) => out_of_range(v.to_string()),
            },
            (ColumnType::I64, Value::U64(v)) => match i64::try_from(v) {
                Ok(v) => Ok(Value::I64(v)),
                Err(_) => out_of_range(v.to_string()),
            },
            (ColumnType::F64, Value::F64(v)) if v.is_finite() => Ok(Value::F64(v)),
            (ColumnType::F64, Value::F64(v)) => out_of_range(v.to_string()),
            (ColumnType::Json, Value::Json(v)) => match serde_json::from_str::<serde::de::IgnoredAny>(&v) {
                Ok(_) => Ok(Value::Json(v)),
                Err(_) => Err(ValueError::Malformed { expected: ty, value: v }),
            },
            (ColumnType::Decimal { precision, scale }, Value::Decimal(v)) => {
                canonical_decimal(&v, precision, scale, ty).map(Value::Decimal)
            }
            (ColumnType::Timestamp { digits }, Value::Timestamp(v)) => {
                check_micros(v, digits, ty).map(Value::Timestamp)
            }
            (ColumnType::Datetime { digits }, Value::Datetime(v)) => check_micros(v, digits, ty).map(Value::Datetime),
            (ColumnType::Date, Value::Date(v)) => {
                let micros = i64::from(v).checked_mul(MICROS_PER_DAY);
                match micros {
                    Some(m) if (MICROS_MIN..=MICROS_MAX).contains(&m) => Ok(Value::Date(v)),
                    _ => out_of_range(v.to_string()),
                }
            }
            (expected, other) => Err(ValueError::WrongType { expected, got: other.kind() }),
        }
    }

    /// Reads the text form of a type (what [`Value::to_text`] writes, and the usual variations: any
    /// UTC offset for `timestamp`, a space instead of `T`, fewer or more decimal digits where the
    /// value stays exact). `bytes` are taken as they are; base64 is a matter of the wire.
    ///
    /// # Errors
    /// When the text is no value of the type or cannot be held exactly.
    pub fn from_text(ty: ColumnType, text: &str) -> Result<Value, ValueError> {
        let malformed = || ValueError::Malformed { expected: ty, value: text.to_owned() };
        let out_of_range = || ValueError::OutOfRange { expected: ty, value: text.to_owned() };
        match ty {
            ColumnType::U64 | ColumnType::I64 => {
                let digits = text.strip_prefix('-').unwrap_or(text);
                if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(malformed());
                }
                match ty {
                    ColumnType::U64 => text.parse().map(Value::U64).map_err(|_| out_of_range()),
                    _ => text.parse().map(Value::I64).map_err(|_| out_of_range()),
                }
            }
            ColumnType::F64 => {
                let value: f64 = text.parse().map_err(|_| malformed())?;
                Value::F64(value).for_column(ty, false)
            }
            ColumnType::Bool => match text {
                "true" | "1" => Ok(Value::Bool(true)),
                "false" | "0" => Ok(Value::Bool(false)),
                _ => Err(malformed()),
            },
            ColumnType::Decimal { .. } => Value::Decimal(text.to_owned()).for_column(ty, false),
            ColumnType::String => Ok(Value::String(text.to_owned())),
            ColumnType::Bytes => Ok(Value::Bytes(text.as_bytes().to_vec())),
            ColumnType::Json => Value::Json(text.to_owned()).for_column(ty, false),
            ColumnType::Timestamp { .. } | ColumnType::Datetime { .. } => {
                let read = civil::read(text).ok_or_else(malformed)?;
                if read.civil.subsec_nanosecond() % 1_000 != 0 {
                    return Err(out_of_range());
                }
                let micros = civil_micros(read.civil);
                let value = match (ty, read.offset_s) {
                    (ColumnType::Timestamp { .. }, Some(offset_s)) => Value::Timestamp(micros - offset_s * 1_000_000),
                    (ColumnType::Datetime { .. }, None) => Value::Datetime(micros),
                    // A point in time needs an offset, and where there is no zone one would be lost.
                    _ => return Err(malformed()),
                };
                value.for_column(ty, false).map_err(|_| out_of_range())
            }
            ColumnType::Date => {
                let read = civil::read(text).filter(|read| !read.has_clock).ok_or_else(malformed)?;
                let days = civil_micros(read.civil).div_euclid(MICROS_PER_DAY);
                let days = i32::try_from(days).map_err(|_| out_of_range())?;
                Value::Date(days).for_column(ty, false).map_err(|_| out_of_range())
            }
        }
    }

    /// The text form: numbers in decimal, timestamps as RFC 3339 in UTC with the column's digits and
    /// `Z`, datetimes the same without a zone, dates as `YYYY-MM-DD`; `None` for NULL and for `bytes`,
    /// which have no text form of their own.
    pub fn to_text(&self, ty: ColumnType) -> Option<Cow<'_, str>> {
        Some(match self {
            Value::Null | Value::Bytes(_) => return None,
            Value::U64(v) => Cow::Owned(v.to_string()),
            Value::I64(v) => Cow::Owned(v.to_string()),
            Value::F64(v) => Cow::Owned(v.to_string()),
            Value::Bool(v) => Cow::Borrowed(if *v { "true" } else { "false" }),
            Value::Decimal(v) | Value::String(v) | Value::Json(v) => Cow::Borrowed(v),
            Value::Timestamp(v) => Cow::Owned(micros_text(*v, digits_of(ty)) + "Z"),
            Value::Datetime(v) => Cow::Owned(micros_text(*v, digits_of(ty))),
            Value::Date(v) => {
                let mut text = micros_text(i64::from(*v).saturating_mul(MICROS_PER_DAY), 0);
                text.truncate(10);
                Cow::Owned(text)
            }
        })
    }
}

fn digits_of(ty: ColumnType) -> u8 {
    match ty {
        ColumnType::Timestamp { digits } | ColumnType::Datetime { digits } => digits,
        _ => 6,
    }
}

/// Microseconds in one unit of a column with `digits` digits of a second.
pub(crate) fn micros_per_unit(digits: u8) -> i64 {
    10_i64.pow(6 - u32::from(digits.min(6)))
}

fn check_micros(micros: i64, digits: u8, ty: ColumnType) -> Result<i64, ValueError> {
    if (MICROS_MIN..=MICROS_MAX).contains(&micros) && micros % micros_per_unit(digits) == 0 {
        Ok(micros)
    } else {
        Err(ValueError::OutOfRange { expected: ty, value: micros_text(micros, 6) })
    }
}

fn civil_micros(civil: DateTime) -> i64 {
    let epoch = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    let since = civil.duration_since(epoch);
    since.as_secs() * 1_000_000 + i64::from(since.subsec_micros())
}

fn micros_text(micros: i64, digits: u8) -> String {
    let epoch = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    let Ok(civil) = epoch.checked_add(SignedDuration::from_micros(micros)) else {
        return format!("{micros} us");
    };
    let mut text = format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
        civil.year(),
        civil.month(),
        civil.day(),
        civil.hour(),
        civil.minute(),
        civil.second()
    );
    if digits > 0 {
        let fraction = format!("{:06}", micros.rem_euclid(1_000_000));
        text.push('.');
        text.push_str(&fraction[..usize::from(digits.min(6))]);
    }
    text
}

/// `-?digits[.digits]` without leading zeros, exactly `scale` digits after the point, no negative
/// zero. Surplus zeros after the point are dropped; other surplus digits are an error.
fn canonical_decimal(text: &str, precision: u8, scale: u8, ty: ColumnType) -> Result<String, ValueError> {
    let malformed = || ValueError::Malformed { expected: ty, value: text.to_owned() };
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let digits_only = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !digits_only(whole) || !digits_only(fraction) {
        return Err(malformed());
    }
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    if whole.len() > usize::from(precision - scale) || fraction.len() > usize::from(scale) {
        return Err(ValueError::OutOfRange { expected: ty, value: text.to_owned() });
    }
    let mut out = String::with_capacity(usize::from(precision) + 3);
    if negative && !(whole.is_empty() && fraction.is_empty()) {
        out.push('-');
    }
    out.push_str(if whole.is_empty() { "0" } else { whole });
    if scale > 0 {
        out.push('.');
        out.push_str(fraction);
        out.extend(std::iter::repeat_n('0', usize::from(scale) - fraction.len()));
    }
    Ok(out)
}

/// The digits of a canonical decimal without its point: its value times 10^scale.
pub(crate) fn unscaled(decimal: &str) -> Option<i128> {
    let negative = decimal.starts_with('-');
    let mut total: i128 = 0;
    for byte in decimal.bytes() {
        if byte.is_ascii_digit() {
            total = total.checked_mul(10)?.checked_add(i128::from(byte - b'0'))?;
        }
    }
    Some(if negative { -total } else { total })
}

#[cfg(test)]
mod tests;
