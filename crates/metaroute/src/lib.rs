//! Metadata routing for Rust services: registry, rules and selector in one call.
#![forbid(unsafe_code)]

mod connection;
pub mod live;

pub mod failback;
pub mod properties;
pub mod rules_file;
pub mod seata;
pub mod spring;

pub use connection::{ConnectError, Connection, connect};
pub use live::{LiveSelector, NotReady, Rules, RulesError, RulesStatus, ServiceBuilder, Status};

pub use metaroute_core::{
    Address, Affinity, Context, Freshness, GuardOptions, Instance, InstanceId, NoPick, NoPickReason, Outcome,
    OwnedPick, Pick, Picker, Reason, Request, RequestSlot, RuleSet, Selector,
};
pub use metaroute_registry::{Memory, Registration, Registry, RegistryUrl};
