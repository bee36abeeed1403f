//! Configuration of the roles that run as processes of their own.
//!
//! One annotated file per role, printed by `metaroute server --role ROLE --print-config`; the printed file is also the
//! list of keys and defaults, and a test keeps it true. It is read strictly and checked before any port is bound.

mod quantity;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use metaroute_cluster::router::HedgeOptions;
use metaroute_registry::document::{Fields, Format, Node, Source};
use metaroute_registry::{ConfigError, RegistryUrl};
use metaroute_store::Durability;

/// The annotated configuration of a shard.
pub const SHARD_YAML: &str = include_str!("config/shard.yaml");
/// The annotated configuration of a router.
pub const ROUTER_YAML: &str = include_str!("config/router.yaml");

/// What a shard process needs to know.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShardConfig {
    /// Group of the shard it is a copy of.
    pub group: String,
    /// Name of the shard.
    pub shard: String,
    /// Where routers reach it.
    pub listen: SocketAddr,
    /// Under which `host:port` routers dial it; `None`: what it listens on.
    pub advertise: Option<String>,
    /// Its zone.
    pub zone: Option<String>,
    /// Its store's folder.
    pub data: PathBuf,
    /// The folder with the topology document.
    pub topology: PathBuf,
    /// Where it is registered.
    pub registry: Option<RegistryUrl>,
    /// Declarations of further stores.
    pub stores: Option<PathBuf>,
    /// Address of probes and metrics.
    pub http: Option<SocketAddr>,
    /// When writes are acknowledged.
    pub durability: Durability,
    /// Block cache in bytes.
    pub cache_bytes: u64,
    /// Threads for single rows.
    pub point_threads: usize,
    /// Threads for listings and scans.
    pub scan_threads: usize,
    /// How long sub-requests may take to finish after a signal.
    pub drain: Duration,
}

/// What a router process needs to know.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RouterConfig {
    /// Where clients reach it.
    pub listen: SocketAddr,
    /// Its zone.
    pub zone: Option<String>,
    /// The folder with the topology document.
    pub topology: PathBuf,
    /// Where copies of shards are found.
    pub registry: Option<RegistryUrl>,
    /// Declarations of further stores.
    pub stores: Option<PathBuf>,
    /// Keys that seal cursors, in hexadecimal.
    pub cursor_keys: Vec<String>,
    /// Where the key is kept when none is given.
    pub cursor_key_file: PathBuf,
    /// How long a request may take when it does not say.
    pub timeout: Duration,
    /// Requests slower than this are logged with their plan.
    pub slow_log: Duration,
    /// Entries each shard may look at for one page.
    pub work_budget: u64,
    /// Bytes of rows one request may hold.
    pub merge_bytes: usize,
    /// Queries over all groups at once.
    pub global_queries: usize,
    /// Requests at once.
    pub requests: usize,
    /// When a second copy is asked.
    pub hedge: HedgeOptions,
    /// How long requests may take to finish after a signal.
    pub drain: Duration,
}

impl ShardConfig {
    /// Reads a file; its extension says the format. Paths in it are relative to the file.
    ///
    /// # Errors
    /// With the place, when it cannot be read, has unknown keys or values that are not possible.
    pub fn read(path: &Path) -> Result<ShardConfig, ConfigError> {
        let (text, format) = metaroute_registry::fleet::read_text(path)?;
        Self::parse(&path.display().to_string(), &text, format, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads text; paths are relative to `base`.
    ///
    /// # Errors
    /// As [`ShardConfig::read`].
    pub fn parse(name: &str, text: &str, format: Format, base: &Path) -> Result<ShardConfig, ConfigError> {
        let source = Source::new(name, text);
        let root = source.parse(format)?;
        let known = [
            "group",
            "shard",
            "listen",
            "advertise",
            "zone",
            "data",
            "topology",
            "registry",
            "stores",
            "http",
            "durability",
            "cache",
            "point_threads",
            "scan_threads",
            "drain",
        ];
        let fields = Fields::of(source, &root, "a shard's configuration", &known)?;
        let keys = Keys { source, fields, base };
        Ok(ShardConfig {
            group: keys.required("group")?,
            shard: keys.required("shard")?,
            listen: keys.loopback("listen")?.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 7501))),
            advertise: keys.advertise()?,
            zone: keys.text("zone")?,
            data: keys.path("data")?.ok_or_else(|| keys.missing("data"))?,
            topology: keys.path("topology")?.unwrap_or_else(|| base.join("topology")),
            registry: keys.registry()?,
            stores: keys.path("stores")?,
            http: keys.loopback("http")?,
            durability: keys.durability()?,
            cache_bytes: keys.bytes("cache")?.unwrap_or(256 << 20),
            point_threads: keys.number("point_threads", 1, 256)?.unwrap_or(2) as usize,
            scan_threads: keys.number("scan_threads", 1, 256)?.unwrap_or(2) as usize,
            drain: keys.duration("drain")?.unwrap_or(Duration::from_secs(10)),
        })
    }
}

