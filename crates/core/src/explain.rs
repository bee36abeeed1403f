//! Why every instance is where it is: the same evaluation as a pick, watched.

use std::sync::Arc;

use crate::bitset::BitSet;
use crate::choose::owner;
use crate::evaluate::Scratch;
use crate::instance::{Instance, InstanceId};
use crate::outcome::{NoPickReason, Reason, Stage, StageKind, StageOutcome};
use crate::plan::{AtomSource, Fixed, Selection, Step};
use crate::pool::{HashKey, Pool, Table, named};
use crate::request::Context;
use crate::rules::{Balance, Filter};
use crate::snapshot::Snapshot;
use crate::view::View;

/// Why every instance was kept or dropped, and how likely it is to be picked.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// Revision of the snapshot.
    pub revision: u64,
    /// The reason a pick would carry, or why there would be none.
    pub outcome: Result<Reason, NoPickReason>,
    /// What the probabilities mean for this balancer.
    pub basis: Basis,
    /// All instances in id order. Probabilities sum to 1, or all are 0 when nothing can be picked.
    pub instances: Vec<Explained>,
    /// Counts per stage, in order.
    pub stages: Vec<Stage>,
}

/// One instance of an [`Explanation`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explained {
    /// The instance.
    pub instance: Instance,
    /// Whether it can be picked.
    pub kept: bool,
    /// The stage that dropped it, or the last rule that kept it.
    pub stage: String,
    /// The rule that decided, if one did.
    pub rule: Option<String>,
    /// The comparison that decided, or `healthy`, `enabled`, `weight`, `cluster`.
    pub clause: Option<String>,
    /// What the instance has there; absent when the key is missing.
    pub value: Option<String>,
    /// Exact probability of a pick, 0 to 1.
    pub probability: f64,
}

/// What a probability is the probability of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Basis {
    /// The long-run share of picks.
    LongRun,
    /// The share of the key space: every key has one owner.
    KeySpace,
    /// The owner of the given key or session: one instance has probability 1.
    Key,
    /// The share while all have the same load.
    EqualLoad,
}

impl Basis {
    /// The stable code.
    pub fn code(self) -> &'static str {
        match self {
            Self::LongRun => "long_run_share",
            Self::KeySpace => "key_space_share",
            Self::Key => "key_owner",
            Self::EqualLoad => "equal_load_share",
        }
    }
}

/// Exact shares by instance.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Distribution {
    /// The reason a pick would carry, or why there would be none.
    pub outcome: Result<Reason, NoPickReason>,
    /// What the shares mean.
    pub basis: Basis,
    /// Every instance of the service in id order with its share.
    pub shares: Vec<(InstanceId, f64)>,
}

struct Watched {
    outcome: Result<Reason, NoPickReason>,
    basis: Basis,
    /// By slot.
    shares: Vec<f64>,
    pool: Pool,
    /// Candidates after each stage.
    trace: Vec<BitSet>,
    scratch: Scratch,
}

fn watch<C: Context + ?Sized>(snapshot: &Snapshot, request: &C) -> Watched {
    let view = &snapshot.view;
    let mut scratch = Scratch::default();
    let mut trace = Vec::new();
    let verdict = view.evaluate(request, true, &mut scratch, Some(&mut trace));
    let pool = Pool::build(view, verdict, &scratch, snapshot.nodes_per_weight, snapshot.pool.as_deref());
    let mut shares = vec![0.0; view.fleet.slots()];
    if let Some(entry) = owner(snapshot, &pool.owners, request, &[]) {
        let slot = view.fleet.find(entry.instance.id.as_str()).expect("an owner is a member of the fleet");
        shares[slot as usize] = 1.0;
        return Watched { outcome: Ok(Reason::Affinity), basis: Basis::Key, shares, pool, trace, scratch };
    }
    let basis = fill_shares(snapshot, &pool, request, &mut shares);
    Watched { outcome: verdict, basis, shares, pool, trace, scratch }
}

