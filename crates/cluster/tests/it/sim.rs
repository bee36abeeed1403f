//! A cluster in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use metaroute_cluster::client::{LocalShards, ShardClient};
use metaroute_cluster::cursor::CursorKeys;
use metaroute_cluster::protocol::{
    Aggregate, Batch, BoxFuture, Direction, Head, NotReady, Position, ReadEvent, ReadOp, ReadRequest, ReadSender,
    ReadStream, Row, Shard, ShardError, ShardErrorKind, ShardId, ShardState, Sum, Trailer, WriteAnswer, WriteOp,
    WriteOutcome, WriteRequest, read_channel,
};
use metaroute_cluster::query::{Query, QueryRequest};
use metaroute_cluster::replicas::{Replicas, instance};
use metaroute_cluster::router::{Answer, Call, Router, RouterOptions};
use metaroute_cluster::slots::SlotSet;
use metaroute_cluster::topology::{Ownership, Watcher};
use metaroute_cluster::{Failure, Topology};
use metaroute_core::{Address, Instance, InstanceId, Update};
use metaroute_expr as expr;
use metaroute_store::{Declaration, DeclaredColumns, Schema, TimeKey, Value, Version};

/// The store every simulated cluster has.
pub(crate) fn files() -> Arc<Schema> {
    let columns = [
        ("file_id", "u64"),
        ("user_id", "u64"),
        ("path", "string"),
        ("size", "u64?"),
        ("created_at", "timestamp(6)?"),
        ("note", "string?"),
    ];
    let declaration = Declaration {
        name: "files".into(),
        id: "file_id".into(),
        tenant: "user_id".into(),
        time: Some("created_at".into()),
        columns: DeclaredColumns(columns.map(|(name, ty)| (name.to_owned(), ty.to_owned())).to_vec()),
        listing: vec!["path".into(), "size".into()],
    };
    Arc::new(Schema::parse(&declaration).expect("legal"))
}

/// A row as the API writes it.
pub(crate) fn file(id: u64, user: u64, time: Option<i64>, size: u64) -> Vec<Value> {
    vec![
        Value::U64(id),
        Value::U64(user),
        Value::String(format!("/files/{id}")),
        Value::U64(size),
        time.map_or(Value::Null, Value::Timestamp),
        Value::Null,
    ]
}

/// A stored row or, without values, a tombstone.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) version: Version,
    pub(crate) values: Option<Box<[Value]>>,
}

/// What a copy does when asked.
#[derive(Clone, Default)]
pub(crate) enum Behaviour {
    /// It answers, and cannot store anything.
    DiskFull,
    #[default]
    Answers,
    /// Refuses connections.
    Down,
    /// Waits before it answers.
    Slow(Duration),
    /// Is in another state.
    NotReady(ShardState, Option<u16>),
    /// Answers, and breaks off after as many rows.
    BreaksOff(usize),
    /// Does something before it answers, once.
    First(Arc<dyn Fn() + Send + Sync>),
}

/// One copy of a shard.
pub(crate) struct FakeShard {
    id: ShardId,
    schema: Arc<Schema>,
    pub(crate) rows: Arc<Mutex<BTreeMap<u64, Stored>>>,
    pub(crate) behaviour: Mutex<Behaviour>,
    /// What this copy knows of ownership.
    pub(crate) topology: Mutex<Arc<Topology>>,
    /// Reads asked of it.
    pub(crate) asked: AtomicUsize,
    /// Reads and writes it is busy with.
    pub(crate) busy: Arc<AtomicUsize>,
    /// Answers the asker has not let go of.
    pub(crate) open: Arc<AtomicUsize>,
    /// Rows in one message.
    pub(crate) batch: AtomicUsize,
}

struct Busy(Arc<AtomicUsize>);

