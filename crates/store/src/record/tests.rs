use super::*;
use crate::schema::{Declaration, DeclaredColumns};
use crate::value::Value;
use proptest::prelude::*;

fn schema(types: &[&str]) -> Schema {
    let mut columns = vec![("i".to_owned(), "u64".to_owned()), ("t".to_owned(), "u64".to_owned())];
    columns.extend(types.iter().enumerate().map(|(n, ty)| (format!("c{n}"), (*ty).to_owned())));
    Schema::parse(&Declaration {
        name: "x".into(),
        id: "i".into(),
        tenant: "t".into(),
        time: columns.iter().find(|(_, ty)| ty.starts_with("timestamp")).map(|(name, _)| name.clone()),
        columns: DeclaredColumns(columns),
        listing: vec![],
    })
    .expect("valid")
}

const ALL: [&str; 13] = [
    "u64?",
    "i64?",
    "f64?",
    "bool?",
    "decimal(20,4)?",
    "string?",
    "bytes?",
    "json?",
    "timestamp(3)?",
    "datetime(0)?",
    "date?",
    "timestamp(0)?",
    "timestamp(6)?",
];

fn read_row(schema: &Schema, key: &[u8], bytes: &[u8]) -> Result<(Version, Vec<Value>), RecordError> {
    let record = Record::read(key, bytes)?;
    let mut row = vec![Value::U64(0); schema.columns().len()];
    let origin = record.cells.own_origin(schema, schema.row_cells())?;
    record.cells.for_each(schema, schema.row_cells(), origin, |at, v| row[at] = v.into_owned())?;
    Ok((record.version(), row))
}

fn types(schema: &Schema) -> Vec<ColumnType> {
    schema.row_cells().iter().map(|&at| schema.columns()[at].ty).collect()
}

fn any_row() -> impl Strategy<Value = Vec<Value>> {
    let opt = |s: BoxedStrategy<Value>| prop_oneof![1 => Just(Value::Null), 4 => s];
    (
        any::<u64>().prop_map(Value::U64),
        opt(any::<u64>().prop_map(Value::U64).boxed()),
        opt(any::<i64>().prop_map(Value::I64).boxed()),
        opt((-1e300..1e300f64).prop_map(Value::F64).boxed()),
        opt(any::<bool>().prop_map(Value::Bool).boxed()),
        opt("-?[1-9][0-9]{0,14}\\.[0-9]{4}".prop_map(Value::Decimal).boxed()),
        opt("\\PC{0,30}".prop_map(Value::String).boxed()),
        opt(proptest::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bytes).boxed()),
        opt("[0-9]{1,5}".prop_map(|n| Value::Json(format!("{{\"n\":{}}}", n.trim_start_matches('0').len()))).boxed()),
        opt((-62_167_219_200_000i64..253_402_300_799_999).prop_map(|v| Value::Timestamp(v * 1000)).boxed()),
        (
            opt((-62_167_219_200i64..253_402_300_799).prop_map(|v| Value::Datetime(v * 1_000_000)).boxed()),
            opt((-700_000i32..2_900_000).prop_map(Value::Date).boxed()),
            opt((-62_167_219_200i64..253_402_300_799).prop_map(|v| Value::Timestamp(v * 1_000_000)).boxed()),
            opt((-62_167_219_200_000_000i64..253_402_300_799_999_999).prop_map(Value::Timestamp).boxed()),
        ),
    )
        .prop_map(|(t, a, b, c, d, e, f, g, h, i, (j, k, l, m))| {
            vec![Value::U64(0), t, a, b, c, d, e, f, g, h, i, j, k, l, m]
        })
}

