//! Consul: registering at an agent, discovering through its health endpoint.
//!
//! ```text
//! consul://127.0.0.1:8500                                       an agent; several, separated by commas, are tried in turn
//! consul://agent?token=env:CONSUL_HTTP_TOKEN&tls=true&ca=ca.pem&dc=dc2
//! consul://agent?layout=seata                                   the layout of Seata's own Consul registry
//! ```
//!
//! | parameter | meaning | default |
//! |---|---|---|
//! | `token` | ACL token; better `env:NAME` or `file:PATH` than written out | none |
//! | `dc`, `ns`, `partition` | datacenter; namespace and partition (Consul Enterprise, any other refuses them) | the agent's |
//! | `ttl` | how long a registration passes without a beat; a beat is sent every third of it | `15s` |
//! | `deregister-after` | how long after that Consul forgets the instance (Consul's least is one minute) | `1m` |
//! | `tags` | tags for what is registered here, separated by commas | none |
//! | `consistency` | of reading: `default` (the leader answers), `stale` (any server, also one that has lost its leader), `consistent` (the leader, after asking the others) | `default` |
//! | `wait` | how long a blocking query may block; also how soon a dead connection is noticed | `10s` |
//! | `layout` | `metaroute` or `seata` | `metaroute` |
//! | `tls`, `ca`, `cert`, `key` | HTTPS, the authority to trust, a client certificate | off |
//!
//! **Layout.** `PUT /v1/agent/service/register?replace-existing-checks=true` with `Name` = the service, `ID` =
//! `<service>-<instance id>`, `Address`, `Port`, `Tags`, `Meta`, `Weights` and one TTL check `service:<ID>`. Ids are unique per
//! agent, not per service; so `-` and `%` of the instance id are written `%2D` and `%25`: what follows the last `-` is the
//! instance's, and `a-b` with `c` is another id than `a` with `b-c`. An id under which the agent has an instance of another
//! service is refused, since Consul would replace that one silently. Metadata is `Meta` as text; a list under the key `tags` is
//! `Tags`. An integer weight from 1 to 65535 is `Weights.Passing`; Consul refuses a weight of 0 there, so 0, fractions and larger
//! ones ride in `Meta["metaroute-weight"]`, with the nearest possible `Passing` beside it for other readers. Zone and region are
//! `Meta.zone` and `Meta.region`, which Spring Cloud LoadBalancer obeys. What else has no place is under `metaroute-…`.
//! With `layout=seata` the service is Seata's cluster and every registration has the tag `services`, which Seata's clients filter
//! by. Seata itself registers a TCP check that the *agent* runs; we keep the TTL check, since an agent that cannot reach the
//! server kills such a registration, and readers only look at the health.
//!
//! **Health.** The worst of the node's and the service's checks: a critical one makes an instance unhealthy (it stays in the
//! list), a warning leaves it healthy with the weight `Weights.Warning`. Maintenance mode of service or node switches it off.
//!
//! **Liveness.** When the owner dies the TTL check turns critical after `ttl`; the entry disappears `deregister-after` later.
//! A beat answered with 404 (an agent that lost its state) registers again.
//!
//! **Limits**, checked before anything is sent: 64 pairs, keys of `A-Z a-z 0-9 _ -` up to 128 bytes, values up to 512 bytes,
//! `consul-` reserved. Keys with dots are refused by Consul and so by us.
//!
//! **Lossy.** Kinds of metadata values (everything becomes text) and `healthy=false` on registering: that is a critical check, so
//! Consul forgets the instance after `deregister-after` and it is registered anew.
//!
//! **Watching** is one blocking query per service: at most ten in quick succession, then ten a second; an index that went back
//! starts over. Queries are sorted (`near=_agent`), because those are answered by a server: the copies that agents keep since
//! Consul 1.10 can miss a change for good that was made as they began. Consul has no empty services: one that nobody registered
//! in is unknown, one that a watcher has seen and whose last instance went is empty. A list that is empty because a token (or the
//! lack of one) hides everything is an error, not an empty list. An agent accepts 200 connections from one address; beyond 100
//! watches they take turns of a second.
//!
//! **Many.** An agent takes registrations and deregistrations one after the other, each about a millisecond of its own: a
//! thousand take a second or two, and a good part of a minute on a machine without a processor to spare.
//!
//! Proven against Consul 1.14.11 (the last under the MPL), with access control and with TLS and client certificates, Spring
//! Cloud Consul and py-consul; several servers, namespaces and partitions are unproven.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::web::{Method, RequestBuilder, Response, StatusCode};
use metaroute_core::instance::{Instance, InstanceId};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::backend::{Params, bad};
use crate::carrier;
use crate::driver::{
    Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Lease, Limits, Renewal, Seen, SeenState,
};
use crate::http::{CALL_TIMEOUT, Http, refusal, segment, unreachable};
use crate::registry::ConnectError;
use crate::tls::Tls;
use crate::url::RegistryUrl;

