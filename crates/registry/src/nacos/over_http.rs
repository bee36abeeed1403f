//! Nacos over HTTP: for servers and networks without gRPC.
//!
//! Ephemeral instances live by heartbeats, lists are polled. The client interface of version 3 is used where the server
//! has it, else that of version 1; version 2 answers 410 by default in 3.1 and is not needed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metaroute_core::instance::{Instance, InstanceId};
use serde_json::{Value, json};

use super::config::{Config, Side};
use super::connection::lock;
use super::instances::{self, Wired};
use super::{names, wire};
use crate::driver::{
    Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Lease, Limits, Renewal, Seen, SeenState, Snapshot,
};
use crate::holdings::Holdings;
use crate::http;
use crate::web::{Method, StatusCode};

/// Without a heartbeat for this long an instance is unhealthy, and gone after twice that: the servers' own values.
pub(super) const TTL: Duration = Duration::from_secs(15);
/// How often a followed service is asked for.
pub(super) const POLL: Duration = Duration::from_secs(5);
/// Services per page of a list, and most pages.
const PAGE: usize = 500;
const PAGES_MAX: usize = 1000;

/// The metadata keys that set the times of heartbeats.
const BEAT_KEYS: [&str; 3] =
    ["preserved.heart.beat.interval", "preserved.heart.beat.timeout", "preserved.ip.delete.timeout"];

/// The codes of heartbeats that found nothing: of version 3 and of version 1.
const LOST: [i64; 2] = [21003, 20404];
/// The code of a heartbeat of version 1 that was taken.
const BEAT_TAKEN: i64 = 10200;

/// A Nacos cluster, over HTTP.
pub(super) struct NacosHttp {
    config: Config,
    side: Arc<Side>,
    /// The time without a heartbeat, where the address says another one than the servers'.
    ttl: Option<Duration>,
    poll: Duration,
    /// 0 while it is not known, else the version of the client interface.
    version: AtomicU8,
    versions: AtomicU64,
    ours: Holdings<Wired>,
    seen: Mutex<HashMap<Box<str>, (u64, Snapshot)>>,
}

impl NacosHttp {
    pub(super) fn new(config: Config, side: Arc<Side>, ttl: Option<Duration>, poll: Duration) -> Self {
        Self {
            config,
            side,
            ttl,
            poll,
            version: AtomicU8::new(0),
            versions: AtomicU64::new(0),
            ours: Holdings::default(),
            seen: Mutex::default(),
        }
    }

    fn beat_every(&self) -> Duration {
        self.ttl.unwrap_or(TTL) / 3
    }

    /// What the server has to be told about heartbeats in the metadata.
    fn beat_metadata(&self) -> Vec<(&'static str, String)> {
        let Some(ttl) = self.ttl.filter(|_| self.config.ephemeral) else { return Vec::new() };
        let times = [self.beat_every(), ttl, ttl * 2];
        BEAT_KEYS.into_iter().zip(times.map(|time| time.as_millis().to_string())).collect()
    }

    /// Sends something with the token there is, and once more with another one when it was refused.
    async fn call(&self, method: Method, path: &str, pairs: &[(&str, String)]) -> Result<Said, DriverError> {
        let path = format!("{}{path}", self.config.context);
        let form = method == Method::POST || method == Method::PUT;
        let mut token = match &self.side.login {
            Some(login) => Some(login.token(&self.side.http).await?),
            None => None,
        };
        for again in [true, false] {
            let answer = self.side.http.send(method.clone(), &path, http::CALL_TIMEOUT, |mut request| {
                if let Some(token) = &token {
                    request = request.header("accessToken", token).header("Authorization", format!("Bearer {token}"));
                }
                if form { request.form(pairs) } else { request.query(pairs) }
            });
            let answer = answer.await?;
            let refused = matches!(answer.status(), StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED);
            if again
                && refused
                && let (Some(login), Some(old)) = (&self.side.login, &token)
            {
                token = Some(login.another(&self.side.http, old).await?);
                continue;
            }
            let (status, server) = (answer.status(), answer.server().to_owned());
            let body = answer.text().await.map_err(|error| http::unreachable(&server, error))?;
            return Ok(Said { server, status, body });
        }
        Err(DriverError::new(ErrorKind::Denied, "the login was refused twice"))
    }

