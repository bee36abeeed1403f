use std::collections::HashMap;

use super::*;
use crate::sofa::message::{DataBoxPb, DataBoxesPb};

fn zones(boxes: &[&str]) -> HashMap<String, DataBoxesPb> {
    let data = boxes.iter().map(|text| DataBoxPb { data: (*text).to_owned() }).collect();
    HashMap::from([("DEFAULT_ZONE".to_owned(), DataBoxesPb { data })])
}

fn push(segment: &str, version: i64, boxes: &[&str]) -> Part {
    Part { segment: segment.to_owned(), version, zones: zones(boxes), encoding: String::new() }
}

fn shared() -> Shared {
    Shared {
        ids: AtomicU32::new(1),
        waiting: Mutex::default(),
        subscriptions: Mutex::default(),
        ended: watch::Sender::new(None),
    }
}

fn frame(class: &str, content: Vec<u8>) -> Frame {
    Frame {
        kind: Kind::Request { timeout: 2000 },
        command: Command::Message,
        id: 2699,
        codec: 1,
        class: format!("{PACKAGE}{class}"),
        content,
    }
}

#[test]
fn versions_count_per_data_centre() {
    let mut pushed = Pushed::default();
    assert!(pushed.take(push("a", 1, &[])));
    assert!(!pushed.known());
    assert!(pushed.take(push("a", 100, &["x", "w"])));
    assert!(pushed.known());
    assert!(!pushed.take(push("a", 99, &["old"])), "a late one is dropped");
    assert!(!pushed.take(push("a", 100, &["w", "x"])), "a repetition changes nothing");
    assert!(pushed.take(push("b", 5, &["y"])), "another data centre counts on its own");
    assert_eq!(pushed.segments["a"].boxes, ["w", "x"]);
    assert_eq!(pushed.segments["b"].boxes, ["y"]);
    assert!(pushed.take(push("a", 101, &[])), "explicitly empty");
    assert!(pushed.known());
    assert_eq!(pushed.changes, 4);
}

fn recorded(bytes: &[u8]) -> Frame {
    let mut decoder = Decoder::default();
    decoder.push(bytes);
    decoder.next_frame().expect("a frame").expect("whole")
}

/// Recorded from server 6.3.0; the header says Hessian.
#[test]
fn a_recorded_push_is_read() {
    let frame = recorded(include_bytes!("push-6.3.0.bin"));
    assert_eq!((frame.codec, frame.kind), (1, Kind::Request { timeout: 2000 }));
    let data = ReceivedDataPb::decode(&*frame.content).expect("protobuf all the same");
    assert_eq!((&*data.data_id, &*data.group), ("pb.Service:1.0@DEFAULT", "DEFAULT_GROUP"));
    assert_eq!((&*data.segment, &*data.scope), ("DefaultDataCenter", "zone"));
    assert_eq!(data.subscriber_regist_ids, ["aaae62db-2369-415f-b46d-0e8e10ec35fd"]);
    let (_, parts) = parts(&frame.class, &frame.content).expect("a push").expect("readable");
    let mut pushed = Pushed::default();
    assert!(parts.into_iter().all(|part| pushed.take(part)));
    let segment = &pushed.segments["DefaultDataCenter"];
    assert!(segment.version > 1);
    assert_eq!(segment.boxes, ["bolt://10.1.0.1:12200?zone=z1&weight=100&note=%C3%A4%26%3D", "second box"]);
}

/// Recorded from server 5.4.3, which knows no protobuf: Bolt status 2 with four kilobytes of Hessian.
#[tokio::test]
async fn a_server_without_protobuf_says_so() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accepted");
        let mut request = [0; 512];
        let _ = stream.read(&mut request).await.expect("a request");
        stream.write_all(include_bytes!("refusal-5.4.3.bin")).await.expect("sent");
        stream
    });
    let connection = Connection::open(&address).await.expect("it connects");
    // The recorded answer is for the first call of a connection.
    let error = connection.register("PublisherRegisterPb", &ResultPb::default()).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("SOFARegistry 6 or later"), "{error}");
    assert!(error.to_string().len() < 600, "the stack trace is left out: {error}");
    assert!(connection.is_open(), "the server keeps it open, and so do we");
    server.await.expect("no panic");
}

