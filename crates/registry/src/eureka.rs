//! Eureka: Spring Cloud's and Netflix' registry, over its REST interface.
//!
//! ```text
//! eureka://127.0.0.1:8761                      Spring Cloud's server, below /eureka
//! eureka://me:env:PASSWORD@a:8761,b:8761       basic authentication; two servers that replicate each other
//! eureka://host:8080/eureka/v2                 another context path, as of Netflix' own server
//! eureka://host?layout=seata                   the layout of Seata's own Eureka registry
//! ```
//!
//! | parameter | meaning | default |
//! |---|---|---|
//! | `ttl` | the lease of a registration, rounded up to seconds; it is renewed every third of it | `90s` |
//! | `poll` | how often changes are asked for (the server itself answers from a cache of 30 s unless told otherwise) | `5s` |
//! | `full-every` | how often everything is read anew although the changes add up | `3m` |
//! | `layout` | `metaroute` or `seata` | `metaroute` |
//! | `tls`, `ca`, `cert`, `key` | HTTPS, the authority to trust, a client certificate | off |
//!
//! **Layout.** `POST {path}/apps/{SERVICE}` with the JSON instance that every client sends: `app` in capitals, `vipAddress` the
//! service as written, `hostName` and `ipAddr` the address, `port` enabled, `leaseInfo`, `metadata` as text, both timestamps. The
//! `instanceId` is `host:service:port`, as everybody has it, or the instance's own id; one that is in use for an instance of
//! another id and address is refused. The weight is `metaroute-weight` where it is not 1; what else has no place is under
//! `metaroute-…`. With `layout=seata` the application is Seata's cluster, the address is `ipAddr`, and the weight is the metadata
//! key `weight`, which Seata means to write and loses.
//!
//! **Reading.** Names of applications have no case; services are listed in the letters of their `vipAddress`. The address is
//! `hostName` (what Spring uses) with the first enabled port. `UP` is healthy, `OUT_OF_SERVICE` switched off, everything else
//! unhealthy. Switching an instance of ours off is a status override, which all of Eureka's clients obey; an operator's own
//! override is never taken back.
//!
//! **Watching** is one poll for all services of a connection: a delta, checked with the server's hash, and everything anew when
//! the hash differs, another server answers, more than three minutes passed, and every `full-every`, since the hash counts
//! statuses only and cannot see a lost change of metadata, and since a server may keep an old delta with its old hash until the
//! next change (seen where a thousand instances left at once). Where deltas are switched off (403, 404) everything is read each
//! time. A server that forbids its lists but not a question for one instance is still syncing and says nothing yet.
//!
//! **Liveness.** The server expires a renewed lease after *twice* its duration and sweeps every minute; with its caches a dead
//! instance is listed for up to four minutes by default, and for as long as it likes while the server preserves itself. A renewal
//! that another server of several answers with 404 registers there. Being listed is therefore no sign of life: instances whose
//! lease is overdue are named in the notes of a snapshot.
//!
//! **Limits.** No sizes; `@class` cannot be a metadata key, and names of services and ids have no `/` or `\`. Where any client reads
//! XML, keys must be XML names.
//!
//! **Lossy.** Kinds of metadata values (everything becomes text); whether a switched-off instance is healthy.
//!
//! Proven against the Eureka server and client of Spring Cloud 2025.0.0, two servers that replicate each other included, and
//! py-eureka-client; basic authentication against a gate before that server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::web::header::{ACCEPT, DATE};
use crate::web::{Method, RequestBuilder, Response, StatusCode};
use metaroute_core::instance::{Instance, InstanceId};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::backend::{Params, bad};
use crate::carrier;
use crate::driver::{
    Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Lease, Limits, Renewal, Seen, SeenState, Snapshot,
};
use crate::http::{CALL_TIMEOUT, Http, refusal, segment, unreachable};
use crate::registry::ConnectError;
use crate::tls::Tls;
use crate::url::RegistryUrl;

mod apps;
mod wire;

use apps::Apps;

/// Calls at the same time.
const CALLS_MAX: usize = 32;
/// The least time between two attempts to read after a failure.
const RETRY_SPACING: Duration = Duration::from_millis(500);

/// Eureka through one of its servers.
pub(crate) struct Eureka {
    http: Http,
    /// Context path with a leading slash.
    path: String,
    login: Option<(String, Option<String>)>,
    seata: bool,
    ttl: Duration,
    poll: Duration,
    full_every: Duration,
    calls: Semaphore,
    ours: Mutex<Ours>,
    /// Held by the watcher that polls for all.
    poller: tokio::sync::Mutex<Poller>,
    readings: watch::Sender<Reading>,
}

