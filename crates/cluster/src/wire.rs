//! The protocol as protobuf messages.
//!
//! Conversions are by hand, so that the types the rest of the crate uses stay free to change and nothing that arrives
//! over the network is believed: sizes, slot numbers, enumerations and lengths are checked here, and a message that does
//! not pass is an error, never a guess.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use metaroute_store::{TimeKey, Value, Version};

use crate::protocol::{
    Aggregate, Batch, Direction, Head, Moved, NotReady, Position, ReadEvent, ReadOp, ReadRequest, Row, ShardId,
    ShardState, Sum, Trailer, WorkBudget, WriteAnswer, WriteOp, WriteOutcome, WriteRequest,
};
use crate::slots::SlotSet;

/// The generated messages.
#[allow(missing_docs, clippy::pedantic, reason = "generated; the .proto file has the comments")]
pub mod proto {
    tonic::include_proto!("metaroute.shard.v1");
}

/// Largest message either side accepts: a batch of rows, or a batch of changes.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// About how many bytes of rows a shard puts into one message.
pub const BATCH_BYTES: usize = 64 << 10;

/// A message that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad message: {0}")]
pub struct BadMessage(pub &'static str);

type Result<T> = std::result::Result<T, BadMessage>;

fn slots_of(bytes: &[u8]) -> Result<SlotSet> {
    SlotSet::from_bytes(bytes).ok_or(BadMessage("a slot is out of range"))
}

fn direction_of(direction: i32) -> Result<Direction> {
    match proto::Direction::try_from(direction) {
        Ok(proto::Direction::Ascending) => Ok(Direction::Ascending),
        Ok(proto::Direction::Descending) => Ok(Direction::Descending),
        _ => Err(BadMessage("unknown direction")),
    }
}

fn direction_to(direction: Direction) -> i32 {
    match direction {
        Direction::Ascending => proto::Direction::Ascending as i32,
        Direction::Descending => proto::Direction::Descending as i32,
    }
}

fn state_of(state: i32) -> Result<ShardState> {
    Ok(match proto::ShardState::try_from(state) {
        Ok(proto::ShardState::Loading) => ShardState::Loading,
        Ok(proto::ShardState::CatchingUp) => ShardState::CatchingUp,
        Ok(proto::ShardState::Ready) => ShardState::Ready,
        Ok(proto::ShardState::Draining) => ShardState::Draining,
        Ok(proto::ShardState::Failed) => ShardState::Failed,
        _ => return Err(BadMessage("unknown shard state")),
    })
}

fn state_to(state: ShardState) -> i32 {
    let state = match state {
        ShardState::Loading => proto::ShardState::Loading,
        ShardState::CatchingUp => proto::ShardState::CatchingUp,
        ShardState::Ready => proto::ShardState::Ready,
        ShardState::Draining => proto::ShardState::Draining,
        ShardState::Failed => proto::ShardState::Failed,
    };
    state as i32
}

fn position_of(position: &proto::Position) -> Position {
    Position { time: position.time.map(TimeKey), id: position.id }
}

fn position_to(position: Position) -> proto::Position {
    proto::Position { time: position.time.map(|time| time.0), id: position.id }
}

fn bounds_of(bounds: Option<&proto::TimeBounds>) -> (Option<TimeKey>, Option<TimeKey>) {
    let bound = |read: fn(&proto::TimeBounds) -> Option<u64>| bounds.and_then(read).map(TimeKey);
    (bound(|bounds| bounds.from), bound(|bounds| bounds.to))
}

fn bounds_to(from: Option<TimeKey>, to: Option<TimeKey>) -> Option<proto::TimeBounds> {
    let bounds = proto::TimeBounds { from: from.map(|time| time.0), to: to.map(|time| time.0) };
    (from.is_some() || to.is_some()).then_some(bounds)
}

fn version_of(bytes: &[u8]) -> Result<Version> {
    Version::new(bytes).ok_or(BadMessage("a version is longer than 32 bytes"))
}

fn value_of(value: proto::Value) -> Result<Value> {
    use proto::value::Kind;
    Ok(match value.kind {
        None if value.null => Value::Null,
        None => return Err(BadMessage("unknown kind of value")),
        Some(Kind::U64(v)) => Value::U64(v),
        Some(Kind::I64(v)) => Value::I64(v),
        Some(Kind::F64(v)) => Value::F64(v),
        Some(Kind::Bool(v)) => Value::Bool(v),
        Some(Kind::Decimal(v)) => Value::Decimal(v),
        Some(Kind::String(v)) => Value::String(v),
        Some(Kind::Bytes(v)) => Value::Bytes(v),
        Some(Kind::Json(v)) => Value::Json(v),
        Some(Kind::Timestamp(v)) => Value::Timestamp(v),
        Some(Kind::Datetime(v)) => Value::Datetime(v),
        Some(Kind::Date(v)) => Value::Date(v),
    })
}

fn value_to(value: Value) -> proto::Value {
    use proto::value::Kind;
    let kind = match value {
        Value::U64(v) => Kind::U64(v),
        Value::I64(v) => Kind::I64(v),
        Value::F64(v) => Kind::F64(v),
        Value::Bool(v) => Kind::Bool(v),
        Value::Decimal(v) => Kind::Decimal(v),
        Value::String(v) => Kind::String(v),
        Value::Bytes(v) => Kind::Bytes(v),
        Value::Json(v) => Kind::Json(v),
        Value::Timestamp(v) => Kind::Timestamp(v),
        Value::Datetime(v) => Kind::Datetime(v),
        Value::Date(v) => Kind::Date(v),
        // NULL, and kinds that a later store may have and this protocol has not.
        _ => return proto::Value { kind: None, null: true },
    };
    proto::Value { kind: Some(kind), null: false }
}

fn micros(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX)
}

