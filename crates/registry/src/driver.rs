//! The seam between one kind of registry and everything that all kinds share.
//!
//! A back end says what the registry holds and writes what it is told; it never filters, balances, guards or retries.
//! [`Registry`](crate::Registry) above it keeps registrations alive, backs off, and hands out what was seen together
//! with how far it can be trusted. So a back end is small, and every policy exists once.
//!
//! Watching is pulling: [`Driver::watch`] answers with the next state *after a cursor*. Registries that push (Nacos,
//! SOFARegistry), that block (Consul, etcd) and that are polled (Eureka, a file) all fit, nothing queues up behind a
//! slow subscriber, and on any doubt a driver answers with a full snapshot.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use metaroute_core::instance::{Instance, InstanceId};
use metaroute_core::resilience::backoff::Failure;

use crate::document::{ConfigError, Note};

/// What a driver's methods return: a boxed future, so that a driver can be a trait object.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, DriverError>> + Send + 'a>>;

/// One kind of registry. Methods may run at the same time; every future may be dropped at any point.
pub trait Driver: Send + Sync + 'static {
    /// What this registry can do.
    fn capabilities(&self) -> Capabilities;

    /// What this registry accepts.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// Registers an instance, or replaces it where the id is taken by us. Applying the same twice changes nothing.
    /// This and the next two a driver leaves out whose [`Capabilities::register`] is false.
    fn apply<'a>(&'a self, _service: &'a str, _instance: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(async { Err(DriverError::only_read()) })
    }

    /// Keeps a registration alive. [`Renewal::Lost`] when the registry no longer has it.
    fn renew<'a>(&'a self, _service: &'a str, _instance: &'a Instance) -> Answer<'a, Renewal> {
        Box::pin(async { Err(DriverError::only_read()) })
    }

    /// Takes a registration away; one that is not there was taken away already.
    fn withdraw<'a>(&'a self, _service: &'a str, _id: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(async { Err(DriverError::only_read()) })
    }

    /// Changes an instance that somebody else keeps registered, in place: its liveness stays its owner's, so it neither
    /// ends with this process nor outlives that one. Where a registry cannot do that, `Unsupported`; where registrations
    /// have no owner, it is the same as applying.
    fn amend<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, ()> {
        if self.capabilities().liveness {
            let message = "only the process that registered an instance can change it in this kind of registry";
            return Box::pin(async move { Err(DriverError::new(ErrorKind::Unsupported, message)) });
        }
        Box::pin(async move { self.apply(service, instance).await.map(|_| ()) })
    }

    /// The services that have or had instances, sorted; where the registry cannot say, an `Unsupported` error.
    fn list(&self) -> Answer<'_, Vec<Box<str>>>;

    /// The state of a service that is newer than `after`, or the current one for `None`. Waits until there is one.
    ///
    /// An `Err` says that the watch itself broke: the caller backs off and asks for the current state.
    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen>;

    /// Stops what the driver started. Called once, after the last other call.
    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// A place in a registry's history of one service. Opaque: only the driver that made it understands it, and two drivers
/// never share one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor(Box<str>);

impl Cursor {
    /// Wraps a driver's own form.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The driver's own form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a driver saw, and up to where.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Where to watch from next.
    pub cursor: Cursor,
    /// What was there.
    pub state: SeenState,
}

/// What was there.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SeenState {
    /// The whole list; it may be empty.
    Service(Snapshot),
    /// The registry answers and knows no such service.
    UnknownService,
    /// The registry is there, but what it says cannot be used; what was known before still holds.
    Unusable(DriverError),
    /// The registry went away, and the driver itself goes on looking for it.
    Unreachable(DriverError),
}

/// All instances of a service at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Usable instances; ids are unique, order means nothing.
    pub instances: Vec<Instance>,
    /// How many entries were left out because they could not be read.
    pub rejected: usize,
    /// What is odd about the entries.
    pub notes: Vec<Note>,
}

/// Most notes of a snapshot: who can write a thousand bad entries must not fill logs and memory with them.
#[allow(dead_code, reason = "a build without network back ends has no use for it")]
const NOTES_MAX: usize = 100;

impl Snapshot {
    /// Leaves out an entry of a key or node that cannot be read. As many are described as a person reads; the count has
    /// them all.
    #[allow(dead_code, reason = "a build without network back ends has no use for it")]
    pub(crate) fn reject(&mut self, registry: &'static str, message: String) {
        self.rejected += 1;
        if self.notes.len() < 20 {
            self.notes.push(Note { code: "bad_entry", message, file: registry.into(), at: None });
        }
    }

    /// Keeps the first hundred notes and says how many there were.
    #[allow(dead_code, reason = "a build without network back ends has no use for it")]
    pub(crate) fn bound_notes(&mut self) {
        let all = self.notes.len();
        if all <= NOTES_MAX {
            return;
        }
        self.notes.truncate(NOTES_MAX);
        let file = self.notes[0].file.clone();
        let message = format!("and {} more notes", all - NOTES_MAX);
        self.notes.push(Note { code: "more_notes", message, file, at: None });
    }
}

