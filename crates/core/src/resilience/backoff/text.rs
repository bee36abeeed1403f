//! The text form of a policy, as it is written on a command line and in configuration.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use super::{InvalidPolicy, Jitter, Policy, Shape};

/// A policy text that does not parse.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParsePolicyError {
    /// The word before the colon is none we know.
    #[error("unknown back-off policy `{0}`, expected none, fixed:WAIT or exponential:INITIAL,MULTIPLIER,CAP[,JITTER]")]
    Kind(String),
    /// A part is missing.
    #[error("{kind} needs {expected}")]
    Missing {
        /// `fixed` or `exponential`.
        kind: &'static str,
        /// The missing parts, as a person would write them.
        expected: &'static str,
    },
    /// There are more parts than the policy takes, or an unknown `key=value`.
    #[error("unexpected `{0}`")]
    Unexpected(String),
    /// A part is not what stands at its place.
    #[error("`{text}` is no {expected}")]
    Part {
        /// The offending text.
        text: String,
        /// What belongs there.
        expected: &'static str,
    },
    /// All parts are well formed, but they make no sense together.
    #[error("the numbers of the policy make no sense")]
    Invalid(#[from] InvalidPolicy),
}

impl FromStr for Policy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, ParsePolicyError> {
        let text = text.trim();
        let end = text.find([':', ',']).unwrap_or(text.len());
        let (kind, rest) = text.split_at(end);
        // Positional parts follow a colon; options alone may follow a comma, as in `none,attempts=3`.
        let (colon, rest) = match rest.strip_prefix(':') {
            Some(rest) => (true, rest),
            None => (false, rest.trim_start_matches(',')),
        };
        let mut parts: Vec<&str> =
            if rest.trim().is_empty() { Vec::new() } else { rest.split(',').map(str::trim).collect() };
        let options = parts.split_off(parts.iter().position(|part| part.contains('=')).unwrap_or(parts.len()));
        if !colon && let Some(part) = parts.first() {
            return Err(ParsePolicyError::Unexpected((*part).to_owned()));
        }
        let mut policy = match kind.trim() {
            "none" => {
                check_end(&parts, 0)?;
                Self::none()
            }
            "fixed" => {
                let [wait, ..] = parts[..] else {
                    return Err(ParsePolicyError::Missing { kind: "fixed", expected: "a duration, as in fixed:5s" });
                };
                check_end(&parts, 1)?;
                Self::fixed(duration(wait)?)
            }
            "exponential" => {
                let [initial, multiplier, cap, ..] = parts[..] else {
                    return Err(ParsePolicyError::Missing {
                        kind: "exponential",
                        expected: "initial interval, multiplier and cap, as in exponential:1s,1.5,60s,0.5",
                    });
                };
                check_end(&parts, 4)?;
                let jitter = parts.get(3).map_or(Ok(Jitter::Factor(Self::DEFAULT_FACTOR)), |text| jitter(text))?;
                Self::exponential(duration(initial)?, number(multiplier, "multiplier")?, duration(cap)?, jitter)?
            }
            _ => return Err(ParsePolicyError::Kind(text.to_owned())),
        };
        for option in options {
            policy = match option.split_once('=') {
                Some(("attempts", value)) => policy.with_attempts_max(value.parse::<NonZeroU32>().map_err(|_| {
                    ParsePolicyError::Part { text: value.to_owned(), expected: "number of attempts of at least 1" }
                })?),
                Some(("elapsed", value)) => policy.with_elapsed_max(duration(value)?),
                _ => return Err(ParsePolicyError::Unexpected(option.to_owned())),
            };
        }
        Ok(policy)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            Shape::None => f.write_str("none")?,
            Shape::Fixed { wait } => write!(f, "fixed:{}", Short(wait))?,
            Shape::Exponential { initial, multiplier, cap, jitter } => {
                write!(f, "exponential:{},{multiplier},{},", Short(initial), Short(cap))?;
                match jitter {
                    Jitter::None => f.write_str("none")?,
                    Jitter::Full => f.write_str("full")?,
                    Jitter::Equal => f.write_str("equal")?,
                    Jitter::Decorrelated => f.write_str("decorrelated")?,
                    Jitter::Factor(factor) => write!(f, "{factor}")?,
                }
            }
        }
        if let Some(attempts) = self.attempts_max {
            write!(f, ",attempts={attempts}")?;
        }
        if let Some(elapsed) = self.elapsed_max {
            write!(f, ",elapsed={}", Short(elapsed))?;
        }
        Ok(())
    }
}

/// Reads a duration as people write it: a decimal number and a unit out of `ns`, `us`, `µs`, `ms`, `s`, `m`, `h`, as in
/// `1.5s`.
///
/// A bare `0` needs no unit; any other number does. Digits below a nanosecond are cut.
///
/// # Errors
///
/// [`ParsePolicyError::Part`] when the text is no such duration or is longer than a [`Duration`] can be.
pub fn parse_duration(text: &str) -> Result<Duration, ParsePolicyError> {
    duration(text.trim())
}

fn duration(text: &str) -> Result<Duration, ParsePolicyError> {
    duration_checked(text)
        .ok_or_else(|| ParsePolicyError::Part { text: text.to_owned(), expected: "duration such as 500ms, 1.5s or 2m" })
}

fn duration_checked(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.')?);
    let unit: u128 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return None,
        None => (number, ""),
    };
    let mut total = whole.parse::<u128>().ok()?.checked_mul(unit)?;
    let mut place = unit;
    for digit in fraction.bytes() {
        if !digit.is_ascii_digit() {
            return None;
        }
        // Times ten before the division keeps every digit that is worth a nanosecond: all units are 6·10^n or 3.6·10^n.
        total = total.checked_add(u128::from(digit - b'0') * place / 10)?;
        place /= 10;
    }
    let seconds = u64::try_from(total / 1_000_000_000).ok()?;
    Some(Duration::new(seconds, (total % 1_000_000_000) as u32))
}

fn number(text: &str, expected: &'static str) -> Result<f64, ParsePolicyError> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    plain.then(|| text.parse().ok()).flatten().ok_or_else(|| ParsePolicyError::Part { text: text.to_owned(), expected })
}

fn jitter(text: &str) -> Result<Jitter, ParsePolicyError> {
    match text {
        "none" => Ok(Jitter::None),
        "full" => Ok(Jitter::Full),
        "equal" => Ok(Jitter::Equal),
        "decorrelated" => Ok(Jitter::Decorrelated),
        _ => number(text, "jitter (none, full, equal, decorrelated or a factor between 0 and 1)").map(Jitter::Factor),
    }
}

fn check_end(parts: &[&str], most: usize) -> Result<(), ParsePolicyError> {
    parts.get(most).map_or(Ok(()), |part| Err(ParsePolicyError::Unexpected((*part).to_owned())))
}

/// The shortest exact form in one unit, seconds at most: `90s`, not `1m30s`, so that texts compare at a glance.
struct Short(Duration);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.0.as_nanos();
        let (unit, name) = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")]
            .into_iter()
            .find(|(unit, _)| total.is_multiple_of(*unit))
            .unwrap_or((1, "ns"));
        write!(f, "{}{name}", total / unit)
    }
}
