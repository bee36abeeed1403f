//! From EndpointSlices to instances.
//!
//! A service is the union of all its slices. The API server has checked what is in them, so nothing here is expected to be
//! wrong; what is all the same costs only itself: a slice, an endpoint or an annotation.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use metaroute_core::instance::{Address, Incarnation, Instance, METADATA_VALUE_MAX, MetaValue, Metadata};
use serde_json::Value;

use crate::carrier;
use crate::document::Note;
use crate::driver::Snapshot;

/// The label that names the service of a slice.
pub(super) const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// The annotation in which what Kubernetes has no place for is told: weight, cluster, metadata.
pub(super) const ANNOTATION: &str = "metaroute/instance";
/// The name of notes' source.
const SOURCE: &str = "kubernetes";

/// Which addresses are instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Family {
    #[default]
    All,
    V4,
    V6,
}

/// What to make of a slice where it has more than an instance can say.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    /// Names or numbers of ports, the best first; none to take what there is.
    pub(super) ports: Vec<Box<str>>,
    pub(super) family: Family,
}

/// A slice as it was read; its endpoints are apart, so that a bad one costs only itself.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    head: EndpointSlice,
    endpoints: Vec<Result<Endpoint, String>>,
}

/// Reads one object.
///
/// # Errors
/// A sentence that says what is wrong.
pub(super) fn read(mut object: Value) -> Result<Slice, String> {
    let endpoints = object.as_object_mut().and_then(|map| map.remove("endpoints"));
    let head: EndpointSlice = serde_json::from_value(object).map_err(|error| error.to_string())?;
    let endpoints = match endpoints {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(endpoints)) => endpoints
            .into_iter()
            .map(|endpoint| serde_json::from_value(endpoint).map_err(|error| error.to_string()))
            .collect(),
        Some(_) => return Err("`endpoints` is no list".into()),
    };
    Ok(Slice { head, endpoints })
}

/// The name of an object, if it has one.
pub(super) fn name_of(object: &Value) -> Option<&str> {
    object.pointer("/metadata/name")?.as_str().filter(|name| !name.is_empty())
}

/// The service that an object belongs to, if it says so.
pub(super) fn service_of(object: &Value) -> Option<&str> {
    object.get("metadata")?.get("labels")?.get(SERVICE_LABEL)?.as_str().filter(|name| !name.is_empty())
}

/// How good an endpoint is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Grade {
    Unready,
    /// It still serves and is shutting down.
    Draining,
    Ready,
}

impl Grade {
    /// What is not said is not false: `ready` is true, `serving` is what `ready` is, only `terminating` is false.
    fn of(endpoint: &Endpoint) -> Self {
        let said = endpoint.conditions.as_ref();
        let ready = said.and_then(|said| said.ready).unwrap_or(true);
        let serving = said.and_then(|said| said.serving).unwrap_or(ready);
        let terminating = said.and_then(|said| said.terminating).unwrap_or(false);
        match (ready, serving, terminating) {
            (_, true, true) => Self::Draining,
            (true, _, false) => Self::Ready,
            _ => Self::Unready,
        }
    }
}

struct Found {
    grade: Grade,
    instance: Instance,
}

/// Everything that is found while slices are joined.
#[derive(Default)]
struct Join {
    /// By place: the same endpoint may stand in two slices while the controller moves it.
    found: BTreeMap<Address, Found>,
    rejected: usize,
    notes: Vec<Note>,
}

impl Join {
    fn note(&mut self, code: &'static str, message: String) {
        self.notes.push(Note { code, message, file: SOURCE.into(), at: None });
    }

    fn reject(&mut self, count: usize, message: String) {
        self.rejected += count;
        self.note("unreadable_instance", message);
    }

    fn add(&mut self, grade: Grade, instance: Instance) {
        match self.found.entry(canonical(&instance.address)) {
            Entry::Vacant(entry) => drop(entry.insert(Found { grade, instance })),
            // One of the two is late; which one nothing says, so the endpoint is as good as the better of them.
            Entry::Occupied(mut entry) if entry.get().grade < grade => drop(entry.insert(Found { grade, instance })),
            Entry::Occupied(_) => {}
        }
    }
}

