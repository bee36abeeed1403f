//! SOFARegistry: publishing and subscribing over Bolt with protobuf, servers 6 and later.
//!
//! ```text
//! sofa://127.0.0.1:9603                                  the lookup port of one or more session servers
//! sofa://10.0.0.5:9603?group=SOFA&zone=CELL_A&scope=dataCenter
//! sofa://10.0.0.5:9600?direct=true                       a session server itself, without a lookup
//! ```
//!
//! | parameter | meaning | default |
//! |---|---|---|
//! | `group` | group (SOFARPC's is `SOFA`, Seata's `SEATA_GROUP`) | `DEFAULT_GROUP` |
//! | `instance-id` | instance id, the tenant | `DEFAULT_INSTANCE_ID` |
//! | `zone` | zone of this process: of the session servers looked up and of what is published | `DEFAULT_ZONE` |
//! | `scope` | what a subscription sees: `zone` (publishers of the session server's zone), `dataCenter`, `global` | `global` |
//! | `multi` | `true`: with the scope `global` also what the servers hold of other data centres, but then a server leaves out publishers whose zone it does not know; `false`: what the reference client asks for, its own data centre | `false` |
//! | `app` | application name in the server's logs | `metaroute` |
//! | `layout` | `metaroute`, or `seata` for data boxes that are an address and nothing else | `metaroute` |
//! | `direct` | `true`: the address is that of session servers' Bolt port (9600), not of the lookup (9603) | `false` |
//! | `tls`, `ca`, `cert`, `key` | HTTPS for the lookup; Bolt itself has no TLS | off |
//!
//! **Layout.** The service is the *data id*; `DATA_ID#@#INSTANCE_ID#@#GROUP` is the data info id. Every instance is a publisher of
//! its own with one data box, `HOST:PORT?key=value&…`, sorted, percent-encoded: metadata as text, `zone` and `region`, the rest
//! under `metaroute-…`. Read besides: SOFARPC's `bolt://HOST:PORT?…`, Seata's `HOST:PORT`, and `HOST:PORT|meta=…` of a sketch for
//! Seata. Publisher attributes never reach subscribers, so nothing is put there.
//!
//! **Wire.** Bolt version 1, codec 11. Pushes are decoded by the name of their class (their codec byte says Hessian),
//! answered always (silence repeats them every three seconds), and kept per data centre with its version; an
//! older version is dropped. Errors come with a Hessian body even so; the Bolt status decides. Before version 6 servers
//! know no protobuf: that is reported as such.
//!
//! **Liveness** is the connection: when it ends, the server forgets what was published over it within about two seconds. A sign
//! of life is sent every 4 s, and a connection on which nothing arrived for 12 s is given up. After that everything is
//! published and subscribed again, with new versions, over a new connection, if need be to another session server.
//!
//! **Unknown** is an empty push of version 1: nobody published yet. After a reconnect it is not believed for 5 s when
//! something was known before.
//!
//! **Listing** asks the looked-up server's `/digest/getDataInfoIdList`; with `direct=true` there is nobody to ask.
//!
//! **Limits.** Ours: keys and values together 32768 characters. **Lossy.** Kinds of metadata values (everything becomes text) and
//! `healthy=false` on registering. With `layout=seata` everything but the address, so an instance with metadata is refused.
//! Somebody else's publication cannot be taken away: it ends with its connection.
//!
//! Proven against SOFARegistry 6.3.0 and its Java client 6.3.0 in both directions, and against a recorded refusal of 5.4.3. Its
//! form for several data centres is proven with one of them; two and the configurator are unproven. Access is not controlled: the
//! server 6.3.0 that is published checks no signature, and none is sent.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metaroute_core::instance::{Incarnation, Instance, InstanceId};
use tokio::sync::{OnceCell, watch};
use tokio::time::Instant;

use crate::backend::{Params, bad};
use crate::carrier;
use crate::document::Note;
use crate::driver::{
    Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Lease, Limits, Renewal, Seen, SeenState, Snapshot,
};
use crate::holdings::{self, Holdings};
use crate::http::{CALL_TIMEOUT, Http, refusal, unreachable};
use crate::registry::ConnectError;
use crate::tls::Tls;
use crate::url::RegistryUrl;
use crate::web::{Method, StatusCode};