proptest! {
    #[test]
    fn rows_round_trip(two: bool, row in any_row(), version in proptest::collection::vec(any::<u8>(), 0..=32)) {
        let schema = schema(&ALL);
        let row = schema.check_row(row).expect("valid");
        let version = Version::new(&version).expect("short");
        let key = b"key";
        let format = if two { CellFormat::Two } else { CellFormat::One };
        let bytes = live(format, key, &version, &schema, schema.row_cells(), |at| row[at].as_ref());
        prop_assert_eq!(bytes[0], format as u8);
        prop_assert_eq!(read_row(&schema, key, &bytes), Ok((version, row.clone())));
        prop_assert_eq!(read_row(&schema, b"kez", &bytes), Err(RecordError::Checksum));
        let record = Record::read(key, &bytes).expect("valid");
        let mut offsets = Vec::new();
        let cells = schema.row_cells();
        record.cells.locate(&types(&schema), &mut offsets).expect("valid");
        let origin = record.cells.own_origin(&schema, cells).expect("valid");
        for (n, &at) in cells.iter().enumerate() {
            let origin = if schema.time() == Some(at) { Origin::Epoch } else { origin };
            let got = record.cells.cell_at(offsets[n], schema.columns()[at].ty, origin).expect("valid");
            prop_assert_eq!(got, row[at].as_ref());
        }
    }

    #[test]
    fn every_flipped_bit_is_seen(row in any_row(), flip in any::<proptest::sample::Index>(), bit in 0u8..8) {
        let schema = schema(&ALL);
        let key = b"key";
        let mut bytes = live(CellFormat::Two, key, &Version::from(7), &schema, schema.row_cells(), |at| row[at].as_ref());
        let at = flip.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(read_row(&schema, key, &bytes).is_err());
    }

    #[test]
    fn any_bytes_read_without_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), seal_it: bool) {
        let schema = schema(&ALL);
        if seal_it { seal(b"k", &mut bytes); }
        let _ = read_row(&schema, b"k", &bytes);
        if let Ok(record) = Record::read(b"k", &bytes) {
            let mut offsets = Vec::new();
            if record.cells.locate(&types(&schema), &mut offsets).is_ok() {
                for (n, &at) in schema.row_cells().iter().enumerate() {
                    let _ = record.cells.cell_at(offsets[n], schema.columns()[at].ty, Origin::Timestamp(i64::MIN));
                }
            }
        }
    }

    #[test]
    fn integers_round_trip(a: u64, b: i64, c: i128) {
        let mut out = Vec::new();
        put_varint(&mut out, a);
        put_zigzag(&mut out, b);
        put_zigzag128(&mut out, c);
        let mut reader = Reader::new(&out);
        prop_assert_eq!(reader.varint(), Ok(a));
        prop_assert_eq!(reader.zigzag(), Ok(b));
        prop_assert_eq!(reader.zigzag128(), Ok(c));
        prop_assert!(reader.is_empty());
    }
}

#[test]
fn older_records_read_as_null_in_new_columns() {
    let old = schema(&["u64", "string?"]);
    let new = schema(&["u64", "string?", "i64?", "bool?"]);
    let row = [Value::U64(0), Value::U64(5), Value::U64(9), Value::String("x".into())];
    let bytes = live(CellFormat::Two, b"k", &Version::LOWEST, &old, old.row_cells(), |at| row[at].as_ref());
    let (_, read) = read_row(&new, b"k", &bytes).expect("readable");
    assert_eq!(read[1..], [Value::U64(5), Value::U64(9), Value::String("x".into()), Value::Null, Value::Null]);
    // The other way round there would be cells nobody knows.
    let row = [Value::U64(0), Value::U64(5), Value::U64(9), Value::Null, Value::Null, Value::Bool(true)];
    let bytes = live(CellFormat::Two, b"k", &Version::LOWEST, &new, new.row_cells(), |at| row[at].as_ref());
    assert_eq!(read_row(&old, b"k", &bytes), Err(RecordError::Bad("cell count")));
}

#[test]
fn the_small_kinds() {
    let t = tombstone(b"k", &Version::from(9));
    let record = Record::read(b"k", &t).expect("valid");
    assert_eq!((record.kind, record.version()), (Kind::Tombstone, Version::from(9)));
    let v = void(b"k");
    assert_eq!(Record::read(b"k", &v).expect("valid").kind, Kind::Void);
    assert_eq!(v.len(), 6);
    let mut future = vec![3, 0];
    seal(b"k", &mut future);
    assert_eq!(Record::read(b"k", &future).map(|_| ()), Err(RecordError::Format(3)));
    assert_eq!(Record::read(b"k", &[]).map(|_| ()), Err(RecordError::Truncated));
}
