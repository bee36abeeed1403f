//! ZooKeeper: instances as ephemeral nodes of a session.
//!
//! # Address
//!
//! `zookeeper://[USER:PASSWORD@]HOST[:2181][,HOST2…][/CHROOT][?PARAMETERS]` (also `zk://`). Several hosts are members of one
//! ensemble. The chroot is put before every path and made when something is registered. A user and a password log in
//! with the scheme `digest`.
//!
//! | parameter | meaning | default |
//! |---|---|---|
//! | `layout` | `seata`, `curator`, `dubbo` or `plain`, see below | `seata`, like `etcd:` and `redis:` |
//! | `base` | where the services are, below the chroot | see below |
//! | `ttl` | session timeout; the server makes it 2 to 20 of its ticks | `10s` |
//! | `acl` | who may use what is created: `open` (everybody) or `creator` (who logs in as the same user, or with the same client certificate) | `open` |
//! | `tls`, `ca`, `cert`, `key` | TLS, its roots, a client certificate; name the port of `secureClientPort` | off |
//!
//! Under TLS the client crate's connections go through a port on loopback that this process opens for each server, and on
//! from there with the TLS of every other back end: the crate's own would bring a second cryptography library into
//! every program. The port leads nobody else there: a connection has to begin with a secret that only this process has.
//!
//! # Layouts
//!
//! **`seata`** (base `/registry/zk`): `<base>/<cluster>/<ip:port>`, ephemeral, under persistent parents; the service is
//! Seata's cluster. The data is metadata as `key=value` lines, empty where there is none. Released servers write `true`
//! (2.6.0) or the Java serialization of it (2.0.0), both read as no metadata; their readers ignore data. A value with a
//! line end, or a key with `=`, rides as JSON in the line `metaroute-json`. An instance is its address.
//!
//! **`curator`** (base `/services`, as Spring Cloud): `<base>/<service>/<id>` with the JSON of Curator's discovery. Metadata is
//! an object of texts with `"@class":"java.util.HashMap"` under `payload`, or no payload: a class that a Java reader lacks
//! would make its whole query fail. Read are that, an object `metadata` inside (Spring Cloud), and text fields.
//!
//! **`dubbo`** (base `/dubbo`): `<base>/<interface>/providers/<encoded URL>`, no data. Metadata is the URL's query; a weight of
//! 1 is Dubbo's 100; the metadata key `protocol` is the URL's scheme; `disabled=true` and `enabled=false` are switched off.
//! Where one address offers a version or a group, that is part of the id.
//!
//! **`plain`** (base `/metaroute`): `<base>/<service>/<id>` with one JSON document, nothing is lost. `%`, `/` and control
//! characters in names are written as `%XX`.
//!
//! # Liveness
//!
//! A node lives as long as the session that made it. An expired session is replaced by a new one and its instances are
//! registered in that. A node that is there already is ours when our session owns it; one of an older session is
//! deleted in the version that was read and made anew, so that it does not vanish when that session ends at last (and
//! so that new metadata is written). A registration that lost its place to another process meanwhile leaves it there: the
//! newest registration wins. Nodes are looked at three times per session timeout. Parents of `curator` and `plain` are
//! container nodes, which the server removes when they are empty; creating makes them again. An incarnation is the
//! node's creation and its session, unless the owner gave one.
//!
//! # Following a service
//!
//! A persistent recursive watch (ZooKeeper 3.6 and newer; older servers are asked every second), then a read of all
//! children, again after every event; every lost connection leads to a full read. A silent connection is given up after
//! 2/5 of the session timeout. A path that is not there is an unknown service, unless it was there before.
//!
//! # Limits
//!
//! Path and data of a node: 524,288 bytes. ZooKeeper has no error for more than its own limit of 1 MiB, it ends the
//! connection, so this is checked before. `dubbo`: 16,384 characters of metadata, because they are the name of a node and
//! names are read all together. Keys that begin with `metaroute-` are reserved except in `plain`.
//!
//! # Proven against
//!
//! ZooKeeper 3.8 (Debian); Seata's released client 2.6.0 in both directions, and the registration of a real Seata server 2.0.0;
//! Curator's discovery 5.4 in both directions; kazoo. TLS with required client certificates on the same server.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metaroute_core::instance::{Instance, InstanceId};
use tokio::time::{sleep, timeout};
use zookeeper_client::{Acls, AddWatchMode, Client, CreateMode, Error, EventType, SessionState, Stat};

