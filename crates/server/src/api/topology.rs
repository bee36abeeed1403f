//! The topology over HTTP: show it, look at a change, make it.
//!
//! A change is refused while it would move rows: rows that are looked for elsewhere are as good as lost, and nothing
//! copies them yet. Whether a change moves a row is not guessed from the document: every row's place before and after is
//! compared.

use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use metaroute_cluster::router::Call;
use metaroute_cluster::topology::{Apply, Document, Plan, Prepared, StoreError, Topology};
use metaroute_cluster::{Query, QueryRequest};
use metaroute_registry::document::Format;
use serde_json::json;

use super::json;
use super::json_answer;
use super::observe::{Answered, Asked, Done};
use super::problem::Problem;
use super::rows::pairs;
use crate::service::Service;
use crate::shard::with_causes;

/// `GET /v1/topology`
pub(super) async fn show(asked: Asked) -> Answered {
    let service = asked.service;
    let pairs = pairs(&asked.uri)?;
    let mut epoch = None;
    for (key, text) in &pairs {
        if key != "epoch" {
            let problem = Problem::bad_request(format!("unknown parameter `{key}`")).expected(["epoch"]);
            return Err(problem.code("unknown_field"));
        }
        let bad = || Problem::bad_request(format!("`epoch` must be a number, not `{text}`"));
        epoch = Some(text.parse::<u64>().map_err(|_| bad())?);
    }
    let document = match epoch {
        Some(epoch) => service.topology.at_epoch(epoch).await.map_err(problem)?,
        None => service.router.topology()?.document().clone(),
    };
    let mut response = json_answer(document.to_json());
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", document.epoch)) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    Ok((response, Done::PLAIN))
}

/// `GET /v1/topology/history`
pub(super) async fn history(asked: Asked) -> Answered {
    let history = asked.service.topology.history().await.map_err(problem)?;
    Ok((json_answer(json!({ "history": history }).to_string()), Done::PLAIN))
}

/// `PUT /v1/topology`
pub(super) async fn replace(asked: Asked) -> Answered {
    let Asked { service, id, uri, headers, body, .. } = asked;
    let pairs = pairs(&uri)?;
    let (mut dry_run, mut force) = (false, false);
    for (key, text) in &pairs {
        let flag = match text.as_str() {
            "true" => true,
            "false" => false,
            _ => return Err(Problem::bad_request(format!("`{key}` must be true or false, not `{text}`"))),
        };
        match key.as_str() {
            "dry_run" => dry_run = flag,
            "force" => force = flag,
            other => {
                let problem = Problem::bad_request(format!("unknown parameter `{other}`"));
                return Err(problem.expected(["dry_run", "force"]).code("unknown_field"));
            }
        }
    }
    let expected = if_match(headers.get(header::IF_MATCH))?;
    if expected.is_none() && !dry_run {
        return Err(Problem::bad_request("changing the topology needs the header `If-Match` with its current epoch")
            .hint("the epoch is in GET /v1/topology; ?dry_run=true works without it"));
    }
    let body = super::body(body).await?;
    let document = Document::parse("", json::text(&body)?, Format::Json).map_err(|error| {
        let mut refused = Problem::bad_request(error.message.to_string());
        if let Some(at) = error.at {
            refused = refused.at(at.line, at.column);
        }
        if let Some(hint) = &error.hint {
            refused = refused.hint(hint.to_string());
        }
        refused.expected(error.expected.to_vec())
    })?;
    let prepared = Prepared::new(&*service.topology, document, Apply { expected, force }).await.map_err(problem)?;
    if let Some(before) = &prepared.before {
        nothing_moves(&service, before, &prepared.after, &prepared.plan, &id).await?;
    }
    let answer = |topology: &Topology, plan: &Plan| {
        let text: Vec<String> = plan.changes.iter().map(ToString::to_string).collect();
        json!({
            "epoch": topology.epoch(),
            "dry_run": dry_run,
            "changes": plan.changes,
            "plan": text,
            "slots_moved": plan.slots_moved(),
        })
        .to_string()
    };
    if dry_run {
        return Ok((json_answer(answer(&prepared.after, &prepared.plan)), Done::PLAIN));
    }
    let accepted = prepared.commit(&*service.topology).await.map_err(problem)?;
    // Queries of this client that follow see what it has just changed.
    let seen = service.watcher.at_least(accepted.topology.epoch());
    if tokio::time::timeout(std::time::Duration::from_secs(2), seen).await.is_err() {
        tracing::warn!(epoch = accepted.topology.epoch(), "a stored topology has not come into force yet");
    }
    Ok((json_answer(answer(&accepted.topology, &accepted.plan)), Done::PLAIN))
}

