//! Instances as Nacos writes them, and lists of them.
//!
//! Everything is JSON from somebody else's server: unknown fields are ignored, one bad host is left out and counted.

use std::collections::BTreeMap;

use metaroute_core::instance::{Address, Instance, InstanceId};
use serde_json::{Map, Value, json};

use super::names;
use crate::carrier::{self, Native};
use crate::document::Note;
use crate::driver::{DriverError, ErrorKind, Snapshot};

/// The largest weight that every interface of Nacos accepts; above it the exact one rides in the metadata.
const WEIGHT_MAX: f64 = 10_000.0;
/// The cluster of instances that name none.
const DEFAULT_CLUSTER: &str = "DEFAULT";
/// The reserved key that carries the life of an instance.
const INCARNATION: &str = "metaroute-incarnation";
const WEIGHT: &str = "metaroute-weight";
/// Most notes of one list; a list of nonsense must not become a bigger list of complaints.
const NOTES_MAX: usize = 100;

/// One instance ready to be sent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wired {
    pub(super) ip: String,
    pub(super) port: u16,
    pub(super) weight: f64,
    pub(super) enabled: bool,
    pub(super) cluster: String,
    pub(super) metadata: BTreeMap<String, String>,
}

impl Wired {
    /// What is sent for an instance. `cluster` is where instances without one go, `incarnation` the life it gets where it
    /// names none itself and the metadata has room for it.
    pub(super) fn of(instance: &Instance, cluster: &str, incarnation: &str, limit: usize) -> Result<Self, DriverError> {
        let exact = instance.weight <= WEIGHT_MAX;
        let native = Native { weight: exact, enabled: true, cluster: true, ..Native::default() };
        let mut metadata = carrier::to_map(instance, native);
        let total = chars(&metadata);
        if total > limit {
            return Err(DriverError::new(
                ErrorKind::Invalid,
                format!(
                    "metadata keys and values have {total} characters with what we add to them, at most {limit} are accepted"
                ),
            ));
        }
        let room = limit - total >= INCARNATION.len() + incarnation.len();
        if room && !incarnation.is_empty() && !metadata.contains_key(INCARNATION) {
            metadata.insert(INCARNATION.into(), incarnation.into());
        }
        let cluster = [&*instance.cluster, cluster, DEFAULT_CLUSTER].into_iter().find(|name| !name.is_empty());
        let wired = Self {
            ip: instance.address.host().to_owned(),
            port: instance.address.port(),
            weight: instance.weight.min(WEIGHT_MAX),
            enabled: instance.enabled,
            cluster: cluster.unwrap_or_default().to_owned(),
            metadata,
        };
        names::host(&wired.ip)?;
        names::cluster(&wired.cluster)?;
        Ok(wired)
    }

    /// The life it was given.
    pub(super) fn life(&self) -> Option<&str> {
        self.metadata.get(INCARNATION).map(String::as_str)
    }

    /// The instance's JSON in requests over gRPC.
    pub(super) fn json(&self, ephemeral: bool) -> Value {
        json!({
            "instanceId": null,
            "ip": self.ip,
            "port": self.port,
            "weight": self.weight,
            "healthy": true,
            "enabled": self.enabled,
            "ephemeral": ephemeral,
            "clusterName": self.cluster,
            "serviceName": null,
            "metadata": self.metadata,
        })
    }

    /// Whether both stand at the same place of a service, as the server sees it.
    pub(super) fn same_place(&self, other: &Self) -> bool {
        self.ip == other.ip && self.port == other.port && self.cluster == other.cluster
    }
}

/// The sum that the server limits: characters of keys and values, as Java counts them.
fn chars(metadata: &BTreeMap<String, String>) -> usize {
    metadata.iter().map(|(key, value)| key.encode_utf16().count() + value.encode_utf16().count()).sum()
}

/// A list as a server sent it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct List {
    /// The service's name, without its group; empty where the server left it out.
    pub(super) service: String,
    pub(super) group: String,
    /// When the server made it, in milliseconds; 0 where it does not say.
    pub(super) made: i64,
    pub(super) snapshot: Snapshot,
}

/// Which hosts of a list are wanted, and how the doubtful ones are taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    /// The clusters to keep; empty for all.
    pub(super) clusters: Vec<String>,
    /// Whether a list under the server's protection threshold is believed.
    pub(super) believe_protected: bool,
}

/// Reads a `ServiceInfo`.
///
/// # Errors
/// A sentence that says why the whole cannot be used.
pub(super) fn read_list(info: &Value, filter: &Filter) -> Result<List, String> {
    let map = info.as_object().ok_or("the list of instances is no JSON object")?;
    let hosts = match map.get("hosts") {
        None | Some(Value::Null) => &[],
        Some(Value::Array(hosts)) => &**hosts,
        Some(_) => return Err("`hosts` is no list".into()),
    };
    let name = text(map, "name");
    let (group, service) = match name.split_once("@@") {
        Some((group, service)) => (group, service),
        None => (text(map, "groupName"), name),
    };
    let protected = map.get("reachProtectionThreshold").and_then(Value::as_bool).unwrap_or(false);
    Ok(List {
        service: service.to_owned(),
        group: group.to_owned(),
        made: map.get("lastRefTime").and_then(number).map_or(0, |made| made as i64),
        snapshot: read_hosts(hosts, protected, filter),
    })
}

