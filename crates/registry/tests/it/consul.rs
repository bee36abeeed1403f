//! Consul against a real agent (1.14.11).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use metaroute_core::instance::{InstanceId, MetaValue};
use metaroute_registry::{ErrorKind, Registry, State, View};
use serde_json::{Value, json};
use test_support::certificate::Certificate;
use test_support::consul::{Consul, MANAGEMENT_TOKEN};
use test_support::python::Python;
use test_support::spring::Spring;
use test_support::{Proxy, Scratch, require};

use crate::client::{SOON, connect, instance, only, see_that};
use crate::conformance::{self, Subject, Traits};
use crate::spring;

/// Short, so that tests are.
const TTL: &str = "6s";

#[test]
fn conformance() {
    let mut consul = require!(Consul::start());
    let server = ([127, 0, 0, 1], consul.port()).into();
    conformance::run(Subject {
        name: "consul",
        server,
        // A thousand beats every four seconds are what an agent keeps up with beside two other suites on two cores.
        url: Box::new(|server| format!("consul://{server}?ttl=12s")),
        restart: Box::new(move || {
            consul.server().stop();
            consul.server().start_again().expect("it starts again");
        }),
        gone_within: Duration::from_secs(30),
        seen_within: SOON,
        traits: Traits { unknown_service: true, usual_ttl: Some(Duration::from_secs(15)), ..Traits::default() },
    });
}

/// The agent's HTTP interface, as curl would use it.
struct Agent(u16);

impl Agent {
    fn of(consul: &Consul) -> Self {
        Self(consul.port())
    }