/// Exact shares by slot under the balancer.
fn fill_shares<C: Context + ?Sized>(snapshot: &Snapshot, pool: &Pool, request: &C, shares: &mut [f64]) -> Basis {
    let balance = &snapshot.view.plan.set.balance;
    let keyed = matches!(HashKey::of(request, || 0), HashKey::Text(_));
    let basis = match balance {
        Balance::LeastActive | Balance::PeakEwma => Basis::EqualLoad,
        _ if balance.needs_key() && keyed => Basis::Key,
        _ if balance.needs_key() => Basis::KeySpace,
        _ => Basis::LongRun,
    };
    if pool.verdict.is_err() {
        return basis;
    }
    match (&pool.table, &snapshot.full) {
        (Table::Hash(table), _) => {
            let allowed = |member: usize| pool.shares[member] > 0.0;
            if basis == Basis::Key {
                if let Some(member) = table.lookup(HashKey::of(request, || 0), allowed) {
                    shares[pool.slots[member] as usize] = 1.0;
                }
            } else {
                for (&slot, share) in pool.slots.iter().zip(table.shares(allowed)) {
                    shares[slot as usize] = share;
                }
            }
        }
        (_, Some((table, slots))) => {
            let allowed = |i: usize| pool.open.get(slots[i] as usize);
            if basis == Basis::Key {
                if let Some(i) = table.lookup(HashKey::of(request, || 0), allowed) {
                    shares[slots[i] as usize] = 1.0;
                }
            } else {
                for (&slot, share) in slots.iter().zip(table.shares(allowed)) {
                    shares[slot as usize] = share;
                }
            }
        }
        (Table::Custom(chooser), _) => {
            for (&slot, share) in pool.slots.iter().zip(chooser.shares()) {
                shares[slot as usize] = share;
            }
        }
        _ => {
            for (&slot, &share) in pool.slots.iter().zip(&pool.shares) {
                shares[slot as usize] = share;
            }
        }
    }
    basis
}

pub(crate) fn distribution<C: Context + ?Sized>(snapshot: &Snapshot, request: &C) -> Distribution {
    let watched = watch(snapshot, request);
    let fleet = &snapshot.view.fleet;
    let share = |&slot: &u32| (fleet.entry(slot).instance.id.clone(), watched.shares[slot as usize]);
    Distribution { outcome: watched.outcome, basis: watched.basis, shares: fleet.order.iter().map(share).collect() }
}

pub(crate) fn explain<C: Context + ?Sized>(snapshot: &Snapshot, request: &C) -> Explanation {
    let view = &snapshot.view;
    let watched = watch(snapshot, request);
    let stages = named(view, &watched.scratch.stages);
    let instances = view
        .fleet
        .order
        .iter()
        .map(|&slot| {
            let verdict = judge(view, request, &watched, &stages, slot);
            let probability = watched.shares[slot as usize];
            Explained {
                instance: view.fleet.entry(slot).instance.clone(),
                kept: probability > 0.0 || (watched.outcome.is_ok() && verdict.kept),
                stage: verdict.stage,
                rule: verdict.rule,
                clause: verdict.clause,
                value: verdict.value,
                probability,
            }
        })
        .collect();
    Explanation {
        revision: snapshot.revision,
        outcome: watched.outcome,
        basis: watched.basis,
        instances,
        stages: watched.pool.stages.to_vec(),
    }
}

#[derive(Default)]
struct Judgement {
    kept: bool,
    stage: String,
    rule: Option<String>,
    clause: Option<String>,
    value: Option<String>,
}

