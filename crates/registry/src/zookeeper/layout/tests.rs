use proptest::prelude::*;

use super::*;

fn layout(kind: Kind) -> Layout {
    Layout { kind, base: kind.base().into() }
}

fn child(name: &str, data: &[u8]) -> Child {
    let mut child = Child::lone(name, data);
    (child.stat.czxid, child.stat.ephemeral_owner) = (0x10, 0xabc);
    child
}

fn one(kind: Kind, name: &str, data: &[u8]) -> Instance {
    let mut read = layout(kind).read(vec![child(name, data)]);
    assert_eq!((read.instances.len(), read.rejected), (1, 0), "{:?}", read.notes);
    read.instances.remove(0)
}

/// Row "released 2.6.0 writes the four bytes `true`, 2.0.0 a Java-serialized Boolean".
#[test]
fn seata_nodes_of_every_release_are_read() {
    let java = b"\xac\xed\0\x05sr\0\x11java.lang.Boolean\xcd r\x80\xd5\x9c\xfa\xee\x02\0\x01Z\0\x05valuexp\x01";
    for data in [&b"true"[..], b"", java] {
        assert_eq!(one(Kind::Seata, "10.0.0.1:8091", data).metadata.len(), 0);
    }
    let branch = one(Kind::Seata, "0:0:0:0:0:0:0:1:8091", b"version=2.3\nweight=5\nenv=\n");
    assert_eq!(branch.address.to_string(), "[::1]:8091");
    assert_eq!(branch.metadata.len(), 3);
    assert_eq!(branch.incarnation.as_str(), "10.abc");
}

#[test]
fn seata_nodes_are_byte_for_byte_what_seata_writes() {
    let instance = Instance::new("10.0.0.1:8091".parse().expect("an address"));
    let node = layout(Kind::Seata).write("default", &instance, 0).expect("it can be said");
    assert_eq!(node, Node { path: "/registry/zk/default/10.0.0.1:8091".into(), data: Vec::new() });
    let node = layout(Kind::Seata).write("default", &instance.with_meta("version", "2.3"), 0).expect("it can be said");
    assert_eq!(node.data, b"version=2.3\n");
}

#[test]
fn curators_json_is_read_whatever_the_payload_is() {
    let data = |payload: &str| {
        format!(
            r#"{{"name":"s","id":"a","address":"10.0.0.1","port":80,"sslPort":null,"payload":{payload},"registrationTimeUTC":1,"serviceType":"DYNAMIC","uriSpec":null}}"#
        )
    };
    assert_eq!(one(Kind::Curator, "a", data("null").as_bytes()).metadata.len(), 0);
    let spring = r#"{"@class":"org.springframework.cloud.zookeeper.discovery.ZookeeperInstance","id":"x","name":"s","metadata":{"zone":"z1","version":"2"}}"#;
    let read = one(Kind::Curator, "a", data(spring).as_bytes());
    assert_eq!((&*read.locality.zone, read.metadata.len()), ("z1", 2));
    let map = r#"{"@class":"java.util.HashMap","version":"2","n":1}"#;
    let read = one(Kind::Curator, "a", data(map).as_bytes());
    assert_eq!(read.metadata.keys().map(|key| &**key).collect::<Vec<_>>(), ["version"]);
    let off = r#"{"address":"10.0.0.1","port":null,"sslPort":443,"enabled":false}"#;
    let read = one(Kind::Curator, "a", off.as_bytes());
    assert_eq!((read.address.port(), read.enabled), (443, false));
    let read = layout(Kind::Curator).read(vec![child("a", b"not json"), child("b", data("null").as_bytes())]);
    assert_eq!((read.instances.len(), read.rejected), (1, 1));
}

