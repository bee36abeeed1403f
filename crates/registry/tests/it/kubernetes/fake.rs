//! An API server to test against, as strict as a real one about what it has: EndpointSlices, and what clients ask before they ask
//! for them.
//!
//! No real one can be run here. This one follows the API conventions of Kubernetes (versions that only grow and are shared by all
//! objects, lists in pages of one version, watches that begin at a version, bookmarks, 410 for history that is gone in both
//! of its forms, optimistic locking, merge patches) and refuses what the real one refuses; every query parameter that it
//! does not know is an error. `kubectl` works with it.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::{Map, Value, json};
use test_support::Port;
use test_support::certificate::Certificate;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;

const GROUP: &str = "discovery.k8s.io";
const KIND: &str = "EndpointSlice";
/// Where versions begin: nobody may take them for small numbers.
const FIRST: u64 = 7_000_000_000_000_000_000;

/// Streams of one connection, as Go allows at least.
const STREAMS: u32 = 100;

/// How it is spoken to.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// As `kubectl proxy` offers it: HTTP/1 without encryption.
    Plain,
    /// TLS with HTTP/2, as API servers have it.
    Http2(Certificate),
    /// The same for those who have a certificate of the same authority.
    Mutual(Certificate),
    /// TLS with HTTP/1 only, as some load balancers before them.
    Http1(Certificate),
}

/// A running server.
pub(super) struct Fake {
    port: Port,
    way: Way,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

struct Shared {
    state: Mutex<Inner>,
    /// The latest version; watches wait for it.
    changed: watch::Sender<u64>,
    /// Counts the calls to end all watches.
    ended: watch::Sender<u64>,
}

struct Inner {
    version: u64,
    /// By namespace and name.
    objects: BTreeMap<(String, String), Value>,
    history: Vec<Change>,
    /// History up to this version is gone.
    compacted: u64,
    requests: Vec<Seen>,
    behaviour: Behaviour,
    /// Queries that no API server would understand.
    complaints: Vec<String>,
    open_watches: usize,
}

/// One change of an object.
#[derive(Clone)]
struct Change {
    version: u64,
    namespace: String,
    before: Option<Value>,
    after: Option<Value>,
}

/// What can be changed while it runs.
#[derive(Clone, Default)]
pub(super) struct Behaviour {
    /// Tokens that are let in; everybody where there are none.
    pub(super) tokens: BTreeSet<String>,
    /// Everything is forbidden (403).
    pub(super) forbidden: bool,
    /// So many requests are answered 429 with this `Retry-After` in seconds.
    pub(super) throttle: Option<(usize, u64)>,
    /// History that is gone is told by the status 410 instead of an event.
    pub(super) gone_by_status: bool,
    /// How often watches that asked for them get bookmarks.
    pub(super) bookmark_every: Option<Duration>,
    /// Every watch is ended at once.
    pub(super) nervous: bool,
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: BTreeMap<String, String>,
    pub(super) version: Version,
    pub(super) accept: String,
}

impl Seen {
    pub(super) fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|value| value == "true" || value == "1")
    }

    fn is_list(&self) -> bool {
        self.method == Method::GET && self.path.ends_with("/endpointslices") && !self.is_watch()
    }
}