    async fn call(&self, method: reqwest::Method, path: &str, body: Value) -> Value {
        // Set already is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let url = format!("http://127.0.0.1:{}{path}", self.0);
        let request = client.request(method, url).header("X-Consul-Token", MANAGEMENT_TOKEN);
        let request = if body.is_null() { request } else { request.json(&body) };
        let response = request.send().await.expect("the agent answers");
        let status = response.status();
        let text = response.text().await.expect("a body");
        assert!(status.is_success(), "{path}: {status} {text}");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    async fn get(&self, path: &str) -> Value {
        self.call(reqwest::Method::GET, path, Value::Null).await
    }

    async fn put(&self, path: &str, body: Value) {
        self.call(reqwest::Method::PUT, path, body).await;
    }

    fn registry(&self, parameters: &str) -> Registry {
        connect(&format!("consul://127.0.0.1:{}?ttl={TTL}{parameters}", self.0))
    }
}

#[tokio::test]
async fn what_is_registered_is_what_others_read() {
    let consul = require!(Consul::start());
    let agent = Agent::of(&consul);
    let registry = agent.registry("&tags=blue,grp%3Dx");
    let mut fixed = instance("10.0.0.1:8080").with_weight(3.0).with_zone("zone1").with_meta("version", "2.0");
    fixed.cluster = "c1".into();
    let mut registration = registry.register("web", fixed).expect("valid");
    registration.registered().await.expect("taken");
    let entries = agent.get("/v1/health/service/web?passing").await;
    let entry = &entries[0];
    assert_eq!(entry["Service"]["ID"], "web-10.0.0.1:8080");
    assert_eq!(entry["Service"]["Address"], "10.0.0.1");
    assert_eq!(entry["Service"]["Port"], 8080);
    assert_eq!(entry["Service"]["Tags"], json!(["blue", "grp=x"]));
    assert_eq!(entry["Service"]["Weights"], json!({ "Passing": 3, "Warning": 1 }));
    assert_eq!(entry["Service"]["Meta"], json!({ "version": "2.0", "zone": "zone1", "metaroute-cluster": "c1" }));
    let checks = entry["Checks"].as_array().expect("a list");
    let ours: Vec<&Value> = checks.iter().filter(|check| check["ServiceID"] == "web-10.0.0.1:8080").collect();
    assert_eq!(ours.len(), 1);
    assert_eq!((&ours[0]["CheckID"], &ours[0]["Type"]), (&json!("service:web-10.0.0.1:8080"), &json!("ttl")));
    registration.deregister().await;
    assert_eq!(agent.get("/v1/agent/services").await, json!({}));
}

/// A registration without this parameter leaves the checks of an earlier one behind.
#[tokio::test]
async fn old_checks_of_a_registration_are_replaced() {
    let consul = require!(Consul::start());
    let agent = Agent::of(&consul);
    let foreign = json!({
        "ID": "web-10.0.0.1:80", "Name": "web", "Address": "10.0.0.1", "Port": 80,
        "Checks": [{ "CheckID": "old", "TTL": "10m" }],
    });
    agent.put("/v1/agent/service/register", foreign).await;
    let registry = agent.registry("");
    let mut registration = registry.register("web", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    let view = see_that(&registry, "web", "healthy", |view| only(view).is_some_and(|one| one.healthy)).await;
    assert_eq!(only(&view).expect("one").id.as_str(), "10.0.0.1:80");
    assert!(agent.get("/v1/agent/checks").await.get("old").is_none());
    registry.shutdown(SOON).await;
}

/// Others' entries: health as the worst check, maintenance, node address, no Meta, an id of their own.
#[tokio::test]
async fn what_others_register_is_read() {
    let consul = require!(Consul::start());
    let agent = Agent::of(&consul);
    let registry = agent.registry("");
    let body = json!({
        "ID": "web-1", "Name": "web", "Port": 80, "Tags": ["a", "b", "a"], "Weights": { "Passing": 10, "Warning": 2 },
        "Check": { "TTL": "10m", "Status": "passing" },
    });
    agent.put("/v1/agent/service/register", body).await;
    let view = see_that(&registry, "web", "passing", |view| only(view).is_some_and(|one| one.healthy)).await;
    let one = only(&view).expect("one");
    assert_eq!((one.id.as_str(), &*one.address.to_string(), one.weight), ("web-1", "127.0.0.1:80", 10.0));
    assert_eq!(one.metadata.get("tags"), Some(&MetaValue::List(["a", "b", "a"].map(Into::into).into())));
    agent.put("/v1/agent/check/warn/service:web-1", Value::Null).await;
    see_that(&registry, "web", "a warning", |view| only(view).is_some_and(|one| one.healthy && one.weight == 2.0))
        .await;
    agent.put("/v1/agent/check/fail/service:web-1", Value::Null).await;
    see_that(&registry, "web", "critical is listed as unhealthy", |view| only(view).is_some_and(|one| !one.healthy))
        .await;
    agent.put("/v1/agent/check/pass/service:web-1", Value::Null).await;
    agent.put("/v1/agent/service/maintenance/web-1?enable=true", Value::Null).await;
    see_that(&registry, "web", "maintenance switches off", |view| {
        only(view).is_some_and(|one| !one.healthy && !one.enabled)
    })
    .await;
    agent.put("/v1/agent/service/maintenance/web-1?enable=false", Value::Null).await;
    see_that(&registry, "web", "on again", |view| only(view).is_some_and(|one| one.healthy && one.enabled)).await;
    // An entry without a port is no place to connect to; it is counted, and the other one stays.
    agent.put("/v1/agent/service/register", json!({ "ID": "web-2", "Name": "web" })).await;
    let view = see_that(&registry, "web", "a bad entry", |view| {
        view.snapshot.as_ref().is_some_and(|snapshot| snapshot.rejected == 1)
    })
    .await;
    assert_eq!(only(&view).expect("one").id.as_str(), "web-1");
    registry.shutdown(SOON).await;
}

/// The last instance of a watched service goes: that is an empty list, which may be doubted, not an unknown service.
#[tokio::test]
async fn a_watched_service_without_instances_is_empty_and_a_new_one_unknown() {
    let consul = require!(Consul::start());
    let agent = Agent::of(&consul);
    let registry = agent.registry("");
    see_that(&registry, "web", "unknown", |view| view.state == State::UnknownService).await;
    let mut seen = registry.subscribe("web");
    let mut registration = registry.register("web", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    let one = |view: &View| only(view).is_some();
    tokio::time::timeout(SOON, seen.wait_for(one)).await.expect("in time").expect("open");
    registration.deregister().await;
    let empty = |view: &View| view.snapshot.as_ref().is_some_and(|snapshot| snapshot.instances.is_empty());
    let view = tokio::time::timeout(SOON, seen.wait_for(empty)).await.expect("in time").expect("open");
    assert_eq!(view.state, State::Fresh);
    assert_eq!(registry.instances("web").await.expect("an answer"), None);
    registry.shutdown(SOON).await;
}

/// Beats are answered with 404 by an agent that lost its state; nothing is registered twice.
#[tokio::test]
async fn a_registration_taken_away_by_somebody_else_comes_back() {
    let consul = require!(Consul::start());
    let agent = Agent::of(&consul);
    let registry = agent.registry("");
    let mut registration = registry.register("web", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    agent.put("/v1/agent/service/deregister/web-10.0.0.1:80", Value::Null).await;
    see_that(&registry, "web", "it is back", |view| only(view).is_some_and(|one| one.healthy)).await;
    registry.shutdown(SOON).await;
}

/// `[]` has three meanings under access control: nothing there, a token that may not see it (said in a header), and no
/// token at all (said nowhere but in the default policy).
#[tokio::test]
async fn an_empty_list_because_of_access_control_is_an_error() {
    let consul = require!(Consul::start_with_acl());
    let agent = Agent::of(&consul);
    let anonymous = agent.registry("");
    let error = anonymous.instances("web").await.expect_err("nothing is shown");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("without a token"), "{error}");
    assert_eq!(anonymous.services().await.expect_err("nothing is shown").kind(), ErrorKind::Denied);

    let policy = json!({ "Name": "half", "Rules": "service_prefix \"\" { policy = \"write\" }" });
    agent.put("/v1/acl/policy", policy).await;
    let half = "5e7f1c3a-0000-4000-8000-000000000002";
    agent.put("/v1/acl/token", json!({ "SecretID": half, "Policies": [{ "Name": "half" }] })).await;
    let whole = agent.registry(&format!("&token={MANAGEMENT_TOKEN}"));
    let mut registration = whole.register("web", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    see_that(&whole, "web", "one", |view| only(view).is_some()).await;
    let half = agent.registry(&format!("&token={half}"));
    let error = half.instances("web").await.expect_err("the node is hidden");
    assert!(error.to_string().contains("node:read"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Denied);
    // With a token that sees everything, empty is empty.
    assert_eq!(whole.instances("nobody").await.expect("an answer"), None);

    let expired = agent.registry("&token=5e7f1c3a-0000-4000-8000-00000000dead");
    let error = expired.instances("web").await.expect_err("no such token");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!error.to_string().contains("00000000dead"), "{error}");
    let view = see_that(&expired, "web", "a refusal", |view| view.state == State::Stale).await;
    assert_eq!(view.error.map(|error| error.kind()), Some(ErrorKind::Denied));
    let mut refused = anonymous.register("web", instance("10.0.0.2:80")).expect("valid");
    assert_eq!(refused.registered().await.expect_err("refused").kind(), ErrorKind::Denied);
    for registry in [anonymous, half, expired, whole] {
        registry.shutdown(SOON).await;
    }
}

/// Ids and names that need escaping in paths.
#[tokio::test]
async fn odd_names_and_ids_survive() {
    let consul = require!(Consul::start());
    let agent = Agent::of(&consul);
    let registry = agent.registry("");
    for (service, id) in
        [("or.ders/v1", "a/b"), ("größe", "東京 1"), ("x", "a?b#c&d"), ("y", "50%41"), ("z", "fd00::1")]
    {
        let mut registration = registry.register(service, instance("[fd00::1]:80").with_id(id)).expect("valid");
        registration.registered().await.expect("taken");
        let view = see_that(&registry, service, "one", |view| only(view).is_some()).await;
        assert_eq!(only(&view).expect("one").id.as_str(), id);
        // Longer than the time to live: its beats find it.
        registration.deregister().await;
        assert_eq!(registry.instances(service).await.expect("an answer"), None, "{service} {id}");
    }
    registry.shutdown(SOON).await;
}

/// Seata's own clients ask for passing instances with the tag `services`.
#[tokio::test]
async fn seata_layout_shows_only_seatas_servers() {
    let consul = require!(Consul::start());
    let agent = Agent::of(&consul);
    let registry = agent.registry("&layout=seata");
    agent.put("/v1/agent/service/register", json!({ "Name": "default", "ID": "other", "Port": 1 })).await;
    agent.put("/v1/agent/service/register", json!({ "Name": "unrelated", "Port": 1 })).await;
    // As Seata 2.6.0 writes it, with a check that is not passing yet.
    let seata = json!({
        "ID": "default-10.0.0.2:8091", "Name": "default", "Tags": ["services"], "Address": "10.0.0.2", "Port": 8091,
        "Check": { "TCP": "127.0.0.1:1", "Interval": "10s", "Timeout": "1s", "DeregisterCriticalServiceAfter": "20s" },
    });
    agent.put("/v1/agent/service/register", seata).await;
    let mut registration =
        registry.register("default", instance("10.0.0.1:8091").with_meta("vGroup", "{}")).expect("valid");
    registration.registered().await.expect("taken");
    let view = see_that(&registry, "default", "two", |view| {
        view.snapshot.as_ref().is_some_and(|snapshot| snapshot.instances.len() == 2)
    })
    .await;
    let mut found: Vec<_> = view.snapshot.iter().flat_map(|snapshot| &snapshot.instances).collect();
    found.sort_by_key(|one| one.id.clone());
    assert_eq!((found[0].id.as_str(), found[0].healthy, &*found[0].cluster), ("10.0.0.1:8091", true, "default"));
    assert_eq!((found[1].id.as_str(), found[1].healthy), ("10.0.0.2:8091", false));
    assert_eq!(registry.services().await.expect("a list"), [Box::from("default")]);
    let theirs = agent.get("/v1/health/service/default?passing&tag=services").await;
    assert_eq!(theirs.as_array().map(Vec::len), Some(1));
    assert_eq!(theirs[0]["Service"]["ID"], "default-10.0.0.1:8091");
    registry.shutdown(SOON).await;
}

/// Somebody else's instance: changed in place without touching its check, and taken away by its own id.
#[tokio::test]
async fn instances_of_others_can_be_amended_and_removed() {
    let consul = require!(Consul::start());
    let agent = Agent::of(&consul);
    let registry = agent.registry("");
    let body = json!({
        "ID": "web-1", "Name": "web", "Address": "10.0.0.1", "Port": 80,
        "Check": { "TTL": "10m", "Status": "passing" },
    });
    agent.put("/v1/agent/service/register", body).await;
    let view = see_that(&registry, "web", "one", |view| only(view).is_some()).await;
    let changed = only(&view).expect("one").clone().with_weight(0.0).with_meta("canary", "yes");
    registry.amend("web", &changed).await.expect("it is there");
    see_that(&registry, "web", "changed", |view| only(view).is_some_and(|one| one.weight == 0.0 && one.healthy)).await;
    let entry = agent.get("/v1/health/service/web").await;
    assert_eq!(entry.as_array().map(Vec::len), Some(1));
    assert_eq!(entry[0]["Service"]["ID"], "web-1");
    assert_eq!(entry[0]["Service"]["Meta"], json!({ "canary": "yes", "metaroute-weight": "0" }));
    assert!(entry[0]["Checks"].as_array().is_some_and(|checks| checks.iter().any(|check| check["Type"] == "ttl")));
    let error = registry.amend("web", &changed.with_id("web-9")).await.expect_err("not there");
    assert!(error.to_string().contains("`web-9`"), "{error}");
    registry.remove("web", &InstanceId::from("web-1")).await.expect("gone");
    assert_eq!(agent.get("/v1/agent/services").await, json!({}));
    registry.remove("web", &InstanceId::from("web-1")).await.expect("still gone");
    registry.shutdown(SOON).await;
}

/// The agent cuts the 201st connection of one client with 429.
#[tokio::test]
async fn more_watches_than_an_agent_takes_connections_all_see_changes() {
    let consul = require!(Consul::start());
    let agent = Agent::of(&consul);
    let registry = agent.registry("");
    let mut all: Vec<_> = (0..230).map(|n| registry.subscribe(&format!("many-{n}"))).collect();
    for seen in &mut all {
        let view = tokio::time::timeout(SOON, seen.changed()).await.expect("in time").expect("open");
        assert_eq!(view.state, State::UnknownService, "{view:?}");
    }
    let mut registration = registry.register("many-229", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    let seen = all.last_mut().expect("there are many");
    tokio::time::timeout(SOON, seen.wait_for(|view| only(view).is_some())).await.expect("in time").expect("open");
    for seen in &all {
        assert_ne!(seen.current().state, State::Unreachable, "{:?}", seen.current());
    }
    assert!(registry.shutdown(SOON).await);
}

/// An agent registers in its own datacenter, whatever the query says.
#[tokio::test]
async fn registering_in_another_datacenter_is_refused() {
    let consul = require!(Consul::start());
    let agent = Agent::of(&consul);
    let own = agent.registry("&dc=dc1");
    let mut registration = own.register("web", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("its own");
    let other = agent.registry("&dc=dc2");
    let mut registration = other.register("web", instance("10.0.0.1:80")).expect("valid");
    let error = registration.registered().await.expect_err("another");
    assert!(error.to_string().contains("`dc1` only"), "{error}");
    for registry in [own, other] {
        registry.shutdown(SOON).await;
    }
}

#[tokio::test]
async fn a_mended_network_is_told_although_nothing_changed() {
    let consul = require!(Consul::start());
    Agent::of(&consul).put("/v1/agent/service/register", json!({ "Name": "web", "Port": 80 })).await;
    let proxy = Proxy::start(([127, 0, 0, 1], consul.port()).into());
    let registry = Agent(proxy.address().port()).registry("");
    let (mut seen, mut unknown) = (registry.subscribe("web"), registry.subscribe("nobody"));
    for _ in 0..2 {
        for (seen, good) in [(&mut seen, State::Fresh), (&mut unknown, State::UnknownService)] {
            let good = seen.wait_for(|view| view.state == good);
            tokio::time::timeout(SOON, good).await.expect("in time").expect("open");
        }
        proxy.cut();
        for seen in [&mut seen, &mut unknown] {
            let lost = seen.wait_for(|view| view.state == State::Unreachable);
            tokio::time::timeout(SOON, lost).await.expect("in time").expect("open");
        }
        proxy.heal();
    }
    registry.shutdown(SOON).await;
}

/// Spring Cloud Consul reads what we register with all its metadata, and its load balancer obeys our zone; we read what Spring
/// registers, with its tags and the health its agent found.
#[tokio::test]
async fn spring_and_we_see_each_other() {
    let consul = require!(Consul::start());
    let port = consul.port();
    let registry = Agent::of(&consul).registry("");
    let spring = tokio::task::spawn_blocking(move || {
        let own = [
            "--spring.cloud.consul.discovery.instance-id=spring-app-1",
            "--spring.cloud.consul.discovery.metadata.version=2.0",
            "--spring.cloud.consul.discovery.instance-zone=a",
            "--spring.cloud.consul.discovery.tags=blue,grp=x",
        ];
        Spring::with_consul(port, "spring-app", &[&own[..], &spring::IN_ZONE_A].concat())
    });
    let spring = require!(spring.await.expect("it ran"));

    let view =
        see_that(&registry, "spring-app", "Spring's own instance", |view| only(view).is_some_and(|one| one.healthy))
            .await;
    let seen = only(&view).expect("one");
    assert_eq!((seen.id.as_str(), seen.address.to_string()), ("spring-app-1", format!("127.0.0.1:{}", spring.port())));
    assert_eq!(seen.metadata.get("version"), Some(&MetaValue::from("2.0")));
    assert_eq!(seen.metadata.get("tags"), Some(&MetaValue::List(["blue", "grp=x"].map(Into::into).into())));
    assert_eq!(&*seen.locality.zone, "a");

    let near = instance("10.0.0.1:80").with_meta("version", "1").with_meta("place", "Zürich").with_weight(0.5);
    let near = spring::reads_ours_and_obeys_the_zone(&registry, spring, near).await;
    assert_eq!((&near["id"], &near["port"]), (&json!("rust-svc-10.0.0.1:80"), &json!(80)));
    let metadata = &near["metadata"];
    assert_eq!((&metadata["version"], &metadata["place"]), (&json!("1"), &json!("Zürich")));
    assert_eq!((&metadata["zone"], &metadata["metaroute-weight"]), (&json!("a"), &json!("0.5")));
    registry.shutdown(SOON).await;
}

/// py-consul finds what we register with tags, metadata and weight, and we what it registers.
#[tokio::test]
async fn their_python_client_and_we_see_each_other() {
    let consul = require!(Consul::start());
    let mut python = require!(Python::start("consul-python", &["127.0.0.1", &consul.port().to_string()]));
    let mut ask = |line: &str| -> Value { serde_json::from_str(&python.ask(line)).expect("JSON") };
    let registry = Agent::of(&consul).registry("&tags=blue");
    let ours = instance("10.0.0.1:80").with_zone("a").with_meta("place", "Zürich").with_weight(3.0);
    let mut registration = registry.register("web", ours).expect("valid");
    registration.registered().await.expect("taken");
    let meta = json!({ "place": "Zürich", "zone": "a" });
    let listed =
        json!({ "id": "web-10.0.0.1:80", "address": "10.0.0.1:80", "tags": ["blue"], "meta": meta, "weight": 3 });
    assert_eq!(ask("list web"), json!([listed]));
    registration.deregister().await;
    assert_eq!(ask("list web"), json!([]));

    let mut seen = registry.subscribe("theirs");
    ask("register theirs theirs-1 10.0.0.2 81 60s version=2.0 zone=b");
    let view = tokio::time::timeout(SOON, seen.wait_for(|view| only(view).is_some_and(|one| one.healthy))).await;
    let view = view.expect("in time").expect("open");
    let one = only(&view).expect("one");
    assert_eq!((one.id.as_str(), &*one.address.to_string(), one.weight), ("theirs-1", "10.0.0.2:81", 4.0));
    assert_eq!((one.metadata.get("version"), &*one.locality.zone), (Some(&MetaValue::from("2.0")), "b"));
    assert_eq!(one.metadata.get("tags"), Some(&MetaValue::List(["python".into()].into())));
    ask("deregister theirs-1");
    let gone = |view: &View| view.snapshot.as_ref().is_some_and(|snapshot| snapshot.instances.is_empty());
    tokio::time::timeout(SOON, seen.wait_for(gone)).await.expect("in time").expect("open");
    registry.shutdown(SOON).await;
}

/// Consul takes an id that is there already for an update of it, whatever the service.
#[tokio::test]
async fn no_service_takes_the_id_of_another() {
    let consul = require!(Consul::start());
    let agent = Agent::of(&consul);
    let registry = agent.registry("");
    let mut kept = Vec::new();
    for (service, id, port) in [("a-b", "c", 1), ("a", "b-c", 2), ("a", "b%2Dc", 3)] {
        let one = instance(&format!("10.0.0.1:{port}")).with_id(id);
        let mut registration = registry.register(service, one).expect("valid");
        registration.registered().await.expect("taken");
        kept.push(registration);
    }
    let services = agent.get("/v1/agent/services").await;
    let ids: Vec<&String> = services.as_object().expect("a map").keys().collect();
    assert_eq!(ids, ["a-b%252Dc", "a-b%2Dc", "a-b-c"]);
    see_that(&registry, "a-b", "its only one", |view| only(view).is_some_and(|one| one.id.as_str() == "c")).await;
    for registration in kept {
        registration.deregister().await;
    }
    assert_eq!(agent.get("/v1/agent/services").await, json!({}));
    registry.shutdown(SOON).await;

    // Somebody else's, under an id that would be ours.
    agent.put("/v1/agent/service/register", json!({ "ID": "web-blue", "Name": "shop", "Port": 80 })).await;
    let registry = agent.registry("");
    let mut refused = registry.register("web", instance("10.0.0.1:80").with_id("blue")).expect("valid");
    let error = refused.registered().await.expect_err("it is taken");
    assert!(error.to_string().contains("`shop` under the id `web-blue`"), "{error}");
    refused.deregister().await;
    registry.remove("web", &InstanceId::from("blue")).await.expect("nothing of that service to remove");
    assert_eq!(agent.get("/v1/agent/services").await["web-blue"]["Service"], "shop");

    // Put together by others from the same parts, with a name that has a hyphen.
    let theirs = json!({ "ID": "web-some-pod:80", "Name": "web", "Address": "some-pod", "Port": 80 });
    agent.put("/v1/agent/service/register", theirs).await;
    let view = see_that(&registry, "web", "theirs", |view| only(view).is_some()).await;
    let seen = only(&view).expect("one").clone();
    assert_eq!(seen.id.as_str(), "some-pod:80");
    registry.amend("web", &seen.clone().with_meta("canary", "yes")).await.expect("it is there");
    assert_eq!(agent.get("/v1/agent/service/web-some-pod:80").await["Meta"], json!({ "canary": "yes" }));
    registry.remove("web", &seen.id).await.expect("gone");
    assert_eq!(agent.get("/v1/agent/services").await.as_object().map(serde_json::Map::len), Some(1));
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn tls_with_and_without_a_client_certificate() {
    let scratch = Scratch::new("consul-tls");
    let certificate = require!(Certificate::issue(scratch.path()));
    let consul = require!(Consul::start_with_tls(&certificate));
    let agent = Agent(consul.https());
    let (ca, cert, key) = (certificate.ca.display(), certificate.cert.display(), certificate.key.display());
    let registry = agent.registry(&format!("&tls=true&ca={ca}&cert={cert}&key={key}"));
    let mut seen = registry.subscribe("web");
    let mut registration = registry.register("web", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    // By a blocking query, too.
    tokio::time::timeout(SOON, seen.wait_for(|view| only(view).is_some())).await.expect("in time").expect("open");
    assert!(registry.services().await.expect("a list").contains(&"web".into()));
    registration.deregister().await;
    registry.shutdown(SOON).await;

    for (parameters, why) in [
        // The agent ends the handshake of a client without a certificate.
        (format!("&tls=true&ca={ca}"), ErrorKind::Unreachable),
        // Nobody on this system trusts the authority.
        (format!("&tls=true&cert={cert}&key={key}"), ErrorKind::Unreachable),
        // `Client sent an HTTP request to an HTTPS server.`
        (String::new(), ErrorKind::Invalid),
    ] {
        let registry = agent.registry(&parameters);
        let error = registry.instances("web").await.expect_err("not without");
        assert_eq!(error.kind(), why, "{parameters}: {error}");
        registry.shutdown(SOON).await;
    }
}

/// Consul Enterprise has namespaces and partitions, this one says so; and it knows one datacenter.
#[tokio::test]
async fn dimensions_that_an_agent_does_not_have_are_refused_by_name() {
    let consul = require!(Consul::start());
    let agent = Agent::of(&consul);
    for parameter in ["ns=team", "partition=part"] {
        let registry = agent.registry(&format!("&{parameter}"));
        let mut refused = registry.register("web", instance("10.0.0.1:80")).expect("valid");
        let registering = refused.registered().await.expect_err("refused");
        let reading = registry.instances("web").await.expect_err("refused");
        for error in [registering, reading, registry.services().await.expect_err("refused")] {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("Consul Enterprise feature"), "{error}");
        }
        registry.shutdown(SOON).await;
    }
    let elsewhere = agent.registry("&dc=dc2");
    let error = elsewhere.instances("web").await.expect_err("no such datacenter");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("No path to datacenter"), "{error}");
    elsewhere.shutdown(SOON).await;
}

/// What is answered to a query with some index: another index, and ports of instances.
type Scripted = (&'static str, &'static [u16]);

/// An agent that answers queries by a script, and counts them.
async fn scripted(script: impl Fn(u64) -> Scripted + Clone + Send + Sync + 'static) -> (Agent, Arc<AtomicUsize>) {
    use axum::extract::RawQuery;
    let queries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&queries);
    let answer = move |RawQuery(query): RawQuery| async move {
        counted.fetch_add(1, Ordering::Relaxed);
        let query = query.unwrap_or_default();
        assert!(query.split('&').any(|pair| pair == "near=_agent"), "{query}");
        let index = query.split('&').find_map(|pair| pair.strip_prefix("index=")?.parse().ok()).unwrap_or(0);
        if index > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (index, ports) = script(index);
        let entries: Value = ports
            .iter()
            .map(|port| json!({ "Node": {}, "Service": { "ID": format!("web-{port}"), "Address": "10.0.0.1", "Port": port } }))
            .collect();
        // A server that answers although it has lost its leader.
        let leader = if query.split('&').any(|pair| pair == "stale=") { "false" } else { "true" };
        ([("X-Consul-Index", index), ("X-Consul-KnownLeader", leader)], axum::Json(entries))
    };
    let router = axum::Router::new().route("/v1/health/service/web", axum::routing::get(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (Agent(port), queries)
}

fn ports(view: &View) -> Vec<u16> {
    view.snapshot.iter().flat_map(|snapshot| &snapshot.instances).map(|one| one.address.port()).collect()
}

/// An agent of 1.14.11 streams a service's changes into a copy, and the copy can lack a change that was made as it began, until
/// that instance changes again: one of about two thousand services did where two instances registered as the first query
/// blocked, on a busy machine. What is sorted comes from the server.
#[tokio::test]
async fn sorted_queries_are_not_answered_from_an_agents_copy() {
    let consul = require!(Consul::start());
    Agent::of(&consul).put("/v1/agent/service/register", json!({ "Name": "web", "Port": 80 })).await;
    for (near, backend) in [("", "streaming"), ("&near=_agent", "blocking-query")] {
        let url = format!("http://127.0.0.1:{}/v1/health/service/web?index=1&wait=1s{near}", consul.port());
        let response = reqwest::Client::builder().no_proxy().build().expect("a client").get(url).send().await;
        let response = response.expect("the agent answers");
        let said = response.headers().get("x-consul-query-backend").and_then(|name| name.to_str().ok());
        assert_eq!(said, Some(backend), "{near}");
    }
}

/// A restored snapshot or an upgrade: the index that is waited for will not come for a long time.
#[tokio::test]
async fn an_index_that_went_back_starts_over() {
    let begun = Arc::new(AtomicUsize::new(0));
    let (agent, _) = scripted(move |index| match index {
        0 if begun.fetch_add(1, Ordering::Relaxed) == 0 => ("100", &[1]),
        0 => ("40", &[1, 2]),
        100 => ("40", &[]),
        _ => ("41", &[1, 2, 3]),
    })
    .await;
    let registry = agent.registry("");
    let mut seen = registry.subscribe("web");
    let mut told = Vec::new();
    while told.last().is_none_or(|last: &Vec<u16>| last.len() < 3) {
        let view = tokio::time::timeout(SOON, seen.changed()).await.expect("in time").expect("open");
        told.push(ports(&view));
    }
    assert!(told.iter().all(|ports| !ports.is_empty()), "the answer that went back is no list: {told:?}");
    registry.shutdown(SOON).await;
}

/// An index of 0 or none at all would be a query that does not block.
#[tokio::test]
async fn an_index_that_is_none_does_not_spin() {
    for index in ["0", "none"] {
        let (agent, queries) = scripted(move |_| (index, &[1])).await;
        let registry = agent.registry("");
        let mut seen = registry.subscribe("web");
        seen.changed().await.expect("open");
        let began = Instant::now();
        queries.store(0, Ordering::Relaxed);
        while queries.load(Ordering::Relaxed) < 30 {
            assert!(began.elapsed() < SOON, "it goes on asking");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Ten at once, ten a second.
        assert!(began.elapsed() >= Duration::from_millis(1_500), "thirty in {:?}", began.elapsed());
        assert_eq!(seen.current().state, State::Fresh);
        registry.shutdown(SOON).await;
    }
}

/// Who asks for stale answers gets them from a server without a leader, too, and is told.
#[tokio::test]
async fn stale_answers_are_asked_for_by_name() {
    let consul = require!(Consul::start());
    let agent = Agent::of(&consul);
    agent.put("/v1/agent/service/register", json!({ "Name": "web", "Port": 80 })).await;
    for consistency in ["default", "stale", "consistent"] {
        let registry = agent.registry(&format!("&consistency={consistency}"));
        let view = see_that(&registry, "web", "one", |view| only(view).is_some()).await;
        assert_eq!(view.snapshot.expect("a list").notes, []);
        assert!(registry.services().await.expect("a list").contains(&"web".into()));
        registry.shutdown(SOON).await;
    }
    let (agent, _) = scripted(|_| ("7", &[1])).await;
    for (consistency, notes) in [("stale", vec!["no_leader"]), ("default", vec![])] {
        let registry = agent.registry(&format!("&consistency={consistency}"));
        let (list, _) = registry.instances("web").await.expect("an answer").expect("known");
        assert_eq!(list.notes.iter().map(|note| note.code).collect::<Vec<_>>(), notes);
        registry.shutdown(SOON).await;
    }
}

/// Every other test asks for a short time to live.
#[tokio::test]
async fn the_usual_time_to_live_is_fifteen_seconds_and_kept_alive() {
    let consul = require!(Consul::start());
    let agent = Agent::of(&consul);
    let proxy = Proxy::start(([127, 0, 0, 1], consul.port()).into());
    let registry = Registry::connect(&format!("consul://{}", proxy.address()).parse().expect("valid"));
    let registry = registry.expect("this build has it");
    let mut registration = registry.register("web", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    let status = async || agent.get("/v1/agent/checks").await["service:web-10.0.0.1:80"]["Status"].take();
    // The next beat is five seconds after the first.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let cut = Instant::now();
    proxy.cut();
    while cut.elapsed() < Duration::from_secs(10) {
        assert_eq!(status().await, "passing", "{:?}", cut.elapsed());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    while status().await != "critical" {
        assert!(cut.elapsed() < Duration::from_secs(60), "it does not die");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    proxy.heal();
    see_that(&agent.registry(""), "web", "alive again", |view| only(view).is_some_and(|one| one.healthy)).await;
    registry.shutdown(SOON).await;
}
