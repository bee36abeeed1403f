use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("hexadecimal") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) * 16 + digit(pair[1])).collect()
}

fn one(bytes: &[u8]) -> Result<Option<Frame>, FrameError> {
    let mut decoder = Decoder::default();
    decoder.push(bytes);
    decoder.next_frame()
}

#[test]
fn heartbeats_are_those_of_the_reference_client() {
    let bytes = hex("01 01 0000 01 00000005 01 ffffffff 0000 0000 00000000");
    assert_eq!(Frame::heartbeat(5).encode(), bytes);
    assert_eq!(one(&bytes).expect("a frame"), Some(Frame::heartbeat(5)));
    let answer = one(&hex("01 00 0000 01 00000005 01 0000 0000 0000 00000000")).expect("a frame").expect("whole");
    assert_eq!((answer.kind, answer.command), (Kind::Response { status: 0 }, Command::Heartbeat));
}

/// Recorded between SOFARegistry 6.3.0 and its own client: the header of a subscription and of its answer.
#[test]
fn recorded_headers_are_read() {
    let mut request = hex("01010001010000000101000003e80036000000000162");
    request.extend(b"com.alipay.sofa.registry.core.model.SubscriberRegister");
    request.extend([0x4f; 0x162]);
    let frame = one(&request).expect("a frame").expect("whole");
    assert_eq!(frame.kind, Kind::Request { timeout: 1000 });
    assert_eq!((frame.id, frame.codec, frame.content.len()), (1, 1, 354));
    assert!(frame.class.ends_with(".SubscriberRegister"));
    let mut response = hex("01000002010000000101000000340000000000aa");
    response.extend(b"com.alipay.sofa.registry.core.model.RegisterResponse");
    response.extend([0x4f; 0xaa]);
    let frame = one(&response).expect("a frame").expect("whole");
    assert_eq!(frame.kind, Kind::Response { status: 0 });
    assert_eq!(frame.content.len(), 170);
}

/// Version 2, with and without the checksum.
#[test]
fn the_second_version_is_read_and_its_checksum_checked() {
    let mut plain = hex("02 01 01 0001 01 00000007 0b 00 00000bb8 0001 0002 00000003");
    plain.extend(b"Chhabc");
    let frame = one(&plain).expect("a frame").expect("whole");
    assert_eq!((&*frame.class, &*frame.content, frame.id), ("C", &b"abc"[..], 7));
    let mut checked = plain.clone();
    checked[1] = 2;
    checked[11] = 1;
    let crc = crc32fast::hash(&checked);
    checked.extend(crc.to_be_bytes());
    assert_eq!(one(&checked).expect("a frame"), Some(frame));
    *checked.last_mut().expect("bytes") ^= 1;
    assert!(one(&checked).expect_err("a wrong checksum").to_string().contains("checksum"));
}

#[test]
fn what_is_no_frame_is_refused_at_once_and_whatever_its_length_says() {
    for bytes in ["00", "47455420", "0203", "0103", "01010007", "0101000101000000010b000003e8ffff000000000001"] {
        assert!(one(&hex(bytes)).is_err(), "{bytes}");
    }
    assert!(one(&hex("0101000101000000010b000003e8000100007fffffff")).is_err(), "two gigabytes of content");
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let kind = prop_oneof![
        any::<i32>().prop_map(|timeout| Kind::Request { timeout }),
        any::<i32>().prop_map(|timeout| Kind::OneWay { timeout }),
        any::<u16>().prop_map(|status| Kind::Response { status }),
    ];
    let command = prop_oneof![Just(Command::Heartbeat), Just(Command::Message)];
    let content = prop::collection::vec(any::<u8>(), 0..40);
    (kind, command, any::<u32>(), any::<u8>(), "[a-zä.]{0,20}", content)
        .prop_map(|(kind, command, id, codec, class, content)| Frame { kind, command, id, codec, class, content })
}

proptest! {
    #[test]
    fn frames_come_back_however_they_arrive(
        frames in prop::collection::vec(any_frame(), 0..5),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.push(bytes.len());
        cuts.sort_unstable();
        let (mut decoder, mut read, mut from) = (Decoder::default(), Vec::new(), 0);
        for cut in cuts {
            decoder.push(&bytes[from..cut]);
            from = cut;
            while let Some(frame) = decoder.next_frame().expect("frames") {
                read.push(frame);
            }
        }
        prop_assert_eq!(read, frames);
        prop_assert!(decoder.bytes.is_empty());
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), version in 1_u8..3) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = version;
        }
        let mut decoder = Decoder::default();
        decoder.push(&bytes);
        while let Ok(Some(_)) = decoder.next_frame() {}
    }
}
