//! Kill -9 at random points, and what is left.
//!
//! The program starts itself again as a *victim* that writes request after request, each moving the
//! log position by one, and says on its standard output which ones were acknowledged. It is killed at
//! a random moment. Then the store is opened and must hold exactly the first `k` requests for some
//! `k` at or above the last acknowledged one; which `k` it is, the position stored with the rows says.
//! Rows, tombstones, index, counters and position are all compared, and the next round goes on in the
//! same folder.
//!
//! `METAROUTE_CRASH_ROUNDS` sets the number of rounds (default 30), `METAROUTE_CRASH_SEED` the seed.

#![allow(clippy::print_stdout, reason = "the victim talks to its parent that way, and the parent to a person")]

#[path = "../it/world.rs"]
#[allow(dead_code, reason = "shared with the other test binary")]
mod world;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use metaroute_store::{Durability, GateLimits, OpenOptions, Store};
use world::{Content, Dice, Model, Op, Set, Step};

/// Requests on their way at once, so that commits merge several.
const WINDOW: usize = 8;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, folder, seed, durability] = args.as_slice()
        && flag == "--victim"
    {
        victim(Path::new(folder), seed.parse().expect("a seed"), durability == "fsync");
        return ExitCode::SUCCESS;
    }
    if let [_, flag, folder] = args.as_slice()
        && flag == "--flood"
    {
        flood(Path::new(folder));
        return ExitCode::SUCCESS;
    }
    let env = |name: &str, default: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let rounds = env("METAROUTE_CRASH_ROUNDS", 30);
    let seed = env("METAROUTE_CRASH_SEED", 0x5eed);
    let start = Instant::now();
    let (mut acknowledged, mut in_flight) = (0, 0);
    // A fresh folder now and then, so that young stores are killed as often as grown ones.
    for (n, first) in (0..rounds).step_by(10).enumerate() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let durability = if n % 3 == 2 { "fsync" } else { "journal" };
        let mut dice = Dice(seed.wrapping_mul(31).wrapping_add(first) | 1);
        let seed = dice.roll(u64::MAX);
        let mut model = Model::default();
        let mut done = 0;
        for round in first..(first + 10).min(rounds) {
            let acked = kill_one(folder.path(), seed, durability, &mut dice).max(done);
            let store = Store::open(folder.path(), options(false)).expect("opens after a kill");
            let held = position(&store);
            assert!(
                held >= acked,
                "round {round}: request {acked} was acknowledged, the store has {held} (seed {seed})"
            );
            for request in done..held {
                let step = request_step(seed, request, &model);
                play(&mut model, &step, request + 1);
            }
            if let Ok(table) = store.table("t") {
                world::compare(&store, &table, &model, &mut dice);
            }
            acknowledged += acked - done;
            in_flight += held - acked;
            done = held;
            store.close();
        }
    }
    println!(
        "crash: {rounds} rounds, {acknowledged} acknowledged requests all there, {in_flight} more that were on \
         their way, {:.1} s",
        start.elapsed().as_secs_f64()
    );
    hazard_5_a_killed_flood_does_not_halt_the_next_writer();
    // The line test tools look for; this binary has no harness to print it.
    println!("test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
    ExitCode::SUCCESS
}

fn options(fsync: bool) -> OpenOptions {
    OpenOptions {
        durability: if fsync { Durability::Fsync } else { Durability::Journal },
        // Small enough that kills hit flushes and compactions.
        memtable_bytes: 64 << 10,
        gate: GateLimits { active_memtable_bytes: 4 << 20, ..GateLimits::default() },
        ..OpenOptions::default()
    }
}

fn position(store: &Store) -> u64 {
    let held = store.view().expect("open").position(&world::lane()).expect("readable");
    held.map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().expect("eight bytes")))
}

