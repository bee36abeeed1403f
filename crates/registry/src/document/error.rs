//! What is wrong with a file, and where.

use std::fmt;

use super::scalar::suggest;

/// A place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// From 1.
    pub line: u32,
    /// From 1, in Unicode scalar values.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A file that cannot be used, with the place and what was expected there. Fields that do not apply are empty.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigError {
    /// Stable snake_case word for programs, for example `unknown_key`.
    pub code: &'static str,
    /// What is wrong, with the offending value; one line.
    pub message: Box<str>,
    /// The file, or empty.
    pub file: Box<str>,
    /// The place in it, when there is one.
    pub at: Option<Position>,
    /// The key it is about, when there is one.
    pub key: Option<Box<str>>,
    /// What would have been accepted; may be empty.
    pub expected: Box<[String]>,
    /// A suggested fix.
    pub hint: Option<Box<str>>,
}

impl ConfigError {
    /// An error without a place.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into().into(),
            file: "".into(),
            at: None,
            key: None,
            expected: Box::default(),
            hint: None,
        }
    }

    /// The same error at a place.
    #[must_use]
    pub fn at(mut self, file: &str, position: Position) -> Self {
        self.file = file.into();
        self.at = Some(position);
        self
    }

    /// The same error about a key.
    #[must_use]
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The same error with what would have been accepted.
    #[must_use]
    pub fn expected(mut self, expected: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.expected = expected.into_iter().map(Into::into).collect();
        self
    }

    /// The same error with a suggested fix.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into().into());
        self
    }

    /// The same error with "did you mean" where one of the known words is close to what was written.
    #[must_use]
    pub fn suggest<'k>(self, written: &str, known: impl IntoIterator<Item = &'k str>) -> Self {
        match suggest(written, known) {
            Some(word) => self.hint(format!("did you mean `{word}`?")),
            None => self,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.at, self.file.is_empty()) {
            (Some(at), false) => write!(f, "{}:{at}: ", self.file)?,
            (Some(at), true) => write!(f, "{at}: ")?,
            (None, false) => write!(f, "{}: ", self.file)?,
            (None, true) => {}
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None if self.expected.is_empty() => Ok(()),
            None => write!(f, " (expected {})", self.expected.join(", ")),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Something odd in a file that does not stop it from being used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Stable snake_case word for programs.
    pub code: &'static str,
    /// What is odd, with the offending value; one line.
    pub message: String,
    /// The file, or where else the value came from.
    pub file: String,
    /// The place in it, when there is one.
    pub at: Option<Position>,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.at, self.file.is_empty()) {
            (Some(at), false) => write!(f, "{}:{at}: ", self.file)?,
            (Some(at), true) => write!(f, "{at}: ")?,
            (None, false) => write!(f, "{}: ", self.file)?,
            (None, true) => {}
        }
        f.write_str(&self.message)
    }
}
