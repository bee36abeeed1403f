//! What is measured.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::Plan;
use crate::client::{CONNECTIONS, Connection, Load, cpu, get, load, once};
use crate::plot::{Bar, Chart};
use crate::rivals::Maria;
use crate::servers::{Cluster, Process, Tenants, fill, ready, rival, up};

const QUERY: &str = "/v1/file_metadata/query";

/// Rows of the parts that are about shards, not about size.
const SOME_ROWS: u64 = 400_000;

pub async fn run(plan: &Plan, wanted: &dyn Fn(&str) -> bool) {
    println!(
        "{} rows, {} s a measurement, {} rounds, {CONNECTIONS} connections",
        plan.rows,
        plan.time.as_secs(),
        plan.rounds
    );
    println!("load average at the start: {}", load_average());
    let mut charts = Vec::new();
    if ["compare", "processes", "scan"].iter().any(|part| wanted(part)) {
        same_rows(plan, wanted, &mut charts).await;
    }
    plot(&charts);
    if wanted("shards") {
        shards(plan, &mut charts).await;
        plot(&charts);
    }
    if wanted("hedging") {
        hedging(plan, &mut charts).await;
        plot(&charts);
    }
    if wanted("recovery") {
        recovery(plan).await;
    }
    println!("\nload average at the end: {}", load_average());
}

/// Draws what there is; each part takes minutes, and one that fails must not take the others with it.
fn plot(charts: &[Chart]) {
    if !charts.is_empty() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/rows.png");
        crate::plot::draw(&path, charts);
    }
}

fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(2).collect::<Vec<_>>().join(", ")
}

fn heading(title: &str) {
    println!("\n### {title}\n");
    println!("| | a second | p50 | p99 | processor time an answer |\n|---|---:|---:|---:|---:|");
}

fn line(name: &str, load: &Load) {
    let ms = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
    println!(
        "| {name} | {:.0} | {} | {} | {:.1} µs |",
        load.per_second,
        ms(load.p50),
        ms(load.p99),
        load.cpu.as_secs_f64() * 1e6
    );
}

fn ratio(ours: &Load, theirs: &Load, name: &str) {
    println!(
        "| of {name} | {:.0} % | {:.1}× | {:.1}× | {:.1}× |",
        100.0 * ours.per_second / theirs.per_second,
        ours.p50.as_secs_f64() / theirs.p50.as_secs_f64(),
        ours.p99.as_secs_f64() / theirs.p99.as_secs_f64(),
        ours.cpu.as_secs_f64() / theirs.cpu.as_secs_f64()
    );
}

fn chart(charts: &mut Vec<Chart>, title: &str, loads: &[(&str, &Load)]) {
    let bars = loads.iter().map(|(name, load)| Bar { name: (*name).to_owned(), value: load.cpu.as_secs_f64() * 1e6 });
    charts.push(Chart {
        title: title.to_owned(),
        unit: "µs of processor time an answer".to_owned(),
        bars: bars.collect(),
    });
}

