//! Seata's released Java client, asked what it finds in a registry and told to register there.
//!
//! `peers/seata-client/src/Main.java` says what it understands.

use crate::dialogue::Dialogue;
use crate::{Missing, java};

/// A running client of one registry.
#[derive(Debug)]
pub struct SeataClient {
    dialogue: Dialogue,
}

impl SeataClient {
    /// Starts a client. `kind` is Seata's name of the registry (`etcd3`, `redis`, `zk`, `nacos`, `raft`, `seata`), `server` its
    /// address, `options` are further `key=value` below `registry.<kind>.`.
    ///
    /// # Errors
    /// [`Missing`] if Java or the client is not on the machine.
    ///
    /// # Panics
    /// It does not come up; the message has its log.
    pub fn start(kind: &str, server: &str, cluster: &str, options: &[&str]) -> Result<Self, Missing> {
        let mut command = java::class_with("seata-client", "Main", Some("conf"))?;
        command.args([kind, server, cluster]).args(options);
        let (dialogue, first) = Dialogue::start("seata-client", command);
        assert!(first.starts_with(r#"{"ready":"#), "the Seata client says {first}");
        Ok(Self { dialogue })
    }

    /// What it finds now: the JSON line `{"addresses":[…]}`, sorted, or `{"error":…}`. It follows changes by itself, so later
    /// answers are newer.
    pub fn lookup(&mut self) -> String {
        self.dialogue.ask("lookup")
    }

    /// Registers an address `IP:PORT` as a Seata server would; it stays until unregistered or this is dropped.
    ///
    /// # Panics
    /// The client says that it failed.
    pub fn register(&mut self, address: &str) {
        let answer = self.dialogue.ask(&format!("register {address}"));
        assert!(answer.starts_with(r#"{"registered":"#), "register {address}: {answer}");
    }

    /// Takes it away again.
    ///
    /// # Panics
    /// The client says that it failed.
    pub fn unregister(&mut self, address: &str) {
        let answer = self.dialogue.ask(&format!("unregister {address}"));
        assert!(answer.starts_with(r#"{"unregistered":"#), "unregister {address}: {answer}");
    }
}