impl Fake {
    pub(super) fn start(way: Way) -> Self {
        let inner = Inner {
            version: FIRST,
            objects: BTreeMap::new(),
            history: Vec::new(),
            compacted: FIRST - 1,
            requests: Vec::new(),
            behaviour: Behaviour::default(),
            complaints: Vec::new(),
            open_watches: 0,
        };
        let shared =
            Shared { state: Mutex::new(inner), changed: watch::Sender::new(FIRST), ended: watch::Sender::new(0) };
        let mut fake = Self { port: Port::reserve(), way, shared: Arc::new(shared), runtime: None };
        fake.start_again();
        fake
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Ends all connections; what is stored stays, as in etcd behind a real one.
    pub(super) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A runtime cannot end on a thread of another one.
            let ended = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(5))).join();
            ended.expect("no panic");
        }
        self.inner().open_watches = 0;
    }

    pub(super) fn start_again(&mut self) {
        self.stop();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let listener = std::net::TcpListener::bind(self.address()).expect("the port is reserved");
        listener.set_nonblocking(true).expect("a socket");
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).expect("a socket")
        };
        let router = Router::new().fallback(answer).with_state(Arc::clone(&self.shared));
        let tls = match &self.way {
            Way::Plain => None,
            Way::Http2(certificate) => Some(acceptor(certificate, &[b"h2", b"http/1.1"], false)),
            Way::Mutual(certificate) => Some(acceptor(certificate, &[b"h2", b"http/1.1"], true)),
            Way::Http1(certificate) => Some(acceptor(certificate, &[b"http/1.1"], false)),
        };
        runtime.spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let (router, tls) = (router.clone(), tls.clone());
                // As Go does for every socket.
                let _ = stream.set_nodelay(true);
                tokio::spawn(async move {
                    let service = TowerToHyperService::new(router);
                    let mut http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    http.http2().max_concurrent_streams(STREAMS);
                    // Whoever goes away without a word is no failure of the server.
                    let _ = match tls {
                        None => http.serve_connection(TokioIo::new(stream), service).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => http.serve_connection(TokioIo::new(stream), service).await,
                            Err(_) => Ok(()),
                        },
                    };
                });
            }
        });
        self.runtime = Some(runtime);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.shared.inner()
    }

    pub(super) fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.inner().behaviour);
    }

    /// Creates a slice or replaces it.
    pub(super) fn put(&self, namespace: &str, slice: Value) {
        let mut inner = self.inner();
        let name = slice["metadata"]["name"].as_str().expect("a name").to_owned();
        let exists = inner.objects.contains_key(&(namespace.to_owned(), name.clone()));
        let done = if exists { inner.replace(namespace, &name, slice) } else { inner.create(namespace, slice) };
        done.expect("a valid slice");
        let version = inner.version;
        drop(inner);
        self.shared.changed.send_replace(version);
    }

    /// Stores something that no validation would let pass.
    pub(super) fn put_unchecked(&self, namespace: &str, mut object: Value) {
        let mut inner = self.inner();
        inner.version += 1;
        object["metadata"]["resourceVersion"] = inner.version.to_string().into();
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        inner.store(namespace, &name, Some(object));
        let version = inner.version;
        drop(inner);
        self.shared.changed.send_replace(version);
    }

    pub(super) fn delete(&self, namespace: &str, name: &str) {
        let mut inner = self.inner();
        inner.delete(namespace, name).expect("it is there");
        let version = inner.version;
        drop(inner);
        self.shared.changed.send_replace(version);
    }

    /// Forgets the history, as etcd is told to every five minutes: nobody can begin there any more.
    pub(super) fn compact(&self) {
        let mut inner = self.inner();
        inner.compacted = inner.version;
    }

    /// Something happens in another namespace, so that time goes on.
    pub(super) fn time_passes(&self) {
        self.put("elsewhere", json!({"metadata": {"name": "noise", "labels": {"n": self.inner().version.to_string()}}, "addressType": "IPv4", "endpoints": []}));
    }

    /// Ends all watches that are open, properly.
    pub(super) fn end_watches(&self) {
        self.shared.ended.send_modify(|times| *times += 1);
    }

    pub(super) fn open_watches(&self) -> usize {
        self.inner().open_watches
    }

    /// Waits until so many watches are open: whoever sees a list has asked for it, but not yet for what follows it.
    pub(super) async fn watched(&self, times: usize) {
        let opened = async {
            while self.open_watches() < times {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), opened).await.expect("the watches are opened");
    }

    pub(super) fn requests(&self) -> Vec<Seen> {
        self.inner().requests.clone()
    }

    pub(super) fn lists(&self) -> usize {
        self.requests().iter().filter(|seen| seen.is_list()).count()
    }

    pub(super) fn watches(&self) -> Vec<Seen> {
        self.requests().into_iter().filter(Seen::is_watch).collect()
    }

    pub(super) fn names(&self, namespace: &str) -> Vec<String> {
        self.inner().objects.keys().filter(|(theirs, _)| theirs == namespace).map(|(_, name)| name.clone()).collect()
    }

    /// Writes a kubeconfig whose current context is `test`, with a token and the namespace `payments`.
    pub(super) fn kubeconfig(&self, folder: &Path, token: &str) -> PathBuf {
        self.kubeconfig_for(folder, self.address(), &json!({ "token": token }))
    }

    pub(super) fn kubeconfig_for(&self, folder: &Path, server: SocketAddr, user: &Value) -> PathBuf {
        let (scheme, ca) = match &self.way {
            Way::Plain => ("http", None),
            Way::Http2(certificate) | Way::Mutual(certificate) | Way::Http1(certificate) => {
                ("https", Some(&certificate.ca))
            }
        };
        let mut cluster = json!({ "server": format!("{scheme}://{server}") });
        if let Some(ca) = ca {
            cluster["certificate-authority"] = ca.display().to_string().into();
        }
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "test", "cluster": cluster }],
            "users": [{ "name": "test", "user": user }],
            "contexts": [
                { "name": "test", "context": { "cluster": "test", "user": "test", "namespace": "payments" } },
                { "name": "other", "context": { "cluster": "test", "user": "test", "namespace": "other" } },
                { "name": "nobody", "context": { "cluster": "test" } },
            ],
            "current-context": "test",
        });
        let file = folder.join("kubeconfig");
        // JSON is YAML.
        std::fs::write(&file, config.to_string()).expect("the folder is writable");
        file
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop();
        if !std::thread::panicking() {
            let complaints = self.inner().complaints.clone();
            assert!(complaints.is_empty(), "nobody asks an API server such things: {complaints:?}");
        }
    }
}

