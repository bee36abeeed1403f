//! A Nacos server as strict as the Java one, which no registry of packages has.
//!
//! Its rules are those seen on a real Nacos 3.1 (limits, codes and texts, one record per connection and service, what a
//! batch and a deregistration do, the protection threshold, what HTTP answers) and read in its source (the greeting,
//! delayed pushes, who is told what). State is in memory and ends with [`Fake::stop`], as ephemeral state does.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use test_support::Port;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    nonstandard_style,
    clippy::all,
    clippy::pedantic,
    reason = "generated"
)]
mod proto {
    tonic::include_proto!("_");
}

use proto::Payload;

/// How strict and how slow the server is; a test changes what it is about.
#[derive(Clone, Debug)]
pub(crate) struct Manners {
    /// Acknowledges connections, as servers from 2.3 on.
    pub(crate) negotiates: bool,
    /// Takes persistent instances over gRPC.
    pub(crate) persistent: bool,
    /// A starting server answers 300.
    pub(crate) started: bool,
    /// Turns away who introduces itself.
    pub(crate) full: bool,
    /// Answers nothing at all on requests, as a server that hangs.
    pub(crate) silent: bool,
    /// How long a push waits, to gather changes.
    pub(crate) push_delay: Duration,
    /// Leaves the clusters out of pushes, as 2.1.1 did.
    pub(crate) pushes: bool,
    /// Most characters of metadata.
    pub(crate) metadata_limit: usize,
    /// User and password that are asked for.
    pub(crate) login: Option<(&'static str, &'static str)>,
    /// How long a token lasts.
    pub(crate) token_ttl: Duration,
    /// Which login paths there are: of version 3, of version 1.
    pub(crate) login_paths: (bool, bool),
    /// Whether the client interfaces of HTTP are there: version 1, version 3.
    pub(crate) http: (bool, bool),
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            negotiates: true,
            persistent: true,
            started: true,
            full: false,
            silent: false,
            // A tenth of the real one.
            push_delay: Duration::from_millis(50),
            pushes: true,
            metadata_limit: 1024,
            login: None,
            token_ttl: Duration::from_secs(18000),
            login_paths: (true, true),
            http: (true, true),
        }
    }
}

/// Namespace, group and service.
pub(crate) type Key = (String, String, String);

#[derive(Default)]
pub(crate) struct State {
    clients: HashMap<String, Client>,
    /// Registered over HTTP, by service and `ip:port:cluster`.
    pub(super) beats: BTreeMap<(Key, String), Beat>,
    persistent: BTreeMap<Key, Vec<Value>>,
    thresholds: HashMap<Key, f64>,
    /// What operators set: weight, enabled and metadata by service, ip and port.
    overlays: HashMap<(Key, String, i64), Map<String, Value>>,
    /// Every request: type and body, oldest first.
    asked: Vec<(String, Value)>,
    tokens: HashMap<String, Instant>,
    logins: usize,
    connections: usize,
    dirty: BTreeSet<Key>,
    /// Answers that pushes and questions got: kind of answer.
    answers: Vec<String>,
    last_ref: i64,
}

struct Client {
    out: mpsc::Sender<Result<Payload, Status>>,
    publishers: BTreeMap<Key, Vec<Value>>,
    subscribers: BTreeMap<Key, String>,
}

/// One instance kept by heartbeats.
#[derive(Clone, Debug)]
pub(super) struct Beat {
    pub(super) instance: Value,
    pub(super) last: Instant,
}

pub(super) struct Shared {
    pub(super) manners: Mutex<Manners>,
    pub(super) state: Mutex<State>,
}

/// A running server, or one that was stopped.
pub(crate) struct Fake {
    port: Port,
    grpc: Port,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

impl Fake {
    pub(crate) fn start(manners: Manners) -> Self {
        let (port, grpc) = Port::reserve_pair(1000);
        let shared = Arc::new(Shared { manners: Mutex::new(manners), state: Mutex::default() });
        let mut fake = Self { port, grpc, shared, runtime: None };
        fake.start_again();
        fake
    }

