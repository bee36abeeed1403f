//! Redis, against a real server, its own client and Seata's.

use std::time::{Duration, Instant};

use metaroute_registry::{ErrorKind, Registry, RegistryUrl, View};
use serde_json::{Value, json};
use test_support::certificate::Certificate;
use test_support::redis::{Cluster, Redis, Sentinel};
use test_support::seata_client::SeataClient;
use test_support::{Proxy, Scratch, require, wait_until};

use crate::client::{SOON, addresses, block_on, connect, instance, registered, see, see_if};
use crate::conformance::{self, Subject, Traits};
use crate::ownership;

fn at(server: &Redis, rest: &str) -> Registry {
    connect(&format!("redis://{}{rest}", server.address()))
}

fn meta(view: &View, address: &str, key: &str) -> Option<String> {
    let snapshot = view.snapshot.as_ref()?;
    let instance = snapshot.instances.iter().find(|i| i.address.to_string() == address)?;
    Some(instance.metadata.get(key)?.to_text().into())
}

fn suite(name: &'static str, server: Redis, rest: &'static str, traits: Traits) {
    let address = server.address();
    let mut server = server;
    conformance::run(Subject {
        name,
        server: address,
        url: Box::new(move |server| format!("redis://{server}{rest}")),
        restart: Box::new(move || {
            server.server().stop();
            server.server().start_again().expect("Redis starts again");
        }),
        gone_within: Duration::from_secs(30),
        seen_within: SOON,
        traits,
    });
}

#[test]
fn conformance() {
    let server = require!(Redis::start(&[]));
    suite(
        "Redis",
        server,
        "?ttl=2s",
        Traits { unknown_service: true, usual_ttl: Some(Duration::from_secs(5)), ..Traits::default() },
    );
}

#[test]
fn conformance_of_the_plain_layout() {
    let server = require!(Redis::start(&[]));
    let traits = Traits { unknown_service: true, scale: 100, ..Traits::default() };
    suite("Redis, layout plain", server, "?layout=plain&ttl=2s", traits);
}

fn lookup(client: &mut SeataClient) -> Value {
    serde_json::from_str(&client.lookup()).expect("a line of JSON")
}

/// Seata's client on our registrations and we on its. Row "released 2.0.0 and 2.6.0 never delete on unregister, and 2.6.0
/// keeps refreshing the key".
#[test]
fn seatas_client_and_we_see_each_other() {
    let server = require!(Redis::start(&[]));
    block_on(async {
        // What one says of another is remembered for as long as keys live.
        let registry = at(&server, "?ttl=30s");
        let ours = instance("10.1.1.1:8091").with_meta("version", "2.3").with_weight(0.0);
        let mut registration = registry.register("default", ours.clone()).expect("valid");
        registered(&mut registration).await;
        let mut client = require!(SeataClient::start("redis", &server.address().to_string(), "default", &["db=0"]));
        assert_eq!(lookup(&mut client), json!({"addresses": ["10.1.1.1:8091"]}), "the hash is not in its way");

        client.register("10.9.9.2:8091");
        let view = see(&registry, "default", &["10.1.1.1:8091", "10.9.9.2:8091"]).await;
        assert_eq!(meta(&view, "10.1.1.1:8091", "version").as_deref(), Some("2.3"));
        let snapshot = view.snapshot.expect("a list");
        assert_eq!((snapshot.rejected, snapshot.notes.len()), (0, 0));
        let theirs = snapshot.instances.iter().find(|i| i.address.host() == "10.9.9.2").expect("theirs");
        assert_eq!((theirs.weight, theirs.metadata.len()), (1.0, 0), "no metadata is no error");
        assert_eq!(theirs.incarnation.as_str(), server.cli(&["GET", "registry.redis.default_10.9.9.2:8091"]));

        // It does not delete its key: its word counts for a while, so that the address does not come and go.
        let seen = registry.subscribe("default");
        client.unregister("10.9.9.2:8091");
        let told = Instant::now();
        see(&registry, "default", &["10.1.1.1:8091"]).await;
        assert!(told.elapsed() < Duration::from_secs(15), "the message is believed at once: {:?}", told.elapsed());
        assert_eq!(server.cli(&["EXISTS", "registry.redis.default_10.9.9.2:8091"]), "1");
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(addresses(&seen.current()), ["10.1.1.1:8091"]);
        // Ended at last, so is its key.
        drop(client);
        assert!(wait_until(SOON, || server.cli(&["EXISTS", "registry.redis.default_10.9.9.2:8091"]) == "0"));
        see(&registry, "default", &["10.1.1.1:8091"]).await;

        let mut client = require!(SeataClient::start("redis", &server.address().to_string(), "default", &["db=0"]));
        assert_eq!(lookup(&mut client), json!({"addresses": ["10.1.1.1:8091"]}));
        let mut second = registry.register("default", instance("10.1.1.2:8091")).expect("valid");
        registered(&mut second).await;
        let both = json!({"addresses": ["10.1.1.1:8091", "10.1.1.2:8091"]});
        assert!(wait_until(SOON, || lookup(&mut client) == both), "{}", lookup(&mut client));
        second.deregister().await;
        let one = json!({"addresses": ["10.1.1.1:8091"]});
        assert!(wait_until(SOON, || lookup(&mut client) == one), "{}", lookup(&mut client));
        registration.deregister().await;
        assert_eq!(server.cli(&["KEYS", "*"]), "", "nothing is left behind");
    });
}