fn acceptor(certificate: &Certificate, protocols: &[&[u8]], mutual: bool) -> TlsAcceptor {
    let chain: Vec<_> = CertificateDer::pem_file_iter(&certificate.cert)
        .expect("the certificate")
        .collect::<Result<_, _>>()
        .expect("the certificate");
    let key = PrivateKeyDer::from_pem_file(&certificate.key).expect("the key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("a version");
    let builder = if mutual {
        let mut roots = rustls::RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(&certificate.ca).expect("the authority");
        roots.add(ca).expect("the authority");
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().expect("roots");
        builder.with_client_cert_verifier(clients)
    } else {
        builder.with_no_client_auth()
    };
    let mut config = builder.with_single_cert(chain, key).expect("a certificate and its key");
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

impl Shared {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().expect("nothing panics while it is held")
    }
}

/// A `Status` object, which is how an API server says no.
#[derive(Debug)]
struct Refusal(StatusCode, &'static str, String, Option<u64>);

impl Refusal {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self(code, reason, message.into(), None)
    }

    fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
    }

    fn not_found(name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", format!("endpointslices.{GROUP} \"{name}\" not found"))
    }

    fn gone() -> Self {
        Self::new(StatusCode::GONE, "Expired", "too old resource version")
    }

    fn status(&self) -> Value {
        let mut details = Map::new();
        if let Some(seconds) = self.3 {
            details.insert("retryAfterSeconds".into(), seconds.into());
        }
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.2,
            "reason": self.1, "details": details, "code": self.0.as_u16(),
        })
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.0, Json(self.status())).into_response();
        if let Some(seconds) = self.3 {
            response.headers_mut().insert("retry-after", seconds.into());
        }
        response
    }
}

impl Inner {
    fn store(&mut self, namespace: &str, name: &str, after: Option<Value>) {
        let key = (namespace.to_owned(), name.to_owned());
        let before = match &after {
            Some(object) => self.objects.insert(key, object.clone()),
            None => self.objects.remove(&key),
        };
        self.history.push(Change { version: self.version, namespace: namespace.to_owned(), before, after });
    }

    fn create(&mut self, namespace: &str, mut object: Value) -> Result<Value, Refusal> {
        validate(&object, namespace, None)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if self.objects.contains_key(&(namespace.to_owned(), name.clone())) {
            let message = format!("endpointslices.{GROUP} \"{name}\" already exists");
            return Err(Refusal::new(StatusCode::CONFLICT, "AlreadyExists", message));
        }
        if object["metadata"].get("resourceVersion").is_some() {
            return Err(Refusal::bad("resourceVersion should not be set on objects to be created"));
        }
        self.version += 1;
        object["apiVersion"] = format!("{GROUP}/v1").into();
        object["kind"] = KIND.into();
        let meta = &mut object["metadata"];
        meta["namespace"] = namespace.into();
        meta["uid"] = format!("00000000-0000-4000-8000-{:012x}", self.version - FIRST).into();
        meta["resourceVersion"] = self.version.to_string().into();
        meta["creationTimestamp"] = "2026-11-30T00:00:00Z".into();
        meta["generation"] = 1.into();
        self.store(namespace, &name, Some(object.clone()));
        Ok(object)
    }

