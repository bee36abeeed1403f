//! Text to tokens.
//!
//! A word is everything except whitespace, control characters and the few characters the grammar needs, so versions,
//! addresses, paths and non-ASCII names need no quotes. The lexer never fails as a whole: a bad spot becomes the last
//! token, and the parser reports it when it gets there, so that the first error in the text is the one people see.

use std::ops::Range;

use crate::ast::{Order, Subject};
use crate::error::{ParseError, position};
use crate::schema::{Attribute, SlotScope};
use crate::suggest;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind<'a> {
    Word(&'a str),
    /// A quoted text after its escapes; `escapes` holds, per escape, the offset after it in the text and in the source.
    Quoted {
        text: String,
        escapes: Vec<(usize, usize)>,
    },
    BackQuoted(&'a str),
    Reference(Subject),
    Open,
    Close,
    Comma,
    Order(Order),
    Bang,
    And,
    Or,
    End,
    Bad(Box<ParseError>),
}

#[derive(Clone, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind<'a>,
    pub(crate) span: Range<usize>,
}

/// Whether the character can stand in a word.
pub(crate) fn is_word_char(c: char) -> bool {
    !(c.is_whitespace()
        || c.is_control()
        || matches!(c, '(' | ')' | '!' | '=' | '<' | '>' | '&' | '|' | ',' | '"' | '\'' | '`' | '$' | '?'))
}

/// Whether the whole text is one word.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_word_char)
}

/// Every token, ending in `End` or `Bad`.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer { source, at: 0 };
    let mut tokens = Vec::new();
    loop {
        let token = lexer.next().unwrap_or_else(|error| Token { span: error.span.clone(), kind: Kind::Bad(error) });
        let last = matches!(token.kind, Kind::End | Kind::Bad(_));
        tokens.push(token);
        if last {
            return tokens;
        }
    }
}

/// An error at a place; expectation and hint are added by the caller.
pub(crate) fn error(source: &str, span: Range<usize>, code: &'static str, message: impl Into<String>) -> ParseError {
    let (line, column) = position(source, span.start);
    ParseError { message: message.into(), line, column, span, expected: Vec::new(), hint: None, code }
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
}

