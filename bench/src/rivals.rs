//! The rivals' balancers.
//!
//! None of them looks at metadata: they choose among everything they were given, which is the least work a balancer can do.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use async_trait::async_trait;
use futures::FutureExt;
use futures::task::noop_waker;
use pingora_load_balancing::discovery::{self, ServiceDiscovery};
use pingora_load_balancing::selection::{self, BackendIter, BackendSelection};
use pingora_load_balancing::{Backend, Backends, LoadBalancer};
use tower::Service;
use tower::balance::p2c::Balance;
use tower::discover::ServiceList;
use tower::load::{CompleteOnResponse, PendingRequestsDiscover};
use volo::context::Endpoint;
use volo::discovery::WeightedStaticDiscover;
use volo::loadbalance::consistent_hash::{ConsistentHashBalance, ConsistentHashOption};
use volo::loadbalance::random::WeightedRandomBalance;
use volo::loadbalance::{LoadBalance, RequestHash};
use volo::net::Address;

use crate::fleet::Member;

/// pingora's load balancer with one of its selection algorithms, as `LoadBalancer::select` is documented.
pub struct Pingora<S: BackendSelection>(LoadBalancer<S>);

/// Weighted random.
pub type PingoraRandom = Pingora<selection::Random>;
/// Weighted round robin.
pub type PingoraRoundRobin = Pingora<selection::RoundRobin>;
/// Ketama consistent hashing.
pub type PingoraConsistent = Pingora<selection::Consistent>;

fn backends(members: &[Member]) -> BTreeSet<Backend> {
    members
        .iter()
        .map(|member| {
            Backend::new_with_weight(&member.address.to_string(), member.weight as usize)
                .expect("an address is an address")
        })
        .collect()
}

impl<S> Pingora<S>
where
    S: BackendSelection + 'static,
    S::Iter: BackendIter,
{
    /// Builds the balancer and its first selection.
    pub fn new(members: &[Member]) -> Self {
        let balancer = LoadBalancer::from_backends(Backends::new(discovery::Static::new(backends(members))));
        balancer.update().now_or_never().expect("a static list is there at once").expect("a static list is valid");
        Self(balancer)
    }

    /// The documented call: skips unhealthy backends, returns a clone.
    pub fn pick(&self, key: &[u8]) -> Option<Backend> {
        self.0.select(key, 256)
    }
}

/// pingora's load balancer over a list that changes.
pub struct PingoraRebuild {
    balancer: LoadBalancer<selection::Random>,
    list: Arc<Mutex<BTreeSet<Backend>>>,
}

struct Changing(Arc<Mutex<BTreeSet<Backend>>>);

#[async_trait]
impl ServiceDiscovery for Changing {
    async fn discover(&self) -> pingora_error::Result<(BTreeSet<Backend>, HashMap<u64, bool>)> {
        Ok((self.0.lock().expect("nothing panics with the list").clone(), HashMap::new()))
    }
}

impl PingoraRebuild {
    /// Starts with the members.
    pub fn new(members: &[Member]) -> Self {
        let list = Arc::new(Mutex::new(backends(members)));
        let balancer = LoadBalancer::from_backends(Backends::new(Box::new(Changing(Arc::clone(&list)))));
        let new = Self { balancer, list };
        new.update();
        new
    }

    /// What the next update will find.
    pub fn change(&self, members: &[Member]) {
        *self.list.lock().expect("nothing panics with the list") = backends(members);
    }

    /// Takes in the list and builds its table. It includes a copy of the list, as in every discovery that keeps one.
    pub fn update(&self) {
        self.balancer.update().now_or_never().expect("the list is there at once").expect("the list is valid");
    }
}

/// pingora's selection without its load balancer: no health, no clone, no shared pointer. The floor of what pingora can do.
pub struct PingoraBare<S>(Arc<S>);

impl<S> PingoraBare<S>
where
    S: BackendSelection,
    S::Iter: BackendIter,
{
    /// Builds the selection.
    pub fn new(members: &[Member]) -> Self {
        Self(Arc::new(S::build(&backends(members))))
    }

    /// The first choice for the key.
    pub fn pick(&self, key: &[u8]) -> Option<usize> {
        self.0.iter(key).next().map(|backend| backend.weight)
    }
}

