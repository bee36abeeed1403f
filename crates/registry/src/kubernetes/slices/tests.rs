use proptest::prelude::*;
use serde_json::json;

use super::*;

fn joined(items: &[Value], choice: &Choice) -> Snapshot {
    let slices: Vec<(String, Result<Slice, String>)> =
        items.iter().enumerate().map(|(number, item)| (format!("s-{number}"), read(item.clone()))).collect();
    snapshot(slices.iter().map(|(name, slice)| (name.as_str(), slice)), choice)
}

fn slice(ports: Value, endpoints: Value) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "a", "labels": { SERVICE_LABEL: "web" } }, "ports": ports, "endpoints": endpoints,
    })
}

fn http() -> Value {
    json!([{ "name": "http", "port": 80 }])
}

fn addresses(snapshot: &Snapshot) -> Vec<String> {
    snapshot.instances.iter().map(|one| one.address.to_string()).collect()
}

/// What `conditions` of one endpoint beside a ready one make of it: health, weight.
fn state(conditions: Value) -> (bool, f64) {
    let endpoints = json!([{ "addresses": ["10.0.0.1"], "conditions": conditions }, { "addresses": ["10.0.0.2"] }]);
    let snapshot = joined(&[slice(http(), endpoints)], &Choice::default());
    assert_eq!((snapshot.instances.len(), snapshot.rejected), (2, 0), "{:?}", snapshot.notes);
    (snapshot.instances[0].healthy, snapshot.instances[0].weight)
}

#[test]
fn what_a_condition_does_not_say_is_not_false() {
    for conditions in [json!(null), json!({}), json!({"ready": null}), json!({"ready": true}), json!({"serving": true})]
    {
        assert_eq!(state(conditions.clone()), (true, 1.0), "{conditions}");
    }
    for conditions in [
        json!({"ready": false}),
        json!({"ready": false, "terminating": true}),
        json!({"ready": false, "serving": false, "terminating": true}),
        json!({"ready": false, "serving": true}),
        json!({"ready": true, "serving": false, "terminating": true}),
    ] {
        assert_eq!(state(conditions.clone()), (false, 1.0), "{conditions}");
    }
    for conditions in [
        json!({"ready": false, "serving": true, "terminating": true}),
        json!({"terminating": true}),
        json!({"ready": true, "terminating": true}),
    ] {
        assert_eq!(state(conditions.clone()), (true, 0.0), "{conditions}");
    }
}

#[test]
fn an_endpoint_in_two_slices_is_one_and_as_good_as_the_better() {
    let ready = slice(http(), json!([{ "addresses": ["10.0.0.1"], "targetRef": { "uid": "new" } }]));
    let unready = slice(http(), json!([{ "addresses": ["10.0.0.1"], "conditions": { "ready": false } }]));
    let draining = slice(
        http(),
        json!([{ "addresses": ["10.0.0.1"], "conditions": { "ready": false, "serving": true, "terminating": true } }]),
    );
    for order in [[&ready, &unready, &draining], [&draining, &unready, &ready], [&unready, &ready, &draining]] {
        let snapshot = joined(&order.map(Value::clone), &Choice::default());
        assert_eq!(addresses(&snapshot), ["10.0.0.1:80"]);
        let one = &snapshot.instances[0];
        assert_eq!((one.healthy, one.weight, one.incarnation.as_str()), (true, 1.0, "new"));
    }
    let mut six = slice(http(), json!([{ "addresses": ["fd00:0:0::1"] }, { "addresses": ["FD00::1"] }]));
    six["addressType"] = "IPv6".into();
    assert_eq!(joined(&[six], &Choice::default()).instances.len(), 1, "one address in two spellings");
}

