//! What a query would do, without doing it. Works for refused queries too: that is when it is needed most.

use serde::Serialize;

use super::Router;
use crate::failure::Failure;
use crate::protocol::WorkBudget;
use crate::query::{Path, Query};
use crate::replicas::{Replicas, state_of};
use crate::scatter::{Estimate, Rights, Scatter, permit};
use crate::topology::{PlacedBy, Topology};

/// A query's way through the cluster.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The store.
    pub store: String,
    /// The path.
    pub path: Path,
    /// Why this path, in a sentence.
    pub why: String,
    /// Epoch of the topology.
    pub topology_epoch: u64,
    /// Where the tenant's rows are, for queries that name one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantExplained>,
    /// Groups asked.
    pub groups: u32,
    /// Shards asked.
    pub shards: u32,
    /// Slots the answer has to cover.
    pub slots: u32,
    /// The shards, one by one, with the copies considered.
    pub targets: Vec<TargetExplained>,
    /// Slots nobody owns: the answer could not be complete.
    pub missing_slots: u32,
    /// The row filter in canonical form.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Bounds on the time column: from, inclusive, and to, exclusive.
    pub time_bounds: [Option<String>; 2],
    /// The comparisons of `where` that bounds were taken from.
    pub bounds_found: Vec<String>,
    /// The order.
    pub order: String,
    /// Rows on a page.
    pub limit: u32,
    /// Columns returned.
    pub fields: Vec<String>,
    /// Those of them that cost a read per row because the listing does not have them.
    pub fields_beyond_listing: Vec<String>,
    /// The price.
    pub estimate: Estimate,
    /// `allowed` or `denied`.
    pub verdict: &'static str,
    /// Why it would be refused, and what to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied: Option<Denied>,
    /// How to make it cheaper.
    pub cheaper: Vec<String>,
}

/// Why a query would be refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Denied {
    /// The code the query would get.
    pub code: &'static str,
    /// What is wrong.
    pub message: String,
    /// How to repair it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Where a tenant's rows are.
#[derive(Clone, Debug, Serialize)]
pub struct TenantExplained {
    /// Its bucket.
    pub bucket: u32,
    /// Its group.
    pub group: String,
    /// What placed it there.
    pub by: PlacedBy,
    /// Since which epoch.
    pub epoch: u64,
    /// Over how many of the group's residue classes its rows are spread.
    pub span: u32,
}

/// One shard.
#[derive(Clone, Debug, Serialize)]
pub struct TargetExplained {
    /// Its group.
    pub group: String,
    /// The shard.
    pub shard: String,
    /// The slots it is asked for.
    pub slots: String,
    /// How many.
    pub slot_count: u32,
    /// The epoch of their ownership.
    pub epoch: u64,
    /// Ids it is asked for, where the query names ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<usize>,
    /// Its copies.
    pub replicas: Vec<ReplicaExplained>,
}

/// One copy of a shard.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicaExplained {
    /// Its instance id.
    pub id: String,
    /// Where it listens.
    pub address: String,
    /// Its zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Its state, as the registry shows it.
    pub state: String,
    /// Whether it can be picked.
    pub kept: bool,
    /// What dropped it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_by: Option<String>,
    /// Exact probability of being picked while all have the same load.
    pub probability: f64,
}

impl Router {
    /// Explains a query.
    ///
    /// # Errors
    /// `no_topology` only.
    pub fn explain(&self, query: &Query, rights: Rights) -> Result<Explanation, Failure> {
        let inner = &self.inner;
        let topology = inner.topology()?;
        let mut explained = Explanation::of(&topology, query, rights, inner.options.budget, Some(&inner.replicas));
        if let (None, Err(failure)) = (&explained.denied, inner.after(query)) {
            explained.verdict = "denied";
            explained.denied = Some(Denied {
                code: failure.code.as_str(),
                message: failure.message,
                hint: Some("leave `cursor` out: the walk begins anew".to_owned()),
            });
        }
        Ok(explained)
    }
}

