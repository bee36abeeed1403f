//! Counting tests from what cargo prints.
//!
//! libtest's machine-readable output is not stable, its closing lines are. A test that reported itself as not run (see
//! `test_support::Missing`) counts as passed there; the tally takes it out again.

/// Test results added up over all test binaries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    /// Names of failed tests, in the order they were reported.
    pub(crate) failures: Vec<String>,
}

impl Tally {
    /// Takes in one line of output.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            let Some((_verdict, counts)) = counts.split_once(". ") else { return };
            for count in counts.split("; ") {
                let mut words = count.split(' ');
                let (Some(number), Some(what)) = (words.next(), words.next()) else { continue };
                let Ok(number) = number.parse::<usize>() else { continue };
                match what {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    "ignored" => self.ignored += number,
                    _ => {}
                }
            }
        } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failures.push(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_binaries_add_up() {
        let mut tally = Tally::default();
        let output = "\
running 3 tests
test a::b ... ok
test a::c ... FAILED
test a::d ... ignored

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.31s

test result: ok. 16 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.00s
test crates/x/src/lib.rs - f (line 3) - compile ... ok
";
        output.lines().for_each(|line| tally.line(line));
        assert_eq!(tally, Tally { passed: 17, failed: 1, ignored: 1, failures: vec!["a::c".into()] });
    }

    #[test]
    fn other_lines_change_nothing() {
        let mut tally = Tally::default();
        for line in
            ["", "test result: ", "test result: ok", "test x ... ok", "12 passed", "test result: ok. x passed; 1"]
        {
            tally.line(line);
        }
        assert_eq!(tally, Tally::default());
    }
}
