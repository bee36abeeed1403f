//! Findings about an expression that parses but may not mean what its author thinks.
//!
//! A rule that is wrong is seen when traffic goes wrong. What can be known before that is said here: comparisons that
//! can never hold, parts that add nothing, types that clash, and, against an [`Inventory`] of live instances, keys
//! nobody has, values nobody can compare, and rules that match all or nothing today. Findings are advice: evaluation
//! does not depend on them.

mod logic;
mod original;
mod tree;

use std::collections::BTreeMap;

use crate::ast::{Comparison, Literal, Operand, Order, Subject, Test};
use crate::bind::type_of;
use crate::columns::{Column, Columns, Scratch};
use crate::decimal::Decimal;
use crate::error::position;
use crate::print::{key_text, literal_text};
use crate::program::Program;
use crate::schema::{Attribute, Key, KeyId, KeyTable};
use crate::value::{Parsed, Value};
use crate::version::Version;
use crate::{Dialect, Expr, Inventory, TimeUnit, Type, java, suggest};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// It can never do what is written.
    Error,
    /// It is probably not what is meant.
    Warning,
    /// Worth knowing.
    Note,
}

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

/// What to check an expression against.
#[derive(Clone, Copy, Debug)]
pub struct LintInput<'a> {
    /// The declared types of keys.
    pub types: &'a BTreeMap<String, Type>,
    /// The instances there are, if known. Built-in attributes are looked for under `$self.` names.
    pub inventory: Option<&'a Inventory>,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Stable, snake_case; the language reference lists them.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is the matter, lowercase.
    pub message: String,
    /// The line, from 1.
    pub line: u32,
    /// The column in Unicode scalars, from 1.
    pub column: u32,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Checks an expression; the findings come in order of their place, the worst first at one place.
///
/// ```
/// use std::collections::BTreeMap;
/// use metaroute_expr::{Expr, LintInput, lint};
///
/// let expr = Expr::parse("version >= 3 && version < 2").unwrap();
/// let findings = lint(&expr, &LintInput { types: &BTreeMap::new(), inventory: None });
/// assert_eq!(findings[0].code, "unsatisfiable");
/// ```
pub fn lint(expr: &Expr, with: &LintInput<'_>) -> Vec<Finding> {
    let mut table = KeyTable::new(with.types.clone());
    // A key table refuses nothing.
    let Ok(program) = expr.bind(&mut table) else { return Vec::new() };
    let inventory = with.inventory.filter(|inventory| !inventory.is_empty());
    let mut linter = Linter { expr, types: with.types, inventory, table, program, findings: Vec::new() };
    linter.run();
    let mut findings = linter.findings;
    findings.sort_by_key(|finding| (finding.line, finding.column, finding.severity));
    findings.dedup();
    findings
}

struct Linter<'a> {
    expr: &'a Expr,
    types: &'a BTreeMap<String, Type>,
    inventory: Option<&'a Inventory>,
    table: KeyTable,
    program: Program,
    findings: Vec<Finding>,
}

impl<'a> Linter<'a> {
    fn add(&mut self, at: usize, severity: Severity, code: &'static str, message: String, hint: Option<String>) {
        let (line, column) = position(self.expr.source(), at);
        self.findings.push(Finding { code, severity, message, line, column, hint });
    }

    fn error(&mut self, at: usize, code: &'static str, message: String, hint: Option<String>) {
        self.add(at, Severity::Error, code, message, hint);
    }

    fn warning(&mut self, at: usize, code: &'static str, message: String, hint: Option<String>) {
        self.add(at, Severity::Warning, code, message, hint);
    }

    fn note(&mut self, at: usize, code: &'static str, message: String, hint: Option<String>) {
        self.add(at, Severity::Note, code, message, hint);
    }

    fn run(&mut self) {
        let blank = self.expr.source().trim().is_empty();
        if blank {
            let hint = "leave the rule out, or say what should match".to_owned();
            self.warning(0, "empty_expression", "an empty expression matches everything".to_owned(), Some(hint));
            return;
        }
        let mut comparisons: Vec<&'a Comparison> = Vec::new();
        self.expr.ast().visit(&mut |comparison| comparisons.push(comparison));
        match self.expr.dialect() {
            Dialect::V1 => {
                for comparison in &comparisons {
                    self.comparison(comparison);
                }
                self.missing_key_rule(&comparisons);
                self.tree();
            }
            Dialect::Seata => self.original(&comparisons),
        }
        if let Some(inventory) = self.inventory {
            self.against(inventory, &comparisons);
        }
    }

