//! Answering reads.
//!
//! A read becomes pages: each page is one bounded piece of work on the store's own threads, taken only when the reader
//! wants it, so a slow reader costs a buffered page and a reader that left costs nothing more. Every page takes a fresh
//! view, unless its reader wants small batches and so all of them from one; a row that changes between two pages is seen
//! once, as the order of the walk says.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream;
use futures_util::{FutureExt, StreamExt};
use metaroute_cluster::SlotSet;
use metaroute_cluster::placement::{SlotFunction, Span};
use metaroute_cluster::protocol::{
    Aggregate, Batch, Direction, Head, NotReady, Position, ReadEvent, ReadOp, ReadRequest, ReadStream, Row, ShardError,
    ShardErrorKind, ShardState, Sum, Trailer, WorkBudget,
};
use metaroute_cluster::topology::Topology;
use metaroute_store as store;
use metaroute_store::{
    AggregateQuery, Budget, Filter, ListPosition, ListQuery, Lookup, Owned, ScanQuery, Store, Table, TimeKey, Walk,
};

use super::{InFlight, Inner, shard_error};

/// Rows in one event at most.
const BATCH_ROWS: usize = 1_000;
/// Bytes of stored rows in one event, about; what one message between processes carries well.
const BATCH_BYTES: u64 = metaroute_cluster::wire::BATCH_BYTES as u64;
/// Rows that may be read by id where the question is asked instead of on a thread of the store.
const INLINE_IDS: usize = 2;
/// Rows of a listing that may be read there, where all of them come from neighbouring entries of one index.
const INLINE_ROWS: usize = 128;
/// Entries looked at there at most: between the rows may lie any number of deleted ones.
const INLINE_ENTRIES: u64 = 512;
/// How much of the time left a walk may use before it hands out what it has: the rest is for the way back.
const TIME_SHARE: f64 = 0.8;

/// Turns for reading a few rows on the asking thread.
///
/// Cached rows are read in less time than handing the question over to another thread and back takes. But a row that is
/// not cached waits for the disk, and then an async thread waits with it. So while rows come as fast as memory gives
/// them every thread of the runtime may read; once they do not, one thread at least goes on serving everybody else, and
/// the rows it is asked for are read on the store's threads.
#[derive(Debug)]
pub(super) struct Inline {
    threads: usize,
    turns: AtomicUsize,
    points: Pace,
    lists: Pace,
}

/// How fast turns of one kind are.
#[derive(Debug)]
struct Pace {
    /// Slower than this on average is not memory.
    memory: Duration,
    /// Moving average of what a turn took, in ns.
    average: AtomicU64,
}

/// A turn counts for as much at most: a thread that had to wait for its processor says nothing about disks.
const COUNTED_MAX: Duration = Duration::from_millis(1);

impl Default for Inline {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let pace = |micros| Pace { memory: Duration::from_micros(micros), average: AtomicU64::new(0) };
        Inline { threads, turns: AtomicUsize::new(0), points: pace(100), lists: pace(300) }
    }
}

/// A turn, until it is dropped.
struct Turn<'a> {
    of: &'a Inline,
    pace: &'a Pace,
    begun: Instant,
    taken: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.of.turns.fetch_sub(1, Ordering::Relaxed);
        if self.taken {
            self.pace.note(self.begun.elapsed());
        }
    }
}

impl Inline {
    fn take_turn<'a>(&'a self, pace: &'a Pace) -> Option<Turn<'a>> {
        let before = self.turns.fetch_add(1, Ordering::Relaxed);
        let taken = before < if pace.is_fast() { self.threads } else { self.threads - 1 };
        let turn = Turn { of: self, pace, begun: Instant::now(), taken };
        if taken {
            return Some(turn);
        }
        // Or a single thread would never try again.
        pace.note(Duration::ZERO);
        None
    }
}

impl Pace {
    fn is_fast(&self) -> bool {
        self.average.load(Ordering::Relaxed) < self.memory.as_nanos() as u64
    }

    /// Counts a turn as a sixteenth of the average. Two threads may overwrite each other; it is an average.
    fn note(&self, took: Duration) {
        let average = self.average.load(Ordering::Relaxed);
        let took = took.min(COUNTED_MAX).as_nanos() as u64;
        self.average.store(average - average / 16 + took / 16, Ordering::Relaxed);
    }
}