/// Finds the stage that dropped a slot, or the last one that had something to say about it.
fn judge<C: Context + ?Sized>(
    view: &View,
    request: &C,
    watched: &Watched,
    stages: &Arc<[Stage]>,
    slot: u32,
) -> Judgement {
    let at = slot as usize;
    let mut last = Judgement { kept: true, stage: "registry".into(), ..Judgement::default() };
    for ((tally, after), stage) in watched.scratch.stages.iter().zip(&watched.trace).zip(&**stages) {
        let inside = after.get(at);
        let found = match tally.kind {
            StageKind::Registry if inside => continue,
            StageKind::Registry => why_unfit(view, slot),
            StageKind::Usable if inside => continue,
            StageKind::Usable => why_unfit(view, slot),
            StageKind::Cluster => {
                let cluster = &view.fleet.entry(slot).instance.cluster;
                let own = view.plan.own("cluster").unwrap_or_default();
                Judgement {
                    clause: Some(format!("$self.cluster == {own}")),
                    value: (!cluster.is_empty()).then(|| cluster.to_string()),
                    ..Judgement::default()
                }
            }
            StageKind::Rule(rule) => {
                let step =
                    view.plan.steps.iter().find(|step| step.rule == rule).expect("a tally names a step of the plan");
                decide(view, request, step, tally.outcome, slot)
            }
        };
        let judgement = Judgement { kept: inside, stage: stage.name.to_string(), ..found };
        if !inside {
            return judgement;
        }
        last = judgement;
    }
    last
}

/// Which comparison of a rule decided about a slot.
fn decide<C: Context + ?Sized>(view: &View, request: &C, step: &Step, outcome: StageOutcome, slot: u32) -> Judgement {
    let rule = &view.plan.set.rules[step.rule];
    let mut judgement = Judgement { rule: Some(rule.name.clone()), ..Judgement::default() };
    let selection = match outcome {
        StageOutcome::Fallback(n) => &step.fallbacks[n],
        _ => &step.filter,
    };
    let (program, atoms) = match selection {
        Selection::Request { program, atoms } => (program, atoms),
        Selection::Fixed(number) => match &view.plan.fixed[*number] {
            Fixed::Program { program, atoms } => (program, atoms),
            Fixed::Lacking { keys, all } => {
                let names = keys.iter().map(|key| view.plan.keys.keys()[key.0 as usize].to_string());
                let names: Vec<String> = names.collect();
                let word = if *all { "lacking_all" } else { "lacking_any" };
                judgement.clause = Some(format!("{word}({})", names.join(", ")));
                return judgement;
            }
        },
        Selection::Custom(_) => {
            if let Filter::Custom { router, .. } = &rule.filter {
                judgement.clause = Some(format!("router {router}"));
            }
            return judgement;
        }
    };
    let record = view.fleet.record(slot);
    let values = view.plan.values(request);
    let dropped = |i: usize| matches!(atoms[i], AtomSource::Dropped);
    if let Some(atom) = program.decide(&record, &values).atom.filter(|&atom| !dropped(atom)) {
        judgement.clause = Some(program.atom_text(atom).to_owned());
        let value = program.atoms()[atom].key().and_then(|key| metaroute_expr::Record::get(&record, key));
        judgement.value = value.map(|value| value.to_string());
    }
    judgement
}

/// What keeps a candidate from being usable.
fn why_unfit(view: &View, slot: u32) -> Judgement {
    let at = slot as usize;
    let instance = &view.fleet.entry(slot).instance;
    let (clause, value) = if !instance.enabled {
        ("enabled", "false".to_owned())
    } else if !instance.healthy {
        ("healthy", "false".to_owned())
    } else if view.half_open.get(at) {
        ("ejected", "half_open".to_owned())
    } else if view.ejected.get(at) {
        ("ejected", "true".to_owned())
    } else if !view.weighted.get(at) {
        ("weight", view.weights[at].to_string())
    } else {
        let place = &instance.locality;
        ("zone", if place.zone.is_empty() { place.region.to_string() } else { place.zone.to_string() })
    };
    Judgement { clause: Some(clause.into()), value: Some(value), ..Judgement::default() }
}