/// `up`, a bare hop and MariaDB, then router and shards as processes and a proxy, all over the same rows.
async fn same_rows(plan: &Plan, wanted: &dyn Fn(&str) -> bool, charts: &mut Vec<Chart>) {
    let folder = tempfile::tempdir().expect("a folder");
    let tenants = Tenants { rows: plan.rows };
    let server = up(folder.path(), (2, 2), "info");
    let rate = fill(server.address, plan.rows).await;
    println!("\n{} rows written over HTTP: {rate:.0} a second", plan.rows);
    server.stop();
    let server = up(folder.path(), (2, 2), "info");
    ready(server.address).await;
    let sizes = [
        once(server.address, QUERY, &tenants.point(1)).await.len(),
        once(server.address, QUERY, &tenants.page(1)).await.len(),
    ];
    let hop = rival(&["serve-hop", &format!("{},{}", sizes[0], sizes[1])]);
    let hop_path = |at: usize| -> &'static str { Box::leak(format!("/hop/{}", sizes[at]).into_boxed_str()) };
    let points = move |n| tenants.point(n);
    let pages = move |n| tenants.page(n);
    let mut maria = if wanted("compare") || wanted("scan") { Maria::start(plan.rows).await } else { None };

    if wanted("compare") {
        for (at, path) in ['A', 'B'].into_iter().enumerate() {
            let mut loads: [Vec<Load>; 3] = Default::default();
            // The first round fills caches.
            for round in 0..=plan.rounds {
                let hops = load(hop.address, hop_path(at), plan.time, &[hop.pid()], points).await;
                let ours = match path {
                    'A' => load(server.address, QUERY, plan.time, &[server.pid()], points).await,
                    _ => load(server.address, QUERY, plan.time, &[server.pid()], pages).await,
                };
                let theirs = match &mut maria {
                    Some(maria) => Some(maria.load(path, tenants, plan.time).await),
                    None => None,
                };
                if round > 0 {
                    loads[0].push(hops);
                    loads[1].push(ours);
                    loads[2].extend(theirs);
                }
            }
            let what = if path == 'A' { "one row" } else { "a tenant's 100 newest rows" };
            heading(&format!("Path {path}: {what}, {} bytes an answer", sizes[at]));
            let (hops, ours) = (Load::median(&loads[0]), Load::median(&loads[1]));
            line("bare axum hop", &hops);
            line("`metaroute up`", &ours);
            let mut bars = vec![("bare axum hop", &hops), ("metaroute up", &ours)];
            let theirs = (!loads[2].is_empty()).then(|| Load::median(&loads[2]));
            if let Some(theirs) = &theirs {
                line("MariaDB", theirs);
                bars.push(("MariaDB", theirs));
            }
            ratio(&ours, &hops, "the hop");
            if let Some(theirs) = &theirs {
                ratio(&ours, theirs, "MariaDB");
            }
            chart(charts, &format!("Path {path}: {what}"), &bars);
        }
        let quiet = up_again(server, folder.path(), "warn").await;
        let silent = load(quiet.address, QUERY, plan.time, &[quiet.pid()], points).await;
        heading("Path A without completion lines (`RUST_LOG=warn`)");
        line("`metaroute up`", &silent);
        scan_if(plan, wanted, &quiet, &mut maria).await;
        quiet.stop();
    } else {
        scan_if(plan, wanted, &server, &mut maria).await;
        server.stop();
    }
    drop(maria);
    if wanted("processes") {
        let shapes: Vec<(u32, u32)> = (0..2).flat_map(|group| (0..2).map(move |shard| (group, shard))).collect();
        let copies = folders(folder.path(), &shapes);
        let cluster = Cluster::start(folder.path(), &copies, &shapes, true, None).await;
        answers(cluster.router.address, &tenants.page(1)).await;
        let behind = hop.address.to_string();
        let proxy = rival(&["serve-proxy", &behind]);
        for (at, path) in ['A', 'B'].into_iter().enumerate() {
            let mut loads: [Vec<Load>; 2] = Default::default();
            for round in 0..=plan.rounds {
                let theirs = load(proxy.address, hop_path(at), plan.time, &[proxy.pid(), hop.pid()], points).await;
                let ours = match path {
                    'A' => load(cluster.router.address, QUERY, plan.time, &cluster.pids(), points).await,
                    _ => load(cluster.router.address, QUERY, plan.time, &cluster.pids(), pages).await,
                };
                if round > 0 {
                    loads[0].push(theirs);
                    loads[1].push(ours);
                }
            }
            let (theirs, ours) = (Load::median(&loads[0]), Load::median(&loads[1]));
            heading(&format!("Path {path}: router and four shards, a process each"));
            line("axum → axum proxy", &theirs);
            line("router → shards", &ours);
            ratio(&ours, &theirs, "the proxy");
            chart(
                charts,
                &format!("Path {path}, as processes"),
                &[("axum → axum proxy", &theirs), ("router → shards", &ours)],
            );
        }
    }
}

