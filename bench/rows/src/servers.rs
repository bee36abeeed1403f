//! metaroute's own processes, and the rows in them.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::client::Connection;
use crate::rivals::address;

/// Rows of one tenant.
pub const ROWS_PER_TENANT: u64 = 1_000;

/// One row, the same everywhere.
pub struct File {
    pub id: u64,
    pub user: u64,
    pub path: String,
    pub size: u64,
    pub mime: &'static str,
    pub created: String,
    pub updated: String,
}

/// The `id`th row. Times spread over a tenant's rows without order.
pub fn file(id: u64) -> File {
    let mixed = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let user = id / ROWS_PER_TENANT;
    let time = |seconds: u64| {
        let (day, second) = (seconds / 86_400 % 28, seconds % 86_400);
        let month = 1 + seconds / 86_400 / 28 % 12;
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        format!("2024-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", day + 1, mixed % 1_000_000)
    };
    let mimes = ["application/pdf", "image/png", "text/plain", "video/mp4"];
    File {
        id,
        user,
        path: format!("/home/user{user}/documents/file-{id}.pdf"),
        size: mixed % 1_000_000,
        mime: mimes[(mixed % 4) as usize],
        created: time(mixed % 20_000_000),
        updated: time(mixed % 20_000_000 + 1_000_000),
    }
}

/// Who asks for what.
#[derive(Clone, Copy, Debug)]
pub struct Tenants {
    pub rows: u64,
}

impl Tenants {
    /// The id and user of the `n`th question.
    pub fn pick(self, n: u64) -> (u64, u64) {
        let id = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) % self.rows;
        (id, id / ROWS_PER_TENANT)
    }

    pub fn point(self, n: u64) -> String {
        let (id, user) = self.pick(n);
        format!("{{\"user_id\":{user},\"file_id\":{id}}}")
    }

    pub fn page(self, n: u64) -> String {
        format!("{{\"user_id\":{},\"limit\":100}}", self.pick(n).1)
    }
}

/// A server process that says where it is ready.
pub struct Process {
    child: Child,
    pub address: SocketAddr,
}