    /// Starts it on the same ports, with nothing but its persistent instances.
    pub(crate) fn start_again(&mut self) {
        self.stop();
        let kept = std::mem::take(&mut self.state().persistent);
        *self.state() = State { persistent: kept, ..State::default() };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (grpc, http) = (self.grpc.address(), self.port.address());
        let service = Service(Arc::clone(&self.shared));
        let incoming = runtime.block_on(async move { TcpIncoming::bind(grpc).expect("a reserved port is free") });
        let server = Server::builder()
            .add_service(proto::request_server::RequestServer::new(service.clone()).max_decoding_message_size(10 << 20))
            .add_service(proto::bi_request_stream_server::BiRequestStreamServer::new(service));
        runtime.spawn(async move { server.serve_with_incoming(incoming.with_nodelay(Some(true))).await });
        let app = super::fake_http::app(Arc::clone(&self.shared));
        let listener = runtime.block_on(tokio::net::TcpListener::bind(http)).expect("a reserved port is free");
        runtime.spawn(async move { axum::serve(listener, app).await });
        let shared = Arc::clone(&self.shared);
        runtime.spawn(async move {
            loop {
                let delay = shared.manners().push_delay;
                tokio::time::sleep(delay).await;
                shared.expire();
                shared.push_all();
            }
        });
        self.runtime = Some(runtime);
    }