async fn up_again(server: Process, folder: &Path, level: &str) -> Process {
    server.stop();
    let server = up(folder, (2, 2), level);
    ready(server.address).await;
    server
}

/// Path C beside a full scan.
async fn scan_if(plan: &Plan, wanted: &dyn Fn(&str) -> bool, server: &Process, maria: &mut Option<Maria>) {
    if !wanted("scan") {
        return;
    }
    let body = r#"{"where":"size > 500000 && mime == 'image/png'","allow":"global","timeout_ms":600000}"#;
    let mut took: [Vec<(Duration, Duration)>; 2] = Default::default();
    let mut counts = [0, 0];
    for round in 0..=plan.rounds {
        let (begun, before) = (Instant::now(), cpu(&[server.pid()]));
        let answer = once(server.address, "/v1/file_metadata/count", body).await;
        let ours = (begun.elapsed(), cpu(&[server.pid()]) - before);
        let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
        counts[0] = answer["count"].as_u64().expect("a number");
        let theirs = match maria {
            Some(maria) => {
                let (count, time, cpu) = maria.scan().await;
                counts[1] = count;
                Some((time, cpu))
            }
            None => None,
        };
        if round > 0 {
            took[0].push(ours);
            took[1].extend(theirs);
        }
    }
    println!(
        "\n### Path C: a count over all rows by two columns\n\n| | rows found | time | processor time |\n|---|---:|---:|---:|"
    );
    for (at, name) in ["`metaroute up`, path C", "MariaDB, full scan"].into_iter().enumerate() {
        took[at].sort();
        if let Some((time, cpu)) = took[at].get(took[at].len() / 2) {
            println!("| {name} | {} | {:.2} s | {:.2} s |", counts[at], time.as_secs_f64(), cpu.as_secs_f64());
        }
    }
    assert!(maria.is_none() || counts[0] == counts[1], "both count the same rows");
}

fn folders(folder: &Path, shards: &[(u32, u32)]) -> Vec<PathBuf> {
    shards.iter().map(|(group, shard)| folder.join(format!("data/shards/g{group}/s{shard}"))).collect()
}