/// A read as a message, with the time left for it.
pub fn read_request_to(request: &ReadRequest, timeout: Duration) -> proto::ReadRequest {
    use proto::read_request::Op;
    let op = match &request.op {
        ReadOp::Get { ids, tenant, from, to, direction } => Op::Get(proto::Get {
            ids: ids.to_vec(),
            tenant: *tenant,
            bounds: bounds_to(*from, *to),
            direction: direction_to(*direction),
        }),
        ReadOp::List { tenant, from, to, after, direction, limit } => Op::List(proto::List {
            tenant: *tenant,
            bounds: bounds_to(*from, *to),
            after: after.map(position_to),
            direction: direction_to(*direction),
            limit: *limit,
        }),
        ReadOp::Scan { from, to, after, direction, limit } => Op::Scan(proto::Scan {
            bounds: bounds_to(*from, *to),
            after: *after,
            direction: direction_to(*direction),
            limit: *limit,
        }),
        ReadOp::Aggregate { tenant, from, to, sums, after } => Op::Aggregate(proto::AggregateOp {
            tenant: *tenant,
            bounds: bounds_to(*from, *to),
            sums: sums.to_vec(),
            after: after.map(position_to),
        }),
    };
    proto::ReadRequest {
        request_id: request.request_id.to_string(),
        store: request.store.to_string(),
        group: request.shard.group.to_string(),
        shard: request.shard.shard.to_string(),
        slots: request.slots.to_bytes(),
        epoch: request.epoch,
        filter: request.filter.as_ref().map(ToString::to_string),
        fields: request.fields.to_vec(),
        budget_entries: request.budget.entries,
        budget_bytes: request.budget.bytes,
        timeout_us: micros(timeout),
        batch: request.batch.map(NonZeroU32::get),
        op: Some(op),
    }
}