type Fault = Box<ParseError>;

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn fault(&self, span: Range<usize>, code: &'static str, message: String, hint: Option<String>) -> Fault {
        Box::new(ParseError { hint, ..error(self.source, span, code, message) })
    }

    fn next(&mut self) -> Result<Token<'a>, Fault> {
        let rest = self.rest();
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        let start = self.at;
        let Some(first) = trimmed.chars().next() else {
            return Ok(Token { kind: Kind::End, span: start..start });
        };
        let kind = match first {
            '(' => self.take(1, Kind::Open),
            ')' => self.take(1, Kind::Close),
            ',' => self.take(1, Kind::Comma),
            '=' | '!' | '<' | '>' => self.operator()?,
            '&' | '|' => self.connective()?,
            '"' | '\'' => self.quoted(first)?,
            '`' => self.back_quoted().map(Kind::BackQuoted)?,
            '$' => self.reference().map(Kind::Reference)?,
            c if is_word_char(c) => Kind::Word(self.word()),
            '?' => {
                let hint = "`?` goes directly after a reference, as in `$req.key?`; a value with `?` needs quotes";
                let message = "unexpected `?`".to_owned();
                return Err(self.fault(start..start + 1, "unexpected_character", message, Some(hint.to_owned())));
            }
            c => {
                let message = format!("unexpected character {:?}", c);
                let hint = Some("control characters can only stand in quotes, escaped".to_owned());
                return Err(self.fault(start..start + c.len_utf8(), "unexpected_character", message, hint));
            }
        };
        Ok(Token { kind, span: start..self.at })
    }

    fn take(&mut self, length: usize, kind: Kind<'a>) -> Kind<'a> {
        self.at += length;
        kind
    }

    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !is_word_char(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn operator(&mut self) -> Result<Kind<'a>, Fault> {
        const WRONG: [(&str, &str); 6] =
            [("===", "=="), ("!==", "!="), ("=>", ">="), ("=<", "<="), ("<>", "!="), ("><", "!=")];
        const RIGHT: [(&str, Order); 7] = [
            ("==", Order::Eq),
            ("!=", Order::Ne),
            (">=", Order::Ge),
            ("<=", Order::Le),
            ("=", Order::Eq),
            (">", Order::Gt),
            ("<", Order::Lt),
        ];
        let rest = self.rest();
        for (wrong, meant) in WRONG {
            if rest.starts_with(wrong) {
                let span = self.at..self.at + wrong.len();
                let message = format!("unknown operator `{wrong}`");
                return Err(self.fault(span, "unknown_operator", message, Some(format!("write `{meant}`"))));
            }
        }
        for (symbol, order) in RIGHT {
            if rest.starts_with(symbol) {
                return Ok(self.take(symbol.len(), Kind::Order(order)));
            }
        }
        Ok(self.take(1, Kind::Bang))
    }

    fn connective(&mut self) -> Result<Kind<'a>, Fault> {
        let rest = self.rest();
        if rest.starts_with("&&") {
            return Ok(self.take(2, Kind::And));
        }
        if rest.starts_with("||") {
            return Ok(self.take(2, Kind::Or));
        }
        let one = &rest[..1];
        let message = format!("unknown operator `{one}`");
        let hint = format!("write `{one}{one}`; a value with `{one}` needs quotes");
        Err(self.fault(self.at..self.at + 1, "unknown_operator", message, Some(hint)))
    }

    fn quoted(&mut self, quote: char) -> Result<Kind<'a>, Fault> {
        let start = self.at;
        let mut text = String::new();
        let mut escapes = Vec::new();
        self.at += 1;
        while let Some(c) = self.rest().chars().next() {
            let escape = self.at;
            self.at += c.len_utf8();
            if c == quote {
                return Ok(Kind::Quoted { text, escapes });
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let Some(c) = self.escape() else {
                let end = self.at + self.rest().chars().next().map_or(0, char::len_utf8);
                let message = format!("unknown escape `{}`", &self.source[escape..end]);
                let hint = Some("JSON's escapes are known; a backslash itself is `\\\\`".to_owned());
                return Err(self.fault(escape..end, "bad_escape", message, hint));
            };
            text.push(c);
            escapes.push((text.len(), self.at));
        }
        let hint = Some(format!("close it with {quote}"));
        let message = "a quoted text that starts here does not end".to_owned();
        Err(self.fault(start..start + 1, "unterminated_string", message, hint))
    }

    /// The character after a backslash; on failure the position stays where the escape went wrong.
    fn escape(&mut self) -> Option<char> {
        let c = self.rest().chars().next()?;
        let plain = match c {
            '"' | '\\' | '/' | '\'' => c,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let unit = self.hex(1)?;
                let (code, length) = match unit {
                    0xD800..=0xDBFF => {
                        if self.rest().get(5..7) != Some("\\u") {
                            return None;
                        }
                        let low = self.hex(7).filter(|low| (0xDC00..=0xDFFF).contains(low))?;
                        (0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), 11)
                    }
                    unit => (unit, 5),
                };
                let c = char::from_u32(code)?;
                self.at += length;
                return Some(c);
            }
            _ => return None,
        };
        self.at += 1;
        Some(plain)
    }

    fn hex(&self, offset: usize) -> Option<u32> {
        let digits = self.rest().get(offset..offset + 4)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        u32::from_str_radix(digits, 16).ok()
    }

    fn back_quoted(&mut self) -> Result<&'a str, Fault> {
        let start = self.at;
        let inner = &self.rest()[1..];
        let Some(end) = inner.find('`') else {
            let message = "a back-quoted key that starts here does not end".to_owned();
            return Err(self.fault(start..start + 1, "unterminated_key", message, Some("close it with `".to_owned())));
        };
        self.at += end + 2;
        if end == 0 {
            return Err(self.fault(start..self.at, "empty_key", "an empty key".to_owned(), None));
        }
        Ok(&inner[..end])
    }

    fn reference(&mut self) -> Result<Subject, Fault> {
        let start = self.at;
        self.at += 1;
        let word = self.word();
        let (scope, mut name) = match word.split_once('.') {
            Some((scope, name)) => (scope, name),
            None => (word, ""),
        };
        if name.is_empty() && word.ends_with('.') && self.rest().starts_with('`') {
            name = self.back_quoted()?;
        }
        let slot = match scope {
            "caller" => Some(SlotScope::Caller),
            "req" => Some(SlotScope::Request),
            "self" => None,
            _ => {
                let span = start..start + 1 + scope.len();
                let hint = suggest::closest(scope, ["caller", "req", "self"])
                    .or_else(|| scope.starts_with("req").then_some("req"))
                    .map_or_else(
                        || "a value that starts with `$` needs quotes".to_owned(),
                        |meant| format!("did you mean `${meant}`?"),
                    );
                let mut fault = self.fault(span, "bad_reference", format!("unknown reference `${scope}`"), Some(hint));
                fault.expected = ["`$caller.key`", "`$req.key`", "`$self.attribute`"].map(str::to_owned).into();
                return Err(fault);
            }
        };
        if name.is_empty() {
            let message = format!("`${scope}` needs a name");
            return Err(self.fault(start..self.at, "bad_reference", message, Some(format!("write `${scope}.name`"))));
        }
        let optional = self.rest().starts_with('?');
        let Some(scope) = slot else {
            let Ok(attribute) = name.parse::<Attribute>() else {
                let names = Attribute::ALL.map(Attribute::name);
                let hint = match suggest::closest(name, names) {
                    Some(meant) => format!("did you mean `$self.{meant}`?"),
                    None => format!("for the metadata key write `{name}` alone"),
                };
                let message = format!("unknown attribute `{name}`");
                let mut fault = self.fault(start..self.at, "unknown_attribute", message, Some(hint));
                fault.expected = names.map(|name| format!("`$self.{name}`")).into();
                return Err(fault);
            };
            if optional {
                let span = self.at..self.at + 1;
                let message = "`?` only follows what the caller or the request may leave out".to_owned();
                return Err(self.fault(span, "unexpected_character", message, Some("drop the `?`".to_owned())));
            }
            return Ok(Subject::Attribute(attribute));
        };
        self.at += usize::from(optional);
        Ok(Subject::Slot { scope, name: name.into(), optional })
    }
}
