//! `metaroute simulate`.

use serde_json::json;
use test_support::Scratch;

use crate::run::metaroute;

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split_whitespace()
}

#[test]
fn json_has_the_agreed_shape() {
    let run =
        metaroute(words("simulate retry-storm --policy fixed:5s --policy none --window 6s --window 12s --format json"));
    assert_eq!((run.status, run.stderr.as_str()), (0, ""));
    let fixed = json!([
        {"window": "6s", "calls": 100, "peak_per_second": 100, "mean_per_second": 16.667, "per_second": [0, 0, 0, 0, 0, 100]},
        {"window": "12s", "calls": 200, "peak_per_second": 100, "mean_per_second": 16.667,
            "per_second": [0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 100, 0]},
    ]);
    let value = run.json();
    assert_eq!(value["policies"][0], json!({"policy": "fixed:5s", "windows": fixed}));
    assert_eq!(value["policies"][1]["windows"][0]["per_second"], json!([0, 100, 100, 100, 100, 100]));
}

#[test]
fn the_same_seed_prints_the_same() {
    let run = |seed: &str| metaroute(words("simulate retry-storm --format json --seed").chain([seed])).stdout;
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn ndjson_is_a_policy_a_line() {
    let run = metaroute(words("simulate subscribe-loop --window 2s --format ndjson"));
    let lines: Vec<serde_json::Value> =
        run.stdout.lines().map(|line| serde_json::from_str(line).expect("a line is a document")).collect();
    let policies: Vec<_> = lines.iter().map(|line| line["policy"].as_str()).collect();
    assert_eq!(policies, [Some("none"), Some("exponential:1s,1.5,30s,0.5")]);
    assert_eq!(lines[0]["windows"][0]["calls"], 2000);
}

#[test]
fn text_is_a_table_and_a_picture_is_written_beside_it() {
    let scratch = Scratch::new("simulate");
    let file = scratch.path().join("storm.png");
    let run = metaroute(
        ["simulate", "retry-storm", "--plot"].map(Into::into).into_iter().chain([file.clone().into_os_string()]),
    );
    assert_eq!((run.status, run.stderr.as_str()), (0, ""));
    assert!(run.stdout.contains("fixed:5s                       60s   1100     100   18.33"), "{}", run.stdout);
    let picture = std::fs::read(&file).expect("the picture");
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n") && picture.len() > 10_000);
}

#[test]
fn mistakes_are_usage_errors() {
    for (line, code) in [
        ("simulate retry-storm --policy exponential:1s,1.5", "bad_value"),
        ("simulate retry-storm --window 12", "bad_value"),
        ("simulate retry-storm --policy none --tick 0", "bad_scenario"),
        ("simulate retry-storm --window 0s", "bad_scenario"),
        ("simulate retry-storm --plot storm.pdf", "bad_plot_format"),
        ("simulate retry-storm --plot /no/such/folder/storm.png", "cannot_write"),
        ("simulate thunder", "unknown_command"),
    ] {
        let run = metaroute(words(line).chain(["--format", "json"]));
        assert_eq!((run.status, run.stdout.as_str(), run.error()["code"].as_str()), (2, "", Some(code)), "{line}");
    }
}
