//! Apache Seata configuration as people have it: `application.yml`, `application.properties`, `registry.conf` (with the
//! `file.conf` it names), and `config.txt`.
//!
//! A shop that routes its transaction coordinators by metadata has these files already; this module reads them and says
//! what they mean in our terms, so that nothing has to be written twice. It reproduces what Seata *documents*, and names
//! every place where its branch of record behaves otherwise:
//!
//! - Server metadata (`seata.registry.metadata.*`) is read for every registry type; the original only does with `seata`
//!   among them. The strongest source wins; the original lets the weakest win. Variables such as
//!   `SEATA_REGISTRY_METADATA_ENV` and `${…}` placeholders work. A blank value is the empty text and counts as present.
//! - Routing (`seata.client.routing.*`) becomes a [`RuleSet`] of profile and dialect `seata`. Absent or false means no
//!   filtering: the same candidates and the same distribution as without configuration.
//! - Routing names without `seata.` in a Spring file are read, with a note: the original's own sample has them, and the
//!   original ignores them.
//! - An expression that is blank or malformed lets everything pass, as in the original, and is noted once here instead
//!   of logged on every request there.
//!
//! `docs/seata.md` has the whole list of keys.
//!
//! ```
//! use metaroute::properties::Surroundings;
//! use metaroute::seata::SeataConfig;
//! use metaroute_registry::document::Format;
//!
//! let text = "
//! seata.client.routing.enabled=true
//! seata.client.routing.routers=metadata-router-1
//! seata.client.routing.metadata-router-1.expression=version >= 2.3
//! ";
//! let config = SeataConfig::parse("application.properties", text, Format::Properties, &Surroundings::none())?;
//! assert_eq!(config.rules.rules[0].name, "metadata-router-1");
//! # Ok::<(), metaroute_registry::ConfigError>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use metaroute_core::instance::Metadata;
use metaroute_core::rules::{AllZero, Balance, Filter, MinUsable, Mode, Profile, Rule, RuleSet, Terminal, WeightFrom};
use metaroute_expr::{Dialect, Expr};
use metaroute_registry::document::{ConfigError, Format, Note, suggest};
use metaroute_registry::url::is_secret_name;

use crate::properties::{Origin, Properties, Property, Surroundings, meta_value, same_name, split_list};

mod keys;
mod place;

pub use place::{NoPlace, Place, registry_url};

/// The transaction service group of a client that names none.
pub const DEFAULT_GROUP: &str = "default_tx_group";

/// The name [`DEFAULT_GROUP`] had before Seata 1.5.
pub const OLD_DEFAULT_GROUP: &str = "my_test_tx_group";

/// Registries Seata knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RegistryType {
    /// Addresses in the configuration itself.
    File,
    /// The Raft cluster of the servers.
    Raft,
    /// ZooKeeper.
    Zk,
    /// Redis.
    Redis,
    /// Nacos.
    Nacos,
    /// Eureka.
    Eureka,
    /// Consul.
    Consul,
    /// etcd.
    Etcd3,
    /// SOFARegistry.
    Sofa,
    /// A class of the user's.
    Custom,
    /// Seata's NamingServer.
    Seata,
}

impl RegistryType {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::File,
        Self::Raft,
        Self::Zk,
        Self::Redis,
        Self::Nacos,
        Self::Eureka,
        Self::Consul,
        Self::Etcd3,
        Self::Sofa,
        Self::Custom,
        Self::Seata,
    ];

    /// The name as Seata's samples write it, which is also the section of its settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Raft => "raft",
            Self::Zk => "zk",
            Self::Redis => "redis",
            Self::Nacos => "nacos",
            Self::Eureka => "eureka",
            Self::Consul => "consul",
            Self::Etcd3 => "etcd3",
            Self::Sofa => "sofa",
            Self::Custom => "custom",
            Self::Seata => "seata",
        }
    }
}

impl fmt::Display for RegistryType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A registry type Seata does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown Seata registry type `{0}`")]
pub struct UnknownRegistryType(pub String);

/// Case does not count, and white space around the name does not either; blank is `file`.
impl FromStr for RegistryType {
    type Err = UnknownRegistryType;

    fn from_str(text: &str) -> Result<Self, UnknownRegistryType> {
        match text.trim() {
            "" => Ok(Self::File),
            name => Self::ALL
                .into_iter()
                .find(|kind| kind.name().eq_ignore_ascii_case(name))
                .ok_or_else(|| UnknownRegistryType(name.to_owned())),
        }
    }
}

