//! Versions as people write them, in the order people mean.
//!
//! Metadata says `2.10`, `v2.11+build7`, `2.3.0.RELEASE` or `2.10.0-rc.1`; comparing those as numbers or as text puts
//! 2.10 before 2.9. A [`Version`] has one to four numeric parts (missing ones are zero) of any length, an optional
//! leading `v`, a pre-release ordered as in [semver](https://semver.org/#spec-item-11) and build metadata that is
//! ignored. [`Range`] is `^` and `~` with Cargo's meaning, over up to four parts. Nothing here allocates when comparing.

use std::cmp::Ordering;
use std::fmt;

/// The most numeric parts a version may have.
const PARTS: usize = 4;

/// Words that some ecosystems append to a finished version; they mean the release itself.
const RELEASE_WORDS: [&str; 3] = ["RELEASE", "Final", "GA"];

/// A version, borrowed from its text. Equal versions may be written differently: `2.3`, `v2.3.0` and `2.3.0+build`.
///
/// ```
/// use metaroute_expr::version::Version;
///
/// let parse = |text| Version::parse(text).unwrap();
/// assert!(parse("2.10") > parse("2.9"));
/// assert!(parse("2.10.0-rc.10") > parse("2.10.0-rc.9"));
/// assert!(parse("2.10.0-rc.10") < parse("2.10"));
/// assert_eq!(parse("v2.3"), parse("2.3.0.RELEASE"));
/// assert!(Version::parse("latest").is_none());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Version<'a> {
    /// The numeric parts; one that does not fit is `u64::MAX` and `wide` is set.
    parts: [u64; PARTS],
    wide: bool,
    /// The numeric parts as written.
    core: &'a str,
    /// The pre-release without its hyphen; empty for a release.
    pre: &'a str,
}

impl<'a> Version<'a> {
    /// Reads a version. Surrounding space is not part of one: trim first.
    pub fn parse(text: &'a str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let (text, build) = match text.split_once('+') {
            Some((text, build)) => (text, Some(build)),
            None => (text, None),
        };
        if build.is_some_and(|build| !are_identifiers(build)) {
            return None;
        }
        let (core, pre) = match text.split_once('-') {
            Some((core, pre)) if are_identifiers(pre) => (core, pre),
            Some(_) => return None,
            None => (text, ""),
        };
        let core = match core.rsplit_once('.') {
            Some((rest, word)) if RELEASE_WORDS.contains(&word) => rest,
            _ => core,
        };
        let mut parts = [0; PARTS];
        let mut wide = false;
        for (index, part) in core.split('.').enumerate() {
            if index == PARTS || part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            parts[index] = part.parse().unwrap_or(u64::MAX);
            wide |= parts[index] == u64::MAX;
        }
        Some(Version { parts, wide, core, pre })
    }

    /// Whether it has a pre-release.
    pub fn is_prerelease(&self) -> bool {
        !self.pre.is_empty()
    }

    /// The numeric parts; one that does not fit 64 bits is `u64::MAX`.
    pub(crate) fn parts(&self) -> [u64; PARTS] {
        self.parts
    }

    /// The pre-release without its hyphen; empty for a release.
    pub(crate) fn prerelease(&self) -> &'a str {
        self.pre
    }

    /// Compares the numeric parts only.
    fn cmp_core(&self, other: &Version<'_>) -> Ordering {
        if !self.wide && !other.wide {
            return self.parts.cmp(&other.parts);
        }
        let mut mine = self.core.split('.');
        let mut theirs = other.core.split('.');
        for _ in 0..PARTS {
            let order = cmp_digits(mine.next().unwrap_or(""), theirs.next().unwrap_or(""));
            if order != Ordering::Equal {
                return order;
            }
        }
        Ordering::Equal
    }
}

impl Ord for Version<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.cmp_core(other).then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => cmp_pre(self.pre, other.pre),
        })
    }
}

impl PartialOrd for Version<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Version<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Version<'_> {}

/// Compares two texts as versions after trimming; `None` where one of them is no version.
///
/// ```
/// use std::cmp::Ordering;
/// use metaroute_expr::version::compare;
///
/// assert_eq!(compare("2.10", "2.9"), Some(Ordering::Greater));
/// assert_eq!(compare("2.10", "latest"), None);
/// ```
pub fn compare(a: &str, b: &str) -> Option<Ordering> {
    Some(Version::parse(a.trim())?.cmp(&Version::parse(b.trim())?))
}

/// Dot-separated, non-empty, ASCII letters, digits and hyphens.
fn are_identifiers(text: &str) -> bool {
    text.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
}

