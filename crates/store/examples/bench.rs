//! The store beside the bare engine and beside MariaDB (InnoDB), on the same rows, in one run.
//!
//! `cargo run -p metaroute-store --release --example bench [ROWS] [--no-mariadb] [--load] [--flat UP_TO]`
//!
//! Prints a Markdown table of figures and of ratios. MariaDB is asked through its command-line client over
//! a Unix socket, one statement at a time, because that is the least that stands between a program and its
//! data there; the store and the engine are called in the process. `--load` stops after the sorted load. `--flat`
//! instead loads ever more rows and says how the speed of loading and reading moves.
#![allow(clippy::print_stdout, reason = "a program that prints a report")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use metaroute_store::{
    Batch, Budget, Chunk, Declaration, Direction, Filter, ListQuery, OpenOptions, ScanQuery, Schema, Store, Table,
    Value, Version, View, Walk,
};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use test_support::mariadb::MariaDb;
use test_support::processor_time;

const TENANTS: u64 = 5_000;
const CACHE: u64 = 256 << 20;
const CHUNK: u64 = 200_000;
const BATCH: u64 = 1_000;
const BATCHED_ROWS: u64 = 200_000;
const MIMES: [&str; 6] = [
    "image/jpeg",
    "image/png",
    "application/pdf",
    "text/plain; charset=utf-8",
    "video/mp4",
    "application/octet-stream",
];

struct File {
    id: u64,
    tenant: u64,
    path: String,
    size: u64,
    mime: &'static str,
    hash: [u8; 32],
    created: i64,
    updated: i64,
}

/// The `id`th file; the same in every store.
fn file(id: u64) -> File {
    let mut rng = SmallRng::seed_from_u64(id);
    let mut hash = [0; 32];
    rng.fill_bytes(&mut hash);
    let created = 1_700_000_000_000_000 + id as i64 * 1_000_000 + rng.random_range(0..1_000_000);
    File {
        id,
        tenant: rng.random_range(0..TENANTS),
        path: format!(
            "/home/projects/{:03}/data/{:04}/report-{:06}.{}",
            rng.random_range(0..200),
            rng.random_range(0..3_000),
            id % 1_000_000,
            ["jpg", "png", "pdf", "txt"][rng.random_range(0..4)]
        ),
        size: 1 << rng.random_range(5..34_u32),
        mime: MIMES[rng.random_range(0..MIMES.len())],
        hash,
        created,
        updated: created + rng.random_range(0..10_000_000_000),
    }
}

fn values(f: &File) -> Vec<Value> {
    vec![
        Value::U64(f.id),
        Value::U64(f.tenant),
        Value::String(f.path.clone()),
        Value::U64(f.size),
        Value::String(f.mime.into()),
        Value::Bytes(f.hash.to_vec()),
        Value::Timestamp(f.created),
        Value::Timestamp(f.updated),
    ]
}

fn schema() -> Schema {
    let declaration: Declaration = serde_json::from_str(
        r#"{"name":"file_metadata","id":"file_id","tenant":"user_id","time":"created_at",
 "columns":{"file_id":"u64","user_id":"u64","path":"string","size":"u64?","mime":"string?","content_hash":"bytes?",
 "created_at":"timestamp(6)?","updated_at":"timestamp(6)?"},"listing":["path","size","mime","updated_at"]}"#,
    )
    .expect("valid JSON");
    Schema::parse(&declaration).expect("valid declaration")
}

/// Processor time to make `rows` rows, which is the caller's and no part of loading them.
fn making(rows: u64) -> f64 {
    const SAMPLE: u64 = 200_000;
    let before = processor_time(None);
    for id in 0..SAMPLE {
        std::hint::black_box(file(id));
    }
    (processor_time(None) - before).as_secs_f64() * rows as f64 / SAMPLE as f64
}

/// One figure: its name, what it is counted in, whether more is better, and per contender.
struct Figure {
    name: &'static str,
    unit: &'static str,
    more_is_better: bool,
    ours: Option<f64>,
    engine: Option<f64>,
    mariadb: Option<f64>,
}

#[derive(Default)]
struct Report {
    figures: Vec<Figure>,
}

#[derive(Clone, Copy)]
enum Who {
    Ours,
    Engine,
    MariaDb,
}

