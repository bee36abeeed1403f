//! Spring Cloud Alibaba configuration: what a service says about itself to Nacos.
//!
//! `spring.cloud.nacos.discovery.*` names the service, its cluster, its weight and its metadata. The same values are what
//! the service is *as a caller*: a rule that compares `version` with `$caller.target-version`, or that prefers the
//! caller's cluster, reads them from here. So [`SpringConfig`] offers them in both forms.
//!
//! Both prefixes are read, `spring.cloud.nacos.discovery.` and the shorter `spring.cloud.nacos.` that some versions and
//! guides use; where both have a value the longer prefix wins, because it is the one Spring Cloud Alibaba itself reads.
//!
//! ```
//! use metaroute::properties::Surroundings;
//! use metaroute::spring::SpringConfig;
//! use metaroute_registry::document::Format;
//!
//! let text = "
//! spring.application.name: orders
//! spring.cloud.nacos.discovery:
//!   cluster-name: hz
//!   metadata: {version: 2.10, target-version: 2.10}
//! ";
//! let config = SpringConfig::parse("application.yml", text, Format::Yaml, &Surroundings::none())?;
//! assert_eq!(config.caller()["cluster"], "hz");
//! assert_eq!(config.caller()["target-version"], "2.10");
//! # Ok::<(), metaroute_registry::ConfigError>(())
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use metaroute_core::instance::{Address, Instance, Metadata};
use metaroute_registry::document::{ConfigError, Format, Note, suggest};
use metaroute_registry::fleet::parse_number;

use crate::properties::{Properties, Property, Surroundings, meta_value, same_name};

const LONG: &str = "spring.cloud.nacos.discovery";
const SHORT: &str = "spring.cloud.nacos";

/// Keys of the discovery section that exist, so that others can be named.
const DISCOVERY_KEYS: [&str; 41] = [
    "access-key",
    "cluster-name",
    "contextPath",
    "cluster-names",
    "enabled",
    "endpoint",
    "ephemeral",
    "fail-fast",
    "failure-tolerance-enabled",
    "group",
    "grpc-port",
    "heart-beat-interval",
    "heart-beat-timeout",
    "instance-enabled",
    "ip",
    "ip-delete-timeout",
    "ip-type",
    "log-name",
    "metadata",
    "naming-load-cache-at-start",
    "namespace",
    "network-interface",
    "password",
    "port",
    "ram-role-name",
    "register-enabled",
    "secret-key",
    "secure",
    "server-addr",
    "service",
    "service-name",
    "username",
    "watch",
    "watch-delay",
    "weight",
    "is-use-cloud-namespace-parsing",
    "is-use-endpoint-parsing-rule",
    "key-alias",
    "notify-listeners",
    "request-timeout",
    "reactive",
];

/// What a service says about itself.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SpringConfig {
    /// The service's name: `discovery.service`, else `spring.application.name`.
    pub service: Option<String>,
    /// `cluster-name`; `DEFAULT`, Nacos's own default, where none is given.
    pub cluster: String,
    /// `group`; `DEFAULT_GROUP` where none is given.
    pub group: String,
    /// `namespace`, where one is given.
    pub namespace: Option<String>,
    /// `server-addr`, where one is given.
    pub server: Option<String>,
    /// `weight`; 1 where none is given.
    pub weight: f64,
    /// `ip`, where one is given.
    pub ip: Option<String>,
    /// `port`, else `server.port`, where one is given.
    pub port: Option<u16>,
    /// `ephemeral`; true where nothing is given.
    pub ephemeral: bool,
    /// `instance-enabled`; true where nothing is given.
    pub enabled: bool,
    /// `metadata`, names as written.
    pub metadata: Metadata,
    /// Unknown keys and values that mean nothing.
    pub notes: Vec<Note>,
    cluster_given: bool,
}

impl SpringConfig {
    /// Reads `application.yml` or `application.properties`, and the files beside it for active profiles.
    ///
    /// # Errors
    /// When a file cannot be read or is malformed.
    pub fn read(path: &Path, surroundings: &Surroundings) -> Result<Self, ConfigError> {
        let mut properties = Properties::new(surroundings);
        properties.add_file(path)?;
        Ok(Reader { properties, notes: Vec::new() }.config())
    }

    /// Reads a configuration from text. `name` stands in notes for the file.
    ///
    /// # Errors
    /// When the text is malformed.
    pub fn parse(name: &str, text: &str, format: Format, surroundings: &Surroundings) -> Result<Self, ConfigError> {
        let mut properties = Properties::new(surroundings);
        properties.add(name, text, format)?;
        Ok(Reader { properties, notes: Vec::new() }.config())
    }

    /// The caller's own metadata, as rules read it under `$caller`: the metadata, and the cluster under `cluster` where
    /// one is given.
    pub fn caller(&self) -> BTreeMap<String, String> {
        let mut caller: BTreeMap<String, String> =
            self.metadata.iter().map(|(key, value)| (key.to_string(), value.to_text().into())).collect();
        if self.cluster_given {
            // The cluster a service is in is a fact; metadata of that name is only a word.
            caller.insert("cluster".to_owned(), self.cluster.clone());
        }
        caller
    }

