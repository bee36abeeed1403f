use metaroute_core::instance::MetaValue;
use proptest::prelude::*;

use super::*;

fn none() -> Surroundings {
    Surroundings::none()
}

fn yaml(text: &str) -> SeataConfig {
    SeataConfig::parse("application.yml", text, Format::Yaml, &none()).unwrap()
}

fn props(text: &str) -> SeataConfig {
    SeataConfig::parse("application.properties", text, Format::Properties, &none()).unwrap()
}

fn conf(text: &str) -> SeataConfig {
    SeataConfig::parse("registry.conf", text, Format::Conf, &none()).unwrap()
}

fn codes(config: &SeataConfig) -> Vec<&'static str> {
    config.notes.iter().map(|note| note.code).collect()
}

fn text(config: &SeataConfig, key: &str) -> Option<String> {
    config.metadata.get(key).map(|value| value.to_text().into())
}

/// What a client without any configuration does.
fn unconfigured() -> RuleSet {
    let mut set = RuleSet::default();
    set.profile = Profile::Seata;
    set.dialect = Dialect::Seata;
    set.balance = Balance::Xid;
    set.all_zero = AllZero::Uniform;
    set
}

/// The sample of a 2.x server as it is shipped, shortened.
const SERVER: &str = "
server:
  port: 7091
spring:
  application:
    name: seata-server
logging:
  config: classpath:logback-spring.xml
console:
  user: {username: seata, password: seata}
seata:
  config:
    type: file
  registry:
    type: nacos
    preferred-networks: 30.240.*
    metadata:
      weight: 100
      env: prod
      region:
      version: 2.10
      zone.name: z1
    nacos:
      application: seata-server
      server-addr: 127.0.0.1:8848
      group: SEATA_GROUP
      cluster: hz
      username: nacos
      password: n4c0s
  store:
    mode: file
  security:
    secretKey: SeataSecretKey
";

#[test]
fn server_metadata_is_read_for_every_registry_type() {
    for kind in
        ["nacos", "consul", "redis", "eureka", "zk", "etcd3", "raft", "sofa", "custom", "file", "seata", "seata,nacos"]
    {
        let config = yaml(&SERVER.replace("type: nacos", &format!("type: {kind}")));
        assert_eq!(text(&config, "env").as_deref(), Some("prod"), "{kind}");
        assert_eq!(config.metadata["version"], MetaValue::Number("2.10".into()));
        assert_eq!(config.metadata["weight"], MetaValue::Number("100".into()));
        assert_eq!(config.metadata["region"], MetaValue::Text("".into()), "blank is present and empty");
        assert_eq!(text(&config, "zone.name").as_deref(), Some("z1"));
        assert_eq!(config.metadata.len(), 5);
        assert_eq!(codes(&config), Vec::<&str>::new(), "{:?}", config.notes);
    }
}

#[test]
fn the_registry_section_is_data() {
    let config = yaml(SERVER);
    assert_eq!(config.registry.types, [RegistryType::Nacos]);
    let nacos = &config.registry.settings[&RegistryType::Nacos];
    assert_eq!(nacos.get("serverAddr"), Some("127.0.0.1:8848"));
    assert_eq!(config.registry.cluster(RegistryType::Nacos), "hz");
    assert_eq!(config.registry.cluster(RegistryType::Redis), "default");
    assert!(!format!("{config:?}").contains("n4c0s"));
    assert_eq!(nacos.get("password"), Some("n4c0s"));
}

/// `seata.md` 1.2: the strongest source wins, variables and placeholders work.
#[test]
fn metadata_precedence_variables_and_placeholders() {
    let surroundings = none()
        .with_variable("SEATA_REGISTRY_METADATA_ENV", "from-variable")
        .with_variable("SEATA_REGISTRY_METADATA_ZONE_NAME", "z9")
        .with_variable("SEATA_REGISTRY_METADATA_EXTERNAL", "h:1:2")
        .with_variable("REGION_NAME", "eu")
        .with_argument("--seata.registry.metadata.weight=7");
    let yaml = SERVER.replace("region:", "region: ${REGION_NAME:us}-${az:1}");
    let config = SeataConfig::parse("a.yml", &yaml, Format::Yaml, &surroundings).unwrap();
    assert_eq!(text(&config, "env").as_deref(), Some("from-variable"));
    assert_eq!(config.metadata["weight"], MetaValue::Text("7".into()));
    assert_eq!(text(&config, "region").as_deref(), Some("eu-1"));
    assert_eq!(text(&config, "zone.name").as_deref(), Some("z9"));
    assert_eq!(text(&config, "external").as_deref(), Some("h:1:2"));
    assert_eq!(config.metadata.len(), 6);
    let config =
        props("seata.registry.metadata.a=1\nseata.registry.metadata.a=2\nseata.registry.metadata.b=${nobody}\n");
    assert_eq!((text(&config, "a").as_deref(), text(&config, "b").as_deref()), (Some("2"), Some("${nobody}")));
    assert_eq!(codes(&config), ["unresolved_placeholder"]);
}

