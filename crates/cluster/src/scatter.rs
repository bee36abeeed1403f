//! From a query to the shards it has to ask: the one decision that sets its price.
//!
//! Pure: the same topology and query always give the same targets, so the router, `explain` and an offline tool with an
//! exported topology agree.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::completeness::cost;
use crate::failure::{Code, Failure};
use crate::protocol::{ShardId, WorkBudget};
use crate::query::{Path, Query};
use crate::slots::SlotSet;
use crate::topology::{GroupIndex, Part, TenantPlace, Topology};

/// One shard to ask, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its group.
    pub group: GroupIndex,
    /// The shard.
    pub shard: ShardId,
    /// The slots the question is about.
    pub slots: SlotSet,
    /// The highest epoch of their owner entries.
    pub epoch: u64,
    /// The ids that fall into these slots, ascending; `None` where the question is about all rows.
    pub ids: Option<Arc<[u64]>>,
}

/// Everything a query has to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scatter {
    /// The path, spans considered.
    pub path: Path,
    /// Where the tenant's rows are, for queries that name one.
    pub place: Option<TenantPlace>,
    /// The shards, by group and shard.
    pub targets: Vec<Target>,
    /// Slots nobody owns, by group name; the name is empty where the tenant's bucket has no group.
    pub gaps: Vec<(String, SlotSet)>,
    /// How many slots the answer has to cover.
    pub wanted: u32,
}

/// What a query is expected to cost before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Shards asked.
    pub sub_requests: u64,
    /// Entries looked at for one page when every row matches.
    pub examined: u64,
    /// Entries looked at for one page at most, when the filter matches hardly anything.
    pub examined_max: u64,
    /// The price of the former.
    pub cost: f64,
}

impl Scatter {
    /// Decides for a query.
    pub fn of(topology: &Topology, query: &Query) -> Scatter {
        let mut scatter = Scatter { path: query.path(), place: None, targets: Vec::new(), gaps: Vec::new(), wanted: 0 };
        let groups = 0..topology.groups().len() as GroupIndex;
        match (query.tenant, &query.ids) {
            (Some(tenant), ids) => {
                let Some(place) = topology.tenant(tenant) else {
                    let bucket = crate::placement::bucket(tenant);
                    scatter.gaps.push((String::new(), [bucket].into_iter().collect()));
                    scatter.wanted = 1;
                    return scatter;
                };
                scatter.place = Some(place);
                match ids {
                    Some(ids) => scatter.ids(topology, query, place.group, &[place.span], ids),
                    None => {
                        if place.span.width < topology.groups()[place.group as usize].base_shards {
                            scatter.path = Path::BP;
                        }
                        scatter.slots(topology, place.group, &topology.span_slots(&place), |_| None);
                    }
                }
            }
            (None, Some(ids)) => {
                for group in groups {
                    let spans = topology.spans_of(group);
                    scatter.ids(topology, query, group, &spans, ids);
                }
            }
            (None, None) => {
                for group in groups {
                    let all = topology.groups()[group as usize].all_slots();
                    scatter.slots(topology, group, &all, |_| None);
                }
            }
        }
        scatter
    }

    /// The slots of a group that `ids` fall into.
    fn ids(
        &mut self,
        topology: &Topology,
        query: &Query,
        group: GroupIndex,
        spans: &[crate::placement::Span],
        ids: &Arc<[u64]>,
    ) {
        if let ([id], [span]) = (&**ids, spans) {
            let slot = topology.slot(group, *span, query.store.name(), *id);
            return self.slots(topology, group, &[slot].into_iter().collect(), |_| Some(Arc::clone(ids)));
        }
        let mut by_slot: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for &id in &**ids {
            for span in spans {
                let slot = topology.slot(group, *span, query.store.name(), id);
                let here = by_slot.entry(slot).or_default();
                if here.last() != Some(&id) {
                    here.push(id);
                }
            }
        }
        let slots = by_slot.keys().copied().collect();
        self.slots(topology, group, &slots, |slots| Some(ids_in(&by_slot, slots)));
    }

