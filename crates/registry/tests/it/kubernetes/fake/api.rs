//! Requests: who is let in, and which one means what.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::refusal::Refusal;
use super::selector::selected;
use super::store::Store;
use super::watching::begin_watch;
use super::{GROUP, Seen, Shared, documents};

/// Writes a request down, and says who is not let in.
fn admit(shared: &Shared, request: &Request) -> (Seen, Option<Refusal>) {
    let query: BTreeMap<String, String> = request
        .uri()
        .query()
        .map(|query| reqwest::Url::parse(&format!("http://h/?{query}")).expect("a query"))
        .map(|url| url.query_pairs().map(|(key, value)| (key.into_owned(), value.into_owned())).collect())
        .unwrap_or_default();
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let seen = Seen {
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        query,
        version: request.version(),
        accept: header("accept").to_owned(),
        at: Instant::now(),
    };
    let token = header("authorization").strip_prefix("Bearer ").unwrap_or_default().to_owned();
    let refused = {
        let mut inner = shared.inner();
        inner.requests.push(seen.clone());
        let behaviour = &mut inner.behaviour;
        if !behaviour.tokens.is_empty() && !behaviour.tokens.contains(&token) {
            Some(Refusal::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized"))
        } else if let Some((times, seconds)) = behaviour.throttle.filter(|(times, _)| *times > 0) {
            behaviour.throttle = Some((times - 1, seconds));
            let message = "the server has received too many requests and has asked us to try again later";
            Some(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).after(seconds))
        } else if behaviour.forbidden {
            let verb = if seen.is_watch() { "watch" } else { "list" };
            let message = format!(
                "endpointslices.{GROUP} is forbidden: User \"test\" cannot {verb} resource \"endpointslices\" in API group \
                 \"{GROUP}\" in the namespace \"payments\""
            );
            Some(Refusal::new(StatusCode::FORBIDDEN, "Forbidden", message))
        } else {
            None
        }
    };
    (seen, refused)
}

pub(super) async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (seen, refused) = admit(&shared, &request);
    if let Some(refusal) = refused {
        return refusal.into_response();
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, 3 * 1024 * 1024).await else {
        return Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", "limit is 3145728")
            .into_response();
    };
    match route(&shared, &seen, &parts.headers, body) {
        Ok(response) => response,
        Err(refusal) => {
            if refusal.code == StatusCode::BAD_REQUEST {
                shared
                    .inner()
                    .complaints
                    .push(format!("{} {} {:?}: {}", seen.method, seen.path, seen.query, refusal.message));
            }
            refusal.into_response()
        }
    }
}

fn route(shared: &Arc<Shared>, seen: &Seen, headers: &HeaderMap, body: Bytes) -> Result<Response, Refusal> {
    let parts: Vec<&str> = seen.path.trim_matches('/').split('/').collect();
    if let Some(document) = documents::at(&parts).filter(|_| seen.method == Method::GET) {
        return Ok(Json(document).into_response());
    }
    match &*parts {
        ["apis", GROUP, "v1", "namespaces", namespace, "endpointslices"] => match seen.method {
            Method::GET if seen.is_watch() => begin_watch(shared, seen, namespace),
            Method::GET => list(&shared.inner().store, seen, namespace),
            Method::POST => {
                seen.has_only(&["fieldManager", "fieldValidation"])?;
                let object = parse(headers, &body)?;
                write(shared, StatusCode::CREATED, |store| store.create(namespace, object))
            }
            _ => Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "not allowed")),
        },
        ["apis", GROUP, "v1", "namespaces", namespace, "endpointslices", name] => match seen.method {
            Method::GET => {
                let object = shared.inner().store.get(namespace, name)?;
                Ok(Json(object).into_response())
            }
            Method::PUT => {
                seen.has_only(&["fieldManager", "fieldValidation"])?;
                let object = parse(headers, &body)?;
                write(shared, StatusCode::OK, |store| store.replace(namespace, name, object))
            }
            Method::PATCH => {
                seen.has_only(&["fieldManager", "fieldValidation"])?;
                let patch = parse(headers, &body)?;
                write(shared, StatusCode::OK, |store| store.patch(namespace, name, &patch))
            }
            Method::DELETE => write(shared, StatusCode::OK, |store| store.delete(namespace, name)),
            _ => Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "not allowed")),
        },
        _ => Err(Refusal::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")),
    }
}

fn write(
    shared: &Shared,
    code: StatusCode,
    change: impl FnOnce(&mut Store) -> Result<Value, Refusal>,
) -> Result<Response, Refusal> {
    Ok((code, Json(shared.change(change)?)).into_response())
}

fn parse(headers: &HeaderMap, body: &[u8]) -> Result<Value, Refusal> {
    let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !["application/json", "application/merge-patch+json", "application/strategic-merge-patch+json"].contains(&kind) {
        let message = format!("the body of the request was in an unknown format {kind:?}");
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message));
    }
    serde_json::from_slice(body).map_err(|error| Refusal::bad(error.to_string()))
}

fn list(store: &Store, seen: &Seen, namespace: &str) -> Result<Response, Refusal> {
    seen.has_only(&["labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "watch"])?;
    let fits = selected(seen)?;
    let limit: usize = seen
        .query
        .get("limit")
        .map_or(Ok(0), |limit| limit.parse())
        .map_err(|_| Refusal::bad("limit: not a number"))?;
    let (version, after) = match seen.query.get("continue").filter(|token| !token.is_empty()) {
        None => (store.version, String::new()),
        Some(token) => {
            let (version, after) = token.split_once(':').ok_or_else(|| Refusal::bad("continue key is not valid"))?;
            let version: u64 = version.parse().map_err(|_| Refusal::bad("continue key is not valid"))?;
            if version < store.compacted {
                return Err(Refusal::gone());
            }
            (version, after.to_owned())
        }
    };
    // A page shows the state of its version.
    let mut items: Vec<Value> = store
        .at(version)
        .into_iter()
        .filter(|((theirs, name), object)| theirs == namespace && *name > after && fits(object))
        .map(|(_, object)| object)
        .collect();
    let mut meta = json!({ "resourceVersion": version.to_string() });
    if limit > 0 && items.len() > limit {
        meta["remainingItemCount"] = (items.len() - limit).into();
        items.truncate(limit);
        let last = items.last().and_then(|last| last["metadata"]["name"].as_str()).unwrap_or_default();
        meta["continue"] = format!("{version}:{last}").into();
    }
    if seen.accept.contains("as=PartialObjectMetadataList") {
        for item in &mut items {
            *item = json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"],
            });
        }
        return Ok(Json(json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": items,
        }))
        .into_response());
    }
    Ok(Json(json!({
        "kind": "EndpointSliceList", "apiVersion": format!("{GROUP}/v1"), "metadata": meta, "items": items,
    }))
    .into_response())
}
