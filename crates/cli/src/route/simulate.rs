//! `metaroute route simulate`: what would happen to the shares.

use std::collections::BTreeMap;

use clap::Args;
use metaroute_core::simulate::{Scenario, ScenarioError, simulate};
use metaroute_core::{Distribution, Instance, InstanceId};
use metaroute_expr::{Dialect, Expr};
use serde::Serialize;
use serde_json::Number;

use super::Decision;
use super::explain::{percent, right};
use crate::expr::parse;
use crate::failure::{Failure, Outcome};
use crate::output::{BAD, Format, GOOD, Out, paint, table};
use crate::source::{fleet, tell_notes};
use crate::status::Status;
use crate::wire;

#[derive(Args)]
pub(crate) struct Simulate {
    #[command(flatten)]
    decision: Decision,
    /// Instances that fail their health check; may be repeated
    #[arg(long, value_name = "EXPR", help_heading = "Scenario")]
    down: Vec<String>,
    /// Instances that get another weight; may be repeated
    #[arg(long, value_name = "EXPR=W", help_heading = "Scenario")]
    set_weight: Vec<String>,
    /// A fleet file whose instances of the service join; one with a known id replaces it
    #[arg(long, value_name = "FLEET_FILE", help_heading = "Scenario")]
    add: Option<String>,
}

/// One side of the comparison.
#[derive(Serialize)]
struct Side {
    outcome: &'static str,
    reason: String,
    basis: &'static str,
}

#[derive(Serialize)]
struct Row {
    id: String,
    address: String,
    /// `None`: not there on that side.
    before: Option<Number>,
    after: Option<Number>,
}

#[derive(Serialize)]
struct Answer {
    service: String,
    before: Side,
    after: Side,
    instances: Vec<Row>,
}

impl Simulate {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let mut scenario = Scenario::default();
        for text in &self.down {
            scenario.down.push(parse(text, Dialect::V1, None)?);
        }
        for text in &self.set_weight {
            scenario.set_weight.push(set_weight(text)?);
        }
        let prepared = self.decision.prepare(out, 0)?;
        if let Some(path) = &self.add {
            scenario.add = joining(path, &prepared.service, out)?;
        }
        let Some(instances) = prepared.instances else {
            return unknown(out, &prepared.service);
        };
        let request = |selector: &_| self.decision.request.request(selector);
        let (before, after) = simulate(&prepared.rules, &prepared.options, &instances, &scenario, request)
            .map_err(|error| scenario_failure(&error))?;
        let later = scenario.apply(&instances, &prepared.rules).map_err(|error| scenario_failure(&error))?;
        let rows = rows(&instances, &later, &before, &after);
        let picked = after.outcome.is_ok();
        match out.format {
            Format::Text => print(out, &rows, &before, &after)?,
            Format::Json | Format::Ndjson => {
                out.json(&Answer {
                    service: prepared.service,
                    before: side(&before),
                    after: side(&after),
                    instances: rows,
                })?;
            }
        }
        Ok(if picked { Status::Done } else { Status::No })
    }
}

/// `EXPR=W`, split at the last `=`.
fn set_weight(text: &str) -> Result<(Expr, f64), Failure> {
    let bad = || {
        Failure::usage("bad_value", format!("--set-weight `{text}` is not EXPR=W"))
            .hint("write for example --set-weight 'version == 2.3=5'")
    };
    let (expr, weight) = text.rsplit_once('=').ok_or_else(bad)?;
    // `a == 1` ends in an operator here, not in a weight.
    if expr.ends_with(['=', '!', '<', '>']) {
        return Err(bad());
    }
    let weight: f64 = weight.trim().parse().map_err(|_| bad())?;
    if !(0.0..=metaroute_core::instance::WEIGHT_MAX).contains(&weight) {
        let message = format!("weight {weight} is not between 0 and {}", metaroute_core::instance::WEIGHT_MAX);
        return Err(Failure::usage("bad_value", message));
    }
    Ok((parse(expr, Dialect::V1, None)?, weight))
}

