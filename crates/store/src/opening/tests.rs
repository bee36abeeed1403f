use super::*;
use crate::apply::{Cache, Delta, Layers};
use crate::batch::{Expected, PositionChange};
use crate::{Batch, Cancel, Chunk, Declaration, Lane, Store, Value, Version};

const LANE: &str = "load";

fn schema() -> Schema {
    let declaration: Declaration = serde_json::from_str(
        r#"{"name":"t","id":"i","tenant":"o","columns":{"i":"u64","o":"u64","size":"u64?"},"listing":["size"]}"#,
    )
    .expect("valid JSON");
    Schema::parse(&declaration).expect("valid declaration")
}

fn lane() -> Lane {
    Lane::new(LANE).expect("short")
}

/// A store in which a chunk of 500 rows was interrupted: after the intent, after the rows, after the
/// index. With `truncated`, the same ids were there before a truncate, and more between them.
fn interrupted(folder: &Path, parts: usize, truncated: bool) {
    let store = Store::open(folder, OpenOptions::default()).expect("opens");
    let table = store.create_table(schema()).wait().expect("creates");
    let mut batch = Batch::new();
    if truncated {
        for id in 5..1_200 {
            batch
                .upsert(&table, Version::from(0), vec![Value::U64(id), Value::U64(id % 7), Value::U64(9)])
                .expect("valid");
        }
        batch.truncate(&table, Version::from(1));
    }
    batch.upsert(&table, Version::from(1), vec![Value::U64(1), Value::U64(0), Value::U64(1)]).expect("valid");
    store.apply(batch).wait().expect("applies");
    store.close();
    drop(store);

    let opened = open_engine(folder, &OpenOptions::default(), false).expect("opens");
    let table = &opened.tables[0].table;
    let mut chunk = Chunk::new(table);
    for id in (10..1_010).step_by(2) {
        chunk.push(Version::from(2), vec![Value::U64(id), Value::U64(id % 7), Value::U64(id)]).expect("valid");
    }
    let snapshot = opened.engine.snapshot();
    let cache = Cache::default();
    let mut delta = Delta::default();
    let layers = Layers::new(&snapshot, &cache, &mut delta);
    let mut state = layers.state(table.id()).expect("readable");
    let counters = layers.add_totals(table, &state, &chunk).expect("readable");
    let position = PositionChange { lane: lane(), expected: Expected::Any, to: Some(b"510".to_vec()) };
    layers.apply(Batch { positions: vec![position], ..Batch::default() }).expect("applies");
    delta.counters.extend(counters);
    state.saw(1_008, &Version::from(2));
    delta.states.insert(table.id(), state);
    chunk.sort();
    let intent = Intent { first: 10, last: 1_008, entry: chunk.lowest_entry(), writes: delta.take_writes().items };
    let key = key::intent(table.id());
    let mut set = WriteSet::default();
    set.put(key.clone(), intent.encode(&key));
    opened.engine.commit(set, true).expect("commits");
    if parts > 0 {
        opened.engine.ingest(chunk.stored_rows()).expect("ingests");
    }
    if parts > 1 {
        opened.engine.ingest(chunk.stored_entries()).expect("ingests");
    }
}

#[test]
fn an_interrupted_chunk_is_finished_or_forgotten() {
    for (parts, truncated) in (0..=2).flat_map(|parts| [(parts, false), (parts, true)]) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        interrupted(folder.path(), parts, truncated);
        for _ in 0..2 {
            let store = Store::open(folder.path(), OpenOptions::default()).expect("opens");
            let view = store.view().expect("open");
            let table = store.table("t").expect("there");
            let rows = if parts == 0 { 1 } else { 501 };
            assert_eq!(view.totals(&table, None).expect("readable").rows, rows, "after {parts} parts");
            let position = view.position(&lane()).expect("readable");
            assert_eq!(position.is_some(), parts > 0, "the position says whether to load the chunk again");
            let report = view.check(&Cancel::new()).expect("readable");
            assert!(report.is_clean(), "after {parts} parts: {:?}", report.problems);
            assert_eq!(report.tables[0].entries, rows);
            store.close();
        }
    }
}
