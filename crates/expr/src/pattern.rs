//! `like` and `matches`: patterns compiled once, run without allocating.
//!
//! Both take literals only, so nothing is compiled while an instance is picked. A glob is matched by the usual two-finger
//! walk (remember the last `*`, retry one character further). A regular expression becomes a dense DFA, anchored at
//! both ends: one table step per byte, no cache to fill and no memory to ask for, in exchange for a cap on its size.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::start;
use regex_automata::{Anchored, MatchKind};

use crate::value::Text;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum GlobStep {
    /// `*`: any text.
    Any,
    /// `?`: one character.
    One,
    Char(char),
}

/// A compiled `like` pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Glob {
    text: Box<str>,
    steps: Box<[GlobStep]>,
}

impl Glob {
    /// `None` where the pattern ends in a lone backslash.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut steps = Vec::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            steps.push(match c {
                '*' if steps.last() == Some(&GlobStep::Any) => continue,
                '*' => GlobStep::Any,
                '?' => GlobStep::One,
                '\\' => GlobStep::Char(chars.next()?),
                c => GlobStep::Char(c),
            });
        }
        Some(Glob { text: text.into(), steps: steps.into() })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it matches every text.
    pub(crate) fn matches_all(&self) -> bool {
        *self.steps == [GlobStep::Any]
    }

    /// The one text it matches, where it has no wildcard.
    pub(crate) fn literal(&self) -> Option<String> {
        self.steps.iter().map(|step| if let GlobStep::Char(c) = step { Some(*c) } else { None }).collect()
    }

    pub(crate) fn matches(&self, text: Text<'_>, lower: bool) -> bool {
        if lower {
            self.walk(text.chars().flat_map(char::to_lowercase))
        } else if let Text::Str(text) = text {
            self.walk(text.chars())
        } else {
            self.walk(text.chars())
        }
    }

    fn walk(&self, mut chars: impl Iterator<Item = char> + Clone) -> bool {
        let mut at = 0;
        let mut retry = None;
        loop {
            let before = chars.clone();
            match (self.steps.get(at), chars.next()) {
                (Some(GlobStep::Any), _) => {
                    at += 1;
                    retry = Some((at, before.clone()));
                    chars = before;
                    if at == self.steps.len() {
                        return true;
                    }
                }
                (Some(GlobStep::One), Some(_)) => at += 1,
                (Some(GlobStep::Char(want)), Some(have)) if *want == have => at += 1,
                (None, None) => return true,
                _ => {
                    let Some((step, mut from)) = retry.take() else { return false };
                    if from.next().is_none() {
                        return false;
                    }
                    at = step;
                    chars = from.clone();
                    retry = Some((step, from));
                }
            }
        }
    }
}

/// Bytes of all compiled automata of one expression, and of the work of compiling each.
pub(crate) const BYTES_MAX: usize = 4 << 20;
/// Bytes of the intermediate program; `\w{100}` is near it.
const NFA_BYTES_MAX: usize = 1 << 20;
/// Nested groups, so that compiling does not recurse without end.
const NEST_MAX: u32 = 64;

/// A compiled `matches` pattern. Compared and hashed by its text.
#[derive(Clone)]
pub(crate) struct Pattern {
    text: Box<str>,
    dfa: Arc<dense::DFA<Vec<u32>>>,
}

/// Why a pattern does not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadPattern {
    pub(crate) message: String,
    /// Where in the pattern, in bytes.
    pub(crate) offset: Option<usize>,
    pub(crate) too_large: bool,
}

impl BadPattern {
    pub(crate) fn hint(&self) -> Option<String> {
        if self.too_large {
            let hint = "shorten the counted repetitions, or use ASCII classes such as [0-9] and (?-u:\\w)";
            return Some(hint.to_owned());
        }
        self.message.contains("word boundar").then(|| "word boundaries work on ASCII only: (?-u:\\b)".to_owned())
    }
}

