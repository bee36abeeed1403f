//! Which rules, whose call, and which request: the flags that every decision shares.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use metaroute::properties::Surroundings;
use metaroute::rules_file::{RulesFile, parse_balance};
use metaroute::seata::SeataConfig;
use metaroute_core::rules::{Balance, Filter, WeightFrom, ZonePreference};
use metaroute_core::{Options, Request, RuleSet, Selector};
use metaroute_expr::Dialect;
use metaroute_registry::document::{Format, Note, Position};

use crate::expr::{parse, read_text};
use crate::failure::Failure;
use crate::output::{WARN, paint, tell};
use crate::pairs::{self, pair};
use crate::source::tell_notes;
use crate::status::Status;

/// Ready-made rule sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Preset {
    /// The caller's target-version, then the caller's cluster, then weighted random
    NacosCluster,
}

/// What may be preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Prefer {
    /// The caller's cluster while it has a usable instance
    Cluster,
    /// The caller's zone, spilling over as it loses health
    Zone,
}

/// Where rules come from: at most one source.
#[derive(Args)]
pub(crate) struct RuleArgs {
    #[command(flatten)]
    source: RuleSource,
    /// Prefer the caller's cluster or zone; may be repeated
    #[arg(long, value_enum, value_name = "cluster|zone", help_heading = "Rules")]
    prefer: Vec<Prefer>,
    /// How one of the remaining instances is chosen, for example random, maglev or xid
    #[arg(long, value_name = "NAME", help_heading = "Rules")]
    balance: Option<String>,
    /// Dialect of the expressions: v1 or seata
    #[arg(long, value_name = "DIALECT", help_heading = "Rules")]
    dialect: Option<Dialect>,
}

#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct RuleSource {
    /// A rules file (YAML, JSON, TOML or properties); `-` is YAML on stdin
    #[arg(short = 'f', long, visible_alias = "config", value_name = "FILE", help_heading = "Rules")]
    pub(crate) rules: Option<PathBuf>,
    /// One mandatory rule
    #[arg(long, value_name = "EXPR", allow_hyphen_values = true, help_heading = "Rules")]
    pub(crate) rule: Option<String>,
    /// An existing Seata configuration file
    #[arg(long, value_name = "FILE", help_heading = "Rules")]
    pub(crate) seata: Option<PathBuf>,
    /// A ready-made rule set
    #[arg(long, value_enum, value_name = "PRESET", help_heading = "Rules")]
    preset: Option<Preset>,
}

/// The caller and its request.
#[derive(Args)]
pub(crate) struct RequestArgs {
    /// The caller's own metadata; cluster, zone and region count for preferences; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair, help_heading = "Request")]
    caller: Vec<(String, String)>,
    /// The request's values; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair, help_heading = "Request")]
    req: Vec<(String, String)>,
    /// Key of the hash balancers
    #[arg(long, value_name = "HASHKEY", help_heading = "Request")]
    key: Option<String>,
    /// Seata transaction the request belongs to (ip:port:number)
    #[arg(long, value_name = "XID", help_heading = "Request")]
    xid: Option<String>,
}

/// A rule set and where it was written.
pub(crate) struct Chosen {
    pub(crate) set: RuleSet,
    /// The file, when there is one.
    pub(crate) file: Option<String>,
    /// Place of each rule in the file, or none.
    pub(crate) places: Vec<Position>,
    /// What is odd about the file.
    pub(crate) notes: Vec<Note>,
    /// Seata's transaction service groups and the clusters they are mapped to.
    clusters: BTreeMap<String, String>,
    /// The Seata configuration it came from.
    pub(crate) seata: Option<Box<SeataConfig>>,
}

impl RuleArgs {
    /// Whether any rule source was named.
    pub(crate) fn is_given(&self) -> bool {
        self.source.rules.is_some()
            || self.source.rule.is_some()
            || self.source.seata.is_some()
            || self.source.preset.is_some()
    }

    /// The rule set that the flags describe.
    pub(crate) fn read(&self, caller: &[(String, String)]) -> Result<Chosen, Failure> {
        let mut chosen = self.source.read(self.dialect, caller)?;
        for prefer in &self.prefer {
            match prefer {
                Prefer::Cluster => chosen.set.prefer.cluster = true,
                Prefer::Zone => {
                    chosen.set.prefer.zone.get_or_insert_with(ZonePreference::default);
                }
            }
            let (flag, key) = match prefer {
                Prefer::Cluster => ("cluster", "cluster"),
                Prefer::Zone => ("zone", "zone"),
            };
            if !caller.iter().any(|(name, value)| name == key && !value.trim().is_empty()) {
                let message = format!("--prefer {flag} has no effect: the caller has no {key} (--caller {key}=…)");
                chosen.notes.push(Note { code: "preference_unused", message, file: String::new(), at: None });
            }
        }
        if let Some(name) = &self.balance {
            let seata = self.source.seata.is_some();
            chosen.set.balance = balance(name)?;
            if seata {
                seata_balance(&mut chosen.set);
            }
        }
        Ok(chosen)
    }
}

/// A balancer by any of its names.
pub(crate) fn balance(name: &str) -> Result<Balance, Failure> {
    parse_balance(name).map_err(|error| Failure::config(&error, Status::Usage))
}