/// The settings of one registry, by name as written. `Debug` hides passwords and tokens.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RegistrySettings(BTreeMap<String, String>);

impl RegistrySettings {
    /// A setting in any spelling: `server-addr` finds `serverAddr`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| same_name(key, name)).map(|(_, value)| value.as_str())
    }

    /// All settings by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl fmt::Debug for RegistrySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.iter().map(|(name, value)| (name, if is_secret_name(name) { "***" } else { value }));
        f.debug_map().entries(shown).finish()
    }
}

/// The `registry` section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrySection {
    /// The types, each once, in the order written. A server may have several, a client has one.
    pub types: Vec<RegistryType>,
    /// Names among the types that Seata does not know. It does not start with them; here the others count.
    pub unknown: Vec<String>,
    /// The settings of every section that is there, of a type in use or not.
    pub settings: BTreeMap<RegistryType, RegistrySettings>,
}

impl RegistrySection {
    /// The cluster a server of this type registers in: `cluster`, at Eureka `application`.
    pub fn cluster(&self, kind: RegistryType) -> &str {
        let key = if kind == RegistryType::Eureka { "application" } else { "cluster" };
        let cluster = self.settings.get(&kind).and_then(|settings| settings.get(key));
        cluster.filter(|cluster| !cluster.is_empty()).unwrap_or("default")
    }
}

/// What a Seata configuration says.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SeataConfig {
    /// The server's own metadata, for every registry type.
    pub metadata: Metadata,
    /// The `registry` section.
    pub registry: RegistrySection,
    /// Routing and balancing of a client, ready for a selector. Without rules when routing is off.
    pub rules: RuleSet,
    /// Whether `client.routing.enabled` is on.
    pub routing_enabled: bool,
    /// Whether every pick should be explained (`client.routing.debug`); slow.
    pub debug: bool,
    /// The names of the routers that were loaded, in order; also while routing is off.
    pub routers: Vec<String>,
    /// Whether it is a configuration of Spring Boot; where it is not, other defaults apply to some settings.
    pub spring: bool,
    /// The client's transaction service group.
    pub tx_service_group: String,
    /// `service.vgroupMapping`: transaction service group → cluster.
    pub vgroup_mapping: BTreeMap<String, String>,
    /// `service.<cluster>.grouplist`: cluster → addresses as written, for the registry type `file`.
    pub grouplist: BTreeMap<String, String>,
    /// Where our reading differs from what somebody may expect: unknown keys, values that mean nothing, keys the
    /// original ignores. In the order found.
    pub notes: Vec<Note>,
}

impl SeataConfig {
    /// Reads a configuration file and what belongs to it: the files beside it for active Spring profiles, and for a
    /// `registry.conf` the `file.conf` it names. Its extension says the format; `config.txt` is Java properties.
    ///
    /// # Errors
    /// When a file cannot be read or is malformed. What is merely wrong for Seata is a note.
    pub fn read(path: &Path, surroundings: &Surroundings) -> Result<Self, ConfigError> {
        let mut properties = Properties::new(surroundings);
        properties.add_file(path)?;
        let mut centre = None;
        let is = |name: &str, wanted: &str| properties.get(name).is_some_and(|p| p.text.eq_ignore_ascii_case(wanted));
        if path.extension().is_some_and(|extension| extension == "conf")
            && is("config.type", "file")
            && let Some(name) = properties.get("config.file.name")
        {
            let file = beside(path, &name.text);
            if file != path && file.is_file() {
                let mut inner = Properties::new(surroundings);
                inner.add_file(&file)?;
                centre = Some(inner);
            }
        }
        let text = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("txt"));
        Ok(Reader::new(properties, centre, text).config())
    }

    /// Reads a configuration from text. `name` stands in notes for the file.
    ///
    /// # Errors
    /// When the text is malformed.
    pub fn parse(name: &str, text: &str, format: Format, surroundings: &Surroundings) -> Result<Self, ConfigError> {
        let mut properties = Properties::new(surroundings);
        properties.add(name, text, format)?;
        Ok(Reader::new(properties, None, false).config())
    }

    /// The rules for a program that registered only some `spi-` routers: one that `registered` does not know lets
    /// everything pass, as in the original, and is noted.
    pub fn rules_with_routers(&self, registered: impl Fn(&str) -> bool) -> (RuleSet, Vec<Note>) {
        let mut set = self.rules.clone();
        let mut notes = Vec::new();
        for rule in &mut set.rules {
            let Filter::Custom { router, .. } = &rule.filter else { continue };
            if registered(router) {
                continue;
            }
            let message = format!("router `{router}` is not registered, everything passes");
            notes.push(Note { code: "unregistered_router", message, file: String::new(), at: None });
            rule.filter = Filter::Match(pass_everything());
        }
        (set, notes)
    }

    /// The cluster a name stands for: what the group of this name is mapped to, else the name itself.
    pub fn cluster_of<'c>(&'c self, name: &'c str) -> &'c str {
        self.vgroup_mapping.get(name).map_or(name, String::as_str)
    }
}

