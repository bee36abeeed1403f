//! Several registries as one: for a move from one to another, and for services that are registered in more than one.
//!
//! A registration goes to all of them; what can be reached is taken from the first that has it ([`Combine::Failover`]) or
//! is everything they know ([`Combine::Merged`]). Every member is a [`Registry`] of its own: it has its own connection,
//! back-off, cursors, last good list and freshness, so a member that is down costs its own attempts and nothing else. This
//! driver only puts their views together, and the registry above it treats it like any other.
//!
//! What a combined list does not show by itself is in its notes: which members could not confirm their part.
//!
//! ```
//! use metaroute_core::instance::Instance;
//! use metaroute_registry::several::{Combine, Several};
//! use metaroute_registry::{Memory, Registry};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let (old, new) = (Memory::new(), Memory::new());
//! old.register("orders", Instance::new("10.0.0.1:80".parse()?))?;
//! new.register("orders", Instance::new("10.0.0.2:80".parse()?))?;
//! let members = [("new", Registry::new(new)), ("old", Registry::new(old))];
//! let both = Registry::new(Several::new(members, Combine::Merged));
//! let found = both.instances("orders").await?;
//! assert_eq!(found.map(|(snapshot, _)| snapshot.instances.len()), Some(2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use metaroute_core::instance::{Instance, InstanceId};
use tokio::time::Instant;

use crate::document::Note;
use crate::driver::{
    Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Lease, Limits, Renewal, Seen, SeenState, Snapshot,
};
use crate::registry::{Registration, RegistrationState, Registry, State, Subscription, View};

/// How the lists of several registries become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combine {
    /// The first registry that has instances. The next one serves when it has none, or could not be reached for
    /// ten seconds; until then its last list does.
    #[default]
    Failover,
    /// All instances of all of them, each once: two entries with one id or one address are the same instance, and the
    /// earlier registry's word counts.
    Merged,
}

/// `failover` or `merged`.
impl FromStr for Combine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "failover" => Ok(Self::Failover),
            "merged" => Ok(Self::Merged),
            other => Err(format!("`{other}` is neither `failover` nor `merged`")),
        }
    }
}

/// How long a registry that cannot be reached is still good for the list it last had: going to another one and back for
/// every lost connection would change the list twice for nothing.
const GOOD_FOR: Duration = Duration::from_secs(10);

/// How long the first list waits for registries that have not answered yet.
const COMPLETE_WITHIN: Duration = Duration::from_secs(3);

/// How long a service that nobody asks about any more is still followed.
const FOLLOWED_FOR: Duration = Duration::from_secs(60);

/// How often registrations in the members are looked after.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long the members may take to answer to one call.
const CALL_WITHIN: Duration = Duration::from_secs(15);

/// What was registered: per service and id, the registration in each member.
type Registered = HashMap<(Box<str>, InstanceId), Vec<(usize, Registration)>>;

/// Several registries as one. See the [module](self).
pub struct Several {
    members: Vec<Member>,
    combine: Combine,
    followed: Mutex<HashMap<Box<str>, Arc<Followed>>>,
    registered: Mutex<Registered>,
}

struct Member {
    name: Box<str>,
    registry: Registry,
}

/// The members' views of one service.
struct Followed {
    views: Vec<Subscription>,
    since: Instant,
    last: Mutex<Last>,
}

/// What was put together last.
struct Last {
    revision: u64,
    state: Option<Combined>,
    used: Instant,
}

#[derive(Clone, PartialEq)]
enum Combined {
    Service(Snapshot),
    Unknown,
    Unusable(String, ErrorKind),
}

impl std::fmt::Debug for Several {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.members.iter().map(|member| &member.name).collect();
        f.debug_struct("Several").field("members", &names).field("combine", &self.combine).finish_non_exhaustive()
    }
}

impl Several {
    /// Registries by name, the primary first. The names stand in notes and errors.
    pub fn new(members: impl IntoIterator<Item = (impl Into<Box<str>>, Registry)>, combine: Combine) -> Self {
        let members = members.into_iter().map(|(name, registry)| Member { name: name.into(), registry }).collect();
        Self { members, combine, followed: Mutex::default(), registered: Mutex::default() }
    }

    /// How each registry sees a service that is followed, by name; empty for one that is not.
    pub fn views(&self, service: &str) -> Vec<(&str, View)> {
        let followed = lock(&self.followed).get(service).cloned();
        let views = followed.iter().flat_map(|followed| followed.views.iter().map(Subscription::current));
        self.members.iter().map(|member| &*member.name).zip(views).collect()
    }

    /// How far a registration is in each registry, by name.
    pub fn registrations(&self, service: &str, id: &InstanceId) -> Vec<(&str, RegistrationState)> {
        let registered = lock(&self.registered);
        let handles = registered.get(&(service.into(), id.clone()));
        handles.into_iter().flatten().map(|(at, handle)| (&*self.members[*at].name, handle.state())).collect()
    }

