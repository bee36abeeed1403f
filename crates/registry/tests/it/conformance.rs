//! One suite, run identically against every back end that can register, on a real server.
//!
//! A back end describes itself as a [`Subject`] and calls [`run`]; every case gets a service name and addresses of its own, so
//! that they do not disturb each other. All cases run before the verdict, which names every case that failed. Cases that
//! break the server come last.
//!
//! With `METAROUTE_MEASURE=FILE` nothing is checked but measured: the time from a change to a subscriber, and the processor time of
//! 100 idle subscriptions. One JSON line per back end is appended to the file; run one back end at a time:
//! `METAROUTE_MEASURE=out cargo test -p metaroute-registry --release --test it conformance -- --test-threads=1`.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use metaroute_core::instance::{Instance, MetaValue};
use metaroute_core::resilience::backoff::Policy;
use metaroute_registry::{ErrorKind, Options, Registration, Registry, RegistryUrl, State, Subscription, View};
use test_support::{Proxy, processor_time};

/// One back end on one real server.
pub(crate) struct Subject {
    /// For messages and measurements.
    pub(crate) name: &'static str,
    /// Where the server listens; cases that break the network put a proxy in front of it.
    pub(crate) server: SocketAddr,
    /// The registry's address when the server (or the proxy before it) listens there; with a short `ttl`.
    pub(crate) url: Box<dyn Fn(SocketAddr) -> String + Send + Sync>,
    /// Stops the server and starts it again on the same port, with whatever it keeps over a restart; returns when it
    /// accepts connections.
    pub(crate) restart: Box<dyn FnMut() + Send>,
    /// An instance whose owner was killed is gone from a subscriber's view within this time.
    pub(crate) gone_within: Duration,
    /// A change is in a subscriber's view within this time. Generous: the machine may be busy.
    pub(crate) seen_within: Duration,
    /// Where back ends rightly differ.
    pub(crate) traits: Traits,
}

/// Where back ends rightly differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    /// Whether metadata is carried at all.
    pub(crate) metadata: bool,
    /// Whether the cluster of an instance is what it was registered with (where the service *is* the cluster it is not).
    pub(crate) cluster: bool,
    /// Whether a service nobody ever registered in is told from an empty one.
    pub(crate) unknown_service: bool,
    /// Whether an address that was registered again is a new incarnation.
    pub(crate) incarnation: bool,
    /// Whether services can be listed.
    pub(crate) list: bool,
    /// Whether an instance that is switched off is still seen (some servers leave it out, which is as good).
    pub(crate) switched_off: bool,
    /// How long an instance outlives its owner when the address names no `ttl`; `None` where it ends with a connection, where the
    /// server decides alone, and where it is minutes.
    pub(crate) usual_ttl: Option<Duration>,
    /// How many instances the cases about scale register: 1,000 unless the server cannot (say why where you set it).
    pub(crate) scale: usize,
}

impl Default for Traits {
    fn default() -> Self {
        Self {
            metadata: true,
            cluster: true,
            unknown_service: false,
            incarnation: true,
            list: true,
            switched_off: true,
            usual_ttl: None,
            scale: 1000,
        }
    }
}

/// Runs every case; panics with the names of those that failed.
pub(crate) fn run(subject: Subject) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let bench = Arc::new(Bench {
        name: subject.name,
        server: subject.server,
        url: subject.url,
        restart: Mutex::new(subject.restart),
        gone_within: subject.gone_within,
        seen_within: subject.seen_within,
        traits: subject.traits,
    });
    let failed = runtime.block_on(async {
        let mut cases = Cases { bench, failed: Vec::new() };
        if std::env::var_os("METAROUTE_MEASURE").is_some() {
            cases.run("measure", measure).await;
            return cases.failed;
        }
        cases.run("register_see_update_deregister", register_see_update_deregister).await;
        cases.run("weight_zero_survives", weight_zero_survives).await;
        cases.run("unicode_metadata_survives", unicode_metadata_survives).await;
        cases.run("metadata_at_the_limit_passes_and_over_it_is_refused", metadata_at_and_over_the_limit).await;
        cases.run("a_subscriber_may_come_before_the_service", subscriber_before_the_service).await;
        cases.run("an_empty_list_is_told_at_once", empty_list).await;
        cases.run("two_subscribers_see_the_same", two_subscribers).await;
        cases.run("a_slow_consumer_gets_the_latest", slow_consumer).await;
        cases.run("an_address_registered_again_is_a_new_incarnation", new_incarnation).await;
        cases.run("a_registration_deregistered_in_flight_ends_deregistered", deregistered_in_flight).await;
        cases.run("services_are_listed", services_are_listed).await;
        cases.run("changes_reach_subscribers_soon", propagation).await;
        cases.run("a_thousand_instances", a_thousand_instances).await;
        cases.run("fifty_services", fifty_services).await;
        cases.run("a_killed_owner_is_gone", killed_owner).await;
        if cases.bench.traits.usual_ttl.is_some() {
            cases.run("a_killed_owner_of_the_usual_ttl_is_missed_in_time", usual_ttl).await;
        }
        cases.run("a_slow_network_is_no_loss", slow_network).await;
        cases.run("a_cut_network_keeps_the_last_good_list", cut_network).await;
        cases.run("a_half_open_connection_is_noticed", half_open).await;
        cases.run("a_server_restart_loses_nothing", server_restart).await;
        cases.failed
    });
    assert!(failed.is_empty(), "{}: {} failed", subject.name, failed.join(", "));
}

