//! Candidates with everything a pick needs, built once per change and never changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::alias::AliasTable;
use crate::bitset::BitSet;
use crate::evaluate::{Scratch, Verdict};
use crate::extension::Chooser;
use crate::fleet::{Entry, State};
use crate::hash::{Maglev, Member, Rendezvous, Ring, SeataRing, hash_key, nodes_per_weight};
use crate::instance::Instance;
use crate::outcome::{Reason, Stage, StageKind, StageTally};
use crate::request::{Affinity, Context};
use crate::rules::{Balance, HashOptions};
use crate::view::View;

/// The candidates of one request, or of all requests when no rule reads any.
pub(crate) struct Pool {
    pub(crate) verdict: Verdict,
    /// In id order.
    pub(crate) entries: Box<[Arc<Entry>]>,
    pub(crate) slots: Box<[u32]>,
    /// Sums to 1 over the open members.
    pub(crate) shares: Box<[f64]>,
    /// Whether all open members have the same share.
    pub(crate) even: bool,
    pub(crate) alias: AliasTable,
    pub(crate) table: Table,
    /// Slots of open members; filled where the hash table spans the whole service.
    pub(crate) open: BitSet,
    /// Half-open candidates: each is offered to one caller at a time.
    pub(crate) probes: BitSet,
    /// A draw from the alias table is the whole pick.
    pub(crate) plain: bool,
    /// The kind of every such pick, for counting.
    pub(crate) kind: usize,
    pub(crate) owners: BitSet,
    pub(crate) stages: Arc<[Stage]>,
}

/// What the balancer prepared.
pub(crate) enum Table {
    /// The alias table and state of the picker are enough.
    None,
    Hash(Arc<HashTable>),
    Custom(Box<dyn Chooser>),
}

/// A hash structure and the members it was built for; kept over snapshots while those stay the same.
pub(crate) struct HashTable {
    members: Box<[(Box<str>, f64)]>,
    nodes_per_weight: f64,
    form: HashForm,
}

enum HashForm {
    Ring(Ring),
    Seata(SeataRing),
    Rendezvous(Rendezvous),
    Maglev(Maglev, Rendezvous),
}

impl HashTable {
    pub(crate) fn build(
        balance: &Balance,
        options: &HashOptions,
        members: &[(&Instance, f64)],
        nodes_per_weight: f64,
    ) -> Self {
        let list: Vec<Member<'_>> =
            members.iter().map(|(instance, weight)| Member { id: instance.id.as_str(), weight: *weight }).collect();
        let form = match balance {
            Balance::ConsistentHash => HashForm::Ring(Ring::new(&list, nodes_per_weight)),
            Balance::SeataConsistentHash => {
                let addresses = members.iter().map(|(instance, _)| &instance.address);
                HashForm::Seata(SeataRing::new(addresses, options.seata_virtual_nodes))
            }
            Balance::Maglev => HashForm::Maglev(Maglev::new(&list), Rendezvous::new(&list)),
            _ => HashForm::Rendezvous(Rendezvous::new(&list)),
        };
        let members = members.iter().map(|(instance, weight)| (instance.id.as_str().into(), *weight)).collect();
        Self { members, nodes_per_weight, form }
    }

    pub(crate) fn fits(&self, members: &[(&Instance, f64)], nodes_per_weight: f64) -> bool {
        self.nodes_per_weight == nodes_per_weight
            && self.members.len() == members.len()
            && self
                .members
                .iter()
                .zip(members)
                .all(|((id, w), (instance, weight))| **id == *instance.id.as_str() && w == weight)
    }

    /// The member a key belongs to among the allowed ones.
    pub(crate) fn lookup(&self, key: HashKey<'_>, allowed: impl Fn(usize) -> bool + Copy) -> Option<usize> {
        match &self.form {
            HashForm::Ring(ring) => ring.lookup(key.number(), allowed),
            HashForm::Rendezvous(scores) => scores.lookup(key.number(), allowed),
            HashForm::Maglev(maglev, scores) => {
                maglev.lookup(key.number(), allowed).or_else(|| scores.lookup(key.number(), allowed))
            }
            HashForm::Seata(ring) => match key {
                HashKey::Text(text) => ring.lookup(&String::from_utf8_lossy(text), allowed),
                HashKey::Number(number) => ring.lookup(Decimal::new(number >> 1).as_str(), allowed),
            },
        }
    }

