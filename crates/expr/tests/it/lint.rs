//! What lint finds, and what it must not claim.

use std::collections::BTreeMap;

use metaroute_expr::{Dialect, Expr, Finding, Inventory, LintInput, Parsed, Severity, Type, lint};

fn types(pairs: &[(&str, &str)]) -> BTreeMap<String, Type> {
    pairs.iter().map(|(key, word)| ((*key).to_owned(), word.parse().expect("a type"))).collect()
}

fn fleet(instances: &[&str]) -> Inventory {
    let mut inventory = Inventory::new();
    for instance in instances {
        let pairs = instance.split(", ").filter(|pair| !pair.is_empty());
        inventory.add(pairs.map(|pair| {
            let (key, value) = pair.split_once('=').expect("key=value");
            (key, Parsed::text(value))
        }));
    }
    inventory
}

fn findings(text: &str, declared: &[(&str, &str)], inventory: Option<&Inventory>) -> Vec<Finding> {
    let expr = Expr::parse(text).unwrap_or_else(|error| panic!("{}", error.render(text)));
    lint(&expr, &LintInput { types: &types(declared), inventory })
}

fn codes(text: &str) -> Vec<&'static str> {
    findings(text, &[], None).iter().map(|finding| finding.code).collect()
}

fn codes_with(text: &str, inventory: &Inventory) -> Vec<&'static str> {
    findings(text, &[], Some(inventory)).iter().map(|finding| finding.code).collect()
}

fn seata(text: &str, inventory: Option<&Inventory>) -> Vec<Finding> {
    let expr = Expr::parse_as(text, Dialect::Seata).expect("the original accepts it");
    lint(&expr, &LintInput { types: &BTreeMap::new(), inventory })
}

#[test]
fn nothing_to_say() {
    for text in [
        "env == prod",
        "version >= 2.3 && version < 3",
        "version >= 2.3 || env == dev",
        "tier in (1, 2) && !exists(canary)",
        "zone == $caller.zone && a == $req.a?",
        "name like \"web-*\" && name like \"*-1\"",
        "exists(a) || b == 1",
    ] {
        assert_eq!(codes(text), [] as [&str; 0], "{text}");
    }
}

#[test]
fn routing_t11_an_empty_expression_matches_everything() {
    let found = findings("", &[], None);
    assert_eq!(
        (found[0].code, found[0].message.as_str()),
        ("empty_expression", "an empty expression matches everything")
    );
    assert_eq!(codes(" \n"), ["empty_expression"]);
}

#[test]
fn unsatisfiable() {
    for text in [
        "version >= 3 && version < 2",
        "version > 2.3 && version < 2.3.0",
        "version in range \"^2\" && version >= 3",
        "version in range \"^2\" && version in range \"~1.2\"",
        "env == prod && env == dev",
        "env in (a, b) && env == c",
        "env == prod && !exists(env)",
        "tier > 1 && tier < 1.0",
        "tier > 2 && tier <= 2.000",
        "tier == 1 && tier == 2 && zone == a",
        "a == 1 && !(a == 1)",
        "(a == 1 || b == 2) && a not in (1) && b != 2",
        "name like \"x*\" && !(name like \"x*\")",
        "exists(a) && !exists(a)",
        "!(a == $req.x || !(a == $req.x))",
    ] {
        let found = findings(text, &[], None);
        assert!(found.iter().any(|f| f.code == "unsatisfiable" && f.severity == Severity::Error), "{text}: {found:?}");
    }
    assert!(findings("tags == a && tags != a", &[("tags", "set")], None).iter().any(|f| f.code == "unsatisfiable"));
    let at = "at > 2024-01-01 && at < 2023-01-01";
    assert!(findings(at, &[("at", "time")], None).iter().any(|f| f.code == "unsatisfiable"));
}

#[test]
fn satisfiable_after_all() {
    for text in [
        "version > 2.3 && version < 2.4",
        "version > 2.3 && version < 2.3.0.1",
        "version >= 2.3-rc.1 && version < 2.3",
        "version > 2.3-rc.1 && version < 2.3-rc.2",
        "version in range \"^2\" && version > 2.9",
        "version in range \"^2\" && version < 2.0.1",
        "tier > 1 && tier < 1.0001",
        "tier > -1 && tier < 0",
        "tier > -2 && tier < -1.9999",
        "tier >= 0 && tier <= 0",
        "a == 1 && a == 1.0",
        "a == 1 && a != \"1\"",
        "name like \"x*\" && !(name like \"y*\")",
        "a == $req.x && a != $req.y",
        "env != prod && env != dev",
        "env != other && env != \"\"",
    ] {
        assert!(!codes(text).contains(&"unsatisfiable"), "{text}: {:?}", codes(text));
    }
    // A set may contain both.
    assert!(!findings("tags == a && tags == b", &[("tags", "set")], None).iter().any(|f| f.code == "unsatisfiable"));
}

#[test]
fn a_set_that_is_one_version_is_in_a_range() {
    let found = findings("!(tags in range \"~0\")", &[("tags", "set")], None);
    assert_eq!(found, [], "tags=0 does not satisfy it");
}

