//! What this process wants registered, service by service, and what was sent of it over which connection.
//!
//! A server holds *one record per connection and service*: a second registration replaces the first, and a deregistration
//! takes the whole record away whatever instance it names. So a service's instances are one record here too, and every
//! change sends the record whole: alone as a registration, several as a batch. Changes that wait for their turn are sent
//! together by the first one of them.

use std::collections::BTreeMap;
use std::sync::Mutex;

use metaroute_core::instance::InstanceId;

use super::connection::lock;
use super::instances::Wired;
use crate::driver::DriverError;

/// One instance of a record.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) wired: Wired,
    /// The life it was given, which it keeps until it is withdrawn.
    pub(super) life: String,
    /// Grows with every change of the record.
    pub(super) generation: u64,
}

/// The instances of a record.
pub(super) type Entries = BTreeMap<InstanceId, Entry>;

/// What one service is to have from this process.
pub(super) struct Record {
    pub(super) service: Box<str>,
    wanted: Mutex<Wanted>,
    sent: Mutex<Sent>,
    /// Held by whoever sends.
    pub(super) turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Wanted {
    entries: Entries,
    generation: u64,
}

/// What may be at the server.
#[derive(Clone, Default)]
struct Sent {
    /// The connection it went over; 0 for none.
    epoch: u64,
    /// Exactly this, or (an answer was lost) some of this.
    entries: Entries,
    exact: bool,
}

impl Record {
    pub(super) fn new(service: &str) -> Self {
        Self {
            service: service.into(),
            wanted: Mutex::default(),
            sent: Mutex::default(),
            turn: tokio::sync::Mutex::new(()),
        }
    }

    /// Wants an instance. `make` gets the life it has, or a new one from `born`. Gives the generation of the change.
    pub(super) fn want(
        &self,
        id: &InstanceId,
        born: impl FnOnce() -> String,
        make: impl FnOnce(&str) -> Result<Wired, DriverError>,
    ) -> Result<u64, DriverError> {
        let mut wanted = lock(&self.wanted);
        let life = wanted.entries.get(id).map_or_else(born, |entry| entry.life.clone());
        let wired = make(&life)?;
        wanted.generation += 1;
        let generation = wanted.generation;
        wanted.entries.insert(id.clone(), Entry { wired, life, generation });
        Ok(generation)
    }

    /// Wants an instance no more. Gives what was wanted.
    pub(super) fn unwant(&self, id: &InstanceId) -> Option<Entry> {
        lock(&self.wanted).entries.remove(id)
    }

    /// Takes a change back that the server refused; what was there before is wanted again. A later change stays.
    pub(super) fn take_back(&self, id: &InstanceId, generation: u64) {
        let before = lock(&self.sent).entries.get(id).filter(|entry| entry.generation != generation).cloned();
        let mut wanted = lock(&self.wanted);
        if wanted.entries.get(id).is_some_and(|entry| entry.generation == generation) {
            match before {
                Some(before) => drop(wanted.entries.insert(id.clone(), before)),
                None => drop(wanted.entries.remove(id)),
            }
        }
    }

    /// Everything wanted.
    pub(super) fn wanted(&self) -> Entries {
        lock(&self.wanted).entries.clone()
    }

    /// What may be at the server over this connection, and whether it is exactly that.
    pub(super) fn sent_over(&self, epoch: u64) -> (Entries, bool) {
        let sent = lock(&self.sent);
        if sent.epoch == epoch { (sent.entries.clone(), sent.exact) } else { (Entries::new(), true) }
    }

    /// The connection it was last sent over.
    pub(super) fn epoch(&self) -> u64 {
        lock(&self.sent).epoch
    }

    /// Notes that something is being sent: until the answer, the server may have any of both.
    pub(super) fn sending(&self, epoch: u64, entries: &Entries) {
        let mut sent = lock(&self.sent);
        if sent.epoch != epoch {
            *sent = Sent { epoch, ..Sent::default() };
        }
        sent.exact = false;
        for (id, entry) in entries {
            sent.entries.entry(id.clone()).or_insert_with(|| entry.clone());
        }
    }

    /// Notes that the server has exactly this.
    pub(super) fn holds(&self, epoch: u64, entries: Entries) {
        *lock(&self.sent) = Sent { epoch, entries, exact: true };
    }

    /// Whether the server has this instance over this connection, as of this generation or later.
    pub(super) fn has(&self, epoch: u64, id: &InstanceId, generation: u64) -> bool {
        let sent = lock(&self.sent);
        sent.epoch == epoch && sent.exact && sent.entries.get(id).is_some_and(|entry| entry.generation >= generation)
    }
}
