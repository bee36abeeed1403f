//! What users of comparable systems ran into, as tests named by the number of the case.

use std::time::{Duration, Instant};

use metaroute_cluster::router::RouterOptions;
use metaroute_cluster::topology::OwnerEntry;
use metaroute_server::ServiceOptions;
use metaroute_server::shard::Condition;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::cluster::{Cluster, Fault, Plan, row};

/// Slots without an owner are an error, not three quarters of the rows.
#[tokio::test(flavor = "multi_thread")]
async fn case_1_a_coverage_gap_is_an_error() {
    let topology = Some(
        (|document: &mut metaroute_cluster::topology::Document| {
            let gap: metaroute_cluster::SlotSet = (2_048..3_072).collect();
            for owner in &mut document.groups[0].owners {
                owner.slots = owner.slots.difference(&gap);
            }
        }) as fn(&mut _),
    );
    let cluster = Cluster::new(Plan { topology, ..Plan::of(1, 4) }).await;
    let problem = cluster.query(json!({"user_id": 9})).await.problem(503, "coverage_gap");
    assert_eq!(problem["missing_slots"], 1_024, "{problem}");
    assert_eq!(problem["meta"]["complete"], false);
    let partial = cluster.query(json!({"user_id": 9, "partial": "allow"})).await;
    assert_eq!((partial.status, partial.header("x-meta-complete")), (200, Some("false")));
}

/// Strict by default; a partial answer is asked for and says so.
#[tokio::test(flavor = "multi_thread")]
async fn case_2_partial_answers_are_opt_in_and_marked() {
    let cluster = Cluster::new(Plan::of(1, 12)).await;
    let rows: Vec<(u64, u64, u64)> = (0..24).map(|id| (id, 9, id)).collect();
    cluster.write(&rows).await;
    cluster.fault("s3", Some(Fault::Down));
    let problem = cluster.query(json!({"user_id": 9})).await.problem(503, "incomplete");
    assert_eq!(problem["meta"]["missing"][0]["shard"], "s3", "{problem}");
    assert_eq!(problem["meta"]["missing"][0]["reason"], "failed");
    let partial = cluster.query(json!({"user_id": 9, "partial": "allow"})).await;
    let page = partial.ok();
    assert_eq!(page["meta"]["complete"], false);
    assert_eq!(partial.header("x-meta-complete"), Some("false"));
    assert_eq!(partial.ids().len(), 22);
    cluster.fault("s3", None);
    let whole = cluster.query(json!({"user_id": 9})).await;
    assert_eq!((whole.ids().len(), whole.header("x-meta-complete")), (24, Some("true")));
}

/// Shards that timed out are not successes.
#[tokio::test(flavor = "multi_thread")]
async fn case_3_timed_out_is_counted_apart() {
    let cluster = Cluster::new(Plan::of(1, 5)).await;
    for shard in ["s1", "s4"] {
        cluster.fault(shard, Some(Fault::Slow(Duration::from_secs(30))));
    }
    let answer = cluster.query(json!({"user_id": 9, "partial": "allow", "timeout_ms": 2_000})).await.ok();
    let shards = &answer["meta"]["shards"];
    assert_eq!(
        (&shards["total"], &shards["ok"], &shards["timed_out"], &shards["failed"], &shards["not_ready"]),
        (&json!(5), &json!(3), &json!(2), &json!(0), &json!(0)),
        "{answer}"
    );
}

/// A slow shard costs no more than the deadline.
#[tokio::test(flavor = "multi_thread")]
async fn case_4_slow_behaves_like_dead() {
    let cluster = Cluster::new(Plan::of(1, 3)).await;
    cluster.write(&[(0, 9, 0), (1, 9, 1), (2, 9, 2)]).await;
    cluster.fault("s2", Some(Fault::Slow(Duration::from_secs(60))));
    let begun = Instant::now();
    let answer = cluster.query(json!({"user_id": 9, "partial": "allow", "timeout_ms": 2_000})).await;
    let took = begun.elapsed();
    assert_eq!(answer.ids(), [1, 0]);
    assert_eq!(answer.ok()["meta"]["missing"][0]["reason"], "timed_out");
    assert_eq!(answer.ok()["meta"]["missing"][0]["shard"], "s2");
    // Not the minute of the slow one; how little more than the deadline it is, is measured where clocks stand still.
    assert!(took < Duration::from_secs(20), "{took:?}");
    cluster.query(json!({"user_id": 9, "timeout_ms": 300})).await.problem(504, "deadline_exceeded");
}

