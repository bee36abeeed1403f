//! Messages between router and shards: any bytes are read or refused, and what is read writes and reads the same. The
//! first byte chooses the message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use metaroute_cluster::wire::{self, proto};
use prost::Message;

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    match choice % 4 {
        0 => {
            let Ok(message) = proto::ReadRequest::decode(bytes) else { return };
            let Ok((request, timeout)) = wire::read_request_of(message) else { return };
            let again = wire::read_request_of(wire::read_request_to(&request, timeout)).expect("our own message");
            assert_eq!(format!("{again:?}"), format!("{:?}", (request, timeout)));
        }
        1 => {
            let Ok(message) = proto::ReadEvent::decode(bytes) else { return };
            let Ok(event) = wire::event_of(message) else { return };
            let again = wire::event_of(wire::event_to(event.clone())).expect("our own message");
            // Compared as text, because NaN is not equal to itself.
            assert_eq!(format!("{again:?}"), format!("{event:?}"));
        }
        2 => {
            let Ok(message) = proto::WriteRequest::decode(bytes) else { return };
            let Ok((request, timeout)) = wire::write_request_of(message) else { return };
            let text = format!("{request:?}");
            let again = wire::write_request_of(wire::write_request_to(request, timeout)).expect("our own message");
            assert_eq!(format!("{:?}", again.0), text);
        }
        _ => {
            let Ok(message) = proto::WriteAnswer::decode(bytes) else { return };
            let Ok(answer) = wire::write_answer_of(message) else { return };
            let again = wire::write_answer_of(wire::write_answer_to(answer.clone())).expect("our own message");
            assert_eq!(again, answer);
        }
    }
});
