//! The same instances and the same wishes, in Envoy's words and in ours: who is chosen, and in what proportion.
//!
//! Envoy's load balancer subsets are the best-known routing by metadata. Each case is one Envoy cluster with its subset
//! configuration, one route that asks for metadata, and one rules file of ours. Where the two rightly differ, the case says
//! how, and the difference itself is what is checked.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use metaroute::{Connection, Instance, Memory, Registry};
use metaroute_core::MetaValue;
use metaroute_registry::document::Format;
use test_support::envoy::Envoy;
use test_support::require;

use crate::wait::until;

/// Requests sent to Envoy in each case: many rounds of its weighted round robin.
const REQUESTS: usize = 120;

/// One upstream: version, zone, stage, features, weight, healthy.
type Upstream = (&'static str, &'static str, &'static str, &'static [&'static str], u32, bool);

const FLEET: [Upstream; 8] = [
    ("v1", "a", "prod", &["img", "pay"], 1, true),
    ("v1", "b", "prod", &["img"], 3, true),
    ("v2", "a", "canary", &["pay"], 2, true),
    ("v2", "a", "prod", &[], 4, true),
    ("v3", "b", "prod", &["img"], 1, true),
    ("v4", "c", "canary", &["img"], 5, false),
    ("v5", "c", "prod", &["pay"], 2, false),
    ("v5", "c", "prod", &["pay"], 3, true),
];

struct Case {
    name: &'static str,
    /// `lb_subset_config`.
    subsets: &'static str,
    /// Percentage under which Envoy ignores health; 0 switches that off.
    panic: u32,
    /// What the route asks for.
    wants: &'static str,
    rules: &'static str,
    differs: Option<Difference>,
}

/// A case where the two are meant to differ.
struct Difference {
    why: &'static str,
    envoy: Option<&'static [usize]>,
    ours: Option<&'static [usize]>,
}

const BY_VERSION: &str = r#"{"fallback_policy":"NO_FALLBACK","subset_selectors":[{"keys":["version"]}]}"#;

const CASES: &[Case] = &[
    Case {
        name: "one_key",
        subsets: BY_VERSION,
        panic: 0,
        wants: r#"{"version":"v1"}"#,
        rules: "rules: [{match: version == v1, terminal: fail}]",
        differs: None,
    },
    Case {
        name: "one_key_nobody_has",
        subsets: BY_VERSION,
        panic: 0,
        wants: r#"{"version":"v9"}"#,
        rules: "rules: [{match: version == v9, terminal: fail}]",
        differs: None,
    },
    Case {
        name: "fallback_to_any",
        subsets: r#"{"fallback_policy":"ANY_ENDPOINT","subset_selectors":[{"keys":["version"]}]}"#,
        panic: 0,
        wants: r#"{"version":"v9"}"#,
        rules: "rules: [{match: version == v9, terminal: any}]",
        differs: None,
    },
    Case {
        name: "fallback_to_a_default_subset",
        subsets: r#"{"fallback_policy":"DEFAULT_SUBSET","default_subset":{"stage":"prod"},"subset_selectors":[{"keys":["version"]}]}"#,
        panic: 0,
        wants: r#"{"version":"v9"}"#,
        rules: "rules: [{match: version == v9, on_empty: [{match: stage == prod}], terminal: fail}]",
        differs: None,
    },
    Case {
        name: "two_keys",
        subsets: r#"{"fallback_policy":"NO_FALLBACK","subset_selectors":[{"keys":["version","zone"]}]}"#,
        panic: 0,
        wants: r#"{"version":"v2","zone":"a"}"#,
        rules: "rules: [{match: version == v2 && zone == a, terminal: fail}]",
        differs: None,
    },
    Case {
        name: "fallback_to_fewer_keys",
        subsets: r#"{"fallback_policy":"NO_FALLBACK","subset_selectors":[{"keys":["version"]},
            {"keys":["version","zone"],"fallback_policy":"KEYS_SUBSET","fallback_keys_subset":["version"]}]}"#,
        panic: 0,
        wants: r#"{"version":"v2","zone":"b"}"#,
        rules: "rules: [{match: version == v2 && zone == b, on_empty: [{drop_keys: [zone]}], terminal: fail}]",
        differs: None,
    },
    Case {
        name: "fallback_to_fewer_keys_then_nothing",
        subsets: r#"{"fallback_policy":"NO_FALLBACK","subset_selectors":[{"keys":["version"],"fallback_policy":"NO_FALLBACK"},
            {"keys":["version","zone"],"fallback_policy":"KEYS_SUBSET","fallback_keys_subset":["version"]}]}"#,
        panic: 0,
        wants: r#"{"version":"v9","zone":"b"}"#,
        rules: "rules: [{match: version == v9 && zone == b, on_empty: [{drop_keys: [zone]}], terminal: fail}]",
        differs: None,
    },
    Case {
        name: "a_list_matches_by_element",
        subsets: r#"{"fallback_policy":"NO_FALLBACK","list_as_any":true,"subset_selectors":[{"keys":["features"]}]}"#,
        panic: 0,
        wants: r#"{"features":"pay"}"#,
        rules: "types: {features: set}\nrules: [{match: features == pay, terminal: fail}]",
        differs: None,
    },
    Case {
        name: "health_inside_the_subset",
        subsets: BY_VERSION,
        panic: 0,
        wants: r#"{"version":"v5"}"#,
        rules: "rules: [{match: version == v5, terminal: fail}]",
        differs: None,
    },
    Case {
        name: "panic_inside_the_subset",
        subsets: BY_VERSION,
        panic: 60,
        wants: r#"{"version":"v5"}"#,
        rules: "panic: 60%\nrules: [{match: version == v5, terminal: fail}]",
        differs: None,
    },
    Case {
        name: "a_subset_that_is_all_unhealthy_does_not_fall_back",
        subsets: r#"{"fallback_policy":"ANY_ENDPOINT","subset_selectors":[{"keys":["version"]}]}"#,
        panic: 0,
        wants: r#"{"version":"v4"}"#,
        rules: "rules: [{match: version == v4, min_usable: 0, terminal: any}]",
        differs: None,
    },
    Case {
        name: "by_default_we_fall_back_when_nobody_is_usable",
        subsets: r#"{"fallback_policy":"ANY_ENDPOINT","subset_selectors":[{"keys":["version"]}]}"#,
        panic: 0,
        wants: r#"{"version":"v4"}"#,
        rules: "rules: [{match: version == v4, terminal: any}]",
        differs: Some(Difference {
            why: "Envoy falls back only when the subset has no host, we when it has no usable one (`min_usable: 1`)",
            envoy: None,
            ours: Some(&[0, 1, 2, 3, 4, 7]),
        }),
    },
    Case {
        name: "keys_no_selector_names",
        subsets: BY_VERSION,
        panic: 0,
        wants: r#"{"version":"v2","stage":"prod"}"#,
        rules: "rules: [{match: version == v2 && stage == prod, terminal: fail}]",
        differs: Some(Difference {
            why: "Envoy needs a selector with exactly these keys, our rules need no declaration",
            envoy: None,
            ours: Some(&[3]),
        }),
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subsets_fallbacks_and_weights_agree_with_envoy() {
    let mut ports = Vec::new();
    for _ in FLEET {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        ports.push(port);
        let answer = Router::new().fallback(get(move || async move { port.to_string() }));
        tokio::spawn(async move { axum::serve(listener, answer).await });
    }
    let routes: Vec<String> = CASES
        .iter()
        .map(|case| {
            format!(
                r#"{{"match":{{"prefix":"/{0}/"}},"route":{{"cluster":"{0}",
                "metadata_match":{{"filter_metadata":{{"envoy.lb":{1}}}}}}}}}"#,
                case.name, case.wants
            )
        })
        .collect();
    let clusters: Vec<String> = CASES.iter().map(|case| cluster(case, &ports)).collect();
    // On this thread, not on one of the pool's: Envoy asks the kernel to end it with the thread that started it.
    let envoy = require!(Envoy::start(&format!("[{}]", routes.join(",")), &format!("[{}]", clusters.join(","))));

    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut wrong = Vec::new();
    for case in CASES {
        let theirs = ask_envoy(&client, envoy.address(), case.name, &ports).await;
        let ours = ask_us(case, &ports).await;
        let verdict = match &case.differs {
            None => agree(theirs.as_ref(), ours.as_ref()),
            Some(difference) => differ(theirs.as_ref(), ours.as_ref(), difference)
                .map_err(|found| format!("{}: {found}", difference.why)),
        };
        if let Err(found) = verdict {
            wrong.push(format!("{}: {found}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn cluster(case: &Case, ports: &[u16]) -> String {
    let endpoints: Vec<String> = FLEET
        .iter()
        .zip(ports)
        .map(|((version, zone, stage, features, weight, healthy), port)| {
            format!(
                r#"{{"endpoint":{{"address":{{"socket_address":{{"address":"127.0.0.1","port_value":{port}}}}}}},
                "health_status":"{}","load_balancing_weight":{weight},"metadata":{{"filter_metadata":{{"envoy.lb":
                {{"version":"{version}","zone":"{zone}","stage":"{stage}","features":{features:?}}}}}}}}}"#,
                if *healthy { "HEALTHY" } else { "UNHEALTHY" },
            )
        })
        .collect();
    format!(
        r#"{{"name":"{0}","type":"STATIC","lb_policy":"ROUND_ROBIN","lb_subset_config":{1},
        "common_lb_config":{{"healthy_panic_threshold":{{"value":{2}}}}},
        "load_assignment":{{"cluster_name":"{0}","endpoints":[{{"lb_endpoints":[{3}]}}]}}}}"#,
        case.name,
        case.subsets,
        case.panic,
        endpoints.join(",")
    )
}

