//! Durations, percentages and fractions as people write them.

use std::time::Duration;

use jiff::SignedDuration;

/// A duration with its unit: `60s`, `1m30s`, `1.5h`, `250ms`, or ISO 8601 (`PT1M`).
///
/// # Errors
/// What is wrong with it, as words for a message.
pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    let text = text.trim();
    if text.parse::<f64>().is_ok() {
        return Err("a duration needs a unit");
    }
    let parsed: SignedDuration = text.parse().map_err(|_| "not a duration")?;
    Duration::try_from(parsed).map_err(|_| "a duration cannot be negative")
}

/// The shortest form that [`parse_duration`] reads back to the same duration.
pub fn format_duration(duration: Duration) -> String {
    match SignedDuration::try_from(duration) {
        Ok(duration) if duration.is_zero() => "0s".to_owned(),
        Ok(duration) => format!("{duration:#}"),
        // Longer than jiff can say; nobody waits for the difference.
        Err(_) => format!("{:#}", SignedDuration::MAX),
    }
}

/// `50%` as 0.5, or a fraction from 0 to 1.
pub(super) fn parse_fraction(text: &str) -> Option<f64> {
    let text = text.trim();
    let value = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().ok()? / 100.0,
        None => text.parse().ok()?,
    };
    (0.0..=1.0).contains(&value).then_some(value)
}

/// A percentage that reads back to the same fraction, or the fraction itself where none does.
pub(super) fn format_fraction(fraction: f64) -> String {
    (0..=6)
        .map(|digits| format!("{:.digits$}%", fraction * 100.0))
        .find(|text| parse_fraction(text) == Some(fraction))
        .unwrap_or_else(|| fraction.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_units_and_round_trip() {
        for (text, expected) in [
            ("60s", Duration::from_secs(60)),
            ("1m30s", Duration::from_secs(90)),
            ("1m 30s", Duration::from_secs(90)),
            ("1.5h", Duration::from_secs(5400)),
            ("250ms", Duration::from_millis(250)),
            ("7us", Duration::from_micros(7)),
            ("0s", Duration::ZERO),
            ("PT1M", Duration::from_secs(60)),
        ] {
            assert_eq!(parse_duration(text), Ok(expected), "{text}");
            assert_eq!(parse_duration(&format_duration(expected)), Ok(expected));
        }
        assert_eq!(parse_duration("60"), Err("a duration needs a unit"));
        assert_eq!(parse_duration("-1s"), Err("a duration cannot be negative"));
        for text in ["", "s", "soon", "1 parsec", "1d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn fractions_round_trip() {
        for (text, value) in
            [("50%", 0.5), ("7%", 0.07), ("0%", 0.0), ("100%", 1.0), ("0.5", 0.5), ("1", 1.0), ("12.5 %", 0.125)]
        {
            assert_eq!(parse_fraction(text), Some(value), "{text}");
        }
        for text in ["", "%", "101%", "-1%", "50", "NaN", "NaN%"] {
            assert_eq!(parse_fraction(text), None, "{text}");
        }
        for percent in 0..=1000 {
            let fraction = f64::from(percent) / 1000.0;
            assert_eq!(parse_fraction(&format_fraction(fraction)), Some(fraction));
        }
        assert_eq!(format_fraction(0.5), "50%");
        assert_eq!(parse_fraction(&format_fraction(1.0 / 3.0)), Some(1.0 / 3.0));
    }
}
