//! Reading configuration files so that every complaint can point at its place.
//!
//! Fleet files, rule files and the configuration of other products all arrive as YAML, JSON, TOML or properties. Three
//! things matter to their readers that a plain deserialiser does not give: the place of every key and value (an
//! operator fixes a file by line and column), the text of a scalar *as written* (`version: 2.10` is the version 2.10 and
//! not the number 2.1), and closed shapes (a misspelt key is an error that names its likely spelling). So every format
//! is read into one tree of [`Node`]s that borrow from the source, and readers walk it with [`Fields`].
//!
//! Not for: configuration types that only we write and read; serde is simpler there.
//!
//! Bounds: a source has at most [`SOURCE_BYTES_MAX`] bytes, values nest at most [`DEPTH_MAX`] deep, and YAML aliases may
//! add at most [`ALIAS_NODES_MAX`] values to a document, so no file can make a reader run away.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

mod conf;
mod error;
mod json;
mod properties;
mod scalar;
mod toml;
mod yaml;

pub use error::{ConfigError, Note, Position};
pub use scalar::{is_plain_decimal, suggest};

/// Largest source accepted, in bytes: some 400,000 instances with metadata.
pub const SOURCE_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Deepest nesting accepted. Real files stay under ten.
pub const DEPTH_MAX: usize = 64;

/// Most values that YAML aliases may add to one document; bounds "billion laughs" files.
pub const ALIAS_NODES_MAX: usize = 100_000;

/// File formats that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML 1.2.
    Yaml,
    /// JSON (RFC 8259).
    Json,
    /// TOML 1.0.
    Toml,
    /// Java properties; dotted keys become nested tables.
    Properties,
    /// Lightbend (Typesafe) Config, HOCON.
    Conf,
}

impl Format {
    /// The format a file name's extension stands for; `None` for other extensions.
    pub fn of_path(path: &std::path::Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "yaml" | "yml" => Some(Self::Yaml),
            "json" => Some(Self::Json),
            "toml" => Some(Self::Toml),
            "properties" => Some(Self::Properties),
            "conf" => Some(Self::Conf),
            _ => None,
        }
    }
}

/// A source text with its name, able to turn offsets into places.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// What to call it in messages: a path, or empty.
    pub name: &'a str,
    /// Its text.
    pub text: &'a str,
}

impl<'a> Source<'a> {
    /// A text under a name.
    pub fn new(name: &'a str, text: &'a str) -> Self {
        Self { name, text }
    }

    /// The single document in this source.
    ///
    /// # Errors
    /// When the text is malformed, beyond the bounds, or holds more than one YAML document.
    pub fn parse(&self, format: Format) -> Result<Node<'a>, ConfigError> {
        let mut documents = self.parse_all(format)?;
        match documents.len() {
            0 => Ok(Node { value: Value::Scalar(Scalar::null()), span: 0..0 }),
            1 => Ok(documents.remove(0)),
            _ => Err(self
                .error(documents[1].span.start, "too_many_documents", "more than one document in the file")
                .hint("remove the `---` line or split the file")),
        }
    }

    /// All documents in this source; only YAML can have more than one, an empty source has none.
    ///
    /// # Errors
    /// When the text is malformed or beyond the bounds.
    pub fn parse_all(&self, format: Format) -> Result<Vec<Node<'a>>, ConfigError> {
        if self.text.len() > SOURCE_BYTES_MAX {
            let message = format!("{} bytes, at most {SOURCE_BYTES_MAX} are read", self.text.len());
            return Err(self.error(0, "too_large", message));
        }
        match format {
            Format::Yaml => yaml::parse(self),
            Format::Json => json::parse(self).map(|node| vec![node]),
            Format::Toml => toml::parse(self).map(|node| vec![node]),
            Format::Properties => properties::parse(self).map(|node| vec![node]),
            Format::Conf => conf::parse(self).map(|node| vec![node]),
        }
    }

    /// The lines of a Java properties file as written: key, value, in order, without nesting.
    ///
    /// # Errors
    /// On a malformed `\u` escape.
    pub fn properties(&self) -> Result<Vec<Entry<'a>>, ConfigError> {
        properties::entries(self)
    }

    /// The place of a byte offset.
    pub fn position(&self, offset: usize) -> Position {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = before.iter().filter(|b| **b == b'\n').count();
        let start = before.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        // Continuation bytes are not characters of their own.
        let column = before[start..].iter().filter(|b| (**b & 0xC0) != 0x80).count();
        let mark = usize::from(line == 0 && self.text.starts_with('\u{feff}') && offset >= 3);
        Position { line: line as u32 + 1, column: (column - mark) as u32 + 1 }
    }

    /// An index of the line starts, for many [`position`](Lines::position)s in one text.
    pub fn lines(&self) -> Lines<'a> {
        let starts = std::iter::once(0).chain(self.text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Lines { text: self.text, starts }
    }

    /// An error at a byte offset.
    pub fn error(&self, offset: usize, code: &'static str, message: impl Into<String>) -> ConfigError {
        let position = self.position(offset);
        ConfigError::new(code, message).at(self.name, position)
    }

    /// A note at a byte offset: something odd that is no error.
    pub fn note(&self, offset: usize, code: &'static str, message: impl Into<String>) -> Note {
        Note { code, message: message.into(), file: self.name.into(), at: Some(self.position(offset)) }
    }

    /// Byte offset in the source of the character at byte offset `within` of a scalar's value. Escapes, folded lines and
    /// block scalars are followed.
    pub fn locate(&self, node: &Node<'_>, within: usize) -> usize {
        let Value::Scalar(scalar) = &node.value else { return node.span.start };
        let raw = self.text.get(node.span.clone()).unwrap_or_default();
        node.span.start + scalar::align(raw, &scalar.text, within)
    }
}

