//! The preset `nacos-cluster` beside its originals: the real `NacosRule` of Spring Cloud Alibaba on Ribbon, and the published
//! version-and-cluster rule on the same classes (`peers/ribbon`).
//!
//! All three get the same instance lists (`nacos_rule/cases.json`). Both random sources are seeded, so the comparison gives the same
//! numbers on every run. Where the original is known to choose otherwise, the case names why, and the test holds it to that.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use test_support::{Scratch, java, require};

use crate::run::{Run, metaroute};

const CASES: &str = include_str!("nacos_rule/cases.json");
/// Below this probability the two sides are taken to choose differently.
const P_MIN: f64 = 0.001;
const SEED: &str = "7";
const NONE: &str = "none";

type Counts = BTreeMap<String, u64>;

#[test]
fn the_preset_chooses_like_its_originals() {
    let mut peer = require!(java::class("ribbon", "Main"));
    let input: Value = serde_json::from_str(CASES).expect("the cases are JSON");
    let picks = input["picks"].as_u64().expect("a number of picks");
    let theirs = run_peer(&mut peer, CASES);
    let cases = input["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), theirs.len(), "one answer per case");

    let scratch = Scratch::new("nacos-rule");
    let mut failures = Vec::new();
    for (case, theirs) in cases.iter().zip(&theirs) {
        let name = case["name"].as_str().expect("a name");
        assert_eq!(theirs["name"], name, "answers come in order");
        let fleet = scratch.path().join("fleet.json");
        let document = json!({"services": [{"name": "orders", "instances": case["instances"]}]});
        fs::write(&fleet, document.to_string()).expect("write the fleet");

        let explained = explain(&fleet, &case["caller"]);
        if explained.reason != case["reason"] {
            failures.push(format!("{name}: our reason is {:?}, not {}", explained.reason, case["reason"]));
        }
        let ours = pick(&fleet, &case["caller"], picks);
        let mut expect = |agree: bool, what: &str, p: f64, theirs: &Counts| {
            if (p > P_MIN) != agree {
                let verb = if agree { "differs from" } else { "no longer differs from" };
                failures.push(format!(
                    "{name}: the preset {verb} {what} (p = {p:e})\n    shares {:?}\n    ours   {ours:?}\n    theirs {theirs:?}",
                    explained.shares
                ));
            }
        };
        let published = counts(&theirs["published"]);
        expect(true, "the published rule, by exact shares", goodness_of_fit(&published, &explained.shares), &published);
        expect(true, "the published rule, by picks", homogeneity(&ours, &published), &published);
        expect(true, "its own shares", goodness_of_fit(&ours, &explained.shares), &ours);
        let original = counts(&theirs["original"]);
        let agree = case.get("original_differs").is_none();
        expect(agree, "the original, by exact shares", goodness_of_fit(&original, &explained.shares), &original);
    }
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

fn run_peer(peer: &mut Command, input: &str) -> Vec<Value> {
    use std::io::Write;
    let mut child =
        peer.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("Java starts");
    // The peer reads everything before it prints anything.
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("the peer reads its input");
    let output = child.wait_with_output().expect("the peer ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

fn counts(value: &Value) -> Counts {
    let object = value.as_object().expect("counts by address");
    object.iter().map(|(address, count)| (address.clone(), count.as_u64().expect("a count"))).collect()
}

struct Explained {
    reason: String,
    /// Exact probability by address; [`NONE`] is certain where nothing can be picked.
    shares: BTreeMap<String, f64>,
}

fn explain(fleet: &Path, caller: &Value) -> Explained {
    let run = route("explain", fleet, caller, &[]);
    let explained = run.json();
    let mut shares: BTreeMap<String, f64> = explained["instances"]
        .as_array()
        .expect("instances")
        .iter()
        .map(|instance| {
            let address = instance["address"].as_str().expect("an address").to_owned();
            // The digits as written: the workspace keeps them.
            (address, instance["probability"].to_string().parse().expect("a probability"))
        })
        .collect();
    let picked = explained["outcome"] == "picked";
    assert_eq!(run.status, i32::from(!picked), "{explained}");
    shares.insert(NONE.into(), if picked { 0.0 } else { 1.0 });
    let total: f64 = shares.values().sum();
    assert!((total - 1.0).abs() < 1e-9, "shares sum to {total}: {explained}");
    Explained { reason: explained["reason"].as_str().expect("a reason").to_owned(), shares }
}

fn pick(fleet: &Path, caller: &Value, picks: u64) -> Counts {
    let run = route("pick", fleet, caller, &["-n", &picks.to_string(), "--seed", SEED]);
    if run.status == 1 {
        return Counts::from([(NONE.into(), picks)]);
    }
    assert_eq!(run.status, 0, "{run:?}");
    let answer = run.json();
    let mut counts = Counts::new();
    for pick in answer["picks"].as_array().expect("picks") {
        *counts.entry(pick["address"].as_str().expect("an address").to_owned()).or_default() += 1;
    }
    assert_eq!(counts.values().sum::<u64>(), picks);
    counts
}

fn route(command: &str, fleet: &Path, caller: &Value, more: &[&str]) -> Run {
    let mut args: Vec<String> = ["route", command, "orders", "--preset", "nacos-cluster", "--format", "json", "--from"]
        .map(str::to_owned)
        .into();
    args.push(fleet.display().to_string());
    if let Some(cluster) = caller["cluster"].as_str() {
        args.extend(["--caller".to_owned(), format!("cluster={cluster}")]);
    }
    for (key, value) in caller["metadata"].as_object().into_iter().flatten() {
        args.extend(["--caller".to_owned(), format!("{key}={}", value.as_str().expect("text"))]);
    }
    metaroute(args.iter().map(String::as_str).chain(more.iter().copied()))
}

/// Probability of counts at least as far from the exact shares as these. Pearson's test; places with less than five expected picks
/// are put together, as it asks for.
fn goodness_of_fit(counts: &Counts, shares: &BTreeMap<String, f64>) -> f64 {
    let total = counts.values().sum::<u64>() as f64;
    // A pick of something that cannot be picked is not a matter of probability.
    if counts.iter().any(|(address, count)| *count > 0 && shares.get(address).is_none_or(|share| *share == 0.0)) {
        return 0.0;
    }
    let cells = shares
        .iter()
        .filter(|(_, share)| **share > 0.0)
        .map(|(address, share)| (*counts.get(address).unwrap_or(&0) as f64, share * total));
    p_value(cells, 1)
}

/// Probability of two samples at least as far apart as these, if both come from one distribution. Both have the same size.
fn homogeneity(a: &Counts, b: &Counts) -> f64 {
    assert_eq!(a.values().sum::<u64>(), b.values().sum::<u64>());
    let addresses: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let cells = addresses.into_iter().map(|address| {
        let count = |counts: &Counts| *counts.get(address).unwrap_or(&0) as f64;
        (count(a), (count(a) + count(b)) / 2.0)
    });
    // Each cell of the second sample deviates by as much as that of the first.
    p_value(cells, 2)
}

/// `samples` is how often each deviation counts: two samples of one size deviate from their mean by the same amount.
fn p_value(cells: impl Iterator<Item = (f64, f64)>, samples: u32) -> f64 {
    let mut kept = Vec::new();
    let mut rare = (0.0, 0.0);
    for (observed, expected) in cells {
        if expected < 5.0 {
            rare = (rare.0 + observed, rare.1 + expected);
        } else {
            kept.push((observed, expected));
        }
    }
    if rare.1 > 0.0 {
        kept.push(rare);
    }
    // One place only: the totals agree, so there is nothing to differ in.
    if kept.len() < 2 {
        return 1.0;
    }
    let statistic: f64 = kept.iter().map(|(observed, expected)| (observed - expected).powi(2) / expected).sum();
    // The chi-square distribution's tail is the incomplete gamma function Q(k/2, x/2).
    puruspe::gammq((kept.len() - 1) as f64 / 2.0, statistic * f64::from(samples) / 2.0)
}

#[test]
fn the_test_statistic_is_the_textbooks() {
    let shares = BTreeMap::from([("a".to_owned(), 0.5), ("b".to_owned(), 0.25), ("c".to_owned(), 0.25)]);
    let sample = |a, b, c| Counts::from([("a".to_owned(), a), ("b".to_owned(), b), ("c".to_owned(), c)]);
    assert_eq!(goodness_of_fit(&sample(500, 250, 250), &shares), 1.0);
    // 30^2/500 + 30^2/250 = 5.4 with two degrees of freedom: e^-2.7.
    assert!((goodness_of_fit(&sample(530, 220, 250), &shares) - (-2.7f64).exp()).abs() < 1e-9);
    // The same deviation in two samples, from their means 515 and 235, twice: 15^2/515*2 + 15^2/235*2 = 2.788…
    let statistic: f64 = 2.0 * 225.0 / 515.0 + 2.0 * 225.0 / 235.0;
    assert!((homogeneity(&sample(530, 220, 250), &sample(500, 250, 250)) - (-statistic / 2.0).exp()).abs() < 1e-9);
    assert!(goodness_of_fit(&sample(700, 150, 150), &shares) < 1e-12, "it does find a difference");
    let with_d = Counts::from([("d".to_owned(), 1)]);
    assert_eq!(goodness_of_fit(&with_d, &shares), 0.0, "an impossible pick is no matter of chance");
}