fn joining(path: &str, service: &str, out: &Out) -> Result<Vec<Instance>, Failure> {
    let fleet = fleet(path)?;
    if out.is_text() {
        tell_notes(&fleet.notes);
    }
    let found = fleet.service(service).ok_or_else(|| {
        Failure::usage("unknown_service", format!("{path} has no service `{service}`"))
            .expected(fleet.services.iter().map(|service| service.name.to_string()))
    })?;
    Ok(found.instances.clone())
}

fn scenario_failure(error: &ScenarioError) -> Failure {
    match error {
        ScenarioError::Rules(error) => Failure::rules(error),
        ScenarioError::Expression(error) => Failure::usage("bad_expression", error.unsupported.message.clone()),
        other => Failure::usage("bad_scenario", other.to_string()),
    }
}

fn unknown(out: &mut Out, service: &str) -> Outcome {
    let side = || Side { outcome: "no_pick", reason: "unknown_service".into(), basis: "long_run_share" };
    match out.format {
        Format::Text => out.line(format!("no instance for {service}: the registry knows no such service"))?,
        Format::Json | Format::Ndjson => {
            out.json(&Answer { service: service.into(), before: side(), after: side(), instances: Vec::new() })?;
        }
    }
    Ok(Status::No)
}

fn side(distribution: &Distribution) -> Side {
    Side {
        outcome: wire::outcome(distribution.outcome),
        reason: wire::reason(distribution.outcome),
        basis: distribution.basis.code(),
    }
}

fn rows(before: &[Instance], after: &[Instance], was: &Distribution, is: &Distribution) -> Vec<Row> {
    let addresses: BTreeMap<&InstanceId, String> =
        before.iter().chain(after).map(|instance| (&instance.id, instance.address.to_string())).collect();
    let by_id =
        |distribution: &Distribution| -> BTreeMap<InstanceId, f64> { distribution.shares.iter().cloned().collect() };
    let (was, is) = (by_id(was), by_id(is));
    let row = |(id, address): (&InstanceId, String)| Row {
        id: id.to_string(),
        address,
        before: was.get(id).copied().map(wire::number),
        after: is.get(id).copied().map(wire::number),
    };
    addresses.into_iter().map(row).collect()
}

fn print(out: &mut Out, rows: &[Row], before: &Distribution, after: &Distribution) -> std::io::Result<()> {
    let heading = ["INSTANCE", "BEFORE", "AFTER", "CHANGE"];
    let mut text = table(&heading);
    let value = |share: &Option<Number>| share.as_ref().and_then(Number::as_f64);
    for row in rows {
        let (was, is) = (value(&row.before), value(&row.after));
        let change = is.unwrap_or(0.0) - was.unwrap_or(0.0);
        let cell = |share: Option<f64>| share.map_or_else(|| "not there".to_owned(), percent);
        let points = match change {
            change if change.abs() < 0.000_05 => String::new(),
            change if change > 0.0 => paint(GOOD, &format!("+{:.2} %p", change * 100.0)),
            change => paint(BAD, &format!("{:.2} %p", change * 100.0)),
        };
        let name = if row.id == row.address { row.address.clone() } else { format!("{} ({})", row.address, row.id) };
        text.add_row([name, cell(was), cell(is), points]);
    }
    right(&mut text, &heading[1..], &heading);
    out.table(&text)?;
    out.line("")?;
    out.line(format!(
        "before: {} [{}]   after: {} [{}]",
        wire::outcome(before.outcome),
        wire::reason(before.outcome),
        wire::outcome(after.outcome),
        wire::reason(after.outcome)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weight_stands_after_the_last_equals_sign() {
        let (expr, weight) = set_weight("version == 2.3=5").unwrap();
        assert_eq!((expr.to_string().as_str(), weight), ("version == 2.3", 5.0));
        assert_eq!(set_weight("a=b=0").unwrap().1, 0.0);
        assert_eq!(set_weight("a >= 1=0.5").unwrap().1, 0.5);
        for bad in ["version == 2", "a", "a == b=", "a == b=-1", "a == b=NaN", "a == b=1e99", "a >= 1", "a != 1", "=5="]
        {
            assert!(set_weight(bad).is_err(), "{bad}");
        }
    }
}
