//! `metaroute route import`: rules of other systems in our words.
//!
//! A translation keeps the meaning or does not happen: what has no exact counterpart is listed with its reason instead of
//! being approximated. The usual trap is a missing key. Kubernetes, Dubbo and go-bexpr let `!=` hold where the key is
//! absent, our comparisons never do, so `env != dev` becomes `!(env == dev)`. Values compare as text there, so every key
//! is declared `text` here.

mod bexpr;
mod dubbo;
mod kubernetes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use metaroute::rules_file::to_yaml;
use metaroute_core::RuleSet;
use metaroute_core::rules::{Rule, Terminal};
use metaroute_expr::{Expr, Type};
use metaroute_registry::document::{Format as FileFormat, Node, Source};
use serde::Serialize;

use crate::expr::read_text;
use crate::failure::{At, Failure, Outcome};
use crate::output::{Format, Out};
use crate::status::Status;

/// Whose rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Origin {
    /// Tag and condition routers of Apache Dubbo (YAML)
    Dubbo,
    /// Label selectors of Kubernetes, in objects, alone, or as text
    Kubernetes,
    /// Filters of HashiCorp's go-bexpr, as Consul has them
    Bexpr,
}

#[derive(Args)]
pub(crate) struct Import {
    /// Whose rules the file holds: dubbo, kubernetes or bexpr
    #[arg(value_enum, value_name = "dubbo|kubernetes|bexpr", hide_possible_values = true)]
    origin: Origin,
    /// The file; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// What became of a file.
struct Translation {
    file: String,
    set: RuleSet,
    /// What has no counterpart.
    lost: Vec<Remark>,
    /// What was translated, but needs to be known.
    notes: Vec<Remark>,
}

/// Something to know about a translation.
#[derive(Debug, Serialize)]
struct Remark {
    /// What it is about, as written.
    what: String,
    why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<At>,
}

#[derive(Serialize)]
struct Answer<'a> {
    rules: String,
    untranslated: &'a [Remark],
    notes: &'a [Remark],
}

impl Import {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let text = read_text(&self.file)?;
        let mut translation = Translation {
            file: self.file.display().to_string(),
            set: RuleSet::default(),
            lost: Vec::new(),
            notes: Vec::new(),
        };
        match self.origin {
            Origin::Dubbo => dubbo::translate(&text, &mut translation)?,
            Origin::Kubernetes => kubernetes::translate(&text, is_text(&self.file, &text), &mut translation)?,
            Origin::Bexpr => bexpr::translate(&text, &mut translation)?,
        }
        let rules = to_yaml(&translation.set);
        match out.format {
            Format::Text => {
                out.raw(&rules)?;
                comments(out, "does not translate", &translation.lost)?;
                comments(out, "note", &translation.notes)?;
            }
            Format::Json | Format::Ndjson => {
                out.json(&Answer { rules, untranslated: &translation.lost, notes: &translation.notes })?;
            }
        }
        Ok(if translation.lost.is_empty() { Status::Done } else { Status::No })
    }
}

/// The list as comments, so that the output is a rules file as it is.
fn comments(out: &mut Out, word: &str, remarks: &[Remark]) -> std::io::Result<()> {
    for remark in remarks {
        let place = remark.at.as_ref().map_or(String::new(), |at| format!(" (line {})", at.line));
        for (number, line) in format!("{word}{place}: {}: {}", remark.what, remark.why).lines().enumerate() {
            out.line(format!("# {}{line}", if number > 0 { "  " } else { "" }))?;
        }
    }
    Ok(())
}

/// Whether a file holds an expression rather than a document.
fn is_text(path: &Path, text: &str) -> bool {
    if path != Path::new("-") {
        return FileFormat::of_path(path).is_none();
    }
    let first = text.trim_start();
    !first.starts_with('{') && !first.lines().any(|line| line.trim_end().ends_with(':') || line.contains(": "))
}

impl Translation {
    fn lose(&mut self, what: impl Into<String>, why: impl Into<String>, at: Option<At>) {
        self.lost.push(Remark { what: what.into(), why: why.into(), at });
    }

    fn note(&mut self, what: impl Into<String>, why: impl Into<String>, at: Option<At>) {
        self.notes.push(Remark { what: what.into(), why: why.into(), at });
    }

