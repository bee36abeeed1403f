//! Tokens to tree: recursive descent with a cap on depth, so that no input exhausts the stack.
//!
//! Most of the code is about what people get wrong. Every error says what could stand there, and where the slip is a
//! known one (a value with spaces, a bare key, swapped sides) what to write instead.

use crate::ast::{Ast, Comparison, Literal, Operand, Order, Subject, Test};
use crate::error::{ParseError, position};
use crate::lexer::{self, Kind, Token, tokens};
use crate::pattern::{self, Glob, Pattern};
use crate::print::{key_text, literal_text, looks_like_value};

/// Longest text, in bytes.
pub(crate) const BYTES_MAX: usize = 8 * 1024;
/// Deepest nesting of `(` and `!`.
pub(crate) const DEPTH_MAX: usize = 64;
/// Most comparisons and negations. `&&` and `||` join them, so they need no count of their own.
pub(crate) const NODES_MAX: usize = 1_000;
/// Most items of one list.
pub(crate) const ITEMS_MAX: usize = 4_096;

type Fault = Box<ParseError>;

pub(crate) fn parse(source: &str) -> Result<Ast, ParseError> {
    if source.len() > BYTES_MAX {
        let message = format!("an expression of {} bytes is longer than {BYTES_MAX}", source.len());
        return Err(lexer::error(source, 0..0, "too_long", message));
    }
    let mut parser = Parser { source, tokens: tokens(source), at: 0, depth: 0, nodes: 0, patterns: Vec::new() };
    parser.whole().map_err(|fault| *fault)
}

