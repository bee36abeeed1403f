//! MetaServer: the shard role, the router role and the HTTP API over tenant-shaped metadata.
//!
//! A [`shard`] answers slot-scoped questions over a store; the router in `metaroute-cluster` decides where to ask; the
//! [`api`] is the only place that knows HTTP and JSON. Which tables there are is [`stores`].
#![forbid(unsafe_code)]

pub mod stores;

pub mod shard;
