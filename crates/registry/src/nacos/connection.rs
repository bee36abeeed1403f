//! One connection to one server: one socket, from its first byte to its end.
//!
//! A Nacos server knows a client by its TCP connection: what was registered over it lives exactly as long, and calls over
//! any other socket are those of a stranger (error 301). So the HTTP/2 connection is made here and never re-made: the unary
//! calls and the stream share it, and when it breaks, the whole object is broken and a new one starts from nothing.
//!
//! Liveness is probed by Nacos' own health check after a silence, not by HTTP/2 pings: the servers allow a ping every five
//! minutes and end connections that send more.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::client::conn::http2::SendRequest;
use hyper::http;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;

use super::instances::{Filter, List, read_list};
use super::wire::{self, BiRequestStreamClient, Message, Payload, Refusal, RequestClient, code};
use crate::driver::{DriverError, ErrorKind, Snapshot};
use crate::url::Host;

/// How long a server may take to accept a connection, and each step of the greeting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a server without negotiation gets to note the connection before the first request; the reference client's value.
const SETTLE: Duration = Duration::from_millis(100);
/// How long an ordinary request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Silence after which the server is asked whether it is there; as the reference client.
const IDLE: Duration = Duration::from_secs(5);
/// How often and how long each: a half-open connection is noticed after 5 + 3 × 3 seconds.
const PROBES: usize = 3;
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// Answers to the server that may wait for the socket; it sends one request at a time.
const OUTGOING: usize = 64;

/// Where and how to connect.
pub(super) struct Target<'a> {
    pub(super) host: &'a Host,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) namespace: &'a str,
    pub(super) filter: &'a Filter,
    /// Distinguishes this connection from all others of the driver.
    pub(super) epoch: u64,
    /// Counts the states of all services of the driver.
    pub(super) versions: &'a Arc<AtomicU64>,
}

/// Why a connection ended.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// It broke.
    Lost(DriverError),
    /// There is another one; whoever waits on this goes on there.
    Moved,
}

/// A live connection, or one that just ended.
pub(super) struct Connection {
    pub(super) epoch: u64,
    /// `host:port`, for messages.
    pub(super) server: String,
    /// Whether the server negotiates abilities. Those that do hold one record per connection and service.
    pub(super) negotiated: bool,
    client: RequestClient<Socket>,
    client_ip: String,
    filter: Filter,
    versions: Arc<AtomicU64>,
    end: watch::Sender<Option<End>>,
    /// What the server can do, once it has acknowledged us.
    abilities: watch::Sender<Option<Map<String, Value>>>,
    /// The server's wish that we go elsewhere, with where.
    reset: watch::Sender<Option<Option<(String, u16)>>>,
    started: Instant,
    /// When something came from the server, in milliseconds since `started`.
    heard_ms: AtomicU64,
    subscriptions: Mutex<HashMap<Box<str>, Arc<Subscribed>>>,
    tasks: Mutex<Vec<AbortHandle>>,
    requests: AtomicU64,
}