    fn follow(&self, service: &str) -> Arc<Followed> {
        let mut followed = lock(&self.followed);
        let now = Instant::now();
        // Whoever waits right now holds one more reference.
        followed.retain(|name, known| {
            &**name == service || Arc::strong_count(known) > 1 || now - lock(&known.last).used < FOLLOWED_FOR
        });
        let known = followed.entry(service.into()).or_insert_with(|| {
            let views = self.members.iter().map(|member| member.registry.subscribe(service)).collect();
            Arc::new(Followed { views, since: now, last: Mutex::new(Last { revision: 0, state: None, used: now }) })
        });
        lock(&known.last).used = now;
        Arc::clone(known)
    }

    /// The members' views as one; `None` while that would say too little, and when to look again without a change.
    fn combine(&self, followed: &Followed, now: Instant) -> (Option<Combined>, Option<Instant>) {
        let views: Vec<View> = followed.views.iter().map(Subscription::current).collect();
        let patience = followed.since + COMPLETE_WITHIN;
        let unresolved = views.iter().filter(|view| view.state == State::Unresolved).count();
        let enough = match self.combine {
            // The primary's word is enough.
            Combine::Failover => views.first().is_some_and(|view| has_instances(view) && view.state == State::Fresh),
            Combine::Merged => false,
        };
        if unresolved > 0 && !enough && now < patience {
            return (None, Some(patience));
        }
        if unresolved == views.len() && unresolved > 0 {
            return (None, None);
        }
        match self.combine {
            Combine::Failover => self.first(&views, now),
            Combine::Merged => (Some(self.all(&views)), None),
        }
    }

    fn first(&self, views: &[View], now: Instant) -> (Option<Combined>, Option<Instant>) {
        let good = |view: &View| match view.state {
            State::Fresh => true,
            _ => view.age(now) < GOOD_FOR,
        };
        let chosen = views
            .iter()
            .position(|view| has_instances(view) && good(view))
            .or_else(|| views.iter().position(|view| view.state == State::Fresh))
            .or_else(|| views.iter().position(has_instances));
        let Some(at) = chosen else { return (Some(self.nothing(views)), None) };
        // A list that is only still good must be looked at again when it no longer is.
        let again = match views[at].since {
            Some(since) if views[at].state != State::Fresh && good(&views[at]) => Some(since + GOOD_FOR),
            _ => None,
        };
        let mut snapshot = views[at].snapshot.as_deref().cloned().unwrap_or_default();
        if views[at].state != State::Fresh && again.is_none() {
            // Nobody stands by this list.
            return (Some(self.nothing(views)), None);
        }
        snapshot.notes.extend(views.iter().enumerate().take(at + 1).filter_map(|(i, view)| self.note(i, view)));
        (Some(Combined::Service(snapshot)), again)
    }

    fn all(&self, views: &[View]) -> Combined {
        if !views.iter().any(|view| view.state == State::Fresh) {
            return self.nothing(views);
        }
        let mut merged = Snapshot::default();
        let (mut ids, mut places) = (HashSet::new(), HashSet::new());
        for (at, view) in views.iter().enumerate() {
            merged.notes.extend(self.note(at, view));
            let Some(snapshot) = &view.snapshot else { continue };
            merged.rejected += snapshot.rejected;
            merged.notes.extend(snapshot.notes.iter().cloned());
            let new = snapshot.instances.iter().filter(|i| !ids.contains(&i.id) && !places.contains(&place(i)));
            let new: Vec<Instance> = new.cloned().collect();
            // Inside one registry two ids may share an address.
            ids.extend(new.iter().map(|instance| instance.id.clone()));
            places.extend(new.iter().map(place));
            merged.instances.extend(new);
        }
        Combined::Service(merged)
    }

    /// What is said when there is no list to stand by.
    fn nothing(&self, views: &[View]) -> Combined {
        if views.iter().any(|view| view.state == State::Fresh) {
            return Combined::Service(Snapshot::default());
        }
        let errors = self.members.iter().zip(views).filter_map(|(member, view)| {
            let error = view.error.as_ref()?;
            Some((format!("{}: {error}", member.name), error.kind()))
        });
        let errors: Vec<_> = errors.collect();
        match errors.first() {
            // Somebody might know it.
            Some((_, kind)) => {
                let texts: Vec<_> = errors.iter().map(|(text, _)| text.as_str()).collect();
                Combined::Unusable(texts.join("; "), *kind)
            }
            None => Combined::Unknown,
        }
    }

