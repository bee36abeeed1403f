//! A real Seata server 2.0.0, which registers itself in etcd, Redis and ZooKeeper at once; we find it in all three.

use std::time::Duration;

use metaroute_registry::{Registry, RegistryUrl, View};
use test_support::etcd::Etcd;
use test_support::redis::Redis;
use test_support::require;
use test_support::seata_server::SeataServer;
use test_support::zookeeper::ZooKeeper;

/// Rows "2.0.0 writes a 47-byte Java-serialized Boolean", "released 2.0.0 never deletes its key on unregister".
#[test]
fn a_real_server_is_found_in_every_registry_it_registers_in() {
    let etcd = require!(Etcd::start(&[]));
    let redis = require!(Redis::start(&[]));
    let zookeeper = require!(ZooKeeper::start(&[]));
    let mut server = require!(SeataServer::registering(&[
        ("redis", redis.address(), "", &["cluster: default", "db: 0", "timeout: 0"]),
        ("zk", zookeeper.address(), "", &["cluster: default", "session-timeout: 30000", "connect-timeout: 30000"]),
        ("etcd3", etcd.address(), "http://", &["cluster: default"]),
    ]));
    let urls = [
        format!("etcd://{}", etcd.address()),
        format!("redis://{}", redis.address()),
        format!("zookeeper://{}", zookeeper.address()),
    ];
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let wanted = server.service().to_string();
    let subscriptions = runtime.block_on(async {
        let mut subscriptions = Vec::new();
        for url in &urls {
            let registry = Registry::connect(&url.parse::<RegistryUrl>().expect("an address")).expect("built in");
            assert_eq!(
                tokio::time::timeout(Duration::from_secs(30), registry.services())
                    .await
                    .expect("in time")
                    .expect("a list"),
                [Box::<str>::from("default")],
                "{url}"
            );
            let mut seen = registry.subscribe("default");
            let found = |view: &View| view.snapshot.as_ref().is_some_and(|snapshot| snapshot.instances.len() == 1);
            let found = tokio::time::timeout(Duration::from_secs(30), seen.wait_for(found)).await;
            let view = found.unwrap_or_else(|_| panic!("{url}: {:?}", seen.current())).expect("open");
            let snapshot = view.snapshot.expect("a list");
            assert_eq!(snapshot.instances[0].address.to_string(), wanted, "{url}");
            assert_eq!(
                (snapshot.rejected, snapshot.instances[0].metadata.len()),
                (0, 0),
                "{url}: {:?}",
                snapshot.notes
            );
            subscriptions.push((url, registry, seen));
        }
        subscriptions
    });
    assert!(server.server().stop().is_some());
    runtime.block_on(async {
        for (url, _registry, mut seen) in subscriptions {
            let gone = |view: &View| view.snapshot.as_ref().is_none_or(|snapshot| snapshot.instances.is_empty());
            let gone = tokio::time::timeout(Duration::from_secs(60), seen.wait_for(gone)).await;
            gone.unwrap_or_else(|_| panic!("{url}: {:?}", seen.current())).expect("open");
        }
    });
}