impl Report {
    fn put(&mut self, who: Who, name: &'static str, unit: &'static str, more_is_better: bool, value: f64) {
        let at = match self.figures.iter().position(|f| f.name == name) {
            Some(at) => at,
            None => {
                self.figures.push(Figure { name, unit, more_is_better, ours: None, engine: None, mariadb: None });
                self.figures.len() - 1
            }
        };
        let figure = &mut self.figures[at];
        match who {
            Who::Ours => figure.ours = Some(value),
            Who::Engine => figure.engine = Some(value),
            Who::MariaDb => figure.mariadb = Some(value),
        }
        println!("  {name}: {value:.1} {unit}");
    }

    fn print(&self) {
        println!("\n| what | store | bare engine | MariaDB | store / engine | store / MariaDB |");
        println!("| --- | --- | --- | --- | --- | --- |");
        for f in &self.figures {
            let cell = |v: Option<f64>| v.map_or("-".to_owned(), |v| format!("{v:.0} {}", f.unit));
            let ratio = |other: Option<f64>| match (f.ours, other) {
                (Some(ours), Some(other)) if other > 0.0 => {
                    let better = if f.more_is_better { ours / other } else { other / ours };
                    format!("{better:.2}× {}", if better >= 1.0 { "better" } else { "as good" })
                }
                _ => "-".to_owned(),
            };
            println!(
                "| {} | {} | {} | {} | {} | {} |",
                f.name,
                cell(f.ours),
                cell(f.engine),
                cell(f.mariadb),
                ratio(f.engine),
                ratio(f.mariadb)
            );
        }
    }
}

fn rate(count: u64, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}

fn options() -> OpenOptions {
    OpenOptions { cache_bytes: CACHE, ..OpenOptions::default() }
}

/// Runs `work` on `threads` threads, each with its own generator, for about `time`; operations per second
/// and the 99th percentile.
fn measure(threads: u64, time: Duration, work: impl Fn(&mut SmallRng) + Sync) -> (f64, Duration) {
    let start = Instant::now();
    let mut all: Vec<Duration> = std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..threads)
            .map(|n| {
                scope.spawn(move || {
                    let mut rng = SmallRng::seed_from_u64(n + 17);
                    let mut took = Vec::new();
                    while start.elapsed() < time {
                        let at = Instant::now();
                        work(&mut rng);
                        took.push(at.elapsed());
                    }
                    took
                })
            })
            .collect();
        running.into_iter().flat_map(|t| t.join().expect("no panic")).collect()
    });
    let per_second = all.len() as f64 / start.elapsed().as_secs_f64();
    all.sort_unstable();
    let p99 = all.get(all.len() * 99 / 100).copied().unwrap_or_default();
    (per_second, p99)
}

fn load(store: &Store, table: &Table, from: u64, to: u64) {
    let mut answer = None;
    for first in (from..to).step_by(CHUNK as usize) {
        let mut chunk = Chunk::new(table);
        for id in first..(first + CHUNK).min(to) {
            chunk.push(Version::from(1), values(&file(id))).expect("valid");
        }
        // The next chunk is built while this one is written.
        if let Some(answer) = answer.replace(store.ingest(chunk)) {
            metaroute_store::Pending::wait(answer).expect("loads");
        }
    }
    if let Some(answer) = answer {
        answer.wait().expect("loads");
    }
}

fn settle(store: &Store) {
    store.flush().wait().expect("flushes");
    let start = Instant::now();
    loop {
        let before = store.gauges();
        std::thread::sleep(Duration::from_millis(500));
        let after = store.gauges();
        let idle = after.running_compactions == 0 && after.finished_compactions == before.finished_compactions;
        if idle || start.elapsed() > Duration::from_secs(120) {
            return;
        }
    }
}

fn list(view: &View, table: &Table, columns: &[usize], tenant: u64) -> usize {
    let walk = Walk { direction: Direction::Descending, ..Walk::of(table, columns) };
    let page = view.list(&ListQuery { walk, tenant, from: None, to: None, after: None }).expect("readable");
    page.rows.len()
}

