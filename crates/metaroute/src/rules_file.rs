//! Rules files: everything that decides which instance a caller gets, as people write it.
//!
//! A rules file is edited by hand and decides where production traffic goes, so its reader is strict: every unknown key
//! is an error with the likely spelling, every value is checked for range and unit, and a wrong expression is reported
//! at its own line and column inside the file. What it means is [`RuleSet`]; this module only reads and prints it.
//! `docs/rules-file.md` shows every key.
//!
//! ```
//! use metaroute::rules_file::RulesFile;
//! use metaroute_registry::document::Format;
//!
//! let text = "
//! version: 1
//! rules:
//!   - name: canary
//!     match: version >= 2.3
//!     mode: prefer
//!     terminal: any
//! ";
//! let file = RulesFile::parse("rules.yaml", text, Format::Yaml)?;
//! assert_eq!(file.rules.rules[0].name, "canary");
//!
//! let error = RulesFile::parse("rules.yaml", "rules: [{match: version >=}]", Format::Yaml).unwrap_err();
//! assert!(error.to_string().starts_with("rules.yaml:1:"));
//! # Ok::<(), metaroute_registry::ConfigError>(())
//! ```

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use metaroute_core::resilience::ejection::{EjectionPolicy, FailureRate};
use metaroute_core::rules::{
    AllZero, Balance, Fallback, Filter, MinUsable, Mode, Preference, Profile, Rule, RuleSet, Terminal, Warmup,
    WeightFrom, ZonePreference,
};
use metaroute_expr::{Attribute, Dialect, Expr, KeyId, KeyTable, Schema, SlotId, SlotScope, Type, Unsupported};
use metaroute_registry::document::{ConfigError, Fields, Format, Node, Position, Source};
use metaroute_registry::fleet::read_text;

mod lint;
mod print;
mod units;

pub use lint::{Finding, inventory_of, lint_rules};
pub use print::to_yaml;
pub use units::{format_duration, parse_duration};

const FILE_KEYS: [&str; 14] = [
    "version",
    "profile",
    "dialect",
    "types",
    "weight_from",
    "all_zero",
    "balance",
    "hash",
    "prefer",
    "warmup",
    "panic",
    "drain_deadline",
    "ejection",
    "rules",
];
const RULE_KEYS: [&str; 8] = ["name", "when", "match", "router", "mode", "min_usable", "on_empty", "terminal"];
/// A router's own keys that are named like those of a rule stand in a map of this name.
const ROUTER_CONFIG: &str = "config";
const FALLBACK_KEYS: [&str; 4] = ["match", "drop_keys", "lacking_all", "lacking_any"];

/// The rules of a file and where each of them stands.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RulesFile {
    /// What the file says.
    pub rules: RuleSet,
    /// The place of each rule in `rules.rules`, same order and length.
    pub places: Vec<Position>,
}

impl RulesFile {
    /// Reads rules from text. `name` stands in messages for the file.
    ///
    /// # Errors
    /// At the first thing that is wrong, with its place and what was expected.
    pub fn parse(name: &str, text: &str, format: Format) -> Result<Self, ConfigError> {
        Self::parse_in(name, text, format, Dialect::V1)
    }

    /// Like [`RulesFile::parse`] with another dialect for expressions, unless the file names one itself.
    ///
    /// # Errors
    /// As [`RulesFile::parse`].
    pub fn parse_in(name: &str, text: &str, format: Format, dialect: Dialect) -> Result<Self, ConfigError> {
        let source = Source::new(name, text);
        let root = source.parse(format)?;
        Reader { source, dialect }.file(&root)
    }

    /// Reads a rules file; its extension says the format.
    ///
    /// # Errors
    /// `unreadable` when the file cannot be read, `unknown_format` for an unknown extension, else as
    /// [`RulesFile::parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let (text, format) = read_text(path)?;
        Self::parse(&path.display().to_string(), &text, format)
    }
}

