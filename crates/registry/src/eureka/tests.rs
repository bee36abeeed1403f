use metaroute_core::instance::Instance;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::wire::{self, Terms};
use super::*;

fn url(text: &str) -> RegistryUrl {
    text.parse().expect("an address")
}

fn instance(address: &str) -> Instance {
    Instance::new(address.parse().expect("an address"))
}

fn terms(seata: bool) -> Terms {
    Terms { ttl: Duration::from_millis(1500), dirty_ms: 7, incarnation: "6".into(), seata }
}

#[test]
fn addresses_are_checked_before_anything_is_sent() {
    let refused = |text: &str| Eureka::new(&url(text)).err().expect("refused").to_string();
    assert!(refused("eureka://h?layout=dubbo").contains("`metaroute` or `seata`"));
    assert!(refused("eureka://h?pol=1s").contains("did you mean `poll`?"));
    assert!(refused("eureka://:pw@h").contains("needs a user"));
    let path = |text: &str| Eureka::new(&url(text)).expect("valid").path;
    assert_eq!(path("eureka://h"), "/eureka");
    assert_eq!(path("eureka://h/eureka/v2/"), "/eureka/v2");
}

#[test]
fn names_that_servers_turn_away_are_refused_in_words() {
    let refused = |service: &str, id: &str| wire::check_names(service, id).expect_err("refused").to_string();
    assert_eq!(refused("a/b", "i"), "service `a/b`: Eureka's servers do not accept `/` in it");
    assert_eq!(refused("s", "a\\b"), "id `a\\b`: Eureka's servers do not accept `\\` in it");
    assert!(refused("", "i").contains("cannot be empty"));
    wire::check_names("a b;c%d", "10.0.0.1:s:80").expect("all of it can be encoded");
}

#[test]
fn cursors_come_back() {
    for told in [Told::Unknown, Told::Present, Told::Gone] {
        let place = Place { number: 9, told };
        assert_eq!(Place::of(&place.cursor()), Some(place));
    }
    assert_eq!(Place::of(&Cursor::new("9")), None);
}

#[test]
fn a_registration_is_what_every_client_sends() {
    let body = wire::registration("orders", &instance("10.0.0.1:80").with_meta("version", "2"), &terms(false));
    assert_eq!(
        body,
        json!({ "instance": {
            "instanceId": "10.0.0.1:orders:80",
            "app": "ORDERS",
            "hostName": "10.0.0.1",
            "ipAddr": "10.0.0.1",
            "vipAddress": "orders",
            "secureVipAddress": "orders",
            "status": "UP",
            "overriddenstatus": "UNKNOWN",
            "port": { "$": 80, "@enabled": "true" },
            "securePort": { "$": 443, "@enabled": "false" },
            "countryId": 1,
            "dataCenterInfo": { "@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn" },
            "leaseInfo": { "renewalIntervalInSecs": 1, "durationInSecs": 2 },
            "metadata": { "version": "2", "metaroute-incarnation": "6" },
            "isCoordinatingDiscoveryServer": "false",
            "lastUpdatedTimestamp": "7",
            "lastDirtyTimestamp": "7",
            "actionType": "ADDED",
        }})
    );
}

/// Seata overwrites the map that held its weight, so its own registrations lose it.
#[test]
fn seata_layout_says_the_weight_and_the_cluster_is_the_application() {
    let registered = instance("10.0.0.1:8091").with_cluster("default").with_weight(2.5).with_meta("vGroup", "{}");
    let body = wire::registration("default", &registered, &terms(true));
    let written = &body["instance"];
    assert_eq!((&written["instanceId"], &written["app"]), (&json!("10.0.0.1:default:8091"), &json!("DEFAULT")));
    assert_eq!(written["metadata"], json!({ "vGroup": "{}", "weight": "2.5", "metaroute-incarnation": "6" }));
    let read = wire::read("DEFAULT", written, true).instance.expect("readable");
    assert_eq!((read.weight, &*read.cluster), (2.5, "default"));
    assert_eq!(read.metadata, registered.metadata);
}

/// Seata's own reader leaves out port 65535.
#[test]
fn the_last_port_is_a_port() {
    let body = wire::registration("default", &instance("10.0.0.1:65535"), &terms(true));
    assert_eq!(wire::read("DEFAULT", &body["instance"], true).instance.expect("readable").address.port(), 65_535);
}

fn foreign(change: impl FnOnce(&mut Value)) -> Value {
    let mut value = json!({
        "instanceId": "i-1", "hostName": "h1", "app": "META", "ipAddr": "127.0.0.1", "status": "UP",
        "port": { "$": 8080, "@enabled": "true" }, "securePort": { "$": 8443, "@enabled": "false" },
        "leaseInfo": { "durationInSecs": 6, "registrationTimestamp": 1795980550073_u64, "lastRenewalTimestamp": 1795980550073_u64 },
        "metadata": { "zone": "a", "n": 5 }, "vipAddress": "Meta,other",
    });
    change(&mut value);
    value
}