    /// Ends it with all its connections.
    pub(crate) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // On a thread of its own: it may be dropped inside another runtime.
            let ended = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(5)));
            let _ = ended.join();
        }
        self.state().clients.clear();
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.port.address()
    }

    pub(crate) fn grpc(&self) -> SocketAddr {
        self.grpc.address()
    }

    pub(crate) fn url(&self, rest: &str) -> String {
        format!("nacos://127.0.0.1:{}{rest}", self.port.number())
    }

    pub(crate) fn manners(&self) -> MutexGuard<'_, Manners> {
        self.shared.manners()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    /// How many connections introduced themselves so far.
    pub(crate) fn connections(&self) -> usize {
        self.state().connections
    }

    /// How many are there.
    pub(crate) fn clients(&self) -> usize {
        self.state().clients.len()
    }

    /// How often somebody logged in.
    pub(crate) fn logins(&self) -> usize {
        self.state().logins
    }

    /// Forgets every token, as a server does whose key was changed.
    pub(crate) fn forget_tokens(&self) {
        self.state().tokens.clear();
    }

    /// Forgets who its connections are, while they stay open.
    pub(crate) fn forget_connections(&self) {
        let mut state = self.state();
        let gone: Vec<Key> = state.clients.values().flat_map(|client| client.publishers.keys().cloned()).collect();
        state.clients.clear();
        state.dirty.extend(gone);
    }

    /// The requests of a type so far.
    pub(crate) fn asked(&self, kind: &str) -> Vec<Value> {
        self.state().asked.iter().filter(|(name, _)| name == kind).map(|(_, body)| body.clone()).collect()
    }

    /// The kinds of answers that came over streams.
    pub(crate) fn answers(&self, kind: &str) -> usize {
        self.state().answers.iter().filter(|answer| *answer == kind).count()
    }

    /// What the server has of a service, as `ip:port`, sorted.
    pub(crate) fn has(&self, service: &str) -> Vec<String> {
        let key = key("public", "DEFAULT_GROUP", service);
        let mut list: Vec<String> = self.state().instances(&key).iter().map(address).collect();
        list.sort();
        list
    }

    /// The instances of a service as they would be sent.
    pub(crate) fn instances(&self, group: &str, service: &str) -> Vec<Value> {
        self.state().instances(&key("public", group, service))
    }

    /// Sets the protection threshold of a service.
    pub(crate) fn protect(&self, service: &str, threshold: f64) {
        let key = key("public", "DEFAULT_GROUP", service);
        let mut state = self.state();
        state.thresholds.insert(key.clone(), threshold);
        state.dirty.insert(key);
    }

    /// Overlays an instance as an operator does.
    pub(crate) fn overlay(&self, service: &str, ip: &str, port: i64, what: Value) {
        let key = key("public", "DEFAULT_GROUP", service);
        let mut state = self.state();
        state.overlays.insert((key.clone(), ip.to_owned(), port), what.as_object().cloned().unwrap_or_default());
        state.dirty.insert(key);
    }

    /// Sends a request over every stream.
    pub(crate) fn tell(&self, kind: &str, body: Value) {
        let state = self.state();
        for client in state.clients.values() {
            let _ = client.out.try_send(Ok(pack(kind, &body)));
        }
    }

    /// Pushes a list of a test's own.
    pub(crate) fn push(&self, service: &str, info: Value) {
        let body = json!({
            "requestId": "own", "module": "naming", "namespace": "public",
            "serviceName": service, "groupName": "DEFAULT_GROUP", "serviceInfo": info,
        });
        self.tell("NotifySubscriberRequest", body);
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(super) fn key(namespace: &str, group: &str, service: &str) -> Key {
    let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
    (or(namespace, "public"), or(group, "DEFAULT_GROUP"), service.to_owned())
}

fn address(instance: &Value) -> String {
    format!("{}:{}", instance["ip"].as_str().unwrap_or_default(), instance["port"])
}

fn pack(kind: &str, body: &Value) -> Payload {
    Payload {
        metadata: Some(proto::Metadata {
            r#type: kind.to_owned(),
            headers: HashMap::new(),
            client_ip: "127.0.0.1".into(),
        }),
        body: Some(proto::Body { type_url: String::new(), value: body.to_string().into_bytes() }),
    }
}

fn refusal(code: i64, message: &str) -> Payload {
    pack("ErrorResponse", &json!({"resultCode": 500, "errorCode": code, "message": message}))
}

impl State {
    /// Registered instances with what operators set over them.
    fn instances(&self, key: &Key) -> Vec<Value> {
        let published = self.clients.values().filter_map(|client| client.publishers.get(key)).flatten();
        let beats = self.beats.iter().filter(|((service, _), _)| service == key).map(|(_, beat)| &beat.instance);
        let persistent = self.persistent.get(key).into_iter().flatten();
        published
            .chain(beats)
            .chain(persistent)
            .map(|instance| {
                let mut instance = instance.clone();
                let ip = instance["ip"].as_str().unwrap_or_default().to_owned();
                if let Some(over) = self.overlays.get(&(key.clone(), ip, instance["port"].as_i64().unwrap_or_default()))
                {
                    for (name, value) in over {
                        match (name.as_str(), value) {
                            ("metadata", Value::Object(more)) => {
                                for (k, v) in more {
                                    instance["metadata"][k] = v.clone();
                                }
                            }
                            _ => instance[name] = value.clone(),
                        }
                    }
                }
                instance
            })
            .collect()
    }

    fn is_known(&self, key: &Key) -> bool {
        self.clients.values().any(|client| client.publishers.contains_key(key))
            || self.beats.keys().any(|(service, _)| service == key)
            || self.persistent.contains_key(key)
    }

    pub(super) fn services(&self, namespace: &str, group: &str) -> BTreeSet<String> {
        let published = self.clients.values().flat_map(|client| client.publishers.keys());
        published
            .chain(self.beats.keys().map(|(key, _)| key))
            .chain(self.persistent.keys())
            .filter(|key| key.0 == namespace && key.1 == group)
            .map(|key| key.2.clone())
            .collect()
    }

    /// A list as clients get it: of some clusters, under the protection threshold.
    pub(super) fn info(&mut self, key: &Key, clusters: &str, enabled_only: bool, healthy_only: bool) -> Value {
        let wanted: Vec<&str> = clusters.split(',').filter(|cluster| !cluster.is_empty()).collect();
        let mut hosts = self.instances(key);
        hosts.retain(|host| wanted.is_empty() || wanted.contains(&host["clusterName"].as_str().unwrap_or_default()));
        hosts.retain(|host| !enabled_only || host["enabled"] == true);
        let healthy = hosts.iter().filter(|host| host["healthy"] == true).count();
        let threshold = self.thresholds.get(key).copied().unwrap_or(0.0);
        let protected = !hosts.is_empty() && healthy as f64 / hosts.len() as f64 <= threshold;
        if protected {
            hosts.iter_mut().for_each(|host| host["healthy"] = true.into());
        } else if healthy_only {
            hosts.retain(|host| host["healthy"] == true);
        }
        // Never the same time twice.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
        self.last_ref = now.max(self.last_ref + 1);
        json!({
            "name": key.2, "groupName": key.1, "clusters": clusters, "cacheMillis": 10000, "hosts": hosts,
            "lastRefTime": self.last_ref, "checksum": "", "allIPs": false,
            "reachProtectionThreshold": protected, "valid": true,
        })
    }

    pub(super) fn touch(&mut self, key: &Key) {
        self.dirty.insert(key.clone());
    }

    pub(super) fn ephemeral_there(&self, key: &Key) -> bool {
        self.is_known(key) && !self.persistent.contains_key(key)
    }

    pub(super) fn persistent_there(&self, key: &Key) -> bool {
        self.persistent.contains_key(key)
    }

    pub(super) fn keep(&mut self, key: &Key, instance: Value) {
        let list = self.persistent.entry(key.clone()).or_default();
        list.retain(|other| address(other) != address(&instance) || other["clusterName"] != instance["clusterName"]);
        list.push(instance);
        self.touch(key);
    }

    pub(super) fn let_go(&mut self, key: &Key, ip: &str, port: i64) {
        if let Some(list) = self.persistent.get_mut(key) {
            list.retain(|other| other["ip"] != ip || other["port"] != port);
            if list.is_empty() {
                self.persistent.remove(key);
            }
        }
        self.touch(key);
    }

    /// Lays what an operator says over an instance, if there is one.
    pub(super) fn lay_over(&mut self, key: &Key, ip: &str, port: i64, what: Map<String, Value>) -> bool {
        let there = self.instances(key).iter().any(|instance| instance["ip"] == ip && instance["port"] == port);
        if there {
            self.overlays.insert((key.clone(), ip.to_owned(), port), what);
            self.touch(key);
        }
        there
    }

    pub(super) fn log_in(&mut self, ttl: Duration) -> String {
        self.logins += 1;
        let token = format!("token-{}", self.logins);
        self.tokens.insert(token.clone(), Instant::now() + ttl);
        token
    }

    pub(super) fn is_token(&self, token: &str) -> bool {
        self.tokens.get(token).is_some_and(|end| Instant::now() < *end)
    }
}

/// What an instance's metadata, and the names around it, may be.
pub(super) fn check(limit: usize, key: &Key, instance: &Value) -> Result<(), String> {
    let illegal = |what: &str, why: &str| Err(format!("Param '{what}' is illegal, {why}"));
    let spoken = |text: &str| !text.chars().any(|c| c.is_whitespace() || ('\u{4e00}'..='\u{9fa5}').contains(&c));
    if key.2.starts_with('@') || key.2.contains("@@") || !spoken(&key.2) {
        return illegal("serviceName", "illegal characters should not appear in the param.");
    }
    if key.2.chars().count() > 512 {
        return illegal("serviceName", "the param length should not exceed 512.");
    }
    let cluster = instance["clusterName"].as_str().unwrap_or_default();
    if cluster.len() > 64 || !cluster.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
        return illegal("cluster", "illegal characters should not appear in the param.");
    }
    let chars = |text: &str| text.encode_utf16().count();
    let metadata = instance["metadata"].as_object().into_iter().flatten();
    let total: usize = metadata.map(|(key, value)| chars(key) + chars(value.as_str().unwrap_or_default())).sum();
    if total > limit {
        return illegal("Metadata", &format!("the param length should not exceed {limit}."));
    }
    Ok(())
}

