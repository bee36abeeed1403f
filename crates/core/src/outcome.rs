//! Why an instance was picked, or why none was.

use std::fmt;
use std::sync::Arc;

/// Why this instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Every rule found what it asked for.
    Matched,
    /// Rule `rule` (its index in the rule set) used its fallback number `step`, counted from 0.
    Fallback {
        /// Index of the rule as written.
        rule: u16,
        /// Which entry of its `on_empty`.
        step: u16,
    },
    /// Rule `rule` found nothing and passed its input on.
    Relaxed {
        /// Index of the rule as written.
        rule: u16,
    },
    /// The caller's cluster had no usable instance.
    CrossCluster,
    /// Every weight was zero and the rule set shares evenly then.
    AllZeroUniform,
    /// Too few were healthy, so health was ignored.
    Panic,
    /// All candidates had been tried already, so one is offered again.
    ExclusionRelaxed,
    /// The session belongs to this instance.
    Affinity,
}

impl Reason {
    /// Number of kinds, for arrays of counters.
    pub(crate) const KINDS: usize = 8;

    /// Position in arrays of counters, and rank: a later kind says more about the pick than an earlier one.
    pub(crate) fn kind(self) -> usize {
        match self {
            Self::Matched => 0,
            Self::Fallback { .. } => 1,
            Self::Relaxed { .. } => 2,
            Self::CrossCluster => 3,
            Self::AllZeroUniform => 4,
            Self::Panic => 5,
            Self::ExclusionRelaxed => 6,
            Self::Affinity => 7,
        }
    }

    /// The kind's name, without a number.
    pub(crate) const KIND_NAMES: [&'static str; Self::KINDS] = [
        "matched",
        "fallback",
        "relaxed",
        "cross_cluster",
        "all_zero_uniform",
        "panic",
        "exclusion_relaxed",
        "affinity",
    ];

    /// Takes the other reason if it says more.
    pub(crate) fn worsen(&mut self, other: Reason) {
        if other.kind() > self.kind() {
            *self = other;
        }
    }

    /// The rule that fell back or relaxed.
    pub fn rule(self) -> Option<usize> {
        match self {
            Self::Fallback { rule, .. } | Self::Relaxed { rule } => Some(usize::from(rule)),
            _ => None,
        }
    }
}

/// The stable code: `matched`, `fallback:N`, `relaxed`, …
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fallback { step, .. } => write!(f, "fallback:{step}"),
            other => f.write_str(Self::KIND_NAMES[other.kind()]),
        }
    }
}

/// Why no instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoPickReason {
    /// No registry has answered yet; waiting may help.
    Unresolved,
    /// The registry knows no such service.
    UnknownService,
    /// The service has no instance.
    EmptyRegistry,
    /// The rules left none.
    Filtered,
    /// Instances remain and none of them is healthy and enabled.
    AllUnhealthy,
    /// Healthy instances remain and all have weight 0.
    AllZeroWeight,
    /// Every candidate had been tried already.
    Excluded,
}

impl NoPickReason {
    /// Every reason, for counters and documentation.
    pub const ALL: [Self; 7] = [
        Self::Unresolved,
        Self::UnknownService,
        Self::EmptyRegistry,
        Self::Filtered,
        Self::AllUnhealthy,
        Self::AllZeroWeight,
        Self::Excluded,
    ];

    /// The stable code.
    pub fn code(self) -> &'static str {
        match self {
            Self::Unresolved => "unresolved",
            Self::UnknownService => "unknown_service",
            Self::EmptyRegistry => "empty_registry",
            Self::Filtered => "filtered",
            Self::AllUnhealthy => "all_unhealthy",
            Self::AllZeroWeight => "all_zero_weight",
            Self::Excluded => "excluded",
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Self::Unresolved => "no registry has answered yet",
            Self::UnknownService => "the registry knows no such service",
            Self::EmptyRegistry => "the service has no instance",
            Self::Filtered => "the rules left no instance",
            Self::AllUnhealthy => "no remaining instance is healthy and enabled",
            Self::AllZeroWeight => "every remaining instance has weight 0",
            Self::Excluded => "every candidate was tried already",
        }
    }
}

impl fmt::Display for NoPickReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// One step of the way from all instances to the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StageKind {
    Registry,
    Rule(usize),
    Cluster,
    Usable,
}

/// Counts of one step, before it gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StageTally {
    pub(crate) kind: StageKind,
    pub(crate) entered: usize,
    pub(crate) matched: usize,
    pub(crate) usable: usize,
    pub(crate) left: usize,
    pub(crate) outcome: StageOutcome,
}

/// What a stage did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StageOutcome {
    /// It kept what it matched.
    Matched,
    /// It kept what its fallback of this number matched.
    Fallback(usize),
    /// It found nothing and passed its input on.
    Relaxed,
    /// It found nothing usable in the own cluster and kept the others.
    CrossCluster,
    /// It left nothing.
    Failed,
}

/// One step of the way from all instances to the candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stage {
    /// `registry`, `rule:NAME`, `cluster` or `usable`.
    pub name: Arc<str>,
    /// Candidates before it.
    pub entered: usize,
    /// How many of them it matched by itself, usable or not.
    pub matched: usize,
    /// How many of those were usable.
    pub usable: usize,
    /// Candidates after it, fallbacks included.
    pub left: usize,
    /// What it did.
    pub outcome: StageOutcome,
}

/// No instance, and where they went.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoPick {
    /// The stable reason.
    pub reason: NoPickReason,
    /// Revision of the snapshot that was asked.
    pub revision: u64,
    /// Counts per stage, in order; the last one emptied the set.
    pub stages: Arc<[Stage]>,
}

impl fmt::Display for NoPick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason.sentence())?;
        if let Some(last) = self.stages.last()
            && last.entered > 0
        {
            write!(f, " ({}: {} in, {} matched, {} usable)", last.name, last.entered, last.matched, last.usable)?;
        }
        Ok(())
    }
}

impl std::error::Error for NoPick {}

/// How a call to the picked instance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It answered.
    Success,
    /// It failed in a way that speaks against the instance: refused, reset, timed out, an error of the server.
    Failure,
}
