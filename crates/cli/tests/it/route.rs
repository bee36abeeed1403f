//! `metaroute route`: shapes, statuses and flags.

use serde_json::json;

use crate::fleet::{Fleet, number};
use crate::run::{metaroute, metaroute_with};

const FLEET: &str = r#"
    {id: a, address: "10.0.1.11:8080", cluster: hz, zone: z1, weight: 100, metadata: {version: 2.10, env: prod, tier: 2}}
    {id: b, address: "10.0.1.12:8080", cluster: hz, zone: z2, weight: 50, metadata: {version: "2.9", env: prod}}
    {id: c, address: "10.0.2.11:8080", cluster: sh, zone: z3, weight: 0, metadata: {version: 2.11.0-rc.1, env: prod}}
    {id: d, address: "10.0.2.12:8080", cluster: sh, zone: z3, healthy: false, metadata: {version: 2.11.0, tags: [canary, eu]}}
"#;

const RULES: &str = "
version: 1
rules:
  - name: canary
    when: $req.flag == canary
    match: version >= 2.11
    mode: prefer
    on_empty: [{match: version >= 2.10}]
    terminal: any
  - {name: prod, match: env == prod, terminal: fail}
";

#[test]
fn explain_has_every_field_of_the_contract() {
    let fleet = Fleet::new(FLEET);
    let explained = fleet.explain(&["--rule", "version >= 2.10"]);
    let json = &explained.json;
    assert_eq!(explained.status, 0);
    assert_eq!(
        (&json["service"], &json["outcome"], &json["reason"]),
        (&json!("orders"), &json!("picked"), &json!("matched"))
    );
    assert!(json["revision"].is_u64() && json["basis"].is_string());
    let instance = explained.instance("a");
    assert_eq!(instance["address"], "10.0.1.11:8080");
    assert_eq!(instance["cluster"], "hz");
    assert_eq!(number(&instance["weight"]), 100.0);
    assert_eq!(instance["healthy"], true);
    assert_eq!(instance["metadata"]["version"], "2.10", "no digit is lost to a reader with binary floats");
    assert_eq!((&instance["kept"], number(&instance["probability"])), (&json!(true), 1.0));
    let dropped = explained.instance("b");
    assert_eq!(dropped["kept"], false);
    assert_eq!(
        (&dropped["stage"], &dropped["rule"], &dropped["clause"], &dropped["value"]),
        (&json!("rule:rule"), &json!("rule"), &json!("version >= 2.10"), &json!("2.9"))
    );
    assert_eq!(explained.instance("d")["metadata"]["tags"], json!(["canary", "eu"]));
    let stage = &json["stages"][1];
    assert_eq!(
        (&stage["name"], &stage["in"], &stage["matched"], &stage["usable"], &stage["out"]),
        (&json!("rule:rule"), &json!(4), &json!(3), &json!(1), &json!(3))
    );
}

#[test]
fn explain_is_a_table_for_people() {
    let fleet = Fleet::new(FLEET);
    let run = fleet.route("explain", &["--rule", "version >= 2.10"]);
    assert_eq!(run.status, 0);
    for part in ["INSTANCE", "STAGE", "version >= 2.10, has 2.9", "not healthy", "weight is 0", "100%", "[matched]"] {
        assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
    }
    assert!(run.stdout.lines().all(|line| line == line.trim_end()), "no trailing spaces");
}

#[test]
fn an_unknown_service_is_status_1_with_a_complete_document() {
    let fleet = Fleet::new(FLEET);
    let from = fleet.from();
    let run = metaroute(["route", "explain", "nope", "--from", &from, "--format", "json"]);
    assert_eq!(run.status, 1);
    let json = run.json();
    assert_eq!((&json["outcome"], &json["reason"]), (&json!("no_pick"), &json!("unknown_service")));
    assert!(json["instances"].is_array() && json["stages"].is_array() && json["basis"].is_string());
    for args in [
        &["route", "pick", "nope", "--from", &from][..],
        &["route", "simulate", "nope", "--from", &from],
        &["route", "diff", "nope", "--from", &from, "--rule", "a == 1", "--dialects", "v1,seata"],
        &["route", "lint", "--rule", "a == 1", "--from", &from, "--service", "nope"],
    ] {
        let run = metaroute(args.iter().copied().chain(["--format", "json"]));
        assert_eq!(run.status, 1, "{args:?}: {run:?}");
        assert!(run.stdout.contains("unknown_service"), "{args:?}: {run:?}");
        assert!(run.json().is_object());
    }
}

