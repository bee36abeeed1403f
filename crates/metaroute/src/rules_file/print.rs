//! A rule set as a rules file: what `import` commands and migrations print, and the proof that the reader crosses no
//! field (print, read, compare).

use std::fmt::Write;

use metaroute_core::rules::{
    AllZero, Balance, Fallback, Filter, MinUsable, Mode, Profile, Rule, RuleSet, Terminal, WeightFrom,
};
use metaroute_expr::Dialect;

use super::units::{format_duration, format_fraction};
use super::{ROUTER_CONFIG, RULE_KEYS};

/// The rule set as YAML that [`RulesFile::parse`](super::RulesFile::parse) reads back to the same rule set. Values that
/// equal their default are left out.
pub fn to_yaml(set: &RuleSet) -> String {
    let mut out = Printer { text: String::from("version: 1\n"), indent: 0 };
    out.set(set);
    out.text
}

struct Printer {
    text: String,
    indent: usize,
}

impl Printer {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let indent = self.indent;
        writeln!(self.text, "{:indent$}{line}", "").expect("writing to a string never fails");
    }

    fn set(&mut self, set: &RuleSet) {
        let defaults = RuleSet::default();
        if set.profile == Profile::Seata {
            self.line(format_args!("profile: seata"));
        }
        if set.dialect != defaults.dialect {
            self.line(format_args!("dialect: {}", set.dialect));
        }
        if !set.types.is_empty() {
            self.line(format_args!("types:"));
            for (key, kind) in &set.types {
                self.line(format_args!("  {}: {kind}", quote(key)));
            }
        }
        match &set.weight_from {
            WeightFrom::Weight => {}
            WeightFrom::Seata => self.line(format_args!("weight_from: seata")),
            WeightFrom::Metadata(key) => self.line(format_args!("weight_from: {}", quote(&format!("metadata.{key}")))),
            other => unprintable("weight source", other),
        }
        if set.all_zero == AllZero::Uniform {
            self.line(format_args!("all_zero: uniform"));
        }
        match &set.balance {
            Balance::Custom(name) => self.line(format_args!("balance: {}", quote(&format!("custom:{name}")))),
            balance if *balance == defaults.balance => {}
            balance => self.line(format_args!("balance: {balance}")),
        }
        if set.hash != defaults.hash {
            self.line(format_args!("hash:"));
            if let Some(factor) = set.hash.bounded_load {
                self.line(format_args!("  bounded_load: {factor}"));
            }
            if set.hash.seata_virtual_nodes != defaults.hash.seata_virtual_nodes {
                self.line(format_args!("  seata_virtual_nodes: {}", set.hash.seata_virtual_nodes));
            }
        }
        if set.prefer != defaults.prefer {
            self.line(format_args!("prefer:"));
            if set.prefer.cluster {
                self.line(format_args!("  cluster: true"));
            }
            if let Some(zone) = &set.prefer.zone {
                self.line(format_args!("  zone: {{overflow: {}, strict: {}}}", zone.overflow, zone.strict));
            }
        }
        if let Some(warmup) = &set.warmup {
            self.line(format_args!("warmup:"));
            self.line(format_args!("  window: {}", format_duration(warmup.window)));
            self.line(format_args!("  min: {}", format_fraction(warmup.floor)));
            self.line(format_args!("  aggression: {}", warmup.aggression));
        }
        if let Some(panic) = set.panic {
            self.line(format_args!("panic: {}", format_fraction(panic)));
        }
        if let Some(deadline) = set.drain_deadline {
            self.line(format_args!("drain_deadline: {}", format_duration(deadline)));
        }
        if let Some(ejection) = &set.ejection {
            self.line(format_args!("ejection:"));
            match ejection.consecutive_failures {
                Some(count) => self.line(format_args!("  consecutive_failures: {count}")),
                None => self.line(format_args!("  consecutive_failures: off")),
            }
            if let Some(rate) = &ejection.failure_rate {
                self.line(format_args!("  failure_rate:"));
                self.line(format_args!("    percent: {}%", rate.percent));
                self.line(format_args!("    min_volume: {}", rate.min_volume));
                self.line(format_args!("    interval: {}", format_duration(rate.interval)));
            }
            self.line(format_args!("  base_time: {}", format_duration(ejection.base_time)));
            self.line(format_args!("  max_time: {}", format_duration(ejection.max_time)));
            self.line(format_args!("  max_ejected: {}%", ejection.max_ejected_percent));
            self.line(format_args!("  at_least_one: {}", ejection.at_least_one));
        }
        if !set.rules.is_empty() {
            self.line(format_args!("rules:"));
            for rule in &set.rules {
                self.rule(rule, set.dialect);
            }
        }
    }

    fn rule(&mut self, rule: &Rule, dialect: Dialect) {
        self.line(format_args!("  - name: {}", quote(&rule.name)));
        self.indent = 4;
        if let Some(when) = &rule.when {
            self.line(format_args!("when: {}", quote(when.source())));
        }
        match &rule.filter {
            Filter::Match(expr) => {
                debug_assert_eq!(expr.dialect(), dialect, "a rules file has one dialect");
                self.line(format_args!("match: {}", quote(expr.source())));
            }
            Filter::Custom { router, config } => {
                self.line(format_args!("router: {}", quote(router)));
                let reserved = |key: &String| key == ROUTER_CONFIG || RULE_KEYS.contains(&key.as_str());
                let apart = config.keys().any(reserved);
                if apart {
                    self.line(format_args!("{ROUTER_CONFIG}:"));
                }
                for (key, value) in config {
                    self.line(format_args!("{}{}: {}", if apart { "  " } else { "" }, quote(key), quote(value)));
                }
            }
            other => unprintable("filter", other),
        }
        match rule.mode {
            Mode::Must => self.line(format_args!("mode: must")),
            Mode::Prefer => self.line(format_args!("mode: prefer")),
            other => unprintable("mode", &other),
        }
        match rule.min_usable {
            MinUsable::Count(1) => {}
            MinUsable::Count(count) => self.line(format_args!("min_usable: {count}")),
            MinUsable::Percent(percent) => self.line(format_args!("min_usable: {percent}%")),
            other => unprintable("threshold", &other),
        }
        if !rule.on_empty.is_empty() {
            self.line(format_args!("on_empty:"));
            for fallback in &rule.on_empty {
                match fallback {
                    Fallback::Match(expr) => self.line(format_args!("  - match: {}", quote(expr.source()))),
                    Fallback::DropKeys(keys) => self.line(format_args!("  - drop_keys: {}", list(keys))),
                    Fallback::LackingAll(keys) => self.line(format_args!("  - lacking_all: {}", list(keys))),
                    Fallback::LackingAny(keys) => self.line(format_args!("  - lacking_any: {}", list(keys))),
                    other => unprintable("fallback", other),
                }
            }
        }
        match rule.terminal {
            Some(Terminal::Any) => self.line(format_args!("terminal: any")),
            Some(Terminal::Fail) => self.line(format_args!("terminal: fail")),
            Some(other) => unprintable("terminal", &other),
            None => {}
        }
        self.indent = 0;
    }
}