/// Partial answers enter no cache.
#[tokio::test(flavor = "multi_thread")]
async fn case_5_partial_answers_are_not_stored() {
    let cluster = Cluster::new(Plan::default()).await;
    cluster.fault("s0", Some(Fault::Down));
    let partial = cluster.query(json!({"user_id": 9, "partial": "allow"})).await;
    assert_eq!((partial.status, partial.header("cache-control")), (200, Some("no-store")));
    let problem = cluster.query(json!({"user_id": 9})).await;
    assert_eq!((problem.status, problem.header("cache-control")), (503, Some("no-store")));
}

/// When every shard failed there is no partial answer either.
#[tokio::test(flavor = "multi_thread")]
async fn case_7_all_failed_is_an_error_also_when_partial() {
    let cluster = Cluster::new(Plan::of(1, 12)).await;
    for shard in 0..12 {
        cluster.fault(&format!("s{shard}"), Some(Fault::Down));
    }
    for operation in ["query", "count", "export"] {
        let body = json!({"user_id": 9, "partial": "allow"});
        let answer = cluster.post(&format!("/v1/file_metadata/{operation}"), body).await;
        assert_eq!(answer.problem(503, "incomplete")["meta"]["shards"]["failed"], 12, "{operation}");
    }
}

/// Not ready is neither failed nor empty.
#[tokio::test(flavor = "multi_thread")]
async fn case_9_a_loading_shard_answers_not_ready() {
    let cluster = Cluster::new(Plan::default()).await;
    cluster.host("s1").set_condition(Condition::loading(400));
    let problem = cluster.query(json!({"user_id": 9})).await.problem(503, "not_ready");
    assert_eq!(problem["meta"]["shards"]["not_ready"], 1, "{problem}");
    assert_eq!(problem["meta"]["shards"]["failed"], 0);
    assert_eq!(cluster.get("/livez").await.status, 200);
}

/// The router's table is old: the shard says where a slot went, and one more hop finds it, once.
#[tokio::test(flavor = "multi_thread")]
async fn case_16_moved_slots_are_found_in_one_extra_hop() {
    let moved = Some(
        (|document: &mut metaroute_cluster::topology::Document| {
            document.epoch = 2;
            let group = &mut document.groups[0];
            for owner in &mut group.owners {
                owner.slots.remove(7);
            }
            let to = group.shards[0].name.clone();
            group.owners.push(OwnerEntry { slots: [7].into_iter().collect(), shard: to, epoch: 2 });
        }) as fn(&mut _),
    );
    let cluster = Cluster::new(Plan { shard_topology: moved, ..Plan::of(1, 2) }).await;
    cluster.write(&[(7, 9, 1), (8, 9, 2), (9, 9, 3)]).await;
    let answer = cluster.query(json!({"user_id": 9})).await;
    assert_eq!(answer.ids(), [9, 8, 7]);
    assert_eq!(answer.ok()["meta"]["slots"], json!({"wanted": 4_096, "answered": 4_096}));
    let one = cluster.query(json!({"user_id": 9, "file_id": 7})).await;
    assert_eq!(one.ids(), [7]);
}

/// Two addresses of one shard are two copies, not two shards.
#[tokio::test(flavor = "multi_thread")]
async fn case_17_copies_are_asked_once() {
    let cluster = Cluster::new(Plan { copies: 2, ..Plan::of(1, 2) }).await;
    cluster.write(&[(0, 9, 0), (1, 9, 1)]).await;
    let answer = cluster.query(json!({"user_id": 9})).await;
    assert_eq!(answer.ids(), [1, 0]);
    assert_eq!(answer.ok()["meta"]["shards"]["total"], 2);
}

/// A scan over everything has to be meant, and its price is said.
#[tokio::test(flavor = "multi_thread")]
async fn case_27_global_scans_need_permission() {
    let cluster = Cluster::new(Plan { open: false, ..Plan::of(20, 12) }).await;
    let problem = cluster.query(json!({})).await.problem(403, "global_scan_not_allowed");
    assert!(problem["detail"].as_str().expect("text").contains("240 requests"), "{problem}");
    assert_eq!(problem["estimate"]["sub_requests"], 240, "{problem}");
    cluster.post("/v1/file_metadata/count", json!({})).await.problem(403, "global_scan_not_allowed");
    cluster.post("/v1/file_metadata/export", json!({})).await.problem(403, "global_scan_not_allowed");
    cluster.query(json!({"file_id": 7})).await.problem(403, "global_scan_not_allowed");
}

