//! A Redis server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::certificate::Certificate;
use crate::{Missing, Port, Ready, Scratch, Server, program, wait_until};

/// A running server that keeps nothing on disk, so that a restart forgets everything.
#[derive(Debug)]
pub struct Redis {
    /// First, so that the server ends before its folder goes.
    server: Server,
    port: Port,
    tls: Option<Port>,
    cli: PathBuf,
    _scratch: Scratch,
}

impl Redis {
    /// Starts a server. `options` are further options of `redis-server`.
    ///
    /// # Errors
    /// [`Missing`] if the programs are not on the machine.
    ///
    /// # Panics
    /// The program is there and the server does not come up.
    pub fn start(options: &[&str]) -> Result<Self, Missing> {
        Self::start_with(None, options)
    }

    /// Starts a server with a second port that speaks TLS.
    ///
    /// # Errors
    /// [`Missing`] if the programs are not on the machine.
    ///
    /// # Panics
    /// The program is there and the server does not come up.
    pub fn start_tls(certificate: &Certificate) -> Result<Self, Missing> {
        Self::start_with(Some(certificate), &[])
    }

    fn start_with(certificate: Option<&Certificate>, options: &[&str]) -> Result<Self, Missing> {
        let (redis, cli) = (program("redis-server")?, program("redis-cli")?);
        let scratch = Scratch::new("redis");
        let port = Port::reserve();
        let tls = certificate.map(|_| Port::reserve());
        let mut command = Command::new(redis);
        command
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string(), "--dir"])
            .arg(scratch.path());
        if let (Some(Certificate { cert, key, ca }), Some(tls)) = (certificate, &tls) {
            command.args(["--tls-port", &tls.to_string(), "--tls-auth-clients", "no", "--tls-cert-file"]).arg(cert);
            command.arg("--tls-key-file").arg(key).arg("--tls-ca-cert-file").arg(ca);
        }
        command.args(options);
        let ready = {
            let (cli, port) = (cli.clone(), port.number());
            // A password, if one is wanted, is asked for only after the server is up.
            Ready::Check(Box::new(move || {
                run(&cli, port, &["PING"]).is_ok_and(|answer| answer.contains("PONG") || answer.contains("NOAUTH"))
            }))
        };
        let server = Server::start("redis-server", command, &scratch.path().join("log"), ready)
            .unwrap_or_else(|error| panic!("{error}"));
        Ok(Self { server, port, tls, cli, _scratch: scratch })
    }

    /// `127.0.0.1:PORT`, where clients connect.
    pub fn address(&self) -> std::net::SocketAddr {
        self.port.address()
    }

    /// The port that speaks TLS, where there is one.
    pub fn tls_address(&self) -> Option<std::net::SocketAddr> {
        self.tls.as_ref().map(Port::address)
    }

    /// Runs Redis's own client and gives what it printed, without the last line end.
    ///
    /// # Panics
    /// The client cannot reach the server.
    pub fn cli(&self, arguments: &[&str]) -> String {
        run(&self.cli, self.port.number(), arguments).unwrap_or_else(|error| panic!("redis-cli {arguments:?}: {error}"))
    }

    /// What it says to `ROLE`; nothing while it is down, or ends connections because it becomes something else.
    pub fn role(&self) -> String {
        run(&self.cli, self.port.number(), &["ROLE"]).unwrap_or_default()
    }

    /// The process, to stop, kill, pause or start again.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

/// A process that watches over a master and replaces it when it is gone.
#[derive(Debug)]
pub struct Sentinel {
    server: Server,
    port: Port,
    cli: PathBuf,
    _scratch: Scratch,
}

impl Sentinel {
    /// Starts a sentinel of the master `mymaster`, which it takes for dead after a second when `quorum` of them do. `options`
    /// are further lines of its configuration.
    ///
    /// # Errors
    /// [`Missing`] if the programs are not on the machine.
    ///
    /// # Panics
    /// The program is there and the server does not come up.
    pub fn start(master: std::net::SocketAddr, quorum: usize, options: &[&str]) -> Result<Self, Missing> {
        let (redis, cli) = (program("redis-server")?, program("redis-cli")?);
        let scratch = Scratch::new("sentinel");
        let port = Port::reserve();
        let mut lines = vec![
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", scratch.path().display()),
            format!("sentinel monitor mymaster {} {} {quorum}", master.ip(), master.port()),
            "sentinel down-after-milliseconds mymaster 1000".to_owned(),
            "sentinel failover-timeout mymaster 2000".to_owned(),
        ];
        lines.extend(options.iter().map(|&line| line.to_owned()));
        // It writes what it learns into the same file.
        let configuration = scratch.path().join("sentinel.conf");
        std::fs::write(&configuration, lines.join("\n") + "\n").expect("the scratch folder is writable");
        let mut command = Command::new(redis);
        command.arg(&configuration).arg("--sentinel");
        let ready = Ready::Connects(port.address());
        let server = Server::start("redis-sentinel", command, &scratch.path().join("log"), ready)
            .unwrap_or_else(|error| panic!("{error}"));
        Ok(Self { server, port, cli, _scratch: scratch })
    }

    /// `127.0.0.1:PORT`, where clients connect.
    pub fn address(&self) -> std::net::SocketAddr {
        self.port.address()
    }

    /// Runs Redis's own client and gives what it printed, without the last line end.
    ///
    /// # Panics
    /// The client cannot reach the sentinel.
    pub fn cli(&self, arguments: &[&str]) -> String {
        run(&self.cli, self.port.number(), arguments).unwrap_or_else(|error| panic!("redis-cli {arguments:?}: {error}"))
    }

    /// The process, to stop, kill, pause or start again.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

/// A Redis Cluster on this machine.
#[derive(Debug)]
pub struct Cluster {
    /// Its nodes, in no order that means anything.
    pub nodes: Vec<Redis>,
    _buses: Vec<Port>,
}

impl Cluster {
    /// Starts three masters with a replica each; one that is silent for a second is replaced.
    ///
    /// # Errors
    /// [`Missing`] if the programs are not on the machine.
    ///
    /// # Panics
    /// The programs are there and the cluster does not come up.
    pub fn start() -> Result<Self, Missing> {
        let cli = program("redis-cli")?;
        let (mut nodes, mut buses) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            let bus = Port::reserve();
            let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port"];
            nodes.push(Redis::start(&[&options[..], &[&bus.to_string()]].concat())?);
            buses.push(bus);
        }
        let addresses: Vec<String> = nodes.iter().map(|node| node.address().to_string()).collect();
        let output = Command::new(cli)
            .args(["--cluster", "create"])
            .args(&addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .unwrap_or_else(|error| panic!("cannot run redis-cli: {error}"));
        assert!(output.status.success(), "no cluster: {}", String::from_utf8_lossy(&output.stdout));
        let out = Self { nodes, _buses: buses };
        let complete = || {
            out.nodes.iter().all(|node| {
                node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                    && ["master", "connected"].iter().any(|word| node.role().contains(word))
            })
        };
        assert!(wait_until(Duration::from_secs(180), complete), "the cluster is not complete");
        Ok(out)
    }

    /// The masters that are alive, by their place among the nodes.
    pub fn masters(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|at| self.nodes[*at].role().starts_with("master")).collect()
    }
}

fn run(cli: &Path, port: u16, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(cli)
        .args(["-p", &port.to_string(), "--no-auth-warning"])
        .args(arguments)
        .output()
        .map_err(|error| format!("cannot run redis-cli: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim_end_matches('\n').to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