#[test]
fn metadata_keys_are_kept_as_written() {
    let config = yaml("seata: {registry: {metadata: {Env: a, env: b, a.b: 1, deep: {x: true}, n: 1.50}}}");
    let keys: Vec<_> = config.metadata.keys().map(|key| &**key).collect();
    assert_eq!(keys, ["Env", "a.b", "deep.x", "env", "n"]);
    assert_eq!(config.metadata["deep.x"], MetaValue::Bool(true));
    assert_eq!(config.metadata["n"], MetaValue::Number("1.50".into()));
    assert_eq!(config.metadata["a.b"], MetaValue::Number("1".into()));
    assert_eq!(props("seata.registry.metadata.weight=5").metadata["weight"], MetaValue::Text("5".into()));
}

#[test]
fn registry_types_are_trimmed_and_named() {
    let types = |list: &str| {
        let config = props(&format!("seata.registry.type={list}"));
        (config.registry.types.clone(), codes(&config))
    };
    assert_eq!(types("seata, NACOS ,nacos").0, [RegistryType::Seata, RegistryType::Nacos]);
    assert_eq!(types("").0, [RegistryType::File]);
    assert_eq!(types("ZK").0, [RegistryType::Zk]);
    let config = props("seata.registry.type=nacso,etcd");
    assert_eq!(config.registry.types, []);
    assert_eq!(codes(&config), ["unknown_registry_type", "unknown_registry_type"]);
    assert!(config.notes[0].message.contains("did you mean `nacos`?"), "{}", config.notes[0]);
    assert_eq!(props("seata.enabled=true").registry.types, []);
}

#[test]
fn routing_off_or_absent_is_no_configuration() {
    let on = "seata.client.routing.routers=metadata-router-1\nseata.client.routing.metadata-router-1.expression=version >= 2.3\n";
    for text in [
        "".to_owned(),
        "seata.enabled=true".to_owned(),
        on.to_owned(),
        format!("{on}seata.client.routing.enabled=false"),
        format!("{on}seata.client.routing.enabled="),
        format!("{on}seata.client.routing.enabled=maybe"),
    ] {
        let config = props(&text);
        assert_eq!(config.rules, unconfigured(), "{text}");
        assert!(!config.routing_enabled);
    }
    // What would run is still known.
    assert_eq!(props(on).routers, ["metadata-router-1"]);
}

fn routing(lines: &str) -> SeataConfig {
    let mut text = String::from("seata.client.routing.enabled=true\n");
    for line in lines.lines() {
        text.push_str(&format!("seata.client.routing.{}\n", line.trim()));
    }
    props(&text)
}

