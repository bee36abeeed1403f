//! Live selectors: edits, bad edits, readiness, lines in the log, and the end of everything they started.

use std::path::Path;
use std::time::Duration;

use metaroute::live::Rules;
use metaroute::{Connection, GuardOptions, Instance, LiveSelector, Memory, NoPickReason, Outcome, Registry, connect};
use metaroute_core::rules::Balance;
use metaroute_registry::State;

use crate::log::Log;
use crate::wait::until;

const SOON: Duration = Duration::from_secs(10);

fn instance(address: &str) -> Instance {
    Instance::new(address.parse().unwrap())
}

fn over(memory: &Memory) -> Connection {
    Connection::new(Registry::new(memory.clone()))
}

/// Replaces a file as careful programs do, so that no reader sees half of it.
fn write(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(&beside, path).unwrap();
}

fn fleet(instances: &str) -> String {
    format!("services:\n  - name: orders\n    instances:\n{instances}")
}

fn address(live: &LiveSelector) -> String {
    live.select(&()).map_or_else(|none| none.reason.to_string(), |pick| pick.instance().address.to_string())
}

/// Whether everything spawned on this runtime has ended.
async fn nothing_runs() {
    let metrics = tokio::runtime::Handle::current().metrics();
    until("every task has ended", || metrics.num_alive_tasks() == 0).await;
}

#[tokio::test]
async fn a_fleet_file_is_followed_and_a_bad_edit_keeps_the_last_good_list() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.yaml");
    write(&path, &fleet("      - {address: 'a:1', metadata: {tier: 1}}\n"));
    let orders = connect(path.to_str().unwrap()).unwrap().service("orders").start().await.unwrap();
    orders.ready(SOON).await.unwrap();
    assert_eq!(address(&orders), "a:1");

    write(&path, &fleet("      - {address: 'b:1'}\n      - {address: 'c:1'}\n"));
    until("the edit shows", || orders.status().instances == 2).await;

    write(&path, "services: [{name: orders, instanses: []}]");
    until("the bad edit shows", || orders.status().registry == State::Stale).await;
    let status = orders.status();
    assert_eq!(status.instances, 2);
    assert!(status.error.unwrap().to_string().contains("instanses"));
    assert!(orders.select(&()).is_ok());

    std::fs::remove_file(&path).unwrap();
    until("the loss shows", || orders.status().registry == State::Unreachable).await;
    assert!(orders.select(&()).is_ok());
    until("the list gets old", || orders.metrics().age.is_some_and(|age| age > Duration::ZERO)).await;

    write(&path, &fleet("      - {address: 'd:1'}\n"));
    until("the file is back", || orders.status().registry == State::Fresh).await;
    until("and read", || address(&orders) == "d:1").await;
    assert_eq!(orders.metrics().age, Some(Duration::ZERO));
    assert!(orders.shutdown(SOON).await);
    drop(orders);
    nothing_runs().await;
}

#[tokio::test(start_paused = true)]
async fn an_edited_rules_file_takes_effect_and_a_bad_one_does_not() {
    let log = Log::capture();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    let rule = |expr: &str| format!("rules: [{{name: tier, match: {expr}, terminal: fail}}]");
    write(&path, &rule("tier == 1"));
    let memory = Memory::new();
    for tier in ["1", "2"] {
        memory.register("orders", instance(&format!("tier-{tier}:1")).with_meta("tier", tier)).unwrap();
    }
    let orders = over(&memory).service("orders").rules_file(&path).start().await.unwrap();
    orders.ready(SOON).await.unwrap();
    assert_eq!(address(&orders), "tier-1:1");

    write(&path, &rule("tier == 2"));
    until("the edit works", || address(&orders) == "tier-2:1").await;
    assert_eq!((orders.status().rules.reloads, orders.status().rules.error), (1, None));

    write(&path, "rules: [{name: tier, mach: tier == 1}]");
    until("the refusal shows", || orders.status().rules.error.is_some()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let status = orders.status().rules;
    assert_eq!((status.reloads, status.rejected), (1, 1));
    assert!(format!("{:?}", status.error).contains("mach"));
    assert_eq!(address(&orders), "tier-2:1");
    assert_eq!(log.count("rules rejected"), 1);
    assert_eq!(log.count("rules reloaded"), 1);

    std::fs::remove_file(&path).unwrap();
    until("the loss shows", || orders.status().rules.rejected == 2).await;
    assert_eq!(address(&orders), "tier-2:1");

    write(&path, &rule("tier == 2"));
    until("the file is back", || orders.status().rules.error.is_none()).await;
    assert_eq!(orders.status().rules.reloads, 1, "what it says was in force all the time");
}

#[tokio::test(start_paused = true)]
async fn rules_that_read_well_and_do_not_fit_are_refused_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    write(&path, "balance: random");
    let memory = Memory::new();
    memory.register("orders", instance("a:1")).unwrap();
    let orders = over(&memory).service("orders").rules(path.as_path()).start().await.unwrap();
    write(&path, "balance: custom:nobody");
    until("the refusal shows", || orders.status().rules.rejected == 1).await;
    assert_eq!(orders.selector().rules().balance, Balance::Random);
}

