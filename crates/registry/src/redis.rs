//! Redis and Valkey: instances as keys that expire, refreshed by their owner.
//!
//! # Address
//!
//! `redis://[USER:PASSWORD@]HOST[:6379][/DB][?PARAMETERS]`, `rediss://…` with TLS, version 6 or newer. A user is one of Redis's
//! access lists; `redis://:PASSWORD@…` is the default user.
//!
//! ```text
//! redis://10.0.0.1                                                       one server
//! redis://:PASSWORD@10.0.0.1:26379,10.0.0.2:26379/0?sentinel=mymaster     the master that these sentinels name
//! redis://10.0.0.1:7000,10.0.0.2:7000?cluster=true&layout=plain           a cluster, found through these nodes
//! ```
//!
//! | parameter | meaning | default |
//! |---|---|---|
//! | `layout` | `seata` or `plain`, see below | `seata` |
//! | `prefix` | what the keys of `plain` begin with | `metaroute` |
//! | `ttl` | how long an instance outlives its owner; refreshed every 2/5 of it | `5s`, as Seata |
//! | `rescan` | how often everything is looked at, whatever was announced | 2/5 of `ttl` |
//! | `sentinel` | the hosts are sentinels (port 26379), and this is the name of the master | none |
//! | `sentinel-user`, `sentinel-password` | how to log in at the sentinels | not at all |
//! | `cluster` | the hosts are nodes of a Redis Cluster | `false` |
//! | `tls`, `ca`, `cert`, `key` | TLS, its roots, a client certificate; for sentinels too | off for `redis`, on for `rediss` |
//!
//! # Layouts
//!
//! **`seata`**, what Seata 2.x writes and reads; the service is Seata's cluster:
//!
//! ```text
//! registry.redis.<cluster>_<ip:port>         string  owner, expires after ttl
//! registry.redis.<cluster>.meta_<ip:port>    hash    metadata as text, expires with it; only where there is metadata
//! registry.redis.<cluster>                   channel <ip:port>-register, <ip:port>-unregister
//! ```
//!
//! The owner is `pid@host` as Seata writes it, followed by `/` and a number per registration: it is the incarnation. All
//! keys of a registration are written in one transaction after the old hash was removed, the message follows. A refresh
//! that finds the live key or the hash gone writes all of it again. Released Seata servers have no metadata, never delete
//! their key when they unregister, and 2.6.0 even goes on refreshing it: an `-unregister` message hides the address for one
//! `ttl` and a second, after that what the keys say counts again. We delete both keys. A cluster may have `_` in its name,
//! a host cannot; a cluster cannot end in `.meta`. An instance is its address: two ids at one address are one instance. Of
//! two processes that register the same one the newest wins; the older one leaves it alone until it is gone.
//!
//! **`plain`**, our own:
//!
//! ```text
//! <prefix>:{<service>}:inst:<id>    string  one JSON document, expires after ttl
//! <prefix>:{<service>}:index        set     ids; those without a key are removed by readers
//! <prefix>:{<service>}              channel the id that changed
//! <prefix>:services                 set     services
//! ```
//!
//! Nothing is lost in it, and a service without instances is told from one that never was.
//!
//! # Sentinels and clusters
//!
//! The first sentinel that answers says where the master is, and the server has to say the same of itself. A demoted master
//! ends its connections; whether another one was chosen is asked every 5 s besides. After a failover what replication had
//! not carried over is registered again, and subscribers read everything anew. Until then they keep the last list, as after
//! any loss.
//!
//! In a cluster the keys of a service are on one node, found by their slot, and the index of services on another. A key that
//! moved, or whose node was replaced, is looked for again. `layout=plain` only: the keys of Seata's layout lie on many nodes,
//! and Seata's own client cannot use a cluster anyway. There are no databases but 0, and a service's name cannot
//! begin with `}`.
//!
//! # Following a service
//!
//! Messages wake a look at once; without any there is one every `rescan`, because messages are lost while a connection is
//! away, never sent when a process dies, and may be forbidden. The key space is walked with `SCAN` in steps (never
//! `KEYS`), once per `rescan` for all services of a connection together. Where it is large and shared, raise `rescan` or
//! use `plain`, which needs no walk. An unanswered command is given up after 5 s, so a half-open connection is noticed
//! within `rescan` and 5 s.
//!
//! # Limits
//!
//! Keys and values of an instance's metadata together: 65,536 characters. Keys that begin with `metaroute-` are reserved
//! in `seata`.
//!
//! # Proven against
//!
//! Redis 7.0 (Debian) with `redis-cli`; Seata's released client 2.6.0 in both directions, and the registration of a real Seata
//! server 2.0.0. Failovers by three sentinels, and a cluster of three masters and three replicas with failovers and moved slots.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::redis::{ProtocolVersion, RedisConnectionInfo, Value};
use metaroute_core::instance::{Address, Incarnation, Instance, InstanceId};
use tokio::time::Instant;