fn ours(report: &mut Report, folder: &Path, rows: u64, only_load: bool) {
    println!("store:");
    let batched = folder.join("batched");
    let store = Store::open(&batched, options()).expect("opens");
    let table = store.create_table(schema()).wait().expect("creates");
    let start = Instant::now();
    for first in (0..BATCHED_ROWS).step_by(BATCH as usize) {
        let mut batch = Batch::new();
        for id in first..first + BATCH {
            batch.upsert(&table, Version::from(1), values(&file(id))).expect("valid");
        }
        store.apply(batch).wait().expect("applies");
    }
    report.put(Who::Ours, "load, batches of 1,000", "rows/s", true, rate(BATCHED_ROWS, start));
    store.close();

    let path = folder.join("store");
    let store = Store::open(&path, options()).expect("opens");
    let table = store.create_table(schema()).wait().expect("creates");
    let (start, before) = (Instant::now(), processor_time(None));
    load(&store, &table, 0, rows);
    report.put(Who::Ours, "load, sorted", "rows/s", true, rate(rows, start));
    settle(&store);
    let used = (processor_time(None) - before).as_secs_f64() - making(rows);
    report.put(
        Who::Ours,
        "load, sorted, per core",
        "rows/s of CPU time, compaction included",
        true,
        rows as f64 / used,
    );
    println!("  gate: {:?}, l0 {}", store.gauges().gate_waited, store.gauges().l0_runs);
    store.compact().wait().expect("compacts");
    report.put(Who::Ours, "disk", "bytes/row", false, store.gauges().table_bytes as f64 / rows as f64);
    if only_load {
        store.close();
        return;
    }

    let all: Vec<usize> = (0..8).collect();
    let listing = table.schema().default_columns();
    let time = Duration::from_secs(5);
    for (threads, get, newest) in [
        (1, "point get, 1 thread", "list 100 newest, 1 thread"),
        (2, "point get, 2 threads", "list 100 newest, 2 threads"),
    ] {
        let (per_second, _) = measure(threads, time, |rng| {
            let row = store.view().expect("open").get(&table, rng.random_range(0..rows), &all).expect("readable");
            assert!(row.into_row().is_some());
        });
        report.put(Who::Ours, get, "/s", true, per_second);
        let (per_second, _) = measure(threads, time, |rng| {
            assert!(list(&store.view().expect("open"), &table, &listing, rng.random_range(0..TENANTS)) > 0);
        });
        report.put(Who::Ours, newest, "/s", true, per_second);
    }
    let expression = metaroute_expr::Expr::parse("mime == image/png && size >= 1000000").expect("valid");
    let filter = Filter::new(&expression, &table).expect("binds");
    let (start, before) = (Instant::now(), processor_time(None));
    let view = store.view().expect("open");
    let walk = Walk {
        limit: 1_000_000,
        filter: Some(&filter),
        budget: Budget { entries: u64::MAX, bytes: u64::MAX, deadline: None },
        ..Walk::of(&table, &[0])
    };
    let mut query = ScanQuery::all(walk);
    let mut found = 0;
    loop {
        let page = view.scan(&query).expect("readable");
        found += page.rows.len();
        match page.next {
            None => break,
            next => query.after = next,
        }
    }
    report.put(Who::Ours, "filtered scan", "rows/s", true, rate(rows, start));
    report.put(
        Who::Ours,
        SCAN_PER_CORE,
        "rows/s of CPU time",
        true,
        rows as f64 / (processor_time(None) - before).as_secs_f64(),
    );
    println!("  ({found} rows matched)");
    drop(view);
    for (threads, name, tail) in [
        (1, "mixed 90/10, 1 thread", "mixed 90/10, p99, 1 thread"),
        (2, "mixed 90/10, 2 threads", "mixed 90/10, p99, 2 threads"),
    ] {
        let version = std::sync::atomic::AtomicU64::new(2 + threads * 1_000_000_000);
        let (per_second, p99) = measure(threads, time, |rng| {
            let id = rng.random_range(0..rows);
            if rng.random_range(0..10) == 0 {
                let version = version.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let mut batch = Batch::new();
                batch.upsert(&table, Version::from(version), values(&file(id))).expect("valid");
                store.apply(batch).wait().expect("applies");
            } else {
                assert!(store.view().expect("open").get(&table, id, &all).expect("readable").into_row().is_some());
            }
        });
        report.put(Who::Ours, name, "/s", true, per_second);
        report.put(Who::Ours, tail, "us", false, p99.as_secs_f64() * 1e6);
    }
    store.close();
}

/// The bare engine with the same layout and the same block settings, but no versions, checksums, counters
/// or types: the value is what a program would concatenate itself.
mod bare {
    use super::*;
    use fjall::config::{BlockSizePolicy, CompressionPolicy, FilterPolicy};
    use fjall::{AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};