/// An instance as the server keeps it.
fn kept(key: &Key, instance: &Value, ephemeral: bool) -> Value {
    let mut instance = instance.clone();
    if instance["clusterName"].as_str().unwrap_or_default().is_empty() {
        instance["clusterName"] = "DEFAULT".into();
    }
    if !instance["metadata"].is_object() {
        instance["metadata"] = json!({});
    }
    instance["ephemeral"] = ephemeral.into();
    instance["serviceName"] = format!("{}@@{}", key.1, key.2).into();
    instance["instanceId"] = format!(
        "{}#{}#{}#{}@@{}",
        instance["ip"].as_str().unwrap_or_default(),
        instance["port"],
        instance["clusterName"].as_str().unwrap_or_default(),
        key.1,
        key.2
    )
    .into();
    for (name, value) in
        [("instanceHeartBeatInterval", 5000), ("instanceHeartBeatTimeOut", 15000), ("ipDeleteTimeout", 30000)]
    {
        instance[name] = value.into();
    }
    instance["instanceIdGenerator"] = "simple".into();
    instance
}

impl Shared {
    pub(super) fn manners(&self) -> MutexGuard<'_, Manners> {
        self.manners.lock().expect("no test panics while it holds this")
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds this")
    }

    fn push_all(&self) {
        let pushes = self.manners().pushes;
        let mut state = self.state();
        for key in std::mem::take(&mut state.dirty) {
            if !pushes {
                continue;
            }
            let subscribers: Vec<(mpsc::Sender<_>, String)> = state
                .clients
                .values()
                .filter_map(|client| Some((client.out.clone(), client.subscribers.get(&key)?.clone())))
                .collect();
            for (out, clusters) in subscribers {
                let info = state.info(&key, &clusters, false, false);
                let body = json!({
                    "requestId": "push", "module": "naming", "namespace": key.0,
                    "serviceName": key.2, "groupName": key.1, "serviceInfo": info,
                });
                let _ = out.try_send(Ok(pack("NotifySubscriberRequest", &body)));
            }
        }
    }

    /// Marks instances without heartbeats, and removes them.
    fn expire(&self) {
        let mut state = self.state();
        let mut changed = Vec::new();
        state.beats.retain(|(key, _), beat| {
            let time = |name: &str, default: u64| {
                let value = beat.instance["metadata"][name].as_str().and_then(|text| text.parse().ok());
                Duration::from_millis(value.unwrap_or(default))
            };
            let silence = beat.last.elapsed();
            if silence > time("preserved.ip.delete.timeout", 30_000) {
                changed.push(key.clone());
                return false;
            }
            if silence > time("preserved.heart.beat.timeout", 15_000) && beat.instance["healthy"] == true {
                beat.instance["healthy"] = false.into();
                changed.push(key.clone());
            }
            true
        });
        state.dirty.extend(changed);
    }
}

