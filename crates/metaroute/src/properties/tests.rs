use proptest::prelude::*;

use super::*;

fn of(surroundings: Surroundings, files: &[(&str, Format, &str)]) -> Properties {
    let mut properties = Properties::new(&surroundings);
    for (name, format, text) in files {
        properties.add(name, text, *format).unwrap();
    }
    properties
}

fn value(properties: &Properties, name: &str) -> Option<String> {
    let mut notes = Vec::new();
    let text = properties.get(name).map(|property| properties.resolve(property, &mut notes));
    assert_eq!(notes, [], "{name}");
    text
}

#[test]
fn every_spelling_of_a_name_is_found() {
    for text in [
        "seata.client.load-balance.type=X",
        "seata.client.loadBalance.type=X",
        "seata.client.load_balance.type=X",
        "SEATA.CLIENT.LOADBALANCE.TYPE=X",
    ] {
        let properties = of(Surroundings::none(), &[("f", Format::Properties, text)]);
        assert_eq!(value(&properties, "seata.client.load-balance.type").as_deref(), Some("X"), "{text}");
        assert_eq!(value(&properties, "seata.client.loadbalance-type"), None, "dots count between dotted names");
    }
    for variable in ["SEATA_CLIENT_LOADBALANCE_TYPE", "SEATA_CLIENT_LOAD_BALANCE_TYPE", "seata_client_loadbalance_type"]
    {
        let properties = of(Surroundings::none().with_variable(variable, "X"), &[]);
        assert_eq!(value(&properties, "seata.client.load-balance.type").as_deref(), Some("X"), "{variable}");
    }
}

#[test]
fn the_strongest_source_wins() {
    let surroundings = Surroundings::none()
        .with_variable("A_B", "variable")
        .with_variable("A_C", "variable")
        .with_argument("--a.b=argument")
        .with_argument("-Dx.y=system");
    let files =
        [("first", Format::Properties, "a.b=1\na.c=1\na.d=1"), ("second", Format::Yaml, "a: {b: 2, c: 2, d: 2, e: 2}")];
    let properties = of(surroundings, &files);
    for (name, wanted) in [("a.b", "argument"), ("a.c", "variable"), ("a.d", "1"), ("a.e", "2"), ("x.y", "system")] {
        assert_eq!(value(&properties, name).as_deref(), Some(wanted), "{name}");
    }
    assert_eq!(value(&properties, "a.f"), None);
}

#[test]
fn names_below_a_prefix_keep_their_spelling() {
    let surroundings = Surroundings::none().with_variable("SEATA_REGISTRY_METADATA_MY_KEY", "v");
    let yaml = "seata:\n  registry:\n    meta-data: {env: '', a: {b: 1}, c.d: 2, '[e.f]': 3, Case-Kept: 4}\n";
    let properties = of(surroundings, &[("f", Format::Yaml, yaml)]);
    let found = properties.merged(&["seata.registry.metadata"], false, |_, _| true);
    let found: Vec<_> = found.iter().map(|(name, p)| (name.as_str(), p.text.as_str())).collect();
    assert_eq!(found, [("Case-Kept", "4"), ("a.b", "1"), ("c.d", "2"), ("e.f", "3"), ("env", ""), ("my.key", "v")]);
    let at = properties.get("seata.registry.metadata.env").unwrap().at.unwrap();
    assert_eq!(at.to_string(), "3:17");
}

