use metaroute_core::instance::{Incarnation, Locality, MetaValue};
use proptest::prelude::*;

use super::*;

fn list(info: Value) -> List {
    read_list(&info, &Filter::default()).expect("a list")
}

/// As the Java client 2.5.1 wrote it on a real Nacos 3.1.
const REAL: &str = r#"{"instanceId":"10.5.0.9#8091#default#SEATA_GROUP@@seata-server","ip":"10.5.0.9","port":8091,"weight":1.0,"healthy":true,"enabled":true,"ephemeral":true,"clusterName":"default","serviceName":"SEATA_GROUP@@seata-server","metadata":{},"instanceHeartBeatInterval":5000,"instanceHeartBeatTimeOut":15000,"ipDeleteTimeout":30000,"instanceIdGenerator":"simple"}"#;

#[test]
fn what_a_real_server_holds_is_read() {
    let host: Value = serde_json::from_str(REAL).expect("JSON");
    let read = list(json!({"name": "seata-server", "groupName": "SEATA_GROUP", "hosts": [host], "lastRefTime": 12}));
    assert_eq!((&*read.service, &*read.group, read.made), ("seata-server", "SEATA_GROUP", 12));
    let [seen] = &*read.snapshot.instances else { panic!("{read:?}") };
    assert_eq!((seen.id.as_str(), &*seen.cluster, seen.weight), ("10.5.0.9:8091", "default", 1.0));
    assert!(seen.metadata.is_empty() && seen.incarnation.as_str().is_empty());
}

#[test]
fn the_group_may_stand_in_the_name() {
    let read = list(json!({"name": "G@@s", "hosts": null}));
    assert_eq!((&*read.service, &*read.group), ("s", "G"));
    assert_eq!(read.snapshot, Snapshot::default());
}

#[test]
fn what_is_no_list_is_an_error() {
    for info in [json!(null), json!([]), json!({"hosts": 7})] {
        read_list(&info, &Filter::default()).expect_err("no list");
    }
}