#[derive(Clone)]
struct Service(Arc<Shared>);

impl Service {
    fn answer(&self, client: &str, payload: Payload) -> Result<Payload, Status> {
        let manners = self.0.manners().clone();
        let metadata = payload.metadata.unwrap_or_default();
        let kind = metadata.r#type;
        let body: Value = serde_json::from_slice(&payload.body.unwrap_or_default().value).unwrap_or_default();
        if !manners.started {
            return Ok(refusal(300, "Server is starting,please try later."));
        }
        let mut state = self.0.state();
        if kind == "ServerCheckRequest" {
            return Ok(pack(
                "ServerCheckResponse",
                &json!({
                    "resultCode": 200, "errorCode": 0,
                    "connectionId": client, "supportAbilityNegotiation": manners.negotiates,
                }),
            ));
        }
        if !state.clients.contains_key(client) {
            return Ok(refusal(301, "Connection is unregistered."));
        }
        if kind == "HealthCheckRequest" {
            return Ok(pack("HealthCheckResponse", &json!({"resultCode": 200, "errorCode": 0})));
        }
        state.asked.push((kind.clone(), body.clone()));
        if manners.login.is_some() {
            match metadata.headers.get("accessToken") {
                None => return Ok(refusal(403, "user not found!")),
                Some(token) if !state.is_token(token) => return Ok(refusal(403, "token expired!")),
                Some(_) => {}
            }
        }
        let text = |name: &str| body[name].as_str().unwrap_or_default();
        let key = key(text("namespace"), text("groupName"), text("serviceName"));
        let ok = |kind: &str, mut more: Value| {
            more["resultCode"] = 200.into();
            more["errorCode"] = 0.into();
            more["requestId"] = body["requestId"].clone();
            pack(kind, &more)
        };
        let invalid = |why: String| Ok(refusal(400, &format!("Param check invalid:{why}")));
        match &*kind {
            "InstanceRequest" => {
                if let Err(why) = check(manners.metadata_limit, &key, &body["instance"]) {
                    return invalid(why);
                }
                if state.persistent_there(&key) {
                    return Ok(refusal(
                        400,
                        &format!(
                            "Current service {}@@{} is persistent service, can't register ephemeral instance.",
                            key.1, key.2
                        ),
                    ));
                }
                let register = text("type") == "registerInstance";
                let instance = kept(&key, &body["instance"], true);
                if let Some(client) = state.clients.get_mut(client) {
                    // One record: it is replaced, and goes as a whole whatever address is named.
                    match register {
                        true => drop(client.publishers.insert(key.clone(), vec![instance])),
                        false => drop(client.publishers.remove(&key)),
                    }
                }
                state.touch(&key);
                Ok(ok("InstanceResponse", json!({"type": text("type")})))
            }
            "BatchInstanceRequest" => {
                let instances = body["instances"].as_array().cloned().unwrap_or_default();
                for instance in &instances {
                    if let Err(why) = check(manners.metadata_limit, &key, instance) {
                        return invalid(why);
                    }
                }
                let instances = instances.iter().map(|instance| kept(&key, instance, true)).collect();
                if let Some(client) = state.clients.get_mut(client) {
                    client.publishers.insert(key.clone(), instances);
                }
                state.touch(&key);
                Ok(ok("BatchInstanceResponse", json!({"type": text("type")})))
            }
            "PersistentInstanceRequest" if manners.persistent => {
                if let Err(why) = check(manners.metadata_limit, &key, &body["instance"]) {
                    return invalid(why);
                }
                if state.ephemeral_there(&key) {
                    return Ok(refusal(
                        400,
                        &format!(
                            "Current service {}@@{} is ephemeral service, can't register persistent instance.",
                            key.1, key.2
                        ),
                    ));
                }
                let instance = kept(&key, &body["instance"], false);
                match text("type") {
                    "registerInstance" => state.keep(&key, instance),
                    _ => state.let_go(
                        &key,
                        instance["ip"].as_str().unwrap_or_default(),
                        instance["port"].as_i64().unwrap_or_default(),
                    ),
                }
                Ok(ok("InstanceResponse", json!({"type": text("type")})))
            }
            "SubscribeServiceRequest" => {
                let info = state.info(&key, text("clusters"), false, false);
                if let Some(client) = state.clients.get_mut(client) {
                    match body["subscribe"] == true {
                        true => drop(client.subscribers.insert(key.clone(), text("clusters").to_owned())),
                        false => drop(client.subscribers.remove(&key)),
                    }
                }
                Ok(ok("SubscribeServiceResponse", json!({"serviceInfo": info})))
            }
            "ServiceQueryRequest" => {
                let info = state.info(&key, text("cluster"), true, body["healthyOnly"] == true);
                Ok(ok("QueryServiceResponse", json!({"serviceInfo": info})))
            }
            "ServiceListRequest" => {
                let all: Vec<String> = state.services(&key.0, &key.1).into_iter().collect();
                let number = |name: &str| body[name].as_u64().unwrap_or(1) as usize;
                let (page, size) = (number("pageNo"), number("pageSize"));
                let names: Vec<&String> = all.iter().skip((page - 1) * size).take(size).collect();
                Ok(ok("ServiceListResponse", json!({"count": all.len(), "serviceNames": names})))
            }
            _ => Ok(refusal(302, &format!("{kind} no handler found."))),
        }
    }
}