mod entry;

/// The tag that Seata's clients filter by.
const SEATA_TAG: &str = "services";
/// Watches that block at the same time. With the other calls, idle connections and those that just end it must stay below
/// the 200 connections that an agent accepts from one address.
const BLOCKING_MAX: usize = 100;
/// Other calls at the same time.
const CALLS_MAX: usize = 24;
/// How long a query blocks while more than [`BLOCKING_MAX`] take turns.
const CROWDED_WAIT: Duration = Duration::from_secs(1);
/// Beyond the announced wait (and the sixteenth that Consul adds) an answer is overdue.
const WAIT_SLACK: Duration = Duration::from_secs(3);
/// Blocking queries of one service: so many at once, then one in this time.
const BURST: f64 = 10.0;
const REFILL: Duration = Duration::from_millis(100);
/// Services whose pace is remembered before idle ones are forgotten.
const PACES_KEPT: usize = 4096;

/// How long it is remembered which ids are taken.
const IDS_KEPT: Duration = Duration::from_secs(1);

/// How registrations look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Metaroute,
    Seata,
}

/// Consul through one of its agents.
pub(crate) struct Consul {
    http: Http,
    token: Option<String>,
    /// `dc`, `ns` and `partition`, where given.
    scope: Vec<(&'static str, String)>,
    layout: Layout,
    /// `stale` or `consistent`, where it is not the usual.
    consistency: Option<&'static str>,
    tags: Vec<String>,
    ttl: Duration,
    deregister_after: Duration,
    wait: Duration,
    calls: Semaphore,
    blocking: Semaphore,
    watching: AtomicUsize,
    paces: Mutex<HashMap<Box<str>, Pace>>,
    /// Ids in Consul that were registered through this connection.
    own: Mutex<HashSet<String>>,
    /// Ids in Consul that the agent has.
    ids: tokio::sync::Mutex<Option<Ids>>,
}

/// What an agent has under which id, as of a moment ago.
struct Ids {
    at: Instant,
    services: HashMap<String, Local>,
}

#[derive(serde::Deserialize)]
struct Local {
    #[serde(rename = "Service")]
    service: Box<str>,
}

/// The pace of one service's queries, and whether the last one broke.
struct Pace {
    tokens: f64,
    at: Instant,
    broken: bool,
}

/// A place in the history of one service: Consul's index, and whether the service was known there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    index: u64,
    known: bool,
}

impl Place {
    const START: Self = Self { index: 0, known: false };

    fn of(cursor: &Cursor) -> Option<Self> {
        let (index, known) = match cursor.as_str().strip_suffix("+known") {
            Some(index) => (index, true),
            None => (cursor.as_str(), false),
        };
        Some(Self { index: index.parse().ok()?, known })
    }

    fn cursor(self) -> Cursor {
        Cursor::new(format!("{}{}", self.index, if self.known { "+known" } else { "" }))
    }
}

