//! A name as one segment of a key or path: whatever a user calls a service or an id, it stays one segment.

/// `%`, `/` and control characters as `%XX`, and names that mean something as a path (`.`, `..`) too.
pub(crate) fn encode(name: &str) -> String {
    if name == "." || name == ".." {
        return name.replace('.', "%2E");
    }
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        if c == '%' || c == '/' || (c.is_control() && c.is_ascii()) {
            out.push_str(&format!("%{:02X}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

/// The inverse; `None` for what is not UTF-8 in the end, or has `%` without two hexadecimal digits.
pub(crate) fn decode(segment: &str) -> Option<String> {
    crate::url::decode(segment).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_stay_one_segment() {
        assert_eq!(encode("a/b%c"), "a%2Fb%25c");
        assert_eq!(encode(".."), "%2E%2E");
        assert_eq!(encode("10.0.0.1:80 é"), "10.0.0.1:80 é");
        assert_eq!(decode("%zz"), None);
        assert_eq!(decode("%f"), None);
        assert_eq!(decode("%ff"), None);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(name in ".{0,12}|[./%]{0,4}") {
            let segment = encode(&name);
            prop_assert!(!segment.contains('/') && segment != "." && segment != "..");
            prop_assert_eq!(decode(&segment), Some(name));
        }
    }
}
