//! The configuration syntax of Lightbend (Typesafe) Config, HOCON, as far as `registry.conf` and `file.conf` use it.
//!
//! Comments, keys as paths, quoted and unquoted text, numbers, objects with and without `=`, lists, repeated objects that
//! merge, triple quotes and substitutions. A substitution stays in the text as `${path}` (or `${path:}` for `${?path}`)
//! for whoever knows the environment; a literal `${` in quotes becomes `\${`. Not read, because no Seata file has them
//! and half an answer would be worse than none: `include`, and concatenation of objects or lists; both are errors.
//!
//! Own code, because no kept crate gives the place of a key. The rules are those of the format's specification
//! (lightbend/config, HOCON.md), unquoted text included: `a:b` unquoted is an error there and here.

use std::borrow::Cow;
use std::ops::Range;

use super::scalar::plain_kind;
use super::{ConfigError, DEPTH_MAX, Entry, Node, Scalar, ScalarKind, Source, Value};

pub(super) fn parse<'a>(source: &Source<'a>) -> Result<Node<'a>, ConfigError> {
    let at = if source.text.starts_with('\u{feff}') { 3 } else { 0 };
    let mut parser = Parser { source, text: source.text, at, depth: 0 };
    parser.skip_lines();
    let node = if parser.peek() == Some('{') {
        parser.object()?
    } else {
        let start = parser.at;
        let entries = parser.entries(None)?;
        Node { value: Value::Map(entries), span: start..parser.at }
    };
    parser.skip_lines();
    match parser.peek() {
        None => Ok(node),
        Some(c) => Err(parser.fail(parser.at, format!("unexpected `{c}` after the end"))),
    }
}

/// One part of a key, with its place.
type Step<'a> = (Cow<'a, str>, Range<usize>);

struct Parser<'s, 'a> {
    source: &'s Source<'a>,
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'_, 'a> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn starts_with(&self, prefix: &str) -> bool {
        self.text[self.at..].starts_with(prefix)
    }

    fn fail(&self, at: usize, message: impl Into<String>) -> ConfigError {
        self.source.error(at, "bad_conf", message)
    }

    /// Skips white space on the line.
    fn skip_blanks(&mut self) {
        while let Some(c) = self.peek().filter(|c| c.is_whitespace() && *c != '\n') {
            self.at += c.len_utf8();
        }
    }

    /// Skips white space, line ends and comments. Returns whether a line ended.
    fn skip_lines(&mut self) -> bool {
        let mut ended = false;
        loop {
            self.skip_blanks();
            if self.starts_with("#") || self.starts_with("//") {
                self.at += self.text[self.at..].find('\n').unwrap_or(self.text.len() - self.at);
            } else if self.peek() == Some('\n') {
                self.at += 1;
                ended = true;
            } else {
                return ended;
            }
        }
    }

