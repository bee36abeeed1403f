//! Nacos' own clients and Seata's, in both directions.

use super::*;

/// An instance as one of Nacos' clients shows it.
fn shown(list: &str) -> Vec<Value> {
    serde_json::from_str::<Value>(list).ok().and_then(|list| list.as_array().cloned()).unwrap_or_default()
}

fn eventually(what: &str, mut look: impl FnMut() -> String, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let mut last = String::new();
    let found = backoff_poll(SOON, || {
        last = look();
        Some(shown(&last)).filter(|list| wanted(list))
    });
    found.unwrap_or_else(|| panic!("{what}; last: {last}"))
}

/// What a client and we say about each other's instances on one server.
fn both_ways(http: u16, mut client: NacosClient, prefix: &str) {
    let (ours, theirs) = (format!("{prefix}-ours"), format!("{prefix}-theirs"));
    let url = format!("nacos://127.0.0.1:{http}?group=G1");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let registry = runtime.block_on(async { connect(&url) });

    // They see ours: weight, cluster, metadata, and every change.
    assert_eq!(client.ask(&format!("subscribe {ours} G1")).replace(' ', ""), r#"{"subscribed":true}"#);
    let first = instance("10.0.0.1:8091")
        .with_weight(3.0)
        .with_cluster("hz")
        .with_meta("version", "2.3")
        .with_meta("stadt", "Zürich 東京");
    let (one, two) = runtime.block_on(async {
        (
            register(&registry, &ours, first.clone()).await,
            register(&registry, &ours, instance("10.0.0.2:8091").with_weight(0.0)).await,
        )
    });
    let pushed =
        eventually("they see both of ours", || client.ask(&format!("pushed {ours} G1")), |list| list.len() == 2);
    assert_eq!(pushed[0]["address"], "10.0.0.1:8091");
    assert_eq!(pushed[0]["cluster"], "hz");
    assert_eq!(pushed[0]["weight"], 3.0);
    assert_eq!(pushed[0]["metadata"]["version"], "2.3");
    assert_eq!(pushed[0]["metadata"]["stadt"], "Zürich 東京");
    assert_eq!(pushed[0]["ephemeral"], true);
    assert_eq!(pushed[1]["weight"], 0.0, "weight 0 is there for who looks at all");
    one.update(first.with_meta("version", "2.4")).expect("valid");
    eventually(
        "they see the change",
        || client.ask(&format!("pushed {ours} G1")),
        |list| list.len() == 2 && list[0]["metadata"]["version"] == "2.4",
    );
    runtime.block_on(two.deregister());
    eventually("they see it go", || client.ask(&format!("all {ours} G1")), |list| list.len() == 1);

    // We see theirs: one, then the batch that replaces it.
    let said = client.ask(&format!("register {theirs} G1 10.0.1.1 8091 hz 5 version=3.1 zone=z1"));
    assert_eq!(said.replace(' ', ""), r#"{"registered":true}"#);
    runtime.block_on(async {
        let view = see(&registry, &theirs, &["10.0.1.1:8091"]).await;
        let seen = &view.snapshot.expect("a list").instances[0];
        assert_eq!((seen.weight, &*seen.cluster, &*seen.locality.zone), (5.0, "hz", "z1"));
        assert_eq!(seen.metadata.get("version").map(|v| v.to_text()), Some("3.1".into()));
        assert!(seen.healthy && seen.enabled);
    });
    let said = client.ask(&format!("deregister {theirs} G1 10.0.1.1 8091 hz"));
    assert_eq!(said.replace(' ', ""), r#"{"deregistered":true}"#);
    runtime.block_on(see(&registry, &theirs, &[]));
    let said = client.ask(&format!("batch {theirs} G1 10.0.1.2:8091 10.0.1.3:8091"));
    assert_eq!(said.replace(' ', ""), r#"{"registered":true}"#);
    runtime.block_on(async {
        see(&registry, &theirs, &["10.0.1.2:8091", "10.0.1.3:8091"]).await;
        // A client that is gone takes its instances along.
        drop(client);
        see(&registry, &theirs, &[]).await;
        end([registry]).await;
    });
}

#[test]
fn the_java_client_and_we_see_each_other_on_r_nacos() {
    let server = require!(Nacos::start());
    let client = require!(NacosClient::java(server.port(), "public", None));
    both_ways(server.port(), client, "java");
}

#[test]
fn the_python_client_and_we_see_each_other_on_r_nacos() {
    let server = require!(Nacos::start());
    let client = require!(NacosClient::python(server.port(), "public", None));
    both_ways(server.port(), client, "python");
}

/// Persistent instances and what operators set go over HTTP on r-nacos, and its own state agrees.
#[test]
fn r_nacos_keeps_persistent_instances_and_what_operators_set() {
    let mut server = require!(Nacos::start());
    let url = format!("nacos://127.0.0.1:{}", server.port());
    block_on(async {
        let (lasting, owner) = (connect(&format!("{url}?ephemeral=false")), connect(&url));
        lasting.put("lasting", &instance("127.0.0.1:9").with_meta("k", "v")).await.expect("it is put");
        see(&owner, "lasting", &["127.0.0.1:9"]).await;
        let _kept = register(&owner, "amended", instance("10.0.0.1:80").with_weight(2.0).with_meta("a", "1")).await;
        let view = see(&lasting, "amended", &["10.0.0.1:80"]).await;
        let seen = view.snapshot.expect("a list").instances[0].clone();
        connect(&url).amend("amended", &seen.with_weight(0.0).with_meta("b", "2")).await.expect("it is changed");
        let view = see_that(&owner, "amended", "the change", |view| {
            view.snapshot.as_ref().is_some_and(|s| s.instances.first().is_some_and(|i| i.weight == 0.0))
        })
        .await;
        assert_eq!(view.snapshot.expect("a list").instances[0].metadata.len(), 2);
        end([owner]).await;
        see(&lasting, "amended", &[]).await;
        end([lasting]).await;
    });
    server.server().start_again().expect("it starts again");
    block_on(async {
        let registry = connect(&format!("{url}?ephemeral=false"));
        see(&registry, "lasting", &["127.0.0.1:9"]).await;
        registry.remove("lasting", &InstanceId::new("127.0.0.1:9")).await.expect("anybody may take it away");
        see(&registry, "lasting", &[]).await;
        end([registry]).await;
    });
}

/// The fake is only worth what the original's client makes of it.
#[test]
fn the_java_client_takes_the_strict_server_for_a_real_one() {
    let server = Fake::start(Manners::default());
    let mut client = require!(NacosClient::java(server.http().port(), "public", None));
    // The facts that the real server showed to this client.
    let long = "v".repeat(1024);
    let refused = client.ask(&format!("register facts DEFAULT_GROUP 10.0.0.1 80 DEFAULT 1 k={long}"));
    assert_eq!(
        refused,
        r#"{"error":400,"message":"Param check invalid:Param 'Metadata' is illegal, the param length should not exceed 1024."}"#
    );
    let at = &long[1..];
    assert_eq!(
        client.ask(&format!("register facts DEFAULT_GROUP 10.0.0.1 80 DEFAULT 0 k={at}")),
        r#"{"registered":true}"#
    );
    assert_eq!(server.has("facts"), ["10.0.0.1:80"]);
    client.ask("register facts DEFAULT_GROUP 10.0.0.2 80 DEFAULT 1");
    assert_eq!(server.has("facts"), ["10.0.0.2:80"], "the second registration replaced the first");
    client.ask("batch facts DEFAULT_GROUP 10.0.0.3:80 10.0.0.4:80 10.0.0.5:80");
    assert_eq!(server.has("facts"), ["10.0.0.3:80", "10.0.0.4:80", "10.0.0.5:80"]);
    let mixed = client.ask("persistent facts DEFAULT_GROUP 10.0.0.6 80 DEFAULT 1");
    assert!(
        mixed
            .contains("Current service DEFAULT_GROUP@@facts is ephemeral service, can't register persistent instance."),
        "{mixed}"
    );
    both_ways(server.http().port(), client, "strict");
}

#[test]
fn logins_work_on_r_nacos_for_us_and_for_the_java_client() {
    let server = require!(Nacos::start_with_login("operator", "s3cret-pass"));
    let mut client = require!(NacosClient::java(server.port(), "public", Some(("operator", "s3cret-pass"))));
    block_on(async {
        let registry = connect(&format!("nacos://operator:s3cret-pass@127.0.0.1:{}", server.port()));
        let _kept = register(&registry, "guarded", instance("10.0.0.1:80")).await;
        see(&registry, "guarded", &["10.0.0.1:80"]).await;
        let wrong = connect(&format!("nacos://operator:wrong@127.0.0.1:{}", server.port()));
        assert_eq!(wrong.services().await.expect_err("refused").kind(), ErrorKind::Denied);
        let anonymous = connect(&format!("nacos://127.0.0.1:{}", server.port()));
        assert_eq!(anonymous.services().await.expect_err("refused").kind(), ErrorKind::Denied);
        eventually("it sees ours", || client.ask("all guarded DEFAULT_GROUP"), |list| list.len() == 1);
        end([registry, wrong, anonymous]).await;
    });
}

/// Seata's layout: service `seata-server`, group `SEATA_GROUP`, the cluster restricts.
#[test]
fn seatas_java_client_finds_ours_and_we_find_its() {
    let server = require!(Nacos::start());
    let address = format!("127.0.0.1:{}", server.port());
    let mut seata = require!(SeataClient::start(
        "nacos",
        &address,
        "default",
        &["application=seata-server", "group=SEATA_GROUP", "cluster=default"]
    ));
    block_on(async {
        let (here, elsewhere) = (
            connect(&format!("nacos://{address}/public?group=SEATA_GROUP&cluster=default")),
            connect(&format!("nacos://{address}/public?group=SEATA_GROUP&cluster=other")),
        );
        let ours = instance("10.5.0.1:8091").with_meta("version", "2.3").with_meta("weight", "5");
        let _ours = register(&here, "seata-server", ours).await;
        let _other = register(&elsewhere, "seata-server", instance("10.5.0.2:8091")).await;
        let mut last = String::new();
        let found = backoff_poll(SOON, || {
            last = seata.lookup();
            last.contains("10.5.0.1:8091").then_some(())
        });
        assert!(found.is_some(), "it finds ours: {last}");
        assert!(!last.contains("10.5.0.2"), "and not the other cluster's: {last}");
        seata.register("10.5.0.9:8091");
        let view = see(&here, "seata-server", &["10.5.0.1:8091", "10.5.0.9:8091"]).await;
        let snapshot = view.snapshot.expect("a list");
        let theirs = snapshot.instances.iter().find(|i| i.address.port() == 8091 && i.address.host() == "10.5.0.9");
        let theirs = theirs.expect("it is there");
        assert_eq!((theirs.metadata.len(), &*theirs.cluster), (0, "default"), "no metadata is no metadata");
        see(&elsewhere, "seata-server", &["10.5.0.2:8091"]).await;
        seata.unregister("10.5.0.9:8091");
        see(&here, "seata-server", &["10.5.0.1:8091"]).await;
        end([here, elsewhere]).await;
    });
}
