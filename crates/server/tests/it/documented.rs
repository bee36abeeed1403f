//! The table of cases in the documentation names tests that exist.

use std::path::Path;

#[test]
fn the_documented_cases_have_their_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/operations.md")).expect("the page is there");
    let (_, table) = page.split_once("## What went wrong elsewhere").expect("the table is there");
    let mut tests = 0;
    for line in table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| case")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        for test in cells[2].split(", ") {
            let (name, file) = test.split_once(" (").expect("a name and its file");
            let (name, file) = (name.trim_matches('`'), file.trim_end_matches(')'));
            let number = name.trim_start_matches("case_").split('_').next().expect("a number").trim_start_matches('0');
            assert_eq!(number, cells[0], "{test}");
            let source = std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(source.contains(&format!("fn {name}(")), "{file} has no test {name}");
            tests += 1;
        }
    }
    assert!(tests > 50, "{tests} tests are documented");
}
