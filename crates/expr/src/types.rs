//! Declared types of keys: what a rules file may say about a metadata key, and what a table says about a column.
//!
//! The type of a comparison is decided by its left key alone, so one table of names is all that is needed. An undeclared
//! key is not in that table; what happens then is the business of [`Schema::infers_types`](crate::Schema::infers_types).

use std::fmt;
use std::str::FromStr;

/// The declared type of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// `2.3`, `v2.10.0-rc.1+build7`: see [`version`](crate::version).
    Version,
    /// A plain decimal of any length: see [`decimal`](crate::decimal).
    Number,
    /// Compared exactly; never ordered.
    Text,
    /// `true` or `false`.
    Bool,
    /// Several values: a list, or one text split at commas.
    Set,
    /// A point in time, ordered.
    Time(TimeUnit),
}

/// How a point in time is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TimeUnit {
    /// RFC 3339 text; without an offset it is read as UTC, and a date alone is its midnight.
    Rfc3339,
    /// Seconds since 1970-01-01T00:00:00Z, optionally with a fraction. RFC 3339 text is understood too, here and below.
    Seconds,
    /// Milliseconds since 1970-01-01T00:00:00Z.
    Millis,
    /// Microseconds since 1970-01-01T00:00:00Z.
    Micros,
    /// Nanoseconds since 1970-01-01T00:00:00Z.
    Nanos,
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Type::Version => "version",
            Type::Number => "number",
            Type::Text => "text",
            Type::Bool => "bool",
            Type::Set => "set",
            Type::Time(TimeUnit::Rfc3339) => "time",
            Type::Time(TimeUnit::Seconds) => "time(s)",
            Type::Time(TimeUnit::Millis) => "time(ms)",
            Type::Time(TimeUnit::Micros) => "time(us)",
            Type::Time(TimeUnit::Nanos) => "time(ns)",
        })
    }
}

/// A word that names no type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownType(String);

impl fmt::Display for UnknownType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown type `{}`; one of version, number, text, bool, set, time, time(s), time(ms), time(us), time(ns)",
            self.0
        )
    }
}

impl std::error::Error for UnknownType {}

impl FromStr for Type {
    type Err = UnknownType;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Ok(match word {
            "version" => Type::Version,
            "number" => Type::Number,
            "text" => Type::Text,
            "bool" => Type::Bool,
            "set" => Type::Set,
            "time" | "time(rfc3339)" => Type::Time(TimeUnit::Rfc3339),
            "time(s)" => Type::Time(TimeUnit::Seconds),
            "time(ms)" => Type::Time(TimeUnit::Millis),
            "time(us)" => Type::Time(TimeUnit::Micros),
            "time(ns)" => Type::Time(TimeUnit::Nanos),
            other => return Err(UnknownType(other.to_owned())),
        })
    }
}
