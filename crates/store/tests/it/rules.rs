//! The rules of versions, tombstones and positions, one small case each.

use metaroute_store::{
    Batch, Chunk, Error, Expected, Lane, Lookup, OpenOptions, Outcome, ScanQuery, Store, Table, Value, Version, Walk,
};

use crate::model::scratch;
use crate::world::{self, ALL, Content};

struct Fixture {
    store: Store,
    table: Table,
    folder: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let folder = scratch();
    let store = Store::open(folder.path(), OpenOptions::default()).expect("opens");
    let table = store.create_table(world::schema()).wait().expect("creates");
    Fixture { store, table, folder }
}

fn v(n: u64) -> Version {
    Version::from(n)
}

fn content(owner: u64, size: u64) -> Content {
    Content { owner, at: Some(1), name: 1, size: Some(size), score: None, cents: None }
}

impl Fixture {
    fn apply(&self, change: impl FnOnce(&mut Batch, &Table)) -> Vec<Outcome> {
        let mut batch = Batch::new();
        change(&mut batch, &self.table);
        self.store.apply(batch).wait().expect("applies").outcomes
    }

    fn upsert(&self, id: u64, version: u64, content: &Content) -> Outcome {
        self.apply(|b, t| b.upsert(t, v(version), content.values(id)).expect("valid"))[0]
    }

    fn delete(&self, id: u64, version: u64) -> Outcome {
        self.apply(|b, t| b.delete(t, v(version), id, None))[0]
    }

    fn get(&self, id: u64) -> Lookup {
        self.store.view().expect("open").get(&self.table, id, ALL).expect("readable")
    }

    fn is(&self, id: u64, expected: Option<&Content>) {
        assert_eq!(self.get(id).into_row().map(|row| row.values), expected.map(|c| c.values(id)));
    }
}

const NEW: Outcome = Outcome::Applied { replaced: false };
const REPLACED: Outcome = Outcome::Applied { replaced: true };

#[test]
fn a_repeated_insert_is_one_row() {
    let f = fixture();
    assert_eq!(f.upsert(1, 10, &content(1, 5)), NEW);
    assert_eq!(f.upsert(1, 10, &content(1, 5)), Outcome::Duplicate);
    assert_eq!(f.upsert(1, 10, &content(1, 6)), Outcome::Conflict, "same version, other content: somebody should look");
    assert_eq!(f.upsert(1, 9, &content(1, 7)), Outcome::Stale);
    f.is(1, Some(&content(1, 5)));
    assert_eq!(f.store.view().expect("open").totals(&f.table, None).expect("readable").rows, 1);
    let gauges = f.store.gauges();
    assert_eq!((gauges.stale, gauges.conflicts), (2, 1));
}

#[test]
fn a_delete_before_its_insert_leaves_nothing() {
    let f = fixture();
    assert_eq!(f.delete(1, 12), NEW);
    assert_eq!(f.upsert(1, 11, &content(1, 5)), Outcome::Stale);
    f.is(1, None);
    assert_eq!(f.get(1), Lookup::Deleted(v(12)));
    assert_eq!(f.delete(1, 12), Outcome::Duplicate);
}

#[test]
fn a_late_chunk_row_loses_against_a_newer_delete_and_wins_against_an_older_update() {
    let f = fixture();
    f.delete(1, 21);
    assert_eq!(f.upsert(1, 20, &content(1, 5)), Outcome::Stale);
    f.upsert(2, 19, &content(1, 1));
    assert_eq!(f.upsert(2, 20, &content(1, 2)), REPLACED);
    f.is(2, Some(&content(1, 2)));
}

#[test]
fn a_key_that_moves_twice_out_of_order_ends_in_one_place() {
    let f = fixture();
    f.upsert(1, 1, &content(1, 9));
    // 2 -> 3 arrives before 1 -> 2.
    f.apply(|b, t| {
        b.delete(t, v(3), 2, None);
        b.upsert(t, v(3), content(1, 9).values(3)).expect("valid");
    });
    f.apply(|b, t| {
        b.delete(t, v(2), 1, None);
        b.upsert(t, v(2), content(1, 9).values(2)).expect("valid");
    });
    f.is(1, None);
    f.is(2, None);
    f.is(3, Some(&content(1, 9)));
}

