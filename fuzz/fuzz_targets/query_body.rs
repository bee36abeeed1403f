//! Bodies of queries and rows: reading is total, and a row that is accepted fits its store.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use metaroute_registry::document::Format;
use metaroute_server::{api, stores};
use metaroute_store::Schema;

/// A column of every type.
const STORE: &str = "stores:
- {name: s, id: i, tenant: t, time: at, listing: [a, x],
   columns: {i: u64, t: u64, at: 'timestamp(3)?', a: i64?, b: f64?, c: bool?, d: 'decimal(20,4)?', x: string?, y: bytes?, z: json?, dt: 'datetime(6)?', day: date?}}
";

static STORES: LazyLock<Vec<Arc<Schema>>> = LazyLock::new(|| {
    stores::with_built_in(stores::parse("stores.yaml", STORE, Format::Yaml).expect("legal"))
});

fuzz_target!(|body: &[u8]| {
    for store in STORES.iter() {
        api::fuzz_query_body(body, store);
    }
});
