use std::num::NonZeroU32;

use futures_util::StreamExt;
use metaroute_cluster::protocol::{
    Aggregate, Direction, Moved, Position, ReadEvent, ReadOp, Row, Sum, Trailer, WorkBudget, WriteOp, WriteOutcome,
};
use metaroute_cluster::topology::{Apply, Document, FileStore, Prepared};
use metaroute_store::{Value, Version};

use super::*;

const COLUMNS: [&str; 5] = ["file_id", "user_id", "path", "size", "created_at"];

struct Bench {
    shard: ShardHost,
    topology: Watcher,
    _folder: tempfile::TempDir,
}

impl Bench {
    /// Shard `g0/s0` of one group with two shards: the even ids.
    async fn new() -> Bench {
        let bench = Bench::loading();
        let path = bench._folder.path().join("s0");
        bench
            .shard
            .open(path, OpenOptions::default(), &[crate::stores::file_metadata()])
            .await
            .expect("an empty folder opens");
        bench
    }

    fn loading() -> Bench {
        let topology = Watcher::fixed(Topology::initial(1, 2).expect("legal"));
        let shard = ShardHost::new(ShardId::new("g0", "s0"), topology.clone());
        Bench { shard, topology, _folder: tempfile::tempdir().expect("a folder") }
    }

    fn epoch(&self) -> u64 {
        self.topology.topology().expect("fixed").epoch()
    }

    async fn write(&self, ops: Vec<WriteOp>) -> WriteAnswer {
        let request = WriteRequest {
            request_id: "t".into(),
            store: "file_metadata".into(),
            shard: self.shard.id().clone(),
            epoch: self.epoch(),
            columns: COLUMNS.map(str::to_owned).into(),
            ops,
        };
        self.shard.write(request, soon()).await.expect("answered")
    }

    async fn upsert(&self, version: u64, rows: &[(u64, u64, i64)]) -> WriteAnswer {
        self.write(rows.iter().map(|&(id, tenant, micros)| upsert(version, id, tenant, micros)).collect()).await
    }

    fn request(&self, slots: SlotSet, op: ReadOp) -> ReadRequest {
        ReadRequest {
            request_id: "t".into(),
            store: "file_metadata".into(),
            shard: self.shard.id().clone(),
            slots,
            epoch: self.epoch(),
            filter: None,
            fields: ["file_id".to_owned()].into(),
            op,
            budget: WorkBudget::default(),
            batch: None,
        }
    }

    async fn ask(&self, request: ReadRequest) -> (metaroute_cluster::protocol::Head, Vec<Row>, Trailer) {
        let mut head = None;
        let (mut rows, mut examined) = (Vec::new(), 0);
        let mut stream = self.shard.read(request, soon());
        while let Some(event) = stream.next().await {
            match event.expect("no error") {
                ReadEvent::Head(first) => head = Some(first),
                ReadEvent::Rows(mut more) => {
                    rows.append(&mut more.rows);
                    examined += more.examined;
                }
                ReadEvent::Trailer(mut trailer) => {
                    trailer.examined += examined;
                    return (head.expect("the head comes first"), rows, trailer);
                }
            }
        }
        panic!("no trailer");
    }

