use proptest::prelude::*;
use prost::Message;

use super::*;

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        (-1e300..1e300f64).prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        "-?[0-9]{1,20}\\.[0-9]{2}".prop_map(Value::Decimal),
        ".{0,20}".prop_map(Value::String),
        any::<Vec<u8>>().prop_map(Value::Bytes),
        Just(Value::Json("{\"a\": 1}".into())),
        any::<i64>().prop_map(Value::Timestamp),
        any::<i64>().prop_map(Value::Datetime),
        any::<i32>().prop_map(Value::Date),
    ]
}

fn slots() -> impl Strategy<Value = SlotSet> {
    prop::collection::vec(0u32..5000, 0..40).prop_map(|slots| slots.into_iter().collect())
}

fn position() -> impl Strategy<Value = Position> {
    (any::<Option<u64>>(), any::<u64>()).prop_map(|(time, id)| Position { time: time.map(TimeKey), id })
}

fn bounds() -> impl Strategy<Value = (Option<TimeKey>, Option<TimeKey>)> {
    any::<(Option<u64>, Option<u64>)>().prop_map(|(from, to)| (from.map(TimeKey), to.map(TimeKey)))
}

fn direction() -> impl Strategy<Value = Direction> {
    any::<bool>().prop_map(|up| if up { Direction::Ascending } else { Direction::Descending })
}

fn op() -> impl Strategy<Value = ReadOp> {
    let names = || prop::collection::vec("[a-z]{1,8}", 0..4);
    prop_oneof![
        (prop::collection::btree_set(any::<u64>(), 0..20), any::<Option<u64>>(), bounds(), direction()).prop_map(
            |(ids, tenant, (from, to), direction)| ReadOp::Get {
                ids: ids.into_iter().collect::<Vec<_>>().into(),
                tenant,
                from,
                to,
                direction
            }
        ),
        (any::<u64>(), bounds(), prop::option::of(position()), direction(), 1u32..2000).prop_map(
            |(tenant, (from, to), after, direction, limit)| ReadOp::List { tenant, from, to, after, direction, limit }
        ),
        (bounds(), any::<Option<u64>>(), direction(), 1u32..2000)
            .prop_map(|((from, to), after, direction, limit)| ReadOp::Scan { from, to, after, direction, limit }),
        (any::<Option<u64>>(), bounds(), names(), prop::option::of(position())).prop_map(
            |(tenant, (from, to), sums, after)| ReadOp::Aggregate { tenant, from, to, sums: sums.into(), after }
        ),
    ]
}

fn version() -> impl Strategy<Value = Version> {
    prop::collection::vec(any::<u8>(), 0..=32).prop_map(|bytes| Version::new(&bytes).expect("short"))
}

fn moved() -> impl Strategy<Value = Vec<Moved>> {
    let one = (slots(), "[a-z0-9]{1,9}", any::<u64>());
    prop::collection::vec(one.prop_map(|(slots, to, epoch)| Moved { slots, to: to.into(), epoch }), 0..3)
}

fn state() -> impl Strategy<Value = ShardState> {
    (0..5usize).prop_map(|at| ShardState::ALL[at])
}

fn sum() -> impl Strategy<Value = Option<Sum>> {
    prop_oneof![
        Just(None),
        any::<i128>().prop_map(|sum| Some(Sum::Integer(sum))),
        (any::<i128>(), any::<u8>()).prop_map(|(unscaled, scale)| Some(Sum::Decimal { unscaled, scale })),
        (-1e300..1e300f64).prop_map(|sum| Some(Sum::Float(sum))),
    ]
}

fn event() -> impl Strategy<Value = ReadEvent> {
    let row = (any::<(u64, u64, Option<u64>)>(), version(), prop::collection::vec(value(), 0..6))
        .prop_map(|((id, tenant, time), version, values)| Row { id, tenant, time: time.map(TimeKey), version, values });
    let not_ready = (slots(), state(), prop::option::of(0u16..=1000))
        .prop_map(|(slots, state, loaded_permille)| NotReady { slots, state, loaded_permille });
    let aggregate =
        (any::<u64>(), prop::collection::vec(sum(), 0..3)).prop_map(|(rows, sums)| Aggregate { rows, sums });
    prop_oneof![
        (slots(), moved(), prop::collection::vec(not_ready, 0..2))
            .prop_map(|(answered, moved, not_ready)| ReadEvent::Head(Head { answered, moved, not_ready })),
        (prop::collection::vec(row, 0..5), any::<(u64, u64)>())
            .prop_map(|(rows, (examined, row_reads))| ReadEvent::Rows(Batch { rows, examined, row_reads })),
        (slots(), prop::option::of(position()), prop::option::of(aggregate), any::<(u64, u64, Option<u64>)>())
            .prop_map(|(answered, next, aggregate, (examined, row_reads, lag_ms))| ReadEvent::Trailer(Trailer {
                answered,
                next,
                aggregate,
                examined,
                row_reads,
                watermark: vec![("lane".into(), "7".into())],
                lag_ms,
            })),
    ]
}