use crate::backend::{Params, bad};
use crate::carrier::RESERVED;
use crate::driver::{
    Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Lease, Limits, Renewal, Seen, SeenState, Snapshot,
};
use crate::holdings::{self, Holdings};
use crate::joint::Joint;
use crate::registry::ConnectError;
use crate::socket::Socket;
use crate::tls::Tls;
use crate::url::RegistryUrl;

mod layout;
mod tunnel;

use layout::{Child, Kind, Layout, Node};
use tunnel::Tunnel;

/// How long one exchange may take.
const CALL: Duration = Duration::from_secs(5);
/// Longest path and data of a node together; half of what the server takes.
const NODE_BYTES: usize = 512 << 10;
/// How often a node is written against somebody else who writes it at the same moment.
const TRIES: usize = 8;
/// Changes that come together are read together.
const SETTLE: Duration = Duration::from_millis(10);
/// How often a server is asked that does not know persistent watches.
const POLL: Duration = Duration::from_secs(1);
/// Sessions remembered: more than can have nodes at the same time.
const SESSIONS: usize = 32;
/// Reads on their way at once.
const STEP: usize = 500;

/// A connection to a ZooKeeper ensemble.
pub(crate) struct ZooKeeper {
    servers: String,
    /// Where TLS is spoken: the same servers.
    secure: Vec<Socket>,
    login: Option<Vec<u8>>,
    layout: Layout,
    ttl: Duration,
    acl: Acl,
    session: Joint<Session>,
    /// The sessions that this connection has had, the last ones.
    sessions: Mutex<VecDeque<i64>>,
    /// What was registered here.
    holdings: Holdings<Holding>,
}

/// A session, and what its connections go through.
struct Session {
    client: Client,
    _tunnel: Option<Tunnel>,
}

#[derive(Clone, Copy)]
enum Acl {
    Open,
    Creator,
}

#[derive(Clone)]
struct Holding {
    path: Box<str>,
    since_ms: u64,
}

impl ZooKeeper {
    /// Reads the address; nothing is contacted.
    pub(crate) fn new(url: &RegistryUrl) -> Result<Self, ConnectError> {
        let mut params = Params::of(url);
        let kind = match params.text("layout") {
            None | Some("seata") => Kind::Seata,
            Some("curator") => Kind::Curator,
            Some("dubbo") => Kind::Dubbo,
            Some("plain") => Kind::Plain,
            Some(other) => {
                let message = format!("parameter `layout={other}`: expected `seata`, `curator`, `dubbo` or `plain`");
                return Err(bad(message));
            }
        };
        let base = params.text("base").unwrap_or(kind.base());
        let ttl = params.duration("ttl", Duration::from_secs(10))?;
        let tls = Tls::of(&mut params, false)?;
        let acl = match params.text("acl") {
            None | Some("open") => Acl::Open,
            Some("creator") if url.password().is_some() || tls.has_identity() => Acl::Creator,
            Some("creator") => return Err(bad("`acl=creator` needs a user and a password, or a client certificate")),
            Some(other) => return Err(bad(format!("parameter `acl={other}`: expected `open` or `creator`"))),
        };
        params.finish()?;
        let login = match (url.user(), url.password()) {
            (None, None) => None,
            (Some(user), Some(password)) => {
                let password = password.reveal().map_err(|error| bad(error.to_string()))?;
                Some(format!("{user}:{password}").into_bytes())
            }
            _ => return Err(bad("ZooKeeper logs in with a user and a password: write `zookeeper://USER:PASSWORD@…`")),
        };
        let servers: Vec<String> = url
            .hosts()
            .iter()
            .map(|host| if host.port.is_some() { host.to_string() } else { format!("{host}:2181") })
            .collect();
        let secure = if tls.on { url.hosts() } else { &[] };
        let secure = secure.iter().map(|host| Socket::new(host, 2181, &tls, None)).collect::<Result<_, _>>()?;
        let mut path = String::new();
        for part in [url.path(), base] {
            for name in part.split('/').filter(|name| !name.is_empty()) {
                if name == "." || name == ".." || name.contains(char::is_control) {
                    return Err(bad(format!("`/{}`: ZooKeeper has no such path", part.trim_matches('/'))));
                }
                path.push('/');
                path.push_str(name);
            }
        }
        Ok(Self {
            servers: servers.join(","),
            secure,
            login,
            layout: Layout { kind, base: path.into() },
            ttl,
            acl,
            session: Joint::default(),
            sessions: Mutex::default(),
            holdings: Holdings::default(),
        })
    }

