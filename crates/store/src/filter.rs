//! Expressions over rows.
//!
//! Instances and rows are filtered by one language. What differs is where names come from: a row's
//! columns are declared, so an unknown name is an error and every type is known, and there is no
//! caller and no request to read from. A filter is compiled against a table once and then evaluated
//! on the stored bytes, reading only the columns it names.

use std::cell::Cell;
use std::sync::Arc;

use metaroute_expr as expr;

use crate::key::TimeKey;
use crate::record::{Cells, RecordError};
use crate::schema::Schema;
use crate::table::Table;
use crate::value::{ColumnType, ValueRef};

/// A compiled filter of one table. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Filter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    program: expr::Program,
    columns: Vec<usize>,
}

impl Filter {
    /// Compiles an expression against a table's columns.
    ///
    /// # Errors
    /// When it names an unknown column, reads `$req`, `$caller` or `$self`, or compares a column with
    /// a literal of another type.
    pub fn new(expression: &expr::Expr, table: &Table) -> Result<Filter, expr::BindError> {
        let schema = table.schema();
        let program = expression.bind(&mut Names { schema })?;
        let mut columns: Vec<usize> = expression.keys().filter_map(|name| schema.ordinal(name)).collect();
        columns.sort_unstable();
        columns.dedup();
        Ok(Filter(Arc::new(Inner { program, columns })))
    }

    /// Ordinals of the columns it reads, ascending.
    pub fn columns(&self) -> &[usize] {
        &self.0.columns
    }

    /// The compiled program; its key ids are column ordinals.
    pub fn program(&self) -> &expr::Program {
        &self.0.program
    }

    pub(crate) fn matches(&self, row: &StoredRow<'_>) -> Result<bool, RecordError> {
        let record = FilterRecord { row, damage: Cell::new(None) };
        let matched = self.0.program.eval(&record, &());
        match record.damage.get() {
            None => Ok(matched),
            Some(damage) => Err(damage),
        }
    }
}

/// A table's columns as the expression language asks for them.
struct Names<'a> {
    schema: &'a Schema,
}

impl expr::Schema for Names<'_> {
    fn key(&mut self, name: &str) -> Result<expr::KeyId, expr::Unsupported> {
        let unknown = || {
            expr::Unsupported::new(format!("table `{}` has no column `{name}`", self.schema.name()))
                .with_code("unknown_field")
        };
        let at = self.schema.ordinal(name).ok_or_else(unknown)?;
        Ok(expr::KeyId(at as u32))
    }

    fn attribute(&mut self, attribute: expr::Attribute) -> Result<expr::KeyId, expr::Unsupported> {
        Err(expr::Unsupported::new(format!("rows have no `$self.{attribute}`")))
    }

    fn slot(&mut self, scope: expr::SlotScope, name: &str) -> Result<expr::SlotId, expr::Unsupported> {
        Err(expr::Unsupported::new(format!("`{scope}.{name}` cannot be used to filter rows")))
    }

    fn declared(&self, name: &str) -> Option<expr::Type> {
        let at = self.schema.ordinal(name)?;
        Some(match self.schema.columns()[at].ty {
            ColumnType::U64 | ColumnType::I64 | ColumnType::F64 | ColumnType::Decimal { .. } => expr::Type::Number,
            ColumnType::Bool => expr::Type::Bool,
            ColumnType::String | ColumnType::Json | ColumnType::Bytes => expr::Type::Text,
            ColumnType::Timestamp { .. } | ColumnType::Datetime { .. } | ColumnType::Date => {
                expr::Type::Time(expr::TimeUnit::Rfc3339)
            }
        })
    }

    fn infers_types(&self) -> bool {
        false
    }
}

/// Where a column's value is found in a stored pair.
#[derive(Clone, Copy, Debug)]
enum Place {
    Id,
    Tenant,
    Time,
    Cell(usize),
    /// In the row only, not in the index entry.
    Elsewhere,
}

/// Which columns a stored pair has, and where: one form for rows, one for index entries.
#[derive(Debug)]
pub(crate) struct Layout {
    places: Vec<Place>,
    ordinals: Vec<usize>,
}

impl Layout {
    pub(crate) fn of_row(schema: &Schema) -> Layout {
        let ordinals = schema.row_cells().to_vec();
        let mut places = vec![Place::Elsewhere; schema.columns().len()];
        for (n, &at) in ordinals.iter().enumerate() {
            places[at] = Place::Cell(n);
        }
        places[schema.id()] = Place::Id;
        Layout { places, ordinals }
    }