fn read_foreign(change: impl FnOnce(&mut Value)) -> Instance {
    wire::read("META", &foreign(change), false).instance.expect("readable")
}

#[test]
fn what_others_register_is_read() {
    let read = read_foreign(|_| {});
    assert_eq!((read.id.as_str(), &*read.address.to_string()), ("i-1", "h1:8080"));
    assert_eq!((&*read.locality.zone, read.incarnation.as_str()), ("a", "1795980550073"));
    assert_eq!(read.metadata.get("n").map(|n| n.to_text()), Some("5".into()));
    assert_eq!(&*wire::read("META", &foreign(|_| {}), false).service, "Meta");
    assert_eq!(&*wire::read("META", &foreign(|v| v["vipAddress"] = json!("else")), false).service, "meta");
    // Spring's ids are made of the address, in whatever case.
    assert_eq!(read_foreign(|v| v["instanceId"] = json!("h1:meta:8080")).id.as_str(), "h1:8080");
    assert_eq!(read_foreign(|v| v["instanceId"] = Value::Null).id.as_str(), "h1");
}

#[test]
fn the_servers_habits_in_json_are_read() {
    assert_eq!(read_foreign(|v| v["port"] = json!({ "$": "8081", "@enabled": true })).address.port(), 8081);
    let secure = read_foreign(|v| {
        v["port"]["@enabled"] = json!("false");
        v["securePort"]["@enabled"] = json!("true");
    });
    assert_eq!(secure.address.port(), 8443);
    let empty = read_foreign(|v| v["metadata"] = json!({ "@class": "java.util.Collections$EmptyMap" }));
    assert!(empty.metadata.is_empty());
    // One application and one instance as objects instead of lists; both spellings of the hash.
    for key in ["apps__hashcode", "apps_hashcode"] {
        let mut body = json!({ "applications": { "application": { "name": "META", "instance": foreign(|_| {}) } } });
        body["applications"][key] = json!("UP_1_");
        let mut apps = Apps::full(&body, false, None, &Apps::default(), 1).expect("Eureka");
        assert_eq!(apps.of("meta").expect("there").snapshot().instances.len(), 1);
        assert_eq!(apps.delta(&json!({ "applications": { key: "UP_1_" } }), false, 2), Ok(true));
        assert_eq!(apps.delta(&json!({ "applications": { key: "UP_2_" } }), false, 2), Ok(false));
    }
}

#[test]
fn states_become_health_and_switch() {
    let read = |status: &str| {
        let read = read_foreign(|v| v["status"] = json!(status));
        (read.healthy, read.enabled)
    };
    assert_eq!(read("UP"), (true, true));
    assert_eq!(read("OUT_OF_SERVICE"), (true, false));
    for status in ["DOWN", "STARTING", "UNKNOWN", "NEW_IN_2030"] {
        assert_eq!(read(status), (false, true), "{status}");
    }
}

fn body(instances: Vec<Value>) -> Value {
    json!({ "applications": { "application": [{ "name": "META", "instance": instances }] } })
}

fn named(id: &str, status: &str, action: &str) -> Value {
    foreign(|v| {
        v["instanceId"] = json!(id);
        v["status"] = json!(status);
        v["actionType"] = json!(action);
    })
}

#[test]
fn deltas_are_applied_and_checked_with_the_servers_hash() {
    let start = body(vec![named("a", "UP", "ADDED"), named("b", "UP", "ADDED"), named("c", "DOWN", "ADDED")]);
    let mut apps = Apps::full(&start, false, None, &Apps::default(), 1).expect("Eureka");
    assert_eq!(apps.hash(), "DOWN_1_UP_2_");
    let mut delta =
        body(vec![named("a", "OUT_OF_SERVICE", "MODIFIED"), named("b", "UP", "DELETED"), named("d", "UP", "ADDED")]);
    delta["applications"]["apps__hashcode"] = json!("DOWN_1_OUT_OF_SERVICE_1_UP_1_");
    assert_eq!(apps.delta(&delta, false, 2), Ok(true));
    assert_eq!(apps.of("Meta").expect("there").changed, 2);
    // The same again changes nothing: a delta repeats three minutes.
    assert_eq!(apps.delta(&delta, false, 3), Ok(true));
    assert_eq!(apps.of("meta").expect("there").changed, 2);
    delta["applications"]["apps__hashcode"] = json!("UP_9_");
    assert_eq!(apps.delta(&delta, false, 4), Ok(false));
    // The last one goes, and the application with it.
    let last = body(["a", "c", "d"].map(|id| named(id, "UP", "DELETED")).into());
    assert_eq!(apps.delta(&last, false, 5), Ok(true));
    assert!(apps.of("meta").is_none());
    assert_eq!(apps.hash(), "");
    assert!(apps.delta(&json!({ "status": 404, "error": "Not Found" }), false, 6).is_err());
}

