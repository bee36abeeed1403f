//! Kubernetes against a strict double of the API server ([`fake`]), changed by the tests and by the real `kubectl`.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use axum::http::Version;
use metaroute_core::instance::{Instance, InstanceId, MetaValue};
use metaroute_registry::{ErrorKind, Registry, State, View};
use serde_json::{Value, json};
use test_support::certificate::Certificate;
use test_support::dialogue::Dialogue;
use test_support::{Proxy, Scratch, processor_time, program, require};

mod fake;

use crate::client::{SOON, addresses, connect, count, see_that};
use fake::{Fake, Way};

/// The usual server: TLS and HTTP/2.
fn start(scratch: &Scratch) -> Result<Fake, test_support::Missing> {
    Ok(Fake::start(Way::Http2(Certificate::issue(scratch.path())?)))
}

/// By the kubeconfig of a folder.
fn by_kubeconfig(fake: &Fake, folder: &Path, parameters: &str) -> Registry {
    let file = fake.kubeconfig(folder, "secret");
    connect(&format!("k8s://?kubeconfig={}&{parameters}", file.display()))
}

/// A slice of IPv4 addresses with one port.
fn slice(name: &str, service: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> =
        addresses.iter().map(|address| json!({ "addresses": [address], "conditions": { "ready": true } })).collect();
    json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/service-name": service } },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        "endpoints": endpoints,
    })
}

#[tokio::test]
async fn slices_become_instances_and_changes_are_seen() {
    let scratch = Scratch::new("k8s");
    let fake = require!(start(&scratch));
    let registry = by_kubeconfig(&fake, scratch.path(), "");
    let _followed = registry.subscribe("web");
    see_that(&registry, "web", "no slice, no service", |view| view.state == State::UnknownService).await;
    let mut first = slice("web-a", "web", &["10.0.0.1", "10.0.0.2"]);
    first["metadata"]["labels"]["team"] = "blue".into();
    first["endpoints"][0] = json!({
        "addresses": ["10.0.0.1", "10.0.0.99"],
        "zone": "z1",
        "nodeName": "node-1",
        "targetRef": { "kind": "Pod", "name": "web-1", "uid": "u-1" },
        "hints": { "forZones": [{ "name": "z1" }, { "name": "z2" }] },
    });
    fake.put("payments", first.clone());
    let view = see_that(&registry, "web", "both", |view| count(view) == Some(2)).await;
    let one = &view.snapshot.as_ref().expect("a list").instances[0];
    assert_eq!((one.id.as_str(), one.address.to_string().as_str()), ("10.0.0.1:8080", "10.0.0.1:8080"));
    assert_eq!((&*one.locality.zone, one.incarnation.as_str(), one.healthy, one.weight), ("z1", "u-1", true, 1.0));
    for (key, value) in [("team", "blue"), ("zone", "z1"), ("node", "node-1"), ("pod", "web-1")] {
        assert_eq!(one.metadata.get(key), Some(&MetaValue::from(value)), "{key}");
    }
    assert_eq!(one.metadata.get("for-zones"), Some(&MetaValue::List(["z1".into(), "z2".into()].into())));
    assert!(!one.metadata.contains_key("kubernetes.io/service-name"), "{:?}", one.metadata);

    // The union of all slices; one endpoint stands in two of them.
    fake.put("payments", slice("web-b", "web", &["10.0.0.2", "10.0.0.3"]));
    let mut six = slice("web-c", "web", &["fd00::1"]);
    six["addressType"] = "IPv6".into();
    fake.put("payments", six);
    let view = see_that(&registry, "web", "all", |view| count(view) == Some(4)).await;
    assert!(addresses(&view).contains(&"[fd00::1]:8080".to_owned()), "{:?}", addresses(&view));
    // Others are none of ours.
    fake.put("payments", slice("db-a", "db", &["10.9.0.1"]));
    fake.put("other", slice("web-a", "web", &["10.9.0.2"]));

    // Draining endpoints get nothing new, unready ones are unhealthy.
    first["endpoints"][0]["conditions"] = json!({ "ready": false, "serving": true, "terminating": true });
    first["endpoints"][1]["addresses"] = json!(["10.0.0.4"]);
    first["endpoints"][1]["conditions"] = json!({ "ready": false });
    fake.put("payments", first.clone());
    let view = see_that(&registry, "web", "the new conditions", |view| count(view) == Some(5)).await;
    let state = |host: &str| {
        let found =
            view.snapshot.iter().flat_map(|snapshot| &snapshot.instances).find(|one| one.address.host() == host);
        found.map(|one| (one.healthy, one.weight))
    };
    assert_eq!(state("10.0.0.1"), Some((true, 0.0)));
    assert_eq!(state("10.0.0.4"), Some((false, 1.0)));
    assert_eq!(state("10.0.0.3"), Some((true, 1.0)));

    // A slice goes, also by losing its label.
    fake.delete("payments", "web-b");
    fake.delete("payments", "web-c");
    see_that(&registry, "web", "two left", |view| count(view) == Some(2)).await;
    first["metadata"]["labels"] = json!({ "kubernetes.io/service-name": "elsewhere" });
    fake.put("payments", first);
    // For who watches that is an empty list, for a newcomer an unknown service.
    see_that(&registry, "web", "an empty list", |view| count(view) == Some(0)).await;
    let newcomer = by_kubeconfig(&fake, scratch.path(), "");
    assert_eq!(newcomer.instances("web").await.expect("an answer"), None);
    fake.put("payments", slice("web-z", "web", &[]));
    let (snapshot, _) = newcomer.instances("web").await.expect("an answer").expect("a slice without endpoints");
    assert_eq!((snapshot.instances.len(), snapshot.rejected), (0, 0));
    assert_eq!(newcomer.services().await.expect("a list"), ["db", "elsewhere", "web"].map(Box::<str>::from));

    // All of that with one list, and watches as they should be.
    let (watches, requests) = (fake.watches(), fake.requests());
    assert!(watches.len() > 1);
    for watch in &watches {
        let seconds: u64 = watch.query["timeoutSeconds"].parse().expect("a number");
        assert!(seconds <= 200 && watch.query["allowWatchBookmarks"] == "true", "{watch:?}");
        assert_eq!(watch.query["labelSelector"], "kubernetes.io/service-name=web");
        assert!(!watch.query["resourceVersion"].is_empty());
    }
    assert!(requests.iter().all(|seen| seen.version == Version::HTTP_2), "{requests:?}");
    assert_eq!(fake.lists(), 1 + 3, "one of the subscription, three of the newcomer");
    for registry in [registry, newcomer] {
        registry.shutdown(SOON).await;
    }
}

