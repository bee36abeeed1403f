//! Bodies of queries and rows, read into what the router takes.

use std::sync::Arc;
use std::time::Duration;

use metaroute_cluster::query::QueryRequest;
use metaroute_registry::document::suggest;
use metaroute_store::{ColumnType, Schema, Value};
use serde_json::value::RawValue;

use super::json::{self, Object};
use super::problem::Problem;
use super::value::{self, Ints};

/// Longest time a request may ask for.
const TIMEOUT_MAX: Duration = Duration::from_secs(600);

/// A query, count, export or explain request as read.
#[derive(Clone, Debug, Default)]
pub(super) struct QueryBody {
    pub(super) query: QueryRequest,
    pub(super) ints: Ints,
    pub(super) timeout: Option<Duration>,
    /// `sum` of count.
    pub(super) sum: Option<String>,
    pub(super) min_gtid: Option<String>,
    pub(super) max_lag_ms: Option<u64>,
}

/// Which of the requests a body is for; they share most keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Query,
    Count,
    Export,
    /// Explain takes the keys of all of them.
    Explain,
}

impl Kind {
    fn keys(self) -> &'static [&'static str] {
        match self {
            Kind::Query => &["order", "limit", "cursor", "fields", "ints"],
            Kind::Count => &["sum", "ints"],
            Kind::Export => &["order", "fields", "ints"],
            Kind::Explain => &["order", "limit", "cursor", "fields", "ints", "sum"],
        }
    }
}

const COMMON: [&str; 11] =
    ["tenant", "id", "ids", "where", "from", "to", "allow", "partial", "min_gtid", "max_lag_ms", "timeout_ms"];

impl QueryBody {
    /// Reads a body; an empty one is `{}`.
    pub(super) fn parse(body: &[u8], store: &Schema, kind: Kind) -> Result<QueryBody, Problem> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(QueryBody::default());
        }
        let object = json::object(body)?;
        let names = Names::of(store);
        let mut out = QueryBody::default();
        let mut tenant = Once::default();
        let mut ids: Once<'_, Vec<u64>> = Once::default();
        for (key, raw) in &object.0 {
            let raw: &RawValue = raw;
            if key == "offset" {
                return Err(offset_not_supported());
            }
            if !names.knows(key) && !COMMON.contains(&key.as_ref()) && !kind.keys().contains(&key.as_ref()) {
                return Err(unknown_key(key, &names, kind));
            }
            if json::is_null(raw) {
                continue;
            }
            let key = key.as_ref();
            if key == names.tenant || key == "tenant" {
                tenant.set(key, unsigned(key, raw)?)?;
            } else if key == names.id || key == "id" {
                ids.set(key, vec![unsigned(key, raw)?])?;
            } else if names.is_ids(key) || key == "ids" {
                let list = json::array(raw).ok_or_else(|| wrong(key, "a list of ids", raw))?;
                let mut list = list.into_iter().map(|id| unsigned(key, id)).collect::<Result<Vec<_>, _>>()?;
                list.sort_unstable();
                list.dedup();
                ids.set(key, list)?;
            } else {
                out.set(key, raw, store)?;
            }
        }
        out.query.tenant = tenant.value.map(|(_, tenant)| tenant);
        out.query.ids = ids.value.map(|(_, ids)| ids);
        Ok(out)
    }

    fn set(&mut self, key: &str, raw: &RawValue, store: &Schema) -> Result<(), Problem> {
        let query = &mut self.query;
        match key {
            "where" => query.filter = Some(text(key, raw)?),
            "from" => query.from = Some(bound(key, raw, store)?),
            "to" => query.to = Some(bound(key, raw, store)?),
            "order" => query.order = Some(text(key, raw)?),
            "cursor" => query.cursor = Some(text(key, raw)?),
            "limit" => query.limit = Some(unsigned(key, raw)?),
            "fields" => {
                let list = json::array(raw).ok_or_else(|| wrong(key, "a list of column names", raw))?;
                query.fields = Some(list.into_iter().map(|name| text(key, name)).collect::<Result<_, _>>()?);
            }
            "allow" => match text(key, raw)?.as_str() {
                "global" => query.allow_global = true,
                _ => return Err(wrong(key, "\"global\"", raw)),
            },
            "partial" => match text(key, raw)?.as_str() {
                "allow" => query.partial = true,
                "deny" => query.partial = false,
                _ => return Err(wrong(key, "\"allow\" or \"deny\"", raw)),
            },
            "ints" => {
                self.ints = match text(key, raw)?.as_str() {
                    "number" => Ints::Numbers,
                    "string" => Ints::Strings,
                    _ => return Err(wrong(key, "\"string\" or \"number\"", raw)),
                }
            }
            "sum" => self.sum = Some(text(key, raw)?),
            "min_gtid" => self.min_gtid = Some(text(key, raw)?),
            "max_lag_ms" => self.max_lag_ms = Some(unsigned(key, raw)?),
            "timeout_ms" => {
                let timeout = Duration::from_millis(unsigned(key, raw)?);
                if timeout.is_zero() || timeout > TIMEOUT_MAX {
                    return Err(wrong(key, "1 to 600000", raw));
                }
                self.timeout = Some(timeout);
            }
            _ => return Err(Problem::bad_request(format!("`{key}` has no meaning here"))),
        }
        Ok(())
    }
}