/// A read from a message, and the time left for it.
///
/// # Errors
/// When the message is not a valid read.
pub fn read_request_of(message: proto::ReadRequest) -> Result<(ReadRequest, Duration)> {
    use proto::read_request::Op;
    let limited = |limit: u32| if limit == 0 { Err(BadMessage("limit 0")) } else { Ok(limit) };
    let op = match message.op.ok_or(BadMessage("unknown operation"))? {
        Op::Get(get) => {
            if !get.ids.is_sorted_by(|a, b| a < b) {
                return Err(BadMessage("ids are not ascending and unique"));
            }
            let (from, to) = bounds_of(get.bounds.as_ref());
            ReadOp::Get { ids: get.ids.into(), tenant: get.tenant, from, to, direction: direction_of(get.direction)? }
        }
        Op::List(list) => {
            let (from, to) = bounds_of(list.bounds.as_ref());
            ReadOp::List {
                tenant: list.tenant,
                from,
                to,
                after: list.after.as_ref().map(position_of),
                direction: direction_of(list.direction)?,
                limit: limited(list.limit)?,
            }
        }
        Op::Scan(scan) => {
            let (from, to) = bounds_of(scan.bounds.as_ref());
            ReadOp::Scan {
                from,
                to,
                after: scan.after,
                direction: direction_of(scan.direction)?,
                limit: limited(scan.limit)?,
            }
        }
        Op::Aggregate(aggregate) => {
            let (from, to) = bounds_of(aggregate.bounds.as_ref());
            ReadOp::Aggregate {
                tenant: aggregate.tenant,
                from,
                to,
                sums: aggregate.sums.into(),
                after: aggregate.after.as_ref().map(position_of),
            }
        }
    };
    let slots = slots_of(&message.slots)?;
    if slots.is_empty() {
        return Err(BadMessage("no slots"));
    }
    let request = ReadRequest {
        request_id: message.request_id.into(),
        store: message.store.into(),
        shard: ShardId::new(message.group, message.shard),
        slots,
        epoch: message.epoch,
        filter: message.filter.map(Arc::from),
        fields: message.fields.into(),
        op,
        budget: WorkBudget { entries: message.budget_entries, bytes: message.budget_bytes },
        batch: message.batch.map(|rows| NonZeroU32::new(rows).ok_or(BadMessage("batch 0"))).transpose()?,
    };
    Ok((request, Duration::from_micros(message.timeout_us)))
}

fn moved_to(moved: Vec<Moved>) -> Vec<proto::Moved> {
    let one =
        |moved: Moved| proto::Moved { slots: moved.slots.to_bytes(), to: moved.to.to_string(), epoch: moved.epoch };
    moved.into_iter().map(one).collect()
}

fn moved_of(moved: Vec<proto::Moved>) -> Result<Vec<Moved>> {
    let one =
        |moved: proto::Moved| Ok(Moved { slots: slots_of(&moved.slots)?, to: moved.to.into(), epoch: moved.epoch });
    moved.into_iter().map(one).collect()
}

fn row_to(row: Row) -> proto::Row {
    proto::Row {
        id: row.id,
        tenant: row.tenant,
        time: row.time.map(|time| time.0),
        version: row.version.as_bytes().to_vec(),
        values: row.values.into_iter().map(value_to).collect(),
    }
}

fn row_of(row: proto::Row) -> Result<Row> {
    Ok(Row {
        id: row.id,
        tenant: row.tenant,
        time: row.time.map(TimeKey),
        version: version_of(&row.version)?,
        values: row.values.into_iter().map(value_of).collect::<Result<_>>()?,
    })
}

fn sum_to(sum: Option<Sum>) -> proto::Sum {
    use proto::sum::Kind;
    let kind = sum.map(|sum| match sum {
        Sum::Integer(sum) => Kind::Integer(sum.to_be_bytes().to_vec()),
        Sum::Decimal { unscaled, scale } => {
            Kind::Decimal(proto::DecimalSum { unscaled: unscaled.to_be_bytes().to_vec(), scale: u32::from(scale) })
        }
        Sum::Float(sum) => Kind::Float(sum),
    });
    proto::Sum { kind }
}

fn sum_of(sum: proto::Sum) -> Result<Option<Sum>> {
    use proto::sum::Kind;
    let integer =
        |bytes: &[u8]| bytes.try_into().map(i128::from_be_bytes).map_err(|_| BadMessage("a sum is not 16 bytes long"));
    Ok(match sum.kind {
        None => None,
        Some(Kind::Integer(bytes)) => Some(Sum::Integer(integer(&bytes)?)),
        Some(Kind::Decimal(decimal)) => {
            let scale = u8::try_from(decimal.scale).map_err(|_| BadMessage("a scale is out of range"))?;
            Some(Sum::Decimal { unscaled: integer(&decimal.unscaled)?, scale })
        }
        Some(Kind::Float(sum)) => Some(Sum::Float(sum)),
    })
}

