use metaroute_registry::document::Format;
use proptest::prelude::*;

use super::*;
use crate::placement::bucket;

fn initial(groups: u32, shards: u32) -> Topology {
    Topology::initial(groups, shards).expect("legal shape")
}

/// A document changed by hand.
fn edited(topology: &Topology, edit: impl FnOnce(&mut Document)) -> Document {
    let mut document = topology.document().clone();
    edit(&mut document);
    document
}

fn defect(document: Document) -> &'static str {
    Topology::new(document).expect_err("defective").code
}

#[test]
fn a_fresh_topology_places_as_id_mod_n() {
    let topology = initial(3, 12);
    for tenant in [0, 1, 9, u64::MAX] {
        let place = topology.tenant(tenant).expect("covered");
        assert_eq!((place.group, place.by), (bucket(tenant) % 3, PlacedBy::Bucket));
        for id in [0, 1, 13, 4_104, u64::MAX] {
            let slot = topology.slot(place.group, place.span, "file_metadata", id);
            let group = &topology.groups()[place.group as usize];
            let owner = group.owner(slot).expect("owned");
            assert_eq!(u64::from(owner.index), id % 12);
        }
    }
    assert_eq!(topology.shape().to_string(), "3 groups × 12 shards, epoch 1");
}

#[test]
fn overrides_win_over_ranges_and_ranges_over_buckets() {
    let topology = initial(3, 1);
    let document = edited(&topology, |document| {
        let range = |from, to, group: &str| RangeEntry { from, to, group: group.into(), epoch: 1 };
        document.tenants.ranges = vec![range(500, 600, "g2"), range(0, 10, "g1")];
        document.tenants.overrides = vec![OverrideEntry { tenant: 5, group: "g0".into(), epoch: 1, span: None }];
    });
    let topology = Topology::new(document).expect("valid");
    let place = |tenant| topology.tenant(tenant).map(|place| (place.group, place.by)).expect("covered");
    assert_eq!(place(0), (1, PlacedBy::Range));
    assert_eq!(place(5), (0, PlacedBy::Override));
    assert_eq!(place(10), (1, PlacedBy::Range));
    assert_eq!(place(11), (bucket(11) % 3, PlacedBy::Bucket));
    assert_eq!(place(600), (2, PlacedBy::Range));
    assert_eq!(place(601).1, PlacedBy::Bucket);
}

#[test]
fn defects_are_found_before_anything_accepts_the_document() {
    let topology = initial(2, 3);
    let owners = |edit: fn(&mut Vec<OwnerEntry>)| edited(&topology, |document| edit(&mut document.groups[0].owners));
    assert_eq!(defect(owners(|owners| drop(owners.pop()))), "gap");
    assert_eq!(defect(owners(|owners| _ = owners[0].slots.insert(1))), "overlap");
    assert_eq!(defect(owners(|owners| _ = owners[0].slots.insert(4098))), "out_of_range");
    assert_eq!(defect(owners(|owners| owners[0].shard = "s9".into())), "unknown_shard");
    assert_eq!(defect(owners(|owners| owners[0].epoch = 2)), "epoch_ahead");
    let buckets = |edit: fn(&mut Vec<BucketEntry>)| edited(&topology, |document| edit(&mut document.tenants.buckets));
    assert_eq!(defect(buckets(|buckets| drop(buckets.pop()))), "gap");
    assert_eq!(defect(buckets(|buckets| _ = buckets[0].buckets.insert(1))), "overlap");
    assert_eq!(defect(buckets(|buckets| _ = buckets[0].buckets.insert(4096))), "out_of_range");
    assert_eq!(defect(buckets(|buckets| buckets[0].group = "g7".into())), "unknown_group");
    let groups = |edit: fn(&mut Vec<GroupEntry>)| edited(&topology, |document| edit(&mut document.groups));
    assert_eq!(defect(groups(Vec::clear)), "empty");
    assert_eq!(defect(groups(|groups| groups[1].name = "g0".into())), "duplicate");
    assert_eq!(defect(groups(|groups| groups[1].name = "a b".into())), "bad_name");
    assert_eq!(defect(groups(|groups| groups[0].slots = 4097)), "out_of_range");
    assert_eq!(defect(groups(|groups| groups[0].base_shards = 0)), "out_of_range");
    assert_eq!(defect(groups(|groups| groups[0].shards[1].name = "s0".into())), "duplicate");
    let ranges = |a: (u64, u64), b: (u64, u64)| {
        edited(&topology, |document| {
            let range = |(from, to)| RangeEntry { from, to, group: "g0".into(), epoch: 1 };
            document.tenants.ranges = vec![range(a), range(b)];
        })
    };
    assert_eq!(defect(ranges((1, 5), (5, 9))), "overlap");
    assert_eq!(defect(ranges((7, 9), (5, 4))), "out_of_range");
    assert!(Topology::new(ranges((5, 9), (1, 4))).is_ok());
    assert_eq!(defect(edited(&topology, |document| document.version = 2)), "unknown_version");
}

