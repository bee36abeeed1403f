//! Seata's NamingServer and Raft metadata.

mod naming;
mod naming_server;
mod raft;