/// A piece of an answer as a message.
pub fn event_to(event: ReadEvent) -> proto::ReadEvent {
    use proto::read_event::Event;
    let event = match event {
        ReadEvent::Head(head) => Event::Head(proto::Head {
            answered: head.answered.to_bytes(),
            moved: moved_to(head.moved),
            not_ready: head
                .not_ready
                .into_iter()
                .map(|not_ready| proto::NotReady {
                    slots: not_ready.slots.to_bytes(),
                    state: state_to(not_ready.state),
                    loaded_permille: not_ready.loaded_permille.map(u32::from),
                })
                .collect(),
        }),
        ReadEvent::Rows(Batch { rows, examined, row_reads }) => {
            Event::Rows(proto::Rows { rows: rows.into_iter().map(row_to).collect(), examined, row_reads })
        }
        ReadEvent::Trailer(trailer) => Event::Trailer(proto::Trailer {
            answered: trailer.answered.to_bytes(),
            next: trailer.next.map(position_to),
            aggregate: trailer.aggregate.map(|aggregate| proto::Aggregate {
                rows: aggregate.rows,
                sums: aggregate.sums.into_iter().map(sum_to).collect(),
            }),
            examined: trailer.examined,
            row_reads: trailer.row_reads,
            watermark: trailer
                .watermark
                .into_iter()
                .map(|(lane, position)| proto::LanePosition { lane, position })
                .collect(),
            lag_ms: trailer.lag_ms,
        }),
    };
    proto::ReadEvent { event: Some(event) }
}

/// A piece of an answer from a message.
///
/// # Errors
/// When the message is not a valid piece.
pub fn event_of(message: proto::ReadEvent) -> Result<ReadEvent> {
    use proto::read_event::Event;
    Ok(match message.event.ok_or(BadMessage("unknown event"))? {
        Event::Head(head) => ReadEvent::Head(Head {
            answered: slots_of(&head.answered)?,
            moved: moved_of(head.moved)?,
            not_ready: head
                .not_ready
                .into_iter()
                .map(|not_ready| {
                    let permille = not_ready.loaded_permille.map(|permille| u16::try_from(permille.min(1_000)));
                    Ok(NotReady {
                        slots: slots_of(&not_ready.slots)?,
                        state: state_of(not_ready.state)?,
                        loaded_permille: permille.and_then(std::result::Result::ok),
                    })
                })
                .collect::<Result<_>>()?,
        }),
        Event::Rows(batch) => ReadEvent::Rows(Batch {
            rows: batch.rows.into_iter().map(row_of).collect::<Result<_>>()?,
            examined: batch.examined,
            row_reads: batch.row_reads,
        }),
        Event::Trailer(trailer) => ReadEvent::Trailer(Trailer {
            answered: slots_of(&trailer.answered)?,
            next: trailer.next.as_ref().map(position_of),
            aggregate: trailer
                .aggregate
                .map(|aggregate| {
                    let sums = aggregate.sums.into_iter().map(sum_of).collect::<Result<_>>()?;
                    Ok(Aggregate { rows: aggregate.rows, sums })
                })
                .transpose()?,
            examined: trailer.examined,
            row_reads: trailer.row_reads,
            watermark: trailer.watermark.into_iter().map(|lane| (lane.lane, lane.position)).collect(),
            lag_ms: trailer.lag_ms,
        }),
    })
}

/// Changes as a message, with the time left for them.
pub fn write_request_to(request: WriteRequest, timeout: Duration) -> proto::WriteRequest {
    use proto::write_op::Op;
    let op = |op| {
        let op = match op {
            WriteOp::Upsert { id, version, values } => Op::Upsert(proto::Upsert {
                id,
                version: version.as_bytes().to_vec(),
                values: values.into_iter().map(value_to).collect(),
            }),
            WriteOp::Delete { id, version, tenant } => {
                Op::Delete(proto::Delete { id, version: version.as_bytes().to_vec(), tenant })
            }
        };
        proto::WriteOp { op: Some(op) }
    };
    proto::WriteRequest {
        request_id: request.request_id.to_string(),
        store: request.store.to_string(),
        group: request.shard.group.to_string(),
        shard: request.shard.shard.to_string(),
        epoch: request.epoch,
        columns: request.columns.to_vec(),
        ops: request.ops.into_iter().map(op).collect(),
        timeout_us: micros(timeout),
    }
}

