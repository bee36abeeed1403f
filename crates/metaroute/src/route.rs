//! A tower service that sends each request to the instance the rules pick for it.
//!
//! tower's own balancer keeps a set of ready services and lets two random ones race by load; which instance a request
//! goes to is decided before the request is seen. Here the request decides: [`Route`] reads its values, picks in
//! `call`, and sends it there. What it promises:
//!
//! - **Our pick stands.** Nothing behind it chooses again.
//! - **Nothing is sent twice.** A request moves on to another instance only while it has not left: when no connection
//!   could be made, or the connection did not become ready. Once it was handed over, its failure is the caller's.
//! - **Moving on is paid for** from a [`RetryBudget`], so that an outage costs the others at most a fifth more, and ends
//!   after [`RouteBuilder::attempts_max`] instances.
//! - **Everything is bounded**: requests under way, connections kept, the time an instance has to become ready.
//! - **Outcomes come back.** Each pick ends with the outcome and the latency of the response head; a caller that gives
//!   up ends it as abandoned. Ejection and the load balancers live on that.
//!
//! Connections are made by a factory and kept per *incarnation*: the next process on the same address gets a new one.
//!
//! When not to use it: for retries of requests that failed after they were sent. Put tower's retry layer around it,
//! for idempotent requests only.

mod connections;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use metaroute_core::resilience::budget::RetryBudget;
use metaroute_core::{Instance, InstanceId, NoPick, Outcome, Reason, Request};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tower::{Service, ServiceExt};

use crate::live::{LiveSelector, Routed};
use connections::Connections;

/// An error of somebody else's type.
pub type BoxError = Box<dyn Error + Send + Sync>;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// `Sync`, so that a route may be shared by reference.
type Acquire = Pin<Box<dyn Future<Output = OwnedSemaphorePermit> + Send + Sync>>;
type Connect<S> = Box<dyn Fn(Instance) -> BoxFuture<Result<S, BoxError>> + Send + Sync>;
type ReadRequest<Req> = Box<dyn Fn(&LiveSelector, &Req) -> Request + Send + Sync>;
type Judge<R, E> = Box<dyn Fn(Result<&R, &E>) -> Outcome + Send + Sync>;
type IsUnsent<E> = Box<dyn Fn(&E) -> bool + Send + Sync>;
type CopyRequest<Req> = Box<dyn Fn(&Req) -> Option<Req> + Send + Sync>;

/// Sends each request to the instance picked for it. Clones share connections, limits and the budget.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use metaroute::route::{BoxError, Route};
/// use metaroute::{Connection, Instance, Memory, Registry};
/// use tower::{ServiceExt, service_fn};
///
/// let memory = Memory::new();
/// memory.register("orders", Instance::new("10.0.0.1:80".parse()?).with_meta("lane", "canary"))?;
/// memory.register("orders", Instance::new("10.0.0.2:80".parse()?).with_meta("lane", "stable"))?;
/// let connection = Connection::new(Registry::new(memory));
/// let orders = connection.service("orders").rules("lane == $req.lane").start().await?;
/// orders.ready(Duration::from_secs(5)).await?;
///
/// // A "connection" that answers with its own address.
/// let route = Route::builder(orders, async |instance: Instance| {
///     let here = instance.address.to_string();
///     Ok::<_, BoxError>(service_fn(move |_: String| std::future::ready(Ok::<_, BoxError>(here.clone()))))
/// })
/// .context(|orders, lane: &String| orders.request([("lane", lane.as_str())]))
/// .build();
/// assert_eq!(route.oneshot("canary".to_owned()).await?, "10.0.0.1:80");
/// # Ok(())
/// # }
/// ```
pub struct Route<Req, S: Service<Req>> {
    shared: Arc<Shared<Req, S>>,
    permit: Option<OwnedSemaphorePermit>,
    acquire: Option<Acquire>,
}