/// The expression that is true of every instance.
fn pass_everything() -> Expr {
    Expr::parse_as("", Dialect::Seata).expect("the empty expression parses")
}

/// The file a `config.file.name` names: absolute, `file:` or relative to the file that names it.
fn beside(path: &Path, name: &str) -> PathBuf {
    let name = name.trim().strip_prefix("file:").unwrap_or(name.trim());
    path.parent().unwrap_or(Path::new("")).join(name)
}

/// Whose rules apply to names and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flavour {
    /// Spring Boot: names begin with `seata.`, booleans are what Spring takes for one.
    Spring,
    /// Plain Java: names without prefix, only `true` is true.
    Plain,
}

struct Reader {
    properties: Properties,
    /// What Seata calls the configuration centre, where it is a file of its own.
    centre: Option<Properties>,
    flavour: Flavour,
    /// The file is an import file for a configuration centre.
    import_file: bool,
    notes: Vec<Note>,
}

impl Reader {
    fn new(properties: Properties, centre: Option<Properties>, import_file: bool) -> Self {
        let spring = |p: &Property| ["seata", "spring", "server"].iter().any(|prefix| p.below(prefix).is_some());
        // A plain-Java registry.conf has a section `server` too, but never one named `seata` or `spring`.
        let conf = properties.of_files().any(|p| p.file.ends_with(".conf"));
        let flavour = if !conf && properties.of_files().any(spring) { Flavour::Spring } else { Flavour::Plain };
        Self { properties, centre, flavour, import_file, notes: Vec::new() }
    }

    fn config(mut self) -> SeataConfig {
        keys::check(&self.properties, self.flavour == Flavour::Spring, &mut self.notes);
        let metadata = self.metadata();
        let registry = self.registry();
        let mut rules = RuleSet::default();
        rules.profile = Profile::Seata;
        rules.dialect = Dialect::Seata;
        rules.all_zero = AllZero::Uniform;
        self.balance(&mut rules);
        let routing_enabled = !self.import_file && self.switch("client.routing.enabled").unwrap_or(false);
        let debug = self.switch("client.routing.debug").unwrap_or(false);
        let routers = self.routers();
        let names = routers.iter().map(|rule| rule.name.clone()).collect();
        if self.import_file && !routers.is_empty() {
            let note = Note {
                code: "routing_in_config_centre",
                message: "`client.routing.*` has no effect in the configuration centre, Seata reads it from \
                          registry.conf or the Spring environment"
                    .into(),
                file: String::new(),
                at: None,
            };
            self.notes.push(note);
        }
        if routing_enabled {
            rules.rules = routers;
        }
        let vgroup_mapping = self.vgroup_mapping();
        let grouplist = self.grouplist();
        let tx_service_group = self.tx_service_group();
        SeataConfig {
            metadata,
            registry,
            rules,
            routing_enabled,
            debug,
            routers: names,
            spring: self.flavour == Flavour::Spring,
            tx_service_group,
            vgroup_mapping,
            grouplist,
            notes: self.notes,
        }
    }