#[test]
fn a_full_list_changes_only_what_differs() {
    let first = Apps::full(&body(vec![named("a", "UP", "")]), false, None, &Apps::default(), 1).expect("Eureka");
    let renewed = foreign(|v| {
        v["instanceId"] = json!("a");
        v["leaseInfo"]["lastRenewalTimestamp"] = json!(1_795_980_559_999_u64);
    });
    let second = Apps::full(&body(vec![renewed]), false, None, &first, 2).expect("Eureka");
    assert_eq!(second.of("meta").expect("there").changed, 1);
    let third = Apps::full(&body(vec![named("a", "DOWN", "")]), false, None, &second, 3).expect("Eureka");
    assert_eq!(third.of("meta").expect("there").changed, 3);
}

/// A server that preserves itself lists instances long after their leases ran out.
#[test]
fn leases_that_are_overdue_are_noted() {
    let list = body(vec![foreign(|_| {})]);
    let at = |now_ms| {
        let apps = Apps::full(&list, false, Some(now_ms), &Apps::default(), 1).expect("Eureka");
        apps.of("meta").expect("there").snapshot().notes
    };
    // Twice the six seconds.
    assert!(at(1_795_980_562_073).is_empty());
    let notes = at(1_795_980_562_074);
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].code, "lease_overdue");
    assert!(notes[0].message.contains("`i-1` was renewed last at 2026-"), "{}", notes[0].message);
    assert_eq!(http_date_ms("Sun, 29 Nov 2026 19:29:10 GMT"), Some(1_795_980_550_000));
}

#[test]
fn bad_entries_are_counted_and_never_empty_the_list() {
    let bad = foreign(|v| {
        v["instanceId"] = json!("bad");
        v["port"]["$"] = json!(70_000);
    });
    let nameless = json!({ "app": "META", "status": "UP" });
    let apps = Apps::full(&body(vec![foreign(|_| {}), bad, nameless]), false, None, &Apps::default(), 1);
    let snapshot = apps.expect("Eureka").of("meta").expect("there").snapshot();
    assert_eq!((snapshot.instances.len(), snapshot.rejected), (1, 2));
    assert!(snapshot.notes[0].message.contains("instance `bad`: port 70000"), "{:?}", snapshot.notes);
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        id in "[a-z:.0-9]{1,12}",
        weight in prop_oneof![Just(0.0), Just(1.0), 0.0..9.0],
        cluster in "[a-z]{0,5}",
        zone in "[a-z]{0,5}",
        enabled in any::<bool>(),
        incarnation in "[a-z0-9]{1,5}",
        values in prop::collection::btree_map("[A-Za-z0-9_.$ä]{1,9}", "\\PC{0,40}", 0..5),
        seata in any::<bool>(),
    ) {
        prop_assume!(["zone", "region", "weight"].iter().all(|key| !values.contains_key(*key)));
        let mut instance = instance("10.0.0.1:80").with_id(id).with_weight(weight).with_cluster(&cluster).with_zone(&zone);
        instance.enabled = enabled;
        instance.incarnation = metaroute_core::instance::Incarnation::new(incarnation);
        for (key, value) in values {
            instance = instance.with_meta(&key, value);
        }
        let written = wire::registration("web", &instance, &terms(seata));
        let mut read = wire::read("WEB", &written["instance"], seata).instance.expect("readable");
        if !zone.is_empty() {
            read.metadata.remove("zone");
        }
        if seata && instance.cluster.is_empty() {
            instance.cluster = "web".into();
        }
        prop_assert_eq!(read, instance);
    }

    #[test]
    fn deltas_in_any_order_lead_to_the_servers_hash(
        changes in prop::collection::vec((0_u8..6, prop_oneof![Just("UP"), Just("DOWN"), Just("")]), 0..30),
    ) {
        let mut apps = Apps::default();
        let mut model = std::collections::BTreeMap::new();
        for (number, (id, status)) in changes.into_iter().enumerate() {
            let id = format!("i-{id}");
            let action = if status.is_empty() { "DELETED" } else { "MODIFIED" };
            if status.is_empty() { model.remove(&id); } else { model.insert(id.clone(), status); }
            let up = model.values().filter(|status| **status == "UP").count();
            let down = model.len() - up;
            let part = |name: &str, count: usize| if count == 0 { String::new() } else { format!("{name}_{count}_") };
            let mut delta = body(vec![named(&id, if status.is_empty() { "UP" } else { status }, action)]);
            delta["applications"]["apps__hashcode"] = json!(part("DOWN", down) + &part("UP", up));
            prop_assert_eq!(apps.delta(&delta, false, number as u64 + 1), Ok(true));
        }
    }

    #[test]
    fn no_instance_panics(text in "\\PC{0,20}", number in any::<i64>()) {
        for field in ["instanceId", "hostName", "ipAddr", "port", "metadata", "leaseInfo", "status", "vipAddress"] {
            for value in [json!(text), json!(number), json!([text]), json!({ "$": number, "@enabled": "true" }), Value::Null] {
                let value = foreign(|v| v[field] = value);
                let apps = Apps::full(&body(vec![value]), false, Some(0), &Apps::default(), 1).expect("Eureka");
                let snapshot = apps.of("meta").expect("there").snapshot();
                prop_assert_eq!(snapshot.instances.len() + snapshot.rejected, 1);
            }
        }
    }
}
