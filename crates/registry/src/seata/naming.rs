//! The driver for Seata's NamingServer.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::web::StatusCode;
use futures_util::future::join_all;
use metaroute_core::instance::{Incarnation, Instance, InstanceId};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::node::{self, Listing, Registered, VGROUP};
use super::session::{CALL, POLL_SLACK, Session};
use super::watching::{CALM, Failing, Place};
use crate::backend::{Params, bad};
use crate::carrier;
use crate::driver::{
    Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Lease, Limits, Renewal, Seen, SeenState, Snapshot,
};
use crate::holdings::{self, Holdings};
use crate::registry::ConnectError;
use crate::url::RegistryUrl;

const PORT: u16 = 8081;
/// How long a server that forgot everything is waited for at least: heartbeats of a busy machine are late.
const PATIENCE: Duration = Duration::from_secs(10);
/// A group of NamingServers.
pub(crate) struct NamingServer {
    session: Session,
    namespace: String,
    cluster: String,
    control_port: Option<u16>,
    heartbeat: Duration,
    poll: Duration,
    /// The server that is read from.
    current: AtomicUsize,
    /// What is registered by us.
    own: Holdings<Own>,
    failing: Failing,
    /// Tells the lives of one process apart, and those of several.
    process: u64,
    lives: AtomicU64,
    /// The highest term given.
    term: AtomicU64,
}

#[derive(Clone)]
struct Own {
    instance: Instance,
    incarnation: Incarnation,
    term: u64,
    /// Cluster, unit and body as sent.
    sent: Sent,
}

#[derive(Clone)]
struct Sent {
    cluster: String,
    unit: String,
    body: Value,
}

/// What a discovery found.
struct Found {
    server: usize,
    term: i64,
    /// `None` where the server knows no such vgroup.
    list: Option<(Snapshot, u64)>,
}

impl Found {
    fn place(&self) -> Place {
        Place { server: self.server, term: self.term, print: self.list.as_ref().map(|(_, print)| *print) }
    }
}

impl NamingServer {
    pub(crate) fn new(url: &RegistryUrl) -> Result<Self, ConnectError> {
        let mut params = Params::of(url);
        let (session, _) = Session::of(url, &mut params, PORT)?;
        let cluster = params.text("cluster").unwrap_or("default").to_owned();
        let heartbeat = params.duration("heartbeat", Duration::from_secs(5))?;
        let poll = Session::poll(&mut params)?;
        let control_port = params
            .text("control-port")
            .map(|text| match text.parse::<u16>() {
                Ok(port) if port > 0 => Ok(port),
                _ => Err(bad(format!("parameter `control-port={text}`: expected 1 to 65535"))),
            })
            .transpose()?;
        params.finish()?;
        let namespace = if url.path().is_empty() { "public" } else { url.path() }.to_owned();
        Ok(Self {
            session,
            namespace,
            cluster,
            control_port,
            heartbeat,
            poll,
            current: AtomicUsize::new(0),
            own: Holdings::default(),
            failing: Failing::default(),
            process: rand::random(),
            lives: AtomicU64::new(0),
            term: AtomicU64::new(0),
        })
    }

    /// What to send for an instance: the same as before where nothing changed, else with a higher term.
    fn prepare(&self, service: &str, instance: &Instance) -> Sent {
        let mut own = self.own.lock();
        let key = holdings::key(service, &instance.id);
        let old = own.get(&key);
        if let Some(old) = old.filter(|old| old.instance == *instance) {
            return old.sent.clone();
        }
        let term = self.next_term(old.map_or(0, |old| old.term));
        let incarnation = match old {
            _ if !instance.incarnation.as_str().is_empty() => instance.incarnation.clone(),
            Some(old) => old.incarnation.clone(),
            None => {
                let life = self.lives.fetch_add(1, Ordering::Relaxed);
                Incarnation::new(format!("{:016x}-{life}", self.process))
            }
        };
        let mut lived = instance.clone();
        lived.incarnation = incarnation.clone();
        let cluster = if instance.cluster.is_empty() { &*self.cluster } else { &*instance.cluster }.to_owned();
        let unit = format!("{service}@{}", instance.id);
        let about = Registered {
            namespace: &self.namespace,
            cluster: &cluster,
            unit: &unit,
            service,
            control_port: self.control_port,
            term,
        };
        let body = node::write(&lived, &about);
        let sent = Sent { cluster, unit, body };
        own.insert(key, Own { instance: instance.clone(), incarnation, term, sent: sent.clone() });
        sent
    }