#[test]
fn registries_that_cannot_be_read_are_status_3_and_bad_ones_2() {
    let fleet = Fleet::new(FLEET);
    let bad = fleet.file("bad.yaml", "services:\n  - nmae: orders\n");
    let rules = fleet.file("bad-rules.yaml", "version: 1\nrules:\n  - name: x\n    match: version >=\n");
    let from = fleet.from();
    for (args, status, code) in [
        (&["--from", "no-such-file.yaml"][..], 3, "unreadable"),
        (&["--from", "file:no-such-file.yaml"], 3, "unreadable"),
        (&["--from", &bad], 2, "unknown_key"),
        (&["--from", "memory:"], 2, "unsupported_registry"),
        (&["--from", "nonsense://h"], 2, "bad_registry_url"),
        (&["--from", &from, "--rule", "version >="], 2, "bad_expression"),
        (&["--from", &from, "--rules", &rules], 2, "bad_expression"),
        (&["--from", &from, "--rules", "no-such-rules.yaml"], 2, "unreadable"),
        (&["--from", &from, "--balance", "fastest"], 2, "unknown_balancer"),
        (&["--from", &from, "--rule", "a == 1", "--preset", "nacos-cluster"], 2, "conflicting_arguments"),
        (&["--from", &from, "--preset", "nacos-cluster", "--dialect", "seata"], 2, "conflicting_arguments"),
        (&["--from", &from, "--seata", "x.yml", "--dialect", "v1"], 2, "conflicting_arguments"),
    ] {
        let run = metaroute(["route", "explain", "orders"].iter().chain(args).chain(&["--format", "json"]));
        assert_eq!(run.status, status, "{args:?}: {run:?}");
        assert_eq!(run.stdout, "", "{args:?}");
        assert_eq!(run.error()["code"], code, "{args:?}: {run:?}");
    }
    let run = metaroute(["route", "explain", "orders", "--from", &from, "--rules", &rules]);
    assert!(run.stderr.contains("bad-rules.yaml:4:") && run.stderr.contains('^'), "{run:?}");
}

#[test]
fn secrets_of_registry_addresses_are_never_shown() {
    for url in
        ["nacos://user:hunter2@h:1/x?group=g", "redis://:hunter2@h", "nope://u:hunter2@h", "nacos://u:hunter2@h:x"]
    {
        for format in ["text", "json"] {
            let run = metaroute(["route", "explain", "orders", "--from", url, "--format", format]);
            assert_ne!(run.status, 0, "{url}");
            assert!(!run.stderr.contains("hunter2"), "{url}: {run:?}");
        }
    }
}

#[test]
fn pick_is_repeatable_by_seed_and_prints_addresses() {
    let fleet = Fleet::new(FLEET);
    let first = fleet.pick(50, &[]);
    assert_eq!(first, fleet.pick(50, &[]));
    assert_eq!(first.iter().filter(|a| *a == "10.0.1.11:8080" || *a == "10.0.1.12:8080").count(), 50);
    let json = fleet.route("pick", &["-n", "2", "--seed", "1", "--format", "json"]).json();
    let picks = json["picks"].as_array().unwrap();
    assert_eq!(picks.len(), 2);
    assert_eq!(picks[0]["address"], first[0].as_str());
    assert_eq!(picks[0]["reason"], "matched");
    assert!(picks[0]["id"].is_string());
    let lines = fleet.route("pick", &["-n", "3", "--format", "ndjson"]);
    assert_eq!(lines.stdout.lines().count(), 3);

    let none = fleet.route("pick", &["--rule", "version >= 9", "--format", "json"]);
    assert_eq!((none.status, &none.json()["reason"]), (1, &json!("filtered")));
    let none = fleet.route("pick", &["--rule", "version >= 9"]);
    assert_eq!((none.status, none.stdout.as_str()), (1, ""));
    assert!(none.stderr.contains("no instance"), "{none:?}");
}

