//! The whole registry as last read, and how a delta changes it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::wire::{self, Stored};
use crate::document::Note;
use crate::driver::Snapshot;

/// Everything the registry holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Apps {
    apps: BTreeMap<Box<str>, App>,
}

/// One application, which is a service.
#[derive(Clone, Debug, Default)]
pub(super) struct App {
    instances: BTreeMap<Box<str>, Stored>,
    /// Entries without any id.
    nameless: usize,
    /// Number of the reading that changed it last.
    pub(super) changed: u64,
    /// What is odd about leases, as of the last full reading.
    overdue: Vec<Note>,
}

/// A body that is not what Eureka answers.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer has no `applications`")]
pub(super) struct NotEureka;

impl Apps {
    /// Reads a full list. Applications that are as before keep the number of their last change; the others get `number`.
    pub(super) fn full(
        body: &Value,
        seata: bool,
        now_ms: Option<u64>,
        before: &Self,
        number: u64,
    ) -> Result<Self, NotEureka> {
        let mut apps: BTreeMap<Box<str>, App> = BTreeMap::new();
        for (name, instance) in instances(body)? {
            let app = apps.entry(name.as_str().into()).or_default();
            match wire::id(instance) {
                Some(id) => drop(app.instances.insert(id.into(), wire::read(&name, instance, seata))),
                None => app.nameless += 1,
            }
        }
        for (name, app) in &mut apps {
            app.overdue = app.overdue(now_ms);
            app.changed = match before.apps.get(name) {
                Some(old) if old.shows(app) => old.changed,
                _ => number,
            };
        }
        Ok(Self { apps })
    }

    /// Applies a delta; what it changes gets `number`. Returns whether the result is what the server has.
    pub(super) fn delta(&mut self, body: &Value, seata: bool, number: u64) -> Result<bool, NotEureka> {
        for (name, instance) in instances(body)? {
            let Some(id) = wire::id(instance) else { continue };
            let app = self.apps.entry(name.as_str().into()).or_default();
            if instance["actionType"].as_str() == Some("DELETED") {
                if app.instances.remove(id).is_some() {
                    app.changed = number;
                }
                continue;
            }
            let read = wire::read(&name, instance, seata);
            // A delta repeats three minutes of changes.
            if app.instances.get(id).is_none_or(|old| !old.shows(&read)) {
                app.changed = number;
            }
            app.instances.insert(id.into(), read);
        }
        self.apps.retain(|_, app| !app.instances.is_empty() || app.nameless > 0);
        let theirs = ["apps__hashcode", "apps_hashcode"].into_iter().find_map(|key| body["applications"][key].as_str());
        Ok(theirs.is_none_or(|theirs| theirs == self.hash()))
    }

    /// The server's own hash: how many instances have which status, statuses sorted.
    pub(super) fn hash(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for stored in self.apps.values().flat_map(|app| app.instances.values()) {
            *counts.entry(&stored.status).or_default() += 1;
        }
        counts.iter().map(|(status, count)| format!("{status}_{count}_")).collect()
    }

    /// The application of a service; names of applications have no case.
    pub(super) fn of(&self, service: &str) -> Option<&App> {
        self.apps.get(&*service.to_uppercase())
    }

    /// Names of services, in the letters their owners wrote, sorted.
    pub(super) fn names(&self) -> Vec<Box<str>> {
        let mut names: Vec<Box<str>> = self
            .apps
            .iter()
            .map(|(app, found)| {
                found.instances.values().next().map_or_else(|| app.to_lowercase().into(), |one| one.service.clone())
            })
            .collect();
        names.sort();
        names
    }
}

impl Stored {
    /// Whether a subscriber would see the same.
    fn shows(&self, other: &Self) -> bool {
        self.instance == other.instance && self.status == other.status && self.service == other.service
    }
}

impl App {
    fn shows(&self, other: &Self) -> bool {
        self.nameless == other.nameless
            && self.overdue == other.overdue
            && self.instances.len() == other.instances.len()
            && self.instances.iter().zip(&other.instances).all(|((a, x), (b, y))| a == b && x.shows(y))
    }

    /// Instances whose lease ran out and that the server still lists: because it preserves itself (too many owners fell
    /// silent at once), or because its sweep did not come yet. Being listed is then no sign of life.
    fn overdue(&self, now_ms: Option<u64>) -> Vec<Note> {
        let Some(now) = now_ms else { return Vec::new() };
        self.instances
            .iter()
            .filter(|(_, stored)| stored.renewed_ms > 0)
            .filter(|(_, stored)| {
                // The server adds the duration twice.
                let lease: u64 = (2 * stored.lease).as_millis().try_into().unwrap_or(u64::MAX);
                now > stored.renewed_ms.saturating_add(lease)
            })
            .map(|(id, stored)| Note {
                code: "lease_overdue",
                message: format!(
                    "instance `{id}` was renewed last at {} for {:?} and is still listed: the server preserves itself or has not swept yet",
                    time(stored.renewed_ms),
                    stored.lease
                ),
                file: "eureka".into(),
                at: None,
            })
            .collect()
    }

    /// What subscribers see.
    pub(super) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot { rejected: self.nameless, notes: self.overdue.clone(), ..Snapshot::default() };
        let mut ids = std::collections::BTreeSet::new();
        for (id, stored) in &self.instances {
            let why = match &stored.instance {
                Ok(instance) if ids.insert(instance.id.clone()) => {
                    snapshot.instances.push(instance.clone());
                    continue;
                }
                Ok(instance) => format!("another instance has the id `{}`", instance.id),
                Err(why) => why.clone(),
            };
            snapshot.rejected += 1;
            snapshot.notes.push(Note {
                code: "unreadable_instance",
                message: format!("instance `{id}`: {why}"),
                file: "eureka".into(),
                at: None,
            });
        }
        snapshot.bound_notes();
        snapshot
    }
}

/// Milliseconds since 1970 as a time.
fn time(ms: u64) -> String {
    i64::try_from(ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| format!("{ms} ms"), |time| time.to_string())
}

/// All instances of a body with the names of their applications, in capitals.
fn instances(body: &Value) -> Result<Vec<(String, &Value)>, NotEureka> {
    let applications = body.get("applications").filter(|applications| applications.is_object()).ok_or(NotEureka)?;
    let mut out = Vec::new();
    for app in wire::list(applications, "application") {
        for instance in wire::list(app, "instance") {
            // The instance's own name is the one the server files it under.
            if let Some(name) = instance["app"].as_str().or_else(|| app["name"].as_str()) {
                out.push((name.to_uppercase(), instance));
            }
        }
    }
    Ok(out)
}

/// How old a reading may be for a delta to follow: the server remembers changes for three minutes.
pub(super) const DELTA_COVERS: Duration = Duration::from_secs(170);
