//! Scalars: what a plain word is, where a character of a value stands in the source, and JSON text of a value.

use std::fmt::Write;

use super::{Node, ScalarKind, Value};

/// Whether a text is an optional sign, digits and an optional fraction: `2`, `-3`, `2.10`, but neither `.5` nor `1e3`.
pub fn is_plain_decimal(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    all_digits(whole) && all_digits(fraction)
}

/// Whether a text is a decimal number, perhaps with exponent, as YAML's core schema writes them.
pub(super) fn is_number(text: &str) -> bool {
    let Some(first) = text.bytes().next() else { return false };
    if !(first.is_ascii_digit() || matches!(first, b'+' | b'-' | b'.')) {
        return false;
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    digits(whole)
        && digits(fraction)
        && (!whole.is_empty() || !fraction.is_empty())
        && exponent.is_none_or(|e| {
            let e = e.strip_prefix(['+', '-']).unwrap_or(e);
            !e.is_empty() && digits(e)
        })
}

/// What YAML's core schema takes an unquoted word for.
pub(super) fn plain_kind(text: &str) -> ScalarKind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => ScalarKind::Null,
        "true" | "True" | "TRUE" | "false" | "False" | "FALSE" => ScalarKind::Bool,
        _ if is_number(text) => ScalarKind::Number,
        _ => ScalarKind::Text,
    }
}

/// The known word closest to what was written, when one is close enough to be meant. Case and separators do not count.
pub fn suggest<'k>(written: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    fn plain(text: &str) -> impl Iterator<Item = char> + '_ {
        text.chars().filter(|c| !matches!(c, '-' | '_' | '.' | ' ')).flat_map(char::to_lowercase)
    }
    let wanted: String = plain(written).take(SUGGEST_CHARS_MAX + 1).collect();
    let length = wanted.chars().count();
    if length > SUGGEST_CHARS_MAX {
        return None;
    }
    // Long words may be off by more letters than short ones.
    let allowed = (length / 3).clamp(1, 4);
    known
        .into_iter()
        // A distance is at least the difference in length: most words need no closer look.
        .filter(|word| plain(word).count().abs_diff(length) <= allowed)
        .map(|word| (strsim::osa_distance(&wanted, &plain(word).collect::<String>()), word))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Longest word a suggestion is looked for; nobody misspells more, and the search is quadratic.
const SUGGEST_CHARS_MAX: usize = 64;

/// Byte offset inside the raw source text of a scalar that shows the character at byte offset `within` of its value.
///
/// Both texts are walked side by side: an escape in the source stands for one character of the value, and white space of
/// a folded or indented block may differ in amount. Where the two cannot be matched the last good place is returned.
pub(super) fn align(raw: &str, value: &str, within: usize) -> usize {
    let wanted = value.get(..within).unwrap_or(value);
    let quote = raw.chars().next().filter(|c| matches!(c, '"' | '\''));
    if raw == value || (quote.is_none() && raw.starts_with(value)) {
        return wanted.len();
    }
    // A properties value is never quoted; a backslash at a line's end continues it.
    let continued = quote.is_none() && raw.contains("\\\n");
    let mut at = match quote {
        Some(q) if raw.starts_with(&q.to_string().repeat(3)) => 3,
        Some(_) => 1,
        None => 0,
    };
    for c in wanted.chars() {
        loop {
            let rest = &raw[at..];
            let Some(r) = rest.chars().next() else { return raw.len() };
            if quote == Some('"') && r == '\\' {
                let length = match rest[1..].chars().next() {
                    Some('x') => 4,
                    Some('u') => 6,
                    Some('U') => 10,
                    Some(escaped) => 1 + escaped.len_utf8(),
                    None => 1,
                };
                let mut end = (at + length).min(raw.len());
                while !raw.is_char_boundary(end) {
                    end -= 1;
                }
                // A UTF-16 pair is two escapes and one character.
                if length == 6 && c as u32 > 0xFFFF && raw[end..].starts_with("\\u") {
                    end = (end + 6).min(raw.len());
                    while !raw.is_char_boundary(end) {
                        end -= 1;
                    }
                }
                at = end;
                break;
            }
            if continued && rest.starts_with("\\\n") {
                at += 2 + rest[2..].bytes().take_while(|b| matches!(b, b' ' | b'\t')).count();
                continue;
            }
            if r == c {
                at += r.len_utf8();
                if quote == Some('\'') && r == '\'' && raw[at..].starts_with('\'') {
                    at += 1;
                }
                break;
            }
            if c.is_whitespace() && r.is_whitespace() {
                at += rest.len() - rest.trim_start().len();
                break;
            }
            // Indentation, a block header or a line break that the value does not have.
            at += r.len_utf8();
        }
    }
    // The next character of the value may be preceded by indentation the value does not have.
    if continued && raw[at..].starts_with("\\\n") {
        at += 2;
    }
    if let Some(next) = value[wanted.len()..].chars().next().filter(|c| !c.is_whitespace()) {
        let rest = &raw[at..];
        let skipped = rest.len() - rest.trim_start().len();
        if rest[skipped..].starts_with(next) {
            at += skipped;
        }
    }
    at
}

pub(super) fn write_json(node: &Node<'_>, out: &mut String) {
    match &node.value {
        Value::List(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json(item, out);
            }
            out.push(']');
        }
        Value::Map(entries) => {
            out.push('{');
            for (i, entry) in entries.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json_text(&entry.key, out);
                out.push(':');
                write_json(&entry.node, out);
            }
            out.push('}');
        }
        Value::Scalar(scalar) => match scalar.kind {
            ScalarKind::Null => out.push_str("null"),
            ScalarKind::Bool => out.push_str(if scalar.text.eq_ignore_ascii_case("true") { "true" } else { "false" }),
            ScalarKind::Number if is_json_number(&scalar.text) => out.push_str(&scalar.text),
            _ => write_json_text(&scalar.text, out),
        },
    }
}

fn is_json_number(text: &str) -> bool {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let whole = unsigned.split(['.', 'e', 'E']).next().unwrap_or_default();
    is_number(text)
        && unsigned.starts_with(|c: char| c.is_ascii_digit())
        && (whole.len() == 1 || !whole.starts_with('0'))
        && !unsigned.contains(".e")
        && !unsigned.contains(".E")
        && !unsigned.ends_with('.')
}

fn write_json_text(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 => {
                write!(out, "\\u{:04x}", u32::from(c)).expect("writing to a string never fails")
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
