//! Cursors: any text is refused, any bytes decode to what encodes to them again, and a sealed one opens only as it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use metaroute_cluster::cursor::{Binding, Cursor, CursorKeys};

fuzz_target!(|data: &[u8]| {
    let keys = CursorKeys::single([7; 32]);
    let binding = Binding { tenant: Some(9), query: b"walk" };
    if let Ok(text) = std::str::from_utf8(data) {
        // Opening a forged one would take guessing 128 bits.
        assert!(keys.open(text, binding).is_err());
    }
    if let Some(cursor) = Cursor::decode(data) {
        let sealed = keys.seal(&cursor, binding);
        assert_eq!(keys.open(&sealed, binding), Ok(cursor));
        assert!(keys.open(&sealed, Binding { tenant: Some(8), ..binding }).is_err());
        assert!(keys.open(&sealed[..sealed.len() - 1], binding).is_err());
    }
});
