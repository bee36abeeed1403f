//! The cases of public bug reports that a command line can reach; the numbers are those of the case collection.

use std::collections::BTreeMap;

use crate::fleet::Fleet;

/// T01: a matched subset without a usable host.
#[test]
fn t01_unhealthy_subset_falls_back() {
    let fleet = Fleet::new(
        "{id: mk1, address: \"h:1\", healthy: false, metadata: {ring: canary}}
         {id: mk2, address: \"h:2\", metadata: {ring: stable}}
         {id: mk3, address: \"h:3\", metadata: {ring: stable}}",
    );
    let rules = |min: &str| {
        format!(
            "version: 1\nrules: [{{name: ring, match: ring == canary, min_usable: {min}, on_empty: [{{match: ring == stable}}], terminal: fail}}]"
        )
    };
    let aware = fleet.file("aware.yaml", &rules("1"));
    let explained = fleet.explain(&["--rules", &aware]);
    explained.check("fallback:0", &[("mk2", 0.5), ("mk3", 0.5)]);
    let stages = explained.json["stages"].as_array().unwrap();
    let stage = stages.iter().find(|s| s["name"] == "rule:ring").unwrap();
    assert_eq!((stage["matched"].as_u64(), stage["usable"].as_u64()), (Some(1), Some(0)));
    let unaware = fleet.file("unaware.yaml", &rules("0"));
    fleet.explain(&["--rules", &unaware]).check("all_unhealthy", &[]);
}

/// T02: one rule's policy must not swallow another's.
#[test]
fn t02_each_rule_keeps_its_own_fallback() {
    let fleet = Fleet::new(
        "{id: a, address: \"h:1\", metadata: {tag: x}}
         {id: b, address: \"h:2\", metadata: {canary: real}}",
    );
    let rules = fleet.file(
        "rules.yaml",
        "version: 1
rules:
  - {name: canary, when: exists($req.canary), match: canary == $req.canary, mode: prefer, terminal: any}
  - {name: both, when: exists($req.canary) && exists($req.tag), match: canary == $req.canary && tag == $req.tag, terminal: fail}
",
    );
    fleet.explain(&["--rules", &rules, "--req", "canary=ghost"]).check("relaxed", &[("a", 0.5), ("b", 0.5)]);
    fleet.explain(&["--rules", &rules, "--req", "canary=ghost", "--req", "tag=x"]).check("filtered", &[]);
}

/// T04: the default subset is empty too.
#[test]
fn t04_a_chain_ends_in_its_terminal() {
    let fleet = Fleet::new("{id: q1, address: \"h:1\", metadata: {stage: beta}}");
    let rules = |terminal: &str| {
        format!(
            "version: 1\nrules: [{{name: r, match: stage == gold, mode: prefer, on_empty: [{{match: stage == prod}}], terminal: {terminal}}}]"
        )
    };
    let any = fleet.file("any.yaml", &rules("any"));
    fleet.explain(&["--rules", &any]).check("relaxed", &[("q1", 1.0)]);
    let fail = fleet.file("fail.yaml", &rules("fail"));
    fleet.explain(&["--rules", &fail]).check("filtered", &[]);
}

/// T05: flagged to the canary, unflagged never, flagged to the others when it is down.
#[test]
fn t05_three_state_canary() {
    let with = |canary: bool, others: bool| {
        Fleet::new(&format!(
            "{{id: c1, address: \"h:1\", healthy: {canary}, metadata: {{canary: y}}}}
             {{id: s1, address: \"h:2\", healthy: {others}}}
             {{id: s2, address: \"h:3\", healthy: {others}}}"
        ))
    };
    let rules = "version: 1
rules:
  - {name: flagged, when: $req.flag == y, match: canary == y, mode: prefer, on_empty: [{lacking_all: [canary]}], terminal: fail}
  - {name: unflagged, when: '!($req.flag == y)', match: '!exists(canary)', terminal: fail}
";
    let up = with(true, true);
    let file = up.file("rules.yaml", rules);
    up.explain(&["--rules", &file, "--req", "flag=y"]).check("matched", &[("c1", 1.0)]);
    up.explain(&["--rules", &file]).check("matched", &[("s1", 0.5), ("s2", 0.5)]);
    let down = with(false, true);
    let file = down.file("rules.yaml", rules);
    down.explain(&["--rules", &file, "--req", "flag=y"]).check("fallback:0", &[("s1", 0.5), ("s2", 0.5)]);
    let alone = with(true, false);
    let file = alone.file("rules.yaml", rules);
    let explained = alone.explain(&["--rules", &file]);
    assert_eq!(explained.status, 1, "{}", explained.json);
    assert!(explained.picked().is_empty());
}

/// T06: a request without tag reaches untagged instances only.
#[test]
fn t06_untagged_requests_stay_untagged() {
    let tagged = "{id: a1, address: \"h:1\", metadata: {tag: grey}}
                  {id: a2, address: \"h:2\", metadata: {tag: blue}}";
    let fleet = Fleet::new(&format!("{tagged}\n{{id: a3, address: \"h:3\"}}"));
    fleet.explain(&["--rule", "!exists(tag)"]).check("matched", &[("a3", 1.0)]);
    Fleet::new(tagged).explain(&["--rule", "!exists(tag)"]).check("filtered", &[]);
}

/// T07: the caller's tag must not colour providers.
#[test]
fn t07_contexts_stay_apart() {
    let fleet = Fleet::new("{id: b1, address: \"h:1\", metadata: {tag: qa}}\n{id: b2, address: \"h:2\"}");
    let rules = fleet.file(
        "rules.yaml",
        "version: 1\nrules: [{name: tag, match: tag == $caller.tag, mode: prefer, on_empty: [{lacking_all: [tag]}], terminal: fail}]",
    );
    let explained = fleet.explain(&["--rules", &rules, "--caller", "tag=dev"]);
    explained.check("fallback:0", &[("b2", 1.0)]);
    assert_eq!(explained.instance("b2")["metadata"], serde_json::json!({}));
}

/// T08: lacking all keys and lacking any of them are two things.
#[test]
fn t08_lacking_all_and_lacking_any() {
    let fleet = Fleet::new(
        "{id: d1, address: \"h:1\", metadata: {set: 1}}
         {id: d2, address: \"h:2\", metadata: {set: 2, lane: y}}
         {id: d3, address: \"h:3\"}",
    );
    for (word, expected) in [("lacking_all", &[("d3", 1.0)][..]), ("lacking_any", &[("d1", 0.5), ("d3", 0.5)])] {
        let rules = fleet.file(
            "rules.yaml",
            &format!("version: 1\nrules: [{{name: r, match: set == 0 && lane == x, on_empty: [{{{word}: [set, lane]}}], terminal: fail}}]"),
        );
        fleet.explain(&["--rules", &rules]).check("fallback:0", expected);
    }
}

/// T09: a missing key is false and no error.
#[test]
fn t09_missing_keys() {
    let fleet = Fleet::new("{id: e1, address: \"h:1\", metadata: {rack: r1}}\n{id: e2, address: \"h:2\"}");
    fleet.explain(&["--rule", "rack == r1"]).check("matched", &[("e1", 1.0)]);
    fleet.explain(&["--rule", "!(rack == r1)"]).check("matched", &[("e2", 1.0)]);
    fleet.explain(&["--rule", "rack != r1"]).check("filtered", &[]);
}

/// T11: a rule without condition matches everything, and lint says so.
#[test]
fn t11_empty_condition() {
    let fleet = Fleet::new("{id: a, address: \"h:1\"}\n{id: b, address: \"h:2\"}");
    fleet.explain(&["--rule", ""]).check("matched", &[("a", 0.5), ("b", 0.5)]);
    let run = crate::run::metaroute(["route", "lint", "--rule", "", "--format", "json"]);
    assert!(run.stdout.contains("matches_everything"), "{run:?}");
}

/// T12: `terminal: fail` is final, and its status is not that of a bad rule.
#[test]
fn t12_no_forced_default() {
    let fleet = Fleet::new("{id: a, address: \"h:1\"}");
    fleet.explain(&["--rule", "lane == x"]).check("filtered", &[]);
    assert_eq!(fleet.route("pick", &["--rule", "lane == x"]).status, 1);
    assert_eq!(fleet.route("pick", &["--rule", "lane =="]).status, 2);
}

/// T14: two conditions are an AND, not a chain that gives up.
#[test]
fn t14_and_is_not_a_chain() {
    let fleet = Fleet::new(
        "{id: f1, address: \"h:1\", metadata: {zone: east, version: 2.1}}
         {id: f2, address: \"h:2\", metadata: {zone: west, version: 9.0}}",
    );
    fleet.explain(&["--rule", "zone == east && version >= 9"]).check("filtered", &[]);
}

/// T15: versions are ordered as versions.
#[test]
fn t15_versions() {
    let fleet = Fleet::new(
        "{id: g1, address: \"h:1\", metadata: {version: \"2.9\"}}
         {id: g2, address: \"h:2\", metadata: {version: \"2.10\"}}
         {id: g3, address: \"h:3\", metadata: {version: 2.10.0-rc.1}}
         {id: g4, address: \"h:4\", metadata: {version: v2.11+build7}}
         {id: g5, address: \"h:5\", metadata: {version: 2.3.1}}
         {id: g6, address: \"h:6\", metadata: {version: latest}}",
    );
    for (rule, expected) in
        [("version >= 2.10", &["g2", "g4"][..]), ("version > 2.9", &["g2", "g3", "g4"]), ("version == 2.10", &["g2"])]
    {
        assert_eq!(fleet.explain(&["--rule", rule]).picked(), expected, "{rule}");
    }
}

/// T16: host names and IPv6 addresses are as good as IPv4.
#[test]
fn t16_address_forms() {
    let fleet = Fleet::new(
        "{id: k1, address: \"quill.internal:80\"}
         {id: k2, address: \"10.1.2.3:80\"}
         {id: k3, address: \"[fd00::7]:80\"}",
    );
    let third = 1.0 / 3.0;
    fleet.explain(&[]).check("matched", &[("k1", third), ("k2", third), ("k3", third)]);
    let hosts: std::collections::BTreeSet<String> = fleet.pick(100, &[]).into_iter().collect();
    assert!(hosts.contains("[fd00::7]:80") && hosts.len() == 3, "{hosts:?}");
}

/// T17: all weights zero is no pick, not a panic, whatever the balancer.
#[test]
fn t17_all_weights_zero() {
    let fleet = Fleet::new("{id: m1, address: \"h:1\", weight: 0}\n{id: m2, address: \"h:2\", weight: 0}");
    for balance in [
        "weighted-random",
        "random",
        "round-robin",
        "smooth-weighted-round-robin",
        "consistent-hash",
        "rendezvous",
        "maglev",
        "least-active",
        "peak-ewma",
        "xid",
    ] {
        fleet.explain(&["--balance", balance]).check("all_zero_weight", &[]);
        assert_eq!(fleet.route("pick", &["-n", "1000", "--balance", balance]).status, 1, "{balance}");
    }
    let uniform = fleet.file("uniform.yaml", "version: 1\nall_zero: uniform\nrules: []\n");
    fleet.explain(&["--rules", &uniform]).check("all_zero_uniform", &[("m1", 0.5), ("m2", 0.5)]);
}

/// T20: weights as they are written.
#[test]
fn t20_weights_on_their_way() {
    let fleet = Fleet::new(
        "{id: zero, address: \"h:1\", weight: 0}
         {id: none, address: \"h:2\"}
         {id: half, address: \"h:3\", weight: 0.5}
         {id: text, address: \"h:4\", weight: abc}
         {id: minus, address: \"h:5\", weight: -3}",
    );
    let explained = fleet.explain(&[]);
    explained.check("matched", &[("half", 0.2), ("none", 0.4), ("text", 0.4)]);
    assert!(!explained.json.to_string().contains("minus"), "it was left out");
    let run = fleet.route("explain", &[]);
    assert!(run.stderr.contains("`abc`") && run.stderr.contains("-3"), "{}", run.stderr);
}

/// T23: any weight decides, not the first.
#[test]
fn t23_any_weight_decides() {
    let fleet = Fleet::new(
        "{id: a, address: \"h:1\"}
         {id: b, address: \"h:2\"}
         {id: c, address: \"h:3\", weight: 98}",
    );
    fleet.explain(&[]).check("matched", &[("a", 0.01), ("b", 0.01), ("c", 0.98)]);
    let third = fleet.pick(10_000, &[]).iter().filter(|address| *address == "h:3").count();
    assert!((9_700..=9_900).contains(&third), "{third}");
}

/// T27 and the golden vector: weights 5, 1, 1.
#[test]
fn t27_smooth_sequence() {
    let fleet = Fleet::new(
        "{id: a, address: \"h:1\", weight: 5}
         {id: b, address: \"h:2\"}
         {id: c, address: \"h:3\"}",
    );
    let names = BTreeMap::from([("h:1", 'a'), ("h:2", 'b'), ("h:3", 'c')]);
    let picks = fleet.pick(14, &["--balance", "smooth-weighted-round-robin"]);
    let sequence: String = picks.iter().map(|address| names[address.as_str()]).collect();
    assert_eq!(sequence, "aabacaaaabacaa");
}

/// T34: overflow out of the own zone with factor 1.4.
#[test]
fn t34_overflow() {
    for (healthy, share) in [(100, 1.0), (72, 1.0), (71, 0.994), (50, 0.70), (25, 0.35), (0, 0.0)] {
        let own = (0..100).map(|i| format!("{{address: \"own:{}\", zone: z1, healthy: {}}}", i + 1, i < healthy));
        let other = (0..100).map(|i| format!("{{address: \"other:{}\", zone: z2}}", i + 1));
        let fleet = Fleet::new(&own.chain(other).collect::<Vec<_>>().join("\n"));
        let explained = fleet.explain(&["--prefer", "zone", "--caller", "zone=z1"]);
        let own: f64 = explained.shares().iter().filter(|(id, _)| id.starts_with("own")).map(|(_, p)| p).sum();
        assert!((own - share).abs() < 5e-4, "{healthy}: {own}");
    }
}

/// T37: nothing in my zone.
#[test]
fn t37_nothing_in_my_zone() {
    let fleet = Fleet::new("{id: a, address: \"h:1\", zone: z1}\n{id: b, address: \"h:2\", zone: z2}");
    let open = fleet.explain(&["--prefer", "zone", "--caller", "zone=z9"]);
    assert_eq!((open.status, open.shares().len()), (0, 2), "{}", open.json);
    let strict = fleet.file("strict.yaml", "version: 1\nprefer: {zone: {strict: true}}\nrules: []\n");
    let strict = fleet.explain(&["--rules", &strict, "--caller", "zone=z9"]);
    assert_eq!((strict.status, strict.shares().len()), (1, 0), "{}", strict.json);
}

/// T40: panic is counted in the subset, and no health flag is rewritten.
#[test]
fn t40_panic_in_the_subset() {
    let lines = (0..100).map(|i| {
        let rare = i < 4;
        let healthy = if rare { i == 0 } else { i < 98 };
        format!(
            "{{id: i{i:02}, address: \"h:{}\", healthy: {healthy}, metadata: {{ring: {}}}}}",
            i + 1,
            if rare { "rare" } else { "common" }
        )
    });
    let fleet = Fleet::new(&lines.collect::<Vec<_>>().join("\n"));
    let rules =
        |ring: &str| format!("version: 1\npanic: 50%\nrules: [{{name: r, match: ring == {ring}, terminal: fail}}]");
    let rare = fleet.file("rare.yaml", &rules("rare"));
    let explained = fleet.explain(&["--rules", &rare]);
    explained.check("panic", &[("i00", 0.25), ("i01", 0.25), ("i02", 0.25), ("i03", 0.25)]);
    assert_eq!(explained.instance("i01")["healthy"], false);
    let common = fleet.file("common.yaml", &rules("common"));
    let explained = fleet.explain(&["--rules", &common]);
    assert_eq!((explained.reason(), explained.shares().len()), ("matched", 94));
}

/// The preset on its own terms.
#[test]
fn nacos_cluster_preset() {
    let fleet = Fleet::new(
        "{id: a, address: \"h:1\", cluster: hz, metadata: {version: \"2.1\"}}
         {id: b, address: \"h:2\", cluster: sh, metadata: {version: \"2.10\"}}
         {id: c, address: \"h:3\", cluster: hz, metadata: {version: \"2.10\"}}",
    );
    let preset = |more: &[&str]| fleet.explain(&[&["--preset", "nacos-cluster"], more].concat());
    preset(&["--caller", "cluster=hz", "--caller", "target-version=2.10"]).check("matched", &[("c", 1.0)]);
    preset(&["--caller", "cluster=bj", "--caller", "target-version=2.10"])
        .check("cross_cluster", &[("b", 0.5), ("c", 0.5)]);
    // Text, not versions: 2.1 is not 2.10 and 2.10.0 is not 2.10 either.
    preset(&["--caller", "target-version=2.10.0"]).check("filtered", &[]);
    preset(&["--caller", "cluster=hz", "--caller", "target-version= "]).check("matched", &[("a", 0.5), ("c", 0.5)]);
    let third = 1.0 / 3.0;
    preset(&[]).check("matched", &[("a", third), ("b", third), ("c", third)]);
    // A cluster of the caller alone prefers nothing.
    fleet.explain(&["--caller", "cluster=hz"]).check("matched", &[("a", third), ("b", third), ("c", third)]);
}