    /// The instance as the service registers it; `None` without an address. `fallback` is the address to use where the
    /// configuration names none, as Spring finds one itself.
    pub fn registration(&self, fallback: Option<&Address>) -> Option<Instance> {
        let host = self.ip.as_deref().or(fallback.map(Address::host))?;
        let port = self.port.or(fallback.map(Address::port))?;
        let mut instance =
            Instance::new(Address::new(host, port).ok()?).with_weight(self.weight).with_cluster(&self.cluster);
        instance.enabled = self.enabled;
        instance.metadata = self.metadata.clone();
        Some(instance)
    }
}

struct Reader {
    properties: Properties,
    notes: Vec<Note>,
}

impl Reader {
    fn config(mut self) -> SpringConfig {
        self.unknown_keys();
        let metadata = self.metadata();
        let cluster = self.text("cluster-name");
        let weight = match self.property("weight") {
            None => 1.0,
            Some(property) => {
                let text = self.properties.resolve(&property, &mut self.notes);
                match parse_number(&text) {
                    Some(weight) if weight.is_finite() && weight >= 0.0 => weight,
                    _ => {
                        let message = format!("`{}` cannot be `{text}`, 1 is used", property.name);
                        self.notes.push(property.note("bad_weight", message));
                        1.0
                    }
                }
            }
        };
        let application = self.any("spring.application.name");
        let port = self.text("port").or_else(|| self.any("server.port"));
        // Spring takes -1 and 0 for "choose one".
        let port = port.and_then(|text| text.trim().parse::<u16>().ok()).filter(|port| *port > 0);
        SpringConfig {
            service: self.text("service").or(application),
            cluster_given: cluster.is_some(),
            cluster: cluster.unwrap_or_else(|| "DEFAULT".to_owned()),
            group: self.text("group").unwrap_or_else(|| "DEFAULT_GROUP".to_owned()),
            namespace: self.text("namespace"),
            server: self.text("server-addr"),
            weight,
            ip: self.text("ip"),
            port,
            ephemeral: self.switch("ephemeral"),
            enabled: self.switch("instance-enabled"),
            metadata,
            notes: self.notes,
        }
    }

    fn property(&self, key: &str) -> Option<Property> {
        let (long, short) = (format!("{LONG}.{key}"), format!("{SHORT}.{key}"));
        self.properties.get_any(&[&long, &short], |_, _| true).cloned()
    }

    /// The text of a discovery key; blank is absent.
    fn text(&mut self, key: &str) -> Option<String> {
        let property = self.property(key)?;
        let text = self.properties.resolve(&property, &mut self.notes);
        (!text.trim().is_empty()).then(|| text.trim().to_owned())
    }

    fn any(&mut self, name: &str) -> Option<String> {
        let property = self.properties.get(name)?.clone();
        let text = self.properties.resolve(&property, &mut self.notes);
        (!text.trim().is_empty()).then(|| text.trim().to_owned())
    }

    /// A boolean that is true unless it is given.
    fn switch(&mut self, key: &str) -> bool {
        let Some(property) = self.property(key) else { return true };
        let text = self.properties.resolve(&property, &mut self.notes);
        match text.trim().to_ascii_lowercase().as_str() {
            "true" | "on" | "yes" | "1" | "" => true,
            "false" | "off" | "no" | "0" => false,
            _ => {
                let message = format!("`{}` cannot be `{text}`, it is taken for true", property.name);
                self.notes.push(property.note("bad_boolean", message));
                true
            }
        }
    }

    fn metadata(&mut self) -> Metadata {
        let prefixes = [format!("{LONG}.metadata"), format!("{SHORT}.metadata")];
        let found = self.properties.merged(&[&prefixes[0], &prefixes[1]], false, |_, _| true);
        let mut notes = Vec::new();
        let out = found
            .into_iter()
            .map(|(name, property)| {
                let text = self.properties.resolve(property, &mut notes);
                (name.into(), meta_value(property, text))
            })
            .collect();
        self.notes.append(&mut notes);
        out
    }

    fn unknown_keys(&mut self) {
        for property in self.properties.of_files() {
            let Some(below) = property.below(LONG) else { continue };
            let key = below.split('.').next().unwrap_or_default();
            if DISCOVERY_KEYS.iter().any(|known| same_name(known, key)) {
                continue;
            }
            let hint = suggest(key, DISCOVERY_KEYS).map(|word| format!(", did you mean `{word}`?")).unwrap_or_default();
            let message = format!("unknown key `{LONG}.{key}`{hint}");
            if !self.notes.iter().any(|note| note.message == message) {
                self.notes.push(property.note("unknown_key", message));
            }
        }
    }
}

#[cfg(test)]
mod tests;
