//! One HTTP client for the back ends that speak HTTP: hyper with rustls, and no process-wide state.
//!
//! The usual client library takes its TLS settings from features that all crates of a program share, and panics in the
//! *program's* own clients when ours choose a crypto provider they did not. So this is hyper's client with the few
//! conveniences that are needed here. It follows no redirect, uses no proxy, bounds every answer, and a timeout covers a
//! call to the last byte of its body.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
#[cfg(any(feature = "eureka", feature = "seata"))]
pub(crate) use hyper::header;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
pub(crate) use hyper::{Method, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Serialize;
use tokio::time::Instant;

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Idle connections kept per server; some servers count the connections of one client.
const IDLE_MAX: usize = 32;
/// The longest answer that is read, in bytes: a whole Eureka registry of 100,000 instances is about that.
const BODY_MAX: usize = 128 * 1024 * 1024;

/// A pool of connections. Clones share it.
#[derive(Clone)]
pub(crate) struct Client {
    inner: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// HTTP/1.1, encrypted or not as the address of a call says.
    pub(crate) fn new(tls: rustls::ClientConfig) -> Self {
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_max_idle_per_host(IDLE_MAX);
        Self {
            inner: builder.build(
                HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp()),
            ),
        }
    }

    /// HTTP/2 from the first byte, with a ping every `ping` that must be answered within as long again.
    #[cfg(feature = "seata")]
    pub(crate) fn http2(tls: rustls::ClientConfig, ping: Duration) -> Self {
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .http2_only(true)
            .http2_keep_alive_interval(ping)
            .http2_keep_alive_timeout(ping);
        Self {
            inner: builder.build(
                HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http2().wrap_connector(tcp()),
            ),
        }
    }

    pub(crate) fn request(&self, method: Method, url: impl Into<String>) -> RequestBuilder {
        RequestBuilder {
            client: self.clone(),
            method,
            url: url.into(),
            headers: HeaderMap::new(),
            body: Ok(Bytes::new()),
            timeout: None,
        }
    }

    pub(crate) fn get(&self, url: impl Into<String>) -> RequestBuilder {
        self.request(Method::GET, url)
    }

    pub(crate) fn post(&self, url: impl Into<String>) -> RequestBuilder {
        self.request(Method::POST, url)
    }

    pub(crate) fn put(&self, url: impl Into<String>) -> RequestBuilder {
        self.request(Method::PUT, url)
    }
}

fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_nodelay(true);
    connector.enforce_http(false);
    connector
}

/// A call being put together.
#[must_use = "nothing is sent before `send`"]
pub(crate) struct RequestBuilder {
    client: Client,
    method: Method,
    url: String,
    headers: HeaderMap,
    body: Result<Bytes, Error>,
    timeout: Option<Duration>,
}

impl RequestBuilder {
    /// The time for the whole call, the body of the answer included.
    pub(crate) fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Adds pairs to the query.
    pub(crate) fn query(mut self, pairs: &(impl Serialize + ?Sized)) -> Self {
        match serde_urlencoded::to_string(pairs) {
            Ok(text) if text.is_empty() => {}
            Ok(text) => {
                self.url.push(if self.url.contains('?') { '&' } else { '?' });
                self.url.push_str(&text);
            }
            Err(error) => self.body = Err(Error::new(error)),
        }
        self
    }

    /// A header. A value that cannot be one fails the call.
    pub(crate) fn header<V>(mut self, name: impl TryInto<HeaderName, Error: Into<hyper::http::Error>>, value: V) -> Self
    where
        V: TryInto<HeaderValue, Error: Into<hyper::http::Error>>,
    {
        match (name.try_into().map_err(Into::into), value.try_into().map_err(Into::into)) {
            (Ok(name), Ok(value)) => drop(self.headers.insert(name, value)),
            (Err(error), _) | (_, Err(error)) => self.body = Err(Error::new(error)),
        }
        self
    }