impl Explanation {
    /// Explains a query over a topology, as a file if need be; without `replicas` no copies are listed.
    pub fn of(
        topology: &Topology,
        query: &Query,
        rights: Rights,
        budget: WorkBudget,
        replicas: Option<&Replicas>,
    ) -> Explanation {
        let scatter = Scatter::of(topology, query);
        let estimate = scatter.estimate(query, budget);
        let denied = permit(query, &scatter, &estimate, rights).err().map(|failure| Denied {
            code: failure.code.as_str(),
            message: failure.message,
            hint: failure.hint,
        });
        let group_name = |group: u32| topology.groups()[group as usize].name.to_string();
        let mut groups: Vec<u32> = scatter.targets.iter().map(|target| target.group).collect();
        groups.dedup();
        let time_text = |bound: Option<metaroute_store::TimeKey>| {
            let column = &query.store.columns()[query.store.time()?];
            Some(bound?.to_value(column.ty).to_text(column.ty)?.into_owned())
        };
        Explanation {
            store: query.store.name().to_owned(),
            path: scatter.path,
            why: why(query, scatter.path),
            topology_epoch: topology.epoch(),
            tenant: scatter.place.map(|place| TenantExplained {
                bucket: place.bucket,
                group: group_name(place.group),
                by: place.by,
                epoch: place.epoch,
                span: place.span.width,
            }),
            groups: groups.len() as u32,
            shards: scatter.targets.len() as u32,
            slots: scatter.wanted,
            targets: scatter
                .targets
                .iter()
                .map(|target| TargetExplained {
                    group: target.shard.group.to_string(),
                    shard: target.shard.shard.to_string(),
                    slots: target.slots.to_string(),
                    slot_count: target.slots.len(),
                    epoch: target.epoch,
                    ids: target.ids.as_ref().map(|ids| ids.len()),
                    replicas: replicas.map(|replicas| copies(replicas, &target.shard)).unwrap_or_default(),
                })
                .collect(),
            missing_slots: scatter.gaps.iter().map(|(_, slots)| slots.len()).sum(),
            filter: query.filter.as_ref().map(ToString::to_string),
            time_bounds: [time_text(query.from), time_text(query.to)],
            bounds_found: query.found.comparisons.clone(),
            order: query.order_text(),
            limit: query.limit,
            fields: query.field_names(),
            fields_beyond_listing: query.unlisted_fields(),
            verdict: if denied.is_some() { "denied" } else { "allowed" },
            denied,
            cheaper: cheaper(query, &scatter),
            estimate,
        }
    }
}

fn why(query: &Query, path: Path) -> String {
    let schema = &query.store;
    let tenant = &schema.columns()[schema.tenant()].name;
    let id = &schema.columns()[schema.id()].name;
    match path {
        Path::A => format!("{tenant} and one {id} lead to one shard"),
        Path::AB => format!("{tenant} leads to one group, each {id} to one of its shards"),
        Path::B => format!("{tenant} leads to one group; without {id} all of its shards are asked"),
        Path::BP => format!("{tenant} leads to one group and is spread over a part of its shards"),
        Path::CI => format!("without {tenant} every group is asked, in each the shards that own the {id}"),
        Path::C => format!("without {tenant} and {id} every shard of every group is asked"),
    }
}

fn cheaper(query: &Query, scatter: &Scatter) -> Vec<String> {
    let schema = &query.store;
    let name = |at: usize| &schema.columns()[at].name;
    let mut advice = Vec::new();
    match scatter.path {
        Path::CI => {
            advice.push(format!("name the `{}`: one shard per id instead of one per group", name(schema.tenant())))
        }
        Path::C => advice.push(format!("name the `{}`: one group instead of all", name(schema.tenant()))),
        _ => {}
    }
    if matches!(scatter.path, Path::B | Path::BP)
        && query.filter.is_some()
        && query.from.is_none()
        && query.to.is_none()
        && let Some(time) = schema.time()
    {
        advice.push(format!("bound `{}`: the listing is ordered by it, so rows outside are not looked at", name(time)));
    }
    let unlisted = query.unlisted_fields();
    if !unlisted.is_empty() && matches!(scatter.path, Path::B | Path::BP) {
        advice.push(format!("leave out {}: each row of the page costs one more read for it", unlisted.join(", ")));
    }
    advice
}

fn copies(replicas: &Replicas, shard: &crate::protocol::ShardId) -> Vec<ReplicaExplained> {
    let explanation = replicas.explain(shard);
    explanation
        .instances
        .into_iter()
        .filter(|explained| crate::replicas::shard_of(&explained.instance).as_ref() == Some(shard))
        .map(|explained| {
            let zone = &explained.instance.locality.zone;
            ReplicaExplained {
                id: explained.instance.id.to_string(),
                address: explained.instance.address.to_string(),
                zone: (!zone.is_empty()).then(|| zone.to_string()),
                state: state_of(&explained.instance).map_or("unknown", |state| state.name()).to_owned(),
                kept: explained.kept,
                dropped_by: (!explained.kept).then(|| explained.clause.unwrap_or(explained.stage)),
                probability: explained.probability,
            }
        })
        .collect()
}
