//! The facade over real files, real registries and real servers.

mod envoy;
#[cfg(feature = "tower")]
mod examples;
mod live;
mod log;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "tower")]
mod route;
mod wait;
