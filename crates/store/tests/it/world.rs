//! A small table, a model of what the store promises about it, and a comparison of the two.

use std::collections::BTreeMap;

use metaroute_store::{
    AggregateQuery, Batch, Budget, Cancel, Chunk, Declaration, Direction, Error, Expected, Filter, Lane, ListPosition,
    ListQuery, Lookup, Outcome, Row, ScanQuery, Schema, Stopped, Store, Sum, Table, TimeKey, Value, Version, View,
    Walk,
};

pub(crate) const DECLARATION: &str = r#"{"name":"t","id":"id","tenant":"owner","time":"at",
 "columns":{"id":"u64","owner":"u64","at":"timestamp(6)?","name":"string","size":"u64?","score":"i64?","price":"decimal(10,2)?"},
 "listing":["name","size"]}"#;

pub(crate) fn schema() -> Schema {
    let declaration: Declaration = serde_json::from_str(DECLARATION).expect("valid JSON");
    Schema::parse(&declaration).expect("valid declaration")
}

/// A row of the test table without its id.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Content {
    pub(crate) owner: u64,
    pub(crate) at: Option<i64>,
    pub(crate) name: u8,
    pub(crate) size: Option<u64>,
    pub(crate) score: Option<i64>,
    pub(crate) cents: Option<i64>,
}

impl Content {
    pub(crate) fn values(&self, id: u64) -> Vec<Value> {
        vec![
            Value::U64(id),
            Value::U64(self.owner),
            self.at.map_or(Value::Null, Value::Timestamp),
            Value::String(format!("n{}", self.name)),
            self.size.map_or(Value::Null, Value::U64),
            self.score.map_or(Value::Null, Value::I64),
            self.cents.map_or(Value::Null, |c| Value::Decimal(decimal(c))),
        ]
    }

    fn position(&self, id: u64) -> ListPosition {
        ListPosition { time: self.at.map(time_key), id }
    }
}

pub(crate) fn decimal(cents: i64) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    format!("{sign}{}.{:02}", cents.abs() / 100, cents.abs() % 100)
}

fn time_key(micros: i64) -> TimeKey {
    TimeKey::of(Value::Timestamp(micros).as_ref()).expect("a time")
}

/// Which column an update changes.
#[derive(Clone, Debug)]
pub(crate) enum Set {
    Owner(u64),
    At(Option<i64>),
    Name(u8),
    Size(Option<u64>),
    Score(Option<i64>),
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Upsert { id: u64, version: u64, content: Content },
    Update { id: u64, version: u64, set: Vec<Set> },
    Delete { id: u64, version: u64, tenant: Option<u64> },
    Truncate { version: u64 },
    Expire { version: u64 },
    Evict { id: u64 },
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// One batch, as one request.
    Batch(Vec<Op>),
    /// A chunk above every id so far: gaps between ids, version, content.
    Ingest(Vec<(u64, u64, Content)>),
    Flush,
    Compact,
    Restart,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Slot {
    Live(u64, Content),
    Dead(u64),
}

impl Slot {
    fn version(&self) -> u64 {
        match self {
            Slot::Live(version, _) | Slot::Dead(version) => *version,
        }
    }
}

/// What the store should contain.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Model {
    pub(crate) slots: BTreeMap<u64, Slot>,
    pub(crate) truncated: u64,
    pub(crate) expired: u64,
    pub(crate) highest_id: Option<u64>,
    pub(crate) highest_version: Option<u64>,
    pub(crate) position: Option<u64>,
}

impl Model {
    fn forget(&mut self) {
        let (truncated, expired) = (self.truncated, self.expired);
        self.slots.retain(|_, slot| match slot {
            Slot::Live(version, _) => *version >= truncated,
            Slot::Dead(version) => *version >= truncated.max(expired),
        });
    }

    fn saw(&mut self, id: u64, version: u64) {
        self.highest_id = self.highest_id.max(Some(id));
        self.highest_version = self.highest_version.max(Some(version));
    }

