//! Writing rows through the router.

use metaroute_cluster::Code;
use metaroute_cluster::placement::bucket;
use metaroute_cluster::query::QueryRequest;
use metaroute_cluster::router::{RouterOptions, Written};
use metaroute_store::Value;

use crate::sim::{Behaviour, Shape, Sim, call, everything, file, ids, of_user};

/// A tenant of each of two groups.
fn two_users() -> (u64, u64) {
    let of = |group| (1..).find(|user| bucket(*user) % 2 == group).expect("there are many");
    (of(0), of(1))
}

#[tokio::test]
async fn a_row_written_under_another_user_leaves_its_old_one() {
    let sim = Sim::new(2, 3);
    let (a, b) = two_users();
    sim.write(vec![file(5, a, Some(1), 1)]).await;
    let written = sim.router.write(&sim.schema, vec![file(5, b, Some(2), 2)], &call()).await.expect("written");
    assert_eq!(written, Written { rows: 1, left: 1 });
    assert_eq!(ids(&sim.ask(of_user(a)).await.expect("answered").rows), Vec::<u64>::new());
    assert_eq!(ids(&sim.ask(of_user(b)).await.expect("answered").rows), [5]);
    let all = sim.ask(everything()).await.expect("answered");
    assert_eq!((ids(&all.rows), all.rows[0].tenant), (vec![5], b));
    // And back again.
    sim.write(vec![file(5, a, Some(3), 3)]).await;
    assert_eq!(ids(&sim.ask(of_user(a)).await.expect("answered").rows), [5]);
    assert_eq!(ids(&sim.ask(of_user(b)).await.expect("answered").rows), Vec::<u64>::new());
}

/// The topology has changed since the shards got their slots; requests rely on the slots' epochs, not on its own.
#[tokio::test]
async fn a_later_topology_epoch_does_not_make_shards_look_behind() {
    let mut document = metaroute_cluster::Topology::initial(2, 3).expect("legal").document().clone();
    document.epoch = 40;
    let topology = metaroute_cluster::Topology::new(document).expect("valid");
    let sim = Sim::of(Shape { topology, ..Shape::of(2, 3) });
    let (a, b) = two_users();
    sim.write(vec![file(5, a, Some(1), 1)]).await;
    sim.write(vec![file(5, b, Some(2), 2)]).await;
    assert_eq!(ids(&sim.ask(of_user(a)).await.expect("answered").rows), Vec::<u64>::new());
    assert_eq!(ids(&sim.ask(of_user(b)).await.expect("answered").rows), [5]);
}

#[tokio::test]
async fn of_one_id_twice_in_a_request_the_last_wins() {
    let sim = Sim::new(2, 2);
    let (a, b) = two_users();
    let rows = vec![file(5, a, None, 1), file(6, a, None, 1), file(5, b, None, 2)];
    let written = sim.router.write(&sim.schema, rows, &call()).await.expect("written");
    assert_eq!(written.rows, 2);
    assert_eq!(ids(&sim.ask(of_user(a)).await.expect("answered").rows), [6]);
    assert_eq!(ids(&sim.ask(of_user(b)).await.expect("answered").rows), [5]);
}

#[tokio::test]
async fn a_dead_shard_fails_its_ids_only_and_repeating_helps() {
    let sim = Sim::new(1, 3);
    sim.set("g0", "s1", Behaviour::Down);
    let rows: Vec<Vec<Value>> = (0..6).map(|id| file(id, 9, None, id)).collect();
    let failure = sim.router.write(&sim.schema, rows.clone(), &call()).await.expect_err("one is dead");
    assert_eq!(failure.code, Code::Incomplete);
    let stored = failure.rows.expect("which");
    assert_eq!((stored.written, stored.failed), (vec![0, 2, 3, 5], vec![1, 4]));
    sim.set("g0", "s1", Behaviour::Answers);
    sim.write(rows).await;
    assert_eq!(sim.ask(of_user(9)).await.expect("answered").rows.len(), 6);
}

