//! Laws that hold for every text, whatever it is.

use metaroute::rules_file::RulesFile;
use proptest::prelude::*;

use super::*;

type Translate = fn(&str, &mut Translation) -> Result<(), Failure>;

const ORIGINS: [Translate; 4] = [
    dubbo::translate,
    |text, to| kubernetes::translate(text, false, to),
    |text, to| kubernetes::translate(text, true, to),
    bexpr::translate,
];

/// A text is translated, refused or listed; what comes out is a rules file that reads back to the same rules.
fn check(text: &str) -> Result<(), TestCaseError> {
    for translate in ORIGINS {
        let mut to = Translation { file: "-".into(), set: RuleSet::default(), lost: Vec::new(), notes: Vec::new() };
        if translate(text, &mut to).is_err() {
            continue;
        }
        let yaml = to_yaml(&to.set);
        let read = RulesFile::parse("rules.yaml", &yaml, FileFormat::Yaml);
        prop_assert!(read.is_ok(), "{text:?}\n{yaml}\n{read:?}");
        prop_assert_eq!(read.unwrap().rules, to.set, "{:?}\n{}", text, yaml);
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_text_is_translated_or_refused(text in "\\PC{0,80}") {
        check(&text)?;
    }

    #[test]
    fn texts_of_the_right_words_are_too(
        words in proptest::collection::vec(prop::sample::select(vec![
            "a", "b", "tags", "Tags", "Meta.a", "Meta[\"a b\"]", "ServicePort", "\"x\\\"y\"", "`r*`", "1", "==", "!=", "=", "=>",
            "in", "not", "is", "empty", "and", "or", "(", ")", ",", "contains", "matches", "notin", "!", "<", ">", "&", "*", "$a",
            "host", "address", "10.0.0.1:80", "\n", "\"*\"", "key: v", "conditions: [", "]", "method", "äö", "\\",
        ]), 0..14)
    ) {
        check(&words.join(" "))?;
        check(&words.concat())?;
    }

    #[test]
    fn documents_of_the_right_shape_are_too(
        key in "[a-z.`\"/ ]{0,8}", value in "\\PC{0,8}", word in prop::sample::select(vec!["In", "NotIn", "Exists", "Gt", "exact", "regex"]),
    ) {
        let text = |s: &str| serde_json::Value::from(s).to_string();
        let (key, value) = (text(&key), text(&value));
        check(&format!("{{\"spec\":{{\"selector\":{{\"matchExpressions\":[{{\"key\":{key},\"operator\":\"{word}\",\"values\":[{value}]}}]}}}}}}"))?;
        check(&format!("{{\"spec\":{{\"selector\":{{{key}:{value}}}}}}}"))?;
        check(&format!("{{\"tags\":[{{\"name\":{value},\"match\":[{{\"key\":{key},\"value\":{{\"{word}\":{value}}}}}]}},{{\"name\":{key},\"addresses\":[{value}]}}]}}"))?;
        check(&format!("{{\"force\":true,\"conditions\":[{value},{key}]}}"))?;
    }
}

#[test]
fn what_exceeds_a_limit_of_our_language_is_listed() {
    let many: Vec<String> = (0..4000).map(|i| format!("\"tag-number-{i}\"")).collect();
    let text = format!(
        "{{\"tags\":[{}]}}",
        many.iter().map(|name| format!("{{\"name\":{name}}}")).collect::<Vec<_>>().join(",")
    );
    let mut to = Translation { file: "-".into(), set: RuleSet::default(), lost: Vec::new(), notes: Vec::new() };
    assert!(dubbo::translate(&text, &mut to).is_ok());
    assert!(!to.lost.is_empty(), "8 KiB are the most an expression may have");
    let deep = format!("{}Meta.a == b{}", "(".repeat(1000), ")".repeat(1000));
    assert!(bexpr::translate(&deep, &mut to).is_err());
}
