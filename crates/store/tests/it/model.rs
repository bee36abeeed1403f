//! Random steps against the store and against a model that fits on a page.
//!
//! `METAROUTE_MODEL_RUNS` sets how many runs of up to 60 steps are made (default 200).

use metaroute_store::{OpenOptions, Store};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::world::{self, Content, Dice, Model, Op, Set, Step};

fn content() -> impl Strategy<Value = Content> {
    (
        0u64..4,
        proptest::option::of(-4i64..4),
        0u8..4,
        proptest::option::of(0u64..8),
        proptest::option::of(-5i64..5),
        proptest::option::of(-300i64..300),
    )
        .prop_map(|(owner, at, name, size, score, cents)| Content { owner, at, name, size, score, cents })
}

fn op() -> impl Strategy<Value = Op> {
    let version = 1u64..40;
    let set = prop_oneof![
        (0u64..4).prop_map(Set::Owner),
        proptest::option::of(-4i64..4).prop_map(Set::At),
        (0u8..4).prop_map(Set::Name),
        proptest::option::of(0u64..8).prop_map(Set::Size),
        proptest::option::of(-5i64..5).prop_map(Set::Score),
    ];
    prop_oneof![
        10 => (0u64..24, version.clone(), content())
            .prop_map(|(id, version, content)| Op::Upsert { id, version, content }),
        4 => (0u64..24, version.clone(), proptest::collection::vec(set, 1..3))
            .prop_map(|(id, version, set)| Op::Update { id, version, set }),
        4 => (0u64..24, version.clone(), proptest::option::weighted(0.3, 0u64..4))
            .prop_map(|(id, version, tenant)| Op::Delete { id, version, tenant }),
        1 => version.clone().prop_map(|version| Op::Truncate { version: version / 2 + 1 }),
        1 => version.prop_map(|version| Op::Expire { version: version / 2 + 1 }),
        1 => (0u64..24).prop_map(|id| Op::Evict { id }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        14 => proptest::collection::vec(op(), 1..8).prop_map(Step::Batch),
        3 => proptest::collection::vec((0u64..3, 1u64..40, content()), 0..10).prop_map(Step::Ingest),
        1 => Just(Step::Flush),
        1 => Just(Step::Compact),
        1 => Just(Step::Restart),
    ]
}

fn runs() -> u32 {
    std::env::var("METAROUTE_MODEL_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}

/// In memory where the machine has such a place: thousands of runs open thousands of stores.
pub(crate) fn scratch() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    folder.expect("a temporary folder")
}

#[test]
fn the_store_does_what_the_model_does() {
    let config = Config { cases: runs(), failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let strategy = (proptest::collection::vec(step(), 1..60), 1u64..);
    let result = runner.run(&strategy, |(steps, seed)| {
        let folder = scratch();
        let mut dice = Dice(seed);
        let mut model = Model::default();
        let mut store = Store::open(folder.path(), OpenOptions::default()).expect("opens");
        let mut table = store.create_table(world::schema()).wait().expect("creates");
        for (n, step) in steps.iter().enumerate() {
            if matches!(step, Step::Restart) {
                store.close();
                drop(store);
                store = Store::open(folder.path(), OpenOptions::default()).expect("opens again");
                table = store.table("t").expect("is there");
            } else {
                world::apply(&store, &table, &mut model, step, n as u64);
            }
            if dice.roll(10) == 0 {
                world::compare(&store, &table, &model, &mut dice);
            }
        }
        world::compare(&store, &table, &model, &mut dice);
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
