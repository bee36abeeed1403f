//! What a push of 10,000 instances costs us and Envoy: `cargo bench -p metaroute --bench envoy`.
//!
//! Both follow a file that is replaced by renaming (Envoy: its endpoint discovery by path; we: a fleet file), with two
//! metadata subsets (Envoy: selectors on version and on version and zone; we: a rule on both that falls back to the
//! version). Each push changes one weight in a hundred. Measured is the processor time of the whole process per push, which a busy machine
//! does not change, and the time from the rename until the new list is in force.
#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use metaroute::connect;
use metaroute::rules_file::RulesFile;
use metaroute_registry::document::Format;
use test_support::envoy::Envoy;
use test_support::{Scratch, processor_time};

const INSTANCES: usize = 10_000;
const PUSHES: usize = 20;

fn main() {
    let scratch = Scratch::new("pushes");
    let (theirs, ours) = (scratch.path().join("endpoints.json"), scratch.path().join("fleet.json"));
    replace(&theirs, &endpoints(0));
    let cluster = format!(
        r#"{{"name":"c","type":"EDS","lb_policy":"ROUND_ROBIN",
        "eds_cluster_config":{{"eds_config":{{"path_config_source":{{"path":"{}","watched_directory":{{"path":"{}"}}}}}}}},
        "lb_subset_config":{{"fallback_policy":"NO_FALLBACK","subset_selectors":[{{"keys":["version"]}},
        {{"keys":["version","zone"],"fallback_policy":"KEYS_SUBSET","fallback_keys_subset":["version"]}}]}}}}"#,
        theirs.display(),
        scratch.path().display()
    );
    let route = r#"[{"match":{"prefix":"/"},"route":{"cluster":"c"}}]"#;
    let envoy = match Envoy::start(route, &format!("[{cluster}]")) {
        Ok(envoy) => envoy,
        Err(missing) => return println!("not run: {missing}"),
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (envoy_cpu, envoy_wall) = runtime.block_on(async {
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let count = async || {
            let url = format!("http://{}/stats?filter=^cluster.c.update_success$", envoy.admin());
            let text = client.get(url).send().await.expect("an answer").text().await.expect("a text");
            text.trim().rsplit(' ').next().and_then(|n| n.parse::<usize>().ok()).unwrap_or(0)
        };
        while count().await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // What asking costs Envoy is taken off again.
        let asked = seconds(envoy.id());
        for _ in 0..100 {
            count().await;
        }
        let ask = (seconds(envoy.id()) - asked) / 100.0;
        let (before, mut wall, mut asks) = (seconds(envoy.id()), Duration::ZERO, 0);
        for push in 1..=PUSHES {
            let wanted = count().await + 1;
            replace(&theirs, &endpoints(push));
            let started = Instant::now();
            while count().await < wanted {
                asks += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            asks += 2;
            wall += started.elapsed();
        }
        ((seconds(envoy.id()) - before - ask * f64::from(asks)) / PUSHES as f64, wall.as_secs_f64() / PUSHES as f64)
    });
    drop(envoy);

    replace(&ours, &fleet(0));
    let rules = "rules: [{match: version == v2 && zone == z1, on_empty: [{drop_keys: [zone]}], terminal: fail}]";
    let rules = RulesFile::parse("rules", rules, Format::Yaml).expect("rules").rules;
    let (our_cpu, our_wall, writing) = runtime.block_on(async {
        let url = format!("file:{}", ours.display());
        let live = connect(&url).expect("a registry").service("c").rules(rules).start().await.expect("a selector");
        live.ready(Duration::from_secs(30)).await.expect("a list");
        // Writing the file is the pusher's work.
        let started = seconds(None);
        for push in 1..=PUSHES {
            replace(&scratch.path().join("aside.json"), &fleet(push));
        }
        let writing = (seconds(None) - started) / PUSHES as f64;
        let (before, mut wall) = (seconds(None), Duration::ZERO);
        for push in 1..=PUSHES {
            let revision = live.status().revision;
            replace(&ours, &fleet(push));
            let started = Instant::now();
            while live.status().revision == revision {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            wall += started.elapsed();
        }
        ((seconds(None) - before) / PUSHES as f64 - writing, wall.as_secs_f64() / PUSHES as f64, writing)
    });
    println!(
        "{PUSHES} pushes of {INSTANCES} instances, {INSTANCES}/100 weights changed each; writing one file takes {:.1} ms",
        writing * 1e3
    );
    println!("| | processor time per push | until it is in force | processor, ratio |");
    println!("|---|---|---|---|");
    println!("| Envoy 1.40 | {:.1} ms | {:.1} ms | 1 |", envoy_cpu * 1e3, envoy_wall * 1e3);
    println!("| metaroute | {:.1} ms | {:.1} ms | {:.2} |", our_cpu * 1e3, our_wall * 1e3, our_cpu / envoy_cpu);
}

fn parts(n: usize, push: usize) -> (String, String, String, usize) {
    let weight = if n % 100 == push % 100 { 2 } else { 1 };
    (
        format!("10.{}.{}.{}", n / 62_500, n / 250 % 250, 1 + n % 250),
        format!("v{}", n % 7),
        format!("z{}", n % 3),
        weight,
    )
}

fn endpoints(push: usize) -> String {
    let mut text = format!(
        r#"{{"version_info":"{push}","resources":[{{"@type":"type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment","cluster_name":"c","endpoints":[{{"lb_endpoints":["#
    );
    for n in 0..INSTANCES {
        let (host, version, zone, weight) = parts(n, push);
        let comma = if n == 0 { "" } else { "," };
        let _ = write!(
            text,
            r#"{comma}{{"endpoint":{{"address":{{"socket_address":{{"address":"{host}","port_value":80}}}}}},"load_balancing_weight":{weight},"metadata":{{"filter_metadata":{{"envoy.lb":{{"version":"{version}","zone":"{zone}"}}}}}}}}"#
        );
    }
    text + "]}]}]}"
}

fn fleet(push: usize) -> String {
    let mut text = r#"{"services":[{"name":"c","instances":["#.to_owned();
    for n in 0..INSTANCES {
        let (host, version, zone, weight) = parts(n, push);
        let comma = if n == 0 { "" } else { "," };
        let _ = write!(
            text,
            r#"{comma}{{"address":"{host}:80","weight":{weight},"metadata":{{"version":"{version}","zone":"{zone}"}}}}"#
        );
    }
    text + "]}]}"
}

fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).expect("the scratch folder is writable");
    fs::rename(&beside, path).expect("the scratch folder is writable");
}

fn seconds(process: Option<u32>) -> f64 {
    processor_time(process).as_secs_f64()
}
