//! Fleet files in every format: never a panic, and what is read holds its promises. The first byte chooses the format.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use metaroute_registry::document::{Format, Source};
use metaroute_registry::fleet::{Fleet, NOTES_MAX};

const FORMATS: [Format; 5] = [Format::Yaml, Format::Json, Format::Toml, Format::Properties, Format::Conf];

fuzz_target!(|data: &[u8]| {
    let Some((choice, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let format = FORMATS[*choice as usize % FORMATS.len()];
    match Fleet::parse("fuzz", text, format) {
        Ok(fleet) => {
            let names: HashSet<_> = fleet.services.iter().map(|service| &service.name).collect();
            assert_eq!(names.len(), fleet.services.len());
            assert!(fleet.notes.len() <= NOTES_MAX);
            for service in &fleet.services {
                let ids: HashSet<_> = service.instances.iter().map(|instance| &instance.id).collect();
                assert_eq!(ids.len(), service.instances.len());
                assert!(service.instances.iter().all(|instance| instance.defect().is_none()));
            }
        }
        Err(error) => {
            let at = error.at.expect("every error of a text has a place");
            assert!(at.line as usize <= text.matches('\n').count() + 1);
            assert!(!error.to_string().is_empty());
        }
    }
    // JSON text of a value reads back as the same value.
    if let Ok(nodes) = Source::new("", text).parse_all(format) {
        for node in nodes {
            let json = node.to_json();
            let back = Source::new("", &json).parse(Format::Json).expect("our JSON is JSON");
            assert_eq!(back.to_json(), json);
        }
    }
});
