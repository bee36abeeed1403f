use super::*;
use connection::Segment;

fn pushed(segments: &[(&str, i64, &[&str])]) -> Pushed {
    let segments = segments.iter().map(|(name, version, boxes)| {
        let boxes = boxes.iter().map(|text| (*text).to_owned()).collect();
        ((*name).to_owned(), Segment { version: *version, boxes })
    });
    Pushed { changes: 1, segments: segments.collect(), unusable: None }
}

#[test]
fn an_empty_push_of_version_one_is_unknown_and_any_other_is_empty() {
    assert!(matches!(seen_state(&pushed(&[("dc", 1, &[])])), SeenState::UnknownService));
    let SeenState::Service(list) = seen_state(&pushed(&[("dc", 8182413921812480, &[])])) else { panic!("known") };
    assert!(list.instances.is_empty());
    let state = seen_state(&pushed(&[("a", 1, &[]), ("b", 7, &["h:1"])]));
    assert!(matches!(state, SeenState::Service(list) if list.instances.len() == 1), "one data centre knows it");
}

#[test]
fn segments_are_merged_and_a_bad_box_empties_nothing() {
    let state = seen_state(&pushed(&[("a", 2, &["h:1?env=x", "nonsense"]), ("b", 3, &["h:2", "h:1"])]));
    let SeenState::Service(list) = state else { panic!("known") };
    assert_eq!(list.instances.len(), 2, "an id is listed once");
    assert_eq!(list.rejected, 1);
    let codes: Vec<_> = list.notes.iter().map(|note| note.code).collect();
    assert_eq!(codes, ["unreadable_data_box", "duplicate_id"]);
}

#[test]
fn a_compressed_push_is_not_usable() {
    let state = Pushed { unusable: Some("compressed".into()), ..pushed(&[("a", 2, &["h:1"])]) };
    assert!(matches!(seen_state(&state), SeenState::Unusable(_)));
}

#[test]
fn a_cursor_comes_back() {
    let place = Place::parse(Place { subscriber: 3, changes: 9, known: true }.cursor().as_str()).expect("its own form");
    assert_eq!((place.subscriber, place.changes, place.known), (3, 9, true));
    for text in ["", "1", "1:2", "1:2:2", "1:2:1:", "a:2:1"] {
        assert!(Place::parse(text).is_none(), "{text}");
    }
}

/// Data id, instance id and group are joined by `#@#`.
#[test]
fn no_two_services_have_the_same_data_info_id() {
    for (service, good) in [("a#@", false), ("@#a", false), ("a#@#b", false), ("", false), ("#@b", true), ("a@#", true)]
    {
        assert_eq!(check_service(service).is_ok(), good, "{service}");
    }
}

proptest::proptest! {
    #[test]
    fn parts_are_told_apart(a in ["[a#@]{1,5}", "[a#@]{1,5}"], b in ["[a#@]{1,5}", "[a#@]{1,5}"]) {
        let all = a.iter().chain(&b).all(|part| is_part(part));
        proptest::prop_assume!(all);
        proptest::prop_assert_eq!(a.join("#@#") == b.join("#@#"), a == b);
    }
}

#[test]
fn addresses_with_mistakes_are_refused() {
    for (url, what) in [
        ("sofa://h?scope=everything", "scope"),
        ("sofa://h?group=", "group"),
        ("sofa://h?instance-id=a%23@%23b", "instance-id"),
        ("sofa://h?group=@%23b", "begin with"),
        ("sofa://h?instance-id=b%23@", "end with"),
        ("sofa://h?multi=true&scope=zone", "scope=zone"),
        ("sofa://h?layout=dubbo", "layout"),
        ("sofa://h/path", "path"),
        ("sofa://h?grup=x", "grup"),
    ] {
        let error = Sofa::new(&url.parse().expect("an address")).err().expect(url).to_string();
        assert!(error.contains(what), "{url}: {error}");
    }
    let direct = Sofa::new(&"sofa://a,[::1]:7?direct=true".parse().expect("an address")).expect("a driver");
    assert!(matches!(&direct.servers, Servers::Direct(list) if *list == ["a:9600", "[::1]:7"]));
}
