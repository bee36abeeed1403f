//! Reading: one published state of the store, and walks over it.
//!
//! A view is what the writer published after its last commit. Everything read through one view
//! belongs together, rows, index, counters and positions alike, however long it is used, and no
//! write waits for it. It keeps what it sees on disk, though, so a long walk takes a fresh view per
//! page.
//!
//! All calls block on disk and belong on [`crate::Store`]'s reader threads, never on an async one.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use crate::engine::{Entry, Scan, Snapshot};
use crate::error::{Error, Result};
use crate::filter::{Layout, StoredRow};
use crate::key::{self, Lane, Parsed, TableId, TimeKey};
use crate::query::{
    Aggregate, AggregateQuery, ColumnAggregate, Direction, ListPosition, ListQuery, Lookup, Owned, Page, Row,
    ScanQuery, Stopped, Sum, Tombstone, Walk,
};
use crate::record::{Kind, Record};
use crate::schema::Schema;
use crate::state::{TableState, Totals, decode_plain};
use crate::table::Table;
use crate::value::Value;
use crate::version::Version;

/// Entries between two looks at the cancel flag and the clock.
const CHECK_EVERY: u64 = 256;

/// One published state. Cheap to clone; see the module's text for how long to keep one.
#[derive(Clone)]
pub struct View(Arc<Published>);

pub(crate) struct Published {
    pub(crate) snapshot: Snapshot,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) number: u64,
    pub(crate) taken: Instant,
}

/// Tables and what is truncated, shared by all views between two changes of either. Compaction may
/// act on a truncate once no older catalog is alive.
#[derive(Debug)]
pub(crate) struct Catalog {
    pub(crate) tables: Vec<TableView>,
}

#[derive(Clone, Debug)]
pub(crate) struct TableView {
    pub(crate) table: Table,
    pub(crate) truncated_below: Version,
    pub(crate) tombstone_floor: Version,
    pub(crate) counter_generation: u32,
}

impl TableView {
    pub(crate) fn of(table: Table, state: &TableState) -> TableView {
        TableView {
            table,
            truncated_below: state.truncated_below,
            tombstone_floor: state.tombstone_floor(),
            counter_generation: state.counter_generation,
        }
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("number", &self.0.number).finish_non_exhaustive()
    }
}