impl RouterConfig {
    /// Reads a file; its extension says the format. Paths in it are relative to the file.
    ///
    /// # Errors
    /// With the place, when it cannot be read, has unknown keys or values that are not possible.
    pub fn read(path: &Path) -> Result<RouterConfig, ConfigError> {
        let (text, format) = metaroute_registry::fleet::read_text(path)?;
        Self::parse(&path.display().to_string(), &text, format, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads text; paths are relative to `base`.
    ///
    /// # Errors
    /// As [`RouterConfig::read`].
    pub fn parse(name: &str, text: &str, format: Format, base: &Path) -> Result<RouterConfig, ConfigError> {
        let source = Source::new(name, text);
        let root = source.parse(format)?;
        let known = [
            "listen",
            "zone",
            "topology",
            "registry",
            "stores",
            "cursor_keys",
            "cursor_key_file",
            "timeout",
            "slow_log",
            "work_budget",
            "merge_buffer",
            "global_queries",
            "requests",
            "hedge",
            "drain",
        ];
        let fields = Fields::of(source, &root, "a router's configuration", &known)?;
        let keys = Keys { source, fields, base };
        Ok(RouterConfig {
            listen: keys.loopback("listen")?.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 7400))),
            zone: keys.text("zone")?,
            topology: keys.path("topology")?.unwrap_or_else(|| base.join("topology")),
            registry: keys.registry()?,
            stores: keys.path("stores")?,
            cursor_keys: keys.cursor_keys()?,
            cursor_key_file: keys.path("cursor_key_file")?.unwrap_or_else(|| base.join("cursor.key")),
            timeout: keys.duration("timeout")?.unwrap_or(Duration::from_secs(10)),
            slow_log: keys.duration("slow_log")?.unwrap_or(Duration::from_secs(1)),
            work_budget: keys.number("work_budget", 1, u64::MAX)?.unwrap_or(100_000),
            merge_bytes: keys.bytes("merge_buffer")?.unwrap_or(64 << 20) as usize,
            global_queries: keys.number("global_queries", 1, 10_000)?.unwrap_or(8) as usize,
            requests: keys.number("requests", 1, 1_000_000)?.unwrap_or(1_024) as usize,
            hedge: keys.hedge()?,
            drain: keys.duration("drain")?.unwrap_or(Duration::from_secs(10)),
        })
    }
}

/// A map of keys with readers for what configuration holds.
struct Keys<'n, 'a> {
    source: Source<'a>,
    fields: Fields<'n, 'a>,
    base: &'n Path,
}

impl<'n, 'a> Keys<'n, 'a> {
    fn bad(&self, node: &Node<'_>, key: &str, expected: &str) -> ConfigError {
        let message = format!("`{key}` must be {expected}, not `{node}`");
        self.source.error(node.span.start, "bad_value", message).key(key)
    }

    fn missing(&self, key: &str) -> ConfigError {
        let message = format!("the configuration has no `{key}`");
        self.source.error(0, "missing_key", message).key(key)
    }

    fn text(&self, key: &str) -> Result<Option<String>, ConfigError> {
        Ok(self.fields.text(key)?.map(str::to_owned))
    }

    fn required(&self, key: &str) -> Result<String, ConfigError> {
        self.text(key)?.ok_or_else(|| self.missing(key))
    }

    fn path(&self, key: &str) -> Result<Option<PathBuf>, ConfigError> {
        Ok(self.fields.text(key)?.map(|path| self.base.join(path)))
    }

