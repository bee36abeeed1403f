//! Slow copies.

use std::time::Duration;

use metaroute_cluster::query::QueryRequest;

use crate::sim::{Behaviour, Shape, Sim, call, everything, of_user, spread};

async fn run(sim: &Sim, queries: usize) -> (u32, Duration) {
    let (mut hedged, mut slowest) = (0, Duration::ZERO);
    for n in 0..queries {
        let started = tokio::time::Instant::now();
        let request = QueryRequest { ids: Some(vec![n as u64 % 30]), ..of_user(9) };
        let answer = sim.router.query(&sim.query(request), &call()).await.expect("answered");
        assert!(answer.meta.complete);
        hedged += answer.meta.hedged;
        slowest = slowest.max(started.elapsed());
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    (hedged, slowest)
}

/// Case 33: when every copy is slow, hedging adds at most its budget.
#[tokio::test(start_paused = true)]
async fn case_33_hedging_never_costs_more_than_its_budget() {
    let sim = Sim::of(Shape { copies: 2, ..Shape::of(1, 3) });
    sim.write(spread(30, 9)).await;
    for ((id, number), (_, fake)) in &sim.copies {
        assert!(*number < 2, "{id}");
        *fake.behaviour.lock().expect("no panic") = Behaviour::Slow(Duration::from_millis(200));
    }
    let before = sim.asked();
    let (hedged, _) = run(&sim, 400).await;
    let extra = sim.asked() - before - 400;
    assert_eq!(extra as u32, hedged);
    assert!(extra > 0 && extra <= 20, "{extra} extra requests for 400");
}

/// Case 33: one slow copy of two costs the hedge delay, not its slowness.
#[tokio::test(start_paused = true)]
async fn case_33_one_slow_copy_is_made_up_for() {
    let mut shape = Shape { copies: 2, ..Shape::of(1, 1) };
    shape.options.hedge.ratio = 1.0;
    let sim = Sim::of(shape);
    sim.write(spread(30, 9)).await;
    *sim.copy("g0", "s0", 0).behaviour.lock().expect("no panic") = Behaviour::Slow(Duration::from_secs(5));
    let (hedged, slowest) = run(&sim, 100).await;
    assert!(hedged > 10, "{hedged}");
    assert!(slowest < Duration::from_millis(200), "{slowest:?}");
}

#[tokio::test(start_paused = true)]
async fn full_scans_are_never_hedged() {
    let mut shape = Shape { copies: 2, ..Shape::of(1, 2) };
    shape.options.hedge.ratio = 1.0;
    let sim = Sim::of(shape);
    sim.write(spread(30, 9)).await;
    for fake in sim.fakes() {
        *fake.behaviour.lock().expect("no panic") = Behaviour::Slow(Duration::from_secs(1));
    }
    for _ in 0..20 {
        assert_eq!(sim.ask(everything()).await.expect("answered").meta.hedged, 0);
    }
}
