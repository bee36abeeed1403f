//! Findings about a rule set as a whole: what the expression linter says about each expression, and what only shows when
//! the rules are seen together or against what is registered today.

use metaroute_core::instance::Instance;
use metaroute_core::rules::{
    AllZero, Balance, Fallback, Filter, MinUsable, Mode, Profile, Rule, RuleSet, Terminal, WeightFrom,
};
use metaroute_expr::{Dialect, Expr, Inventory, Key, KeyTable, LintInput, Node, Parsed, Program, Severity, Value};

/// One finding about a rule set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Stable, snake_case.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is the matter, lowercase.
    pub message: String,
    /// The index of the rule it is about; `None` for the set as a whole.
    pub rule: Option<usize>,
    /// The key of the rule or of the set it is about, for example `match` or `terminal`.
    pub part: &'static str,
    /// Line inside the expression, from 1; 0 when it is not about a place in one.
    pub line: u32,
    /// Column inside the expression, from 1; 0 when it is not about a place in one.
    pub column: u32,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Checks a rule set, and what it says against what is registered where an inventory is given. Findings about the set
/// come first, then those about each rule in order.
pub fn lint_rules(set: &RuleSet, inventory: Option<&Inventory>) -> Vec<Finding> {
    let mut lint = Lint { set, inventory, findings: Vec::new() };
    lint.whole();
    for index in 0..set.rules.len() {
        lint.rule(index);
    }
    lint.findings
}

/// The inventory of a list of instances: their metadata, and their attributes under `$self.` names.
pub fn inventory_of<'i>(instances: impl IntoIterator<Item = &'i Instance>) -> Inventory {
    use metaroute_core::instance::MetaValue;
    let mut inventory = Inventory::new();
    for instance in instances {
        let attributes = [
            ("$self.cluster", instance.cluster.to_string()),
            ("$self.zone", instance.locality.zone.to_string()),
            ("$self.region", instance.locality.region.to_string()),
            ("$self.id", instance.id.to_string()),
            ("$self.host", instance.address.host().to_owned()),
            ("$self.port", instance.address.port().to_string()),
            ("$self.weight", instance.weight.to_string()),
            ("$self.healthy", instance.healthy.to_string()),
        ];
        let attributes =
            attributes.into_iter().filter(|(_, value)| !value.is_empty()).map(|(k, v)| (k.to_owned(), Parsed::text(v)));
        let metadata = instance.metadata.iter().map(|(key, value)| {
            let value = match value {
                MetaValue::List(items) => Parsed::list(items.iter().cloned()),
                other => Parsed::text(other.to_text()),
            };
            (key.to_string(), value)
        });
        inventory.add(attributes.chain(metadata));
    }
    inventory
}

struct Lint<'s> {
    set: &'s RuleSet,
    inventory: Option<&'s Inventory>,
    findings: Vec<Finding>,
}