#[test]
fn a_row_that_changes_its_tenant_leaves_the_old_one() {
    let f = fixture();
    f.upsert(1, 1, &content(9, 4));
    f.upsert(1, 2, &content(12, 4));
    let view = f.store.view().expect("open");
    assert_eq!(view.totals(&f.table, Some(9)).expect("readable").rows, 0);
    assert_eq!(view.totals(&f.table, Some(12)).expect("readable").rows, 1);
    assert!(view.check(&metaroute_store::Cancel::new()).expect("readable").is_clean());
}

#[test]
fn rows_newer_than_a_truncate_survive_it_in_any_order() {
    let f = fixture();
    f.upsert(1, 10, &content(1, 1));
    f.upsert(2, 31, &content(1, 2));
    f.apply(|b, t| b.truncate(t, v(30)));
    f.is(1, None);
    f.is(2, Some(&content(1, 2)));
    assert_eq!(f.upsert(3, 29, &content(1, 3)), Outcome::Stale);
    assert_eq!(f.upsert(3, 30, &content(1, 3)), NEW, "below the truncate is gone, at it is not");
    assert_eq!(f.apply(|b, t| b.truncate(t, v(30)))[0], Outcome::Stale);
    let totals = f.store.view().expect("open").totals(&f.table, None).expect("readable");
    assert_eq!((totals.rows, totals.sum(0)), (2, 5));
}

#[test]
fn tombstones_stand_until_told_otherwise() {
    let f = fixture();
    f.upsert(1, 1, &content(1, 1));
    f.delete(1, 5);
    f.store.compact().wait().expect("compacts");
    assert_eq!(f.get(1), Lookup::Deleted(v(5)), "compaction alone drops no tombstone");
    f.apply(|b, t| b.expire_tombstones(t, v(5)));
    assert_eq!(f.get(1), Lookup::Deleted(v(5)), "only those below the floor go");
    f.apply(|b, t| b.expire_tombstones(t, v(6)));
    assert_eq!(f.get(1), Lookup::Absent);
    f.store.compact().wait().expect("compacts");
    let report = f.store.view().expect("open").check(&metaroute_store::Cancel::new()).expect("readable");
    assert_eq!((report.tables[0].garbage, report.is_clean()), (0, true), "and then leave the disk");
}

#[test]
fn a_partial_update_needs_its_row_and_refuses_the_whole_batch() {
    let f = fixture();
    f.upsert(1, 1, &content(1, 1));
    let mut batch = Batch::new();
    batch.upsert(&f.table, v(2), content(1, 2).values(1)).expect("valid");
    batch.update(&f.table, v(2), 7, vec![(4, Value::U64(3))]).expect("valid");
    batch.set_position(world::lane(), Expected::Any, Some(b"2".to_vec()));
    match f.store.apply(batch).wait() {
        Err(Error::NeedsFullRow { ids, .. }) => assert_eq!(ids, [7]),
        other => panic!("{other:?}"),
    }
    f.is(1, Some(&content(1, 1)));
    assert_eq!(f.store.view().expect("open").position(&world::lane()).expect("readable"), None);
    let mut batch = Batch::new();
    batch.update(&f.table, v(2), 1, vec![(4, Value::U64(3))]).expect("valid");
    assert_eq!(f.store.apply(batch).wait().expect("applies").outcomes, [REPLACED]);
    f.is(1, Some(&content(1, 3)));
    let mut batch = Batch::new();
    assert!(batch.update(&f.table, v(3), 1, vec![(0, Value::U64(2))]).is_err(), "the id is not a column to change");
    assert!(batch.update(&f.table, v(3), 1, vec![(1, Value::Null)]).is_err());
    assert!(batch.is_empty());
}

