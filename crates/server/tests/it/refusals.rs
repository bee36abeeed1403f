//! What clients get wrong, and answers that would have been wrong: each was once accepted, or refused with the wrong words.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::Request;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use metaroute_registry::document::Format;
use metaroute_server::api::BODY_MAX;
use metaroute_server::stores;
use serde_json::json;
use tower::ServiceExt;

use crate::cluster::{Cluster, Plan};

const STORE: &str = "stores:
- name: readings
  id: id
  tenant: sensor
  time: day
  columns: {id: u64, sensor: u64, day: date, at: 'datetime(0)?', seen: 'timestamp(6)?', value: f64?}
";

async fn cluster() -> Cluster {
    let declared = stores::parse("stores.yaml", STORE, Format::Yaml).expect("legal");
    Cluster::new(Plan { stores: stores::with_built_in(declared), ..Plan::of(1, 2) }).await
}

#[tokio::test]
async fn sums_of_doubles_are_numbers_or_refused() {
    let cluster = cluster().await;
    let write = async |id: u64, value: f64| {
        let row = json!({"id": id, "sensor": 1, "day": "2024-01-01", "value": value});
        cluster.post("/v1/readings/rows", json!({ "rows": [row] })).await.ok();
    };
    let sum = json!({"sensor": 1, "sum": "value"});
    write(1, 1e300).await;
    let answer = cluster.post("/v1/readings/count", sum.clone()).await;
    assert!(answer.text.starts_with(r#"{"count":1,"sum":1e+300,"#), "as in rows: {answer:?}");
    write(1, f64::MAX).await;
    write(2, f64::MAX).await;
    for more in [json!({}), json!({"where": "value > 0"}), json!({"ids": [1, 2]})] {
        let mut body = sum.clone();
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let answer = cluster.post("/v1/readings/count", body).await;
        answer.problem(413, "result_too_large");
    }
    let none = cluster.post("/v1/readings/count", json!({"sensor": 2, "sum": "value"})).await;
    assert!(none.text.starts_with(r#"{"count":0,"sum":0.0,"#), "{none:?}");
}

#[tokio::test]
async fn times_are_not_changed_on_their_way_in() {
    let cluster = cluster().await;
    for (column, text) in [
        ("day", "2024-01-01T12:00:00"),
        ("day", "20240101"),
        ("at", "2024-01-01T12:00:00+05:00"),
        ("at", "2024-01-01T12:00:00Z"),
        ("at", "2024-01-01T12:00:60"),
        ("at", "2024-01-01T12:00:00.5"),
        ("seen", "2024-01-01T23:59:60Z"),
        ("seen", "2024-01-01T12:00:00"),
        ("seen", "2024-01-01T12:00:00.1234567Z"),
        ("seen", "9999-12-31T23:59:59-00:01"),
    ] {
        let mut row = json!({"id": 1, "sensor": 1, "day": "2024-01-01"});
        row[column] = json!(text);
        let answer = cluster.post("/v1/readings/rows", json!({ "rows": [row] })).await;
        answer.problem(400, "bad_request");
    }
    let row = json!({"id": "1", "sensor": "1", "day": "9999-12-31", "at": "9999-12-31T23:59:59", "seen": "9999-12-31T23:59:59.999999Z", "value": null});
    cluster.post("/v1/readings/rows", json!({ "rows": [row] })).await.ok();
    let fields = ["id", "sensor", "day", "at", "seen", "value"];
    let body = json!({"sensor": 1, "fields": fields, "where": "seen > \"9999-12-30T22:00:00Z\""});
    assert_eq!(cluster.post("/v1/readings/query", body).await.ok()["rows"][0], row);
}

#[tokio::test]
async fn an_order_field_alone_is_ascending() {
    let cluster = cluster().await;
    cluster.write(&[(1, 7, 10), (2, 7, 20), (3, 7, 20)]).await;
    for (order, ids) in [
        (json!("created_at"), [1, 2, 3]),
        (json!("created_at:asc"), [1, 2, 3]),
        (json!("created_at:desc"), [3, 2, 1]),
        (json!(null), [3, 2, 1]),
    ] {
        assert_eq!(cluster.query(json!({"user_id": 7, "order": order})).await.ids(), ids, "{order}");
    }
}

/// A store's columns go by their names and by what they are, in every place of a request.
#[tokio::test]
async fn id_tenant_and_time_work_everywhere() {
    let cluster = cluster().await;
    cluster.write(&[(1, 7, 10), (2, 7, 20), (3, 8, 30)]).await;
    let by_role = json!({"tenant": 7, "where": "id > 1 && tenant == 7 && time >= 2024-01-01T00:00:15Z", "order": "time", "fields": ["id", "tenant", "time"]});
    let page = cluster.query(by_role.clone()).await.ok();
    let row = json!({"file_id": "2", "user_id": "7", "created_at": "2024-01-01T00:00:20.000000Z"});
    assert_eq!(page["rows"], json!([row]), "under the columns' own names");
    let plan = cluster.post("/v1/file_metadata/explain", by_role).await.ok();
    assert_eq!(plan["time_bounds"][0], "2024-01-01T00:00:15.000000Z", "bounds are found under either name: {plan}");
    let sum =
        cluster.post("/v1/file_metadata/count", json!({"allow": "global", "sum": "id", "where": "tenant == 7"})).await;
    assert_eq!((&sum.ok()["count"], &sum.ok()["sum"]), (&json!(2), &json!("3")));
    // A column of that very name comes first: here `id` is one.
    let row = json!({"id": 5, "tenant": 1, "day": "2024-01-01"});
    cluster.post("/v1/readings/rows", json!({ "rows": [row] })).await.ok();
    let found = cluster.post("/v1/readings/query", json!({"tenant": 1, "where": "id == 5 && tenant == 1"})).await.ok();
    assert_eq!(found["rows"][0]["sensor"], "1");
    cluster.query(json!({"tenant": 7, "where": "ids == 1"})).await.problem(400, "unknown_field");
}

#[tokio::test]
async fn explain_says_what_a_foreign_cursor_would_get() {
    let cluster = cluster().await;
    cluster.write(&[(1, 7, 10), (2, 7, 20)]).await;
    let next = cluster.query(json!({"user_id": 7, "limit": 1})).await.ok()["next"].clone();
    let explain = async |body| cluster.post("/v1/file_metadata/explain", body).await.ok();
    assert_eq!(explain(json!({"user_id": 7, "cursor": next})).await["verdict"], "allowed");
    let other = explain(json!({"user_id": 8, "cursor": next})).await;
    assert_eq!((&other["verdict"], &other["denied"]["code"]), (&json!("denied"), &json!("cursor_invalid")));
    cluster.query(json!({"user_id": 8, "cursor": next})).await.problem(400, "cursor_invalid");
}

#[tokio::test]
async fn compressed_bodies_are_named_as_such() {
    let cluster = cluster().await;
    for path in ["/v1/file_metadata/query", "/v1/file_metadata/rows"] {
        let request = Request::post(path).header("content-encoding", "gzip");
        let request = request.body(Body::from(&b"\x1f\x8b\x08\x00\x00"[..])).expect("a legal request");
        let response = cluster.http.clone().oneshot(request).await.expect("a router never fails");
        assert_eq!(response.status(), 400);
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("whole");
        assert!(String::from_utf8_lossy(&body).contains("compressed bodies are not read"), "{body:?}");
    }
    let empty = cluster.call("POST", "/v1/file_metadata/rows", &[("content-type", "application/json")], "").await;
    assert_eq!(empty.problem(400, "bad_request")["at"], json!({"line": 1, "column": 1}));
}

/// Announces its length and never comes.
struct Announced(u64);

impl HttpBody for Announced {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Pending
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}

#[tokio::test]
async fn a_body_that_is_announced_too_large_is_not_waited_for() {
    let cluster = cluster().await;
    for path in ["/v1/file_metadata/query", "/v1/file_metadata/rows"] {
        let body = Body::new(Announced(BODY_MAX as u64 + 1));
        let request = Request::post(path).body(body).expect("a legal request");
        let answered = cluster.http.clone().oneshot(request);
        let response = tokio::time::timeout(std::time::Duration::from_secs(20), answered).await.expect("at once");
        assert_eq!(response.expect("a router never fails").status(), 413, "{path}");
    }
}
