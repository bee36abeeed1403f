//! Java properties, as `java.util.Properties.load` reads them: `=`, `:` or white space after the key, `#` and `!`
//! comments, `\` escapes and continued lines, `\uXXXX`. The file is taken as UTF-8, as Spring Boot's users write it.

use std::borrow::Cow;
use std::ops::Range;

use super::{ConfigError, DEPTH_MAX, Entry, Node, Scalar, ScalarKind, Source, Value};

/// Every assignment in order, keys as written; a repeated key is kept twice, the later one wins by Java's rule.
pub(super) fn entries<'a>(source: &Source<'a>) -> Result<Vec<Entry<'a>>, ConfigError> {
    let mut out = Vec::new();
    let text = source.text;
    let mut at = if text.starts_with('\u{feff}') { 3 } else { 0 };
    while at < text.len() {
        let bytes = text.as_bytes();
        // White space and blank lines before a key do not count.
        if matches!(bytes[at], b' ' | b'\t' | b'\x0c' | b'\r' | b'\n') {
            at += 1;
            continue;
        }
        if matches!(bytes[at], b'#' | b'!') {
            at += text[at..].find(['\n', '\r']).unwrap_or(text.len() - at);
            continue;
        }
        let (key, key_span, after) = read(source, at, true)?;
        let mut value_start = after;
        let rest = |from: usize| text[from..].bytes();
        let blank = |b: &u8| matches!(b, b' ' | b'\t' | b'\x0c');
        value_start += rest(value_start).take_while(|b| blank(b)).count();
        if matches!(bytes.get(value_start), Some(b'=' | b':')) {
            value_start += 1;
            value_start += rest(value_start).take_while(|b| blank(b)).count();
        }
        let (value, span, end) = read(source, value_start, false)?;
        let node = Node { value: Value::Scalar(Scalar { text: value, kind: ScalarKind::Text }), span };
        out.push(Entry { key, key_span, node });
        at = end;
    }
    Ok(out)
}

/// Reads a key or a value from `start`; gives its text, its bytes and where reading stopped.
fn read<'a>(source: &Source<'a>, start: usize, key: bool) -> Result<(Cow<'a, str>, Range<usize>, usize), ConfigError> {
    let text = source.text;
    let mut owned: Option<String> = None;
    let mut at = start;
    while let Some(c) = text[at..].chars().next() {
        match c {
            '\n' | '\r' => break,
            '=' | ':' | ' ' | '\t' | '\x0c' if key => break,
            '\\' => {
                let out = owned.get_or_insert_with(|| text[start..at].to_owned());
                at += 1;
                let Some(escaped) = text[at..].chars().next() else { break };
                at += escaped.len_utf8();
                match escaped {
                    't' => out.push('\t'),
                    'n' => out.push('\n'),
                    'r' => out.push('\r'),
                    'f' => out.push('\x0c'),
                    '\n' | '\r' => {
                        if escaped == '\r' && text[at..].starts_with('\n') {
                            at += 1;
                        }
                        at += text[at..].bytes().take_while(|b| matches!(b, b' ' | b'\t' | b'\x0c')).count();
                    }
                    'u' => {
                        let (c, used) = unicode(source, at)?;
                        out.push(c);
                        at += used;
                    }
                    other => out.push(other),
                }
                continue;
            }
            _ => {}
        }
        if let Some(out) = &mut owned {
            out.push(c);
        }
        at += c.len_utf8();
    }
    let value = owned.map_or(Cow::Borrowed(&text[start..at]), Cow::Owned);
    Ok((value, start..at, at))
}