struct Bench {
    name: &'static str,
    server: SocketAddr,
    url: Box<dyn Fn(SocketAddr) -> String + Send + Sync>,
    restart: Mutex<Box<dyn FnMut() + Send>>,
    gone_within: Duration,
    seen_within: Duration,
    traits: Traits,
}

struct Cases {
    bench: Arc<Bench>,
    failed: Vec<&'static str>,
}

/// No case may hang the suite.
const CASE_TIMEOUT: Duration = Duration::from_secs(480);
/// How long until a half-open connection is noticed at the latest, and everything has converged after healing.
const NOTICED_WITHIN: Duration = Duration::from_secs(60);
/// How long hundreds of registrations may take where servers, JVMs and a compiler share two cores.
const MANY_WITHIN: Duration = Duration::from_secs(300);

impl Cases {
    async fn run<F: Future<Output = ()> + Send + 'static>(&mut self, name: &'static str, case: fn(Arc<Bench>) -> F) {
        let started = Instant::now();
        let mut task = tokio::spawn(case(Arc::clone(&self.bench)));
        let verdict = match tokio::time::timeout(CASE_TIMEOUT, &mut task).await {
            Ok(Ok(())) => "ok",
            Ok(Err(_)) => "FAILED",
            Err(_) => {
                task.abort();
                "HUNG"
            }
        };
        println!("{} {name}: {verdict} ({:.1} s)", self.bench.name, started.elapsed().as_secs_f64());
        if verdict != "ok" {
            self.failed.push(name);
        }
    }
}

impl Bench {
    /// A connection of its own, as another process would have.
    fn connect(&self) -> Registry {
        self.connect_at(self.server)
    }

    fn connect_at(&self, server: SocketAddr) -> Registry {
        let url: RegistryUrl = (self.url)(server).parse().expect("the subject's address");
        let policy: Policy = "exponential:100ms,2,1s,full".parse().expect("a valid policy");
        #[allow(clippy::needless_update, reason = "options may grow")]
        let options = Options { policy, ..Options::default() };
        Registry::connect_with(&url, options).expect("this build has the back end")
    }

    /// Waits for a view, or panics with the last one.
    async fn see(&self, subscription: &mut Subscription, what: &str, wanted: impl Fn(&View) -> bool) -> View {
        self.see_within(self.seen_within, subscription, what, wanted).await
    }

    async fn see_within(
        &self,
        time: Duration,
        subscription: &mut Subscription,
        what: &str,
        wanted: impl Fn(&View) -> bool,
    ) -> View {
        match tokio::time::timeout(time, subscription.wait_for(|view| wanted(view))).await {
            Ok(view) => view.expect("the registry is open"),
            Err(_) => panic!("{}: not seen within {time:?}: {what}; last: {:?}", self.name, subscription.current()),
        }
    }

    /// Looks ten times a second whether something stays as it is. On a machine that stands still for a while leases end
    /// although their owners live: what is lost then is looked at once more.
    async fn stays(&self, subscription: &mut Subscription, time: Duration, what: &str, wanted: impl Fn(&View) -> bool) {
        const PAUSE: Duration = Duration::from_millis(100);
        for _ in 0..5 {
            let (mut late, mut lost) = (Duration::ZERO, None);
            let began = Instant::now();
            while began.elapsed() < time {
                let asked = Instant::now();
                tokio::time::sleep(PAUSE).await;
                late = late.max(asked.elapsed().saturating_sub(PAUSE));
                lost = lost.or(Some(subscription.current()).filter(|view| !wanted(view)));
            }
            let Some(view) = lost else { return };
            assert!(late > PAUSE * 3, "{}: lost {what}, {late:?} late at most: {view:?}", self.name);
            self.see_within(NOTICED_WITHIN, subscription, what, &wanted).await;
        }
        panic!("{}: lost {what} again and again: {:?}", self.name, subscription.current());
    }

