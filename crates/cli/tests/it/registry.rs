//! `metaroute registry`, on a fleet file and on a real etcd.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use test_support::certificate::Certificate;
use test_support::etcd::Etcd;
use test_support::redis::Redis;
use test_support::{Port, Scratch, require};

use crate::fleet::Fleet;
use crate::run::{Run, command, metaroute};

fn registry(command: &str, more: &[&str]) -> Run {
    metaroute(["registry", command].iter().copied().chain(more.iter().copied()).chain(["--format", "json"]))
}

/// A command in the foreground that prints JSON lines.
struct Foreground {
    child: Child,
    lines: Receiver<String>,
}

/// A command that has nothing to say is no reason to wait for ever.
const LINE_WITHIN: Duration = Duration::from_secs(120);

impl Foreground {
    fn start(args: &[&str]) -> Self {
        let mut child = command()
            .arg("registry")
            .args(args)
            .args(["--format", "json"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("metaroute starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = sync_channel(1_024);
        // Ends with the output, or with who reads.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok()));
        Self { child, lines }
    }

    fn next(&mut self) -> Value {
        let line = self.lines.recv_timeout(LINE_WITHIN).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }

    /// The next line of this kind.
    fn until(&mut self, event: &str) -> Value {
        loop {
            let line = self.next();
            if line["event"] == event {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    fn end(mut self) -> Option<i32> {
        let end = self.lines.recv_timeout(LINE_WITHIN);
        assert_eq!(end, Err(RecvTimeoutError::Disconnected), "nothing comes after the end");
        self.child.wait().expect("it ends").code()
    }
}

#[test]
fn a_fleet_file_is_listed_and_shown() {
    let fleet = Fleet::new("{id: b, address: \"h:2\", weight: 0}\n{id: a, address: \"h:1\", metadata: {v: 2}}");
    let from = fleet.from();
    let list = registry("list", &[&from]);
    assert_eq!((list.status, list.json()), (0, json!({"services": [{"name": "orders"}]})));
    let shown = registry("instances", &[&from, "orders"]);
    assert_eq!((shown.status, &shown.json()["stale"]), (0, &json!(false)));
    let ids: Vec<_> = shown.json()["instances"].as_array().unwrap().iter().map(|i| i["id"].clone()).collect();
    assert_eq!(ids, ["a", "b"], "by address");
    let none = registry("instances", &[&from, "nothing"]);
    assert_eq!(
        (none.status, &none.json()["reason"], &none.json()["instances"]),
        (1, &json!("unknown_service"), &json!([]))
    );
    fleet.rewrite("");
    fleet.replace("services: [{name: orders, instances: []}]");
    let empty = registry("instances", &[&from, "orders"]);
    assert_eq!((empty.status, &empty.json()["reason"]), (1, &json!("empty_registry")));
}

#[test]
fn a_fleet_file_is_only_read() {
    let fleet = Fleet::new("{id: a, address: \"h:1\"}");
    let from = fleet.from();
    for (command, more) in [
        ("register", vec![from.as_str(), "orders", "h:1"]),
        ("register", vec![&from, "orders", "h:1", "--once"]),
        ("deregister", vec![&from, "orders", "h:1"]),
        ("update", vec![&from, "orders", "h:1", "--weight", "2"]),
    ] {
        let run = registry(command, &more);
        assert_eq!((run.status, &run.error()["code"]), (2, &json!("unsupported")), "{command}: {run:?}");
    }
}

#[test]
fn watching_a_fleet_file_prints_a_line_for_every_change() {
    let fleet = Fleet::new("{id: a, address: \"h:1\"}\n{id: b, address: \"h:2\"}");
    let from = fleet.from();
    let mut watch = Foreground::start(&["watch", &from, "orders"]);
    let first = watch.next();
    assert_eq!((&first["event"], &first["state"]), (&json!("state"), &json!("fresh")));
    let added: Vec<_> = (0..2).map(|_| watch.next()["instance"]["id"].clone()).collect();
    assert_eq!(added, ["a", "b"]);
    fleet.rewrite("{id: a, address: \"h:1\", weight: 3}\n{id: c, address: \"h:3\"}");
    let lines: Vec<_> = (0..3).map(|_| watch.next()).collect();
    let kinds: Vec<_> =
        lines.iter().map(|l| (l["event"].as_str().unwrap(), l["instance"]["id"].as_str().unwrap())).collect();
    assert_eq!(kinds, [("removed", "b"), ("changed", "a"), ("added", "c")]);
    assert_eq!((&lines[1]["before"]["weight"], &lines[1]["instance"]["weight"]), (&json!(1), &json!(3)));
    fleet.replace("services: [");
    let bad = watch.next();
    assert_eq!((&bad["event"], &bad["state"]), (&json!("state"), &json!("stale")));
    assert!(bad["error"].is_string());
    watch.signal(Signal::INT);
    assert_eq!(watch.end(), Some(0));
}

#[test]
fn what_cannot_be_reached_used_or_understood_has_its_own_status() {
    // Nobody listens here.
    let port = Port::reserve();
    let down = format!("etcd://127.0.0.1:{port}");
    for (command, more) in [
        ("list", vec![down.as_str()]),
        ("instances", vec![&down, "s"]),
        ("watch", vec![&down, "s"]),
        ("register", vec![&down, "s", "h:1"]),
        ("deregister", vec![&down, "s", "h:1"]),
        ("update", vec![&down, "s", "h:1", "--weight", "2"]),
    ] {
        let run = registry(command, &more);
        assert_eq!((run.status, &run.error()["code"]), (3, &json!("registry_unreachable")), "{command}: {run:?}");
    }
    let route = metaroute(["route", "explain", "s", "--from", &down, "--format", "json"]);
    assert_eq!((route.status, &route.error()["code"]), (3, &json!("registry_unreachable")));
    for (args, code) in [
        (vec!["list", "etcd://h?tttl=3s"], "bad_registry_url"),
        (vec!["list", "ectd://h"], "bad_registry_url"),
        (vec!["list", "memory:"], "unsupported_registry"),
        (vec!["register", &down, "s", "nowhere"], "bad_value"),
        (vec!["register", &down, "s", "h:1", "--weight", "-1"], "bad_value"),
        (vec!["register", &down, "s", "h:1", "--meta", "novalue"], "bad_value"),
        (vec!["update", &down, "s", "h:1"], "missing_argument"),
        (vec!["register", &down, "s", "h:1", "--once"], "unsupported"),
    ] {
        let run = registry(args[0], &args[1..]);
        assert_eq!((run.status, &run.error()["code"]), (2, &json!(code)), "{args:?}: {run:?}");
    }
    // A secret of an address never shows.
    let secret = format!("etcd://root:hunter2@127.0.0.1:{port}");
    let run = registry("list", &[&secret]);
    assert!(!format!("{run:?}").contains("hunter2"), "{run:?}");
}

#[test]
fn an_instance_lives_in_etcd_as_long_as_its_command() {
    let etcd = require!(Etcd::start(&[]));
    let url = format!("etcd://{}?ttl=5s", etcd.address());
    let mut watch = Foreground::start(&["watch", &url, "default"]);
    let mut owner = Foreground::start(&[
        "register",
        &url,
        "default",
        "10.0.0.7:8091",
        "--meta",
        "version=2.3",
        "--weight",
        "5",
        "--zone",
        "a",
        "--drain",
        "20s",
    ]);
    let registered = owner.next();
    assert_eq!(
        (&registered["event"], &registered["id"], &registered["service"]),
        (&json!("registered"), &json!("10.0.0.7:8091"), &json!("default"))
    );
    assert_eq!(watch.until("added")["instance"]["metadata"]["version"], "2.3");

    let shown = registry("instances", &[&url, "default"]);
    let instance = &shown.json()["instances"][0];
    assert_eq!((shown.status, &instance["weight"], &instance["zone"]), (0, &json!(5), &json!("a")));
    let again = registry("instances", &[&url, "default"]).json();
    assert_eq!(again["instances"], shown.json()["instances"], "looking changes nothing");
    assert!(again["cursor"].is_string());
    assert_eq!(registry("list", &[&url]).json(), json!({"services": [{"name": "default"}]}));

    // Another process changes it; it stays its owner's.
    let updated = registry("update", &[&url, "default", "10.0.0.7:8091", "--meta", "lane=blue", "--unset", "version"]);
    assert_eq!(updated.status, 0, "{updated:?}");
    let changed = watch.until("changed");
    assert_eq!(
        (&changed["instance"]["metadata"]["lane"], &changed["instance"]["metadata"]["version"]),
        (&json!("blue"), &Value::Null)
    );
    assert_eq!(changed["instance"]["weight"], 5);
    let explained = metaroute(["route", "pick", "default", "--from", &url, "--rule", "lane == blue"]);
    assert_eq!((explained.status, explained.stdout.trim()), (0, "10.0.0.7:8091"));
    let missing = registry("update", &[&url, "default", "10.0.0.8:8091", "--weight", "0"]);
    assert_eq!((missing.status, &missing.error()["code"]), (1, &json!("unknown_instance")));

    // Draining: weight 0 is there before it goes. Who follows may see both at once; etcd remembers both.
    owner.signal(Signal::TERM);
    assert_eq!(owner.next()["event"], "draining");
    assert_eq!(owner.next()["event"], "deregistered");
    assert_eq!(owner.end(), Some(0));
    let then = |revision: u64| etcd.ctl(&["get", "", "--prefix", "--rev", &revision.to_string()]);
    let now: Value = serde_json::from_str(&etcd.ctl(&["get", "", "--prefix", "-w", "json"])).expect("JSON");
    let now = now["header"]["revision"].as_u64().expect("a number");
    assert_eq!(then(now).trim(), "");
    assert!((2..now).any(|revision| then(revision).contains("metaroute-weight=0\n")), "{}", then(now - 1));
    let removed = loop {
        let line = watch.next();
        match line["event"].as_str() {
            Some("changed") => assert_eq!(line["instance"]["weight"], 0, "{line}"),
            _ => break line,
        }
    };
    assert_eq!((&removed["event"], &removed["instance"]["id"]), (&json!("removed"), &json!("10.0.0.7:8091")));
    assert_eq!(registry("instances", &[&url, "default"]).status, 1);
    watch.signal(Signal::INT);
    assert_eq!(watch.end(), Some(0));
}

#[test]
fn an_instance_is_taken_away_from_etcd_by_hand() {
    let etcd = require!(Etcd::start(&[]));
    let url = format!("etcd://{}?ttl=5s", etcd.address());
    let mut owner = Foreground::start(&["register", &url, "default", "10.0.0.7:8091"]);
    owner.until("registered");
    let gone = registry("deregister", &[&url, "default", "10.0.0.7:8091"]);
    assert_eq!((gone.status, &gone.json()["deregistered"]), (0, &json!(1)));
    let again = registry("deregister", &[&url, "nobody", "10.0.0.7:8091"]);
    assert_eq!((again.status, &again.json()["deregistered"]), (0, &json!(0)));
    // Its owner is alive and puts it back.
    owner.until("registered");
    owner.signal(Signal::INT);
    assert_eq!(owner.until("deregistered")["address"], "10.0.0.7:8091");
    assert_eq!(owner.end(), Some(0));
}

/// The check of a name in a report.
fn check<'r>(report: &'r Value, name: &str) -> &'r Value {
    let checks = report["checks"].as_array().expect("checks");
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn the_doctor_says_what_is_wrong_and_how_to_mend_it() {
    let fleet = Fleet::new("{id: a, address: \"h:1\"}");
    let good = registry("doctor", &[&fleet.from()]);
    assert_eq!((good.status, &good.json()["ok"]), (0, &json!(true)), "{good:?}");
    fleet.rewrite("{id: a, address: \"h:1\", weight: 0}\n{id: b, address: \"nowhere\"}");
    let doubtful = registry("doctor", &[&fleet.from(), "orders"]);
    assert_eq!(doubtful.status, 1, "{doubtful:?}");
    assert_eq!(check(&doubtful.json(), "service")["status"], "warning");
    assert_eq!(check(&doubtful.json(), "layout")["status"], "warning");
    let port = Port::reserve();
    let down = registry("doctor", &[&format!("etcd://root:hunter2@127.0.0.1:{port}")]);
    assert_eq!((down.status, &down.json()["ok"]), (3, &json!(false)));
    assert!(check(&down.json(), "server")["hint"].is_string() && check(&down.json(), "access")["status"] == "error");
    assert_eq!(check(&down.json(), "secrets")["status"], "warning");
    assert!(!down.stdout.contains("hunter2"));
    // Said once, in words, and not as the client's own structures.
    let refused = check(&down.json(), "access")["message"].as_str().unwrap().to_owned();
    assert!(refused.ends_with("Connection refused (os error 111)") && !refused.contains("tonic"), "{refused}");
    assert_eq!(registry("doctor", &["etcd://h?tttl=3s"]).status, 2);
}

#[test]
fn the_doctor_probes_a_real_etcd() {
    let etcd = require!(Etcd::start(&[]));
    let run = registry("doctor", &[&format!("etcd://{}?ttl=3s", etcd.address()), "--probe"]);
    let report = run.json();
    // Nobody registered there yet, which is worth a word and no fault.
    assert_eq!((run.status, &check(&report, "access")["status"]), (0, &json!("ok")), "{report}");
    assert!(check(&report, "access")["hint"].as_str().unwrap().starts_with("nothing was registered yet"), "{report}");
    let missed = registry("doctor", &[&format!("etcd://{}", etcd.address()), "orders"]);
    assert_eq!((missed.status, &check(&missed.json(), "service")["status"]), (1, &json!("warning")), "{missed:?}");
    let probe = check(&report, "probe");
    assert_eq!(probe["status"], "ok", "{report}");
    assert!(probe["message"].as_str().unwrap().contains("an update is seen after"), "{probe}");
    let expiry = check(&report, "expiry");
    assert_eq!(expiry["status"], "ok", "{report}");
    assert!(expiry["message"].as_str().unwrap().contains("whose owner was killed is gone after"), "{expiry}");
    assert_eq!(etcd.ctl(&["get", "--prefix", "", "--keys-only"]).trim(), "", "nothing is left behind");
}

/// Over TLS too, where the server tells the time to who asks.
#[test]
fn the_doctor_compares_clocks_over_tls() {
    let scratch = Scratch::new("doctor-tls");
    let certificate = require!(Certificate::issue(scratch.path()));
    let redis = require!(Redis::start_tls(&certificate));
    let address = redis.tls_address().expect("a port for it");
    let run = registry("doctor", &[&format!("rediss://{address}?ca={}", certificate.ca.display())]);
    let report = run.json();
    assert_eq!(check(&report, "clock")["status"], "ok", "{report}");
}

#[test]
fn a_seata_configuration_names_registry_cluster_and_metadata() {
    let etcd = require!(Etcd::start(&[]));
    let fleet = Fleet::new("{id: a, address: \"h:1\"}");
    let lines = [
        "seata.registry.type=etcd3".to_owned(),
        format!("seata.registry.etcd3.server-addr=http://{}", etcd.address()),
        "seata.registry.etcd3.cluster=hz".to_owned(),
        "seata.registry.metadata.version=2.3".to_owned(),
        "seata.service.vgroup-mapping.shop=hz".to_owned(),
        "seata.client.routing.enabled=true".to_owned(),
        "seata.client.routing.routers=metadata-router-1".to_owned(),
        "seata.client.routing.metadata-router-1.expression=version >= 2.3".to_owned(),
    ];
    let file = fleet.file("application.properties", &lines.join("\n"));
    let mut owner = Foreground::start(&["register", "10.0.0.7:8091", "--seata", &file, "--meta", "lane=blue"]);
    let registered = owner.next();
    assert_eq!((&registered["event"], &registered["service"]), (&json!("registered"), &json!("hz")));
    // A client with the same file finds it by its transaction service group.
    let explained = metaroute(["route", "explain", "shop", "--seata", &file, "--format", "json"]);
    assert_eq!(explained.status, 0, "{explained:?}");
    let instance = &explained.json()["instances"][0];
    assert_eq!(
        (&instance["address"], &instance["metadata"]),
        (&json!("10.0.0.7:8091"), &json!({"lane": "blue", "version": "2.3"}))
    );
    owner.signal(Signal::TERM);
    assert_eq!(owner.next()["event"], "deregistered");
    assert_eq!(owner.end(), Some(0));
    // Addresses in the configuration itself are a list that does not change, for the clusters that have one.
    let listed =
        "registry { type = \"file\" }\nservice { vgroupMapping.shop = \"hz\"\n hz.grouplist = \"10.0.0.9:8091\" }";
    let listed = fleet.file("file.conf", listed);
    let run = metaroute(["route", "pick", "shop", "--seata", &listed, "--format", "json"]);
    assert_eq!((run.status, &run.json()["picks"][0]["address"]), (0, &json!("10.0.0.9:8091")), "{run:?}");
    let run = metaroute(["route", "pick", "other", "--seata", &listed, "--format", "json"]);
    assert_eq!((run.status, &run.error()["code"]), (2, &json!("unsupported_registry")), "{run:?}");
    let run = metaroute(["route", "explain", "shop", "--format", "json"]);
    assert_eq!((run.status, &run.error()["code"]), (2, &json!("missing_argument")), "{run:?}");
    // A misspelt type is named, and is not the default one.
    let misspelt = fleet.file("registry.conf", "registry { type = \"nacso\" }");
    let run = metaroute(["route", "explain", "shop", "--seata", &misspelt, "--format", "json"]);
    let error = run.error();
    assert_eq!((run.status, &error["message"]), (2, &json!("unknown Seata registry type `nacso`")), "{run:?}");
    assert!(error["expected"].as_array().unwrap().contains(&json!("nacos")), "{run:?}");
}

#[test]
fn several_registries_are_one() {
    let one = Fleet::new("{id: a, address: \"h:1\"}");
    let two = Fleet::new("{id: b, address: \"h:2\"}\n{id: c, address: \"H:1\"}");
    let (first, second) = (one.from(), two.from());
    let ids = |how: &str| {
        let run = metaroute([
            "route",
            "explain",
            "orders",
            "--from",
            &first,
            "--from",
            &second,
            "--combine",
            how,
            "--format",
            "json",
        ]);
        assert_eq!(run.status, 0, "{run:?}");
        let json = run.json();
        json["instances"].as_array().unwrap().iter().map(|i| i["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids("merged"), ["a", "b"], "c is a under another name");
    assert_eq!(ids("failover"), ["a"]);
    std::fs::remove_file(&first).unwrap();
    assert_eq!(ids("failover"), ["b", "c"]);
    std::fs::remove_file(&second).unwrap();
    let run = metaroute(["route", "pick", "orders", "--from", &format!("{first},file://{second}"), "--format", "json"]);
    assert_eq!(run.status, 3, "{run:?}");
}

#[test]
fn a_list_kept_on_disk_is_shown_while_the_registry_is_down() {
    let etcd = require!(Etcd::start(&[]));
    let fleet = Fleet::new("{id: a, address: \"h:1\"}");
    let url = format!("etcd://{}", etcd.address());
    let instances = |more: &[&str]| {
        let output = command()
            .args(["registry", "instances", &url, "default", "--format", "json"])
            .args(more)
            .env("XDG_CACHE_HOME", fleet.path("cache"))
            .output()
            .expect("metaroute runs");
        let json = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
        (output.status.code(), json)
    };
    let mut owner = Foreground::start(&["register", &url, "default", "10.0.0.7:8091"]);
    owner.until("registered");
    let (status, fresh) = instances(&["--cached"]);
    assert_eq!((status, &fresh["stale"]), (Some(0), &json!(false)));
    owner.signal(Signal::INT);
    assert_eq!(owner.until("deregistered")["event"], "deregistered");
    drop(owner);
    drop(etcd);
    assert_eq!(instances(&[]).0, Some(3), "only when it was asked for");
    let (status, stale) = instances(&["--cached"]);
    assert_eq!((status, &stale["stale"], &stale["instances"]), (Some(0), &json!(true), &fresh["instances"]));
    assert!(stale["age_seconds"].is_number());
}
