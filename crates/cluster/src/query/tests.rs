use super::*;
use crate::testing::file_metadata;

fn query(request: QueryRequest) -> Result<Query, Failure> {
    Query::new(&file_metadata(), request)
}

fn filtered(filter: &str) -> QueryRequest {
    QueryRequest { tenant: Some(9), filter: Some(filter.to_owned()), ..QueryRequest::default() }
}

fn key(text: &str) -> Option<TimeKey> {
    let value = Value::from_text(metaroute_store::ColumnType::Timestamp { digits: 6 }, text).expect("a time");
    TimeKey::of(value.as_ref())
}

#[test]
fn the_path_follows_from_what_is_named() {
    for (tenant, ids, path) in [
        (Some(9), Some(vec![1]), Path::A),
        (Some(9), Some(vec![1, 1]), Path::A),
        (Some(9), Some(vec![1, 2]), Path::AB),
        (Some(9), Some(vec![]), Path::AB),
        (Some(9), None, Path::B),
        (None, Some(vec![1]), Path::CI),
        (None, Some(vec![1, 2]), Path::CI),
        (None, None, Path::C),
    ] {
        let query = query(QueryRequest { tenant, ids, ..QueryRequest::default() }).expect("legal");
        assert_eq!(query.path(), path);
    }
}

#[test]
fn orders_are_the_documented_ones() {
    let order = |tenant, ids, order: Option<&str>| {
        let order = order.map(str::to_owned);
        query(QueryRequest { tenant, ids, order, ..QueryRequest::default() }).map(|query| query.order_text())
    };
    assert_eq!(order(Some(9), None, None).expect("legal"), "created_at:desc");
    assert_eq!(order(Some(9), None, Some("created_at:asc")).expect("legal"), "created_at:asc");
    assert_eq!(order(Some(9), None, Some("created_at")).expect("legal"), "created_at:asc", "`FIELD[:desc]`");
    assert_eq!(order(Some(9), None, Some("created_at:desc")).expect("legal"), "created_at:desc");
    assert_eq!(order(Some(9), None, Some("time:asc")).expect("legal"), "created_at:asc");
    assert_eq!(order(None, None, None).expect("legal"), "file_id:asc");
    assert_eq!(order(None, None, Some("file_id:desc")).expect("legal"), "file_id:desc");
    assert_eq!(order(Some(9), Some(vec![1]), None).expect("legal"), "file_id:asc");
    for (tenant, text) in [(Some(9), "file_id"), (None, "created_at"), (Some(9), "size"), (Some(9), "created_at:up")] {
        assert_eq!(order(tenant, None, Some(text)).expect_err(text).code, Code::OrderNotSupported, "{text}");
    }
}

#[test]
fn limits_are_enforced_and_nothing_is_clamped() {
    let limited = |limit| query(QueryRequest { limit: Some(limit), ..QueryRequest::default() });
    assert_eq!(query(QueryRequest::default()).expect("legal").limit, 100);
    assert_eq!(limited(1000).expect("legal").limit, 1000);
    for limit in [0, 1001, u64::MAX] {
        assert_eq!(limited(limit).expect_err("out of range").code, Code::BadRequest);
    }
    let ids = Some((0..1001).collect());
    assert_eq!(query(QueryRequest { ids, ..QueryRequest::default() }).expect_err("too many").code, Code::BadRequest);
    let long = format!("path == \"{}\"", "x".repeat(WHERE_BYTES_MAX));
    assert_eq!(query(filtered(&long)).expect_err("too long").code, Code::BadExpression);
}

#[test]
fn bad_names_and_expressions_say_where() {
    let failure = query(filtered("size > 10 && nosuch == 1")).expect_err("unknown");
    assert_eq!((failure.code, failure.at), (Code::UnknownField, Some(Place { line: 1, column: 14 })));
    let failure = query(filtered("size >")).expect_err("unfinished");
    assert_eq!(failure.code, Code::BadExpression);
    assert!(failure.at.is_some());
    assert_eq!(query(filtered("$req.x == 1")).expect_err("no request").code, Code::BadExpression);
    let fields = Some(vec!["szie".to_owned()]);
    let failure = query(QueryRequest { fields, ..QueryRequest::default() }).expect_err("unknown");
    assert_eq!(failure.code, Code::UnknownField);
    assert_eq!(failure.hint.as_deref(), Some("did you mean `size`?"));
}

#[test]
fn time_bounds_inside_where_are_found() {
    for (filter, from, to) in [
        ("created_at >= \"2026-01-01T00:00:00Z\"", Some("2026-01-01T00:00:00Z"), None),
        ("created_at > \"2026-01-01T00:00:00Z\"", Some("2026-01-01T00:00:00.000001Z"), None),
        ("created_at < \"2026-01-01\" && size > 3", None, Some("2026-01-01T00:00:00Z")),
        ("created_at <= \"2026-01-01T01:00:00+01:00\"", None, Some("2026-01-01T00:00:00.000001Z")),
        ("\"2026-01-01\" <= created_at", Some("2026-01-01T00:00:00Z"), None),
        ("created_at == \"2026-01-01\"", Some("2026-01-01T00:00:00Z"), Some("2026-01-01T00:00:00.000001Z")),
        ("created_at >= \"2026-01-01\" || size > 3", None, None),
        ("!(created_at >= \"2026-01-01\")", None, None),
        ("created_at != \"2026-01-01\"", None, None),
        ("created_at >= nonsense", None, None),
    ] {
        let Ok(query) = query(filtered(filter)) else {
            assert!(filter.contains("nonsense") || filter.starts_with('"'), "{filter} is refused");
            continue;
        };
        assert_eq!(query.from, from.and_then(key), "{filter}");
        assert_eq!(query.to, to.and_then(key), "{filter}");
    }
}

#[test]
fn the_tighter_bound_wins() {
    let request = QueryRequest {
        from: Some(Value::String("2026-02-01T00:00:00Z".into())),
        to: Some(Value::String("2026-03-01T00:00:00Z".into())),
        ..filtered("created_at >= \"2026-01-01\" && created_at < \"2026-02-15\"")
    };
    let query = query(request).expect("legal");
    assert_eq!(query.from, key("2026-02-01T00:00:00Z"));
    assert_eq!(query.to, key("2026-02-15T00:00:00Z"));
    assert_eq!(query.found.comparisons.len(), 2);
}

#[test]
fn bounds_of_the_wrong_kind_are_refused() {
    let from = Some(Value::Bool(true));
    assert_eq!(query(QueryRequest { from, ..QueryRequest::default() }).expect_err("bool").code, Code::BadRequest);
    let from = Some(Value::String("yesterday".into()));
    assert_eq!(query(QueryRequest { from, ..QueryRequest::default() }).expect_err("word").code, Code::BadRequest);
}

#[test]
fn the_limit_is_not_part_of_the_fingerprint_and_the_filter_is() {
    let of = |filter: &str, limit| {
        query(QueryRequest { limit: Some(limit), ..filtered(filter) }).expect("legal").fingerprint()
    };
    assert_eq!(of("size > 1", 5), of("size>1", 6));
    assert_ne!(of("size > 1", 5), of("size > 2", 5));
}