    /// The documents of a YAML (or JSON, which is YAML) text.
    fn documents<'t>(&self, text: &'t str) -> Result<Vec<Node<'t>>, Failure> {
        // The name stays in messages only, so a leak of a few bytes a run would buy nothing.
        Source::new("", text)
            .parse_all(FileFormat::Yaml)
            .map_err(|error| Failure::config(&error, Status::Usage))
            .map_err(|failure| match &failure.at {
                Some(at) => {
                    let at = At { file: Some(self.file.clone()), ..at.clone() };
                    let excerpt = crate::failure::excerpt(text, at.line, at.column, 1);
                    Failure { at: Some(at), excerpt, ..failure }
                }
                None => failure,
            })
    }

    /// The place of a node.
    fn at(&self, text: &str, node: &Node<'_>) -> Option<At> {
        let position = Source::new("", text).position(node.span.start);
        Some(At { file: Some(self.file.clone()), line: position.line, column: position.column })
    }

    /// A mandatory rule from the text of expressions. `Err` when one exceeds a limit of our language.
    fn rule(&mut self, name: &str, when: Option<&str>, matches: &str) -> Result<&mut Rule, Untranslatable> {
        let mut rule = Rule::new(self.unique(name), canonical(matches)?);
        rule.when = when.map(canonical).transpose()?;
        rule.terminal = Some(Terminal::Fail);
        self.set.rules.push(rule);
        Ok(self.set.rules.last_mut().expect("just pushed"))
    }

    fn unique(&self, name: &str) -> String {
        let taken = |name: &str| self.set.rules.iter().any(|rule| rule.name == name);
        let mut candidate = name.to_owned();
        let mut number = 2;
        while taken(&candidate) {
            candidate = format!("{name}-{number}");
            number += 1;
        }
        candidate
    }

    /// Declares the type a key has in the original. `Err` when it was used as another one.
    fn declare(&mut self, key: &str, kind: Type) -> Result<(), Untranslatable> {
        declare(&mut self.set.types, key, kind)
    }
}

/// Why a part has no counterpart.
struct Untranslatable {
    what: String,
    why: String,
}

impl Untranslatable {
    fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.into() }
    }
}

fn declare(types: &mut BTreeMap<String, Type>, key: &str, kind: Type) -> Result<(), Untranslatable> {
    match types.insert(key.to_owned(), kind) {
        Some(before) if before != kind => {
            types.insert(key.to_owned(), before);
            Err(Untranslatable::new(key, format!("the key is compared as {before} and as {kind}")))
        }
        _ => Ok(()),
    }
}

/// Our own words in canonical form, or the reason why the language does not take them.
fn canonical(text: &str) -> Result<Expr, Untranslatable> {
    let expr = Expr::parse(text).map_err(|error| Untranslatable::new(text, error.message))?;
    // A text just below a limit may exceed it in canonical form.
    Ok(Expr::parse(&expr.to_string()).unwrap_or(expr))
}

/// A key that may hold any character but a back-quote.
fn key(name: &str) -> Result<String, Untranslatable> {
    if name.is_empty() || name.contains('`') || name.chars().any(char::is_control) {
        return Err(Untranslatable::new(name, "a key cannot be written like this"));
    }
    Ok(format!("`{name}`"))
}

/// `$req.name` or `$caller.name`.
fn reference(scope: &str, name: &str) -> Result<String, Untranslatable> {
    let text = format!("${scope}.{name}");
    match Expr::parse(&format!("{text} == x")) {
        Ok(_) => Ok(text),
        Err(_) => Err(Untranslatable::new(name, format!("a key of ${scope} cannot be written like this"))),
    }
}

/// A literal.
fn value(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Literal text inside a `like` pattern.
fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// `subject == a`, or `subject in (a, b)`.
fn one_of(subject: &str, values: &[String]) -> String {
    match values {
        [one] => format!("{subject} == {}", value(one)),
        many => format!("{subject} in ({})", many.iter().map(|v| value(v)).collect::<Vec<_>>().join(", ")),
    }
}

/// Whether the language takes an expression; the reason if not.
fn accepted(text: &str) -> Result<(), Untranslatable> {
    canonical(text).map(drop)
}

#[cfg(test)]
mod tests;