    fn acls(&self) -> Acls<'static> {
        match self.acl {
            Acl::Open => Acls::anyone_all(),
            Acl::Creator => Acls::creator_all(),
        }
    }

    /// The client of a session that is not over, a new one if need be.
    async fn client(&self) -> Result<Client, DriverError> {
        let mut held = self.session.enter().await?;
        if let Some(session) = held.value.as_ref().filter(|session| !session.client.state().is_terminated()) {
            return Ok(session.client.clone());
        }
        held.value = None;
        let opened = self.open().await;
        let session = held.outcome(opened)?;
        let client = session.client.clone();
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.push_back(client.session_id().0);
        if sessions.len() > SESSIONS {
            sessions.pop_front();
        }
        held.value = Some(session);
        Ok(client)
    }

    async fn open(&self) -> Result<Session, DriverError> {
        let mut connector = Client::connector().with_session_timeout(self.ttl).with_fail_eagerly();
        let unreachable = |error: &str| {
            DriverError::new(ErrorKind::Unreachable, format!("cannot reach ZooKeeper at {}: {error}", self.servers))
        };
        let tunnel = match &*self.secure {
            [] => None,
            secure => {
                let opened = Tunnel::open(secure).await;
                Some(opened.map_err(|error| unreachable("no port on loopback").because(error))?)
            }
        };
        if let Some(tunnel) = &tunnel {
            connector = connector.with_auth(tunnel::SCHEME, tunnel.secret());
        }
        if let Some(login) = &self.login {
            connector = connector.with_auth("digest", login);
        }
        let servers = tunnel.as_ref().map_or_else(|| self.servers.clone(), Tunnel::servers);
        let opened = self.call(connector.connect(&servers)).await;
        match opened.and_then(|opened| opened.map_err(|error| self.error(&error))) {
            Ok(client) => Ok(Session { client, _tunnel: tunnel }),
            // What the client says of it is only that there is no connection.
            Err(error) => Err(match tunnel.and_then(|tunnel| tunnel.failure()) {
                Some(failure) => unreachable(&failure.to_string()).because(failure),
                None => error,
            }),
        }
    }

    /// Whether a node is of a session of this connection, be it over or not.
    fn is_ours(&self, owner: i64) -> bool {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).contains(&owner)
    }

    /// Waits for an answer, not for ever; what the answer says is for the caller.
    async fn call<T>(&self, exchange: impl Future<Output = Result<T, Error>>) -> Result<Result<T, Error>, DriverError> {
        timeout(CALL, exchange).await.map_err(|_| {
            DriverError::new(ErrorKind::Unreachable, format!("ZooKeeper at {} does not answer", self.servers))
        })
    }

    fn error(&self, error: &Error) -> DriverError {
        let kind = match error {
            Error::NoAuth | Error::AuthFailed | Error::QuotaExceeded => ErrorKind::Denied,
            Error::BadArguments(_) | Error::InvalidAcl | Error::NoChildrenForEphemerals => ErrorKind::Invalid,
            Error::Unimplemented => ErrorKind::Unsupported,
            _ => ErrorKind::Unreachable,
        };
        DriverError::new(kind, format!("ZooKeeper at {}: {error}", self.servers)).because(error.clone())
    }

    async fn make_parents(&self, client: &Client, path: &str) -> Result<(), DriverError> {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let mode = if self.layout.kind.parents_go() { CreateMode::Container } else { CreateMode::Persistent };
        for mode in [mode, CreateMode::Persistent] {
            match self.call(client.mkdir(parent, &mode.with_acls(self.acls()))).await? {
                // A parent may be forbidden to look at and be there all the same.
                Ok(()) | Err(Error::NodeExists) => return Ok(()),
                // Before 3.5.3 there were no containers.
                Err(Error::Unimplemented) => {}
                Err(error) => return Err(self.error(&error)),
            }
        }
        Ok(())
    }

    fn node(&self, service: &str, instance: &Instance, since_ms: u64) -> Result<Node, DriverError> {
        self.limits().check(instance)?;
        let invalid = |why: String| DriverError::new(ErrorKind::Invalid, why);
        let node = self.layout.write(service, instance, since_ms).map_err(invalid)?;
        let size = node.path.len() + node.data.len();
        if size > NODE_BYTES {
            return Err(invalid(format!(
                "path and data of `{}` have {size} bytes, at most {NODE_BYTES} are accepted",
                instance.id
            )));
        }
        Ok(node)
    }

    async fn register(&self, service: &str, instance: &Instance) -> Result<Lease, DriverError> {
        let before = self.holdings.get(service, &instance.id);
        let since_ms = before.as_ref().map_or_else(now_ms, |before| before.since_ms);
        let node = self.node(service, instance, since_ms)?;
        let client = self.client().await?;
        let session = client.session_id().0;
        let lease = Lease { renew_every: Some(client.session_timeout() / 3) };
        {
            let key = holdings::key(service, &instance.id);
            let mut holdings = self.holdings.lock();
            // Another id at the same node is replaced, and must not take this one with it when it goes.
            holdings.retain(|other, holding| *other == key || *holding.path != *node.path);
            // Before the answer: it may be lost, and the node be there all the same.
            holdings.insert(key, Holding { path: node.path.as_str().into(), since_ms });
        }
        // In a layout where metadata is in the name, a changed instance is another node: the new one comes first.
        let moved = before.as_ref().filter(|before| *before.path != *node.path);
        let options = CreateMode::Ephemeral.with_acls(self.acls());
        for _ in 0..TRIES {
            match self.call(client.create(&node.path, &node.data, &options)).await? {
                Ok(_) => {}
                // A container may go at any moment while it is empty.
                Err(Error::NoNode) => {
                    self.make_parents(&client, &node.path).await?;
                    continue;
                }
                Err(Error::NodeExists) => {
                    let (data, stat) = match self.call(client.get_data(&node.path)).await? {
                        Ok(found) => found,
                        Err(Error::NoNode) => continue,
                        Err(error) => return Err(self.error(&error)),
                    };
                    let next = if stat.ephemeral_owner == session {
                        // Our own, whether or not we heard of it.
                        if data == node.data {
                            Ok(())
                        } else {
                            self.call(client.set_data(&node.path, &node.data, Some(stat.version))).await?.map(|_| ())
                        }
                    } else if before.is_some() && moved.is_none() && !self.is_ours(stat.ephemeral_owner) {
                        // Another process registered it later than we did.
                        Ok(())
                    } else {
                        // An earlier life: it would vanish with its session.
                        match self.call(client.delete(&node.path, Some(stat.version))).await? {
                            Ok(()) => Err(Error::NoNode),
                            Err(error) => Err(error),
                        }
                    };
                    match next {
                        Ok(()) => {}
                        Err(Error::NoNode | Error::BadVersion) => continue,
                        Err(error) => return Err(self.error(&error)),
                    }
                }
                Err(error) => return Err(self.error(&error)),
            }
            if let Some(moved) = moved {
                self.delete_own(&client, moved).await?;
            }
            return Ok(lease);
        }
        let message = format!("`{}` is changed by somebody else all the time", node.path);
        Err(DriverError::new(ErrorKind::Unreachable, message))
    }

    /// Deletes a node if it is one of this connection's.
    async fn delete_own(&self, client: &Client, holding: &Holding) -> Result<(), DriverError> {
        for _ in 0..TRIES {
            let stat = match self.call(client.check_stat(&holding.path)).await? {
                Ok(Some(stat)) => stat,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.error(&error)),
            };
            // What another process registered meanwhile is not ours to remove.
            if !self.is_ours(stat.ephemeral_owner) {
                return Ok(());
            }
            match self.call(client.delete(&holding.path, Some(stat.version))).await? {
                Ok(()) | Err(Error::NoNode) => return Ok(()),
                Err(Error::BadVersion) => {}
                Err(error) => return Err(self.error(&error)),
            }
        }
        let message = format!("`{}` is changed by somebody else all the time", holding.path);
        Err(DriverError::new(ErrorKind::Unreachable, message))
    }

    async fn still_there(&self, service: &str, instance: &Instance) -> Result<Renewal, DriverError> {
        let held = self.holdings.get(service, &instance.id);
        let Some(held) = held else { return Ok(Renewal::Lost) };
        let client = self.client().await?;
        let session = client.session_id().0;
        match self.call(client.check_stat(&held.path)).await? {
            Ok(None) => Ok(Renewal::Lost),
            Ok(Some(stat)) if stat.ephemeral_owner == session => Ok(Renewal::Kept),
            // Of an earlier session, and about to vanish.
            Ok(Some(stat)) if self.is_ours(stat.ephemeral_owner) => Ok(Renewal::Lost),
            // Another process has it now.
            Ok(Some(_)) => Ok(Renewal::Kept),
            Err(error) => Err(self.error(&error)),
        }
    }

    /// The path of an instance that was not registered here.
    async fn find(&self, client: &Client, service: &str, id: &InstanceId) -> Result<Option<String>, DriverError> {
        let parent = self.layout.service(service);
        let children = self.children(client, &parent).await?.unwrap_or_default();
        let found = children.iter().find(|child| self.layout.id(child).as_ref() == Some(id));
        Ok(found.map(|child| format!("{parent}/{}", child.name)))
    }

    async fn remove(&self, service: &str, id: &InstanceId) -> Result<(), DriverError> {
        self.check(service)?;
        let held = self.holdings.get(service, id);
        let client = self.client().await?;
        match held {
            Some(held) => self.delete_own(&client, &held).await?,
            None => {
                // Asked for by somebody who never registered it: whoever did.
                let Some(path) = self.find(&client, service, id).await? else { return Ok(()) };
                match self.call(client.delete(&path, None)).await? {
                    Ok(()) | Err(Error::NoNode) => {}
                    Err(error) => return Err(self.error(&error)),
                }
            }
        }
        self.holdings.remove(service, id);
        Ok(())
    }

    /// Writes an instance where it stands; the node stays its owner's.
    async fn rewrite(&self, service: &str, instance: &Instance) -> Result<(), DriverError> {
        if self.layout.kind == Kind::Dubbo {
            let message = "in Dubbo's layout an instance is the name of its node, which only its owner can replace";
            return Err(DriverError::new(ErrorKind::Unsupported, message));
        }
        let node = self.node(service, instance, now_ms())?;
        let client = self.client().await?;
        let Some(path) = self.find(&client, service, &instance.id).await? else {
            let message = format!("no instance `{}` in `{service}`", instance.id);
            return Err(DriverError::new(ErrorKind::Invalid, message));
        };
        self.call(client.set_data(&path, &node.data, None)).await?.map(|_| ()).map_err(|error| self.error(&error))
    }

    fn check(&self, service: &str) -> Result<(), DriverError> {
        self.layout.check(service).map_err(|why| DriverError::new(ErrorKind::Invalid, why))
    }

    /// The children of a path with their data; `None` when there is no such path.
    async fn children(&self, client: &Client, parent: &str) -> Result<Option<Vec<Child>>, DriverError> {
        let mut names = match self.call(client.list_children(parent)).await? {
            Ok(names) => names,
            Err(Error::NoNode) => return Ok(None),
            Err(error) => return Err(self.error(&error)),
        };
        names.sort();
        let mut out = Vec::with_capacity(names.len());
        for names in names.chunks(STEP) {
            let paths: Vec<String> = names.iter().map(|name| format!("{parent}/{name}")).collect();
            // A request is on its way when its future is made.
            let reads: Vec<_> = paths.iter().map(|path| client.get_data(path)).collect();
            for (name, read) in names.iter().zip(reads) {
                match self.call(read).await? {
                    Ok((data, stat)) => out.push(Child { name: name.clone(), data, stat }),
                    // Gone since they were listed.
                    Err(Error::NoNode) => {}
                    Err(error) => return Err(self.error(&error)),
                }
            }
        }
        Ok(Some(out))
    }

    async fn look(&self, client: &Client, service: &str, was_known: bool) -> Result<Seen, DriverError> {
        let found = self.children(client, &self.layout.service(service)).await?;
        let known = was_known || found.is_some();
        let children = found.unwrap_or_default();
        let mut hash = DefaultHasher::new();
        for Child { name, stat: Stat { czxid, mzxid, ephemeral_owner, .. }, .. } in &children {
            (name, czxid, mzxid, ephemeral_owner).hash(&mut hash);
        }
        let cursor = Cursor::new(format!("{:x}{}", hash.finish(), if known { "+" } else { "-" }));
        let snapshot: Snapshot = self.layout.read(children);
        let state = if known { SeenState::Service(snapshot) } else { SeenState::UnknownService };
        Ok(Seen { cursor, state })
    }

    async fn follow(&self, service: &str, after: Option<&Cursor>) -> Result<Seen, DriverError> {
        self.check(service)?;
        let client = self.client().await?;
        let was_known = after.is_some_and(|cursor| cursor.as_str().ends_with('+'));
        let Some(after) = after else {
            // Other members may lag behind the one that took a write.
            match self.call(client.sync(&self.layout.service(service))).await? {
                Ok(()) | Err(Error::NoNode) => {}
                Err(error) => return Err(self.error(&error)),
            }
            return self.look(&client, service, was_known).await;
        };
        let path = self.layout.service(service);
        let mut watcher = match self.call(client.watch(&path, AddWatchMode::PersistentRecursive)).await? {
            Ok(watcher) => Some(watcher),
            Err(Error::Unimplemented) => None,
            Err(error) => return Err(self.error(&error)),
        };
        loop {
            let seen = self.look(&client, service, was_known).await?;
            if seen.cursor != *after {
                return Ok(seen);
            }
            let Some(watcher) = &mut watcher else {
                sleep(POLL).await;
                continue;
            };
            let event = watcher.changed().await;
            if event.event_type == EventType::Session && event.session_state != SessionState::SyncConnected {
                let state = event.session_state;
                let message = format!("lost ZooKeeper at {}: {state}", self.servers);
                let kind = if state == SessionState::AuthFailed { ErrorKind::Denied } else { ErrorKind::Unreachable };
                return Err(DriverError::new(kind, message));
            }
            sleep(SETTLE).await;
        }
    }
}

