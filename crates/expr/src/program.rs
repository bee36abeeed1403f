//! The compiled form: ids instead of names, and a tree over numbered comparisons.
//!
//! A [`Program`] is a small tree over [`Atom`]s. An atom is one comparison; equal ones are kept once, so a caller that
//! keeps a bitset per atom can share it between rules. There are two ways to run a program: over one [`Record`], and over
//! [`Columns`], where an atom is tested once per distinct value instead of once per row.

use crate::atom::{Atom, Outcome};
use crate::columns::{self, Columns, Scratch};
use crate::schema::{Context, Record, SlotId};

/// A bound expression, ready to evaluate.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) root: Node,
    pub(crate) atoms: Vec<Atom>,
    pub(crate) texts: Vec<Box<str>>,
    /// Where each atom first stands in the source, in bytes.
    pub(crate) places: Vec<usize>,
    pub(crate) slots: Vec<SlotId>,
}

/// A node of the tree over atoms.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// The atom with this number.
    Atom(usize),
    /// Plain negation.
    Not(Box<Node>),
    /// True where all children are; empty: true.
    And(Box<[Node]>),
    /// True where any child is; empty: false.
    Or(Box<[Node]>),
}

/// Why a program said what it said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The value of the whole expression.
    pub value: bool,
    /// The comparison that decided it: the first false one of a conjunction, or its last when it is true; the first
    /// true one of a disjunction, or its last when it is false. `None` where no comparison was left to decide.
    pub atom: Option<usize>,
}

impl Program {
    /// Whether the record satisfies the expression.
    pub fn eval<R: Record + ?Sized, C: Context + ?Sized>(&self, record: &R, context: &C) -> bool {
        self.root.combine(&mut |atom| self.atoms[atom].test(record, context)).unwrap_or(true)
    }

    /// The tree.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// The distinct comparisons, in order of first occurrence; the position is the number in [`Node::Atom`].
    pub fn atoms(&self) -> &[Atom] {
        &self.atoms
    }

    /// The canonical text of one comparison, such as `version >= 2.3`.
    ///
    /// # Panics
    /// Where there is no such atom.
    pub fn atom_text(&self, atom: usize) -> &str {
        &self.texts[atom]
    }

    /// Whether the answer depends on the caller or the request.
    pub fn reads_context(&self) -> bool {
        !self.slots.is_empty()
    }

    /// The distinct slots it reads, in order of first use.
    pub fn slots(&self) -> impl Iterator<Item = SlotId> {
        self.slots.iter().copied()
    }

    /// Sets bit `i` of `out` where row `i` of the columns satisfies the program, and clears every other bit.
    ///
    /// Bits are counted from the lowest of the first word; rows beyond `out` are not written. Each atom that reads one
    /// key is tested once per distinct value. Allocates only where `scratch` has to grow.
    pub fn eval_columns<V: Columns + ?Sized, C: Context + ?Sized>(
        &self,
        columns: &V,
        context: &C,
        out: &mut [u64],
        scratch: &mut Scratch,
    ) {
        columns::evaluate(self, columns, context, out, scratch);
    }

    /// The value for this record and the comparison that decided it.
    pub fn decide<R: Record + ?Sized, C: Context + ?Sized>(&self, record: &R, context: &C) -> Decision {
        match self.root.decide(&mut |atom| self.atoms[atom].test(record, context)) {
            Some((value, atom)) => Decision { value, atom },
            None => Decision { value: true, atom: None },
        }
    }
}

impl Node {
    /// Combines the outcomes of the atoms; `None` where every comparison was removed, which counts as true at the root.
    ///
    /// `f` is asked from left to right and only as far as needed.
    pub fn combine(&self, f: &mut impl FnMut(usize) -> Outcome) -> Option<bool> {
        match self {
            Node::Atom(atom) => f(*atom).known(),
            Node::Not(inner) => inner.combine(f).map(|value| !value),
            Node::And(children) => combine_until(children, false, f),
            Node::Or(children) => combine_until(children, true, f),
        }
    }

    fn decide(&self, f: &mut impl FnMut(usize) -> Outcome) -> Option<(bool, Option<usize>)> {
        let (children, stop) = match self {
            Node::Atom(atom) => return f(*atom).known().map(|value| (value, Some(*atom))),
            Node::Not(inner) => return inner.decide(f).map(|(value, atom)| (!value, atom)),
            Node::And(children) => (children, false),
            Node::Or(children) => (children, true),
        };
        if children.is_empty() {
            return Some((!stop, None));
        }
        let mut last = None;
        for child in children {
            if let Some(decided) = child.decide(f) {
                last = Some(decided);
                if decided.0 == stop {
                    break;
                }
            }
        }
        last
    }
}

/// A conjunction stops at the first false child, a disjunction at the first true one.
fn combine_until(children: &[Node], stop: bool, f: &mut impl FnMut(usize) -> Outcome) -> Option<bool> {
    if children.is_empty() {
        return Some(!stop);
    }
    let mut value = None;
    for child in children {
        match child.combine(f) {
            Some(known) if known == stop => return Some(stop),
            Some(known) => value = Some(known),
            None => {}
        }
    }
    value
}