    /// Sets what operators set: weight, on or off, and metadata of an instance that is there, whoever registered it.
    async fn overlay(&self, service: &str, wired: &Wired) -> Result<(), DriverError> {
        let mut said = self.call(Method::PUT, "/v3/admin/ns/instance", &self.instance_pairs(service, wired, 3)).await?;
        if said.is_absent() {
            said = self.call(Method::PUT, "/v1/ns/instance", &self.instance_pairs(service, wired, 1)).await?;
        }
        if said.is_absent() {
            let message = format!("{} lets clients change no instance of others", said.server);
            return Err(DriverError::new(ErrorKind::Unsupported, message));
        }
        said.taken()
    }

    /// Calls the interface that the server has: finds out which when that is not known, or no longer true.
    async fn client(
        &self,
        method: Method,
        paths: [&str; 2],
        pairs: impl Fn(u8) -> Vec<(&'static str, String)>,
    ) -> Result<(u8, Said), DriverError> {
        let known = self.version.load(Ordering::Relaxed);
        let order: &[u8] = if known == 1 { &[1, 3] } else { &[3, 1] };
        let mut last = None;
        for version in order {
            let path = paths[usize::from(*version == 3)];
            let said = self.call(method.clone(), path, &pairs(*version)).await?;
            if !said.is_absent() {
                self.version.store(*version, Ordering::Relaxed);
                return Ok((*version, said));
            }
            last = Some(said);
        }
        Err(last.map_or_else(
            || DriverError::new(ErrorKind::Unreachable, "the address names no server"),
            |said| said.error(),
        ))
    }

    fn service_pairs(&self, service: &str) -> Vec<(&'static str, String)> {
        vec![
            ("namespaceId", self.config.namespace.clone()),
            ("groupName", self.config.group.clone()),
            ("serviceName", service.to_owned()),
        ]
    }

    fn place_pairs(&self, service: &str, wired: &Wired, version: u8) -> Vec<(&'static str, String)> {
        let mut pairs = self.service_pairs(service);
        if version == 1 {
            // Version 1 reads the group from the name.
            pairs[2].1 = format!("{}@@{service}", self.config.group);
        }
        pairs.extend([
            ("ip", wired.ip.clone()),
            ("port", wired.port.to_string()),
            ("clusterName", wired.cluster.clone()),
            ("ephemeral", self.config.ephemeral.to_string()),
        ]);
        pairs
    }

    fn instance_pairs(&self, service: &str, wired: &Wired, version: u8) -> Vec<(&'static str, String)> {
        let mut pairs = self.place_pairs(service, wired, version);
        pairs.extend([
            ("weight", wired.weight.to_string()),
            ("enabled", wired.enabled.to_string()),
            ("healthy", "true".to_owned()),
            // Always JSON: `,` and `=` break the other form.
            ("metadata", json!(wired.metadata).to_string()),
        ]);
        pairs
    }

    async fn fetch(&self, service: &str) -> Result<Snapshot, DriverError> {
        let paths = ["/v1/ns/instance/list", "/v3/client/ns/instance/list"];
        let (version, said) = self
            .client(Method::GET, paths, |version| {
                let mut pairs = self.service_pairs(service);
                if version == 1 {
                    pairs[2].1 = format!("{}@@{service}", self.config.group);
                }
                pairs.push(("healthyOnly", "false".to_owned()));
                pairs
            })
            .await?;
        let answer = said.json()?;
        let unusable = |why: String| DriverError::new(ErrorKind::Invalid, format!("{}: {why}", said.server));
        if version == 1 {
            return Ok(instances::read_list(&answer, &self.config.filter).map_err(unusable)?.snapshot);
        }
        // Version 3 gives the hosts alone, without the flag of the protection threshold.
        match said.data(&answer)? {
            Value::Array(hosts) => Ok(instances::read_hosts(hosts, false, &self.config.filter)),
            Value::Null => Ok(Snapshot::default()),
            _ => Err(unusable("the list of instances is no list".into())),
        }
    }

    async fn deregister(&self, service: &str, wired: &Wired) -> Result<(), DriverError> {
        let paths = ["/v1/ns/instance", "/v3/client/ns/instance"];
        let (_, said) = self.client(Method::DELETE, paths, |version| self.place_pairs(service, wired, version)).await?;
        said.taken()
    }
}

impl Driver for NacosHttp {
    fn capabilities(&self) -> Capabilities {
        Capabilities { register: true, list: true, liveness: self.config.ephemeral, weight: true }
    }

