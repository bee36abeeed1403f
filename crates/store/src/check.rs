//! Looking a store over: is everything readable, and does it agree with itself?
//!
//! Rows, index and counters say the same thing three times. A check reads all of it and names every
//! disagreement, so that "the listing misses a file" can be told from "the file was never here".
//! Memory stays flat however large the store is: index and counters are both ordered by tenant, so
//! they are compared as they stream by.

use std::ops::Bound;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::filter::time_of;
use crate::ingest::Intent;
use crate::key::{self, Lane, Parsed, TableId, TimeKey};
use crate::query::Cancel;
use crate::record::{Kind, Record, RecordError};
use crate::schema::{Declaration, Schema};
use crate::state::{TableState, Totals, decode_plain};
use crate::table::Table;
use crate::value::{Value, ValueRef};
use crate::version::Version;
use crate::view::{TableView, View};

/// Problems listed in full; more are only counted.
const PROBLEMS_LISTED: usize = 1_000;

/// What a check found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// One per table, in order of creation.
    pub tables: Vec<TableReport>,
    /// Log lanes with a position.
    pub positions: u64,
    /// The first problems found, in the order found.
    pub problems: Vec<Problem>,
    /// How many problems there are in all.
    pub problem_count: u64,
}

impl CheckReport {
    /// True when nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0
    }

    fn problem(&mut self, problem: Problem) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_LISTED {
            self.problems.push(problem);
        }
    }
}

