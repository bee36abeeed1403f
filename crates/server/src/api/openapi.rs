//! The OpenAPI document, generated from the stores that are served.
//!
//! A document with `{store}` and "any object" would describe nothing. Here every store has its own paths, with the
//! columns it has, their types and bounds, so that generated clients and tests know what a row is.

use std::sync::Arc;

use metaroute_store::{Column, ColumnType, Schema};
use serde_json::{Map, Value, json};

use super::{BODY_MAX, patterns};

const PROBLEM: &str = "#/components/schemas/Problem";

/// The document for these stores.
pub fn document(stores: &[Arc<Schema>]) -> Value {
    let mut paths = Map::new();
    paths.insert("/livez".into(), json!({ "get": probe("Whether the process runs.", false) }));
    paths.insert("/readyz".into(), json!({ "get": probe("Whether requests can be answered completely.", true) }));
    paths.insert("/metrics".into(), json!({"get": {
        "summary": "Metrics in the OpenMetrics text format.",
        "responses": {"200": {"description": "metrics", "content": {"application/openmetrics-text": {"schema": {"type": "string"}}}}},
    }}));
    paths.insert("/openapi.json".into(), json!({"get": {
        "summary": "This document.",
        "responses": {"200": {"description": "the document", "content": {"application/json": {"schema": {"type": "object"}}}}},
    }}));
    data_paths(stores, &mut paths);
    let mut schemas = Map::new();
    data_schemas(stores, &mut schemas);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "metaroute",
            "description": "Rows of metadata by tenant and id. 64-bit integers and decimals are strings in answers unless \"ints\" is \"number\".",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

/// Adds the paths about rows.
fn data_paths(stores: &[Arc<Schema>], paths: &mut Map<String, Value>) {
    paths.insert("/v1/stores".into(), json!({"get": {
        "summary": "The stores and their columns.",
        "responses": {"200": answer("the declarations", json!({
            "type": "object", "required": ["stores"], "properties": {"stores": {"type": "array", "items": {"type": "object"}}},
        }))},
    }}));
    paths.insert(
        "/v1/stats".into(),
        json!({"get": {
            "summary": "Groups, shards, states and sizes.",
            "responses": with_problems(json!({"200": answer("the numbers", json!({"type": "object"}))}), &["503"]),
        }}),
    );
    paths.insert(
        "/v1/backup".into(),
        json!({"get": {
            "summary": "All shards of this process and the small files of its data folder, as frames of a kind (1 file, 2 data, 3 end), a length in four bytes and a payload; without its end it is no backup.",
            "responses": with_problems(json!({"200": {
                "description": "the frames", "content": {"application/octet-stream": {}},
            }}), &["404", "503"]),
        }}),
    );
    topology_paths(paths);
    for store in stores {
        store_paths(store, paths);
    }
    if let Some(built_in) = stores.iter().find(|store| store.name() == "file_metadata") {
        paths.insert("/v1/query_file_metadata".into(), json!({ "post": query(built_in) }));
    }
}

/// Adds the schemas that [`data_paths`] refers to.
fn data_schemas(stores: &[Arc<Schema>], schemas: &mut Map<String, Value>) {
    schemas.insert("Problem".into(), problem());
    schemas.insert("Meta".into(), meta());
    for store in stores {
        schemas.insert(format!("{}.row", store.name()), row_in_answers(store));
        schemas.insert(format!("{}.new", store.name()), row_in_requests(store));
    }
}

fn probe(summary: &str, may_fail: bool) -> Value {
    let ok =
        answer("ok", json!({"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}}));
    let responses = json!({ "200": ok });
    json!({"summary": summary, "responses": if may_fail { with_problems(responses, &["503"]) } else { responses }})
}

fn answer(description: &str, schema: Value) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

fn with_problems(mut responses: Value, statuses: &[&str]) -> Value {
    if let Some(map) = responses.as_object_mut() {
        for status in statuses {
            map.insert(
                (*status).to_owned(),
                json!({
                    "description": "refused or failed; `code` says why",
                    "content": {"application/problem+json": {"schema": {"$ref": PROBLEM}}},
                }),
            );
        }
    }
    responses
}

fn topology_paths(paths: &mut Map<String, Value>) {
    let document = json!({"type": "object", "required": ["version", "epoch", "groups", "tenants"]});
    paths.insert("/v1/topology".into(), json!({
        "get": {
            "summary": "Groups, shards and who owns what.",
            "parameters": [{
                "name": "epoch", "in": "query", "description": "a former topology",
                "schema": {"type": "integer", "minimum": 0, "maximum": u64::MAX},
            }],
            "responses": with_problems(json!({"200": answer("the document; its epoch is the ETag", document.clone())}),
                                       &["400", "404", "503"]),
        },
        "put": {
            "summary": "Replaces the topology by compare-and-swap.",
            "parameters": [
                {"name": "If-Match", "in": "header", "description": "the current epoch; needed unless dry_run", "schema": {"type": "string"}},
                {"name": "dry_run", "in": "query", "schema": {"type": "boolean"}},
                {"name": "force", "in": "query", "schema": {"type": "boolean"}},
            ],
            "requestBody": {"required": true, "content": {"application/json": {"schema": {"type": "object"}}}},
            "responses": with_problems(json!({"200": answer("what changes", json!({"type": "object", "required": ["epoch", "changes"]}))}),
                                       &["400", "409", "412", "413", "500", "503"]),
        },
    }));
    paths.insert("/v1/topology/history".into(), json!({"get": {
        "summary": "The topologies that are kept.",
        "responses": with_problems(json!({"200": answer("newest first", json!({"type": "object", "required": ["history"]}))}), &["500"]),
    }}));
}

fn store_paths(store: &Schema, paths: &mut Map<String, Value>) {
    let name = store.name();
    let new = format!("#/components/schemas/{name}.new");
    let row = format!("#/components/schemas/{name}.row");
    paths.insert(
        format!("/v1/{name}/rows"),
        json!({"post": {
            "summary": "Stores rows; of two with one id the last wins. Answers once they are durable.",
            "requestBody": {"required": true, "description": format!("at most {} MiB", BODY_MAX >> 20), "content": {
                "application/json": {"schema": {
                    "type": "object", "required": ["rows"], "additionalProperties": false,
                    "properties": {"rows": {"type": "array", "items": {"$ref": new}}},
                }},
            }},
            "responses": with_problems(json!({"200": answer("stored", json!({
                "type": "object", "required": ["written"], "properties": {"written": {"type": "integer", "minimum": 0}},
            }))}), &["400", "409", "413", "500", "503", "504"]),
        }}),
    );
    let tenant = &store.columns()[store.tenant()].name;
    let whose = |required: bool| {
        json!({
            "name": tenant, "in": "query", "required": required, "description": "whose row",
            "schema": {"type": "integer", "minimum": 0, "maximum": u64::MAX},
        })
    };
    let id = json!({
        "name": "id", "in": "path", "required": true,
        "schema": {"type": "integer", "minimum": 0, "maximum": u64::MAX},
    });
    let timeout = json!({
        "name": "timeout_ms", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 600_000},
    });
    paths.insert(
        format!("/v1/{name}/rows/{{id}}"),
        json!({
            "get": {
                "summary": "One row, path A; without its tenant path CI, which needs allow=global.",
                "parameters": [
                    id, whose(false),
                    {"name": "allow", "in": "query", "schema": {"enum": ["global"]}},
                {"name": "fields", "in": "query", "description": "columns, separated by commas", "schema": {"type": "string"}},
                    {"name": "ints", "in": "query", "schema": {"enum": ["string", "number"]}},
                    timeout.clone(),
                ],
                "responses": with_problems(json!({"200": answer("the row", json!({
                    "type": "object", "required": ["row", "meta"],
                    "properties": {"row": {"$ref": row}, "meta": {"$ref": "#/components/schemas/Meta"}},
                }))}), &["400", "403", "404", "429", "500", "503", "504"]),
            },
            "delete": {
                "summary": "Deletes a row of a tenant.",
                "parameters": [id, whose(true), timeout],
                "responses": with_problems(json!({"200": answer("how many there were", json!({
                    "type": "object", "required": ["deleted"], "properties": {"deleted": {"enum": [0, 1]}},
                }))}), &["400", "409", "500", "503", "504"]),
            },
        }),
    );
    paths.insert(format!("/v1/{name}/query"), json!({ "post": query(store) }));
    paths.insert(
        format!("/v1/{name}/count"),
        json!({"post": {
            "summary": "Counts rows, and sums a column of them.",
            "requestBody": body(store, &["sum", "ints"]),
            "responses": with_problems(json!({"200": answer("the count", json!({
                "type": "object", "required": ["count", "meta"],
                "properties": {
                    "count": {"type": "integer", "minimum": 0},
                    "sum": {"type": ["string", "number"]},
                    "meta": {"$ref": "#/components/schemas/Meta"},
                },
            }))}), &["400", "403", "409", "413", "429", "500", "503", "504"]),
        }}),
    );
    paths.insert(
        format!("/v1/{name}/export"),
        json!({"post": {
            "summary": "All rows, one a line; the last line is {\"meta\": …}, without it the export did not finish.",
            "requestBody": body(store, &["order", "fields", "ints"]),
            "responses": with_problems(json!({"200": {
                "description": "rows and meta", "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
            }}), &["400", "403", "409", "413", "429", "500", "503", "504"]),
        }}),
    );
    paths.insert(
        format!("/v1/{name}/explain"),
        json!({"post": {
            "summary": "What a query would do and cost, also for one that would be refused.",
            "requestBody": body(store, &["order", "limit", "cursor", "fields", "ints", "sum"]),
            "responses": with_problems(json!({"200": answer("the plan", json!({
                "type": "object", "required": ["path", "shards", "verdict"],
            }))}), &["400", "413", "503"]),
        }}),
    );
}

fn query(store: &Schema) -> Value {
    let row = format!("#/components/schemas/{}.row", store.name());
    json!({
        "summary": "One page of rows.",
        "requestBody": body(store, &["order", "limit", "cursor", "fields", "ints"]),
        "responses": with_problems(json!({"200": answer("a page; next is null when there is no more", json!({
            "type": "object", "required": ["rows", "next", "meta"],
            "properties": {
                "rows": {"type": "array", "items": {"$ref": row}},
                "next": {"type": ["string", "null"]},
                "meta": {"$ref": "#/components/schemas/Meta"},
            },
        }))}), &["400", "403", "409", "413", "429", "500", "503", "504"]),
    })
}

/// A request body with these keys and the common ones.
fn body(store: &Schema, keys: &[&str]) -> Value {
    let id = &store.columns()[store.id()].name;
    let tenant = &store.columns()[store.tenant()].name;
    let number = unsigned();
    let ids = json!({"type": ["array", "null"], "items": number, "maxItems": metaroute_cluster::query::IDS_MAX});
    let mut properties = Map::new();
    for name in [tenant, id] {
        properties.insert(name.clone(), nullable(number.clone()));
    }
    properties.insert(format!("{id}s"), ids);
    let text = json!({"type": ["string", "null"]});
    properties.insert("where".into(), text.clone());
    properties.insert("allow".into(), json!({"enum": ["global", null]}));
    properties.insert("partial".into(), json!({"enum": ["allow", "deny", null]}));
    properties.insert("min_gtid".into(), text.clone());
    properties.insert("max_lag_ms".into(), nullable(number));
    properties.insert("timeout_ms".into(), json!({"type": ["integer", "null"], "minimum": 1, "maximum": 600_000}));
    if let Some(at) = store.time() {
        let bound = nullable(cell_in_requests(&store.columns()[at]));
        properties.insert("from".into(), bound.clone());
        properties.insert("to".into(), bound);
    }
    let columns: Vec<&str> = store.columns().iter().map(|column| column.name.as_str()).collect();
    for key in keys {
        let schema = match *key {
            "limit" => {
                json!({"type": ["integer", "null"], "minimum": 1, "maximum": metaroute_cluster::query::LIMIT_MAX})
            }
            "fields" => json!({"type": ["array", "null"], "items": {"enum": columns}, "minItems": 1}),
            "ints" => json!({"enum": ["string", "number", null]}),
            "sum" => {
                let numeric: Vec<Value> = store
                    .columns()
                    .iter()
                    .filter(|column| {
                        matches!(
                            column.ty,
                            ColumnType::U64 | ColumnType::I64 | ColumnType::F64 | ColumnType::Decimal { .. }
                        )
                    })
                    .map(|column| Value::from(column.name.as_str()))
                    .chain([Value::Null])
                    .collect();
                json!({ "enum": numeric })
            }
            _ => text.clone(),
        };
        properties.insert((*key).to_owned(), schema);
    }
    json!({
        "required": false,
        "description": format!("`tenant`, `id` and `ids` stand for `{tenant}`, `{id}` and `{id}s` in every store"),
        "content": {"application/json": {"schema": {
            "type": "object", "additionalProperties": false, "properties": properties,
        }}},
    })
}

fn unsigned() -> Value {
    json!({"anyOf": [
        {"type": "integer", "minimum": 0, "maximum": u64::MAX},
        {"type": "string", "pattern": patterns::unsigned()},
    ]})
}

fn nullable(schema: Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}

fn row_in_requests(store: &Schema) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for column in store.columns() {
        let schema = cell_in_requests(column);
        if !column.nullable {
            required.push(column.name.clone());
        }
        properties.insert(column.name.clone(), if column.nullable { nullable(schema) } else { schema });
    }
    json!({"type": "object", "additionalProperties": false, "required": required, "properties": properties})
}

fn cell_in_requests(column: &Column) -> Value {
    match column.ty {
        ColumnType::U64 => unsigned(),
        ColumnType::I64 => json!({"anyOf": [
            {"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX},
            {"type": "string", "pattern": patterns::signed()},
        ]}),
        ColumnType::F64 => json!({"type": "number"}),
        ColumnType::Bool => json!({"type": "boolean"}),
        ColumnType::Decimal { precision, scale } => {
            let text = json!({"type": "string", "pattern": patterns::decimal(precision - scale, scale)});
            json!({"anyOf": [{"type": "number"}, text]})
        }
        ColumnType::String => json!({"type": "string"}),
        ColumnType::Bytes => json!({"type": "string", "pattern": patterns::BASE64, "contentEncoding": "base64"}),
        ColumnType::Json => json!({}),
        ColumnType::Timestamp { digits } => json!({"type": "string", "pattern": patterns::timestamp(digits)}),
        ColumnType::Datetime { digits } => json!({"type": "string", "pattern": patterns::datetime(digits)}),
        _ => json!({"type": "string", "pattern": patterns::date()}),
    }
}

fn row_in_answers(store: &Schema) -> Value {
    let mut properties = Map::new();
    for column in store.columns() {
        let types: &[&str] = match column.ty {
            ColumnType::U64 | ColumnType::I64 | ColumnType::Decimal { .. } => &["string", "number"],
            ColumnType::F64 => &["number"],
            ColumnType::Bool => &["boolean"],
            ColumnType::Json => &[],
            _ => &["string"],
        };
        let schema = if types.is_empty() {
            json!({})
        } else if column.nullable {
            json!({"type": types.iter().chain(&["null"]).collect::<Vec<_>>()})
        } else {
            json!({ "type": types })
        };
        properties.insert(column.name.clone(), schema);
    }
    json!({"type": "object", "properties": properties})
}

fn problem() -> Value {
    json!({
        "type": "object",
        "required": ["title", "status", "code", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "code": {"type": "string", "description": "stable; decide by it"},
            "detail": {"type": "string"},
            "at": {"type": "object"},
            "expected": {"type": "array", "items": {"type": "string"}},
            "hint": {"type": "string"},
            "missing_slots": {"type": "integer"},
            "estimate": {"type": "object", "description": "what a refused global query would cost"},
            "meta": {"$ref": "#/components/schemas/Meta"},
        },
    })
}

fn meta() -> Value {
    let number = json!({"type": "integer", "minimum": 0});
    let counts = |names: &[&str]| {
        let properties: Map<String, Value> = names.iter().map(|name| ((*name).to_owned(), number.clone())).collect();
        json!({"type": "object", "required": names, "properties": properties})
    };
    json!({
        "type": "object",
        "description": "What was asked, what was reached and what it cost.",
        "required": ["path", "complete", "topology_epoch", "shards", "missing", "slots", "examined", "returned", "took_us", "hedged", "cost", "watermark"],
        "properties": {
            "path": {"enum": ["A", "AB", "B", "BP", "CI", "C", null], "description": "null where a request ended before its path was known"},
            "complete": {"type": "boolean"},
            "topology_epoch": number,
            "shards": counts(&["total", "ok", "failed", "timed_out", "not_ready", "stale", "moved_retried"]),
            "missing": {"type": "array", "items": {
                "type": "object", "required": ["group", "shard", "slots", "reason"],
            }},
            "slots": counts(&["wanted", "answered"]),
            "examined": number, "row_reads": number, "returned": number, "bytes": number, "took_us": number, "hedged": number,
            "cost": {"type": "number"},
            "watermark": {"type": "object"},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_resolves() {
        let document = document(&crate::stores::with_built_in(Vec::new()));
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        for part in text.split("\"#/components/schemas/").skip(1) {
            let name = part.split('"').next().expect("a name");
            assert!(schemas.contains_key(name), "{name}");
        }
        for path in ["/v1/file_metadata/rows", "/v1/file_metadata/query", "/v1/query_file_metadata", "/readyz"] {
            assert!(document["paths"].get(path).is_some(), "{path}");
        }
    }
}