/// One form for an address that can be written in several.
fn canonical(address: &Address) -> Address {
    let host = address.ip().map_or_else(|| address.host().to_ascii_lowercase(), |ip| ip.to_string());
    Address::new(&host, address.port()).unwrap_or_else(|_| address.clone())
}

/// The instances of a service whose slices are given by name.
pub(super) fn snapshot<'a>(
    slices: impl IntoIterator<Item = (&'a str, &'a Result<Slice, String>)>,
    choice: &Choice,
) -> Snapshot {
    let mut join = Join::default();
    let mut ports = Ports { choice, name: None, seen: BTreeSet::new() };
    for (name, slice) in slices {
        match slice {
            Ok(slice) => add_slice(name, slice, choice, &mut ports, &mut join),
            Err(why) => join.reject(1, format!("EndpointSlice `{name}`: {why}")),
        }
    }
    if let Some(name) = ports.name.as_deref().filter(|_| ports.seen.len() > 1) {
        let all: Vec<&str> = ports.seen.iter().map(|name| &**name).collect();
        let message = format!(
            "there are several ports ({}); `{name}` was taken, say which with the parameter `port`",
            all.join(", ")
        );
        join.note("several_ports", message);
    }
    finish(join)
}

fn finish(mut join: Join) -> Snapshot {
    let usable = |one: &Found| one.instance.enabled && one.instance.weight > 0.0;
    let any_ready = join.found.values().any(|one| one.grade == Grade::Ready && usable(one));
    let draining = join.found.values().filter(|one| one.grade == Grade::Draining && usable(one)).count();
    if !any_ready && draining > 0 {
        let message =
            format!("no endpoint is ready; {draining} that are shutting down and still serve are the last resort");
        join.note("draining_only", message);
    }
    let mut ids = BTreeSet::new();
    let mut instances: Vec<Instance> = Vec::with_capacity(join.found.len());
    for Found { grade, mut instance } in std::mem::take(&mut join.found).into_values() {
        instance.healthy = grade != Grade::Unready;
        if grade == Grade::Draining && any_ready {
            instance.weight = 0.0;
        }
        if let Some(defect) = instance.defect() {
            join.reject(1, format!("endpoint `{}`: {defect}", instance.address));
            continue;
        }
        if !ids.insert(instance.id.clone()) {
            // Two slices were given one id; their addresses tell them apart.
            instance = instance.clone().with_id(instance.address.to_string());
            if !ids.insert(instance.id.clone()) {
                join.reject(1, format!("endpoint `{}`: its id is another one's", instance.address));
                continue;
            }
        }
        instances.push(instance);
    }
    let mut snapshot = Snapshot { instances, rejected: join.rejected, notes: join.notes };
    snapshot.bound_notes();
    snapshot
}

fn add_slice(name: &str, slice: &Slice, choice: &Choice, ports: &mut Ports<'_>, join: &mut Join) {
    let head = &slice.head;
    let wanted = match (choice.family, &*head.address_type) {
        (Family::All, "IPv4" | "IPv6" | "FQDN") | (Family::V4, "IPv4") | (Family::V6, "IPv6") => true,
        (_, "IPv4" | "IPv6" | "FQDN") => false,
        (_, other) => {
            let message = format!("EndpointSlice `{name}`: addresses of the unknown type `{other}`");
            return join.reject(slice.endpoints.len().max(1), message);
        }
    };
    if !wanted || slice.endpoints.is_empty() {
        return;
    }
    let port = match ports.choose(head.ports.as_deref().unwrap_or_default()) {
        Ok(port) => port,
        Err(why) => return join.reject(slice.endpoints.len(), format!("EndpointSlice `{name}`: {why}")),
    };
    let said = match document(head) {
        Ok(said) => said,
        Err(why) => {
            join.note("bad_annotation", format!("EndpointSlice `{name}`: the annotation `{ANNOTATION}`: {why}"));
            None
        }
    };
    let shared = shared_metadata(head);
    let alone = slice.endpoints.len() == 1;
    for (number, endpoint) in slice.endpoints.iter().enumerate() {
        let read = match endpoint {
            Ok(endpoint) => {
                instance(endpoint, port, said.as_ref(), &shared, alone).map(|one| (Grade::of(endpoint), one))
            }
            Err(why) => Err(why.clone()),
        };
        match read {
            Ok((grade, instance)) => join.add(grade, instance),
            Err(why) => join.reject(1, format!("EndpointSlice `{name}`, endpoint {}: {why}", number + 1)),
        }
    }
}

