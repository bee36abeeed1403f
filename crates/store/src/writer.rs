//! The one thread that writes.
//!
//! A snapshot taken from the engine while a batch commits can see half of that batch; whoever takes
//! snapshots must be the one who commits. So a single thread does both: it merges the requests that
//! wait into one batch, commits it (with one sync for all of them where syncs are asked for),
//! publishes the snapshot that every reader uses from then on, and only then answers. What a request
//! was told is stored is therefore visible to every read that starts later.
//!
//! The thread also does what needs no second one: the sync of each second in `journal` mode, letting
//! compaction know of truncates no reader can miss, and coming back after a full disk.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;

use crate::apply::{Cache, Delta, Layers};
use crate::batch::{Applied, Batch, Expected};
use crate::engine::{Engine, Failure, WriteSet};
use crate::error::{Error, Result};
use crate::gate::{Gate, GateState};
use crate::ingest::{Chunk, Intent};
use crate::key::{self, Lane, TableId};
use crate::opening::{self, Opened};
use crate::options::{Durability, OpenOptions};
use crate::pending::{Pending, Promise, pending};
use crate::record::CellFormat;
use crate::retention::Retention;
use crate::schema::Schema;
use crate::state::TableState;
use crate::table::Table;
use crate::view::{Catalog, Published, TableView, View};

/// Most requests merged into one commit; more only delay the first one's answer.
const GROUP_REQUESTS: usize = 1_024;
/// Most bytes merged into one commit, well below a memtable.
const GROUP_BYTES: usize = 4 << 20;
/// How often a closed gate is looked at. The engine has no signal for "less debt now".
const GATE_POLL: Duration = Duration::from_millis(5);
/// How often a store that failed on a full disk looks for space.
const RECOVER_EVERY: Duration = Duration::from_secs(5);
/// How long recovery waits for readers of the failed engine.
const READERS_LEAVE: Duration = Duration::from_secs(30);
/// Free space that must be there before a full disk counts as repaired.
const PROBE_BYTES: usize = 4 << 20;

/// What reads, writers and gauges share.
pub(crate) struct Shared {
    pub(crate) path: std::path::PathBuf,
    pub(crate) options: OpenOptions,
    pub(crate) published: ArcSwapOption<Published>,
    pub(crate) engine: Mutex<Option<Arc<Engine>>>,
    pub(crate) status: Mutex<Status>,
    pub(crate) gate: Mutex<Gate>,
    pub(crate) numbers: Numbers,
    views: Mutex<Vec<Weak<Published>>>,
    queue: Mutex<Queue>,
    wake: Condvar,
}

/// Counted since the store was opened.
#[derive(Default)]
pub(crate) struct Numbers {
    pub(crate) commits: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) changes: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) conflicts: AtomicU64,
    pub(crate) ingested_rows: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) gate_waits: AtomicU64,
    pub(crate) gate_waited_us: AtomicU64,
    pub(crate) slowed_us: AtomicU64,
}

/// Whether the store takes writes.
#[derive(Clone, Debug)]
pub(crate) enum Status {
    Running,
    Failed { reason: Arc<str>, disk_full: bool, since: Instant },
}

struct Queue {
    requests: VecDeque<Request>,
    bytes: usize,
    closed: bool,
}

enum Request {
    Apply { batch: Batch, deadline: Instant, answer: Promise<Applied> },
    Ingest { chunk: Box<Chunk>, deadline: Instant, answer: Promise<u64> },
    Task(Box<dyn FnOnce(&mut Writer) + Send>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every critical section leaves its data whole at each step, so a panic elsewhere is no reason to
    // stop answering.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(path: std::path::PathBuf, options: OpenOptions) -> Shared {
        Shared {
            path,
            gate: Mutex::new(Gate::new(options.gate)),
            options,
            published: ArcSwapOption::empty(),
            engine: Mutex::new(None),
            status: Mutex::new(Status::Running),
            numbers: Numbers::default(),
            views: Mutex::default(),
            queue: Mutex::new(Queue { requests: VecDeque::new(), bytes: 0, closed: false }),
            wake: Condvar::new(),
        }
    }