/// As a server sends it, whose header says Hessian.
#[test]
fn a_push_is_decoded_by_its_class_and_answered() {
    let shared = shared();
    let data = ReceivedDataPb {
        segment: "DefaultDataCenter".to_owned(),
        version: 8,
        data: zones(&["bolt://10.0.0.1:12200"]),
        subscriber_regist_ids: vec!["me".to_owned()],
        ..ReceivedDataPb::default()
    };
    let receiver = shared.subscriptions().entry("me".into()).or_default().subscribe();
    let frame = frame("ReceivedDataPb", data.encode_to_vec());
    let answer = shared.receive(frame.clone()).expect("an answer");
    assert_eq!((answer.id, answer.kind), (2699, Kind::Response { status: 0 }));
    assert!(answer.class.ends_with(".ResultPb"));
    assert!(ResultPb::decode(&*answer.content).expect("a result").success);
    assert_eq!(receiver.borrow().segments["DefaultDataCenter"].boxes, ["bolt://10.0.0.1:12200"]);
    // What is not understood is answered too, or it comes again for ever.
    for class in ["com.example.Other", &format!("{PACKAGE}ReceivedDataPb")] {
        let odd = Frame { class: class.to_owned(), content: vec![0xff; 9], ..frame.clone() };
        assert!(shared.receive(odd).is_some());
    }
    assert!(shared.receive(Frame { kind: Kind::OneWay { timeout: 0 }, ..frame.clone() }).is_none());
    let heartbeat = shared.receive(Frame::heartbeat(9)).expect("an answer");
    assert_eq!((heartbeat.command, heartbeat.kind), (Command::Heartbeat, Kind::Response { status: 0 }));
}

/// The form for subscribers that take several data centres: each counts its own versions, and one that is not in a push stays.
#[test]
fn a_push_of_several_data_centres_is_one_change() {
    let shared = shared();
    let receiver = shared.subscriptions().entry("me".into()).or_default().subscribe();
    let receive = |segments: &[(&str, i64, &[&str])]| {
        let segments = segments.iter().map(|(name, version, boxes)| {
            let data = MultiSegmentDataPb { version: *version, unzip_data: zones(boxes), ..Default::default() };
            ((*name).to_owned(), data)
        });
        let data = MultiReceivedDataPb {
            subscriber_regist_ids: vec!["me".to_owned()],
            multi_data: segments.collect(),
            ..MultiReceivedDataPb::default()
        };
        assert!(shared.receive(frame("MultiReceivedDataPb", data.encode_to_vec())).is_some(), "it is answered");
        let pushed = receiver.borrow();
        let boxes = pushed.segments.values().flat_map(|segment| segment.boxes.clone()).collect::<Vec<_>>();
        (pushed.known(), boxes.join(" "))
    };
    assert_eq!(receive(&[("a", 1, &[]), ("b", 1, &[])]), (false, String::new()));
    assert_eq!(receive(&[("a", 7, &["x"]), ("b", 1, &[])]), (true, "x".into()));
    assert_eq!(receive(&[("b", 3, &["y"])]), (true, "x y".into()));
    assert_eq!(receive(&[("a", 6, &["old"]), ("b", 4, &["z"])]), (true, "x z".into()));
    assert_eq!(receive(&[("a", 8, &[]), ("b", 4, &["z"])]), (true, "z".into()));
    let compressed = MultiSegmentDataPb { version: 9, encoding: "zstd".into(), ..Default::default() };
    let data = MultiReceivedDataPb {
        subscriber_regist_ids: vec!["me".to_owned()],
        multi_data: HashMap::from([("a".to_owned(), compressed)]),
        ..MultiReceivedDataPb::default()
    };
    shared.receive(frame("MultiReceivedDataPb", data.encode_to_vec()));
    assert!(receiver.borrow().unusable.is_some());
}

#[test]
fn errors_are_told_by_status_and_readable_text() {
    let peer = "127.0.0.1:9600".parse().expect("an address");
    let mut body = vec![0x4f, 0xc8, 0x39];
    body.extend(b"com.alipay.remoting.rpc.exception.RpcServerException\x94\x07\x00No user processor found for request: x.PublisherRegisterPb");
    let old = failed(peer, 2, &body);
    assert_eq!(old.kind(), ErrorKind::Unsupported);
    assert!(old.to_string().contains("SOFARegistry 6 or later"), "{old}");
    assert_eq!(failed(peer, 18, b"\x00").kind(), ErrorKind::Invalid);
    assert_eq!(failed(peer, 4, b"").kind(), ErrorKind::Unreachable);
    assert!(printable(&[b'x'; 5000]).len() <= 400);
}

/// A server that accepts and says nothing is noticed, and calls do not wait for ever.
#[tokio::test(start_paused = true)]
async fn silence_ends_a_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let connection = Connection::open(&address).await.expect("it connects");
    let _silent = listener.accept().await.expect("accepted");
    let started = Instant::now();
    let error = connection.register("ResultPb", &ResultPb::default()).await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let error = connection.ended().await;
    assert!(error.to_string().contains("nothing arrived"), "{error}");
    assert!(started.elapsed() <= Duration::from_secs(15), "{:?}", started.elapsed());
    assert!(!connection.is_open());
}