    /// Exact shares of the key space.
    pub(crate) fn shares(&self, allowed: impl Fn(usize) -> bool + Copy) -> Vec<f64> {
        let n = self.members.len();
        match &self.form {
            HashForm::Ring(ring) => ring.shares(n, allowed),
            HashForm::Seata(ring) => ring.shares(n, allowed),
            HashForm::Rendezvous(_) => self.weight_shares(allowed),
            HashForm::Maglev(maglev, _) => {
                // A key whose probes all meet members that are out is decided by rendezvous.
                let missed = maglev.missed(allowed);
                let probed = maglev.shares(allowed).into_iter().zip(self.weight_shares(allowed));
                probed.map(|(probed, scored)| probed * (1.0 - missed) + scored * missed).collect()
            }
        }
    }

    fn weight_shares(&self, allowed: impl Fn(usize) -> bool + Copy) -> Vec<f64> {
        let weight = |i: usize| if allowed(i) { self.members[i].1 } else { 0.0 };
        let total: f64 = (0..self.members.len()).map(weight).sum();
        (0..self.members.len()).map(|i| if total > 0.0 { weight(i) / total } else { 0.0 }).collect()
    }
}

/// What is hashed: the caller's key, or a random number where it gave none.
#[derive(Clone, Copy)]
pub(crate) enum HashKey<'a> {
    Text(&'a [u8]),
    Number(u64),
}

impl<'a> HashKey<'a> {
    pub(crate) fn of<C: Context + ?Sized>(request: &'a C, draw: impl FnOnce() -> u64) -> Self {
        match (request.key(), request.affinity()) {
            (Some(key), _) => Self::Text(key),
            (None, Some(Affinity::Xid(xid))) => Self::Text(xid.as_bytes()),
            _ => Self::Number(draw()),
        }
    }

    fn number(self) -> u64 {
        match self {
            Self::Text(key) => hash_key(key),
            Self::Number(number) => number,
        }
    }
}

/// A 64-bit number as decimal text on the stack: Seata hashes a random key as its digits.
struct Decimal {
    digits: [u8; 20],
    start: usize,
}

impl Decimal {
    fn new(mut number: u64) -> Self {
        let mut decimal = Self { digits: [b'0'; 20], start: 20 };
        loop {
            decimal.start -= 1;
            decimal.digits[decimal.start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return decimal;
            }
        }
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.digits[self.start..]).expect("digits are ASCII")
    }
}

impl Pool {
    /// Turns the evaluation left in `scratch` into a pool. `former` lends its hash table when that still fits.
    pub(crate) fn build(
        view: &View,
        verdict: Verdict,
        scratch: &Scratch,
        nodes_per_weight: f64,
        former: Option<&Pool>,
    ) -> Self {
        let plan = &view.plan;
        let entries: Box<[Arc<Entry>]> =
            scratch.members.iter().map(|&slot| Arc::clone(view.fleet.entry(slot))).collect();
        let mut probes = BitSet::default();
        if !view.half_open.is_empty() {
            probes.copy_from(&scratch.probes);
            probes.and(&view.half_open);
            probes.and(&view.fleet.enabled);
            probes.and(&view.fleet.healthy);
            if probes.is_empty() {
                // No words at all, so that asking again costs nothing.
                probes = BitSet::default();
            }
        }
        let shares: Box<[f64]> = scratch.shares.as_slice().into();
        let total: f64 = scratch.members.iter().map(|&slot| view.weights[slot as usize]).sum();
        let table = if plan.set.balance.needs_key() && !entries.is_empty() && (plan.is_fixed() || total == 0.0) {
            // Tiers decide how much each member weighs; without any, the plain weight keeps the table stable.
            let plain = scratch.one_tier(view);
            let members: Vec<(&Instance, f64)> = scratch
                .members
                .iter()
                .zip(&entries)
                .zip(&shares)
                .map(|((&slot, entry), &share)| {
                    let weight = match (total > 0.0, plain) {
                        (false, _) => 1.0,
                        (true, true) => view.weights[slot as usize],
                        (true, false) => share * total,
                    };
                    (&entry.instance, weight)
                })
                .collect();
            let nodes_per_weight = if total > 0.0 { nodes_per_weight } else { even_nodes(members.len()) };
            match former.map(|pool| &pool.table) {
                Some(Table::Hash(table)) if table.fits(&members, nodes_per_weight) => Table::Hash(Arc::clone(table)),
                _ => Table::Hash(Arc::new(HashTable::build(
                    &plan.set.balance,
                    &plan.set.hash,
                    &members,
                    nodes_per_weight,
                ))),
            }
        } else if let Some(balancer) = &plan.balancer
            && !entries.is_empty()
        {
            let members: Vec<&Instance> = entries.iter().map(|entry| &entry.instance).collect();
            Table::Custom(balancer.prepare(&members, &shares))
        } else {
            Table::None
        };
        let mut open = BitSet::default();
        if plan.set.balance.needs_key() && !plan.is_fixed() {
            open = scratch.open_members(view.fleet.slots(), open);
        }
        let no_probes = probes.is_empty();
        Self {
            verdict,
            open,
            slots: scratch.members.as_slice().into(),
            even: scratch.has_even_shares(),
            alias: AliasTable::new(&shares),
            shares,
            table,
            probes,
            kind: verdict.map_or(0, Reason::kind),
            plain: verdict.is_ok_and(|reason| reason.rule().is_none())
                && no_probes
                && matches!(plan.set.balance, Balance::WeightedRandom | Balance::Random | Balance::Xid),
            owners: scratch.owners.clone(),
            stages: named(view, &scratch.stages),
            entries,
        }
    }
}

