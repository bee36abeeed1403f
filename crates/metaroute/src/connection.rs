//! The way in: one address, and everything else hangs off it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use metaroute_core::Instance;
use metaroute_registry::several::Combine;
use metaroute_registry::url::UrlError;
use metaroute_registry::{DriverError, Options, Registration, Registry, RegistryUrl, WhenReady};
use tokio::sync::watch;

use crate::live::ServiceBuilder;

/// Opens the registry at an address. Nothing is contacted before a service is started or an instance registered.
///
/// The address is anything [`RegistryUrl`] reads: `fleet.yaml`, `file:/etc/fleet.yaml`, `memory:`,
/// `nacos://USER:env:NACOS_PASSWORD@HOST:8848/public?group=G`. A password or token in it is better a reference,
/// `env:NAME` or `file:PATH`; neither form shows in `Debug`, logs or errors.
///
/// # Errors
/// When the text is no address, or this build has no back end for that kind of registry. The error never shows a secret.
pub fn connect(url: &str) -> Result<Connection, ConnectError> {
    let url: RegistryUrl = url.parse().map_err(ConnectError::Address)?;
    Connection::open(&url)
}

/// Opens several registries as one, the primary first: registrations go to all of them, and instances come from the
/// first that has some or from all ([`Combine`]).
///
/// ```no_run
/// use metaroute::registry::Options;
/// use metaroute::registry::several::Combine;
///
/// let options = Options { cache_dir: Options::default_cache_dir(), ..Options::default() };
/// let urls = ["nacos://new:8848/public", "eureka://old:8761"];
/// let connection = metaroute::connect_all(urls, Combine::Failover, options)?;
/// # let _ = connection;
/// # Ok::<(), metaroute::ConnectError>(())
/// ```
///
/// # Errors
/// As [`connect`], for the first address that is not good.
pub fn connect_all<'u>(
    urls: impl IntoIterator<Item = &'u str>,
    combine: Combine,
    options: Options,
) -> Result<Connection, ConnectError> {
    let urls = urls.into_iter().map(str::parse).collect::<Result<Vec<RegistryUrl>, _>>();
    let urls = urls.map_err(ConnectError::Address)?;
    let names: Vec<String> = urls.iter().map(ToString::to_string).collect();
    let url = names.join(",");
    match Registry::connect_all(&urls, combine, options) {
        Ok(registry) => Ok(Connection { shared: Arc::new(Shared { registry, url }) }),
        Err(source) => Err(ConnectError::Registry { url, source }),
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The text is no registry address.
    #[error("bad registry address")]
    Address(#[source] UrlError),
    /// The registry cannot be used.
    #[error("cannot use registry `{url}`")]
    Registry {
        /// The address, secrets hidden.
        url: String,
        /// Why.
        #[source]
        source: metaroute_registry::ConnectError,
    },
}

/// A registry in use. Clones share it; when the last one and every [`LiveSelector`](crate::LiveSelector) on it are gone,
/// its registrations are withdrawn in the background. To wait for that call [`Connection::shutdown`].
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
}

struct Shared {
    registry: Registry,
    /// The address, secrets hidden; empty for a registry that was handed in.
    url: String,
}

impl Connection {
    /// Opens the registry at an address that was parsed before; see [`connect`].
    ///
    /// # Errors
    /// When this build has no back end for that kind of registry.
    pub fn open(url: &RegistryUrl) -> Result<Self, ConnectError> {
        Self::open_with(url, Options::default())
    }

    /// The same with another back-off, or with the last good lists kept on disk for a start while the registry is down.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(url: &RegistryUrl, options: Options) -> Result<Self, ConnectError> {
        let text = url.to_string();
        match Registry::connect_with(url, options) {
            Ok(registry) => Ok(Self { shared: Arc::new(Shared { registry, url: text }) }),
            Err(source) => Err(ConnectError::Registry { url: text, source }),
        }
    }

    /// Uses a registry that was made by hand: over a driver of your own, or over a [`Memory`](crate::Memory) that the
    /// program fills itself.
    ///
    /// ```
    /// use metaroute::{Connection, Memory, Registry};
    ///
    /// let memory = Memory::new();
    /// let connection = Connection::new(Registry::new(memory.clone()));
    /// # let _ = connection;
    /// ```
    pub fn new(registry: Registry) -> Self {
        Self { shared: Arc::new(Shared { registry, url: String::new() }) }
    }

    /// Begins the description of a service to call; [`ServiceBuilder::start`] ends it.
    pub fn service(&self, name: impl Into<String>) -> ServiceBuilder {
        ServiceBuilder::new(self.clone(), name.into())
    }

    /// Registers this process as an instance of a service and keeps it registered, over losses of the registry too,
    /// until the guard is dropped or told to [deregister](Registration::deregister). Keep the connection as well: the
    /// registration ends with it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use metaroute::Instance;
    ///
    /// let connection = metaroute::connect("memory:")?;
    /// let me = Instance::new("10.0.0.1:8080".parse()?).with_meta("version", "2.3");
    /// let mut registration = connection.register("orders", me)?;
    /// registration.registered().await?;
    /// registration.deregister().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// At once when the registry is only read or was shut down, or the instance is beyond what it accepts. An
    /// unreachable registry is no error: attempts go on, see [`Registration::state`].
    pub fn register(&self, service: &str, instance: Instance) -> Result<Registration, DriverError> {
        self.shared.registry.register(service, instance)
    }

    /// The same, but only while `ready` is true: the flag behind a readiness check. It is withdrawn when that turns false, or
    /// when nobody owns the flag any more, and registered again when it turns true.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_when(
        &self,
        service: &str,
        instance: Instance,
        ready: watch::Receiver<bool>,
    ) -> Result<WhenReady, DriverError> {
        self.shared.registry.register_when(service, instance, ready)
    }

    /// The registry itself, for listing services and looking at instances.
    pub fn registry(&self) -> &Registry {
        &self.shared.registry
    }

    /// The address, secrets hidden; empty for a registry that was handed in.
    pub fn url(&self) -> &str {
        &self.shared.url
    }

    /// Withdraws registrations and ends subscriptions, for everybody who shares this connection. What is not done
    /// within the deadline is abandoned. Returns whether everything ended in time.
    pub async fn shutdown(&self, deadline: Duration) -> bool {
        self.shared.registry.shutdown(deadline).await
    }

    /// Whether nobody else uses this connection.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("url", &self.shared.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    fn whole(error: &dyn Error) -> String {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            text.push_str(&format!(": {error}"));
            source = error.source();
        }
        format!("{text} {error:?}")
    }

    #[test]
    fn secrets_show_in_no_error_and_no_debug_form() {
        for url in [
            "nacos://admin:hunter2@127.0.0.1:8848/public?token=hunter2",
            "nacos://admin:hunter2@127.0.0.1:99999",
            "nacoss://admin:hunter2@127.0.0.1",
            "nacos://admin:hunter2%zz@127.0.0.1",
            "nacos://h?password=hunter2&password=hunter2",
        ] {
            let Err(error) = connect(url) else { continue };
            assert!(!whole(&error).contains("hunter2"), "{}", whole(&error));
        }
    }

    #[test]
    fn what_is_wrong_with_an_address_is_said() {
        let error = connect("").unwrap_err();
        assert_eq!(error.to_string(), "bad registry address");
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("the registry address is empty"));
    }

    #[test]
    fn plain_paths_are_files() {
        assert_eq!(connect("fleet.yaml").unwrap().url(), "file:fleet.yaml");
        assert_eq!(format!("{:?}", connect("memory:").unwrap()), r#"Connection { url: "memory:", .. }"#);
    }
}
