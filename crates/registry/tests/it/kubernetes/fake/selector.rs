//! Which objects a list or a watch is about.

use serde_json::Value;

use super::Seen;
use super::refusal::Refusal;

/// Whether an object has the labels and fields that a request asks for.
pub(super) fn selected(seen: &Seen) -> Result<impl Fn(&Value) -> bool + use<>, Refusal> {
    let labels = Selector::read(seen.query.get("labelSelector").map_or("", String::as_str))?;
    let fields = Selector::read(seen.query.get("fieldSelector").map_or("", String::as_str))?;
    Ok(move |object: &Value| labels.fits_labels(object) && fields.fits_fields(object))
}

/// `a=b`, `a`, `!a`, several by commas; `metadata.name=x` for fields.
struct Selector(Vec<(String, Option<String>)>);

impl Selector {
    fn read(text: &str) -> Result<Self, Refusal> {
        let mut parts = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key, Some(value.trim_start_matches('=').to_owned())),
                None => (part, None),
            };
            if key.is_empty() || key.contains([' ', '!', '(']) {
                return Err(Refusal::bad(format!("unable to parse requirement: {part:?}")));
            }
            parts.push((key.to_owned(), value));
        }
        Ok(Self(parts))
    }

    fn fits_labels(&self, object: &Value) -> bool {
        self.0.iter().all(|(key, value)| match (object["metadata"]["labels"].get(key), value) {
            (Some(have), Some(want)) => have == want.as_str(),
            (have, None) => have.is_some(),
            (None, Some(_)) => false,
        })
    }

    fn fits_fields(&self, object: &Value) -> bool {
        self.0.iter().all(|(key, value)| {
            let have = object.pointer(&format!("/{}", key.replace('.', "/")));
            have.and_then(Value::as_str) == value.as_deref()
        })
    }
}
