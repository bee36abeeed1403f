//! `metaroute store`, `backup` and `restore`: stores on disk, looked at from outside.
//!
//! These work on folders no server has open. A data folder may hold several stores (one per shard) among other files;
//! every command takes the folder as a whole and finds the stores in it.

mod backup;
mod dump;

use std::error::Error as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use metaroute_server::stores;
use metaroute_store::{Cancel, CheckReport, Error, OpenOptions, Problem, Schema, Store};
use serde::Serialize;
use serde_json::{Value, json};

pub(crate) use backup::{Backup, Restore};

use crate::failure::{Failure, Outcome};
use crate::output::{BAD, GOOD, Out, paint, table};
use crate::status::Status;

#[derive(Subcommand)]
pub(crate) enum StoreCommand {
    /// Check the stores in a data folder, or a file that declares stores
    ///
    /// A folder: reads everything and says where rows, index and counters disagree and which files are damaged. A file:
    /// says whether its declarations can be used. Status 0 when clean, 1 when a folder is not, 2 when a file is not.
    #[command(after_help = "\
Examples:
  metaroute store check data
  metaroute store check stores.yaml
  metaroute store check data --accept-damaged-journal")]
    Check(Check),
    /// Print everything in the stores of a data folder, row by row
    #[command(after_help = "\
Examples:
  metaroute store dump data --format ndjson | head
  metaroute store dump data --table file_metadata")]
    Dump(dump::Dump),
}

#[derive(Args)]
pub(crate) struct Check {
    /// A data folder, or a file of store declarations
    #[arg(value_name = "DIR|FILE")]
    path: PathBuf,
    /// Open a store whose journal is damaged, giving up every write behind the damage; the journal is kept aside
    #[arg(long)]
    accept_damaged_journal: bool,
}

impl StoreCommand {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        match self {
            StoreCommand::Check(check) if check.path.is_file() => check_file(&check.path, out),
            StoreCommand::Check(check) => check_folder(&check, out),
            StoreCommand::Dump(dump) => dump.run(out),
        }
    }
}

fn check_file(path: &Path, out: &mut Out) -> Outcome {
    let declared = stores::read(path).map_err(|error| Failure::config(&error, Status::Usage))?;
    if out.is_text() {
        for schema in &declared {
            out.line(format!("{} {}", paint(GOOD, "ok"), describe(schema)))?;
        }
    } else {
        let declared: Vec<_> = declared.iter().map(|schema| schema.to_declaration()).collect();
        out.json(&json!({ "clean": true, "stores": declared }))?;
    }
    Ok(Status::Done)
}

fn describe(schema: &Schema) -> String {
    let declaration = schema.to_declaration();
    let time = declaration.time.map_or_else(String::new, |time| format!(", time {time}"));
    format!(
        "{}: {} columns, id {}, tenant {}{time}, listing {}",
        declaration.name,
        schema.columns().len(),
        declaration.id,
        declaration.tenant,
        if declaration.listing.is_empty() { "nothing more".into() } else { declaration.listing.join(", ") }
    )
}

/// One store's check, as JSON.
#[derive(Serialize)]
struct Checked {
    path: String,
    clean: bool,
    tables: Vec<Value>,
    positions: u64,
    problem_count: u64,
    problems: Vec<String>,
}

fn check_folder(check: &Check, out: &mut Out) -> Outcome {
    let mut all = Vec::new();
    for path in find(&check.path)? {
        let options = OpenOptions {
            create: false,
            accept_damaged_journal: check.accept_damaged_journal,
            ..OpenOptions::default()
        };
        let report = Store::open(&path, options).and_then(|store| {
            let report = store.view()?.check(&Cancel::new());
            store.close();
            report
        });
        all.push(match report {
            Ok(report) => checked(&path, &report),
            // Damage that keeps a store from opening is what was asked about.
            Err(error) if error.is_corruption() => Checked {
                path: path.display().to_string(),
                clean: false,
                tables: Vec::new(),
                positions: 0,
                problem_count: 1,
                problems: vec![explain(&error)],
            },
            Err(error) => return Err(failure(&error)),
        });
    }
    let clean = all.iter().all(|store| store.clean);
    if out.is_text() {
        print(&all, out)?;
    } else {
        out.json(&json!({ "clean": clean, "stores": all }))?;
    }
    Ok(if clean { Status::Done } else { Status::No })
}

fn checked(path: &Path, report: &CheckReport) -> Checked {
    let tables = report.tables.iter().map(|t| {
        json!({
            "name": t.name, "rows": t.rows, "tombstones": t.tombstones, "tenants": t.tenants,
            "index_entries": t.entries, "garbage": t.garbage,
        })
    });
    Checked {
        path: path.display().to_string(),
        clean: report.is_clean(),
        tables: tables.collect(),
        positions: report.positions,
        problem_count: report.problem_count,
        problems: report.problems.iter().map(Problem::to_string).collect(),
    }
}

fn print(all: &[Checked], out: &mut Out) -> std::io::Result<()> {
    for store in all {
        let verdict = if store.clean { paint(GOOD, "clean") } else { paint(BAD, "not clean") };
        out.line(format!("{} {verdict}", store.path))?;
        if !store.tables.is_empty() {
            let mut rows = table(&["table", "rows", "tombstones", "tenants", "index entries", "garbage"]);
            for t in &store.tables {
                let cell = |name: &str| match &t[name] {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                rows.add_row(["name", "rows", "tombstones", "tenants", "index_entries", "garbage"].map(cell));
            }
            out.table(&rows)?;
        }
        for problem in &store.problems {
            out.line(format!("  {problem}"))?;
        }
        let more = store.problem_count.saturating_sub(store.problems.len() as u64);
        if more > 0 {
            out.line(format!("  and {more} more"))?;
        }
    }
    Ok(())
}

/// The stores in a data folder, which may be one itself; sorted by path.
fn find(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    /// Stores lie directly in a data folder or a few levels down.
    const DEPTH_MAX: usize = 4;
    fn walk(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
        if folder.join("FORMAT").is_file() && folder.join("engine").is_dir() {
            found.push(folder.to_owned());
            return Ok(());
        }
        if depth < DEPTH_MAX {
            for entry in std::fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    walk(&path, depth + 1, found)?;
                }
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    walk(folder, 0, &mut found)
        .map_err(|error| Failure::usage("unreadable", format!("cannot read {}: {error}", folder.display())))?;
    if found.is_empty() {
        return Err(Failure::usage("no_store", format!("there is no store in {}", folder.display()))
            .hint("give the folder that `metaroute up --data` or a shard uses"));
    }
    found.sort();
    Ok(found)
}

/// An error with its causes in one line.
fn explain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// A store's error as the command line reports it.
fn failure(error: &Error) -> Failure {
    let text = explain(error);
    match error {
        Error::Locked(_) => {
            Failure::new(Status::Unreachable, "store_locked", text).hint("stop the server that uses it, then ask again")
        }
        Error::JournalDamaged { .. } => Failure::new(Status::No, "corrupt_data", text)
            .hint("`metaroute store check DIR --accept-damaged-journal` gives up the writes behind the damage"),
        Error::Checkpoint(_) => Failure::new(Status::Usage, "bad_checkpoint", text),
        error if error.is_corruption() => Failure::new(Status::No, "corrupt_data", text),
        Error::NotAStore { .. } => Failure::usage("no_store", text),
        _ => Failure::new(Status::No, "store_failed", text),
    }
}
