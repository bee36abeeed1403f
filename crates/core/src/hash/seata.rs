//! The consistent-hash ring of Apache Seata, so that a Rust and a Java client send one key to one server.
//!
//! Ten virtual nodes per server by default, node i hashed from the text of the socket address followed by i, weights
//! ignored. The hash is SHA-256 over the UTF-8 text fed twice, its first eight bytes read as a big-endian signed
//! number; the ring is ordered as signed numbers. The address text is that of releases without metadata in it (Java's
//! `InetSocketAddress`), because the text of the unmerged metadata branch depends on map order.

use std::net::IpAddr;

use sha2::{Digest, Sha256};

use crate::instance::Address;

#[derive(Clone, Debug)]
pub(crate) struct SeataRing {
    nodes: Box<[(i64, u32)]>,
}

/// Seata's hash of a text.
pub(crate) fn seata_hash(text: &str) -> i64 {
    let digest = Sha256::new().chain_update(text).chain_update(text).finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(first)
}

/// `/10.0.0.1:8091`, `/[0:0:0:0:0:0:0:1]:8091`, or for a name that Java could not resolve `name/<unresolved>:8091`.
pub(crate) fn socket_text(address: &Address) -> String {
    match address.ip() {
        Some(IpAddr::V4(ip)) => format!("/{ip}:{}", address.port()),
        Some(IpAddr::V6(ip)) => {
            let groups: Vec<String> = ip.segments().iter().map(|group| format!("{group:x}")).collect();
            format!("/[{}]:{}", groups.join(":"), address.port())
        }
        None => format!("{}/<unresolved>:{}", address.host(), address.port()),
    }
}

impl SeataRing {
    pub(crate) fn new<'a>(members: impl Iterator<Item = &'a Address>, virtual_nodes: u32) -> Self {
        let mut nodes = std::collections::BTreeMap::new();
        for (member, address) in (0u32..).zip(members) {
            let text = socket_text(address);
            for n in 0..virtual_nodes {
                nodes.insert(seata_hash(&format!("{text}{n}")), member);
            }
        }
        Self { nodes: nodes.into_iter().collect() }
    }

    /// The first allowed owner at or after the key's hash, going round once.
    pub(crate) fn lookup(&self, key: &str, allowed: impl Fn(usize) -> bool) -> Option<usize> {
        let hash = seata_hash(key);
        let (before, after) = self.nodes.split_at(self.nodes.partition_point(|&(node, _)| node < hash));
        after.iter().chain(before).map(|&(_, owner)| owner as usize).find(|&owner| allowed(owner))
    }

    /// The part of the hash range of each of `members` members, given which are allowed.
    pub(crate) fn shares(&self, members: usize, allowed: impl Fn(usize) -> bool) -> Vec<f64> {
        let mut shares = vec![0.0; members];
        let live: Vec<_> = self.nodes.iter().filter(|&&(_, owner)| allowed(owner as usize)).collect();
        let Some(&&(mut previous, _)) = live.last() else { return shares };
        for &&(node, owner) in &live {
            let arc = if live.len() == 1 { 2f64.powi(64) } else { node.wrapping_sub(previous) as u64 as f64 };
            shares[owner as usize] += arc / 2f64.powi(64);
            previous = node;
        }
        shares
    }
}
