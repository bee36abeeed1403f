//! Which stores there are, and how the deployment is doing.

use std::collections::BTreeMap;

use metaroute_cluster::protocol::ShardState;
use metaroute_cluster::replicas;
use serde::Serialize;
use serde_json::json;

use super::json_answer;
use super::observe::{Answered, Asked, Done};
use super::problem::Problem;
use crate::service::Service;
use crate::shard::ShardHost;

/// `GET /v1/stores`
pub(super) async fn stores(asked: Asked) -> Answered {
    let stores: Vec<_> = asked.service.stores().iter().map(|store| store.to_declaration()).collect();
    Ok((json_answer(json!({ "stores": stores }).to_string()), Done::PLAIN))
}

#[derive(Serialize)]
struct Stats {
    topology_epoch: u64,
    /// Why the stored topology is not in force, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    ready: bool,
    groups: usize,
    shards: Vec<ShardStats>,
    in_flight: i64,
    /// Rows by store, over all shards of this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<BTreeMap<String, u64>>,
}

#[derive(Serialize)]
struct ShardStats {
    group: String,
    shard: String,
    slots: u32,
    /// Of the copy in this process, or of the most advanced one known.
    state: Option<ShardState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loaded_permille: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    replicas: Vec<ReplicaStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<StoreStats>,
}

#[derive(Serialize)]
struct ReplicaStats {
    id: String,
    address: String,
    state: Option<ShardState>,
    #[serde(skip_serializing_if = "str::is_empty")]
    zone: String,
}

#[derive(Serialize)]
struct StoreStats {
    rows: BTreeMap<String, u64>,
    in_flight: usize,
    l0_runs: usize,
    sealed_memtables: usize,
    pending_flushes: usize,
    running_compactions: usize,
    table_bytes: u64,
    journal_bytes: u64,
    write_queue: usize,
    gate: String,
}

/// `GET /v1/stats`
pub(super) async fn stats(asked: Asked) -> Answered {
    // The store's numbers may wait for a lock held across an fsync.
    let taken = tokio::task::spawn_blocking(move || taken(&asked.service)).await;
    let stats = taken.map_err(|_| Problem::internal("the numbers cannot be taken"))??;
    let body = serde_json::to_string(&stats).expect("plain data serialises");
    Ok((json_answer(body), Done::PLAIN))
}

fn taken(service: &Service) -> Result<Stats, Problem> {
    let topology = service.router.topology()?;
    let instances = service.router.replicas().selector().instances();
    let mut shards = Vec::new();
    for group in topology.groups() {
        for (index, shard) in group.shards.iter().enumerate() {
            let copies: Vec<_> = instances
                .iter()
                .filter(|instance| replicas::shard_of(instance).as_ref() == Some(&shard.id))
                .map(|instance| ReplicaStats {
                    id: instance.id.as_str().to_owned(),
                    address: instance.address.to_string(),
                    state: replicas::state_of(instance),
                    zone: instance.locality.zone.to_string(),
                })
                .collect();
            let host = service.local.as_ref().and_then(|local| local.host(&shard.id));
            let condition = host.as_ref().map(ShardHost::condition);
            let known = copies.iter().filter_map(|copy| copy.state).max_by_key(|state| state.is_ready());
            shards.push(ShardStats {
                group: group.name.to_string(),
                shard: shard.id.shard.to_string(),
                slots: group.owned_by(index as u32).len(),
                state: condition.as_ref().map(|condition| condition.state).or(known),
                loaded_permille: condition.as_ref().and_then(|condition| condition.loaded_permille),
                reason: condition.and_then(|condition| condition.reason),
                replicas: copies,
                store: host.as_ref().and_then(store_stats),
            });
        }
    }
    let rows = service.local.as_ref().map(|_| {
        let mut rows: BTreeMap<String, u64> = BTreeMap::new();
        for shard in shards.iter().filter_map(|shard| shard.store.as_ref()) {
            for (store, count) in &shard.rows {
                *rows.entry(store.clone()).or_default() += count;
            }
        }
        rows
    });
    Ok(Stats {
        topology_epoch: topology.epoch(),
        trouble: service.watcher.trouble(),
        ready: service.unready().is_none(),
        groups: topology.groups().len(),
        shards,
        in_flight: service.metrics.in_flight(),
        rows,
    })
}

fn store_stats(host: &ShardHost) -> Option<StoreStats> {
    let store = host.store()?;
    let gauges = store.gauges();
    let view = store.view().ok()?;
    let rows = view
        .tables()
        .filter_map(|table| Some((table.name().to_owned(), view.totals(table, None).ok()?.rows)))
        .collect();
    Some(StoreStats {
        rows,
        in_flight: host.in_flight(),
        l0_runs: gauges.l0_runs,
        sealed_memtables: gauges.sealed_memtables,
        pending_flushes: gauges.pending_flushes,
        running_compactions: gauges.running_compactions,
        table_bytes: gauges.table_bytes,
        journal_bytes: gauges.journal_bytes,
        write_queue: gauges.write_queue,
        gate: format!("{:?}", gauges.gate),
    })
}
