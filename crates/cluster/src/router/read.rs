//! Pages, counts and exports.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use metaroute_store::Value;
use rustc_hash::FxHashMap;
use tokio::sync::OwnedSemaphorePermit;

use super::names::Names;
use super::open::Template;
use super::walk::{Then, Walk};
use super::{Call, Inner, Router};
use crate::completeness::Meta;
use crate::cursor::{Binding, Cursor};
use crate::failure::{Code, Failure};
use crate::merge::Step;
use crate::protocol::{Aggregate, Position, ReadOp, Row, Sum, WorkBudget};
use crate::query::{OrderBy, Path, Query};
use crate::scatter::{Scatter, Target, permit};

/// Rows a shard sends for one sub-request of an export before it is asked to go on.
const EXPORT_ROWS: u32 = 20_000;
/// Rows of one batch of an export.
const EXPORT_BATCH: usize = 256;
/// Work for one sub-request of an export or count, between two looks at the deadline.
const BULK_BUDGET: WorkBudget = WorkBudget { entries: 2_000_000, bytes: u64::MAX };

/// A page.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The rows, in the query's order; each id once.
    pub rows: Vec<Row>,
    /// The cursor of the next page; `None` exactly when the walk is finished.
    pub next: Option<String>,
    /// What the answer covers.
    pub meta: Meta,
}

/// A count, with sums.
#[derive(Clone, Debug)]
pub struct Count {
    /// How many rows.
    pub rows: u64,
    /// One per asked-for column: the sum of its values that are not NULL; `None` where it does not fit 128 bits.
    pub sums: Vec<Option<Sum>>,
    /// What the answer covers.
    pub meta: Meta,
}

/// All rows of a query as a stream of batches. Dropping it calls everything off.
pub struct Export {
    walk: Walk,
    partial: bool,
    done: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export").field("done", &self.done).finish_non_exhaustive()
    }
}

impl Router {
    /// Answers one page of a query.
    ///
    /// # Errors
    /// A refusal (permission, cursor) before anything is asked; afterwards, with `meta`, when the answer would be
    /// incomplete and that was not allowed, or too large.
    pub async fn query(&self, query: &Query, call: &Call) -> Result<Answer, Failure> {
        let inner = &self.inner;
        inner.tick();
        let topology = inner.topology()?;
        let scatter = Scatter::of(&topology, query);
        permit(query, &scatter, &scatter.estimate(query, inner.options.budget), call.rights)?;
        let _permit = inner.admit(scatter.path)?;
        let after = inner.after(query)?;
        let on_demand = inner.client.reads_on_demand();
        let portion = Portion::of(query.limit, scatter.targets.len(), on_demand);
        let template = inner.template(query, &scatter, call, inner.options.budget);
        let template = Template { batch: portion.batch, ..template };
        let then = Then::GoOnFor(query.limit);
        let mut walk = Walk::new(Arc::clone(inner), topology, template, query, scatter.path, call.deadline, then);
        walk.open_all(&scatter, |target| read_op(query, target, after, portion.rows)).await?;
        if !query.partial {
            // The rest would be thrown away.
            walk.check(false)?;
        }
        let Page { rows, bytes, next } = page(&mut walk, query).await?;
        walk.settle(on_demand);
        walk.ledger.returned = rows.len() as u64;
        walk.ledger.bytes = bytes as u64;
        let meta = walk.verdict(query.partial)?;
        let next = next.map(|after| {
            let fingerprint = query.fingerprint();
            let binding = Binding { tenant: query.tenant, query: &fingerprint };
            let issued = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let epoch = walk.topology().epoch();
            inner.keys.seal(&Cursor { epoch, issued, after, sources: Default::default() }, binding)
        });
        Ok(Answer { rows, next, meta })
    }

    /// Counts the rows of a query and sums columns of them, given by ordinal. Limit, order and cursor play no part.
    ///
    /// # Errors
    /// As [`Router::query`].
    pub async fn count(&self, query: &Query, sums: &[usize], call: &Call) -> Result<Count, Failure> {
        let inner = &self.inner;
        inner.tick();
        let topology = inner.topology()?;
        let scatter = Scatter::of(&topology, query);
        permit(query, &scatter, &scatter.estimate(query, inner.options.budget), call.rights)?;
        let _permit = inner.admit(scatter.path)?;
        let names: Arc<[String]> = sums.iter().map(|&at| query.store.columns()[at].name.clone()).collect();
        let mut totals = Totals::new(query, sums)?;
        let template = inner.template(query, &scatter, call, BULK_BUDGET);
        let path = scatter.path;
        let mut walk = Walk::new(Arc::clone(inner), topology, template, query, path, call.deadline, Then::GoOn);
        if query.ids.is_some() {
            // A question by ids reads the rows themselves; there are at most a thousand.
            walk.retarget_fields(Arc::clone(&names));
            walk.open_all(&scatter, |target| read_op(query, target, None, u32::MAX)).await?;
            let mut seen = std::collections::HashSet::new();
            loop {
                match walk.next().await? {
                    Step::Row(row) if seen.insert(row.id) => totals.add_row(&row),
                    Step::Row(_) => {}
                    _ => break,
                }
            }
        } else {
            let op = |_: &Target| {
                let sums = Arc::clone(&names);
                Some(ReadOp::Aggregate { tenant: query.tenant, from: query.from, to: query.to, sums, after: None })
            };
            let mut from = walk.source_count();
            walk.open_all(&scatter, op).await?;
            loop {
                let (parts, more) = walk.aggregates(from).await?;
                parts.iter().for_each(|part| totals.add(part));
                if more.is_empty() {
                    break;
                }
                from = walk.source_count();
                walk.add(more).await?;
            }
        }
        let meta = walk.verdict(query.partial)?;
        Ok(Count { rows: totals.rows, sums: totals.sums, meta })
    }

