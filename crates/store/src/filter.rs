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
use crate::record::{Cells, Origin, RecordError};
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
        let program = Self::bind(expression, schema)?;
        let mut columns: Vec<usize> = expression.keys().filter_map(|name| schema.named(name)).collect();
        columns.sort_unstable();
        columns.dedup();
        Ok(Filter(Arc::new(Inner { program, columns })))
    }

    /// Binds an expression against the columns of a schema, for whoever has no table. Key ids are column ordinals.
    ///
    /// # Errors
    /// As [`Filter::new`].
    pub fn bind(expression: &expr::Expr, schema: &Schema) -> Result<expr::Program, expr::BindError> {
        expression.bind(&mut Names { schema })
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
        let at = self.schema.named(name).ok_or_else(unknown)?;
        Ok(expr::KeyId(at as u32))
    }

    fn attribute(&mut self, attribute: expr::Attribute) -> Result<expr::KeyId, expr::Unsupported> {
        Err(expr::Unsupported::new(format!("rows have no `$self.{attribute}`")))
    }

    fn slot(&mut self, scope: expr::SlotScope, name: &str) -> Result<expr::SlotId, expr::Unsupported> {
        Err(expr::Unsupported::new(format!("`{scope}.{name}` cannot be used to filter rows")))
    }

    fn declared(&self, name: &str) -> Option<expr::Type> {
        let at = self.schema.named(name)?;
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
    /// Types of the cells in order.
    types: Vec<ColumnType>,
    /// The cell the other times count from, where the row's time is a cell.
    time_cell: Option<usize>,
}

impl Layout {
    pub(crate) fn of_row(schema: &Schema) -> Layout {
        let ordinals = schema.row_cells();
        let mut places = vec![Place::Elsewhere; schema.columns().len()];
        for (n, &at) in ordinals.iter().enumerate() {
            places[at] = Place::Cell(n);
        }
        places[schema.id()] = Place::Id;
        let time_cell = ordinals.iter().position(|&at| schema.time() == Some(at));
        Layout { places, types: types(schema, ordinals), time_cell }
    }

    pub(crate) fn of_entry(schema: &Schema) -> Layout {
        let ordinals = schema.listing();
        let mut places = vec![Place::Elsewhere; schema.columns().len()];
        for (n, &at) in ordinals.iter().enumerate() {
            places[at] = Place::Cell(n);
        }
        places[schema.id()] = Place::Id;
        places[schema.tenant()] = Place::Tenant;
        if let Some(at) = schema.time() {
            places[at] = Place::Time;
        }
        Layout { places, types: types(schema, ordinals), time_cell: None }
    }

    /// True when the pair has all these columns.
    pub(crate) fn has_all(&self, ordinals: &[usize]) -> bool {
        ordinals.iter().all(|&at| !matches!(self.places.get(at), None | Some(Place::Elsewhere)))
    }

    /// How many leading cells must be located to read these columns.
    pub(crate) fn reach(&self, schema: &Schema, ordinals: &[usize]) -> usize {
        let cell = |&at: &usize| match self.places.get(at) {
            Some(Place::Cell(n)) => {
                let is_time = schema.columns().get(at).is_some_and(|column| column.ty.counts_from_row_time());
                let origin = self.time_cell.filter(|_| is_time).map_or(0, |time| time + 1);
                (n + 1).max(origin)
            }
            _ => 0,
        };
        ordinals.iter().map(cell).max().unwrap_or(0)
    }

    /// Types of the first `reach` cells, or of all when there are fewer.
    pub(crate) fn types(&self, reach: usize) -> &[ColumnType] {
        &self.types[..reach.min(self.types.len())]
    }
}

fn types(schema: &Schema, ordinals: &[usize]) -> Vec<ColumnType> {
    ordinals.iter().map(|&at| schema.columns()[at].ty).collect()
}

/// A stored pair whose cells have been located.
pub(crate) struct StoredRow<'a> {
    pub(crate) schema: &'a Schema,
    pub(crate) layout: &'a Layout,
    pub(crate) id: u64,
    /// Tenant and time of an index entry, which are in its key.
    pub(crate) listed: Option<(u64, Option<TimeKey>)>,
    pub(crate) cells: Cells<'a>,
    pub(crate) offsets: &'a [u32],
}

impl<'a> StoredRow<'a> {
    pub(crate) fn value(&self, ordinal: usize) -> Result<ValueRef<'a>, RecordError> {
        let place = self.layout.places.get(ordinal).copied().unwrap_or(Place::Elsewhere);
        Ok(match (place, self.listed) {
            (Place::Id, _) => ValueRef::U64(self.id),
            (Place::Tenant, Some((tenant, _))) => ValueRef::U64(tenant),
            (Place::Time, Some((_, time))) => time_of(self.schema, time),
            (Place::Cell(n), _) => {
                let ty = self.schema.columns()[ordinal].ty;
                let origin = match ty.counts_from_row_time() && self.schema.time() != Some(ordinal) {
                    true => self.origin()?,
                    false => Origin::Epoch,
                };
                self.cell(n, ty, origin)?
            }
            _ => return Err(RecordError::Bad("cell")),
        })
    }

    fn cell(&self, n: usize, ty: ColumnType, origin: Origin) -> Result<ValueRef<'a>, RecordError> {
        let offset = *self.offsets.get(n).ok_or(RecordError::Bad("cell"))?;
        self.cells.cell_at(offset, ty, origin)
    }

    /// What the times other than the row's own count from.
    fn origin(&self) -> Result<Origin, RecordError> {
        let time = match (self.schema.time(), self.layout.time_cell, self.listed) {
            (Some(at), Some(n), _) => self.cell(n, self.schema.columns()[at].ty, Origin::Epoch)?,
            (Some(_), None, Some((_, time))) => time_of(self.schema, time),
            _ => ValueRef::Null,
        };
        Ok(self.cells.origin(time))
    }

    /// The row's tenant.
    pub(crate) fn tenant(&self) -> Result<u64, RecordError> {
        match self.value(self.schema.tenant())? {
            ValueRef::U64(tenant) => Ok(tenant),
            _ => Ok(0),
        }
    }

    /// The row's time.
    pub(crate) fn time(&self) -> Result<Option<TimeKey>, RecordError> {
        match (self.schema.time(), self.listed) {
            (_, Some((_, time))) => Ok(time),
            (Some(at), None) => Ok(TimeKey::of(self.value(at)?)),
            (None, None) => Ok(None),
        }
    }
}

/// The value of a table's time column that a key stands for.
pub(crate) fn time_of(schema: &Schema, time: Option<TimeKey>) -> ValueRef<'static> {
    let (Some(at), Some(time)) = (schema.time(), time) else { return ValueRef::Null };
    match time.to_value(schema.columns()[at].ty) {
        // Time values own nothing, so the borrow can be rebuilt from the copy.
        crate::Value::Timestamp(v) => ValueRef::Timestamp(v),
        crate::Value::Datetime(v) => ValueRef::Datetime(v),
        crate::Value::Date(v) => ValueRef::Date(v),
        crate::Value::I64(v) => ValueRef::I64(v),
        crate::Value::U64(v) => ValueRef::U64(v),
        _ => ValueRef::Null,
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