/// Takes the same thing under several names, once or with one value.
struct Once<'a, T> {
    value: Option<(&'a str, T)>,
}

impl<T> Default for Once<'_, T> {
    fn default() -> Self {
        Once { value: None }
    }
}

impl<'a, T: PartialEq> Once<'a, T> {
    fn set(&mut self, key: &'a str, value: T) -> Result<(), Problem> {
        match &self.value {
            Some((other, known)) if *known != value => {
                Err(Problem::bad_request(format!("`{other}` and `{key}` say different things")))
            }
            Some(_) => Ok(()),
            None => {
                self.value = Some((key, value));
                Ok(())
            }
        }
    }
}

/// The store's own names for tenant and id.
pub(super) struct Names<'a> {
    tenant: &'a str,
    id: &'a str,
}

impl<'a> Names<'a> {
    pub(super) fn of(store: &'a Schema) -> Names<'a> {
        Names { tenant: &store.columns()[store.tenant()].name, id: &store.columns()[store.id()].name }
    }

    /// Whether a key is the plural of the id.
    fn is_ids(&self, key: &str) -> bool {
        key.strip_suffix('s') == Some(self.id)
    }

    fn knows(&self, key: &str) -> bool {
        key == self.tenant || key == self.id || self.is_ids(key)
    }
}

fn unknown_key(key: &str, names: &Names<'_>, kind: Kind) -> Problem {
    let ids = format!("{}s", names.id);
    let known = [names.tenant, names.id, &ids];
    let known: Vec<&str> = known.into_iter().chain(COMMON).chain(kind.keys().iter().copied()).collect();
    let problem = Problem::bad_request(format!("unknown field `{key}`")).code("unknown_field");
    match suggest(key, known.iter().copied()) {
        Some(word) => problem.hint(format!("did you mean `{word}`?")),
        None => problem.expected(known),
    }
}

pub(super) fn offset_not_supported() -> Problem {
    let problem = Problem::bad_request("`offset` is not supported: every page before it would be read and thrown away");
    problem
        .code("offset_not_supported")
        .hint("send the `next` of the page before as `cursor`; each page then costs the same")
}

fn wrong(key: &str, expected: &str, raw: &RawValue) -> Problem {
    Problem::bad_request(format!("`{key}` must be {expected}, not {}", json::shown(raw)))
}

fn text(key: &str, raw: &RawValue) -> Result<String, Problem> {
    json::string(raw).map(std::borrow::Cow::into_owned).ok_or_else(|| wrong(key, "a string", raw))
}

/// An unsigned number, as a number or a string of digits.
pub(super) fn unsigned(key: &str, raw: &RawValue) -> Result<u64, Problem> {
    // What nearly every client sends.
    if raw.get().bytes().all(|b| b.is_ascii_digit())
        && let Ok(number) = raw.get().parse()
    {
        return Ok(number);
    }
    match value::read(raw, ColumnType::U64) {
        Ok(Value::U64(number)) => Ok(number),
        _ => Err(wrong(key, "an unsigned 64-bit number", raw)),
    }
}

fn bound(key: &str, raw: &RawValue, store: &Schema) -> Result<Value, Problem> {
    let Some(at) = store.time() else {
        let name = store.name();
        return Err(Problem::bad_request(format!("store `{name}` has no time column, so `{key}` bounds nothing")));
    };
    let ty = store.columns()[at].ty;
    let finer = match ty {
        // A bound may lie between two values of the column.
        ColumnType::Timestamp { .. } => ColumnType::Timestamp { digits: 6 },
        ColumnType::Datetime { .. } => ColumnType::Datetime { digits: 6 },
        other => other,
    };
    let value = value::read(raw, finer).map_err(|error| Problem::bad_request(format!("`{key}`: {error}")))?;
    Ok(round_up(value, ty))
}

/// Bounds are half open on both sides of the same point, so the first value of the column at or above the point says
/// the same as the point itself.
fn round_up(value: Value, ty: ColumnType) -> Value {
    let up = |micros: i64, digits: u8| {
        let unit = 10_i64.pow(6 - u32::from(digits.min(6)));
        let down = micros.div_euclid(unit) * unit;
        if down == micros { micros } else { down.saturating_add(unit) }
    };
    match (value, ty) {
        (Value::Timestamp(micros), ColumnType::Timestamp { digits }) => Value::Timestamp(up(micros, digits)),
        (Value::Datetime(micros), ColumnType::Datetime { digits }) => Value::Datetime(up(micros, digits)),
        (value, _) => value,
    }
}

/// Rows of a write: one value per column of the store, in ordinal order. An id that occurs twice counts once, the last.
#[derive(Debug, Default)]
pub(super) struct RowsBody {
    pub(super) rows: Vec<Vec<Value>>,
}

impl RowsBody {
    /// Reads `{"rows": [{…}, …]}`.
    pub(super) fn parse(body: &[u8], store: &Schema) -> Result<RowsBody, Problem> {
        let object = json::object(body)?;
        let mut rows = None;
        for (key, raw) in &object.0 {
            match key.as_ref() {
                "rows" => rows = Some(json::array(raw).ok_or_else(|| wrong("rows", "a list of rows", raw))?),
                other => {
                    let problem = Problem::bad_request(format!("unknown field `{other}`")).expected(["rows"]);
                    return Err(problem.code("unknown_field"));
                }
            }
        }
        let rows = rows.ok_or_else(|| Problem::bad_request("the body has no `rows`"))?;
        let mut read = Vec::with_capacity(rows.len());
        for (at, raw) in rows.iter().enumerate() {
            let object: Object<'_> =
                serde_json::from_str(raw.get()).map_err(|error| row_problem(at, None, &error.to_string()))?;
            read.push(row(&object, store, at, None)?);
        }
        Ok(RowsBody::of(read, store))
    }

