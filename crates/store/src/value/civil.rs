//! Dates and times of cells, read from text.
//!
//! A calendar library reads whatever may have been meant: it takes an offset where there is no zone and drops it, a clock
//! where a date is wanted and drops that, turns a leap second into the second before, and ends nearly two days before the
//! year does. A column holds what was written or refuses it, so the grammar here is RFC 3339's and nothing is ignored.

use jiff::civil::DateTime;

/// A date, a clock and perhaps an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) civil: DateTime,
    /// Seconds east of UTC; `None` where none is written.
    pub(super) offset_s: Option<i64>,
    /// Whether there is a clock, or a date alone.
    pub(super) has_clock: bool,
}

/// Reads `YYYY-MM-DD`, or that with `T` or a space, `hh:mm:ss`, up to nine digits of a fraction (zeros may follow) and
/// `Z` or `±hh:mm`. Seconds and the colon of an offset may be left out: nothing is lost by that.
pub(super) fn read(text: &str) -> Option<Read> {
    let bytes = text.as_bytes();
    let (year, rest) = digits(bytes, 4)?;
    let (month, rest) = digits(rest.strip_prefix(b"-")?, 2)?;
    let (day, rest) = digits(rest.strip_prefix(b"-")?, 2)?;
    let [separator, rest @ ..] = rest else {
        let civil = civil(year, month, day, [0, 0, 0], 0)?;
        return Some(Read { civil, offset_s: None, has_clock: false });
    };
    if !matches!(separator, b'T' | b't' | b' ') {
        return None;
    }
    let (hour, rest) = digits(rest, 2)?;
    let (minute, rest) = digits(rest.strip_prefix(b":")?, 2)?;
    let (second, nanos, rest) = match rest.strip_prefix(b":") {
        None => (0, 0, rest),
        Some(rest) => {
            let (second, rest) = digits(rest, 2)?;
            match rest.strip_prefix(b".") {
                None => (second, 0, rest),
                Some(fraction) => {
                    let (nanos, rest) = nanos(fraction)?;
                    (second, nanos, rest)
                }
            }
        }
    };
    let offset_s = match rest {
        [] => None,
        [b'Z' | b'z'] => Some(0),
        [sign @ (b'+' | b'-'), rest @ ..] => {
            let (hours, rest) = digits(rest, 2)?;
            let (minutes, rest) = digits(rest.strip_prefix(b":").unwrap_or(rest), 2)?;
            if hours > 23 || minutes > 59 || !rest.is_empty() {
                return None;
            }
            let seconds = i64::from(hours) * 3_600 + i64::from(minutes) * 60;
            Some(if *sign == b'-' { -seconds } else { seconds })
        }
        _ => return None,
    };
    Some(Read { civil: civil(year, month, day, [hour, minute, second], nanos)?, offset_s, has_clock: true })
}

/// The date and clock, when the calendar has them: no 30 February, no second 60.
fn civil(year: u16, month: u16, day: u16, clock: [u16; 3], nanos: u32) -> Option<DateTime> {
    let [hour, minute, second] = clock.map(|part| part as i8);
    DateTime::new(i16::try_from(year).ok()?, month as i8, day as i8, hour, minute, second, nanos as i32).ok()
}

/// A number of exactly so many digits, four at most.
fn digits(bytes: &[u8], count: usize) -> Option<(u16, &[u8])> {
    let (head, rest) = bytes.split_at_checked(count)?;
    if !head.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some((head.iter().fold(0, |number, byte| number * 10 + u16::from(byte - b'0')), rest))
}

/// The digits of a fraction as nanoseconds; digits behind them must be zeros.
fn nanos(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let count = bytes.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(bytes.len());
    let (fraction, rest) = bytes.split_at(count);
    if fraction.is_empty() || fraction.iter().skip(9).any(|&byte| byte != b'0') {
        return None;
    }
    let digit = |at: usize| fraction.get(at).map_or(0, |byte| u32::from(byte - b'0'));
    Some(((0..9).fold(0, |nanos, at| nanos * 10 + digit(at)), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let at = |text: &str| read(text).unwrap_or_else(|| panic!("{text} is legal"));
        let noon = DateTime::constant(2024, 2, 29, 12, 0, 0, 0);
        for text in
            ["2024-02-29T12:00:00", "2024-02-29 12:00:00", "2024-02-29t12:00", "2024-02-29T12:00:00.0000000000000"]
        {
            assert_eq!(at(text), Read { civil: noon, offset_s: None, has_clock: true }, "{text}");
        }
        assert_eq!(at("2024-02-29T12:00:00Z").offset_s, Some(0));
        assert_eq!(at("2024-02-29T12:00:00.5+05:30").offset_s, Some(19_800));
        assert_eq!(at("2024-02-29T12:00-0130").offset_s, Some(-5_400));
        assert_eq!(at("2024-02-29T12:00:00.123456789Z").civil.subsec_nanosecond(), 123_456_789);
        assert!(!at("2024-02-29").has_clock);
        assert_eq!(at("9999-12-31T23:59:59.999999Z").civil.year(), 9999);
        assert_eq!(at("0000-01-01").civil.year(), 0);
    }

    #[test]
    fn what_would_have_to_be_guessed_or_dropped_is_refused() {
        for text in [
            "",
            "2024",
            "2024-02",
            "2024-2-9",
            "20240229",
            "2024-02-30",
            "2023-02-29",
            "2024-13-01",
            "2024-00-01",
            "2024-02-29T",
            "2024-02-29T12",
            "2024-02-29T24:00:00",
            "2024-02-29T23:59:60",
            "2024-02-29T23:60:00",
            "2024-02-29T12:00:00.",
            "2024-02-29T12:00:00,5",
            "2024-02-29T12:00:00.0000000001",
            "2024-02-29T12:00:00+24:00",
            "2024-02-29T12:00:00+01:60",
            "2024-02-29T12:00:00+1",
            "2024-02-29T12:00:00 Z",
            "2024-02-29T12:00:00Z[Europe/Berlin]",
            "2024-02-29T12:00:00ZZ",
            "+002024-02-29",
            "-2024-02-29",
            "02024-02-29",
            " 2024-02-29",
            "2024-02-29 ",
            "2024-02-29Z",
            "2024-02-29x",
            "2024-060",
            "2024-W09-4",
            "２０２４-02-29",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
