//! What changed since the last look, so that each change of state is one log line and nothing is logged per pick.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use metaroute_core::{Hold, Instance, InstanceId, Metrics, Selector, StageOutcome};

/// How long a rule whose fallbacks only show in counters stays active after the last of them. Longer than the pauses of
/// a caller that asks a few times a second, so that its rule does not flap.
const QUIET: Duration = Duration::from_secs(10);

/// Most ids named in one line.
const NAMED_MAX: usize = 8;

/// How one list differs from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) added: usize,
    pub(super) removed: usize,
    /// Same id, anything else different.
    pub(super) changed: usize,
}

impl Difference {
    pub(super) fn between(old: &[Instance], new: &[Instance]) -> Self {
        let mut before: HashMap<&InstanceId, &Instance> = old.iter().map(|instance| (&instance.id, instance)).collect();
        let mut difference = Self::default();
        for instance in new {
            match before.remove(&instance.id) {
                None => difference.added += 1,
                Some(old) => difference.changed += usize::from(old != instance),
            }
        }
        difference.removed = before.len();
        difference
    }

    pub(super) fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// What was said last about everything that has a beginning and an end.
#[derive(Debug, Default)]
pub(super) struct Said {
    held: Option<Hold>,
    ejected: BTreeSet<InstanceId>,
    none_usable: bool,
    fallbacks: BTreeSet<String>,
    cross_cluster: bool,
    /// Fallbacks by rule at the last look, and when they last grew.
    counted: BTreeMap<String, (u64, Option<Duration>)>,
}

impl Said {
    /// Starts counting anew, because the selector does with new rules.
    pub(super) fn rules_changed(&mut self) {
        self.counted.clear();
    }

    /// Compares with what is so now and says what began or ended. Returns the rules that fall back, in rule order.
    /// `fell` tells of a rule, by its index, whether a pick fell back since the last look.
    pub(super) fn look(
        &mut self,
        service: &str,
        selector: &Selector,
        metrics: &Metrics,
        fell: impl Fn(usize) -> bool,
        now: Duration,
    ) -> Vec<String> {
        self.held(service, metrics);
        self.usable(service, selector, metrics);
        self.ejections(service, selector, metrics);
        self.fallbacks(service, selector, metrics, fell, now)
    }

    fn held(&mut self, service: &str, metrics: &Metrics) {
        match (self.held, metrics.held) {
            (None, Some(Hold::Shrink { from, to })) => {
                tracing::warn!(service, from, to, "instances lost at once, the last good list is held");
            }
            (None, Some(_)) => {
                tracing::warn!(service, instances = metrics.instances, "an empty list came, the last good list is held")
            }
            (Some(_), None) => {
                tracing::info!(service, instances = metrics.instances, "the last good list is no longer held");
            }
            _ => {}
        }
        self.held = metrics.held;
    }

    fn usable(&mut self, service: &str, selector: &Selector, metrics: &Metrics) {
        let none = selector.is_resolved() && metrics.usable == 0;
        if none != self.none_usable {
            if none {
                tracing::warn!(service, instances = metrics.instances, "no instance is usable");
            } else {
                tracing::info!(service, usable = metrics.usable, "instances are usable again");
            }
            self.none_usable = none;
        }
    }

    fn ejections(&mut self, service: &str, selector: &Selector, metrics: &Metrics) {
        if metrics.ejected == 0 && self.ejected.is_empty() {
            return;
        }
        // Rare, so that looking at every instance is affordable.
        let ejected: BTreeSet<InstanceId> = selector
            .explain(&())
            .instances
            .into_iter()
            .filter(|explained| explained.clause.as_deref() == Some("ejected"))
            .map(|explained| explained.instance.id)
            .collect();
        let names = |set: &BTreeSet<InstanceId>, other: &BTreeSet<InstanceId>| -> Vec<String> {
            set.difference(other).take(NAMED_MAX).map(ToString::to_string).collect()
        };
        let (out, back) = (names(&ejected, &self.ejected), names(&self.ejected, &ejected));
        if !out.is_empty() {
            tracing::warn!(service, ids = ?out, ejected = metrics.ejected, "instances ejected for their failures");
        }
        if !back.is_empty() {
            tracing::info!(service, ids = ?back, ejected = metrics.ejected, "instances no longer ejected");
        }
        self.ejected = ejected;
    }

    fn fallbacks(
        &mut self,
        service: &str,
        selector: &Selector,
        metrics: &Metrics,
        fell: impl Fn(usize) -> bool,
        now: Duration,
    ) -> Vec<String> {
        let active: Vec<String> = if !selector.is_resolved() {
            Vec::new()
        } else if selector.depends_on_request() {
            self.counted(metrics, fell, now)
        } else {
            let stages = selector.stages(&());
            let crosses = stages.iter().any(|stage| stage.outcome == StageOutcome::CrossCluster);
            if crosses != self.cross_cluster {
                if crosses {
                    tracing::warn!(service, "the own cluster has no usable instance, others serve");
                } else {
                    tracing::info!(service, "the own cluster serves again");
                }
                self.cross_cluster = crosses;
            }
            let falls = |outcome| matches!(outcome, StageOutcome::Fallback(_) | StageOutcome::Relaxed);
            let rules = stages.iter().filter(|stage| falls(stage.outcome));
            rules.filter_map(|stage| stage.name.strip_prefix("rule:").map(str::to_owned)).collect()
        };
        let set: BTreeSet<String> = active.iter().cloned().collect();
        for rule in set.difference(&self.fallbacks) {
            tracing::warn!(service, rule, "fallback active");
        }
        for rule in self.fallbacks.difference(&set) {
            tracing::info!(service, rule, "fallback no longer active");
        }
        self.fallbacks = set;
        active
    }

    /// Rules whose fallbacks grew of late.
    fn counted(&mut self, metrics: &Metrics, fell: impl Fn(usize) -> bool, now: Duration) -> Vec<String> {
        let mut active = Vec::new();
        for (index, (rule, count)) in metrics.fallbacks.iter().enumerate() {
            let (last, grew) = self.counted.entry(rule.clone()).or_default();
            if fell(index) | (count > last) {
                *grew = Some(now);
            }
            *last = *count;
            if grew.is_some_and(|grew| now.saturating_sub(grew) < QUIET) {
                active.push(rule.clone());
            }
        }
        active
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_compared_by_id() {
        let of = |address: &str| Instance::new(address.parse().unwrap());
        let old = [of("a:1"), of("b:1"), of("c:1")];
        let new = [of("b:1"), of("c:1").with_weight(2.0), of("d:1"), of("e:1")];
        assert_eq!(Difference::between(&old, &new), Difference { added: 2, removed: 1, changed: 1 });
        assert!(Difference::between(&old, &old).is_none());
    }
}
