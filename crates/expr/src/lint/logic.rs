//! What an expression can and cannot say, whatever the instance.
//!
//! The comparisons of one key split all its possible values into a few classes: the literals, what lies between
//! neighbours, something else, nothing. One sample of each class stands for the rest, so trying every combination of
//! samples decides whether a tree can be true or false. A comparison whose classes cannot be told (a pattern, a value
//! from the request) may say anything; that only ever makes the answer "it can". Work is capped, and past the cap the
//! answer is "it can" as well: a finding is always right, silence proves nothing.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::BTreeSet;

use crate::ast::Literal;
use crate::atom::{Atom, Check, Kind, Outcome, Right, Source};
use crate::decimal::Decimal;
use crate::program::{Node, Program};
use crate::schema::KeyId;
use crate::types::TimeUnit;
use crate::value::{Parsed, Value};
use crate::version::Version;

/// Most combinations tried for one question: a few milliseconds.
const COMBINATIONS_MAX: usize = 20_000;
/// Most samples of one key.
const SAMPLES_MAX: usize = 2_000;
/// Most look-ups for one expression: however it is built, checking it takes a few tens of milliseconds at worst.
const WORK_MAX: usize = 1_000_000;
/// Most outcomes found beforehand for one key.
const OUTCOMES_MAX: usize = 200_000;
/// What a tree can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) can_be_true: bool,
    pub(crate) can_be_false: bool,
}

const ANYTHING: Range = Range { can_be_true: true, can_be_false: true };

enum Variable {
    /// The samples of a key; the first is "missing".
    Key { key: KeyId, samples: usize },
    /// A comparison that may say anything.
    Free { atom: usize, outcomes: &'static [Outcome] },
}

/// The outcomes of every comparison on every sample of its key.
pub(crate) struct Logic<'a> {
    program: &'a Program,
    /// Per atom its outcomes per sample, or `None` for a free one.
    tables: Vec<Option<Vec<Outcome>>>,
    work: Cell<usize>,
}

impl<'a> Logic<'a> {
    /// `is_set` tells which keys hold lists although nothing declares them as sets.
    pub(crate) fn new(program: &'a Program, is_set: impl Fn(KeyId) -> bool) -> Self {
        let atoms = program.atoms();
        let mut tables: Vec<Option<Vec<Outcome>>> = vec![None; atoms.len()];
        let keys: BTreeSet<KeyId> = atoms.iter().filter_map(decidable_key).collect();
        for key in keys {
            let mine: Vec<usize> = (0..atoms.len()).filter(|&atom| decidable_key(&atoms[atom]) == Some(key)).collect();
            let group: Vec<&Atom> = mine.iter().map(|&atom| &atoms[atom]).collect();
            let Some(samples) = samples(&group, is_set(key)) else { continue };
            if samples.len() * mine.len() > OUTCOMES_MAX {
                continue;
            }
            for atom in mine {
                let outcomes = samples.iter().map(|sample| atoms[atom].test_value(sample.value(), &()));
                tables[atom] = Some(outcomes.collect());
            }
        }
        Logic { program, tables, work: Cell::new(WORK_MAX) }
    }

    /// What a tree over the program's atoms can say.
    pub(crate) fn range(&self, node: &Node) -> Range {
        self.range_where(node, |_| true).unwrap_or(ANYTHING)
    }

    /// The same for instances that have every key the tree compares.
    pub(crate) fn range_if_present(&self, node: &Node) -> Range {
        self.range_where(node, |sample| sample > 0).unwrap_or(ANYTHING)
    }

    /// Whether `premise` cannot be true without `conclusion` being so. Trees with removable comparisons imply nothing.
    pub(crate) fn implies(&self, premise: &Node, conclusion: &Node) -> bool {
        let counterexample = Node::And(Box::new([premise.clone(), Node::Not(Box::new(conclusion.clone()))]));
        let mut atoms = BTreeSet::new();
        collect(&counterexample, &mut atoms);
        let removable = atoms.iter().any(|&atom| self.program.atoms()[atom].removable);
        !removable && !self.range(&counterexample).can_be_true
    }

    /// Whether two trees compare a common key, so that asking for implications makes sense.
    pub(crate) fn share_a_key(&self, a: &Node, b: &Node) -> bool {
        let keys = |node: &Node| {
            let mut atoms = BTreeSet::new();
            collect(node, &mut atoms);
            let left = |&atom: &usize| match self.program.atoms()[atom].left {
                Source::Key(key) => (0, key.0),
                Source::Slot(slot, _) => (1, slot.0),
            };
            atoms.iter().map(left).collect::<BTreeSet<_>>()
        };
        !keys(a).is_disjoint(&keys(b))
    }

