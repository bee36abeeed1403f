//! One value of a record, and the forms it can take in a comparison.
//!
//! The same expression filters instances, whose metadata is text, and rows, whose columns are integers, decimals, bytes
//! and times. [`Value`] is the borrowed union of those; making one never allocates. Where the same text is compared
//! again and again (a dictionary-encoded column, the literal of an expression) it is a [`Parsed`]: its number, version
//! and time forms are found once.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::decimal::{Decimal, Number};
use crate::types::TimeUnit;
use crate::version::{self, Version};
use crate::{java, time};

/// One value of a record.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Text whose other forms are parsed when a comparison asks for them.
    Text(&'a str),
    /// Text, or a list, whose other forms were parsed beforehand.
    Parsed(&'a Parsed),
    /// An integer.
    Int(i128),
    /// A binary float; it counts as the shortest decimal that reads back as the same float.
    Float(f64),
    /// Plain decimal digits, as a database prints a DECIMAL.
    Decimal(&'a str),
    /// A truth value; its text is `true` or `false`.
    Bool(bool),
    /// Nanoseconds since 1970-01-01T00:00:00Z; its text is RFC 3339.
    Time(i128),
    /// Raw bytes; their text is standard base64 with padding.
    Bytes(&'a [u8]),
    /// A list of texts.
    List(&'a [Box<str>]),
}

/// A text or a list with its number, version and time forms found beforehand: a dictionary entry of a column.
///
/// Equality, order and hash are those of the content as written, so `1.0` and `1` are two entries. The order is for
/// sorted containers only; it says nothing about numbers or versions.
#[derive(Clone, Debug)]
pub struct Parsed {
    text: Box<str>,
    list: Option<Box<[Box<str>]>>,
    number: NumberForm,
    version: Option<version::Form>,
    time: Option<i128>,
    double: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
enum NumberForm {
    None,
    Fixed(i128),
    /// Too long for the fast form; read again from the text.
    Long,
}

impl Parsed {
    /// Parses a text.
    pub fn text(text: impl Into<Box<str>>) -> Self {
        let text = text.into();
        let number = match Number::parse(&text) {
            None => NumberForm::None,
            Some(Number::Fixed(fixed)) => NumberForm::Fixed(fixed),
            Some(Number::Long(_)) => NumberForm::Long,
        };
        Parsed {
            number,
            version: version::Form::parse(&text),
            time: time::parse_rfc3339(&text),
            double: java::parse_double(&text),
            list: None,
            text,
        }
    }

    /// Keeps a list. It is a set in every comparison, whatever type its key is declared with.
    pub fn list(items: impl IntoIterator<Item = Box<str>>) -> Self {
        let items: Box<[Box<str>]> = items.into_iter().collect();
        Parsed {
            text: items.join(",").into(),
            list: Some(items),
            number: NumberForm::None,
            version: None,
            time: None,
            double: None,
        }
    }

    /// The text as written; a list's items are joined with commas.
    pub fn as_text(&self) -> &str {
        &self.text
    }

    /// The items, if it is a list.
    pub fn as_list(&self) -> Option<&[Box<str>]> {
        self.list.as_deref()
    }

    fn content(&self) -> (&str, Option<&[Box<str>]>) {
        (&self.text, self.as_list())
    }
}

impl PartialEq for Parsed {
    fn eq(&self, other: &Self) -> bool {
        self.content() == other.content()
    }
}

impl Eq for Parsed {}

impl Hash for Parsed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.content().hash(state);
    }
}

impl Ord for Parsed {
    fn cmp(&self, other: &Self) -> Ordering {
        self.content().cmp(&other.content())
    }
}

impl PartialOrd for Parsed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<&str> for Parsed {
    fn from(text: &str) -> Self {
        Parsed::text(text)
    }
}

/// Room for the text of a value that is not text: the longest float takes 327 bytes.
#[derive(Debug)]
pub(crate) struct TextBuffer {
    bytes: [u8; 352],
    len: usize,
}

impl TextBuffer {
    pub(crate) fn new() -> Self {
        TextBuffer { bytes: [0; 352], len: 0 }
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or("")
    }

    /// Writes into the buffer and gives the text back, or `None` where it does not fit.
    fn print(&mut self, write: impl FnOnce(&mut Self) -> fmt::Result) -> Option<&str> {
        self.len = 0;
        write(self).ok()?;
        Some(self.as_str())
    }

    /// The text in lower case, or `None` where it does not fit.
    pub(crate) fn lower(&mut self, text: &str) -> Option<&str> {
        use fmt::Write;
        self.print(|buffer| text.chars().flat_map(char::to_lowercase).try_for_each(|c| buffer.write_char(c)))
    }
}

impl fmt::Write for TextBuffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// The value has no text yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NeedsText;

/// The text form of a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Text<'a> {
    Str(&'a str),
    /// Bytes standing for their base64 text, which is never built.
    Bytes(&'a [u8]),
}

impl<'a> Text<'a> {
    pub(crate) fn chars(self) -> impl Iterator<Item = char> + Clone + use<'a> {
        let (text, bytes) = match self {
            Text::Str(text) => (text, &[][..]),
            Text::Bytes(bytes) => ("", bytes),
        };
        text.chars().chain(base64(bytes))
    }
}

fn base64(bytes: &[u8]) -> impl Iterator<Item = char> + Clone + use<'_> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes.chunks(3).flat_map(|chunk| {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digits = chunk.len() + 1;
        (0..4).map(
            move |index| {
                if index < digits { char::from(ALPHABET[(bits >> (18 - 6 * index) & 63) as usize]) } else { '=' }
            },
        )
    })
}

