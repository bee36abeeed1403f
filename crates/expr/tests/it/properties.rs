//! Laws that hold for every expression, number and version.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use metaroute_expr::decimal::{self, Decimal};
use metaroute_expr::version::{self, Range, Version};
use metaroute_expr::{
    Column, Columns, Context, Dialect, Expr, KeyId, KeyTable, LintInput, Outcome, Parsed, Program, Record, Scratch,
    SlotId, Type, Value, lint,
};
use num_bigint::BigInt;
use proptest::prelude::*;

const KEYS: [&str; 6] = ["version", "tier", "env", "tags", "at", "`x y`"];

fn types() -> BTreeMap<String, Type> {
    [("tags", "set"), ("at", "time(s)")].map(|(key, word)| (key.to_owned(), word.parse().expect("a type"))).into()
}

fn value_text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[0-9]{1,3}",
        "-?[0-9]{1,2}\\.[0-9]{1,2}",
        "v?[0-9]\\.[0-9]{1,2}(\\.[0-9])?(-(rc|a|0)(\\.[0-9])?)?(\\+b)?",
        "(a|b|prod|dev|A|é)(,(a|b))?",
        " [0-9] ",
        "(latest|1e3|1d|0x10|NaN|Infinity|true|-0|\\.5|5\\.)",
        "[0-9]{25}(\\.[0-9]{20})?",
        "\\PC{0,6}",
    ]
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn operand() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "(a|b|prod|and|in|not|[0-9]|2\\.[0-9]{1,2}|v2\\.1|-1|\\.5|1e3|00[0-9])",
        2 => value_text().prop_map(|text| quoted(&text)),
        1 => "\\$(req|caller)\\.(x|y|version)\\??",
    ]
}

fn left() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(&KEYS[..]).prop_map(str::to_owned),
        1 => prop::sample::select(&KEYS[..]).prop_map(|key| format!("lower({key})")),
        1 => "\\$(req|caller)\\.(x|y|version)\\??",
    ]
}

fn comparison() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (left(), "(==|=|!=|>|>=|<|<=)", operand()).prop_map(|(left, op, right)| format!("{left} {op} {right}")),
        2 => (left(), "(in|not in)", prop::collection::vec(operand(), 1..4))
            .prop_map(|(left, op, items)| format!("{left} {op} ({})", items.join(","))),
        1 => (left(), "[ab*?1.]{0,4}").prop_map(|(left, glob)| format!("{left} like \"{glob}\"")),
        1 => (left(), "([ab1.]|a\\*|\\[ab\\]\\+|\\(a\\|b\\)){0,3}").prop_map(|(left, regex)| format!("{left} matches \"{regex}\"")),
        1 => (left(), "[\\^~][0-2](\\.[0-9]){0,3}").prop_map(|(left, range)| format!("{left} in range \"{range}\"")),
        1 => prop::sample::select(&KEYS[..]).prop_map(|key| format!("exists({key})")),
    ]
}

fn expression() -> impl Strategy<Value = String> {
    comparison().prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|inner| format!("!({inner})")),
            inner.clone().prop_map(|inner| format!("not ({inner})")),
            prop::collection::vec(inner.clone(), 2..4).prop_map(|parts| format!("({})", parts.join(" && "))),
            prop::collection::vec(inner, 2..4).prop_map(|parts| format!("({})", parts.join(" or "))),
        ]
    })
}

type Row = [Option<String>; KEYS.len()];

fn row() -> impl Strategy<Value = Row> {
    std::array::from_fn(|_| prop::option::weighted(0.8, value_text()))
}

/// Values by key number, as plain text: nothing is parsed beforehand.
struct Plain<'a>(&'a KeyTable, &'a Row);

fn value_of<'a>(table: &KeyTable, row: &'a Row, key: KeyId) -> Option<&'a str> {
    let name = table.keys()[key.0 as usize].to_string();
    let at = KEYS.iter().position(|known| known.trim_matches('`') == name)?;
    row[at].as_deref()
}

impl Record for Plain<'_> {
    fn get(&self, key: KeyId) -> Option<Value<'_>> {
        value_of(self.0, self.1, key).map(Value::Text)
    }
}

#[derive(Debug)]
struct Slots<'a>(&'a KeyTable, &'a BTreeMap<String, String>);

impl Context for Slots<'_> {
    fn get(&self, slot: SlotId) -> Option<&str> {
        let (scope, name) = &self.0.slots()[slot.0 as usize];
        self.1.get(&format!("{scope}.{name}")).map(String::as_str)
    }
}

fn context() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("\\$(req|caller)\\.(x|y|version)", value_text(), 0..5)
}

struct Encoded {
    rows: usize,
    columns: Vec<(Vec<u32>, Vec<Parsed>)>,
}

