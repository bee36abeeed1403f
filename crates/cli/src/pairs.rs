//! `key=value` arguments.

use std::collections::BTreeMap;

/// Splits at the first `=`; the value may hold more of them, or nothing.
///
/// # Errors
/// When there is no `=` or nothing before it.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err(format!("`{text}` has no key before `=`")),
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(format!("`{text}` is not key=value")),
    }
}

/// Pairs as a map; of a key given twice the last value counts, as with most tools.
pub(crate) fn map(pairs: &[(String, String)]) -> BTreeMap<String, String> {
    pairs.iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_split_at_the_first_equals_sign() {
        assert_eq!(pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(pair("a="), Ok(("a".into(), String::new())));
        assert!(pair("a").is_err() && pair("=b").is_err());
    }
}