mod connection;
mod databox;
pub mod frame;
mod message;

use connection::{Connection, Pushed};
use message::{BaseRegisterPb, DataBoxPb, PublisherRegisterPb, REGISTER, SubscriberRegisterPb, UNREGISTER};

/// Ports of a session server: lookup and Bolt.
const LOOKUP_PORT: u16 = 9603;
const BOLT_PORT: u16 = 9600;
/// How often it is checked that the connection a publication hangs on is still there. Nothing is sent for it.
const CHECK: Duration = Duration::from_secs(1);
/// The first push takes up to 4 s on a quiet server.
const FIRST_PUSH: Duration = Duration::from_secs(15);
/// How long after a reconnect "unknown" is not believed.
const SETTLE: Duration = Duration::from_secs(5);
/// How long a subscription nobody watches is kept.
const IDLE: Duration = Duration::from_secs(60);
/// More is not said about one list.
const NOTES_MAX: usize = 20;

/// A SOFARegistry.
pub(crate) struct Sofa {
    servers: Servers,
    names: Names,
    scope: &'static str,
    /// Whether data of other data centres is asked for, too.
    multi: bool,
    plain: bool,
    /// One connects, the others wait for it.
    connecting: tokio::sync::Mutex<()>,
    link: Mutex<Option<Arc<Link>>>,
    own: Holdings<Own>,
    known: Mutex<HashSet<Box<str>>>,
    /// Tells the lives of one process apart, and those of several.
    process: u64,
    counter: AtomicU64,
}

/// Where session servers are.
enum Servers {
    Lookup(Box<Http>),
    Direct(Vec<String>),
}

struct Names {
    group: String,
    instance_id: String,
    zone: String,
    app: String,
}

/// A connection, and what hangs on it.
struct Link {
    number: u64,
    connection: Connection,
    subscribers: Mutex<HashMap<Box<str>, Arc<Subscriber>>>,
}

struct Subscriber {
    number: u64,
    regist_id: String,
    pushed: watch::Receiver<Pushed>,
    /// Set once the server has taken the subscription.
    taken: OnceCell<()>,
    watchers: AtomicUsize,
    used: Mutex<Instant>,
}

/// Something published by us.
#[derive(Clone)]
struct Own {
    instance: Instance,
    incarnation: Incarnation,
    regist_id: String,
    /// The last one sent; the next one must be higher.
    version: i64,
    /// The connection that carries it, once the server has taken it.
    link: Option<u64>,
}

/// A cursor: whose pushes, how many of them were seen, and whether the service was known.
struct Place {
    subscriber: u64,
    changes: u64,
    known: bool,
}

impl Sofa {
    pub(crate) fn new(url: &RegistryUrl) -> Result<Self, ConnectError> {
        let mut params = Params::of(url);
        let mut text = |name, default: &str| -> Result<String, ConnectError> {
            let value = params.text(name).unwrap_or(default);
            if !is_part(value) {
                return Err(bad(format!("parameter `{name}={value}` {NOT_A_PART}")));
            }
            Ok(value.to_owned())
        };
        let names = Names {
            group: text("group", "DEFAULT_GROUP")?,
            instance_id: text("instance-id", "DEFAULT_INSTANCE_ID")?,
            zone: text("zone", "DEFAULT_ZONE")?,
            app: text("app", "metaroute")?,
        };
        let scope = match params.text("scope").unwrap_or("global") {
            "global" => "global",
            "dataCenter" | "data-center" => "dataCenter",
            "zone" => "zone",
            other => return Err(bad(format!("parameter `scope={other}`: expected `zone`, `dataCenter` or `global`"))),
        };
        let multi = params.switch("multi", false)?;
        if multi && scope != "global" {
            return Err(bad(format!("`multi=true` goes with `scope=global`, not with `scope={scope}`")));
        }
        let plain = match params.text("layout").unwrap_or("metaroute") {
            "metaroute" => false,
            "seata" => true,
            other => return Err(bad(format!("parameter `layout={other}`: expected `metaroute` or `seata`"))),
        };
        let direct = params.switch("direct", false)?;
        let tls = Tls::of(&mut params, false)?;
        params.finish()?;
        if !url.path().is_empty() {
            return Err(bad("`sofa:` takes no path; the service is the data id"));
        }
        let servers = if direct {
            let with_port = |host: &crate::url::Host| {
                let mut host = host.clone();
                host.port = host.port.or(Some(BOLT_PORT));
                host.to_string()
            };
            Servers::Direct(url.hosts().iter().map(with_port).collect())
        } else {
            Servers::Lookup(Box::new(Http::new(url, LOOKUP_PORT, &tls)?))
        };
        Ok(Self {
            servers,
            names,
            scope,
            multi,
            plain,
            connecting: tokio::sync::Mutex::default(),
            link: Mutex::default(),
            own: Holdings::default(),
            known: Mutex::default(),
            process: rand::random(),
            counter: AtomicU64::new(1),
        })
    }

