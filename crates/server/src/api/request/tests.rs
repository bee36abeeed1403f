use super::*;
use crate::stores::file_metadata;

fn query(body: &str) -> Result<QueryBody, Problem> {
    QueryBody::parse(body.as_bytes(), &file_metadata(), Kind::Query)
}

fn refused(body: &str) -> (&'static str, String) {
    let problem = query(body).expect_err("refused");
    (problem.code, problem.detail)
}

#[test]
fn tenant_and_id_have_two_names_and_one_value() {
    let both = query(r#"{"user_id": "9007199254740993", "tenant": 9007199254740993, "file_id": 7, "ids": [7]}"#)
        .expect("they agree");
    assert_eq!(both.query.tenant, Some(9_007_199_254_740_993));
    assert_eq!(both.query.ids, Some(vec![7]));
    let (code, detail) = refused(r#"{"user_id": 1, "tenant": 2}"#);
    assert_eq!((code, detail.as_str()), ("bad_request", "`user_id` and `tenant` say different things"));
    assert_eq!(refused(r#"{"file_id": 1, "file_ids": [1, 2]}"#).0, "bad_request");
    assert_eq!(query(r#"{"file_ids": []}"#).expect("legal").query.ids, Some(vec![]));
    assert_eq!(query(r#"{"user_id": null}"#).expect("legal").query.tenant, None);
    assert_eq!(query("").expect("an empty body asks for everything").query.tenant, None);
}

#[test]
fn unknown_and_unsupported_fields_are_named() {
    assert_eq!(refused(r#"{"user": 1}"#).0, "unknown_field");
    assert_eq!(refused(r#"{"offset": 10}"#).0, "offset_not_supported");
    assert_eq!(refused(r#"{"offset": null}"#).0, "offset_not_supported");
    let hint = query(r#"{"user_di": 1}"#).expect_err("refused").document();
    assert_eq!(hint["hint"], "did you mean `user_id`?");
    assert_eq!(refused(r#"{"limit": "ten"}"#).0, "bad_request");
    assert_eq!(refused(r#"{"user_id": 18446744073709551616}"#).0, "bad_request");
    assert_eq!(refused(r#"{"allow": "everything"}"#).0, "bad_request");
    assert_eq!(refused(r#"{"user_id": 1"#).0, "bad_request");
    assert_eq!(refused("[]").0, "bad_request");
}

#[test]
fn bounds_are_times_of_the_column() {
    let body = query(r#"{"from": "2024-01-01T00:00:00Z", "to": "2024-01-01T00:00:00.0000005Z"}"#);
    assert!(body.is_err(), "finer than a microsecond");
    let body = query(r#"{"from": "2024-01-01T01:00:00+01:00"}"#).expect("legal");
    assert_eq!(body.query.from, Some(Value::Timestamp(1_704_067_200_000_000)));
    let up = |micros, digits| round_up(Value::Timestamp(micros), ColumnType::Timestamp { digits });
    assert_eq!(up(1_000_001, 0), Value::Timestamp(2_000_000));
    assert_eq!(up(1_000_000, 0), Value::Timestamp(1_000_000));
    assert_eq!(up(-1, 3), Value::Timestamp(0));
}

#[test]
fn rows_are_read_whole_or_not_at_all() {
    let store = file_metadata();
    let one = r#"{"id": 7, "tenant": "9", "path": "/a", "created_at": "2024-01-01T00:00:00Z"}"#;
    let body = RowsBody::parse(format!("{{\"rows\": [{one}]}}").as_bytes(), &store).expect("legal");
    assert_eq!(body.rows[0][0..3], [Value::U64(7), Value::U64(9), Value::String("/a".into())]);
    let lines = RowsBody::parse_lines(format!("\n{one}\r\n\n{one}").as_bytes(), &store).expect("legal");
    assert_eq!(lines.rows.len(), 1, "the same id twice counts once");

    let refused = |row: &str| {
        let problem = RowsBody::parse(format!("{{\"rows\": [{row}]}}").as_bytes(), &store).expect_err("refused");
        (problem.code, problem.detail)
    };
    assert_eq!(refused(r#"{"file_id": 7, "user_id": 9}"#).1, "row 1: column `path` must have a value");
    assert_eq!(refused(r#"{"file_id": 7, "user_id": 9, "path": "/a", "pth": "/b"}"#).0, "unknown_field");
    assert_eq!(refused(r#"{"file_id": 7, "id": 8, "user_id": 9, "path": "/a"}"#).0, "bad_request");
    assert_eq!(refused(r#"{"file_id": 7, "user_id": -1, "path": "/a"}"#).0, "bad_request");
    assert_eq!(refused("7").0, "bad_request");
    let lines = RowsBody::parse_lines(b"{\"file_id\": 1, \"user_id\": 1, \"path\": \"/\"}\n{oops}\n", &store);
    assert!(lines.expect_err("refused").detail.starts_with("row 2 (line 2)"));
}

#[test]
fn the_last_of_twins_wins() {
    let store = file_metadata();
    let body = r#"{"rows": [{"id": 1, "tenant": 1, "path": "/old"}, {"id": 2, "tenant": 1, "path": "/b"},
                            {"id": 1, "tenant": 2, "path": "/new"}]}"#;
    let body = RowsBody::parse(body.as_bytes(), &store).expect("legal");
    let rows: Vec<&[Value]> = body.rows.iter().map(|row| &row[..3]).collect();
    let row = |id, tenant, path: &str| [Value::U64(id), Value::U64(tenant), Value::String(path.into())];
    assert_eq!(rows, [row(2, 1, "/b"), row(1, 2, "/new")]);
}

#[test]
fn lines_are_told_from_a_list() {
    for (body, lines) in [
        ("{\"id\": 1}\n{\"id\": 2}\n", true),
        ("\n{\"id\": 1}", true),
        ("{\"rows\": []}", false),
        ("{\n  \"rows\": []\n}", false),
        ("", false),
        ("nonsense", false),
    ] {
        assert_eq!(RowsBody::looks_like_lines(body.as_bytes()), lines, "{body}");
    }
}
