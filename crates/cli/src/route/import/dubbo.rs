//! Tag and condition routers of Apache Dubbo, as the configuration centre keeps them.
//!
//! Condition rules read `when => then`, both sides lists of `key=value,…` and `key!=value,…` joined by `&`. In a side a
//! missing key passes `!=` and fails `=` (`ConditionStateRouter.matchCondition`). `force` decides whether an empty
//! result stays empty. Tag rules send a tagged request to its tag, and an untagged one to untagged providers only
//! (`TagStateRouter`); a tagged request whose tag has no provider falls back to untagged providers unless forced.

use metaroute_core::rules::{Fallback, Mode, Terminal};
use metaroute_expr::Type;
use metaroute_registry::document::Node;

use super::{Translation, Untranslatable, accepted, canonical, key, literal, one_of, reference, value};
use crate::failure::{At, Failure};

/// The request's tag, and the key of a provider's own tag.
const TAG: &str = "dubbo.tag";

pub(super) fn translate(text: &str, to: &mut Translation) -> Result<(), Failure> {
    for document in to.documents(text)? {
        let at = to.at(text, &document);
        let scalar = |name: &str| document.get(name).and_then(Node::text);
        let key = scalar("key").unwrap_or("without a key").to_owned();
        if scalar("enabled") == Some("false") {
            to.note(key, "the router is disabled and was left out", at);
            continue;
        }
        if let (Some("service"), Some(service)) = (scalar("scope"), scalar("key")) {
            to.note(service, "the rules are for this service only; use this file for it alone", at.clone());
        }
        let force = scalar("force") == Some("true");
        if document.get("tags").is_some() {
            tags(text, &document, force, to);
        } else if let Some(conditions) = document.get("conditions") {
            for (number, item) in conditions.list().unwrap_or_default().iter().enumerate() {
                let at = to.at(text, item);
                condition(number + 1, item, force, to, at);
            }
        } else {
            let kind = scalar("kind").unwrap_or("document");
            to.lose(format!("{kind} {key}"), "neither a tag router nor a condition router", at);
        }
    }
    Ok(())
}

/// One condition rule: text, or since 3.1 a map.
fn condition(number: usize, item: &Node<'_>, force: bool, to: &mut Translation, at: Option<At>) {
    let name = format!("condition-{number}");
    let translated = match item.text() {
        Some(text) => {
            let (when, then) = match text.split_once("=>") {
                Some((when, then)) => (when.trim(), then.trim()),
                None => ("", text.trim()),
            };
            sides(when, then, to)
        }
        None => multi_destination(item, to),
    };
    let added = translated.and_then(|(when, then)| {
        let rule = to.rule(&name, when.as_deref(), &then)?;
        if !force {
            rule.mode = Mode::Prefer;
            rule.terminal = Some(Terminal::Any);
        }
        Ok(())
    });
    if let Err(part) = added {
        to.lose(format!("{name}: {}", part.what), part.why, at);
    }
}

/// `from` and `to` of format 3.1. Traffic split by weight has no counterpart in one rule.
fn multi_destination(item: &Node<'_>, to: &mut Translation) -> Result<(Option<String>, String), Untranslatable> {
    let part = |node: &Node<'_>| node.get("match").and_then(Node::text).unwrap_or_default().to_owned();
    let whole = || item.to_json();
    let from = item.get("from").map(part).unwrap_or_default();
    let destinations = item.get("to").and_then(Node::list).unwrap_or_default();
    if item.get("trafficDisable").and_then(Node::text) == Some("true") {
        return sides(&from, "", to);
    }
    match destinations {
        [one] => sides(&from, &part(one), to),
        [] => Err(Untranslatable::new(whole(), "no destination")),
        _ => Err(Untranslatable::new(whole(), "traffic split between destinations by weight")),
    }
}

fn sides(when: &str, then: &str, to: &mut Translation) -> Result<(Option<String>, String), Untranslatable> {
    let when = match when {
        "" | "true" => None,
        text => Some(side(text, Side::When, to)?),
    };
    let then = match then {
        // Nobody may be called.
        "" | "false" => NOBODY.to_owned(),
        text => side(text, Side::Then, to)?,
    };
    Ok((when, then))
}

/// No instance has an empty id.
const NOBODY: &str = "$self.id == \"\"";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    When,
    Then,
}

/// The values of one key of a side.
#[derive(Default)]
struct Pair {
    name: String,
    matches: Vec<String>,
    mismatches: Vec<String>,
}

fn side(text: &str, side: Side, to: &mut Translation) -> Result<String, Untranslatable> {
    let mut parts = Vec::new();
    for pair in pairs(text)? {
        let positive = (!pair.matches.is_empty()).then(|| any(&pair.name, &pair.matches, side, to)).transpose()?;
        let negative =
            (!pair.mismatches.is_empty()).then(|| any(&pair.name, &pair.mismatches, side, to)).transpose()?;
        // A missing key fails `=` and passes `!=`, as negation does with ours.
        parts.push(match (positive, negative) {
            (Some(positive), None) => positive,
            (None, Some(negative)) => format!("!({negative})"),
            (Some(positive), Some(negative)) => format!("({positive} && !({negative}))"),
            (None, None) => return Err(Untranslatable::new(pair.name, "a key without a value")),
        });
    }
    let all = parts.join(" && ");
    accepted(&all)?;
    Ok(all)
}