/// A refused request can be explained; that is when it is needed.
#[tokio::test(flavor = "multi_thread")]
async fn case_29_explain_works_for_refused_requests() {
    let cluster = Cluster::new(Plan { open: false, ..Plan::of(20, 12) }).await;
    let plan = cluster.post("/v1/file_metadata/explain", json!({})).await.ok();
    assert_eq!((&plan["path"], &plan["shards"], &plan["verdict"]), (&json!("C"), &json!(240), &json!("denied")));
    assert!(plan["denied"]["hint"].as_str().expect("how to fix it").contains("user_id"), "{plan}");
    let by_id = cluster.post("/v1/file_metadata/explain", json!({"file_id": 5, "allow": "global"})).await.ok();
    assert_eq!((&by_id["path"], &by_id["shards"], &by_id["verdict"]), (&json!("CI"), &json!(20), &json!("allowed")));
}

/// A result that does not fit is refused, and what was begun for it ends.
#[tokio::test(flavor = "multi_thread")]
async fn case_30_too_large_results_are_refused() {
    let router = RouterOptions { merge_bytes: 64 << 10, ..RouterOptions::default() };
    let cluster = Cluster::new(Plan { router, ..Plan::default() }).await;
    let rows: Vec<_> = (0..60).map(|id| json!({"file_id": id, "user_id": 9, "path": "x".repeat(4_000)})).collect();
    cluster.post("/v1/file_metadata/rows", json!({ "rows": rows })).await.ok();
    cluster.query(json!({"user_id": 9, "limit": 1_000})).await.problem(413, "result_too_large");
    let idle = Instant::now() + Duration::from_secs(30);
    while cluster.in_flight() > 0 {
        assert!(Instant::now() < idle, "sub-requests were called off");
        tokio::task::yield_now().await;
    }
    assert_eq!(cluster.query(json!({"user_id": 9, "limit": 4})).await.ids().len(), 4);
}

