use super::*;
use proptest::prelude::*;

fn ty(text: &str) -> ColumnType {
    text.parse().expect("a type")
}

#[test]
fn types_read_and_print() {
    for text in [
        "u64",
        "i64",
        "f64",
        "bool",
        "decimal(65,30)",
        "decimal(1,0)",
        "string",
        "bytes",
        "json",
        "timestamp(6)",
        "datetime(0)",
        "date",
    ] {
        assert_eq!(ty(text).to_string(), text);
    }
    assert_eq!(ty("timestamp"), ColumnType::Timestamp { digits: 0 });
    assert_eq!(ty("decimal( 10 , 2 )"), ColumnType::Decimal { precision: 10, scale: 2 });
    for text in [
        "",
        "U64",
        "int",
        "decimal",
        "decimal(0,0)",
        "decimal(66,0)",
        "decimal(5,6)",
        "decimal(40,31)",
        "timestamp(7)",
        "u64(3)",
        "timestamp(",
        "decimal(1,2,3)",
        "date)",
        "timestamp(+3)",
        "decimal(10,)",
    ] {
        assert!(text.parse::<ColumnType>().is_err(), "{text:?} must be refused");
    }
}

#[test]
fn decimals_become_canonical_or_are_refused() {
    let check = |text: &str| match Value::from_text(ty("decimal(5,2)"), text) {
        Ok(Value::Decimal(d)) => d,
        Ok(other) => panic!("{other:?}"),
        Err(e) => format!("error: {e}"),
    };
    assert_eq!(check("1"), "1.00");
    assert_eq!(check("+001.5"), "1.50");
    assert_eq!(check("-0.00"), "0.00");
    assert_eq!(check(".5"), "0.50");
    assert_eq!(check("5."), "5.00");
    assert_eq!(check("-999.990"), "-999.99");
    for text in ["1000", "0.001", "1e2", "", "-", ".", "1.2.3", " 1", "NaN"] {
        assert!(check(text).starts_with("error"), "{text:?} must be refused");
    }
    assert_eq!(unscaled("-12.34"), Some(-1234));
}

#[test]
fn times_keep_their_digits() {
    let t = ty("timestamp(3)");
    assert!(Value::from_text(t, "2024-02-29T23:59:60.5+01:00").is_err(), "a leap second would become another one");
    let v = Value::from_text(t, "2024-02-29T23:59:59.250+01:00").expect("valid");
    assert_eq!(v.to_text(t).as_deref(), Some("2024-02-29T22:59:59.250Z"));
    assert!(Value::from_text(t, "2024-02-29T22:59:59.2501Z").is_err(), "a fourth digit is lost");
    assert!(Value::from_text(t, "2024-02-30T00:00:00Z").is_err());
    let d = ty("datetime(6)");
    for text in ["0000-01-01T00:00:00.000000", "1969-12-31T23:59:59.999999", "9999-12-31T23:59:59.999999"] {
        assert_eq!(Value::from_text(d, text).expect(text).to_text(d).as_deref(), Some(text));
    }
    for text in ["2024-01-01T00:00:00Z", "2024-01-01T00:00:00+05:00", "2024-01-01T00:00:00[Europe/Berlin]"] {
        assert!(Value::from_text(d, text).is_err(), "a datetime has no zone that could be dropped: {text}");
    }
    let t = ty("timestamp(6)");
    for text in ["0000-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"] {
        assert_eq!(Value::from_text(t, text).expect(text).to_text(t).as_deref(), Some(text));
    }
    for text in ["9999-12-31T23:59:59-00:01", "0000-01-01T00:00:00+00:01", "2024-01-01T00:00:00", "2024-01-01"] {
        assert!(Value::from_text(t, text).is_err(), "{text}");
    }
    assert!(Value::from_text(ColumnType::Date, "1969-12-31T12:00:00").is_err(), "a clock would be dropped");
    let day = Value::from_text(ColumnType::Date, "1969-12-31").expect("valid");
    assert_eq!(day, Value::Date(-1));
    assert_eq!(day.to_text(ColumnType::Date).as_deref(), Some("1969-12-31"));
}

#[test]
fn integers_meet_where_they_fit() {
    assert_eq!(Value::I64(7).for_column(ColumnType::U64, false), Ok(Value::U64(7)));
    assert!(Value::I64(-7).for_column(ColumnType::U64, false).is_err());
    assert!(Value::U64(u64::MAX).for_column(ColumnType::I64, true).is_err());
    assert_eq!(Value::from_text(ColumnType::U64, "18446744073709551615"), Ok(Value::U64(u64::MAX)));
    assert!(Value::from_text(ColumnType::U64, "18446744073709551616").is_err());
    assert!(Value::from_text(ColumnType::I64, "+5").is_err());
    assert!(Value::F64(f64::NAN).for_column(ColumnType::F64, true).is_err());
    assert!(Value::Json("{".into()).for_column(ColumnType::Json, true).is_err());
    assert_eq!(Value::Null.for_column(ColumnType::Date, false), Err(ValueError::Null));
}

proptest! {
    #[test]
    fn datetime_text_round_trips(micros in MICROS_MIN..=MICROS_MAX, digits in 0u8..=6) {
        let unit = micros_per_unit(digits);
        let v = Value::Datetime(micros.div_euclid(unit) * unit);
        let t = ColumnType::Datetime { digits };
        let v = v.for_column(t, false).expect("in range");
        let text = v.to_text(t).expect("text").into_owned();
        prop_assert_eq!(Value::from_text(t, &text).expect("reads its own text"), v);
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,40}") {
        for t in ["u64", "i64", "f64", "bool", "decimal(9,3)", "json", "timestamp(3)", "datetime(6)", "date"] {
            let _ = Value::from_text(ty(t), &text);
        }
        let _ = text.parse::<ColumnType>();
    }
}