/// `key=value,value & key!=value`; the signs stand for themselves, spaces do not matter.
fn pairs(text: &str) -> Result<Vec<Pair>, Untranslatable> {
    let mut pairs: Vec<Pair> = Vec::new();
    for part in text.split('&') {
        let part = part.trim();
        let (name, values, negated) = match (part.split_once("!="), part.split_once('=')) {
            (Some((name, values)), _) => (name, values, true),
            (None, Some((name, values))) => (name, values, false),
            (None, None) => return Err(Untranslatable::new(part, "expected key=value")),
        };
        let name = name.trim();
        let values: Vec<String> =
            values.split(',').map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()).collect();
        let odd = |text: &str| text.is_empty() || text.contains(|c: char| "=!&".contains(c) || c.is_whitespace());
        if odd(name) || values.is_empty() || values.iter().any(|value| odd(value)) {
            return Err(Untranslatable::new(part, "expected key=value"));
        }
        let index = pairs.iter().position(|pair| pair.name == name).unwrap_or_else(|| {
            pairs.push(Pair { name: name.to_owned(), ..Pair::default() });
            pairs.len() - 1
        });
        let list = if negated { &mut pairs[index].mismatches } else { &mut pairs[index].matches };
        list.extend(values);
    }
    Ok(pairs)
}

/// Whether a key has any of these values.
fn any(name: &str, values: &[String], side: Side, to: &mut Translation) -> Result<String, Untranslatable> {
    if side == Side::Then && name == "address" {
        let parts = values.iter().map(|value| address(value)).collect::<Result<Vec<_>, _>>()?;
        return Ok(format!("({})", parts.join(" || ")));
    }
    let subject = subject(name, side, to)?;
    let mut plain = Vec::new();
    let mut parts = Vec::new();
    for text in values {
        if let Some(reference_to) = text.strip_prefix('$') {
            parts.push(format!("{subject} == {}", reference("caller", reference_to)?));
        } else if text == "*" {
            parts.push(format!("exists({subject})"));
        } else if text.contains('*') {
            parts.push(format!("{subject} like {}", value(&pattern(text)?)));
        } else {
            plain.push(text.clone());
        }
    }
    if !plain.is_empty() {
        parts.insert(0, one_of(&subject, &plain));
    }
    Ok(match parts.as_slice() {
        [one] => one.clone(),
        many => format!("({})", many.join(" || ")),
    })
}

fn subject(name: &str, side: Side, to: &mut Translation) -> Result<String, Untranslatable> {
    if name.starts_with("arguments[") {
        return Err(Untranslatable::new(name, "arguments of the call are not known when an instance is chosen"));
    }
    match side {
        Side::When => {
            let attachment = name.strip_prefix("attachments[").and_then(|rest| rest.strip_suffix(']'));
            let (scope, name) = match (attachment, name) {
                (Some(attachment), _) => ("req", attachment.trim_matches(['"', '\''])),
                (None, "method" | "methods") => ("req", "method"),
                (None, name) => ("caller", name),
            };
            to.declare(name, Type::Text)?;
            reference(scope, name)
        }
        Side::Then => match name {
            "host" => Ok("$self.host".into()),
            "port" => Ok("$self.port".into()),
            "method" | "methods" => Err(Untranslatable::new(name, "providers are not told apart by method")),
            _ => {
                to.declare(name, Type::Text)?;
                key(name)
            }
        },
    }
}

/// One wildcard, as the original knows it.
fn pattern(text: &str) -> Result<String, Untranslatable> {
    let parts: Vec<String> = text.split('*').map(literal).collect();
    match parts.as_slice() {
        [before, after] => Ok(format!("{before}*{after}")),
        _ => Err(Untranslatable::new(text, "more than one `*`")),
    }
}