impl Process {
    /// Starts one and waits until it is ready.
    pub fn start(mut command: Command) -> Process {
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("it starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        Process { child, address: address(&line) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends it in order.
    pub fn stop(mut self) {
        let done = Command::new("kill").arg("-TERM").arg(self.pid().to_string()).status().expect("kill runs");
        assert!(done.success());
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// This program in another role.
pub fn rival(args: &[&str]) -> Process {
    let mut command = Command::new(std::env::current_exe().expect("known"));
    command.args(args);
    Process::start(command)
}

/// The binary under test (`METAROUTE_BINARY` names another than the one built here), with its log going where a service's would: into a file.
pub fn metaroute(log: &Path, args: &[&str]) -> Command {
    let built = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/release/metaroute");
    let binary = std::env::var_os("METAROUTE_BINARY").map_or_else(built, PathBuf::from);
    assert!(binary.exists(), "cargo build --release -p metaroute-cli comes first");
    let mut command = Command::new(binary);
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log).expect("a log");
    command.args(args).stderr(log);
    command
}

/// `metaroute up` over a folder.
pub fn up(folder: &Path, shape: (u32, u32), log_level: &str) -> Process {
    let (groups, shards) = (shape.0.to_string(), shape.1.to_string());
    let data = folder.join("data");
    let args = ["up", "--listen", "127.0.0.1:0", "--groups", &groups, "--shards", &shards, "--data"];
    let mut command = metaroute(&folder.join("log"), &args);
    command.arg(data).env("RUST_LOG", log_level);
    Process::start(command)
}

/// Writes rows over HTTP, a few requests at once, and says how many a second.
pub async fn fill(address: SocketAddr, rows: u64) -> f64 {
    const BATCH: u64 = 5_000;
    let begun = Instant::now();
    let next = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let tasks: Vec<_> = (0..2)
        .map(|_| {
            let next = next.clone();
            tokio::spawn(async move {
                let mut connection = Connection::open(address).await.expect("it listens");
                loop {
                    let from = next.fetch_add(BATCH, std::sync::atomic::Ordering::Relaxed);
                    if from >= rows {
                        return;
                    }
                    let mut body = String::new();
                    for id in from..(from + BATCH).min(rows) {
                        let File { id, user, path, size, mime, created, updated } = file(id);
                        body.push_str(&format!(
                            "{{\"file_id\":{id},\"user_id\":{user},\"path\":\"{path}\",\"size\":{size},\"mime\":\"{mime}\",\
                             \"created_at\":\"{created}\",\"updated_at\":\"{updated}\"}}\n"
                        ));
                    }
                    let body = format!("{{\"rows\":[{}]}}", body.trim().replace('\n', ","));
                    let (status, answer) = connection.ask("/v1/file_metadata/rows", &body).await.expect("written");
                    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    rows as f64 / begun.elapsed().as_secs_f64()
}

/// Waits until a server says that it is ready for everything.
pub async fn ready(address: SocketAddr) {
    let began = Instant::now();
    while !crate::client::get(address, "/readyz").await.contains("\"ready\"") {
        assert!(began.elapsed() < Duration::from_secs(60), "{address} does not become ready");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A router and shards as processes of their own, over the folder that an `up` has left.
pub struct Cluster {
    pub router: Process,
    pub shards: Vec<((u32, u32), Process)>,
}

impl Cluster {
    /// Starts everything over the copies of these shards.
    pub async fn start(folder: &Path, copies: &[PathBuf], shards: &[(u32, u32)], hedge: bool) -> Cluster {
        let mut started = Vec::new();
        let mut addresses = Vec::new();
        for (number, (data, shard)) in copies.iter().zip(shards).enumerate() {
            let process = Self::shard(folder, number, data, *shard, None);
            addresses.push((*shard, process.address));
            started.push((*shard, process));
        }
        let mut fleet = String::from("services:\n- name: metaserver\n  instances:\n");
        for ((group, shard), address) in &addresses {
            fleet.push_str(&format!(
                "  - {{address: \"{address}\", metadata: {{group: g{group}, shard: s{shard}, state: READY}}}}\n"
            ));
        }
        std::fs::write(folder.join("fleet.yaml"), fleet).expect("written");
        let config = format!(
            "listen: 127.0.0.1:0\ntopology: {}\nregistry: \"file:fleet.yaml\"\nhedge: {{enabled: {hedge}}}\n",
            folder.join("data/topology").display()
        );
        std::fs::write(folder.join("router.yaml"), config).expect("written");
        let mut command = metaroute(&folder.join("log"), &["server", "--role", "router", "--config"]);
        command.arg(folder.join("router.yaml")).env("RUST_LOG", "warn");
        let router = Process::start(command);
        ready(router.address).await;
        Cluster { router, shards: started }
    }

    /// Starts a shard, on its old address when it had one.
    pub fn shard(folder: &Path, number: usize, data: &Path, shard: (u32, u32), listen: Option<SocketAddr>) -> Process {
        let listen = listen.map_or("127.0.0.1:0".to_owned(), |listen| listen.to_string());
        let config = format!(
            "group: g{}\nshard: s{}\nlisten: {listen}\ndata: {}\ntopology: {}\ncache: 64MiB\n",
            shard.0,
            shard.1,
            data.display(),
            folder.join("data/topology").display()
        );
        let path = folder.join(format!("shard-{number}.yaml"));
        std::fs::write(&path, config).expect("written");
        let mut command = metaroute(&folder.join("log"), &["server", "--role", "shard", "--config"]);
        command.arg(path).env("RUST_LOG", "warn");
        Process::start(command)
    }

    pub fn pids(&self) -> Vec<u32> {
        self.shards.iter().map(|(_, shard)| shard.pid()).chain([self.router.pid()]).collect()
    }
}
