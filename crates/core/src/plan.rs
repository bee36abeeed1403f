//! A rule set compiled against one caller.
//!
//! Everything that does not depend on the request becomes a *fixed* bitset, kept up to date as instances change: whole
//! filters where possible, single comparisons ("atoms") otherwise, shared by all rules that contain them. What does
//! depend on the request stays a program over the columns.

use std::collections::BTreeMap;
use std::sync::Arc;

use metaroute_expr::{
    Atom, BindError, Context as SlotValues, Expr, KeyId, KeyTable, Outcome, Program, Schema, SlotId, SlotScope,
};
use rustc_hash::FxHashMap;

use crate::extension::{Balancer, Extensions, Router};
use crate::request::{Context, RequestSlot};
use crate::rules::{Balance, Fallback, Filter, MinUsable, Mode, Profile, Rule, RuleSet, Terminal};

/// Why a rule set cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// An expression does not bind.
    #[error("rule `{rule}`")]
    Bind {
        /// Name of the rule.
        rule: String,
        /// What is wrong.
        #[source]
        source: BindError,
    },
    /// `when` reads instance metadata.
    #[error("rule `{rule}`: `when` may read $caller and $req only, `{key}` is a key of the instances")]
    WhenReadsInstance {
        /// Name of the rule.
        rule: String,
        /// The offending key.
        key: String,
    },
    /// No router of this name is registered.
    #[error("rule `{rule}`: no router `{router}` is registered")]
    UnknownRouter {
        /// Name of the rule.
        rule: String,
        /// Name of the router.
        router: String,
    },
    /// A router refused its configuration.
    #[error("rule `{rule}`: router `{router}`: {message}")]
    Router {
        /// Name of the rule.
        rule: String,
        /// Name of the router.
        router: String,
        /// What it said.
        message: String,
    },
    /// No balancer of this name is registered.
    #[error("no balancer `{0}` is registered")]
    UnknownBalancer(String),
    /// A number is out of its range.
    #[error("{option} is {value}, expected {expected}")]
    OutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
}

/// Where the value of a slot comes from.
#[derive(Clone, Debug)]
enum Source {
    Caller(Option<Box<str>>),
    Request(RequestSlot),
}

/// A compiled rule set.
pub(crate) struct Plan {
    pub(crate) set: RuleSet,
    pub(crate) caller: BTreeMap<String, String>,
    pub(crate) keys: KeyTable,
    sources: Vec<Source>,
    pub(crate) steps: Vec<Step>,
    /// Comparisons kept as fixed bitsets.
    pub(crate) atoms: Vec<Atom>,
    /// Filters kept as fixed bitsets.
    pub(crate) fixed: Vec<Fixed>,
    /// Request values that change the answer; empty when one answer serves all requests.
    pub(crate) reads: Vec<RequestSlot>,
    /// Instance keys that are compared with request values.
    pub(crate) request_keys: Vec<KeyId>,
    pub(crate) balancer: Option<Arc<dyn Balancer>>,
    /// Index of the last step that isolates: what passes it may own a session.
    pub(crate) last_isolation: Option<usize>,
}

/// One rule in execution order.
pub(crate) struct Step {
    /// Index in the rule set as written.
    pub(crate) rule: usize,
    pub(crate) when: When,
    pub(crate) filter: Selection,
    pub(crate) fallbacks: Vec<Selection>,
    pub(crate) min: MinUsable,
    pub(crate) terminal: Terminal,
    pub(crate) isolates: bool,
}

pub(crate) enum When {
    Always,
    Never,
    Request(Program),
}