impl Busy {
    fn new(gauge: &Arc<AtomicUsize>) -> Busy {
        gauge.fetch_add(1, Ordering::SeqCst);
        Busy(Arc::clone(gauge))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Names<'a>(&'a Schema);

impl expr::Schema for Names<'_> {
    fn key(&mut self, name: &str) -> Result<expr::KeyId, expr::Unsupported> {
        let at = self.0.ordinal(name).ok_or_else(|| expr::Unsupported::new(name.to_owned()))?;
        Ok(expr::KeyId(at as u32))
    }
    fn attribute(&mut self, _: expr::Attribute) -> Result<expr::KeyId, expr::Unsupported> {
        Err(expr::Unsupported::new("attribute"))
    }
    fn slot(&mut self, _: expr::SlotScope, name: &str) -> Result<expr::SlotId, expr::Unsupported> {
        Err(expr::Unsupported::new(name.to_owned()))
    }
    fn declared(&self, name: &str) -> Option<expr::Type> {
        match name {
            "path" | "note" => Some(expr::Type::Text),
            "created_at" => Some(expr::Type::Time(expr::TimeUnit::Rfc3339)),
            _ => Some(expr::Type::Number),
        }
    }
    fn infers_types(&self) -> bool {
        false
    }
}

struct Cells<'a>(&'a [Value]);

impl expr::Record for Cells<'_> {
    fn get(&self, key: expr::KeyId) -> Option<expr::Value<'_>> {
        Some(match &self.0[key.0 as usize] {
            Value::U64(v) => expr::Value::Int(i128::from(*v)),
            Value::String(v) => expr::Value::Text(v),
            Value::Timestamp(v) => expr::Value::Time(i128::from(*v) * 1_000),
            _ => return None,
        })
    }
}

fn number(values: &[Value], at: usize) -> u64 {
    match values[at] {
        Value::U64(v) => v,
        _ => 0,
    }
}

/// What a read looked at and found.
struct Found {
    rows: Vec<Row>,
    next: Option<Position>,
    examined: u64,
}

impl FakeShard {
    fn matches(
        &self,
        request: &ReadRequest,
        slots: &SlotSet,
        id: u64,
        values: &[Value],
        filter: Option<&expr::Program>,
    ) -> bool {
        let topology = self.topology.lock().expect("no panic").clone();
        let Some((group, _)) = topology.group(&self.id.group) else { return false };
        let mine = topology
            .spans_of(group)
            .into_iter()
            .any(|span| slots.contains(topology.slot(group, span, self.schema.name(), id)));
        let (tenant, from, to) = match &request.op {
            ReadOp::Get { tenant, from, to, .. } | ReadOp::Aggregate { tenant, from, to, .. } => (*tenant, *from, *to),
            ReadOp::List { tenant, from, to, .. } => (Some(*tenant), *from, *to),
            ReadOp::Scan { from, to, .. } => (None, *from, *to),
        };
        let time = TimeKey::of(values[4].as_ref());
        mine && tenant.is_none_or(|tenant| number(values, 1) == tenant)
            && from.is_none_or(|from| time.is_some_and(|time| time >= from))
            && to.is_none_or(|to| time.is_some_and(|time| time < to))
            && filter.is_none_or(|filter| filter.eval(&Cells(values), &()))
    }

    fn row(&self, request: &ReadRequest, id: u64, stored: &Stored, values: &[Value]) -> Row {
        let column = |name: &String| values[self.schema.ordinal(name).expect("known")].clone();
        Row {
            id,
            tenant: number(values, 1),
            time: TimeKey::of(values[4].as_ref()),
            version: stored.version,
            values: request.fields.iter().map(column).collect(),
        }
    }