/// The line starts of a text.
#[derive(Clone, Debug)]
pub struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl Lines<'_> {
    /// The place of a byte offset, as [`Source::position`] gives it.
    pub fn position(&self, offset: usize) -> Position {
        let offset = offset.min(self.text.len());
        let line = self.starts.partition_point(|start| *start <= offset).max(1);
        let start = self.starts[line - 1];
        let column = self.text.as_bytes()[start..offset].iter().filter(|b| (**b & 0xC0) != 0x80).count();
        let mark = usize::from(line == 1 && self.text.starts_with('\u{feff}') && offset >= 3);
        Position { line: line as u32, column: (column - mark) as u32 + 1 }
    }
}

/// One value with its place.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    /// What it is.
    pub value: Value<'a>,
    /// Its bytes in the source.
    pub span: Range<usize>,
}

/// What a node holds.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// A single value.
    Scalar(Scalar<'a>),
    /// A list.
    List(Vec<Node<'a>>),
    /// Keys and values in the order written; keys are unique.
    Map(Vec<Entry<'a>>),
}

/// One key of a map.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// The key.
    pub key: Cow<'a, str>,
    /// Its bytes in the source.
    pub key_span: Range<usize>,
    /// What stands under it.
    pub node: Node<'a>,
}

/// A single value: its text as written, and what the format takes it for.
#[derive(Clone, Debug)]
pub struct Scalar<'a> {
    /// For strings the decoded text, else the digits or word as written.
    pub text: Cow<'a, str>,
    /// What the format takes it for.
    pub kind: ScalarKind,
}

impl Scalar<'_> {
    fn null() -> Self {
        Scalar { text: Cow::Borrowed(""), kind: ScalarKind::Null }
    }
}

/// What a format takes a scalar for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarKind {
    /// A string, quoted or not.
    Text,
    /// A number; its text is a decimal, perhaps with exponent, or what the format calls infinite or not a number.
    Number,
    /// `true` or `false`.
    Bool,
    /// Nothing.
    Null,
}

impl<'a> Node<'a> {
    /// The scalar, when it is one.
    pub fn scalar(&self) -> Option<&Scalar<'a>> {
        match &self.value {
            Value::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    /// The text of a string, number or boolean, as written.
    pub fn text(&self) -> Option<&str> {
        self.scalar().filter(|s| s.kind != ScalarKind::Null).map(|s| s.text.as_ref())
    }

    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        self.scalar().is_some_and(|s| s.kind == ScalarKind::Null)
    }

    /// The entries, when it is a map.
    pub fn map(&self) -> Option<&[Entry<'a>]> {
        match &self.value {
            Value::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// The items, when it is a list.
    pub fn list(&self) -> Option<&[Node<'a>]> {
        match &self.value {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// The value under a key, when it is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Node<'a>> {
        self.map()?.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    /// Short name of what it is, for messages.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Map(_) => "a map",
            Value::List(_) => "a list",
            Value::Scalar(scalar) => match scalar.kind {
                ScalarKind::Text => "text",
                ScalarKind::Number => "a number",
                ScalarKind::Bool => "true or false",
                ScalarKind::Null => "nothing",
            },
        }
    }

    /// The value as JSON text; numbers keep their digits where JSON can write them.
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        scalar::write_json(self, &mut out);
        out
    }
}

impl fmt::Display for Node<'_> {
    /// The value as a person would write it, cut short; for messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) if text.chars().count() > 60 => write!(f, "{}…", text.chars().take(60).collect::<String>()),
            Some(text) => f.write_str(text),
            None => f.write_str(self.kind()),
        }
    }
}

/// A map whose keys are all known: the walker of closed shapes.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'n, 'a> {
    source: Source<'a>,
    node: &'n Node<'a>,
    entries: &'n [Entry<'a>],
}