    async fn registered(&self, registration: &mut Registration) {
        match tokio::time::timeout(self.seen_within, registration.registered()).await {
            Ok(taken) => taken.expect("the registry takes it"),
            Err(_) => panic!("{}: not registered within {:?}: {:?}", self.name, self.seen_within, registration.state()),
        }
    }

    /// Kills nothing, withdraws everything.
    async fn end(&self, registries: impl IntoIterator<Item = Registry>) {
        for registry in registries {
            assert!(registry.shutdown(Duration::from_secs(60)).await, "{}: shutdown took too long", self.name);
        }
    }
}

fn instance(host: u8, port: u16) -> Instance {
    Instance::new(format!("10.11.12.{host}:{port}").parse().expect("an address"))
}

fn addresses(view: &View) -> Vec<String> {
    let mut list: Vec<String> =
        view.snapshot.iter().flat_map(|snapshot| &snapshot.instances).map(|i| i.address.to_string()).collect();
    list.sort();
    list
}

fn fresh_with(count: usize) -> impl Fn(&View) -> bool {
    move |view| view.state == State::Fresh && view.snapshot.as_ref().is_some_and(|s| s.instances.len() == count)
}

/// Nothing is there: the list is empty, or the registry no longer knows the service.
fn nothing(view: &View) -> bool {
    view.state == State::UnknownService || fresh_with(0)(view)
}

fn only(view: &View) -> &Instance {
    match view.snapshot.as_ref().map(|snapshot| &*snapshot.instances) {
        Some([one]) => one,
        other => panic!("expected one instance, found {other:?}"),
    }
}

/// The metadata as text, without what locality adds.
fn texts(instance: &Instance) -> BTreeMap<String, String> {
    instance.metadata.iter().map(|(key, value)| (key.to_string(), value.to_text().into())).collect()
}

async fn register_see_update_deregister(bench: Arc<Bench>) {
    let (writer, reader) = (bench.connect(), bench.connect());
    let mut orders = reader.subscribe("conf-basic");
    let mut first = instance(1, 8080).with_weight(3.0).with_cluster("blue");
    let traits = bench.traits;
    if traits.metadata {
        first = first.with_meta("version", "2.3.1").with_meta("env", "prod").with_zone("z1");
    }
    let mut registration = writer.register("conf-basic", first.clone()).expect("valid");
    bench.registered(&mut registration).await;
    let view = bench.see(&mut orders, "one instance", fresh_with(1)).await;
    let seen = only(&view).clone();
    assert_eq!(seen.address, first.address);
    assert!(seen.healthy && seen.enabled, "{seen:?}");
    if traits.cluster {
        assert_eq!(seen.cluster, first.cluster);
    }
    if traits.metadata {
        assert_eq!(seen.weight, 3.0, "the weight is carried");
        let read = texts(&seen);
        assert_eq!(read.get("version").map(String::as_str), Some("2.3.1"));
        assert_eq!(read.get("env").map(String::as_str), Some("prod"));
        assert_eq!(&*seen.locality.zone, "z1");
        assert!(read.keys().all(|key| !key.starts_with("metaroute-")), "no key of ours is left in it: {read:?}");
        let changed = first.clone().with_meta("version", "2.4.0").with_weight(5.0);
        registration.update(changed).expect("valid");
        let view = bench
            .see(&mut orders, "the new version", |view| {
                fresh_with(1)(view) && texts(only(view)).get("version").is_some_and(|v| v == "2.4.0")
            })
            .await;
        assert_eq!(only(&view).weight, 5.0);
        assert_eq!(only(&view).id, seen.id, "an update keeps the id");
        let mut without = first.clone();
        without.metadata.remove("env");
        registration.update(without).expect("valid");
        bench
            .see(&mut orders, "a removed key is gone", |view| {
                fresh_with(1)(view) && !texts(only(view)).contains_key("env")
            })
            .await;
    }
    let looked = reader.instances("conf-basic").await.expect("the registry answers").expect("the service is known");
    assert_eq!(looked.0.instances.len(), 1);
    registration.deregister().await;
    bench.see(&mut orders, "nothing after deregistration", nothing).await;
    bench.end([writer, reader]).await;
}

