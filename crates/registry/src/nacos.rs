//! Nacos 2.x and 3.x.
//!
//! # Address
//!
//! ```text
//! nacos://[USER:PASSWORD@]HOST[:8848][,HOST2…][/NAMESPACE_ID][?PARAMETER=…&…]
//! ```
//!
//! | parameter | default | meaning |
//! |---|---|---|
//! | (path) | `public` | namespace **id** |
//! | `group` | `DEFAULT_GROUP` | group of all services |
//! | `cluster` | all, `DEFAULT` | discovery is restricted to these clusters (`a` or `a,b`); an instance without a cluster registers in the first |
//! | `ephemeral` | `true` | `false`: persistent instances, probed by the server, that stay until they are deregistered |
//! | `api` | `grpc` | `http`: the HTTP interface, for servers and networks without gRPC |
//! | `grpc-port` | HTTP port + 1000 | port of gRPC on every server |
//! | `context` | `/nacos` | context path of the HTTP interface; may be empty |
//! | `metadata-limit` | `1024` | characters of metadata that the servers accept |
//! | `protected` | `unhealthy` | `healthy`: believe the health in lists under the server's protection threshold |
//! | `ttl` | `15s` | `api=http` only: time without a heartbeat until an instance is unhealthy; gone after twice that |
//! | `poll` | `5s` | `api=http` only: how often lists are asked for |
//! | `tls`, `ca`, `cert`, `key` | off | TLS, see [`tls`](crate::tls); `https` (default: as `tls`) for the HTTP side alone |
//!
//! # Layout
//!
//! Service, group, cluster, address, weight and enabled are Nacos' own. Metadata is a map of strings. What Nacos has no
//! place for rides in it: `metaroute-id` (only an id other than the address), `metaroute-weight` (only above 10000),
//! `region`, `zone`, `metaroute-subzone`, and `metaroute-incarnation`, the life of a registration (left out when the
//! metadata has no room for it). Readers of other kinds see a few more keys. An address that stands in several
//! clusters of one service gets the id `address#cluster` for all but the first.
//!
//! # Liveness
//!
//! Over gRPC an instance lives as long as the connection: no TTL. A broken connection is dropped whole; the next call
//! makes a new one, over which everything wanted is registered again at once, several instances of a service as one batch
//! (servers keep one record per connection and service). Silence is probed after 5 s, and a half-open connection noticed
//! after 14 s. Lists are pushed (servers wait about 500 ms), and asked for again every 30 s in case a push was lost.
//! Persistent instances have no owner; they go over HTTP where the server does not take them over gRPC. Weight, metadata and
//! on/off of an instance that another process registered are set as operators do, over HTTP: servers lay that over what
//! is registered, merge the metadata, and keep it for a while after the instance is gone.
//!
//! Over HTTP an instance lives by heartbeats, three in its `ttl` (another `ttl` than the servers' own is told in the metadata
//! keys `preserved.heart.beat.interval`, `preserved.heart.beat.timeout` and `preserved.ip.delete.timeout`, which count
//! towards the limit), and lists are polled. The client interface of version 3 is used where there is one, else version 1.
//! Its lists lack instances that are switched off, those of version 3 also the flag of the protection threshold; services can
//! be listed only where version 1 is served, and an unknown service reads as an empty one.
//!
//! # What is passed on, and what is not
//!
//! - A list made before the one that was taken last on the same connection is dropped.
//! - Empty lists are passed on: whether they are believed is decided by the guard, not here. A service that never had an
//!   instance while we looked, and that the server does not list, is unknown.
//! - Under the protection threshold a server says `healthy` of all instances whether they are or not (with the default
//!   threshold of 0: when *none* is). Such instances are not verified, so they count as unhealthy, with the note
//!   `protection_threshold`; a rule set's `panic` serves them, or `protected=healthy` believes the server.
//! - A starting server (code 300, or one that turns clients away) is unreachable, not empty.
//!
//! # Limits
//!
//! Keys and values together: 1024 characters (not bytes), ours included. Names as Nacos' parameter check: services up to
//! 512 without white space, CJK, `@@` and a leading `@`; groups up to 128 of `[A-Za-z0-9-_:.]`; clusters up to 64 of
//! `[A-Za-z0-9-_]`. Lossy: kinds of metadata values (all become text).
//!
//! # Proven with
//!
//! The conformance suite runs on r-nacos 0.8.8 (a server in Rust) and on a strict fake, over gRPC and over HTTP each. The
//! fake has the rules that were seen on a real Nacos 3.1, whose server no registry of packages carries; the released Java
//! client finds the same facts there. Both directions: Java client 3.1.1 on both servers, Python client 3.2.0 and Seata's
//! client 2.6.0 on r-nacos. Unproven: the Java server itself, its clusters, its own silence.
//!
//! r-nacos differs: it takes any amount of metadata; holds every instance apart instead of one record; leaves out
//! instances that are switched off; keeps weight and on/off of a registration when a later one says 1 and on (so such an
//! instance is deregistered first); and, unless `RNACOS_NAMING_INSTANCE_METADATA_PERSISTENCE_ENABLE=false`, keeps the
//! metadata of an address's first registration.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metaroute_core::instance::{Instance, InstanceId};
use serde_json::{Map, Value};
use tokio::time::Instant;

