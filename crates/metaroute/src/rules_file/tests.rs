use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn read(text: &str) -> RuleSet {
    RulesFile::parse("rules.yaml", text, Format::Yaml).unwrap().rules
}

fn fail(text: &str) -> String {
    RulesFile::parse("rules.yaml", text, Format::Yaml).unwrap_err().to_string()
}

/// The example of the command line contract, word for word.
const CONTRACT: &str = "
version: 1
types: {tier: number, labels: set}        # version | number | text | bool | set | time
weight_from: weight                       # weight | metadata.weight
all_zero: none                            # none | uniform
balance: weighted-random
prefer: {cluster: true}                   # and/or zone: {overflow: 1.4, strict: false}
warmup: {window: 60s}
panic: 50%
rules:
  - name: canary
    when: $req.flag == canary             # only $caller and $req; absent = always
    match: tier == 2 && version >= 2.3
    mode: prefer                          # must | prefer
    min_usable: 1                         # 0 | N | P%
    on_empty: [{drop_keys: [tier]}, {match: version >= 2.3}, {lacking_all: [canary]}]
    terminal: any                         # any | fail; lint error if absent
";

#[test]
fn the_contract_example_is_read() {
    let file = RulesFile::parse("rules.yaml", CONTRACT, Format::Yaml).unwrap();
    let set = &file.rules;
    assert_eq!(set.types["tier"], Type::Number);
    assert_eq!(set.types["labels"], Type::Set);
    assert_eq!(
        (set.weight_from.clone(), set.all_zero, set.balance.clone()),
        (WeightFrom::Weight, AllZero::None, Balance::WeightedRandom)
    );
    assert!(set.prefer.cluster && set.prefer.zone.is_none());
    assert_eq!(set.warmup, Some(Warmup::over(Duration::from_secs(60))));
    assert_eq!(set.panic, Some(0.5));
    let [rule] = set.rules.as_slice() else { panic!("one rule") };
    assert_eq!((rule.name.as_str(), rule.mode, rule.terminal), ("canary", Mode::Prefer, Some(Terminal::Any)));
    assert_eq!(rule.when, Some(Expr::parse("$req.flag == canary").unwrap()));
    assert_eq!(rule.filter, Filter::Match(Expr::parse("tier == 2 && version >= 2.3").unwrap()));
    assert_eq!(rule.min_usable, MinUsable::Count(1));
    assert_eq!(
        rule.on_empty,
        [
            Fallback::DropKeys(vec!["tier".into()]),
            Fallback::Match(Expr::parse("version >= 2.3").unwrap()),
            Fallback::LackingAll(vec!["canary".into()]),
        ]
    );
    assert_eq!(file.places[0].to_string(), "11:5");
}

#[test]
fn an_empty_set_has_the_defaults() {
    assert_eq!(read("version: 1"), RuleSet::default());
    assert_eq!(read("rules: []"), RuleSet::default());
    assert_eq!(read("warmup: null\nprefer: {zone: null}"), RuleSet::default());
}

