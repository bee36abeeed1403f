//! The keeper against a registry that fails in every way a registry can, checked by one law: once nobody wishes anything
//! more, the registry holds what was wished last, and nothing else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metaroute_core::instance::{Instance, InstanceId};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::driver::{Answer, Lease, Renewal};

/// What one id is asked to be.
#[derive(Clone, Debug)]
enum Op {
    Register(u8, u8),
    Update(u8, u8),
    Deregister(u8),
    Drop(u8),
    Wait(u16),
    /// The registry forgets everything it holds.
    Forget,
    /// The network is there or not.
    Reach(bool),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0..3_u8, any::<u8>()).prop_map(|(id, weight)| Op::Register(id, weight)),
        3 => (0..3_u8, any::<u8>()).prop_map(|(id, weight)| Op::Update(id, weight)),
        2 => (0..3_u8).prop_map(Op::Deregister),
        2 => (0..3_u8).prop_map(Op::Drop),
        4 => (0..20_000_u16).prop_map(Op::Wait),
        1 => Just(Op::Forget),
        1 => any::<bool>().prop_map(Op::Reach),
    ];
    prop::collection::vec(op, 1..40)
}

/// A registry that fails before or after it did what was asked, loses what it holds, and takes its time.
struct Faulty {
    state: Mutex<Held>,
}

struct Held {
    instances: BTreeMap<InstanceId, f64>,
    random: StdRng,
    reachable: bool,
    /// How many of ten calls fail.
    faults: u32,
    /// Calls under way, per id: two at once would be able to overtake each other.
    busy: BTreeMap<InstanceId, u32>,
    overlapped: bool,
}

enum Fate {
    Good,
    FailsBefore,
    FailsAfter,
}

impl Faulty {
    fn new(seed: u64) -> Arc<Self> {
        let random = StdRng::seed_from_u64(seed);
        let (instances, busy) = (BTreeMap::new(), BTreeMap::new());
        Arc::new(Self {
            state: Mutex::new(Held { instances, random, reachable: true, faults: 4, busy, overlapped: false }),
        })
    }

    fn with<T>(&self, what: impl FnOnce(&mut Held) -> T) -> T {
        what(&mut self.state.lock().unwrap())
    }

    /// Does something to an id, some time later, or not, or without saying so.
    async fn call(&self, id: &InstanceId, effect: impl FnOnce(&mut Held)) -> Result<(), DriverError> {
        let (fate, before, after) = self.with(|held| {
            let calls = held.busy.entry(id.clone()).or_default();
            *calls += 1;
            held.overlapped |= *calls > 1;
            let fate = match held.random.random_range(0..10) {
                n if n < held.faults / 2 => Fate::FailsBefore,
                n if n < held.faults => Fate::FailsAfter,
                _ => Fate::Good,
            };
            (fate, held.random.random_range(0..3000), held.random.random_range(0..3000))
        });
        tokio::time::sleep(Duration::from_millis(before)).await;
        let done = self.with(|held| {
            if !held.reachable || matches!(fate, Fate::FailsBefore) {
                return false;
            }
            effect(held);
            true
        });
        tokio::time::sleep(Duration::from_millis(after)).await;
        self.with(|held| {
            *held.busy.entry(id.clone()).or_default() -= 1;
            if done && held.reachable && matches!(fate, Fate::Good) {
                Ok(())
            } else {
                Err(DriverError::new(ErrorKind::Unreachable, "connection reset"))
            }
        })
    }
}

impl Driver for Arc<Faulty> {
    fn capabilities(&self) -> Capabilities {
        Capabilities { register: true, liveness: true, ..Capabilities::default() }
    }

    fn apply<'a>(&'a self, _: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(async move {
            let set = |held: &mut Held| {
                held.instances.insert(instance.id.clone(), instance.weight);
            };
            self.call(&instance.id, set).await?;
            Ok(Lease { renew_every: Some(Duration::from_secs(5)) })
        })
    }

    fn renew<'a>(&'a self, _: &'a str, instance: &'a Instance) -> Answer<'a, Renewal> {
        Box::pin(async move {
            let mut there = false;
            self.call(&instance.id, |held| there = held.instances.contains_key(&instance.id)).await?;
            Ok(if there { Renewal::Kept } else { Renewal::Lost })
        })
    }

    fn withdraw<'a>(&'a self, _: &'a str, id: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(async move {
            let remove = |held: &mut Held| {
                held.instances.remove(id);
            };
            self.call(id, remove).await
        })
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn watch<'a>(&'a self, _: &'a str, _: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(std::future::pending())
    }
}

fn instance(id: u8, weight: u8) -> Instance {
    Instance::new(format!("10.0.0.{id}:80").parse().unwrap()).with_weight(f64::from(weight))
}

async fn run(ops: Vec<Op>, seed: u64) {
    let faulty = Faulty::new(seed);
    let registry = Registry::new(Arc::clone(&faulty));
    let mut handles: BTreeMap<u8, Registration> = BTreeMap::new();
    let mut wanted: BTreeMap<InstanceId, f64> = BTreeMap::new();
    let mut leaving = Vec::new();
    for op in ops {
        match op {
            Op::Register(id, weight) => {
                let instance = instance(id, weight);
                wanted.insert(instance.id.clone(), instance.weight);
                // The old handle, if there is one, is dropped after it was taken over.
                handles.insert(id, registry.register("s", instance).unwrap());
            }
            Op::Update(id, weight) => {
                if let Some(handle) = handles.get(&id) {
                    let instance = instance(id, weight);
                    wanted.insert(instance.id.clone(), instance.weight);
                    handle.update(instance).unwrap();
                }
            }
            Op::Deregister(id) | Op::Drop(id) => {
                let Some(handle) = handles.remove(&id) else { continue };
                wanted.remove(&instance(id, 0).id);
                match op {
                    Op::Deregister(_) => leaving.push(tokio::spawn(handle.deregister())),
                    _ => drop(handle),
                }
                // A deregistration says what it wants when it is first polled, not when it is called.
                tokio::task::yield_now().await;
            }
            Op::Wait(millis) => tokio::time::sleep(Duration::from_millis(millis.into())).await,
            Op::Forget => faulty.with(|held| held.instances.clear()),
            Op::Reach(reachable) => faulty.with(|held| held.reachable = reachable),
        }
    }
    // The registry is well again. Whatever was under way finds that out within the longest wait and a renewal or two.
    faulty.with(|held| (held.reachable, held.faults) = (true, 0));
    tokio::time::sleep(Policy::default().wait_max() * 3).await;
    assert_eq!(faulty.with(|held| held.instances.clone()), wanted);
    for task in leaving {
        assert!(task.is_finished(), "a deregistration never ended");
    }
    assert!(!faulty.with(|held| held.overlapped), "two calls for one id at once");
    for (id, handle) in &handles {
        assert!(matches!(handle.state(), RegistrationState::Registered), "{id}: {:?}", handle.state());
    }
    assert_eq!(registry.shared.tasks().registrations.len(), wanted.len(), "keepers of nothing");
    assert!(registry.shutdown(Duration::from_secs(60)).await);
    assert_eq!(faulty.with(|held| held.instances.len()), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn the_registry_ends_with_what_was_wanted_last(ops in ops(), seed in any::<u64>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(run(ops, seed));
    }
}