    /// Without authentication nothing but this machine may reach a listener.
    fn loopback(&self, key: &str) -> Result<Option<SocketAddr>, ConfigError> {
        let Some(node) = self.fields.get(key) else { return Ok(None) };
        let address: SocketAddr = node
            .text()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| self.bad(node, key, "an address with a port, such as 127.0.0.1:7400"))?;
        if address.ip().is_loopback() {
            return Ok(Some(address));
        }
        let message = format!("`{key}` {address} would be reachable from other machines without authentication");
        Err(self.source.error(node.span.start, "listen_without_authentication", message).key(key))
    }

    fn advertise(&self) -> Result<Option<String>, ConfigError> {
        let Some(node) = self.fields.get("advertise") else { return Ok(None) };
        let text = self.source.text_of(node, "advertise")?;
        match text.parse::<metaroute_core::Address>() {
            Ok(_) => Ok(Some(text.to_owned())),
            Err(_) => Err(self.bad(node, "advertise", "host:port")),
        }
    }

    fn registry(&self) -> Result<Option<RegistryUrl>, ConfigError> {
        let Some(node) = self.fields.get("registry") else { return Ok(None) };
        let text = self.source.text_of(node, "registry")?;
        match text.parse::<RegistryUrl>() {
            Ok(url) if url.scheme() == metaroute_registry::Scheme::File => {
                Ok(Some(RegistryUrl::file(self.base.join(url.path()))))
            }
            Ok(url) => Ok(Some(url)),
            // The message never shows what could be a secret.
            Err(error) => {
                Err(self.source.error(node.span.start, "bad_registry_url", error.message().to_owned()).key("registry"))
            }
        }
    }

    fn durability(&self) -> Result<Durability, ConfigError> {
        let Some(node) = self.fields.get("durability") else { return Ok(Durability::default()) };
        match node.text() {
            Some("journal") => Ok(Durability::Journal),
            Some("fsync") => Ok(Durability::Fsync),
            _ => Err(self.bad(node, "durability", "journal or fsync").expected(["journal", "fsync"])),
        }
    }

    fn duration(&self, key: &str) -> Result<Option<Duration>, ConfigError> {
        let Some(node) = self.fields.get(key) else { return Ok(None) };
        let duration = node.text().and_then(quantity::duration);
        duration.map(Some).ok_or_else(|| self.bad(node, key, "a duration with a unit, such as 500ms, 10s or 2m"))
    }

    fn bytes(&self, key: &str) -> Result<Option<u64>, ConfigError> {
        let Some(node) = self.fields.get(key) else { return Ok(None) };
        let bytes = node.text().and_then(quantity::bytes);
        bytes.map(Some).ok_or_else(|| self.bad(node, key, "a size with a unit, such as 64MiB"))
    }

    fn number(&self, key: &str, least: u64, most: u64) -> Result<Option<u64>, ConfigError> {
        let Some(node) = self.fields.get(key) else { return Ok(None) };
        let number = node.text().and_then(|text| text.parse().ok()).filter(|n| (least..=most).contains(n));
        let expected = if most == u64::MAX {
            format!("a number of at least {least}")
        } else {
            format!("a number from {least} to {most}")
        };
        number.map(Some).ok_or_else(|| self.bad(node, key, &expected))
    }

    fn cursor_keys(&self) -> Result<Vec<String>, ConfigError> {
        let Some(node) = self.fields.get("cursor_keys") else { return Ok(Vec::new()) };
        let mut keys = Vec::new();
        for item in self.source.list_of(node, "cursor_keys")? {
            let text = self.source.text_of(item, "cursor_keys")?;
            if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
                // The text may be a key with a slip, so it is not shown.
                let message = "a cursor key must be 64 hexadecimal digits";
                return Err(self.source.error(item.span.start, "bad_value", message).key("cursor_keys"));
            }
            keys.push(text.to_owned());
        }
        Ok(keys)
    }

    fn hedge(&self) -> Result<HedgeOptions, ConfigError> {
        let mut hedge = HedgeOptions::default();
        let Some(node) = self.fields.get("hedge") else { return Ok(hedge) };
        let fields = Fields::of(self.source, node, "`hedge`", &["enabled", "after_max", "ratio"])?;
        let keys = Keys { source: self.source, fields, base: self.base };
        if let Some(enabled) = fields.bool("enabled")? {
            hedge.enabled = enabled;
        }
        if let Some(after) = keys.duration("after_max")? {
            hedge.after_max = after;
        }
        if let Some(node) = fields.get("ratio") {
            let ratio = node.text().and_then(|text| text.parse::<f64>().ok()).filter(|r| (0.0..=1.0).contains(r));
            hedge.ratio = ratio.ok_or_else(|| self.bad(node, "ratio", "a number from 0 to 1"))?;
        }
        Ok(hedge)
    }
}

#[cfg(test)]
mod tests;
