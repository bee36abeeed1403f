//! `seata.md` 3.1 to 3.5: the original's answers, one test per row. `None` is an invalid expression.

use metaroute_expr::{Dialect, Expr};

use crate::support::{Case, instance};

/// The metadata of `seata.md` 3.3.
fn worked() -> Case {
    instance("version=2.3, env=prod, weight=5, v3=2.3.1, empty=")
}

#[track_caller]
fn check(case: &Case, rows: &[(&str, Option<bool>)]) {
    for (text, expected) in rows {
        let value = Expr::parse_as(text, Dialect::Seata).ok().map(|_| case.says_as(text, Dialect::Seata));
        assert_eq!(value, *expected, "{text:?}");
    }
}

const T: Option<bool> = Some(true);
const F: Option<bool> = Some(false);
const INVALID: Option<bool> = None;

#[test]
fn seata_3_1_grammar() {
    check(
        &worked(),
        &[
            ("version >= 2.3", T),
            ("  version \t >=\n2.3  ", T),
            ("version>=2.3", INVALID),
            ("version >=2.3", INVALID),
            ("version = 2.3", T),
            ("env == prod||env == dev", T),
            ("env == prod&&version > 2", T),
            ("env == a b", INVALID),
            ("", T),
            (" \t ", T),
        ],
    );
}

#[test]
fn seata_3_3_row_01_spaces_tabs_parentheses() {
    check(
        &worked(),
        &[("version >= 2.3", T), ("version\t>=\t2.3", T), ("( version >= 2.3 )", T), ("(version >= 2.3)", T)],
    );
}

#[test]
fn seata_3_3_row_02_numeric_equality() {
    check(&worked(), &[("version == 2.30", T), ("version = 2.3000", T), ("weight == 5.0", T)]);
}

#[test]
fn seata_3_3_row_03_two_point_ten_is_two_point_one() {
    check(&instance("version=2.1"), &[("version = 2.10", T)]);
}

#[test]
fn seata_3_3_row_04_order_is_wrong_for_two_digit_minors() {
    check(&instance("version=2.9"), &[("version >= 2.10", T)]);
}

#[test]
fn seata_3_3_row_05_two_point_ten_is_below_two_point_nine() {
    check(&instance("version=2.10"), &[("version >= 2.9", F)]);
}

#[test]
fn seata_3_3_row_06_three_parts_are_never_ordered() {
    check(&worked(), &[("v3 >= 2.3", F), ("v3 > 2.0", F), ("v3 < 9", F), ("v3 <= 9", F)]);
}

#[test]
fn seata_3_3_row_07_three_parts_are_text() {
    check(&worked(), &[("v3 == 2.3.1", T), ("v3 != 2.3.0", T)]);
}

#[test]
fn seata_3_3_row_08_missing() {
    check(&worked(), &[("missing == x", F), ("missing != x", F)]);
}

#[test]
fn seata_3_3_row_09_empty() {
    check(&worked(), &[("empty != x", T), ("empty == x", F), ("empty ==", INVALID)]);
}

#[test]
fn seata_3_3_row_10_quotes_are_data() {
    check(&worked(), &[("env == \"prod\"", F), ("env == 'prod'", F)]);
}

#[test]
fn seata_3_3_row_11_case() {
    check(&worked(), &[("ENV == prod", F), ("env == PROD", F)]);
}

#[test]
fn seata_3_3_row_12_no_wildcards() {
    check(&worked(), &[("env == p*", F)]);
    check(&instance("env=p*"), &[("env == p*", T)]);
}

#[test]
fn seata_3_3_row_13_booleans_are_text() {
    check(&instance("flag=true"), &[("flag == true", T), ("flag == TRUE", F)]);
}

#[test]
fn seata_3_3_row_14_reversed_sides() {
    check(&worked(), &[("2.3 <= version", F)]);
}

#[test]
fn seata_3_3_row_15_nan() {
    check(&instance("nan=NaN"), &[("nan == NaN", T), ("nan >= NaN", F), ("nan != NaN", F)]);
}

#[test]
fn seata_3_3_row_16_zeros() {
    check(&instance("z=0.0"), &[("z == -0.0", F), ("z >= -0.0", T), ("z != -0.0", T), ("z <= -0.0", T)]);
}

#[test]
fn seata_3_3_row_17_double_precision() {
    check(&instance("k=9007199254740993"), &[("k == 9007199254740992", T)]);
}

#[test]
fn seata_3_3_row_18_java_numbers() {
    for text in ["1d", "1f", "1e0", "1D", "1F", "1.", "+1", ".1e1", "1e+0d"] {
        check(&instance(&format!("k={text}")), &[("k == 1", T)]);
    }
    check(&instance("k=Infinity"), &[("k > 1", T), ("k == Infinity", T), ("k == +Infinity", T)]);
    check(&instance("k=0x10"), &[("k == 16", F), ("k == 0x10", T)]);
    check(&instance("k=0x10p0"), &[("k == 16", T)]);
    check(&instance("k= 3 "), &[("k >= 2", T), ("k == 3", T)]);
    for text in ["inf", "infinity", "nan", "1_000", "1e", "e1", ".", "0x", "0x1", "1dd", "--1", "0x.p1", "1 d", "１"] {
        check(&instance(&format!("k={text}")), &[("k >= -99999", F), ("k <= 99999", F), ("k != 1", T)]);
    }
}

