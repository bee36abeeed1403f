//! DNS against BIND 9, its records changed by `nsupdate`.

use std::time::Duration;

use metaroute_core::instance::{Instance, InstanceId};
use metaroute_registry::{ErrorKind, Registry, State, View};
use test_support::bind::{BROKEN_ZONE, Bind, ZONE};
use test_support::require;

use crate::client::{self, SOON, count, see_that};

fn connect(bind: &Bind, domain: &str, parameters: &str) -> Registry {
    client::connect(&format!("dns+srv://127.0.0.1:{}/{domain}?{parameters}", bind.port()))
}

fn list(view: &View) -> Vec<(String, String, f64)> {
    let instances = view.snapshot.iter().flat_map(|snapshot| &snapshot.instances);
    let mut list: Vec<_> = instances.map(|one| (one.id.to_string(), one.address.to_string(), one.weight)).collect();
    list.sort_by(|a, b| a.0.cmp(&b.0));
    list
}

#[tokio::test]
async fn records_become_instances_and_changes_are_seen() {
    let bind = require!(Bind::start());
    let registry = connect(&bind, ZONE, "");
    see_that(&registry, "web", "nobody registered", |view| view.state == State::UnknownService).await;
    bind.update(&[
        &format!("add web-1.{ZONE} 1 A 10.0.0.1"),
        &format!("add web-2.{ZONE} 1 A 10.0.0.2"),
        &format!("add web-2.{ZONE} 1 AAAA fd00::2"),
        &format!("add _web._tcp.{ZONE} 1 SRV 10 30 8080 web-1.{ZONE}."),
        &format!("add _web._tcp.{ZONE} 1 SRV 10 10 8081 Web-2.{ZONE}."),
        &format!("add _web._tcp.{ZONE} 1 SRV 20 10 8082 web-1.{ZONE}."),
        &format!("add _web._tcp.{ZONE} 1 TXT \"version=2.0\" \"zone=z1\" \"flag\""),
    ]);
    let view = see_that(&registry, "web", "all records", |view| count(view) == Some(4)).await;
    let name = |host: &str, port: u16| format!("{host}.{ZONE}:{port}");
    assert_eq!(
        list(&view),
        [
            (name("web-1", 8080), "10.0.0.1:8080".to_owned(), 30.0),
            (name("web-1", 8082), "10.0.0.1:8082".to_owned(), 0.0),
            (name("web-2", 8081) + "/10.0.0.2", "10.0.0.2:8081".to_owned(), 5.0),
            (name("web-2", 8081) + "/fd00::2", "[fd00::2]:8081".to_owned(), 5.0),
        ]
    );
    let one = &view.snapshot.as_ref().expect("a list").instances[0];
    assert_eq!((&*one.locality.zone, one.healthy), ("z1", true));
    let text = |key: &str| one.metadata.get(key).map(|value| value.to_text().into_string());
    assert_eq!((text("version"), text("flag")), (Some("2.0".into()), Some("true".into())));
    assert_eq!(text("target"), Some(format!("web-1.{ZONE}")));

    // Only the address of a target changes.
    bind.update(&[&format!("delete web-1.{ZONE} A"), &format!("add web-1.{ZONE} 1 A 10.0.0.9")]);
    see_that(&registry, "web", "the new address", |view| list(view).iter().any(|one| one.1 == "10.0.0.9:8080")).await;
    // And only the metadata.
    bind.update(&[&format!("delete _web._tcp.{ZONE} TXT"), &format!("add _web._tcp.{ZONE} 1 TXT \"version=3\"")]);
    see_that(&registry, "web", "the new version", |view| {
        view.snapshot
            .iter()
            .flat_map(|snapshot| &snapshot.instances)
            .any(|one| one.metadata.get("version").is_some_and(|version| *version.to_text() == *"3"))
    })
    .await;
    // A target without an address is left out, counted and named; the others stay.
    bind.update(&[&format!("delete web-2.{ZONE}")]);
    let view = see_that(&registry, "web", "one less", |view| count(view) == Some(2)).await;
    let snapshot = view.snapshot.as_ref().expect("a list");
    assert_eq!(snapshot.rejected, 1);
    assert!(snapshot.notes[0].message.contains(&name("web-2", 8081)), "{:?}", snapshot.notes);
    // The name goes with its last record; for a watcher that is an empty list, for a newcomer an unknown service.
    bind.update(&[&format!("delete _web._tcp.{ZONE}")]);
    see_that(&registry, "web", "an empty list", |view| count(view) == Some(0)).await;
    assert_eq!(registry.instances("web").await.expect("an answer"), None);
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn no_such_name_no_such_record_and_no_answer_are_three_things() {
    let mut bind = require!(Bind::start());
    bind.update(&[
        &format!("add _text._tcp.{ZONE} 1 TXT \"only=text\""),
        &format!("add _off._tcp.{ZONE} 1 SRV 0 0 0 ."),
        &format!("add a.{ZONE} 1 A 10.0.0.1"),
        &format!("add _web._tcp.{ZONE} 1 SRV 0 0 80 a.{ZONE}."),
    ]);
    let registry = connect(&bind, ZONE, "timeout=5s");
    assert_eq!(registry.instances("never").await.expect("an answer"), None);
    for empty in ["text", "off"] {
        let (snapshot, _) = registry.instances(empty).await.expect("an answer").expect("the name exists");
        assert_eq!((snapshot.instances.len(), snapshot.rejected), (0, 0), "{empty}");
    }
    let broken = connect(&bind, BROKEN_ZONE, "timeout=5s");
    let error = broken.instances("web").await.expect_err("SERVFAIL");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().to_lowercase().contains("server fail"), "{error}");
    let refused = connect(&bind, "elsewhere.test", "timeout=5s");
    let error = refused.instances("web").await.expect_err("REFUSED");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().to_lowercase().contains("refused"), "{error}");
    // Silence: what was known stays.
    see_that(&registry, "web", "one", |view| count(view) == Some(1)).await;
    bind.server().pause();
    let view = see_that(&registry, "web", "silence", |view| view.state == State::Unreachable).await;
    assert_eq!(list(&view).len(), 1);
    bind.server().resume();
    see_that(&registry, "web", "answers again", |view| count(view) == Some(1)).await;
    for registry in [registry, broken, refused] {
        registry.shutdown(SOON).await;
    }
}

