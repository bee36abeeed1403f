//! Findings about an expression that parses but may not mean what its author thinks.

use std::collections::BTreeMap;

use crate::{Expr, Inventory, Type};

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

/// What to check an expression against.
#[derive(Clone, Copy, Debug)]
pub struct LintInput<'a> {
    /// The declared types of keys.
    pub types: &'a BTreeMap<String, Type>,
    /// The instances there are, if known.
    pub inventory: Option<&'a Inventory>,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Stable, snake_case.
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

/// Checks an expression; the findings come in order of their place.
pub fn lint(expr: &Expr, with: &LintInput<'_>) -> Vec<Finding> {
    let _ = (expr, with);
    Vec::new()
}
