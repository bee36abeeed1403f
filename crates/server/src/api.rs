//! The HTTP API: the only place that knows HTTP, JSON and status codes.
//!
//! Reads stop when the client leaves: the handler's future is dropped, and with it every sub-request. Writes run to their
//! end whether the client is there or not, because half a write helps nobody. Bodies are read whole (8 MiB at most)
//! before anything is asked; only exports stream.

mod answer;
pub mod backup;
mod json;
pub(crate) mod observe;
pub(crate) mod openapi;
mod patterns;
pub(crate) mod problem;
mod request;
mod rows;
mod search;
mod stats;
mod topology;
mod value;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode, header};
use axum::middleware;
use axum::routing::{MethodFilter, get};
use bytes::BytesMut;
use futures_util::{FutureExt, StreamExt};
use metaroute_cluster::Meta;
use metaroute_cluster::router::Call;
use metaroute_cluster::scatter::Rights;
use prometheus_client::registry::Registry;
use serde_json::{Map, Value};

use crate::metrics;
use crate::service::Service;
use observe::{Endpoints, Route};
use problem::Problem;

pub use observe::observe;
pub use openapi::document as openapi_document;
#[doc(hidden)]
pub use request::fuzz_query_body;

/// Largest body.
pub const BODY_MAX: usize = 8 << 20;

/// How long a body may take to arrive.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// Whether the answer covers everything that was asked.
const COMPLETE: HeaderName = HeaderName::from_static("x-meta-complete");

/// Everything about rows, to be merged with what else a server answers: no probes, no metrics, no fallback. Each route has
/// its request id, completion line, counters and panic guard with it; a layer around them would do all of it twice.
pub fn routes(service: Arc<Service>) -> Router {
    const GET: MethodFilter = MethodFilter::GET;
    const POST: MethodFilter = MethodFilter::POST;
    const PUT: MethodFilter = MethodFilter::PUT;
    const DELETE: MethodFilter = MethodFilter::DELETE;
    let of = |method, path, operation| Route { method, path, operation, store: None };
    let built_in = Route { store: Some("file_metadata"), ..of(POST, "/v1/query_file_metadata", "query") };
    let http = service.metrics.http().clone();
    let wrong_method = move |request: Request| {
        let http = http.clone();
        async move { observe::plain(&http, request, |_| async { Problem::method_not_allowed().response() }).await }
    };
    Endpoints::new(&service)
        .add(of(GET, "/v1/stores", "stores"), stats::stores)
        .add(built_in, search::query)
        .add(of(GET, "/v1/topology", "topology"), topology::show)
        .add(of(PUT, "/v1/topology", "topology"), topology::replace)
        .add(of(GET, "/v1/topology/history", "topology"), topology::history)
        .add(of(GET, "/v1/stats", "stats"), stats::stats)
        .add(of(GET, "/v1/backup", "backup"), backup::backup)
        .add(of(POST, "/v1/{store}/rows", "write"), rows::write)
        .add(of(GET, "/v1/{store}/rows/{id}", "get"), rows::get)
        .add(of(DELETE, "/v1/{store}/rows/{id}", "delete"), rows::delete)
        .add(of(POST, "/v1/{store}/query", "query"), search::query)
        .add(of(POST, "/v1/{store}/count", "count"), search::count)
        .add(of(POST, "/v1/{store}/export", "export"), search::export)
        .add(of(POST, "/v1/{store}/explain", "explain"), search::explain)
        .router()
        .method_not_allowed_fallback(wrong_method)
}

/// Adds metrics to a page. Names on it are whole: the page has no prefix.
pub type AddMetrics = Arc<dyn Fn(&mut Registry) + Send + Sync>;

/// Why something cannot be answered; `None` when it can.
pub type Unready = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// What a server answers beside rows, and what there is to say about that. Nothing, by default.
#[derive(Clone, Default)]
pub struct Beside {
    /// Further routes. They are observed like the others.
    pub routes: Router,
    /// Their part of the OpenAPI document: its `paths`.
    pub paths: Map<String, Value>,
    /// And its `components.schemas`; the server's own come first.
    pub schemas: Map<String, Value>,
    /// Their metrics.
    pub metrics: Option<AddMetrics>,
    /// Whether they keep the whole server from being ready.
    pub unready: Option<Unready>,
}

impl std::fmt::Debug for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Beside").field("paths", &self.paths.keys()).finish_non_exhaustive()
    }
}