use crate::backend::{Params, bad};
use crate::carrier::{self, RESERVED};
use crate::driver::{Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Lease, Limits, Renewal, Seen};
use crate::holdings::{self, Holdings};
use crate::registry::ConnectError;
use crate::seata_layout;
use crate::tls::Tls;
use crate::url::RegistryUrl;

mod link;
mod plain;
mod reading;
mod seata;
mod servers;

use link::Link;
use plain::Keys;
use reading::Rumours;
use servers::Servers;

/// A connection to a Redis server, or to several that belong together.
pub(crate) struct Redis {
    servers: Servers,
    in_cluster: bool,
    layout: Layout,
    ttl: Duration,
    rescan: Duration,
    /// What was registered here.
    holdings: Holdings<Holding>,
    /// What messages said about a cluster, by address.
    rumours: Mutex<HashMap<Box<str>, Rumours>>,
    process: String,
    lives: AtomicU64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Layout {
    Seata,
    Plain { prefix: Box<str> },
}

#[derive(Clone)]
struct Holding {
    address: Address,
    /// What the live key, or the document, says about whose it is.
    owner: Box<str>,
    /// The incarnation that the instance named itself, if it did; the document says that instead.
    incarnation: Incarnation,
}

/// Who has the key of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Nobody,
    Us,
    Other,
}

impl Redis {
    /// Reads the address; nothing is contacted.
    pub(crate) fn new(url: &RegistryUrl) -> Result<Self, ConnectError> {
        let mut params = Params::of(url);
        let prefix = params.text("prefix");
        let layout = match params.text("layout") {
            None | Some("seata") => {
                if prefix.is_some() {
                    return Err(bad("`prefix` has no meaning with `layout=seata`, whose keys are Seata's"));
                }
                Layout::Seata
            }
            Some("plain") => Layout::Plain { prefix: prefix.unwrap_or("metaroute").into() },
            Some(other) => return Err(bad(format!("parameter `layout={other}`: expected `seata` or `plain`"))),
        };
        let ttl = params.duration("ttl", Duration::from_secs(5))?;
        let rescan = params.duration("rescan", ttl * 2 / 5)?;
        let tls = Tls::of(&mut params, url.tls())?;
        let sentinel = params.text("sentinel");
        let sentinel_user = params.text("sentinel-user");
        let sentinel_password = params.secret("sentinel-password")?;
        let in_cluster = params.switch("cluster", false)?;
        params.finish()?;
        let mut info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
        if !url.path().is_empty() {
            let db = url.path().parse().ok().filter(|db| *db >= 0);
            info = info.set_db(db.ok_or_else(|| bad(format!("`/{}` is no database number", url.path())))?);
        }
        if let Some(user) = url.user() {
            info = info.set_username(user);
        }
        if let Some(password) = url.password() {
            info = info.set_password(password.reveal().map_err(|error| bad(error.to_string()))?);
        } else if url.user().is_some() {
            return Err(bad("a user needs a password: write `redis://USER:PASSWORD@…`"));
        }
        let servers = match (sentinel, in_cluster, url.hosts()) {
            (Some(_), true, _) => return Err(bad("`sentinel` and `cluster=true`: a cluster has no sentinels")),
            (None, _, _) if sentinel_user.is_some() || sentinel_password.is_some() => {
                return Err(bad("`sentinel-user` and `sentinel-password` need `sentinel=MASTER`"));
            }
            (Some(""), ..) => return Err(bad("`sentinel` is the name of the master, for example `sentinel=mymaster`")),
            (Some(master), false, hosts) => {
                let mut login = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
                if let Some(user) = sentinel_user {
                    login = login.set_username(user);
                }
                if let Some(password) = &sentinel_password {
                    login = login.set_password(password);
                } else if sentinel_user.is_some() {
                    return Err(bad("`sentinel-user` needs `sentinel-password`"));
                }
                Servers::sentinels(hosts, master, login, tls, info)?
            }
            (None, true, _) if layout == Layout::Seata => {
                return Err(bad("a cluster needs `layout=plain`: the keys of Seata's layout lie on many nodes"));
            }
            (None, true, _) if info.db() != 0 => return Err(bad("a cluster has no databases but 0")),
            (None, true, hosts) => Servers::cluster(hosts, tls, info)?,
            (None, false, [host]) => Servers::one(host, tls, info)?,
            (None, false, _) => {
                let message = "several servers are sentinels or a cluster: add `sentinel=MASTER` or `cluster=true`";
                return Err(bad(message));
            }
        };
        let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host_name = if host_name.trim().is_empty() { "localhost" } else { host_name.trim() };
        Ok(Self {
            servers,
            in_cluster,
            layout,
            ttl,
            rescan,
            holdings: Holdings::default(),
            rumours: Mutex::default(),
            // In containers every process is number 1 on a host of the same name, so some chance belongs to it.
            process: format!("{}@{host_name}/{:x}", std::process::id(), rand::random::<u64>()),
            lives: AtomicU64::new(0),
        })
    }