#[test]
fn hash_balancers_draw_a_key_per_pick_unless_one_is_given() {
    let fleet = Fleet::new(FLEET);
    for balance in ["consistent-hash", "rendezvous", "maglev"] {
        let drawn = fleet.pick(200, &["--balance", balance]);
        assert_eq!(drawn, fleet.pick(200, &["--balance", balance]), "{balance}");
        let distinct: std::collections::BTreeSet<_> = drawn.iter().collect();
        assert_eq!(distinct.len(), 2, "{balance}");
        let keyed = fleet.pick(50, &["--balance", balance, "--key", "user-42"]);
        assert!(keyed.iter().all(|address| *address == keyed[0]), "{balance}");
        let explained = fleet.explain(&["--balance", balance, "--key", "user-42"]);
        assert_eq!(explained.shares().len(), 1, "{balance}");
        let owner = &explained.shares()[0].0;
        assert_eq!(explained.instance(owner)["address"], keyed[0].as_str(), "{balance}");
    }
}

#[test]
fn fleets_and_rules_come_from_stdin_too() {
    let fleet = Fleet::new(FLEET);
    let text = std::fs::read_to_string(fleet.path("fleet.yaml")).unwrap();
    let run = metaroute_with(["route", "explain", "orders", "--from", "-", "--format", "json"], &text);
    assert_eq!((run.status, &run.json()["reason"]), (0, &json!("matched")));
    let from = fleet.from();
    let run = metaroute_with(["route", "pick", "orders", "--from", &from, "-f", "-"], RULES);
    assert_eq!(run.status, 0, "{run:?}");
}

#[test]
fn rules_files_fall_back_and_say_so() {
    let fleet = Fleet::new(FLEET);
    let rules = fleet.file("rules.yaml", RULES);
    fleet.explain(&["--rules", &rules]).check("matched", &[("a", 2.0 / 3.0), ("b", 1.0 / 3.0)]);
    let canary = fleet.explain(&["--rules", &rules, "--req", "flag=canary"]);
    canary.check("fallback:0", &[("a", 1.0)]);
    assert_eq!(canary.json["rule"], "canary");
}

#[test]
fn simulate_shows_exact_shares_side_by_side() {
    let fleet = Fleet::new(FLEET);
    let more = fleet.file(
        "more.yaml",
        "services: [{name: orders, instances: [{id: e, address: \"10.0.3.1:1\", weight: 50, metadata: {version: 3.0}}]}]",
    );
    let run = fleet.route(
        "simulate",
        &["--down", "$self.id == a", "--set-weight", "version == 2.9=150", "--add", &more, "--format", "json"],
    );
    assert_eq!(run.status, 0, "{run:?}");
    let json = run.json();
    assert_eq!((&json["before"]["reason"], &json["after"]["reason"]), (&json!("matched"), &json!("matched")));
    let row = |id: &str| json["instances"].as_array().unwrap().iter().find(|row| row["id"] == id).unwrap().clone();
    assert!((number(&row("a")["before"]) - 2.0 / 3.0).abs() < 1e-9);
    assert_eq!(number(&row("a")["after"]), 0.0);
    assert_eq!(number(&row("b")["after"]), 0.75);
    assert_eq!((&row("e")["before"], number(&row("e")["after"])), (&json!(null), 0.25));

    let none = fleet.route("simulate", &["--down", "exists($self.id)", "--format", "json"]);
    assert_eq!((none.status, &none.json()["after"]["reason"]), (1, &json!("all_unhealthy")));
    let text = fleet.route("simulate", &["--down", "$self.id == a"]);
    assert!(text.stdout.contains("BEFORE") && text.stdout.contains("-66.67 %p"), "{}", text.stdout);
    assert_eq!(fleet.route("simulate", &["--set-weight", "version == 2.9"]).status, 2);
}

