//! Two cases that users of comparable systems reported (`docs/operations.md`), at the size they had there.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{CONNECTIONS, Connection, once};
use crate::parts::{QUERY, answers, folders};
use crate::servers::{Cluster, Tenants, fill, ready, up};

/// Entries a page may look at: the server's default.
const BUDGET: u64 = 100_000;

/// Case 25: two live rows with a million deleted ones between them.
pub async fn tombstones() {
    const LAST: u64 = 1_000_002;
    let folder = tempfile::tempdir().expect("a folder");
    let server = up(folder.path(), (1, 1), "warn");
    ready(server.address).await;
    let mut connection = Connection::open(server.address).await.expect("it listens");
    for from in (1..=LAST).step_by(5_000) {
        let row = |id: u64| {
            let (minute, second) = (id / 60 % 1_440, id % 60);
            let (day, hour, minute) = (id / 86_400 + 1, minute / 60, minute % 60);
            json!({"file_id": id, "user_id": 7, "path": format!("/f/{id}"),
                "created_at": format!("2024-01-{day:02}T{hour:02}:{minute:02}:{second:02}Z")})
        };
        let rows: Vec<Value> = (from..(from + 5_000).min(LAST + 1)).map(row).collect();
        let body = json!({ "rows": rows }).to_string();
        let (status, answer) = connection.ask("/v1/file_metadata/rows", &body).await.expect("written");
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
    }
    let begun = Instant::now();
    let address = server.address;
    let deleting: Vec<_> = (0..CONNECTIONS)
        .map(|at| {
            tokio::spawn(async move {
                let mut connection = Connection::open(address).await.expect("it listens");
                for id in (2 + at..LAST).step_by(CONNECTIONS as usize) {
                    let path = format!("/v1/file_metadata/rows/{id}?user_id=7");
                    let (status, _) = connection.send("DELETE", &path, "").await.expect("answered");
                    assert_eq!(status, 200);
                }
            })
        })
        .collect();
    for one in deleting {
        one.await.expect("no panic");
    }
    println!("\n### {} tombstones between two rows, `limit` 2 (case 25)\n", LAST - 2);
    println!("Deleting them one by one took {:.0} s.\n", begun.elapsed().as_secs_f64());
    println!("| walk | rows | pages | most entries of a page | slowest page | all pages |");
    println!("|---|---:|---:|---:|---:|---:|");
    for (name, question) in [
        ("C, by id", json!({"allow": "global", "limit": 2})),
        ("B, by time", json!({"user_id": 7, "limit": 2, "order": "created_at:asc"})),
    ] {
        let (mut question, mut found, mut pages, mut most, mut slowest) = (question, Vec::new(), 0, 0, Duration::ZERO);
        let begun = Instant::now();
        loop {
            let asked = Instant::now();
            let answer = once(server.address, QUERY, &question.to_string()).await;
            slowest = slowest.max(asked.elapsed());
            pages += 1;
            let answer: Value = serde_json::from_slice(&answer).expect("JSON");
            most = most.max(answer["meta"]["examined"].as_u64().expect("a number"));
            let rows = answer["rows"].as_array().expect("a list");
            found.extend(rows.iter().map(|row| row["file_id"].as_str().expect("text").to_owned()));
            match answer["next"].as_str() {
                Some(next) => question["cursor"] = next.into(),
                None => break,
            }
            assert!(pages < 11, "no second row after {pages} pages");
        }
        assert_eq!(found, ["1".to_owned(), LAST.to_string()], "{name}");
        // One more is looked at to know whether there is more.
        assert!(most <= BUDGET + 1, "{name}: {most} entries on a page");
        println!(
            "| {name} | {} | {pages} | {most} | {:.0} ms | {:.0} ms |",
            found.len(),
            slowest.as_secs_f64() * 1e3,
            begun.elapsed().as_secs_f64() * 1e3
        );
    }
}

/// Case 38: 20 million rows as one export through a router.
pub async fn export() {
    const ROWS: u64 = 20_000_000;
    let folder = tempfile::tempdir().expect("a folder");
    let server = up(folder.path(), (2, 2), "warn");
    let rate = fill(server.address, ROWS).await;
    server.stop();
    let shapes: Vec<(u32, u32)> = (0..2).flat_map(|group| (0..2).map(move |shard| (group, shard))).collect();
    let copies = folders(folder.path(), &shapes);
    let cluster = Cluster::start(folder.path(), &copies, &shapes, true).await;
    answers(cluster.router.address, &Tenants { rows: ROWS }.page(1)).await;
    let before = peak(cluster.router.pid());
    let begun = Instant::now();
    let (lines, bytes, last) = exported(cluster.router.address).await;
    let took = begun.elapsed();
    let most = peak(cluster.router.pid());
    let meta: Value = serde_json::from_str(&last).expect("the last line is JSON");
    let meta = &meta["meta"];
    assert_eq!((lines - 1, &meta["complete"]), (ROWS, &Value::Bool(true)), "{meta}");
    println!("\n### An export of {ROWS} rows through a router over four shards, a process each (case 38)\n");
    println!("Written over HTTP: {rate:.0} rows a second.\n");
    println!(
        "| rows | bytes | time | rows a second | router's memory before | at most |\n|---:|---:|---:|---:|---:|---:|"
    );
    println!(
        "| {ROWS} | {:.2} GB | {:.0} s | {:.0} | {} MiB | {} MiB |",
        bytes as f64 / 1e9,
        took.as_secs_f64(),
        ROWS as f64 / took.as_secs_f64(),
        before >> 10,
        most >> 10
    );
    assert!(most < 256 << 10, "the router needed {most} KiB");
}

/// Most memory a process has had, in KiB.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the system counts it");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Exports everything: lines, bytes and the last line.
async fn exported(router: std::net::SocketAddr) -> (u64, u64, String) {
    let body = r#"{"allow":"global","timeout_ms":600000}"#;
    let head = format!(
        "POST /v1/file_metadata/export HTTP/1.0\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(router).await.expect("it listens");
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let (mut lines, mut bytes, mut tail) = (0, 0, Vec::new());
    let mut in_body = false;
    let mut buffer = vec![0; 256 << 10];
    loop {
        let read = stream.read(&mut buffer).await.expect("it goes on");
        if read == 0 {
            break;
        }
        let mut part = &buffer[..read];
        if !in_body {
            // The head comes in one piece, before anything else.
            let end = part.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
            assert!(part.starts_with(b"HTTP/1.0 200"), "{}", String::from_utf8_lossy(part));
            part = &part[end + 4..];
            in_body = true;
        }
        bytes += part.len() as u64;
        lines += part.iter().filter(|byte| **byte == b'\n').count() as u64;
        tail.extend_from_slice(part);
        // No line is that long.
        if tail.len() > 1 << 20 {
            tail.drain(..tail.len() - (64 << 10));
        }
    }
    let text = String::from_utf8_lossy(&tail);
    (lines, bytes, text.trim_end().lines().last().unwrap_or_default().to_owned())
}