#[test]
fn positions_move_with_their_rows_or_not_at_all() {
    let f = fixture();
    let lane = |n: &str| Lane::new(n).expect("short");
    let moved = |lane: Lane, expected: Expected, to: &[u8], id: u64| {
        let mut batch = Batch::new();
        batch.upsert(&f.table, v(id), content(1, id).values(id)).expect("valid");
        batch.set_position(lane, expected, Some(to.to_vec()));
        f.store.apply(batch).wait()
    };
    moved(lane("a"), Expected::Absent, b"10", 1).expect("applies");
    moved(lane("b"), Expected::Any, b"77", 2).expect("applies");
    moved(lane("a"), Expected::At(b"10".to_vec()), b"20", 3).expect("applies");
    match moved(lane("a"), Expected::At(b"10".to_vec()), b"30", 4) {
        Err(Error::PositionMismatch { found, .. }) => assert_eq!(found.as_deref(), Some(b"20".as_slice())),
        other => panic!("{other:?}"),
    }
    f.is(4, None);
    assert!(matches!(moved(lane("a"), Expected::Absent, b"30", 4), Err(Error::PositionMismatch { .. })));
    let positions = f.store.view().expect("open").positions().expect("readable");
    assert_eq!(positions, [(lane("a"), b"20".to_vec()), (lane("b"), b"77".to_vec())]);
    let mut batch = Batch::new();
    batch.set_position(lane("a"), Expected::Any, None);
    f.store.apply(batch).wait().expect("applies");
    assert_eq!(f.store.view().expect("open").position(&lane("a")).expect("readable"), None);
}

#[test]
fn a_delete_that_names_a_tenant_touches_only_that_tenants_row() {
    let f = fixture();
    f.upsert(1, 1, &content(9, 1));
    let delete = |tenant, id| f.apply(|b, t| b.delete(t, v(5), id, Some(tenant)))[0];
    assert_eq!(delete(8, 1), Outcome::OtherTenant);
    f.is(1, Some(&content(9, 1)));
    assert_eq!(delete(9, 1), REPLACED);
    assert_eq!(delete(9, 2), Outcome::OtherTenant);
    assert_eq!(f.get(2), Lookup::Absent, "nothing was there and nothing is left behind");
}

#[test]
fn the_same_id_twice_in_a_batch_last_wins() {
    let f = fixture();
    let outcomes = f.apply(|b, t| {
        b.upsert(t, v(5), content(1, 1).values(1)).expect("valid");
        b.upsert(t, v(6), content(2, 2).values(1)).expect("valid");
    });
    assert_eq!(outcomes, [NEW, REPLACED]);
    f.is(1, Some(&content(2, 2)));
    assert!(f.store.view().expect("open").check(&metaroute_store::Cancel::new()).expect("readable").is_clean());
}

#[test]
fn attributes_are_kept() {
    let f = fixture();
    let mut batch = Batch::new();
    batch.set_attribute("shape", Some(b"2x2".to_vec())).expect("valid");
    assert!(batch.set_attribute("", None).is_err());
    f.store.apply(batch).wait().expect("applies");
    let Fixture { store, folder, .. } = f;
    store.close();
    let store = Store::open(folder.path(), OpenOptions::default()).expect("opens");
    let view = store.view().expect("open");
    assert_eq!(view.attribute("shape").expect("readable").as_deref(), Some(b"2x2".as_slice()));
    assert_eq!(view.attributes().expect("readable").len(), 1);
}

#[test]
fn a_nullable_column_is_added_without_touching_rows() {
    let f = fixture();
    f.upsert(1, 1, &content(1, 1));
    let mut declaration = world::schema().to_declaration();
    declaration.columns.0.insert(3, ("label".to_owned(), "string?".to_owned()));
    declaration.listing.push("label".to_owned());
    let wider = metaroute_store::Schema::parse(&declaration).expect("valid");
    let old = f.table.clone();
    let table = f.store.create_table(wider).wait().expect("compatible");
    assert_eq!((table.id(), table.schema().ordinal("label")), (old.id(), Some(7)));
    let with_label = |id, label: &str| {
        let mut row = content(1, 2).values(id);
        row.push(Value::String(label.into()));
        row
    };
    let mut batch = Batch::new();
    batch.upsert(&table, v(2), with_label(2, "x")).expect("valid");
    // A caller that has not heard of the column yet.
    batch.upsert(&old, v(2), content(1, 3).values(3)).expect("valid");
    batch.update(&old, v(3), 2, vec![(4, Value::U64(9))]).expect("valid");
    f.store.apply(batch).wait().expect("applies");
    let columns: Vec<usize> = (0..8).collect();
    for reopened in [false, true] {
        let store = if reopened {
            f.store.close();
            Store::open(f.folder.path(), OpenOptions::default()).expect("opens")
        } else {
            f.store.clone()
        };
        let table = store.table("t").expect("there");
        let page = store.view().expect("open").scan(&ScanQuery::all(Walk::of(&table, &columns))).expect("readable");
        let labels: Vec<_> = page.rows.iter().map(|row| row.values[7].clone()).collect();
        assert_eq!(labels, [Value::Null, Value::String("x".into()), Value::Null]);
        assert_eq!(page.rows[1].values[4], Value::U64(9));
        assert!(store.view().expect("open").check(&metaroute_store::Cancel::new()).expect("readable").is_clean());
        store.close();
    }
}

