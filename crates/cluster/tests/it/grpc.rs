//! The same cluster with gRPC between router and shards.

use std::sync::Arc;
use std::time::Duration;

use metaroute_cluster::Code;
use metaroute_cluster::client::{GrpcShards, ShardService};
use metaroute_cluster::protocol::ShardState;
use metaroute_cluster::query::QueryRequest;
use metaroute_cluster::replicas::instance;
use metaroute_core::{Address, Update};
use metaroute_store::Value;
use tokio::net::TcpListener;

use crate::sim::{Behaviour, Handle, Shape, Sim, call, everything, file, ids, of_user, spread};

/// Every copy behind a listener of its own; the tasks end with the runtime of the test.
async fn remote(groups: u32, shards: u32) -> Sim {
    let sim = Sim::of(Shape { client: Some(Arc::new(GrpcShards::new())), ..Shape::of(groups, shards) });
    let mut list = Vec::new();
    for ((id, _), (_, fake)) in &sim.copies {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let service = ShardService::server(Arc::new(Handle(Arc::clone(fake))));
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        list.push(instance(Address::new("127.0.0.1", port).expect("legal"), id, ShardState::Ready, None));
    }
    sim.replicas.apply(Update::Snapshot(list));
    sim
}

/// Case 31: however many queries run at once, a router has one connection to a copy, which carries all of them.
#[tokio::test(flavor = "multi_thread")]
async fn case_31_a_thousand_queries_share_a_connection_per_shard() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio_stream::StreamExt;
    let sim = Sim::of(Shape { client: Some(Arc::new(GrpcShards::new())), ..Shape::of(1, 12) });
    let accepted: Arc<AtomicUsize> = Arc::default();
    let mut list = Vec::new();
    for ((id, _), (_, fake)) in &sim.copies {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let accepted = Arc::clone(&accepted);
        let incoming = tonic::transport::server::TcpIncoming::from(listener).map(move |stream| {
            accepted.fetch_add(1, Ordering::SeqCst);
            stream
        });
        let service = ShardService::server(Arc::new(Handle(Arc::clone(fake))));
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        list.push(instance(Address::new("127.0.0.1", port).expect("legal"), id, ShardState::Ready, None));
    }
    sim.replicas.apply(Update::Snapshot(list));
    sim.write(spread(240, 9)).await;
    let query = Arc::new(sim.query(of_user(9)));
    let asking: Vec<_> = (0..1_000)
        .map(|_| {
            let (router, query) = (sim.router.clone(), Arc::clone(&query));
            tokio::spawn(async move { router.query(&query, &call()).await })
        })
        .collect();
    for answer in asking {
        assert_eq!(answer.await.expect("no panic").expect("answered").rows.len(), 100);
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 12, "one each");
}

/// A page that needs less than its shards have leaves their answers unread, thousands of times on one connection here.
/// This passed as well while answers were reset at once: it does not reproduce the `h2 protocol error` seen under load.
#[tokio::test(flavor = "multi_thread")]
async fn answers_left_unread_do_not_wear_the_connection_out() {
    let sim = remote(1, 2).await;
    sim.write(spread(100, 9)).await;
    let asking: Vec<_> = (0..8_u64)
        .map(|task| {
            let router = sim.router.clone();
            let queries = [
                sim.query(QueryRequest { limit: Some(1), ..of_user(9) }),
                sim.query(QueryRequest { ids: Some(vec![task]), ..of_user(9) }),
            ];
            tokio::spawn(async move {
                for n in 0..800 {
                    let answer = router.query(&queries[n % 2], &call()).await;
                    assert_eq!(answer.expect("answered").rows.len(), 1, "query {n}");
                }
            })
        })
        .collect();
    for asking in asking {
        asking.await.expect("no query failed");
    }
}

