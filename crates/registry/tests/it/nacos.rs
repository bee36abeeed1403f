//! Nacos: r-nacos as a real server, and a strict fake with the Java server's rules.

use std::time::Duration;

use test_support::nacos::Nacos;

use crate::conformance::{self, Subject, Traits};

#[test]
fn r_nacos_conforms() {
    let mut server = test_support::require!(Nacos::start());
    let http = server.port();
    let grpc = std::net::SocketAddr::from(([127, 0, 0, 1], server.grpc_port()));
    conformance::run(Subject {
        name: "r-nacos",
        server: grpc,
        url: Box::new(move |grpc| format!("nacos://127.0.0.1:{http}?grpc-port={}", grpc.port())),
        restart: Box::new(move || server.server().start_again().expect("it starts again")),
        gone_within: Duration::from_secs(20),
        seen_within: Duration::from_secs(20),
        // It leaves out instances that are switched off.
        traits: Traits { switched_off: false, ..Traits::default() },
    });
}
