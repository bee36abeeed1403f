//! Any bytes looked over as an engine journal.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| metaroute_store::fuzz::journal(bytes));
