//! From names to ids: the tree of an expression becomes a [`Program`] over one schema.

use std::collections::HashMap;

use crate::ast::{Ast, Comparison, Operand, Subject, Test};
use crate::atom::{Atom, Check, Kind, Right, Source};
use crate::error::{BindError, position};
use crate::expr::Expr;
use crate::print;
use crate::program::{Node, Program};
use crate::schema::{Schema, SlotId, Unsupported};
use crate::{Dialect, Type};

struct Binder<'a, S: ?Sized> {
    schema: &'a mut S,
    source: &'a str,
    dialect: Dialect,
    atoms: Vec<Atom>,
    texts: Vec<Box<str>>,
    places: Vec<usize>,
    numbers: HashMap<Atom, usize>,
    slots: Vec<SlotId>,
}

pub(crate) fn bind<S: Schema + ?Sized>(expr: &Expr, schema: &mut S) -> Result<Program, BindError> {
    let mut binder = Binder {
        schema,
        source: expr.source(),
        dialect: expr.dialect(),
        atoms: Vec::new(),
        texts: Vec::new(),
        places: Vec::new(),
        numbers: HashMap::new(),
        slots: Vec::new(),
    };
    let root = binder.node(expr.ast())?;
    Ok(Program { root, atoms: binder.atoms, texts: binder.texts, places: binder.places, slots: binder.slots })
}

impl<S: Schema + ?Sized> Binder<'_, S> {
    fn node(&mut self, ast: &Ast) -> Result<Node, BindError> {
        Ok(match ast {
            Ast::Compare(comparison) => Node::Atom(self.comparison(comparison)?),
            Ast::Not(inner) => match self.node(inner)? {
                Node::And(children) if children.is_empty() => Node::Or(children),
                Node::Or(children) if children.is_empty() => Node::And(children),
                inner => Node::Not(Box::new(inner)),
            },
            Ast::And(children) => Node::And(self.nodes(children)?),
            Ast::Or(children) => Node::Or(self.nodes(children)?),
        })
    }

    fn nodes(&mut self, children: &[Ast]) -> Result<Box<[Node]>, BindError> {
        children.iter().map(|child| self.node(child)).collect()
    }

    fn comparison(&mut self, comparison: &Comparison) -> Result<usize, BindError> {
        let kind = self.kind(&comparison.left);
        let left = self.source(&comparison.left, comparison.at)?;
        let check = match &comparison.test {
            Test::Exists => Check::Exists,
            Test::Order(order, right) => Check::Order(*order, self.right(right, comparison.right_at)?),
            Test::In { negated, items } => Check::In {
                negated: *negated,
                items: items.iter().map(|item| self.right(item, comparison.right_at)).collect::<Result<_, _>>()?,
            },
            Test::Like(glob) => Check::Like(glob.clone()),
            Test::Matches(pattern) => Check::Matches(pattern.clone()),
            Test::InRange(range) => Check::InRange(range.clone()),
            Test::Never(_) => Check::Never,
        };
        let atom = Atom::new(left, comparison.lower, kind, check);
        if let Some(number) = self.numbers.get(&atom) {
            return Ok(*number);
        }
        let number = self.atoms.len();
        self.numbers.insert(atom.clone(), number);
        self.atoms.push(atom);
        self.places.push(comparison.at);
        self.texts.push(print::comparison(comparison, self.dialect).into());
        Ok(number)
    }

    fn kind(&self, left: &Subject) -> Kind {
        if self.dialect == Dialect::Seata {
            return Kind::Java;
        }
        match left {
            Subject::Attribute(attribute) => attribute.type_of().into(),
            Subject::Key(name) | Subject::Slot { name, .. } => {
                match type_of(name, self.schema.declared(name), self.schema.infers_types()) {
                    Some(declared) => declared.into(),
                    None => Kind::Auto,
                }
            }
        }
    }

    fn right(&mut self, operand: &Operand, at: usize) -> Result<Right, BindError> {
        Ok(match operand {
            Operand::Literal(literal) => Right::Literal(literal.clone()),
            Operand::Reference(subject) => Right::Source(self.source(subject, at)?),
        })
    }

    fn source(&mut self, subject: &Subject, at: usize) -> Result<Source, BindError> {
        let found = match subject {
            Subject::Key(name) => self.schema.key(name).map(Source::Key),
            Subject::Attribute(attribute) => self.schema.attribute(*attribute).map(Source::Key),
            Subject::Slot { scope, name, optional } => {
                self.schema.slot(*scope, name).map(|slot| Source::Slot(slot, *optional))
            }
        };
        let source = found.map_err(|unsupported| self.error(unsupported, at))?;
        if let Source::Slot(slot, _) = source
            && !self.slots.contains(&slot)
        {
            self.slots.push(slot);
        }
        Ok(source)
    }

    fn error(&self, unsupported: Unsupported, offset: usize) -> BindError {
        let (line, column) = position(self.source, offset);
        BindError { line, column, offset, unsupported }
    }
}

/// The type of a key: what is declared, else what its name says, if names may say anything.
pub(crate) fn type_of(name: &str, declared: Option<Type>, infers: bool) -> Option<Type> {
    let by_name = name == "version" || name.ends_with("-version") || name.ends_with("_version");
    declared.or_else(|| (infers && by_name).then_some(Type::Version))
}
