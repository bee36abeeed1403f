//! `metaroute expr`: one expression at a time, without any instance.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use metaroute::rules_file::to_yaml;
use metaroute_core::RuleSet;
use metaroute_core::rules::{Fallback, Filter};
use metaroute_expr::{
    Attribute, Context, Dialect, Expr, Finding, Key, KeyId, KeyTable, LintInput, Parsed, Record, Severity, SlotId,
    SlotScope, Type, Value, lint,
};
use metaroute_registry::document::Format as FileFormat;
use serde_json::json;

use crate::failure::{At, Failure, Outcome, excerpt};
use crate::output::{BAD, FAINT, Format, GOOD, Out, WARN, paint};
use crate::pairs::{self, pair};
use crate::route::lint::print_findings;
use crate::route::rules::{Chosen, rules_file};
use crate::status::Status;

#[derive(Subcommand)]
pub(crate) enum ExprCommand {
    /// Print whether an expression holds for the metadata given
    ///
    /// Prints `true` with status 0 or `false` with status 1.
    #[command(after_help = "\
Examples:
  metaroute expr eval 'version >= 2.10' --with version=2.9
  metaroute expr eval 'zone == $caller.zone' --with zone=a --caller zone=a
  metaroute expr eval 'tags == canary' --with tags=canary,eu --type tags=set
  metaroute expr eval 'version >= 2.10' --with version=2.9 --dialect seata")]
    Eval(Eval),
    /// Say whether a text is an expression, and what is doubtful about it
    ///
    /// Status 2 when it is none, 1 when it is not clean (an error or a warning), 0 otherwise.
    #[command(after_help = "\
Examples:
  metaroute expr check 'version >= 3 && version < 2'
  metaroute expr check -f canary.expr
  echo 'env == prod' | metaroute expr check -f -")]
    Check(Check),
    /// Print the canonical form of an expression; formatting it again changes nothing
    #[command(after_help = "\
Examples:
  metaroute expr fmt \"not (env='prod' and tier in (1,2))\"
  metaroute expr fmt -f canary.expr")]
    Fmt(Fmt),
}

#[derive(Args)]
pub(crate) struct Eval {
    /// The expression
    #[arg(value_name = "EXPR", allow_hyphen_values = true)]
    expr: String,
    /// Metadata of the candidate; may be repeated
    #[arg(long = "with", value_name = "KEY=VALUE", value_parser = pair)]
    with: Vec<(String, String)>,
    /// A built-in attribute of the candidate (`$self.KEY`): cluster, zone, region, id, host, port, weight, healthy
    #[arg(long = "self", value_name = "KEY=VALUE", value_parser = pair)]
    attributes: Vec<(String, String)>,
    /// The caller's own metadata (`$caller.KEY`); may be repeated
    #[arg(long = "caller", value_name = "KEY=VALUE", value_parser = pair)]
    caller: Vec<(String, String)>,
    /// The request's values (`$req.KEY`); may be repeated
    #[arg(long = "req", value_name = "KEY=VALUE", value_parser = pair)]
    request: Vec<(String, String)>,
    #[command(flatten)]
    language: Language,
}

#[derive(Args)]
pub(crate) struct Check {
    #[command(flatten)]
    source: Text,
    #[command(flatten)]
    language: Language,
}

#[derive(Args)]
pub(crate) struct Fmt {
    #[command(flatten)]
    source: Text,
    /// Dialect of the expression: v1 or seata
    #[arg(long, value_name = "DIALECT", default_value_t)]
    dialect: Dialect,
}

#[derive(Args)]
struct Language {
    /// Dialect of the expression: v1 or seata
    #[arg(long, value_name = "DIALECT", default_value_t)]
    dialect: Dialect,
    /// Declared type of a key: version, number, text, bool, set or time; may be repeated
    #[arg(long = "type", value_name = "KEY=TYPE", value_parser = typed)]
    types: Vec<(String, Type)>,
}

/// An expression, given or in a file. A file of a format that has more than text in it is a rules file.
#[derive(Args)]
#[group(required = true, multiple = false)]
struct Text {
    /// The expression
    #[arg(value_name = "EXPR", allow_hyphen_values = true)]
    expr: Option<String>,
    /// Read it from a file: an expression, or a rules file (.yaml, .json, .toml, .properties); `-` is stdin
    #[arg(short = 'f', long = "config", visible_alias = "file", value_name = "FILE")]
    file: Option<PathBuf>,
}

