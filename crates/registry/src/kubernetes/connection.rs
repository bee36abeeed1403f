//! The way to an API server: how it is spoken to, and what its answers mean.
//!
//! Where the cluster is and who we are is found as `kubectl` does, by `kube` ([`origin`](super::origin)). The connections under
//! it are ours ([`lanes`](super::lanes)): TLS without process-wide state like in every other back end, and HTTP/2 with pings, as
//! the official clients have it, so that a connection that silently died is noticed.

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER};
use hyper::{Request, Response, StatusCode, Version};
use kube::Client;
use kube::client::{AuthError, Body, ConfigExt};
use kube::core::params::{ListParams, WatchParams};
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};
use tower::ServiceBuilder;

use super::lanes::{Lane, LaneNumber, Lanes, Transport};
use super::origin::{Configuration, Origin, auth_error, configuration, denied, invalid};
use crate::driver::{DriverError, ErrorKind};
use crate::url::Secret;

/// How long it may take to begin an answer, and between two pieces of one.
const CALL: Duration = Duration::from_secs(10);
/// How long it may take to begin a watch.
const OPEN: Duration = Duration::from_secs(6);
/// How long one watch lasts: below the 240 s after which load balancers of clouds cut what they think is idle.
const WATCH: Duration = Duration::from_secs(180);
/// The same where the server speaks HTTP/1 and cannot be pinged: watches are so short that a dead one does not matter.
const WATCH_HTTP1: Duration = Duration::from_secs(8);
/// A session younger than this was made from what is in the files now.
const SESSION_FRESH: Duration = Duration::from_secs(5);
/// A session that finds nobody is made anew after this time; sooner it would find the same, and a program for credentials
/// would run for every attempt.
const SESSION_KEPT: Duration = Duration::from_secs(30);
/// How much later than it said a server may end a watch.
const WATCH_SLACK: Duration = Duration::from_secs(10);
/// Objects per answer.
const PAGE: u32 = 500;
/// The longest answer that is read, in bytes.
const BODY_MAX: usize = 128 * 1024 * 1024;
/// The longest event: an object may have 1.5 MiB.
const EVENT_MAX: usize = 16 * 1024 * 1024;
/// The longest refusal that is read.
const REFUSAL_MAX: usize = 64 * 1024;
/// Nobody is waited for longer than this, whatever they wish.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// One cluster.
pub(super) struct Connection {
    origin: Origin,
    /// The namespace, where the address names one.
    namespace: Option<Box<str>>,
    /// Made at the first call, and anew when credentials or connections fail: files may have changed.
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
}

struct Session {
    client: Client,
    namespace: Box<str>,
    /// `https://host:port`, for messages.
    server: String,
    /// A token that is read for every request, because it is renewed where it is kept.
    token: Option<Secret>,
    lanes: Lanes,
    http1: AtomicBool,
    made: Instant,
}

/// A collection as it was at one moment.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) items: Vec<Value>,
    /// Opaque: only sent back.
    pub(super) version: String,
}

/// What a watch brings.
#[derive(Debug)]
pub(super) enum Event {
    /// An object is there, new or changed.
    Put(Value),
    Deleted(Value),
    /// Nothing happened up to this version.
    Bookmark(String),
    /// History is gone: only a list says what happened.
    Gone,
}

impl Connection {
    pub(super) fn new(origin: Origin, namespace: Option<Box<str>>) -> Self {
        Self { origin, namespace, session: tokio::sync::Mutex::default() }
    }

    /// The server that the address names.
    #[cfg(test)]
    pub(super) fn server(&self) -> Option<String> {
        match &self.origin {
            Origin::Server { base, .. } => Some(base.to_string().trim_end_matches('/').to_owned()),
            _ => None,
        }
    }

    async fn session(&self) -> Result<Arc<Session>, DriverError> {
        let mut held = self.session.lock().await;
        if let Some(session) = &*held {
            return Ok(Arc::clone(session));
        }
        let (origin, namespace) = (self.origin.clone(), self.namespace.clone());
        // Reads files and may run a program that logs in.
        let made = tokio::task::spawn_blocking(move || configuration(&origin)).await;
        let made = made.unwrap_or_else(|_| Err(denied("reading the configuration of the cluster failed")))?;
        let session = Arc::new(Session::new(made, namespace)?);
        *held = Some(Arc::clone(&session));
        Ok(session)
    }

