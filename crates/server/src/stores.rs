//! Store declarations: which tables of metadata there are.
//!
//! A declaration is a short file a person writes (`--stores FILE`). It is read strictly, because a misspelt key would
//! otherwise show as a missing column only after the rows are in. The store `file_metadata` is always there.

use std::path::Path;
use std::sync::Arc;

use metaroute_registry::ConfigError;
use metaroute_registry::document::{Fields, Format, Node, Source};
use metaroute_store::{Declaration, DeclaredColumns, Schema};

/// The declaration of the built-in store, as a person would write it.
pub const FILE_METADATA: &str = include_str!("stores/file_metadata.yaml");

/// Most stores of one server.
pub const STORES_MAX: usize = 100;

/// The built-in store.
pub fn file_metadata() -> Arc<Schema> {
    let mut stores =
        parse("file_metadata.yaml", FILE_METADATA, Format::Yaml).expect("the built-in declaration is tested");
    stores.swap_remove(0)
}

/// The built-in store and the declared ones; a declaration of the built-in one's name replaces it.
pub fn with_built_in(declared: Vec<Arc<Schema>>) -> Vec<Arc<Schema>> {
    let built_in = file_metadata();
    let mut stores = Vec::with_capacity(declared.len() + 1);
    if declared.iter().all(|store| store.name() != built_in.name()) {
        stores.push(built_in);
    }
    stores.extend(declared);
    stores
}

/// Reads a file of declarations; its extension says the format.
///
/// # Errors
/// With the place, when the file cannot be read, has unknown keys, or declares something that cannot be stored.
pub fn read(path: &Path) -> Result<Vec<Arc<Schema>>, ConfigError> {
    let (text, format) = metaroute_registry::fleet::read_text(path)?;
    parse(&path.display().to_string(), &text, format)
}

/// Reads declarations from text; `name` stands in messages for the file. Names of stores are unique.
///
/// # Errors
/// As [`read`].
pub fn parse(name: &str, text: &str, format: Format) -> Result<Vec<Arc<Schema>>, ConfigError> {
    let source = Source::new(name, text);
    let root = source.parse(format)?;
    let fields = Fields::of(source, &root, "the file", &["stores"])?;
    let list = source.list_of(fields.require("stores", "the file")?, "stores")?;
    if list.len() > STORES_MAX {
        let message = format!("{} stores, at most {STORES_MAX}", list.len());
        return Err(source.error(root.span.start, "too_many_stores", message));
    }
    let mut stores: Vec<Arc<Schema>> = Vec::new();
    for node in list {
        let store = declaration(source, node)?;
        if stores.iter().any(|other| other.name() == store.name()) {
            let message = format!("store `{}` is declared twice", store.name());
            return Err(source.error(node.span.start, "duplicate_store", message));
        }
        stores.push(Arc::new(store));
    }
    Ok(stores)
}

fn declaration(source: Source<'_>, node: &Node<'_>) -> Result<Schema, ConfigError> {
    let what = "a store";
    let fields = Fields::of(source, node, what, &["name", "id", "tenant", "time", "columns", "listing"])?;
    let text = |key: &str| source.text_of(fields.require(key, what)?, key).map(str::to_owned);
    let mut columns = Vec::new();
    for entry in Fields::open(source, fields.require("columns", what)?, "`columns`")?.entries() {
        columns.push((entry.key.to_string(), source.text_of(&entry.node, &entry.key)?.to_owned()));
    }
    let mut listing = Vec::new();
    if let Some(list) = fields.get("listing") {
        for item in source.list_of(list, "listing")? {
            listing.push(source.text_of(item, "listing")?.to_owned());
        }
    }
    let declaration = Declaration {
        name: text("name")?,
        id: text("id")?,
        tenant: text("tenant")?,
        time: fields.text("time")?.map(str::to_owned),
        columns: DeclaredColumns(columns),
        listing,
    };
    if RESERVED_NAMES.contains(&declaration.name.as_str()) {
        let message = format!("`{}` cannot name a store; the HTTP API uses it", declaration.name);
        return Err(source.error(node.span.start, "bad_store", message));
    }
    Schema::parse(&declaration).map_err(|error| {
        let mut message = error.to_string();
        if let Some(cause) = std::error::Error::source(&error) {
            message = format!("{message}: {cause}");
        }
        source.error(node.span.start, "bad_store", message)
    })
}

/// First path segments under `/v1` that are not stores.
const RESERVED_NAMES: [&str; 5] = ["services", "stores", "topology", "stats", "query_file_metadata"];

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> ConfigError {
        parse("stores.yaml", text, Format::Yaml).expect_err("refused")
    }

    #[test]
    fn the_built_in_store_is_the_documented_one() {
        let store = file_metadata();
        let columns: Vec<String> = store
            .columns()
            .iter()
            .map(|c| format!("{}: {}{}", c.name, c.ty, if c.nullable { "?" } else { "" }))
            .collect();
        assert_eq!(
            columns.join(", "),
            "file_id: u64, user_id: u64, path: string, size: u64?, mime: string?, content_hash: bytes?, \
             created_at: timestamp(6)?, updated_at: timestamp(6)?"
        );
        let listed: Vec<&str> = store.default_columns().iter().map(|&at| store.columns()[at].name.as_str()).collect();
        assert_eq!(listed, ["file_id", "user_id", "created_at", "path", "size", "mime", "updated_at"]);
    }

    #[test]
    fn mistakes_are_refused_with_their_place() {
        let twice = "stores:\n- {name: a, id: i, tenant: t, columns: {i: u64, t: u64}}\n- {name: a, id: i, tenant: t, columns: {i: u64, t: u64}}\n";
        assert_eq!(error(twice).code, "duplicate_store");
        let unknown = error("stores:\n- {name: a, id: i, tenant: t, colums: {}}\n");
        assert_eq!((unknown.code, unknown.hint.as_deref()), ("unknown_key", Some("did you mean `columns`?")));
        assert_eq!(unknown.at.map(|at| at.line), Some(2));
        let bad = error("stores:\n- {name: a, id: i, tenant: t, columns: {i: u64, t: u32}}\n");
        assert!(bad.message.contains("unknown column type \"u32\""), "{bad}");
        assert_eq!(error("stores:\n- {name: topology, id: i, tenant: t, columns: {i: u64, t: u64}}").code, "bad_store");
    }

    #[test]
    fn the_built_in_store_can_be_replaced_but_not_lost() {
        let text = "stores:\n- {name: assets, id: i, tenant: t, columns: {i: u64, t: u64}}\n";
        let stores = with_built_in(parse("s.yaml", text, Format::Yaml).expect("legal"));
        let names: Vec<&str> = stores.iter().map(|s| s.name()).collect();
        assert_eq!(names, ["file_metadata", "assets"]);
    }
}
