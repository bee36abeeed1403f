//! Spring profile expressions: `prod`, `!test`, `a & b`, `(a | b) & !c`, and the comma list that means any of them.

/// Whether an expression accepts a set of active profiles. A malformed one accepts none.
pub(super) fn accepts(expression: &str, active: &[String]) -> bool {
    // Without any active profile Spring activates the one named `default`.
    let default = ["default".to_owned()];
    let active = if active.is_empty() { &default[..] } else { active };
    expression.split(',').any(|part| {
        let mut parser = Parser { rest: part.trim(), active, depth: 0 };
        parser.any().is_some_and(|answer| answer && parser.rest.trim().is_empty())
    })
}

struct Parser<'a> {
    rest: &'a str,
    active: &'a [String],
    depth: usize,
}

impl Parser<'_> {
    fn eat(&mut self, c: char) -> bool {
        match self.rest.trim_start().strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn any(&mut self) -> Option<bool> {
        let mut answer = self.all()?;
        while self.eat('|') {
            answer |= self.all()?;
        }
        Some(answer)
    }

    fn all(&mut self) -> Option<bool> {
        let mut answer = self.one()?;
        while self.eat('&') {
            answer &= self.one()?;
        }
        Some(answer)
    }

    fn one(&mut self) -> Option<bool> {
        self.depth += 1;
        if self.depth > 64 {
            return None;
        }
        let answer = if self.eat('!') {
            !self.one()?
        } else if self.eat('(') {
            let answer = self.any()?;
            self.eat(')').then_some(answer)?
        } else {
            let text = self.rest.trim_start();
            let end = text.find(['!', '&', '|', '(', ')']).unwrap_or(text.len());
            let name = text[..end].trim();
            self.rest = &text[end..];
            if name.is_empty() {
                return None;
            }
            self.active.iter().any(|active| active == name)
        };
        self.depth -= 1;
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::accepts;

    #[test]
    fn expressions() {
        let active = ["prod".to_owned(), "eu".to_owned()];
        for yes in ["prod", "prod & eu", "!test", "test, eu", "(test | prod) & !us", "!(test & prod)"] {
            assert!(accepts(yes, &active), "{yes}");
        }
        for no in ["test", "!prod", "prod & test", "", "prod &", "(prod", "prod eu", ")"] {
            assert!(!accepts(no, &active), "{no}");
        }
        assert!(accepts("default", &[]) && !accepts("default", &active));
        assert!(!accepts(&"(".repeat(100_000), &active));
    }
}
