//! `metaroute route diff`: where two rule sets, or two dialects of one, decide differently.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use metaroute_core::rules::{Fallback, Filter, Rule};
use metaroute_core::{Explained, Explanation, RuleSet};
use metaroute_expr::{Dialect, Expr};
use serde::Serialize;
use serde_json::Number;

use super::explain::{because, mark, percent};
use super::rules::{RequestArgs, rules_file};
use super::{Target, selector};
use crate::expr::parse;
use crate::failure::{Failure, Outcome};
use crate::output::{Format, GOOD, Out, WARN, paint, table, tell};
use crate::source::Listing;
use crate::status::Status;
use crate::wire;

#[derive(Args)]
pub(crate) struct Diff {
    #[command(flatten)]
    target: Target,
    /// One rules file
    #[arg(long, value_name = "RULES", requires = "b", conflicts_with_all = ["rules", "rule", "dialects"])]
    a: Option<PathBuf>,
    /// The other rules file
    #[arg(long, value_name = "RULES", requires = "a")]
    b: Option<PathBuf>,
    /// One rules file, read in two dialects
    #[arg(
        short = 'f',
        long,
        visible_alias = "config",
        value_name = "FILE",
        requires = "dialects",
        conflicts_with = "rule"
    )]
    rules: Option<PathBuf>,
    /// One mandatory rule, read in two dialects
    #[arg(long, value_name = "EXPR", requires = "dialects", allow_hyphen_values = true)]
    rule: Option<String>,
    /// The two dialects, for example v1,seata
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    dialects: Vec<Dialect>,
    #[command(flatten)]
    request: RequestArgs,
}

/// Two rule sets with the names people know them by.
struct Pair {
    names: [String; 2],
    sets: [RuleSet; 2],
    /// Whether the rules are the same text, so that stages can be compared too.
    same_text: bool,
}

#[derive(Serialize)]
struct SideView {
    kept: bool,
    stage: String,
    clause: Option<String>,
    value: Option<String>,
    probability: Number,
}

#[derive(Serialize)]
struct DifferenceView {
    id: String,
    address: String,
    a: SideView,
    b: SideView,
}

#[derive(Serialize)]
struct ShareView {
    id: String,
    address: String,
    a: Number,
    b: Number,
}

#[derive(Serialize)]
struct RuleSetView {
    name: String,
    outcome: &'static str,
    reason: String,
}

#[derive(Serialize)]
struct Answer {
    service: String,
    equal: bool,
    a: RuleSetView,
    b: RuleSetView,
    /// Kept by one and dropped by the other, or dropped for another reason.
    instances: Vec<DifferenceView>,
    /// Judged alike, but with another share.
    shares: Vec<ShareView>,
}

impl Diff {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let pair = self.pair()?;
        let (source, service) = self.target.source(None)?;
        let listing = Listing::read(&source, &service)?;
        if out.is_text() {
            listing.tell_notes();
        }
        let known = listing.instances.is_some();
        let options = self.request.options(0);
        let mut explanations = Vec::with_capacity(2);
        for set in &pair.sets {
            let selector = selector(set, &options, listing.instances.clone())?;
            explanations.push(selector.explain(&self.request.request(&selector)));
        }
        let [a, b] = [&explanations[0], &explanations[1]];
        let answer = compare(self.target.service, &pair, a, b);
        let equal = answer.equal;
        match out.format {
            Format::Text => print(out, &answer, a, b)?,
            Format::Json | Format::Ndjson => out.json(&answer)?,
        }
        Ok(if equal && known { Status::Done } else { Status::No })
    }

    fn pair(&self) -> Result<Pair, Failure> {
        if let (Some(a), Some(b)) = (&self.a, &self.b) {
            let sets = [rules_file(a, Dialect::V1)?.set, rules_file(b, Dialect::V1)?.set];
            return Ok(Pair { names: [a.display().to_string(), b.display().to_string()], sets, same_text: false });
        }
        let &[first, second] = self.dialects.as_slice() else {
            return Err(if self.dialects.is_empty() {
                Failure::usage("missing_argument", "nothing to compare").expected([
                    "--a RULES --b RULES",
                    "--rule EXPR --dialects A,B",
                    "--rules FILE --dialects A,B",
                ])
            } else {
                Failure::usage("bad_value", format!("--dialects needs two dialects, not {}", self.dialects.len()))
                    .hint("write --dialects v1,seata")
            });
        };
        let sets = match (&self.rule, &self.rules) {
            (Some(text), _) => [rule_in(text, first)?, rule_in(text, second)?],
            (None, Some(path)) => {
                let set = rules_file(path, Dialect::V1)?.set;
                [set_in(&set, first)?, set_in(&set, second)?]
            }
            (None, None) => {
                return Err(Failure::usage("missing_argument", "--dialects needs one rule or one rules file")
                    .expected(["--rule EXPR", "--rules FILE"]));
            }
        };
        Ok(Pair { names: [first.to_string(), second.to_string()], sets, same_text: true })
    }
}

