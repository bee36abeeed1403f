//! Wide queries, clients that leave, exports.

use std::sync::atomic::Ordering;
use std::time::Duration;

use metaroute_cluster::Code;
use metaroute_cluster::query::QueryRequest;
use metaroute_cluster::router::Call;
use metaroute_store::Value;

use crate::sim::{Behaviour, Shape, Sim, call, everything, file, of_user, spread, writable};

/// Case 30: an answer beyond the merge buffer is refused and everything called off.
#[tokio::test]
async fn case_30_a_result_that_is_too_large_is_refused_and_called_off() {
    let mut options = writable();
    options.merge_bytes = 64 << 10;
    let sim = Sim::of(Shape { options, ..Shape::of(1, 4) });
    let mut rows = spread(200, 9);
    for row in &mut rows {
        row[2] = Value::String("x".repeat(1024));
    }
    sim.write(rows).await;
    let failure = sim.ask(QueryRequest { limit: Some(1000), ..of_user(9) }).await.expect_err("200 KiB");
    assert_eq!(failure.code, Code::ResultTooLarge);
    assert!(failure.meta.is_some());
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(sim.busy(), 0, "sub-requests are called off");
    assert_eq!(sim.ask(QueryRequest { limit: Some(20), ..of_user(9) }).await.expect("fits").rows.len(), 20);
}

/// Case 32: the client leaves after 100 ms of a 10 s query.
#[tokio::test(start_paused = true)]
async fn case_32_a_client_that_leaves_ends_its_sub_requests() {
    let sim = Sim::new(2, 6);
    for (id, _) in sim.copies.keys() {
        sim.set(&id.group, &id.shard, Behaviour::Slow(Duration::from_secs(10)));
    }
    let query = sim.query(everything());
    let call = call();
    let left = tokio::time::timeout(Duration::from_millis(100), sim.router.query(&query, &call)).await;
    assert!(left.is_err(), "the client left first");
    let idle = async {
        while sim.busy() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_millis(200), idle).await.expect("all shards idle");
}

/// Case 38: an export streams: what the router holds does not grow with the result.
#[tokio::test]
async fn case_38_an_export_holds_a_bounded_part_of_its_rows() {
    let mut options = writable();
    // Far below the whole result.
    options.merge_bytes = 256 << 10;
    let sim = Sim::of(Shape { options, ..Shape::of(1, 4) });
    for chunk in spread(50_000, 9).chunks(10_000) {
        sim.write(chunk.to_vec()).await;
    }
    for fake in sim.fakes() {
        fake.batch.store(64, Ordering::Relaxed);
    }
    for request in [of_user(9), everything()] {
        let mut export = sim.router.export(&sim.query(request), &call()).await.expect("begun");
        let (mut count, mut last) = (0_u64, None);
        while let Some(rows) = export.next().await.expect("goes on") {
            for row in rows {
                assert_ne!(last, Some(row.id));
                last = Some(row.id);
                count += 1;
            }
        }
        let meta = export.finish().expect("finished");
        assert_eq!((count, meta.returned, meta.complete), (50_000, 50_000, true));
    }
}

/// A long export asks each shard many times, and lets go of each answer before the next question.
#[tokio::test]
async fn case_38_an_export_holds_one_answer_of_each_shard() {
    let sim = Sim::new(1, 2);
    for chunk in spread(100_000, 9).chunks(10_000) {
        sim.write(chunk.to_vec()).await;
    }
    for fake in sim.fakes() {
        fake.batch.store(1_000, Ordering::Relaxed);
    }
    let asked = sim.asked();
    let mut export = sim.router.export(&sim.query(everything()), &call()).await.expect("begun");
    let (mut count, mut open) = (0, 0);
    while let Some(rows) = export.next().await.expect("goes on") {
        count += rows.len();
        open = open.max(sim.open());
    }
    assert!(sim.asked() - asked >= 6, "{} questions", sim.asked() - asked);
    assert_eq!((count, open), (100_000, 2));
}

#[tokio::test]
async fn an_export_that_loses_a_shard_does_not_finish() {
    let sim = Sim::new(1, 2);
    sim.write(spread(100, 9)).await;
    sim.set("g0", "s1", Behaviour::BreaksOff(21));
    let mut export = sim.router.export(&sim.query(of_user(9)), &call()).await.expect("begun");
    let failure = loop {
        match export.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it must not look finished"),
            Err(failure) => break failure,
        }
    };
    assert_eq!(failure.code, Code::Incomplete);
    assert!(export.finish().is_err());
}

#[tokio::test]
async fn a_dropped_export_frees_the_shards() {
    let sim = Sim::new(1, 2);
    sim.write(spread(5_000, 9)).await;
    let mut export = sim.router.export(&sim.query(of_user(9)), &call()).await.expect("begun");
    assert!(export.next().await.expect("rows").is_some());
    assert!(sim.busy() > 0);
    drop(export);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(sim.busy(), 0);
}

#[tokio::test(start_paused = true)]
async fn global_queries_have_their_own_limit() {
    let mut options = writable();
    options.global_queries = 2;
    let sim = Sim::of(Shape { options, ..Shape::of(1, 1) });
    sim.set("g0", "s0", Behaviour::Slow(Duration::from_secs(5)));
    let query = sim.query(everything());
    let call = Call::within(Duration::from_secs(30));
    let (a, b, c) =
        tokio::join!(sim.router.query(&query, &call), sim.router.query(&query, &call), sim.router.query(&query, &call));
    let codes: Vec<Option<Code>> =
        [a, b, c].into_iter().map(|answer| answer.err().map(|failure| failure.code)).collect();
    assert_eq!(codes.iter().filter(|code| **code == Some(Code::Overloaded)).count(), 1);
    assert_eq!(codes.iter().filter(|code| code.is_none()).count(), 2);
}

#[tokio::test]
async fn counts_and_sums_are_those_of_the_rows() {
    let sim = Sim::new(2, 3);
    sim.write((0..100).map(|id| file(id, id % 4, Some(id as i64), id)).collect()).await;
    let size = sim.schema.ordinal("size").expect("there");
    for (request, rows, sum) in [
        (everything(), 100, (0..100).sum::<u64>()),
        (of_user(1), 25, (0..100).filter(|id| id % 4 == 1).sum()),
        (QueryRequest { ids: Some(vec![1, 5, 6, 999]), ..of_user(1) }, 2, 6),
        (QueryRequest { ids: Some(vec![1, 5, 6, 999]), ..everything() }, 3, 12),
        (of_user(77), 0, 0),
    ] {
        let query = sim.query(QueryRequest { fields: Some(vec!["size".into()]), ..request });
        let count = sim.router.count(&query, &[size], &call()).await.expect("counted");
        assert_eq!((count.rows, count.sums[0].expect("fits").to_string()), (rows, sum.to_string()));
        assert!(count.meta.complete);
    }
    let path = sim.schema.ordinal("path").expect("there");
    let failure = sim.router.count(&sim.query(of_user(1)), &[path], &call()).await.expect_err("text");
    assert_eq!(failure.code, Code::BadRequest);
}