    /// Begins an export: all rows of a query, whatever its limit.
    ///
    /// # Errors
    /// As [`Router::query`].
    pub async fn export(&self, query: &Query, call: &Call) -> Result<Export, Failure> {
        let inner = &self.inner;
        inner.tick();
        let topology = inner.topology()?;
        let scatter = Scatter::of(&topology, query);
        permit(query, &scatter, &scatter.estimate(query, inner.options.budget), call.rights)?;
        let permit = inner.admit(scatter.path)?;
        let after = inner.after(query)?;
        let template = inner.template(query, &scatter, call, BULK_BUDGET);
        let then = Then::GoOn;
        let mut walk = Walk::new(Arc::clone(inner), topology, template, query, scatter.path, call.deadline, then);
        walk.open_all(&scatter, |target| read_op(query, target, after, EXPORT_ROWS)).await?;
        if !query.partial {
            walk.check(false)?;
        }
        Ok(Export { walk, partial: query.partial, done: false, _permit: permit })
    }
}

impl Export {
    /// The next rows, in the query's order; `None` when all have been delivered.
    ///
    /// # Errors
    /// When the export would be incomplete and that was not allowed. It is over then.
    pub async fn next(&mut self) -> Result<Option<Vec<Row>>, Failure> {
        let mut rows = Vec::new();
        while !self.done && rows.len() < EXPORT_BATCH {
            match self.walk.next().await {
                Ok(Step::Row(row)) => {
                    self.walk.ledger.returned += 1;
                    self.walk.ledger.bytes += row.bytes() as u64;
                    rows.push(row);
                }
                Ok(_) => self.done = true,
                Err(failure) => {
                    self.done = true;
                    return Err(failure);
                }
            }
            if let Err(failure) = self.walk.check_size(0) {
                self.done = true;
                return Err(failure);
            }
        }
        if !self.partial
            && let Err(failure) = self.walk.check(false)
        {
            self.done = true;
            return Err(failure);
        }
        Ok((!rows.is_empty()).then_some(rows))
    }

    /// What was delivered so far covers; the final word once [`Export::next`] returned `None`.
    ///
    /// # Errors
    /// When every shard failed, or the export is incomplete and that was not allowed.
    pub fn finish(&self) -> Result<Meta, Failure> {
        self.walk.verdict(self.partial)
    }
}

impl Inner {
    fn admit(&self, path: Path) -> Result<Option<OwnedSemaphorePermit>, Failure> {
        if !path.is_global() {
            return Ok(None);
        }
        Arc::clone(&self.global).try_acquire_owned().map(Some).map_err(|_| self.too_many())
    }

    fn too_many(&self) -> Failure {
        let most = self.options.global_queries;
        Failure::new(Code::Overloaded, format!("{most} global queries are running already"))
    }

    pub(super) fn after(&self, query: &Query) -> Result<Option<Position>, Failure> {
        let Some(cursor) = &query.cursor else { return Ok(None) };
        let fingerprint = query.fingerprint();
        let opened = self.keys.open(cursor, Binding { tenant: query.tenant, query: &fingerprint });
        opened.map(|cursor| Some(cursor.after)).map_err(|error| Failure::new(Code::CursorInvalid, error.to_string()))
    }

    pub(super) fn template(&self, query: &Query, scatter: &Scatter, call: &Call, budget: WorkBudget) -> Template {
        let Names { store, fields, .. } = self.names.of(query);
        Template {
            request_id: Arc::clone(&call.request_id),
            store,
            filter: query.filter.as_ref().map(|filter| filter.to_string().into()),
            fields,
            budget,
            batch: None,
            // A scan of everything is no place for doing work twice.
            hedge: scatter.path != Path::C,
        }
    }
}

