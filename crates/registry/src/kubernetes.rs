//! Kubernetes: the endpoints of Services, found through their EndpointSlices and not registered.
//!
//! A build has it with the cargo feature `kubernetes`, which is not among the default ones. Programs that use the crate `k8s-openapi`
//! themselves take `kubernetes-any` instead, because the version of the API is theirs to choose.
//!
//! ```text
//! k8s://                                      the cluster and namespace that kubectl would use here, or that run this pod
//! k8s://payments                              another namespace; the same is k8s:///payments
//! k8s://payments?context=prod                 another context of the kubeconfig
//! k8s://payments?kubeconfig=/etc/kube.yaml    another kubeconfig
//! k8s://10.0.0.1:6443/payments?ca=/etc/kube/ca.crt&token=file:/etc/kube/token     a server
//! k8s://127.0.0.1:8001/payments?tls=false     `kubectl proxy`
//! ```
//!
//! | parameter | meaning | default |
//! |---|---|---|
//! | (path) | the namespace | the context's, or the pod's; `default` where a server is named |
//! | `port` | which port of the endpoints: its name or number, or several by commas, the best first | the one there is |
//! | `family` | `ipv4` or `ipv6` where a Service has both; `all` | `all` |
//! | `kubeconfig`, `context` | a file, and a context in it | `KUBECONFIG` or `~/.kube/config`, and its current context |
//! | `token` | with a server: a bearer token, better `file:PATH` or `env:NAME` | none |
//! | `tls`, `ca`, `cert`, `key` | with a server: TLS, its roots, a client certificate | on |
//!
//! # Where the cluster is
//!
//! With neither a server nor `kubeconfig` or `context`: `KUBECONFIG` (a list of files is merged), else `~/.kube/config`, else the
//! service account of the pod this runs in. A name alone after `k8s://` is a namespace; a server has a port, a dot or a
//! namespace after it. Its port is 6443 unless named, 8001 with `tls=false`. Tokens, client certificates, programs
//! for credentials (`exec`), contexts, `tls-server-name` and impersonation of a kubeconfig are understood. Refused are
//! `insecure-skip-tls-verify` and `proxy-url`; the variable `HTTPS_PROXY` is ignored; a program may give a token but no certificate.
//!
//! Token files (also the projected one of a pod) are read for every request, so that one that is renewed is used at once. An
//! answer 401 asks again once, with everything read anew; a server that cannot be reached is looked up anew every 30 s.
//!
//! # Permissions
//!
//! ```yaml
//! apiVersion: rbac.authorization.k8s.io/v1
//! kind: Role
//! metadata: {name: metaroute, namespace: payments}
//! rules:
//!   - apiGroups: [discovery.k8s.io]
//!     resources: [endpointslices]
//!     verbs: [list, watch]
//! ```
//!
//! # Instances
//!
//! A service is the union of all slices with the label `kubernetes.io/service-name`, also those that people write by hand for
//! what runs elsewhere. An endpoint is its first address with the chosen port; the id is `address:port`. One that stands in two
//! slices is one instance, as good as the better of the two.
//!
//! | in the slice | here |
//! |---|---|
//! | `conditions.ready` (absent: true) | healthy |
//! | `serving` and `terminating` | draining: healthy with weight 0, and `draining` in the metadata. While no endpoint is ready they keep their weight: the last resort, as for kube-proxy |
//! | `zone`, a region in `deprecatedTopology` | locality, and metadata `zone` and `region` |
//! | `nodeName`, `hostname`, the pod of `targetRef` | metadata `node`, `hostname`, `pod` |
//! | `hints.forZones` | metadata `for-zones`, a list; nobody is left out for it |
//! | `targetRef.uid` | incarnation |
//! | labels and annotations of the slice, which are its Service's | metadata, without those under `kubernetes.io` and `k8s.io`; a label counts more than an annotation |
//! | annotation `metaroute/instance` | JSON: `{"weight":…,"enabled":…,"cluster":…,"region":…,"zone":…,"subzone":…,"metadata":{…}}`, each part optional, for every endpoint of the slice; for a single endpoint `id` and `incarnation` too. Its metadata counts most |
//!
//! Where a Service has several ports, the first TCP port is taken and a note says so; name one with `port`. A slice for *all* ports
//! (a headless Service without any) gives instances only where `port` has a number. What cannot be used is left out,
//! counted and noted: a slice without the port, an endpoint without an address, an object that is none.
//!
//! A Service that has no endpoints is empty; one without slices does not exist, and one that was there and vanishes counts as
//! empty for who follows it.
//!
//! # Following a service
//!
//! A list, then a watch from its version with bookmarks, for 150 to 180 s at a time. Events change what is known; 410 (in whatever
//! form) leads to a new list, the end of a watch to the next one. A watch that breaks is opened again at the place where it
//! broke; only when that fails, too, the registry counts as unreachable. Over HTTP/2 a connection is pinged every 6 s; a server that
//! speaks HTTP/1 is watched for 8 s at a time instead. 403 is a refusal, 429 and 5xx pass, and `Retry-After` is obeyed.
//!
//! # Registering
//!
//! Not offered. Pods are registered by the cluster. For what runs elsewhere, write a Service without a selector and a slice:
//!
//! ```yaml
//! apiVersion: discovery.k8s.io/v1
//! kind: EndpointSlice
//! metadata:
//!   name: billing-vm-1
//!   labels: {kubernetes.io/service-name: billing, endpointslice.kubernetes.io/managed-by: vm-team}
//!   annotations: {metaroute/instance: '{"weight":2,"metadata":{"version":"2.3"}}'}
//! addressType: IPv4
//! ports: [{name: http, port: 8080}]
//! endpoints: [{addresses: [192.0.2.7], zone: eu-1a}]
//! ```
//!
//! Nothing expires it: it stays until somebody deletes it.
//!
//! # Proven against
//!
//! A strict double of the API server, because no real one can be run in tests, that the real `kubectl` (1.20 and 1.33) works with: it applies,
//! edits and deletes slices that are followed here, also through its own `kubectl proxy`. What a real server decides beyond that is unproven.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::Uri;
use metaroute_core::resilience::backoff::Failure;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::backend::{Params, bad};
use crate::driver::{Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Seen, SeenState, Snapshot};
use crate::registry::ConnectError;
use crate::tls::Tls;
use crate::url::RegistryUrl;

