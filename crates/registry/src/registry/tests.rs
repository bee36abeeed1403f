use std::collections::VecDeque;
use std::time::Duration;

use super::*;
use crate::Memory;
use crate::driver::{Answer, Lease, Limits, Renewal};
use crate::registry::subscription::State;

fn instance(host: &str) -> Instance {
    Instance::new(format!("{host}:1").parse().unwrap())
}

fn hosts(view: &View) -> Vec<String> {
    let mut hosts: Vec<_> =
        view.snapshot.iter().flat_map(|s| &s.instances).map(|i| i.address.host().to_owned()).collect();
    hosts.sort();
    hosts
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_sees_register_update_and_deregister() {
    let registry = Registry::new(Memory::new());
    let mut orders = registry.subscribe("orders");
    assert_eq!(orders.current().state, State::Unresolved);
    assert_eq!(orders.changed().await.unwrap().state, State::UnknownService);
    let mut a = registry.register("orders", instance("a")).unwrap();
    a.registered().await.unwrap();
    let view = orders.changed().await.unwrap();
    assert_eq!((view.state, hosts(&view)), (State::Fresh, vec!["a".to_owned()]));
    a.update(instance("a").with_weight(0.0)).unwrap();
    let view = orders.changed().await.unwrap();
    assert_eq!(view.snapshot.unwrap().instances[0].weight, 0.0);
    assert!(a.update(instance("b")).is_err());
    a.deregister().await;
    let view = orders.changed().await.unwrap();
    assert_eq!((view.state, hosts(&view).len()), (State::Fresh, 0));
    assert_eq!(registry.services().await.unwrap(), [Box::<str>::from("orders")]);
    assert!(registry.shutdown(Duration::from_secs(1)).await);
}

#[tokio::test(start_paused = true)]
async fn two_subscribers_share_a_watch_and_a_slow_one_sees_the_latest() {
    let memory = Memory::new();
    let registry = Registry::new(memory.clone());
    let mut fast = registry.subscribe("s");
    let mut slow = registry.subscribe("s");
    for i in 0..50 {
        memory.register("s", instance(&format!("h{i}"))).unwrap();
        fast.wait_for(|view| hosts(view).len() == i + 1).await.unwrap();
    }
    assert_eq!(hosts(&slow.changed().await.unwrap()).len(), 50);
    assert_eq!(registry.shared.tasks().watches.len(), 1);
    drop(fast);
    drop(slow);
    // Nobody follows any more: the task ends, and a later subscriber gets a new one.
    while !registry.shared.tasks().watches.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut again = registry.subscribe("s");
    assert_eq!(hosts(&again.changed().await.unwrap()).len(), 50);
}

#[tokio::test(start_paused = true)]
async fn unchanged_lists_wake_nobody() {
    let memory = Memory::new();
    let registry = Registry::new(memory.clone());
    memory.register("s", instance("a")).unwrap();
    let mut s = registry.subscribe("s");
    s.changed().await.unwrap();
    memory.register("s", instance("a")).unwrap();
    memory.register("other", instance("b")).unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(1), s.changed()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn dropping_a_registration_withdraws_it() {
    let memory = Memory::new();
    let registry = Registry::new(memory.clone());
    let mut s = registry.subscribe("s");
    let registration = registry.register("s", instance("a")).unwrap();
    s.wait_for(|view| hosts(view).len() == 1).await.unwrap();
    drop(registration);
    s.wait_for(|view| view.snapshot.is_some() && hosts(view).is_empty()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn shutdown_withdraws_ends_subscriptions_and_refuses_more() {
    let memory = Memory::new();
    let registry = Registry::new(memory.clone());
    let mut s = registry.subscribe("s");
    let mut registration = registry.register("s", instance("a")).unwrap();
    registration.registered().await.unwrap();
    assert!(registry.shutdown(Duration::from_secs(1)).await);
    assert_eq!(memory.instances("s").unwrap(), []);
    assert!(matches!(registration.state(), RegistrationState::Ended));
    assert_eq!(s.wait_for(|_| false).await.unwrap_err(), Closed);
    assert!(registry.register("s", instance("a")).is_err());
    assert_eq!(registry.subscribe("t").changed().await.unwrap_err(), Closed);
}

/// A driver that answers from scripts, one per call.
#[derive(Default)]
struct Scripted {
    weight: bool,
    log: Mutex<Vec<String>>,
    apply: Mutex<VecDeque<Result<Lease, DriverError>>>,
    renew: Mutex<VecDeque<Result<Renewal, DriverError>>>,
    withdraw: Mutex<VecDeque<Result<(), DriverError>>>,
    watch: Mutex<VecDeque<Result<Seen, DriverError>>>,
}

impl Scripted {
    fn note(&self, what: &str) {
        self.log.lock().unwrap().push(what.to_owned());
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

impl Driver for Arc<Scripted> {
    fn capabilities(&self) -> Capabilities {
        Capabilities { register: true, weight: self.weight, ..Capabilities::default() }
    }

    fn limits(&self) -> Limits {
        Limits { value_bytes: Some(8), ..Limits::default() }
    }

    fn apply<'a>(&'a self, _: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        self.note(&format!("apply {}", instance.weight));
        let next = self.apply.lock().unwrap().pop_front();
        Box::pin(async move { next.unwrap_or(Ok(Lease::default())) })
    }

    fn renew<'a>(&'a self, _: &'a str, _: &'a Instance) -> Answer<'a, Renewal> {
        self.note("renew");
        let next = self.renew.lock().unwrap().pop_front();
        Box::pin(async move { next.unwrap_or(Ok(Renewal::Kept)) })
    }

    fn withdraw<'a>(&'a self, _: &'a str, _: &'a InstanceId) -> Answer<'a, ()> {
        self.note("withdraw");
        let next = self.withdraw.lock().unwrap().pop_front();
        Box::pin(async move { next.unwrap_or(Ok(())) })
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(async { Err(DriverError::new(ErrorKind::Unsupported, "no list")) })
    }

    fn watch<'a>(&'a self, _: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        self.note(&format!("watch {}", after.map_or("-", Cursor::as_str)));
        let next = self.watch.lock().unwrap().pop_front();
        Box::pin(async move {
            match next {
                Some(next) => next,
                None => std::future::pending().await,
            }
        })
    }
}

