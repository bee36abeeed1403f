//! Writing rows where one process owns all shards.
//!
//! A file id is unique in its store, but it is the tenant that decides the group. So a row written under another tenant
//! may have an old copy in another group, and it has to leave it: before an upsert the other groups' owners of that id
//! are asked, and where one has it, it gets a delete with the version of the new row. Both are versioned and idempotent,
//! in either order, so a repeated request repairs a half-done one; until both have landed, a query over all groups sees
//! two copies and keeps the newer.
//!
//! Writes of one id are serialised by striped locks, stamps are drawn under the lock: of two writes of one id the later
//! one has the higher version and sees what the earlier one left behind.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::future::join_all;
use metaroute_core::Outcome;
use metaroute_store::{Schema, Value};
use tokio::sync::MutexGuard;

use super::walk::{Then, Walk};
use super::{Call, HOPS_MAX, Inner, Router, WRITE_STRIPES, now};
use crate::failure::{Code, Failure, PartialWrite};
use crate::hash::mix64;
use crate::protocol::{
    Direction, ReadOp, ShardError, ShardErrorKind, ShardId, WriteAnswer, WriteOp, WriteOutcome, WriteRequest,
};
use crate::query::{Query, QueryRequest};
use crate::replicas::NoReplica;
use crate::scatter::Scatter;
use crate::topology::Topology;
use crate::versions::RowVersion;

/// Ids looked up in the other groups with one request.
const LOOKUP_IDS: usize = 1_000;

/// What a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Rows stored, each id once.
    pub rows: u64,
    /// Old copies removed from other tenants' groups.
    pub left: u64,
}

/// A row on its way in.
struct Incoming {
    id: u64,
    tenant: u64,
    version: metaroute_store::Version,
    values: Vec<Value>,
}

/// Where a change goes: a shard with the epoch of its ownership, or why nowhere.
type Destination = Result<(ShardId, u64), String>;

/// Why a change did not land.
#[derive(Clone, Debug)]
struct Refused {
    code: Code,
    message: String,
}

impl Router {
    /// Stores rows, each one value per column of the schema. Of two rows with one id the last wins.
    ///
    /// # Errors
    /// `read_only` where this process does not own all shards, `bad_request` when a row does not fit; nothing is stored
    /// then. Afterwards with the ids that are stored and those that are not.
    pub async fn write(&self, store: &Arc<Schema>, rows: Vec<Vec<Value>>, call: &Call) -> Result<Written, Failure> {
        let inner = &self.inner;
        inner.tick();
        let stamps = inner.stamps()?;
        let topology = inner.topology()?;
        let mut unique: BTreeMap<u64, (u64, Vec<Value>)> = BTreeMap::new();
        for (number, row) in rows.into_iter().enumerate() {
            let row = store.check_row(row).map_err(|error| {
                Failure::new(Code::BadRequest, format!("row {}: {error}", number + 1)).hint(source_text(&error))
            })?;
            let (Some(&Value::U64(id)), Some(&Value::U64(tenant))) = (row.get(store.id()), row.get(store.tenant()))
            else {
                return Err(Failure::new(Code::Internal, "a checked row has no id or tenant"));
            };
            unique.insert(id, (tenant, row));
        }
        if unique.is_empty() {
            return Ok(Written { rows: 0, left: 0 });
        }
        let _locks = inner.lock(unique.keys().copied()).await;
        let first = draw(stamps, unique.len() as u64).await?;
        let incoming: Vec<Incoming> = unique
            .into_iter()
            .zip(first..)
            .map(|((id, (tenant, values)), stamp)| Incoming {
                id,
                tenant,
                version: RowVersion::of_stamp(stamp).to_version(),
                values,
            })
            .collect();
        let olds = inner.old_copies(store, &topology, &incoming, call).await?;
        let versions: HashMap<u64, metaroute_store::Version> =
            incoming.iter().map(|row| (row.id, row.version)).collect();
        let total = incoming.len() as u64;
        let upserts = incoming
            .into_iter()
            .map(|row| {
                let target = match topology.tenant(row.tenant) {
                    None => Err("its tenant's bucket has no group".to_owned()),
                    Some(place) => inner.owner(&topology, &place, store, row.id),
                };
                (target, WriteOp::Upsert { id: row.id, version: row.version, values: row.values })
            })
            .collect();
        let mut failed = inner.apply(store, upserts, call).await.1;
        // An old copy goes only after its successor is safe.
        let deletes: Vec<(Destination, WriteOp)> = olds
            .into_iter()
            .filter(|(id, _)| !failed.contains_key(id))
            .map(|(id, shard)| {
                let epoch = epoch_at(&topology, store, &shard, id);
                let version = versions.get(&id).copied().unwrap_or_default();
                (Ok((shard, epoch)), WriteOp::Delete { id, version, tenant: None })
            })
            .collect();
        let (left, not_left) = inner.apply(store, deletes, call).await;
        failed.extend(not_left);
        if failed.is_empty() {
            return Ok(Written {
                rows: total,
                left: left.values().filter(|outcome| is_replaced(outcome)).count() as u64,
            });
        }
        let written = versions.keys().copied().filter(|id| !failed.contains_key(id)).collect();
        Err(partial_failure(written, failed))
    }