    fn replace(&mut self, namespace: &str, name: &str, mut object: Value) -> Result<Value, Refusal> {
        let key = (namespace.to_owned(), name.to_owned());
        let before = self.objects.get(&key).cloned().ok_or_else(|| Refusal::not_found(name))?;
        if object["metadata"]["name"].as_str() != Some(name) {
            return Err(Refusal::bad("the name of the object does not match the name on the URL"));
        }
        let claimed = object["metadata"].get("resourceVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
        if !claimed.is_empty() && before["metadata"]["resourceVersion"] != claimed {
            let message = format!(
                "Operation cannot be fulfilled on endpointslices.{GROUP} \"{name}\": the object has been modified; \
                 please apply your changes to the latest version and try again"
            );
            return Err(Refusal::new(StatusCode::CONFLICT, "Conflict", message));
        }
        validate(&object, namespace, Some(&before))?;
        object["apiVersion"] = format!("{GROUP}/v1").into();
        object["kind"] = KIND.into();
        for kept in ["namespace", "uid", "creationTimestamp", "generation", "resourceVersion"] {
            object["metadata"][kept] = before["metadata"][kept].clone();
        }
        if object == before {
            // Nothing changes, so there is no new version.
            return Ok(object);
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        object["metadata"]["generation"] = (before["metadata"]["generation"].as_u64().unwrap_or(0) + 1).into();
        self.store(namespace, name, Some(object.clone()));
        Ok(object)
    }

    fn delete(&mut self, namespace: &str, name: &str) -> Result<Value, Refusal> {
        let key = (namespace.to_owned(), name.to_owned());
        let object = self.objects.get(&key).cloned().ok_or_else(|| Refusal::not_found(name))?;
        self.version += 1;
        self.store(namespace, name, None);
        Ok(object)
    }
}

/// What the real one checks of a slice.
fn validate(object: &Value, namespace: &str, before: Option<&Value>) -> Result<(), Refusal> {
    let meta =
        object.get("metadata").and_then(Value::as_object).ok_or_else(|| Refusal::invalid("metadata: Required"))?;
    let name = meta.get("name").and_then(Value::as_str).unwrap_or_default();
    let is_name = |text: &str| {
        !text.is_empty()
            && text.len() <= 253
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
    };
    if !is_name(name) {
        return Err(Refusal::invalid(format!("metadata.name: Invalid value: {name:?}")));
    }
    if meta.get("namespace").and_then(Value::as_str).is_some_and(|theirs| theirs != namespace) {
        return Err(Refusal::bad(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    for (key, value) in meta.get("labels").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().ok_or_else(|| Refusal::bad(format!("metadata.labels.{key}: not a string")))?;
        if value.len() > 63 || !value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
            return Err(Refusal::invalid(format!("metadata.labels: Invalid value: {value:?}")));
        }
    }
    let annotations = meta.get("annotations").and_then(Value::as_object);
    let total: usize =
        annotations.into_iter().flatten().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if total > 256 * 1024 {
        return Err(Refusal::invalid("metadata.annotations: Too long: must have at most 262144 bytes"));
    }
    let kind = object.get("addressType").and_then(Value::as_str).unwrap_or_default();
    if !["IPv4", "IPv6", "FQDN"].contains(&kind) {
        return Err(Refusal::invalid(format!("addressType: Unsupported value: {kind:?}")));
    }
    if before.is_some_and(|before| before["addressType"] != kind) {
        return Err(Refusal::invalid("addressType: Invalid value: field is immutable"));
    }
    let endpoints = object.get("endpoints").and_then(Value::as_array);
    let endpoints = endpoints.ok_or_else(|| Refusal::invalid("endpoints: Required value"))?;
    if endpoints.len() > 1000 {
        return Err(Refusal::invalid("endpoints: Too many: must have at most 1000 items"));
    }
    for endpoint in endpoints {
        let addresses = endpoint.get("addresses").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if addresses.is_empty() || addresses.len() > 100 {
            return Err(Refusal::invalid("endpoints[].addresses: must contain 1 to 100 addresses"));
        }
        for address in addresses {
            let text = address.as_str().unwrap_or_default();
            let fits = match kind {
                "IPv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
                "IPv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
                _ => is_name(text),
            };
            if !fits {
                return Err(Refusal::invalid(format!("endpoints[].addresses: Invalid value: {text:?}")));
            }
        }
    }
    let mut names = BTreeSet::new();
    for port in object.get("ports").and_then(Value::as_array).into_iter().flatten() {
        let name = port.get("name").and_then(Value::as_str).unwrap_or_default();
        if !names.insert(name) {
            return Err(Refusal::invalid(format!("ports[].name: Duplicate value: {name:?}")));
        }
        let number = port.get("port").filter(|number| !number.is_null());
        if number.is_some_and(|number| !number.as_u64().is_some_and(|number| (1..=65535).contains(&number))) {
            return Err(Refusal::invalid("ports[].port: must be between 1 and 65535, inclusive"));
        }
    }
    Ok(())
}

/// `a=b`, `a`, `!a`, several by commas; `metadata.name=x` for fields.
struct Selector(Vec<(String, Option<String>)>);

impl Selector {
    fn read(text: &str) -> Result<Self, Refusal> {
        let mut parts = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key, Some(value.trim_start_matches('=').to_owned())),
                None => (part, None),
            };
            if key.is_empty() || key.contains([' ', '!', '(']) {
                return Err(Refusal::bad(format!("unable to parse requirement: {part:?}")));
            }
            parts.push((key.to_owned(), value));
        }
        Ok(Self(parts))
    }

