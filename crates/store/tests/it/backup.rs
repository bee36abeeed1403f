//! Checkpoints and restores.

use metaroute_store::{
    Batch, Cancel, CheckpointLimits, Error, Expected, OpenOptions, Schema, Store, Version, verify_checkpoint,
};

use crate::model::scratch;
use crate::world::{self, Content, Dice, Model, Op, Step};

fn content(dice: &mut Dice) -> Content {
    Content {
        owner: dice.roll(5),
        at: (dice.roll(4) > 0).then(|| dice.roll(8) as i64 - 4),
        name: dice.roll(4) as u8,
        size: Some(dice.roll(1 << 30)),
        score: (dice.roll(2) > 0).then(|| dice.roll(9) as i64 - 4),
        cents: Some(dice.roll(600) as i64 - 300),
    }
}

fn filled(folder: &std::path::Path, model: &mut Model) -> Store {
    let store = Store::open(folder, OpenOptions::default()).expect("opens");
    let table = store.create_table(world::schema()).wait().expect("creates");
    let mut dice = Dice(99);
    let chunk = (0..4_000).map(|_| (dice.roll(3), 1 + dice.roll(9), content(&mut dice))).collect();
    world::apply(&store, &table, model, &Step::Ingest(chunk), 1);
    let ops = (0..2_000).map(|_| {
        let (id, version) = (dice.roll(9_000), 1 + dice.roll(20));
        match dice.roll(3) {
            0 => Op::Delete { id, version, tenant: None },
            _ => Op::Upsert { id, version, content: content(&mut dice) },
        }
    });
    world::apply(&store, &table, model, &Step::Batch(ops.collect()), 2);
    world::apply(&store, &table, model, &Step::Batch(vec![Op::Truncate { version: 3 }, Op::Expire { version: 6 }]), 3);
    let mut declaration = world::schema().to_declaration();
    declaration.name = "empty".into();
    store.create_table(Schema::parse(&declaration).expect("valid")).wait().expect("creates");
    let mut batch = Batch::new();
    batch.set_attribute("shape", Some(b"1x1".to_vec())).expect("valid");
    store.apply(batch).wait().expect("applies");
    store
}

#[test]
fn a_restored_store_equals_the_checkpointed_one() {
    let folder = scratch();
    let mut model = Model::default();
    let store = filled(folder.path(), &mut model);
    let mut bytes = Vec::new();
    let made = store.checkpoint(&mut bytes, CheckpointLimits::default(), &Cancel::new()).expect("writes");
    assert_eq!(made.bytes, bytes.len() as u64);
    assert_eq!(verify_checkpoint(&mut bytes.as_slice()).expect("whole"), made);
    // Later writes are not part of it.
    let table = store.table("t").expect("there");
    let mut batch = Batch::new();
    batch.truncate(&table, Version::from(1_000));
    store.apply(batch).wait().expect("applies");

    let target = scratch();
    let path = target.path().join("restored");
    let restored =
        Store::restore(&path, &mut bytes.as_slice(), OpenOptions::default(), &Cancel::new()).expect("restores");
    assert_eq!(restored, made);
    let store = Store::open(&path, OpenOptions::default()).expect("opens");
    let table = store.table("t").expect("there");
    world::compare(&store, &table, &model, &mut Dice(5));
    assert!(store.table("empty").is_ok());
    let view = store.view().expect("open");
    assert_eq!(view.attribute("shape").expect("readable").as_deref(), Some(b"1x1".as_slice()));
    // Floors came along: old changes stay outlawed.
    let mut more = model.clone();
    let old = Step::Batch(vec![
        Op::Upsert { id: 1, version: 2, content: content(&mut Dice(3)) },
        Op::Upsert { id: 70_000, version: 2, content: content(&mut Dice(3)) },
    ]);
    world::apply(&store, &table, &mut more, &old, 4);
    let again = Store::restore(&path, &mut bytes.as_slice(), OpenOptions::default(), &Cancel::new());
    assert!(matches!(again, Err(Error::NotAStore { .. })), "restores into a store: {again:?}");
}

#[test]
fn damaged_and_cut_checkpoints_are_refused_and_leave_a_folder_to_try_again() {
    let folder = scratch();
    let store = filled(folder.path(), &mut Model::default());
    let mut bytes = Vec::new();
    store.checkpoint(&mut bytes, CheckpointLimits::default(), &Cancel::new()).expect("writes");
    let mut dice = Dice(31);
    let target = scratch();
    let path = target.path().join("restored");
    let restore = |bytes: &[u8]| Store::restore(&path, &mut &*bytes, OpenOptions::default(), &Cancel::new());
    for n in 0..60 {
        let mut damaged = bytes.clone();
        if n % 3 == 0 {
            damaged.truncate(dice.roll(bytes.len() as u64) as usize);
        } else {
            let at = dice.roll(bytes.len() as u64) as usize;
            damaged[at] ^= 1 << dice.roll(8);
        }
        let refused = verify_checkpoint(&mut damaged.as_slice());
        assert!(refused.is_err(), "round {n}");
        if n % 10 == 1 {
            assert!(restore(&damaged).is_err());
            if path.exists() {
                let opened = Store::open(&path, OpenOptions::default());
                assert!(matches!(opened, Err(Error::NotAStore { .. })), "a half-restored folder opens: {opened:?}");
            }
        }
    }
    assert!(matches!(restore(b"something else, long enough"), Err(Error::Checkpoint(_))));
    restore(&bytes).expect("the same folder serves another try");
    Store::open(&path, OpenOptions::default()).expect("opens");
}

#[test]
fn a_checkpoint_of_a_running_store_is_one_state() {
    let folder = scratch();
    let store = Store::open(folder.path(), OpenOptions::default()).expect("opens");
    let table = store.create_table(world::schema()).wait().expect("creates");
    let write = |n: u64| {
        let mut batch = Batch::new();
        for id in 0..200 {
            let c = Content { owner: id % 3, at: None, name: 0, size: Some(n), score: None, cents: None };
            batch.upsert(&table, Version::from(n), c.values(id)).expect("valid");
        }
        batch.set_position(world::lane(), Expected::Any, Some(n.to_be_bytes().to_vec()));
        store.apply(batch).wait().expect("applies");
    };
    write(1);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 1;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                n += 1;
                write(n);
            }
        });
        for _ in 0..5 {
            let mut bytes = Vec::new();
            store.checkpoint(&mut bytes, CheckpointLimits::default(), &Cancel::new()).expect("writes");
            let target = scratch();
            let path = target.path().join("restored");
            Store::restore(&path, &mut bytes.as_slice(), OpenOptions::default(), &Cancel::new()).expect("restores");
            let restored = Store::open(&path, OpenOptions::default()).expect("opens");
            let view = restored.view().expect("open");
            let position = view.position(&world::lane()).expect("readable").expect("set");
            let n = u64::from_be_bytes(position.try_into().expect("eight bytes"));
            let totals = view.totals(&restored.table("t").expect("there"), None).expect("readable");
            assert_eq!((totals.rows, totals.sum(0)), (200, i128::from(n) * 200));
            restored.close();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let cancel = Cancel::new();
    cancel.cancel();
    let cancelled = store.checkpoint(&mut Vec::new(), CheckpointLimits::default(), &cancel);
    assert!(matches!(cancelled, Err(Error::Cancelled)));
}
