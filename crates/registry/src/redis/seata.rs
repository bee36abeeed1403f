//! Seata's layout in Redis: a live key per instance that is refreshed, a hash with its metadata, a channel.

use std::collections::{BTreeMap, HashMap};

use metaroute_core::instance::{Address, Incarnation, Instance};
use redis::Pipeline;

use crate::carrier::{self, Native};
use crate::seata_layout;

const ROOT: &str = "registry.redis.";

/// Matches every live key, and no more than can be told apart afterwards.
pub(super) const PATTERN: &str = "registry.redis.*";

/// What is said on the channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said<'a> {
    Registered(&'a str),
    Unregistered(&'a str),
}

impl<'a> Said<'a> {
    /// Reads a message. The word stands at the end: a host may have hyphens itself.
    pub(super) fn read(text: &'a str) -> Option<Self> {
        match text.rsplit_once('-')? {
            (address, "register") => Some(Self::Registered(address)),
            (address, "unregister") => Some(Self::Unregistered(address)),
            _ => None,
        }
    }
}

pub(super) fn channel(cluster: &str) -> String {
    format!("{ROOT}{cluster}")
}

pub(super) fn live_key(cluster: &str, address: &str) -> String {
    format!("{ROOT}{cluster}_{address}")
}

pub(super) fn meta_key(cluster: &str, address: &str) -> String {
    format!("{ROOT}{cluster}.meta_{address}")
}

/// Cluster and address of a live key. A cluster may have `_` in its name, an address has none.
pub(super) fn split(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix(ROOT)?.rsplit_once('_').filter(|(cluster, _)| !cluster.is_empty())
}

/// Whether an instance can be said in this layout.
pub(super) fn check(cluster: &str, address: Option<&Address>) -> Result<(), String> {
    if cluster.is_empty() {
        return Err("the cluster has no name".into());
    }
    if cluster.ends_with(".meta") {
        return Err(format!("cluster `{cluster}`: its keys would be the metadata of another cluster"));
    }
    match address {
        Some(address) if address.host().contains('_') => {
            Err(format!("host `{}`: this layout cannot have `_` in a host", address.host()))
        }
        _ => Ok(()),
    }
}

/// Fields of the metadata hash.
pub(super) fn fields(instance: &Instance) -> BTreeMap<String, String> {
    carrier::to_map(instance, Native::default())
}

/// Writes an instance: all or nothing, so that no reader sees one half, and no field of an earlier life stays.
pub(super) fn register(cluster: &str, instance: &Instance, owner: &str, ttl_ms: u64) -> Pipeline {
    let address = seata_layout::address_text(&instance.address);
    let (live, meta) = (live_key(cluster, &address), meta_key(cluster, &address));
    let mut out = redis::pipe();
    out.atomic();
    out.cmd("SET").arg(&live).arg(owner).arg("PX").arg(ttl_ms).ignore();
    write_fields(&mut out, &meta, &fields(instance), Some(ttl_ms));
    out
}

/// What a registration says on the channel.
pub(super) fn registered(address: &str) -> String {
    format!("{address}-register")
}

/// What a goodbye says on the channel.
pub(super) fn unregistered(address: &str) -> String {
    format!("{address}-unregister")
}

/// Replaces the metadata hash.
pub(super) fn write_fields(out: &mut Pipeline, key: &str, fields: &BTreeMap<String, String>, ttl_ms: Option<u64>) {
    out.cmd("DEL").arg(key).ignore();
    if fields.is_empty() {
        return;
    }
    let set = out.cmd("HSET").arg(key);
    for (name, value) in fields {
        set.arg(name).arg(value);
    }
    set.ignore();
    if let Some(ttl_ms) = ttl_ms {
        out.cmd("PEXPIRE").arg(key).arg(ttl_ms).ignore();
    }
}

/// Takes an instance away, its old-style entry too.
pub(super) fn unregister(cluster: &str, address: &str) -> Pipeline {
    let mut out = redis::pipe();
    out.atomic();
    out.cmd("DEL").arg(live_key(cluster, address)).arg(meta_key(cluster, address)).ignore();
    // Before 1.5 a hash with the channel's name held the addresses.
    out.cmd("HDEL").arg(channel(cluster)).arg(address).ignore();
    out
}

/// An instance as its live key and its hash say it.
pub(super) fn read(address: &str, owner: &str, fields: HashMap<Vec<u8>, Vec<u8>>) -> Result<Instance, String> {
    let address = seata_layout::read_address(address).map_err(|error| error.to_string())?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let fields = fields.into_iter().map(|(key, value)| (text(key), text(value)));
    let mut instance = carrier::from_map(address, fields);
    if instance.incarnation.as_str().is_empty() {
        instance.incarnation = Incarnation::new(owner);
    }
    match instance.defect() {
        None => Ok(instance),
        Some(defect) => Err(defect.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows "cluster names containing `_`" and "hosts containing `-`".
    #[test]
    fn names_are_taken_apart_at_the_right_end() {
        assert_eq!(split("registry.redis.default_10.0.0.1:80"), Some(("default", "10.0.0.1:80")));
        assert_eq!(split("registry.redis.my_cluster_10.0.0.1:80"), Some(("my_cluster", "10.0.0.1:80")));
        assert_eq!(split("registry.redis._10.0.0.1:80"), None);
        assert_eq!(split("registry.redis.default"), None);
        assert_eq!(Said::read("tc-1.internal:80-register"), Some(Said::Registered("tc-1.internal:80")));
        assert_eq!(Said::read("tc-1.internal:80-unregister"), Some(Said::Unregistered("tc-1.internal:80")));
        assert_eq!(Said::read("tc-1"), None);
        let host: Address = "a_b:80".parse().expect("an address");
        assert!(check("c", Some(&host)).is_err());
        assert!(check("c.meta", None).is_err());
    }

    #[test]
    fn keys_and_messages_are_byte_for_byte_what_seata_writes() {
        assert_eq!(live_key("default", "10.9.9.2:8091"), "registry.redis.default_10.9.9.2:8091");
        assert_eq!(meta_key("default", "10.9.9.2:8091"), "registry.redis.default.meta_10.9.9.2:8091");
        assert_eq!(channel("default"), "registry.redis.default");
    }

    #[test]
    fn fields_that_are_no_text_do_not_lose_the_instance() {
        let fields = HashMap::from([(b"k".to_vec(), vec![0xff]), (b"metaroute-weight".to_vec(), b"0".to_vec())]);
        let instance = read("10.0.0.1:80", "7@host", fields).expect("it is read");
        assert_eq!((instance.weight, instance.incarnation.as_str()), (0.0, "7@host"));
        assert!(read("nonsense", "", HashMap::new()).is_err());
    }
}