/// A client that leaves leaves nothing running.
#[tokio::test(flavor = "multi_thread")]
async fn case_32_a_client_that_left_costs_nothing_more() {
    let cluster = Cluster::new(Plan::default()).await;
    cluster.fault("s1", Some(Fault::Slow(Duration::from_secs(600))));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let serving = tokio::spawn(metaroute_server::serve_http(listener, cluster.http.clone(), stopped));
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
    // So long that only the client can be what ends it.
    let body = json!({"allow": "global", "timeout_ms": 600_000}).to_string();
    let request =
        format!("POST /v1/file_metadata/query HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let begun = Instant::now();
    while cluster.service.metrics().in_flight() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the query runs");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(cluster.service.metrics().in_flight(), 1, "it still runs");
    drop(stream);
    let left = Instant::now();
    while cluster.service.metrics().in_flight() > 0 || cluster.in_flight() > 0 {
        assert!(left.elapsed() < Duration::from_secs(30), "still {} in flight", cluster.in_flight());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.send_replace(true);
    serving.await.expect("it ends");
}

/// Whatever ends with 503 or 504 says what it covers, also when it never came to asking.
#[tokio::test(flavor = "multi_thread")]
async fn every_503_and_504_says_what_it_covers() {
    let service = ServiceOptions { requests: 1, ..ServiceOptions::default() };
    let cluster = Cluster::new(Plan { service, ..Plan::of(1, 2) }).await;
    let covers = |problem: serde_json::Value| {
        let meta = &problem["meta"];
        assert_eq!(meta["complete"], false, "{problem}");
        for number in ["total", "ok", "failed", "timed_out", "not_ready"] {
            assert!(meta["shards"][number].is_u64(), "{problem}");
        }
        assert!(meta["slots"]["wanted"].is_u64() && meta["topology_epoch"].is_u64(), "{problem}");
    };
    cluster.fault("s1", Some(Fault::Slow(Duration::from_secs(30))));
    covers(cluster.query(json!({"user_id": 9, "timeout_ms": 50})).await.problem(504, "deadline_exceeded"));
    let (slow, refused) = tokio::join!(
        cluster.query(json!({"user_id": 9, "timeout_ms": 500})),
        // Joined futures are polled in order, so the first one has the only place.
        cluster.query(json!({"user_id": 9})),
    );
    slow.problem(504, "deadline_exceeded");
    covers(refused.problem(503, "overloaded"));
    cluster.fault("s1", Some(Fault::Down));
    let rows = json!({"rows": [row(1, 9, 1), row(2, 9, 2)]});
    let written = cluster.post("/v1/file_metadata/rows", rows).await;
    assert_eq!(written.status, 503, "{written:?}");
    let problem = written.json();
    assert_eq!((&problem["written"], &problem["failed"]), (&json!(["2"]), &json!(["1"])), "{problem}");
    covers(problem);
    cluster.service.drain();
    assert_eq!(cluster.get("/readyz").await.status, 503);
}

/// No topology: nothing can be asked, and that is said with the same block.
#[tokio::test(flavor = "multi_thread")]
async fn no_topology_is_a_503_with_an_empty_account() {
    let empty = (|document: &mut metaroute_cluster::topology::Document| {
        document.groups.clear();
        document.tenants = Default::default();
    }) as fn(&mut _);
    let cluster = Cluster::new(Plan { topology: Some(empty), open: false, ..Plan::of(1, 1) }).await;
    let problem = cluster.query(json!({"user_id": 9})).await.problem(503, "no_topology");
    assert_eq!((&problem["meta"]["path"], &problem["meta"]["shards"]["total"]), (&json!(null), &json!(0)), "{problem}");
}

/// Ids, counters and the completion line are there once on every route, also where nothing is served.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_has_a_request_id_and_is_counted_once() {
    let cluster = Cluster::new(Plan::of(1, 1)).await;
    let asked = [
        ("GET", "/livez", "/livez", 200),
        ("GET", "/nowhere", "unmatched", 404),
        ("POST", "/v1/file_metadata/query", "/v1/{store}/query", 400),
        ("POST", "/v1/nothing/query", "/v1/{store}/query", 404),
        ("GET", "/v1/stores", "/v1/stores", 200),
        ("DELETE", "/v1/stores", "/v1/stores", 405),
    ];
    for (method, path, _, status) in asked {
        let answer = cluster.call(method, path, &[("x-request-id", "mine")], "{\"limit\": 0}").await;
        assert_eq!((answer.status, answer.header("x-request-id")), (status, Some("mine")), "{method} {path}");
        assert_eq!(answer.headers.get_all("x-request-id").iter().count(), 1);
    }
    let page = cluster.get("/metrics").await.text;
    for (method, _, route, status) in asked {
        let line =
            format!("metaroute_http_requests_total{{method=\"{method}\",route=\"{route}\",status=\"{status}\"}} 1");
        assert!(page.lines().any(|have| have == line), "{line}\n{page}");
    }
}

/// A tenant beyond its share is told when to come back; others are not touched.
#[tokio::test(flavor = "multi_thread")]
async fn case_35_a_noisy_tenant_is_limited_and_told_so() {
    let service = ServiceOptions { capacity: Some(50.0), ..ServiceOptions::default() };
    let cluster = Cluster::new(Plan { service, ..Plan::of(1, 1) }).await;
    // All at once: one after the other a slow machine asks for no more than its share.
    let asked = (0..100).map(|_| cluster.query(json!({"user_id": 1, "file_id": 1})));
    let answers = futures_util::future::join_all(asked).await;
    let refused: Vec<_> = answers.into_iter().filter(|answer| answer.status == 429).collect();
    assert!(refused.len() > 20, "{}", refused.len());
    let last = refused.last().expect("more than twenty");
    last.problem(429, "quota_exceeded");
    assert_eq!(last.header("retry-after"), Some("1"));
    let quiet = cluster.query(json!({"user_id": 2, "file_id": 1})).await;
    assert_eq!(quiet.status, 200, "{quiet:?}");
}

/// Ten thousand small tenants cost no file and no thread each.
#[tokio::test(flavor = "multi_thread")]
async fn case_36_small_tenants_are_free() {
    fn count(path: &std::path::Path) -> usize {
        let entries = std::fs::read_dir(path).expect("readable").map(|entry| entry.expect("readable").path());
        entries.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
    }
    let threads = || std::fs::read_dir("/proc/self/task").expect("readable").count();
    let cluster = Cluster::new(Plan::of(1, 2)).await;
    let folder = cluster.hosts[0].store().expect("open").path().to_owned();
    let (files_before, threads_before) = (count(&folder), threads());
    for chunk in 0..15_u64 {
        let rows: Vec<_> = (chunk * 2_000..(chunk + 1) * 2_000).map(|id| row(id, id / 3, id)).collect();
        cluster.post("/v1/file_metadata/rows", json!({ "rows": rows })).await.ok();
    }
    let total = cluster.post("/v1/file_metadata/count", json!({"allow": "global"})).await.ok();
    assert_eq!(total["count"], 30_000);
    assert_eq!(cluster.query(json!({"user_id": 4_321})).await.ids().len(), 3);
    assert!(count(&folder) <= files_before + 20, "{} files, {files_before} before", count(&folder));
    // Other tests of this process come and go; a thread per tenant would be thousands.
    assert!(threads() < threads_before + 500, "{} threads, {threads_before} before", threads());
}

/// Rows that come from no change stream have reached no position of one, and that is said at once.
#[tokio::test(flavor = "multi_thread")]
async fn case_47_not_caught_up_is_no_time_out() {
    let cluster = Cluster::new(Plan::of(1, 1)).await;
    let begun = Instant::now();
    let body = json!({"user_id": 9, "min_gtid": "0-1-5", "timeout_ms": 600_000});
    let problem = cluster.query(body).await.problem(409, "not_caught_up");
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert!(problem.get("position").is_some(), "{problem}");
}

/// What is too long is refused before it is kept in memory.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_have_a_limit() {
    let cluster = Cluster::new(Plan::of(1, 1)).await;
    let body = format!("{{\"rows\": [{}]}}", " ".repeat(9 << 20));
    cluster.call("POST", "/v1/file_metadata/rows", &[], &body).await.problem(413, "body_too_large");
    cluster.post("/v1/nothing/query", json!({})).await.problem(404, "unknown_store");
    cluster.get("/v1/file_metadata/rows/7?user_id=9").await.problem(404, "not_found");
    cluster.get("/v1/file_metadata/rows/x?user_id=9").await.problem(400, "bad_request");
    cluster.get("/v1/file_metadata/rows/7").await.problem(403, "global_scan_not_allowed");
    let wrong = cluster.get("/v1/file_metadata/query").await;
    wrong.problem(405, "method_not_allowed");
    assert_eq!(wrong.header("allow"), Some("POST"));
    let id = cluster.call("GET", "/v1/stores", &[("x-request-id", "abc-1")], "").await;
    assert_eq!(id.header("x-request-id"), Some("abc-1"));
}

