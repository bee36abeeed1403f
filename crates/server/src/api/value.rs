//! Cells as JSON, in both directions.
//!
//! Answers write 64-bit integers and decimals as strings, because a JavaScript number has 53 bits and would change an id
//! without telling anybody; a client that can read them as numbers says so. Requests may use either. Nothing is rounded
//! or cut: a value that a column cannot hold exactly is refused.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use metaroute_store::{ColumnType, Value, ValueError};
use serde_json::value::RawValue;

use super::json;

/// How 64-bit integers and decimals are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ints {
    /// As strings.
    #[default]
    Strings,
    /// As numbers.
    Numbers,
}

/// Appends a cell.
pub(super) fn write(out: &mut Vec<u8>, value: &Value, ty: ColumnType, ints: Ints) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::U64(v) => integer(out, ints, |out| json_text(out, v)),
        Value::I64(v) => integer(out, ints, |out| json_text(out, v)),
        Value::Decimal(v) => integer(out, ints, |out| out.extend_from_slice(v.as_bytes())),
        Value::F64(v) => json_text(out, v),
        Value::Bool(v) => out.extend_from_slice(if *v { b"true" } else { b"false" }),
        Value::String(v) => string(out, v),
        Value::Bytes(v) => string(out, &STANDARD.encode(v)),
        Value::Json(v) => out.extend_from_slice(v.as_bytes()),
        Value::Timestamp(_) | Value::Datetime(_) | Value::Date(_) => {
            // Digits, separators and letters only: nothing to escape.
            out.push(b'"');
            match (value, ty) {
                (Value::Timestamp(micros), ColumnType::Timestamp { digits }) if is_common(*micros) => {
                    time(out, *micros, digits);
                    out.push(b'Z');
                }
                (Value::Datetime(micros), ColumnType::Datetime { digits }) if is_common(*micros) => {
                    time(out, *micros, digits);
                }
                _ => out.extend_from_slice(value.to_text(ty).unwrap_or_default().as_bytes()),
            }
            out.push(b'"');
        }
        // A type of a later store crate; better visible than wrong.
        _ => out.extend_from_slice(b"null"),
    }
}

fn integer(out: &mut Vec<u8>, ints: Ints, digits: impl FnOnce(&mut Vec<u8>)) {
    match ints {
        Ints::Numbers => digits(out),
        Ints::Strings => {
            out.push(b'"');
            digits(out);
            out.push(b'"');
        }
    }
}

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;
/// The first days of the years 1970 and 10,000, in µs.
const COMMON: std::ops::Range<i64> = 0..2_932_897 * DAY;

/// Whether [`time`] can write a point in time.
fn is_common(micros: i64) -> bool {
    COMMON.contains(&micros)
}

/// Appends `2024-02-29T12:00:00.123`. Two times a row make formatting them the larger part of writing a page, so this
/// goes without the general machinery for calendars. Days to dates as in Howard Hinnant, *chrono-Compatible Low-Level
/// Date Algorithms* (`civil_from_days`), for days since 1970 that are not negative.
fn time(out: &mut Vec<u8>, micros: i64, digits: u8) {
    let (days, rest) = ((micros / DAY) as u64, (micros % DAY) as u64);
    // Eras of 400 years that begin in March, so that the leap day is a year's last.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (seconds, micros) = (rest / SECOND as u64, rest % SECOND as u64);
    let mut text = *b"0000-00-00T00:00:00.000000";
    let mut put = |at: usize, number: u64| {
        text[at] = b'0' + (number / 10) as u8;
        text[at + 1] = b'0' + (number % 10) as u8;
    };
    put(0, year / 100);
    put(2, year % 100);
    put(5, month);
    put(8, day);
    put(11, seconds / 3_600);
    put(14, seconds / 60 % 60);
    put(17, seconds % 60);
    put(20, micros / 10_000);
    put(22, micros / 100 % 100);
    put(24, micros % 100);
    let end = match digits {
        0 => 19,
        digits => 20 + usize::from(digits.min(6)),
    };
    out.extend_from_slice(&text[..end]);
}

/// Appends a text in quotes.
fn string(out: &mut Vec<u8>, text: &str) {
    // Hardly a path has anything to escape, and then it is copied.
    let plain = text.bytes().fold(true, |plain, byte| plain & (byte >= 0x20) & (byte != b'"') & (byte != b'\\'));
    if !plain {
        return json_text(out, text);
    }
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// Appends a value of a kind that always serialises.
pub(super) fn json_text<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("plain data into memory always serialises");
}

