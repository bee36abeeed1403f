//! What a request over HTTP says about rules, caller and request: the flags of `route explain` as JSON.

use std::collections::BTreeMap;

use metaroute::rules_file::RulesFile;
use metaroute_core::rules::ZonePreference;
use metaroute_core::{Options, Request, RuleSet, Selector};
use metaroute_expr::Dialect;
use metaroute_registry::document::Format;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::problem::Problem;
use crate::expr::parse;
use crate::failure::Failure;
use crate::route::rules;
use crate::status::Status;

/// Most picks of one request.
pub(crate) const PICKS_MAX: u64 = 10_000;

/// A decision to make. At most one of `rule`, `rules` and `preset`.
#[derive(Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"rule": "version >= 2.10", "caller": {"cluster": "hz"}, "balance": "weighted-random"}))]
pub(crate) struct Decision {
    /// One mandatory rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    /// The content of a rules file: as an object, or as YAML text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    rules: Option<serde_json::Value>,
    /// `nacos-cluster`.
    #[serde(skip_serializing_if = "Option::is_none")]
    preset: Option<String>,
    /// `cluster` or `zone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefer: Option<String>,
    /// `v1` (default) or `seata`.
    #[serde(skip_serializing_if = "Option::is_none")]
    dialect: Option<String>,
    /// A balancer by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    balance: Option<String>,
    /// The caller's own metadata.
    #[serde(deserialize_with = "texts")]
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    caller: BTreeMap<String, String>,
    /// The request's values.
    #[serde(deserialize_with = "texts", skip_serializing)]
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    req: BTreeMap<String, String>,
    /// Key of the hash balancers.
    #[serde(skip_serializing)]
    key: Option<String>,
    /// Seata transaction the request belongs to.
    #[serde(skip_serializing)]
    xid: Option<String>,
    /// How many picks, 1 by default.
    #[serde(skip_serializing)]
    #[schema(minimum = 1, maximum = 10_000)]
    n: Option<u64>,
    /// Seed that makes the picks repeatable.
    #[serde(skip_serializing)]
    seed: Option<u64>,
}

/// Values as text; numbers keep their digits.
fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    use serde::de::Error;
    use serde_json::Value;
    let map = BTreeMap::<String, Value>::deserialize(deserializer)?;
    map.into_iter()
        .filter_map(|(key, value)| {
            Some(match value {
                Value::Null => return None,
                Value::String(text) => Ok((key, text)),
                Value::Number(number) => Ok((key, number.to_string())),
                Value::Bool(value) => Ok((key, value.to_string())),
                other => Err(D::Error::custom(format!("`{key}` must be text, a number or a boolean, not {other}"))),
            })
        })
        .collect()
}

impl Decision {
    /// Reads a body; an empty one asks for nothing special.
    pub(crate) fn read(body: &[u8]) -> Result<Self, Problem> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        // A struct may be written as an array in serde's JSON, not in ours.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::bad_request("the body is not a decision: expected an object"));
        }
        let decision: Self = serde_json::from_slice(body).map_err(|error| {
            let text = error.to_string();
            let what = text.split(" at line ").next().unwrap_or(&text).to_owned();
            let at = crate::failure::At { file: None, line: error.line() as u32, column: error.column() as u32 };
            Problem {
                at: (error.line() > 0).then_some(at),
                ..Problem::bad_request(format!("the body is not a decision: {what}"))
            }
        })?;
        let given = [decision.rule.is_some(), decision.rules.is_some(), decision.preset.is_some()];
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(Problem::bad_request("more than one of `rule`, `rules` and `preset`"));
        }
        if !(1..=PICKS_MAX).contains(&decision.picks()) {
            return Err(Problem::bad_request(format!("`n` must be 1 to {PICKS_MAX}, not {}", decision.picks())));
        }
        Ok(decision)
    }

    /// How many picks.
    pub(crate) fn picks(&self) -> u64 {
        self.n.unwrap_or(1)
    }

    /// Whether the picks must be repeatable.
    pub(crate) fn is_seeded(&self) -> bool {
        self.seed.is_some()
    }

    /// What tells rules apart: everything that a selector is made from.
    pub(crate) fn key(&self) -> String {
        serde_json::to_string(self).expect("a decision is plain data")
    }

    /// The rules, and what else a selector needs.
    pub(crate) fn rules(&self) -> Result<(RuleSet, Options), Problem> {
        let bad = |what: &str, value: &str, expected: &[&str]| Problem {
            expected: expected.iter().map(ToString::to_string).collect(),
            ..Problem::bad_request(format!("unknown {what} `{value}`"))
        };
        let dialect = match &self.dialect {
            None => Dialect::V1,
            Some(word) => word.parse().map_err(|_| bad("dialect", word, &["v1", "seata"]))?,
        };
        let mut set = match (&self.rule, &self.rules, self.preset.as_deref()) {
            (Some(text), ..) => RuleSet::must(parse(text, dialect, None)?),
            (None, Some(serde_json::Value::String(text)), _) => document(text, Format::Yaml, dialect)?,
            (None, Some(value), _) => document(&value.to_string(), Format::Json, dialect)?,
            (None, None, Some("nacos-cluster")) => RuleSet::nacos_cluster(&self.caller),
            (None, None, Some(other)) => return Err(bad("preset", other, &["nacos-cluster"])),
            (None, None, None) => RuleSet::default(),
        };
        match self.prefer.as_deref() {
            None => {}
            Some("cluster") => set.prefer.cluster = true,
            Some("zone") => {
                set.prefer.zone.get_or_insert_with(ZonePreference::default);
            }
            Some(other) => return Err(bad("preference", other, &["cluster", "zone"])),
        }
        if let Some(name) = &self.balance {
            set.balance = rules::balance(name)?;
        }
        let options =
            Options { seed: self.seed.unwrap_or_else(rand::random), caller: self.caller.clone(), ..Options::default() };
        Ok((set, options))
    }

    /// The request against the slots of a selector.
    pub(crate) fn request(&self, selector: &Selector) -> Request {
        let values = self.req.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        rules::request(selector, values, self.key.as_deref(), self.xid.as_deref())
    }
}

fn document(text: &str, format: Format, dialect: Dialect) -> Result<RuleSet, Problem> {
    let file =
        RulesFile::parse_in("", text, format, dialect).map_err(|error| Failure::config(&error, Status::Usage))?;
    Ok(file.rules)
}