#[test]
fn every_other_key_is_read() {
    let set = read(
        "profile: seata
dialect: seata
weight_from: metadata.w
all_zero: uniform
balance: RoundRobinLoadBalance
hash: {bounded_load: 1.25, seata_virtual_nodes: 40}
prefer: {zone: {overflow: 1.5, strict: true}}
warmup: {window: 5m, min: 20%, aggression: 1.5}
drain_deadline: 90s
ejection:
  consecutive_failures: off
  failure_rate: {percent: 50%, min_volume: 20, interval: 11s}
  base_time: 12s
  max_time: 13m
  max_ejected: 34%
  at_least_one: false
rules:
- {match: env == prod, min_usable: 20%, terminal: fail, on_empty: [{lacking_any: [a, b]}]}
- {name: mine, router: geo, lat: 52.50, on: yes, nested: {a: [1, x], b: null}, terminal: any, mode: prefer, min_usable: 0}
",
    );
    assert_eq!((set.profile, set.dialect), (Profile::Seata, Dialect::Seata));
    assert_eq!(
        (set.weight_from, set.all_zero, set.balance),
        (WeightFrom::Metadata("w".into()), AllZero::Uniform, Balance::RoundRobin)
    );
    assert_eq!((set.hash.bounded_load, set.hash.seata_virtual_nodes), (Some(1.25), 40));
    let zone = set.prefer.zone.unwrap();
    assert_eq!((zone.overflow, zone.strict, set.prefer.cluster), (1.5, true, false));
    let warmup = set.warmup.unwrap();
    assert_eq!((warmup.window, warmup.floor, warmup.aggression), (Duration::from_secs(300), 0.2, 1.5));
    assert_eq!(set.drain_deadline, Some(Duration::from_secs(90)));
    assert_eq!(
        set.ejection,
        Some(EjectionPolicy {
            consecutive_failures: None,
            failure_rate: Some(FailureRate { percent: 50, min_volume: 20, interval: Duration::from_secs(11) }),
            base_time: Duration::from_secs(12),
            max_time: Duration::from_secs(780),
            max_ejected_percent: 34,
            at_least_one: false,
        })
    );
    assert_eq!(set.rules[0].name, "rule-1");
    assert_eq!(set.rules[0].expr().unwrap().dialect(), Dialect::Seata);
    assert_eq!(set.rules[0].min_usable, MinUsable::Percent(20.0));
    assert_eq!(set.rules[0].on_empty, [Fallback::LackingAny(vec!["a".into(), "b".into()])]);
    let config = [("lat", "52.50"), ("nested.a", "1,x"), ("on", "yes")];
    let config = config.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    assert_eq!(set.rules[1].filter, Filter::Custom { router: "geo".into(), config });
    assert_eq!(set.rules[1].min_usable, MinUsable::Count(0));
    assert_eq!(read("ejection: true").ejection, Some(EjectionPolicy::default()));
    assert_eq!(read("ejection: false").ejection, None);
    assert_eq!(read("prefer: {zone: true}").prefer.zone, Some(ZonePreference::default()));
    assert_eq!(read("prefer: {zone: false}").prefer.zone, None);
    assert_eq!(read("balance: custom:mine").balance, Balance::Custom("mine".into()));
}