struct Shared<Req, S: Service<Req>> {
    live: LiveSelector,
    connect: Connect<S>,
    context: ReadRequest<Req>,
    judge: Judge<S::Response, S::Error>,
    unsent: Option<(CopyRequest<Req>, IsUnsent<S::Error>)>,
    ready_timeout: Duration,
    attempts_max: usize,
    connections: Connections<S>,
    in_flight: Arc<Semaphore>,
    budget: Arc<RetryBudget>,
    /// What the budget's time counts from.
    epoch: Instant,
    /// Seconds at the last tick of the budget.
    ticked: AtomicU64,
    counts: Routed,
}

/// Sums of a [`Route`] since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteCounters {
    /// Requests.
    pub requests: u64,
    /// Times a request moved on to another instance before it was sent.
    pub moved: u64,
    /// Times it did not because the budget was spent.
    pub budget_refused: u64,
    /// Connections kept now.
    pub connections: usize,
}

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// No instance could be picked. Nothing was sent.
    #[error("no instance of `{service}` for this request")]
    NoInstance {
        /// The service.
        service: String,
        /// The reason and the counts per stage.
        #[source]
        source: NoPick,
    },
    /// No picked instance could be reached. Nothing was sent.
    #[error("instance `{instance}` of `{service}` could not be reached, {attempts} tried")]
    Unreachable {
        /// The service.
        service: String,
        /// The instance tried last.
        instance: InstanceId,
        /// Instances tried.
        attempts: usize,
        /// Why the last one could not be reached.
        #[source]
        source: BoxError,
    },
    /// The request was handed to an instance and failed. It may have had its effect.
    #[error("the request to instance `{instance}` of `{service}` failed")]
    Call {
        /// The service.
        service: String,
        /// The instance.
        instance: InstanceId,
        /// The connection's own error.
        #[source]
        source: BoxError,
    },
}

impl RouteError {
    /// Whether the request certainly had no effect, so that anything may be done with it again.
    pub fn is_unsent(&self) -> bool {
        !matches!(self, Self::Call { .. })
    }
}

/// Connecting, or waiting for a connection to take a request, took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not ready after {0:?}")]
pub struct NotReadyInTime(pub Duration);

/// The options of a [`Route`].
pub struct RouteBuilder<Req, S: Service<Req>> {
    shared: Shared<Req, S>,
}

impl<Req, S> Route<Req, S>
where
    S: Service<Req> + Clone,
{
    /// Begins a route over a live selector. `connect` makes the service behind one instance; it is called again after
    /// that service stopped becoming ready, and for each incarnation.
    pub fn builder<F, Fut, E>(live: LiveSelector, connect: F) -> RouteBuilder<Req, S>
    where
        F: Fn(Instance) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<S, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let epoch = Instant::now();
        RouteBuilder {
            shared: Shared {
                live,
                connect: Box::new(move |instance| {
                    let connecting = connect(instance);
                    Box::pin(async move { connecting.await.map_err(Into::into) })
                }),
                context: Box::new(|_, _| Request::default()),
                judge: Box::new(|result| if result.is_ok() { Outcome::Success } else { Outcome::Failure }),
                unsent: None,
                ready_timeout: Duration::from_secs(3),
                attempts_max: 3,
                connections: Connections::new(256),
                in_flight: Arc::new(Semaphore::new(1024)),
                budget: Arc::new(RetryBudget::standard(Duration::ZERO)),
                epoch,
                ticked: AtomicU64::new(0),
                counts: Routed::default(),
            },
        }
    }

    /// The selector that picks.
    pub fn live(&self) -> &LiveSelector {
        &self.shared.live
    }

    /// Sums since the route was built.
    pub fn counters(&self) -> RouteCounters {
        let counts = &self.shared.counts;
        RouteCounters {
            requests: counts.requests.load(Ordering::Relaxed),
            moved: counts.moved.load(Ordering::Relaxed),
            budget_refused: counts.refused.load(Ordering::Relaxed),
            connections: self.shared.connections.len(),
        }
    }
}

impl<Req, S: Service<Req>> RouteBuilder<Req, S> {
    /// Says what the rules may read of a request: its `$req` values, hash key and session. Default: nothing.
    #[must_use]
    pub fn context(mut self, read: impl Fn(&LiveSelector, &Req) -> Request + Send + Sync + 'static) -> Self {
        self.shared.context = Box::new(read);
        self
    }

