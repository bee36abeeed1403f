//! What stands in ZooKeeper for an instance: paths and data, byte by byte. Pure functions over what was read.

use std::collections::{BTreeMap, HashSet};

use metaroute_core::instance::{Address, Incarnation, Instance, InstanceId};
use serde_json::{Map, Value, json};
use zookeeper_client::Stat;

use crate::carrier::{self, Native};
use crate::driver::Snapshot;
use crate::seata_layout;
use crate::segment;

/// How instances are laid out; the base is an absolute path, or nothing for the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) kind: Kind,
    pub(super) base: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `<base>/<cluster>/<ip:port>` with metadata as text.
    Seata,
    /// `<base>/<service>/<id>` with Curator's JSON.
    Curator,
    /// `<base>/<interface>/providers/<percent-encoded URL>`.
    Dubbo,
    /// `<base>/<service>/<id>` with our JSON.
    Plain,
}

/// A node that stands for an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) path: String,
    pub(super) data: Vec<u8>,
}

/// A child that was read.
#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) name: String,
    pub(super) data: Vec<u8>,
    pub(super) stat: Stat,
}

impl Child {
    /// A child of which only name and data matter.
    pub(super) fn lone(name: &str, data: &[u8]) -> Self {
        let stat = Stat {
            czxid: 0,
            mzxid: 0,
            pzxid: 0,
            ctime: 0,
            mtime: 0,
            version: 0,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: 0,
        };
        Self { name: name.into(), data: data.to_vec(), stat }
    }
}

/// The class that every Java reader has; any other one makes readers without it fail for the whole service.
const PAYLOAD_CLASS: &str = "java.util.HashMap";

/// What Dubbo takes an instance without a weight for.
const DUBBO_WEIGHT: f64 = 100.0;

impl Kind {
    /// Where others keep their instances.
    pub(super) fn base(self) -> &'static str {
        match self {
            Self::Seata => "/registry/zk",
            Self::Curator => "/services",
            Self::Dubbo => "/dubbo",
            Self::Plain => "/metaroute",
        }
    }

    /// Whether parents without children may disappear: Seata and Dubbo make them to stay.
    pub(super) fn parents_go(self) -> bool {
        matches!(self, Self::Curator | Self::Plain)
    }
}

impl Layout {
    /// The path whose children are the instances of a service.
    pub(super) fn service(&self, service: &str) -> String {
        match self.kind {
            Kind::Plain => format!("{}/{}", self.base, segment::encode(service)),
            Kind::Dubbo => format!("{}/{service}/providers", self.base),
            Kind::Seata | Kind::Curator => format!("{}/{service}", self.base),
        }
    }

    /// The name of a service from a child of the base.
    pub(super) fn name(&self, child: &str) -> Option<String> {
        if self.kind == Kind::Plain { segment::decode(child) } else { Some(child.to_owned()) }
    }

    /// Whether a service can have this name.
    pub(super) fn check(&self, service: &str) -> Result<(), String> {
        if service.is_empty() {
            return Err("the service has no name".into());
        }
        let forbidden = |c: char| c == '/' || c.is_control();
        if self.kind != Kind::Plain && (service == "." || service == ".." || service.contains(forbidden)) {
            return Err(format!("service `{service}`: ZooKeeper cannot have that as a name"));
        }
        Ok(())
    }

    /// What to write for an instance. `now_ms` is when it was registered first, for layouts that say so.
    pub(super) fn write(&self, service: &str, instance: &Instance, now_ms: u64) -> Result<Node, String> {
        self.check(service)?;
        let parent = self.service(service);
        Ok(match self.kind {
            Kind::Seata => Node {
                path: format!("{parent}/{}", seata_layout::address_text(&instance.address)),
                data: seata_layout::write_text(&carrier::to_map(instance, Native::default())).into_bytes(),
            },
            Kind::Plain => Node {
                path: format!("{parent}/{}", segment::encode(instance.id.as_str())),
                data: carrier::to_json(instance),
            },
            Kind::Curator => {
                let id = instance.id.as_str();
                if id == "." || id == ".." || id.contains(|c: char| c == '/' || c.is_control()) {
                    return Err(format!("id `{id}`: ZooKeeper cannot have that as a name"));
                }
                if instance.metadata.contains_key("@class") {
                    return Err("metadata key `@class`: Java readers would take it for the class of the payload".into());
                }
                Node { path: format!("{parent}/{id}"), data: curator_data(service, instance, now_ms) }
            }
            Kind::Dubbo => {
                Node { path: format!("{parent}/{}", form_encode(&dubbo_url(service, instance))), data: Vec::new() }
            }
        })
    }