mod config;
mod connection;
mod instances;
mod login;
mod names;
mod over_http;
mod records;
mod sending;
mod upkeep;
mod wire;

pub(crate) use config::open;

use crate::driver::{
    Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Lease, Limits, Renewal, Seen, SeenState,
};
use config::{Config, Side};
use connection::{Connection, End, Latest, Target, lock};
use instances::Wired;
use over_http::NacosHttp;
use records::Record;
use upkeep::{follow_reset, reconcile, redo};
use wire::{Message, code};

/// How often a registration is compared with the connection it was sent over. Costs no request.
const RENEW_EVERY: Duration = Duration::from_secs(2);
/// A failed attempt to connect answers everybody who asks within this time.
const ATTEMPT_PAUSE: Duration = Duration::from_secs(1);
/// Services per page of a list, and most pages.
const PAGE: usize = 1000;
const PAGES_MAX: usize = 1000;
/// How often one call follows a server's wish to go elsewhere.
const MOVES_MAX: usize = 5;
/// The ability of a server to take persistent instances over gRPC.
const PERSISTENT: &str = "supportPersistentInstanceByGrpc";

/// A Nacos cluster, over gRPC.
pub(crate) struct Nacos {
    shared: Arc<Shared>,
}

struct Shared {
    config: Config,
    side: Arc<Side>,
    /// For what servers do not do over gRPC.
    http: NacosHttp,
    live: Mutex<Option<Arc<Connection>>>,
    connecting: tokio::sync::Mutex<Option<Failed>>,
    attempts: AtomicU64,
    epochs: AtomicU64,
    versions: Arc<AtomicU64>,
    /// Which server to try first.
    first: AtomicUsize,
    records: Mutex<HashMap<Box<str>, Arc<Record>>>,
    /// Services that had an instance while we looked.
    known: Mutex<HashSet<Box<str>>>,
    closed: AtomicBool,
}

/// The last attempt to connect, if it failed.
struct Failed {
    at: Instant,
    error: DriverError,
}

impl Nacos {
    fn new(config: Config, side: Arc<Side>) -> Self {
        // Not all clients of a cluster at its first server.
        let first = rand::random_range(0..config.grpc.len().max(1));
        Self {
            shared: Arc::new(Shared {
                http: NacosHttp::new(config.clone(), Arc::clone(&side), None, over_http::POLL),
                config,
                side,
                live: Mutex::default(),
                connecting: tokio::sync::Mutex::new(None),
                attempts: AtomicU64::new(0),
                epochs: AtomicU64::new(0),
                versions: Arc::default(),
                first: AtomicUsize::new(first),
                records: Mutex::default(),
                known: Mutex::default(),
                closed: AtomicBool::new(false),
            }),
        }
    }
}

impl Driver for Nacos {
    fn capabilities(&self) -> Capabilities {
        Capabilities { register: true, list: true, liveness: self.shared.config.ephemeral, weight: true }
    }

    fn limits(&self) -> Limits {
        self.shared.config.limits()
    }