/// Core may grow variants that this printer does not know yet; its tests would fail here first.
fn unprintable(what: &str, value: &dyn std::fmt::Debug) {
    debug_assert!(false, "{what} {value:?} cannot be printed yet");
}

/// A text as a YAML scalar that reads back as that text, whatever it holds.
fn quote(text: &str) -> String {
    let safe = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '$' | '(' | ')' | '<' | '>' | '=' | '+')
    };
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '$')
        && text.split(' ').all(|word| !word.is_empty() && (word.chars().all(safe) || matches!(word, "&&" | "||")))
        && !matches!(
            text.to_ascii_lowercase().as_str(),
            "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
        );
    if plain {
        return text.to_owned();
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20
                || u32::from(c) == 0x7f
                || matches!(u32::from(c), 0x80..=0x9f | 0x2028 | 0x2029 | 0xfeff) =>
            {
                write!(out, "\\u{:04x}", u32::from(c)).expect("writing to a string never fails");
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn list(keys: &[String]) -> String {
    let keys: Vec<String> = keys
        .iter()
        .map(|key| {
            let quoted = quote(key);
            // Inside a flow list a plain word with spaces or brackets would be split.
            if quoted.starts_with('"')
                || key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
            {
                quoted
            } else {
                format!("\"{key}\"")
            }
        })
        .collect();
    format!("[{}]", keys.join(", "))
}