impl View {
    pub(crate) fn from_arc(published: Arc<Published>) -> View {
        View(published)
    }

    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.0.snapshot
    }

    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        &self.0.catalog
    }

    /// Counts up with every commit of this process; views of one store compare by it.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// When the state was published.
    pub fn taken(&self) -> Instant {
        self.0.taken
    }

    /// The tables, in order of creation.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.0.catalog.tables.iter().map(|t| &t.table)
    }

    /// A table by name.
    ///
    /// # Errors
    /// When there is none.
    pub fn table(&self, name: &str) -> Result<Table> {
        self.tables().find(|t| t.name() == name).cloned().ok_or_else(|| Error::UnknownTable(name.to_owned()))
    }

    pub(crate) fn table_view(&self, id: TableId) -> Result<&TableView> {
        self.0.catalog.tables.iter().find(|t| t.table.id() == id).ok_or_else(|| Error::UnknownTable(id.to_string()))
    }

    /// Where a lane is; `None` when it never was anywhere.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn position(&self, lane: &Lane) -> Result<Option<Vec<u8>>> {
        self.plain(&key::position(lane))
    }

    /// All lanes and where they are, by lane name.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn positions(&self) -> Result<Vec<(Lane, Vec<u8>)>> {
        self.plain_range(&key::position_prefix(), |parsed| match parsed {
            Parsed::Position(name) => Lane::new(name),
            _ => None,
        })
    }

    /// A named value kept with the store.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn attribute(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.plain(&key::attribute(name))
    }

    /// All named values kept with the store, by name.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn attributes(&self) -> Result<Vec<(String, Vec<u8>)>> {
        self.plain_range(&key::attribute_prefix(), |parsed| match parsed {
            Parsed::Attribute(name) => String::from_utf8(name.to_vec()).ok(),
            _ => None,
        })
    }

    fn plain(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.0.snapshot.get(key)? {
            None => Ok(None),
            Some(bytes) => match decode_plain(key, &bytes) {
                Ok(bytes) => Ok(Some(bytes.to_vec())),
                Err(e) => Err(Error::record(key, e)),
            },
        }
    }

    fn plain_range<N>(&self, prefix: &[u8], name: impl Fn(Parsed<'_>) -> Option<N>) -> Result<Vec<(N, Vec<u8>)>> {
        let mut out = Vec::new();
        for entry in self.prefix(prefix) {
            let (key, bytes) = entry?;
            if let Some(name) = name(key::parse(&key)) {
                let bytes = decode_plain(&key, &bytes).map_err(|e| Error::record(&key, e))?;
                out.push((name, bytes.to_vec()));
            }
        }
        Ok(out)
    }

    pub(crate) fn prefix(&self, prefix: &[u8]) -> Scan {
        let end = key::after_prefix(prefix);
        self.0.snapshot.scan(Bound::Included(prefix), end.as_deref().map_or(Bound::Unbounded, Bound::Excluded))
    }

    /// Rows and sums of a tenant, or of the whole table, from the maintained counters.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn totals(&self, table: &Table, tenant: Option<u64>) -> Result<Totals> {
        let generation = self.table_view(table.id())?.counter_generation;
        let key = key::counter(table.id(), generation, tenant);
        match self.0.snapshot.get(&key)? {
            None => Ok(Totals::default()),
            Some(bytes) => Totals::decode(&key, &bytes).map_err(|e| Error::record(&key, e)),
        }
    }

    /// Reads one row.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn get(&self, table: &Table, id: u64, columns: &[usize]) -> Result<Lookup> {
        let at = self.table_view(table.id())?;
        let layout = Layout::of_row(at.table.schema());
        check_columns(&at.table, columns)?;
        let mut offsets = Vec::new();
        self.lookup(at, &layout, id, columns, None, &mut offsets)
    }

    /// Reads many rows; one answer per id, in the order given.
    ///
    /// # Errors
    /// When one cannot be read, or the walk was cancelled. Of `walk`, table, filter, owned ids,
    /// columns and cancel count.
    pub fn multi_get(&self, walk: &Walk<'_>, ids: &[u64]) -> Result<Vec<Lookup>> {
        let at = self.table_view(walk.table.id())?;
        check_columns(&at.table, walk.columns)?;
        let layout = Layout::of_row(at.table.schema());
        let mut offsets = Vec::new();
        let mut out = Vec::with_capacity(ids.len());
        for &id in ids {
            if walk.cancel.is_some_and(|c| c.is_cancelled()) {
                return Err(Error::Cancelled);
            }
            out.push(self.lookup(at, &layout, id, walk.columns, Some(walk), &mut offsets)?);
        }
        Ok(out)
    }

    fn lookup(
        &self,
        at: &TableView,
        layout: &Layout,
        id: u64,
        columns: &[usize],
        walk: Option<&Walk<'_>>,
        offsets: &mut Vec<u32>,
    ) -> Result<Lookup> {
        if !is_owned(walk.and_then(|w| w.owned), id) {
            return Ok(Lookup::Absent);
        }
        let key = key::row(at.table.id(), id);
        let Some(bytes) = self.0.snapshot.get(&key)? else { return Ok(Lookup::Absent) };
        let damaged = |e| Error::record(&key, e);
        let record = Record::read(&key, &bytes).map_err(damaged)?;
        let version = record.version();
        match record.kind {
            Kind::Live if version >= at.truncated_below => {}
            Kind::Tombstone if version >= at.tombstone_floor => {
                return Ok(Lookup::Deleted(version));
            }
            _ => return Ok(Lookup::Absent),
        }
        let filter = walk.and_then(|w| w.filter);
        let row = stored_row(at, layout, id, &record, usize::MAX, offsets).map_err(damaged)?;
        if let Some(filter) = filter
            && !filter.matches(&row).map_err(damaged)?
        {
            return Ok(Lookup::Absent);
        }
        Ok(Lookup::Found(project(&row, version, columns).map_err(damaged)?))
    }

    /// A page of a tenant's rows, ordered by time and id.
    ///
    /// # Errors
    /// On a limit of 0, an unknown column, cancellation, or unreadable data.
    pub fn list(&self, query: &ListQuery<'_>) -> Result<Page<ListPosition>> {
        let walk = &query.walk;
        let at = self.table_view(walk.table.id())?;
        let (lower, upper) = list_bounds(at.table.id(), query);
        let entry = Layout::of_entry(at.table.schema());
        let fat = entry.has_all(walk.columns);
        let filter_fat = walk.filter.is_none_or(|f| entry.has_all(f.columns()));
        let row_layout = Layout::of_row(at.table.schema());
        let mut offsets = Vec::new();
        let mut row_offsets = Vec::new();
        let snapshot = &self.0.snapshot;
        let schema = at.table.schema();
        let reach = entry.reach(schema, walk.columns).max(walk.filter.map_or(0, |f| entry.reach(schema, f.columns())));
        self.walk(walk, at, lower, upper, |page, key, bytes| {
            let Parsed::Index { tenant, time, id, .. } = key::parse(key) else {
                return Err(Error::record(key, crate::RecordError::Bad("key")));
            };
            let position = ListPosition { time, id };
            let damaged = |e| Error::record(key, e);
            let record = Record::read(key, bytes).map_err(damaged)?;
            let outlawed = record.version < at.truncated_below.as_bytes();
            if record.kind != Kind::Live || outlawed || !is_owned(walk.owned, id) {
                return Ok(Seen::Passed(position));
            }
            let version = record.version();
            record.cells.locate(entry.types(reach), &mut offsets).map_err(damaged)?;
            let listed = Some((tenant, time));
            let row = StoredRow { schema, layout: &entry, id, listed, cells: record.cells, offsets: &offsets };
            if let Some(filter) = walk.filter
                && filter_fat
                && !filter.matches(&row).map_err(damaged)?
            {
                return Ok(Seen::Passed(position));
            }
            if fat && filter_fat {
                let row = project(&row, version, walk.columns).map_err(damaged)?;
                return Ok(Seen::Row(position, row));
            }
            page.row_reads += 1;
            page.examined += 1;
            let row_key = key::row(at.table.id(), id);
            let damaged = |e| Error::record(&row_key, e);
            let Some(row_bytes) = snapshot.get(&row_key)? else {
                return Err(damaged(crate::RecordError::Bad("row: the index has it, the rows do not")));
            };
            let record = Record::read(&row_key, &row_bytes).map_err(damaged)?;
            if record.kind != Kind::Live {
                return Err(damaged(crate::RecordError::Bad("row: live in the index only")));
            }
            let row = stored_row(at, &row_layout, id, &record, usize::MAX, &mut row_offsets).map_err(damaged)?;
            if let Some(filter) = walk.filter
                && !filter_fat
                && !filter.matches(&row).map_err(damaged)?
            {
                return Ok(Seen::Passed(position));
            }
            let row = project(&row, version, walk.columns).map_err(damaged)?;
            Ok(Seen::Row(position, row))
        })
    }

    /// A page of all rows, ordered by id.
    ///
    /// # Errors
    /// On a limit of 0, an unknown column, cancellation, or unreadable data.
    pub fn scan(&self, query: &ScanQuery<'_>) -> Result<Page<u64>> {
        let walk = &query.walk;
        let at = self.table_view(walk.table.id())?;
        let table = at.table.id();
        let (mut lower, mut upper) =
            (Bound::Included(key::row(table, query.from)), Bound::Included(key::row(table, query.to)));
        if let Some(after) = query.after {
            match walk.direction {
                Direction::Ascending if after >= query.from => {
                    lower = Bound::Excluded(key::row(table, after));
                }
                Direction::Descending if after <= query.to => {
                    upper = Bound::Excluded(key::row(table, after));
                }
                _ => {}
            }
        }
        let layout = Layout::of_row(at.table.schema());
        let schema = at.table.schema();
        let reach = row_reach(&layout, schema, walk.columns);
        // Most rows of a filtered scan do not match, and of these nothing but what the filter reads is looked at.
        let filter = walk.filter.map(|filter| (filter, layout.reach(schema, filter.columns())));
        let mut offsets = Vec::new();
        self.walk(walk, at, lower, upper, |_, key, bytes| {
            let Some(id) = key::row_id(key) else {
                return Err(Error::record(key, crate::RecordError::Bad("key")));
            };
            let damaged = |e| Error::record(key, e);
            if !is_owned(walk.owned, id) {
                return Ok(Seen::Passed(id));
            }
            let record = Record::read(key, bytes).map_err(damaged)?;
            match record.kind {
                Kind::Live if record.version >= at.truncated_below.as_bytes() => {}
                Kind::Tombstone if query.tombstones && record.version >= at.tombstone_floor.as_bytes() => {
                    return Ok(Seen::Tombstone(id, Tombstone { id, version: record.version() }));
                }
                _ => return Ok(Seen::Passed(id)),
            }
            if let Some((filter, reach)) = filter {
                let row = stored_row(at, &layout, id, &record, reach, &mut offsets).map_err(damaged)?;
                if !filter.matches(&row).map_err(damaged)? {
                    return Ok(Seen::Passed(id));
                }
            }
            let row = stored_row(at, &layout, id, &record, reach, &mut offsets).map_err(damaged)?;
            Ok(Seen::Row(id, project(&row, record.version(), walk.columns).map_err(damaged)?))
        })
    }

    /// The loop every walk shares: order, limit with one row of look-ahead, budget, cancellation.
    fn walk<P: Copy>(
        &self,
        walk: &Walk<'_>,
        at: &TableView,
        lower: Bound<Vec<u8>>,
        upper: Bound<Vec<u8>>,
        mut visit: impl FnMut(&mut Page<P>, &[u8], &[u8]) -> Result<Seen<P>>,
    ) -> Result<Page<P>> {
        if walk.limit == 0 {
            return Err(Error::BadRequest("limit 0".into()));
        }
        check_columns(&at.table, walk.columns)?;
        let mut page = Page {
            rows: Vec::new(),
            tombstones: Vec::new(),
            next: None,
            stopped: Stopped::End,
            examined: 0,
            row_reads: 0,
        };
        if is_empty_range(&lower, &upper) {
            return Ok(page);
        }
        let mut entries =
            Directed { scan: self.0.snapshot.scan(as_slice(&lower), as_slice(&upper)), direction: walk.direction };
        let mut bytes_out = 0_u64;
        // Where to go on if the walk stops here: behind the last entry looked at, or, once the page
        // is full and only a look-ahead runs, behind the last row returned.
        let mut resume: Option<P> = None;
        let mut behind = Vec::new();
        let mut since_check = CHECK_EVERY;
        loop {
            since_check += 1;
            if since_check >= CHECK_EVERY {
                since_check = 0;
                if walk.cancel.is_some_and(|c| c.is_cancelled()) {
                    return Err(Error::Cancelled);
                }
                if resume.is_some() && walk.budget.deadline.is_some_and(|d| Instant::now() >= d) {
                    page.stopped = Stopped::Budget;
                    break;
                }
            }
            if resume.is_some() && page.examined >= walk.budget.entries {
                page.stopped = Stopped::Budget;
                break;
            }
            let Some(entry) = entries.next() else { break };
            let (key, bytes) = entry?;
            page.examined += 1;
            let full = page.rows.len() == walk.limit;
            match visit(&mut page, &key, &bytes)? {
                Seen::Passed(position) => {
                    if !full {
                        resume = Some(position);
                    }
                }
                Seen::Tombstone(position, tombstone) => {
                    if full {
                        // The next page meets it again, unless there is none.
                        behind.push(tombstone);
                    } else {
                        page.tombstones.push(tombstone);
                        resume = Some(position);
                    }
                }
                Seen::Row(position, row) => {
                    if full {
                        page.stopped = Stopped::Limit;
                        break;
                    }
                    bytes_out += bytes.len() as u64;
                    if bytes_out > walk.budget.bytes && !page.rows.is_empty() {
                        page.stopped = Stopped::Budget;
                        break;
                    }
                    page.rows.push(row);
                    resume = Some(position);
                }
            }
        }
        match page.stopped {
            Stopped::End => page.tombstones.append(&mut behind),
            Stopped::Limit | Stopped::Budget => page.next = resume,
        }
        Ok(page)
    }

    /// Counts, sums and extremes over a tenant's or all rows, as far as the budget goes.
    ///
    /// # Errors
    /// On an unknown column, cancellation, or unreadable data.
    pub fn aggregate(&self, query: &AggregateQuery<'_>) -> Result<Aggregate> {
        let at = self.table_view(query.walk.table.id())?;
        check_columns(&at.table, query.columns)?;
        let schema = at.table.schema();
        let empty = |&at: &usize| ColumnAggregate { sum: Sum::zero(schema.columns()[at].ty), ..Default::default() };
        let mut out = Aggregate { columns: query.columns.iter().map(empty).collect(), ..Aggregate::default() };
        let walk = Walk {
            columns: query.columns,
            limit: usize::MAX,
            budget: crate::query::Budget { bytes: u64::MAX, ..query.walk.budget },
            ..query.walk
        };
        // Pages of a bounded number of rows keep the memory of an aggregate flat.
        const ROWS_PER_PAGE: usize = 4_096;
        let mut after = query.after;
        loop {
            let left = walk.budget.entries.saturating_sub(out.examined);
            let walk =
                Walk { limit: ROWS_PER_PAGE, budget: crate::query::Budget { entries: left, ..walk.budget }, ..walk };
            let page = match query.tenant {
                Some(tenant) => self.list(&ListQuery { walk, tenant, from: query.from, to: query.to, after })?,
                None => {
                    let page = self.scan(&ScanQuery { after: after.map(|p| p.id), ..ScanQuery::all(walk) })?;
                    Page {
                        next: page.next.map(|id| ListPosition { time: None, id }),
                        rows: page.rows,
                        tombstones: page.tombstones,
                        stopped: page.stopped,
                        examined: page.examined,
                        row_reads: page.row_reads,
                    }
                }
            };
            out.examined += page.examined;
            for row in page.rows {
                if query.tenant.is_none() && !within(row.time, query.from, query.to) {
                    continue;
                }
                out.rows += 1;
                for (column, value) in out.columns.iter_mut().zip(row.values) {
                    fold(column, value);
                }
            }
            after = page.next;
            if after.is_none() || page.stopped == Stopped::Budget {
                break;
            }
        }
        out.next = after;
        Ok(out)
    }
}

