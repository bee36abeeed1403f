//! Any bytes read as a stored schema; what reads must survive its own stored form.
#![no_main]

use libfuzzer_sys::fuzz_target;
use metaroute_store::Schema;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(schema) = Schema::decode(bytes) {
        let declaration = serde_json::to_vec(&schema.to_declaration()).expect("serialises");
        assert_eq!(Schema::decode(&declaration).as_ref(), Ok(&schema));
        assert_eq!(schema.evolve(&schema).as_ref(), Ok(&schema));
    }
});
