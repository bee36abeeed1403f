//! Seata's server, the newest that is published (2.0.0): a Raft group of one, or a server that registers itself in registries.
//!
//! It listens on all interfaces and never registers a loopback address, so it runs in a network of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use crate::{Missing, Namespace, Proxy, Ready, Scratch, Server, cache, java};

/// HTTP, service and Raft port inside the namespace. The Raft port must be 1000 above the service port, else the server lists
/// itself a second time, as a follower that is not there.
const PORTS: (u16, u16, u16) = (7091, 8091, 9091);

/// A running server.
#[derive(Debug)]
pub struct SeataServer {
    /// First, so that the server ends before its network goes.
    server: Server,
    namespace: Namespace,
    _lent: Vec<Proxy>,
    _scratch: Scratch,
}

impl SeataServer {
    /// A Raft group `default` of one.
    ///
    /// # Errors
    /// [`Missing`] if Java, the server or a network namespace cannot be had.
    ///
    /// # Panics
    /// They are there and the server does not come up.
    pub fn raft() -> Result<Self, Missing> {
        Self::start("raft", |_| (String::from("    type: file\n"), Vec::new()))
    }

    /// A server with a file store that registers itself in registries of this machine. Each is its Seata name, its address,
    /// what stands before the address (`http://` or nothing) and further settings `key: value`.
    ///
    /// # Errors
    /// [`Missing`] if Java, the server or a network namespace cannot be had.
    ///
    /// # Panics
    /// They are there and the server does not come up; one registry that cannot be reached is enough for that.
    pub fn registering(registries: &[(&str, SocketAddr, &str, &[&str])]) -> Result<Self, Missing> {
        Self::start("file", |namespace| {
            let kinds: Vec<&str> = registries.iter().map(|(kind, ..)| *kind).collect();
            let mut text = format!("    type: {}\n", kinds.join(","));
            let mut lent = Vec::new();
            for (kind, address, before, settings) in registries {
                let proxy = namespace.lend(*address);
                let (name, key) = match *kind {
                    "eureka" => ("eureka", "service-url"),
                    kind => (kind, "server-addr"),
                };
                text += &format!("    {name}:\n      {key}: {before}{}", proxy.address());
                text += if *kind == "eureka" { "/eureka\n" } else { "\n" };
                for setting in *settings {
                    text += &format!("      {setting}\n");
                }
                lent.push(proxy);
            }
            (text, lent)
        })
    }

    fn start(store: &str, registry: impl Fn(&Namespace) -> (String, Vec<Proxy>)) -> Result<Self, Missing> {
        let java = java::class("seata-server", "io.seata.server.ServerApplication")?;
        let namespace = Namespace::new()?;
        let scratch = Scratch::new("seata-server");
        let (registry, lent) = registry(&namespace);
        let address = namespace.address();
        let config = scratch.path().join("application.yml");
        std::fs::write(&config, configuration(address, store, &registry, scratch.path()))
            .expect("the scratch folder is writable");
        let (http, service, raft) = PORTS;
        let mut command = Command::new(java.get_program());
        command
            .arg(format!("-Dspring.config.location=file:{}", config.display()))
            .arg(format!("-Dlogging.config={}", cache::recipe_dir("seata-server").join("conf/logback.xml").display()))
            .arg(format!("-Dserver.raftPort={raft}"))
            .arg("-Djava.net.preferIPv4Stack=true")
            .args(java.get_args())
            .args(["-h", &address.to_string(), "-p", &service.to_string(), "-m", store])
            .current_dir(scratch.path());
        let log = scratch.path().join("log");
        let server = Server::start(
            "seata-server",
            namespace.inside(&command),
            &log,
            Ready::LogSays("seata server started in".into()),
        )
        .unwrap_or_else(|error| panic!("{error}"));
        let _ = http;
        Ok(Self { server, namespace, _lent: lent, _scratch: scratch })
    }

    /// Where the metadata interface is.
    pub fn http(&self) -> SocketAddr {
        (self.namespace.address(), PORTS.0).into()
    }

    /// The address it registers, and lists as its transaction endpoint.
    pub fn service(&self) -> SocketAddr {
        (self.namespace.address(), PORTS.1).into()
    }

    /// The process, to stop, kill or pause.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

/// Everything that the server wants to be told before it starts.
fn configuration(address: Ipv4Addr, store: &str, registry: &str, folder: &Path) -> String {
    let (http, service, raft) = PORTS;
    let folder = folder.display();
    format!(
        "server:
  port: {http}
spring:
  application:
    name: seata-server
logging:
  file:
    path: {folder}/logs
console:
  user:
    username: seata
    password: seata
seata:
  config:
    type: file
  registry:
    preferred-networks: {address}
{registry}  store:
    mode: {store}
    session:
      mode: {store}
    lock:
      mode: {store}
    file:
      dir: {folder}/store
      max-branch-session-size: 16384
      max-global-session-size: 512
      file-write-buffer-cache-size: 16384
      session-reload-read-size: 100
      flush-disk-mode: async
  server:
    service-port: {service}
    raft:
      group: default
      server-addr: {address}:{raft}
  security:
    secretKey: SeataSecretKey0c382ef121d778043159209298fd40bf3850a017
    tokenValidityInMilliseconds: 1800000
    ignore:
      urls: /,/api/v1/auth/login
"
    )
}
