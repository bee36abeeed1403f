//! Paging and merging: cases from the field by number.

use serde_json::{Value, json};

use crate::cluster::{Answer, Cluster, Plan, ids};

/// All pages of a query.
pub(crate) async fn walk(cluster: &Cluster, mut body: Value) -> Vec<Vec<u64>> {
    let mut pages = Vec::new();
    loop {
        let page: Answer = cluster.query(body.clone()).await;
        pages.push(page.ids());
        match page.ok()["next"].as_str() {
            None => return pages,
            Some(next) => body["cursor"] = next.into(),
        }
        assert!(pages.len() < 1_000, "a walk that does not end");
    }
}

/// `offset` would ship everything before it.
#[tokio::test(flavor = "multi_thread")]
async fn case_19_offset_is_not_in_the_api() {
    let cluster = Cluster::new(Plan::of(1, 1)).await;
    let problem = cluster.query(json!({"user_id": 9, "offset": 76_323_501})).await.problem(400, "offset_not_supported");
    assert!(problem["hint"].as_str().expect("a hint").contains("cursor"), "{problem}");
}

/// A page of five over four shards has five rows.
#[tokio::test(flavor = "multi_thread")]
async fn case_20_pages_have_their_size_and_together_every_row_once() {
    let cluster = Cluster::new(Plan::of(1, 4)).await;
    let rows: Vec<(u64, u64, u64)> = (0..20).map(|id| (id, 9, 1_000 - id)).collect();
    cluster.write(&rows).await;
    let pages = walk(&cluster, json!({"user_id": 9, "limit": 5})).await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5, 5, 5]);
    assert_eq!(pages.concat(), (0..20).collect::<Vec<_>>());
}

/// Ties are ordered by id, over all shards and copies alike.
#[tokio::test(flavor = "multi_thread")]
async fn case_21_ties_neither_lose_nor_repeat_rows() {
    let cluster = Cluster::new(Plan { copies: 2, ..Plan::of(1, 3) }).await;
    let rows: Vec<(u64, u64, u64)> = (0..7).map(|id| (id, 9, 42)).collect();
    cluster.write(&rows).await;
    let pages = walk(&cluster, json!({"user_id": 9, "limit": 3})).await;
    assert_eq!(pages, [vec![6, 5, 4], vec![3, 2, 1], vec![0]]);
    let pages = walk(&cluster, json!({"user_id": 9, "limit": 3, "order": "created_at:asc"})).await;
    assert_eq!(pages, [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
}

/// A cursor is a place, not a row.
#[tokio::test(flavor = "multi_thread")]
async fn case_22_deleting_the_last_row_of_a_page_changes_nothing() {
    let cluster = Cluster::new(Plan::default()).await;
    let rows: Vec<(u64, u64, u64)> = (0..9).map(|id| (id, 9, id)).collect();
    cluster.write(&rows).await;
    let first = cluster.query(json!({"user_id": 9, "limit": 3})).await;
    assert_eq!(first.ids(), [8, 7, 6]);
    let cursor = first.ok()["next"].clone();
    let deleted = cluster.call("DELETE", "/v1/file_metadata/rows/6?user_id=9", &[], "").await;
    assert_eq!(deleted.ok()["deleted"], 1);
    let second = cluster.query(json!({"user_id": 9, "limit": 3, "cursor": cursor})).await;
    assert_eq!(second.ids(), [5, 4, 3]);
    // Bound to its tenant and query, whole, and only for walks of this cluster.
    for body in [
        json!({"user_id": 8, "cursor": cursor}),
        json!({"user_id": 9, "where": "size > 1", "cursor": cursor}),
        json!({"user_id": 9, "cursor": "AAAA"}),
    ] {
        cluster.query(body).await.problem(400, "cursor_invalid");
    }
}

/// A row that moved before the cursor is not shown again as it was.
#[tokio::test(flavor = "multi_thread")]
async fn case_23_a_stale_version_does_not_come_back() {
    let cluster = Cluster::new(Plan::default()).await;
    cluster.write(&[(1, 9, 20), (2, 9, 8), (3, 9, 5), (4, 9, 3)]).await;
    let first = cluster.query(json!({"user_id": 9, "limit": 2})).await;
    assert_eq!(first.ids(), [1, 2]);
    cluster.write(&[(3, 9, 10)]).await;
    let cursor = first.ok()["next"].clone();
    let second = cluster.query(json!({"user_id": 9, "limit": 2, "cursor": cursor})).await;
    assert_eq!(second.ids(), [4], "row 3 is before the cursor now");
    assert_eq!(second.ok()["next"], Value::Null);
}

/// A page is bounded by work: a long run of deleted rows ends a page, not the patience of the client.
#[tokio::test(flavor = "multi_thread")]
async fn case_25_a_run_of_tombstones_is_walked_in_bounded_pages() {
    let cluster = Cluster::new(Plan { router: Plan::entries(500), ..Plan::of(1, 1) }).await;
    for from in [1_u64, 2_001] {
        let rows: Vec<(u64, u64, u64)> = (from..from + 2_000).map(|id| (id, 9, id % 80_000)).collect();
        cluster.write(&rows).await;
    }
    for id in 2..4_000_u64 {
        cluster.call("DELETE", &format!("/v1/file_metadata/rows/{id}?user_id=9"), &[], "").await.ok();
    }
    let mut body = json!({"allow": "global", "limit": 2});
    let mut found = Vec::new();
    let mut pages = 0;
    loop {
        let page = cluster.query(body.clone()).await.ok();
        pages += 1;
        let examined: u64 = page["meta"]["examined"].to_string().parse().expect("a number");
        assert!(examined <= 501, "{page}");
        found.extend(ids(&page));
        match page["next"].as_str() {
            Some(next) => body["cursor"] = next.into(),
            None => break,
        }
        assert!(pages <= 11, "{found:?} after {pages} pages");
    }
    assert_eq!(found, [1, 4_000]);
    assert!(pages > 2, "the budget ended pages: {pages}");
}

/// The page knows whether there is more: `next` is null exactly at the end.
#[tokio::test(flavor = "multi_thread")]
async fn next_is_null_exactly_at_the_end() {
    let cluster = Cluster::new(Plan::of(2, 2)).await;
    let rows: Vec<(u64, u64, u64)> = (0..10).map(|id| (id, id % 2, id)).collect();
    cluster.write(&rows).await;
    for (body, sizes) in [
        (json!({"user_id": 1, "limit": 5}), vec![5]),
        (json!({"user_id": 1, "limit": 4}), vec![4, 1]),
        (json!({"allow": "global", "limit": 10}), vec![10]),
        (json!({"allow": "global", "limit": 9}), vec![9, 1]),
        (json!({"user_id": 1, "ids": [1, 3, 5, 7], "limit": 2}), vec![2, 2]),
        (json!({"user_id": 1, "ids": [], "limit": 2}), vec![0]),
        (
            json!({"allow": "global", "from": "2024-01-01T00:00:02Z", "to": "2024-01-01T00:00:06Z", "limit": 2}),
            vec![2, 2],
        ),
        (json!({"user_id": 1, "where": "created_at >= '2024-01-01T00:00:05Z'", "limit": 3}), vec![3]),
        (json!({"user_id": 5}), vec![0]),
    ] {
        let pages = walk(&cluster, body.clone()).await;
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), sizes, "{body}");
    }
}
