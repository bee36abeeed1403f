//! What stands in etcd for an instance: keys and values, byte by byte. Pure functions over what was read.

use std::collections::{BTreeMap, BTreeSet};

use metaroute_core::instance::{Address, Incarnation, Instance, InstanceId, MetaValue};
use serde_json::{Map, Value};

use super::proto::KeyValue;
use crate::carrier::{self, Native};
use crate::driver::Snapshot;
use crate::seata_layout;
use crate::segment::{decode, encode};

/// Seata's keys. Its own client looks for everything that starts with this and a cluster's name.
const SEATA: &str = "registry-seata-";
/// Metadata beside Seata's keys, outside everything Seata's client looks at.
const SEATA_META: &str = "metaroute/seata-meta/";

/// How instances are laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// `registry-seata-<cluster>-<ip:port>` = `<ip:port>`, metadata under `metaroute/seata-meta/<cluster>/<ip:port>`.
    Seata,
    /// `<prefix>/<service>/<id>` = our JSON.
    Plain { prefix: Box<str> },
    /// `<prefix><service>/<id>` = what the gRPC naming resolver of etcd's Go client reads.
    Grpc { prefix: Box<str> },
}

/// What stands for one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Says that it is there, and goes last when it is taken away.
    pub(super) live: (Vec<u8>, Vec<u8>),
    /// Its metadata, where that is apart; no value where there is none.
    pub(super) meta: Option<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Layout {
    /// The prefixes under which a service is: the one of the instances first.
    pub(super) fn prefixes(&self, service: &str) -> Vec<Vec<u8>> {
        match self {
            Self::Seata => {
                vec![format!("{SEATA}{service}-").into_bytes(), format!("{SEATA_META}{service}/").into_bytes()]
            }
            Self::Plain { prefix } => vec![format!("{prefix}/{}/", encode(service)).into_bytes()],
            Self::Grpc { prefix } => vec![format!("{prefix}{service}/").into_bytes()],
        }
    }

    /// The prefix under which all services are.
    pub(super) fn root(&self) -> Vec<u8> {
        match self {
            Self::Seata => SEATA.into(),
            Self::Plain { prefix } => format!("{prefix}/").into_bytes(),
            Self::Grpc { prefix } => prefix.as_bytes().to_vec(),
        }
    }

    /// Whether services can only be told from the values.
    pub(super) fn lists_by_value(&self) -> bool {
        matches!(self, Self::Seata)
    }

    /// Whether an instance is found by its address, not by its id.
    pub(super) fn keyed_by_address(&self) -> bool {
        matches!(self, Self::Seata)
    }

    /// The keys of an instance.
    pub(super) fn keys(&self, service: &str, id: &InstanceId, address: Option<&Address>) -> Vec<Vec<u8>> {
        match (self, address) {
            (Self::Seata, Some(address)) => {
                let address = seata_layout::address_text(address);
                vec![
                    format!("{SEATA}{service}-{address}").into_bytes(),
                    format!("{SEATA_META}{service}/{address}").into_bytes(),
                ]
            }
            (Self::Seata, None) => Vec::new(),
            (Self::Plain { .. }, _) => vec![[&*self.prefixes(service)[0], encode(id.as_str()).as_bytes()].concat()],
            (Self::Grpc { .. }, _) => vec![[&*self.prefixes(service)[0], id.as_str().as_bytes()].concat()],
        }
    }

    /// What to write for an instance.
    ///
    /// # Errors
    /// A sentence, when the layout cannot say it.
    pub(super) fn write(&self, service: &str, instance: &Instance) -> Result<Entry, String> {
        self.check(service)?;
        let mut keys = self.keys(service, &instance.id, Some(&instance.address)).into_iter();
        let live = keys.next().unwrap_or_default();
        let entry = match self {
            Self::Seata => {
                let map = carrier::to_map(instance, Native::default());
                let text = (!map.is_empty()).then(|| seata_layout::write_text(&map).into_bytes());
                Entry {
                    live: (live, seata_layout::address_text(&instance.address).into_bytes()),
                    meta: keys.next().map(|key| (key, text)),
                }
            }
            Self::Plain { .. } => Entry { live: (live, carrier::to_json(instance)), meta: None },
            Self::Grpc { .. } => {
                if instance.id.as_str().contains('/') {
                    return Err(format!("id `{}`: this layout cannot have `/` in an id", instance.id));
                }
                let native = Native { id: true, ..Native::default() };
                let metadata: Map<String, Value> =
                    carrier::to_map(instance, native).into_iter().map(|(key, value)| (key, value.into())).collect();
                let value = serde_json::json!({
                    "Op": 0,
                    "Addr": instance.address.to_string(),
                    "Metadata": if metadata.is_empty() { Value::Null } else { metadata.into() },
                });
                Entry { live: (live, value.to_string().into_bytes()), meta: None }
            }
        };
        Ok(entry)
    }

    /// Whether a service can have this name.
    pub(super) fn check(&self, service: &str) -> Result<(), String> {
        match self {
            _ if service.is_empty() => Err("the service has no name".to_owned()),
            // `/` ends the cluster in the metadata's key.
            Self::Seata if service.contains('/') => {
                Err(format!("cluster `{service}`: this layout cannot have `/` in a cluster"))
            }
            _ => Ok(()),
        }
    }

    /// What the keys under [`prefixes`](Self::prefixes) say.
    pub(super) fn read(&self, service: &str, live: &[KeyValue], meta: &[KeyValue]) -> Snapshot {
        let mut out = Snapshot::default();
        let prefixes = self.prefixes(service);
        let metadata: BTreeMap<&str, &[u8]> =
            meta.iter().filter_map(|kv| Some((rest(kv, prefixes.get(1)?)?, &*kv.value))).collect();
        let mut ids = BTreeSet::new();
        for kv in live {
            let mut reject = |why: &str| {
                out.reject("etcd", format!("key `{}`: {why}", String::from_utf8_lossy(&kv.key)));
            };
            let Some(name) = rest(kv, &prefixes[0]) else {
                reject("the key is not UTF-8");
                continue;
            };
            let read = match self {
                Self::Seata => match seata_instance(name, &kv.value, &metadata) {
                    Ok(None) => continue,
                    Ok(Some(instance)) => Ok(instance),
                    Err(error) => Err(error),
                },
                Self::Plain { .. } => carrier::from_json(&kv.value),
                // A key further down belongs to another service, whose name goes on after a slash.
                Self::Grpc { .. } if name.contains('/') => continue,
                Self::Grpc { .. } => grpc_instance(name, &kv.value),
            };
            match read {
                Ok(mut instance) => {
                    if instance.incarnation.as_str().is_empty() {
                        instance.incarnation = Incarnation::new(format!("{}.{:x}", kv.create_revision, kv.lease));
                    }
                    if ids.insert(instance.id.clone()) {
                        out.instances.push(instance);
                    } else {
                        reject(&format!("another entry has the id `{}` already", instance.id));
                    }
                }
                Err(why) => reject(&why),
            }
        }
        out
    }

    /// The service a key belongs to.
    pub(super) fn service(&self, kv: &KeyValue) -> Option<String> {
        let root = self.root();
        let name = rest(kv, &root)?;
        match self {
            Self::Seata => {
                let address = std::str::from_utf8(&kv.value).ok()?;
                Some(name.strip_suffix(address)?.strip_suffix('-')?.to_owned())
            }
            Self::Plain { .. } => decode(name.split_once('/')?.0),
            Self::Grpc { .. } => Some(name.rsplit_once('/')?.0.to_owned()),
        }
        .filter(|service| !service.is_empty())
    }
}

