use super::*;

fn open(text: &str) -> Result<Kubernetes, String> {
    let url: RegistryUrl = text.parse().expect("an address");
    Kubernetes::new(&url).map_err(|error| error.to_string())
}

#[test]
fn addresses_are_understood() {
    for text in [
        "k8s://",
        "k8s://payments",
        "k8s:///payments",
        "k8s://payments?context=prod&kubeconfig=/a/b",
        "k8s://?port=http",
        "k8s://?port=grpc,8080&family=ipv4",
        "k8s://10.0.0.1:6443/payments?token=file:/a",
        "k8s://[fd00::1]:6443/payments",
        "k8s://127.0.0.1:8001/payments?tls=false",
        "k8s://api.example",
    ] {
        assert_eq!(open(text).map(|_| ()), Ok(()), "{text}");
    }
}

#[test]
fn what_does_not_fit_is_said() {
    for (text, part) in [
        ("k8s://?context=a&kubconfig=b", "did you mean `kubeconfig`?"),
        ("k8s:///Payments", "`Payments` is no namespace"),
        ("k8s:///a/b", "is no namespace"),
        ("k8s://api:6443/p?context=a", "give one of them"),
        ("k8s://p?token=secret-value", "`token` needs a server"),
        ("k8s://p?ca=/a", "`ca` needs a server"),
        ("k8s://p?tls=true", "`tls` needs a server"),
        ("k8s://a:1,b:1/p", "one address"),
        ("k8s://u:p@api:6443/p", "no user and password"),
        ("k8s://?port=", "expected names or numbers"),
        ("k8s://?port=http,,grpc", "expected names or numbers"),
        ("k8s://?port=0", "expected names or numbers"),
        ("k8s://?port=70000", "expected names or numbers"),
        ("k8s://?family=v4", "expected `ipv4`, `ipv6` or `all`"),
        ("k8s://api:6443/p?tls=false&ca=/a", "need `tls=true`"),
    ] {
        let error = open(text).map(|_| ()).expect_err(text);
        assert!(error.contains(part) && !error.contains("secret-value"), "{text}: {error}");
    }
}

#[test]
fn a_server_is_told_from_a_namespace_and_has_a_usual_port() {
    for (text, base) in [
        ("k8s://api.example/p", "https://api.example:6443"),
        ("k8s://api/p", "https://api:6443"),
        ("k8s://localhost?tls=false", "http://localhost:8001"),
        ("k8s://[fd00::1]/p", "https://[fd00::1]:6443"),
    ] {
        let opened = open(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(opened.connection.server().as_deref(), Some(base), "{text}");
    }
    assert_eq!(open("k8s://api").expect("a namespace").connection.server(), None);
}

#[test]
fn names_of_services_are_labels() {
    assert_eq!(selector("web-1").as_deref().ok(), Some("kubernetes.io/service-name=web-1"));
    for name in ["", "a b", "a,b", "a=b", "-a", "a-", "ä", &"a".repeat(64)] {
        let error = selector(name).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}");
    }
}

#[test]
fn events_change_what_is_known() {
    let object = |name: &str, version: &str, address: &str| {
        serde_json::json!({
            "metadata": { "name": name, "resourceVersion": version }, "addressType": "IPv4", "ports": [{ "port": 80 }],
            "endpoints": [{ "addresses": [address] }],
        })
    };
    let mut known = Known::of(Listing { items: Vec::new(), version: "5".into() }, false);
    assert_eq!((known.snapshot(&Choice::default()), known.cursor().as_str()), (None, "5?"));
    assert_eq!(known.take_in(object("a", "x6", "10.0.0.1"), false), Some(()));
    let count = |known: &Known| known.snapshot(&Choice::default()).map(|snapshot| snapshot.instances.len());
    assert_eq!((count(&known), known.cursor().as_str()), (Some(1), "x6"), "versions are no numbers");
    assert_eq!(known.take_in(object("a", "3", "10.0.0.1"), true), Some(()));
    assert_eq!((count(&known), known.cursor().as_str()), (Some(0), "3"));
    for doubtful in [serde_json::json!({}), serde_json::json!({ "metadata": { "name": "a" } }), Value::Null] {
        assert_eq!(known.take_in(doubtful, false), None);
    }
}