    pub(crate) fn failed(&self) -> Option<Error> {
        match &*lock(&self.status) {
            Status::Running => None,
            Status::Failed { reason, disk_full, .. } => {
                Some(Error::Failed { reason: reason.clone(), disk_full: *disk_full })
            }
        }
    }

    pub(crate) fn view(&self) -> Result<View> {
        match self.published.load_full() {
            Some(published) => Ok(View::from_arc(published)),
            None => Err(self.failed().unwrap_or(Error::Closed)),
        }
    }

    pub(crate) fn apply(&self, batch: Batch) -> Pending<Applied> {
        let deadline = Instant::now() + self.options.write_deadline;
        let bytes = batch.bytes();
        let (answer, pending) = pending();
        self.enqueue(bytes, Request::Apply { batch, deadline, answer }, pending)
    }

    pub(crate) fn ingest(&self, chunk: Chunk) -> Pending<u64> {
        let deadline = Instant::now() + self.options.write_deadline;
        let bytes = chunk.bytes();
        let (answer, pending) = pending();
        self.enqueue(bytes, Request::Ingest { chunk: Box::new(chunk), deadline, answer }, pending)
    }

    /// Runs `task` on the writer thread, between commits.
    pub(crate) fn task<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Writer) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (answer, pending) = pending();
        let task = Box::new(move |writer: &mut Writer| answer.keep(task(writer)));
        let mut queue = lock(&self.queue);
        if queue.closed {
            return Pending::ready(Err(Error::Closed));
        }
        queue.requests.push_back(Request::Task(task));
        self.wake.notify_one();
        pending
    }

    fn enqueue<T>(&self, bytes: usize, request: Request, pending: Pending<T>) -> Pending<T> {
        if let Some(error) = self.failed() {
            return Pending::ready(Err(error));
        }
        let limits = self.options.write_queue;
        let mut queue = lock(&self.queue);
        if queue.closed {
            return Pending::ready(Err(Error::Closed));
        }
        let fits = queue.requests.is_empty()
            || (queue.requests.len() < limits.requests && queue.bytes + bytes <= limits.bytes);
        if !fits {
            drop(queue);
            self.numbers.refused.fetch_add(1, Ordering::Relaxed);
            return Pending::ready(Err(Error::Overloaded { queue: "write" }));
        }
        queue.bytes += bytes;
        queue.requests.push_back(request);
        self.wake.notify_one();
        pending
    }

    pub(crate) fn queued(&self) -> (usize, usize) {
        let queue = lock(&self.queue);
        (queue.requests.len(), queue.bytes)
    }

    pub(crate) fn close(&self) {
        lock(&self.queue).closed = true;
        self.wake.notify_all();
    }

    /// Age of the oldest view still held by a reader; what it sees stays on disk.
    pub(crate) fn oldest_view(&self) -> Duration {
        let mut views = lock(&self.views);
        views.retain(|view| view.strong_count() > 0);
        let oldest = views.iter().filter_map(|view| Some(view.upgrade()?.taken)).min();
        oldest.map_or(Duration::ZERO, |taken| taken.elapsed())
    }

    /// The oldest state a reader still sees.
    fn oldest_sequence(&self) -> u64 {
        let views = lock(&self.views);
        let alive = views.iter().filter_map(Weak::upgrade);
        alive.map(|view| view.snapshot.sequence()).min().unwrap_or(0)
    }

    /// Waits until the gate is open, or gives up at `deadline`. Returns what the gate says then
    /// (open or slow) and how long it took.
    pub(crate) fn wait_for_gate(&self, engine: &Engine, deadline: Instant) -> Result<(GateState, Duration)> {
        let start = Instant::now();
        let mut waited = false;
        loop {
            let state = lock(&self.gate).observe(&engine.gauges());
            let GateState::Closed(debt) = state else {
                let took = if waited { start.elapsed() } else { Duration::ZERO };
                self.numbers.gate_waited_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
                return Ok((state, took));
            };
            if !waited {
                waited = true;
                self.numbers.gate_waits.fetch_add(1, Ordering::Relaxed);
            }
            let now = Instant::now();
            // A failed engine never works its debt off.
            let poisoned = engine.is_poisoned();
            if now >= deadline || poisoned {
                let waited = start.elapsed();
                self.numbers.gate_waited_us.fetch_add(waited.as_micros() as u64, Ordering::Relaxed);
                let reason = if poisoned { "the engine has failed".to_owned() } else { debt.to_string() };
                return Err(Error::Stalled { waited, reason });
            }
            std::thread::sleep(GATE_POLL.min(deadline - now));
        }
    }
}