    fn fits_labels(&self, object: &Value) -> bool {
        self.0.iter().all(|(key, value)| match (object["metadata"]["labels"].get(key), value) {
            (Some(have), Some(want)) => have == want.as_str(),
            (have, None) => have.is_some(),
            (None, Some(_)) => false,
        })
    }

    fn fits_fields(&self, object: &Value) -> bool {
        self.0.iter().all(|(key, value)| {
            let have = object.pointer(&format!("/{}", key.replace('.', "/")));
            have.and_then(Value::as_str) == value.as_deref()
        })
    }
}

/// Writes a request down, and says who is not let in.
fn admit(shared: &Shared, request: &Request) -> (Seen, Option<Refusal>) {
    let query: BTreeMap<String, String> = request
        .uri()
        .query()
        .map(|query| reqwest::Url::parse(&format!("http://h/?{query}")).expect("a query"))
        .map(|url| url.query_pairs().map(|(key, value)| (key.into_owned(), value.into_owned())).collect())
        .unwrap_or_default();
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let seen = Seen {
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        query,
        version: request.version(),
        accept: header("accept").to_owned(),
    };
    let token = header("authorization").strip_prefix("Bearer ").unwrap_or_default().to_owned();
    let refused = {
        let mut inner = shared.inner();
        inner.requests.push(seen.clone());
        let behaviour = &mut inner.behaviour;
        if !behaviour.tokens.is_empty() && !behaviour.tokens.contains(&token) {
            Some(Refusal::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized"))
        } else if let Some((times, seconds)) = behaviour.throttle.filter(|(times, _)| *times > 0) {
            behaviour.throttle = Some((times - 1, seconds));
            let message = "the server has received too many requests and has asked us to try again later";
            Some(Refusal(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message.into(), Some(seconds)))
        } else if behaviour.forbidden {
            let verb = if seen.is_watch() { "watch" } else { "list" };
            let message = format!(
                "endpointslices.{GROUP} is forbidden: User \"test\" cannot {verb} resource \"endpointslices\" in API group \
                 \"{GROUP}\" in the namespace \"payments\""
            );
            Some(Refusal::new(StatusCode::FORBIDDEN, "Forbidden", message))
        } else {
            None
        }
    };
    (seen, refused)
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (seen, refused) = admit(&shared, &request);
    if let Some(refusal) = refused {
        return refusal.into_response();
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, 3 * 1024 * 1024).await else {
        return Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", "limit is 3145728")
            .into_response();
    };
    match route(&shared, &seen, &parts.headers, body) {
        Ok(response) => response,
        Err(refusal) => {
            if refusal.0 == StatusCode::BAD_REQUEST {
                shared
                    .inner()
                    .complaints
                    .push(format!("{} {} {:?}: {}", seen.method, seen.path, seen.query, refusal.2));
            }
            refusal.into_response()
        }
    }
}

fn route(shared: &Arc<Shared>, seen: &Seen, headers: &HeaderMap, body: Bytes) -> Result<Response, Refusal> {
    let parts: Vec<&str> = seen.path.trim_matches('/').split('/').collect();
    let get = seen.method == Method::GET;
    match &*parts {
        ["version"] if get => Ok(Json(json!({"major": "1", "minor": "33", "gitVersion": "v1.33.0"})).into_response()),
        ["api"] if get => Ok(Json(json!({"kind": "APIVersions", "versions": ["v1"]})).into_response()),
        ["api", "v1"] if get => Ok(Json(json!({
            "kind": "APIResourceList", "groupVersion": "v1",
            "resources": [{"name": "namespaces", "singularName": "", "namespaced": false, "kind": "Namespace",
                "verbs": ["get", "list"]}],
        }))
        .into_response()),
        ["api", "v1", "namespaces", name] if get => {
            Ok(Json(json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}})).into_response())
        }
        ["apis"] if get => Ok(Json(json!({
            "kind": "APIGroupList", "apiVersion": "v1",
            "groups": [{
                "name": GROUP,
                "versions": [{"groupVersion": format!("{GROUP}/v1"), "version": "v1"}],
                "preferredVersion": {"groupVersion": format!("{GROUP}/v1"), "version": "v1"},
            }],
        }))
        .into_response()),
        ["apis", GROUP, "v1"] if get => Ok(Json(json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"),
            "resources": [{
                "name": "endpointslices", "singularName": "endpointslice", "namespaced": true, "kind": KIND,
                "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            }],
        }))
        .into_response()),
        ["apis", GROUP, "v1", "namespaces", namespace, "endpointslices"] => match seen.method {
            Method::GET if seen.is_watch() => begin_watch(shared, seen, namespace),
            Method::GET => list(&shared.inner(), seen, namespace),
            Method::POST => {
                known(seen, &["fieldManager", "fieldValidation"])?;
                let object = parse(headers, &body)?;
                write(shared, StatusCode::CREATED, |inner| inner.create(namespace, object))
            }
            _ => Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "not allowed")),
        },
        ["apis", GROUP, "v1", "namespaces", namespace, "endpointslices", name] => match seen.method {
            Method::GET => {
                let key = ((*namespace).to_owned(), (*name).to_owned());
                let object = shared.inner().objects.get(&key).cloned().ok_or_else(|| Refusal::not_found(name))?;
                Ok(Json(object).into_response())
            }
            Method::PUT => {
                known(seen, &["fieldManager", "fieldValidation"])?;
                let object = parse(headers, &body)?;
                write(shared, StatusCode::OK, |inner| inner.replace(namespace, name, object))
            }
            Method::PATCH => {
                known(seen, &["fieldManager", "fieldValidation"])?;
                let patch = parse(headers, &body)?;
                write(shared, StatusCode::OK, |inner| {
                    let key = ((*namespace).to_owned(), (*name).to_owned());
                    let mut object = inner.objects.get(&key).cloned().ok_or_else(|| Refusal::not_found(name))?;
                    merge(&mut object, &patch);
                    inner.replace(namespace, name, object)
                })
            }
            Method::DELETE => write(shared, StatusCode::OK, |inner| inner.delete(namespace, name)),
            _ => Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "not allowed")),
        },
        _ => Err(Refusal::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")),
    }
}

