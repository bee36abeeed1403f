//! etcd, against a real server, its own client and Seata's.

use std::net::SocketAddr;
use std::time::Duration;

use metaroute_registry::{ErrorKind, RegistrationState, Registry, RegistryUrl, State};
use serde_json::{Value, json};
use test_support::certificate::Certificate;
use test_support::etcd::Etcd;
use test_support::seata_client::SeataClient;
use test_support::{Proxy, Scratch, backoff_poll, require, wait_until};

use crate::client::{SOON, block_on, connect, instance, registered, see};
use crate::conformance::{self, Subject, Traits};
use crate::ownership;

fn at(address: SocketAddr, rest: &str) -> Registry {
    connect(&format!("etcd://{address}{rest}"))
}

#[test]
fn conformance() {
    let mut server = require!(Etcd::start(&[]));
    let address = server.address();
    conformance::run(Subject {
        name: "etcd",
        server: address,
        url: Box::new(|server| format!("etcd://{server}?ttl=2s")),
        restart: Box::new(move || {
            server.server().stop();
            server.server().start_again().expect("etcd starts again");
        }),
        gone_within: Duration::from_secs(30),
        seen_within: SOON,
        traits: Traits { unknown_service: true, usual_ttl: Some(Duration::from_secs(10)), ..Traits::default() },
    });
}

/// The other layout on the other version.
#[test]
fn conformance_of_the_plain_layout_on_3_5() {
    let mut server = require!(Etcd::start_3_5());
    let address = server.address();
    conformance::run(Subject {
        name: "etcd 3.5, layout plain",
        server: address,
        url: Box::new(|server| format!("etcd://{server}?layout=plain&ttl=2s")),
        restart: Box::new(move || {
            server.server().stop();
            server.server().start_again().expect("etcd starts again");
        }),
        gone_within: Duration::from_secs(30),
        seen_within: SOON,
        // What scale does is the same in every layout.
        traits: Traits { unknown_service: true, scale: 100, ..Traits::default() },
    });
}

fn lookup(client: &mut SeataClient) -> Value {
    serde_json::from_str(&client.lookup()).expect("a line of JSON")
}

/// Seata's client on our registrations and we on its. Rows "no metadata in etcd", "cluster `default` also matches
/// `default2`".
#[test]
fn seatas_client_and_we_see_each_other() {
    let server = require!(Etcd::start(&[]));
    block_on(async {
        let registry = at(server.address(), "?ttl=5s");
        let ours = instance("10.1.1.1:8091").with_meta("version", "2.3").with_weight(0.0);
        let mut registration = registry.register("default", ours.clone()).expect("valid");
        registered(&mut registration).await;
        let mut client = require!(SeataClient::start("etcd3", &server.address().to_string(), "default", &[]));
        assert_eq!(lookup(&mut client), json!({"addresses": ["10.1.1.1:8091"]}), "metadata keys are not in its way");

        client.register("10.9.9.3:8091");
        let view = see(&registry, "default", &["10.1.1.1:8091", "10.9.9.3:8091"]).await;
        let snapshot = view.snapshot.expect("a list");
        assert_eq!((snapshot.rejected, snapshot.notes.len()), (0, 0));
        let theirs = snapshot.instances.iter().find(|i| i.address.port() == 8091 && i.address.host() == "10.9.9.3");
        assert_eq!(theirs.map(|i| (i.weight, i.metadata.len())), Some((1.0, 0)), "no metadata is no error");
        let mine = snapshot.instances.iter().find(|i| i.address == ours.address).expect("ours");
        assert_eq!((mine.weight, mine.metadata.clone()), (0.0, ours.metadata.clone()));
        assert_eq!(server.ctl(&["get", "registry-seata-default-10.9.9.3:8091"]).lines().last(), Some("10.9.9.3:8091"));
        assert_eq!(server.ctl(&["get", "registry-seata-default-10.1.1.1:8091"]).lines().last(), Some("10.1.1.1:8091"));

        // Its prefix has no end; ours has.
        let other = at(server.address(), "?ttl=5s");
        let mut second = other.register("default2", instance("10.1.1.2:8091")).expect("valid");
        registered(&mut second).await;
        let found = backoff_poll(SOON, || Some(lookup(&mut client)).filter(|found| found["addresses"][2].is_string()));
        assert_eq!(found, Some(json!({"addresses": ["10.1.1.1:8091", "10.1.1.2:8091", "10.9.9.3:8091"]})));
        see(&registry, "default", &["10.1.1.1:8091", "10.9.9.3:8091"]).await;
        see(&registry, "default2", &["10.1.1.2:8091"]).await;
        assert_eq!(
            registry.services().await.expect("a list"),
            [Box::<str>::from("default"), Box::<str>::from("default2")]
        );

        second.deregister().await;
        registration.deregister().await;
        client.unregister("10.9.9.3:8091");
        see(&registry, "default", &[]).await;
        let nothing = json!({"addresses": []});
        assert!(wait_until(SOON, || lookup(&mut client) == nothing), "{}", lookup(&mut client));
        assert_eq!(server.ctl(&["get", "", "--prefix", "--keys-only"]).trim(), "", "nothing is left behind");
    });
}