    async fn list(&self, tenant: u64, after: Option<Position>, limit: u32) -> (Vec<u64>, Option<Position>) {
        let direction = Direction::Descending;
        let op = ReadOp::List { tenant, from: None, to: None, after, direction, limit };
        let (_, rows, trailer) = self.ask(self.request(self.shard.owned(), op)).await;
        (rows.iter().map(|row| row.id).collect(), trailer.next)
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn upsert(version: u64, id: u64, tenant: u64, micros: i64) -> WriteOp {
    let values = vec![
        Value::U64(id),
        Value::U64(tenant),
        Value::String(format!("/{id}")),
        Value::U64(10),
        Value::Timestamp(micros),
    ];
    WriteOp::Upsert { id, version: Version::from(version), values }
}

fn evens() -> SlotSet {
    (0..4096).step_by(2).collect()
}

#[tokio::test]
async fn rows_are_stored_once_and_listed_newest_first() {
    let bench = Bench::new().await;
    let applied = WriteAnswer::Applied(vec![WriteOutcome::Applied { replaced: false }; 3]);
    assert_eq!(bench.upsert(1, &[(2, 7, 10), (4, 7, 30), (6, 7, 20)]).await, applied);
    let again = WriteAnswer::Applied(vec![WriteOutcome::Stale; 3]);
    assert_eq!(bench.upsert(1, &[(2, 7, 10), (4, 7, 30), (6, 7, 20)]).await, again);

    assert_eq!(bench.list(7, None, 100).await, (vec![4, 6, 2], None));
    let (page, next) = bench.list(7, None, 2).await;
    assert_eq!(page, [4, 6]);
    assert_eq!(bench.list(7, next, 2).await, (vec![2], None));
    assert_eq!(bench.list(8, None, 2).await, (vec![], None));
}

#[tokio::test]
async fn slots_of_other_shards_are_passed_on() {
    let bench = Bench::new().await;
    bench.upsert(1, &[(2, 7, 10)]).await;
    let op = ReadOp::Scan { from: None, to: None, after: None, direction: Direction::Ascending, limit: 10 };
    let (head, rows, trailer) = bench.ask(bench.request(SlotSet::all(4), op)).await;
    assert_eq!(head.answered, [0, 2].into_iter().collect());
    let moved = Moved { slots: [1, 3].into_iter().collect(), to: "s1".into(), epoch: bench.epoch() };
    assert_eq!(head.moved, [moved]);
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [2]);
    assert_eq!(trailer.answered, head.answered);

    let answer = bench.write(vec![upsert(1, 3, 7, 10)]).await;
    assert!(matches!(answer, WriteAnswer::Moved(_)), "{answer:?}");
}

#[tokio::test]
async fn a_copy_that_is_not_ready_answers_no_slot() {
    let bench = Bench::loading();
    bench.shard.set_condition(Condition::loading(400));
    let op = ReadOp::Scan { from: None, to: None, after: None, direction: Direction::Ascending, limit: 10 };
    let (head, rows, trailer) = bench.ask(bench.request(evens(), op)).await;
    assert!(head.answered.is_empty() && rows.is_empty() && trailer.answered.is_empty());
    assert_eq!(head.not_ready[0].state, ShardState::Loading);
    assert_eq!(head.not_ready[0].loaded_permille, Some(400));
    assert_eq!(head.not_ready[0].slots, evens());
    assert_eq!(bench.upsert(1, &[(2, 7, 10)]).await, WriteAnswer::NotReady(ShardState::Loading));
}

fn scan() -> ReadOp {
    ReadOp::Scan { from: None, to: None, after: None, direction: Direction::Ascending, limit: 10 }
}

#[tokio::test]
async fn who_knows_of_a_newer_epoch_is_told_not_ready() {
    let bench = Bench::new().await;
    let ahead = ReadRequest { epoch: bench.epoch() + 1, ..bench.request(evens(), scan()) };
    let (head, ..) = bench.ask(ahead).await;
    assert_eq!(head.not_ready[0].state, ShardState::Ready);
    assert_eq!(head.not_ready[0].slots, evens());
}

#[tokio::test]
async fn a_topology_that_is_on_its_way_is_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = FileStore::new(folder.path().join("topology"));
    let commit = async |document: Document| {
        let prepared = Prepared::new(&store, document, Apply::default()).await.expect("legal");
        prepared.commit(&store).await.expect("stored").topology
    };
    let first = commit(Topology::initial(1, 2).expect("legal").document().clone()).await;
    let (mut watcher, feeding) = Watcher::start(Arc::new(store.clone()));
    let feeding = tokio::spawn(feeding);
    while watcher.topology().is_none() {
        assert!(watcher.changed().await);
    }
    let shard = ShardHost::new(ShardId::new("g0", "s0"), watcher);
    let stores = [crate::stores::file_metadata()];
    shard.open(folder.path().join("s0"), OpenOptions::default(), &stores).await.expect("opens");
    let bench = Bench { shard, topology: Watcher::fixed(first.clone()), _folder: folder };

    // Slot 0 goes to the other shard while a question that knows of it is waiting.
    let mut document = first.document().clone();
    let owners = &mut document.groups[0].owners;
    assert!(owners[0].slots.remove(0) && owners[1].slots.insert(0));
    let ahead = ReadRequest { epoch: first.epoch() + 1, ..bench.request([0].into_iter().collect(), scan()) };
    // A fifth of a second is waited, and a disk may take longer than that: time stands still while it works.
    tokio::time::pause();
    let ((head, ..), _) = tokio::join!(bench.ask(ahead), commit(document));
    assert_eq!(head.moved[0].to.as_ref(), "s1");
    assert!(head.not_ready.is_empty() && head.answered.is_empty());
    feeding.abort();
}