async fn weight_zero_survives(bench: Arc<Bench>) {
    if !bench.traits.metadata {
        return;
    }
    let (writer, reader) = (bench.connect(), bench.connect());
    let mut seen = reader.subscribe("conf-weight");
    for weight in [0.0, 0.25, 10_000.0] {
        let mut registration = writer.register("conf-weight", instance(2, 80).with_weight(weight)).expect("valid");
        bench.registered(&mut registration).await;
        bench
            .see(&mut seen, &format!("weight {weight}"), |view| fresh_with(1)(view) && only(view).weight == weight)
            .await;
        registration.deregister().await;
        bench.see(&mut seen, "gone", nothing).await;
    }
    if !bench.traits.switched_off {
        return bench.end([writer, reader]).await;
    }
    let off = {
        let mut off = instance(2, 81);
        off.enabled = false;
        off
    };
    let registration = writer.register("conf-weight", off).expect("valid");
    bench.see(&mut seen, "switched off", |view| fresh_with(1)(view) && !only(view).enabled).await;
    registration.deregister().await;
    bench.end([writer, reader]).await;
}

async fn unicode_metadata_survives(bench: Arc<Bench>) {
    if !bench.traits.metadata {
        return;
    }
    let (writer, reader) = (bench.connect(), bench.connect());
    let mut seen = reader.subscribe("conf-unicode");
    let value = "Zürich 東京 🚀 a=b&c;d,e|f%20+\"\\ '<>";
    let registration = writer.register("conf-unicode", instance(3, 80).with_meta("place", value)).expect("valid");
    let view = bench.see(&mut seen, "one", fresh_with(1)).await;
    assert_eq!(only(&view).metadata.get("place"), Some(&MetaValue::from(value)));
    registration.deregister().await;
    bench.end([writer, reader]).await;
}

async fn metadata_at_and_over_the_limit(bench: Arc<Bench>) {
    if !bench.traits.metadata {
        return;
    }
    let (writer, reader) = (bench.connect(), bench.connect());
    let limits = writer.limits();
    let mut seen = reader.subscribe("conf-limit");
    // The longest value that fits, next to a key of one letter.
    let longest = [limits.value_bytes, limits.total_chars.map(|total| total - 1)].into_iter().flatten().min();
    let longest = longest.unwrap_or(metaroute_core::instance::METADATA_VALUE_MAX);
    let at = instance(4, 80).with_meta("k", "v".repeat(longest));
    let mut registration = writer.register("conf-limit", at).expect("at the limit is allowed");
    bench.registered(&mut registration).await;
    let view = bench.see(&mut seen, "the longest value", fresh_with(1)).await;
    assert_eq!(texts(only(&view)).get("k").map(String::len), Some(longest), "nothing was cut");
    registration.deregister().await;
    let over = instance(4, 80).with_meta("k", "v".repeat(longest + 1));
    let error = writer.register("conf-limit", over).expect_err("over the limit");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let message = error.to_string();
    assert!(message.contains(&longest.to_string()) || message.contains(&(longest + 1).to_string()), "{message}");
    if let Some(keys) = limits.keys {
        let many = (0..=keys).fold(instance(4, 81), |i, n| i.with_meta(&format!("k{n}"), "v"));
        let message = writer.register("conf-limit", many).expect_err("too many keys").to_string();
        assert!(message.contains(&keys.to_string()), "{message}");
    }
    bench.end([writer, reader]).await;
}

async fn subscriber_before_the_service(bench: Arc<Bench>) {
    let (writer, reader) = (bench.connect(), bench.connect());
    let mut seen = reader.subscribe("conf-later");
    let view = bench.see(&mut seen, "an answer", |view| view.state != State::Unresolved).await;
    if bench.traits.unknown_service {
        assert_eq!(view.state, State::UnknownService);
        assert_eq!(reader.instances("conf-later").await.expect("an answer"), None);
    } else {
        assert!(nothing(&view), "{view:?}");
    }
    let registration = writer.register("conf-later", instance(5, 80)).expect("valid");
    bench.see(&mut seen, "the service that came", fresh_with(1)).await;
    registration.deregister().await;
    bench.end([writer, reader]).await;
}

async fn empty_list(bench: Arc<Bench>) {
    let (writer, reader) = (bench.connect(), bench.connect());
    let mut seen = reader.subscribe("conf-empty");
    let one = writer.register("conf-empty", instance(6, 80)).expect("valid");
    let two = writer.register("conf-empty", instance(6, 81)).expect("valid");
    bench.see(&mut seen, "two", fresh_with(2)).await;
    one.deregister().await;
    let view = bench.see(&mut seen, "one left", fresh_with(1)).await;
    assert_eq!(addresses(&view), ["10.11.12.6:81"]);
    two.deregister().await;
    bench.see(&mut seen, "none left", nothing).await;
    bench.end([writer, reader]).await;
}

