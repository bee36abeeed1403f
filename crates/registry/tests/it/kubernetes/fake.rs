//! An API server to test against, as strict as a real one about what it has: EndpointSlices, and what clients ask before they ask
//! for them.
//!
//! No real one can be run here. This one follows the API conventions of Kubernetes (versions that only grow and are shared by all
//! objects, lists in pages of one version, watches that begin at a version, bookmarks, 410 for history that is gone in both
//! of its forms, optimistic locking, merge patches) and refuses what the real one refuses; every query parameter that it
//! does not know is an error. `kubectl` works with it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{Method, Version};
use serde_json::{Value, json};
use test_support::Port;
use test_support::certificate::Certificate;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

mod api;
mod documents;
mod refusal;
mod selector;
mod serving;
mod store;
mod validation;
mod watching;

use refusal::Refusal;
use serving::{acceptor, serve};
use store::Store;

const GROUP: &str = "discovery.k8s.io";
const KIND: &str = "EndpointSlice";

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
    store: Store,
    requests: Vec<Seen>,
    behaviour: Behaviour,
    /// The highest version that a bookmark said.
    bookmarked: u64,
    /// Queries that no API server would understand.
    complaints: Vec<String>,
    open_watches: usize,
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
    pub(super) at: Instant,
}

impl Seen {
    pub(super) fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|value| value == "true" || value == "1")
    }

    fn is_list(&self) -> bool {
        self.method == Method::GET && self.path.ends_with("/endpointslices") && !self.is_watch()
    }

    /// Refuses parameters other than these.
    fn has_only(&self, names: &[&str]) -> Result<(), Refusal> {
        match self.query.keys().find(|key| !names.contains(&key.as_str())) {
            Some(key) => Err(Refusal::bad(format!("unknown query parameter {key:?}"))),
            None => Ok(()),
        }
    }
}

impl Fake {
    pub(super) fn start(way: Way) -> Self {
        let inner = Inner {
            store: Store::new(),
            requests: Vec::new(),
            behaviour: Behaviour::default(),
            bookmarked: 0,
            complaints: Vec::new(),
            open_watches: 0,
        };
        let changed = watch::Sender::new(inner.store.version);
        let shared = Shared { state: Mutex::new(inner), changed, ended: watch::Sender::new(0) };
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
        let router = Router::new().fallback(api::answer).with_state(Arc::clone(&self.shared));
        let tls = match &self.way {
            Way::Plain => None,
            Way::Http2(certificate) => Some(acceptor(certificate, &[b"h2", b"http/1.1"], false)),
            Way::Mutual(certificate) => Some(acceptor(certificate, &[b"h2", b"http/1.1"], true)),
            Way::Http1(certificate) => Some(acceptor(certificate, &[b"http/1.1"], false)),
        };
        runtime.spawn(serve(listener, router, tls));
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
        let name = slice["metadata"]["name"].as_str().expect("a name").to_owned();
        let put = |store: &mut Store| match store.get(namespace, &name) {
            Ok(_) => store.replace(namespace, &name, slice),
            Err(_) => store.create(namespace, slice),
        };
        self.shared.change(put).expect("a valid slice");
    }

    /// Stores something that no validation would let pass.
    pub(super) fn put_unchecked(&self, namespace: &str, object: Value) {
        let put = |store: &mut Store| {
            store.put_unchecked(namespace, object);
            Ok(())
        };
        self.shared.change(put).expect("nothing is checked");
    }

    pub(super) fn delete(&self, namespace: &str, name: &str) {
        self.shared.change(|store| store.delete(namespace, name)).expect("it is there");
    }

    /// Forgets the history, as etcd is told to every five minutes: nobody can begin there any more.
    pub(super) fn compact(&self) {
        let mut inner = self.inner();
        inner.store.compacted = inner.store.version;
    }

    /// Something happens in another namespace, so that time goes on.
    pub(super) fn time_passes(&self) {
        self.put("elsewhere", json!({"metadata": {"name": "noise", "labels": {"n": self.inner().store.version.to_string()}}, "addressType": "IPv4", "endpoints": []}));
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

    /// Waits until a bookmark has said the latest version.
    pub(super) async fn bookmarked(&self) {
        let said = || {
            let inner = self.inner();
            inner.bookmarked >= inner.store.version
        };
        let told = async {
            while !said() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), told).await.expect("a bookmark");
    }

    /// Waits until so many watches were asked for, and gives them.
    pub(super) async fn asked_to_watch(&self, times: usize) -> Vec<Seen> {
        let asked = async {
            while self.watches().len() < times {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), asked).await.expect("the watches are asked for");
        self.watches()
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
        self.inner()
            .store
            .objects
            .keys()
            .filter(|(theirs, _)| theirs == namespace)
            .map(|(_, name)| name.clone())
            .collect()
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

impl Shared {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().expect("nothing panics while it is held")
    }

    /// Changes what is stored, and tells whoever watches.
    fn change<T>(&self, change: impl FnOnce(&mut Store) -> Result<T, Refusal>) -> Result<T, Refusal> {
        let mut inner = self.inner();
        let changed = change(&mut inner.store)?;
        let version = inner.store.version;
        drop(inner);
        self.changed.send_replace(version);
        Ok(changed)
    }
}