/// Nodes of each member of a ring whose members all weigh 1.
pub(crate) fn even_nodes(members: usize) -> f64 {
    nodes_per_weight(std::iter::repeat_n(1.0, members))
}

/// Work in flight per weight, as the least-active balancer compares it: Envoy's weighted least request, inverted.
pub(crate) fn active_load(state: &State, share: f64) -> f64 {
    load(state.in_flight.load(Ordering::Relaxed), share)
}

/// Expected wait of a new request, as peak EWMA compares it. Without a sample an idle member costs nothing, so that a
/// newcomer is tried at once, and a busy one costs more than any measured one, so that it is not flooded (tower #134).
pub(crate) fn expected_wait(state: &State) -> f64 {
    let active = state.in_flight.load(Ordering::Relaxed);
    match state.latency() {
        0 if active == 0 => 0.0,
        0 => f64::INFINITY,
        latency => latency as f64 * f64::from(active + 1),
    }
}

/// `(active + 1) / weight`; 0 while idle, so that idle members are chosen by weight alone.
fn load(active: u32, weight: f64) -> f64 {
    if active == 0 { 0.0 } else { (f64::from(active) + 1.0) / weight }
}

impl Scratch {
    /// Whether at most one tier carries traffic, all of its open members by plain weight.
    fn one_tier(&self, view: &View) -> bool {
        let mut tiers =
            self.members.iter().zip(&self.open).filter(|&(_, &open)| open).map(|(&slot, _)| view.tier[slot as usize]);
        let first = tiers.next();
        tiers.all(|tier| Some(tier) == first)
    }
}

/// Stage counts with their names.
pub(crate) fn named(view: &View, tallies: &[StageTally]) -> Arc<[Stage]> {
    tallies
        .iter()
        .map(|tally| Stage {
            name: match tally.kind {
                StageKind::Registry => "registry".into(),
                StageKind::Rule(rule) => format!("rule:{}", view.plan.set.rules[rule].name).into(),
                StageKind::Cluster => "cluster".into(),
                StageKind::Usable => "usable".into(),
            },
            entered: tally.entered,
            matched: tally.matched,
            usable: tally.usable,
            left: tally.left,
            outcome: tally.outcome,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `routing.md` 5.8: Envoy's least request, weight 2, 4 active, bias 1 → 0.4 (the load is its inverse).
    #[test]
    fn golden_least_request() {
        assert!((load(4, 2.0) - 1.0 / 0.4).abs() < 1e-12);
        assert_eq!(load(0, 2.0), 0.0);
    }

    #[test]
    fn random_keys_are_hashed_as_digits() {
        for number in [0, 7, 10, 12_345, u64::MAX] {
            assert_eq!(Decimal::new(number).as_str(), number.to_string());
        }
    }
}
