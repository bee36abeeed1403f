//! Starts real servers for tests and finds what they need.
//!
//! Compatibility is only worth claiming against the original, so many tests here talk to a real program: a database, a registry,
//! a Java class. This crate has what all of them share and nothing else:
//!
//! - [`Missing`] and [`require!`](crate::require): a test whose peer is not on the machine is *reported as not run*, and
//!   fails where `CI=true`. It is never green by silence.
//! - [`cache`]: the folder outside the checkout where `cargo xtask` puts what it downloads and builds.
//! - [`Port`]: loopback ports that parallel test binaries do not take from each other.
//! - [`Proxy`]: a way to a server that can be cut, held and slowed.
//! - [`Scratch`]: a temporary folder that survives a failing test.
//! - [`Server`]: one real process with its log, a ready condition with a deadline, and every way of dying.
//! - [`java`]: the Java peers.
//! - [`nacos`]: r-nacos, a server that speaks Nacos' protocols.
//! - [`mariadb`]: the database most storage claims are measured against.
//!
//! Everything is synchronous, so that a test of a blocking crate needs no runtime; async tests call it from `spawn_blocking` or
//! before they start.
#![forbid(unsafe_code)]

pub mod bind;
pub mod cache;
pub mod certificate;
pub mod consul;
pub mod dialogue;
pub mod envoy;
pub mod etcd;
pub mod eureka;
pub mod java;
pub mod mariadb;
mod missing;
pub mod nacos;
mod namespace;
mod port;
mod processor;
mod proxy;
pub mod python;
pub mod redis;
mod scratch;
pub mod seata_client;
pub mod seata_server;
pub mod server;
pub mod sofa;
pub mod spring;
mod wait;
pub mod zookeeper;

pub use missing::{Missing, NOT_RUN_FILE_ENV, in_ci, program};
pub use namespace::Namespace;
pub use port::Port;
pub use processor::processor_time;
pub use proxy::Proxy;
pub use scratch::Scratch;
pub use server::{Ready, Server, ServerError};
pub use wait::{backoff_poll, wait_until};