    fn limits(&self) -> Limits {
        let ours: usize = self.beat_metadata().iter().map(|(key, value)| key.len() + value.len()).sum();
        let mut limits = self.config.limits();
        limits.total_chars = limits.total_chars.map(|total| total.saturating_sub(ours));
        limits
    }

    fn apply<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(async move {
            names::service(service)?;
            let config = &self.config;
            let life = self.ours.get(service, &instance.id).and_then(|wired| wired.life().map(str::to_owned));
            let life = life.unwrap_or_else(super::born);
            let limit = self.limits().total_chars.unwrap_or(config.metadata_limit);
            let mut wired = Wired::of(instance, config.home(), &life, limit)?;
            wired.metadata.extend(self.beat_metadata().into_iter().map(|(key, value)| (key.to_owned(), value)));
            let paths = ["/v1/ns/instance", "/v3/client/ns/instance"];
            let (_, said) =
                self.client(Method::POST, paths, |version| self.instance_pairs(service, &wired, version)).await?;
            said.taken()?;
            self.ours.insert(service, &instance.id, wired);
            Ok(Lease { renew_every: config.ephemeral.then(|| self.beat_every()) })
        })
    }

    fn renew<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Renewal> {
        Box::pin(async move {
            let Some(wired) = self.ours.get(service, &instance.id) else { return Ok(Renewal::Lost) };
            let known = self.version.load(Ordering::Relaxed);
            let said = if known == 1 {
                let mut pairs = self.place_pairs(service, &wired, 1);
                // With everything in it: some servers make an instance of a heartbeat for one they lost.
                let beat = json!({
                    "serviceName": format!("{}@@{service}", self.config.group), "ip": wired.ip, "port": wired.port,
                    "cluster": wired.cluster, "weight": wired.weight, "metadata": wired.metadata, "scheduled": true,
                    "period": self.beat_every().as_millis() as u64,
                });
                pairs.push(("beat", beat.to_string()));
                self.call(Method::PUT, "/v1/ns/instance/beat", &pairs).await?
            } else {
                let mut pairs = self.instance_pairs(service, &wired, 3);
                pairs.push(("heartBeat", "true".to_owned()));
                self.call(Method::POST, "/v3/client/ns/instance", &pairs).await?
            };
            if said.is_absent() {
                // Another server, with another interface.
                return Ok(Renewal::Lost);
            }
            let code = said.json().ok().and_then(|answer| answer.get("code").and_then(instances::number));
            match code.map(|code| code as i64) {
                Some(code) if LOST.contains(&code) => Ok(Renewal::Lost),
                Some(0 | BEAT_TAKEN) if said.status.is_success() => Ok(Renewal::Kept),
                _ => said.taken().map(|()| Renewal::Kept),
            }
        })
    }

    fn withdraw<'a>(&'a self, service: &'a str, id: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(async move {
            names::service(service)?;
            let wired = match self.ours.get(service, id) {
                Some(wired) => wired,
                None => {
                    let list = self.fetch(service).await?;
                    let Some(instance) = list.instances.iter().find(|instance| instance.id == *id) else {
                        return Ok(());
                    };
                    Wired::of(instance, self.config.home(), "", usize::MAX)?
                }
            };
            self.deregister(service, &wired).await?;
            self.ours.remove(service, id);
            Ok(())
        })
    }

    fn amend<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, ()> {
        Box::pin(async move {
            names::service(service)?;
            let config = &self.config;
            let wired = Wired::of(instance, config.home(), "", config.metadata_limit)?;
            self.overlay(service, &wired).await
        })
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(async move {
            let mut services: Vec<Box<str>> = Vec::new();
            let mut seen = 0;
            for page in 1..=PAGES_MAX {
                let pairs = [
                    ("namespaceId", self.config.namespace.clone()),
                    ("groupName", self.config.group.clone()),
                    ("pageNo", page.to_string()),
                    ("pageSize", PAGE.to_string()),
                ];
                let said = self.call(Method::GET, "/v1/ns/service/list", &pairs).await?;
                if said.is_absent() {
                    let message = format!("{} lists no services to clients over HTTP", said.server);
                    return Err(DriverError::new(ErrorKind::Unsupported, message));
                }
                let answer = said.json()?;
                let names = answer.get("doms").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                seen += names.len();
                let names = names.iter().filter_map(Value::as_str);
                services.extend(names.map(|name| name.split_once("@@").map_or(name, |(_, name)| name).into()));
                let count = answer.get("count").and_then(instances::number).unwrap_or_default();
                if seen as f64 >= count {
                    break;
                }
            }
            services.sort();
            services.dedup();
            Ok(services)
        })
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(async move {
            names::service(service)?;
            let known = |seen: &HashMap<Box<str>, (u64, Snapshot)>| seen.get(service).map(|(version, _)| *version);
            let current = known(&lock(&self.seen));
            // What we gave before is what the wait is for; anything else is answered at once.
            if after.is_some() && after.map(Cursor::as_str) == current.map(|version| version.to_string()).as_deref() {
                loop {
                    tokio::time::sleep(self.poll).await;
                    let snapshot = self.fetch(service).await?;
                    let mut seen = lock(&self.seen);
                    let same = seen.get(service).is_some_and(|(_, old)| *old == snapshot);
                    if !same || known(&seen) != current {
                        return Ok(self.note(&mut seen, service, snapshot));
                    }
                }
            }
            let snapshot = self.fetch(service).await?;
            Ok(self.note(&mut lock(&self.seen), service, snapshot))
        })
    }
}

