//! Table schemas: what a store declaration says, checked once and stored with the data.
//!
//! Keys, index entries, filters and sums are all derived from the declared columns, so a mistake here
//! would be paid in every row. [`Declaration`] is the raw text a person writes; [`Schema`] is the
//! validated value everything else uses. A stored schema changes in one direction only: nullable
//! columns may be added at the end and a column may become nullable, because rows already written
//! stay readable without touching them.

use std::collections::HashSet;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::value::{ColumnType, UnknownType, Value, ValueError};

/// Most columns a table may have.
pub const COLUMNS_MAX: usize = 1_000;
/// Longest table or column name in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// A store as declared by a person: all text, nothing checked. Field names are those of the
/// declaration; unknown ones are refused by the reader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declaration {
    /// The table's name.
    pub name: String,
    /// The column that identifies a row; `u64`, not nullable.
    pub id: String,
    /// The column that says whose row it is; `u64`, not nullable.
    pub tenant: String,
    /// The column that orders a tenant's listing, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Columns and their types in declared order; a trailing `?` means nullable.
    pub columns: DeclaredColumns,
    /// Columns that a listing answers without reading the row.
    #[serde(default)]
    pub listing: Vec<String>,
}

/// Column name → type text, in declared order. Reads and writes as a map; a repeated name is kept
/// here and refused by [`Schema::parse`], because map readers would silently drop one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredColumns(pub Vec<(String, String)>);

impl Serialize for DeclaredColumns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, ty) in &self.0 {
            map.serialize_entry(name, ty)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for DeclaredColumns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = DeclaredColumns;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from column name to column type")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(DeclaredColumns(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// A column of a validated schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name, unique in the table.
    pub name: String,
    /// Its type.
    pub ty: ColumnType,
    /// Whether NULL is allowed.
    pub nullable: bool,
}

/// A validated table schema. Columns are addressed by *ordinal*, their position in
/// [`Schema::columns`]; an ordinal never changes its meaning once stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    name: String,
    columns: Vec<Column>,
    id: usize,
    tenant: usize,
    time: Option<usize>,
    listing: Vec<usize>,
    summed: Vec<usize>,
    row_cells: Vec<usize>,
}

/// Why a declaration is no valid schema, or not a continuation of the stored one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// A table or column name is empty, too long or has characters outside `[A-Za-z0-9_$.-]`.
    #[error("bad name {0:?}: letters, digits, '_', '$', '.' and '-' only, at most {NAME_BYTES_MAX} bytes")]
    BadName(String),
    /// A column's type text is unknown.
    #[error("column {column:?} has a bad type")]
    BadType {
        /// The column.
        column: String,
        /// The type's own error.
        #[source]
        source: UnknownType,
    },
    /// A column is declared, or listed, twice.
    #[error("column {0:?} appears twice")]
    Duplicate(String),
    /// `id`, `tenant`, `time` or `listing` names a column that is not declared.
    #[error("{role} names column {column:?}, which is not declared")]
    UnknownColumn {
        /// The declaration's field.
        role: &'static str,
        /// The missing column.
        column: String,
    },
    /// A column cannot play the role given to it.
    #[error("{role} column {column:?} must be {expected}")]
    BadRole {
        /// The declaration's field.
        role: &'static str,
        /// The column.
        column: String,
        /// What the role asks for.
        expected: &'static str,
    },
    /// More than [`COLUMNS_MAX`] columns.
    #[error("{0} columns; at most {COLUMNS_MAX}")]
    TooManyColumns(usize),
    /// The schema differs from the stored one in a way rows already written do not allow.
    #[error("table {table:?} is stored differently: {difference}")]
    Incompatible {
        /// The table.
        table: String,
        /// What differs.
        difference: String,
    },
    /// The stored bytes are no schema.
    #[error("stored schema cannot be read: {0}")]
    Unreadable(String),
}

fn check_name(name: &str) -> Result<(), SchemaError> {
    let ok = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'.' | b'-'));
    if ok { Ok(()) } else { Err(SchemaError::BadName(name.to_owned())) }
}

