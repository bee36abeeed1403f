//! Any text, up to a few values: parsing, printing, binding, both evaluations and lint agree and never panic.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use metaroute_expr::{
    Column, Columns, Context, Expr, KeyId, KeyTable, LintInput, Parsed, Record, Scratch, SlotId, Value, lint,
};

struct Values<'a>(Vec<&'a str>);

impl Record for Values<'_> {
    fn get(&self, key: KeyId) -> Option<Value<'_>> {
        let count = self.0.len().max(1);
        self.0.get(key.0 as usize % count).filter(|text| **text != "-").map(|text| Value::Text(text))
    }
}

impl Context for Values<'_> {
    fn get(&self, slot: SlotId) -> Option<&str> {
        self.0.get(slot.0 as usize).copied()
    }
}

/// The same record as the one row of dictionary columns.
struct OneRow(Vec<(Vec<u32>, Vec<Parsed>)>);

impl Columns for OneRow {
    fn len(&self) -> usize {
        1
    }

    fn column(&self, key: KeyId) -> Option<Column<'_>> {
        self.0.get(key.0 as usize).map(|(codes, values)| Column { codes, values })
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // The first line is the expression, the others are values.
    let mut lines = text.split('\n');
    let source = lines.next().unwrap_or("");
    let values = Values(lines.take(8).collect());
    let expr = match Expr::parse(source) {
        Ok(expr) => expr,
        Err(error) => {
            assert!(error.span.start <= error.span.end && error.span.end <= source.len());
            let _ = error.render(source);
            return;
        }
    };
    let printed = expr.to_string();
    // A canonical form may be a little longer than the limit its source just kept.
    let Ok(again) = Expr::parse(&printed) else {
        assert!(printed.len() > 8192, "{printed}");
        return;
    };
    assert_eq!(again, expr);
    assert_eq!(again.to_string(), printed);

    let types = [("s", "set"), ("n", "number"), ("v", "version"), ("t", "time(ms)"), ("x", "text")];
    let types: BTreeMap<_, _> =
        types.iter().map(|(key, word)| ((*key).to_owned(), word.parse().expect("a type"))).collect();
    let mut table = KeyTable::new(types.clone());
    let program = expr.bind(&mut table).expect("a key table refuses nothing");
    let value = program.eval(&values, &values);
    assert_eq!(program.decide(&values, &values).value, value);

    let columns = (0..table.keys().len()).map(|key| match values.get_text(key) {
        Some(text) => (vec![0], vec![Parsed::text(text)]),
        None => (vec![Column::ABSENT], Vec::new()),
    });
    let columns = OneRow(columns.collect());
    let mut bits = [u64::MAX];
    program.eval_columns(&columns, &values, &mut bits, &mut Scratch::default());
    assert_eq!(bits[0], u64::from(value));

    let findings = lint(&expr, &LintInput { types: &types, inventory: None });
    if findings.iter().any(|finding| finding.code == "unsatisfiable" && finding.message.starts_with("this ")) {
        assert!(!value, "{printed}");
    }
    if findings.iter().any(|finding| finding.code == "tautology" && finding.message.starts_with("this ")) {
        assert!(value, "{printed}");
    }
});

impl Values<'_> {
    fn get_text(&self, key: usize) -> Option<&str> {
        match Record::get(self, KeyId(key as u32)) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }
}