#[test]
fn several_tables_do_not_see_each_other() {
    let f = fixture();
    let mut declaration = world::schema().to_declaration();
    declaration.name = "other".into();
    declaration.time = None;
    let other = metaroute_store::Schema::parse(&declaration).expect("valid");
    let other = f.store.create_table(other).wait().expect("creates");
    assert_ne!(other.id(), f.table.id());
    f.upsert(1, 1, &content(1, 1));
    let mut batch = Batch::new();
    batch.upsert(&other, v(9), content(1, 70).values(1)).expect("valid");
    batch.truncate(&f.table, v(5));
    f.store.apply(batch).wait().expect("applies");
    f.is(1, None);
    let view = f.store.view().expect("open");
    let row = view.get(&other, 1, ALL).expect("readable").into_row().expect("there");
    assert_eq!((row.time, row.values), (None, content(1, 70).values(1)), "no time column: listed by id");
    assert!(matches!(f.store.table("nope"), Err(Error::UnknownTable(_))));
    // A handle of another store's table of the same number is refused, not misread.
    let elsewhere = fixture();
    let mut declaration = world::schema().to_declaration();
    declaration.name = "stranger".into();
    let stranger = elsewhere.store.create_table(metaroute_store::Schema::parse(&declaration).expect("valid"));
    let stranger = stranger.wait().expect("creates");
    assert_eq!(stranger.id(), other.id());
    let mut batch = Batch::new();
    batch.upsert(&stranger, v(1), content(1, 1).values(1)).expect("valid");
    assert!(matches!(f.store.apply(batch).wait(), Err(Error::UnknownTable(_))));
}

#[test]
fn a_bad_row_is_refused_and_named() {
    let f = fixture();
    let mut batch = Batch::new();
    let mut row = content(1, 1).values(3);
    row[4] = Value::String("big".into());
    let error = batch.upsert(&f.table, v(1), row).expect_err("wrong type");
    assert!(error.is_request());
    let text = format!("{error}: {}", std::error::Error::source(&error).expect("a cause"));
    assert_eq!(text, "table \"t\" refuses row 3: column \"size\"");
    assert!(batch.upsert(&f.table, v(1), vec![]).is_err());
    let mut row = content(1, 1).values(3);
    row[3] = Value::String("x".repeat(17 << 20));
    assert!(batch.upsert(&f.table, v(1), row).is_err(), "too long");
    assert!(batch.is_empty());
}

#[test]
fn chunks_must_lie_above_everything() {
    let f = fixture();
    let chunk = |first: u64| {
        let mut chunk = Chunk::new(&f.table);
        for id in first..first + 10 {
            chunk.push(v(1), content(id % 3, id).values(id)).expect("valid");
        }
        chunk
    };
    assert_eq!(f.store.ingest(chunk(0)).wait().expect("loads"), 10);
    assert!(matches!(f.store.ingest(chunk(9)).wait(), Err(Error::NotAbove { first: 9, highest: 9 })));
    f.delete(500, 1);
    assert!(matches!(f.store.ingest(chunk(100)).wait(), Err(Error::NotAbove { highest: 500, .. })), "tombstones count");
    let mut unsorted = chunk(600);
    assert!(matches!(unsorted.push(v(1), content(1, 1).values(604)), Err(Error::BadRequest(_))));
    assert_eq!(f.store.ingest(unsorted).wait().expect("loads what was valid"), 10);
    assert_eq!(f.store.ingest(Chunk::new(&f.table)).wait().expect("nothing to do"), 0);
    f.apply(|b, t| b.truncate(t, v(2)));
    assert!(matches!(f.store.ingest(chunk(0)).wait(), Err(Error::BadRequest(_))), "versions below the truncate");
    let view = f.store.view().expect("open");
    assert!(view.check(&metaroute_store::Cancel::new()).expect("readable").is_clean());
}