/// The question for one target; `None` when nothing of it is left behind the cursor.
fn read_op(query: &Query, target: &Target, after: Option<Position>, limit: u32) -> Option<ReadOp> {
    let (from, to, direction) = (query.from, query.to, query.order.direction);
    match (&target.ids, query.tenant) {
        (Some(ids), tenant) => {
            let left = |id: &u64| after.is_none_or(|after| query.order.compare(&Position::of_id(*id), &after).is_gt());
            let ids: Vec<u64> = ids.iter().copied().filter(left).collect();
            (!ids.is_empty()).then(|| ReadOp::Get { ids: ids.into(), tenant, from, to, direction })
        }
        (None, Some(tenant)) => Some(ReadOp::List { tenant, from, to, after, direction, limit }),
        (None, None) => Some(ReadOp::Scan { from, to, after: after.map(|after| after.id), direction, limit }),
    }
}

/// What each shard is asked for when a page is spread over several.
///
/// A page looks one row further, to know whether there is another one. Rows are spread over the shards by a hash or a count,
/// so a shard's part is about its share, with the deviation of a binomial distribution. Asking each for the whole page
/// would read the page as often as there are shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    /// Rows at most.
    pub(crate) rows: u32,
    /// Rows of the first batch.
    batch: Option<NonZeroU32>,
}

impl Portion {
    /// For a page of `limit` rows. Shards that read on demand may show as many as the page has, a share at first.
    /// Others read what they are asked for and a second question takes another way there and back, so they are asked for
    /// three deviations more than their share, and hardly a page needs it.
    pub(crate) fn of(limit: u32, shards: usize, on_demand: bool) -> Portion {
        let rows = limit.saturating_add(1);
        if shards <= 1 {
            return Portion { rows, batch: None };
        }
        let mean = f64::from(rows) / shards as f64;
        if on_demand {
            return Portion { rows, batch: NonZeroU32::new(mean.ceil() as u32) };
        }
        let enough = (mean + 3.0 * (mean * (1.0 - 1.0 / shards as f64)).sqrt()).ceil() as u32 + 1;
        Portion { rows: enough.min(rows), batch: None }
    }
}

struct Page {
    rows: Vec<Row>,
    bytes: usize,
    /// Where the next page goes on.
    next: Option<Position>,
}

/// Collects a page and looks one row further.
async fn page(walk: &mut Walk, query: &Query) -> Result<Page, Failure> {
    let limit = query.limit as usize;
    let mut rows: Vec<Row> = Vec::new();
    let mut bytes = 0;
    // By id, copies of a row are neighbours and the merge has kept the right one. By time they need not be.
    let mut versions: FxHashMap<u64, metaroute_store::Version> = FxHashMap::default();
    loop {
        let step = walk.next().await?;
        walk.check_size(bytes)?;
        match step {
            Step::Row(row) => {
                if query.order.by == OrderBy::Time {
                    match versions.get(&row.id) {
                        Some(have) if *have >= row.version => continue,
                        Some(_) => {
                            rows.retain(|kept| kept.id != row.id);
                            bytes = rows.iter().map(Row::bytes).sum();
                        }
                        None => {}
                    }
                }
                if rows.len() == limit {
                    let next = rows.last().map(|row| query.order.position(row.time, row.id));
                    return Ok(Page { rows, bytes, next });
                }
                if query.order.by == OrderBy::Time {
                    versions.insert(row.id, row.version);
                }
                bytes += row.bytes();
                rows.push(row);
            }
            Step::Stop(position) => return Ok(Page { rows, bytes, next: Some(position) }),
            Step::End | Step::Need(_) => return Ok(Page { rows, bytes, next: None }),
        }
    }
}

/// Adds up what the shards counted.
struct Totals {
    rows: u64,
    sums: Vec<Option<Sum>>,
    zeros: Vec<Sum>,
}

impl Totals {
    fn new(query: &Query, sums: &[usize]) -> Result<Totals, Failure> {
        let zero = |&at: &usize| {
            let column = &query.store.columns()[at];
            Sum::zero(column.ty).ok_or_else(|| {
                let message = format!("column `{}` is {}, which has no sum", column.name, column.ty);
                Failure::new(Code::BadRequest, message)
            })
        };
        let zeros: Vec<Sum> = sums.iter().map(zero).collect::<Result<_, _>>()?;
        Ok(Totals { rows: 0, sums: zeros.iter().copied().map(Some).collect(), zeros })
    }

    /// A sum that does not fit once does not fit any more, whatever is added.
    fn add(&mut self, part: &Aggregate) {
        self.rows += part.rows;
        for (at, total) in self.sums.iter_mut().enumerate() {
            let addend = part.sums.get(at).copied().flatten();
            *total = total.zip(addend).and_then(|(total, addend)| total.plus(addend));
        }
    }

    fn add_row(&mut self, row: &Row) {
        let addend = |(value, zero): (&Value, &Sum)| if value.is_null() { Some(*zero) } else { Sum::of(value) };
        let sums = row.values.iter().zip(&self.zeros).map(addend).collect();
        self.add(&Aggregate { rows: 1, sums });
    }
}
