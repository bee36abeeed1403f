//! What can be reached: an instance with metadata.
//!
//! The same type describes a service instance read from a registry and a shard replica of MetaServer. It is plain
//! data: nothing here is derived or cached, so two instances are equal exactly when a registry would call them equal.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Stable name of an instance inside its service, unique there. Does not change when weight, health or metadata do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(Box<str>);

impl InstanceId {
    /// Wraps a registry's own identifier.
    pub fn new(id: impl Into<Box<str>>) -> Self {
        Self(id.into())
    }

    /// The identifier as the registry wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for InstanceId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

/// One life of an instance. State such as load, ejection and warm-up belongs to an incarnation, never to an address:
/// the next process that gets the same address starts fresh. Empty where a registry has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(Box<str>);

impl Incarnation {
    /// Wraps whatever the registry changes when an instance is born again (a create revision, a session, a start time).
    pub fn new(incarnation: impl Into<Box<str>>) -> Self {
        Self(incarnation.into())
    }

    /// The text form; empty where the registry has none.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where to connect: a host (name, IPv4 or IPv6, never resolved here) and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    host: Box<str>,
    port: u16,
}

impl Address {
    /// A host without brackets and a port from 1 to 65535.
    ///
    /// # Errors
    /// When the host is empty or holds characters no host has, or the port is 0.
    pub fn new(host: &str, port: u16) -> Result<Self, AddressError> {
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        // A zone suffix (`fe80::1%eth0`) names an interface of the machine that wrote it and means nothing here.
        let host = match host.split_once('%') {
            Some((address, _)) if address.contains(':') => address,
            _ => host,
        };
        if host.is_empty() {
            return Err(AddressError { text: format!("{host}:{port}"), what: "the host is empty" });
        }
        if host
            .contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '[' | ']' | '/' | '@' | '#' | '?'))
        {
            return Err(AddressError { text: host.into(), what: "not a host name or IP address" });
        }
        if host.contains(':') && host.parse::<IpAddr>().is_err() {
            return Err(AddressError { text: host.into(), what: "not an IPv6 address" });
        }
        if port == 0 {
            return Err(AddressError { text: format!("{host}:{port}"), what: "port must be 1 to 65535" });
        }
        Ok(Self { host: host.into(), port })
    }

    /// Host without brackets, as registered.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port, 1 to 65535.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The host as an IP address, when it is one.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Whether both name the same place: hosts compare as IP addresses where both are, else as names ignoring case.
    pub fn same_place(&self, other: &Address) -> bool {
        self.port == other.port
            && match (self.ip(), other.ip()) {
                (Some(a), Some(b)) => a == b,
                _ => self.host.eq_ignore_ascii_case(&other.host),
            }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// `host:port`, split at the last colon, so bare IPv6 (`::1:8091`, as Seata writes it) and `[::1]:8091` both work.
impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let fail = |what| AddressError { text: text.to_owned(), what };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| fail("expected host:port"))?;
        if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err(fail("port must be a number from 1 to 65535"));
        }
        let port = port.parse().map_err(|_| fail("port must be 1 to 65535"))?;
        Address::new(host, port).map_err(|e| fail(e.what))
    }
}

/// An address that cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad address `{text}`: {what}")]
pub struct AddressError {
    text: String,
    what: &'static str,
}

/// Where an instance stands, from coarse to fine. Empty parts are unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Locality {
    /// Region, for example `eu-west`.
    pub region: Box<str>,
    /// Zone inside the region.
    pub zone: Box<str>,
    /// Part of the zone, for example a rack.
    pub subzone: Box<str>,
}

/// One metadata value. Registries that keep only strings give [`MetaValue::Text`]; the others keep what they wrote,
/// because Seata's weight rule treats the number 2.5 and the text "2.5" differently.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MetaValue {
    /// A string, kept byte for byte.
    Text(Box<str>),
    /// A number with its digits as written.
    Number(Box<str>),
    /// A boolean.
    Bool(bool),
    /// A list of strings; declared as `set` it matches by element.
    List(Box<[Box<str>]>),
    /// Anything richer, as JSON text.
    Json(Box<str>),
}

impl MetaValue {
    /// The text form that expressions compare. A list is written as `a,b`.
    pub fn to_text(&self) -> Box<str> {
        match self {
            Self::Text(text) | Self::Number(text) | Self::Json(text) => text.clone(),
            Self::Bool(value) => value.to_string().into(),
            Self::List(items) => items.join(",").into(),
        }
    }
}

impl From<&str> for MetaValue {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for MetaValue {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

/// Metadata in key order. A null value in a source is an absent key.
pub type Metadata = BTreeMap<Box<str>, MetaValue>;

/// Everything known about one instance.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Instance {
    /// Unique inside the service.
    pub id: InstanceId,
    /// Which life of it this is.
    pub incarnation: Incarnation,
    /// Where to connect.
    pub address: Address,
    /// Share of traffic relative to the others; 0 means no new picks. Finite and at most [`WEIGHT_MAX`].
    pub weight: f64,
    /// What the registry or a health check says.
    pub healthy: bool,
    /// Switched off by an operator when false: never picked, not even in panic.
    pub enabled: bool,
    /// The cluster it registered in; empty when unknown.
    pub cluster: Box<str>,
    /// Region, zone, subzone.
    pub locality: Locality,
    /// Everything else.
    pub metadata: Metadata,
}

/// Largest weight accepted: the sum over the largest accepted service still has 20 bits to spare in an `f64`.
pub const WEIGHT_MAX: f64 = 4_294_967_295.0;

/// Longest metadata value accepted, in bytes. Larger than any registry allows except ZooKeeper and Kubernetes.
pub const METADATA_VALUE_MAX: usize = 64 * 1024;

/// Most metadata keys accepted on one instance.
pub const METADATA_KEYS_MAX: usize = 256;

impl Instance {
    /// A healthy, enabled instance of weight 1 with the address as its id.
    pub fn new(address: Address) -> Self {
        Self {
            id: InstanceId::new(address.to_string()),
            incarnation: Incarnation::default(),
            address,
            weight: 1.0,
            healthy: true,
            enabled: true,
            cluster: "".into(),
            locality: Locality::default(),
            metadata: Metadata::new(),
        }
    }

