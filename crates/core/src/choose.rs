//! Choosing one of the candidates: what each balancer does with members, shares and its own state.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, RngExt};

use crate::alias::AliasTable;
use crate::bitset::BitSet;
use crate::fleet::Entry;
use crate::instance::InstanceId;
use crate::pool::{HashKey, HashTable, Pool, Table, active_load, even_nodes, expected_wait};
use crate::request::{Affinity, Context};
use crate::rules::Balance;
use crate::snapshot::Snapshot;

/// What a picker remembers between picks.
pub(crate) struct Turns {
    pub(crate) rng: SmallRng,
    /// Position of round robin.
    turn: u64,
    /// Credit of smooth weighted round robin by slot, and the incarnation it belongs to.
    credits: Vec<(u64, f64)>,
    /// Whether schedules begin at their start; otherwise at a random place, so that a thousand fresh clients do not all
    /// begin with the heaviest instance (envoy #31378).
    pub(crate) aligned: bool,
    begun: bool,
}

impl Turns {
    pub(crate) fn new(rng: SmallRng, aligned: bool) -> Self {
        Self { rng, turn: 0, credits: Vec::new(), aligned, begun: false }
    }
}

/// The candidates of one request, however they were found.
pub(crate) struct Candidates<'s, 'c> {
    pub(crate) snapshot: &'s Snapshot,
    pub(crate) slots: &'c [u32],
    pub(crate) shares: &'c [f64],
    /// Absent for candidates that were evaluated for this request alone: they are scanned.
    pub(crate) alias: Option<&'c AliasTable>,
    pub(crate) even: bool,
    pub(crate) table: &'c Table,
    pub(crate) open: &'c BitSet,
}

impl<'s, 'c> Candidates<'s, 'c> {
    pub(crate) fn of(snapshot: &'s Snapshot, pool: &'c Pool) -> Self {
        Self {
            snapshot,
            slots: &pool.slots,
            shares: &pool.shares,
            alias: Some(&pool.alias),
            even: pool.even,
            table: &pool.table,
            open: &pool.open,
        }
    }