    fn ttl_ms(&self) -> u64 {
        u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX)
    }

    /// The connection to the server that has a service, a new one if it broke.
    async fn link(&self, service: &str) -> Result<Arc<Link>, DriverError> {
        match &self.layout {
            Layout::Seata => self.servers.link("").await,
            Layout::Plain { prefix } => self.servers.link(Keys::new(prefix, service).channel()).await,
        }
    }

    /// Enters a service into the index of them.
    async fn enter(&self, prefix: &str, service: &str) -> Result<(), DriverError> {
        let index = plain::services(prefix);
        let link = self.servers.link(&index).await?;
        link.ask::<Value>(::redis::cmd("SADD").arg(&index).arg(service)).await.map(|_| ())
    }

    fn check(&self, service: &str, instance: Option<&Instance>) -> Result<(), DriverError> {
        let invalid = |why: String| DriverError::new(ErrorKind::Invalid, why);
        if let Some(instance) = instance {
            self.limits().check(instance)?;
        }
        match self.layout {
            Layout::Seata => seata::check(service, instance.map(|instance| &instance.address)).map_err(invalid),
            Layout::Plain { .. } if service.is_empty() => Err(invalid("the service has no name".into())),
            Layout::Plain { .. } if self.in_cluster && service.starts_with('}') => {
                Err(invalid(format!("service `{service}`: its keys would not be on one node of the cluster")))
            }
            Layout::Plain { .. } => Ok(()),
        }
    }

    async fn register(&self, service: &str, instance: &Instance) -> Result<Lease, DriverError> {
        self.check(service, Some(instance))?;
        let lease = Lease { renew_every: Some(self.ttl * 2 / 5) };
        let again = self.holdings.get(service, &instance.id);
        let link = self.link(service).await?;
        if let Some(before) = &again
            && self.owner(&link, service, instance, before).await? == Owner::Other
        {
            // Registered later than here: the newest registration wins.
            return Ok(lease);
        }
        let owner = {
            let mut holdings = self.holdings.lock();
            if self.layout == Layout::Seata {
                // Another id at the same address is replaced, and must not take this one with it when it goes.
                holdings.retain(|(name, id), holding| {
                    **name != *service || *id == instance.id || holding.address != instance.address
                });
            }
            // Before the answer: it may be lost, and the instance be there all the same.
            let holding = holdings.entry(holdings::key(service, &instance.id)).or_insert_with(|| {
                let life = self.lives.fetch_add(1, Ordering::Relaxed);
                Holding {
                    address: instance.address.clone(),
                    owner: format!("{}.{life}", self.process).into(),
                    incarnation: Incarnation::default(),
                }
            });
            holding.address = instance.address.clone();
            holding.incarnation = instance.incarnation.clone();
            holding.owner.clone()
        };
        match &self.layout {
            Layout::Seata => {
                let commands = seata::register(service, instance, &owner, self.ttl_ms());
                let text = seata::registered(&seata_layout::address_text(&instance.address));
                link.change::<()>(&commands, &seata::channel(service), &text).await?;
                // The same instance at another address: keyed by addresses it would be there twice.
                if let Some(old) = again.map(|before| before.address).filter(|old| *old != instance.address) {
                    let old = seata_layout::address_text(&old);
                    let (commands, text) = (seata::unregister(service, &old), seata::unregistered(&old));
                    link.change::<()>(&commands, &seata::channel(service), &text).await?;
                }
            }
            Layout::Plain { prefix } => {
                let keys = Keys::new(prefix, service);
                let commands = plain::register(&keys, instance, &owner, self.ttl_ms());
                let written = link.change::<()>(&commands, keys.channel(), instance.id.as_str());
                tokio::try_join!(written, self.enter(prefix, service))?;
            }
        }
        Ok(lease)
    }

    /// Who has the key of an instance that was registered here.
    async fn owner(
        &self,
        link: &Link,
        service: &str,
        instance: &Instance,
        held: &Holding,
    ) -> Result<Owner, DriverError> {
        let key = match &self.layout {
            Layout::Seata => seata::live_key(service, &seata_layout::address_text(&held.address)),
            Layout::Plain { prefix } => Keys::new(prefix, service).instance(instance.id.as_str()),
        };
        let Some(there) = link.ask::<Option<Vec<u8>>>(::redis::cmd("GET").arg(&key)).await? else {
            return Ok(Owner::Nobody);
        };
        let ours = match &self.layout {
            Layout::Seata => *there == *held.owner.as_bytes(),
            Layout::Plain { .. } => match carrier::from_json(&there) {
                Ok(there) => {
                    let said = there.incarnation.as_str();
                    said == &*held.owner || (!said.is_empty() && said == instance.incarnation.as_str())
                }
                // Nobody can read it, so nobody owns it.
                Err(_) => return Ok(Owner::Nobody),
            },
        };
        Ok(if ours { Owner::Us } else { Owner::Other })
    }

    async fn refresh(&self, service: &str, instance: &Instance) -> Result<Renewal, DriverError> {
        let held = self.holdings.get(service, &instance.id);
        let Some(held) = held else { return Ok(Renewal::Lost) };
        let link = self.link(service).await?;
        match self.owner(&link, service, instance, &held).await? {
            Owner::Nobody => return Ok(Renewal::Lost),
            // It is refreshed by whoever registered it later.
            Owner::Other => return Ok(Renewal::Kept),
            Owner::Us => {}
        }
        let mut refresh = ::redis::pipe();
        let kept = match &self.layout {
            Layout::Seata => {
                let address = seata_layout::address_text(&instance.address);
                refresh.cmd("PEXPIRE").arg(seata::live_key(service, &address)).arg(self.ttl_ms());
                refresh.cmd("PEXPIRE").arg(seata::meta_key(service, &address)).arg(self.ttl_ms());
                let (live, meta): (bool, bool) = link.ask_all(&refresh).await?;
                // A lost hash is as bad as a lost key: the metadata would be gone until the next start.
                live && (meta || seata::fields(instance).is_empty())
            }
            Layout::Plain { prefix } => {
                let keys = Keys::new(prefix, service);
                refresh.cmd("PEXPIRE").arg(keys.instance(instance.id.as_str())).arg(self.ttl_ms());
                plain::enter(&mut refresh, &keys, instance.id.as_str());
                // At once: where the way is long, one after the other would take half of the time there is.
                let ((live,), ()) = tokio::try_join!(link.ask_all::<(bool,)>(&refresh), self.enter(prefix, service))?;
                live
            }
        };
        Ok(if kept { Renewal::Kept } else { Renewal::Lost })
    }

    /// Where an instance is: where it was registered from here, or where it is found.
    async fn address(&self, link: &Link, service: &str, id: &InstanceId) -> Result<Option<Address>, DriverError> {
        if let Some(holding) = self.holdings.get(service, id) {
            return Ok(Some(holding.address));
        }
        let found = self.look(link, service, Instant::now()).await?.snapshot.instances;
        Ok(found.into_iter().find(|instance| instance.id == *id).map(|instance| instance.address))
    }

    async fn remove(&self, service: &str, id: &InstanceId) -> Result<(), DriverError> {
        let held = self.holdings.get(service, id);
        let link = self.link(service).await?;
        let theirs = match &held {
            Some(held) => {
                let mut instance = Instance::new(held.address.clone());
                instance.id = id.clone();
                instance.incarnation = held.incarnation.clone();
                // What another process registered meanwhile is not ours to remove.
                self.owner(&link, service, &instance, held).await? == Owner::Other
            }
            // What was never registered here is removed whoever did: that was asked for.
            None => false,
        };
        if !theirs {
            match &self.layout {
                Layout::Seata => {
                    if let Some(address) = self.address(&link, service, id).await? {
                        let address = seata_layout::address_text(&address);
                        let commands = seata::unregister(service, &address);
                        let text = seata::unregistered(&address);
                        link.change::<()>(&commands, &seata::channel(service), &text).await?;
                    }
                }
                Layout::Plain { prefix } => {
                    let keys = Keys::new(prefix, service);
                    let commands = plain::unregister(&keys, id.as_str());
                    link.change::<()>(&commands, keys.channel(), id.as_str()).await?;
                }
            }
        }
        self.holdings.remove(service, id);
        Ok(())
    }

    /// Writes an instance where it stands; its owner goes on refreshing it.
    async fn rewrite(&self, service: &str, instance: &Instance) -> Result<(), DriverError> {
        self.check(service, Some(instance))?;
        let link = self.link(service).await?;
        let gone = || DriverError::new(ErrorKind::Invalid, format!("no instance `{}` in `{service}`", instance.id));
        let mut commands = ::redis::pipe();
        commands.atomic();
        match &self.layout {
            Layout::Seata => {
                let address = self.address(&link, service, &instance.id).await?.ok_or_else(gone)?;
                let text = seata_layout::address_text(&address);
                let left: i64 = link.ask(::redis::cmd("PTTL").arg(seata::live_key(service, &text))).await?;
                if left == -2 {
                    return Err(gone());
                }
                let mut wanted = instance.clone();
                wanted.address = address;
                let left = u64::try_from(left).ok();
                seata::write_fields(&mut commands, &seata::meta_key(service, &text), &seata::fields(&wanted), left);
                link.change(&commands, &seata::channel(service), &seata::registered(&text)).await
            }
            Layout::Plain { prefix } => {
                let keys = Keys::new(prefix, service);
                let key = keys.instance(instance.id.as_str());
                let there: Option<Vec<u8>> = link.ask(::redis::cmd("GET").arg(&key)).await?;
                let there = there.ok_or_else(gone)?;
                let owner = carrier::from_json(&there).map(|there| there.incarnation).unwrap_or_default();
                let document = plain::document(instance, owner.as_str());
                commands.cmd("SET").arg(&key).arg(document).arg("XX").arg("KEEPTTL");
                let (set,): (Value,) = link.change(&commands, keys.channel(), instance.id.as_str()).await?;
                if set == Value::Nil { Err(gone()) } else { Ok(()) }
            }
        }
    }
}