#[test]
fn a_defect_says_where() {
    let topology = initial(2, 3);
    let document = edited(&topology, |document| document.groups[1].owners[2].shard = "s9".into());
    let error = Topology::new(document.clone()).expect_err("defective");
    assert_eq!(error.to_string(), "groups[1].owners[2].shard: group `g1` has no shard `s9`");
    let text = document.to_json();
    let error = Topology::parse("t.json", &text, Format::Json).expect_err("defective");
    let line = text.lines().position(|line| line.contains("\"s9\"")).expect("written") as u32 + 1;
    assert_eq!(error.at.map(|at| at.line), Some(line), "{error}");
}

#[test]
fn unknown_keys_are_errors_with_a_place() {
    let error = Document::parse("t.yaml", "version: 1\ngroups:\n  - nmae: g0\n", Format::Yaml).expect_err("misspelt");
    assert_eq!((error.code, error.at.map(|at| (at.line, at.column))), ("unknown_key", Some((3, 5))));
    let error = Document::parse("t.yaml", "tenants: {buckets: [{buckets: 4-1, group: g0}]}", Format::Yaml);
    assert_eq!(error.expect_err("backwards").code, "bad_slots");
}

#[test]
fn a_small_document_can_be_written_by_hand() {
    let text = "
groups:
  - {name: eu, base_shards: 2, slots: 4096,
     shards: [{name: a, replicas: [{address: 'db1:7401', zone: z1}]}, {name: b}],
     owners: [{slots: 0-4095/2, shard: a}, {slots: 1-4095/2, shard: b}]}
tenants: {buckets: [{buckets: 0-4095, group: eu}], overrides: [{tenant: '18446744073709551615', group: eu}]}
slot_functions: {events: mix64}
";
    let topology = Topology::parse("t.yaml", text, Format::Yaml).expect("valid");
    assert_eq!(topology.slot_function("events"), SlotFunction::Mix64);
    assert_eq!(topology.slot_function("file_metadata"), SlotFunction::Mod);
    assert_eq!(topology.tenant(u64::MAX).expect("placed").by, PlacedBy::Override);
    assert_eq!(topology.groups()[0].shards[0].replicas[0].zone.as_deref(), Some("z1"));
    let again = Topology::parse("t.json", &topology.document().to_json(), Format::Json).expect("own text");
    assert_eq!(again, topology);
}

/// Case 13: 12 → 16 shards moves exactly a quarter of the slots.
#[test]
fn case_13_growing_from_12_to_16_shards_moves_a_quarter() {
    let before = initial(1, 12);
    let document = edited(&before, |document| {
        let group = &mut document.groups[0];
        for shard in 12..16 {
            group.shards.push(ShardEntry { name: format!("s{shard}"), replicas: Vec::new() });
        }
        // Every new shard takes a quarter of three old ones' slots.
        let mut owners = Vec::new();
        for (old, entry) in group.owners.iter().enumerate() {
            let slots: Vec<u32> = entry.slots.iter().collect();
            let (kept, given) = slots.split_at(slots.len() - slots.len() / 4);
            let mut given: SlotSet = given.iter().copied().collect();
            let mut kept: SlotSet = kept.iter().copied().collect();
            // 342 slots do not divide by four: two old shards of twelve give one more, so that S/4 move in all.
            if old % 2 == 0 {
                let last = kept.last().expect("not empty");
                kept.remove(last);
                given.insert(last);
            }
            owners.push(OwnerEntry { slots: kept, shard: entry.shard.clone(), epoch: 1 });
            owners.push(OwnerEntry { slots: given, shard: format!("s{}", 12 + old / 3), epoch: 1 });
        }
        group.owners = owners;
    });
    let after = Topology::new(document).expect("valid");
    let plan = Plan::between(&before, &after);
    assert_eq!(plan.slots_moved(), 4104 / 4);
    for slot in 0..4104 {
        assert!(after.groups()[0].owner(slot).is_some());
    }
    // The slot of an id does not depend on the number of shards, so whatever did not move is found where it was.
    assert_eq!(before.groups()[0].slots(), after.groups()[0].slots());
}

#[test]
fn plans_name_what_moves() {
    let before = initial(2, 2);
    let document = edited(&before, |document| {
        let moved: SlotSet = [0, 2].into_iter().collect();
        let owners = &mut document.groups[0].owners;
        owners[0].slots = owners[0].slots.difference(&moved);
        owners[1].slots.extend_from(&moved);
        document.tenants.ranges = vec![RangeEntry { from: 10, to: 20, group: "g1".into(), epoch: 1 }];
        document.tenants.overrides = vec![OverrideEntry { tenant: 3, group: "g1".into(), epoch: 1, span: None }];
        document.slot_functions.insert("events".into(), SlotFunction::Mix64);
    });
    let after = Topology::new(document).expect("valid");
    let plan = Plan::between(&before, &after);
    let texts: Vec<String> = plan.changes.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "2 slots of g0 go from s0 to s1: 0-2/2",
            "tenants 10 to 20 go from their buckets' groups to g1",
            "tenant 3 goes from g0 to g1",
            "ids of store events become slots in another way",
        ]
    );
    assert!(plan.moving().count() == 4 && Plan::between(&before, &before).is_empty());
}