mod connection;
mod lanes;
mod origin;
mod slices;

use connection::{Connection, Event, Listing};
use origin::Origin;
pub use slices::read_list as read_slices;
use slices::{Choice, Family, SERVICE_LABEL, Slice};

/// Changes that come together are told together: the controller writes a rollout in many small steps.
const SETTLE: Duration = Duration::from_millis(20);
/// But nobody waits longer than this for the end of them.
const SETTLE_MAX: Duration = Duration::from_millis(200);
/// A watch that ends sooner than this is not followed by the next one at once.
const CALM: Duration = Duration::from_secs(1);
/// The longest value of a label, and so the longest name of a service.
const LABEL_MAX: usize = 63;

/// One namespace of one cluster.
pub(crate) struct Kubernetes {
    connection: Connection,
    choice: Choice,
    /// What was told last about each service, to go on from.
    told: Mutex<HashMap<Box<str>, Told>>,
}

/// What is known about a service.
struct Known {
    slices: Slices,
    /// The version up to which that holds.
    version: String,
    /// Whether it was ever there.
    existed: bool,
}

/// Slices by name.
type Slices = std::collections::BTreeMap<Box<str>, Result<Slice, String>>;

struct Told {
    cursor: Cursor,
    known: Known,
    /// `None` for an unknown service.
    snapshot: Option<Snapshot>,
    /// Whether waiting for what comes next failed.
    failed: bool,
}

impl Known {
    fn of(listing: Listing, existed: bool) -> Self {
        let mut slices = Slices::new();
        for (number, item) in listing.items.into_iter().enumerate() {
            // The server names every object; one without a name must not hide another one.
            let name = slices::name_of(&item).map_or_else(|| format!("#{number}").into(), Box::from);
            slices.insert(name, slices::read(item));
        }
        let existed = existed || !slices.is_empty();
        Self { slices, version: listing.version, existed }
    }

    /// Takes in an event; `None` when it says too little to be sure of anything.
    fn take_in(&mut self, object: Value, deleted: bool) -> Option<()> {
        let version = connection::version_of(&object)?.to_owned();
        let name: Box<str> = slices::name_of(&object)?.into();
        if deleted {
            self.slices.remove(&name);
        } else {
            self.slices.insert(name, slices::read(object));
            self.existed = true;
        }
        self.version = version;
        Some(())
    }

    fn snapshot(&self, choice: &Choice) -> Option<Snapshot> {
        let slices = self.slices.iter().map(|(name, slice)| (&**name, slice));
        self.existed.then(|| slices::snapshot(slices, choice))
    }

