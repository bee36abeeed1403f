//! A Consul agent that is its own server, in memory: what it knows is gone after a restart.
//!
//! 1.14.11 is the last version under the MPL; `cargo xtask peers consul` builds it from its Go module.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::certificate::Certificate;
use crate::{Missing, Port, Ready, Scratch, Server, cache};

/// The token that may do everything where access is controlled.
pub const MANAGEMENT_TOKEN: &str = "5e7f1c3a-0000-4000-8000-000000000001";

/// A running agent, all of it on 127.0.0.1; its node is called `n1`.
#[derive(Debug)]
pub struct Consul {
    /// First, so that the server ends before its folder goes.
    server: Server,
    port: Port,
    https: Port,
    _others: [Port; 2],
    _scratch: Scratch,
}

impl Consul {
    /// Starts an agent that lets everybody do everything.
    ///
    /// # Errors
    /// [`Missing`] if it was not built yet.
    ///
    /// # Panics
    /// It is there and does not come up; the message has its log.
    pub fn start() -> Result<Self, Missing> {
        Self::start_with("")
    }

    /// Starts an agent that lets nobody do anything without a token; [`MANAGEMENT_TOKEN`] may do everything.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_acl() -> Result<Self, Missing> {
        Self::start_with(&format!(
            "acl {{ enabled=true default_policy=\"deny\" tokens {{ initial_management=\"{MANAGEMENT_TOKEN}\" agent=\"{MANAGEMENT_TOKEN}\" }} }}"
        ))
    }

    /// Starts an agent that speaks HTTPS too, only with clients that have a certificate of the same authority.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_tls(certificate: &Certificate) -> Result<Self, Missing> {
        let Certificate { ca, cert, key } = certificate;
        Self::start_with(&format!(
            "tls {{ https {{ ca_file={ca:?} cert_file={cert:?} key_file={key:?} verify_incoming=true }} }}"
        ))
    }

    fn start_with(configuration: &str) -> Result<Self, Missing> {
        let program: PathBuf = cache::peer("consul")?.join("bin/consul");
        let scratch = Scratch::new("consul");
        let [port, https, gossip, rpc] = [(); 4].map(|()| Port::reserve());
        let mut command = Command::new(program);
        command
            .args(["agent", "-dev", "-node", "n1", "-bind", "127.0.0.1", "-client", "127.0.0.1"])
            .args(["-dns-port", "-1", "-grpc-port", "-1", "-grpc-tls-port", "-1", "-serf-wan-port", "-1"])
            .args(["-log-level", "warn"])
            .arg(format!("-http-port={port}"))
            .arg(format!("-https-port={https}"))
            .arg(format!("-serf-lan-port={gossip}"))
            .arg(format!("-server-port={rpc}"))
            .arg(format!("-hcl=disable_update_check=true {configuration}"))
            .current_dir(scratch.path());
        let address = port.address();
        // The node's own health is the last thing that a fresh agent writes.
        let ready = Ready::Check(Box::new(move || {
            get(address, "/v1/health/node/n1").is_some_and(|answer| answer.contains("serfHealth"))
        }));
        let server = Server::start("consul", command, &scratch.path().join("log"), ready)
            .unwrap_or_else(|error| panic!("{error}"));
        Ok(Self { server, port, https, _others: [gossip, rpc], _scratch: scratch })
    }

    /// The HTTP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The HTTPS port on 127.0.0.1.
    pub fn https(&self) -> u16 {
        self.https.number()
    }

    /// The process, to stop, kill or pause.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

/// The whole answer to a GET, headers included, if one came.
fn get(address: std::net::SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nX-Consul-Token: {MANAGEMENT_TOKEN}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