/// An entry of Seata's: the key's rest and the value are the same address. Where the value is a shorter end of the rest,
/// the key belongs to a cluster whose name goes on after a hyphen (`default` and `default-2`): `None`.
fn seata_instance(name: &str, value: &[u8], metadata: &BTreeMap<&str, &[u8]>) -> Result<Option<Instance>, String> {
    let value = std::str::from_utf8(value).map_err(|_| "the value is not UTF-8")?;
    if value != name && name.strip_suffix(value).is_some_and(|front| front.ends_with('-')) {
        return Ok(None);
    }
    let address = seata_layout::read_address(value).map_err(|error| error.to_string())?;
    if value != name {
        return Err(format!("the key says `{name}`, the value `{value}`"));
    }
    let map = metadata.get(name).map(|data| seata_layout::read_text(data)).unwrap_or_default();
    Ok(Some(carrier::from_map(address, map)))
}

/// An entry that etcd's Go client reads and writes: `{"Op":0,"Addr":"host:port","Metadata":…}`.
fn grpc_instance(name: &str, value: &[u8]) -> Result<Instance, String> {
    let value: Value = serde_json::from_slice(value).map_err(|error| format!("not JSON: {error}"))?;
    let text = value.get("Addr").and_then(Value::as_str).ok_or("no text `Addr`")?;
    let address: Address = text.parse().map_err(|error| format!("`Addr`: {error}"))?;
    let mut instance = match value.get("Metadata") {
        Some(Value::Object(map)) => {
            let (ours, theirs): (Map<String, Value>, Map<String, Value>) =
                map.clone().into_iter().partition(|(_, value)| value.is_string());
            let ours = ours.into_iter().map(|(key, value)| (key, value.as_str().unwrap_or_default().to_owned()));
            let mut instance = carrier::from_map(address, ours);
            instance.metadata.extend(carrier::metadata_of(&theirs));
            instance
        }
        None | Some(Value::Null) => Instance::new(address),
        // Anything is allowed there; a bare value keeps the field's name.
        Some(Value::String(text)) => Instance::new(address).with_meta("Metadata", text.as_str()),
        Some(other) => Instance::new(address).with_meta("Metadata", MetaValue::Json(other.to_string().into())),
    };
    instance.id = InstanceId::new(name);
    match instance.defect() {
        None => Ok(instance),
        Some(defect) => Err(defect.to_string()),
    }
}

fn rest<'a>(kv: &'a KeyValue, prefix: &[u8]) -> Option<&'a str> {
    std::str::from_utf8(kv.key.strip_prefix(prefix)?).ok()
}

#[cfg(test)]
mod tests;
