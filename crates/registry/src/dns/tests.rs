use hickory_resolver::proto::rr::rdata::{A, PTR, SRV, TXT};
use proptest::prelude::*;

use super::records::*;
use super::*;

fn url(text: &str) -> RegistryUrl {
    text.parse().expect("an address")
}

fn dns(text: &str) -> Dns {
    Dns::new(&url(text)).expect("valid")
}

#[test]
fn addresses_are_checked_before_anything_is_asked() {
    let refused = |text: &str| Dns::new(&url(text)).err().expect("refused").to_string();
    assert!(refused("dns+srv://example.com").contains("`dns+srv:///example.com`"));
    assert!(refused("dns+srv://h/d?proto=sctp").contains("`tcp` or `udp`"));
    assert!(refused("dns+srv://h/d?layout=x").contains("`srv` or `dns-sd`"));
    assert!(refused("dns+srv://h/d?min-ttl=2m&max-ttl=1m").contains("longer than"));
    assert!(refused("dns+srv://h/d?token=x").contains("unknown parameter `token`"));
    assert!(refused("dns+srv://u:p@h/d").contains("no user"));
    assert!(refused(&format!("dns+srv://h/{}", "a".repeat(64))).contains("not a name"));
}

#[test]
fn services_are_labels_below_the_domain() {
    let name = |url: &str, service: &str| dns(url).service_name(service).map(|name| name.to_string());
    assert_eq!(name("dns+srv://h/example.com", "orders").expect("valid"), "_orders._tcp.example.com.");
    assert_eq!(name("dns+srv://h/example.com.?proto=udp", "sip").expect("valid"), "_sip._udp.example.com.");
    assert_eq!(name("dns+srv:///example.com", "_a._sctp").expect("valid"), "_a._sctp.example.com.");
    for bad in ["", "a.b", &"a".repeat(63)] {
        assert_eq!(name("dns+srv://h/example.com", bad).expect_err("refused").kind(), ErrorKind::Invalid, "{bad}");
    }
}

#[test]
fn cursors_come_back() {
    for place in [
        Place { digest: 0, seen_ms: 3, due_ms: 7, known: false },
        Place { digest: u64::MAX, seen_ms: 0, due_ms: 0, known: true },
    ] {
        assert_eq!(Place::of(&place.cursor()), Some(place));
    }
    assert_eq!(Place::of(&Cursor::new("rev9")), None);
}

fn record(name: &str, ttl: u32, data: RData) -> Record {
    Record::from_rdata(Name::from_utf8(name).expect("a name"), ttl, data)
}

fn srv(priority: u16, weight: u16, port: u16, target: &str) -> Record {
    record("_a._tcp.d.", 60, RData::SRV(SRV::new(priority, weight, port, Name::from_utf8(target).expect("a name"))))
}

fn found(records: &[Record]) -> Vec<(Target, Vec<IpAddr>)> {
    targets(records)
        .into_iter()
        .enumerate()
        .map(|(n, target)| (target, vec![IpAddr::from([10, 0, 0, n as u8])]))
        .collect()
}

fn weights(records: &[Record], lowest_only: bool) -> Vec<(String, f64)> {
    instances(found(records), lowest_only).into_iter().map(|one| (one.id.to_string(), one.weight)).collect()
}

#[test]
fn weights_are_those_of_rfc_2782() {
    let own = |records: &[Record]| weights(records, true).into_iter().map(|(_, weight)| weight).collect::<Vec<_>>();
    assert_eq!(own(&[srv(1, 10, 1, "a."), srv(1, 30, 2, "b.")]), [10.0, 30.0]);
    // All of them zero: no selection to make, all the same.
    assert_eq!(own(&[srv(1, 0, 1, "a."), srv(1, 0, 2, "b.")]), [0.5, 0.5]);
    // Beside others: one part in sum + 1, together.
    assert_eq!(own(&[srv(1, 9, 1, "a."), srv(1, 0, 2, "b."), srv(1, 0, 3, "c.")]), [9.0, 0.5, 0.5]);
    // The lowest number is the most preferred.
    let two = [srv(10, 5, 1, "a."), srv(20, 5, 2, "b."), srv(10, 0, 3, "c.")];
    assert_eq!(own(&two), [5.0, 0.0, 1.0]);
    assert_eq!(weights(&two, false).iter().map(|(_, weight)| *weight).collect::<Vec<_>>(), [5.0, 5.0, 1.0]);
}

