//! The metrics contract: what dashboards and alerts may rely on, as one collector for `prometheus-client`.
//!
//! Everything is read when the page is asked for, so a pick pays nothing for it. The names, units, labels and help texts
//! are [`METRICS`]; `docs/metrics.md` shows them, and a test keeps it current. Renaming one is a breaking change.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metaroute_core::{Freshness, Metrics};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::live::{LiveSelector, RulesStatus, WeakLiveSelector};

/// Whether a metric only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the process lives; its name ends in `_total` on the page.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// One metric of the contract.
#[derive(Clone, Copy)]
pub struct Metric {
    /// Name without unit and `_total`.
    pub name: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// Whether it is in seconds; the name on the page says so then.
    pub seconds: bool,
    /// The label besides `service`, if there is one.
    pub label: Option<&'static str>,
    /// What it says.
    pub help: &'static str,
    read: Read,
}

impl Metric {
    /// The name on the page.
    pub fn full_name(&self) -> String {
        let unit = if self.seconds { "_seconds" } else { "" };
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{unit}{total}", self.name)
    }
}

impl fmt::Debug for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full_name())
    }
}

/// Puts the numbers of a metric, each with the value of its label.
type Read = fn(&Sample, &mut dyn FnMut(Option<&str>, f64));

/// One service at the moment of the scrape.
struct Sample {
    service: String,
    core: Metrics,
    rules: RulesStatus,
    /// Requests of routes, how often one moved on, how often the budget forbade it.
    routed: [u64; 3],
}

const fn counter(name: &'static str, label: Option<&'static str>, help: &'static str, read: Read) -> Metric {
    Metric { name, kind: Kind::Counter, seconds: false, label, help, read }
}

const fn gauge(name: &'static str, help: &'static str, read: Read) -> Metric {
    Metric { name, kind: Kind::Gauge, seconds: false, label: None, help, read }
}

/// Every metric, in the order of the page. All have the label `service`.
pub const METRICS: &[Metric] = &[
    counter("metaroute_picks", Some("reason"), "Picks by reason", |sample, put| {
        sample.core.picks.iter().for_each(|(reason, n)| put(Some(reason), *n as f64));
    }),
    counter("metaroute_no_picks", Some("reason"), "Requests that got no instance, by reason", |sample, put| {
        sample.core.no_picks.iter().for_each(|(reason, n)| put(Some(reason), *n as f64));
    }),
    counter(
        "metaroute_fallbacks",
        Some("rule"),
        "Picks through a fallback or a relaxed rule, by rule; starts anew when the rules change",
        |sample, put| sample.core.fallbacks.iter().for_each(|(rule, n)| put(Some(rule), *n as f64)),
    ),
    counter("metaroute_rejected_instances", None, "Instances left out because they cannot be used", |sample, put| {
        put(None, sample.core.rejects.count as f64)
    }),
    gauge("metaroute_instances", "Instances in the current list", |sample, put| {
        put(None, sample.core.instances as f64);
    }),
    gauge("metaroute_instances_usable", "Instances that can be picked", |sample, put| {
        put(None, sample.core.usable as f64);
    }),
    gauge("metaroute_instances_ejected", "Instances ejected after failures", |sample, put| {
        put(None, sample.core.ejected as f64);
    }),
    gauge("metaroute_instances_warming", "Instances that get a smaller share because they are new", |sample, put| {
        put(None, sample.core.warming as f64);
    }),
    Metric {
        seconds: true,
        ..gauge(
            "metaroute_snapshot_age",
            "Time since the registry last confirmed the list; 0 while it is there to correct it, absent before the first",
            |sample, put| {
                if let Some(age) = sample.core.age {
                    put(None, age.as_secs_f64());
                }
            },
        )
    },
    gauge("metaroute_snapshot_revision", "Publications of the list since the start", |sample, put| {
        put(None, sample.core.revision as f64);
    }),
    Metric {
        label: Some("state"),
        ..gauge(
            "metaroute_registry_state",
            "1 for what the registry is now: fresh, stale (it answers and cannot be used) or unreachable",
            |sample, put| {
                let states =
                    [("fresh", Freshness::Fresh), ("stale", Freshness::Stale), ("unreachable", Freshness::Unreachable)];
                for (name, state) in states {
                    put(Some(name), f64::from(u8::from(sample.core.freshness == state)));
                }
            },
        )
    },
    gauge("metaroute_held", "Whether a doubted push is being held back", |sample, put| {
        put(None, f64::from(u8::from(sample.core.held.is_some())));
    }),
    Metric {
        seconds: true,
        ..counter("metaroute_held_push", None, "Time for which doubted pushes were held back", |sample, put| {
            put(None, sample.core.held_total.as_secs_f64());
        })
    },
    counter("metaroute_rules_reloads", None, "Edits of the rules file that took effect", |sample, put| {
        put(None, sample.rules.reloads as f64);
    }),
    counter("metaroute_rules_reload_failures", None, "Edits of the rules file that were refused", |sample, put| {
        put(None, sample.rules.rejected as f64);
    }),
    gauge(
        "metaroute_rules_in_force",
        "Whether what the rules file says is in force; 0 after a bad edit",
        |sample, put| {
            put(None, f64::from(u8::from(sample.rules.error.is_none())));
        },
    ),
    counter("metaroute_route_requests", None, "Requests through tower routes", |sample, put| {
        put(None, sample.routed[0] as f64);
    }),
    counter(
        "metaroute_route_moved",
        None,
        "Times a request moved on to another instance before it was sent",
        |sample, put| put(None, sample.routed[1] as f64),
    ),
    counter(
        "metaroute_route_budget_refused",
        None,
        "Times a request did not move on because the retry budget was spent",
        |sample, put| put(None, sample.routed[2] as f64),
    ),
];

