//! Versioned, idempotent apply: from changes to the exact bytes to write.
//!
//! The rules are those of a last-writer-wins register per row: a change counts only above the version
//! stored for its id, in a row or in a tombstone; a delete leaves a tombstone even where no row is;
//! counters and index are computed from the row before and the row after, never from what a message
//! says was there before. Feeding the same changes again, in any order, ends in the same state.
//!
//! Everything here is computed on layers above a snapshot and touches no disk but to read, so a
//! request that turns out to be refused leaves no trace in the commit it would have shared.

use std::collections::BTreeMap;
use std::ops::Bound;

use rustc_hash::FxHashMap;

use crate::batch::{Applied, Batch, Change, Expected, Op, Outcome, PositionChange};
use crate::engine::{Bytes, Snapshot, WriteSet};
use crate::error::{Error, Result};
use crate::ingest::Chunk;
use crate::key::{self, TableId};
use crate::record::{self, Kind, Record};
use crate::state::{TableState, Totals, decode_plain, encode_plain};
use crate::table::{Prepared, Table, Traces};
use crate::value::ValueRef;
use crate::version::Version;

/// Whose counter: table, counter generation, tenant or `None` for the whole table.
pub(crate) type CounterId = (TableId, u32, Option<u64>);

/// Writes not yet committed.
#[derive(Default)]
pub(crate) struct Delta {
    pub(crate) writes: FxHashMap<Vec<u8>, Option<Vec<u8>>>,
    pub(crate) states: FxHashMap<TableId, TableState>,
    pub(crate) counters: FxHashMap<CounterId, Totals>,
}

impl Delta {
    fn absorb(&mut self, newer: Delta) {
        if self.writes.is_empty() {
            self.writes = newer.writes;
        } else {
            self.writes.extend(newer.writes);
        }
        self.states.extend(newer.states);
        self.counters.extend(newer.counters);
    }

    /// Takes out the writes for the engine, those of states and counters included, in key order.
    pub(crate) fn take_writes(&mut self) -> WriteSet {
        let mut items: Vec<_> = std::mem::take(&mut self.writes).into_iter().collect();
        for (&table, state) in &self.states {
            let key = key::state(table);
            let value = state.encode(&key);
            items.push((key, Some(value)));
        }
        for (&(table, generation, tenant), totals) in &self.counters {
            let key = key::counter(table, generation, tenant);
            let value = totals.encode(&key);
            items.push((key, Some(value)));
        }
        items.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        WriteSet { items }
    }
}

/// States and counters as last committed, kept so that a batch need not read them back.
#[derive(Default)]
pub(crate) struct Cache {
    states: FxHashMap<TableId, TableState>,
    counters: FxHashMap<CounterId, Totals>,
}

/// Tenants whose counters are remembered; about 100 bytes each.
const CACHED_COUNTERS: usize = 100_000;

impl Cache {
    /// Takes over what a commit wrote.
    pub(crate) fn committed(&mut self, delta: Delta) {
        self.states.extend(delta.states);
        if self.counters.len() + delta.counters.len() > CACHED_COUNTERS {
            self.counters.clear();
        }
        self.counters.extend(delta.counters);
    }
}

/// What is stored under a row's id, as far as versions still count it.
enum Current {
    Absent,
    Live { bytes: Held, version: Version },
    Tombstone { version: Version },
}

/// Bytes from either layer.
enum Held {
    Pending(Vec<u8>),
    Stored(Bytes),
}

impl std::ops::Deref for Held {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Held::Pending(bytes) => bytes,
            Held::Stored(bytes) => bytes,
        }
    }
}

/// The layers a request is computed on: its own writes, those of requests before it in the same
/// commit, and the last published snapshot.
pub(crate) struct Layers<'a> {
    snapshot: &'a Snapshot,
    cache: &'a Cache,
    group: &'a mut Delta,
    own: Delta,
}

impl<'a> Layers<'a> {
    pub(crate) fn new(snapshot: &'a Snapshot, cache: &'a Cache, group: &'a mut Delta) -> Self {
        Layers { snapshot, cache, group, own: Delta::default() }
    }