    pub(crate) fn of_entry(schema: &Schema) -> Layout {
        let ordinals = schema.listing().to_vec();
        let mut places = vec![Place::Elsewhere; schema.columns().len()];
        for (n, &at) in ordinals.iter().enumerate() {
            places[at] = Place::Cell(n);
        }
        places[schema.id()] = Place::Id;
        places[schema.tenant()] = Place::Tenant;
        if let Some(at) = schema.time() {
            places[at] = Place::Time;
        }
        Layout { places, ordinals }
    }

    /// True when the pair has all these columns.
    pub(crate) fn has_all(&self, ordinals: &[usize]) -> bool {
        ordinals.iter().all(|&at| !matches!(self.places.get(at), None | Some(Place::Elsewhere)))
    }

    /// How many leading cells must be located to read these columns.
    pub(crate) fn reach(&self, ordinals: &[usize]) -> usize {
        let cell = |&at: &usize| match self.places.get(at) {
            Some(Place::Cell(n)) => n + 1,
            _ => 0,
        };
        ordinals.iter().map(cell).max().unwrap_or(0)
    }

    pub(crate) fn ordinals(&self) -> &[usize] {
        &self.ordinals
    }
}

/// A stored pair whose cells have been located.
pub(crate) struct StoredRow<'a> {
    pub(crate) schema: &'a Schema,
    pub(crate) layout: &'a Layout,
    pub(crate) id: u64,
    pub(crate) tenant: u64,
    pub(crate) time: Option<TimeKey>,
    pub(crate) cells: Cells<'a>,
    pub(crate) offsets: &'a [u32],
}

impl<'a> StoredRow<'a> {
    pub(crate) fn value(&self, ordinal: usize) -> Result<ValueRef<'a>, RecordError> {
        let place = self.layout.places.get(ordinal).copied().unwrap_or(Place::Elsewhere);
        Ok(match place {
            Place::Id => ValueRef::U64(self.id),
            Place::Tenant => ValueRef::U64(self.tenant),
            Place::Time => {
                let ty = self.schema.columns()[ordinal].ty;
                match self.time.map(|time| time.to_value(ty)) {
                    None => ValueRef::Null,
                    // Time values own nothing, so the borrow can be rebuilt from the copy.
                    Some(crate::Value::Timestamp(v)) => ValueRef::Timestamp(v),
                    Some(crate::Value::Datetime(v)) => ValueRef::Datetime(v),
                    Some(crate::Value::Date(v)) => ValueRef::Date(v),
                    Some(crate::Value::I64(v)) => ValueRef::I64(v),
                    Some(crate::Value::U64(v)) => ValueRef::U64(v),
                    Some(_) => ValueRef::Null,
                }
            }
            Place::Cell(n) => {
                let offset = *self.offsets.get(n).ok_or(RecordError::Bad("cell"))?;
                self.cells.cell_at(offset, self.schema.columns()[ordinal].ty)?
            }
            Place::Elsewhere => return Err(RecordError::Bad("cell")),
        })
    }
}

struct FilterRecord<'a, 'r> {
    row: &'r StoredRow<'a>,
    damage: Cell<Option<RecordError>>,
}

impl expr::Record for FilterRecord<'_, '_> {
    fn get(&self, key: expr::KeyId) -> Option<expr::Value<'_>> {
        const NANOS_PER_MICRO: i128 = 1_000;
        const NANOS_PER_DAY: i128 = 86_400_000_000_000;
        match self.row.value(key.0 as usize) {
            Err(damage) => {
                self.damage.set(Some(damage));
                None
            }
            Ok(value) => Some(match value {
                ValueRef::Null => return None,
                ValueRef::U64(v) => expr::Value::Int(i128::from(v)),
                ValueRef::I64(v) => expr::Value::Int(i128::from(v)),
                ValueRef::F64(v) => expr::Value::Float(v),
                ValueRef::Bool(v) => expr::Value::Bool(v),
                ValueRef::Decimal(v) => expr::Value::Decimal(v),
                ValueRef::String(v) | ValueRef::Json(v) => expr::Value::Text(v),
                ValueRef::Bytes(v) => expr::Value::Bytes(v),
                ValueRef::Timestamp(v) | ValueRef::Datetime(v) => expr::Value::Time(i128::from(v) * NANOS_PER_MICRO),
                ValueRef::Date(v) => expr::Value::Time(i128::from(v) * NANOS_PER_DAY),
            }),
        }
    }
}
