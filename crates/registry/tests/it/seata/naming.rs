//! The NamingServer: a strict double, since the server is not published, and the released Java client against that double.

use std::time::{Duration, Instant};

use metaroute_core::instance::MetaValue;
use metaroute_registry::{RegistrationState, State, View};
use serde_json::{Value, json};
use test_support::seata_client::SeataClient;
use test_support::{require, wait_until};

use super::naming_server::{NamingServer, Options};
use crate::client::{SOON, addresses, await_view, connect, instance, lists, registered};
use crate::conformance::{self, Subject, Traits};

fn url(servers: &[&NamingServer], rest: &str) -> String {
    let hosts: Vec<String> = servers.iter().map(|server| server.address().to_string()).collect();
    format!("namingserver://{}{rest}", hosts.join(","))
}

#[test]
fn conformance() {
    let options = Options { threshold: Duration::from_secs(10), ..Options::default() };
    let server = std::sync::Arc::new(std::sync::Mutex::new(NamingServer::start(options)));
    let address = server.lock().expect("free").address();
    conformance::run(Subject {
        name: "namingserver",
        server: address,
        // Five hundred heartbeats a second of a thousand instances are what two busy cores keep up with.
        url: Box::new(|server| format!("namingserver://{server}?heartbeat=2s&poll=3s")),
        restart: Box::new(move || server.lock().expect("free").start_again()),
        gone_within: Duration::from_secs(40),
        seen_within: SOON,
        traits: Traits { unknown_service: true, ..Traits::default() },
    });
}

/// [bug] in the original: "metadata difference alone does not replace or notify".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_metadata_alone_is_seen() {
    let server = NamingServer::start(Options::default());
    let url = url(&[&server], "?heartbeat=500ms");
    let (writer, reader) = (connect(&url), connect(&url));
    let mut seen = reader.subscribe("orders");
    let mut registration = writer.register("orders", instance("10.0.0.1:80").with_meta("env", "test")).expect("valid");
    registered(&mut registration).await;
    await_view(&mut seen, "one", lists(&["10.0.0.1:80"])).await;
    let env = |view: &View| {
        view.snapshot.iter().flat_map(|s| &s.instances).find_map(|i| i.metadata.get("env").map(|v| v.to_text()))
    };
    registration.update(instance("10.0.0.1:80").with_meta("env", "prod")).expect("valid");
    await_view(&mut seen, "the change", |view| env(view).as_deref() == Some("prod")).await;
    // The node was replaced, not added, and heartbeats do not raise the term.
    let term = || server.node("public", "default", "orders@10.0.0.1:80").map(|node| node["term"].clone());
    let before = term();
    heartbeats(&server, 2).await;
    assert_eq!(term(), before);
    assert!(before.is_some());
    reader.shutdown(SOON).await;
    writer.shutdown(SOON).await;
}

