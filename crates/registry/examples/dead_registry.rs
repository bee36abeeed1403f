//! What a dead registry costs: our subscribe and register loops beside loops without a pause, against a port that refuses.
//!
//! `cargo run --release -p metaroute-registry --example dead_registry [SECONDS]` prints the table of docs/registries.md.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use metaroute_core::instance::{Instance, InstanceId};
use metaroute_registry::driver::{Answer, Lease, Renewal, Seen};
use metaroute_registry::{Capabilities, Cursor, Driver, DriverError, ErrorKind, Registry};
use tokio::net::TcpStream;

/// Every call is a connection that is refused.
struct Dead {
    port: u16,
    attempts: Arc<AtomicU64>,
}

impl Dead {
    async fn call<T>(&self) -> Result<T, DriverError> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        match TcpStream::connect(("127.0.0.1", self.port)).await {
            Ok(_) => Err(DriverError::new(ErrorKind::Unreachable, "somebody listens after all")),
            Err(error) => Err(DriverError::new(ErrorKind::Unreachable, error.to_string())),
        }
    }
}

impl Driver for Dead {
    fn capabilities(&self) -> Capabilities {
        let mut all = Capabilities::default();
        all.register = true;
        all
    }

    fn apply<'a>(&'a self, _: &'a str, _: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(self.call())
    }

    fn renew<'a>(&'a self, _: &'a str, _: &'a Instance) -> Answer<'a, Renewal> {
        Box::pin(self.call())
    }

    fn withdraw<'a>(&'a self, _: &'a str, _: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(self.call())
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(self.call())
    }

    fn watch<'a>(&'a self, _: &'a str, _: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(self.call())
    }
}

/// Time this process spent on a processor, in ticks of 10 ms.
fn cpu() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(60), |text| text.parse())?;
    let time = Duration::from_secs(seconds);
    // A port that was free a moment ago refuses.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut out = std::io::stdout();
    writeln!(out, "| loop | attempts per minute | CPU |\n|---|---|---|")?;
    for (name, kind) in [
        ("subscribe, without a pause", 0),
        ("subscribe, one service", 1),
        ("subscribe, 100 services", 100),
        ("register, without a pause", -1),
        ("register, one instance", -2),
    ] {
        let attempts = Arc::new(AtomicU64::new(0));
        let dead = Dead { port, attempts: Arc::clone(&attempts) };
        let (start, before) = (Instant::now(), cpu());
        runtime.block_on(async {
            match kind {
                0 => while start.elapsed() < time && dead.watch("s", None).await.is_err() {},
                -1 => {
                    let instance = Instance::new("127.0.0.1:9".parse()?);
                    while start.elapsed() < time && dead.apply("s", &instance).await.is_err() {}
                }
                -2 => {
                    let registry = Registry::new(dead);
                    let _registration = registry.register("s", Instance::new("127.0.0.1:9".parse()?))?;
                    tokio::time::sleep(time).await;
                }
                services => {
                    let registry = Registry::new(dead);
                    let _all: Vec<_> = (0..services).map(|n| registry.subscribe(&format!("s{n}"))).collect();
                    tokio::time::sleep(time).await;
                }
            }
            Ok::<(), Box<dyn std::error::Error>>(())
        })?;
        let took = start.elapsed().as_secs_f64();
        let per_minute = attempts.load(Ordering::Relaxed) as f64 * 60.0 / took;
        let busy = match (before, cpu()) {
            (Some(before), Some(after)) => format!("{:.1} %", (after - before).as_secs_f64() * 100.0 / took),
            _ => "unknown".to_owned(),
        };
        writeln!(out, "| {name} | {per_minute:.0} | {busy} |")?;
    }
    Ok(())
}
