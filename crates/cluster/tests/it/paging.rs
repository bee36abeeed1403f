//! Pages.

use metaroute_cluster::Code;
use metaroute_cluster::query::QueryRequest;
use metaroute_store::Version;

use crate::sim::{Shape, Sim, Stored, call, everything, file, ids, of_user, spread, writable};

/// Case 20: 4 shards × 5 matching rows, limit 5.
#[tokio::test]
async fn case_20_pages_have_the_asked_for_size() {
    let sim = Sim::new(1, 4);
    sim.write(spread(20, 9)).await;
    let answer = sim.ask(QueryRequest { limit: Some(5), ..of_user(9) }).await.expect("answered");
    assert_eq!(answer.rows.len(), 5);
    assert!(answer.next.is_some());
    let (rows, pages) = sim.walk(QueryRequest { limit: Some(5), ..of_user(9) }).await;
    assert_eq!(pages, 4, "the last page is known to be the last");
    assert_eq!(ids(&rows), (0..20).rev().collect::<Vec<_>>());
}

/// However unevenly rows are spread, pages are full; a shard that has more than its share is asked again.
#[tokio::test]
async fn a_page_from_one_shard_only_is_as_full_as_any() {
    for far in [true, false] {
        let sim = Sim::of(Shape { far, ..Shape::of(1, 12) });
        sim.write((0..60).map(|n| file(n * 12, 9, Some(1_000 + n as i64), n)).collect()).await;
        let asked = sim.asked();
        let answer = sim.ask(QueryRequest { limit: Some(50), ..of_user(9) }).await.expect("answered");
        assert_eq!(ids(&answer.rows), (10..60).rev().map(|n| n * 12).collect::<Vec<_>>());
        assert!(answer.next.is_some());
        assert_eq!((answer.meta.shards.total, answer.meta.shards.ok), (12, 12));
        // One shard goes on, the others have nothing; near ones need not be asked for that.
        assert_eq!(sim.asked() - asked, if far { 13 } else { 12 });
        let (rows, pages) = sim.walk(QueryRequest { limit: Some(50), ..of_user(9) }).await;
        assert_eq!((rows.len(), pages), (60, 2));
    }
}

/// Evenly spread rows cost hardly more than the page has, however many shards there are.
#[tokio::test]
async fn a_page_reads_little_more_than_it_shows() {
    for far in [true, false] {
        let sim = Sim::of(Shape { far, ..Shape::of(1, 12) });
        sim.write(spread(2_400, 9)).await;
        let answer = sim.ask(QueryRequest { limit: Some(100), ..of_user(9) }).await.expect("answered");
        assert_eq!(answer.rows.len(), 100);
        let most = if far { 300 } else { 200 };
        assert!(answer.meta.examined < most, "{} for 100 rows", answer.meta.examined);
    }
}

/// To know whether there is another page one row more is asked for, not another page.
#[tokio::test]
async fn a_page_over_one_shard_is_one_question() {
    let sim = Sim::new(1, 1);
    sim.write(spread(300, 9)).await;
    let asked = sim.asked();
    let answer = sim.ask(QueryRequest { limit: Some(100), ..of_user(9) }).await.expect("answered");
    assert_eq!((answer.rows.len(), answer.next.is_some(), sim.asked() - asked), (100, true, 1));
    assert!(answer.meta.examined <= 102, "{} for 100 rows", answer.meta.examined);
}