    fn apply<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(async move {
            names::service(service)?;
            let (shared, config) = (&self.shared, &self.shared.config);
            let record = shared.record(service);
            let generation = record
                .want(&instance.id, born, |life| Wired::of(instance, config.home(), life, config.metadata_limit))?;
            let connection = match shared.connection().await {
                Ok(connection) => connection,
                Err(error) => {
                    if error.kind() != ErrorKind::Unreachable {
                        record.take_back(&instance.id, generation);
                    }
                    return Err(error);
                }
            };
            if config.ephemeral {
                shared.flush(&record, &connection, Some((instance.id.clone(), generation))).await?;
                return Ok(Lease { renew_every: Some(RENEW_EVERY) });
            }
            if !takes_persistent(&connection) {
                record.unwant(&instance.id);
                return shared.http.apply(service, instance).await;
            }
            let Some(entry) = record.wanted().remove(&instance.id) else { return Ok(Lease::default()) };
            let sent = shared.persistent(&connection, service, "registerInstance", &entry.wired).await;
            if sent.as_ref().is_err_and(|error| error.kind() != ErrorKind::Unreachable) {
                record.take_back(&instance.id, generation);
            }
            sent.map(|()| Lease::default())
        })
    }

    fn renew<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Renewal> {
        Box::pin(async move {
            let Some(connection) = self.shared.live() else { return Ok(Renewal::Lost) };
            let kept = self.shared.record(service).has(connection.epoch, &instance.id, 0);
            Ok(if kept { Renewal::Kept } else { Renewal::Lost })
        })
    }

    fn withdraw<'a>(&'a self, service: &'a str, id: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(async move {
            names::service(service)?;
            let shared = &self.shared;
            let ours = lock(&shared.records).get(service).cloned();
            if !shared.config.ephemeral {
                let connection = shared.connection().await?;
                if !takes_persistent(&connection) {
                    return shared.http.withdraw(service, id).await;
                }
                let Some(entry) = ours.as_ref().and_then(|record| record.wanted().remove(id)) else {
                    return shared.withdraw_foreign(service, id).await;
                };
                shared.persistent(&connection, service, "deregisterInstance", &entry.wired).await?;
                ours.and_then(|record| record.unwant(id));
                return Ok(());
            }
            let Some(record) = ours else { return shared.withdraw_foreign(service, id).await };
            record.unwant(id);
            // Without a connection the server has let go of it already, or will when it notices.
            let Some(connection) = shared.live() else { return Ok(()) };
            shared.flush(&record, &connection, None).await
        })
    }

    fn amend<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, ()> {
        self.shared.http.amend(service, instance)
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(async move {
            let connection = self.shared.connection().await?;
            let mut services = Vec::new();
            self.shared
                .each_service(&connection, |service| {
                    services.push(service.into());
                    true
                })
                .await?;
            services.sort();
            services.dedup();
            Ok(services)
        })
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(async move {
            names::service(service)?;
            for _ in 0..MOVES_MAX {
                let connection = self.shared.connection().await?;
                if let Some(latest) = self.shared.next(&connection, service, after).await? {
                    return self.shared.seen(&connection, service, latest).await;
                }
            }
            Err(DriverError::new(ErrorKind::Unreachable, "the servers send us from one to the other"))
        })
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.shared.close();
            Ok(())
        })
    }
}

impl Drop for Nacos {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// A new life: when it began, and a little chance, so that a later one sorts later.
fn born() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    format!("{now:x}-{:04x}", rand::random::<u16>())
}

