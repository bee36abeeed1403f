//! What an operator asks for: rules, preferences and a balancer, as validated data.
//!
//! A [`RuleSet`] says nothing about instances; [`crate::Selector`] compiles it against them. The readers of rules
//! files, Seata configuration and presets all end here, so there is one meaning of each option.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use metaroute_expr::{Dialect, Expr, Type};

use crate::resilience::ejection::EjectionPolicy;

/// Everything that decides which instance a caller gets.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RuleSet {
    /// Order in which rules run and what an empty answer means.
    pub profile: Profile,
    /// Dialect of the expressions in `rules`; kept for display, each expression knows its own.
    pub dialect: Dialect,
    /// Declared types of metadata keys.
    pub types: BTreeMap<String, Type>,
    /// Where an instance's weight comes from.
    pub weight_from: WeightFrom,
    /// What to do when every remaining weight is zero.
    pub all_zero: AllZero,
    /// How one instance is chosen from the remaining ones.
    pub balance: Balance,
    /// Options of the hash balancers.
    pub hash: HashOptions,
    /// Which of the remaining instances come first.
    pub prefer: Preference,
    /// Ramp for new instances.
    pub warmup: Option<Warmup>,
    /// Healthy fraction (0 to 1) under which health is ignored; `None` never ignores it.
    pub panic: Option<f64>,
    /// How long sessions bound to an instance may still reach it after its weight became 0; `None` for ever.
    pub drain_deadline: Option<Duration>,
    /// When every candidate was tried already, offer them again (reason `exclusion_relaxed`) instead of none.
    pub reuse_tried: bool,
    /// Outlier ejection; `None` is off.
    pub ejection: Option<EjectionPolicy>,
    /// The rules, in the order they were written.
    pub rules: Vec<Rule>,
}

impl Default for RuleSet {
    /// No rule, weights from the registry, weighted random.
    fn default() -> Self {
        Self {
            profile: Profile::Strict,
            dialect: Dialect::V1,
            types: BTreeMap::new(),
            weight_from: WeightFrom::Weight,
            all_zero: AllZero::None,
            balance: Balance::WeightedRandom,
            hash: HashOptions::default(),
            prefer: Preference::default(),
            warmup: None,
            panic: None,
            drain_deadline: None,
            reuse_tried: true,
            ejection: None,
            rules: Vec::new(),
        }
    }
}

impl RuleSet {
    /// One mandatory rule with nothing to fall back to: what `--rule` means on the command line.
    pub fn must(expr: Expr) -> Self {
        let dialect = expr.dialect();
        let rule = Rule { terminal: Some(Terminal::Fail), ..Rule::new("rule", expr) };
        Self { dialect, rules: vec![rule], ..Self::default() }
    }

    /// The Nacos same-cluster / same-version rule.
    ///
    /// Candidates must have the caller's `target-version` as their `version`, compared as text because the original
    /// compares strings; they are preferred from the caller's own `cluster`, and the choice is weighted random. A
    /// blank or absent value of the caller switches its part off.
    pub fn nacos_cluster(caller: &BTreeMap<String, String>) -> Self {
        let declared = |key: &str| caller.get(key).is_some_and(|value| !value.trim().is_empty());
        let mut set = Self::default();
        set.types.insert("version".into(), Type::Text);
        if declared("target-version") {
            let expr = Expr::parse("version == $caller.target-version").expect("a constant expression parses");
            set.rules.push(Rule { terminal: Some(Terminal::Fail), ..Rule::new("target-version", expr) });
        }
        set.prefer.cluster = declared("cluster");
        set
    }
}

/// Order and meaning of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Profile {
    /// All `must` rules first (AND), then the `prefer` rules in order, each falling back to its own input.
    Strict,
    /// Apache Seata's chain: list order exactly; a router that empties the list is ignored, or keeps it empty.
    Seata,
}

/// Where the weight of an instance comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightFrom {
    /// The registry's own weight.
    Weight,
    /// The metadata value of this key, a plain decimal; the registry's weight where it is absent or no number.
    Metadata(String),
    /// Apache Seata's `metadata.weight` table (integers; absent is 1; unreadable text is 1; a negative number is 0).
    Seata,
}

/// What all-zero weights mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllZero {
    /// Nothing can be picked.
    None,
    /// The weight-0 instances share the picks evenly.
    Uniform,
}

/// How one instance is chosen from the remaining ones.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Balance {
    /// In proportion to weight (default).
    WeightedRandom,
    /// Evenly, whatever the weight; weight 0 still means never.
    Random,
    /// In turn, whatever the weight; weight 0 still means never.
    RoundRobin,
    /// In turn in proportion to weight, spread out (nginx, 2012).
    SmoothWeightedRoundRobin,
    /// Ring of virtual nodes.
    ConsistentHash,
    /// Apache Seata's ring: SHA-256 of `/ip:port` and the node number, weights ignored.
    SeataConsistentHash,
    /// Highest random weight (Thaler and Ravishankar 1996).
    Rendezvous,
    /// Maglev table (Eisenbud et al. 2016).
    Maglev,
    /// Two weighted choices, the one with less in flight for its weight.
    LeastActive,
    /// Two weighted choices, the one with the lower peak latency times load.
    PeakEwma,
    /// The instance named by a Seata XID; evenly random without one.
    Xid,
    /// A balancer registered under this name.
    Custom(String),
}