/// Which port is taken, over all slices of a service.
struct Ports<'a> {
    choice: &'a Choice,
    /// What the first slice's port is called, so that all slices give the same one.
    name: Option<Box<str>>,
    /// What there was to choose from.
    seen: BTreeSet<Box<str>>,
}

impl Ports<'_> {
    fn choose(&mut self, ports: &[EndpointPort]) -> Result<u16, String> {
        if self.choice.ports.is_empty() { self.take_one(ports) } else { self.take_named(ports) }
    }

    /// The one there is; of several the first, as the Service wrote them.
    fn take_one(&mut self, ports: &[EndpointPort]) -> Result<u16, String> {
        let tcp = |port: &&EndpointPort| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
        let mut candidates: Vec<&EndpointPort> = ports.iter().filter(tcp).collect();
        if candidates.is_empty() {
            candidates = ports.iter().collect();
        }
        let named = |port: &&&EndpointPort| Some(&*shown(port)) == self.name.as_deref();
        let Some(taken) = candidates.iter().find(named).or(candidates.first()) else {
            return Err("it has no port".into());
        };
        let number =
            taken.port.ok_or("it is for all ports, so no one is known; say which with the parameter `port`")?;
        self.name.get_or_insert_with(|| shown(taken));
        self.seen.extend(candidates.into_iter().map(shown));
        valid(number)
    }

    fn take_named(&mut self, ports: &[EndpointPort]) -> Result<u16, String> {
        for wanted in &self.choice.ports {
            let number: Option<u16> = wanted.parse().ok();
            for port in ports {
                match (number, port.port) {
                    // A slice for all ports has this one, too.
                    (Some(number), None) => return Ok(number),
                    (Some(number), Some(theirs)) if i32::from(number) == theirs => return Ok(number),
                    (None, Some(theirs)) if port.name.as_deref() == Some(wanted) => return valid(theirs),
                    _ => {}
                }
            }
        }
        let there: Vec<Box<str>> = ports.iter().map(shown).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        Err(format!("it has no port `{}`; its ports: {there}", self.choice.ports.join("` or `")))
    }
}

/// A port's name; its number where it has none.
fn shown(port: &EndpointPort) -> Box<str> {
    match (port.name.as_deref(), port.port) {
        (Some(name), _) if !name.is_empty() => name.into(),
        (_, Some(number)) => number.to_string().into(),
        _ => "all".into(),
    }
}

fn valid(number: i32) -> Result<u16, String> {
    u16::try_from(number)
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("port {number} is not from 1 to 65535"))
}

/// What the annotation says: an instance's document (see the module `carrier`), of which every part may be missing.
fn document(head: &EndpointSlice) -> Result<Option<Instance>, String> {
    let Some(text) = head.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION)) else { return Ok(None) };
    let mut value: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
    let map = value.as_object_mut().ok_or("not a JSON object")?;
    map.entry("v").or_insert_with(|| 1.into());
    // An address is the endpoint's own.
    map.insert("address".into(), "0.0.0.0:1".into());
    let id = map.get("id").is_some_and(|id| id.as_str().is_some_and(|id| !id.is_empty()));
    let mut read = carrier::from_json(value.to_string().as_bytes())?;
    if !id {
        read = read.with_id("");
    }
    Ok(Some(read))
}

/// Labels and annotations of a slice, which are its Service's, without those of Kubernetes itself.
fn shared_metadata(head: &EndpointSlice) -> Metadata {
    let annotations = head.metadata.annotations.iter().flatten();
    let labels = head.metadata.labels.iter().flatten();
    annotations
        .filter(|(key, value)| *key != ANNOTATION && value.len() <= METADATA_VALUE_MAX)
        .chain(labels)
        .filter(|(key, _)| !is_kubernetes_own(key))
        .map(|(key, value)| (key.as_str().into(), MetaValue::from(value.as_str())))
        .collect()
}

