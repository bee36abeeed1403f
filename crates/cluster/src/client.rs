//! Reaching a copy of a shard: by a direct call in the same process, by gRPC in another.

mod grpc;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use metaroute_core::{Instance, InstanceId};

use crate::protocol::{
    BoxFuture, ReadRequest, ReadStream, Shard, ShardError, ShardErrorKind, WriteAnswer, WriteRequest, failed_read,
};

pub use grpc::{GrpcShards, ShardService};

/// Sends requests to the copy that was picked. Dropping a stream or future calls the request off, also at the far end.
pub trait ShardClient: Send + Sync + 'static {
    /// Whether rows are read when the stream is asked for them and not before, so that what nobody asks for costs nothing.
    fn reads_on_demand(&self) -> bool;

    /// Sends a read.
    fn read(&self, replica: &Instance, request: ReadRequest, deadline: Instant) -> ReadStream;

    /// Sends changes.
    fn write(
        &self,
        replica: &Instance,
        request: WriteRequest,
        deadline: Instant,
    ) -> BoxFuture<Result<WriteAnswer, ShardError>>;
}

/// The copies that live in this process, by instance id. Clones share the list, so shards may come and go.
#[derive(Clone, Default)]
pub struct LocalShards {
    shards: Arc<ArcSwap<HashMap<InstanceId, Arc<dyn Shard>>>>,
}

impl std::fmt::Debug for LocalShards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.shards.load().keys()).finish()
    }
}

impl LocalShards {
    /// None yet.
    pub fn new() -> LocalShards {
        LocalShards::default()
    }

    /// Adds a copy, or replaces the one with this id.
    pub fn insert(&self, id: InstanceId, shard: Arc<dyn Shard>) {
        self.shards.rcu(|shards| {
            let mut shards = HashMap::clone(shards);
            shards.insert(id.clone(), Arc::clone(&shard));
            shards
        });
    }

    /// Takes a copy out; requests sent to it from now on fail as unavailable.
    pub fn remove(&self, id: &InstanceId) {
        self.shards.rcu(|shards| {
            let mut shards = HashMap::clone(shards);
            shards.remove(id);
            shards
        });
    }

    fn find(&self, replica: &Instance) -> Result<Arc<dyn Shard>, ShardError> {
        self.shards.load().get(&replica.id).cloned().ok_or_else(|| {
            ShardError::new(ShardErrorKind::Unavailable, format!("no copy `{}` in this process", replica.id))
        })
    }
}

impl ShardClient for LocalShards {
    fn reads_on_demand(&self) -> bool {
        true
    }

    fn read(&self, replica: &Instance, request: ReadRequest, deadline: Instant) -> ReadStream {
        match self.find(replica) {
            Ok(shard) => shard.read(request, deadline),
            Err(error) => failed_read(error),
        }
    }

    fn write(
        &self,
        replica: &Instance,
        request: WriteRequest,
        deadline: Instant,
    ) -> BoxFuture<Result<WriteAnswer, ShardError>> {
        match self.find(replica) {
            Ok(shard) => shard.write(request, deadline),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }
}
