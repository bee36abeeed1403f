use metaroute_core::instance::{Instance, MetaValue};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn url(text: &str) -> RegistryUrl {
    text.parse().expect("an address")
}

fn refusal_of(text: &str) -> String {
    Consul::new(&url(text)).err().expect("refused").to_string()
}

fn instance(address: &str) -> Instance {
    Instance::new(address.parse().expect("an address"))
}

#[test]
fn addresses_are_checked_before_anything_is_sent() {
    assert!(refusal_of("consul://h?tokn=x").contains("did you mean `token`?"));
    assert!(refusal_of("consul://h?layout=dubbo").contains("`metaroute` or `seata`"));
    assert!(refusal_of("consul://h?consistency=strong").contains("`stale` or `consistent`"));
    assert!(refusal_of("consul://h/dc1").contains("?dc=NAME"));
    assert!(refusal_of("consul://me:secret@h").contains("?token=env:NAME"));
    assert!(refusal_of("consul://h?wait=1ms").contains("1s to 10m"));
    assert!(!refusal_of("consul://me:hunter2@h").contains("hunter2"));
}

#[test]
fn cursors_keep_whether_the_service_was_known() {
    for place in [Place { index: 7, known: false }, Place { index: u64::MAX, known: true }] {
        assert_eq!(Place::of(&place.cursor()), Some(place));
    }
    assert_eq!(Place::of(&Cursor::new("rev7")), None);
}

fn registration(instance: &Instance, parameters: &str) -> Result<Value, DriverError> {
    Consul::new(&url(&format!("consul://h{parameters}"))).expect("valid").registration("orders", instance)
}

#[test]
fn a_registration_has_only_fields_that_consul_knows() {
    let instance = instance("10.0.0.1:80").with_weight(3.0).with_zone("z1").with_meta("version", "2");
    assert_eq!(
        registration(&instance, "?tags=blue,%20green").expect("valid"),
        json!({
            "ID": "orders-10.0.0.1:80",
            "Name": "orders",
            "Address": "10.0.0.1",
            "Port": 80,
            "Tags": ["blue", "green"],
            "Meta": { "version": "2", "zone": "z1" },
            "Weights": { "Passing": 3, "Warning": 1 },
        })
    );
}

#[test]
fn seata_layout_is_what_seata_writes() {
    let instance = instance("10.0.0.1:8091").with_cluster("default").with_meta("region", "cn");
    let driver = Consul::new(&url("consul://h?layout=seata")).expect("valid");
    let body = driver.registration("default", &instance).expect("valid");
    assert_eq!(body["ID"], "default-10.0.0.1:8091");
    assert_eq!(body["Name"], "default");
    assert_eq!(body["Tags"], json!(["services"]));
    assert_eq!(body["Meta"], json!({ "region": "cn" }));
}

/// Consul: `Weights.Passing` must be greater than 0, at most 65535, an integer.
#[test]
fn weights_that_consul_refuses_ride_in_meta() {
    for (weight, passing, meta) in [
        (0.0, Value::Null, json!("0")),
        (0.25, Value::Null, json!("0.25")),
        (1.0, Value::Null, Value::Null),
        (2.5, json!(3), json!("2.5")),
        (65_535.0, json!(65_535), Value::Null),
        (65_536.0, json!(65_535), json!("65536")),
    ] {
        let body = registration(&instance("h:1").with_weight(weight), "").expect("valid");
        assert_eq!(body["Weights"]["Passing"], passing, "{weight}");
        assert_eq!(body["Meta"]["metaroute-weight"], meta, "{weight}");
    }
}

#[test]
fn metadata_beyond_consuls_limits_is_refused_with_key_and_limit() {
    let refused = |instance: Instance| {
        let driver = Consul::new(&url("consul://h")).expect("valid");
        let error = driver.limits().check(&instance).and_then(|()| registration(&instance, "").map(drop));
        error.expect_err("refused").to_string()
    };
    let base = instance("h:1");
    let many = |n: usize| (0..n).fold(base.clone(), |i, n| i.with_meta(&format!("k{n}"), "v"));
    assert!(registration(&many(64), "").is_ok());
    assert!(refused(many(65)).contains("at most 64"));
    assert!(refused(many(64).with_zone("z")).contains("at most 64"));
    assert!(refused(base.clone().with_meta("spring.application", "x")).contains("`.` is not among"));
    assert!(refused(base.clone().with_meta("größe", "x")).contains("`ö` is not among"));
    assert!(refused(base.clone().with_meta("consul-x", "x")).contains("`consul-` is reserved"));
    assert!(registration(&base.clone().with_meta("Consul-x", "x"), "").is_ok());
    assert!(refused(base.clone().with_meta("metaroute-x", "x")).contains("reserved"));
    assert!(refused(base.clone().with_meta(&"k".repeat(129), "x")).contains("129 bytes, at most 128"));
    assert!(registration(&base.clone().with_meta(&"k".repeat(128), "x"), "").is_ok());
    // Bytes, not characters.
    assert!(refused(base.clone().with_meta("k", "ü".repeat(257))).contains("514 bytes, at most 512"));
    assert!(registration(&base.clone().with_meta("k", "ü".repeat(256)), "").is_ok());
    assert!(refused(base.clone().with_zone(&"z".repeat(513))).contains("`zone` has 513 bytes"));
    assert!(refused(base.with_meta("", "x")).contains("empty"));
}

