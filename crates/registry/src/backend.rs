//! Which driver an address means, and how a driver reads its part of an address.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::document::suggest;
use crate::driver::Driver;
use crate::file::{FileDriver, FileOptions};
use crate::memory::Memory;
use crate::registry::ConnectError;
use crate::url::{RegistryUrl, Scheme};

/// The driver for an address. Nothing is contacted yet.
pub(crate) fn open(url: &RegistryUrl) -> Result<Arc<dyn Driver>, ConnectError> {
    Ok(match url.scheme() {
        Scheme::File => Arc::new(FileDriver::new(url.path(), FileOptions::default())),
        Scheme::Memory => Arc::new(Memory::new()),
        Scheme::Static => Arc::new(crate::fixed::Fixed::new(url)?),
        #[cfg(feature = "dns")]
        Scheme::DnsSrv => Arc::new(crate::dns::Dns::new(url)?),
        #[cfg(feature = "eureka")]
        Scheme::Eureka => Arc::new(crate::eureka::Eureka::new(url)?),
        #[cfg(feature = "consul")]
        Scheme::Consul => Arc::new(crate::consul::Consul::new(url)?),
        #[cfg(feature = "seata")]
        Scheme::NamingServer => Arc::new(crate::seata::NamingServer::new(url)?),
        #[cfg(feature = "seata")]
        Scheme::SeataRaft => Arc::new(crate::seata::Raft::new(url)?),
        #[cfg(feature = "sofa")]
        Scheme::Sofa => Arc::new(crate::sofa::Sofa::new(url)?),
        #[cfg(feature = "kubernetes-any")]
        Scheme::Kubernetes => Arc::new(crate::kubernetes::Kubernetes::new(url)?),
        #[cfg(feature = "etcd")]
        Scheme::Etcd => Arc::new(crate::etcd::Etcd::new(url)?),
        #[cfg(feature = "redis")]
        Scheme::Redis => Arc::new(crate::redis::Redis::new(url)?),
        #[cfg(feature = "zookeeper")]
        Scheme::Zookeeper => Arc::new(crate::zookeeper::ZooKeeper::new(url)?),
        #[cfg(feature = "nacos")]
        Scheme::Nacos => crate::nacos::open(url)?,
        #[allow(unreachable_patterns, reason = "a build with every back end")]
        other => return Err(ConnectError::NotBuiltIn(other)),
    })
}

/// Reads the parameters of an address; what nobody read is an error, so that a typing error is never silent.
#[allow(dead_code, reason = "a build without network back ends reads no parameters")]
pub(crate) struct Params<'a> {
    url: &'a RegistryUrl,
    known: Vec<&'static str>,
}

#[allow(dead_code, reason = "a build without network back ends reads no parameters")]
impl<'a> Params<'a> {
    pub(crate) fn of(url: &'a RegistryUrl) -> Self {
        Self { url, known: Vec::new() }
    }

    /// A text.
    pub(crate) fn text(&mut self, name: &'static str) -> Option<&'a str> {
        self.known.push(name);
        self.url.param(name)
    }

    /// A secret, read from where it is kept.
    pub(crate) fn secret(&mut self, name: &'static str) -> Result<Option<String>, ConnectError> {
        self.known.push(name);
        self.url.secret(name).map(|secret| secret.reveal()).transpose().map_err(|error| bad(error.to_string()))
    }

    /// `true` or `false`.
    pub(crate) fn switch(&mut self, name: &'static str, default: bool) -> Result<bool, ConnectError> {
        match self.text(name) {
            None => Ok(default),
            Some("true" | "") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => Err(bad(format!("parameter `{name}={other}`: expected `true` or `false`"))),
        }
    }

    /// A duration with its unit: `500ms`, `15s`, `2m`. Never zero.
    pub(crate) fn duration(&mut self, name: &'static str, default: Duration) -> Result<Duration, ConnectError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let amount: Option<u32> = text[..digits].parse().ok();
        let found = match (amount, &text[digits..]) {
            (Some(amount), "ms") => Duration::from_millis(amount.into()),
            (Some(amount), "s") => Duration::from_secs(amount.into()),
            (Some(amount), "m") => Duration::from_secs(u64::from(amount) * 60),
            _ => Duration::ZERO,
        };
        if found.is_zero() {
            return Err(bad(format!("parameter `{name}={text}`: expected a duration such as `500ms`, `15s` or `2m`")));
        }
        Ok(found)
    }

    /// A path.
    pub(crate) fn path(&mut self, name: &'static str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    /// Fails for a parameter that was not asked for.
    pub(crate) fn finish(self) -> Result<(), ConnectError> {
        let given = self.url.params().map(|(name, _)| name).chain(self.url.secret_names());
        for name in given {
            if !self.known.contains(&name) {
                let hint = match suggest(name, self.known.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None if self.known.is_empty() => "it takes none".to_owned(),
                    None => format!("known are {}", self.known.join(", ")),
                };
                return Err(bad(format!("unknown parameter `{name}` of `{}:`; {hint}", self.url.scheme())));
            }
        }
        Ok(())
    }
}

/// An address whose parts do not fit its kind of registry.
#[allow(dead_code, reason = "a build without network back ends reads no parameters")]
pub(crate) fn bad(message: impl Into<String>) -> ConnectError {
    ConnectError::Address(message.into())
}
