//! `metaroute query`: rows from a server, with the way they took, what they cost and whether any are missing.

use clap::Args;
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::client::{Client, ServerArg};
use crate::failure::{Failure, Outcome};
use crate::output::{BAD, FAINT, Format, GOOD, Out, paint, table, tell};
use crate::source;
use crate::status::Status;

/// What to ask for; shared with `export`.
#[derive(Args, Debug, Clone)]
pub(crate) struct Selection {
    /// The store
    #[arg(value_name = "STORE")]
    pub(crate) store: String,
    /// Whose rows
    #[arg(long, value_name = "TENANT")]
    user: Option<u64>,
    /// A row's id; may be repeated
    #[arg(long, value_name = "ID")]
    id: Vec<u64>,
    /// Only rows for which this holds
    #[arg(long = "where", value_name = "EXPR")]
    filter: Option<String>,
    /// Earliest time, inclusive
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Latest time, exclusive
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// The order: the time column for a tenant's rows, else the id
    #[arg(long, value_name = "FIELD[:desc]")]
    order: Option<String>,
    /// Columns to show; may be repeated or separated by commas
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    fields: Vec<String>,
    /// `global`: touching every group is meant
    #[arg(long, value_name = "global", value_parser = ["global"])]
    allow: Option<String>,
    /// A partial answer is better than none; its exit status is 5
    #[arg(long)]
    partial: bool,
    #[command(flatten)]
    pub(crate) server: ServerArg,
}

impl Selection {
    /// The request body.
    pub(crate) fn body(&self) -> Map<String, Value> {
        let mut body = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(key.to_owned(), value);
            }
        };
        put("tenant", self.user.map(|user| user.to_string().into()));
        let ids: Vec<String> = self.id.iter().map(u64::to_string).collect();
        put("ids", (!ids.is_empty()).then(|| ids.into()));
        put("where", self.filter.clone().map(Value::from));
        put("from", self.from.clone().map(Value::from));
        put("to", self.to.clone().map(Value::from));
        put("order", self.order.clone().map(Value::from));
        put("fields", (!self.fields.is_empty()).then(|| self.fields.clone().into()));
        put("allow", self.allow.clone().map(Value::from));
        put("partial", self.partial.then(|| "allow".into()));
        body
    }

    /// The path of one of the store's operations.
    pub(crate) fn path(&self, operation: &str) -> String {
        format!("/v1/{}/{operation}", segment(&self.store))
    }
}

/// A store's name as part of a path.
pub(crate) fn segment(name: &str) -> String {
    name.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~$".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  metaroute query file_metadata --user 1000 --limit 5
  metaroute query file_metadata --user 1000 --where 'size > 1000000 && mime == \"video/mp4\"'
  metaroute query file_metadata --id 17 --allow global --format json
  metaroute query file_metadata --user 1000 --all --format ndjson > rows.ndjson")]
pub(crate) struct Query {
    #[command(flatten)]
    select: Selection,
    /// Rows on a page, 1 to 1000
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Go on where a page ended
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
    /// All pages, one after the other
    #[arg(long)]
    all: bool,
}

impl Query {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        source::runtime()?.block_on(async {
            let client = self.select.server.client()?;
            self.pages(&client, out).await
        })
    }

    async fn pages(&self, client: &Client, out: &mut Out) -> Outcome {
        let mut body = self.select.body();
        if let Some(limit) = self.limit.or(self.all.then_some(1_000)) {
            body.insert("limit".into(), limit.into());
        }
        if let Some(cursor) = &self.cursor {
            body.insert("cursor".into(), cursor.as_str().into());
        }
        let path = self.select.path("query");
        let mut rows: Vec<Value> = Vec::new();
        let mut complete = true;
        let mut found = 0_usize;
        let mut cost = 0.0;
        let (next, meta) = loop {
            let text = Some(Value::from(body.clone()).to_string());
            let mut page = client.json(Method::POST, &path, &[], text).await?;
            let meta = page["meta"].take();
            let next = page["next"].take();
            complete &= meta["complete"] == json!(true);
            cost += number(&meta["cost"]);
            let Value::Array(mut more) = page["rows"].take() else { return Err(bad_answer(client)) };
            found += more.len();
            match out.format {
                Format::Ndjson => {
                    for row in &more {
                        out.json(row)?;
                    }
                    out.flush()?;
                }
                Format::Text | Format::Json => rows.append(&mut more),
            }
            match next.as_str() {
                Some(cursor) if self.all => {
                    body.insert("cursor".into(), cursor.into());
                }
                _ => break (next, meta),
            }
        };
        match out.format {
            Format::Json => out.json(&json!({ "rows": rows, "next": next, "meta": meta }))?,
            // Rows alone on stdout; what belongs to all of them beside it.
            Format::Ndjson => tell(json!({ "next": next, "meta": meta }).to_string()),
            Format::Text => {
                show(out, &rows)?;
                out.flush()?;
                tell(summary(found, &meta, cost, complete));
                if let Some(cursor) = next.as_str() {
                    tell(paint(FAINT, &format!("more: --cursor {cursor}")));
                }
            }
        }
        Ok(if !complete {
            Status::Incomplete
        } else if found == 0 && !self.select.id.is_empty() {
            Status::No
        } else {
            Status::Done
        })
    }
}

