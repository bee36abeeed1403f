//! SOFARegistry: meta, data and session server in one process, and its own Java client.
//!
//! The server listens on all interfaces, a database console included, and refuses a loopback address as its own; so it runs in a
//! network of its own. The client must see it, and runs anywhere.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use crate::dialogue::Dialogue;
use crate::{Missing, Namespace, Ready, Scratch, Server, java};

/// Ports of the session server: lookup by HTTP, data by Bolt.
const HTTP: u16 = 9603;
const BOLT: u16 = 9600;
/// A JVM with three servers and a database on two busy cores.
const START_TIMEOUT: Duration = Duration::from_secs(480);

/// A running server.
#[derive(Debug)]
pub struct Sofa {
    /// First, so that the server ends before its network goes.
    server: Server,
    namespace: Namespace,
    _scratch: Scratch,
}

impl Sofa {
    /// Starts a server with an empty database in memory.
    ///
    /// # Errors
    /// [`Missing`] if Java, the server or a network namespace cannot be had.
    ///
    /// # Panics
    /// They are there and the server does not come up.
    pub fn start() -> Result<Self, Missing> {
        let java = java::class("sofa", "com.alipay.sofa.registry.server.integration.RegistryApplication")?;
        let namespace = Namespace::new()?;
        let scratch = Scratch::new("sofa");
        // It writes its logs below the home folder. The last of several `-Xmx` counts; a quarter of a gigabyte is too little.
        let mut command = Command::new(java.get_program());
        let mut arguments: Vec<_> = java.get_args().map(ToOwned::to_owned).collect();
        let main = arguments.pop().expect("the class");
        command
            .arg(format!("-Duser.home={}", scratch.path().display()))
            .args(arguments)
            .arg("-Xmx512m")
            .arg(main)
            .current_dir(scratch.path());
        let address = SocketAddr::from((namespace.address(), HTTP));
        // The session server's Bolt port opens long before it can serve.
        let ready = Ready::Check(Box::new(move || healthy(address)));
        let log = scratch.path().join("log");
        let server = Server::start_within(START_TIMEOUT, "sofa", namespace.inside(&command), &log, ready)
            .unwrap_or_else(|error| panic!("{error}"));
        Ok(Self { server, namespace, _scratch: scratch })
    }

    /// Where session servers are looked up, by HTTP.
    pub fn http(&self) -> SocketAddr {
        (self.namespace.address(), HTTP).into()
    }

    /// Where the session server speaks Bolt.
    pub fn bolt(&self) -> SocketAddr {
        (self.namespace.address(), BOLT).into()
    }

    /// The process, to stop, kill or pause.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

/// Whether all three servers say that they can serve.
fn healthy(address: SocketAddr) -> bool {
    use std::io::{Read, Write};
    let ask = || -> std::io::Result<String> {
        let mut stream = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(500))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET /health/check HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains("\"success\":true"))
}

/// SOFARegistry's own client, which speaks Hessian, for one data id.
///
/// `peers/sofa-client/src/SofaClient.java` says what it understands.
#[derive(Debug)]
pub struct SofaClient {
    dialogue: Dialogue,
    pushes: Vec<String>,
}

impl SofaClient {
    /// Starts a client at a lookup address.
    ///
    /// # Errors
    /// [`Missing`] if Java or the client is not on the machine.
    ///
    /// # Panics
    /// It does not come up.
    pub fn start(http: SocketAddr, group: &str, data_id: &str) -> Result<Self, Missing> {
        let mut command = java::class("sofa-client", "SofaClient")?;
        command.args([&http.ip().to_string(), &http.port().to_string(), group, data_id]);
        let (dialogue, first) = Dialogue::start("sofa-client", command);
        assert_eq!(first, "ready", "the SOFARegistry client says {first}");
        Ok(Self { dialogue, pushes: Vec::new() })
    }

    /// Follows the data id.
    pub fn subscribe(&mut self) {
        self.command("sub");
    }

    /// Publishes data, or replaces what it published. Data must not contain spaces.
    pub fn publish(&mut self, data: &[&str]) {
        self.command(&format!("pub {}", data.join(" ")));
    }

    /// Takes back what it published.
    pub fn unpublish(&mut self) {
        self.command("unpub");
    }

    /// Waits for a push with exactly this data, sorted and joined by `|`.
    ///
    /// # Panics
    /// None comes in time.
    pub fn wait_for_push(&mut self, data: &str) {
        let wanted = format!("push {data}").trim_end().to_owned();
        while self.pushes.last() != Some(&wanted) {
            let line = self.dialogue.line();
            self.pushes.push(line.trim_end().to_owned());
        }
    }

    fn command(&mut self, command: &str) {
        let done = format!("done {}", command.split(' ').next().unwrap_or_default());
        let mut line = self.dialogue.ask(command);
        while line != done {
            assert!(line.starts_with("push"), "{command}: {line}");
            self.pushes.push(line.trim_end().to_owned());
            line = self.dialogue.line();
        }
    }
}
