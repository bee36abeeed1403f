//! Queries, counts, exports and explanations.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, StatusCode, header};
use futures_util::{StreamExt as _, stream};
use metaroute_cluster::router::Export;
use metaroute_cluster::scatter::{Rights, Scatter};
use metaroute_cluster::{Failure, Query};
use metaroute_store::{Schema, Sum};

use super::answer::{self, RowWriter};
use super::observe::{Answered, Asked, Done};
use super::problem::Problem;
use super::request::{Kind, QueryBody};
use super::value::{Ints, json_text};
use super::{covered, json_answer};
use crate::service::Service;

/// `POST /v1/{store}/query`, `POST /v1/query_file_metadata`
pub(super) async fn query(asked: Asked) -> Answered {
    let started = Instant::now();
    let store = asked.store()?;
    let Asked { service, id, body, .. } = asked;
    let body = super::body(body).await?;
    let body = QueryBody::parse(&body, &store, Kind::Query)?;
    caught_up(&body)?;
    let query = Query::new(&store, body.query)?;
    admit(&service, &query)?;
    let call = service.call(&id, body.timeout);
    let answer = service.router.query(&query, &call).await;
    slow(&service, &query, &id, started);
    let answer = answer?;
    service.metrics.covered(&answer.meta);
    let writer = RowWriter::new(&store, &query.fields, body.ints);
    let page = answer::page(&writer, &answer.rows, answer.next.as_deref(), &answer.meta);
    Ok((covered(page, &answer.meta), Done::of(&answer.meta)))
}

/// `POST /v1/{store}/count`
pub(super) async fn count(asked: Asked) -> Answered {
    let started = Instant::now();
    let store = asked.store()?;
    let Asked { service, id, body, .. } = asked;
    let body = super::body(body).await?;
    let body = QueryBody::parse(&body, &store, Kind::Count)?;
    caught_up(&body)?;
    let sums = match &body.sum {
        None => Vec::new(),
        Some(column) => vec![summable(&store, column)?],
    };
    let query = Query::new(&store, body.query)?;
    admit(&service, &query)?;
    let call = service.call(&id, body.timeout);
    let count = service.router.count(&query, &sums, &call).await;
    slow(&service, &query, &id, started);
    let count = count?;
    service.metrics.covered(&count.meta);
    let mut out = Vec::new();
    out.extend_from_slice(format!("{{\"count\":{}", count.rows).as_bytes());
    if body.sum.is_some() {
        out.extend_from_slice(b",\"sum\":");
        let nothing = || sums.first().filter(|_| count.rows == 0).and_then(|&at| Sum::zero(store.columns()[at].ty));
        match count.sums.first().copied().flatten().or_else(nothing) {
            None => return Err(no_sum("the sum does not fit 128 bits")),
            // JSON has no infinity.
            Some(Sum::Float(sum)) if !sum.is_finite() => return Err(no_sum("the sum does not fit a double")),
            Some(Sum::Float(sum)) => json_text(&mut out, &sum),
            Some(sum) => out.extend_from_slice(number(&sum.to_string(), body.ints).as_bytes()),
        }
    }
    out.extend_from_slice(b",\"meta\":");
    count.meta.write_json(&mut out);
    out.push(b'}');
    Ok((covered(out, &count.meta), Done::of(&count.meta)))
}

/// An exact sum in JSON: what 64-bit integers and decimals are.
fn number(text: &str, ints: Ints) -> String {
    if ints == Ints::Numbers { text.to_owned() } else { format!("\"{text}\"") }
}

fn no_sum(why: &str) -> Problem {
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "result_too_large", why)
}

fn summable(store: &Schema, name: &str) -> Result<usize, Problem> {
    let at = store.named(name).ok_or_else(|| {
        let problem = Problem::bad_request(format!("store `{}` has no column `{name}`", store.name()));
        let known = store.columns().iter().map(|column| column.name.as_str());
        let problem = problem.code("unknown_field");
        match metaroute_registry::document::suggest(name, known) {
            Some(word) => problem.hint(format!("did you mean `{word}`?")),
            None => problem,
        }
    })?;
    let ty = store.columns()[at].ty;
    let none = || Problem::bad_request(format!("column `{name}` is {ty} and has no sum"));
    Sum::zero(ty).map(|_| at).ok_or_else(none)
}

/// How long an export may take when the request does not say: it ends when its reader leaves, not because it is long.
const EXPORT_WITHIN: std::time::Duration = std::time::Duration::from_secs(6 * 3_600);

