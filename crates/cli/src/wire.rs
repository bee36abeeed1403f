//! Instances, picks and explanations as JSON: one form for the command line and for HTTP.

use std::collections::BTreeMap;

use metaroute_core::{Explained, Explanation, Instance, MetaValue, NoPickReason, Reason, RuleSet, Stage};
use serde::Serialize;
use serde_json::{Number, Value};
use utoipa::ToSchema;

/// One instance as the registry knows it.
#[derive(Serialize, ToSchema)]
#[schema(as = Instance)]
pub(crate) struct InstanceView {
    id: String,
    address: String,
    cluster: String,
    zone: String,
    region: String,
    #[schema(value_type = f64)]
    weight: Number,
    healthy: bool,
    enabled: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    incarnation: String,
    #[schema(value_type = Object)]
    metadata: BTreeMap<String, Value>,
}

/// Why one instance can or cannot be picked.
#[derive(Serialize, ToSchema)]
#[schema(as = Explained)]
struct ExplainedView {
    #[serde(flatten)]
    instance: InstanceView,
    kept: bool,
    stage: String,
    rule: Option<String>,
    clause: Option<String>,
    value: Option<String>,
    #[schema(value_type = f64)]
    probability: Number,
}

/// Counts of one stage.
#[derive(Serialize, ToSchema)]
#[schema(as = Stage)]
pub(crate) struct StageView {
    name: String,
    r#in: usize,
    matched: usize,
    usable: usize,
    out: usize,
}

/// The whole answer of `explain`.
#[derive(Serialize, ToSchema)]
#[schema(as = Explanation)]
pub(crate) struct ExplanationView {
    service: String,
    revision: u64,
    outcome: &'static str,
    reason: String,
    /// The rule that fell back or passed its input on.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    basis: &'static str,
    instances: Vec<ExplainedView>,
    stages: Vec<StageView>,
}

/// One pick.
#[derive(Serialize, ToSchema)]
#[schema(as = Pick)]
pub(crate) struct PickView {
    pub(crate) address: String,
    pub(crate) id: String,
    pub(crate) reason: String,
}

impl InstanceView {
    pub(crate) fn of(instance: &Instance) -> Self {
        Self {
            id: instance.id.to_string(),
            address: instance.address.to_string(),
            cluster: instance.cluster.to_string(),
            zone: instance.locality.zone.to_string(),
            region: instance.locality.region.to_string(),
            weight: number(instance.weight),
            healthy: instance.healthy,
            enabled: instance.enabled,
            incarnation: instance.incarnation.as_str().to_owned(),
            metadata: instance.metadata.iter().map(|(key, value)| (key.to_string(), meta(value))).collect(),
        }
    }
}

impl StageView {
    pub(crate) fn of(stage: &Stage) -> Self {
        Self {
            name: stage.name.to_string(),
            r#in: stage.entered,
            matched: stage.matched,
            usable: stage.usable,
            out: stage.left,
        }
    }
}

impl ExplanationView {
    pub(crate) fn of(service: &str, explanation: &Explanation, rules: &RuleSet) -> Self {
        Self {
            service: service.to_owned(),
            revision: explanation.revision,
            outcome: outcome(explanation.outcome),
            reason: reason(explanation.outcome),
            rule: explanation.outcome.ok().and_then(|reason| rule_name(reason, rules)),
            basis: explanation.basis.code(),
            instances: explanation.instances.iter().map(explained).collect(),
            stages: explanation.stages.iter().map(StageView::of).collect(),
        }
    }
}

impl PickView {
    pub(crate) fn of(instance: &Instance, reason: Reason) -> Self {
        Self { address: instance.address.to_string(), id: instance.id.to_string(), reason: reason.to_string() }
    }
}

fn explained(explained: &Explained) -> ExplainedView {
    ExplainedView {
        instance: InstanceView::of(&explained.instance),
        kept: explained.kept,
        stage: explained.stage.clone(),
        rule: explained.rule.clone(),
        clause: explained.clause.clone(),
        value: explained.value.clone(),
        probability: number(explained.probability),
    }
}

/// `picked` or `no_pick`.
pub(crate) fn outcome(verdict: Result<Reason, NoPickReason>) -> &'static str {
    if verdict.is_ok() { "picked" } else { "no_pick" }
}

/// The stable code of the reason, either way.
pub(crate) fn reason(verdict: Result<Reason, NoPickReason>) -> String {
    match verdict {
        Ok(reason) => reason.to_string(),
        Err(reason) => reason.to_string(),
    }
}

/// The name of the rule a reason speaks about.
pub(crate) fn rule_name(reason: Reason, rules: &RuleSet) -> Option<String> {
    rules.rules.get(reason.rule()?).map(|rule| rule.name.clone())
}

/// A number as people write it: 100, not 100.0.
pub(crate) fn number(value: f64) -> Number {
    /// Whole numbers up to here are exact in a double.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= EXACT {
        return Number::from(value as i64);
    }
    Number::from_f64(value).unwrap_or_else(|| Number::from(0))
}

/// A metadata value in its own kind. A number whose digits a reader with binary floats would lose (`2.10`, an id beyond
/// 2⁵³) is written as a string, like all exact numbers in our answers.
fn meta(value: &MetaValue) -> Value {
    match value {
        MetaValue::Text(text) => Value::String(text.to_string()),
        MetaValue::Number(digits) => match digits.parse::<f64>() {
            Ok(float) if float.to_string() == **digits => {
                digits.parse().map_or_else(|_| digits.to_string().into(), Value::Number)
            }
            _ => Value::String(digits.to_string()),
        },
        MetaValue::Bool(value) => Value::Bool(*value),
        MetaValue::List(items) => items.iter().map(|item| Value::String(item.to_string())).collect(),
        MetaValue::Json(text) => serde_json::from_str(text).unwrap_or_else(|_| text.to_string().into()),
        other => other.to_text().to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_people_write_them() {
        for (value, text) in [(100.0, "100"), (0.25, "0.25"), (0.0, "0"), (1.0, "1"), (2_147_483_648.0, "2147483648")] {
            assert_eq!(number(value).to_string(), text);
        }
    }

    #[test]
    fn metadata_keeps_kind_and_digits() {
        for (value, json) in [
            (MetaValue::from("2.10"), "\"2.10\""),
            (MetaValue::Number("2.10".into()), "\"2.10\""),
            (MetaValue::Number("2.3".into()), "2.3"),
            (MetaValue::Number("-7".into()), "-7"),
            (MetaValue::Number("1e3".into()), "\"1e3\""),
            (MetaValue::Number("9007199254740993".into()), "\"9007199254740993\""),
            (MetaValue::Number("inf".into()), "\"inf\""),
            (MetaValue::Number(".5".into()), "\".5\""),
            (MetaValue::Bool(true), "true"),
            (MetaValue::List(["a".into(), "b".into()].into()), "[\"a\",\"b\"]"),
            (MetaValue::Json("{\"a\":1}".into()), "{\"a\":1}"),
        ] {
            assert_eq!(meta(&value).to_string(), json);
        }
    }
}
