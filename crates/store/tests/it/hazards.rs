//! The engine's known hazards, by their number in `docs/storage-format.md`, and what the store makes of
//! them. (5, sealed memtables after recovery, needs a killed process and is in the `crash` binary; 11,
//! room in every key, is a test of the key layout.)

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use metaroute_store::{
    Batch, Budget, Cancel, CheckpointLimits, Chunk, Durability, Error, Expected, GateLimits, ListQuery, OpenOptions,
    PoolSize, ScanQuery, Stopped, Store, Table, Value, Version, Walk,
};

use crate::model::scratch;
use crate::world::{self, ALL, Content};

fn open(path: &std::path::Path, options: OpenOptions) -> (Store, Table) {
    let store = Store::open(path, options).expect("opens");
    let table = store.create_table(world::schema()).wait().expect("creates");
    (store, table)
}

fn content(owner: u64, size: u64) -> Content {
    Content { owner, at: Some(size as i64), name: 1, size: Some(size), score: None, cents: None }
}

fn clean(store: &Store) {
    let report = store.view().expect("open").check(&Cancel::new()).expect("readable");
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// Each commit sets twenty rows, and the position, to the same number. A reader that ever sees two
/// numbers has seen half a commit.
#[test]
fn hazard_1_no_read_sees_half_a_commit() {
    const ROWS: u64 = 20;
    let folder = scratch();
    let options = OpenOptions { memtable_bytes: 32 << 10, ..OpenOptions::default() };
    let (store, table) = open(folder.path(), options);
    let write = |n: u64| {
        let mut batch = Batch::new();
        for id in 0..ROWS {
            batch.upsert(&table, Version::from(n), content(7, n).values(id)).expect("valid");
        }
        batch.set_position(world::lane(), Expected::Any, Some(n.to_be_bytes().to_vec()));
        store.apply(batch).wait().expect("applies");
    };
    write(1);
    let stop = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (store, table, stop, reads) = (&store, &table, &stop, &reads);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let view = store.view().expect("open");
                    let position = view.position(&world::lane()).expect("readable").expect("set");
                    let n = u64::from_be_bytes(position.try_into().expect("eight bytes"));
                    let sizes: Vec<Value> = match reader {
                        0 => {
                            let listing =
                                ListQuery { walk: Walk::of(table, ALL), tenant: 7, from: None, to: None, after: None };
                            let page = view.list(&listing).expect("readable");
                            page.rows.into_iter().map(|row| row.values[4].clone()).collect()
                        }
                        1 => {
                            let page = view.scan(&ScanQuery::all(Walk::of(table, ALL))).expect("readable");
                            page.rows.into_iter().map(|row| row.values[4].clone()).collect()
                        }
                        _ => {
                            let totals = view.totals(table, Some(7)).expect("readable");
                            assert_eq!((totals.rows, totals.sum(0)), (ROWS, i128::from(n * ROWS)), "torn totals");
                            (0..ROWS)
                                .map(|id| {
                                    let row = view.get(table, id, &[4]).expect("readable").into_row().expect("there");
                                    row.values[0].clone()
                                })
                                .collect()
                        }
                    };
                    assert_eq!(sizes, vec![Value::U64(n); ROWS as usize], "torn read at {n}");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let start = Instant::now();
        let mut n = 1;
        // Until something is proved, however slow the machine is.
        let proved = || reads.load(Ordering::Relaxed) > 300 && store.gauges().finished_compactions > 0;
        while start.elapsed() < Duration::from_secs(3) || (!proved() && start.elapsed() < Duration::from_secs(120)) {
            n += 1;
            write(n);
            // Flushes and compactions are what tears the engine's own snapshots.
            if n % 40 == 0 {
                store.flush().wait().expect("flushes");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(reads.load(Ordering::Relaxed) > 300, "{reads:?} reads prove little");
    assert!(store.gauges().finished_compactions > 0);
    clean(&store);
}

#[test]
fn hazard_2_ingestion_can_bury_nothing() {
    let folder = scratch();
    let (store, table) = open(folder.path(), OpenOptions::default());
    let mut batch = Batch::new();
    batch.upsert(&table, Version::from(50), content(1, 1).values(10)).expect("valid");
    batch.delete(&table, Version::from(50), 20, None);
    store.apply(batch).wait().expect("applies");
    for first in [1, 10, 20] {
        let mut chunk = Chunk::new(&table);
        chunk.push(Version::from(1), content(1, 99).values(first)).expect("valid");
        chunk.push(Version::from(1), content(1, 99).values(30)).expect("valid");
        let refused = store.ingest(chunk).wait();
        assert!(matches!(refused, Err(Error::NotAbove { highest: 20, .. })), "{refused:?}");
    }
    let view = store.view().expect("open");
    assert_eq!(view.totals(&table, None).expect("readable").rows, 1);
    assert!(view.get(&table, 30, ALL).expect("readable").into_row().is_none(), "refused as a whole");
    // Rows, index, counters and position of a chunk appear together.
    let mut chunk = Chunk::new(&table);
    for id in 21..2_021 {
        chunk.push(Version::from(1), content(id % 5, id).values(id)).expect("valid");
    }
    chunk.set_position(world::lane(), Expected::Absent, Some(b"x".to_vec()));
    let before = store.view().expect("open");
    let loading = store.ingest(chunk);
    loading.wait().expect("loads");
    assert_eq!(before.totals(&table, None).expect("readable").rows, 1, "an older view stays as it was");
    assert_eq!(before.position(&world::lane()).expect("readable"), None);
    let after = store.view().expect("open");
    assert_eq!(after.totals(&table, None).expect("readable").rows, 2_001);
    assert!(after.position(&world::lane()).expect("readable").is_some());
    clean(&store);
    // And versions count again from here on.
    let mut batch = Batch::new();
    batch.upsert(&table, Version::from(1), content(1, 5).values(100)).expect("valid");
    let outcomes = store.apply(batch).wait().expect("applies").outcomes;
    assert_eq!(outcomes, [metaroute_store::Outcome::Conflict]);
}

/// Writes ten times the limit as fast as they are taken, with values large enough that flushing falls
/// behind, and watches the memtables.
#[test]
fn hazard_3_memtables_stay_within_their_limit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let limit = 4 << 20;
    let options = OpenOptions {
        memtable_bytes: 1 << 20,
        gate: GateLimits { active_memtable_bytes: limit, ..GateLimits::default() },
        ..OpenOptions::default()
    };
    let (store, table) = open(folder.path(), options);
    let stop = AtomicBool::new(false);
    let highest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let gauges = store.gauges();
                highest.fetch_max(gauges.active_memtable_bytes, Ordering::Relaxed);
                assert!(gauges.sealed_memtables <= 4, "{} sealed memtables", gauges.sealed_memtables);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let mut waiting = std::collections::VecDeque::new();
        for n in 0..400_u64 {
            let mut batch = Batch::new();
            let mut row = content(n % 7, n).values(n);
            row[3] = Value::String(format!("{n:x}").repeat(40_000));
            batch.upsert(&table, Version::from(1), row).expect("valid");
            waiting.push_back(store.apply(batch));
            if waiting.len() > 16 {
                waiting.pop_front().expect("not empty").wait().expect("applies");
            }
        }
        for answer in waiting {
            answer.wait().expect("applies");
        }
        stop.store(true, Ordering::Relaxed);
    });
    // One group of requests may pass the open gate at once.
    let allowed = limit + (6 << 20);
    let highest = highest.load(Ordering::Relaxed);
    assert!(highest <= allowed, "active memtable of {highest} bytes, allowed {allowed}");
    assert_eq!(store.view().expect("open").totals(&table, None).expect("readable").rows, 400);
}

