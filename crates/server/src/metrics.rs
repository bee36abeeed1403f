//! What Prometheus reads about rows. Names, units and labels are a contract with dashboards; `docs/operations.md` lists
//! them. Labels are bounded: paths, codes, stores and shards, never tenants.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metaroute_cluster::Meta;
use metaroute_cluster::protocol::ShardState;
use metaroute_cluster::query::Path;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::service::Service;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct QueryLabels {
    store: Arc<str>,
    operation: &'static str,
    path: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PathLabels {
    path: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    route: Arc<str>,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RouteLabels {
    route: Arc<str>,
}

/// From a memory hit to a scan of everything.
const BUCKETS: [f64; 13] = [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Counters of HTTP requests by route and status, whatever they are about.
#[derive(Clone, Debug)]
pub struct HttpMetrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<RouteLabels, Histogram>,
}

impl Default for HttpMetrics {
    fn default() -> Self {
        HttpMetrics { requests: Family::default(), durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)) }
    }
}

impl HttpMetrics {
    /// The counters of one route.
    pub(crate) fn route(&self, method: &'static str, route: &str) -> RouteMetrics {
        let route: Arc<str> = route.into();
        let labels = RequestLabels { method, route: Arc::clone(&route), status: 200 };
        let durations = self.durations.get_or_create(&RouteLabels { route }).clone();
        RouteMetrics { ok: OnceLock::new(), labels, durations, requests: self.requests.clone() }
    }
}

/// Counters of one route, found once: a look-up by labels for every request costs as much as a small answer.
#[derive(Debug)]
pub(crate) struct RouteMetrics {
    labels: RequestLabels,
    requests: Family<RequestLabels, Counter>,
    ok: OnceLock<Counter>,
    durations: Histogram,
}

impl RouteMetrics {
    /// Counts an answer.
    pub(crate) fn answered(&self, status: u16, took: Duration) {
        let counter = |status| self.requests.get_or_create(&RequestLabels { status, ..self.labels.clone() }).clone();
        match status {
            200 => self.ok.get_or_init(|| counter(200)).inc(),
            other => counter(other).inc(),
        };
        self.durations.observe(took.as_secs_f64());
    }
}

/// Counters of what was asked about rows and answered.
#[derive(Clone, Debug)]
pub struct Metrics {
    http: HttpMetrics,
    queries: Family<QueryLabels, Counter>,
    durations: Family<PathLabels, Histogram>,
    sub_requests: Family<PathLabels, Counter>,
    examined: Family<PathLabels, Counter>,
    returned: Family<PathLabels, Counter>,
    /// The same by path, found once.
    paths: Arc<OnceLock<[PathMetrics; Path::ALL.len()]>>,
    hedged: Counter,
    moved: Counter,
    partial: Counter,
    written: Counter,
    in_flight: Gauge,
}

#[derive(Debug)]
struct PathMetrics {
    durations: Histogram,
    sub_requests: Counter,
    examined: Counter,
    returned: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            http: HttpMetrics::default(),
            queries: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            sub_requests: Family::default(),
            examined: Family::default(),
            returned: Family::default(),
            paths: Arc::default(),
            hedged: Counter::default(),
            moved: Counter::default(),
            partial: Counter::default(),
            written: Counter::default(),
            in_flight: Gauge::default(),
        }
    }
}

impl Metrics {
    /// The counters of HTTP requests.
    pub fn http(&self) -> &HttpMetrics {
        &self.http
    }

    fn path(&self, path: Path) -> &PathMetrics {
        let all = self.paths.get_or_init(|| {
            Path::ALL.map(|path| {
                let labels = PathLabels { path: path.name() };
                PathMetrics {
                    durations: self.durations.get_or_create(&labels).clone(),
                    sub_requests: self.sub_requests.get_or_create(&labels).clone(),
                    examined: self.examined.get_or_create(&labels).clone(),
                    returned: self.returned.get_or_create(&labels).clone(),
                }
            })
        });
        &all[path as usize]
    }

    /// Notes the end of a request. `path` is `None` where it never got one.
    pub(crate) fn ended(
        &self,
        store: &Arc<str>,
        operation: &'static str,
        path: Option<Path>,
        code: &'static str,
        took: Duration,
    ) {
        let labels =
            QueryLabels { store: Arc::clone(store), operation, path: path.map(Path::name).unwrap_or_default(), code };
        self.queries.get_or_create(&labels).inc();
        match path {
            Some(path) => self.path(path).durations.observe(took.as_secs_f64()),
            None => self.durations.get_or_create(&PathLabels { path: "" }).observe(took.as_secs_f64()),
        };
    }

    /// Notes what an answer covered and cost.
    pub(crate) fn covered(&self, meta: &Meta) {
        let path = self.path(meta.path);
        path.sub_requests.inc_by(u64::from(meta.shards.total));
        path.examined.inc_by(meta.examined);
        path.returned.inc_by(meta.returned);
        if meta.hedged > 0 {
            self.hedged.inc_by(u64::from(meta.hedged));
        }
        if meta.shards.moved_retried > 0 {
            self.moved.inc_by(u64::from(meta.shards.moved_retried));
        }
        if !meta.complete {
            self.partial.inc();
        }
    }

    /// Notes rows that were acknowledged.
    pub(crate) fn wrote(&self, rows: u64) {
        self.written.inc_by(rows);
    }

