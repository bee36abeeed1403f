//! What earlier builds wrote must open in this one.
//!
//! `tests/fixtures/format-N` holds a closed store and a checkpoint as the first build of format N wrote
//! them, and what is in them. To make the fixture of a new format, raise `FORMAT` and run this test
//! once with `METAROUTE_WRITE_FIXTURE=1`; older folders stay as they are.

use std::path::{Path, PathBuf};

use metaroute_store::{
    Batch, Cancel, CheckpointLimits, Expected, OpenOptions, ScanQuery, Schema, Store, Value, Version, Walk,
};

use crate::model::scratch;
use crate::world::{self, Content};

const FORMAT: u32 = 2;

fn fixture(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format!("format-{format}"))
}

/// Every type, with and without NULL.
fn wide() -> Schema {
    let declaration = serde_json::from_str(
        r#"{"name":"wide","id":"i","tenant":"t","time":"ts","columns":{"i":"u64","t":"u64","a":"u64?","b":"i64?",
        "c":"f64?","d":"bool?","e":"decimal(20,4)?","f":"string?","g":"bytes?","h":"json?","ts":"timestamp(3)?",
        "k":"datetime(6)?","l":"date?"},"listing":["f","a"]}"#,
    );
    Schema::parse(&declaration.expect("valid JSON")).expect("valid")
}

fn wide_row(id: u64) -> Vec<Value> {
    if id.is_multiple_of(3) {
        let mut row = vec![Value::Null; 13];
        row[0] = Value::U64(id);
        row[1] = Value::U64(0);
        return row;
    }
    vec![
        Value::U64(id),
        Value::U64(u64::MAX - id % 2),
        Value::U64(u64::MAX),
        Value::I64(i64::MIN + id as i64),
        Value::F64(-1.5e-7 * id as f64),
        Value::Bool(id.is_multiple_of(2)),
        Value::Decimal(format!("-{id}.0001")),
        Value::String(format!("héllo {id}")),
        Value::Bytes(vec![0, 255, id as u8]),
        Value::Json(r#"{"a": [1, 2.50]}"#.into()),
        Value::Timestamp(-1_000 * id as i64),
        Value::Datetime(1_700_000_000_123_456 + id as i64),
        Value::Date(-(id as i32)),
    ]
}

fn small_row(id: u64) -> Vec<Value> {
    Content { owner: id % 4, at: Some(id as i64), name: 2, size: Some(id * 10), score: None, cents: Some(-5) }
        .values(id)
}

fn write(folder: &Path) {
    let store_folder = folder.join("store");
    let store = Store::open(&store_folder, OpenOptions::default()).expect("opens");
    let t = store.create_table(world::schema()).wait().expect("creates");
    let w = store.create_table(wide()).wait().expect("creates");
    let mut chunk = metaroute_store::Chunk::new(&t);
    for id in 1..=100 {
        chunk.push(Version::from(1), small_row(id)).expect("valid");
    }
    store.ingest(chunk).wait().expect("loads");
    let mut batch = Batch::new();
    for id in 0..30 {
        batch.upsert(&w, Version::new(b"\x01\x02").expect("short"), wide_row(id)).expect("valid");
    }
    for id in 90..=100 {
        batch.delete(&t, Version::from(2), id, None);
    }
    batch.set_position(world::lane(), Expected::Absent, Some(b"position 7".to_vec()));
    batch.set_attribute("shape", Some(b"2x3".to_vec())).expect("valid");
    store.apply(batch).wait().expect("applies");
    let mut file = std::fs::File::create(folder.join("checkpoint")).expect("makes");
    store.checkpoint(&mut file, CheckpointLimits::default(), &Cancel::new()).expect("writes");
    store.close();
    // The reserve of the journal is 64 MiB of zeros; the engine does without.
    let engine = store_folder.join("engine");
    for entry in std::fs::read_dir(engine).expect("lists") {
        let path = entry.expect("lists").path();
        if path.extension().is_some_and(|ext| ext == "jnl") {
            let bytes = std::fs::read(&path).expect("reads");
            let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
            std::fs::write(&path, &bytes[..end]).expect("writes");
        }
    }
}

fn verify(folder: &Path) {
    let store = Store::open(folder, OpenOptions::default()).expect("opens");
    let view = store.view().expect("open");
    let report = view.check(&Cancel::new()).expect("readable");
    assert!(report.is_clean(), "{:?}", report.problems);
    let (t, w) = (store.table("t").expect("there"), store.table("wide").expect("there"));
    assert_eq!((t.schema(), w.schema()), (&world::schema(), &wide()));
    let all = |table: &metaroute_store::Table, columns: usize| {
        let columns: Vec<usize> = (0..columns).collect();
        let query =
            ScanQuery { tombstones: true, ..ScanQuery::all(Walk { limit: 1_000, ..Walk::of(table, &columns) }) };
        view.scan(&query).expect("readable")
    };
    let page = all(&t, 7);
    let expected: Vec<_> = (1..90).map(small_row).collect();
    assert_eq!(page.rows.into_iter().map(|r| r.values).collect::<Vec<_>>(), expected);
    assert_eq!(
        page.tombstones.iter().map(|t| (t.id, t.version)).collect::<Vec<_>>(),
        (90..=100).map(|id| (id, Version::from(2))).collect::<Vec<_>>()
    );
    let page = all(&w, 13);
    assert!(page.rows.iter().all(|row| row.version.as_bytes() == b"\x01\x02"));
    assert_eq!(page.rows.into_iter().map(|r| r.values).collect::<Vec<_>>(), (0..30).map(wide_row).collect::<Vec<_>>());
    assert_eq!(view.totals(&t, Some(1)).expect("readable").rows, 23);
    assert_eq!(view.position(&world::lane()).expect("readable").as_deref(), Some(b"position 7".as_slice()));
    assert_eq!(view.attribute("shape").expect("readable").as_deref(), Some(b"2x3".as_slice()));
    store.close();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("makes");
    for entry in std::fs::read_dir(from).expect("lists") {
        let entry = entry.expect("lists");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copies");
        }
    }
}

