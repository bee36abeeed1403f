//! What the real server checks of a slice.

use std::collections::BTreeSet;

use serde_json::Value;

use super::refusal::Refusal;

/// Refuses what is no slice, or changes what may not change.
pub(super) fn validate(object: &Value, namespace: &str, before: Option<&Value>) -> Result<(), Refusal> {
    let meta =
        object.get("metadata").and_then(Value::as_object).ok_or_else(|| Refusal::invalid("metadata: Required"))?;
    let name = meta.get("name").and_then(Value::as_str).unwrap_or_default();
    let is_name = |text: &str| {
        !text.is_empty()
            && text.len() <= 253
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
    };
    if !is_name(name) {
        return Err(Refusal::invalid(format!("metadata.name: Invalid value: {name:?}")));
    }
    if meta.get("namespace").and_then(Value::as_str).is_some_and(|theirs| theirs != namespace) {
        return Err(Refusal::bad(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    for (key, value) in meta.get("labels").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().ok_or_else(|| Refusal::bad(format!("metadata.labels.{key}: not a string")))?;
        if value.len() > 63 || !value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
            return Err(Refusal::invalid(format!("metadata.labels: Invalid value: {value:?}")));
        }
    }
    let annotations = meta.get("annotations").and_then(Value::as_object);
    let total: usize =
        annotations.into_iter().flatten().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if total > 256 * 1024 {
        return Err(Refusal::invalid("metadata.annotations: Too long: must have at most 262144 bytes"));
    }
    let kind = object.get("addressType").and_then(Value::as_str).unwrap_or_default();
    if !["IPv4", "IPv6", "FQDN"].contains(&kind) {
        return Err(Refusal::invalid(format!("addressType: Unsupported value: {kind:?}")));
    }
    if before.is_some_and(|before| before["addressType"] != kind) {
        return Err(Refusal::invalid("addressType: Invalid value: field is immutable"));
    }
    let endpoints = object.get("endpoints").and_then(Value::as_array);
    let endpoints = endpoints.ok_or_else(|| Refusal::invalid("endpoints: Required value"))?;
    if endpoints.len() > 1000 {
        return Err(Refusal::invalid("endpoints: Too many: must have at most 1000 items"));
    }
    for endpoint in endpoints {
        let addresses = endpoint.get("addresses").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if addresses.is_empty() || addresses.len() > 100 {
            return Err(Refusal::invalid("endpoints[].addresses: must contain 1 to 100 addresses"));
        }
        for address in addresses {
            let text = address.as_str().unwrap_or_default();
            let fits = match kind {
                "IPv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
                "IPv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
                _ => is_name(text),
            };
            if !fits {
                return Err(Refusal::invalid(format!("endpoints[].addresses: Invalid value: {text:?}")));
            }
        }
    }
    let mut names = BTreeSet::new();
    for port in object.get("ports").and_then(Value::as_array).into_iter().flatten() {
        let name = port.get("name").and_then(Value::as_str).unwrap_or_default();
        if !names.insert(name) {
            return Err(Refusal::invalid(format!("ports[].name: Duplicate value: {name:?}")));
        }
        let number = port.get("port").filter(|number| !number.is_null());
        if number.is_some_and(|number| !number.as_u64().is_some_and(|number| (1..=65535).contains(&number))) {
            return Err(Refusal::invalid("ports[].port: must be between 1 and 65535, inclusive"));
        }
    }
    Ok(())
}
