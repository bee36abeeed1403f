//! `metaroute registry`, on a fleet file and on a real etcd.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use test_support::etcd::Etcd;
use test_support::require;

use crate::fleet::Fleet;
use crate::run::{Run, command, metaroute};

fn registry(command: &str, more: &[&str]) -> Run {
    metaroute(["registry", command].iter().copied().chain(more.iter().copied()).chain(["--format", "json"]))
}

/// A command in the foreground that prints JSON lines.
struct Foreground {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Foreground {
    fn start(args: &[&str]) -> Self {
        let mut child = command()
            .arg("registry")
            .args(args)
            .args(["--format", "json"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("metaroute starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> Value {
        let line = self.lines.next().expect("a line").expect("UTF-8");
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
        assert!(self.lines.next().is_none(), "nothing comes after the end");
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
    std::fs::write(fleet.path("fleet.yaml"), "services: [{name: orders, instances: []}]").unwrap();
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
    std::fs::write(fleet.path("fleet.yaml"), "services: [").unwrap();
    let bad = watch.next();
    assert_eq!((&bad["event"], &bad["state"]), (&json!("state"), &json!("stale")));
    assert!(bad["error"].is_string());
    watch.signal(Signal::INT);
    assert_eq!(watch.end(), Some(0));
}

#[test]
fn what_cannot_be_reached_used_or_understood_has_its_own_status() {
    // Nobody listens here.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
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

    // Draining: weight 0 is seen before it goes.
    owner.signal(Signal::TERM);
    assert_eq!(owner.next()["event"], "draining");
    assert_eq!(owner.next()["event"], "deregistered");
    assert_eq!(owner.end(), Some(0));
    assert_eq!(watch.until("changed")["instance"]["weight"], 0);
    assert_eq!(watch.until("removed")["instance"]["id"], "10.0.0.7:8091");
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