    /// A number that was not used before in this process.
    fn number(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// The services that were known when they were last seen.
    fn known(&self) -> MutexGuard<'_, HashSet<Box<str>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, while it works.
    fn open_link(&self) -> Option<Arc<Link>> {
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        link.as_ref().filter(|link| link.connection.is_open()).cloned()
    }

    /// The connection, a new one where the last one ended.
    async fn link(&self) -> Result<Arc<Link>, DriverError> {
        if let Some(link) = self.open_link() {
            return Ok(link);
        }
        let _one = self.connecting.lock().await;
        if let Some(link) = self.open_link() {
            return Ok(link);
        }
        let mut servers = self.session_servers().await?;
        // Spread over them, as the reference client does.
        let first = rand::random_range(0..servers.len());
        servers.rotate_left(first);
        let mut last = None;
        for server in &servers {
            match Connection::open(server).await {
                Ok(connection) => {
                    let link = Arc::new(Link { number: self.number(), connection, subscribers: Mutex::default() });
                    *self.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&link));
                    return Ok(link);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| DriverError::new(ErrorKind::Unreachable, "there is no session server")))
    }

    /// At least one `host:port`.
    async fn session_servers(&self) -> Result<Vec<String>, DriverError> {
        let http = match &self.servers {
            Servers::Direct(servers) => return Ok(servers.clone()),
            Servers::Lookup(http) => http,
        };
        let found = ask(http, "/api/servers/query.json", &[("zone", &*self.names.zone)]).await?;
        let found: Vec<String> = found.into_iter().filter(|server| !server.trim().is_empty()).collect();
        if found.is_empty() {
            let message = format!("no session server in the zone `{}`", self.names.zone);
            return Err(DriverError::new(ErrorKind::Unreachable, message));
        }
        Ok(found)
    }

    fn base(&self, service: &str, regist_id: &str, event: &str, version: i64) -> BaseRegisterPb {
        let Names { group, instance_id, zone, app } = &self.names;
        BaseRegisterPb {
            instance_id: instance_id.clone(),
            zone: zone.clone(),
            app_name: app.clone(),
            data_id: service.to_owned(),
            group: group.clone(),
            process_id: format!("{:016x}", self.process),
            regist_id: regist_id.to_owned(),
            client_id: regist_id.to_owned(),
            data_info_id: format!("{service}#@#{instance_id}#@#{group}"),
            event_type: event.to_owned(),
            version,
            timestamp: now_ms(),
            ..BaseRegisterPb::default()
        }
    }

    fn data_box(&self, instance: &Instance, incarnation: &Incarnation) -> Result<String, DriverError> {
        if self.plain {
            if let Some(key) = instance.metadata.keys().next() {
                let message = format!("metadata key `{key}`: the layout `seata` carries no metadata");
                return Err(DriverError::new(ErrorKind::Invalid, message));
            }
            return Ok(instance.address.to_string());
        }
        let mut lived = instance.clone();
        lived.incarnation = incarnation.clone();
        Ok(databox::write(&lived))
    }

