//! A MariaDB server, the database the storage promises are measured against and the first source of change events.
//!
//! Debian's `mariadb-server` is enough; the package starts nothing by itself. The server logs changes row by row, as a source
//! of change events must.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{Missing, Port, Ready, Scratch, Server, program};

/// A running server with an empty database `test`; user `root` without password.
#[derive(Debug)]
pub struct MariaDb {
    /// First, so that the server ends before its folder goes.
    server: Server,
    port: Port,
    client: PathBuf,
    scratch: Scratch,
}

impl MariaDb {
    /// Makes a data folder and starts a server on it. `options` are further `mariadbd` options and come last.
    ///
    /// # Errors
    /// [`Missing`] if the programs are not on the machine.
    ///
    /// # Panics
    /// The programs are there and the server does not come up; the message has its log.
    pub fn start(options: &[&str]) -> Result<Self, Missing> {
        let [mariadbd, install, client] = ["mariadbd", "mariadb-install-db", "mariadb"].map(program);
        let (mariadbd, install, client) = (mariadbd?, install?, client?);
        let scratch = Scratch::new("mariadb");
        let data = scratch.path().join("data");
        let socket = socket(&scratch);
        let port = Port::reserve();

        let made = Command::new(install)
            .args(["--no-defaults", "--user=root", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg(format!("--datadir={}", data.display()))
            .output()
            .unwrap_or_else(|error| panic!("cannot run mariadb-install-db: {error}"));
        assert!(
            made.status.success(),
            "mariadb-install-db failed:\n{}{}",
            String::from_utf8_lossy(&made.stdout),
            String::from_utf8_lossy(&made.stderr)
        );

        let mut command = Command::new(mariadbd);
        command
            .args(["--no-defaults", "--user=root", "--bind-address=127.0.0.1"])
            .args(["--server-id=1", "--log-bin=binlog", "--binlog-format=ROW"])
            .args(["--character-set-server=utf8mb4", "--default-time-zone=+00:00"])
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}", socket.display()))
            .arg(format!("--pid-file={}", scratch.path().join("pid").display()))
            .arg(format!("--port={port}"))
            .args(options);
        let ready = {
            let (client, socket) = (client.clone(), socket.clone());
            // A statement that was answered, not an accepted connection: the port opens before the server takes logins.
            Ready::Check(Box::new(move || run(&client, &socket, None, "SELECT 1").is_ok()))
        };
        let server = Server::start("mariadbd", command, &scratch.path().join("log"), ready)
            .unwrap_or_else(|error| panic!("{error}"));
        let database = Self { server, port, client, scratch };
        database.sql_in(None, "CREATE DATABASE test");
        Ok(database)
    }

    /// The process id.
    pub fn id(&self) -> Option<u32> {
        self.server.id()
    }

    /// Runs statements in the database `test` and returns the rows, tab-separated, one a line, without headings.
    ///
    /// # Panics
    /// A statement fails; the message has the server's answer.
    pub fn sql(&self, statements: &str) -> String {
        self.sql_in(Some("test"), statements)
    }

    fn sql_in(&self, database: Option<&str>, statements: &str) -> String {
        run(&self.client, &socket(&self.scratch), database, statements).unwrap_or_else(|error| panic!("{error}"))
    }

    /// `mysql://root@127.0.0.1:PORT/test`.
    pub fn url(&self) -> String {
        format!("mysql://root@{}/test", self.port.address())
    }

    /// The TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The Unix socket, the fastest way in.
    pub fn socket(&self) -> PathBuf {
        socket(&self.scratch)
    }

    /// The data folder, to weigh what is on disk.
    pub fn data_dir(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    /// The process, to stop, kill or pause.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

fn socket(scratch: &Scratch) -> PathBuf {
    scratch.path().join("sock")
}

fn run(client: &Path, socket: &Path, database: Option<&str>, statements: &str) -> Result<String, String> {
    let mut command = Command::new(client);
    command
        .args(["--no-defaults", "--user=root", "--batch", "--skip-column-names", "--default-character-set=utf8mb4"])
        .arg(format!("--connect-timeout={}", Duration::from_secs(5).as_secs()))
        .arg(format!("--socket={}", socket.display()))
        .args(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot run the mariadb client: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A client that ended early has said why on its standard error.
        let _ = stdin.write_all(statements.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| format!("the mariadb client was lost: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