    /// One page over the map: ascending or descending by (time, id) or by id, tombstones counted as work.
    fn find(&self, request: &ReadRequest, slots: &SlotSet) -> Found {
        let filter = request
            .filter
            .as_ref()
            .map(|text| expr::Expr::parse(text).expect("checked").bind(&mut Names(&self.schema)).expect("checked"));
        let filter = filter.as_ref();
        let stored = self.rows.lock().expect("no panic");
        let mut found = Found { rows: Vec::new(), next: None, examined: 0 };
        let (after, direction, limit, by_time) = match &request.op {
            ReadOp::Get { ids, direction, .. } => {
                let mut ids = ids.to_vec();
                if *direction == Direction::Descending {
                    ids.reverse();
                }
                for id in ids {
                    found.examined += 1;
                    if let Some(one) = stored.get(&id)
                        && let Some(values) = &one.values
                        && self.matches(request, slots, id, values, filter)
                    {
                        found.rows.push(self.row(request, id, one, values));
                    }
                }
                return found;
            }
            ReadOp::List { after, direction, limit, .. } => (*after, *direction, *limit as usize, true),
            ReadOp::Scan { after, direction, limit, .. } => {
                (after.map(Position::of_id), *direction, *limit as usize, false)
            }
            ReadOp::Aggregate { .. } => (None, Direction::Ascending, usize::MAX, false),
        };
        let position = |id: u64, one: &Stored| match (&one.values, by_time) {
            (Some(values), true) => Position { time: TimeKey::of(values[4].as_ref()), id },
            _ => Position::of_id(id),
        };
        let entries: Box<dyn Iterator<Item = (&u64, &Stored)>> = if by_time {
            // A listing's index holds live rows of the tenant only.
            let ReadOp::List { tenant, .. } = &request.op else { unreachable!("by time is a listing") };
            let mut listed: Vec<(&u64, &Stored)> = stored
                .iter()
                .filter(|(_, one)| one.values.as_ref().is_some_and(|values| number(values, 1) == *tenant))
                .collect();
            listed.sort_by_key(|(id, one)| position(**id, one));
            match direction {
                Direction::Ascending => Box::new(listed.into_iter()),
                Direction::Descending => Box::new(listed.into_iter().rev()),
            }
        } else {
            match direction {
                Direction::Ascending => Box::new(stored.range(after.map_or(0, |after| after.id)..)),
                Direction::Descending => Box::new(stored.range(..=after.map_or(u64::MAX, |after| after.id)).rev()),
            }
        };
        let mut last = None;
        for (&id, one) in entries {
            let here = position(id, one);
            let behind = after.is_none_or(|after| match direction {
                Direction::Ascending => here > after,
                Direction::Descending => here < after,
            });
            if !behind {
                continue;
            }
            if found.examined >= request.budget.entries {
                found.next = last;
                break;
            }
            found.examined += 1;
            let live = one.values.as_ref().filter(|values| self.matches(request, slots, id, values, filter));
            if let Some(values) = live {
                if found.rows.len() == limit {
                    found.next = found.rows.last().map(|row| {
                        if by_time { Position { time: row.time, id: row.id } } else { Position::of_id(row.id) }
                    });
                    break;
                }
                found.rows.push(self.row(request, id, one, values));
            }
            last = Some(here);
        }
        found
    }