impl Consul {
    pub(crate) fn new(url: &RegistryUrl) -> Result<Self, ConnectError> {
        let mut params = Params::of(url);
        let tls = Tls::of(&mut params, url.tls())?;
        let token = params.secret("token")?;
        let scope = ["dc", "ns", "partition"]
            .into_iter()
            .filter_map(|name| Some((name, params.text(name)?.to_owned())))
            .collect();
        let layout = match params.text("layout") {
            None | Some("metaroute") => Layout::Metaroute,
            Some("seata") => Layout::Seata,
            Some(other) => return Err(bad(format!("parameter `layout={other}`: expected `metaroute` or `seata`"))),
        };
        let consistency = match params.text("consistency") {
            None | Some("default") => None,
            Some("stale") => Some("stale"),
            Some("consistent") => Some("consistent"),
            Some(other) => {
                let expected = "expected `default`, `stale` or `consistent`";
                return Err(bad(format!("parameter `consistency={other}`: {expected}")));
            }
        };
        let tags = params.text("tags").unwrap_or_default().split(',').map(str::trim);
        let tags = tags.filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
        let ttl = params.duration("ttl", Duration::from_secs(15))?;
        let deregister_after = params.duration("deregister-after", Duration::from_secs(60))?;
        let wait = params.duration("wait", Duration::from_secs(10))?;
        params.finish()?;
        if url.user().is_some() || url.password().is_some() {
            return Err(bad("`consul:` takes no user and password; write `?token=env:NAME`"));
        }
        if !url.path().is_empty() {
            return Err(bad(format!("`consul:` takes no path (`/{}`); a datacenter is `?dc=NAME`", url.path())));
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(600)).contains(&wait) {
            return Err(bad("parameter `wait`: Consul blocks for 1s to 10m"));
        }
        Ok(Self {
            http: Http::new(url, 8500, &tls)?,
            token,
            scope,
            layout,
            consistency,
            tags,
            ttl,
            deregister_after,
            wait,
            calls: Semaphore::new(CALLS_MAX),
            blocking: Semaphore::new(BLOCKING_MAX),
            watching: AtomicUsize::new(0),
            paces: Mutex::default(),
            own: Mutex::default(),
            ids: tokio::sync::Mutex::default(),
        })
    }

    /// Adds token and scope.
    fn with(&self, request: RequestBuilder) -> RequestBuilder {
        let request = match &self.token {
            Some(token) => request.header("X-Consul-Token", token),
            None => request,
        };
        request.query(&self.scope)
    }

    /// A call that does not block; every answer below 500 is an answer.
    async fn call(
        &self,
        method: Method,
        path: &str,
        with: impl Fn(RequestBuilder) -> RequestBuilder,
    ) -> Result<Response, DriverError> {
        // It is never closed.
        let _permit = self.calls.acquire().await.ok();
        self.http.send(method, path, CALL_TIMEOUT, |request| with(self.with(request))).await
    }

    async fn refused(&self, response: Response) -> DriverError {
        let server = response.server().to_owned();
        refusal(&server, response).await
    }

    fn own(&self) -> MutexGuard<'_, HashSet<String>> {
        // Nothing panics while it is held.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is registered, as Consul takes it. Nothing may be in it that Consul does not know: it refuses the whole.
    fn registration(&self, service: &str, instance: &Instance) -> Result<Value, DriverError> {
        let seata = self.layout == Layout::Seata;
        let written = entry::write(service, instance, seata)?;
        let mut tags: Vec<&str> = Vec::new();
        let own = seata.then_some(SEATA_TAG);
        for tag in own.into_iter().chain(self.tags.iter().map(String::as_str)).chain(written.tags.iter().map(|t| &**t))
        {
            if !tags.contains(&tag) {
                tags.push(tag);
            }
        }
        let mut body = json!({
            "ID": entry::service_id(service, &instance.id),
            "Name": service,
            "Address": instance.address.host(),
            "Port": instance.address.port(),
            "Tags": tags,
            "Meta": written.meta,
        });
        if let Some(passing) = written.passing {
            body["Weights"] = json!({ "Passing": passing, "Warning": 1 });
        }
        Ok(body)
    }

    fn check(&self, service: &str, instance: &Instance) -> Value {
        json!({
            "CheckID": format!("service:{}", entry::service_id(service, &instance.id)),
            "Name": "beats of its owner",
            "TTL": go_duration(self.ttl),
            "DeregisterCriticalServiceAfter": go_duration(self.deregister_after),
            "Status": status(instance),
        })
    }

