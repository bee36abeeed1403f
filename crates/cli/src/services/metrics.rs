//! What Prometheus reads about services. Names, units and labels are a contract with dashboards; `docs/metrics.md` lists
//! them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use metaroute::metrics::RoutingMetrics;
use metaroute_core::{NoPickReason, Reason};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::hub::Hub;

/// Picks, requests without one, and fallbacks.
const COUNTED_HERE: [&str; 3] = ["metaroute_picks", "metaroute_no_picks", "metaroute_fallbacks"];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PickLabels {
    service: String,
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RuleLabels {
    service: String,
    rule: String,
}

/// Requests bring their own rules, so they could bring any number of names. Further ones are counted as `other`.
const RULE_NAMES_MAX: usize = 100;

/// Counters of what was picked over HTTP.
#[derive(Clone, Default)]
pub(crate) struct PickMetrics {
    picks: Family<PickLabels, Counter>,
    no_picks: Family<PickLabels, Counter>,
    fallbacks: Family<RuleLabels, Counter>,
    rule_names: Arc<Mutex<HashSet<String>>>,
}

impl PickMetrics {
    /// Counts a pick, and the rule that fell back or passed its input on.
    pub(crate) fn picked(&self, service: &str, reason: Reason, rule: Option<String>) {
        // `fallback:3` and `fallback:4` are one kind.
        let text = reason.to_string();
        let kind = text.split(':').next().unwrap_or(&text).to_owned();
        self.picks.get_or_create(&PickLabels { service: service.into(), reason: kind }).inc();
        if let Some(rule) = rule {
            let rule = self.bounded(rule);
            self.fallbacks.get_or_create(&RuleLabels { service: service.into(), rule }).inc();
        }
    }

    pub(crate) fn none_picked(&self, service: &str, reason: NoPickReason) {
        self.no_picks.get_or_create(&PickLabels { service: service.into(), reason: reason.to_string() }).inc();
    }

    fn bounded(&self, rule: String) -> String {
        let mut names = self.rule_names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.contains(&rule) {
            return rule;
        }
        if names.len() < RULE_NAMES_MAX {
            names.insert(rule.clone());
            return rule;
        }
        "other".into()
    }
}

/// Adds the services as they are now, and what was picked over HTTP: there requests bring their rules along, so the live
/// selectors themselves pick nothing.
pub(crate) fn register(registry: &mut Registry, hub: &Hub) {
    let services = RoutingMetrics::register_some(registry, |metric| !COUNTED_HERE.contains(&metric.name));
    hub.live().iter().for_each(|live| services.watch(live));
    let picks = &hub.metrics;
    let [name, none, fallbacks] = COUNTED_HERE;
    registry.register(name, "Picks by reason", picks.picks.clone());
    registry.register(none, "Requests that got no instance, by reason", picks.no_picks.clone());
    registry.register(fallbacks, "Picks through a fallback or a relaxed rule, by rule", picks.fallbacks.clone());
}
