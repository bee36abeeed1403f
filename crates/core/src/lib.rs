//! The routing core: instances with metadata, rules, snapshots, selection and balancing. No I/O, no clock, no task.
//!
//! `intake → guard → columns → atoms → rules → tiers → table → pick`, all of it before the pick except the last step.
//!
//! ```
//! use std::time::Duration;
//! use metaroute_core::{Instance, Options, RuleSet, Selector, Update};
//! use metaroute_core::expr::Expr;
//!
//! let rule = Expr::parse("version >= 2.3 && env == prod")?;
//! let selector = Selector::new(RuleSet::must(rule), Options::default())?;
//! let instance = |address: &str, version: &str| {
//!     let instance = Instance::new(address.parse().unwrap());
//!     instance.with_meta("version", version).with_meta("env", "prod")
//! };
//! let list = vec![instance("10.0.0.1:80", "2.2"), instance("10.0.0.2:80", "2.10")];
//! selector.apply(Update::Snapshot(list), Duration::ZERO);
//!
//! let mut picker = selector.picker();
//! let pick = picker.pick(&())?;
//! assert_eq!(pick.instance().address.to_string(), "10.0.0.2:80");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod instance;
pub mod rules;

pub mod explain;
pub mod extension;
pub mod intake;
pub mod metrics;
pub mod outcome;
pub mod request;
pub mod resilience;
pub mod selector;
pub mod simulate;

mod alias;
mod bitset;
mod choose;
mod evaluate;
mod fleet;
mod hash;
mod plan;
mod pool;
mod snapshot;
mod tiers;
mod view;
mod weight;

pub use metaroute_expr as expr;

pub use explain::{Basis, Distribution, Explained, Explanation};
pub use extension::{Balancer, Chooser, Extensions, Router};
pub use hash::hash_key;
pub use instance::{Address, Incarnation, Instance, InstanceId, Locality, MetaValue, Metadata};
pub use intake::{Freshness, GuardOptions, Hold, Rejects, Update};
pub use metrics::Metrics;
pub use outcome::{NoPick, NoPickReason, Outcome, Reason, Stage, StageOutcome};
pub use plan::RuleError;
pub use request::{Affinity, Context, Request, RequestSlot};
pub use rules::RuleSet;
pub use selector::{Options, OwnedPick, Pick, Picker, Selector};
