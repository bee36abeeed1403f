//! `--seata FILE`: an existing configuration, with the original's answers.

use crate::fleet::Fleet;
use crate::run::metaroute;

const SERVERS: &str = "{id: a, address: \"10.0.0.1:8091\", metadata: {version: \"2.9\", weight: 3}}
                       {id: b, address: \"10.0.0.2:8091\", metadata: {version: \"2.10\", weight: 1}}
                       {id: c, address: \"10.0.0.3:8091\", weight: 0}";

fn properties(lines: &[&str]) -> String {
    lines.join("\n")
}

#[test]
fn routing_off_or_absent_is_as_if_we_were_not_there() {
    let fleet = Fleet::new(SERVERS);
    let third = 1.0 / 3.0;
    let all = [("a", third), ("b", third), ("c", third)];
    let rule = [
        "seata.client.routing.routers=metadata-router-1",
        "seata.client.routing.metadata-router-1.expression=version >= 2.10",
    ];
    for (name, lines) in [
        ("absent.properties", &["seata.application-id=shop"][..]),
        ("unset.properties", &rule[..]),
        ("off.properties", &["seata.client.routing.enabled=false", rule[0], rule[1]]),
    ] {
        let file = fleet.file(name, &properties(lines));
        fleet.explain(&["--seata", &file]).check("matched", &all);
    }
}

#[test]
fn routing_on_answers_as_the_original() {
    let fleet = Fleet::new(SERVERS);
    let file = |name: &str, expression: &str, more: &[&str]| {
        let first = format!("seata.client.routing.metadata-router-1.expression={expression}");
        let lines = ["seata.client.routing.enabled=true", "seata.client.routing.routers=metadata-router-1", &first];
        fleet.file(name, &properties(&[&lines[..], more].concat()))
    };
    // Doubles: 2.9 is above 2.10.
    let double = file("double.properties", "version >= 2.5", &[]);
    fleet.explain(&["--seata", &double]).check("matched", &[("a", 1.0)]);
    // Nothing matches: the router is ignored unless its fallback is off.
    let nothing = file("nothing.properties", "version >= 9", &[]);
    assert_eq!(fleet.explain(&["--seata", &nothing]).shares().len(), 3);
    let strict = file("strict.properties", "version >= 9", &["seata.client.routing.metadata-router-1.fallback=false"]);
    fleet.explain(&["--seata", &strict]).check("filtered", &[]);
    // Mixed logic is invalid there, and what is invalid lets everything pass.
    let mixed = file("mixed.properties", "version == 1 && (a == 1 || b == 2)", &[]);
    assert_eq!(fleet.explain(&["--seata", &mixed]).shares().len(), 3);
}

#[test]
fn weights_count_for_the_weighted_balancer_only() {
    let fleet = Fleet::new(SERVERS);
    let weighted = fleet.file("weighted.properties", "seata.client.load-balance.type=WeightedRandomLoadBalance");
    fleet.explain(&["--seata", &weighted]).check("matched", &[("a", 0.6), ("b", 0.2), ("c", 0.2)]);
    let plain = fleet.file("plain.properties", "seata.application-id=shop");
    fleet
        .explain(&["--seata", &plain, "--balance", "weighted-random"])
        .check("matched", &[("a", 0.6), ("b", 0.2), ("c", 0.2)]);
}

#[test]
fn the_owner_of_a_transaction_is_found_by_its_xid() {
    let fleet = Fleet::new(SERVERS);
    let file = fleet.file("plain.properties", "seata.application-id=shop");
    fleet.explain(&["--seata", &file, "--xid", "10.0.0.2:8091:2612345"]).check("affinity", &[("b", 1.0)]);
    let picks = fleet.pick(20, &["--seata", &file, "--xid", "10.0.0.2:8091:2612345"]);
    assert!(picks.iter().all(|address| address == "10.0.0.2:8091"), "{picks:?}");
}

#[test]
fn a_mapped_group_stands_for_its_cluster() {
    let fleet = Fleet::new(SERVERS);
    let file = fleet.file("group.properties", "seata.service.vgroup-mapping.shop_group=orders");
    let from = fleet.from();
    let run = metaroute(["route", "explain", "shop_group", "--from", &from, "--seata", &file, "--format", "json"]);
    assert_eq!(run.status, 0, "{run:?}");
    assert_eq!(run.json()["service"], "shop_group");
    assert_eq!(run.json()["instances"].as_array().unwrap().len(), 3);
}
