//! Durations and sizes as people write them: always with a unit, because a bare number has been read as seconds and as
//! milliseconds often enough.

use std::time::Duration;

fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(end);
    Some((digits.parse().ok()?, unit.trim_start()))
}

/// `500ms`, `10s`, `2m`, `1h`; not zero.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text.trim())?;
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(unit_ms).filter(|ms| *ms > 0).map(Duration::from_millis)
}

/// `4096B`, `64MiB`, `1GB`; not zero.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = split(text.trim())?;
    let unit_bytes: u64 = match unit {
        "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(unit_bytes).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units() {
        assert_eq!(duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(duration("2 m"), Some(Duration::from_secs(120)));
        assert_eq!(bytes("64MiB"), Some(64 << 20));
        for bad in ["10", "", "s", "0s", "-1s", "1.5s", "10 days"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
        for bad in ["10", "0B", "64 mib", "99999999999GiB"] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
    }
}
