//! Findings about the tree as a whole: what can never be true, is always true, or adds nothing.

use std::collections::BTreeSet;

use super::Linter;
use super::logic::{self, Logic};
use crate::ast::Ast;
use crate::atom::{Check, Kind};
use crate::print;
use crate::program::Node;
use crate::schema::Key;

/// Children of one `&&` or `||` that are compared pair by pair.
const CHILDREN_MAX: usize = 100;

struct Part {
    at: usize,
    code: &'static str,
    message: String,
    hint: Option<String>,
    error: bool,
}

impl Linter<'_> {
    pub(super) fn tree(&mut self) {
        let listed = |key: crate::KeyId| match (self.table.keys().get(key.0 as usize), self.inventory) {
            (Some(Key::Name(name)), Some(inventory)) => {
                inventory.values(name).any(|(value, _)| value.as_list().is_some())
            }
            _ => false,
        };
        let logic = Logic::new(&self.program, listed);
        let mut parts = Vec::new();
        let root = self.program.root();
        let range = logic.range(root);
        let at = self.place(root);
        if !range.can_be_true {
            let message = "this can never be true".to_owned();
            parts.push(Part { at, code: "unsatisfiable", message, hint: None, error: true });
        } else if !range.can_be_false {
            let message = "this is always true".to_owned();
            parts.push(Part { at, code: "tautology", message, hint: None, error: false });
        } else {
            self.presence_only(root, &logic, &mut parts);
            self.all_optional(root, &mut parts);
            self.children(self.expr.ast(), root, &logic, &mut parts);
        }
        for Part { at, code, message, hint, error } in parts {
            if error { self.error(at, code, message, hint) } else { self.warning(at, code, message, hint) }
        }
    }

    /// The place of the leftmost comparison.
    fn place(&self, node: &Node) -> usize {
        let mut atoms = BTreeSet::new();
        logic::collect(node, &mut atoms);
        atoms.iter().map(|&atom| self.program.places[atom]).min().unwrap_or(0)
    }

    fn presence_only(&self, root: &Node, logic: &Logic<'_>, parts: &mut Vec<Part>) {
        let mut atoms = BTreeSet::new();
        logic::collect(root, &mut atoms);
        let atoms: Vec<_> = atoms.iter().map(|&atom| &self.program.atoms()[atom]).collect();
        let asks = atoms.iter().any(|atom| atom.check == Check::Exists || atom.kind == Kind::Java);
        let ranged = atoms.iter().all(|atom| atom.key().is_some());
        if ranged && !asks && !logic.range_if_present(root).can_be_false {
            let message = "this is true for every instance that has the keys, and false for the others".to_owned();
            let hint = Some("if that is meant, write exists(key)".to_owned());
            parts.push(Part { at: self.place(root), code: "tests_presence_only", message, hint, error: false });
        }
    }

    fn all_optional(&self, root: &Node, parts: &mut Vec<Part>) {
        if self.program.atoms().iter().all(|atom| atom.removable) {
            let message = "every comparison is optional: without those values this matches everything".to_owned();
            let hint = Some("drop a `?`, or add a comparison that always stays".to_owned());
            parts.push(Part { at: self.place(root), code: "optional_everything", message, hint, error: false });
        }
    }

    fn children(&self, ast: &Ast, node: &Node, logic: &Logic<'_>, parts: &mut Vec<Part>) {
        let (texts, nodes, and) = match (ast, node) {
            (Ast::Not(ast), Node::Not(node)) => return self.children(ast, node, logic, parts),
            (Ast::And(texts), Node::And(nodes)) => (texts, nodes, true),
            (Ast::Or(texts), Node::Or(nodes)) => (texts, nodes, false),
            _ => return,
        };
        let shown = |index: usize| {
            let mut text = String::new();
            // Writing to a string cannot fail.
            let _ = print::expression(&texts[index], &mut text);
            text
        };
        let mut done = vec![false; nodes.len()];
        for (index, child) in nodes.iter().enumerate() {
            let range = logic.range(child);
            let (code, message) = match (range.can_be_true, range.can_be_false) {
                (false, _) => ("unsatisfiable", format!("`{}` can never be true", shown(index))),
                (_, false) => ("tautology", format!("`{}` is always true", shown(index))),
                _ => continue,
            };
            done[index] = true;
            parts.push(Part { at: self.place(child), code, message, hint: None, error: false });
        }
        for second in 1..nodes.len().min(CHILDREN_MAX) {
            for first in 0..second {
                if done[first] || done[second] || !logic.share_a_key(&nodes[first], &nodes[second]) {
                    continue;
                }
                self.pair(and, (first, second), nodes, &shown, logic, &mut done, parts);
            }
        }
        for (index, (ast, child)) in texts.iter().zip(nodes).enumerate() {
            if !done[index] {
                self.children(ast, child, logic, parts);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one step of the loop above, split off for its length")]
    fn pair(
        &self,
        and: bool,
        (first, second): (usize, usize),
        nodes: &[Node],
        shown: &dyn Fn(usize) -> String,
        logic: &Logic<'_>,
        done: &mut [bool],
        parts: &mut Vec<Part>,
    ) {
        let (a, b) = (&nodes[first], &nodes[second]);
        if and {
            let both = Node::And(Box::new([a.clone(), b.clone()]));
            if !logic.range(&both).can_be_true {
                let message = format!("`{}` and `{}` can never both be true", shown(first), shown(second));
                parts.push(Part { at: self.place(a), code: "unsatisfiable", message, hint: None, error: true });
                (done[first], done[second]) = (true, true);
                return;
            }
        }
        // In a conjunction the weaker clause adds nothing, in a disjunction the stronger one; of two equal ones the second.
        let (useless, because) = match (logic.implies(a, b), logic.implies(b, a)) {
            (true, true) => (second, first),
            (true, false) if and => (second, first),
            (true, false) => (first, second),
            (false, true) if and => (first, second),
            (false, true) => (second, first),
            (false, false) => return,
        };
        let (code, message) = if and {
            ("redundant_clause", format!("`{}` adds nothing: `{}` already implies it", shown(useless), shown(because)))
        } else {
            ("shadowed_clause", format!("`{}` adds nothing: `{}` already covers it", shown(useless), shown(because)))
        };
        done[useless] = true;
        // The first place of the clause itself: an equal comparison may stand earlier.
        let at = self.place(&nodes[useless]);
        parts.push(Part { at, code, message, hint: Some("remove it".to_owned()), error: false });
    }
}