    /// Whether a body of no declared kind is rows, one a line, and not `{"rows": …}`: its first line is an object of its
    /// own without that key.
    pub(super) fn looks_like_lines(body: &[u8]) -> bool {
        let first = body.split(|&byte| byte == b'\n').find(|line| !line.trim_ascii().is_empty());
        let object = first.and_then(|line| json::object(line).ok());
        object.is_some_and(|object| object.0.iter().all(|(key, _)| key != "rows"))
    }

    /// Reads one object a line; blank lines count for nothing.
    pub(super) fn parse_lines(body: &[u8], store: &Schema) -> Result<RowsBody, Problem> {
        let mut read = Vec::new();
        for (line, text) in json::text(body)?.split('\n').enumerate() {
            if text.trim().is_empty() {
                continue;
            }
            let line = line as u32 + 1;
            let at = read.len();
            let object: Object<'_> = serde_json::from_str(text).map_err(|error| {
                row_problem(at, Some(line), &error.to_string()).at(line, error.column().max(1) as u32)
            })?;
            read.push(row(&object, store, at, Some(line))?);
        }
        Ok(RowsBody::of(read, store))
    }

    fn of(read: Vec<Vec<Value>>, store: &Schema) -> RowsBody {
        let id = |row: &Vec<Value>| match row.get(store.id()) {
            Some(Value::U64(id)) => *id,
            _ => 0,
        };
        let last: std::collections::HashMap<u64, usize> =
            read.iter().enumerate().map(|(at, row)| (id(row), at)).collect();
        let rows = read.into_iter().enumerate().filter(|(at, row)| last.get(&id(row)) == Some(at));
        RowsBody { rows: rows.map(|(_, row)| row).collect() }
    }
}

fn row_problem(at: usize, line: Option<u32>, what: &str) -> Problem {
    match line {
        Some(line) => Problem::bad_request(format!("row {} (line {line}): {what}", at + 1)).at(line, 1),
        None => Problem::bad_request(format!("row {}: {what}", at + 1)),
    }
}