    /// The entry of the local agent under an id in Consul, if it belongs to the service.
    async fn local(&self, service: &str, id: &str) -> Result<Option<Value>, DriverError> {
        let response = self.call(Method::GET, &format!("/v1/agent/service/{}", segment(id)), |r| r).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => {
                let entry: Value = read(response).await?;
                Ok((entry["Service"].as_str() == Some(service)).then_some(entry))
            }
            _ => Err(self.refused(response).await),
        }
    }

    /// Consul replaces what has the same id, of whatever service; where the token may not see that one, it may not write it
    /// either. All are asked for at once and remembered for a moment: for a single id that is free the agent would answer
    /// 404 and log an error for every registration.
    async fn not_anothers(&self, service: &str, id: &str) -> Result<(), DriverError> {
        if self.own().contains(id) {
            return Ok(());
        }
        let mut ids = self.ids.lock().await;
        if ids.as_ref().is_none_or(|ids| ids.at.elapsed() > IDS_KEPT) {
            let response = self.call(Method::GET, "/v1/agent/services", |r| r).await?;
            if !response.status().is_success() {
                return Err(self.refused(response).await);
            }
            *ids = Some(Ids { at: Instant::now(), services: read(response).await? });
        }
        match ids.as_ref().and_then(|ids| ids.services.get(id)) {
            Some(entry) if *entry.service != *service => {
                let message = format!("this agent has an instance of `{}` under the id `{id}`", entry.service);
                Err(DriverError::new(ErrorKind::Invalid, message))
            }
            _ => Ok(()),
        }
    }

    /// An agent registers in its own datacenter only, whatever it is asked.
    async fn own_datacenter(&self) -> Result<(), DriverError> {
        let Some((_, wanted)) = self.scope.iter().find(|(name, _)| *name == "dc") else { return Ok(()) };
        let response = self.call(Method::GET, "/v1/agent/self", |r| r).await?;
        if !response.status().is_success() {
            // The token may not ask; then registering says more.
            return Ok(());
        }
        let agent: Value = read(response).await?;
        match agent["Config"]["Datacenter"].as_str() {
            Some(own) if own != wanted => {
                let message = format!("`dc={wanted}`: this agent registers in its own datacenter `{own}` only");
                Err(DriverError::new(ErrorKind::Invalid, message))
            }
            _ => Ok(()),
        }
    }

    async fn deregister(&self, base: &str, id: &str) -> Result<bool, DriverError> {
        let _permit = self.calls.acquire().await.ok();
        let url = format!("{base}/v1/agent/service/deregister/{}", segment(id));
        let request = self.with(self.http.client().put(url)).timeout(CALL_TIMEOUT);
        let response = request.send().await.map_err(|error| unreachable(base, error))?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(false),
            status if status.is_success() => Ok(true),
            _ => Err(self.refused(response).await),
        }
    }

    /// Takes it away at every agent, since the one that answered last may not be the one that has it.
    async fn withdraw(&self, service: &str, id: &InstanceId) -> Result<(), DriverError> {
        let ours = entry::service_id(service, id);
        let registered_here = self.own().contains(&ours);
        let mut failed = None;
        for id in entry::ids(service, id) {
            // What somebody else registered may be another service's.
            let surely = registered_here && id == ours;
            if !surely && self.local(service, &id).await?.is_none() {
                continue;
            }
            let mut found = false;
            for base in self.http.bases() {
                match self.deregister(base, &id).await {
                    Ok(there) => found |= there,
                    Err(error) => failed = Some(error),
                }
            }
            if found {
                failed = None;
                break;
            }
        }
        match failed {
            Some(error) => Err(error),
            None => {
                self.own().remove(&ours);
                Ok(())
            }
        }
    }

    /// Changes what another process registered and keeps alive: the same entry without a check leaves its checks alone.
    async fn amend(&self, service: &str, instance: &Instance) -> Result<(), DriverError> {
        let mut body = self.registration(service, instance)?;
        for id in entry::ids(service, &instance.id) {
            let Some(entry) = self.local(service, &id).await? else { continue };
            // What the entry says by itself (an id of its own, Consul's index as incarnation) stays so.
            for made in [carrier::ID, carrier::INCARNATION] {
                let theirs = made != carrier::ID || id == instance.id.as_str();
                if theirs && entry["Meta"][made].is_null() {
                    body["Meta"].as_object_mut().map(|meta| meta.remove(made));
                }
            }
            body["ID"] = id.into();
            for kept in ["EnableTagOverride", "TaggedAddresses"] {
                if !entry[kept].is_null() {
                    body[kept] = entry[kept].clone();
                }
            }
            let response = self.call(Method::PUT, "/v1/agent/service/register", |r| r.json(&body)).await?;
            return if response.status().is_success() { Ok(()) } else { Err(self.refused(response).await) };
        }
        let message = format!("this agent has no instance `{}` of `{service}`; ask the one of its node", instance.id);
        Err(DriverError::new(ErrorKind::Invalid, message))
    }

    /// Parameters of everything that is read from the servers.
    fn reading(&self) -> Vec<(&'static str, String)> {
        self.consistency.map(|name| (name, String::new())).into_iter().collect()
    }

    async fn names(&self) -> Result<Vec<Box<str>>, DriverError> {
        let response = self.call(Method::GET, "/v1/catalog/services", |r| r.query(&self.reading())).await?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        let hidden = self.hidden(&response);
        let services: HashMap<Box<str>, Option<Vec<Box<str>>>> = read(response).await?;
        if let (true, Some(why)) = (services.is_empty(), hidden) {
            return Err(why);
        }
        let mut names: Vec<Box<str>> = services
            .into_iter()
            .filter(|(_, tags)| self.layout != Layout::Seata || tags.iter().flatten().any(|tag| **tag == *SEATA_TAG))
            .map(|(name, _)| name)
            .collect();
        names.sort();
        Ok(names)
    }

    /// Why an empty answer may not mean that there is nothing: results were filtered, or nobody asked under a policy of
    /// deny, where Consul does not even say that it filters.
    fn hidden(&self, response: &Response) -> Option<DriverError> {
        let says = |name: &str, value: &str| response.headers().get(name).is_some_and(|found| found == value);
        let message = if says("x-consul-results-filtered-by-acls", "true") {
            "the token may not see it: it needs `service:read` and `node:read`"
        } else if self.token.is_none() && says("x-consul-default-acl-policy", "deny") {
            "this Consul shows nothing without a token; give one with `token=env:NAME`"
        } else {
            return None;
        };
        Some(DriverError::new(ErrorKind::Denied, message))
    }

    /// One query; blocks when it has an index.
    async fn query(&self, service: &str, place: Place, wait: Duration) -> Result<(u64, SeenState), DriverError> {
        let blocks = place.index > 0;
        let timeout = if blocks { wait + wait / 16 + WAIT_SLACK } else { CALL_TIMEOUT };
        // Asked for an order, which means nothing here, an agent asks a server instead of the copy that it lets a server stream
        // to it. A change made while such a copy begins can be missing from it for good (seen in 1.14.11).
        let mut query = self.reading();
        query.push(("near", "_agent".to_owned()));
        if blocks {
            query.push(("index", place.index.to_string()));
            query.push(("wait", go_duration(wait)));
        }
        if self.layout == Layout::Seata {
            query.push(("filter", format!("\"{SEATA_TAG}\" in Service.Tags")));
        }
        let path = format!("/v1/health/service/{}", segment(service));
        let response = self.http.send(Method::GET, &path, timeout, |r| self.with(r).query(&query)).await?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        // Less than one would make the loop spin.
        let index = response.headers().get("x-consul-index").and_then(|value| value.to_str().ok()?.parse().ok());
        let index: u64 = index.unwrap_or(1).max(1);
        let hidden = self.hidden(&response);
        let leaderless = response.headers().get("x-consul-knownleader").is_some_and(|known| known == "false");
        let entries: Vec<Value> = read(response).await?;
        let state = match (entries.is_empty(), hidden) {
            (true, Some(why)) => return Err(why),
            (true, None) if !place.known => SeenState::UnknownService,
            (_, hidden) => {
                let mut snapshot = entry::read(service, entries, self.layout == Layout::Seata);
                if let Some(why) = hidden {
                    snapshot.notes.push(entry::note("filtered", format!("some instances are hidden: {why}")));
                }
                if leaderless {
                    let message = "the server that answered knows no leader; the list may be old".to_owned();
                    snapshot.notes.push(entry::note("no_leader", message));
                }
                SeenState::Service(snapshot)
            }
        };
        Ok((index, state))
    }

    async fn follow(&self, service: &str, after: Option<&Cursor>) -> Result<Seen, DriverError> {
        let given = after.and_then(Place::of).unwrap_or(Place::START);
        let mut place = given;
        if self.paces().get(service).is_some_and(|pace| pace.broken) {
            // Whoever answers now may be another server, or the same one with an empty memory.
            place.index = 0;
        }
        loop {
            if place.index > 0 {
                self.pace(service).await;
            }
            let (permit, wait) = if place.index > 0 {
                let crowded = self.watching.load(Ordering::Relaxed) > BLOCKING_MAX;
                (self.blocking.acquire().await.ok(), if crowded { self.wait.min(CROWDED_WAIT) } else { self.wait })
            } else {
                (self.calls.acquire().await.ok(), self.wait)
            };
            let answer = self.query(service, place, wait).await;
            drop(permit);
            self.set_broken(service, answer.is_err());
            let (index, state) = answer?;
            if place.index > 0 && index < place.index {
                // A restored snapshot, an upgrade, a restart: the history that the index is of is gone.
                place.index = 0;
                continue;
            }
            if place.index == 0 || index > place.index {
                let known = place.known || matches!(state, SeenState::Service(_));
                return Ok(Seen { cursor: Place { index, known }.cursor(), state });
            }
        }
    }

    /// Waits until the service may be asked again.
    async fn pace(&self, service: &str) {
        let wait = {
            let mut paces = self.paces();
            if paces.len() >= PACES_KEPT && !paces.contains_key(service) {
                let now = Instant::now();
                paces.retain(|_, pace| pace.broken || pace.refilled(now) < BURST);
            }
            let now = Instant::now();
            let pace = paces.entry(service.into()).or_insert(Pace { tokens: BURST, at: now, broken: false });
            pace.tokens = pace.refilled(now) - 1.0;
            pace.at = now;
            if pace.tokens < 0.0 { REFILL.mul_f64(-pace.tokens) } else { Duration::ZERO }
        };
        tokio::time::sleep(wait).await;
    }

    fn set_broken(&self, service: &str, broken: bool) {
        let mut paces = self.paces();
        match paces.get_mut(service) {
            Some(pace) => pace.broken = broken,
            None if broken => {
                paces.insert(service.into(), Pace { tokens: BURST, at: Instant::now(), broken });
            }
            None => {}
        }
    }

    fn paces(&self) -> MutexGuard<'_, HashMap<Box<str>, Pace>> {
        // Numbers only; whole at any time.
        self.paces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pace {
    fn refilled(&self, now: Instant) -> f64 {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() / REFILL.as_secs_f64();
        (self.tokens + gained).min(BURST)
    }
}

