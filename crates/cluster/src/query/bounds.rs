//! Bounds on the time column inside a `where` expression.
//!
//! `where: created_at >= "2026-01-01" && size > 10` should cost no more than the same bound given as `from`: the listing
//! is ordered by time, so a bound is a place to start, while a filter is read row by row. Only comparisons that must all
//! hold (the top-level conjuncts) count. The filter stays in force as it is, so a bound that is missed costs time, never
//! a row; one that is taken is first checked against the very comparison it came from.

use metaroute_expr::{Node, Outcome, Program};
use metaroute_store::{ColumnType, Schema, TimeKey, Value};
use serde::Serialize;

/// What `where` says about the time column.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FoundBounds {
    /// Earliest time, inclusive.
    #[serde(skip)]
    pub from: Option<TimeKey>,
    /// Latest time, exclusive.
    #[serde(skip)]
    pub to: Option<TimeKey>,
    /// The comparisons they came from, as written in canonical form.
    pub comparisons: Vec<String>,
}

pub(super) fn find(store: &Schema, program: &Program) -> FoundBounds {
    let mut found = FoundBounds::default();
    let Some(time) = store.time() else { return found };
    let column = &store.columns()[time];
    let root = program.root();
    let conjuncts = match root {
        Node::And(children) => children,
        one => std::slice::from_ref(one),
    };
    for node in conjuncts {
        let Node::Atom(atom) = node else { continue };
        if program.atoms()[*atom].key().is_none_or(|key| key.0 as usize != time) {
            continue;
        }
        let text = program.atom_text(*atom);
        // The column goes by its name or by what it is.
        let Some((operator, literal)) = split(text, &column.name).or_else(|| split(text, "time")) else { continue };
        let Some(at) = key_of(column.ty, literal) else { continue };
        let holds = |key: u64| {
            let value = TimeKey(key).to_value(column.ty);
            let value = as_expr(&value);
            value.is_some_and(|value| program.atoms()[*atom].test_value(Some(value), &()) == Outcome::True)
        };
        // The comparison must flip exactly where the bound says; a literal finer than the column is left alone.
        let before = at.0.checked_sub(1);
        let after = at.0.checked_add(1);
        let (from, to) = match operator {
            ">=" if holds(at.0) && !before.is_some_and(holds) => (Some(at), None),
            ">" if !holds(at.0) && after.is_some_and(holds) => (after.map(TimeKey), None),
            "<" if !holds(at.0) && before.is_some_and(holds) => (None, Some(at)),
            "<=" if holds(at.0) && !after.is_some_and(holds) => (None, after.map(TimeKey)),
            "==" if holds(at.0) && !before.is_some_and(holds) && !after.is_some_and(holds) => {
                (Some(at), after.map(TimeKey))
            }
            _ => continue,
        };
        if from.is_none() && to.is_none() {
            continue;
        }
        found.from = found.from.max(from);
        found.to = match (found.to, to) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        found.comparisons.push(text.to_owned());
    }
    found
}

/// Operator and literal of `column operator literal`.
fn split<'t>(text: &'t str, column: &str) -> Option<(&'t str, &'t str)> {
    let rest = match text.strip_prefix('`') {
        Some(quoted) => quoted.strip_prefix(column)?.strip_prefix('`')?,
        None => text.strip_prefix(column)?,
    };
    rest.strip_prefix(' ')?.split_once(' ')
}

/// The literal as a place on the column's axis.
fn key_of(ty: ColumnType, literal: &str) -> Option<TimeKey> {
    let text: String = if literal.starts_with('"') { serde_json::from_str(literal).ok()? } else { literal.to_owned() };
    let midnight = |text: &str| format!("{text}T00:00:00");
    let value = match ty {
        // The expression language reads a date as its midnight and a time without offset as UTC.
        ColumnType::Timestamp { .. } => Value::from_text(ty, &text)
            .or_else(|_| Value::from_text(ty, &format!("{text}Z")))
            .or_else(|_| Value::from_text(ty, &format!("{}Z", midnight(&text)))),
        ColumnType::Datetime { .. } => {
            let civil = text.strip_suffix(['Z', 'z']).unwrap_or(&text);
            Value::from_text(ty, civil).or_else(|_| Value::from_text(ty, &midnight(civil)))
        }
        _ => Value::from_text(ty, &text),
    };
    TimeKey::of(value.ok()?.as_ref())
}

fn as_expr(value: &Value) -> Option<metaroute_expr::Value<'_>> {
    const NANOS_PER_MICRO: i128 = 1_000;
    const NANOS_PER_DAY: i128 = 86_400_000_000_000;
    Some(match *value {
        Value::U64(v) => metaroute_expr::Value::Int(i128::from(v)),
        Value::I64(v) => metaroute_expr::Value::Int(i128::from(v)),
        Value::Timestamp(v) | Value::Datetime(v) => metaroute_expr::Value::Time(i128::from(v) * NANOS_PER_MICRO),
        Value::Date(v) => metaroute_expr::Value::Time(i128::from(v) * NANOS_PER_DAY),
        _ => return None,
    })
}
