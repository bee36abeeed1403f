//! How an instance travels through registries that know less than we do.
//!
//! A registry carries an address, mostly a map from string to string, and some of: id, weight, cluster, on/off. What it
//! has no place for rides in the map under reserved keys, so that nothing is lost between two of us, and other readers
//! see a few more keys. Where a registry stores bytes of our own choice, an instance is one JSON document.
//!
//! | reserved key | carries |
//! |---|---|
//! | `metaroute-id` | the id, where it is not the registry's own |
//! | `metaroute-weight` | the weight, where the registry has none or cannot say this one |
//! | `metaroute-enabled` | `false` for an instance switched off |
//! | `metaroute-cluster` | the cluster |
//! | `metaroute-incarnation` | the incarnation, where the registry makes none itself |
//! | `metaroute-subzone` | the subzone |
//! | `zone`, `region` | as everybody writes them (Spring Cloud, Eureka): read into the locality and kept as metadata |

use std::collections::BTreeMap;

use metaroute_core::instance::{Address, Incarnation, Instance, InstanceId, Locality, MetaValue, Metadata};
use serde_json::{Map, Value};

/// The prefix of every key that only we write.
pub(crate) const RESERVED: &str = "metaroute-";

pub(crate) const ID: &str = "metaroute-id";
const WEIGHT: &str = "metaroute-weight";
pub(crate) const ENABLED: &str = "metaroute-enabled";
const CLUSTER: &str = "metaroute-cluster";
pub(crate) const INCARNATION: &str = "metaroute-incarnation";
const SUBZONE: &str = "metaroute-subzone";

/// What a registry has a place of its own for; the rest goes into the map.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Native {
    pub(crate) id: bool,
    pub(crate) weight: bool,
    pub(crate) enabled: bool,
    pub(crate) cluster: bool,
    pub(crate) incarnation: bool,
}

/// The map to write: the metadata as text, and what the registry itself does not carry. Metadata keys under the reserved
/// prefix were refused before ([`Limits`](crate::driver::Limits)).
pub(crate) fn to_map(instance: &Instance, native: Native) -> BTreeMap<String, String> {
    let mut map: BTreeMap<String, String> =
        instance.metadata.iter().map(|(key, value)| (key.to_string(), value.to_text().into())).collect();
    let mut put = |key: &str, value: &str| {
        map.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    };
    if !native.id && instance.id.as_str() != instance.address.to_string() {
        put(ID, instance.id.as_str());
    }
    if !native.weight && instance.weight != 1.0 {
        put(WEIGHT, &instance.weight.to_string());
    }
    if !native.enabled && !instance.enabled {
        put(ENABLED, "false");
    }
    if !native.cluster && !instance.cluster.is_empty() {
        put(CLUSTER, &instance.cluster);
    }
    if !native.incarnation && !instance.incarnation.as_str().is_empty() {
        put(INCARNATION, instance.incarnation.as_str());
    }
    let place = &instance.locality;
    for (key, value) in [("region", &place.region), ("zone", &place.zone), (SUBZONE, &place.subzone)] {
        if !value.is_empty() {
            put(key, value);
        }
    }
    map
}

/// An instance as a map describes it, other people's maps included: unknown keys are metadata, reserved keys with values
/// we never write are left as they are.
pub(crate) fn from_map(address: Address, map: impl IntoIterator<Item = (String, String)>) -> Instance {
    let mut instance = Instance::new(address);
    for (key, value) in map {
        match &*key {
            ID if !value.is_empty() => instance.id = InstanceId::new(value),
            CLUSTER => instance.cluster = value.into(),
            INCARNATION => instance.incarnation = Incarnation::new(value),
            SUBZONE => instance.locality.subzone = value.into(),
            ENABLED if value == "true" || value == "false" => instance.enabled = value == "true",
            WEIGHT => match value.parse::<f64>() {
                Ok(weight) if weight.is_finite() && weight >= 0.0 => instance.weight = weight,
                _ => drop(instance.metadata.insert(key.into(), value.into())),
            },
            _ => {
                match &*key {
                    "zone" => instance.locality.zone = value.as_str().into(),
                    "region" => instance.locality.region = value.as_str().into(),
                    _ => {}
                }
                instance.metadata.insert(key.into(), value.into());
            }
        }
    }
    instance
}

/// Version of the JSON document; a reader refuses a higher one.
const DOCUMENT_VERSION: u64 = 1;

/// An instance as one JSON document:
/// `{"v":1,"id":…,"address":"host:port","weight":1.0,"enabled":true,"cluster":…,"region":…,"zone":…,"subzone":…,"incarnation":…,"metadata":{…}}`.
/// Parts with their usual value are left out.
pub(crate) fn to_json(instance: &Instance) -> Vec<u8> {
    let mut out = Map::new();
    out.insert("v".into(), DOCUMENT_VERSION.into());
    out.insert("id".into(), instance.id.as_str().into());
    out.insert("address".into(), instance.address.to_string().into());
    if instance.weight != 1.0 {
        out.insert("weight".into(), instance.weight.into());
    }
    if !instance.enabled {
        out.insert("enabled".into(), false.into());
    }
    let place = &instance.locality;
    let texts = [
        ("cluster", &*instance.cluster),
        ("region", &*place.region),
        ("zone", &*place.zone),
        ("subzone", &*place.subzone),
        ("incarnation", instance.incarnation.as_str()),
    ];
    for (key, value) in texts.into_iter().filter(|(_, value)| !value.is_empty()) {
        out.insert(key.into(), value.into());
    }
    if !instance.metadata.is_empty() {
        let metadata: Map<String, Value> =
            instance.metadata.iter().map(|(key, value)| (key.to_string(), json_value(value))).collect();
        out.insert("metadata".into(), metadata.into());
    }
    Value::from(out).to_string().into_bytes()
}

