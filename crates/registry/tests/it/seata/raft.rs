//! The metadata interface of a Raft cluster: a real Seata server 2.0.0 as a group of one, and a double for what later
//! servers add.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Form, Query, State as Extract};
use axum::http::{HeaderMap, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use metaroute_core::instance::Instance;
use metaroute_registry::{ErrorKind, State};
use serde_json::{Value, json};
use test_support::seata_client::SeataClient;
use test_support::seata_server::SeataServer;
use test_support::{Proxy, require, wait_until};
use tokio::sync::watch;

use crate::client::{addresses, await_view, connect, lists};

fn text(instance: &Instance, key: &str) -> Option<String> {
    instance.metadata.get(key).map(|value| value.to_text().into())
}

#[test]
fn a_real_server_is_found_with_its_role() {
    let server = require!(SeataServer::raft());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(real_server(&server));
    // Their client finds it, too; twice, since a server of this version lists itself as its own follower.
    let http = server.http().to_string();
    let mut java = require!(SeataClient::start("raft", &http, "default", &["username=seata", "password=seata"]));
    let mut last = String::new();
    let found = wait_until(Duration::from_secs(60), || {
        last = java.lookup();
        last.contains(&server.service().to_string())
    });
    assert!(found, "Java finds {last}");
}

async fn real_server(server: &SeataServer) {
    let proxy = Proxy::start(server.http());
    let http = server.http();
    // One that is not there, and the real one behind a network that can be broken.
    let registry = connect(&format!("seata-raft://seata:seata@{}?poll=2s", proxy.address()));
    let mut seen = registry.subscribe("default");
    let view = await_view(&mut seen, "the leader", |view| view.state == State::Fresh).await;
    let snapshot = view.snapshot.expect("a list");
    let [leader] = &snapshot.instances[..] else { panic!("one node, found {snapshot:?}") };
    assert_eq!(leader.address.to_string(), server.service().to_string());
    assert_eq!(text(leader, "role").as_deref(), Some("LEADER"));
    assert_eq!(text(leader, "group").as_deref(), Some("default"));
    assert!(text(leader, "term").is_some_and(|term| term.parse::<u64>().is_ok()));
    assert_eq!(registry.instances("nobody").await.expect("an answer"), None, "an unknown group");
    // Over several polls that end with 304 nothing changes and nothing breaks.
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(seen.current().state, State::Fresh);
    // Cut and half open are both noticed, and over.
    for broken in [Proxy::cut, Proxy::hold] {
        broken(&proxy);
        let view = await_view(&mut seen, "the loss is told", |view| view.state == State::Unreachable).await;
        assert_eq!(addresses(&view), [server.service().to_string()], "the last good list stays");
        proxy.heal();
        await_view(&mut seen, "it is back", |view| view.state == State::Fresh).await;
    }
    // Several addresses: the first that answers counts.
    proxy.cut();
    let both = connect(&format!("seata-raft://seata:seata@{},{http}?poll=2s", proxy.address()));
    let (list, _) = both.instances("default").await.expect("the other answers").expect("known");
    assert_eq!(list.instances.len(), 1);
    // A wrong password is a refusal, without the password in it.
    let wrong = connect(&format!("seata-raft://seata:wr0ng@{http}"));
    let error = wrong.instances("default").await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!format!("{error}{error:?}").contains("wr0ng"));
    // Nobody joins from outside, and it says so.
    let error = registry.register("default", Instance::new("10.0.0.1:80".parse().expect("an address")));
    assert_eq!(error.expect_err("read only").kind(), ErrorKind::Unsupported);
    assert_eq!(registry.services().await.expect_err("cannot list").kind(), ErrorKind::Unsupported);
    for registry in [registry, both, wrong] {
        assert!(registry.shutdown(Duration::from_secs(10)).await);
    }
}

/// What later servers add: the event stream over HTTP/2, and versions of nodes.
#[derive(Clone)]
struct Double {
    cluster: Arc<watch::Sender<Value>>,
    /// The protocol version of every watch.
    watches: Arc<Mutex<Vec<Version>>>,
}

impl Double {
    fn start() -> (Self, SocketAddr, tokio::task::JoinHandle<()>) {
        let double = Self { cluster: Arc::new(watch::Sender::new(Value::Null)), watches: Arc::default() };
        double.set(1, &["10.4.0.1"]);
        let routes = Router::new()
            .route("/metadata/v1/cluster", get(cluster))
            .route("/metadata/v1/watch", post(events))
            .with_state(double.clone());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("bound");
        let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
        let task = tokio::spawn(async move { axum::serve(listener, routes).await.expect("it serves") });
        (double, address, task)
    }