/// Counts a watch for as long as it runs, however it ends.
struct Watching<'a>(&'a AtomicUsize);

impl<'a> Watching<'a> {
    fn start(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a fuzz target feeds with bytes: the body of a health answer.
#[doc(hidden)]
pub fn read_entries(bytes: &[u8]) -> Option<crate::driver::Snapshot> {
    let entries = serde_json::from_slice(bytes).ok()?;
    Some(entry::read("web", entries, bytes.len().is_multiple_of(2)))
}

/// The status a beat reports.
fn status(instance: &Instance) -> &'static str {
    if instance.healthy { "passing" } else { "critical" }
}

/// A duration in Go's notation.
fn go_duration(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

async fn read<T: serde::de::DeserializeOwned>(response: Response) -> Result<T, DriverError> {
    let server = response.server().to_owned();
    let bytes = response.bytes().await.map_err(|error| unreachable(&server, error))?;
    serde_json::from_slice(&bytes).map_err(|error| {
        DriverError::new(ErrorKind::Invalid, format!("{server}: the answer is not what Consul answers")).because(error)
    })
}

impl Driver for Consul {
    fn capabilities(&self) -> Capabilities {
        Capabilities { register: true, list: true, liveness: true, weight: true }
    }

    fn limits(&self) -> Limits {
        Limits {
            key_bytes: Some(128),
            value_bytes: Some(512),
            keys: Some(64),
            reserved_prefixes: &["consul-", carrier::RESERVED],
            ..Limits::default()
        }
    }

    fn apply<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(async move {
            let mut body = self.registration(service, instance)?;
            body["Check"] = self.check(service, instance);
            self.own_datacenter().await?;
            let id = entry::service_id(service, &instance.id);
            self.not_anothers(service, &id).await?;
            let path = "/v1/agent/service/register?replace-existing-checks=true";
            let response = self.call(Method::PUT, path, |r| r.json(&body)).await?;
            if response.status().is_success() {
                self.own().insert(id);
                Ok(Lease { renew_every: Some(self.ttl / 3) })
            } else {
                Err(self.refused(response).await)
            }
        })
    }

    fn renew<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Renewal> {
        Box::pin(async move {
            let id = entry::service_id(service, &instance.id);
            let path = format!("/v1/agent/check/update/{}", segment(&format!("service:{id}")));
            let body = json!({ "Status": status(instance) });
            let response = self.call(Method::PUT, &path, |r| r.json(&body)).await?;
            match response.status() {
                StatusCode::NOT_FOUND => {
                    self.own().remove(&id);
                    Ok(Renewal::Lost)
                }
                status if status.is_success() => Ok(Renewal::Kept),
                _ => Err(self.refused(response).await),
            }
        })
    }

    fn withdraw<'a>(&'a self, service: &'a str, id: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(self.withdraw(service, id))
    }

    fn amend<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, ()> {
        Box::pin(self.amend(service, instance))
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(self.names())
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(async move {
            let _watching = Watching::start(&self.watching);
            self.follow(service, after).await
        })
    }
}

#[cfg(test)]
mod tests;