    /// The type that decides a comparison, and whether it was declared rather than guessed from the name.
    fn type_of(&self, left: &Subject) -> (Option<Type>, bool) {
        match left {
            Subject::Attribute(attribute) => (Some(attribute.type_of()), true),
            Subject::Key(name) | Subject::Slot { name, .. } => {
                let declared = self.types.get(&**name).copied();
                (type_of(name, declared, true), declared.is_some())
            }
        }
    }

    fn comparison(&mut self, comparison: &Comparison) {
        let at = comparison.at;
        let name = subject_text(&comparison.left);
        match &comparison.test {
            Test::Exists => {
                if let Subject::Slot { optional: true, .. } = comparison.left {
                    let message =
                        format!("`exists({name}?)` is dropped where `{name}` is absent, so it is never false");
                    self.warning(at, "optional_exists", message, Some(format!("write exists({name})")));
                }
            }
            Test::InRange(_) | Test::Matches(_) | Test::Never(_) => {}
            Test::Like(glob) => {
                if glob.matches_all() {
                    let hint = Some(format!("write exists({name})"));
                    self.note(
                        at,
                        "like_everything",
                        "`like \"*\"` only asks whether the key is there".to_owned(),
                        hint,
                    );
                } else if let Some(text) = glob.literal() {
                    let hint = Some(format!("write {name} == {}", literal_text(&text)));
                    self.note(
                        at,
                        "like_without_wildcard",
                        "a pattern without `*` and `?` is one text".to_owned(),
                        hint,
                    );
                }
            }
            Test::Order(order, Operand::Literal(literal)) => self.literal(comparison, Some(*order), literal),
            Test::Order(order, Operand::Reference(_)) => {
                if order.is_ordered()
                    && matches!(self.type_of(&comparison.left).0, Some(Type::Text | Type::Bool | Type::Set))
                {
                    self.unordered(comparison, *order);
                }
            }
            Test::In { items, .. } => {
                for (index, item) in items.iter().enumerate() {
                    if let Operand::Literal(literal) = item {
                        self.literal(comparison, None, literal);
                    }
                    if items[..index].contains(item) {
                        let text = match item {
                            Operand::Literal(literal) => literal_text(literal.value.as_text()),
                            Operand::Reference(subject) => subject_text(subject),
                        };
                        self.note(at, "duplicate_item", format!("{text} is listed twice"), None);
                    }
                }
            }
        }
    }

    /// One literal against the type of its left side; `order` is `None` for an item of a list.
    fn literal(&mut self, comparison: &Comparison, order: Option<Order>, literal: &Literal) {
        let at = comparison.right_at;
        let name = subject_text(&comparison.left);
        let text = literal.value.as_text();
        let ordered = order.is_some_and(Order::is_ordered);
        let (of, declared) = self.type_of(&comparison.left);
        let value = Value::Parsed(&literal.value);
        let (fits, what) = match of {
            None => return self.undeclared(comparison, order, literal),
            Some(Type::Text | Type::Set) if ordered => return self.unordered(comparison, order.unwrap_or(Order::Eq)),
            Some(Type::Text | Type::Set) => return,
            Some(Type::Bool) if ordered => return self.unordered(comparison, order.unwrap_or(Order::Eq)),
            Some(Type::Bool) => (matches!(text, "true" | "false"), "a bool"),
            Some(Type::Number) => (Decimal::parse(text.trim()).is_some(), "a number"),
            Some(Type::Version) => (Version::parse(text.trim()).is_some(), "a version"),
            Some(Type::Time(unit)) => (value.time(unit).is_some(), "a time"),
        };
        if fits {
            if text != text.trim() {
                let message = format!("the spaces in {text:?} do not count: {what} is trimmed");
                self.note(at, "padded_literal", message, Some(format!("write {}", text.trim())));
            }
            return;
        }
        let shown = literal_text(text);
        if ordered {
            let message = format!("`{name}` is {what} and {shown} is not, so the comparison is always false");
            self.error(at, "unparsable_literal", message, None);
        } else {
            let message = format!("`{name}` is {what} and {shown} is not, so they are compared as text");
            let hint = (!declared).then(|| format!("declare `{name}` as text if its values are not versions"));
            let severity = if declared && of != Some(Type::Version) { Severity::Error } else { Severity::Warning };
            self.add(at, severity, "type_clash", message, hint);
        }
    }

