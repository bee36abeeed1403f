//! `metaroute route import`: what a translated rule answers, and what is not translated.

use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::run::{Run, metaroute, metaroute_with};

fn import(origin: &str, text: &str) -> (Run, Value) {
    let run = metaroute_with(["route", "import", origin, "-", "--format", "json"], text);
    let json = run.json();
    (run, json)
}

/// Imports and asks which of the instances each request may reach.
#[track_caller]
fn check(origin: &str, text: &str, instances: &str, requests: &[(&[&str], &[&str])]) {
    let (run, json) = import(origin, text);
    assert_eq!(run.status, 0, "{run:?}");
    let fleet = Fleet::new(instances);
    let rules = fleet.file("rules.yaml", json["rules"].as_str().expect("rules"));
    let lint = metaroute(["route", "lint", "--rules", &rules]);
    assert!(!lint.stdout.contains("error["), "{}", lint.stdout);
    for (request, expected) in requests {
        let explained = fleet.explain(&[&["--rules", &rules], *request].concat());
        assert_eq!(explained.picked(), *expected, "{request:?} {}", explained.json);
    }
}

#[test]
fn kubernetes_selectors_keep_their_meaning_where_a_label_is_missing() {
    let instances = "{id: a, address: \"h:1\", metadata: {app: web, env: prod, tier: 4}}
                     {id: b, address: \"h:2\", metadata: {app: web, env: dev, tier: 4}}
                     {id: c, address: \"h:3\", metadata: {app: web, tier: 30}}
                     {id: d, address: \"h:4\", metadata: {app: web, tier: 3}}
                     {id: e, address: \"h:5\", metadata: {app: web, gpu: '', tier: 9}}
                     {id: f, address: \"h:6\", metadata: {app: '01', tier: 9}}";
    check(
        "kubernetes",
        "kind: Deployment
metadata: {name: web}
spec:
  selector:
    matchLabels: {app: web}
    matchExpressions:
      - {key: env, operator: NotIn, values: [dev, test]}
      - {key: gpu, operator: DoesNotExist}
      - {key: tier, operator: Gt, values: ['3']}
",
        instances,
        &[(&[], &["a", "c"])],
    );
    check("kubernetes", "app in (web, api),env!=dev,!gpu,tier", instances, &[(&[], &["a", "c", "d"])]);
    check("kubernetes", "app notin (web)", instances, &[(&[], &["f"])]);
    check("kubernetes", "kind: Service\nspec: {selector: {app: 1}}\n", instances, &[(&[], &[])]);
}

#[test]
fn bexpr_filters_keep_their_meaning_where_a_key_is_missing() {
    let instances = "{id: a, address: \"h:1\", metadata: {version: \"2.3\", tags: [canary, eu], sha: 1ab2}}
                     {id: b, address: \"h:2\", metadata: {version: \"2.3.0\", tags: [eu]}}
                     {id: c, address: \"h:3\"}";
    let cases: &[(&str, &[&str])] = &[
        ("Meta.version == \"2.3\"", &["a"]),
        ("Meta[\"version\"] != \"2.3\"", &["b", "c"]),
        ("\"canary\" in Tags", &["a"]),
        ("\"canary\" not in Tags and Meta.version is not empty", &["b"]),
        ("ServiceTags contains canary or not Meta.version is not empty", &["a", "c"]),
        ("Meta.sha matches `ab`", &["a"]),
        ("Meta.sha not matches \"^ab\"", &["a", "b", "c"]),
        ("Meta.version contains \"3.0\"", &["b"]),
        ("version in Meta", &["a", "b"]),
        ("ServiceID == c", &["c"]),
        ("ServicePort == 2 or ServicePort == 3", &["b", "c"]),
        ("version == \"2.3\" or version is empty", &["a", "c"]),
    ];
    for (filter, expected) in cases {
        check("bexpr", filter, instances, &[(&[], expected)]);
    }
}

#[test]
fn dubbo_tag_routers_send_tagged_and_untagged_requests_where_the_original_does() {
    let router = |force: bool| {
        format!(
            "force: {force}
key: shop
tags:
  - {{name: gray, addresses: ['10.0.0.1:20880']}}
  - {{name: blue}}
  - {{name: dev, match: [{{key: env, value: {{prefix: dev-}}}}]}}
"
        )
    };
    let instances = "{id: gray, address: \"10.0.0.1:20880\"}
                     {id: blue, address: \"10.0.0.2:20880\", metadata: {dubbo.tag: blue}}
                     {id: dev, address: \"10.0.0.3:20880\", metadata: {env: dev-7}}
                     {id: red, address: \"10.0.0.4:20880\", metadata: {dubbo.tag: red}}
                     {id: plain, address: \"10.0.0.5:20880\"}";
    let tagged = |tag: &'static str| -> [String; 2] { ["--req".into(), format!("dubbo.tag={tag}")] };
    let (gray, blue, dev, red, ghost) = (tagged("gray"), tagged("blue"), tagged("dev"), tagged("red"), tagged("ghost"));
    let words = |pair: &'static [String; 2]| -> Vec<&'static str> { pair.iter().map(String::as_str).collect() };
    let leak = |pair: [String; 2]| -> &'static [String; 2] { Box::leak(Box::new(pair)) };
    let (gray, blue, dev, red, ghost) =
        (words(leak(gray)), words(leak(blue)), words(leak(dev)), words(leak(red)), words(leak(ghost)));
    check(
        "dubbo",
        &router(false),
        instances,
        &[
            (&gray, &["gray"]),
            (&blue, &["blue"]),
            (&dev, &["dev"]),
            (&red, &["red"]),
            (&ghost, &["plain"]),
            (&[], &["plain", "red"]),
        ],
    );
    let gone = "{id: blue, address: \"10.0.0.2:20880\", metadata: {dubbo.tag: blue}}
                {id: plain, address: \"10.0.0.5:20880\"}";
    check("dubbo", &router(false), gone, &[(&gray, &["plain"])]);
    check("dubbo", &router(true), gone, &[(&gray, &[]), (&ghost, &["plain"])]);
}

#[test]
fn dubbo_condition_routers() {
    let instances = "{id: a, address: \"10.0.0.1:20880\", metadata: {region: hz, env: gray}}
                     {id: b, address: \"10.0.0.2:20881\", metadata: {region: hz}}
                     {id: c, address: \"10.0.1.1:20880\", metadata: {region: sh}}";
    let one = |condition: &str, force: bool| format!("force: {force}\nkey: app\nconditions: ['{condition}']\n");
    let cases: &[(&str, bool, &[&str], &[&str])] = &[
        ("=> env != gray", true, &[], &["b", "c"]),
        ("=> region = $region", true, &["--caller", "region=sh"], &["c"]),
        ("=> region = $region", true, &[], &[]),
        ("=> region = $region", false, &[], &["a", "b", "c"]),
        ("method=find* => address=*:20880", true, &["--req", "method=findUser"], &["a", "c"]),
        ("method=find* => address=*:20880", true, &["--req", "method=save"], &["a", "b", "c"]),
        ("method!=save => host=10.0.0.*", true, &[], &["a", "b"]),
        ("host=10.9.9.9 =>", true, &["--caller", "host=10.9.9.9"], &[]),
        ("attachments[grade]=gold => region=sh,bj", true, &["--req", "grade=gold"], &["c"]),
        ("=> region=h* & region!=hz", true, &[], &[]),
    ];
    for (condition, force, request, expected) in cases {
        check("dubbo", &one(condition, *force), instances, &[(request, expected)]);
    }
}

#[test]
fn what_has_no_counterpart_is_listed_and_status_1() {
    for (origin, text, what) in [
        ("dubbo", "key: a\nconditions: ['arguments[0]=x => env=a']\n", "arguments[0]"),
        ("dubbo", "kind: VirtualService\nspec: {}\n", "VirtualService"),
        (
            "dubbo",
            "conditions: [{from: {match: ''}, to: [{match: a=b, weight: 1}, {match: a=c, weight: 9}]}]",
            "condition-1",
        ),
        ("kubernetes", "kind: Pod\nmetadata: {name: p}\n", "Pod p"),
        ("kubernetes", "spec: {selector: {matchExpressions: [{key: a, operator: Near, values: [b]}]}}", "Near"),
        ("bexpr", "Node == x", "Node"),
        ("bexpr", "any Tags as t { t == \"x\" }", "any"),
    ] {
        let (run, json) = import(origin, text);
        assert_eq!(run.status, 1, "{text}: {run:?}");
        let lost = json["untranslated"].as_array().unwrap();
        assert_eq!(lost.len(), 1, "{text}: {json}");
        assert!(lost[0]["what"].as_str().unwrap().contains(what), "{text}: {json}");
        assert!(!lost[0]["why"].as_str().unwrap().is_empty());
    }
    let run = metaroute_with(["route", "import", "dubbo", "-"], "key: a\nconditions: ['arguments[0]=x => env=a']\n");
    assert!(run.stdout.contains("\n# does not translate"), "{run:?}");
}

#[test]
fn what_cannot_be_read_is_status_2() {
    for (origin, text) in
        [("dubbo", "a: [b"), ("bexpr", "Meta.a === b"), ("bexpr", "(Meta.a == b"), ("kubernetes", "{a: ")]
    {
        let run = metaroute_with(["route", "import", origin, "-", "--format", "json"], text);
        assert_eq!((run.status, run.stdout.as_str()), (2, ""), "{text}: {run:?}");
        assert!(run.error()["at"]["line"].is_u64(), "{run:?}");
    }
    let run = metaroute(["route", "import", "dubbo", "no-such-file.yaml", "--format", "json"]);
    assert_eq!((run.status, &run.error()["code"]), (2, &json!("unreadable")));
}
