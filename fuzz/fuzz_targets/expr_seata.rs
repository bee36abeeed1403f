//! Any text in dialect `seata`: never a panic, and spaces evened out change no answer.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use metaroute_expr::{Dialect, Expr, KeyId, KeyTable, LintInput, Parsed, Record, Value, lint};

struct Values<'a>(Vec<&'a str>, Vec<Parsed>);

impl Record for Values<'_> {
    fn get(&self, key: KeyId) -> Option<Value<'_>> {
        let count = self.0.len().max(1);
        self.0.get(key.0 as usize % count).map(|text| Value::Text(text))
    }
}

struct Ready<'a, 'b>(&'a Values<'b>);

impl Record for Ready<'_, '_> {
    fn get(&self, key: KeyId) -> Option<Value<'_>> {
        let count = self.0.1.len().max(1);
        self.0.1.get(key.0 as usize % count).map(Value::Parsed)
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.split('\n');
    let source = lines.next().unwrap_or("");
    let texts: Vec<&str> = lines.take(8).collect();
    let parsed = texts.iter().map(|text| Parsed::text(*text)).collect();
    let values = Values(texts, parsed);
    let expr = match Expr::parse_as(source, Dialect::Seata) {
        Ok(expr) => expr,
        Err(error) => {
            assert!(error.span.start <= error.span.end && error.span.end <= source.len());
            let _ = error.render(source);
            return;
        }
    };
    let printed = expr.to_string();
    let again = Expr::parse_as(&printed, Dialect::Seata).expect("evened out it is still valid");
    assert_eq!(again, expr);
    assert_eq!(again.to_string(), printed);
    let program = expr.bind(&mut KeyTable::default()).expect("a key table refuses nothing");
    let value = program.eval(&values, &());
    assert_eq!(program.eval(&Ready(&values), &()), value);
    assert_eq!(program.decide(&values, &()).value, value);
    let _ = lint(&expr, &LintInput { types: &BTreeMap::new(), inventory: None });
});
