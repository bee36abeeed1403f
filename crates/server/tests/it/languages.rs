//! 64-bit ids, decimals and times survive the way through other languages.
//!
//! JavaScript numbers have 53 bits, jq's are doubles in older versions, and Python reads exact integers but floats for
//! everything with a point. Strings survive all of them; that is why answers write strings.

use std::io::Write as _;
use std::process::{Command, Stdio};

use metaroute_registry::document::Format;
use metaroute_server::stores;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Plan};

const STORE: &str = "stores:
- name: ledger
  id: entry
  tenant: account
  time: at
  columns: {entry: u64, account: u64, change: i64, amount: 'decimal(30,10)', at: 'timestamp(6)', local: 'datetime(3)?', day: date?, raw: bytes?, doc: json?}
  listing: [change, amount]
";

fn entry() -> Value {
    json!({
        "entry": "18446744073709551615", "account": "9007199254740993", "change": "-9223372036854775808",
        "amount": "12345678901234567890.0123456789", "at": "2024-02-29T23:59:59.999999Z",
        "local": "2024-02-29T12:00:00.125", "day": "2024-02-29", "raw": "AP8B", "doc": {"n": 9007199254740993_u64, "s": "\u{e9}"},
    })
}

async fn cluster() -> Cluster {
    let declared = stores::parse("stores.yaml", STORE, Format::Yaml).expect("legal");
    Cluster::new(Plan { stores: stores::with_built_in(declared), ..Plan::of(2, 2) }).await
}

/// Runs the answer of the API through a program and writes back what comes out.
async fn through(program: &str, arguments: &[&str]) {
    let cluster = cluster().await;
    cluster.post("/v1/ledger/rows", json!({"rows": [entry()]})).await.ok();
    let all = json!({"account": "9007199254740993", "fields": ["entry", "account", "change", "amount", "at", "local", "day", "raw", "doc"]});
    let before = cluster.post("/v1/ledger/query", all.clone()).await.ok();
    // Documents inside a JSON column are the language's own business; their large number may change there.
    let mut row = before["rows"][0].clone();
    assert_eq!(row["doc"]["s"], "\u{e9}");
    row["doc"] = json!({"s": "\u{e9}"});
    assert_eq!(row["entry"], "18446744073709551615");
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it was found before");
    child.stdin.take().expect("a pipe").write_all(json!({"rows": [row]}).to_string().as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let back = String::from_utf8(output.stdout).expect("UTF-8");
    cluster.call("DELETE", "/v1/ledger/rows/18446744073709551615?account=9007199254740993", &[], "").await.ok();
    let written = cluster.call("POST", "/v1/ledger/rows", &[], &back).await;
    assert_eq!(written.ok()["written"], 1, "{back}");
    let after = cluster.post("/v1/ledger/query", all).await.ok();
    assert_eq!(after["rows"][0], row, "through {program}");
}

fn program(name: &str) -> Result<String, test_support::Missing> {
    test_support::program(name).map(|path| path.display().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn through_node() {
    let node = test_support::require!(program("node"));
    let script =
        "let t='';process.stdin.on('data',d=>t+=d).on('end',()=>process.stdout.write(JSON.stringify(JSON.parse(t))))";
    through(&node, &["-e", script]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn through_python() {
    let python = test_support::require!(program("python3"));
    through(&python, &["-c", "import json,sys; json.dump(json.load(sys.stdin), sys.stdout)"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn through_jq() {
    let jq = test_support::require!(program("jq"));
    through(&jq, &["-c", "."]).await;
}

/// Every cell as written, in both forms of numbers, and a declared store works like the built-in one.
#[tokio::test(flavor = "multi_thread")]
async fn every_digit_comes_back() {
    let cluster = cluster().await;
    let sent = r#"{"rows": [{"id": 18446744073709551615, "tenant": 9007199254740993, "change": -9223372036854775808,
        "amount": 12345678901234567890.0123456789, "at": "2024-03-01T01:59:59.999999+02:00", "doc": {"n": 1.50,  "m": [1, 2]}}]}"#;
    assert_eq!(cluster.call("POST", "/v1/ledger/rows", &[], sent).await.ok()["written"], 1);
    let path =
        "/v1/ledger/rows/18446744073709551615?account=9007199254740993&fields=entry,account,change,amount,at,doc,local";
    let text = cluster.get(path).await.text;
    let row = "{\"entry\":\"18446744073709551615\",\"account\":\"9007199254740993\",\"change\":\"-9223372036854775808\",\
               \"amount\":\"12345678901234567890.0123456789\",\"at\":\"2024-02-29T23:59:59.999999Z\",\"doc\":{\"n\": 1.50,  \"m\": [1, 2]},\"local\":null}";
    assert!(text.starts_with(&format!("{{\"row\":{row},\"meta\":")), "{text}");
    let text = cluster.get(&format!("{path}&ints=number")).await.text;
    assert!(
        text.contains("\"entry\":18446744073709551615,")
            && text.contains("\"amount\":12345678901234567890.0123456789,"),
        "{text}"
    );
    let sum = cluster.post("/v1/ledger/count", json!({"tenant": "9007199254740993", "sum": "amount"})).await.ok();
    assert_eq!((&sum["count"], &sum["sum"]), (&json!(1), &json!("12345678901234567890.0123456789")));
    for (column, value) in [
        ("change", json!("9223372036854775808")),
        ("amount", json!("1.00000000001")),
        ("at", json!("2024-02-29T23:59:59.9999999Z")),
        ("local", json!("2024-02-29T12:00:00.1234")),
        ("entry", json!(-1)),
        ("at", Value::Null),
    ] {
        let mut wrong = entry();
        wrong[column] = value;
        cluster.post("/v1/ledger/rows", json!({"rows": [wrong]})).await.problem(400, "bad_request");
    }
}