#[test]
fn lint_is_clean_or_says_what_is_not() {
    let fleet = Fleet::new(FLEET);
    let rules = fleet.file("rules.yaml", RULES);
    let from = fleet.from();
    let run = metaroute(["route", "lint", "--rules", &rules, "--format", "json"]);
    assert_eq!((run.status, &run.json()["clean"]), (0, &json!(true)), "{run:?}");
    let open = fleet.file("open.yaml", "version: 1\nrules:\n  - {name: x, match: env == prod}\n");
    let run = metaroute(["route", "lint", "--rules", &open, "--format", "json"]);
    assert_eq!(run.status, 1);
    let finding = &run.json()["findings"][0];
    assert_eq!((&finding["code"], &finding["severity"]), (&json!("missing_terminal"), &json!("error")));
    assert_eq!((&finding["rule"], &finding["at"]["line"]), (&json!("x"), &json!(3)));
    let run = metaroute(["route", "lint", "--rules", &rules, "--from", &from, "--service", "orders"]);
    assert!(run.status <= 1, "{run:?}");
    assert_eq!(metaroute(["route", "lint"]).status, 2);
    assert_eq!(metaroute(["route", "lint", "--rule", "a == 1", "--from", &from]).status, 2, "--service is missing");
}

#[test]
fn diff_lists_the_instances_on_which_two_sides_disagree() {
    let fleet = Fleet::new(FLEET);
    let run = fleet.route("diff", &["--rule", "version >= 2.10", "--dialects", "v1,seata", "--format", "json"]);
    assert_eq!(run.status, 1);
    let json = run.json();
    assert_eq!(json["equal"], false);
    let ids: Vec<_> = json["instances"].as_array().unwrap().iter().map(|i| i["id"].as_str().unwrap()).collect();
    // `2.9 >= 2.10` as doubles; `2.11.0…` is no double.
    assert_eq!(ids, ["b", "c", "d"]);
    assert_eq!((&json["instances"][0]["a"]["kept"], &json["instances"][0]["b"]["kept"]), (&json!(false), &json!(true)));

    let old = fleet.file("old.yaml", RULES);
    let run = fleet.route("diff", &["--a", &old, "--b", &old, "--format", "json"]);
    assert_eq!((run.status, &run.json()["equal"]), (0, &json!(true)));
    let new = fleet
        .file("new.yaml", "version: 1\nbalance: random\nrules: [{name: prod, match: env == prod, terminal: fail}]\n");
    let run = fleet.route("diff", &["--a", &old, "--b", &new, "--format", "json"]);
    assert_eq!((run.status, run.json()["instances"].as_array().unwrap().len()), (1, 0));
    assert_eq!(run.json()["shares"].as_array().unwrap().len(), 2, "other shares count as a difference");

    // What the original calls invalid it lets pass.
    let run = fleet.route("diff", &["--rule", "(env == prod || env == dev) && tier == 2", "--dialects", "v1,seata"]);
    assert_eq!(run.status, 1);
    assert!(run.stderr.contains("everything passes there"), "{run:?}");
    assert_eq!(fleet.route("diff", &["--rule", "a == 1"]).status, 2);
    assert_eq!(fleet.route("diff", &["--rule", "a == 1", "--dialects", "v1"]).status, 2);
    assert_eq!(fleet.route("diff", &[]).status, 2);
}

#[test]
fn flags_without_effect_are_mentioned() {
    let fleet = Fleet::new(FLEET);
    let run = fleet.route("explain", &["--key", "x", "--prefer", "zone"]);
    assert_eq!(run.status, 0);
    assert!(
        run.stderr.contains("--key has no effect") && run.stderr.contains("--prefer zone has no effect"),
        "{run:?}"
    );
}
