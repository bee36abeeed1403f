//! The parsed expression.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::ast::{Ast, Subject};
use crate::error::{BindError, ParseError};
use crate::program::Program;
use crate::schema::{Schema, SlotScope};
use crate::{bind, parser, print, seata};

/// Which language a text is read as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dialect {
    /// The language of this crate.
    #[default]
    V1,
    /// The original's routing expressions with the original's answers, its odd ones included.
    Seata,
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dialect::V1 => "v1",
            Dialect::Seata => "seata",
        })
    }
}

/// A word that names no dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDialect(String);

impl fmt::Display for UnknownDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown dialect `{}`; one of v1, seata", self.0)
    }
}

impl std::error::Error for UnknownDialect {}

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "v1" => Ok(Dialect::V1),
            "seata" => Ok(Dialect::Seata),
            other => Err(UnknownDialect(other.to_owned())),
        }
    }
}

/// A parsed expression. Two are equal where they mean the same tree, however they are written.
///
/// [`Display`](fmt::Display) prints the canonical form: parsing it gives an equal expression, and printing that gives
/// the same text.
///
/// ```
/// use metaroute_expr::Expr;
///
/// let expr = Expr::parse("not (env='prod' and tier in (1,2))")?;
/// assert_eq!(expr.to_string(), "!(env == prod && tier in (1, 2))");
/// assert_eq!(Expr::parse(&expr.to_string())?, expr);
/// # Ok::<(), metaroute_expr::ParseError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Expr {
    source: Box<str>,
    dialect: Dialect,
    ast: Ast,
}

impl PartialEq for Expr {
    fn eq(&self, other: &Self) -> bool {
        self.dialect == other.dialect && self.ast == other.ast
    }
}

impl Eq for Expr {}

impl Expr {
    /// Parses the language of this crate. The empty text is the expression that is always true.
    ///
    /// # Errors
    /// The first place at which the text is no expression, or the limit it exceeds.
    pub fn parse(text: &str) -> Result<Expr, ParseError> {
        Expr::parse_as(text, Dialect::V1)
    }

    /// Parses a dialect. In [`Dialect::Seata`] the errors are exactly the texts the original calls invalid; there the
    /// caller decides what that means (the original lets everything pass).
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_as(text: &str, dialect: Dialect) -> Result<Expr, ParseError> {
        let ast = match dialect {
            Dialect::V1 => parser::parse(text)?,
            Dialect::Seata => seata::parse(text)?,
        };
        Ok(Expr { source: text.into(), dialect, ast })
    }

    /// The dialect it was parsed as.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The text it was parsed from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether it has no comparison at all, so that it says the same of every record.
    pub fn is_constant(&self) -> bool {
        let mut comparisons = 0;
        self.ast.visit(&mut |_| comparisons += 1);
        comparisons == 0
    }

    /// The metadata keys it reads: unique, in order of first use.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.unique(|subject| match subject {
            Subject::Key(name) => Some(&**name),
            _ => None,
        })
    }

    /// The caller's and the request's values it reads, and whether they are optional: unique, in order of first use.
    pub fn slots(&self) -> impl Iterator<Item = (SlotScope, &str, bool)> {
        self.unique(|subject| match subject {
            Subject::Slot { scope, name, optional } => Some((*scope, &**name, *optional)),
            _ => None,
        })
    }

    /// The built-in attributes it reads: unique, in order of first use.
    pub fn attributes(&self) -> impl Iterator<Item = crate::Attribute> {
        self.unique(|subject| match subject {
            Subject::Attribute(attribute) => Some(*attribute),
            _ => None,
        })
    }

    fn unique<'a, T: PartialEq>(&'a self, mut pick: impl FnMut(&'a Subject) -> Option<T>) -> impl Iterator<Item = T> {
        let mut found = Vec::new();
        self.ast.visit(&mut |comparison| {
            for item in comparison.subjects().filter_map(&mut pick) {
                if !found.contains(&item) {
                    found.push(item);
                }
            }
        });
        found.into_iter()
    }

    /// Gives every name its id and every comparison its type.
    ///
    /// # Errors
    /// The schema refuses a name.
    pub fn bind<S: Schema + ?Sized>(&self, schema: &mut S) -> Result<Program, BindError> {
        bind::bind(self, schema)
    }

    pub(crate) fn ast(&self) -> &Ast {
        &self.ast
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dialect {
            Dialect::V1 => print::expression(&self.ast, f),
            Dialect::Seata => seata::print(&self.source, f),
        }
    }
}

impl FromStr for Expr {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Expr::parse(text)
    }
}

/// Where the first byte of a sub-slice lies in the text it was cut from.
pub(crate) fn span_in(text: &str, part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize).min(text.len());
    start..(start + part.len()).min(text.len())
}