/// Waits until a query is answered.
async fn answers(address: SocketAddr, body: &str) {
    let began = Instant::now();
    loop {
        if let Ok((200, _)) = Connection::open(address).await.expect("it listens").ask(QUERY, body).await {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no answer from {address}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The same load on 1, 2 and 4 shards.
async fn shards(plan: &Plan, charts: &mut Vec<Chart>) {
    let tenants = Tenants { rows: SOME_ROWS };
    let mut servers = Vec::new();
    for count in [1, 2, 4] {
        let folder = tempfile::tempdir().expect("a folder");
        let server = up(folder.path(), (1, count), "warn");
        let before = cpu(&[server.pid()]);
        fill(server.address, SOME_ROWS).await;
        let written = (cpu(&[server.pid()]) - before) / SOME_ROWS as u32;
        servers.push((count, folder, server, written));
    }
    let mut loads: Vec<[Vec<Load>; 2]> = vec![Default::default(); 3];
    for round in 0..=plan.rounds {
        for (at, (_, _, server, _)) in servers.iter().enumerate() {
            let points = load(server.address, QUERY, plan.time, &[server.pid()], move |n| tenants.point(n)).await;
            let pages = load(server.address, QUERY, plan.time, &[server.pid()], move |n| tenants.page(n)).await;
            if round > 0 {
                loads[at][0].push(points);
                loads[at][1].push(pages);
            }
        }
    }
    println!("\n### The same load on 1, 2 and 4 shards ({SOME_ROWS} rows, one process)\n");
    println!("| shards | processor time: a row written | path A | path B | path A a second | path B a second |");
    println!("|---:|---:|---:|---:|---:|---:|");
    let mut bars = Vec::new();
    for ((count, _, _, written), loads) in servers.iter().zip(&loads) {
        let [points, pages] = [Load::median(&loads[0]), Load::median(&loads[1])];
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        println!(
            "| {count} | {:.1} µs | {:.1} µs | {:.1} µs | {:.0} | {:.0} |",
            us(*written),
            us(points.cpu),
            us(pages.cpu),
            points.per_second,
            pages.per_second
        );
        bars.push(Bar { name: format!("A, {count}"), value: us(points.cpu) });
        bars.push(Bar { name: format!("B, {count}"), value: us(pages.cpu) });
    }
    bars.sort_by(|a, b| a.name.cmp(&b.name));
    let unit = "µs of processor time an answer".to_owned();
    charts.push(Chart { title: "The same load on 1, 2 and 4 shards".to_owned(), unit, bars });
}

/// A counter of the router's metrics page.
async fn counter(address: SocketAddr, name: &str) -> u64 {
    let page = get(address, "/metrics").await;
    page.lines()
        .filter(|line| line.starts_with(name))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum::<f64>() as u64
}

/// Path B over 12 shards of which one has a second copy; its first one answers 20 ms late.
async fn hedging(plan: &Plan, charts: &mut Vec<Chart>) {
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
    println!("\n### Path B over 12 shards, one copy of one shard 20 ms late\n");
    println!("| | a second | p50 | p99 | extra requests |\n|---|---:|---:|---:|---:|");
    let mut bars = Vec::new();
    for (name, hedge, slow) in [
        ("nothing slow", false, None),
        ("one copy slow, hedging off", false, Some(0)),
        ("one copy slow, hedging on", true, Some(0)),
    ] {
        let cluster = Cluster::start(folder.path(), &copies, &shapes, hedge, slow).await;
        answers(cluster.router.address, &tenants.page(1)).await;
        let pages = move |n| tenants.page(n);
        load(cluster.router.address, QUERY, plan.time, &[], pages).await;
        let before = (
            counter(cluster.router.address, "metaroute_hedged_requests_total").await,
            counter(cluster.router.address, "metaroute_sub_requests_total").await,
        );
        let seen = load(cluster.router.address, QUERY, plan.time * 2, &[], pages).await;
        let after = (
            counter(cluster.router.address, "metaroute_hedged_requests_total").await,
            counter(cluster.router.address, "metaroute_sub_requests_total").await,
        );
        let extra = 100.0 * (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "| {name} | {:.0} | {:.2} ms | {:.2} ms | {extra:.2} % |",
            seen.per_second,
            ms(seen.p50),
            ms(seen.p99)
        );
        bars.push(Bar { name: name.to_owned(), value: ms(seen.p99) });
    }
    charts.push(Chart {
        title: "Path B over 12 shards, one copy 20 ms late".to_owned(),
        unit: "ms, p99".to_owned(),
        bars,
    });
}

/// Passes bytes on, those towards the client late.
pub async fn relay(to: SocketAddr, late: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(to).await else { continue };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            let (sender, mut receiver) = tokio::sync::mpsc::channel::<(Instant, Vec<u8>)>(10_000);
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(read) = from_server.read(&mut buffer).await {
                    if read == 0 || sender.send((Instant::now() + late, buffer[..read].to_vec())).await.is_err() {
                        return;
                    }
                }
            });
            tokio::spawn(async move {
                while let Some((due, bytes)) = receiver.recv().await {
                    tokio::time::sleep_until(due.into()).await;
                    if to_client.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// A shard is killed and started again under load.
async fn recovery(plan: &Plan) {
    let folder = tempfile::tempdir().expect("a folder");
    let tenants = Tenants { rows: SOME_ROWS };
    let server = up(folder.path(), (2, 2), "warn");
    fill(server.address, SOME_ROWS).await;
    server.stop();
    let shapes: Vec<(u32, u32)> = (0..2).flat_map(|group| (0..2).map(move |shard| (group, shard))).collect();
    let copies = folders(folder.path(), &shapes);
    let mut cluster = Cluster::start(folder.path(), &copies, &shapes, true, None).await;
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
