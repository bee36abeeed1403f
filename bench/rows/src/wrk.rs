//! Load by [`wrk`](https://github.com/wg/wrk): a client that many have used to compare servers, in a process of its own.
//!
//! A Lua script makes the questions and prints the figures, which are finer than those in wrk's own text. An error
//! status or a socket error ends the run: a server that refuses is fast.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::client::{CONNECTIONS, Load, cpu};
use crate::servers::{ROWS_PER_TENANT, Tenants};

const SCRIPT: &str = include_str!("questions.lua");

/// Begins the line with the figures.
const MARK: &str = "figures";

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// One row: path A.
    Point,
    /// A tenant's 100 newest rows: path B.
    Page,
}

/// wrk's version.
///
/// # Panics
/// Where there is none, with how to get it.
pub fn version() -> String {
    let Ok(output) = Command::new("wrk").arg("-v").stdin(Stdio::null()).output() else {
        eprintln!("wrk is not installed, and it makes the load: apt-get install wrk, or see https://github.com/wg/wrk");
        std::process::exit(2);
    };
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().unwrap_or_default().split(" Copyright").next().unwrap_or_default().to_owned()
}

/// Asks one address for a while over [`CONNECTIONS`] connections. `pids` are the servers whose processor time counts.
pub async fn load(address: SocketAddr, path: &str, ask: Ask, tenants: Tenants, time: Duration, pids: &[u32]) -> Load {
    // Every load asks for other rows than the one before.
    static SEED: AtomicU32 = AtomicU32::new(1);
    let seed = SEED.fetch_add(7_919, Ordering::Relaxed) % 2_147_483_646 + 1;
    let script = [
        ("@PATH@", path.to_owned()),
        ("@POINT@", (ask == Ask::Point).to_string()),
        ("@ROWS@", tenants.rows.to_string()),
        ("@PER_TENANT@", ROWS_PER_TENANT.to_string()),
        ("@SEED@", seed.to_string()),
        ("@MARK@", MARK.to_owned()),
    ]
    .iter()
    .fold(SCRIPT.to_owned(), |script, (name, value)| script.replace(name, value));
    let folder = tempfile::tempdir().expect("a folder");
    let file: PathBuf = folder.path().join("questions.lua");
    std::fs::write(&file, script).expect("written");
    let before = cpu(pids);
    let output = tokio::process::Command::new("wrk")
        .args(["--latency", "-t1", &format!("-c{CONNECTIONS}"), &format!("-d{}s", time.as_secs()), "-s"])
        .arg(&file)
        .arg(format!("http://{address}"))
        .stdin(Stdio::null())
        .output()
        .await
        .expect("wrk runs");
    let used = cpu(pids) - before;
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = text.lines().find_map(|line| line.strip_prefix(MARK));
    let numbers: Vec<u64> =
        figures.unwrap_or_default().split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let [requests, micros, bytes, not_200, socket_errors, p50, p99] = numbers[..] else {
        panic!("wrk printed no figures: {text}{}", String::from_utf8_lossy(&output.stderr));
    };
    assert_eq!((not_200, socket_errors), (0, 0), "error statuses and socket errors: {text}");
    assert!(requests > 0 && bytes > 0, "no answer: {text}");
    Load {
        per_second: requests as f64 / (micros as f64 / 1e6),
        p50: Duration::from_micros(p50),
        p99: Duration::from_micros(p99),
        cpu: used / requests as u32,
    }
}