    /// Deletes a row of a tenant. Returns whether there was one.
    ///
    /// # Errors
    /// As [`Router::write`].
    pub async fn delete(&self, store: &Arc<Schema>, tenant: u64, id: u64, call: &Call) -> Result<bool, Failure> {
        let inner = &self.inner;
        inner.tick();
        let stamps = inner.stamps()?;
        let topology = inner.topology()?;
        let place = topology
            .tenant(tenant)
            .ok_or_else(|| Failure::new(Code::CoverageGap, format!("the bucket of tenant {tenant} has no group")))?;
        let _locks = inner.lock([id]).await;
        let version = RowVersion::of_stamp(draw(stamps, 1).await?).to_version();
        let op = WriteOp::Delete { id, version, tenant: Some(tenant) };
        let (outcomes, failed) = inner.apply(store, vec![(inner.owner(&topology, &place, store, id), op)], call).await;
        if !failed.is_empty() {
            return Err(partial_failure(Vec::new(), failed));
        }
        Ok(outcomes.get(&id).is_some_and(is_replaced))
    }
}

/// Draws stamps on a thread that may wait for a disk.
async fn draw(stamps: super::Stamps, count: u64) -> Result<u64, Failure> {
    let failed = |code, why: String| Failure::new(code, format!("the clock's bound could not be stored: {why}"));
    match tokio::task::spawn_blocking(move || stamps(count)).await {
        // The disk's fault, a full one mostly, and over once that is repaired.
        Ok(drawn) => drawn.map_err(|error| failed(Code::NotReady, error).hint("repeating the request is safe")),
        Err(error) => Err(failed(Code::Internal, error.to_string())),
    }
}

/// The epoch at which a shard came to own an id. A request must not claim to rely on newer entries than that.
fn epoch_at(topology: &Topology, store: &Schema, shard: &ShardId, id: u64) -> u64 {
    let Some((index, group)) = topology.group(&shard.group) else { return 0 };
    let owners = topology.spans_of(index).into_iter().filter_map(|span| {
        let owner = group.owner(topology.slot(index, span, store.name(), id))?;
        (group.shards[owner.index as usize].id == *shard).then_some(owner.epoch)
    });
    owners.max().unwrap_or(0)
}

fn is_replaced(outcome: &WriteOutcome) -> bool {
    matches!(outcome, WriteOutcome::Applied { replaced: true })
}

fn source_text(error: &dyn std::error::Error) -> String {
    error.source().map(ToString::to_string).unwrap_or_default()
}

fn partial_failure(mut written: Vec<u64>, failed: HashMap<u64, Refused>) -> Failure {
    // One code for all: the gravest.
    let rank = |code: Code| match code {
        Code::Internal | Code::CorruptData => 6,
        Code::BadRequest | Code::UnknownStore => 5,
        Code::CoverageGap => 4,
        Code::Incomplete => 3,
        Code::DeadlineExceeded => 2,
        Code::NotReady => 1,
        _ => 0,
    };
    let worst = failed.values().max_by_key(|refused| rank(refused.code));
    let (code, message) = match worst {
        Some(refused) => (refused.code, refused.message.clone()),
        None => (Code::Internal, "a write failed without a reason".to_owned()),
    };
    let mut failure = Failure::new(
        code,
        format!("{} of {} rows are not stored: {message}", failed.len(), failed.len() + written.len()),
    );
    if code.is_retryable() {
        failure = failure.hint("repeating the request is safe");
    }
    written.sort_unstable();
    let mut ids: Vec<u64> = failed.into_keys().collect();
    ids.sort_unstable();
    failure.rows = Some(Box::new(PartialWrite { written, failed: ids }));
    failure
}

impl Inner {
    fn stamps(&self) -> Result<super::Stamps, Failure> {
        self.options.stamps.clone().ok_or_else(|| {
            Failure::new(Code::ReadOnly, "rows are written at their source here")
                .hint("writes over HTTP exist only where one process owns all shards (`metaroute up`)")
        })
    }