fn cmp_digits(a: &str, b: &str) -> Ordering {
    let a = a.trim_start_matches('0');
    let b = b.trim_start_matches('0');
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

fn cmp_pre(a: &str, b: &str) -> Ordering {
    let mut a = a.split('.');
    let mut b = b.split('.');
    loop {
        let (left, right) = match (a.next(), b.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(left), Some(right)) => (left, right),
        };
        let numeric = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let order = match (numeric(left), numeric(right)) {
            (true, true) => cmp_digits(left, right),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => left.cmp(right),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// A version parsed beforehand, to be put back together with its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    parts: [u64; PARTS],
    wide: bool,
    core: (u32, u32),
    pre: (u32, u32),
}

impl Form {
    /// `text` is trimmed here; `None` where it is no version or longer than offsets can say.
    pub(crate) fn parse(text: &str) -> Option<Form> {
        u32::try_from(text.len()).ok()?;
        let version = Version::parse(text.trim())?;
        let span = |part: &str| {
            // An empty pre-release points nowhere in particular.
            if part.is_empty() {
                return (0, 0);
            }
            let start = part.as_ptr() as usize - text.as_ptr() as usize;
            (start as u32, (start + part.len()) as u32)
        };
        Some(Form { parts: version.parts, wide: version.wide, core: span(version.core), pre: span(version.pre) })
    }

    /// The order, where the numeric parts tell it.
    pub(crate) fn cmp_parts(&self, other: &Form) -> Option<Ordering> {
        if self.wide || other.wide {
            return None;
        }
        let releases = self.pre.1 == 0 && other.pre.1 == 0;
        Some(self.parts.cmp(&other.parts)).filter(|order| order.is_ne() || releases)
    }

    /// The version again; `text` is the one it was parsed from.
    pub(crate) fn of<'a>(&self, text: &'a str) -> Version<'a> {
        let part = |(start, end): (u32, u32)| text.get(start as usize..end as usize).unwrap_or("");
        Version { parts: self.parts, wide: self.wide, core: part(self.core), pre: part(self.pre) }
    }
}

/// `^2.3` or `~2.3.1`: from the written version up to the next one that may break.
///
/// As in Cargo, `^` keeps the leftmost part that is not zero and `~` keeps the first two parts (or the one that is
/// written). The upper bound compares numeric parts only, so `3.0.0-rc.1` is not in `^2.3`, while pre-releases inside
/// the range are.
///
/// ```
/// use metaroute_expr::version::{Range, Version};
///
/// let range: Range = "^2.3".parse().unwrap();
/// let has = |text| range.contains(&Version::parse(text).unwrap());
/// assert!(has("2.3") && has("2.10.0-rc.1"));
/// assert!(!has("2.3.0-rc.1") && !has("3.0.0-rc.1") && !has("3"));
/// ```
#[derive(Clone, Debug)]
pub struct Range {
    text: Box<str>,
    /// The version after the operator.
    lower: Form,
    upper: [u64; PARTS],
}

/// A text that is no range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRange(String);

impl fmt::Display for BadRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no version range", self.0)
    }
}

impl std::error::Error for BadRange {}

impl std::str::FromStr for Range {
    type Err = BadRange;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Range::parse(text.trim()).ok_or_else(|| BadRange(text.to_owned()))
    }
}

impl Range {
    fn parse(text: &str) -> Option<Self> {
        let caret = text.starts_with('^');
        let written = text.strip_prefix(['^', '~'])?.trim_start();
        let version = Version::parse(written)?;
        if version.wide {
            // A bound of 2^64 cannot be raised; no version counts that far.
            return None;
        }
        let count = version.core.split('.').count();
        let last = count - 1;
        let keep =
            if caret { version.parts[..last].iter().position(|part| *part != 0).unwrap_or(last) } else { last.min(1) };
        let mut upper = [0; PARTS];
        upper[..=keep].copy_from_slice(&version.parts[..=keep]);
        upper[keep] = upper[keep].checked_add(1).filter(|part| *part != u64::MAX)?;
        let mut canonical = String::with_capacity(text.len());
        canonical.push(if caret { '^' } else { '~' });
        canonical.push_str(written);
        let lower = Form::parse(written)?;
        Some(Range { text: canonical.into(), lower, upper })
    }

    /// Whether the version lies in the range.
    pub fn contains(&self, version: &Version<'_>) -> bool {
        // A part too large for 64 bits is held as u64::MAX, which no bound reaches.
        version.parts < self.upper && *version >= self.lower.of(&self.text[1..])
    }

    /// The range as text: operator and version.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn lower(&self) -> Version<'_> {
        self.lower.of(&self.text[1..])
    }

    /// The first version above the range, compared by numeric parts only.
    pub(crate) fn upper(&self) -> [u64; PARTS] {
        self.upper
    }
}

impl PartialEq for Range {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Range {}

impl std::hash::Hash for Range {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
