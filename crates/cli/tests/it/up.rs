//! `metaroute up`: the HTTP surface, readiness, errors and the end.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::fleet::{Fleet, number};
use crate::run::{command, metaroute};

struct Up {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: String,
}

/// One answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts a problem and returns it.
    #[track_caller]
    fn problem(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.head.contains("content-type: application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!((&problem["code"], &problem["status"]), (&json!(code), &json!(status)), "{problem}");
        problem
    }
}

impl Up {
    fn start(more: &[&str]) -> Self {
        let mut child = command()
            .args(["up", "--listen", "127.0.0.1:0"])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("metaroute starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("UTF-8");
        let address = line.trim_end().strip_prefix("ready http://").unwrap_or_else(|| panic!("{line:?}")).to_owned();
        Self { child, stdout, address }
    }

    fn send(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    fn call(&self, method: &str, path: &str, body: &str) -> Answer {
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        ))
    }

    fn get(&self, path: &str) -> Answer {
        self.call("GET", path, "")
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, &body.to_string())
    }

    /// Asks again and again until the answer is right; there is no event to wait for over plain HTTP.
    #[track_caller]
    fn wait(&self, path: &str, right: impl Fn(&Answer) -> bool) -> Answer {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let answer = self.get(path);
            if right(&answer) {
                return answer;
            }
            assert!(Instant::now() < end, "{path}: {answer:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("UTF-8");
        assert_eq!(rest, "", "one line on stdout and no more");
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // A test that failed must not leave a server behind; one that ended is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn up_answers_lists_picks_and_explains() {
    let up = Up::start(&[]);
    assert_eq!(up.get("/livez").status, 200);
    up.wait("/readyz", |answer| answer.status == 200);
    let services = up.get("/v1/services").json();
    let names: Vec<_> = services["services"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert!(names.len() >= 3 && names.contains(&"orders"), "{names:?}");

    let instances = up.get("/v1/services/orders/instances").json();
    assert_eq!((&instances["service"], &instances["stale"]), (&json!("orders"), &json!(false)));
    assert!(instances["cursor"].is_string());
    let list = instances["instances"].as_array().unwrap();
    assert!(list.iter().any(|i| i["healthy"] == false) && list.iter().any(|i| number(&i["weight"]) == 0.0));

    let explained = up
        .post(
            "/v1/services/orders/explain",
            &json!({"rule": "version >= 2.10", "caller": {"cluster": "hz"}, "req": {"flag": 1}, "balance": "random"}),
        )
        .json();
    assert_eq!((&explained["outcome"], &explained["reason"]), (&json!("picked"), &json!("matched")));
    let total: f64 = explained["instances"].as_array().unwrap().iter().map(|i| number(&i["probability"])).sum();
    assert!((total - 1.0).abs() < 1e-9, "{explained}");

    let picks = up.post("/v1/services/orders/pick", &json!({"rule": "version >= 2.10", "n": 20, "seed": 7}));
    let again = up.post("/v1/services/orders/pick", &json!({"rule": "version >= 2.10", "n": 20, "seed": 7}));
    assert_eq!(picks.json()["picks"].as_array().unwrap().len(), 20);
    assert_eq!(picks.body, again.body, "repeatable by seed");
    assert!(picks.json()["picks"][0]["address"].is_string());
    let none = up.post("/v1/services/orders/pick", &json!({"rule": "version >= 9"}));
    assert_eq!((none.status, none.json()["reason"].clone()), (200, json!("filtered")));
    let bare = up.call("POST", "/v1/services/orders/pick", "");
    assert_eq!((bare.status, bare.json()["picks"].as_array().unwrap().len()), (200, 1));
    assert_eq!(up.signal(Signal::INT), Some(0));
}

#[test]
fn round_robins_go_on_from_request_to_request() {
    let fleet = Fleet::new("{id: a, address: \"h:1\"}\n{id: b, address: \"h:2\"}\n{id: c, address: \"h:3\"}");
    let up = Up::start(&["--instances", &fleet.from()]);
    up.wait("/readyz", |answer| answer.status == 200);
    let mut seen: Vec<String> = (0..6)
        .map(|_| {
            let answer = up.post("/v1/services/orders/pick", &json!({"balance": "round-robin"}));
            answer.json()["picks"][0]["id"].as_str().unwrap().to_owned()
        })
        .collect();
    seen.sort();
    assert_eq!(seen, ["a", "a", "b", "b", "c", "c"]);
}

#[test]
fn rules_presets_and_preferences_work_as_on_the_command_line() {
    let up = Up::start(&[]);
    up.wait("/readyz", |answer| answer.status == 200);
    let explain = |body: Value| up.post("/v1/services/orders/explain", &body).json();
    let rules = json!({"version": 1, "rules": [{"name": "canary", "match": "canary == y", "mode": "prefer", "terminal": "any"}]});
    assert_eq!(explain(json!({ "rules": rules }))["reason"], "matched");
    let yaml = "version: 1\nrules: [{name: gone, match: canary == z, mode: prefer, terminal: any}]";
    let relaxed = explain(json!({ "rules": yaml }));
    assert_eq!((&relaxed["reason"], &relaxed["rule"]), (&json!("relaxed"), &json!("gone")));
    let preset = json!({"preset": "nacos-cluster", "caller": {"cluster": "bj", "target-version": "2.10"}});
    assert_eq!(explain(preset)["reason"], "cross_cluster");
    let prefer = json!({"prefer": "cluster", "caller": {"cluster": "sh"}});
    let kept: Vec<Value> =
        explain(prefer)["instances"].as_array().unwrap().iter().filter(|i| i["kept"] == true).cloned().collect();
    assert!(!kept.is_empty() && kept.iter().all(|i| i["cluster"] == "sh"), "{kept:?}");
}

#[test]
fn errors_are_problems_with_stable_codes() {
    let up = Up::start(&[]);
    let problem = up.post("/v1/services/orders/pick", &json!({"rule": "version >="})).problem(400, "bad_expression");
    assert_eq!(problem["at"], json!({"line": 1, "column": 11}));
    up.call("POST", "/v1/services/orders/pick", "{\"rule\": ").problem(400, "bad_request");
    for body in [
        json!({"ruel": "a == 1"}),
        json!({"rule": "a == 1", "preset": "nacos-cluster"}),
        json!({"n": 0}),
        json!({"n": 1_000_000}),
        json!({"balance": "fastest"}),
        json!({"preset": "nope"}),
        json!({"dialect": "v9"}),
        json!({"rules": {"version": 1, "ruels": []}}),
        json!({"caller": {"a": [1]}}),
    ] {
        up.post("/v1/services/orders/explain", &body).problem(400, "bad_request");
    }
    up.post("/v1/services/nope/explain", &json!({})).problem(404, "not_found");
    up.post("/v1/services/nope/pick", &json!({})).problem(404, "not_found");
    up.get("/v1/services/nope/instances").problem(404, "not_found");
    up.get("/nope").problem(404, "not_found");
    up.call("DELETE", "/v1/services", "").problem(405, "method_not_allowed");
    let large = format!("{{\"rule\": \"{}\"}}", "a".repeat(1024 * 1024));
    let head = format!(
        "POST /v1/services/orders/pick HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{large}",
        large.len()
    );
    up.send(&head).problem(413, "body_too_large");
}

#[test]
fn every_answer_has_a_request_id() {
    let up = Up::start(&[]);
    let given = up.send("GET /livez HTTP/1.1\r\nhost: h\r\nx-request-id: abc-1\r\nconnection: close\r\n\r\n");
    assert!(given.head.contains("x-request-id: abc-1"), "{given:?}");
    let made = up.get("/livez");
    assert!(made.head.contains("x-request-id: "), "{made:?}");
    let bad = up.send("GET /livez HTTP/1.1\r\nhost: h\r\nx-request-id: a b\r\nconnection: close\r\n\r\n");
    assert!(!bad.head.contains("x-request-id: a b"), "{bad:?}");
}

#[test]
fn each_request_is_logged_once_with_status_latency_and_id() {
    let mut child = command()
        .args(["up", "--listen", "127.0.0.1:0", "--format", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("metaroute starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("UTF-8");
    let ready: Value = serde_json::from_str(&line).expect("JSON");
    let address = ready["ready"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
    let mut stderr = child.stderr.take().expect("a pipe");
    let up = Up { child, stdout, address };
    up.send("GET /livez HTTP/1.1\r\nhost: h\r\nx-request-id: one\r\nconnection: close\r\n\r\n");
    // What probes, scrapers and consoles ask every few seconds is told at level debug, unless it fails.
    for look in ["/livez", "/readyz", "/metrics", "/v1/stats", "/v1/services", "/console/"] {
        up.get(look);
    }
    up.call("POST", "/v1/services/nope/pick", "{}");
    up.get("/v1/services/nope/instances");
    assert_eq!(up.signal(Signal::TERM), Some(0));
    let mut log = String::new();
    stderr.read_to_string(&mut log).expect("UTF-8");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let completed: Vec<&Value> = lines.iter().filter(|line| line["message"] == "request completed").collect();
    assert_eq!(completed.len(), 3, "{log}");
    assert_eq!(
        (&completed[0]["path"], &completed[0]["status"], &completed[0]["request_id"]),
        (&json!("/livez"), &json!(200), &json!("one"))
    );
    assert_eq!((&completed[1]["method"], &completed[1]["status"]), (&json!("POST"), &json!(404)));
    assert!(completed.iter().all(|line| line["latency_us"].is_u64()), "{log}");
}

/// Who looks at the numbers is not among them.
#[test]
fn requests_in_flight_are_those_about_rows() {
    let up = Up::start(&[]);
    assert_eq!(up.get("/v1/stats").json()["in_flight"], 0);
}

#[test]
fn metrics_count_picks_by_reason_and_show_each_service() {
    let up = Up::start(&[]);
    up.wait("/readyz", |answer| answer.status == 200);
    up.post("/v1/services/orders/pick", &json!({"n": 3}));
    up.post("/v1/services/orders/pick", &json!({"rule": "version >= 9"}));
    let relaxed = json!({"rules": {"version": 1, "rules": [{"name": "gone", "match": "a == 1", "mode": "prefer", "terminal": "any"}]}});
    up.post("/v1/services/orders/pick", &relaxed);
    let page = up.get("/metrics");
    assert!(page.head.contains("content-type: application/openmetrics-text"), "{page:?}");
    for line in [
        "metaroute_picks_total{service=\"orders\",reason=\"matched\"} 3",
        "metaroute_picks_total{service=\"orders\",reason=\"relaxed\"} 1",
        "metaroute_no_picks_total{service=\"orders\",reason=\"filtered\"} 1",
        "metaroute_fallbacks_total{service=\"orders\",rule=\"gone\"} 1",
        "metaroute_instances{service=\"orders\"} 6.0",
        "metaroute_instances_usable{service=\"orders\"} 4.0",
        "metaroute_instances_ejected{service=\"orders\"} 0.0",
        "metaroute_rejected_instances_total{service=\"orders\"} 0.0",
        "metaroute_held_push_seconds_total{service=\"orders\"} 0.0",
        "metaroute_http_requests_total{method=\"POST\",route=\"/v1/services/{service}/pick\",status=\"200\"} 3",
    ] {
        assert!(page.body.lines().any(|have| have == line), "{line}\n{}", page.body);
    }
    assert!(page.body.contains("metaroute_snapshot_age_seconds{service=\"orders\"}"), "{}", page.body);
    assert!(page.body.contains("metaroute_http_request_duration_seconds_bucket"), "{}", page.body);
    assert!(page.body.ends_with("# EOF\n"));
}

#[test]
fn openapi_describes_every_path() {
    let up = Up::start(&[]);
    let document = up.get("/openapi.json").json();
    let paths: Vec<&str> = document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    for path in [
        "/livez",
        "/metrics",
        "/openapi.json",
        "/readyz",
        "/v1/services",
        "/v1/services/{service}/explain",
        "/v1/services/{service}/instances",
        "/v1/services/{service}/pick",
    ] {
        assert!(paths.contains(&path), "{path}: {paths:?}");
    }
    assert!(document["components"]["schemas"]["Problem"].is_object());
}

#[test]
fn a_watched_fleet_file_is_followed_and_bad_edits_change_nothing() {
    let fleet = Fleet::new("{id: a, address: \"h:1\"}\n{id: b, address: \"h:2\"}");
    let up = Up::start(&["--instances", &fleet.from()]);
    let path = "/v1/services/orders/instances";
    let count = |answer: &Answer| answer.json()["instances"].as_array().map_or(0, Vec::len);
    up.wait(path, |answer| count(answer) == 2);
    let pick = || up.post("/v1/services/orders/explain", &json!({})).json()["instances"].as_array().unwrap().len();
    assert_eq!(pick(), 2);
    fleet.rewrite("{id: a, address: \"h:1\"}\n{id: b, address: \"h:2\"}\n{id: c, address: \"h:3\"}");
    up.wait(path, |answer| count(answer) == 3);
    assert_eq!(pick(), 3, "deciders follow too");
    fleet.replace("services: [");
    let stale = up.wait(path, |answer| answer.json()["stale"] == true);
    assert_eq!(count(&stale), 3, "{stale:?}");
    assert_eq!(up.get("/readyz").status, 200, "the last good list serves");
}

#[test]
fn services_come_and_go() {
    let fleet = Fleet::new("{id: a, address: \"h:1\"}");
    let up = Up::start(&["--instances", &fleet.from()]);
    fleet.replace("services: [{name: other, instances: [{address: \"h:9\"}]}]");
    up.wait("/v1/services/other/instances", |answer| answer.status == 200);
    up.wait("/v1/services/orders/instances", |answer| answer.status == 404);
}

#[test]
fn bad_configuration_ends_before_a_port_is_bound() {
    let fleet = Fleet::new("{id: a, address: \"h:1\"}");
    let bad = fleet.file("bad.yaml", "services: [{nmae: x}]");
    for (args, status, code) in [
        (&["--listen", "0.0.0.0:0"][..], 2, "listen_without_authentication"),
        (&["--listen", "nonsense"], 2, "bad_value"),
        (&["--instances", "no-such-file.yaml"], 3, "unreadable"),
        (&["--instances", &bad], 2, "unknown_key"),
        (&["--stores", "no-such-file.yaml"], 2, "unreadable"),
        (&["--shrads", "2"], 2, "unknown_argument"),
    ] {
        let run = metaroute(["up"].iter().chain(args).chain(&["--format", "json"]));
        assert_eq!((run.status, run.stdout.as_str()), (status, ""), "{args:?}: {run:?}");
        assert_eq!(run.error()["code"], code, "{args:?}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let run = metaroute(["up", "--listen", &address, "--format", "json"]);
    assert_eq!((run.status, &run.error()["code"]), (2, &json!("cannot_listen")), "{run:?}");
}

#[test]
fn both_signals_drain_and_end_with_status_0() {
    for signal in [Signal::INT, Signal::TERM] {
        let up = Up::start(&[]);
        // An idle connection does not hold it up.
        let _idle = TcpStream::connect(&up.address).unwrap();
        assert_eq!(up.signal(signal), Some(0));
    }
}
