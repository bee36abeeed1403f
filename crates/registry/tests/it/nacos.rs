//! Nacos: r-nacos as a real server, a strict fake with the Java server's rules, and Nacos' own clients.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use metaroute_core::instance::InstanceId;
use metaroute_registry::{ErrorKind, RegistrationState, Registry, RegistryUrl, State, View};
use serde_json::{Value, json};
use test_support::nacos::{Nacos, NacosClient};
use test_support::seata_client::SeataClient;
use test_support::{Proxy, backoff_poll, require, wait_until};

use crate::client::{SOON, addresses, block_on, connect, instance, only, register, registered, see, see_that};
use crate::conformance::{self, Subject, Traits};
use fake::{Fake, Manners};

mod fake;
mod fake_http;

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
        gone_within: Duration::from_secs(40),
        seen_within: SOON,
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
        gone_within: Duration::from_secs(40),
        seen_within: SOON,
        traits: Traits { unknown_service: true, ..Traits::default() },
    });
}

#[test]
fn r_nacos_conforms_over_http() {
    let mut server = require!(Nacos::start());
    conformance::run(Subject {
        name: "r-nacos over HTTP",
        server: SocketAddr::from(([127, 0, 0, 1], server.port())),
        url: Box::new(|http| format!("nacos://{http}?api=http&ttl=6s&poll=200ms")),
        restart: Box::new(move || server.server().start_again().expect("it starts again")),
        // It looks at its own times and not at those of the metadata.
        gone_within: Duration::from_secs(60),
        seen_within: SOON,
        traits: Traits { switched_off: false, usual_ttl: Some(Duration::from_secs(15)), ..Traits::default() },
    });
}

#[test]
fn a_strict_server_conforms_over_http() {
    let mut server = Fake::start(Manners::default());
    conformance::run(Subject {
        name: "nacos (strict fake) over HTTP",
        server: server.http(),
        url: Box::new(|http| format!("nacos://{http}?api=http&ttl=6s&poll=200ms")),
        restart: Box::new(move || server.start_again()),
        gone_within: Duration::from_secs(40),
        seen_within: SOON,
        // Version 3 leaves out instances that are switched off, and services are listed by version 1.
        traits: Traits { switched_off: false, usual_ttl: Some(Duration::from_secs(15)), ..Traits::default() },
    });
}

mod facts;
mod foreign;
