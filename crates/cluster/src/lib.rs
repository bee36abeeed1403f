//! Placement, topology, row versions, the shard protocol and the router's core. Opens no listener.
//!
//! A row lives where its tenant and its id say ([`placement`]), in pieces whose owners a [`topology`] names. A [`query`]
//! takes the cheapest [`query::Path`] it can; the router sends slot-scoped questions ([`protocol`]) to replicas picked
//! by the routing core, merges the answers as streams and says what they cover ([`completeness`]).
#![forbid(unsafe_code)]

pub mod hash;
pub mod placement;
pub mod slots;
pub mod topology;

pub mod cursor;
pub mod query;
pub mod scatter;

pub mod client;
pub mod protocol;
pub mod replicas;
pub mod versions;
pub mod wire;

pub mod completeness;
pub mod failure;
pub mod merge;

pub mod router;

#[cfg(test)]
mod testing;

pub use completeness::Meta;
pub use failure::{Code, Failure};
pub use query::{Path, Query, QueryRequest};
pub use router::Router;
pub use slots::SlotSet;
pub use topology::Topology;