fn id_of<T>(request: &Request<T>) -> String {
    request.remote_addr().map(|address| address.to_string()).unwrap_or_default()
}

#[tonic::async_trait]
impl proto::request_server::Request for Service {
    async fn request(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        let client = id_of(&request);
        while self.0.manners().silent {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.answer(&client, request.into_inner()).map(Response::new)
    }
}

#[tonic::async_trait]
impl proto::bi_request_stream_server::BiRequestStream for Service {
    type requestBiStreamStream = Pin<Box<dyn tokio_stream::Stream<Item = Result<Payload, Status>> + Send>>;

    async fn request_bi_stream(
        &self,
        request: Request<Streaming<Payload>>,
    ) -> Result<Response<Self::requestBiStreamStream>, Status> {
        let id = id_of(&request);
        let mut incoming = request.into_inner();
        let (out, rx) = mpsc::channel(256);
        let shared = Arc::clone(&self.0);
        tokio::spawn(async move {
            while let Ok(Some(payload)) = incoming.message().await {
                let kind = payload.metadata.unwrap_or_default().r#type;
                let body: Value = serde_json::from_slice(&payload.body.unwrap_or_default().value).unwrap_or_default();
                if kind != "ConnectionSetupRequest" {
                    shared.state().answers.push(kind);
                    continue;
                }
                let manners = shared.manners().clone();
                if manners.full || !manners.started {
                    let _ = out.send(Ok(pack("ConnectResetRequest", &json!({"module": "internal"})))).await;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    return;
                }
                {
                    let mut state = shared.state();
                    state.asked.push((kind, body.clone()));
                    state.connections += 1;
                    let client = Client { out: out.clone(), publishers: BTreeMap::new(), subscribers: BTreeMap::new() };
                    state.clients.insert(id.clone(), client);
                }
                if manners.negotiates && !body["abilityTable"].is_null() {
                    let table = json!({"abilityTable": {"supportPersistentInstanceByGrpc": manners.persistent, "fuzzyWatch": true}});
                    let _ = out.send(Ok(pack("SetupAckRequest", &table))).await;
                }
            }
            // The connection is gone, and with it all it registered.
            let mut state = shared.state();
            if let Some(client) = state.clients.remove(&id) {
                for key in client.publishers.into_keys() {
                    state.touch(&key);
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(rx))))
    }
}