/// A service whose endpoints all shut down still has a last resort.
#[tokio::test]
async fn who_drains_is_the_last_resort() {
    let fake = Fake::start(Way::Plain);
    let registry = connect(&format!("k8s://{}/payments?tls=false", fake.address()));
    let _followed = registry.subscribe("web");
    let mut web = slice("web-a", "web", &["10.0.0.1", "10.0.0.2"]);
    web["endpoints"][0]["conditions"] = json!({ "ready": false, "serving": true, "terminating": true });
    fake.put("payments", web.clone());
    let view = see_that(&registry, "web", "one ready, one draining", |view| count(view) == Some(2)).await;
    let weights = |view: &View| -> Vec<f64> {
        view.snapshot.iter().flat_map(|snapshot| &snapshot.instances).map(|one| one.weight).collect()
    };
    assert_eq!(weights(&view), [0.0, 1.0]);
    web["endpoints"].as_array_mut().expect("a list").truncate(1);
    fake.put("payments", web);
    let view = see_that(&registry, "web", "only one that drains", |view| count(view) == Some(1)).await;
    assert_eq!(weights(&view), [1.0]);
    let notes = &view.snapshot.as_ref().expect("a list").notes;
    assert!(notes.iter().any(|note| note.code == "draining_only"), "{notes:?}");
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn services_are_listed_over_several_pages() {
    let fake = Fake::start(Way::Plain);
    let registry = connect(&format!("k8s://{}/payments?tls=false", fake.address()));
    assert_eq!(registry.services().await.expect("a list"), Vec::<Box<str>>::new());
    for n in 0..1201 {
        fake.put("payments", slice(&format!("s-{n:04}"), &format!("svc-{:03}", n % 400), &["10.0.0.1"]));
    }
    let mut alone = slice("no-service", "x", &["10.0.0.1"]);
    alone["metadata"]["labels"] = json!({});
    fake.put("payments", alone);
    let before = fake.lists();
    let names = registry.services().await.expect("a list");
    assert_eq!((names.len(), &*names[0], &*names[399]), (400, "svc-000", "svc-399"));
    assert_eq!(fake.lists() - before, 3, "pages of 500");
    let requests = fake.requests();
    assert!(requests.iter().all(|seen| seen.accept.contains("PartialObjectMetadataList")), "only what is needed");
    registry.shutdown(SOON).await;
}

/// 410 as an event, and as a status.
#[tokio::test]
async fn a_history_that_is_gone_leads_to_a_new_list() {
    for by_status in [false, true] {
        let fake = Fake::start(Way::Plain);
        fake.behave(|behaviour| behaviour.gone_by_status = by_status);
        let registry = connect(&format!("k8s://{}/payments?tls=false", fake.address()));
        fake.put("payments", slice("web-a", "web", &["10.0.0.1"]));
        let mut seen = registry.subscribe("web");
        seen.wait_for(|view| count(view) == Some(1)).await.expect("open");
        // The place from which it would go on is gone.
        fake.watched(1).await;
        fake.time_passes();
        fake.compact();
        let lists = fake.lists();
        fake.end_watches();
        fake.put("payments", slice("web-a", "web", &["10.0.0.1", "10.0.0.2"]));
        fake.compact();
        let changed = tokio::time::timeout(SOON, seen.wait_for(|view| count(view) == Some(2) || count(view).is_none()));
        let view = changed.await.expect("in time").expect("open");
        assert_eq!(count(&view), Some(2), "and nobody saw a failure: {view:?}");
        assert!(fake.lists() > lists, "{by_status}");
        // And on it goes.
        fake.put("payments", slice("web-b", "web", &["10.0.0.3"]));
        see_that(&registry, "web", "a later change", |view| count(view) == Some(3)).await;
        registry.shutdown(SOON).await;
    }
}

#[tokio::test]
async fn bookmarks_carry_a_quiet_watch_over_a_compaction() {
    let fake = Fake::start(Way::Plain);
    fake.behave(|behaviour| behaviour.bookmark_every = Some(Duration::from_millis(200)));
    let registry = connect(&format!("k8s://{}/payments?tls=false", fake.address()));
    let _followed = registry.subscribe("web");
    fake.put("payments", slice("web-a", "web", &["10.0.0.1"]));
    see_that(&registry, "web", "one", |view| count(view) == Some(1)).await;
    fake.watched(1).await;
    for _ in 0..5 {
        fake.time_passes();
    }
    // It comes before the end of the watch.
    fake.bookmarked().await;
    fake.compact();
    let before = fake.watches().len();
    fake.end_watches();
    fake.asked_to_watch(before + 1).await;
    assert_eq!(fake.lists(), 1, "from where the bookmark said");
    fake.put("payments", slice("web-b", "web", &["10.0.0.2"]));
    see_that(&registry, "web", "two", |view| count(view) == Some(2)).await;
    assert_eq!(fake.lists(), 1);
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn a_server_that_ends_every_watch_is_not_asked_without_end() {
    let fake = Fake::start(Way::Plain);
    fake.behave(|behaviour| behaviour.nervous = true);
    let registry = connect(&format!("k8s://{}/payments?tls=false", fake.address()));
    fake.put("payments", slice("web-a", "web", &["10.0.0.1"]));
    let mut seen = registry.subscribe("web");
    seen.wait_for(|view| count(view) == Some(1)).await.expect("open");
    let watches = fake.asked_to_watch(5).await;
    let took = watches[4].at - watches[0].at;
    assert!(took >= Duration::from_secs(3), "four more in {took:?}");
    assert_eq!(count(&seen.current()), Some(1), "and that is no failure");
    fake.put("payments", slice("web-b", "web", &["10.0.0.2"]));
    see_that(&registry, "web", "two", |view| count(view) == Some(2)).await;
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn a_token_that_is_renewed_is_used_at_once() {
    let scratch = Scratch::new("k8s-token");
    let fake = require!(start(&scratch));
    let Ok(ca) = Certificate::issue(scratch.path()).map(|other| other.ca) else { return };
    // The server has its certificate already; files written anew are another authority's.
    let refused = connect(&format!("k8s://{}/payments?ca={}", fake.address(), ca.display()));
    let error = refused.instances("web").await.expect_err("an unknown authority");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    refused.shutdown(SOON).await;
    drop(fake);

    let certificate = require!(Certificate::issue(scratch.path()));
    let fake = Fake::start(Way::Http2(certificate.clone()));
    let token = scratch.path().join("token");
    std::fs::write(&token, "first\n").expect("writable");
    fake.behave(|behaviour| behaviour.tokens = ["first".to_owned()].into());
    fake.put("payments", slice("web-a", "web", &["10.0.0.1"]));
    let url =
        format!("k8s://{}/payments?ca={}&token=file:{}", fake.address(), certificate.ca.display(), token.display());
    let registry = connect(&url);
    let mut seen = registry.subscribe("web");
    seen.wait_for(|view| count(view) == Some(1)).await.expect("open");
    // As a projected token is: the old one is no longer good, the file has the new one.
    fake.behave(|behaviour| behaviour.tokens = ["second".to_owned()].into());
    std::fs::write(&token, "second").expect("writable");
    fake.end_watches();
    fake.put("payments", slice("web-b", "web", &["10.0.0.2"]));
    let changed = tokio::time::timeout(SOON, seen.wait_for(|view| count(view) != Some(1)));
    let view = changed.await.expect("in time").expect("open");
    assert_eq!(count(&view), Some(2), "nobody noticed: {view:?}");

    // Nothing is good any more: a refusal that says so and shows no token, and the last good list.
    fake.behave(|behaviour| behaviour.tokens = ["third".to_owned()].into());
    fake.end_watches();
    let view = see_that(&registry, "web", "refused", |view| view.state == State::Stale).await;
    let error = view.error.clone().expect("a reason");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("answered 401") && !error.to_string().contains("second"), "{error}");
    assert_eq!(addresses(&view).len(), 2);
    std::fs::write(&token, "third").expect("writable");
    see_that(&registry, "web", "let in again", |view| count(view) == Some(2)).await;
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn forbidden_is_told_apart_from_busy() {
    let scratch = Scratch::new("k8s-refused");
    let fake = require!(start(&scratch));
    fake.put("payments", slice("web-a", "web", &["10.0.0.1"]));
    let registry = by_kubeconfig(&fake, scratch.path(), "");
    let _followed = registry.subscribe("web");
    see_that(&registry, "web", "one", |view| count(view) == Some(1)).await;
    fake.behave(|behaviour| behaviour.forbidden = true);
    fake.end_watches();
    let view = see_that(&registry, "web", "forbidden", |view| view.state == State::Stale).await;
    let error = view.error.clone().expect("a reason");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(
        error.to_string().contains("cannot watch resource") || error.to_string().contains("cannot list"),
        "{error}"
    );
    assert_eq!(addresses(&view).len(), 1);
    let error = registry.services().await.expect_err("forbidden");
    assert_eq!(error.kind(), ErrorKind::Denied);
    fake.behave(|behaviour| behaviour.forbidden = false);
    see_that(&registry, "web", "allowed", |view| count(view) == Some(1)).await;
    // Each refusal below is for one request and none of this one's.
    fake.watched(1).await;

    // A server with too much to do says when to come back.
    fake.behave(|behaviour| behaviour.throttle = Some((1, 3)));
    let error = registry.services().await.expect_err("busy");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("answered 429"), "{error}");
    let other = by_kubeconfig(&fake, scratch.path(), "");
    let _followed_too = other.subscribe("web");
    fake.behave(|behaviour| behaviour.throttle = Some((1, 3)));
    let asked = Instant::now();
    see_that(&other, "web", "busy", |view| view.state == State::Unreachable).await;
    see_that(&other, "web", "served", |view| count(view) == Some(1)).await;
    assert!(asked.elapsed() >= Duration::from_secs(3), "{:?}", asked.elapsed());
    // Also in the middle of following it.
    fake.watched(2).await;
    let before = fake.watches().len();
    fake.behave(|behaviour| behaviour.throttle = Some((2, 2)));
    fake.end_watches();
    let watches = fake.asked_to_watch(before + 3).await;
    let pause = watches[before + 2].at - watches[before].at;
    assert!(pause >= Duration::from_secs(2), "it came back after {pause:?}");
    see_that(&registry, "web", "served", |view| count(view) == Some(1)).await;
    see_that(&other, "web", "served", |view| count(view) == Some(1)).await;
    for registry in [registry, other] {
        registry.shutdown(SOON).await;
    }
}

#[tokio::test]
async fn contexts_and_namespaces_are_found_as_kubectl_does() {
    let scratch = Scratch::new("k8s-context");
    let fake = require!(start(&scratch));
    fake.behave(|behaviour| behaviour.tokens = ["secret".to_owned()].into());
    fake.put("payments", slice("a", "web", &["10.0.0.1"]));
    fake.put("other", slice("a", "web", &["10.0.0.2"]));
    fake.put("third", slice("a", "web", &["10.0.0.3"]));
    let file = fake.kubeconfig(scratch.path(), "secret");
    for (url, host) in [
        ("k8s://?", "10.0.0.1"),
        ("k8s://?context=other&", "10.0.0.2"),
        ("k8s://third?context=other&", "10.0.0.3"),
        ("k8s:///third?", "10.0.0.3"),
        ("kubernetes://payments?context=other&", "10.0.0.1"),
    ] {
        let registry = connect(&format!("{url}kubeconfig={}", file.display()));
        let (snapshot, _) = registry.instances("web").await.expect("an answer").expect("known");
        assert_eq!(snapshot.instances[0].address.host(), host, "{url}");
        registry.shutdown(SOON).await;
    }
    for (context, kind, what) in [
        ("nobody", ErrorKind::Denied, "answered 401"),
        ("prod", ErrorKind::Invalid, "no context `prod`; it has test, other, nobody"),
    ] {
        let registry = connect(&format!("k8s://?context={context}&kubeconfig={}", file.display()));
        let error = registry.instances("web").await.expect_err("nobody is let in");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(what), "{error}");
        registry.shutdown(SOON).await;
    }
    // What is wrong with a file is said without what is in it.
    let broken = scratch.path().join("broken");
    std::fs::write(&broken, "users: [{name: a, user: {token: very-secret\n").expect("writable");
    for path in [broken, scratch.path().join("absent")] {
        let registry = connect(&format!("k8s://?kubeconfig={}", path.display()));
        let error = registry.instances("web").await.expect_err("no such cluster");
        let shown = format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
        assert!(shown.contains("kubeconfig") && !shown.contains("very-secret"), "{shown}");
        registry.shutdown(SOON).await;
    }
}

/// A token from a program, as clouds have it, and one from a file of the kubeconfig.
#[tokio::test]
async fn credentials_come_from_programs_and_files() {
    let scratch = Scratch::new("k8s-exec");
    let fake = require!(start(&scratch));
    fake.behave(|behaviour| behaviour.tokens = ["from-elsewhere".to_owned()].into());
    fake.put("payments", slice("a", "web", &["10.0.0.1"]));
    let token = scratch.path().join("token");
    std::fs::write(&token, "from-elsewhere\n").expect("writable");
    let answer = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": { "token": "from-elsewhere" },
    });
    let program = |script: String| {
        json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
            "interactiveMode": "Never",
        } })
    };
    for user in [json!({ "tokenFile": token.display().to_string() }), program(format!("echo '{answer}'"))] {
        let file = fake.kubeconfig_for(scratch.path(), fake.address(), &user);
        let registry = connect(&format!("k8s://?kubeconfig={}", file.display()));
        let found = registry.instances("web").await.unwrap_or_else(|error| panic!("{user}: {error}"));
        assert_eq!(found.map(|(snapshot, _)| snapshot.instances.len()), Some(1));
        registry.shutdown(SOON).await;
    }
    let file = fake.kubeconfig_for(scratch.path(), fake.address(), &program("echo from-elsewhere; exit 3".into()));
    let registry = connect(&format!("k8s://?kubeconfig={}", file.display()));
    let error = registry.instances("web").await.expect_err("it failed");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("exit status: 3") && !error.to_string().contains("from-elsewhere"), "{error}");
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn a_client_certificate_is_shown() {
    let scratch = Scratch::new("k8s-mutual");
    let certificate = require!(Certificate::issue(scratch.path()));
    let fake = Fake::start(Way::Mutual(certificate.clone()));
    fake.put("payments", slice("a", "web", &["10.0.0.1"]));
    let base64 = |file: &Path| {
        let output = Command::new("base64").arg("-w0").arg(file).output().expect("every machine has base64");
        String::from_utf8(output.stdout).expect("text")
    };
    let files = json!({ "client-certificate": certificate.cert, "client-key": certificate.key });
    let data = json!({
        "client-certificate-data": base64(&certificate.cert), "client-key-data": base64(&certificate.key),
    });
    let mut urls = Vec::new();
    for (name, user) in [("files", files), ("data", data)] {
        let folder = scratch.path().join(name);
        std::fs::create_dir(&folder).expect("writable");
        urls.push(format!("k8s://?kubeconfig={}", fake.kubeconfig_for(&folder, fake.address(), &user).display()));
    }
    let [ca, cert, key] = [&certificate.ca, &certificate.cert, &certificate.key].map(|file| file.display());
    urls.push(format!("k8s://{}/payments?ca={ca}&cert={cert}&key={key}", fake.address()));
    for url in urls {
        let registry = connect(&url);
        let found = registry.instances("web").await.unwrap_or_else(|error| panic!("{url}: {error}"));
        assert_eq!(found.map(|(snapshot, _)| snapshot.instances.len()), Some(1), "{url}");
        registry.shutdown(SOON).await;
    }
    let registry = by_kubeconfig(&fake, scratch.path(), "");
    let error = registry.instances("web").await.expect_err("no certificate");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    registry.shutdown(SOON).await;
}

