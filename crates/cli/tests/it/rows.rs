//! Rows from the terminal: `up` over a data folder, `query`, `import`, `export`, `topology`, roles as processes, and what a
//! killed process leaves behind.

#![allow(clippy::print_stdout, reason = "recovery times are part of what these tests tell")]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use test_support::{Port, wait_until};

use crate::run::{Run, command, metaroute, metaroute_with};

/// A process of ours that said `ready ADDRESS`.
pub(crate) struct Process {
    child: Child,
    address: String,
}

impl Process {
    fn start(arguments: &[&str]) -> Process {
        let mut child = command()
            .args(arguments)
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("metaroute starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("UTF-8");
        let address = line.trim_end().strip_prefix("ready ").unwrap_or_else(|| panic!("{line:?} {arguments:?}"));
        Process { child, address: address.to_owned() }
    }

    pub(crate) fn up(data: &Path, more: &[&str]) -> Process {
        let data = data.display().to_string();
        let mut arguments = vec!["up", "--listen", "127.0.0.1:0", "--data", &data];
        arguments.extend(more);
        let up = Process::start(&arguments);
        up.wait_ready();
        up
    }

    /// Waits until answers are complete; there is no event for it over plain HTTP.
    fn wait_ready(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.run(&["query", "file_metadata", "--allow", "global", "--limit", "1"]).status != 0 {
            assert!(Instant::now() < end, "never ready");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        metaroute(arguments.iter().copied().chain(["--server", &self.address]))
    }

    fn kill(mut self) {
        self.child.kill().expect("it ran");
        self.child.wait().expect("it ends");
    }

    pub(crate) fn end(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it runs");
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test that failed must not leave a server behind; one that ended is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(ids: std::ops::Range<u64>, tenant: u64) -> String {
    ids.map(|id| json!({"file_id": id, "user_id": tenant, "path": format!("/{id}"), "size": id, "created_at": "2024-01-01T00:00:00Z"}).to_string() + "\n")
        .collect()
}

#[test]
fn rows_go_in_and_come_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let up = Process::up(&folder.path().join("data"), &["--groups", "2", "--shards", "3"]);
    let import = metaroute_with(
        ["import", "file_metadata", "-", "--format", "json", "--server", &up.address],
        &lines(0..2_500, 7),
    );
    assert_eq!((import.status, import.json()), (0, json!({"written": 2_500})), "{import:?}");
    // The highest id there is, as a number on the command line and a string in JSON.
    let highest = lines(u64::MAX - 1..u64::MAX, 8);
    assert_eq!(
        metaroute_with(["import", "file_metadata", "-", "--server", &up.address], &highest).stdout,
        "1 rows written\n"
    );

    let page = up.run(&["query", "file_metadata", "--user", "7", "--limit", "3", "--format", "json"]);
    assert_eq!(page.status, 0, "{page:?}");
    let page = page.json();
    assert_eq!((&page["rows"][0]["file_id"], &page["meta"]["path"]), (&json!("2499"), &json!("B")));
    let next = page["next"].as_str().expect("there is more");
    let second =
        up.run(&["query", "file_metadata", "--user", "7", "--limit", "1", "--cursor", next, "--format", "json"]);
    assert_eq!(second.json()["rows"][0]["file_id"], "2496");
    let all = up.run(&["query", "file_metadata", "--user", "7", "--all", "--format", "ndjson", "--fields", "file_id"]);
    assert_eq!((all.status, all.stdout.lines().count()), (0, 2_500));
    let id = (u64::MAX - 1).to_string();
    let by_id = up.run(&["query", "file_metadata", "--id", &id, "--allow", "global", "--format", "json"]);
    assert_eq!(
        (by_id.status, &by_id.json()["rows"][0]["user_id"], &by_id.json()["meta"]["path"]),
        (0, &json!("8"), &json!("CI"))
    );
    let text = up.run(&["query", "file_metadata", "--user", "7", "--where", "size < 3"]);
    assert!(
        text.stdout.contains("/2") && text.stderr.contains("path B") && text.stderr.contains("complete"),
        "{text:?}"
    );

    // Clean answers and clean refusals have their statuses.
    assert_eq!(up.run(&["query", "file_metadata", "--user", "12345"]).status, 0, "an empty list is an answer");
    assert_eq!(up.run(&["query", "file_metadata", "--user", "7", "--id", "99999"]).status, 1);
    assert_eq!(up.run(&["query", "file_metadata"]).status, 4);
    assert_eq!(up.run(&["query", "nothing", "--user", "7"]).status, 2);
    assert_eq!(up.run(&["query", "file_metadata", "--user", "7", "--order", "path"]).status, 2);
    let bad = up.run(&["query", "file_metadata", "--user", "7", "--where", "size <", "--format", "json"]);
    assert_eq!((bad.status, &bad.error()["code"]), (2, &json!("bad_expression")));
    assert_eq!(metaroute(["query", "file_metadata", "--user", "7", "--server", "http://127.0.0.1:1"]).status, 3);
    let line = metaroute_with(
        ["import", "file_metadata", "-", "--format", "json", "--server", &up.address],
        &(lines(0..2_100, 7) + "{oops}\n"),
    );
    assert_eq!((line.status, &line.error()["at"]["line"]), (2, &json!(2_101)), "{line:?}");
    // Lines are the file's, blank ones too, and the message has no other numbers.
    let gaps = metaroute_with(
        ["import", "file_metadata", "-", "--format", "json", "--server", &up.address],
        &format!("{}\n\n\n{{\"file_id\": 1}}\n", lines(0..1, 7)),
    );
    let error = gaps.error();
    assert_eq!((&error["at"]["line"], &error["message"]), (&json!(5), &json!("column `user_id` must have a value")));
    // An empty file is asked about like any other.
    for (store, server, status) in [
        ("file_metadata", up.address.as_str(), 0),
        ("nothing", up.address.as_str(), 2),
        ("file_metadata", "http://127.0.0.1:1", 3),
    ] {
        assert_eq!(metaroute_with(["import", store, "-", "--server", server], "\n").status, status, "{store} {server}");
    }

    // What is exported can be imported.
    let export = up.run(&["export", "file_metadata", "--allow", "global"]);
    assert_eq!((export.status, export.stdout.lines().count()), (0, 2_501), "{}", export.stderr);
    let other = Process::up(&folder.path().join("other"), &[]);
    let import = metaroute_with(["import", "file_metadata", "-", "--server", &other.address], &export.stdout);
    assert_eq!(import.stdout, "2501 rows written\n", "{import:?}");
    let again = other.run(&["export", "file_metadata", "--allow", "global"]);
    assert_eq!(again.stdout, export.stdout);
    assert_eq!((other.end(), up.end()), (Some(0), Some(0)));
}

#[test]
fn a_data_folder_keeps_its_shape_and_its_owner() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let up = Process::up(&data, &["--groups", "1", "--shards", "2"]);
    let path = data.display().to_string();
    let second = metaroute(["up", "--listen", "127.0.0.1:0", "--data", &path, "--format", "json"]);
    assert_eq!((second.status, &second.error()["code"]), (2, &json!("data_in_use")), "{second:?}");
    assert_eq!(up.end(), Some(0));
    let other = metaroute(["up", "--listen", "127.0.0.1:0", "--data", &path, "--shards", "3"]);
    assert_eq!(other.status, 2, "{other:?}");
    assert!(other.stderr.contains("1 group of 2 shards") && other.stderr.contains("1 group of 3 shards"), "{other:?}");
    // Without flags the folder's own shape is used.
    let up = Process::up(&data, &[]);
    let shown = up.run(&["topology", "show"]);
    assert!(shown.stdout.starts_with("1 groups × 2 shards"), "{shown:?}");
    let file = folder.path().join("now.json");
    std::fs::write(&file, up.run(&["topology", "show", "--format", "json"]).stdout).expect("written");
    let file = file.display().to_string();
    assert_eq!(metaroute(["topology", "validate", &file]).status, 0);
    let document = std::fs::read_to_string(&file).expect("written");
    let valid = metaroute_with(["topology", "validate", "-"], &document);
    assert_eq!((valid.status, valid.stdout.contains("valid: ")), (0, true), "{valid:?}");
    let planned = metaroute_with(["topology", "plan", "-", "--server", &up.address], &document);
    assert_eq!((planned.status, planned.stdout.lines().next()), (0, Some("nothing changes")), "{planned:?}");
    assert_eq!(up.run(&["topology", "plan", &file]).stdout.lines().next(), Some("nothing changes"));
    assert_eq!(up.run(&["topology", "apply", &file, "--expect", "9"]).status, 1);
    assert_eq!(up.run(&["topology", "apply", &file]).status, 0);
    let history = up.run(&["topology", "history", "--format", "json"]).json();
    assert_eq!(history["history"].as_array().map(Vec::len), Some(2), "{history}");
    assert_eq!(up.run(&["topology", "rollback", "1"]).status, 0);
}

/// Cases 37 and 38: what was acknowledged survives kill -9, and an export of everything costs no memory to speak of.
#[test]
fn case_37_nothing_acknowledged_is_lost_by_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let mut acknowledged: u64 = 0;
    for round in 0..4_u64 {
        let up = Process::up(&data, &[]);
        let count =
            |up: &Process| up.run(&["export", "file_metadata", "--allow", "global"]).stdout.lines().count() as u64;
        let found = count(&up);
        assert!(found >= acknowledged, "round {round}: {found} rows, {acknowledged} were acknowledged");
        let address = up.address.clone();
        let from = found;
        let written = Arc::new(AtomicU64::new(from));
        let told = Arc::clone(&written);
        let writer = std::thread::spawn(move || {
            let mut last = from;
            // Until the server is gone.
            loop {
                let import = metaroute_with(
                    ["import", "file_metadata", "-", "--server", &address],
                    &lines(last..last + 25, last % 5),
                );
                if import.status != 0 {
                    return last;
                }
                last += 25;
                told.store(last, Ordering::Relaxed);
            }
        });
        // In the middle of writing, however long that takes to begin.
        let writing = wait_until(Duration::from_secs(60), || written.load(Ordering::Relaxed) >= from + 50);
        assert!(writing, "round {round}: nothing is written");
        std::thread::sleep(Duration::from_millis(150));
        let killed = Instant::now();
        up.kill();
        acknowledged = writer.join().expect("no assertion failed");
        let up = Process::up(&data, &[]);
        let recovered = killed.elapsed();
        let found = count(&up);
        assert!((acknowledged..=acknowledged + 25).contains(&found), "{found} rows, {acknowledged} acknowledged");
        println!(
            "round {round}: {acknowledged} rows acknowledged, {found} found, {recovered:?} from the kill to complete answers"
        );
        // Repeating what was not acknowledged repairs it.
        let repeat = metaroute_with(
            ["import", "file_metadata", "-", "--server", &up.address],
            &lines(acknowledged..acknowledged + 25, 1),
        );
        assert_eq!(repeat.status, 0, "{repeat:?}");
        acknowledged += 25;
        assert_eq!(up.end(), Some(0));
    }
    assert!(acknowledged >= 200, "something was written: {acknowledged}");
}

fn resident_kib(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    let peak = status.lines().find(|line| line.starts_with("VmHWM:")).expect("Linux says so");
    peak.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

#[test]
fn case_38_an_export_streams() {
    let folder = tempfile::tempdir().expect("a folder");
    let up = Process::up(&folder.path().join("data"), &[]);
    for part in 0..4 {
        let rows = lines(part * 20_000..(part + 1) * 20_000, part);
        assert_eq!(metaroute_with(["import", "file_metadata", "-", "--server", &up.address], &rows).status, 0);
    }
    let before = resident_kib(&up.child);
    let export = up.run(&["export", "file_metadata", "--allow", "global"]);
    assert_eq!((export.status, export.stdout.lines().count()), (0, 80_000));
    let grown = resident_kib(&up.child) - before;
    // The answer is 14 MB; a server that collected it first would hold all of it as rows, several times that.
    assert!(grown < 32 * 1_024, "{grown} KiB more for {} KiB", export.stdout.len() / 1_024);
}

#[test]
fn a_tree_is_scanned_and_scanned_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let tree = folder.path().join("tree");
    std::fs::create_dir_all(tree.join("photos")).expect("made");
    std::fs::write(tree.join("photos/a.jpg"), b"abc").expect("written");
    std::fs::write(tree.join("photos/b.png"), b"abcd").expect("written");
    std::fs::write(tree.join("readme.md"), b"x").expect("written");
    let root = tree.display().to_string();
    let data = folder.path().join("data");
    let find = |up: &Process, expected: usize| {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let run = up.run(&[
                "query",
                "file_metadata",
                "--allow",
                "global",
                "--format",
                "json",
                "--fields",
                "file_id,path,mime,size",
            ]);
            if run.status == 0 && run.json()["rows"].as_array().is_some_and(|rows| rows.len() == expected) {
                return run.json();
            }
            assert!(Instant::now() < end, "{run:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let up = Process::up(&data, &["--scan", &root, "--scan-tenant", "top-dir", "--scan-hash"]);
    let found = find(&up, 3);
    let paths: Vec<&str> =
        found["rows"].as_array().expect("rows").iter().map(|row| row["path"].as_str().expect("text")).collect();
    assert!(paths.iter().any(|path| path.ends_with("tree/photos/a.jpg")), "{paths:?}");
    let root_files = up.run(&["query", "file_metadata", "--user", "0", "--format", "json"]).json();
    assert_eq!(root_files["rows"][0]["mime"], "text/markdown", "{root_files}");
    assert_eq!(up.end(), Some(0));
    std::fs::remove_file(tree.join("photos/a.jpg")).expect("removed");
    let up = Process::up(&data, &["--scan", &root, "--scan-tenant", "top-dir"]);
    let left = find(&up, 2);
    assert!(!left.to_string().contains("a.jpg"), "{left}");
    let missing = metaroute(["up", "--listen", "127.0.0.1:0", "--scan", "/no/such/folder"]);
    assert_eq!(missing.status, 2, "{missing:?}");
}

/// The services of a router's registry are served as `up` serves its own.
fn serves_the_registry(router: &str) {
    let ask = |path: &str, body: Option<&str>| -> Value {
        let mut curl = std::process::Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", &format!("{router}{path}")]);
        if let Some(body) = body {
            curl.args(["--data", body]);
        }
        let output = curl.output().expect("curl runs");
        assert!(output.status.success(), "{path}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let services = ask("/v1/services", None);
    let service = json!({"name": "metaserver", "state": "fresh", "instances": 2, "usable": 2});
    assert_eq!(services["services"], json!([service]));
    let listed = ask("/v1/services/metaserver/instances", None);
    assert_eq!(listed["instances"].as_array().map(Vec::len), Some(2), "{listed}");
    let rule = r#"{"rule": "shard == s1", "n": 3}"#;
    let picked = ask("/v1/services/metaserver/pick", Some(rule));
    assert_eq!(picked["picks"].as_array().map(Vec::len), Some(3), "{picked}");
    let explained = ask("/v1/services/metaserver/explain", Some(r#"{"rule": "shard == s1"}"#));
    let kept = explained["instances"].as_array().into_iter().flatten().filter(|instance| instance["kept"] == true);
    assert_eq!(kept.count(), 1, "{explained}");
    let document = ask("/openapi.json", None);
    for path in ["", "/{service}/instances", "/{service}/pick", "/{service}/explain"] {
        assert!(document["paths"][format!("/v1/services{path}")].is_object(), "{path}");
    }
    for part in document.to_string().split("\"#/components/schemas/").skip(1) {
        let name = part.split('"').next().expect("a name");
        assert!(document["components"]["schemas"][name].is_object(), "schema {name}");
    }
}

/// Roles as processes: a router over gRPC, shards that are killed and come back, and never a 200 with something missing.
#[test]
fn shards_as_processes_are_killed_and_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let up = Process::up(&data, &["--groups", "1", "--shards", "2"]);
    assert_eq!(metaroute_with(["import", "file_metadata", "-", "--server", &up.address], &lines(0..200, 7)).status, 0);
    assert_eq!(up.end(), Some(0));

    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let shard = |name: &str, listen: &str| {
        let config = write(
            &format!("{name}.yaml"),
            format!(
                "{{group: g0, shard: {name}, listen: '{listen}', data: ./data/shards/g0/{name}, topology: ./data/topology}}"
            ),
        );
        Process::start(&["server", "--role", "shard", "--config", &config])
    };
    // Nobody takes the place of the one that is killed before it is back.
    let (p0, p1) = (Port::reserve(), Port::reserve());
    let s0 = shard("s0", &p0.address().to_string());
    let s1 = shard("s1", &p1.address().to_string());
    let address = |process: &Process| process.address.strip_prefix("grpc://").expect("gRPC").to_owned();
    let (a0, a1) = (address(&s0), address(&s1));
    let instance =
        |shard: &str, at: &str| json!({"address": at, "metadata": {"group": "g0", "shard": shard, "state": "READY"}});
    let fleet = json!({"services": [{"name": "metaserver", "instances": [instance("s0", &a0), instance("s1", &a1)]}]});
    write("fleet.json", fleet.to_string());
    let config = write(
        "router.yaml",
        "{listen: '127.0.0.1:0', topology: ./data/topology, registry: ./fleet.json, timeout: 20s}".to_owned(),
    );
    let router = Process::start(&["server", "--role", "router", "--config", &config]);
    router.wait_ready();

    let page = |router: &Process| {
        router.run(&["query", "file_metadata", "--user", "7", "--limit", "1000", "--format", "json"])
    };
    let whole = |run: &Run| run.json()["rows"].as_array().map(Vec::len) == Some(200);
    assert!(whole(&page(&router)));
    serves_the_registry(&router.address);
    let refused = metaroute_with(
        ["import", "file_metadata", "-", "--format", "json", "--server", &router.address],
        &lines(0..1, 7),
    );
    assert_eq!((refused.status, &refused.error()["code"]), (4, &json!("read_only")), "{refused:?}");

    s1.kill();
    let killed = Instant::now();
    let mut refusals = 0;
    for _ in 0..5 {
        let run = page(&router);
        assert!(run.status == 5 || (run.status == 0 && whole(&run)), "a wrong answer: {run:?}");
        refusals += u32::from(run.status == 5);
    }
    assert!(refusals > 0, "the shard is gone");
    let partial =
        router.run(&["query", "file_metadata", "--user", "7", "--limit", "1000", "--partial", "--format", "json"]);
    assert_eq!(partial.status, 5, "{partial:?}");
    assert_eq!(
        (&partial.json()["meta"]["complete"], partial.json()["rows"].as_array().map(Vec::len)),
        (&json!(false), Some(100))
    );

    let _s1 = shard("s1", &a1);
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let run = page(&router);
        assert!(run.status == 5 || (run.status == 0 && whole(&run)), "a wrong answer: {run:?}");
        if run.status == 0 {
            break;
        }
        assert!(Instant::now() < end, "never complete again");
    }
    println!("{:?} from the kill to complete answers", killed.elapsed());
    assert_eq!((router.end(), s0.end()), (Some(0), Some(0)));
}

#[test]
fn role_configurations_are_printed_and_checked() {
    for role in ["shard", "router"] {
        let printed = metaroute(["server", "--role", role, "--print-config"]);
        assert!(printed.status == 0 && printed.stdout.contains("listen: 127.0.0.1:"), "{printed:?}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("router.yaml");
    std::fs::write(&file, "listen: 127.0.0.1:0\ntimeot: 3s\n").expect("written");
    let run = metaroute(["server", "--role", "router", "--config", &file.display().to_string(), "--format", "json"]);
    let error = run.error();
    assert_eq!((run.status, &error["code"], &error["at"]["line"]), (2, &json!("unknown_key"), &json!(2)), "{run:?}");
    let syncer: Value = metaroute(["server", "--role", "syncer", "--print-config", "--format", "json"]).error();
    assert_eq!(syncer["code"], "unsupported_role");
}
