//! What Prometheus reads. Names, units and labels are a contract with dashboards; `docs/guide-operators.md` lists them.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use metaroute_core::{NoPickReason, Reason};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::hub::{Hub, Known};

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

/// The page, with everything as it is now.
pub(crate) fn page(hub: &Arc<Hub>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("metaroute");
    let picks = &hub.metrics;
    registry.register("picks", "Picks by reason", picks.picks.clone());
    registry.register("no_picks", "Requests that got no instance, by reason", picks.no_picks.clone());
    registry.register("fallbacks", "Picks through a fallback or a relaxed rule, by rule", picks.fallbacks.clone());
    registry.register_collector(Box::new(Services(hub.known())));
    metaroute_server::metrics::register(&mut registry, &hub.rows);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// The state of each service at the moment of the scrape.
#[derive(Debug)]
struct Services(Vec<Known>);

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A gauge: name, help, unit and how to read it.
type Gauge = (&'static str, &'static str, Option<Unit>, fn(&Known) -> f64);

impl Collector for Services {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let gauges: [Gauge; 5] = [
            ("instances", "Instances in the current list", None, |known| known.metrics.instances as f64),
            ("instances_usable", "Instances that can be picked", None, |known| known.metrics.usable as f64),
            ("instances_ejected", "Instances ejected after failures", None, |known| known.metrics.ejected as f64),
            ("snapshot_age", "Time since the registry last confirmed the list", Some(Unit::Seconds), |known| {
                known.metrics.age.unwrap_or_default().as_secs_f64()
            }),
            ("held", "Whether a doubted push is being held back", None, |known| {
                f64::from(u8::from(known.metrics.held.is_some()))
            }),
        ];
        for (name, help, unit, read) in gauges {
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            for known in &self.0 {
                let labels = [("service", known.name.as_str())];
                ConstGauge::new(read(known)).encode(family.encode_family(&labels)?)?;
            }
        }
        let counters: [Gauge; 2] = [
            ("rejected_instances", "Instances left out because they cannot be used", None, |known| {
                known.metrics.rejects.count as f64
            }),
            ("held_push", "Time for which doubted pushes were held back", Some(Unit::Seconds), |known| {
                known.metrics.held_total.as_secs_f64()
            }),
        ];
        for (name, help, unit, read) in counters {
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
            for known in &self.0 {
                let labels = [("service", known.name.as_str())];
                ConstCounter::new(read(known)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