/// Reads what [`to_json`] writes; unknown fields are ignored.
///
/// # Errors
/// A sentence that says what is wrong.
pub(crate) fn from_json(bytes: &[u8]) -> Result<Instance, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| format!("not JSON: {error}"))?;
    let map = value.as_object().ok_or("not a JSON object")?;
    match map.get("v").and_then(Value::as_u64) {
        Some(DOCUMENT_VERSION) => {}
        Some(version) => return Err(format!("document version {version}, this reader knows {DOCUMENT_VERSION}")),
        None => return Err("no document version `v`".into()),
    }
    let text = |key: &str| match map.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(format!("`{key}` is no text")),
    };
    let address: Address = text("address")?.parse().map_err(|error| format!("`address`: {error}"))?;
    let mut instance = Instance::new(address);
    if !text("id")?.is_empty() {
        instance.id = InstanceId::new(text("id")?);
    }
    if let Some(weight) = map.get("weight") {
        instance.weight = weight.as_f64().ok_or("`weight` is no number")?;
    }
    if let Some(enabled) = map.get("enabled") {
        instance.enabled = enabled.as_bool().ok_or("`enabled` is neither true nor false")?;
    }
    instance.cluster = text("cluster")?.into();
    instance.incarnation = Incarnation::new(text("incarnation")?);
    instance.locality =
        Locality { region: text("region")?.into(), zone: text("zone")?.into(), subzone: text("subzone")?.into() };
    match map.get("metadata") {
        None | Some(Value::Null) => {}
        Some(Value::Object(metadata)) => instance.metadata = metadata_of(metadata),
        Some(_) => return Err("`metadata` is no object".into()),
    }
    match instance.defect() {
        None => Ok(instance),
        Some(defect) => Err(defect.to_string()),
    }
}

/// Metadata from a JSON object, kinds of values kept; null is an absent key.
pub(crate) fn metadata_of(map: &Map<String, Value>) -> Metadata {
    map.iter().filter_map(|(key, value)| Some((key.as_str().into(), meta_value(value)?))).collect()
}

fn meta_value(value: &Value) -> Option<MetaValue> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => MetaValue::Bool(*value),
        Value::Number(number) => MetaValue::Number(number.to_string().into()),
        Value::String(text) => MetaValue::Text(text.as_str().into()),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            MetaValue::List(items.iter().filter_map(|item| item.as_str().map(Into::into)).collect())
        }
        rich => MetaValue::Json(rich.to_string().into()),
    })
}

/// A metadata value as JSON; the inverse of reading it.
pub(crate) fn json_value(value: &MetaValue) -> Value {
    match value {
        MetaValue::Bool(value) => (*value).into(),
        MetaValue::Number(digits) => match serde_json::from_str(digits) {
            Ok(Value::Number(number)) => Value::Number(number),
            _ => Value::from(&**digits),
        },
        MetaValue::List(items) => items.iter().map(|item| Value::from(&**item)).collect(),
        MetaValue::Json(text) => serde_json::from_str(text).unwrap_or_else(|_| Value::from(&**text)),
        other => Value::from(&*other.to_text()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_instance() -> impl Strategy<Value = Instance> {
        let text = "[a-zäß€ =,\"\\\\-]{0,8}";
        let value = prop_oneof![
            text.prop_map(|t| MetaValue::Text(t.into())),
            any::<i64>().prop_map(|n| MetaValue::Number(n.to_string().into())),
            any::<bool>().prop_map(MetaValue::Bool),
            prop::collection::vec(text.prop_map(|t| t.into()), 1..3).prop_map(|l| MetaValue::List(l.into())),
        ];
        let names = (text, text, text, text, text);
        (1_u16.., "[a-z]{1,9}", names, 0.0..1e6, any::<bool>(), prop::collection::btree_map("k[a-z]{0,6}", value, 0..5))
            .prop_map(|(port, id, (cluster, region, zone, subzone, incarnation), weight, enabled, metadata)| {
                let mut instance = Instance::new(Address::new("10.0.0.1", port).expect("an address")).with_id(id);
                instance.weight = weight;
                instance.enabled = enabled;
                instance.cluster = cluster.into();
                instance.locality = Locality { region: region.into(), zone: zone.into(), subzone: subzone.into() };
                instance.incarnation = Incarnation::new(incarnation);
                instance.metadata = metadata.into_iter().map(|(key, value)| (key.into(), value)).collect();
                instance
            })
    }

    proptest! {
        #[test]
        fn json_keeps_everything(instance in any_instance()) {
            prop_assert_eq!(from_json(&to_json(&instance)), Ok(instance));
        }

        #[test]
        fn a_map_keeps_everything_as_text(instance in any_instance()) {
            let map = to_map(&instance, Native::default());
            let mut read = from_map(instance.address.clone(), map);
            for key in ["zone", "region"] {
                read.metadata.remove(key);
            }
            let mut wanted = instance;
            for value in wanted.metadata.values_mut() {
                *value = MetaValue::Text(value.to_text());
            }
            prop_assert_eq!(read, wanted);
        }

        #[test]
        fn no_document_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = from_json(&bytes);
        }
    }

    #[test]
    fn other_peoples_maps_are_read() {
        let address: Address = "10.0.0.1:80".parse().expect("an address");
        let map = [("zone", "a"), ("metaroute-weight", "heavy"), ("version", "2")];
        let read = from_map(address, map.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!((&*read.locality.zone, read.weight), ("a", 1.0));
        assert_eq!(read.metadata.get("metaroute-weight"), Some(&MetaValue::from("heavy")));
        assert_eq!(read.metadata.get("zone"), Some(&MetaValue::from("a")));
    }
}
