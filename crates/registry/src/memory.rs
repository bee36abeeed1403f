//! The registry inside this process: for `metaroute up`, for tests and for programs that know their instances.
//!
//! Every change gets the next number of one monotone revision per store, which is the cursor. There is no lease: an
//! instance stays until it is taken away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metaroute_core::instance::{Instance, InstanceId};
use tokio::sync::watch;

use crate::driver::{
    Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Lease, Renewal, Seen, SeenState, Snapshot,
};
use crate::fleet::Fleet;

/// A registry inside this process. Clones share one store.
#[derive(Clone, Debug)]
pub struct Memory {
    store: Arc<Store>,
}

#[derive(Debug)]
struct Store {
    services: Mutex<BTreeMap<Box<str>, Service>>,
    revision: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Service {
    /// Revision of the last change.
    changed: u64,
    instances: BTreeMap<InstanceId, Instance>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// An empty registry.
    pub fn new() -> Self {
        Self { store: Arc::new(Store { services: Mutex::default(), revision: watch::Sender::new(0) }) }
    }

    /// A registry with the services of a fleet file.
    pub fn with_fleet(fleet: &Fleet) -> Self {
        let memory = Self::new();
        memory.replace_fleet(fleet);
        memory
    }

    /// Revision of the last change; 0 before the first.
    pub fn revision(&self) -> u64 {
        *self.store.revision.borrow()
    }

    /// Registers or replaces an instance by its id; gives the revision of the change, or the last one when nothing
    /// changed.
    ///
    /// # Errors
    /// `Invalid` when the instance has a defect.
    pub fn register(&self, service: &str, instance: Instance) -> Result<u64, DriverError> {
        if let Some(defect) = instance.defect() {
            return Err(DriverError::new(ErrorKind::Invalid, defect.to_string()));
        }
        Ok(self.change(service, |instances| match instances.get(&instance.id) {
            Some(old) if *old == instance => false,
            _ => {
                instances.insert(instance.id.clone(), instance);
                true
            }
        }))
    }

    /// Takes an instance away; the service stays known. Gives the revision of the change, or the last one when there
    /// was no such instance.
    pub fn deregister(&self, service: &str, id: &InstanceId) -> u64 {
        if !self.services().contains_key(service) {
            return self.revision();
        }
        self.change(service, |instances| instances.remove(id).is_some())
    }

    /// Replaces all instances of a service at once.
    pub fn replace(&self, service: &str, list: impl IntoIterator<Item = Instance>) -> u64 {
        let list: BTreeMap<_, _> = list
            .into_iter()
            .filter(|instance| instance.defect().is_none())
            .map(|instance| (instance.id.clone(), instance))
            .collect();
        self.change(service, |instances| {
            let changed = *instances != list;
            *instances = list;
            changed
        })
    }

    /// Replaces everything by the services of a fleet file. Services that are not in it become unknown.
    pub fn replace_fleet(&self, fleet: &Fleet) {
        let names: BTreeSet<&str> = fleet.services.iter().map(|service| &*service.name).collect();
        for service in &fleet.services {
            self.replace(&service.name, service.instances.iter().cloned());
        }
        let mut services = self.services();
        let before = services.len();
        services.retain(|name, _| names.contains(&**name));
        if services.len() != before {
            self.store.revision.send_modify(|revision| *revision += 1);
        }
    }

    /// The instances of a service by id; `None` when it is unknown.
    pub fn instances(&self, service: &str) -> Option<Vec<Instance>> {
        Some(self.services().get(service)?.instances.values().cloned().collect())
    }

    fn services(&self) -> MutexGuard<'_, BTreeMap<Box<str>, Service>> {
        // Every change below is complete before the lock is released, so a poisoned lock protects whole data.
        self.store.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut BTreeMap<InstanceId, Instance>) -> bool) -> u64 {
        let mut services = self.services();
        let known = services.contains_key(name);
        let service = services.entry(name.into()).or_default();
        let mut revision = *self.store.revision.borrow();
        if change(&mut service.instances) || !known {
            revision += 1;
            service.changed = revision;
            // Under the lock, so revisions are announced in order.
            self.store.revision.send_replace(revision);
        }
        revision
    }

    /// What a watcher that saw `after` should see next, if anything.
    fn newer(&self, service: &str, after: Option<u64>) -> Option<Seen> {
        let services = self.services();
        let revision = *self.store.revision.borrow();
        match services.get(service) {
            Some(found) => after.is_none_or(|after| found.changed > after).then(|| Seen {
                cursor: Cursor::new(format!("{revision}")),
                state: SeenState::Service(Snapshot {
                    instances: found.instances.values().cloned().collect(),
                    ..Snapshot::default()
                }),
            }),
            None => after
                .is_none_or(|after| revision > after)
                .then(|| Seen { cursor: Cursor::new(format!("{revision}")), state: SeenState::UnknownService }),
        }
    }
}

impl Driver for Memory {
    fn capabilities(&self) -> Capabilities {
        Capabilities { register: true, list: true, liveness: false, weight: true }
    }

    fn apply<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(async { self.register(service, instance.clone()).map(|_| Lease::default()) })
    }

    fn renew<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Renewal> {
        Box::pin(async {
            let there = self.services().get(service).is_some_and(|found| found.instances.contains_key(&instance.id));
            Ok(if there { Renewal::Kept } else { Renewal::Lost })
        })
    }

    fn withdraw<'a>(&'a self, service: &'a str, id: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(async {
            self.deregister(service, id);
            Ok(())
        })
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(async { Ok(self.services().keys().cloned().collect()) })
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        // A cursor of another store means nothing here: start over.
        let after = after.and_then(|cursor| cursor.as_str().parse().ok());
        Box::pin(async move {
            let mut changes = self.store.revision.subscribe();
            loop {
                changes.mark_unchanged();
                if let Some(seen) = self.newer(service, after) {
                    return Ok(seen);
                }
                if changes.changed().await.is_err() {
                    return Err(DriverError::new(ErrorKind::Unreachable, "the registry in this process is gone"));
                }
            }
        })
    }
}

#[cfg(test)]
mod tests;
