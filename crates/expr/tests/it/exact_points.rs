//! `routing.md` 5.5, "Exact points": one module's worth of tests per point, numbered as there.

use metaroute_expr::{Attribute, Expr, ParseError, SlotScope};

use crate::support::{Case, instance};

fn error(text: &str) -> ParseError {
    Expr::parse(text).expect_err(text)
}

fn canonical(text: &str) -> String {
    Expr::parse(text).unwrap_or_else(|error| panic!("{}", error.render(text))).to_string()
}

#[track_caller]
fn yes(case: &Case, texts: &[&str]) {
    for text in texts {
        assert!(case.says(text), "{text}");
    }
}

#[track_caller]
fn no(case: &Case, texts: &[&str]) {
    for text in texts {
        assert!(!case.says(text), "{text}");
    }
}

#[test]
fn routing_5_5_point_01_names() {
    let here = instance("zone=metadata")
        .attribute(Attribute::Zone, "z1")
        .attribute(Attribute::Port, "8080")
        .attribute(Attribute::Healthy, "true")
        .caller("zone=z1")
        .request("zone=z2");
    yes(
        &here,
        &[
            "zone == metadata",
            "$self.zone == z1",
            "$self.zone == $caller.zone",
            "$caller.zone == $self.zone",
            "$req.zone == z2",
            "$caller.zone != $req.zone",
            "$self.port >= 8000",
            "$self.healthy == true",
            "exists($self.zone) && exists($caller.zone) && exists($req.zone)",
            "!exists($self.cluster) && !exists($req.other)",
            "$self.zone in ($req.zone, $caller.zone)",
        ],
    );
    for name in ["cluster", "zone", "region", "id", "host", "port", "weight", "healthy"] {
        assert_eq!(Expr::parse(&format!("exists($self.{name})")).unwrap().attributes().count(), 1);
    }
    assert_eq!(error("$self.zoen == a").code, "unknown_attribute");
    assert_eq!(error("$self.zoen == a").hint.as_deref(), Some("did you mean `$self.zone`?"));
    assert_eq!(error("$calle.zone == a").code, "bad_reference");
    assert_eq!(error("$caller == a").code, "bad_reference");
}