/// A registration's liveness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// How often to renew; `None` where the registry keeps a registration until it is withdrawn.
    pub renew_every: Option<Duration>,
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Still there.
    Kept,
    /// Not there any more; apply again.
    Lost,
}

/// What a kind of registry can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Instances can be registered, updated and withdrawn.
    pub register: bool,
    /// Services can be listed.
    pub list: bool,
    /// The registry has a liveness of its own: a registration disappears with its owner.
    pub liveness: bool,
    /// Weights are carried.
    pub weight: bool,
}

impl Capabilities {
    /// A registry that can only be read.
    pub fn read_only() -> Self {
        Self { list: true, weight: true, ..Self::default() }
    }
}

/// What a kind of registry accepts. The default accepts what the core does.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Limits {
    /// Longest metadata key, in bytes.
    pub key_bytes: Option<usize>,
    /// Longest metadata value, in bytes.
    pub value_bytes: Option<usize>,
    /// Most metadata keys.
    pub keys: Option<usize>,
    /// Longest sum of all keys and values, in characters.
    pub total_chars: Option<usize>,
    /// Prefixes of keys that the registry or we reserve.
    pub reserved_prefixes: &'static [&'static str],
}

impl Limits {
    /// Checks an instance before anything goes over the wire.
    ///
    /// # Errors
    /// `Invalid`, naming the key, its length and the limit.
    pub fn check(&self, instance: &Instance) -> Result<(), DriverError> {
        let invalid = |message: String| Err(DriverError::new(ErrorKind::Invalid, message));
        if let Some(defect) = instance.defect() {
            return invalid(defect.to_string());
        }
        if let Some(keys) = self.keys.filter(|keys| instance.metadata.len() > *keys) {
            return invalid(format!("{} metadata keys, at most {keys} are accepted", instance.metadata.len()));
        }
        let mut total = 0;
        for (key, value) in &instance.metadata {
            let text = value.to_text();
            if let Some(prefix) = self.reserved_prefixes.iter().find(|prefix| key.starts_with(**prefix)) {
                return invalid(format!("metadata key `{key}`: the prefix `{prefix}` is reserved"));
            }
            if let Some(limit) = self.key_bytes.filter(|limit| key.len() > *limit) {
                return invalid(format!("metadata key `{key}` has {} bytes, at most {limit} are accepted", key.len()));
            }
            if let Some(limit) = self.value_bytes.filter(|limit| text.len() > *limit) {
                return invalid(format!(
                    "metadata value of `{key}` has {} bytes, at most {limit} are accepted",
                    text.len()
                ));
            }
            total += key.chars().count() + text.chars().count();
        }
        match self.total_chars {
            Some(limit) if total > limit => {
                invalid(format!("metadata keys and values have {total} characters, at most {limit} are accepted"))
            }
            _ => Ok(()),
        }
    }
}

/// Whose fault an error is and whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The registry cannot be reached; trying again may help.
    Unreachable,
    /// The registry refuses: credentials, permission, quota.
    Denied,
    /// What was sent or read is wrong; trying the same again cannot help.
    Invalid,
    /// This kind of registry cannot do that.
    Unsupported,
}

/// Why a registry did not do what was asked. Never shows a secret.
#[derive(Clone)]
pub struct DriverError {
    kind: ErrorKind,
    message: Box<str>,
    retry_after: Option<Duration>,
    config: Option<Arc<ConfigError>>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl DriverError {
    /// An error of a kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into().into(), retry_after: None, config: None, source: None }
    }

    /// What a registry without [`Capabilities::register`] says to who wants to change it.
    pub(crate) fn only_read() -> Self {
        Self::new(ErrorKind::Unsupported, "this kind of registry is only read")
    }

    /// The same error with its cause.
    #[must_use]
    pub fn because(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The same error with the registry's own wish when to come back.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The place in a file, where a file is what is wrong.
    pub fn config(&self) -> Option<&ConfigError> {
        self.config.as_deref()
    }

    /// What this error means for a retried task.
    pub fn failure(&self) -> Failure {
        match (self.kind, self.retry_after) {
            (ErrorKind::Unreachable, Some(after)) => Failure::After(after),
            (ErrorKind::Unreachable, None) => Failure::Transient,
            _ => Failure::Permanent,
        }
    }
}

impl From<ConfigError> for DriverError {
    fn from(error: ConfigError) -> Self {
        let kind = if error.code == "unreadable" { ErrorKind::Unreachable } else { ErrorKind::Invalid };
        let mut out = Self::new(kind, error.to_string());
        out.config = Some(Arc::new(error));
        out
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverError").field("kind", &self.kind).field("message", &self.message).finish_non_exhaustive()
    }
}

impl Error for DriverError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
    }
}