    /// What is to be said about a member that does not confirm its part.
    fn note(&self, at: usize, view: &View) -> Option<Note> {
        let name = &self.members[at].name;
        let error = view.error.as_ref().map_or_else(|| "no answer yet".to_owned(), ToString::to_string);
        let what = if view.snapshot.is_some() { "its last list is used" } else { "nothing is known from it" };
        let code = match view.state {
            State::Fresh | State::UnknownService => return None,
            State::Stale => "registry_stale",
            _ => "registry_unreachable",
        };
        Some(Note { code, message: format!("{name}: {error}; {what}"), file: String::new(), at: None })
    }

    fn writers(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.members.iter().enumerate().filter(|(_, member)| member.registry.capabilities().register)
    }

    /// Hands the wish to every member that can take it.
    fn register(&self, service: &str, instance: &Instance) -> Result<(), DriverError> {
        let key = (Box::from(service), instance.id.clone());
        let mut registered = lock(&self.registered);
        if let Some(handles) = registered.get(&key) {
            for (_, handle) in handles {
                handle.update(instance.clone())?;
            }
            return Ok(());
        }
        let mut handles = Vec::new();
        for (at, member) in self.writers() {
            let handle = member.registry.register(service, instance.clone()).map_err(|error| self.name(at, &error))?;
            handles.push((at, handle));
        }
        registered.insert(key, handles);
        Ok(())
    }