    /// Computes a batch and adds it to the group; on an error the group is as before.
    pub(crate) fn apply(mut self, batch: Batch) -> Result<Applied> {
        for change in batch.positions {
            self.position(change)?;
        }
        for (name, value) in batch.attributes {
            let key = key::attribute(&name);
            let value = value.map(|v| encode_plain(&key, &v));
            self.own.writes.insert(key, value);
        }
        let mut outcomes = Vec::with_capacity(batch.changes.len());
        let mut missing: Option<(String, Vec<u64>)> = None;
        for change in batch.changes {
            match self.change(change)? {
                Ok(outcome) => outcomes.push(outcome),
                Err((table, id)) => {
                    missing.get_or_insert_with(|| (table, Vec::new())).1.push(id);
                }
            }
        }
        if let Some((table, ids)) = missing {
            return Err(Error::NeedsFullRow { table, ids });
        }
        self.group.absorb(self.own);
        Ok(Applied { outcomes })
    }

    fn get(&self, key: &[u8]) -> Result<Option<Held>> {
        for layer in [&self.own, &*self.group] {
            if let Some(value) = layer.writes.get(key) {
                return Ok(value.clone().map(Held::Pending));
            }
        }
        Ok(self.snapshot.get(key)?.map(Held::Stored))
    }

    pub(crate) fn state(&self, table: TableId) -> Result<TableState> {
        let layers = [&self.own.states, &self.group.states, &self.cache.states];
        if let Some(state) = layers.into_iter().find_map(|layer| layer.get(&table)) {
            return Ok(state.clone());
        }
        let key = key::state(table);
        match self.snapshot.get(&key)? {
            None => Ok(TableState::default()),
            Some(bytes) => TableState::decode(&key, &bytes).map_err(|e| Error::record(&key, e)),
        }
    }

    fn counter(&self, id: CounterId) -> Result<Totals> {
        let layers = [&self.own.counters, &self.group.counters, &self.cache.counters];
        if let Some(totals) = layers.into_iter().find_map(|layer| layer.get(&id)) {
            return Ok(totals.clone());
        }
        let key = key::counter(id.0, id.1, id.2);
        match self.snapshot.get(&key)? {
            None => Ok(Totals::default()),
            Some(bytes) => Totals::decode(&key, &bytes).map_err(|e| Error::record(&key, e)),
        }
    }

    fn count(&mut self, state: &TableState, table: TableId, tenant: u64, sums: &[i128], sign: i128) -> Result<()> {
        for tenant in [None, Some(tenant)] {
            let id = (table, state.counter_generation, tenant);
            if let Some(totals) = self.own.counters.get_mut(&id) {
                totals.add(sums, sign);
                continue;
            }
            let mut totals = self.counter(id)?;
            totals.add(sums, sign);
            self.own.counters.insert(id, totals);
        }
        Ok(())
    }

    /// The counters as they will be once a chunk is in.
    pub(crate) fn add_totals(
        &self,
        table: &Table,
        state: &TableState,
        chunk: &Chunk,
    ) -> Result<FxHashMap<CounterId, Totals>> {
        let tenants = chunk.tenants.iter().map(|(&tenant, totals)| (Some(tenant), totals));
        std::iter::once((None, &chunk.total))
            .chain(tenants)
            .map(|(tenant, added)| {
                let id = (table.id(), state.counter_generation, tenant);
                let mut totals = self.counter(id)?;
                totals.merge(added);
                Ok((id, totals))
            })
            .collect()
    }

    fn position(&mut self, change: PositionChange) -> Result<()> {
        let key = key::position(&change.lane);
        if change.expected != Expected::Any {
            let found = match self.get(&key)? {
                None => None,
                Some(bytes) => Some(decode_plain(&key, &bytes).map_err(|e| Error::record(&key, e))?.to_vec()),
            };
            let as_expected = match &change.expected {
                Expected::Any => true,
                Expected::Absent => found.is_none(),
                Expected::At(at) => found.as_ref() == Some(at),
            };
            if !as_expected {
                return Err(Error::PositionMismatch { lane: change.lane, found });
            }
        }
        let value = change.to.map(|to| encode_plain(&key, &to));
        self.own.writes.insert(key, value);
        Ok(())
    }