fn bad_answer(client: &Client) -> Failure {
    Failure::new(Status::Unreachable, "bad_answer", format!("{} answered no rows", client.base()))
}

/// The number in a value; numbers keep their digits as text here.
pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().or_else(|| value.to_string().parse().ok()).unwrap_or(0.0)
}

fn show(out: &mut Out, rows: &[Value]) -> Result<(), Failure> {
    let Some(Value::Object(first)) = rows.first() else { return Ok(()) };
    let names: Vec<&str> = first.keys().map(String::as_str).collect();
    let mut table = table(&names);
    for row in rows {
        table.add_row(names.iter().map(|name| cell(&row[*name])));
    }
    out.table(&table)?;
    Ok(())
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => paint(FAINT, "null"),
        Value::String(text) => text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect(),
        other => other.to_string(),
    }
}

/// One line about an answer.
pub(crate) fn summary(rows: usize, meta: &Value, cost: f64, complete: bool) -> String {
    let shards = &meta["shards"];
    let covers = if complete {
        paint(GOOD, "complete")
    } else {
        let missing = meta["missing"].as_array().map(Vec::as_slice).unwrap_or_default();
        let names: Vec<String> = missing
            .iter()
            .map(|m| format!("{}/{} {}", text(&m["group"]), text(&m["shard"]), text(&m["reason"])))
            .collect();
        paint(BAD, &format!("incomplete: {}", names.join(", ")))
    };
    let s = if rows == 1 { "" } else { "s" };
    format!(
        "{rows} row{s}, path {}, {} of {} shards answered, {} entries examined, cost {cost:.2}, {} µs, {covers}",
        text(&meta["path"]),
        shards["ok"],
        shards["total"],
        meta["examined"],
        meta["took_us"],
    )
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_in_paths() {
        assert_eq!(segment("file_metadata"), "file_metadata");
        assert_eq!(segment("a/b?c"), "a%2Fb%3Fc");
    }

    #[test]
    fn a_summary_names_what_is_missing() {
        let meta = json!({"path": "B", "shards": {"ok": 1, "total": 2}, "examined": 3, "took_us": 9,
                          "missing": [{"group": "g0", "shard": "s1", "reason": "timed_out"}]});
        let line = anstream::adapter::strip_str(&summary(1, &meta, 2.5, false)).to_string();
        assert_eq!(
            line,
            "1 row, path B, 1 of 2 shards answered, 3 entries examined, cost 2.50, 9 µs, incomplete: g0/s1 timed_out"
        );
    }
}