    /// `Ok(None)` when a partial update misses its row.
    fn op(&mut self, op: &Op) -> Option<Outcome> {
        let applied = |replaced| Some(Outcome::Applied { replaced });
        match op {
            Op::Truncate { version } => {
                // Versions start at 1; the store's "nothing truncated" is below all of them.
                if *version <= self.truncated {
                    return Some(Outcome::Stale);
                }
                self.truncated = *version;
                if self.highest_version.is_none_or(|highest| highest < *version) {
                    self.highest_id = None;
                }
                self.forget();
                return applied(false);
            }
            Op::Expire { version } => {
                if *version <= self.expired {
                    return Some(Outcome::Stale);
                }
                self.expired = *version;
                self.forget();
                return applied(false);
            }
            Op::Evict { id } => {
                let before = self.slots.remove(id);
                return applied(matches!(before, Some(Slot::Live(..))));
            }
            _ => {}
        }
        let (id, version) = match op {
            Op::Upsert { id, version, .. } | Op::Update { id, version, .. } | Op::Delete { id, version, .. } => {
                (*id, *version)
            }
            _ => unreachable!("handled above"),
        };
        if version < self.truncated {
            return Some(Outcome::Stale);
        }
        let current = self.slots.get(&id).cloned();
        let stored = current.as_ref().map(Slot::version);
        if stored.is_some_and(|stored| version < stored) {
            return Some(Outcome::Stale);
        }
        let same = stored == Some(version);
        let live = matches!(current, Some(Slot::Live(..)));
        let new = match op {
            Op::Upsert { content, .. } if same => {
                let equal = matches!(&current, Some(Slot::Live(_, stored)) if stored == content);
                return Some(if equal { Outcome::Duplicate } else { Outcome::Conflict });
            }
            Op::Upsert { content, .. } => Slot::Live(version, content.clone()),
            Op::Update { .. } if same => return Some(Outcome::Duplicate),
            Op::Update { set, .. } => {
                let Some(Slot::Live(_, mut content)) = current else { return None };
                for set in set {
                    match set {
                        Set::Owner(v) => content.owner = *v,
                        Set::At(v) => content.at = *v,
                        Set::Name(v) => content.name = *v,
                        Set::Size(v) => content.size = *v,
                        Set::Score(v) => content.score = *v,
                    }
                }
                Slot::Live(version, content)
            }
            Op::Delete { .. } if same => {
                return Some(if live { Outcome::Conflict } else { Outcome::Duplicate });
            }
            Op::Delete { tenant, .. } => {
                let owner = match &current {
                    Some(Slot::Live(_, content)) => Some(content.owner),
                    _ => None,
                };
                if tenant.is_some() && *tenant != owner {
                    return Some(Outcome::OtherTenant);
                }
                Slot::Dead(version)
            }
            _ => unreachable!("handled above"),
        };
        self.slots.insert(id, new);
        self.saw(id, version);
        self.forget();
        applied(live)
    }

    /// Applies a batch; `None` and no change when a partial update misses its row.
    pub(crate) fn batch(&mut self, ops: &[Op], position: u64) -> Option<Vec<Outcome>> {
        let mut next = self.clone();
        let outcomes: Option<Vec<Outcome>> = {
            let outcomes: Vec<_> = ops.iter().map(|op| next.op(op)).collect();
            outcomes.into_iter().collect()
        };
        if outcomes.is_some() {
            next.position = Some(position);
            *self = next;
        }
        outcomes
    }

    /// The rows a chunk stands for, with their ids.
    pub(crate) fn chunk_rows(&self, rows: &[(u64, u64, Content)]) -> Vec<(u64, u64, Content)> {
        let mut id = self.highest_id;
        rows.iter()
            .map(|(gap, version, content)| {
                let next = id.map_or(*gap, |id| id + 1 + gap);
                id = Some(next);
                (next, (*version).max(self.truncated), content.clone())
            })
            .collect()
    }

    pub(crate) fn ingest(&mut self, rows: &[(u64, u64, Content)], position: u64) {
        for (id, version, content) in rows {
            self.slots.insert(*id, Slot::Live(*version, content.clone()));
            self.saw(*id, *version);
        }
        self.position = Some(position);
    }

    fn live(&self) -> impl DoubleEndedIterator<Item = (u64, u64, &Content)> {
        self.slots.iter().filter_map(|(id, slot)| match slot {
            Slot::Live(version, content) => Some((*id, *version, content)),
            Slot::Dead(_) => None,
        })
    }
}

pub(crate) fn lane() -> Lane {
    Lane::new("log/0").expect("short")
}