/// How often each upstream answered; `None` when Envoy had nobody.
async fn ask_envoy(
    client: &reqwest::Client,
    envoy: SocketAddr,
    case: &str,
    ports: &[u16],
) -> Option<BTreeMap<usize, usize>> {
    let mut counts = BTreeMap::new();
    for _ in 0..REQUESTS {
        let response = client.get(format!("http://{envoy}/{case}/")).send().await.unwrap();
        if response.status() == 503 {
            let body = response.text().await.unwrap();
            assert_eq!(body, "no healthy upstream", "{case}");
            return None;
        }
        let port: u16 = response.text().await.unwrap().parse().unwrap();
        *counts.entry(ports.iter().position(|known| *known == port).unwrap()).or_default() += 1;
    }
    Some(counts)
}

/// The exact share of each instance; `None` when there is nobody.
async fn ask_us(case: &Case, ports: &[u16]) -> Option<BTreeMap<usize, f64>> {
    let memory = Memory::new();
    for ((version, zone, stage, features, weight, healthy), port) in FLEET.into_iter().zip(ports) {
        let features = MetaValue::List(features.iter().map(|feature| (*feature).into()).collect());
        let instance = Instance::new(format!("127.0.0.1:{port}").parse().unwrap())
            .with_weight(weight.into())
            .with_healthy(healthy)
            .with_meta("version", version)
            .with_meta("zone", zone)
            .with_meta("stage", stage)
            .with_meta("features", features);
        memory.register("upstream", instance).unwrap();
    }
    let rules = metaroute::rules_file::RulesFile::parse(case.name, case.rules, Format::Yaml).unwrap().rules;
    let live = Connection::new(Registry::new(memory)).service("upstream").rules(rules).start().await.unwrap();
    until("the list is there", || live.status().instances == FLEET.len()).await;
    let distribution = live.distribution(&());
    distribution.outcome.is_ok().then(|| {
        let index = |id: &str| ports.iter().position(|port| id.ends_with(&format!(":{port}"))).unwrap();
        let shares = distribution.shares.iter().filter(|(_, share)| *share > 0.0);
        shares.map(|(id, share)| (index(id.as_str()), *share)).collect()
    })
}