/// `kubernetes.io/…`, `k8s.io/…` and what is under them.
fn is_kubernetes_own(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    ["kubernetes.io", "k8s.io"]
        .iter()
        .any(|own| domain.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

fn instance(
    endpoint: &Endpoint,
    port: u16,
    said: Option<&Instance>,
    shared: &Metadata,
    alone: bool,
) -> Result<Instance, String> {
    // Several addresses of one endpoint are one endpoint; only the first has a meaning.
    let host = endpoint.addresses.first().ok_or("it has no address")?;
    let address = Address::new(host, port).map_err(|error| error.to_string())?;
    let mut one = Instance::new(address);
    one.metadata = shared.clone();
    if let Some(said) = said {
        one.weight = said.weight;
        one.enabled = said.enabled;
        one.cluster = said.cluster.clone();
        one.locality = said.locality.clone();
        // What is one's own fits only where there is one.
        if alone {
            one.incarnation = said.incarnation.clone();
            if !said.id.as_str().is_empty() {
                one.id = said.id.clone();
            }
        }
    }
    let target = endpoint.target_ref.as_ref();
    if let Some(uid) = target.and_then(|target| target.uid.as_deref()).filter(|uid| !uid.is_empty()) {
        one.incarnation = Incarnation::new(uid);
    }
    let topology = endpoint.deprecated_topology.as_ref();
    let region = topology.and_then(|topology| topology.get("topology.kubernetes.io/region"));
    if let Some(zone) = endpoint.zone.as_deref().filter(|zone| !zone.is_empty()) {
        one.locality.zone = zone.into();
    }
    if let Some(region) = region.filter(|region| !region.is_empty()) {
        one.locality.region = region.as_str().into();
    }
    let pod = target.filter(|target| target.kind.as_deref() == Some("Pod")).and_then(|target| target.name.as_deref());
    let own = [
        ("zone", Some(&*one.locality.zone)),
        ("region", Some(&*one.locality.region)),
        ("node", endpoint.node_name.as_deref()),
        ("pod", pod),
        ("hostname", endpoint.hostname.as_deref()),
    ];
    let own: Vec<(&str, MetaValue)> = own
        .into_iter()
        .filter_map(|(key, value)| Some((key, MetaValue::from(value.filter(|value| !value.is_empty())?))))
        .collect();
    one.metadata.extend(own.into_iter().map(|(key, value)| (key.into(), value)));
    let zones: Vec<Box<str>> = endpoint
        .hints
        .iter()
        .flat_map(|hints| hints.for_zones.iter().flatten())
        .map(|zone| zone.name.as_str().into())
        .collect();
    if !zones.is_empty() {
        one.metadata.insert("for-zones".into(), MetaValue::List(zones.into()));
    }
    if Grade::of(endpoint) == Grade::Draining {
        one.metadata.insert("draining".into(), MetaValue::Bool(true));
    }
    if let Some(said) = said {
        one.metadata.extend(said.metadata.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    Ok(one)
}

/// Reads the JSON text of an `EndpointSliceList`, or of a single slice, as if it were all of one service. For fuzzing.
pub fn read_list(bytes: &[u8]) -> Snapshot {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return Snapshot::default() };
    let items = match value {
        Value::Object(mut map) => match map.remove("items") {
            Some(Value::Array(items)) => items,
            _ => vec![Value::Object(map)],
        },
        Value::Array(items) => items,
        _ => return Snapshot::default(),
    };
    let slices: Vec<(String, Result<Slice, String>)> = items
        .into_iter()
        .enumerate()
        .map(|(number, item)| (name_of(&item).map_or_else(|| number.to_string(), ToOwned::to_owned), read(item)))
        .collect();
    snapshot(slices.iter().map(|(name, slice)| (name.as_str(), slice)), &Choice::default())
}

#[cfg(test)]
mod tests;
