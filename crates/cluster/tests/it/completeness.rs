//! What an answer says it covers.

use std::time::Duration;

use metaroute_cluster::protocol::ShardState;
use metaroute_cluster::query::QueryRequest;
use metaroute_cluster::router::Call;
use metaroute_cluster::topology::{Document, Topology};
use metaroute_cluster::{Code, Failure, SlotSet};

use crate::sim::{Behaviour, Shape, Sim, everything, ids, of_user, spread};

fn partial(request: QueryRequest) -> QueryRequest {
    QueryRequest { partial: true, ..request }
}

/// The accounts must always add up.
fn check(meta: &metaroute_cluster::Meta) {
    let shards = meta.shards;
    assert_eq!(shards.ok + shards.failed + shards.timed_out + shards.not_ready, shards.total, "{shards:?}");
    assert_eq!(meta.slots.wanted, meta.slots.answered + meta.missing_slots());
    assert_eq!(meta.complete, meta.missing.is_empty());
}

fn meta_of(failure: &Failure) -> &metaroute_cluster::Meta {
    let meta = failure.meta.as_ref().expect("what was reached");
    check(meta);
    meta
}

/// Case 1: slots nobody owns make an error, not three quarters of the rows.
#[tokio::test]
async fn case_01_slots_without_an_owner_are_a_coverage_gap() {
    let mut document: Document = Topology::initial(1, 4).expect("legal").document().clone();
    let gone: SlotSet = (2048..3072).collect();
    for owner in &mut document.groups[0].owners {
        owner.slots = owner.slots.difference(&gone);
    }
    let topology = Topology::with_gaps(document).expect("forced");
    let sim = Sim::of(Shape { topology, ..Shape::of(1, 4) });
    let failure = sim.ask(of_user(9)).await.expect_err("incomplete");
    assert_eq!(failure.code, Code::CoverageGap);
    let meta = meta_of(&failure);
    assert_eq!((meta.missing_slots(), meta.slots.wanted, meta.shards.ok), (1024, 4096, 4));
    let answer = sim.ask(partial(of_user(9))).await.expect("partial");
    assert!(!answer.meta.complete);
}

/// Case 2: one of twelve shards down.
#[tokio::test]
async fn case_02_one_dead_shard_is_an_error_or_a_marked_partial_answer() {
    let sim = Sim::new(1, 12);
    sim.write(spread(48, 9)).await;
    sim.set("g0", "s3", Behaviour::Down);
    let failure = sim.ask(of_user(9)).await.expect_err("strict");
    assert_eq!(failure.code, Code::Incomplete);
    let meta = meta_of(&failure);
    assert_eq!((meta.shards.total, meta.shards.ok, meta.shards.failed), (12, 11, 1));
    assert_eq!((&*meta.missing[0].group, &*meta.missing[0].shard), ("g0", "s3"));
    let answer = sim.ask(partial(of_user(9))).await.expect("partial");
    check(&answer.meta);
    assert!(!answer.meta.complete);
    assert_eq!(answer.rows.len(), 44);
    assert!(answer.rows.iter().all(|row| row.id % 12 != 3));
}

/// Case 3: timed-out shards are not successes.
#[tokio::test(start_paused = true)]
async fn case_03_timed_out_shards_are_counted_apart() {
    let sim = Sim::new(1, 5);
    for shard in ["s1", "s4"] {
        sim.set("g0", shard, Behaviour::Slow(Duration::from_secs(60)));
    }
    let query = sim.query(partial(of_user(9)));
    let answer = sim.router.query(&query, &Call::within(Duration::from_secs(1))).await.expect("partial");
    check(&answer.meta);
    let shards = answer.meta.shards;
    assert_eq!((shards.ok, shards.timed_out, shards.failed, shards.total), (3, 2, 0, 5));
    let failure = sim.router.query(&sim.query(of_user(9)), &Call::within(Duration::from_secs(1))).await;
    assert_eq!(failure.expect_err("strict").code, Code::DeadlineExceeded);
}