/// As in a pod, with files where a pod has them: the process runs once more inside a mount namespace of its own.
#[test]
fn in_a_pod_the_service_account_is_used() {
    const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    if std::env::var_os("METAROUTE_TEST_POD").is_some() {
        runtime.block_on(async {
            let registry = connect("k8s://");
            let error = registry.instances("web").await.expect_err("the token is too old");
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            std::fs::write(TOKEN, "new").expect("writable");
            let (snapshot, _) = registry.instances("web").await.expect("let in").expect("known");
            assert_eq!(snapshot.instances[0].address.host(), "10.0.0.1");
        });
        return;
    }
    let scratch = Scratch::new("k8s-pod");
    let certificate = require!(Certificate::issue(scratch.path()));
    let unshare = require!(program("unshare"));
    let fake = Fake::start(Way::Http2(certificate.clone()));
    fake.behave(|behaviour| behaviour.tokens = ["new".to_owned()].into());
    fake.put("billing", slice("web-a", "web", &["10.0.0.1"]));
    let inside = |script: String| {
        let mut command = Command::new(&unshare);
        command.args(["-m", "sh", "-ec", &script]);
        command.env_remove("KUBECONFIG").env("HOME", scratch.path()).env("METAROUTE_TEST_POD", "1");
        command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1");
        command.env("KUBERNETES_SERVICE_PORT", fake.address().port().to_string());
        command.output().expect("it runs")
    };
    if !inside("mount -t tmpfs tmpfs /run".into()).status.success() {
        let what = "a mount namespace".to_owned();
        test_support::Missing { what, remedy: "making one takes root on Linux".to_owned() }.report(module_path!());
        return;
    }
    let output = inside(format!(
        "mount -t tmpfs tmpfs /run; folder=$(dirname {TOKEN}); mkdir -p $folder; cp {} $folder/ca.crt
         printf billing > $folder/namespace; printf old > $folder/token
         exec {} --exact kubernetes::in_a_pod_the_service_account_is_used --nocapture",
        certificate.ca.display(),
        std::env::current_exe().expect("this test").display(),
    ));
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert_eq!(
        fake.requests().iter().filter(|seen| seen.path.contains("/billing/")).count(),
        3,
        "twice 401, then once"
    );
}