#[test]
fn stores_and_checkpoints_of_every_format_open() {
    if std::env::var_os("METAROUTE_WRITE_FIXTURE").is_some() {
        let folder = fixture(FORMAT);
        assert!(!folder.exists(), "{} is there already and stays as it is", folder.display());
        std::fs::create_dir_all(&folder).expect("makes");
        write(&folder);
    }
    for format in 1..=FORMAT {
        let folder = scratch();
        copy(&fixture(format).join("store"), &folder.path().join("store"));
        verify(&folder.path().join("store"));
        let restored = folder.path().join("restored");
        let mut file = std::fs::File::open(fixture(format).join("checkpoint")).expect("is there");
        Store::restore(&restored, &mut file, OpenOptions::default(), &Cancel::new()).expect("restores");
        verify(&restored);
    }
}

#[test]
fn an_older_folder_goes_on_in_its_own_format() {
    for format in 1..=FORMAT {
        let folder = scratch();
        copy(&fixture(format).join("store"), folder.path());
        let store = Store::open(folder.path(), OpenOptions::default()).expect("opens");
        let t = store.table("t").expect("there");
        let mut chunk = metaroute_store::Chunk::new(&t);
        for id in 200..300 {
            chunk.push(Version::from(3), small_row(id)).expect("valid");
        }
        store.ingest(chunk).wait().expect("loads");
        let mut batch = Batch::new();
        batch.upsert(&t, Version::from(3), small_row(7)).expect("valid");
        batch.delete(&t, Version::from(3), 8, None);
        store.apply(batch).wait().expect("applies");
        store.compact().wait().expect("compacts");
        let mut saved = Vec::new();
        store.checkpoint(&mut saved, CheckpointLimits::default(), &Cancel::new()).expect("writes");
        store.close();
        drop(store);
        let text = std::fs::read_to_string(folder.path().join("FORMAT")).expect("is there");
        assert_eq!(text, format!("metaroute store {format}\n"));
        let restored = scratch();
        Store::restore(restored.path(), &mut saved.as_slice(), OpenOptions::default(), &Cancel::new())
            .expect("restores");
        let text = std::fs::read_to_string(restored.path().join("FORMAT")).expect("is there");
        assert_eq!(text, format!("metaroute store {FORMAT}\n"), "a restore is of the newest");
        for path in [folder.path(), restored.path()] {
            let store = Store::open(path, OpenOptions::default()).expect("opens");
            let view = store.view().expect("open");
            let report = view.check(&Cancel::new()).expect("readable");
            assert!(report.is_clean(), "{:?}", report.problems);
            let columns: Vec<usize> = (0..7).collect();
            let page = view.scan(&ScanQuery::all(Walk { limit: 1_000, ..Walk::of(&t, &columns) })).expect("readable");
            let expected = (1..90).chain(200..300).filter(|id| *id != 8).map(small_row).collect::<Vec<_>>();
            assert_eq!(page.rows.into_iter().map(|r| r.values).collect::<Vec<_>>(), expected);
            store.close();
        }
    }
}

#[test]
fn what_this_build_writes_it_reads() {
    let folder = scratch();
    write(folder.path());
    verify(&folder.path().join("store"));
}
