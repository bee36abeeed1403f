//! Row versions.
//!
//! A change stream repeats, reorders and overlaps a bulk load, so "the later write wins" cannot mean
//! "the write that arrived later". Every row and every tombstone carries a version made by whoever
//! feeds the store; the store only ever compares the bytes and never looks inside, so one store can
//! be fed from GTIDs, file positions or a clock without knowing which.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;

/// An opaque row version: at most [`Version::MAX_LEN`] bytes, compared bytewise (a prefix sorts
/// first). The empty version, which is also the default, sorts below all others.
#[derive(Clone, Copy)]
pub struct Version {
    len: u8,
    bytes: [u8; Version::MAX_LEN],
}

impl Version {
    /// Longest version in bytes.
    pub const MAX_LEN: usize = 32;

    /// The version below all others.
    pub const LOWEST: Version = Version { len: 0, bytes: [0; Self::MAX_LEN] };

    /// Takes `bytes` as a version; `None` when they are longer than [`Version::MAX_LEN`].
    pub fn new(bytes: &[u8]) -> Option<Version> {
        if bytes.len() > Self::MAX_LEN {
            return None;
        }
        let mut version = Version::LOWEST;
        version.bytes[..bytes.len()].copy_from_slice(bytes);
        version.len = bytes.len() as u8;
        Some(version)
    }

    /// The bytes, as given.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A counter as a version: eight big-endian bytes, so that numeric order is version order.
impl From<u64> for Version {
    fn from(value: u64) -> Self {
        let mut version = Version::LOWEST;
        version.bytes[..8].copy_from_slice(&value.to_be_bytes());
        version.len = 8;
        version
    }
}

impl Default for Version {
    fn default() -> Self {
        Version::LOWEST
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Version {}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl std::hash::Hash for Version {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl Borrow<[u8]> for Version {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v")?;
        for byte in self.as_bytes() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Lower-case hexadecimal digits.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.as_bytes() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_bytewise_and_a_prefix_sorts_first() {
        let v = |b: &[u8]| Version::new(b).expect("short");
        assert!(v(b"") < v(b"\0"));
        assert!(v(b"\x01") < v(b"\x01\x00"));
        assert!(v(b"\x01\xff") < v(b"\x02"));
        assert!(Version::from(255) < Version::from(256));
        assert_eq!(Version::default(), Version::LOWEST);
    }

    #[test]
    fn thirty_three_bytes_are_refused() {
        assert!(Version::new(&[7; 32]).is_some());
        assert!(Version::new(&[7; 33]).is_none());
    }
}
