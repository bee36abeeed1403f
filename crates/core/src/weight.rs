//! Where the weight of an instance comes from when it is not the registry's own.

use crate::instance::{Instance, MetaValue, WEIGHT_MAX};

/// The metadata value of `key` as a plain decimal; the registry's weight where it is absent or no weight.
pub(crate) fn from_metadata(instance: &Instance, key: &str) -> f64 {
    let Some(value) = instance.metadata.get(key) else { return instance.weight };
    plain_decimal(&value.to_text()).unwrap_or(instance.weight)
}

/// A number between 0 and [`WEIGHT_MAX`] written as digits with an optional fraction: no sign, exponent or suffix.
fn plain_decimal(text: &str) -> Option<f64> {
    let text = text.trim();
    let plain = text.starts_with(|c: char| c.is_ascii_digit())
        && text.ends_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let value: f64 = plain.then(|| text.parse().ok()).flatten()?;
    (value <= WEIGHT_MAX).then_some(value)
}

/// Apache Seata's `metadata.weight`: the effective weight, and whether the key is there at all.
///
/// Absent or null is 1. A number is truncated towards zero, negative is 0. A text is a 32-bit decimal integer with an
/// optional sign, negative is 0; any other text is 1. Any other kind is 0.
pub(crate) fn seata(instance: &Instance) -> (f64, bool) {
    match instance.metadata.get("weight") {
        None => (1.0, false),
        Some(MetaValue::Number(digits)) => {
            let value: f64 = digits.parse().unwrap_or(0.0);
            // Java narrows a double to an int by saturating.
            (value.trunc().clamp(0.0, f64::from(i32::MAX)), true)
        }
        Some(MetaValue::Text(text)) => {
            let weight = text.parse::<i32>().map_or(1, |weight| weight.max(0));
            (f64::from(weight), true)
        }
        Some(_) => (0.0, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(digits: &str) -> MetaValue {
        MetaValue::Number(digits.into())
    }

    /// `seata.md` 4.6.
    #[test]
    fn seata_weight_table() {
        let base = Instance::new("h:1".parse().unwrap());
        assert_eq!(seata(&base), (1.0, false));
        for (value, expected) in [
            (number("2.9"), 2.0),
            (number("0.5"), 0.0),
            (number("-3"), 0.0),
            (number("5"), 5.0),
            (number("1e12"), 2_147_483_647.0),
            ("+3".into(), 3.0),
            ("-2".into(), 0.0),
            ("100".into(), 100.0),
            ("2.5".into(), 1.0),
            (" 3 ".into(), 1.0),
            ("".into(), 1.0),
            ("abc".into(), 1.0),
            ("2147483648".into(), 1.0),
            (MetaValue::Bool(true), 0.0),
            (MetaValue::Json("{}".into()), 0.0),
        ] {
            let instance = base.clone().with_meta("weight", value.clone());
            assert_eq!(seata(&instance), (expected, true), "{value:?}");
        }
    }

    #[test]
    fn metadata_weight_is_a_plain_decimal_or_the_registrys() {
        let base = Instance::new("h:1".parse().unwrap()).with_weight(7.0);
        for (value, expected) in
            [("0", 0.0), ("0.5", 0.5), ("12", 12.0), ("", 7.0), ("abc", 7.0), ("-3", 7.0), ("1e3", 7.0), ("inf", 7.0)]
        {
            assert_eq!(from_metadata(&base.clone().with_meta("w", value), "w"), expected, "{value}");
        }
        assert_eq!(from_metadata(&base, "w"), 7.0);
    }
}
