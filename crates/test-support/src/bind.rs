//! BIND 9, the DNS server, with zones that `nsupdate` changes.
//!
//! One zone of the test's own and one that cannot be loaded, which is answered with SERVFAIL. Nothing else is answered at all
//! (REFUSED).

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{Missing, Port, Ready, Scratch, Server, program};

/// The zone that can be changed.
pub const ZONE: &str = "metaroute.test";
/// A zone that is always answered with SERVFAIL.
pub const BROKEN_ZONE: &str = "broken.test";

/// A running server.
#[derive(Debug)]
pub struct Bind {
    /// First, so that the server ends before its folder goes.
    server: Server,
    port: Port,
    nsupdate: PathBuf,
    scratch: Scratch,
}

impl Bind {
    /// Starts a server with an empty zone [`ZONE`]: its SOA says that "no such name" holds for a second.
    ///
    /// # Errors
    /// [`Missing`] if the programs are not on the machine.
    ///
    /// # Panics
    /// They are there and the server does not come up; the message has its log.
    pub fn start() -> Result<Self, Missing> {
        let [named, nsupdate, keygen] = ["named", "nsupdate", "tsig-keygen"].map(program);
        let (named, nsupdate, keygen) = (named?, nsupdate?, keygen?);
        let scratch = Scratch::new("bind");
        let port = Port::reserve();
        let key = Command::new(keygen)
            .args(["-a", "hmac-sha256", "test-key"])
            .output()
            .unwrap_or_else(|error| panic!("cannot run tsig-keygen: {error}"));
        let folder = scratch.path();
        let write = |name: &str, text: &[u8]| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        };
        write("key", &key.stdout);
        let zone =
            format!("$TTL 1\n@ SOA ns.{ZONE}. admin.{ZONE}. 1 3600 600 86400 1\n@ NS ns.{ZONE}.\nns A 127.0.0.1\n");
        write("zone", zone.as_bytes());
        let folder = folder.display();
        let configuration = format!(
            "include \"{folder}/key\";
             options {{
               directory \"{folder}\"; pid-file \"{folder}/pid\"; session-keyfile \"{folder}/session.key\";
               managed-keys-directory \"{folder}\";
               listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }};
               recursion no; dnssec-validation no; notify no; max-records-per-type 0; minimal-responses no;
             }};
             controls {{ }};
             zone \"{ZONE}\" {{ type primary; file \"zone\"; allow-update {{ key test-key; }}; }};
             zone \"{BROKEN_ZONE}\" {{ type primary; file \"not-there\"; }};
            "
        );
        // Older versions have no limit, and no option for it.
        let configuration = match supports_record_limit(&named) {
            true => configuration,
            false => configuration.replace("max-records-per-type 0;", ""),
        };
        write("named.conf", configuration.as_bytes());
        let mut command = Command::new(&named);
        command.args(["-g", "-n", "1", "-c"]).arg(scratch.path().join("named.conf"));
        let address = port.address();
        let ready =
            Ready::Check(Box::new(move || TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok()));
        let server = Server::start("named", command, &scratch.path().join("log"), ready)
            .unwrap_or_else(|error| panic!("{error}"));
        Ok(Self { server, port, nsupdate, scratch })
    }

    /// The port on 127.0.0.1, UDP and TCP.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Sends one signed update of [`ZONE`]; `lines` are `nsupdate`'s (`add NAME TTL TYPE …`, `delete NAME …`).
    ///
    /// # Panics
    /// The server refuses it.
    pub fn update(&self, lines: &[&str]) {
        let mut script = format!("server 127.0.0.1 {}\nzone {ZONE}\n", self.port);
        for line in lines {
            script += &format!("update {line}\n");
        }
        script += "send\n";
        let mut child = Command::new(&self.nsupdate)
            .arg("-k")
            .arg(self.scratch.path().join("key"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run nsupdate: {error}"));
        if let Some(mut stdin) = child.stdin.take() {
            // One that ended early has said why.
            let _ = stdin.write_all(script.as_bytes());
        }
        let output = child.wait_with_output().unwrap_or_else(|error| panic!("nsupdate was lost: {error}"));
        assert!(
            output.status.success(),
            "nsupdate failed:\n{script}\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// The process, to stop, kill or pause.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

/// Whether this BIND has `max-records-per-type` (9.18.28 and later), which by default refuses more than a hundred.
fn supports_record_limit(named: &std::path::Path) -> bool {
    let version = Command::new(named).arg("-v").output().map(|output| output.stdout).unwrap_or_default();
    let version = String::from_utf8_lossy(&version).into_owned();
    let numbers: Vec<u32> = version
        .trim_start_matches(|c: char| !c.is_ascii_digit())
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|number| number.parse().ok())
        .collect();
    numbers >= vec![9, 18, 28]
}