pub(crate) enum Selection {
    /// A fixed bitset.
    Fixed(usize),
    /// Depends on the request. `atoms[i]` says where atom i of the program is found.
    Request { program: Program, atoms: Vec<AtomSource> },
    /// Asked per candidate set.
    Custom(Arc<dyn Router>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum AtomSource {
    /// Number of a fixed atom.
    Fixed(usize),
    /// Must be tested with the request's values.
    Request,
    /// Left out of the expression: by `drop_keys`, or because the caller lacks an optional value.
    Dropped,
}

/// A filter that does not depend on the request.
pub(crate) enum Fixed {
    Program { program: Program, atoms: Vec<AtomSource> },
    Lacking { keys: Vec<KeyId>, all: bool },
}

/// Request slots by name, stable over rule reloads so that callers may keep them.
#[derive(Debug, Default)]
pub(crate) struct RequestSlots {
    names: Vec<Box<str>>,
    index: FxHashMap<Box<str>, RequestSlot>,
}

impl RequestSlots {
    pub(crate) fn find(&self, name: &str) -> Option<RequestSlot> {
        self.index.get(name).copied()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, RequestSlot)> {
        self.names.iter().enumerate().map(|(at, name)| (&**name, RequestSlot(at as u32)))
    }

    fn intern(&mut self, name: &str) -> RequestSlot {
        if let Some(slot) = self.find(name) {
            return slot;
        }
        let slot = RequestSlot(self.names.len() as u32);
        self.names.push(name.into());
        self.index.insert(name.into(), slot);
        slot
    }
}

/// The caller's values alone; request slots read as absent.
struct CallerOnly<'a>(&'a [Source]);

impl SlotValues for CallerOnly<'_> {
    fn get(&self, slot: SlotId) -> Option<&str> {
        match self.0.get(slot.0 as usize)? {
            Source::Caller(value) => value.as_deref(),
            Source::Request(_) => None,
        }
    }
}

/// The caller's values and one request's.
pub(crate) struct Values<'a, C: ?Sized> {
    plan: &'a Plan,
    request: &'a C,
}

impl<C: Context + ?Sized> SlotValues for Values<'_, C> {
    fn get(&self, slot: SlotId) -> Option<&str> {
        match self.plan.sources.get(slot.0 as usize)? {
            Source::Caller(value) => value.as_deref(),
            Source::Request(slot) => self.request.get(*slot),
        }
    }
}

impl Plan {
    pub(crate) fn compile(
        set: RuleSet,
        caller: BTreeMap<String, String>,
        extensions: &Extensions,
        slots: &mut RequestSlots,
    ) -> Result<Self, RuleError> {
        check_ranges(&set)?;
        let balancer = match &set.balance {
            Balance::Custom(name) => {
                let found = extensions.balancers.get(name).cloned();
                Some(found.ok_or_else(|| RuleError::UnknownBalancer(name.clone()))?)
            }
            _ => None,
        };
        let mut compiler = Compiler {
            keys: KeyTable::new(set.types.clone()),
            caller: &caller,
            slots,
            sources: Vec::new(),
            atoms: Vec::new(),
            index: FxHashMap::default(),
            fixed: Vec::new(),
            reads: Vec::new(),
            request_keys: Vec::new(),
        };
        let mut order: Vec<usize> = (0..set.rules.len()).collect();
        if set.profile == Profile::Strict {
            order.sort_by_key(|&rule| set.rules[rule].mode == Mode::Prefer);
        }
        let mut steps = Vec::with_capacity(order.len());
        for rule in order {
            steps.push(compiler.step(rule, &set.rules[rule], set.profile, extensions)?);
        }
        let Compiler { keys, sources, atoms, fixed, reads, request_keys, .. } = compiler;
        let last_isolation = steps.iter().rposition(|step| step.isolates);
        Ok(Self { set, caller, keys, sources, steps, atoms, fixed, reads, request_keys, balancer, last_isolation })
    }

    /// The caller's own value of a key, when it is not blank.
    pub(crate) fn own(&self, key: &str) -> Option<&str> {
        self.caller.get(key).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// Slot values for a request.
    pub(crate) fn values<'a, C: Context + ?Sized>(&'a self, request: &'a C) -> Values<'a, C> {
        Values { plan: self, request }
    }

    /// Slot values without a request.
    pub(crate) fn caller_values(&self) -> impl SlotValues + '_ {
        CallerOnly(&self.sources)
    }

    /// Whether every request gets the same candidates.
    pub(crate) fn is_fixed(&self) -> bool {
        self.reads.is_empty()
    }
}

/// Most rules of a set and most fallbacks of a rule.
const RULES_MAX: usize = 1024;

