//! `metaroute route explain`.

use clap::Args;
use comfy_table::CellAlignment;
use metaroute_core::outcome::StageOutcome;
use metaroute_core::{Explained, Explanation, NoPickReason, Reason, RuleSet};

use super::Decision;
use crate::failure::Outcome;
use crate::output::{BAD, FAINT, Format, GOOD, Out, STRONG, WARN, paint, table};
use crate::status::Status;
use crate::wire::{ExplanationView, rule_name};

#[derive(Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    decision: Decision,
}

impl Explain {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        // An explanation draws nothing at random.
        let prepared = self.decision.prepare(out, 0)?;
        let explanation = prepared.selector.explain(&prepared.request);
        match out.format {
            Format::Text => print(out, &prepared.service, &explanation, &prepared.rules)?,
            Format::Json | Format::Ndjson => {
                out.json(&ExplanationView::of(&prepared.service, &explanation, &prepared.rules))?;
            }
        }
        Ok(if explanation.outcome.is_ok() { Status::Done } else { Status::No })
    }
}

/// The explanation for people: instances, stages, one sentence.
pub(crate) fn print(out: &mut Out, service: &str, explanation: &Explanation, rules: &RuleSet) -> std::io::Result<()> {
    if !explanation.instances.is_empty() {
        let ids = explanation.instances.iter().any(|e| e.instance.id.as_str() != e.instance.address.to_string());
        let clusters = explanation.instances.iter().any(|e| !e.instance.cluster.is_empty());
        let zones = explanation.instances.iter().any(|e| !e.instance.locality.zone.is_empty());
        let mut heading = vec!["", "INSTANCE"];
        heading.extend(ids.then_some("ID"));
        heading.extend(clusters.then_some("CLUSTER"));
        heading.extend(zones.then_some("ZONE"));
        heading.extend(["WEIGHT", "SHARE", "BECAUSE"]);
        let mut rows = table(&heading);
        for explained in &explanation.instances {
            let instance = &explained.instance;
            let mut row = vec![mark(explained.kept), instance.address.to_string()];
            let own = instance.id.as_str() != instance.address.to_string();
            row.extend(ids.then(|| if own { instance.id.to_string() } else { String::new() }));
            row.extend(clusters.then(|| instance.cluster.to_string()));
            row.extend(zones.then(|| instance.locality.zone.to_string()));
            row.extend([instance.weight.to_string(), percent(explained.probability), because(explained)]);
            rows.add_row(row);
        }
        right(&mut rows, &["WEIGHT", "SHARE"], &heading);
        out.table(&rows)?;
        out.line("")?;
    }
    if !explanation.stages.is_empty() {
        let heading = ["STAGE", "IN", "MATCHED", "USABLE", "OUT", ""];
        let mut rows = table(&heading);
        for stage in &explanation.stages {
            let counts = [stage.entered, stage.matched, stage.usable, stage.left].map(|n| n.to_string());
            let did = match stage.outcome {
                StageOutcome::Matched => String::new(),
                StageOutcome::Fallback(n) => paint(WARN, &format!("fallback {n}")),
                StageOutcome::Relaxed => paint(WARN, "nothing usable, input passed on"),
                StageOutcome::CrossCluster => paint(WARN, "no usable instance in the own cluster"),
                StageOutcome::Failed => paint(BAD, "nothing left"),
                _ => String::new(),
            };
            rows.add_row([stage.name.to_string()].into_iter().chain(counts).chain([did]));
        }
        right(&mut rows, &["IN", "MATCHED", "USABLE", "OUT"], &heading);
        out.table(&rows)?;
        out.line("")?;
    }
    out.line(sentence(service, explanation, rules))
}