pub(super) fn read(inner: Arc<Inner>, request: ReadRequest, deadline: Instant) -> ReadStream {
    inner.answered.reads.fetch_add(1, Ordering::Relaxed);
    let state = State { in_flight: InFlight::enter(&inner), inner, deadline, step: Step::Start(Box::new(request)) };
    // Each step yields a few events; after an error or the trailer there are no more.
    Box::pin(stream::unfold(Some(state), advance).flat_map(stream::iter))
}

struct State {
    inner: Arc<Inner>,
    in_flight: InFlight,
    deadline: Instant,
    step: Step,
}

enum Step {
    Start(Box<ReadRequest>),
    Walk(Box<Walking>),
}

type Events = Vec<Result<ReadEvent, ShardError>>;

async fn advance(state: Option<State>) -> Option<(Events, Option<State>)> {
    let State { inner, in_flight, deadline, step } = state?;
    let next = async {
        match step {
            Step::Start(request) => start(&inner, *request, deadline).await,
            Step::Walk(walking) => walk(*walking, Vec::new()).await,
        }
    };
    let late = || ShardError::new(ShardErrorKind::DeadlineExceeded, "the answer was not ready in time");
    let next = {
        let mut abandoned = Abandoned(Some(&inner));
        let mut next = std::pin::pin!(next);
        let next = match next.as_mut().now_or_never() {
            Some(next) => next,
            None => tokio::time::timeout_at(deadline.into(), next).await.unwrap_or_else(|_| Err(late())),
        };
        abandoned.0 = None;
        next
    };
    Some(match next {
        Err(error) => (vec![Err(error)], None),
        Ok((events, None)) => (events, None),
        Ok((events, Some(walking))) => {
            let step = Step::Walk(Box::new(walking));
            (events, Some(State { inner, in_flight, deadline, step }))
        }
    })
}

