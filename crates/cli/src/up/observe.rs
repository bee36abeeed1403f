//! One id, one completion line and one count per request, also when the client left before the answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing_subscriber::EnvFilter;

use super::hub::Hub;
use crate::output::Format;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id taken over from a client.
const REQUEST_ID_MAX: usize = 128;

/// Status counted when the client left before there was one (as nginx does).
const CLIENT_LEFT: u16 = 499;

/// Sends log lines to stderr: text for people, JSON where JSON was asked for. `RUST_LOG` chooses what is said.
pub(crate) fn log_to_stderr(format: Format) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // A second subscriber can only mean that a test set one.
    let _ = match format {
        Format::Text => {
            let colours = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
            builder.with_ansi(colours).try_init()
        }
        Format::Json | Format::Ndjson => builder.json().flatten_event(true).try_init(),
    };
}

/// Says how a request ended when it is dropped, whatever came of it.
struct Completion {
    hub: Arc<Hub>,
    method: String,
    path: String,
    route: String,
    request_id: String,
    start: Instant,
    status: Option<u16>,
}

impl Drop for Completion {
    fn drop(&mut self) {
        let took = self.start.elapsed();
        let status = self.status.unwrap_or(CLIENT_LEFT);
        self.hub.metrics.answered(&self.method, &self.route, status, took);
        tracing::info!(
            method = self.method,
            path = self.path,
            status,
            latency_us = micros(took),
            request_id = self.request_id,
            "request completed"
        );
    }
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

/// The middleware around everything.
pub(crate) async fn observe(State(hub): State<Arc<Hub>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let request_id = match given {
        Some(id) if !id.is_empty() && id.len() <= REQUEST_ID_MAX && id.bytes().all(|b| b.is_ascii_graphic()) => {
            id.to_owned()
        }
        _ => format!("{:016x}", rand::random::<u64>()),
    };
    // Paths that nobody serves share one name, or a scanner could make any number of time series.
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
    let mut completion = Completion {
        hub,
        method: method_name(request.method()),
        path: request.uri().path().to_owned(),
        route,
        request_id,
        start: Instant::now(),
        status: None,
    };
    let mut response = next.run(request).await;
    completion.status = Some(response.status().as_u16());
    if let Ok(id) = HeaderValue::from_str(&completion.request_id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Methods that exist; a client can invent any number of others.
fn method_name(method: &axum::http::Method) -> String {
    match method.as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "PATCH" | "OPTIONS") => known.to_owned(),
        _ => "other".to_owned(),
    }
}
