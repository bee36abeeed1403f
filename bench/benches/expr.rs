//! One expression over records: ours beside CEL, the language most people would reach for.
//!
//! Both sides are compiled beforehand and get their values in the form that suits them best: CEL a context with its variables, ours a
//! record of texts, a record of values parsed beforehand, and columns (what the routing core and the store use). All give the
//! same answers, which is checked before anything is measured.

use std::collections::BTreeMap;
use std::hint::black_box;

use cel::{Context, Value as CelValue};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use metaroute_bench::clock::ProcessorTime;
use metaroute_expr::{Column, Columns, Expr, KeyId, KeyTable, Parsed, Program, Record, Scratch, Type, Value};

/// Records per pass: an evaluation alone is too short to time, and a fleet is what gets filtered.
const RECORDS: usize = 1_000;

const EXPRESSIONS: [(&str, &str, &str); 3] = [
    ("expression: one equality", "zone == a", r#"zone == "a""#),
    (
        "expression: and, or, list, number",
        "zone == a && (tier in (gold, silver) || load < 80)",
        r#"zone == "a" && (tier in ["gold", "silver"] || load < 80)"#,
    ),
    (
        "expression: six comparisons",
        "zone != c && tier != none && load >= 5 && load <= 95 && !(zone == b && tier == bronze)",
        r#"zone != "c" && tier != "none" && load >= 5 && load <= 95 && !(zone == "b" && tier == "bronze")"#,
    ),
];

const KEYS: [&str; 3] = ["zone", "tier", "load"];

/// The values of one record, in the order of [`KEYS`].
fn texts(i: usize) -> [String; 3] {
    // A multiplicative scatter: no two neighbours alike, the same on every run.
    let scatter = i.wrapping_mul(2_654_435_761) >> 7;
    [
        ["a", "b", "c", "d"][scatter % 4].to_owned(),
        ["gold", "silver", "bronze", "none"][(scatter / 4) % 4].to_owned(),
        ((scatter / 16) % 100).to_string(),
    ]
}

/// The place of each key of the program among [`KEYS`].
struct Layout(Vec<usize>);

struct Texts<'a>(&'a Layout, &'a [String; 3]);

impl Record for Texts<'_> {
    fn get(&self, key: KeyId) -> Option<Value<'_>> {
        Some(Value::Text(&self.1[self.0.0[key.0 as usize]]))
    }
}

struct Parsings<'a>(&'a Layout, &'a [Parsed; 3]);

impl Record for Parsings<'_> {
    fn get(&self, key: KeyId) -> Option<Value<'_>> {
        Some(Value::Parsed(&self.1[self.0.0[key.0 as usize]]))
    }
}

/// A dictionary per key, as the routing core keeps one.
struct Table {
    layout: Layout,
    columns: Vec<(Vec<u32>, Vec<Parsed>)>,
}

impl Table {
    fn new(layout: Layout, records: &[[String; 3]]) -> Self {
        let columns = (0..KEYS.len())
            .map(|key| {
                let mut values: Vec<&str> = records.iter().map(|record| record[key].as_str()).collect();
                values.sort_unstable();
                values.dedup();
                let codes =
                    records.iter().map(|record| values.binary_search(&record[key].as_str()).expect("listed") as u32);
                (codes.collect(), values.iter().map(|value| Parsed::text(*value)).collect())
            })
            .collect();
        Self { layout, columns }
    }
}

impl Columns for Table {
    fn len(&self) -> usize {
        RECORDS
    }

    fn column(&self, key: KeyId) -> Option<Column<'_>> {
        let (codes, values) = &self.columns[self.layout.0[key.0 as usize]];
        Some(Column { codes, values })
    }
}

fn compile(text: &str) -> (Program, Layout) {
    let mut table = KeyTable::new(BTreeMap::from([("load".to_owned(), Type::Number)]));
    let program = Expr::parse(text).expect("it parses").bind(&mut table).expect("it binds");
    let place = |key: usize| table.key_id(KEYS[key]).map(|id| id.0 as usize);
    let mut layout = vec![0; table.keys().len()];
    for key in 0..KEYS.len() {
        if let Some(id) = place(key) {
            layout[id] = key;
        }
    }
    (program, Layout(layout))
}

fn expressions(c: &mut Criterion<ProcessorTime>) {
    let records: Vec<[String; 3]> = (0..RECORDS).map(texts).collect();
    let parsed: Vec<[Parsed; 3]> =
        records.iter().map(|record| record.each_ref().map(|text| Parsed::text(text.as_str()))).collect();
    let contexts: Vec<Context<'_, '_>> = records
        .iter()
        .map(|[zone, tier, load]| {
            let mut context = Context::default();
            context.add_variable_from_value("zone", zone.clone());
            context.add_variable_from_value("tier", tier.clone());
            context.add_variable_from_value("load", load.parse::<i64>().expect("a number"));
            context
        })
        .collect();

    for (name, ours, theirs) in EXPRESSIONS {
        let (program, layout) = compile(ours);
        let cel = cel::Program::compile(theirs).expect("it compiles");
        let table = Table::new(compile(ours).1, &records);
        let mut out = vec![0u64; RECORDS.div_ceil(64)];
        let mut scratch = Scratch::default();

        program.eval_columns(&table, &(), &mut out, &mut scratch);
        for i in 0..RECORDS {
            let expected = cel.execute(&contexts[i]).expect("it evaluates") == CelValue::Bool(true);
            assert_eq!(program.eval(&Texts(&layout, &records[i]), &()), expected, "{name} {:?}", records[i]);
            assert_eq!(program.eval(&Parsings(&layout, &parsed[i]), &()), expected, "{name} {:?}", records[i]);
            assert_eq!(out[i / 64] >> (i % 64) & 1 == 1, expected, "{name} {:?}", records[i]);
        }

        let mut group = c.benchmark_group(name);
        group.bench_function(BenchmarkId::new("metaroute, columns", RECORDS), |b| {
            b.iter(|| program.eval_columns(black_box(&table), &(), black_box(&mut out), &mut scratch));
        });
        group.bench_function(BenchmarkId::new("metaroute, parsed records", RECORDS), |b| {
            b.iter(|| parsed.iter().filter(|record| program.eval(&Parsings(&layout, black_box(record)), &())).count());
        });
        group.bench_function(BenchmarkId::new("metaroute, records of text", RECORDS), |b| {
            b.iter(|| records.iter().filter(|record| program.eval(&Texts(&layout, black_box(record)), &())).count());
        });
        group.bench_function(BenchmarkId::new("cel", RECORDS), |b| {
            b.iter(|| {
                let hits =
                    contexts.iter().filter(|context| cel.execute(black_box(context)) == Ok(CelValue::Bool(true)));
                hits.count()
            });
        });
        group.finish();
    }
}

fn config() -> Criterion<ProcessorTime> {
    Criterion::default().with_measurement(ProcessorTime).sample_size(50)
}

criterion_group! { name = benches; config = config(); targets = expressions }
criterion_main!(benches);
