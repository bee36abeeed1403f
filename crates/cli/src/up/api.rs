//! The HTTP surface of `metaroute up`.
//!
//! Handlers stop when the client leaves; none of them changes anything.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use metaroute_registry::State as RegistryState;
use metaroute_server::api::observe;
use serde::Serialize;
use serde_json::Value;
use utoipa::{OpenApi, ToSchema};

use super::body::Decision;
use super::hub::{Decider, Hub};
use super::metrics;
use super::problem::Problem;
use crate::wire::{ExplanationView, InstanceView, PickView, StageView, rule_name};

/// Largest body; a rules file of this size has thousands of rules.
const BODY_MAX: usize = 1024 * 1024;

/// One service in the list.
#[derive(Serialize, ToSchema)]
struct ServiceView {
    name: String,
    /// `fresh`, `stale`, `unreachable`, `unknown_service` or `unresolved`.
    state: &'static str,
    instances: usize,
    usable: usize,
}

#[derive(Serialize, ToSchema)]
struct ServicesView {
    services: Vec<ServiceView>,
}

#[derive(Serialize, ToSchema)]
struct InstancesView {
    service: String,
    instances: Vec<InstanceView>,
    /// Place in the registry's history.
    cursor: Option<String>,
    /// The registry cannot confirm this list right now.
    stale: bool,
}

/// Picks, or why there are none.
#[derive(Serialize, ToSchema)]
struct PicksView {
    picks: Vec<PickView>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stages: Vec<StageView>,
}

#[derive(Serialize, ToSchema)]
struct HealthView {
    status: &'static str,
}

#[derive(OpenApi)]
#[openapi(
    info(title = "metaroute", description = "Routing by metadata: narrow the instances, choose one, and say why."),
    paths(livez, readyz, metrics_page, openapi, services, instances, pick, explain),
    components(schemas(Problem))
)]
struct Api;

/// The document behind `/openapi.json`.
pub(crate) fn document() -> utoipa::openapi::OpenApi {
    Api::openapi()
}

/// Everything that is served.
pub(crate) fn router(hub: Arc<Hub>) -> Router {
    let rows = metaroute_server::api::routes(Arc::clone(&hub.rows));
    let http = hub.rows.metrics().http().clone();
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .route("/openapi.json", get(openapi))
        .route("/v1/services", get(services))
        .route("/v1/services/{service}/instances", get(instances))
        .route("/v1/services/{service}/pick", post(pick))
        .route("/v1/services/{service}/explain", post(explain))
        .with_state(hub)
        .merge(metaroute_server::console::routes())
        .fallback(|| async { Problem::not_found("nothing is served here").hint("see /openapi.json") })
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn_with_state(http, observe))
        // These bring their request ids, completion lines, counters and panic guard along.
        .merge(rows)
}

/// Whether the process runs.
#[utoipa::path(get, path = "/livez", responses((status = 200, body = HealthView)))]
async fn livez() -> Json<HealthView> {
    Json(HealthView { status: "ok" })
}

/// Whether requests can be answered.
#[utoipa::path(get, path = "/readyz", responses((status = 200, body = HealthView), (status = 503, body = Problem, content_type = "application/problem+json")))]
async fn readyz(State(hub): State<Arc<Hub>>) -> Result<Json<HealthView>, Problem> {
    match hub.unready() {
        None => Ok(Json(HealthView { status: "ready" })),
        Some(why) => Err(Problem::not_ready(why)),
    }
}

/// Metrics in the OpenMetrics text format.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
async fn metrics_page(State(hub): State<Arc<Hub>>) -> Result<Response, Problem> {
    let page = metrics::page(&hub).map_err(|_| Problem::internal())?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, kind)], page).into_response())
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, body = Object)))]
async fn openapi(State(hub): State<Arc<Hub>>) -> Result<Json<Value>, Problem> {
    let mut document = serde_json::to_value(document()).map_err(|_| Problem::internal())?;
    if let Some(paths) = document["paths"].as_object_mut() {
        metaroute_server::api::data_paths(hub.rows.stores(), paths);
    }
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        metaroute_server::api::data_schemas(hub.rows.stores(), schemas);
    }
    Ok(Json(document))
}