impl Connection {
    /// Connects to one server and goes through the greeting.
    pub(super) async fn open(target: Target<'_>) -> Result<Arc<Self>, DriverError> {
        let server = target.host.to_string();
        let late = || unreachable(format!("{server} did not answer in time"));
        let address = (&*target.host.name, target.host.port.unwrap_or_default());
        let tcp = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address))
            .await
            .map_err(|_| late())?
            .map_err(|error| unreachable(format!("{server} cannot be reached")).because(error))?;
        // Small requests whose answers are waited for.
        let _ = tcp.set_nodelay(true);
        let client_ip = tcp.local_addr().map(|address| address.ip().to_string()).unwrap_or_default();
        let scheme = if target.tls.is_some() { "https" } else { "http" };
        let greeted = tokio::time::timeout(CONNECT_TIMEOUT, greet(&server, target.host, tcp, target.tls.clone()));
        let (socket, driving) = greeted.await.map_err(|_| late())??;
        let driving = Abort(Some(tokio::spawn(driving).abort_handle()));
        let origin =
            http::Uri::builder().scheme(scheme).authority(server.as_str()).path_and_query("/").build().map_err(
                |error| DriverError::new(ErrorKind::Invalid, format!("bad server `{server}`")).because(error),
            )?;
        let client = RequestClient::with_origin(socket.clone(), origin.clone())
            .max_decoding_message_size(wire::MESSAGE_BYTES_MAX);
        let stream =
            BiRequestStreamClient::with_origin(socket, origin).max_decoding_message_size(wire::MESSAGE_BYTES_MAX);

        let mut asking = client.clone();
        let check = asking.request(wire::pack("ServerCheckRequest", &internal(), &client_ip, None));
        let check = tokio::time::timeout(CONNECT_TIMEOUT, check).await.map_err(|_| late())?;
        let check = check.map_err(|status| broken(&server, &status))?.into_inner();
        let check = wire::unpack(check).map_err(|why| unreachable(format!("{server}: {why}")))?;
        if let Some(refusal) = wire::refusal(&check) {
            return Err(wire::error_of(&server, &refusal));
        }
        let negotiated = check.switch("supportAbilityNegotiation");
        tracing::debug!(server, connection = check.text("connectionId"), negotiated, "connected");

        let connection = Arc::new(Self {
            epoch: target.epoch,
            server,
            negotiated,
            client,
            client_ip,
            filter: target.filter.clone(),
            versions: Arc::clone(target.versions),
            end: watch::Sender::new(None),
            abilities: watch::Sender::new(None),
            reset: watch::Sender::new(None),
            started: Instant::now(),
            heard_ms: AtomicU64::new(0),
            subscriptions: Mutex::default(),
            tasks: Mutex::default(),
            requests: AtomicU64::new(0),
        });
        connection.own(driving.release());
        connection.set_up(stream, target.namespace).await.inspect_err(|error| {
            connection.end_with(End::Lost(error.clone()));
        })?;
        connection.own(tokio::spawn(probe(Arc::downgrade(&connection))).abort_handle());
        Ok(connection)
    }

    /// Opens the stream and introduces us.
    async fn set_up(
        self: &Arc<Self>,
        stream: BiRequestStreamClient<Socket>,
        namespace: &str,
    ) -> Result<(), DriverError> {
        let mut setup = internal();
        setup.insert("clientVersion".into(), concat!("Metaroute-Rust-Client:v", env!("CARGO_PKG_VERSION")).into());
        setup.insert("tenant".into(), namespace.into());
        setup.insert("labels".into(), json!({"source": "sdk", "module": "naming"}));
        // Not null: only then does the server acknowledge.
        setup.insert("abilityTable".into(), json!({}));
        let (outgoing, outgoing_rx) = mpsc::channel(OUTGOING);
        // Before the call: a server may send its headers only with its first message, and the call waits for them.
        let first = wire::pack("ConnectionSetupRequest", &setup, &self.client_ip, None);
        outgoing.try_send(first).map_err(|_| unreachable(format!("{}: the stream is full", self.server)))?;
        let reading = read(Arc::downgrade(self), self.server.clone(), stream, outgoing, outgoing_rx);
        self.own(tokio::spawn(reading).abort_handle());
        let mut abilities = self.abilities.subscribe();
        let acknowledged = async {
            if self.negotiated {
                tokio::time::timeout(CONNECT_TIMEOUT, abilities.wait_for(Option::is_some)).await.is_ok()
            } else {
                tokio::time::sleep(SETTLE).await;
                true
            }
        };
        tokio::select! {
            biased;
            end = self.ended() => match end {
                End::Lost(error) => Err(error),
                End::Moved => Err(unreachable(format!("{} was left", self.server))),
            },
            // A server that starts, or has enough clients, says so instead of acknowledging.
            () = self.sent_away() => Err(unreachable(format!("{} turns clients away", self.server))),
            acknowledged = acknowledged => match acknowledged {
                true => Ok(()),
                false => Err(unreachable(format!("{} did not acknowledge the connection in time", self.server))),
            },
        }
    }

    /// Whether the server said that it can do something.
    pub(super) fn has_ability(&self, name: &str) -> bool {
        let abilities = self.abilities.borrow();
        abilities.as_ref().and_then(|table| table.get(name)).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Asks something of the server. The inner error is its refusal.
    pub(super) async fn ask(
        &self,
        kind: &str,
        body: Map<String, Value>,
        token: Option<&str>,
    ) -> Result<Result<Message, Refusal>, DriverError> {
        self.ask_within(REQUEST_TIMEOUT, kind, body, token).await
    }

    async fn ask_within(
        &self,
        time: Duration,
        kind: &str,
        mut body: Map<String, Value>,
        token: Option<&str>,
    ) -> Result<Result<Message, Refusal>, DriverError> {
        let id = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        body.insert("requestId".into(), id.to_string().into());
        let payload = wire::pack(kind, &body, &self.client_ip, token);
        let mut client = self.client.clone();
        let answer = tokio::select! {
            biased;
            end = self.ended() => return Err(match end {
                End::Lost(error) => error,
                End::Moved => unreachable(format!("{} was left for another server", self.server)),
            }),
            answer = tokio::time::timeout(time, client.request(payload)) => answer,
        };
        let answer = match answer {
            Err(_) => return Err(unreachable(format!("{} did not answer {kind} in time", self.server))),
            Ok(Err(status)) => {
                let error = broken(&self.server, &status);
                use tonic::Code::{Cancelled, Internal, Unavailable, Unknown};
                if matches!(status.code(), Cancelled | Internal | Unavailable | Unknown) {
                    self.end_with(End::Lost(error.clone()));
                }
                return Err(error);
            }
            Ok(Ok(answer)) => answer.into_inner(),
        };
        self.heard();
        let answer = wire::unpack(answer)
            .map_err(|why| DriverError::new(ErrorKind::Invalid, format!("{}: {why}", self.server)))?;
        let Some(refusal) = wire::refusal(&answer) else { return Ok(Ok(answer)) };
        if refusal.code == code::UNREGISTERED {
            // Whatever was registered here is gone: the server takes us for a stranger.
            self.end_with(End::Lost(wire::error_of(&self.server, &refusal)));
        }
        Ok(Err(refusal))
    }

    /// Waits until the connection has ended.
    pub(super) async fn ended(&self) -> End {
        let mut end = self.end.subscribe();
        match end.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(End::Moved),
            // Cannot be: the sender is in `self`.
            Err(_) => End::Moved,
        }
    }

    /// Waits until the server wants us to go elsewhere.
    pub(super) async fn sent_away(&self) {
        // An error cannot be: the sender is in `self`.
        let _ = self.reset.subscribe().wait_for(Option::is_some).await;
    }

    /// Where the server wants us to go, if it said so.
    pub(super) fn suggestion(&self) -> Option<(String, u16)> {
        self.reset.borrow().clone().flatten()
    }

    /// Why it ended, if it has.
    pub(super) fn reason(&self) -> Option<End> {
        self.end.borrow().clone()
    }

    pub(super) fn is_alive(&self) -> bool {
        self.end.borrow().is_none()
    }

    /// Ends the connection: the socket closes, everybody who waits is told. The first reason stays.
    pub(super) fn end_with(&self, end: End) {
        let first = self.end.send_if_modified(|slot| {
            let first = slot.is_none();
            if first {
                *slot = Some(end);
            }
            first
        });
        if first {
            lock(&self.tasks).drain(..).for_each(|task| task.abort());
        }
    }

    /// Takes over a task: it ends with the connection.
    pub(super) fn own(&self, task: AbortHandle) {
        let mut tasks = lock(&self.tasks);
        if self.is_alive() {
            tasks.retain(|task| !task.is_finished());
            tasks.push(task);
        } else {
            task.abort();
        }
    }

    /// The entry of a service, made on first use.
    pub(super) fn subscribed(&self, service: &str) -> Arc<Subscribed> {
        let mut subscriptions = lock(&self.subscriptions);
        let entry = subscriptions.entry(service.into()).or_default();
        lock(&entry.received).used = Some(Instant::now());
        Arc::clone(entry)
    }

    /// The services that are followed, and apart those that nobody has asked for since `idle`; the latter are forgotten.
    pub(super) fn followed(&self, idle: Duration) -> (Vec<Box<str>>, Vec<Box<str>>) {
        let (mut kept, mut forgotten) = (Vec::new(), Vec::new());
        lock(&self.subscriptions).retain(|service, entry| {
            let used = lock(&entry.received).used;
            let wanted = entry.state.receiver_count() > 0 || used.is_some_and(|used| used.elapsed() < idle);
            if wanted {
                kept.push(service.clone())
            } else {
                forgotten.push(service.clone())
            }
            wanted
        });
        (kept, forgotten)
    }

    /// Takes the answer to a question that was begun when [`Subscribed::begin`] said `begun`.
    pub(super) fn answered(&self, entry: &Subscribed, begun: u64, info: &Value) {
        let list = read_list(info, &self.filter)
            .map_err(|why| DriverError::new(ErrorKind::Invalid, format!("{}: {why}", self.server)));
        entry.answered(list, begun, &self.versions);
    }

    fn heard(&self) {
        self.heard_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn silence(&self) -> Duration {
        self.started.elapsed().saturating_sub(Duration::from_millis(self.heard_ms.load(Ordering::Relaxed)))
    }

    /// Takes what the server sent by itself; gives the kind of the answer it wants.
    fn on_request(&self, message: &Message) -> Option<&'static str> {
        match &*message.kind {
            "NotifySubscriberRequest" => {
                self.on_push(message);
                Some("NotifySubscriberResponse")
            }
            "ClientDetectionRequest" => Some("ClientDetectionResponse"),
            "SetupAckRequest" => {
                let table = message.body.get("abilityTable").and_then(Value::as_object).cloned();
                self.abilities.send_replace(Some(table.unwrap_or_default()));
                Some("SetupAckResponse")
            }
            "ConnectResetRequest" => {
                let port = message.body.get("serverPort").and_then(super::instances::number).unwrap_or_default();
                let host = message.text("serverIp");
                self.reset.send_replace(Some((!host.is_empty()).then(|| (host.to_owned(), port as u16))));
                Some("ConnectResetResponse")
            }
            other => {
                tracing::debug!(server = self.server, kind = other, "a request we do not know");
                None
            }
        }
    }

    /// A pushed list goes to its service by name, whatever it says about clusters: some servers leave them out of pushes.
    fn on_push(&self, message: &Message) {
        let info = message.body.get("serviceInfo").unwrap_or(&Value::Null);
        let list = match read_list(info, &self.filter) {
            Ok(list) => list,
            Err(why) => return tracing::warn!(server = self.server, why, "a push cannot be read"),
        };
        let name = if list.service.is_empty() { message.text("serviceName") } else { &list.service };
        let name = name.split_once("@@").map_or(name, |(_, name)| name);
        let entry = lock(&self.subscriptions).get(name).cloned();
        match entry {
            Some(entry) => entry.pushed(list, &self.versions),
            None => tracing::debug!(service = name, "a push for a service that is not followed"),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        lock(&self.tasks).drain(..).for_each(|task| task.abort());
    }
}

