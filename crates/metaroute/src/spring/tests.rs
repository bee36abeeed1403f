use metaroute_core::instance::MetaValue;

use super::*;

fn read(text: &str, format: Format) -> SpringConfig {
    SpringConfig::parse("application", text, format, &Surroundings::none()).unwrap()
}

const YAML: &str = "
server.port: 8081
spring:
  application: {name: orders}
  cloud:
    nacos:
      server-addr: 127.0.0.1:8848
      discovery:
        cluster-name: hz
        group: G
        namespace: ns
        weight: 0.5
        ip: 10.0.0.1
        ephemeral: false
        metadata:
          version: 2.10
          target-version: ${VERSION:2.10}
          canary: true
          blank:
";

#[test]
fn everything_is_read() {
    let config = read(YAML, Format::Yaml);
    assert_eq!(config.service.as_deref(), Some("orders"));
    assert_eq!((config.cluster.as_str(), config.group.as_str(), config.namespace.as_deref()), ("hz", "G", Some("ns")));
    assert_eq!(config.server.as_deref(), Some("127.0.0.1:8848"));
    assert_eq!((config.weight, config.port, config.ephemeral, config.enabled), (0.5, Some(8081), false, true));
    assert_eq!(config.metadata["version"], MetaValue::Number("2.10".into()));
    assert_eq!(config.metadata["target-version"], MetaValue::Text("2.10".into()));
    assert_eq!(config.metadata["canary"], MetaValue::Bool(true));
    assert_eq!(config.metadata["blank"], MetaValue::Text("".into()));
    assert_eq!(config.notes, []);
}

#[test]
fn the_caller_has_its_metadata_and_its_cluster() {
    let caller = read(YAML, Format::Yaml).caller();
    let wanted =
        [("blank", ""), ("canary", "true"), ("cluster", "hz"), ("target-version", "2.10"), ("version", "2.10")];
    assert_eq!(caller, wanted.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    // No cluster given: the caller has none, so no preference is switched on by Nacos's default.
    let config = read("spring.cloud.nacos.discovery.metadata.version=1", Format::Properties);
    assert_eq!(config.caller().keys().collect::<Vec<_>>(), ["version"]);
    assert_eq!(config.cluster, "DEFAULT");
    let config = read(
        "spring.cloud.nacos.discovery.cluster-name=hz\nspring.cloud.nacos.discovery.metadata.cluster=x",
        Format::Properties,
    );
    assert_eq!(config.caller()["cluster"], "hz");
}

#[test]
fn the_registration_is_the_instance() {
    let instance = read(YAML, Format::Yaml).registration(None).unwrap();
    assert_eq!(
        (instance.address.to_string().as_str(), instance.weight, &*instance.cluster),
        ("10.0.0.1:8081", 0.5, "hz")
    );
    assert_eq!(instance.metadata.len(), 4);
    let config = read("spring.application.name=x", Format::Properties);
    assert_eq!(config.registration(None), None);
    let found = config.registration(Some(&"h:9".parse().unwrap())).unwrap();
    assert_eq!((found.address.to_string().as_str(), found.weight, &*found.cluster), ("h:9", 1.0, "DEFAULT"));
    let config = read(
        "spring.cloud.nacos.discovery.port=-1\nserver.port=0\nspring.cloud.nacos.discovery.instance-enabled=false",
        Format::Properties,
    );
    assert_eq!(config.port, None);
    assert!(!config.registration(Some(&"h:9".parse().unwrap())).unwrap().enabled);
}

#[test]
fn both_prefixes_and_all_sources_count() {
    let text = "spring.cloud.nacos.metadata.version=1\nspring.cloud.nacos.metadata.a=short\nspring.cloud.nacos.discovery.metadata.version=2\nspring.cloud.nacos.cluster-name=bj\nspring.cloud.nacos.weight=3\n";
    let config = read(text, Format::Properties);
    assert_eq!(
        config.caller(),
        [("a", "short"), ("cluster", "bj"), ("version", "2")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    );
    assert_eq!(config.weight, 3.0);
    let surroundings = Surroundings::none()
        .with_variable("SPRING_CLOUD_NACOS_DISCOVERY_METADATA_VERSION", "3")
        .with_variable("SPRING_CLOUD_NACOS_DISCOVERY_CLUSTERNAME", "sh")
        .with_argument("--spring.cloud.nacos.discovery.metadata.a=argument");
    let config = SpringConfig::parse("f", text, Format::Properties, &surroundings).unwrap();
    assert_eq!(
        config.caller(),
        [("a", "argument"), ("cluster", "sh"), ("version", "3")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    );
}

#[test]
fn wrong_values_and_keys_are_named() {
    let config = read(
        "spring.cloud.nacos.discovery.weight=-1\nspring.cloud.nacos.discovery.metdata.x=1\nspring.cloud.nacos.discovery.ephemeral=maybe\n",
        Format::Properties,
    );
    assert_eq!((config.weight, config.ephemeral), (1.0, true));
    let codes: Vec<_> = config.notes.iter().map(|note| note.code).collect();
    assert_eq!(codes, ["unknown_key", "bad_weight", "bad_boolean"]);
    assert_eq!(
        config.notes[0].to_string(),
        "application:2:1: unknown key `spring.cloud.nacos.discovery.metdata`, did you mean `metadata`?"
    );
    for weight in ["abc", "", "NaN", "inf"] {
        assert_eq!(read(&format!("spring.cloud.nacos.discovery.weight={weight}"), Format::Properties).weight, 1.0);
    }
    assert_eq!(read("spring.cloud.nacos.discovery.weight=0", Format::Properties).weight, 0.0);
}

#[test]
fn the_nacos_preset_is_fed() {
    use metaroute_core::rules::RuleSet;
    let set = RuleSet::nacos_cluster(&read(YAML, Format::Yaml).caller());
    assert!(set.prefer.cluster);
    assert_eq!(set.rules.len(), 1);
}