#[test]
fn routers_run_in_list_order() {
    let config = routing(
        "routers= metadata-router-b , ,metadata-router-1,spi-geo
         metadata-router-1.expression=version >= 2.3
         metadata-router-b.expression=(env = prod) && (region = cn)
         metadata-router-b.fallback=false
         metadata-router-b.enabled=true
         spi-geo.lat=52.5
         spi-geo.nested.key=x",
    );
    assert!(config.routing_enabled);
    assert_eq!(config.routers, ["metadata-router-b", "metadata-router-1", "spi-geo"]);
    let [b, one, geo] = config.rules.rules.as_slice() else { panic!("three rules") };
    assert_eq!(b.expr(), Some(&Expr::parse_as("(env = prod) && (region = cn)", Dialect::Seata).unwrap()));
    assert_eq!((b.mode, b.terminal, b.min_usable), (Mode::Prefer, Some(Terminal::Fail), MinUsable::Count(0)));
    assert_eq!((one.mode, one.terminal), (Mode::Prefer, Some(Terminal::Any)));
    let keys = [("lat", "52.5"), ("nested.key", "x")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(geo.filter, Filter::Custom { router: "spi-geo".into(), config: keys.into() });
    assert_eq!(geo.terminal, Some(Terminal::Any));
    assert_eq!(codes(&config), Vec::<&str>::new());
    assert_eq!(config.rules, {
        let mut set = unconfigured();
        set.rules = config.rules.rules.clone();
        set
    });
}

#[test]
fn routers_nobody_registered_let_everything_pass() {
    let config = routing("routers=spi-a,spi-b\nspi-a.k=v");
    let (set, notes) = config.rules_with_routers(|name| name == "spi-a");
    assert_eq!(set.rules[0], config.rules.rules[0]);
    assert_eq!(set.rules[1].expr().map(Expr::source), Some(""));
    assert_eq!(notes.iter().map(|note| note.code).collect::<Vec<_>>(), ["unregistered_router"]);
}

/// `seata.md` 2.2: which routers are loaded.
#[test]
fn what_is_loaded_and_what_is_named() {
    for (lines, routers, notes) in [
        ("routers=metadata-router-1", &[][..], &["router_without_settings"][..]),
        ("routers=metadata-router-1\nmetadata-router-1.enabled=true", &["metadata-router-1"], &["blank_expression"]),
        ("routers=metadata-router-1\nmetadata-router-1.expression= ", &["metadata-router-1"], &["blank_expression"]),
        ("routers=metadata-router-1\nmetadata-router-1.expression=a == 1\nmetadata-router-1.enabled=false", &[], &[]),
        (
            "routers=metadata-router-1\nmetadata-router-1.expression=version>=2.3",
            &["metadata-router-1"],
            &["bad_expression"],
        ),
        (
            "routers=metadata-router-1\nmetadata-router-1.expression=a == 1 && b == 2 || c == 3",
            &["metadata-router-1"],
            &["bad_expression"],
        ),
        ("routers=metadata-router\nmetadata-router.expression=a == 1", &[], &["unknown_key", "unknown_router"]),
        ("routers=metadata-router-", &[], &["unknown_router"]),
        ("routers=region-router", &[], &["unknown_router"]),
        ("routers=spi-", &[], &["unknown_router"]),
        ("routers=spi-x", &["spi-x"], &[]),
        ("routers=spi-x\nspi-x.enabled=false", &[], &[]),
        ("routers=metadata-router-east\nmetadata-router-east.expression=a == 1", &["metadata-router-east"], &[]),
        (
            "routers=metadata-router-1,metadata-router-1\nmetadata-router-1.expression=a == 1",
            &["metadata-router-1", "metadata-router-1#2"],
            &[],
        ),
        ("debug=true", &[], &["no_routers"]),
        (
            "routers=metadata-router-1\nmetadata-router-1.expression=a == 1\nmetadata-router-2.expression=b == 1",
            &["metadata-router-1"],
            &["router_not_listed"],
        ),
        (
            "routers=metadata-router-1\nmetadata-router-1.expresion=a == 1\nmetadata-router-1.enabled=true",
            &["metadata-router-1"],
            &["unknown_key", "blank_expression"],
        ),
        (
            "routers=metadata-router-1\nmetadata-router-1.expression=a == 1\nmetadata-router-1.fallback=nope",
            &["metadata-router-1"],
            &["bad_boolean"],
        ),
    ] {
        let config = routing(lines);
        assert_eq!(
            (config.routers.as_slice(), codes(&config).as_slice()),
            (routers.iter().map(|r| (*r).to_owned()).collect::<Vec<_>>().as_slice(), notes),
            "{lines}\n{:?}",
            config.notes
        );
    }
}

#[test]
fn blank_and_malformed_expressions_let_everything_pass() {
    for expression in ["", "version>=2.3", "a == 1 && b == 2 || c == 3", "a in (1)"] {
        let config = routing(&format!(
            "routers=metadata-router-1\nmetadata-router-1.enabled=true\nmetadata-router-1.expression={expression}"
        ));
        let rule = &config.rules.rules[0];
        assert_eq!(rule.expr().unwrap().source(), "", "{expression}");
        assert_eq!(config.notes.len(), 1);
    }
    let config = routing("routers=metadata-router-1\nmetadata-router-1.expression=version>=2.3");
    let note = config.notes[0].to_string();
    assert!(note.starts_with("application.properties:3:1: ") && note.contains("`version>=2.3`"), "{note}");
}

#[test]
fn booleans_are_those_of_their_flavour() {
    for (word, spring, plain) in [
        ("true", true, true),
        ("TRUE", true, true),
        ("yes", true, false),
        ("on", true, false),
        ("1", true, false),
        ("false", false, false),
        ("no", false, false),
        ("maybe", false, false),
    ] {
        let expression = "routers = \"metadata-router-1\"\n metadata-router-1.expression = \"a == 1\"";
        assert_eq!(
            props(&format!("seata.client.routing.enabled={word}\nseata.client.routing.routers=spi-x")).routing_enabled,
            spring,
            "{word}"
        );
        let config = conf(&format!("client {{ routing {{ enabled = \"{word}\"\n {expression} }} }}"));
        assert_eq!(config.routing_enabled, plain, "{word}");
        assert_eq!(codes(&config).contains(&"bad_boolean"), word == "maybe" || spring != plain, "{word}");
    }
}

#[test]
fn names_without_prefix_are_read_in_a_spring_file_with_a_note() {
    let config = props(
        "seata.tx-service-group=g\nclient.routing.enabled=true\nclient.routing.routers=metadata-router-1\nclient.routing.metadata-router-1.expression=a == 1\nclient.load-balance.type=RandomLoadBalance\nregistry.type=nacos\nservice.vgroupMapping.g=c\n",
    );
    assert!(config.routing_enabled);
    assert_eq!(config.routers, ["metadata-router-1"]);
    assert_eq!(config.rules.balance, Balance::Random);
    assert!(codes(&config).iter().all(|code| *code == "missing_prefix"), "{:?}", config.notes);
    assert!(config.notes.iter().any(|note| note.message.contains("write `seata.client.routing.enabled`")));
    // Other sections without the prefix belong to somebody else.
    assert_eq!(config.registry.types, []);
    assert!(!config.vgroup_mapping.contains_key("g"));
    // The prefixed name wins.
    let config = props("seata.client.routing.enabled=false\nclient.routing.enabled=true\n");
    assert!(!config.routing_enabled);
}

#[test]
fn yaml_spellings_and_lists() {
    let config = yaml(
        "seata:
  client:
    loadBalance: {type: ConsistentHashLoadBalance, virtualNodes: 40}
    routing:
      enabled: on
      debug: true
      routers: [metadata-router-1, metadata-router-2]
      metadata-router-1:
        expression: \"version >= 2.3\"
      metadata_router_2: {expression: env = prod, fallback: false}
",
    );
    assert_eq!(config.routers, ["metadata-router-1", "metadata-router-2"]);
    assert!(config.debug && config.routing_enabled);
    assert_eq!((config.rules.balance, config.rules.hash.seata_virtual_nodes), (Balance::SeataConsistentHash, 40));
    assert_eq!(config.rules.rules[1].terminal, Some(Terminal::Fail));
}

#[test]
fn variables_reach_routing() {
    let surroundings = none()
        .with_variable("SEATA_CLIENT_ROUTING_ENABLED", "true")
        .with_variable("SEATA_CLIENT_ROUTING_METADATAROUTER1_EXPRESSION", "a == 2")
        .with_variable("SEATA_CLIENT_LOADBALANCE_TYPE", "WeightedRandomLoadBalance")
        .with_variable("CLIENT_ROUTING_DEBUG", "true");
    let text =
        "seata.client.routing.routers=metadata-router-1\nseata.client.routing.metadata-router-1.expression=a == 1\n";
    let config = SeataConfig::parse("f", text, Format::Properties, &surroundings).unwrap();
    assert_eq!(config.rules.rules[0].expr().unwrap().source(), "a == 2");
    assert_eq!(config.rules.weight_from, WeightFrom::Seata);
    assert!(!config.debug, "a variable without the prefix may be anybody's");
}

/// `seata.md` 4: names, default, and weights only where the balancer uses them.
#[test]
fn balancers() {
    for (name, balance) in [
        ("RandomLoadBalance", Balance::Random),
        ("roundrobinloadbalance", Balance::RoundRobin),
        ("ConsistentHashLoadBalance", Balance::SeataConsistentHash),
        ("LeastActiveLoadBalance", Balance::LeastActive),
        ("xid", Balance::Xid),
        ("WeightedRandomLoadBalance", Balance::WeightedRandom),
        ("", Balance::Xid),
    ] {
        let config = props(&format!("seata.client.load-balance.type={name}"));
        assert_eq!(config.rules.balance, balance, "{name}");
        let weighted = balance == Balance::WeightedRandom;
        assert_eq!(config.rules.weight_from, if weighted { WeightFrom::Seata } else { WeightFrom::Weight });
        assert_eq!(codes(&config), Vec::<&str>::new());
    }
    let config = props("seata.client.load-balance.type=RandomLoadBalence");
    assert_eq!(
        (config.rules.balance.clone(), codes(&config)),
        (Balance::Custom("RandomLoadBalence".into()), vec!["unknown_balancer"])
    );
    assert!(config.notes[0].message.contains("did you mean `RandomLoadBalance`?"));
    let config = props("seata.client.load-balance.type=maglev");
    assert_eq!((config.rules.balance.clone(), codes(&config)), (Balance::Maglev, vec!["balancer_not_of_seata"]));
    let config = props("seata.client.load-balance.virtual-nodes=-1");
    assert_eq!((config.rules.hash.seata_virtual_nodes, codes(&config)), (10, vec!["bad_number"]));
}

#[test]
fn groups_are_mapped_to_clusters() {
    let config =
        yaml("seata: {tx-service-group: orders_group, service: {vgroup-mapping: {orders_group: hz, a.b: bj}}}");
    assert_eq!(config.tx_service_group, "orders_group");
    assert_eq!(
        (config.cluster_of("orders_group"), config.cluster_of("a.b"), config.cluster_of("sh")),
        ("hz", "bj", "sh")
    );
    // The starter's defaults, only where nothing is mapped.
    let config = yaml("seata: {enabled: true}");
    assert_eq!(
        (config.tx_service_group.as_str(), config.cluster_of(DEFAULT_GROUP), config.cluster_of(OLD_DEFAULT_GROUP)),
        ("default_tx_group", "default", "default")
    );
    assert_eq!(conf("registry { type = \"file\" }").vgroup_mapping.len(), 0);
    let surroundings = none().with_variable("SEATA_SERVICE_VGROUPMAPPING_DEFAULT_TX_GROUP", "hz");
    let config = SeataConfig::parse("f", "seata.enabled=true", Format::Properties, &surroundings).unwrap();
    assert_eq!(config.cluster_of("default_tx_group"), "hz");
    assert_eq!(props("spring.cloud.alibaba.seata.tx-service-group=old").tx_service_group, "old");
}

#[test]
fn plain_java_reads_registry_conf_and_the_file_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let registry = "registry {
  type = \"nacos\"
  metadata { weight = 5, env = \"prod\" }
  nacos { serverAddr = \"127.0.0.1:8848\", cluster = \"bj\" }
}
client.routing {
  enabled = true
  routers = \"metadata-router-1\"
  metadata-router-1.expression = \"version >= 2.3\"
}
config { type = \"file\", file { name = \"file.conf\" } }
";
    let file = "service { vgroupMapping.default_tx_group = \"bj\" }
client.loadBalance { type = \"RandomLoadBalance\", virtualNodes = 20 }
client.routing.enabled = false
";
    std::fs::write(folder.path().join("registry.conf"), registry).unwrap();
    std::fs::write(folder.path().join("file.conf"), file).unwrap();
    let config = SeataConfig::read(&folder.path().join("registry.conf"), &none()).unwrap();
    assert_eq!(config.registry.types, [RegistryType::Nacos]);
    assert_eq!(config.registry.cluster(RegistryType::Nacos), "bj");
    assert_eq!(config.metadata["weight"], MetaValue::Number("5".into()));
    assert!(config.routing_enabled, "routing is read from registry.conf only");
    assert_eq!(config.routers, ["metadata-router-1"]);
    assert_eq!((config.rules.balance.clone(), config.rules.hash.seata_virtual_nodes), (Balance::Random, 20));
    assert_eq!(config.cluster_of("default_tx_group"), "bj");
    assert_eq!(codes(&config), Vec::<&str>::new(), "{:?}", config.notes);
    // Java properties given with -D are stronger.
    let surroundings =
        none().with_argument("-Dservice.vgroupMapping.default_tx_group=sh").with_argument("-Dregistry.type=Etcd3");
    let config = SeataConfig::read(&folder.path().join("registry.conf"), &surroundings).unwrap();
    assert_eq!(
        (config.cluster_of("default_tx_group"), config.registry.types.as_slice()),
        ("sh", &[RegistryType::Etcd3][..])
    );
    assert!(SeataConfig::read(&folder.path().join("none.conf"), &none()).is_err());
}

#[test]
fn an_import_file_cannot_switch_routing_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.txt");
    std::fs::write(&path, "service.vgroupMapping.default_tx_group=hz\nclient.routing.enabled=true\nclient.routing.routers=spi-x\nclient.loadBalance.type=RandomLoadBalance\n").unwrap();
    let config = SeataConfig::read(&path, &none()).unwrap();
    assert!(!config.routing_enabled);
    assert_eq!(config.rules.rules, []);
    assert_eq!(codes(&config), ["routing_in_config_centre"]);
    assert_eq!((config.rules.balance.clone(), config.cluster_of("default_tx_group")), (Balance::Random, "hz"));
}

#[test]
fn misspelt_keys_are_named_with_their_likely_spelling() {
    for (line, message) in [
        ("seata.clinet.routing.enabled=true", "unknown key `seata.clinet`, did you mean `client`?"),
        ("seata.client.routng.enabled=true", "unknown key `seata.client.routng`, did you mean `routing`?"),
        ("seata.client.routing.enable=true", "unknown key `seata.client.routing.enable`, did you mean `enabled`?"),
        ("seata.client.routing.router=x", "unknown key `seata.client.routing.router`, did you mean `routers`?"),
        (
            "seata.client.routing.metadata-router.expression=x",
            "unknown key `seata.client.routing.metadata-router`, did you mean `metadata-router-1`?",
        ),
        ("seata.client.routing.fallback=false", "unknown key `seata.client.routing.fallback`"),
        ("seata.client.load-balance.typ=x", "unknown key `seata.client.load-balance.typ`, did you mean `type`?"),
        ("seata.registry.metdata.env=x", "unknown key `seata.registry.metdata`, did you mean `metadata`?"),
        (
            "seata.service.vgroup-mappings.g=x",
            "unknown key `seata.service.vgroup-mappings`, did you mean `vgroup-mapping`?",
        ),
    ] {
        let config = props(line);
        let found = config.notes.iter().find(|note| note.code == "unknown_key");
        assert_eq!(found.map(|note| note.message.as_str()), Some(message), "{line}");
        assert_eq!(found.unwrap().at.unwrap().to_string(), "1:1");
    }
    assert_eq!(codes(&props("spring.x=1\nserver.port=1\nlogging.level.root=info\nmy.client.x=1")), Vec::<&str>::new());
}

#[test]
fn malformed_files_are_errors() {
    let error = SeataConfig::parse("application.yml", "seata: [1\n", Format::Yaml, &none()).unwrap_err();
    assert_eq!(error.code, "bad_yaml");
    assert!(SeataConfig::parse("registry.conf", "registry {", Format::Conf, &none()).is_err());
}

proptest! {
    /// Whatever the file says, it is read, and routing that is not switched on changes nothing.
    #[test]
    fn reading_is_total(lines in prop::collection::vec("(seata\\.)?(client\\.routing\\.|registry\\.|service\\.)[a-z.1-]{0,20}=[a-z =&|()$,{}0-9]{0,20}", 0..8)) {
        let text = lines.join("\n");
        let config = props(&text);
        if !config.routing_enabled {
            let mut wanted = unconfigured();
            wanted.hash = config.rules.hash.clone();
            prop_assert_eq!(config.rules, wanted);
        }
        let _ = SeataConfig::parse("f", &text, Format::Conf, &none());
        let _ = SeataConfig::parse("f", &text, Format::Yaml, &none());
    }
}

#[test]
fn every_example_of_the_guide_is_read() {
    let guide = include_str!("../../../../docs/seata.md");
    let example = |language: &str| {
        let rest = guide.split(&format!("```{language}\n")).nth(1).expect("an example");
        rest.split("```").next().expect("closed").to_owned()
    };
    let config = yaml(&example("yaml"));
    assert_eq!((config.notes.as_slice(), config.routers.len(), config.cluster_of("orders_group")), (&[][..], 2, "hz"));
    assert_eq!(config.rules.balance, Balance::WeightedRandom);
    let config = conf(&example("conf"));
    assert_eq!((config.notes.as_slice(), config.routers.len(), config.routing_enabled), (&[][..], 1, true));
    let spring = crate::spring::SpringConfig::parse("f", &example("properties"), Format::Properties, &none()).unwrap();
    assert_eq!((spring.notes.as_slice(), spring.weight, spring.caller().len()), (&[][..], 0.5, 3));
}