    fn entry(&self, member: usize) -> &'s Arc<Entry> {
        self.snapshot.view.fleet.entry(self.slots[member])
    }

    /// One candidate that is not in `tried`; `None` when there is none.
    pub(crate) fn choose<C: Context + ?Sized>(
        &self,
        request: &C,
        turns: &mut Turns,
        tried: &[InstanceId],
    ) -> Option<&'s Arc<Entry>> {
        let set = &self.snapshot.view.plan.set;
        let fresh = |member: usize| tried.is_empty() || !tried.contains(&self.entry(member).instance.id);
        let member = match &set.balance {
            Balance::WeightedRandom | Balance::Random | Balance::Xid => self.draw(&mut turns.rng, fresh)?,
            Balance::RoundRobin if self.even => self.in_turn(turns, fresh)?,
            Balance::RoundRobin | Balance::SmoothWeightedRoundRobin => self.by_credit(turns, fresh)?,
            Balance::LeastActive => {
                self.better_of_two(turns, fresh, |entry, share| active_load(&entry.state, share))?
            }
            Balance::PeakEwma => self.better_of_two(turns, fresh, |entry, _| expected_wait(&entry.state))?,
            Balance::ConsistentHash | Balance::SeataConsistentHash | Balance::Rendezvous | Balance::Maglev => {
                return self.by_key(request, turns, tried);
            }
            Balance::Custom(_) => match self.table {
                Table::Custom(chooser) => {
                    let member = chooser.choose(turns.rng.next_u64(), request.key());
                    if member < self.slots.len() && fresh(member) { member } else { self.draw(&mut turns.rng, fresh)? }
                }
                _ => self.draw(&mut turns.rng, fresh)?,
            },
        };
        Some(self.entry(member))
    }

    /// In proportion to share, among the members that `fresh` lets through.
    fn draw(&self, rng: &mut SmallRng, fresh: impl Fn(usize) -> bool) -> Option<usize> {
        // A few draws nearly always do when little is excluded; then an exact scan, so that what remains keeps its
        // proportions instead of the neighbour taking everything.
        const TRIES: usize = 4;
        if let Some(alias) = self.alias {
            if self.slots.is_empty() {
                return None;
            }
            for _ in 0..TRIES {
                let member = alias.pick(rng.next_u64());
                if fresh(member) {
                    return Some(member);
                }
            }
        }
        let left = |member: usize| if fresh(member) { self.shares[member] } else { 0.0 };
        let total: f64 = (0..self.shares.len()).map(left).sum();
        if total <= 0.0 {
            return None;
        }
        let mut point = rng.random::<f64>() * total;
        let mut last = None;
        for member in 0..self.shares.len() {
            let share = left(member);
            if share > 0.0 {
                if point < share {
                    return Some(member);
                }
                point -= share;
                last = Some(member);
            }
        }
        last
    }

    fn in_turn(&self, turns: &mut Turns, fresh: impl Fn(usize) -> bool) -> Option<usize> {
        let n = self.slots.len() as u64;
        if n == 0 {
            return None;
        }
        if !turns.begun && !turns.aligned {
            turns.turn = turns.rng.next_u64() % n;
        }
        turns.begun = true;
        for _ in 0..n {
            let member = (turns.turn % n) as usize;
            turns.turn = turns.turn.wrapping_add(1);
            if fresh(member) {
                return Some(member);
            }
        }
        None
    }

    /// Smooth weighted round robin (nginx, 2012): everybody earns its share, the richest is picked and pays the sum.
    /// Credit belongs to an incarnation and survives changes of weights and members (dubbo #15762).
    fn by_credit(&self, turns: &mut Turns, fresh: impl Fn(usize) -> bool) -> Option<usize> {
        let epochs = &self.snapshot.view.fleet.epochs;
        let slots = epochs.len();
        if turns.credits.len() < slots {
            turns.credits.resize(slots, (0, 0.0));
        }
        let start = if turns.begun || turns.aligned { None } else { self.draw(&mut turns.rng, &fresh) };
        turns.begun = true;
        let mut best: Option<(f64, usize)> = None;
        let mut total = 0.0;
        for (member, (&slot, &share)) in self.slots.iter().zip(self.shares).enumerate() {
            if share <= 0.0 || !fresh(member) {
                continue;
            }
            let epoch = epochs[slot as usize];
            let credit = &mut turns.credits[slot as usize];
            if credit.0 != epoch {
                *credit = (epoch, 0.0);
            }
            credit.1 += share;
            total += share;
            // Shares are fractions whose sums round; a difference below this is a tie, and the first one wins ties.
            const TIE: f64 = 1e-9;
            let ahead = match start {
                Some(start) => member == start,
                None => best.is_none_or(|(top, _)| credit.1 > top + TIE),
            };
            if ahead {
                best = Some((credit.1, member));
            }
        }
        let (_, member) = best?;
        turns.credits[self.slots[member] as usize].1 -= total;
        Some(member)
    }

    /// Power of two choices (Mitzenmacher) on weighted samples: the one that `cost` finds cheaper, the first on a tie.
    fn better_of_two(
        &self,
        turns: &mut Turns,
        fresh: impl Fn(usize) -> bool,
        cost: impl Fn(&Entry, f64) -> f64,
    ) -> Option<usize> {
        let first = self.draw(&mut turns.rng, &fresh)?;
        let second = self.draw(&mut turns.rng, &fresh)?;
        if first == second {
            return Some(first);
        }
        let of = |member: usize| cost(self.entry(member), self.shares[member]);
        Some(if of(second) < of(first) { second } else { first })
    }

    fn by_key<C: Context + ?Sized>(
        &self,
        request: &C,
        turns: &mut Turns,
        tried: &[InstanceId],
    ) -> Option<&'s Arc<Entry>> {
        let fleet = &self.snapshot.view.fleet;
        let key = HashKey::of(request, || turns.rng.next_u64());
        let bound = self.snapshot.view.plan.set.hash.bounded_load;
        let room = |slot: u32, share: f64| {
            bound.is_none_or(|factor| {
                let active =
                    |slot: u32| f64::from(fleet.entry(slot).state.in_flight.load(std::sync::atomic::Ordering::Relaxed));
                let total: f64 = self.slots.iter().map(|&slot| active(slot)).sum();
                active(slot) + 1.0 <= (factor * (total + 1.0) * share).ceil()
            })
        };
        let fresh = |slot: u32| tried.is_empty() || !tried.contains(&fleet.entry(slot).instance.id);
        let slot = match (self.table, &self.snapshot.full) {
            (Table::Hash(table), _) => {
                let free = |i: usize| self.shares[i] > 0.0 && fresh(self.slots[i]);
                let member = table
                    .lookup(key, |i| free(i) && room(self.slots[i], self.shares[i]))
                    .or_else(|| table.lookup(key, free))?;
                self.slots[member]
            }
            (_, Some((table, slots))) => {
                let free = |i: usize| self.open.get(slots[i] as usize) && fresh(slots[i]);
                let share = |slot: u32| {
                    self.slots.iter().position(|&own| own == slot).map_or(0.0, |member| self.shares[member])
                };
                let found = table
                    .lookup(key, |i| free(i) && (bound.is_none() || room(slots[i], share(slots[i]))))
                    .or_else(|| table.lookup(key, free));
                match found {
                    Some(member) => slots[member],
                    None => self.by_key_among_weightless(key, fresh)?,
                }
            }
            // Nobody to hash over: the pool is empty.
            _ => return None,
        };
        Some(fleet.entry(slot))
    }
}

impl Candidates<'_, '_> {
    /// Candidates that all have weight 0 stand in no table of the service. They are served only when the rules say so
    /// and, for a request whose answer is not remembered yet, by a table of this request alone.
    fn by_key_among_weightless(&self, key: HashKey<'_>, fresh: impl Fn(u32) -> bool) -> Option<u32> {
        let set = &self.snapshot.view.plan.set;
        let members: Vec<_> = (0..self.slots.len()).map(|member| (&self.entry(member).instance, 1.0)).collect();
        let table = HashTable::build(&set.balance, &set.hash, &members, even_nodes(members.len()));
        table.lookup(key, |member| fresh(self.slots[member])).map(|member| self.slots[member])
    }
}

/// The owner of a request's session, if it may still have it.
pub(crate) fn owner<'a, C: Context + ?Sized>(
    snapshot: &'a Snapshot,
    owners: &BitSet,
    request: &C,
    tried: &[InstanceId],
) -> Option<&'a Arc<Entry>> {
    let view = &snapshot.view;
    let slot = match request.affinity()? {
        Affinity::Xid(xid) if view.plan.set.balance == Balance::Xid => {
            // `ip:port:number`: what is before the last colon. A name such as `order:create` finds nobody.
            let (address, _) = xid.rsplit_once(':')?;
            *view.by_address.get(address)?
        }
        Affinity::Xid(_) => return None,
        Affinity::Instance(id) => view.fleet.find(id.as_str())?,
    };
    let at = slot as usize;
    let fit = owners.get(at) && view.fleet.enabled.get(at) && view.fleet.healthy.get(at) && !view.drained.get(at);
    let entry = view.fleet.entry(slot);
    (fit && !tried.contains(&entry.instance.id)).then_some(entry)
}