impl<'a> Value<'a> {
    /// The items, where the value is a list.
    pub(crate) fn as_list(self) -> Option<&'a [Box<str>]> {
        match self {
            Value::List(items) => Some(items),
            Value::Parsed(parsed) => parsed.as_list(),
            _ => None,
        }
    }

    /// Borrowed text where the value has some.
    pub(crate) fn as_str(self) -> Option<&'a str> {
        match self {
            Value::Text(text) | Value::Decimal(text) => Some(text),
            Value::Parsed(parsed) => Some(&parsed.text),
            Value::Bool(true) => Some("true"),
            Value::Bool(false) => Some("false"),
            _ => None,
        }
    }

    /// The text form. A list has none: its items are compared one by one.
    pub(crate) fn to_text<'b>(self, buffer: &'b mut TextBuffer) -> Text<'b>
    where
        'a: 'b,
    {
        use fmt::Write;
        if let Some(text) = self.as_str() {
            return Text::Str(text);
        }
        let printed = match self {
            Value::Int(value) => buffer.print(|out| write!(out, "{value}")),
            Value::Float(value) => buffer.print(|out| write!(out, "{value}")),
            Value::Time(nanos) => buffer.print(|out| time::write_rfc3339(nanos, out)),
            Value::Bytes(bytes) => return Text::Bytes(bytes),
            _ => None,
        };
        Text::Str(printed.unwrap_or(""))
    }

    /// The number, or `Err` where its text has to be printed first: then [`number`](Self::number) is asked.
    pub(crate) fn ready_number(self) -> Result<Option<Number<'a>>, NeedsText> {
        match self {
            Value::Text(text) | Value::Decimal(text) => Ok(Number::parse(text)),
            Value::Parsed(parsed) => Ok(match parsed.number {
                NumberForm::None => None,
                NumberForm::Fixed(fixed) => Some(Number::Fixed(fixed)),
                NumberForm::Long => Number::parse(&parsed.text),
            }),
            Value::Int(value) => Number::from_integer(value).map(Some).ok_or(NeedsText),
            Value::Float(_) => Err(NeedsText),
            Value::Bool(_) | Value::Time(_) | Value::Bytes(_) | Value::List(_) => Ok(None),
        }
    }

    pub(crate) fn number<'b>(self, buffer: &'b mut TextBuffer) -> Option<Number<'b>>
    where
        'a: 'b,
    {
        match self.ready_number() {
            Ok(number) => number,
            Err(NeedsText) => match self.to_text(buffer) {
                Text::Str(text) => Number::parse(text),
                Text::Bytes(_) => None,
            },
        }
    }

    /// The version, or `Err` where its text has to be printed first: then [`version`](Self::version) is asked.
    pub(crate) fn ready_version(self) -> Result<Option<Version<'a>>, NeedsText> {
        match self {
            Value::Parsed(parsed) => Ok(parsed.version.map(|form| form.of(&parsed.text))),
            Value::List(_) | Value::Bytes(_) => Ok(None),
            _ => self.as_str().map(|text| Version::parse(text.trim())).ok_or(NeedsText),
        }
    }

    /// Both sides as versions, where that was decided beforehand and takes no look at the text.
    pub(crate) fn cmp_parsed_versions(self, other: Value<'_>) -> Option<Ordering> {
        match (self, other) {
            (Value::Parsed(Parsed { version: Some(left), .. }), Value::Parsed(Parsed { version: Some(right), .. })) => {
                left.cmp_parts(right)
            }
            _ => None,
        }
    }

    pub(crate) fn version<'b>(self, lower: bool, buffer: &'b mut TextBuffer) -> Option<Version<'b>>
    where
        'a: 'b,
    {
        if lower {
            let mut plain = TextBuffer::new();
            let Text::Str(text) = self.to_text(&mut plain) else { return None };
            return Version::parse(buffer.lower(text.trim())?);
        }
        match self.ready_version() {
            Ok(version) => version,
            Err(NeedsText) => match self.to_text(buffer) {
                Text::Str(text) => Version::parse(text),
                Text::Bytes(_) => None,
            },
        }
    }

    /// The value as a point in time, in nanoseconds since 1970-01-01T00:00:00Z, as a comparison of a key of type `time` in
    /// this unit reads it.
    pub fn time(self, unit: TimeUnit) -> Option<i128> {
        match self {
            Value::Time(nanos) => Some(nanos),
            Value::Int(count) => time::from_epoch_integer(count, unit),
            Value::Parsed(parsed) => parsed.time.or_else(|| epoch(&parsed.text, unit)),
            Value::Text(text) => time::parse_rfc3339(text).or_else(|| epoch(text, unit)),
            Value::Decimal(text) => epoch(text, unit),
            Value::Float(_) | Value::Bool(_) | Value::Bytes(_) | Value::List(_) => None,
        }
    }

    /// The double of the original.
    pub(crate) fn double(self) -> Option<f64> {
        match self {
            Value::Parsed(parsed) => parsed.double,
            Value::Text(text) | Value::Decimal(text) => java::parse_double(text),
            Value::Int(value) => Some(value as f64),
            Value::Float(value) => Some(value),
            Value::Bool(_) | Value::Time(_) | Value::Bytes(_) | Value::List(_) => None,
        }
    }
}

