//! A Redis server.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::certificate::Certificate;
use crate::{Missing, Port, Ready, Scratch, Server, program};

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

    /// The process, to stop, kill, pause or start again.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
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
