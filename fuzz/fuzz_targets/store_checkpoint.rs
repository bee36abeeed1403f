//! Any bytes read as a checkpoint, as they are and as frames with checksums that fit.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = metaroute_store::verify_checkpoint(&mut &*bytes);
    metaroute_store::fuzz::checkpoint_frames(bytes);
});