/// Row "if the meta key is lost, the heartbeat revives only the live key", and both keys are refreshed together.
#[test]
fn a_lost_key_or_hash_is_written_again() {
    let server = require!(Redis::start(&[]));
    block_on(async {
        let registry = at(&server, "?ttl=4s");
        let wanted = instance("10.0.0.1:80").with_meta("version", "2");
        let mut registration = registry.register("c", wanted).expect("valid");
        registered(&mut registration).await;
        let (live, hash) = ("registry.redis.c_10.0.0.1:80", "registry.redis.c.meta_10.0.0.1:80");
        for key in [live, hash] {
            let left: i64 = server.cli(&["PTTL", key]).parse().expect("a number");
            assert!((1..=4000).contains(&left), "{key} lives {left} ms");
        }
        for key in [hash, live] {
            server.cli(&["DEL", key]);
            assert!(wait_until(SOON, || server.cli(&["EXISTS", live, hash]) == "2"), "{key} comes back");
            assert_eq!(server.cli(&["HGET", hash, "version"]), "2");
        }
        // Longer than the time to live: it is refreshed.
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert_eq!(server.cli(&["EXISTS", live, hash]), "2");
        registration.deregister().await;
        assert_eq!(server.cli(&["EXISTS", live, hash]), "0");
    });
}

/// Rows "metadata-only changes are ignored until the next message", "the meta key is built with the client's own cluster",
/// "one subscriber thread blocks on the first cluster".
#[test]
fn a_changed_hash_is_seen_without_a_message_in_every_cluster() {
    let server = require!(Redis::start(&[]));
    block_on(async {
        let registry = at(&server, "?ttl=2s");
        for cluster in ["one", "two", "three"] {
            let live = format!("registry.redis.{cluster}_10.0.0.1:80");
            let hash = format!("registry.redis.{cluster}.meta_10.0.0.1:80");
            server.cli(&["SET", &live, "7@elsewhere"]);
            server.cli(&["HSET", &hash, "env", "prod"]);
            see_if(&registry, cluster, "its metadata", |view| {
                meta(view, "10.0.0.1:80", "env").as_deref() == Some("prod")
            })
            .await;
            server.cli(&["HSET", &hash, "env", "test"]);
            see_if(&registry, cluster, "the change", |view| {
                meta(view, "10.0.0.1:80", "env").as_deref() == Some("test")
            })
            .await;
        }
        // Messages come for all of them, long before the next look.
        let quiet = at(&server, "?rescan=60s");
        let mut subscriptions = Vec::new();
        for cluster in ["one", "two", "three"] {
            see(&quiet, cluster, &["10.0.0.1:80"]).await;
            subscriptions.push((cluster, quiet.subscribe(cluster)));
        }
        let writer = at(&server, "?ttl=60s");
        let mut kept = Vec::new();
        for (cluster, seen) in &mut subscriptions {
            kept.push(writer.register(cluster, instance("10.0.0.2:80")).expect("valid"));
            let both = seen.wait_for(|view| addresses(view).len() == 2);
            tokio::time::timeout(SOON, both).await.expect("pushed").expect("open");
        }
    });
}

