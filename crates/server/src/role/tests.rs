use futures_util::{StreamExt, stream};
use metaroute_cluster::client::ShardClient;
use metaroute_cluster::protocol::{
    BoxFuture, Head, ReadEvent, ReadOp, ReadRequest, ReadStream, ShardError, ShardErrorKind, ShardState, Trailer,
    WriteAnswer, WriteRequest,
};

use super::*;

/// Answers in two pieces, as a shard does whose rows come a moment after the answer has begun.
struct InPieces;

impl Shard for InPieces {
    fn read(&self, _: ReadRequest, _: Instant) -> ReadStream {
        let rest = stream::once(async {
            tokio::time::sleep(Duration::from_millis(3)).await;
            Ok(ReadEvent::Trailer(Trailer::default()))
        });
        Box::pin(stream::iter([Ok(ReadEvent::Head(Head::default()))]).chain(rest))
    }

    fn write(&self, _: WriteRequest, _: Instant) -> BoxFuture<Result<WriteAnswer, ShardError>> {
        Box::pin(async { Err(ShardError::new(ShardErrorKind::ReadOnly, "not here")) })
    }
}

/// With Nagle's algorithm the second piece waits until the first is acknowledged, which systems delay by 40 ms.
#[tokio::test(flavor = "multi_thread")]
async fn answers_do_not_wait_for_acknowledgements() {
    let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(serve_grpc(listener, Arc::new(InPieces), stopped));
    let id = ShardId::new("g0", "s0");
    let address = Address::new("127.0.0.1", address.port()).expect("legal");
    let copy = replicas::instance(address, &id, ShardState::Ready, None);
    let client = GrpcShards::new();
    let mut took = Vec::new();
    for _ in 0..80 {
        let request = ReadRequest {
            request_id: "t".into(),
            store: "file_metadata".into(),
            shard: id.clone(),
            slots: [1].into_iter().collect(),
            epoch: 1,
            filter: None,
            fields: Default::default(),
            op: ReadOp::Get { ids: [1].into(), tenant: None, from: None, to: None, direction: Default::default() },
            budget: WorkBudget::default(),
            batch: None,
        };
        let began = Instant::now();
        let events: Vec<_> = client.read(&copy, request, began + Duration::from_secs(10)).collect().await;
        assert!(events.len() == 2 && events.iter().all(Result::is_ok), "{events:?}");
        took.push(began.elapsed());
    }
    // The first answers of a connection are acknowledged at once anyway; a busy machine makes many late, not all.
    let quickest = took[40..].iter().min().expect("forty");
    assert!(*quickest < Duration::from_millis(30), "{took:?}");
    stop.send_replace(true);
    drop(client);
    serving.await.expect("it ends");
}