    /// The locks of all these ids, taken in one order, so that two batches never wait for each other.
    async fn lock(&self, ids: impl IntoIterator<Item = u64>) -> Vec<MutexGuard<'_, ()>> {
        let mut stripes: Vec<usize> = ids.into_iter().map(|id| (mix64(id) % WRITE_STRIPES as u64) as usize).collect();
        stripes.sort_unstable();
        stripes.dedup();
        let mut locks = Vec::with_capacity(stripes.len());
        for stripe in stripes {
            locks.push(self.stripes[stripe].lock().await);
        }
        locks
    }

    fn owner(&self, topology: &Topology, place: &crate::topology::TenantPlace, store: &Schema, id: u64) -> Destination {
        let slot = topology.slot(place.group, place.span, store.name(), id);
        let group = &topology.groups()[place.group as usize];
        match group.owner(slot) {
            Some(owner) => Ok((group.shards[owner.index as usize].id.clone(), owner.epoch)),
            None => Err(format!("slot {slot} of group `{}` has no owner", group.name)),
        }
    }

    /// Where else these ids are stored: by id the shards of other places than the row's new one.
    async fn old_copies(
        self: &Arc<Inner>,
        store: &Arc<Schema>,
        topology: &Arc<Topology>,
        rows: &[Incoming],
        call: &Call,
    ) -> Result<Vec<(u64, ShardId)>, Failure> {
        let places: usize = (0..topology.groups().len()).map(|group| topology.spans_of(group as u32).len()).sum();
        if places < 2 {
            return Ok(Vec::new());
        }
        let homes: HashMap<u64, Option<ShardId>> = rows
            .iter()
            .map(|row| {
                let place = topology.tenant(row.tenant);
                let home = place.and_then(|place| self.owner(topology, &place, store, row.id).ok());
                (row.id, home.map(|(shard, _)| shard))
            })
            .collect();
        let mut found = Vec::new();
        for chunk in rows.chunks(LOOKUP_IDS) {
            let ids = Some(chunk.iter().map(|row| row.id).collect());
            let id_name = store.columns()[store.id()].name.clone();
            let request =
                QueryRequest { ids, fields: Some(vec![id_name]), allow_global: true, ..QueryRequest::default() };
            let query = Query::new(store, request)?;
            let mut scatter = Scatter::of(topology, &query);
            // A row's own new place answers nothing of interest.
            for target in &mut scatter.targets {
                let elsewhere = |id: &u64| homes.get(id).and_then(Option::as_ref) != Some(&target.shard);
                target.ids = target.ids.as_ref().map(|ids| ids.iter().copied().filter(elsewhere).collect());
            }
            let template = self.template(&query, &scatter, call, self.options.budget);
            let mut walk = Walk::new(
                Arc::clone(self),
                Arc::clone(topology),
                template,
                &query,
                scatter.path,
                call.deadline,
                Then::GoOn,
            );
            walk.open_all(&scatter, |target| {
                let ids = target.ids.clone().filter(|ids| !ids.is_empty())?;
                Some(ReadOp::Get { ids, tenant: None, from: None, to: None, direction: Direction::Ascending })
            })
            .await?;
            let rows = walk.rows_by_shard().await?;
            if let Err(mut failure) = walk.verdict(false) {
                // Storing rows without knowing their old copies would leave those behind.
                failure.message = format!("nothing is stored, because old copies could not be looked up: {failure}");
                let mut failed: Vec<u64> = homes.keys().copied().collect();
                failed.sort_unstable();
                failure.rows = Some(Box::new(PartialWrite { written: Vec::new(), failed }));
                return Err(failure);
            }
            found.extend(rows.into_iter().map(|(shard, row)| (row.id, shard)));
        }
        Ok(found)
    }

    /// Sends changes to their shards, follows slots that have moved, and says what became of each id.
    async fn apply(
        &self,
        store: &Schema,
        ops: Vec<(Destination, WriteOp)>,
        call: &Call,
    ) -> (HashMap<u64, WriteOutcome>, HashMap<u64, Refused>) {
        let columns: Arc<[String]> = store.columns().iter().map(|column| column.name.clone()).collect();
        let mut outcomes = HashMap::new();
        let mut failed = HashMap::new();
        let mut round: BTreeMap<ShardId, (u64, Vec<WriteOp>)> = BTreeMap::new();
        let assign = |round: &mut BTreeMap<ShardId, (u64, Vec<WriteOp>)>, target: Destination, op: WriteOp| match target
        {
            Ok((shard, epoch)) => {
                let entry = round.entry(shard).or_default();
                entry.0 = entry.0.max(epoch);
                entry.1.push(op);
                None
            }
            Err(message) => Some((op.id(), Refused { code: Code::CoverageGap, message })),
        };
        for (target, op) in ops {
            failed.extend(assign(&mut round, target, op));
        }
        for hop in 0..=HOPS_MAX {
            let requests = std::mem::take(&mut round).into_iter().map(|(shard, (epoch, ops))| {
                let request = WriteRequest {
                    request_id: Arc::clone(&call.request_id),
                    store: store.name().into(),
                    epoch,
                    columns: Arc::clone(&columns),
                    shard,
                    ops,
                };
                self.send(request, call)
            });
            for (request, answer) in join_all(requests).await {
                let refuse = |code, message: String| {
                    let refused = Refused { code, message };
                    request.ops.iter().map(move |op| (op.id(), refused.clone())).collect::<Vec<_>>()
                };
                match answer {
                    Ok(WriteAnswer::Applied(of)) if of.len() == request.ops.len() => {
                        outcomes.extend(request.ops.iter().map(WriteOp::id).zip(of));
                    }
                    Ok(WriteAnswer::Applied(_)) => {
                        failed.extend(refuse(Code::Internal, format!("{} answered for other rows", request.shard)));
                    }
                    Ok(WriteAnswer::NotReady(state)) => {
                        failed.extend(refuse(Code::NotReady, format!("{} is {state}", request.shard)));
                    }
                    Ok(WriteAnswer::Moved(_)) if hop == HOPS_MAX => {
                        let message = format!("{} still on the move after {HOPS_MAX} hops", request.shard);
                        failed.extend(refuse(Code::CoverageGap, message));
                    }
                    Ok(WriteAnswer::Moved(moved)) => {
                        let mut topology = None;
                        for one in &moved {
                            topology = self.learn(&request.shard.group, one, call.deadline).await.or(topology);
                        }
                        for op in request.ops {
                            let target = topology.as_deref().and_then(|topology| {
                                let (index, group) = topology.group(&request.shard.group)?;
                                // The slot that led here leads on, whatever span it came from.
                                let slots = topology
                                    .spans_of(index)
                                    .into_iter()
                                    .map(|span| topology.slot(index, span, store.name(), op.id()));
                                let mut slots = slots.collect::<Vec<_>>();
                                slots.sort_by_key(|slot| !moved.iter().any(|one| one.slots.contains(*slot)));
                                let owner = group.owner(*slots.first()?)?;
                                Some((group.shards[owner.index as usize].id.clone(), owner.epoch))
                            });
                            let target = target.ok_or_else(|| format!("{} names an unknown owner", request.shard));
                            failed.extend(assign(&mut round, target, op));
                        }
                    }
                    Err((code, message)) => failed.extend(refuse(code, format!("{}: {message}", request.shard))),
                }
            }
            if round.is_empty() {
                break;
            }
        }
        (outcomes, failed)
    }

    /// Sends one request. It is never sent twice: a second copy would have to be another writer.
    async fn send(&self, request: WriteRequest, call: &Call) -> (WriteRequest, Result<WriteAnswer, (Code, String)>) {
        let pick = match self.replicas.pick(&request.shard, &[]) {
            Ok(pick) => pick,
            Err(NoReplica::NotReady(state)) => {
                return (request, Err((Code::NotReady, format!("no copy is ready, one is {state}"))));
            }
            Err(NoReplica::Unknown(why)) => return (request, Err((Code::Incomplete, why))),
            Err(NoReplica::Exhausted) => return (request, Err((Code::Incomplete, "no copy is left".to_owned()))),
        };
        let started = now();
        let answer = self.client.write(pick.instance(), request.clone(), call.deadline);
        let answer = match tokio::time::timeout_at(call.deadline.into(), answer).await {
            Ok(answer) => answer,
            Err(_) => Err(ShardError::new(ShardErrorKind::DeadlineExceeded, "no acknowledgement in time")),
        };
        let outcome = match &answer {
            Err(error) if error.kind.is_worth_another_copy() => Outcome::Failure,
            _ => Outcome::Success,
        };
        pick.complete(outcome, started.elapsed());
        let answer = answer.map_err(|error| {
            let code = match error.kind {
                ShardErrorKind::Overloaded => Code::Overloaded,
                ShardErrorKind::DeadlineExceeded => Code::DeadlineExceeded,
                ShardErrorKind::BadRequest => Code::BadRequest,
                ShardErrorKind::UnknownStore => Code::UnknownStore,
                // Not this way of writing is refused, its store cannot write just now: its disk is full.
                ShardErrorKind::ReadOnly => Code::NotReady,
                ShardErrorKind::CorruptData => Code::CorruptData,
                ShardErrorKind::Internal => Code::Internal,
                ShardErrorKind::Unavailable | ShardErrorKind::Cancelled => Code::Incomplete,
            };
            (code, error.message)
        });
        (request, answer)
    }
}