    /// Says what a response means for the instance. Default: a response is a success, an error a failure.
    #[must_use]
    pub fn outcome(
        mut self,
        judge: impl Fn(Result<&S::Response, &S::Error>) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        self.shared.judge = Box::new(judge);
        self
    }

    /// For services that connect inside `call`, such as an HTTP client: `is_unsent` recognises the errors that come
    /// from before anything was sent (connection refused), and such a request moves on as a copy made by `copy`. `None`
    /// as copy means that this request cannot be copied.
    #[must_use]
    pub fn when_unsent(
        mut self,
        copy: impl Fn(&Req) -> Option<Req> + Send + Sync + 'static,
        is_unsent: impl Fn(&S::Error) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.shared.unsent = Some((Box::new(copy), Box::new(is_unsent)));
        self
    }

    /// Most instances one request is tried on. Default: 3.
    #[must_use]
    pub fn attempts_max(mut self, attempts: usize) -> Self {
        self.shared.attempts_max = attempts.max(1);
        self
    }

    /// Pays for moving on from this budget, which may be shared with other routes and retries. Default: one of its
    /// own, [`RetryBudget::standard`]. The route ticks it; its time must count from when it was made.
    #[must_use]
    pub fn budget(mut self, budget: Arc<RetryBudget>) -> Self {
        self.shared.budget = budget;
        self
    }

    /// How long an instance has to become ready, connecting included. Default: 3 s.
    #[must_use]
    pub fn ready_timeout(mut self, timeout: Duration) -> Self {
        self.shared.ready_timeout = timeout;
        self
    }

    /// Most requests under way; further ones wait in `poll_ready`. Default: 1,024, as Envoy's.
    #[must_use]
    pub fn in_flight_max(mut self, requests: usize) -> Self {
        self.shared.in_flight = Arc::new(Semaphore::new(requests.clamp(1, Semaphore::MAX_PERMITS)));
        self
    }

    /// Most connections kept; beyond that the one that rested longest is dropped. Default: 256.
    #[must_use]
    pub fn connections_max(mut self, connections: usize) -> Self {
        self.shared.connections = Connections::new(connections.max(1));
        self
    }

    /// The service.
    pub fn build(self) -> Route<Req, S> {
        Route { shared: Arc::new(self.shared), permit: None, acquire: None }
    }
}

impl<Req, S: Service<Req>> Clone for Route<Req, S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), permit: None, acquire: None }
    }
}

impl<Req, S: Service<Req>> fmt::Debug for Route<Req, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route").field("live", &self.shared.live).finish_non_exhaustive()
    }
}

impl<Req, S: Service<Req>> fmt::Debug for RouteBuilder<Req, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteBuilder").field("live", &self.shared.live).finish_non_exhaustive()
    }
}

impl<Req, S> Service<Req> for Route<Req, S>
where
    Req: Send + 'static,
    S: Service<Req> + Clone + Send + 'static,
    S::Response: Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = RouteError;
    type Future = BoxFuture<Result<S::Response, RouteError>>;

    /// Ready while fewer than [`RouteBuilder::in_flight_max`] requests are under way.
    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), RouteError>> {
        if self.permit.is_some() {
            return Poll::Ready(Ok(()));
        }
        let shared = &self.shared;
        let acquire = self.acquire.get_or_insert_with(|| Box::pin(permit(Arc::clone(&shared.in_flight))));
        let permit = std::task::ready!(acquire.as_mut().poll(cx));
        self.acquire = None;
        self.permit = Some(permit);
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let ready = self.permit.take();
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let _permit = match ready {
                Some(ready) => ready,
                // Called without being asked first.
                None => permit(Arc::clone(&shared.in_flight)).await,
            };
            shared.send(request).await
        })
    }
}

async fn permit(semaphore: Arc<Semaphore>) -> OwnedSemaphorePermit {
    semaphore.acquire_owned().await.expect("nobody closes the semaphore")
}

