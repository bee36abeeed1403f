//! Which copy of a shard to ask.
//!
//! Copies are instances of the service [`SERVICE`] with the metadata `group`, `shard` and `state`, and they are picked by
//! the same routing core that picks instances of any other service: a `must` rule on those three, terminal `fail`, two
//! choices by load, the own zone first. Nothing is relaxed and nothing is widened: a copy of another shard has other
//! rows. Registry metadata is for finding copies only; what a shard owns the shard itself decides.

use std::collections::BTreeMap;
use std::time::Instant;

use metaroute_core::expr::{Expr, Type};
use metaroute_core::rules::{Balance, ZonePreference};
use metaroute_core::{
    Address, Context, Explanation, GuardOptions, Instance, InstanceId, NoPick, NoPickReason, Options, OwnedPick,
    RequestSlot, RuleSet, Selector, Update,
};

use crate::protocol::{ShardId, ShardState};
use crate::topology::Topology;

/// Name of the service whose instances are copies of shards.
pub const SERVICE: &str = "metaserver";

/// A copy of a shard as a registry shows it: metadata `group`, `shard`, `state`, and the zone as locality.
pub fn instance(address: Address, shard: &ShardId, state: ShardState, zone: Option<&str>) -> Instance {
    let instance = Instance::new(address)
        .with_meta("group", &*shard.group)
        .with_meta("shard", &*shard.shard)
        .with_meta("state", state.name());
    match zone {
        // Once for people and rules, once for the zone preference.
        Some(zone) => instance.with_meta("zone", zone).with_zone(zone),
        None => instance,
    }
}

/// The shard an instance says it is a copy of; `None` where the metadata is missing.
pub fn shard_of(instance: &Instance) -> Option<ShardId> {
    let text = |key: &str| instance.metadata.get(key).map(|value| value.to_text());
    Some(ShardId::new(&*text("group")?, &*text("shard")?))
}

/// The state an instance says it is in.
pub fn state_of(instance: &Instance) -> Option<ShardState> {
    instance.metadata.get("state")?.to_text().parse().ok()
}

/// The copies named in a topology document, as ready instances: for deployments without a registry.
pub fn static_instances(topology: &Topology) -> Vec<Instance> {
    let of = |shard: &crate::topology::Shard| {
        let id = shard.id.clone();
        let one = move |replica: &crate::topology::ReplicaEntry| {
            let address = replica.address.parse().ok()?;
            Some(instance(address, &id, ShardState::Ready, replica.zone.as_deref()))
        };
        shard.replicas.iter().filter_map(one).collect::<Vec<_>>()
    };
    topology.shards().flat_map(of).collect()
}

/// Why no copy can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoReplica {
    /// None is known.
    Unknown(String),
    /// There are some, in other states than ready.
    NotReady(ShardState),
    /// All were tried.
    Exhausted,
}

/// The copies of all shards. Cheap to clone; clones share everything.
#[derive(Clone, Debug)]
pub struct Replicas {
    selector: Selector,
    /// The same without the zone preference, for the copies that are left when those of the own zone were tried.
    anywhere: Option<Selector>,
    started: Instant,
    slots: (RequestSlot, RequestSlot),
}

/// What a pick asks for.
struct Wanted<'a> {
    shard: &'a ShardId,
    slots: (RequestSlot, RequestSlot),
}

impl Context for Wanted<'_> {
    fn get(&self, slot: RequestSlot) -> Option<&str> {
        if slot == self.slots.0 {
            Some(&self.shard.group)
        } else if slot == self.slots.1 {
            Some(&self.shard.shard)
        } else {
            None
        }
    }
}

impl Replicas {
    /// No copy yet. `zone` is the caller's own; `seed` makes picks repeatable.
    pub fn new(zone: Option<&str>, seed: u64) -> Replicas {
        let rule = "group == $req.group && shard == $req.shard && state == READY";
        let mut rules = RuleSet::must(Expr::parse(rule).expect("a constant expression parses"));
        rules.balance = Balance::LeastActive;
        rules.reuse_tried = false;
        // Names such as `1` and `01` are names, not numbers.
        rules.types = ["group", "shard", "state"].map(|key| (key.to_owned(), Type::Text)).into();
        let mut options = Options { seed, guard: GuardOptions::off(), ..Options::default() };
        let make = |rules, options| Selector::new(rules, options).expect("the constant rule binds");
        let anywhere = zone.map(|zone| {
            let anywhere = make(rules.clone(), options.clone());
            rules.prefer.zone = Some(ZonePreference::default());
            options.caller = BTreeMap::from([("zone".to_owned(), zone.to_owned())]);
            anywhere
        });
        let selector = make(rules, options);
        // Both selectors have the same rule, so the slots are the same.
        let slot = |name| selector.slot(name).expect("the rule reads it");
        let slots = (slot("group"), slot("shard"));
        Replicas { started: Instant::now(), slots, selector, anywhere }
    }

    /// Takes what a registry saw.
    pub fn apply(&self, update: Update) {
        for selector in self.anywhere.iter().chain([&self.selector]) {
            selector.apply(update.clone(), self.started.elapsed());
            selector.tick(self.started.elapsed());
        }
    }

