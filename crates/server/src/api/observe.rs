//! One id, one completion line and one count per request, also when the client left before the answer, and no panic that
//! takes more with it than its own request.
//!
//! Routes about rows go through [`endpoint`], which is one future around the handler and nothing else: as a stack of
//! layers the same work costs as much as reading the row. Everything beside them goes through the middleware [`observe`].

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use futures_util::{FutureExt, StreamExt};
use metaroute_cluster::Meta;
use metaroute_cluster::query::Path;
use metaroute_store::Schema;

use super::problem::Problem;
use crate::metrics::{HttpMetrics, InFlight, RouteMetrics};
use crate::service::Service;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id taken over from a client.
const REQUEST_ID_MAX: usize = 128;

/// Status counted when the client left before there was one (as nginx does).
const CLIENT_LEFT: u16 = 499;

/// A request about rows, as handlers get it.
pub(super) struct Asked {
    pub(super) service: Arc<Service>,
    store: Option<Arc<Schema>>,
    /// Its name in logs, here and at the shards.
    pub(super) id: Arc<str>,
    /// The values of the route's parameters, in order.
    params: Result<RawPathParams, RawPathParamsRejection>,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
}

impl Asked {
    /// The store it is about.
    ///
    /// # Errors
    /// When there is none of this name.
    pub(super) fn store(&self) -> Result<Arc<Schema>, Problem> {
        match &self.store {
            Some(store) => Ok(Arc::clone(store)),
            None => Err(self.service.unknown_store(self.param("store")?)),
        }
    }

    /// A parameter of the route.
    ///
    /// # Errors
    /// When the path is not UTF-8.
    pub(super) fn param(&self, name: &str) -> Result<&str, Problem> {
        let params = self.params.as_ref().map_err(|error| Problem::bad_request(error.body_text()))?;
        let found = params.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value).ok_or_else(|| Problem::internal(format!("the route has no `{name}`")))
    }
}

/// What a handler found out about its request, for the completion line.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) path: Option<Path>,
    pub(super) complete: Option<bool>,
    pub(super) examined: u64,
    pub(super) returned: u64,
    pub(super) cost: f64,
    /// Whether the body goes on after the handler: the request ends with it.
    pub(super) streaming: bool,
}

impl Done {
    /// An answer that covers nothing.
    pub(super) const PLAIN: Done =
        Done { path: None, complete: None, examined: 0, returned: 0, cost: 0.0, streaming: false };

    pub(super) fn of(meta: &Meta) -> Done {
        Done {
            path: Some(meta.path),
            complete: Some(meta.complete),
            examined: meta.examined,
            returned: meta.returned,
            cost: meta.cost,
            ..Done::PLAIN
        }
    }
}

/// What a handler answers.
pub(super) type Answered = Result<(Response<Body>, Done), Problem>;

/// Says how a request ended when it is dropped, whatever came of it.
struct Completion {
    route: Arc<RouteMetrics>,
    rows: Option<Rows>,
    method: Method,
    uri: Uri,
    request_id: Arc<str>,
    start: Instant,
    status: Option<u16>,
    code: &'static str,
    done: Done,
    is_look: bool,
}

/// What is counted of requests about rows only.
struct Rows {
    service: Arc<Service>,
    operation: &'static str,
    store: Option<Arc<str>>,
    /// Except for a look at these very numbers.
    _in_flight: Option<InFlight>,
}

impl Drop for Completion {
    fn drop(&mut self) {
        let took = self.start.elapsed();
        let status = self.status.unwrap_or(CLIENT_LEFT);
        let done = &self.done;
        let code = if self.status.is_none() { "client_left" } else { self.code };
        self.route.answered(status, took);
        if let Some(rows) = &self.rows
            && let Some(store) = &rows.store
        {
            rows.service.metrics.ended(store, rows.operation, done.path, code, took);
        }
        let latency_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let (method, path, request_id) = (self.method.as_str(), self.uri.path(), &*self.request_id);
        if status < 400 && self.is_look {
            tracing::debug!(method, path, status, latency_us, request_id, "request completed");
            return;
        }
        match &self.rows {
            None => tracing::info!(method, path, status, latency_us, request_id, "request completed"),
            Some(_) => tracing::info!(
                method,
                path,
                status,
                code,
                latency_us,
                request_id,
                query_path = done.path.map(Path::name),
                complete = done.complete,
                examined = done.examined,
                returned = done.returned,
                cost = done.cost,
                "request completed"
            ),
        }
    }
}

/// Whether a request only looks how the server is doing, as probes, scrapers and the console do every few seconds: their
/// lines would bury those of users. One that fails is told like any other, and so is one that was given a name.
fn is_look(method: &Method, path: &str, headers: &HeaderMap) -> bool {
    let looks = ["/livez", "/readyz", "/metrics", "/openapi.json", "/v1/stats", "/v1/services"];
    *method == Method::GET
        && (looks.contains(&path) || path.starts_with("/console"))
        && !headers.contains_key(REQUEST_ID)
}

/// The id the client gave, or a fresh one.
fn request_id(headers: &HeaderMap) -> Arc<str> {
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    match given {
        Some(id) if !id.is_empty() && id.len() <= REQUEST_ID_MAX && id.bytes().all(|b| b.is_ascii_graphic()) => {
            id.into()
        }
        _ => {
            let number = rand::random::<u64>();
            let digits: [u8; 16] =
                std::array::from_fn(|at| b"0123456789abcdef"[(number >> (60 - 4 * at)) as usize & 15]);
            std::str::from_utf8(&digits).expect("hexadecimal digits are ASCII").into()
        }
    }
}