impl<Req, S> Shared<Req, S>
where
    Req: Send + 'static,
    S: Service<Req> + Clone + Send + 'static,
    S::Response: Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    S::Future: Send + 'static,
{
    async fn send(&self, mut request: Req) -> Result<S::Response, RouteError> {
        self.count(|routed| &routed.requests);
        self.tick();
        self.budget.deposit();
        self.connections.follow(&self.live);
        let context = (self.context)(&self.live, &request);
        let mut tried: Vec<InstanceId> = Vec::new();
        let mut last = None;
        loop {
            let pick = match (self.live.select_next(&context, &tried), last.take()) {
                // One that was just found unreachable is offered again: dialling it at once would only be a hammer.
                (Ok(pick), Some((instance, source))) if pick.reason() == Reason::ExclusionRelaxed => {
                    return Err(self.unreachable(instance, tried.len(), source));
                }
                (Ok(pick), _) => pick,
                (Err(_), Some((instance, source))) => return Err(self.unreachable(instance, tried.len(), source)),
                (Err(source), None) => return Err(RouteError::NoInstance { service: self.service(), source }),
            };
            let begun = Instant::now();
            let failure = match self.ready_connection(pick.instance()).await {
                Ok(mut connection) => {
                    let copy = self.unsent.as_ref().and_then(|(copy, _)| copy(&request));
                    match connection.call(request).await {
                        Ok(response) => {
                            pick.complete((self.judge)(Ok(&response)), begun.elapsed());
                            return Ok(response);
                        }
                        Err(error) => {
                            let instance = pick.instance().id.clone();
                            pick.complete((self.judge)(Err(&error)), begun.elapsed());
                            let unsent = self.unsent.as_ref().is_some_and(|(_, is_unsent)| is_unsent(&error));
                            let Some(again) = copy.filter(|_| unsent) else {
                                let source = error.into();
                                return Err(RouteError::Call { service: self.service(), instance, source });
                            };
                            request = again;
                            (instance, error.into())
                        }
                    }
                }
                Err(error) => {
                    let instance = pick.instance().id.clone();
                    pick.complete(Outcome::Failure, begun.elapsed());
                    (instance, error)
                }
            };
            let (instance, source) = failure;
            tried.push(instance.clone());
            let give_up = tried.len() >= self.attempts_max || {
                let paid = self.budget.try_withdraw();
                self.count(|routed| if paid { &routed.moved } else { &routed.refused });
                !paid
            };
            if give_up {
                return Err(self.unreachable(instance, tried.len(), source));
            }
            last = Some((instance, source));
        }
    }

    /// Counts for this route and for all of the same selector.
    fn count(&self, which: impl Fn(&Routed) -> &AtomicU64) {
        for counts in [&self.counts, self.live.routed()] {
            which(counts).fetch_add(1, Ordering::Relaxed);
        }
    }

    fn unreachable(&self, instance: InstanceId, attempts: usize, source: BoxError) -> RouteError {
        RouteError::Unreachable { service: self.service(), instance, attempts, source }
    }

    /// A connection to an instance that takes a request now.
    ///
    /// A kept connection that is no longer ready says little about the instance, which may close idle ones: a new one
    /// decides.
    async fn ready_connection(&self, instance: &Instance) -> Result<S, BoxError> {
        let ready = async {
            loop {
                let (mut connection, made) = match self.connections.kept(instance) {
                    Ok((connection, made)) => (connection, Some(made)),
                    Err(dial) => {
                        (self.connections.dial(instance, &dial, || (self.connect)(instance.clone())).await?, None)
                    }
                };
                match connection.ready().await {
                    Ok(_) => return Ok(connection),
                    Err(error) => {
                        self.connections.forget(instance, made);
                        if made.is_none() {
                            return Err(error.into());
                        }
                    }
                }
            }
        };
        match tokio::time::timeout(self.ready_timeout, ready).await {
            Ok(result) => result,
            Err(_) => {
                // Whatever hangs there must not be handed to the next one.
                self.connections.forget(instance, None);
                Err(NotReadyInTime(self.ready_timeout).into())
            }
        }
    }

    fn service(&self) -> String {
        self.live.service().to_owned()
    }

    /// Lets the budget's time pass, about once a second while there are requests.
    fn tick(&self) {
        let elapsed = self.epoch.elapsed();
        if self.ticked.fetch_max(elapsed.as_secs(), Ordering::Relaxed) < elapsed.as_secs() {
            self.budget.tick(elapsed);
        }
    }
}
