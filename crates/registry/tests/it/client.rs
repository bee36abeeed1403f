//! A registry as tests use it: quick to try again, never waiting for ever.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use metaroute_core::instance::Instance;
use metaroute_core::resilience::backoff::Policy;
use metaroute_registry::{Options, Registration, Registry, RegistryUrl, State, View};

/// Generous: the machine may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

pub(crate) fn connect(url: &str) -> Registry {
    let url: RegistryUrl = url.parse().expect("an address");
    let policy: Policy = "exponential:100ms,2,1s,full".parse().expect("a valid policy");
    Registry::connect_with(&url, Options { policy, ..Options::default() }).expect("it is built in")
}

pub(crate) fn instance(address: &str) -> Instance {
    Instance::new(address.parse().expect("an address"))
}

pub(crate) async fn registered(registration: &mut Registration) {
    tokio::time::timeout(SOON, registration.registered()).await.expect("in time").expect("taken");
}

pub(crate) fn addresses(view: &View) -> BTreeSet<String> {
    view.snapshot.iter().flat_map(|snapshot| &snapshot.instances).map(|i| i.address.to_string()).collect()
}

pub(crate) fn by_address<'a>(view: &'a View, address: &str) -> &'a Instance {
    let snapshot = view.snapshot.as_ref().expect("a list");
    snapshot.instances.iter().find(|i| i.address.to_string() == address).expect("it is there")
}

pub(crate) async fn see_if(registry: &Registry, service: &str, what: &str, wanted: impl Fn(&View) -> bool) -> View {
    let mut subscription = registry.subscribe(service);
    let seen = subscription.wait_for(|view| matches!(view.state, State::Fresh | State::UnknownService) && wanted(view));
    match tokio::time::timeout(SOON, seen).await {
        Ok(view) => view.expect("the registry is open"),
        Err(_) => panic!("{service}: {what} not seen; last: {:?}", subscription.current()),
    }
}

pub(crate) async fn see(registry: &Registry, service: &str, wanted: &[&str]) -> View {
    let set: BTreeSet<String> = wanted.iter().map(|&address| address.to_owned()).collect();
    see_if(registry, service, &format!("{wanted:?}"), |view| addresses(view) == set).await
}
