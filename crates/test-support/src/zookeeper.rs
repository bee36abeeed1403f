//! A ZooKeeper server: the classes of Debian's package `zookeeper`, whose own start script wants a system service.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::certificate::Certificate;
use crate::{Missing, Port, Ready, Scratch, Server, program};

/// Where the package puts the server.
const JAR: &str = "/usr/share/java/zookeeper.jar";

/// What TLS needs and the server's own list of jars lacks.
const NETTY: &str = "/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar";

/// One beat. Sessions last between 2 and 20 of them, so a short one keeps tests of expiry short.
const TICK_MS: u32 = 200;

/// A running server.
#[derive(Debug)]
pub struct ZooKeeper {
    /// First, so that the server ends before its folder goes.
    server: Server,
    port: Port,
    secure: Option<Port>,
    _scratch: Scratch,
}

/// Whether a server can be started here.
///
/// # Errors
/// [`Missing`] if Java or the package is not on the machine.
pub fn check() -> Result<(), Missing> {
    program("java")?;
    if Path::new(JAR).exists() {
        return Ok(());
    }
    Err(Missing {
        what: JAR.to_owned(),
        remedy: "`cargo xtask peers zookeeper` installs it on Debian as root".to_owned(),
    })
}

impl ZooKeeper {
    /// Starts a server whose shortest session is `2 × tick`; `options` are further lines of its configuration.
    ///
    /// # Errors
    /// [`Missing`] if Java or the package is not on the machine.
    ///
    /// # Panics
    /// The server does not come up.
    pub fn start(options: &[&str]) -> Result<Self, Missing> {
        Self::start_with(None, options)
    }

    /// Starts a server with a second port that speaks TLS and lets in only who has a certificate of the same authority.
    ///
    /// # Errors
    /// [`Missing`] if Java or the package is not on the machine.
    ///
    /// # Panics
    /// The server does not come up.
    pub fn start_tls(certificate: &Certificate) -> Result<Self, Missing> {
        Self::start_with(Some(certificate), &[])
    }

    fn start_with(certificate: Option<&Certificate>, options: &[&str]) -> Result<Self, Missing> {
        check()?;
        let scratch = Scratch::new("zookeeper");
        let port = Port::reserve();
        let mut lines = vec![
            format!("tickTime={TICK_MS}"),
            format!("dataDir={}", scratch.path().join("data").display()),
            format!("clientPort={port}"),
            "clientPortAddress=127.0.0.1".to_owned(),
            "admin.enableServer=false".to_owned(),
            "4lw.commands.whitelist=*".to_owned(),
            // Seata asks for sessions of 20 s.
            "maxSessionTimeout=40000".to_owned(),
            "maxClientCnxns=0".to_owned(),
        ];
        let secure = certificate.map(|_| Port::reserve());
        if let (Some(Certificate { cert, key, ca }), Some(secure)) = (certificate, &secure) {
            // Java wants key and certificate in one file.
            let both = [cert, key].map(|file| std::fs::read_to_string(file).expect("the certificate is there"));
            let store = scratch.path().join("server.pem");
            std::fs::write(&store, both.concat()).expect("the scratch folder is writable");
            lines.extend([
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
                format!("secureClientPort={secure}"),
                "secureClientPortAddress=127.0.0.1".to_owned(),
                format!("ssl.keyStore.location={}", store.display()),
                "ssl.keyStore.type=PEM".to_owned(),
                format!("ssl.trustStore.location={}", ca.display()),
                "ssl.trustStore.type=PEM".to_owned(),
                "ssl.clientAuth=need".to_owned(),
            ]);
        }
        lines.extend(options.iter().map(|&line| line.to_owned()));
        let configuration = scratch.path().join("zoo.cfg");
        std::fs::write(&configuration, lines.join("\n")).expect("the scratch folder is writable");
        let mut command = Command::new(program("java")?);
        command
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .args(["-cp", &format!("/etc/zookeeper/conf:{JAR}:{NETTY}")])
            .arg("org.apache.zookeeper.server.ZooKeeperServerMain")
            .arg(&configuration);
        let address = port.address();
        let ready = Ready::Check(Box::new(move || ask(address, "ruok").is_ok_and(|answer| answer == "imok")));
        let server = Server::start("zookeeper", command, &scratch.path().join("log"), ready)
            .unwrap_or_else(|error| panic!("{error}"));
        Ok(Self { server, port, secure, _scratch: scratch })
    }

    /// The port that speaks TLS, where there is one.
    pub fn secure_address(&self) -> Option<SocketAddr> {
        self.secure.as_ref().map(Port::address)
    }

    /// `127.0.0.1:PORT`, where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The answer to a four-letter word.
    ///
    /// # Panics
    /// The server does not answer.
    pub fn ask(&self, word: &str) -> String {
        ask(self.port.address(), word).unwrap_or_else(|error| panic!("{word}: {error}"))
    }

    /// The process, to stop, kill, pause or start again.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

fn ask(address: SocketAddr, word: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    connection.set_read_timeout(Some(Duration::from_secs(2)))?;
    connection.write_all(word.as_bytes())?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}
