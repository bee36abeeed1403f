//! `metaroute store`, `backup` and `restore`.

use std::path::Path;

use metaroute_store::{Batch, Declaration, OpenOptions, Schema, Store, Value, Version};

use crate::rows::Process;
use crate::run::{metaroute, metaroute_with};

const DECLARATION: &str = "\
stores:
- {name: docs, id: doc_id, tenant: owner, time: at,
   columns: {doc_id: u64, owner: u64, at: \"timestamp(3)?\", title: string, price: \"decimal(10,2)?\"}, listing: [title]}
";

fn make(folder: &Path) {
    let declaration: Declaration = serde_json::from_str(
        r#"{"name":"docs","id":"doc_id","tenant":"owner","time":"at","columns":{"doc_id":"u64","owner":"u64",
            "at":"timestamp(3)?","title":"string","price":"decimal(10,2)?"},"listing":["title"]}"#,
    )
    .expect("valid JSON");
    let store = Store::open(folder, OpenOptions::default()).expect("opens");
    let docs = store.create_table(Schema::parse(&declaration).expect("valid")).wait().expect("creates");
    let mut batch = Batch::new();
    for id in 1..=50 {
        let row = vec![
            Value::U64(u64::MAX - id),
            Value::U64(id % 3),
            Value::Timestamp(1_700_000_000_123_000),
            Value::String(format!("doc {id}")),
            Value::Decimal("1.50".into()),
        ];
        batch.upsert(&docs, Version::from(1), row).expect("valid");
    }
    batch.delete(&docs, Version::from(2), u64::MAX - 1, None);
    store.apply(batch).wait().expect("applies");
    store.close();
}

#[test]
fn a_declaration_is_checked_with_its_place() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("stores.yaml");
    std::fs::write(&file, DECLARATION).expect("writes");
    let run = metaroute(["store", "check", &file.display().to_string(), "--format", "json"]);
    assert_eq!(run.status, 0, "{run:?}");
    let checked = run.json();
    assert_eq!(checked["clean"], true);
    assert_eq!(checked["stores"][0]["columns"]["at"], "timestamp(3)?");

    std::fs::write(&file, DECLARATION.replace("string", "text")).expect("writes");
    let run = metaroute(["store", "check", &file.display().to_string(), "--format", "json"]);
    assert_eq!(run.status, 2, "{run:?}");
    assert_eq!(run.error()["at"]["line"], 2, "{run:?}");
}

#[test]
fn a_folder_is_checked_dumped_backed_up_and_restored() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("data");
    make(&data.join("shards/g0.s0"));
    make(&data.join("shards/g0.s1"));
    std::fs::write(data.join("shape.json"), "{\"groups\":1}").expect("writes");
    let text = |path: &Path| path.display().to_string();

    let run = metaroute(["store", "check", &text(&data), "--format", "json"]);
    assert_eq!(run.status, 0, "{run:?}");
    let checked = run.json();
    assert_eq!(checked["stores"].as_array().map(Vec::len), Some(2));
    assert_eq!(checked["stores"][0]["tables"][0]["rows"], 49);
    assert_eq!(checked["stores"][0]["tables"][0]["tombstones"], 1);

    let run = metaroute(["store", "dump", &text(&data), "--table", "docs", "--format", "ndjson"]);
    assert_eq!(run.status, 0, "{run:?}");
    let lines: Vec<serde_json::Value> =
        run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let row = lines
        .iter()
        .find(|line| line["kind"] == "row" && line["id"].as_str() == Some("18446744073709551606"))
        .expect("row");
    assert_eq!(row["row"]["at"], "2023-11-14T22:13:20.123Z");
    assert_eq!(row["row"]["price"], "1.50");
    assert_eq!(lines.iter().filter(|line| line["kind"] == "tombstone").count(), 2);

    let backup = folder.path().join("backup");
    let run = metaroute(["backup", &text(&backup), "--data", &text(&data), "--format", "json"]);
    assert_eq!(run.status, 0, "{run:?}");
    assert_eq!(run.json()["stores"][1]["path"], "shards/g0.s1");
    let run = metaroute(["backup", &text(&backup), "--data", &text(&data)]);
    assert_eq!(run.status, 2, "a backup is not written over: {run:?}");

    let restored = folder.path().join("restored");
    let run = metaroute(["restore", &text(&backup), "--data", &text(&restored)]);
    assert_eq!(run.status, 0, "{run:?}");
    assert_eq!(std::fs::read_to_string(restored.join("shape.json")).expect("is there"), "{\"groups\":1}");
    let run = metaroute(["store", "check", &text(&restored), "--format", "json"]);
    for what in ["rows", "tombstones", "tenants"] {
        let of = |checked: &serde_json::Value| checked["stores"][1]["tables"][0][what].clone();
        assert_eq!(of(&run.json()), of(&checked), "{what}: {run:?}");
    }

    std::fs::remove_file(backup.join("backup.json")).expect("is there");
    let run = metaroute(["restore", &text(&backup), "--data", &text(&folder.path().join("other"))]);
    assert_eq!(run.status, 2, "an unfinished backup is not restored: {run:?}");
}

