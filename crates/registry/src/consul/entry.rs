//! One entry of Consul's health endpoint, and what we register as one.

use std::collections::{BTreeMap, HashMap, HashSet};

use metaroute_core::instance::{Address, Incarnation, Instance, InstanceId, MetaValue};
use serde::Deserialize;
use serde_json::Value;

use super::SEATA_TAG;
use crate::carrier::{self, Native};
use crate::document::Note;
use crate::driver::{DriverError, ErrorKind, Snapshot};

/// The metadata key that stands for `Tags`.
const TAGS: &str = "tags";
/// Most pairs in `Meta`.
const PAIRS_MAX: usize = 64;
/// Longest value in `Meta`, in bytes.
const VALUE_MAX: usize = 512;
/// Largest weight that `Weights` takes.
const WEIGHT_MAX: f64 = 65_535.0;

/// What an instance is in Consul's terms.
pub(super) struct Written {
    pub(super) meta: BTreeMap<String, String>,
    pub(super) tags: Vec<Box<str>>,
    /// `Weights.Passing`, where it is not the usual 1.
    pub(super) passing: Option<u32>,
}

/// Consul's form of an instance.
///
/// # Errors
/// What Consul would refuse, with the key and the limit.
pub(super) fn write(service: &str, instance: &Instance, seata: bool) -> Result<Written, DriverError> {
    let invalid = |message: String| Err(DriverError::new(ErrorKind::Invalid, message));
    if service.is_empty() || service == "." || service == ".." {
        return invalid(format!("`{service}` cannot be the name of a service in Consul"));
    }
    let weight = instance.weight;
    let fits = weight.fract() == 0.0 && (1.0..=WEIGHT_MAX).contains(&weight);
    let native = Native {
        weight: fits,
        // In Seata's layout the service is the cluster.
        cluster: seata && *instance.cluster == *service,
        ..Native::default()
    };
    let mut meta = carrier::to_map(instance, native);
    let tags = match instance.metadata.get(TAGS) {
        Some(MetaValue::List(tags)) => {
            meta.remove(TAGS);
            tags.to_vec()
        }
        _ => Vec::new(),
    };
    if meta.len() > PAIRS_MAX {
        return invalid(format!(
            "{} metadata pairs with those that carry id, weight, cluster and place; Consul accepts at most {PAIRS_MAX}",
            meta.len()
        ));
    }
    for (key, value) in &meta {
        if key.is_empty() {
            return invalid("a metadata key is empty".to_owned());
        }
        if let Some(odd) = key.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))) {
            return invalid(format!(
                "metadata key `{key}`: `{odd}` is not among the letters, digits, `_` and `-` that Consul accepts"
            ));
        }
        // The metadata itself was checked before; this is what rides with it.
        if value.len() > VALUE_MAX {
            return invalid(format!(
                "metadata value of `{key}` has {} bytes, at most {VALUE_MAX} are accepted",
                value.len()
            ));
        }
    }
    // The nearest weight that it takes, for readers that know only this one. Rounded and in range, so the cast is exact.
    let passing = weight.round().clamp(1.0, WEIGHT_MAX) as u32;
    Ok(Written { meta, tags, passing: (passing != 1).then_some(passing) })
}

/// The id in Consul of an instance of ours. No other instance of any service has it: the last `-` ends the service.
pub(super) fn service_id(service: &str, id: &InstanceId) -> String {
    let mut out = format!("{service}-");
    for c in id.as_str().chars() {
        match c {
            '-' => out.push_str("%2D"),
            '%' => out.push_str("%25"),
            c => out.push(c),
        }
    }
    out
}

/// The ids in Consul that an instance may have: ours, the one that others (and we, once) put together from the same parts, and
/// its own.
pub(super) fn ids(service: &str, id: &InstanceId) -> Vec<String> {
    let mut ids = vec![service_id(service, id)];
    for other in [format!("{service}-{id}"), id.to_string()] {
        if !ids.contains(&other) {
            ids.push(other);
        }
    }
    ids
}

