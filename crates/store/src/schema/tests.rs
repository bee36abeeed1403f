use super::*;
use proptest::prelude::*;

/// The built-in declaration, as JSON.
pub(crate) const FILE_METADATA: &str = r#"{"name":"file_metadata","id":"file_id","tenant":"user_id","time":"created_at",
 "columns":{"file_id":"u64","user_id":"u64","path":"string","size":"u64?","mime":"string?","content_hash":"bytes?",
 "created_at":"timestamp(6)?","updated_at":"timestamp(6)?"},"listing":["path","size","mime","updated_at"]}"#;

fn declare(json: &str) -> Declaration {
    serde_json::from_str(json).expect("a declaration")
}

fn error(change: impl FnOnce(&mut Declaration)) -> SchemaError {
    let mut declaration = declare(FILE_METADATA);
    change(&mut declaration);
    Schema::parse(&declaration).expect_err("must be refused")
}

#[test]
fn the_built_in_store_parses() {
    let schema = Schema::parse(&declare(FILE_METADATA)).expect("valid");
    let names = |ordinals: &[usize]| ordinals.iter().map(|&at| schema.columns()[at].name.as_str()).collect::<Vec<_>>();
    assert_eq!(names(schema.listing()), ["path", "size", "mime", "updated_at"]);
    assert_eq!(
        names(&schema.default_columns()),
        ["file_id", "user_id", "created_at", "path", "size", "mime", "updated_at"]
    );
    assert_eq!(names(schema.summed()), ["size"]);
    assert_eq!(Schema::decode(&schema.encode()), Ok(schema));
}

#[test]
fn mistakes_are_named() {
    let col = |d: &mut Declaration, name: &str, ty: &str| {
        d.columns.0.push((name.to_owned(), ty.to_owned()));
    };
    assert!(matches!(error(|d| d.name.clear()), SchemaError::BadName(_)));
    assert!(matches!(error(|d| d.name = "a/b".into()), SchemaError::BadName(_)));
    assert!(matches!(error(|d| col(d, "x", "int")), SchemaError::BadType { .. }));
    assert!(matches!(error(|d| col(d, "path", "u64")), SchemaError::Duplicate(_)));
    assert!(matches!(error(|d| d.listing.push("path".into())), SchemaError::Duplicate(_)));
    assert!(matches!(error(|d| d.listing.push("nope".into())), SchemaError::UnknownColumn { role: "listing", .. }));
    assert!(matches!(error(|d| d.id = "path".into()), SchemaError::BadRole { role: "id", .. }));
    assert!(matches!(error(|d| d.tenant = "size".into()), SchemaError::BadRole { role: "tenant", .. }));
    assert!(matches!(error(|d| d.tenant = "file_id".into()), SchemaError::BadRole { .. }));
    assert!(matches!(error(|d| d.time = Some("path".into())), SchemaError::BadRole { role: "time", .. }));
    assert!(matches!(
        error(|d| (0..COLUMNS_MAX).for_each(|n| col(d, &format!("c{n}"), "u64?"))),
        SchemaError::TooManyColumns(_)
    ));
}

#[test]
fn unknown_fields_of_a_declaration_are_refused() {
    let text = FILE_METADATA.replacen("\"name\"", "\"nmae\":1,\"name\"", 1);
    assert!(serde_json::from_str::<Declaration>(&text).is_err());
}

#[test]
fn only_nullable_columns_may_come() {
    let stored = Schema::parse(&declare(FILE_METADATA)).expect("valid");
    let evolve = |change: &dyn Fn(&mut Declaration)| {
        let mut declaration = declare(FILE_METADATA);
        change(&mut declaration);
        stored.evolve(&Schema::parse(&declaration).expect("valid"))
    };
    assert_eq!(evolve(&|_| ()).as_ref(), Ok(&stored));
    // A new column in the middle of the text still gets the next free ordinal.
    let grown = evolve(&|d| {
        d.columns.0.insert(1, ("owner".into(), "string?".into()));
        d.listing.push("owner".into());
    })
    .expect("compatible");
    assert_eq!(grown.ordinal("owner"), Some(8));
    assert_eq!(grown.ordinal("path"), stored.ordinal("path"));
    assert_eq!(grown.listing().last(), Some(&8));
    assert!(evolve(&|d| d.columns.0[2].1 = "string?".into()).is_ok(), "may become nullable");
    assert!(evolve(&|d| d.columns.0[3].1 = "u64".into()).is_err());
    assert!(evolve(&|d| d.columns.0[3].1 = "i64?".into()).is_err());
    assert!(evolve(&|d| d.columns.0.push(("x".into(), "u64".into()))).is_err());
    assert!(
        evolve(&|d| {
            d.columns.0.remove(5);
        })
        .is_err()
    );
    assert!(evolve(&|d| d.time = None).is_err());
    assert!(evolve(&|d| d.listing.push("content_hash".into())).is_err());
    assert!(
        evolve(&|d| {
            d.listing.pop();
        })
        .is_err()
    );
}

proptest! {
    #[test]
    fn the_reader_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Schema::decode(&bytes);
    }

    #[test]
    fn what_parses_survives_its_stored_form(
        types in proptest::collection::vec("(u64|i64|f64|bool|decimal\\([1-9],1\\)|string|bytes|json|timestamp\\([0-6]\\)|date)\\??", 0..20),
        time in any::<bool>(),
    ) {
        let mut columns = vec![("i".to_owned(), "u64".to_owned()), ("t".to_owned(), "u64".to_owned()), ("at".to_owned(), "datetime(3)?".to_owned())];
        let mut listing = Vec::new();
        for (n, ty) in types.into_iter().enumerate() {
            if n % 2 == 0 { listing.push(format!("c{n}")); }
            columns.push((format!("c{n}"), ty));
        }
        let declaration = Declaration {
            name: "x".into(), id: "i".into(), tenant: "t".into(),
            time: time.then(|| "at".to_owned()),
            columns: DeclaredColumns(columns), listing,
        };
        let schema = Schema::parse(&declaration).expect("valid");
        prop_assert_eq!(Schema::decode(&schema.encode()), Ok(schema.clone()));
        prop_assert_eq!(schema.evolve(&schema), Ok(schema.clone()));
    }
}
