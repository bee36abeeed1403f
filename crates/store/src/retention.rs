//! What compaction may throw away, and when.
//!
//! Overwritten index entries, dropped rows, truncated rows, expired tombstones and counters of an
//! older generation are all invisible to new readers the moment they come about, and are taken off
//! the disk whenever compaction meets them. A reader that started before a truncate still sees its
//! rows, so compaction learns of a truncate only when no such reader is left.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;

use crate::engine::Discard;
use crate::key::{self, Parsed, TableId};
use crate::version::Version;
use crate::view::Catalog;

#[derive(Clone, Copy, Debug)]
struct Floor {
    truncated_below: Version,
    tombstone_floor: Version,
    counter_generation: u32,
}

type Floors = HashMap<TableId, Floor>;

/// Hands floors to compaction once nobody can be hurt by them.
pub(crate) struct Retention {
    active: Arc<ArcSwap<Floors>>,
    waiting: VecDeque<(Weak<Catalog>, Floors)>,
}

impl Retention {
    pub(crate) fn new() -> Retention {
        Retention { active: Arc::default(), waiting: VecDeque::new() }
    }

    /// The predicate compaction calls. It looks at the first bytes of a value only: the engine has
    /// checked its block, and reading every checksum again would double the cost of compacting.
    pub(crate) fn discard(&self) -> Discard {
        let floors = AssertUnwindSafe(self.active.clone());
        Arc::new(move |key, value| {
            let floors = &floors;
            is_garbage(&floors.load(), key, value)
        })
    }

    /// Takes the floors of `new`, to be active when `old` and everything before it is gone.
    pub(crate) fn changed(&mut self, old: Option<&Arc<Catalog>>, new: &Catalog) {
        let floors = new
            .tables
            .iter()
            .map(|t| {
                let floor = Floor {
                    truncated_below: t.truncated_below,
                    tombstone_floor: t.tombstone_floor,
                    counter_generation: t.counter_generation,
                };
                (t.table.id(), floor)
            })
            .collect();
        match old {
            None => self.active.store(Arc::new(floors)),
            Some(old) => self.waiting.push_back((Arc::downgrade(old), floors)),
        }
        self.advance();
    }

    /// Activates what nobody can miss any more.
    pub(crate) fn advance(&mut self) {
        while let Some((before, _)) = self.waiting.front()
            && before.strong_count() == 0
            && let Some((_, floors)) = self.waiting.pop_front()
        {
            self.active.store(Arc::new(floors));
        }
    }
}

fn is_garbage(floors: &Floors, key: &[u8], value: &[u8]) -> bool {
    const LIVE: u8 = crate::record::Kind::Live as u8;
    const TOMBSTONE: u8 = crate::record::Kind::Tombstone as u8;
    const VOID: u8 = crate::record::Kind::Void as u8;
    let table = match key::parse(key) {
        Parsed::Row { table, .. } | Parsed::Index { table, .. } => table,
        Parsed::Counter { table, generation, .. } => {
            return floors.get(&table).is_some_and(|f| generation != f.counter_generation);
        }
        _ => return false,
    };
    let &[format, kind, ref rest @ ..] = value else { return false };
    // The formats differ behind the version only.
    if !(1..=2).contains(&format) {
        return false;
    }
    if kind == VOID {
        return true;
    }
    let Some(floor) = floors.get(&table) else { return false };
    let Some((&len, rest)) = rest.split_first() else { return false };
    let Some(version) = rest.get(..usize::from(len)) else { return false };
    match kind {
        LIVE => version < floor.truncated_below.as_bytes(),
        TOMBSTONE => version < floor.tombstone_floor.as_bytes(),
        _ => false,
    }
}