/// Reads the name of a balancer: ours, Seata's, Dubbo's, or `custom:NAME` for one that the program registered.
///
/// # Errors
/// `unknown_balancer` with the likely spelling.
pub fn parse_balance(name: &str) -> Result<Balance, ConfigError> {
    match name.trim().strip_prefix("custom:") {
        Some(custom) if !custom.trim().is_empty() => Ok(Balance::Custom(custom.trim().to_owned())),
        _ => name.parse().map_err(|_| {
            ConfigError::new("unknown_balancer", format!("unknown balancer `{name}`"))
                .key("balance")
                .expected(Balance::NAMES)
                .suggest(name, Balance::NAMES)
        }),
    }
}

struct Reader<'a> {
    source: Source<'a>,
    dialect: Dialect,
}

impl<'a> Reader<'a> {
    fn file(mut self, root: &Node<'a>) -> Result<RulesFile, ConfigError> {
        let mut set = RuleSet::default();
        if root.is_null() {
            return Err(self.source.error(0, "missing_key", "the file is empty").expected(["version", "rules"]));
        }
        let fields = Fields::of(self.source, root, "the rules file", &FILE_KEYS)?;
        if let Some(version) = fields.get("version").filter(|node| node.text() != Some("1")) {
            return Err(self
                .at(version, "unknown_version", "version", format!("rules file version `{version}` is not known"))
                .expected(["1"]));
        }
        if let Some(dialect) = self.word(fields, "dialect", &[("v1", Dialect::V1), ("seata", Dialect::Seata)])? {
            self.dialect = dialect;
        }
        set.dialect = self.dialect;
        if let Some(profile) =
            self.word(fields, "profile", &[("strict", Profile::Strict), ("seata", Profile::Seata)])?
        {
            set.profile = profile;
        }
        if let Some(node) = fields.get("types") {
            set.types = self.types(node)?;
        }
        if let Some(node) = fields.get("weight_from") {
            set.weight_from = self.weight_from(node)?;
        }
        if let Some(rule) = self.word(fields, "all_zero", &[("none", AllZero::None), ("uniform", AllZero::Uniform)])? {
            set.all_zero = rule;
        }
        if let Some(node) = fields.get("balance") {
            let name = self.source.text_of(node, "balance")?;
            set.balance = parse_balance(name).map_err(|error| self.placed(error, node.span.start))?;
        }
        if let Some(node) = fields.get("hash") {
            self.hash(node, &mut set)?;
        }
        if let Some(node) = fields.get("prefer") {
            set.prefer = self.prefer(node)?;
        }
        if let Some(node) = fields.get("warmup") {
            set.warmup = Some(self.warmup(node)?);
        }
        if let Some(node) = fields.get("panic") {
            set.panic = Some(self.fraction(node, "panic")?);
        }
        if let Some(node) = fields.get("drain_deadline") {
            set.drain_deadline = Some(self.duration(node, "drain_deadline")?);
        }
        if let Some(node) = fields.get("ejection") {
            set.ejection = self.ejection(node)?;
        }
        let mut places = Vec::new();
        if let Some(node) = fields.get("rules") {
            let mut names = HashSet::new();
            for (index, node) in self.source.list_of(node, "rules")?.iter().enumerate() {
                let rule = self.rule(node, index)?;
                if !names.insert(rule.name.clone()) {
                    let message = format!("two rules are named `{}`", rule.name);
                    let at = node.get("name").unwrap_or(node);
                    return Err(self.at(at, "duplicate_rule", "name", message));
                }
                places.push(self.source.position(node.span.start));
                set.rules.push(rule);
            }
        }
        Ok(RulesFile { rules: set, places })
    }

    fn at(&self, node: &Node<'a>, code: &'static str, key: &str, message: impl Into<String>) -> ConfigError {
        self.source.error(node.span.start, code, message).key(key)
    }

    fn placed(&self, error: ConfigError, offset: usize) -> ConfigError {
        error.at(self.source.name, self.source.position(offset))
    }

