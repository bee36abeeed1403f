//! `routing.md` 2.3: what the original says, executed, and what this language says instead. One test per row.

use metaroute_expr::{Dialect, Expr};

use crate::support::instance;

/// `None` stands for a parse error.
#[track_caller]
fn row(expression: &str, metadata: &str, original: Option<bool>, ours: Option<bool>) {
    for (dialect, expected) in [(Dialect::Seata, original), (Dialect::V1, ours)] {
        match expected {
            Some(expected) => assert_eq!(
                instance(metadata).says_as(expression, dialect),
                expected,
                "{dialect}: {expression} on {metadata}"
            ),
            None => {
                let error = Expr::parse_as(expression, dialect).expect_err("a parse error");
                assert!(error.line == 1 && error.column >= 1, "{error}");
            }
        }
    }
}

#[test]
fn routing_2_3_row_01_version_ge_two_digit_minor() {
    row("version >= 2.9", "version=2.10", Some(false), Some(true));
}

#[test]
fn routing_2_3_row_02_version_eq_is_no_number() {
    row("version == 2.1", "version=2.10", Some(true), Some(false));
}

#[test]
fn routing_2_3_row_03_version_ge_three_parts() {
    row("version >= 2.3", "version=2.3.1", Some(false), Some(true));
}

#[test]
fn routing_2_3_row_04_version_ge_with_v() {
    row("version >= 2.3", "version=v2.4", Some(false), Some(true));
}

#[test]
fn routing_2_3_row_05_version_ge_equal_three_parts() {
    row("version >= 2.3.1", "version=2.3.1", Some(false), Some(true));
}

#[test]
fn routing_2_3_row_06_exponent_is_text() {
    row("build == 1e3", "build=1000", Some(true), Some(false));
}

#[test]
fn routing_2_3_row_07_hash_like_exponent_is_text() {
    row("sha == 12345e6", "sha=12345000000", Some(true), Some(false));
}

#[test]
fn routing_2_3_row_08_java_suffix_d() {
    row("sha == 1d", "sha=1", Some(true), Some(false));
}

#[test]
fn routing_2_3_row_09_java_suffix_f() {
    row("sha == 1f", "sha=1.0", Some(true), Some(false));
}

#[test]
fn routing_2_3_row_10_hex_float() {
    row("x == 0x10p0", "x=16", Some(true), Some(false));
}

#[test]
fn routing_2_3_row_11_infinity() {
    row("x > 0", "x=Infinity", Some(true), Some(false));
}

#[test]
fn routing_2_3_row_12_nan() {
    row("x != NaN", "x=NaN", Some(false), Some(false));
}

#[test]
fn routing_2_3_row_13_negative_zero() {
    row("x == 0", "x=-0", Some(false), Some(true));
}

#[test]
fn routing_2_3_row_14_beyond_double_precision() {
    row("id == 9007199254740993", "id=9007199254740992", Some(true), Some(false));
}

#[test]
fn routing_2_3_row_15_not_equal_on_missing_key() {
    row("env != dev", "", Some(false), Some(false));
}

#[test]
fn routing_2_3_row_16_unclosed_parenthesis() {
    row("(version >= 2.3", "version=2.4", Some(false), None);
}

#[test]
fn routing_2_3_row_17_doubled_parentheses() {
    row("((version >= 2.3))", "version=2.4", Some(false), Some(true));
}

#[test]
fn routing_2_3_row_18_trailing_or() {
    row("a == 1 ||", "a=1", Some(true), None);
}

#[test]
fn routing_2_3_row_19_or_alone() {
    row("||", "a=1", Some(false), None);
}

#[test]
fn routing_2_3_row_20_and_alone() {
    row("&&", "a=1", Some(true), None);
}

#[test]
fn routing_2_3_row_21_no_space_around_or() {
    row("a == x||y == z", "y=z", Some(true), Some(true));
}

#[test]
fn routing_2_3_row_22_no_space_around_operator() {
    row("a==1", "a=1", None, Some(true));
}

#[test]
fn routing_2_3_row_23_value_with_space() {
    row("a == hello world", "a=hello world", None, None);
}

