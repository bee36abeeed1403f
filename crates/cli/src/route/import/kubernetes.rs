//! Label selectors of Kubernetes.
//!
//! `NotIn`, `!=` and `notin` also select objects without the label (k8s.io/apimachinery, `labels/selector.go`,
//! `Requirement.Matches`); `Gt` and `Lt` compare whole numbers.

use metaroute_expr::Type;
use metaroute_registry::document::Node;

use super::{Translation, Untranslatable, accepted, key, one_of};
use crate::failure::Failure;

/// One requirement of a selector.
struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

/// Where an object keeps a selector.
const PLACES: [&[&str]; 5] =
    [&["spec", "selector"], &["spec", "podSelector"], &["spec", "namespaceSelector"], &["selector"], &[]];

pub(super) fn translate(text: &str, is_text: bool, to: &mut Translation) -> Result<(), Failure> {
    if is_text {
        let selector = text.trim();
        if let Err(part) = parse(selector).and_then(|requirements| add("selector", &requirements, to)) {
            to.lose(part.what, part.why, None);
        }
        return Ok(());
    }
    for document in to.documents(text)? {
        let at = to.at(text, &document);
        if let Some(selector) = document.text() {
            if let Err(part) = parse(selector.trim()).and_then(|requirements| add("selector", &requirements, to)) {
                to.lose(part.what, part.why, at);
            }
            continue;
        }
        let name = document.get("metadata").and_then(|meta| meta.get("name")).and_then(Node::text);
        let kind = document.get("kind").and_then(Node::text).unwrap_or("object");
        let title = format!("{kind} {}", name.unwrap_or("without a name"));
        let found = PLACES.iter().find_map(|path| {
            let node = path.iter().try_fold(&document, |node, key| node.get(key))?;
            // A whole document is a selector only when it looks like one.
            (!path.is_empty() || is_selector(node)).then_some((path, node))
        });
        let Some((_, selector)) = found else {
            to.lose(title, "no label selector in it", at);
            continue;
        };
        let at = to.at(text, selector);
        let added = requirements(selector).and_then(|all| add(name.unwrap_or("selector"), &all, to));
        if let Err(part) = added {
            to.lose(format!("{title}: {}", part.what), part.why, at);
        }
    }
    if to.set.rules.len() > 1 {
        to.note("several selectors", "in one rules file all of them must hold; keep the one you need", None);
    }
    Ok(())
}

fn is_selector(node: &Node<'_>) -> bool {
    node.get("matchLabels").is_some() || node.get("matchExpressions").is_some()
}

fn requirements(selector: &Node<'_>) -> Result<Vec<Requirement>, Untranslatable> {
    let entries =
        selector.map().ok_or_else(|| Untranslatable::new(selector.to_string(), "a selector must be a map"))?;
    if !is_selector(selector) {
        return labels(selector);
    }
    let mut all = Vec::new();
    for entry in entries {
        match entry.key.as_ref() {
            "matchLabels" => all.extend(labels(&entry.node)?),
            "matchExpressions" => {
                let items = entry.node.list().unwrap_or_default();
                for item in items {
                    all.push(requirement(item)?);
                }
            }
            other => return Err(Untranslatable::new(other, "not known in a label selector")),
        }
    }
    Ok(all)
}

fn labels(node: &Node<'_>) -> Result<Vec<Requirement>, Untranslatable> {
    let entries = node.map().ok_or_else(|| Untranslatable::new(node.to_string(), "labels must be a map"))?;
    let label = |entry: &metaroute_registry::document::Entry<'_>| {
        let value = entry.node.text().ok_or_else(|| Untranslatable::new(entry.key.as_ref(), "a label must be text"))?;
        Ok(Requirement { key: entry.key.to_string(), operator: Operator::In, values: vec![value.to_owned()] })
    };
    entries.iter().map(label).collect()
}

fn requirement(item: &Node<'_>) -> Result<Requirement, Untranslatable> {
    let text = |name: &str| item.get(name).and_then(Node::text);
    let (Some(key), Some(word)) = (text("key"), text("operator")) else {
        return Err(Untranslatable::new(item.to_json(), "a requirement needs key and operator"));
    };
    let operator = match word {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::Gt,
        "Lt" => Operator::Lt,
        other => return Err(Untranslatable::new(other, "an unknown operator")),
    };
    let values = item.get("values").and_then(Node::list).unwrap_or_default();
    let values = values.iter().filter_map(Node::text).map(str::to_owned).collect();
    Ok(Requirement { key: key.to_owned(), operator, values })
}