#[test]
fn the_port_is_the_one_that_was_asked_for() {
    let ports = json!([
        { "name": "dns", "port": 53, "protocol": "UDP" },
        { "name": "http", "port": 80, "protocol": "TCP" },
        { "name": "grpc", "port": 90 },
    ]);
    let endpoints = json!([{ "addresses": ["10.0.0.1"] }]);
    let of = |names: &[&str]| {
        let choice = Choice { ports: names.iter().map(|name| (*name).into()).collect(), ..Choice::default() };
        joined(&[slice(ports.clone(), endpoints.clone())], &choice)
    };
    for (names, address) in [
        (&["grpc"][..], "10.0.0.1:90"),
        (&["90"], "10.0.0.1:90"),
        (&["dns"], "10.0.0.1:53"),
        (&["none", "grpc", "http"], "10.0.0.1:90"),
    ] {
        let snapshot = of(names);
        assert_eq!((addresses(&snapshot), snapshot.notes.len()), (vec![address.to_owned()], 0), "{names:?}");
    }
    let snapshot = of(&[]);
    assert_eq!(addresses(&snapshot), ["10.0.0.1:80"], "the first of TCP");
    assert!(snapshot.notes[0].message.contains("(grpc, http); `http` was taken"), "{:?}", snapshot.notes);
    let snapshot = of(&["admin", "81"]);
    assert_eq!((snapshot.instances.len(), snapshot.rejected), (0, 1));
    assert!(snapshot.notes[0].message.contains("no port `admin` or `81`; its ports: dns, http, grpc"));
    let udp = json!([{ "name": "dns", "port": 53, "protocol": "UDP" }]);
    assert_eq!(addresses(&joined(&[slice(udp, endpoints.clone())], &Choice::default())), ["10.0.0.1:53"]);
}

#[test]
fn all_slices_give_the_same_port_in_whatever_order_it_stands() {
    let first = json!([{ "name": "http", "port": 80 }, { "name": "metrics", "port": 9090 }]);
    let second = json!([{ "name": "metrics", "port": 9090 }, { "name": "http", "port": 8080 }]);
    let a = slice(first, json!([{ "addresses": ["10.0.0.1"] }]));
    let b = slice(second, json!([{ "addresses": ["10.0.0.2"] }]));
    assert_eq!(addresses(&joined(&[a, b], &Choice::default())), ["10.0.0.1:80", "10.0.0.2:8080"]);
}

#[test]
fn a_slice_for_all_ports_needs_a_number() {
    for ports in [json!([{ "name": "", "port": null }]), json!([]), json!(null)] {
        let all = slice(ports.clone(), json!([{ "addresses": ["10.0.0.1"] }]));
        let snapshot = joined(std::slice::from_ref(&all), &Choice::default());
        assert_eq!((snapshot.instances.len(), snapshot.rejected), (0, 1), "{ports}");
    }
    let all = slice(json!([{ "port": null }]), json!([{ "addresses": ["10.0.0.1"] }]));
    let choice = Choice { ports: vec!["8080".into()], ..Choice::default() };
    assert_eq!(addresses(&joined(std::slice::from_ref(&all), &choice)), ["10.0.0.1:8080"]);
    let choice = Choice { ports: vec!["http".into()], ..Choice::default() };
    assert_eq!(joined(&[all], &choice).rejected, 1);
}

#[test]
fn a_family_is_chosen() {
    let four = slice(http(), json!([{ "addresses": ["10.0.0.1"] }]));
    let mut six = slice(http(), json!([{ "addresses": ["fd00::1"] }]));
    six["addressType"] = "IPv6".into();
    let mut name = slice(http(), json!([{ "addresses": ["a.example"] }]));
    name["addressType"] = "FQDN".into();
    let all = [four, six, name];
    let of = |family| {
        let snapshot = joined(&all, &Choice { family, ..Choice::default() });
        assert_eq!((snapshot.rejected, snapshot.notes.len()), (0, 0));
        addresses(&snapshot)
    };
    assert_eq!(of(Family::V4), ["10.0.0.1:80"]);
    assert_eq!(of(Family::V6), ["[fd00::1]:80"]);
    assert_eq!(of(Family::All).len(), 3);
}