#[tokio::test]
async fn bad_rules_at_the_start_are_an_error_with_the_place() {
    let memory = Memory::new();
    let source = |error: metaroute::RulesError| std::error::Error::source(&error).unwrap().to_string();
    let error = over(&memory).service("orders").rules("version >=").start().await.unwrap_err();
    assert_eq!(error.to_string(), "the expression `version >=` cannot be read");
    let error = over(&memory).service("orders").rules(Rules::File("nowhere.yaml".into())).start().await.unwrap_err();
    assert!(source(error).contains("nowhere.yaml"));
    let custom = over(&memory).service("orders").balance(Balance::Custom("nobody".into())).start().await;
    assert_eq!(source(custom.unwrap_err()), "no balancer `nobody` is registered");
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_is_said_when_a_service_is_not_ready() {
    let memory = Memory::new();
    let connection = over(&memory);
    let orders = connection.service("orders").rules("tier == 1").start().await.unwrap();
    let reason = async || orders.ready(Duration::from_secs(1)).await.map_err(|error| error.reason);
    assert_eq!(reason().await, Err(NoPickReason::UnknownService));
    memory.register("orders", instance("a:1").with_meta("tier", "2")).unwrap();
    assert_eq!(reason().await, Err(NoPickReason::Filtered));
    memory.register("orders", instance("b:1").with_meta("tier", "1").with_healthy(false)).unwrap();
    assert_eq!(reason().await, Err(NoPickReason::AllUnhealthy));
    let waiting = orders.clone();
    let waiting = tokio::spawn(async move { waiting.ready(SOON).await.is_ok() });
    tokio::time::sleep(Duration::from_secs(1)).await;
    memory.register("orders", instance("b:1").with_meta("tier", "1")).unwrap();
    assert!(waiting.await.unwrap());
}

#[tokio::test]
async fn an_unreachable_registry_is_the_cause_of_not_being_ready() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.yaml");
    let orders = connect(path.to_str().unwrap()).unwrap().service("orders").start().await.unwrap();
    until("the registry was asked", || orders.status().registry == State::Unreachable).await;
    let error = orders.ready(Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(error.reason, NoPickReason::Unresolved);
    assert_eq!(error.to_string(), "service `orders` is not ready after 300ms: unresolved");
    assert!(error.source.unwrap().to_string().contains("fleet.yaml"));
}

#[tokio::test(start_paused = true)]
async fn a_fallback_is_one_line_when_it_begins_and_one_when_it_ends() {
    let log = Log::capture();
    let memory = Memory::new();
    let canary = instance("canary:1").with_meta("lane", "canary");
    memory.register("orders", instance("stable:1")).unwrap();
    memory.register("orders", canary.clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    write(&path, "rules: [{name: canary, match: lane == canary, mode: prefer, terminal: any}]");
    let orders = over(&memory).service("orders").rules_file(&path).start().await.unwrap();
    orders.ready(SOON).await.unwrap();
    assert_eq!(orders.status().fallbacks, Vec::<String>::new());

    memory.deregister("orders", &canary.id);
    until("it falls back", || orders.status().fallbacks == ["canary"]).await;
    for _ in 0..1000 {
        assert_eq!(address(&orders), "stable:1");
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    memory.register("orders", canary).unwrap();
    until("it is over", || orders.status().fallbacks.is_empty()).await;
    assert_eq!((log.count("fallback active"), log.count("fallback no longer active")), (1, 1));
    assert_eq!(log.count("instances changed"), 3);
    assert_eq!(orders.metrics().fallbacks, [("canary".to_owned(), 1000)]);
}

#[tokio::test(start_paused = true)]
async fn rules_that_read_the_request_fall_back_as_their_callers_do() {
    let memory = Memory::new();
    memory.register("orders", instance("stable:1").with_meta("version", "1")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    write(&path, "rules: [{name: target, match: version == $req.target, mode: prefer, terminal: any}]");
    let orders = over(&memory).service("orders").rules_file(&path).start().await.unwrap();
    orders.ready(SOON).await.unwrap();
    let wanted = orders.request([("target", "1"), ("nobody-reads-this", "x")]);
    assert_eq!(orders.select(&wanted).unwrap().reason().to_string(), "matched");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(orders.metrics().memo, 1, "the answer was built behind the request's back");
    assert_eq!(orders.status().fallbacks, Vec::<String>::new());

    let unmet = orders.request([("target", "2")]);
    assert_eq!(orders.select(&unmet).unwrap().reason().to_string(), "relaxed");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(orders.status().fallbacks, ["target"]);
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(orders.status().fallbacks, Vec::<String>::new());

    assert_eq!(orders.slot("other"), None);
    write(&path, "rules: [{name: other, match: version == $req.other, terminal: fail}]");
    until("the new key is known", || orders.slot("other").is_some()).await;
    assert_eq!(orders.select(&orders.request([("other", "1")])).unwrap().reason().to_string(), "matched");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_keeps_failing_is_ejected_and_named() {
    let log = Log::capture();
    let memory = Memory::new();
    for name in ["good:1", "fine:1", "bad:1"] {
        memory.register("orders", instance(name)).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    write(&path, "ejection: {consecutive_failures: 3, base_time: 30s, max_ejected: 40%}");
    let orders = over(&memory).service("orders").rules_file(&path).start().await.unwrap();
    orders.ready(SOON).await.unwrap();
    let call = |orders: &LiveSelector| {
        let pick = orders.select(&()).unwrap();
        let bad = pick.instance().address.host() == "bad";
        pick.complete(if bad { Outcome::Failure } else { Outcome::Success }, Duration::from_millis(1));
        bad
    };
    for _ in 0..100 {
        call(&orders);
    }
    until("it is ejected", || orders.status().ejected == 1).await;
    assert!((0..100).all(|_| !call(&orders)));
    assert_eq!(log.count("instances ejected"), 1);
    assert!(log.text().contains("bad:1"));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_suddenly_empty_is_held_for_a_while() {
    let log = Log::capture();
    let memory = Memory::new();
    memory.register("orders", instance("a:1")).unwrap();
    let orders = over(&memory).service("orders").guard(GuardOptions::default()).start().await.unwrap();
    orders.ready(SOON).await.unwrap();
    memory.replace("orders", []);
    until("it is held", || orders.status().held.is_some()).await;
    assert_eq!(address(&orders), "a:1");
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(orders.status().held, None);
    assert_eq!(address(&orders), "empty_registry");
    assert!(orders.metrics().held_total >= Duration::from_secs(30));
    assert_eq!((log.count("last good list is held"), log.count("no longer held")), (1, 1));
    assert_eq!(log.count("no instance is usable"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_list_edited_by_hand_is_believed_at_once() {
    let memory = Memory::new();
    memory.register("orders", instance("a:1")).unwrap();
    let orders = over(&memory).service("orders").start().await.unwrap();
    orders.ready(SOON).await.unwrap();
    memory.replace("orders", []);
    until("it is gone", || address(&orders) == "empty_registry").await;
}

#[tokio::test(start_paused = true)]
async fn callers_presets_and_preferences_count() {
    let memory = Memory::new();
    memory.register("orders", instance("near-old:1").with_cluster("hz").with_meta("version", "1")).unwrap();
    memory.register("orders", instance("near-new:1").with_cluster("hz").with_meta("version", "2")).unwrap();
    memory.register("orders", instance("far-new:1").with_cluster("bj").with_meta("version", "2")).unwrap();
    let connection = over(&memory);
    let hosts = async |orders: metaroute::ServiceBuilder| {
        let orders = orders.start().await.unwrap();
        orders.ready(SOON).await.unwrap();
        let kept = orders.explain(&()).instances.into_iter().filter(|explained| explained.probability > 0.0);
        kept.map(|explained| explained.instance.address.host().to_owned()).collect::<Vec<_>>()
    };
    let me = || connection.service("orders").caller("cluster", "hz");
    assert_eq!(hosts(me()).await.len(), 3, "naming a cluster prefers nothing by itself");
    assert_eq!(hosts(me().prefer_cluster()).await, ["near-new", "near-old"]);
    assert_eq!(hosts(me().rules("version == 2").prefer_cluster()).await, ["near-new"]);
    assert_eq!(hosts(me().nacos_cluster().caller_metadata([("target-version", "2")])).await, ["near-new"]);
    assert_eq!(hosts(connection.service("orders").nacos_cluster()).await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_registered_through_a_connection_is_found_through_it() {
    let connection = connect("memory:").unwrap();
    let orders = connection.service("orders").start().await.unwrap();
    let mut registration = connection.register("orders", instance("me:1")).unwrap();
    registration.registered().await.unwrap();
    orders.ready(SOON).await.unwrap();
    assert_eq!(address(&orders), "me:1");
    registration.deregister().await;
    until("it is gone", || address(&orders) == "empty_registry").await;
    assert!(orders.shutdown(SOON).await);
    assert!(connection.register("orders", instance("me:1")).is_ok(), "a connection in use is not shut down with it");
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_was_shut_down_leaves_the_last_list() {
    let memory = Memory::new();
    memory.register("orders", instance("a:1")).unwrap();
    let connection = over(&memory);
    let orders = connection.service("orders").start().await.unwrap();
    orders.ready(SOON).await.unwrap();
    assert!(connection.shutdown(SOON).await);
    until("it shows", || orders.status().registry == State::Unreachable).await;
    assert_eq!(address(&orders), "a:1");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(orders.metrics().age.unwrap() >= Duration::from_secs(5));
    assert!(orders.status().running);
}

#[tokio::test(start_paused = true)]
async fn everything_ends_with_the_last_handle() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    write(&path, "balance: random");
    let memory = Memory::new();
    memory.register("orders", instance("a:1")).unwrap();
    let orders = over(&memory).service("orders").rules_file(&path).start().await.unwrap();
    let clone = orders.clone();
    clone.ready(SOON).await.unwrap();
    drop(orders);
    memory.register("orders", instance("b:1")).unwrap();
    until("a clone is enough to go on", || clone.status().instances == 2).await;
    drop(clone);
    nothing_runs().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_all_tasks_in_time_and_picks_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    write(&path, "balance: random");
    let memory = Memory::new();
    memory.register("orders", instance("a:1")).unwrap();
    let orders = over(&memory).service("orders").rules_file(&path).start().await.unwrap();
    orders.ready(SOON).await.unwrap();
    let mut picker = orders.picker();
    let begun = tokio::time::Instant::now();
    assert!(orders.shutdown(Duration::from_secs(1)).await);
    assert!(begun.elapsed() <= Duration::from_secs(1));
    nothing_runs().await;
    assert!(!orders.status().running);
    assert_eq!(address(&orders), "a:1");
    assert!(picker.pick(&()).is_ok());
    assert!(orders.shutdown(Duration::ZERO).await, "a second time there is nothing to do");
}

#[tokio::test(start_paused = true)]
async fn seata_configuration_names_the_cluster_and_the_rules() {
    use metaroute::properties::Surroundings;
    use metaroute::seata::SeataConfig;
    use metaroute_registry::document::Format;

    let log = Log::capture();
    let text = "
seata.service.vgroup-mapping.tx=hz
seata.client.routing.enabled=true
seata.client.routing.debug=true
seata.client.routing.routers=metadata-router-1
seata.client.routing.metadata-router-1.expression=version >= 2.3
";
    let config = SeataConfig::parse("application.properties", text, Format::Properties, &Surroundings::none()).unwrap();
    let memory = Memory::new();
    memory.register("hz", instance("old:1").with_meta("version", "2.2")).unwrap();
    memory.register("hz", instance("new:1").with_meta("version", "2.4")).unwrap();
    let coordinators = over(&memory).service("tx").seata(&config).start().await.unwrap();
    coordinators.ready(SOON).await.unwrap();
    assert_eq!(coordinators.service(), "hz");
    for _ in 0..20 {
        assert_eq!(address(&coordinators), "new:1");
    }
    assert_eq!(log.count("rule:metadata-router-1 2 -> 1"), 20, "debug explains every pick");
}

#[tokio::test(start_paused = true)]
async fn spring_configuration_is_who_calls() {
    use metaroute::properties::Surroundings;
    use metaroute::spring::SpringConfig;
    use metaroute_registry::document::Format;

    let text = "
spring.cloud.nacos.discovery.cluster-name=hz
spring.cloud.nacos.discovery.metadata.target-version=2
";
    let config =
        SpringConfig::parse("application.properties", text, Format::Properties, &Surroundings::none()).unwrap();
    let memory = Memory::new();
    for (name, cluster, version) in [("far:1", "bj", "2"), ("near:1", "hz", "2"), ("old:1", "hz", "1")] {
        memory.register("orders", instance(name).with_cluster(cluster).with_meta("version", version)).unwrap();
    }
    let orders = over(&memory).service("orders").spring(&config).nacos_cluster().start().await.unwrap();
    orders.ready(SOON).await.unwrap();
    for _ in 0..20 {
        assert_eq!(address(&orders), "near:1");
    }
}