fn down() -> DriverError {
    DriverError::new(ErrorKind::Unreachable, "connection refused")
}

#[tokio::test(start_paused = true)]
async fn a_registration_is_retried_renewed_and_applied_again_after_a_loss() {
    let driver = Arc::new(Scripted::default());
    let lease = Lease { renew_every: Some(Duration::from_secs(5)) };
    driver.apply.lock().unwrap().extend([Err(down()), Err(down()), Ok(lease), Ok(lease), Ok(lease)]);
    driver.renew.lock().unwrap().extend([Ok(Renewal::Kept), Ok(Renewal::Lost), Err(down())]);
    driver.withdraw.lock().unwrap().push_back(Err(down()));
    let registry = Registry::new(Arc::clone(&driver));
    let mut registration = registry.register("s", instance("a").with_weight(7.0)).unwrap();
    assert!(matches!(registration.state(), RegistrationState::Pending(None)));
    registration.registered().await.unwrap();
    assert_eq!(driver.log(), ["apply 7", "apply 7", "apply 7"]);
    // Renewals at 5, 10 (lost, applied again) and 15 s (broken, applied again).
    tokio::time::sleep(Duration::from_secs(16)).await;
    assert_eq!(driver.log(), ["renew", "renew", "apply 7", "renew", "apply 7"]);
    registration.update(instance("a").with_weight(8.0)).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(driver.log(), ["apply 8"]);
    registration.deregister().await;
    assert_eq!(driver.log(), ["withdraw", "withdraw"]);
    assert!(registry.shutdown(Duration::from_secs(1)).await);
}

#[tokio::test(start_paused = true)]
async fn a_refused_registration_waits_for_another_wish() {
    let driver = Arc::new(Scripted::default());
    driver.apply.lock().unwrap().push_back(Err(DriverError::new(ErrorKind::Invalid, "no such group")));
    let registry = Registry::new(Arc::clone(&driver));
    let mut registration = registry.register("s", instance("a")).unwrap();
    assert_eq!(registration.registered().await.unwrap_err().to_string(), "no such group");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(driver.log(), ["apply 1"]);
    registration.update(instance("a").with_weight(2.0)).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(matches!(registration.state(), RegistrationState::Registered));
}

