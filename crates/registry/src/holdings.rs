//! What was registered through one connection.
//!
//! Most registries do not say whose an entry is, so a driver remembers what it wrote itself: to repeat it, to tell it from
//! what another process wrote there since, and to find it again when only service and id are named.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use metaroute_core::instance::InstanceId;

/// What a driver remembers of each instance, by service and id.
pub(crate) struct Holdings<T>(Mutex<HashMap<Key, T>>);

/// Service and id.
pub(crate) type Key = (Box<str>, InstanceId);

impl<T> Default for Holdings<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Holdings<T> {
    /// All of them, for changes of more than one step. Not to be kept.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<Key, T>> {
        // Every value is whole at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, service: &str, id: &InstanceId, held: T) {
        self.lock().insert(key(service, id), held);
    }

    pub(crate) fn remove(&self, service: &str, id: &InstanceId) {
        self.lock().remove(&key(service, id));
    }
}

impl<T: Clone> Holdings<T> {
    pub(crate) fn get(&self, service: &str, id: &InstanceId) -> Option<T> {
        self.lock().get(&key(service, id)).cloned()
    }
}

pub(crate) fn key(service: &str, id: &InstanceId) -> Key {
    (service.into(), id.clone())
}