/// What was registered through this connection.
#[derive(Default)]
struct Ours {
    /// The largest timestamp given out.
    dirty_ms: u64,
    registered: HashMap<(Box<str>, InstanceId), Registered>,
}

#[derive(Clone)]
struct Registered {
    dirty_ms: u64,
    /// When this life began, for the incarnation.
    born_ms: u64,
    /// Whether an override of ours switches it off.
    off: bool,
}

/// What the next poll builds on.
#[derive(Default)]
struct Poller {
    apps: Arc<Apps>,
    /// The server it came from.
    server: String,
    last: Option<Instant>,
    last_full: Option<Instant>,
    /// A delta is of no use after a failure, or where the server refuses them.
    no_delta: bool,
    /// The last delta, since servers answer from a cache.
    body: Vec<u8>,
    failed: Option<Instant>,
}

/// The outcome of the latest poll.
#[derive(Clone, Default)]
struct Reading {
    /// Counts polls, failed ones too.
    number: u64,
    /// The last one that failed.
    failed: u64,
    at: Option<Instant>,
    apps: Arc<Apps>,
    error: Option<DriverError>,
}

/// A place in the history of one service: the number of the reading that was told, and what it said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    number: u64,
    told: Told,
}

/// What a watcher was told about a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Unknown,
    Present,
    /// It was there before.
    Gone,
}

const TOLD: [(Told, &str); 3] = [(Told::Unknown, "unknown"), (Told::Present, "present"), (Told::Gone, "gone")];

impl Place {
    fn of(cursor: &Cursor) -> Option<Self> {
        let (number, word) = cursor.as_str().split_once(' ')?;
        let (told, _) = TOLD.iter().find(|(_, name)| *name == word)?;
        Some(Self { number: number.parse().ok()?, told: *told })
    }

    fn cursor(self) -> Cursor {
        let word = TOLD.iter().find(|(told, _)| *told == self.told).map_or("", |(_, word)| word);
        Cursor::new(format!("{} {word}", self.number))
    }
}

impl Eureka {
    pub(crate) fn new(url: &RegistryUrl) -> Result<Self, ConnectError> {
        let mut params = Params::of(url);
        let tls = Tls::of(&mut params, url.tls())?;
        let seata = match params.text("layout") {
            None | Some("metaroute") => false,
            Some("seata") => true,
            Some(other) => return Err(bad(format!("parameter `layout={other}`: expected `metaroute` or `seata`"))),
        };
        let ttl = params.duration("ttl", Duration::from_secs(90))?;
        let poll = params.duration("poll", Duration::from_secs(5))?;
        let full_every = params.duration("full-every", Duration::from_secs(180))?;
        params.finish()?;
        let password = url.password().map(|password| password.reveal().map_err(|error| bad(error.to_string())));
        let login = match (url.user(), password.transpose()?) {
            (Some(user), password) => Some((user.to_owned(), password)),
            (None, Some(_)) => return Err(bad("`eureka:` needs a user beside the password")),
            (None, None) => None,
        };
        let path = if url.path().is_empty() { "eureka" } else { url.path() };
        let path: String = path.split('/').map(|part| format!("/{}", segment(part))).collect();
        Ok(Self {
            http: Http::new(url, 8761, &tls)?,
            path,
            login,
            seata,
            ttl,
            poll,
            full_every,
            calls: Semaphore::new(CALLS_MAX),
            ours: Mutex::default(),
            poller: tokio::sync::Mutex::default(),
            readings: watch::Sender::new(Reading::default()),
        })
    }

    /// A call; every answer below 500 is an answer. JSON is asked for, since the usual answer is XML.
    async fn call(
        &self,
        method: Method,
        path: &str,
        with: impl Fn(RequestBuilder) -> RequestBuilder,
    ) -> Result<Response, DriverError> {
        // It is never closed.
        let _permit = self.calls.acquire().await.ok();
        let path = format!("{}{path}", self.path);
        self.http.send(method, &path, CALL_TIMEOUT, |request| with(self.login(request))).await
    }

    fn login(&self, request: RequestBuilder) -> RequestBuilder {
        let request = request.header(ACCEPT, "application/json");
        match &self.login {
            Some((user, password)) => request.basic_auth(user, password.as_deref()),
            None => request,
        }
    }