/// Breaks the network of a reader, changes the world meanwhile, mends it.
async fn broken_network(way: Way, break_it: impl Fn(&Proxy)) {
    let scratch = Scratch::new("k8s-network");
    let fake = Fake::start(way.clone());
    let proxy = Proxy::start(fake.address());
    fake.put("payments", slice("web-a", "web", &["10.0.0.1"]));
    let file = fake.kubeconfig_for(scratch.path(), proxy.address(), &json!({}));
    let registry = connect(&format!("k8s://?kubeconfig={}", file.display()));
    let _followed = registry.subscribe("web");
    see_that(&registry, "web", "one", |view| count(view) == Some(1)).await;
    // Longer than a watch over HTTP/1: quiet is no failure.
    let mut seen = registry.subscribe("web");
    let quiet = tokio::time::timeout(Duration::from_secs(10), seen.wait_for(|view| count(view) != Some(1))).await;
    assert!(quiet.is_err(), "{way:?}: {:?}", seen.current());
    let began = Instant::now();
    break_it(&proxy);
    let view = see_that(&registry, "web", "the loss is told", |view| view.state == State::Unreachable).await;
    println!("{way:?}: noticed after {:.1?}", began.elapsed());
    assert_eq!(addresses(&view), ["10.0.0.1:8080"], "the last good list stays");
    fake.put("payments", slice("web-a", "web", &["10.0.0.1", "10.0.0.2"]));
    proxy.heal();
    see_that(&registry, "web", "two after healing", |view| count(view) == Some(2)).await;
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn a_cut_network_keeps_the_last_good_list() {
    let scratch = Scratch::new("k8s-cut");
    let certificate = require!(Certificate::issue(scratch.path()));
    tokio::join!(
        broken_network(Way::Plain, Proxy::cut),
        broken_network(Way::Http1(certificate.clone()), Proxy::cut),
        broken_network(Way::Http2(certificate.clone()), Proxy::cut),
    );
}

#[tokio::test]
async fn a_half_open_connection_is_noticed() {
    let scratch = Scratch::new("k8s-hold");
    let certificate = require!(Certificate::issue(scratch.path()));
    tokio::join!(
        broken_network(Way::Plain, Proxy::hold),
        broken_network(Way::Http1(certificate.clone()), Proxy::hold),
        broken_network(Way::Http2(certificate.clone()), Proxy::hold),
    );
}

#[tokio::test]
async fn a_slow_network_is_no_loss() {
    let scratch = Scratch::new("k8s-slow");
    let fake = require!(start(&scratch));
    let proxy = Proxy::start(fake.address());
    proxy.delay(Duration::from_millis(150));
    fake.put("payments", slice("web-a", "web", &["10.0.0.1"]));
    let file = fake.kubeconfig_for(scratch.path(), proxy.address(), &json!({}));
    let registry = connect(&format!("k8s://?kubeconfig={}", file.display()));
    let mut seen = registry.subscribe("web");
    seen.wait_for(|view| count(view) == Some(1)).await.expect("open");
    fake.put("payments", slice("web-b", "web", &["10.0.0.2"]));
    let changed = tokio::time::timeout(SOON, seen.wait_for(|view| count(view) != Some(1))).await;
    assert_eq!(count(&changed.expect("in time").expect("open")), Some(2));
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn a_server_restart_loses_nothing() {
    let scratch = Scratch::new("k8s-restart");
    let mut fake = require!(start(&scratch));
    fake.put("payments", slice("web-a", "web", &["10.0.0.1"]));
    let registry = by_kubeconfig(&fake, scratch.path(), "");
    let _followed = registry.subscribe("web");
    see_that(&registry, "web", "one", |view| count(view) == Some(1)).await;
    fake.stop();
    let view = see_that(&registry, "web", "the loss is told", |view| view.state == State::Unreachable).await;
    assert_eq!(addresses(&view).len(), 1);
    fake.delete("payments", "web-a");
    fake.start_again();
    // What was there before the failure is empty now, not unknown.
    see_that(&registry, "web", "empty", |view| count(view) == Some(0)).await;
    fake.put("payments", slice("web-b", "web", &["10.0.0.2", "10.0.0.3"]));
    see_that(&registry, "web", "two", |view| count(view) == Some(2)).await;
    registry.shutdown(SOON).await;
}

/// And with `METAROUTE_MEASURE=FILE` how soon, as `conformance` measures it for the others.
#[tokio::test]
async fn changes_reach_subscribers_soon() {
    let scratch = Scratch::new("k8s-soon");
    let fake = require!(start(&scratch));
    let registry = by_kubeconfig(&fake, scratch.path(), "");
    let measured = std::env::var_os("METAROUTE_MEASURE");
    let mut seen = registry.subscribe("web");
    let mut times = Vec::new();
    for round in 0..if measured.is_some() { 100 } else { 10 } {
        let started = Instant::now();
        let host = format!("10.0.0.{}", round + 1);
        fake.put("payments", slice("web-a", "web", &[&host]));
        let there = |view: &View| addresses(view).contains(&format!("{host}:8080"));
        tokio::time::timeout(SOON, seen.wait_for(there)).await.expect("in time").expect("open");
        times.push(started.elapsed());
    }
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!("kubernetes from change to subscriber: median {median:?}, worst {worst:?}");
    assert!(median < Duration::from_secs(3), "{times:?}");
    if let Some(file) = measured {
        let names: Vec<String> = (0..100).map(|n| format!("idle-{n}")).collect();
        let mut idle: Vec<_> = names.iter().map(|name| registry.subscribe(name)).collect();
        for one in &mut idle {
            one.wait_for(|view| view.state != State::Unresolved).await.expect("open");
        }
        let (time, before) = (Duration::from_secs(20), processor_time(None));
        tokio::time::sleep(time).await;
        let used = (processor_time(None) - before).as_secs_f64() / time.as_secs_f64();
        let line = json!({
            "registry": "kubernetes", "rounds": times.len(), "p50_ms": median.as_secs_f64() * 1e3,
            "p99_ms": times[times.len() - 2].as_secs_f64() * 1e3, "idle_100_percent_of_a_core": used * 100.0,
        });
        let mut out = std::fs::OpenOptions::new().create(true).append(true).open(file).expect("the file opens");
        writeln!(out, "{line}").expect("written");
    }
    registry.shutdown(SOON).await;
}

/// More watches than a server allows on one connection, and more endpoints than one slice has.
#[tokio::test]
async fn many_services_and_many_endpoints() {
    let scratch = Scratch::new("k8s-many");
    let fake = require!(start(&scratch));
    let proxy = Proxy::start(fake.address());
    let file = fake.kubeconfig_for(scratch.path(), proxy.address(), &json!({}));
    let registry = connect(&format!("k8s://?kubeconfig={}", file.display()));
    let names: Vec<String> = (0..130).map(|n| format!("svc-{n}")).collect();
    let mut seen: Vec<_> = names.iter().map(|name| registry.subscribe(name)).collect();
    for one in &mut seen {
        one.wait_for(|view| view.state == State::UnknownService).await.expect("open");
    }
    for name in &names {
        fake.put("payments", slice(name, name, &["10.0.0.1"]));
    }
    for one in &mut seen {
        let found = tokio::time::timeout(SOON, one.wait_for(|view| count(view) == Some(1))).await;
        found.expect("in time").expect("open");
    }
    assert!(proxy.accepted() <= 20, "{} connections for 130 watches", proxy.accepted());
    drop(seen);
    // Whoever is no longer followed is no longer watched.
    let ended = async {
        while fake.open_watches() > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, ended).await.expect("all watches end");
    let hosts: Vec<String> = (0..1000).map(|n| format!("10.1.{}.{}", n / 100, n % 100 + 1)).collect();
    for (n, hosts) in hosts.chunks(100).enumerate() {
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        fake.put("payments", slice(&format!("big-{n}"), "big", &hosts));
    }
    see_that(&registry, "big", "a thousand", |view| count(view) == Some(1000)).await;
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn what_is_damaged_costs_only_itself() {
    let fake = Fake::start(Way::Plain);
    let registry = connect(&format!("k8s://{}/payments?tls=false", fake.address()));
    let _followed = registry.subscribe("web");
    fake.put("payments", slice("web-a", "web", &["10.0.0.1"]));
    see_that(&registry, "web", "one", |view| count(view) == Some(1)).await;
    let mut damaged = slice("web-b", "web", &["10.0.0.2", "10.0.0.3"]);
    damaged["endpoints"][0]["addresses"] = json!(5);
    fake.put_unchecked("payments", damaged);
    let mut strange = slice("web-c", "web", &["10.0.0.4"]);
    strange["addressType"] = "Unix".into();
    fake.put_unchecked("payments", strange);
    let mut port = slice("web-d", "web", &["10.0.0.5"]);
    port["ports"] = json!([{ "name": "http", "port": 123_456 }]);
    fake.put_unchecked("payments", port);
    let view = see_that(&registry, "web", "what can be read", |view| {
        count(view) == Some(2) && view.snapshot.as_ref().is_some_and(|snapshot| snapshot.rejected == 3)
    })
    .await;
    assert_eq!(addresses(&view), ["10.0.0.1:8080", "10.0.0.3:8080"]);
    let notes: Vec<&str> = view.snapshot.iter().flat_map(|s| &s.notes).map(|note| &*note.message).collect();
    for part in ["`web-b`, endpoint 1", "unknown type `Unix`", "port 123456"] {
        assert!(notes.iter().any(|note| note.contains(part)), "{part}: {notes:?}");
    }
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn an_api_server_is_told_from_something_else() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address: SocketAddr = listener.local_addr().expect("bound");
    let router = axum::Router::new().fallback(|| async { "<html>hello</html>" });
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let registry = connect(&format!("k8s://{address}/payments?tls=false"));
    let error = registry.instances("web").await.expect_err("that is no API server");
    assert!(error.to_string().contains("does not answer like an API server"), "{error}");
    for name in ["a,b", "", "a=b", "ä"] {
        let error = registry.instances(name).await.expect_err("no name");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    registry.shutdown(SOON).await;
    server.abort();
}

#[tokio::test]
async fn slices_are_only_read() {
    let registry = connect("k8s://127.0.0.1:1/payments?tls=false");
    let instance = Instance::new("10.0.0.1:80".parse().expect("an address"));
    assert_eq!(registry.register("web", instance).expect_err("refused").kind(), ErrorKind::Unsupported);
    let error = registry.remove("web", &InstanceId::from("a")).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// The real client: what it applies, edits and deletes is followed here, and it reads what is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_kubectl_does_is_seen() {
    let kubectl = require!(program("kubectl"));
    let scratch = Scratch::new("k8s-kubectl");
    let fake = require!(start(&scratch));
    fake.behave(|behaviour| behaviour.tokens = ["secret".to_owned()].into());
    let file = fake.kubeconfig(scratch.path(), "secret");
    let folder = scratch.path().to_owned();
    let run = |arguments: &[&str], editor: Option<&str>| {
        let mut command = Command::new(&kubectl);
        command.arg("--cache-dir").arg(folder.join("cache")).args(arguments);
        command.env("KUBECONFIG", &file).env("HOME", &folder).env("EDITOR", editor.unwrap_or("false"));
        async move {
            let output =
                tokio::task::spawn_blocking(move || command.output()).await.expect("no panic").expect("it runs");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
            text
        }
    };
    println!("{}", run(&["version"], None).await.replace('\n', " "));
    // The same through its proxy, as people who have no token of their own do it.
    let mut command = Command::new(&kubectl);
    command.args(["proxy", "--port=0"]).env("KUBECONFIG", &file).env("HOME", &folder);
    let started = tokio::task::spawn_blocking(|| Dialogue::start("kubectl-proxy", command));
    let (proxy, line) = started.await.expect("it starts");
    let address = line.rsplit(' ').next().unwrap_or_default();
    let proxied = connect(&format!("k8s://{address}/payments?tls=false"));
    let _followed_too = proxied.subscribe("billing");
    see_that(&proxied, "billing", "nothing yet", |view| view.state == State::UnknownService).await;

    let registry = connect(&format!("k8s://?kubeconfig={}", file.display()));
    let _followed = registry.subscribe("billing");
    see_that(&registry, "billing", "nothing yet", |view| view.state == State::UnknownService).await;
    let manifest = scratch.path().join("slice.yaml");
    let text = "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: billing-vm-1
  labels: {kubernetes.io/service-name: billing, endpointslice.kubernetes.io/managed-by: vm-team, version: '2.3'}
  annotations: {metaroute/instance: '{\"weight\":2,\"cluster\":\"blue\",\"metadata\":{\"canary\":true}}'}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [192.0.2.7], zone: eu-1a}]
";
    std::fs::write(&manifest, text).expect("writable");
    let manifest = manifest.display().to_string();
    run(&["apply", "--validate=false", "-f", &manifest], None).await;
    let view = see_that(&registry, "billing", "the applied slice", |view| count(view) == Some(1)).await;
    let one = &view.snapshot.as_ref().expect("a list").instances[0];
    assert_eq!((one.address.to_string().as_str(), one.weight, &*one.cluster), ("192.0.2.7:8080", 2.0, "blue"));
    assert_eq!(&*one.locality.zone, "eu-1a");
    assert_eq!(one.metadata.get("version"), Some(&MetaValue::from("2.3")));
    assert_eq!(one.metadata.get("canary"), Some(&MetaValue::Bool(true)));
    assert!(one.metadata.keys().all(|key| !key.contains("kubernetes.io") && &**key != "metaroute/instance"));

    // Applied again with another endpoint, which is a patch.
    std::fs::write(&manifest, text.replace("zone: eu-1a}", "zone: eu-1a}, {addresses: [192.0.2.8]}"))
        .expect("writable");
    run(&["apply", "--validate=false", "-f", &manifest], None).await;
    see_that(&registry, "billing", "the second endpoint", |view| count(view) == Some(2)).await;
    see_that(&proxied, "billing", "the second endpoint", |view| count(view) == Some(2)).await;
    run(&["label", "endpointslices", "billing-vm-1", "version=2.4", "--overwrite"], None).await;
    see_that(&registry, "billing", "the new label", |view| {
        let all = view.snapshot.iter().flat_map(|snapshot| &snapshot.instances);
        count(view) == Some(2) && all.into_iter().all(|one| one.metadata.get("version") == Some(&"2.4".into()))
    })
    .await;
    run(&["edit", "endpointslices", "billing-vm-1", "--validate=false"], Some("sed -i s/192.0.2.8/192.0.2.9/")).await;
    see_that(&registry, "billing", "the edited address", |view| addresses(view).contains(&"192.0.2.9:8080".to_owned()))
        .await;
    let read = run(&["get", "endpointslices", "-o", "json"], None).await;
    let read: Value = serde_json::from_str(&read).expect("JSON");
    assert_eq!(read["items"][0]["endpoints"][1]["addresses"][0], "192.0.2.9");
    assert!(run(&["get", "endpointslices"], None).await.contains("billing-vm-1"));
    run(&["delete", "endpointslices", "billing-vm-1"], None).await;
    see_that(&registry, "billing", "gone", |view| count(view) == Some(0)).await;
    see_that(&proxied, "billing", "gone", |view| count(view) == Some(0)).await;
    assert_eq!(fake.names("payments"), Vec::<String>::new());
    for registry in [registry, proxied] {
        registry.shutdown(SOON).await;
    }
    tokio::task::spawn_blocking(|| drop(proxy)).await.expect("it ends");
}