    /// The next call makes a new session of one that is old enough, unless somebody did already.
    async fn renew(&self, session: &Arc<Session>, age: Duration) {
        if session.made.elapsed() < age {
            return;
        }
        let mut held = self.session.lock().await;
        if held.as_ref().is_some_and(|held| Arc::ptr_eq(held, session)) {
            *held = None;
        }
    }

    /// Sends a request made for a session's namespace and hands out the answer if it is a success; `None` for 410.
    /// Refused credentials are read anew once.
    async fn send(
        &self,
        lane: usize,
        within: Duration,
        request: impl Fn(&Session) -> Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Option<(Arc<Session>, Response<Body>)>, DriverError> {
        let mut again = true;
        loop {
            let session = self.session().await?;
            let request = request(&session)
                .map_err(|error| DriverError::new(ErrorKind::Invalid, "the request cannot be made").because(error))?;
            let answer = match timeout(within, session.send(lane, request)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => {
                    self.renew(&session, SESSION_KEPT).await;
                    return Err(error);
                }
                Err(_) => {
                    self.renew(&session, SESSION_KEPT).await;
                    return Err(session.silent());
                }
            };
            match answer.status() {
                StatusCode::UNAUTHORIZED if again => {
                    again = false;
                    self.renew(&session, SESSION_FRESH).await;
                }
                StatusCode::GONE => return Ok(None),
                status if status.is_success() => return Ok(Some((session, answer))),
                _ => return Err(session.refusal(answer).await),
            }
        }
    }

    /// All objects that a selector finds, in pages of one version.
    pub(super) async fn list(&self, selector: &str, names_only: bool) -> Result<Listing, DriverError> {
        // A list that takes too long outlives its own version; then it begins anew, once.
        for _ in 0..2 {
            if let Some(listing) = self.pages(selector, names_only).await? {
                return Ok(listing);
            }
        }
        Err(DriverError::new(ErrorKind::Unreachable, "the list of EndpointSlices is outdated before it is read"))
    }

    async fn pages(&self, selector: &str, names_only: bool) -> Result<Option<Listing>, DriverError> {
        let mut listing = Listing::default();
        let mut params = ListParams::default().labels(selector).limit(PAGE);
        loop {
            let asked = self.send(0, CALL, |session| {
                let request = session.slices();
                if names_only { request.list_metadata(&params) } else { request.list(&params) }
            });
            let Some((session, answer)) = asked.await? else { return Ok(None) };
            let body = session.body(answer, BODY_MAX).await?;
            let page: Value = serde_json::from_slice(&body).map_err(|error| session.foreign().because(error))?;
            let Value::Object(mut page) = page else { return Err(session.foreign()) };
            let meta = |name: &str| page.get("metadata")?.get(name)?.as_str().map(ToOwned::to_owned);
            let (version, next) = (meta("resourceVersion"), meta("continue"));
            listing.version = version.ok_or_else(|| session.foreign())?;
            match page.remove("items") {
                Some(Value::Array(items)) => listing.items.extend(items),
                // An empty list may be written as none.
                None | Some(Value::Null) => {}
                Some(_) => return Err(session.foreign()),
            }
            match next.filter(|next| !next.is_empty()) {
                Some(next) => params = params.continue_token(&next),
                None => return Ok(Some(listing)),
            }
        }
    }

    /// What happens after a version; `None` when that is too long ago.
    pub(super) async fn watch(&self, selector: &str, version: &str) -> Result<Option<Events>, DriverError> {
        // The lane belongs to the session, so one that is made anew meanwhile is asked again.
        let session = self.session().await?;
        let lane = session.lanes.take();
        let asked = self.send(lane.number, OPEN, |session| {
            // Whoever began together should not come back together.
            let longest = if session.http1.load(Ordering::Relaxed) { WATCH_HTTP1 } else { WATCH }.as_secs();
            let seconds = rand::random_range(longest - longest / 6..=longest);
            let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
            session.slices().watch(&WatchParams::default().labels(selector).timeout(seconds), version)
        });
        let Some((session, answer)) = asked.await? else { return Ok(None) };
        let http1 = answer.version() < Version::HTTP_2;
        session.http1.store(http1, Ordering::Relaxed);
        let now = Instant::now();
        let until = if http1 { now + WATCH_HTTP1 } else { now + WATCH + WATCH_SLACK };
        Ok(Some(Events { session, body: answer.into_body(), rest: BytesMut::new(), scanned: 0, until, http1, lane }))
    }
}

impl Session {
    fn new(made: Configuration, namespace: Option<Box<str>>) -> Result<Self, DriverError> {
        let Configuration { config, tls, auth, token, server_name } = made;
        let base = &config.cluster_url;
        let server = match (base.scheme_str(), base.authority()) {
            (Some(scheme), Some(authority)) => format!("{scheme}://{}", authority.as_str()),
            _ => return Err(invalid(format!("the address of the cluster `{base}` is not complete"))),
        };
        let lanes = Lanes::new(tls, server_name);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(auth)
            .layer(config.extra_headers_layer().map_err(|error| {
                invalid("the kubeconfig impersonates somebody whose name no header can carry").because(error)
            })?)
            .map_err(Box::<dyn StdError + Send + Sync>::from)
            .service(Transport(lanes.clone()));
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.as_str().into());
        let client = Client::new(service, config.default_namespace.clone());
        let http1 = AtomicBool::new(base.scheme_str() == Some("http"));
        Ok(Self { client, namespace, server, token, lanes, http1, made: Instant::now() })
    }