/// The character of `\uXXXX` (after the `u`), joining a UTF-16 pair; a lone surrogate becomes U+FFFD.
fn unicode(source: &Source<'_>, at: usize) -> Result<(char, usize), ConfigError> {
    let unit = |from: usize| {
        let hex = source.text.get(from..from + 4).filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit()))?;
        u32::from_str_radix(hex, 16).ok()
    };
    let Some(first) = unit(at) else {
        return Err(source
            .error(
                at.saturating_sub(2),
                "bad_properties",
                "malformed `\\u` escape, four hexadecimal digits must follow",
            )
            .hint("write `\\\\` for a backslash"));
    };
    if (0xD800..0xDC00).contains(&first)
        && source.text[at + 4..].starts_with("\\u")
        && let Some(second) = unit(at + 6).filter(|unit| (0xDC00..0xE000).contains(unit))
    {
        let joined = 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
        return Ok((char::from_u32(joined).unwrap_or('\u{fffd}'), 10));
    }
    Ok((char::from_u32(first).unwrap_or('\u{fffd}'), 4))
}

/// The file as nested maps: `a.b=1` is `a: {b: 1}`, `a[0]=x` is `a: [x]`.
pub(super) fn parse<'a>(source: &Source<'a>) -> Result<Node<'a>, ConfigError> {
    let mut root = Node { value: Value::Map(Vec::new()), span: 0..0 };
    for entry in entries(source)? {
        let steps = steps(&entry.key);
        if steps.len() > DEPTH_MAX {
            return Err(source.error(entry.key_span.start, "too_deep", format!("nested more than {DEPTH_MAX} deep")));
        }
        insert(source, &mut root, &steps, &entry)?;
    }
    Ok(root)
}

enum Step {
    Key(String),
    Item(usize),
}

fn steps(key: &str) -> Vec<Step> {
    let mut out = Vec::new();
    for part in key.split('.') {
        let (name, items) = match part.find('[') {
            Some(open) if part.ends_with(']') => part.split_at(open),
            _ => (part, ""),
        };
        let indexes: Option<Vec<usize>> = items
            .split(']')
            .filter(|item| !item.is_empty())
            .map(|item| item.strip_prefix('[').and_then(|n| n.parse().ok()))
            .collect();
        match indexes {
            Some(indexes) => {
                if !name.is_empty() || indexes.is_empty() {
                    out.push(Step::Key(name.to_owned()));
                }
                out.extend(indexes.into_iter().map(Step::Item));
            }
            None => out.push(Step::Key(part.to_owned())),
        }
    }
    out
}

fn insert<'a>(source: &Source<'a>, node: &mut Node<'a>, steps: &[Step], entry: &Entry<'a>) -> Result<(), ConfigError> {
    let clash = || {
        let message = format!("`{}` is both a value and a table", entry.key);
        source.error(entry.key_span.start, "duplicate_key", message).key(&entry.key)
    };
    let Some((step, rest)) = steps.split_first() else {
        return match node.value {
            Value::Scalar(_) => {
                *node = entry.node.clone();
                Ok(())
            }
            _ => Err(clash()),
        };
    };
    let fresh = |steps: &[Step]| match steps.first() {
        None => Node { value: Value::Scalar(Scalar::null()), span: entry.node.span.clone() },
        Some(Step::Key(_)) => Node { value: Value::Map(Vec::new()), span: entry.key_span.clone() },
        Some(Step::Item(_)) => Node { value: Value::List(Vec::new()), span: entry.key_span.clone() },
    };
    match (&mut node.value, step) {
        (Value::Map(entries), Step::Key(key)) => {
            let at = match entries.iter().position(|e| e.key == *key) {
                Some(at) => at,
                None => {
                    let key = Cow::Owned(key.clone());
                    entries.push(Entry { key, key_span: entry.key_span.clone(), node: fresh(rest) });
                    entries.len() - 1
                }
            };
            insert(source, &mut entries[at].node, rest, entry)
        }
        (Value::List(items), Step::Item(index)) => {
            if *index > items.len() {
                let message = format!("list index {index} in `{}` skips an item", entry.key);
                return Err(source.error(entry.key_span.start, "bad_properties", message).key(&entry.key));
            }
            if *index == items.len() {
                items.push(fresh(rest));
            }
            insert(source, &mut items[*index], rest, entry)
        }
        _ => Err(clash()),
    }
}
