//! ZooKeeper, against a real server and the clients of Seata, Curator and Python.

use std::time::Duration;

use metaroute_registry::{ErrorKind, Registry, RegistryUrl, State};
use serde_json::{Value, json};
use test_support::certificate::Certificate;
use test_support::dialogue::Dialogue;
use test_support::seata_client::SeataClient;
use test_support::zookeeper::ZooKeeper;
use test_support::{Proxy, Scratch, cache, java, require, wait_until};

use crate::client::{SOON, addresses, block_on, by_address, connect, instance, registered, see, see_if};
use crate::conformance::{self, Subject, Traits};
use crate::ownership;

fn at(server: &ZooKeeper, rest: &str) -> Registry {
    connect(&format!("zookeeper://{}{rest}", server.address()))
}

/// Python's client, told what to do. `None` where the test is not to run.
struct Kazoo(Dialogue);

impl Kazoo {
    fn start(server: &ZooKeeper, auth: Option<&str>) -> Result<Self, test_support::Missing> {
        let mut command = std::process::Command::new(cache::peer("kazoo")?.join("venv/bin/python"));
        command.arg(cache::recipe_dir("kazoo").join("peer.py")).arg(server.address().to_string()).args(auth);
        let (dialogue, first) = Dialogue::start("kazoo", command);
        assert_eq!(first, r#"{"ready": true}"#);
        Ok(Self(dialogue))
    }

    fn ask(&mut self, request: Value) -> Value {
        serde_json::from_str(&self.0.ask(&request.to_string())).expect("a line of JSON")
    }

    fn get(&mut self, path: &str) -> Value {
        self.ask(json!({"do": "get", "path": path}))
    }

    fn children(&mut self, path: &str) -> Value {
        self.ask(json!({"do": "children", "path": path}))["children"].clone()
    }
}

fn suite(name: &'static str, rest: &'static str, server: ZooKeeper, traits: Traits) {
    let mut server = server;
    conformance::run(Subject {
        name,
        server: server.address(),
        url: Box::new(move |server| format!("zookeeper://{server}{rest}")),
        restart: Box::new(move || {
            server.server().stop();
            server.server().start_again().expect("ZooKeeper starts again");
        }),
        gone_within: Duration::from_secs(30),
        seen_within: SOON,
        traits,
    });
}

#[test]
fn conformance() {
    let server = require!(ZooKeeper::start(&[]));
    suite(
        "ZooKeeper",
        "?ttl=2s",
        server,
        Traits { unknown_service: true, usual_ttl: Some(Duration::from_secs(10)), ..Traits::default() },
    );
}

#[test]
fn conformance_of_curators_layout_under_a_chroot() {
    let server = require!(ZooKeeper::start(&[]));
    let traits = Traits { unknown_service: true, scale: 100, ..Traits::default() };
    suite("ZooKeeper, layout curator", "/apps/one?layout=curator&ttl=2s", server, traits);
}

#[test]
fn conformance_of_dubbos_layout() {
    let server = require!(ZooKeeper::start(&[]));
    let traits = Traits { unknown_service: true, scale: 100, ..Traits::default() };
    suite("ZooKeeper, layout dubbo", "?layout=dubbo&ttl=2s", server, traits);
}

fn lookup(client: &mut SeataClient) -> Value {
    serde_json::from_str(&client.lookup()).expect("a line of JSON")
}

#[test]
fn seatas_client_and_we_see_each_other() {
    let server = require!(ZooKeeper::start(&[]));
    block_on(async {
        let registry = at(&server, "");
        let ours = instance("10.1.1.1:8091").with_meta("version", "2.3").with_weight(0.0);
        let mut registration = registry.register("default", ours.clone()).expect("valid");
        registered(&mut registration).await;
        let mut client = require!(SeataClient::start("zk", &server.address().to_string(), "default", &[]));
        assert_eq!(lookup(&mut client), json!({"addresses": ["10.1.1.1:8091"]}), "metadata is not in its way");
        client.register("10.9.9.1:8091");
        let view = see(&registry, "default", &["10.1.1.1:8091", "10.9.9.1:8091"]).await;
        assert_eq!(view.snapshot.as_ref().map(|s| (s.rejected, s.notes.len())), Some((0, 0)));
        let theirs = by_address(&view, "10.9.9.1:8091");
        assert_eq!((theirs.weight, theirs.metadata.len()), (1.0, 0), "`true` is no metadata and no error");
        let mine = by_address(&view, "10.1.1.1:8091");
        assert_eq!((mine.weight, &mine.metadata), (0.0, &ours.metadata));
        let mut second = registry.register("default", instance("10.1.1.2:8091")).expect("valid");
        registered(&mut second).await;
        let all = json!({"addresses": ["10.1.1.1:8091", "10.1.1.2:8091", "10.9.9.1:8091"]});
        assert!(wait_until(SOON, || lookup(&mut client) == all), "{}", lookup(&mut client));
        second.deregister().await;
        client.unregister("10.9.9.1:8091");
        see(&registry, "default", &["10.1.1.1:8091"]).await;
        let one = json!({"addresses": ["10.1.1.1:8091"]});
        assert!(wait_until(SOON, || lookup(&mut client) == one), "{}", lookup(&mut client));
        registration.deregister().await;
    });
}

/// Rows "2.0.0 writes a Java-serialized Boolean", "if all children vanish the cached list is removed", and what others do
/// to nodes of ours.
#[test]
fn nodes_that_others_write_are_read_byte_by_byte() {
    let server = require!(ZooKeeper::start(&[]));
    let mut kazoo = require!(Kazoo::start(&server, None));
    block_on(async {
        let registry = at(&server, "");
        assert_eq!(registry.instances("default").await.expect("an answer"), None);
        let java = "aced0005737200116a6176612e6c616e672e426f6f6c65616ecd207280d59cfaee0200015a000576616c7565787001";
        let text = "76657273696f6e3d322e330a6e6f7468696e670a3d780a656e763d0a";
        for (address, data) in [("10.0.0.1:8091", java), ("10.0.0.2:8091", "74727565"), ("10.0.0.3:8091", text)] {
            kazoo.ask(json!({"do": "create", "path": format!("/registry/zk/default/{address}"), "data": data}));
        }
        kazoo.ask(json!({"do": "create", "path": "/registry/zk/default/nonsense", "data": ""}));
        let three = ["10.0.0.1:8091", "10.0.0.2:8091", "10.0.0.3:8091"];
        let view = see_if(&registry, "default", "three and a bad one", |view| {
            addresses(view).len() == 3 && view.snapshot.as_ref().is_some_and(|snapshot| snapshot.rejected == 1)
        })
        .await;
        assert_eq!(addresses(&view), three);
        assert_eq!(by_address(&view, three[0]).metadata.len() + by_address(&view, three[1]).metadata.len(), 0);
        let third = by_address(&view, three[2]);
        assert_eq!(third.metadata.get("version").map(|v| v.to_text()).as_deref(), Some("2.3"));
        assert_eq!(third.metadata.get("env").map(|v| v.to_text()).as_deref(), Some(""), "empty is there");
        // A change of data alone is seen.
        kazoo.ask(json!({"do": "set", "path": "/registry/zk/default/10.0.0.2:8091", "data": "613d31"}));
        see_if(&registry, "default", "new metadata", |view| {
            addresses(view).len() == 3 && by_address(view, three[1]).metadata.contains_key("a")
        })
        .await;
        for name in ["10.0.0.1:8091", "10.0.0.2:8091", "10.0.0.3:8091", "nonsense"] {
            kazoo.ask(json!({"do": "delete", "path": format!("/registry/zk/default/{name}")}));
        }
        let view = see(&registry, "default", &[]).await;
        assert_eq!(view.state, State::Fresh, "the cluster is known and empty");
        // What we write, read by somebody else.
        let mut registration =
            registry.register("default", instance("[::1]:8091").with_meta("k", "ä=1")).expect("valid");
        registered(&mut registration).await;
        let node = kazoo.get("/registry/zk/default/0:0:0:0:0:0:0:1:8091");
        assert_eq!(node["data"], "6b3dc3a43d310a");
        assert_ne!(node["owner"], 0, "it is ephemeral");
        let dubbo = at(&server, "?layout=dubbo");
        let mut provider = dubbo.register("com.foo.Bar", instance("10.0.0.1:20880").with_weight(2.0)).expect("valid");
        registered(&mut provider).await;
        assert_eq!(
            kazoo.children("/dubbo/com.foo.Bar/providers"),
            json!([
                "dubbo%3A%2F%2F10.0.0.1%3A20880%2Fcom.foo.Bar%3Fcategory%3Dproviders%26dubbo%3D2.0.2%26interface%3Dcom.foo.Bar%26metaroute-id%3D10.0.0.1%3A20880%26side%3Dprovider%26weight%3D200"
            ])
        );
        assert_eq!(dubbo.services().await.expect("a list"), [Box::<str>::from("com.foo.Bar")]);
    });
}

/// Row "register does nothing if the node already exists": the node of a session that is not over yet is made anew.
#[test]
fn a_quick_restart_is_not_lost_with_the_old_session() {
    let server = require!(ZooKeeper::start(&[]));
    let mut kazoo = require!(Kazoo::start(&server, None));
    block_on(async {
        // The process that died: its session lives on, its node too.
        let path = "/registry/zk/c/10.0.0.1:80";
        kazoo.ask(json!({"do": "create", "path": path, "data": "6f6c643d31", "ephemeral": true}));
        let old = kazoo.get(path)["owner"].clone();
        let registry = at(&server, "?ttl=2s");
        let mut registration = registry.register("c", instance("10.0.0.1:80").with_meta("new", "1")).expect("valid");
        registered(&mut registration).await;
        let node = kazoo.get(path);
        assert_ne!(node["owner"], old);
        assert_eq!(node["data"], "6e65773d310a", "the new metadata is written");
        let view = see(&registry, "c", &["10.0.0.1:80"]).await;
        let life = by_address(&view, "10.0.0.1:80").incarnation.clone();
        // What else the old session had tells when it is over.
        kazoo.ask(json!({"do": "create", "path": "/witness", "data": "", "ephemeral": true}));
        let mut other = require!(Kazoo::start(&server, None));
        drop(kazoo);
        assert!(wait_until(SOON, || other.get("/witness")["error"] == "NoNodeError"), "the old session ends");
        let view = see(&registry, "c", &["10.0.0.1:80"]).await;
        assert_eq!(by_address(&view, "10.0.0.1:80").incarnation, life, "it outlives the old session");
        registration.deregister().await;
        see(&registry, "c", &[]).await;
    });
}

#[test]
fn an_expired_session_is_replaced() {
    let server = require!(ZooKeeper::start(&[]));
    block_on(async {
        let proxy = Proxy::start(server.address());
        let (owner, reader) = (connect(&format!("zookeeper://{}?ttl=1s", proxy.address())), at(&server, ""));
        let mut registration = owner.register("c", instance("10.0.0.1:80")).expect("valid");
        registered(&mut registration).await;
        let view = see(&reader, "c", &["10.0.0.1:80"]).await;
        let life = by_address(&view, "10.0.0.1:80").incarnation.clone();
        let mut own = owner.subscribe("c");
        proxy.cut();
        see(&reader, "c", &[]).await;
        proxy.heal();
        let view = see(&reader, "c", &["10.0.0.1:80"]).await;
        assert_ne!(by_address(&view, "10.0.0.1:80").incarnation, life, "a new session is a new life");
        let fresh = own.wait_for(|view| view.state == State::Fresh && addresses(view).len() == 1);
        tokio::time::timeout(SOON, fresh).await.expect("in time").expect("open");
        registration.deregister().await;
        see(&reader, "c", &[]).await;
    });
}

/// Oversize has no error of its own on the wire: it is said before anything is sent.
#[test]
fn nodes_that_are_too_large_are_refused_before_the_wire() {
    let server = require!(ZooKeeper::start(&[]));
    block_on(async {
        let registry = at(&server, "");
        let large = (0..9).fold(instance("10.0.0.1:80"), |i, n| i.with_meta(&format!("k{n}"), "v".repeat(60_000)));
        let mut registration = registry.register("c", large).expect("each value is short enough");
        let error = tokio::time::timeout(SOON, registration.registered()).await.expect("in time").expect_err("large");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("at most 524288 are accepted"), "{error}");
        let fits = (0..8).fold(instance("10.0.0.1:80"), |i, n| i.with_meta(&format!("k{n}"), "v".repeat(60_000)));
        registration.update(fits).expect("valid");
        see(&registry, "c", &["10.0.0.1:80"]).await;
        let mut named = registry.register("a/b", instance("10.0.0.1:80")).expect("checked later");
        let error = tokio::time::timeout(SOON, named.registered()).await.expect("in time").expect_err("no such name");
        assert!(error.to_string().contains("`a/b`"), "{error}");
    });
}