fn write(
    shared: &Shared,
    code: StatusCode,
    change: impl FnOnce(&mut Inner) -> Result<Value, Refusal>,
) -> Result<Response, Refusal> {
    let mut inner = shared.inner();
    let object = change(&mut inner)?;
    let version = inner.version;
    drop(inner);
    shared.changed.send_replace(version);
    Ok((code, Json(object)).into_response())
}

fn parse(headers: &HeaderMap, body: &[u8]) -> Result<Value, Refusal> {
    let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !["application/json", "application/merge-patch+json", "application/strategic-merge-patch+json"].contains(&kind) {
        let message = format!("the body of the request was in an unknown format {kind:?}");
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message));
    }
    serde_json::from_slice(body).map_err(|error| Refusal::bad(error.to_string()))
}

/// RFC 7396. In a slice every list is atomic, so the strategic kind is the same.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(map) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

fn known(seen: &Seen, names: &[&str]) -> Result<(), Refusal> {
    match seen.query.keys().find(|key| !names.contains(&key.as_str())) {
        Some(key) => Err(Refusal::bad(format!("unknown query parameter {key:?}"))),
        None => Ok(()),
    }
}

fn selected(seen: &Seen) -> Result<impl Fn(&Value) -> bool + use<>, Refusal> {
    let labels = Selector::read(seen.query.get("labelSelector").map_or("", String::as_str))?;
    let fields = Selector::read(seen.query.get("fieldSelector").map_or("", String::as_str))?;
    Ok(move |object: &Value| labels.fits_labels(object) && fields.fits_fields(object))
}