#[test]
fn dubbo_urls_are_read() {
    let name = "dubbo%3A%2F%2F10.0.0.1%3A20880%2Fcom.foo.Bar%3Fanyhost%3Dtrue%26application%3Dshop%26interface%3Dcom.foo.Bar%26side%3Dprovider%26weight%3D200%26timestamp%3D1";
    let read = one(Kind::Dubbo, name, b"");
    assert_eq!((read.address.to_string().as_str(), read.weight), ("10.0.0.1:20880", 2.0));
    assert_eq!(read.id.as_str(), "10.0.0.1:20880");
    assert_eq!(read.metadata.get("application").map(|value| value.to_text()).as_deref(), Some("shop"));
    // Several versions at one address are several instances.
    let versions =
        ["1.0", "2.0"].map(|v| child(&form_encode(&format!("tri://10.0.0.1:80/a.B?version={v}&disabled=true")), b""));
    let read = layout(Kind::Dubbo).read(versions.to_vec());
    assert_eq!((read.instances.len(), read.rejected), (2, 0));
    assert!(read.instances.iter().all(|instance| !instance.enabled));
    assert_eq!(read.instances[0].id.as_str(), "tri://10.0.0.1:80?version=1.0");
    assert_eq!(layout(Kind::Dubbo).read(vec![child("%zz", b""), child("x", b"")]).rejected, 2);
}

#[test]
fn names_that_zookeeper_cannot_have_are_refused_before_the_wire() {
    let instance = Instance::new("h:1".parse().expect("an address")).with_id("a/b");
    assert!(layout(Kind::Curator).write("s", &instance, 0).is_err());
    assert!(layout(Kind::Seata).write("a/b", &instance, 0).is_err());
    assert!(layout(Kind::Seata).write("..", &instance, 0).is_err());
    let node = layout(Kind::Plain).write("a/b", &instance, 0).expect("it is encoded");
    assert_eq!(node.path, "/metaroute/a%2Fb/a%2Fb");
    assert!(layout(Kind::Curator).write("s", &instance.with_id("a").with_meta("@class", "x"), 0).is_err());
}

fn any_instance() -> impl Strategy<Value = Instance> {
    let text = "[a-zäß€ =&%+,\"\\\\\n-]{0,8}";
    let metadata = prop::collection::btree_map("[a-c=&%\n]{1,4}", text, 0..5);
    (1_u16.., "[a-z0-9.-]{3,9}", "[a-z0-9]{0,5}", 0_u32..200_000, any::<bool>(), metadata).prop_map(
        |(port, id, cluster, weight, enabled, metadata)| {
            let mut instance = Instance::new(Address::new("10.0.0.1", port).expect("an address")).with_id(id);
            instance.weight = f64::from(weight) / 1000.0;
            instance.enabled = enabled;
            instance.cluster = cluster.into();
            instance.metadata = metadata.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
            instance
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(instance in any_instance()) {
        for kind in [Kind::Seata, Kind::Curator, Kind::Dubbo, Kind::Plain] {
            let node = layout(kind).write("orders", &instance, 1).expect("it can be said");
            let (parent, name) = node.path.rsplit_once('/').expect("a path");
            prop_assert_eq!(parent, layout(kind).service("orders"));
            let mut read = layout(kind).read(vec![child(name, &node.data)]);
            prop_assert_eq!(read.rejected, 0, "{:?}", read.notes);
            let mut seen = read.instances.remove(0);
            seen.incarnation = Incarnation::default();
            if kind == Kind::Dubbo {
                for key in ["category", "dubbo", "interface", "side"] {
                    seen.metadata.remove(key);
                }
            }
            prop_assert!((seen.weight - instance.weight).abs() < 1e-9, "{kind:?}: {} {}", seen.weight, instance.weight);
            seen.weight = instance.weight;
            prop_assert_eq!(seen, instance.clone(), "{:?}", kind);
        }
    }

    #[test]
    fn no_node_panics(name in ".{0,24}", data in prop::collection::vec(any::<u8>(), 0..48)) {
        for kind in [Kind::Seata, Kind::Curator, Kind::Dubbo, Kind::Plain] {
            let read = layout(kind).read(vec![child(&name, &data)]);
            prop_assert_eq!(read.instances.len() + read.rejected, 1);
        }
    }
}