fn entry(id: &str, address: &str, checks: &[(&str, &str)]) -> Value {
    let checks: Vec<_> = checks.iter().map(|(id, status)| json!({ "CheckID": id, "Status": status })).collect();
    json!({
        "Node": { "Node": "n1", "Address": "10.0.0.9" },
        "Service": {
            "ID": id, "Service": "web", "Address": address, "Port": 80, "Meta": null, "Tags": [],
            "Weights": { "Passing": 10, "Warning": 2 }, "CreateIndex": 18,
        },
        "Checks": checks,
    })
}

fn read_one(entry: Value) -> Instance {
    let snapshot = entry::read("web", vec![entry], false);
    assert_eq!(snapshot.rejected, 0, "{:?}", snapshot.notes);
    snapshot.instances.into_iter().next().expect("one instance")
}

#[test]
fn health_is_the_worst_of_all_checks() {
    let read = |checks: &[(&str, &str)]| {
        let instance = read_one(entry("web-1", "10.0.0.1", checks));
        (instance.healthy, instance.enabled, instance.weight)
    };
    assert_eq!(read(&[]), (true, true, 10.0));
    assert_eq!(read(&[("serfHealth", "passing"), ("service:web-1", "passing")]), (true, true, 10.0));
    assert_eq!(read(&[("serfHealth", "passing"), ("service:web-1", "warning")]), (true, true, 2.0));
    assert_eq!(read(&[("serfHealth", "critical"), ("service:web-1", "passing")]), (false, true, 10.0));
    assert_eq!(read(&[("a", "warning"), ("b", "critical")]), (false, true, 10.0));
    assert_eq!(read(&[("_service_maintenance:web-1", "critical")]), (false, false, 10.0));
    assert_eq!(read(&[("_node_maintenance", "critical")]), (false, false, 10.0));
}

#[test]
fn a_partial_weights_object_of_others_does_not_mean_never() {
    let mut entry = entry("web-1", "10.0.0.1", &[("c", "warning")]);
    entry["Service"]["Weights"] = json!({ "Passing": 5, "Warning": 0 });
    assert_eq!(read_one(entry).weight, 1.0);
}

#[test]
fn the_address_is_the_services_or_its_nodes() {
    assert_eq!(read_one(entry("web-1", "", &[])).address.to_string(), "10.0.0.9:80");
    assert_eq!(read_one(entry("web-1", "fd00::1", &[])).address.to_string(), "[fd00::1]:80");
}

#[test]
fn ids_of_others_stay_and_ours_come_back() {
    assert_eq!(read_one(entry("web-1", "10.0.0.1", &[])).id.as_str(), "web-1");
    assert_eq!(read_one(entry("web-10.0.0.1:80", "10.0.0.1", &[])).id.as_str(), "10.0.0.1:80");
    assert_eq!(read_one(entry("web-10.0.0.2:80", "10.0.0.1", &[])).id.as_str(), "web-10.0.0.2:80");
    for id in ["web-some-pod:80", "web-some%2Dpod:80"] {
        assert_eq!(read_one(entry(id, "some-pod", &[])).id.as_str(), "some-pod:80", "{id}");
    }
    let mut named = entry("web-blue", "10.0.0.1", &[]);
    named["Service"]["Meta"] = json!({ "metaroute-id": "blue" });
    let read = read_one(named);
    assert_eq!((read.id.as_str(), read.incarnation.as_str()), ("blue", "18"));
}

#[test]
fn tags_are_a_list_in_the_metadata() {
    let mut tagged = entry("web-1", "10.0.0.1", &[]);
    tagged["Service"]["Tags"] = json!(["a", "b", "a"]);
    let list = MetaValue::List(["a", "b", "a"].map(Into::into).into());
    assert_eq!(read_one(tagged.clone()).metadata.get("tags"), Some(&list));
    tagged["Service"]["Meta"] = json!({ "tags": "mine" });
    assert_eq!(read_one(tagged).metadata.get("tags"), Some(&MetaValue::from("mine")));
    let written = registration(&instance("h:1").with_meta("tags", list), "?tags=c").expect("valid");
    assert_eq!((&written["Tags"], &written["Meta"]), (&json!(["c", "a", "b"]), &json!({})));
}

#[test]
fn bad_entries_are_counted_and_never_empty_the_list() {
    let mut port = entry("port", "10.0.0.1", &[]);
    port["Service"]["Port"] = json!(70_000);
    let mut no_port = entry("no-port", "10.0.0.1", &[]);
    no_port["Service"]["Port"] = json!(0);
    let snapshot = entry::read("web", vec![port, no_port, json!(7), json!({}), entry("ok", "10.0.0.1", &[])], false);
    assert_eq!((snapshot.instances.len(), snapshot.rejected, snapshot.notes.len()), (1, 4, 4));
    assert!(snapshot.notes[0].message.contains("instance `port`: port 70000"), "{:?}", snapshot.notes);
}