fn with_id(mut response: Response, request_id: &str) -> Response {
    if let Ok(id) = HeaderValue::from_str(request_id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// What a panic in a handler becomes.
fn panicked(payload: &(dyn std::any::Any + Send)) -> Problem {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    tracing::error!(panic = text, "a handler panicked");
    Problem::internal("this is a bug of metaroute; the log says more")
}

/// A route about rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) method: MethodFilter,
    pub(super) path: &'static str,
    /// What it does, for counters.
    pub(super) operation: &'static str,
    /// The store it is about, where its path does not say.
    pub(super) store: Option<&'static str>,
}

/// Routes about rows, being put together.
pub(super) struct Endpoints<'a> {
    service: &'a Arc<Service>,
    router: Router,
}

impl<'a> Endpoints<'a> {
    pub(super) fn new(service: &'a Arc<Service>) -> Endpoints<'a> {
        Endpoints { service, router: Router::new() }
    }

    /// Adds a route: the handler, observed.
    pub(super) fn add<F, Fut>(self, route: Route, handler: F) -> Endpoints<'a>
    where
        F: Fn(Asked) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Answered> + Send,
    {
        let name = match route.method {
            MethodFilter::GET => "GET",
            MethodFilter::PUT => "PUT",
            MethodFilter::POST => "POST",
            MethodFilter::DELETE => "DELETE",
            _ => "other",
        };
        let counters = Arc::new(self.service.metrics.http().route(name, route.path));
        let service = Arc::clone(self.service);
        let answering = move |params: Result<RawPathParams, RawPathParamsRejection>, request: Request| {
            answer(Arc::clone(&service), route, Arc::clone(&counters), handler.clone(), params, request)
        };
        Endpoints { router: self.router.route(route.path, on(route.method, answering)), ..self }
    }

    pub(super) fn router(self) -> Router {
        self.router
    }
}

async fn answer<F, Fut>(
    service: Arc<Service>,
    route: Route,
    counters: Arc<RouteMetrics>,
    handler: F,
    params: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
) -> Response
where
    F: Fn(Asked) -> Fut,
    Fut: Future<Output = Answered>,
{
    let (parts, body) = request.into_parts();
    let id = request_id(&parts.headers);
    let named = params.as_ref().ok().and_then(|params| params.iter().find(|(name, _)| *name == "store"));
    let declared = named.map(|(_, name)| name).or(route.store).and_then(|name| service.declared(name));
    let store = declared.map(|declared| Arc::clone(&declared.schema));
    let rows = Rows {
        _in_flight: (route.operation != "stats").then(|| service.metrics.enter()),
        service: Arc::clone(&service),
        operation: route.operation,
        // A name nobody declared must not become a label.
        store: declared.map(|declared| Arc::clone(&declared.name)),
    };
    let mut completion = Completion {
        is_look: is_look(&parts.method, parts.uri.path(), &parts.headers),
        route: counters,
        rows: Some(rows),
        method: parts.method,
        uri: parts.uri.clone(),
        request_id: Arc::clone(&id),
        start: Instant::now(),
        status: None,
        code: "ok",
        done: Done::PLAIN,
    };
    let (uri, headers) = (parts.uri, parts.headers);
    let asked = Asked { service: Arc::clone(&service), store, id, params, uri, headers, body };
    let answered = match service.permits.try_acquire() {
        Ok(_permit) => {
            let answered = AssertUnwindSafe(handler(asked)).catch_unwind().await;
            answered.unwrap_or_else(|payload| Err(panicked(&*payload)))
        }
        Err(_) => {
            let most = service.options.requests;
            Err(Problem::overloaded(format!("{most} requests are running already")))
        }
    };
    let response = match answered {
        Ok((response, done)) => {
            completion.done = done;
            response
        }
        Err(problem) => {
            if problem.status.is_server_error() {
                tracing::warn!(code = problem.code, detail = problem.detail, "request failed");
            }
            completion.code = problem.code;
            problem.covering(|| service.watcher.topology().map_or(0, |topology| topology.epoch())).response()
        }
    };
    completion.status = Some(response.status().as_u16());
    let response = with_id(response, &completion.request_id);
    if !completion.done.streaming {
        return response;
    }
    let (parts, body) = response.into_parts();
    let held = body.into_data_stream().inspect(move |_| {
        // Lives as long as the body.
        let _ = &completion;
    });
    Response::from_parts(parts, Body::from_stream(held))
}

/// The middleware around everything that is not about rows.
pub async fn observe(State(http): State<HttpMetrics>, request: Request, next: Next) -> Response {
    plain(&http, request, |request| next.run(request)).await
}

/// Answers a request that is not about rows, observed.
pub(super) async fn plain<Fut>(http: &HttpMetrics, request: Request, answer: impl FnOnce(Request) -> Fut) -> Response
where
    Fut: Future<Output = Response>,
{
    let id = request_id(request.headers());
    // Paths that nobody serves share one name, or a scanner could make any number of time series.
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str);
    let mut completion = Completion {
        is_look: is_look(request.method(), request.uri().path(), request.headers()),
        route: Arc::new(http.route(method_name(request.method()), route)),
        rows: None,
        method: request.method().clone(),
        uri: request.uri().clone(),
        request_id: Arc::clone(&id),
        start: Instant::now(),
        status: None,
        code: "ok",
        done: Done::PLAIN,
    };
    let answered = AssertUnwindSafe(answer(request)).catch_unwind().await;
    let response = answered.unwrap_or_else(|payload| panicked(&*payload).response());
    completion.status = Some(response.status().as_u16());
    with_id(response, &id)
}

/// Methods that exist; a client can invent any number of others.
fn method_name(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}