/// Row "stale hash fields survive re-registration".
#[test]
fn fields_of_an_earlier_life_do_not_stay() {
    let server = require!(Redis::start(&[]));
    block_on(async {
        server.cli(&["HSET", "registry.redis.c.meta_10.0.0.1:80", "canary", "true", "version", "1"]);
        let registry = at(&server, "");
        let mut registration =
            registry.register("c", instance("10.0.0.1:80").with_meta("version", "2")).expect("valid");
        registered(&mut registration).await;
        assert_eq!(server.cli(&["HGETALL", "registry.redis.c.meta_10.0.0.1:80"]), "version\n2");
        registration.update(instance("10.0.0.1:80")).expect("valid");
        assert!(wait_until(SOON, || server.cli(&["EXISTS", "registry.redis.c.meta_10.0.0.1:80"]) == "0"));
    });
}

/// Rows "cluster names containing `_`", "glob characters", "hosts containing `-`".
#[test]
fn odd_names_of_clusters_and_hosts_work() {
    let server = require!(Redis::start(&[]));
    block_on(async {
        let (writer, reader) = (at(&server, ""), at(&server, "?rescan=60s"));
        for cluster in ["a", "a_b", "a*", "[a]?\\", "a.b-c"] {
            see(&reader, cluster, &[]).await;
        }
        let mut kept = Vec::new();
        for (cluster, address) in [
            ("a", "10.0.0.1:80"),
            ("a_b", "tc-1.example-host:80"),
            ("a*", "10.0.0.3:80"),
            ("[a]?\\", "10.0.0.4:80"),
            ("a.b-c", "[2001:db8::1]:80"),
        ] {
            kept.push(writer.register(cluster, instance(address)).expect("valid"));
            see(&reader, cluster, &[address]).await;
        }
        let services = reader.services().await.expect("a list");
        assert_eq!(services, ["[a]?\\", "a", "a*", "a.b-c", "a_b"].map(Box::<str>::from));
        assert_eq!(server.cli(&["EXISTS", "registry.redis.a.b-c_2001:db8:0:0:0:0:0:1:80"]), "1");
        let error = writer.amend("a", &instance("a_b:80")).await.expect_err("no such host here");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    });
}

/// Row "a scan over a large shared keyspace can take minutes": it goes in steps, and messages do not wait for it.
#[test]
fn a_large_shared_keyspace_is_walked_in_steps() {
    let server = require!(Redis::start(&["--enable-debug-command", "yes"]));
    assert_eq!(server.cli(&["DEBUG", "POPULATE", "200000"]), "OK");
    server.cli(&["CONFIG", "RESETSTAT"]);
    block_on(async {
        let (writer, reader) = (at(&server, ""), at(&server, "?rescan=60s"));
        let mut registration = writer.register("c", instance("10.0.0.1:80")).expect("valid");
        registered(&mut registration).await;
        let _following = reader.subscribe("c");
        see(&reader, "c", &["10.0.0.1:80"]).await;
        let mut more = writer.register("c", instance("10.0.0.2:80")).expect("valid");
        registered(&mut more).await;
        see(&reader, "c", &["10.0.0.1:80", "10.0.0.2:80"]).await;
        let stats = server.cli(&["INFO", "commandstats"]);
        let calls = |command: &str| -> u64 {
            let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
            line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
        };
        assert_eq!(calls("keys"), 0);
        // 200,000 keys in steps of 500, and the reader walked once: what came later was announced.
        assert!((400..600).contains(&calls("scan")), "{} steps", calls("scan"));
    });
}

