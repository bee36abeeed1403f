//! What Nacos accepts as names: its parameter check, done before the wire so that the message names the character.
//!
//! The rules are those of `DefaultParamChecker` in Nacos 2.3 and later, which are on by default.

use crate::driver::{DriverError, ErrorKind};

/// Longest service name, group, cluster, namespace id and host, in characters.
const SERVICE_CHARS: usize = 512;
const GROUP_CHARS: usize = 128;
const CLUSTER_CHARS: usize = 64;
const NAMESPACE_CHARS: usize = 64;
const HOST_CHARS: usize = 128;

/// A service name, without its group.
pub(super) fn service(name: &str) -> Result<(), DriverError> {
    check("service name", name, SERVICE_CHARS, spoken)?;
    if name.is_empty() {
        return Err(invalid("the service name is empty".into()));
    }
    if name.starts_with('@') || name.contains("@@") {
        return Err(invalid(format!(
            "service name `{name}`: Nacos accepts no leading `@` and no `@@`; the group is the parameter `group`"
        )));
    }
    Ok(())
}

/// A group.
pub(super) fn group(name: &str) -> Result<(), DriverError> {
    check("group", name, GROUP_CHARS, |c| c.is_ascii_alphanumeric() || "-_:.".contains(c))
}

/// A cluster. The Java client also refuses `_` when it registers; servers and readers take it.
pub(super) fn cluster(name: &str) -> Result<(), DriverError> {
    check("cluster", name, CLUSTER_CHARS, |c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

/// A namespace id.
pub(super) fn namespace(id: &str) -> Result<(), DriverError> {
    check("namespace id", id, NAMESPACE_CHARS, |c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

/// A host: Nacos calls it `ip` and takes names too.
pub(super) fn host(name: &str) -> Result<(), DriverError> {
    check("host", name, HOST_CHARS, spoken)
}

/// No white space and none of the characters that Nacos' pattern leaves out, U+4E00 to U+9FA5.
fn spoken(c: char) -> bool {
    !c.is_whitespace() && !('\u{4e00}'..='\u{9fa5}').contains(&c)
}

fn check(what: &str, text: &str, chars: usize, accepted: impl Fn(char) -> bool) -> Result<(), DriverError> {
    // Java counts UTF-16 units.
    let len = text.encode_utf16().count();
    if len > chars {
        return Err(invalid(format!("{what} `{text}` has {len} characters, Nacos accepts at most {chars}")));
    }
    match text.chars().find(|c| !accepted(*c)) {
        Some(c) => Err(invalid(format!("{what} `{text}`: Nacos does not accept {c:?} in it"))),
        None => Ok(()),
    }
}

fn invalid(message: String) -> DriverError {
    DriverError::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(check: fn(&str) -> Result<(), DriverError>, names: &[&str]) {
        for name in names {
            assert_eq!(check(name).expect_err(name).kind(), ErrorKind::Invalid, "{name}");
        }
    }

    #[test]
    fn names_are_checked_as_the_server_does() {
        for name in ["orders", "/a", "com.example.Orders:1.0:", "a@b", "grüße", "a|b"] {
            service(name).expect(name);
        }
        refused(service, &["", "a b", "@a", "a@@b", "订单", "a\tb", &"s".repeat(513)]);
        service(&"s".repeat(512)).expect("the longest");
        group("SEATA_GROUP:1.0-x").expect("a group");
        refused(group, &["a b", "a/b", "ü", &"g".repeat(129)]);
        cluster("a_b-C9").expect("a cluster");
        refused(cluster, &["a.b", "a b", &"c".repeat(65)]);
        namespace("6a5c1f0e-0f4b-4d9b").expect("a namespace");
        refused(namespace, &["a/b"]);
        for name in ["10.0.0.1", "fd00::7", "orders.internal"] {
            host(name).expect(name);
        }
    }

    #[test]
    fn the_message_names_what_is_wrong() {
        assert_eq!(
            service("a b").expect_err("a space").to_string(),
            "service name `a b`: Nacos does not accept ' ' in it"
        );
    }
}