impl<'n, 'a> Fields<'n, 'a> {
    /// Checks that `node` is a map with no other keys than `known`. `what` names the thing in messages ("rule").
    ///
    /// # Errors
    /// `wrong_type` when it is no map, `unknown_key` at the first key that is not known.
    pub fn of(source: Source<'a>, node: &'n Node<'a>, what: &str, known: &[&str]) -> Result<Self, ConfigError> {
        let fields = Self::open(source, node, what)?;
        match fields.entries.iter().find(|entry| !known.contains(&entry.key.as_ref())) {
            None => Ok(fields),
            Some(entry) => Err(source
                .error(entry.key_span.start, "unknown_key", format!("unknown key `{}` in {what}", entry.key))
                .key(&entry.key)
                .expected(known.iter().copied())
                .suggest(&entry.key, known.iter().copied())),
        }
    }

    /// Like [`Fields::of`] for a map with free keys.
    ///
    /// # Errors
    /// `wrong_type` when it is no map.
    pub fn open(source: Source<'a>, node: &'n Node<'a>, what: &str) -> Result<Self, ConfigError> {
        match node.map() {
            Some(entries) => Ok(Self { source, node, entries }),
            None => Err(source
                .error(node.span.start, "wrong_type", format!("{what} must be a map, not {}", node.kind()))
                .expected(["map"])),
        }
    }

    /// All keys in order.
    pub fn entries(&self) -> &'n [Entry<'a>] {
        self.entries
    }

    /// The value of a key; null counts as absent.
    pub fn get(&self, key: &str) -> Option<&'n Node<'a>> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node).filter(|node| !node.is_null())
    }

    /// The value of a key that has to be there.
    ///
    /// # Errors
    /// `missing_key`, at the map.
    pub fn require(&self, key: &str, what: &str) -> Result<&'n Node<'a>, ConfigError> {
        self.get(key).ok_or_else(|| {
            self.source.error(self.node.span.start, "missing_key", format!("{what} has no `{key}`")).key(key)
        })
    }

    /// The text of a key.
    ///
    /// # Errors
    /// `wrong_type` when it is a list or map.
    pub fn text(&self, key: &str) -> Result<Option<&'n str>, ConfigError> {
        self.get(key).map(|node| self.source.text_of(node, key)).transpose()
    }

    /// A boolean.
    ///
    /// # Errors
    /// `wrong_type` when it is neither `true` nor `false`.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        let Some(node) = self.get(key) else { return Ok(None) };
        match node.text() {
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            _ => Err(self
                .source
                .error(node.span.start, "wrong_type", format!("`{key}` must be true or false, not `{node}`"))
                .key(key)
                .expected(["true", "false"])),
        }
    }
}

/// The entries of a map under construction. Small maps, nearly all there are, are searched in place; large ones by an
/// index, so that a map of 100,000 keys takes no time either.
#[derive(Default)]
struct MapBuilder<'a> {
    entries: Vec<Entry<'a>>,
    index: std::collections::HashMap<Cow<'a, str>, usize>,
}

impl<'a> MapBuilder<'a> {
    const SMALL: usize = 16;

    fn find(&self, key: &str) -> Option<usize> {
        if self.entries.len() <= Self::SMALL {
            self.entries.iter().position(|entry| entry.key == key)
        } else {
            self.index.get(key).copied()
        }
    }

    /// Adds a key that is not there yet.
    fn push(&mut self, entry: Entry<'a>) {
        if self.entries.len() == Self::SMALL {
            self.index = self.entries.iter().enumerate().map(|(at, entry)| (entry.key.clone(), at)).collect();
        }
        if self.entries.len() >= Self::SMALL {
            self.index.insert(entry.key.clone(), self.entries.len());
        }
        self.entries.push(entry);
    }
}

impl<'a> Source<'a> {
    /// The text of a scalar under `key`.
    ///
    /// # Errors
    /// `wrong_type` when it is a list, a map or nothing.
    pub fn text_of<'n>(&self, node: &'n Node<'a>, key: &str) -> Result<&'n str, ConfigError> {
        node.text().ok_or_else(|| {
            self.error(node.span.start, "wrong_type", format!("`{key}` must be text, not {}", node.kind()))
                .key(key)
                .expected(["text"])
        })
    }

    /// The items of a list under `key`.
    ///
    /// # Errors
    /// `wrong_type` when it is no list.
    pub fn list_of<'n>(&self, node: &'n Node<'a>, key: &str) -> Result<&'n [Node<'a>], ConfigError> {
        node.list().ok_or_else(|| {
            self.error(node.span.start, "wrong_type", format!("`{key}` must be a list, not {}", node.kind()))
                .key(key)
                .expected(["list"])
        })
    }
}

#[cfg(test)]
mod tests;