#[test]
fn users_passwords_and_databases_are_used() {
    let server = require!(Redis::start(&["--requirepass", "sesame"]));
    let cli = |arguments: &[&str]| server.cli(&[&["-a", "sesame"], arguments].concat());
    cli(&["ACL", "SETUSER", "seata", "on", ">open-up", "~registry.redis.*", "&registry.redis.*", "+@all"]);
    cli(&["ACL", "SETUSER", "deaf", "on", ">open-up", "~registry.redis.*", "resetchannels", "+@all"]);
    block_on(async {
        let url = |user: &str, rest: &str| format!("redis://{user}@{}{rest}", server.address());
        let registry = connect(&url("seata:open-up", "/3?ttl=2s"));
        let mut registration = registry.register("c", instance("10.0.0.1:80").with_meta("k", "v")).expect("valid");
        registered(&mut registration).await;
        assert_eq!(cli(&["-n", "3", "EXISTS", "registry.redis.c_10.0.0.1:80"]), "1");
        assert_eq!(cli(&["DBSIZE"]), "0");
        see(&connect(&url(":sesame", "/3")), "c", &["10.0.0.1:80"]).await;
        // Without channels there are no messages; looking does it.
        let deaf = connect(&url("deaf:open-up", "/3?ttl=2s"));
        see(&deaf, "c", &["10.0.0.1:80"]).await;
        registration.deregister().await;
        see(&deaf, "c", &[]).await;
        // Nor may it announce anything: others find it by looking, too.
        let mut silent = deaf.register("c", instance("10.0.0.2:80")).expect("valid");
        registered(&mut silent).await;
        see(&registry, "c", &["10.0.0.2:80"]).await;
        for (user, rest) in [("seata:wrong", ""), (":wrong", ""), ("seata:open-up", "?layout=plain")] {
            let error = connect(&url(user, rest)).instances("c").await.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Denied, "{user}{rest}: {error}");
            assert!(!format!("{error} {error:?}").contains("wrong@"), "no secret is shown: {error}");
        }
        let error = at(&server, "").instances("c").await.expect_err("nobody");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    });
}

#[test]
fn tls_is_spoken_and_an_unknown_authority_refused() {
    let scratch = Scratch::new("redis-tls");
    let certificate = require!(Certificate::issue(scratch.path()));
    let server = require!(Redis::start_tls(&certificate));
    let address = server.tls_address().expect("a port for it");
    block_on(async {
        let registry = connect(&format!("rediss://{address}?ca={}", certificate.ca.display()));
        let mut registration = registry.register("c", instance("10.0.0.1:80")).expect("valid");
        registered(&mut registration).await;
        see(&registry, "c", &["10.0.0.1:80"]).await;
        let url: RegistryUrl = format!("rediss://{address}").parse().expect("an address");
        // A machine that trusts nobody at all says so earlier.
        if let Ok(stranger) = Registry::connect(&url) {
            assert_eq!(stranger.instances("c").await.expect_err("no trust").kind(), ErrorKind::Unreachable);
        }
    });
}

