//! What a load saw, and a client of our own for what `wrk` cannot do: asking at given times, looking at every answer, and
//! going on while a server is killed.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Connections that ask at once.
pub const CONNECTIONS: u64 = 16;

/// What a load saw.
#[derive(Clone, Debug, Default)]
pub struct Load {
    pub per_second: f64,
    pub p50: Duration,
    pub p99: Duration,
    /// Processor time of the servers for one answer.
    pub cpu: Duration,
}

impl Load {
    /// From single latencies within a time.
    pub fn of(mut took: Vec<Duration>, elapsed: Duration, cpu: Duration) -> Load {
        took.sort_unstable();
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
        Load {
            per_second: took.len() as f64 / elapsed.as_secs_f64(),
            p50: at(0.5),
            p99: at(0.99),
            cpu: cpu / took.len() as u32,
        }
    }

    /// The middle of several, figure by figure.
    pub fn median(loads: &[Load]) -> Load {
        fn middle<T: PartialOrd + Copy>(loads: &[Load], of: impl Fn(&Load) -> T) -> T {
            let mut all: Vec<T> = loads.iter().map(of).collect();
            all.sort_by(|a, b| a.partial_cmp(b).expect("no NaN"));
            all[all.len() / 2]
        }
        Load {
            per_second: middle(loads, |load| load.per_second),
            p50: middle(loads, |load| load.p50),
            p99: middle(loads, |load| load.p99),
            cpu: middle(loads, |load| load.cpu),
        }
    }
}

/// Processor time of processes so far, all threads.
pub fn cpu(pids: &[u32]) -> Duration {
    let one = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let ticks: u64 = [11, 12].iter().filter_map(|&n| fields.get(n)?.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 10)
    };
    pids.iter().map(one).sum()
}

/// The least a client can be: one keep-alive connection that reads answers by their length or in chunks.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> std::io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: Vec::with_capacity(64 << 10) })
    }

    /// Status and body of a question.
    pub async fn ask(&mut self, path: &str, body: &str) -> std::io::Result<(u16, Vec<u8>)> {
        self.send("POST", path, body).await
    }

    /// Status and body.
    pub async fn send(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, Vec<u8>)> {
        let gone = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut request = head.into_bytes();
        request.extend_from_slice(body.as_bytes());
        self.stream.write_all(&request).await?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(gone());
            }
            let Some(head) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let text = std::str::from_utf8(&self.buffer[..head]).map_err(|_| gone())?.to_ascii_lowercase();
            let status = text.get(9..12).and_then(|status| status.parse().ok()).ok_or_else(gone)?;
            let length =
                text.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
            let length = length.ok_or_else(gone)?;
            while self.buffer.len() < head + 4 + length {
                if self.stream.read_buf(&mut self.buffer).await? == 0 {
                    return Err(gone());
                }
            }
            return Ok((status, self.buffer[head + 4..].to_vec()));
        }
    }
}

/// One answer.
pub async fn once(address: SocketAddr, path: &str, body: &str) -> Vec<u8> {
    let (status, answer) = Connection::open(address).await.expect("it listens").ask(path, body).await.expect("answers");
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
    answer
}

/// A page by GET, whatever its form of transfer.
pub async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("text");
    text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}
