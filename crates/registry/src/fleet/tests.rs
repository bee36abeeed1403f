use proptest::prelude::*;

use super::*;

fn yaml(text: &str) -> Fleet {
    Fleet::parse("fleet.yaml", text, Format::Yaml).unwrap()
}

fn error(text: &str) -> ConfigError {
    Fleet::parse("fleet.yaml", text, Format::Yaml).unwrap_err()
}

fn one(instance: &str) -> Fleet {
    yaml(&format!(
        "services:\n- name: s\n  instances:\n  - {{address: \"h:1\", {instance}}}\n  - {{address: \"other:2\"}}\n"
    ))
}

#[test]
fn all_fields_are_read() {
    let fleet = yaml(
        "version: 1
services:
  - name: orders
    instances:
      - id: a
        address: 10.0.0.1:8080
        weight: 2.5
        cluster: hz
        zone: z1
        region: r1
        subzone: rack-7
        healthy: false
        enabled: false
        incarnation: 17
        metadata: {version: 2.10, tier: '2', on: true, labels: [x, 1], gone: null, nested: {k: [1.50, null]}, empty: ''}
      - address: '[fd00::7]:9'
  - name: empty
",
    );
    let orders = fleet.service("orders").unwrap();
    let a = &orders.instances[0];
    assert_eq!((a.id.as_str(), a.address.to_string().as_str(), a.weight), ("a", "10.0.0.1:8080", 2.5));
    assert_eq!(
        (&*a.cluster, &*a.locality.zone, &*a.locality.region, &*a.locality.subzone),
        ("hz", "z1", "r1", "rack-7")
    );
    assert_eq!((a.healthy, a.enabled, a.incarnation.as_str()), (false, false, "17"));
    let expected: Metadata = [
        ("version", MetaValue::Number("2.10".into())),
        ("tier", MetaValue::Text("2".into())),
        ("on", MetaValue::Bool(true)),
        ("labels", MetaValue::List(["x".into(), "1".into()].into())),
        ("nested", MetaValue::Json(r#"{"k":[1.50,null]}"#.into())),
        ("empty", MetaValue::Text("".into())),
    ]
    .into_iter()
    .map(|(k, v)| (k.into(), v))
    .collect();
    assert_eq!(a.metadata, expected);
    let b = &orders.instances[1];
    assert_eq!((b.id.as_str(), b.weight, b.healthy, b.enabled), ("[fd00::7]:9", 1.0, true, true));
    assert_eq!(fleet.service("empty").unwrap().instances.len(), 0);
    assert!(fleet.notes.is_empty());
}

#[test]
fn the_three_formats_give_the_same_fleet() {
    let a = yaml("services: [{name: s, instances: [{address: 'h:1', weight: 0, metadata: {version: 2.10, l: [a]}}]}]");
    let b = Fleet::parse(
        "f.json",
        r#"{"services":[{"name":"s","instances":[{"address":"h:1","weight":0,"metadata":{"version":2.10,"l":["a"]}}]}]}"#,
        Format::Json,
    )
    .unwrap();
    let c = Fleet::parse(
        "f.toml",
        "[[services]]\nname = 's'\n[[services.instances]]\naddress = 'h:1'\nweight = 0\nmetadata = {version = 2.10, l = ['a']}\n",
        Format::Toml,
    )
    .unwrap();
    assert_eq!(a.services, b.services);
    assert_eq!(a.services, c.services);
}

/// `routing.md` T20: zero stays zero, missing is 1, unreadable is 1 with a note, negative is rejected and counted.
#[test]
fn t20_weights() {
    for (written, weight, notes) in [
        ("weight: 0", 0.0, 0),
        ("enabled: true", 1.0, 0),
        ("weight: null", 1.0, 0),
        ("weight: ''", 1.0, 1),
        ("weight: '0.5'", 0.5, 0),
        ("weight: 0.5", 0.5, 0),
        ("weight: '0'", 0.0, 0),
        ("weight: ' 3 '", 3.0, 0),
        ("weight: abc", 1.0, 1),
        ("weight: true", 1.0, 1),
        ("weight: [1]", 1.0, 1),
        ("weight: 1e3", 1000.0, 0),
        ("weight: 2147483648", 2_147_483_648.0, 0),
        ("weight: 4294967295", 4_294_967_295.0, 0),
    ] {
        let fleet = one(written);
        let service = fleet.service("s").unwrap();
        assert_eq!(service.rejected, 0, "{written}");
        assert_eq!(service.instances[0].weight, weight, "{written}");
        assert_eq!(fleet.notes.len(), notes, "{written}");
        if notes > 0 {
            assert_eq!(fleet.notes[0].code, "weight_default");
        }
    }
    for written in [
        "weight: -3",
        "weight: '-3'",
        "weight: .nan",
        "weight: NaN",
        "weight: .inf",
        "weight: -.inf",
        "weight: 5000000000",
        "weight: 1e999",
    ] {
        let fleet = one(written);
        let service = fleet.service("s").unwrap();
        assert_eq!((service.rejected, service.instances.len()), (1, 1), "{written}");
        assert_eq!(&*service.instances[0].address.to_string(), "other:2");
        assert_eq!(fleet.notes.len(), 1);
        assert!(fleet.notes[0].message.starts_with("instance 1 of `s` left out: "), "{}", fleet.notes[0]);
    }
}

#[test]
fn one_bad_instance_does_not_lose_the_others() {
    for (bad, code, place) in [
        ("{id: x}", "missing_key", "4:5"),
        ("{address: nowhere}", "bad_address", "4:15"),
        ("{address: 'h:0'}", "bad_address", "4:15"),
        ("{address: [h]}", "bad_address", "4:15"),
        ("{address: 'h:2'}", "duplicate_id", "4:5"),
        ("{address: 'x:2', id: 'h:2'}", "duplicate_id", "4:26"),
        ("{address: 'x:2', id: ''}", "bad_instance", "4:5"),
        ("{address: 'x:2', healthy: maybe}", "wrong_type", "4:31"),
        ("{address: 'x:2', cluster: [a]}", "wrong_type", "4:31"),
        ("{address: 'x:2', metadata: [a]}", "wrong_type", "4:32"),
        ("just text", "wrong_type", "4:5"),
    ] {
        let text = format!(
            "services:\n- name: s\n  instances: [{{address: 'h:2'}},\n    {bad},\n    {{address: 'last:1'}}]\n"
        );
        let fleet = yaml(&text);
        let service = fleet.service("s").unwrap();
        let addresses: Vec<_> = service.instances.iter().map(|i| i.address.to_string()).collect();
        assert_eq!(addresses, ["h:2", "last:1"], "{bad}");
        assert_eq!(fleet.rejected(), 1);
        assert_eq!((fleet.notes[0].code, fleet.notes[0].at.unwrap().to_string().as_str()), (code, place), "{bad}");
        assert!(fleet.notes[0].to_string().starts_with("fleet.yaml:4:"), "{}", fleet.notes[0]);
    }
}

#[test]
fn a_malformed_document_is_an_error_as_a_whole() {
    for (text, code, message) in [
        ("", "missing_key", "fleet.yaml:1:1: the file is empty (expected services)"),
        (
            "service: []",
            "unknown_key",
            "fleet.yaml:1:1: unknown key `service` in the fleet file (did you mean `services`?)",
        ),
        ("services: {}", "wrong_type", "fleet.yaml:1:11: `services` must be a list, not a map (expected list)"),
        ("services: [{}]", "missing_key", "fleet.yaml:1:12: a service has no `name`"),
        ("services: [{name: a}, {name: a}]", "duplicate_service", "fleet.yaml:1:23: service `a` is listed twice"),
        (
            "services: [{name: a, instances: [{adress: 'h:1'}]}]",
            "unknown_key",
            "fleet.yaml:1:35: unknown key `adress` in an instance (did you mean `address`?)",
        ),
        (
            "version: 2\nservices: []",
            "unknown_version",
            "fleet.yaml:1:10: fleet file version `2` is not known (expected 1)",
        ),
        ("- a", "wrong_type", "fleet.yaml:1:1: the fleet file must be a map, not a list (expected map)"),
    ] {
        let error = error(text);
        assert_eq!((error.code, error.to_string().as_str()), (code, message));
    }
}

#[test]
fn notes_are_bounded_and_rejects_counted() {
    let mut text = String::from("services:\n- name: s\n  instances:\n");
    for i in 0..NOTES_MAX + 500 {
        text.push_str(&format!("  - {{address: 'h{i}:1', weight: -1}}\n"));
    }
    let fleet = yaml(&text);
    assert_eq!((fleet.rejected(), fleet.notes.len()), (NOTES_MAX + 500, NOTES_MAX));
    assert_eq!(fleet.notes[NOTES_MAX - 1].at.unwrap().line as usize, NOTES_MAX + 3);
}

#[test]
fn files_are_read_by_extension() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.toml");
    std::fs::write(&path, "services = []\n").unwrap();
    assert_eq!(Fleet::read(&path).unwrap(), Fleet::default());
    assert_eq!(Fleet::read(&folder.path().join("none.yaml")).unwrap_err().code, "unreadable");
    assert_eq!(Fleet::read(&folder.path().join("f.txt")).unwrap_err().code, "unknown_format");
    std::fs::write(folder.path().join("b.yaml"), b"a: 1\nb: \xff\n").unwrap();
    let error = Fleet::read(&folder.path().join("b.yaml")).unwrap_err();
    assert_eq!((error.code, error.at.unwrap().to_string().as_str()), ("not_utf8", "2:4"));
}

proptest! {
    /// Good instances come through in order whatever stands between them.
    #[test]
    fn bad_instances_are_isolated(good in prop::collection::vec(any::<bool>(), 0..40)) {
        let mut text = String::from("services:\n- name: s\n  instances:\n");
        for (i, good) in good.iter().enumerate() {
            let weight = if *good { "3" } else { "-1" };
            text.push_str(&format!("  - {{address: 'h{i}:1', weight: {weight}}}\n"));
        }
        if good.is_empty() { text.push_str("  - {address: '-'}\n"); }
        let fleet = yaml(&text);
        let kept: Vec<_> = fleet.services[0].instances.iter().map(|i| i.address.host().to_owned()).collect();
        let wanted: Vec<_> = good.iter().enumerate().filter(|(_, g)| **g).map(|(i, _)| format!("h{i}")).collect();
        prop_assert_eq!(kept, wanted);
        prop_assert_eq!(fleet.rejected(), good.len().max(1) - good.iter().filter(|g| **g).count());
    }

    #[test]
    fn the_reader_is_total(text in "[-a-z0-9:{}\\[\\],'\" \n.]{0,200}") {
        for format in [Format::Yaml, Format::Json, Format::Toml, Format::Properties] {
            let _ = Fleet::parse("", &text, format);
        }
    }
}

#[test]
fn the_example_of_the_guide_is_read() {
    let guide = include_str!("../../../../docs/fleet-file.md");
    let example = guide.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let fleet = yaml(example);
    assert_eq!((fleet.notes.len(), fleet.services[0].instances.len()), (0, 2));
    assert_eq!(fleet.services[0].instances[0].metadata["version"], MetaValue::Number("2.10".into()));
}
