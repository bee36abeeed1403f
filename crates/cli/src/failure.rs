//! One form for everything that goes wrong: a stable code, a message, a place, what was expected and a way out.
//!
//! In text it reads like a compiler's message, with a caret under the place; with `--format json` it is one JSON object on
//! stderr, so that a script never has to read prose.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use metaroute_core::RuleError;
use metaroute_expr::{BindError, ParseError};
use metaroute_registry::ConfigError;
use serde::Serialize;

use crate::output::{BAD, Format, STRONG, paint};
use crate::status::Status;

/// What a command returns.
pub(crate) type Outcome = Result<Status, Failure>;

/// Why a command could not answer.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    #[serde(skip)]
    pub(crate) status: Status,
    /// Stable, snake_case.
    pub(crate) code: Cow<'static, str>,
    /// A finer code, where one code covers many mistakes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<Cow<'static, str>>,
    /// Lowercase, with the offending value.
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<At>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) expected: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    /// Source line and caret.
    #[serde(skip)]
    pub(crate) excerpt: Option<String>,
}

/// A place in a file, or in an argument when `file` is absent. Line and column count from 1, columns in Unicode scalars.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub(crate) struct At {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl Failure {
    pub(crate) fn new(status: Status, code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.into(),
            detail: None,
            message: message.into(),
            at: None,
            expected: Vec::new(),
            hint: None,
            excerpt: None,
        }
    }

    /// Wrong usage, a bad rule or bad configuration.
    pub(crate) fn usage(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Status::Usage, code, message)
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub(crate) fn expected(mut self, expected: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.expected = expected.into_iter().map(Into::into).collect();
        self
    }

    /// A text that is no expression. `file` is where it came from, when not from the command line; its place there is
    /// the expression's own, so the expression must be the whole file.
    pub(crate) fn expression(error: &ParseError, source: &str, file: Option<&str>) -> Self {
        let width = source.get(error.span.clone()).map_or(1, |text| text.chars().count());
        Self {
            detail: Some(error.code.into()),
            at: Some(At { file: file.map(Into::into), line: error.line, column: error.column }),
            expected: error.expected.clone(),
            hint: error.hint.clone(),
            excerpt: excerpt(source, error.line, error.column, width),
            ..Self::usage("bad_expression", error.message.clone())
        }
    }

    /// An expression that reads what its records cannot have.
    pub(crate) fn unbound(error: &BindError, source: &str) -> Self {
        Self {
            detail: Some(error.unsupported.code.into()),
            at: Some(At { file: None, line: error.line, column: error.column }),
            hint: error.unsupported.hint.clone(),
            excerpt: excerpt(source, error.line, error.column, 1),
            ..Self::usage("bad_expression", error.unsupported.message.clone())
        }
    }

    /// A file that cannot be used; its line is shown where it can still be read.
    pub(crate) fn config(error: &ConfigError, status: Status) -> Self {
        let file = (!error.file.is_empty()).then(|| error.file.to_string());
        let text = file.as_deref().and_then(|file| std::fs::read_to_string(file).ok());
        let mut failure = Self::new(status, error.code, error.message.to_string());
        failure.expected = error.expected.to_vec();
        failure.hint = error.hint.as_deref().map(str::to_owned);
        match error.at {
            Some(at) => {
                failure.excerpt = text.and_then(|text| excerpt(&text, at.line, at.column, 1));
                failure.at = Some(At { file, line: at.line, column: at.column });
            }
            None => {
                if let Some(file) = file {
                    failure.message = format!("{file}: {}", failure.message);
                }
            }
        }
        failure
    }

    /// A rule set that cannot be used.
    pub(crate) fn rules(error: &RuleError) -> Self {
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            let _ = write!(message, ": {error}");
            cause = error.source();
        }
        Self::usage("bad_rules", message)
    }

    /// Output that could not be written. A reader that went away (`| head`) is no failure at all.
    pub(crate) fn stdout(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(Status::Done, BROKEN_PIPE, "the reader of the output went away");
        }
        Self::new(Status::Bug, "output", format!("cannot write to stdout: {error}"))
    }

    /// Writes it to stderr in the form asked for.
    pub(crate) fn report(&self, format: Format) {
        if self.code == BROKEN_PIPE {
            return;
        }
        let text = match format {
            Format::Text => self.text(),
            Format::Json | Format::Ndjson => self.json(),
        };
        // Where stderr is gone there is nobody left to tell.
        let _ = writeln!(anstream::stderr(), "{text}");
    }

    pub(crate) fn json(&self) -> String {
        #[derive(Serialize)]
        struct Wrapped<'a> {
            error: &'a Failure,
        }
        serde_json::to_string(&Wrapped { error: self }).expect("a failure is plain data")
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}: ", paint(BAD, "error"));
        if let Some(At { file: Some(file), line, column }) = &self.at {
            let _ = write!(text, "{file}:{line}:{column}: ");
        }
        text.push_str(&self.message);
        if let Some(excerpt) = &self.excerpt {
            let _ = write!(text, "\n{excerpt}");
        }
        match self.expected.as_slice() {
            [] => {}
            [one] => text.push_str(&format!("\nexpected {one}")),
            [head @ .., last] => text.push_str(&format!("\nexpected {} or {last}", head.join(", "))),
        }
        if let Some(hint) = &self.hint {
            let _ = write!(text, "\n{}: {hint}", paint(STRONG, "hint"));
        }
        text
    }
}