    fn undeclared(&mut self, comparison: &Comparison, order: Option<Order>, literal: &Literal) {
        let at = comparison.right_at;
        let name = subject_text(&comparison.left);
        let text = literal.value.as_text();
        let number = Decimal::parse(text.trim()).is_some();
        match order.filter(|order| order.is_ordered()) {
            Some(order) if !number || literal.quoted => {
                let hint = if number {
                    format!("a quoted value is text; write {name} {} {}", order.symbol(), text.trim())
                } else if Version::parse(text.trim()).is_some() {
                    format!("declare `{name}` as version")
                } else if Value::Parsed(&literal.value).time(TimeUnit::Rfc3339).is_some() {
                    format!("declare `{name}` as time")
                } else {
                    format!("declare the type of `{name}`, or compare with `==`")
                };
                let message = format!("text has no order, so `{name} {} …` is always false", order.symbol());
                self.error(comparison.at, "ordered_text", message, Some(hint));
            }
            _ if !number && !literal.quoted && java::parse_double(text).is_some_and(f64::is_finite) => {
                let message = format!("`{text}` is no plain decimal and is compared as text");
                let hint = "numbers are digits with an optional sign and fraction".to_owned();
                self.note(at, "not_a_plain_decimal", message, Some(hint));
            }
            _ => {}
        }
    }

    fn unordered(&mut self, comparison: &Comparison, order: Order) {
        let name = subject_text(&comparison.left);
        let of = self.type_of(&comparison.left).0.unwrap_or(Type::Text);
        let message = format!("type {of} has no order, so `{name} {} …` is always false", order.symbol());
        self.error(comparison.at, "ordered_text", message, Some("compare with `==`, `!=` or `in`".to_owned()));
    }

    /// Said once, where it first matters.
    fn missing_key_rule(&mut self, comparisons: &[&Comparison]) {
        let negative = comparisons
            .iter()
            .find(|comparison| matches!(comparison.test, Test::Order(Order::Ne, _) | Test::In { negated: true, .. }));
        let Some(comparison) = negative else { return };
        let name = subject_text(&comparison.left);
        let message = format!("without the key `{name}` this is false, like every comparison");
        let hint = format!("to include instances without it write `!(… == …)` or `!exists({name}) || …`");
        self.note(comparison.at, "missing_key_semantics", message, Some(hint));
    }

    fn against(&mut self, inventory: &Inventory, comparisons: &[&Comparison]) {
        let mut unknown = false;
        for key in self.expr.keys() {
            if inventory.present(key) == 0 {
                unknown = true;
                let first = comparisons.iter().find(|comparison| {
                    comparison.subjects().any(|subject| matches!(subject, Subject::Key(name) if **name == *key))
                });
                let at = first.map_or(0, |comparison| comparison.at);
                self.unknown_key(inventory, key, at);
            }
        }
        for comparison in comparisons {
            self.values(inventory, comparison);
        }
        if self.program.reads_context() || self.program.atoms().is_empty() {
            return;
        }
        let matched = count(&self.program, &self.table, inventory);
        let total = inventory.len();
        let settled = |finding: &Finding| matches!(finding.code, "unsatisfiable" | "tautology");
        if self.findings.iter().any(settled) {
            return;
        }
        if matched == 0 {
            let hint = unknown.then(|| "see the unknown keys".to_owned());
            self.warning(0, "matches_none", format!("matches none of {total} instances today"), hint);
        } else if matched == total {
            self.note(0, "matches_all", format!("matches all {total} instances today"), None);
        }
    }

    fn unknown_key(&mut self, inventory: &Inventory, key: &str, at: usize) {
        let metadata = || inventory.keys().filter(|known| !known.starts_with("$self."));
        let attribute = key.parse::<Attribute>().ok();
        let hint = match (suggest::closest(key, metadata()), attribute) {
            (_, Some(attribute)) => format!("a bare key is metadata; the built-in attribute is `$self.{attribute}`"),
            (Some(meant), None) => format!("did you mean `{}`?", key_text(meant)),
            (None, None) => match suggest::closest(key, Attribute::ALL.map(Attribute::name)) {
                Some(meant) => format!("did you mean `$self.{meant}`?"),
                None => format!("keys there are: {}", metadata().take(12).map(key_text).collect::<Vec<_>>().join(", ")),
            },
        };
        let total = inventory.len();
        let message = format!("none of {total} instances has the key `{key}`");
        self.warning(at, "unknown_key", message, Some(hint));
    }