impl Driver for Redis {
    fn capabilities(&self) -> Capabilities {
        Capabilities { register: true, list: true, liveness: true, weight: true }
    }

    fn limits(&self) -> Limits {
        let reserved: &[&str] = if self.layout == Layout::Seata { &[RESERVED] } else { &[] };
        Limits { total_chars: Some(64 << 10), reserved_prefixes: reserved, ..Limits::default() }
    }

    fn apply<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(self.register(service, instance))
    }

    fn renew<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Renewal> {
        Box::pin(self.refresh(service, instance))
    }

    fn withdraw<'a>(&'a self, service: &'a str, id: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(self.remove(service, id))
    }

    fn amend<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, ()> {
        Box::pin(self.rewrite(service, instance))
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(async {
            let names: BTreeSet<String> = match &self.layout {
                Layout::Seata => {
                    let link = self.servers.link("").await?;
                    let keys = self.scan(&link, Instant::now()).await?;
                    keys.iter()
                        .filter_map(|key| seata::split(key))
                        .filter(|(_, address)| seata_layout::read_address(address).is_ok())
                        .map(|(cluster, _)| cluster.to_owned())
                        .collect()
                }
                Layout::Plain { prefix } => {
                    let index = plain::services(prefix);
                    self.servers.link(&index).await?.ask(::redis::cmd("SMEMBERS").arg(&index)).await?
                }
            };
            Ok(names.into_iter().map(Into::into).collect())
        })
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(self.follow(service, after))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            self.servers.close().await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_make_no_sense_are_refused() {
        let refused = |text: &str| match Redis::new(&text.parse().expect("an address")) {
            Ok(_) => panic!("{text} was accepted"),
            Err(error) => error.to_string(),
        };
        assert!(refused("redis://h/first").contains("no database number"));
        assert!(refused("redis://h?prefix=x").contains("layout=seata"));
        assert!(refused("redis://a,b").contains("sentinels or a cluster"));
        assert!(refused("redis://a,b?sentinel=").contains("sentinel=mymaster"));
        assert!(refused("redis://a?sentinel=m&cluster=true").contains("has no sentinels"));
        assert!(refused("redis://a?sentinel=m&sentinel-user=u").contains("needs `sentinel-password`"));
        assert!(refused("redis://a?sentinel-password=p").contains("need `sentinel=MASTER`"));
        assert!(refused("redis://a?cluster=true").contains("layout=plain"));
        assert!(refused("redis://a/1?cluster=true&layout=plain").contains("no databases but 0"));
        assert!(refused("redis://user@h").contains("needs a password"));
        assert!(refused("redis://h?layout=curator").contains("expected `seata` or `plain`"));
        let Ok(redis) = Redis::new(&"redis://:p@h/3?ttl=10s".parse().expect("an address")) else {
            panic!("it makes sense");
        };
        assert_eq!((redis.servers.info().db(), redis.rescan), (3, Duration::from_secs(4)));
    }
}