/// A proxy says "not found" while the registry behind it starts again: that is no word about a registration that was
/// fine before.
#[tokio::test(start_paused = true)]
async fn what_was_taken_once_is_not_given_up_for_an_invalid_answer() {
    let driver = Arc::new(Scripted::default());
    let nonsense = || DriverError::new(ErrorKind::Invalid, "answered 404 Not Found");
    let lease = Lease { renew_every: Some(Duration::from_secs(5)) };
    driver.apply.lock().unwrap().push_back(Ok(lease));
    let registry = Registry::new(Arc::clone(&driver));
    let mut registration = registry.register("s", instance("a")).unwrap();
    registration.registered().await.unwrap();
    driver.apply.lock().unwrap().extend([Err(nonsense()), Err(nonsense())]);
    driver.renew.lock().unwrap().push_back(Err(nonsense()));
    loop {
        if let RegistrationState::Pending(Some(error)) = registration.changed().await {
            assert_eq!(error.to_string(), "answered 404 Not Found");
            break;
        }
    }
    tokio::time::timeout(Duration::from_secs(20), registration.registered()).await.expect("soon").unwrap();
    // Another wish may really be wrong. It is refused, and looked at again now and then.
    driver.apply.lock().unwrap().push_back(Err(nonsense()));
    registration.update(instance("a").with_weight(2.0)).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(matches!(registration.state(), RegistrationState::Refused(_)), "{:?}", registration.state());
    tokio::time::sleep(Policy::default().wait_max()).await;
    assert!(matches!(registration.state(), RegistrationState::Registered), "{:?}", registration.state());
    // Nor is the way out given up.
    driver.withdraw.lock().unwrap().extend([Err(nonsense()), Ok(())]);
    driver.log();
    registration.deregister().await;
    assert_eq!(driver.log(), ["withdraw", "withdraw"]);
    assert!(registry.shutdown(Duration::from_secs(1)).await);
}

#[tokio::test(start_paused = true)]
async fn what_was_not_allowed_is_tried_again_now_and_then() {
    let driver = Arc::new(Scripted::default());
    let denied = || Err(DriverError::new(ErrorKind::Denied, "token expired"));
    driver.apply.lock().unwrap().extend([denied(), denied(), denied()]);
    let registry = Registry::new(Arc::clone(&driver));
    let mut registration = registry.register("s", instance("a")).unwrap();
    assert_eq!(registration.registered().await.unwrap_err().to_string(), "token expired");
    tokio::time::sleep(Policy::default().wait_max() + Duration::from_secs(1)).await;
    assert_eq!(driver.log(), ["apply 1", "apply 1"]);
    tokio::time::sleep(Policy::default().wait_max() * 2).await;
    assert!(matches!(registration.state(), RegistrationState::Registered));
}