impl Encoded {
    fn new(table: &KeyTable, rows: &[Row]) -> Self {
        let column = |key: u32| {
            let mut values: Vec<Parsed> = Vec::new();
            let codes = rows.iter().map(|row| match value_of(table, row, KeyId(key)) {
                None => Column::ABSENT,
                Some(text) => {
                    let parsed = Parsed::text(text);
                    let at = values.iter().position(|known| *known == parsed).unwrap_or_else(|| {
                        values.push(parsed);
                        values.len() - 1
                    });
                    at as u32
                }
            });
            let codes: Vec<u32> = codes.collect();
            (codes, values)
        };
        Encoded { rows: rows.len(), columns: (0..table.keys().len() as u32).map(column).collect() }
    }
}

impl Columns for Encoded {
    fn len(&self) -> usize {
        self.rows
    }

    fn column(&self, key: KeyId) -> Option<Column<'_>> {
        self.columns.get(key.0 as usize).map(|(codes, values)| Column { codes, values })
    }
}

fn bound(expr: &Expr) -> (Program, KeyTable) {
    let mut table = KeyTable::new(types());
    (expr.bind(&mut table).expect("a key table refuses nothing"), table)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn printing_and_parsing_change_nothing(text in expression(), row in row(), context in context()) {
        let expr = Expr::parse(&text).map_err(|error| TestCaseError::fail(error.render(&text)))?;
        let printed = expr.to_string();
        let again = Expr::parse(&printed).map_err(|error| TestCaseError::fail(error.render(&printed)))?;
        prop_assert_eq!(&again, &expr);
        prop_assert_eq!(again.to_string(), printed);
        let (program, table) = bound(&expr);
        let (program_again, table_again) = bound(&again);
        prop_assert_eq!(
            program.eval(&Plain(&table, &row), &Slots(&table, &context)),
            program_again.eval(&Plain(&table_again, &row), &Slots(&table_again, &context))
        );
    }

    #[test]
    fn columns_and_records_agree(text in expression(), rows in prop::collection::vec(row(), 0..140), context in context()) {
        let (program, table) = bound(&Expr::parse(&text).expect("generated"));
        let context = Slots(&table, &context);
        let encoded = Encoded::new(&table, &rows);
        let mut bits = vec![u64::MAX; 4];
        program.eval_columns(&encoded, &context, &mut bits, &mut Scratch::default());
        for (index, row) in rows.iter().enumerate() {
            let expected = program.eval(&Plain(&table, row), &context);
            prop_assert_eq!(bits[index / 64] >> (index % 64) & 1 == 1, expected, "row {}: {:?}", index, row);
            let decision = program.decide(&Plain(&table, row), &context);
            prop_assert_eq!(decision.value, expected);
        }
        for index in rows.len()..256 {
            prop_assert_eq!(bits[index / 64] >> (index % 64) & 1, 0, "bit {} beyond the rows", index);
        }
    }

    #[test]
    fn the_atom_that_decides_holds_or_not(text in expression(), row in row(), context in context()) {
        let (program, table) = bound(&Expr::parse(&text).expect("generated"));
        let (record, context) = (Plain(&table, &row), Slots(&table, &context));
        if let Some(atom) = program.decide(&record, &context).atom {
            prop_assert_ne!(program.atoms()[atom].test(&record, &context), Outcome::Removed);
            let text = program.atom_text(atom);
            prop_assert!(Expr::parse(text).is_ok(), "{}", text);
        }
        for atom in program.atoms() {
            if let Some(key) = atom.key() {
                let value = value_of(&table, &row, key).map(Value::Text);
                prop_assert_eq!(atom.test_value(value, &context), atom.test(&record, &context));
            }
        }
    }

    #[test]
    fn lint_is_right_about_always_and_never(text in expression(), rows in prop::collection::vec(row(), 1..20)) {
        let expr = Expr::parse(&text).expect("generated");
        let findings = lint(&expr, &LintInput { types: &types(), inventory: None });
        let claims = |code: &str| findings.iter().any(|f| f.code == code && (f.message.starts_with("this ")));
        let (program, table) = bound(&expr);
        let none = BTreeMap::new();
        for row in &rows {
            let value = program.eval(&Plain(&table, row), &Slots(&table, &none));
            prop_assert!(!(value && claims("unsatisfiable")), "{:?} satisfies it", row);
            prop_assert!(value || !claims("tautology"), "{:?} does not satisfy it", row);
        }
    }

    #[test]
    fn any_text_parses_or_says_where_not(text in "\\PC{0,40}|[ab1(){}!=<>&|,\"'`$?. \\\\]{0,40}") {
        for dialect in [Dialect::V1, Dialect::Seata] {
            match Expr::parse_as(&text, dialect) {
                Ok(expr) => prop_assert_eq!(Expr::parse_as(&expr.to_string(), dialect), Ok(expr)),
                Err(error) => {
                    prop_assert!(error.span.end <= text.len() && error.line >= 1 && error.column >= 1);
                    prop_assert!(error.render(&text).contains('^'));
                }
            }
        }
    }

    #[test]
    fn decimals_agree_with_a_big_decimal(a in decimal_text(), b in decimal_text()) {
        let expected = scaled(&a).cmp(&scaled(&b));
        let parse = |text: &str| Decimal::parse(text).expect("generated").is_negative();
        prop_assert_eq!(decimal::compare(&a, &b), Some(expected));
        prop_assert_eq!(parse(&a), scaled(&a) < BigInt::from(0));
        // The forms that evaluation uses agree too.
        let mut table = KeyTable::default();
        for (operator, holds) in [("==", expected.is_eq()), ("<", expected.is_lt()), (">=", expected.is_ge())] {
            let program = Expr::parse(&format!("k {operator} {b}")).expect("a decimal").bind(&mut table).expect("bound");
            let parsed = Parsed::text(&*a);
            for value in [Value::Text(&a), Value::Decimal(&a), Value::Parsed(&parsed)] {
                prop_assert_eq!(program.eval(&One(value), &()), holds, "{} {} {}", &a, operator, &b);
            }
        }
    }

    #[test]
    fn integers_compare_as_their_digits(a in any::<i128>(), b in any::<i64>(), shift in 0u32..120) {
        let a = a >> shift;
        let program = Expr::parse(&format!("k > {b}")).expect("a decimal").bind(&mut KeyTable::default()).expect("bound");
        prop_assert_eq!(program.eval(&One(Value::Int(a)), &()), a > i128::from(b));
    }

    #[test]
    fn floats_compare_as_their_shortest_decimal(a in any::<f64>(), b in any::<f64>()) {
        prop_assume!(b.is_finite());
        let program = Expr::parse(&format!("k >= {b}")).expect("a decimal").bind(&mut KeyTable::default()).expect("bound");
        prop_assert_eq!(program.eval(&One(Value::Float(a)), &()), a.is_finite() && a >= b);
    }

    #[test]
    fn version_order_is_total(a in version_text(), b in version_text(), c in version_text()) {
        let (a, b, c) = (Version::parse(&a).expect("generated"), Version::parse(&b).expect("generated"), Version::parse(&c).expect("generated"));
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        prop_assert_eq!(a == b, a.cmp(&b) == Ordering::Equal);
        if a <= b && b <= c {
            prop_assert!(a <= c);
        }
    }

    #[test]
    fn versions_agree_with_semver(a in semver_text(), b in semver_text()) {
        let theirs = |text: &str| semver::Version::parse(text).expect("generated");
        prop_assert_eq!(version::compare(&a, &b), Some(theirs(&a).cmp_precedence(&theirs(&b))));
    }

    #[test]
    fn caret_and_tilde_agree_with_semver_on_releases(
        operator in "[\\^~]", base in "[0-3](\\.[0-3]){0,2}", version in "[0-4]\\.[0-4]\\.[0-4]",
    ) {
        let text = format!("{operator}{base}");
        let theirs = semver::VersionReq::parse(&text).expect("generated");
        let ours: Range = text.parse().expect("generated");
        prop_assert_eq!(
            ours.contains(&Version::parse(&version).expect("generated")),
            theirs.matches(&semver::Version::parse(&version).expect("generated")),
            "{} in {}", version, text
        );
    }
}

