//! One id, one completion line and one count per request, also when the client left before the answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::StreamExt;
use metaroute_cluster::Meta;

use super::problem::Problem;
use crate::metrics::InFlight;
use crate::service::Service;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id taken over from a client.
const REQUEST_ID_MAX: usize = 128;

/// Status counted when the client left before there was one (as nginx does).
const CLIENT_LEFT: u16 = 499;

/// The id of the request, for handlers and shards.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) Arc<str>);

/// What a handler found out about its request, put into the response for the completion line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) store: Option<Arc<str>>,
    pub(crate) operation: &'static str,
    pub(crate) path: &'static str,
    pub(crate) code: &'static str,
    pub(crate) complete: Option<bool>,
    pub(crate) examined: u64,
    pub(crate) returned: u64,
    pub(crate) cost: f64,
}

impl Done {
    pub(crate) fn of(store: &str, operation: &'static str) -> Done {
        Done { store: Some(store.into()), operation, code: "ok", ..Done::default() }
    }

    pub(crate) fn meta(mut self, meta: &Meta) -> Done {
        self.path = meta.path.name();
        self.complete = Some(meta.complete);
        self.examined = meta.examined;
        self.returned = meta.returned;
        self.cost = meta.cost;
        self
    }
}

/// Says how a request ended when it is dropped, whatever came of it.
struct Completion {
    service: Arc<Service>,
    method: axum::http::Method,
    uri: String,
    request_id: Arc<str>,
    start: Instant,
    status: Option<u16>,
    done: Done,
    _in_flight: InFlight,
}

impl Drop for Completion {
    fn drop(&mut self) {
        let took = self.start.elapsed();
        let status = self.status.unwrap_or(CLIENT_LEFT);
        let done = &self.done;
        let code = if self.status.is_none() { "client_left" } else { done.code };
        if let Some(store) = &done.store {
            self.service.metrics.ended(store, done.operation, done.path, code, took);
        }
        tracing::info!(
            method = %self.method,
            path = self.uri,
            status,
            code,
            latency_us = micros(took),
            request_id = &*self.request_id,
            query_path = done.path,
            complete = done.complete,
            examined = done.examined,
            returned = done.returned,
            cost = done.cost,
            "request completed"
        );
    }
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

/// The middleware around everything about rows.
pub(crate) async fn observe(State(service): State<Arc<Service>>, mut request: Request, next: Next) -> Response {
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let request_id: Arc<str> = match given {
        Some(id) if !id.is_empty() && id.len() <= REQUEST_ID_MAX && id.bytes().all(|b| b.is_ascii_graphic()) => {
            id.into()
        }
        _ => format!("{:016x}", rand::random::<u64>()).into(),
    };
    request.extensions_mut().insert(RequestId(Arc::clone(&request_id)));
    let in_flight = service.metrics.enter();
    let mut completion = Completion {
        method: request.method().clone(),
        uri: request.uri().path().to_owned(),
        request_id,
        start: Instant::now(),
        status: None,
        done: Done { code: "ok", ..Done::default() },
        service: Arc::clone(&service),
        _in_flight: in_flight,
    };
    let mut response = match service.permits.try_acquire() {
        Ok(_permit) => next.run(request).await,
        Err(_) => {
            let most = service.options.requests;
            Problem::overloaded(format!("{most} requests are running already")).response()
        }
    };
    completion.status = Some(response.status().as_u16());
    if let Some(done) = response.extensions_mut().remove::<Done>() {
        completion.done = done;
    } else if !response.status().is_success() {
        completion.done.code = "refused";
    }
    if let Ok(id) = HeaderValue::from_str(&completion.request_id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    if response.extensions().get::<Streaming>().is_some() {
        // The request ends with its stream.
        let (parts, body) = response.into_parts();
        let held = body.into_data_stream().inspect(move |_| {
            // Lives as long as the body.
            let _ = &completion;
        });
        return Response::from_parts(parts, Body::from_stream(held));
    }
    response
}

/// Marks a response whose body goes on after the handler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streaming;
