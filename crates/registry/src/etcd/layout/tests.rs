use proptest::prelude::*;

use super::*;

fn kv(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.into(), value: value.into(), create_revision: 7, lease: 0xabc, ..KeyValue::default() }
}

fn plain() -> Layout {
    Layout::Plain { prefix: "/metaroute".into() }
}

fn grpc() -> Layout {
    Layout::Grpc { prefix: "".into() }
}

fn addresses(snapshot: &Snapshot) -> Vec<String> {
    snapshot.instances.iter().map(|instance| instance.address.to_string()).collect()
}

#[test]
fn seata_keys_are_byte_for_byte_what_seata_writes() {
    let instance = Instance::new("10.9.9.3:8091".parse().expect("an address"));
    let entry = Layout::Seata.write("default", &instance).expect("it can be said");
    assert_eq!(entry.live, (b"registry-seata-default-10.9.9.3:8091".to_vec(), b"10.9.9.3:8091".to_vec()));
    assert_eq!(entry.meta, Some((b"metaroute/seata-meta/default/10.9.9.3:8091".to_vec(), None)));
    let entry = Layout::Seata.write("default", &instance.with_meta("version", "2.3")).expect("it can be said");
    assert_eq!(entry.meta.and_then(|(_, value)| value), Some(b"version=2.3\n".to_vec()));
}

/// Row "the released client scans by prefix without a separator".
#[test]
fn a_cluster_is_not_taken_for_one_whose_name_goes_on() {
    let live = [
        kv("registry-seata-default-10.0.0.1:80", "10.0.0.1:80"),
        kv("registry-seata-default-2-10.0.0.2:80", "10.0.0.2:80"),
        kv("registry-seata-default-2-10.0.0.3:80", "2-10.0.0.3:80"),
    ];
    let read = Layout::Seata.read("default", &live, &[]);
    assert_eq!(addresses(&read), ["10.0.0.1:80", "2-10.0.0.3:80"]);
    assert_eq!(read.rejected, 0);
    assert!(!b"registry-seata-default2-".starts_with(&Layout::Seata.prefixes("default")[0]));
    assert_eq!(Layout::Seata.service(&live[1]).as_deref(), Some("default-2"));
    assert_eq!(Layout::Seata.service(&live[2]).as_deref(), Some("default"));
}

/// The sketch for metadata used a key that is also the instance of a cluster named `meta…`; ours cannot be one.
#[test]
fn metadata_keys_collide_with_no_cluster() {
    let instance = Instance::new("10.0.0.1:80".parse().expect("an address")).with_meta("a", "1");
    for cluster in ["default", "meta", "meta-default"] {
        let entry = Layout::Seata.write(cluster, &instance).expect("it can be said");
        let (meta, _) = entry.meta.expect("metadata");
        assert!(!meta.starts_with(SEATA.as_bytes()));
    }
    assert!(Layout::Seata.write("a/b", &instance).expect_err("it would be ambiguous").contains("`/`"));
}

