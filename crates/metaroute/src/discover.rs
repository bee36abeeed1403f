//! The instances that the rules leave, as a `Discover` stream: for tower's own balancer and whatever else wants the
//! whole set instead of one pick.
//!
//! What is lost this way: weights, tiers, sessions and the balancer of the rules; and the request, because the set is
//! made before there is one. Use [`Route`](crate::Route) unless the receiving side needs a set.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use futures_util::stream::{Stream, StreamExt};
use metaroute_core::{Incarnation, Instance, InstanceId, Request};
use tokio::sync::watch;
use tower::discover::Change;

use crate::live::LiveSelector;

/// What names an instance over its life: its id and incarnation, so that a process born again is another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Unique inside the service.
    pub id: InstanceId,
    /// Which life of it.
    pub incarnation: Incarnation,
}

/// A stream of the changes to the filtered set. Never ends, and never fails.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use futures_util::StreamExt;
/// use metaroute::{Connection, Discover, Instance, Memory, Registry, Request};
/// use tower::discover::Change;
///
/// let memory = Memory::new();
/// memory.register("orders", Instance::new("10.0.0.1:80".parse()?).with_meta("tier", "1"))?;
/// memory.register("orders", Instance::new("10.0.0.2:80".parse()?).with_meta("tier", "2"))?;
/// let connection = Connection::new(Registry::new(memory));
/// let orders = connection.service("orders").rules("tier == 2").start().await?;
/// let mut changes = Discover::new(orders, Request::default(), |instance| instance.address.clone());
/// let Some(Ok(Change::Insert(_, address))) = changes.next().await else { panic!("an instance is left") };
/// assert_eq!(address.to_string(), "10.0.0.2:80");
/// # Ok(())
/// # }
/// ```
pub struct Discover<T> {
    changes: Pin<Box<dyn Stream<Item = Change<Key, T>> + Send>>,
}

impl<T: Send + 'static> Discover<T> {
    /// Follows the candidates of one request, usually one without values. `make` is called for each instance that
    /// joins, and again when anything about it but its health changes: the new value replaces the old one.
    pub fn new(live: LiveSelector, request: Request, make: impl FnMut(&Instance) -> T + Send + 'static) -> Self {
        let revisions = live.revisions();
        let state =
            Follow { live, request, make, revisions, known: BTreeMap::new(), waiting: VecDeque::new(), first: true };
        let changes = futures_util::stream::unfold(state, |mut state| async move {
            let change = state.next().await?;
            Some((change, state))
        });
        Self { changes: Box::pin(changes) }
    }
}

impl<T> Stream for Discover<T> {
    type Item = Result<Change<Key, T>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        self.changes.poll_next_unpin(cx).map(|change| change.map(Ok))
    }
}

impl<T> fmt::Debug for Discover<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Discover").finish_non_exhaustive()
    }
}

struct Follow<T, F> {
    live: LiveSelector,
    request: Request,
    make: F,
    revisions: watch::Receiver<u64>,
    known: BTreeMap<Key, Instance>,
    waiting: VecDeque<Change<Key, T>>,
    first: bool,
}

impl<T, F: FnMut(&Instance) -> T> Follow<T, F> {
    async fn next(&mut self) -> Option<Change<Key, T>> {
        loop {
            if let Some(change) = self.waiting.pop_front() {
                return Some(change);
            }
            if !std::mem::take(&mut self.first) {
                self.revisions.changed().await.ok()?;
            }
            self.revisions.mark_unchanged();
            self.compare();
        }
    }

    fn compare(&mut self) {
        let kept = self.live.explain(&self.request).instances.into_iter().filter(|explained| explained.kept);
        let new: BTreeMap<Key, Instance> = kept
            .map(|explained| {
                let mut instance = explained.instance;
                // Who is kept is usable, in panic too: its own word on its health changes nothing here.
                instance.healthy = true;
                (Key { id: instance.id.clone(), incarnation: instance.incarnation.clone() }, instance)
            })
            .collect();
        let gone = self.known.keys().filter(|key| !new.contains_key(*key)).cloned();
        self.waiting.extend(gone.map(Change::Remove));
        for (key, instance) in &new {
            if self.known.get(key) != Some(instance) {
                self.waiting.push_back(Change::Insert(key.clone(), (self.make)(instance)));
            }
        }
        self.known = new;
    }
}
