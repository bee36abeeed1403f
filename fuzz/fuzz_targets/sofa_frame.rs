//! Bolt frames: any bytes are read or refused, in one piece or in many, and a frame that was read comes back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use metaroute_registry::sofa::frame::{Decoder, Frame, FrameError};

fn all(data: &[u8], piece: usize) -> Result<Vec<Frame>, FrameError> {
    let mut decoder = Decoder::default();
    let mut frames = Vec::new();
    for bytes in data.chunks(piece) {
        decoder.push(bytes);
        while let Some(frame) = decoder.next_frame()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

fuzz_target!(|input: (u8, &[u8])| {
    let (piece, data) = input;
    let whole = all(data, data.len().max(1));
    assert_eq!(all(data, usize::from(piece) + 1), whole);
    for frame in whole.into_iter().flatten() {
        assert_eq!(all(&frame.encode(), usize::MAX), Ok(vec![frame]));
    }
});