    fn range_where(&self, node: &Node, keep: impl Fn(usize) -> bool) -> Option<Range> {
        let mut atoms = BTreeSet::new();
        collect(node, &mut atoms);
        let mut variables = Vec::new();
        let mut combinations: usize = 1;
        for &atom in &atoms {
            let known = &self.program.atoms()[atom];
            let variable = match (&self.tables[atom], decidable_key(known)) {
                (Some(table), Some(key)) => {
                    let seen = |variable: &Variable| matches!(variable, Variable::Key { key: k, .. } if *k == key);
                    if variables.iter().any(seen) {
                        continue;
                    }
                    Variable::Key { key, samples: table.len() }
                }
                _ if known.removable => {
                    Variable::Free { atom, outcomes: &[Outcome::False, Outcome::True, Outcome::Removed] }
                }
                _ => Variable::Free { atom, outcomes: &[Outcome::False, Outcome::True] },
            };
            let size = match &variable {
                Variable::Key { samples, .. } => *samples,
                Variable::Free { outcomes, .. } => outcomes.len(),
            };
            combinations = combinations.checked_mul(size).filter(|count| *count <= COMBINATIONS_MAX)?;
            variables.push(variable);
        }
        // One try looks every comparison up among the variables.
        let cost = combinations.saturating_mul(atoms.len().max(1)).saturating_mul(variables.len().max(1));
        self.work.set(self.work.get().checked_sub(cost)?);
        let mut chosen = vec![0; variables.len()];
        let mut range = Range { can_be_true: false, can_be_false: false };
        loop {
            let mut kept = true;
            for (variable, choice) in variables.iter().zip(&chosen) {
                kept &= matches!(variable, Variable::Free { .. }) || keep(*choice);
            }
            if kept {
                match node.combine(&mut |atom| self.outcome(atom, &variables, &chosen)).unwrap_or(true) {
                    true => range.can_be_true = true,
                    false => range.can_be_false = true,
                }
                if range == ANYTHING {
                    return Some(range);
                }
            }
            if !advance(&mut chosen, &variables) {
                return Some(range);
            }
        }
    }

    fn outcome(&self, atom: usize, variables: &[Variable], chosen: &[usize]) -> Outcome {
        let key = decidable_key(&self.program.atoms()[atom]);
        for (variable, &choice) in variables.iter().zip(chosen) {
            match variable {
                Variable::Free { atom: free, outcomes } if *free == atom => return outcomes[choice],
                Variable::Key { key: of, .. } if key == Some(*of) => {
                    if let Some(table) = &self.tables[atom] {
                        return table[choice];
                    }
                }
                _ => {}
            }
        }
        Outcome::False
    }
}

fn advance(chosen: &mut [usize], variables: &[Variable]) -> bool {
    for (choice, variable) in chosen.iter_mut().zip(variables) {
        let size = match variable {
            Variable::Key { samples, .. } => *samples,
            Variable::Free { outcomes, .. } => outcomes.len(),
        };
        *choice += 1;
        if *choice < size {
            return true;
        }
        *choice = 0;
    }
    false
}

pub(crate) fn collect(node: &Node, atoms: &mut BTreeSet<usize>) {
    match node {
        Node::Atom(atom) => {
            atoms.insert(*atom);
        }
        Node::Not(inner) => collect(inner, atoms),
        Node::And(children) | Node::Or(children) => children.iter().for_each(|child| collect(child, atoms)),
    }
}

/// The key of a comparison whose classes of values are known: one key against literals, no pattern.
fn decidable_key(atom: &Atom) -> Option<KeyId> {
    let known = match &atom.check {
        Check::Exists | Check::InRange(_) | Check::Never => true,
        Check::Order(_, right) => matches!(right, Right::Literal(_)),
        Check::In { items, .. } => items.iter().all(|item| matches!(item, Right::Literal(_))),
        Check::Like(_) | Check::Matches(_) => false,
    };
    let on_key = matches!(atom.left, Source::Key(_));
    // The original's doubles have classes of their own.
    if known && on_key && !atom.lower && atom.kind != Kind::Java { atom.key() } else { None }
}

enum Sample {
    Missing,
    Value(Parsed),
    Time(i128),
}

impl Sample {
    fn value(&self) -> Option<Value<'_>> {
        match self {
            Sample::Missing => None,
            Sample::Value(parsed) => Some(Value::Parsed(parsed)),
            Sample::Time(nanos) => Some(Value::Time(*nanos)),
        }
    }
}

fn literals<'a>(atoms: &[&'a Atom]) -> Vec<&'a Literal> {
    let mut found = Vec::new();
    for atom in atoms {
        let right: &[Right] = match &atom.check {
            Check::Order(_, right) => std::slice::from_ref(right),
            Check::In { items, .. } => items,
            _ => &[],
        };
        found.extend(right.iter().filter_map(|right| match right {
            Right::Literal(literal) => Some(literal),
            Right::Source(_) => None,
        }));
    }
    found
}

/// A text that is none of the literals.
fn something_else(literals: &[&Literal]) -> String {
    let mut text = "other".to_owned();
    while literals.iter().any(|literal| literal.value.as_text() == text) {
        text.push('~');
    }
    text
}