#[test]
fn keys_with_lists_today_may_hold_both() {
    let mut inventory = Inventory::new();
    inventory.add([("k", Parsed::list(["a", "b"].map(Box::from)))]);
    inventory.add([("k", Parsed::text("2"))]);
    for text in ["k == a && k == b", "k > 1"] {
        let found = findings(text, &[], Some(&inventory));
        assert!(!found.iter().any(|f| f.code == "unsatisfiable" || f.code == "matches_none"), "{text}: {found:?}");
    }
}

#[test]
fn tautology() {
    for text in
        ["exists(a) || !exists(a)", "!(a == 1) || a == 1", "!(version >= 3 && version < 2)", "!(a == 1) || !(a == 2)"]
    {
        assert!(codes(text).contains(&"tautology"), "{text}: {:?}", codes(text));
    }
}

#[test]
fn routing_5_5_point_11_true_but_for_the_missing_key_is_no_tautology() {
    for text in ["a == 1 || a != 1", "version >= 2 || version < 2 || version != 2"] {
        let found = codes(text);
        assert!(!found.contains(&"tautology") && found.contains(&"tests_presence_only"), "{text}: {found:?}");
    }
    // A value that is no version is neither above nor below.
    assert!(!codes("version >= 2 || version < 2").contains(&"tests_presence_only"));
}

#[test]
fn clauses_that_add_nothing() {
    for (text, code, message) in [
        (
            "version >= 2 || version >= 3",
            "shadowed_clause",
            "`version >= 3` adds nothing: `version >= 2` already covers it",
        ),
        ("env == a || env in (a, b)", "shadowed_clause", "`env == a` adds nothing: `env in (a, b)` already covers it"),
        (
            "version >= 2 && version >= 3",
            "redundant_clause",
            "`version >= 2` adds nothing: `version >= 3` already implies it",
        ),
        ("exists(a) && a == 1", "redundant_clause", "`exists(a)` adds nothing: `a == 1` already implies it"),
        ("a == 1 && a == 1", "redundant_clause", "`a == 1` adds nothing: `a == 1` already implies it"),
        ("a == 1 || a == 1", "shadowed_clause", "`a == 1` adds nothing: `a == 1` already covers it"),
        ("b == 1 && (a == 1 || a == 1.0)", "shadowed_clause", "`a == 1.0` adds nothing: `a == 1` already covers it"),
    ] {
        let found = findings(text, &[], None);
        assert!(found.iter().any(|f| f.code == code && f.message == message), "{text}: {found:?}");
    }
    assert_eq!(codes("version >= 2 || env == a"), [] as [&str; 0]);
}

#[test]
fn a_dead_part_of_a_living_rule() {
    let text = "env == dev || version >= 3 && version < 2";
    let found = findings(text, &[], None);
    assert!(found.iter().any(|f| f.code == "unsatisfiable" && f.column == 15), "{found:?}");
}

#[test]
fn ordered_comparison_on_text() {
    for (text, hint) in [
        ("name > abc", "declare the type of `name`, or compare with `==`"),
        ("app >= 2.3.1", "declare `app` as version"),
        ("at >= 2024-01-01T00:00:00Z", "declare `at` as time"),
        ("tier >= \"2\"", "a quoted value is text; write tier >= 2"),
    ] {
        let found = findings(text, &[], None);
        assert_eq!((found[0].code, found[0].severity), ("ordered_text", Severity::Error), "{text}");
        assert_eq!(found[0].hint.as_deref(), Some(hint), "{text}");
    }
    for word in ["text", "bool", "set"] {
        for text in ["k > 1", "k > $req.x"] {
            assert!(findings(text, &[("k", word)], None).iter().any(|f| f.code == "ordered_text"), "{word} {text}");
        }
    }
    assert!(codes("$self.zone > a").contains(&"ordered_text"));
}

#[test]
fn type_clash() {
    let clash = |text: &str, word: &str| -> Vec<&'static str> {
        findings(text, &[("k", word)], None).iter().map(|f| f.code).collect()
    };
    assert_eq!(clash("k == gold", "number"), ["type_clash"]);
    assert_eq!(clash("k in (1, gold)", "number"), ["type_clash"]);
    assert_eq!(clash("k == yes", "bool"), ["type_clash"]);
    assert_eq!(clash("k == soon", "time"), ["type_clash"]);
    assert_eq!(clash("k == latest", "version"), ["type_clash"]);
    assert!(clash("k > gold", "number").contains(&"unparsable_literal"));
    assert!(clash("k > latest", "version").contains(&"unparsable_literal"));
    assert_eq!(clash("k == 1", "number"), [] as [&str; 0]);
    assert_eq!(clash("k == \" 1 \"", "number"), ["padded_literal"]);
    assert_eq!(codes("build == 1e3"), ["not_a_plain_decimal"]);
    assert_eq!(codes("$self.port == http"), ["type_clash"]);
}

