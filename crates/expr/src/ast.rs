//! The tree of a parsed expression, as written: names instead of ids, literals not yet typed.

use crate::pattern::{Glob, Pattern};
use crate::schema::{Attribute, SlotScope};
use crate::value::Parsed;
use crate::version::Range;

/// One node. `And` and `Or` are flat: neither has a child of its own kind, unless it is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ast {
    Compare(Box<Comparison>),
    Not(Box<Ast>),
    /// Empty: true.
    And(Vec<Ast>),
    /// Empty: false.
    Or(Vec<Ast>),
}

/// `left operator right`, or `exists(left)`.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) left: Subject,
    /// `lower(left)`.
    pub(crate) lower: bool,
    pub(crate) test: Test,
    /// Where it starts, and where its right side starts, in bytes.
    pub(crate) at: usize,
    pub(crate) right_at: usize,
}

impl PartialEq for Comparison {
    /// Positions say nothing about what is compared.
    fn eq(&self, other: &Self) -> bool {
        self.left == other.left && self.lower == other.lower && self.test == other.test
    }
}

impl Eq for Comparison {}

/// What is read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    Key(Box<str>),
    Attribute(Attribute),
    Slot { scope: SlotScope, name: Box<str>, optional: bool },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Exists,
    Order(Order, Operand),
    In {
        negated: bool,
        items: Vec<Operand>,
    },
    Like(Glob),
    Matches(Pattern),
    InRange(Range),
    /// A word the original's validity test lets through as an operator but its comparison does not know.
    Never(Box<str>),
}

/// The comparison operators proper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `>`
    Gt,
    /// `>=`
    Ge,
    /// `<`
    Lt,
    /// `<=`
    Le,
}

impl Order {
    /// As it is written.
    pub fn symbol(self) -> &'static str {
        match self {
            Order::Eq => "==",
            Order::Ne => "!=",
            Order::Gt => ">",
            Order::Ge => ">=",
            Order::Lt => "<",
            Order::Le => "<=",
        }
    }

    /// Whether it asks for less or more, not only for equal or not.
    pub fn is_ordered(self) -> bool {
        !matches!(self, Order::Eq | Order::Ne)
    }

    /// The same comparison with its sides swapped.
    pub(crate) fn swapped(self) -> Order {
        match self {
            Order::Gt => Order::Lt,
            Order::Ge => Order::Le,
            Order::Lt => Order::Gt,
            Order::Le => Order::Ge,
            same => same,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operand {
    Literal(Literal),
    Reference(Subject),
}

/// A value in the text of an expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Literal {
    pub(crate) value: Parsed,
    /// Whether quotes are part of its meaning: without them it would be a number, or no word at all.
    pub(crate) quoted: bool,
}

impl Literal {
    pub(crate) fn word(text: &str) -> Self {
        Literal { value: Parsed::text(text), quoted: false }
    }

    pub(crate) fn quoted(text: &str) -> Self {
        let quoted = crate::decimal::Decimal::parse(text).is_some() || !crate::lexer::is_word(text);
        Literal { value: Parsed::text(text), quoted }
    }
}

impl Ast {
    /// Calls `f` for every comparison, left to right.
    pub(crate) fn visit<'a>(&'a self, f: &mut impl FnMut(&'a Comparison)) {
        match self {
            Ast::Compare(comparison) => f(comparison),
            Ast::Not(inner) => inner.visit(f),
            Ast::And(children) | Ast::Or(children) => children.iter().for_each(|child| child.visit(f)),
        }
    }
}

impl Comparison {
    /// Everything it reads, left to right.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = &Subject> {
        let right: &[Operand] = match &self.test {
            Test::Order(_, operand) => std::slice::from_ref(operand),
            Test::In { items, .. } => items,
            _ => &[],
        };
        let right = right.iter().filter_map(|operand| match operand {
            Operand::Reference(subject) => Some(subject),
            Operand::Literal(_) => None,
        });
        std::iter::once(&self.left).chain(right)
    }
}