/// `host:port` with `*` for either, or a host alone.
fn address(text: &str) -> Result<String, Untranslatable> {
    if text.starts_with('$') {
        return Err(Untranslatable::new(text, "an address cannot come from the caller"));
    }
    let (host, port) = text.rsplit_once(':').unwrap_or((text, "*"));
    let host = match host {
        "*" => None,
        host if host.contains('*') => Some(format!("$self.host like {}", value(&pattern(host)?))),
        host => Some(format!("$self.host == {}", value(host.trim_matches(['[', ']'])))),
    };
    let port = match port {
        "*" => None,
        port if port.bytes().all(|b| b.is_ascii_digit()) => Some(format!("$self.port == {port}")),
        _ => return Err(Untranslatable::new(text, "not host:port")),
    };
    Ok(match (host, port) {
        (Some(host), Some(port)) => format!("({host} && {port})"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "exists($self.host)".into(),
    })
}

/// A tag router.
fn tags(text: &str, document: &Node<'_>, force: bool, to: &mut Translation) {
    let mut known = Vec::new();
    for tag in document.get("tags").and_then(Node::list).unwrap_or_default() {
        let at = to.at(text, tag);
        let Some(name) = tag.get("name").and_then(Node::text) else {
            to.lose(tag.to_json(), "a tag without a name", at);
            continue;
        };
        match members(tag, to) {
            Ok(members) => known.push((name.to_owned(), members)),
            Err(part) => to.lose(format!("tag {name}: {}", part.what), part.why, at),
        }
    }
    let at = to.at(text, document);
    if let Err(part) = tag_rules(&known, force, to) {
        to.lose(format!("tag router: {}", part.what), part.why, at);
        return;
    }
    let why = format!(
        "the tag is read from $req.{TAG}, so a caller with a tag of its own must send it; dubbo.force.tag of a single \
         request has no counterpart"
    );
    to.note("tag router", why, at);
}

/// The rules of a tag router: one per tag, one for tags it does not name, one for untagged requests.
fn tag_rules(known: &[(String, Option<String>)], force: bool, to: &mut Translation) -> Result<(), Untranslatable> {
    to.declare(TAG, Type::Text)?;
    let request = format!("$req.{TAG}");
    let own = format!("`{TAG}`");
    // An address that a tag claims belongs to no untagged request.
    let claimed: Vec<&str> = known.iter().filter_map(|(_, members)| members.as_deref()).collect();
    let free = |first: String| {
        let parts: Vec<String> =
            std::iter::once(first).chain(claimed.iter().map(|members| format!("!({members})"))).collect();
        parts.join(" && ")
    };
    // Where a tagged request falls back to, and where an untagged one goes: the original lets the latter use providers
    // of tags that the rule does not name.
    let untagged = free(format!("(!exists({own}) || {own} == \"\")"));
    let fallback = Fallback::Match(canonical(&untagged)?);
    for (name, members) in known {
        let selected = members.clone().unwrap_or_else(|| format!("{own} == {}", value(name)));
        let rule = to.rule(&format!("tag-{name}"), Some(&format!("{request} == {}", value(name))), &selected)?;
        // `force` of the rule speaks about the providers it names, not about those that carry a tag themselves.
        if !force || members.is_none() {
            rule.on_empty.push(fallback.clone());
        }
    }
    let names: Vec<String> = known.iter().map(|(name, _)| name.clone()).collect();
    let other = match names.as_slice() {
        [] => format!("exists({request})"),
        names => format!("exists({request}) && !({})", one_of(&request, names)),
    };
    let rule = to.rule("tag-of-provider", Some(&other), &format!("{own} == {request}"))?;
    rule.on_empty.push(fallback);
    let others = match names.as_slice() {
        [] => free("exists($self.host)".to_owned()),
        names => free(format!("!({})", one_of(&own, names))),
    };
    to.rule("untagged", Some(&format!("!exists({request})")), &others)?;
    Ok(())
}

/// Which providers a tag names by itself; `None`: those that carry it.
fn members(tag: &Node<'_>, to: &mut Translation) -> Result<Option<String>, Untranslatable> {
    let addresses = tag.get("addresses").and_then(Node::list).unwrap_or_default();
    let matches = tag.get("match").and_then(Node::list).unwrap_or_default();
    let mut parts = Vec::new();
    if !addresses.is_empty() {
        let list = addresses.iter().filter_map(Node::text).map(address).collect::<Result<Vec<_>, _>>()?;
        parts.push(format!("({})", list.join(" || ")));
    }
    if !matches.is_empty() {
        let list = matches.iter().map(|item| parameter(item, to)).collect::<Result<Vec<_>, _>>()?;
        parts.push(format!("({})", list.join(" && ")));
    }
    if parts.is_empty() {
        return Ok(None);
    }
    let all = parts.join(" || ");
    accepted(&all)?;
    Ok(Some(all))
}

/// `{key, value: {exact|prefix|regex|wildcard|empty|noempty}}`.
fn parameter(item: &Node<'_>, to: &mut Translation) -> Result<String, Untranslatable> {
    let bad = |why: &str| Untranslatable::new(item.to_json(), why);
    let name = item.get("key").and_then(Node::text).ok_or_else(|| bad("no key"))?;
    let test = item.get("value").and_then(Node::map).ok_or_else(|| bad("no value"))?;
    let [entry] = test else { return Err(bad("expected one kind of match")) };
    to.declare(name, Type::Text)?;
    let subject = key(name)?;
    let text = entry.node.text().unwrap_or_default();
    let expr = match entry.key.as_ref() {
        "exact" => format!("{subject} == {}", value(text)),
        "prefix" => format!("{subject} like {}", value(&format!("{}*", literal(text)))),
        "wildcard" if text == "*" => format!("exists({subject})"),
        "wildcard" => format!("{subject} like {}", value(&pattern(text)?)),
        "regex" => format!("{subject} matches {}", value(text)),
        "empty" => format!("(!exists({subject}) || {subject} == \"\")"),
        "noempty" => format!("(exists({subject}) && {subject} != \"\")"),
        other => return Err(Untranslatable::new(other, "an unknown kind of match")),
    };
    accepted(&expr)?;
    Ok(expr)
}
