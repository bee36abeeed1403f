//! r-nacos, a server that speaks Nacos' HTTP v1 and gRPC protocols.
//!
//! The Java server is published in no registry of packages; this one is. It is laxer in places (no limit on metadata, no
//! v3 paths), so what depends on those is also tested on a strict fake beside the Nacos back end.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::dialogue::Dialogue;
use crate::{Missing, Port, Ready, Scratch, Server, backoff_poll, cache, java};

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
        Self::start_with(&[])
    }

    /// Starts a server that asks for a login.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn start_with_login(user: &str, password: &str) -> Result<Self, Missing> {
        Self::start_with(&[
            ("RNACOS_ENABLE_OPEN_API_AUTH", "true"),
            ("RNACOS_INIT_ADMIN_USERNAME", user),
            ("RNACOS_INIT_ADMIN_PASSWORD", password),
        ])
    }

    fn start_with(options: &[(&str, &str)]) -> Result<Self, Missing> {
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
            .envs(options.iter().copied())
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

/// One of Nacos' own clients, told what to do and asked what it sees.
///
/// `peers/nacos-client/src/Main.java` says what it understands.
#[derive(Debug)]
pub struct NacosClient {
    dialogue: Dialogue,
    /// For its logs and caches.
    _scratch: Scratch,
}

impl NacosClient {
    /// Starts the Java client of a server on 127.0.0.1.
    ///
    /// # Errors
    /// [`Missing`] if Java or the client is not on the machine.
    ///
    /// # Panics
    /// It does not come up; the message has its log.
    pub fn java(port: u16, namespace: &str, login: Option<(&str, &str)>) -> Result<Self, Missing> {
        Ok(Self::start("nacos-client", java::class("nacos-client", "Main")?, port, namespace, login))
    }

    /// Starts the Python client of a server on 127.0.0.1.
    ///
    /// # Errors
    /// [`Missing`] if the client is not on the machine.
    ///
    /// # Panics
    /// It does not come up; the message has its log.
    pub fn python(port: u16, namespace: &str, login: Option<(&str, &str)>) -> Result<Self, Missing> {
        let mut command = Command::new(cache::peer("nacos-python")?.join("venv/bin/python"));
        command.arg(cache::recipe_dir("nacos-python").join("peer.py"));
        Ok(Self::start("nacos-python", command, port, namespace, login))
    }

    fn start(name: &str, mut command: Command, port: u16, namespace: &str, login: Option<(&str, &str)>) -> Self {
        let scratch = Scratch::new(name);
        command.arg(format!("127.0.0.1:{port}")).arg(namespace).arg(scratch.path()).current_dir(scratch.path());
        if let Some((user, password)) = login {
            command.args([user, password]);
        }
        let (dialogue, first) = Dialogue::start(name, command);
        assert_eq!(first, r#"{"ready":true}"#, "{name}");
        Self { dialogue, _scratch: scratch }
    }

    /// Says a command and gives the JSON line that answers it. The Java client takes its connection for broken after a
    /// refusal, until it has looked; the command is repeated as long as it says so.
    ///
    /// # Panics
    /// It ended, or is not connected for two minutes.
    pub fn ask(&mut self, command: &str) -> String {
        let answer = backoff_poll(Duration::from_secs(120), || {
            Some(self.dialogue.ask(command)).filter(|answer| !answer.starts_with(r#"{"error":-401,"#))
        });
        answer.unwrap_or_else(|| panic!("{command}: the client is not connected"))
    }
}