/// A service that lost its last instance is still known, and ids without a key are tidied away.
#[test]
fn the_plain_layout_tells_empty_from_unknown_and_tidies_up() {
    let server = require!(Redis::start(&[]));
    block_on(async {
        let registry = at(&server, "?layout=plain&ttl=2s");
        let mut registration = registry.register("orders", instance("10.0.0.1:80").with_id("a")).expect("valid");
        registered(&mut registration).await;
        assert_eq!(server.cli(&["SMEMBERS", "metaroute:{orders}:index"]), "a");
        server.cli(&["SADD", "metaroute:{orders}:index", "ghost"]);
        server.cli(&["SET", "metaroute:{orders}:inst:bad", "{"]);
        server.cli(&["SADD", "metaroute:{orders}:index", "bad"]);
        let view = see_if(&registry, "orders", "a bad entry", |view| {
            view.snapshot.as_ref().is_some_and(|snapshot| snapshot.rejected == 1)
        })
        .await;
        assert_eq!(addresses(&view), ["10.0.0.1:80"]);
        assert!(wait_until(SOON, || !server.cli(&["SMEMBERS", "metaroute:{orders}:index"]).contains("ghost")));
        server.cli(&["DEL", "metaroute:{orders}:inst:bad"]);
        registration.deregister().await;
        let (snapshot, _) = registry.instances("orders").await.expect("an answer").expect("known");
        assert!(snapshot.instances.is_empty());
        assert_eq!(registry.instances("other").await.expect("an answer"), None);
        assert_eq!(registry.services().await.expect("a list"), [Box::<str>::from("orders")]);
    });
}

#[test]
fn the_newest_owner_of_an_address_wins_and_the_older_one_does_not_take_it_away() {
    let server = require!(Redis::start(&[]));
    block_on(async {
        for layout in ["seata", "plain"] {
            let rest = format!("?ttl=4s&layout={layout}");
            ownership::the_newest_wins(&at(&server, &rest), &at(&server, &rest)).await;
        }
    });
}

#[test]
fn an_instance_that_moves_to_another_address_is_there_once() {
    let server = require!(Redis::start(&[]));
    block_on(async { ownership::who_moves_is_there_once(&at(&server, "")).await });
}

#[test]
fn an_owner_that_was_away_does_not_take_its_address_back() {
    let server = require!(Redis::start(&[]));
    let url = |server| format!("redis://{server}?ttl=4s");
    block_on(ownership::who_was_away_does_not_take_it_back(server.address(), url));
}

#[test]
fn others_can_change_and_remove_an_instance_without_becoming_its_owner() {
    let server = require!(Redis::start(&[]));
    block_on(async {
        for layout in ["seata", "plain"] {
            let rest = format!("?ttl=3s&layout={layout}");
            ownership::others_change_and_remove(&at(&server, &rest), &at(&server, &rest)).await;
        }
    });
}

/// Where the sentinel says the master is.
fn master_of(sentinel: &Sentinel) -> String {
    sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]).replace('\n', ":")
}

