//! One comparison, and how two values are compared.
//!
//! Everything about types is decided here and only here: which form of a value a comparison asks for, what it falls back
//! to, and what a missing value means. Values that need no printing are compared without touching memory besides them.

use std::cmp::Ordering;

use crate::ast::{Literal, Order};
use crate::java;
use crate::pattern::{Glob, Pattern};
use crate::schema::{Context, KeyId, Record, SlotId};
use crate::types::{TimeUnit, Type};
use crate::value::{Text, TextBuffer, Value};
use crate::version::Range;

/// What testing an atom says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It does not hold, or something it reads is missing.
    False,
    /// It holds.
    True,
    /// It reads an optional value (`$req.k?`) that is absent: it is dropped from its parent.
    Removed,
}

impl From<bool> for Outcome {
    fn from(value: bool) -> Self {
        if value { Outcome::True } else { Outcome::False }
    }
}

impl Outcome {
    pub(crate) fn known(self) -> Option<bool> {
        match self {
            Outcome::False => Some(false),
            Outcome::True => Some(true),
            Outcome::Removed => None,
        }
    }
}

/// How two values are compared; follows from the left side alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Undeclared: as numbers where both sides are, else as text.
    Auto,
    Text,
    Number,
    Version,
    Set,
    Time(TimeUnit),
    /// Dialect `seata`: as Java doubles where both sides are, else as text.
    Java,
}

impl From<Type> for Kind {
    fn from(declared: Type) -> Self {
        match declared {
            Type::Version => Kind::Version,
            Type::Number => Kind::Number,
            Type::Text | Type::Bool => Kind::Text,
            Type::Set => Kind::Set,
            Type::Time(unit) => Kind::Time(unit),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    Key(KeyId),
    Slot(SlotId, /* optional */ bool),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Right {
    Literal(Literal),
    Source(Source),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Check {
    Exists,
    Order(Order, Right),
    In { negated: bool, items: Box<[Right]> },
    Like(Glob),
    Matches(Pattern),
    InRange(Range),
    Never,
}

/// One comparison. Equal atoms of programs bound to the same schema give equal outcomes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Atom {
    pub(crate) left: Source,
    pub(crate) lower: bool,
    pub(crate) kind: Kind,
    pub(crate) check: Check,
    /// Whether any slot it reads is optional.
    pub(crate) removable: bool,
    /// The one record key it reads, if there is exactly one.
    pub(crate) key: Option<KeyId>,
}

impl Atom {
    pub(crate) fn new(left: Source, lower: bool, kind: Kind, check: Check) -> Self {
        let atom = Atom { left, lower, kind, check, removable: false, key: None };
        let removable = atom.sources().any(|source| matches!(source, Source::Slot(_, true)));
        let first = atom.keys().next();
        let key = first.filter(|first| atom.keys().all(|key| key == *first));
        Atom { removable, key, ..atom }
    }

    /// The record key it reads, where that is exactly one (besides any slots): then [`test_value`](Self::test_value)
    /// can be asked once per distinct value.
    pub fn key(&self) -> Option<KeyId> {
        self.key
    }

    /// The caller's and request's values it reads, in order, perhaps repeated.
    pub fn slots(&self) -> impl Iterator<Item = SlotId> {
        self.sources().filter_map(|source| match source {
            Source::Slot(slot, _) => Some(slot),
            Source::Key(_) => None,
        })
    }

    /// Operator and literal, where the comparison is `key operator literal` with one of `==` to `<=`: what a planner needs
    /// to turn a comparison on a sorted column into a place to start.
    ///
    /// ```
    /// use metaroute_expr::{Expr, KeyTable, Order};
    ///
    /// let program = Expr::parse("size > 10")?.bind(&mut KeyTable::default())?;
    /// let (order, literal) = program.atoms()[0].against_literal().unwrap();
    /// assert_eq!((order, literal.to_string()), (Order::Gt, "10".to_owned()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn against_literal(&self) -> Option<(Order, Value<'_>)> {
        match (&self.check, self.left) {
            (Check::Order(order, Right::Literal(literal)), Source::Key(_)) if !self.lower => {
                Some((*order, Value::Parsed(&literal.value)))
            }
            _ => None,
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.sources().filter_map(|source| match source {
            Source::Key(key) => Some(key),
            Source::Slot(..) => None,
        })
    }

    pub(crate) fn sources(&self) -> impl Iterator<Item = Source> {
        let right: &[Right] = match &self.check {
            Check::Order(_, right) => std::slice::from_ref(right),
            Check::In { items, .. } => items,
            _ => &[],
        };
        let right = right.iter().filter_map(|right| match right {
            Right::Source(source) => Some(*source),
            Right::Literal(_) => None,
        });
        std::iter::once(self.left).chain(right)
    }

    /// Tests the comparison on one record.
    pub fn test<R: Record + ?Sized, C: Context + ?Sized>(&self, record: &R, context: &C) -> Outcome {
        self.run(|key| record.get(key), context)
    }

    /// Tests the comparison on one value of its [`key`](Self::key); `None` stands for a missing key.
    ///
    /// For an atom that reads no key the value is not looked at; for one that reads several it stands for each.
    pub fn test_value<C: Context + ?Sized>(&self, value: Option<Value<'_>>, context: &C) -> Outcome {
        self.run(|_| value, context)
    }

    /// Whether an optional value it reads is absent, so that it drops out whatever the record says.
    pub fn is_removed<C: Context + ?Sized>(&self, context: &C) -> bool {
        self.removable
            && self.sources().any(|source| match source {
                Source::Slot(slot, true) => context.get(slot).is_none(),
                _ => false,
            })
    }

    fn run<'v, C: Context + ?Sized>(&'v self, get: impl Fn(KeyId) -> Option<Value<'v>>, context: &'v C) -> Outcome {
        if self.is_removed(context) {
            return Outcome::Removed;
        }
        let read = |source: Source| match source {
            Source::Key(key) => get(key),
            Source::Slot(slot, _) => context.get(slot).map(Value::Text),
        };
        let Some(left) = read(self.left) else { return Outcome::False };
        Outcome::from(self.check(left, read))
    }

    /// The comparison with its left value present. A missing value on the right makes it false, as on the left.
    fn check<'v>(&'v self, left: Value<'v>, read: impl Fn(Source) -> Option<Value<'v>>) -> bool {
        let right = |right: &'v Right| match right {
            Right::Literal(literal) => Some((Value::Parsed(&literal.value), literal.quoted)),
            Right::Source(source) => read(*source).map(|value| (value, false)),
        };
        match &self.check {
            Check::Exists => true,
            Check::Order(order, other) => {
                right(other).is_some_and(|(value, quoted)| self.compare(*order, left, value, quoted))
            }
            Check::In { negated, items } => {
                let mut found = false;
                for item in items {
                    let Some((value, quoted)) = right(item) else { return false };
                    found = found || self.compare(Order::Eq, left, value, quoted);
                }
                found != *negated
            }
            Check::Like(glob) => self.any_text(left, |text| glob.matches(text, self.lower)),
            Check::Matches(pattern) => self.any_text(left, |text| pattern.matches(text, self.lower)),
            Check::InRange(range) => {
                let version = match left.ready_version() {
                    Ok(version) if !self.lower => version,
                    _ => return in_range_printed(left, self.lower, range),
                };
                version.is_some_and(|version| range.contains(&version))
            }
            Check::Never => false,
        }
    }