    async fn publish(&self, service: &str, instance: &Instance) -> Result<(), DriverError> {
        check_service(service)?;
        let link = self.link().await?;
        let key = holdings::key(service, &instance.id);
        let mut publisher = {
            let mut own = self.own.lock();
            let known = own.entry(key.clone()).or_insert_with(|| {
                let life = format!("{:016x}-{}", self.process, self.number());
                let incarnation = Incarnation::new(&*life);
                Own { instance: instance.clone(), incarnation, regist_id: life, version: 0, link: None }
            });
            if known.link == Some(link.number) && known.instance == *instance {
                return Ok(());
            }
            // What is on its way is not what is there, until it is answered.
            known.link = None;
            known.version += 1;
            known.instance = instance.clone();
            if !instance.incarnation.as_str().is_empty() {
                known.incarnation = instance.incarnation.clone();
            }
            known.clone()
        };
        let data = self.data_box(instance, &publisher.incarnation)?;
        let message = PublisherRegisterPb {
            data_list: vec![DataBoxPb { data }],
            base_register: Some(self.base(service, &publisher.regist_id, REGISTER, publisher.version)),
        };
        link.connection.register("PublisherRegisterPb", &message).await?;
        publisher.link = Some(link.number);
        if let Some(known) = self.own.lock().get_mut(&key).filter(|known| known.version == publisher.version) {
            known.link = publisher.link;
        }
        Ok(())
    }

    async fn unpublish(&self, service: &str, id: &InstanceId) -> Result<(), DriverError> {
        let publisher = self.own.lock().get_mut(&holdings::key(service, id)).map(|known| {
            known.link = None;
            known.version += 1;
            known.clone()
        });
        let Some(publisher) = publisher else { return self.not_ours(service, id).await };
        // Without the connection that carried it there is nothing left to take back.
        if let Some(link) = self.open_link() {
            let message = PublisherRegisterPb {
                data_list: Vec::new(),
                base_register: Some(self.base(service, &publisher.regist_id, UNREGISTER, publisher.version)),
            };
            link.connection.register("PublisherRegisterPb", &message).await?;
        }
        self.own.remove(service, id);
        Ok(())
    }

    /// Something that was not published here: it is not there, or it is somebody else's.
    async fn not_ours(&self, service: &str, id: &InstanceId) -> Result<(), DriverError> {
        let seen = self.next(service, None).await?;
        match seen.state {
            SeenState::Service(list) if list.instances.iter().any(|instance| instance.id == *id) => {
                let message = format!("`{id}` was published over another connection and ends with that");
                Err(DriverError::new(ErrorKind::Unsupported, message))
            }
            _ => Ok(()),
        }
    }

    /// The subscription of a service on a connection.
    async fn subscriber(&self, link: &Link, service: &str) -> Result<Arc<Subscriber>, DriverError> {
        check_service(service)?;
        let subscriber = {
            let mut subscribers = link.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(subscribers.entry(service.into()).or_insert_with(|| {
                let number = self.number();
                let regist_id = format!("{:016x}-{number}", self.process);
                let pushed = link.connection.listen(&regist_id);
                let (taken, watchers, used) = (OnceCell::new(), AtomicUsize::new(0), Mutex::new(Instant::now()));
                Arc::new(Subscriber { number, regist_id, pushed, taken, watchers, used })
            }))
        };
        let message = self.subscription(service, &subscriber.regist_id, REGISTER);
        subscriber.taken.get_or_try_init(|| link.connection.register("SubscriberRegisterPb", &message)).await?;
        Ok(subscriber)
    }

    fn subscription(&self, service: &str, regist_id: &str, event: &str) -> SubscriberRegisterPb {
        SubscriberRegisterPb {
            scope: self.scope.to_owned(),
            base_register: Some(self.base(service, regist_id, event, if event == REGISTER { 1 } else { 2 })),
            accept_encoding: String::new(),
            accept_multi: self.multi,
        }
    }