/// Whether an id in Consul is made from service and address, by us or by others.
fn is_made_of(id: &str, service: &str, address: &Address) -> bool {
    let Some(rest) = id.strip_prefix(service).and_then(|rest| rest.strip_prefix('-')) else { return false };
    rest.replace("%2D", "-").replace("%25", "%").parse::<Address>().as_ref() == Ok(address)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    node: Option<Node>,
    service: Service,
    checks: Option<Vec<Check>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Node {
    node: Option<Box<str>>,
    address: Option<Box<str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Service {
    #[serde(rename = "ID")]
    id: Box<str>,
    address: Option<Box<str>>,
    port: Option<i64>,
    tags: Option<Vec<Box<str>>>,
    meta: Option<BTreeMap<String, String>>,
    weights: Option<Weights>,
    create_index: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Weights {
    passing: Option<f64>,
    warning: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Check {
    #[serde(rename = "CheckID")]
    id: Option<Box<str>>,
    status: Option<Box<str>>,
}

/// Health, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Health {
    Passing,
    Warning,
    Critical,
}

/// One readable entry and where it is registered.
struct Found {
    instance: Instance,
    node: Box<str>,
    health: Health,
    created: u64,
}

pub(super) fn note(code: &'static str, message: String) -> Note {
    Note { code, message, file: "consul".into(), at: None }
}

/// All entries of a service. One that cannot be read is left out, counted and described.
pub(super) fn read(service: &str, entries: Vec<Value>, seata: bool) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let mut found: Vec<Found> = Vec::with_capacity(entries.len());
    for value in entries {
        let name = value["Service"]["ID"].as_str().unwrap_or("without an id").to_owned();
        match read_one(service, value, seata) {
            Ok(one) => found.push(one),
            Err(why) => {
                snapshot.rejected += 1;
                snapshot.notes.push(note("unreadable_instance", format!("instance `{name}`: {why}")));
            }
        }
    }
    snapshot.instances = distinct(found, &mut snapshot.notes);
    // Somebody's id may look like what tells two nodes apart.
    let mut ids = HashSet::with_capacity(snapshot.instances.len());
    let before = snapshot.instances.len();
    snapshot.instances.retain(|instance| ids.insert(instance.id.clone()));
    snapshot.rejected += before - snapshot.instances.len();
    snapshot.bound_notes();
    snapshot
}

fn read_one(service: &str, value: Value, seata: bool) -> Result<Found, String> {
    let entry: Entry = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let Entry { node, service: entry, checks } = entry;
    let (node, node_address) = node.map_or((None, None), |node| (node.node, node.address));
    let text = |text: Option<Box<str>>| text.filter(|text| !text.is_empty());
    let host = text(entry.address).or(text(node_address)).ok_or("neither it nor its node has an address")?;
    let port = entry.port.unwrap_or_default();
    let port = u16::try_from(port).map_err(|_| format!("port {port} is not between 1 and 65535"))?;
    let address = Address::new(&host, port).map_err(|error| error.to_string())?;

    let mut instance = carrier::from_map(address, entry.meta.unwrap_or_default());
    if instance.id.as_str() == instance.address.to_string() {
        // Without an id of ours: ours if it is made from the address, as Seata's are; else theirs as it is.
        if !is_made_of(&entry.id, service, &instance.address) {
            instance.id = InstanceId::new(entry.id);
        }
    }
    let created = entry.create_index.unwrap_or_default();
    if instance.incarnation.as_str().is_empty() && created > 0 {
        instance.incarnation = Incarnation::new(created.to_string());
    }
    if seata && instance.cluster.is_empty() {
        instance.cluster = service.into();
    }
    let tags: Box<[Box<str>]> =
        entry.tags.unwrap_or_default().into_iter().filter(|tag| !(seata && **tag == *SEATA_TAG)).collect();
    if !tags.is_empty() {
        instance.metadata.entry(TAGS.into()).or_insert(MetaValue::List(tags));
    }

    let mut health = Health::Passing;
    for check in checks.unwrap_or_default() {
        let status = match check.status.as_deref() {
            Some("passing") => Health::Passing,
            Some("warning") => Health::Warning,
            // Critical, and whatever a later Consul may think of.
            _ => Health::Critical,
        };
        let id = check.id.as_deref().unwrap_or_default();
        if id == "_node_maintenance" || id.starts_with("_service_maintenance:") {
            instance.enabled = false;
        }
        health = health.max(status);
    }
    instance.healthy = health < Health::Critical;
    // A weight of ours says more than Consul's, which knows neither 0 nor fractions. `to_map` writes 1 as Consul's own.
    if instance.weight == 1.0
        && let Some(weights) = entry.weights
    {
        let weight = match health {
            // A partial object leaves it at 0, which for Consul still means "seldom", not "never".
            Health::Warning => weights.warning.unwrap_or(1.0).max(1.0),
            _ => weights.passing.unwrap_or(1.0),
        };
        instance.weight = weight;
    }
    match instance.defect() {
        Some(defect) => Err(defect.to_string()),
        None => Ok(Found { instance, node: node.unwrap_or_default(), health, created }),
    }
}

/// Two agents may hold the same id. The same address twice is one instance that moved between agents: the healthier and
/// newer entry is right. Different addresses are different instances, told apart by their nodes.
fn distinct(found: Vec<Found>, notes: &mut Vec<Note>) -> Vec<Instance> {
    let mut by_id: HashMap<InstanceId, Vec<Found>> = HashMap::with_capacity(found.len());
    let mut order = Vec::with_capacity(found.len());
    for one in found {
        let id = one.instance.id.clone();
        let same = by_id.entry(id.clone()).or_default();
        if same.is_empty() {
            order.push(id);
        }
        match same.iter_mut().find(|other| other.instance.address == one.instance.address) {
            Some(other) => {
                let better = |f: &Found| (std::cmp::Reverse(f.health), f.created);
                if better(&one) > better(other) {
                    *other = one;
                }
            }
            None => same.push(one),
        }
    }
    let mut out = Vec::with_capacity(order.len());
    for id in order {
        let same = by_id.remove(&id).unwrap_or_default();
        let ambiguous = same.len() > 1;
        if ambiguous {
            let nodes: Vec<&str> = same.iter().map(|one| &*one.node).collect();
            notes.push(note("same_id", format!("id `{id}` is used on several nodes: {}", nodes.join(", "))));
        }
        out.extend(same.into_iter().map(|one| {
            let mut instance = one.instance;
            if ambiguous {
                instance.id = InstanceId::new(format!("{}/{id}", one.node));
            }
            instance
        }));
    }
    out
}