    async fn answer(self: Arc<Self>, request: ReadRequest, sender: &ReadSender) -> Result<(), ShardError> {
        let behaviour = self.behaviour.lock().expect("no panic").clone();
        let mut break_after = None;
        match behaviour {
            Behaviour::Answers | Behaviour::DiskFull => {}
            Behaviour::Down => return Err(ShardError::new(ShardErrorKind::Unavailable, "connection refused")),
            Behaviour::Slow(delay) => tokio::time::sleep(delay).await,
            Behaviour::NotReady(state, loaded_permille) => {
                let not_ready = vec![NotReady { slots: request.slots, state, loaded_permille }];
                let _ = sender.send(Ok(ReadEvent::Head(Head { not_ready, ..Head::default() }))).await;
                let _ = sender.send(Ok(ReadEvent::Trailer(Trailer::default()))).await;
                return Ok(());
            }
            Behaviour::BreaksOff(rows) => break_after = Some(rows),
            Behaviour::First(act) => {
                *self.behaviour.lock().expect("no panic") = Behaviour::Answers;
                act();
            }
        }
        let topology = self.topology.lock().expect("no panic").clone();
        let split = match topology.ownership(&self.id, &request.slots, request.epoch) {
            Ownership::Known(split) => split,
            Ownership::Behind => {
                let not_ready =
                    NotReady { slots: request.slots.clone(), state: ShardState::Ready, loaded_permille: None };
                let head = Head { not_ready: vec![not_ready], ..Head::default() };
                let _ = sender.send(Ok(ReadEvent::Head(head))).await;
                return Ok(());
            }
        };
        let answered = split.owned.clone();
        let head = Head { answered: answered.clone(), moved: split.moved, not_ready: Vec::new() };
        if sender.send(Ok(ReadEvent::Head(head))).await.is_err() {
            return Ok(());
        }
        let Found { rows, next, examined } = self.find(&request, &answered);
        let mut trailer = Trailer { answered, next, examined, ..Trailer::default() };
        if let ReadOp::Aggregate { sums, .. } = &request.op {
            let sum = |name: &String| {
                let at = request.fields.iter().position(|field| field == name);
                let total = rows.iter().map(|row| at.map_or(0, |at| number(&row.values, at))).map(i128::from).sum();
                Some(Sum::Integer(total))
            };
            trailer.aggregate = Some(Aggregate { rows: rows.len() as u64, sums: sums.iter().map(sum).collect() });
            trailer.next = None;
        } else {
            let batch = self.batch.load(Ordering::Relaxed).max(1);
            let batch = request.batch.map_or(batch, |rows| batch.min(rows.get() as usize));
            let mut sent = 0;
            for rows in rows.chunks(batch) {
                if break_after.is_some_and(|most| sent >= most) {
                    return Err(ShardError::new(ShardErrorKind::Unavailable, "connection reset"));
                }
                sent += rows.len();
                trailer.examined = trailer.examined.saturating_sub(rows.len() as u64);
                if sender
                    .send(Ok(ReadEvent::Rows(Batch { rows: rows.to_vec(), examined: rows.len() as u64, row_reads: 0 })))
                    .await
                    .is_err()
                {
                    return Ok(());
                }
            }
            if break_after.is_some() {
                return Err(ShardError::new(ShardErrorKind::Unavailable, "connection reset"));
            }
        }
        let _ = sender.send(Ok(ReadEvent::Trailer(trailer))).await;
        Ok(())
    }

    fn store(&self, op: &WriteOp) -> WriteOutcome {
        let mut rows = self.rows.lock().expect("no panic");
        let (id, version) = match op {
            WriteOp::Upsert { id, version, .. } | WriteOp::Delete { id, version, .. } => (*id, *version),
        };
        let before = rows.get(&id).cloned();
        let live = before.as_ref().and_then(|one| one.values.as_ref());
        if let (WriteOp::Delete { tenant: Some(tenant), .. }, Some(values)) = (op, live)
            && number(values, 1) != *tenant
        {
            return WriteOutcome::OtherTenant;
        }
        if before.as_ref().is_some_and(|one| one.version >= version) {
            return WriteOutcome::Stale;
        }
        let replaced = live.is_some();
        let values = match op {
            WriteOp::Upsert { values, .. } => Some(values.clone().into_boxed_slice()),
            WriteOp::Delete { .. } => None,
        };
        rows.insert(id, Stored { version, values });
        WriteOutcome::Applied { replaced }
    }
}

/// A copy as the protocol sees it.
pub(crate) struct Handle(pub(crate) Arc<FakeShard>);

impl Shard for Handle {
    fn read(&self, request: ReadRequest, _deadline: Instant) -> ReadStream {
        let shard = Arc::clone(&self.0);
        shard.asked.fetch_add(1, Ordering::SeqCst);
        let (sender, stream) = read_channel(4);
        let busy = Busy::new(&shard.busy);
        let open = Busy::new(&shard.open);
        tokio::spawn(async move {
            let _busy = busy;
            let work = shard.answer(request, &sender);
            let failed = tokio::select! {
                result = work => result.err(),
                () = sender.closed() => None,
            };
            if let Some(error) = failed {
                let _ = sender.send(Err(error)).await;
            }
        });
        Box::pin(stream.inspect(move |_| {
            // Lives as long as the stream.
            let _ = &open;
        }))
    }