/// volo's weighted random balancer.
pub struct VoloRandom {
    discover: WeightedStaticDiscover,
    balance: WeightedRandomBalance<()>,
    endpoint: Endpoint,
}

fn discover(members: &[Member]) -> WeightedStaticDiscover {
    WeightedStaticDiscover::from(members.iter().map(|member| (member.address, member.weight)).collect::<Vec<_>>())
}

impl VoloRandom {
    /// Builds the balancer; it computes its table at the first pick.
    pub fn new(members: &[Member]) -> Self {
        let discover = discover(members);
        let balance = WeightedRandomBalance::with_discover(&discover);
        Self { discover, balance, endpoint: Endpoint::new("orders".into()) }
    }

    /// What volo's client layer does per call.
    pub fn pick(&self) -> Option<Address> {
        let picker = self.balance.get_picker(&self.endpoint, &self.discover).now_or_never()?;
        picker.ok()?.next()
    }
}

/// volo's consistent hash balancer with its default options.
pub struct VoloConsistent {
    discover: WeightedStaticDiscover,
    balance: ConsistentHashBalance<()>,
    endpoint: Endpoint,
}

impl VoloConsistent {
    /// Builds the balancer; it computes its ring at the first pick.
    pub fn new(members: &[Member]) -> Self {
        let discover = discover(members);
        let balance = ConsistentHashBalance::new(ConsistentHashOption::default());
        Self { discover, balance, endpoint: Endpoint::new("orders".into()) }
    }

    /// What volo's client layer does per call. Must run inside [`with_request_info`], where volo keeps the request's hash.
    pub fn pick(&self, hash: u64) -> Option<Address> {
        metainfo::METAINFO.with(|info| info.borrow_mut().insert(RequestHash(hash)));
        let picker = self.balance.get_picker(&self.endpoint, &self.discover).now_or_never()?;
        picker.ok()?.next()
    }
}

/// Runs `work` where volo finds its request information.
pub fn with_request_info<T>(work: impl FnOnce() -> T) -> T {
    metainfo::METAINFO.sync_scope(std::cell::RefCell::new(metainfo::MetaInfo::default()), work)
}

/// A service that answers at once with its own address.
#[derive(Debug, Clone)]
pub struct Instant(SocketAddr);

impl Service<()> for Instant {
    type Response = SocketAddr;
    type Error = Infallible;
    type Future = Ready<Result<SocketAddr, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(self.0))
    }
}

/// tower's power-of-two-choices balancer by pending requests.
pub struct TowerP2c(Balance<PendingRequestsDiscover<ServiceList<Vec<Instant>>>, ()>);

impl TowerP2c {
    /// Builds the balancer; it takes in its services at the first pick. Weights are unknown to it.
    pub fn new(members: &[Member]) -> Self {
        let services = members.iter().map(|member| Instant(member.address)).collect::<Vec<_>>();
        let list = ServiceList::new::<()>(services);
        Self(Balance::new(PendingRequestsDiscover::new::<()>(list, CompleteOnResponse::default())))
    }

    /// One ready-and-call, which is how tower picks; the service itself does nothing.
    pub fn pick(&mut self) -> Option<SocketAddr> {
        let waker = noop_waker();
        let Poll::Ready(Ok(())) = self.0.poll_ready(&mut Context::from_waker(&waker)) else { return None };
        self.0.call(()).now_or_never()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::members;

    #[test]
    fn every_rival_picks() {
        let members = members(100);
        assert!(PingoraRandom::new(&members).pick(b"").is_some());
        assert!(PingoraRoundRobin::new(&members).pick(b"").is_some());
        assert!(PingoraConsistent::new(&members).pick(b"k").is_some());
        assert!(PingoraBare::<selection::Random>::new(&members).pick(b"").is_some());
        assert!(VoloRandom::new(&members).pick().is_some());
        with_request_info(|| assert!(VoloConsistent::new(&members).pick(7).is_some()));
        assert!(TowerP2c::new(&members).pick().is_some());
    }
}
