//! Regular expressions for the texts of cells, as the OpenAPI document shows them.
//!
//! Clients and gateways check requests against the document, so a pattern that leaves out the 29th of a month or the
//! largest id refuses what the server takes; one that is too wide makes a fuzzer report what it rightly refuses. These are
//! exact: what they match is stored, character for character the same value. (A few more spellings are accepted, such as
//! `+5` for a decimal; nobody has to be told to use them.)

/// Numbers without sign up to a bound of the same or a smaller number of digits, leading zeros aside.
fn up_to(bound: &str) -> String {
    let mut parts = Vec::new();
    if bound.len() > 1 {
        parts.push(format!("[0-9]{{1,{}}}", bound.len() - 1));
    }
    for (at, digit) in bound.bytes().enumerate() {
        // Everything that is smaller here for the first time.
        let lowest = if at == 0 && bound.len() > 1 { b'1' } else { b'0' };
        if digit <= lowest {
            continue;
        }
        let smaller = format!("[{}-{}]", char::from(lowest), char::from(digit - 1));
        let rest = bound.len() - at - 1;
        let rest = if rest == 0 { String::new() } else { format!("[0-9]{{{rest}}}") };
        parts.push(format!("{}{smaller}{rest}", &bound[..at]));
    }
    parts.push(bound.to_owned());
    format!("({})", parts.join("|"))
}

/// An unsigned 64-bit number.
pub(super) fn unsigned() -> String {
    format!("^{}$", up_to(&u64::MAX.to_string()))
}

/// A signed 64-bit number.
pub(super) fn signed() -> String {
    format!("^({}|-{})$", up_to(&i64::MAX.to_string()), up_to(&i64::MIN.unsigned_abs().to_string()))
}

/// A decimal with `whole` digits before the point and `scale` after it.
pub(super) fn decimal(whole: u8, scale: u8) -> String {
    let whole = if whole == 0 { "0".to_owned() } else { format!("[0-9]{{1,{whole}}}") };
    let fraction = if scale == 0 { String::new() } else { format!("(\\.[0-9]{{1,{scale}}})?") };
    format!("^-?{whole}{fraction}$")
}

/// Base64 with padding, and no bits set that stand for nothing.
pub(super) const BASE64: &str = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";

/// A month and a day that every year has.
const EVERY_YEAR: &str = "((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)";

/// A leap day.
const LEAP: &str = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29";

/// A day of the years 0 to 9999.
fn day() -> String {
    format!("([0-9]{{4}}-{EVERY_YEAR}|{LEAP})")
}

/// A date.
pub(super) fn date() -> String {
    format!("^{}$", day())
}

fn clock(digits: u8) -> String {
    let fraction = if digits == 0 { String::new() } else { format!("(\\.[0-9]{{1,{digits}}})?") };
    format!("T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{fraction}")
}

/// A date and time without a zone.
pub(super) fn datetime(digits: u8) -> String {
    format!("^{}{}$", day(), clock(digits))
}

/// A point in time: with `Z`, or any offset that cannot lead out of the years there are.
pub(super) fn timestamp(digits: u8) -> String {
    let zone = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
    // Not the first and the last year, which stay with `Z`; their leap day is far from both ends.
    let inner = "([1-8][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9]|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])";
    format!("^({}{clock}Z|({inner}-{EVERY_YEAR}|{LEAP}){clock}{zone})$", day(), clock = clock(digits))
}

#[cfg(test)]
mod tests {
    use metaroute_store::{ColumnType, Value};
    use regex_automata::meta::Regex;

    use super::*;

    /// Whether a pattern and the reader of cells agree about texts.
    fn agree(pattern: &str, ty: &str, texts: &[&str]) {
        let regex = Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        let ty: ColumnType = ty.parse().expect("legal");
        for text in texts {
            let raw =
                serde_json::value::RawValue::from_string(serde_json::to_string(text).expect("text")).expect("JSON");
            let read = super::super::value::read(&raw, ty).and_then(|value: Value| value.for_column(ty, false));
            assert_eq!(regex.is_match(text), read.is_ok(), "{text:?} as {ty}: {read:?}");
        }
    }

    #[test]
    fn patterns_match_what_is_accepted() {
        agree(
            &unsigned(),
            "u64",
            &[
                "0",
                "7",
                "18446744073709551615",
                "18446744073709551616",
                "9999999999999999999",
                "10000000000000000000",
                "18446744073709551599",
                "99999999999999999999",
                "",
                "-1",
                "+1",
                "1.0",
                "1e3",
                " 1",
            ],
        );
        agree(
            &signed(),
            "i64",
            &[
                "0",
                "-1",
                "9223372036854775807",
                "9223372036854775808",
                "-9223372036854775808",
                "-9223372036854775809",
                "-",
            ],
        );
        agree(&decimal(10, 2), "decimal(12,2)", &["0", "-0.01", "9999999999.99", "10000000000", "0.001", "1e2", ""]);
        agree(&decimal(0, 2), "decimal(2,2)", &["0", "0.99", "1", "1.00", "-0.5"]);
        agree(&decimal(5, 0), "decimal(5,0)", &["99999", "100000", "1.5"]);
        agree(
            BASE64,
            "bytes",
            &["", "AA==", "AB==", "AAA=", "AAB=", "AP8=", "//8=", "-_8=", "AAAA", "AAA", "A", "A==="],
        );
        agree(
            &date(),
            "date",
            &[
                "2024-02-29",
                "2023-02-29",
                "1900-02-29",
                "2000-02-29",
                "0000-02-29",
                "2024-01-31",
                "2024-04-31",
                "2024-04-30",
                "2024-02-30",
                "2024-13-01",
                "2024-00-10",
                "2024-01-00",
                "9999-12-31",
                "2024-01-01T00:00:00",
            ],
        );
        agree(
            &datetime(3),
            "datetime(3)",
            &[
                "2024-02-29T23:59:59",
                "2024-02-29T23:59:59.5",
                "2024-02-29T23:59:59.1234",
                "2024-02-29T24:00:00",
                "2024-02-29T23:59:60",
                "2024-02-29T23:59:59Z",
                "9999-12-31T23:59:59.999",
                "0000-01-01T00:00:00",
            ],
        );
        agree(
            &timestamp(6),
            "timestamp(6)",
            &[
                "2024-02-29T23:59:59Z",
                "2024-01-31T23:59:59.123456Z",
                "2024-01-31T23:59:59+05:30",
                "2024-01-31T23:59:59",
                "2024-01-31T23:59:59+24:00",
                "2024-02-29T00:00:00-23:59",
                "0000-02-29T00:00:00+01:00",
                "2024-01-31T23:59:59.1234567Z",
                "9999-12-31T23:59:59.999999Z",
                "0000-02-29T00:00:00Z",
                "2023-02-29T00:00:00Z",
                "9999-12-31T23:59:59-00:01",
                "0000-01-01T00:00:00+00:01",
            ],
        );
    }
}