    /// The same instance under another id.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<Box<str>>) -> Self {
        self.id = InstanceId::new(id);
        self
    }

    /// The same instance with another weight.
    #[must_use]
    pub fn with_weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// The same instance with another health.
    #[must_use]
    pub fn with_healthy(mut self, healthy: bool) -> Self {
        self.healthy = healthy;
        self
    }

    /// The same instance in another cluster.
    #[must_use]
    pub fn with_cluster(mut self, cluster: &str) -> Self {
        self.cluster = cluster.into();
        self
    }

    /// The same instance in another zone.
    #[must_use]
    pub fn with_zone(mut self, zone: &str) -> Self {
        self.locality.zone = zone.into();
        self
    }

    /// The same instance with one more metadata value.
    #[must_use]
    pub fn with_meta(mut self, key: &str, value: impl Into<MetaValue>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// What is wrong with this instance, if anything; such an instance is rejected and counted, the others keep working.
    pub fn defect(&self) -> Option<Defect> {
        if self.id.as_str().is_empty() {
            return Some(Defect::EmptyId);
        }
        if !self.weight.is_finite() || self.weight < 0.0 || self.weight > WEIGHT_MAX {
            return Some(Defect::Weight(self.weight));
        }
        if self.metadata.len() > METADATA_KEYS_MAX {
            return Some(Defect::TooManyKeys(self.metadata.len()));
        }
        for (key, value) in &self.metadata {
            let len = match value {
                MetaValue::Text(t) | MetaValue::Number(t) | MetaValue::Json(t) => t.len(),
                MetaValue::Bool(_) => 0,
                MetaValue::List(items) => items.iter().map(|i| i.len() + 1).sum(),
            };
            if len > METADATA_VALUE_MAX {
                return Some(Defect::ValueTooLong { key: key.clone(), len });
            }
        }
        None
    }
}

/// Why an instance was rejected at intake.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    /// The id is empty.
    #[error("the id is empty")]
    EmptyId,
    /// The weight is negative, not finite or beyond [`WEIGHT_MAX`].
    #[error("weight {0} is not between 0 and {WEIGHT_MAX}")]
    Weight(f64),
    /// More than [`METADATA_KEYS_MAX`] keys.
    #[error("{0} metadata keys, at most {METADATA_KEYS_MAX} are accepted")]
    TooManyKeys(usize),
    /// A value beyond [`METADATA_VALUE_MAX`].
    #[error("metadata value of `{key}` has {len} bytes, at most {METADATA_VALUE_MAX} are accepted")]
    ValueTooLong {
        /// The key.
        key: Box<str>,
        /// Its length in bytes.
        len: usize,
    },
    /// Another instance of the same push has this id; the first one was kept.
    #[error("another instance of the same list has this id")]
    DuplicateId,
    /// More instances than a service may have.
    #[error("more than {0} instances in one service")]
    TooMany(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_split_at_the_last_colon_and_lose_brackets_and_zone() {
        for (text, host, port) in [
            ("10.0.0.1:80", "10.0.0.1", 80),
            ("quill.internal:8091", "quill.internal", 8091),
            ("[fd00::7]:9", "fd00::7", 9),
            ("0:0:0:0:0:0:0:1:8091", "0:0:0:0:0:0:0:1", 8091),
            ("[fe80::1%eth0]:80", "fe80::1", 80),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.host(), address.port()), (host, port), "{text}");
            assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
        }
    }

    #[test]
    fn bad_addresses_name_what_is_wrong() {
        for text in
            ["", "host", "host:", "host:0", "host:65536", ":80", "a b:1", "host:-1", "host:+1", "a:b:1", "http://h:80"]
        {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("bad address"), "{text}: {error}");
        }
    }

    #[test]
    fn same_place_compares_ips_as_ips_and_names_without_case() {
        let a: Address = "0:0:0:0:0:0:0:1:8091".parse().unwrap();
        assert!(a.same_place(&"[::1]:8091".parse().unwrap()));
        assert!(!a.same_place(&"[::1]:8092".parse().unwrap()));
        let name: Address = "Quill:1".parse().unwrap();
        assert!(name.same_place(&"quill:1".parse().unwrap()));
    }

    #[test]
    fn defects_are_found_before_they_reach_a_table() {
        let ok = Instance::new("h:1".parse().unwrap());
        assert_eq!(ok.defect(), None);
        for weight in [f64::NAN, f64::INFINITY, -1.0, 5e9] {
            assert!(matches!(ok.clone().with_weight(weight).defect(), Some(Defect::Weight(_))));
        }
        assert_eq!(ok.clone().with_weight(2_147_483_648.0).defect(), None);
        assert_eq!(ok.with_id("").defect(), Some(Defect::EmptyId));
    }
}