    fn write(&self, request: WriteRequest, _deadline: Instant) -> BoxFuture<Result<WriteAnswer, ShardError>> {
        let shard = Arc::clone(&self.0);
        Box::pin(async move {
            let _busy = Busy::new(&shard.busy);
            match shard.behaviour.lock().expect("no panic").clone() {
                Behaviour::Down => return Err(ShardError::new(ShardErrorKind::Unavailable, "connection refused")),
                Behaviour::DiskFull => {
                    return Err(ShardError::new(ShardErrorKind::ReadOnly, "no space left on device"));
                }
                Behaviour::NotReady(state, _) => return Ok(WriteAnswer::NotReady(state)),
                _ => {}
            }
            let topology = shard.topology.lock().expect("no panic").clone();
            let (group, _) = topology.group(&shard.id.group).expect("known");
            let span = topology.spans_of(group)[0];
            let slots: SlotSet =
                request.ops.iter().map(|op| topology.slot(group, span, shard.schema.name(), op.id())).collect();
            match topology.ownership(&shard.id, &slots, request.epoch) {
                Ownership::Known(split) if split.owned == slots => {}
                Ownership::Known(split) => return Ok(WriteAnswer::Moved(split.moved)),
                Ownership::Behind => return Ok(WriteAnswer::NotReady(ShardState::Ready)),
            }
            Ok(WriteAnswer::Applied(request.ops.iter().map(|op| shard.store(op)).collect()))
        })
    }
}

/// The cluster.
pub(crate) struct Sim {
    pub(crate) schema: Arc<Schema>,
    pub(crate) topology: Arc<Topology>,
    pub(crate) router: Router,
    pub(crate) replicas: Replicas,
    /// Copies by shard and number.
    pub(crate) copies: HashMap<(ShardId, usize), (Instance, Arc<FakeShard>)>,
}

/// Shards that do not read on demand.
struct Far(LocalShards);

impl ShardClient for Far {
    fn reads_on_demand(&self) -> bool {
        false
    }

    fn read(&self, replica: &Instance, request: ReadRequest, deadline: Instant) -> ReadStream {
        assert_eq!(request.batch, None, "the rest is read anyway");
        self.0.read(replica, request, deadline)
    }

    fn write(
        &self,
        replica: &Instance,
        request: WriteRequest,
        deadline: Instant,
    ) -> BoxFuture<Result<WriteAnswer, ShardError>> {
        self.0.write(replica, request, deadline)
    }
}

/// How a simulated cluster is made.
pub(crate) struct Shape {
    pub(crate) topology: Topology,
    pub(crate) copies: usize,
    pub(crate) options: RouterOptions,
    /// Replaces direct calls.
    pub(crate) client: Option<Arc<dyn ShardClient>>,
    /// Direct calls that pass for ones to other processes.
    pub(crate) far: bool,
}

impl Shape {
    pub(crate) fn of(groups: u32, shards: u32) -> Shape {
        let topology = Topology::initial(groups, shards).expect("legal");
        Shape { topology, copies: 1, options: writable(), client: None, far: false }
    }
}

/// Options with a clock for writes.
pub(crate) fn writable() -> RouterOptions {
    let last = Mutex::new(0_u64);
    let stamps = move |count: u64| {
        let mut last = last.lock().expect("no panic");
        let first = *last + 1;
        *last += count;
        Ok(first)
    };
    RouterOptions { stamps: Some(Arc::new(stamps)), ..RouterOptions::default() }
}

impl Sim {
    pub(crate) fn new(groups: u32, shards: u32) -> Sim {
        Sim::of(Shape::of(groups, shards))
    }

    pub(crate) fn of(shape: Shape) -> Sim {
        let schema = files();
        let topology = Arc::new(shape.topology);
        let (replicas, local) = (Replicas::new(None, 7), LocalShards::new());
        let mut copies = HashMap::new();
        let mut port = 1_000;
        for shard in topology.shards() {
            let rows = Arc::new(Mutex::new(BTreeMap::new()));
            for number in 0..shape.copies {
                port += 1;
                let address = Address::new("127.0.0.1", port).expect("legal");
                let instance = instance(address, &shard.id, ShardState::Ready, None);
                let fake = Arc::new(FakeShard {
                    id: shard.id.clone(),
                    schema: Arc::clone(&schema),
                    rows: Arc::clone(&rows),
                    behaviour: Mutex::default(),
                    topology: Mutex::new(Arc::clone(&topology)),
                    asked: AtomicUsize::new(0),
                    busy: Arc::default(),
                    open: Arc::default(),
                    batch: AtomicUsize::new(7),
                });
                local.insert(instance.id.clone(), Arc::new(Handle(Arc::clone(&fake))));
                copies.insert((shard.id.clone(), number), (instance, fake));
            }
        }
        let client = match shape.client {
            Some(client) => client,
            None if shape.far => Arc::new(Far(local)),
            None => Arc::new(local),
        };
        let watcher = Watcher::fixed(Topology::clone(&topology));
        let keys = CursorKeys::single([1; 32]);
        let router = Router::new(watcher, replicas.clone(), client, keys, shape.options);
        let sim = Sim { schema, topology, router, replicas, copies };
        sim.announce(&[]);
        sim
    }