/// What a walk saw at one entry.
enum Seen<P> {
    Passed(P),
    Tombstone(P, Tombstone),
    Row(P, Row),
}

struct Directed {
    scan: Scan,
    direction: Direction,
}

impl Directed {
    fn next(&mut self) -> Option<Result<Entry>> {
        match self.direction {
            Direction::Ascending => self.scan.next(),
            Direction::Descending => self.scan.next_back(),
        }
    }
}

fn is_owned(owned: Option<Owned<'_>>, id: u64) -> bool {
    owned.is_none_or(|owned| owned(id))
}

fn within(time: Option<TimeKey>, from: Option<TimeKey>, to: Option<TimeKey>) -> bool {
    if from.is_none() && to.is_none() {
        return true;
    }
    time.is_some_and(|t| from.is_none_or(|from| t >= from) && to.is_none_or(|to| t < to))
}

fn check_columns(table: &Table, columns: &[usize]) -> Result<()> {
    match columns.iter().find(|&&at| at >= table.schema().columns().len()) {
        None => Ok(()),
        Some(at) => Err(Error::BadRequest(format!("table {:?} has no column {at}", table.name()))),
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// True where the engine's range would be empty or inverted (which it does not accept).
fn is_empty_range(lower: &Bound<Vec<u8>>, upper: &Bound<Vec<u8>>) -> bool {
    match (lower, upper) {
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => a >= b,
        _ => false,
    }
}

/// The index keys a listing walks over.
fn list_bounds(table: TableId, query: &ListQuery<'_>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let tenant = query.tenant;
    let mut lower = match (query.from, query.to) {
        (Some(from), _) => Bound::Included(key::index_from(table, tenant, from)),
        (None, Some(_)) => Bound::Included(key::index_from(table, tenant, TimeKey(0))),
        (None, None) => Bound::Included(key::index_tenant(table, tenant)),
    };
    let mut upper = match query.to {
        Some(to) => Bound::Excluded(key::index_from(table, tenant, to)),
        None => {
            let end = key::after_prefix(&key::index_tenant(table, tenant));
            end.map_or(Bound::Unbounded, Bound::Excluded)
        }
    };
    if let Some(after) = query.after {
        let at = key::index(table, tenant, after.time, after.id);
        match (query.walk.direction, &lower, &upper) {
            (Direction::Ascending, Bound::Included(low), _) if at >= *low => {
                lower = Bound::Excluded(at);
            }
            (Direction::Descending, _, Bound::Excluded(high)) if at < *high => {
                upper = Bound::Excluded(at);
            }
            (Direction::Descending, _, Bound::Unbounded) => upper = Bound::Excluded(at),
            _ => {}
        }
    }
    (lower, upper)
}

/// How many cells of a row must be located for these columns and for tenant and time.
fn row_reach(layout: &Layout, schema: &Schema, columns: &[usize]) -> usize {
    let fixed = [Some(schema.tenant()), schema.time()];
    let fixed = fixed.iter().flatten().map(|&at| layout.reach(schema, &[at])).max();
    layout.reach(schema, columns).max(fixed.unwrap_or(0))
}

/// A row's first `reach` cells.
fn stored_row<'a>(
    at: &'a TableView,
    layout: &'a Layout,
    id: u64,
    record: &Record<'a>,
    reach: usize,
    offsets: &'a mut Vec<u32>,
) -> Result<StoredRow<'a>, crate::RecordError> {
    let schema = at.table.schema();
    record.cells.locate(layout.types(reach), offsets)?;
    Ok(StoredRow { schema, layout, id, listed: None, cells: record.cells, offsets })
}