/// Found by fuzzing: a router's own key may be named like one of a rule.
#[test]
fn a_routers_own_keys_may_be_named_like_a_rules() {
    let set = read("rules: [{name: a, router: r, x: 1, config: {mode: fast, config: c, n: {m: 2}}, mode: prefer}]");
    let keys = [("config", "c"), ("mode", "fast"), ("n.m", "2"), ("x", "1")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(set.rules[0].filter, Filter::Custom { router: "r".into(), config: keys.into() });
    assert_eq!(set.rules[0].mode, Mode::Prefer);
    assert_eq!(read(&to_yaml(&set)), set);
    assert_eq!(
        fail("rules: [{router: r, config: 1}]"),
        "rules.yaml:1:29: `config` must be a map, not a number (expected map)"
    );
}

#[test]
fn all_formats_mean_the_same() {
    let yaml = read("types: {v: version}\nrules: [{name: a, match: v >= 2.10, terminal: any}]");
    let json = r#"{"types":{"v":"version"},"rules":[{"name":"a","match":"v >= 2.10","terminal":"any"}]}"#;
    let toml = "types = {v = 'version'}\n[[rules]]\nname = 'a'\nmatch = 'v >= 2.10'\nterminal = 'any'\n";
    let properties = "types.v=version\nrules[0].name=a\nrules[0].match=v >= 2.10\nrules[0].terminal=any\n";
    for (text, format) in [(json, Format::Json), (toml, Format::Toml), (properties, Format::Properties)] {
        assert_eq!(RulesFile::parse("f", text, format).unwrap().rules, yaml, "{format:?}");
    }
}

#[test]
fn wrong_files_are_errors_with_a_place_and_a_way_out() {
    for (text, message) in [
        ("", "rules.yaml:1:1: the file is empty (expected version, rules)"),
        ("version: 2", "rules.yaml:1:10: rules file version `2` is not known (expected 1)"),
        ("rule: []", "rules.yaml:1:1: unknown key `rule` in the rules file (did you mean `rules`?)"),
        (
            "minUsable: 1",
            "rules.yaml:1:1: unknown key `minUsable` in the rules file (expected version, profile, dialect, types, weight_from, all_zero, balance, hash, prefer, warmup, panic, drain_deadline, ejection, rules)",
        ),
        ("rules: {}", "rules.yaml:1:8: `rules` must be a list, not a map (expected list)"),
        ("rules:\n- {nam: x}", "rules.yaml:2:4: unknown key `nam` in a rule (did you mean `name`?)"),
        ("rules:\n- {minUsable: 1}", "rules.yaml:2:4: unknown key `minUsable` in a rule (did you mean `min_usable`?)"),
        ("rules:\n- {mode: may}", "rules.yaml:2:10: `mode` cannot be `may` (expected must, prefer)"),
        ("rules:\n- {terminal: fial}", "rules.yaml:2:14: `terminal` cannot be `fial` (did you mean `fail`?)"),
        (
            "rules:\n- {min_usable: -1}",
            "rules.yaml:2:16: `min_usable` cannot be `-1` (expected 0, a whole number, a percentage from 0% to 100%)",
        ),
        (
            "rules:\n- {min_usable: 120%}",
            "rules.yaml:2:16: `min_usable` cannot be `120%` (expected 0, a whole number, a percentage from 0% to 100%)",
        ),
        (
            "rules:\n- {on_empty: [{match: a == 1, drop_keys: [a]}]}",
            "rules.yaml:2:15: an item of `on_empty` has 2 keys, it needs exactly one (expected match, drop_keys, lacking_all, lacking_any)",
        ),
        ("rules:\n- {on_empty: [{drop_keys: []}]}", "rules.yaml:2:27: `drop_keys` names no key"),
        ("rules:\n- {name: a}\n- {name: a}", "rules.yaml:3:10: two rules are named `a`"),
        (
            "rules:\n- {router: r, match: a == 1}",
            "rules.yaml:2:22: a rule has either `match` or `router`, not both (expected match, router)",
        ),
        (
            "warmup: {window: 60}",
            "rules.yaml:1:18: `window` cannot be `60`: a duration needs a unit (write for example `60s`)",
        ),
        ("warmup: {window: 0s}", "rules.yaml:1:18: `window` must be longer than 0"),
        ("warmup: {}", "rules.yaml:1:9: `warmup` has no `window`"),
        ("warmup: {window: 1s, aggression: 0}", "rules.yaml:1:34: `aggression` must be more than 0"),
        (
            "drain_deadline: -1s",
            "rules.yaml:1:17: `drain_deadline` cannot be `-1s`: a duration cannot be negative (write for example `60s`)",
        ),
        ("panic: 50", "rules.yaml:1:8: `panic` cannot be `50` (write `50%`)"),
        ("panic: 150%", "rules.yaml:1:8: `panic` cannot be `150%` (expected a percentage from 0% to 100%)"),
        (
            "prefer: {cluster: maybe}",
            "rules.yaml:1:19: `cluster` must be true or false, not `maybe` (expected true, false)",
        ),
        ("prefer: {zone: {overflow: 0.5}}", "rules.yaml:1:27: `overflow` cannot be `0.5` (expected 1 or more)"),
        ("prefer: {zone: {overflow: .nan}}", "rules.yaml:1:27: `overflow` cannot be `.nan` (expected 1 or more)"),
        ("hash: {bounded_load: inf}", "rules.yaml:1:22: `bounded_load` cannot be `inf` (expected 1 or more)"),
        (
            "hash: {seata_virtual_nodes: 0}",
            "rules.yaml:1:29: `seata_virtual_nodes` cannot be `0` (expected a whole number, 1 or more)",
        ),
        (
            "ejection: {max_ejected: 10}",
            "rules.yaml:1:25: `max_ejected` cannot be `10` (expected a whole percentage from 0% to 100%)",
        ),
        (
            "types: {a: integer}",
            "rules.yaml:1:12: unknown type `integer` of `a` (expected version, number, text, bool, set, time, time(s), time(ms), time(us), time(ns))",
        ),
        ("types: {a: versoin}", "rules.yaml:1:12: unknown type `versoin` of `a` (did you mean `version`?)"),
        (
            "weight_from: metadata.",
            "rules.yaml:1:14: `weight_from` cannot be `metadata.` (expected weight, metadata.KEY, seata)",
        ),
        ("balance: roundrobbin", "rules.yaml:1:10: unknown balancer `roundrobbin` (did you mean `round-robin`?)"),
        ("balance: [a]", "rules.yaml:1:10: `balance` must be text, not a list (expected text)"),
    ] {
        assert_eq!(fail(text), message, "{text}");
    }
}

#[test]
fn expression_errors_point_into_the_expression() {
    let place = |text: &str| {
        let error = RulesFile::parse("r", text, Format::Yaml).unwrap_err();
        assert_eq!(error.code, "bad_expression", "{error}");
        error.at.unwrap().to_string()
    };
    // Each expression is wrong at its second `==`.
    assert_eq!(place("rules:\n- match: a == == 1\n"), "2:15");
    assert_eq!(place("rules:\n- match: \"a == == 1\"\n"), "2:16");
    assert_eq!(place("rules:\n- match: >\n    a ==\n    == 1\n"), "4:5");
    assert_eq!(place("rules:\n- {match: b == 1, on_empty: [{match: a == == 1}]}\n"), "2:43");
}

#[test]
fn conditions_cannot_read_instances() {
    read("rules: [{when: $req.a == 1 && $caller.b != x, terminal: any}]");
    for (when, place) in [
        ("tier == 2", "2:11"),
        ("$req.a == 1 && tier == 2", "2:26"),
        ("$self.zone == z", "2:11"),
        ("exists(tier)", "2:11"),
    ] {
        let error = RulesFile::parse("r", &format!("rules:\n  - when: {when}\n"), Format::Yaml).unwrap_err();
        assert_eq!((error.code, error.at.unwrap().to_string().as_str()), ("bad_expression", place), "{error}");
        assert!(error.to_string().contains("reads an instance"), "{error}");
    }
}

/// `routing.md` T60: every duration gets another value and comes back where it was.
#[test]
fn t60_fields_are_not_crossed() {
    let mut set = RuleSet::default();
    set.warmup = Some(Warmup::over(Duration::from_millis(1_001)));
    set.drain_deadline = Some(Duration::from_secs(7_202));
    set.ejection = Some(EjectionPolicy {
        failure_rate: Some(FailureRate { percent: 33, min_volume: 7, interval: Duration::from_micros(3_003) }),
        base_time: Duration::from_secs(64),
        max_time: Duration::new(305, 5),
        consecutive_failures: Some(6),
        max_ejected_percent: 8,
        at_least_one: false,
    });
    let text = to_yaml(&set);
    assert_eq!(read(&text), set, "{text}");
}

#[test]
fn seata_and_nacos_sets_print_and_read_back() {
    let caller = [("target-version", "2.10"), ("cluster", "hz")];
    let caller = caller.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    let nacos = RuleSet::nacos_cluster(&caller);
    assert_eq!(read(&to_yaml(&nacos)), nacos);
    let mut seata = RuleSet::default();
    seata.profile = Profile::Seata;
    seata.dialect = Dialect::Seata;
    seata.balance = Balance::Xid;
    seata.weight_from = WeightFrom::Seata;
    seata.all_zero = AllZero::Uniform;
    for text in ["version >= 2.3", "", "env == \"prod\"", "(a == 1) && (b != x'y)"] {
        let expr = Expr::parse_as(text, Dialect::Seata).unwrap();
        seata.rules.push(Rule::new(format!("metadata-router-{}", seata.rules.len()), expr));
    }
    assert_eq!(read(&to_yaml(&seata)), seata);
}

mod lints {
    use metaroute_core::instance::Instance;
    use metaroute_expr::Severity;

    use super::*;

    fn codes(text: &str) -> Vec<(&'static str, Option<usize>)> {
        lint_rules(&read(text), None).into_iter().map(|f| (f.code, f.rule)).collect()
    }

    #[test]
    fn a_clean_set_has_no_findings() {
        assert_eq!(
            codes("rules: [{match: env == prod, terminal: fail}, {match: tier == 2, mode: prefer, terminal: any}]"),
            []
        );
    }

    #[test]
    fn a_missing_terminal_is_an_error() {
        let findings = lint_rules(&read("rules: [{match: env == prod}]"), None);
        assert_eq!(
            (findings[0].code, findings[0].severity, findings[0].part),
            ("missing_terminal", Severity::Error, "terminal")
        );
        assert!(findings[0].hint.as_ref().unwrap().contains("terminal: any"));
    }

    #[test]
    fn each_finding_is_found() {
        for (text, code) in [
            ("version: 1", "no_rules"),
            ("{weight_from: metadata.w, balance: random, prefer: {cluster: true}}", "weights_unused"),
            ("{warmup: {window: 1s}, balance: round-robin, prefer: {cluster: true}}", "warmup_unused"),
            ("{hash: {bounded_load: 2}, prefer: {cluster: true}}", "hash_unused"),
            ("{all_zero: uniform, prefer: {cluster: true}}", "all_zero_uniform"),
            ("{types: {tier: number}, prefer: {cluster: true}}", "unused_type"),
            ("rules: [{terminal: any}]", "matches_everything"),
            ("rules: [{match: '', terminal: any}]", "matches_everything"),
            ("rules: [{match: a == 1, terminal: any}]", "must_passes_everything"),
            ("rules: [{match: a == 1, terminal: fail}, {match: a = 1, mode: prefer, terminal: any}]", "shadowed_rule"),
            ("rules: [{match: a == 1, terminal: fail, on_empty: [{match: a == 1}]}]", "fallback_repeats_rule"),
            ("rules: [{match: tier == 1, terminal: fail, on_empty: [{drop_keys: [teir]}]}]", "drop_keys_unread"),
            ("rules: [{router: r, terminal: fail, on_empty: [{drop_keys: [a]}]}]", "drop_keys_without_match"),
            (
                "{profile: seata, rules: [{match: a == 1, mode: prefer, terminal: any}, {match: b == 1, mode: prefer, terminal: any}]}",
                "seata_fallback",
            ),
            ("{balance: xid, rules: [{match: a == 1, terminal: fail}]}", "must_vetoes_affinity"),
        ] {
            assert!(codes(text).iter().any(|(c, _)| *c == code), "{text}: {:?}", codes(text));
        }
    }

    #[test]
    fn a_rule_behind_a_contradicting_must_never_matches() {
        let text = "rules: [{name: a, match: version >= 3, terminal: fail}, {name: b, match: version < 2, mode: prefer, terminal: any}]";
        let findings = lint_rules(&read(text), None);
        let shadowed = findings.iter().find(|f| f.code == "shadowed_rule").expect("found");
        assert_eq!((shadowed.rule, shadowed.part), (Some(1), "match"));
        let text = "rules: [{match: version >= 3, terminal: fail}, {match: version < 4, mode: prefer, terminal: any}]";
        assert!(codes(text).iter().all(|(code, _)| *code != "shadowed_rule"));
    }

    #[test]
    fn rules_are_checked_against_what_is_registered() {
        let instance = |host: &str, tier: &str| {
            Instance::new(format!("{host}:1").parse().unwrap()).with_meta("tier", tier).with_zone("z1")
        };
        let fleet = [instance("a", "1"), instance("b", "1"), instance("c", "2")];
        let inventory = inventory_of(&fleet);
        let codes =
            |text: &str| -> Vec<_> { lint_rules(&read(text), Some(&inventory)).into_iter().map(|f| f.code).collect() };
        let too_large = "min_usable_too_large";
        assert!(codes("rules: [{match: tier == 1, min_usable: 3, terminal: any, mode: prefer}]").contains(&too_large));
        assert!(!codes("rules: [{match: tier == 1, min_usable: 2, terminal: any, mode: prefer}]").contains(&too_large));
        assert!(
            codes("rules: [{match: tier == 1 && $self.zone == z2, min_usable: 2, terminal: any, mode: prefer}]")
                .contains(&too_large)
        );
        assert!(
            !codes("rules: [{match: tier == 1 || tier == 2, min_usable: 3, terminal: any, mode: prefer}]")
                .contains(&too_large)
        );
        assert!(codes("rules: [{match: teir == 1, terminal: any, mode: prefer}]").contains(&"unknown_key"));
        assert!(
            codes("rules: [{match: tier == 1, on_empty: [{lacking_all: [canery]}], terminal: any, mode: prefer}]")
                .contains(&"unknown_key")
        );
    }
}

fn expr() -> impl Strategy<Value = Expr> {
    prop::sample::select(vec![
        "version >= 2.3",
        "env in (prod, \"a b\") && !exists(x)",
        "name like \"*'\\\"\\\\é:#\"",
        "a == $req.b? || c != $caller.d",
        "",
        "zone == \"null\"",
        "t matches \"a\\\\.b\"",
    ])
    .prop_map(|text| Expr::parse(text).unwrap())
}

fn keys() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[a-z: ,\\[\\]\"#\\\\é]{1,6}", 1..3)
}

