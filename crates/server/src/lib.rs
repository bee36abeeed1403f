//! MetaServer: the shard role, the router role and the HTTP API over tenant-shaped metadata.
//!
//! A [`shard`] answers slot-scoped questions over a store; the router in `metaroute-cluster` decides where to ask; the
//! [`api`] is the only place that knows HTTP and JSON. Which tables there are is [`stores`]. A small deployment is one
//! process over one data folder ([`local`]); a large one has a process per shard and several routers ([`role`],
//! [`config`]).
#![forbid(unsafe_code)]

pub mod stores;

pub mod shard;

pub mod local;
pub mod scan;

mod admission;
pub mod metrics;
pub mod service;

pub mod api;
pub mod console;

pub mod config;
pub mod role;
mod serve;

pub use metaroute_cluster as cluster;
pub use metaroute_cluster::replicas::SERVICE;

pub use serve::{CONNECTIONS_MAX, HEAD_WITHIN, serve_http};

pub use local::{Local, LocalOptions, OpenError, Shape, WantedShape};
pub use service::{Service, ServiceOptions};
