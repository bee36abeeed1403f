//! Filters of go-bexpr, with the field names Consul gives them.
//!
//! `!=`, `not in` and `not matches` hold where a map key is missing (go-bexpr #38). `in` and `contains` ask for an
//! element of a list, but for a part of a string. `matches` looks anywhere in the value.

use std::collections::BTreeMap;

use metaroute_expr::Type;

use super::{Translation, Untranslatable, accepted, declare, key, literal, value};
use crate::failure::{At, Failure, excerpt};

pub(super) fn translate(text: &str, to: &mut Translation) -> Result<(), Failure> {
    let filter = text.trim();
    let mut parser = Parser { text: filter, at: 0, types: BTreeMap::new(), depth: 0 };
    match parser.whole() {
        Ok(expr) => {
            to.set.types = parser.types;
            if let Err(part) = to.rule("filter", None, &expr) {
                to.lose(part.what, part.why, None);
            }
            Ok(())
        }
        Err(Stop::Untranslatable(part)) => {
            to.lose(part.what, part.why, None);
            Ok(())
        }
        Err(Stop::Syntax { at, message }) => {
            let before = &filter[..at];
            let line = before.matches('\n').count() as u32 + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() as u32 + 1;
            let place = At { file: Some(to.file.clone()), line, column };
            let excerpt = excerpt(filter, line, column, 1);
            Err(Failure { at: Some(place), excerpt, ..Failure::usage("bad_filter", message) })
        }
    }
}

enum Stop {
    /// No filter of go-bexpr.
    Syntax { at: usize, message: String },
    /// A filter that has no counterpart.
    Untranslatable(Untranslatable),
}

impl From<Untranslatable> for Stop {
    fn from(part: Untranslatable) -> Self {
        Self::Untranslatable(part)
    }
}

/// What a selector stands for here.
struct Subject {
    text: String,
    /// A list rather than a string.
    list: bool,
}

/// Parentheses and `not` deeper than this are no filter that somebody wrote.
const DEPTH_MAX: usize = 50;

struct Parser<'t> {
    text: &'t str,
    at: usize,
    types: BTreeMap<String, Type>,
    depth: usize,
}