    pub(super) struct Bare {
        pub(super) db: Database,
        pub(super) rows: Keyspace,
        pub(super) index: Keyspace,
    }

    pub(super) fn open(path: &Path) -> Bare {
        let db = Database::builder(path)
            .cache_size(CACHE)
            .worker_threads(4)
            .max_journaling_size(64 << 20)
            .open()
            .expect("opens");
        let options = |block: u32, l0_tables: u8, table: u64| {
            KeyspaceCreateOptions::default()
                .max_memtable_size(16 << 20)
                .data_block_size_policy(BlockSizePolicy::all(block))
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
                .compaction_strategy(std::sync::Arc::new(
                    fjall::compaction::Leveled::default().with_l0_threshold(l0_tables).with_table_target_size(table),
                ))
        };
        let rows = db.keyspace("rows", || options(8_192, 6, 64 << 20)).expect("creates");
        let index = db
            .keyspace("index", || options(32_768, 8, 16 << 20).filter_policy(FilterPolicy::disabled()))
            .expect("creates");
        Bare { db, rows, index }
    }

    /// Puts a file into a batch.
    fn insert(bare: &Bare, batch: &mut fjall::OwnedWriteBatch, f: &File) {
        let [(row_key, row), (index_key, entry)] = pairs(f);
        batch.insert(&bare.rows, row_key, row);
        batch.insert(&bare.index, index_key, entry);
    }

    pub(super) fn pairs(f: &File) -> [(Vec<u8>, Vec<u8>); 2] {
        let mut row_key = vec![0x20];
        row_key.extend_from_slice(&f.id.to_be_bytes());
        let mut row = Vec::with_capacity(160);
        row.extend_from_slice(&f.tenant.to_le_bytes());
        row.extend_from_slice(&f.size.to_le_bytes());
        row.extend_from_slice(&f.created.to_le_bytes());
        row.extend_from_slice(&f.updated.to_le_bytes());
        row.extend_from_slice(&f.hash);
        row.push(f.path.len() as u8);
        row.extend_from_slice(f.path.as_bytes());
        row.extend_from_slice(f.mime.as_bytes());
        let mut index_key = vec![0x30];
        index_key.extend_from_slice(&f.tenant.to_be_bytes());
        index_key.extend_from_slice(&f.created.to_be_bytes());
        index_key.extend_from_slice(&f.id.to_be_bytes());
        let mut entry = Vec::with_capacity(100);
        entry.extend_from_slice(&f.size.to_le_bytes());
        entry.extend_from_slice(&f.updated.to_le_bytes());
        entry.push(f.path.len() as u8);
        entry.extend_from_slice(f.path.as_bytes());
        entry.extend_from_slice(f.mime.as_bytes());
        [(row_key, row), (index_key, entry)]
    }