#[test]
fn the_same_id_on_two_nodes_is_one_instance_that_moved_or_two() {
    let on = |node: &str, address: &str, status: &str| {
        let mut entry = entry("web-1", address, &[("c", status)]);
        entry["Node"]["Node"] = json!(node);
        entry
    };
    let moved = entry::read("web", vec![on("n1", "10.0.0.1", "critical"), on("n2", "10.0.0.1", "passing")], false);
    assert_eq!(moved.instances.len(), 1);
    assert!(moved.instances[0].healthy);
    let two = entry::read("web", vec![on("n1", "10.0.0.1", "passing"), on("n2", "10.0.0.2", "passing")], false);
    let ids: Vec<_> = two.instances.iter().map(|instance| instance.id.as_str()).collect();
    assert_eq!((ids, two.notes.len()), (vec!["n1/web-1", "n2/web-1"], 1));
}

/// `a-b` with `c` and `a` with `b-c` were one id once, and the second registration replaced the first.
#[test]
fn instances_of_different_services_never_share_an_id() {
    let id = |service: &str, id: &str| entry::service_id(service, &InstanceId::new(id));
    assert_eq!(id("web", "10.0.0.1:80"), "web-10.0.0.1:80");
    assert_eq!((id("a-b", "c"), id("a", "b-c")), ("a-b-c".into(), "a-b%2Dc".into()));
    assert_eq!((id("a", "b%2Dc"), id("a", "50%")), ("a-b%252Dc".into(), "a-50%25".into()));
}

#[tokio::test(start_paused = true)]
async fn queries_come_ten_at_once_then_ten_a_second() {
    let driver = Consul::new(&url("consul://h")).expect("valid");
    let started = Instant::now();
    for _ in 0..20 {
        driver.pace("web").await;
    }
    let took = started.elapsed();
    assert!(took >= REFILL * 10 && took < REFILL * 11, "{took:?}");
    // Another service has a pace of its own.
    driver.pace("other").await;
    assert_eq!(started.elapsed(), took);
}

proptest! {
    #[test]
    fn ids_tell_service_and_instance_apart(
        a in ("[ab%2D-]{0,6}", "[ab%2D-]{0,6}"),
        b in ("[ab%2D-]{0,6}", "[ab%2D-]{0,6}"),
    ) {
        let id = |(service, id): &(String, String)| entry::service_id(service, &InstanceId::new(id.as_str()));
        prop_assert_eq!(id(&a) == id(&b), a == b, "{} {}", id(&a), id(&b));
    }

    #[test]
    fn what_is_written_is_read_back(
        id in "[a-z:.0-9]{1,12}",
        weight in prop_oneof![Just(0.0), Just(1.0), 0.0..9.0, (1_u32..70_000).prop_map(f64::from)],
        cluster in "[a-z]{0,5}",
        zone in "[a-z]{0,5}",
        enabled in any::<bool>(),
        values in prop::collection::btree_map("[A-Za-z0-9_]{1,9}", "[ -~äß€]{0,40}", 0..5),
        seata in any::<bool>(),
    ) {
        prop_assume!(!values.contains_key("zone") && !values.contains_key("region") && !values.contains_key("tags"));
        let mut instance = instance("10.0.0.1:80").with_id(id).with_weight(weight).with_cluster(&cluster).with_zone(&zone);
        instance.enabled = enabled;
        for (key, value) in values {
            instance = instance.with_meta(&key, value);
        }
        let driver = Consul::new(&url(if seata { "consul://h?layout=seata" } else { "consul://h" })).expect("valid");
        let mut service = driver.registration("web", &instance).expect("within the limits");
        if service["Weights"].is_null() {
            service["Weights"] = json!({ "Passing": 1, "Warning": 1 });
        }
        let snapshot = entry::read("web", vec![json!({ "Node": {}, "Service": service, "Checks": [] })], seata);
        let mut read = snapshot.instances.into_iter().next().expect("one instance");
        if !zone.is_empty() {
            read.metadata.remove("zone");
        }
        if seata && instance.cluster.is_empty() {
            instance.cluster = "web".into();
        }
        prop_assert_eq!(read, instance);
    }

    #[test]
    fn no_entry_panics(text in "\\PC{0,20}", number in any::<i64>()) {
        for field in ["ID", "Address", "Port", "Meta", "Tags", "Weights", "CreateIndex"] {
            for value in [json!(text), json!(number), json!([text]), json!({ "Passing": number }), Value::Null] {
                let mut entry = entry("web-1", "10.0.0.1", &[]);
                entry["Service"][field] = value;
                let snapshot = entry::read("web", vec![entry], false);
                prop_assert_eq!(snapshot.instances.len() + snapshot.rejected, 1);
            }
        }
    }
}