/// The text form: `env in (a, b),tier!=x,!canary,size>3`.
fn parse(selector: &str) -> Result<Vec<Requirement>, Untranslatable> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_usize, 0);
    for (at, c) in selector.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&selector[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&selector[start..]);
    if selector.is_empty() {
        return Ok(Vec::new());
    }
    parts.into_iter().map(|part| parse_one(part.trim())).collect()
}

fn parse_one(part: &str) -> Result<Requirement, Untranslatable> {
    let bad = |why: &str| Untranslatable::new(part, why);
    let make = |key: &str, operator, values: Vec<String>| {
        let key = key.trim();
        if key.is_empty() || key.contains(|c: char| c.is_whitespace() || "()=!<>,".contains(c)) {
            return Err(bad("not a label selector"));
        }
        Ok(Requirement { key: key.to_owned(), operator, values })
    };
    if let Some(key) = part.strip_prefix('!').filter(|rest| !rest.starts_with('=')) {
        return make(key, Operator::DoesNotExist, Vec::new());
    }
    if let Some(open) = part.find('(') {
        let list = part[open + 1..].strip_suffix(')').ok_or_else(|| bad("`(` without `)`"))?;
        let (key, word) =
            part[..open].trim().rsplit_once(char::is_whitespace).ok_or_else(|| bad("expected `key in (…)`"))?;
        let operator = match word {
            "in" => Operator::In,
            "notin" => Operator::NotIn,
            other => return Err(Untranslatable::new(other, "an unknown operator")),
        };
        return make(key, operator, list.split(',').map(|value| value.trim().to_owned()).collect());
    }
    for (sign, operator) in
        [("!=", Operator::NotIn), ("==", Operator::In), ("=", Operator::In), (">", Operator::Gt), ("<", Operator::Lt)]
    {
        if let Some((key, value)) = part.split_once(sign) {
            return make(key, operator, vec![value.trim().to_owned()]);
        }
    }
    make(part, Operator::Exists, Vec::new())
}

/// One selector as one rule.
fn add(name: &str, requirements: &[Requirement], to: &mut Translation) -> Result<(), Untranslatable> {
    let expr = expression(requirements, to)?;
    to.rule(name, None, &expr)?;
    Ok(())
}

fn expression(requirements: &[Requirement], to: &mut Translation) -> Result<String, Untranslatable> {
    let mut parts = Vec::with_capacity(requirements.len());
    for Requirement { key: name, operator, values } in requirements {
        let subject = key(name)?;
        let numeric = matches!(operator, Operator::Gt | Operator::Lt);
        let wanted = match operator {
            Operator::In | Operator::NotIn => !values.is_empty(),
            Operator::Gt | Operator::Lt => values.len() == 1,
            Operator::Exists | Operator::DoesNotExist => values.is_empty(),
        };
        if !wanted {
            return Err(Untranslatable::new(name, "the operator does not fit the number of values"));
        }
        match operator {
            Operator::Exists | Operator::DoesNotExist => {}
            _ => to.declare(name, if numeric { Type::Number } else { Type::Text })?,
        }
        let part = match operator {
            Operator::In => one_of(&subject, values),
            // Objects without the label are selected too.
            Operator::NotIn => format!("!({})", one_of(&subject, values)),
            Operator::Exists => format!("exists({subject})"),
            Operator::DoesNotExist => format!("!exists({subject})"),
            Operator::Gt | Operator::Lt => {
                let bound: i64 = values[0]
                    .parse()
                    .map_err(|_| Untranslatable::new(values[0].as_str(), "Gt and Lt need a whole number"))?;
                format!("{subject} {} {bound}", if *operator == Operator::Gt { ">" } else { "<" })
            }
        };
        accepted(&part)?;
        parts.push(part);
    }
    let all = parts.join(" && ");
    accepted(&all)?;
    if parts.is_empty() {
        to.note("empty selector", "it selects everything", None);
    }
    Ok(all)
}