/// One service that a connection follows.
pub(super) struct Subscribed {
    pub(super) state: watch::Sender<Option<Latest>>,
    received: Mutex<Received>,
}

impl Default for Subscribed {
    fn default() -> Self {
        Self { state: watch::Sender::new(None), received: Mutex::default() }
    }
}

#[derive(Default)]
struct Received {
    /// When the server made what was taken last.
    made: i64,
    /// How many pushes were taken.
    pushes: u64,
    /// When somebody asked last.
    used: Option<Instant>,
}

/// The latest state of a service.
#[derive(Clone, Debug)]
pub(super) struct Latest {
    pub(super) version: u64,
    pub(super) view: Result<Arc<Snapshot>, DriverError>,
}

impl Subscribed {
    /// Where a question starts; goes with its answer.
    pub(super) fn begin(&self) -> u64 {
        lock(&self.received).pushes
    }

    /// A list that the server sent by itself. One that is older than what was taken is dropped.
    fn pushed(&self, list: List, versions: &AtomicU64) {
        let mut received = lock(&self.received);
        if list.made != 0 && list.made < received.made {
            tracing::debug!(
                service = list.service,
                made = list.made,
                than = received.made,
                "an older push was dropped"
            );
            return;
        }
        received.made = list.made;
        received.pushes += 1;
        self.set(Ok(list.snapshot), versions);
    }

