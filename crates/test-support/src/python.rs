//! Foreign clients in Python: programs of `peers/` that `cargo xtask peers` gave an environment, driven line by line.

use std::process::Command;

use crate::dialogue::Dialogue;
use crate::{Missing, cache};

/// A running program that answers each line with a line of JSON.
#[derive(Debug)]
pub struct Python(Dialogue);

impl Python {
    /// Starts `peers/<peer>/peer.py`, which says `{"ready":true}` first.
    ///
    /// # Errors
    /// [`Missing`] if it has no environment yet.
    ///
    /// # Panics
    /// It has one and does not come up.
    pub fn start(peer: &str, arguments: &[&str]) -> Result<Self, Missing> {
        let mut command = Command::new(cache::peer(peer)?.join("venv/bin/python"));
        command.arg(cache::recipe_dir(peer).join("peer.py")).args(arguments);
        let (dialogue, first) = Dialogue::start(peer, command);
        assert_eq!(first, r#"{"ready":true}"#, "{peer}");
        Ok(Self(dialogue))
    }

    /// Says a line and gives the answer, JSON.
    ///
    /// # Panics
    /// There is none in time.
    pub fn ask(&mut self, line: &str) -> String {
        self.0.ask(line)
    }
}