#[test]
fn routing_2_3_row_24_quoted_value() {
    row("a == \"x\"", "a=x", Some(false), Some(true));
}

#[test]
fn routing_2_3_row_25_mixed_and_or() {
    row("a == 1 && (b == 2 || c == 3)", "a=1, b=2", None, Some(true));
}

#[test]
fn routing_2_3_row_26_value_of_parentheses() {
    row("a == ()", "a=()", Some(true), None);
}

#[test]
fn routing_2_3_row_27_padded_number() {
    row("x >= 2", "x= 3 ", Some(true), Some(true));
}

#[test]
fn routing_2_3_row_02_declared_number_is_equal() {
    assert!(instance("version=2.10").typed("version", "number").says("version == 2.1"));
}

#[test]
fn routing_2_3_row_16_points_at_the_parenthesis() {
    let error = Expr::parse("(version >= 2.3").unwrap_err();
    assert_eq!((error.line, error.column, error.code), (1, 1, "unbalanced_paren"));
    assert_eq!(error.message, "the `(` at column 1 is not closed");
}

#[test]
fn routing_2_3_rows_23_and_26_suggest_quotes() {
    let error = Expr::parse("a == hello world").unwrap_err();
    assert_eq!(error.column, 12);
    assert_eq!(error.hint.as_deref(), Some("a value with spaces needs quotes: a == \"hello world\""));
    let error = Expr::parse("a == ()").unwrap_err();
    assert_eq!(error.column, 6);
    assert_eq!(error.hint.as_deref(), Some("a value with parentheses needs quotes: \"()\""));
    assert!(instance("a=()").says("a == '()'"));
    assert!(instance("a=hello world").says("a == 'hello world'"));
}

#[test]
fn routing_t09_a_missing_key_is_false_and_no_error() {
    let with = instance("rack=r1");
    let without = instance("");
    assert_eq!([with.says("rack == r1"), without.says("rack == r1")], [true, false]);
    assert_eq!([with.says("!(rack == r1)"), without.says("!(rack == r1)")], [false, true]);
    assert_eq!([with.says("rack != r1"), without.says("rack != r1")], [false, false]);
}

#[test]
fn routing_t11_no_condition_matches_everything() {
    for text in ["", " ", "\t\n"] {
        assert!(instance("").says(text) && instance("a=1").says(text));
    }
}

#[test]
fn routing_t05_canary_in_three_states() {
    let canary = instance("canary=y");
    let plain = instance("");
    assert!(canary.says("canary == y") && !plain.says("canary == y"));
    assert!(!canary.says("!exists(canary)") && plain.says("!exists(canary)"));
}

#[test]
fn routing_t07_the_callers_tag_is_not_the_candidates() {
    let rule = "tag == $caller.tag";
    assert!(!instance("tag=qa").caller("tag=dev").says(rule));
    assert!(!instance("").caller("tag=dev").says(rule));
    assert!(instance("tag=dev").caller("tag=dev").says(rule));
}

#[test]
fn routing_t14_and_is_one_condition() {
    let rule = "zone == east && version >= 9";
    assert!(!instance("zone=east, version=2.1").says(rule));
    assert!(!instance("zone=west, version=9.0").says(rule));
}

#[test]
fn routing_t15_versions() {
    let fleet = ["2.9", "2.10", "2.10.0-rc.1", "v2.11+build7", "2.3.1", "latest"];
    let matching = |rule: &str| -> Vec<usize> {
        fleet
            .iter()
            .enumerate()
            .filter(|(_, version)| instance(&format!("version={version}")).says(rule))
            .map(|(index, _)| index + 1)
            .collect()
    };
    assert_eq!(matching("version >= 2.10"), [2, 4]);
    assert_eq!(matching("version > 2.9"), [2, 3, 4]);
    assert_eq!(matching("version == 2.10"), [2]);
    for order in ["<", "<=", ">", ">="] {
        assert!(!matching(&format!("version {order} 0")).contains(&6), "{order}");
        assert!(!matching(&format!("version {order} 99999")).contains(&6), "{order}");
    }
    assert_eq!(matching("version == latest"), [6]);
    assert_eq!(matching("version != latest"), [1, 2, 3, 4, 5]);
}