async fn two_subscribers(bench: Arc<Bench>) {
    let (writer, reader, other) = (bench.connect(), bench.connect(), bench.connect());
    let mut a = reader.subscribe("conf-two");
    let mut b = other.subscribe("conf-two");
    let mut same = reader.subscribe("conf-two");
    let first = writer.register("conf-two", instance(7, 80)).expect("valid");
    for seen in [&mut a, &mut b, &mut same] {
        bench.see(seen, "one", fresh_with(1)).await;
    }
    let second = other.register("conf-two", instance(7, 81)).expect("valid");
    for seen in [&mut a, &mut b, &mut same] {
        let view = bench.see(seen, "two", fresh_with(2)).await;
        assert_eq!(addresses(&view), ["10.11.12.7:80", "10.11.12.7:81"]);
    }
    first.deregister().await;
    second.deregister().await;
    for seen in [&mut a, &mut b, &mut same] {
        bench.see(seen, "none", nothing).await;
    }
    bench.end([writer, reader, other]).await;
}

async fn slow_consumer(bench: Arc<Bench>) {
    let (writer, reader) = (bench.connect(), bench.connect());
    let mut seen = reader.subscribe("conf-slow");
    let registration = writer.register("conf-slow", instance(8, 80)).expect("valid");
    bench.see(&mut seen, "one", fresh_with(1)).await;
    if bench.traits.metadata {
        for round in 0..20 {
            registration.update(instance(8, 80).with_meta("round", round.to_string())).expect("valid");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Nobody read meanwhile; the latest is what comes.
        bench
            .see(&mut seen, "the last round", |view| {
                fresh_with(1)(view) && texts(only(view)).get("round").is_some_and(|round| round == "19")
            })
            .await;
    }
    registration.deregister().await;
    bench.end([writer, reader]).await;
}

async fn new_incarnation(bench: Arc<Bench>) {
    let (writer, reader) = (bench.connect(), bench.connect());
    let mut seen = reader.subscribe("conf-again");
    let first = writer.register("conf-again", instance(9, 80)).expect("valid");
    let old = only(&bench.see(&mut seen, "the first life", fresh_with(1)).await).clone();
    first.deregister().await;
    bench.see(&mut seen, "none", nothing).await;
    let other = bench.connect();
    let second = other.register("conf-again", instance(9, 80)).expect("valid");
    let new = only(&bench.see(&mut seen, "the second life", fresh_with(1)).await).clone();
    assert_eq!(old.id, new.id);
    if bench.traits.incarnation {
        assert_ne!(old.incarnation, new.incarnation, "a new life is a new incarnation");
    }
    second.deregister().await;
    bench.end([writer, reader, other]).await;
}

async fn deregistered_in_flight(bench: Arc<Bench>) {
    let (writer, reader) = (bench.connect(), bench.connect());
    let mut seen = reader.subscribe("conf-flight");
    // One that stays tells when the reader has seen everything before it.
    for round in 0..5 {
        let registration = writer.register("conf-flight", instance(10, 80)).expect("valid");
        tokio::time::sleep(Duration::from_millis(round * 3)).await;
        registration.deregister().await;
    }
    let last = writer.register("conf-flight", instance(10, 81)).expect("valid");
    bench.see(&mut seen, "only the last", |view| fresh_with(1)(view) && addresses(view) == ["10.11.12.10:81"]).await;
    last.deregister().await;
    bench.see(&mut seen, "none", nothing).await;
    bench.end([writer, reader]).await;
}

async fn services_are_listed(bench: Arc<Bench>) {
    let registry = bench.connect();
    if !bench.traits.list {
        let error = registry.services().await.expect_err("it cannot list");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        return;
    }
    let mut a = registry.register("conf-list-a", instance(11, 80)).expect("valid");
    let mut b = registry.register("conf-list-b", instance(11, 81)).expect("valid");
    bench.registered(&mut a).await;
    bench.registered(&mut b).await;
    let started = Instant::now();
    loop {
        let services = registry.services().await.expect("it lists");
        assert!(services.is_sorted(), "{services:?}");
        if ["conf-list-a", "conf-list-b"].iter().all(|name| services.iter().any(|service| **service == **name)) {
            break;
        }
        assert!(started.elapsed() < bench.seen_within, "{services:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    a.deregister().await;
    b.deregister().await;
    bench.end([registry]).await;
}

async fn propagation(bench: Arc<Bench>) {
    let times = propagation_times(&bench, 10).await;
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{} from change to subscriber: median {median:?}, worst {worst:?}", bench.name);
}

/// Sorted times from asking for a registration to seeing it through another connection.
async fn propagation_times(bench: &Bench, rounds: usize) -> Vec<Duration> {
    let (writer, reader) = (bench.connect(), bench.connect());
    let mut seen = reader.subscribe("conf-time");
    let keep = writer.register("conf-time", instance(12, 80)).expect("valid");
    bench.see(&mut seen, "one", fresh_with(1)).await;
    let mut times = Vec::new();
    let begun = Instant::now();
    // Where a change takes seconds, fewer of them say enough.
    while times.len() < rounds && begun.elapsed() < Duration::from_secs(90) {
        let started = Instant::now();
        let registration = writer.register("conf-time", instance(12, 81)).expect("valid");
        bench.see(&mut seen, "two", fresh_with(2)).await;
        times.push(started.elapsed());
        registration.deregister().await;
        bench.see(&mut seen, "one again", fresh_with(1)).await;
    }
    keep.deregister().await;
    bench.end([writer, reader]).await;
    times.sort();
    times
}

/// Not a check: numbers for the documentation.
async fn measure(bench: Arc<Bench>) {
    let times = propagation_times(&bench, 100).await;
    let rounds = times.len();
    let reader = bench.connect();
    let mut subscriptions: Vec<_> = (0..100).map(|n| reader.subscribe(&format!("conf-idle-{n}"))).collect();
    for seen in &mut subscriptions {
        bench.see(seen, "an answer", |view| view.state != State::Unresolved).await;
    }
    let (idle, before) = (Duration::from_secs(20), processor_time(None));
    tokio::time::sleep(idle).await;
    let used = (processor_time(None) - before).as_secs_f64() / idle.as_secs_f64();
    let line = format!(
        "{{\"registry\":\"{}\",\"rounds\":{rounds},\"p50_ms\":{:.1},\"p99_ms\":{:.1},\"idle_100_percent_of_a_core\":{:.2}}}\n",
        bench.name,
        times[rounds / 2].as_secs_f64() * 1e3,
        times[(rounds * 99).div_ceil(100) - 1].as_secs_f64() * 1e3,
        used * 100.0
    );
    let file = std::env::var_os("METAROUTE_MEASURE").expect("it was set");
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).expect("the file opens");
    file.write_all(line.as_bytes()).expect("written");
    bench.end([reader]).await;
}

async fn a_thousand_instances(bench: Arc<Bench>) {
    let count = bench.traits.scale;
    let (writer, reader) = (bench.connect(), bench.connect());
    let mut seen = reader.subscribe("conf-thousand");
    let registrations: Vec<_> = (0..count)
        .map(|n| {
            let mut instance = instance((n / 250) as u8, 1000 + (n % 250) as u16);
            if bench.traits.metadata {
                instance = instance.with_meta("number", n.to_string());
            }
            writer.register("conf-thousand", instance).expect("valid")
        })
        .collect();
    let view = bench.see_within(MANY_WITHIN, &mut seen, "all of them", fresh_with(count)).await;
    let mut list = addresses(&view);
    list.dedup();
    assert_eq!(list.len(), count, "no address twice");
    drop(registrations);
    bench.end([writer]).await;
    bench.see_within(MANY_WITHIN, &mut seen, "none", nothing).await;
    bench.end([reader]).await;
}

async fn fifty_services(bench: Arc<Bench>) {
    let each = (bench.traits.scale / 50).max(1);
    let (writer, reader) = (bench.connect(), bench.connect());
    let names: Vec<String> = (0..50).map(|n| format!("conf-many-{n}")).collect();
    let mut subscriptions: Vec<_> = names.iter().map(|name| reader.subscribe(name)).collect();
    let registrations: Vec<_> = (0..50 * each)
        .map(|n| writer.register(&names[n % 50], instance((n % 50) as u8, 2000 + (n / 50) as u16)).expect("valid"))
        .collect();
    for seen in &mut subscriptions {
        bench.see_within(MANY_WITHIN, seen, "all of the service", fresh_with(each)).await;
    }
    drop(registrations);
    bench.end([writer]).await;
    for seen in &mut subscriptions {
        bench.see_within(MANY_WITHIN, seen, "none", nothing).await;
    }
    bench.end([reader]).await;
}

/// A process that keeps an instance registered; killed when dropped.
///
/// It is this program once more, told so by the environment: a program of its own would lie where a build with other features
/// puts another one under the same name.
struct Owner(Child);

/// What an [`Owner`] registers: the registry's address, the service and the instance's address, one a line.
const OWNED: &str = "METAROUTE_TEST_OWNED";

impl Owner {
    fn start(url: &str, service: &str, instance: &Instance) -> Self {
        let mut child = Self::command(url, service, instance).spawn().expect("this program starts again");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let owner = Self(child);
        // The test harness has its say, too.
        let registered = stdout.lines().map_while(Result::ok).any(|line| line == "registered");
        assert!(registered, "{url}: the owner ended before it was registered");
        owner
    }

    fn command(url: &str, service: &str, instance: &Instance) -> Command {
        // Also where a build has replaced the file that it was started from.
        let mut command = Command::new("/proc/self/exe");
        let test = concat!(module_path!(), "::an_owner_registers_or_ends");
        let (_, test) = test.split_once("::").expect("the crate and the rest");
        command.args(["--exact", test, "--nocapture"]);
        command.env(OWNED, format!("{url}\n{service}\n{}", instance.address)).stdout(Stdio::piped());
        command
    }

    /// What runs in its process, for ever.
    fn run(owned: &str) {
        let [url, service, address] = owned.lines().collect::<Vec<_>>()[..] else { panic!("{owned:?}") };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let registry = Registry::connect(&url.parse().expect("an address")).expect("this build has it");
            let instance = Instance::new(address.parse().expect("an address"));
            let mut registration = registry.register(service, instance).expect("valid");
            registration.registered().await.expect("taken");
            println!("\nregistered");
            std::future::pending::<()>().await;
        });
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process of every [`Owner`]; by itself it looks at one that cannot do its work, for which nobody may wait.
#[test]
fn an_owner_registers_or_ends() {
    if let Ok(owned) = std::env::var(OWNED) {
        return Owner::run(&owned);
    }
    let mut command = Owner::command("file:/no/such/fleet.yaml", "s", &instance(1, 80));
    let output = command.output().expect("this program starts again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && text.contains("running 1 test"), "{text}");
    assert!(!text.lines().any(|line| line == "registered"), "{text}");
}

async fn killed_owner(bench: Arc<Bench>) {
    let reader = bench.connect();
    let mut seen = reader.subscribe("conf-kill");
    let url = (bench.url)(bench.server);
    let owner = tokio::task::spawn_blocking(move || Owner::start(&url, "conf-kill", &instance(13, 80)));
    let owner = owner.await.expect("the owner starts");
    bench.see(&mut seen, "one", fresh_with(1)).await;
    // Longer than the lease: it lives because its owner does.
    bench.stays(&mut seen, bench.gone_within.min(Duration::from_secs(10)), "a living owner's", fresh_with(1)).await;
    let killed = Instant::now();
    drop(owner);
    bench.see_within(bench.gone_within, &mut seen, "gone, or no longer healthy", gone).await;
    println!("{} a killed owner's instance was gone after {:.1?}", bench.name, killed.elapsed());
    bench.end([reader]).await;
}

fn gone(view: &View) -> bool {
    nothing(view) || view.snapshot.as_ref().is_some_and(|s| s.instances.iter().all(|instance| !instance.healthy))
}

/// All other cases shorten leases. With the one that an address gives by itself an owner may be silent for a while.
async fn usual_ttl(bench: Arc<Bench>) {
    let ttl = bench.traits.usual_ttl.expect("the case is for such back ends");
    let url = (bench.url)(bench.server);
    let (place, parameters) = url.split_once('?').expect("the suite shortens the lease");
    let others: Vec<&str> = parameters.split('&').filter(|parameter| !parameter.starts_with("ttl=")).collect();
    assert_ne!(others.join("&"), parameters, "the suite shortens the lease");
    let url = format!("{place}?{}", others.join("&"));
    let reader = bench.connect();
    let mut seen = reader.subscribe("conf-usual");
    let owner = tokio::task::spawn_blocking(move || Owner::start(&url, "conf-usual", &instance(14, 80)));
    let owner = owner.await.expect("the owner starts");
    bench.see(&mut seen, "one", fresh_with(1)).await;
    let killed = Instant::now();
    drop(owner);
    bench.see_within(ttl + bench.gone_within, &mut seen, "gone, or no longer healthy", gone).await;
    // It was renewed a third of the time before at the latest.
    assert!(killed.elapsed() >= ttl * 2 / 5, "{}: gone after {:?} of {ttl:?}", bench.name, killed.elapsed());
    bench.end([reader]).await;
}

async fn slow_network(bench: Arc<Bench>) {
    let proxy = Proxy::start(bench.server);
    let (writer, reader) = (bench.connect_at(proxy.address()), bench.connect_at(proxy.address()));
    proxy.delay(Duration::from_millis(150));
    let mut seen = reader.subscribe("conf-delay");
    let registration = writer.register("conf-delay", instance(14, 80)).expect("valid");
    bench.see_within(NOTICED_WITHIN, &mut seen, "one", fresh_with(1)).await;
    bench.stays(&mut seen, Duration::from_secs(3), "one over a slow network", fresh_with(1)).await;
    registration.deregister().await;
    bench.see_within(NOTICED_WITHIN, &mut seen, "none", nothing).await;
    bench.end([writer, reader]).await;
}

/// Breaks the reader's network, changes the world meanwhile, mends it.
async fn broken_network(bench: &Bench, service: &str, host: u8, broken: impl Fn(&Proxy)) {
    let proxy = Proxy::start(bench.server);
    let (writer, reader) = (bench.connect(), bench.connect_at(proxy.address()));
    let mut seen = reader.subscribe(service);
    let first = writer.register(service, instance(host, 80)).expect("valid");
    bench.see(&mut seen, "one", fresh_with(1)).await;
    broken(&proxy);
    let view =
        bench.see_within(NOTICED_WITHIN, &mut seen, "the loss is told", |view| view.state == State::Unreachable).await;
    assert_eq!(addresses(&view), [format!("10.11.12.{host}:80")], "the last good list stays");
    assert!(view.error.is_some(), "and why is said");
    let mut second = writer.register(service, instance(host, 81)).expect("valid");
    bench.registered(&mut second).await;
    proxy.heal();
    bench.see_within(NOTICED_WITHIN, &mut seen, "two after healing", fresh_with(2)).await;
    first.deregister().await;
    second.deregister().await;
    bench.see(&mut seen, "none", nothing).await;
    bench.end([writer, reader]).await;
}

async fn cut_network(bench: Arc<Bench>) {
    broken_network(&bench, "conf-cut", 15, Proxy::cut).await;
    // The owner's side: it comes back by itself, however long the registry was away.
    let proxy = Proxy::start(bench.server);
    let (writer, reader) = (bench.connect_at(proxy.address()), bench.connect());
    let mut seen = reader.subscribe("conf-cut-owner");
    let registration = writer.register("conf-cut-owner", instance(16, 80)).expect("valid");
    bench.see(&mut seen, "one", fresh_with(1)).await;
    proxy.cut();
    let gone = |view: &View| {
        nothing(view) || view.snapshot.as_ref().is_some_and(|s| s.instances.iter().all(|instance| !instance.healthy))
    };
    bench.see_within(bench.gone_within, &mut seen, "the lease ran out", gone).await;
    proxy.heal();
    let back = |view: &View| fresh_with(1)(view) && only(view).healthy;
    bench.see_within(NOTICED_WITHIN, &mut seen, "registered again", back).await;
    registration.deregister().await;
    bench.see(&mut seen, "none", nothing).await;
    bench.end([writer, reader]).await;
}

async fn half_open(bench: Arc<Bench>) {
    broken_network(&bench, "conf-half", 17, Proxy::hold).await;
}

async fn server_restart(bench: Arc<Bench>) {
    let (writer, reader) = (bench.connect(), bench.connect());
    let mut seen = reader.subscribe("conf-restart");
    let first = writer.register("conf-restart", instance(18, 80)).expect("valid");
    let second = writer.register("conf-restart", instance(18, 81)).expect("valid");
    bench.see(&mut seen, "two", fresh_with(2)).await;
    let restarting = Arc::clone(&bench);
    tokio::task::spawn_blocking(move || {
        let mut restart = restarting.restart.lock().expect("only this case restarts");
        restart();
    })
    .await
    .expect("the server restarts");
    // Whatever the server forgot, both are there again, and stay.
    let both = |view: &View| fresh_with(2)(view);
    bench.see_within(NOTICED_WITHIN + bench.gone_within, &mut seen, "both again", both).await;
    tokio::time::sleep(bench.gone_within.min(Duration::from_secs(10))).await;
    bench.see_within(NOTICED_WITHIN, &mut seen, "both still", both).await;
    let third = writer.register("conf-restart", instance(18, 82)).expect("valid");
    bench.see_within(NOTICED_WITHIN, &mut seen, "three", fresh_with(3)).await;
    for registration in [first, second, third] {
        registration.deregister().await;
    }
    bench.see_within(NOTICED_WITHIN, &mut seen, "none", nothing).await;
    bench.end([writer, reader]).await;
}
