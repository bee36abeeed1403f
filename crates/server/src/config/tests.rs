use super::*;

fn shard(text: &str) -> Result<ShardConfig, ConfigError> {
    ShardConfig::parse("shard.yaml", text, Format::Yaml, Path::new("/etc/metaroute"))
}

fn router(text: &str) -> Result<RouterConfig, ConfigError> {
    RouterConfig::parse("router.yaml", text, Format::Yaml, Path::new("/etc/metaroute"))
}

#[test]
fn the_printed_files_state_the_defaults() {
    let normal = |config: &dyn std::fmt::Debug| format!("{config:?}").replace("/./", "/");
    let printed = shard(SHARD_YAML).expect("the printed file is legal");
    let least = shard("{group: g0, shard: s0, data: ./data/g0-s0}").expect("legal");
    assert_eq!(normal(&printed), normal(&least));
    assert_eq!(printed.data, Path::new("/etc/metaroute/./data/g0-s0"));
    let printed = router(ROUTER_YAML).expect("the printed file is legal");
    let least = router("{}").expect("everything has a default");
    assert_eq!(normal(&printed), normal(&least));
}

#[test]
fn mistakes_are_found_with_their_place() {
    let unknown = shard("group: g0\nshard: s0\ndata: d\ncahce: 1MiB\n").expect_err("refused");
    assert_eq!((unknown.code, unknown.at.map(|at| at.line)), ("unknown_key", Some(4)));
    assert_eq!(unknown.hint.as_deref(), Some("did you mean `cache`?"));
    assert_eq!(shard("{group: g0, shard: s0}").expect_err("refused").code, "missing_key");
    let open = router("listen: 0.0.0.0:7400").expect_err("refused");
    assert_eq!(open.code, "listen_without_authentication");
    for bad in ["timeout: 10", "merge_buffer: 64", "requests: 0", "hedge: {ratio: 2}", "hedge: {rato: 0.1}"] {
        assert!(router(bad).is_err(), "{bad}");
    }
    let secret = router("cursor_keys: [abc]").expect_err("refused");
    assert!(!secret.to_string().contains("abc"), "{secret}");
}
