//! JSON objects of requests, read strictly.
//!
//! Ready-made readers turn objects into maps and so drop all but one of several equal keys, and they tell of an unknown
//! key without saying where a better one would be. Here an object is the list of its keys with the values still as text,
//! so that numbers keep all their digits, a JSON column its very characters, and every mistake its name.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::problem::Problem;

/// An object: keys in order, each once, values as written.
pub(super) struct Object<'a>(pub(super) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Object<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
                while let Some(Key(key)) = map.next_key()? {
                    if entries.iter().any(|(known, _)| *known == key) {
                        return Err(serde::de::Error::custom(format_args!("key `{key}` appears twice")));
                    }
                    // A bound, so that the search above stays cheap whatever is sent.
                    if entries.len() == KEYS_MAX {
                        return Err(serde::de::Error::custom(format_args!("more than {KEYS_MAX} keys")));
                    }
                    entries.push((key, map.next_value()?));
                }
                Ok(Object(entries))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// Most keys of one object: a row may have as many columns, with both names for two of them.
const KEYS_MAX: usize = metaroute_store::COLUMNS_MAX + 2;

/// A key, borrowed where it has no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Reads a body that must be one JSON object.
///
/// # Errors
/// `bad_request` with line and column.
pub(super) fn object<'a>(body: &'a [u8]) -> Result<Object<'a>, Problem> {
    serde_json::from_str(text(body)?).map_err(|error| {
        let problem = Problem::bad_request(format!("the body is not a JSON object as expected: {error}"));
        // The end of nothing has column 0.
        problem.at(error.line() as u32, error.column().max(1) as u32)
    })
}

/// A body as text.
///
/// # Errors
/// `bad_request`; for what is compressed it says that.
pub(super) fn text(body: &[u8]) -> Result<&str, Problem> {
    std::str::from_utf8(body).map_err(|_| {
        let problem = Problem::bad_request("the body is not UTF-8");
        // How gzip and zstd begin; neither is UTF-8.
        let compressed = body.starts_with(b"\x1f\x8b") || body.starts_with(b"\x28\xb5\x2f\xfd");
        if compressed { problem.hint("send it as it is: compressed bodies are not read") } else { problem }
    })
}

/// Whether a value is `null`.
pub(super) fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

/// The text of a JSON string; `None` for other values, and for escapes that are no characters.
pub(super) fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    if !raw.get().starts_with('"') {
        return None;
    }
    serde_json::from_str::<Key<'_>>(raw.get()).ok().map(|key| key.0)
}

/// The text of a JSON number.
pub(super) fn number(raw: &RawValue) -> Option<&str> {
    let text = raw.get();
    text.starts_with(|c: char| c == '-' || c.is_ascii_digit()).then_some(text)
}

/// The items of a JSON array.
pub(super) fn array(raw: &RawValue) -> Option<Vec<&RawValue>> {
    if !raw.get().starts_with('[') {
        return None;
    }
    serde_json::from_str(raw.get()).ok()
}

/// A value as it should appear in a message: cut short.
pub(super) fn shown(raw: &RawValue) -> String {
    let text = raw.get();
    if text.chars().count() <= 60 { text.to_owned() } else { text.chars().take(60).collect::<String>() + "…" }
}

/// A JSON number as plain digits, `-?digits[.digits]`, without an exponent; `None` when it would not fit 100 characters,
/// which no column holds.
pub(super) fn plain_number(text: &str) -> Option<String> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        None => (unsigned, 0_i32),
        Some((mantissa, exponent)) => (mantissa, exponent.strip_prefix('+').unwrap_or(exponent).parse().ok()?),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.len() > 100 || exponent.abs() > 100 {
        // Zero is zero whatever its exponent.
        return digits.bytes().all(|b| b == b'0').then(|| "0".to_owned());
    }
    let point = whole.len() as i32 + exponent;
    let (whole, fraction) = if point <= 0 {
        ("0".to_owned(), "0".repeat(point.unsigned_abs() as usize) + &digits)
    } else if point as usize >= digits.len() {
        (digits.clone() + &"0".repeat(point as usize - digits.len()), String::new())
    } else {
        (digits[..point as usize].to_owned(), digits[point as usize..].to_owned())
    };
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    let sign = if negative && !(whole == "0" && fraction.is_empty()) { "-" } else { "" };
    Some(if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_written_out_exactly() {
        for (text, plain) in [
            ("0", "0"),
            ("-0", "0"),
            ("18446744073709551615", "18446744073709551615"),
            ("1.50", "1.5"),
            ("5.0", "5"),
            ("1e3", "1000"),
            ("1.25E+1", "12.5"),
            ("-12e-3", "-0.012"),
            ("0e999", "0"),
        ] {
            assert_eq!(plain_number(text).as_deref(), Some(plain), "{text}");
        }
        assert_eq!(plain_number("1e500"), None);
    }

    #[test]
    fn objects_keep_order_and_refuse_twins() {
        let Ok(object) = object(br#"{"a": 1, "\u0062": [2], "c": null}"#) else { panic!("legal") };
        let shown: Vec<String> = object.0.iter().map(|(key, raw)| format!("{key}={}", raw.get())).collect();
        assert_eq!(shown, ["a=1", "b=[2]", "c=null"]);
        let twins = super::object(br#"{"a": 1, "\u0061": 2}"#).err().expect("refused");
        assert!(twins.to_string().contains("`a` appears twice"), "{twins}");
        assert!(super::object(b"[]").is_err());
        assert!(super::object(b"{\"a\": \xff}").is_err());
    }

    proptest! {
        #[test]
        fn plain_numbers_have_the_value_they_had(mantissa in -999_999_i64..999_999, exponent in -20_i32..20) {
            let text = format!("{mantissa}e{exponent}");
            let plain = plain_number(&text).expect("short");
            prop_assert_eq!(plain.parse::<f64>().expect("a number"), text.parse::<f64>().expect("a number"));
        }
    }
}
