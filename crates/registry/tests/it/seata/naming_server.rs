//! A NamingServer to test against, as strict as the original, whose server part nobody publishes.
//!
//! It follows the original's source (October 2024) and what a real one was seen to answer: failures are HTTP 200 with a `code`, a
//! node is replaced only by a higher term, a vgroup's term is the last node's and goes backwards, −1 after an expiry, watches
//! know no namespaces, the last unit of a vgroup that goes uncovers the whole cluster, everything is in memory. It is stricter
//! in one place: null endpoints are refused and *not* stored.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Map, Value, json};
use test_support::Port;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// How a server behaves.
#[derive(Clone)]
pub(super) struct Options {
    /// A node silent for longer is removed by the next scan (the original's 90 s).
    pub(super) threshold: Duration,
    /// Time between scans (the original's 60 s).
    pub(super) scan: Duration,
    /// User, password, and how long a token holds.
    pub(super) auth: Option<(&'static str, &'static str, Duration)>,
}

impl Default for Options {
    fn default() -> Self {
        Self { threshold: Duration::from_secs(3), scan: Duration::from_millis(500), auth: None }
    }
}

/// A running server.
pub(super) struct NamingServer {
    port: Port,
    options: Options,
    shared: Arc<Mutex<Shared>>,
    runtime: Option<Runtime>,
}

#[derive(Default)]
struct Shared {
    memory: Memory,
    /// Every request but health checks.
    log: Vec<Seen>,
    /// Answers every registration with the code 500.
    broken: bool,
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) path: String,
    pub(super) authorization: Option<String>,
    pub(super) body: String,
}

type Units = BTreeMap<String, Vec<Value>>;
/// Namespace → cluster → units.
type Mappings = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// What is gone after a restart.
#[derive(Default)]
struct Memory {
    /// Namespace → cluster → kind and units.
    clusters: BTreeMap<String, BTreeMap<String, (Value, Units)>>,
    /// Vgroup → namespace → cluster → units, and when it was last touched.
    vgroups: BTreeMap<String, (Instant, Mappings)>,
    /// Host and port → last heartbeat; knows no namespace.
    live: HashMap<String, Instant>,
    terms: HashMap<String, i64>,
    /// Counts the events of a vgroup.
    events: HashMap<String, watch::Sender<u64>>,
    tokens: HashMap<String, Instant>,
}

#[derive(Clone)]
struct Context {
    shared: Arc<Mutex<Shared>>,
    options: Options,
}

impl NamingServer {
    pub(super) fn start(options: Options) -> Self {
        let mut server = Self { port: Port::reserve(), options, shared: Arc::default(), runtime: None };
        server.start_again();
        server
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Ends all connections and forgets everything; [`start_again`](Self::start_again) brings it back.
    pub(super) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A runtime cannot end on a thread of another one.
            let ended = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(5))).join();
            ended.expect("no panic");
        }
        self.shared().memory = Memory::default();
    }

    pub(super) fn start_again(&mut self) {
        self.stop();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let context = Context { shared: Arc::clone(&self.shared), options: self.options.clone() };
        let listener = std::net::TcpListener::bind(self.address()).expect("the port is reserved");
        listener.set_nonblocking(true).expect("a socket");
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).expect("a socket")
        };
        let scanning = context.clone();
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(scanning.options.scan).await;
                scanning.lock().memory.scan(scanning.options.threshold);
            }
        });
        runtime.spawn(async move { axum::serve(listener, routes(context)).await });
        self.runtime = Some(runtime);
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("nothing panics while it is held")
    }

    /// From now on registrations fail as the original's do: HTTP 200 and the code 500.
    pub(super) fn break_registering(&self, broken: bool) {
        self.shared().broken = broken;
    }

    /// Puts a node in by hand, as a Seata server would.
    pub(super) fn register(&self, namespace: &str, cluster: &str, unit: &str, node: &Value) {
        let answer = self.shared().memory.register(namespace, cluster, unit, node);
        answer.expect("the node is taken");
    }

    /// What arrived on a path.
    pub(super) fn seen(&self, path: &str) -> Vec<Seen> {
        self.shared().log.iter().filter(|seen| seen.path == path).cloned().collect()
    }

    /// The stored node of a unit.
    pub(super) fn node(&self, namespace: &str, cluster: &str, unit: &str) -> Option<Value> {
        self.shared().memory.clusters.get(namespace)?.get(cluster)?.1.get(unit)?.first().cloned()
    }
}