/// Row "the lease keeper stops for good on the first error, and the dead lease is remembered for ever".
#[test]
fn a_lost_lease_is_granted_again() {
    let server = require!(Etcd::start(&[]));
    block_on(async {
        // Long enough that it is not lost before it is taken away.
        let registry = at(server.address(), "?ttl=10s");
        let mut a = registry.register("c", instance("10.0.0.1:80").with_meta("k", "v")).expect("valid");
        let mut b = registry.register("c", instance("10.0.0.2:80")).expect("valid");
        registered(&mut a).await;
        registered(&mut b).await;
        for _ in 0..2 {
            let leases = server.ctl(&["lease", "list"]);
            let lease = leases.lines().last().expect("one lease for both");
            assert_eq!(leases.lines().count(), 2, "one lease for both: {leases}");
            server.ctl(&["lease", "revoke", lease]);
            assert!(wait_until(SOON, || server
                .ctl(&["get", "registry-seata-", "--prefix", "--keys-only"])
                .trim()
                .lines()
                .filter(|l| !l.is_empty())
                .count()
                == 2));
        }
        let view = see(&at(server.address(), ""), "c", &["10.0.0.1:80", "10.0.0.2:80"]).await;
        let snapshot = view.snapshot.expect("a list");
        assert!(snapshot.instances.iter().any(|i| i.metadata.contains_key("k")), "its metadata came back with it");
        registry.shutdown(SOON).await;
        assert_eq!(server.ctl(&["lease", "list"]).lines().count(), 1, "closing revokes the lease");
    });
}