struct One<'a>(Value<'a>);

impl Record for One<'_> {
    fn get(&self, _: KeyId) -> Option<Value<'_>> {
        Some(self.0)
    }
}

fn decimal_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[+-]?[0-9]{1,3}(\\.[0-9]{1,3})?",
        "[+-]?[0-9]{1,45}(\\.[0-9]{1,45})?",
        "-?0{0,3}[0-9]{16,20}(\\.[0-9]{16,20}0{0,3})?"
    ]
}

/// The number × 10^64.
fn scaled(text: &str) -> BigInt {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    format!("{whole}{fraction:0<64}").trim_start_matches('+').parse().expect("digits")
}

fn version_text() -> impl Strategy<Value = String> {
    "v?[0-9]{1,2}(\\.[0-9]{1,25}){0,3}(\\.(RELEASE|GA|Final))?(-[0-9a-c-]{1,2}(\\.[0-9a-c]{1,2}){0,2})?(\\+[a-z]{1,3})?"
}

fn semver_text() -> impl Strategy<Value = String> {
    let number = "(0|[1-9][0-9]{0,2})";
    let identifier = "(0|[1-9][0-9]{0,3}|[a-c-][0-9a-c-]{0,2}|0[a-c])";
    proptest::string::string_regex(&format!(
        "{number}\\.{number}\\.{number}(-{identifier}(\\.{identifier}){{0,2}})?(\\+[0-9a-z]{{1,3}})?"
    ))
    .expect("a pattern")
}