/// More than a UDP answer holds.
#[tokio::test]
async fn truncated_answers_are_asked_for_again_over_tcp() {
    let bind = require!(Bind::start());
    let registry = connect(&bind, ZONE, "");
    let mut lines = Vec::new();
    for n in 0..200 {
        lines.push(format!("add host-{n}.{ZONE} 60 A 10.1.{}.{}", n / 100, n % 100 + 1));
        lines.push(format!("add _many._tcp.{ZONE} 60 SRV 0 {n} 80 host-{n}.{ZONE}."));
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    bind.update(&lines);
    let (snapshot, _) = registry.instances("many").await.expect("an answer").expect("known");
    assert_eq!((snapshot.instances.len(), snapshot.rejected), (200, 0), "{:?}", snapshot.notes);
    registry.shutdown(SOON).await;
}

/// Nobody is asked again before the least TTL has passed.
#[tokio::test]
async fn the_next_question_comes_with_the_least_time_to_live() {
    let bind = require!(Bind::start());
    let registry = connect(&bind, ZONE, "");
    bind.update(&[
        &format!("add a.{ZONE} 4 A 10.0.0.1"),
        &format!("add _web._tcp.{ZONE} 60 SRV 0 0 80 a.{ZONE}."),
        &format!("add _web._tcp.{ZONE} 60 TXT \"v=1\""),
    ]);
    see_that(&registry, "web", "one", |view| count(view) == Some(1)).await;
    let started = std::time::Instant::now();
    bind.update(&[&format!("add _web._tcp.{ZONE} 60 SRV 0 0 81 a.{ZONE}.")]);
    see_that(&registry, "web", "two", |view| count(view) == Some(2)).await;
    let took = started.elapsed();
    assert!(took > Duration::from_secs(2), "{took:?}");
    // And the floor holds where there is no time at all.
    bind.update(&[&format!("delete a.{ZONE}"), &format!("add a.{ZONE} 0 A 10.0.0.1")]);
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn instances_announced_by_dns_sd_have_names_and_metadata_of_their_own() {
    let bind = require!(Bind::start());
    bind.update(&[
        &format!("add a.{ZONE} 1 A 10.0.0.1"),
        &format!("add b.{ZONE} 1 A 10.0.0.2"),
        &format!("add _services._dns-sd._udp.{ZONE} 1 PTR _web._tcp.{ZONE}."),
        &format!("add _web._tcp.{ZONE} 1 PTR Blue\\032One._web._tcp.{ZONE}."),
        &format!("add _web._tcp.{ZONE} 1 PTR green._web._tcp.{ZONE}."),
        &format!("add _web._tcp.{ZONE} 1 PTR gone._web._tcp.{ZONE}."),
        &format!("add Blue\\032One._web._tcp.{ZONE} 1 SRV 0 0 80 a.{ZONE}."),
        &format!("add Blue\\032One._web._tcp.{ZONE} 1 TXT \"colour=blue\""),
        &format!("add green._web._tcp.{ZONE} 1 SRV 0 5 81 b.{ZONE}."),
    ]);
    let registry = connect(&bind, ZONE, "layout=dns-sd");
    assert_eq!(registry.services().await.expect("a list"), [Box::from("web")]);
    let view = see_that(&registry, "web", "two", |view| count(view) == Some(2)).await;
    assert_eq!(
        list(&view),
        [("Blue One".to_owned(), "10.0.0.1:80".to_owned(), 1.0), ("green".to_owned(), "10.0.0.2:81".to_owned(), 5.0),]
    );
    let colours: Vec<_> = view
        .snapshot
        .iter()
        .flat_map(|snapshot| &snapshot.instances)
        .filter_map(|one| one.metadata.get("colour").map(|colour| colour.to_text().to_string()))
        .collect();
    assert_eq!(colours, ["blue"]);
    let plain = connect(&bind, ZONE, "");
    assert_eq!(plain.services().await.expect_err("it cannot").kind(), ErrorKind::Unsupported);
    for registry in [registry, plain] {
        registry.shutdown(SOON).await;
    }
}

#[tokio::test]
async fn dns_is_only_read() {
    let registry = Registry::connect(&"dns+srv://127.0.0.1/d.test".parse().expect("valid")).expect("this build has it");
    let instance = Instance::new("10.0.0.1:80".parse().expect("an address"));
    assert_eq!(registry.register("web", instance).expect_err("refused").kind(), ErrorKind::Unsupported);
    let error = registry.remove("web", &InstanceId::from("a")).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
