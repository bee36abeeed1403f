//! What would happen to the shares if: instances down, weights changed, instances added.

use std::collections::BTreeMap;
use std::time::Duration;

use metaroute_expr::{BindError, Expr, KeyTable, Program};

use crate::explain::Distribution;
use crate::fleet::{Entry, Fleet, State};
use crate::instance::Instance;
use crate::intake::{GuardOptions, Update};
use crate::plan::RuleError;
use crate::rules::RuleSet;
use crate::selector::{Options, Selector};

/// A change to imagine. Expressions read instance metadata and `$self`; the changes happen in the order of the fields.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    /// Instances that join; one with the id of a present instance replaces it.
    pub add: Vec<Instance>,
    /// Instances whose weight becomes this.
    pub set_weight: Vec<(Expr, f64)>,
    /// Instances that fail their health check.
    pub down: Vec<Expr>,
}

/// Why a scenario cannot be imagined.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// An expression does not bind.
    #[error("scenario expression")]
    Expression(#[from] BindError),
    /// The rules are no good.
    #[error("rules")]
    Rules(#[from] RuleError),
}

impl Scenario {
    /// The instances as the scenario leaves them.
    ///
    /// # Errors
    /// When an expression does not bind.
    pub fn apply(&self, instances: &[Instance], rules: &RuleSet) -> Result<Vec<Instance>, ScenarioError> {
        let added: BTreeMap<_, _> = self.add.iter().map(|instance| (&instance.id, instance)).collect();
        let mut list: Vec<Instance> = instances
            .iter()
            .filter(|instance| !added.contains_key(&instance.id))
            .chain(added.values().copied())
            .cloned()
            .collect();
        for (expr, weight) in &self.set_weight {
            for instance in matching(&mut list, expr, rules)? {
                instance.weight = *weight;
                if let crate::rules::WeightFrom::Metadata(key) = &rules.weight_from {
                    instance.metadata.insert(key.as_str().into(), crate::MetaValue::Number(weight.to_string().into()));
                }
                if rules.weight_from == crate::rules::WeightFrom::Seata {
                    instance.metadata.insert("weight".into(), crate::MetaValue::Number(weight.to_string().into()));
                }
            }
        }
        for expr in &self.down {
            for instance in matching(&mut list, expr, rules)? {
                instance.healthy = false;
            }
        }
        Ok(list)
    }
}

/// The instances an expression selects.
fn matching<'a>(list: &'a mut [Instance], expr: &Expr, rules: &RuleSet) -> Result<Vec<&'a mut Instance>, BindError> {
    let (program, keys) = bind(expr, rules)?;
    let mut selected = Vec::new();
    for instance in list {
        if selects(&program, &keys, instance) {
            selected.push(instance);
        }
    }
    Ok(selected)
}

fn bind(expr: &Expr, rules: &RuleSet) -> Result<(Program, KeyTable), BindError> {
    let mut keys = KeyTable::new(rules.types.clone());
    let program = expr.bind(&mut keys)?;
    Ok((program, keys))
}

fn selects(program: &Program, keys: &KeyTable, instance: &Instance) -> bool {
    let mut fleet = Fleet::default().with_keys(keys.keys());
    let entry =
        Entry { instance: instance.clone(), state: State::default().into(), epoch: 0, attention: Default::default() };
    fleet.put_new(vec![entry], keys.keys()).iter().any(|&slot| program.eval(&fleet.record(slot), &()))
}

/// Whether an expression selects an instance, with the declared types of a rule set. For tools: rules are compiled
/// once and evaluated over columns instead.
///
/// # Errors
/// When the expression does not bind.
pub fn matches(expr: &Expr, rules: &RuleSet, instance: &Instance) -> Result<bool, BindError> {
    let (program, keys) = bind(expr, rules)?;
    Ok(selects(&program, &keys, instance))
}

/// Shares before and after a scenario.
///
/// # Errors
/// When the rules or an expression are no good.
pub fn simulate(
    rules: &RuleSet,
    options: &Options,
    instances: &[Instance],
    scenario: &Scenario,
    request: impl Fn(&Selector) -> crate::Request,
) -> Result<(Distribution, Distribution), ScenarioError> {
    let shares = |list: Vec<Instance>| -> Result<Distribution, ScenarioError> {
        let options = Options { guard: GuardOptions::off(), ..options.clone() };
        let selector = Selector::new(rules.clone(), options)?;
        selector.apply(Update::Snapshot(list), Duration::ZERO);
        Ok(selector.distribution(&request(&selector)))
    };
    Ok((shares(instances.to_vec())?, shares(scenario.apply(instances, rules)?)?))
}
