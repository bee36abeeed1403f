//! What anybody may have written into etcd and ZooKeeper: names and data of nodes, keys and values. An entry is an instance, is
//! rejected, or belongs to somebody else; it never is two, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &[u8])| {
    let (name, data) = input;
    for (instances, rejected) in metaroute_registry::read_zookeeper_node(name, data) {
        assert_eq!(instances + rejected, 1);
    }
    for (instances, rejected) in metaroute_registry::read_etcd_key(name, data) {
        assert!(instances + rejected <= 1);
    }
});
