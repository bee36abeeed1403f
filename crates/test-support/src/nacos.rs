//! r-nacos, a server that speaks Nacos' HTTP v1 and gRPC protocols.
//!
//! The Java server is published in no registry of packages; this one is. It is laxer in places (no limit on metadata, no
//! v3 paths), so what depends on those is also tested on a strict fake beside the Nacos back end.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::{Missing, Port, Ready, Scratch, Server, cache};

/// Name of the crate and of its program.
pub const CRATE: &str = "rnacos";
/// The version that the tests were written against.
pub const VERSION: &str = "0.8.8";

/// Nacos' SDKs find the gRPC port by adding this to the HTTP port.
const GRPC_OFFSET: u16 = 1000;

/// The program.
///
/// # Errors
/// [`Missing`] if it was not built yet.
pub fn program() -> Result<PathBuf, Missing> {
    cache::program_of_crate(CRATE, VERSION)
}

/// A running r-nacos without authentication.
#[derive(Debug)]
pub struct Nacos {
    /// First, so that the server ends before its folder goes.
    server: Server,
    port: Port,
    _grpc: Port,
    _scratch: Scratch,
}

impl Nacos {
    /// Starts a server with an empty data folder.
    ///
    /// # Errors
    /// [`Missing`] if the program is not on the machine.
    ///
    /// # Panics
    /// It is there and does not come up; the message has its log.
    pub fn start() -> Result<Self, Missing> {
        let program = program()?;
        let scratch = Scratch::new("rnacos");
        let (port, grpc) = Port::reserve_pair(GRPC_OFFSET);
        let mut command = Command::new(program);
        command
            .env("RNACOS_SDK_HOST", "127.0.0.1")
            .env("RNACOS_HTTP_PORT", port.to_string())
            .env("RNACOS_GRPC_PORT", grpc.to_string())
            .env("RNACOS_HTTP_CONSOLE_PORT", "0")
            .env("RNACOS_RAFT_NODE_ADDR", format!("127.0.0.1:{grpc}"))
            .env("RNACOS_DATA_DIR", scratch.path().join("data"))
            // With it on, metadata stays what it was at an address's first registration.
            .env("RNACOS_NAMING_INSTANCE_METADATA_PERSISTENCE_ENABLE", "false")
            .env("RUST_LOG", "warn")
            .current_dir(scratch.path());
        let connects = |port: &Port| {
            let address = port.address();
            move || TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok()
        };
        let (http_up, grpc_up) = (connects(&port), connects(&grpc));
        let ready = Ready::Check(Box::new(move || http_up() && grpc_up()));
        let server = Server::start("rnacos", command, &scratch.path().join("log"), ready)
            .unwrap_or_else(|error| panic!("{error}"));
        Ok(Self { server, port, _grpc: grpc, _scratch: scratch })
    }

    /// The HTTP port on 127.0.0.1; gRPC is a thousand above it.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The gRPC port on 127.0.0.1.
    pub fn grpc_port(&self) -> u16 {
        self.port.number() + GRPC_OFFSET
    }

    /// The process, to stop, kill or pause.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}