    /// A term above another and all that were given before: of two changes with one term the second may go unnoticed.
    fn next_term(&self, above: u64) -> u64 {
        let next = |last: u64| (last + 1).max(above + 1).max(now_ms());
        let last = self.term.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        next(last.unwrap_or_else(|last| last))
    }

    /// The body of a deregistration, with a term of its own: a watcher between two polls would not notice one it knows.
    fn last_word(&self, mut sent: Sent) -> Sent {
        if let Some(body) = sent.body.as_object_mut() {
            let term = body.get("term").and_then(Value::as_u64).unwrap_or(0);
            body.insert("term".into(), self.next_term(term).into());
        }
        sent
    }

    /// Posts to all servers at once. One that took it is enough; the others are caught up with by heartbeats.
    async fn post_all(&self, what: &str, sent: &Sent) -> Result<(), DriverError> {
        let calls = (0..self.session.servers()).map(|server| self.post(server, what, sent));
        let mut first_error = None;
        let mut taken = false;
        for (server, answer) in join_all(calls).await.into_iter().enumerate() {
            match answer {
                Ok(()) => taken = true,
                Err(error) => {
                    let server = self.session.base(server);
                    tracing::debug!(server, call = what, %error, "one of the naming servers did not take it");
                    // Of several reasons the final one says more than a refused connection.
                    if first_error.as_ref().is_none_or(|old: &DriverError| old.kind() == ErrorKind::Unreachable) {
                        first_error = Some(error);
                    }
                }
            }
        }
        match first_error {
            Some(error) if !taken => Err(error),
            _ => Ok(()),
        }
    }

    async fn post(&self, server: usize, what: &str, sent: &Sent) -> Result<(), DriverError> {
        let query = [("namespace", &*self.namespace), ("clusterName", &*sent.cluster), ("unit", &*sent.unit)];
        let answer = self.session.json(server, |client, base| {
            client.post(format!("{base}/naming/v1/{what}")).query(&query).timeout(CALL).json(&sent.body)
        });
        answer.await.map(drop)
    }

    async fn discovery(&self, server: usize, service: &str) -> Result<Value, DriverError> {
        let query = [("vGroup", service), ("namespace", &*self.namespace)];
        let answer = self
            .session
            .json(server, |client, base| client.get(format!("{base}/naming/v1/discovery")).query(&query).timeout(CALL))
            .await?;
        if answer.get("clusterList").is_some_and(Value::is_array) {
            return Ok(answer);
        }
        let base = self.session.base(server);
        Err(DriverError::new(ErrorKind::Invalid, format!("{base} answered a discovery without `clusterList`")))
    }

    async fn look_at(&self, server: usize, service: &str) -> Result<Found, DriverError> {
        let answer = self.discovery(server, service).await?;
        let term = answer.get("term").and_then(Value::as_i64).unwrap_or(0);
        let mut listing = Listing::default();
        for_each_node(&answer, |cluster, unit, node| {
            let mut read = node::read(node);
            if let Ok(instance) = &mut read {
                instance.cluster = cluster.into();
                if node.get("role").and_then(Value::as_str).is_some_and(|role| role != "MEMBER") {
                    node::add_role(instance, node, node.get("term"));
                }
                if instance.incarnation.as_str().is_empty() {
                    instance.incarnation = Incarnation::new(unit);
                }
            }
            if belongs(node, service) {
                listing.add(node, read);
            }
        });
        let clusters = answer.get("clusterList").and_then(Value::as_array).map_or(0, Vec::len);
        let unknown = clusters == 0 && term == 0;
        Ok(Found { server, term, list: (!unknown).then(|| listing.finish()) })
    }