#[test]
fn metadata_of_other_kinds_becomes_text_and_null_is_absent() {
    let text =
        r#"{"hosts": [{"ip": "h", "port": "80", "metadata": {"n": 2.50, "b": true, "x": null, "o": {"a": 1}}}]}"#;
    let read = list(serde_json::from_str(text).expect("JSON"));
    let metadata = &read.snapshot.instances[0].metadata;
    let texts: Vec<_> = metadata.iter().map(|(key, value)| (&**key, value.to_text())).collect();
    assert_eq!(texts, [("b", "true".into()), ("n", "2.50".into()), ("o", r#"{"a":1}"#.into())]);
}

#[test]
fn one_address_in_several_clusters_has_several_ids() {
    let host = |cluster: &str| json!({"ip": "h", "port": 80, "clusterName": cluster});
    let read = list(json!({"hosts": [host("b"), host("a"), host("")]}));
    let ids: Vec<_> = read.snapshot.instances.iter().map(|i| (i.id.as_str(), &*i.cluster)).collect();
    assert_eq!(ids, [("h:80", "DEFAULT"), ("h:80#a", "a"), ("h:80#b", "b")]);
    assert_eq!(read.snapshot.rejected, 0);
}

#[test]
fn of_two_lives_at_one_place_the_later_is_kept() {
    let host = |life: &str| json!({"ip": "h", "port": 80, "metadata": {"metaroute-incarnation": life}});
    for hosts in [[host("1a-0"), host("1b-0")], [host("1b-0"), host("1a-0")]] {
        let read = list(json!({"hosts": hosts}));
        assert_eq!(read.snapshot.instances[0].incarnation, Incarnation::new("1b-0"));
        assert_eq!((read.snapshot.rejected, read.snapshot.notes[0].code), (1, "duplicate_id"));
    }
}

#[test]
fn one_life_over_two_connections_is_one() {
    let host = json!({"ip": "h", "port": 80, "metadata": {"metaroute-incarnation": "1a-0"}});
    let read = list(json!({"hosts": [host, host]}));
    assert_eq!((read.snapshot.instances.len(), read.snapshot.rejected, read.snapshot.notes.len()), (1, 0, 0));
}

#[test]
fn an_operators_weight_wins_over_the_exact_one_in_the_metadata() {
    let host =
        |weight: f64| json!({"ip": "h", "port": 80, "weight": weight, "metadata": {"metaroute-weight": "20000"}});
    assert_eq!(list(json!({"hosts": [host(10_000.0)]})).snapshot.instances[0].weight, 20_000.0);
    assert_eq!(list(json!({"hosts": [host(0.0)]})).snapshot.instances[0].weight, 0.0);
}

#[test]
fn notes_are_bounded() {
    let hosts = vec![json!(7); 1000];
    let read = list(json!({"hosts": hosts}));
    assert_eq!((read.snapshot.rejected, read.snapshot.notes.len()), (1000, NOTES_MAX));
}

#[test]
fn the_life_is_left_out_where_there_is_no_room() {
    let instance = |len: usize| Instance::new("h:80".parse().expect("an address")).with_meta("k", "v".repeat(len));
    let life = "19acd3f1a2b-3f9c";
    let room = 1024 - 1 - INCARNATION.len() - life.len();
    let with = Wired::of(&instance(room), "", life, 1024).expect("it fits");
    assert_eq!((with.life(), chars(&with.metadata)), (Some(life), 1024));
    let without = Wired::of(&instance(room + 1), "", life, 1024).expect("it fits");
    assert_eq!(without.life(), None);
    Wired::of(&instance(1023), "", life, 1024).expect("at the limit");
    Wired::of(&instance(1024), "", life, 1024).expect_err("over it");
}

fn any_instance() -> impl Strategy<Value = Instance> {
    let text = "[a-zäß東🚀 =,\"\\\\-]{0,8}";
    let names = ("[a-zA-Z0-9_-]{1,8}", text, text, text, "[a-f0-9-]{0,12}");
    let weight = prop_oneof![Just(0.0), Just(1.0), 0.0..20_000.0, Just(4_294_967_295.0)];
    (1_u16.., "[a-z]{1,9}", names, weight, any::<bool>(), prop::collection::btree_map("k[a-zß]{0,6}", text, 0..5))
        .prop_map(|(port, id, (cluster, region, zone, subzone, incarnation), weight, enabled, metadata)| {
            let mut instance = Instance::new(Address::new("10.0.0.1", port).expect("an address")).with_id(id);
            instance.weight = weight;
            instance.enabled = enabled;
            instance.cluster = cluster.into();
            instance.locality = Locality { region: region.into(), zone: zone.into(), subzone: subzone.into() };
            instance.incarnation = Incarnation::new(incarnation);
            instance.metadata = metadata.into_iter().map(|(key, value)| (key.into(), MetaValue::from(value))).collect();
            instance
        })
}

/// JSON of any shape, with the keys that are looked at.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[0-9a-z.:@#-]{0,9}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("hosts"),
        Just("ip"),
        Just("port"),
        Just("weight"),
        Just("healthy"),
        Just("enabled"),
        Just("clusterName"),
        Just("metadata"),
        Just("name"),
        Just("lastRefTime"),
        Just("reachProtectionThreshold"),
        Just("metaroute-weight"),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..8)
                .prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

proptest! {
    /// What we write, a server hands back, and we read: everything survives as text.
    #[test]
    fn instances_survive_the_wire(instance in any_instance()) {
        let wired = Wired::of(&instance, "home", "1-1", 1 << 16).expect("valid");
        let read = list(json!({"name": "s", "hosts": [wired.json(true)]}));
        let [seen] = &*read.snapshot.instances else { panic!("{read:?}") };
        let mut seen = seen.clone();
        let mut wanted = instance;
        for key in ["region", "zone"] {
            seen.metadata.remove(key);
        }
        if wanted.incarnation.as_str().is_empty() {
            wanted.incarnation = Incarnation::new("1-1");
        }
        prop_assert_eq!(seen, wanted);
    }

    #[test]
    fn no_list_panics_and_ids_are_unique(info in any_json(), protected in any::<bool>()) {
        let filter = Filter { clusters: Vec::new(), believe_protected: protected };
        if let Ok(list) = read_list(&info, &filter) {
            let mut ids: Vec<_> = list.snapshot.instances.iter().map(|instance| instance.id.clone()).collect();
            ids.sort();
            let all = ids.len();
            ids.dedup();
            prop_assert_eq!(ids.len(), all);
            prop_assert!(list.snapshot.instances.iter().all(|instance| instance.defect().is_none()));
        }
    }
}
