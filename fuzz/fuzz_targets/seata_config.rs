//! Seata and Spring configuration in every format, with a variable of the fuzzer's: never a panic, and routing that is not
//! switched on has no rules. The first byte chooses the format, the text up to the first NUL is the variable's value.
#![no_main]

use libfuzzer_sys::fuzz_target;
use metaroute::properties::Surroundings;
use metaroute::rules_file::{RulesFile, to_yaml};
use metaroute::seata::SeataConfig;
use metaroute::spring::SpringConfig;
use metaroute_registry::document::Format;

const FORMATS: [Format; 5] = [Format::Properties, Format::Yaml, Format::Conf, Format::Json, Format::Toml];

fuzz_target!(|data: &[u8]| {
    let Some((choice, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let (variable, text) = text.split_once('\0').unwrap_or(("", text));
    let format = FORMATS[*choice as usize % FORMATS.len()];
    let surroundings = Surroundings::none().with_variable("SEATA_REGISTRY_METADATA_ENV", variable);
    if let Ok(config) = SeataConfig::parse("fuzz", text, format, &surroundings) {
        assert!(config.routing_enabled || config.rules.rules.is_empty());
        assert!(config.metadata.keys().any(|key| key.eq_ignore_ascii_case("env") || key.len() > 3));
        // What migration prints is a rules file.
        let printed = to_yaml(&config.rules);
        let back = RulesFile::parse("printed", &printed, Format::Yaml).unwrap_or_else(|e| panic!("{e}\n{printed}"));
        assert_eq!(back.rules, config.rules, "{printed}");
    }
    if let Ok(config) = SpringConfig::parse("fuzz", text, format, &surroundings) {
        assert!(config.weight.is_finite() && config.weight >= 0.0);
        let _ = config.registration(None);
        let _ = config.caller();
    }
});