/// Case 21: 7 rows with one time over 3 shards, two copies of each, limit 3.
#[tokio::test]
async fn case_21_ties_are_split_over_pages_without_loss_or_repetition() {
    let sim = Sim::of(Shape { copies: 2, ..Shape::of(1, 3) });
    sim.write((0..7).map(|id| file(id, 9, Some(1_000), id)).collect()).await;
    for order in ["created_at:desc", "created_at:asc"] {
        let request = QueryRequest { limit: Some(3), order: Some(order.into()), ..of_user(9) };
        let (mut sizes, mut all, mut cursor) = (Vec::new(), Vec::new(), None);
        loop {
            let answer = sim.ask(QueryRequest { cursor, ..request.clone() }).await.expect("answered");
            sizes.push(answer.rows.len());
            all.extend(ids(&answer.rows));
            cursor = answer.next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(sizes, [3, 3, 1]);
        let mut expected: Vec<u64> = (0..7).collect();
        if order.ends_with("desc") {
            expected.reverse();
        }
        assert_eq!(all, expected);
    }
}

/// Case 22: the row a page ended with is deleted before the next page.
#[tokio::test]
async fn case_22_a_deleted_cursor_row_changes_nothing() {
    let sim = Sim::new(1, 3);
    sim.write(spread(10, 9)).await;
    let request = || QueryRequest { limit: Some(4), ..of_user(9) };
    let first = sim.ask(request()).await.expect("answered");
    let undisturbed = sim.ask(QueryRequest { cursor: first.next.clone(), ..request() }).await.expect("answered");
    assert!(sim.router.delete(&sim.schema, 9, first.rows[3].id, &call()).await.expect("deleted"));
    let second = sim.ask(QueryRequest { cursor: first.next, ..request() }).await.expect("answered");
    assert_eq!(ids(&second.rows), ids(&undisturbed.rows));
    assert_eq!(ids(&second.rows), [5, 4, 3, 2]);
}

/// Case 23: newest first; row k had time 5 and has time 10, the cursor stands at 8. Its old version must not come back.
#[tokio::test]
async fn case_23_an_old_version_does_not_come_back_behind_the_cursor() {
    let sim = Sim::new(2, 2);
    let k = 100;
    sim.write(vec![file(k, 9, Some(5), 1)]).await;
    sim.write(vec![file(k, 9, Some(10), 2), file(1, 9, Some(8), 0), file(2, 9, Some(3), 0)]).await;
    let first = sim.ask(QueryRequest { limit: Some(2), ..of_user(9) }).await.expect("answered");
    assert_eq!(ids(&first.rows), [k, 1]);
    let second = sim.ask(QueryRequest { limit: Some(2), cursor: first.next, ..of_user(9) }).await.expect("answered");
    assert_eq!(ids(&second.rows), [2]);
    assert_eq!(second.next, None);
}

/// Two copies of a row in two groups, as while it changes groups: the higher version is shown, once.
#[tokio::test]
async fn of_two_copies_in_two_groups_the_newer_is_shown() {
    let sim = Sim::new(2, 2);
    let stored = |version: u64, user, size| Stored {
        version: Version::from(version),
        values: Some(file(42, user, Some(1), size).into()),
    };
    sim.shard("g0", "s0").rows.lock().expect("no panic").insert(42, stored(1, 1, 10));
    sim.shard("g1", "s0").rows.lock().expect("no panic").insert(42, stored(2, 2, 20));
    for request in [everything(), QueryRequest { ids: Some(vec![42]), ..everything() }] {
        let answer = sim.ask(request).await.expect("answered");
        assert_eq!(answer.rows.len(), 1);
        assert_eq!(answer.rows[0].tenant, 2);
    }
}

/// Case 25: a million tombstones between two rows.
#[tokio::test]
async fn case_25_a_page_is_bounded_by_work() {
    let mut options = writable();
    options.budget.entries = 100_000;
    let sim = Sim::of(Shape { options, ..Shape::of(1, 1) });
    {
        let mut rows = sim.shard("g0", "s0").rows.lock().expect("no panic");
        let tombstone = Stored { version: Version::from(2), values: None };
        rows.extend((2..=1_000_001).map(|id| (id, tombstone.clone())));
        for id in [1, 1_000_002] {
            rows.insert(id, Stored { version: Version::from(1), values: Some(file(id, 9, None, 0).into()) });
        }
    }
    let request = || QueryRequest { limit: Some(2), ..everything() };
    let first = sim.ask(request()).await.expect("answered");
    assert_eq!(ids(&first.rows), [1]);
    assert!(first.next.is_some(), "it is not finished");
    assert_eq!(first.meta.examined, 100_000);
    let (rows, pages) = sim.walk(request()).await;
    assert_eq!(ids(&rows), [1, 1_000_002]);
    assert!(pages <= 11, "{pages}");
}

/// One shard out of budget holds the others back: nothing behind its place may be shown yet.
#[tokio::test]
async fn a_shard_out_of_budget_makes_the_page_short_and_loses_nothing() {
    let mut options = writable();
    options.budget.entries = 10;
    let sim = Sim::of(Shape { options, ..Shape::of(1, 2) });
    // s0 has 50 rows that the filter drops, then one that it keeps; s1's all match.
    let rows = (0..51).map(|n| file(2 * n, 9, None, u64::from(n == 50)));
    sim.write(rows.chain((0..20).map(|n| file(2 * n + 1, 9, None, 1))).collect()).await;
    let request = QueryRequest { filter: Some("size == 1".into()), ..everything() };
    let first = sim.ask(request.clone()).await.expect("answered");
    assert!(first.rows.len() < 20 && first.next.is_some());
    let (rows, _) = sim.walk(request).await;
    let mut expected: Vec<u64> = (0..20).map(|n| 2 * n + 1).collect();
    expected.push(100);
    assert_eq!(ids(&rows), expected);
}

#[tokio::test]
async fn a_cursor_is_bound_to_tenant_and_query_but_not_to_the_page_size() {
    let sim = Sim::new(1, 2);
    sim.write(spread(10, 9)).await;
    let first = sim.ask(QueryRequest { limit: Some(3), ..of_user(9) }).await.expect("answered");
    let with = |request: QueryRequest| QueryRequest { cursor: first.next.clone(), ..request };
    let other_size = sim.ask(with(QueryRequest { limit: Some(5), ..of_user(9) })).await.expect("same walk");
    assert_eq!(ids(&other_size.rows), [6, 5, 4, 3, 2]);
    for request in [
        of_user(8),
        everything(),
        QueryRequest { order: Some("created_at:asc".into()), ..of_user(9) },
        QueryRequest { filter: Some("size > 1".into()), ..of_user(9) },
    ] {
        assert_eq!(sim.ask(with(request)).await.expect_err("another walk").code, Code::CursorInvalid);
    }
    let request = QueryRequest { cursor: Some("AQAAAA".into()), ..of_user(9) };
    assert_eq!(sim.ask(request).await.expect_err("forged").code, Code::CursorInvalid);
}

#[tokio::test]
async fn ids_are_paged_in_order_too() {
    let sim = Sim::new(2, 3);
    sim.write((0..40).map(|id| file(id, id % 5, None, id)).collect()).await;
    for order in ["file_id:asc", "file_id:desc"] {
        let request =
            QueryRequest { ids: Some((0..80).collect()), limit: Some(7), order: Some(order.into()), ..everything() };
        let (rows, pages) = sim.walk(request).await;
        let mut expected: Vec<u64> = (0..40).collect();
        if order.ends_with("desc") {
            expected.reverse();
        }
        assert_eq!((ids(&rows), pages), (expected, 6));
    }
}