#[test]
fn a_running_server_is_backed_up_while_rows_arrive() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = |path: &Path| path.display().to_string();
    let data = folder.path().join("data");
    let up = Process::up(&data, &["--groups", "2", "--shards", "2"]);
    let lines = |ids: std::ops::Range<u64>| -> String {
        let line = |id| format!("{{\"file_id\":{id},\"user_id\":{},\"path\":\"/{id}\"}}\n", id % 50);
        ids.map(line).collect()
    };
    let import = |ids| metaroute_with(["import", "file_metadata", "-", "--server", up.address()], &lines(ids));
    assert_eq!(import(0..3_000).status, 0);
    assert_eq!(up.run(&["backup", "http://127.0.0.1/backup"]).status, 2);

    let backup = folder.path().join("backup");
    let saved = std::thread::scope(|scope| {
        let writing = scope.spawn(|| import(3_000..9_000));
        let saved = up.run(&["backup", &text(&backup), "--format", "json"]);
        assert_eq!(writing.join().expect("no panic").status, 0);
        saved
    });
    assert_eq!(saved.status, 0, "{saved:?}");
    let stores = saved.json()["stores"].as_array().cloned().expect("a list");
    assert_eq!(stores.len(), 4, "{stores:?}");
    let rows: u64 = stores.iter().filter_map(|store| store["rows"].as_u64()).sum();
    assert!((3_000..=9_000).contains(&rows), "{rows}");
    assert_eq!(up.run(&["backup", &text(&backup)]).status, 2, "a backup is not written over");
    let open = metaroute(["backup", &text(&folder.path().join("open")), "--data", &text(&data), "--format", "json"]);
    assert_eq!((open.status, &open.error()["code"]), (3, &"store_locked".into()), "{open:?}");
    assert_eq!(up.end(), Some(0));

    let restored = folder.path().join("restored");
    let run = metaroute(["restore", &text(&backup), "--data", &text(&restored)]);
    assert_eq!(run.status, 0, "{run:?}");
    let run = metaroute(["store", "check", &text(&restored)]);
    assert_eq!(run.status, 0, "{run:?}");
    let up = Process::up(&restored, &[]);
    let count = up.run(&["query", "file_metadata", "--allow", "global", "--all", "--format", "ndjson"]);
    assert_eq!((count.status, count.stdout.lines().count() as u64), (0, rows));
    let newer = metaroute_with(["import", "file_metadata", "-", "--server", up.address()], &lines(0..1));
    assert_eq!(newer.status, 0, "{newer:?}");
    assert_eq!(up.end(), Some(0));

    let gone = metaroute(["backup", &text(&folder.path().join("gone")), "--server", "http://127.0.0.1:1"]);
    assert_eq!(gone.status, 3, "{gone:?}");
    assert!(!folder.path().join("gone").exists(), "nothing is left behind");
}

#[test]
fn damage_is_a_no_and_a_store_in_use_is_out_of_reach() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("store");
    make(&data);
    let text = data.display().to_string();
    let store = Store::open(&data, OpenOptions::default()).expect("opens");
    let run = metaroute(["store", "check", &text, "--format", "json"]);
    assert_eq!((run.status, &run.error()["code"]), (3, &"store_locked".into()), "{run:?}");
    store.close();
    drop(store);

    let current = data.join("engine/keyspaces/1/current");
    let mut bytes = std::fs::read(&current).expect("is there");
    bytes[10] ^= 1;
    std::fs::write(&current, bytes).expect("writes");
    let run = metaroute(["store", "check", &text, "--format", "json"]);
    assert_eq!(run.status, 1, "{run:?}");
    let problem = run.json()["stores"][0]["problems"][0].to_string();
    assert!(problem.contains("keyspaces/1/v"), "names the file: {problem}");

    let run = metaroute(["store", "check", &folder.path().join("nowhere").display().to_string()]);
    assert_eq!(run.status, 2, "{run:?}");
}
