//! Envoy, whose load balancing by metadata subsets is the best-known other one.
//!
//! Its binary comes as a Python package. A test gives the clusters and routes; the administration interface and the one
//! listener are added here.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use crate::{Missing, Port, Ready, Scratch, Server, cache};

/// A running Envoy. It asks the kernel to end it with the *thread* that started it, so that thread must live as long.
#[derive(Debug)]
pub struct Envoy {
    /// First, so that the process ends before its folder goes.
    server: Server,
    admin: Port,
    listener: Port,
    _scratch: Scratch,
}

impl Envoy {
    /// Starts Envoy with `routes` and `clusters`, both JSON arrays as its configuration has them.
    ///
    /// # Errors
    /// [`Missing`] if Envoy is not in the cache.
    ///
    /// # Panics
    /// Envoy refuses the configuration; the message has its log.
    pub fn start(routes: &str, clusters: &str) -> Result<Self, Missing> {
        let binary = binary()?;
        let scratch = Scratch::new("envoy");
        let (admin, listener) = (Port::reserve(), Port::reserve());
        let manager = format!(
            r#"{{"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix":"in","http_filters":[{{"name":"envoy.filters.http.router","typed_config":
            {{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}}}],
            "route_config":{{"virtual_hosts":[{{"name":"all","domains":["*"],"routes":{routes}}}]}}}}"#
        );
        let config = format!(
            r#"{{"node":{{"id":"test","cluster":"test"}},
            "admin":{{"address":{{"socket_address":{{"address":"127.0.0.1","port_value":{admin}}}}}}},
            "static_resources":{{"clusters":{clusters},"listeners":[{{"name":"in",
            "address":{{"socket_address":{{"address":"127.0.0.1","port_value":{listener}}}}},
            "filter_chains":[{{"filters":[{{"name":"http","typed_config":{manager}}}]}}]}}]}}}}"#
        );
        let file = scratch.path().join("envoy.json");
        fs::write(&file, config).expect("the scratch folder is writable");
        let mut command = Command::new(binary);
        // One worker: the order of a round robin is then one order. A base id of its own keeps it from others' shared memory.
        command.args(["--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning", "-c"]).arg(&file);
        let server = Server::start("envoy", command, &scratch.path().join("log"), Ready::Connects(listener.address()))
            .unwrap_or_else(|error| panic!("{error}"));
        Ok(Self { server, admin, listener, _scratch: scratch })
    }

    /// Where it takes requests.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The process id.
    pub fn id(&self) -> Option<u32> {
        self.server.id()
    }

    /// Its administration interface.
    pub fn admin(&self) -> SocketAddr {
        self.admin.address()
    }
}

/// The binary inside the Python package.
///
/// # Errors
/// [`Missing`] if it was not brought.
pub fn binary() -> Result<std::path::PathBuf, Missing> {
    let missing =
        || Missing { what: "peer envoy".to_owned(), remedy: "`cargo xtask peers envoy` brings it".to_owned() };
    let lib = cache::peer("envoy")?.join("venv/lib");
    fs::read_dir(lib)
        .map_err(|_| missing())?
        .flatten()
        .map(|python| python.path().join("site-packages/envoy/_bin/envoy"))
        .find(|file| file.is_file())
        .ok_or_else(missing)
}
