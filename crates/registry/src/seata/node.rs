//! A node as Seata's servers write it in JSON, and the instance it stands for.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use metaroute_core::instance::{Address, Incarnation, Instance, MetaValue};
use serde_json::{Map, Value, json};

use crate::carrier::{self, Native};
use crate::document::Note;
use crate::driver::Snapshot;

/// The mapping from vgroup to unit inside a node's metadata.
pub(super) const VGROUP: &str = "vGroup";
/// The kind of cluster inside a node's metadata.
pub(super) const CLUSTER_TYPE: &str = "cluster-type";

/// The metadata keys that reading adds to a node that is no plain member.
pub(super) const ADDED: [&str; 4] = ["role", "group", "term", "version"];

/// What a NamingServer has a place of its own for. It has a unit and terms, but neither is an incarnation: the unit stays the
/// same over restarts and terms grow with every change.
const NATIVE: Native = Native { id: false, weight: true, enabled: false, cluster: true, incarnation: false };

/// Everything that a NamingServer is told about one instance.
#[derive(Clone, Debug)]
pub(super) struct Registered<'a> {
    pub(super) namespace: &'a str,
    pub(super) cluster: &'a str,
    pub(super) unit: &'a str,
    pub(super) service: &'a str,
    pub(super) control_port: Option<u16>,
    pub(super) term: u64,
}

/// The body of a registration. Field for field what the reference client 2.6.0 sends.
pub(super) fn write(instance: &Instance, about: &Registered<'_>) -> Value {
    let host = instance.address.host();
    let port = instance.address.port();
    let mut metadata: Map<String, Value> =
        instance.metadata.iter().map(|(key, value)| (key.to_string(), carrier::json_value(value))).collect();
    for (key, value) in carrier::to_map(instance, NATIVE) {
        metadata.entry(key).or_insert_with(|| value.into());
    }
    metadata.insert(VGROUP.into(), json!({ about.service: about.unit }));
    metadata.insert(CLUSTER_TYPE.into(), "default".into());
    json!({
        "namespace": about.namespace,
        "clusterName": about.cluster,
        "unit": about.unit,
        "control": { "host": host, "port": about.control_port.unwrap_or(port) },
        "transaction": { "host": host, "port": port },
        "internal": null,
        "weight": instance.weight,
        "healthy": instance.healthy,
        "term": about.term,
        "timestamp": about.term,
        "version": null,
        "role": "MEMBER",
        "metadata": metadata,
    })
}

/// An instance from a node. Where the address is not usable, a sentence says why.
pub(super) fn read(node: &Value) -> Result<Instance, String> {
    let node = node.as_object().ok_or("a node is no JSON object")?;
    let empty = Map::new();
    let metadata = match node.get("metadata") {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(metadata)) => metadata,
        Some(_) => return Err("`metadata` of a node is no object".into()),
    };
    let texts = metadata
        .iter()
        .filter(|(key, _)| key.starts_with(carrier::RESERVED) || matches!(key.as_str(), "zone" | "region"))
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    let mut instance = carrier::from_map(address(node)?, texts);
    let default_type = metadata.get(CLUSTER_TYPE).and_then(Value::as_str) == Some("default");
    for (key, value) in carrier::metadata_of(metadata) {
        let ours = key.starts_with(carrier::RESERVED) || &*key == VGROUP || (default_type && &*key == CLUSTER_TYPE);
        if !ours {
            instance.metadata.insert(key, value);
        }
    }
    if let Some(weight) = node.get("weight").filter(|weight| !weight.is_null()) {
        instance.weight = weight.as_f64().ok_or_else(|| format!("weight {weight} is no number"))?;
    }
    if let Some(healthy) = node.get("healthy").and_then(Value::as_bool) {
        instance.healthy = healthy;
    }
    if instance.incarnation.as_str().is_empty()
        && let Some(unit) = node.get("unit").and_then(Value::as_str)
    {
        instance.incarnation = Incarnation::new(unit);
    }
    match instance.defect() {
        None => Ok(instance),
        Some(defect) => Err(format!("{}: {defect}", instance.address)),
    }
}

fn address(node: &Map<String, Value>) -> Result<Address, String> {
    let endpoint = node.get("transaction").and_then(Value::as_object).ok_or("a node without a transaction endpoint")?;
    let host = endpoint.get("host").and_then(Value::as_str).ok_or("a node without a host")?;
    let port = endpoint.get("port").and_then(Value::as_u64).ok_or_else(|| format!("`{host}`: no port"))?;
    let port = u16::try_from(port).map_err(|_| format!("`{host}`: port {port} must be 1 to 65535"))?;
    Address::new(host, port).map_err(|error| error.to_string())
}

/// Puts role, group, term and version of a node into the metadata, where they are not there already.
pub(super) fn add_role(instance: &mut Instance, node: &Value, term: Option<&Value>) {
    let text = |key: &str| node.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(MetaValue::from);
    let term = term.filter(|term| term.is_number()).map(|term| MetaValue::Number(term.to_string().into()));
    for (key, value) in ADDED.into_iter().zip([text("role"), text("group"), term, text("version")]) {
        if let Some(value) = value {
            instance.metadata.entry(key.into()).or_insert(value);
        }
    }
}

/// A list under way: ids stay unique, and what cannot be read is counted and described.
#[derive(Debug, Default)]
pub(super) struct Listing {
    instances: BTreeMap<Box<str>, (Rank, Instance)>,
    rejected: usize,
    notes: Vec<Note>,
}

/// Which of two nodes with one id counts: the one with the higher term, then the leader.
type Rank = (Option<i64>, bool);

/// More is not said about one list.
const NOTES_MAX: usize = 20;

impl Listing {
    /// Adds what was read of a node. Of two with one id the one with the higher term stays: the other is what an
    /// earlier life left behind. Without terms the leader stays: a Raft group of one lists it as its own follower, too.
    pub(super) fn add(&mut self, node: &Value, read: Result<Instance, String>) {
        let instance = match read {
            Ok(instance) => instance,
            Err(why) => {
                self.rejected += 1;
                self.note("unreadable_node", why);
                return;
            }
        };
        let leads = node.get("role").and_then(Value::as_str) == Some("LEADER");
        let rank = (node.get("term").and_then(Value::as_i64), leads);
        let id: Box<str> = instance.id.as_str().into();
        let known = self.instances.get(&id).map(|(known, _)| *known);
        if let Some(known) = known {
            self.note("duplicate_id", format!("`{id}` is listed twice; the newer node counts"));
            if known >= rank {
                return;
            }
        }
        self.instances.insert(id, (rank, instance));
    }

    fn note(&mut self, code: &'static str, message: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(Note { code, message, file: String::new(), at: None });
        }
    }

    /// The finished list, and a number that differs when it does.
    pub(super) fn finish(self) -> (Snapshot, u64) {
        let instances: Vec<Instance> = self.instances.into_values().map(|(_, instance)| instance).collect();
        let mut hasher = DefaultHasher::new();
        for instance in &instances {
            carrier::to_json(instance).hash(&mut hasher);
            instance.healthy.hash(&mut hasher);
        }
        self.rejected.hash(&mut hasher);
        (Snapshot { instances, rejected: self.rejected, notes: self.notes }, hasher.finish())
    }
}

#[cfg(test)]
mod tests;
