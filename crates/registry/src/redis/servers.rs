//! Which server has a key: the one of the address, the master that sentinels name, or the node of a cluster that has
//! the key's slot.
//!
//! All three hand out one connection that works until it breaks. Who needs one after that asks again, and the question
//! where the key is now is asked anew with it; so a failover looks like any other lost connection.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{RedisConnectionInfo, Value};
use tokio::time::sleep;

use super::link::{Link, string};
use crate::driver::{DriverError, ErrorKind};
use crate::joint::Joint;
use crate::registry::ConnectError;
use crate::socket::Socket;
use crate::tls::Tls;
use crate::url::Host;

/// How often the sentinels are asked whether the master is still the same. A master that was demoted ends its connections;
/// one that was cut off together with us does not.
const CHECK: Duration = Duration::from_secs(5);
/// Slots of a cluster.
const SLOTS: u16 = 16384;

/// The servers of one address.
pub(super) struct Servers {
    kind: Kind,
    tls: Tls,
    info: RedisConnectionInfo,
    /// The connection to each node that was needed; a single server and a master have the name "".
    links: Mutex<HashMap<Box<str>, Shared>>,
}

/// A connection that many use and one makes.
type Shared = Arc<Joint<Arc<Link>>>;

enum Kind {
    One(Socket),
    Sentinels(Arc<Sentinels>),
    Cluster(Cluster),
}

impl Servers {
    /// One server.
    pub(super) fn one(host: &Host, tls: Tls, info: RedisConnectionInfo) -> Result<Self, ConnectError> {
        let kind = Kind::One(Socket::new(host, 6379, &tls, None)?);
        Ok(Self { kind, tls, info, links: Mutex::default() })
    }

    /// Whichever server the sentinels say is the master of that name; `login` is how they want to be talked to.
    pub(super) fn sentinels(
        hosts: &[Host],
        master: &str,
        login: RedisConnectionInfo,
        tls: Tls,
        info: RedisConnectionInfo,
    ) -> Result<Self, ConnectError> {
        let sockets = hosts.iter().map(|host| Socket::new(host, 26379, &tls, None)).collect::<Result<_, _>>()?;
        let sentinels = Sentinels { sockets, master: master.into(), login, first: AtomicUsize::new(0) };
        Ok(Self { kind: Kind::Sentinels(Arc::new(sentinels)), tls, info, links: Mutex::default() })
    }

    /// The nodes of a cluster, some of which are named.
    pub(super) fn cluster(hosts: &[Host], tls: Tls, info: RedisConnectionInfo) -> Result<Self, ConnectError> {
        // What is wrong with the settings shows now.
        for host in hosts {
            Socket::new(host, 6379, &tls, None)?;
        }
        let cluster = Cluster { seeds: hosts.to_vec(), nodes: Mutex::default(), slots: Joint::default() };
        Ok(Self { kind: Kind::Cluster(cluster), tls, info, links: Mutex::default() })
    }

    #[cfg(test)]
    pub(super) fn info(&self) -> &RedisConnectionInfo {
        &self.info
    }

    /// The connection to the server that has a key.
    pub(super) async fn link(&self, key: &str) -> Result<Arc<Link>, DriverError> {
        match &self.kind {
            Kind::One(socket) => self.reach("", Link::open(socket, &self.info, false)).await,
            Kind::Sentinels(sentinels) => self.reach("", self.open_master(sentinels)).await,
            Kind::Cluster(cluster) => {
                let slot = slot(key.as_bytes());
                let mut node = cluster.node(slot, self).await?;
                if self.drop_broken(&node.to_string()).await? {
                    // It may be somewhere else by now.
                    cluster.forget().await;
                    node = cluster.node(slot, self).await?;
                }
                let link = self.reach(&node.to_string(), self.open(&node, true)).await;
                if link.is_err() {
                    cluster.forget().await;
                }
                link
            }
        }
    }

