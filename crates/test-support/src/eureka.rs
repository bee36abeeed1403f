//! Spring Cloud's Eureka server.
//!
//! Caches and sweeps of the server run every fraction of a second here instead of every half minute and minute.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::{Missing, Port, Ready, Scratch, Server, java};

/// A JVM on two busy cores takes its time.
const START_TIMEOUT: Duration = Duration::from_secs(360);

/// Loopback, no peers, and everything at once that otherwise takes minutes.
const USUAL: &[&str] = &[
    "--server.address=127.0.0.1",
    "--spring.application.name=eureka",
    "--spring.cloud.consul.enabled=false",
    "--eureka.dashboard.enabled=false",
    "--eureka.instance.hostname=127.0.0.1",
    "--eureka.client.register-with-eureka=false",
    "--eureka.client.fetch-registry=false",
    "--eureka.server.wait-time-in-ms-when-sync-empty=0",
    "--eureka.server.enable-self-preservation=false",
    "--eureka.server.eviction-interval-timer-in-ms=500",
    "--eureka.server.response-cache-update-interval-ms=200",
];

/// A running server, in memory: what it knows is gone after a restart.
#[derive(Debug)]
pub struct Eureka {
    /// First, so that the server ends before its folder goes.
    server: Server,
    port: Port,
    _scratch: Scratch,
}

impl Eureka {
    /// Starts a server that expires every lease in time. `settings` are further properties, or others than the usual ones.
    ///
    /// # Errors
    /// [`Missing`] if Java or the peer is not on the machine.
    ///
    /// # Panics
    /// They are there and the server does not come up; the message has its log.
    pub fn start(settings: &[&str]) -> Result<Self, Missing> {
        let port = Port::reserve();
        let itself = format!("http://127.0.0.1:{port}/eureka/");
        Self::start_at(port, &itself, settings)
    }

    /// Starts two servers that replicate each other.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn start_peers() -> Result<[Self; 2], Missing> {
        let (a, b) = (Port::reserve(), Port::reserve());
        // A server leaves out a peer with its own host name, whatever the port; theirs is 127.0.0.1.
        let [at_a, at_b] = [&a, &b].map(|port| format!("http://localhost:{port}/eureka/"));
        std::thread::scope(|scope| {
            let first = scope.spawn(|| Self::start_at(a, &at_b, &[]));
            let second = Self::start_at(b, &at_a, &[]);
            let first = first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok([first?, second?])
        })
    }

    fn start_at(port: Port, peer: &str, settings: &[&str]) -> Result<Self, Missing> {
        let mut command = java::class("spring-cloud", "peer.Server")?;
        let scratch = Scratch::new("eureka");
        let own = [format!("--server.port={port}"), format!("--eureka.client.service-url.defaultZone={peer}")];
        // The same setting twice would be a list.
        let name = |setting: &str| setting.split('=').next().unwrap_or_default().to_owned();
        let usual = USUAL.iter().filter(|usual| settings.iter().all(|setting| name(setting) != name(usual)));
        command.args(own).args(usual).args(settings).current_dir(scratch.path());
        let address = port.address();
        let ready = Ready::Check(Box::new(move || answers(address)));
        let server = Server::start_within(START_TIMEOUT, "eureka", command, &scratch.path().join("log"), ready)
            .unwrap_or_else(|error| panic!("{error}"));
        Ok(Self { server, port, _scratch: scratch })
    }

    /// The HTTP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The process, to stop, kill or pause.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

fn answers(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET /eureka/apps HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}