/// Builds the store's form of a batch.
pub(crate) fn build_batch(table: &Table, ops: &[Op], position: u64) -> Batch {
    let v = Version::from;
    let mut batch = Batch::new();
    for op in ops {
        match op {
            Op::Upsert { id, version, content } => {
                batch.upsert(table, v(*version), content.values(*id)).expect("a valid row");
            }
            Op::Update { id, version, set } => {
                let set = set
                    .iter()
                    .map(|set| match set {
                        Set::Owner(o) => (1, Value::U64(*o)),
                        Set::At(at) => (2, at.map_or(Value::Null, Value::Timestamp)),
                        Set::Name(n) => (3, Value::String(format!("n{n}"))),
                        Set::Size(s) => (4, s.map_or(Value::Null, Value::U64)),
                        Set::Score(s) => (5, s.map_or(Value::Null, Value::I64)),
                    })
                    .collect();
                batch.update(table, v(*version), *id, set).expect("valid values");
            }
            Op::Delete { id, version, tenant } => batch.delete(table, v(*version), *id, *tenant),
            Op::Truncate { version } => batch.truncate(table, v(*version)),
            Op::Expire { version } => batch.expire_tombstones(table, v(*version)),
            Op::Evict { id } => batch.evict(table, *id),
        }
    }
    batch.set_position(lane(), Expected::Any, Some(position.to_be_bytes().to_vec()));
    batch
}

pub(crate) fn build_chunk(table: &Table, rows: &[(u64, u64, Content)], position: u64) -> Chunk {
    let mut chunk = Chunk::new(table);
    for (id, version, content) in rows {
        chunk.push(Version::from(*version), content.values(*id)).expect("ascending, valid rows");
    }
    chunk.set_position(lane(), Expected::Any, Some(position.to_be_bytes().to_vec()));
    chunk
}

/// Applies a step that writes to both and compares what came of it.
pub(crate) fn apply(store: &Store, table: &Table, model: &mut Model, step: &Step, position: u64) {
    match step {
        Step::Batch(ops) => {
            let expected = model.batch(ops, position);
            match (store.apply(build_batch(table, ops, position)).wait(), expected) {
                (Ok(applied), Some(expected)) => assert_eq!(applied.outcomes, expected, "{ops:?}"),
                (Err(Error::NeedsFullRow { .. }), None) => {}
                (got, expected) => panic!("{ops:?}: got {got:?}, expected {expected:?}"),
            }
        }
        Step::Ingest(rows) => {
            let rows = model.chunk_rows(rows);
            if rows.is_empty() {
                return;
            }
            let got = store.ingest(build_chunk(table, &rows, position)).wait();
            assert_eq!(got.expect("chunk above all ids"), rows.len() as u64);
            model.ingest(&rows, position);
        }
        Step::Flush => store.flush().wait().expect("flush"),
        Step::Compact => store.compact().wait().expect("compact"),
        Step::Restart => unreachable!("handled by the runner"),
    }
}

pub(crate) const ALL: &[usize] = &[0, 1, 2, 3, 4, 5, 6];

type Predicate = fn(&Content) -> bool;
/// Filters and what they mean; the first reads listing columns only, the others need the row.
const FILTERS: &[(&str, Predicate)] = &[
    ("size > 3", |c| c.size.is_some_and(|s| s > 3)),
    ("name == n2 || score < 0", |c| c.name == 2 || c.score.is_some_and(|s| s < 0)),
    ("price >= 1.5 && exists(at)", |c| c.cents.is_some_and(|c| c >= 150) && c.at.is_some()),
    ("!exists(score) && owner in (1, 2)", |c| c.score.is_none() && (c.owner == 1 || c.owner == 2)),
];

fn same_row(row: &Row, id: u64, version: u64, content: &Content) {
    assert_eq!((row.id, row.tenant), (id, content.owner));
    assert_eq!(row.version, Version::from(version), "version of {id}");
    assert_eq!(row.time, content.at.map(time_key));
    assert_eq!(row.values, content.values(id), "row {id}");
}

/// A tiny generator, so that comparisons vary without a dependency on the runner's.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below.max(1)
    }
}

/// Everything the store can be asked must agree with the model.
pub(crate) fn compare(store: &Store, table: &Table, model: &Model, dice: &mut Dice) {
    let view = store.view().expect("open");
    compare_scans(&view, table, model, dice);
    compare_points(&view, table, model);
    compare_lists(&view, table, model, dice);
    compare_totals(&view, table, model);
    let position = view.position(&lane()).expect("readable");
    assert_eq!(position, model.position.map(|p| p.to_be_bytes().to_vec()));
    let report = view.check(&Cancel::new()).expect("readable");
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(report.tables[0].rows, model.live().count() as u64);
    assert_eq!(report.tables[0].tombstones, (model.slots.len() - model.live().count()) as u64);
}

