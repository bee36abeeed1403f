//! The immutable state that picks read, and the bounded memo of request-dependent answers inside it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher;

use crate::evaluate::Scratch;
use crate::intake::{Freshness, Hold};
use crate::pool::{HashTable, Pool};
use crate::request::{Context, RequestSlot};
use crate::view::View;

/// One published state of a service.
pub(crate) struct Snapshot {
    pub(crate) revision: u64,
    pub(crate) view: View,
    pub(crate) freshness: Freshness,
    pub(crate) held: Option<Hold>,
    /// Whether a warm-up is suspended because everybody is new.
    pub(crate) warmup_suspended: bool,
    /// Nodes per weight of hash rings, from all instances, so that rings of subsets agree.
    pub(crate) nodes_per_weight: f64,
    /// Hash table over the whole service and the slots of its members: what hash balancers use when rules read the
    /// request, so that no request waits for a table to be built.
    pub(crate) full: Option<(Arc<HashTable>, Box<[u32]>)>,
    /// The answer to every request when rules read none.
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) memo: ArcSwap<Memo>,
    pub(crate) misses: Misses,
}

/// Answers by the values of the request attributes that the rules read.
pub(crate) type Memo = FxHashMap<u64, Arc<Remembered>>;

/// Most answers kept per snapshot. Attributes come from callers: without a limit their values would fill the memory.
pub(crate) const MEMO_MAX: usize = 1024;

pub(crate) struct Remembered {
    pub(crate) values: Box<[Option<Box<str>>]>,
    pub(crate) pool: Pool,
}

impl Remembered {
    pub(crate) fn answers<C: Context + ?Sized>(&self, reads: &[RequestSlot], request: &C) -> bool {
        reads.iter().zip(&self.values).all(|(&slot, value)| request.get(slot) == value.as_deref())
    }
}

/// Fingerprint of the request values that matter.
pub(crate) fn fingerprint<C: Context + ?Sized>(reads: &[RequestSlot], request: &C) -> u64 {
    let mut hasher = FxHasher::default();
    for &slot in reads {
        match request.get(slot) {
            Some(value) => {
                hasher.write(value.as_bytes());
                hasher.write_u8(1);
            }
            None => hasher.write_u8(0),
        }
    }
    hasher.finish()
}

impl Snapshot {
    pub(crate) fn build(
        &self,
        request: &(impl Context + ?Sized),
        scratch: &mut Scratch,
        former: Option<&Pool>,
    ) -> Pool {
        let verdict = self.view.evaluate(request, true, scratch, None);
        Pool::build(&self.view, verdict, scratch, self.nodes_per_weight, former)
    }

    /// Builds the answer to one set of request values and remembers it.
    pub(crate) fn remember(&self, values: Box<[Option<Box<str>>]>, scratch: &mut Scratch) -> Arc<Remembered> {
        let reads = &self.view.plan.reads;
        let request = ReadValues { reads, values: &values };
        let key = fingerprint(reads, &request);
        let pool = self.build(&request, scratch, None);
        let remembered = Arc::new(Remembered { values, pool });
        self.memo.rcu(|memo| {
            let mut next = if memo.len() >= MEMO_MAX { Memo::default() } else { (**memo).clone() };
            next.insert(key, Arc::clone(&remembered));
            next
        });
        remembered
    }
}

/// Request values in the order of the plan's reads.
struct ReadValues<'a> {
    reads: &'a [RequestSlot],
    values: &'a [Option<Box<str>>],
}

impl Context for ReadValues<'_> {
    fn get(&self, slot: RequestSlot) -> Option<&str> {
        let at = self.reads.iter().position(|&read| read == slot)?;
        self.values[at].as_deref()
    }
}

/// Requests that found no remembered answer, waiting for the next tick. All memory is there from the start, so noting
/// one allocates nothing; what does not fit is not remembered, and is served from the bitsets again next time.
pub(crate) struct Misses {
    any: AtomicBool,
    queue: Mutex<Vec<Miss>>,
}

#[derive(Default)]
struct Miss {
    text: String,
    /// End of each value in `text`; `None` where the request has none.
    ends: Vec<Option<usize>>,
    used: bool,
}

const MISSES_MAX: usize = 32;
const MISS_TEXT_MAX: usize = 256;
const MISS_VALUES_MAX: usize = 16;

impl Misses {
    /// Room for misses, or none where rules read no request.
    pub(crate) fn new(needed: bool) -> Self {
        let room = if needed { MISSES_MAX } else { 0 };
        let miss = || Miss {
            text: String::with_capacity(MISS_TEXT_MAX),
            ends: Vec::with_capacity(MISS_VALUES_MAX),
            used: false,
        };
        Self { any: AtomicBool::new(false), queue: Mutex::new(std::iter::repeat_with(miss).take(room).collect()) }
    }

    pub(crate) fn pending(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Notes the values of a request, unless the queue is full, contended, or the values are longer than anybody's
    /// routing attributes should be.
    pub(crate) fn note<C: Context + ?Sized>(&self, reads: &[RequestSlot], request: &C) {
        let length: usize = reads.iter().map(|&slot| request.get(slot).map_or(0, str::len)).sum();
        if length > MISS_TEXT_MAX || reads.len() > MISS_VALUES_MAX {
            return;
        }
        let Ok(mut queue) = self.queue.try_lock() else { return };
        let Some(miss) = queue.iter_mut().find(|miss| !miss.used) else { return };
        miss.text.clear();
        miss.ends.clear();
        for &slot in reads {
            let value = request.get(slot);
            miss.text.push_str(value.unwrap_or(""));
            miss.ends.push(value.map(|_| miss.text.len()));
        }
        miss.used = true;
        self.any.store(true, Ordering::Relaxed);
    }

    /// Takes every noted request.
    pub(crate) fn take(&self) -> Vec<Box<[Option<Box<str>>]>> {
        self.any.store(false, Ordering::Relaxed);
        let mut queue = self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut taken: Vec<Box<[Option<Box<str>>]>> = Vec::new();
        for miss in queue.iter_mut().filter(|miss| miss.used) {
            miss.used = false;
            let mut start = 0;
            let values = miss.ends.iter().map(|end| {
                end.map(|end| {
                    let value = miss.text[start..end].into();
                    start = end;
                    value
                })
            });
            let values: Box<[_]> = values.collect();
            if !taken.contains(&values) {
                taken.push(values);
            }
        }
        taken
    }
}
