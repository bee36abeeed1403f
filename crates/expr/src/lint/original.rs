//! Findings about expressions of dialect `seata`: where the original does something else than is written.

use super::{Linter, matching};
use crate::ast::{Comparison, Operand, Order, Subject, Test};
use crate::bind::type_of;
use crate::schema::KeyTable;
use crate::{Expr, java};

impl Linter<'_> {
    pub(super) fn original(&mut self, comparisons: &[&Comparison]) {
        self.clauses(comparisons.is_empty());
        for comparison in comparisons {
            self.condition(comparison);
        }
        self.other_dialect();
    }

    fn clauses(&mut self, none: bool) {
        let source = self.expr.source();
        let separator = if source.contains("||") { "||" } else { "&&" };
        if none {
            let what = if separator == "||" { "nothing" } else { "everything" };
            let message = format!("there is no condition at all, which matches {what}");
            return self.warning(0, "seata_no_condition", message, None);
        }
        let blank = |part: &str| part.trim_matches(|c: char| c <= ' ').is_empty();
        if source.contains(separator) && source.split(separator).any(blank) {
            let message = format!("an empty clause beside `{separator}` is ignored");
            self.warning(0, "seata_empty_clause", message, None);
        }
    }

    fn condition(&mut self, comparison: &Comparison) {
        let at = comparison.at;
        let Subject::Key(key) = &comparison.left else { return };
        let Test::Order(order, Operand::Literal(literal)) = &comparison.test else { return };
        let value = literal.value.as_text();
        if key.starts_with(['(', '!']) || (value.ends_with(')') && !value.contains('(')) || value.starts_with('(') {
            let message = format!("the parentheses are taken literally: the key is `{key}`, the value `{value}`");
            let hint = Some("put one pair around each single condition, or none".to_owned());
            self.warning(at, "seata_literal_parenthesis", message, hint);
        }
        if value.len() >= 2 && (value.starts_with(['"', '\''])) {
            let message = format!("the quotes are part of the value {value}");
            self.warning(at, "seata_literal_quotes", message, Some("write the value without quotes".to_owned()));
        }
        if crate::print::looks_like_value(key) {
            let message = format!("the left side is always the key, here `{key}`");
            self.warning(at, "seata_key_is_a_number", message, Some("swap the sides".to_owned()));
        }
        let number = java::parse_double(value);
        if order.is_ordered() && number.is_none() {
            let message = format!("`{value}` is no number, so this is always false");
            return self.error(at, "ordered_text", message, None);
        }
        if type_of(key, self.types.get(&**key).copied(), true) == Some(crate::Type::Version) && number.is_some() {
            let message = match order {
                Order::Eq | Order::Ne => "versions are compared as numbers: 2.10 equals 2.1",
                _ => "versions are compared as numbers: 2.10 is below 2.9, and 2.3.1 never compares",
            };
            let hint = Some("dialect v1 orders versions".to_owned());
            self.warning(at, "seata_version_as_number", message.to_owned(), hint);
        } else if number.is_some() && crate::decimal::Decimal::parse(value).is_none() {
            let message = format!("`{value}` counts as a number here");
            self.note(at, "seata_number", message, Some("dialect v1 compares it as text".to_owned()));
        }
    }

    /// What becomes of the same text in dialect v1.
    fn other_dialect(&mut self) {
        let expr = match Expr::parse(self.expr.source()) {
            Ok(expr) => expr,
            Err(error) => {
                let message = format!("dialect v1 does not accept this: {}", error.message);
                return self.note(error.span.start, "dialect_difference", message, error.hint);
            }
        };
        let Some(inventory) = self.inventory else { return };
        let mut table = KeyTable::new(self.types.clone());
        let Ok(program) = expr.bind(&mut table) else { return };
        if program.reads_context() {
            return;
        }
        let ours = matching(&program, &table, inventory);
        let theirs = matching(&self.program, &self.table, inventory);
        let differing: u32 = ours.iter().zip(&theirs).map(|(a, b)| (a ^ b).count_ones()).sum();
        if differing > 0 {
            let message = format!("dialect v1 says otherwise for {differing} of {} instances", inventory.len());
            self.note(0, "dialect_difference", message, Some("see `metaroute route diff`".to_owned()));
        }
    }
}