/// The metrics of any number of services. Clones share them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use metaroute::metrics::RoutingMetrics;
/// use prometheus_client::encoding::text::encode;
///
/// let mut registry = prometheus_client::registry::Registry::default();
/// let metrics = RoutingMetrics::register(&mut registry);
///
/// let orders = metaroute::connect("memory:")?.service("orders").start().await?;
/// metrics.watch(&orders);
///
/// let mut page = String::new();
/// encode(&mut page, &registry)?;
/// assert!(page.contains(r#"metaroute_instances{service="orders"} 0"#));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RoutingMetrics {
    watched: Arc<Mutex<Vec<WeakLiveSelector>>>,
}

impl RoutingMetrics {
    /// Registers the contract. Metrics carry their own prefix; a registry with one of its own would double it.
    pub fn register(registry: &mut Registry) -> Self {
        Self::register_some(registry, |_| true)
    }

    /// Registers a part of the contract, for a program that counts the rest itself.
    pub fn register_some(registry: &mut Registry, wanted: impl Fn(&Metric) -> bool) -> Self {
        let watched = Arc::new(Mutex::new(Vec::new()));
        let metrics = METRICS.iter().filter(|metric| wanted(metric)).collect();
        registry.register_collector(Box::new(Page { watched: Arc::clone(&watched), metrics }));
        Self { watched }
    }

    /// Shows a live selector until its last handle is dropped. A later one of the same service takes its place.
    pub fn watch(&self, live: &LiveSelector) {
        let mut watched = lock(&self.watched);
        watched.retain(|weak| weak.upgrade().is_some_and(|other| other.service() != live.service()));
        watched.push(live.downgrade());
    }
}

#[derive(Debug)]
struct Page {
    watched: Arc<Mutex<Vec<WeakLiveSelector>>>,
    metrics: Vec<&'static Metric>,
}

fn lock(watched: &Mutex<Vec<WeakLiveSelector>>) -> MutexGuard<'_, Vec<WeakLiveSelector>> {
    // A list of handles is whole at any moment.
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let live: Vec<LiveSelector> = lock(&self.watched).iter().filter_map(WeakLiveSelector::upgrade).collect();
        let samples: Vec<Sample> = live
            .iter()
            .map(|live| {
                let routed = live.routed();
                Sample {
                    service: live.service().to_owned(),
                    core: live.metrics(),
                    rules: live.status().rules,
                    routed: [&routed.requests, &routed.moved, &routed.refused].map(|n| n.load(Ordering::Relaxed)),
                }
            })
            .collect();
        for metric in &self.metrics {
            let kind = if metric.kind == Kind::Counter { MetricType::Counter } else { MetricType::Gauge };
            let unit = metric.seconds.then_some(Unit::Seconds);
            let mut family = encoder.encode_descriptor(metric.name, metric.help, unit.as_ref(), kind)?;
            for sample in &samples {
                let mut result = Ok(());
                (metric.read)(sample, &mut |value, number| {
                    let mut labels = vec![("service", sample.service.as_str())];
                    if let (Some(label), Some(value)) = (metric.label, value) {
                        labels.push((label, value));
                    }
                    let put = family.encode_family(&labels).and_then(|encoder| match metric.kind {
                        Kind::Counter => ConstCounter::new(number).encode(encoder),
                        Kind::Gauge => ConstGauge::new(number).encode(encoder),
                    });
                    if put.is_err() {
                        result = put;
                    }
                });
                result?;
            }
        }
        Ok(())
    }
}