proptest! {
    #[test]
    fn reads_survive_the_wire(
        op in op(), slots in slots(), epoch: u64, filter in prop::option::of(".{0,30}"), entries: u64, bytes: u64, us: u64,
        batch: Option<u32>,
    ) {
        let request = ReadRequest {
            request_id: "r-1".into(),
            store: "file_metadata".into(),
            shard: ShardId::new("g0", "s1"),
            slots,
            epoch,
            filter: filter.map(Arc::from),
            fields: vec!["path".to_owned()].into(),
            op,
            budget: WorkBudget { entries, bytes },
            batch: batch.and_then(NonZeroU32::new),
        };
        let encoded = read_request_to(&request, Duration::from_micros(us)).encode_to_vec();
        let decoded = read_request_of(proto::ReadRequest::decode(&encoded[..]).expect("own bytes"));
        if request.slots.is_empty() {
            prop_assert_eq!(decoded, Err(BadMessage("no slots")));
        } else {
            prop_assert_eq!(decoded, Ok((request, Duration::from_micros(us))));
        }
    }

    #[test]
    fn answers_survive_the_wire(event in event()) {
        let encoded = event_to(event.clone()).encode_to_vec();
        let decoded = event_of(proto::ReadEvent::decode(&encoded[..]).expect("own bytes"));
        prop_assert_eq!(decoded, Ok(event));
    }

    #[test]
    fn writes_survive_the_wire(
        upserts in prop::collection::vec((any::<u64>(), version(), [value(), value()]), 0..4),
        deletes in prop::collection::vec((any::<u64>(), version(), any::<Option<u64>>()), 0..4),
        epoch: u64,
    ) {
        let upsert = |(id, version, values): (u64, Version, [Value; 2])| WriteOp::Upsert { id, version, values: values.into() };
        let delete = |(id, version, tenant)| WriteOp::Delete { id, version, tenant };
        let request = WriteRequest {
            request_id: "r-2".into(),
            store: "file_metadata".into(),
            shard: ShardId::new("g0", "s1"),
            epoch,
            columns: vec!["a".to_owned(), "b".to_owned()].into(),
            ops: upserts.into_iter().map(upsert).chain(deletes.into_iter().map(delete)).collect(),
        };
        let encoded = write_request_to(request.clone(), Duration::from_secs(1)).encode_to_vec();
        let decoded = write_request_of(proto::WriteRequest::decode(&encoded[..]).expect("own bytes"));
        prop_assert_eq!(decoded, Ok((request, Duration::from_secs(1))));
    }

    #[test]
    fn answers_to_writes_survive_the_wire(outcomes in prop::collection::vec(0..4u8, 0..9), moved in moved(), state in state()) {
        let outcome = |outcome| match outcome {
            0 => WriteOutcome::Applied { replaced: false },
            1 => WriteOutcome::Applied { replaced: true },
            2 => WriteOutcome::Stale,
            _ => WriteOutcome::OtherTenant,
        };
        for answer in [
            WriteAnswer::Applied(outcomes.iter().copied().map(outcome).collect()),
            WriteAnswer::Moved(moved.clone()),
            WriteAnswer::NotReady(state),
        ] {
            let encoded = write_answer_to(answer.clone()).encode_to_vec();
            let decoded = write_answer_of(proto::WriteAnswer::decode(&encoded[..]).expect("own bytes"));
            prop_assert_eq!(decoded, Ok(answer));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        let _ = proto::ReadRequest::decode(&bytes[..]).map(read_request_of);
        let _ = proto::ReadEvent::decode(&bytes[..]).map(event_of);
        let _ = proto::WriteRequest::decode(&bytes[..]).map(write_request_of);
        let _ = proto::WriteAnswer::decode(&bytes[..]).map(write_answer_of);
    }
}

/// A message a later version might send is refused where it matters and read where it does not.
#[test]
fn unknown_kinds_are_errors_and_not_null() {
    assert_eq!(value_of(proto::Value { kind: None, null: false }), Err(BadMessage("unknown kind of value")));
    assert_eq!(value_of(proto::Value { kind: None, null: true }), Ok(Value::Null));
    assert_eq!(event_of(proto::ReadEvent { event: None }), Err(BadMessage("unknown event")));
}

/// The encoding is pinned: router and shard of neighbouring versions must understand each other.
#[test]
fn version_1_messages_still_read() {
    let row = Row {
        id: 7,
        tenant: 9,
        time: Some(TimeKey(1 << 63)),
        version: Version::new(&[1, 2]).expect("short"),
        values: vec![Value::U64(5), Value::Null, Value::String("a".into())],
    };
    let rows = ReadEvent::Rows(Batch { rows: vec![row], ..Batch::default() });
    let bytes = event_to(rows.clone()).encode_to_vec();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        "12350a33090700000000000000110900000000000000190000000000000080220201022a090905000000000000002a0260012a03320161"
    );
    assert_eq!(event_of(proto::ReadEvent::decode(&bytes[..]).expect("a message")), Ok(rows));
}

#[test]
fn a_batch_of_no_rows_is_refused() {
    let message = proto::ReadRequest {
        slots: [3].into_iter().collect::<SlotSet>().to_bytes(),
        op: Some(proto::read_request::Op::Scan(proto::Scan { direction: 1, limit: 1, ..Default::default() })),
        batch: Some(0),
        ..Default::default()
    };
    assert_eq!(read_request_of(message.clone()), Err(BadMessage("batch 0")));
    assert!(read_request_of(proto::ReadRequest { batch: None, ..message }).is_ok());
}
