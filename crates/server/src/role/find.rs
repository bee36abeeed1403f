//! Finding the copies of shards for a router.

use std::collections::HashSet;

use metaroute_cluster::client::GrpcShards;
use metaroute_cluster::replicas::{self, Replicas};
use metaroute_cluster::topology::Watcher;
use metaroute_core::{Instance, Update};
use metaroute_registry::{State, Subscription};

/// Follows the service `metaserver` of a registry. An empty or unreachable registry changes nothing: the last good list
/// stays, and the shards themselves say what they no longer own.
pub(super) async fn in_registry(mut subscription: Subscription, copies: Replicas, client: GrpcShards) {
    loop {
        let view = subscription.current();
        if matches!(view.state, State::Fresh | State::Stale)
            && let Some(snapshot) = &view.snapshot
            && !snapshot.instances.is_empty()
        {
            apply(snapshot.instances.to_vec(), &copies, &client);
        }
        if subscription.changed().await.is_err() {
            return;
        }
    }
}

/// Follows the addresses in the topology.
pub(super) async fn in_topology(mut watcher: Watcher, copies: Replicas, client: GrpcShards) {
    loop {
        if let Some(topology) = watcher.topology() {
            apply(replicas::static_instances(&topology), &copies, &client);
        }
        if !watcher.changed().await {
            return;
        }
    }
}

fn apply(instances: Vec<Instance>, copies: &Replicas, client: &GrpcShards) {
    let addresses: HashSet<String> = instances.iter().map(|instance| instance.address.to_string()).collect();
    tracing::info!(copies = instances.len(), "copies of shards are known");
    copies.apply(Update::Snapshot(instances));
    client.retain(|address| addresses.contains(address));
}