    /// Waits until each member has taken a registration or failed to; one is enough.
    async fn settled(&self, service: &str, id: &InstanceId) -> Result<(), DriverError> {
        let end = Instant::now() + CALL_WITHIN;
        loop {
            let states = self.states(service, id);
            let settled = states.iter().all(|(_, state)| !matches!(state, RegistrationState::Pending(None)));
            if settled || Instant::now() >= end {
                return self.verdict(&states);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn states(&self, service: &str, id: &InstanceId) -> Vec<(usize, RegistrationState)> {
        let registered = lock(&self.registered);
        let handles = registered.get(&(service.into(), id.clone()));
        handles.into_iter().flatten().map(|(at, handle)| (*at, handle.state())).collect()
    }

    /// Whether the registration is anywhere, or why not.
    fn verdict(&self, states: &[(usize, RegistrationState)]) -> Result<(), DriverError> {
        if states.iter().any(|(_, state)| matches!(state, RegistrationState::Registered)) {
            return Ok(());
        }
        // Where one of them may still take it, that decides what becomes of it.
        let pending = states.iter().find_map(|(at, state)| match state {
            RegistrationState::Pending(Some(error)) => Some(self.name(*at, error)),
            _ => None,
        });
        let refused = states.iter().find_map(|(at, state)| match state {
            RegistrationState::Refused(error) => Some(self.name(*at, error)),
            _ => None,
        });
        let silent = || DriverError::new(ErrorKind::Unreachable, "no registry has answered");
        Err(pending.or(refused).unwrap_or_else(silent))
    }

    fn name(&self, at: usize, error: &DriverError) -> DriverError {
        DriverError::new(error.kind(), format!("{}: {error}", self.members[at].name))
    }

    /// The first good answer of all members; the first error when none is good.
    async fn any<'a, T, F: Future<Output = Result<T, DriverError>> + Send + 'a>(
        &'a self,
        members: impl Iterator<Item = (usize, &'a Member)>,
        call: impl Fn(&'a Registry) -> F,
    ) -> Result<Vec<T>, DriverError> {
        let (mut good, mut bad) = (Vec::new(), None);
        for (at, member) in members {
            match tokio::time::timeout(CALL_WITHIN, call(&member.registry)).await {
                Ok(Ok(answer)) => good.push(answer),
                Ok(Err(error)) => bad = bad.or(Some(self.name(at, &error))),
                Err(_) => {
                    let error = DriverError::new(ErrorKind::Unreachable, "no answer in time");
                    bad = bad.or(Some(self.name(at, &error)));
                }
            }
        }
        match (good.is_empty(), bad) {
            (true, Some(error)) => Err(error),
            _ => Ok(good),
        }
    }
}

impl Driver for Several {
    fn capabilities(&self) -> Capabilities {
        let mut all = Capabilities::default();
        for member in &self.members {
            let one = member.registry.capabilities();
            all.register |= one.register;
            all.list |= one.list;
            all.liveness |= one.liveness;
            all.weight |= one.weight;
        }
        all
    }

    /// The strictest of all; each member checks its own before it sends anything.
    fn limits(&self) -> Limits {
        let mut all = Limits::default();
        let least = |a: Option<usize>, b: Option<usize>| a.into_iter().chain(b).min();
        for (_, member) in self.writers() {
            let one = member.registry.limits();
            all.key_bytes = least(all.key_bytes, one.key_bytes);
            all.value_bytes = least(all.value_bytes, one.value_bytes);
            all.keys = least(all.keys, one.keys);
            all.total_chars = least(all.total_chars, one.total_chars);
        }
        all
    }

    fn apply<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(async {
            self.register(service, instance)?;
            self.settled(service, &instance.id).await?;
            // The members renew by themselves.
            Ok(Lease { renew_every: Some(LOOK_EVERY) })
        })
    }

    fn renew<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Renewal> {
        Box::pin(async { self.verdict(&self.states(service, &instance.id)).map(|()| Renewal::Kept) })
    }

    fn withdraw<'a>(&'a self, service: &'a str, id: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(async move {
            let handles = lock(&self.registered).remove(&(service.into(), id.clone()));
            let Some(handles) = handles else {
                // Registered by somebody else: whoever has it lets go.
                let (mut gone, mut failed) = (0, None);
                for (at, member) in self.writers() {
                    match member.registry.remove(service, id).await {
                        Ok(()) => gone += 1,
                        Err(error) => failed = failed.or(Some(self.name(at, &error))),
                    }
                }
                return match failed {
                    Some(error) if gone == 0 || error.kind() == ErrorKind::Unreachable => Err(error),
                    _ => Ok(()),
                };
            };
            let mut leaving: Vec<_> = handles.into_iter().map(|(_, handle)| Box::pin(handle.deregister())).collect();
            std::future::poll_fn(|cx| {
                leaving.retain_mut(|one| one.as_mut().poll(cx).is_pending());
                if leaving.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            Ok(())
        })
    }

    fn amend<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, ()> {
        Box::pin(
            async move { self.any(self.writers(), |registry| registry.amend(service, instance)).await.map(|_| ()) },
        )
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(async {
            let listing = self.members.iter().enumerate().filter(|(_, member)| member.registry.capabilities().list);
            let mut names = self.any(listing, Registry::services).await?.concat();
            names.sort();
            names.dedup();
            Ok(names)
        })
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        let followed = self.follow(service);
        Box::pin(async move {
            let mut views = followed.views.clone();
            loop {
                for view in &mut views {
                    view.mark_seen();
                }
                let now = Instant::now();
                let (combined, again) = self.combine(&followed, now);
                if let Some(combined) = combined {
                    let revision = {
                        let mut last = lock(&followed.last);
                        last.used = now;
                        if last.state.as_ref() != Some(&combined) {
                            last.revision += 1;
                            last.state = Some(combined.clone());
                        }
                        last.revision
                    };
                    // A cursor of another process, or of a time when nobody followed, means nothing: start over.
                    let cursor = Cursor::new(format!("{revision}"));
                    if after != Some(&cursor) {
                        return Ok(Seen { cursor, state: combined.into() });
                    }
                }
                changed(&mut views, again).await;
            }
        })
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            // The registry above bounds the time.
            let mut closing: Vec<Pin<Box<dyn Future<Output = bool> + Send + '_>>> = Vec::new();
            for member in &self.members {
                closing.push(Box::pin(member.registry.shutdown(CALL_WITHIN)));
            }
            std::future::poll_fn(|cx| {
                closing.retain_mut(|one| one.as_mut().poll(cx).is_pending());
                if closing.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            Ok(())
        })
    }
}

/// Waits until one of the views is another, or it is time to look again.
async fn changed(views: &mut [Subscription], again: Option<Instant>) {
    let mut waits: Vec<_> = views
        .iter_mut()
        .map(|view| {
            Box::pin(async {
                // A member that was shut down says no more.
                if view.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            })
        })
        .collect();
    let any = std::future::poll_fn(|cx| {
        if waits.iter_mut().any(|wait| wait.as_mut().poll(cx).is_ready()) { Poll::Ready(()) } else { Poll::Pending }
    });
    tokio::select! {
        () = any => {}
        () = async {
            match again {
                Some(again) => tokio::time::sleep_until(again).await,
                None => std::future::pending().await,
            }
        } => {}
    }
}

impl From<Combined> for SeenState {
    fn from(combined: Combined) -> Self {
        match combined {
            Combined::Service(snapshot) => Self::Service(snapshot),
            Combined::Unknown => Self::UnknownService,
            Combined::Unusable(message, ErrorKind::Unreachable) => {
                Self::Unreachable(DriverError::new(ErrorKind::Unreachable, message))
            }
            Combined::Unusable(message, kind) => Self::Unusable(DriverError::new(kind, message)),
        }
    }
}

fn has_instances(view: &View) -> bool {
    view.snapshot.as_ref().is_some_and(|snapshot| !snapshot.instances.is_empty())
}

/// What two registries must agree on to mean the same instance: hosts as IP addresses where they are, else without case.
fn place(instance: &Instance) -> (String, u16) {
    let address = &instance.address;
    let host = address.ip().map_or_else(|| address.host().to_ascii_lowercase(), |ip| ip.to_string());
    (host, address.port())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
