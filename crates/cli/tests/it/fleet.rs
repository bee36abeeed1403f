//! Fleet and rules files in a scratch folder.

use std::path::PathBuf;

use serde_json::Value;
use test_support::Scratch;

use crate::run::{Run, metaroute};

/// A scratch folder with a fleet file of one service, `orders`.
pub(crate) struct Fleet {
    scratch: Scratch,
}

impl Fleet {
    /// `instances` is YAML list content, one instance a line.
    pub(crate) fn new(instances: &str) -> Self {
        let fleet = Self { scratch: Scratch::new("fleet") };
        fleet.rewrite(instances);
        fleet
    }

    /// Replaces the fleet as editors do: a new file under the old name.
    pub(crate) fn rewrite(&self, instances: &str) {
        let lines: Vec<String> =
            instances.lines().map(str::trim).filter(|l| !l.is_empty()).map(|l| format!("      - {l}\n")).collect();
        self.replace(&format!("services:\n  - name: orders\n    instances:\n{}", lines.concat()));
    }

    /// The same with the text of the whole file; no reader sees half of it.
    pub(crate) fn replace(&self, text: &str) {
        let next = self.path("fleet.yaml.next");
        std::fs::write(&next, text).expect("write the fleet");
        std::fs::rename(&next, self.path("fleet.yaml")).expect("replace the fleet");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// A further file beside the fleet; its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("write a file");
        path.display().to_string()
    }

    pub(crate) fn from(&self) -> String {
        self.path("fleet.yaml").display().to_string()
    }

    /// `metaroute route COMMAND orders --from FLEET …`
    pub(crate) fn route(&self, command: &str, more: &[&str]) -> Run {
        let from = self.from();
        metaroute(["route", command, "orders", "--from", &from].iter().copied().chain(more.iter().copied()))
    }

    pub(crate) fn explain(&self, more: &[&str]) -> Explained {
        let run = self.route("explain", &[more, &["--format", "json"]].concat());
        Explained { status: run.status, json: run.json() }
    }

    /// Addresses of `n` seeded picks.
    pub(crate) fn pick(&self, n: usize, more: &[&str]) -> Vec<String> {
        let n = n.to_string();
        let run = self.route("pick", &[more, &["-n", &n, "--seed", "1"]].concat());
        assert_eq!(run.status, 0, "{run:?}");
        run.stdout.lines().map(str::to_owned).collect()
    }
}

/// The answer of `explain --format json`.
#[derive(Debug)]
pub(crate) struct Explained {
    pub(crate) status: i32,
    pub(crate) json: Value,
}

impl Explained {
    pub(crate) fn reason(&self) -> &str {
        self.json["reason"].as_str().expect("a reason")
    }

    /// Probabilities by id, those above 0 only.
    pub(crate) fn shares(&self) -> Vec<(String, f64)> {
        let all = self.json["instances"].as_array().expect("instances");
        all.iter()
            .map(|i| (i["id"].as_str().expect("an id").to_owned(), number(&i["probability"])))
            .filter(|(_, share)| *share > 0.0)
            .collect()
    }

    /// Ids of the instances that can be picked.
    pub(crate) fn picked(&self) -> Vec<String> {
        self.shares().into_iter().map(|(id, _)| id).collect()
    }

    pub(crate) fn instance(&self, id: &str) -> &Value {
        let all = self.json["instances"].as_array().expect("instances");
        all.iter().find(|i| i["id"] == id).expect("the instance")
    }

    /// Asserts reason, status and exact shares, in id order.
    #[track_caller]
    pub(crate) fn check(&self, reason: &str, shares: &[(&str, f64)]) {
        assert_eq!(self.reason(), reason, "{}", self.json);
        assert_eq!(self.status, i32::from(shares.is_empty()), "{}", self.json);
        let have = self.shares();
        assert_eq!(have.len(), shares.len(), "{have:?}");
        for ((id, share), (wanted, expected)) in have.iter().zip(shares) {
            assert_eq!(id, wanted, "{have:?}");
            assert!((share - expected).abs() < 1e-9, "{have:?}");
        }
    }
}

/// The digits as written: the workspace keeps them.
pub(crate) fn number(value: &Value) -> f64 {
    value.to_string().parse().expect("a number")
}
