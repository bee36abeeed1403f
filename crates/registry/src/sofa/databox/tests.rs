use metaroute_core::instance::{Incarnation, MetaValue};
use proptest::prelude::*;

use super::*;

#[test]
fn the_form_is_a_url_without_its_scheme() {
    let instance = Instance::new("10.0.0.1:12200".parse().expect("an address"));
    assert_eq!(write(&instance), "10.0.0.1:12200");
    let instance = instance.with_meta("env", "a=b&c d").with_meta("地", "é").with_weight(0.0).with_zone("z1");
    assert_eq!(write(&instance), "10.0.0.1:12200?env=a%3Db%26c%20d&metaroute-weight=0&zone=z1&%E5%9C%B0=%C3%A9");
    let v6 = Instance::new("[fd00::7]:9".parse().expect("an address"));
    assert_eq!(write(&v6), "[fd00::7]:9");
}

#[test]
fn what_others_write_is_read() {
    let meta = |text: &str| {
        let instance = read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let pairs: Vec<_> = instance.metadata.iter().map(|(k, v)| format!("{k}={}", v.to_text())).collect();
        (instance.address.to_string(), pairs.join(","))
    };
    let all = |address: &str, pairs: &str| (address.to_owned(), pairs.to_owned());
    assert_eq!(meta("10.1.1.1:8091"), all("10.1.1.1:8091", ""), "Seata");
    assert_eq!(
        meta("bolt://10.0.0.1:12200?zone=z1&weight=100"),
        all("10.0.0.1:12200", "weight=100,zone=z1"),
        "SOFARPC"
    );
    assert_eq!(meta("bolt://10.9.9.9:1?from=pb&m=%E4%BD%A0"), all("10.9.9.9:1", "from=pb,m=你"));
    assert_eq!(meta("tri://h:1/path?a=1"), all("h:1", "a=1"));
    assert_eq!(meta("h:1?u=http://x/y"), all("h:1", "u=http://x/y"));
    assert_eq!(
        meta("10.1.1.1:8091|meta=a%3D1%26b%3Dx%2520y"),
        all("10.1.1.1:8091", "a=1,b=x y"),
        "the sketch for Seata"
    );
    assert_eq!(meta("10.1.1.1:8091|meta=a=1&b=2"), all("10.1.1.1:8091", "a=1,b=2"));
    assert_eq!(meta("10.1.1.1:8091|meta="), all("10.1.1.1:8091", ""));
    assert_eq!(meta("h:1?flag&&a=b=c&p=100%&q=1+1"), all("h:1", "a=b=c,flag=,p=100%,q=1+1"));
    assert_eq!(meta("0:0:0:0:0:0:0:1:8091"), all("[0:0:0:0:0:0:0:1]:8091", ""));
}

#[test]
fn a_bad_box_says_what_is_wrong() {
    for text in ["", "h", "h:0", "bolt://", "?a=1", "h:1?a=%FF", "h:1?metaroute-weight=9e99"] {
        let error = read(text).expect_err(text);
        assert!(error.len() > 5, "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn everything_comes_back_as_text(
        port in 1_u16..,
        id in "[a-z%&=?|/ ä]{1,9}",
        metadata in prop::collection::btree_map("\\PC{1,9}", "\\PC{0,12}", 0..5),
        weight in 0.0..1e6_f64,
        enabled: bool,
    ) {
        let mut instance = Instance::new(Address::new("fd00::1", port).expect("an address")).with_id(id);
        instance.weight = weight;
        instance.enabled = enabled;
        instance.cluster = "blue|meta=x".into();
        instance.incarnation = Incarnation::new("7");
        let ours = |key: &str| key.starts_with("metaroute-") || key == "zone" || key == "region";
        instance.metadata = metadata
            .into_iter()
            .filter(|(key, _)| !ours(key))
            .map(|(key, value)| (key.into(), MetaValue::Text(value.into())))
            .collect();
        prop_assert_eq!(read(&write(&instance)), Ok(instance));
    }

    #[test]
    fn no_box_panics(text in "\\PC{0,40}") {
        let _ = read(&text);
        let _ = read(&format!("h:1|meta={text}"));
        let _ = read(&format!("h:1?{text}"));
    }
}
