//! A shard and a router as they run in processes of their own, with a registry between them.

use std::path::Path;
use std::time::{Duration, Instant};

use metaroute_cluster::topology::{Apply, FileStore, Prepared, Topology};
use metaroute_registry::document::Format;
use metaroute_server::api::Beside;
use metaroute_server::config::{RouterConfig, ShardConfig};
use metaroute_server::role::{RouterRole, ShardRole};
use serde_json::json;
use test_support::consul::Consul;

async fn ask(address: std::net::SocketAddr, path: &str, body: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let method = if body.is_empty() { "GET" } else { "POST" };
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("UTF-8");
    answer
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn shard(folder: &Path, registry: &str) -> ShardRole {
    let text =
        format!("group: g0\nshard: s0\nlisten: 127.0.0.1:0\ndata: ./s0\ntopology: ./topology\nregistry: {registry}\n");
    let config = ShardConfig::parse("shard.yaml", &text, Format::Yaml, folder).expect("legal");
    ShardRole::start(config).await.expect("it starts")
}

/// Routers hear of a shard through the registry once it can answer, and no longer when it goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_is_in_the_registry_exactly_while_it_is_ready() {
    let consul = test_support::require!(Consul::start());
    let registry = format!("consul://127.0.0.1:{}", consul.port());
    let folder = tempfile::tempdir().expect("a folder");
    let store = FileStore::new(folder.path().join("topology"));
    let initial = Topology::initial(1, 1).expect("legal").document().clone();
    let prepared = Prepared::new(&store, initial, Apply::default()).await.expect("valid");
    prepared.commit(&store).await.expect("stored");

    let text = format!("listen: 127.0.0.1:0\ntopology: ./topology\nregistry: {registry}\n");
    let config = RouterConfig::parse("router.yaml", &text, Format::Yaml, folder.path()).expect("legal");
    let router = RouterRole::start(config, async |_| Beside::default()).await.expect("it starts");
    let address = router.address();
    let query = json!({"user_id": 9}).to_string();
    let status = async |wanted: &str| {
        ask(address, "/v1/file_metadata/query", &query).await.starts_with(&format!("HTTP/1.1 {wanted}"))
    };
    assert!(status("503").await, "there is no copy yet");

    for _ in 0..2 {
        let shard = shard(folder.path(), &registry).await;
        until("the router never finds the shard", async || status("200").await).await;
        assert!(ask(address, "/readyz", "").await.starts_with("HTTP/1.1 200"));
        let stopping = tokio::spawn(shard.shutdown());
        // What is asked while it leaves is answered or refused, never wrong; afterwards nobody is asked.
        until("the router never hears that it left", async || status("503").await).await;
        stopping.await.expect("it ends");
        let watched =
            metaroute_registry::Registry::connect(&registry.parse().expect("legal")).expect("part of this build");
        let listed = watched.instances(metaroute_server::SERVICE).await.expect("answered");
        assert!(listed.is_none_or(|(snapshot, _)| snapshot.instances.is_empty()), "it has left");
    }
    router.shutdown().await;
}
