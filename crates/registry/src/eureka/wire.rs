//! Eureka's JSON: one instance, as the server writes it and as we register it.
//!
//! The server's codec has habits: a list of one may be an object, numbers may be strings, booleans are strings, an empty map
//! has a Java class in it. All of them are read.

use std::collections::BTreeMap;
use std::time::Duration;

use metaroute_core::instance::{Address, Incarnation, Instance, InstanceId, MetaValue};
use serde_json::{Map, Value, json};

use crate::carrier::{self, Native};
use crate::driver::{DriverError, ErrorKind};

/// Java's class name in a map that was empty; never a key of somebody's metadata.
pub(super) const CLASS: &str = "@class";
/// Seata's key for the weight.
const SEATA_WEIGHT: &str = "weight";

/// One instance of the registry, usable or not: also those that cannot be read count in the server's hash.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stored {
    /// `UP`, `DOWN`, …, as the server counts it.
    pub(super) status: Box<str>,
    /// Name of the service in the letters its owner wrote.
    pub(super) service: Box<str>,
    /// Or why it cannot be used.
    pub(super) instance: Result<Instance, String>,
    /// When its owner renewed it last, in milliseconds of the server's clock; 0 if unknown.
    pub(super) renewed_ms: u64,
    /// How long a renewal holds.
    pub(super) lease: Duration,
}

/// The list under a key that may hold one object instead, or nothing.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    match &value[key] {
        Value::Array(items) => items,
        Value::Null => &[],
        one => std::slice::from_ref(one),
    }
}

/// A number, or a string of digits.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.trim().parse().ok())
}

fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

/// `true` and `"true"`.
fn flag(value: &Value) -> bool {
    value.as_bool().unwrap_or(value.as_str() == Some("true"))
}

/// What identifies an instance inside its application: the id, or the host name where old clients have none.
pub(super) fn id(instance: &Value) -> Option<&str> {
    text(&instance["instanceId"]).or_else(|| text(&instance["hostName"]))
}

/// When the life of a record began that one of ours wrote and gave no incarnation of its own.
pub(super) fn born_ms(record: &Value) -> Option<u64> {
    text(&record["metadata"][carrier::INCARNATION])?.parse().ok()
}

/// Checks what becomes parts of a path: servers of this kind turn away what has a slash in it, encoded or not, with a page
/// about bad requests.
///
/// # Errors
/// Which name it is, and what is wrong with it.
pub(super) fn check_names(service: &str, id: &str) -> Result<(), DriverError> {
    let invalid = |message: String| Err(DriverError::new(ErrorKind::Invalid, message));
    if service.is_empty() {
        return invalid("the name of a service cannot be empty in Eureka".into());
    }
    for (what, name) in [("service", service), ("id", id)] {
        if let Some(slash) = name.chars().find(|c| matches!(c, '/' | '\\')) {
            return invalid(format!("{what} `{name}`: Eureka's servers do not accept `{slash}` in it"));
        }
    }
    Ok(())
}

/// The id in Eureka of an instance of ours: the custom of everybody, `host:app:port`, where the id is the address.
pub(super) fn eureka_id(service: &str, id: &InstanceId) -> String {
    match id.as_str().parse::<Address>() {
        Ok(address) if address.to_string() == id.as_str() => {
            format!("{}:{service}:{}", address.host(), address.port())
        }
        _ => id.to_string(),
    }
}

/// The id of an instance that is no other life of ours, in the record under our id in Eureka: an id of ours may be made like those
/// that are put together from an address.
pub(super) fn another(service: &str, record: &Value, ours: &Instance, seata: bool) -> Option<InstanceId> {
    let theirs = read(&service.to_uppercase(), record, seata).instance.ok()?;
    let said = text(&record["metadata"][carrier::ID]).is_some() || theirs.id.as_str() == theirs.address.to_string();
    (said && theirs.id != ours.id && theirs.address != ours.address).then_some(theirs.id)
}

/// Reads one instance of application `app`.
pub(super) fn read(app: &str, value: &Value, seata: bool) -> Stored {
    let status: Box<str> = text(&value["status"]).unwrap_or("UNKNOWN").into();
    let lease = &value["leaseInfo"];
    // The custom is that the address by which a service is asked for is its name.
    let vip = text(&value["vipAddress"]).and_then(|vips| vips.split(',').next()).map(str::trim);
    let service = match vip {
        Some(vip) if vip.to_uppercase() == app => vip.into(),
        _ => app.to_lowercase().into(),
    };
    Stored {
        service,
        instance: read_instance(app, value, &status, seata),
        status,
        renewed_ms: number(&lease["lastRenewalTimestamp"]).unwrap_or_default(),
        lease: Duration::from_secs(number(&lease["durationInSecs"]).unwrap_or(90)),
    }
}

