//! A client's question after parsing: checked, with its defaults filled in, and with the path it will take.
//!
//! What a query costs is decided by what it names. With tenant and id it is one shard; with a tenant alone the shards of
//! one group; with an id alone one shard per group; with neither everything. That ladder is the [`Path`]; it stands in
//! every answer, and the two rungs that touch all groups need permission.

mod bounds;
mod columns;

use std::fmt;
use std::sync::Arc;

use metaroute_expr::Expr;
use metaroute_store::{Schema, TimeKey, Value};
use serde::Serialize;

use crate::failure::{Code, Failure, Place};
use crate::placement::SlotFunction;
use crate::protocol::{Direction, Position};

pub use bounds::FoundBounds;

/// Rows on a page when the request does not say.
pub const LIMIT_DEFAULT: u32 = 100;
/// Most rows on a page.
pub const LIMIT_MAX: u32 = 1_000;
/// Most ids in one request.
pub const IDS_MAX: usize = 1_000;
/// Longest `where` expression in bytes.
pub const WHERE_BYTES_MAX: usize = 8 * 1024;

/// Which way a query takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Path {
    /// Tenant and one id: one shard.
    A,
    /// Tenant and several ids: the shards of one group that own them.
    AB,
    /// A tenant: the shards of its group.
    B,
    /// A tenant spread over a part of its group's shards: those shards.
    BP,
    /// Ids without a tenant: in every group the shards that own them.
    CI,
    /// Neither: every shard of every group.
    C,
}

impl Path {
    /// All of them, each at the place of its number.
    pub const ALL: [Path; 6] = [Path::A, Path::AB, Path::B, Path::BP, Path::CI, Path::C];

    /// The stable name.
    pub fn name(self) -> &'static str {
        match self {
            Path::A => "A",
            Path::AB => "AB",
            Path::B => "B",
            Path::BP => "BP",
            Path::CI => "CI",
            Path::C => "C",
        }
    }

    /// Whether it touches all groups and therefore needs `allow=global`.
    pub fn is_global(self) -> bool {
        matches!(self, Path::CI | Path::C)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a walk is ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrderBy {
    /// The time column, ties by id in the same direction.
    Time,
    /// The id.
    Id,
}

/// Order of a query's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    /// By what.
    pub by: OrderBy,
    /// Which way.
    pub direction: Direction,
}

impl Order {
    /// A row's place in this order. Two places compare by [`Order::compare`].
    pub fn position(self, time: Option<TimeKey>, id: u64) -> Position {
        match self.by {
            OrderBy::Time => Position { time, id },
            OrderBy::Id => Position::of_id(id),
        }
    }

    /// Which of two places comes first.
    pub fn compare(self, a: &Position, b: &Position) -> std::cmp::Ordering {
        match self.direction {
            Direction::Ascending => a.cmp(b),
            Direction::Descending => b.cmp(a),
        }
    }
}

/// A store as routers know it: its schema and how its ids become slots.
#[derive(Clone, Debug)]
pub struct StoreInfo {
    /// The columns.
    pub schema: Arc<Schema>,
    /// How its ids become slots; the topology's word for this store wins over it.
    pub slot_function: SlotFunction,
}

/// What a client asked for, as read from its request. Everything is optional; [`Query::new`] checks it.
#[derive(Clone, Debug, Default)]
pub struct QueryRequest {
    /// Whose rows.
    pub tenant: Option<u64>,
    /// Which ids; `None` is not the same as an empty list, which asks for nothing.
    pub ids: Option<Vec<u64>>,
    /// The `where` expression.
    pub filter: Option<String>,
    /// Earliest time, inclusive; a value of the time column's type.
    pub from: Option<Value>,
    /// Latest time, exclusive.
    pub to: Option<Value>,
    /// `FIELD` or `FIELD:asc`, which are the same, or `FIELD:desc`.
    pub order: Option<String>,
    /// Rows on a page.
    pub limit: Option<u64>,
    /// The `next` of the page before.
    pub cursor: Option<String>,
    /// Columns to return.
    pub fields: Option<Vec<String>>,
    /// Whether a partial answer is better than none.
    pub partial: bool,
    /// Whether touching all groups is meant.
    pub allow_global: bool,
}