impl Drop for NamingServer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Context {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("nothing panics while it is held")
    }
}

fn routes(context: Context) -> Router {
    Router::new()
        .route("/naming/v1/health", get(async || Json(result("200", "success"))))
        .route("/naming/v1/register", post(register))
        .route("/naming/v1/unregister", post(unregister))
        .route("/naming/v1/discovery", get(discovery))
        .route("/naming/v1/watch", post(watching))
        .route("/naming/v1/clusters", get(clusters))
        .route("/api/v1/auth/login", post(login))
        .layer(middleware::from_fn_with_state(context.clone(), guard))
        .with_state(context)
}

fn result(code: &str, message: &str) -> Value {
    json!({ "code": code, "message": message, "success": code == "200" })
}

/// Logs and checks tokens: every path but two needs one.
async fn guard(State(context): State<Context>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a short body");
    let path = parts.uri.path().to_owned();
    let authorization = parts.headers.get("authorization").map(|value| value.to_str().expect("ASCII").to_owned());
    if !path.ends_with("/health") {
        let seen = Seen {
            path: path.clone(),
            authorization: authorization.clone(),
            body: String::from_utf8_lossy(&body).into_owned(),
        };
        context.lock().log.push(seen);
    }
    if let Some((.., life)) = context.options.auth
        && !path.ends_with("/health")
        && !path.ends_with("/login")
    {
        let issued = authorization.and_then(|token| context.lock().memory.tokens.get(&token).copied());
        if issued.is_none_or(|issued| issued.elapsed() > life) {
            return StatusCode::UNAUTHORIZED.into_response();
        }
    }
    next.run(Request::from_parts(parts, body.into())).await
}

async fn login(State(context): State<Context>, body: Bytes) -> Json<Value> {
    let given: Value = serde_json::from_slice(&body).expect("JSON");
    let right = context.options.auth.is_some_and(|(user, password, _)| {
        given.get("username").and_then(Value::as_str) == Some(user)
            && given.get("password").and_then(Value::as_str) == Some(password)
    });
    if !right {
        return Json(json!({ "code": "401", "message": "Login failed", "data": null, "success": false }));
    }
    let mut shared = context.lock();
    let token = format!("Bearer token-{}", shared.memory.tokens.len());
    shared.memory.tokens.insert(token.clone(), Instant::now());
    Json(json!({ "code": "200", "message": "success", "data": token, "success": true }))
}

/// A missing parameter is HTTP 400.
fn need<'a, const N: usize>(query: &'a HashMap<String, String>, names: [&str; N]) -> Result<[&'a str; N], Response> {
    let mut found = [""; N];
    for (place, name) in found.iter_mut().zip(names) {
        *place = query.get(name).ok_or_else(|| StatusCode::BAD_REQUEST.into_response())?;
    }
    Ok(found)
}

type Parameters = Query<HashMap<String, String>>;

async fn register(State(context): State<Context>, query: Parameters, body: Bytes) -> Result<Json<Value>, Response> {
    let [namespace, cluster, unit] = need(&query, ["namespace", "clusterName", "unit"])?;
    let node: Value = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST.into_response())?;
    let mut shared = context.lock();
    let taken = !shared.broken && shared.memory.register(namespace, cluster, unit, &node).is_some();
    Ok(Json(if taken {
        result("200", "node has registered successfully!")
    } else {
        result("500", "node registered unsuccessfully!")
    }))
}

async fn unregister(State(context): State<Context>, query: Parameters, body: Bytes) -> Result<Json<Value>, Response> {
    let [namespace, cluster, unit] = need(&query, ["namespace", "clusterName", "unit"])?;
    let node: Value = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST.into_response())?;
    let done = context.lock().memory.unregister(namespace, cluster, unit, &node).is_some();
    Ok(Json(if done {
        result("200", "node has unregistered successfully!")
    } else {
        result("500", "node unregistered unsuccessfully!")
    }))
}

async fn discovery(State(context): State<Context>, query: Parameters) -> Result<Json<Value>, Response> {
    let [vgroup, namespace] = need(&query, ["vGroup", "namespace"])?;
    Ok(Json(context.lock().memory.discovery(vgroup, namespace)))
}

async fn clusters(State(context): State<Context>, query: Parameters) -> Json<Value> {
    let namespace = query.get("namespace").map_or("", String::as_str);
    Json(context.lock().memory.list_clusters(namespace))
}