prop_compose! {
    fn rule()(
        name in "[ -~é\n\t]{1,12}",
        when in prop::option::of(prop::sample::select(vec!["$req.a == 1", "$caller.b != \"x y\""])),
        matches in expr(),
        custom in prop::option::of(("[a-z-]{1,8}", prop::collection::btree_map("[A-Z]{1,4}|mode|config|name", "\\PC{0,8}", 0..3))),
        prefer in any::<bool>(),
        min_usable in prop_oneof![(0usize..9).prop_map(MinUsable::Count), (0.0f64..100.0).prop_map(MinUsable::Percent)],
        on_empty in prop::collection::vec(prop_oneof![
            expr().prop_map(Fallback::Match),
            keys().prop_map(Fallback::DropKeys),
            keys().prop_map(Fallback::LackingAll),
            keys().prop_map(Fallback::LackingAny),
        ], 0..3),
        terminal in prop::option::of(prop::sample::select(vec![Terminal::Any, Terminal::Fail])),
    ) -> Rule {
        let mut rule = Rule::new(name, matches);
        if let Some((router, config)) = custom {
            rule.filter = Filter::Custom { router, config };
        }
        rule.when = when.map(|text| Expr::parse(text).unwrap());
        rule.mode = if prefer { Mode::Prefer } else { Mode::Must };
        rule.min_usable = min_usable;
        rule.on_empty = on_empty;
        rule.terminal = terminal;
        rule
    }
}

