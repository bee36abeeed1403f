//! TOML through the `toml` crate's spanned values, which keep the digits of floats.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{ConfigError, DEPTH_MAX, Entry, Node, Scalar, ScalarKind, Source, Value};

pub(super) fn parse<'a>(source: &Source<'a>) -> Result<Node<'a>, ConfigError> {
    let table = DeTable::parse(source.text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        source.error(at, "bad_toml", format!("not TOML: {message}"))
    })?;
    let span = table.span();
    map(source, table.into_inner(), span, 0)
}

fn map<'a>(
    source: &Source<'a>,
    table: DeTable<'a>,
    span: std::ops::Range<usize>,
    depth: usize,
) -> Result<Node<'a>, ConfigError> {
    let mut entries: Vec<Entry<'a>> = Vec::with_capacity(table.len());
    for (key, value) in table {
        let key_span = key.span();
        entries.push(Entry { key: key.into_inner(), key_span, node: convert(source, value, depth + 1)? });
    }
    // The crate's map is sorted by key; files are read in the order people wrote them.
    entries.sort_by_key(|entry| entry.key_span.start);
    Ok(Node { value: Value::Map(entries), span })
}

fn convert<'a>(source: &Source<'a>, value: Spanned<DeValue<'a>>, depth: usize) -> Result<Node<'a>, ConfigError> {
    let span = value.span();
    if depth > DEPTH_MAX {
        return Err(source.error(span.start, "too_deep", format!("nested more than {DEPTH_MAX} deep")));
    }
    let scalar = |text: Cow<'a, str>, kind| Value::Scalar(Scalar { text, kind });
    let value = match value.into_inner() {
        DeValue::String(text) => scalar(text, ScalarKind::Text),
        DeValue::Integer(i) if i.radix() == 10 => scalar(Cow::Owned(i.as_str().to_owned()), ScalarKind::Number),
        DeValue::Integer(i) => match i128::from_str_radix(i.as_str(), i.radix()) {
            Ok(number) => scalar(Cow::Owned(number.to_string()), ScalarKind::Number),
            Err(_) => return Err(source.error(span.start, "bad_toml", format!("number `{i}` is too large"))),
        },
        DeValue::Float(f) => scalar(Cow::Owned(f.as_str().to_owned()), ScalarKind::Number),
        DeValue::Boolean(b) => scalar(Cow::Borrowed(if b { "true" } else { "false" }), ScalarKind::Bool),
        DeValue::Datetime(time) => scalar(Cow::Owned(time.to_string()), ScalarKind::Text),
        DeValue::Array(items) => {
            Value::List(items.into_iter().map(|item| convert(source, item, depth + 1)).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => return map(source, table, span, depth),
    };
    Ok(Node { value, span })
}
