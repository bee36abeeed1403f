//! The tower service over driven fakes: who refuses, who stops being ready, who fails after the request was sent.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use metaroute::route::{BoxError, NotReadyInTime, Route, RouteBuilder, RouteError};
use metaroute::{Connection, Discover, Instance, LiveSelector, Memory, NoPickReason, Registry, Request, RetryBudget};
use metaroute_core::Incarnation;
use tower::discover::Change;
use tower::{Service, ServiceExt};

use crate::wait::until;

const SOON: Duration = Duration::from_secs(10);

/// How a fake server behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mode {
    #[default]
    Answers,
    RefusesConnections,
    NeverAcceptsConnections,
    ClosesIdleConnections,
    FailsAfterSending,
    RefusesInsideCall,
    NeverAnswers,
}

#[derive(Default)]
struct Servers {
    modes: HashMap<String, Mode>,
    dials: Vec<String>,
    /// Requests that reached a server, with its name.
    sent: Vec<(u32, String)>,
}

#[derive(Clone, Default)]
struct World {
    memory: Memory,
    servers: Arc<Mutex<Servers>>,
}

impl World {
    fn of(names: &[&str]) -> Self {
        let world = Self::default();
        for name in names {
            world.memory.register("orders", instance(name)).unwrap();
        }
        world
    }

    fn set(&self, name: &str, mode: Mode) {
        self.servers.lock().unwrap().modes.insert(name.to_owned(), mode);
    }

    fn dials(&self, name: &str) -> usize {
        self.servers.lock().unwrap().dials.iter().filter(|dialled| *dialled == name).count()
    }

    fn sent(&self) -> Vec<(u32, String)> {
        self.servers.lock().unwrap().sent.clone()
    }

    async fn live(&self) -> LiveSelector {
        let connection = Connection::new(Registry::new(self.memory.clone()));
        let live = connection.service("orders").seed(1).start().await.unwrap();
        live.ready(SOON).await.unwrap();
        live
    }

    /// A route that may always move on; tests of the budget set their own.
    async fn route(&self) -> RouteBuilder<u32, Wire> {
        self.route_over(self.live().await)
    }

    fn route_over(&self, live: LiveSelector) -> RouteBuilder<u32, Wire> {
        let servers = Arc::clone(&self.servers);
        let rich = RetryBudget::new(1000.0, 0.0, Duration::ZERO).unwrap();
        Route::builder(live, move |instance: Instance| {
            let name = instance.address.host().to_owned();
            let servers = Arc::clone(&servers);
            async move {
                let mode = {
                    let mut servers = servers.lock().unwrap();
                    servers.dials.push(name.clone());
                    servers.modes.get(&name).copied().unwrap_or_default()
                };
                match mode {
                    Mode::RefusesConnections => Err(BoxError::from("connection refused")),
                    Mode::NeverAcceptsConnections => std::future::pending().await,
                    _ => Ok(Wire { name, servers, used: Arc::default() }),
                }
            }
        })
        .budget(Arc::new(rich))
    }
}

fn instance(name: &str) -> Instance {
    Instance::new(format!("{name}:1").parse().unwrap())
}

/// A connection to a fake server.
#[derive(Clone)]
struct Wire {
    name: String,
    servers: Arc<Mutex<Servers>>,
    used: Arc<AtomicBool>,
}

impl Wire {
    fn mode(&self) -> Mode {
        self.servers.lock().unwrap().modes.get(&self.name).copied().unwrap_or_default()
    }
}

impl Service<u32> for Wire {
    type Response = String;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<String, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let closed = matches!(self.mode(), Mode::ClosesIdleConnections | Mode::RefusesConnections);
        if closed && self.used.load(Ordering::Relaxed) {
            return Poll::Ready(Err("connection closed".into()));
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u32) -> Self::Future {
        let mode = self.mode();
        self.used.store(true, Ordering::Relaxed);
        if mode != Mode::RefusesInsideCall {
            self.servers.lock().unwrap().sent.push((request, self.name.clone()));
        }
        let name = self.name.clone();
        Box::pin(async move {
            match mode {
                Mode::FailsAfterSending => Err("connection reset".into()),
                Mode::RefusesInsideCall => Err("refused inside call".into()),
                Mode::NeverAnswers => std::future::pending().await,
                _ => Ok(name),
            }
        })
    }
}

async fn call(route: &Route<u32, Wire>, request: u32) -> Result<String, RouteError> {
    route.clone().oneshot(request).await
}