async fn watching(State(context): State<Context>, query: Parameters) -> Result<StatusCode, Response> {
    let [vgroup, term, timeout] = need(&query, ["vGroup", "clientTerm", "timeout"])?;
    let bad = |_| StatusCode::BAD_REQUEST.into_response();
    let (term, timeout): (i64, u64) = (term.parse().map_err(bad)?, timeout.parse().map_err(bad)?);
    let mut events = {
        let mut shared = context.lock();
        // An unknown vgroup waits, whatever the term.
        if shared.memory.terms.get(vgroup).is_some_and(|known| term < *known) {
            return Ok(StatusCode::OK);
        }
        shared.memory.events.entry(vgroup.to_owned()).or_default().subscribe()
    };
    // Watches that are over are looked for once a second.
    let time = Duration::from_millis(timeout + 300);
    Ok(match tokio::time::timeout(time, events.changed()).await {
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::NOT_MODIFIED,
    })
}

/// The fields of a node the original knows, with its defaults; `None` where it fails.
fn node_of(body: &Value) -> Option<Map<String, Value>> {
    let get = |key: &str, default: Value| body.get(key).cloned().unwrap_or(default);
    let node = json!({
        "control": body.get("control")?, "transaction": body.get("transaction")?, "internal": get("internal", Value::Null),
        "weight": get("weight", json!(1.0)), "healthy": get("healthy", json!(true)), "group": get("group", Value::Null),
        "role": get("role", json!("MEMBER")), "version": get("version", Value::Null),
        "metadata": get("metadata", json!({})), "term": get("term", json!(0)), "unit": get("unit", Value::Null),
    });
    for endpoint in ["control", "transaction"] {
        node[endpoint]["host"].as_str()?;
        node[endpoint]["port"].as_u64().filter(|port| (1..=65535).contains(port))?;
    }
    node["metadata"].as_object()?;
    node["term"].as_i64()?;
    node["weight"].as_f64()?;
    node.as_object().cloned()
}

fn live_key(node: &Map<String, Value>) -> String {
    format!("{}:{}", node["transaction"]["host"], node["transaction"]["port"])
}

/// Vgroup → unit as a node says it; nothing and blank mean the node's own unit.
fn mapping(node: &Map<String, Value>, unit: &str) -> Vec<(String, String)> {
    let groups = node["metadata"].get("vGroup").and_then(Value::as_object);
    let real = |value: &Value| match value.as_str() {
        Some(name) if !name.trim().is_empty() => name.to_owned(),
        _ => unit.to_owned(),
    };
    groups.into_iter().flatten().map(|(group, value)| (group.clone(), real(value))).collect()
}

fn same(a: &Value, b: &Map<String, Value>) -> bool {
    a["control"] == b["control"] && a["transaction"] == b["transaction"]
}

impl Memory {
    fn event(&mut self, vgroup: &str, term: i64) {
        if term > 0 || term == -1 {
            self.terms.insert(vgroup.to_owned(), term);
            self.events.entry(vgroup.to_owned()).or_default().send_modify(|count| *count += 1);
        }
    }

    fn register(&mut self, namespace: &str, cluster: &str, unit: &str, body: &Value) -> Option<()> {
        let node = node_of(body)?;
        let term = node["term"].as_i64()?;
        let kind = node["metadata"].get("cluster-type").cloned().unwrap_or_default();
        let clusters = self.clusters.entry(namespace.to_owned()).or_default();
        let (_, units) = clusters.entry(cluster.to_owned()).or_insert_with(|| (kind, Units::new()));
        let nodes = units.entry(unit.to_owned()).or_default();
        let changed = match nodes.iter().position(|known| same(known, &node)) {
            // Only a higher term counts, whatever else differs.
            Some(at) if nodes[at]["term"].as_i64() >= Some(term) => false,
            Some(at) => {
                nodes.remove(at);
                nodes.push(node.clone().into());
                true
            }
            None => {
                nodes.push(node.clone().into());
                true
            }
        };
        for (vgroup, real_unit) in mapping(&node, unit) {
            let (touched, namespaces) =
                self.vgroups.entry(vgroup.clone()).or_insert_with(|| (Instant::now(), BTreeMap::new()));
            *touched = Instant::now();
            let mapped = namespaces.entry(namespace.to_owned()).or_default();
            let added = mapped.entry(cluster.to_owned()).or_default().insert(real_unit);
            // A vgroup is in one cluster.
            mapped.retain(|name, _| name == cluster);
            if changed || added {
                self.event(&vgroup, term);
            }
        }
        self.live.insert(live_key(&node), Instant::now());
        Some(())
    }