    /// Tells the registry's view: all copies, some in other states.
    pub(crate) fn announce(&self, states: &[(&InstanceId, ShardState)]) {
        let list = self.copies.iter().map(|((shard, _), (known, _))| {
            let state = states.iter().find(|(id, _)| **id == known.id).map_or(ShardState::Ready, |(_, state)| *state);
            instance(known.address.clone(), shard, state, None)
        });
        self.replicas.apply(Update::Snapshot(list.collect()));
    }

    pub(crate) fn shard(&self, group: &str, shard: &str) -> &Arc<FakeShard> {
        self.copy(group, shard, 0)
    }

    pub(crate) fn copy(&self, group: &str, shard: &str, number: usize) -> &Arc<FakeShard> {
        &self.copies[&(ShardId::new(group, shard), number)].1
    }

    pub(crate) fn fakes(&self) -> impl Iterator<Item = &Arc<FakeShard>> {
        self.copies.values().map(|(_, fake)| fake)
    }

    pub(crate) fn set(&self, group: &str, shard: &str, behaviour: Behaviour) {
        *self.shard(group, shard).behaviour.lock().expect("no panic") = behaviour;
    }

    /// How many reads all copies are busy with.
    pub(crate) fn busy(&self) -> usize {
        self.fakes().map(|fake| fake.busy.load(Ordering::SeqCst)).sum()
    }

    /// How many answers of all copies the asker has not let go of.
    pub(crate) fn open(&self) -> usize {
        self.fakes().map(|fake| fake.open.load(Ordering::SeqCst)).sum()
    }

    pub(crate) fn asked(&self) -> usize {
        self.fakes().map(|fake| fake.asked.load(Ordering::SeqCst)).sum()
    }

    pub(crate) async fn write(&self, rows: Vec<Vec<Value>>) {
        self.router.write(&self.schema, rows, &call()).await.expect("written");
    }

    pub(crate) fn query(&self, request: QueryRequest) -> Query {
        Query::new(&self.schema, request).expect("legal")
    }

    pub(crate) async fn ask(&self, request: QueryRequest) -> Result<Answer, Failure> {
        self.router.query(&self.query(request), &call()).await
    }

    /// All pages of a query, and how many there were.
    pub(crate) async fn walk(&self, request: QueryRequest) -> (Vec<Row>, usize) {
        let (mut rows, mut pages, mut cursor) = (Vec::new(), 0, None);
        loop {
            let answer = self.ask(QueryRequest { cursor, ..request.clone() }).await.expect("answered");
            assert!(answer.meta.complete);
            rows.extend(answer.rows);
            pages += 1;
            cursor = answer.next;
            if cursor.is_none() {
                return (rows, pages);
            }
            assert!(pages < 10_000, "the walk does not end");
        }
    }
}

pub(crate) fn call() -> Call {
    Call::within(Duration::from_secs(300))
}

pub(crate) fn of_user(user: u64) -> QueryRequest {
    QueryRequest { tenant: Some(user), ..QueryRequest::default() }
}

pub(crate) fn everything() -> QueryRequest {
    QueryRequest { allow_global: true, ..QueryRequest::default() }
}

pub(crate) fn ids(rows: &[Row]) -> Vec<u64> {
    rows.iter().map(|row| row.id).collect()
}

/// The ids counted by `id mod n` in one group of `n` shards, so that every shard has rows.
pub(crate) fn spread(count: u64, user: u64) -> Vec<Vec<Value>> {
    (0..count).map(|id| file(id, user, Some(1_000_000 + id as i64), id)).collect()
}