    fn enter(&mut self) -> Result<(), ConfigError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.source.error(self.at, "too_deep", format!("nested more than {DEPTH_MAX} deep")));
        }
        Ok(())
    }

    fn object(&mut self) -> Result<Node<'a>, ConfigError> {
        self.enter()?;
        let start = self.at;
        self.at += 1;
        let entries = self.entries(Some(start))?;
        self.at += 1;
        self.depth -= 1;
        Ok(Node { value: Value::Map(entries), span: start..self.at })
    }

    /// Fields up to `}` (not consumed) or, at the root, the end.
    fn entries(&mut self, open: Option<usize>) -> Result<Vec<Entry<'a>>, ConfigError> {
        let mut entries = Vec::new();
        loop {
            self.skip_lines();
            match (self.peek(), open) {
                (Some('}'), Some(_)) | (None, None) => return Ok(entries),
                (None, Some(start)) => return Err(self.fail(start, "`{` is never closed")),
                _ => {}
            }
            let path = self.path()?;
            self.skip_lines();
            let append = self.starts_with("+=");
            match self.peek() {
                Some('=' | ':') => self.at += 1,
                Some('+') if append => return Err(self.fail(self.at, "`+=` is not read")),
                Some('{') => {}
                _ => {
                    return Err(self.fail(self.at, "expected `=`, `:` or `{` after the key").expected(["=", ":", "{"]));
                }
            }
            self.skip_lines();
            let node = self.value()?;
            insert(&mut entries, &path, node);
            let ended = self.skip_lines();
            match self.peek() {
                Some(',') => self.at += 1,
                Some('}') | None => {}
                _ if ended => {}
                Some(c) => {
                    return Err(self
                        .fail(self.at, format!("unexpected `{c}` after the value"))
                        .hint("quote the value"));
                }
            }
        }
    }

    /// A key: words and quoted texts joined by dots.
    fn path(&mut self) -> Result<Vec<Step<'a>>, ConfigError> {
        let start = self.at;
        let mut path: Vec<Step<'a>> = Vec::new();
        let mut element = String::new();
        let mut element_start = start;
        let mut quoted = false;
        let mut finish = |element: &mut String, quoted: &mut bool, from: usize, to: usize| {
            let text = if *quoted { std::mem::take(element) } else { std::mem::take(element).trim().to_owned() };
            let ok = *quoted || !text.is_empty();
            *quoted = false;
            path.push((Cow::Owned(text), from..to));
            ok
        };
        loop {
            match self.peek() {
                Some('"') => {
                    let (text, _) = self.quoted()?;
                    element.push_str(&text);
                    quoted = true;
                }
                Some('.') => {
                    if !finish(&mut element, &mut quoted, element_start, self.at) {
                        return Err(self.fail(self.at, "the key has an empty part"));
                    }
                    self.at += 1;
                    element_start = self.at;
                    if path_too_long(element_start - start) {
                        return Err(self.fail(start, "the key is too long"));
                    }
                }
                Some(c) if is_unquoted(c) && c != '\n' => {
                    if !(quoted && c.is_whitespace()) {
                        element.push(c);
                    }
                    self.at += c.len_utf8();
                }
                _ => break,
            }
        }
        let end = start + self.text[start..self.at].trim_end().len();
        if !finish(&mut element, &mut quoted, element_start, end) {
            let found = self.peek().map_or_else(|| "the end".to_owned(), |c| format!("`{c}`"));
            return Err(self.fail(self.at, format!("expected a key, found {found}")));
        }
        if path.len() + self.depth > DEPTH_MAX {
            return Err(self.source.error(start, "too_deep", format!("nested more than {DEPTH_MAX} deep")));
        }
        if path.len() == 1 && path[0].0.split_whitespace().next() == Some("include") && path[0].0 != "include" {
            return Err(self.fail(start, "`include` is not read").hint("copy the included settings into this file"));
        }
        Ok(path)
    }

    fn value(&mut self) -> Result<Node<'a>, ConfigError> {
        match self.peek() {
            Some('{') => {
                let node = self.object()?;
                self.no_concatenation()?;
                Ok(node)
            }
            Some('[') => {
                let node = self.list()?;
                self.no_concatenation()?;
                Ok(node)
            }
            _ => self.scalar(),
        }
    }

    fn no_concatenation(&mut self) -> Result<(), ConfigError> {
        self.skip_blanks();
        match self.peek() {
            Some('{' | '[' | '$') => Err(self.fail(self.at, "joining objects or lists is not read")),
            _ => Ok(()),
        }
    }

    fn list(&mut self) -> Result<Node<'a>, ConfigError> {
        self.enter()?;
        let start = self.at;
        self.at += 1;
        let mut items = Vec::new();
        loop {
            self.skip_lines();
            match self.peek() {
                Some(']') => break,
                None => return Err(self.fail(start, "`[` is never closed")),
                _ => items.push(self.value()?),
            }
            let ended = self.skip_lines();
            match self.peek() {
                Some(',') => self.at += 1,
                Some(']') | None => {}
                _ if ended => {}
                _ => return Err(self.fail(self.at, "expected `,` or `]` in the list").expected([",", "]"])),
            }
        }
        self.at += 1;
        self.depth -= 1;
        Ok(Node { value: Value::List(items), span: start..self.at })
    }

    /// Quoted and unquoted pieces and substitutions up to the end of the line, joined with the white space between.
    fn scalar(&mut self) -> Result<Node<'a>, ConfigError> {
        let start = self.at;
        let mut end = start;
        let mut text = String::new();
        let mut blanks = "";
        let mut plain = true;
        loop {
            let piece_start = self.at;
            match self.peek() {
                Some('"') => {
                    let (piece, _) = self.quoted()?;
                    text.push_str(blanks);
                    text.push_str(&piece.replace("${", "\\${"));
                    plain = false;
                }
                Some('$') => {
                    let piece = self.substitution()?;
                    text.push_str(blanks);
                    text.push_str(&piece);
                    plain = false;
                }
                Some(c) if c.is_whitespace() && c != '\n' => {
                    self.skip_blanks();
                    blanks = &self.text[piece_start..self.at];
                    continue;
                }
                Some(c) if is_unquoted(c) && c != '\n' && !self.starts_with("//") => {
                    text.push_str(blanks);
                    text.push(c);
                    self.at += c.len_utf8();
                }
                _ => break,
            }
            blanks = "";
            end = self.at;
        }
        if end == start {
            let found = match self.peek() {
                None | Some('\n') => "the end of the line".to_owned(),
                Some(c) => format!("`{c}`"),
            };
            return Err(self.fail(self.at, format!("expected a value, found {found}")).hint("quote the value"));
        }
        let kind = if plain { plain_kind(&text) } else { ScalarKind::Text };
        // Only lower-case words are special here, unlike in YAML.
        let kind = match kind {
            ScalarKind::Null if text != "null" => ScalarKind::Text,
            ScalarKind::Bool if text != "true" && text != "false" => ScalarKind::Text,
            kind => kind,
        };
        Ok(Node { value: Value::Scalar(Scalar { text: Cow::Owned(text), kind }), span: start..end })
    }

    fn substitution(&mut self) -> Result<String, ConfigError> {
        let start = self.at;
        let rest = &self.text[self.at..];
        let Some(end) = rest.find('}').filter(|end| rest.starts_with("${") && !rest[..*end].contains('\n')) else {
            return Err(self.fail(start, "`$` must begin a substitution `${path}`").hint("quote the value"));
        };
        self.at += end + 1;
        let path = rest[2..end].trim();
        Ok(match path.strip_prefix('?') {
            Some(path) => format!("${{{}:}}", path.trim()),
            None => format!("${{{path}}}"),
        })
    }

    /// Text in `"` or `"""`, decoded, with its bytes in the source.
    fn quoted(&mut self) -> Result<(String, Range<usize>), ConfigError> {
        let start = self.at;
        if self.starts_with("\"\"\"") {
            let body = self.at + 3;
            let Some(end) = self.text[body..].find("\"\"\"") else {
                return Err(self.fail(start, "`\"\"\"` is never closed"));
            };
            // Further quotes at the end belong to the text.
            let mut close = body + end;
            while self.text[close + 3..].starts_with('"') {
                close += 1;
            }
            self.at = close + 3;
            return Ok((self.text[body..close].to_owned(), start..self.at));
        }
        self.at += 1;
        let mut out = String::new();
        loop {
            let Some(c) = self.peek().filter(|c| *c != '\n') else {
                return Err(self.fail(start, "`\"` is never closed on its line"));
            };
            let here = self.at;
            self.at += c.len_utf8();
            match c {
                '"' => return Ok((out, start..self.at)),
                '\\' => {
                    let escaped = self.peek();
                    self.at += escaped.map_or(0, char::len_utf8);
                    match escaped {
                        Some(c @ ('"' | '\\' | '/')) => out.push(c),
                        Some('b') => out.push('\u{8}'),
                        Some('f') => out.push('\u{c}'),
                        Some('n') => out.push('\n'),
                        Some('r') => out.push('\r'),
                        Some('t') => out.push('\t'),
                        Some('u') => {
                            let hex = self.text.get(self.at..self.at + 4);
                            let unit = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok());
                            let Some(unit) = unit else {
                                return Err(self.fail(here, "`\\u` needs four hexadecimal digits"));
                            };
                            self.at += 4;
                            // Half of a UTF-16 pair has no meaning of its own; a pair is written as the character itself.
                            out.push(char::from_u32(unit).unwrap_or('\u{fffd}'));
                        }
                        _ => return Err(self.fail(here, "unknown escape").hint("write `\\\\` for a backslash")),
                    }
                }
                c => out.push(c),
            }
        }
    }
}