    /// The strongest property of a name, with and without the prefix. Without it, variables do not count: `REGISTRY_TYPE`
    /// may be anybody's.
    fn find(&mut self, name: &str) -> Option<Property> {
        let found = find(&self.properties, name)?.clone();
        if self.flavour == Flavour::Spring && found.origin == Origin::File && found.below("seata").is_none() {
            if !name.starts_with("client.") {
                return None;
            }
            let note = found.note(
                "missing_prefix",
                format!("`{}` is read, but Seata ignores it here: write `seata.{}`", found.name, found.name),
            );
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        Some(found)
    }

    /// Like [`find`](Self::find) for what Seata reads from the configuration centre.
    fn find_in_centre(&mut self, name: &str) -> Option<Property> {
        let strong = self.find(name);
        if strong.as_ref().is_some_and(|property| property.origin != Origin::File) {
            return strong;
        }
        self.centre.as_ref().and_then(|centre| find(centre, name).cloned()).or(strong)
    }

    fn text(&mut self, property: &Property) -> String {
        let owner = self.centre.as_ref().filter(|_| property.file.ends_with("file.conf"));
        owner.unwrap_or(&self.properties).resolve(property, &mut self.notes)
    }

    /// A boolean, if the name is there. What is none is noted and false, as in the original.
    fn switch(&mut self, name: &str) -> Option<bool> {
        let property = self.find(name)?;
        let text = self.text(&property);
        Some(self.boolean(&property, &text))
    }

    fn boolean(&mut self, property: &Property, text: &str) -> bool {
        let word = text.trim().to_ascii_lowercase();
        let truthy = matches!(word.as_str(), "true" | "on" | "yes" | "1");
        let falsy = matches!(word.as_str(), "false" | "off" | "no" | "0" | "");
        if self.flavour == Flavour::Plain && truthy && word != "true" {
            let message =
                format!("`{}` is `{text}`, which is false: without Spring only `true` is true", property.name);
            self.notes.push(property.note("bad_boolean", message));
            return false;
        }
        if !truthy && !falsy {
            let message = format!("`{}` cannot be `{text}`, it is taken for false", property.name);
            self.notes.push(property.note("bad_boolean", message));
        }
        truthy
    }

    /// The strongest value of every name in a section, placeholders replaced. Without the prefix a section counts only
    /// in plain Java, and variables never do.
    fn section(&mut self, section: &str, relaxed: bool) -> Vec<(String, Property, String)> {
        let prefixed = format!("seata.{section}");
        let prefixes = [prefixed.as_str(), section];
        let prefixes = if self.flavour == Flavour::Spring { &prefixes[..1] } else { &prefixes[..] };
        let mut out = Vec::new();
        let mut notes = Vec::new();
        for properties in [Some(&self.properties), self.centre.as_ref().filter(|_| section.starts_with("service"))] {
            let Some(properties) = properties else { continue };
            for (name, property) in properties.merged(prefixes, relaxed, counts) {
                let text = properties.resolve(property, &mut notes);
                out.push((name, property.clone(), text));
            }
        }
        self.notes.append(&mut notes);
        out
    }

    fn metadata(&mut self) -> Metadata {
        let section = self.section("registry.metadata", false);
        section.into_iter().map(|(name, property, text)| (name.into(), meta_value(&property, text))).collect()
    }

    fn registry(&mut self) -> RegistrySection {
        let mut section = RegistrySection::default();
        if let Some(property) = self.find("registry.type") {
            let text = self.text(&property);
            let mut names = split_list(&text);
            if names.is_empty() {
                names.push("file".to_owned());
            }
            for name in names {
                match name.parse::<RegistryType>() {
                    Ok(kind) if section.types.contains(&kind) => {}
                    Ok(kind) => section.types.push(kind),
                    Err(error) => {
                        let hint = suggest(&name, RegistryType::ALL.map(RegistryType::name))
                            .map(|word| format!(", did you mean `{word}`?"))
                            .unwrap_or_default();
                        self.notes.push(property.note("unknown_registry_type", format!("{error}{hint}")));
                        section.unknown.push(name);
                    }
                }
            }
        }
        for kind in RegistryType::ALL {
            let settings = self.section(&format!("registry.{kind}"), true);
            if !settings.is_empty() {
                let settings = settings.into_iter().map(|(name, _, text)| (name, text)).collect();
                section.settings.insert(kind, RegistrySettings(settings));
            }
        }
        section
    }

    fn balance(&mut self, rules: &mut RuleSet) {
        rules.balance = Balance::Xid;
        if let Some(property) = self.find_in_centre("client.load-balance.type") {
            let text = self.text(&property);
            let name = text.trim();
            let known = [
                ("RandomLoadBalance", Balance::Random),
                ("RoundRobinLoadBalance", Balance::RoundRobin),
                ("ConsistentHashLoadBalance", Balance::SeataConsistentHash),
                ("LeastActiveLoadBalance", Balance::LeastActive),
                ("XID", Balance::Xid),
                ("WeightedRandomLoadBalance", Balance::WeightedRandom),
            ];
            if let Some((_, balance)) = known.iter().find(|(word, _)| word.eq_ignore_ascii_case(name)) {
                rules.balance = balance.clone();
            } else if name.is_empty() {
                // Blank is absent.
            } else if let Ok(balance) = name.parse() {
                let message =
                    format!("`{}`: `{name}` is our name of a balancer, Seata knows none of it", property.name);
                self.notes.push(property.note("balancer_not_of_seata", message));
                rules.balance = balance;
            } else {
                let hint = suggest(name, known.iter().map(|(word, _)| *word))
                    .map(|word| format!(", did you mean `{word}`?"))
                    .unwrap_or_default();
                let message = format!(
                    "`{}`: `{name}` is no balancer of Seata, it must be registered by the program{hint}",
                    property.name
                );
                self.notes.push(property.note("unknown_balancer", message));
                rules.balance = Balance::Custom(name.to_owned());
            }
        }
        if rules.balance == Balance::WeightedRandom {
            rules.weight_from = WeightFrom::Seata;
        }
        if let Some(property) = self.find_in_centre("client.load-balance.virtual-nodes") {
            let text = self.text(&property);
            match text.trim().parse::<u32>() {
                Ok(count) if count > 0 => rules.hash.seata_virtual_nodes = count,
                _ => {
                    let usual = rules.hash.seata_virtual_nodes;
                    let message = format!("`{}` cannot be `{text}`, {usual} is used", property.name);
                    self.notes.push(property.note("bad_number", message));
                }
            }
        }
    }

    /// The routers that are loaded, in list order.
    fn routers(&mut self) -> Vec<Rule> {
        let Some(list) = self.find("client.routing.routers") else {
            if self.switch_is_on("client.routing.enabled") {
                self.notes.push(Note {
                    code: "no_routers",
                    message: "routing is enabled, but `client.routing.routers` names no router: everything passes"
                        .into(),
                    file: String::new(),
                    at: None,
                });
            }
            return Vec::new();
        };
        let text = self.text(&list);
        let names = split_list(&text);
        let mut rules: Vec<Rule> = Vec::new();
        for name in &names {
            let Some(mut rule) = self.router(name, &list, &names) else { continue };
            let earlier =
                rules.iter().filter(|rule| rule.name == *name || rule.name.starts_with(&format!("{name}#"))).count();
            if earlier > 0 {
                // The original runs it again; in explanations the two are told apart.
                rule.name = format!("{name}#{}", earlier + 1);
            }
            rules.push(rule);
        }
        self.unlisted(&names);
        rules
    }

    fn switch_is_on(&mut self, name: &str) -> bool {
        let notes = self.notes.len();
        let on = self.switch(name).unwrap_or(false);
        self.notes.truncate(notes);
        on
    }

    fn router(&mut self, name: &str, list: &Property, names: &[String]) -> Option<Rule> {
        let metadata = name.strip_prefix("metadata-router-").is_some_and(|suffix| !suffix.is_empty());
        let custom = name.strip_prefix("spi-").is_some_and(|suffix| !suffix.is_empty());
        if !metadata && !custom {
            let hint = if name == "metadata-router" {
                ", write `metadata-router-1`".to_owned()
            } else {
                let listed = names.iter().map(String::as_str).filter(|other| *other != name);
                suggest(name, listed.chain(["metadata-router-1"]))
                    .map(|word| format!(", did you mean `{word}`?"))
                    .unwrap_or_default()
            };
            let message = format!("router `{name}` is ignored: names are `metadata-router-…` and `spi-…`{hint}");
            self.notes.push(list.note("unknown_router", message));
            return None;
        }
        let key = |part: &str| format!("client.routing.{name}.{part}");
        let enabled = self.switch(&key("enabled"));
        let expression = if metadata { self.find(&key("expression")) } else { None };
        if metadata && enabled.is_none() && expression.is_none() {
            let message = format!("router `{name}` is not loaded: it has neither `.enabled` nor `.expression`");
            self.notes.push(list.note("router_without_settings", message));
            return None;
        }
        if enabled == Some(false) {
            return None;
        }
        let expr = self.expression(name, list, expression.as_ref());
        let mut rule = Rule::new(name, expr);
        if custom {
            rule.filter = Filter::Custom { router: name.to_owned(), config: self.own_keys(name) };
        }
        rule.mode = Mode::Prefer;
        // The original looks at metadata alone: whatever it matches counts.
        rule.min_usable = MinUsable::Count(0);
        let fallback = self.switch(&key("fallback")).unwrap_or(true);
        rule.terminal = Some(if fallback { Terminal::Any } else { Terminal::Fail });
        Some(rule)
    }

    /// A router's expression; one that is blank or malformed lets everything pass, which the empty expression does too.
    fn expression(&mut self, router: &str, list: &Property, property: Option<&Property>) -> Expr {
        let metadata = router.starts_with("metadata-router-");
        let text = property.map(|property| self.text(property)).unwrap_or_default();
        if text.trim().is_empty() {
            if metadata {
                let message = format!("router `{router}` has no expression: everything passes");
                self.notes.push(property.unwrap_or(list).note("blank_expression", message));
            }
            return pass_everything();
        }
        match Expr::parse_as(&text, Dialect::Seata) {
            Ok(expr) => expr,
            Err(error) => {
                let hint = error.hint.as_deref().map(|hint| format!(" ({hint})")).unwrap_or_default();
                let message = format!(
                    "router `{router}` is ignored, everything passes: `{text}` is no expression: {error}{hint}"
                );
                self.notes.push(property.unwrap_or(list).note("bad_expression", message));
                pass_everything()
            }
        }
    }

    /// Everything under a router's own prefix, names as written.
    fn own_keys(&mut self, router: &str) -> BTreeMap<String, String> {
        let prefixes = [format!("seata.client.routing.{router}"), format!("client.routing.{router}")];
        let found = self.properties.merged(&[&prefixes[0], &prefixes[1]], true, counts);
        let mut notes = Vec::new();
        let out = found.into_iter().map(|(name, p)| (name, self.properties.resolve(p, &mut notes))).collect();
        self.notes.append(&mut notes);
        out
    }

    /// Settings of routers that the list does not name: most likely a misspelt list.
    fn unlisted(&mut self, names: &[String]) {
        let mut seen: Vec<String> = Vec::new();
        for property in self.properties.of_files() {
            let below = property.below("seata.client.routing").or_else(|| property.below("client.routing"));
            let Some((router, _)) = below.as_deref().and_then(|name| name.split_once('.')) else { continue };
            let is_router = router.starts_with("metadata-router-") || router.starts_with("spi-");
            if !is_router || names.iter().any(|name| same_name(name, router)) || seen.iter().any(|s| s == router) {
                continue;
            }
            seen.push(router.to_owned());
            let message = format!("router `{router}` has settings, but `client.routing.routers` does not name it");
            self.notes.push(property.note("router_not_listed", message));
        }
    }

    fn vgroup_mapping(&mut self) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        for (name, property, text) in self.section("service.vgroup-mapping", false) {
            // A variable cannot write the underscores of the usual names.
            let usual = [DEFAULT_GROUP, OLD_DEFAULT_GROUP].into_iter().find(|usual| same_name(usual, &name));
            let name = usual.filter(|_| property.origin == Origin::Environment).map_or(name, str::to_owned);
            out.insert(name, text);
        }
        if out.is_empty() && self.flavour == Flavour::Spring {
            for group in [DEFAULT_GROUP, OLD_DEFAULT_GROUP] {
                out.insert(group.to_owned(), "default".to_owned());
            }
        }
        out
    }

