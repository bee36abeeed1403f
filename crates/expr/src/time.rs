//! Points in time as nanoseconds since 1970, read from RFC 3339 text or from an epoch count.
//!
//! Rows store 64-bit or larger epoch values and instances write text, so both end up as one `i128`. A calendar library
//! would bring time zones and clocks this crate must not have; the day arithmetic is Howard Hinnant's
//! [`days_from_civil`](https://howardhinnant.github.io/date_algorithms.html).

use std::fmt;

use crate::TimeUnit;
use crate::decimal::Decimal;

const NANOS_PER_SECOND: i128 = 1_000_000_000;

/// RFC 3339, with three freedoms rows need: a missing offset means UTC, a space may stand for the `T`, and a date alone
/// is its midnight. Digits finer than a nanosecond must be zero.
pub(crate) fn parse_rfc3339(text: &str) -> Option<i128> {
    let bytes = text.trim().as_bytes();
    let (year, rest) = digits(bytes, 4)?;
    let (month, rest) = digits(rest.strip_prefix(b"-")?, 2)?;
    let (day, rest) = digits(rest.strip_prefix(b"-")?, 2)?;
    if !(1..=12).contains(&month) || day < 1 || day > days_in_month(year, month) {
        return None;
    }
    let days = days_from_civil(year, month, day);
    let [separator, rest @ ..] = rest else {
        return Some(i128::from(days) * 86_400 * NANOS_PER_SECOND);
    };
    if !matches!(separator, b'T' | b't' | b' ') {
        return None;
    }
    let (hour, rest) = digits(rest, 2)?;
    let (minute, rest) = digits(rest.strip_prefix(b":")?, 2)?;
    let (second, rest) = digits(rest.strip_prefix(b":")?, 2)?;
    // 60 is a leap second; it counts as the first second of the next minute.
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (nanos, rest) = match rest.strip_prefix(b".") {
        Some(fraction) => fraction_nanos(fraction)?,
        None => (0, rest),
    };
    let offset = match rest {
        [] | [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), rest @ ..] => {
            let (hours, rest) = digits(rest, 2)?;
            let (minutes, rest) = digits(rest.strip_prefix(b":")?, 2)?;
            if hours > 23 || minutes > 59 || !rest.is_empty() {
                return None;
            }
            let seconds = hours * 3600 + minutes * 60;
            if *sign == b'-' { -seconds } else { seconds }
        }
        _ => return None,
    };
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset;
    Some(i128::from(seconds) * NANOS_PER_SECOND + i128::from(nanos))
}

/// An epoch count in the unit; a fraction down to the nanosecond is allowed.
pub(crate) fn from_epoch(count: &Decimal<'_>, unit: TimeUnit) -> Option<i128> {
    count.scaled(match unit {
        TimeUnit::Rfc3339 => return None,
        TimeUnit::Seconds => 9,
        TimeUnit::Millis => 6,
        TimeUnit::Micros => 3,
        TimeUnit::Nanos => 0,
    })
}

/// The same for an integer that needs no text.
pub(crate) fn from_epoch_integer(count: i128, unit: TimeUnit) -> Option<i128> {
    count.checked_mul(match unit {
        TimeUnit::Rfc3339 => return None,
        TimeUnit::Seconds => 1_000_000_000,
        TimeUnit::Millis => 1_000_000,
        TimeUnit::Micros => 1_000,
        TimeUnit::Nanos => 1,
    })
}

/// RFC 3339 in UTC with as many fraction digits as are needed, for years of four digits; the bare nanoseconds outside.
pub(crate) fn write_rfc3339(nanos: i128, out: &mut impl fmt::Write) -> fmt::Result {
    let seconds = nanos.div_euclid(NANOS_PER_SECOND);
    let fraction = nanos.rem_euclid(NANOS_PER_SECOND);
    let days = seconds.div_euclid(86_400);
    let Some((year, month, day)) = i64::try_from(days).ok().and_then(civil_from_days) else {
        return write!(out, "{nanos}");
    };
    let clock = seconds.rem_euclid(86_400);
    write!(out, "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}", clock / 3600, clock / 60 % 60, clock % 60)?;
    if fraction != 0 {
        let mut fraction = fraction;
        let mut width = 9;
        while fraction % 10 == 0 {
            fraction /= 10;
            width -= 1;
        }
        write!(out, ".{fraction:0width$}")?;
    }
    out.write_char('Z')
}

fn digits(bytes: &[u8], count: usize) -> Option<(i64, &[u8])> {
    let (head, rest) = bytes.split_at_checked(count)?;
    let mut value = 0;
    for byte in head {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value * 10 + i64::from(byte - b'0');
    }
    Some((value, rest))
}

fn fraction_nanos(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let count = bytes.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(bytes.len());
    let (fraction, rest) = bytes.split_at(count);
    if fraction.is_empty() || fraction.iter().skip(9).any(|byte| *byte != b'0') {
        return None;
    }
    let mut nanos = 0;
    for index in 0..9 {
        nanos = nanos * 10 + i64::from(fraction.get(index).map_or(0, |byte| byte - b'0'));
    }
    Some((nanos, rest))
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// `None` outside the years 0 to 9999, which RFC 3339 cannot write.
fn civil_from_days(days: i64) -> Option<(i64, i64, i64)> {
    let days = days.checked_add(719_468)?;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (0..=9999).contains(&year).then_some((year, month, day))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<i128>) {
        assert_eq!(parse_rfc3339(text), expected, "{text}");
    }

    #[test]
    fn known_instants() {
        check("1970-01-01T00:00:00Z", Some(0));
        check("1970-01-01", Some(0));
        check("1969-12-31T23:59:59.999999999Z", Some(-1));
        check("2024-02-29T12:00:00+02:00", Some(1_709_200_800_000_000_000));
        check("2024-02-29t10:00:00z", Some(1_709_200_800_000_000_000));
        check(" 2024-02-29 10:00:00 ", Some(1_709_200_800_000_000_000));
        check("2016-12-31T23:59:60Z", parse_rfc3339("2017-01-01T00:00:00Z"));
        check("2024-02-29T10:00:00.1234567890000Z", Some(1_709_200_800_123_456_789));
        check("0000-01-01T00:00:00Z", Some(-62_167_219_200_000_000_000));
        check("9999-12-31T23:59:59Z", Some(253_402_300_799_000_000_000));
    }

    #[test]
    fn no_instants() {
        for text in [
            "",
            "2024",
            "2024-2-29",
            "2023-02-29",
            "2100-02-29",
            "2024-13-01",
            "2024-00-01",
            "2024-01-00",
            "2024-01-01T",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:60:00Z",
            "2024-01-01T00:00:61Z",
            "2024-01-01T00:00Z",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00.0000000001Z",
            "2024-01-01T00:00:00+0100",
            "2024-01-01T00:00:00+24:00",
            "2024-01-01T00:00:00ZZ",
            "2024-01-01X00:00:00Z",
            "２024-01-01",
        ] {
            check(text, None);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(nanos in -62_167_219_200_000_000_000_i128..253_402_300_800_000_000_000) {
            let mut text = String::new();
            write_rfc3339(nanos, &mut text).expect("strings take everything");
            prop_assert_eq!(parse_rfc3339(&text), Some(nanos), "{}", text);
        }
    }

    #[test]
    fn beyond_four_digits_of_a_year_the_count_is_written() {
        let mut text = String::new();
        write_rfc3339(i128::MAX, &mut text).expect("strings take everything");
        assert_eq!(text, i128::MAX.to_string());
    }
}