/// A position in every batch must not keep journals alive.
#[test]
fn hazard_4_positions_pin_no_journals() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = OpenOptions { memtable_bytes: 4 << 20, ..OpenOptions::default() };
    let (store, table) = open(folder.path(), options.clone());
    // Does not compress, so the journal takes all of it.
    let mut dice = world::Dice(7);
    let noise: String = (0..1_000_000).map(|_| char::from(b'a' + dice.roll(26) as u8)).collect();
    for n in 0..240_u64 {
        let mut batch = Batch::new();
        let mut row = content(n % 7, n).values(n);
        row[3] = Value::String(noise[n as usize..].to_owned());
        batch.upsert(&table, Version::from(1), row).expect("valid");
        batch.set_position(world::lane(), Expected::Any, Some(n.to_be_bytes().to_vec()));
        store.apply(batch).wait().expect("applies");
    }
    // What is pinned stays; flushes that are still to come do not.
    let few = test_support::wait_until(Duration::from_secs(60), || store.gauges().journals <= 3);
    assert!(few, "{} journals, {} bytes", store.gauges().journals, store.gauges().journal_bytes);
    store.close();
    drop(store);
    let start = Instant::now();
    let (store, table) = open(folder.path(), options);
    assert!(start.elapsed() < Duration::from_secs(60), "open took {:?}", start.elapsed());
    assert_eq!(store.view().expect("open").totals(&table, None).expect("readable").rows, 240);
}

