//! Rules files in every format: never a panic, and what is read prints to YAML that reads back as the same rule set. The
//! first byte chooses the format.
#![no_main]

use libfuzzer_sys::fuzz_target;
use metaroute::rules_file::{RulesFile, lint_rules, to_yaml};
use metaroute_registry::document::Format;

const FORMATS: [Format; 5] = [Format::Yaml, Format::Json, Format::Toml, Format::Properties, Format::Conf];

fuzz_target!(|data: &[u8]| {
    let Some((choice, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let format = FORMATS[*choice as usize % FORMATS.len()];
    match RulesFile::parse("fuzz", text, format) {
        Ok(file) => {
            assert_eq!(file.places.len(), file.rules.rules.len());
            let printed = to_yaml(&file.rules);
            let back = RulesFile::parse("printed", &printed, Format::Yaml)
                .unwrap_or_else(|error| panic!("{error}\n{printed}"));
            assert_eq!(back.rules, file.rules, "{printed}");
            let _ = lint_rules(&file.rules, None);
        }
        Err(error) => {
            let at = error.at.expect("every error of a text has a place");
            assert!(at.line as usize <= text.matches('\n').count() + 1);
        }
    }
});