fn compare_scans(view: &View, table: &Table, model: &Model, dice: &mut Dice) {
    for direction in [Direction::Ascending, Direction::Descending] {
        let limit = 1 + dice.roll(7) as usize;
        let entries = 1 + dice.roll(30);
        let mut walk =
            Walk { limit, direction, budget: Budget { entries, ..Budget::default() }, ..Walk::of(table, ALL) };
        let (text, means) = FILTERS[dice.roll(FILTERS.len() as u64) as usize];
        let filter = Filter::new(&metaroute_expr::Expr::parse(text).expect("valid"), table).expect("binds");
        let filtered = dice.roll(2) == 0;
        if filtered {
            walk.filter = Some(&filter);
        }
        let odd = |id: u64| id % 2 == 1;
        let owned = dice.roll(3) == 0;
        if owned {
            walk.owned = Some(&odd);
        }
        let mut expected: Vec<_> =
            model.live().filter(|(id, _, c)| (!filtered || means(c)) && (!owned || odd(*id))).collect();
        if direction == Direction::Descending {
            expected.reverse();
        }
        let mut query = ScanQuery { tombstones: true, ..ScanQuery::all(walk) };
        let (mut rows, mut dead) = (Vec::new(), Vec::new());
        loop {
            let page = view.scan(&query).expect("readable");
            assert!(page.rows.len() <= limit);
            assert_eq!(page.next.is_none(), page.stopped == Stopped::End);
            rows.extend(page.rows);
            dead.extend(page.tombstones);
            if page.next.is_none() {
                break;
            }
            query.after = page.next;
        }
        let found: std::collections::BTreeSet<u64> = rows.iter().map(|row| row.id).collect();
        let missing: Vec<_> = expected.iter().filter(|(id, ..)| !found.contains(id)).collect();
        assert!(missing.is_empty(), "scan {direction:?} {text} {filtered} {owned}: missing {missing:?}");
        assert_eq!(rows.len(), expected.len(), "scan {direction:?} {text} filtered {filtered} owned {owned}");
        for (row, (id, version, content)) in rows.iter().zip(expected) {
            same_row(row, id, version, content);
        }
        let mut expected: Vec<_> = model
            .slots
            .iter()
            .filter(|(id, slot)| matches!(slot, Slot::Dead(_)) && (!owned || odd(**id)))
            .map(|(id, slot)| (*id, Version::from(slot.version())))
            .collect();
        if direction == Direction::Descending {
            expected.reverse();
        }
        let dead: Vec<_> = dead.iter().map(|t| (t.id, t.version)).collect();
        assert_eq!(dead, expected, "tombstones");
    }
}

fn compare_points(view: &View, table: &Table, model: &Model) {
    let ids: Vec<u64> = (0..model.slots.keys().last().map_or(3, |last| last + 3)).take(200).collect();
    let got = view.multi_get(&Walk::of(table, ALL), &ids).expect("readable");
    for (id, got) in ids.into_iter().zip(got) {
        match (model.slots.get(&id), &got) {
            (None, Lookup::Absent) => {}
            (Some(Slot::Dead(version)), Lookup::Deleted(got)) => assert_eq!(*got, Version::from(*version)),
            (Some(Slot::Live(version, content)), Lookup::Found(row)) => same_row(row, id, *version, content),
            (expected, got) => panic!("row {id}: expected {expected:?}, got {got:?}"),
        }
        assert_eq!(view.get(table, id, ALL).expect("readable"), got);
    }
}