/// `POST /v1/{store}/export`
pub(super) async fn export(asked: Asked) -> Answered {
    let store = asked.store()?;
    let Asked { service, id, body, .. } = asked;
    let body = super::body(body).await?;
    let body = QueryBody::parse(&body, &store, Kind::Export)?;
    caught_up(&body)?;
    let query = Query::new(&store, body.query)?;
    admit(&service, &query)?;
    let call = service.call(&id, Some(body.timeout.unwrap_or(EXPORT_WITHIN)));
    let export = service.router.export(&query, &call).await?;
    let writer = RowWriter::new(&store, &query.fields, body.ints);
    let path = Scatter::of(&*service.router.topology()?, &query).path;
    let mut state = Exporting { export, writer, service, done: false };
    // What fails before the first row is a refusal like any other; later the transfer can only break off.
    let first = state.lines().await?;
    let rest = stream::unfold(state, |mut state| async move {
        let lines = state.lines().await.transpose()?;
        Some((lines.map_err(|failure| state.broke_off(failure)), state))
    });
    let lines = stream::iter(first.map(Ok)).chain(rest);
    let mut response = Response::new(Body::from_stream(lines));
    let kind = HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok((response, Done { path: Some(path), streaming: true, ..Done::PLAIN }))
}

struct Exporting {
    export: Export,
    writer: RowWriter,
    service: Arc<Service>,
    done: bool,
}

impl Exporting {
    /// The next lines, the meta line at the end, and nothing after it.
    async fn lines(&mut self) -> Result<Option<Bytes>, Failure> {
        if self.done {
            return Ok(None);
        }
        let mut out = Vec::new();
        match self.export.next().await? {
            Some(rows) => {
                for row in &rows {
                    self.writer.write_line(&mut out, row);
                }
            }
            None => {
                self.done = true;
                let meta = self.export.finish()?;
                self.service.metrics.covered(&meta);
                out.extend_from_slice(b"{\"meta\":");
                meta.write_json(&mut out);
                out.extend_from_slice(b"}\n");
            }
        }
        Ok(Some(out.into()))
    }

    /// A failure amid the rows, which breaks the transfer off: without its last line an export did not finish.
    fn broke_off(&mut self, failure: Failure) -> std::io::Error {
        tracing::warn!(code = failure.code.as_str(), detail = failure.message, "an export broke off");
        self.done = true;
        std::io::Error::other(failure.message)
    }
}

/// `POST /v1/{store}/explain`
pub(super) async fn explain(asked: Asked) -> Answered {
    let store = asked.store()?;
    let body = super::body(asked.body).await?;
    let body = QueryBody::parse(&body, &store, Kind::Explain)?;
    if let Some(column) = &body.sum {
        summable(&store, column)?;
    }
    let query = Query::new(&store, body.query)?;
    let explanation = asked.service.router.explain(&query, Rights::ALL)?;
    let mut out = Vec::new();
    json_text(&mut out, &explanation);
    Ok((json_answer(out), Done { path: Some(explanation.path), ..Done::PLAIN }))
}

/// Rows here come from writes, not from a change stream: there is no position that could be reached.
fn caught_up(body: &QueryBody) -> Result<(), Problem> {
    let Some(gtid) = &body.min_gtid else { return Ok(()) };
    let problem = Problem::new(
        StatusCode::CONFLICT,
        "not_caught_up",
        format!("no copy has applied `{gtid}`: these rows come from no change stream"),
    );
    Err(problem.with("position", serde_json::Value::Null))
}

/// Checks the tenant's quota.
pub(super) fn admit(service: &Service, query: &Query) -> Result<(), Problem> {
    let Some(admission) = &service.admission else { return Ok(()) };
    let topology = service.router.topology()?;
    let cost = Scatter::of(&topology, query).targets.len() as f64;
    // Queries over all tenants are one customer of their own.
    let tenant = query.tenant.unwrap_or(u64::MAX);
    admission.admit(tenant, cost, Instant::now()).map_err(|over| Problem::quota_exceeded(over.per_second))
}

/// Logs a slow query with its plan.
fn slow(service: &Service, query: &Query, id: &str, started: Instant) {
    let took = started.elapsed();
    if took < service.options.slow_log {
        return;
    }
    if let Ok(plan) = service.router.explain(query, Rights::ALL) {
        let plan = serde_json::to_string(&plan).unwrap_or_default();
        tracing::warn!(took_ms = took.as_millis() as u64, request_id = id, plan, "slow query");
    }
}