impl Balance {
    /// Names of the built-in balancers, as accepted and printed.
    pub const NAMES: [&'static str; 10] = [
        "weighted-random",
        "random",
        "round-robin",
        "smooth-weighted-round-robin",
        "consistent-hash",
        "rendezvous",
        "maglev",
        "least-active",
        "peak-ewma",
        "xid",
    ];

    /// Whether the choice depends on a hash key.
    pub fn needs_key(&self) -> bool {
        matches!(self, Self::ConsistentHash | Self::SeataConsistentHash | Self::Rendezvous | Self::Maglev)
    }

    /// Whether weights decide the share; the others use them only to leave weight 0 out.
    pub fn is_weighted(&self) -> bool {
        !matches!(self, Self::Random | Self::RoundRobin | Self::SeataConsistentHash | Self::Xid)
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WeightedRandom => "weighted-random",
            Self::Random => "random",
            Self::RoundRobin => "round-robin",
            Self::SmoothWeightedRoundRobin => "smooth-weighted-round-robin",
            Self::ConsistentHash => "consistent-hash",
            Self::SeataConsistentHash => "seata-consistent-hash",
            Self::Rendezvous => "rendezvous",
            Self::Maglev => "maglev",
            Self::LeastActive => "least-active",
            Self::PeakEwma => "peak-ewma",
            Self::Xid => "xid",
            Self::Custom(name) => name,
        })
    }
}

/// Accepts our names and, ignoring case, Seata's (`RandomLoadBalance`, `XID`, …) and Dubbo's (`roundrobin`,
/// `leastactive`, …). Dubbo's `roundrobin` is weighted; its `random` is spelled like ours, which is not, so ours wins.
impl FromStr for Balance {
    type Err = UnknownBalance;

    fn from_str(name: &str) -> Result<Self, UnknownBalance> {
        Ok(match name.trim().to_ascii_lowercase().as_str() {
            "weighted-random" | "weightedrandom" | "weightedrandomloadbalance" | "aliasmethod" => Self::WeightedRandom,
            "random" | "randomloadbalance" => Self::Random,
            "round-robin" | "roundrobinloadbalance" => Self::RoundRobin,
            "smooth-weighted-round-robin" | "roundrobin" | "interleavedweightedroundrobin" => {
                Self::SmoothWeightedRoundRobin
            }
            "consistent-hash" | "consistenthash" | "consistenthashing" => Self::ConsistentHash,
            "seata-consistent-hash" | "consistenthashloadbalance" => Self::SeataConsistentHash,
            "rendezvous" => Self::Rendezvous,
            "maglev" => Self::Maglev,
            "least-active" | "leastactive" | "leastactiveloadbalance" => Self::LeastActive,
            "peak-ewma" | "shortestresponse" | "adaptive" | "p2c" => Self::PeakEwma,
            "xid" | "xidloadbalance" => Self::Xid,
            _ => return Err(UnknownBalance(name.to_owned())),
        })
    }
}

/// A balancer name nobody registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown balancer `{0}`")]
pub struct UnknownBalance(pub String);

/// Options of the hash balancers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HashOptions {
    /// No instance takes more than this factor times its fair share of what is in flight (Mirrokni et al. 2016); `None` is off.
    pub bounded_load: Option<f64>,
    /// Virtual nodes per instance of the Seata ring (`client.loadBalance.virtualNodes`, 10 there).
    pub seata_virtual_nodes: u32,
}

impl Default for HashOptions {
    fn default() -> Self {
        Self { bounded_load: None, seata_virtual_nodes: 10 }
    }
}

/// Which of the remaining instances come first.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Preference {
    /// The caller's own cluster first; others only when it has no usable instance.
    pub cluster: bool,
    /// The caller's own zone first.
    pub zone: Option<ZonePreference>,
}

/// How the caller's zone is preferred.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ZonePreference {
    /// Overprovisioning factor: the own zone keeps all traffic while `healthy fraction × overflow ≥ 1`, then the rest
    /// spills over (Envoy uses 1.4).
    pub overflow: f64,
    /// Never leave the own zone.
    pub strict: bool,
    /// Traffic by zone name instead of the own zone first; a zone not named here gets none while a named one can serve.
    pub weights: BTreeMap<Box<str>, f64>,
}

impl Default for ZonePreference {
    fn default() -> Self {
        Self { overflow: 1.4, strict: false, weights: BTreeMap::new() }
    }
}

/// Ramp for instances that appeared after the first list, from the moment this client first saw them ready.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Warmup {
    /// Length of the ramp.
    pub window: Duration,
    /// Factor at the start, 0 to 1.
    pub floor: f64,
    /// 1 is a straight line; larger values rise earlier (`(t / window)^(1 / aggression)`, as Envoy's slow start).
    pub aggression: f64,
}

