//! Single rows and writes.

use axum::extract::Query as UrlQuery;
use axum::http::{Uri, header};
use metaroute_cluster::{Query, QueryRequest};

use super::observe::{Answered, Asked, Done};
use super::problem::Problem;
use super::request::{RowParams, RowsBody};
use super::{answer, covered, json_answer, search};

/// `POST /v1/{store}/rows`
pub(super) async fn write(asked: Asked) -> Answered {
    let store = asked.store()?;
    let service = asked.service;
    let kind = asked.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let lines = matches!(
        kind.as_str(),
        "application/x-ndjson" | "application/ndjson" | "application/jsonl" | "application/x-jsonlines"
    );
    let body = super::body(asked.body).await?;
    // Clients that say nothing, or what curl says by itself, are understood by what they send.
    let lines = lines || (kind != "application/json" && RowsBody::looks_like_lines(&body));
    let rows = if lines { RowsBody::parse_lines(&body, &store)? } else { RowsBody::parse(&body, &store)? };
    let call = service.call(&asked.id, None);
    let router = service.router.clone();
    let written = tokio::spawn(async move { router.write(&store, rows.rows, &call).await });
    let written = written.await.map_err(|_| Problem::internal("the write ended with a bug"))??;
    service.metrics.wrote(written.rows);
    let body = serde_json::json!({ "written": written.rows }).to_string();
    Ok((json_answer(body), Done { returned: written.rows, ..Done::PLAIN }))
}

/// `GET /v1/{store}/rows/{id}`
pub(super) async fn get(asked: Asked) -> Answered {
    let store = asked.store()?;
    let id = number(asked.param("id")?)?;
    let params = RowParams::parse(&pairs(&asked.uri)?, &store, true)?;
    let request = QueryRequest {
        tenant: params.tenant,
        ids: Some(vec![id]),
        fields: params.fields,
        allow_global: params.allow_global,
        ..QueryRequest::default()
    };
    let query = Query::new(&store, request)?;
    let service = asked.service;
    search::admit(&service, &query)?;
    let call = service.call(&asked.id, params.timeout);
    let answer = service.router.query(&query, &call).await?;
    service.metrics.covered(&answer.meta);
    let Some(found) = answer.rows.first() else {
        let meta = serde_json::to_value(&answer.meta).expect("plain data serialises");
        let name = store.name();
        let detail = match params.tenant {
            Some(tenant) => format!("tenant {tenant} has no row {id} in `{name}`"),
            None => format!("there is no row {id} in `{name}`"),
        };
        return Err(Problem::not_found(detail).with("meta", meta));
    };
    let writer = answer::RowWriter::new(&store, &query.fields, params.ints);
    Ok((covered(answer::row(&writer, found, &answer.meta), &answer.meta), Done::of(&answer.meta)))
}

/// `DELETE /v1/{store}/rows/{id}`
pub(super) async fn delete(asked: Asked) -> Answered {
    let store = asked.store()?;
    let id = number(asked.param("id")?)?;
    let params = RowParams::parse(&pairs(&asked.uri)?, &store, false)?;
    let Some(tenant) = params.tenant else {
        let tenant = &store.columns()[store.tenant()].name;
        return Err(Problem::bad_request(format!("deleting a row needs its `{tenant}`"))
            .hint(format!("add ?{tenant}=… to the address")));
    };
    let call = asked.service.call(&asked.id, params.timeout);
    let router = asked.service.router.clone();
    let deleted = tokio::spawn(async move { router.delete(&store, tenant, id, &call).await });
    let deleted = deleted.await.map_err(|_| Problem::internal("the delete ended with a bug"))??;
    let body = serde_json::json!({ "deleted": u8::from(deleted) }).to_string();
    Ok((json_answer(body), Done { returned: u64::from(deleted), ..Done::PLAIN }))
}

/// The parameters behind the `?`, decoded.
pub(super) fn pairs(uri: &Uri) -> Result<Vec<(String, String)>, Problem> {
    let parsed = UrlQuery::<Vec<(String, String)>>::try_from_uri(uri);
    parsed.map(|UrlQuery(pairs)| pairs).map_err(|error| Problem::bad_request(error.body_text()))
}

fn number(text: &str) -> Result<u64, Problem> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    let parsed = if plain { text.parse().ok() } else { None };
    parsed.ok_or_else(|| Problem::bad_request(format!("`{text}` is no unsigned 64-bit id")))
}