impl From<io::Error> for Failure {
    /// Only writing to stdout fails with a bare I/O error; whatever reads says what it was reading.
    fn from(error: io::Error) -> Self {
        Self::stdout(&error)
    }
}

const BROKEN_PIPE: &str = "broken_pipe";

/// The line of a source and a caret under the column; `None` when there is no such line.
pub(crate) fn excerpt(source: &str, line: u32, column: u32, width: usize) -> Option<String> {
    let text = source.lines().nth(line.checked_sub(1)? as usize).or_else(|| source.is_empty().then_some(""))?;
    let column = column.saturating_sub(1) as usize;
    // Tabs stay tabs, so that the caret stands under its character whatever their width.
    let pad: String = text.chars().take(column).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    let left = text.chars().count().saturating_sub(column);
    let carets = "^".repeat(width.clamp(1, left.max(1)));
    Some(format!("  {text}\n  {pad}{}", paint(BAD, &carets)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_only_the_fields_that_apply() {
        let bare = Failure::usage("bad_thing", "no");
        assert_eq!(bare.json(), r#"{"error":{"code":"bad_thing","message":"no"}}"#);
        let error = metaroute_expr::Expr::parse("env ==").unwrap_err();
        let value: serde_json::Value =
            serde_json::from_str(&Failure::expression(&error, "env ==", None).json()).unwrap();
        assert_eq!(value["error"]["code"], "bad_expression");
        assert_eq!(value["error"]["at"], serde_json::json!({"line": 1, "column": 7}));
        assert!(value["error"]["expected"].is_array(), "{value}");
    }

    #[test]
    fn the_caret_stands_under_its_column() {
        let plain = |text: Option<String>| anstream::adapter::strip_str(&text.unwrap()).to_string();
        assert_eq!(plain(excerpt("a == é !", 1, 8, 1)), "  a == é !\n         ^");
        assert_eq!(plain(excerpt("one\n\ttwo", 2, 2, 3)), "  \ttwo\n  \t^^^");
        assert_eq!(plain(excerpt("", 1, 1, 1)), "  \n  ^");
        assert_eq!(plain(excerpt("ab", 1, 3, 9)), "  ab\n    ^");
        assert_eq!(excerpt("ab", 3, 1, 1), None);
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let gone = Failure::stdout(&io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(gone.status, Status::Done);
        let full = Failure::stdout(&io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.status, Status::Bug);
    }
}
