//! The language reference, run: every row of its tables, and its list of lint codes against the source.

use metaroute_expr::{Dialect, Expr};

use crate::support::instance;

const PAGE: &str = include_str!("../../../../docs/expressions.md");

/// The rows of every table whose header has these columns.
fn rows(header: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut inside = false;
    for line in PAGE.lines() {
        if line == header {
            inside = true;
        } else if !line.starts_with('|') {
            inside = false;
        } else if inside && !line.starts_with("|---") {
            let line = line.replace("\\|", "\u{0}");
            let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().replace('\u{0}', "|"));
            rows.push(cells.collect());
        }
    }
    rows
}

/// Inside of a code span.
fn code(cell: &str) -> &str {
    match cell.strip_prefix("`` ") {
        Some(double) => double.trim_end_matches(" ``"),
        None => cell.trim_matches('`'),
    }
}

#[test]
fn results_are_as_printed() {
    let rows = rows("| Expression | Instance | Result |");
    assert!(rows.len() >= 45, "{}", rows.len());
    for row in rows {
        let [expression, metadata, expected] = &row[..] else { panic!("{row:?}") };
        assert_eq!(instance(metadata).says(code(expression)).to_string(), *expected, "{row:?}");
    }
}

#[test]
fn errors_are_as_printed() {
    let rows = rows("| Expression | Error | Hint |");
    assert!(rows.len() >= 8);
    for row in rows {
        let [expression, expected, hint] = &row[..] else { panic!("{row:?}") };
        let error = Expr::parse(code(expression)).expect_err(expression);
        assert_eq!((error.code, error.hint.as_deref()), (expected.as_str(), Some(hint.as_str())), "{row:?}");
    }
    let source = "env == blue green";
    assert!(PAGE.contains(&Expr::parse(source).unwrap_err().render(source)));
}

#[test]
fn the_dialects_answer_as_printed() {
    let rows = rows("| Expression | Instance | Seata | v1 |");
    assert!(rows.len() >= 10);
    for row in rows {
        let [expression, metadata, seata, ours] = &row[..] else { panic!("{row:?}") };
        for (dialect, expected) in [(Dialect::Seata, seata), (Dialect::V1, ours)] {
            let answer = match Expr::parse_as(code(expression), dialect) {
                Ok(_) => instance(metadata).says_as(code(expression), dialect).to_string(),
                Err(_) => "invalid".to_owned(),
            };
            assert_eq!(answer, *expected, "{dialect}: {row:?}");
        }
    }
}

#[test]
fn every_lint_code_is_listed() {
    let source = [
        include_str!("../../src/lint.rs"),
        include_str!("../../src/lint/tree.rs"),
        include_str!("../../src/lint/original.rs"),
    ]
    .concat();
    let listed: String = rows("| Code | Severity | Says |").iter().map(|row| row[0].clone() + " ").collect();
    let mut found = 0;
    for (at, _) in source.match_indices('"') {
        let text = source[at + 1..].split('"').next().unwrap_or("");
        let is_code = text.contains('_') && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if is_code && !text.starts_with("seata_") {
            assert!(listed.contains(&format!("`{text}`")), "{text} is not on the page");
            found += 1;
        }
    }
    assert!(found > 15, "{found}");
}