    /// Plain Java writes `service.<cluster>.grouplist`, Spring `service.grouplist.<cluster>`.
    fn grouplist(&mut self) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        if self.flavour == Flavour::Plain {
            for (name, _, text) in self.section("service", false) {
                if let Some((cluster, "grouplist")) = name.rsplit_once('.') {
                    out.insert(cluster.to_owned(), text);
                }
            }
        }
        for (cluster, _, text) in self.section("service.grouplist", false) {
            out.insert(cluster, text);
        }
        if out.is_empty() && self.flavour == Flavour::Spring {
            out.insert("default".to_owned(), "127.0.0.1:8091".to_owned());
        }
        out
    }

    fn tx_service_group(&mut self) -> String {
        let found = self
            .properties
            .get_any(&["seata.tx-service-group", "spring.cloud.alibaba.seata.tx-service-group"], |_, _| true);
        let text = match found.cloned() {
            Some(property) => self.text(&property),
            None => String::new(),
        };
        if text.trim().is_empty() { DEFAULT_GROUP.to_owned() } else { text }
    }
}

fn find<'p>(properties: &'p Properties, name: &str) -> Option<&'p Property> {
    properties.get_any(&[&format!("seata.{name}"), name], counts)
}

/// Whether a property may stand for a name: a variable without the prefix, such as `REGISTRY_TYPE`, may be anybody's.
fn counts(name: &str, property: &Property) -> bool {
    property.origin != Origin::Environment || name.starts_with("seata.")
}

#[cfg(test)]
mod tests;
