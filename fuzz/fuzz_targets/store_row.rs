//! Any bytes read as a stored row, also with a checksum that fits.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use metaroute_store::{Declaration, Schema};

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let declaration: Declaration = serde_json::from_str(
        r#"{"name":"x","id":"i","tenant":"t","time":"ts","columns":{"i":"u64","t":"u64","a":"u64?","b":"i64?","c":"f64?",
        "d":"bool?","e":"decimal(20,4)?","f":"string?","g":"bytes?","h":"json?","ts":"timestamp(3)?","k":"datetime(0)?","l":"date?"}}"#,
    )
    .expect("valid JSON");
    Schema::parse(&declaration).expect("valid declaration")
});

fuzz_target!(|bytes: &[u8]| metaroute_store::fuzz::row(&SCHEMA, bytes));