#[tokio::test(start_paused = true)]
async fn a_refused_connection_moves_on_and_nothing_is_sent_twice() {
    let world = World::of(&["a", "b", "c"]);
    world.set("a", Mode::RefusesConnections);
    let route = world.route().await.build();
    for request in 0..200 {
        assert_ne!(call(&route, request).await.unwrap(), "a");
    }
    let sent = world.sent();
    let requests: HashSet<u32> = sent.iter().map(|(request, _)| *request).collect();
    assert_eq!((sent.len(), requests.len()), (200, 200));
    let counters = route.counters();
    assert_eq!(counters.requests, 200);
    assert!((20..120).contains(&counters.moved), "a third of the requests met the dead one: {counters:?}");
    assert_eq!(counters.connections, 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_sent_is_never_sent_again() {
    let world = World::of(&["a", "b"]);
    world.set("a", Mode::FailsAfterSending);
    world.set("b", Mode::FailsAfterSending);
    let route = world.route().await.build();
    let error = call(&route, 7).await.unwrap_err();
    assert!(!error.is_unsent());
    assert!(matches!(&error, RouteError::Call { source, .. } if source.to_string() == "connection reset"));
    assert_eq!(world.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn moving_on_is_paid_for_from_the_budget() {
    let world = World::of(&["a", "b", "c", "d"]);
    for name in ["a", "b", "c", "d"] {
        world.set(name, Mode::RefusesConnections);
    }
    let budget = Arc::new(RetryBudget::new(0.2, 0.0, Duration::ZERO).unwrap());
    let route = world.route().await.budget(budget).build();
    for request in 0..100 {
        assert!(call(&route, request).await.unwrap_err().is_unsent());
    }
    let counters = route.counters();
    assert_eq!((counters.moved, counters.budget_refused), (20, 100), "20 % of 100 move on, once each");
    assert_eq!(world.servers.lock().unwrap().dials.len(), 120);
}

#[tokio::test(start_paused = true)]
async fn attempts_are_bounded_and_the_last_cause_is_told() {
    let world = World::of(&["a", "b", "c", "d"]);
    for name in ["a", "b", "c", "d"] {
        world.set(name, Mode::RefusesConnections);
    }
    let error = call(&world.route().await.build(), 1).await.unwrap_err();
    assert!(error.to_string().ends_with("of `orders` could not be reached, 3 tried"), "{error}");
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "connection refused");
}

#[tokio::test(start_paused = true)]
async fn a_lone_dead_instance_is_dialled_once_per_request() {
    let world = World::of(&["a"]);
    world.set("a", Mode::RefusesConnections);
    let route = world.route().await.build();
    assert!(matches!(call(&route, 1).await, Err(RouteError::Unreachable { attempts: 1, .. })));
    assert_eq!(world.dials("a"), 1);
}

#[tokio::test(start_paused = true)]
async fn nobody_to_pick_is_an_error_of_its_own() {
    let world = World::of(&[]);
    world.memory.replace("orders", []);
    let connection = Connection::new(Registry::new(world.memory.clone()));
    let live = connection.service("orders").start().await.unwrap();
    let route = world.route_over(live.clone()).build();
    until("the registry has answered", || live.selector().is_resolved()).await;
    let error = call(&route, 1).await.unwrap_err();
    assert!(error.is_unsent());
    assert!(matches!(error, RouteError::NoInstance { source, .. } if source.reason == NoPickReason::EmptyRegistry));
}

#[tokio::test(start_paused = true)]
async fn connections_are_kept_per_incarnation() {
    let world = World::of(&["a"]);
    let live = world.live().await;
    let route = world.route_over(live.clone()).build();
    for request in 0..10 {
        call(&route, request).await.unwrap();
    }
    assert_eq!(world.dials("a"), 1);
    let mut born_again = instance("a");
    born_again.incarnation = Incarnation::new("2");
    world.memory.register("orders", born_again).unwrap();
    until("the change is known", || live.selector().instances()[0].incarnation.as_str() == "2").await;
    call(&route, 10).await.unwrap();
    assert_eq!(world.dials("a"), 2);
    assert_eq!(route.counters().connections, 1);
}

#[tokio::test(start_paused = true)]
async fn connections_to_instances_that_left_are_dropped() {
    let world = World::of(&["a", "b"]);
    let live = world.live().await;
    let route = world.route_over(live.clone()).build();
    for request in 0..50 {
        call(&route, request).await.unwrap();
    }
    assert_eq!(route.counters().connections, 2);
    world.memory.deregister("orders", &instance("b").id);
    until("it has left", || live.status().instances == 1).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    call(&route, 50).await.unwrap();
    assert_eq!(route.counters().connections, 1);
}

#[tokio::test(start_paused = true)]
async fn no_more_connections_are_kept_than_allowed() {
    let names: Vec<String> = (0..20).map(|n| format!("host-{n}")).collect();
    let world = World::of(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let route = world.route().await.connections_max(3).build();
    for request in 0..200 {
        call(&route, request).await.unwrap();
        assert!(route.counters().connections <= 3);
    }
    assert_eq!(route.counters().connections, 3);
}

#[tokio::test(start_paused = true)]
async fn a_kept_connection_that_closed_is_made_anew_for_free() {
    let world = World::of(&["a"]);
    world.set("a", Mode::ClosesIdleConnections);
    let budget = Arc::new(RetryBudget::new(0.0, 0.0, Duration::ZERO).unwrap());
    let route = world.route().await.budget(budget).build();
    for request in 0..5 {
        assert_eq!(call(&route, request).await.unwrap(), "a");
    }
    assert_eq!(world.dials("a"), 5);
    assert_eq!(route.counters().moved, 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_is_left_and_its_requests_go_elsewhere() {
    let world = World::of(&["a", "b"]);
    let route = world.route().await.build();
    for request in 0..50 {
        call(&route, request).await.unwrap();
    }
    world.set("a", Mode::RefusesConnections);
    for request in 50..100 {
        assert_eq!(call(&route, request).await.unwrap(), "b");
    }
    world.set("a", Mode::Answers);
    let mut back = HashSet::new();
    for request in 100..150 {
        back.insert(call(&route, request).await.unwrap());
    }
    assert!(back.contains("a"));
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_hangs_ends_in_time_for_everybody_who_waits() {
    let world = World::of(&["a"]);
    world.set("a", Mode::NeverAcceptsConnections);
    let route = world.route().await.ready_timeout(Duration::from_secs(1)).build();
    let begun = tokio::time::Instant::now();
    let calls = (0..100).map(|request| {
        let route = route.clone();
        tokio::spawn(async move { call(&route, request).await })
    });
    for ended in calls.collect::<Vec<_>>() {
        let error = ended.await.unwrap().unwrap_err();
        let RouteError::Unreachable { source, .. } = error else { panic!("{error}") };
        assert!(source.is::<NotReadyInTime>());
    }
    assert_eq!(begun.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn everybody_who_waits_shares_the_refusal_of_one_dial() {
    let world = World::of(&["a"]);
    world.set("a", Mode::RefusesConnections);
    let route = world.route().await.build();
    let calls: Vec<_> = (0..50).map(|request| call(&route, request).boxed()).collect();
    let ended = futures_util::future::join_all(calls).await;
    assert!(ended.iter().all(|result| result.as_ref().is_err_and(RouteError::is_unsent)));
    assert!(world.dials("a") <= 50);
}

#[tokio::test(start_paused = true)]
async fn requests_under_way_are_bounded_and_a_dropped_one_makes_room() {
    let world = World::of(&["a"]);
    world.set("a", Mode::NeverAnswers);
    let route = world.route().await.in_flight_max(2).build();
    let call = |request| tokio::spawn(route.clone().oneshot(request));
    let (first, second) = (call(1), call(2));
    until("both are under way", || world.sent().len() == 2).await;
    let mut third = route.clone();
    assert!(third.ready().now_or_never().is_none(), "a third one must wait");
    first.abort();
    tokio::time::timeout(SOON, third.ready()).await.unwrap().unwrap();
    second.abort();
}

#[tokio::test(start_paused = true)]
async fn errors_from_before_sending_may_be_recognised_inside_call() {
    let world = World::of(&["a", "b"]);
    world.set("a", Mode::RefusesInsideCall);
    let recognise = |error: &BoxError| error.to_string() == "refused inside call";
    let route = world.route().await.when_unsent(|request| Some(*request), recognise).build();
    for request in 0..50 {
        assert_eq!(call(&route, request).await.unwrap(), "b");
    }
    assert_eq!(world.sent().len(), 50);
    assert!(route.counters().moved > 0);

    let uncopied = world.route().await.when_unsent(|_| None, recognise).build();
    let mut failed = 0;
    for request in 0..50 {
        failed += usize::from(matches!(call(&uncopied, request).await, Err(RouteError::Call { .. })));
    }
    assert!(failed > 0, "what cannot be copied cannot move on");
}

#[tokio::test(start_paused = true)]
async fn failures_eject_and_abandoned_calls_do_not() {
    let world = World::of(&["a", "b", "c"]);
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, "ejection: {consecutive_failures: 3, max_ejected: 40%}").unwrap();
    let connection = Connection::new(Registry::new(world.memory.clone()));
    let live = connection.service("orders").rules_file(&rules).start().await.unwrap();
    live.ready(SOON).await.unwrap();
    let route = world.route_over(live.clone()).build();

    world.set("a", Mode::NeverAnswers);
    for request in 0..100 {
        let _ = tokio::time::timeout(Duration::from_millis(10), call(&route, request)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(live.status().ejected, 0, "a caller that gives up says nothing about the instance");

    world.set("a", Mode::FailsAfterSending);
    for request in 0..100 {
        let _ = call(&route, request).await;
    }
    until("it is ejected", || live.status().ejected == 1).await;
    for request in 0..100 {
        assert_ne!(call(&route, request).await.unwrap(), "a");
    }
}

#[tokio::test(start_paused = true)]
async fn the_filtered_set_is_a_stream_of_changes() {
    let memory = Memory::new();
    let tier = |name: &str, tier: &str| instance(name).with_meta("tier", tier);
    memory.register("orders", tier("a", "1")).unwrap();
    memory.register("orders", tier("b", "2")).unwrap();
    let connection = Connection::new(Registry::new(memory.clone()));
    let live = connection.service("orders").rules("tier == 1").start().await.unwrap();
    let mut changes = Discover::new(live.clone(), Request::default(), |instance| instance.weight);
    let mut next = async || match tokio::time::timeout(SOON, changes.next()).await {
        Ok(Some(Ok(Change::Insert(key, weight)))) => format!("+{} {weight}", key.id),
        Ok(Some(Ok(Change::Remove(key)))) => format!("-{}", key.id),
        Ok(None) => "end".to_owned(),
        Err(_) => "nothing".to_owned(),
    };
    assert_eq!(next().await, "+a:1 1");
    memory.register("orders", tier("b", "1")).unwrap();
    assert_eq!(next().await, "+b:1 1");
    memory.register("orders", tier("a", "1").with_weight(3.0)).unwrap();
    assert_eq!(next().await, "+a:1 3");
    memory.register("orders", tier("c", "2")).unwrap();
    assert_eq!(next().await, "nothing");
    memory.register("orders", tier("a", "2")).unwrap();
    assert_eq!(next().await, "-a:1");
    let mut born_again = tier("b", "1");
    born_again.incarnation = Incarnation::new("2");
    memory.register("orders", born_again).unwrap();
    assert_eq!((next().await, next().await), ("-b:1".to_owned(), "+b:1 1".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn towers_own_balancer_takes_the_filtered_set() {
    let world = World::of(&["a", "b"]);
    world.memory.register("orders", instance("c").with_healthy(false)).unwrap();
    let servers = Arc::clone(&world.servers);
    let set = Discover::new(world.live().await, Request::default(), move |instance| Wire {
        name: instance.address.host().to_owned(),
        servers: Arc::clone(&servers),
        used: Arc::default(),
    });
    let loaded = tower::load::PendingRequestsDiscover::new(set, tower::load::CompleteOnResponse::default());
    let mut balance = tower::balance::p2c::Balance::new(loaded);
    let mut answered = HashSet::new();
    for request in 0..100u32 {
        answered.insert(balance.ready().await.unwrap().call(request).await.unwrap());
    }
    assert_eq!(answered, HashSet::from(["a".to_owned(), "b".to_owned()]));
}

#[cfg(feature = "metrics")]
#[tokio::test(start_paused = true)]
async fn what_routes_do_is_on_the_metrics_page() {
    let world = World::of(&["a", "b"]);
    world.set("a", Mode::RefusesConnections);
    let route = world.route().await.build();
    let mut registry = prometheus_client::registry::Registry::default();
    metaroute::metrics::RoutingMetrics::register(&mut registry).watch(route.live());
    for request in 0..50 {
        call(&route, request).await.unwrap();
    }
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
    let moved = route.counters().moved;
    assert!(page.contains(r#"metaroute_route_requests_total{service="orders"} 50"#), "{page}");
    assert!(
        moved > 0 && page.contains(&format!(r#"metaroute_route_moved_total{{service="orders"}} {moved}"#)),
        "{page}"
    );
}