#[test]
fn names_lose_case_and_final_dot_and_the_root_is_no_target() {
    let listed = targets(&[srv(1, 1, 80, "Web-1.Example.COM."), srv(0, 0, 0, ".")]);
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].host, "web-1.example.com");
    // The same twice is one instance.
    assert_eq!(weights(&[srv(1, 1, 80, "A."), srv(1, 7, 80, "a.")], true), [("a:80".to_owned(), 7.0)]);
}

#[test]
fn the_addresses_of_a_target_share_its_weight() {
    let mut target = targets(&[srv(1, 10, 80, "a.")]).remove(0);
    target.pairs.insert("zone".into(), "z1".into());
    let addresses = vec!["fd00::1".parse().expect("one"), "10.0.0.1".parse().expect("one")];
    let list = instances(vec![(target, addresses)], true);
    let shown: Vec<_> = list.iter().map(|one| (one.id.as_str(), one.address.to_string(), one.weight)).collect();
    assert_eq!(
        shown,
        [("a:80/10.0.0.1", "10.0.0.1:80".to_owned(), 5.0), ("a:80/fd00::1", "[fd00::1]:80".to_owned(), 5.0)]
    );
    assert_eq!(&*list[0].locality.zone, "z1");
    assert_eq!(list[0].metadata.get("priority").map(|value| value.to_text()), Some("1".into()));
}

#[test]
fn text_records_are_pairs() {
    let text = |strings: &[&[u8]]| record("x.", 5, RData::TXT(TXT::from_bytes(strings.to_vec())));
    let read = pairs(&[
        text(&[b"Version=2=3", b"version=9", b"flag", b"=nothing", b"empty=", b"\xff=x", b""]),
        text(&[b"b=\xc3\xbc"]),
    ]);
    let read: Vec<_> = read.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(read, [("b", "ü"), ("empty", ""), ("flag", "true"), ("version", "2=3")]);
}

#[test]
fn addresses_that_came_along_are_used_with_the_least_time_to_live() {
    let a = |name: &str, ttl, last| record(name, ttl, RData::A(A::new(10, 0, 0, last)));
    let known = addresses(&[a("Web.d.", 30, 1), a("web.D.", 20, 2), srv(1, 1, 1, "x.")]);
    assert_eq!(known.len(), 1);
    assert_eq!(known["web.d"], (vec![[10, 0, 0, 1].into(), [10, 0, 0, 2].into()], 20));
}

#[test]
fn announced_services_are_those_of_the_protocol() {
    let pointer =
        |to: &str| record("_services._dns-sd._udp.d.", 5, RData::PTR(PTR(Name::from_utf8(to).expect("a name"))));
    assert_eq!(announced(&pointer("_http._tcp.d."), "tcp").as_deref(), Some("http"));
    assert_eq!(announced(&pointer("_HTTP._TCP.d."), "tcp").as_deref(), Some("http"));
    assert_eq!(announced(&pointer("_sip._udp.d."), "tcp"), None);
    assert_eq!(announced(&pointer("odd.d."), "tcp"), None);
}

proptest! {
    #[test]
    fn no_records_panic_and_shares_are_weights(
        records in prop::collection::vec((0_u16..3, 0_u16.., 0_u16.., "[a-c]{1,2}"), 0..20),
        lowest_only in any::<bool>(),
    ) {
        let records: Vec<Record> = records.iter().map(|(p, w, port, host)| srv(*p, *w, *port, &format!("{host}."))).collect();
        let list = instances(found(&records), lowest_only);
        for instance in &list {
            prop_assert_eq!(instance.defect(), None);
            // Only what is not preferred is out.
            prop_assert!(instance.weight > 0.0 || lowest_only);
        }
        if records.iter().any(|record| matches!(&record.data, RData::SRV(srv) if srv.port > 0)) && !lowest_only {
            prop_assert!(!list.is_empty());
        }
    }

    #[test]
    fn no_text_panics(strings in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5)) {
        let text = TXT::from_bytes(strings.iter().map(|string| &string[..]).collect());
        let _ = pairs(&[record("x.", 1, RData::TXT(text))]);
    }
}
