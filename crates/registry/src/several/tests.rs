use std::time::Duration;

use super::*;
use crate::Memory;
use crate::registry::Options;

/// A registry that can be taken away.
#[derive(Clone)]
struct Fragile {
    memory: Memory,
    up: tokio::sync::watch::Sender<bool>,
}

impl Fragile {
    fn new(hosts: &[&str]) -> Self {
        let memory = Memory::new();
        if !hosts.is_empty() {
            memory.replace("s", hosts.iter().map(|host| instance(host)));
        }
        Self { memory, up: tokio::sync::watch::Sender::new(true) }
    }

    fn turn(&self, up: bool) {
        self.up.send_replace(up);
    }

    fn check(&self) -> Result<(), DriverError> {
        if *self.up.borrow() { Ok(()) } else { Err(DriverError::new(ErrorKind::Unreachable, "connection refused")) }
    }
}

impl Driver for Fragile {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn apply<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(async move {
            self.check()?;
            self.memory.apply(service, instance).await
        })
    }

    fn renew<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Renewal> {
        self.memory.renew(service, instance)
    }

    fn withdraw<'a>(&'a self, service: &'a str, id: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(async move {
            self.check()?;
            self.memory.withdraw(service, id).await
        })
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(async move {
            self.check()?;
            self.memory.list().await
        })
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(async move {
            self.check()?;
            let mut up = self.up.subscribe();
            tokio::select! {
                seen = self.memory.watch(service, after) => seen,
                _ = up.wait_for(|up| !up) => Err(self.check().unwrap_err()),
            }
        })
    }
}

fn instance(host: &str) -> Instance {
    Instance::new(format!("{host}:1").parse().unwrap())
}

fn hosts(view: &View) -> Vec<String> {
    let instances = view.snapshot.iter().flat_map(|snapshot| &snapshot.instances);
    instances.map(|instance| instance.address.host().to_owned()).collect()
}

fn codes(view: &View) -> Vec<&'static str> {
    view.snapshot.iter().flat_map(|snapshot| &snapshot.notes).map(|note| note.code).collect()
}

fn both(one: &Fragile, two: &Fragile, combine: Combine) -> Registry {
    // Attempts every second, so that no test waits for a back-off.
    let options = Options { policy: "fixed:1s".parse().unwrap(), ..Options::default() };
    let member = |member: &Fragile| Registry::with_options(member.clone(), options.clone());
    Registry::with_options(Several::new([("one", member(one)), ("two", member(two))], combine), options)
}

