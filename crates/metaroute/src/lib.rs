//! Metadata routing for Rust services: registry, rules and selector in one call.
//!
//! Everything that can be reached is an *instance with metadata*. Routing is: narrow by metadata, then choose one, and
//! say why. This crate is the front door: it follows a registry, keeps rules in force, and hands out picks.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("fleet.yaml");
//! # std::fs::write(&path, "services: [{name: orders, instances: [{address: '10.0.0.7:80', cluster: hz, metadata: {version: 2.10}}]}]")?;
//! # let url = format!("file:{}", path.display());
//! use std::time::Duration;
//!
//! let orders = metaroute::connect(&url)?          // file:fleet.yaml, nacos://…, memory:, …
//!     .service("orders")
//!     .rules("version >= 2.3")                    // or a RuleSet, or a rules file that is watched
//!     .caller("cluster", "hz")
//!     .prefer_cluster()
//!     .start()
//!     .await?;
//! orders.ready(Duration::from_secs(5)).await?;
//!
//! let pick = orders.select(&())?;
//! println!("{} because {}", pick.instance().address, pick.reason());
//! # assert_eq!(pick.instance().address.to_string(), "10.0.0.7:80");
//! // … call it, then say how it went:
//! pick.complete(metaroute::Outcome::Success, Duration::from_millis(12));
//! orders.shutdown(Duration::from_secs(1)).await;
//! # Ok(())
//! # }
//! ```
//!
//! Where to go from here:
//!
//! - [`connect`], [`Connection`] and [`ServiceBuilder`]: describing a service; registering an instance.
//! - [`LiveSelector`]: picking, waiting for readiness, status, shutdown. On the hottest paths use [`LiveSelector::picker`].
//! - [`Route`]: the same as a tower service, for tonic, reqwest and everything else; [`Discover`] for tower's balancer.
//! - [`metrics`]: what Prometheus sees.
//! - [`rules_file`], [`seata`], [`spring`]: configuration as people have it.
//! - [`failback`]: repeating failed background calls.
//!
//! The guide is `docs/guide-rust.md`.
//!
//! # Features
//!
//! `tower` ([`Route`], [`Discover`]) and `metrics` ([`metrics`]) are on by default: both cost a few small pure-Rust
//! crates, and most services want them. Registries over a network are features, too, each by its own name (`nacos`,
//! `consul`, `etcd`, …), on by default; files and memory are always there.
#![forbid(unsafe_code)]
#![cfg_attr(not(all(feature = "tower", feature = "metrics")), allow(rustdoc::broken_intra_doc_links))]

mod connection;
pub mod live;

#[cfg(feature = "tower")]
pub mod discover;
#[cfg(feature = "tower")]
pub mod route;

#[cfg(feature = "metrics")]
pub mod metrics;

pub mod failback;

pub mod properties;
pub mod rules_file;
pub mod seata;
pub mod spring;

pub use connection::{ConnectError, Connection, connect, connect_all};
#[cfg(feature = "tower")]
pub use discover::Discover;
pub use live::{LiveSelector, NotReady, Rules, RulesError, RulesStatus, ServiceBuilder, Status};
#[cfg(feature = "tower")]
pub use route::{Route, RouteError};

pub use metaroute_core::resilience::budget::RetryBudget;
pub use metaroute_core::resilience::ejection::EjectionPolicy;
pub use metaroute_core::{
    Address, Affinity, Context, Extensions, Freshness, GuardOptions, Instance, InstanceId, Metadata, NoPick,
    NoPickReason, Outcome, OwnedPick, Pick, Picker, Reason, Request, RequestSlot, RuleSet, Selector,
};
pub use metaroute_core::{explain, expr, extension, resilience, rules};
pub use metaroute_registry as registry;
pub use metaroute_registry::{Memory, Registration, RegistrationState, Registry, RegistryUrl, WhenReady};

/// Compiles the blocks of the guide.
#[cfg(all(doctest, feature = "tower"))]
#[doc = include_str!("../../../docs/guide-rust.md")]
mod guide {}
