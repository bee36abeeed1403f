//! `metaroute route lint`.

use clap::Args;
use metaroute::rules_file::{Finding, inventory_of, lint_rules};
use metaroute_expr::{Inventory, Severity};
use metaroute_registry::document::Note;
use serde::Serialize;

use super::rules::{Chosen, RuleArgs};
use crate::expr::{severity_name, severity_painted};
use crate::failure::{At, Failure, Outcome, excerpt};
use crate::output::{Format, GOOD, Out, WARN, paint};
use crate::source::{Listing, Source};
use crate::status::Status;

#[derive(Args)]
pub(crate) struct Lint {
    #[command(flatten)]
    rules: RuleArgs,
    /// Check against what is registered: a fleet file or the address of a registry
    #[arg(long, value_name = "REGISTRY_URL", requires = "service")]
    from: Option<String>,
    /// The service to look up there
    #[arg(long, value_name = "SERVICE", requires = "from")]
    service: Option<String>,
}

/// One finding as JSON.
#[derive(Serialize)]
pub(crate) struct FindingView {
    code: &'static str,
    severity: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    part: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<At>,
    /// Place inside the expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    expression_at: Option<At>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Lint {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        if !self.rules.is_given() {
            return Err(Failure::usage("missing_argument", "nothing to check: no rules are given").expected([
                "--rules FILE",
                "--rule EXPR",
                "--seata FILE",
            ]));
        }
        let chosen = self.rules.read(&[])?;
        // What the reader of the file found odd comes first.
        let place =
            |note: &Note| note.at.map(|at| At { file: Some(note.file.clone()), line: at.line, column: at.column });
        let mut notes: Vec<FindingView> =
            chosen.notes.iter().map(|odd| note(odd.code, odd.message.clone(), place(odd))).collect();
        let mut inventory = None;
        if let (Some(from), Some(service)) = (&self.from, &self.service) {
            let listing = Listing::read(&Source::one(from)?, chosen.lookup(service))?;
            if out.is_text() {
                listing.tell_notes();
            }
            match &listing.instances {
                Some(instances) => inventory = Some(inventory_of(instances)),
                None => {
                    let message = format!("the registry knows no service `{service}`");
                    notes.push(note("unknown_service", message, None));
                }
            }
        }
        print_findings(out, &chosen, notes, inventory.as_ref())
    }
}

/// Prints what is doubtful in rules, and whether that is clean. `notes` come first.
pub(crate) fn print_findings(
    out: &mut Out,
    chosen: &Chosen,
    notes: Vec<FindingView>,
    inventory: Option<&Inventory>,
) -> Outcome {
    let findings = lint_rules(&chosen.set, inventory);
    let views: Vec<FindingView> = notes.into_iter().chain(findings.iter().map(|f| view(f, chosen))).collect();
    let clean = views.iter().all(|view| view.severity == severity_name(Severity::Note));
    match out.format {
        Format::Text => print(out, &views, &findings, chosen, clean)?,
        Format::Json => out.json(&serde_json::json!({ "clean": clean, "findings": views }))?,
        Format::Ndjson => views.iter().try_for_each(|view| out.json(view))?,
    }
    Ok(if clean { Status::Done } else { Status::No })
}

/// A finding about something else than the rules' meaning.
fn note(code: &'static str, message: String, at: Option<At>) -> FindingView {
    FindingView {
        code,
        severity: severity_name(Severity::Warning),
        message,
        rule: None,
        part: "",
        at,
        expression_at: None,
        hint: None,
    }
}

fn view(finding: &Finding, chosen: &Chosen) -> FindingView {
    let place = finding.rule.and_then(|rule| chosen.places.get(rule));
    let inside = (finding.line > 0).then_some(At { file: None, line: finding.line, column: finding.column });
    let at = place.map(|at| At { file: chosen.file.clone(), line: at.line, column: at.column });
    FindingView {
        code: finding.code,
        severity: severity_name(finding.severity),
        message: finding.message.clone(),
        rule: finding.rule.and_then(|rule| chosen.set.rules.get(rule)).map(|rule| rule.name.clone()),
        part: finding.part,
        // An expression on the command line has no other place than its own.
        at: at.or_else(|| if chosen.file.is_none() { inside.clone() } else { None }),
        expression_at: inside,
        hint: finding.hint.clone(),
    }
}

fn print(
    out: &mut Out,
    views: &[FindingView],
    findings: &[Finding],
    chosen: &Chosen,
    clean: bool,
) -> std::io::Result<()> {
    let notes = views.len() - findings.len();
    for (number, view) in views.iter().enumerate() {
        let finding = number.checked_sub(notes).and_then(|number| findings.get(number));
        let severity = finding.map_or(Severity::Warning, |finding| finding.severity);
        let place = match &view.at {
            Some(At { file: Some(file), line, column }) => format!("{file}:{line}:{column}: "),
            _ => String::new(),
        };
        out.line(format!("{}[{}]: {place}{}", severity_painted(severity), view.code, view.message))?;
        if let Some(at) = &view.expression_at
            && let Some(rule) = finding.and_then(|finding| finding.rule).and_then(|rule| chosen.set.rules.get(rule))
            && view.part == "match"
            && let Some(expr) = rule.expr()
            && let Some(excerpt) = excerpt(expr.source(), at.line, at.column, 1)
        {
            out.line(excerpt)?;
        }
        if let Some(hint) = &view.hint {
            out.line(format!("  hint: {hint}"))?;
        }
    }
    let rules = match chosen.set.rules.len() {
        1 => "1 rule".to_owned(),
        n => format!("{n} rules"),
    };
    out.line(format!("{}: {rules}", if clean { paint(GOOD, "clean") } else { paint(WARN, "not clean") }))
}