/// Live, 100,000 deleted, live: every page ends within its budget and the second row is reached.
#[test]
fn hazard_6_a_long_run_of_deletes_is_walked_in_pages() {
    const DEAD: u64 = 100_000;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (store, table) = open(folder.path(), OpenOptions::default());
    let mut chunk = Chunk::new(&table);
    for id in 1..=DEAD + 2 {
        chunk.push(Version::from(1), content(7, id).values(id)).expect("valid");
    }
    store.ingest(chunk).wait().expect("loads");
    for first in (2..DEAD + 2).step_by(10_000) {
        let mut batch = Batch::new();
        for id in first..(first + 10_000).min(DEAD + 2) {
            batch.delete(&table, Version::from(2), id, None);
        }
        store.apply(batch).wait().expect("applies");
    }
    let walk = Walk { limit: 2, budget: Budget { entries: DEAD / 10, ..Budget::default() }, ..Walk::of(&table, &[0]) };
    for compacted in [false, true] {
        if compacted {
            let mut batch = Batch::new();
            batch.expire_tombstones(&table, Version::from(3));
            store.apply(batch).wait().expect("applies");
            store.compact().wait().expect("compacts");
        }
        for by_tenant in [true, false] {
            let view = store.view().expect("open");
            let (mut found, mut pages) = (Vec::new(), 0);
            let mut list = ListQuery { walk, tenant: 7, from: None, to: None, after: None };
            let mut scan = ScanQuery::all(walk);
            loop {
                let start = Instant::now();
                let (rows, more, stopped, examined) = if by_tenant {
                    let page = view.list(&list).expect("readable");
                    list.after = page.next;
                    (page.rows, page.next.is_some(), page.stopped, page.examined)
                } else {
                    let page = view.scan(&scan).expect("readable");
                    scan.after = page.next;
                    (page.rows, page.next.is_some(), page.stopped, page.examined)
                };
                pages += 1;
                assert!(examined <= DEAD / 10 + 1, "{examined} entries in one page");
                assert!(start.elapsed() < Duration::from_secs(20), "a page took {:?}", start.elapsed());
                assert_eq!(more, stopped != Stopped::End);
                found.extend(rows.into_iter().map(|row| row.id));
                if !more {
                    break;
                }
            }
            assert_eq!(found, [1, DEAD + 2]);
            if compacted {
                assert_eq!(pages, 1, "compaction has taken the dead entries away");
            } else {
                assert!(pages <= 12, "{pages} pages");
            }
        }
    }
    clean(&store);
}