/// A full disk is no refusal for good: the request may be repeated, and says which rows are stored.
#[tokio::test]
async fn a_full_disk_is_not_ready_for_writes_and_still_answers() {
    let sim = Sim::new(1, 3);
    sim.set("g0", "s1", Behaviour::DiskFull);
    let rows: Vec<Vec<Value>> = (0..6).map(|id| file(id, 9, None, id)).collect();
    let failure = sim.router.write(&sim.schema, rows.clone(), &call()).await.expect_err("one is full");
    assert_eq!(failure.code, Code::NotReady);
    let stored = failure.rows.expect("which");
    assert_eq!((stored.written, stored.failed), (vec![0, 2, 3, 5], vec![1, 4]));
    assert_eq!(sim.ask(of_user(9)).await.expect("answered").rows.len(), 4);

    let clock = RouterOptions {
        stamps: Some(std::sync::Arc::new(|_| Err("no space left on device".to_owned()))),
        ..RouterOptions::default()
    };
    let sim = Sim::of(Shape { options: clock, ..Shape::of(1, 1) });
    let failure = sim.router.write(&sim.schema, rows, &call()).await.expect_err("no stamp");
    assert_eq!(failure.code, Code::NotReady);
    assert_eq!(sim.router.delete(&sim.schema, 9, 1, &call()).await.expect_err("no stamp").code, Code::NotReady);
}

/// Storing a row while its old copy cannot be looked for would leave that copy behind.
#[tokio::test]
async fn nothing_is_stored_while_old_copies_cannot_be_looked_up() {
    let sim = Sim::new(2, 2);
    let (a, b) = two_users();
    sim.write(vec![file(5, a, None, 1)]).await;
    sim.set("g0", "s1", Behaviour::Down);
    let failure = sim.router.write(&sim.schema, vec![file(5, b, None, 2)], &call()).await.expect_err("unknown");
    let rows = failure.rows.expect("which");
    assert_eq!((rows.written, rows.failed), (vec![], vec![5]));
    sim.set("g0", "s1", Behaviour::Answers);
    assert_eq!(sim.ask(everything()).await.expect("answered").rows[0].tenant, a);
}

#[tokio::test]
async fn deleting_is_bound_to_the_tenant() {
    let sim = Sim::new(2, 2);
    let (a, b) = two_users();
    sim.write(vec![file(5, a, None, 1)]).await;
    assert!(!sim.router.delete(&sim.schema, b, 5, &call()).await.expect("nothing there"));
    assert_eq!(ids(&sim.ask(of_user(a)).await.expect("answered").rows), [5]);
    assert!(sim.router.delete(&sim.schema, a, 5, &call()).await.expect("deleted"));
    assert!(!sim.router.delete(&sim.schema, a, 5, &call()).await.expect("gone already"));
    assert_eq!(
        ids(&sim.ask(QueryRequest { ids: Some(vec![5]), ..everything() }).await.expect("answered").rows),
        Vec::<u64>::new()
    );
}

#[tokio::test]
async fn where_rows_come_from_a_source_writes_are_refused() {
    let sim = Sim::of(Shape { options: RouterOptions::default(), ..Shape::of(1, 1) });
    let failure = sim.router.write(&sim.schema, vec![file(1, 1, None, 1)], &call()).await.expect_err("read-only");
    assert_eq!(failure.code, Code::ReadOnly);
    assert_eq!(sim.router.delete(&sim.schema, 1, 1, &call()).await.expect_err("read-only").code, Code::ReadOnly);
}

#[tokio::test]
async fn a_row_that_does_not_fit_stores_nothing() {
    let sim = Sim::new(1, 1);
    let mut bad = file(2, 9, None, 1);
    bad[2] = Value::Null;
    let failure = sim.router.write(&sim.schema, vec![file(1, 9, None, 1), bad], &call()).await.expect_err("no path");
    assert_eq!(failure.code, Code::BadRequest);
    assert!(failure.message.starts_with("row 2:"), "{failure}");
    assert_eq!(sim.ask(of_user(9)).await.expect("answered").rows.len(), 0);
}

/// Concurrent writers move one row to and fro between two users: in the end it has exactly one copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writes_of_one_id_leave_one_copy() {
    let sim = std::sync::Arc::new(Sim::new(2, 2));
    let (a, b) = two_users();
    let mut tasks = Vec::new();
    for writer in 0..4_u64 {
        let sim = std::sync::Arc::clone(&sim);
        tasks.push(tokio::spawn(async move {
            for n in 0..25 {
                let user = if (writer + n) % 2 == 0 { a } else { b };
                sim.write(vec![file(7, user, None, n), file(8 + writer, user, None, n)]).await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let live = sim.fakes().map(|fake| {
        let rows = fake.rows.lock().expect("no panic");
        rows.get(&7).is_some_and(|stored| stored.values.is_some()) as usize
    });
    assert_eq!(live.sum::<usize>(), 1);
    assert_eq!(sim.ask(everything()).await.expect("answered").rows.len(), 5);
}
