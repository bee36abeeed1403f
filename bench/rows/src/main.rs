//! metaroute's rows over HTTP, beside a bare axum hop, an axum proxy and MariaDB, on the same rows in one run.
//!
//! `cargo build --release -p metaroute-cli && cd bench && cargo run --release -p metaroute-bench-rows -- [ROWS] [SECONDS] [PART]…`
//!
//! Every server is a process of its own, and so is the client, `wrk` where it can ask what is asked; each figure is the
//! median of rounds in which all take turns. Beside throughput and latency, which depend on what else the machine does,
//! stands the processor time that the servers used for one answer, which hardly does. PARTs are `compare`, `processes`,
//! `scan`, `shards`, `hedging`, `recovery`, and two cases of other systems' users at full size: `tombstones` (a million of
//! them between two rows) and `export` (of 20 million rows); without any all are run. Prints Markdown and writes the plot
//! to `../docs/rows.png`.
#![forbid(unsafe_code)]

mod cases;
mod client;
mod hedging;
mod parts;
mod plot;
mod recovery;
mod rivals;
mod servers;
mod wrk;

use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What a run is given.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rows of the comparison with MariaDB.
    pub rows: u64,
    /// Length of one measurement.
    pub time: Duration,
    /// Times everybody has a turn.
    pub rounds: usize,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve-hop", sizes] => return runtime.block_on(rivals::hop(sizes)),
        ["serve-maria", url] => return runtime.block_on(rivals::maria(url)),
        ["serve-proxy", to] => return runtime.block_on(rivals::proxy(to)),
        _ => {}
    }
    let numbers: Vec<u64> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let plan = Plan {
        rows: numbers.first().copied().unwrap_or(2_000_000),
        time: Duration::from_secs(numbers.get(1).copied().unwrap_or(5)),
        rounds: 3,
    };
    let wanted = |part: &str| {
        let mut parts = args.iter().filter(|arg| arg.parse::<u64>().is_err()).peekable();
        parts.peek().is_none() || parts.any(|arg| arg == part)
    };
    runtime.block_on(parts::run(&plan, &wanted));
}