impl Parser<'_> {
    fn whole(&mut self) -> Result<String, Stop> {
        let expr = self.or()?;
        self.space();
        if self.at < self.text.len() {
            return Err(self.expected("`and`, `or` or the end"));
        }
        accepted(&expr)?;
        Ok(expr)
    }

    fn or(&mut self) -> Result<String, Stop> {
        let mut parts = vec![self.and()?];
        while self.word("or") {
            parts.push(self.and()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { format!("({})", parts.join(" || ")) })
    }

    fn and(&mut self) -> Result<String, Stop> {
        let mut parts = vec![self.not()?];
        while self.word("and") {
            parts.push(self.not()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { format!("({})", parts.join(" && ")) })
    }

    fn not(&mut self) -> Result<String, Stop> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.expected("fewer nested parentheses"));
        }
        let expr = if self.word("not") {
            format!("!({})", self.not()?)
        } else if self.sign("(") {
            let inner = self.or()?;
            if !self.sign(")") {
                return Err(self.expected("`)`"));
            }
            inner
        } else {
            self.comparison()?
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn comparison(&mut self) -> Result<String, Stop> {
        self.space();
        let start = self.at;
        for word in ["any", "all"] {
            if self.word(word) && !self.text[self.at..].trim_start().starts_with(['=', '!', '.']) {
                return Err(Untranslatable::new(self.text, format!("`{word} … as …` has no counterpart")).into());
            }
            self.at = start;
        }
        // `value in selector` begins with a value, everything else with a selector.
        let first = self.operand()?;
        if self.word("in") {
            return self.contains(first.text, false);
        }
        if self.negated("in") {
            return self.contains(first.text, true);
        }
        let path = first.path.ok_or_else(|| self.expected("`in` or `not in`"))?;
        let subject = self.subject(&path)?;
        if self.word("is") {
            let not = self.word("not");
            if !self.word("empty") {
                return Err(self.expected("`empty`"));
            }
            return Ok(match (subject.list, not) {
                (true, true) => format!("exists({})", subject.text),
                (true, false) => format!("!exists({})", subject.text),
                (false, true) => format!("(exists({0}) && {0} != \"\")", subject.text),
                (false, false) => format!("(!exists({0}) || {0} == \"\")", subject.text),
            });
        }
        if self.sign("==") {
            return self.equals(&subject);
        }
        if self.sign("!=") {
            return Ok(format!("!({})", self.equals(&subject)?));
        }
        for word in ["contains", "matches"] {
            let negated = self.negated(word);
            if negated || self.word(word) {
                let literal = self.operand()?.text;
                let inner = if word == "contains" { part_of(&subject, &literal) } else { regex(&subject, &literal)? };
                return Ok(if negated { format!("!({inner})") } else { inner });
            }
        }
        Err(self.expected("`==`, `!=`, `in`, `contains`, `matches` or `is empty`"))
    }

    fn equals(&mut self, subject: &Subject) -> Result<String, Stop> {
        let literal = self.operand()?.text;
        if subject.list {
            return Err(Untranslatable::new(literal, "a list cannot be compared with one value").into());
        }
        Ok(format!("{} == {}", subject.text, value(&literal)))
    }

    /// The selector after `in`.
    fn contains(&mut self, literal: String, negated: bool) -> Result<String, Stop> {
        let path = self.operand()?.path.ok_or_else(|| self.expected("a field"))?;
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        let inner = match names.as_slice() {
            // Of a map `in` asks for a key.
            ["Meta" | "ServiceMeta"] | ["Service", "Meta"] => format!("exists({})", key(&literal)?),
            _ => part_of(&self.subject(&path)?, &literal),
        };
        Ok(if negated { format!("!({inner})") } else { inner })
    }

    fn subject(&mut self, path: &[String]) -> Result<Subject, Stop> {
        let parts: Vec<&str> = path.iter().map(String::as_str).collect();
        let attribute = |name: &str| Ok(Subject { text: format!("$self.{name}"), list: false });
        let unknown = || Untranslatable::new(path.join("."), "instances have no such field");
        match parts.as_slice() {
            ["Meta" | "ServiceMeta", name] | ["Service", "Meta", name] => self.metadata(name),
            ["Tags" | "ServiceTags"] | ["Service", "Tags"] => {
                declare(&mut self.types, "tags", Type::Set)?;
                Ok(Subject { text: "tags".into(), list: true })
            }
            ["ID" | "ServiceID"] | ["Service", "ID"] => attribute("id"),
            ["ServiceAddress"] | ["Service", "Address"] => attribute("host"),
            ["Port" | "ServicePort"] | ["Service", "Port"] => attribute("port"),
            // Field names of Consul's own are capitalised; other programs filter plain maps.
            [name] if !name.starts_with(|c: char| c.is_ascii_uppercase()) => self.metadata(name),
            _ => Err(unknown().into()),
        }
    }

    fn metadata(&mut self, name: &str) -> Result<Subject, Stop> {
        declare(&mut self.types, name, Type::Text)?;
        Ok(Subject { text: key(name)?, list: false })
    }

    /// A selector or a value.
    fn operand(&mut self) -> Result<Operand, Stop> {
        self.space();
        let rest = &self.text[self.at..];
        if rest.starts_with(['"', '`']) {
            let text = self.string()?;
            // A string that begins with a slash may be a JSON pointer.
            let path = text
                .strip_prefix('/')
                .map(|pointer| pointer.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect());
            return Ok(Operand { text, path });
        }
        let bare = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '+');
        let length = rest.find(|c| !bare(c) && c != '.').unwrap_or(rest.len());
        if length == 0 {
            return Err(self.expected("a field or a value"));
        }
        let mut path: Vec<String> = rest[..length].split('.').map(str::to_owned).collect();
        let text = rest[..length].to_owned();
        self.at += length;
        while self.text[self.at..].starts_with('[') {
            self.at += 1;
            path.push(self.string()?);
            if !self.sign("]") {
                return Err(self.expected("`]`"));
            }
            if self.text[self.at..].starts_with('.') {
                self.at += 1;
                let rest = &self.text[self.at..];
                let length = rest.find(|c| !bare(c)).unwrap_or(rest.len());
                path.push(rest[..length].to_owned());
                self.at += length;
            }
        }
        Ok(Operand { text, path: Some(path) })
    }

    fn string(&mut self) -> Result<String, Stop> {
        self.space();
        let rest = &self.text[self.at..];
        if let Some(raw) = rest.strip_prefix('`') {
            let end = raw.find('`').ok_or_else(|| self.expected("a closing back-quote"))?;
            self.at += end + 2;
            return Ok(raw[..end].to_owned());
        }
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        match stream.next() {
            Some(Ok(text)) => {
                self.at += stream.byte_offset();
                Ok(text)
            }
            _ => Err(self.expected("a quoted string")),
        }
    }

    fn space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn sign(&mut self, sign: &str) -> bool {
        self.space();
        let found = self.text[self.at..].starts_with(sign);
        if found {
            self.at += sign.len();
        }
        found
    }

    /// A word of the language, whole.
    fn word(&mut self, word: &str) -> bool {
        self.space();
        let Some(rest) = self.text[self.at..].strip_prefix(word) else { return false };
        let whole = !rest.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '['));
        if whole {
            self.at += word.len();
        }
        whole
    }

    fn negated(&mut self, word: &str) -> bool {
        let start = self.at;
        if self.word("not") && self.word(word) {
            return true;
        }
        self.at = start;
        false
    }

    fn expected(&self, what: &str) -> Stop {
        Stop::Syntax { at: self.at.min(self.text.len()), message: format!("expected {what}") }
    }
}

struct Operand {
    text: String,
    /// When it could be a field.
    path: Option<Vec<String>>,
}

/// An element of a list, a part of a string.
fn part_of(subject: &Subject, text: &str) -> String {
    if subject.list {
        return format!("{} == {}", subject.text, value(text));
    }
    format!("{} like {}", subject.text, value(&format!("*{}*", literal(text))))
}

/// Ours is anchored, the original is not.
fn regex(subject: &Subject, pattern: &str) -> Result<String, Untranslatable> {
    let text = format!("{} matches {}", subject.text, value(&format!("(?s:.*)(?:{pattern})(?s:.*)")));
    accepted(&text).map_err(|part| Untranslatable::new(pattern, part.why))?;
    Ok(text)
}
