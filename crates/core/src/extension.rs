//! Routers and balancers of your own, registered by name.
//!
//! A rules file names a router with `router: NAME` and writes the router's own keys beside it; Seata's `spi-…` routers
//! arrive the same way. A balancer is named by `balance: NAME`. Both are asked when instances or rules change, not per
//! pick: a router narrows the candidates to a set, a balancer builds what it later chooses from.
//!
//! A router that keeps instances on even ports, if the rules ask for it:
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//! use std::time::Duration;
//! use metaroute_core::rules::{Filter, Rule, Terminal};
//! use metaroute_core::{Extensions, Instance, Options, Router, RuleSet, Selector, Update};
//!
//! struct EvenPorts;
//!
//! impl Router for EvenPorts {
//!     fn route(&self, candidates: &[&Instance], _caller: &BTreeMap<String, String>, keep: &mut [bool]) {
//!         for (candidate, keep) in candidates.iter().zip(keep) {
//!             *keep = candidate.address.port() % 2 == 0;
//!         }
//!     }
//! }
//!
//! let extensions = Extensions::default().with_router("even-ports", |_name, _config| Ok(Arc::new(EvenPorts)));
//! let mut rule = Rule::new("even", metaroute_core::expr::Expr::parse("")?);
//! rule.filter = Filter::Custom { router: "even-ports".into(), config: BTreeMap::new() };
//! rule.terminal = Some(Terminal::Fail);
//! let mut rules = RuleSet::default();
//! rules.rules.push(rule);
//!
//! let selector = Selector::new(rules, Options { extensions, ..Options::default() })?;
//! let list = ["10.0.0.1:81", "10.0.0.1:82"].map(|address| Instance::new(address.parse().unwrap()));
//! selector.apply(Update::Snapshot(list.into()), Duration::ZERO);
//! assert_eq!(selector.select(&())?.instance().address.port(), 82);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::instance::Instance;

/// Narrows candidates by something an expression cannot say, for example the three nearest by coordinates.
pub trait Router: Send + Sync {
    /// Clears `keep[i]` for every candidate that must not be used. `candidates` is what earlier rules left, in id order,
    /// and `keep` has its length, all true. `caller` is the caller's own metadata.
    fn route(&self, candidates: &[&Instance], caller: &BTreeMap<String, String>, keep: &mut [bool]);
}

/// Chooses one of the remaining instances by a law of its own.
pub trait Balancer: Send + Sync {
    /// Prepares for these members, in id order. `shares[i]` is the part of the traffic that weights, tiers and warm-up
    /// give member `i`; all are positive and sum to 1.
    fn prepare(&self, members: &[&Instance], shares: &[f64]) -> Box<dyn Chooser>;
}

/// A [`Balancer`] prepared for one set of members.
pub trait Chooser: Send + Sync {
    /// The index of the member to use. `draw` is a fresh uniform random number; `key` is the caller's hash key.
    /// An index out of range counts as no choice.
    fn choose(&self, draw: u64, key: Option<&[u8]>) -> usize;

    /// The exact long-run share of each member, for `explain`.
    fn shares(&self) -> Vec<f64>;
}

/// Makes a router from its name and the keys written beside it.
///
/// # Errors
/// A message that names the key it does not like.
pub type RouterFactory = Arc<dyn Fn(&str, &BTreeMap<String, String>) -> Result<Arc<dyn Router>, String> + Send + Sync>;

/// What is registered, by name.
#[derive(Clone, Default)]
pub struct Extensions {
    pub(crate) routers: BTreeMap<String, RouterFactory>,
    pub(crate) balancers: BTreeMap<String, Arc<dyn Balancer>>,
}

impl Extensions {
    /// Registers a router; a second one of the same name replaces the first.
    #[must_use]
    pub fn with_router(
        mut self,
        name: impl Into<String>,
        factory: impl Fn(&str, &BTreeMap<String, String>) -> Result<Arc<dyn Router>, String> + Send + Sync + 'static,
    ) -> Self {
        self.routers.insert(name.into(), Arc::new(factory));
        self
    }

    /// Registers a balancer; a second one of the same name replaces the first.
    #[must_use]
    pub fn with_balancer(mut self, name: impl Into<String>, balancer: Arc<dyn Balancer>) -> Self {
        self.balancers.insert(name.into(), balancer);
        self
    }

    /// Registered balancer names.
    pub fn balancer_names(&self) -> impl Iterator<Item = &str> {
        self.balancers.keys().map(String::as_str)
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extensions")
            .field("routers", &self.routers.keys().collect::<Vec<_>>())
            .field("balancers", &self.balancers.keys().collect::<Vec<_>>())
            .finish()
    }
}