    /// `/apps/APP` or `/apps/APP/ID`.
    fn at(service: &str, id: Option<&str>) -> String {
        let app = segment(&service.to_uppercase());
        match id {
            Some(id) => format!("/apps/{app}/{}", segment(id)),
            None => format!("/apps/{app}"),
        }
    }

    fn ours(&self) -> MutexGuard<'_, Ours> {
        // Every change is one assignment.
        self.ours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn registered(&self, service: &str, id: &InstanceId) -> Option<Registered> {
        self.ours().registered.get(&(service.into(), id.clone())).cloned()
    }

    /// The server's record of an instance.
    async fn record(&self, service: &str, id: &str) -> Result<Option<Value>, DriverError> {
        let response = self.call(Method::GET, &Self::at(service, Some(id)), |r| r).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => Ok(Some(read(response).await?["instance"].take())),
            _ => Err(refused(response).await),
        }
    }

    /// The id in Eureka of an instance that somebody else registered under an id of theirs.
    async fn foreign(&self, service: &str, id: &InstanceId) -> Result<Option<String>, DriverError> {
        let response = self.call(Method::GET, &Self::at(service, None), |r| r).await?;
        match response.status() {
            StatusCode::NOT_FOUND => return Ok(None),
            status if status.is_success() => {}
            _ => return Err(refused(response).await),
        }
        let body = read(response).await?;
        let app = service.to_uppercase();
        let found = wire::list(&body["application"], "instance")
            .iter()
            .find(|instance| wire::read(&app, instance, self.seata).instance.is_ok_and(|instance| instance.id == *id));
        Ok(found.and_then(wire::id).map(str::to_owned))
    }

    async fn apply(&self, service: &str, instance: &Instance) -> Result<Lease, DriverError> {
        let id = wire::eureka_id(service, &instance.id);
        wire::check_names(service, &id)?;
        let before = self.registered(service, &instance.id);
        // The server keeps what it has if that is newer, silently. Another life of ours, or a clock that went back, must
        // not be ignored.
        let record = if before.is_none() { self.record(service, &id).await? } else { None };
        if let Some(other) = record.as_ref().and_then(|record| wire::another(service, record, instance, self.seata)) {
            let message = format!("`{service}` has the instance `{other}` under the instance id `{id}`");
            return Err(DriverError::new(ErrorKind::Invalid, message));
        }
        let theirs = record.as_ref().map_or(0, wire::dirty_ms);
        // Of our own life before, which could not take it back; an operator's override has no such mark.
        let off_before = record.is_some_and(|record| record["metadata"][carrier::ENABLED] == "false");
        let now = now_ms();
        let dirty_ms = {
            let mut ours = self.ours();
            ours.dirty_ms = now.max(ours.dirty_ms + 1).max(theirs + 1);
            ours.dirty_ms
        };
        let born_ms = before.as_ref().map_or(dirty_ms, |before| before.born_ms);
        let terms = wire::Terms { ttl: self.ttl, dirty_ms, incarnation: born_ms.to_string(), seata: self.seata };
        let body = wire::registration(service, instance, &terms);
        let response = self.call(Method::POST, &Self::at(service, None), |r| r.json(&body)).await?;
        if !response.status().is_success() {
            return Err(refused(response).await);
        }
        let was_off = before.is_some_and(|before| before.off) || off_before;
        let key = (service.into(), instance.id.clone());
        self.ours().registered.insert(key, Registered { dirty_ms, born_ms, off: was_off || !instance.enabled });
        // For the status of an instance that is there already the server believes only an override.
        if !instance.enabled || was_off {
            self.switch(service, &id, instance.enabled).await?;
            if let Some(ours) = self.ours().registered.get_mut(&(service.into(), instance.id.clone())) {
                ours.off = !instance.enabled;
            }
        }
        Ok(Lease { renew_every: Some(self.ttl / 3) })
    }

    /// Sets or takes back the override that switches an instance off.
    async fn switch(&self, service: &str, id: &str, on: bool) -> Result<(), DriverError> {
        // Taken back without a value the status stays UNKNOWN for good.
        let (method, value) = if on { (Method::DELETE, "UP") } else { (Method::PUT, "OUT_OF_SERVICE") };
        let path = format!("{}/status", Self::at(service, Some(id)));
        let response = self.call(method, &path, |r| r.query(&[("value", value)])).await?;
        match response.status() {
            status if status.is_success() || status == StatusCode::NOT_FOUND => Ok(()),
            _ => Err(refused(response).await),
        }
    }

    async fn renew(&self, service: &str, instance: &Instance) -> Result<Renewal, DriverError> {
        let Some(ours) = self.registered(service, &instance.id) else { return Ok(Renewal::Lost) };
        let path = Self::at(service, Some(&wire::eureka_id(service, &instance.id)));
        let query = [("status", wire::status(instance).to_owned()), ("lastDirtyTimestamp", ours.dirty_ms.to_string())];
        let response = self.call(Method::PUT, &path, |r| r.query(&query)).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(Renewal::Lost),
            status if status.is_success() => Ok(Renewal::Kept),
            _ => Err(refused(response).await),
        }
    }

    async fn withdraw(&self, service: &str, id: &InstanceId) -> Result<(), DriverError> {
        if !self.is_taken_over(service, id).await?
            && !self.cancel(service, &wire::eureka_id(service, id)).await?
            && let Some(theirs) = self.foreign(service, id).await?
        {
            self.cancel(service, &theirs).await?;
        }
        self.ours().registered.remove(&(service.into(), id.clone()));
        Ok(())
    }

    /// Whether what we registered is a later life's by now, which must stay when this one goes.
    async fn is_taken_over(&self, service: &str, id: &InstanceId) -> Result<bool, DriverError> {
        let Some(ours) = self.registered(service, id) else { return Ok(false) };
        let record = self.record(service, &wire::eureka_id(service, id)).await?;
        Ok(record.as_ref().and_then(wire::born_ms).is_some_and(|born_ms| born_ms > ours.born_ms))
    }

    async fn cancel(&self, service: &str, id: &str) -> Result<bool, DriverError> {
        let response = self.call(Method::DELETE, &Self::at(service, Some(id)), |r| r).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(false),
            status if status.is_success() => Ok(true),
            _ => Err(refused(response).await),
        }
    }

    /// Changes what another process keeps registered: its own record, with other metadata, a moment newer. Its owner's beats
    /// stay valid, and whatever its owner says later is newer still.
    async fn amend(&self, service: &str, instance: &Instance) -> Result<(), DriverError> {
        let id = wire::eureka_id(service, &instance.id);
        let (id, mut record) = match self.record(service, &id).await? {
            Some(record) => (id, record),
            None => {
                let id = self.foreign(service, &instance.id).await?;
                let record = match &id {
                    Some(id) => self.record(service, id).await?,
                    None => None,
                };
                match (id, record) {
                    (Some(id), Some(record)) => (id, record),
                    _ => {
                        let message = format!("`{service}` has no instance `{}`", instance.id);
                        return Err(DriverError::new(ErrorKind::Invalid, message));
                    }
                }
            }
        };
        let mut metadata = wire::metadata(service, instance, self.seata);
        for made in [carrier::ID, carrier::INCARNATION] {
            if record["metadata"][made].is_null() {
                // What the record says by itself.
                metadata.remove(made);
            }
        }
        let was_off = record["status"] == "OUT_OF_SERVICE";
        record["metadata"] = json!(metadata);
        record["lastDirtyTimestamp"] = (wire::dirty_ms(&record) + 1).to_string().into();
        let body = json!({ "instance": record });
        let response = self.call(Method::POST, &Self::at(service, None), |r| r.json(&body)).await?;
        if !response.status().is_success() {
            return Err(refused(response).await);
        }
        if instance.enabled == was_off {
            self.switch(service, &id, instance.enabled).await?;
        }
        Ok(())
    }

    /// Reads what changed, or everything, and tells all watchers how it went.
    async fn read(&self, poller: &mut Poller) {
        let number = self.readings.borrow().number + 1;
        let outcome = self.read_once(poller, number).await;
        let now = Instant::now();
        let reading = match outcome {
            Ok(()) => {
                poller.failed = None;
                let failed = self.readings.borrow().failed;
                Reading { number, failed, at: Some(now), apps: Arc::clone(&poller.apps), error: None }
            }
            Err(error) => {
                poller.failed = Some(now);
                poller.last_full = None;
                let apps = Arc::clone(&self.readings.borrow().apps);
                Reading { number, failed: number, at: None, apps, error: Some(error) }
            }
        };
        self.readings.send_replace(reading);
    }

    async fn read_once(&self, poller: &mut Poller, number: u64) -> Result<(), DriverError> {
        let now = Instant::now();
        let recent = |at: Option<Instant>, age: Duration| at.is_some_and(|at| now.duration_since(at) < age);
        if !poller.no_delta
            && recent(poller.last, apps::DELTA_COVERS)
            && recent(poller.last_full, self.full_every)
            && self.read_delta(poller, number).await?
        {
            poller.last = Some(now);
            return Ok(());
        }
        self.read_full(poller, number).await?;
        poller.last = Some(now);
        poller.last_full = Some(now);
        Ok(())
    }

    /// Whether a delta was enough.
    async fn read_delta(&self, poller: &mut Poller, number: u64) -> Result<bool, DriverError> {
        let response = self.call(Method::GET, "/apps/delta", |r| r).await?;
        if !response.status().is_success() {
            // Not served here, or not yet; everything may be.
            poller.no_delta = response.status() == StatusCode::FORBIDDEN || response.status() == StatusCode::NOT_FOUND;
            return Ok(false);
        }
        let server = server(&response);
        if server != poller.server {
            return Ok(false);
        }
        let bytes = response.bytes().await.map_err(|error| unreachable(&server, error))?;
        if bytes == poller.body {
            return Ok(true);
        }
        let body = parse(&server, &bytes)?;
        let apps = Arc::make_mut(&mut poller.apps);
        let same = apps.delta(&body, self.seata, number).map_err(|error| unusable(&server, error))?;
        // Kept only where it led to the server's own state.
        poller.body = if same { bytes.into() } else { Vec::new() };
        Ok(same)
    }

    async fn read_full(&self, poller: &mut Poller, number: u64) -> Result<(), DriverError> {
        let mut response = self.call(Method::GET, "/apps", |r| r).await?;
        // One that is still syncing says so with 403 and nothing else; another one may be further.
        for _ in 1..self.http.bases().len() {
            if response.status() != StatusCode::FORBIDDEN {
                break;
            }
            self.http.pass_on();
            response = self.call(Method::GET, "/apps", |r| r).await?;
        }
        let server = server(&response);
        match response.status() {
            StatusCode::FORBIDDEN if !self.is_denied().await => {
                let message = format!("{server} is still syncing with its peers and does not list anything yet");
                return Err(DriverError::new(ErrorKind::Unreachable, message));
            }
            status if status.is_success() => {}
            _ => return Err(refused(response).await),
        }
        let now_ms = response.headers().get(DATE).and_then(|date| http_date_ms(date.to_str().ok()?));
        let bytes = response.bytes().await.map_err(|error| unreachable(&server, error))?;
        let body = parse(&server, &bytes)?;
        let apps = Apps::full(&body, self.seata, now_ms, &poller.apps, number);
        poller.apps = Arc::new(apps.map_err(|error| unusable(&server, error))?);
        if server != poller.server {
            poller.no_delta = false;
        }
        poller.server = server;
        poller.body = Vec::new();
        Ok(())
    }

    /// Whether it is us whom the server forbids its lists. One that is still syncing forbids them to everybody, but answers a
    /// question for one instance.
    async fn is_denied(&self) -> bool {
        let one = self.call(Method::GET, &Self::at("metaroute", Some("nobody")), |r| r).await;
        one.is_ok_and(|one| matches!(one.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN))
    }

    /// When the next poll may be.
    fn due(&self, poller: &Poller, at_once: bool) -> Option<Instant> {
        match (poller.failed, poller.last) {
            (Some(failed), _) => Some(failed + self.poll.min(RETRY_SPACING)),
            (None, Some(last)) if !at_once => Some(last + self.poll),
            _ => None,
        }
    }

    /// A reading that is not older than one poll.
    async fn recent(&self) -> Result<Reading, DriverError> {
        let mut poller = self.poller.lock().await;
        let reading = self.readings.borrow().clone();
        if reading.error.is_none() && reading.at.is_some_and(|at| at.elapsed() < self.poll) {
            return Ok(reading);
        }
        if let Some(due) = self.due(&poller, true) {
            tokio::time::sleep_until(due).await;
        }
        self.read(&mut poller).await;
        let reading = self.readings.borrow().clone();
        match &reading.error {
            Some(error) => Err(error.clone()),
            None => Ok(reading),
        }
    }

    async fn follow(&self, service: &str, after: Option<&Cursor>) -> Result<Seen, DriverError> {
        let mut readings = self.readings.subscribe();
        let Reading { number: begun, failed, .. } = *readings.borrow_and_update();
        let after = match after.and_then(Place::of) {
            // A number that was not reached yet is of another connection.
            Some(after) if after.number > begun => None,
            after => after,
        };
        let Some(after) = after else { return Ok(seen(&self.recent().await?, service, Told::Unknown)) };
        // Whoever was told of a failure wants to hear that it is over, also where nothing changed meanwhile.
        if failed > after.number {
            return Ok(seen(&self.recent().await?, service, after.told));
        }
        loop {
            {
                let reading = readings.borrow_and_update();
                if let Some(error) = &reading.error {
                    return Err(error.clone());
                }
                let newer = match reading.apps.of(service) {
                    Some(app) => app.changed > after.number,
                    None => after.told == Told::Present,
                };
                if newer {
                    return Ok(seen(&reading, service, after.told));
                }
            }
            tokio::select! {
                changed = readings.changed() => {
                    if changed.is_err() {
                        return Err(DriverError::new(ErrorKind::Unreachable, "the connection was closed"));
                    }
                }
                // Whoever gets it polls for all; dropped in between, another one does.
                mut poller = self.poller.lock() => {
                    if readings.has_changed().unwrap_or(false) {
                        continue;
                    }
                    if let Some(due) = self.due(&poller, false) {
                        tokio::time::sleep_until(due).await;
                    }
                    self.read(&mut poller).await;
                }
            }
        }
    }
}