#[test]
fn sentinels_are_asked_where_the_master_is_and_a_failover_loses_nothing() {
    let master = require!(Redis::start(&[]));
    let (ip, port) = (master.address().ip().to_string(), master.address().port().to_string());
    let replica = require!(Redis::start(&["--replicaof", &format!("{ip} {port}")]));
    let mut servers = [master, replica];
    assert!(wait_until(SOON, || servers[1].role().contains("connected")));
    let mut sentinels = Vec::new();
    for _ in 0..3 {
        sentinels.push(require!(Sentinel::start(servers[0].address(), 2, &[])));
    }
    let complete = |sentinel: &Sentinel| {
        let said = sentinel.cli(&["SENTINEL", "MASTER", "mymaster"]);
        let field = |name: &str| said.lines().skip_while(|line| *line != name).nth(1).map(str::to_owned);
        field("num-slaves").as_deref() == Some("1") && field("num-other-sentinels").as_deref() == Some("2")
    };
    assert!(wait_until(SOON, || sentinels.iter().all(complete)), "they know each other and the replica");
    // One that is gone stands first.
    let dead = Proxy::start(sentinels[0].address());
    dead.cut();
    let hosts = format!("{},{},{}", dead.address(), sentinels[1].address(), sentinels[2].address());
    let url = |rest: &str| format!("redis://{hosts}/0?sentinel=mymaster&ttl=3s{rest}");
    block_on(async {
        // Killed, and asked to go: both ways a master goes.
        for (layout, key, killed) in
            [("seata", "registry.redis.c_10.0.0.1:80", true), ("plain", "metaroute:{c}:inst:10.0.0.1:80", false)]
        {
            let rest = format!("&layout={layout}");
            let (writer, reader) = (connect(&url(&rest)), connect(&url(&rest)));
            let mut first = writer.register("c", instance("10.0.0.1:80").with_meta("k", "v")).expect("valid");
            registered(&mut first).await;
            let mut seen = reader.subscribe("c");
            see(&reader, "c", &["10.0.0.1:80"]).await;
            let before = master_of(&sentinels[1]);
            let at = usize::from(servers[1].address().to_string() == before);
            assert_eq!(servers[at].cli(&["EXISTS", key]), "1", "{before}");
            if killed {
                servers[at].server().kill();
            } else {
                let asked = || sentinels[1].cli(&["SENTINEL", "FAILOVER", "mymaster"]) == "OK";
                assert!(wait_until(SOON, asked));
            }
            let moved = || sentinels.iter().all(|sentinel| master_of(sentinel) != before);
            assert!(wait_until(Duration::from_secs(60), moved), "another master is chosen");
            let other = &servers[1 - at];
            assert!(wait_until(SOON, || other.cli(&["EXISTS", key]) == "1"), "{layout}: it is registered there");
            registered(&mut first).await;
            let mut second = writer.register("c", instance("10.0.0.2:80")).expect("valid");
            registered(&mut second).await;
            let both = seen.wait_for(|view| addresses(view).len() == 2);
            tokio::time::timeout(SOON, both).await.expect("the subscriber converges").expect("open");
            second.deregister().await;
            let one = seen.wait_for(|view| addresses(view).len() == 1);
            tokio::time::timeout(SOON, one).await.expect("and goes on").expect("open");
            if killed {
                servers[at].server().start_again().expect("Redis starts again");
            }
            // As another master's replica, for the next failover.
            let replica = || servers[at].role().starts_with("slave") && complete_again(&sentinels);
            assert!(wait_until(Duration::from_secs(60), replica), "the old one follows");
            first.deregister().await;
            see(&reader, "c", &[]).await;
        }
        let error = connect(&url("").replace("mymaster", "other")).instances("c").await.expect_err("no such master");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "one was not asked: {error}");
        let living = format!("redis://{}?sentinel=other", sentinels[2].address());
        let error = connect(&living).instances("c").await.expect_err("no such master");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("knows no master `other`"), "{error}");
    });
}

/// Whether the sentinels see a replica that could take over.
fn complete_again(sentinels: &[Sentinel]) -> bool {
    sentinels.iter().all(|sentinel| {
        let said = sentinel.cli(&["SENTINEL", "REPLICAS", "mymaster"]);
        let field = |name: &str| said.lines().skip_while(|line| *line != name).nth(1).map(str::to_owned);
        field("flags").as_deref() == Some("slave") && field("master-link-status").as_deref() == Some("ok")
    })
}

/// Sentinels have users of their own, and a master that is cut off with us is given up when they say so.
#[test]
fn sentinels_want_a_password_and_are_listened_to() {
    let old = require!(Redis::start(&["--requirepass", "sesame"]));
    let new = require!(Redis::start(&["--requirepass", "sesame"]));
    let options = ["requirepass open-up", "sentinel auth-pass mymaster sesame"];
    let sentinel = require!(Sentinel::start(old.address(), 1, &options));
    let url = |rest: &str| format!("redis://:sesame@{}?sentinel=mymaster&ttl=3s{rest}", sentinel.address());
    block_on(async {
        for rest in ["", "&sentinel-password=wrong"] {
            let error = connect(&url(rest)).instances("c").await.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Denied, "{rest}: {error}");
        }
        let registry = connect(&url("&sentinel-password=open-up"));
        let mut registration = registry.register("c", instance("10.0.0.1:80")).expect("valid");
        registered(&mut registration).await;
        // The old one is well and was not told: only the sentinel says that it is another one now.
        let say = |arguments: &[&str]| sentinel.cli(&[&["-a", "open-up", "SENTINEL"], arguments].concat());
        say(&["REMOVE", "mymaster"]);
        let port = new.address().port().to_string();
        say(&["MONITOR", "mymaster", "127.0.0.1", &port, "1"]);
        let there = || new.cli(&["-a", "sesame", "EXISTS", "registry.redis.c_10.0.0.1:80"]) == "1";
        assert!(wait_until(SOON, there), "it is registered at the new one");
        see(&registry, "c", &["10.0.0.1:80"]).await;
    });
}