/// What a check counted in one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableReport {
    /// The table.
    pub name: String,
    /// Live rows.
    pub rows: u64,
    /// Tombstones still standing.
    pub tombstones: u64,
    /// Stored values nobody can see any more, waiting for compaction.
    pub garbage: u64,
    /// Live index entries.
    pub entries: u64,
    /// Tenants with rows.
    pub tenants: u64,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// A file has damaged blocks.
    DamagedFile(PathBuf),
    /// A value does not decode.
    DamagedRecord {
        /// Its key in hexadecimal.
        key: String,
        /// What is wrong.
        error: RecordError,
    },
    /// A key belongs to nothing known.
    UnknownKey(String),
    /// An index entry and its row disagree, or the row is missing.
    EntryWithoutRow {
        /// The table.
        table: String,
        /// The row's id.
        id: u64,
        /// The entry's tenant.
        tenant: u64,
    },
    /// There are live rows without an index entry.
    RowsWithoutEntry {
        /// The table.
        table: String,
        /// How many.
        count: u64,
    },
    /// A maintained counter is not what the rows add up to.
    WrongTotals {
        /// The table.
        table: String,
        /// The tenant; `None` for the whole table.
        tenant: Option<u64>,
        /// What is stored.
        stored: Totals,
        /// What the rows add up to.
        counted: Totals,
    },
    /// Counters say rows of more tenants than there are.
    StrayTotals {
        /// The table.
        table: String,
        /// How many counters too many.
        count: u64,
    },
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Problem::DamagedFile(file) => write!(f, "damaged file {}", file.display()),
            Problem::DamagedRecord { key, error } => write!(f, "damaged record {key}: {error}"),
            Problem::UnknownKey(key) => write!(f, "unknown key {key}"),
            Problem::EntryWithoutRow { table, id, tenant } => {
                write!(f, "{table}: index of tenant {tenant} has row {id}, which is not so")
            }
            Problem::RowsWithoutEntry { table, count } => {
                write!(f, "{table}: {count} rows are missing in the index")
            }
            Problem::WrongTotals { table, tenant, stored, counted } => {
                let whose = tenant.map_or("all".to_owned(), |t| format!("tenant {t}"));
                write!(
                    f,
                    "{table}: totals of {whose} are {} rows {:?}, counted {} rows {:?}",
                    stored.rows, stored.sums, counted.rows, counted.sums
                )
            }
            Problem::StrayTotals { table, count } => {
                write!(f, "{table}: {count} tenants have totals but no rows")
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl View {
    /// Checks everything this view sees. Reads all of it, so it belongs on a scan thread or a closed
    /// store's own.
    ///
    /// # Errors
    /// Only on cancellation and on trouble outside the data; what is wrong with the data is in the
    /// report.
    pub fn check(&self, cancel: &Cancel) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        let damaged = self.snapshot().damaged_tables(cancel)?;
        for file in &damaged {
            report.problem(Problem::DamagedFile(file.clone()));
        }
        for table in self.tables() {
            report.tables.push(TableReport { name: table.name().to_owned(), ..TableReport::default() });
        }
        // With blocks missing, everything after them would be reported as well, and wrongly.
        if damaged.is_empty() {
            self.check_records(cancel, &mut report)?;
            for n in 0..report.tables.len() {
                let at = &self.catalog().tables[n];
                self.check_table(at, n, cancel, &mut report)?;
            }
        }
        Ok(report)
    }

    /// Every pair decodes; rows are counted.
    fn check_records(&self, cancel: &Cancel, report: &mut CheckReport) -> Result<()> {
        let mut seen = 0_u64;
        for entry in self.snapshot().scan(Bound::Unbounded, Bound::Unbounded) {
            seen += 1;
            if seen.is_multiple_of(1_024) && cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let (key, bytes) = entry?;
            match self.dump_entry(&key, &bytes) {
                Dumped::Damaged { key, error } => {
                    report.problem(Problem::DamagedRecord { key, error });
                }
                Dumped::Unknown { key, .. } => report.problem(Problem::UnknownKey(key)),
                Dumped::Position { .. } => report.positions += 1,
                Dumped::Row { table, visible, .. } => {
                    if let Some(at) = report.tables.iter_mut().find(|t| t.name == table) {
                        if visible { at.rows += 1 } else { at.garbage += 1 }
                    }
                }
                Dumped::Tombstone { table, visible, .. } => {
                    if let Some(at) = report.tables.iter_mut().find(|t| t.name == table) {
                        if visible { at.tombstones += 1 } else { at.garbage += 1 }
                    }
                }
                Dumped::Void { table, .. } => {
                    if let Some(at) = report.tables.iter_mut().find(|t| t.name == table) {
                        at.garbage += 1;
                    }
                }
                Dumped::Entry { table, visible: false, .. } => {
                    if let Some(at) = report.tables.iter_mut().find(|t| t.name == table) {
                        at.garbage += 1;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Index against rows, counters against both.
    fn check_table(&self, at: &TableView, n: usize, cancel: &Cancel, report: &mut CheckReport) -> Result<()> {
        let table = &at.table;
        let name = table.name().to_owned();
        let mut all = Totals::default();
        let mut tenant_totals: Option<(u64, Totals)> = None;
        let mut seen = 0_u64;
        for entry in self.prefix(&key::index_prefix(table.id())) {
            seen += 1;
            if seen.is_multiple_of(1_024) && cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let (key, bytes) = entry?;
            let Parsed::Index { tenant, id, .. } = key::parse(&key) else { continue };
            let Ok(record) = Record::read(&key, &bytes) else { continue };
            if record.kind != Kind::Live || record.version() < at.truncated_below {
                continue;
            }
            report.tables[n].entries += 1;
            let Some(sums) = self.entry_agrees(table, id, &key, &bytes)? else {
                report.problem(Problem::EntryWithoutRow { table: name.clone(), id, tenant });
                continue;
            };
            all.add(&sums, 1);
            match &mut tenant_totals {
                Some((current, totals)) if *current == tenant => totals.add(&sums, 1),
                other => {
                    if let Some((tenant, totals)) = other.take() {
                        self.compare_totals(table, Some(tenant), &totals, report)?;
                    }
                    report.tables[n].tenants += 1;
                    let mut totals = Totals::default();
                    totals.add(&sums, 1);
                    *other = Some((tenant, totals));
                }
            }
        }
        if let Some((tenant, totals)) = tenant_totals {
            self.compare_totals(table, Some(tenant), &totals, report)?;
        }
        self.compare_totals(table, None, &all, report)?;
        let missing = report.tables[n].rows.saturating_sub(report.tables[n].entries);
        if missing > 0 {
            report.problem(Problem::RowsWithoutEntry { table: name.clone(), count: missing });
        }
        let mut with_totals = 0;
        for entry in self.prefix(&key::counter_prefix(table.id())) {
            let (key, bytes) = entry?;
            if let Parsed::Counter { generation, tenant: Some(_), .. } = key::parse(&key)
                && generation == at.counter_generation
                && Totals::decode(&key, &bytes).is_ok_and(|t| !t.same(&Totals::default()))
            {
                with_totals += 1;
            }
        }
        if let Some(count) = u64::checked_sub(with_totals, report.tables[n].tenants)
            && count > 0
        {
            report.problem(Problem::StrayTotals { table: name, count });
        }
        Ok(())
    }

    /// The row's summed values when the row exists and would be indexed exactly like this.
    fn entry_agrees(&self, table: &Table, id: u64, key: &[u8], entry: &[u8]) -> Result<Option<Vec<i128>>> {
        let row_key = key::row(table.id(), id);
        let Some(bytes) = self.snapshot().get(&row_key)? else { return Ok(None) };
        let Ok(record) = Record::read(&row_key, &bytes) else { return Ok(None) };
        if record.kind != Kind::Live {
            return Ok(None);
        }
        let Ok(row) = table.values(id, &record) else { return Ok(None) };
        let prepared = table.encode(id, &record.version(), |at| row[at].as_ref());
        if prepared.index_key != key {
            return Ok(None);
        }
        // Entries written before a listing column was added are shorter; compare what they say.
        let (Ok(stored), Ok(now)) = (Record::read(key, entry), Record::read(key, &prepared.entry)) else {
            return Ok(None);
        };
        let schema = table.schema();
        let time = schema.time().map_or(ValueRef::Null, |at| row[at].as_ref());
        let cells = |record: &Record<'_>| {
            let mut cells = Vec::new();
            let origin = record.cells.origin(time);
            let each = |_, value: ValueRef<'_>| cells.push(value.into_owned());
            record.cells.for_each(schema, schema.listing(), origin, each).map(|()| cells)
        };
        let agrees = stored.version == now.version && cells(&stored) == cells(&now);
        Ok(agrees.then_some(prepared.sums))
    }

    fn compare_totals(
        &self,
        table: &Table,
        tenant: Option<u64>,
        counted: &Totals,
        report: &mut CheckReport,
    ) -> Result<()> {
        let stored = match self.totals(table, tenant) {
            Ok(stored) => stored,
            // Reported with the other records already.
            Err(Error::Record { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        if !stored.same(counted) {
            report.problem(Problem::WrongTotals {
                table: table.name().to_owned(),
                tenant,
                stored,
                counted: counted.clone(),
            });
        }
        Ok(())
    }

    /// Calls `each` with everything stored, in key order, garbage included, until it says stop.
    ///
    /// # Errors
    /// On cancellation and on damaged files; a record that does not decode is handed out as
    /// [`Dumped::Damaged`].
    pub fn dump(&self, cancel: &Cancel, mut each: impl FnMut(Dumped) -> bool) -> Result<()> {
        let mut seen = 0_u64;
        for entry in self.snapshot().scan(Bound::Unbounded, Bound::Unbounded) {
            seen += 1;
            if seen.is_multiple_of(1_024) && cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let (key, bytes) = entry?;
            if !each(self.dump_entry(&key, &bytes)) {
                break;
            }
        }
        Ok(())
    }

    fn dump_entry(&self, key: &[u8], bytes: &[u8]) -> Dumped {
        self.try_dump(key, bytes).unwrap_or_else(|error| Dumped::Damaged { key: hex(key), error })
    }

    fn try_dump(&self, key: &[u8], bytes: &[u8]) -> Result<Dumped, RecordError> {
        let unknown = || Dumped::Unknown { key: hex(key), value: hex(bytes) };
        Ok(match key::parse(key) {
            Parsed::Unknown => unknown(),
            Parsed::Header => Dumped::Header(String::from_utf8_lossy(decode_plain(key, bytes)?).into_owned()),
            Parsed::Schema(table) => {
                let schema = Schema::decode(decode_plain(key, bytes)?).map_err(|_| RecordError::Bad("schema"))?;
                Dumped::Schema { table, declaration: schema.to_declaration() }
            }
            Parsed::State(table) => {
                let state = TableState::decode(key, bytes)?;
                Dumped::State {
                    table,
                    truncated_below: state.truncated_below,
                    tombstones_below: state.tombstones_below,
                    highest_id: state.highest_id,
                    highest_version: state.highest_version,
                    counter_generation: state.counter_generation,
                }
            }
            Parsed::Position(lane) => match Lane::new(lane) {
                None => unknown(),
                Some(lane) => Dumped::Position { lane, position: decode_plain(key, bytes)?.to_vec() },
            },
            Parsed::Attribute(name) => Dumped::Attribute {
                name: String::from_utf8_lossy(name).into_owned(),
                value: decode_plain(key, bytes)?.to_vec(),
            },
            Parsed::Intent(table) => {
                Intent::decode(key, bytes)?;
                Dumped::Intent { table }
            }
            Parsed::Counter { table, generation, tenant } => {
                let totals = Totals::decode(key, bytes)?;
                Dumped::Counter { table, generation, tenant, totals }
            }
            Parsed::Row { table, id } => {
                let Ok(at) = self.table_view(table) else { return Ok(unknown()) };
                let record = Record::read(key, bytes)?;
                let (name, version) = (at.table.name().to_owned(), record.version());
                match record.kind {
                    Kind::Void => Dumped::Void { table: name, id },
                    Kind::Tombstone => {
                        let visible = version >= at.tombstone_floor;
                        Dumped::Tombstone { table: name, id, version, visible }
                    }
                    Kind::Live => Dumped::Row {
                        table: name,
                        id,
                        version,
                        values: at.table.values(id, &record)?,
                        visible: version >= at.truncated_below,
                    },
                }
            }
            Parsed::Index { table, tenant, time, id } => {
                let Ok(at) = self.table_view(table) else { return Ok(unknown()) };
                let record = Record::read(key, bytes)?;
                let schema = at.table.schema();
                let mut values = Vec::new();
                let origin = record.cells.origin(time_of(schema, time));
                record.cells.for_each(schema, schema.listing(), origin, |_, v| values.push(v.into_owned()))?;
                let live = record.kind == Kind::Live;
                Dumped::Entry {
                    table: at.table.name().to_owned(),
                    tenant,
                    time,
                    id,
                    version: record.version(),
                    visible: live && record.version() >= at.truncated_below,
                    values,
                }
            }
        })
    }
}

/// One stored pair in readable form.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields are those of the stored pair; docs/storage-format.md describes each")]
pub enum Dumped {
    /// The version of the data as a whole.
    Header(String),
    /// A table's schema.
    Schema { table: TableId, declaration: Declaration },
    /// What is known of a table as a whole.
    State {
        table: TableId,
        truncated_below: Version,
        tombstones_below: Version,
        highest_id: Option<u64>,
        highest_version: Version,
        counter_generation: u32,
    },
    /// A lane's position.
    Position { lane: Lane, position: Vec<u8> },
    /// A named value.
    Attribute { name: String, value: Vec<u8> },
    /// A bulk chunk that has not been completed.
    Intent { table: TableId },
    /// A counter; garbage unless the generation is the table's.
    Counter { table: TableId, generation: u32, tenant: Option<u64>, totals: Totals },
    /// A row; not visible when truncated.
    Row { table: String, id: u64, version: Version, values: Vec<Value>, visible: bool },
    /// A deleted row; not visible when expired or truncated.
    Tombstone { table: String, id: u64, version: Version, visible: bool },
    /// A dropped row.
    Void { table: String, id: u64 },
    /// An index entry with the listing columns; not visible when overwritten or truncated.
    Entry {
        table: String,
        tenant: u64,
        time: Option<TimeKey>,
        id: u64,
        version: Version,
        visible: bool,
        values: Vec<Value>,
    },
    /// A pair that belongs to nothing known, in hexadecimal.
    Unknown { key: String, value: String },
    /// A pair that does not decode.
    Damaged { key: String, error: RecordError },
}