impl Schema {
    /// Checks a declaration.
    ///
    /// # Errors
    /// On the first thing that does not hold; see [`SchemaError`].
    pub fn parse(declaration: &Declaration) -> Result<Schema, SchemaError> {
        check_name(&declaration.name)?;
        let declared = &declaration.columns.0;
        if declared.len() > COLUMNS_MAX {
            return Err(SchemaError::TooManyColumns(declared.len()));
        }
        let mut columns: Vec<Column> = Vec::with_capacity(declared.len());
        let mut names = HashSet::new();
        for (name, text) in declared {
            check_name(name)?;
            if !names.insert(name.as_str()) {
                return Err(SchemaError::Duplicate(name.clone()));
            }
            let text = text.trim();
            let (base, nullable) = match text.strip_suffix('?') {
                Some(base) => (base, true),
                None => (text, false),
            };
            let ty = base.parse().map_err(|source| SchemaError::BadType { column: name.clone(), source })?;
            columns.push(Column { name: name.clone(), ty, nullable });
        }
        let find = |role: &'static str, column: &str| {
            columns
                .iter()
                .position(|c| c.name == column)
                .ok_or_else(|| SchemaError::UnknownColumn { role, column: column.to_owned() })
        };
        let id = find("id", &declaration.id)?;
        let tenant = find("tenant", &declaration.tenant)?;
        for (role, at) in [("id", id), ("tenant", tenant)] {
            if columns[at].ty != ColumnType::U64 || columns[at].nullable {
                return Err(SchemaError::BadRole {
                    role,
                    column: columns[at].name.clone(),
                    expected: "u64 and not nullable",
                });
            }
        }
        if id == tenant {
            return Err(SchemaError::BadRole {
                role: "tenant",
                column: columns[tenant].name.clone(),
                expected: "another column than id",
            });
        }
        let time = match &declaration.time {
            None => None,
            Some(name) => {
                let at = find("time", name)?;
                if !columns[at].ty.can_be_time() || at == id || at == tenant {
                    return Err(SchemaError::BadRole {
                        role: "time",
                        column: name.clone(),
                        expected: "timestamp, datetime, date, u64 or i64, and neither id nor tenant",
                    });
                }
                Some(at)
            }
        };
        let mut listing = Vec::new();
        let mut listed = HashSet::new();
        for name in &declaration.listing {
            let at = find("listing", name)?;
            if !listed.insert(at) {
                return Err(SchemaError::Duplicate(name.clone()));
            }
            // These three are in the index key already.
            if at != id && at != tenant && Some(at) != time {
                listing.push(at);
            }
        }
        Ok(Schema::assemble(declaration.name.clone(), columns, id, tenant, time, listing))
    }

    fn assemble(
        name: String,
        columns: Vec<Column>,
        id: usize,
        tenant: usize,
        time: Option<usize>,
        listing: Vec<usize>,
    ) -> Schema {
        let summed = (0..columns.len())
            .filter(|&at| at != id && at != tenant && Some(at) != time && columns[at].ty.is_summed())
            .collect();
        let row_cells = (0..columns.len()).filter(|&at| at != id).collect();
        Schema { name, columns, id, tenant, time, listing, summed, row_cells }
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Columns by ordinal.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The ordinal of a column by name.
    pub fn ordinal(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == name)
    }

    /// The ordinal of a column by name, or by what it is: `id`, `tenant` and `time` stand for those columns where no column
    /// has that very name.
    pub fn named(&self, name: &str) -> Option<usize> {
        self.ordinal(name).or(match name {
            "id" => Some(self.id),
            "tenant" => Some(self.tenant),
            "time" => self.time,
            _ => None,
        })
    }

    /// Ordinal of the id column.
    pub fn id(&self) -> usize {
        self.id
    }

    /// Ordinal of the tenant column.
    pub fn tenant(&self) -> usize {
        self.tenant
    }

    /// Ordinal of the time column.
    pub fn time(&self) -> Option<usize> {
        self.time
    }

    /// Ordinals of the columns kept in the index beside id, tenant and time, in declared order.
    pub fn listing(&self) -> &[usize] {
        &self.listing
    }

    /// Ordinals of the columns whose sums are maintained.
    pub fn summed(&self) -> &[usize] {
        &self.summed
    }

    /// Ordinals of the columns stored in a row's value: all but the id, which is in the key.
    pub(crate) fn row_cells(&self) -> &[usize] {
        &self.row_cells
    }

    /// Ordinals shown by default: id, tenant, time, then the listing columns.
    pub fn default_columns(&self) -> Vec<usize> {
        [self.id, self.tenant].into_iter().chain(self.time).chain(self.listing.iter().copied()).collect()
    }

    /// True when a listing knows the column without reading the row.
    pub fn is_listed(&self, ordinal: usize) -> bool {
        ordinal == self.id || ordinal == self.tenant || Some(ordinal) == self.time || self.listing.contains(&ordinal)
    }

    /// Checks a whole row, one value per ordinal, and brings it into canonical form.
    ///
    /// # Errors
    /// With the offending column when a value is missing, surplus or does not fit.
    pub fn check_row(&self, row: Vec<Value>) -> Result<Vec<Value>, RowError> {
        if row.len() != self.columns.len() {
            return Err(RowError::Width { expected: self.columns.len(), got: row.len() });
        }
        row.into_iter().enumerate().map(|(at, value)| self.check_value(at, value)).collect()
    }

    /// Checks one value against a column and brings it into canonical form.
    ///
    /// # Errors
    /// With the offending column when the value does not fit.
    pub fn check_value(&self, ordinal: usize, value: Value) -> Result<Value, RowError> {
        let column =
            self.columns.get(ordinal).ok_or(RowError::Width { expected: self.columns.len(), got: ordinal + 1 })?;
        value
            .for_column(column.ty, column.nullable)
            .map_err(|source| RowError::Value { column: column.name.clone(), source })
    }

    /// The declaration this schema stands for.
    pub fn to_declaration(&self) -> Declaration {
        let name_of = |at: usize| self.columns[at].name.clone();
        Declaration {
            name: self.name.clone(),
            id: name_of(self.id),
            tenant: name_of(self.tenant),
            time: self.time.map(name_of),
            columns: DeclaredColumns(
                self.columns
                    .iter()
                    .map(|c| (c.name.clone(), format!("{}{}", c.ty, if c.nullable { "?" } else { "" })))
                    .collect(),
            ),
            listing: self.listing.iter().map(|&at| name_of(at)).collect(),
        }
    }

    /// The stored form: the declaration as JSON, columns in ordinal order.
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(&self.to_declaration()).expect("strings and lists always serialise")
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// When the bytes are no valid declaration.
    pub fn decode(bytes: &[u8]) -> Result<Schema, SchemaError> {
        let declaration: Declaration =
            serde_json::from_slice(bytes).map_err(|e| SchemaError::Unreadable(e.to_string()))?;
        Schema::parse(&declaration)
    }

    /// What the stored schema becomes when a table is opened with `declared`: the stored ordinals,
    /// with new nullable columns appended in declared order. Equal to `self` when nothing is new.
    ///
    /// # Errors
    /// [`SchemaError::Incompatible`] when rows already written could not be read as declared.
    pub fn evolve(&self, declared: &Schema) -> Result<Schema, SchemaError> {
        let incompatible = |difference: String| SchemaError::Incompatible { table: self.name.clone(), difference };
        let name_at = |s: &Schema, at: usize| s.columns[at].name.clone();
        if self.name != declared.name {
            return Err(incompatible(format!("declared as {:?}", declared.name)));
        }
        for (role, stored, new) in [
            ("id", Some(self.id), Some(declared.id)),
            ("tenant", Some(self.tenant), Some(declared.tenant)),
            ("time", self.time, declared.time),
        ] {
            let stored = stored.map(|at| name_at(self, at));
            let new = new.map(|at| name_at(declared, at));
            if stored != new {
                return Err(incompatible(format!("{role} is {stored:?}, declared {new:?}")));
            }
        }
        let mut columns = self.columns.clone();
        for (at, column) in columns.iter_mut().enumerate() {
            let Some(new) = declared.columns.iter().find(|c| c.name == column.name) else {
                return Err(incompatible(format!("column {:?} is not declared", column.name)));
            };
            if new.ty != column.ty {
                return Err(incompatible(format!("column {:?} is {}, declared {}", column.name, column.ty, new.ty)));
            }
            if column.nullable && !new.nullable {
                return Err(incompatible(format!("column {:?} is nullable", column.name)));
            }
            debug_assert!(!(new.nullable && (at == self.id || at == self.tenant)));
            column.nullable = new.nullable;
        }
        for new in &declared.columns {
            if self.ordinal(&new.name).is_none() {
                if !new.nullable {
                    return Err(incompatible(format!("new column {:?} is not nullable", new.name)));
                }
                columns.push(new.clone());
            }
        }
        let mut listing = self.listing.clone();
        let declared_listing: Vec<String> = declared.listing.iter().map(|&at| name_at(declared, at)).collect();
        for &at in &self.listing {
            if !declared_listing.contains(&self.columns[at].name) {
                return Err(incompatible(format!("column {:?} is in the listing", self.columns[at].name)));
            }
        }
        for name in declared_listing {
            let at =
                columns.iter().position(|c| c.name == name).expect("every declared column was matched or appended");
            if !listing.contains(&at) {
                if at < self.columns.len() {
                    return Err(incompatible(format!("column {name:?} is not in the listing")));
                }
                listing.push(at);
            }
        }
        Ok(Schema::assemble(self.name.clone(), columns, self.id, self.tenant, self.time, listing))
    }
}

/// Why a row does not fit its table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    /// The row has another number of values than the table has columns.
    #[error("{got} values for {expected} columns")]
    Width {
        /// Columns of the table.
        expected: usize,
        /// Values given.
        got: usize,
    },
    /// A value does not fit its column.
    #[error("column {column:?}")]
    Value {
        /// The column.
        column: String,
        /// What is wrong with the value.
        #[source]
        source: ValueError,
    },
    /// The encoded row is longer than a row may be.
    #[error("row of {bytes} bytes; at most {}", crate::record::ROW_BYTES_MAX)]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

#[cfg(test)]
mod tests;
