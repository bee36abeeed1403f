//! Shapes shared by this crate's own tests.

use std::sync::Arc;

use metaroute_store::{Declaration, DeclaredColumns, Schema};

/// The built-in store.
pub(crate) fn file_metadata() -> Arc<Schema> {
    let columns = [
        ("file_id", "u64"),
        ("user_id", "u64"),
        ("path", "string"),
        ("size", "u64?"),
        ("mime", "string?"),
        ("content_hash", "bytes?"),
        ("created_at", "timestamp(6)?"),
        ("updated_at", "timestamp(6)?"),
    ];
    let declaration = Declaration {
        name: "file_metadata".into(),
        id: "file_id".into(),
        tenant: "user_id".into(),
        time: Some("created_at".into()),
        columns: DeclaredColumns(columns.map(|(name, ty)| (name.to_owned(), ty.to_owned())).to_vec()),
        listing: ["path", "size", "mime", "updated_at"].map(str::to_owned).to_vec(),
    };
    Arc::new(Schema::parse(&declaration).expect("the built-in store is legal"))
}