    /// The answer to a question is newer than everything that was there when it was asked, whatever the server's clock
    /// says; only against a push that overtook it does the clock decide.
    fn answered(&self, list: Result<List, DriverError>, begun: u64, versions: &AtomicU64) {
        let mut received = lock(&self.received);
        match list {
            Ok(list) if received.pushes != begun && list.made < received.made => {}
            Ok(list) => {
                received.made = list.made;
                self.set(Ok(list.snapshot), versions);
            }
            Err(error) => self.set(Err(error), versions),
        }
    }

    fn set(&self, view: Result<Snapshot, DriverError>, versions: &AtomicU64) {
        self.state.send_if_modified(|latest| {
            let same = match (&latest, &view) {
                (Some(Latest { view: Ok(old), .. }), Ok(new)) => **old == *new,
                _ => false,
            };
            if !same {
                let version = versions.fetch_add(1, Ordering::Relaxed) + 1;
                *latest = Some(Latest { version, view: view.map(Arc::new) });
            }
            !same
        });
    }
}

/// The HTTP/2 connection as a service. It ends with its socket and is never re-made.
#[derive(Clone)]
struct Socket(SendRequest<Body>);

impl tower::Service<http::Request<Body>> for Socket {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// What moves the bytes of an HTTP/2 connection; the socket closes when it is dropped.
type Driving = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn greet(
    server: &str,
    host: &Host,
    tcp: TcpStream,
    tls: Option<Arc<ClientConfig>>,
) -> Result<(Socket, Driving), DriverError> {
    let Some(tls) = tls else { return handshake(server, tcp).await };
    let name = ServerName::try_from(host.name.to_string())
        .map_err(|error| unreachable(format!("{server}: no name for TLS")).because(error))?;
    let stream = TlsConnector::from(tls)
        .connect(name, tcp)
        .await
        .map_err(|error| unreachable(format!("{server}: TLS failed: {error}")).because(error))?;
    handshake(server, stream).await
}

async fn handshake<T>(server: &str, io: T) -> Result<(Socket, Driving), DriverError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(io))
        .await
        .map_err(|error| unreachable(format!("{server} does not speak HTTP/2")).because(error))?;
    let driving = async move {
        // Whoever uses the connection sees why it ended.
        let _ = connection.await;
    };
    Ok((Socket(sender), Box::pin(driving)))
}

