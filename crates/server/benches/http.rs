//! Paths A and B over HTTP, beside a bare axum hop on the same machine, in one run.
//!
//! The bare hop answers a constant of the same size, so what is compared is everything of ours: reading the request,
//! placement, the shard, writing the answer. One process serves, a few keep-alive connections ask; client and servers
//! share the cores, as they do for the hop.
//!
//! `cargo bench -p metaroute-server --bench http -- [ROWS] [SECONDS]`
//!
//! With `calls`, the API is called without sockets from one thread, SECONDS thousand times: what remains is our own work,
//! to be looked at with a profiler; `A` or `B` leaves the other path out.

#![allow(clippy::print_stdout, reason = "the result")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::routing::post;
use metaroute_server::role::Standalone;
use metaroute_server::{LocalOptions, ServiceOptions, WantedShape, api, serve_http};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the binary uses.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Rows of one tenant; a page of B has 100 of them.
const ROWS_PER_TENANT: u64 = 1_000;
/// Connections that ask at once.
const CONNECTIONS: usize = 16;

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let rows = numbers.first().copied().unwrap_or(2_000_000);
    let seconds = numbers.get(1).copied().unwrap_or(10);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    if std::env::args().any(|arg| arg == "calls") {
        runtime.block_on(calls(rows, seconds * 1_000));
    } else {
        runtime.block_on(run(rows, Duration::from_secs(seconds)));
    }
}

/// Processor time of the main thread so far, which is the one that asks, in nanoseconds of the scheduler.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let own = stat.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
    Duration::from_nanos(own)
}

/// Calls the API on this thread.
async fn calls(rows: u64, calls: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let shape = WantedShape { groups: Some(2), shards: Some(2) };
    let options = LocalOptions { shape, ..LocalOptions::new(folder.path()) };
    let standalone = Standalone::open(options, ServiceOptions::default()).await.expect("opens");
    standalone.local().opened().await.expect("all shards open");
    load_rows(&standalone, rows).await;
    let api = api::standalone(standalone.service().clone(), api::Beside::default());
    let only = std::env::args().find(|arg| ["A", "B"].contains(&arg.as_str()));
    for (name, path, limit, calls) in [("A", "query", None, calls), ("B", "query", Some(100), calls / 20)] {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let before = cpu();
        answer_calls(&api, path, rows, limit, calls).await;
        let took = cpu() - before;
        println!("path {name}: {:.2} µs of processor time a call", took.as_secs_f64() * 1e6 / calls as f64);
    }
    standalone.shutdown(Duration::from_secs(10)).await;
}

#[inline(never)]
async fn answer_calls(api: &axum::Router, path: &str, rows: u64, limit: Option<u64>, calls: u64) {
    use tower::ServiceExt;
    for n in 0..calls {
        let request = axum::http::Request::post(format!("/v1/file_metadata/{path}"))
            .body(axum::body::Body::from(question(n, rows, limit)))
            .expect("legal");
        let answer = api.clone().oneshot(request).await.expect("infallible");
        assert!(answer.status().is_success());
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.expect("whole");
        std::hint::black_box(body);
    }
}

fn question(n: u64, rows: u64, limit: Option<u64>) -> String {
    let id = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % rows;
    match limit {
        None => json!({"user_id": id / ROWS_PER_TENANT, "file_id": id}),
        Some(limit) => json!({"user_id": id / ROWS_PER_TENANT, "limit": limit}),
    }
    .to_string()
}

async fn load_rows(standalone: &Standalone, rows: u64) {
    let router = standalone.service().router();
    let store = standalone.service().store("file_metadata").expect("built in");
    for from in (0..rows).step_by(5_000) {
        let batch = (from..(from + 5_000).min(rows)).map(row).collect();
        let call = metaroute_server::cluster::router::Call::within(Duration::from_secs(60));
        router.write(store, batch, &call).await.expect("written");
    }
}