#[test]
fn labels_annotations_and_our_own_words_become_metadata() {
    let mut one = slice(
        http(),
        json!([{
            "addresses": ["10.0.0.1"], "zone": "z1", "nodeName": "n1", "hostname": "db-0",
            "deprecatedTopology": { "topology.kubernetes.io/region": "r1" },
            "targetRef": { "kind": "Pod", "name": "p1", "uid": "u1" },
        }]),
    );
    one["metadata"]["labels"] = json!({
        SERVICE_LABEL: "web", "endpointslice.kubernetes.io/managed-by": "x", "topology.k8s.io/a": "y", "team": "blue",
        "example.com/tier": "1", "version": "1", "notkubernetes.io/kept": "yes",
    });
    one["metadata"]["annotations"] = json!({
        "endpoints.kubernetes.io/last-change-trigger-time": "now", "team": "not this", "note": "hello",
        "huge": "x".repeat(METADATA_VALUE_MAX + 1),
        ANNOTATION: r#"{"weight":2.5,"cluster":"c1","subzone":"rack","zone":"not this","id":"one","incarnation":"not this",
            "metadata":{"version":2,"tags":["a"]}}"#,
    });
    let snapshot = joined(std::slice::from_ref(&one), &Choice::default());
    assert_eq!((snapshot.rejected, snapshot.notes.len()), (0, 0), "{:?}", snapshot.notes);
    let read = &snapshot.instances[0];
    assert_eq!((read.id.as_str(), read.weight, &*read.cluster, read.incarnation.as_str()), ("one", 2.5, "c1", "u1"));
    let place = &read.locality;
    assert_eq!((&*place.region, &*place.zone, &*place.subzone), ("r1", "z1", "rack"));
    let texts: Vec<(String, String)> =
        read.metadata.iter().map(|(key, value)| (key.to_string(), value.to_text().into())).collect();
    let wanted = [
        ("example.com/tier", "1"),
        ("hostname", "db-0"),
        ("node", "n1"),
        ("note", "hello"),
        ("notkubernetes.io/kept", "yes"),
        ("pod", "p1"),
        ("region", "r1"),
        ("tags", "a"),
        ("team", "blue"),
        ("version", "2"),
        ("zone", "z1"),
    ];
    assert_eq!(texts, wanted.map(|(key, value)| (key.to_owned(), value.to_owned())));

    // What is one's own is not given to several.
    one["endpoints"] = json!([{ "addresses": ["10.0.0.1"] }, { "addresses": ["10.0.0.2"] }]);
    let snapshot = joined(std::slice::from_ref(&one), &Choice::default());
    let ids: Vec<&str> = snapshot.instances.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, ["10.0.0.1:80", "10.0.0.2:80"]);
    assert!(snapshot.instances.iter().all(|one| one.weight == 2.5 && one.incarnation.as_str().is_empty()));

    // A damaged annotation costs only itself.
    for text in ["{", "[]", "{\"weight\":\"heavy\"}", "{\"v\":2}", "{\"weight\":-1}"] {
        one["metadata"]["annotations"][ANNOTATION] = text.into();
        let snapshot = joined(std::slice::from_ref(&one), &Choice::default());
        assert_eq!((snapshot.instances.len(), snapshot.rejected), (2, 0), "{text}");
        assert_eq!(snapshot.notes[0].code, "bad_annotation", "{text}");
    }
}

#[test]
fn two_slices_with_one_id_are_two_instances() {
    let mut one = slice(http(), json!([{ "addresses": ["10.0.0.1"] }]));
    one["metadata"]["annotations"] = json!({ ANNOTATION: "{\"id\":\"same\"}" });
    let mut two = one.clone();
    two["endpoints"][0]["addresses"] = json!(["10.0.0.2"]);
    let snapshot = joined(&[one, two], &Choice::default());
    let ids: Vec<&str> = snapshot.instances.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, ["same", "10.0.0.2:80"]);
}

#[test]
fn what_switched_off_says_is_no_last_resort() {
    let mut off = slice(http(), json!([{ "addresses": ["10.0.0.1"] }]));
    off["metadata"]["annotations"] = json!({ ANNOTATION: "{\"enabled\":false}" });
    let conditions = json!({ "ready": false, "serving": true, "terminating": true });
    let draining = slice(http(), json!([{ "addresses": ["10.0.0.2"], "conditions": conditions }]));
    let snapshot = joined(&[off, draining], &Choice::default());
    let states: Vec<(bool, f64)> = snapshot.instances.iter().map(|one| (one.enabled, one.weight)).collect();
    assert_eq!(states, [(false, 1.0), (true, 1.0)], "nothing ready can be used");
}

#[test]
fn lists_are_read_from_their_text() {
    let list =
        json!({ "kind": "EndpointSliceList", "items": [slice(http(), json!([{ "addresses": ["10.0.0.1"] }])), 5] });
    let snapshot = read_list(list.to_string().as_bytes());
    assert_eq!((snapshot.instances.len(), snapshot.rejected), (1, 1));
    let alone = slice(http(), json!([{ "addresses": ["10.0.0.1"] }]));
    assert_eq!(read_list(alone.to_string().as_bytes()).instances.len(), 1);
    assert_eq!(read_list(b"{"), Snapshot::default());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-zA-Z0-9./:-]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,8}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Endpoints as the API server lets them pass, and a few things that it would not.