/// A held view is reported by age, keeps its own state, and lets go of the disk when dropped; a
/// checkpoint, which holds one, has limits.
#[test]
fn hazard_7_held_views_are_seen_and_checkpoints_are_limited() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = OpenOptions { memtable_bytes: 1 << 20, ..OpenOptions::default() };
    let (store, table) = open(folder.path(), options);
    let fill = |version: u64| {
        for first in (0..2_000_u64).step_by(100) {
            let mut batch = Batch::new();
            for id in first..first + 100 {
                let mut row = content(7, version).values(id);
                row[3] = Value::String(format!("{}", id * 7_919 * version).repeat(60));
                batch.upsert(&table, Version::from(version), row).expect("valid");
            }
            store.apply(batch).wait().expect("applies");
        }
    };
    fill(1);
    store.compact().wait().expect("compacts");
    let once = store.gauges().table_bytes;
    let held = store.view().expect("open");
    std::thread::sleep(Duration::from_millis(50));
    fill(2);
    assert!(store.gauges().oldest_view >= Duration::from_millis(50));
    let sum = |view: &metaroute_store::View| view.totals(&table, None).expect("readable").sum(0);
    assert_eq!((sum(&held), sum(&store.view().expect("open"))), (2_000, 4_000));
    store.compact().wait().expect("compacts");
    assert_eq!(sum(&held), 2_000, "compaction takes nothing from a held view");
    let row = held.get(&table, 5, &[4]).expect("readable").into_row().expect("there");
    assert_eq!(row.values, [Value::U64(1)]);
    drop(held);
    let dropped = Instant::now();
    fill(3);
    store.compact().wait().expect("compacts");
    let oldest = store.gauges().oldest_view;
    assert!(oldest < dropped.elapsed(), "{oldest:?}, dropped {:?} ago", dropped.elapsed());
    let after = store.gauges().table_bytes;
    assert!(after < once * 2, "{after} bytes for what took {once}");

    let out_of_time = CheckpointLimits { time: Duration::ZERO, ..CheckpointLimits::default() };
    let refused = store.checkpoint(&mut Vec::new(), out_of_time, &Cancel::new());
    assert!(matches!(refused, Err(Error::CheckpointLimit(_))), "{refused:?}");
}

/// Scans that fill their pool neither delay single rows nor pile up.
#[test]
fn hazard_8_scans_do_not_hold_up_points() {
    let folder = scratch();
    let options = OpenOptions { scans: PoolSize { threads: 1, queue: 2 }, ..OpenOptions::default() };
    let (store, table) = open(folder.path(), options);
    let mut batch = Batch::new();
    batch.upsert(&table, Version::from(1), content(1, 5).values(1)).expect("valid");
    store.apply(batch).wait().expect("applies");
    let mut scans = Vec::new();
    for _ in 0..3 {
        scans.push(store.read_scans(|_, cancel| {
            while !cancel.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err::<(), _>(Error::Cancelled)
        }));
    }
    let start = Instant::now();
    while store.gauges().scans.running == 0 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
    let more = store.read_scans(|_, _| Ok(())).wait();
    assert!(matches!(more, Err(Error::Overloaded { queue: "scans" })), "{more:?}");
    assert!(more.is_err_and(|e| e.is_retryable()));
    let handle = table.clone();
    let row = store.read_points(move |view, _| view.get(&handle, 1, &[4])).wait().expect("readable");
    assert_eq!(row.into_row().expect("there").values, [Value::U64(5)]);
    // Callers that go away free the thread.
    drop(scans);
    let start = Instant::now();
    while store.gauges().scans.running > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "an abandoned scan still runs");
        std::thread::yield_now();
    }
    store.read_scans(|_, _| Ok(())).wait().expect("there is room again");
}