/// The services of the registry.
#[utoipa::path(get, path = "/v1/services", responses((status = 200, body = ServicesView)))]
async fn services(State(hub): State<Arc<Hub>>) -> Json<ServicesView> {
    let services = hub.known().into_iter().map(|known| ServiceView {
        state: state_name(known.state),
        instances: known.metrics.instances,
        usable: known.metrics.usable,
        name: known.name,
    });
    Json(ServicesView { services: services.collect() })
}

/// The instances of a service.
#[utoipa::path(
    get, path = "/v1/services/{service}/instances", params(("service" = String, Path)),
    responses((status = 200, body = InstancesView), (status = 404, body = Problem, content_type = "application/problem+json"))
)]
async fn instances(State(hub): State<Arc<Hub>>, Path(service): Path<String>) -> Result<Json<InstancesView>, Problem> {
    let found = hub.instances(&service).ok_or_else(|| Problem::unknown_service(&service))?;
    Ok(Json(InstancesView {
        service,
        instances: found.list.iter().map(InstanceView::of).collect(),
        cursor: found.cursor,
        stale: found.stale,
    }))
}

/// Picks instances as a client would.
#[utoipa::path(
    post, path = "/v1/services/{service}/pick", params(("service" = String, Path)), request_body = Option<Decision>,
    responses(
        (status = 200, description = "Picks, or an empty list with the reason", body = PicksView),
        (status = 400, body = Problem, content_type = "application/problem+json"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 413, body = Problem, content_type = "application/problem+json"),
    )
)]
async fn pick(
    State(hub): State<Arc<Hub>>,
    Path(service): Path<String>,
    request: Request,
) -> Result<Json<PicksView>, Problem> {
    let decision = read(request).await?;
    let decider = decider(&hub, &service, &decision)?;
    let context = decision.request(&decider.selector);
    let mut picks = Vec::new();
    let mut picker = decider.picker();
    for _ in 0..decision.picks() {
        match picker.pick(&context) {
            Ok(pick) => {
                hub.metrics.picked(&service, pick.reason(), rule_name(pick.reason(), &decider.rules));
                picks.push(PickView::of(pick.instance(), pick.reason()));
            }
            Err(none) => {
                hub.metrics.none_picked(&service, none.reason);
                let stages = none.stages.iter().map(StageView::of).collect();
                return Ok(Json(PicksView { picks, reason: Some(none.reason.to_string()), stages }));
            }
        }
    }
    Ok(Json(PicksView { picks, reason: None, stages: Vec::new() }))
}

/// Says for every instance what kept or dropped it, and its exact probability.
#[utoipa::path(
    post, path = "/v1/services/{service}/explain", params(("service" = String, Path)), request_body = Option<Decision>,
    responses(
        (status = 200, body = ExplanationView),
        (status = 400, body = Problem, content_type = "application/problem+json"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 413, body = Problem, content_type = "application/problem+json"),
    )
)]
async fn explain(
    State(hub): State<Arc<Hub>>,
    Path(service): Path<String>,
    request: Request,
) -> Result<Json<ExplanationView>, Problem> {
    let decision = read(request).await?;
    let decider = decider(&hub, &service, &decision)?;
    let explanation = decider.selector.explain(&decision.request(&decider.selector));
    Ok(Json(ExplanationView::of(&service, &explanation, &decider.rules)))
}

async fn read(request: Request<Body>) -> Result<Decision, Problem> {
    let body = to_bytes(request.into_body(), BODY_MAX).await.map_err(|_| Problem::body_too_large(BODY_MAX))?;
    Decision::read(&body)
}

fn decider(hub: &Hub, service: &str, decision: &Decision) -> Result<Arc<Decider>, Problem> {
    // Seeded picks repeat only when they begin at the beginning.
    let key = (!decision.is_seeded()).then(|| decision.key());
    hub.decider(service, key.as_deref(), || decision.rules())?.ok_or_else(|| Problem::unknown_service(service))
}

fn state_name(state: RegistryState) -> &'static str {
    match state {
        RegistryState::Unresolved => "unresolved",
        RegistryState::Fresh => "fresh",
        RegistryState::Stale => "stale",
        RegistryState::Unreachable => "unreachable",
        RegistryState::UnknownService => "unknown_service",
        _ => "other",
    }
}