    /// Asks the server that is read from, then the others; keeps to the one that answered.
    async fn look(&self, first: usize, service: &str) -> Result<Found, DriverError> {
        let found = self.session.first_answer(first, |server| self.look_at(server, service)).await?;
        self.current.store(found.server, Ordering::Relaxed);
        Ok(found)
    }

    /// A long poll; whether the server announced a change.
    async fn poll(&self, place: Place, service: &str) -> Result<bool, DriverError> {
        let (term, millis) = (place.term.to_string(), self.poll.as_millis().to_string());
        let query = [("vGroup", service), ("clientTerm", &term), ("timeout", &millis)];
        let response = self
            .session
            .send(place.server, |client, base| {
                client.post(format!("{base}/naming/v1/watch")).query(&query).timeout(self.poll + POLL_SLACK)
            })
            .await?;
        Ok(response.status() != StatusCode::NOT_MODIFIED)
    }

    /// The next list that differs from a place; after a failure the next one at all, so that it is known to hold.
    async fn next(&self, service: &str, mut place: Place, failed: bool) -> Result<Found, DriverError> {
        let mut any = failed;
        let mut lost_since: Option<Instant> = None;
        loop {
            let mut announced = false;
            let found = if any && lost_since.is_none() {
                self.look(place.server, service).await?
            } else {
                match self.poll(place, service).await {
                    Ok(changed) => {
                        announced = changed;
                        self.look(place.server, service).await?
                    }
                    // Another server may still answer; with one there is nobody to ask.
                    Err(error) if self.session.servers() == 1 => return Err(error),
                    Err(_) => self.look(place.server + 1, service).await?,
                }
            };
            let Some((_, print)) = &found.list else {
                if place.print.is_none() {
                    if any {
                        return Ok(found);
                    }
                    place = found.place();
                    continue;
                }
                // It knew the vgroup and does not any more: it was restarted. Whoever registers there does so again
                // within a heartbeat or little more; until then others may know.
                if let Some(found) = self.elsewhere(found.server, service).await {
                    return Ok(found);
                }
                if lost_since.get_or_insert_with(Instant::now).elapsed() >= (3 * self.heartbeat).max(PATIENCE) {
                    return Ok(found);
                }
                any = true;
                place = Place { print: place.print, ..found.place() };
                tokio::time::sleep(CALM).await;
                continue;
            };
            if any || Some(*print) != place.print {
                return Ok(found);
            }
            // The term alone moved, or nothing did.
            if announced {
                tokio::time::sleep(CALM).await;
            }
            place = Place { print: place.print, ..found.place() };
        }
    }

    /// Another server that knows the vgroup.
    async fn elsewhere(&self, not: usize, service: &str) -> Option<Found> {
        for server in (0..self.session.servers()).filter(|server| *server != not) {
            if let Ok(found) = self.look_at(server, service).await
                && found.list.is_some()
            {
                self.current.store(server, Ordering::Relaxed);
                return Some(found);
            }
        }
        None
    }

    /// The nodes under an id at one server, wherever they were registered.
    async fn nodes(&self, server: usize, service: &str, id: &InstanceId) -> Result<Vec<Sent>, DriverError> {
        let answer = self.discovery(server, service).await?;
        let mut found = Vec::new();
        for_each_node(&answer, |cluster, unit, node| {
            if belongs(node, service) && node::read(node).is_ok_and(|instance| instance.id == *id) {
                found.push(Sent { cluster: cluster.to_owned(), unit: unit.to_owned(), body: node.clone() });
            }
        });
        Ok(found)
    }

    /// Takes away what another process registered: each server is asked what it has under the id.
    async fn withdraw_unseen(&self, service: &str, id: &InstanceId) -> Result<(), DriverError> {
        let answers = join_all((0..self.session.servers()).map(|server| async move {
            for sent in self.nodes(server, service, id).await? {
                self.post(server, "unregister", &self.last_word(sent)).await?;
            }
            Ok(())
        }))
        .await;
        if answers.iter().any(Result::is_ok) { Ok(()) } else { answers.into_iter().collect() }
    }