fn project(row: &StoredRow<'_>, version: Version, columns: &[usize]) -> Result<Row, crate::RecordError> {
    let mut values = Vec::with_capacity(columns.len());
    for &at in columns {
        values.push(row.value(at)?.into_owned());
    }
    Ok(Row { id: row.id, tenant: row.tenant()?, time: row.time()?, version, values })
}

fn fold(column: &mut ColumnAggregate, value: Value) {
    if value.is_null() {
        return;
    }
    column.values += 1;
    column.sum = column.sum.zip(Sum::of(&value)).and_then(|(sum, addend)| sum.plus(addend));
    if column.min.as_ref().is_none_or(|min| compare(&value, min) == Ordering::Less) {
        column.min = Some(value.clone());
    }
    if column.max.as_ref().is_none_or(|max| compare(&value, max) == Ordering::Greater) {
        column.max = Some(value);
    }
}

/// Order of two values of one column; text and bytes compare bytewise.
fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::U64(a), Value::U64(b)) => a.cmp(b),
        (Value::I64(a), Value::I64(b)) => a.cmp(b),
        (Value::F64(a), Value::F64(b)) => a.total_cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Timestamp(a), Value::Timestamp(b)) | (Value::Datetime(a), Value::Datetime(b)) => a.cmp(b),
        (Value::Date(a), Value::Date(b)) => a.cmp(b),
        (Value::String(a), Value::String(b)) | (Value::Json(a), Value::Json(b)) => a.cmp(b),
        (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
        // Canonical decimals of one scale: sign, then length, then digits.
        (Value::Decimal(a), Value::Decimal(b)) => {
            let (minus_a, minus_b) = (a.starts_with('-'), b.starts_with('-'));
            let magnitude = a.len().cmp(&b.len()).then_with(|| a.cmp(b));
            match (minus_a, minus_b) {
                (false, false) => magnitude,
                (true, true) => magnitude.reverse(),
                (true, false) => Ordering::Less,
                (false, true) => Ordering::Greater,
            }
        }
        _ => Ordering::Equal,
    }
}