fn typed(text: &str) -> Result<(String, Type), String> {
    let (key, word) = pair(text)?;
    word.parse().map(|found| (key, found)).map_err(|error: metaroute_expr::UnknownType| error.to_string())
}

impl ExprCommand {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        match self {
            Self::Eval(eval) => eval.run(out),
            Self::Check(check) => check.run(out),
            Self::Fmt(fmt) => fmt.run(out),
        }
    }
}

/// Parses an expression of the command line or of a file that holds nothing else.
pub(crate) fn parse(text: &str, dialect: Dialect, file: Option<&str>) -> Result<Expr, Failure> {
    Expr::parse_as(text, dialect).map_err(|error| Failure::expression(&error, text, file))
}

impl Eval {
    fn run(self, out: &mut Out) -> Outcome {
        let expr = parse(&self.expr, self.language.dialect, None)?;
        let mut table = KeyTable::new(self.language.types.into_iter().collect());
        let program = expr.bind(&mut table).map_err(|error| Failure::unbound(&error, &self.expr))?;
        let given = Given::new(
            &table,
            &pairs::map(&self.with),
            &attributes(&self.attributes)?,
            &pairs::map(&self.caller),
            &pairs::map(&self.request),
        );
        let value = program.eval(&given, &given);
        match out.format {
            Format::Text => out.line(if value { "true" } else { "false" })?,
            Format::Json | Format::Ndjson => out.json(&json!({ "value": value }))?,
        }
        Ok(if value { Status::Done } else { Status::No })
    }
}

fn attributes(pairs: &[(String, String)]) -> Result<Vec<(Attribute, String)>, Failure> {
    pairs
        .iter()
        .map(|(name, value)| match name.parse() {
            Ok(attribute) => Ok((attribute, value.clone())),
            Err(error @ metaroute_expr::UnknownAttribute { .. }) => {
                Err(Failure::usage("bad_value", error.to_string()).expected(Attribute::ALL.map(Attribute::name)))
            }
        })
        .collect()
}

/// The values of the command line, by the ids that an expression's names got.
struct Given {
    record: Vec<Option<Parsed>>,
    context: Vec<Option<String>>,
}

impl Given {
    fn new(
        table: &KeyTable,
        with: &BTreeMap<String, String>,
        attributes: &[(Attribute, String)],
        caller: &BTreeMap<String, String>,
        request: &BTreeMap<String, String>,
    ) -> Self {
        let value = |key: &Key| match key {
            Key::Name(name) => with.get(&**name).cloned(),
            Key::Attribute(wanted) => {
                attributes.iter().rev().find(|(attribute, _)| attribute == wanted).map(|(_, value)| value.clone())
            }
        };
        let slot = |scope: SlotScope, name: &str| match scope {
            SlotScope::Caller => caller.get(name).cloned(),
            SlotScope::Request => request.get(name).cloned(),
        };
        Self {
            record: table.keys().iter().map(|key| value(key).map(Parsed::text)).collect(),
            context: table.slots().iter().map(|(scope, name)| slot(*scope, name)).collect(),
        }
    }
}

impl Record for Given {
    fn get(&self, key: KeyId) -> Option<Value<'_>> {
        self.record.get(key.0 as usize)?.as_ref().map(Value::Parsed)
    }
}

impl Context for Given {
    fn get(&self, slot: SlotId) -> Option<&str> {
        self.context.get(slot.0 as usize)?.as_deref()
    }
}

impl Text {
    /// The rules file, when that is what was named.
    fn rules(&self, dialect: Dialect) -> Result<Option<Chosen>, Failure> {
        match &self.file {
            Some(path) if FileFormat::of_path(path).is_some() => rules_file(path, dialect).map(Some),
            _ => Ok(None),
        }
    }

    /// The text without final line ends, and the file it came from.
    fn read(&self) -> Result<(String, Option<String>), Failure> {
        match (&self.expr, &self.file) {
            (Some(text), _) => Ok((text.clone(), None)),
            (None, Some(path)) => {
                let text = read_text(path)?;
                Ok((text.trim_end_matches(['\n', '\r']).to_owned(), Some(path.display().to_string())))
            }
            (None, None) => Err(Failure::usage("missing_argument", "neither an expression nor -f FILE is given")),
        }
    }
}