/// Case 4: a slow shard costs the deadline and no more, and does not take the others' rows along.
#[tokio::test(start_paused = true)]
async fn case_04_a_slow_shard_does_not_spoil_the_others() {
    let sim = Sim::new(1, 3);
    sim.write(spread(300, 9)).await;
    sim.set("g0", "s2", Behaviour::Slow(Duration::from_secs(10)));
    let started = tokio::time::Instant::now();
    let query = sim.query(QueryRequest { limit: Some(1000), ..partial(of_user(9)) });
    let answer = sim.router.query(&query, &Call::within(Duration::from_secs(1))).await.expect("partial");
    assert!(started.elapsed() <= Duration::from_millis(1_050), "{:?}", started.elapsed());
    assert_eq!(answer.rows.len(), 200);
    assert_eq!(answer.meta.missing.len(), 1);
    assert_eq!(&*answer.meta.missing[0].shard, "s2");
    assert_eq!(answer.meta.shards.timed_out, 1);
    tokio::task::yield_now().await;
    assert_eq!(sim.busy(), 0, "the slow shard was told to stop");
}

/// Case 7: tolerance ends where nobody answered.
#[tokio::test]
async fn case_07_all_failed_is_an_error_even_when_partial_is_allowed() {
    let sim = Sim::new(1, 12);
    for shard in 0..12 {
        sim.set("g0", &format!("s{shard}"), Behaviour::Down);
    }
    let failure = sim.ask(partial(of_user(9))).await.expect_err("nobody answered");
    assert_eq!(failure.code, Code::Incomplete);
    assert_eq!(meta_of(&failure).shards.failed, 12);
}

/// Case 9: a loading copy never answers with an empty list.
#[tokio::test]
async fn case_09_a_loading_copy_is_not_ready_and_says_how_far_it_is() {
    let sim = Sim::new(1, 2);
    sim.write(spread(10, 9)).await;
    sim.set("g0", "s1", Behaviour::NotReady(ShardState::Loading, Some(400)));
    let failure = sim.ask(of_user(9)).await.expect_err("strict");
    assert_eq!(failure.code, Code::NotReady);
    let meta = meta_of(&failure);
    assert_eq!((meta.shards.not_ready, meta.shards.ok), (1, 1));
    assert!(meta.missing[0].detail.contains("LOADING"), "{:?}", meta.missing[0]);
    let answer = sim.ask(partial(of_user(9))).await.expect("partial");
    assert_eq!((answer.rows.len(), answer.meta.complete), (5, false));
}

/// The registry already says it: nobody is asked.
#[tokio::test]
async fn case_09_a_copy_registered_as_loading_is_not_asked() {
    let sim = Sim::new(1, 2);
    let id = sim.copies[&(metaroute_cluster::protocol::ShardId::new("g0", "s1"), 0)].0.id.clone();
    for state in [ShardState::Loading, ShardState::CatchingUp, ShardState::Draining, ShardState::Failed] {
        sim.announce(&[(&id, state)]);
        let failure = sim.ask(of_user(9)).await.expect_err("strict");
        assert_eq!((failure.code, meta_of(&failure).shards.not_ready), (Code::NotReady, 1), "{state}");
    }
    assert_eq!(sim.shard("g0", "s1").asked.load(std::sync::atomic::Ordering::SeqCst), 0);
}

/// Another copy of a shard that is not ready answers instead.
#[tokio::test]
async fn a_ready_copy_answers_for_one_that_is_not() {
    let sim = Sim::of(Shape { copies: 2, ..Shape::of(1, 1) });
    sim.write(spread(10, 9)).await;
    for behaviour in [Behaviour::NotReady(ShardState::Loading, None), Behaviour::Down] {
        *sim.copy("g0", "s0", 0).behaviour.lock().expect("no panic") = behaviour;
        for _ in 0..10 {
            let answer = sim.ask(of_user(9)).await.expect("the other copy");
            assert!(answer.meta.complete);
            assert_eq!(answer.rows.len(), 10);
        }
    }
}

