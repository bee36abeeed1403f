//! `routing.md` 1.3 and `seata.md` 3.5: a missing key makes every comparison false; `!( … )` is plain negation.

use metaroute_expr::Dialect;

use crate::support::{Case, instance};

const EVERY_COMPARISON: [&str; 14] = [
    "env == dev",
    "env != dev",
    "env > 1",
    "env >= 1",
    "env < 1",
    "env <= 1",
    "env in (dev)",
    "env not in (dev)",
    "env like \"*\"",
    "env matches \".*\"",
    "env in range \"^0\"",
    "exists(env)",
    "lower(env) == dev",
    "env == $req.x",
];

#[test]
fn routing_1_3_every_comparison_is_false_without_the_key() {
    let bare = instance("").request("x=1");
    for text in EVERY_COMPARISON {
        assert!(!bare.says(text), "{text}");
        assert!(bare.says(&format!("!({text})")), "negated {text}");
    }
}

#[test]
fn routing_1_3_the_same_for_every_type() {
    for word in ["version", "number", "text", "bool", "set", "time", "time(ms)"] {
        let bare = instance("").typed("env", word).request("x=1");
        for text in EVERY_COMPARISON {
            assert!(!bare.says(text), "{word}: {text}");
        }
    }
}

#[test]
fn routing_1_3_a_missing_reference_is_like_a_missing_key() {
    let here = instance("env=dev");
    for text in ["env == $req.x", "env != $req.x", "env in (dev, $req.x)", "env not in (prod, $req.x)", "$req.x != a"] {
        assert!(!here.says(text), "{text}");
    }
}

#[test]
fn seata_3_5_presence() {
    let seata = |case: &Case, text: &str| case.says_as(text, Dialect::Seata);
    for operator in ["==", "=", "!=", ">", ">=", "<", "<="] {
        assert!(!seata(&instance(""), &format!("k {operator} x")), "{operator}");
    }
    assert!(seata(&instance("k="), "k != x"));
    assert!(instance("k=").says("k != x") && instance("k=").says("exists(k)") && instance("k=").says("k == \"\""));
}
