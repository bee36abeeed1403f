use proptest::prelude::*;
use prost::Message as _;
use serde_json::json;

use super::*;

/// The bytes of an envelope, field by field as the servers' `.proto` numbers them.
#[test]
fn the_envelope_has_the_fields_of_the_original() {
    let body = Map::from_iter([("a".to_owned(), json!(1))]);
    let bytes = pack("Kind", &body, "10.0.0.1", Some("t")).encode_to_vec();
    let mut wanted = Vec::new();
    let mut metadata = Vec::new();
    metadata.extend_from_slice(b"\x1a\x04Kind");
    metadata.extend_from_slice(b"\x3a\x10\x0a\x0baccessToken\x12\x01t");
    metadata.extend_from_slice(b"\x42\x0810.0.0.1");
    wanted.push(0x12);
    wanted.push(metadata.len() as u8);
    wanted.extend_from_slice(&metadata);
    wanted.extend_from_slice(b"\x1a\x09\x12\x07{\"a\":1}");
    assert_eq!(bytes, wanted);
}

fn message(kind: &str, body: Value) -> Message {
    let body = body.as_object().cloned().unwrap_or_default();
    Message { kind: kind.into(), body }
}

#[test]
fn refusals_are_told_from_answers() {
    for fine in [json!({"resultCode": 200, "errorCode": 0}), json!({}), json!({"resultCode": "200"})] {
        assert_eq!(refusal(&message("InstanceResponse", fine)), None);
    }
    let refused = |kind: &str, body: Value| refusal(&message(kind, body)).map(|refusal| refusal.code);
    assert_eq!(refused("ErrorResponse", json!({"resultCode": 500, "errorCode": 301})), Some(301));
    assert_eq!(refused("InstanceResponse", json!({"resultCode": 500, "errorCode": 0})), Some(500));
    assert_eq!(refused("ErrorResponse", json!({})), Some(500), "an error is one without a code too");
    assert_eq!(refused("InstanceResponse", json!({"resultCode": 400})), Some(400));
}

#[test]
fn codes_mean_what_the_caller_can_do() {
    let kind = |code: i64| error_of("h:1", &Refusal { code, message: "m".into() }).kind();
    for code in [300, 301, 500, 503, -503, 30000] {
        assert_eq!(kind(code), ErrorKind::Unreachable, "{code}");
    }
    for code in [400, 10000, 20002, 21008, 22001] {
        assert_eq!(kind(code), ErrorKind::Invalid, "{code}");
    }
    for code in [401, 403, 10001] {
        assert_eq!(kind(code), ErrorKind::Denied, "{code}");
    }
    assert_eq!(kind(302), ErrorKind::Unsupported);
}

#[test]
fn what_servers_say_stays_on_one_line() {
    assert_eq!(printable(" a\nb\u{1b}[31m "), "a b [31m");
    assert_eq!(printable(&"x".repeat(500)).len(), 200);
}

proptest! {
    #[test]
    fn envelopes_survive(kind in "[A-Za-z]{0,12}", text in "\\PC{0,20}", token in proptest::option::of("\\PC{0,9}")) {
        let body = Map::from_iter([("text".to_owned(), Value::from(text))]);
        let payload = pack(&kind, &body, "::1", token.as_deref());
        let bytes = payload.encode_to_vec();
        let read = unpack(Payload::decode(&*bytes).expect("what we wrote")).expect("what we wrote");
        prop_assert_eq!(read, Message { kind, body });
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        if let Ok(payload) = Payload::decode(&*bytes) && let Ok(message) = unpack(payload) {
            let _ = refusal(&message);
        }
    }
}
