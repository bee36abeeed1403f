//! Eureka against Spring Cloud's server and client.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use metaroute_core::instance::InstanceId;
use metaroute_registry::{ErrorKind, Registry, State, View};
use serde_json::{Value, json};
use test_support::eureka::Eureka;
use test_support::python::Python;
use test_support::spring::Spring;
use test_support::{Port, Proxy, require};

use crate::client::{SOON, connect, instance, only, see_that};
use crate::conformance::{self, Subject, Traits};
use crate::spring;

#[test]
fn conformance() {
    let mut eureka = require!(Eureka::start(&[]));
    let server = ([127, 0, 0, 1], eureka.port()).into();
    conformance::run(Subject {
        name: "eureka",
        server,
        // A thousand instances are renewed every two seconds. While hundreds leave at once the server may keep a delta of a
        // moment before the last one left, hash included, until something else changes (seen: `UP_1_` for a minute beside
        // an empty list); only reading everything anew finds that out.
        url: Box::new(|server| format!("eureka://{server}?ttl=6s&poll=200ms&full-every=2s")),
        restart: Box::new(move || {
            eureka.server().stop();
            eureka.server().start_again().expect("it starts again");
        }),
        // The server adds the duration twice.
        gone_within: Duration::from_secs(40),
        seen_within: SOON,
        traits: Traits { unknown_service: true, ..Traits::default() },
    });
}

/// The server's REST interface, as curl would use it.
struct Server(u16);