/// Numbers stand to the right.
pub(crate) fn right(rows: &mut comfy_table::Table, columns: &[&str], heading: &[&str]) {
    for (at, name) in heading.iter().enumerate() {
        if columns.contains(name)
            && let Some(column) = rows.column_mut(at)
        {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

pub(crate) fn mark(kept: bool) -> String {
    if kept { paint(GOOD, "✓") } else { paint(BAD, "✗") }
}

/// A probability as people read it; never 0 for what can happen nor 100 for what need not.
pub(crate) fn percent(probability: f64) -> String {
    let text = match probability {
        p if p <= 0.0 => return paint(FAINT, "–"),
        p if p >= 1.0 => "100%".to_owned(),
        p if p < 0.000_05 => "<0.01%".to_owned(),
        p if p > 0.999_95 => ">99.99%".to_owned(),
        p => format!("{:.2}%", p * 100.0),
    };
    paint(STRONG, &text)
}

/// The stage and comparison that decided, with what the instance has there.
pub(crate) fn because(explained: &Explained) -> String {
    let mut text = if explained.kept { String::new() } else { format!("{}: ", explained.stage) };
    match (&explained.clause, &explained.value) {
        (Some(clause), Some(value)) if clause == "healthy" || clause == "enabled" || clause == "ejected" => {
            text.push_str(match (clause.as_str(), value.as_str()) {
                ("healthy", _) => "not healthy",
                ("enabled", _) => "switched off",
                _ => "ejected after failures",
            });
        }
        (Some(clause), Some(value)) if clause == "weight" => text.push_str(&format!("weight is {value}")),
        (Some(clause), Some(value)) if clause == "zone" => text.push_str(&format!("zone {value} is not needed")),
        (Some(clause), Some(value)) => text.push_str(&format!("{clause}, has {value}")),
        (Some(clause), None) if clause.starts_with("lacking") || clause.starts_with("router ") => text.push_str(clause),
        (Some(clause), None) if explained.kept => text.push_str(clause),
        (Some(clause), None) => text.push_str(&format!("{clause}, has none")),
        (None, _) if explained.kept => {}
        (None, _) => text.truncate(text.len() - 2),
    }
    if explained.kept { text } else { paint(FAINT, &text) }
}

/// What it comes to, in one sentence.
pub(crate) fn sentence(service: &str, explanation: &Explanation, rules: &RuleSet) -> String {
    let total = explanation.instances.len();
    let reachable = explanation.instances.iter().filter(|e| e.probability > 0.0).count();
    let of = |stage: Option<&metaroute_core::Stage>| {
        stage.map_or(String::new(), |s| {
            format!(" ({}: {} in, {} matched, {} usable)", s.name, s.entered, s.matched, s.usable)
        })
    };
    match explanation.outcome {
        Err(reason) => {
            let why = match reason {
                NoPickReason::Unresolved => "no registry has answered yet".to_owned(),
                NoPickReason::UnknownService => "the registry knows no such service".to_owned(),
                NoPickReason::EmptyRegistry => "the service has no instance".to_owned(),
                NoPickReason::Filtered => format!("the rules leave none of {total}{}", of(explanation.stages.last())),
                NoPickReason::AllUnhealthy => {
                    format!("no remaining instance is healthy and enabled{}", of(explanation.stages.last()))
                }
                NoPickReason::AllZeroWeight => "every remaining instance has weight 0".to_owned(),
                NoPickReason::Excluded => "every candidate was tried already".to_owned(),
                other => other.to_string(),
            };
            format!("{} for {service}: {why} [{reason}]", paint(BAD, "no instance"))
        }
        Ok(reason) => {
            let rule = rule_name(reason, rules).unwrap_or_default();
            let stage = explanation.stages.iter().find(|stage| *stage.name == *format!("rule:{rule}"));
            let counts = stage.map_or(String::new(), |s| format!(" (matched {}, usable {})", s.matched, s.usable));
            let why = match reason {
                Reason::Matched if rules.rules.is_empty() => "no rule narrows them".to_owned(),
                Reason::Matched => "every rule found what it asked for".to_owned(),
                Reason::Fallback { step, .. } => {
                    format!("rule {rule} found too few{counts}, its fallback {step} serves")
                }
                Reason::Relaxed { .. } => format!("rule {rule} found too few{counts} and passed its input on"),
                Reason::CrossCluster => "the caller's cluster has no usable instance, others serve".to_owned(),
                Reason::AllZeroUniform => "every weight is 0, so they share evenly".to_owned(),
                Reason::Panic => "too few are healthy, so health is ignored".to_owned(),
                Reason::ExclusionRelaxed => "all were tried already, so one is offered again".to_owned(),
                Reason::Affinity => "the session belongs to it".to_owned(),
                other => other.to_string(),
            };
            format!(
                "{service}: {} picks from {reachable} of {total} instances: {why} [{reason}]",
                paint(GOOD, &rules.balance.to_string())
            )
        }
    }
}