/// Reads a cell of a column. Whether NULL is allowed is for the caller to check.
///
/// # Errors
/// When the value is of another kind or cannot be held exactly.
pub(super) fn read(raw: &RawValue, ty: ColumnType) -> Result<Value, ValueError> {
    if json::is_null(raw) {
        return Ok(Value::Null);
    }
    let malformed = || ValueError::Malformed { expected: ty, value: json::shown(raw) };
    match ty {
        ColumnType::U64 | ColumnType::I64 | ColumnType::Decimal { .. } => {
            if let Some(number) = json::number(raw) {
                let out_of_range = || ValueError::OutOfRange { expected: ty, value: json::shown(raw) };
                let plain = json::plain_number(number).ok_or_else(out_of_range)?;
                return Value::from_text(ty, &plain);
            }
            let text = json::string(raw).ok_or_else(malformed)?;
            Value::from_text(ty, &text)
        }
        ColumnType::F64 => {
            let number = json::number(raw).ok_or_else(malformed)?;
            Value::from_text(ty, number)
        }
        ColumnType::Bool => match raw.get() {
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            _ => Err(malformed()),
        },
        ColumnType::String => json::string(raw).map(|text| Value::String(text.into_owned())).ok_or_else(malformed),
        ColumnType::Bytes => {
            let text = json::string(raw).ok_or_else(malformed)?;
            STANDARD.decode(text.as_bytes()).map(Value::Bytes).map_err(|_| malformed())
        }
        ColumnType::Json => Ok(Value::Json(raw.get().to_owned())),
        ColumnType::Timestamp { .. } | ColumnType::Datetime { .. } | ColumnType::Date => {
            let text = json::string(raw).ok_or_else(malformed)?;
            Value::from_text(ty, &text)
        }
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).expect("legal JSON")
    }

    fn round(text: &str, ty: &str, ints: Ints) -> String {
        let ty: ColumnType = ty.parse().expect("legal");
        let value = read(&raw(text), ty).and_then(|value| value.for_column(ty, true)).expect("fits");
        let mut out = Vec::new();
        write(&mut out, &value, ty, ints);
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn every_type_has_one_text() {
        for (text, ty, written) in [
            ("18446744073709551615", "u64", r#""18446744073709551615""#),
            (r#""18446744073709551615""#, "u64", r#""18446744073709551615""#),
            ("5.0", "u64", r#""5""#),
            ("-9223372036854775808", "i64", r#""-9223372036854775808""#),
            ("12.5", "decimal(20,4)", r#""12.5000""#),
            (r#""0012.5""#, "decimal(20,4)", r#""12.5000""#),
            ("1.5", "f64", "1.5"),
            ("true", "bool", "true"),
            (r#""a\nb\u0000é""#, "string", r#""a\nb\u0000é""#),
            (r#""AP8=""#, "bytes", r#""AP8=""#),
            ("{\"b\": 1,  \"a\":[1.50]}", "json", "{\"b\": 1,  \"a\":[1.50]}"),
            (r#""2024-02-29T12:00:00.123456+02:00""#, "timestamp(6)", r#""2024-02-29T10:00:00.123456Z""#),
            (r#""2024-02-29T12:00:00Z""#, "timestamp(3)", r#""2024-02-29T12:00:00.000Z""#),
            (r#""2024-02-29 12:00:00.5""#, "datetime(3)", r#""2024-02-29T12:00:00.500""#),
            (r#""2024-02-29""#, "date", r#""2024-02-29""#),
            ("null", "u64", "null"),
        ] {
            assert_eq!(round(text, ty, Ints::Strings), written, "{text} as {ty}");
        }
        assert_eq!(round("7", "u64", Ints::Numbers), "7");
        assert_eq!(round("7", "decimal(5,2)", Ints::Numbers), "7.00");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (text, ty) in [
            ("18446744073709551616", "u64"),
            ("-1", "u64"),
            ("1.5", "i64"),
            (r#""1e3""#, "u64"),
            ("true", "u64"),
            ("1e400", "f64"),
            (r#""1.5""#, "f64"),
            ("1.23456", "decimal(20,4)"),
            ("7", "string"),
            (r#""AP8""#, "bytes"),
            (r#""2024-02-29T12:00:00.1234Z""#, "timestamp(3)"),
            (r#""2024-02-29T12:00:00""#, "timestamp(3)"),
            (r#""2023-02-29""#, "date"),
            ("1", "bool"),
            (r#""\ud800""#, "string"),
        ] {
            let ty: ColumnType = ty.parse().expect("legal");
            let read = read(&raw(text), ty).and_then(|value| value.for_column(ty, true));
            assert!(read.is_err(), "{text} as {ty}: {read:?}");
        }
    }

    proptest! {
        #[test]
        fn integers_survive_whatever_they_are(u: u64, i: i64) {
            prop_assert_eq!(round(&u.to_string(), "u64", Ints::Strings), format!("\"{u}\""));
            prop_assert_eq!(round(&format!("\"{u}\""), "u64", Ints::Numbers), u.to_string());
            prop_assert_eq!(round(&i.to_string(), "i64", Ints::Strings), format!("\"{i}\""));
        }

        #[test]
        fn times_are_written_as_the_store_would(micros in prop_oneof![any::<i64>(), COMMON], digits in 0_u8..=6) {
            for (value, ty) in [
                (Value::Timestamp(micros), ColumnType::Timestamp { digits }),
                (Value::Datetime(micros), ColumnType::Datetime { digits }),
            ] {
                let mut out = Vec::new();
                write(&mut out, &value, ty, Ints::Strings);
                prop_assert_eq!(String::from_utf8(out).expect("UTF-8"), format!("\"{}\"", value.to_text(ty).expect("a time")));
            }
        }

        #[test]
        fn strings_and_bytes_survive(text: String, bytes: Vec<u8>) {
            let quoted = serde_json::to_string(&text).expect("text");
            prop_assert_eq!(round(&quoted, "string", Ints::Strings), quoted);
            let quoted = format!("\"{}\"", STANDARD.encode(&bytes));
            prop_assert_eq!(round(&quoted, "bytes", Ints::Strings), quoted);
        }

        #[test]
        fn doubles_survive(v in any::<f64>().prop_filter("finite", |v| v.is_finite())) {
            let text = serde_json::to_string(&v).expect("finite");
            prop_assert_eq!(round(&text, "f64", Ints::Strings).parse::<f64>().expect("a number").to_bits(), v.to_bits());
        }
    }
}