#[test]
fn seata_3_3_row_19_negative() {
    check(&worked(), &[("weight >= -1", T)]);
}

#[test]
fn seata_3_4_row_01_and_or() {
    check(
        &worked(),
        &[
            ("env == prod && weight == 5", T),
            ("(env == prod)&&(weight == 5)", T),
            ("env == prod&&(weight == 6)", F),
            ("env == dev || weight == 5", T),
            ("(env == dev) || weight == 5", T),
            ("(env == dev) || weight == 6", F),
        ],
    );
}

#[test]
fn seata_3_4_row_02_mixes_are_invalid() {
    check(
        &worked(),
        &[
            ("env == prod && weight == 5 || version == 1", INVALID),
            ("(env == prod && weight == 5) || version == 1", INVALID),
            ("(env == prod || env == dev) && version == 2.3", INVALID),
        ],
    );
}

#[test]
fn seata_3_4_row_03_one_pair_around_the_whole() {
    check(
        &worked(),
        &[
            ("(env == prod || env == dev)", F),
            ("(env == prod && weight == 5)", F),
            // The last value is `prod)`, which nobody has.
            ("(env == dev || env != prod)", T),
            ("( env == prod || env == dev )", INVALID),
        ],
    );
}

#[test]
fn seata_3_4_row_04_doubled_parentheses() {
    check(
        &worked(),
        &[("((env == prod))", F), ("((env == prod)) || (env == dev)", T), ("(((env == prod))) || (env == dev)", T)],
    );
    check(&instance("(env=prod)"), &[("((env == prod))", T)]);
}

#[test]
fn seata_3_4_row_05_unbalanced_is_literal() {
    check(&worked(), &[("(env == prod", F), ("env == prod)", F)]);
    check(&instance("(env=prod"), &[("(env == prod", T)]);
}

#[test]
fn seata_3_4_row_06_negation_is_a_key() {
    check(&worked(), &[("!(env == prod)", F), ("!(env == dev)", F)]);
}

#[test]
fn seata_3_4_row_07_parentheses_around_a_value() {
    check(
        &worked(),
        &[("env == (prod)", F), ("env == (prod) || env == dev", INVALID), ("env == (prod) && env == dev", INVALID)],
    );
    check(&instance("env=(prod)"), &[("env == (prod)", T)]);
}

#[test]
fn seata_3_4_row_08_junk_after_a_group() {
    check(
        &worked(),
        &[
            ("(env == prod)junk || env == dev", T),
            ("(env == dev)junk || env == test", F),
            ("(env == prod) (env == dev) || env == x", INVALID),
        ],
    );
}

#[test]
fn seata_3_4_row_09_empty_clauses_are_ignored() {
    check(
        &worked(),
        &[
            ("env == prod ||", T),
            ("|| env == prod", T),
            ("env == dev || || env == prod", T),
            ("env == prod &&", T),
            ("env == dev &&", F),
        ],
    );
}

#[test]
fn seata_3_4_row_10_operators_alone() {
    check(&worked(), &[("||", F), ("&&", T), ("|| ||", F), ("&& &&", T)]);
}

#[test]
fn seata_3_4_row_11_empty_parentheses() {
    check(&worked(), &[("()", INVALID), ("() || env == prod", INVALID), ("( )", INVALID)]);
}

#[test]
fn seata_3_4_row_12_other_operators() {
    check(
        &worked(),
        &[
            ("env == prod | env == dev", INVALID),
            ("env == prod ||| env == dev", INVALID),
            ("env == prod & env == dev", INVALID),
            ("env === prod", INVALID),
            ("env <> prod", INVALID),
            ("version => 2", INVALID),
            ("env in prod", INVALID),
            ("env == prod and version == 2.3", INVALID),
            ("env == prod or version == 2.3", INVALID),
            ("not env == prod", INVALID),
        ],
    );
}

#[test]
fn seata_3_4_row_13_and_inside_or_is_a_value() {
    check(&worked(), &[("env == x&&y || env == prod", T)]);
    check(&instance("env=x&&y"), &[("env == x&&y || env == prod", T), ("env == x&&y", INVALID)]);
}

#[test]
fn seata_3_4_row_14_blank_passes() {
    check(&worked(), &[("", T), ("   ", T)]);
    check(&instance(""), &[("", T)]);
}

#[test]
fn seata_3_2_lists_are_compared_as_printed() {
    let case = Case::default().list("one", &["a"]).list("two", &["a", "b"]);
    check(
        &case,
        &[("one == [a]", T), ("one == a", F), ("one != a", T), ("two == a,b", F), ("two != a", T), ("two > 1", F)],
    );
}

#[test]
fn the_atoms_of_the_dialect_have_texts() {
    let expr = Expr::parse_as("(env =  prod) || v3 != 1", Dialect::Seata).unwrap();
    let case = worked();
    let (program, bound) = case.bind(&expr);
    let texts: Vec<&str> = (0..program.atoms().len()).map(|atom| program.atom_text(atom)).collect();
    assert_eq!(texts, ["env == prod", "v3 != 1"]);
    assert_eq!(program.decide(&bound, &bound).atom, Some(0));
    assert_eq!(expr.to_string(), "(env = prod) || v3 != 1");
    assert_eq!(expr.keys().collect::<Vec<_>>(), ["env", "v3"]);
}
