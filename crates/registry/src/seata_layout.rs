//! What Seata's layouts in etcd, Redis and ZooKeeper have in common: how an address is written, and metadata as text.
//!
//! An address is `ip:port`; an IPv6 address stands in full and without brackets, as Java prints it
//! (`0:0:0:0:0:0:0:1:8091`). Text metadata is one `key=value` per line, split at the first `=`, without any escaping. What
//! cannot be said that way (a line end, a `=` in a key) rides as JSON in one line under the key `metaroute-json`, so
//! that nothing is lost between two of us and other readers see every other key.

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use metaroute_core::instance::{Address, AddressError};

/// The line with what the text form cannot say.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
const JSON: &str = "metaroute-json";

/// An address as Seata writes it.
pub(crate) fn address_text(address: &Address) -> String {
    match address.host().parse::<Ipv6Addr>() {
        Ok(ip) => {
            let parts = ip.segments().map(|segment| format!("{segment:x}"));
            format!("{}:{}", parts.join(":"), address.port())
        }
        Err(_) => address.to_string(),
    }
}

/// An address as Seata, or one of us, wrote it.
pub(crate) fn read_address(text: &str) -> Result<Address, AddressError> {
    let address: Address = text.parse()?;
    match address.host().parse::<Ipv6Addr>() {
        Ok(ip) => Address::new(&ip.to_string(), address.port()),
        Err(_) => Ok(address),
    }
}

/// Metadata as lines of text; empty metadata is empty text.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) fn write_text(map: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = serde_json::Map::new();
    for (key, value) in map {
        if key.is_empty() || key.contains(['=', '\n']) || value.contains('\n') || key == JSON {
            rest.insert(key.clone(), value.as_str().into());
        } else {
            out.push_str(key);
            out.push('=');
            out.push_str(value);
            out.push('\n');
        }
    }
    if !rest.is_empty() {
        out.push_str(JSON);
        out.push('=');
        out.push_str(&serde_json::Value::from(rest).to_string());
        out.push('\n');
    }
    out
}

/// Metadata from text. What is no such text is no metadata and no error: released servers write `true`, or the Java
/// serialization of it.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) fn read_text(data: &[u8]) -> BTreeMap<String, String> {
    let Ok(text) = std::str::from_utf8(data) else { return BTreeMap::new() };
    let mut map = BTreeMap::new();
    for line in text.split('\n') {
        let Some((key, value)) = line.split_once('=').filter(|(key, _)| !key.is_empty()) else { continue };
        if key == JSON
            && let Ok(serde_json::Value::Object(rest)) = serde_json::from_str(value)
            && rest.values().all(serde_json::Value::is_string)
        {
            for (key, value) in rest {
                map.insert(key, value.as_str().unwrap_or_default().to_owned());
            }
            continue;
        }
        map.insert(key.to_owned(), value.to_owned());
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_java_prints_them() {
        for (ours, theirs) in [
            ("10.0.0.1:8091", "10.0.0.1:8091"),
            ("seata-tc_1.internal:8091", "seata-tc_1.internal:8091"),
            ("[::1]:8091", "0:0:0:0:0:0:0:1:8091"),
            ("[2001:db8::ff]:80", "2001:db8:0:0:0:0:0:ff:80"),
        ] {
            let address: Address = ours.parse().expect("an address");
            assert_eq!(address_text(&address), theirs);
            assert_eq!(read_address(theirs).expect("an address"), address);
        }
    }

    #[cfg(any(feature = "etcd", feature = "zookeeper"))]
    mod text {
        use proptest::prelude::*;

        use super::*;

        fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        }

        #[test]
        fn lines_are_split_at_the_first_equals_sign_and_the_last_duplicate_wins() {
            let read = read_text("a=1\n\nnothing\n=column zero\nb=x=y\r\nc=\na=2\n".as_bytes());
            assert_eq!(read, map(&[("a", "2"), ("b", "x=y\r"), ("c", "")]));
        }

        #[test]
        fn what_released_servers_write_is_no_metadata() {
            assert_eq!(read_text(b"true"), BTreeMap::new());
            assert_eq!(read_text(b""), BTreeMap::new());
            let java = b"\xac\xed\0\x05sr\0\x11java.lang.Boolean\xcd r\x80\xd5\x9c\xfa\xee\x02\0\x01Z\0\x05valuexp\x01";
            assert_eq!(java.len(), 47);
            assert_eq!(read_text(java), BTreeMap::new());
        }

        #[test]
        fn what_text_cannot_say_is_not_lost() {
            let odd = map(&[("a=b", "1"), ("line\nend", "2"), ("value", "x\ny"), ("", "empty"), ("plain", "3")]);
            let text = write_text(&odd);
            assert_eq!(read_text(text.as_bytes()), odd);
            assert!(text.starts_with("plain=3\nmetaroute-json={"), "{text}");
            assert_eq!(write_text(&map(&[("version", "2.3"), ("env", "")])), "env=\nversion=2.3\n");
        }

        proptest! {
            #[test]
            fn text_keeps_everything(map in prop::collection::btree_map("[a-c=\n\r {}\"-]{0,4}", "[a-z=\n\r €\"]{0,6}", 0..6)) {
                prop_assert_eq!(read_text(write_text(&map).as_bytes()), map);
            }

            #[test]
            fn no_data_panics(data in prop::collection::vec(any::<u8>(), 0..64)) {
                let _ = read_text(&data);
            }
        }
    }
}
