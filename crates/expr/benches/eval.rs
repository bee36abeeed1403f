//! What one evaluation costs: over a record, and over the columns of ten thousand instances.
//!
//! `cargo bench -p metaroute-expr`. Peers are measured in a workspace of their own.

use divan::{Bencher, black_box};
use metaroute_expr::{Column, Columns, Expr, KeyId, KeyTable, Parsed, Program, Record, Scratch, Value};

fn main() {
    divan::main();
}

const RULE: &str = "version >= 2.3 && env == prod && tier in (1, 2)";
const WIDE: &str = "version >= 2.3 && version < 3 && env == prod && tier in (1, 2, 3) && (zone == a || zone == b || zone == c) \
                    && region != eu && !(canary == yes) && weight > 0 && name like \"web-*\" && exists(owner) \
                    && lane == blue && cell in (c1, c2) && stage != retired && rack == r1";

struct Rows {
    values: Vec<Vec<Parsed>>,
    codes: Vec<Vec<u32>>,
    rows: usize,
}

struct Row<'a>(&'a Rows, usize);

impl Record for Row<'_> {
    fn get(&self, key: KeyId) -> Option<Value<'_>> {
        let key = key.0 as usize;
        let code = self.0.codes[key][self.1];
        self.0.values[key].get(code as usize).map(Value::Parsed)
    }
}

/// The same values as bare text.
struct Texts<'a>(Vec<Option<&'a str>>);

impl Record for Texts<'_> {
    fn get(&self, key: KeyId) -> Option<Value<'_>> {
        self.0[key.0 as usize].map(Value::Text)
    }
}

impl Columns for Rows {
    fn len(&self) -> usize {
        self.rows
    }

    fn column(&self, key: KeyId) -> Option<Column<'_>> {
        let key = key.0 as usize;
        Some(Column { codes: &self.codes[key], values: &self.values[key] })
    }
}

fn setup(rule: &str, rows: usize) -> (Program, Rows) {
    let mut table = KeyTable::default();
    let program = Expr::parse(rule).expect("the rule parses").bind(&mut table).expect("the rule binds");
    let mut data = Rows { values: Vec::new(), codes: Vec::new(), rows };
    for key in table.keys() {
        let name = key.to_string();
        let values: Vec<Parsed> = match name.as_str() {
            "version" => (0..20).map(|minor| Parsed::text(format!("2.{minor}.1"))).collect(),
            "env" => ["prod", "dev"].map(Parsed::text).into(),
            "tier" | "weight" => ["1", "2", "3"].map(Parsed::text).into(),
            "name" => ["web-1", "db-1"].map(Parsed::text).into(),
            "lane" => ["blue"].map(Parsed::text).into(),
            "cell" => ["c1", "c2"].map(Parsed::text).into(),
            "rack" => ["r1"].map(Parsed::text).into(),
            _ => ["a", "b", "c"].map(Parsed::text).into(),
        };
        // A fixed mix; the first row passes far into the rule.
        let codes = (0..rows).map(|row| (row * 7 / 3 % values.len()) as u32).collect();
        data.values.push(values);
        data.codes.push(codes);
    }
    if let Some(key) = table.key_id("version") {
        data.codes[key.0 as usize][0] = 5;
    }
    (program, data)
}

#[divan::bench(args = [RULE, WIDE])]
fn record_parsed(bencher: Bencher<'_, '_>, rule: &str) {
    let (program, rows) = setup(rule, 64);
    bencher.bench_local(|| program.eval(black_box(&Row(&rows, 0)), &()));
}

#[divan::bench(args = [RULE, WIDE])]
fn record_text(bencher: Bencher<'_, '_>, rule: &str) {
    let (program, rows) = setup(rule, 64);
    let values = rows
        .values
        .iter()
        .zip(&rows.codes)
        .map(|(values, codes)| values.get(codes[0] as usize).map(|value| value.as_text()));
    let record = Texts(values.collect());
    bencher.bench_local(|| program.eval(black_box(&record), &()));
}

#[divan::bench(args = [1_000, 10_000])]
fn columns(bencher: Bencher<'_, '_>, rows: usize) {
    let (program, rows) = setup(WIDE, rows);
    let mut bits = vec![0; rows.rows.div_ceil(64)];
    let mut scratch = Scratch::default();
    bencher.bench_local(|| program.eval_columns(black_box(&rows), &(), &mut bits, &mut scratch));
}

#[divan::bench(args = ["2.10 2.9", "2.10.0-rc.10 2.10.0-rc.9"])]
fn compare_versions(bencher: Bencher<'_, '_>, pair: &str) {
    let (a, b) = pair.split_once(' ').expect("two versions");
    bencher.bench_local(|| metaroute_expr::version::compare(black_box(a), black_box(b)));
}

#[divan::bench(args = ["9007199254740993 9007199254740992", "3.14159 3.1416"])]
fn compare_decimals(bencher: Bencher<'_, '_>, pair: &str) {
    let (a, b) = pair.split_once(' ').expect("two numbers");
    bencher.bench_local(|| metaroute_expr::decimal::compare(black_box(a), black_box(b)));
}

#[divan::bench(args = [RULE, WIDE])]
fn parse(bencher: Bencher<'_, '_>, rule: &str) {
    bencher.bench_local(|| Expr::parse(black_box(rule)));
}
