//! Damaged files: named, refused, never answered from.

use std::path::{Path, PathBuf};

use metaroute_store::{
    Batch, Cancel, Chunk, Error, Expected, ListQuery, OpenOptions, Problem, ScanQuery, Store, Table, Value, Version,
    Walk,
};

use crate::model::scratch;
use crate::world::{self, ALL, Content, Dice};

const ROWS: u64 = 3_000;

fn content(id: u64) -> Content {
    Content { owner: id % 5, at: Some(id as i64), name: 1, size: Some(id), score: None, cents: None }
}

fn row(id: u64) -> Vec<Value> {
    let mut row = content(id).values(id);
    row[3] = Value::String(format!("{:016x}", (id + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    row
}

/// A closed store whose rows are partly in tables and partly only in the journal.
fn make(folder: &Path, in_tables: bool) {
    let store = Store::open(folder, OpenOptions::default()).expect("opens");
    let table = store.create_table(world::schema()).wait().expect("creates");
    if in_tables {
        let mut chunk = Chunk::new(&table);
        for id in 0..ROWS {
            chunk.push(Version::from(1), row(id)).expect("valid");
        }
        store.ingest(chunk).wait().expect("loads");
        store.compact().wait().expect("compacts");
        store.close();
        return;
    }
    for first in (0..ROWS).step_by(50) {
        let mut batch = Batch::new();
        for id in first..first + 50 {
            batch.upsert(&table, Version::from(1), row(id)).expect("valid");
        }
        batch.set_position(world::lane(), Expected::Any, Some((first + 50).to_be_bytes().to_vec()));
        store.apply(batch).wait().expect("applies");
    }
}

/// Copies a store's folder; of journals only what is not reserve.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("makes");
    for entry in std::fs::read_dir(from).expect("lists") {
        let entry = entry.expect("lists");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            let mut bytes = std::fs::read(entry.path()).expect("reads");
            if entry.path().extension().is_some_and(|ext| ext == "jnl") {
                bytes.truncate(bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1));
            }
            std::fs::write(target, bytes).expect("writes");
        }
    }
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("lists") {
        let path = entry.expect("lists").path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

fn flip(file: &Path, at: usize, bit: u8) {
    let mut bytes = std::fs::read(file).expect("reads");
    bytes[at] ^= 1 << bit;
    std::fs::write(file, bytes).expect("writes");
}

/// Reads everything; errors are fine, wrong rows are not.
fn read_all(store: &Store, table: &Table) -> Result<usize, Error> {
    let view = store.view()?;
    let mut query = ScanQuery::all(Walk { limit: 1_000, ..Walk::of(table, ALL) });
    let mut rows = 0;
    loop {
        let page = view.scan(&query)?;
        for found in &page.rows {
            assert_eq!(found.values, row(found.id), "row {} is wrong", found.id);
            rows += 1;
        }
        match page.next {
            None => break,
            next => query.after = next,
        }
    }
    for id in (0..ROWS).step_by(97) {
        if let Some(found) = view.get(table, id, ALL)?.into_row() {
            assert_eq!(found.values, row(id), "row {id} is wrong");
        }
    }
    let columns = table.schema().default_columns();
    let mut listed = 0;
    for tenant in 0..5 {
        let mut query = ListQuery {
            walk: Walk { limit: 1_000, ..Walk::of(table, &columns) },
            tenant,
            from: None,
            to: None,
            after: None,
        };
        loop {
            let page = view.list(&query)?;
            for found in &page.rows {
                let row = row(found.id);
                let expected: Vec<_> = columns.iter().map(|&at| row[at].clone()).collect();
                assert_eq!(found.values, expected, "entry {} is wrong", found.id);
                listed += 1;
            }
            match page.next {
                None => break,
                next => query.after = next,
            }
        }
    }
    assert_eq!(listed, rows, "rows and index disagree");
    Ok(rows)
}

#[test]
fn a_flipped_bit_in_a_table_is_an_error_that_names_the_file() {
    let made = scratch();
    make(made.path(), true);
    let mut all = Vec::new();
    files(&made.path().join("engine").join("keyspaces"), &mut all);
    // One of the index and one of the rows.
    let of = |tree: &str| all.iter().filter(|f| f.parent().is_some_and(|p| p.ends_with(tree))).collect::<Vec<_>>();
    let tables = [of("1/tables"), of("2/tables")].concat();
    assert_eq!(tables.len(), 2, "{all:?}");
    let mut dice = Dice(0x1234_5678);
    let (mut refused, mut failed, mut harmless) = (0, 0, 0);
    for n in 0..80 {
        let table = tables[n / 40];
        let relative = table.strip_prefix(made.path()).expect("inside").to_owned();
        let len = std::fs::metadata(table).expect("is there").len() as usize;
        let folder = scratch();
        copy(made.path(), folder.path());
        let file = folder.path().join(&relative);
        // Every other near the end, where filter, index and footer are.
        let at = if n % 2 == 0 {
            len - 1 - dice.roll(8_000.min(len as u64)) as usize
        } else {
            dice.roll(len as u64) as usize
        };
        flip(&file, at, dice.roll(8) as u8);
        let store = match Store::open(folder.path(), OpenOptions::default()) {
            Ok(store) => store,
            Err(Error::Corrupt { file: named, .. }) => {
                assert_eq!(named, file, "flip at {at} of {len}");
                refused += 1;
                continue;
            }
            Err(other) => panic!("flip at {at} of {len}: {other}"),
        };
        let table = store.table("t").expect("there");
        match read_all(&store, &table) {
            Ok(rows) => {
                assert_eq!(rows as u64, ROWS, "flip at {at} of {len} loses rows in silence");
                harmless += 1;
            }
            Err(error) => {
                assert!(error.is_corruption(), "{error}");
                let Error::Corrupt { file: named, .. } = error else { panic!("{error}") };
                assert_eq!(named, file);
                let report = store.view().expect("open").check(&Cancel::new()).expect("reads on");
                assert_eq!(report.problems, [Problem::DamagedFile(file)]);
                failed += 1;
            }
        }
    }
    assert!(failed > 5 && refused > 0, "{refused} refused, {failed} failed, {harmless} harmless");
}

#[test]
fn a_damaged_manifest_is_named() {
    let made = scratch();
    make(made.path(), true);
    let folder = made.path().join("engine").join("keyspaces").join("1");
    let current = std::fs::read(folder.join("current")).expect("reads");
    let number = u64::from_le_bytes(current[..8].try_into().expect("eight bytes"));
    let manifest = folder.join(format!("v{number}"));
    let manifest = manifest.strip_prefix(made.path()).expect("inside").to_owned();
    let len = std::fs::metadata(made.path().join(&manifest)).expect("is there").len();
    let mut dice = Dice(0xfeed);
    // The engine itself would panic on some of these and abort on others.
    for _ in 0..20 {
        let folder = scratch();
        copy(made.path(), folder.path());
        let at = dice.roll(len) as usize;
        flip(&folder.path().join(&manifest), at, dice.roll(8) as u8);
        match Store::open(folder.path(), OpenOptions::default()) {
            Err(Error::Corrupt { file, .. }) => {
                assert_eq!(file, folder.path().join(&manifest), "flip at {at} of {len}")
            }
            other => panic!("flip at {at} of {len}: {other:?}"),
        }
    }
    let current = Path::new("engine/keyspaces/1/current");
    for at in (0..24).step_by(3) {
        let folder = scratch();
        copy(made.path(), folder.path());
        flip(&folder.path().join(current), at, 2);
        let refused = Store::open(folder.path(), OpenOptions::default());
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "flip at {at}: {refused:?}");
    }
}

fn journal(folder: &Path) -> PathBuf {
    let mut all = Vec::new();
    files(&folder.join("engine"), &mut all);
    all.into_iter().find(|f| f.extension().is_some_and(|ext| ext == "jnl")).expect("a journal")
}

/// What a killed process leaves: the folder of a store that is open and idle.
fn killed(folder: &Path) {
    let live = scratch();
    let store = Store::open(live.path(), OpenOptions::default()).expect("opens");
    let table = store.create_table(world::schema()).wait().expect("creates");
    for first in (0..ROWS).step_by(50) {
        let mut batch = Batch::new();
        for id in first..first + 50 {
            batch.upsert(&table, Version::from(1), row(id)).expect("valid");
        }
        batch.set_position(world::lane(), Expected::Any, Some((first + 50).to_be_bytes().to_vec()));
        store.apply(batch).wait().expect("applies");
    }
    copy(live.path(), folder);
}

#[test]
fn a_flipped_bit_in_the_journal_is_refused_and_cut_only_when_told() {
    let made = scratch();
    killed(made.path());
    let len = std::fs::metadata(journal(made.path())).expect("is there").len() as usize;
    let mut dice = Dice(0x8765_4321);
    let mut refused = 0;
    for _ in 0..40 {
        let folder = scratch();
        copy(made.path(), folder.path());
        let file = journal(folder.path());
        let at = dice.roll(len as u64) as usize;
        flip(&file, at, dice.roll(8) as u8);
        let before = std::fs::read(&file).expect("reads");
        match Store::open(folder.path(), OpenOptions::default()) {
            Ok(store) => {
                // The last commit's sequence number may change without a trace and without harm.
                let table = store.table("t").expect("there");
                let rows = read_all(&store, &table).expect("readable") as u64;
                assert!(
                    rows == ROWS || (rows == ROWS - 50 && at > len - 15_000),
                    "{rows} rows after a flip at {at} of {len}"
                );
            }
            Err(Error::JournalDamaged { file: named, copy, offset, lost_bytes }) => {
                refused += 1;
                assert_eq!(named, file);
                assert!(offset as usize <= at && lost_bytes > 0);
                assert_eq!(std::fs::read(&file).expect("reads"), before, "refused means untouched");
                let copied = std::fs::read(copy.join(file.file_name().expect("a name"))).expect("reads");
                assert_eq!(copied, before, "and the copy is whole");
                // Refused again until told.
                let again = Store::open(folder.path(), OpenOptions::default());
                assert!(matches!(again, Err(Error::JournalDamaged { .. })), "{again:?}");
                let told = OpenOptions { accept_damaged_journal: true, ..OpenOptions::default() };
                let store = Store::open(folder.path(), told).expect("opens when told");
                let Ok(table) = store.table("t") else { continue };
                let rows = read_all(&store, &table).expect("readable") as u64;
                let position = store.view().expect("open").position(&world::lane()).expect("readable");
                let position = position.map_or(0, |p| u64::from_be_bytes(p.try_into().expect("eight bytes")));
                assert_eq!(rows, position, "an exact prefix: the position says how much to read again");
                assert!(store.view().expect("open").check(&Cancel::new()).expect("readable").is_clean());
            }
            Err(other) => panic!("flip at {at} of {len}: {other}"),
        }
    }
    assert!(refused > 20, "only {refused} of 40 flips were seen");
}

#[test]
fn a_torn_end_of_the_journal_is_no_damage() {
    let made = scratch();
    killed(made.path());
    let len = std::fs::metadata(journal(made.path())).expect("is there").len();
    let mut dice = Dice(77);
    for n in 0..12 {
        let folder = scratch();
        copy(made.path(), folder.path());
        let file = journal(folder.path());
        let cut = len - 1 - dice.roll(4_000);
        let mut bytes = std::fs::read(&file).expect("reads");
        bytes.truncate(cut as usize);
        if n % 2 == 1 {
            bytes.extend(std::iter::repeat_n(0, 100_000));
        }
        std::fs::write(&file, bytes).expect("writes");
        let store = Store::open(folder.path(), OpenOptions::default()).expect("a torn tail is normal");
        let table = store.table("t").expect("there");
        let rows = read_all(&store, &table).expect("readable") as u64;
        assert_eq!(rows, ROWS - 50, "only the torn commit is gone");
        assert!(folder.path().join("journal-copies").join("1").is_dir(), "copied aside after an unclean stop");
        store.close();
        drop(store);
        let _again = Store::open(folder.path(), OpenOptions::default()).expect("opens after a clean stop");
        assert!(!folder.path().join("journal-copies").join("2").exists(), "nothing to copy after a clean stop");
    }
}

#[test]
fn folders_that_are_no_store_are_left_alone() {
    let folder = scratch();
    std::fs::write(folder.path().join("letter.txt"), "dear").expect("writes");
    assert!(matches!(Store::open(folder.path(), OpenOptions::default()), Err(Error::NotAStore { .. })));
    let nothing = folder.path().join("nothing");
    let closed = OpenOptions { create: false, ..OpenOptions::default() };
    assert!(matches!(Store::open(&nothing, closed), Err(Error::NotAStore { .. })));
    assert!(!nothing.exists());

    let folder = scratch();
    let store = Store::open(folder.path(), OpenOptions::default()).expect("opens");
    assert!(matches!(Store::open(folder.path(), OpenOptions::default()), Err(Error::Locked(_))));
    store.close();
    assert!(matches!(store.view(), Err(Error::Closed)));
    assert!(matches!(store.apply(Batch::new()).wait(), Err(Error::Closed)));
    drop(store);
    std::fs::write(folder.path().join("FORMAT"), "metaroute store 9\n").expect("writes");
    match Store::open(folder.path(), OpenOptions::default()) {
        Err(Error::NotAStore { reason, .. }) => assert!(reason.contains("metaroute store 9"), "{reason}"),
        other => panic!("{other:?}"),
    }
}