    /// Changes what another process keeps registered: the same node with a higher term. The owner's heartbeats have the old
    /// term, so they keep the node alive and do not change it back.
    async fn rewrite(&self, service: &str, instance: &Instance) -> Result<(), DriverError> {
        let answers = join_all((0..self.session.servers()).map(|server| async move {
            let nodes = self.nodes(server, service, &instance.id).await?;
            for node in &nodes {
                self.post(server, "register", &self.amended(service, instance, node)).await?;
            }
            Ok(!nodes.is_empty())
        }))
        .await;
        if answers.iter().any(|answer| matches!(answer, Ok(true))) {
            return Ok(());
        }
        answers.into_iter().collect::<Result<Vec<bool>, DriverError>>()?;
        Err(DriverError::new(ErrorKind::Invalid, format!("there is no instance `{}` of `{service}`", instance.id)))
    }

    /// A node with another instance's weight, health and metadata; what it is besides stays.
    fn amended(&self, service: &str, instance: &Instance, node: &Sent) -> Sent {
        let old = |key: &str| node.body.get(key).unwrap_or(&Value::Null);
        let mut changed = instance.clone();
        let in_metadata = |key: &str| old("metadata").get(key).is_some();
        for key in node::ADDED.iter().filter(|key| !in_metadata(key)) {
            // Put there by reading, where the node is no plain member.
            if old("role").as_str().is_some_and(|role| role != "MEMBER") {
                changed.metadata.remove(*key);
            }
        }
        if let Some(incarnation) = old("metadata").get(carrier::INCARNATION).and_then(Value::as_str) {
            changed.incarnation = Incarnation::new(incarnation);
        } else {
            changed.incarnation = Incarnation::default();
        }
        let about = Registered {
            namespace: &self.namespace,
            cluster: &node.cluster,
            unit: &node.unit,
            service,
            control_port: None,
            term: self.next_term(old("term").as_u64().unwrap_or(0)),
        };
        let mut body = node::write(&changed, &about);
        for key in ["control", "transaction", "internal", "group", "role", "version", "unit"] {
            if !old(key).is_null() {
                body[key] = old(key).clone();
            }
        }
        for key in [VGROUP, node::CLUSTER_TYPE] {
            if in_metadata(key) {
                body["metadata"][key] = old("metadata")[key].clone();
            }
        }
        Sent { cluster: node.cluster.clone(), unit: node.unit.clone(), body }
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Calls `with(cluster, unit, node)` for every node of a discovery.
fn for_each_node(answer: &Value, mut with: impl FnMut(&str, &str, &Value)) {
    let list = |value: &Value, keys: &[&str]| -> Vec<Value> {
        keys.iter().find_map(|key| value.get(key)?.as_array()).cloned().unwrap_or_default()
    };
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    for cluster in list(answer, &["clusterList"]) {
        let cluster_name = text(&cluster, "clusterName");
        for unit in list(&cluster, &["unitData"]) {
            let unit_name = text(&unit, "unitName");
            for node in list(&unit, &["namingInstanceList", "nodeList"]) {
                with(&cluster_name, &unit_name, &node);
            }
        }
    }
}

/// Whether a node serves a vgroup. One that says nothing about vgroups was listed for a reason.
fn belongs(node: &Value, service: &str) -> bool {
    let mapping: Option<&Map<String, Value>> = node.get("metadata").and_then(|m| m.get(VGROUP)?.as_object());
    mapping.is_none_or(|mapping| mapping.contains_key(service))
}

impl Driver for NamingServer {
    fn capabilities(&self) -> Capabilities {
        Capabilities { register: true, list: true, liveness: true, weight: true }
    }

    fn limits(&self) -> Limits {
        // As prefixes, which is what can be said here.
        Limits { reserved_prefixes: &[VGROUP, node::CLUSTER_TYPE, carrier::RESERVED], ..Limits::default() }
    }

    fn apply<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(async {
            self.post_all("register", &self.prepare(service, instance)).await?;
            Ok(Lease { renew_every: Some(self.heartbeat) })
        })
    }

    fn renew<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Renewal> {
        Box::pin(async {
            // A repeated registration is the heartbeat, and restores what a server lost.
            let sent = self.own.get(service, &instance.id).map(|own| own.sent);
            let Some(sent) = sent else { return Ok(Renewal::Lost) };
            self.post_all("register", &sent).await?;
            Ok(Renewal::Kept)
        })
    }

    fn withdraw<'a>(&'a self, service: &'a str, id: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(async move {
            match self.own.get(service, id).map(|own| own.sent) {
                Some(sent) => self.post_all("unregister", &self.last_word(sent)).await?,
                None => self.withdraw_unseen(service, id).await?,
            }
            self.own.remove(service, id);
            Ok(())
        })
    }

    fn amend<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, ()> {
        Box::pin(self.rewrite(service, instance))
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(async {
            let query = [("namespace", &*self.namespace)];
            let clusters = |server| {
                self.session.json(server, |client, base| {
                    client.get(format!("{base}/naming/v1/clusters")).query(&query).timeout(CALL)
                })
            };
            let clusters = self.session.first_answer(self.current.load(Ordering::Relaxed), clusters).await?;
            Ok(vgroups(&clusters))
        })
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(async move {
            let start = self.failing.start(service, after, self.session.servers());
            let found = match start.place {
                Some(place) => self.next(service, place, start.failed).await,
                None => self.look(self.current.load(Ordering::Relaxed), service).await,
            };
            let found = self.failing.note(service, start, found)?;
            let cursor = found.place().cursor();
            let state = match found.list {
                Some((snapshot, _)) => SeenState::Service(snapshot),
                None => SeenState::UnknownService,
            };
            Ok(Seen { cursor, state })
        })
    }
}