/// A whole server: rows, probes, metrics, the OpenAPI document, and what else there is, for example the console (see
/// [`crate::console::routes`]).
pub fn standalone(service: Arc<Service>, beside: Beside) -> Router {
    let Beside { routes: further, paths, schemas, metrics, unready } = beside;
    let mut document = openapi::document(service.stores());
    for (pointer, more) in [("/paths", paths), ("/components/schemas", schemas)] {
        if let Some(Value::Object(known)) = document.pointer_mut(pointer) {
            for (name, part) in more {
                known.entry(name).or_insert(part);
            }
        }
    }
    let document = Bytes::from(document.to_string());
    let http = service.metrics.http().clone();
    Router::new()
        .route("/livez", get(|| async { json_answer(Bytes::from_static(b"{\"status\":\"ok\"}")) }))
        .route("/readyz", get(move |service| readyz(service, unready)))
        .route("/metrics", get(move |service| metrics_page(service, metrics)))
        .route("/openapi.json", get(move || async move { json_answer(document) }))
        .with_state(Arc::clone(&service))
        .merge(further)
        .fallback(|| async { Problem::not_found("nothing is served here").hint("see /openapi.json").response() })
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed().response() })
        .layer(middleware::from_fn_with_state(http, observe::observe))
        .merge(routes(service))
}

async fn readyz(State(service): State<Arc<Service>>, further: Option<Unready>) -> Response<Body> {
    match service.unready().or_else(|| further.and_then(|unready| unready())) {
        None => json_answer(Bytes::from_static(b"{\"status\":\"ready\"}")),
        Some(why) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", why).response(),
    }
}

async fn metrics_page(State(service): State<Arc<Service>>, further: Option<AddMetrics>) -> Response<Body> {
    // Taking the store's numbers may wait for a lock held across an fsync.
    let page = tokio::task::spawn_blocking(move || {
        let mut registry = Registry::default();
        if let Some(further) = further {
            further(&mut registry);
        }
        metrics::register(registry.sub_registry_with_prefix("metaroute"), &service);
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).map(|()| page)
    });
    match page.await {
        Ok(Ok(page)) => {
            let mut response = Response::new(Body::from(page));
            let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        _ => Problem::internal("the metrics cannot be written").response(),
    }
}

fn json_answer(body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer about rows, with the headers that say what it covers.
fn covered(body: Vec<u8>, meta: &Meta) -> Response<Body> {
    let mut response = json_answer(body);
    let headers = response.headers_mut();
    headers.insert(COMPLETE, HeaderValue::from_static(if meta.complete { "true" } else { "false" }));
    if !meta.complete {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

/// Reads a whole body.
async fn body(body: Body) -> Result<Bytes, Problem> {
    // Who announces too much is told so before it comes.
    if body.size_hint().lower() > BODY_MAX as u64 {
        return Err(Problem::body_too_large(BODY_MAX));
    }
    let read = async {
        let mut chunks = body.into_data_stream();
        // Nearly every body is one chunk, and then it is taken as it is.
        let mut first = Bytes::new();
        let mut whole = BytesMut::new();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| Problem::bad_request("the body broke off"))?;
            if first.len() + whole.len() + chunk.len() > BODY_MAX {
                return Err(Problem::body_too_large(BODY_MAX));
            }
            if whole.is_empty() && first.is_empty() {
                first = chunk;
                continue;
            }
            whole.extend_from_slice(&std::mem::take(&mut first));
            whole.extend_from_slice(&chunk);
        }
        Ok(if whole.is_empty() { first } else { whole.freeze() })
    };
    let late = || Problem::bad_request(format!("the body did not arrive within {} s", BODY_WITHIN.as_secs()));
    let mut read = std::pin::pin!(read);
    match read.as_mut().now_or_never() {
        Some(read) => read,
        None => tokio::time::timeout(BODY_WITHIN, read).await.unwrap_or_else(|_| Err(late())),
    }
}

impl Service {
    fn unknown_store(&self, name: &str) -> Problem {
        let problem = Problem::unknown_store(name);
        match metaroute_registry::document::suggest(name, self.stores().iter().map(|store| store.name())) {
            Some(word) => problem.hint(format!("did you mean `{word}`?")),
            None => problem,
        }
    }

    fn call(&self, id: &Arc<str>, timeout: Option<Duration>) -> Call {
        Call {
            request_id: Arc::clone(id),
            deadline: Instant::now() + timeout.unwrap_or(self.options.timeout),
            // Authentication is off, and then everybody on this machine may do everything.
            rights: Rights::ALL,
        }
    }
}