/// Seata's weights count only for its weighted balancer.
fn seata_balance(set: &mut RuleSet) {
    set.weight_from = if set.balance == Balance::WeightedRandom { WeightFrom::Seata } else { WeightFrom::Weight };
}

impl RuleSource {
    fn read(&self, dialect: Option<Dialect>, caller: &[(String, String)]) -> Result<Chosen, Failure> {
        let plain = |set| Chosen {
            set,
            file: None,
            places: Vec::new(),
            notes: Vec::new(),
            clusters: BTreeMap::new(),
            seata: None,
        };
        if let Some(path) = &self.rules {
            return rules_file(path, dialect.unwrap_or_default());
        }
        if let Some(text) = &self.rule {
            return Ok(plain(RuleSet::must(parse(text, dialect.unwrap_or_default(), None)?)));
        }
        if let Some(path) = &self.seata {
            if dialect == Some(Dialect::V1) {
                return Err(Failure::usage("conflicting_arguments", "--seata FILE is always dialect seata, not v1")
                    .hint("leave out --dialect, or compare the two with `route diff … --dialects v1,seata`"));
            }
            return seata_file(path);
        }
        if let Some(preset) = self.preset {
            if dialect.is_some() {
                return Err(Failure::usage("conflicting_arguments", "a preset has its own expressions")
                    .hint("leave out --dialect"));
            }
            let Preset::NacosCluster = preset;
            return Ok(plain(RuleSet::nacos_cluster(&pairs::map(caller))));
        }
        Ok(plain(RuleSet::default()))
    }
}

/// Reads a rules file; `-` is YAML on stdin.
pub(crate) fn rules_file(path: &Path, dialect: Dialect) -> Result<Chosen, Failure> {
    let name = path.display().to_string();
    let (text, format) = if path == Path::new("-") {
        (read_text(path)?, Format::Yaml)
    } else {
        metaroute_registry::fleet::read_text(path).map_err(|error| Failure::config(&error, Status::Usage))?
    };
    let file =
        RulesFile::parse_in(&name, &text, format, dialect).map_err(|error| Failure::config(&error, Status::Usage))?;
    let clusters = BTreeMap::new();
    Ok(Chosen { set: file.rules, file: Some(name), places: file.places, notes: Vec::new(), clusters, seata: None })
}

/// Reads an existing Seata configuration, with the environment variables that override it.
pub(crate) fn seata_file(path: &Path) -> Result<Chosen, Failure> {
    let config =
        SeataConfig::read(path, &Surroundings::of_process()).map_err(|error| Failure::config(&error, Status::Usage))?;
    let file = path.display().to_string();
    let (mut set, mut notes) = (config.rules.clone(), config.notes.clone());
    set.rules.retain(|rule| match &rule.filter {
        Filter::Custom { router, .. } => {
            let message = format!("router `{router}` is code of the program that uses it, and is left out here");
            notes.push(Note { code: "custom_router", message, file: file.clone(), at: None });
            false
        }
        _ => true,
    });
    let clusters = config.vgroup_mapping.clone();
    Ok(Chosen { set, file: Some(file), places: Vec::new(), notes, clusters, seata: Some(Box::new(config)) })
}

impl RequestArgs {
    pub(crate) fn caller(&self) -> &[(String, String)] {
        &self.caller
    }

    pub(crate) fn options(&self, seed: u64) -> Options {
        Options { seed, caller: self.caller_map(), ..Options::default() }
    }

    fn caller_map(&self) -> BTreeMap<String, String> {
        pairs::map(&self.caller)
    }

    /// The request against the slots of a selector.
    pub(crate) fn request(&self, selector: &Selector) -> Request {
        let values = self.req.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        request(selector, values, self.key.as_deref(), self.xid.as_deref())
    }

    /// Tells people about flags that cannot change the answer.
    pub(crate) fn tell_unused(&self, set: &RuleSet) {
        let note = |text: String| tell(format!("{}: {text}", paint(WARN, "note")));
        if self.key.is_some() && !set.balance.needs_key() && !matches!(set.balance, Balance::Custom(_)) {
            note(format!("--key has no effect: balancer {} does not hash", set.balance));
        }
        if self.xid.is_some() && !matches!(set.balance, Balance::Xid | Balance::SeataConsistentHash) {
            note(format!("--xid has no effect: balancer {} ignores transactions", set.balance));
        }
    }
}

/// A request with these values, and what decides for balancers that keep to an instance.
pub(crate) fn request<'a>(
    selector: &Selector,
    values: impl IntoIterator<Item = (&'a str, &'a str)>,
    key: Option<&str>,
    xid: Option<&str>,
) -> Request {
    let mut request = selector.request(values);
    if let Some(key) = key {
        request = request.with_key(key.as_bytes());
    }
    if let Some(xid) = xid {
        request = request.with_xid(xid);
    }
    request
}

impl Chosen {
    /// The name to look up: the cluster of a transaction service group that is mapped, else the service itself.
    pub(crate) fn lookup<'n>(&'n self, service: &'n str) -> &'n str {
        self.clusters.get(service).map_or(service, String::as_str)
    }

    /// Tells people what is odd.
    pub(crate) fn tell_notes(&self) {
        tell_notes(&self.notes);
    }
}