    pub(super) fn run(report: &mut Report, folder: &Path, rows: u64, only_load: bool) {
        println!("bare engine:");
        let bare = open(&folder.join("batched-bare"));
        let start = Instant::now();
        for first in (0..BATCHED_ROWS).step_by(BATCH as usize) {
            let mut batch = bare.db.batch().durability(Some(PersistMode::Buffer));
            for id in first..first + BATCH {
                insert(&bare, &mut batch, &file(id));
            }
            batch.commit().expect("commits");
        }
        report.put(Who::Engine, "load, batches of 1,000", "rows/s", true, rate(BATCHED_ROWS, start));
        drop(bare);

        let path = folder.join("bare");
        let bare = open(&path);
        let (start, before) = (Instant::now(), processor_time(None));
        for first in (0..rows).step_by(CHUNK as usize) {
            let (mut heads, mut entries) = (Vec::new(), Vec::new());
            for id in first..(first + CHUNK).min(rows) {
                let [row, entry] = pairs(&file(id));
                heads.push(row);
                entries.push(entry);
            }
            entries.sort_unstable();
            for (tree, part) in [(&bare.rows, heads), (&bare.index, entries)] {
                let mut ingestion = tree.start_ingestion().expect("starts");
                for (key, value) in part {
                    ingestion.write(key, value).expect("writes");
                }
                ingestion.finish().expect("finishes");
            }
            while bare.index.tree.l0_run_count() > 12 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        report.put(Who::Engine, "load, sorted", "rows/s", true, rate(rows, start));
        let settled = Instant::now();
        loop {
            let done = bare.db.compactions_completed();
            std::thread::sleep(Duration::from_millis(500));
            if (bare.db.active_compactions() == 0 && bare.db.compactions_completed() == done)
                || settled.elapsed() > Duration::from_secs(120)
            {
                break;
            }
        }
        let used = (processor_time(None) - before).as_secs_f64() - making(rows);
        report.put(
            Who::Engine,
            "load, sorted, per core",
            "rows/s of CPU time, compaction included",
            true,
            rows as f64 / used,
        );
        for tree in [&bare.rows, &bare.index] {
            tree.tree.major_compact(64 << 20, u64::MAX >> 1).expect("compacts");
        }
        let bytes = bare.rows.disk_space() + bare.index.disk_space();
        report.put(Who::Engine, "disk", "bytes/row", false, bytes as f64 / rows as f64);
        if only_load {
            return;
        }
        let time = Duration::from_secs(5);
        for (threads, get, newest) in [
            (1, "point get, 1 thread", "list 100 newest, 1 thread"),
            (2, "point get, 2 threads", "list 100 newest, 2 threads"),
        ] {
            let (per_second, _) = measure(threads, time, |rng| {
                let mut key = vec![0x20];
                key.extend_from_slice(&rng.random_range(0..rows).to_be_bytes());
                assert!(bare.rows.get(key).expect("readable").is_some());
            });
            report.put(Who::Engine, get, "/s", true, per_second);
            let (per_second, _) = measure(threads, time, |rng| {
                let mut key = vec![0x30];
                key.extend_from_slice(&rng.random_range(0..TENANTS).to_be_bytes());
                let mut found = 0;
                for entry in bare.index.prefix(key).rev().take(100) {
                    found += entry.into_inner().expect("readable").1.len();
                }
                assert!(found > 0);
            });
            report.put(Who::Engine, newest, "/s", true, per_second);
        }
        let (start, before) = (Instant::now(), processor_time(None));
        let mut found = 0;
        for entry in bare.rows.prefix([0x20]) {
            let (_, value) = entry.into_inner().expect("readable");
            let size = u64::from_le_bytes(value[8..16].try_into().expect("eight bytes"));
            let mime = &value[65 + usize::from(value[64])..];
            found += u64::from(size >= 1_000_000 && mime == b"image/png");
        }
        report.put(Who::Engine, "filtered scan", "rows/s", true, rate(rows, start));
        let used = (processor_time(None) - before).as_secs_f64();
        report.put(Who::Engine, SCAN_PER_CORE, "rows/s of CPU time", true, rows as f64 / used);
        println!("  ({found} rows matched)");
        for (threads, name, tail) in [
            (1, "mixed 90/10, 1 thread", "mixed 90/10, p99, 1 thread"),
            (2, "mixed 90/10, 2 threads", "mixed 90/10, p99, 2 threads"),
        ] {
            let (per_second, p99) = measure(threads, time, |rng| {
                let id = rng.random_range(0..rows);
                if rng.random_range(0..10) == 0 {
                    let mut batch = bare.db.batch().durability(Some(PersistMode::Buffer));
                    insert(&bare, &mut batch, &file(id));
                    batch.commit().expect("commits");
                } else {
                    let mut key = vec![0x20];
                    key.extend_from_slice(&id.to_be_bytes());
                    assert!(bare.rows.get(key).expect("readable").is_some());
                }
            });
            report.put(Who::Engine, name, "/s", true, per_second);
            report.put(Who::Engine, tail, "us", false, p99.as_secs_f64() * 1e6);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn sql_row(f: &File) -> String {
    format!(
        "({},{},'{}',{},'{}',x'{}',FROM_UNIXTIME({}.{:06}),FROM_UNIXTIME({}.{:06}))",
        f.id,
        f.tenant,
        f.path,
        f.size,
        f.mime,
        hex(&f.hash),
        f.created / 1_000_000,
        f.created % 1_000_000,
        f.updated / 1_000_000,
        f.updated % 1_000_000
    )
}

/// Feeds statements to as many clients as there are scripts; statements per second.
fn clients(database: &MariaDb, scripts: &[Vec<String>]) -> f64 {
    let socket = format!("--socket={}", database.socket().display());
    let statements: u64 = scripts.iter().map(|s| s.len() as u64).sum();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for script in scripts {
            let socket = &socket;
            scope.spawn(move || {
                let mut client = Command::new("mariadb")
                    .args(["--no-defaults", "--user=root", "--batch", "--skip-column-names", "--unbuffered"])
                    .arg(socket)
                    .arg("test")
                    .stdin(Stdio::piped())
                    .stdout(Stdio::null())
                    .spawn()
                    .expect("the client starts");
                let mut input = std::io::BufWriter::new(client.stdin.take().expect("piped"));
                for statement in script {
                    writeln!(input, "{statement}").expect("the client reads");
                }
                drop(input);
                assert!(client.wait().expect("waits").success());
            });
        }
    });
    rate(statements, start)
}

const SCAN_PER_CORE: &str = "filtered scan, per core";

fn mariadb(report: &mut Report, folder: &Path, rows: u64) {
    println!("mariadb:");
    let started = MariaDb::start(&[
        "--innodb-buffer-pool-size=256M",
        "--innodb-flush-log-at-trx-commit=2",
        "--innodb-log-file-size=512M",
        "--skip-log-bin",
        "--local-infile=1",
        "--secure-file-priv=",
    ]);
    let database = match started {
        Ok(database) => database,
        Err(missing) => {
            println!("  not run: {missing}");
            return;
        }
    };
    let create = |name: &str| {
        database.sql(&format!(
            "CREATE TABLE {name} (file_id BIGINT UNSIGNED PRIMARY KEY, user_id BIGINT UNSIGNED NOT NULL, path VARCHAR(1024) NOT NULL,
             size BIGINT UNSIGNED, mime VARCHAR(100), content_hash VARBINARY(64), created_at TIMESTAMP(6) NULL,
             updated_at TIMESTAMP(6) NULL, KEY by_user (user_id, created_at, file_id)) ENGINE=InnoDB"
        ));
    };
    create("batched");
    let script: Vec<String> = (0..BATCHED_ROWS)
        .step_by(BATCH as usize)
        .map(|first| {
            let rows: Vec<String> = (first..first + BATCH).map(|id| sql_row(&file(id))).collect();
            format!("INSERT INTO batched VALUES {};", rows.join(","))
        })
        .collect();
    let per_second = clients(&database, &[script]);
    report.put(Who::MariaDb, "load, batches of 1,000", "rows/s", true, per_second * BATCH as f64);

    create("f");
    let tsv = folder.join("rows.tsv");
    {
        let mut out = std::io::BufWriter::new(std::fs::File::create(&tsv).expect("creates"));
        for id in 0..rows {
            let f = file(id);
            let stamp = |micros: i64| format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
            writeln!(
                out,
                "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
                f.id,
                f.tenant,
                f.path,
                f.size,
                f.mime,
                hex(&f.hash),
                stamp(f.created),
                stamp(f.updated)
            )
            .expect("writes");
        }
    }
    let (start, before) = (Instant::now(), processor_time(database.id()));
    database.sql(&format!(
        "LOAD DATA INFILE '{}' INTO TABLE f (file_id,user_id,path,size,mime,@h,@c,@u)
         SET content_hash=UNHEX(@h), created_at=FROM_UNIXTIME(@c), updated_at=FROM_UNIXTIME(@u);",
        tsv.display()
    ));
    report.put(Who::MariaDb, "load, sorted", "rows/s", true, rate(rows, start));
    let used = (processor_time(database.id()) - before).as_secs_f64();
    report.put(
        Who::MariaDb,
        "load, sorted, per core",
        "rows/s of CPU time, compaction included",
        true,
        rows as f64 / used,
    );
    let _ = std::fs::remove_file(&tsv);
    database.sql("ANALYZE TABLE f; FLUSH TABLES;");
    let bytes = std::fs::metadata(database.data_dir().join("test").join("f.ibd")).map_or(0, |m| m.len());
    report.put(Who::MariaDb, "disk", "bytes/row", false, bytes as f64 / rows as f64);

    let script = |seed: u64, count: u64, make: &dyn Fn(&mut SmallRng) -> String| -> Vec<String> {
        let mut rng = SmallRng::seed_from_u64(seed);
        (0..count).map(|_| make(&mut rng)).collect()
    };
    let get = |rng: &mut SmallRng| format!("SELECT * FROM f WHERE file_id={};", rng.random_range(0..rows));
    let newest = |rng: &mut SmallRng| {
        format!(
            "SELECT file_id,user_id,created_at,path,size,mime,updated_at FROM f WHERE user_id={} ORDER BY created_at DESC, file_id DESC LIMIT 100;",
            rng.random_range(0..TENANTS)
        )
    };
    let mixed = |rng: &mut SmallRng| {
        let id = rng.random_range(0..rows);
        if rng.random_range(0..10) == 0 {
            format!("REPLACE INTO f VALUES {};", sql_row(&file(id)))
        } else {
            format!("SELECT * FROM f WHERE file_id={id};")
        }
    };
    for (n, names) in [
        (1_u64, ["point get, 1 thread", "list 100 newest, 1 thread", "mixed 90/10, 1 thread"]),
        (2, ["point get, 2 threads", "list 100 newest, 2 threads", "mixed 90/10, 2 threads"]),
    ] {
        let scripts: Vec<_> = (0..n).map(|t| script(t, 60_000, &get)).collect();
        report.put(Who::MariaDb, names[0], "/s", true, clients(&database, &scripts));
        let scripts: Vec<_> = (0..n).map(|t| script(t, 4_000, &newest)).collect();
        report.put(Who::MariaDb, names[1], "/s", true, clients(&database, &scripts));
        let scripts: Vec<_> = (0..n).map(|t| script(t, 40_000, &mixed)).collect();
        report.put(Who::MariaDb, names[2], "/s", true, clients(&database, &scripts));
    }
    let (start, before) = (Instant::now(), processor_time(database.id()));
    let found = database.sql("SELECT COUNT(*) FROM f IGNORE INDEX (by_user) WHERE mime='image/png' AND size>=1000000;");
    report.put(Who::MariaDb, "filtered scan", "rows/s", true, rate(rows, start));
    let used = (processor_time(database.id()) - before).as_secs_f64();
    report.put(Who::MariaDb, SCAN_PER_CORE, "rows/s of CPU time", true, rows as f64 / used);
    println!("  ({} rows matched)", found.trim());
}

fn flat(folder: &Path, up_to: u64) {
    println!(
        "\n| rows | load, rows/s | load, rows/s per core | point get /s | list 100 newest /s | bytes/row | L0 runs | gate waited |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let path = folder.join("flat");
    let store = Store::open(&path, options()).expect("opens");
    let table = store.create_table(schema()).wait().expect("creates");
    let all: Vec<usize> = (0..8).collect();
    let listing = table.schema().default_columns();
    let mut rows = 0;
    let mut next = 1_000_000;
    while rows < up_to {
        let to = next.min(up_to);
        let (start, before) = (Instant::now(), processor_time(None));
        load(&store, &table, rows, to);
        let loaded = rate(to - rows, start);
        let gauges = store.gauges();
        settle(&store);
        let per_core = (to - rows) as f64 / ((processor_time(None) - before).as_secs_f64() - making(to - rows));
        rows = to;
        next = if next == 1_000_000 { 2_000_000 } else { next + next / 2 };
        let time = Duration::from_secs(3);
        let (gets, _) = measure(1, time, |rng| {
            assert!(
                store
                    .view()
                    .expect("open")
                    .get(&table, rng.random_range(0..rows), &all)
                    .expect("readable")
                    .into_row()
                    .is_some()
            );
        });
        let (lists, _) = measure(1, time, |rng| {
            assert!(list(&store.view().expect("open"), &table, &listing, rng.random_range(0..TENANTS)) > 0);
        });
        println!(
            "| {rows} | {loaded:.0} | {per_core:.0} | {gets:.0} | {lists:.0} | {:.0} | {} | {:.1} s |",
            store.gauges().table_bytes as f64 / rows as f64,
            gauges.l0_runs,
            gauges.gate_waited.as_secs_f64()
        );
    }
    store.close();
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &String| text.replace('_', "").parse::<u64>().ok();
    let rows = args.first().and_then(number).unwrap_or(2_000_000);
    let folder = tempfile::tempdir().expect("a temporary folder");
    if let Some(at) = args.iter().position(|a| a == "--flat") {
        flat(folder.path(), args.get(at + 1).and_then(number).unwrap_or(20_000_000));
        return;
    }
    println!("{rows} rows, {TENANTS} tenants, cache {} MiB", CACHE >> 20);
    let mut report = Report::default();
    let only_load = args.iter().any(|a| a == "--load");
    ours(&mut report, folder.path(), rows, only_load);
    bare::run(&mut report, folder.path(), rows, only_load);
    if !only_load && !args.iter().any(|a| a == "--no-mariadb") {
        mariadb(&mut report, folder.path(), rows);
    }
    report.print();
}