    fn word<T: Copy>(&self, fields: Fields<'_, 'a>, key: &str, words: &[(&str, T)]) -> Result<Option<T>, ConfigError> {
        let Some(node) = fields.get(key) else { return Ok(None) };
        let text = self.source.text_of(node, key)?;
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => Err(self
                .at(node, "bad_value", key, format!("`{key}` cannot be `{node}`"))
                .expected(words.iter().map(|(word, _)| *word))
                .suggest(text, words.iter().map(|(word, _)| *word))),
        }
    }

    fn duration(&self, node: &Node<'a>, key: &str) -> Result<std::time::Duration, ConfigError> {
        let text = self.source.text_of(node, key)?;
        parse_duration(text).map_err(|why| {
            self.at(node, "bad_duration", key, format!("`{key}` cannot be `{node}`: {why}"))
                .hint("write for example `60s`")
        })
    }

    /// A number within bounds, both included.
    fn number(&self, node: &Node<'a>, key: &str, least: f64, most: f64) -> Result<f64, ConfigError> {
        let value = node.text().and_then(|text| text.trim().parse::<f64>().ok()).filter(|value| value.is_finite());
        let bounds = if most == f64::MAX { format!("{least} or more") } else { format!("{least} to {most}") };
        match value {
            Some(value) if value >= least && value <= most => Ok(value),
            _ => Err(self.at(node, "bad_number", key, format!("`{key}` cannot be `{node}`")).expected([bounds])),
        }
    }

    fn count(&self, node: &Node<'a>, key: &str, least: u32) -> Result<u32, ConfigError> {
        match node.text().and_then(|text| text.parse::<u32>().ok()) {
            Some(value) if value >= least => Ok(value),
            _ => Err(self
                .at(node, "bad_number", key, format!("`{key}` cannot be `{node}`"))
                .expected([format!("a whole number, {least} or more")])),
        }
    }

    /// `50%` or `0.5`.
    fn fraction(&self, node: &Node<'a>, key: &str) -> Result<f64, ConfigError> {
        let text = self.source.text_of(node, key)?;
        units::parse_fraction(text).ok_or_else(|| {
            let error = self
                .at(node, "bad_percentage", key, format!("`{key}` cannot be `{node}`"))
                .expected(["a percentage from 0% to 100%"]);
            match text.trim().parse::<f64>() {
                Ok(value) if value > 1.0 && value <= 100.0 => error.hint(format!("write `{}%`", text.trim())),
                _ => error,
            }
        })
    }

    fn percent_u8(&self, node: &Node<'a>, key: &str) -> Result<u8, ConfigError> {
        let text = self.source.text_of(node, key)?;
        match text.trim().strip_suffix('%').and_then(|n| n.trim().parse::<u8>().ok()) {
            Some(value) if value <= 100 => Ok(value),
            _ => Err(self
                .at(node, "bad_percentage", key, format!("`{key}` cannot be `{node}`"))
                .expected(["a whole percentage from 0% to 100%"])),
        }
    }

    fn types(&self, node: &Node<'a>) -> Result<BTreeMap<String, Type>, ConfigError> {
        let fields = Fields::open(self.source, node, "`types`")?;
        let words = ["version", "number", "text", "bool", "set", "time", "time(s)", "time(ms)", "time(us)", "time(ns)"];
        fields
            .entries()
            .iter()
            .map(|entry| {
                let word = self.source.text_of(&entry.node, &entry.key)?;
                let kind = word.parse::<Type>().map_err(|_| {
                    self.at(
                        &entry.node,
                        "unknown_type",
                        &entry.key,
                        format!("unknown type `{word}` of `{}`", entry.key),
                    )
                    .expected(words)
                    .suggest(word, words)
                })?;
                Ok((entry.key.clone().into_owned(), kind))
            })
            .collect()
    }

    fn weight_from(&self, node: &Node<'a>) -> Result<WeightFrom, ConfigError> {
        let text = self.source.text_of(node, "weight_from")?;
        match text {
            "weight" => Ok(WeightFrom::Weight),
            "seata" => Ok(WeightFrom::Seata),
            _ => match text.strip_prefix("metadata.").filter(|key| !key.is_empty()) {
                Some(key) => Ok(WeightFrom::Metadata(key.to_owned())),
                None => Err(self
                    .at(node, "bad_value", "weight_from", format!("`weight_from` cannot be `{node}`"))
                    .expected(["weight", "metadata.KEY", "seata"])
                    .suggest(text, ["weight", "metadata.weight", "seata"])),
            },
        }
    }

    fn hash(&self, node: &Node<'a>, set: &mut RuleSet) -> Result<(), ConfigError> {
        let fields = Fields::of(self.source, node, "`hash`", &["bounded_load", "seata_virtual_nodes"])?;
        if let Some(node) = fields.get("bounded_load") {
            set.hash.bounded_load = Some(self.number(node, "bounded_load", 1.0, f64::MAX)?);
        }
        if let Some(node) = fields.get("seata_virtual_nodes") {
            set.hash.seata_virtual_nodes = self.count(node, "seata_virtual_nodes", 1)?;
        }
        Ok(())
    }

    fn prefer(&self, node: &Node<'a>) -> Result<Preference, ConfigError> {
        let fields = Fields::of(self.source, node, "`prefer`", &["cluster", "zone"])?;
        let mut prefer = Preference::default();
        prefer.cluster = fields.bool("cluster")?.unwrap_or(false);
        prefer.zone = match fields.get("zone") {
            None => None,
            Some(node) if node.scalar().is_some() => {
                fields.bool("zone")?.filter(|on| *on).map(|_| ZonePreference::default())
            }
            Some(node) => {
                let fields = Fields::of(self.source, node, "`zone`", &["overflow", "strict"])?;
                let mut zone = ZonePreference::default();
                if let Some(node) = fields.get("overflow") {
                    zone.overflow = self.number(node, "overflow", 1.0, f64::MAX)?;
                }
                zone.strict = fields.bool("strict")?.unwrap_or(false);
                Some(zone)
            }
        };
        Ok(prefer)
    }

    fn warmup(&self, node: &Node<'a>) -> Result<Warmup, ConfigError> {
        let fields = Fields::of(self.source, node, "`warmup`", &["window", "min", "aggression"])?;
        let window_node = fields.require("window", "`warmup`")?;
        let window = self.duration(window_node, "window")?;
        if window.is_zero() {
            return Err(self.at(window_node, "bad_duration", "window", "`window` must be longer than 0"));
        }
        let mut warmup = Warmup::over(window);
        if let Some(node) = fields.get("min") {
            warmup.floor = self.fraction(node, "min")?;
        }
        if let Some(node) = fields.get("aggression") {
            let aggression = self.number(node, "aggression", 0.0, f64::MAX)?;
            if aggression == 0.0 {
                return Err(self.at(node, "bad_number", "aggression", "`aggression` must be more than 0"));
            }
            warmup.aggression = aggression;
        }
        Ok(warmup)
    }

    fn ejection(&self, node: &Node<'a>) -> Result<Option<EjectionPolicy>, ConfigError> {
        let mut policy = EjectionPolicy::default();
        match node.text() {
            Some("true") => return Ok(Some(policy)),
            Some("false") => return Ok(None),
            _ => {}
        }
        let known = ["consecutive_failures", "failure_rate", "base_time", "max_time", "max_ejected", "at_least_one"];
        let fields = Fields::of(self.source, node, "`ejection`", &known)?;
        if let Some(node) = fields.get("consecutive_failures") {
            policy.consecutive_failures = match node.text() {
                Some("off") => None,
                _ => Some(self.count(node, "consecutive_failures", 1)?),
            };
        }
        if let Some(node) = fields.get("failure_rate") {
            let fields = Fields::of(self.source, node, "`failure_rate`", &["percent", "min_volume", "interval"])?;
            let interval = self.duration(fields.require("interval", "`failure_rate`")?, "interval")?;
            policy.failure_rate = Some(FailureRate {
                percent: self.percent_u8(fields.require("percent", "`failure_rate`")?, "percent")?,
                min_volume: self.count(fields.require("min_volume", "`failure_rate`")?, "min_volume", 1)?,
                interval,
            });
        }
        if let Some(node) = fields.get("base_time") {
            policy.base_time = self.duration(node, "base_time")?;
        }
        if let Some(node) = fields.get("max_time") {
            policy.max_time = self.duration(node, "max_time")?;
        }
        if let Some(node) = fields.get("max_ejected") {
            policy.max_ejected_percent = self.percent_u8(node, "max_ejected")?;
        }
        if let Some(value) = fields.bool("at_least_one")? {
            policy.at_least_one = value;
        }
        Ok(Some(policy))
    }

    fn rule(&self, node: &Node<'a>, index: usize) -> Result<Rule, ConfigError> {
        let custom = node.get("router").is_some_and(|node| !node.is_null());
        let fields = if custom {
            // A custom router's own keys are its business.
            Fields::open(self.source, node, "a rule")?
        } else {
            Fields::of(self.source, node, "a rule", &RULE_KEYS)?
        };
        let name = fields.text("name")?.map_or_else(|| format!("rule-{}", index + 1), str::to_owned);
        if name.is_empty() {
            return Err(self.at(node, "bad_value", "name", "the rule's name is empty"));
        }
        let matches = match fields.get("match") {
            Some(node) => self.expression(node, "match", self.dialect)?,
            None => Expr::parse_as("", self.dialect).map_err(|error| self.expression_error(node, "match", error))?,
        };
        let mut rule = Rule::new(name, matches);
        if custom {
            if let Some(node) = fields.get("match") {
                return Err(self
                    .at(node, "bad_value", "match", "a rule has either `match` or `router`, not both")
                    .expected(["match", "router"]));
            }
            let router = fields.text("router")?.unwrap_or_default().to_owned();
            let mut config = BTreeMap::new();
            for entry in fields.entries().iter().filter(|entry| !RULE_KEYS.contains(&entry.key.as_ref())) {
                if entry.key != ROUTER_CONFIG {
                    flatten(&entry.key, &entry.node, &mut config);
                    continue;
                }
                for entry in Fields::open(self.source, &entry.node, "`config`")?.entries() {
                    flatten(&entry.key, &entry.node, &mut config);
                }
            }
            rule.filter = Filter::Custom { router, config };
        }
        if let Some(node) = fields.get("when") {
            let when = self.expression(node, "when", Dialect::V1)?;
            self.check_when(node, &when)?;
            rule.when = Some(when);
        }
        if let Some(mode) = self.word(fields, "mode", &[("must", Mode::Must), ("prefer", Mode::Prefer)])? {
            rule.mode = mode;
        }
        if let Some(node) = fields.get("min_usable") {
            rule.min_usable = self.min_usable(node)?;
        }
        if let Some(node) = fields.get("on_empty") {
            let items = self.source.list_of(node, "on_empty")?;
            rule.on_empty = items.iter().map(|item| self.fallback(item)).collect::<Result<_, _>>()?;
        }
        rule.terminal = self.word(fields, "terminal", &[("any", Terminal::Any), ("fail", Terminal::Fail)])?;
        Ok(rule)
    }

    fn min_usable(&self, node: &Node<'a>) -> Result<MinUsable, ConfigError> {
        let text = self.source.text_of(node, "min_usable")?.trim();
        let parsed = match text.strip_suffix('%') {
            Some(percent) => percent
                .trim()
                .parse::<f64>()
                .ok()
                .filter(|percent| (0.0..=100.0).contains(percent))
                .map(MinUsable::Percent),
            None => text.parse::<usize>().ok().map(MinUsable::Count),
        };
        parsed.ok_or_else(|| {
            self.at(node, "bad_number", "min_usable", format!("`min_usable` cannot be `{node}`")).expected([
                "0",
                "a whole number",
                "a percentage from 0% to 100%",
            ])
        })
    }

    fn fallback(&self, node: &Node<'a>) -> Result<Fallback, ConfigError> {
        let fields = Fields::of(self.source, node, "an item of `on_empty`", &FALLBACK_KEYS)?;
        let [entry] = fields.entries() else {
            let message = format!("an item of `on_empty` has {} keys, it needs exactly one", fields.entries().len());
            return Err(self.at(node, "bad_value", "on_empty", message).expected(FALLBACK_KEYS));
        };
        let keys = || -> Result<Vec<String>, ConfigError> {
            let items = self.source.list_of(&entry.node, &entry.key)?;
            if items.is_empty() {
                return Err(self.at(&entry.node, "bad_value", &entry.key, format!("`{}` names no key", entry.key)));
            }
            items.iter().map(|item| self.source.text_of(item, &entry.key).map(str::to_owned)).collect()
        };
        match entry.key.as_ref() {
            "match" => Ok(Fallback::Match(self.expression(&entry.node, "match", self.dialect)?)),
            "drop_keys" => Ok(Fallback::DropKeys(keys()?)),
            "lacking_all" => Ok(Fallback::LackingAll(keys()?)),
            _ => Ok(Fallback::LackingAny(keys()?)),
        }
    }

    fn expression(&self, node: &Node<'a>, key: &str, dialect: Dialect) -> Result<Expr, ConfigError> {
        let text = self.source.text_of(node, key)?;
        Expr::parse_as(text, dialect).map_err(|error| self.expression_error(node, key, error))
    }

    fn expression_error(&self, node: &Node<'a>, key: &str, error: metaroute_expr::ParseError) -> ConfigError {
        let offset = self.source.locate(node, error.span.start);
        let failure = self
            .source
            .error(offset, "bad_expression", format!("in `{key}`: {}", error.message))
            .key(key)
            .expected(error.expected);
        match error.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }

    /// A condition decides before any instance is looked at, so it cannot read one.
    fn check_when(&self, node: &Node<'a>, when: &Expr) -> Result<(), ConfigError> {
        when.bind(&mut ContextOnly(KeyTable::default())).map(drop).map_err(|error| {
            let offset = self.source.locate(node, error.offset);
            self.source
                .error(offset, "bad_expression", format!("in `when`: {}", error.unsupported.message))
                .key("when")
                .expected(["$caller.KEY", "$req.KEY"])
                .hint("`when` decides before instances are looked at; conditions on instances go into `match`")
        })
    }
}

