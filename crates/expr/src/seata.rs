//! Dialect `seata`: the original's parser, bug for bug.
//!
//! The original tests the whole text for validity first and then cuts it up a second time, with another idea of what
//! parentheses mean; most of its odd answers come from those two disagreeing. Both steps are kept apart here too, in the
//! same order, so that every text is accepted or refused as there and yields the same conditions. Text is cut as Java
//! cuts it: `trim` removes everything up to U+0020, `\s` is space, tab, newline, vertical tab, form feed and return.
//!
//! This is a migration aid: it exists so that `diff` can show where an existing expression means something else than its
//! author thinks.

use std::fmt;

use crate::ast::{Ast, Comparison, Literal, Operand, Order, Subject, Test};
use crate::error::ParseError;
use crate::expr::span_in;
use crate::lexer;

pub(crate) fn parse(source: &str) -> Result<Ast, ParseError> {
    let text = trim(source);
    if text.is_empty() {
        return Ok(Ast::And(Vec::new()));
    }
    let (separator, join): (&str, fn(Vec<Ast>) -> Ast) = if text.contains("||") {
        ("||", Ast::Or)
    } else if text.contains("&&") {
        ("&&", Ast::And)
    } else {
        validate_single(source, text)?;
        return condition(source, strip_parentheses(text));
    };
    let parts = || text.split(separator).map(trim).filter(|part| !part.is_empty());
    for part in parts() {
        // Both this test and the one for a single condition take a pair of parentheses off.
        validate_single(source, if is_parenthesised(part) { strip_parentheses(part) } else { part })?;
    }
    let mut conditions = Vec::new();
    for part in parts() {
        match innermost_group(part) {
            Some(group) => {
                let group = trim(group);
                if !group.is_empty() {
                    conditions.push(condition(source, group)?);
                }
            }
            None => {
                validate_single(source, part)?;
                conditions.push(condition(source, part)?);
            }
        }
    }
    Ok(match conditions.pop() {
        Some(only) if conditions.is_empty() => only,
        Some(last) => {
            conditions.push(last);
            join(conditions)
        }
        None => join(conditions),
    })
}

/// Java's `String.trim`.
fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c <= ' ')
}

/// Java's `\s`.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\u{b}' | '\u{c}' | '\r')
}

fn is_parenthesised(text: &str) -> bool {
    text.starts_with('(') && text.ends_with(')')
}

fn strip_parentheses(text: &str) -> &str {
    // A lone "(" cannot end in ")" as well, so two bytes are there.
    if is_parenthesised(text) { trim(&text[1..text.len() - 1]) } else { text }
}

/// The content of the first `(…)` without parentheses inside, as the regular expression `\(([^()]+)\)` finds it.
fn innermost_group(text: &str) -> Option<&str> {
    let mut open = None;
    for (at, c) in text.char_indices() {
        match (c, open) {
            ('(', _) => open = Some(at + 1),
            (')', Some(start)) if start < at => return Some(&text[start..at]),
            (')', _) => open = None,
            _ => {}
        }
    }
    None
}

/// Splits at runs of `\s`, as Java's `split` does: a leading empty piece stays, trailing ones go.
fn words(text: &str) -> Vec<&str> {
    let mut words: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_space) {
        words.push(&rest[..at]);
        rest = rest[at..].trim_start_matches(is_space);
    }
    words.push(rest);
    while words.len() > 1 && words.last().is_some_and(|word| word.is_empty()) {
        words.pop();
    }
    words
}

fn order(word: &str) -> Option<Order> {
    Some(match word {
        "==" | "=" => Order::Eq,
        "!=" => Order::Ne,
        ">" => Order::Gt,
        ">=" => Order::Ge,
        "<" => Order::Lt,
        "<=" => Order::Le,
        _ => return None,
    })
}

/// The original's test of one condition.
fn validate_single(source: &str, part: &str) -> Result<(), ParseError> {
    let clean = strip_parentheses(trim(part));
    let words = words(clean);
    let [key, operator, value] = words[..] else {
        let message = format!("`{part}` is not `key operator value` with spaces around the operator");
        return Err(invalid(source, part, message));
    };
    if trim(key).is_empty() || trim(value).is_empty() {
        return Err(invalid(source, part, format!("an empty key or value in `{part}`")));
    }
    if order(trim(operator)).is_none() {
        return Err(invalid(source, operator, format!("unknown operator `{operator}`")));
    }
    Ok(())
}

/// The original's second reading: three words, the operator not tested again.
fn condition(source: &str, text: &str) -> Result<Ast, ParseError> {
    let text = trim(text);
    let words = words(text);
    let [key, operator, value] = words[..] else {
        let message = format!("`{text}` is not `key operator value` with spaces around the operator");
        return Err(invalid(source, text, message));
    };
    let test = match order(trim(operator)) {
        Some(order) => Test::Order(order, Operand::Literal(Literal::word(trim(value)))),
        None => Test::Never(format!("{operator} {value}").into()),
    };
    Ok(Ast::Compare(Box::new(Comparison {
        left: Subject::Key(trim(key).into()),
        lower: false,
        test,
        at: span_in(source, text).start,
        right_at: span_in(source, value).start,
    })))
}

fn invalid(source: &str, part: &str, message: String) -> ParseError {
    let mut error = lexer::error(source, span_in(source, part), "invalid_in_seata", message);
    error.expected = vec!["`key operator value`".to_owned()];
    let mixed = source.contains("||") && source.contains("&&");
    error.hint = Some(if mixed {
        "the original cannot mix `&&` and `||`; it lets every instance pass".to_owned()
    } else {
        "the original lets every instance pass when it cannot read an expression".to_owned()
    });
    error
}

/// The text with spaces evened out; that changes no condition.
pub(crate) fn print(source: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let words = trim(source).split(is_space).filter(|word| !word.is_empty());
    for (index, word) in words.enumerate() {
        if index > 0 {
            f.write_str(" ")?;
        }
        f.write_str(word)?;
    }
    Ok(())
}