    /// Requests about the slices of the namespace.
    fn slices(&self) -> kube::core::Request {
        kube::core::Request::new(format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", self.namespace))
    }

    async fn send(&self, lane: usize, request: Request<Vec<u8>>) -> Result<Response<Body>, DriverError> {
        let mut request = request.map(Body::from);
        request.extensions_mut().insert(LaneNumber(lane));
        if let Some(token) = &self.token {
            let token = token.reveal().map_err(|error| denied(error.to_string()).because(error))?;
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| denied("the token has characters that no token has"))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let gate = self.lanes.gate(lane);
        let first = if gate.open.load(Ordering::Acquire) { None } else { Some(gate.first.lock().await) };
        let first = first.filter(|_| !gate.open.load(Ordering::Acquire));
        let answer = self.client.send(request).await.map_err(|error| match error {
            kube::Error::Service(error) => match error.downcast::<AuthError>() {
                Ok(error) => auth_error(&error),
                Err(error) => self.unreachable(Passed(error)),
            },
            error => self.unreachable(error),
        });
        gate.open.store(answer.is_ok(), Ordering::Release);
        drop(first);
        answer
    }

    fn unreachable(&self, error: impl StdError + Send + Sync + 'static) -> DriverError {
        DriverError::new(ErrorKind::Unreachable, format!("{} cannot be reached", self.server)).because(error)
    }

    fn silent(&self) -> DriverError {
        DriverError::new(ErrorKind::Unreachable, format!("{} does not answer in time", self.server))
    }

    fn foreign(&self) -> DriverError {
        DriverError::new(ErrorKind::Invalid, format!("{} does not answer like an API server", self.server))
    }

    async fn body(&self, answer: Response<Body>, max: usize) -> Result<Bytes, DriverError> {
        let mut body = answer.into_body();
        let mut read = BytesMut::new();
        loop {
            let frame = timeout(CALL, body.frame()).await.map_err(|_| self.silent())?;
            match frame {
                None => return Ok(read.freeze()),
                Some(Err(error)) => return Err(self.unreachable(error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        if read.len() + data.len() > max {
                            let message = format!("{} answers with more than {max} bytes", self.server);
                            return Err(invalid(message));
                        }
                        read.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    async fn refusal(&self, answer: Response<Body>) -> DriverError {
        let status = answer.status();
        let after: Option<u64> = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        // Where the reason cannot be read, the number is all there is.
        let body = self.body(answer, REFUSAL_MAX).await.unwrap_or_default();
        let said: Value = serde_json::from_slice(&body).unwrap_or_default();
        self.refused(status.as_u16(), &said, after)
    }

    /// What a `Status` object means; `after` is the header `Retry-After` in seconds.
    fn refused(&self, code: u16, said: &Value, after: Option<u64>) -> DriverError {
        let kind = match code {
            401 | 403 => ErrorKind::Denied,
            408 | 429 | 500.. => ErrorKind::Unreachable,
            _ => ErrorKind::Invalid,
        };
        let message = said.get("message").and_then(Value::as_str).unwrap_or_default();
        let message: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect();
        let separator = if message.is_empty() { "" } else { ": " };
        let hint = match code {
            404 => "; is it an API server of Kubernetes 1.21 or later?",
            _ => "",
        };
        let error = DriverError::new(kind, format!("{} answered {code}{separator}{message}{hint}", self.server));
        let after = after.or_else(|| said.pointer("/details/retryAfterSeconds")?.as_u64());
        match after.filter(|seconds| *seconds > 0) {
            Some(seconds) => error.retry_after(Duration::from_secs(seconds).min(RETRY_AFTER_MAX)),
            None => error,
        }
    }
}

/// An open watch.
pub(super) struct Events {
    session: Arc<Session>,
    body: Body,
    rest: BytesMut,
    /// How much of the rest is known to hold no end of a line.
    scanned: usize,
    until: Instant,
    http1: bool,
    lane: Lane,
}

impl Events {
    /// The next event; `None` at the end of the watch, which is no loss. Dropping the future loses nothing.
    ///
    /// # Errors
    /// When the watch broke.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, DriverError> {
        loop {
            while let Some(line) = self.line() {
                if let Some(event) = self.event(&line)? {
                    return Ok(Some(event));
                }
            }
            if self.rest.len() > EVENT_MAX {
                let message = format!("{} sends an event of more than {EVENT_MAX} bytes", self.session.server);
                return Err(DriverError::new(ErrorKind::Unreachable, message));
            }
            match timeout_at(self.until, self.body.frame()).await {
                // A watch over HTTP/1 is ended from here; over HTTP/2 the server should have done so.
                Err(_) if self.http1 => return Ok(None),
                Err(_) => return Err(self.broke(self.session.silent())),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(self.broke(self.session.unreachable(error))),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.rest.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// The connection is gone, and with it the other watches on it: again the first one goes alone.
    fn broke(&self, error: DriverError) -> DriverError {
        self.lane.gate().open.store(false, Ordering::Release);
        error
    }

    fn line(&mut self) -> Option<Bytes> {
        let end = self.rest[self.scanned..].iter().position(|byte| *byte == b'\n');
        match end {
            Some(end) => {
                let line = self.rest.split_to(self.scanned + end + 1).freeze();
                self.scanned = 0;
                Some(line)
            }
            None => {
                self.scanned = self.rest.len();
                None
            }
        }
    }

    fn event(&self, line: &[u8]) -> Result<Option<Event>, DriverError> {
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(None);
        }
        let value: Value = serde_json::from_slice(line).map_err(|error| self.session.foreign().because(error))?;
        let Value::Object(mut map) = value else { return Err(self.session.foreign()) };
        let object = map.remove("object").unwrap_or_default();
        Ok(match map.get("type").and_then(Value::as_str) {
            Some("ADDED" | "MODIFIED") => Some(Event::Put(object)),
            Some("DELETED") => Some(Event::Deleted(object)),
            Some("BOOKMARK") => version_of(&object).map(|version| Event::Bookmark(version.to_owned())),
            Some("ERROR") => {
                let code = object.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
                match code {
                    Some(410) => Some(Event::Gone),
                    code => return Err(self.session.refused(code.unwrap_or(500), &object, None)),
                }
            }
            // A kind of event that is not known yet.
            _ => None,
        })
    }
}

/// The version of an object.
pub(super) fn version_of(object: &Value) -> Option<&str> {
    object.pointer("/metadata/resourceVersion")?.as_str().filter(|version| !version.is_empty())
}

/// An error that came boxed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Passed(Box<dyn StdError + Send + Sync>);