    /// The first host leads.
    fn set(&self, term: u64, hosts: &[&str]) {
        let nodes: Vec<Value> = hosts
            .iter()
            .enumerate()
            .map(|(n, host)| {
                json!({
                    "control": {"host": host, "port": 8091}, "transaction": {"host": host, "port": 8091},
                    "internal": {"host": host, "port": 9091}, "group": "default", "version": "2.7.0", "metadata": {},
                    "role": if n == 0 { "LEADER" } else { "FOLLOWER" },
                })
            })
            .collect();
        let nodes = if hosts.is_empty() { Value::Null } else { nodes.into() };
        self.cluster.send_replace(json!({ "nodes": nodes, "storeMode": "raft", "term": term }));
    }
}

async fn cluster(Extract(double): Extract<Double>) -> Json<Value> {
    Json(double.cluster.borrow().clone())
}

async fn events(
    Extract(double): Extract<Double>,
    version: Version,
    headers: HeaderMap,
    query: Query<HashMap<String, String>>,
    Form(terms): Form<HashMap<String, String>>,
) -> Response {
    double.watches.lock().expect("free").push(version);
    let mut changes = double.cluster.subscribe();
    if version != Version::HTTP_2 {
        let timeout = Duration::from_millis(query["timeout"].parse().expect("a number"));
        let known: u64 = terms["default"].parse().expect("a term");
        let newer = changes.wait_for(|cluster| cluster["term"].as_u64().is_some_and(|term| term > known));
        return match tokio::time::timeout(timeout, newer).await {
            Ok(_) => StatusCode::OK.into_response(),
            Err(_) => StatusCode::NOT_MODIFIED.into_response(),
        };
    }
    assert_eq!(headers["content-type"], "application/x-www-form-urlencoded");
    let stream = futures_util::stream::unfold((changes, true), |(mut changes, first)| async move {
        if !first && changes.changed().await.is_err() {
            return None;
        }
        let metadata = changes.borrow_and_update().clone();
        let event = json!({ "group": "default", "timestamp": 1, "metadata": metadata });
        // In two pieces, with a line of another kind before.
        let text = format!(":\nCW:{event}\n");
        Some((Ok::<_, std::convert::Infallible>(text), (changes, false)))
    });
    ([("content-type", "text/event-stream")], Body::from_stream(stream)).into_response()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_event_stream_is_followed() {
    let (double, address, server) = Double::start();
    let registry = connect(&format!("seata-raft://{address}?stream=true&poll=30s"));
    let mut seen = registry.subscribe("default");
    await_view(&mut seen, "one", lists(&["10.4.0.1:8091"])).await;
    double.set(2, &["10.4.0.2", "10.4.0.1"]);
    let view = await_view(&mut seen, "another leader", lists(&["10.4.0.1:8091", "10.4.0.2:8091"])).await;
    let snapshot = view.snapshot.expect("a list");
    let roles: Vec<_> = snapshot.instances.iter().map(|i| text(i, "role").expect("a role")).collect();
    assert_eq!(roles, ["FOLLOWER", "LEADER"], "all nodes, not only the leader");
    assert_eq!(text(&snapshot.instances[0], "version").as_deref(), Some("2.7.0"));
    // A group without a leader empties nothing.
    double.set(3, &[]);
    double.set(4, &["10.4.0.3"]);
    await_view(&mut seen, "the next leader", lists(&["10.4.0.3:8091"])).await;
    let watches = double.watches.lock().expect("free").clone();
    assert!(watches.iter().all(|version| *version == Version::HTTP_2), "{watches:?}");
    server.abort();
    registry.shutdown(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_without_a_leader_keeps_the_last_list() {
    let (double, address, server) = Double::start();
    let registry = connect(&format!("seata-raft://{address}?poll=1s"));
    let mut seen = registry.subscribe("default");
    await_view(&mut seen, "one", lists(&["10.4.0.1:8091"])).await;
    double.set(2, &[]);
    let view =
        await_view(&mut seen, "no leader", |view| view.state == State::Unreachable || view.state == State::Stale).await;
    assert_eq!(addresses(&view), ["10.4.0.1:8091"]);
    double.set(3, &["10.4.0.2"]);
    await_view(&mut seen, "a leader", lists(&["10.4.0.2:8091"])).await;
    server.abort();
    registry.shutdown(Duration::from_secs(10)).await;
}
