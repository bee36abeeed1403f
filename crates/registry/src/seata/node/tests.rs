use proptest::prelude::*;

use super::*;

fn about(unit: &str) -> Registered<'_> {
    Registered { namespace: "public", cluster: "blue", unit, service: "orders", control_port: None, term: 7 }
}

fn any_instance() -> impl Strategy<Value = Instance> {
    let text = "[a-zäß€ =,\"\\\\-]{0,8}";
    let value = prop_oneof![
        text.prop_map(|t| MetaValue::Text(t.into())),
        any::<i64>().prop_map(|n| MetaValue::Number(n.to_string().into())),
        any::<bool>().prop_map(MetaValue::Bool),
        prop::collection::vec(text.prop_map(|t| t.into()), 1..3).prop_map(|l| MetaValue::List(l.into())),
    ];
    let metadata = prop::collection::btree_map("k[a-z.]{0,6}", value, 0..5);
    (1_u16.., "[a-z]{1,9}", text, text, 0.0..1e6, any::<(bool, bool)>(), metadata).prop_map(
        |(port, id, subzone, incarnation, weight, (enabled, healthy), metadata)| {
            let mut instance = Instance::new(Address::new("10.0.0.1", port).expect("an address")).with_id(id);
            instance.weight = weight;
            (instance.enabled, instance.healthy) = (enabled, healthy);
            instance.locality.subzone = subzone.into();
            instance.incarnation = Incarnation::new(incarnation);
            instance.metadata = metadata.into_iter().map(|(key, value)| (key.into(), value)).collect();
            instance
        },
    )
}

proptest! {
    #[test]
    fn a_node_keeps_everything_with_its_kind(instance in any_instance()) {
        let mut read = read(&write(&instance, &about("u"))).expect("readable");
        let mut wanted = instance;
        if wanted.incarnation.as_str().is_empty() {
            // The unit is the next best.
            wanted.incarnation = Incarnation::new("u");
        }
        read.cluster = wanted.cluster.clone();
        prop_assert_eq!(read, wanted);
    }
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn the_body_is_what_the_reference_client_sends() {
    let instance = Instance::new("10.9.9.5:8091".parse().expect("an address"))
        .with_meta("weight", MetaValue::Number("5".into()))
        .with_meta("env", "");
    let wanted = parse(
        r#"{"namespace":"public","clusterName":"default","unit":"u-1","control":{"host":"10.9.9.5","port":7091},
            "transaction":{"host":"10.9.9.5","port":8091},"internal":null,"weight":1.0,"healthy":true,"term":0,
            "timestamp":0,"version":null,"role":"MEMBER",
            "metadata":{"vGroup":{"default_tx_group":"u-1"},"weight":5,"env":"","cluster-type":"default"}}"#,
    );
    let about = Registered {
        namespace: "public",
        cluster: "default",
        unit: "u-1",
        service: "default_tx_group",
        control_port: Some(7091),
        term: 0,
    };
    assert_eq!(write(&instance, &about), wanted);
}

#[test]
fn what_a_real_server_answered_is_read_with_its_kinds() {
    let node = parse(
        r#"{"control":{"host":"10.2.0.1","port":7091},"transaction":{"host":"10.2.0.1","port":8091},"internal":null,
            "weight":1.0,"healthy":true,"group":null,"role":"MEMBER","version":"9","metadata":{"vGroup":
            {"default_tx_group":"u-1"},"weight":5,"env":"","cluster-type":"default","nested":{"a":[1,true,null]}},
            "term":100,"unit":"u-1"}"#,
    );
    let read = read(&node).expect("readable");
    assert_eq!(read.address.to_string(), "10.2.0.1:8091");
    assert_eq!(read.metadata.get("weight"), Some(&MetaValue::Number("5".into())));
    assert_eq!(read.weight, 1.0, "the weight of the node, not of its metadata");
    assert_eq!(read.metadata.get("env"), Some(&MetaValue::from("")), "an empty value is there");
    assert_eq!(read.metadata.get("nested"), Some(&MetaValue::Json(r#"{"a":[1,true,null]}"#.into())));
    assert_eq!(read.incarnation.as_str(), "u-1");
    assert!(!read.metadata.contains_key("vGroup") && !read.metadata.contains_key("cluster-type"));
}

#[test]
fn a_bad_node_is_counted_and_empties_nothing() {
    let mut listing = Listing::default();
    let good = r#"{"transaction":{"host":"h","port":1},"term":5}"#;
    for text in [
        "7",
        "{}",
        r#"{"transaction":null,"control":null}"#,
        r#"{"transaction":{"host":"h","port":0}}"#,
        r#"{"transaction":{"host":"h","port":70000}}"#,
        r#"{"transaction":{"host":"h","port":1},"weight":-1}"#,
        r#"{"transaction":{"host":"h","port":1},"weight":"heavy"}"#,
        r#"{"transaction":{"host":"h","port":1},"metadata":[]}"#,
        good,
    ] {
        let node = parse(text);
        listing.add(&node, read(&node));
    }
    let (snapshot, _) = listing.finish();
    assert_eq!((snapshot.instances.len(), snapshot.rejected), (1, 8), "{snapshot:?}");
    assert_eq!(snapshot.notes.len(), 8);
}

#[test]
fn of_two_units_with_one_address_the_newer_counts() {
    let node = |term: u32, env: &str| {
        parse(&format!(r#"{{"transaction":{{"host":"h","port":1}},"term":{term},"metadata":{{"env":"{env}"}}}}"#))
    };
    for order in [[1, 2], [2, 1]] {
        let mut listing = Listing::default();
        for term in order {
            let node = node(term, if term == 2 { "new" } else { "old" });
            listing.add(&node, read(&node));
        }
        let (snapshot, _) = listing.finish();
        assert_eq!(snapshot.instances.len(), 1);
        assert_eq!(snapshot.instances[0].metadata.get("env"), Some(&"new".into()));
        assert_eq!(snapshot.rejected, 0);
    }
}