#[test]
fn users_log_in_and_only_they_may_use_what_they_made() {
    let server = require!(ZooKeeper::start(&[]));
    let mut kazoo = require!(Kazoo::start(&server, None));
    block_on(async {
        let url = |user: &str, rest: &str| format!("zookeeper://{user}{}/closed{rest}", server.address());
        let registry = connect(&url("seata:open-up@", "?acl=creator&layout=plain"));
        let mut registration = registry.register("s", instance("10.0.0.1:80")).expect("valid");
        registered(&mut registration).await;
        see(&connect(&url("seata:open-up@", "?layout=plain")), "s", &["10.0.0.1:80"]).await;
        for user in ["", "seata:wrong@"] {
            let error = connect(&url(user, "?layout=plain")).instances("s").await.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(!format!("{error} {error:?}").contains("wrong"), "no secret is shown: {error}");
        }
        let refused = kazoo.get("/closed/metaroute/s/10.0.0.1:80");
        assert_eq!(refused["error"], "NoAuthError");
    });
}

/// Containers go away when they are empty, also under somebody who is about to register.
#[test]
fn parents_that_vanished_are_made_again() {
    let server = require!(ZooKeeper::start(&[]));
    let mut kazoo = require!(Kazoo::start(&server, None));
    block_on(async {
        let registry = at(&server, "/deep/er?layout=plain&ttl=2s");
        for _ in 0..3 {
            let mut registration = registry.register("s", instance("10.0.0.1:80")).expect("valid");
            registered(&mut registration).await;
            registration.deregister().await;
            kazoo.ask(json!({"do": "delete", "path": "/deep"}));
            assert_eq!(kazoo.get("/deep")["error"], "NoNodeError");
        }
        // Gone while registered: it comes back with everything above it.
        let mut registration = registry.register("s", instance("10.0.0.1:80")).expect("valid");
        registered(&mut registration).await;
        kazoo.ask(json!({"do": "delete", "path": "/deep"}));
        assert!(wait_until(SOON, || kazoo.get("/deep/er/metaroute/s/10.0.0.1:80")["error"].is_null()));
    });
}