/// What a fuzz target feeds with bytes: the body of a full answer, applied once more as a delta. The snapshots of `WEB` before
/// and after.
#[doc(hidden)]
pub fn read_applications(bytes: &[u8]) -> Option<Vec<Snapshot>> {
    let body = serde_json::from_slice(bytes).ok()?;
    let seata = bytes.len().is_multiple_of(2);
    let mut apps = Apps::full(&body, seata, Some(1), &Apps::default(), 1).ok()?;
    let before = apps.of("web").map(apps::App::snapshot);
    apps.delta(&body, seata, 2).ok()?;
    let _ = (apps.names(), apps.hash());
    Some(before.into_iter().chain(apps.of("web").map(apps::App::snapshot)).collect())
}

/// What a reading says about a service. A service that a watcher has seen and that is gone is empty, not unknown.
fn seen(reading: &Reading, service: &str, before: Told) -> Seen {
    let (state, told) = match (reading.apps.of(service), before) {
        (Some(app), _) => (SeenState::Service(app.snapshot()), Told::Present),
        (None, Told::Unknown) => (SeenState::UnknownService, Told::Unknown),
        (None, _) => (SeenState::Service(Snapshot::default()), Told::Gone),
    };
    Seen { cursor: Place { number: reading.number, told }.cursor(), state }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// The server's own clock.
fn http_date_ms(text: &str) -> Option<u64> {
    let time = jiff::fmt::rfc2822::parse(text).ok()?;
    u64::try_from(time.timestamp().as_millisecond()).ok()
}

/// `scheme://host:port` of an answer.
fn server(response: &Response) -> String {
    response.server().to_owned()
}

async fn refused(response: Response) -> DriverError {
    let server = server(&response);
    refusal(&server, response).await
}

async fn read(response: Response) -> Result<Value, DriverError> {
    let server = server(&response);
    let bytes = response.bytes().await.map_err(|error| unreachable(&server, error))?;
    parse(&server, &bytes)
}

fn parse(server: &str, bytes: &[u8]) -> Result<Value, DriverError> {
    serde_json::from_slice(bytes).map_err(|error| unusable(server, error))
}

fn unusable(server: &str, error: impl std::error::Error + Send + Sync + 'static) -> DriverError {
    DriverError::new(ErrorKind::Invalid, format!("{server}: the answer is not what Eureka answers")).because(error)
}

impl Driver for Eureka {
    fn capabilities(&self) -> Capabilities {
        Capabilities { register: true, list: true, liveness: true, weight: true }
    }

    fn limits(&self) -> Limits {
        Limits { reserved_prefixes: &[wire::CLASS, carrier::RESERVED], ..Limits::default() }
    }

    fn apply<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(self.apply(service, instance))
    }

    fn renew<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Renewal> {
        Box::pin(self.renew(service, instance))
    }

    fn withdraw<'a>(&'a self, service: &'a str, id: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(self.withdraw(service, id))
    }

    fn amend<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, ()> {
        Box::pin(self.amend(service, instance))
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(async move { Ok(self.recent().await?.apps.names()) })
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(self.follow(service, after))
    }
}

#[cfg(test)]
mod tests;
