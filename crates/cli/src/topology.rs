//! `metaroute topology`: look at who owns what, check a document, plan and make a change, take one back.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use metaroute_registry::document::{ConfigError, Format};
use metaroute_server::cluster::Topology;
use metaroute_server::cluster::placement::BUCKETS;
use metaroute_server::cluster::topology::Plan;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Client, ServerArg};
use crate::failure::{Failure, Outcome};
use crate::output::{FAINT, Out, paint, table};
use crate::source;
use crate::status::Status;

#[derive(Subcommand, Debug)]
pub(crate) enum TopologyCommand {
    /// Groups, shards, slots and tenants as a server has them
    #[command(after_help = "\
Examples:
  metaroute topology show
  metaroute topology show --epoch 3 --format json")]
    Show(Show),
    /// Check a document without asking anybody
    #[command(after_help = "\
Examples:
  metaroute topology validate new.json
  metaroute topology show --format json | metaroute topology validate -")]
    Validate(Document),
    /// What a document would change, without changing it
    #[command(after_help = "\
Examples:
  metaroute topology plan new.json
  metaroute topology plan new.json --against old.json      without a server")]
    Plan(PlanArgs),
    /// Make a document the topology
    #[command(after_help = "\
Examples:
  metaroute topology apply new.json")]
    Apply(Apply),
    /// The topologies that are kept
    #[command(after_help = "\
Examples:
  metaroute topology history")]
    History(ServerOnly),
    /// Bring a former topology back under a new epoch
    #[command(after_help = "\
Examples:
  metaroute topology rollback 3")]
    Rollback(Rollback),
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// A former topology
    #[arg(long, value_name = "EPOCH")]
    epoch: Option<u64>,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Args, Debug)]
pub(crate) struct Document {
    /// The document; `-` reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// The document; `-` reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Compare with this document instead of asking a server
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Args, Debug)]
pub(crate) struct Apply {
    /// The document; `-` reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The epoch it was made against; else the one in the document
    #[arg(long, value_name = "EPOCH")]
    expect: Option<u64>,
    /// Accept a document that is empty or loses groups or shards
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Args, Debug)]
pub(crate) struct ServerOnly {
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Args, Debug)]
pub(crate) struct Rollback {
    /// The epoch to go back to
    #[arg(value_name = "EPOCH")]
    epoch: u64,
    /// Accept losing groups or shards
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    server: ServerArg,
}

impl TopologyCommand {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        match self {
            TopologyCommand::Validate(document) => {
                let topology = read(&document.file)?;
                if out.is_text() {
                    out.line(format!("valid: {}", topology.shape()))?;
                } else {
                    out.json(&json!({ "valid": true, "shape": topology.shape().to_string() }))?;
                }
                Ok(Status::Done)
            }
            TopologyCommand::Plan(PlanArgs { file, against: Some(against), .. }) => {
                let plan = Plan::between(&read(&against)?, &read(&file)?);
                let text: Vec<String> = plan.changes.iter().map(ToString::to_string).collect();
                changes(out, &json!({ "changes": plan.changes, "plan": text, "slots_moved": plan.slots_moved() }))
            }
            other => source::runtime()?.block_on(other.ask(out)),
        }
    }

    async fn ask(self, out: &mut Out) -> Outcome {
        match self {
            TopologyCommand::Show(show) => {
                let client = show.server.client()?;
                let path = show.epoch.map_or("/v1/topology".to_owned(), |epoch| format!("/v1/topology?epoch={epoch}"));
                let document = client.json(Method::GET, &path, &[], None).await?;
                if !out.is_text() {
                    out.json(&document)?;
                    return Ok(Status::Done);
                }
                shown(out, &document)
            }
            TopologyCommand::Plan(PlanArgs { file, server, .. }) => {
                let text = read(&file)?.document().to_json();
                let client = server.client()?;
                let answer = client.json(Method::PUT, "/v1/topology?dry_run=true", &[], Some(text)).await?;
                changes(out, &answer)
            }
            TopologyCommand::Apply(Apply { file, expect, force, server }) => {
                let topology = read(&file)?;
                let epoch = expect.unwrap_or(topology.epoch());
                put(&server.client()?, out, epoch, force, topology.document().to_json()).await
            }
            TopologyCommand::History(ServerOnly { server }) => {
                let answer = server.client()?.json(Method::GET, "/v1/topology/history", &[], None).await?;
                if !out.is_text() {
                    out.json(&answer)?;
                    return Ok(Status::Done);
                }
                let mut table = table(&["epoch", "groups", "shards", "stored"]);
                for entry in answer["history"].as_array().into_iter().flatten() {
                    let stored = entry["stored_unix_ms"].to_string().parse().unwrap_or(0);
                    let stored = jiff::Timestamp::from_millisecond(stored).map(|at| at.to_string());
                    let cell = |key: &str| entry[key].to_string();
                    table.add_row([cell("epoch"), cell("groups"), cell("shards"), stored.unwrap_or_default()]);
                }
                out.table(&table)?;
                Ok(Status::Done)
            }
            TopologyCommand::Rollback(Rollback { epoch, force, server }) => {
                let client = server.client()?;
                let old = client.json(Method::GET, &format!("/v1/topology?epoch={epoch}"), &[], None).await?;
                let now = client.json(Method::GET, "/v1/topology", &[], None).await?;
                let current = now["epoch"].to_string().parse().unwrap_or(0);
                put(&client, out, current, force, old.to_string()).await
            }
            TopologyCommand::Validate(_) => Ok(Status::Done),
        }
    }
}