    fn slots(
        &mut self,
        topology: &Topology,
        index: GroupIndex,
        slots: &SlotSet,
        ids_in: impl Fn(&SlotSet) -> Option<Arc<[u64]>>,
    ) {
        let group = &topology.groups()[index as usize];
        self.wanted += slots.len();
        let (parts, gaps) = group.split(slots);
        if !gaps.is_empty() {
            self.gaps.push((group.name.to_string(), gaps));
        }
        for Part { shard, slots, epoch } in parts {
            let ids = ids_in(&slots);
            let shard = group.shards[shard as usize].id.clone();
            self.targets.push(Target { group: index, shard, epoch, ids, slots });
        }
    }

    /// What the query is expected to cost.
    pub fn estimate(&self, query: &Query, budget: WorkBudget) -> Estimate {
        let sub_requests = self.targets.len() as u64;
        let ids: Option<u64> = self.targets.iter().map(|target| target.ids.as_ref().map(|ids| ids.len() as u64)).sum();
        let (examined, examined_max) = match ids {
            Some(ids) if query.ids.is_some() => (ids, ids),
            // Each shard looks one row further than its portion of the page. In one process they look at fewer.
            _ => {
                let portion = crate::router::Portion::of(query.limit, self.targets.len(), false);
                let page = sub_requests * (u64::from(portion.rows) + 1);
                let most = sub_requests.saturating_mul(budget.entries);
                (page, if query.filter.is_some() { most.max(page) } else { page })
            }
        };
        Estimate { sub_requests, examined, examined_max, cost: cost(sub_requests, examined, 0) }
    }
}

fn ids_in(by_slot: &BTreeMap<u32, Vec<u64>>, slots: &SlotSet) -> Arc<[u64]> {
    let mut ids: Vec<u64> = slots.iter().filter_map(|slot| by_slot.get(&slot)).flatten().copied().collect();
    ids.sort_unstable();
    ids.dedup();
    ids.into()
}

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Queries that touch all groups.
    pub global: bool,
}

impl Rights {
    /// Everything; what every caller has while authentication is off.
    pub const ALL: Rights = Rights { global: true };
}

