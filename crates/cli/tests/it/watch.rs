//! `metaroute route watch`: follows the registry and ends on a signal.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::fleet::{Fleet, number};
use crate::run::command;

struct Watching {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Watching {
    fn start(fleet: &Fleet, more: &[&str]) -> Self {
        let mut child = command()
            .args(["route", "watch", "orders", "--from", &fleet.from(), "--format", "ndjson"])
            .args(more)
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

    fn interrupt(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it runs");
        assert!(self.lines.next().is_none(), "nothing comes after the signal");
        self.child.wait().expect("it ends").code()
    }
}

#[test]
fn watch_shows_what_changes_and_ends_on_ctrl_c() {
    let fleet = Fleet::new("{id: a, address: \"h:1\"}\n{id: b, address: \"h:2\"}");
    let mut watching = Watching::start(&fleet, &["--rule", "!exists(old)"]);
    let first = watching.next();
    assert_eq!(
        (&first["event"], &first["state"], &first["reason"]),
        (&json!("snapshot"), &json!("fresh"), &json!("matched"))
    );
    assert_eq!(first["instances"].as_array().unwrap().len(), 2);

    fleet.rewrite("{id: a, address: \"h:1\", metadata: {old: y}}\n{id: c, address: \"h:3\"}");
    let next = watching.next();
    assert_eq!(next["event"], "changed");
    let changes = next["changes"].as_array().unwrap();
    let kinds: Vec<_> = changes.iter().map(|c| (c["id"].as_str().unwrap(), c["change"].as_str().unwrap())).collect();
    assert_eq!(kinds, [("a", "changed"), ("c", "added"), ("b", "removed")]);
    assert_eq!((number(&changes[0]["before"]), number(&changes[0]["after"])), (0.5, 0.0));

    // A bad edit is said, and the last good list stays.
    fleet.replace("services: [");
    let bad = watching.next();
    assert_eq!((&bad["state"], &bad["event"]), (&json!("stale"), &json!("state")));
    assert!(bad["error"].is_string() && bad["instances"].as_array().unwrap().len() == 2, "{bad}");
    assert_eq!(watching.interrupt(), Some(0));
}

/// Also when the service was gone before the registry was: there is no list to keep, but somebody who watches.
#[test]
fn watch_waits_out_what_happens_later() {
    let fleet = Fleet::new("{id: a, address: \"h:1\"}");
    let mut watching = Watching::start(&fleet, &[]);
    assert_eq!(watching.next()["state"], "fresh");
    fleet.replace("services: []");
    assert_eq!(watching.next()["state"], "unknown_service");
    std::fs::remove_file(fleet.path("fleet.yaml")).unwrap();
    let away = watching.next();
    assert_eq!((&away["state"], &away["reason"]), (&json!("unreachable"), &json!("unknown_service")), "{away}");
    assert!(away["error"].is_string(), "{away}");
    fleet.replace("services: [{name: orders, instances: [{id: b, address: \"h:2\"}]}]");
    let back = watching.next();
    assert_eq!((&back["state"], &back["instances"][0]["id"]), (&json!("fresh"), &json!("b")), "{back}");
    assert_eq!(watching.interrupt(), Some(0));
}

#[test]
fn watch_of_nothing_ends_at_once() {
    let fleet = Fleet::new("{id: a, address: \"h:1\"}");
    std::fs::remove_file(fleet.path("fleet.yaml")).unwrap();
    let run = fleet.route("watch", &["--format", "json"]);
    assert_eq!((run.status, &run.error()["code"]), (3, &json!("unreadable")));
}
