//! Serving HTTP on a listener.
//!
//! A server that takes every connection and waits for ever for its requests is held open by anybody with a few sockets: a
//! request's head must arrive in time, an idle connection is closed after that time too, and there is a most of
//! connections. Who comes when all are in use waits in the system's queue. Told to stop, it takes nothing new, lets
//! every connection finish the request it is in, and ends.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use unread::Answering;

mod unread;

/// Connections at once. Each costs a file descriptor and about 30 KB; requests are limited on their own.
pub const CONNECTIONS_MAX: usize = 4_096;

/// How long the head of a request may take to arrive, counted from the end of the request before.
pub const HEAD_WITHIN: Duration = Duration::from_secs(30);

/// How long to wait when the system cannot give another connection, which closing some cures.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves HTTP until told to stop, then finishes what is open.
pub async fn serve_http(listener: TcpListener, router: Router, stop: watch::Receiver<bool>) {
    serve(listener, router, stop, CONNECTIONS_MAX, HEAD_WITHIN).await;
}

async fn serve(
    listener: TcpListener,
    router: Router,
    mut stop: watch::Receiver<bool>,
    connections_max: usize,
    head_within: Duration,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head_within);
    let places = Arc::new(Semaphore::new(connections_max));
    let connections = GracefulShutdown::new();
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
            (place, accept(&listener).await)
        };
        let (place, stream) = tokio::select! {
            biased;
            // An error means that the sender is gone, which is a stop too.
            _ = stop.wait_for(|stop| *stop) => break,
            next = next => next,
        };
        let connection = builder.serve_connection(TokioIo::new(stream), Answering::new(router.clone()));
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = crate::shard::with_causes(&error), "a connection ended early");
            }
            drop(place);
        });
    }
    drop(listener);
    connections.shutdown().await;
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Small answers must not wait for a full packet.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY was not set");
                }
                return stream;
            }
            Err(error) => match error.kind() {
                // The client gave up before its turn.
                ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset => {}
                _ => {
                    tracing::error!(%error, "no connection can be accepted");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::SocketAddr;
    use std::time::Instant;

    use axum::body::Body;
    use axum::routing::get;
    use futures_util::{StreamExt, stream};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::JoinHandle;

    use super::*;

    async fn start(most: usize, within: Duration) -> (SocketAddr, watch::Sender<bool>, JoinHandle<()>) {
        // Begins at once, so that who asked can tell that it is answered.
        let slow = || async {
            let rest = stream::once(async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                Ok("done")
            });
            Body::from_stream(stream::iter([Ok::<_, Infallible>("begun, ")]).chain(rest))
        };
        let router = Router::new().route("/", get(|| async { "here" })).route("/slow", get(slow));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (stop, stopped) = watch::channel(false);
        (address, stop, tokio::spawn(serve(listener, router, stopped, most, within)))
    }

    async fn read_to_end(stream: &mut TcpStream) -> String {
        let mut all = Vec::new();
        // A reset is an end too.
        let _ = stream.read_to_end(&mut all).await;
        String::from_utf8_lossy(&all).into_owned()
    }

    #[tokio::test]
    async fn a_head_that_does_not_arrive_ends_the_connection() {
        let (address, stop, serving) = start(10, Duration::from_millis(100)).await;
        let began = Instant::now();
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nx-slow: ").await.expect("it reads");
        read_to_end(&mut stream).await;
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(90) && took < Duration::from_secs(20), "{took:?}");
        stop.send_replace(true);
        serving.await.expect("it ends");
    }

    #[tokio::test]
    async fn connections_above_the_most_wait_for_a_place() {
        let (address, stop, serving) = start(1, Duration::from_millis(300)).await;
        let began = Instant::now();
        let mut idle = TcpStream::connect(address).await.expect("it listens");
        idle.write_all(b"GET /").await.expect("it reads");
        let mut second = TcpStream::connect(address).await.expect("the system takes it");
        second.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("it buffers");
        assert!(read_to_end(&mut second).await.ends_with("here"), "served once the first one is gone");
        assert!(began.elapsed() >= Duration::from_millis(200), "and not before");
        stop.send_replace(true);
        serving.await.expect("it ends");
    }

    #[tokio::test]
    async fn a_stop_lets_requests_finish_and_ends_idle_connections() {
        let (address, stop, serving) = start(10, Duration::from_secs(30)).await;
        let _idle = TcpStream::connect(address).await.expect("it listens");
        let mut busy = TcpStream::connect(address).await.expect("it listens");
        busy.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
        busy.read_u8().await.expect("the answer has begun");
        stop.send_replace(true);
        assert!(read_to_end(&mut busy).await.contains("done"));
        tokio::time::timeout(Duration::from_secs(30), serving).await.expect("in time").expect("it ends");
        assert!(TcpStream::connect(address).await.is_err(), "nobody listens");
    }
}