async fn put(client: &Client, out: &mut Out, epoch: u64, force: bool, document: String) -> Outcome {
    let path = if force { "/v1/topology?force=true" } else { "/v1/topology" };
    let headers = [("if-match", format!("\"{epoch}\""))];
    let answer = client.json(Method::PUT, path, &headers, Some(document)).await.map_err(|mut failure| {
        // The server speaks of headers and parameters; here they have other names.
        if !force && failure.hint.as_deref().is_some_and(|hint| hint.contains("force=true")) {
            failure.hint = Some("if that is meant, add --force".to_owned());
        }
        failure
    })?;
    changes(out, &answer)
}

/// A document by its path; `-` is YAML, and so also JSON, on stdin.
fn read(file: &std::path::Path) -> Result<Topology, Failure> {
    let usage = |error: &ConfigError| Failure::config(error, Status::Usage);
    let (name, text, format) = if file.as_os_str() == "-" {
        ("stdin".to_owned(), crate::expr::read_text(file)?, Format::Yaml)
    } else {
        let (text, format) = metaroute_registry::fleet::read_text(file).map_err(|error| usage(&error))?;
        (file.display().to_string(), text, format)
    };
    Topology::parse(&name, &text, format).map_err(|error| usage(&error))
}

fn changes(out: &mut Out, answer: &Value) -> Outcome {
    if !out.is_text() {
        out.json(answer)?;
        return Ok(Status::Done);
    }
    let lines: Vec<&str> = answer["plan"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for line in &lines {
        out.line(line)?;
    }
    if lines.is_empty() {
        out.line("nothing changes")?;
    }
    if let Some(epoch) = answer.get("epoch") {
        let what = if answer["dry_run"] == json!(true) { "would become" } else { "is now" };
        out.line(paint(FAINT, &format!("the topology {what} epoch {epoch}")))?;
    }
    Ok(Status::Done)
}

fn shown(out: &mut Out, document: &Value) -> Outcome {
    let topology = Topology::parse("the server's answer", &document.to_string(), Format::Json)
        .map_err(|error| Failure::config(&error, Status::Unreachable))?;
    out.line(topology.shape().to_string())?;
    let mut table = table(&["group", "shard", "slots", "owned"]);
    for group in topology.groups() {
        for (at, shard) in group.shards.iter().enumerate() {
            let owned = group.owned_by(at as u32);
            table.add_row([
                group.name.to_string(),
                shard.id.shard.to_string(),
                format!("{} of {}", owned.len(), group.slots()),
                owned.to_string(),
            ]);
        }
    }
    out.table(&table)?;
    for line in tenants(&topology) {
        out.line(line)?;
    }
    Ok(Status::Done)
}

/// Whose tenants are where: each group's buckets, then what wins over them.
fn tenants(topology: &Topology) -> Vec<String> {
    let tenants = &topology.document().tenants;
    let by_bucket = tenants.buckets.iter().map(|owned| {
        let (buckets, n) = (&owned.buckets, owned.buckets.len());
        format!("{} has {n} of {BUCKETS} tenant buckets: {buckets}", owned.group)
    });
    let by_range =
        tenants.ranges.iter().map(|range| format!("{} has tenants {} to {}", range.group, range.from, range.to));
    let by_name = tenants.overrides.iter().map(|one| format!("{} has tenant {}", one.group, one.tenant));
    by_bucket.chain(by_range).chain(by_name).collect()
}