/// The vgroups of an answer of `/clusters`, sorted.
fn vgroups(clusters: &Value) -> Vec<Box<str>> {
    // Newer servers put results into `data`.
    let clusters = clusters.get("data").unwrap_or(clusters);
    let names: BTreeSet<Box<str>> = clusters
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|cluster| ["vGroupMapping", "vgroups"].into_iter().filter_map(|key| cluster.get(key)?.as_array()))
        .flatten()
        .filter_map(|name| name.as_str().map(Into::into))
        .collect();
    names.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_raises_the_term_and_a_heartbeat_does_not() {
        let url = "namingserver://127.0.0.1".parse().expect("an address");
        let driver = NamingServer::new(&url).expect("a driver");
        let term = |sent: &Sent| sent.body["term"].as_u64().expect("a term");
        let one = Instance::new("10.0.0.1:80".parse().expect("an address"));
        let first = driver.prepare("orders", &one);
        assert_eq!(driver.prepare("orders", &one).body, first.body);
        let second = driver.prepare("orders", &one.clone().with_meta("env", "prod"));
        assert!(term(&second) > term(&first));
        assert_eq!(second.unit, first.unit);
        assert_eq!(second.body["metadata"]["metaroute-incarnation"], first.body["metadata"]["metaroute-incarnation"]);
        assert!(term(&driver.last_word(second.clone())) > term(&second));
        // Whatever the clock does.
        let third = driver.prepare("orders", &one);
        assert!(term(&third) > term(&second));
    }

    #[test]
    fn vgroups_are_read_from_both_shapes() {
        let plain = json!([{"clusterName": "a", "vGroupMapping": ["y", "x"]}, {"vGroupMapping": ["x"]}]);
        assert_eq!(vgroups(&plain), [Box::<str>::from("x"), Box::<str>::from("y")]);
        assert_eq!(vgroups(&json!({"code": "200", "data": [{"vgroups": ["z"]}]})), [Box::<str>::from("z")]);
    }
}
