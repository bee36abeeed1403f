//! Errors with a place, what was expected there, and what to write instead.

use std::fmt::{self, Write};
use std::ops::Range;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::schema::Unsupported;

/// A text that is no expression.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseError {
    /// What is wrong, lowercase, with the offending text.
    pub message: String,
    /// The line, from 1.
    pub line: u32,
    /// The column in Unicode scalars, from 1.
    pub column: u32,
    /// The offending bytes; empty at the end of the text.
    pub span: Range<usize>,
    /// What could stand there, for people.
    pub expected: Vec<String>,
    /// What to write instead, where that is clear.
    pub hint: Option<String>,
    /// Stable, snake_case.
    pub code: &'static str,
}

impl ParseError {
    /// Message, source line, caret and hint, over several lines without a final newline.
    ///
    /// ```
    /// let source = "env == blue green";
    /// let error = metaroute_expr::Expr::parse(source).unwrap_err();
    /// assert_eq!(
    ///     error.render(source),
    ///     "unexpected `green` after a complete comparison\n  \
    ///      env == blue green\n  \
    ///      \u{20}           ^^^^^\n\
    ///      expected `&&`, `||` or the end\n\
    ///      hint: a value with spaces needs quotes: env == \"blue green\""
    /// );
    /// ```
    pub fn render(&self, source: &str) -> String {
        render(&self.message, source, self.span.clone(), &self.expected, self.hint.as_deref())
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at line {}, column {}", self.message, self.line, self.column)
    }
}

impl std::error::Error for ParseError {}

/// An expression that reads something the records do not have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BindError {
    /// The line of the name, from 1.
    pub line: u32,
    /// The column of the name in Unicode scalars, from 1.
    pub column: u32,
    /// Where the comparison that reads it starts, in bytes.
    pub offset: usize,
    /// What the schema said.
    pub unsupported: Unsupported,
}

impl BindError {
    /// Message, source line, caret and hint, as [`ParseError::render`].
    pub fn render(&self, source: &str) -> String {
        let span = self.offset..self.offset;
        render(&self.unsupported.message, source, span, &[], self.unsupported.hint.as_deref())
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot bind the comparison at line {}, column {}", self.line, self.column)
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.unsupported)
    }
}

/// Line and column, both from 1, of a byte offset; the column counts Unicode scalars.
pub(crate) fn position(source: &str, offset: usize) -> (u32, u32) {
    let before = &source[..floor(source, offset)];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).saturating_add(1);
    (count(before.matches('\n').count()), count(before[line_start..].chars().count()))
}

fn floor(source: &str, offset: usize) -> usize {
    let mut offset = offset.min(source.len());
    while !source.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

fn render(message: &str, source: &str, span: Range<usize>, expected: &[String], hint: Option<&str>) -> String {
    let start = floor(source, span.start);
    let line_start = source[..start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = source[start..].find('\n').map_or(source.len(), |at| start + at);
    let end = floor(source, span.end.clamp(start, line_end));
    // Tabs stay tabs, so that the caret stands under its character whatever their width.
    let pad: String = source[line_start..start]
        .chars()
        .flat_map(|c| {
            let width = if c == '\t' { 1 } else { c.width().unwrap_or(0) };
            std::iter::repeat_n(if c == '\t' { '\t' } else { ' ' }, width)
        })
        .collect();
    let carets = "^".repeat(source[start..end].width().max(1));
    let line = source[line_start..line_end].trim_end_matches('\r');
    let mut text = format!("{message}\n  {line}\n  {pad}{carets}");
    if !expected.is_empty() {
        // Writing to a string cannot fail.
        let _ = write!(text, "\nexpected {}", list(expected));
    }
    if let Some(hint) = hint {
        let _ = write!(text, "\nhint: {hint}");
    }
    text
}

fn list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [head @ .., last] => format!("{} or {last}", head.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use crate::Expr;

    #[track_caller]
    fn caret(source: &str, expected: &str) {
        let text = Expr::parse(source).expect_err(source).render(source);
        assert_eq!(text.lines().nth(2), Some(expected), "{text}");
    }

    #[test]
    fn the_caret_stands_under_its_character() {
        caret("a == b c", "         ^");
        caret("城市 == 北京 c", "               ^");
        caret("a == 1 && b == 北京 上海", "                      ^^^^");
        caret("\ta == b c", "  \t       ^");
        caret("é == b c", "         ^");
    }

    #[test]
    fn only_the_line_in_question_is_shown() {
        let source = "a == 1 &&\r\nb == c d\r\n&& e == 1";
        let text = Expr::parse(source).expect_err(source).render(source);
        assert_eq!(text.lines().nth(1), Some("  b == c d"));
        assert_eq!(text.lines().nth(2), Some("         ^"));
    }
}