fn any_endpoint() -> impl Strategy<Value = Value> {
    let condition = prop::option::of(any::<bool>());
    let good = ((0_u8..4, 1_u8..20), condition.clone(), condition.clone(), condition, "z[0-9]?", prop::option::of("u[0-9]"))
        .prop_map(|((net, host), ready, serving, terminating, zone, uid)| {
            json!({
                "addresses": [format!("10.0.{net}.{host}")], "zone": zone, "targetRef": uid.map(|uid| json!({ "uid": uid })),
                "conditions": { "ready": ready, "serving": serving, "terminating": terminating },
            })
        });
    prop_oneof![8 => good, 1 => any_json()]
}

fn any_slice() -> impl Strategy<Value = Value> {
    let port = (prop::option::of("[a-c]"), prop::option::of(0_i64..70_000), prop_oneof![Just("TCP"), Just("UDP")])
        .prop_map(|(name, port, protocol)| json!({ "name": name, "port": port, "protocol": protocol }));
    let annotation = prop_oneof![
        Just(json!(null)),
        (0.0..9.0).prop_map(|weight: f64| json!({ ANNOTATION: format!("{{\"weight\":{weight},\"id\":\"x\"}}") })),
        "\\PC{0,20}".prop_map(|text| json!({ ANNOTATION: text })),
    ];
    let good = (prop::collection::vec(port, 0..3), prop::collection::vec(any_endpoint(), 0..6), annotation).prop_map(
        |(ports, endpoints, annotations)| {
            let mut one = slice(ports.into(), endpoints.into());
            one["metadata"]["annotations"] = annotations;
            one
        },
    );
    prop_oneof![8 => good, 1 => any_json()]
}

proptest! {
    #[test]
    fn a_snapshot_holds_its_promises(
        slices in prop::collection::vec(any_slice(), 0..5),
        ports in prop::collection::vec("[a-c]|80", 0..2),
    ) {
        let choice = Choice { ports: ports.into_iter().map(Into::into).collect(), ..Choice::default() };
        let snapshot = joined(&slices, &choice);
        let ids: BTreeSet<_> = snapshot.instances.iter().map(|one| one.id.clone()).collect();
        let places: BTreeSet<_> = snapshot.instances.iter().map(|one| canonical(&one.address)).collect();
        prop_assert_eq!(ids.len(), snapshot.instances.len());
        prop_assert_eq!(places.len(), snapshot.instances.len());
        prop_assert!(snapshot.instances.iter().all(|one| one.defect().is_none()));
        prop_assert!(snapshot.notes.len() <= 101);
        // Nobody is lost without a word: every endpoint is an instance, a duplicate of one, or counted.
        let endpoints: usize =
            slices.iter().map(|slice| slice.get("endpoints").and_then(Value::as_array).map_or(0, Vec::len)).sum();
        prop_assert!(snapshot.instances.len() + snapshot.rejected <= endpoints + slices.len());
        prop_assert!(snapshot.rejected == 0 || !snapshot.notes.is_empty());
        // Somebody who is ready is chosen before everybody who drains.
        let ready = |one: &&Instance| one.healthy && one.weight > 0.0 && !one.metadata.contains_key("draining");
        if snapshot.instances.iter().any(|one| ready(&one)) {
            let drains = |one: &Instance| one.metadata.get("draining") == Some(&MetaValue::Bool(true));
            prop_assert!(snapshot.instances.iter().all(|one| !drains(one) || one.weight == 0.0));
        }
        // Order of the slices' names decides nothing but which port's name comes first.
        if !choice.ports.is_empty() {
            let mut turned = slices.clone();
            turned.reverse();
            let places = |snapshot: &Snapshot| snapshot.instances.iter().map(|one| (canonical(&one.address), one.healthy)).collect::<Vec<_>>();
            prop_assert_eq!(places(&snapshot), places(&joined(&turned, &choice)));
        }
    }

    #[test]
    fn no_text_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), value in any_json()) {
        let _ = read_list(&bytes);
        let _ = read_list(value.to_string().as_bytes());
    }
}