/// Reads a list of hosts.
pub(super) fn read_hosts(hosts: &[Value], protected: bool, filter: &Filter) -> Snapshot {
    let mut out = Snapshot::default();
    let mut found: BTreeMap<(InstanceId, String), Instance> = BTreeMap::new();
    for host in hosts {
        let (cluster, mut instance) = match read_host(host) {
            Ok(read) => read,
            Err(why) => {
                reject(&mut out, "bad_instance", why);
                continue;
            }
        };
        if !filter.clusters.is_empty() && !filter.clusters.contains(&cluster) {
            continue;
        }
        if protected && !filter.believe_protected {
            instance.healthy = false;
        }
        match found.get_mut(&(instance.id.clone(), cluster.clone())) {
            None => drop(found.insert((instance.id.clone(), cluster), instance)),
            // A process that goes from one server to another holds both for a moment.
            Some(other) if *other == instance => {}
            // Two connections registered the same place; the later life is the one that is there.
            Some(other) => {
                let message = format!("`{}` is there twice, the later registration was kept", instance.id);
                if instance.incarnation > other.incarnation {
                    *other = instance;
                }
                reject(&mut out, "duplicate_id", message);
            }
        }
    }
    let total = found.len();
    let mut last: Option<InstanceId> = None;
    for ((id, cluster), mut instance) in found {
        if last.as_ref() == Some(&id) {
            // An address may stand in several clusters; ids are unique in a service.
            instance.id = InstanceId::new(format!("{id}#{cluster}"));
        } else {
            last = Some(id);
        }
        out.instances.push(instance);
    }
    if protected && total > 0 {
        let taken = if filter.believe_protected { "they are believed" } else { "they count as unhealthy here" };
        note(
            &mut out,
            "protection_threshold",
            format!(
                "the server's protection threshold was reached: it says `healthy` of all {total} instances whether they are or not; {taken}"
            ),
        );
    }
    out
}

fn read_host(host: &Value) -> Result<(String, Instance), String> {
    let map = host.as_object().ok_or_else(|| format!("an instance is no object: {}", shortened(host)))?;
    let ip = text(map, "ip");
    let port = map.get("port").and_then(number).filter(|port| port.fract() == 0.0 && (0.0..=65535.0).contains(port));
    let Some(port) = port else {
        return Err(format!("instance `{ip}`: no port: {}", shortened(map.get("port").unwrap_or(&Value::Null))));
    };
    let address = Address::new(ip, port as u16).map_err(|error| error.to_string())?;
    let shown = address.to_string();
    let weight = match map.get("weight") {
        None | Some(Value::Null) => 1.0,
        Some(weight) => {
            number(weight).ok_or_else(|| format!("instance `{shown}`: weight {} is no number", shortened(weight)))?
        }
    };
    let mut pairs = Vec::new();
    match map.get("metadata") {
        None | Some(Value::Null) => {}
        Some(Value::Object(metadata)) => {
            for (key, value) in metadata {
                match value {
                    Value::Null => {}
                    Value::String(text) => pairs.push((key.clone(), text.clone())),
                    other => pairs.push((key.clone(), other.to_string())),
                }
            }
        }
        Some(other) => return Err(format!("instance `{shown}`: metadata is no object: {}", shortened(other))),
    }
    let carried = pairs.iter().any(|(key, _)| key == WEIGHT);
    let mut instance = carrier::from_map(address, pairs);
    // What operators set at the server wins over what we wrote into the metadata.
    if !carried || weight != WEIGHT_MAX {
        instance.weight = weight;
    }
    instance.healthy = switch(map, "healthy");
    instance.enabled &= switch(map, "enabled");
    let cluster = match text(map, "clusterName") {
        "" => DEFAULT_CLUSTER,
        cluster => cluster,
    };
    instance.cluster = cluster.into();
    match instance.defect() {
        None => Ok((cluster.to_owned(), instance)),
        Some(defect) => Err(format!("instance `{shown}`: {defect}")),
    }
}

fn text<'a>(map: &'a Map<String, Value>, key: &str) -> &'a str {
    map.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn switch(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key).and_then(Value::as_bool).unwrap_or(true)
}

/// A number, or a text that is one: servers have sent both.
pub(super) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn reject(out: &mut Snapshot, code: &'static str, message: String) {
    out.rejected += 1;
    note(out, code, message);
}

fn note(out: &mut Snapshot, code: &'static str, message: String) {
    if out.notes.len() < NOTES_MAX {
        out.notes.push(Note { code, message, file: "nacos".into(), at: None });
    }
}

#[cfg(test)]
mod tests;
