//! Answers of Consul, Eureka and Kubernetes: any bytes are read or refused, and a list that is read keeps its promises.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let consul = metaroute_registry::read_consul_entries(data);
    let eureka = metaroute_registry::read_eureka_applications(data).unwrap_or_default();
    let kubernetes = metaroute_registry::read_kubernetes_slices(data);
    for snapshot in consul.into_iter().chain(eureka).chain([kubernetes]) {
        let ids: HashSet<_> = snapshot.instances.iter().map(|instance| &instance.id).collect();
        assert_eq!(ids.len(), snapshot.instances.len());
        assert!(snapshot.instances.iter().all(|instance| instance.defect().is_none()));
        assert!(snapshot.notes.len() <= 101);
    }
});