#[test]
fn merging_takes_the_strongest_value_of_each_name() {
    let surroundings = Surroundings::none().with_variable("M_MY_KEY", "variable").with_argument("--m.z=argument");
    let files = [
        ("strong", Format::Properties, "m.a=1\nm.a=2\nn.a=n\nn.b=n"),
        ("weak", Format::Properties, "m.a=weak\nm.c=weak\nm.my-key=weak\nm.B=weak"),
    ];
    let properties = of(surroundings, &files);
    let texts = |relaxed: bool| {
        let merged = properties.merged(&["m", "n"], relaxed, |_, _| true);
        merged.into_iter().map(|(name, p)| format!("{name}={}", p.text)).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(texts(false), "B=weak a=2 b=n c=weak my-key=variable z=argument");
    assert_eq!(texts(true), "B=n a=2 c=weak my-key=variable z=argument");
}

#[test]
fn placeholders_are_followed() {
    let yaml = "a: ${b}-${c:x}-${NO_SUCH:${d:deep}}\nb: ${HOME_OF}\nc: ${missing:}\nlit: \\${b}\nurl: ${no:http://h:1/}\nn: ${key-${b}:y}\nkey-home: found\n";
    let properties = of(Surroundings::none().with_variable("HOME_OF", "home"), &[("f", Format::Yaml, yaml)]);
    assert_eq!(value(&properties, "a").as_deref(), Some("home--deep"));
    assert_eq!(value(&properties, "lit").as_deref(), Some("${b}"));
    assert_eq!(value(&properties, "url").as_deref(), Some("http://h:1/"));
    assert_eq!(value(&properties, "n").as_deref(), Some("found"));
}

#[test]
fn placeholders_without_an_end_are_noted_and_bounded() {
    let mut text = String::from("a=${b}\nb=${a}\nself=${self}\nopen=${open\ngone=x${nobody}y\n");
    for level in 0..30 {
        text.push_str(&format!("l{level}={}\n", format!("${{l{}}}", level + 1).repeat(20)));
    }
    let properties = of(Surroundings::none(), &[("f", Format::Properties, &text)]);
    for (name, notes, shown) in
        [("a", 1, "${"), ("self", 1, "${self}"), ("open", 0, "${open"), ("gone", 1, "x${nobody}y"), ("l0", 1, "${")]
    {
        let mut found = Vec::new();
        let resolved = properties.resolve(properties.get(name).unwrap(), &mut found);
        assert_eq!(found.len(), notes, "{name}: {found:?}");
        assert!(resolved.contains(shown), "{name}: {resolved}");
        assert!(found.iter().all(|note| note.code == "unresolved_placeholder" && note.file == "f"));
    }
}

#[test]
fn documents_apply_in_order_and_by_profile() {
    let yaml = "a: 1\nspring.profiles.active: prod\n---\na: 2\n---\nspring: {config: {activate: {on-profile: test}}}\na: 3\n---\nspring.config.activate.on-profile: prod & !test\na: 4\n---\nb: 5\n";
    let properties = of(Surroundings::none(), &[("f", Format::Yaml, yaml)]);
    assert_eq!((value(&properties, "a").as_deref(), value(&properties, "b").as_deref()), (Some("4"), Some("5")));
    let test = of(Surroundings::none().with_variable("SPRING_PROFILES_ACTIVE", "test"), &[("f", Format::Yaml, yaml)]);
    assert_eq!(value(&test, "a").as_deref(), Some("3"));
    assert!(Properties::default().add("f", "- a", Format::Yaml).unwrap_err().to_string().contains("must be a map"));
}

#[test]
fn profile_files_beside_a_file_are_stronger() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("application.yml", "spring.profiles.active: [eu, prod]\na: base\nb: base\nc: base\n");
    write("application-eu.yml", "a: eu\nb: eu\n");
    write("application-prod.yml", "a: prod\n");
    write("application-test.yml", "c: test\n");
    let mut properties = Properties::new(&Surroundings::none());
    properties.add_file(&folder.path().join("application.yml")).unwrap();
    let values = ["a", "b", "c"].map(|name| value(&properties, name).unwrap());
    assert_eq!(values, ["prod", "eu", "base"]);
    assert!(properties.add_file(&folder.path().join("none.yml")).is_err());
}

#[test]
fn lists_are_joined() {
    let yaml = "a: [x, ' y ', 1]\nb: [{c: 1}, {c: 2}]\n";
    let properties = of(Surroundings::none(), &[("f", Format::Yaml, yaml)]);
    assert_eq!(split_list(&value(&properties, "a").unwrap()), ["x", "y", "1"]);
    assert_eq!(value(&properties, "b.1.c").as_deref(), Some("2"));
    let properties = of(Surroundings::none(), &[("f", Format::Properties, "b[1].c=2\nm[a.b]=x")]);
    assert_eq!(value(&properties, "b.1.c").as_deref(), Some("2"));
    assert_eq!(properties.merged(&["m"], false, |_, _| true).into_keys().collect::<Vec<_>>(), ["a.b"]);
}

proptest! {
    #[test]
    fn reading_is_total(text in "[-a-c.:=\\[\\]{}$ \n\\\\]{0,120}", name in "[-a-c.\\[\\]]{0,12}") {
        for format in [Format::Yaml, Format::Properties, Format::Conf, Format::Json, Format::Toml] {
            let mut properties = Properties::new(&Surroundings::none().with_variable(&name, &text));
            if properties.add("f", &text, format).is_ok() {
                let mut notes = Vec::new();
                for property in properties.of_files() {
                    let _ = properties.resolve(property, &mut notes);
                }
                let _ = properties.get(&name);
                let _ = properties.merged(&[&name, "a"], true, |_, _| true);
            }
        }
    }
}