/// Starts a victim, kills it, returns the last request it saw acknowledged.
fn kill_one(folder: &Path, seed: u64, durability: &str, dice: &mut Dice) -> u64 {
    let mut victim = Command::new(std::env::current_exe().expect("own path"))
        .args(["--victim", &folder.display().to_string(), &seed.to_string(), durability])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let out = victim.stdout.take().expect("piped");
    let (first, has_first) = std::sync::mpsc::sync_channel(1);
    let reader = std::thread::spawn(move || {
        let mut acked = 0;
        for line in BufReader::new(out).lines() {
            let Ok(line) = line else { break };
            // The last line may be cut off by the kill.
            if let Some(n) = line.strip_suffix('.').and_then(|n| n.parse().ok()) {
                acked = n;
                let _ = first.try_send(());
            }
        }
        acked
    });
    // Half the kills come during opening or the first requests.
    if dice.roll(2) == 0 {
        has_first.recv_timeout(Duration::from_secs(60)).expect("the victim acknowledges something");
        std::thread::sleep(Duration::from_micros(dice.roll(400_000)));
    } else {
        std::thread::sleep(Duration::from_micros(dice.roll(60_000)));
    }
    victim.kill().expect("is alive: victims do not stop by themselves");
    victim.wait().expect("waits");
    reader.join().expect("no panic")
}

/// Writes for ever.
fn victim(folder: &Path, seed: u64, fsync: bool) {
    let store = Store::open(folder, options(fsync)).expect("opens");
    let table = store.create_table(world::schema()).wait().expect("creates");
    let mut model = Model::default();
    let done = position(&store);
    for request in 0..done {
        let step = request_step(seed, request, &model);
        play(&mut model, &step, request + 1);
    }
    let mut waiting = std::collections::VecDeque::new();
    let mut out = std::io::stdout().lock();
    for request in done.. {
        let step = request_step(seed, request, &model);
        match &step {
            Step::Ingest(rows) => {
                let rows = model.chunk_rows(rows);
                waiting.push_back(Answer::Chunk(store.ingest(world::build_chunk(&table, &rows, request + 1))));
            }
            Step::Batch(ops) => {
                waiting.push_back(Answer::Batch(store.apply(world::build_batch(&table, ops, request + 1))));
            }
            other => unreachable!("{other:?} is no request"),
        }
        play(&mut model, &step, request + 1);
        if waiting.len() >= WINDOW {
            match waiting.pop_front().expect("just pushed") {
                Answer::Batch(answer) => drop(answer.wait().expect("applies")),
                Answer::Chunk(answer) => drop(answer.wait().expect("loads")),
            }
            writeln!(out, "{}.", request + 2 - WINDOW as u64).and_then(|()| out.flush()).expect("parent reads");
        }
    }
}

/// Large incompressible rows as fast as the gate lets them through, so that the kill leaves full journals and
/// memtables that were not flushed.
fn flood(folder: &Path) {
    let store = Store::open(folder, flood_options()).expect("opens");
    let table = store.create_table(world::schema()).wait().expect("creates");
    let mut dice = Dice(7);
    let noise: String = (0..1_000_000).map(|_| char::from(b'a' + dice.roll(26) as u8)).collect();
    let mut out = std::io::stdout().lock();
    for n in 0.. {
        let mut row = Content { owner: 1, at: None, name: 0, size: Some(n), score: None, cents: None }.values(n);
        row[3] = metaroute_store::Value::String(noise[(n % 1_000) as usize..].to_owned());
        let mut batch = metaroute_store::Batch::new();
        batch.upsert(&table, metaroute_store::Version::from(1), row).expect("valid");
        store.apply(batch).wait().expect("applies");
        writeln!(out, "{}.", n + 1).and_then(|()| out.flush()).expect("parent reads");
    }
}

fn flood_options() -> OpenOptions {
    OpenOptions { memtable_bytes: 2 << 20, ..OpenOptions::default() }
}