/// A checked query.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Query {
    /// The store.
    pub store: Arc<Schema>,
    /// Whose rows.
    pub tenant: Option<u64>,
    /// Which ids, ascending and unique.
    pub ids: Option<Arc<[u64]>>,
    /// The row filter.
    pub filter: Option<Arc<Expr>>,
    /// Earliest time, inclusive: the tighter one of the request's and of what `where` says.
    pub from: Option<TimeKey>,
    /// Latest time, exclusive: the tighter one.
    pub to: Option<TimeKey>,
    /// Bounds on the time column found inside `where`.
    pub found: FoundBounds,
    /// Order.
    pub order: Order,
    /// Rows on a page.
    pub limit: u32,
    /// Where the page before ended, still sealed.
    pub cursor: Option<String>,
    /// Ordinals of the columns to return.
    pub fields: Arc<[usize]>,
    /// Whether a partial answer is better than none.
    pub partial: bool,
    /// Whether touching all groups is meant.
    pub allow_global: bool,
}

impl Query {
    /// Checks a request against a store.
    ///
    /// # Errors
    /// `bad_request`, `bad_expression`, `unknown_field` or `order_not_supported`, naming the offending value.
    pub fn new(store: &Arc<Schema>, request: QueryRequest) -> Result<Query, Failure> {
        let limit = match request.limit {
            None => LIMIT_DEFAULT,
            Some(limit) => {
                u32::try_from(limit).ok().filter(|limit| (1..=LIMIT_MAX).contains(limit)).ok_or_else(|| {
                    Failure::new(Code::BadRequest, format!("limit must be 1 to {LIMIT_MAX}, not {limit}"))
                })?
            }
        };
        let ids = match request.ids {
            None => None,
            Some(ids) if ids.len() > IDS_MAX => {
                let message = format!("{} ids in one request; at most {IDS_MAX}", ids.len());
                return Err(Failure::new(Code::BadRequest, message));
            }
            Some(mut ids) => {
                ids.sort_unstable();
                ids.dedup();
                Some(Arc::from(ids))
            }
        };
        let filter = request.filter.filter(|text| !text.trim().is_empty());
        let (filter, found) = match filter {
            None => (None, FoundBounds::default()),
            Some(text) => {
                let (filter, program) = parse_filter(store, &text)?;
                let found = bounds::find(store, &program);
                (Some(Arc::new(filter)), found)
            }
        };
        let from = time_bound(store, "from", request.from)?;
        let to = time_bound(store, "to", request.to)?;
        let order = parse_order(store, request.tenant, ids.as_deref(), request.order.as_deref())?;
        let fields = match &request.fields {
            None => store.default_columns(),
            Some(names) => columns::ordinals(store, names)?,
        };
        Ok(Query {
            store: Arc::clone(store),
            tenant: request.tenant,
            ids,
            filter,
            from: from.max(found.from),
            to: match (to, found.to) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
            found,
            order,
            limit,
            cursor: request.cursor,
            fields: fields.into(),
            partial: request.partial,
            allow_global: request.allow_global,
        })
    }

    /// The path, without knowing spans: `B` also where the topology makes it `BP`.
    pub fn path(&self) -> Path {
        match (self.tenant, self.ids.as_deref()) {
            (Some(_), Some([_])) => Path::A,
            (Some(_), Some(_)) => Path::AB,
            (Some(_), None) => Path::B,
            (None, Some(_)) => Path::CI,
            (None, None) => Path::C,
        }
    }

    /// The names of the columns to return.
    pub fn field_names(&self) -> Vec<String> {
        self.fields.iter().map(|&at| self.store.columns()[at].name.clone()).collect()
    }

    /// Columns beyond what a listing knows without reading the row.
    pub fn unlisted_fields(&self) -> Vec<String> {
        let unlisted = self.fields.iter().filter(|&&at| !self.store.is_listed(at));
        unlisted.map(|&at| self.store.columns()[at].name.clone()).collect()
    }

    /// The text of the order: `created_at:desc`.
    pub fn order_text(&self) -> String {
        let schema = &self.store;
        let at = match self.order.by {
            OrderBy::Id => schema.id(),
            OrderBy::Time => schema.time().unwrap_or_else(|| schema.id()),
        };
        let direction = match self.order.direction {
            Direction::Ascending => "asc",
            Direction::Descending => "desc",
        };
        format!("{}:{direction}", schema.columns()[at].name)
    }

