//! The connections to an API server: HTTP/2 with pings where it can be had, and several of them, because servers allow about a
//! hundred streams per connection and every watch is one. Calls have a connection of their own.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::Body;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// How often a connection with open watches is pinged, and how long the answer may take.
const PING: Duration = Duration::from_secs(6);
const PING_ANSWER: Duration = Duration::from_secs(4);
/// Watches per connection; servers allow 100 streams (Go's least), sometimes 250.
const WATCHES_PER_LANE: usize = 50;

/// Connections by number: 0 for calls, the others for watches.
#[derive(Clone)]
pub(super) struct Lanes(Arc<LanesInner>);

struct LanesInner {
    tls: Arc<ClientConfig>,
    server_name: Option<ServerName<'static>>,
    open: Mutex<Vec<OpenLane>>,
}

struct OpenLane {
    http: Http,
    gate: Arc<Gate>,
    watches: usize,
}

/// Before a connection is there nobody knows that it will carry many requests, and each of them would open its own. So the
/// first one goes alone.
#[derive(Default)]
pub(super) struct Gate {
    pub(super) open: AtomicBool,
    pub(super) first: tokio::sync::Mutex<()>,
}

type Http = legacy::Client<HttpsConnector<HttpConnector>, Body>;

/// A place for one watch.
pub(super) struct Lane {
    lanes: Lanes,
    pub(super) number: usize,
}

impl Lane {
    pub(super) fn gate(&self) -> Arc<Gate> {
        self.lanes.gate(self.number)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(lane) = self.lanes.open().get_mut(self.number) {
            lane.watches = lane.watches.saturating_sub(1);
        }
    }
}

/// Which connection a request goes over.
#[derive(Clone, Copy)]
pub(super) struct LaneNumber(pub(super) usize);

impl Lanes {
    pub(super) fn new(tls: ClientConfig, server_name: Option<ServerName<'static>>) -> Self {
        let lanes = Self(Arc::new(LanesInner { tls: Arc::new(tls), server_name, open: Mutex::default() }));
        let calls = OpenLane { http: lanes.connect(), gate: Arc::default(), watches: usize::MAX };
        lanes.open().push(calls);
        lanes
    }

    fn open(&self) -> MutexGuard<'_, Vec<OpenLane>> {
        // Every change is one call on the list.
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self) -> Http {
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_keepalive(Some(PING));
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let mut builder = HttpsConnectorBuilder::new().with_tls_config((*self.0.tls).clone()).https_or_http();
        if let Some(name) = &self.0.server_name {
            builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name.clone()));
        }
        let mut client = legacy::Client::builder(TokioExecutor::new());
        client
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .http2_keep_alive_interval(PING)
            .http2_keep_alive_timeout(PING_ANSWER);
        client.build(builder.enable_all_versions().wrap_connector(tcp))
    }

    /// A place for a watch.
    pub(super) fn take(&self) -> Lane {
        let free = self.open().iter().position(|lane| lane.watches < WATCHES_PER_LANE);
        let number = match free {
            Some(number) => number,
            None => {
                let http = self.connect();
                let mut open = self.open();
                open.push(OpenLane { http, gate: Arc::default(), watches: 0 });
                open.len() - 1
            }
        };
        self.open()[number].watches += 1;
        Lane { lanes: self.clone(), number }
    }

    /// The connection of a number, which may be another session's and unknown here.
    fn http(&self, number: usize) -> Http {
        let open = self.open();
        open.get(number).unwrap_or(&open[0]).http.clone()
    }

    pub(super) fn gate(&self, number: usize) -> Arc<Gate> {
        let open = self.open();
        Arc::clone(&open.get(number).unwrap_or(&open[0]).gate)
    }
}

/// Sends each request over its lane.
#[derive(Clone)]
pub(super) struct Transport(pub(super) Lanes);

impl tower::Service<Request<Body>> for Transport {
    type Response = Response<Incoming>;
    type Error = legacy::Error;
    type Future = legacy::ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), legacy::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let number = request.extensions().get::<LaneNumber>().map_or(0, |lane| lane.0);
        self.0.http(number).request(request)
    }
}