impl Lint<'_> {
    fn add(
        &mut self,
        severity: Severity,
        code: &'static str,
        rule: Option<usize>,
        part: &'static str,
        message: String,
    ) -> &mut Finding {
        self.findings.push(Finding { code, severity, message, rule, part, line: 0, column: 0, hint: None });
        self.findings.last_mut().expect("just pushed")
    }

    fn whole(&mut self) {
        let set = self.set;
        if set.rules.is_empty() && set.prefer == metaroute_core::rules::Preference::default() {
            self.add(
                Severity::Note,
                "no_rules",
                None,
                "rules",
                "there are no rules: every instance is a candidate".into(),
            );
        }
        if set.weight_from != WeightFrom::Weight && !set.balance.is_weighted() {
            let message = format!("`weight_from` has no effect on shares: balancer `{}` ignores weights", set.balance);
            self.add(Severity::Warning, "weights_unused", None, "weight_from", message);
        }
        if set.warmup.is_some() && !set.balance.is_weighted() {
            let message = format!("`warmup` has no effect: balancer `{}` ignores weights", set.balance);
            self.add(Severity::Warning, "warmup_unused", None, "warmup", message);
        }
        if set.hash.bounded_load.is_some() && !set.balance.needs_key() {
            let message = format!("`bounded_load` has no effect: balancer `{}` does not hash", set.balance);
            self.add(Severity::Warning, "hash_unused", None, "hash", message);
        }
        if set.all_zero == AllZero::Uniform {
            let message = "instances of weight 0 are picked when no other weight is left".into();
            self.add(Severity::Note, "all_zero_uniform", None, "all_zero", message);
        }
        if set.profile == Profile::Seata && set.dialect == Dialect::V1 {
            let message = "profile `seata` with dialect `v1`: expressions answer differently from the original".into();
            self.add(Severity::Note, "seata_profile_v1_dialect", None, "dialect", message);
        }
        let unread: Vec<&String> = set.types.keys().filter(|key| !self.reads(key)).collect();
        for key in unread {
            let message = format!("type of `{key}` is declared, but no rule reads that key");
            self.add(Severity::Note, "unused_type", None, "types", message);
        }
        let mut seen: Vec<&str> = Vec::new();
        for (index, rule) in set.rules.iter().enumerate() {
            if seen.contains(&rule.name.as_str()) {
                let message = format!("more than one rule is named `{}`", rule.name);
                self.add(Severity::Warning, "duplicate_rule", Some(index), "name", message);
            }
            seen.push(&rule.name);
        }
    }

    fn reads(&self, key: &str) -> bool {
        let reads = |expr: &Expr| expr.keys().any(|k| k == key) || expr.slots().any(|(_, name, _)| name == key);
        self.set.rules.iter().any(|rule| {
            rule.when.as_ref().is_some_and(reads)
                || match &rule.filter {
                    Filter::Match(expr) => reads(expr),
                    // A custom router may read anything.
                    _ => true,
                }
                || rule.on_empty.iter().any(|item| match item {
                    Fallback::Match(expr) => reads(expr),
                    Fallback::DropKeys(keys) | Fallback::LackingAll(keys) | Fallback::LackingAny(keys) => {
                        keys.iter().any(|k| k == key)
                    }
                    // Unknown here, so it may read anything.
                    _ => true,
                })
        })
    }

    fn rule(&mut self, index: usize) {
        let set = self.set;
        let rule = &set.rules[index];
        if let Some(when) = &rule.when {
            self.expression(index, "when", when);
        }
        if rule.terminal.is_none() {
            let message =
                format!("rule `{}` does not say what happens when it and its fallbacks find nothing", rule.name);
            self.add(Severity::Error, "missing_terminal", Some(index), "terminal", message).hint =
                Some("add `terminal: any` (pass everything on) or `terminal: fail` (no instance)".into());
        }
        if let Some(expr) = rule.expr() {
            if expr.source().trim().is_empty() {
                let message = format!("rule `{}` has no condition: it matches everything", rule.name);
                self.add(Severity::Warning, "matches_everything", Some(index), "match", message);
            } else {
                self.expression(index, "match", expr);
            }
            self.shadowed(index, expr);
            self.min_usable(index, rule, expr);
        }
        self.fallbacks(index, rule);
        if set.profile == Profile::Strict && rule.mode == Mode::Must && rule.terminal == Some(Terminal::Any) {
            let message = format!(
                "rule `{}` is `must`, but `terminal: any` lets everything pass when it finds nothing",
                rule.name
            );
            self.add(Severity::Note, "must_passes_everything", Some(index), "terminal", message);
        }
        if set.profile == Profile::Seata && rule.terminal == Some(Terminal::Any) && index + 1 < set.rules.len() {
            let message = format!(
                "when `{}` finds nothing its input goes on unchanged, so a later router may choose what it ruled out",
                rule.name
            );
            self.add(Severity::Note, "seata_fallback", Some(index), "terminal", message);
        }
    }

    fn expression(&mut self, index: usize, part: &'static str, expr: &Expr) {
        let input = LintInput { types: &self.set.types, inventory: if part == "when" { None } else { self.inventory } };
        for finding in metaroute_expr::lint(expr, &input) {
            self.findings.push(Finding {
                code: finding.code,
                severity: finding.severity,
                message: finding.message,
                rule: Some(index),
                part,
                line: finding.line,
                column: finding.column,
                hint: finding.hint,
            });
        }
    }

    /// A rule that an earlier one makes pointless: the same again, or one that no instance behind an earlier `must` can match.
    fn shadowed(&mut self, index: usize, expr: &Expr) {
        let rule = &self.set.rules[index];
        for earlier in &self.set.rules[..index] {
            let Some(before) = earlier.expr() else { continue };
            if before.source().trim().is_empty() || (earlier.when.is_some() && earlier.when != rule.when) {
                continue;
            }
            if before == expr {
                // What an earlier rule already tried and failed at may still hold for another threshold.
                if earlier.min_usable == rule.min_usable {
                    let message = format!("rule `{}` repeats rule `{}` and changes nothing", rule.name, earlier.name);
                    self.add(Severity::Warning, "shadowed_rule", Some(index), "match", message);
                    return;
                }
                continue;
            }
            let binds = earlier.mode == Mode::Must
                && earlier.on_empty.is_empty()
                && earlier.terminal != Some(Terminal::Any)
                && self.set.profile == Profile::Strict;
            if binds && expr.dialect() == Dialect::V1 && self.contradict(before, expr) {
                let message = format!(
                    "rule `{}` can never match: rule `{}` rules out every instance it could",
                    rule.name, earlier.name
                );
                self.add(Severity::Warning, "shadowed_rule", Some(index), "match", message);
                return;
            }
        }
    }

    /// Whether two expressions that can each be true cannot both be, as far as the expression linter sees.
    fn contradict(&self, a: &Expr, b: &Expr) -> bool {
        let input = LintInput { types: &self.set.types, inventory: None };
        let impossible =
            |expr: &Expr| metaroute_expr::lint(expr, &input).iter().any(|finding| finding.code == "unsatisfiable");
        match Expr::parse(&format!("({a}) && ({b})")) {
            Ok(both) => impossible(&both) && !impossible(a) && !impossible(b),
            // Together they exceed a limit of the language.
            Err(_) => false,
        }
    }

    fn min_usable(&mut self, index: usize, rule: &Rule, expr: &Expr) {
        let (Some(inventory), MinUsable::Count(wanted)) = (self.inventory, rule.min_usable) else { return };
        if wanted < 2 || inventory.is_empty() {
            return;
        }
        let mut table = KeyTable::new(self.set.types.clone());
        let Ok(program) = expr.bind(&mut table) else { return };
        let most = Bound { program: &program, table: &table, inventory }.of(program.root());
        if most < wanted {
            let message = format!(
                "rule `{}` asks for {wanted} usable instances, but at most {most} of {} match it today",
                rule.name,
                inventory.len()
            );
            self.add(Severity::Warning, "min_usable_too_large", Some(index), "min_usable", message);
        }
    }

    fn fallbacks(&mut self, index: usize, rule: &Rule) {
        for item in &rule.on_empty {
            match item {
                Fallback::Match(expr) if rule.expr() == Some(expr) => {
                    let message = format!("a fallback of rule `{}` repeats the rule", rule.name);
                    self.add(Severity::Warning, "fallback_repeats_rule", Some(index), "on_empty", message);
                }
                Fallback::Match(expr) => self.expression(index, "on_empty", expr),
                Fallback::DropKeys(keys) => {
                    let Some(expr) = rule.expr() else {
                        let message =
                            format!("`drop_keys` of rule `{}` needs a `match`, a custom router has none", rule.name);
                        self.add(Severity::Error, "drop_keys_without_match", Some(index), "on_empty", message);
                        continue;
                    };
                    for key in keys.iter().filter(|key| !expr.keys().any(|read| read == key.as_str())) {
                        let message = format!("`drop_keys` names `{key}`, which rule `{}` does not read", rule.name);
                        let finding = self.add(Severity::Warning, "drop_keys_unread", Some(index), "on_empty", message);
                        finding.hint = metaroute_registry::document::suggest(key, expr.keys())
                            .map(|word| format!("did you mean `{word}`?"));
                    }
                }
                Fallback::LackingAll(keys) | Fallback::LackingAny(keys) => {
                    let Some(inventory) = self.inventory.filter(|inventory| !inventory.is_empty()) else { continue };
                    for key in keys.iter().filter(|key| inventory.present(key) == 0) {
                        let message = format!("no instance has the key `{key}` today, so lacking it says nothing");
                        let finding = self.add(Severity::Warning, "unknown_key", Some(index), "on_empty", message);
                        finding.hint = metaroute_registry::document::suggest(key, inventory.keys())
                            .map(|word| format!("did you mean `{word}`?"));
                    }
                }
                _ => {}
            }
        }
        if matches!(&self.set.balance, Balance::Xid) && self.set.profile == Profile::Strict && rule.mode == Mode::Must {
            let message = format!("rule `{}` may rule out the instance that owns a transaction", rule.name);
            self.add(Severity::Note, "must_vetoes_affinity", Some(index), "mode", message);
        }
    }
}