#[test]
fn routing_5_5_point_02_words() {
    for word in [
        "v2.11+build7",
        "10.0.0.1:80",
        "a/b",
        "*",
        "~",
        "é",
        "北京",
        "cn-bj",
        "a;b",
        "{x}",
        "#1",
        "%",
        "[::1]:80",
        "a\\b",
        "-1",
    ] {
        yes(
            &Case::default().with(&format!("k={word}")),
            &[&format!("k == {word}"), &format!("k=={word}"), &format!("k in ({word},z)")],
        );
    }
    for text in [
        "a == x?y",
        "a == x&y",
        "a == x|y",
        "a == x(y",
        "a == x,y",
        "a == x'y",
        "a == $x",
        "a == x!y",
        "a == `x`",
        "a == \u{1}",
    ] {
        error(text);
    }
    for (quoted, plain) in [
        (r#""x \"y\" \\ \/ \b\f\n\r\t \u00e9 \ud83d\ude00""#, "x \"y\" \\ / \u{8}\u{c}\n\r\t é 😀"),
        (r#"'it\'s'"#, "it's"),
        (r#"'say "hi"'"#, "say \"hi\""),
        (r#""it's""#, "it's"),
        ("''", ""),
    ] {
        let case = Case::default().with(&format!("k={plain}"));
        yes(&case, &[&format!("k == {quoted}"), &format!("k=={quoted}")]);
    }
    for text in [r#"a == "\x""#, r#"a == "\u12""#, r#"a == "\ud800""#, r#"a == "\udc00""#, r#"a == "\ud800A""#] {
        assert_eq!(error(text).code, "bad_escape", "{text}");
    }
    assert_eq!(error("a == \"x").code, "unterminated_string");
    assert_eq!(error("a == \"x").column, 6);
    for word in ["and", "or", "not", "in", "like", "matches", "exists", "range", "lower"] {
        let case = instance(&format!("k={word}"));
        yes(&case, &[&format!("k == {word}"), &format!("k in ({word})"), &format!("k == {word} and k == {word}")]);
    }
}

#[test]
fn routing_5_5_point_03_keywords() {
    let here = instance("not=1, in=2, exists=3, like=4, and=5, or=6, lower=7, a=1, matches=8");
    yes(
        &here,
        &[
            "not == 1",
            "not in (1)",
            "not not in (2)",
            "not like \"1\"",
            "not matches \"1\"",
            "in == 2",
            "in in (2)",
            "exists == 3",
            "exists in (3)",
            "like == 4",
            "like like \"4\"",
            "matches matches \"8\"",
            "and == 5 and and == 5",
            "or == 5 or or == 6",
            "lower == 7",
            "not a == 2",
            "not not a == 1",
            "not (a == 2)",
            "not exists(b)",
            "!exists(b)",
            "! exists (b)",
            "exists(not) && exists(in) && exists(exists)",
        ],
    );
    assert_eq!(error("a").code, "bare_key");
    assert_eq!(error("a").hint.as_deref(), Some("to ask whether the key is there, write exists(a)"));
    assert_eq!(error("a && b == 1").code, "bare_key");
    assert_eq!(error("!a").code, "bare_key");
    assert_eq!(error("b == 1 && a").column, 11);
    assert_eq!(error("a == 1 == 2").code, "chained_comparison");
    assert_eq!(error("1 < a < 3").code, "value_on_left");
}

#[test]
fn routing_5_5_point_04_left_side() {
    let fault = error("2.3 <= version");
    assert_eq!((fault.code, fault.column), ("value_on_left", 1));
    assert_eq!(fault.hint.as_deref(), Some("swap the sides: version >= 2.3"));
    assert_eq!(error("\"x\" == env").hint.as_deref(), Some("swap the sides: env == \"x\""));
    assert_eq!(error("1 > $req.x").hint.as_deref(), Some("swap the sides: $req.x < 1"));
    yes(&instance("2.3=x"), &["`2.3` == x"]);
    yes(
        &instance("env=PROD"),
        &["lower(env) == prod", "lower(env) in (dev, prod)", "lower(env) like \"p*\"", "lower(env) matches \"p.+\""],
    );
    no(
        &instance("env=PROD"),
        &["lower(env) == PROD", "env == prod", "lower(env) like \"P*\"", "lower(env) matches \"P.+\""],
    );
    yes(&instance("env=prod").caller("env=PROD"), &["lower($caller.env) == prod"]);
    no(&instance("env=PROD").caller("env=PROD"), &["lower(env) == $caller.env"]);
    yes(&instance("env=ÄÖ"), &["lower(env) == äö"]);
    yes(&instance("version=2.3.0-RC.1"), &["lower(version) == 2.3.0-rc.1", "version != 2.3.0-rc.1"]);
}

#[test]
fn routing_5_5_point_05_removal() {
    let b = instance("b=1");
    let c = instance("b=2");
    yes(&b, &["a == $req.x? || b == 1"]);
    no(&c, &["a == $req.x? || b == 1"]);
    for removed in [
        "a == $req.x?",
        "!(a == $req.x?)",
        "a == $req.x? && a != $req.y?",
        "a == $req.x? || !(a == $req.y? && a == $req.x?)",
        "a in (1, $req.x?)",
        "$req.x? == 1",
        "a not in ($req.x?)",
        "lower($req.x?) == a",
    ] {
        yes(&c, &[removed]);
        assert!(!c.says(&format!("({removed}) && b == 1")), "{removed}");
        assert!(b.says(&format!("({removed}) && b == 1")), "{removed}");
        assert!(!c.says(&format!("({removed}) || b == 1")), "{removed}");
        assert!(c.says(&format!("!(({removed}) || b == 1)")), "{removed}");
    }
    // Present, it is an ordinary reference; not optional and absent, it is false.
    yes(&instance("a=1").request("x=1"), &["a == $req.x?", "a == $req.x"]);
    no(&instance("a=1").request("x=2"), &["a == $req.x?", "a == $req.x"]);
    no(&instance("a=1"), &["a == $req.x", "a != $req.x"]);
    let slots: Vec<_> =
        Expr::parse("a == $req.x? && b == $caller.y").unwrap().slots().map(|(s, n, o)| (s, n.to_owned(), o)).collect();
    assert_eq!(slots, [(SlotScope::Request, "x".to_owned(), true), (SlotScope::Caller, "y".to_owned(), false)]);
}

#[test]
fn routing_5_5_point_06_types() {
    // A version that is none falls back to text for equality, and is never ordered.
    let odd = instance("version=latest");
    yes(&odd, &["version == latest", "version != 2.3", "version in (latest)"]);
    no(&odd, &["version >= 2.3", "version < 2.3", "version > latest", "version == 2.3"]);
    // Numbers and versions are trimmed, text never.
    yes(&instance("n= 3 , version= 2.3 "), &["n >= 2", "n == 3.0", "version == 2.3.0"]);
    no(&instance("t= x "), &["t == x"]);
    yes(&instance("t= x "), &["t == \" x \""]);
    // .5 and 5. are text.
    no(&instance("n=0.5"), &["n == .5", "n >= .5", "n < .5"]);
    no(&instance("n=5"), &["n == 5."]);
    yes(&instance("n=.5"), &["n == .5"]);
    // Exact at any length.
    let long = "123456789012345678901234567890.123456789012345678901234567890";
    let exact = instance(&format!("n={long}"));
    yes(
        &exact,
        &[
            &format!("n == {long}000"),
            &format!("n < {long}1"),
            &format!("n > {}", &long[..long.len() - 2]),
            "n > 9007199254740993",
        ],
    );
    // Quoted is text where nothing is declared.
    no(&instance("zip=501"), &["zip == \"00501\"", "zip >= \"00501\""]);
    yes(&instance("zip=501"), &["zip == 00501", "zip == 501.0", "zip == \"501\""]);
    yes(&instance("zip=501").typed("zip", "number"), &["zip == \"00501\""]);
    yes(&instance("version=2.3"), &["version == \"2.3.0\"", "version == 2.3.0"]);
    // References follow the name on the left, and bring their value unquoted on the right.
    yes(
        &instance("").caller("target-version=2.10").request("version=2.10"),
        &["$caller.target-version > 2.9", "$req.version > 2.9"],
    );
    no(&instance("").caller("target=2.10"), &["$caller.target > 2.9"]);
    yes(&instance("zip=501").request("zip=00501"), &["zip == $req.zip"]);
    yes(&instance("app_version=2.10, api-version=2.10, conversion=2.10"), &["app_version > 2.9", "api-version > 2.9"]);
    no(&instance("conversion=2.10, xversion=2.10"), &["conversion > 2.9", "xversion > 2.9"]);
    // Declared types.
    yes(&instance("b=2.10").typed("b", "version"), &["b > 2.9"]);
    no(&instance("version=2.10").typed("version", "text"), &["version > 2.9", "version == 2.10.0"]);
    yes(&instance("v=2.10").typed("v", "text"), &["v == 2.10", "v != 2.1"]);
    no(&instance("n=x").typed("n", "number"), &["n > 1", "n <= 1"]);
    yes(&instance("n=x").typed("n", "number"), &["n == x", "n != 1"]);
}

#[test]
fn routing_5_5_point_07_ranges() {
    let inside =
        |version: &str, range: &str| instance(&format!("k={version}")).says(&format!("k in range \"{range}\""));
    for (range, within, outside) in [
        (
            "^2.3",
            vec!["2.3", "v2.3.0", "2.9.9.9", "2.4.0-rc.1", "2.3.0.Final"],
            vec!["2.2", "3.0.0-rc.1", "3", "2.3.0-rc.1", "latest", ""],
        ),
        ("^2", vec!["2", "2.9"], vec!["3.0.0", "1.9", "3-0"]),
        ("^0.2.3", vec!["0.2.3", "0.2.9"], vec!["0.3.0", "0.2.2", "0.3-rc"]),
        ("^0.0.3", vec!["0.0.3", "0.0.3.9"], vec!["0.0.4", "0.0.2"]),
        ("^0.0", vec!["0.0.9", "0"], vec!["0.1"]),
        ("^0", vec!["0.9"], vec!["1"]),
        ("^0.0.0.4", vec!["0.0.0.4"], vec!["0.0.0.5"]),
        ("^1.2.3.4", vec!["1.2.3.4", "1.2.3.5", "1.9"], vec!["1.2.3.3", "2"]),
        ("~2.3.1", vec!["2.3.1", "2.3.9"], vec!["2.4", "2.3.0"]),
        ("~2.3", vec!["2.3", "2.3.9"], vec!["2.4", "2.4.0-rc"]),
        ("~2", vec!["2", "2.9"], vec!["3"]),
        ("^2.3-rc.1", vec!["2.3-rc.1", "2.3-rc.2", "2.3"], vec!["2.3-beta"]),
        ("^v2.3", vec!["2.4"], vec!["3"]),
    ] {
        for version in within {
            assert!(inside(version, range), "{version} in {range}");
        }
        for version in outside {
            assert!(!inside(version, range), "{version} not in {range}");
        }
    }
    // Whatever the type of the left side, and without quotes too.
    yes(&instance("n=2.10").typed("n", "number"), &["n in range \"^2.9\"", "n in range ^2.9", "n in range '~2.10'"]);
    for (text, code) in [
        ("v in range \"2.3\"", "bad_range"),
        ("v in range \">=2\"", "bad_range"),
        ("v in range $req.x", "literal_required"),
        ("v in range", "unexpected_end"),
    ] {
        assert_eq!(error(text).code, code, "{text}");
    }
    assert_eq!(error("v in range \"2.3\"").hint.as_deref(), Some("write \"^2.3\", or compare with `==` or `>=`"));
    for suffix in ["RELEASE", "Final", "GA"] {
        yes(&instance(&format!("version=2.3.0.{suffix}")), &["version == 2.3", "version >= 2.3", "version > 2.3-rc.1"]);
    }
}

#[test]
fn routing_5_5_point_08_sets() {
    let text = instance("tags=a, empty=, k=v").typed("tags", "set").typed("empty", "set");
    let commas = {
        let mut case = Case::default().typed("tags", "set");
        case.metadata.push(("tags".to_owned(), "a , b,c".into()));
        case
    };
    let list = Case::default().list("tags", &["a", "b", "c"]);
    for case in [&commas, &list] {
        yes(
            case,
            &[
                "tags == a",
                "tags == b",
                "tags != d",
                "tags in (d, c)",
                "tags not in (d, e)",
                "tags like \"?\"",
                "tags matches \"[b]\"",
                "exists(tags)",
            ],
        );
        no(
            case,
            &[
                "tags == d",
                "tags != a",
                "tags in (d, e)",
                "tags not in (d, a)",
                "tags like \"d*\"",
                "tags > a",
                "tags >= a",
                "tags < z",
                "tags matches \"ab\"",
            ],
        );
    }
    yes(&text, &["tags == a", "empty != a", "empty not in (a)", "exists(empty)"]);
    no(&text, &["empty == a", "empty == \"\""]);
    no(&instance("").typed("tags", "set"), &["tags != a", "tags not in (a)"]);
    yes(&instance("").typed("tags", "set").caller("tags=x").request("tags=x"), &["$caller.tags == x"]);
    yes(&list.clone().request("want=b"), &["tags == $req.want"]);
    yes(&Case::default().list("tags", &["A"]), &["lower(tags) == a"]);
}

#[test]
fn routing_5_5_point_09_patterns() {
    for (pattern, within, outside) in [
        ("v1.*", vec!["v1.", "v1.2.3"], vec!["v1", "xv1.2", "v12"]),
        ("*", vec!["", "x"], vec![]),
        ("?", vec!["x", "é"], vec!["", "xy"]),
        ("a*b*c", vec!["abc", "aXbYc", "abcbc"], vec!["ab", "abcd"]),
        ("[ab]", vec!["[ab]"], vec!["a"]),
        (r"\\*", vec!["*"], vec!["x"]),
        (r"\\?x", vec!["?x"], vec!["ax"]),
        ("", vec![""], vec!["x"]),
        ("**a", vec!["a", "xxa"], vec!["ab"]),
    ] {
        for value in within {
            let case = Case::default().with(&format!("k={value}"));
            assert!(case.says(&format!("k like \"{pattern}\"")), "{value} like {pattern}");
        }
        for value in outside {
            let case = Case::default().with(&format!("k={value}"));
            assert!(!case.says(&format!("k like \"{pattern}\"")), "{value} not like {pattern}");
        }
    }
    // Anchored, leftmost-first or not.
    yes(&instance("k=foobar"), &["k matches \"foo|foobar\"", "k matches \"foo.*\"", "k matches \"(?i)FOOBAR\""]);
    no(&instance("k=foobar"), &["k matches \"foo\"", "k matches \"bar\"", "k matches \"oo|ba\"", "k matches \"\""]);
    yes(&instance("k=北京"), &["k matches \"..\"", "k matches \"\\\\p{Han}+\""]);
    assert_eq!(error("k like $req.x").code, "literal_required");
    assert_eq!(error("k matches $req.x").code, "literal_required");
    assert_eq!(error(r#"k like "a\\""#).code, "bad_pattern");
    let fault = error("k matches \"ab(c\"");
    assert_eq!((fault.code, fault.column), ("bad_pattern", 14));
    // The escape before it is two characters in the source and one in the pattern.
    assert_eq!(error(r#"k matches "\\d(c""#).column, 15);
    assert_eq!(error("k matches \"(a{1,9999}){1,9999}\"").code, "pattern_too_large");
    assert_eq!(error("k matches \"\\\\bx\"").hint.as_deref(), Some("word boundaries work on ASCII only: (?-u:\\b)"));
    yes(&instance("k=x y"), &["k matches \"(?-u:\\\\b)x(?-u:\\\\b) y\""]);
}

#[test]
fn routing_5_5_point_09_patterns_share_one_budget() {
    // One counted class of all of Unicode fits; forty different ones do not, and equal ones are compiled once.
    let one = |count: usize| format!("k matches \"\\\\w{{1,{count}}}\"");
    assert!(Expr::parse(&one(20)).is_ok());
    assert!(Expr::parse(&vec![one(20); 40].join(" || ")).is_ok());
    let many: Vec<String> = (10..50).map(one).collect();
    assert_eq!(error(&many.join(" || ")).code, "pattern_too_large");
}

#[test]
fn routing_5_5_point_10_empty() {
    yes(&instance("k="), &["exists(k)", "k == \"\"", "k == ''", "k != x", "k like \"\"", ""]);
    no(&instance("k="), &["k == x", "k > 0", "k <= 0"]);
}

#[test]
fn routing_5_5_point_11_canonical_form() {
    for (text, expected) in [
        ("a=1 and b=2 or not c=3", "a == 1 && b == 2 || !(c == 3)"),
        ("!(a == b)", "!(a == b)"),
        ("((a == 1))", "a == 1"),
        ("(a == 1 || b == 2) && c == 3", "(a == 1 || b == 2) && c == 3"),
        ("a == 1 && (b == 2 && c == 3)", "a == 1 && b == 2 && c == 3"),
        ("a == 1 || a != 1", "a == 1 || a != 1"),
        ("a == \"x\"", "a == x"),
        ("a == '1'", "a == \"1\""),
        ("a == 'x y'", "a == \"x y\""),
        ("a == ''", "a == \"\""),
        ("!!exists(a)", "!!exists(a)"),
        ("not  exists ( `x y` )", "!exists(`x y`)"),
        ("`a` == 1", "a == 1"),
        ("`1` == 1", "`1` == 1"),
        ("`not` == 1", "`not` == 1"),
        ("a in(1,2 ,'3')", "a in (1, 2, \"3\")"),
        ("a  not   in (1)", "a not in (1)"),
        ("a like x*", "a like \"x*\""),
        ("a in range ^2", "a in range \"^2\""),
        ("lower( a )=$req.`x y`?", "lower(a) == $req.`x y`?"),
        ("a == 'q\"\\\\\\n'", r#"a == "q\"\\\n""#),
        ("", ""),
    ] {
        assert_eq!(canonical(text), expected, "{text}");
        assert_eq!(canonical(expected), expected, "{text}: once more");
    }
}

#[test]
fn routing_5_5_point_12_limits() {
    let at_most = format!("a == {}", "x".repeat(8 * 1024 - 5));
    assert_eq!(at_most.len(), 8192);
    assert!(Expr::parse(&at_most).is_ok());
    assert_eq!(error(&format!("{at_most}x")).code, "too_long");
    // Bytes, not characters.
    assert_eq!(error(&format!("a == {}", "é".repeat(4100))).code, "too_long");

    let nested = |open: &str, count: usize, close: &str| format!("{}a == 1{}", open.repeat(count), close.repeat(count));
    assert!(Expr::parse(&nested("(", 64, ")")).is_ok());
    assert_eq!(error(&nested("(", 65, ")")).code, "too_deep");
    assert_eq!(error(&nested("(", 65, ")")).column, 65);
    assert!(Expr::parse(&nested("!", 64, "")).is_ok());
    assert_eq!(error(&nested("!", 65, "")).code, "too_deep");
    assert_eq!(error(&nested("!(", 33, ")")).code, "too_deep");
    assert_eq!(error(&nested("not ", 65, "")).code, "too_deep");

    let joined = |count: usize| vec!["a=1"; count].join("&&");
    assert!(Expr::parse(&joined(1000)).is_ok());
    assert_eq!(error(&joined(1001)).code, "too_many_nodes");

    let list = |count: usize| format!("a in ({})", vec!["1"; count].join(","));
    assert!(list(4090).len() <= 8192);
    assert!(Expr::parse(&list(4090)).is_ok());
    // The text limit comes first: a list of 4,097 one-digit items does not fit.
    assert_eq!(error(&list(4097)).code, "too_long");

    let fault = error("a == 1 &&\n  é == 2 || b");
    assert_eq!((fault.line, fault.column), (2, 13));
    assert_eq!(error("ééé == x y").column, 10);
}

#[test]
fn routing_5_5_point_13_time() {
    let text = instance("at=2024-02-29T12:00:00+02:00").typed("at", "time");
    yes(
        &text,
        &[
            "at == 2024-02-29T10:00:00Z",
            "at == 2024-02-29T10:00:00.000Z",
            "at > 2024-02-29T09:59:59.999999999Z",
            "at < \"2024-02-29 10:00:01\"",
            "at >= 2024-02-29",
            "at in (2024-02-29T10:00:00Z)",
            "at != 2024-03-01",
        ],
    );
    no(&text, &["at > latest", "at == 1709200800", "at < 1709200801", "at < 2023-02-29"]);
    let epoch = [
        ("time(s)", "1709200800"),
        ("time(ms)", "1709200800000"),
        ("time(us)", "1709200800000000"),
        ("time(ns)", "1709200800000000000"),
        ("time(s)", "1709200800.000"),
    ];
    for (word, value) in epoch {
        let case = instance(&format!("at={value}")).typed("at", word);
        yes(
            &case,
            &[
                "at == 2024-02-29T10:00:00Z",
                "at > 2024-02-29T09:59:59Z",
                "at < 2024-02-29T10:00:00.000000001Z",
                &format!("at == {value}"),
            ],
        );
    }
    // Undeclared it is text.
    no(&instance("at=2024-02-29T10:00:00Z"), &["at > 2023-01-01T00:00:00Z"]);
}

#[test]
fn routing_5_5_summary_spaces_are_optional() {
    let here = instance("a=-1, b=ü, version=2.3");
    yes(
        &here,
        &["a==-1", "a>=-1", "a>-2", "b==ü", "b=ü", "version>=2.3&&a<0||b!=x", "!(a>0)", "a in(-1)", "(a==-1)and(b==ü)"],
    );
    // Mixing: && binds tighter.
    yes(&here, &["a == -1 || a == 0 && b == x", "(a == 0 || a == -1) && b == ü"]);
    no(&here, &["(a == -1 || a == 0) && b == x"]);
}

#[test]
fn routing_5_5_summary_suggested_fixes() {
    for (text, hint) in [
        ("a => 3", "write `>=`"),
        ("a =< 3", "write `<=`"),
        ("a === 3", "write `==`"),
        ("a <> 3", "write `!=`"),
        ("a & b", "write `&&`; a value with `&` needs quotes"),
        ("a == 1 AND b == 2", "operators are lower case: and"),
        ("a IN (1)", "operators are lower case: in"),
        ("a in 1", "write the list in parentheses: in (1)"),
        ("a in [b, c]", "write the list in parentheses: in (b, c)"),
        ("a not in [ \"b\", 'c]' ] && d == 1", "write the list in parentheses: in (\"b\", 'c]')"),
        ("a in [b]", "write the list in parentheses: in (b)"),
        ("a in [[::1]:80, b]", "write the list in parentheses: in ([::1]:80, b)"),
        ("a in [::1]:80", "write the list in parentheses: in ([::1]:80)"),
        ("a == (1, 2)", "for a list write `in (…)`"),
        ("a not b", "negate the comparison: !(a …)"),
        ("a is 1", "write `==`"),
        ("a == 1 ||", "remove `||` or write a comparison after it"),
        ("&& a == 1", "remove `&&` or write a comparison before it"),
        ("a ==", "the empty value is written \"\""),
        ("a == `b`", "the right side is a value, not a key: write b"),
        ("exists(\"a\")", "a key is written without quotes: exists(a)"),
        ("env == blue green && a == 1", "a value with spaces needs quotes: env == \"blue green\""),
        ("version >= 2.3 env == prod", "join two comparisons with `&&` or `||`"),
        ("version >= 2.3 exists(a)", "join two comparisons with `&&` or `||`"),
        ("lower(env) == blue green", "a value with spaces needs quotes: lower(env) == \"blue green\""),
        ("$reg.x == 1", "did you mean `$req`?"),
        ("$request.x == 1", "did you mean `$req`?"),
        ("size(a) == 1", "`size` is no function; exists() and lower() are"),
    ] {
        assert_eq!(error(text).hint.as_deref(), Some(hint), "{text}");
    }
    assert_eq!(error("a == 1)").code, "unbalanced_paren");
    assert_eq!(error("a == 1 && (b == 2 || (c == 3)").column, 11);
    assert_eq!(error("()").code, "unexpected_token");
    assert_eq!(error("a in ()").code, "empty_list");
    assert_eq!(error("a in (1 2)").column, 9);
    let fault = error("a ** 3");
    assert!(fault.expected.iter().any(|what| what == "`==`"), "{:?}", fault.expected);
}
