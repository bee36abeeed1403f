//! JSON (RFC 8259, nothing looser) through `jsonc-parser`, which keeps the digits of numbers and gives every place.

use std::borrow::Cow;

use jsonc_parser::ast::{ObjectPropName, Value as Json};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use super::{ConfigError, DEPTH_MAX, Entry, MapBuilder, Node, Scalar, ScalarKind, Source, Value};

pub(super) fn parse<'a>(source: &Source<'a>) -> Result<Node<'a>, ConfigError> {
    let (text, mark) = match source.text.strip_prefix('\u{feff}') {
        Some(text) => (text, '\u{feff}'.len_utf8()),
        None => (source.text, 0),
    };
    check_depth(source)?;
    let strict = ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let parsed = parse_to_ast(text, &CollectOptions::default(), &strict).map_err(|error| {
        let message = error.kind().to_string();
        let message = message.strip_suffix('.').unwrap_or(&message).to_lowercase();
        source.error(mark + error.range().start, "bad_json", format!("not JSON: {message}"))
    })?;
    match parsed.value {
        Some(value) => convert(source, value, mark),
        None => Err(source.error(0, "bad_json", "not JSON: the file is empty")),
    }
}

/// The parser recurses; bounding the depth beforehand keeps the stack small whatever the input.
fn check_depth(source: &Source<'_>) -> Result<(), ConfigError> {
    let (mut depth, mut in_text, mut escaped) = (0usize, false, false);
    for (at, byte) in source.text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Err(source.error(at, "too_deep", format!("nested more than {DEPTH_MAX} deep")));
                }
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

fn convert<'a>(source: &Source<'a>, value: Json<'a>, mark: usize) -> Result<Node<'a>, ConfigError> {
    let span = mark + value.start()..mark + value.end();
    let scalar = |text: Cow<'a, str>, kind| Value::Scalar(Scalar { text, kind });
    let value = match value {
        Json::StringLit(text) => scalar(text.value, ScalarKind::Text),
        Json::NumberLit(number) => scalar(Cow::Borrowed(number.value), ScalarKind::Number),
        Json::BooleanLit(b) => scalar(Cow::Borrowed(if b.value { "true" } else { "false" }), ScalarKind::Bool),
        Json::NullKeyword(_) => Value::Scalar(Scalar::null()),
        Json::Array(array) => {
            Value::List(array.elements.into_iter().map(|item| convert(source, item, mark)).collect::<Result<_, _>>()?)
        }
        Json::Object(object) => {
            let mut map = MapBuilder { entries: Vec::with_capacity(object.properties.len()), ..MapBuilder::default() };
            for property in object.properties {
                let key_span = mark + property.name.start()..mark + property.name.end();
                let key = match property.name {
                    ObjectPropName::String(name) => name.value,
                    ObjectPropName::Word(word) => Cow::Borrowed(word.value),
                };
                if map.find(&key).is_some() {
                    let message = format!("key `{key}` is written twice");
                    return Err(source.error(key_span.start, "duplicate_key", message).key(&key));
                }
                map.push(Entry { key, key_span, node: convert(source, property.value, mark)? });
            }
            Value::Map(map.entries)
        }
    };
    Ok(Node { value, span })
}