    /// The connection that there is, or a new one.
    async fn reach(
        &self,
        name: &str,
        open: impl Future<Output = Result<Link, DriverError>>,
    ) -> Result<Arc<Link>, DriverError> {
        let joint = self.joint(name);
        let mut held = joint.enter().await?;
        if let Some(link) = held.value.as_ref().filter(|link| !link.is_broken()) {
            return Ok(Arc::clone(link));
        }
        held.value = None;
        let opened = open.await;
        let link = Arc::new(held.outcome(opened)?);
        held.value = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Lets go of a connection that broke; whether there was one is told to the first who asks.
    async fn drop_broken(&self, name: &str) -> Result<bool, DriverError> {
        let joint = self.joint(name);
        let mut held = joint.enter().await?;
        Ok(held.value.take_if(|link| link.is_broken()).is_some())
    }

    /// Ends every connection.
    pub(super) async fn close(&self) {
        let links: Vec<_> = self.links.lock().unwrap_or_else(PoisonError::into_inner).drain().collect();
        for (_, link) in links {
            link.enter_anyway().await.value = None;
        }
    }

    fn joint(&self, name: &str) -> Shared {
        // Every change is one call on the map.
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(links.entry(name.into()).or_default())
    }

    async fn open(&self, host: &Host, in_cluster: bool) -> Result<Link, DriverError> {
        let socket = Socket::new(host, 6379, &self.tls, None)
            .map_err(|error| DriverError::new(ErrorKind::Invalid, error.to_string()))?;
        Link::open(&socket, &self.info, in_cluster).await
    }

    async fn open_master(&self, sentinels: &Arc<Sentinels>) -> Result<Link, DriverError> {
        let master = sentinels.find().await?;
        let mut link = self.open(&master, false).await?;
        match link.ask::<Vec<Value>>(&redis::cmd("ROLE")).await {
            Ok(role) if role.first().and_then(string).as_deref() == Some("master") => {}
            Ok(_) => {
                let message = format!("Redis at {master} is not yet the master that the sentinels say it is");
                return Err(DriverError::new(ErrorKind::Unreachable, message));
            }
            // Who may not ask finds out when writing.
            Err(error) if error.kind() == ErrorKind::Denied => {}
            Err(error) => return Err(error),
        }
        let sentinels = Arc::clone(sentinels);
        link.give_up_after(async move {
            loop {
                sleep(CHECK).await;
                if sentinels.find().await.is_ok_and(|now| now != master) {
                    return;
                }
            }
        });
        Ok(link)
    }
}

/// Who knows which server is the master.
struct Sentinels {
    sockets: Vec<Socket>,
    master: Box<str>,
    login: RedisConnectionInfo,
    /// The one that answered last.
    first: AtomicUsize,
}

impl Sentinels {
    /// Where the master is, as the first sentinel says that answers.
    async fn find(&self) -> Result<Host, DriverError> {
        let first = self.first.load(Ordering::Relaxed);
        let mut why: Option<DriverError> = None;
        for step in 0..self.sockets.len() {
            let at = (first + step) % self.sockets.len();
            match self.ask(&self.sockets[at]).await {
                Ok(host) => {
                    self.first.store(at, Ordering::Relaxed);
                    return Ok(host);
                }
                // That nobody knows the name is only known when all were asked.
                Err(error) if why.as_ref().is_none_or(|why| why.kind() == ErrorKind::Invalid) => why = Some(error),
                Err(_) => {}
            }
        }
        Err(why.unwrap_or_else(|| DriverError::new(ErrorKind::Invalid, "there are no sentinels")))
    }

    async fn ask(&self, socket: &Socket) -> Result<Host, DriverError> {
        let link = Link::open(socket, &self.login, false).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.master);
        let Some((name, port)) = link.ask::<Option<(String, u16)>>(&question).await? else {
            let message = format!("the sentinel at {} knows no master `{}`", socket.name(), self.master);
            return Err(DriverError::new(ErrorKind::Invalid, message));
        };
        Ok(Host { name: name.into(), port: Some(port) })
    }
}

/// Who has which keys.
struct Cluster {
    seeds: Vec<Host>,
    /// Nodes that were heard of; they are asked when no seed answers.
    nodes: Mutex<Vec<Host>>,
    slots: Joint<Arc<Slots>>,
}