impl Shared {
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if let Some(connection) = lock(&self.live).take() {
            let error = DriverError::new(ErrorKind::Unreachable, "this registry was shut down");
            connection.end_with(End::Lost(error));
        }
    }

    fn live(&self) -> Option<Arc<Connection>> {
        lock(&self.live).as_ref().filter(|connection| connection.is_alive()).cloned()
    }

    fn record(&self, service: &str) -> Arc<Record> {
        let mut records = lock(&self.records);
        Arc::clone(records.entry(service.into()).or_insert_with(|| Arc::new(Record::new(service))))
    }

    /// The live connection, or a new one. Whoever waits for an attempt shares its outcome.
    async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, DriverError> {
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        let attempt = self.attempts.load(Ordering::SeqCst);
        let mut failed = self.connecting.lock().await;
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        if let Some(failed) = &*failed
            && (self.attempts.load(Ordering::SeqCst) != attempt || failed.at.elapsed() < ATTEMPT_PAUSE)
        {
            return Err(failed.error.clone());
        }
        let connected = self.connect().await;
        self.attempts.fetch_add(1, Ordering::SeqCst);
        match connected {
            Ok(connection) => {
                *failed = None;
                let redo = tokio::spawn(redo(Arc::downgrade(self), Arc::clone(&connection)));
                connection.own(redo.abort_handle());
                Ok(connection)
            }
            Err(error) => {
                *failed = Some(Failed { at: Instant::now(), error: error.clone() });
                Err(error)
            }
        }
    }

    /// Connects to the first server that can be reached, each at most once.
    async fn connect(self: &Arc<Self>) -> Result<Arc<Connection>, DriverError> {
        let hosts = &self.config.grpc;
        let first = self.first.load(Ordering::Relaxed);
        let mut last = DriverError::new(ErrorKind::Unreachable, "the address names no server");
        for step in 0..hosts.len() {
            let at = (first + step) % hosts.len();
            let target = Target {
                host: &hosts[at],
                tls: self.side.tls.clone(),
                namespace: &self.config.namespace,
                filter: &self.config.filter,
                epoch: self.epochs.fetch_add(1, Ordering::SeqCst) + 1,
                versions: &self.versions,
            };
            match Connection::open(target).await {
                Ok(connection) => {
                    self.first.store(at, Ordering::Relaxed);
                    let mut live = lock(&self.live);
                    if self.closed.load(Ordering::SeqCst) {
                        let error = DriverError::new(ErrorKind::Unsupported, "this registry was shut down");
                        connection.end_with(End::Lost(error.clone()));
                        return Err(error);
                    }
                    let this = Arc::downgrade(self);
                    connection
                        .own(tokio::spawn(reconcile(Weak::clone(&this), Arc::downgrade(&connection))).abort_handle());
                    connection.own(tokio::spawn(follow_reset(this, Arc::clone(&connection))).abort_handle());
                    *live = Some(Arc::clone(&connection));
                    return Ok(connection);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Asks something of the server, with a token where there is a login; one that is refused is renewed once.
    async fn call(
        &self,
        connection: &Connection,
        kind: &str,
        body: Map<String, Value>,
    ) -> Result<Message, DriverError> {
        let Some(login) = &self.side.login else {
            let answer = connection.ask(kind, body, None).await?;
            return answer.map_err(|refusal| wire::error_of(&connection.server, &refusal));
        };
        let token = login.token(&self.side.http).await?;
        let refusal = match connection.ask(kind, body.clone(), Some(&token)).await? {
            Ok(answer) => return Ok(answer),
            Err(refusal) => refusal,
        };
        if !code::DENIED.contains(&refusal.code) {
            return Err(wire::error_of(&connection.server, &refusal));
        }
        let token = login.another(&self.side.http, &token).await?;
        let answer = connection.ask(kind, body, Some(&token)).await?;
        answer.map_err(|refusal| wire::error_of(&connection.server, &refusal))
    }

    /// A request about a service.
    fn naming(&self, service: &str) -> Map<String, Value> {
        let config = &self.config;
        Map::from_iter(
            [
                ("module", "naming"),
                ("namespace", &*config.namespace),
                ("serviceName", service),
                ("groupName", &*config.group),
            ]
            .map(|(key, value)| (key.to_owned(), Value::from(value))),
        )
    }

    /// Asks for a service and follows it from then on.
    async fn subscribe(&self, connection: &Connection, service: &str) -> Result<(), DriverError> {
        let entry = connection.subscribed(service);
        let begun = entry.begin();
        let mut body = self.naming(service);
        body.insert("subscribe".into(), true.into());
        // All of them: which are wanted is decided here, since pushes of some servers lose the filter.
        body.insert("clusters".into(), "".into());
        let answer = self.call(connection, "SubscribeServiceRequest", body).await?;
        connection.answered(&entry, begun, answer.body.get("serviceInfo").unwrap_or(&Value::Null));
        Ok(())
    }

    /// The state after a cursor; `None` when the connection was left for another one.
    async fn next(
        &self,
        connection: &Connection,
        service: &str,
        after: Option<&Cursor>,
    ) -> Result<Option<Latest>, DriverError> {
        let entry = connection.subscribed(service);
        let mut state = entry.state.subscribe();
        let moved = |error| match connection.is_alive() {
            false if matches!(connection.reason(), Some(End::Moved)) => Ok(None),
            _ => Err(error),
        };
        if (after.is_none() || state.borrow().is_none())
            && let Err(error) = self.subscribe(connection, service).await
        {
            return moved(error);
        }
        loop {
            if let Some(latest) = &*state.borrow_and_update()
                && after.is_none_or(|after| *after != cursor(latest))
            {
                return Ok(Some(latest.clone()));
            }
            tokio::select! {
                changed = state.changed() => {
                    // Cannot be: `entry` has the sender.
                    changed.map_err(|_| DriverError::new(ErrorKind::Unreachable, "the connection is gone"))?;
                }
                end = connection.ended() => match end {
                    End::Lost(error) => return Err(error),
                    End::Moved => return Ok(None),
                },
            }
        }
    }

    /// What is said about a state; asks whether the server knows a service that never had an instance.
    async fn seen(&self, connection: &Connection, service: &str, latest: Latest) -> Result<Seen, DriverError> {
        let cursor = cursor(&latest);
        let snapshot = match latest.view {
            Ok(snapshot) => snapshot,
            Err(error) => return Ok(Seen { cursor, state: SeenState::Unusable(error) }),
        };
        if !snapshot.instances.is_empty() || snapshot.rejected > 0 {
            lock(&self.known).insert(service.into());
        } else if !lock(&self.known).contains(service) {
            let mut listed = false;
            let asked = self
                .each_service(connection, |name| {
                    listed |= name == service;
                    !listed
                })
                .await;
            match asked {
                Ok(()) if !listed => return Ok(Seen { cursor, state: SeenState::UnknownService }),
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Unreachable => return Err(error),
                // Not allowed to list: what was answered stands.
                Err(_) => {}
            }
        }
        Ok(Seen { cursor, state: SeenState::Service((*snapshot).clone()) })
    }

    /// Names every service of the group until told to stop.
    async fn each_service(
        &self,
        connection: &Connection,
        mut go_on: impl FnMut(&str) -> bool,
    ) -> Result<(), DriverError> {
        let mut seen = 0;
        for page in 1..=PAGES_MAX {
            let mut body = self.naming("");
            body.insert("pageNo".into(), page.into());
            body.insert("pageSize".into(), PAGE.into());
            body.insert("selector".into(), "".into());
            let answer = self.call(connection, "ServiceListRequest", body).await?;
            let names =
                answer.body.get("serviceNames").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            for name in names.iter().filter_map(Value::as_str) {
                let name = match name.split_once("@@") {
                    Some((group, name)) if group == self.config.group => name,
                    Some(_) => continue,
                    None => name,
                };
                if !go_on(name) {
                    return Ok(());
                }
            }
            seen += names.len();
            let count = answer.body.get("count").and_then(instances::number).unwrap_or_default();
            if names.is_empty() || seen as f64 >= count {
                break;
            }
        }
        Ok(())
    }

    /// Registers or deregisters a persistent instance.
    async fn persistent(
        &self,
        connection: &Connection,
        service: &str,
        kind: &str,
        wired: &Wired,
    ) -> Result<(), DriverError> {
        self.call(connection, "PersistentInstanceRequest", self.one(service, kind, wired)).await.map(|_| ())
    }

    /// Takes away what this process did not register: possible for persistent instances only.
    async fn withdraw_foreign(self: &Arc<Self>, service: &str, id: &InstanceId) -> Result<(), DriverError> {
        let connection = self.connection().await?;
        let Some(latest) = self.next(&connection, service, None).await? else { return Ok(()) };
        let snapshot = latest.view?;
        let Some(instance) = snapshot.instances.iter().find(|instance| instance.id == *id) else { return Ok(()) };
        if self.config.ephemeral {
            return Err(DriverError::new(
                ErrorKind::Unsupported,
                format!(
                    "`{id}` belongs to another process and ends with it; only persistent instances can be taken away"
                ),
            ));
        }
        let wired = Wired::of(instance, self.config.home(), "", usize::MAX)?;
        self.persistent(&connection, service, "deregisterInstance", &wired).await
    }
}

/// Whether persistent instances go over gRPC. A server that does not say so takes them for ephemeral ones, or not at all.
fn takes_persistent(connection: &Connection) -> bool {
    connection.negotiated && connection.has_ability(PERSISTENT)
}

fn cursor(latest: &Latest) -> Cursor {
    Cursor::new(latest.version.to_string())
}

/// What a fuzz target feeds with bytes: an envelope from a server, its list read.
#[doc(hidden)]
pub fn read_payload(bytes: &[u8]) -> Option<crate::driver::Snapshot> {
    use prost::Message as _;
    let message = wire::unpack(wire::Payload::decode(bytes).ok()?).ok()?;
    let _ = wire::refusal(&message);
    let info = message.body.get("serviceInfo").unwrap_or(&Value::Null);
    instances::read_list(info, &instances::Filter::default()).ok().map(|list| list.snapshot)
}
