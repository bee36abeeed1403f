//! Applying changes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use metaroute_cluster::SlotSet;
use metaroute_cluster::placement::Span;
use metaroute_cluster::protocol::{
    ShardError, ShardErrorKind, ShardState, WriteAnswer, WriteOp, WriteOutcome, WriteRequest,
};
use metaroute_cluster::topology::Topology;
use metaroute_store::{Batch, Outcome, Store, Table, Value};

use super::{InFlight, Inner, SLOTS_ATTRIBUTE, shard_error};

pub(super) async fn write(
    inner: Arc<Inner>,
    request: WriteRequest,
    deadline: Instant,
) -> Result<WriteAnswer, ShardError> {
    let _in_flight = InFlight::enter(&inner);
    inner.answered.writes.fetch_add(1, Ordering::Relaxed);
    inner.wrong_shard(&request.shard)?;
    let state = inner.condition.borrow().state;
    if !state.is_ready() {
        inner.answered.not_ready.fetch_add(1, Ordering::Relaxed);
        return Ok(WriteAnswer::NotReady(state));
    }
    let store = inner.store()?;
    let table = store.table(&request.store).map_err(|error| shard_error(&error))?;
    let columns = ordinals(&table, &request.columns)?;
    let Some(topology) = inner.topology.topology() else { return Ok(WriteAnswer::NotReady(ShardState::Ready)) };
    let slots = slots_of(&inner, &topology, &table, &columns, &request);
    let Some((now, split)) = inner.ownership(&slots, request.epoch, deadline).await else {
        inner.answered.not_ready.fetch_add(1, Ordering::Relaxed);
        return Ok(WriteAnswer::NotReady(ShardState::Ready));
    };
    // The slots were computed with what was known before a possible wait.
    let split = if Arc::ptr_eq(&now, &topology) {
        split
    } else {
        let slots = slots_of(&inner, &now, &table, &columns, &request);
        match inner.ownership(&slots, request.epoch, deadline).await {
            Some((_, split)) => split,
            None => return Ok(WriteAnswer::NotReady(ShardState::Ready)),
        }
    };
    if !split.moved.is_empty() {
        inner.answered.moved.fetch_add(1, Ordering::Relaxed);
        return Ok(WriteAnswer::Moved(split.moved));
    }
    if !split.nobody.is_empty() {
        return Ok(WriteAnswer::NotReady(ShardState::Ready));
    }
    let width = table.schema().columns().len();
    let mut batch = Batch::new();
    for op in request.ops {
        match op {
            WriteOp::Upsert { id, version, values } => {
                if values.len() != columns.len() {
                    let message = format!("row {id} has {} values for {} columns", values.len(), columns.len());
                    return Err(ShardError::new(ShardErrorKind::BadRequest, message));
                }
                let mut row = vec![Value::Null; width];
                for (value, &at) in values.into_iter().zip(&columns) {
                    row[at] = value;
                }
                batch.upsert(&table, version, row).map_err(|error| shard_error(&error))?;
            }
            WriteOp::Delete { id, version, tenant } => batch.delete(&table, version, id, tenant),
        }
    }
    remember_slots(&inner, &store, &split.owned).await?;
    let applied = tokio::time::timeout_at(deadline.into(), store.apply(batch)).await;
    let applied = applied
        .map_err(|_| ShardError::new(ShardErrorKind::DeadlineExceeded, "the write was not acknowledged in time"))?
        .map_err(|error| shard_error(&error))?;
    Ok(WriteAnswer::Applied(applied.outcomes.iter().map(outcome).collect()))
}

fn outcome(outcome: &Outcome) -> WriteOutcome {
    match *outcome {
        Outcome::Applied { replaced } => WriteOutcome::Applied { replaced },
        Outcome::OtherTenant => WriteOutcome::OtherTenant,
        _ => WriteOutcome::Stale,
    }
}

fn ordinals(table: &Table, names: &[String]) -> Result<Vec<usize>, ShardError> {
    let unknown = |name: &String| {
        ShardError::new(ShardErrorKind::BadRequest, format!("store `{}` has no column `{name}`", table.name()))
    };
    names.iter().map(|name| table.schema().ordinal(name).ok_or_else(|| unknown(name))).collect()
}

/// The slots a request changes. The span is the tenant's where the row says whose it is.
fn slots_of(inner: &Inner, topology: &Topology, table: &Table, columns: &[usize], request: &WriteRequest) -> SlotSet {
    let Some((index, group)) = topology.group(&inner.id.group) else { return SlotSet::new() };
    let tenant_at = columns.iter().position(|&at| at == table.schema().tenant());
    let whole = Span::whole(group.base_shards);
    let mut slots = SlotSet::new();
    for op in &request.ops {
        let tenant = match op {
            WriteOp::Upsert { values, .. } => match tenant_at.and_then(|at| values.get(at)) {
                Some(Value::U64(tenant)) => Some(*tenant),
                _ => None,
            },
            WriteOp::Delete { tenant, .. } => *tenant,
        };
        let place = tenant.and_then(|tenant| topology.tenant(tenant)).filter(|place| place.group == index);
        let span = place.map_or(whole, |place| place.span);
        slots.insert(topology.slot(index, span, &request.store, op.id()));
    }
    slots
}

/// Records slots that may have rows before the first row comes. One at a time, so that no record replaces a larger one.
async fn remember_slots(inner: &Inner, store: &Store, slots: &SlotSet) -> Result<(), ShardError> {
    if slots.difference(&inner.ever_owned.load()).is_empty() {
        return Ok(());
    }
    let _one_at_a_time = inner.remembering.lock().await;
    let mut all = SlotSet::clone(&inner.ever_owned.load());
    if slots.difference(&all).is_empty() {
        return Ok(());
    }
    // All owned slots at once, so that this happens once per topology and not once per slot.
    all.extend_from(slots);
    all.extend_from(&inner.owned());
    let mut batch = Batch::new();
    batch.set_attribute(SLOTS_ATTRIBUTE, Some(all.to_bytes())).map_err(|error| shard_error(&error))?;
    store.apply(batch).await.map_err(|error| shard_error(&error))?;
    inner.ever_owned.store(Arc::new(all));
    Ok(())
}