impl Pattern {
    /// Compiles a pattern that may take so many bytes.
    pub(crate) fn parse(text: &str, bytes: usize) -> Result<Self, BadPattern> {
        let hir = regex_syntax::ParserBuilder::new()
            .nest_limit(NEST_MAX)
            .build()
            .parse(text)
            .map_err(|error| syntax_error(&error))?;
        let nfa = regex_automata::nfa::thompson::Compiler::new()
            .configure(
                regex_automata::nfa::thompson::Config::new()
                    .nfa_size_limit(Some(NFA_BYTES_MAX))
                    .which_captures(regex_automata::nfa::thompson::WhichCaptures::None),
            )
            .build_from_hir(&hir)
            .map_err(|error| size_error(&error, error.size_limit().is_some()))?;
        let dfa = dense::Builder::new()
            .configure(
                dense::Config::new()
                    .start_kind(StartKind::Anchored)
                    .match_kind(MatchKind::All)
                    .dfa_size_limit(Some(bytes))
                    .determinize_size_limit(Some(bytes)),
            )
            .build_from_nfa(&nfa)
            .map_err(|error| size_error(&error, error.is_size_limit_exceeded()))?;
        Ok(Pattern { text: text.into(), dfa: Arc::new(dfa) })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// What it takes of [`BYTES_MAX`].
    pub(crate) fn bytes(&self) -> usize {
        self.dfa.memory_usage()
    }

    pub(crate) fn matches(&self, text: Text<'_>, lower: bool) -> bool {
        if lower {
            let mut buffer = [0; 4];
            return self.walk(text.chars().flat_map(char::to_lowercase), |c, step| {
                c.encode_utf8(&mut buffer).bytes().all(step)
            });
        }
        match text {
            Text::Str(text) => self.walk(text.bytes(), |byte, step| step(byte)),
            // Base64 is ASCII.
            text @ Text::Bytes(_) => self.walk(text.chars(), |c, step| step(c as u8)),
        }
    }

    /// Feeds every item to the automaton; `feed` turns one into bytes and stops where a step says no.
    fn walk<T>(
        &self,
        items: impl Iterator<Item = T>,
        mut feed: impl FnMut(T, &mut dyn FnMut(u8) -> bool) -> bool,
    ) -> bool {
        let config = start::Config::new().anchored(Anchored::Yes);
        let Ok(mut state) = self.dfa.start_state(&config) else { return false };
        for item in items {
            let going = feed(item, &mut |byte| {
                state = self.dfa.next_state(state, byte);
                !self.dfa.is_dead_state(state)
            });
            if !going {
                return false;
            }
        }
        self.dfa.is_match_state(self.dfa.next_eoi_state(state))
    }
}

fn syntax_error(error: &regex_syntax::Error) -> BadPattern {
    let (message, offset) = match error {
        regex_syntax::Error::Parse(error) => (error.kind().to_string(), Some(error.span().start.offset)),
        regex_syntax::Error::Translate(error) => (error.kind().to_string(), Some(error.span().start.offset)),
        other => (other.to_string(), None),
    };
    BadPattern { message, offset, too_large: false }
}

fn size_error(error: &dyn fmt::Display, too_large: bool) -> BadPattern {
    BadPattern { message: error.to_string(), offset: None, too_large }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pattern").field(&self.text).finish()
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_glob_is_the_regex_it_stands_for(glob in "[ab*?]{0,8}", text in "[ab]{0,10}") {
            let regex = glob.replace('*', ".*").replace('?', ".");
            let pattern = Pattern::parse(&regex, BYTES_MAX).expect("small");
            let glob = Glob::parse(&glob).expect("no backslash");
            prop_assert_eq!(glob.matches(Text::Str(&text), false), pattern.matches(Text::Str(&text), false));
            let upper = text.to_uppercase();
            prop_assert_eq!(glob.matches(Text::Str(&upper), true), pattern.matches(Text::Str(&upper), true));
        }

        #[test]
        fn a_pattern_is_anchored_whatever_its_shape(text in "[ab]{0,6}") {
            let full = |pattern: &str| Pattern::parse(pattern, BYTES_MAX).expect("small").matches(Text::Str(&text), false);
            prop_assert_eq!(full("a|ab|b*"), text == "a" || text == "ab" || text.chars().all(|c| c == 'b'));
            prop_assert_eq!(full("a??b??"), ["", "a", "b", "ab"].contains(&&*text));
            prop_assert_eq!(full("^a*$"), text.chars().all(|c| c == 'a'));
        }
    }

    #[test]
    fn bytes_match_as_their_base64() {
        assert!(Pattern::parse("Zm9v", BYTES_MAX).expect("small").matches(Text::Bytes(b"foo"), false));
        assert!(Glob::parse("Zm?v").expect("no backslash").matches(Text::Bytes(b"foo"), false));
        assert!(Glob::parse("zm*").expect("no backslash").matches(Text::Bytes(b"foo"), true));
    }
}