fn list(inner: &Inner, seen: &Seen, namespace: &str) -> Result<Response, Refusal> {
    known(seen, &["labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "watch"])?;
    let fits = selected(seen)?;
    let limit: usize = seen
        .query
        .get("limit")
        .map_or(Ok(0), |limit| limit.parse())
        .map_err(|_| Refusal::bad("limit: not a number"))?;
    let (version, after) = match seen.query.get("continue").filter(|token| !token.is_empty()) {
        None => (inner.version, String::new()),
        Some(token) => {
            let (version, after) = token.split_once(':').ok_or_else(|| Refusal::bad("continue key is not valid"))?;
            let version: u64 = version.parse().map_err(|_| Refusal::bad("continue key is not valid"))?;
            if version < inner.compacted {
                return Err(Refusal::gone());
            }
            (version, after.to_owned())
        }
    };
    // A page shows the state of its version, so what happened since is undone.
    let mut objects = inner.objects.clone();
    for change in inner.history.iter().rev().filter(|change| change.version > version) {
        let name = change.after.as_ref().or(change.before.as_ref()).and_then(|o| o["metadata"]["name"].as_str());
        let key = (change.namespace.clone(), name.unwrap_or_default().to_owned());
        match &change.before {
            Some(before) => drop(objects.insert(key, before.clone())),
            None => drop(objects.remove(&key)),
        }
    }
    let mut items: Vec<Value> = objects
        .into_iter()
        .filter(|((theirs, name), object)| theirs == namespace && *name > after && fits(object))
        .map(|(_, object)| object)
        .collect();
    let mut meta = json!({ "resourceVersion": version.to_string() });
    if limit > 0 && items.len() > limit {
        meta["remainingItemCount"] = (items.len() - limit).into();
        items.truncate(limit);
        let last = items.last().and_then(|last| last["metadata"]["name"].as_str()).unwrap_or_default();
        meta["continue"] = format!("{version}:{last}").into();
    }
    if seen.accept.contains("as=PartialObjectMetadataList") {
        for item in &mut items {
            *item = json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"],
            });
        }
        return Ok(Json(json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": items,
        }))
        .into_response());
    }
    Ok(Json(json!({
        "kind": "EndpointSliceList", "apiVersion": format!("{GROUP}/v1"), "metadata": meta, "items": items,
    }))
    .into_response())
}

/// One watch that is open.
struct Following {
    shared: Arc<Shared>,
    namespace: String,
    fits: Box<dyn Fn(&Value) -> bool + Send + Sync>,
    from: u64,
    bookmarks: bool,
    until: Instant,
    /// From the moment it counts as open, so that no call to end it is missed.
    ended: watch::Receiver<u64>,
    out: mpsc::Sender<Result<Bytes, Infallible>>,
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut inner = self.shared.inner();
        inner.open_watches = inner.open_watches.saturating_sub(1);
    }
}

