//! Registries: where instances come from.
//!
//! A registry module never filters, balances or guards. It delivers *snapshots with a cursor* ([`driver`]); one layer
//! above all of them ([`registry`]) keeps registrations alive, backs off, keeps the last good list and says how far it
//! can be trusted. What doubts a list is the one guard in the core's intake.
//!
//! Read here first: [`Registry`] and [`RegistryUrl`]. Back ends: [`mod@file`] and [`memory`].
#![forbid(unsafe_code)]

mod backend;
#[allow(dead_code, reason = "a build without network back ends carries nothing")]
mod carrier;
#[cfg(feature = "consul")]
mod consul;
#[cfg(feature = "dns")]
mod dns;
pub mod document;
pub mod driver;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "eureka")]
mod eureka;
pub mod file;
mod fixed;
pub mod fleet;
#[cfg(any(
    feature = "etcd",
    feature = "nacos",
    feature = "redis",
    feature = "seata",
    feature = "sofa",
    feature = "zookeeper"
))]
#[allow(dead_code, reason = "no driver needs all of it")]
mod holdings;
#[cfg(feature = "http")]
#[allow(dead_code, reason = "not every back end needs all of it")]
mod http;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
mod joint;
#[cfg(feature = "kubernetes-any")]
mod kubernetes;
pub mod memory;
#[cfg(feature = "nacos")]
mod nacos;
#[cfg(feature = "redis")]
mod redis;
pub mod registry;
#[cfg(feature = "seata")]
mod seata;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
mod seata_layout;
#[doc(hidden)]
pub mod secure;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod segment;
pub mod several;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
#[allow(dead_code, reason = "not every back end needs all of it")]
mod socket;
#[cfg(feature = "sofa")]
pub mod sofa;
#[cfg(feature = "tls")]
#[allow(dead_code, reason = "not every back end speaks TLS")]
mod tls;
pub mod url;
#[cfg(feature = "http")]
#[allow(dead_code, reason = "not every back end needs all of it")]
mod web;
#[cfg(feature = "zookeeper")]
mod zookeeper;

#[cfg(feature = "consul")]
#[doc(hidden)]
pub use consul::read_entries as read_consul_entries;
pub use document::ConfigError;
pub use driver::{Capabilities, Cursor, Driver, DriverError, ErrorKind, Snapshot};
#[cfg(feature = "etcd")]
#[doc(hidden)]
pub use etcd::read_key as read_etcd_key;
#[cfg(feature = "eureka")]
#[doc(hidden)]
pub use eureka::read_applications as read_eureka_applications;
pub use file::{FileDriver, FileOptions};
pub use fleet::Fleet;
#[cfg(feature = "kubernetes-any")]
#[doc(hidden)]
pub use kubernetes::read_slices as read_kubernetes_slices;
pub use memory::Memory;
#[cfg(feature = "nacos")]
#[doc(hidden)]
pub use nacos::read_payload as read_nacos_payload;
pub use registry::{
    ConnectError, Drained, Options, Registration, RegistrationState, Registry, State, Subscription, View, WhenReady,
};
pub use url::{RegistryUrl, Scheme};
#[cfg(feature = "zookeeper")]
#[doc(hidden)]
pub use zookeeper::read_node as read_zookeeper_node;
