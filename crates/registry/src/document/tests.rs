use proptest::prelude::*;

use super::*;

fn parse(format: Format, text: &str) -> Result<Node<'_>, ConfigError> {
    Source::new("f", text).parse(format)
}

fn fail(format: Format, text: &str) -> String {
    parse(format, text).unwrap_err().to_string()
}

#[test]
fn scalars_keep_their_text_in_every_format() {
    for (format, text) in [
        (Format::Yaml, "a: 2.10\nb: \"x\"\nc: true\nd: ~\n"),
        (Format::Json, r#"{"a": 2.10, "b": "x", "c": true, "d": null}"#),
        (Format::Toml, "a = 2.10\nb = \"x\"\nc = true\n"),
    ] {
        let node = parse(format, text).unwrap();
        let scalar = |key: &str| node.get(key).and_then(Node::scalar).unwrap();
        assert_eq!((scalar("a").text.as_ref(), scalar("a").kind), ("2.10", ScalarKind::Number), "{format:?}");
        assert_eq!((scalar("b").text.as_ref(), scalar("b").kind), ("x", ScalarKind::Text));
        assert_eq!((scalar("c").text.as_ref(), scalar("c").kind), ("true", ScalarKind::Bool));
        assert!(node.get("d").is_none_or(Node::is_null));
    }
}

#[test]
fn what_plain_yaml_words_are() {
    for (word, kind) in [
        ("2.10", ScalarKind::Number),
        ("-3", ScalarKind::Number),
        ("+3", ScalarKind::Number),
        (".5", ScalarKind::Number),
        ("5.", ScalarKind::Number),
        ("1e3", ScalarKind::Number),
        ("007", ScalarKind::Number),
        (".nan", ScalarKind::Number),
        ("-.inf", ScalarKind::Number),
        ("2.3.1", ScalarKind::Text),
        ("0x10", ScalarKind::Text),
        ("1_000", ScalarKind::Text),
        ("1e", ScalarKind::Text),
        (".", ScalarKind::Text),
        ("-", ScalarKind::Text),
        ("yes", ScalarKind::Text),
        ("on", ScalarKind::Text),
        ("True", ScalarKind::Bool),
        ("NULL", ScalarKind::Null),
        ("10.0.0.1:80", ScalarKind::Text),
    ] {
        assert_eq!(scalar::plain_kind(word), kind, "{word}");
    }
    assert_eq!(parse(Format::Yaml, "a: \"12\"").unwrap().get("a").unwrap().scalar().unwrap().kind, ScalarKind::Text);
    assert_eq!(parse(Format::Yaml, "a: !!str 12").unwrap().get("a").unwrap().scalar().unwrap().kind, ScalarKind::Text);
}

#[test]
fn errors_carry_file_line_and_column() {
    assert_eq!(
        fail(Format::Yaml, "a: b: c\n"),
        "f:1:5: not YAML: mapping values are not allowed in this context (quote a value that contains `: `)"
    );
    assert_eq!(fail(Format::Yaml, "ü: 1\nü: 2\n"), "f:2:1: key `ü` is written twice, first at 1:1");
    assert_eq!(
        fail(Format::Yaml, "a: 1\nm: !exists(b)\n"),
        "f:2:4: unknown YAML tag `!exists(b)` (quote a value that begins with `!`)"
    );
    assert_eq!(fail(Format::Json, "{\"a\": 1,\n \"a\": 2}"), "f:2:2: key `a` is written twice");
    assert!(
        fail(Format::Json, "{\"ü\": 1, b: 2}").starts_with("f:1:10: not JSON: "),
        "{}",
        fail(Format::Json, "{\"ü\": 1, b: 2}")
    );
    assert!(fail(Format::Json, "").contains("empty"));
    assert!(
        fail(Format::Toml, "a = 1\nb = \n").starts_with("f:2:5: not TOML: "),
        "{}",
        fail(Format::Toml, "a = 1\nb = \n")
    );
    assert!(fail(Format::Yaml, "---\na: 1\n---\nb: 1\n").contains("more than one document"));
}

#[test]
fn json_is_strict() {
    for text in
        ["{\"a\": 01}", "[1,]", "{'a': 1}", "// x\n1", "[+1]", "[0x10]", "[NaN]", "[.5]", "\"\\x41\"", "[1 2]", "1 2"]
    {
        assert!(parse(Format::Json, text).is_err(), "{text}");
    }
    let node = parse(Format::Json, "\u{feff}{\"a\": \"\\ud83d\\ude00\\u0041\", \"n\": -1.50e+3}").unwrap();
    assert_eq!(node.get("a").unwrap().text(), Some("😀A"));
    assert_eq!(node.get("n").unwrap().text(), Some("-1.50e+3"));
}

#[test]
fn nesting_and_alias_bombs_are_bounded() {
    for (format, open) in [(Format::Json, "["), (Format::Yaml, "["), (Format::Toml, "[")] {
        let prefix = if format == Format::Toml { "a = " } else { "" };
        let text = format!("{prefix}{}", open.repeat(100_000));
        assert!(parse(format, &text).is_err(), "{format:?}");
    }
    let deep = format!("{}1{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
    assert!(parse(Format::Json, &deep).is_ok());
    assert!(parse(Format::Yaml, &deep).is_ok());
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..9 {
        let items = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{items}]\n"));
    }
    assert_eq!(parse(Format::Yaml, &bomb).unwrap_err().code, "too_large");
}

#[test]
fn anchors_and_merge_keys_work() {
    let text = "base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\nlate: {y: 4, <<: [*b, {z: 5}]}\n";
    let node = parse(Format::Yaml, text).unwrap();
    assert_eq!(node.get("use").unwrap().to_json(), r#"{"x":1,"y":3}"#);
    assert_eq!(node.get("late").unwrap().to_json(), r#"{"y":4,"x":1,"z":5}"#);
    assert!(fail(Format::Yaml, "a: {<<: [1]}").contains("merges maps only"));
}

#[test]
fn properties_follow_javas_rules() {
    let text = "# c\n! c\na=1\nb : 2\nc 3\nd = x\\\n   y\ne\\ f=\\u0041\\t\\q\\:\ng\n  h = sp ace  \na=5\nü=é\npair=\\ud83d\\ude00\n";
    let entries = Source::new("f", text).properties().unwrap();
    let pairs: Vec<_> = entries.iter().map(|e| (e.key.as_ref(), e.node.text().unwrap())).collect();
    assert_eq!(
        pairs,
        [
            ("a", "1"),
            ("b", "2"),
            ("c", "3"),
            ("d", "xy"),
            ("e f", "A\tq:"),
            ("g", ""),
            ("h", "sp ace  "),
            ("a", "5"),
            ("ü", "é"),
            ("pair", "😀"),
        ]
    );
    assert_eq!(
        fail(Format::Properties, "a=1\nb=\\u00g1\n"),
        "f:2:3: malformed `\\u` escape, four hexadecimal digits must follow (write `\\\\` for a backslash)"
    );
}

#[test]
fn properties_nest_by_dots_and_indexes() {
    let node = parse(Format::Properties, "a.b=1\na.c[0]=x\na.c[1].d=y\na.b=2\n").unwrap();
    assert_eq!(node.to_json(), r#"{"a":{"b":"2","c":["x",{"d":"y"}]}}"#);
    assert!(fail(Format::Properties, "a=1\na.b=2\n").contains("both a value and a table"));
    assert!(fail(Format::Properties, "a[1]=1\n").contains("skips"));
}

#[test]
fn places_inside_scalars_are_found() {
    let check = |format, text: &str, key: &str, within: usize, place: &str| {
        let source = Source::new("f", text);
        let root = source.parse(format).unwrap();
        let at = source.position(source.locate(root.get(key).unwrap(), within)).to_string();
        assert_eq!(at, place, "{text:?} + {within}");
    };
    check(Format::Yaml, "m: a == b\n", "m", 5, "1:9");
    check(Format::Yaml, "m: \"a == \\\"b\\\" && c\"\n", "m", 12, "1:19");
    check(Format::Yaml, "m: 'a == ''b'' && c'\n", "m", 12, "1:19");
    check(Format::Yaml, "m: |\n  a == b\n  && c\n", "m", 10, "3:6");
    check(Format::Yaml, "m: >-\n  a == b\n  && c\n", "m", 7, "3:3");
    check(Format::Yaml, "m: a == b\n   && c\n", "m", 7, "2:4");
    check(Format::Json, "{\"m\": \"ü == \\\"b\\\" && c\"}", "m", 13, "1:22");
    check(Format::Toml, "m = 'a == b'\n", "m", 5, "1:11");
    check(Format::Toml, "m = \"\"\"\na == b\n  && c\"\"\"\n", "m", 12, "3:6");
    check(Format::Properties, "m=a == b && \\\n  c\n", "m", 10, "2:3");
}

#[test]
fn suggestions_are_close_words_only() {
    let known = ["address", "weight", "cluster", "min_usable"];
    assert_eq!(suggest("adress", known), Some("address"));
    assert_eq!(suggest("Weigth", known), Some("weight"));
    assert_eq!(suggest("minUsable", known), Some("min_usable"));
    assert_eq!(suggest("port", known), None);
}

#[test]
fn plain_decimals() {
    for yes in ["0", "-3", "+2.50", "123456789012345678901234567890.1"] {
        assert!(is_plain_decimal(yes), "{yes}");
    }
    for no in ["", ".5", "5.", "1e3", "0x1", "1 ", "NaN", "-", "1.2.3"] {
        assert!(!is_plain_decimal(no), "{no}");
    }
}

#[test]
fn conf_is_read_as_seata_writes_it() {
    let text = r#"
# a comment
registry {
  // another
  type = "nacos"   # trailing
  nacos {
    application = seata-server
    serverAddr : "127.0.0.1:8848"
    weight = 2.50, debug = true, group = null
    empty = ""
  }
  "quoted.key" = 1
}
registry.nacos.cluster = "default"
service { vgroupMapping.default_tx_group = "default" }
registry { nacos { weight = 3 } }
list = [a, "b c"
  3]
mixed = ${host}":"${?port}/x y  // z
dollar = "${not}"
long = """a "quoted"
b""""
esc = "a	bé\\/"
"#;
    let node = parse(Format::Conf, text).unwrap();
    assert_eq!(
        node.to_json(),
        r#"{"registry":{"type":"nacos","nacos":{"application":"seata-server","serverAddr":"127.0.0.1:8848","weight":3,"debug":true,"group":null,"empty":"","cluster":"default"},"quoted.key":1},"service":{"vgroupMapping":{"default_tx_group":"default"}},"list":["a","b c",3],"mixed":"${host}:${port:}/x y","dollar":"\\${not}","long":"a \"quoted\"\nb\"","esc":"a\tbé\\/"}"#
    );
    assert_eq!(parse(Format::Conf, "{ a = 1 }").unwrap().to_json(), r#"{"a":1}"#);
    assert_eq!(parse(Format::Conf, "").unwrap().to_json(), "{}");
    assert_eq!(parse(Format::Conf, "a = 1\na { b = 2 }\na.c = 3").unwrap().to_json(), r#"{"a":{"b":2,"c":3}}"#);
}

#[test]
fn conf_errors_have_places() {
    for (text, message) in [
        ("a = 127.0.0.1:8848", "f:1:14: unexpected `:` after the value (quote the value)"),
        ("a = version >= 2", "f:1:14: unexpected `=` after the value (quote the value)"),
        ("a {\n b = 1", "f:1:3: `{` is never closed"),
        ("a = [1", "f:1:5: `[` is never closed"),
        ("a = \"x", "f:1:5: `\"` is never closed on its line"),
        ("a = ", "f:1:5: expected a value, found the end of the line (quote the value)"),
        ("a", "f:1:2: expected `=`, `:` or `{` after the key (expected =, :, {)"),
        ("= 1", "f:1:1: expected a key, found `=`"),
        ("a..b = 1", "f:1:3: the key has an empty part"),
        ("include \"x.conf\"\n", "f:1:1: `include` is not read (copy the included settings into this file)"),
        ("a = {} {}", "f:1:8: joining objects or lists is not read"),
        ("a += 1", "f:1:3: `+=` is not read"),
        ("a = 1 }", "f:1:7: expected a key, found `}`"),
        ("a = \"\\q\"", "f:1:6: unknown escape (write `\\\\` for a backslash)"),
        (
            "registry { type = \"file\" file { name = \"f\" } }",
            "f:1:31: unexpected `{` after the value (quote the value)",
        ),
    ] {
        assert_eq!(fail(Format::Conf, text), message, "{text}");
    }
    assert!(parse(Format::Conf, &"a {".repeat(100_000)).is_err());
    assert!(parse(Format::Conf, &format!("{} = 1", vec!["a"; 2000].join("."))).is_err());
}

proptest! {
    /// Whatever JSON text a value gives reads back as the same value.
    #[test]
    fn json_round_trips(text in "\\PC*", number in -1e15f64..1e15, list in prop::collection::vec("[a-z\"\\\\\n\t\u{1}é😀]{0,8}", 0..5)) {
        let json = serde_free_json(&text, number, &list);
        let node = parse(Format::Json, &json).unwrap();
        prop_assert_eq!(node.to_json(), json.clone());
        // YAML reads JSON to the same value.
        let yaml = parse(Format::Yaml, &json).unwrap();
        prop_assert_eq!(yaml.to_json(), json);
    }

    /// No input makes a reader panic, and every error has a place inside the text.
    #[test]
    fn readers_are_total(text in "\\PC{0,200}|[-:{}\\[\\],#&*!|>'\"%@` \n\ta-c0-9=.\\\\u]{0,200}") {
        for format in [Format::Yaml, Format::Json, Format::Toml, Format::Properties, Format::Conf] {
            let source = Source::new("", &text);
            match source.parse_all(format) {
                Ok(nodes) => for node in nodes {
                    let _ = node.to_json();
                    prop_assert_eq!(source.lines().position(node.span.end), source.position(node.span.end));
                },
                Err(error) => prop_assert!(error.at.unwrap().line as usize <= text.lines().count() + 1),
            }
        }
    }

    /// The place of the n-th character of a quoted text is the n-th character itself.
    #[test]
    fn quoted_places_are_exact(value in "[a-z \"\\\\éü]{1,30}") {
        let mut quoted = String::new();
        for c in value.chars() {
            if matches!(c, '"' | '\\') { quoted.push('\\'); }
            quoted.push(c);
        }
        let text = format!("{{\"m\": \"{quoted}\"}}");
        for format in [Format::Json, Format::Yaml] {
            let source = Source::new("", &text);
            let root = source.parse(format).unwrap();
            let node = root.get("m").unwrap();
            prop_assert_eq!(node.text().unwrap(), value.as_str());
            for (offset, c) in value.char_indices().filter(|(_, c)| !c.is_whitespace()) {
                let at = source.locate(node, offset);
                let shown = text[at..].strip_prefix('\\').unwrap_or(&text[at..]);
                prop_assert!(shown.starts_with(c), "{:?} {:?} {}", text, c, at);
            }
        }
    }
}

fn serde_free_json(text: &str, number: f64, list: &[String]) -> String {
    let quote = |text: &str| {
        let node =
            Node { value: Value::Scalar(Scalar { text: text.to_owned().into(), kind: ScalarKind::Text }), span: 0..0 };
        node.to_json()
    };
    let items = list.iter().map(|item| quote(item)).collect::<Vec<_>>().join(",");
    format!("{{\"t\":{},\"n\":{number},\"l\":[{items}],\"b\":true,\"z\":null}}", quote(text))
}