/// A weighted round robin is exact up to where it starts and stops.
fn agree(theirs: Option<&BTreeMap<usize, usize>>, ours: Option<&BTreeMap<usize, f64>>) -> Result<(), String> {
    let (Some(theirs), Some(ours)) = (theirs, ours) else {
        return if theirs.is_none() && ours.is_none() {
            Ok(())
        } else {
            Err(format!("Envoy {theirs:?}, ours {ours:?}"))
        };
    };
    let same = theirs.keys().eq(ours.keys());
    let total: f64 = ours.values().sum();
    let near = ours.iter().all(|(index, share)| {
        let wanted = share / total * REQUESTS as f64;
        (theirs.get(index).copied().unwrap_or(0) as f64 - wanted).abs() <= 2.0
    });
    if same && near { Ok(()) } else { Err(format!("Envoy {theirs:?} of {REQUESTS}, ours {ours:?}")) }
}

fn differ(
    theirs: Option<&BTreeMap<usize, usize>>,
    ours: Option<&BTreeMap<usize, f64>>,
    difference: &Difference,
) -> Result<(), String> {
    let theirs_set = theirs.map(|counts| counts.keys().copied().collect::<Vec<_>>());
    let ours_set = ours.map(|shares| shares.keys().copied().collect::<Vec<_>>());
    if theirs_set.as_deref() == difference.envoy && ours_set.as_deref() == difference.ours {
        Ok(())
    } else {
        Err(format!("Envoy {theirs_set:?}, ours {ours_set:?}"))
    }
}