/// A schema without any instance: only the caller's and the request's values can be read.
struct ContextOnly(KeyTable);

impl Schema for ContextOnly {
    fn key(&mut self, name: &str) -> Result<KeyId, Unsupported> {
        Err(unsupported(format!("`{name}` reads an instance")))
    }

    fn attribute(&mut self, attribute: Attribute) -> Result<KeyId, Unsupported> {
        Err(unsupported(format!("`$self.{attribute}` reads an instance")))
    }

    fn slot(&mut self, scope: SlotScope, name: &str) -> Result<SlotId, Unsupported> {
        self.0.slot(scope, name)
    }

    fn declared(&self, name: &str) -> Option<Type> {
        self.0.declared(name)
    }
}

fn unsupported(message: String) -> Unsupported {
    Unsupported::new(message)
}

/// A router's own keys as flat text: nested maps become dotted keys, lists are joined by commas.
fn flatten(key: &str, node: &Node<'_>, out: &mut BTreeMap<String, String>) {
    if let Some(entries) = node.map() {
        for entry in entries {
            flatten(&format!("{key}.{}", entry.key), &entry.node, out);
        }
    } else if let Some(items) = node.list() {
        let items: Vec<String> =
            items.iter().map(|item| item.text().map_or_else(|| item.to_json(), str::to_owned)).collect();
        out.insert(key.to_owned(), items.join(","));
    } else if let Some(text) = node.text() {
        out.insert(key.to_owned(), text.to_owned());
    }
}

#[cfg(test)]
mod tests;