/// Reads `7`, `"7"` or `W/"7"`.
fn if_match(value: Option<&HeaderValue>) -> Result<Option<u64>, Problem> {
    let Some(value) = value else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    let plain = text.strip_prefix("W/").unwrap_or(text).trim_matches('"');
    let bad = || Problem::bad_request(format!("`If-Match` must be the topology's epoch, not `{text}`"));
    plain.parse().map(Some).map_err(|_| bad())
}

fn problem(error: StoreError) -> Problem {
    let text = with_causes(&error);
    match error {
        StoreError::EpochMismatch { current, .. } => {
            let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "epoch_mismatch", text);
            problem.hint("somebody else was faster; read the topology again").with("current", json!(current))
        }
        StoreError::Shrinks { .. } => {
            Problem::bad_request(text).hint("if that is meant, add ?force=true and the current epoch as `If-Match`")
        }
        StoreError::Invalid(defect) => Problem::bad_request(text).with("cause", json!(defect.code)),
        StoreError::NotFound(_) => Problem::not_found(text),
        _ => Problem::internal(text),
    }
}

/// Compares every row's place before and after.
async fn nothing_moves(
    service: &Service,
    before: &Topology,
    after: &Topology,
    plan: &Plan,
    id: &Arc<str>,
) -> Result<(), Problem> {
    if plan.moving().next().is_none() {
        return Ok(());
    }
    for store in service.stores() {
        let fields = [store.id(), store.tenant()].map(|at| store.columns()[at].name.clone());
        let request = QueryRequest { fields: Some(fields.to_vec()), allow_global: true, ..QueryRequest::default() };
        let query = Query::new(store, request)?;
        let call = Call { request_id: Arc::clone(id), ..Call::within(std::time::Duration::from_secs(600)) };
        let mut export = match service.router.export(&query, &call).await {
            Ok(export) => export,
            // There is nothing that could be looked at, so nothing that could be lost by naming it.
            Err(failure) if failure.code == metaroute_cluster::Code::NoTopology => return Ok(()),
            Err(failure) => return Err(failure.into()),
        };
        while let Some(rows) = export.next().await? {
            for row in rows {
                let old = place(before, store.name(), row.tenant, row.id);
                let new = place(after, store.name(), row.tenant, row.id);
                if old != new {
                    let tenant = &store.columns()[store.tenant()].name;
                    let detail = format!(
                        "row {} of {tenant} {} in `{}` would have to move from {} to {}",
                        row.id,
                        row.tenant,
                        store.name(),
                        shown(&old),
                        shown(&new),
                    );
                    let text: Vec<String> = plan.moving().map(ToString::to_string).collect();
                    return Err(Problem::new(StatusCode::CONFLICT, "slots_not_empty", detail)
                        .hint("rows cannot be moved yet: change only what holds no rows")
                        .with("moving", json!(text)));
                }
            }
        }
    }
    Ok(())
}

/// Group, shard and slot of a row.
type Place = Option<(String, String, u32)>;

fn place(topology: &Topology, store: &str, tenant: u64, id: u64) -> Place {
    let place = topology.tenant(tenant)?;
    let group = &topology.groups()[place.group as usize];
    let slot = topology.slot(place.group, place.span, store, id);
    let owner = group.owner(slot)?;
    Some((group.name.to_string(), group.shards[owner.index as usize].id.shard.to_string(), slot))
}

fn shown(place: &Place) -> String {
    place.as_ref().map_or("nowhere".to_owned(), |(group, shard, slot)| format!("{group}/{shard} slot {slot}"))
}
