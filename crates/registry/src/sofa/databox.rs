//! An instance as one data box, the opaque string that SOFARegistry carries.
//!
//! Written: `HOST:PORT?key=value&key=value`, sorted by key, everything but letters, digits and `-._~` percent-encoded, no `?` where
//! there is nothing to say. Read besides: a scheme before it (SOFARPC's `bolt://HOST:PORT?…`), a path behind the address, a `+`
//! as it stands, Seata's `HOST:PORT`, and the form a sketch for Seata proposed, `HOST:PORT|meta=k1%3Dv1%26k2%3Dv2` (or with the
//! inner pairs plain).

use std::collections::BTreeMap;

use metaroute_core::instance::{Address, Instance};

use crate::carrier::{self, Native};
use crate::http::segment;

/// The data box of an instance.
pub(super) fn write(instance: &Instance) -> String {
    let mut out = instance.address.to_string();
    for (n, (key, value)) in carrier::to_map(instance, Native::default()).into_iter().enumerate() {
        out.push(if n == 0 { '?' } else { '&' });
        out += &segment(&key);
        out.push('=');
        out += &segment(&value);
    }
    out
}

/// The instance of a data box.
///
/// # Errors
/// A sentence that says what is wrong.
pub(super) fn read(text: &str) -> Result<Instance, String> {
    let text = text.trim();
    let scheme =
        |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    let bare = match text.split_once("://") {
        Some((word, rest)) if scheme(word) => rest,
        _ => text,
    };
    let (place, pairs) = if let Some((place, meta)) = bare.split_once("|meta=") {
        // The pairs are one encoded text; decoding twice what was encoded once would eat a `%`.
        let pairs = if meta.contains('=') || meta.is_empty() { meta.to_owned() } else { decode(meta)? };
        (place, pairs)
    } else {
        let (place, pairs) = bare.split_once('?').unwrap_or((bare, ""));
        (place, pairs.to_owned())
    };
    let place = place.split('/').next().unwrap_or_default();
    let address: Address = place.parse().map_err(|error| format!("data box `{}`: {error}", shown(text)))?;
    let mut map = BTreeMap::new();
    for pair in pairs.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        map.insert(decode(key)?, decode(value)?);
    }
    let instance = carrier::from_map(address, map);
    match instance.defect() {
        None => Ok(instance),
        Some(defect) => Err(format!("data box `{}`: {defect}", shown(text))),
    }
}

/// The beginning of a box, for messages.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(80).collect()
}

/// Percent-decoding; a `%` that encodes nothing stands for itself.
fn decode(text: &str) -> Result<String, String> {
    if !text.contains('%') {
        return Ok(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok());
        match digits {
            Some(decoded) if *byte == b'%' && tail[0] != b'+' => {
                bytes.push(decoded);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).map_err(|_| format!("`{}` is not UTF-8", shown(text)))
}

#[cfg(test)]
mod tests;
