//! A registry as tests use it: quick to try again, never waiting for ever.

use std::future::Future;
use std::time::Duration;

use metaroute_core::instance::Instance;
use metaroute_core::resilience::backoff::Policy;
use metaroute_registry::{Options, Registration, Registry, RegistryUrl, State, Subscription, View};

/// Generous: the machine may be busy, and a connection that is of no use is noticed late.
pub(crate) const SOON: Duration = Duration::from_secs(45);

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

pub(crate) async fn register(registry: &Registry, service: &str, instance: Instance) -> Registration {
    let mut registration = registry.register(service, instance).expect("valid");
    registered(&mut registration).await;
    registration
}

/// All addresses of a view, sorted.
pub(crate) fn addresses(view: &View) -> Vec<String> {
    let instances = view.snapshot.iter().flat_map(|snapshot| &snapshot.instances);
    let mut list: Vec<String> = instances.map(|one| one.address.to_string()).collect();
    list.sort();
    list
}

/// Whether a view is up to date and has these addresses, sorted.
pub(crate) fn lists<'a>(wanted: &'a [&'a str]) -> impl Fn(&View) -> bool + 'a {
    move |view| view.state == State::Fresh && addresses(view) == wanted
}

/// How many instances there are, in a view that is up to date.
pub(crate) fn count(view: &View) -> Option<usize> {
    view.snapshot.as_ref().filter(|_| view.state == State::Fresh).map(|snapshot| snapshot.instances.len())
}

pub(crate) fn by_address<'a>(view: &'a View, address: &str) -> &'a Instance {
    let snapshot = view.snapshot.as_ref().expect("a list");
    snapshot.instances.iter().find(|i| i.address.to_string() == address).expect("it is there")
}

/// The one instance of a view.
pub(crate) fn only(view: &View) -> Option<&Instance> {
    match view.snapshot.as_ref().map(|snapshot| &*snapshot.instances) {
        Some([one]) => Some(one),
        _ => None,
    }
}

/// Waits for a view, or panics with the last one.
pub(crate) async fn await_view(seen: &mut Subscription, what: &str, wanted: impl Fn(&View) -> bool) -> View {
    match tokio::time::timeout(SOON, seen.wait_for(|view| wanted(view))).await {
        Ok(view) => view.expect("the registry is open"),
        Err(_) => panic!("not seen: {what}; last: {:?}", seen.current()),
    }
}

/// A view of a service in any state.
pub(crate) async fn see_that(registry: &Registry, service: &str, what: &str, wanted: impl Fn(&View) -> bool) -> View {
    await_view(&mut registry.subscribe(service), &format!("{service}: {what}"), wanted).await
}

/// A view of a service that is up to date.
pub(crate) async fn see_if(registry: &Registry, service: &str, what: &str, wanted: impl Fn(&View) -> bool) -> View {
    let current = |view: &View| matches!(view.state, State::Fresh | State::UnknownService);
    see_that(registry, service, what, |view| current(view) && wanted(view)).await
}

pub(crate) async fn see(registry: &Registry, service: &str, wanted: &[&str]) -> View {
    let mut sorted = wanted.to_vec();
    sorted.sort_unstable();
    see_if(registry, service, &format!("{wanted:?}"), |view| addresses(view) == sorted).await
}