    fn cursor(&self) -> Cursor {
        let existed = if self.existed { "" } else { "?" };
        Cursor::new(format!("{}{existed}", self.version))
    }
}

/// How following one watch ended.
enum Followed {
    /// There is something new to tell.
    Changed(Option<Snapshot>),
    /// It is over, which is no loss.
    Ended,
    /// Only a list says what happened.
    Lost,
}

impl Kubernetes {
    /// Reads the address; nothing is contacted, and no file is read.
    pub(crate) fn new(url: &RegistryUrl) -> Result<Self, ConnectError> {
        let mut params = Params::of(url);
        let ports = params.text("port").map(ports).transpose()?.unwrap_or_default();
        let family = match params.text("family") {
            None | Some("all") => Family::All,
            Some("ipv4") => Family::V4,
            Some("ipv6") => Family::V6,
            Some(other) => return Err(bad(format!("parameter `family={other}`: expected `ipv4`, `ipv6` or `all`"))),
        };
        let file = params.path("kubeconfig");
        let context = params.text("context").map(ToOwned::to_owned);
        // Read when it is sent; here only that there is one.
        params.text("token");
        let token = url.secret("token").cloned();
        let tls = Tls::of(&mut params, true)?;
        let given = ["tls", "ca", "cert", "key"].into_iter().find(|name| url.param(name).is_some());
        params.finish()?;
        if url.user().is_some() || url.password().is_some() {
            return Err(bad("Kubernetes knows no user and password; give a `token` or a client certificate"));
        }
        let namespace = match url.path() {
            "" => None,
            name if is_label(name) => Some(name.into()),
            name => return Err(bad(format!("`{name}` is no namespace: lower-case letters, digits and `-`"))),
        };
        let origin = match url.hosts() {
            [] => {
                if let Some(name) = given.or(token.as_ref().map(|_| "token")) {
                    return Err(bad(format!("`{name}` needs a server in the address; a kubeconfig has its own")));
                }
                match (file, context) {
                    (None, None) => Origin::Found,
                    (file, context) => Origin::Kubeconfig { file, context },
                }
            }
            [host] => {
                if file.is_some() || context.is_some() {
                    return Err(bad("a server and a kubeconfig are two ways to say the same; give one of them"));
                }
                let mut host = host.clone();
                host.port = host.port.or(Some(if tls.on { 6443 } else { 8001 }));
                let text = format!("{}://{host}", if tls.on { "https" } else { "http" });
                let base: Uri = text.parse().map_err(|error| bad(format!("bad server `{host}`: {error}")))?;
                Origin::Server { base, tls, token }
            }
            _ => return Err(bad("a cluster has one address; put a load balancer before several servers")),
        };
        let choice = Choice { ports, family };
        Ok(Self { connection: Connection::new(origin, namespace), choice, told: Mutex::default() })
    }

    fn told(&self) -> MutexGuard<'_, HashMap<Box<str>, Told>> {
        // Every change is one call on the map.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was told with a cursor, if nothing else was told since.
    fn take(&self, service: &str, after: &Cursor) -> Option<Told> {
        let mut told = self.told();
        if told.get(service)?.cursor != *after {
            return None;
        }
        told.remove(service)
    }

    fn tell(&self, service: &str, known: Known, snapshot: Option<Snapshot>) -> Seen {
        let cursor = known.cursor();
        let state = snapshot.clone().map_or(SeenState::UnknownService, SeenState::Service);
        self.told().insert(service.into(), Told { cursor: cursor.clone(), known, snapshot, failed: false });
        Seen { cursor, state }
    }

    /// What was known before a failure: the next question comes without a cursor.
    fn existed_before_failure(&self, service: &str) -> bool {
        self.told().get(service).is_some_and(|told| told.failed && told.known.existed)
    }

    async fn follow(&self, service: &str, after: Option<&Cursor>) -> Result<Seen, DriverError> {
        let selector = selector(service)?;
        let Some(mut told) = after.and_then(|after| self.take(service, after)) else {
            let existed = match after {
                Some(after) => !after.as_str().ends_with('?'),
                None => self.existed_before_failure(service),
            };
            let known = Known::of(self.connection.list(&selector, false).await?, existed);
            let snapshot = known.snapshot(&self.choice);
            return Ok(self.tell(service, known, snapshot));
        };
        match self.next(&selector, &mut told.known, &told.snapshot).await {
            Ok(now) => Ok(self.tell(service, told.known, now)),
            Err(error) => {
                told.failed = true;
                self.told().insert(service.into(), told);
                Err(error)
            }
        }
    }

