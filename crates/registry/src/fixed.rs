//! Addresses that stand in the registry's address itself: `static://10.0.0.1:8091,10.0.0.2:8091`.
//!
//! For a handful of servers that never move, and for Seata configurations whose registry is of type `file`. Every service
//! has these instances, whatever it is called, without metadata. Nothing is contacted, so nothing is known of their health.

use metaroute_core::instance::{Address, Instance};

use crate::backend::{Params, bad};
use crate::driver::{Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Seen, SeenState, Snapshot};
use crate::registry::ConnectError;
use crate::url::RegistryUrl;

/// The one place in its history.
const ONLY: &str = "1";

/// A list that does not change.
pub(crate) struct Fixed {
    instances: Vec<Instance>,
}

impl Fixed {
    /// Reads the address.
    pub(crate) fn new(url: &RegistryUrl) -> Result<Self, ConnectError> {
        Params::of(url).finish()?;
        if !url.path().is_empty() || url.user().is_some() || url.password().is_some() {
            return Err(bad("`static:` has addresses and nothing else: `static://HOST:PORT,HOST:PORT`"));
        }
        let mut instances: Vec<Instance> = Vec::new();
        for host in url.hosts() {
            let port = host.port.ok_or_else(|| bad(format!("`{host}` has no port: write `{host}:PORT`")))?;
            let address = Address::new(&host.name, port).map_err(|error| bad(error.to_string()))?;
            let instance = Instance::new(address);
            if !instances.iter().any(|other| other.id == instance.id) {
                instances.push(instance);
            }
        }
        Ok(Self { instances })
    }
}

impl Driver for Fixed {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(async {
            let message = "every service has the addresses of a `static:` list, so there are no names to list";
            Err(DriverError::new(ErrorKind::Unsupported, message))
        })
    }

    fn watch<'a>(&'a self, _service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(async move {
            if after.is_some_and(|cursor| cursor.as_str() == ONLY) {
                return std::future::pending().await;
            }
            let snapshot = Snapshot { instances: self.instances.clone(), ..Snapshot::default() };
            Ok(Seen { cursor: Cursor::new(ONLY), state: SeenState::Service(snapshot) })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn every_service_has_the_addresses_and_nothing_changes() {
        let list = Fixed::new(&"static://h:80,[::1]:81,h:80".parse().expect("an address")).expect("a list");
        let seen = list.watch("whatever", None).await.expect("an answer");
        let SeenState::Service(snapshot) = seen.state else { panic!("a list") };
        let addresses: Vec<String> = snapshot.instances.iter().map(|i| i.address.to_string()).collect();
        assert_eq!(addresses, ["h:80", "[::1]:81"]);
        let next = tokio::time::timeout(Duration::from_secs(3600), list.watch("whatever", Some(&seen.cursor)));
        assert!(next.await.is_err(), "there is never another state");
        assert!(list.watch("whatever", Some(&Cursor::new("other"))).await.is_ok());
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for (text, why) in [
            ("static://h", "has no port"),
            ("static://h:80/x", "nothing else"),
            ("static://u:p@h:80", "nothing else"),
            ("static://h:80?weight=1", "unknown parameter `weight`"),
        ] {
            let Err(error) = Fixed::new(&text.parse().expect("an address")) else { panic!("{text} was accepted") };
            assert!(error.to_string().contains(why), "{text}: {error}");
        }
    }
}
