//! Seata's NamingServer and Raft metadata.

mod naming;
mod naming_server;
mod raft;
#[cfg(all(feature = "consul", feature = "eureka", feature = "nacos"))]
mod server;