    /// Waits for the next state that differs from the last one.
    async fn next(
        &self,
        selector: &str,
        known: &mut Known,
        last: &Option<Snapshot>,
    ) -> Result<Option<Snapshot>, DriverError> {
        let mut broken = false;
        loop {
            let opened = Instant::now();
            match self.events(selector, known, last).await {
                Ok(Followed::Changed(now)) => return Ok(now),
                Ok(Followed::Ended) => broken = false,
                Ok(Followed::Lost) => {
                    *known = Known::of(self.connection.list(selector, false).await?, known.existed);
                    broken = false;
                }
                Err(error) => {
                    // What was read until then is known, and what came after it can still be asked for: a connection
                    // that ends now and then is no reason to doubt the list.
                    let passes = matches!(error.failure(), Failure::Transient);
                    if broken || !passes {
                        return Err(error);
                    }
                    broken = true;
                }
            }
            let now = known.snapshot(&self.choice);
            if now != *last {
                return Ok(now);
            }
            if !broken {
                // A server that ends every watch at once is not asked without end.
                tokio::time::sleep_until(opened + CALM).await;
            }
        }
    }

    /// Follows one watch until something changed and it is quiet again, or until its end.
    async fn events(
        &self,
        selector: &str,
        known: &mut Known,
        last: &Option<Snapshot>,
    ) -> Result<Followed, DriverError> {
        let Some(mut events) = self.connection.watch(selector, &known.version).await? else {
            return Ok(Followed::Lost);
        };
        // Until when the end of a burst is waited for.
        let mut burst: Option<(Instant, Instant)> = None;
        loop {
            let event = match burst {
                None => events.next().await?,
                Some((quiet, latest)) => match timeout_at(quiet.min(latest), events.next()).await {
                    Ok(event) => event?,
                    Err(_) => {
                        let now = known.snapshot(&self.choice);
                        if now != *last {
                            return Ok(Followed::Changed(now));
                        }
                        burst = None;
                        continue;
                    }
                },
            };
            let taken = match event {
                None => return Ok(Followed::Ended),
                Some(Event::Gone) => return Ok(Followed::Lost),
                Some(Event::Bookmark(version)) => {
                    known.version = version;
                    continue;
                }
                Some(Event::Put(object)) => known.take_in(object, false),
                Some(Event::Deleted(object)) => known.take_in(object, true),
            };
            if taken.is_none() {
                return Ok(Followed::Lost);
            }
            let now = Instant::now();
            let latest = burst.map_or(now + SETTLE_MAX, |(_, latest)| latest);
            burst = Some((now + SETTLE, latest));
        }
    }

    /// The services that have slices.
    async fn names(&self) -> Result<Vec<Box<str>>, DriverError> {
        let listing = self.connection.list(SERVICE_LABEL, true).await?;
        let mut names: Vec<Box<str>> = listing.items.iter().filter_map(slices::service_of).map(Box::from).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }
}

/// `http`, `8080`, `grpc,http`.
fn ports(text: &str) -> Result<Vec<Box<str>>, ConnectError> {
    let names: Vec<Box<str>> = text.split(',').map(|name| name.trim().into()).collect();
    for name in &names {
        let number = name.bytes().all(|byte| byte.is_ascii_digit());
        if name.is_empty() || (number && !name.parse::<u16>().is_ok_and(|number| number > 0)) {
            return Err(bad(format!(
                "parameter `port={text}`: expected names or numbers of ports, separated by commas"
            )));
        }
    }
    Ok(names)
}

/// A DNS label, as namespaces are.
fn is_label(text: &str) -> bool {
    text.len() <= LABEL_MAX
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The slices of a service.
fn selector(service: &str) -> Result<String, DriverError> {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = service.as_bytes();
    let is_value = service.len() <= LABEL_MAX
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
        && edge(bytes.first())
        && edge(bytes.last());
    if !is_value {
        let message = format!(
            "`{service}` is no name of a Service: at most {LABEL_MAX} letters, digits and `-`, `_` or `.` between them"
        );
        return Err(DriverError::new(ErrorKind::Invalid, message));
    }
    Ok(format!("{SERVICE_LABEL}={service}"))
}

impl Driver for Kubernetes {
    fn capabilities(&self) -> Capabilities {
        Capabilities { liveness: true, ..Capabilities::read_only() }
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(self.names())
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(self.follow(service, after))
    }
}

#[cfg(test)]
mod tests;