    /// Applies one change; `Ok(Err(..))` names a row that is missing for a partial update.
    fn change(&mut self, change: Change) -> Result<Result<Outcome, (String, u64)>> {
        let Change { table, id, version, op } = change;
        let mut state = self.state(table.id())?;
        match op {
            Op::Truncate => return self.truncate(&table, version, state).map(Ok),
            Op::ExpireTombstones => {
                if version <= state.tombstones_below {
                    return Ok(Ok(Outcome::Stale));
                }
                state.tombstones_below = version;
                self.own.states.insert(table.id(), state);
                return Ok(Ok(Outcome::Applied { replaced: false }));
            }
            Op::Evict => return self.evict(&table, id, &state).map(Ok),
            Op::Upsert(_) | Op::Update(_) | Op::Delete { .. } => {}
        }
        if version < state.truncated_below {
            return Ok(Ok(Outcome::Stale));
        }
        let row_key = key::row(table.id(), id);
        let current = self.current(&state, &row_key, id)?;
        let stored = match &current {
            Current::Absent => None,
            Current::Live { version, .. } | Current::Tombstone { version } => Some(*version),
        };
        if stored.is_some_and(|stored| version < stored) {
            return Ok(Ok(Outcome::Stale));
        }
        let same_version = stored == Some(version);
        match op {
            Op::Upsert(new) => {
                if same_version {
                    let same = matches!(&current, Current::Live { bytes, .. } if **bytes == *new.row);
                    return Ok(Ok(if same { Outcome::Duplicate } else { Outcome::Conflict }));
                }
                self.replace(&table, id, row_key, &current, new, version, state).map(Ok)
            }
            Op::Update(set) => {
                if same_version {
                    return Ok(Ok(Outcome::Duplicate));
                }
                let Current::Live { bytes, .. } = &current else {
                    return Ok(Err((table.name().to_owned(), id)));
                };
                let new = overlay(&table, id, &row_key, bytes, set, &version)?;
                self.replace(&table, id, row_key, &current, new, version, state).map(Ok)
            }
            Op::Delete { tenant } => {
                if same_version {
                    let same = matches!(current, Current::Tombstone { .. });
                    return Ok(Ok(if same { Outcome::Duplicate } else { Outcome::Conflict }));
                }
                let mut replaced = false;
                if let Current::Live { bytes, .. } = &current {
                    let old = traces(&table, &row_key, bytes)?;
                    if tenant.is_some_and(|tenant| tenant != old.tenant) {
                        return Ok(Ok(Outcome::OtherTenant));
                    }
                    self.unindex(&table, id, &old);
                    self.count(&state, table.id(), old.tenant, &old.sums, -1)?;
                    replaced = true;
                } else if tenant.is_some() {
                    return Ok(Ok(Outcome::OtherTenant));
                }
                let value = record::tombstone(&row_key, &version);
                self.own.writes.insert(row_key, Some(value));
                state.saw(id, &version);
                self.own.states.insert(table.id(), state);
                Ok(Ok(Outcome::Applied { replaced }))
            }
            Op::Truncate | Op::ExpireTombstones | Op::Evict => {
                unreachable!("handled before the version check")
            }
        }
    }

    fn current(&self, state: &TableState, row_key: &[u8], id: u64) -> Result<Current> {
        // Ids above the highest ever stored need no look; this is every row of an ascending load.
        if state.highest_id.is_none_or(|highest| id > highest) {
            return Ok(Current::Absent);
        }
        let Some(bytes) = self.get(row_key)? else { return Ok(Current::Absent) };
        let record = Record::read(row_key, &bytes).map_err(|e| Error::record(row_key, e))?;
        let (kind, version) = (record.kind, record.version());
        Ok(match kind {
            Kind::Live if version >= state.truncated_below => Current::Live { bytes, version },
            Kind::Tombstone if version >= state.tombstone_floor() => Current::Tombstone { version },
            _ => Current::Absent,
        })
    }

    #[expect(clippy::too_many_arguments, reason = "one call site per kind of write, all named alike")]
    fn replace(
        &mut self,
        table: &Table,
        id: u64,
        row_key: Vec<u8>,
        current: &Current,
        new: Prepared,
        version: Version,
        mut state: TableState,
    ) -> Result<Outcome> {
        let mut replaced = false;
        if let Current::Live { bytes, .. } = current {
            let old = traces(table, &row_key, bytes)?;
            self.unindex(table, id, &old);
            self.count(&state, table.id(), old.tenant, &old.sums, -1)?;
            replaced = true;
        }
        self.count(&state, table.id(), new.tenant, &new.sums, 1)?;
        self.own.writes.insert(row_key, Some(new.row));
        self.own.writes.insert(new.index_key, Some(new.entry));
        state.saw(id, &version);
        self.own.states.insert(table.id(), state);
        Ok(Outcome::Applied { replaced })
    }