/// One value of every class that these comparisons of one key tell apart; the first is "missing".
fn samples(atoms: &[&Atom], is_set: bool) -> Option<Vec<Sample>> {
    let kind = atoms.first()?.kind;
    let literals = literals(atoms);
    let other = something_else(&literals);
    let mut samples = vec![Sample::Missing];
    let ranged = atoms.iter().any(|atom| matches!(atom.check, Check::InRange(_)));
    if kind == Kind::Set || is_set {
        let items: BTreeSet<&str> = literals.iter().map(|literal| literal.value.as_text()).collect();
        // A range reads a set's text as one version, which no list shows.
        if items.len() > 8 || ranged {
            return None;
        }
        for chosen in 0..1u32 << items.len() {
            for other in [None, Some(&*other)] {
                let picked =
                    items.iter().enumerate().filter(|(index, _)| chosen >> index & 1 == 1).map(|(_, item)| *item);
                samples.push(Sample::Value(Parsed::list(picked.chain(other).map(Box::from))));
            }
        }
    }
    if kind == Kind::Set {
        return Some(samples);
    }
    let mut texts: BTreeSet<String> = [String::new(), other].into();
    texts.extend(literals.iter().map(|literal| literal.value.as_text().to_owned()));
    if matches!(kind, Kind::Auto | Kind::Number) {
        let numbers = literals.iter().map(|literal| literal.value.as_text().trim());
        number_samples(numbers.filter(|text| Decimal::parse(text).is_some()).collect(), &mut texts);
    }
    if kind == Kind::Version || ranged {
        version_samples(&literals, atoms, &mut texts);
    }
    if let Kind::Time(unit) = kind {
        time_samples(&literals, unit, &mut samples);
    }
    if texts.len() + samples.len() > SAMPLES_MAX {
        return None;
    }
    samples.extend(texts.into_iter().map(|text| Sample::Value(Parsed::text(text))));
    Some(samples)
}

/// The numbers, one below all, one above all, one between each two neighbours, and each written in another way.
fn number_samples(mut numbers: Vec<&str>, texts: &mut BTreeSet<String>) {
    let order = |a: &&str, b: &&str| crate::decimal::compare(a, b).unwrap_or(Ordering::Equal);
    numbers.sort_by(order);
    let longest = numbers.iter().map(|text| text.len()).max().unwrap_or(0);
    let far = format!("1{}", "0".repeat(longest));
    let near = "0".repeat(longest) + "1";
    // A little further from zero than the number.
    let beyond = |text: &str| format!("{text}{}{near}", if text.contains('.') { "" } else { "." });
    let sign = |text: &str| crate::decimal::compare(text, "0").unwrap_or(Ordering::Equal);
    texts.insert(format!("-{far}"));
    texts.insert(far);
    texts.insert("0".to_owned());
    for (index, number) in numbers.iter().enumerate() {
        let other_spelling = if number.contains('.') { format!("{number}0") } else { format!("{number}.0") };
        texts.insert(other_spelling);
        let Some(next) = numbers.get(index + 1) else { continue };
        match (sign(number), sign(next)) {
            (Ordering::Less, Ordering::Greater) => {}
            (Ordering::Less, Ordering::Equal) => {
                texts.insert(format!("-0.{near}"));
            }
            (Ordering::Less, _) => {
                texts.insert(beyond(next));
            }
            _ => {
                texts.insert(beyond(number));
            }
        }
    }
}

/// The versions and the closest ones above each, so that every gap between neighbours has one.
fn version_samples(literals: &[&Literal], atoms: &[&Atom], texts: &mut BTreeSet<String>) {
    let mut around = |version: &Version<'_>| {
        let [a, b, c, d] = version.parts();
        texts.insert(format!("{a}.{b}.{c}.{d}-0"));
        texts.insert(format!("{a}.{b}.{c}.{d}"));
        texts.insert(format!("{a}.{b}.{c}.{}-0", d.saturating_add(1)));
        texts.insert(format!("{}.{b}", a.saturating_add(1)));
        if version.is_prerelease() {
            texts.insert(format!("{a}.{b}.{c}.{d}-{}.0", version.prerelease()));
        }
    };
    for literal in literals {
        if let Some(version) = Version::parse(literal.value.as_text().trim()) {
            around(&version);
        }
    }
    for atom in atoms {
        if let Check::InRange(range) = &atom.check {
            around(&range.lower());
            let [a, b, c, d] = range.upper();
            if let Some(upper) = Version::parse(&format!("{a}.{b}.{c}.{d}")) {
                around(&upper);
            }
        }
    }
    texts.insert("0-0".to_owned());
}

fn time_samples(literals: &[&Literal], unit: TimeUnit, samples: &mut Vec<Sample>) {
    for literal in literals {
        if let Some(nanos) = Value::Parsed(&literal.value).time(unit) {
            for near in [nanos.saturating_sub(1), nanos, nanos.saturating_add(1)] {
                samples.push(Sample::Time(near));
            }
        }
    }
}