fn duration() -> impl Strategy<Value = Duration> {
    (0u64..10_000_000, 0u32..1_000_000_000).prop_map(|(s, n)| Duration::new(s, n))
}

prop_compose! {
    fn rule_set()(
        rules in prop::collection::vec(rule(), 0..4),
        types in prop::collection::btree_map("[a-z.:-]{1,8}", prop::sample::select(vec![Type::Version, Type::Number, Type::Text, Type::Bool, Type::Set]), 0..3),
        weight in prop_oneof![Just(WeightFrom::Weight), Just(WeightFrom::Seata), "[a-z.]{1,6}".prop_map(WeightFrom::Metadata)],
        balance in prop::sample::select(Balance::NAMES.to_vec()),
        zone in prop::option::of((1.0f64..4.0, any::<bool>())),
        cluster in any::<bool>(),
        warmup in prop::option::of((duration(), 0.0f64..=1.0, 0.1f64..9.0)),
        panic in prop::option::of(0.0f64..=1.0),
        drain in prop::option::of(duration()),
        bounded in prop::option::of(1.0f64..9.0),
        ejection in prop::option::of((prop::option::of(1u32..9), prop::option::of((0u8..=100, 1u32..99, duration())), duration(), duration(), 0u8..=100, any::<bool>())),
    ) -> RuleSet {
        let mut set = RuleSet::default();
        for (i, mut rule) in rules.into_iter().enumerate() {
            rule.name.push_str(&i.to_string());
            set.rules.push(rule);
        }
        set.types = types;
        set.weight_from = weight;
        set.balance = balance.parse().unwrap();
        set.prefer.cluster = cluster;
        set.prefer.zone = zone.map(|(overflow, strict)| { let mut z = ZonePreference::default(); z.overflow = overflow; z.strict = strict; z });
        set.warmup = warmup.map(|(window, floor, aggression)| { let mut w = Warmup::over(window + Duration::from_nanos(1)); w.floor = floor; w.aggression = aggression; w });
        set.panic = panic;
        set.drain_deadline = drain;
        set.hash.bounded_load = bounded;
        set.ejection = ejection.map(|(consecutive_failures, rate, base_time, max_time, max_ejected_percent, at_least_one)| EjectionPolicy {
            consecutive_failures,
            failure_rate: rate.map(|(percent, min_volume, interval)| FailureRate { percent, min_volume, interval }),
            base_time, max_time, max_ejected_percent, at_least_one,
        });
        set
    }
}

proptest! {
    /// Print, read: the same rule set, whatever it holds.
    #[test]
    fn rule_sets_survive_printing(set in rule_set()) {
        let text = to_yaml(&set);
        let back = RulesFile::parse("printed", &text, Format::Yaml);
        prop_assert_eq!(back.as_ref().map(|file| &file.rules), Ok(&set), "{}", text);
        // Linting is total.
        let _ = lint_rules(&set, None);
    }

    #[test]
    fn the_reader_is_total(text in "[-a-z0-9:{}\\[\\],'\" \n.%$=&|!()]{0,200}") {
        for format in [Format::Yaml, Format::Json, Format::Toml, Format::Properties] {
            let _ = RulesFile::parse("", &text, format);
        }
    }
}

#[test]
fn every_example_of_the_guide_is_read() {
    let guide = include_str!("../../../../docs/rules-file.md");
    let examples: Vec<&str> = guide.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(examples.len(), 3);
    for example in examples {
        let set = read(example);
        assert_eq!(read(&to_yaml(&set)), set);
        assert!(lint_rules(&set, None).iter().all(|finding| finding.severity != metaroute_expr::Severity::Error));
    }
}