#[tokio::test]
async fn reads_and_writes_cross_the_wire() {
    let sim = remote(2, 3).await;
    sim.write((0..60).map(|id| file(id, id % 7, Some(id as i64), id)).collect()).await;
    let mut note = file(1_000, 3, None, 0);
    note[5] = Value::String("späť 🗂".into());
    sim.write(vec![note.clone()]).await;
    let (rows, _) = sim.walk(QueryRequest { limit: Some(4), ..of_user(3) }).await;
    assert_eq!(ids(&rows), [59, 52, 45, 38, 31, 24, 17, 10, 3, 1_000]);
    assert_eq!(sim.walk(QueryRequest { limit: Some(9), ..everything() }).await.0.len(), 61);
    let fields = Some(sim.schema.columns().iter().map(|column| column.name.clone()).collect());
    let one = QueryRequest { ids: Some(vec![1_000]), fields, ..of_user(3) };
    assert_eq!(sim.ask(one).await.expect("answered").rows[0].values, note);
    assert!(sim.router.delete(&sim.schema, 3, 1_000, &call()).await.expect("deleted"));
    assert_eq!(sim.router.count(&sim.query(of_user(3)), &[], &call()).await.expect("counted").rows, 9);
}

#[tokio::test]
async fn states_and_failures_cross_the_wire() {
    let sim = remote(1, 2).await;
    sim.set("g0", "s1", Behaviour::NotReady(ShardState::CatchingUp, None));
    assert_eq!(sim.ask(of_user(9)).await.expect_err("strict").code, Code::NotReady);
    sim.set("g0", "s1", Behaviour::Down);
    let failure = sim.ask(of_user(9)).await.expect_err("strict");
    assert_eq!(failure.code, Code::Incomplete);
    assert!(failure.meta.expect("accounts").missing[0].detail.contains("connection refused"));
}

/// Whose clock rings first, the router's or the client's, is chance.
#[tokio::test]
async fn a_slow_copy_is_timed_out_and_not_failed() {
    let sim = remote(1, 1).await;
    sim.set("g0", "s0", Behaviour::Slow(Duration::from_secs(600)));
    let query = sim.query(of_user(9));
    for _ in 0..20 {
        let call = metaroute_cluster::router::Call::within(Duration::from_millis(50));
        let failure = sim.router.query(&query, &call).await.expect_err("it is slow");
        assert_eq!(failure.code, Code::DeadlineExceeded, "{failure:?}");
    }
}

#[tokio::test]
async fn a_port_nobody_listens_on_is_a_failed_shard() {
    let sim = remote(1, 1).await;
    // Bound, so that nobody else can, and refusing whoever comes.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let port = socket.local_addr().expect("bound").port();
    let shard = metaroute_cluster::protocol::ShardId::new("g0", "s0");
    let gone = instance(Address::new("127.0.0.1", port).expect("legal"), &shard, ShardState::Ready, None);
    sim.replicas.apply(Update::Snapshot(vec![gone]));
    assert_eq!(sim.ask(of_user(9)).await.expect_err("refused").code, Code::Incomplete);
}

/// Case 32 between processes: dropping the answer resets the stream and the shard stops.
#[tokio::test]
async fn case_32_leaving_reaches_the_shards() {
    let sim = remote(1, 2).await;
    for shard in ["s0", "s1"] {
        sim.set("g0", shard, Behaviour::Slow(Duration::from_secs(600)));
    }
    let query = sim.query(of_user(9));
    let call = call();
    {
        let asking = sim.router.query(&query, &call);
        tokio::pin!(asking);
        while sim.busy() < 2 {
            tokio::select! {
                answer = &mut asking => panic!("too early: {answer:?}"),
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    }
    let idle = async {
        while sim.busy() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), idle).await.expect("all shards idle");
}

#[tokio::test]
async fn an_export_streams_over_the_wire() {
    let sim = remote(1, 2).await;
    sim.write(spread(5_000, 9)).await;
    let mut export = sim.router.export(&sim.query(of_user(9)), &call()).await.expect("begun");
    let mut count = 0;
    while let Some(rows) = export.next().await.expect("goes on") {
        count += rows.len();
    }
    assert_eq!(count, 5_000);
    assert!(export.finish().expect("finished").complete);
}
