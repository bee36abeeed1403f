//! Single rows and writes.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query as UrlQuery, Request, State};
use axum::http::{Response, header};
use metaroute_cluster::{Query, QueryRequest};

use super::observe::{Done, RequestId};
use super::problem::Problem;
use super::request::{RowParams, RowsBody};
use super::{answer, covered, json_answer, search};
use crate::service::Service;

type Pairs = Result<UrlQuery<Vec<(String, String)>>, QueryRejection>;

/// `POST /v1/{store}/rows`
pub(super) async fn write(
    State(service): State<Arc<Service>>,
    path: Result<Path<String>, PathRejection>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Response<Body> {
    let name = store_name(&path);
    let done = Done::of(&name, "write");
    finish(done, try_write(&service, &name, id, request).await)
}

async fn try_write(
    service: &Arc<Service>,
    name: &str,
    id: RequestId,
    request: Request,
) -> Result<(Response<Body>, Done), Problem> {
    let store = service.named(name)?;
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let lines = matches!(
        kind.as_str(),
        "application/x-ndjson" | "application/ndjson" | "application/jsonl" | "application/x-jsonlines"
    );
    let body = super::body(request.into_body()).await?;
    // Clients that say nothing, or what curl says by itself, are understood by what they send.
    let lines = lines || (kind != "application/json" && RowsBody::looks_like_lines(&body));
    let rows = if lines { RowsBody::parse_lines(&body, &store)? } else { RowsBody::parse(&body, &store)? };
    let call = service.call(&id, None);
    let router = service.router.clone();
    let written = tokio::spawn(async move { router.write(&store, rows.rows, &call).await });
    let written = written.await.map_err(|_| Problem::internal("the write ended with a bug"))??;
    service.metrics.wrote(written.rows);
    let body = serde_json::json!({ "written": written.rows }).to_string();
    Ok((json_answer(body), Done { returned: written.rows, ..Done::of(name, "write") }))
}

/// `GET /v1/{store}/rows/{id}`
pub(super) async fn get(
    State(service): State<Arc<Service>>,
    path: Result<Path<(String, String)>, PathRejection>,
    pairs: Pairs,
    Extension(id): Extension<RequestId>,
) -> Response<Body> {
    let (name, row) = place(&path);
    let done = Done::of(&name, "get");
    finish(done, try_get(&service, &name, &row, pairs, id).await)
}

async fn try_get(
    service: &Arc<Service>,
    name: &str,
    row: &str,
    pairs: Pairs,
    id: RequestId,
) -> Result<(Response<Body>, Done), Problem> {
    let store = service.named(name)?;
    let row_id = number(row)?;
    let UrlQuery(pairs) = pairs.map_err(|error| Problem::bad_request(error.body_text()))?;
    let params = RowParams::parse(&pairs, &store, true)?;
    let request = QueryRequest {
        tenant: params.tenant,
        ids: Some(vec![row_id]),
        fields: params.fields,
        allow_global: params.allow_global,
        ..QueryRequest::default()
    };
    let query = Query::new(&store, request)?;
    search::admit(service, &query)?;
    let call = service.call(&id, params.timeout);
    let answer = service.router.query(&query, &call).await?;
    service.metrics.covered(&answer.meta);
    let done = Done::of(name, "get").meta(&answer.meta);
    let Some(found) = answer.rows.first() else {
        let meta = serde_json::to_value(&answer.meta).expect("plain data serialises");
        let detail = match params.tenant {
            Some(tenant) => format!("tenant {tenant} has no row {row_id} in `{name}`"),
            None => format!("there is no row {row_id} in `{name}`"),
        };
        return Err(Problem::not_found(detail).with("meta", meta));
    };
    let writer = answer::RowWriter::new(&store, &query.fields, params.ints);
    Ok((covered(answer::row(&writer, found, &answer.meta), &answer.meta), done))
}

/// `DELETE /v1/{store}/rows/{id}`
pub(super) async fn delete(
    State(service): State<Arc<Service>>,
    path: Result<Path<(String, String)>, PathRejection>,
    pairs: Pairs,
    Extension(id): Extension<RequestId>,
) -> Response<Body> {
    let (name, row) = place(&path);
    let done = Done::of(&name, "delete");
    finish(done, try_delete(&service, &name, &row, pairs, id).await)
}

async fn try_delete(
    service: &Arc<Service>,
    name: &str,
    row: &str,
    pairs: Pairs,
    id: RequestId,
) -> Result<(Response<Body>, Done), Problem> {
    let store = service.named(name)?;
    let row_id = number(row)?;
    let UrlQuery(pairs) = pairs.map_err(|error| Problem::bad_request(error.body_text()))?;
    let params = RowParams::parse(&pairs, &store, false)?;
    let Some(tenant) = params.tenant else {
        let tenant = &store.columns()[store.tenant()].name;
        return Err(Problem::bad_request(format!("deleting a row needs its `{tenant}`"))
            .hint(format!("add ?{tenant}=… to the address")));
    };
    let call = service.call(&id, params.timeout);
    let router = service.router.clone();
    let deleted = tokio::spawn(async move { router.delete(&store, tenant, row_id, &call).await });
    let deleted = deleted.await.map_err(|_| Problem::internal("the delete ended with a bug"))??;
    let body = serde_json::json!({ "deleted": u8::from(deleted) }).to_string();
    Ok((json_answer(body), Done { returned: u64::from(deleted), ..Done::of(name, "delete") }))
}

pub(super) fn store_name(path: &Result<Path<String>, PathRejection>) -> String {
    path.as_ref().map(|Path(name)| name.clone()).unwrap_or_default()
}

fn place(path: &Result<Path<(String, String)>, PathRejection>) -> (String, String) {
    path.as_ref().map(|Path(place)| place.clone()).unwrap_or_default()
}

fn number(text: &str) -> Result<u64, Problem> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    let parsed = if plain { text.parse().ok() } else { None };
    parsed.ok_or_else(|| Problem::bad_request(format!("`{text}` is no unsigned 64-bit id")))
}

/// Attaches what the completion line says.
pub(super) fn finish(mut done: Done, result: Result<(Response<Body>, Done), Problem>) -> Response<Body> {
    match result {
        Ok((mut response, done)) => {
            response.extensions_mut().insert(done);
            response
        }
        Err(problem) => {
            if problem.status.is_server_error() {
                tracing::warn!(code = problem.code, detail = problem.detail, "request failed");
            }
            done.code = problem.code;
            // A name nobody declared must not become a label.
            if problem.code == "unknown_store" {
                done.store = None;
            }
            let mut response = problem.response();
            response.extensions_mut().insert(done);
            response
        }
    }
}