fn begin_watch(shared: &Arc<Shared>, seen: &Seen, namespace: &str) -> Result<Response, Refusal> {
    let names = ["labelSelector", "fieldSelector", "watch", "resourceVersion", "timeoutSeconds", "allowWatchBookmarks"];
    known(seen, &names)?;
    let fits = selected(seen)?;
    let number = |name: &str| seen.query.get(name).map(|text| text.parse::<u64>()).transpose();
    let from = number("resourceVersion").map_err(|_| Refusal::bad("resourceVersion: Invalid value"))?;
    let seconds = number("timeoutSeconds").map_err(|_| Refusal::bad("timeoutSeconds: Invalid value"))?.unwrap_or(1800);
    let mut inner = shared.inner();
    let from = from.unwrap_or(inner.version);
    if from > inner.version {
        let message = format!("Too large resource version: {from}, current: {}", inner.version);
        return Err(Refusal(StatusCode::GATEWAY_TIMEOUT, "Timeout", message, Some(1)));
    }
    let gone = from < inner.compacted;
    if gone && inner.behaviour.gone_by_status {
        return Err(Refusal::gone());
    }
    let (out, events) = mpsc::channel(16);
    let ended = shared.ended.subscribe();
    inner.open_watches += 1;
    let nervous = inner.behaviour.nervous;
    drop(inner);
    let following = Following {
        shared: Arc::clone(shared),
        namespace: namespace.to_owned(),
        fits: Box::new(fits),
        from,
        bookmarks: seen.query.get("allowWatchBookmarks").is_some_and(|value| value == "true"),
        until: Instant::now() + Duration::from_secs(if nervous { 0 } else { seconds }),
        ended,
        out,
    };
    tokio::spawn(async move {
        if gone {
            let _ = following.send("ERROR", &Refusal::gone().status()).await;
        } else {
            following.run().await;
        }
    });
    let mut response = Response::new(Body::from_stream(ReceiverStream::new(events)));
    response.headers_mut().insert("content-type", "application/json".parse().expect("a header"));
    Ok(response)
}

impl Following {
    async fn send(&self, kind: &str, object: &Value) -> bool {
        let line = format!("{}\n", json!({ "type": kind, "object": object }));
        self.out.send(Ok(line.into())).await.is_ok()
    }

    async fn bookmark(&self, version: u64) -> bool {
        let object = json!({
            "kind": KIND, "apiVersion": format!("{GROUP}/v1"), "endpoints": null, "addressType": "",
            "metadata": {"resourceVersion": version.to_string(), "creationTimestamp": null},
        });
        !self.bookmarks || self.send("BOOKMARK", &object).await
    }

    async fn run(mut self) {
        let mut changed = self.shared.changed.subscribe();
        loop {
            let (changes, every, upto) = {
                let inner = self.shared.inner();
                let mine = |change: &&Change| change.version > self.from && change.namespace == self.namespace;
                let changes: Vec<Change> = inner.history.iter().filter(mine).cloned().collect();
                (changes, inner.behaviour.bookmark_every, inner.version)
            };
            // What came after its end is not told.
            if self.ended.has_changed().is_ok_and(|ended| ended) {
                return;
            }
            for change in changes {
                let before = change.before.filter(|object| (self.fits)(object));
                let after = change.after.filter(|object| (self.fits)(object));
                let (kind, mut object) = match (before, after) {
                    (None, None) => continue,
                    (None, Some(object)) => ("ADDED", object),
                    (Some(_), Some(object)) => ("MODIFIED", object),
                    (Some(object), None) => ("DELETED", object),
                };
                // The last state of a deleted object carries the version of the deletion.
                object["metadata"]["resourceVersion"] = change.version.to_string().into();
                if !self.send(kind, &object).await {
                    return;
                }
            }
            self.from = upto;
            let pause = every.unwrap_or(Duration::from_secs(3600));
            tokio::select! {
                _ = changed.changed() => {}
                _ = self.ended.changed() => return,
                () = self.out.closed() => return,
                () = tokio::time::sleep_until(self.until.into()) => return,
                () = tokio::time::sleep(pause) => {
                    if !self.bookmark(upto).await {
                        return;
                    }
                }
            }
        }
    }
}