    /// What the children of a service's path say.
    pub(super) fn read(&self, children: Vec<Child>) -> Snapshot {
        let mut out = Snapshot::default();
        let mut ids = HashSet::new();
        for Child { name, data, stat } in children {
            let read = match self.kind {
                Kind::Seata => seata_instance(&name, &data),
                Kind::Plain => carrier::from_json(&data),
                Kind::Curator => curator_instance(&name, &data),
                Kind::Dubbo => dubbo_instance(&name),
            };
            match read {
                Ok(mut instance) => {
                    if instance.incarnation.as_str().is_empty() {
                        let life = format!("{:x}.{:x}", stat.czxid, stat.ephemeral_owner);
                        instance.incarnation = Incarnation::new(life);
                    }
                    if ids.insert(instance.id.clone()) {
                        out.instances.push(instance);
                    } else {
                        let message = format!("node `{name}`: another entry has the id `{}` already", instance.id);
                        out.reject("zookeeper", message);
                    }
                }
                Err(why) => out.reject("zookeeper", format!("node `{name}`: {why}")),
            }
        }
        out
    }

    /// The id of a child, as [`read`](Self::read) gives it.
    pub(super) fn id(&self, child: &Child) -> Option<InstanceId> {
        self.read(vec![child.clone()]).instances.pop().map(|instance| instance.id)
    }
}

fn checked(instance: Instance) -> Result<Instance, String> {
    match instance.defect() {
        None => Ok(instance),
        Some(defect) => Err(defect.to_string()),
    }
}

fn seata_instance(name: &str, data: &[u8]) -> Result<Instance, String> {
    let address = seata_layout::read_address(name).map_err(|error| error.to_string())?;
    checked(carrier::from_map(address, seata_layout::read_text(data)))
}

fn curator_data(service: &str, instance: &Instance, now_ms: u64) -> Vec<u8> {
    let map = carrier::to_map(instance, Native { id: true, enabled: true, ..Native::default() });
    let payload = if map.is_empty() {
        Value::Null
    } else {
        let mut payload = Map::new();
        payload.insert("@class".into(), PAYLOAD_CLASS.into());
        payload.extend(map.into_iter().map(|(key, value)| (key, value.into())));
        payload.into()
    };
    let mut out = json!({
        "name": service,
        "id": instance.id.as_str(),
        "address": instance.address.host(),
        "port": instance.address.port(),
        "sslPort": null,
        "payload": payload,
        "registrationTimeUTC": now_ms,
        "serviceType": "DYNAMIC",
        "uriSpec": null,
    });
    if !instance.enabled {
        out["enabled"] = false.into();
    }
    out.to_string().into_bytes()
}

fn curator_instance(name: &str, data: &[u8]) -> Result<Instance, String> {
    let value: Value = serde_json::from_slice(data).map_err(|error| format!("not JSON: {error}"))?;
    let host = value.get("address").and_then(Value::as_str).ok_or("no text `address`")?;
    let port = ["port", "sslPort"].iter().find_map(|key| value.get(*key).and_then(Value::as_u64)).ok_or("no `port`")?;
    let port = u16::try_from(port).map_err(|_| format!("port {port} is too large"))?;
    let address = Address::new(host, port).map_err(|error| error.to_string())?;
    let payload = value.get("payload").and_then(Value::as_object);
    // Spring Cloud puts an object of its own there, with the metadata inside.
    let metadata = payload.and_then(|payload| payload.get("metadata").and_then(Value::as_object).or(Some(payload)));
    let texts = metadata.into_iter().flatten().filter(|(key, _)| *key != "@class");
    let texts = texts.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    let mut instance = carrier::from_map(address, texts);
    instance.id = InstanceId::new(name);
    if let Some(enabled) = value.get("enabled").and_then(Value::as_bool) {
        instance.enabled = enabled;
    }
    checked(instance)
}