    /// Ends subscriptions that nobody has watched for a while.
    async fn sweep(&self, link: &Link) {
        let idle = {
            let mut subscribers = link.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
            let idle: Vec<(Box<str>, Arc<Subscriber>)> = subscribers
                .iter()
                .filter(|(_, subscriber)| subscriber.is_idle())
                .map(|(service, subscriber)| (service.clone(), Arc::clone(subscriber)))
                .collect();
            subscribers.retain(|_, subscriber| !subscriber.is_idle());
            idle
        };
        for (service, subscriber) in idle {
            link.connection.forget(&subscriber.regist_id);
            let message = self.subscription(&service, &subscriber.regist_id, UNREGISTER);
            if let Err(error) = link.connection.register("SubscriberRegisterPb", &message).await {
                tracing::debug!(%error, service = &*service, "a subscription was not ended");
            }
        }
    }

    async fn next(&self, service: &str, place: Option<Place>) -> Result<Seen, DriverError> {
        let link = self.link().await?;
        self.sweep(&link).await;
        let subscriber = self.subscriber(&link, service).await?;
        let _watching = Watching::new(&subscriber);
        let same = place.as_ref().filter(|place| place.subscriber == subscriber.number);
        let seen = same.map_or(0, |place| place.changes);
        // After a failure the cursor is not handed in again.
        let was_known = place.as_ref().is_some_and(|place| place.known) || self.known().contains(service);
        let mut pushed = subscriber.pushed.clone();
        let ended = link.connection.ended();
        tokio::pin!(ended);
        // The first push is owed; later ones come when they come.
        let patience = if seen == 0 { FIRST_PUSH } else { Duration::MAX };
        let mut state = tokio::select! {
            state = after(&mut pushed, seen, patience) => state.ok_or_else(|| {
                let message = format!("nothing was pushed for `{service}` within {} s", FIRST_PUSH.as_secs());
                DriverError::new(ErrorKind::Unreachable, message)
            })?,
            error = &mut ended => return Err(error),
        };
        let settled = Instant::now() + SETTLE;
        while was_known && same.is_none() && !state.known() {
            let left = settled.saturating_duration_since(Instant::now());
            let newer = tokio::select! {
                newer = after(&mut pushed, state.changes, left) => newer,
                error = &mut ended => return Err(error),
            };
            match newer {
                Some(newer) => state = newer,
                None => break,
            }
        }
        let known = state.known();
        if known {
            self.known().insert(service.into());
        } else {
            self.known().remove(service);
        }
        let cursor = Place { subscriber: subscriber.number, changes: state.changes, known }.cursor();
        Ok(Seen { cursor, state: seen_state(&state) })
    }
}

/// What was pushed after a number of changes; `None` when the time is up.
async fn after(pushed: &mut watch::Receiver<Pushed>, changes: u64, time: Duration) -> Option<Pushed> {
    let newer = async { pushed.wait_for(|pushed| pushed.changes > changes).await.map(|pushed| pushed.clone()) };
    match tokio::time::timeout(time, newer).await {
        Ok(Ok(pushed)) => Some(pushed),
        // Nobody pushes any more: the connection ends, which is waited for beside this.
        Ok(Err(_)) => std::future::pending().await,
        Err(_) => None,
    }
}

fn seen_state(pushed: &Pushed) -> SeenState {
    if let Some(why) = &pushed.unusable {
        return SeenState::Unusable(DriverError::new(ErrorKind::Invalid, why.clone()));
    }
    if !pushed.known() {
        return SeenState::UnknownService;
    }
    let mut instances = BTreeMap::new();
    let (mut rejected, mut notes) = (0, Vec::new());
    let mut note = |code, message| {
        if notes.len() < NOTES_MAX {
            notes.push(Note { code, message, file: String::new(), at: None });
        }
    };
    for text in pushed.segments.values().flat_map(|segment| &segment.boxes) {
        match databox::read(text) {
            Ok(instance) => {
                if let Some(other) = instances.insert(instance.id.clone(), instance) {
                    note("duplicate_id", format!("`{}` is published twice; one of them counts", other.id));
                }
            }
            Err(why) => {
                rejected += 1;
                note("unreadable_data_box", why);
            }
        }
    }
    SeenState::Service(Snapshot { instances: instances.into_values().collect(), rejected, notes })
}

