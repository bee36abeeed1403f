//! Every back end against its real server.
#![allow(clippy::print_stdout, reason = "times and verdicts of cases, for people")]

#[allow(dead_code, reason = "not every back end needs all of it")]
mod client;
#[allow(dead_code, reason = "a build without network back ends runs none of it")]
mod conformance;
#[cfg(feature = "consul")]
mod consul;
#[cfg(feature = "dns")]
mod dns;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "eureka")]
mod eureka;
#[cfg(feature = "kubernetes-any")]
mod kubernetes;
#[cfg(feature = "nacos")]
mod nacos;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
mod ownership;
mod page;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "seata")]
mod seata;
#[cfg(all(feature = "etcd", feature = "redis", feature = "zookeeper"))]
mod seata_layouts;
#[cfg(feature = "sofa")]
mod sofa;
#[cfg(any(feature = "consul", feature = "eureka"))]
mod spring;
#[cfg(feature = "zookeeper")]
mod zookeeper;
