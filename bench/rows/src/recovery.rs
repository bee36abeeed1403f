//! What a kill costs: wrong answers, lost rows, time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Plan;
use crate::client::{CONNECTIONS, Connection, once};
use crate::parts::{QUERY, SOME_ROWS, answers, folders};
use crate::servers::{Cluster, Tenants, fill, ready, up};

/// A shard is killed and started again under load.
pub async fn recovery(plan: &Plan) {
    let folder = tempfile::tempdir().expect("a folder");
    let tenants = Tenants { rows: SOME_ROWS };
    let server = up(folder.path(), (2, 2), "warn");
    fill(server.address, SOME_ROWS).await;
    server.stop();
    let shapes: Vec<(u32, u32)> = (0..2).flat_map(|group| (0..2).map(move |shard| (group, shard))).collect();
    let copies = folders(folder.path(), &shapes);
    let mut cluster = Cluster::start(folder.path(), &copies, &shapes, true).await;
    let router = cluster.router.address;
    answers(router, &tenants.page(1)).await;
    println!("\n### A shard killed and started again under load ({SOME_ROWS} rows, four shards, a process each)\n");
    println!(
        "| kill | first complete answers of all shards after | started again after | right 200s | wrong 200s | 503s meanwhile |\n|---:|---:|---:|---:|---:|---:|"
    );
    for kill in 1..=plan.rounds {
        let counts: Arc<[AtomicU64; 3]> = Arc::default();
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let last_failure = Arc::new(std::sync::Mutex::new(Instant::now()));
        let tasks: Vec<_> = (0..CONNECTIONS)
            .map(|connection| {
                let (counts, stop, last_failure) = (counts.clone(), stop.clone(), last_failure.clone());
                tokio::spawn(async move {
                    let mut stream = Connection::open(router).await.expect("it listens");
                    let mut n = connection << 32;
                    while !stop.load(Ordering::Relaxed) {
                        n += 1;
                        let (id, _) = tenants.pick(n);
                        let (status, answer) = stream.ask(QUERY, &tenants.point(n)).await.expect("answered");
                        let right = status == 200 && {
                            let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
                            answer["rows"][0]["file_id"] == id.to_string().as_str()
                                && answer["meta"]["complete"] == true
                        };
                        counts[if right {
                            0
                        } else if status == 200 {
                            1
                        } else {
                            2
                        }]
                        .fetch_add(1, Ordering::Relaxed);
                        if !right {
                            *last_failure.lock().expect("not poisoned") = Instant::now();
                        }
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let listen = cluster.shards[1].1.address;
        let killed = Instant::now();
        cluster.shards[1].1.kill();
        cluster.shards[1].1 = Cluster::shard(folder.path(), 1, &copies[1], shapes[1], Some(listen));
        let started = killed.elapsed();
        // Long enough to see the end: a last failure at the end of the window says nothing.
        tokio::time::sleep(plan.time * 10).await;
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.expect("no panic");
        }
        let recovered = last_failure.lock().expect("not poisoned").saturating_duration_since(killed);
        let [right, wrong, failed] = [0, 1, 2].map(|at| counts[at].load(Ordering::Relaxed));
        println!(
            "| {kill} | {:.0} ms | {:.0} ms | {right} | {wrong} | {failed} |",
            recovered.as_secs_f64() * 1e3,
            started.as_secs_f64() * 1e3
        );
        assert_eq!(wrong, 0, "a wrong 200");
    }
    drop(cluster);
    // The same with `up` as a whole, and with writes: what was acknowledged must be there afterwards.
    let mut server = up(folder.path(), (2, 2), "warn");
    ready(server.address).await;
    println!(
        "\n| `up` killed while it is written to | rows acknowledged | of them lost | ready again after |\n|---:|---:|---:|---:|"
    );
    for kill in 1..=plan.rounds {
        let address = server.address;
        let first = SOME_ROWS + kill as u64 * 10_000_000;
        let writing = tokio::spawn(async move {
            let mut connection = Connection::open(address).await.expect("it listens");
            let mut acknowledged = Vec::new();
            for id in first.. {
                let body = format!("{{\"rows\":[{{\"file_id\":{id},\"user_id\":7,\"path\":\"/k/{id}\"}}]}}");
                match connection.ask("/v1/file_metadata/rows", &body).await {
                    Ok((200, _)) => acknowledged.push(id),
                    _ => break,
                }
            }
            acknowledged
        });
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.kill();
        let killed = Instant::now();
        let acknowledged = writing.await.expect("no panic");
        server = up(folder.path(), (2, 2), "warn");
        ready(server.address).await;
        let took = killed.elapsed();
        let mut found = 0;
        for ids in acknowledged.chunks(1_000) {
            let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
            let body = format!("{{\"user_id\":7,\"file_ids\":[{}],\"limit\":1000}}", ids.join(","));
            let answer: serde_json::Value =
                serde_json::from_slice(&once(server.address, QUERY, &body).await).expect("JSON");
            found += answer["rows"].as_array().expect("a list").len();
        }
        println!(
            "| {kill} | {} | {} | {:.0} ms |",
            acknowledged.len(),
            acknowledged.len() - found,
            took.as_secs_f64() * 1e3
        );
        assert_eq!(found, acknowledged.len(), "an acknowledged row is lost");
    }
}