    fn unregister(&mut self, namespace: &str, cluster: &str, unit: &str, body: &Value) -> Option<()> {
        let node = node_of(body)?;
        let Some(clusters) = self.clusters.get_mut(namespace) else { return Some(()) };
        let (_, units) = clusters.get_mut(cluster)?;
        if !units.contains_key(unit) {
            return Some(());
        }
        remove(units, unit, &node);
        for (vgroup, real_unit) in mapping(&node, unit) {
            if let Some(mapped) =
                self.vgroups.get_mut(&vgroup).and_then(|(_, spaces)| spaces.get_mut(namespace)?.get_mut(cluster))
            {
                mapped.remove(&real_unit);
                self.event(&vgroup, node["term"].as_i64()?);
            }
        }
        self.live.remove(&live_key(&node));
        Some(())
    }

    fn scan(&mut self, threshold: Duration) {
        let mut expired = Vec::new();
        for (namespace, clusters) in &self.clusters {
            for (cluster, (_, units)) in clusters {
                for (unit, nodes) in units {
                    for node in nodes.iter().filter_map(Value::as_object) {
                        if self.live.get(&live_key(node)).is_none_or(|last| last.elapsed() > threshold) {
                            expired.push((namespace.clone(), cluster.clone(), unit.clone(), node.clone()));
                        }
                    }
                }
            }
        }
        for (namespace, cluster, unit, node) in expired {
            self.live.remove(&live_key(&node));
            if let Some((_, units)) = self.clusters.get_mut(&namespace).and_then(|all| all.get_mut(&cluster)) {
                remove(units, &unit, &node);
            }
            for (vgroup, real_unit) in mapping(&node, &unit) {
                if let Some((_, spaces)) = self.vgroups.get_mut(&vgroup) {
                    let mapped = spaces.entry(namespace.clone()).or_default().entry(cluster.clone()).or_default();
                    mapped.remove(&real_unit);
                    self.event(&vgroup, -1);
                }
            }
        }
        self.vgroups.retain(|_, (touched, _)| touched.elapsed() <= threshold + Duration::from_secs(1));
    }

    fn discovery(&self, vgroup: &str, namespace: &str) -> Value {
        let mapped = self.vgroups.get(vgroup).and_then(|(_, spaces)| spaces.get(namespace));
        let known = self.clusters.get(namespace);
        let list: Vec<Value> = mapped
            .into_iter()
            .flatten()
            .filter_map(|(cluster, wanted)| {
                let (kind, units) = known?.get(cluster)?;
                // No unit left means every unit, in the original too.
                let unit_data: Vec<Value> = units
                    .iter()
                    .filter(|(unit, _)| wanted.is_empty() || wanted.contains(*unit))
                    .map(|(unit, nodes)| json!({ "unitName": unit, "namingInstanceList": nodes }))
                    .collect();
                Some(json!({ "clusterName": cluster, "clusterType": kind, "unitData": unit_data }))
            })
            .collect();
        json!({ "clusterList": list, "term": self.terms.get(vgroup).copied().unwrap_or(0) })
    }

    fn list_clusters(&self, namespace: &str) -> Value {
        let clusters = self.clusters.get(namespace).into_iter().flatten().map(|(cluster, (kind, units))| {
            let groups: Vec<&String> = self
                .vgroups
                .iter()
                .filter(|(_, (_, spaces))| spaces.get(namespace).is_some_and(|mapped| mapped.contains_key(cluster)))
                .map(|(vgroup, _)| vgroup)
                .collect();
            let unit_data: Vec<Value> =
                units.iter().map(|(unit, nodes)| json!({ "unitName": unit, "namingInstanceList": nodes })).collect();
            json!({ "clusterName": cluster, "clusterType": kind, "vGroupMapping": groups, "unitData": unit_data })
        });
        clusters.collect()
    }
}

fn remove(units: &mut Units, unit: &str, node: &Map<String, Value>) {
    if let Some(nodes) = units.get_mut(unit) {
        nodes.retain(|known| !same(known, node));
        if nodes.is_empty() {
            units.remove(unit);
        }
    }
}