#[tokio::test(start_paused = true)]
async fn merged_lists_have_each_instance_once_and_the_first_registrys_word_counts() {
    let (one, two) = (Fragile::new(&["a", "b"]), Fragile::new(&[]));
    let double = instance("B").with_id("other-id").with_weight(9.0);
    two.memory.replace("s", [double, instance("c"), instance("d").with_id("a:1")]);
    let registry = both(&one, &two, Combine::Merged);
    let mut s = registry.subscribe("s");
    let view = s.changed().await.unwrap();
    assert_eq!(
        (view.state, hosts(&view), codes(&view)),
        (State::Fresh, vec!["a".into(), "b".into(), "c".into()], vec![])
    );
    assert!(view.snapshot.as_ref().unwrap().instances.iter().all(|instance| instance.weight == 1.0));
    // Changes of either are seen.
    two.memory.register("s", instance("e")).unwrap();
    assert_eq!(hosts(&s.changed().await.unwrap()).len(), 4);
    one.memory.deregister("s", &"a:1".into());
    let view = s.changed().await.unwrap();
    assert_eq!(hosts(&view), ["d", "b", "c", "e"], "sorted by id: the second registry's `a:1` counts now");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_down_keeps_its_part_and_is_named() {
    let (one, two) = (Fragile::new(&["a"]), Fragile::new(&["b"]));
    let registry = both(&one, &two, Combine::Merged);
    let mut s = registry.subscribe("s");
    s.wait_for(|view| hosts(view).len() == 2).await.unwrap();
    two.turn(false);
    let view = s.wait_for(|view| !codes(view).is_empty()).await.unwrap();
    assert_eq!((view.state, hosts(&view).len()), (State::Fresh, 2));
    assert_eq!(view.snapshot.unwrap().notes[0].message, "two: connection refused; its last list is used");
    // When all are down nobody stands by the list.
    one.turn(false);
    let view = s.wait_for(|view| view.state == State::Unreachable).await.unwrap();
    assert_eq!(hosts(&view).len(), 2);
    assert_eq!(view.error.unwrap().to_string(), "one: connection refused; two: connection refused");
    two.turn(true);
    let view = s.wait_for(|view| view.state == State::Fresh).await.unwrap();
    assert_eq!(view.snapshot.unwrap().notes[0].message, "one: connection refused; its last list is used");
}

#[tokio::test(start_paused = true)]
async fn a_start_with_one_member_down_waits_for_nobody() {
    let (one, two) = (Fragile::new(&["a"]), Fragile::new(&["b"]));
    one.turn(false);
    for combine in [Combine::Merged, Combine::Failover] {
        let registry = both(&one, &two, combine);
        let before = Instant::now();
        let view = registry.subscribe("s").changed().await.unwrap();
        assert_eq!((view.state, hosts(&view)), (State::Fresh, vec!["b".to_owned()]), "{combine:?}");
        assert_eq!(view.snapshot.unwrap().notes[0].message, "one: connection refused; nothing is known from it");
        assert!(before.elapsed() < Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn failover_keeps_to_the_primary_until_it_is_away_for_long_or_has_nothing() {
    let (one, two) = (Fragile::new(&["a"]), Fragile::new(&["b"]));
    let registry = both(&one, &two, Combine::Failover);
    let mut s = registry.subscribe("s");
    assert_eq!(hosts(&s.changed().await.unwrap()), ["a"]);
    // A short absence changes nothing but the note.
    one.turn(false);
    let view = s.changed().await.unwrap();
    assert_eq!((hosts(&view), codes(&view)), (vec!["a".to_owned()], vec!["registry_unreachable"]));
    tokio::time::sleep(Duration::from_secs(5)).await;
    one.turn(true);
    let view = s.wait_for(|view| codes(view).is_empty()).await.unwrap();
    assert_eq!(hosts(&view), ["a"]);
    // A long one hands over, and back.
    one.turn(false);
    let before = Instant::now();
    let view = s.wait_for(|view| hosts(view) == ["b"]).await.unwrap();
    assert_eq!(view.state, State::Fresh);
    assert!((9..=12).contains(&before.elapsed().as_secs()), "{:?}", before.elapsed());
    one.turn(true);
    s.wait_for(|view| hosts(view) == ["a"]).await.unwrap();
    // A primary without instances has no say.
    one.memory.replace("s", []);
    s.wait_for(|view| hosts(view) == ["b"]).await.unwrap();
    two.memory.replace("s", []);
    s.wait_for(|view| view.state == State::Fresh && hosts(view).is_empty()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_service_nobody_knows_is_unknown_and_one_that_somebody_may_know_is_not() {
    let (one, two) = (Fragile::new(&[]), Fragile::new(&[]));
    for combine in [Combine::Merged, Combine::Failover] {
        let registry = both(&one, &two, combine);
        let mut s = registry.subscribe("s");
        assert_eq!(s.changed().await.unwrap().state, State::UnknownService);
        two.turn(false);
        assert_eq!(s.changed().await.unwrap().state, State::Unreachable);
        two.turn(true);
    }
}

#[tokio::test(start_paused = true)]
async fn a_registration_goes_to_all_and_one_of_them_is_enough() {
    let (one, two) = (Fragile::new(&[]), Fragile::new(&[]));
    two.turn(false);
    let several = Several::new(
        [
            ("one", Registry::new(one.clone())),
            (
                "two",
                Registry::with_options(
                    two.clone(),
                    Options { policy: "fixed:1s".parse().unwrap(), ..Options::default() },
                ),
            ),
        ],
        Combine::Merged,
    );
    let several = Arc::new(several);
    let registry = Registry::new(Shared(Arc::clone(&several)));
    let mut registration = registry.register("s", instance("a")).unwrap();
    registration.registered().await.unwrap();
    assert_eq!((one.memory.instances("s").unwrap().len(), two.memory.instances("s")), (1, None));
    let states = several.registrations("s", &"a:1".into());
    assert!(matches!(states[0], ("one", RegistrationState::Registered)), "{states:?}");
    assert!(matches!(states[1], ("two", RegistrationState::Pending(Some(_)))), "{states:?}");
    // It catches up by itself.
    two.turn(true);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(two.memory.instances("s").unwrap().len(), 1);
    registration.update(instance("a").with_weight(3.0)).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(two.memory.instances("s").unwrap()[0].weight, 3.0);
    assert_eq!(several.views("s").len(), 0, "nobody follows it");
    registration.deregister().await;
    assert_eq!((one.memory.instances("s").unwrap(), two.memory.instances("s").unwrap()), (vec![], vec![]));
    assert!(registry.shutdown(Duration::from_secs(1)).await);
}

/// A driver that a test looks into.
struct Shared(Arc<Several>);

impl Driver for Shared {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn apply<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        self.0.apply(service, instance)
    }

    fn renew<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Renewal> {
        self.0.renew(service, instance)
    }

    fn withdraw<'a>(&'a self, service: &'a str, id: &'a InstanceId) -> Answer<'a, ()> {
        self.0.withdraw(service, id)
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        self.0.list()
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        self.0.watch(service, after)
    }

    fn close(&self) -> Answer<'_, ()> {
        self.0.close()
    }
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_nobody_takes_says_why() {
    let (one, two) = (Fragile::new(&[]), Fragile::new(&[]));
    one.turn(false);
    two.turn(false);
    let registry = both(&one, &two, Combine::Failover);
    let mut registration = registry.register("s", instance("a")).unwrap();
    let state = registration.changed().await;
    let RegistrationState::Pending(Some(error)) = state else { panic!("{state:?}") };
    assert_eq!(error.to_string(), "one: connection refused");
    two.turn(true);
    registration.registered().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn services_are_those_of_all_that_can_be_asked() {
    let (one, two) = (Fragile::new(&["a"]), Fragile::new(&["b"]));
    two.memory.register("t", instance("c")).unwrap();
    let registry = both(&one, &two, Combine::Failover);
    assert_eq!(registry.services().await.unwrap(), [Box::<str>::from("s"), Box::<str>::from("t")]);
    two.turn(false);
    assert_eq!(registry.services().await.unwrap(), [Box::<str>::from("s")]);
    one.turn(false);
    assert_eq!(registry.services().await.unwrap_err().to_string(), "one: connection refused");
}

#[tokio::test(start_paused = true)]
async fn addresses_open_several_and_what_is_kept_on_disk_is_the_combined_list() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, host: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("services: [{{name: s, instances: [{{address: '{host}:1'}}]}}]")).unwrap();
        path.display().to_string()
    };
    let list = format!("{},file://{}", file("one.yaml", "a"), file("two.yaml", "b"));
    let urls = crate::RegistryUrl::parse_list(&list).unwrap();
    let cache = folder.path().join("kept");
    let options = Options { cache_dir: Some(cache.clone()), ..Options::default() };
    let registry = Registry::connect_all(&urls, Combine::Merged, options.clone()).unwrap();
    let view = registry.subscribe("s").changed().await.unwrap();
    assert_eq!(hosts(&view), ["a", "b"]);
    registry.shutdown(Duration::from_secs(1)).await;
    assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 1);
    // Files that cannot be read are a registry that is down.
    for url in &urls {
        std::fs::remove_file(url.path()).unwrap();
    }
    let registry = Registry::connect_all(&urls, Combine::Merged, options).unwrap();
    let view = registry.subscribe("s").changed().await.unwrap();
    assert_eq!((view.state, hosts(&view)), (State::Unreachable, vec!["a".into(), "b".into()]));
    assert!(view.kept.is_some());
    assert!(Registry::connect_all(&[], Combine::Merged, Options::default()).is_err());
}