/// Case 17: two addresses of one shard are copies, asked once.
#[tokio::test]
async fn case_17_two_addresses_of_one_shard_are_asked_once() {
    let sim = Sim::of(Shape { copies: 2, ..Shape::of(1, 3) });
    sim.write(spread(9, 9)).await;
    let before = sim.asked();
    let answer = sim.ask(of_user(9)).await.expect("answered");
    assert_eq!(sim.asked() - before, 3);
    assert_eq!(answer.meta.shards.total, 3);
    assert_eq!(ids(&answer.rows).len(), 9);
}

/// A copy that breaks off in the middle is replaced by another that goes on behind the last row.
#[tokio::test]
async fn a_copy_that_breaks_off_is_continued_by_another() {
    let sim = Sim::of(Shape { copies: 2, ..Shape::of(1, 1) });
    sim.write(spread(60, 9)).await;
    *sim.copy("g0", "s0", 0).behaviour.lock().expect("no panic") = Behaviour::BreaksOff(14);
    for _ in 0..8 {
        let answer = sim.ask(of_user(9)).await.expect("continued");
        assert!(answer.meta.complete);
        assert_eq!(ids(&answer.rows), (0..60).rev().collect::<Vec<_>>());
        check(&answer.meta);
    }
}

/// Without another copy it is missing, and its slots do not count as answered.
#[tokio::test]
async fn a_copy_that_breaks_off_alone_is_missing() {
    let sim = Sim::new(1, 2);
    sim.write(spread(60, 9)).await;
    sim.set("g0", "s0", Behaviour::BreaksOff(14));
    let failure = sim.ask(of_user(9)).await.expect_err("strict");
    assert_eq!(failure.code, Code::Incomplete);
    assert_eq!(meta_of(&failure).missing_slots(), 2048);
}

#[tokio::test]
async fn no_topology_is_said_as_such() {
    let mut document = Topology::initial(1, 1).expect("legal").document().clone();
    document.groups.clear();
    document.tenants = Default::default();
    let sim = Sim::of(Shape { topology: Topology::with_gaps(document).expect("forced"), ..Shape::of(1, 1) });
    assert_eq!(sim.ask(of_user(9)).await.expect_err("empty").code, Code::NoTopology);
}

#[tokio::test]
async fn every_path_is_answered_and_named() {
    let sim = Sim::new(2, 3);
    sim.write((0..60).map(|id| crate::sim::file(id, id % 7, Some(id as i64), id)).collect()).await;
    for (tenant, wanted, path) in [
        (Some(3), Some(vec![3]), "A"),
        (Some(3), Some(vec![3, 10, 4]), "AB"),
        (Some(3), None, "B"),
        (None, Some(vec![3, 59]), "CI"),
        (None, None, "C"),
    ] {
        let answer = sim.ask(QueryRequest { tenant, ids: wanted.clone(), ..everything() }).await.expect("answered");
        check(&answer.meta);
        assert_eq!(answer.meta.path.name(), path);
        let expected: Vec<u64> = (0..60)
            .filter(|id| tenant.is_none_or(|tenant| id % 7 == tenant))
            .filter(|id| wanted.as_ref().is_none_or(|wanted| wanted.contains(id)))
            .collect();
        let mut got = ids(&answer.rows);
        got.sort_unstable();
        assert_eq!(got, expected, "{path}");
        assert!(answer.meta.cost > 0.0 && answer.meta.examined > 0);
    }
}

/// Case 29: explaining works where running is refused.
#[tokio::test]
async fn case_29_a_refused_query_is_explained() {
    let sim = Sim::new(20, 12);
    let query = sim.query(QueryRequest::default());
    let failure = sim.router.query(&query, &crate::sim::call()).await.expect_err("refused");
    assert_eq!(failure.code, Code::GlobalScanNotAllowed);
    assert_eq!(sim.asked(), 0);
    let explanation = sim.router.explain(&query, metaroute_cluster::scatter::Rights::ALL).expect("explained");
    assert_eq!((explanation.path.name(), explanation.shards, explanation.verdict), ("C", 240, "denied"));
    let denied = explanation.denied.expect("denied");
    assert_eq!(denied.code, "global_scan_not_allowed");
    assert!(denied.hint.expect("how to fix").contains("user_id"));
    assert_eq!(explanation.targets[0].replicas.len(), 1);
    assert!(explanation.targets[0].replicas[0].kept);
}