async fn run(rows: u64, time: Duration) {
    let folder = tempfile::tempdir().expect("a folder");
    let shape = WantedShape { groups: Some(2), shards: Some(2) };
    let options = LocalOptions { shape, ..LocalOptions::new(folder.path()) };
    let standalone = Standalone::open(options, ServiceOptions::default()).await.expect("opens");
    standalone.local().opened().await.expect("all shards open");
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    let serve = async |router: axum::Router| {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(serve_http(listener, router, stopped.clone()));
        address
    };
    let ours = serve(api::standalone(standalone.service().clone(), api::Beside::default())).await;

    let begun = Instant::now();
    load_rows(&standalone, rows).await;
    let loaded = begun.elapsed();
    println!(
        "{rows} rows through the router in {:.1} s, {:.0} a second",
        loaded.as_secs_f64(),
        rows as f64 / loaded.as_secs_f64()
    );

    for (name, limit) in [("A", None), ("B, 100 rows", Some(100))] {
        let request = move |n: u64| question(n, rows, limit);
        let sample = once(ours, "/v1/file_metadata/query", &request(7)).await;
        let constant = axum::body::Bytes::from(sample);
        let bytes = constant.len();
        let bare = serve(axum::Router::new().route(
            "/hop",
            post(move |_: axum::body::Bytes| {
                let answer = constant.clone();
                async move { ([("content-type", "application/json")], answer) }
            }),
        ))
        .await;
        let hop = load(bare, "/hop", time, request).await;
        let mine = load(ours, "/v1/file_metadata/query", time, request).await;
        println!("path {name} ({bytes} bytes an answer)");
        println!("  bare axum hop  {hop}");
        println!("  up             {mine}");
        println!(
            "  ratio          {:.0} % of the hop's throughput, {:.1} x its p99",
            100.0 * mine.per_second / hop.per_second,
            mine.p99.as_secs_f64() / hop.p99.as_secs_f64()
        );
    }
    standalone.shutdown(Duration::from_secs(10)).await;
}

fn row(id: u64) -> Vec<metaroute_store::Value> {
    use metaroute_store::Value;
    vec![
        Value::U64(id),
        Value::U64(id / ROWS_PER_TENANT),
        Value::String(format!("/home/user{}/documents/file-{id}.pdf", id / ROWS_PER_TENANT)),
        Value::U64(id % 1_000_000),
        Value::String("application/pdf".into()),
        Value::Null,
        Value::Timestamp(1_700_000_000_000_000 + (id as i64 % 100_000) * 1_000),
        Value::Timestamp(1_700_000_000_000_000),
    ]
}

struct Load {
    per_second: f64,
    p50: Duration,
    p99: Duration,
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>8.0} a second, p50 {:?}, p99 {:?}", self.per_second, self.p50, self.p99)
    }
}

async fn load(
    address: SocketAddr,
    path: &'static str,
    time: Duration,
    body: impl Fn(u64) -> String + Copy + Send + Sync + 'static,
) -> Load {
    // Warm up, then measure.
    let mut result = None;
    for time in [time / 5, time] {
        let begun = Instant::now();
        let tasks: Vec<_> = (0..CONNECTIONS as u64)
            .map(|connection| {
                tokio::spawn(async move {
                    let mut stream = Connection::open(address).await;
                    let mut took = Vec::new();
                    let mut n = connection << 32;
                    while begun.elapsed() < time {
                        n += 1;
                        let sent = Instant::now();
                        stream.ask(path, &body(n)).await;
                        took.push(sent.elapsed());
                    }
                    took
                })
            })
            .collect();
        let mut took = Vec::new();
        for task in tasks {
            took.append(&mut task.await.expect("no panic"));
        }
        let elapsed = begun.elapsed().as_secs_f64();
        took.sort_unstable();
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
        result = Some(Load { per_second: took.len() as f64 / elapsed, p50: at(0.5), p99: at(0.99) });
    }
    result.expect("measured")
}

async fn once(address: SocketAddr, path: &str, body: &str) -> Vec<u8> {
    Connection::open(address).await.ask(path, body).await
}

/// The least a client can be: one keep-alive connection that reads answers by their length.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).await.expect("it listens");
        stream.set_nodelay(true).expect("set");
        Connection { stream, buffer: Vec::with_capacity(64 << 10) }
    }

    async fn ask(&mut self, path: &str, body: &str) -> Vec<u8> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await.expect("it reads");
        self.buffer.clear();
        loop {
            let read = self.stream.read_buf(&mut self.buffer).await.expect("it answers");
            assert!(read > 0, "closed");
            let Some(head) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let text = std::str::from_utf8(&self.buffer[..head]).expect("ASCII");
            assert!(text.starts_with("HTTP/1.1 200"), "{text}");
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .and_then(|length| length.parse::<usize>().ok())
                .expect("a length");
            while self.buffer.len() < head + 4 + length {
                assert!(self.stream.read_buf(&mut self.buffer).await.expect("it answers") > 0, "closed");
            }
            return self.buffer[head + 4..].to_vec();
        }
    }
}
