//! The metrics contract: the page a scrape gets, and the page people read.

use std::path::Path;
use std::time::Duration;

use metaroute::metrics::{Kind, METRICS, RoutingMetrics};
use metaroute::{Connection, Instance, LiveSelector, Memory, Registry};
use prometheus_client::encoding::text::encode;

use crate::wait::until;

const SOON: Duration = Duration::from_secs(10);

fn page(registry: &prometheus_client::registry::Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    text
}

async fn start(memory: &Memory, service: &str) -> LiveSelector {
    Connection::new(Registry::new(memory.clone())).service(service).start().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_scrape_shows_what_happened() {
    let memory = Memory::new();
    memory.register("orders", Instance::new("a:1".parse().unwrap())).unwrap();
    memory.register("orders", Instance::new("b:1".parse().unwrap()).with_weight(0.0)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, "rules: [{name: canary, match: lane == canary, mode: prefer, terminal: any}]").unwrap();
    let connection = Connection::new(Registry::new(memory.clone()));
    let orders = connection.service("orders").rules_file(&rules).start().await.unwrap();
    orders.ready(SOON).await.unwrap();
    let users = start(&memory, "users").await;

    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = RoutingMetrics::register(&mut registry);
    metrics.watch(&orders);
    metrics.watch(&users);
    let mut picker = orders.picker();
    for _ in 0..7 {
        picker.pick(&()).unwrap();
    }
    drop(picker);
    // Renamed over it, so that no reader sees half of it.
    let beside = rules.with_extension("new");
    std::fs::write(&beside, "rules: [{name: canary, mach: x}]").unwrap();
    std::fs::rename(&beside, &rules).unwrap();
    until("the edit is refused", || orders.status().rules.rejected == 1).await;
    until("the registry has answered", || users.selector().is_resolved()).await;

    let text = page(&registry);
    for line in [
        r#"metaroute_picks_total{service="orders",reason="relaxed"} 7"#,
        r#"metaroute_picks_total{service="orders",reason="matched"} 0"#,
        r#"metaroute_no_picks_total{service="users",reason="unknown_service"} 0"#,
        r#"metaroute_fallbacks_total{service="orders",rule="canary"} 7"#,
        r#"metaroute_instances{service="orders"} 2"#,
        r#"metaroute_instances_usable{service="orders"} 1"#,
        r#"metaroute_snapshot_age_seconds{service="orders"} 0"#,
        r#"metaroute_registry_state{service="orders",state="fresh"} 1"#,
        r#"metaroute_registry_state{service="orders",state="unreachable"} 0"#,
        r#"metaroute_held{service="orders"} 0"#,
        r#"metaroute_held_push_seconds_total{service="orders"} 0"#,
        r#"metaroute_rules_reload_failures_total{service="orders"} 1"#,
        r#"metaroute_rules_in_force{service="orders"} 0"#,
        r#"metaroute_rules_in_force{service="users"} 1"#,
    ] {
        assert!(text.lines().any(|l| l == line || l == format!("{line}.0")), "{line} in\n{text}");
    }

    let again = start(&memory, "orders").await;
    metrics.watch(&again);
    drop(users);
    let text = page(&registry);
    assert_eq!(text.matches("metaroute_instances{").count(), 1, "one series per service, none of who is gone");
}

/// The names, types and help texts that dashboards see are those of the contract.
#[tokio::test(start_paused = true)]
async fn every_metric_of_the_contract_is_on_the_page_once() {
    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = RoutingMetrics::register(&mut registry);
    metrics.watch(&start(&Memory::new(), "orders").await);
    let text = page(&registry);
    for metric in METRICS {
        let base = metric.full_name();
        let base = base.strip_suffix("_total").unwrap_or(&base);
        let kind = if metric.kind == Kind::Counter { "counter" } else { "gauge" };
        assert_eq!(text.matches(&format!("# TYPE {base} {kind}\n")).count(), 1, "{base} in\n{text}");
        assert!(text.contains(&format!("# HELP {base} {}", metric.help)), "{base} in\n{text}");
    }
    assert_eq!(text.matches("# TYPE ").count(), METRICS.len());
}

/// `UPDATE_DOCS=1 cargo test -p metaroute the_metrics_page` writes the table anew.
#[test]
fn the_metrics_page_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut table = String::from("| Name | Type | Unit | Labels | Meaning |\n|---|---|---|---|---|\n");
    for metric in METRICS {
        let kind = if metric.kind == Kind::Counter { "counter" } else { "gauge" };
        let unit = if metric.seconds { "seconds" } else { "" };
        let label = metric.label.map_or(String::new(), |label| format!(", `{label}`"));
        table.push_str(&format!(
            "| `{}` | {kind} | {unit} | `service`{label} | {} |\n",
            metric.full_name(),
            metric.help
        ));
    }
    let (begin, end) = ("<!-- metrics: begin -->\n", "<!-- metrics: end -->");
    let (before, rest) = text.split_once(begin).expect("the page has the begin mark");
    let (_, after) = rest.split_once(end).expect("the page has the end mark");
    let current = format!("{before}{begin}{table}{end}{after}");
    if text != current {
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &current).unwrap();
        }
        assert!(std::env::var_os("UPDATE_DOCS").is_some(), "docs/metrics.md is not what the code says; {}", table);
    }
}