#[tokio::test]
async fn counts_come_from_counters_and_agree_with_walking() {
    let bench = Bench::new().await;
    bench.upsert(1, &[(2, 7, 10), (4, 7, 30), (6, 8, 20)]).await;
    let aggregate =
        |tenant, from| ReadOp::Aggregate { tenant, from, to: None, sums: ["size".to_owned()].into(), after: None };
    let sum = |rows: u64| Aggregate { rows, sums: vec![Some(Sum::Integer(10 * i128::from(rows)))] };
    let (_, _, counted) = bench.ask(bench.request(evens(), aggregate(Some(7), None))).await;
    assert_eq!((counted.aggregate, counted.examined), (Some(sum(2)), 1));
    let (_, _, all) = bench.ask(bench.request(evens(), aggregate(None, None))).await;
    assert_eq!(all.aggregate, Some(sum(3)));
    // Not all slots are asked for, so the counters say too much.
    let (_, _, part) = bench.ask(bench.request([2].into_iter().collect(), aggregate(Some(7), None))).await;
    assert_eq!(part.aggregate, Some(sum(1)));
    let from = metaroute_store::TimeKey::of(Value::Timestamp(20).as_ref());
    for tenant in [Some(7), None] {
        let (_, _, late) = bench.ask(bench.request(evens(), aggregate(tenant, from))).await;
        assert_eq!(late.aggregate, Some(sum(if tenant.is_some() { 1 } else { 2 })));
    }
}

#[tokio::test]
async fn a_scan_within_bounds_says_no_more_exactly_when_there_is_no_more() {
    let bench = Bench::new().await;
    // Within the bounds: 2, 8 and 14; the rest is outside.
    let rows: Vec<(u64, u64, i64)> = (1..=10).map(|n| (2 * n, 7, if (2 * n) % 6 == 2 { 5 } else { 50 })).collect();
    bench.upsert(1, &rows).await;
    let to = metaroute_store::TimeKey::of(Value::Timestamp(20).as_ref());
    let scan = |after, limit| ReadOp::Scan { from: None, to, after, direction: Direction::Ascending, limit };
    let ids = |rows: &[Row]| rows.iter().map(|row| row.id).collect::<Vec<_>>();
    let (_, rows, trailer) = bench.ask(bench.request(evens(), scan(None, 2))).await;
    assert_eq!((ids(&rows), trailer.next), (vec![2, 8], Some(Position::of_id(8))));
    let (_, rows, trailer) = bench.ask(bench.request(evens(), scan(Some(8), 2))).await;
    assert_eq!((ids(&rows), trailer.next), (vec![14, 20], None));
    let (_, rows, trailer) = bench.ask(bench.request(evens(), scan(None, 4))).await;
    assert_eq!((ids(&rows), trailer.next), (vec![2, 8, 14, 20], None));
}

#[tokio::test]
async fn draining_finishes_closes_and_reopening_finds_everything() {
    let bench = Bench::new().await;
    bench.upsert(1, &[(2, 7, 10)]).await;
    bench.shard.drain(soon()).await;
    assert_eq!(bench.upsert(2, &[(4, 7, 10)]).await, WriteAnswer::NotReady(ShardState::Draining));
    let path = bench._folder.path().join("s0");
    bench.shard.open(path, OpenOptions::default(), &[crate::stores::file_metadata()]).await.expect("opens again");
    assert_eq!(bench.list(7, None, 10).await, (vec![2], None));
    assert_eq!(bench.shard.in_flight(), 0);
}

/// A merge takes a little of each shard at a time; what it does not take is not read, and what it takes is of one moment.
#[tokio::test]
async fn small_batches_are_read_on_demand_and_from_one_view() {
    let bench = Bench::new().await;
    let rows: Vec<(u64, u64, i64)> = (1..=50).map(|n| (2 * n, 7, n as i64)).collect();
    bench.upsert(1, &rows).await;
    for filter in [None, Some("size > 5")] {
        let direction = Direction::Ascending;
        let op = ReadOp::List { tenant: 7, from: None, to: None, after: None, direction, limit: 15 };
        let request = bench.request(bench.shard.owned(), op);
        // With a filter it is read on a thread of the store.
        let request = ReadRequest { batch: NonZeroU32::new(8), filter: filter.map(Into::into), ..request };
        let mut stream = bench.shard.read(request, soon());
        let (mut ids, mut sizes, mut examined) = (Vec::new(), Vec::new(), 0);
        while let Some(event) = stream.next().await {
            match event.expect("no error") {
                ReadEvent::Head(_) => {}
                ReadEvent::Rows(batch) => {
                    // Later there are also the places that rows have left.
                    let read = batch.rows.len() as u64;
                    assert!(filter.is_some() || (read..=read + 1).contains(&batch.examined), "{batch:?}");
                    examined += batch.examined;
                    sizes.push(batch.rows.len());
                    ids.extend(batch.rows.iter().map(|row| row.id));
                    // The row that comes next goes to the front, where this walk has been already.
                    let version = 2 + examined;
                    bench.upsert(version, &[(ids.len() as u64 * 2 + 2, 7, -(version as i64))]).await;
                }
                ReadEvent::Trailer(trailer) => assert_eq!(trailer.examined, 0),
            }
        }
        assert_eq!(sizes, [8, 2, 2, 2, 1]);
        assert_eq!(ids, (1..=15).map(|n| 2 * n).collect::<Vec<u64>>(), "as at the beginning");
        // For the second round everything is where it was.
        bench.upsert(1_000, &rows).await;
    }
}
