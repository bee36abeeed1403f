//! Exact plain decimals, compared on their text.
//!
//! A binary float cannot tell `9007199254740993` from its neighbour and calls `1e3`, `1d` or `0x10p0` numbers, so a
//! commit hash may equal another one. Here a number is an optional sign, digits and an optional fraction; nothing else,
//! and of any length. Comparing needs no big-number type: without leading zeros a longer whole part is larger, and
//! fractions compare like text.

use std::cmp::Ordering;

/// A plain decimal, borrowed from its text.
///
/// ```
/// use metaroute_expr::decimal::Decimal;
///
/// let one = Decimal::parse("9007199254740993").unwrap();
/// let other = Decimal::parse("9007199254740992").unwrap();
/// assert!(one > other);
/// assert_eq!(Decimal::parse("-0"), Decimal::parse("0.00"));
/// assert!(Decimal::parse("1e3").is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decimal<'a> {
    negative: bool,
    /// No leading zero; empty for zero.
    whole: &'a [u8],
    /// No trailing zero; may be empty.
    fraction: &'a [u8],
}

impl<'a> Decimal<'a> {
    /// Reads `[+-]digits[.digits]`; nothing else, no surrounding space. `.5`, `5.` and the empty text are no decimals.
    pub fn parse(text: &'a str) -> Option<Self> {
        let bytes = text.as_bytes();
        let (mut negative, digits) = match bytes.first()? {
            b'-' => (true, &bytes[1..]),
            b'+' => (false, &bytes[1..]),
            _ => (false, bytes),
        };
        let point = digits.iter().position(|byte| !byte.is_ascii_digit());
        let (mut whole, mut fraction) = match point {
            None => (digits, &[][..]),
            Some(at) if digits[at] == b'.' => {
                let fraction = &digits[at + 1..];
                if fraction.is_empty() || !fraction.iter().all(u8::is_ascii_digit) {
                    return None;
                }
                (&digits[..at], fraction)
            }
            Some(_) => return None,
        };
        if whole.is_empty() {
            return None;
        }
        while let [b'0', rest @ ..] = whole {
            whole = rest;
        }
        while let [rest @ .., b'0'] = fraction {
            fraction = rest;
        }
        if whole.is_empty() && fraction.is_empty() {
            negative = false;
        }
        Some(Decimal { negative, whole, fraction })
    }

    /// Whether it is below zero.
    pub fn is_negative(&self) -> bool {
        self.negative
    }

    /// Whether it has no fraction.
    pub fn is_integer(&self) -> bool {
        self.fraction.is_empty()
    }

    /// `self` × 10^`exponent` as an integer, or `None` where digits would be lost or it does not fit.
    pub(crate) fn scaled(&self, exponent: usize) -> Option<i128> {
        if self.fraction.len() > exponent || self.whole.len() + exponent > 38 {
            return None;
        }
        let digits = self.whole.iter().chain(self.fraction);
        let zeros = std::iter::repeat_n(&b'0', exponent - self.fraction.len());
        let mut magnitude: i128 = 0;
        for digit in digits.chain(zeros) {
            magnitude = magnitude.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
        }
        Some(if self.negative { -magnitude } else { magnitude })
    }
}

impl Ord for Decimal<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => magnitude(self, other),
            (true, true) => magnitude(other, self),
        }
    }
}

impl PartialOrd for Decimal<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn magnitude(a: &Decimal<'_>, b: &Decimal<'_>) -> Ordering {
    a.whole
        .len()
        .cmp(&b.whole.len())
        .then_with(|| a.whole.cmp(b.whole))
        // Without trailing zeros a shorter fraction that is a prefix is the smaller one, as for text.
        .then_with(|| a.fraction.cmp(b.fraction))
}

/// Compares two texts as numbers after trimming; `None` where one of them is no plain decimal.
///
/// ```
/// use std::cmp::Ordering;
/// use metaroute_expr::decimal::compare;
///
/// assert_eq!(compare("2.10", " 2.1 "), Some(Ordering::Equal));
/// assert_eq!(compare("2.3.1", "2.3"), None);
/// ```
pub fn compare(a: &str, b: &str) -> Option<Ordering> {
    Some(Decimal::parse(a.trim())?.cmp(&Decimal::parse(b.trim())?))
}

/// Digits kept on each side of the point by the fast form: 10^36 fits an `i128`.
const FIXED_DIGITS: usize = 18;

/// A decimal ready for comparing: one integer where it is short, its text where it is long.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number<'a> {
    /// The value × 10^18. At most 18 digits before and after the point.
    Fixed(i128),
    /// More digits than that on one side of the point.
    Long(Decimal<'a>),
}

impl<'a> Number<'a> {
    /// Trims, then reads a plain decimal.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        Decimal::parse(text.trim()).map(Number::from)
    }

    /// An integer that is short enough for the fast form.
    pub(crate) fn from_integer(value: i128) -> Option<Self> {
        const LIMIT: i128 = 10_i128.pow(FIXED_DIGITS as u32);
        (-LIMIT < value && value < LIMIT).then(|| Number::Fixed(value * LIMIT))
    }
}

/// Powers of ten up to the one that fills a short side.
const TENS: [u64; FIXED_DIGITS + 1] = {
    let mut tens = [1; FIXED_DIGITS + 1];
    let mut index = 1;
    while index < tens.len() {
        tens[index] = tens[index - 1] * 10;
        index += 1;
    }
    tens
};

impl<'a> From<Decimal<'a>> for Number<'a> {
    fn from(decimal: Decimal<'a>) -> Self {
        let Decimal { negative, whole, fraction } = decimal;
        if whole.len() > FIXED_DIGITS || fraction.len() > FIXED_DIGITS {
            return Number::Long(decimal);
        }
        // Each side fits 64 bits, which is several times faster than counting in 128.
        let value = |digits: &[u8]| digits.iter().fold(0u64, |value, digit| value * 10 + u64::from(digit - b'0'));
        let fixed = i128::from(value(whole)) * i128::from(TENS[FIXED_DIGITS])
            + i128::from(value(fraction) * TENS[FIXED_DIGITS - fraction.len()]);
        Number::Fixed(if negative { -fixed } else { fixed })
    }
}

impl Number<'_> {
    pub(crate) fn cmp(&self, other: &Number<'_>) -> Ordering {
        match (self, other) {
            (Number::Fixed(a), Number::Fixed(b)) => a.cmp(b),
            (Number::Long(a), Number::Long(b)) => a.cmp(b),
            (Number::Fixed(a), Number::Long(b)) => fixed_to_long(*a, b),
            (Number::Long(a), Number::Fixed(b)) => fixed_to_long(*b, a).reverse(),
        }
    }
}

/// A long decimal either has a larger whole part than any fixed one, or digits beyond the 18th place: then the fixed one
/// is compared with it cut off, and a tie goes to the side with the extra digits (the last is not zero).
fn fixed_to_long(fixed: i128, long: &Decimal<'_>) -> Ordering {
    let away_from_zero = if long.negative { Ordering::Greater } else { Ordering::Less };
    if long.whole.len() > FIXED_DIGITS {
        return away_from_zero;
    }
    let cut = Decimal { fraction: &long.fraction[..FIXED_DIGITS.min(long.fraction.len())], ..*long };
    match cut.scaled(FIXED_DIGITS) {
        Some(value) => fixed.cmp(&value).then(away_from_zero),
        None => away_from_zero,
    }
}