/// The writer thread's own state.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    engine: Option<Arc<Engine>>,
    cache: Cache,
    catalog: Arc<Catalog>,
    cells: CellFormat,
    retention: Retention,
    number: u64,
    dirty: bool,
    last_sync: Instant,
    last_attempt: Instant,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, opened: Opened) -> Writer {
        let now = Instant::now();
        let mut writer = Writer {
            shared,
            engine: None,
            cache: Cache::default(),
            catalog: Arc::new(Catalog { tables: Vec::new() }),
            cells: opened.cells,
            retention: Retention::new(),
            number: 0,
            dirty: false,
            last_sync: now,
            last_attempt: now,
        };
        writer.install(opened);
        writer
    }

    fn install(&mut self, opened: Opened) {
        let engine = Arc::new(opened.engine);
        *lock(&self.shared.engine) = Some(engine.clone());
        self.engine = Some(engine);
        self.cache = Cache::default();
        self.retention = opened.retention;
        self.catalog = Arc::new(Catalog { tables: opened.tables });
        self.retention.changed(None, &self.catalog);
        self.publish();
    }

    /// Serves requests until the store is closed; then flushes and closes the engine.
    pub(crate) fn run(mut self) {
        loop {
            let Some(requests) = self.next_requests() else { break };
            self.serve(requests);
            self.tick();
        }
        let path = self.shared.path.clone();
        if let Err(error) = self.shut() {
            tracing::warn!(path = %path.display(), %error, "store did not close cleanly");
        }
    }

    /// The next requests that belong together: as many batches as one commit takes, or one other
    /// request, or none when it is time for housekeeping.
    fn next_requests(&mut self) -> Option<Vec<Request>> {
        let mut queue = lock(&self.shared.queue);
        loop {
            if !queue.requests.is_empty() {
                break;
            }
            if queue.closed {
                return None;
            }
            let (woken, timeout) = self
                .shared
                .wake
                .wait_timeout(queue, self.shared.options.sync_every.min(Duration::from_secs(1)))
                .unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            if timeout.timed_out() {
                break;
            }
        }
        let mut group = Vec::new();
        let mut bytes = 0;
        while let Some(next) = queue.requests.front() {
            let (alone, size) = match next {
                Request::Apply { batch, .. } => (false, batch.bytes()),
                Request::Ingest { chunk, .. } => (true, chunk.bytes()),
                Request::Task(_) => (true, 0),
            };
            let fits = group.is_empty() || (!alone && bytes + size <= GROUP_BYTES && group.len() < GROUP_REQUESTS);
            if !fits {
                break;
            }
            queue.bytes -= size;
            bytes += size;
            group.extend(queue.requests.pop_front());
            if alone {
                break;
            }
        }
        Some(group)
    }

    fn serve(&mut self, requests: Vec<Request>) {
        let mut group = Vec::new();
        for request in requests {
            match request {
                Request::Apply { batch, deadline, answer } => group.push((batch, deadline, answer)),
                Request::Ingest { chunk, deadline, answer } => {
                    let result = self.ingest(*chunk, deadline);
                    answer.keep(result);
                }
                Request::Task(task) => task(self),
            }
        }
        if !group.is_empty() {
            self.commit_group(group);
        }
    }

    fn engine(&self) -> Result<Arc<Engine>> {
        match (&self.engine, self.shared.failed()) {
            (_, Some(error)) => Err(error),
            (Some(engine), None) => Ok(engine.clone()),
            (None, None) => Err(Error::Closed),
        }
    }

    fn commit_group(&mut self, group: Vec<(Batch, Instant, Promise<Applied>)>) {
        let bytes: usize = group.iter().map(|(batch, ..)| batch.bytes()).sum();
        let deadline = group.iter().map(|(_, deadline, _)| *deadline).min();
        let admitted = self.engine().and_then(|engine| {
            self.admit(&engine, bytes, deadline.unwrap_or_else(Instant::now))?;
            Ok((engine, self.shared.view()?))
        });
        let (engine, view) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => {
                for (_, _, answer) in group {
                    answer.keep(Err(error.clone()));
                }
                return;
            }
        };
        let numbers = &self.shared.numbers;
        numbers.requests.fetch_add(group.len() as u64, Ordering::Relaxed);
        let mut delta = Delta::default();
        let mut answers = Vec::with_capacity(group.len());
        for (mut batch, _, answer) in group {
            let computed =
                self.bind(&mut batch).and_then(|()| Layers::new(view.snapshot(), &self.cache, &mut delta).apply(batch));
            match computed {
                Ok(applied) => answers.push((answer, applied)),
                Err(error) => answer.keep(Err(error)),
            }
        }
        if let Err(error) = self.commit(&engine, delta) {
            for (answer, _) in answers {
                answer.keep(Err(error.clone()));
            }
            return;
        }
        for (answer, applied) in answers {
            self.count(&applied);
            answer.keep(Ok(applied));
        }
    }

    fn count(&self, applied: &Applied) {
        use crate::batch::Outcome;
        let numbers = &self.shared.numbers;
        let of = |wanted: fn(&Outcome) -> bool| applied.outcomes.iter().filter(|o| wanted(o)).count() as u64;
        numbers.changes.fetch_add(applied.outcomes.len() as u64, Ordering::Relaxed);
        numbers.stale.fetch_add(of(|o| matches!(o, Outcome::Stale | Outcome::Duplicate)), Ordering::Relaxed);
        numbers.conflicts.fetch_add(of(|o| matches!(o, Outcome::Conflict)), Ordering::Relaxed);
    }

    /// Replaces table handles by the current ones: rows may carry columns a caller's handle does not
    /// know yet.
    fn bind(&self, batch: &mut Batch) -> Result<()> {
        for change in &mut batch.changes {
            change.table = self.table(change.table.id(), change.table.name())?;
        }
        Ok(())
    }

    fn table(&self, id: TableId, name: &str) -> Result<Table> {
        let found = self.catalog.tables.iter().find(|t| t.table.id() == id && t.table.name() == name);
        found.map(|t| t.table.clone()).ok_or_else(|| Error::UnknownTable(name.to_owned()))
    }

    /// Passes the gate, slowly if it says so.
    fn admit(&mut self, engine: &Engine, bytes: usize, deadline: Instant) -> Result<()> {
        let state = match self.shared.wait_for_gate(engine, deadline) {
            Ok((state, _)) => state,
            Err(_) if engine.is_poisoned() => {
                return Err(self.fail(Failure::Other("a background flush or compaction failed".into())));
            }
            Err(error) => return Err(error),
        };
        if let GateState::Slow(per_mib) = state {
            let delay = per_mib.mul_f64(bytes as f64 / f64::from(1 << 20));
            let delay = delay.min(deadline.saturating_duration_since(Instant::now()));
            if delay > Duration::from_micros(100) {
                self.shared.numbers.slowed_us.fetch_add(delay.as_micros() as u64, Ordering::Relaxed);
                std::thread::sleep(delay);
            }
        }
        Ok(())
    }

    /// Commits and publishes; on an engine error the store is read-only from then on.
    fn commit(&mut self, engine: &Engine, mut delta: Delta) -> Result<()> {
        let set = delta.take_writes();
        if set.items.is_empty() {
            return Ok(());
        }
        let sync = self.shared.options.durability == Durability::Fsync;
        self.write(engine, set, sync)?;
        let floors_moved = delta.states.iter().any(|(id, state)| self.moves_floors(*id, state));
        if floors_moved {
            self.replace_catalog(|tables| {
                for table in tables {
                    if let Some(state) = delta.states.get(&table.table.id()) {
                        *table = TableView::of(table.table.clone(), state);
                    }
                }
            });
        }
        self.cache.committed(delta);
        self.publish();
        Ok(())
    }

    fn write(&mut self, engine: &Engine, set: WriteSet, sync: bool) -> Result<()> {
        engine.commit(set, sync).map_err(|failure| self.fail(failure))?;
        self.shared.numbers.commits.fetch_add(1, Ordering::Relaxed);
        if sync {
            self.shared.numbers.syncs.fetch_add(1, Ordering::Relaxed);
        }
        self.dirty |= !sync;
        Ok(())
    }

    fn moves_floors(&self, id: TableId, state: &TableState) -> bool {
        self.catalog.tables.iter().any(|t| {
            t.table.id() == id
                && (t.truncated_below != state.truncated_below
                    || t.tombstone_floor != state.tombstone_floor()
                    || t.counter_generation != state.counter_generation)
        })
    }

    fn replace_catalog(&mut self, change: impl FnOnce(&mut Vec<TableView>)) {
        let mut tables = self.catalog.tables.clone();
        change(&mut tables);
        let new = Arc::new(Catalog { tables });
        let old = std::mem::replace(&mut self.catalog, new);
        self.retention.changed(Some(&old), &self.catalog);
    }

    fn publish(&mut self) {
        let Some(engine) = &self.engine else { return };
        self.number += 1;
        let published = Arc::new(Published {
            snapshot: engine.snapshot(),
            catalog: self.catalog.clone(),
            number: self.number,
            taken: Instant::now(),
        });
        let mut views = lock(&self.shared.views);
        if views.len() >= 64 {
            views.retain(|view| view.strong_count() > 0);
        }
        views.push(Arc::downgrade(&published));
        drop(views);
        self.shared.published.store(Some(published));
    }

    /// Makes the store read-only.
    fn fail(&mut self, failure: Failure) -> Error {
        // Only the first failure says what it was; later ones just find the engine stopped.
        let disk_full = failure.is_disk_full() || !opening::has_space(&self.shared.path, PROBE_BYTES);
        let reason: Arc<str> = failure.reason().into();
        tracing::error!(path = %self.shared.path.display(), %reason, disk_full, "store failed, now read-only");
        let error = Error::Failed { reason: reason.clone(), disk_full };
        *lock(&self.shared.status) = Status::Failed { reason, disk_full, since: Instant::now() };
        self.last_attempt = Instant::now();
        error
    }

    pub(crate) fn ingest(&mut self, mut chunk: Chunk, deadline: Instant) -> Result<u64> {
        let engine = self.engine()?;
        let table = self.table(chunk.table.id(), chunk.table.name())?;
        let (Some(first), Some(last)) = (chunk.first, chunk.last) else { return Ok(0) };
        self.admit(&engine, chunk.bytes(), deadline)?;
        let view = self.shared.view()?;
        let mut group = Delta::default();
        let layers = Layers::new(view.snapshot(), &self.cache, &mut group);
        let mut state = layers.state(table.id())?;
        if let Some(highest) = state.highest_id
            && first <= highest
        {
            return Err(Error::NotAbove { first, highest });
        }
        if chunk.lowest_version < state.truncated_below {
            return Err(Error::BadRequest(format!(
                "chunk has version {} below truncate {}",
                chunk.lowest_version, state.truncated_below
            )));
        }
        let counters = layers.add_totals(&table, &state, &chunk)?;
        let batch = Batch { positions: chunk.positions.clone(), ..Batch::default() };
        layers.apply(batch)?;
        group.counters.extend(counters);
        state.saw(last, &chunk.highest_version);
        group.states.insert(table.id(), state);

        let intent_key = key::intent(table.id());
        let rows_loaded = chunk.len() as u64;
        chunk.sort();
        let intent = Intent { first, last, entry: chunk.lowest_entry(), writes: group.take_writes().items };
        let mut set = WriteSet::default();
        set.put(intent_key.clone(), intent.encode(&intent_key));
        self.write(&engine, set, true)?;
        engine.ingest(chunk.stored_rows()).map_err(|failure| self.fail(failure))?;
        engine.ingest(chunk.stored_entries()).map_err(|failure| self.fail(failure))?;
        group.writes = intent.writes.into_iter().chain([(intent_key, None)]).collect();
        self.commit(&engine, group)?;
        self.shared.numbers.ingested_rows.fetch_add(rows_loaded, Ordering::Relaxed);
        Ok(rows_loaded)
    }

    /// Creates a table, or brings a stored one up to the declaration.
    pub(crate) fn create_table(&mut self, declared: Schema) -> Result<Table> {
        let engine = self.engine()?;
        let stored = self.catalog.tables.iter().find(|t| t.table.name() == declared.name());
        let table = match stored {
            Some(stored) => {
                let schema = stored.table.schema().evolve(&declared)?;
                if schema == *stored.table.schema() {
                    return Ok(stored.table.clone());
                }
                Table::new(stored.table.id(), schema, self.cells)
            }
            None => {
                let next =
                    self.catalog.tables.iter().map(|t| t.table.id().0).max().map_or(Some(0), |id| id.checked_add(1));
                let next = next.ok_or_else(|| Error::BadRequest("too many tables".into()))?;
                Table::new(TableId(next), declared, self.cells)
            }
        };
        let key = key::schema(table.id());
        let value = crate::state::encode_plain(&key, &table.schema().encode());
        let mut set = WriteSet::default();
        set.put(key, value);
        self.write(&engine, set, true)?;
        let made = table.clone();
        self.replace_catalog(|tables| match tables.iter_mut().find(|t| t.table.id() == table.id()) {
            Some(stored) => stored.table = table,
            None => tables.push(TableView::of(table, &TableState::default())),
        });
        self.publish();
        Ok(made)
    }

    /// Puts everything acknowledged so far on stable storage.
    pub(crate) fn sync(&mut self) -> Result<()> {
        let engine = self.engine()?;
        engine.sync().map_err(|failure| self.fail(failure))?;
        self.shared.numbers.syncs.fetch_add(1, Ordering::Relaxed);
        self.dirty = false;
        self.last_sync = Instant::now();
        Ok(())
    }

    pub(crate) fn flush(&mut self, deadline: Duration) -> Result<()> {
        let engine = self.engine()?;
        engine.flush(deadline).map_err(|failure| match engine.is_poisoned() {
            true => self.fail(failure),
            false => Error::Stalled { waited: deadline, reason: failure.reason() },
        })
    }

    /// Merges everything into the last level, dropping what nobody can see any more.
    pub(crate) fn compact(&mut self) -> Result<()> {
        let engine = self.engine()?;
        self.flush(Duration::from_secs(60))?;
        // A fresh view, so that the published one does not hold old values back.
        self.publish();
        self.retention.advance();
        let oldest = self.shared.oldest_sequence();
        engine.compact(oldest).map_err(|failure| Error::Engine(failure.reason()))?;
        self.publish();
        engine.forget_before(self.shared.oldest_sequence());
        Ok(())
    }

    fn tick(&mut self) {
        self.retention.advance();
        let status = lock(&self.shared.status).clone();
        match status {
            Status::Running => {
                let Some(engine) = self.engine.clone() else { return };
                if engine.is_poisoned() {
                    // A flush or compaction failed behind our back.
                    self.fail(Failure::Other("a background flush or compaction failed".into()));
                    return;
                }
                // A snapshot sees the files of its time. Without a new one after a compaction, an
                // idle store would keep the old files, and read them, until the next write.
                let published = self.shared.published.load();
                if published.as_ref().is_some_and(|p| p.snapshot.sequence() != engine.sequence()) {
                    drop(published);
                    self.publish();
                    engine.forget_before(self.shared.oldest_sequence());
                }
                if self.dirty && self.last_sync.elapsed() >= self.shared.options.sync_every {
                    // The failure is kept as the store's state; there is nobody to answer.
                    let _ = self.sync();
                }
            }
            Status::Failed { disk_full: true, .. }
                if self.shared.options.recover_when_space_returns && self.last_attempt.elapsed() >= RECOVER_EVERY =>
            {
                self.last_attempt = Instant::now();
                if opening::has_space(&self.shared.path, PROBE_BYTES)
                    && let Err(error) = self.recover()
                {
                    tracing::warn!(path = %self.shared.path.display(), %error, "store did not recover");
                }
            }
            Status::Failed { .. } => {}
        }
    }

    /// Closes a failed engine and opens it again from what is on disk.
    pub(crate) fn recover(&mut self) -> Result<()> {
        if self.shared.failed().is_none() {
            return Ok(());
        }
        let last = self.shared.published.swap(None);
        *lock(&self.shared.engine) = None;
        let deadline = Instant::now() + READERS_LEAVE;
        let held_by_us = usize::from(last.is_some());
        loop {
            let mut views = lock(&self.shared.views);
            views.retain(|view| view.strong_count() > 0);
            let left: usize = views.iter().map(Weak::strong_count).sum();
            drop(views);
            if left <= held_by_us {
                break;
            }
            if Instant::now() >= deadline {
                self.shared.published.store(last);
                *lock(&self.shared.engine) = self.engine.clone();
                return Err(Error::Stalled {
                    waited: READERS_LEAVE,
                    reason: format!("{} readers still use the failed engine", left - held_by_us),
                });
            }
            std::thread::sleep(GATE_POLL);
        }
        drop(last);
        self.engine = None;
        let opened = opening::open_engine(&self.shared.path, &self.shared.options, false)?;
        self.install(opened);
        *lock(&self.shared.status) = Status::Running;
        tracing::info!(path = %self.shared.path.display(), "store recovered");
        Ok(())
    }

    /// Takes over what a checkpoint says of a table, before its rows.
    pub(crate) fn restore_state(&mut self, table: &Table, state: TableState) -> Result<()> {
        let engine = self.engine()?;
        let mut delta = Delta::default();
        // Ids count from the rows to come; generations of counters start anew.
        let state = TableState { highest_id: None, counter_generation: 0, ..state };
        delta.states.insert(table.id(), state);
        self.commit(&engine, delta)
    }

    /// Takes over positions and named values, after the rows they belong to.
    pub(crate) fn restore_names(
        &mut self,
        positions: Vec<(Lane, Vec<u8>)>,
        attributes: Vec<(String, Vec<u8>)>,
    ) -> Result<()> {
        let engine = self.engine()?;
        let mut batch = Batch::new();
        for (lane, position) in positions {
            batch.set_position(lane, Expected::Any, Some(position));
        }
        for (name, value) in attributes {
            batch.set_attribute(&name, Some(value))?;
        }
        let view = self.shared.view()?;
        let mut delta = Delta::default();
        Layers::new(view.snapshot(), &self.cache, &mut delta).apply(batch)?;
        self.commit(&engine, delta)
    }

    /// Flushes, syncs and closes the engine, and notes that the stop was clean.
    pub(crate) fn shut(mut self) -> Result<()> {
        self.shared.published.store(None);
        *lock(&self.shared.engine) = None;
        let Some(engine) = self.engine.take() else { return Ok(()) };
        if let Some(error) = self.shared.failed() {
            return Err(error);
        }
        let flushed = engine.flush(Duration::from_secs(30)).and_then(|()| engine.sync());
        drop(engine);
        flushed
            .map_err(|failure| Error::Failed { disk_full: failure.is_disk_full(), reason: failure.reason().into() })?;
        opening::mark_clean(&self.shared.path);
        Ok(())
    }
}