/// A task that ends unless somebody takes it over.
struct Abort(Option<AbortHandle>);

impl Abort {
    fn release(mut self) -> AbortHandle {
        self.0.take().expect("it is taken once, by value")
    }
}

impl Drop for Abort {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Reads what the server sends by itself, and answers, until the stream ends; that ends the connection.
async fn read(
    this: Weak<Connection>,
    server: String,
    mut client: BiRequestStreamClient<Socket>,
    outgoing: mpsc::Sender<Payload>,
    outgoing_rx: mpsc::Receiver<Payload>,
) {
    let ended = async {
        let mut incoming = match client.request_bi_stream(ReceiverStream::new(outgoing_rx)).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => return broken(&server, &status),
        };
        loop {
            let payload = match incoming.message().await {
                Ok(Some(payload)) => payload,
                Ok(None) => return unreachable(format!("{server} ended the connection")),
                Err(status) => return broken(&server, &status),
            };
            let Some(connection) = this.upgrade() else {
                return unreachable(format!("{server} is no longer wanted"));
            };
            connection.heard();
            let message = match wire::unpack(payload) {
                Ok(message) => message,
                Err(why) => {
                    tracing::warn!(server, why, "a message cannot be read");
                    continue;
                }
            };
            if let Some(kind) = connection.on_request(&message) {
                let mut body = Map::new();
                body.insert("requestId".into(), message.text("requestId").into());
                body.insert("resultCode".into(), 200.into());
                let answer = wire::pack(kind, &body, &connection.client_ip, None);
                drop(connection);
                if outgoing.send(answer).await.is_err() {
                    return unreachable(format!("{server} ended the connection"));
                }
            }
        }
    }
    .await;
    if let Some(connection) = this.upgrade() {
        connection.end_with(End::Lost(ended));
    }
}

/// Asks a silent server whether it is there, and ends the connection when it is not.
async fn probe(this: Weak<Connection>) {
    loop {
        let Some(silence) = this.upgrade().map(|connection| connection.silence()) else { return };
        if let Some(wait) = IDLE.checked_sub(silence).filter(|wait| !wait.is_zero()) {
            tokio::time::sleep(wait).await;
            continue;
        }
        let Some(connection) = this.upgrade() else { return };
        let mut last = None;
        for _ in 0..PROBES {
            let asked = connection.ask_within(PROBE_TIMEOUT, "HealthCheckRequest", internal(), None);
            match asked.await {
                Ok(_) => {
                    last = None;
                    break;
                }
                Err(error) => last = Some(error),
            }
        }
        if let Some(error) = last {
            return connection.end_with(End::Lost(error));
        }
    }
}

/// A request to the server itself.
pub(super) fn internal() -> Map<String, Value> {
    Map::from_iter([("module".to_owned(), Value::from("internal"))])
}

fn unreachable(message: String) -> DriverError {
    DriverError::new(ErrorKind::Unreachable, message)
}

/// A call that failed below Nacos' own answers.
fn broken(server: &str, status: &tonic::Status) -> DriverError {
    let kind = match status.code() {
        tonic::Code::Unimplemented => {
            return DriverError::new(
                ErrorKind::Unreachable,
                format!(
                    "{server} speaks gRPC and is no Nacos server; its gRPC port is the HTTP port + 1000 (see `grpc-port`)"
                ),
            );
        }
        tonic::Code::OutOfRange | tonic::Code::ResourceExhausted => ErrorKind::Invalid,
        _ => ErrorKind::Unreachable,
    };
    DriverError::new(kind, format!("the connection to {server} failed: {}", wire::printable(status.message())))
        .because(status.clone())
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while one is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