    /// Counts a request while the guard lives.
    pub(crate) fn enter(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    /// Requests being answered.
    pub fn in_flight(&self) -> i64 {
        self.in_flight.get()
    }
}

/// A request being answered.
#[derive(Debug)]
pub(crate) struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Adds everything about rows to a registry, the shards of this process included.
pub fn register(registry: &mut Registry, service: &Arc<Service>) {
    let of = &service.metrics;
    registry.register("http_requests", "Requests by route and status", of.http.requests.clone());
    registry.register_with_unit(
        "http_request_duration",
        "Time to answer a request",
        Unit::Seconds,
        of.http.durations.clone(),
    );
    registry.register("queries", "Requests about rows, by store, operation, path and code", of.queries.clone());
    registry.register_with_unit(
        "query_duration",
        "Time to answer a request about rows",
        Unit::Seconds,
        of.durations.clone(),
    );
    registry.register("sub_requests", "Shards asked", of.sub_requests.clone());
    registry.register("examined_entries", "Entries that shards looked at", of.examined.clone());
    registry.register("returned_rows", "Rows in answers", of.returned.clone());
    registry.register("hedged_requests", "Sub-requests sent twice because the first was slow", of.hedged.clone());
    registry.register("moved_retries", "Sub-requests repeated because slots had moved", of.moved.clone());
    registry.register("partial_answers", "Answers that say they are incomplete", of.partial.clone());
    registry.register("written_rows", "Rows written and acknowledged", of.written.clone());
    registry.register("requests_in_flight", "Requests about rows being answered", of.in_flight.clone());
    registry.register_collector(Box::new(Shards(service.clone())));
}

/// The shards of this process at the moment of the scrape.
#[derive(Debug)]
struct Shards(Arc<Service>);

impl Collector for Shards {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let hosts = self.0.local.as_ref().map(|local| local.hosts()).unwrap_or_default();
        let epoch = self.0.watcher.topology().map_or(0, |topology| topology.epoch());
        encode_shards(encoder, &hosts, epoch)
    }
}

type ReadCounter = fn(&crate::shard::Counters) -> u64;
type ReadNumber = fn(&metaroute_store::Gauges) -> f64;

/// Encodes shards for whoever has them in its process.
pub(crate) fn encode_shards(
    mut encoder: DescriptorEncoder<'_>,
    hosts: &[crate::shard::ShardHost],
    epoch: u64,
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor("topology_epoch", "Epoch of the topology", None, MetricType::Gauge)?;
    ConstGauge::new(epoch as f64).encode(family.encode_family(&NO_LABELS)?)?;
    let mut family =
        encoder.encode_descriptor("shard_state", "1 for the state a shard is in", None, MetricType::Gauge)?;
    for host in hosts {
        let now = host.condition().state;
        for state in ShardState::ALL {
            let (group, shard) = (&*host.id().group, &*host.id().shard);
            let labels = [("group", group), ("shard", shard), ("state", state.name())];
            ConstGauge::new(f64::from(u8::from(state == now))).encode(family.encode_family(&labels)?)?;
        }
    }
    let mut family = encoder.encode_descriptor("shard_slots", "Slots a shard owns", None, MetricType::Gauge)?;
    for host in hosts {
        let labels = [("group", &*host.id().group), ("shard", &*host.id().shard)];
        ConstGauge::new(f64::from(host.owned().len())).encode(family.encode_family(&labels)?)?;
    }
    let counters: [(&str, &str, ReadCounter); 5] = [
        ("shard_reads", "Reads begun", |c| c.reads.load(Ordering::Relaxed)),
        ("shard_writes", "Writes begun", |c| c.writes.load(Ordering::Relaxed)),
        ("shard_moved", "Sub-requests with moved slots", |c| c.moved.load(Ordering::Relaxed)),
        ("shard_not_ready", "Sub-requests met not ready", |c| c.not_ready.load(Ordering::Relaxed)),
        ("shard_abandoned", "Sub-requests whose reader left", |c| c.abandoned.load(Ordering::Relaxed)),
    ];
    for (name, help, read) in counters {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for host in hosts {
            let labels = [("group", &*host.id().group), ("shard", &*host.id().shard)];
            ConstCounter::new(read(host.counters())).encode(family.encode_family(&labels)?)?;
        }
    }
    let gauges: Vec<_> = hosts.iter().filter_map(|host| Some((host, host.store()?.gauges()))).collect();
    let numbers: [(&str, &str, ReadNumber); 8] = [
        ("store_l0_runs", "Sorted runs in level 0", |g| g.l0_runs as f64),
        ("store_sealed_memtables", "Memtables waiting to be flushed", |g| g.sealed_memtables as f64),
        ("store_pending_flushes", "Flushes waiting or running", |g| g.pending_flushes as f64),
        ("store_table_bytes", "Bytes in table files", |g| g.table_bytes as f64),
        ("store_journal_bytes", "Bytes in journal files", |g| g.journal_bytes as f64),
        ("store_cache_bytes", "Bytes in the block cache", |g| g.cache_bytes as f64),
        ("store_write_queue", "Requests waiting to be written", |g| g.write_queue as f64),
        ("store_gate_waited_seconds", "Time writes spent at the closed gate", |g| g.gate_waited.as_secs_f64()),
    ];
    for (name, help, read) in numbers {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (host, gauges) in &gauges {
            let labels = [("group", &*host.id().group), ("shard", &*host.id().shard)];
            ConstGauge::new(read(gauges)).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

const NO_LABELS: [(&str, &str); 0] = [];
