//! Evaluation allocates nothing: counted, not believed. The count is per thread, since other tests run beside this one.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use metaroute_expr::{
    Column, Columns, Context, Dialect, Expr, KeyId, KeyTable, Parsed, Program, Record, Scratch, SlotId, Value,
};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(run: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    run();
    ALLOCATIONS.get() - before
}

struct Same<'a>(Value<'a>);

impl Record for Same<'_> {
    fn get(&self, _: KeyId) -> Option<Value<'_>> {
        Some(self.0)
    }
}

struct Text(&'static str);

impl Context for Text {
    fn get(&self, _: SlotId) -> Option<&str> {
        Some(self.0)
    }
}

struct Table {
    codes: Vec<u32>,
    values: Vec<Parsed>,
}

impl Columns for Table {
    fn len(&self) -> usize {
        self.codes.len()
    }

    fn column(&self, _: KeyId) -> Option<Column<'_>> {
        Some(Column { codes: &self.codes, values: &self.values })
    }
}

const EXPRESSIONS: [&str; 17] = [
    "env == prod && env != dev || !(env in (a, b, 2.10))",
    "version >= 2.10 && version < 3.0.0-rc.1",
    "version in range \"^2.3\"",
    "tier > 123456789012345678901234567890.5 || tier <= -0.000000000000000000000001",
    "name like \"a*b?c\"",
    "name matches \"[a-z]+(-[0-9]{1,3})*|\\\\p{Han}+\"",
    "lower(name) == abc || lower(name) like \"a*\" || lower(name) matches \"a.*\" || lower(version) > 2.3",
    "tags == a && tags not in (b, c) && tags like \"x*\"",
    "at >= 2024-01-01T00:00:00Z && at < 2025-01-01",
    "exists(a) && !exists(b)",
    "zone == $caller.zone || zone != $req.zone?",
    "$caller.version > 2.3 && $req.tags == a",
    "$self.zone == $self.cluster",
    "a == 1 || (b == 2 && (c == 3 || !(d == 4)))",
    "a == \"501\" || a >= 501",
    "port in (80, 443, 8080)",
    "",
];

#[test]
fn evaluation_allocates_nothing() {
    let types =
        [("tags", "set"), ("at", "time(ms)")].map(|(key, word)| (key.to_owned(), word.parse().expect("a type")));
    let mut table = KeyTable::new(types.into());
    let mut programs: Vec<(String, Program)> = Vec::new();
    for text in EXPRESSIONS {
        programs.push((text.to_owned(), Expr::parse(text).expect(text).bind(&mut table).expect("bound")));
    }
    for text in ["version >= 2.3", "(a == 1d) || b != 0x1p3", "env == prod&&tier < Infinity"] {
        let expr = Expr::parse_as(text, Dialect::Seata).expect(text);
        programs.push((text.to_owned(), expr.bind(&mut table).expect("bound")));
    }
    let parsed = [
        "prod",
        "2.10.1-rc.2+b",
        "501",
        " 3 ",
        "a, b,c",
        "123456789012345678901234567890.7",
        "2024-06-01T00:00:00Z",
        "ABC-12",
        "1d",
    ]
    .map(Parsed::text);
    let list: Box<[Box<str>]> = ["a", "b"].map(Box::from).into();
    let parsed_list = Parsed::list(list.iter().cloned());
    let mut values = vec![
        Value::Int(501),
        Value::Int(i128::MAX),
        Value::Float(0.1),
        Value::Float(f64::MIN_POSITIVE),
        Value::Float(f64::NAN),
        Value::Decimal("2.50"),
        Value::Bool(true),
        Value::Time(1_717_200_000_000_000_000),
        Value::Bytes(b"\x00\xffabc"),
        Value::List(&list),
        Value::Parsed(&parsed_list),
        Value::Text("İstanbul-北京"),
    ];
    for parsed in &parsed {
        values.push(Value::Parsed(parsed));
        values.push(Value::Text(parsed.as_text()));
    }

    let rows = 1000;
    let columns = Table { codes: (0..rows).map(|row| row % 11).collect(), values: parsed.to_vec() };
    let mut bits = vec![0; 16];
    let mut scratch = Scratch::default();
    let mut checked = 0;
    for (text, program) in &programs {
        for value in &values {
            let count = allocations(|| {
                let _ = program.eval(&Same(*value), &Text("2.10"));
                let _ = program.decide(&Same(*value), &());
            });
            assert_eq!(count, 0, "{text} on {value:?}");
            checked += 1;
        }
        // The first run may grow the scratch memory.
        program.eval_columns(&columns, &Text("a"), &mut bits, &mut scratch);
        let count = allocations(|| program.eval_columns(&columns, &Text("a"), &mut bits, &mut scratch));
        assert_eq!(count, 0, "{text} on columns");
        checked += 1;
    }
    assert!(allocations(|| drop(std::hint::black_box(vec![1, 2, 3]))) > 0, "the counter counts");
    assert!(checked > 500);
}