/// Case 12: the old owner, cut off while the slot moved, refuses by epoch.
#[test]
fn case_12_an_old_owner_does_not_answer_for_what_it_lost() {
    let old = Topology::new(edited(&initial(1, 2), |document| document.epoch = 11)).expect("valid");
    let s1 = ShardId::new("g0", "s1");
    let slots: SlotSet = [1, 3].into_iter().collect();
    let new = Topology::new(edited(&old, |document| {
        document.epoch = 12;
        let owners = &mut document.groups[0].owners;
        owners[1].slots = owners[1].slots.difference(&slots);
        owners.push(OwnerEntry { slots: slots.clone(), shard: "s0".into(), epoch: 12 });
    }))
    .expect("valid");
    // Still cut off: somebody knows more, so it must not answer.
    assert_eq!(old.ownership(&s1, &slots, 12), Ownership::Behind);
    // Healed: it points at the new owner, also for those who know less.
    for epoch in [1, 12] {
        let Ownership::Known(split) = new.ownership(&s1, &slots, epoch) else { panic!("it is up to date") };
        assert_eq!(split.owned, SlotSet::new());
        assert_eq!(split.moved, [Moved { slots: slots.clone(), to: "s0".into(), epoch: 12 }]);
    }
}

#[test]
fn a_stale_epoch_alone_is_no_error() {
    let topology = Topology::new(edited(&initial(1, 2), |document| {
        document.epoch = 40;
        document.groups[0].owners[0].epoch = 40;
    }))
    .expect("valid");
    let all = SlotSet::all(4096);
    let Ownership::Known(split) = topology.ownership(&ShardId::new("g0", "s0"), &all, 1) else { panic!("known") };
    assert_eq!(split.owned.len(), 2048);
    assert_eq!(split.moved.len(), 1);
}

/// Case 16, the router's half: it corrects its table from the answer.
#[test]
fn case_16_a_router_learns_from_moved() {
    let topology = initial(1, 2);
    let moved = Moved { slots: [7].into_iter().collect(), to: "s0".into(), epoch: 12 };
    let learned = topology.learn("g0", &moved).expect("news");
    assert_eq!(learned.groups()[0].owner(7), Some(Owner { index: 0, epoch: 12 }));
    assert_eq!(learned.learn("g0", &moved), None, "no news the second time");
    let older = Moved { epoch: 11, to: "s1".into(), ..moved.clone() };
    assert_eq!(learned.learn("g0", &older), None);
    assert_eq!(topology.learn("g0", &Moved { to: "s9".into(), ..moved }), None);
}

#[test]
fn gaps_are_kept_apart_when_a_document_was_forced() {
    let document = edited(&initial(1, 4), |document| {
        let gone: SlotSet = (2048..3072).collect();
        for owner in &mut document.groups[0].owners {
            owner.slots = owner.slots.difference(&gone);
        }
    });
    assert_eq!(defect(document.clone()), "gap");
    let topology = Topology::with_gaps(document).expect("served with gaps");
    let (owned, gaps) = topology.groups()[0].split(&SlotSet::all(4096));
    assert_eq!(gaps.to_string(), "2048-3071");
    assert_eq!(owned.iter().map(|part| part.slots.len()).sum::<u32>(), 3072);
}

#[test]
fn skew_is_warned_of_per_group() {
    let topology = initial(2, 12);
    assert_eq!(topology.skew("file_metadata", 3).len(), 2);
    assert_eq!(topology.skew("file_metadata", 1), []);
}

proptest! {
    // A document of thousands of slots is read four times per case.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn documents_read_back(groups in 1u32..6, shards in 1u32..20, tenant: u64, epoch in 1u64..1000) {
        let document = edited(&initial(groups, shards), |document| {
            document.epoch = epoch;
            document.tenants.overrides.push(OverrideEntry { tenant, group: "g0".into(), epoch, span: Some(Span::whole(1)) });
        });
        let topology = Topology::new(document).expect("valid");
        for format in [Format::Json, Format::Yaml] {
            let again = Topology::parse("t", &topology.document().to_json(), format).expect("own text");
            prop_assert_eq!(&again, &topology);
        }
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[ -~\\n]{0,200}") {
        for format in [Format::Json, Format::Yaml] {
            let _ = Topology::parse("t", &text, format);
        }
    }
}
