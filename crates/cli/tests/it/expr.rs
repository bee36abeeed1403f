//! `metaroute expr`.

use serde_json::json;
use test_support::Scratch;

use crate::run::{metaroute, metaroute_with};

#[test]
fn eval_prints_the_answer_and_says_it_by_status() {
    let cases: &[(&[&str], bool)] = &[
        (&["version >= 2.9", "--with", "version=2.10"], true),
        (&["version >= 2.9", "--with", "version=2.10", "--dialect", "seata"], false),
        (&["version == 2.1", "--with", "version=2.10"], false),
        (&["version == 2.1", "--with", "version=2.10", "--dialect", "seata"], true),
        (&["sha == 12345e6", "--with", "sha=12345000000"], false),
        (&["env != dev"], false),
        (&["!(env == dev)"], true),
        (&["a == 1 && (b == 2 || c == 3)", "--with", "a=1", "--with", "c=3"], true),
        (&["zone == $caller.zone", "--with", "zone=a", "--caller", "zone=a"], true),
        (&["zone == $caller.zone", "--with", "zone=a", "--req", "zone=a"], false),
        (&["flag == $req.flag?"], true),
        (&["$self.cluster == hz", "--self", "cluster=hz"], true),
        (&["$self.cluster == hz", "--with", "cluster=hz"], false),
        (&["tags == eu", "--with", "tags=canary, eu", "--type", "tags=set"], true),
        (&["size > 9", "--with", "size=10"], true),
        (&["a == \"x=y\"", "--with", "a=x=y"], true),
        (&["", "--with", "a=1"], true),
        (&["||", "--dialect", "seata"], false),
        (&["&&", "--dialect", "seata"], true),
    ];
    for (args, expected) in cases {
        let run = metaroute(["expr", "eval"].iter().chain(*args));
        assert_eq!(
            (run.status, run.stdout.trim()),
            (i32::from(!expected), if *expected { "true" } else { "false" }),
            "{args:?}"
        );
        let run = metaroute(["expr", "eval"].iter().chain(*args).chain(&["--format", "json"]));
        assert_eq!((run.status, run.json()), (i32::from(!expected), json!({ "value": expected })), "{args:?}");
    }
}

#[test]
fn a_bad_expression_is_status_2_with_a_caret_under_the_column() {
    let run = metaroute(["expr", "eval", "env == blue green"]);
    assert_eq!(run.status, 2);
    assert_eq!(run.stdout, "");
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert!(lines[0].starts_with("error: "), "{run:?}");
    assert_eq!(&lines[1..3], ["  env == blue green", "              ^^^^^"], "{run:?}");
    assert!(run.stderr.contains("hint: a value with spaces needs quotes"), "{run:?}");

    let run = metaroute(["expr", "eval", "env == blue green", "--format", "json"]);
    assert_eq!((run.status, run.stdout.as_str()), (2, ""));
    let error = run.error();
    assert_eq!(error["code"], "bad_expression");
    assert_eq!(error["at"], json!({"line": 1, "column": 13}));
    assert!(error["hint"].as_str().unwrap().contains("quotes"), "{error}");
    assert!(error["expected"].is_array(), "{error}");
}

#[test]
fn columns_count_characters_not_bytes() {
    let error = metaroute(["expr", "check", "ключ == ü )", "--format", "json"]).error();
    assert_eq!(error["at"], json!({"line": 1, "column": 11}));
}

#[test]
fn fmt_is_idempotent() {
    for text in ["not (env='prod' and tier in (1,2))", "a==1||b==2&&!(c!=3)", "  x like \"a*\"  ", ""] {
        let once = metaroute(["expr", "fmt", text]);
        assert_eq!(once.status, 0, "{text}");
        let twice = metaroute(["expr", "fmt", once.stdout.trim_end_matches('\n')]);
        assert_eq!(once.stdout, twice.stdout, "{text}");
    }
    let run = metaroute(["expr", "fmt", "a = 1 and b = 2", "--format", "json"]);
    assert_eq!(run.json(), json!({"canonical": "a == 1 && b == 2"}));
}

#[test]
fn expressions_come_from_files_and_stdin_too() {
    let scratch = Scratch::new("expr-file");
    let path = scratch.path().join("canary.expr");
    std::fs::write(&path, "env == prod\n  && version >=\n").unwrap();
    let file = path.display().to_string();
    let run = metaroute(["expr", "check", "-f", &file, "--format", "json"]);
    assert_eq!(run.status, 2);
    assert_eq!(run.error()["at"]["file"], json!(file));
    assert_eq!(run.error()["at"]["line"], 2);

    let run = metaroute_with(["expr", "fmt", "-f", "-"], "env=prod\n");
    assert_eq!((run.status, run.stdout.as_str()), (0, "env == prod\n"));

    let run = metaroute(["expr", "fmt", "-f", "no-such-file.expr", "--format", "json"]);
    assert_eq!((run.status, &run.error()["code"]), (2, &json!("unreadable")));
}

#[test]
fn check_says_whether_it_is_clean() {
    let run = metaroute(["expr", "check", "env == prod"]);
    assert_eq!((run.status, run.stdout.as_str()), (0, "ok: env == prod\n"));
    let value = metaroute(["expr", "check", "env=prod", "--format", "json"]).json();
    assert_eq!(value["clean"], true);
    assert_eq!(value["canonical"], "env == prod");
    assert!(value["findings"].is_array());
}

#[test]
fn files_of_a_document_format_are_rules_files() {
    let scratch = Scratch::new("expr-rules");
    let path = scratch.path().join("rules.yaml");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    let file = path.display().to_string();
    write("version: 1\nrules:\n  - {name: a, match: \"env = prod and tier in (1,2)\", terminal: fail}\n");
    assert_eq!(metaroute(["expr", "check", "-f", &file]).status, 0);
    let once = metaroute(["expr", "fmt", "-f", &file]);
    assert!(once.stdout.contains("env == prod && tier in (1, 2)"), "{once:?}");
    write(&once.stdout);
    assert_eq!(metaroute(["expr", "fmt", "-f", &file]).stdout, once.stdout, "formatting it again changes nothing");
    write("version: 1\nrules:\n  - name: a\n    match: env ==\n");
    let run = metaroute(["expr", "check", "-f", &file, "--format", "json"]);
    assert_eq!((run.status, &run.error()["code"]), (2, &json!("bad_expression")));
    assert_eq!(run.error()["at"]["line"], 4);
}
