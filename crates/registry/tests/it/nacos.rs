//! Nacos: r-nacos as a real server, a strict fake with the Java server's rules, and Nacos' own clients.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use metaroute_core::instance::{Instance, InstanceId};
use metaroute_core::resilience::backoff::Policy;
use metaroute_registry::{ErrorKind, Options, Registration, RegistrationState, Registry, RegistryUrl, State, View};
use serde_json::{Value, json};
use test_support::nacos::{Nacos, NacosClient};
use test_support::seata_client::SeataClient;
use test_support::{Proxy, backoff_poll, require, wait_until};

use crate::conformance::{self, Subject, Traits};
use fake::{Fake, Manners};

mod fake;
mod fake_http;

const SOON: Duration = Duration::from_secs(30);

fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

fn connect(url: &str) -> Registry {
    let url: RegistryUrl = url.parse().expect("an address");
    let policy: Policy = "exponential:100ms,2,1s,full".parse().expect("a valid policy");
    #[allow(clippy::needless_update, reason = "options may grow")]
    let options = Options { policy, ..Options::default() };
    Registry::connect_with(&url, options).expect("this build has Nacos")
}

fn instance(address: &str) -> Instance {
    Instance::new(address.parse().expect("an address"))
}

async fn registered(registration: &mut Registration) {
    tokio::time::timeout(SOON, registration.registered()).await.expect("in time").expect("taken");
}

async fn register(registry: &Registry, service: &str, instance: Instance) -> Registration {
    let mut registration = registry.register(service, instance).expect("valid");
    registered(&mut registration).await;
    registration
}

fn addresses(view: &View) -> BTreeSet<String> {
    view.snapshot.iter().flat_map(|snapshot| &snapshot.instances).map(|i| i.address.to_string()).collect()
}

/// Waits for a view of a service, or panics with the last one.
async fn see_that(registry: &Registry, service: &str, what: &str, wanted: impl Fn(&View) -> bool) -> View {
    let mut subscription = registry.subscribe(service);
    match tokio::time::timeout(SOON, subscription.wait_for(|view| wanted(view))).await {
        Ok(view) => view.expect("the registry is open"),
        Err(_) => panic!("{service}: not seen: {what}; last: {:?}", subscription.current()),
    }
}

async fn see(registry: &Registry, service: &str, wanted: &[&str]) -> View {
    let wanted: BTreeSet<String> = wanted.iter().map(|&address| address.to_owned()).collect();
    see_that(registry, service, &format!("{wanted:?}"), |view| {
        matches!(view.state, State::Fresh | State::UnknownService) && addresses(view) == wanted
    })
    .await
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < SOON, "not within {SOON:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn end(registries: impl IntoIterator<Item = Registry>) {
    for registry in registries {
        assert!(registry.shutdown(Duration::from_secs(20)).await, "shutdown took too long");
    }
}

#[test]
fn r_nacos_conforms() {
    let mut server = require!(Nacos::start());
    let http = server.port();
    conformance::run(Subject {
        name: "r-nacos",
        server: SocketAddr::from(([127, 0, 0, 1], server.grpc_port())),
        url: Box::new(move |grpc| format!("nacos://127.0.0.1:{http}?grpc-port={}", grpc.port())),
        restart: Box::new(move || server.server().start_again().expect("it starts again")),
        gone_within: Duration::from_secs(20),
        seen_within: Duration::from_secs(20),
        // It leaves out instances that are switched off.
        traits: Traits { switched_off: false, unknown_service: true, ..Traits::default() },
    });
}

#[test]
fn a_strict_server_conforms() {
    let mut server = Fake::start(Manners { push_delay: Duration::from_millis(500), ..Manners::default() });
    let http = server.http().port();
    conformance::run(Subject {
        name: "nacos (strict fake)",
        server: server.grpc(),
        url: Box::new(move |grpc| format!("nacos://127.0.0.1:{http}?grpc-port={}", grpc.port())),
        restart: Box::new(move || server.start_again()),
        gone_within: Duration::from_secs(20),
        seen_within: Duration::from_secs(20),
        traits: Traits { unknown_service: true, ..Traits::default() },
    });
}

#[test]
fn r_nacos_conforms_over_http() {
    let mut server = require!(Nacos::start());
    conformance::run(Subject {
        name: "r-nacos over HTTP",
        server: SocketAddr::from(([127, 0, 0, 1], server.port())),
        url: Box::new(|http| format!("nacos://{http}?api=http&ttl=3s&poll=200ms")),
        restart: Box::new(move || server.server().start_again().expect("it starts again")),
        // It looks at its own times and not at those of the metadata.
        gone_within: Duration::from_secs(60),
        seen_within: Duration::from_secs(20),
        traits: Traits { switched_off: false, usual_ttl: Some(Duration::from_secs(15)), ..Traits::default() },
    });
}

#[test]
fn a_strict_server_conforms_over_http() {
    let mut server = Fake::start(Manners::default());
    conformance::run(Subject {
        name: "nacos (strict fake) over HTTP",
        server: server.http(),
        url: Box::new(|http| format!("nacos://{http}?api=http&ttl=3s&poll=200ms")),
        restart: Box::new(move || server.start_again()),
        gone_within: Duration::from_secs(20),
        seen_within: Duration::from_secs(20),
        // Version 3 leaves out instances that are switched off, and services are listed by version 1.
        traits: Traits { switched_off: false, usual_ttl: Some(Duration::from_secs(15)), ..Traits::default() },
    });
}

mod facts;
mod foreign;
