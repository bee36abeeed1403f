use proptest::prelude::*;

use super::*;

fn url(text: &str) -> RegistryUrl {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn fail(text: &str) -> String {
    text.parse::<RegistryUrl>().unwrap_err().to_string()
}

#[test]
fn files_have_several_spellings() {
    for (text, path) in [
        ("fleet.yaml", "fleet.yaml"),
        ("./a b/fleet.yaml", "./a b/fleet.yaml"),
        ("/etc/fleet.json", "/etc/fleet.json"),
        ("dir/x:y.yaml", "dir/x:y.yaml"),
        ("file:fleet.yaml", "fleet.yaml"),
        ("file:./fleet.yaml", "./fleet.yaml"),
        ("file:/etc/fleet.yaml", "/etc/fleet.yaml"),
        ("file:///etc/a%20b.yaml", "/etc/a b.yaml"),
        ("file://localhost/etc/fleet.yaml", "/etc/fleet.yaml"),
        ("FILE:fleet.yaml", "fleet.yaml"),
        ("127.0.0.1:8848", "127.0.0.1:8848"),
    ] {
        let url = url(text);
        assert_eq!((url.scheme(), url.path()), (Scheme::File, path), "{text}");
    }
    assert_eq!(url("file:a.yaml").to_string(), "file:a.yaml");
    assert_eq!(url("memory:"), RegistryUrl::memory());
}

#[test]
fn every_scheme_is_read() {
    for (text, scheme, hosts, path) in [
        ("nacos://127.0.0.1:8848/public?group=SEATA_GROUP&cluster=default", Scheme::Nacos, "127.0.0.1:8848", "public"),
        ("consul://c.example", Scheme::Consul, "c.example", ""),
        ("static://h:80,i:81", Scheme::Static, "h:80,i:81", ""),
        ("zookeeper://a:2181,b:2181/chroot/x?layout=seata", Scheme::Zookeeper, "a:2181,b:2181", "chroot/x"),
        ("zk://a", Scheme::Zookeeper, "a", ""),
        ("etcd://[::1]:2379/", Scheme::Etcd, "[::1]:2379", ""),
        ("redis://127.0.0.1:6379", Scheme::Redis, "127.0.0.1:6379", ""),
        ("rediss://h", Scheme::Redis, "h", ""),
        ("eureka://h:8761/eureka", Scheme::Eureka, "h:8761", "eureka"),
        ("namingserver://h", Scheme::NamingServer, "h", ""),
        ("seata-raft://h", Scheme::SeataRaft, "h", ""),
        ("sofa://h", Scheme::Sofa, "h", ""),
        ("k8s:///default", Scheme::Kubernetes, "", "default"),
        ("k8s://", Scheme::Kubernetes, "", ""),
        ("k8s://payments?context=prod", Scheme::Kubernetes, "", "payments"),
        ("kubernetes://api/payments", Scheme::Kubernetes, "api", "payments"),
        ("k8s://api:6443", Scheme::Kubernetes, "api:6443", ""),
        ("k8s://localhost", Scheme::Kubernetes, "localhost", ""),
        ("dns+srv://h", Scheme::DnsSrv, "h", ""),
    ] {
        let url = url(text);
        let shown: Vec<_> = url.hosts().iter().map(ToString::to_string).collect();
        assert_eq!((url.scheme(), shown.join(",").as_str(), url.path()), (scheme, hosts, path), "{text}");
        assert_eq!(url.to_string().parse::<RegistryUrl>().unwrap(), url);
    }
    assert_eq!(url("nacos://h?group=G%26x").param("group"), Some("G&x"));
    assert!(url("rediss://h").tls());
    assert!(Scheme::File.is_built_in() && Scheme::Memory.is_built_in());
}

#[test]
fn wrong_addresses_say_what_is_wrong() {
    for (text, message) in [
        ("", "the registry address is empty"),
        ("file:", "`file:` needs a path (write for example `file:fleet.yaml`)"),
        ("memory:x", "`memory:` takes nothing after the colon"),
        ("nacoss://h", "unknown kind of registry `nacoss` (did you mean `nacos`?)"),
        (
            "localhost:8848",
            "unknown kind of registry `localhost` (write the kind of registry first, for example `nacos://localhost:8848`)",
        ),
        ("nacos:h", "`nacos:` must be followed by `//` (write for example `nacos://127.0.0.1`)"),
        ("nacos://", "`nacos://` needs a server (write for example `nacos://127.0.0.1`)"),
        ("nacos://h:0", "bad server `h:0`: the port must be 1 to 65535"),
        ("nacos://h:+1", "bad server `h:+1`: the port must be 1 to 65535"),
        ("nacos://::1:80", "bad server `::1:80`: an IPv6 address needs brackets"),
        ("nacos://[::1", "bad server `[::1`: `[` without `]`"),
        ("nacos://h?a=1&a=2", "parameter `a` is given twice"),
        ("nacos://h?a=%G1", "`%` must be followed by two hexadecimal digits (write `%25` for `%`)"),
    ] {
        assert_eq!(fail(text), message, "{text}");
    }
}

#[test]
fn secrets_never_show() {
    let text = "nacos://alice:s3cr3t@h:1/ns?token=t0k3n&group=g&accessToken=4cc3ss&secret-key=k3y";
    let url = url(text);
    for shown in
        [url.to_string(), format!("{url:?}"), format!("{url:#?}"), format!("{:?}", url.password()), redact(text)]
    {
        for secret in ["s3cr3t", "t0k3n", "4cc3ss", "k3y"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
    assert_eq!(url.to_string(), "nacos://alice:***@h:1/ns?group=g&accessToken=***&secret-key=***&token=***");
    assert_eq!(url.user(), Some("alice"));
    assert_eq!(url.password().unwrap().reveal().unwrap(), "s3cr3t");
    assert_eq!(url.secret("token").unwrap().reveal().unwrap(), "t0k3n");
    assert_eq!(url.param("token"), None);
    for bad in [
        "nacos://alice:s3cr3t@h:x",
        "nacos://alice:s3cr3t%@h",
        "foo://alice:s3cr3t@h",
        "nacos://a:s3cr3t@h?token=t0k3n&token=t0k3n",
        "alice:s3cr3t@h",
    ] {
        let error = bad.parse::<RegistryUrl>().unwrap_err();
        for shown in [error.to_string(), format!("{error:?}")] {
            assert!(!shown.contains("s3cr3t") && !shown.contains("t0k3n"), "{bad}: {shown}");
        }
    }
}

#[test]
fn secrets_come_from_environment_and_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pw");
    std::fs::write(&path, "from file\n").unwrap();
    let url = url(&format!("redis://u:file:{}@h:1/0?token=env:METAROUTE_TEST_NO_SUCH_VARIABLE", path.display()));
    assert_eq!(url.hosts()[0].to_string(), "h:1");
    assert_eq!(url.path(), "0");
    assert_eq!(url.password().unwrap().reveal().unwrap(), "from file");
    let error = url.secret("token").unwrap().reveal().unwrap_err();
    assert_eq!(error.to_string(), "cannot read a secret from environment variable `METAROUTE_TEST_NO_SUCH_VARIABLE`");
    // PATH is set wherever tests run.
    assert_eq!(Secret::new("env:PATH").reveal().unwrap(), std::env::var("PATH").unwrap());
    let missing = Secret::new("file:/no/such/file").reveal().unwrap_err();
    assert!(std::error::Error::source(&missing).is_some());
}

#[test]
fn secret_names_are_recognised() {
    for yes in ["password", "Password", "token", "access_token", "secretKey", "access-key", "passwd", "ssl.password"] {
        assert!(is_secret_name(yes), "{yes}");
    }
    for no in ["group", "cluster", "keyspace", "username", "tokens-per-second", "layout"] {
        assert!(!is_secret_name(no), "{no}");
    }
}

proptest! {
    #[test]
    fn parsing_is_total_and_hides_passwords(head in "[a-z:/]{0,10}", secret in "[A-Z]{12}", tail in "[a-z:/?&=@%.\\[\\]]{0,20}") {
        let text = format!("{head}://user:{secret}@{tail}");
        let shown = match text.parse::<RegistryUrl>() {
            Ok(url) if url.scheme() == Scheme::File => String::new(),
            Ok(url) => format!("{url} {url:?}"),
            Err(error) => format!("{error} {error:?}"),
        };
        prop_assert!(!shown.contains(&secret), "{} -> {}", text, shown);
        prop_assert!(!redact(&text).contains(&secret));
    }
}

#[test]
fn a_list_of_registries_is_told_from_a_list_of_servers() {
    let list = |text: &str| -> Vec<String> {
        RegistryUrl::parse_list(text).unwrap().iter().map(ToString::to_string).collect()
    };
    assert_eq!(list("etcd://a:1,b:2,redis://c:3"), ["etcd://a:1,b:2", "redis://c:3"]);
    // A server may have the name of a kind of registry.
    assert_eq!(list("etcd://a:1,redis:2379"), ["etcd://a:1,redis:2379"]);
    assert_eq!(
        list("fleet.yaml, consul://c?tag=a,b,file:///x.yaml"),
        ["file:fleet.yaml", "consul://c?tag=a,b", "file:/x.yaml"]
    );
    assert!(RegistryUrl::parse_list("etcd://a,").is_ok() && RegistryUrl::parse_list("").is_err());
    assert!(RegistryUrl::parse_list("etcd://a,redis://").is_err());
}