/// Counts work whose reader left.
struct Abandoned<'a>(Option<&'a Inner>);

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if let Some(inner) = self.0 {
            inner.answered.abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What a walk needs on a thread of the store.
struct Scope {
    inline: Arc<Inline>,
    store: Arc<Store>,
    table: Table,
    columns: Vec<usize>,
    filter: Option<Filter>,
    owned: Option<OwnedIds>,
    deadline: Instant,
}

/// The ids of the answered slots.
struct OwnedIds {
    function: SlotFunction,
    /// The tenant's span, or every span of the group where the question is about all tenants.
    spans: Vec<Span>,
    base_shards: u32,
    slots: u32,
    answered: SlotSet,
}

impl OwnedIds {
    fn has(&self, id: u64) -> bool {
        let x = self.function.apply(id);
        self.spans.iter().any(|span| self.answered.contains(span.slot(x, self.base_shards, self.slots)))
    }
}

struct Walking {
    scope: Arc<Scope>,
    op: ReadOp,
    answered: SlotSet,
    left: WorkBudget,
    rows_left: usize,
    after: Option<Position>,
    /// How many rows of a batch the reader wants at first; it gets all of them from `view`.
    batch: Option<NonZeroU32>,
    view: Option<store::View>,
    /// Whether no page has been read yet.
    fresh: bool,
    /// Whether what was looked at so far lay together, so that more of it will.
    dense: bool,
    trailer: Trailer,
}

type Advanced = Result<(Events, Option<Walking>), ShardError>;

async fn start(inner: &Arc<Inner>, request: ReadRequest, deadline: Instant) -> Advanced {
    inner.wrong_shard(&request.shard)?;
    let condition = inner.condition.borrow().clone();
    if !condition.state.is_ready() {
        return Ok((not_ready(inner, request.slots, condition.state, condition.loaded_permille), None));
    }
    let Some((topology, split)) = inner.ownership(&request.slots, request.epoch, deadline).await else {
        return Ok((not_ready(inner, request.slots, ShardState::Ready, None), None));
    };
    if !split.moved.is_empty() {
        inner.answered.moved.fetch_add(1, Ordering::Relaxed);
    }
    let mut head = Head { answered: split.owned.clone(), moved: split.moved, not_ready: Vec::new() };
    if !split.nobody.is_empty() {
        head.not_ready.push(NotReady { slots: split.nobody, state: ShardState::Ready, loaded_permille: None });
    }
    let store = inner.store()?;
    let table = store.table(&request.store).map_err(|error| shard_error(&error))?;
    if split.owned.is_empty() {
        let trailer = ReadEvent::Trailer(Trailer::default());
        return Ok((vec![Ok(ReadEvent::Head(head)), Ok(trailer)], None));
    }
    let columns = ordinals(&table, &request.fields)?;
    let filter = match &request.filter {
        None => None,
        Some(text) => Some(inner.filters.get(&table, text)?),
    };
    let (rows_left, after) = match &request.op {
        ReadOp::Get { .. } => (usize::MAX, None),
        ReadOp::List { limit, after, .. } => (*limit as usize, *after),
        ReadOp::Scan { limit, after, .. } => (*limit as usize, after.map(Position::of_id)),
        ReadOp::Aggregate { after, .. } => (usize::MAX, *after),
    };
    let tenant = match &request.op {
        ReadOp::Get { tenant, .. } | ReadOp::Aggregate { tenant, .. } => *tenant,
        ReadOp::List { tenant, .. } => Some(*tenant),
        ReadOp::Scan { .. } => None,
    };
    let everything = split.owned.contains_all(&inner.ever_owned.load());
    let owned = if everything { None } else { owned_ids(inner, &topology, &request.store, tenant, &split.owned) };
    let counted = everything && filter.is_none();
    let left = deadline.saturating_duration_since(Instant::now()).mul_f64(TIME_SHARE);
    let inline = Arc::clone(&inner.inline);
    let scope =
        Scope { inline, store: Arc::clone(&store), table, columns, filter, owned, deadline: Instant::now() + left };
    let walking = Walking {
        scope: Arc::new(scope),
        op: request.op,
        answered: split.owned,
        left: request.budget,
        rows_left,
        after,
        batch: request.batch,
        view: request.batch.map(|_| store.view()).transpose().map_err(|error| shard_error(&error))?,
        fresh: true,
        dense: true,
        trailer: Trailer::default(),
    };
    let events = vec![Ok(ReadEvent::Head(head))];
    if counted
        && let ReadOp::Aggregate { tenant, from: None, to: None, sums, after: None } = &walking.op
        && let Some(summed) = summed(&walking.scope.table, sums)?
    {
        let tenant = *tenant;
        return totals(walking, tenant, summed, events).await;
    }
    walk(walking, events).await
}

fn not_ready(inner: &Inner, slots: SlotSet, state: ShardState, loaded_permille: Option<u16>) -> Events {
    inner.answered.not_ready.fetch_add(1, Ordering::Relaxed);
    let head = Head { not_ready: vec![NotReady { slots, state, loaded_permille }], ..Head::default() };
    vec![Ok(ReadEvent::Head(head)), Ok(ReadEvent::Trailer(Trailer::default()))]
}

fn owned_ids(
    inner: &Inner,
    topology: &Topology,
    store: &str,
    tenant: Option<u64>,
    answered: &SlotSet,
) -> Option<OwnedIds> {
    let (index, group) = topology.group(&inner.id.group)?;
    let place = tenant.and_then(|tenant| topology.tenant(tenant)).filter(|place| place.group == index);
    Some(OwnedIds {
        function: topology.slot_function(store),
        spans: place.map_or_else(|| topology.spans_of(index), |place| vec![place.span]),
        base_shards: group.base_shards,
        slots: group.slots(),
        answered: answered.clone(),
    })
}

fn ordinals(table: &Table, names: &[String]) -> Result<Vec<usize>, ShardError> {
    let unknown = |name: &String| {
        ShardError::new(ShardErrorKind::BadRequest, format!("store `{}` has no column `{name}`", table.name()))
    };
    names.iter().map(|name| table.schema().ordinal(name).ok_or_else(|| unknown(name))).collect()
}

/// Where the maintained sums of these columns are; `None` where one has no maintained sum.
fn summed(table: &Table, names: &[String]) -> Result<Option<Vec<usize>>, ShardError> {
    let ordinals = ordinals(table, names)?;
    Ok(ordinals.iter().map(|at| table.schema().summed().binary_search(at).ok()).collect())
}

/// Answers an aggregate from the counters the store maintains.
async fn totals(walking: Walking, tenant: Option<u64>, summed: Vec<usize>, mut events: Events) -> Advanced {
    let scope = walking.scope.clone();
    let totals = walking.scope.store.read_points(move |view, _| view.totals(&scope.table, tenant));
    let totals = totals.await.map_err(|error| shard_error(&error))?;
    let schema = walking.scope.table.schema();
    let sums = summed.iter().map(|&n| {
        let sum = totals.sum(n);
        Some(match schema.columns()[schema.summed()[n]].ty {
            store::ColumnType::Decimal { scale, .. } => Sum::Decimal { unscaled: sum, scale },
            _ => Sum::Integer(sum),
        })
    });
    let aggregate = Aggregate { rows: totals.rows, sums: sums.collect() };
    let trailer = Trailer { answered: walking.answered, aggregate: Some(aggregate), examined: 1, ..walking.trailer };
    events.push(Ok(ReadEvent::Trailer(trailer)));
    Ok((events, None))
}

/// One page.
async fn walk(mut walking: Walking, mut events: Events) -> Advanced {
    let limit = walking.next_rows();
    let page = page_of(&walking, limit).await?;
    walking.fresh = false;
    // A walk that goes on for other reasons than a small batch is a long one.
    walking.dense &= walking.batch.is_some() && page.rows.len() >= limit;
    walking.left.entries = walking.left.entries.saturating_sub(page.examined);
    walking.left.bytes = walking.left.bytes.saturating_sub(page.bytes);
    walking.trailer.examined += page.examined;
    walking.trailer.row_reads += page.row_reads;
    walking.trailer.aggregate = page.aggregate;
    walking.rows_left = walking.rows_left.saturating_sub(page.rows.len());
    walking.after = page.next;
    let done = page.next.is_none()
        || page.stopped_early
        || walking.rows_left == 0
        || walking.left.entries == 0
        || walking.left.bytes == 0;
    if !page.rows.is_empty() {
        let Trailer { examined, row_reads, .. } = &mut walking.trailer;
        let (examined, row_reads) = (std::mem::take(examined), std::mem::take(row_reads));
        events.push(Ok(ReadEvent::Rows(Batch { rows: page.rows, examined, row_reads })));
    }
    if done {
        let Walking { answered, trailer, .. } = walking;
        let trailer = Trailer { answered, next: page.next, ..trailer };
        events.push(Ok(ReadEvent::Trailer(trailer)));
        return Ok((events, None));
    }
    Ok((events, Some(walking)))
}

#[derive(Default)]
struct Page {
    rows: Vec<Row>,
    next: Option<Position>,
    /// The walk's time is used up.
    stopped_early: bool,
    examined: u64,
    row_reads: u64,
    bytes: u64,
    aggregate: Option<Aggregate>,
}

impl Walking {
    /// How many rows the next page has at most.
    fn next_rows(&self) -> usize {
        let batch = self.batch.map_or(BATCH_ROWS, |rows| rows.get() as usize);
        let wanted = if self.fresh || self.batch.is_none() { batch } else { batch.div_ceil(4) };
        self.rows_left.min(wanted).clamp(1, BATCH_ROWS)
    }
}

async fn page_of(walking: &Walking, limit: usize) -> Result<Page, ShardError> {
    let scope = walking.scope.clone();
    let left = walking.left;
    let after = walking.after;
    let kept = walking.view.clone();
    let page = match walking.op.clone() {
        ReadOp::Get { ids, tenant, from, to, direction } => {
            let store = walking.scope.store.clone();
            let get = Get { ids, tenant, from, to, direction };
            if get.ids.len() <= INLINE_IDS
                && let Some(_turn) = walking.scope.inline.take_turn(&walking.scope.inline.points)
            {
                let read = || scope.get(&store.view()?, &store::Cancel::new(), &get);
                return read().map_err(|error| shard_error(&error));
            }
            let read = move |view: &store::View, cancel: &store::Cancel| scope.get(view, cancel, &get);
            store.read_points(read).await
        }
        ReadOp::List { tenant, from, to, direction, .. } => {
            let store = walking.scope.store.clone();
            let read = move |view: &store::View, cancel: &store::Cancel, left: WorkBudget| {
                let walk = scope.walk(limit, direction, left, cancel);
                let after = after.map(|at| ListPosition { time: at.time, id: at.id });
                let page = view.list(&ListQuery { walk: walk.on(&scope), tenant, from, to, after })?;
                Ok(scope.page(page, |at: ListPosition| Position { time: at.time, id: at.id }))
            };
            if walking.dense
                && limit <= INLINE_ROWS
                && walking.scope.is_short_walk()
                && let Some(_turn) = walking.scope.inline.take_turn(&walking.scope.inline.lists)
            {
                let left = WorkBudget { entries: left.entries.min(INLINE_ENTRIES), ..left };
                let view = kept.map_or_else(|| store.view(), Ok);
                let page = view.and_then(|view| read(&view, &store::Cancel::new(), left));
                return page.map_err(|error| shard_error(&error));
            }
            let read =
                move |view: &store::View, cancel: &store::Cancel| read(kept.as_ref().unwrap_or(view), cancel, left);
            store.read_scans(read).await
        }
        ReadOp::Scan { from, to, direction, .. } => {
            let store = walking.scope.store.clone();
            let read = move |view: &store::View, cancel: &store::Cancel| {
                let after = after.map(|at| at.id);
                let view = kept.as_ref().unwrap_or(view);
                scope.scan(view, cancel, &Scan { limit, direction, left, after, from, to })
            };
            store.read_scans(read).await
        }
        ReadOp::Aggregate { tenant, from, to, sums, .. } => {
            let columns = ordinals(&walking.scope.table, &sums)?;
            let store = walking.scope.store.clone();
            let read = move |view: &store::View, cancel: &store::Cancel| {
                let walk = scope.walk(1, Direction::Ascending, left, cancel);
                let after = after.map(|at| ListPosition { time: at.time, id: at.id });
                let walk = walk.on(&scope);
                let found = view.aggregate(&AggregateQuery { walk, tenant, from, to, columns: &columns, after })?;
                let sums = found.columns.iter().map(|column| column.sum).collect();
                Ok(Page {
                    next: found.next.map(|at| Position { time: at.time, id: at.id }),
                    // An aggregate is one value per sub-request; the asker goes on behind `next`.
                    stopped_early: true,
                    examined: found.examined,
                    aggregate: Some(Aggregate { rows: found.rows, sums }),
                    ..Page::default()
                })
            };
            store.read_scans(read).await
        }
    };
    page.map_err(|error| shard_error(&error))
}

fn within(time: Option<TimeKey>, from: Option<TimeKey>, to: Option<TimeKey>) -> bool {
    if from.is_none() && to.is_none() {
        return true;
    }
    time.is_some_and(|time| from.is_none_or(|from| time >= from) && to.is_none_or(|to| time < to))
}

struct Get {
    ids: Arc<[u64]>,
    tenant: Option<u64>,
    from: Option<TimeKey>,
    to: Option<TimeKey>,
    direction: Direction,
}

struct Scan {
    limit: usize,
    direction: Direction,
    left: WorkBudget,
    after: Option<u64>,
    from: Option<TimeKey>,
    to: Option<TimeKey>,
}

/// The parts of a store walk that are not borrowed from its [`Scope`].
struct WalkParts<'a> {
    limit: usize,
    direction: store::Direction,
    budget: Budget,
    owned: Option<Box<dyn Fn(u64) -> bool + Send + Sync + 'a>>,
    cancel: &'a store::Cancel,
}