/// How many instances a node is in every layout, and how many were rejected: for the fuzzer.
pub fn read_node(name: &str, data: &[u8]) -> Vec<(usize, usize)> {
    [Kind::Seata, Kind::Curator, Kind::Dubbo, Kind::Plain]
        .map(|kind| {
            let layout = Layout { kind, base: kind.base().into() };
            let snapshot = layout.read(vec![Child::lone(name, data)]);
            (snapshot.instances.len(), snapshot.rejected)
        })
        .to_vec()
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl Driver for ZooKeeper {
    fn capabilities(&self) -> Capabilities {
        Capabilities { register: true, list: true, liveness: true, weight: true }
    }

    fn limits(&self) -> Limits {
        let total_chars = (self.layout.kind == Kind::Dubbo).then_some(16 << 10);
        let reserved: &[&str] = if self.layout.kind == Kind::Plain { &[] } else { &[RESERVED] };
        Limits { total_chars, reserved_prefixes: reserved, ..Limits::default() }
    }

    fn apply<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(self.register(service, instance))
    }

    fn renew<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Renewal> {
        Box::pin(self.still_there(service, instance))
    }

    fn withdraw<'a>(&'a self, service: &'a str, id: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(self.remove(service, id))
    }

    fn amend<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, ()> {
        Box::pin(self.rewrite(service, instance))
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(async {
            let client = self.client().await?;
            let base = if self.layout.base.is_empty() { "/" } else { &*self.layout.base };
            let children = match self.call(client.list_children(base)).await? {
                Ok(children) => children,
                Err(Error::NoNode) => return Ok(Vec::new()),
                Err(error) => return Err(self.error(&error)),
            };
            let names: BTreeSet<String> = children.iter().filter_map(|child| self.layout.name(child)).collect();
            Ok(names.into_iter().map(Into::into).collect())
        })
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(self.follow(service, after))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            // The last client closes the session, and with it goes every node that is left.
            self.session.enter_anyway().await.value = None;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_those_that_make_no_sense_refused() {
        let opened = |text: &str| ZooKeeper::new(&text.parse().expect("an address"));
        let refused = |text: &str| match opened(text) {
            Ok(_) => panic!("{text} was accepted"),
            Err(error) => error.to_string(),
        };
        assert!(refused("zookeeper://h?layout=etcd").contains("expected `seata`, `curator`, `dubbo` or `plain`"));
        assert!(refused("zookeeper://user@h").contains("a user and a password"));
        assert!(refused("zookeeper://h?acl=creator").contains("needs a user"));
        assert!(refused("zookeeper://h?base=/a/../b").contains("no such path"));
        let accepted = |text: &str| opened(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let zookeeper = accepted("zookeeper://a,b:2182/chroot/x?layout=curator");
        assert_eq!(zookeeper.servers, "a:2181,b:2182");
        assert_eq!(&*zookeeper.layout.base, "/chroot/x/services");
        let zookeeper = accepted("zookeeper://a?layout=plain&base=/");
        assert_eq!(zookeeper.layout.service("s"), "/s");
    }
}
