//! Services over HTTP: which there are, their instances, picks and explanations.
//!
//! Handlers stop when the client leaves; none of them changes anything.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use metaroute_registry::State as RegistryState;
use metaroute_server::api::Beside;
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

#[derive(OpenApi)]
#[openapi(paths(services, instances, pick, explain), components(schemas(Problem)))]
struct Api;

/// The part of the OpenAPI document about services.
pub(crate) fn document() -> utoipa::openapi::OpenApi {
    Api::openapi()
}

/// Everything about services, and the console, for a server of rows to answer beside them.
pub(crate) fn beside(hub: &Arc<Hub>) -> Beside {
    let routes = Router::new()
        .route("/v1/services", get(services))
        .route("/v1/services/{service}/instances", get(instances))
        .route("/v1/services/{service}/pick", post(pick))
        .route("/v1/services/{service}/explain", post(explain))
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(Arc::clone(hub))
        .merge(metaroute_server::console::routes());
    let document = serde_json::to_value(document()).unwrap_or_default();
    let part = |pointer: &str| document.pointer(pointer).and_then(Value::as_object).cloned().unwrap_or_default();
    let (counted, waiting) = (Arc::clone(hub), Arc::clone(hub));
    Beside {
        routes,
        paths: part("/paths"),
        schemas: part("/components/schemas"),
        metrics: Some(Arc::new(move |registry| metrics::register(registry, &counted))),
        unready: Some(Arc::new(move || waiting.unready())),
    }
}

/// The services of the registry.
#[utoipa::path(get, path = "/v1/services", responses((status = 200, body = ServicesView)))]
async fn services(State(hub): State<Arc<Hub>>) -> Json<ServicesView> {
    hub.asked(None).await;
    let services = hub.known().into_iter().map(|known| {
        let (state, instances, usable) = match &known.seen {
            Some((state, metrics)) => (*state, metrics.instances, metrics.usable),
            None => (RegistryState::Unresolved, 0, 0),
        };
        ServiceView { name: known.name, state: state_name(state), instances, usable }
    });
    Json(ServicesView { services: services.collect() })
}

/// The instances of a service.
#[utoipa::path(
    get, path = "/v1/services/{service}/instances", params(("service" = String, Path)),
    responses((status = 200, body = InstancesView), (status = 404, body = Problem, content_type = "application/problem+json"))
)]
async fn instances(State(hub): State<Arc<Hub>>, Path(service): Path<String>) -> Result<Json<InstancesView>, Problem> {
    hub.asked(Some(&service)).await;
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
    hub.asked(Some(&service)).await;
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
    hub.asked(Some(&service)).await;
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