fn row(object: &Object<'_>, store: &Schema, at: usize, line: Option<u32>) -> Result<Vec<Value>, Problem> {
    let mut row = vec![Value::Null; store.columns().len()];
    let mut by: Vec<Option<&str>> = vec![None; row.len()];
    for (key, raw) in &object.0 {
        let ordinal = store.ordinal(key).or(match key.as_ref() {
            "tenant" => Some(store.tenant()),
            "id" => Some(store.id()),
            _ => None,
        });
        let Some(ordinal) = ordinal else {
            let message = format!("store `{}` has no column `{key}`", store.name());
            let problem = row_problem(at, line, &message).code("unknown_field");
            let known = store.columns().iter().map(|column| column.name.as_str());
            return Err(match suggest(key, known) {
                Some(word) => problem.hint(format!("did you mean `{word}`?")),
                None => problem,
            });
        };
        let column = &store.columns()[ordinal];
        let value = value::read(raw, column.ty)
            .and_then(|value| value.for_column(column.ty, column.nullable))
            .map_err(|error| row_problem(at, line, &format!("column `{}`: {error}", column.name)))?;
        if let Some(other) = by[ordinal]
            && row[ordinal] != value
        {
            return Err(row_problem(at, line, &format!("`{other}` and `{key}` say different things")));
        }
        by[ordinal] = Some(key);
        row[ordinal] = value;
    }
    for (column, value) in store.columns().iter().zip(&row) {
        if value.is_null() && !column.nullable {
            return Err(row_problem(at, line, &format!("column `{}` must have a value", column.name)));
        }
    }
    Ok(row)
}

/// The query string of `rows/{id}`.
#[derive(Clone, Debug, Default)]
pub(super) struct RowParams {
    pub(super) tenant: Option<u64>,
    pub(super) fields: Option<Vec<String>>,
    pub(super) allow_global: bool,
    pub(super) ints: Ints,
    pub(super) timeout: Option<Duration>,
}

impl RowParams {
    /// Reads decoded pairs.
    pub(super) fn parse(pairs: &[(String, String)], store: &Schema, get: bool) -> Result<RowParams, Problem> {
        let names = Names::of(store);
        let mut out = RowParams::default();
        let mut tenant = Once::default();
        let bad = |key: &str, expected: &str, text: &str| {
            Problem::bad_request(format!("`{key}` must be {expected}, not `{text}`"))
        };
        for (key, text) in pairs {
            match key.as_str() {
                key if key == names.tenant || key == "tenant" => {
                    let number = Value::from_text(ColumnType::U64, text);
                    let Ok(Value::U64(number)) = number else {
                        return Err(bad(key, "an unsigned 64-bit number", text));
                    };
                    tenant.set(key, number)?;
                }
                "allow" if text == "global" => out.allow_global = true,
                "allow" => return Err(bad(key, "global", text)),
                "timeout_ms" => {
                    let parsed = text.parse().ok().map(Duration::from_millis);
                    let legal = parsed.filter(|timeout| !timeout.is_zero() && *timeout <= TIMEOUT_MAX);
                    out.timeout = Some(legal.ok_or_else(|| bad(key, "1 to 600000", text))?);
                }
                "fields" if get => out.fields = Some(text.split(',').map(str::to_owned).collect()),
                "ints" if get => {
                    out.ints = match text.as_str() {
                        "number" => Ints::Numbers,
                        "string" => Ints::Strings,
                        _ => return Err(bad(key, "string or number", text)),
                    }
                }
                "offset" => return Err(offset_not_supported()),
                other => {
                    let mut known = vec![names.tenant, "tenant", "allow", "timeout_ms"];
                    if get {
                        known.extend(["fields", "ints"]);
                    }
                    let problem = Problem::bad_request(format!("unknown parameter `{other}`")).expected(known);
                    return Err(problem.code("unknown_field"));
                }
            }
        }
        out.tenant = tenant.value.map(|(_, tenant)| tenant);
        Ok(out)
    }
}

/// Reads any bytes as any of the bodies, for the fuzzer: nothing may panic and what is accepted must be whole.
#[doc(hidden)]
pub fn fuzz_query_body(body: &[u8], store: &Arc<Schema>) {
    for kind in [Kind::Query, Kind::Count, Kind::Export, Kind::Explain] {
        if let Ok(body) = QueryBody::parse(body, store, kind) {
            let _ = metaroute_cluster::Query::new(store, body.query);
        }
    }
    for rows in [RowsBody::parse(body, store), RowsBody::parse_lines(body, store)].into_iter().flatten() {
        for row in rows.rows {
            assert!(store.check_row(row).is_ok(), "an accepted row fits the store");
        }
    }
}

#[cfg(test)]
mod tests;
