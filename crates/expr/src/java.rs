//! The numbers of the original: exactly what Java's `Double.parseDouble` accepts, and how `Double.compare` orders them.
//!
//! Dialect `seata` must give the original's answers, and those hang on this one function: `1d`, `.5`, `0x10p0`,
//! `Infinity` and ` 3 ` are numbers there, `0x10` and `1_000` are not. The grammar is that of the Java platform's
//! documentation of `Double.valueOf(String)`; decimal text is rounded by Rust's own correctly rounding parser, hexadecimal
//! text here.

/// What `Double.parseDouble` returns, or `None` where it throws.
pub(crate) fn parse_double(text: &str) -> Option<f64> {
    // String.trim() cuts everything up to and including U+0020.
    let text = text.trim_matches(|c: char| c <= ' ');
    let (negative, magnitude) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let value = match magnitude {
        "NaN" => f64::NAN,
        "Infinity" => f64::INFINITY,
        _ => {
            let digits = magnitude.strip_suffix(['f', 'F', 'd', 'D']);
            match magnitude.get(..2) {
                // In hexadecimal the letters d and f are digits too, but only before the mandatory exponent.
                Some("0x" | "0X") => parse_hex(digits.unwrap_or(magnitude).get(2..)?)?,
                _ => parse_decimal(digits.unwrap_or(magnitude))?,
            }
        }
    };
    Some(if negative { -value } else { value })
}

fn parse_decimal(text: &str) -> Option<f64> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if !are_digits(whole) || !are_digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    if let Some(exponent) = exponent {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if exponent.is_empty() || !are_digits(exponent) {
            return None;
        }
    }
    text.parse().ok()
}

fn are_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The part after `0x`: digits with an optional point, then `p` and a decimal exponent of two.
fn parse_hex(text: &str) -> Option<f64> {
    let (mantissa, power) = text.split_once(['p', 'P'])?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let are_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !are_hex(whole) || !are_hex(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let (negative, power) = match power.as_bytes().first()? {
        b'-' => (true, &power[1..]),
        b'+' => (false, &power[1..]),
        _ => (false, power),
    };
    if power.is_empty() || !are_digits(power) {
        return None;
    }
    // Beyond this every non-zero value is infinite or zero, whatever the mantissa of a text that fits in memory.
    const FAR: i64 = 1 << 62;
    let power = power.parse::<i64>().map_or(FAR, |power| power.min(FAR));
    let mut exponent = if negative { -power } else { power };

    let mut bits: u64 = 0;
    let mut sticky = false;
    for (index, digit) in whole.bytes().chain(fraction.bytes()).enumerate() {
        let digit = u64::from((digit as char).to_digit(16)?);
        if index >= whole.len() {
            exponent -= 4;
        }
        if bits >> 60 == 0 {
            bits = bits << 4 | digit;
        } else {
            sticky |= digit != 0;
            exponent += 4;
        }
    }
    Some(round(bits, exponent, sticky))
}

/// `bits` × 2^`exponent` (and a little more where `sticky`), rounded half to even.
fn round(bits: u64, exponent: i64, sticky: bool) -> f64 {
    if bits == 0 {
        return 0.0;
    }
    let width = 64 - i64::from(bits.leading_zeros());
    let top = exponent + width - 1;
    if top > 1023 {
        return f64::INFINITY;
    }
    // Subnormal numbers have fewer bits.
    let precision = if top >= -1022 { 53 } else { 53 + 1022 + top };
    if precision < 0 {
        return 0.0;
    }
    let shift = width - precision;
    let rounded = if shift <= 0 {
        bits << -shift
    } else {
        // With precision 0 and 64 bits everything is shifted out.
        let kept = if shift == 64 { 0 } else { bits >> shift };
        let lost = bits & (u64::MAX >> (64 - shift));
        let half = 1u64 << (shift - 1);
        let up = lost > half || (lost == half && (sticky || kept & 1 == 1));
        kept + u64::from(up)
    };
    if top < -1022 {
        // A carry into bit 52 makes it the smallest normal number, as the layout wants.
        return f64::from_bits(rounded);
    }
    let (rounded, top) = if rounded >> 53 == 1 { (rounded >> 1, top + 1) } else { (rounded, top) };
    if top > 1023 {
        return f64::INFINITY;
    }
    let biased = u64::try_from(top + 1023).unwrap_or(0);
    f64::from_bits(biased << 52 | (rounded & ((1 << 52) - 1)))
}

/// `Double.compare(a, b) == 0`: NaN equals itself, 0.0 does not equal -0.0.
pub(crate) fn equal(a: f64, b: f64) -> bool {
    (a.is_nan() && b.is_nan()) || a.to_bits() == b.to_bits()
}

#[cfg(test)]
mod tests {
    use super::{equal, parse_double};

    /// Every row of `tests/fixtures/java_doubles.txt`, recorded from the Java platform by the program beside it.
    #[test]
    fn the_platform_says_the_same() {
        let rows = include_str!("../tests/fixtures/java_doubles.txt");
        let mut checked = 0;
        for row in rows.lines() {
            let (text, expected) = row.split_once(' ').expect("two columns");
            let bytes = (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex"));
            let text = String::from_utf8(bytes.collect()).expect("UTF-8");
            let bits = match expected {
                "E" => None,
                bits => Some(u64::from_str_radix(bits, 16).expect("hex")),
            };
            assert_eq!(parse_double(&text).map(f64::to_bits).map(canonical_nan), bits, "{text:?}");
            checked += 1;
        }
        assert_eq!(checked, 4000);
    }

    fn canonical_nan(bits: u64) -> u64 {
        if f64::from_bits(bits).is_nan() { 0x7ff8_0000_0000_0000 } else { bits }
    }

    #[test]
    fn equality_is_that_of_compare() {
        assert!(equal(f64::NAN, -f64::NAN) && equal(1.0, 1.0));
        assert!(!equal(0.0, -0.0) && !equal(f64::NAN, 1.0));
    }
}
