//! How a store is opened.

use std::time::Duration;

use crate::gate::GateLimits;
use crate::pool::PoolSize;

/// When an acknowledged write survives what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Acknowledged writes survive a killed process; they survive power loss once synced, which
    /// happens each second and on [`crate::Store::sync`].
    #[default]
    Journal,
    /// Acknowledged writes survive power loss: one sync per commit, shared by all requests in it.
    Fsync,
}

/// Limits of the write queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSize {
    /// Requests.
    pub requests: usize,
    /// Bytes of all requests.
    pub bytes: usize,
}

/// Options of [`crate::Store::open`]. The defaults suit one store on a small machine.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Make the folder if there is none. Default true.
    pub create: bool,
    /// Default [`Durability::Journal`].
    pub durability: Durability,
    /// Block cache in bytes. Default 64 MiB.
    pub cache_bytes: u64,
    /// Size at which a memtable is flushed. Default 16 MiB; fixed when the store is made.
    pub memtable_bytes: u64,
    /// Threads that flush and compact; at least 3. Default 4, most of them idle most of the time.
    pub worker_threads: usize,
    /// Where writes slow down and stop.
    pub gate: GateLimits,
    /// Threads for single rows. Default 2, and 1,024 waiting.
    pub points: PoolSize,
    /// Threads for listings, scans and aggregates. Default 2, and 128 waiting.
    pub scans: PoolSize,
    /// Writes that may wait. Default 4,096 requests, 64 MiB; one request may always wait.
    pub write_queue: QueueSize,
    /// How long a write may wait at the gate. Default 30 s.
    pub write_deadline: Duration,
    /// In [`Durability::Journal`], how long an acknowledged write may stay unsynced. Default 1 s.
    pub sync_every: Duration,
    /// After a full disk, come back without being told once there is space. Default true.
    pub recover_when_space_returns: bool,
    /// Open although the journal is damaged, giving up every commit behind the damage. The damaged
    /// journal is kept aside. Default false.
    pub accept_damaged_journal: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            create: true,
            durability: Durability::default(),
            cache_bytes: 64 << 20,
            memtable_bytes: 16 << 20,
            worker_threads: 4,
            gate: GateLimits::default(),
            points: PoolSize { threads: 2, queue: 1_024 },
            scans: PoolSize { threads: 2, queue: 128 },
            write_queue: QueueSize { requests: 4_096, bytes: 64 << 20 },
            write_deadline: Duration::from_secs(30),
            sync_every: Duration::from_secs(1),
            recover_when_space_returns: true,
            accept_damaged_journal: false,
        }
    }
}