impl WalkParts<'_> {
    fn on<'a>(&'a self, scope: &'a Scope) -> Walk<'a> {
        Walk {
            table: &scope.table,
            limit: self.limit,
            direction: self.direction,
            filter: scope.filter.as_ref(),
            owned: self.owned.as_deref().map(|owned| -> Owned<'a> { owned }),
            columns: &scope.columns,
            budget: self.budget,
            cancel: Some(self.cancel),
        }
    }
}

impl Scope {
    /// Whether a listing looks at the entries it shows and at nothing else.
    fn is_short_walk(&self) -> bool {
        let schema = self.table.schema();
        let is_listed = |at: &usize| {
            *at == schema.id() || *at == schema.tenant() || Some(*at) == schema.time() || schema.listing().contains(at)
        };
        self.filter.is_none() && self.owned.is_none() && self.columns.iter().all(is_listed)
    }

    fn walk<'a>(
        &'a self,
        limit: usize,
        direction: Direction,
        left: WorkBudget,
        cancel: &'a store::Cancel,
    ) -> WalkParts<'a> {
        WalkParts {
            limit,
            direction: match direction {
                Direction::Ascending => store::Direction::Ascending,
                Direction::Descending => store::Direction::Descending,
            },
            budget: Budget { entries: left.entries, bytes: left.bytes.min(BATCH_BYTES), deadline: Some(self.deadline) },
            owned: self
                .owned
                .as_ref()
                .map(|owned| -> Box<dyn Fn(u64) -> bool + Send + Sync + 'a> { Box::new(move |id| owned.has(id)) }),
            cancel,
        }
    }

    fn page<P>(&self, page: store::Page<P>, position: impl Fn(P) -> Position) -> Page {
        let rows: Vec<Row> = page.rows.into_iter().map(row).collect();
        Page {
            bytes: rows.iter().map(|row| row.bytes() as u64).sum(),
            rows,
            next: page.next.map(position),
            stopped_early: Instant::now() >= self.deadline,
            examined: page.examined,
            row_reads: page.row_reads,
            aggregate: None,
        }
    }

    /// Rows by id. The ids are ascending, so a descending answer is the same from the other end.
    fn get(&self, view: &store::View, cancel: &store::Cancel, get: &Get) -> store::Result<Page> {
        let parts = self.walk(1, Direction::Ascending, WorkBudget::default(), cancel);
        let found = view.multi_get(&parts.on(self), &get.ids)?;
        let rows =
            found.into_iter().filter_map(Lookup::into_row).map(row).filter(|row| {
                get.tenant.is_none_or(|tenant| row.tenant == tenant) && within(row.time, get.from, get.to)
            });
        let mut rows: Vec<Row> = rows.collect();
        if get.direction == Direction::Descending {
            rows.reverse();
        }
        Ok(Page { rows, examined: get.ids.len() as u64, ..Page::default() })
    }

    /// Rows in order of id, within bounds of time that the store's scan does not know. The row behind the page's last
    /// one is looked for within the bounds too, so that a page says "no more" exactly when there is no more.
    fn scan(&self, view: &store::View, cancel: &store::Cancel, scan: &Scan) -> store::Result<Page> {
        let parts = self.walk(scan.limit, scan.direction, scan.left, cancel);
        let walk = parts.on(self);
        if scan.from.is_none() && scan.to.is_none() {
            let page = view.scan(&ScanQuery { after: scan.after, ..ScanQuery::all(walk) })?;
            return Ok(self.page(page, Position::of_id));
        }
        let mut out = Page::default();
        let mut after = scan.after;
        loop {
            let budget = Budget { entries: scan.left.entries.saturating_sub(out.examined), ..parts.budget };
            let page = view.scan(&ScanQuery { after, ..ScanQuery::all(Walk { budget, ..walk }) })?;
            after = page.next;
            let stopped = page.stopped;
            let mut page = self.page(page, Position::of_id);
            page.rows.retain(|row| within(row.time, scan.from, scan.to));
            out.examined += page.examined;
            out.bytes += page.bytes;
            out.rows.append(&mut page.rows);
            if out.rows.len() > scan.limit {
                out.rows.truncate(scan.limit);
                out.next = out.rows.last().map(|row| Position::of_id(row.id));
                break;
            }
            out.next = after.map(Position::of_id);
            let spent = stopped == store::Stopped::Budget
                || out.examined >= scan.left.entries
                || Instant::now() >= self.deadline;
            if after.is_none() || spent {
                break;
            }
        }
        out.stopped_early = Instant::now() >= self.deadline;
        Ok(out)
    }
}

fn row(row: store::Row) -> Row {
    Row { id: row.id, tenant: row.tenant, time: row.time, version: row.version, values: row.values }
}