    /// The type of the comparison; a list is a set and a time is a time whatever was declared.
    fn kind_for(&self, left: Value<'_>) -> Kind {
        match left {
            _ if self.kind == Kind::Java => Kind::Java,
            _ if left.as_list().is_some() => Kind::Set,
            Value::Time(_) if !matches!(self.kind, Kind::Time(_) | Kind::Set) => Kind::Time(TimeUnit::Rfc3339),
            _ => self.kind,
        }
    }

    fn any_text(&self, left: Value<'_>, mut test: impl FnMut(Text<'_>) -> bool) -> bool {
        match left.as_str() {
            _ if self.kind_for(left) == Kind::Set => elements(left, test),
            Some(text) => test(Text::Str(text)),
            None => test(left.to_text(&mut TextBuffer::new())),
        }
    }

    fn compare(&self, order: Order, left: Value<'_>, right: Value<'_>, quoted: bool) -> bool {
        let ordering = match self.kind_for(left) {
            Kind::Set => {
                if order.is_ordered() {
                    return false;
                }
                return self.contains(left, right) == (order == Order::Eq);
            }
            Kind::Java => match (left.double(), right.double()) {
                (Some(left), Some(right)) => {
                    return match order {
                        Order::Eq => java::equal(left, right),
                        Order::Ne => !java::equal(left, right),
                        Order::Gt => left > right,
                        Order::Ge => left >= right,
                        Order::Lt => left < right,
                        Order::Le => left <= right,
                    };
                }
                _ => match left.as_list() {
                    // The original compares the list's printed form, and no value it reads contains a space.
                    Some(items) => {
                        let same = right.as_str().is_some_and(|text| is_printed_list(items, text));
                        return !order.is_ordered() && same == (order == Order::Eq);
                    }
                    None => None,
                },
            },
            Kind::Text => None,
            Kind::Auto if quoted => None,
            Kind::Auto | Kind::Number => numbers(left, right),
            Kind::Version => versions(left, right, self.lower),
            Kind::Time(unit) => match right.time(unit) {
                Some(right) => left.time(unit).map(|left| left.cmp(&right)),
                None => None,
            },
        };
        match (order, ordering) {
            (Order::Eq, Some(ordering)) => ordering.is_eq(),
            (Order::Ne, Some(ordering)) => ordering.is_ne(),
            (Order::Gt, Some(ordering)) => ordering.is_gt(),
            (Order::Ge, Some(ordering)) => ordering.is_ge(),
            (Order::Lt, Some(ordering)) => ordering.is_lt(),
            (Order::Le, Some(ordering)) => ordering.is_le(),
            (Order::Eq, None) => texts(left, right, self.lower),
            (Order::Ne, None) => !texts(left, right, self.lower),
            (_, None) => false,
        }
    }

    fn contains(&self, set: Value<'_>, wanted: Value<'_>) -> bool {
        let mut buffer = TextBuffer::new();
        let wanted = wanted.to_text(&mut buffer);
        elements(set, |element| same_text(element, wanted, self.lower))
    }
}