/// `protocol://host:port/interface?key=value&…`, unencoded, as Dubbo builds it before it encodes the whole.
fn dubbo_url(service: &str, instance: &Instance) -> String {
    let mut map = carrier::to_map(instance, Native { id: true, weight: true, ..Native::default() });
    let protocol = map.remove("protocol").unwrap_or_else(|| "dubbo".into());
    map.insert("metaroute-id".into(), instance.id.to_string());
    let weight = instance.weight * DUBBO_WEIGHT;
    if weight.fract() == 0.0 && weight <= f64::from(i32::MAX) {
        if instance.weight != 1.0 {
            map.insert("weight".into(), weight.to_string());
        }
    } else {
        map.insert("metaroute-weight".into(), instance.weight.to_string());
    }
    for (key, value) in [("category", "providers"), ("dubbo", "2.0.2"), ("interface", service), ("side", "provider")] {
        map.entry(key.into()).or_insert_with(|| value.to_owned());
    }
    // Inside a query `&`, `=` and `%` would be read as something else.
    let safe = |text: &str| text.replace('%', "%25").replace('&', "%26").replace('=', "%3D").replace('+', "%2B");
    let query: Vec<String> = map.iter().map(|(key, value)| format!("{}={}", safe(key), safe(value))).collect();
    format!("{protocol}://{}/{service}?{}", instance.address, query.join("&"))
}

fn dubbo_instance(name: &str) -> Result<Instance, String> {
    let url = form_decode(name).ok_or("not a percent-encoded URL")?;
    let (protocol, rest) = url.split_once("://").ok_or("no `://`")?;
    let (front, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = front.split('/').next().unwrap_or_default();
    let authority = authority.rsplit('@').next().unwrap_or_default();
    let address: Address = authority.parse().map_err(|error| format!("{error}"))?;
    let mut map = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        // Some versions encode values once more inside the whole; a value that is no such code stands for itself.
        let plain = |text: &str| segment::decode(text).unwrap_or_else(|| text.to_owned());
        map.insert(plain(key), plain(value));
    }
    if protocol != "dubbo" {
        map.insert("protocol".into(), protocol.into());
    }
    let weight = map.get("weight").and_then(|weight| weight.parse::<f64>().ok());
    let own_weight = map.contains_key("metaroute-weight");
    let disabled = [("disabled", "true"), ("enabled", "false")]
        .iter()
        .any(|(key, value)| map.get(*key).is_some_and(|v| v == value));
    let own_id = map.contains_key("metaroute-id");
    let of = |key: &str| map.get(key).filter(|value| !value.is_empty()).cloned();
    let (group, version) = (of("group"), of("version"));
    if weight.is_some() {
        map.remove("weight");
    }
    let shown = address.to_string();
    let mut instance = carrier::from_map(address, map);
    if let Some(weight) = weight.filter(|weight| weight.is_finite() && *weight >= 0.0 && !own_weight) {
        instance.weight = weight / DUBBO_WEIGHT;
    }
    if disabled {
        instance.enabled = false;
    }
    // One process offers an interface in several versions and groups at one address.
    if !own_id && (protocol != "dubbo" || group.is_some() || version.is_some()) {
        let parts = [("group", group), ("version", version)];
        let parts: Vec<String> = parts.into_iter().filter_map(|(key, v)| Some(format!("{key}={}", v?))).collect();
        let query = if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) };
        instance.id = InstanceId::new(format!("{protocol}://{shown}{query}"));
    }
    checked(instance)
}

/// As Java's `URLEncoder` writes it: a form, not a path.
fn form_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 3 / 2);
    for byte in text.bytes() {
        match byte {
            b' ' => out.push('+'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'*' | b'_' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn form_decode(text: &str) -> Option<String> {
    segment::decode(&text.replace('+', " "))
}

#[cfg(test)]
mod tests;