    /// Values of the inventory that a typed comparison cannot read, or reads only after trimming.
    fn values(&mut self, inventory: &Inventory, comparison: &Comparison) {
        let key = match &comparison.left {
            Subject::Key(name) => name.to_string(),
            Subject::Attribute(attribute) => format!("$self.{attribute}"),
            Subject::Slot { .. } => return,
        };
        let numeric_literal = matches!(&comparison.test, Test::Order(_, Operand::Literal(literal))
            if !literal.quoted && Decimal::parse(literal.value.as_text().trim()).is_some());
        let ordered = match &comparison.test {
            Test::Order(order, _) => order.is_ordered(),
            Test::InRange(_) => true,
            _ => false,
        };
        let of = match (&comparison.test, self.type_of(&comparison.left).0) {
            _ if self.expr.dialect() == Dialect::Seata => return,
            (Test::InRange(_), _) => Type::Version,
            (_, Some(of)) => of,
            (_, None) if numeric_literal => Type::Number,
            (_, None) => return,
        };
        let (what, reads): (_, fn(&Parsed, Type) -> bool) = match of {
            Type::Version => ("version", |value, _| Version::parse(value.as_text().trim()).is_some()),
            Type::Number => ("number", |value, _| Decimal::parse(value.as_text().trim()).is_some()),
            Type::Time(_) => ("time", |value, of| match of {
                Type::Time(unit) => Value::Parsed(value).time(unit).is_some(),
                _ => false,
            }),
            Type::Text | Type::Bool | Type::Set => return,
        };
        let mut bad = Vec::new();
        let mut padded = Vec::new();
        let (mut bad_count, mut padded_count) = (0, 0);
        for (value, instances) in inventory.values(&key).filter(|(_, instances)| *instances > 0) {
            if !reads(value, of) {
                bad.push(value.as_text());
                bad_count += instances;
            } else if value.as_text() != value.as_text().trim() {
                padded.push(value.as_text());
                padded_count += instances;
            }
        }
        if ordered && bad_count > 0 {
            let message = format!(
                "the `{key}` of {bad_count} of {} instances is no {what}, so this is false there: {}",
                inventory.len(),
                examples(&bad)
            );
            self.note(comparison.at, "unparsable_values", message, None);
        }
        if padded_count > 0 {
            let message = format!(
                "the `{key}` of {padded_count} of {} instances has spaces around it, which do not count: {}",
                inventory.len(),
                examples(&padded)
            );
            self.note(comparison.at, "padded_values", message, None);
        }
    }
}

fn examples(values: &[&str]) -> String {
    let shown: Vec<String> = values.iter().take(3).map(|value| format!("{value:?}")).collect();
    let more = if values.len() > 3 { ", …" } else { "" };
    shown.join(", ") + more
}

fn subject_text(subject: &Subject) -> String {
    match subject {
        Subject::Key(name) => key_text(name),
        Subject::Attribute(attribute) => format!("$self.{attribute}"),
        Subject::Slot { scope, name, .. } => format!("{scope}.{name}"),
    }
}

/// The inventory as columns under the ids of a table.
struct Today<'a> {
    inventory: &'a Inventory,
    table: &'a KeyTable,
}

impl Columns for Today<'_> {
    fn len(&self) -> usize {
        self.inventory.len()
    }

    fn column(&self, key: KeyId) -> Option<Column<'_>> {
        let column = match self.table.keys().get(key.0 as usize)? {
            Key::Name(name) => self.inventory.column(name)?,
            Key::Attribute(attribute) => self.inventory.column(&format!("$self.{attribute}"))?,
        };
        Some(Column { codes: &column.codes, values: &column.values })
    }
}

/// The rows of the inventory that satisfy a program without context, as bits.
fn matching(program: &Program, table: &KeyTable, inventory: &Inventory) -> Vec<u64> {
    let mut bits = vec![0; inventory.len().div_ceil(64)];
    program.eval_columns(&Today { inventory, table }, &(), &mut bits, &mut Scratch::default());
    bits
}

fn count(program: &Program, table: &KeyTable, inventory: &Inventory) -> usize {
    matching(program, table, inventory).iter().map(|word| word.count_ones() as usize).sum()
}
