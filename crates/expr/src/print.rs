//! The canonical form.
//!
//! One spelling per meaning: `==`, `&&`, `||`, `!`, quotes only where they are needed or say something, parentheses only
//! where the tree needs them. Nothing is rewritten: `!(a == b)` is not `a != b`, since they differ on a missing key.

use std::fmt::{self, Write};

use crate::Dialect;
use crate::ast::{Ast, Comparison, Literal, Operand, Subject, Test};
use crate::decimal::Decimal;
use crate::lexer::is_word;
use crate::schema::SlotScope;
use crate::version::Version;

pub(crate) fn expression(ast: &Ast, f: &mut impl Write) -> fmt::Result {
    match ast {
        Ast::Compare(compare) => write_comparison(compare, f),
        Ast::Not(inner) => {
            f.write_char('!')?;
            match &**inner {
                Ast::Not(_) => expression(inner, f),
                Ast::Compare(compare) if compare.test == Test::Exists => expression(inner, f),
                _ => parenthesised(inner, f),
            }
        }
        Ast::And(children) => separated(children, " && ", f, |child, f| {
            if matches!(child, Ast::Or(_)) { parenthesised(child, f) } else { expression(child, f) }
        }),
        Ast::Or(children) => separated(children, " || ", f, expression),
    }
}

fn parenthesised<W: Write>(ast: &Ast, f: &mut W) -> fmt::Result {
    f.write_char('(')?;
    expression(ast, f)?;
    f.write_char(')')
}

fn separated<T, W: Write>(
    items: &[T],
    separator: &str,
    f: &mut W,
    mut write: impl FnMut(&T, &mut W) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        write(item, f)?;
    }
    Ok(())
}

/// One comparison as text.
pub(crate) fn comparison(comparison: &Comparison, dialect: Dialect) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = match dialect {
        Dialect::V1 => write_comparison(comparison, &mut text),
        Dialect::Seata => write_plain(comparison, &mut text),
    };
    text
}

fn write_comparison<W: Write>(comparison: &Comparison, f: &mut W) -> fmt::Result {
    if comparison.test == Test::Exists {
        f.write_str("exists(")?;
        subject(&comparison.left, f)?;
        return f.write_char(')');
    }
    if comparison.lower {
        f.write_str("lower(")?;
        subject(&comparison.left, f)?;
        f.write_char(')')?;
    } else {
        subject(&comparison.left, f)?;
    }
    match &comparison.test {
        Test::Exists => Ok(()),
        Test::Order(order, right) => {
            write!(f, " {} ", order.symbol())?;
            operand(right, f)
        }
        Test::In { negated, items } => {
            f.write_str(if *negated { " not in (" } else { " in (" })?;
            separated(items, ", ", f, operand)?;
            f.write_char(')')
        }
        Test::Like(glob) => {
            f.write_str(" like ")?;
            quoted(glob.as_str(), f)
        }
        Test::Matches(pattern) => {
            f.write_str(" matches ")?;
            quoted(pattern.as_str(), f)
        }
        Test::InRange(range) => {
            f.write_str(" in range ")?;
            quoted(range.as_str(), f)
        }
        Test::Never(word) => write!(f, " {word}"),
    }
}

/// A comparison of dialect `seata`: three words as they are.
fn write_plain<W: Write>(comparison: &Comparison, f: &mut W) -> fmt::Result {
    let Subject::Key(key) = &comparison.left else { return Ok(()) };
    match &comparison.test {
        Test::Order(order, Operand::Literal(literal)) => {
            write!(f, "{key} {} {}", order.symbol(), literal.value.as_text())
        }
        Test::Never(rest) => write!(f, "{key} {rest}"),
        _ => Ok(()),
    }
}

/// Whether a name can stand bare where a key is expected.
pub(crate) fn is_bare_key(name: &str) -> bool {
    is_word(name) && !looks_like_value(name) && !matches!(name, "not" | "exists" | "lower")
}

/// Numbers and plain versions are not taken for keys, so that `2.3 <= version` is caught.
pub(crate) fn looks_like_value(word: &str) -> bool {
    Decimal::parse(word).is_some() || (word.starts_with(|c: char| c.is_ascii_digit()) && Version::parse(word).is_some())
}

fn subject<W: Write>(subject: &Subject, f: &mut W) -> fmt::Result {
    match subject {
        Subject::Key(name) if is_bare_key(name) => f.write_str(name),
        Subject::Key(name) => write!(f, "`{name}`"),
        Subject::Attribute(attribute) => write!(f, "$self.{attribute}"),
        Subject::Slot { scope, name, optional } => {
            f.write_str(match scope {
                SlotScope::Caller => "$caller.",
                SlotScope::Request => "$req.",
            })?;
            if is_word(name) {
                f.write_str(name)?
            } else {
                write!(f, "`{name}`")?
            }
            if *optional { f.write_char('?') } else { Ok(()) }
        }
    }
}

fn operand<W: Write>(operand: &Operand, f: &mut W) -> fmt::Result {
    match operand {
        Operand::Literal(Literal { value, quoted: false }) => f.write_str(value.as_text()),
        Operand::Literal(Literal { value, quoted: true }) => quoted(value.as_text(), f),
        Operand::Reference(reference) => subject(reference, f),
    }
}

/// A text in double quotes with JSON's escapes.
pub(crate) fn quoted<W: Write>(text: &str, f: &mut W) -> fmt::Result {
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            '\u{8}' => f.write_str("\\b")?,
            '\u{c}' => f.write_str("\\f")?,
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => write!(f, "\\u{:04x}", u32::from(c))?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

/// A literal as it would be written.
pub(crate) fn literal_text(text: &str) -> String {
    if is_word(text) {
        return text.to_owned();
    }
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = quoted(text, &mut out);
    out
}

/// A key as it would be written.
pub(crate) fn key_text(name: &str) -> String {
    if is_bare_key(name) { name.to_owned() } else { format!("`{name}`") }
}
