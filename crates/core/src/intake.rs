//! The one gate between a registry and the routing tables: validation, and a guard against pushes that would wipe a
//! working list.
//!
//! Registries deliver what they saw and how fresh it is; nothing else filters or doubts a list. An instance that cannot
//! be used is rejected and counted, never the list with it. A list that is suddenly empty, or lost more than half of
//! its members at once, is held back for a bounded time while the last good list keeps serving (nacos #4470, #10323);
//! the time is visible and the guard has one switch.

use std::time::Duration;

use crate::instance::{Defect, Instance, InstanceId};

/// What a registry saw.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// The whole list. Order does not matter.
    Snapshot(Vec<Instance>),
    /// Changes against the list the selector already has: instances added or replaced by id, ids removed.
    Delta {
        /// Added, or replaced by id.
        upsert: Vec<Instance>,
        /// Gone; an unknown id is ignored.
        remove: Vec<InstanceId>,
    },
    /// The registry answers and knows no such service.
    UnknownService,
    /// Every instance was taken away on purpose (an explicit deregistration we made ourselves, an operator): believed
    /// at once, whatever the guard thinks.
    Emptied,
}

/// How far the source of the current list can be trusted right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Freshness {
    /// The registry confirmed the list recently.
    #[default]
    Fresh,
    /// The list is older than it should be, or comes from the disk cache.
    Stale,
    /// The registry cannot be reached; the last good list serves.
    Unreachable,
}

/// When to doubt a push.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct GuardOptions {
    /// The one switch: off believes every push at once.
    pub enabled: bool,
    /// Largest part (0 to 1) of the list that one push may take away without being doubted.
    pub max_shrink: f64,
    /// Shrinking is doubted only from lists of at least this many instances; small services scale down legitimately.
    pub shrink_from: usize,
    /// How long a doubted push is held back before it is believed after all.
    pub confirm_after: Duration,
    /// Changes within this time of a publication are merged into the next one; zero publishes each at once.
    pub merge_window: Duration,
}

impl Default for GuardOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            max_shrink: 0.5,
            shrink_from: 4,
            confirm_after: Duration::from_secs(30),
            merge_window: Duration::from_millis(100),
        }
    }
}

impl GuardOptions {
    /// Believes and publishes every push at once: for lists that are edited by hand and for tests.
    pub fn off() -> Self {
        Self { enabled: false, merge_window: Duration::ZERO, ..Self::default() }
    }
}

/// Why a push is being held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hold {
    /// The new list is empty.
    Empty,
    /// The new list lost too many instances at once.
    Shrink {
        /// Instances before.
        from: usize,
        /// Instances in the doubted list.
        to: usize,
    },
}

/// A doubted list, waiting to be confirmed.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) why: Hold,
    pub(crate) since: Duration,
    pub(crate) list: Vec<Instance>,
    pub(crate) unknown_service: bool,
}

impl GuardOptions {
    /// Whether a list of `to` instances, arriving when `from` are served, must be held back.
    pub(crate) fn doubt(&self, from: usize, to: usize) -> Option<Hold> {
        if !self.enabled || from == 0 {
            return None;
        }
        if to == 0 {
            return Some(Hold::Empty);
        }
        let lost = from.saturating_sub(to) as f64 / from as f64;
        (from >= self.shrink_from && lost > self.max_shrink).then_some(Hold::Shrink { from, to })
    }
}

/// Most instances of one service.
pub const INSTANCES_MAX: usize = 1_000_000;

/// Examples of rejected instances kept for people to look at.
const EXAMPLES_MAX: usize = 16;

/// Instances that were left out, counted over the life of a selector.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Rejects {
    /// All of them.
    pub count: u64,
    /// The latest few, oldest first.
    pub examples: Vec<(InstanceId, Defect)>,
}

impl Rejects {
    fn add(&mut self, id: InstanceId, defect: Defect) {
        self.count += 1;
        if self.examples.len() == EXAMPLES_MAX {
            self.examples.remove(0);
        }
        self.examples.push((id, defect));
    }

    /// The usable part of a list in id order; the first of several instances with one id is kept.
    pub(crate) fn sift(&mut self, mut list: Vec<Instance>) -> Vec<Instance> {
        // Lists usually come in some order already, which a stable sort takes one pass to notice.
        list.sort_by(|a, b| a.id.cmp(&b.id));
        let mut good: Vec<Instance> = Vec::with_capacity(list.len());
        for instance in list {
            let defect = match instance.defect() {
                None if good.len() == INSTANCES_MAX => Some(Defect::TooMany(INSTANCES_MAX)),
                None if good.last().is_some_and(|last| last.id == instance.id) => Some(Defect::DuplicateId),
                defect => defect,
            };
            match defect {
                None => good.push(instance),
                Some(defect) => self.add(instance.id, defect),
            }
        }
        good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubts_empty_and_collapsing_lists_only() {
        let guard = GuardOptions::default();
        assert_eq!(guard.doubt(12, 0), Some(Hold::Empty));
        assert_eq!(guard.doubt(100, 35), Some(Hold::Shrink { from: 100, to: 35 }));
        assert_eq!(guard.doubt(100, 50), None);
        assert_eq!(guard.doubt(40, 35), None);
        assert_eq!(guard.doubt(3, 1), None, "small services shrink legitimately");
        assert_eq!(guard.doubt(0, 0), None);
        assert_eq!(GuardOptions::off().doubt(12, 0), None);
    }

    #[test]
    fn one_bad_instance_never_takes_the_list_with_it() {
        let good = Instance::new("a:1".parse().unwrap());
        let mut rejects = Rejects::default();
        let kept = rejects.sift(vec![
            good.clone(),
            good.clone().with_weight(f64::NAN).with_id("nan"),
            good.clone(),
            good.clone().with_id("b"),
        ]);
        assert_eq!(kept.iter().map(|i| i.id.as_str()).collect::<Vec<_>>(), ["a:1", "b"]);
        assert_eq!(rejects.count, 2);
        assert!(matches!(rejects.examples[0].1, Defect::DuplicateId));
    }
}