impl Warmup {
    /// A straight ramp from 10 % over `window`.
    pub fn over(window: Duration) -> Self {
        Self { window, floor: 0.1, aggression: 1.0 }
    }

    /// Factor on the weight of an instance that has been ready for `age`; 1 from the end of the window on.
    pub fn factor(&self, age: Duration) -> f64 {
        if age >= self.window {
            return 1.0;
        }
        let progress = age.as_secs_f64() / self.window.as_secs_f64();
        progress.powf(1.0 / self.aggression).max(self.floor).min(1.0)
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rule {
    /// Shown in reasons, explanations and metrics.
    pub name: String,
    /// Runs only when this holds; reads `$caller` and `$req` alone. Absent: always.
    pub when: Option<Expr>,
    /// Which instances to keep.
    pub filter: Filter,
    /// Mandatory or wished for.
    pub mode: Mode,
    /// How many usable instances the rule needs to count as fulfilled.
    pub min_usable: MinUsable,
    /// Tried in order when it is not fulfilled, each against the rule's own input.
    pub on_empty: Vec<Fallback>,
    /// What happens when all of that fails. Absent is a lint error and means [`Terminal::Fail`].
    pub terminal: Option<Terminal>,
}

impl Rule {
    /// A `must` rule without condition, fallback or terminal.
    pub fn new(name: impl Into<String>, matches: Expr) -> Self {
        Self {
            name: name.into(),
            when: None,
            filter: Filter::Match(matches),
            mode: Mode::Must,
            min_usable: MinUsable::Count(1),
            on_empty: Vec::new(),
            terminal: None,
        }
    }

    /// The expression, unless a custom router decides.
    pub fn expr(&self) -> Option<&Expr> {
        match &self.filter {
            Filter::Match(expr) => Some(expr),
            Filter::Custom { .. } => None,
        }
    }
}

/// How a rule decides.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Filter {
    /// By expression.
    Match(Expr),
    /// By a router registered under this name; it gets the keys written beside it.
    Custom {
        /// Registered name.
        router: String,
        /// Its own configuration.
        config: BTreeMap<String, String>,
    },
}

/// Mandatory or wished for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Bounds every later rule and fallback.
    Must,
    /// Narrows only while something usable remains.
    Prefer,
}

/// When a rule counts as fulfilled.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum MinUsable {
    /// At least this many usable instances; 0: matching is enough, usable or not.
    Count(usize),
    /// At least this percentage (0 to 100) of the matching instances with weight must be usable, and at least one.
    Percent(f64),
}

/// A wider choice for a rule that is not fulfilled.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Fallback {
    /// Another expression.
    Match(Expr),
    /// The rule's expression without its comparisons on these keys.
    DropKeys(Vec<String>),
    /// Instances that have none of these keys.
    LackingAll(Vec<String>),
    /// Instances that lack at least one of these keys.
    LackingAny(Vec<String>),
}

/// The end of a rule's list of fallbacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Terminal {
    /// Pass on the rule's input.
    Any,
    /// No instance.
    Fail,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balancer_names_round_trip_and_aliases_are_known() {
        for name in Balance::NAMES {
            assert_eq!(name.parse::<Balance>().unwrap().to_string(), name);
        }
        assert_eq!("RandomLoadBalance".parse(), Ok(Balance::Random));
        assert_eq!("XID".parse(), Ok(Balance::Xid));
        assert_eq!("WeightedRandomLoadBalance".parse(), Ok(Balance::WeightedRandom));
        assert_eq!("leastactive".parse(), Ok(Balance::LeastActive));
        // All of Dubbo's, in Java and in Go.
        for (theirs, ours) in [
            ("random", Balance::Random),
            ("roundrobin", Balance::SmoothWeightedRoundRobin),
            ("leastactive", Balance::LeastActive),
            ("consistenthash", Balance::ConsistentHash),
            ("shortestresponse", Balance::PeakEwma),
            ("adaptive", Balance::PeakEwma),
            ("p2c", Balance::PeakEwma),
            ("consistenthashing", Balance::ConsistentHash),
            ("aliasmethod", Balance::WeightedRandom),
            ("interleavedWeightedRoundRobin", Balance::SmoothWeightedRoundRobin),
        ] {
            assert_eq!(theirs.parse(), Ok(ours), "{theirs}");
        }
        assert!("fastest".parse::<Balance>().is_err());
    }

    /// `routing.md` 5.8: slow start 60 s, minimum 10 %.
    #[test]
    fn golden_slow_start_factors() {
        let at = |aggression, s| {
            Warmup { aggression, ..Warmup::over(Duration::from_secs(60)) }.factor(Duration::from_secs(s))
        };
        for (seconds, expected) in [(3, 0.10), (6, 0.10), (15, 0.25), (30, 0.50), (60, 1.0), (600, 1.0)] {
            assert!((at(1.0, seconds) - expected).abs() < 1e-9, "{seconds}");
        }
        for (seconds, expected) in [(3, 0.22), (6, 0.32), (15, 0.50), (30, 0.71)] {
            assert!((at(2.0, seconds) - expected).abs() < 5e-3, "{seconds}");
        }
    }
}
