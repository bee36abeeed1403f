//! What is left of a request's body when its answer is there.
//!
//! A request that is refused for its path or its parameters is answered without a look at its body. HTTP/1.1 cannot go on
//! behind bytes that nobody read: hyper tries once and then closes the connection, without having said so. A client that
//! keeps its connections then loses its next request to a reset, and one that is still sending may lose this answer too.
//! So what is left is read and thrown away before the answer goes out, up to a bound; where it is not all there by then,
//! the answer says that the connection ends.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, Request, Response, header};
use futures_util::future::{BoxFuture, Either, FutureExt};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper_util::service::{TowerToHyperService, TowerToHyperServiceFuture};

/// Most bytes thrown away for one request: several times the largest body that is taken, so that who sends too much is
/// told so.
const BYTES_MAX: u64 = 64 << 20;

/// How long they may take.
const WITHIN: Duration = Duration::from_secs(5);

/// The router as hyper takes it, reading bodies to their end.
#[derive(Clone)]
pub(super) struct Answering(TowerToHyperService<Router>);

impl Answering {
    pub(super) fn new(router: Router) -> Answering {
        Answering(TowerToHyperService::new(router))
    }
}

type Plain = TowerToHyperServiceFuture<Router, Request<Incoming>>;

impl Service<Request<Incoming>> for Answering {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<Plain, BoxFuture<'static, Result<Response<Body>, Infallible>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        if request.body().is_end_stream() {
            return Either::Left(self.0.call(request));
        }
        let left = Left::default();
        let shared = left.clone();
        let waits = request.headers().contains_key(header::EXPECT);
        let answered = self.0.call(request.map(|body| Lent { body: Some(body), asked: false, left: shared }));
        let whole = async move {
            let mut response = answered.await?;
            let rest = left.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(Rest { body, asked }) = rest {
                // A client that waits to be asked for its body must not be asked for nothing.
                if (waits && !asked) || !thrown_away(body).await {
                    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
            }
            Ok(response)
        };
        Either::Right(whole.boxed())
    }
}

/// Reads to the end; `false` when that is too far or takes too long.
async fn thrown_away(mut body: Incoming) -> bool {
    if body.size_hint().lower() > BYTES_MAX {
        return false;
    }
    let read = async {
        let mut left = BYTES_MAX;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return false };
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => return false,
            }
        }
        true
    };
    tokio::time::timeout(WITHIN, read).await.unwrap_or(false)
}

/// Where a body goes that was dropped before its end.
#[derive(Clone, Default)]
struct Left(Arc<Mutex<Option<Rest>>>);

struct Rest {
    body: Incoming,
    /// Whether anybody began to read it.
    asked: bool,
}

/// A body that comes back when it is dropped before its end.
struct Lent {
    body: Option<Incoming>,
    asked: bool,
    left: Left,
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.asked = true;
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            *self.left.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Rest { body, asked: self.asked });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::post;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::watch;

    use super::*;

    async fn start() -> (SocketAddr, watch::Sender<bool>) {
        let router = Router::new()
            .route("/refuse", post(|| async { "refused" }))
            .route("/read", post(|body: Bytes| async move { body.len().to_string() }));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(super::super::serve_http(listener, router, stopped));
        (address, stop)
    }

    /// Reads one answer: its head, and its body by `content-length`.
    async fn answer(stream: &mut TcpStream) -> String {
        let mut text = String::new();
        let within = async {
            loop {
                let byte = stream.read_u8().await.expect("the connection is open");
                text.push(char::from(byte));
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let length = length.map_or(0, |length| length.parse::<usize>().expect("a number"));
                if body.len() == length {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), within).await.expect("answered in time");
        text
    }

    #[tokio::test]
    async fn a_connection_outlives_a_body_nobody_read() {
        let (address, _stop) = start().await;
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        for path in ["/refuse", "/read", "/refuse", "/nowhere", "/read"] {
            let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n");
            stream.write_all(head.as_bytes()).await.expect("open");
            // Head and body in packets of their own, as clients send them.
            tokio::time::sleep(Duration::from_millis(30)).await;
            stream.write_all(b"some body").await.expect("open");
            let text = answer(&mut stream).await;
            assert!(!text.contains("connection: close"), "{path}: {text}");
        }
    }

    #[tokio::test]
    async fn who_is_still_sending_gets_the_answer() {
        let (address, _stop) = start().await;
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let length = 24 << 20;
        let head = format!("POST /refuse HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("open");
        let part = vec![b' '; 1 << 20];
        for _ in 0..length / part.len() {
            stream.write_all(&part).await.expect("open to the end");
        }
        assert!(answer(&mut stream).await.ends_with("refused"));
    }

    #[tokio::test]
    async fn a_connection_that_ends_says_so() {
        let (address, _stop) = start().await;
        for rest in [
            "content-length: 99999999999\r\n\r\nabc",
            // Not asked for: the body would come only after a `100 Continue`.
            "content-length: 9\r\nexpect: 100-continue\r\n\r\n",
        ] {
            let mut stream = TcpStream::connect(address).await.expect("it listens");
            let head = format!("POST /refuse HTTP/1.1\r\nhost: x\r\n{rest}");
            stream.write_all(head.as_bytes()).await.expect("open");
            let text = answer(&mut stream).await;
            assert!(text.starts_with("HTTP/1.1 200") && text.contains("connection: close"), "{text}");
        }
    }
}