/// Curator's discovery, Java: it finds ours with their payload, we find its.
#[test]
fn curator_and_we_see_each_other() {
    let server = require!(ZooKeeper::start(&[]));
    let mut command = require!(java::class("curator", "Main"));
    command.args([&server.address().to_string(), "/services"]);
    let (mut curator, first) = Dialogue::start("curator", command);
    assert_eq!(first, r#"{"ready":true}"#);
    let mut ask = |line: &str| -> Value { serde_json::from_str(&curator.ask(line)).expect("a line of JSON") };
    block_on(async {
        let registry = at(&server, "?layout=curator");
        let ours = instance("10.0.0.1:80").with_id("ours").with_meta("version", "2").with_weight(0.0).with_zone("z1");
        let mut registration = registry.register("orders", ours).expect("valid");
        registered(&mut registration).await;
        let mut bare = registry.register("orders", instance("10.0.0.2:80").with_id("bare")).expect("valid");
        registered(&mut bare).await;
        let found = ask("query orders");
        assert_eq!(
            found,
            json!({"instances": [
                {"id": "bare", "address": "10.0.0.2", "port": 80, "enabled": true, "payload": null},
                {"id": "ours", "address": "10.0.0.1", "port": 80, "enabled": true,
                 "payload": {"metaroute-weight": "0", "version": "2", "zone": "z1"}},
            ]})
        );
        assert_eq!(ask("register orders theirs 10.0.0.9 90 version 3"), json!({"registered": "theirs"}));
        let view = see(&registry, "orders", &["10.0.0.1:80", "10.0.0.2:80", "10.0.0.9:90"]).await;
        let theirs = by_address(&view, "10.0.0.9:90");
        assert_eq!(theirs.id.as_str(), "theirs");
        assert_eq!(theirs.metadata.get("version").map(|v| v.to_text()).as_deref(), Some("3"));
        assert_eq!(view.snapshot.as_ref().map(|s| s.rejected), Some(0));
        assert_eq!(ask("names"), json!({"names": ["orders"]}));
        ask("unregister theirs");
        see(&registry, "orders", &["10.0.0.1:80", "10.0.0.2:80"]).await;
    });
}

#[test]
fn the_newest_owner_of_an_address_wins_and_the_older_one_does_not_take_it_away() {
    let server = require!(ZooKeeper::start(&[]));
    block_on(async {
        ownership::the_newest_wins(&at(&server, "?ttl=4s"), &at(&server, "?ttl=4s")).await;
    });
}

#[test]
fn an_instance_that_moves_to_another_address_is_there_once() {
    let server = require!(ZooKeeper::start(&[]));
    block_on(async { ownership::who_moves_is_there_once(&at(&server, "")).await });
}

#[test]
fn an_owner_that_was_away_does_not_take_its_address_back() {
    let server = require!(ZooKeeper::start(&[]));
    let url = |server| format!("zookeeper://{server}?ttl=4s");
    block_on(ownership::who_was_away_does_not_take_it_back(server.address(), url));
}

#[test]
fn others_can_change_and_remove_an_instance_without_becoming_its_owner() {
    let server = require!(ZooKeeper::start(&[]));
    block_on(async {
        for layout in ["seata", "curator", "plain"] {
            let rest = format!("?ttl=3s&layout={layout}");
            ownership::others_change_and_remove(&at(&server, &rest), &at(&server, &rest)).await;
        }
        let dubbo = at(&server, "?layout=dubbo");
        assert_eq!(dubbo.amend("c", &instance("h:1")).await.expect_err("by name").kind(), ErrorKind::Unsupported);
    });
}

/// The parameters of a client that trusts the authority and has a certificate of it: the server's own, for want of
/// another; nothing in it says whose it is.
fn identity(certificate: &Certificate) -> String {
    let Certificate { cert, key, ca } = certificate;
    format!("tls=true&ca={}&cert={}&key={}", ca.display(), cert.display(), key.display())
}

#[test]
fn tls_is_spoken_with_a_client_certificate_and_strangers_are_refused() {
    let scratch = Scratch::new("zookeeper-tls");
    let certificate = require!(Certificate::issue(scratch.path()));
    let server = require!(ZooKeeper::start_tls(&certificate));
    let address = server.secure_address().expect("a port for it");
    block_on(async {
        let us = identity(&certificate);
        let registry = connect(&format!("zookeeper://{address}/closed?ttl=2s&acl=creator&layout=plain&{us}"));
        let mut registration = registry.register("s", instance("10.0.0.1:80").with_meta("k", "v")).expect("valid");
        registered(&mut registration).await;
        // A login beside the certificate, and a dead member beside the living one.
        let dead = Proxy::start(address);
        dead.cut();
        let other = format!("zookeeper://a:b@{},{address}/closed?ttl=2s&layout=plain&{us}", dead.address());
        let view = see(&connect(&other), "s", &["10.0.0.1:80"]).await;
        assert_eq!(by_address(&view, "10.0.0.1:80").metadata.len(), 1);
        // What was made with the certificate is its owner's alone.
        let plain = at(&server, "/closed?layout=plain");
        let error = plain.instances("s").await.expect_err("it is closed");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");

        let ca = certificate.ca.display();
        for (rest, why) in [(format!("?tls=true&ca={ca}"), "certificate"), ("?tls=true".to_owned(), "certificate")] {
            let url: RegistryUrl = format!("zookeeper://{address}{rest}").parse().expect("an address");
            // A machine that trusts nobody at all says so earlier.
            let Ok(stranger) = Registry::connect(&url) else { continue };
            let error = stranger.instances("s").await.expect_err("no trust");
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            assert!(error.to_string().to_lowercase().contains(why), "{rest}: {error}");
        }
        registration.deregister().await;
        see(&registry, "s", &[]).await;
    });
}

#[test]
fn conformance_over_tls() {
    let scratch = Scratch::new("zookeeper-tls");
    let certificate = require!(Certificate::issue(scratch.path()));
    let mut server = require!(ZooKeeper::start_tls(&certificate));
    let us = identity(&certificate);
    conformance::run(Subject {
        name: "ZooKeeper over TLS",
        server: server.secure_address().expect("a port for it"),
        url: Box::new(move |server| format!("zookeeper://{server}?ttl=2s&{us}")),
        restart: Box::new(move || {
            server.server().stop();
            server.server().start_again().expect("ZooKeeper starts again");
        }),
        gone_within: Duration::from_secs(30),
        seen_within: SOON,
        // What scale does is the same with and without TLS.
        traits: Traits { unknown_service: true, scale: 100, ..Traits::default() },
    });
}