fn compare_lists(view: &View, table: &Table, model: &Model, dice: &mut Dice) {
    let tenants: std::collections::BTreeSet<u64> = model.live().map(|(.., c)| c.owner).chain([99]).collect();
    for tenant in tenants {
        for direction in [Direction::Ascending, Direction::Descending] {
            let mut walk = Walk {
                limit: 1 + dice.roll(5) as usize,
                direction,
                budget: Budget { entries: 1 + dice.roll(30), ..Budget::default() },
                ..Walk::of(table, ALL)
            };
            let (text, means) = FILTERS[dice.roll(FILTERS.len() as u64) as usize];
            let filter = Filter::new(&metaroute_expr::Expr::parse(text).expect("valid"), table).expect("binds");
            let filtered = dice.roll(2) == 0;
            if filtered {
                walk.filter = Some(&filter);
            }
            // Times are small numbers around zero, so bounds hit and miss.
            let bound = |dice: &mut Dice| (dice.roll(3) == 0).then(|| dice.roll(8) as i64 - 4);
            let (from, to) = (bound(dice), bound(dice));
            let mut expected: Vec<_> = model
                .live()
                .filter(|(_, _, c)| c.owner == tenant && (!filtered || means(c)))
                .filter(|(_, _, c)| {
                    (from.is_none() && to.is_none())
                        || c.at.is_some_and(|at| from.is_none_or(|f| at >= f) && to.is_none_or(|t| at < t))
                })
                .collect();
            expected.sort_by_key(|(id, _, c)| c.position(*id));
            if direction == Direction::Descending {
                expected.reverse();
            }
            let listed = [0, 1, 2, 3, 4];
            let fat = dice.roll(2) == 0;
            if fat {
                walk.columns = &listed;
            }
            let mut query = ListQuery { walk, tenant, from: from.map(time_key), to: to.map(time_key), after: None };
            let mut rows = Vec::new();
            loop {
                let page = view.list(&query).expect("readable");
                if fat && (!filtered || text == FILTERS[0].0) {
                    assert_eq!(page.row_reads, 0, "a listing of listing columns reads no rows");
                }
                rows.extend(page.rows);
                if page.next.is_none() {
                    break;
                }
                query.after = page.next;
            }
            assert_eq!(rows.len(), expected.len(), "list {tenant} {direction:?} {from:?}..{to:?} {text} {filtered}");
            for (row, (id, version, content)) in rows.iter_mut().zip(expected) {
                if fat {
                    let full = content.values(id);
                    assert_eq!(row.values, full[..5]);
                    row.values = full;
                }
                same_row(row, id, version, content);
            }
        }
    }
}

fn compare_totals(view: &View, table: &Table, model: &Model) {
    let tenants: std::collections::BTreeSet<Option<u64>> =
        model.live().map(|(.., c)| Some(c.owner)).chain([None, Some(99)]).collect();
    for tenant in tenants {
        let rows: Vec<&Content> =
            model.live().map(|(.., c)| c).filter(|c| tenant.is_none_or(|t| t == c.owner)).collect();
        let totals = view.totals(table, tenant).expect("readable");
        let sum = |f: fn(&Content) -> i128| rows.iter().map(|c| f(c)).sum::<i128>();
        assert_eq!(totals.rows, rows.len() as u64, "rows of {tenant:?}");
        let sums = [
            sum(|c| c.size.map_or(0, i128::from)),
            sum(|c| c.score.map_or(0, i128::from)),
            sum(|c| c.cents.map_or(0, i128::from)),
        ];
        for (n, expected) in sums.into_iter().enumerate() {
            assert_eq!(totals.sum(n), expected, "sum {n} of {tenant:?}");
        }
        let query = AggregateQuery {
            walk: Walk::of(table, &[]),
            tenant,
            from: None,
            to: None,
            columns: &[2, 4, 5, 6],
            after: None,
        };
        let got = view.aggregate(&query).expect("readable");
        assert_eq!((got.rows, got.next), (rows.len() as u64, None));
        let at = &got.columns[0];
        assert_eq!(at.values, rows.iter().filter(|c| c.at.is_some()).count() as u64);
        assert_eq!(at.min, rows.iter().filter_map(|c| c.at).min().map(Value::Timestamp));
        assert_eq!(at.max, rows.iter().filter_map(|c| c.at).max().map(Value::Timestamp));
        assert_eq!(at.sum, None);
        assert_eq!(got.columns[1].sum, Some(Sum::Integer(sums[0])));
        assert_eq!(got.columns[2].min, rows.iter().filter_map(|c| c.score).min().map(Value::I64));
        assert_eq!(got.columns[3].sum, Some(Sum::Decimal { unscaled: sums[2], scale: 2 }));
        assert_eq!(got.columns[3].max, rows.iter().filter_map(|c| c.cents).max().map(|c| Value::Decimal(decimal(c))));
    }
}