#[test]
fn a_cluster_is_used_slot_by_slot_and_survives_failovers() {
    let mut cluster = require!(Cluster::start());
    let hosts = cluster.nodes.iter().take(2).map(|node| node.address().to_string()).collect::<Vec<_>>().join(",");
    let url = format!("redis://{hosts}?cluster=true&layout=plain&ttl=3s");
    let alone = format!("redis://{}?layout=plain", cluster.nodes[0].address());
    // Each on another master, most likely.
    let services: Vec<String> = (0..8).map(|n| format!("service-{n}")).collect();
    block_on(async {
        let (writer, reader) = (connect(&url), connect(&url));
        let mut kept = Vec::new();
        for service in &services {
            kept.push(writer.register(service, instance("10.0.0.1:80").with_meta("k", "v")).expect("valid"));
        }
        for (registration, service) in kept.iter_mut().zip(&services) {
            registered(registration).await;
            see(&reader, service, &["10.0.0.1:80"]).await;
        }
        let names: Vec<String> = reader.services().await.expect("a list").iter().map(ToString::to_string).collect();
        assert_eq!(names, services);
        let masters = cluster.masters();
        let filled = masters.iter().filter(|at| cluster.nodes[**at].cli(&["DBSIZE"]) != "0").count();
        assert_eq!((masters.len(), filled), (3, 3), "every master has something");
        ownership::others_change_and_remove(&connect(&url), &reader).await;
        // Who does not say that it is a cluster is told what to write.
        let told = first_refusal(&alone, &services).await;
        assert!(told.contains("cluster=true&layout=plain"), "{told}");

        let mut seen: Vec<_> = services.iter().map(|service| reader.subscribe(service)).collect();
        // A replica takes over while its master lives: what was there has moved.
        let replica = (0..6).find(|at| !masters.contains(at)).expect("a replica");
        assert_eq!(cluster.nodes[replica].cli(&["CLUSTER", "FAILOVER"]), "OK");
        assert!(wait_until(SOON, || cluster.masters().contains(&replica)));
        // And one dies.
        let victim = *cluster.masters().iter().find(|at| **at != replica).expect("another one");
        cluster.nodes[victim].server().kill();
        assert!(wait_until(SOON, || cluster.masters().len() == 3), "it is replaced");
        for (service, seen) in services.iter().zip(&mut seen) {
            let mut second = writer.register(service, instance("10.0.0.2:80")).expect("valid");
            registered(&mut second).await;
            let both = seen.wait_for(|view| addresses(view).len() == 2);
            let found = tokio::time::timeout(SOON, both).await;
            found.unwrap_or_else(|_| panic!("{service}: {:?}", seen.current())).expect("open");
            second.deregister().await;
            see(&connect(&url), service, &["10.0.0.1:80"]).await;
        }
        for registration in kept {
            registration.deregister().await;
        }
        for service in &services {
            see(&reader, service, &[]).await;
        }
        let error = writer.amend("}x", &instance("10.0.0.1:80")).await.expect_err("keys on several nodes");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    });
}

/// What a node says of a service that it has not.
async fn first_refusal(url: &str, services: &[String]) -> String {
    let registry = connect(url);
    for service in services {
        if let Err(error) = registry.instances(service).await {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            return error.to_string();
        }
    }
    panic!("one node has everything");
}
