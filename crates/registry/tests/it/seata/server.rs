//! A real Seata server 2.0.0, which registers itself in Consul, Eureka and Nacos at once; we find it in all three. What it
//! does in etcd, Redis and ZooKeeper is tested with those.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use metaroute_registry::State;
use test_support::consul::Consul;
use test_support::eureka::Eureka;
use test_support::nacos::Nacos;
use test_support::require;
use test_support::seata_server::SeataServer;

use crate::client::{addresses, connect};

/// The registries' own delays: Consul probes the server, Eureka's clients register after a while.
const FOUND_WITHIN: Duration = Duration::from_secs(90);

fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

#[test]
fn a_real_server_is_found_in_consul_eureka_and_nacos() {
    let consul = require!(Consul::start());
    let eureka = require!(Eureka::start(&[]));
    let nacos = require!(Nacos::start());
    let mut server = require!(SeataServer::registering(&[
        ("consul", at(consul.port()), "", &["cluster: default"]),
        ("eureka", at(eureka.port()), "http://", &["application: default", "weight: 1"]),
        (
            "nacos",
            at(nacos.port()),
            "",
            &["application: seata-server", "group: SEATA_GROUP", "namespace: ''", "cluster: default"],
        ),
    ]));
    let urls = [
        (format!("consul://127.0.0.1:{}?layout=seata", consul.port()), "default"),
        (format!("eureka://127.0.0.1:{}?layout=seata&poll=500ms", eureka.port()), "default"),
        (
            format!("nacos://127.0.0.1:{}?grpc-port={}&group=SEATA_GROUP", nacos.port(), nacos.grpc_port()),
            "seata-server",
        ),
    ];
    let wanted = [server.service().to_string()];
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut subscriptions = runtime.block_on(async {
        let mut subscriptions = Vec::new();
        for (url, service) in &urls {
            let registry = connect(url);
            let mut seen = registry.subscribe(service);
            let found = seen.wait_for(|view| {
                view.state == State::Fresh
                    && addresses(view) == wanted
                    && view.snapshot.iter().flat_map(|list| &list.instances).all(|instance| instance.healthy)
            });
            let found = tokio::time::timeout(FOUND_WITHIN, found).await.map(drop);
            assert!(found.is_ok(), "{url}: {:?}", seen.current());
            subscriptions.push((url, registry, seen));
        }
        subscriptions
    });
    // It leaves when it is asked to.
    server.server().stop();
    runtime.block_on(async {
        for (url, registry, seen) in &mut subscriptions {
            let gone = seen.wait_for(|view| {
                view.snapshot.iter().flat_map(|list| &list.instances).all(|instance| !instance.healthy)
            });
            let gone = tokio::time::timeout(FOUND_WITHIN, gone).await.map(drop);
            assert!(gone.is_ok(), "{url}: {:?}", seen.current());
            registry.shutdown(Duration::from_secs(5)).await;
        }
    });
}