/// Both sides as numbers. The right side first: it is usually a literal that was parsed beforehand and is no number.
///
/// A value without text (a large integer, a float) is printed into a buffer on the stack. Clearing that buffer costs
/// more than most comparisons, so it lives in functions of its own, here and below.
fn numbers(left: Value<'_>, right: Value<'_>) -> Option<Ordering> {
    let Ok(right_number) = right.ready_number() else { return printed_numbers(left, right) };
    let right_number = right_number?;
    match left.ready_number() {
        Ok(left) => Some(left?.cmp(&right_number)),
        Err(_) => printed_numbers(left, right),
    }
}

#[inline(never)]
fn printed_numbers(left: Value<'_>, right: Value<'_>) -> Option<Ordering> {
    Some(left.number(&mut TextBuffer::new())?.cmp(&right.number(&mut TextBuffer::new())?))
}

fn versions(left: Value<'_>, right: Value<'_>, lower: bool) -> Option<Ordering> {
    if lower {
        return printed_versions(left, right, lower);
    }
    if let Some(ordering) = left.cmp_parsed_versions(right) {
        return Some(ordering);
    }
    let Ok(right_version) = right.ready_version() else { return printed_versions(left, right, lower) };
    let right_version = right_version?;
    match left.ready_version() {
        Ok(left) => Some(left?.cmp(&right_version)),
        Err(_) => printed_versions(left, right, lower),
    }
}

#[inline(never)]
fn printed_versions(left: Value<'_>, right: Value<'_>, lower: bool) -> Option<Ordering> {
    Some(left.version(lower, &mut TextBuffer::new())?.cmp(&right.version(false, &mut TextBuffer::new())?))
}

fn texts(left: Value<'_>, right: Value<'_>, lower: bool) -> bool {
    match (left.as_str(), right.as_str()) {
        (Some(left), Some(right)) if !lower => left == right,
        _ => printed_texts(left, right, lower),
    }
}

#[inline(never)]
fn in_range_printed(left: Value<'_>, lower: bool, range: &Range) -> bool {
    left.version(lower, &mut TextBuffer::new()).is_some_and(|version| range.contains(&version))
}

#[inline(never)]
fn printed_texts(left: Value<'_>, right: Value<'_>, lower: bool) -> bool {
    same_text(left.to_text(&mut TextBuffer::new()), right.to_text(&mut TextBuffer::new()), lower)
}

/// Whether `test` holds for any element of a set: an item of a list, or a trimmed piece of a comma-separated text.
/// Empty pieces are no elements.
fn elements(set: Value<'_>, mut test: impl FnMut(Text<'_>) -> bool) -> bool {
    if let Some(items) = set.as_list() {
        return items.iter().any(|item| test(Text::Str(item)));
    }
    let mut buffer = None;
    let text = match set.as_str() {
        Some(text) => Text::Str(text),
        None => set.to_text(buffer.insert(TextBuffer::new())),
    };
    match text {
        Text::Str(text) => text.split(',').map(str::trim).any(|piece| !piece.is_empty() && test(Text::Str(piece))),
        bytes @ Text::Bytes(_) => test(bytes),
    }
}

/// Whether a text without spaces is what Java prints for a list: `[a]`; longer ones have spaces.
fn is_printed_list(items: &[Box<str>], text: &str) -> bool {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match items {
        [] => inner == Some(""),
        [only] => inner == Some(&**only),
        _ => false,
    }
}

fn same_text(left: Text<'_>, right: Text<'_>, lower: bool) -> bool {
    match (left, right) {
        (Text::Str(left), Text::Str(right)) if !lower => left == right,
        _ if lower => left.chars().flat_map(char::to_lowercase).eq(right.chars()),
        _ => left.chars().eq(right.chars()),
    }
}