/// Waits until so many more registrations have arrived, which is what heartbeats are, and another one that is on its way.
async fn heartbeats(server: &NamingServer, more: usize) {
    let wanted = server.seen("/naming/v1/register").len() + more + 1;
    let arrived = || server.seen("/naming/v1/register").len() >= wanted;
    assert!(tokio::task::block_in_place(|| wait_until(SOON, arrived)), "its owner is silent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registers_at_all_servers_and_reads_from_one_that_answers() {
    let mut servers = [NamingServer::start(Options::default()), NamingServer::start(Options::default())];
    let both = url(&[&servers[0], &servers[1]], "?heartbeat=500ms&poll=2s");
    let (writer, reader) = (connect(&both), connect(&both));
    let mut seen = reader.subscribe("orders");
    let mut registration = writer.register("orders", instance("10.0.0.1:80")).expect("valid");
    registered(&mut registration).await;
    await_view(&mut seen, "one", lists(&["10.0.0.1:80"])).await;
    for server in &servers {
        assert!(server.node("public", "default", "orders@10.0.0.1:80").is_some(), "each server has it");
    }
    // The one that is read from goes: nobody notices, and what changes meanwhile is seen at the other.
    servers[0].stop();
    let mut second = writer.register("orders", instance("10.0.0.2:80")).expect("valid");
    registered(&mut second).await;
    await_view(&mut seen, "two at the other", lists(&["10.0.0.1:80", "10.0.0.2:80"])).await;
    assert!(matches!(registration.state(), RegistrationState::Registered), "one server is as good as all");
    // It comes back without memory; the heartbeat tells it.
    servers[0].start_again();
    let told = || servers[0].node("public", "default", "orders@10.0.0.1:80").is_some();
    assert!(tokio::task::block_in_place(|| wait_until(SOON, told)), "a heartbeat registers again");
    registration.deregister().await;
    second.deregister().await;
    for server in &servers {
        assert!(server.node("public", "default", "orders@10.0.0.1:80").is_none(), "each server let go of it");
    }
    reader.shutdown(SOON).await;
    writer.shutdown(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_200_with_another_code_is_no_success() {
    let server = NamingServer::start(Options::default());
    server.break_registering(true);
    let registry = connect(&url(&[&server], "?heartbeat=500ms"));
    let mut registration = registry.register("orders", instance("10.0.0.1:80")).expect("valid");
    let refused = || !server.seen("/naming/v1/register").is_empty();
    assert!(tokio::task::block_in_place(|| wait_until(SOON, refused)));
    let told = || matches!(registration.state(), RegistrationState::Pending(Some(error)) if error.to_string().contains("code 500"));
    assert!(tokio::task::block_in_place(|| wait_until(SOON, told)), "{:?}", registration.state());
    server.break_registering(false);
    registered(&mut registration).await;
    registry.shutdown(SOON).await;
}

/// [bug] in the original: unregistering sends no token, so the node stays until it expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_carries_a_token_that_is_replaced_in_time() {
    let life = Duration::from_millis(1500);
    let server = NamingServer::start(Options { auth: Some(("seata", "s3cret", life)), ..Options::default() });
    let address = server.address();
    let began = Instant::now();
    let registry = connect(&format!("namingserver://seata:s3cret@{address}?heartbeat=300ms&poll=1s&login-every=1s"));
    let mut seen = registry.subscribe("orders");
    let mut registration = registry.register("orders", instance("10.0.0.1:80")).expect("valid");
    registered(&mut registration).await;
    await_view(&mut seen, "one", lists(&["10.0.0.1:80"])).await;
    tokio::time::sleep(2 * life).await;
    assert_eq!(seen.current().state, State::Fresh);
    registration.deregister().await;
    await_view(&mut seen, "none", lists(&[])).await;
    assert!(server.node("public", "default", "orders@10.0.0.1:80").is_none(), "it was let go of, not left to expire");
    let logins = server.seen("/api/v1/auth/login");
    // One a second and one that was refused, however long that was.
    let most = began.elapsed().as_secs() as usize + 3;
    assert!((2..=most).contains(&logins.len()), "{} logins in {:?}", logins.len(), began.elapsed());
    assert!(logins.iter().all(|login| login.authorization.is_none()));
    for path in ["register", "unregister", "discovery", "watch"] {
        let calls = server.seen(&format!("/naming/v1/{path}"));
        assert!(calls.iter().all(|call| call.authorization.as_ref().is_some_and(|token| token.starts_with("Bearer "))));
        assert!(!calls.is_empty(), "{path}");
    }
    // A server that forgot its tokens is logged in at again.
    registry.shutdown(SOON).await;
    let wrong = connect(&format!("namingserver://seata:wr0ng@{address}"));
    let error = wrong.instances("orders").await.expect_err("refused");
    assert_eq!(error.kind(), metaroute_registry::ErrorKind::Denied);
    assert!(!format!("{error} {error:?}").contains("wr0ng"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_that_knows_nothing_does_not_empty_the_list() {
    // Nothing expires here, however late a heartbeat is.
    let mut server = NamingServer::start(Options { threshold: Duration::from_secs(60), ..Options::default() });
    let (writer, reader) =
        (connect(&url(&[&server], "?heartbeat=2s")), connect(&url(&[&server], "?heartbeat=2s&poll=2s")));
    let mut seen = reader.subscribe("orders");
    let mut registration = writer.register("orders", instance("10.0.0.1:80")).expect("valid");
    registered(&mut registration).await;
    await_view(&mut seen, "one", lists(&["10.0.0.1:80"])).await;
    server.start_again();
    let mut lost = false;
    let end = tokio::time::Instant::now() + Duration::from_secs(6);
    while let Ok(Ok(view)) = tokio::time::timeout_at(end, seen.changed()).await {
        lost |= view.state == State::UnknownService || addresses(&view).is_empty();
    }
    assert!(!lost, "the list was emptied by a restart");
    await_view(&mut seen, "one again", lists(&["10.0.0.1:80"])).await;
    reader.shutdown(SOON).await;
    writer.shutdown(SOON).await;
}

/// An expiry sets the term to −1, below what clients sent; a poll that starts after it is not released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiry_is_seen_although_the_term_went_down() {
    let server = NamingServer::start(Options { threshold: Duration::from_secs(1), ..Options::default() });
    let reader = connect(&url(&[&server], "?poll=1s"));
    server.register("public", "default", "u-1", &node("10.2.0.1", 8091, 100, json!({"vGroup": {"orders": null}})));
    let mut seen = reader.subscribe("orders");
    await_view(&mut seen, "one", lists(&["10.2.0.1:8091"])).await;
    // Nobody sends heartbeats for it.
    await_view(&mut seen, "none", lists(&[])).await;
    server.register("public", "default", "u-2", &node("10.2.0.2", 8091, 5, json!({"vGroup": {"orders": ""}})));
    await_view(&mut seen, "another one, with a lower term", lists(&["10.2.0.2:8091"])).await;
    reader.shutdown(SOON).await;
}

fn node(host: &str, port: u16, term: i64, metadata: Value) -> Value {
    json!({
        "control": {"host": host, "port": 7091}, "transaction": {"host": host, "port": port}, "weight": 1.0,
        "healthy": true, "term": term, "role": "MEMBER", "metadata": metadata, "unit": "u",
    })
}

/// [bug] in the original's client: one flag for the whole process, so that a second vgroup is never fetched. And of the
/// server: when the last unit of a vgroup goes, it lists all nodes of the cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vgroups_of_one_cluster_are_followed_apart() {
    let server = NamingServer::start(Options::default());
    let registry = connect(&url(&[&server], "?heartbeat=500ms&poll=2s"));
    let (mut orders, mut stock) = (registry.subscribe("orders"), registry.subscribe("stock"));
    // One address serves both.
    let mut first = registry.register("orders", instance("10.0.0.1:80")).expect("valid");
    let mut second = registry.register("stock", instance("10.0.0.1:80").with_weight(2.0)).expect("valid");
    registered(&mut first).await;
    registered(&mut second).await;
    let view = await_view(&mut orders, "orders", lists(&["10.0.0.1:80"])).await;
    assert_eq!(view.snapshot.expect("a list").instances[0].weight, 1.0);
    let view = await_view(&mut stock, "stock", lists(&["10.0.0.1:80"])).await;
    assert_eq!(view.snapshot.expect("a list").instances[0].weight, 2.0);
    first.deregister().await;
    await_view(&mut orders, "none of the other's nodes", lists(&[])).await;
    await_view(&mut stock, "stock still", lists(&["10.0.0.1:80"])).await;
    let listed = registry.services().await.expect("listed");
    assert!(listed.iter().any(|name| **name == *"stock"), "{listed:?}");
    registry.shutdown(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_clusters_and_control_port_are_as_the_address_says() {
    let server = NamingServer::start(Options::default());
    let here = connect(&url(&[&server], "/blue?cluster=c9&control-port=7091&heartbeat=500ms"));
    let there = connect(&url(&[&server], ""));
    let mut registration = here.register("orders", instance("10.0.0.1:80")).expect("valid");
    registered(&mut registration).await;
    let (snapshot, _) = here.instances("orders").await.expect("answered").expect("known");
    assert_eq!(&*snapshot.instances[0].cluster, "c9");
    assert!(there.instances("orders").await.expect("answered").is_none_or(|(list, _)| list.instances.is_empty()));
    let stored = server.node("blue", "c9", "orders@10.0.0.1:80").expect("stored there");
    assert_eq!(stored["control"], json!({"host": "10.0.0.1", "port": 7091}));
    for key in ["vGroup", "cluster-type", "metaroute-x"] {
        let error = here.register("orders", instance("10.0.0.2:80").with_meta(key, "x")).expect_err("reserved");
        assert!(error.to_string().contains(key), "{error}");
    }
    // Never a null endpoint, in whatever was sent.
    for call in server.seen("/naming/v1/register") {
        let body: Value = serde_json::from_str(&call.body).expect("JSON");
        assert!(body["control"]["host"].is_string() && body["transaction"]["port"].is_u64(), "{body}");
    }
    // Another process changes it, and its owner's heartbeats do not change it back.
    let other = connect(&url(&[&server], "/blue"));
    let (mut list, _) = other.instances("orders").await.expect("answered").expect("known");
    let mut amended = list.instances.remove(0).with_weight(0.0).with_meta("note", "draining");
    amended.cluster = "elsewhere".into();
    other.amend("orders", &amended).await.expect("changed");
    heartbeats(&server, 2).await;
    let (list, _) = other.instances("orders").await.expect("answered").expect("known");
    assert_eq!((list.instances.len(), list.instances[0].weight), (1, 0.0), "{list:?}");
    assert_eq!(list.instances[0].metadata.get("note"), Some(&"draining".into()));
    assert_eq!(list.instances[0].incarnation, amended.incarnation, "it is the same life");
    let changed = server.node("blue", "c9", "orders@10.0.0.1:80").expect("in its own cluster");
    assert_eq!(
        (&changed["control"], &changed["metadata"]["vGroup"]),
        (&stored["control"], &stored["metadata"]["vGroup"])
    );
    let error = other.amend("orders", &instance("10.0.0.77:80")).await.expect_err("nobody there");
    assert_eq!(error.kind(), metaroute_registry::ErrorKind::Invalid);
    // Another process takes it away, without having registered it.
    drop(registration);
    here.shutdown(SOON).await;
    server.register("blue", "c9", "u-7", &node("10.0.0.9", 9, 7, json!({"vGroup": {"orders": "u-7"}})));
    other.remove("orders", &"10.0.0.9:9".into()).await.expect("taken away");
    assert!(server.node("blue", "c9", "u-7").is_none());
    other.remove("orders", &"10.0.0.9:9".into()).await.expect("it is not there already");
    other.shutdown(SOON).await;
}

#[test]
fn the_released_java_client_and_we_find_each_other() {
    let server = NamingServer::start(Options { threshold: Duration::from_secs(60), ..Options::default() });
    let mut java =
        require!(SeataClient::start("seata", &server.address().to_string(), "default", &["namespace=public"]));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let registry = runtime.block_on(async { connect(&url(&[&server], "?heartbeat=1s&poll=2s")) });
    let ours = runtime.block_on(async {
        let mut ours =
            registry.register("default_tx_group", instance("10.3.0.1:8091").with_meta("env", "prod")).expect("valid");
        registered(&mut ours).await;
        ours
    });
    let finds = |java: &mut SeataClient, wanted: &str| {
        let mut last = String::new();
        let found = wait_until(Duration::from_secs(60), || {
            last = java.lookup();
            last == wanted
        });
        assert!(found, "Java finds {last}, not {wanted}");
    };
    finds(&mut java, r#"{"addresses":["10.3.0.1:8091"]}"#);
    let mut second = runtime.block_on(async {
        let mut second = registry.register("default_tx_group", instance("10.3.0.2:8091")).expect("valid");
        registered(&mut second).await;
        second
    });
    finds(&mut java, r#"{"addresses":["10.3.0.1:8091","10.3.0.2:8091"]}"#);
    java.register("10.3.0.3:8093");
    let (view, seen) = runtime.block_on(async {
        let mut seen = registry.subscribe("default_tx_group");
        let view =
            await_view(&mut seen, "what Java registered", |view| addresses(view).iter().any(|a| a == "10.3.0.3:8093"))
                .await;
        (view, seen)
    });
    let snapshot = view.snapshot.expect("a list");
    let theirs = snapshot.instances.iter().find(|i| i.address.port() == 8093).expect("listed");
    assert_eq!(theirs.metadata.get("weight"), Some(&MetaValue::Number("5".into())), "kinds are kept");
    assert_eq!(theirs.metadata.get("env"), Some(&MetaValue::from("")));
    assert_eq!(theirs.incarnation.as_str(), "unit-8093");
    java.unregister("10.3.0.3:8093");
    runtime.block_on(async {
        let mut seen = seen;
        await_view(&mut seen, "Java's is gone", lists(&["10.3.0.1:8091", "10.3.0.2:8091"])).await;
        ours.deregister().await;
    });
    finds(&mut java, r#"{"addresses":["10.3.0.2:8091"]}"#);
    runtime.block_on(async {
        second.registered().await.expect("still there");
        registry.shutdown(SOON).await;
    });
}
