//! "Did you mean": the closest known name, if one is close enough to be a slip.

/// The candidate with the smallest edit distance, at most a third of the word's length (and one for short words).
pub(crate) fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.chars().flat_map(char::to_lowercase).collect();
    let limit = (word.len() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, candidate, limit), candidate))
        .filter(|(distance, candidate)| *distance <= limit && *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Optimal string alignment distance ignoring case: edits and swaps of neighbours count one each. `limit` + 1 stands
/// for "too far" where lengths alone say so.
fn distance(word: &[char], candidate: &str, limit: usize) -> usize {
    let candidate: Vec<char> = candidate.chars().flat_map(char::to_lowercase).collect();
    if word.len().abs_diff(candidate.len()) > limit {
        return limit + 1;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut previous: Vec<usize> = (0..=candidate.len()).collect();
    for (i, a) in word.iter().enumerate() {
        let mut current = vec![i + 1];
        for (j, b) in candidate.iter().enumerate() {
            let mut cost = (previous[j] + usize::from(a != b)).min(previous[j + 1] + 1).min(current[j] + 1);
            if i > 0 && j > 0 && *a == candidate[j - 1] && word[i - 1] == *b {
                cost = cost.min(before[j - 1] + 1);
            }
            current.push(cost);
        }
        before = std::mem::replace(&mut previous, current);
    }
    previous[candidate.len()]
}

#[cfg(test)]
mod tests {
    use super::closest;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let names = ["version", "region", "zone", "env"];
        assert_eq!(closest("verison", names), Some("version"));
        assert_eq!(closest("Region", names), Some("region"));
        assert_eq!(closest("zon", names), Some("zone"));
        assert_eq!(closest("tier", names), None);
        assert_eq!(closest("x", ["y"]), None, "one letter says nothing");
    }
}