/// Changes from a message, and the time left for them.
///
/// # Errors
/// When the message is not valid.
pub fn write_request_of(message: proto::WriteRequest) -> Result<(WriteRequest, Duration)> {
    use proto::write_op::Op;
    let width = message.columns.len();
    let op = |op: proto::WriteOp| {
        Ok(match op.op.ok_or(BadMessage("unknown change"))? {
            Op::Upsert(upsert) if upsert.values.len() != width => return Err(BadMessage("a row has another width")),
            Op::Upsert(upsert) => WriteOp::Upsert {
                id: upsert.id,
                version: version_of(&upsert.version)?,
                values: upsert.values.into_iter().map(value_of).collect::<Result<_>>()?,
            },
            Op::Delete(delete) => {
                WriteOp::Delete { id: delete.id, version: version_of(&delete.version)?, tenant: delete.tenant }
            }
        })
    };
    let request = WriteRequest {
        request_id: message.request_id.into(),
        store: message.store.into(),
        shard: ShardId::new(message.group, message.shard),
        epoch: message.epoch,
        columns: message.columns.into(),
        ops: message.ops.into_iter().map(op).collect::<Result<_>>()?,
    };
    Ok((request, Duration::from_micros(message.timeout_us)))
}

/// An answer to changes as a message.
pub fn write_answer_to(answer: WriteAnswer) -> proto::WriteAnswer {
    use proto::write_answer::Answer;
    let outcome = |outcome| {
        let outcome = match outcome {
            WriteOutcome::Applied { replaced: false } => proto::WriteOutcome::Inserted,
            WriteOutcome::Applied { replaced: true } => proto::WriteOutcome::Replaced,
            WriteOutcome::Stale => proto::WriteOutcome::Stale,
            WriteOutcome::OtherTenant => proto::WriteOutcome::OtherTenant,
        };
        outcome as i32
    };
    let answer = match answer {
        WriteAnswer::Applied(outcomes) => {
            Answer::Applied(proto::Applied { outcomes: outcomes.into_iter().map(outcome).collect() })
        }
        WriteAnswer::Moved(moved) => Answer::Moved(proto::MovedAnswer { moved: moved_to(moved) }),
        WriteAnswer::NotReady(state) => Answer::NotReady(state_to(state)),
    };
    proto::WriteAnswer { answer: Some(answer) }
}

/// An answer to changes from a message.
///
/// # Errors
/// When the message is not valid.
pub fn write_answer_of(message: proto::WriteAnswer) -> Result<WriteAnswer> {
    use proto::write_answer::Answer;
    let outcome = |outcome: i32| {
        Ok(match proto::WriteOutcome::try_from(outcome) {
            Ok(proto::WriteOutcome::Inserted) => WriteOutcome::Applied { replaced: false },
            Ok(proto::WriteOutcome::Replaced) => WriteOutcome::Applied { replaced: true },
            Ok(proto::WriteOutcome::Stale) => WriteOutcome::Stale,
            Ok(proto::WriteOutcome::OtherTenant) => WriteOutcome::OtherTenant,
            _ => return Err(BadMessage("unknown outcome of a change")),
        })
    };
    Ok(match message.answer.ok_or(BadMessage("unknown answer"))? {
        Answer::Applied(applied) => {
            WriteAnswer::Applied(applied.outcomes.into_iter().map(outcome).collect::<Result<_>>()?)
        }
        Answer::Moved(moved) => WriteAnswer::Moved(moved_of(moved.moved)?),
        Answer::NotReady(state) => WriteAnswer::NotReady(state_of(state)?),
    })
}

#[cfg(test)]
mod tests;