#[tokio::test(start_paused = true)]
async fn updates_during_an_outage_make_no_further_attempts() {
    let driver = Arc::new(Scripted::default());
    driver.apply.lock().unwrap().extend((0..1000).map(|_| Err(down())));
    let registry = Registry::new(Arc::clone(&driver));
    let registration = registry.register("s", instance("a")).unwrap();
    for i in 0..3600 {
        registration.update(instance("a").with_weight(f64::from(i))).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let attempts = driver.log().len();
    assert!((40..130).contains(&attempts), "{attempts}");
    // Nothing wanted is worth looking at before the wait is over.
    driver.withdraw.lock().unwrap().push_back(Ok(()));
    let before = tokio::time::Instant::now();
    registration.deregister().await;
    assert!(before.elapsed() < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn an_id_registered_again_is_taken_over_from_its_earlier_handle() {
    let memory = Memory::new();
    let registry = Registry::new(memory.clone());
    let mut first = registry.register("s", instance("a").with_weight(1.0)).unwrap();
    first.registered().await.unwrap();
    let mut second = registry.register("s", instance("a").with_weight(2.0)).unwrap();
    assert!(matches!(first.state(), RegistrationState::Ended));
    second.registered().await.unwrap();
    first.update(instance("a").with_weight(9.0)).unwrap();
    first.deregister().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(memory.instances("s").unwrap()[0].weight, 2.0);
    second.deregister().await;
    assert_eq!(memory.instances("s").unwrap(), []);
    assert!(registry.shared.tasks().registrations.is_empty(), "the keeper ended");
}

#[tokio::test(start_paused = true)]
async fn draining_announces_waits_until_it_is_seen_and_deregisters_in_that_order() {
    let memory = Memory::new();
    let registry = Registry::new(memory.clone());
    let mut registration = registry.register("s", instance("a").with_weight(5.0)).unwrap();
    registration.registered().await.unwrap();
    let mut seen = registry.subscribe("s");
    let watcher = tokio::spawn(async move {
        let mut weights = Vec::new();
        loop {
            let view = seen.changed().await.unwrap();
            let list = view.snapshot.unwrap().instances.clone();
            weights.push(list.first().map(|instance| instance.weight));
            if list.is_empty() {
                return weights;
            }
        }
    });
    let drained = registration.drain(Duration::from_secs(5)).await;
    assert_eq!(drained, Drained { announced: true, deregistered: true });
    assert_eq!(watcher.await.unwrap(), [Some(5.0), Some(0.0), None]);
}

#[tokio::test(start_paused = true)]
async fn draining_keeps_its_deadline_whatever_the_registry_does() {
    let driver = Arc::new(Scripted { weight: true, ..Scripted::default() });
    driver.withdraw.lock().unwrap().extend((0..1000).map(|_| Err(down())));
    let registry = Registry::new(Arc::clone(&driver));
    let mut registration = registry.register("s", instance("a").with_weight(5.0)).unwrap();
    registration.registered().await.unwrap();
    let before = tokio::time::Instant::now();
    // Its watch never answers.
    let drained = registration.drain(Duration::from_secs(9)).await;
    assert_eq!(drained, Drained { announced: false, deregistered: false });
    assert_eq!(before.elapsed(), Duration::from_secs(9));
    assert_eq!(driver.log()[..4], ["apply 5", "watch -", "apply 0", "withdraw"]);
}

#[tokio::test(start_paused = true)]
async fn where_no_weight_is_carried_draining_deregisters_at_once() {
    let driver = Arc::new(Scripted::default());
    let registry = Registry::new(Arc::clone(&driver));
    let mut registration = registry.register("s", instance("a")).unwrap();
    registration.registered().await.unwrap();
    let drained = registration.drain(Duration::from_secs(9)).await;
    assert_eq!(drained, Drained { announced: false, deregistered: true });
    assert_eq!(driver.log(), ["apply 1", "withdraw"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_answers_is_given_up() {
    /// Hangs in its first `apply`.
    struct Hanging(Mutex<u32>);
    impl Driver for Arc<Hanging> {
        fn capabilities(&self) -> Capabilities {
            Capabilities { register: true, ..Capabilities::default() }
        }
        fn apply<'a>(&'a self, _: &'a str, _: &'a Instance) -> Answer<'a, Lease> {
            let mut calls = self.0.lock().unwrap();
            *calls += 1;
            let hangs = *calls == 1;
            Box::pin(async move { if hangs { std::future::pending().await } else { Ok(Lease::default()) } })
        }
        fn renew<'a>(&'a self, _: &'a str, _: &'a Instance) -> Answer<'a, Renewal> {
            Box::pin(async { Ok(Renewal::Kept) })
        }
        fn withdraw<'a>(&'a self, _: &'a str, _: &'a InstanceId) -> Answer<'a, ()> {
            Box::pin(async { Ok(()) })
        }
        fn list(&self) -> Answer<'_, Vec<Box<str>>> {
            Box::pin(async { Ok(Vec::new()) })
        }
        fn watch<'a>(&'a self, _: &'a str, _: Option<&'a Cursor>) -> Answer<'a, Seen> {
            Box::pin(std::future::pending())
        }
    }
    let registry = Registry::new(Arc::new(Hanging(Mutex::new(0))));
    let mut registration = registry.register("s", instance("a")).unwrap();
    tokio::time::timeout(Duration::from_secs(40), registration.registered()).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn limits_are_checked_before_anything_is_sent() {
    let driver = Arc::new(Scripted::default());
    let registry = Registry::new(Arc::clone(&driver));
    let error = registry.register("s", instance("a").with_meta("env", "production")).unwrap_err();
    assert_eq!(error.to_string(), "metadata value of `env` has 10 bytes, at most 8 are accepted");
    assert_eq!(registry.register("s", instance("a").with_weight(-1.0)).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(driver.log(), Vec::<String>::new());
}

/// What makes no sense is asked again soon, what is forbidden at the longest wait.
#[tokio::test(start_paused = true)]
async fn an_answer_that_makes_no_sense_is_not_waited_out_like_a_refusal() {
    for (kind, soon) in [(ErrorKind::Invalid, true), (ErrorKind::Denied, false)] {
        let driver = Arc::new(Scripted::default());
        let good = Seen { cursor: Cursor::new("1"), state: SeenState::Service(Snapshot::default()) };
        driver.watch.lock().unwrap().extend([Err(DriverError::new(kind, "<html>")), Ok(good)]);
        let registry = Registry::new(Arc::clone(&driver));
        let mut s = registry.subscribe("s");
        let stale = s.wait_for(|view| view.state == State::Stale).await.unwrap();
        assert_eq!(stale.error.unwrap().to_string(), "<html>");
        let fresh = tokio::time::timeout(Duration::from_secs(3), s.wait_for(|view| view.state == State::Fresh)).await;
        assert_eq!(fresh.is_ok(), soon, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_watch_keeps_the_last_good_list_and_asks_for_the_current_one() {
    let driver = Arc::new(Scripted::default());
    let seen = |cursor: &str, list: Vec<Instance>| {
        Ok(Seen {
            cursor: Cursor::new(cursor),
            state: SeenState::Service(Snapshot { instances: list, ..Snapshot::default() }),
        })
    };
    let unusable = Ok(Seen {
        cursor: Cursor::new("8"),
        state: SeenState::Unusable(DriverError::new(ErrorKind::Invalid, "bad edit")),
    });
    driver.watch.lock().unwrap().extend([
        seen("7", vec![instance("a")]),
        Err(down()),
        Err(down()),
        unusable,
        seen("9", vec![instance("b")]),
    ]);
    let registry = Registry::new(Arc::clone(&driver));
    let mut s = registry.subscribe("s");
    let mut states = Vec::new();
    loop {
        let view = s.changed().await.unwrap();
        let error = view.error.as_ref().map(ToString::to_string);
        states.push((view.state, hosts(&view).join(","), error.unwrap_or_default()));
        if hosts(&view) == ["b"] {
            assert_eq!(view.cursor, Some(Cursor::new("9")));
            break;
        }
        if view.state == State::Stale {
            assert!(
                view.age(tokio::time::Instant::now()) > Duration::from_millis(400),
                "stale since the first failure"
            );
        }
    }
    // Intermediate states may be skipped, the order and the last good list may not.
    assert_eq!(states.last().unwrap(), &(State::Fresh, "b".to_owned(), String::new()));
    assert!(states.contains(&(State::Unreachable, "a".to_owned(), "connection refused".to_owned())), "{states:?}");
    assert_eq!(driver.log(), ["watch -", "watch 7", "watch -", "watch -", "watch 8", "watch 9"]);
}

#[tokio::test(start_paused = true)]
async fn a_dead_registry_costs_few_attempts() {
    let driver = Arc::new(Scripted::default());
    driver.watch.lock().unwrap().extend((0..100_000).map(|_| Err(down())));
    let registry = Registry::new(Arc::clone(&driver));
    let _s = registry.subscribe("s");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let attempts = driver.log().len();
    // 1 s × 1.5 up to 60 s ± 50 %: about 70 in the first hour.
    assert!((40..130).contains(&attempts), "{attempts}");
}

#[cfg(not(feature = "kubernetes-any"))]
#[test]
fn other_kinds_are_named_when_they_are_not_built_in() {
    let url: RegistryUrl = "k8s://".parse().unwrap();
    assert_eq!(Registry::connect(&url).unwrap_err().to_string(), "registries of kind `k8s` are not part of this build");
}

#[tokio::test(start_paused = true)]
async fn a_second_subscription_starts_with_what_the_first_one_got() {
    let memory = Memory::new();
    memory.register("s", instance("a")).unwrap();
    let registry = Registry::new(memory);
    let mut first = registry.subscribe("s");
    assert_eq!(hosts(&first.changed().await.unwrap()), ["a"]);
    let mut second = registry.subscribe("s");
    let view = tokio::time::timeout(Duration::from_secs(1), second.changed()).await.unwrap().unwrap();
    assert_eq!(hosts(&view), ["a"]);
    assert!(tokio::time::timeout(Duration::from_secs(1), second.changed()).await.is_err(), "once");
}

fn seen(cursor: &str, list: Vec<Instance>) -> Result<Seen, DriverError> {
    Ok(Seen {
        cursor: Cursor::new(cursor),
        state: SeenState::Service(Snapshot { instances: list, ..Snapshot::default() }),
    })
}

/// A registry as an address opens it, with a folder for its lists.
fn keeping(driver: &Arc<Scripted>, folder: &std::path::Path) -> Registry {
    let cache = cache::Cache::new(folder.to_owned(), "etcd://127.0.0.1:2379");
    Registry::over(Arc::new(Arc::clone(driver)), Options::default(), Some(cache))
}

#[tokio::test(start_paused = true)]
async fn a_start_while_the_registry_is_down_serves_the_list_on_disk_with_its_age() {
    let folder = tempfile::tempdir().unwrap();
    let driver = Arc::new(Scripted::default());
    driver.watch.lock().unwrap().extend([
        seen("7", vec![instance("a"), instance("b")]),
        Err(down()),
        seen("8", vec![]),
    ]);
    let registry = keeping(&driver, folder.path());
    let mut s = registry.subscribe("s");
    s.wait_for(|view| view.state == State::Unreachable).await.unwrap();
    // It is on disk before anything else happens: a process may be killed. An empty list does not overwrite it.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let view = s.wait_for(|view| view.state == State::Fresh).await.unwrap();
    assert_eq!((hosts(&view).len(), view.kept), (0, None));
    assert!(registry.shutdown(Duration::from_secs(1)).await);

    let driver = Arc::new(Scripted::default());
    driver.watch.lock().unwrap().extend([Err(down()), seen("1", vec![instance("c")])]);
    let registry = keeping(&driver, folder.path());
    let mut s = registry.subscribe("s");
    let view = s.changed().await.unwrap();
    assert_eq!((view.state, hosts(&view)), (State::Unreachable, vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(view.error.as_ref().unwrap().to_string(), "connection refused");
    let kept = view.kept.unwrap();
    assert!(kept < Duration::from_secs(60), "{kept:?}");
    let now = tokio::time::Instant::now();
    assert_eq!(view.age(now + Duration::from_secs(5)), kept + Duration::from_secs(5) + (now - view.since.unwrap()));
    // The registry's own word replaces it.
    let view = s.changed().await.unwrap();
    assert_eq!((view.state, hosts(&view), view.kept), (State::Fresh, vec!["c".to_owned()], None));
    assert_eq!(driver.log(), ["watch -", "watch -", "watch 1"], "a cursor is never taken from disk");
}

#[tokio::test(start_paused = true)]
async fn a_silent_registry_does_not_hold_a_start_up() {
    let folder = tempfile::tempdir().unwrap();
    let driver = Arc::new(Scripted::default());
    driver.watch.lock().unwrap().push_back(seen("7", vec![instance("a")]));
    let registry = keeping(&driver, folder.path());
    registry.subscribe("s").changed().await.unwrap();
    registry.shutdown(Duration::from_secs(1)).await;
    let registry = keeping(&driver, folder.path());
    let before = tokio::time::Instant::now();
    let view = registry.subscribe("s").changed().await.unwrap();
    assert_eq!((view.state, hosts(&view)), (State::Unreachable, vec!["a".to_owned()]));
    assert!(before.elapsed() <= Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn without_anything_on_disk_a_start_is_as_ever() {
    let folder = tempfile::tempdir().unwrap();
    let driver = Arc::new(Scripted::default());
    driver.watch.lock().unwrap().push_back(Err(down()));
    let registry = keeping(&driver, folder.path());
    let view = registry.subscribe("s").changed().await.unwrap();
    assert_eq!((view.state, view.snapshot, view.kept), (State::Unreachable, None, None));
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_does_not_wait_costs_no_processor() {
    let driver = Arc::new(Scripted::default());
    driver.watch.lock().unwrap().extend((0..100_000).map(|_| seen("7", vec![instance("a")])));
    let registry = Registry::new(Arc::clone(&driver));
    let _s = registry.subscribe("s");
    tokio::time::sleep(Duration::from_secs(10)).await;
    let questions = driver.log().len();
    assert!((50..=102).contains(&questions), "{questions}");
}

#[tokio::test(start_paused = true)]
async fn another_order_is_no_news() {
    let driver = Arc::new(Scripted::default());
    driver.watch.lock().unwrap().extend([
        seen("1", vec![instance("a"), instance("b")]),
        seen("2", vec![instance("b"), instance("a")]),
        seen("3", vec![instance("b")]),
    ]);
    let registry = Registry::new(Arc::clone(&driver));
    let mut s = registry.subscribe("s");
    let first = s.changed().await.unwrap();
    let next = s.changed().await.unwrap();
    assert_eq!((hosts(&first).len(), hosts(&next).len()), (2, 1));
}