/// The text of a file; `-` is stdin.
pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes).map(drop)
    } else {
        std::fs::read(path).map(|read| bytes = read)
    };
    read.map_err(|error| Failure::usage("unreadable", format!("cannot read {}: {error}", path.display())))?;
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        Failure::usage("not_utf8", format!("{} is not UTF-8 (byte {good})", path.display()))
    })
}

impl Check {
    fn run(self, out: &mut Out) -> Outcome {
        if let Some(chosen) = self.source.rules(self.language.dialect)? {
            return print_findings(out, &chosen, Vec::new(), None);
        }
        let (text, file) = self.source.read()?;
        let expr = parse(&text, self.language.dialect, file.as_deref())?;
        let types: BTreeMap<String, Type> = self.language.types.into_iter().collect();
        let findings = lint(&expr, &LintInput { types: &types, inventory: None });
        let clean = !findings.iter().any(|finding| finding.severity != Severity::Note);
        match out.format {
            Format::Text => {
                for finding in &findings {
                    let place = At { file: file.clone(), line: finding.line, column: finding.column };
                    out.line(finding_text(finding, &place, &text))?;
                }
                out.line(format!("{}: {expr}", if clean { paint(GOOD, "ok") } else { paint(WARN, "not clean") }))?;
            }
            Format::Json | Format::Ndjson => {
                let findings: Vec<_> = findings.iter().map(finding_json).collect();
                out.json(&json!({"valid": true, "clean": clean, "canonical": expr.to_string(), "findings": findings}))?;
            }
        }
        Ok(if clean { Status::Done } else { Status::No })
    }
}

/// `error`, `warning` or `note`.
pub(crate) fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

/// The same, in its colour.
pub(crate) fn severity_painted(severity: Severity) -> String {
    let style = match severity {
        Severity::Error => BAD,
        Severity::Warning => WARN,
        Severity::Note => FAINT,
    };
    paint(style, severity_name(severity))
}

fn finding_text(finding: &Finding, place: &At, source: &str) -> String {
    let mut text = severity_painted(finding.severity);
    text.push_str(": ");
    if let Some(file) = &place.file {
        text.push_str(&format!("{file}:{}:{}: ", place.line, place.column));
    }
    text.push_str(&finding.message);
    if let Some(excerpt) = excerpt(source, place.line, place.column, 1) {
        text.push_str(&format!("\n{excerpt}"));
    }
    if let Some(hint) = &finding.hint {
        text.push_str(&format!("\n  hint: {hint}"));
    }
    text
}

fn finding_json(finding: &Finding) -> serde_json::Value {
    let mut value = json!({
        "code": finding.code,
        "severity": severity_name(finding.severity),
        "message": finding.message,
        "at": {"line": finding.line, "column": finding.column},
    });
    if let Some(hint) = &finding.hint {
        value["hint"] = json!(hint);
    }
    value
}

/// The same rules with every expression in canonical form.
fn canonical(mut set: RuleSet) -> RuleSet {
    // The canonical form of a text just below a limit may exceed it; then it stays as it was written.
    let rewrite = |expr: &mut Expr| {
        if let Ok(same) = Expr::parse_as(&expr.to_string(), expr.dialect()) {
            *expr = same;
        }
    };
    for rule in &mut set.rules {
        rule.when.iter_mut().for_each(rewrite);
        if let Filter::Match(expr) = &mut rule.filter {
            rewrite(expr);
        }
        for fallback in &mut rule.on_empty {
            if let Fallback::Match(expr) = fallback {
                rewrite(expr);
            }
        }
    }
    set
}

impl Fmt {
    fn run(self, out: &mut Out) -> Outcome {
        if let Some(chosen) = self.source.rules(self.dialect)? {
            let rules = to_yaml(&canonical(chosen.set));
            match out.format {
                Format::Text => out.raw(&rules)?,
                Format::Json | Format::Ndjson => out.json(&json!({ "canonical": rules }))?,
            }
            return Ok(Status::Done);
        }
        let (text, file) = self.source.read()?;
        let expr = parse(&text, self.dialect, file.as_deref())?;
        match out.format {
            Format::Text => out.line(expr.to_string())?,
            Format::Json | Format::Ndjson => out.json(&json!({ "canonical": expr.to_string() }))?,
        }
        Ok(Status::Done)
    }
}