/// Sixty-four requests on their way share syncs.
#[test]
fn hazard_10_commits_are_grouped() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = OpenOptions { durability: Durability::Fsync, ..OpenOptions::default() };
    let (store, table) = open(folder.path(), options);
    let before = store.gauges();
    // Something to do meanwhile: a writer that is always faster than who asks has nothing to group.
    let mut busy = Batch::new();
    for n in 1_000..21_000_u64 {
        busy.upsert(&table, Version::from(1), content(n % 3, n).values(n)).expect("valid");
    }
    let busy = store.apply(busy);
    let answers: Vec<_> = (0..640_u64)
        .map(|n| {
            let mut batch = Batch::new();
            batch.upsert(&table, Version::from(1), content(n % 3, n).values(n)).expect("valid");
            store.apply(batch)
        })
        .collect();
    for answer in answers.into_iter().chain([busy]) {
        answer.wait().expect("applies");
    }
    let after = store.gauges();
    assert_eq!(after.batches - before.batches, 641);
    let syncs = after.syncs - before.syncs;
    assert!((1..320).contains(&syncs), "{syncs} syncs for 640 requests");
    clean(&store);
}

/// A disk of 24 MiB fills up: the store turns read-only, loses nothing, and comes back when there is
/// room, by itself.
#[test]
fn hazard_9_a_full_disk_is_survived() {
    let disk = test_support::require!(SmallDisk::mount("24m"));
    let options = OpenOptions { memtable_bytes: 1 << 20, ..OpenOptions::default() };
    let (store, table) = open(&disk.path().join("store"), options.clone());
    let mut dice = world::Dice(7);
    let noise: String = (0..40_000).map(|_| char::from(b'a' + dice.roll(26) as u8)).collect();
    let mut acknowledged = 0;
    let failure = loop {
        let mut batch = Batch::new();
        let mut row = content(7, acknowledged).values(acknowledged);
        row[3] = Value::String(noise[(acknowledged % 1_000) as usize..].to_owned());
        batch.upsert(&table, Version::from(1), row).expect("valid");
        match store.apply(batch).wait() {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 100_000, "the disk never filled up");
    };
    // Either the journal met the end of the disk, or a flush did and the engine stopped working.
    assert!(matches!(failure, Error::Failed { .. } | Error::Stalled { .. }), "{failure:?}");
    let count = |store: &Store| store.view().expect("open").totals(&table, None).expect("readable").rows;
    assert!(count(&store) >= acknowledged, "reads go on and miss nothing acknowledged");
    let mut batch = Batch::new();
    batch.delete(&table, Version::from(2), 0, None);
    let refused = store.apply(batch.clone()).wait();
    assert!(refused.is_err(), "a full disk takes no writes");

    disk.grow("200m");
    let start = Instant::now();
    while store.state() != metaroute_store::State::Running {
        assert!(start.elapsed() < Duration::from_secs(120), "still {:?}", store.state());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(count(&store) >= acknowledged);
    store.apply(batch).wait().expect("takes writes again");
    clean(&store);
    store.close();
    drop(store);
    let (store, _) = open(&disk.path().join("store"), options);
    assert!(count(&store) >= acknowledged - 1);
    clean(&store);
    store.close();
}

/// A file system in memory with a fixed size.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Result<SmallDisk, test_support::Missing> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let done = Self::run(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"], folder.path());
        if done {
            return Ok(SmallDisk(folder));
        }
        Err(test_support::Missing { what: "permission to mount a tmpfs".into(), remedy: "run the test as root".into() })
    }

    fn run(args: &[&str], at: &std::path::Path) -> bool {
        let status =
            std::process::Command::new("mount").args(args).arg(at).stderr(std::process::Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    fn path(&self) -> &std::path::Path {
        self.0.path()
    }

    fn grow(&self, size: &str) {
        assert!(Self::run(&["-o", &format!("remount,size={size}")], self.path()), "remount");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.path()).status();
    }
}
