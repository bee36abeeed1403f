//! Whose an instance is, in registries where anybody may write its key or node.

use std::net::SocketAddr;
use std::time::Duration;

use metaroute_core::instance::InstanceId;
use metaroute_registry::{ErrorKind, Registry, View};
use test_support::Proxy;

use crate::client::{addresses, by_address, connect, instance, registered, see, see_if};

async fn life(registry: &Registry) -> Option<String> {
    let (snapshot, _) = registry.instances("c").await.expect("an answer").expect("known");
    snapshot.instances[0].metadata.get("life").map(|life| life.to_text().to_string())
}

/// Both have a `ttl` of 4 s: shorter ones end where a busy machine lets an owner wait.
pub(crate) async fn the_newest_wins(old: &Registry, new: &Registry) {
    let mut first = old.register("c", instance("10.0.0.1:80").with_meta("life", "1")).expect("valid");
    registered(&mut first).await;
    let mut second = new.register("c", instance("10.0.0.1:80").with_meta("life", "2")).expect("valid");
    registered(&mut second).await;
    // Longer than several renewals of both.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(life(new).await.as_deref(), Some("2"));
    first.deregister().await;
    assert_eq!(life(new).await.as_deref(), Some("2"));
    second.deregister().await;
    see(new, "c", &[]).await;
}

pub(crate) async fn who_moves_is_there_once(registry: &Registry) {
    let mut registration = registry.register("c", instance("10.0.0.1:80").with_id("one")).expect("valid");
    registered(&mut registration).await;
    registration.update(instance("10.0.0.2:80").with_id("one")).expect("valid");
    see(registry, "c", &["10.0.0.2:80"]).await;
    registration.deregister().await;
    see(registry, "c", &[]).await;
}

/// The other one registered while this one was cut off, so it knows better who is there. `url` has a `ttl` of 4 s.
pub(crate) async fn who_was_away_does_not_take_it_back(server: SocketAddr, url: impl Fn(SocketAddr) -> String) {
    let proxy = Proxy::start(server);
    let (away, new) = (connect(&url(proxy.address())), connect(&url(server)));
    let mut first = away.register("c", instance("10.0.0.1:80").with_meta("life", "1")).expect("valid");
    registered(&mut first).await;
    proxy.cut();
    see(&new, "c", &[]).await;
    let mut second = new.register("c", instance("10.0.0.1:80").with_meta("life", "2")).expect("valid");
    registered(&mut second).await;
    proxy.heal();
    registered(&mut first).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(life(&new).await.as_deref(), Some("2"));
    // Once that one is gone, it is this one's turn again.
    second.deregister().await;
    see_if(&new, "c", "the first life", |view| {
        view.snapshot.iter().flat_map(|s| &s.instances).any(|i| i.metadata.get("life") == Some(&"1".into()))
    })
    .await;
}

/// Both have a `ttl` of 3 s at most.
pub(crate) async fn others_change_and_remove(owner: &Registry, other: &Registry) {
    let wanted = instance("10.0.0.1:80").with_id("one").with_meta("k", "v");
    let mut registration = owner.register("c", wanted.clone()).expect("valid");
    registered(&mut registration).await;
    other.amend("c", &wanted.clone().with_weight(0.0)).await.expect("changed");
    let weightless = |view: &View| addresses(view).len() == 1 && by_address(view, "10.0.0.1:80").weight == 0.0;
    let view = see_if(other, "c", "weight 0", weightless).await;
    assert_eq!(by_address(&view, "10.0.0.1:80").id.as_str(), "one");
    // Longer than it lives without its owner.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (snapshot, _) = other.instances("c").await.expect("an answer").expect("known");
    assert_eq!(snapshot.instances[0].weight, 0.0, "the owner refreshes what is there");
    let error = other.amend("c", &instance("10.0.0.7:1")).await.expect_err("unknown");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    other.remove("c", &InstanceId::new("one")).await.expect("removed");
    other.remove("c", &InstanceId::new("two")).await.expect("was never there");
    // The owner is alive and wants it there.
    see(other, "c", &["10.0.0.1:80"]).await;
    registration.deregister().await;
    see(other, "c", &[]).await;
    // Whom nobody wants any more is removed for good, by anybody, twice.
    other.remove("c", &InstanceId::new("one")).await.expect("removed already");
}