/// The most instances of an inventory that can satisfy a program, from the counts of single keys.
struct Bound<'p> {
    program: &'p Program,
    table: &'p KeyTable,
    inventory: &'p Inventory,
}

impl Bound<'_> {
    fn of(&self, node: &Node) -> usize {
        let all = self.inventory.len();
        match node {
            Node::And(items) => items.iter().map(|item| self.of(item)).min().unwrap_or(all),
            Node::Or(items) => items.iter().map(|item| self.of(item)).fold(0usize, usize::saturating_add).min(all),
            Node::Not(_) => all,
            Node::Atom(index) => {
                let atom = &self.program.atoms()[*index];
                // A comparison with a value of the request may hold for any instance.
                let Some(key) = atom.key().filter(|_| atom.slots().next().is_none()) else { return all };
                let name = match self.table.keys().get(key.0 as usize) {
                    Some(Key::Name(name)) => name.to_string(),
                    Some(Key::Attribute(attribute)) => format!("$self.{attribute}"),
                    None => return all,
                };
                let holds = |value: Option<Value<'_>>| atom.test_value(value, &()) != metaroute_expr::Outcome::False;
                let present: usize = self
                    .inventory
                    .values(&name)
                    .filter(|(value, _)| holds(Some(Value::Parsed(value))))
                    .map(|(_, count)| count)
                    .sum();
                let absent = if holds(None) { all - self.inventory.present(&name) } else { 0 };
                present + absent
            }
        }
    }
}
