//! From records to instances.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use hickory_resolver::proto::rr::{Name, RData, Record};
use metaroute_core::instance::{Address, Instance, MetaValue};

use crate::document::Note;
use crate::driver::DriverError;

/// What one SRV record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Lower case, without the final dot.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) priority: u16,
    pub(super) weight: u16,
    /// The instance's own name, where it has one.
    pub(super) label: Option<String>,
    pub(super) pairs: BTreeMap<String, String>,
}

/// A target and its addresses, or why there are none.
pub(super) struct Listed {
    pub(super) target: Target,
    pub(super) addresses: Result<Vec<IpAddr>, DriverError>,
    pub(super) ttl: Option<u32>,
}

/// The smaller one of those that are there.
pub(super) fn least(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

pub(super) fn least_ttl(records: &[Record]) -> Option<u32> {
    records.iter().map(|record| record.ttl).min()
}

/// A name as it is compared and shown.
fn plain(name: &Name) -> String {
    let mut text = name.to_lowercase().to_utf8();
    if text.ends_with('.') {
        text.pop();
    }
    text
}

/// The targets of SRV records. The root as a target says that the service is not offered.
pub(super) fn targets(records: &[Record]) -> Vec<Target> {
    let mut targets: Vec<Target> = Vec::with_capacity(records.len());
    for record in records {
        let RData::SRV(srv) = &record.data else { continue };
        if srv.target.is_root() {
            continue;
        }
        let target = Target {
            host: plain(&srv.target),
            port: srv.port,
            priority: srv.priority,
            weight: srv.weight,
            label: None,
            pairs: BTreeMap::new(),
        };
        targets.push(target);
    }
    targets
}

/// Addresses that came along with an answer, by name, with the least TTL.
pub(super) fn addresses(additionals: &[Record]) -> HashMap<String, (Vec<IpAddr>, u32)> {
    let mut out: HashMap<String, (Vec<IpAddr>, u32)> = HashMap::new();
    for record in additionals {
        let Some(ip) = record.data.ip_addr() else { continue };
        let (addresses, ttl) = out.entry(plain(&record.name)).or_insert_with(|| (Vec::new(), record.ttl));
        addresses.push(ip);
        *ttl = record.ttl.min(*ttl);
    }
    out
}

/// `key=value` strings of TXT records (RFC 6763, 6): the first of several equal keys counts, keys have no case, a string
/// without `=` is a flag, one without a key is nothing.
pub(super) fn pairs(records: &[Record]) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let strings = records.iter().filter_map(|record| match &record.data {
        RData::TXT(text) => Some(text.txt_data.iter()),
        _ => None,
    });
    for string in strings.flatten() {
        let (key, value) = match string.iter().position(|byte| *byte == b'=') {
            Some(at) => (&string[..at], String::from_utf8_lossy(&string[at + 1..]).into_owned()),
            None => (&string[..], "true".to_owned()),
        };
        if !key.is_empty() && key.iter().all(|byte| (b' '..=b'~').contains(byte)) {
            let key = String::from_utf8_lossy(key).to_ascii_lowercase();
            out.entry(key).or_insert(value);
        }
    }
    out
}

/// The first label of an instance's name, which may hold anything, dots and spaces too.
pub(super) fn label(instance: &Name) -> String {
    instance.iter().next().map_or_else(String::new, |label| String::from_utf8_lossy(label).into_owned())
}

/// The service that a PTR record below `_services._dns-sd._udp` announces, if it is of this protocol.
pub(super) fn announced(record: &Record, proto: &str) -> Option<Box<str>> {
    let RData::PTR(kind) = &record.data else { return None };
    let mut labels = kind.iter().map(String::from_utf8_lossy);
    let (service, its_proto) = (labels.next()?, labels.next()?);
    let same = its_proto.strip_prefix('_').is_some_and(|its_proto| its_proto.eq_ignore_ascii_case(proto));
    same.then(|| service.strip_prefix('_').map(|service| service.to_ascii_lowercase().into())).flatten()
}

pub(super) fn note(target: &Target, why: &DriverError) -> Note {
    Note {
        code: "unreadable_instance",
        message: format!("target `{}:{}`: {why}", target.host, target.port),
        file: "dns".into(),
        at: None,
    }
}

/// Instances in the order of their ids, with the weights of RFC 2782.
pub(super) fn instances(found: Vec<(Target, Vec<IpAddr>)>, lowest_only: bool) -> Vec<Instance> {
    let lowest = found.iter().map(|(target, _)| target.priority).min();
    // In the RFC's selection the records of weight 0 of one priority have one part in (sum of the others + 1).
    let mut zeros: HashMap<u16, usize> = HashMap::new();
    for (target, _) in found.iter().filter(|(target, _)| target.weight == 0) {
        *zeros.entry(target.priority).or_default() += 1;
    }
    let mut out: BTreeMap<String, Instance> = BTreeMap::new();
    for (target, mut addresses) in found {
        addresses.sort();
        addresses.dedup();
        let weight = match target.weight {
            _ if lowest_only && Some(target.priority) != lowest => 0.0,
            0 => 1.0 / zeros.get(&target.priority).copied().unwrap_or(1) as f64,
            weight => f64::from(weight),
        };
        let share = weight / addresses.len() as f64;
        for ip in &addresses {
            let Ok(address) = Address::new(&ip.to_string(), target.port) else { continue };
            let name = match &target.label {
                Some(label) => label.clone(),
                None => format!("{}:{}", target.host, target.port),
            };
            let id = if addresses.len() > 1 { format!("{name}/{ip}") } else { name };
            let mut instance = Instance::new(address).with_id(id.clone()).with_weight(share);
            for (key, value) in &target.pairs {
                match &**key {
                    "zone" => instance.locality.zone = value.as_str().into(),
                    "region" => instance.locality.region = value.as_str().into(),
                    _ => {}
                }
                instance = instance.with_meta(key, value.as_str());
            }
            instance = instance
                .with_meta("target", target.host.as_str())
                .with_meta("priority", MetaValue::Number(target.priority.to_string().into()));
            // The same target and port twice is one instance; the more preferred record of the two counts.
            match out.get(&id) {
                Some(other) if other.weight >= instance.weight => {}
                _ => drop(out.insert(id, instance)),
            }
        }
    }
    out.into_values().collect()
}
