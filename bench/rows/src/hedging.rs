//! Path B over 12 shards while one copy of one shard stops again and again.
//!
//! Hedging is about waiting, so it can be seen only where requests do not wait for a processor: the load comes at a fixed
//! low rate, whatever becomes of the answers, and a latency counts from the moment a question was due. The copy is not
//! slow but stops as a whole (SIGSTOP), at random and for a short while each time, as for a collection of garbage or a
//! disk that does not answer: a copy that is always slow is avoided by the choice between copies alone.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Plan;
use crate::client::{Connection, cpu, get};
use crate::parts::{QUERY, SOME_ROWS, answers, folders};
use crate::plot::{Bar, Chart};
use crate::servers::{Cluster, Tenants, fill, up};

/// Questions a second.
const RATE: u32 = 60;
/// How long a stop is, and the time between two on average: a copy that stops stands still a tenth of the time.
const STOP: Duration = Duration::from_millis(30);
const BETWEEN: Duration = Duration::from_millis(270);

/// Stops a process again and again until dropped.
struct Stopping {
    task: tokio::task::JoinHandle<()>,
    pid: Pid,
}

impl Stopping {
    fn start(pid: u32) -> Stopping {
        let pid = Pid::from_raw(pid as i32).expect("a process id");
        let task = tokio::spawn(async move {
            let mut random = 1_u64;
            loop {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let uniform = ((random >> 33) + 1) as f64 / (1_u64 << 31) as f64;
                tokio::time::sleep(BETWEEN.mul_f64(-uniform.ln())).await;
                kill_process(pid, Signal::STOP).expect("it runs");
                tokio::time::sleep(STOP).await;
                kill_process(pid, Signal::CONT).expect("it runs");
            }
        });
        Stopping { task, pid }
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        self.task.abort();
        // It may have been left standing.
        let _ = kill_process(self.pid, Signal::CONT);
    }
}

/// Asks at a fixed rate for a while. Latencies from when each question was due, sorted.
async fn at_rate(router: SocketAddr, tenants: Tenants, time: Duration, from: u64) -> Vec<Duration> {
    let free: Arc<Mutex<Vec<Connection>>> = Arc::default();
    let begun = Instant::now();
    let mut asking = Vec::new();
    for n in 0..(time.as_secs_f64() * f64::from(RATE)) as u32 {
        let due = begun + Duration::from_secs(1) * n / RATE;
        tokio::time::sleep_until(due.into()).await;
        let free = Arc::clone(&free);
        asking.push(tokio::spawn(async move {
            let kept = free.lock().expect("not poisoned").pop();
            let mut connection = match kept {
                Some(connection) => connection,
                None => Connection::open(router).await.expect("it listens"),
            };
            let (status, answer) = connection.ask(QUERY, &tenants.page(from + u64::from(n))).await.expect("answered");
            let took = due.elapsed();
            assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
            free.lock().expect("not poisoned").push(connection);
            took
        }));
    }
    let mut took = Vec::new();
    for one in asking {
        took.push(one.await.expect("no panic"));
    }
    took.sort_unstable();
    took
}

/// A counter of the router's metrics page, over all labels.
async fn counter(address: SocketAddr, name: &str) -> u64 {
    let page = get(address, "/metrics").await;
    page.lines()
        .filter(|line| line.starts_with(name))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum::<f64>() as u64
}

pub async fn hedging(plan: &Plan, charts: &mut Vec<Chart>) {
    let folder = tempfile::tempdir().expect("a folder");
    let tenants = Tenants { rows: SOME_ROWS };
    let server = up(folder.path(), (1, 12), "warn");
    fill(server.address, SOME_ROWS).await;
    server.stop();
    let mut shapes: Vec<(u32, u32)> = (0..12).map(|shard| (0, shard)).collect();
    let mut copies = folders(folder.path(), &shapes);
    let second = folder.path().join("copy");
    let copied = std::process::Command::new("cp").arg("-r").arg(&copies[0]).arg(&second).status().expect("cp runs");
    assert!(copied.success());
    shapes.push((0, 0));
    copies.push(second);
    let time = plan.time * 10;
    println!(
        "\n### Path B over 12 shards, {RATE} questions a second for {} s; one of two copies of a shard stops for {} ms, on \
         average every {} ms\n",
        time.as_secs(),
        STOP.as_millis(),
        (STOP + BETWEEN).as_millis()
    );
    println!("| | questions | p50 | p90 | p99 | p99.9 | extra requests | processors busy |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let mut bars = Vec::new();
    for (name, hedge, stops) in [
        ("nothing stops, hedging off", false, false),
        ("nothing stops, hedging on", true, false),
        ("one copy stops, hedging off", false, true),
        ("one copy stops, hedging on", true, true),
    ] {
        let cluster = Cluster::start(folder.path(), &copies, &shapes, hedge).await;
        answers(cluster.router.address, &tenants.page(1)).await;
        let stopping = stops.then(|| Stopping::start(cluster.shards[0].1.pid()));
        // Caches and the router's picture of latencies.
        at_rate(cluster.router.address, tenants, plan.time * 3, 1 << 32).await;
        let counters = async || {
            (
                counter(cluster.router.address, "metaroute_hedged_requests_total").await,
                counter(cluster.router.address, "metaroute_sub_requests_total").await,
            )
        };
        let (before, busy, begun) = (counters().await, cpu(&cluster.pids()), Instant::now());
        let took = at_rate(cluster.router.address, tenants, time, 0).await;
        let busy = (cpu(&cluster.pids()) - busy).as_secs_f64() / begun.elapsed().as_secs_f64();
        let after = counters().await;
        drop(stopping);
        let extra = 100.0 * (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let ms = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
        println!(
            "| {name} | {} | {:.2} ms | {:.2} ms | {:.2} ms | {:.2} ms | {extra:.2} % | {:.0} % |",
            took.len(),
            ms(0.5),
            ms(0.9),
            ms(0.99),
            ms(0.999),
            100.0 * busy / processors as f64
        );
        bars.push(Bar { name: name.to_owned(), value: ms(0.99) });
    }
    charts.push(Chart {
        title: "Path B over 12 shards, one copy of one stops at times".to_owned(),
        unit: "ms, p99".to_owned(),
        bars,
    });
}
