//! `metaroute store dump`: everything in a store, one stored pair a line.

use std::path::PathBuf;

use clap::Args;
use metaroute_store::{Cancel, Dumped, OpenOptions, Schema, Store, Table, TimeKey, Totals, Value as Cell};
use serde_json::{Map, Value, json};

use crate::failure::Outcome;
use crate::output::{Format, Out};
use crate::status::Status;

#[derive(Args)]
pub(crate) struct Dump {
    /// A data folder
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Only this table's rows and index entries
    #[arg(long, value_name = "TABLE")]
    table: Option<String>,
}

impl Dump {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let mut first = true;
        if out.format == Format::Json {
            out.raw("[")?;
        }
        for path in super::find(&self.path)? {
            let options = OpenOptions { create: false, ..OpenOptions::default() };
            let store = Store::open(&path, options).map_err(|error| super::failure(&error))?;
            let view = store.view().map_err(|error| super::failure(&error))?;
            let tables: Vec<Table> = view.tables().cloned().collect();
            let mut broken = None;
            let walked = view.dump(&Cancel::new(), |pair| {
                if !self.wants(&pair) {
                    return true;
                }
                let mut line = pair_json(&tables, pair);
                line.insert("store".into(), path.display().to_string().into());
                let written = match out.format {
                    Format::Text => out.line(text(&line)),
                    Format::Ndjson => out.json(&line),
                    Format::Json => {
                        let comma = if first { "\n" } else { ",\n" };
                        out.raw(&format!("{comma}{}", Value::Object(line)))
                    }
                };
                first = false;
                match written {
                    Ok(()) => true,
                    Err(error) => {
                        broken = Some(error);
                        false
                    }
                }
            });
            drop(view);
            store.close();
            if let Some(error) = broken {
                return Err(error.into());
            }
            walked.map_err(|error| super::failure(&error))?;
        }
        if out.format == Format::Json {
            out.raw("\n]\n")?;
        }
        Ok(Status::Done)
    }

    fn wants(&self, pair: &Dumped) -> bool {
        let Some(wanted) = &self.table else { return true };
        match pair {
            Dumped::Row { table, .. }
            | Dumped::Tombstone { table, .. }
            | Dumped::Void { table, .. }
            | Dumped::Entry { table, .. } => table == wanted,
            _ => false,
        }
    }
}

/// `kind key=value …`, for people.
fn text(line: &Map<String, Value>) -> String {
    let mut text = line.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    for (key, value) in line {
        if key != "kind" && key != "store" {
            text.push_str(&match value {
                Value::String(value) => format!(" {key}={value}"),
                value => format!(" {key}={value}"),
            });
        }
    }
    text
}

/// A cell by the rules of answers: 64-bit integers and decimals as text, bytes as hexadecimal digits.
fn cell(schema: &Schema, ordinal: usize, value: &Cell) -> Value {
    let ty = schema.columns()[ordinal].ty;
    match value {
        Cell::Null => Value::Null,
        Cell::Bool(value) => Value::Bool(*value),
        Cell::F64(value) => json!(value),
        Cell::Bytes(bytes) => Value::String(hex(bytes)),
        value => value.to_text(ty).map_or(Value::Null, |text| Value::String(text.into_owned())),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn totals_json(totals: &Totals) -> Value {
    json!({ "rows": totals.rows, "sums": totals.sums.iter().map(i128::to_string).collect::<Vec<_>>() })
}

fn pair_json(tables: &[Table], pair: Dumped) -> Map<String, Value> {
    let schema = |name: &str| tables.iter().find(|t| t.name() == name).map(Table::schema);
    let time = |schema: &Schema, time: Option<TimeKey>| {
        let column = schema.time().map(|at| (at, schema.columns()[at].ty));
        time.zip(column).map_or(Value::Null, |(time, (at, ty))| cell(schema, at, &time.to_value(ty)))
    };
    let value = match pair {
        Dumped::Header(version) => json!({ "kind": "header", "version": version }),
        Dumped::Schema { table, declaration } => {
            json!({ "kind": "schema", "table_id": table.get(), "declaration": declaration })
        }
        Dumped::State { table, truncated_below, tombstones_below, highest_id, highest_version, counter_generation } => {
            json!({
                "kind": "state", "table_id": table.get(), "truncated_below": truncated_below.to_string(),
                "tombstones_below": tombstones_below.to_string(), "highest_id": highest_id.map(|id| id.to_string()),
                "highest_version": highest_version.to_string(), "counter_generation": counter_generation,
            })
        }
        Dumped::Position { lane, position } => json!({
            "kind": "position", "lane": String::from_utf8_lossy(lane.as_bytes()), "position": hex(&position),
        }),
        Dumped::Attribute { name, value } => json!({ "kind": "attribute", "name": name, "value": hex(&value) }),
        Dumped::Intent { table } => json!({ "kind": "intent", "table_id": table.get() }),
        Dumped::Counter { table, generation, tenant, totals } => json!({
            "kind": "counter", "table_id": table.get(), "generation": generation,
            "tenant": tenant.map(|tenant| tenant.to_string()), "totals": totals_json(&totals),
        }),
        Dumped::Row { table, id, version, values, visible } => {
            let mut columns = Map::new();
            if let Some(schema) = schema(&table) {
                for (at, value) in values.iter().enumerate() {
                    columns.insert(schema.columns()[at].name.clone(), cell(schema, at, value));
                }
            }
            json!({
                "kind": "row", "table": table, "id": id.to_string(), "version": version.to_string(), "visible": visible,
                "row": columns,
            })
        }
        Dumped::Tombstone { table, id, version, visible } => json!({
            "kind": "tombstone", "table": table, "id": id.to_string(), "version": version.to_string(),
            "visible": visible,
        }),
        Dumped::Void { table, id } => json!({ "kind": "void", "table": table, "id": id.to_string() }),
        Dumped::Entry { table, tenant, time: at, id, version, visible, values } => {
            let mut columns = Map::new();
            let mut shown = Value::Null;
            if let Some(schema) = schema(&table) {
                shown = time(schema, at);
                for (&at, value) in schema.listing().iter().zip(&values) {
                    columns.insert(schema.columns()[at].name.clone(), cell(schema, at, value));
                }
            }
            json!({
                "kind": "index", "table": table, "tenant": tenant.to_string(), "time": shown, "id": id.to_string(),
                "version": version.to_string(), "visible": visible, "listing": columns,
            })
        }
        Dumped::Unknown { key, value } => json!({ "kind": "unknown", "key": key, "value": value }),
        Dumped::Damaged { key, error } => json!({ "kind": "damaged", "key": key, "error": error.to_string() }),
        _ => json!({ "kind": "other" }),
    };
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