    #[cfg(feature = "eureka")]
    pub(crate) fn basic_auth(self, user: &str, password: Option<&str>) -> Self {
        use base64::Engine;
        let pair = format!("{user}:{}", password.unwrap_or_default());
        let mut value =
            HeaderValue::try_from(format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair)));
        if let Ok(value) = &mut value {
            value.set_sensitive(true);
        }
        match value {
            Ok(value) => self.header(header::AUTHORIZATION, value),
            // Base64 is always a header's text.
            Err(_) => self,
        }
    }

    /// A JSON body.
    pub(crate) fn json(self, value: &(impl Serialize + ?Sized)) -> Self {
        self.with_body("application/json", serde_json::to_vec(value).map_err(Error::new))
    }

    /// A form as body.
    pub(crate) fn form(self, value: &(impl Serialize + ?Sized)) -> Self {
        let body = serde_urlencoded::to_string(value).map(String::into_bytes).map_err(Error::new);
        self.with_body("application/x-www-form-urlencoded", body)
    }

    fn with_body(mut self, kind: &'static str, body: Result<Vec<u8>, Error>) -> Self {
        self.headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(kind));
        if self.body.is_ok() {
            self.body = body.map(Bytes::from);
        }
        self
    }

    /// Sends it and waits for the head of the answer.
    ///
    /// # Errors
    /// When there is no answer, or not in time.
    pub(crate) async fn send(self) -> Result<Response, Error> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let mut request = hyper::Request::builder().method(self.method).uri(&self.url);
        if let Some(headers) = request.headers_mut() {
            *headers = self.headers;
        }
        let request = request.body(Full::new(self.body?)).map_err(Error::new)?;
        let server = self.url.split('/').take(3).collect::<Vec<_>>().join("/");
        let inner = in_time(deadline, self.client.inner.request(request)).await?;
        Ok(Response { inner, server, deadline })
    }
}

/// An answer whose body is not read yet.
#[derive(Debug)]
pub(crate) struct Response {
    inner: hyper::Response<Incoming>,
    server: String,
    deadline: Option<Instant>,
}

impl Response {
    /// Who answered, as `scheme://host:port`.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.inner.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.inner.headers()
    }

    /// The next piece of the body; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = async { self.inner.body_mut().frame().await.transpose() };
            match in_time(self.deadline, frame).await? {
                None => return Ok(None),
                Some(frame) => {
                    // Trailers mean nothing here.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// The whole body.
    ///
    /// # Errors
    /// When it breaks off, is late or is longer than 128 MiB.
    pub(crate) async fn bytes(mut self) -> Result<Bytes, Error> {
        let mut body = BytesMut::new();
        while let Some(chunk) = self.chunk().await? {
            if body.len() + chunk.len() > BODY_MAX {
                return Err(Error {
                    timeout: false,
                    source: format!("an answer of more than {BODY_MAX} bytes").into(),
                });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// The whole body as text, bounded like [`bytes`](Self::bytes); what is not UTF-8 is replaced.
    pub(crate) async fn text(self) -> Result<String, Error> {
        Ok(String::from_utf8_lossy(&self.bytes().await?).into_owned())
    }
}

async fn in_time<T, E: StdError + Send + Sync + 'static>(
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Error> {
    let Some(deadline) = deadline else { return work.await.map_err(Error::new) };
    match tokio::time::timeout_at(deadline, work).await {
        Ok(done) => done.map_err(Error::new),
        Err(elapsed) => Err(Error { timeout: true, source: Box::new(elapsed) }),
    }
}

/// A call that got no answer, or not all of it. Never shows the address, whose query may hold a secret.
#[derive(Debug)]
pub(crate) struct Error {
    timeout: bool,
    source: Box<dyn StdError + Send + Sync>,
}

impl Error {
    fn new(source: impl StdError + Send + Sync + 'static) -> Self {
        Self { timeout: false, source: Box::new(source) }
    }

    /// Whether the time was up.
    pub(crate) fn is_timeout(&self) -> bool {
        self.timeout
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.source, f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.source()
    }
}