impl NacosHttp {
    fn note(&self, seen: &mut HashMap<Box<str>, (u64, Snapshot)>, service: &str, snapshot: Snapshot) -> Seen {
        let version = match seen.get(service) {
            Some((version, old)) if *old == snapshot => *version,
            _ => self.versions.fetch_add(1, Ordering::Relaxed) + 1,
        };
        seen.insert(service.into(), (version, snapshot.clone()));
        Seen { cursor: Cursor::new(version.to_string()), state: SeenState::Service(snapshot) }
    }
}

/// What a server said.
struct Said {
    server: String,
    status: StatusCode,
    body: String,
}

impl Said {
    /// Whether the server does not have that interface at all.
    fn is_absent(&self) -> bool {
        // A resource that is not there is told in an envelope.
        matches!(self.status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::GONE)
            && !self.json().is_ok_and(|answer| answer.get("code").and_then(instances::number) == Some(20004.0))
    }

    fn json(&self) -> Result<Value, DriverError> {
        if !self.status.is_success() && !self.body.trim_start().starts_with('{') {
            return Err(self.error());
        }
        serde_json::from_str(&self.body)
            .map_err(|error| DriverError::new(ErrorKind::Invalid, format!("{}: not JSON", self.server)).because(error))
    }

    /// The data of an envelope.
    fn data<'v>(&self, answer: &'v Value) -> Result<&'v Value, DriverError> {
        match answer.get("code").and_then(instances::number) {
            Some(0.0) if self.status.is_success() => Ok(answer.get("data").unwrap_or(&Value::Null)),
            _ => Err(self.error()),
        }
    }

    /// That a change was taken: `ok`, or an envelope with code 0.
    fn taken(&self) -> Result<(), DriverError> {
        if self.status.is_success() {
            match serde_json::from_str::<Value>(&self.body) {
                Ok(Value::Object(answer)) => match answer.get("code").and_then(instances::number) {
                    None | Some(0.0 | 200.0 | 10200.0) => return Ok(()),
                    Some(_) => {}
                },
                _ if self.body.trim().trim_matches('"') == "ok" => return Ok(()),
                _ => {}
            }
        }
        Err(self.error())
    }

    /// What it means when it is no success. Parameter errors are plain text, others an envelope.
    fn error(&self) -> DriverError {
        let answer: Value = serde_json::from_str(&self.body).unwrap_or_default();
        let code = answer.get("code").and_then(instances::number).map(|code| code as i64);
        let message = match answer.get("message").and_then(Value::as_str) {
            Some(message) => match answer.get("data").and_then(Value::as_str) {
                Some(data) => format!("{message}: {data}"),
                None => message.to_owned(),
            },
            None => self.body.clone(),
        };
        let message = wire::printable(&message);
        let kind = match self.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::Denied,
            StatusCode::TOO_MANY_REQUESTS => ErrorKind::Unreachable,
            status if status.is_server_error() => ErrorKind::Unreachable,
            status if status.is_success() => match code {
                Some(code) if wire::code::DENIED.contains(&code) => ErrorKind::Denied,
                Some(30000..) => ErrorKind::Unreachable,
                _ => ErrorKind::Invalid,
            },
            _ => ErrorKind::Invalid,
        };
        let code = code.map(|code| format!(" (code {code})")).unwrap_or_default();
        DriverError::new(kind, format!("{} answered {}{code}: {message}", self.server, self.status))
    }
}
