//! Slots that move while queries run.

use std::sync::Arc;

use metaroute_cluster::query::QueryRequest;
use metaroute_cluster::topology::{Document, OwnerEntry, Topology};
use metaroute_cluster::{Code, SlotSet};

use crate::sim::{Behaviour, Shape, Sim, everything, file, ids, of_user, spread};

/// The topology in which slots have gone to another shard at `epoch`.
fn moved(topology: &Topology, slots: &[u32], to: &str, epoch: u64) -> Arc<Topology> {
    let slots: SlotSet = slots.iter().copied().collect();
    let mut document: Document = topology.document().clone();
    document.epoch = epoch;
    for owner in &mut document.groups[0].owners {
        owner.slots = owner.slots.difference(&slots);
    }
    document.groups[0].owners.push(OwnerEntry { slots, shard: to.into(), epoch });
    Arc::new(Topology::new(document).expect("valid"))
}

/// Moves the rows of a slot as well as its ownership, as all shards see it.
fn carry_out(sim: &Sim, slot: u32, from: &str, to: &str, topology: &Arc<Topology>) {
    let slots = u64::from(topology.groups()[0].slots());
    let mut source = sim.shard("g0", from).rows.lock().expect("no panic");
    let mut target = sim.shard("g0", to).rows.lock().expect("no panic");
    for (id, row) in source.iter().filter(|(id, _)| **id % slots == u64::from(slot)) {
        target.insert(*id, row.clone());
    }
    // The old copy is dropped lazily: it stays for now, and slot-scoped answers must not show it.
    source.retain(|_, _| true);
    for shard in [from, to] {
        *sim.shard("g0", shard).topology.lock().expect("no panic") = Arc::clone(topology);
    }
}

/// Case 10: slot 7 moves from s1 to s0 after s0 was asked and before s1 answers.
#[tokio::test]
async fn case_10_a_slot_that_moves_during_a_query_is_answered_exactly_once() {
    for path in [of_user(9), everything(), QueryRequest { ids: Some((0..20).collect()), ..of_user(9) }] {
        let sim = Arc::new(Sim::new(1, 2));
        sim.write(spread(20, 9)).await;
        let topology = moved(&sim.topology, &[7], "s0", 12);
        let mover = Arc::clone(&sim);
        let act = move || carry_out(&mover, 7, "s1", "s0", &topology);
        sim.set("g0", "s1", Behaviour::First(Arc::new(act)));
        let answer = sim.ask(path).await.expect("complete");
        let mut got = ids(&answer.rows);
        got.sort_unstable();
        assert_eq!(got, (0..20).collect::<Vec<_>>());
        assert!(answer.meta.complete);
        assert_eq!(answer.meta.shards.moved_retried, 1);
        assert_eq!((answer.meta.shards.total, answer.meta.shards.ok), (2, 2));
        sim.set("g0", "s1", Behaviour::Answers);
    }
}

/// Case 16: a stale router is told the owner, corrects its table and needs the extra hop once.
#[tokio::test]
async fn case_16_a_stale_route_costs_one_extra_hop_once() {
    let sim = Sim::new(1, 2);
    sim.write(spread(20, 9)).await;
    let topology = moved(&sim.topology, &[7], "s0", 12);
    carry_out(&sim, 7, "s1", "s0", &topology);
    let one = || QueryRequest { ids: Some(vec![7]), ..of_user(9) };
    let answer = sim.ask(one()).await.expect("one hop");
    assert_eq!((ids(&answer.rows), answer.meta.shards.moved_retried), (vec![7], 1));
    let answer = sim.ask(one()).await.expect("learned");
    assert_eq!((ids(&answer.rows), answer.meta.shards.moved_retried), (vec![7], 0));
}

/// Case 16: shards that point at each other are given up after two hops.
#[tokio::test]
async fn case_16_after_two_hops_it_is_a_coverage_gap() {
    let sim = Sim::new(1, 3);
    // Every shard believes that the next one owns slot 0, at ever higher epochs.
    for (at, to) in [(0, "s1"), (1, "s2"), (2, "s0")] {
        let topology = moved(&sim.topology, &[0], to, 12 + at);
        *sim.shard("g0", &format!("s{at}")).topology.lock().expect("no panic") = topology;
    }
    let failure = sim.ask(QueryRequest { ids: Some(vec![0]), ..of_user(9) }).await.expect_err("no owner");
    assert_eq!(failure.code, Code::CoverageGap);
    assert_eq!(failure.meta.expect("accounts").shards.moved_retried, 2);
}

/// Case 12: the old owner is cut off and does not know it; the router knows more and gets no wrong answer.
#[tokio::test]
async fn case_12_a_cut_off_owner_is_not_ready_instead_of_wrong() {
    let new = moved(&Topology::initial(1, 2).expect("legal"), &[7], "s1", 12);
    let back = moved(&new, &[7], "s0", 13);
    let sim = Sim::of(Shape { topology: Topology::clone(&back), ..Shape::of(1, 2) });
    // s0 has only heard of epoch 12.
    *sim.shard("g0", "s0").topology.lock().expect("no panic") = new;
    let failure = sim.ask(QueryRequest { ids: Some(vec![7]), ..of_user(9) }).await.expect_err("behind");
    assert_eq!(failure.code, Code::NotReady);
    *sim.shard("g0", "s0").topology.lock().expect("no panic") = back;
    assert!(sim.ask(QueryRequest { ids: Some(vec![7]), ..of_user(9) }).await.expect("healed").meta.complete);
}

#[tokio::test]
async fn a_write_follows_a_slot_that_has_moved() {
    let sim = Sim::new(1, 2);
    let topology = moved(&sim.topology, &[7], "s0", 12);
    carry_out(&sim, 7, "s1", "s0", &topology);
    sim.write(vec![file(7, 9, None, 1), file(8, 9, None, 1), file(9, 9, None, 1)]).await;
    assert!(sim.shard("g0", "s0").rows.lock().expect("no panic").contains_key(&7));
    assert_eq!(ids(&sim.ask(of_user(9)).await.expect("answered").rows), [9, 8, 7]);
}

#[tokio::test]
async fn exports_and_counts_follow_moves_too() {
    for export in [true, false] {
        let sim = Arc::new(Sim::new(1, 2));
        sim.write(spread(50, 9)).await;
        let topology = moved(&sim.topology, &[7, 9], "s0", 12);
        let mover = Arc::clone(&sim);
        let act = move || {
            carry_out(&mover, 7, "s1", "s0", &topology);
            carry_out(&mover, 9, "s1", "s0", &topology);
        };
        sim.set("g0", "s1", Behaviour::First(Arc::new(act)));
        let query = sim.query(of_user(9));
        let rows = if export {
            let mut export = sim.router.export(&query, &crate::sim::call()).await.expect("begun");
            let mut rows = 0;
            while let Some(batch) = export.next().await.expect("goes on") {
                rows += batch.len() as u64;
            }
            assert!(export.finish().expect("finished").complete);
            rows
        } else {
            sim.router.count(&query, &[], &crate::sim::call()).await.expect("counted").rows
        };
        assert_eq!(rows, 50);
        sim.set("g0", "s1", Behaviour::Answers);
    }
}
