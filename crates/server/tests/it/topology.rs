//! Changing the topology over HTTP, and a data folder over restarts.

use std::time::Duration;

use metaroute_server::role::Standalone;
use metaroute_server::shard::Condition;
use metaroute_server::{LocalOptions, ServiceOptions, WantedShape, api};
use serde_json::{Value, json};

use crate::cluster::{Answer, call, row};

async fn open(folder: &std::path::Path, groups: u32, shards: u32) -> (Standalone, axum::Router) {
    let shape = WantedShape { groups: Some(groups), shards: Some(shards) };
    let options = LocalOptions { shape, ..LocalOptions::new(folder) };
    let standalone = Standalone::open(options, ServiceOptions::default()).await.expect("opens");
    standalone.local().opened().await.expect("all shards open");
    let http = api::standalone(standalone.service().clone(), api::Beside::default());
    (standalone, http)
}

async fn put(http: &axum::Router, query: &str, epoch: Option<u64>, document: &Value) -> Answer {
    let tag = epoch.map(|epoch| format!("\"{epoch}\""));
    let headers: Vec<(&str, &str)> = tag.iter().map(|tag| ("if-match", tag.as_str())).collect();
    call(http, "PUT", &format!("/v1/topology{query}"), &headers, &document.to_string()).await
}

/// An empty or shrinking document is an accident until somebody insists, with the epoch it replaces.
#[tokio::test(flavor = "multi_thread")]
async fn case_14_an_empty_topology_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (standalone, http) = open(folder.path(), 20, 1).await;
    let current = call(&http, "GET", "/v1/topology", &[], "").await;
    assert_eq!(current.header("etag"), Some("\"1\""));
    let mut empty = current.ok();
    empty["groups"] = json!([]);
    empty["tenants"] = json!({"buckets": []});
    put(&http, "", Some(1), &empty).await.problem(400, "bad_request");
    put(&http, "?force=true", Some(7), &empty).await.problem(412, "epoch_mismatch");
    put(&http, "?force=true", None, &empty).await.problem(400, "bad_request");
    assert_eq!(call(&http, "GET", "/v1/topology", &[], "").await.ok()["groups"].as_array().map(Vec::len), Some(20));
    let forced = put(&http, "?force=true", Some(1), &empty).await;
    assert_eq!(forced.ok()["epoch"], 2);
    call(&http, "POST", "/v1/file_metadata/query", &[], "{\"user_id\": 1}").await.problem(503, "no_topology");
    standalone.shutdown(Duration::from_secs(5)).await;
}

/// Slots may change hands while they are empty, and not any more once they hold a row.
#[tokio::test(flavor = "multi_thread")]
async fn slots_that_hold_rows_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let (standalone, http) = open(folder.path(), 1, 2).await;
    let give = |mut document: Value, slot: u64| {
        // Slot 2 k + 1 goes to s0.
        let owners = document["groups"][0]["owners"].as_array_mut().expect("owners");
        let rest: Vec<String> =
            (0..2_048_u64).map(|k| 2 * k + 1).filter(|s| *s != slot).map(|s| s.to_string()).collect();
        let of = |owner: &mut Value, slots: String| owner["slots"] = slots.into();
        for owner in owners.iter_mut() {
            if owner["shard"] == "s1" {
                of(owner, rest.join(","));
            }
        }
        owners.push(json!({"slots": slot.to_string(), "shard": "s0", "epoch": 1}));
        document
    };
    let current = call(&http, "GET", "/v1/topology", &[], "").await.ok();
    let planned = put(&http, "?dry_run=true", None, &give(current.clone(), 5)).await.ok();
    assert_eq!((&planned["dry_run"], &planned["slots_moved"]), (&json!(true), &json!(1)), "{planned}");
    assert_eq!(put(&http, "", Some(1), &give(current, 5)).await.ok()["epoch"], 2);

    // Now slot 5 is s0's; rows are written there, and found there.
    let rows = json!({"rows": [row(5, 9, 1), row(7, 9, 2)]}).to_string();
    call(&http, "POST", "/v1/file_metadata/rows", &[], &rows).await.ok();
    let answer = call(&http, "POST", "/v1/file_metadata/query", &[], "{\"user_id\": 9}").await;
    assert_eq!(answer.ids(), [7, 5]);
    let current = call(&http, "GET", "/v1/topology", &[], "").await.ok();
    let mut taken: Value = current.clone();
    for owner in taken["groups"][0]["owners"].as_array_mut().expect("owners") {
        owner["shard"] = if owner["shard"] == "s0" { "s1".into() } else { "s0".into() };
    }
    let problem = put(&http, "", Some(2), &taken).await.problem(409, "slots_not_empty");
    assert!(problem["detail"].as_str().expect("text").contains("would have to move"), "{problem}");
    put(&http, "?dry_run=true", None, &taken).await.problem(409, "slots_not_empty");
    // A shard more, still without slots, moves nothing; it is opened at once.
    let mut more = current;
    more["groups"][0]["shards"].as_array_mut().expect("shards").push(json!({"name": "s2"}));
    assert_eq!(put(&http, "", Some(2), &more).await.ok()["epoch"], 3);
    let history = call(&http, "GET", "/v1/topology/history", &[], "").await.ok();
    assert_eq!(history["history"].as_array().map(Vec::len), Some(3));
    assert_eq!(call(&http, "GET", "/v1/topology?epoch=1", &[], "").await.ok()["epoch"], 1);
    call(&http, "GET", "/v1/topology?epoch=99", &[], "").await.problem(404, "not_found");
    put(&http, "", Some(3), &json!({"version": 1})).await.problem(400, "bad_request");
    standalone.shutdown(Duration::from_secs(5)).await;
}

/// Live and ready are two questions.
#[tokio::test(flavor = "multi_thread")]
async fn case_9_readiness_says_how_far_a_load_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let (standalone, http) = open(folder.path(), 1, 2).await;
    assert_eq!(call(&http, "GET", "/readyz", &[], "").await.status, 200);
    let host = standalone.local().hosts().remove(1);
    host.set_condition(Condition::loading(400));
    let problem = call(&http, "GET", "/readyz", &[], "").await.problem(503, "not_ready");
    assert!(problem["detail"].as_str().expect("text").contains("loading 0.40"), "{problem}");
    assert_eq!(call(&http, "GET", "/livez", &[], "").await.status, 200);
    let query = call(&http, "POST", "/v1/file_metadata/query", &[], "{\"user_id\": 9}").await;
    let problem = query.problem(503, "not_ready");
    assert_eq!(problem["meta"]["shards"]["not_ready"], 1, "{problem}");
    standalone.shutdown(Duration::from_secs(5)).await;
}