fn check_ranges(set: &RuleSet) -> Result<(), RuleError> {
    let out = |option, value: f64, expected| Err(RuleError::OutOfRange { option, value: value.to_string(), expected });
    if let Some(panic) = set.panic
        && !(0.0..=1.0).contains(&panic)
    {
        return out("panic", panic, "0 % to 100 %");
    }
    if let Some(zone) = &set.prefer.zone {
        if !(zone.overflow >= 1.0 && zone.overflow.is_finite()) {
            return out("prefer.zone.overflow", zone.overflow, "a factor of at least 1");
        }
        if let Some(weight) = zone.weights.values().find(|w| !(w.is_finite() && **w >= 0.0)) {
            return out("prefer.zone.weights", *weight, "a weight of at least 0");
        }
    }
    if let Some(bound) = set.hash.bounded_load
        && !(bound > 1.0 && bound.is_finite())
    {
        return out("hash.bounded_load", bound, "a factor above 1");
    }
    if set.hash.seata_virtual_nodes == 0 || set.hash.seata_virtual_nodes > 10_000 {
        return out("hash.seata_virtual_nodes", f64::from(set.hash.seata_virtual_nodes), "1 to 10000");
    }
    if let Some(warmup) = &set.warmup {
        if warmup.window.is_zero() {
            return out("warmup.window", 0.0, "a duration above 0");
        }
        if !(warmup.floor > 0.0 && warmup.floor <= 1.0) {
            return out("warmup.min", warmup.floor, "above 0 % and at most 100 %");
        }
        if !(warmup.aggression > 0.0 && warmup.aggression.is_finite()) {
            return out("warmup.aggression", warmup.aggression, "a number above 0");
        }
    }
    if set.rules.len() > RULES_MAX {
        return out("rules", set.rules.len() as f64, "at most 1024 rules");
    }
    for rule in &set.rules {
        if rule.on_empty.len() > RULES_MAX {
            return out("on_empty", rule.on_empty.len() as f64, "at most 1024 fallbacks");
        }
        if let MinUsable::Percent(percent) = rule.min_usable
            && !(0.0..=100.0).contains(&percent)
        {
            return out("min_usable", percent, "0 % to 100 %");
        }
    }
    Ok(())
}

struct Compiler<'a> {
    keys: KeyTable,
    caller: &'a BTreeMap<String, String>,
    slots: &'a mut RequestSlots,
    sources: Vec<Source>,
    atoms: Vec<Atom>,
    index: FxHashMap<Atom, usize>,
    fixed: Vec<Fixed>,
    reads: Vec<RequestSlot>,
    request_keys: Vec<KeyId>,
}

