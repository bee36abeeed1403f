//! `metaroute import`: rows of an NDJSON file into a server.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Client, ServerArg};
use crate::failure::{At, Failure, Outcome};
use crate::output::Out;
use crate::query::segment;
use crate::source;
use crate::status::Status;

/// Rows of one request.
const ROWS: usize = 2_000;
/// Bytes of one request; well below what a server takes.
const BYTES: usize = 4 << 20;
/// How often a request that met a busy server is repeated. Repeating is safe: a row is written once or again the same.
const RETRIES: u32 = 8;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  metaroute import file_metadata rows.ndjson
  metaroute export file_metadata --allow global | metaroute import file_metadata - --server http://127.0.0.1:7401")]
pub(crate) struct Import {
    /// The store
    #[arg(value_name = "STORE")]
    store: String,
    /// One row a line, as JSON; `-` reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    server: ServerArg,
}

/// Lines collected for one request.
#[derive(Default)]
struct Batch {
    text: String,
    rows: usize,
    /// Line number of the first.
    first: usize,
}

impl Import {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let name = if self.file.as_os_str() == "-" { "stdin".to_owned() } else { self.file.display().to_string() };
        let mut reader: Box<dyn BufRead> = if self.file.as_os_str() == "-" {
            Box::new(std::io::stdin().lock())
        } else {
            let file = File::open(&self.file)
                .map_err(|error| Failure::usage("unreadable", format!("cannot read {name}: {error}")))?;
            Box::new(BufReader::new(file))
        };
        let runtime = source::runtime()?;
        let client = runtime.block_on(async { self.server.client() })?;
        let path = format!("/v1/{}/rows", segment(&self.store));
        let mut batch = Batch::default();
        let mut written = 0;
        let mut line = String::new();
        for number in 1.. {
            line.clear();
            let read = reader.read_line(&mut line).map_err(|error| {
                let failure = Failure::usage("unreadable", format!("cannot read {name}: {error}"));
                counted(failure, written)
            })?;
            if read == 0 {
                break;
            }
            let row = line.trim();
            if row.is_empty() {
                // Sent along, so that the server counts lines as the file does.
                if batch.rows > 0 {
                    batch.text.push('\n');
                }
                continue;
            }
            if is_meta(row) {
                continue;
            }
            // One row alone may be longer than a batch; then the server decides.
            if batch.rows == ROWS || (batch.rows > 0 && batch.text.len() + row.len() > BYTES) {
                written += runtime.block_on(send(&client, &path, &name, &batch)).map_err(|f| counted(f, written))?;
                batch = Batch::default();
            }
            if batch.rows == 0 {
                batch.first = number;
            }
            batch.text.push_str(row);
            batch.text.push('\n');
            batch.rows += 1;
        }
        // An empty file too: the server and the store must be there.
        if batch.rows > 0 || written == 0 {
            written += runtime.block_on(send(&client, &path, &name, &batch)).map_err(|f| counted(f, written))?;
        }
        if out.is_text() {
            out.line(format!("{written} rows written"))?;
        } else {
            out.json(&json!({ "written": written }))?;
        }
        Ok(Status::Done)
    }
}

/// What is in already, for whoever repairs the file and goes on.
fn counted(failure: Failure, written: u64) -> Failure {
    if written == 0 {
        return failure;
    }
    let more = format!("{written} rows were written before; importing all of them again is safe");
    let hint = failure.hint.clone().map_or(more.clone(), |hint| format!("{hint}; {more}"));
    failure.hint(hint)
}

async fn send(client: &Client, path: &str, name: &str, batch: &Batch) -> Result<u64, Failure> {
    let headers = [("content-type", "application/x-ndjson".to_owned())];
    let mut tries = 0;
    loop {
        let sent = client.json(Method::POST, path, &headers, Some(batch.text.clone())).await;
        match sent {
            Ok(answer) => return Ok(count(&answer["written"])),
            Err(failure) if failure.status == Status::Incomplete && tries < RETRIES => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(100 << tries.min(5))).await;
            }
            Err(mut failure) => {
                // The server counts within the request.
                if let Some(at) = &mut failure.at {
                    let line = batch.first as u32 + at.line.saturating_sub(1);
                    *at = At { file: Some(name.to_owned()), line, column: at.column };
                    failure.message = without_place(&failure.message).to_owned();
                }
                return Err(failure);
            }
        }
    }
}

/// Whether a line is the last one of an export over HTTP, which says what the rows before it cover. No row looks like that:
/// one has at least an id and a tenant.
fn is_meta(line: &str) -> bool {
    let object: Option<serde_json::Map<String, Value>> =
        if line.starts_with("{\"meta\"") { serde_json::from_str(line).ok() } else { None };
    object.is_some_and(|object| object.len() == 1)
}

/// A message without the row and the line it counts within its request: the file has other numbers.
fn without_place(message: &str) -> &str {
    let rest = message.strip_prefix("row ").and_then(|rest| rest.split_once("): "));
    match rest {
        Some((place, what)) if place.contains(" (line ") => what.split(" at line 1 column ").next().unwrap_or(what),
        _ => message,
    }
}

fn count(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.to_string().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_an_export_is_no_row() {
        assert!(is_meta(r#"{"meta":{"path":"C","complete":true}}"#));
        for row in [r#"{"meta":1,"id":2,"tenant":3}"#, r#"{"id":2,"tenant":3}"#, r#"{"meta":"#, ""] {
            assert!(!is_meta(row), "{row}");
        }
    }

    #[test]
    fn messages_lose_the_place_that_is_not_the_files() {
        assert_eq!(without_place("row 1 (line 1): expected value at line 1 column 2"), "expected value");
        assert_eq!(without_place("row 12 (line 30): column `a (b): c`: no"), "column `a (b): c`: no");
        assert_eq!(without_place("the body is longer than 8 MiB"), "the body is longer than 8 MiB");
    }
}