fn path_too_long(bytes: usize) -> bool {
    bytes > 4096
}

/// What may stand in unquoted text: everything but the characters the format reserves.
fn is_unquoted(c: char) -> bool {
    !matches!(
        c,
        '$' | '"'
            | '{'
            | '}'
            | '['
            | ']'
            | ':'
            | '='
            | ','
            | '+'
            | '#'
            | '`'
            | '^'
            | '?'
            | '!'
            | '@'
            | '*'
            | '&'
            | '\\'
    )
}

/// Puts a value under a path. Two objects merge, else the later value wins.
fn insert<'a>(entries: &mut Vec<Entry<'a>>, path: &[Step<'a>], node: Node<'a>) {
    let Some(((key, key_span), rest)) = path.split_first() else { return };
    let at = match entries.iter().position(|entry| entry.key == *key) {
        Some(at) => at,
        None => {
            let empty = Node { value: Value::Scalar(Scalar::null()), span: node.span.clone() };
            entries.push(Entry { key: key.clone(), key_span: key_span.clone(), node: empty });
            entries.len() - 1
        }
    };
    let entry = &mut entries[at];
    if !rest.is_empty() {
        if entry.node.map().is_none() {
            entry.node = Node { value: Value::Map(Vec::new()), span: node.span.clone() };
        }
        if let Value::Map(inner) = &mut entry.node.value {
            insert(inner, rest, node);
        }
        return;
    }
    match (&mut entry.node.value, node.value) {
        (Value::Map(old), Value::Map(new)) => {
            for entry in new {
                insert(old, &[(entry.key, entry.key_span)], entry.node);
            }
        }
        (_, value) => {
            entry.key_span = key_span.clone();
            entry.node = Node { value, span: node.span };
        }
    }
}