/// A put without a lease, as an operator may do by hand, would make the key immortal.
#[test]
fn a_key_that_lost_its_lease_or_was_removed_is_written_again() {
    let server = require!(Etcd::start(&[]));
    block_on(async {
        let registry = at(server.address(), "?ttl=2s&layout=plain");
        let mut registration = registry.register("s", instance("10.0.0.1:80").with_id("a")).expect("valid");
        registered(&mut registration).await;
        let value = server.ctl(&["get", "/metaroute/s/a", "--print-value-only"]);
        server.ctl(&["put", "/metaroute/s/a", r#"{"v":1,"id":"a","address":"10.0.0.9:90"}"#]);
        assert!(wait_until(SOON, || server.ctl(&["get", "/metaroute/s/a", "--print-value-only"]) == value));
        server.ctl(&["del", "/metaroute/s/a"]);
        assert!(wait_until(SOON, || server.ctl(&["get", "/metaroute/s/a", "--print-value-only"]) == value));
        registration.deregister().await;
        assert_eq!(server.ctl(&["get", "/metaroute/", "--prefix"]), "");
    });
}

#[test]
fn history_that_was_compacted_meanwhile_is_read_anew() {
    let server = require!(Etcd::start(&[]));
    block_on(async {
        let proxy = Proxy::start(server.address());
        let (writer, reader) = (at(server.address(), "?ttl=60s"), at(proxy.address(), ""));
        let a = writer.register("c", instance("10.0.0.1:80")).expect("valid");
        let b = writer.register("c", instance("10.0.0.2:80")).expect("valid");
        see(&reader, "c", &["10.0.0.1:80", "10.0.0.2:80"]).await;
        proxy.cut();
        a.deregister().await;
        for _ in 0..20 {
            server.ctl(&["put", "noise", "x"]);
        }
        let status: Value = serde_json::from_str(&server.ctl(&["endpoint", "status", "-w", "json"])).expect("JSON");
        let revision = status[0]["Status"]["header"]["revision"].to_string();
        server.ctl(&["compact", &revision]);
        proxy.heal();
        see(&reader, "c", &["10.0.0.2:80"]).await;
        drop(b);
    });
}

#[test]
fn users_log_in_and_again_when_their_token_is_gone() {
    let mut server = require!(Etcd::start(&[]));
    server.ctl(&["user", "add", "root:sesame"]);
    server.ctl(&["user", "add", "seata:open-up"]);
    server.ctl(&["role", "add", "registry"]);
    for prefix in ["registry-seata-", "metaroute/seata-meta/"] {
        server.ctl(&["role", "grant-permission", "--prefix=true", "registry", "readwrite", prefix]);
    }
    server.ctl(&["user", "grant-role", "seata", "registry"]);
    server.ctl(&["user", "grant-role", "root", "root"]);
    server.ctl(&["auth", "enable"]);
    let address = server.address();
    block_on(async {
        let registry = connect(&format!("etcd://seata:open-up@{address}?ttl=3s"));
        let mut registration = registry.register("c", instance("10.0.0.1:80").with_meta("k", "v")).expect("valid");
        registered(&mut registration).await;
        see(&registry, "c", &["10.0.0.1:80"]).await;
        assert_eq!(registry.services().await.expect("allowed"), [Box::<str>::from("c")]);

        for (url, what) in [
            (format!("etcd://{address}"), "nobody"),
            (format!("etcd://seata:wrong@{address}"), "a wrong password"),
            (format!("etcd://seata:open-up@{address}?layout=plain"), "another prefix"),
        ] {
            let stranger = connect(&url);
            let error = stranger.instances("c").await.expect_err(what);
            assert_eq!(error.kind(), ErrorKind::Denied, "{what}: {error}");
            assert!(!format!("{error} {error:?}").contains("wrong"), "no secret is shown: {error}");
            let mut subscription = stranger.subscribe("c");
            let view = tokio::time::timeout(SOON, subscription.changed()).await.expect("in time").expect("open");
            assert_eq!(view.state, State::Stale, "{what}");
        }

        // A restarted server has forgotten every token.
        let server = tokio::task::spawn_blocking(move || {
            server.server().stop();
            server.server().start_again().expect("etcd starts again");
            server
        });
        let server = server.await.expect("it restarts");
        let mut more = registry.register("c", instance("10.0.0.2:80")).expect("valid");
        registered(&mut more).await;
        see(&registry, "c", &["10.0.0.1:80", "10.0.0.2:80"]).await;
        registration.deregister().await;
        see(&registry, "c", &["10.0.0.2:80"]).await;
        drop(server);
    });
}

#[test]
fn a_login_is_not_needed_where_nobody_logs_in() {
    let server = require!(Etcd::start(&[]));
    block_on(async {
        let registry = connect(&format!("etcd://seata:open-up@{}?ttl=3s", server.address()));
        let mut registration = registry.register("c", instance("10.0.0.1:80")).expect("valid");
        registered(&mut registration).await;
    });
}

#[test]
fn tls_is_spoken_and_an_unknown_authority_refused() {
    let scratch = Scratch::new("etcd-tls");
    let certificate = require!(Certificate::issue(scratch.path()));
    let server = require!(Etcd::start_tls(&certificate));
    block_on(async {
        let registry = at(server.address(), &format!("?tls=true&ca={}&ttl=3s", certificate.ca.display()));
        let mut registration = registry.register("c", instance("10.0.0.1:80")).expect("valid");
        registered(&mut registration).await;
        see(&registry, "c", &["10.0.0.1:80"]).await;
        for rest in ["?tls=true", ""] {
            // Whatever roots this machine trusts, ours is not among them.
            let Ok(url) = format!("etcd://{}{rest}", server.address()).parse::<RegistryUrl>() else { unreachable!() };
            let Ok(stranger) = Registry::connect(&url) else { continue };
            assert_eq!(stranger.instances("c").await.expect_err("no trust").kind(), ErrorKind::Unreachable, "{rest}");
        }
    });
}

#[test]
fn another_member_is_asked_when_one_is_dead() {
    let server = require!(Etcd::start(&[]));
    let dead = Proxy::start(server.address());
    dead.cut();
    block_on(async {
        let registry = connect(&format!("etcd://{},{}?ttl=3s", dead.address(), server.address()));
        assert_eq!(registry.instances("c").await.expect("the second answers"), None);
        let mut registration = registry.register("c", instance("10.0.0.1:80")).expect("valid");
        registered(&mut registration).await;
        see(&registry, "c", &["10.0.0.1:80"]).await;
    });
}

/// The alarm lets reads and keep-alives through, so only the registration itself can say that nothing is written.
#[test]
fn a_full_store_is_reported() {
    let server = require!(Etcd::start(&["--quota-backend-bytes=16777216"]));
    block_on(async {
        let registry = at(server.address(), "?ttl=60s&layout=plain");
        let filled = backoff_poll(Duration::from_secs(240), || {
            let big = "x".repeat(100_000);
            let put = std::process::Command::new("etcdctl")
                .env("ETCDCTL_API", "3")
                .args(["--endpoints", &server.address().to_string(), "put", "big", &big])
                .output()
                .expect("etcdctl runs");
            (!put.status.success()).then_some(())
        });
        assert!(filled.is_some(), "the quota is reached");
        let mut registration = registry.register("s", instance("10.0.0.1:80")).expect("valid");
        let error = tokio::time::timeout(SOON, registration.registered()).await.expect("in time").expect_err("full");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("database space exceeded"), "{error}");
        assert!(matches!(registration.state(), RegistrationState::Refused(_)));
    });
}

/// What etcd's Go client for gRPC reads and writes.
#[test]
fn grpc_naming_entries_are_shared() {
    let server = require!(Etcd::start(&[]));
    block_on(async {
        let registry = at(server.address(), "?ttl=3s&layout=grpc");
        server.ctl(&["put", "orders/10.0.0.9:90", r#"{"Op":0,"Addr":"10.0.0.9:90","Metadata":{"zone":"a","n":1}}"#]);
        let mut registration =
            registry.register("orders", instance("10.0.0.1:80").with_meta("version", "2")).expect("valid");
        registered(&mut registration).await;
        let view = see(&registry, "orders", &["10.0.0.1:80", "10.0.0.9:90"]).await;
        let snapshot = view.snapshot.expect("a list");
        let theirs = snapshot.instances.iter().find(|i| i.address.port() == 90).expect("theirs");
        assert_eq!(&*theirs.locality.zone, "a");
        let value = server.ctl(&["get", "orders/10.0.0.1:80", "--print-value-only"]);
        let value: Value = serde_json::from_str(&value).expect("JSON");
        assert_eq!(value, json!({"Op": 0, "Addr": "10.0.0.1:80", "Metadata": {"version": "2"}}));
        server.ctl(&["del", "orders/10.0.0.9:90"]);
        see(&registry, "orders", &["10.0.0.1:80"]).await;
    });
}

#[test]
fn the_newest_owner_of_an_address_wins_and_the_older_one_does_not_take_it_away() {
    let server = require!(Etcd::start(&[]));
    block_on(async {
        ownership::the_newest_wins(&at(server.address(), "?ttl=4s"), &at(server.address(), "?ttl=4s")).await;
    });
}

#[test]
fn an_instance_that_moves_to_another_address_is_there_once() {
    let server = require!(Etcd::start(&[]));
    block_on(async { ownership::who_moves_is_there_once(&at(server.address(), "")).await });
}

#[test]
fn an_owner_that_was_away_does_not_take_its_address_back() {
    let server = require!(Etcd::start(&[]));
    let url = |server| format!("etcd://{server}?ttl=4s");
    block_on(ownership::who_was_away_does_not_take_it_back(server.address(), url));
}

#[test]
fn others_can_change_and_remove_an_instance_without_becoming_its_owner() {
    let server = require!(Etcd::start(&[]));
    block_on(async {
        for layout in ["seata", "plain", "grpc"] {
            let rest = format!("?ttl=3s&layout={layout}");
            ownership::others_change_and_remove(&at(server.address(), &rest), &at(server.address(), &rest)).await;
        }
    });
}