/// After recovery with memtables waiting to be flushed the first write must go through, and soon.
fn hazard_5_a_killed_flood_does_not_halt_the_next_writer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut acked = 0;
    for _ in 0..3 {
        let mut victim = Command::new(std::env::current_exe().expect("own path"))
            .args(["--flood", &folder.path().display().to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let out = BufReader::new(victim.stdout.take().expect("piped"));
        let target = 120;
        for line in out.lines().take(target) {
            let line = line.expect("reads");
            acked = acked.max(line.trim_end_matches('.').parse::<u64>().expect("a number"));
        }
        victim.kill().expect("is alive");
        victim.wait().expect("waits");
        let store = Store::open(folder.path(), flood_options()).expect("opens after a kill");
        let table = store.table("t").expect("there");
        let start = Instant::now();
        let mut batch = metaroute_store::Batch::new();
        batch.delete(&table, metaroute_store::Version::from(1), u64::MAX, None);
        store.apply(batch).wait().expect("the first write after recovery");
        assert!(start.elapsed() < Duration::from_secs(60), "the first write took {:?}", start.elapsed());
        let rows = store.view().expect("open").totals(&table, None).expect("readable").rows;
        assert!(rows >= acked, "{acked} rows acknowledged, {rows} there");
        store.close();
    }
    println!("crash: hazard 5: first write after each of 3 killed floods, {acked} rows all there");
}

enum Answer {
    Batch(metaroute_store::Pending<metaroute_store::Applied>),
    Chunk(metaroute_store::Pending<u64>),
}

fn play(model: &mut Model, step: &Step, position: u64) {
    match step {
        Step::Ingest(rows) => {
            let rows = model.chunk_rows(rows);
            model.ingest(&rows, position);
        }
        Step::Batch(ops) => drop(model.batch(ops, position).expect("no request has partial updates that miss")),
        _ => {}
    }
}

/// The `request`th request; a pure function of its arguments.
fn request_step(seed: u64, request: u64, model: &Model) -> Step {
    let mut dice = Dice(seed ^ (request + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..4 {
        dice.roll(1);
    }
    let content = |dice: &mut Dice| Content {
        owner: dice.roll(4),
        at: (dice.roll(4) > 0).then(|| dice.roll(8) as i64 - 4),
        name: dice.roll(4) as u8,
        size: (dice.roll(4) > 0).then(|| dice.roll(1 << 40)),
        score: (dice.roll(4) > 0).then(|| dice.roll(100) as i64 - 50),
        cents: (dice.roll(4) > 0).then(|| dice.roll(1000) as i64 - 500),
    };
    if dice.roll(40) == 0 {
        let rows = 1 + dice.roll(30);
        return Step::Ingest((0..rows).map(|_| (dice.roll(2), request + 1, content(&mut dice))).collect());
    }
    let ids = 300;
    let mut ops = Vec::new();
    for _ in 0..1 + dice.roll(6) {
        let id = dice.roll(ids);
        // Mostly newer, sometimes a replay.
        let version = if dice.roll(5) == 0 { 1 + dice.roll(request + 1) } else { request + 1 };
        ops.push(match dice.roll(20) {
            0..=3 => Op::Delete { id, version, tenant: None },
            4 => Op::Expire { version: 1 + version / 2 },
            5 => Op::Evict { id },
            6..=8 => {
                // A partial update only where it cannot miss: the row is live now and this batch has
                // not touched it.
                let live = matches!(model.slots.get(&id), Some(world::Slot::Live(..)));
                let touched = !ops.is_empty();
                if live && !touched {
                    Op::Update { id, version, set: vec![Set::Size(Some(dice.roll(1 << 40))), Set::Owner(dice.roll(4))] }
                } else {
                    Op::Upsert { id, version, content: content(&mut dice) }
                }
            }
            9 if dice.roll(60) == 0 => Op::Truncate { version },
            _ => Op::Upsert { id, version, content: content(&mut dice) },
        });
    }
    Step::Batch(ops)
}