struct Parser<'a> {
    source: &'a str,
    tokens: Vec<Token<'a>>,
    at: usize,
    depth: usize,
    nodes: usize,
    /// Compiled so far; equal ones are shared.
    patterns: Vec<Pattern>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &Token<'a> {
        self.ahead(0)
    }

    /// The token `by` places ahead; past the last one, the last.
    fn ahead(&self, by: usize) -> &Token<'a> {
        &self.tokens[(self.at + by).min(self.tokens.len() - 1)]
    }

    fn word(&self) -> Option<&'a str> {
        self.word_ahead(0)
    }

    fn word_ahead(&self, by: usize) -> Option<&'a str> {
        match self.ahead(by).kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }

    fn advance(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    fn take(&mut self, kind: &Kind<'_>) -> bool {
        let found = self.peek().kind == *kind;
        if found {
            self.advance();
        }
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = self.word() == Some(word);
        if found {
            self.advance();
        }
        found
    }

    /// The current token as the error message names it.
    fn found(&self) -> String {
        match &self.peek().kind {
            Kind::End => "end".to_owned(),
            _ => format!("`{}`", &self.source[self.peek().span.clone()]),
        }
    }

    /// An error at the current token; a bad token's own error comes first.
    fn fault(&self, code: &'static str, message: String, expected: &[&str], hint: Option<String>) -> Fault {
        let token = self.peek();
        if let Kind::Bad(fault) = &token.kind {
            return fault.clone();
        }
        let mut error = lexer::error(self.source, token.span.clone(), code, message);
        error.expected = expected.iter().map(|&what| what.to_owned()).collect();
        error.hint = hint;
        Box::new(error)
    }

    fn unexpected(&self, place: &str, expected: &[&str], hint: Option<String>) -> Fault {
        let code = if self.peek().kind == Kind::End { "unexpected_end" } else { "unexpected_token" };
        self.fault(code, format!("unexpected {} {place}", self.found()), expected, hint)
    }

    fn whole(&mut self) -> Result<Ast, Fault> {
        if self.peek().kind == Kind::End {
            return Ok(Ast::And(Vec::new()));
        }
        let ast = self.disjunction()?;
        match self.peek().kind {
            Kind::End => Ok(ast),
            Kind::Close => Err(self.fault(
                "unbalanced_paren",
                "a `)` that closes nothing".to_owned(),
                &["`&&`", "`||`", "the end"],
                None,
            )),
            _ => Err(self.after_comparison()),
        }
    }

    fn disjunction(&mut self) -> Result<Ast, Fault> {
        let mut children = Vec::new();
        loop {
            match self.conjunction()? {
                Ast::Or(inner) => children.extend(inner),
                child => children.push(child),
            }
            if !(self.take(&Kind::Or) || self.take_word("or")) {
                break;
            }
        }
        Ok(single_or(children, Ast::Or))
    }

    fn conjunction(&mut self) -> Result<Ast, Fault> {
        let mut children = Vec::new();
        loop {
            match self.unary()? {
                Ast::And(inner) => children.extend(inner),
                child => children.push(child),
            }
            if !(self.take(&Kind::And) || self.take_word("and")) {
                break;
            }
        }
        Ok(single_or(children, Ast::And))
    }

    fn unary(&mut self) -> Result<Ast, Fault> {
        let negation = self.peek().kind == Kind::Bang || (self.word() == Some("not") && !self.operator_ahead(1));
        if negation {
            self.node()?;
            self.enter()?;
            self.advance();
            let inner = self.unary()?;
            self.depth -= 1;
            return Ok(Ast::Not(Box::new(inner)));
        }
        if self.peek().kind != Kind::Open {
            return self.comparison().map(|comparison| Ast::Compare(Box::new(comparison)));
        }
        let opener = self.peek().span.clone();
        self.enter()?;
        self.advance();
        let inner = self.disjunction()?;
        self.depth -= 1;
        if self.take(&Kind::Close) {
            return Ok(inner);
        }
        if self.peek().kind != Kind::End {
            return Err(self.after_comparison());
        }
        let (line, column) = position(self.source, opener.start);
        let place = if line == 1 { format!("column {column}") } else { format!("line {line}, column {column}") };
        let message = format!("the `(` at {place} is not closed");
        let mut fault = lexer::error(self.source, opener, "unbalanced_paren", message);
        fault.expected = ["`)`", "`&&`", "`||`"].map(str::to_owned).into();
        fault.hint = Some("add the missing `)`".to_owned());
        Err(Box::new(fault))
    }

    fn enter(&mut self) -> Result<(), Fault> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            let message = format!("`(` and `!` are nested deeper than {DEPTH_MAX}");
            return Err(self.fault("too_deep", message, &[], None));
        }
        Ok(())
    }

    fn node(&mut self) -> Result<(), Fault> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            let message = format!("more than {NODES_MAX} comparisons and negations");
            return Err(self.fault("too_many_nodes", message, &[], Some("test one key with `in (…)`".to_owned())));
        }
        Ok(())
    }

    /// Whether an operator stands `by` tokens ahead.
    fn operator_ahead(&self, by: usize) -> bool {
        match self.ahead(by).kind {
            Kind::Order(_) => true,
            Kind::Word("in" | "like" | "matches") => true,
            Kind::Word("not") => self.word_ahead(by + 1) == Some("in"),
            _ => false,
        }
    }

    fn comparison(&mut self) -> Result<Comparison, Fault> {
        self.node()?;
        let at = self.peek().span.start;
        let call = matches!(self.ahead(1).kind, Kind::Open);
        if self.word() == Some("exists") && call {
            self.advance();
            let left = self.argument("exists")?;
            return Ok(Comparison { left, lower: false, test: Test::Exists, at, right_at: at });
        }
        let lower = self.word() == Some("lower") && call;
        let left = if lower {
            self.advance();
            self.argument("lower")?
        } else {
            self.left_side()?
        };
        let (test, right_at) = self.test(&left, lower, at)?;
        Ok(Comparison { left, lower, test, at, right_at })
    }

    /// `(key)` after the name of a function.
    fn argument(&mut self, function: &str) -> Result<Subject, Fault> {
        const EXPECTED: &[&str] = &["a key", "a `$` reference"];
        self.advance();
        let place = format!("in `{function}(…)`");
        let subject = match &self.peek().kind {
            Kind::Word(word) | Kind::BackQuoted(word) => Subject::Key((*word).into()),
            Kind::Reference(subject) => subject.clone(),
            Kind::Quoted { text, .. } => {
                let hint = format!("a key is written without quotes: {function}({})", key_text(text));
                return Err(self.unexpected(&place, EXPECTED, Some(hint)));
            }
            _ => return Err(self.unexpected(&place, EXPECTED, None)),
        };
        self.advance();
        if !self.take(&Kind::Close) {
            let hint = self.word().map(|_| "a key with spaces needs back-quotes".to_owned());
            return Err(self.unexpected(&place, &["`)`"], hint));
        }
        Ok(subject)
    }

    fn left_side(&mut self) -> Result<Subject, Fault> {
        const EXPECTED: &[&str] = &["a key", "a `$` reference", "`exists(key)`", "`lower(key)`", "`!`", "`(`"];
        let subject = match &self.peek().kind {
            Kind::Word(word) if looks_like_value(word) => return Err(self.value_on_the_left(word)),
            Kind::Word(word) | Kind::BackQuoted(word) => Subject::Key((*word).into()),
            Kind::Reference(subject) => subject.clone(),
            Kind::Quoted { text, .. } => return Err(self.value_on_the_left(text)),
            Kind::End if self.at > 0 => {
                let before = &self.source[self.tokens[self.at - 1].span.clone()];
                let joins = matches!(self.tokens[self.at - 1].kind, Kind::And | Kind::Or | Kind::Word(_));
                let hint = joins.then(|| format!("remove `{before}` or write a comparison after it"));
                return Err(self.unexpected(&format!("after `{before}`"), EXPECTED, hint));
            }
            Kind::And | Kind::Or => {
                let hint =
                    format!("remove `{}` or write a comparison before it", &self.source[self.peek().span.clone()]);
                return Err(self.unexpected("where a comparison should start", EXPECTED, Some(hint)));
            }
            _ => return Err(self.unexpected("where a comparison should start", EXPECTED, None)),
        };
        self.advance();
        Ok(subject)
    }

    fn value_on_the_left(&self, value: &str) -> Fault {
        let quoted = matches!(self.peek().kind, Kind::Quoted { .. });
        let written = &self.source[self.peek().span.clone()];
        let hint = match (&self.ahead(1).kind, &self.ahead(2).kind) {
            (Kind::Order(order), Kind::Word(_) | Kind::BackQuoted(_) | Kind::Reference(_)) => {
                let other = &self.source[self.ahead(2).span.clone()];
                format!("swap the sides: {other} {} {written}", order.swapped().symbol())
            }
            (Kind::End | Kind::And | Kind::Or | Kind::Close, _) => "a value alone is no comparison".to_owned(),
            _ => format!("if `{value}` is a key, write it as `{value}` in back-quotes"),
        };
        let what = if quoted { "a quoted value" } else { "a value" };
        let message = format!("{what} on the left side: {written}");
        self.fault("value_on_left", message, &["a key", "a `$` reference", "`lower(key)`"], Some(hint))
    }

    /// Operator and right side, and where the right side starts.
    fn test(&mut self, left: &Subject, lower: bool, at: usize) -> Result<(Test, usize), Fault> {
        let operator_at = self.at;
        match self.peek().kind {
            Kind::Order(order) => {
                self.advance();
                let right_at = self.peek().span.start;
                let operand = self.operand(Some(order))?;
                self.end_of_comparison()?;
                Ok((Test::Order(order, operand), right_at))
            }
            Kind::Word("in") => {
                self.advance();
                self.membership(false)
            }
            Kind::Word("not") if self.word_ahead(1) == Some("in") => {
                self.advance();
                self.advance();
                self.membership(true)
            }
            Kind::Word("like") => {
                self.advance();
                let (text, _) = self.literal("like")?;
                let Some(glob) = Glob::parse(&text) else {
                    let hint = Some("a backslash itself is written `\\\\` in the pattern".to_owned());
                    return Err(self.fault("bad_pattern", "a pattern ends in a lone backslash".to_owned(), &[], hint));
                };
                let right_at = self.peek().span.start;
                self.advance();
                self.end_of_comparison()?;
                Ok((Test::Like(glob), right_at))
            }
            Kind::Word("matches") => {
                self.advance();
                let pattern = self.pattern()?;
                let right_at = self.peek().span.start;
                self.advance();
                self.end_of_comparison()?;
                Ok((Test::Matches(pattern), right_at))
            }
            _ => {
                debug_assert_eq!(operator_at, self.at);
                Err(self.no_operator(left, lower, at))
            }
        }
    }

    fn no_operator(&self, left: &Subject, lower: bool, at: usize) -> Fault {
        const EXPECTED: &[&str] =
            &["`==`", "`!=`", "`>`", "`>=`", "`<`", "`<=`", "`in`", "`not in`", "`like`", "`matches`"];
        let left_end = self.tokens[self.at.saturating_sub(1)].span.end;
        let written = &self.source[at..left_end];
        let complete = matches!(self.peek().kind, Kind::End | Kind::And | Kind::Or | Kind::Close)
            || matches!(self.word(), Some("and" | "or"));
        if complete && !lower {
            let hint = format!("to ask whether the key is there, write exists({written})");
            let message = format!("`{written}` alone is no comparison");
            let mut fault = self.fault("bare_key", message, EXPECTED, Some(hint));
            if fault.code == "bare_key" {
                (fault.line, fault.column) = position(self.source, at);
                fault.span = at..left_end;
            }
            return fault;
        }
        let hint = match (&self.peek().kind, left) {
            (Kind::Bang, _) if self.word_ahead(1) == Some("in") => Some("write `not in`".to_owned()),
            (Kind::Word(word), _) => match word.to_ascii_lowercase().as_str() {
                "in" | "not" | "like" | "matches" if *word != word.to_ascii_lowercase() => {
                    Some(format!("operators are lower case: {}", word.to_ascii_lowercase()))
                }
                "not" => Some(format!("negate the comparison: !({written} …)")),
                "is" | "eq" | "equals" => Some("write `==`".to_owned()),
                "contains" => {
                    Some("for a key of type set write `==`; for a part of a text `like \"*part*\"`".to_owned())
                }
                "=~" | "~" | "~=" => Some("write `matches \"…\"` or `like \"…\"`".to_owned()),
                _ => Some("a key with spaces needs back-quotes".to_owned()),
            },
            (Kind::Open, Subject::Key(name)) => Some(format!("`{name}` is no function; exists() and lower() are")),
            _ => None,
        };
        self.unexpected("where an operator should stand", EXPECTED, hint)
    }

    fn operand(&mut self, order: Option<Order>) -> Result<Operand, Fault> {
        const EXPECTED: &[&str] = &["a word", "a quoted value", "a `$` reference"];
        let operand = match &self.peek().kind {
            Kind::Word(word) => Operand::Literal(Literal::word(word)),
            Kind::Quoted { text, .. } => Operand::Literal(Literal::quoted(text)),
            Kind::Reference(subject) => Operand::Reference(subject.clone()),
            Kind::BackQuoted(name) => {
                let hint = format!("the right side is a value, not a key: write {}", literal_text(name));
                return Err(self.unexpected("where a value should stand", EXPECTED, Some(hint)));
            }
            Kind::Open => {
                let hint = match (&self.ahead(1).kind, order) {
                    (Kind::Close, _) => "a value with parentheses needs quotes: \"()\"".to_owned(),
                    (_, Some(_)) if matches!(self.ahead(2).kind, Kind::Comma) => "for a list write `in (…)`".to_owned(),
                    _ => "a value with parentheses needs quotes".to_owned(),
                };
                return Err(self.unexpected("where a value should stand", EXPECTED, Some(hint)));
            }
            Kind::End | Kind::And | Kind::Or | Kind::Close => {
                let hint = "the empty value is written \"\"".to_owned();
                return Err(self.unexpected("where a value should stand", EXPECTED, Some(hint)));
            }
            _ => {
                let hint = "a value with special characters needs quotes".to_owned();
                return Err(self.unexpected("where a value should stand", EXPECTED, Some(hint)));
            }
        };
        self.advance();
        Ok(operand)
    }

    /// `(a, b)` or, without a `not`, `range "^1"`.
    fn membership(&mut self, negated: bool) -> Result<(Test, usize), Fault> {
        if self.word() == Some("range") && !negated {
            self.advance();
            let (text, _) = self.literal("in range")?;
            let Ok(range) = text.parse() else {
                let hint = match text.trim() {
                    bare if crate::version::Version::parse(bare).is_some() => {
                        format!("write \"^{bare}\", or compare with `==` or `>=`")
                    }
                    _ => "a range is `^` or `~` and a version, as in \"^2.3\"".to_owned(),
                };
                return Err(self.fault("bad_range", format!("{text:?} is no version range"), &[], Some(hint)));
            };
            let right_at = self.peek().span.start;
            self.advance();
            self.end_of_comparison()?;
            return Ok((Test::InRange(range), right_at));
        }
        let opener = self.peek().span.clone();
        if !self.take(&Kind::Open) {
            let hint = match &self.peek().kind {
                Kind::Word("range") => Some("negate the comparison: !(key in range \"…\")".to_owned()),
                Kind::Word(_) | Kind::Quoted { .. } | Kind::Reference(_) => {
                    let items = self.square_list().unwrap_or(&self.source[opener]);
                    Some(format!("write the list in parentheses: in ({items})"))
                }
                _ => None,
            };
            let expected: &[&str] = if negated { &["`(`"] } else { &["`(`", "`range`"] };
            return Err(self.unexpected("where a list should start", expected, hint));
        }
        let right_at = opener.start;
        if self.peek().kind == Kind::Close {
            return Err(self.fault("empty_list", "an empty list".to_owned(), &["a value"], None));
        }
        let mut items = Vec::new();
        loop {
            if items.len() == ITEMS_MAX {
                let message = format!("a list of more than {ITEMS_MAX} items");
                return Err(self.fault("too_many_items", message, &[], None));
            }
            items.push(self.operand(None)?);
            if self.take(&Kind::Comma) {
                continue;
            }
            if self.take(&Kind::Close) {
                break;
            }
            let hint = match self.peek().kind {
                Kind::Word(_) | Kind::Quoted { .. } => {
                    Some("separate items with commas; a value with spaces needs quotes".to_owned())
                }
                Kind::End => Some("add the missing `)`".to_owned()),
                _ => None,
            };
            return Err(self.unexpected("in a list", &["`,`", "`)`"], hint));
        }
        self.end_of_comparison()?;
        Ok((Test::In { negated, items }, right_at))
    }

    /// The items of a list as other languages write it, `[a, b]`, if one starts at the current token. Brackets are
    /// characters of words here, and an address such as `[::1]` has its own.
    fn square_list(&self) -> Option<&'a str> {
        let start = self.peek().span.start;
        self.word().filter(|word| word.starts_with('['))?;
        let mut open = 0;
        for token in &self.tokens[self.at..] {
            let Kind::Word(word) = token.kind else { continue };
            open += word.matches('[').count();
            open = open.saturating_sub(word.matches(']').count());
            if open == 0 {
                let items = self.source[start + 1..token.span.end].strip_suffix(']')?.trim();
                return (!items.is_empty()).then_some(items);
            }
        }
        None
    }

    /// The text of a literal, which stays the current token, and the offsets of its escapes.
    fn literal(&self, operator: &str) -> Result<(String, Vec<(usize, usize)>), Fault> {
        match &self.peek().kind {
            Kind::Word(word) => Ok(((*word).to_owned(), Vec::new())),
            Kind::Quoted { text, escapes } => Ok((text.clone(), escapes.clone())),
            Kind::Reference(_) => {
                let message = format!("`{operator}` takes a quoted text, not a reference");
                let hint = "patterns are compiled once, before any request".to_owned();
                Err(self.fault("literal_required", message, &["a quoted text"], Some(hint)))
            }
            _ => Err(self.unexpected(&format!("after `{operator}`"), &["a quoted text"], None)),
        }
    }

    fn pattern(&mut self) -> Result<Pattern, Fault> {
        let (text, escapes) = self.literal("matches")?;
        if let Some(known) = self.patterns.iter().find(|pattern| pattern.as_str() == text) {
            return Ok(known.clone());
        }
        let used: usize = self.patterns.iter().map(Pattern::bytes).sum();
        let compiled = Pattern::parse(&text, pattern::BYTES_MAX.saturating_sub(used));
        if let Ok(pattern) = &compiled {
            self.patterns.push(pattern.clone());
        }
        compiled.map_err(|bad| {
            let token = self.peek().span.clone();
            let code = if bad.too_large { "pattern_too_large" } else { "bad_pattern" };
            let quote = usize::from(matches!(self.peek().kind, Kind::Quoted { .. }));
            let span = bad.offset.map_or(token.clone(), |offset| {
                // Offsets in the text and in the source differ by the quote and by every escape before.
                let (text_at, source_at) = escapes
                    .iter()
                    .rev()
                    .find(|(text_at, _)| *text_at <= offset)
                    .copied()
                    .unwrap_or((0, token.start + quote));
                let at = (source_at + offset - text_at).min(token.end.saturating_sub(quote));
                at..(at + 1).min(token.end)
            });
            let mut error = lexer::error(self.source, span, code, format!("bad pattern: {}", bad.message));
            error.hint = bad.hint();
            Box::new(error)
        })
    }

    /// What may follow a comparison; anything else is explained here, where the value is still known.
    fn end_of_comparison(&self) -> Result<(), Fault> {
        match self.peek().kind {
            Kind::End | Kind::And | Kind::Or | Kind::Close | Kind::Word("and" | "or") => Ok(()),
            _ => Err(self.after_comparison()),
        }
    }

    fn after_comparison(&self) -> Fault {
        const EXPECTED: &[&str] = &["`&&`", "`||`", "the end"];
        let previous = self.tokens[self.at.saturating_sub(1)].clone();
        let hint = match (&self.peek().kind, &previous.kind) {
            (Kind::Order(_), _) => {
                let message = "comparisons cannot be chained".to_owned();
                let hint = "join two comparisons with `&&`".to_owned();
                return self.fault("chained_comparison", message, EXPECTED, Some(hint));
            }
            (Kind::Word(word), _) if matches!(word.to_ascii_lowercase().as_str(), "and" | "or") => {
                Some(format!("operators are lower case: {}", word.to_ascii_lowercase()))
            }
            (Kind::Word(word), _) if self.operator_ahead(1) || matches!(*word, "not" | "exists" | "lower") => {
                Some("join two comparisons with `&&` or `||`".to_owned())
            }
            (Kind::Word(_), Kind::Word(_)) => {
                let mut end = self.at;
                while matches!(self.tokens[end].kind, Kind::Word(word) if word != "and" && word != "or") {
                    end += 1;
                }
                // The left side and the operator, as they are in the text.
                let start = self.comparison_start();
                let value = &self.source[previous.span.start..self.tokens[end - 1].span.end];
                let head = &self.source[start..previous.span.start];
                Some(format!("a value with spaces needs quotes: {head}{}", literal_text(value)))
            }
            (Kind::Word(_) | Kind::Quoted { .. }, Kind::Close | Kind::Quoted { .. }) => {
                Some("join two comparisons with `&&` or `||`".to_owned())
            }
            (Kind::Comma, _) => Some("a list is written `in (a, b)`; a value with a comma needs quotes".to_owned()),
            (Kind::Open, Kind::Word(_)) => Some("a value with parentheses needs quotes".to_owned()),
            (Kind::Bang | Kind::BackQuoted(_) | Kind::Quoted { .. } | Kind::Reference(_), Kind::Word(_)) => {
                Some("a value with special characters needs quotes".to_owned())
            }
            (Kind::Open | Kind::Bang | Kind::Reference(_), Kind::Close) => {
                Some("join two comparisons with `&&` or `||`".to_owned())
            }
            _ => None,
        };
        self.unexpected("after a complete comparison", EXPECTED, hint)
    }

    /// Where the comparison before the current token starts, found backwards from its operator.
    fn comparison_start(&self) -> usize {
        let operator = (0..self.at).rev().find(|&at| matches!(self.tokens[at].kind, Kind::Order(_)));
        match operator {
            Some(at) if at > 0 => {
                let mut first = at - 1;
                if self.tokens[first].kind == Kind::Close && first >= 3 {
                    first -= 3;
                }
                self.tokens[first].span.start
            }
            _ => self.tokens[self.at.saturating_sub(1)].span.start,
        }
    }
}

fn single_or(mut children: Vec<Ast>, join: fn(Vec<Ast>) -> Ast) -> Ast {
    match children.pop() {
        Some(only) if children.is_empty() => only,
        Some(last) => {
            children.push(last);
            join(children)
        }
        None => join(children),
    }
}