/// An export without its last line did not finish.
#[tokio::test(flavor = "multi_thread")]
async fn exports_end_with_what_they_cover() {
    let cluster = Cluster::new(Plan::default()).await;
    let rows: Vec<(u64, u64, u64)> = (0..700).map(|id| (id, id % 3, id)).collect();
    cluster.write(&rows).await;
    let export = cluster.post("/v1/file_metadata/export", json!({"allow": "global", "fields": ["file_id"]})).await;
    assert_eq!((export.status, export.header("content-type")), (200, Some("application/x-ndjson")));
    let lines: Vec<serde_json::Value> =
        export.text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let ids: Vec<u64> =
        lines[..700].iter().map(|line| line["file_id"].as_str().expect("text").parse().expect("a number")).collect();
    assert_eq!(ids, (0..700).collect::<Vec<_>>());
    assert_eq!(lines.len(), 701);
    assert_eq!((&lines[700]["meta"]["complete"], &lines[700]["meta"]["path"]), (&json!(true), &json!("C")));
}

/// Metrics, stats and the OpenAPI document are there and whole.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_shows_itself() {
    let cluster = Cluster::new(Plan::of(1, 2)).await;
    cluster.write(&[(1, 9, 1)]).await;
    cluster.query(json!({"user_id": 9})).await.ok();
    let metrics = cluster.get("/metrics").await;
    assert!(
        metrics
            .text
            .contains("metaroute_queries_total{store=\"file_metadata\",operation=\"query\",path=\"B\",code=\"ok\"} 1"),
        "{}",
        metrics.text
    );
    assert!(metrics.text.ends_with("# EOF\n"));
    let document = cluster.get("/openapi.json").await.ok();
    assert_eq!(document["openapi"], "3.1.0");
    let stats = cluster.get("/v1/stats").await.ok();
    assert_eq!(stats["shards"].as_array().expect("shards").len(), 2);
    assert_eq!(cluster.get("/readyz").await.status, 200);
    let stores = cluster.get("/v1/stores").await.ok();
    assert_eq!(stores["stores"][0]["name"], "file_metadata");
}
