//! Schemathesis (PyPI) against our own OpenAPI document.

use std::process::Command;

use metaroute_registry::document::Format;
use metaroute_server::stores;
use test_support::cache;

use crate::cluster::{Cluster, Plan};

/// A second store with other column names and every type.
const STORE: &str = "stores:
- name: assets
  id: asset
  tenant: owner
  time: taken
  columns: {asset: u64, owner: u64, taken: 'timestamp(3)', title: string, stars: i64?, ratio: f64?, public: bool?, price: 'decimal(12,2)?', thumb: bytes?, exif: json?, day: date?, local: 'datetime(0)?'}
  listing: [title, stars]
";

#[tokio::test(flavor = "multi_thread")]
async fn schemathesis_finds_nothing() {
    let peer = test_support::require!(cache::peer("schemathesis"));
    let declared = stores::parse("stores.yaml", STORE, Format::Yaml).expect("legal");
    let cluster = Cluster::new(Plan { stores: stores::with_built_in(declared), ..Plan::of(2, 2) }).await;
    cluster.write(&[(1, 7, 1), (2, 7, 2), (3, 8, 3)]).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let serving = tokio::spawn(metaroute_server::serve_http(listener, cluster.http.clone(), stopped));
    let output = tokio::task::spawn_blocking(move || {
        Command::new(peer.join("venv/bin/schemathesis"))
            .arg("--config-file")
            .arg(cache::recipe_dir("schemathesis").join("schemathesis.toml"))
            .args(["run", &format!("http://{address}/openapi.json")])
            .args(["--seed", "1", "--max-examples", "20", "--workers", "1", "--no-color"])
            .args(["--phases", "examples,coverage,fuzzing"])
            .output()
            .expect("it starts")
    });
    let output = output.await.expect("it ends");
    stop.send_replace(true);
    serving.await.expect("it ends");
    let text = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
}
