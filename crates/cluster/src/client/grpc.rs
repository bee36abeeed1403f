//! The protocol over gRPC: the router's client and the adapter a shard process mounts on its server.
//!
//! One HTTP/2 connection per address carries all requests of a router, so a thousand concurrent queries cost a shard no
//! more connections than one. Deadlines travel in the request; dropping a stream resets it a moment later, which the shard
//! sees as its reader leaving.
//!
//! The moment is for the connection's sake. Under a load of single rows connections failed within seconds with `h2 protocol
//! error`, and everything on them with 503, while answers were reset at once; since they are read to their end, they do
//! not (`bench/rows`, part `processes`). The likely cause: a router often has all it wants just before the last frame
//! arrives, and frames of reset streams are counted against the connection. A connection on which many answers were
//! broken off all the same is replaced.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::{FutureExt, Stream, StreamExt, TryFutureExt, TryStreamExt};
use metaroute_core::Instance;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, Streaming};

use super::ShardClient;
use crate::protocol::{
    BoxFuture, ReadRequest, ReadStream, Shard, ShardError, ShardErrorKind, WriteAnswer, WriteRequest, failed_read,
};
use crate::wire::{self, MESSAGE_BYTES_MAX, proto};
use whole::Whole;

mod whole;

/// How long connecting may take; a request's own deadline usually ends earlier.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often an idle connection is checked, so that a host that vanished is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long the rest of an answer nobody reads any more is waited for before it is reset.
const LINGER: Duration = Duration::from_millis(50);
/// Answers that may be reset on one connection: well below the thousand stray frames after which h2 gives one up.
const RESETS_MAX: usize = 100;
/// Longest deadline a shard believes; protects its clock arithmetic.
const DEADLINE_MAX: Duration = Duration::from_secs(3_600);

type Client = proto::shard_client::ShardClient<Whole>;

/// Shards in other processes, by the address of their instances. Clones share the connections.
#[derive(Clone, Debug, Default)]
pub struct GrpcShards {
    channels: Arc<Mutex<HashMap<String, Link>>>,
}

/// A connection, and how many answers on it were reset.
#[derive(Clone, Debug)]
struct Link {
    channel: Channel,
    resets: Arc<AtomicUsize>,
}

