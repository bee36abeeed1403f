//! SOFARegistry 6.3.0 and its own Java client. The server takes most of a minute to start, so one test uses one for all.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use metaroute_registry::{ErrorKind, RegistrationState, State};
use test_support::require;
use test_support::sofa::{Sofa, SofaClient};

use crate::client::{SOON, await_view, connect, instance, lists, register};
use crate::conformance::{self, Subject, Traits};

#[test]
fn on_a_real_server() {
    let server = require!(Sofa::start());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    // The server closes a connection on which nothing is said for 45 s.
    let quiet = std::time::Instant::now();
    let (registry, idle, mut seen) = runtime.block_on(async {
        let registry = connect(&format!("sofa://{}", server.http()));
        let idle = register(&registry, "idle", instance("10.4.0.1:80")).await;
        let mut seen = registry.subscribe("idle");
        await_view(&mut seen, "it", lists(&["10.4.0.1:80"])).await;
        (registry, idle, seen)
    });
    if !their_client_and_we_see_each_other(&server, &runtime) {
        return;
    }
    runtime.block_on(async {
        scopes_groups_and_services(&server).await;
        addresses_alone(&server).await;
        unknown_is_not_empty(&server).await;
        tokio::time::sleep(Duration::from_secs(50).saturating_sub(quiet.elapsed())).await;
        assert!(lists(&["10.4.0.1:80"])(&seen.current()), "{:?}", seen.current());
        assert!(matches!(idle.state(), RegistrationState::Registered), "{:?}", idle.state());
        idle.deregister().await;
        await_view(&mut seen, "none, over the same connection", lists(&[])).await;
        registry.shutdown(SOON).await;
    });
    let (bolt, server) = (server.bolt(), Arc::new(Mutex::new(server)));
    conformance::run(Subject {
        name: "sofa",
        server: bolt,
        url: Box::new(|server| format!("sofa://{server}?direct=true")),
        restart: Box::new(move || {
            let mut server = server.lock().expect("free");
            server.server().stop();
            server.server().start_again().expect("it comes back");
        }),
        gone_within: Duration::from_secs(40),
        seen_within: SOON,
        traits: Traits { unknown_service: true, list: false, ..Traits::default() },
    });
}

/// Whether their client could be had.
fn their_client_and_we_see_each_other(server: &Sofa, runtime: &tokio::runtime::Runtime) -> bool {
    let service = "com.example.Echo:1.0@DEFAULT";
    let mut java = match SofaClient::start(server.http(), "DEFAULT_GROUP", service) {
        Ok(java) => java,
        Err(missing) => {
            missing.report(module_path!());
            return false;
        }
    };
    let registry = runtime.block_on(async { connect(&format!("sofa://{}", server.http())) });
    let mut seen = runtime.block_on(async { registry.subscribe(service) });
    // Theirs, as SOFARPC writes it.
    java.publish(&["bolt://10.0.0.1:12200?zone=z1&version=1.0&weight=100"]);
    let view = runtime.block_on(await_view(&mut seen, "theirs", lists(&["10.0.0.1:12200"])));
    let theirs = &view.snapshot.expect("a list").instances[0];
    assert_eq!(&*theirs.locality.zone, "z1");
    assert_eq!(theirs.metadata.get("version"), Some(&"1.0".into()));
    java.publish(&["bolt://10.0.0.1:12200?version=2.0", "10.0.0.2:12200"]);
    runtime.block_on(await_view(&mut seen, "theirs, republished", lists(&["10.0.0.1:12200", "10.0.0.2:12200"])));
    java.unpublish();
    runtime.block_on(await_view(&mut seen, "none", lists(&[])));
    // Ours.
    java.subscribe();
    let mine = instance("10.9.9.9:1").with_meta("from", "us").with_meta("m", "你");
    let ours = runtime.block_on(async {
        let mut mine = mine.clone();
        mine.incarnation = metaroute_core::instance::Incarnation::new("7");
        register(&registry, service, mine).await
    });
    java.wait_for_push("10.9.9.9:1?from=us&m=%E4%BD%A0&metaroute-incarnation=7");
    runtime.block_on(ours.deregister());
    java.wait_for_push("");
    let services = runtime.block_on(registry.services()).expect("listed");
    assert!(services.iter().any(|name| **name == *service), "{services:?}");
    runtime.block_on(registry.shutdown(SOON));
    true
}

async fn scopes_groups_and_services(server: &Sofa) {
    let at = |rest: &str| connect(&format!("sofa://{}?{rest}", server.http()));
    let (here, nowhere) = (at("group=G1"), at("group=G1&zone=ZONEB"));
    let other_zone = connect(&format!("sofa://{}?direct=true&group=G1&zone=ZONEB", server.bolt()));
    let (zone_only, other_group) = (at("group=G1&scope=zone"), at("group=G2"));
    let (multi, empty) = (at("group=G1&multi=true"), at("group=G2&multi=true"));
    let near = register(&here, "scoped", instance("10.1.0.1:80")).await;
    let error = nowhere.instances("scoped").await.expect_err("no session server is in that zone");
    assert!(error.to_string().contains("ZONEB"), "{error}");
    let far = register(&other_zone, "scoped", instance("10.1.0.2:80")).await;
    await_view(&mut here.subscribe("scoped"), "both, of all zones", lists(&["10.1.0.1:80", "10.1.0.2:80"])).await;
    await_view(&mut zone_only.subscribe("scoped"), "the near one", lists(&["10.1.0.1:80"])).await;
    // The form for several data centres; no server here is of the other zone.
    await_view(&mut multi.subscribe("scoped"), "the one of a known zone", lists(&["10.1.0.1:80"])).await;
    for other in [&other_group, &empty] {
        assert_eq!(other.instances("scoped").await.expect("answered"), None, "another group knows nothing of it");
    }
    // What another connection published is not ours to take away, and something that is not there is.
    let error = zone_only.remove("scoped", &"10.1.0.1:80".into()).await.expect_err("not ours");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    other_group.remove("scoped", &"10.1.0.1:80".into()).await.expect("nothing to do");
    drop((near, far));
    for registry in [here, nowhere, other_zone, zone_only, multi, empty, other_group] {
        registry.shutdown(SOON).await;
    }
}

async fn addresses_alone(server: &Sofa) {
    let registry = connect(&format!("sofa://{}?layout=seata&group=SEATA_GROUP", server.http()));
    let plain = register(&registry, "default", instance("10.2.0.1:8091")).await;
    await_view(&mut registry.subscribe("default"), "it", lists(&["10.2.0.1:8091"])).await;
    let mut refused = registry.register("default", instance("10.2.0.2:8091").with_meta("env", "x")).expect("sent");
    let error = refused.registered().await.expect_err("metadata has no place");
    assert!(error.to_string().contains("`env`"), "{error}");
    drop((plain, refused));
    registry.shutdown(SOON).await;
}

async fn unknown_is_not_empty(server: &Sofa) {
    let registry = connect(&format!("sofa://{}", server.http()));
    let mut seen = registry.subscribe("later");
    await_view(&mut seen, "unknown", |view| view.state == State::UnknownService).await;
    let registration = register(&registry, "later", instance("10.3.0.1:80")).await;
    await_view(&mut seen, "one", lists(&["10.3.0.1:80"])).await;
    registration.deregister().await;
    await_view(&mut seen, "empty", lists(&[])).await;
    registry.shutdown(SOON).await;
}