/// First and last slot of each range, and the node that has it.
struct Slots(Vec<(u16, u16, Host)>);

impl Cluster {
    async fn node(&self, slot: u16, servers: &Servers) -> Result<Host, DriverError> {
        let mut held = self.slots.enter().await?;
        let slots = match &held.value {
            Some(slots) => Arc::clone(slots),
            None => {
                let read = self.read(servers).await;
                let slots = Arc::new(held.outcome(read)?);
                held.value = Some(Arc::clone(&slots));
                slots
            }
        };
        let found = slots.0.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        if let Some((_, _, host)) = found {
            return Ok(host.clone());
        }
        held.value = None;
        Err(DriverError::new(ErrorKind::Unreachable, format!("no node of the Redis Cluster has slot {slot} now")))
    }

    async fn forget(&self) {
        self.slots.enter_anyway().await.value = None;
    }

    async fn read(&self, servers: &Servers) -> Result<Slots, DriverError> {
        let known = self.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut why = None;
        for host in self.seeds.iter().chain(known.iter().filter(|host| !self.seeds.contains(host))) {
            let answer = async {
                let link = servers.open(host, true).await?;
                link.ask::<Value>(redis::cmd("CLUSTER").arg("SLOTS")).await
            };
            match answer.await {
                Ok(answer) => {
                    let slots = Slots::read(&answer, host);
                    let mut nodes: Vec<Host> = slots.0.iter().map(|(_, _, host)| host.clone()).collect();
                    nodes.sort_by_key(Host::to_string);
                    nodes.dedup();
                    *self.nodes.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
                    return Ok(slots);
                }
                Err(error) => why = why.or(Some(error)),
            }
        }
        Err(why.unwrap_or_else(|| DriverError::new(ErrorKind::Unreachable, "the cluster has no nodes")))
    }
}

impl Slots {
    /// Reads the answer to `CLUSTER SLOTS`: ranges with their master first. A node that does not know its own name has the one it was
    /// asked under.
    fn read(answer: &Value, asked: &Host) -> Self {
        let range = |value: &Value| {
            let Value::Array(parts) = value else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice() else { return None };
            let [name, Value::Int(port), ..] = master.as_slice() else { return None };
            let name = string(name).filter(|name| !name.is_empty() && name != "?");
            let name = name.map_or_else(|| asked.name.clone(), Into::into);
            let host = Host { name, port: Some(u16::try_from(*port).ok()?) };
            Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, host))
        };
        let Value::Array(ranges) = answer else { return Self(Vec::new()) };
        Self(ranges.iter().filter_map(range).collect())
    }
}

/// The slot of a key: of what stands between its first braces, where something does.
fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}').filter(|close| *close > 0)?;
        Some(&rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM, which Redis Cluster's specification names.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(
            sum ^ (u16::from(*byte) << 8),
            |sum, _| if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the specification and of `CLUSTER KEYSLOT`.
    #[test]
    fn keys_have_the_slots_that_redis_gives_them() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"somekey"), 11058);
        assert_eq!(slot(b"foo{hash_tag}"), 2515);
        assert_eq!(slot(b"metaroute:{orders}:index"), slot(b"orders"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS, "empty braces are no tag");
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
    }

    #[test]
    fn slots_are_read_whatever_else_is_said() {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |name: Value, port| Value::Array(vec![name, Value::Int(port), text("id"), Value::Array(vec![])]);
        let range = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let answer = Value::Array(vec![
            range(0, 99, node(text("10.0.0.1"), 7000)),
            range(100, 199, node(text(""), 7001)),
            range(200, 299, node(Value::Nil, 7002)),
            range(300, 399, node(text("10.0.0.9"), 70000)),
            Value::Nil,
        ]);
        let asked = Host { name: "seed".into(), port: Some(1) };
        let read: Vec<String> =
            Slots::read(&answer, &asked).0.iter().map(|(first, last, host)| format!("{first}-{last} {host}")).collect();
        assert_eq!(read, ["0-99 10.0.0.1:7000", "100-199 seed:7001", "200-299 seed:7002"]);
        assert!(Slots::read(&Value::Nil, &asked).0.is_empty());
    }
}