/// Whether a text can be a part of a data info id. The server refuses some that cannot without saying why, and would take others
/// for two different ones: `a#@` with `b` and `a` with `@#b` are joined to the same.
fn is_part(text: &str) -> bool {
    !text.is_empty() && !text.contains("#@#") && !text.ends_with("#@") && !text.starts_with("@#")
}

const NOT_A_PART: &str = "must not be empty, contain `#@#`, begin with `@#` or end with `#@`";

fn check_service(service: &str) -> Result<(), DriverError> {
    if !is_part(service) {
        let message = format!("data id `{service}` {NOT_A_PART}");
        return Err(DriverError::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Asks a lookup server for a list.
async fn ask(http: &Http, path: &str, query: &[(&str, &str)]) -> Result<Vec<String>, DriverError> {
    let response = http.send(Method::GET, path, CALL_TIMEOUT, |request| request.query(query)).await?;
    let server = response.server().to_owned();
    match response.status() {
        StatusCode::OK => {
            let body = response.bytes().await.map_err(|error| unreachable(&server, error))?;
            serde_json::from_slice(&body).map_err(|error| {
                let message = format!("{server} did not answer `{path}` with a list");
                DriverError::new(ErrorKind::Unreachable, message).because(error)
            })
        }
        StatusCode::NOT_FOUND => {
            Err(DriverError::new(ErrorKind::Unsupported, format!("{server} does not have `{path}`")))
        }
        _ => Err(refusal(&server, response).await),
    }
}

impl Subscriber {
    fn is_idle(&self) -> bool {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        self.watchers.load(Ordering::SeqCst) == 0 && used.elapsed() > IDLE
    }
}

/// Somebody watches.
struct Watching<'a>(&'a Subscriber);

impl<'a> Watching<'a> {
    fn new(subscriber: &'a Subscriber) -> Self {
        subscriber.watchers.fetch_add(1, Ordering::SeqCst);
        Self(subscriber)
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        *self.0.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.watchers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Place {
    fn cursor(&self) -> Cursor {
        Cursor::new(format!("{}:{}:{}", self.subscriber, self.changes, u8::from(self.known)))
    }

    /// `None` for a cursor of somebody else.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':').map(|part| part.parse::<u64>().ok());
        let (subscriber, changes, known) = (parts.next()??, parts.next()??, parts.next()??);
        (known < 2 && parts.next().is_none()).then_some(Self { subscriber, changes, known: known == 1 })
    }
}

impl Driver for Sofa {
    fn capabilities(&self) -> Capabilities {
        let list = matches!(self.servers, Servers::Lookup(_));
        Capabilities { register: true, list, liveness: true, weight: !self.plain }
    }

    fn limits(&self) -> Limits {
        Limits { total_chars: Some(32 * 1024), reserved_prefixes: &[carrier::RESERVED], ..Limits::default() }
    }

    fn apply<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(async {
            self.publish(service, instance).await?;
            Ok(Lease { renew_every: Some(CHECK) })
        })
    }

    fn renew<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Renewal> {
        Box::pin(async {
            let carried_by = self.own.get(service, &instance.id).and_then(|own| own.link);
            let open = self.open_link().map(|link| link.number);
            Ok(if carried_by.is_some() && carried_by == open { Renewal::Kept } else { Renewal::Lost })
        })
    }

    fn withdraw<'a>(&'a self, service: &'a str, id: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(self.unpublish(service, id))
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(async {
            let Servers::Lookup(http) = &self.servers else {
                let message = "with `direct=true` there is no lookup server that could list services";
                return Err(DriverError::new(ErrorKind::Unsupported, message));
            };
            let found = ask(http, "/digest/getDataInfoIdList", &[]).await?;
            let ours = format!("#@#{}#@#{}", self.names.instance_id, self.names.group);
            let names: BTreeSet<&str> = found.iter().filter_map(|id| id.strip_suffix(&ours)).collect();
            Ok(names.into_iter().map(Into::into).collect())
        })
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(self.next(service, after.and_then(|cursor| Place::parse(cursor.as_str()))))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            self.link.lock().unwrap_or_else(PoisonError::into_inner).take();
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