fn read_instance(app: &str, value: &Value, status: &str, seata: bool) -> Result<Instance, String> {
    let theirs = id(value).ok_or("it has neither an id nor a host name")?;
    let (host, ip) = (text(&value["hostName"]), text(&value["ipAddr"]));
    let host = if seata { ip.or(host) } else { host.or(ip) }.ok_or("it has no address")?;
    let port = |key: &str| {
        let port = &value[key];
        flag(&port["@enabled"]).then(|| number(&port["$"])).flatten()
    };
    let port = port("port").or_else(|| port("securePort")).ok_or("neither of its ports is enabled")?;
    let port = u16::try_from(port).map_err(|_| format!("port {port} is not between 1 and 65535"))?;
    let address = Address::new(host, port).map_err(|error| error.to_string())?;

    let metadata = value["metadata"].as_object().into_iter().flatten();
    let metadata = metadata.filter(|(key, value)| *key != CLASS && !value.is_null()).map(|(key, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (key.clone(), text)
    });
    let mut instance = carrier::from_map(address, metadata);
    if instance.id.as_str() == instance.address.to_string() && !made_of_address(theirs, app, &instance.address) {
        instance.id = InstanceId::new(theirs);
    }
    if instance.incarnation.as_str().is_empty()
        && let Some(born) = number(&value["leaseInfo"]["registrationTimestamp"]).filter(|born| *born > 0)
    {
        instance.incarnation = Incarnation::new(born.to_string());
    }
    if seata {
        if instance.cluster.is_empty() {
            instance.cluster = app.to_lowercase().into();
        }
        if let Some(MetaValue::Text(weight)) = instance.metadata.get(SEATA_WEIGHT)
            && let Ok(weight) = weight.trim().parse::<f64>()
        {
            instance.metadata.remove(SEATA_WEIGHT);
            instance.weight = weight;
        }
    }
    match status {
        "UP" => {}
        // An operator's word: nobody may be sent there, whatever its health.
        "OUT_OF_SERVICE" => instance.enabled = false,
        _ => instance.healthy = false,
    }
    match instance.defect() {
        Some(defect) => Err(defect.to_string()),
        None => Ok(instance),
    }
}

/// `host:app:port`, in any case.
fn made_of_address(id: &str, app: &str, address: &Address) -> bool {
    id.to_uppercase() == format!("{}:{app}:{}", address.host(), address.port()).to_uppercase()
}

/// What a registration says beside the instance.
pub(super) struct Terms {
    pub(super) ttl: Duration,
    /// Larger than at every registration before.
    pub(super) dirty_ms: u64,
    /// One life of the owner.
    pub(super) incarnation: String,
    pub(super) seata: bool,
}

/// The metadata of an instance in Eureka.
pub(super) fn metadata(service: &str, instance: &Instance, seata: bool) -> BTreeMap<String, String> {
    // In Seata's layout the application is the cluster, and the weight is always said.
    let cluster = seata && instance.cluster.eq_ignore_ascii_case(service);
    let mut map = carrier::to_map(instance, Native { weight: seata, cluster, ..Native::default() });
    if seata {
        map.insert(SEATA_WEIGHT.into(), instance.weight.to_string());
    }
    map
}

/// The status an instance is registered with.
pub(super) fn status(instance: &Instance) -> &'static str {
    match (instance.enabled, instance.healthy) {
        (false, _) => "OUT_OF_SERVICE",
        (true, true) => "UP",
        (true, false) => "DOWN",
    }
}

/// The body of a registration.
pub(super) fn registration(service: &str, instance: &Instance, terms: &Terms) -> Value {
    let mut metadata = metadata(service, instance, terms.seata);
    if instance.incarnation.as_str().is_empty() {
        metadata.insert(carrier::INCARNATION.into(), terms.incarnation.clone());
    }
    let metadata: Map<String, Value> = metadata.into_iter().map(|(key, value)| (key, value.into())).collect();
    // Whole seconds, rounded up: a lease may be longer than asked, not shorter.
    let seconds = terms.ttl.as_millis().div_ceil(1000).max(1);
    json!({ "instance": {
        "instanceId": eureka_id(service, &instance.id),
        "app": service.to_uppercase(),
        "hostName": instance.address.host(),
        "ipAddr": instance.address.host(),
        "vipAddress": service,
        "secureVipAddress": service,
        "status": status(instance),
        "overriddenstatus": "UNKNOWN",
        "port": { "$": instance.address.port(), "@enabled": "true" },
        "securePort": { "$": 443, "@enabled": "false" },
        "countryId": 1,
        "dataCenterInfo": { "@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn" },
        "leaseInfo": { "renewalIntervalInSecs": (seconds / 3).max(1), "durationInSecs": seconds },
        "metadata": metadata,
        "isCoordinatingDiscoveryServer": "false",
        // Without them a later registration fails inside the server.
        "lastUpdatedTimestamp": terms.dirty_ms.to_string(),
        "lastDirtyTimestamp": terms.dirty_ms.to_string(),
        "actionType": "ADDED",
    }})
}

/// `lastDirtyTimestamp` of an instance.
pub(super) fn dirty_ms(instance: &Value) -> u64 {
    number(&instance["lastDirtyTimestamp"]).unwrap_or_default()
}