impl Compiler<'_> {
    fn step(&mut self, rule: usize, from: &Rule, profile: Profile, extensions: &Extensions) -> Result<Step, RuleError> {
        let when = match &from.when {
            None => When::Always,
            Some(expr) => self.when(&from.name, expr)?,
        };
        let filter = match &from.filter {
            Filter::Match(expr) => self.selection(&from.name, expr, &[])?,
            Filter::Custom { router, config } => {
                let factory = extensions
                    .routers
                    .get(router)
                    .ok_or_else(|| RuleError::UnknownRouter { rule: from.name.clone(), router: router.clone() })?;
                Selection::Custom(factory(router, config).map_err(|message| RuleError::Router {
                    rule: from.name.clone(),
                    router: router.clone(),
                    message,
                })?)
            }
        };
        let mut fallbacks = Vec::with_capacity(from.on_empty.len());
        for fallback in &from.on_empty {
            fallbacks.push(match (fallback, &from.filter) {
                (Fallback::Match(expr), _) => self.selection(&from.name, expr, &[])?,
                (Fallback::DropKeys(keys), Filter::Match(expr)) => self.selection(&from.name, expr, keys)?,
                // A custom router has no comparisons to drop: nothing is left of it.
                (Fallback::DropKeys(_), Filter::Custom { .. }) => self.lacking(&[], true),
                (Fallback::LackingAll(keys), _) => self.lacking(keys, true),
                (Fallback::LackingAny(keys), _) => self.lacking(keys, false),
            });
        }
        let terminal = from.terminal.unwrap_or(Terminal::Fail);
        let isolates = match profile {
            Profile::Strict => from.mode == Mode::Must,
            Profile::Seata => terminal == Terminal::Fail,
        };
        Ok(Step { rule, when, filter, fallbacks, min: from.min_usable, terminal, isolates })
    }

    fn bind(&mut self, rule: &str, expr: &Expr) -> Result<Program, RuleError> {
        let program = expr.bind(&mut self.keys).map_err(|source| RuleError::Bind { rule: rule.to_owned(), source })?;
        for (scope, name) in &self.keys.slots()[self.sources.len()..] {
            self.sources.push(match scope {
                SlotScope::Caller => Source::Caller(self.caller.get(&**name).map(|value| value.as_str().into())),
                SlotScope::Request => Source::Request(self.slots.intern(name)),
            });
        }
        Ok(program)
    }

    fn request_slot(&self, slot: SlotId) -> Option<RequestSlot> {
        match self.sources.get(slot.0 as usize) {
            Some(Source::Request(slot)) => Some(*slot),
            _ => None,
        }
    }

    /// Notes the request values a program reads; whether there are any.
    fn note_reads(&mut self, program: &Program) -> bool {
        let reads: Vec<RequestSlot> = program.slots().filter_map(|slot| self.request_slot(slot)).collect();
        for &slot in &reads {
            if !self.reads.contains(&slot) {
                self.reads.push(slot);
            }
        }
        !reads.is_empty()
    }

    fn when(&mut self, rule: &str, expr: &Expr) -> Result<When, RuleError> {
        if let Some(key) = expr.keys().next() {
            return Err(RuleError::WhenReadsInstance { rule: rule.to_owned(), key: key.to_owned() });
        }
        let program = self.bind(rule, expr)?;
        if self.note_reads(&program) {
            return Ok(When::Request(program));
        }
        Ok(if program.eval(&(), &CallerOnly(&self.sources)) { When::Always } else { When::Never })
    }

    fn selection(&mut self, rule: &str, expr: &Expr, dropped: &[String]) -> Result<Selection, RuleError> {
        let program = self.bind(rule, expr)?;
        let dropped: Vec<KeyId> = dropped.iter().filter_map(|name| self.keys.key_id(name)).collect();
        let mut atoms = Vec::with_capacity(program.atoms().len());
        for atom in program.atoms() {
            atoms.push(if atom.key().is_some_and(|key| dropped.contains(&key)) {
                AtomSource::Dropped
            } else if atom.slots().any(|slot| self.request_slot(slot).is_some()) {
                self.request_keys.extend(atom.key().filter(|key| !self.request_keys.contains(key)));
                AtomSource::Request
            } else if atom.is_removed(&CallerOnly(&self.sources)) {
                AtomSource::Dropped
            } else {
                let next = self.atoms.len();
                let number = *self.index.entry(atom.clone()).or_insert(next);
                if number == next {
                    self.atoms.push(atom.clone());
                }
                AtomSource::Fixed(number)
            });
        }
        if atoms.iter().any(|atom| matches!(atom, AtomSource::Request)) {
            self.note_reads(&program);
            return Ok(Selection::Request { program, atoms });
        }
        self.fixed.push(Fixed::Program { program, atoms });
        Ok(Selection::Fixed(self.fixed.len() - 1))
    }

    fn lacking(&mut self, keys: &[String], all: bool) -> Selection {
        let keys = keys.iter().map(|key| self.keys.key(key).expect("instances have every key")).collect();
        self.fixed.push(Fixed::Lacking { keys, all });
        Selection::Fixed(self.fixed.len() - 1)
    }
}

impl Fixed {
    /// Whether one slot passes, given its fixed atoms and which of its keys are present.
    pub(crate) fn test(&self, atom: impl Fn(usize) -> bool, present: impl Fn(KeyId) -> bool) -> bool {
        match self {
            Self::Program { program, atoms } => program
                .root()
                .combine(&mut |i| match atoms[i] {
                    AtomSource::Fixed(number) if atom(number) => Outcome::True,
                    AtomSource::Fixed(_) => Outcome::False,
                    AtomSource::Request | AtomSource::Dropped => Outcome::Removed,
                })
                .unwrap_or(true),
            Self::Lacking { keys, all: true } => !keys.iter().any(|&key| present(key)),
            Self::Lacking { keys, all: false } => keys.is_empty() || keys.iter().any(|&key| !present(key)),
        }
    }
}