impl Server {
    async fn call(&self, method: reqwest::Method, path: &str, body: Value) -> (u16, Value) {
        let url = format!("http://127.0.0.1:{}/eureka{path}", self.0);
        let request = client().request(method, url).header("Accept", "application/json");
        let request = if body.is_null() { request } else { request.json(&body) };
        let response = request.send().await.expect("the server answers");
        let status = response.status().as_u16();
        let text = response.text().await.expect("a body");
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    async fn record(&self, app: &str, id: &str) -> Value {
        let (status, mut body) = self.call(reqwest::Method::GET, &format!("/apps/{app}/{id}"), Value::Null).await;
        assert_eq!(status, 200, "{app}/{id}: {body}");
        body["instance"].take()
    }

    fn registry(&self, parameters: &str) -> Registry {
        connect(&format!("eureka://127.0.0.1:{}?ttl=6s&poll=200ms{parameters}", self.0))
    }
}

fn client() -> reqwest::Client {
    // Set already is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().expect("a client")
}

fn theirs(id: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut instance = json!({
        "instanceId": id, "app": "WEB", "hostName": "10.0.0.7", "ipAddr": "10.0.0.7", "status": "UP", "vipAddress": "web",
        "port": { "$": 80, "@enabled": "true" },
        "dataCenterInfo": { "@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn" },
        "leaseInfo": { "renewalIntervalInSecs": 30, "durationInSecs": 600 },
        "metadata": { "zone": "z" }, "lastUpdatedTimestamp": "1", "lastDirtyTimestamp": "1",
    });
    change(&mut instance);
    json!({ "instance": instance })
}

/// One server for all these, since starting it costs more than everything they do.
#[tokio::test]
async fn what_the_server_keeps() {
    let eureka = require!(Eureka::start(&[]));
    let server = Server(eureka.port());
    let quick = async {
        an_instance_is_registered_as_everybody_does(&server).await;
        an_older_registration_of_a_clock_that_went_back_is_not_ignored(&server).await;
        switching_off_is_an_override_and_back_again(&server).await;
        an_operators_override_stays(&server).await;
        a_registration_taken_away_comes_back(&server).await;
        who_was_taken_over_leaves_the_record_there(&server).await;
        others_instances_can_be_amended_and_removed(&server).await;
        a_change_of_metadata_that_the_hash_cannot_see_is_seen(&server).await;
        seata_layout(&server).await;
        a_service_that_went_is_empty_and_one_that_never_was_unknown(&server).await;
        a_dead_server_among_two_is_passed_over(&server).await;
        a_mended_network_is_told_although_nothing_changed(&server).await;
        an_id_made_like_anothers_does_not_replace_it(&server).await;
        their_python_client_and_we_see_each_other(&server).await;
        who_may_not_ask_is_told_so(&server).await;
        a_server_without_deltas_is_read_whole(&server).await;
        a_server_that_is_still_syncing_says_nothing_yet(&server).await;
    };
    tokio::join!(the_usual_lease_is_ninety_seconds(&server), quick);
}

async fn an_instance_is_registered_as_everybody_does(server: &Server) {
    let registry = server.registry("");
    let one = instance("10.0.0.1:8080").with_zone("zone1").with_meta("version", "2.0").with_weight(0.5);
    let mut registration = registry.register("basic", one).expect("valid");
    registration.registered().await.expect("taken");
    let record = server.record("BASIC", "10.0.0.1:basic:8080").await;
    assert_eq!(
        (&record["status"], &record["vipAddress"], &record["port"]["$"]),
        (&json!("UP"), &json!("basic"), &json!(8080))
    );
    assert_eq!(record["leaseInfo"]["durationInSecs"], 6);
    assert_eq!(
        (&record["metadata"]["zone"], &record["metadata"]["metaroute-weight"]),
        (&json!("zone1"), &json!("0.5"))
    );
    registration.deregister().await;
    let (status, _) = server.call(reqwest::Method::GET, "/apps/BASIC/10.0.0.1:basic:8080", Value::Null).await;
    assert_eq!(status, 404);
    registry.shutdown(SOON).await;
}

/// A process that is being replaced at its address may end after the new one began.
async fn who_was_taken_over_leaves_the_record_there(server: &Server) {
    let (old, new) = (server.registry(""), server.registry(""));
    let life = |number: &str| instance("10.0.0.1:80").with_meta("life", number);
    let mut first = old.register("taken", life("1")).expect("valid");
    first.registered().await.expect("taken");
    let mut second = new.register("taken", life("2")).expect("valid");
    second.registered().await.expect("taken");
    first.deregister().await;
    assert_eq!(server.record("TAKEN", "10.0.0.1:taken:80").await["metadata"]["life"], "2");
    second.deregister().await;
    let (status, _) = server.call(reqwest::Method::GET, "/apps/TAKEN/10.0.0.1:taken:80", Value::Null).await;
    assert_eq!(status, 404);
    old.shutdown(SOON).await;
    new.shutdown(SOON).await;
}

/// The server answers 204 to an older registration and keeps what it has.
async fn an_older_registration_of_a_clock_that_went_back_is_not_ignored(server: &Server) {
    let future = "4102444800000";
    let body = theirs("10.0.0.1:clock:80", |instance| {
        instance["app"] = json!("CLOCK");
        instance["lastDirtyTimestamp"] = json!(future);
        instance["metadata"] = json!({ "version": "old" });
    });
    assert_eq!(server.call(reqwest::Method::POST, "/apps/CLOCK", body).await.0, 204);
    let registry = server.registry("");
    let mut registration =
        registry.register("clock", instance("10.0.0.1:80").with_meta("version", "new")).expect("valid");
    registration.registered().await.expect("taken");
    let record = server.record("CLOCK", "10.0.0.1:clock:80").await;
    assert_eq!(record["metadata"]["version"], "new");
    // And its own next one is newer still.
    registration.update(instance("10.0.0.1:80").with_meta("version", "newer")).expect("valid");
    see_that(&registry, "clock", "the update", |view| {
        only(view).is_some_and(|one| one.metadata.get("version").is_some_and(|version| *version.to_text() == *"newer"))
    })
    .await;
    registry.shutdown(SOON).await;
}

async fn switching_off_is_an_override_and_back_again(server: &Server) {
    let registry = server.registry("");
    let mut registration = registry.register("switch", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    let mut off = instance("10.0.0.1:80");
    off.enabled = false;
    registration.update(off.clone()).expect("valid");
    see_that(&registry, "switch", "off", |view| only(view).is_some_and(|one| !one.enabled)).await;
    assert_eq!(server.record("SWITCH", "10.0.0.1:switch:80").await["status"], "OUT_OF_SERVICE");
    registration.update(instance("10.0.0.1:80")).expect("valid");
    see_that(&registry, "switch", "on", |view| only(view).is_some_and(|one| one.enabled && one.healthy)).await;
    registration.update(off).expect("valid");
    see_that(&registry, "switch", "off again", |view| only(view).is_some_and(|one| !one.enabled)).await;
    // The next life of it takes back what the last one set.
    let next = server.registry("");
    let mut registered = next.register("switch", instance("10.0.0.1:80")).expect("valid");
    registered.registered().await.expect("taken");
    assert_eq!(server.record("SWITCH", "10.0.0.1:switch:80").await["status"], "UP");
    registered.deregister().await;
    next.shutdown(SOON).await;
    registry.shutdown(SOON).await;
}

async fn an_operators_override_stays(server: &Server) {
    let registry = server.registry("");
    let mut registration = registry.register("operator", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    let path = "/apps/OPERATOR/10.0.0.1:operator:80/status?value=OUT_OF_SERVICE";
    assert_eq!(server.call(reqwest::Method::PUT, path, Value::Null).await.0, 200);
    see_that(&registry, "operator", "off", |view| only(view).is_some_and(|one| !one.enabled)).await;
    registration.update(instance("10.0.0.1:80").with_meta("version", "2")).expect("valid");
    see_that(&registry, "operator", "the update", |view| {
        only(view).is_some_and(|one| !one.enabled && one.metadata.contains_key("version"))
    })
    .await;
    registry.shutdown(SOON).await;
}

async fn a_registration_taken_away_comes_back(server: &Server) {
    let registry = server.registry("");
    let mut registration = registry.register("lost", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    let path = "/apps/LOST/10.0.0.1:lost:80";
    assert_eq!(server.call(reqwest::Method::DELETE, path, Value::Null).await.0, 200);
    // A renewal is answered with 404. It is the server that has to have it again, not what it keeps for readers.
    let taken_away = Instant::now();
    while server.call(reqwest::Method::GET, path, Value::Null).await.0 != 200 {
        assert!(taken_away.elapsed() < SOON, "it does not come back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    see_that(&registry, "lost", "it is back", |view| only(view).is_some()).await;
    registry.shutdown(SOON).await;
}

async fn others_instances_can_be_amended_and_removed(server: &Server) {
    let registry = server.registry("");
    assert_eq!(server.call(reqwest::Method::POST, "/apps/WEB", theirs("i-1", |_| {})).await.0, 204);
    let view = see_that(&registry, "web", "one", |view| only(view).is_some()).await;
    let seen = only(&view).expect("one").clone();
    assert_eq!((seen.id.as_str(), &*seen.locality.zone), ("i-1", "z"));
    let mut changed = seen.clone().with_weight(0.0).with_meta("canary", "yes");
    changed.enabled = false;
    registry.amend("web", &changed).await.expect("it is there");
    see_that(&registry, "web", "changed", |view| only(view).is_some_and(|one| one.weight == 0.0 && !one.enabled)).await;
    let record = server.record("WEB", "i-1").await;
    assert_eq!(record["leaseInfo"]["durationInSecs"], 600);
    assert_eq!(
        record["metadata"],
        json!({ "zone": "z", "canary": "yes", "metaroute-weight": "0", "metaroute-enabled": "false" })
    );
    // Its owner's beat, with the timestamp it knows, is still good.
    let beat = "/apps/WEB/i-1?status=UP&lastDirtyTimestamp=1";
    assert_eq!(server.call(reqwest::Method::PUT, beat, Value::Null).await.0, 200);
    let error = registry.amend("web", &changed.with_id("i-9")).await.expect_err("not there");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    registry.remove("web", &InstanceId::from("i-1")).await.expect("gone");
    assert_eq!(server.call(reqwest::Method::GET, "/apps/WEB/i-1", Value::Null).await.0, 404);
    registry.remove("web", &InstanceId::from("i-1")).await.expect("still gone");
    registry.shutdown(SOON).await;
}

async fn a_change_of_metadata_that_the_hash_cannot_see_is_seen(server: &Server) {
    let registry = server.registry("");
    let mut registration = registry.register("meta", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    see_that(&registry, "meta", "one", |view| only(view).is_some()).await;
    let path = "/apps/META/10.0.0.1:meta:80/metadata?colour=blue";
    assert_eq!(server.call(reqwest::Method::PUT, path, Value::Null).await.0, 200);
    see_that(&registry, "meta", "the colour", |view| only(view).is_some_and(|one| one.metadata.contains_key("colour")))
        .await;
    registry.shutdown(SOON).await;
}

async fn seata_layout(server: &Server) {
    let registry = server.registry("&layout=seata");
    let mut registration = registry
        .register("default", instance("10.0.0.1:8091").with_weight(3.0).with_meta("vGroup", "{}"))
        .expect("valid");
    registration.registered().await.expect("taken");
    let record = server.record("DEFAULT", "10.0.0.1:default:8091").await;
    assert_eq!((&record["metadata"]["weight"], &record["metadata"]["vGroup"]), (&json!("3"), &json!("{}")));
    // As Seata's own registry writes one.
    let body = theirs("10.0.0.2:default:8091", |instance| {
        instance["app"] = json!("default");
        instance["hostName"] = json!("some.pod");
        instance["ipAddr"] = json!("10.0.0.2");
        instance["port"]["$"] = json!(8091);
        instance["metadata"] = json!({ "weight": "2" });
    });
    assert_eq!(server.call(reqwest::Method::POST, "/apps/default", body).await.0, 204);
    let view = see_that(&registry, "default", "two", |view| {
        view.snapshot.as_ref().is_some_and(|snapshot| snapshot.instances.len() == 2)
    })
    .await;
    let mut found: Vec<_> = view.snapshot.iter().flat_map(|snapshot| &snapshot.instances).collect();
    found.sort_by_key(|one| one.id.clone());
    assert_eq!((found[0].id.as_str(), found[0].weight), ("10.0.0.1:8091", 3.0));
    assert_eq!(
        (&*found[1].address.to_string(), found[1].weight, &*found[1].cluster),
        ("10.0.0.2:8091", 2.0, "default")
    );
    registry.shutdown(SOON).await;
}

async fn a_service_that_went_is_empty_and_one_that_never_was_unknown(server: &Server) {
    let registry = server.registry("");
    let mut seen = registry.subscribe("went");
    let mut registration = registry.register("went", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    tokio::time::timeout(SOON, seen.wait_for(|view| only(view).is_some())).await.expect("in time").expect("open");
    registration.deregister().await;
    let empty = |view: &View| view.snapshot.as_ref().is_some_and(|snapshot| snapshot.instances.is_empty());
    let view = tokio::time::timeout(SOON, seen.wait_for(empty)).await.expect("in time").expect("open");
    assert_eq!(view.state, State::Fresh);
    assert_eq!(registry.instances("never").await.expect("an answer"), None);
    registry.shutdown(SOON).await;
}

async fn a_dead_server_among_two_is_passed_over(server: &Server) {
    let dead = Port::reserve();
    let registry = connect(&format!("eureka://127.0.0.1:{dead},127.0.0.1:{}?ttl=6s&poll=200ms", server.0));
    let mut registration = registry.register("two", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    see_that(&registry, "two", "one", |view| only(view).is_some()).await;
    assert!(registry.services().await.expect("a list").contains(&"two".into()));
    registry.shutdown(SOON).await;
}

async fn a_mended_network_is_told_although_nothing_changed(server: &Server) {
    let proxy = Proxy::start(([127, 0, 0, 1], server.0).into());
    let body = theirs("i-1", |instance| instance["app"] = json!("MENDED"));
    assert_eq!(server.call(reqwest::Method::POST, "/apps/MENDED", body).await.0, 204);
    let registry = connect(&format!("eureka://{}?poll=200ms", proxy.address()));
    let (mut seen, mut unknown) = (registry.subscribe("mended"), registry.subscribe("nobody"));
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

/// `HOST:APP:PORT` is what an instance without an id of its own gets.
async fn an_id_made_like_anothers_does_not_replace_it(server: &Server) {
    let registry = server.registry("");
    let mut first = registry.register("ids", instance("10.0.0.1:80")).expect("valid");
    first.registered().await.expect("taken");
    let alike = instance("10.0.0.2:80").with_id("10.0.0.1:ids:80");
    let mut refused = registry.register("ids", alike).expect("valid");
    let error = refused.registered().await.expect_err("it is taken");
    assert!(error.to_string().contains("instance `10.0.0.1:80` under the instance id `10.0.0.1:ids:80`"), "{error}");
    let view = see_that(&registry, "ids", "the first", |view| only(view).is_some()).await;
    assert_eq!(only(&view).expect("one").address.to_string(), "10.0.0.1:80");
    registry.shutdown(SOON).await;
}

/// Every other test asks for a short lease.
async fn the_usual_lease_is_ninety_seconds(server: &Server) {
    let registry = connect(&format!("eureka://127.0.0.1:{}", server.0));
    let mut registration = registry.register("usual", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    let lease = &server.record("USUAL", "10.0.0.1:usual:80").await["leaseInfo"];
    assert_eq!((&lease["durationInSecs"], &lease["renewalIntervalInSecs"]), (&json!(90), &json!(30)));
    // The first renewal is after half a minute; the server, which sweeps all the time here, waits for it.
    tokio::time::sleep(Duration::from_secs(30)).await;
    let began = Instant::now();
    let time = |lease: &Value, key: &str| lease[key].as_u64().expect("a time");
    let renewed = loop {
        let lease = server.record("USUAL", "10.0.0.1:usual:80").await["leaseInfo"].take();
        let after = time(&lease, "lastRenewalTimestamp").saturating_sub(time(&lease, "registrationTimestamp"));
        if after > 0 {
            break Duration::from_millis(after);
        }
        assert!(began.elapsed() < SOON, "it is not renewed: {lease}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(renewed >= Duration::from_secs(25), "after {renewed:?}");
    registration.deregister().await;
    registry.shutdown(SOON).await;
}

/// py-eureka-client, which reads XML, finds what we register, and we what it registers.
async fn their_python_client_and_we_see_each_other(server: &Server) {
    let url = format!("http://127.0.0.1:{}/eureka/", server.0);
    let mut python = match Python::start("eureka-python", &[&url]) {
        Ok(python) => python,
        Err(missing) => return missing.report(module_path!()),
    };
    let mut ask = move |line: &str| -> Value { serde_json::from_str(&python.ask(line)).expect("JSON") };
    let registry = server.registry("");
    let ours = instance("10.0.0.1:80").with_zone("a").with_meta("place", "Zürich").with_weight(0.0);
    let mut registration = registry.register("ours", ours).expect("valid");
    registration.registered().await.expect("taken");
    see_that(&registry, "ours", "it", |view| only(view).is_some()).await;
    let mut listed = ask("list ours");
    let metadata = listed[0]["metadata"].take();
    let place = [&metadata["place"], &metadata["zone"], &metadata["metaroute-weight"]];
    assert_eq!(place, [&json!("Zürich"), &json!("a"), &json!("0")]);
    let one = json!({ "id": "10.0.0.1:ours:80", "address": "10.0.0.1:80", "status": "UP", "metadata": null });
    assert_eq!(listed, json!([one]));

    ask("register theirs 10.0.0.2 81 version=2.0 zone=b");
    let view = see_that(&registry, "theirs", "one", |view| only(view).is_some_and(|one| one.healthy)).await;
    let one = only(&view).expect("one");
    assert_eq!((&*one.address.to_string(), &*one.locality.zone), ("10.0.0.2:81", "b"));
    assert_eq!(one.metadata.get("version").map(|version| version.to_text()), Some("2.0".into()));
    let mut seen = registry.subscribe("theirs");
    ask("deregister theirs");
    tokio::time::timeout(SOON, seen.wait_for(|view| only(view).is_none())).await.expect("in time").expect("open");
    registry.shutdown(SOON).await;
}

/// Something before the server, as operators put there: it passes on what it does not answer itself.
struct Gate {
    port: u16,
    /// The paths that were asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Gate {
    /// `refuses` looks at path and `Authorization`.
    async fn before(
        server: &Server,
        refuses: impl Fn(&str, Option<&str>) -> Option<u16> + Clone + Send + Sync + 'static,
    ) -> Self {
        use axum::http::{HeaderMap, Method, StatusCode, Uri};
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, behind, client) = (Arc::clone(&asked), server.0, client());
        let answer = move |method: Method, uri: Uri, headers: HeaderMap, body: axum::body::Bytes| async move {
            log.lock().expect("free").push(uri.path().to_owned());
            let login = headers.get("authorization").and_then(|login| login.to_str().ok());
            if let Some(status) = refuses(uri.path(), login) {
                return (StatusCode::from_u16(status).expect("a status"), HeaderMap::new(), axum::body::Bytes::new());
            }
            let mut request = client.request(method, format!("http://127.0.0.1:{behind}{uri}")).body(body);
            for name in ["accept", "content-type"] {
                if let Some(value) = headers.get(name) {
                    request = request.header(name, value);
                }
            }
            let response = request.send().await.expect("the server answers");
            let (status, mut headers) = (response.status(), HeaderMap::new());
            for name in ["date", "content-type"] {
                if let Some(value) = response.headers().get(name) {
                    headers.insert(name, value.clone());
                }
            }
            (status, headers, response.bytes().await.expect("a body"))
        };
        let router = axum::Router::new().fallback(answer);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, asked }
    }

    fn asked(&self, path: &str) -> usize {
        self.asked.lock().expect("free").iter().filter(|asked| *asked == path).count()
    }
}

/// Basic authentication in the address; a wrong password is a refusal, as 401 and as the 403 of some gates.
async fn who_may_not_ask_is_told_so(server: &Server) {
    for status in [401, 403] {
        // `me:hunter2`
        let gate =
            Gate::before(server, move |_, login| (login != Some("Basic bWU6aHVudGVyMg==")).then_some(status)).await;
        let at = |login: &str| connect(&format!("eureka://{login}127.0.0.1:{}?ttl=6s&poll=200ms", gate.port));
        let right = at("me:hunter2@");
        let mut registration = right.register("gated", instance("10.0.0.1:80")).expect("valid");
        registration.registered().await.expect("taken");
        see_that(&right, "gated", "one", |view| only(view).is_some()).await;
        registration.deregister().await;
        right.shutdown(SOON).await;
        for login in ["", "me:hunter3@"] {
            let wrong = at(login);
            let mut refused = wrong.register("gated", instance("10.0.0.1:80")).expect("valid");
            let registering = refused.registered().await.expect_err("refused");
            let reading = wrong.instances("gated").await.expect_err("refused");
            for error in [registering, reading, wrong.services().await.expect_err("refused")] {
                assert_eq!(error.kind(), ErrorKind::Denied, "{status} {login}: {error}");
                assert!(error.to_string().contains(&status.to_string()), "{error}");
                assert!(!format!("{error} {error:?}").contains("hunter"), "{error}");
            }
            let view = see_that(&wrong, "gated", "a refusal", |view| view.state == State::Stale).await;
            assert_eq!(view.error.map(|error| error.kind()), Some(ErrorKind::Denied));
            wrong.shutdown(SOON).await;
        }
    }
}

async fn a_server_without_deltas_is_read_whole(server: &Server) {
    for status in [403, 404] {
        let gate = Gate::before(server, move |path, _| (path == "/eureka/apps/delta").then_some(status)).await;
        let registry = connect(&format!("eureka://127.0.0.1:{}?ttl=6s&poll=200ms", gate.port));
        let mut seen = registry.subscribe("whole");
        for version in ["1", "2", "3"] {
            let one = instance("10.0.0.1:80").with_meta("version", version);
            let mut registration = registry.register("whole", one).expect("valid");
            registration.registered().await.expect("taken");
            let there = |view: &View| {
                only(view).is_some_and(|one| one.metadata.get("version").is_some_and(|at| *at.to_text() == *version))
            };
            tokio::time::timeout(SOON, seen.wait_for(there)).await.expect("in time").expect("open");
        }
        let began = Instant::now();
        while gate.asked("/eureka/apps") <= 8 {
            assert!(began.elapsed() < SOON, "it goes on reading");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(gate.asked("/eureka/apps/delta"), 1, "it said once that it has none");
        registry.shutdown(SOON).await;
    }
}

async fn a_server_that_is_still_syncing_says_nothing_yet(server: &Server) {
    let gate = Gate::before(server, |path, _| (path == "/eureka/apps").then_some(403)).await;
    let registry = connect(&format!("eureka://127.0.0.1:{}?poll=200ms", gate.port));
    let error = registry.instances("any").await.expect_err("nothing yet");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("syncing"), "{error}");
    registry.shutdown(SOON).await;
}

/// What was registered at one server is at the other one, stays when the first one goes, and is renewed and changed there.
#[tokio::test]
async fn of_two_servers_that_replicate_each_other_one_may_go() {
    let peers = tokio::task::spawn_blocking(Eureka::start_peers).await.expect("it ran");
    let [mut first, second] = require!(peers);
    let both = format!("127.0.0.1:{},127.0.0.1:{}", first.port(), second.port());
    let registry = connect(&format!("eureka://{both}?ttl=3s&poll=200ms"));
    let other = Server(second.port()).registry("");
    let mut seen = registry.subscribe("twice");
    let mut registration = registry.register("twice", instance("10.0.0.1:80")).expect("valid");
    registration.registered().await.expect("taken");
    tokio::time::timeout(SOON, seen.wait_for(|view| only(view).is_some())).await.expect("in time").expect("open");
    see_that(&other, "twice", "the copy", |view| only(view).is_some()).await;

    tokio::task::spawn_blocking(move || first.server().stop()).await.expect("it stops");
    // Longer than the copy lives without renewals.
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let list = seen.current().snapshot.expect("a list");
        assert_eq!(list.instances.len(), 1, "{list:?}");
    }
    registration.update(instance("10.0.0.1:80").with_meta("version", "2")).expect("valid");
    let changed =
        |view: &View| view.state == State::Fresh && only(view).is_some_and(|one| one.metadata.contains_key("version"));
    tokio::time::timeout(SOON, seen.wait_for(changed)).await.expect("in time").expect("open");
    registration.deregister().await;
    see_that(&other, "twice", "none", |view| only(view).is_none()).await;
    registry.shutdown(SOON).await;
    other.shutdown(SOON).await;
}

/// With self-preservation on nothing is swept in the first minute: a dead instance stays listed, and the snapshot says so.
#[tokio::test]
async fn a_server_that_preserves_itself_lists_the_dead_and_the_notes_say_so() {
    let eureka = require!(Eureka::start(&["--eureka.server.enable-self-preservation=true"]));
    let server = Server(eureka.port());
    let body = theirs("i-1", |instance| instance["leaseInfo"]["durationInSecs"] = json!(1));
    assert_eq!(server.call(reqwest::Method::POST, "/apps/WEB", body).await.0, 204);
    let registry = server.registry("&full-every=500ms");
    let view = see_that(&registry, "web", "an overdue lease", |view| {
        view.snapshot.as_ref().is_some_and(|snapshot| !snapshot.notes.is_empty())
    })
    .await;
    assert!(only(&view).is_some_and(|one| one.healthy), "it is for others to doubt it: {view:?}");
    let note = &view.snapshot.as_ref().expect("a list").notes[0];
    assert_eq!(note.code, "lease_overdue");
    assert!(note.message.contains("`i-1`"), "{note}");
    registry.shutdown(SOON).await;
}

/// Spring's own client reads what we register, and its load balancer obeys our zone; we read what Spring registers.
#[tokio::test]
async fn spring_and_we_see_each_other() {
    let eureka = require!(Eureka::start(&[]));
    let port = eureka.port();
    let registry = Server(port).registry("");
    let spring = tokio::task::spawn_blocking(move || {
        let own = ["--eureka.instance.metadata-map.version=2.0", "--eureka.instance.metadata-map.zone=a"];
        Spring::with_eureka(port, "spring-app", &[own, spring::IN_ZONE_A].concat())
    });
    let spring = require!(spring.await.expect("it ran"));

    let view =
        see_that(&registry, "spring-app", "Spring's own instance", |view| only(view).is_some_and(|one| one.healthy))
            .await;
    let seen = only(&view).expect("one");
    assert_eq!(seen.address.to_string(), format!("127.0.0.1:{}", spring.port()));
    assert_eq!(seen.metadata.get("version").map(|version| version.to_text()), Some("2.0".into()));
    assert_eq!(&*seen.locality.zone, "a");

    let near = instance("10.0.0.1:80").with_meta("version", "1").with_meta("odd key", "Zürich");
    let near = spring::reads_ours_and_obeys_the_zone(&registry, spring, near).await;
    assert_eq!(near["metadata"]["version"], "1");
    assert_eq!(near["metadata"]["odd key"], "Zürich");
    assert_eq!(near["metadata"]["zone"], "a");
    registry.shutdown(SOON).await;
}
