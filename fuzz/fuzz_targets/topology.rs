//! Topology documents: never a panic, errors have a place, and what is accepted is complete, disjoint and reads back. The
//! first byte chooses the format.
#![no_main]

use libfuzzer_sys::fuzz_target;
use metaroute_cluster::topology::{Plan, Topology};
use metaroute_registry::document::Format;

fuzz_target!(|data: &[u8]| {
    let Some((choice, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let format = if choice % 2 == 0 { Format::Yaml } else { Format::Json };
    match Topology::parse("fuzz", text, format) {
        Ok(topology) => {
            for group in topology.groups() {
                assert!((0..group.slots()).all(|slot| group.owner(slot).is_some()));
            }
            for tenant in [0, 1, 42, u64::MAX] {
                let place = topology.tenant(tenant).expect("every tenant has a group");
                let slot = topology.slot(place.group, place.span, "files", tenant);
                assert!(topology.span_slots(&place).contains(slot));
            }
            let again = Topology::parse("fuzz", &topology.document().to_json(), Format::Json).expect("our own document");
            assert_eq!(again, topology);
            assert!(Plan::between(&topology, &again).is_empty());
        }
        Err(error) => {
            let at = error.at.expect("every error of a text has a place");
            assert!(at.line as usize <= text.matches('\n').count() + 1);
            assert!(!error.to_string().is_empty());
        }
    }
});