    /// The selector, for explanations and metrics.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Says for every known copy why it can or cannot be asked for this shard.
    pub fn explain(&self, shard: &ShardId) -> Explanation {
        self.selector.explain(&Wanted { shard, slots: self.slots })
    }

    pub(crate) fn pick(&self, shard: &ShardId, tried: &[InstanceId]) -> Result<OwnedPick, NoReplica> {
        for selector in self.anywhere.iter().chain([&self.selector]) {
            if selector.wants_tick() {
                selector.tick(self.started.elapsed());
            }
        }
        let wanted = Wanted { shard, slots: self.slots };
        let picked = match (self.selector.select_next(&wanted, tried), &self.anywhere) {
            (Err(none), Some(anywhere)) if none.reason == NoPickReason::Excluded => {
                anywhere.select_next(&wanted, tried)
            }
            (picked, _) => picked,
        };
        picked.map_err(|none| self.reason(shard, &none))
    }

    fn reason(&self, shard: &ShardId, none: &NoPick) -> NoReplica {
        if none.reason == NoPickReason::Excluded {
            return NoReplica::Exhausted;
        }
        // Only on the way to an error, so a walk over all instances is fine.
        let copies =
            self.selector.instances().into_iter().filter(|instance| shard_of(instance).as_ref() == Some(shard));
        let states = copies.filter_map(|instance| state_of(&instance));
        // The most hopeful state stands for the shard.
        let rank = |state: &ShardState| match state {
            ShardState::Ready => 4,
            ShardState::CatchingUp => 3,
            ShardState::Loading => 2,
            ShardState::Draining => 1,
            ShardState::Failed => 0,
        };
        match states.max_by_key(rank) {
            Some(state) if !state.is_ready() => NoReplica::NotReady(state),
            _ => NoReplica::Unknown(none.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(port: u16, group: &str, shard: &str, state: ShardState, zone: Option<&str>) -> Instance {
        let address = Address::new("127.0.0.1", port).expect("legal");
        instance(address, &ShardId::new(group, shard), state, zone)
    }

    #[test]
    fn only_ready_copies_of_the_very_shard_are_picked() {
        let replicas = Replicas::new(None, 1);
        let list = vec![
            copy(1, "g0", "s0", ShardState::Ready, None),
            copy(2, "g0", "s1", ShardState::Ready, None),
            copy(3, "g1", "s0", ShardState::Ready, None),
            copy(4, "g0", "s0", ShardState::Loading, None),
        ];
        replicas.apply(Update::Snapshot(list));
        for _ in 0..100 {
            let pick = replicas.pick(&ShardId::new("g0", "s0"), &[]).expect("one is ready");
            assert_eq!(pick.instance().address.port(), 1);
        }
    }

    #[test]
    fn tried_copies_are_not_offered_again() {
        let replicas = Replicas::new(None, 1);
        let list = vec![copy(1, "g", "s", ShardState::Ready, None), copy(2, "g", "s", ShardState::Ready, None)];
        replicas.apply(Update::Snapshot(list));
        let shard = ShardId::new("g", "s");
        let first = replicas.pick(&shard, &[]).expect("two are ready").instance().id.clone();
        let second = replicas.pick(&shard, std::slice::from_ref(&first)).expect("one is left").instance().id.clone();
        assert_ne!(first, second);
        assert_eq!(replicas.pick(&shard, &[first, second]).err(), Some(NoReplica::Exhausted));
    }

    #[test]
    fn the_reason_tells_loading_from_unknown() {
        let replicas = Replicas::new(None, 1);
        let shard = ShardId::new("g", "s");
        assert!(matches!(replicas.pick(&shard, &[]).err(), Some(NoReplica::Unknown(_))));
        let list = vec![copy(1, "g", "s", ShardState::Failed, None), copy(2, "g", "s", ShardState::Loading, None)];
        replicas.apply(Update::Snapshot(list));
        assert_eq!(replicas.pick(&shard, &[]).err(), Some(NoReplica::NotReady(ShardState::Loading)));
        assert!(matches!(replicas.pick(&ShardId::new("g", "t"), &[]).err(), Some(NoReplica::Unknown(_))));
    }

    #[test]
    fn the_own_zone_comes_first() {
        let replicas = Replicas::new(Some("b"), 1);
        let list =
            vec![copy(1, "g", "s", ShardState::Ready, Some("a")), copy(2, "g", "s", ShardState::Ready, Some("b"))];
        replicas.apply(Update::Snapshot(list));
        let shard = ShardId::new("g", "s");
        for _ in 0..50 {
            assert_eq!(replicas.pick(&shard, &[]).expect("ready").instance().address.port(), 2);
        }
        let tried = replicas.pick(&shard, &[]).expect("ready").instance().id.clone();
        assert_eq!(replicas.pick(&shard, &[tried]).expect("the other zone").instance().address.port(), 1);
    }

    #[test]
    fn names_are_compared_as_text() {
        let replicas = Replicas::new(None, 1);
        replicas.apply(Update::Snapshot(vec![copy(1, "1", "01", ShardState::Ready, None)]));
        assert!(replicas.pick(&ShardId::new("1", "1"), &[]).is_err());
        assert!(replicas.pick(&ShardId::new("1", "01"), &[]).is_ok());
    }
}