/// An expression in a dialect. What the original calls invalid it lets pass, so that is what its side shows.
fn expression_in(text: &str, dialect: Dialect) -> Result<Expr, Failure> {
    match (Expr::parse_as(text, dialect), dialect) {
        (Err(error), Dialect::Seata) => {
            tell(format!(
                "{}: dialect seata cannot read `{text}` ({}): everything passes there",
                paint(WARN, "note"),
                error.message
            ));
            parse("", Dialect::V1, None)
        }
        _ => parse(text, dialect, None),
    }
}

fn rule_in(text: &str, dialect: Dialect) -> Result<RuleSet, Failure> {
    Ok(RuleSet::must(expression_in(text, dialect)?))
}

fn set_in(set: &RuleSet, dialect: Dialect) -> Result<RuleSet, Failure> {
    let mut set = set.clone();
    set.dialect = dialect;
    for Rule { filter, on_empty, .. } in &mut set.rules {
        if let Filter::Match(expr) = filter {
            *expr = expression_in(expr.source(), dialect)?;
        }
        for fallback in on_empty {
            if let Fallback::Match(expr) = fallback {
                *expr = expression_in(expr.source(), dialect)?;
            }
        }
    }
    Ok(set)
}

/// Shares closer than this are equal: it is far below anything that could be seen in traffic, and above rounding.
const SAME_SHARE: f64 = 1e-9;

fn compare(service: String, pair: &Pair, a: &Explanation, b: &Explanation) -> Answer {
    let mut instances = Vec::new();
    let mut shares = Vec::new();
    // Both list every instance of one snapshot in id order.
    for (left, right) in a.instances.iter().zip(&b.instances) {
        let (id, address) = (left.instance.id.to_string(), left.instance.address.to_string());
        let judged = left.kept == right.kept && (!pair.same_text || left.kept || left.stage == right.stage);
        if !judged {
            instances.push(DifferenceView { id, address, a: side(left), b: side(right) });
        } else if (left.probability - right.probability).abs() > SAME_SHARE {
            let (a, b) = (wire::number(left.probability), wire::number(right.probability));
            shares.push(ShareView { id, address, a, b });
        }
    }
    let view = |name: &str, explanation: &Explanation| RuleSetView {
        name: name.to_owned(),
        outcome: wire::outcome(explanation.outcome),
        reason: wire::reason(explanation.outcome),
    };
    Answer {
        service,
        equal: instances.is_empty() && shares.is_empty(),
        a: view(&pair.names[0], a),
        b: view(&pair.names[1], b),
        instances,
        shares,
    }
}

fn side(explained: &Explained) -> SideView {
    SideView {
        kept: explained.kept,
        stage: explained.stage.clone(),
        clause: explained.clause.clone(),
        value: explained.value.clone(),
        probability: wire::number(explained.probability),
    }
}

fn print(out: &mut Out, answer: &Answer, a: &Explanation, b: &Explanation) -> std::io::Result<()> {
    let by_id = |explanation: &Explanation| -> BTreeMap<String, String> {
        let text = |e: &Explained| (e.instance.id.to_string(), format!("{} {}", mark(e.kept), because(e)));
        explanation.instances.iter().map(text).collect()
    };
    let (left, right) = (by_id(a), by_id(b));
    let of = |texts: &BTreeMap<String, String>, id: &str| texts.get(id).cloned().unwrap_or_default();
    if !answer.instances.is_empty() {
        let mut rows = table(&["INSTANCE", &answer.a.name, &answer.b.name]);
        for difference in &answer.instances {
            rows.add_row([difference.address.clone(), of(&left, &difference.id), of(&right, &difference.id)]);
        }
        out.table(&rows)?;
        out.line("")?;
    }
    if !answer.shares.is_empty() {
        let mut rows = table(&["SAME VERDICT, OTHER SHARE", &answer.a.name, &answer.b.name]);
        for share in &answer.shares {
            let text = |number: &Number| percent(number.as_f64().unwrap_or(0.0));
            rows.add_row([share.address.clone(), text(&share.a), text(&share.b)]);
        }
        out.table(&rows)?;
        out.line("")?;
    }
    out.line(format!(
        "{} [{}] and {} [{}] {}",
        answer.a.name,
        answer.a.reason,
        answer.b.name,
        answer.b.reason,
        match (answer.equal, answer.instances.len()) {
            (true, _) => paint(GOOD, "agree on every instance"),
            (false, 0) => paint(WARN, "keep the same instances with other shares"),
            (false, 1) => paint(WARN, "disagree on 1 instance"),
            (false, n) => paint(WARN, &format!("disagree on {n} instances")),
        }
    ))
}