fn epoch(text: &str, unit: TimeUnit) -> Option<i128> {
    if unit == TimeUnit::Rfc3339 {
        return None;
    }
    time::from_epoch(&Decimal::parse(text.trim())?, unit)
}

/// Prints the value the way an explanation shows it.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(items) = self.as_list() {
            return f.write_str(&items.join(","));
        }
        match self.to_text(&mut TextBuffer::new()) {
            Text::Str(text) => f.write_str(text),
            bytes @ Text::Bytes(_) => bytes.chars().try_for_each(|c| fmt::Write::write_char(f, c)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms() {
        for (value, expected) in [
            (Value::Int(-5), "-5"),
            (Value::Float(0.1), "0.1"),
            (Value::Float(1e21), "1000000000000000000000"),
            (Value::Decimal("2.50"), "2.50"),
            (Value::Bool(true), "true"),
            (Value::Time(1_500_000_000), "1970-01-01T00:00:01.5Z"),
            (Value::Bytes(b""), ""),
            (Value::Bytes(b"f"), "Zg=="),
            (Value::Bytes(b"fo"), "Zm8="),
            (Value::Bytes(b"foo"), "Zm9v"),
            (Value::Bytes(b"\xff\xfe\xfdx"), "//79eA=="),
            (Value::List(&["a".into(), "b".into()]), "a,b"),
        ] {
            assert_eq!(value.to_string(), expected);
        }
    }

    #[test]
    fn the_longest_float_fits() {
        for value in
            [f64::MIN_POSITIVE, -f64::MIN_POSITIVE, f64::from_bits(1), f64::MAX, -f64::MAX, -2.225_073_858_507_201e-308]
        {
            let mut buffer = TextBuffer::new();
            let Text::Str(text) = Value::Float(value).to_text(&mut buffer) else { panic!("{value}") };
            assert_eq!(text.parse(), Ok(value));
        }
    }

    #[test]
    fn entries_are_equal_by_what_is_written() {
        assert_eq!(Parsed::text("1"), Parsed::text("1"));
        assert_ne!(Parsed::text("1"), Parsed::text("1.0"));
        assert_ne!(Parsed::text("a"), Parsed::list([Box::from("a")]));
    }
}