/// Whether a query may run.
///
/// # Errors
/// `global_scan_not_allowed` when it touches all groups and does not say that this is meant, `forbidden` when the caller
/// may not; both with the price.
pub fn permit(query: &Query, scatter: &Scatter, estimate: &Estimate, rights: Rights) -> Result<(), Failure> {
    if !scatter.path.is_global() {
        return Ok(());
    }
    let what = match scatter.path {
        Path::CI => "ids without a tenant ask every group",
        _ => "a query without a tenant asks every shard of every group",
    };
    let tenant = &query.store.columns()[query.store.tenant()].name;
    let requests = estimate.sub_requests;
    let priced = |failure: Failure| Failure { estimate: Some(Box::new(*estimate)), ..failure };
    if !query.allow_global {
        let message = format!("{what} ({requests} requests, estimated cost {})", estimate.cost);
        let hint = format!("name the `{tenant}`, or set \"allow\": \"global\" if that is meant");
        return Err(priced(Failure::new(Code::GlobalScanNotAllowed, message).hint(hint)));
    }
    if !rights.global {
        let message = format!("the caller may not run global queries; {what} ({requests} requests)");
        return Err(priced(Failure::new(Code::Forbidden, message).hint(format!("name the `{tenant}`"))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::query::QueryRequest;
    use crate::testing::file_metadata;

    fn query(tenant: Option<u64>, ids: Option<Vec<u64>>) -> Query {
        Query::new(&file_metadata(), QueryRequest { tenant, ids, ..QueryRequest::default() }).expect("legal")
    }

    fn initial(groups: u32, shards: u32) -> Topology {
        Topology::initial(groups, shards).expect("legal")
    }

    #[test]
    fn every_path_asks_as_few_shards_as_it_can() {
        let topology = initial(20, 12);
        for (tenant, ids, path, requests) in [
            (Some(9), Some(vec![1]), Path::A, 1),
            (Some(9), Some(vec![1, 13, 2]), Path::AB, 2),
            (Some(9), None, Path::B, 12),
            (None, Some(vec![1]), Path::CI, 20),
            (None, Some(vec![1, 2]), Path::CI, 40),
            (None, None, Path::C, 240),
        ] {
            let query = query(tenant, ids);
            let scatter = Scatter::of(&topology, &query);
            assert_eq!((scatter.path, scatter.targets.len()), (path, requests));
            assert_eq!(scatter.estimate(&query, WorkBudget::default()).sub_requests, requests as u64);
            assert_eq!(scatter.gaps, []);
        }
    }

    /// Case 27: a full scan nobody asked for is refused, with its price.
    #[test]
    fn case_27_a_global_query_needs_permission() {
        let topology = initial(20, 12);
        let mut query = query(None, None);
        let scatter = Scatter::of(&topology, &query);
        let estimate = scatter.estimate(&query, WorkBudget::default());
        let failure = permit(&query, &scatter, &estimate, Rights::ALL).expect_err("not meant");
        assert_eq!(failure.code, Code::GlobalScanNotAllowed);
        assert_eq!(failure.estimate.as_ref().map(|estimate| estimate.sub_requests), Some(240), "with the price");
        assert!(failure.message.contains("240 requests"), "{failure}");
        query.allow_global = true;
        assert!(permit(&query, &scatter, &estimate, Rights::ALL).is_ok());
        let failure = permit(&query, &scatter, &estimate, Rights { global: false }).expect_err("no right");
        assert_eq!(failure.code, Code::Forbidden);
    }

    #[test]
    fn a_narrow_span_asks_fewer_shards_and_is_found_by_id() {
        let topology = initial(1, 12);
        let mut document = topology.document().clone();
        let span = Some(crate::placement::Span { base: 5, width: 2 });
        let entry = crate::topology::OverrideEntry { tenant: 9, group: "g0".into(), epoch: 1, span };
        document.tenants.overrides.push(entry);
        let topology = Topology::new(document).expect("valid");
        let scatter = Scatter::of(&topology, &query(Some(9), None));
        let names: Vec<String> = scatter.targets.iter().map(|target| target.shard.to_string()).collect();
        assert_eq!((scatter.path, names), (Path::BP, vec!["g0/s5".to_owned(), "g0/s6".to_owned()]));
        // Without the tenant both the whole group's slot of the id and the span's may hold it.
        let of_tenant = Scatter::of(&topology, &query(Some(9), Some(vec![1])));
        let by_id = Scatter::of(&topology, &query(None, Some(vec![1])));
        assert_eq!(by_id.targets.len(), 2);
        assert!(by_id.targets.iter().any(|target| target.slots == of_tenant.targets[0].slots));
    }

    proptest! {
        /// Whatever is asked, the targets cover the wanted slots once and hold each id where it lives.
        #[test]
        fn targets_are_disjoint_and_complete(
            groups in 1u32..4, shards in 1u32..6, tenant: Option<u64>, ids in prop::option::of(prop::collection::vec(any::<u64>(), 0..30)),
        ) {
            let topology = initial(groups, shards);
            let query = query(tenant, ids);
            let scatter = Scatter::of(&topology, &query);
            let mut seen = std::collections::HashSet::new();
            for target in &scatter.targets {
                for slot in target.slots.iter() {
                    prop_assert!(seen.insert((target.group, slot)));
                    let group = &topology.groups()[target.group as usize];
                    let owner = group.owner(slot).expect("no gaps");
                    prop_assert_eq!(&group.shards[owner.index as usize].id, &target.shard);
                }
                for id in target.ids.iter().flat_map(|ids| ids.iter()) {
                    let span = crate::placement::Span::whole(shards);
                    prop_assert!(target.slots.contains(topology.slot(target.group, span, "file_metadata", *id)));
                }
            }
            prop_assert_eq!(seen.len() as u32, scatter.wanted);
        }
    }
}