#[test]
fn routing_1_3_the_missing_key_rule_is_said_once() {
    let found = findings("a != 1 && b not in (2) && c != 3", &[], None);
    let said: Vec<_> = found.iter().filter(|f| f.code == "missing_key_semantics").collect();
    assert_eq!(said.len(), 1);
    assert_eq!((said[0].severity, said[0].column), (Severity::Note, 1));
    assert!(!codes("!(a == 1)").contains(&"missing_key_semantics"));
}

#[test]
fn smaller_notes() {
    assert_eq!(codes("k like \"abc\""), ["like_without_wildcard"]);
    assert_eq!(codes("k like \"*\""), ["like_everything"]);
    assert_eq!(codes("k in (a, b, a)"), ["duplicate_item"]);
    assert_eq!(codes("a == $req.x?"), ["optional_everything"]);
    assert_eq!(codes("a == 1 && exists($req.x?)"), ["optional_exists"]);
}

#[test]
fn unknown_keys_and_what_was_meant() {
    let inventory = fleet(&["version=2.3, env=prod", "version=2.4, env=dev"]);
    let found = findings("verison >= 2.3 || env == prod", &[], Some(&inventory));
    assert_eq!((found[0].code, found[0].hint.as_deref()), ("unknown_key", Some("did you mean `version`?")));
    let found = findings("env == prod && zone == a", &[], Some(&inventory));
    let unknown = found.iter().find(|f| f.code == "unknown_key").expect("zone is unknown");
    assert_eq!(unknown.hint.as_deref(), Some("a bare key is metadata; the built-in attribute is `$self.zone`"));
    assert_eq!(unknown.column, 16);
    let found = findings("qqq == prod", &[], Some(&inventory));
    assert_eq!(
        found.iter().find(|f| f.code == "unknown_key").unwrap().hint.as_deref(),
        Some("keys there are: env, version")
    );
}

#[test]
fn matches_all_or_nothing_today() {
    let inventory = fleet(&["version=2.3, env=prod", "version=2.4, env=dev"]);
    assert_eq!(codes_with("version >= 9", &inventory), ["matches_none"]);
    assert_eq!(codes_with("version >= 2", &inventory), ["matches_all"]);
    assert_eq!(codes_with("version >= 2.4", &inventory), [] as [&str; 0]);
    assert_eq!(codes_with("version == $req.v", &inventory), [] as [&str; 0], "it depends on the request");
    assert_eq!(codes_with("version >= 9", &Inventory::new()), [] as [&str; 0], "nobody is there to match");
}

#[test]
fn routing_t15_values_that_are_no_versions() {
    let inventory = fleet(&[
        "version=2.9",
        "version=2.10",
        "version=2.10.0-rc.1",
        "version=v2.11+build7",
        "version=2.3.1",
        "version=latest",
    ]);
    let found = findings("version >= 2.10", &[], Some(&inventory));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].code, "unparsable_values");
    assert!(found[0].message.contains("1 of 6"), "{}", found[0].message);
}

#[test]
fn routing_2_3_row_27_padded_numbers_get_a_note() {
    let inventory = fleet(&["x= 3 ", "x=1"]);
    assert_eq!(codes_with("x >= 2", &inventory), ["padded_values"]);
}

#[test]
fn dialect_seata() {
    let code = |text: &str| -> Vec<&'static str> { seata(text, None).iter().map(|f| f.code).collect() };
    assert_eq!(code("env == prod"), [] as [&str; 0]);
    assert_eq!(code(""), ["empty_expression"]);
    assert!(code("&&").contains(&"seata_no_condition") && code("||").contains(&"seata_no_condition"));
    assert!(code("a == 1 ||").contains(&"seata_empty_clause"));
    assert!(code("((a == 1))").contains(&"seata_literal_parenthesis"));
    assert!(code("(a == 1 || b == 2)").contains(&"seata_literal_parenthesis"));
    assert!(code("a == \"x\"").contains(&"seata_literal_quotes"));
    assert!(code("version >= 2.10").contains(&"seata_version_as_number"));
    assert!(code("version >= 2.3.1").contains(&"ordered_text"));
    assert!(code("2.3 <= version").contains(&"seata_key_is_a_number"));
    assert!(code("2.3 <= version").contains(&"dialect_difference"));
    assert!(code("sha == 1e3").contains(&"seata_number"));
    let inventory = fleet(&["version=2.9", "version=2.10"]);
    let found = seata("version >= 2.9", Some(&inventory));
    let difference = found.iter().find(|f| f.code == "dialect_difference").expect("2.10");
    assert_eq!(difference.message, "dialect v1 says otherwise for 1 of 2 instances");
}

#[test]
fn findings_are_bounded_in_time_and_never_wrong_about_large_rules() {
    let many: Vec<String> = (0..200).map(|index| format!("k{index} == {index}")).collect();
    assert_eq!(codes(&many.join(" && ")), [] as [&str; 0]);
    let one_key: Vec<String> = (0..600).map(|index| format!("k == {index}")).collect();
    assert_eq!(codes(&one_key.join(" || ")), [] as [&str; 0]);
}