    /// Index entries are overwritten, not deleted: a run of a million engine deletes would be waded
    /// through inside one step of a scan, where no budget can stop it (hazard 6).
    fn unindex(&mut self, table: &Table, id: u64, old: &Traces) {
        let key = key::index(table.id(), old.tenant, old.time, id);
        let value = record::void(&key);
        self.own.writes.insert(key, Some(value));
    }

    fn evict(&mut self, table: &Table, id: u64, state: &TableState) -> Result<Outcome> {
        let row_key = key::row(table.id(), id);
        let replaced = match self.current(state, &row_key, id)? {
            Current::Absent => return Ok(Outcome::Applied { replaced: false }),
            Current::Tombstone { .. } => false,
            Current::Live { bytes, .. } => {
                let old = traces(table, &row_key, &bytes)?;
                self.unindex(table, id, &old);
                self.count(state, table.id(), old.tenant, &old.sums, -1)?;
                true
            }
        };
        let value = record::void(&row_key);
        self.own.writes.insert(row_key, Some(value));
        Ok(Outcome::Applied { replaced })
    }

    fn truncate(&mut self, table: &Table, version: Version, mut state: TableState) -> Result<Outcome> {
        if version <= state.truncated_below {
            return Ok(Outcome::Stale);
        }
        state.truncated_below = version;
        state.counter_generation = state.counter_generation.wrapping_add(1);
        if state.highest_version < version {
            state.highest_id = None;
        } else {
            self.recount(table, &state)?;
        }
        self.own.states.insert(table.id(), state);
        Ok(Outcome::Applied { replaced: false })
    }

    /// Counts the rows that survive a truncate into the new counter generation.
    fn recount(&mut self, table: &Table, state: &TableState) -> Result<()> {
        let prefix = key::row_prefix(table.id());
        let end = key::after_prefix(&prefix);
        let range = (Bound::Included(prefix.as_slice()), end.as_deref().map_or(Bound::Unbounded, Bound::Excluded));
        let mut counted: FxHashMap<CounterId, Totals> = FxHashMap::default();
        let mut count = |key: &[u8], bytes: &[u8]| -> Result<()> {
            let record = Record::read(key, bytes).map_err(|e| Error::record(key, e))?;
            if record.kind == Kind::Live && record.version() >= state.truncated_below {
                let row = table.traces(&record).map_err(|e| Error::record(key, e))?;
                for tenant in [None, Some(row.tenant)] {
                    let id = (table.id(), state.counter_generation, tenant);
                    counted.entry(id).or_default().add(&row.sums, 1);
                }
            }
            Ok(())
        };
        let mut pending: BTreeMap<&[u8], Option<&[u8]>> = BTreeMap::new();
        for layer in [&*self.group, &self.own] {
            let rows = layer.writes.iter().filter(|(key, _)| key.starts_with(&prefix));
            pending.extend(rows.map(|(k, v)| (k.as_slice(), v.as_deref())));
        }
        for entry in self.snapshot.scan(range.0, range.1) {
            let (key, bytes) = entry?;
            if !pending.contains_key(&*key) {
                count(&key, &bytes)?;
            }
        }
        for (key, bytes) in pending {
            if let Some(bytes) = bytes {
                count(key, bytes)?;
            }
        }
        self.own.counters.extend(counted);
        Ok(())
    }
}

fn traces(table: &Table, key: &[u8], bytes: &[u8]) -> Result<Traces> {
    Record::read(key, bytes).and_then(|record| table.traces(&record)).map_err(|e| Error::record(key, e))
}

/// The stored row with some columns replaced.
fn overlay(
    table: &Table,
    id: u64,
    key: &[u8],
    bytes: &[u8],
    set: Vec<(usize, crate::Value)>,
    version: &Version,
) -> Result<Prepared> {
    let mut row =
        Record::read(key, bytes).and_then(|record| table.values(id, &record)).map_err(|e| Error::record(key, e))?;
    for (at, value) in set {
        row[at] = value;
    }
    let prepared = table.encode(id, version, |at| row.get(at).map_or(ValueRef::Null, |v| v.as_ref()));
    if prepared.row.len() > record::ROW_BYTES_MAX {
        return Err(Error::Row {
            table: table.name().to_owned(),
            id,
            source: crate::RowError::TooLong { bytes: prepared.row.len() },
        });
    }
    Ok(prepared)
}
