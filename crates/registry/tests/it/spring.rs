//! Spring Cloud as the foreign client of Consul and Eureka: the same application, the same story.

use std::time::Duration;

use metaroute_core::instance::Instance;
use metaroute_registry::Registry;
use serde_json::{Value, json};
use test_support::spring::Spring;

/// Its load balancer prefers the zone `a`.
pub(crate) const IN_ZONE_A: [&str; 2] =
    ["--spring.cloud.loadbalancer.configurations=zone-preference", "--spring.cloud.loadbalancer.zone=a"];

/// A JVM on two busy cores takes its time.
const SEEN: Duration = Duration::from_secs(30);

/// Registers an instance in the zone `a` and another one elsewhere: Spring lists both and sends everything to the near one.
/// Returns what it shows of that one.
pub(crate) async fn reads_ours_and_obeys_the_zone(registry: &Registry, mut spring: Spring, near: Instance) -> Value {
    let address = near.address.to_string();
    let far = Instance::new("10.0.0.2:80".parse().expect("an address")).with_zone("b");
    let mut kept = Vec::new();
    for one in [near.with_zone("a"), far] {
        let mut registration = registry.register("rust-svc", one).expect("valid");
        registration.registered().await.expect("taken");
        kept.push(registration);
    }
    let json = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let asked = tokio::task::spawn_blocking(move || {
        let two = test_support::backoff_poll(SEEN, || {
            let list = json(&spring.list("rust-svc"));
            (list.as_array().map(Vec::len) == Some(2)).then_some(list)
        });
        (two.expect("Spring sees both"), json(&spring.choose("rust-svc", 20)))
    });
    let (mut list, chosen) = asked.await.expect("it ran");
    assert_eq!(chosen, json!({ &address: 20 }));
    let near = list.as_array_mut().and_then(|list| {
        list.iter_mut().find(|one| format!("{}:{}", one["host"].as_str().unwrap_or_default(), one["port"]) == address)
    });
    near.expect("the near one").take()
}