    /// What a cursor is bound to besides the tenant: everything that decides which rows the walk has and in which order.
    /// The limit, the columns and the partial flag may change from page to page.
    pub(crate) fn fingerprint(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |bytes: &[u8]| {
            out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
            out.extend_from_slice(bytes);
        };
        put(self.store.name().as_bytes());
        match &self.ids {
            None => put(b"all"),
            Some(ids) => {
                let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_be_bytes()).collect();
                put(b"ids");
                put(&bytes);
            }
        }
        put(self.filter.as_ref().map(|filter| filter.to_string()).unwrap_or_default().as_bytes());
        for bound in [self.from, self.to] {
            match bound {
                None => put(b""),
                Some(time) => put(&time.0.to_be_bytes()),
            }
        }
        put(self.order_text().as_bytes());
        out
    }
}

fn parse_filter(store: &Schema, text: &str) -> Result<(Expr, metaroute_expr::Program), Failure> {
    if text.len() > WHERE_BYTES_MAX {
        let message = format!("where is {} bytes long; at most {WHERE_BYTES_MAX}", text.len());
        return Err(Failure::new(Code::BadExpression, message));
    }
    let filter = Expr::parse(text).map_err(|error| {
        let mut failure = Failure::new(Code::BadExpression, error.message.to_string());
        failure.at = Some(Place { line: error.line, column: error.column });
        failure.expected = error.expected.iter().map(ToString::to_string).collect();
        failure.hint = error.hint.clone();
        failure
    })?;
    let program = columns::bind(store, &filter)?;
    Ok((filter, program))
}

fn time_bound(store: &Schema, name: &str, value: Option<Value>) -> Result<Option<TimeKey>, Failure> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    let Some(at) = store.time() else {
        let message = format!("store `{}` has no time column, so `{name}` bounds nothing", store.name());
        return Err(Failure::new(Code::BadRequest, message));
    };
    let column = &store.columns()[at];
    let bad = |error: &dyn fmt::Display| Failure::new(Code::BadRequest, format!("`{name}`: {error}"));
    let value = match value {
        Value::String(text) => Value::from_text(column.ty, &text).map_err(|error| bad(&error))?,
        other => other.for_column(column.ty, false).map_err(|error| bad(&error))?,
    };
    Ok(TimeKey::of(value.as_ref()))
}

fn parse_order(store: &Schema, tenant: Option<u64>, ids: Option<&[u64]>, text: Option<&str>) -> Result<Order, Failure> {
    let listing = tenant.is_some() && ids.is_none();
    let natural = match (listing, store.time()) {
        (true, Some(at)) => (OrderBy::Time, at, Direction::Descending),
        (true, None) => (OrderBy::Id, store.id(), Direction::Descending),
        (false, _) => (OrderBy::Id, store.id(), Direction::Ascending),
    };
    let (by, column, direction) = natural;
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else { return Ok(Order { by, direction }) };
    let (field, direction) = match text.trim().rsplit_once(':') {
        // As everywhere else a field alone is ascending; newest first is what a listing does by itself.
        None => (text.trim(), Direction::Ascending),
        Some((field, "asc")) => (field, Direction::Ascending),
        Some((field, "desc")) => (field, Direction::Descending),
        Some((_, other)) => {
            let message = format!("order direction must be asc or desc, not `{other}`");
            return Err(Failure::new(Code::OrderNotSupported, message));
        }
    };
    let name = &store.columns()[column].name;
    let alias = match by {
        OrderBy::Id => "id",
        OrderBy::Time => "time",
    };
    if field == name || (field == alias && store.ordinal(alias).is_none()) {
        return Ok(Order { by, direction });
    }
    let what = if listing { "a tenant's rows are" } else { "these rows are" };
    Err(Failure::new(
        Code::OrderNotSupported,
        format!("order by `{field}` is not supported; {what} ordered by `{name}`"),
    )
    .hint(format!("use `{name}` or `{name}:desc`, or leave `order` out")))
}

#[cfg(test)]
mod tests;