/// Counts a question that is dropped before its answer begins.
struct Unanswered(Option<Arc<AtomicUsize>>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(resets) = &self.0 {
            resets.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An answer that ends in order, if it ends soon.
struct Ending {
    stream: Option<Streaming<proto::ReadEvent>>,
    resets: Arc<AtomicUsize>,
}

impl Stream for Ending {
    type Item = Result<proto::ReadEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(None) };
        let event = std::task::ready!(stream.poll_next_unpin(context));
        if !matches!(event, Some(Ok(_))) {
            self.stream = None;
        }
        Poll::Ready(event)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(mut stream) = self.stream.take() else { return };
        // Mostly the end is there already and only has to be taken.
        while let Some(event) = stream.next().now_or_never() {
            if !matches!(event, Some(Ok(_))) {
                return;
            }
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let resets = Arc::clone(&self.resets);
        // Ends by itself within the time; nobody waits for it.
        runtime.spawn(async move {
            let rest = async { while let Some(Ok(_)) = stream.next().await {} };
            if tokio::time::timeout(LINGER, rest).await.is_err() {
                resets.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

impl GrpcShards {
    /// No connection yet; each is made when first needed and kept.
    pub fn new() -> GrpcShards {
        GrpcShards::default()
    }

    /// Forgets connections to addresses that are no longer in use.
    pub fn retain(&self, in_use: impl Fn(&str) -> bool) {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner).retain(|address, _| in_use(address));
    }

    fn client(&self, replica: &Instance) -> Result<(Client, Arc<AtomicUsize>), ShardError> {
        let address = replica.address.to_string();
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let good = |link: &&Link| link.resets.load(Ordering::Relaxed) < RESETS_MAX;
        let link = match channels.get(&address).filter(good) {
            Some(link) => link.clone(),
            // What still runs on one that is replaced ends there.
            None => {
                let endpoint = Endpoint::from_shared(format!("http://{address}"))
                    .map_err(|error| ShardError::new(ShardErrorKind::Unavailable, format!("{address}: {error}")))?;
                let channel = endpoint
                    .connect_timeout(CONNECT_TIMEOUT)
                    .tcp_nodelay(true)
                    .http2_keep_alive_interval(KEEP_ALIVE)
                    .keep_alive_while_idle(true)
                    .connect_lazy();
                let link = Link { channel, resets: Arc::default() };
                channels.insert(address, link.clone());
                link
            }
        };
        let client = proto::shard_client::ShardClient::new(Whole(link.channel))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        Ok((client, link.resets))
    }
}

fn error_of(status: &Status) -> ShardError {
    // The client's own clock may ring before the router's. `tonic` calls that a cancellation; it says nothing against the
    // copy, and the answer to it is that there was not enough time.
    let timed_out = status.code() == Code::Cancelled && status.message() == tonic::TimeoutExpired(()).to_string();
    let kind = match status.code() {
        _ if timed_out => ShardErrorKind::DeadlineExceeded,
        Code::DeadlineExceeded => ShardErrorKind::DeadlineExceeded,
        Code::ResourceExhausted => ShardErrorKind::Overloaded,
        Code::InvalidArgument | Code::OutOfRange => ShardErrorKind::BadRequest,
        Code::NotFound => ShardErrorKind::UnknownStore,
        Code::DataLoss => ShardErrorKind::CorruptData,
        Code::FailedPrecondition => ShardErrorKind::ReadOnly,
        Code::Internal => ShardErrorKind::Internal,
        // A connection that broke off shows up as any of the others. Our own cancellation is never seen here: the
        // stream is gone by then.
        _ => ShardErrorKind::Unavailable,
    };
    ShardError::new(kind, status.message())
}

fn status_of(error: ShardError) -> Status {
    let code = match error.kind {
        ShardErrorKind::Unavailable => Code::Unavailable,
        ShardErrorKind::Overloaded => Code::ResourceExhausted,
        ShardErrorKind::DeadlineExceeded => Code::DeadlineExceeded,
        ShardErrorKind::BadRequest => Code::InvalidArgument,
        ShardErrorKind::UnknownStore => Code::NotFound,
        ShardErrorKind::CorruptData => Code::DataLoss,
        ShardErrorKind::ReadOnly => Code::FailedPrecondition,
        ShardErrorKind::Cancelled => Code::Cancelled,
        ShardErrorKind::Internal => Code::Internal,
    };
    Status::new(code, error.message)
}

fn bad(error: wire::BadMessage) -> ShardError {
    ShardError::new(ShardErrorKind::Internal, error.to_string())
}

fn time_left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

impl ShardClient for GrpcShards {
    fn reads_on_demand(&self) -> bool {
        false
    }

    fn read(&self, replica: &Instance, request: ReadRequest, deadline: Instant) -> ReadStream {
        let (mut client, resets) = match self.client(replica) {
            Ok(client) => client,
            Err(error) => return failed_read(error),
        };
        let left = time_left(deadline);
        let mut message = Request::new(wire::read_request_to(&request, left));
        message.set_timeout(left);
        let asking = async move {
            let mut unanswered = Unanswered(Some(Arc::clone(&resets)));
            let response = client.read(message).await;
            unanswered.0 = None;
            response.map(|response| Ending { stream: Some(response.into_inner()), resets })
        };
        let events = asking.try_flatten_stream().map(|event| match event {
            Ok(event) => wire::event_of(event).map_err(bad),
            Err(status) => Err(error_of(&status)),
        });
        Box::pin(events)
    }

    fn write(
        &self,
        replica: &Instance,
        request: WriteRequest,
        deadline: Instant,
    ) -> BoxFuture<Result<WriteAnswer, ShardError>> {
        let client = self.client(replica);
        Box::pin(async move {
            let (mut client, _) = client?;
            let left = time_left(deadline);
            let mut message = Request::new(wire::write_request_to(request, left));
            message.set_timeout(left);
            let answer = client.write(message).await.map_err(|status| error_of(&status))?;
            wire::write_answer_of(answer.into_inner()).map_err(bad)
        })
    }
}

/// A shard as a gRPC service, to be mounted with `tonic`'s server. A process with several shards mounts one that looks
/// at [`ReadRequest::shard`].
#[derive(Clone)]
pub struct ShardService {
    shard: Arc<dyn Shard>,
}

impl std::fmt::Debug for ShardService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShardService")
    }
}

impl ShardService {
    /// The service of a shard, with the message size limits of the protocol.
    pub fn server(shard: Arc<dyn Shard>) -> proto::shard_server::ShardServer<ShardService> {
        proto::shard_server::ShardServer::new(ShardService { shard })
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }
}

fn deadline_of(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(DEADLINE_MAX)
}

#[tonic::async_trait]
impl proto::shard_server::Shard for ShardService {
    type ReadStream = futures_util::stream::BoxStream<'static, Result<proto::ReadEvent, Status>>;

    async fn read(&self, request: Request<proto::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let (request, timeout) = wire::read_request_of(request.into_inner())
            .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
        let events = self.shard.read(request, deadline_of(timeout)).map_ok(wire::event_to).map_err(status_of);
        Ok(Response::new(events.boxed()))
    }

    async fn write(&self, request: Request<proto::WriteRequest>) -> Result<Response<proto::WriteAnswer>, Status> {
        let (request, timeout) = wire::write_request_of(request.into_inner())
            .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
        let answer = self.shard.write(request, deadline_of(timeout)).map(|answer| answer.map_err(status_of)).await?;
        Ok(Response::new(wire::write_answer_to(answer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_of_the_client_is_no_failure_of_the_copy() {
        let status = Status::from_error(Box::new(tonic::TimeoutExpired(())));
        assert_eq!(error_of(&status).kind, ShardErrorKind::DeadlineExceeded);
        assert_eq!(error_of(&Status::cancelled("stream reset")).kind, ShardErrorKind::Unavailable);
    }
}