#[test]
fn bad_entries_are_counted_and_the_others_stay() {
    let live = [
        kv("registry-seata-c-nonsense", "nonsense"),
        kv("registry-seata-c-10.0.0.1:80", "10.0.0.9:80"),
        kv("registry-seata-c-10.0.0.2:80", "10.0.0.2:80"),
        KeyValue { value: vec![0xff], ..kv("registry-seata-c-10.0.0.3:80", "") },
    ];
    let read = Layout::Seata.read("c", &live, &[]);
    assert_eq!(addresses(&read), ["10.0.0.2:80"]);
    assert_eq!((read.rejected, read.notes.len()), (3, 3));
    assert!(read.notes[1].message.contains("the key says `10.0.0.1:80`"), "{:?}", read.notes);
    let read = plain().read("s", &[kv("/metaroute/s/a", "{"), kv("/metaroute/s/b", r#"{"v":1,"address":"h:1"}"#)], &[]);
    assert_eq!((addresses(&read), read.rejected), (vec!["h:1".to_owned()], 1));
}

#[test]
fn a_new_lease_or_a_new_key_is_a_new_incarnation() {
    let key = kv("registry-seata-c-10.0.0.2:80", "10.0.0.2:80");
    let life = |kv: KeyValue| Layout::Seata.read("c", &[kv], &[]).instances[0].incarnation.clone();
    assert_eq!(life(key.clone()), life(KeyValue { mod_revision: 9, ..key.clone() }));
    assert_ne!(life(key.clone()), life(KeyValue { create_revision: 8, ..key.clone() }));
    assert_ne!(life(key.clone()), life(KeyValue { lease: 5, ..key }));
}

#[test]
fn grpc_values_are_read_whatever_their_metadata_is() {
    let value = |metadata: &str| format!(r#"{{"Op":0,"Addr":"10.0.0.1:80","Metadata":{metadata}}}"#);
    let read = |metadata: &str| {
        let read = grpc().read("orders", &[kv("orders/a", &value(metadata))], &[]);
        assert_eq!((read.instances.len(), read.rejected), (1, 0), "{metadata}: {:?}", read.notes);
        read.instances[0].clone()
    };
    assert_eq!(read("null").metadata.len(), 0);
    assert_eq!(read("\"blue\"").metadata.get("Metadata"), Some(&MetaValue::from("blue")));
    assert_eq!(read("3").metadata.get("Metadata"), Some(&MetaValue::Json("3".into())));
    let rich = read(r#"{"version":"2","n":3,"deep":{"a":[1]},"metaroute-weight":"0"}"#);
    assert_eq!(rich.weight, 0.0);
    assert_eq!(rich.metadata.get("n"), Some(&MetaValue::Number("3".into())));
    assert_eq!(rich.metadata.get("deep"), Some(&MetaValue::Json(r#"{"a":[1]}"#.into())));
    assert_eq!(rich.id.as_str(), "a");
    let deeper = grpc().read("orders", &[kv("orders/eu/a", &value("null"))], &[]);
    assert_eq!((deeper.instances.len(), deeper.rejected), (0, 0), "it is the service orders/eu");
}

#[test]
fn names_with_slashes_stay_apart() {
    let instance = Instance::new("h:1".parse().expect("an address")).with_id("a/b%");
    let entry = plain().write("x/y", &instance).expect("it can be said");
    assert_eq!(entry.live.0, b"/metaroute/x%2Fy/a%2Fb%25");
    let kv = KeyValue { key: entry.live.0, value: entry.live.1, ..KeyValue::default() };
    assert_eq!(plain().service(&kv).as_deref(), Some("x/y"));
    assert!(grpc().write("x", &instance).is_err());
}

fn any_instance() -> impl Strategy<Value = Instance> {
    let text = "[a-zäß€ =,\"\\\\\n-]{0,8}";
    let metadata = prop::collection::btree_map("[a-z=\n]{1,6}", text, 0..5);
    (1_u16.., "[a-z0-9.-]{1,9}", "[a-z0-9]{0,5}", 0.0..1e6, any::<bool>(), metadata).prop_map(
        |(port, id, cluster, weight, enabled, metadata)| {
            let mut instance = Instance::new(Address::new("10.0.0.1", port).expect("an address")).with_id(id);
            instance.weight = weight;
            instance.enabled = enabled;
            instance.cluster = cluster.into();
            instance.metadata = metadata.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
            instance.metadata.retain(|key, _| &**key != "zone" && &**key != "region");
            instance
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(instance in any_instance(), service in "[a-z0-9-]{1,8}") {
        for layout in [Layout::Seata, plain(), grpc()] {
            let entry = layout.write(&service, &instance).expect("it can be said");
            let live = KeyValue { key: entry.live.0, value: entry.live.1, ..KeyValue::default() };
            let meta: Vec<KeyValue> = entry.meta.into_iter()
                .filter_map(|(key, value)| Some(KeyValue { key, value: value?, ..KeyValue::default() }))
                .collect();
            prop_assert_eq!(layout.service(&live), Some(service.clone()));
            let mut read = layout.read(&service, &[live], &meta);
            prop_assert_eq!(read.rejected, 0, "{:?}", read.notes);
            let mut seen = read.instances.remove(0);
            seen.incarnation = Incarnation::default();
            prop_assert_eq!(seen, instance.clone());
        }
    }

    #[test]
    fn no_entry_panics(key in "[a-z/:.-]{0,12}", value in prop::collection::vec(any::<u8>(), 0..32)) {
        for layout in [Layout::Seata, plain(), grpc()] {
            for prefix in layout.prefixes("s") {
                let kv = KeyValue { key: [&*prefix, key.as_bytes()].concat(), value: value.clone(), ..KeyValue::default() };
                let _ = (layout.read("s", std::slice::from_ref(&kv), std::slice::from_ref(&kv)), layout.service(&kv));
            }
        }
    }
}
