//! What is measured.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Plan;
use crate::client::{CONNECTIONS, Connection, Load, cpu, once};
use crate::plot::{Bar, Chart};
use crate::rivals::Maria;
use crate::servers::{Cluster, Process, Tenants, fill, ready, rival, up};
use crate::wrk::{Ask, load};

pub const QUERY: &str = "/v1/file_metadata/query";

/// Rows of the parts that are about shards, not about size.
pub const SOME_ROWS: u64 = 400_000;

pub async fn run(plan: &Plan, wanted: &dyn Fn(&str) -> bool) {
    println!(
        "{} rows, {} s a measurement, {} rounds, {CONNECTIONS} connections",
        plan.rows,
        plan.time.as_secs(),
        plan.rounds
    );
    println!("client: {}; one thread", crate::wrk::version());
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
        crate::hedging::hedging(plan, &mut charts).await;
        plot(&charts);
    }
    if wanted("recovery") {
        crate::recovery::recovery(plan).await;
    }
    if wanted("tombstones") {
        crate::cases::tombstones().await;
    }
    if wanted("export") {
        crate::cases::export().await;
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
    let hop_path = |at: usize| format!("/hop/{}", sizes[at]);
    let mut maria = if wanted("compare") || wanted("scan") { Maria::start(plan.rows).await } else { None };

    if wanted("compare") {
        let face = maria.as_ref().map(|maria| rival(&["serve-maria", &maria.url()]));
        for (at, ask) in [Ask::Point, Ask::Page].into_iter().enumerate() {
            let names = ["bare axum hop", "`metaroute up`", "MariaDB behind axum", "MariaDB, its own protocol"];
            let mut loads: [Vec<Load>; 4] = Default::default();
            // The first round fills caches.
            for round in 0..=plan.rounds {
                let mut seen = [None, None, None, None];
                seen[0] = Some(load(hop.address, &hop_path(at), ask, tenants, plan.time, &[hop.pid()]).await);
                seen[1] = Some(load(server.address, QUERY, ask, tenants, plan.time, &[server.pid()]).await);
                if let (Some(maria), Some(face)) = (&mut maria, &face) {
                    let pids = [maria.pid(), face.pid()];
                    seen[2] = Some(load(face.address, "/maria", ask, tenants, plan.time, &pids).await);
                    seen[3] = Some(maria.load(ask, tenants, plan.time).await);
                }
                if round > 0 {
                    loads.iter_mut().zip(seen).for_each(|(loads, seen)| loads.extend(seen));
                }
            }
            let (path, what) = match ask {
                Ask::Point => ("A", "one row"),
                Ask::Page => ("B", "a tenant's 100 newest rows"),
            };
            heading(&format!("Path {path}: {what}, {} bytes an answer", sizes[at]));
            let middles: Vec<(&str, Load)> = names
                .into_iter()
                .zip(&loads)
                .filter(|(_, loads)| !loads.is_empty())
                .map(|(name, loads)| (name, Load::median(loads)))
                .collect();
            middles.iter().for_each(|(name, load)| line(name, load));
            for (name, other) in middles.iter().filter(|(name, _)| !name.contains("metaroute")) {
                ratio(&middles[1].1, other, name);
            }
            let bars: Vec<(&str, &Load)> = middles.iter().map(|(name, load)| (name.trim_matches('`'), load)).collect();
            chart(charts, &format!("Path {path}: {what}"), &bars);
        }
        drop(face);
        let quiet = up_again(server, folder.path(), "warn").await;
        let mut silent = Vec::new();
        for round in 0..=plan.rounds {
            let seen = load(quiet.address, QUERY, Ask::Point, tenants, plan.time, &[quiet.pid()]).await;
            if round > 0 {
                silent.push(seen);
            }
        }
        heading("Path A without completion lines (`RUST_LOG=warn`)");
        line("`metaroute up`", &Load::median(&silent));
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
        let cluster = Cluster::start(folder.path(), &copies, &shapes, true).await;
        answers(cluster.router.address, &tenants.page(1)).await;
        let behind = hop.address.to_string();
        let proxy = rival(&["serve-proxy", &behind]);
        for (at, ask) in [Ask::Point, Ask::Page].into_iter().enumerate() {
            let path = if ask == Ask::Point { 'A' } else { 'B' };
            let mut loads: [Vec<Load>; 2] = Default::default();
            for round in 0..=plan.rounds {
                let pids = [proxy.pid(), hop.pid()];
                let theirs = load(proxy.address, &hop_path(at), ask, tenants, plan.time, &pids).await;
                let ours = load(cluster.router.address, QUERY, ask, tenants, plan.time, &cluster.pids()).await;
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

pub fn folders(folder: &Path, shards: &[(u32, u32)]) -> Vec<PathBuf> {
    shards.iter().map(|(group, shard)| folder.join(format!("data/shards/g{group}/s{shard}"))).collect()
}

/// Waits until a query is answered.
pub async fn answers(address: SocketAddr, body: &str) {
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
            let points = load(server.address, QUERY, Ask::Point, tenants, plan.time, &[server.pid()]).await;
            let pages = load(server.address, QUERY, Ask::Page, tenants, plan.time, &[server.pid()]).await;
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
