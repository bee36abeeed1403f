//! YAML 1.2 through `saphyr-parser`'s events, which keep scalars raw and give every place. Anchors, aliases and merge
//! keys (`<<`) work; a tag other than `!!str`, `!!int`, `!!float`, `!!bool`, `!!null`, `!!seq`, `!!map` is an error,
//! because in practice it is an unquoted value that begins with `!`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};

use super::scalar::plain_kind;
use super::{ALIAS_NODES_MAX, ConfigError, DEPTH_MAX, Entry, MapBuilder, Node, Scalar, ScalarKind, Source, Value};

pub(super) fn parse<'a>(source: &Source<'a>) -> Result<Vec<Node<'a>>, ConfigError> {
    let mut builder = Builder {
        source: *source,
        offsets: Offsets::new(source.text),
        anchors: HashMap::new(),
        alias_nodes: 0,
        open: Vec::new(),
        documents: Vec::new(),
    };
    let mut parser = Parser::new_from_str(source.text);
    while let Some(event) = parser.next_event() {
        match event {
            Ok((event, span)) => builder.event(event, span)?,
            Err(error) => {
                let offset = builder.offsets.byte(*error.marker());
                let mut failure = source.error(offset, "bad_yaml", format!("not YAML: {}", error.info()));
                if error.info().contains("mapping values are not allowed") {
                    failure = failure.hint("quote a value that contains `: `");
                } else if error.info().contains("cannot start any token") {
                    failure = failure.hint("quote a value that begins with this character");
                }
                return Err(failure);
            }
        }
    }
    Ok(builder.documents)
}

/// Turns the parser's character indexes into byte offsets. Events come in order, so the cursor rarely moves back.
struct Offsets<'a> {
    text: &'a str,
    ascii: bool,
    index: usize,
    byte: usize,
}

impl<'a> Offsets<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, ascii: text.is_ascii(), index: 0, byte: 0 }
    }

    fn byte(&mut self, marker: Marker) -> usize {
        let wanted = marker.index();
        if self.ascii {
            return wanted.min(self.text.len());
        }
        while self.index > wanted && self.byte > 0 {
            self.byte -= 1;
            if self.text.is_char_boundary(self.byte) {
                self.index -= 1;
            }
        }
        let mut chars = self.text[self.byte..].chars();
        while self.index < wanted {
            let Some(c) = chars.next() else { break };
            self.byte += c.len_utf8();
            self.index += 1;
        }
        self.byte
    }

    fn range(&mut self, span: Span) -> Range<usize> {
        let start = self.byte(span.start);
        let end = self.byte(span.end);
        start..end.max(start)
    }
}

enum Open<'a> {
    List { items: Vec<Node<'a>>, start: usize, anchor: usize },
    Map { map: MapBuilder<'a>, key: Option<(Cow<'a, str>, Range<usize>)>, start: usize, anchor: usize },
}

struct Builder<'a> {
    source: Source<'a>,
    offsets: Offsets<'a>,
    anchors: HashMap<usize, Node<'a>>,
    alias_nodes: usize,
    open: Vec<Open<'a>>,
    documents: Vec<Node<'a>>,
}

impl<'a> Builder<'a> {
    fn event(&mut self, event: Event<'a>, span: Span) -> Result<(), ConfigError> {
        match event {
            Event::DocumentStart(_) => {
                self.anchors.clear();
                self.alias_nodes = 0;
                Ok(())
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::Alias(anchor) => {
                let span = self.offsets.range(span);
                let Some(target) = self.anchors.get(&anchor) else {
                    return Err(self.source.error(span.start, "bad_yaml", "alias to something that is not finished"));
                };
                self.alias_nodes += count(target);
                if self.alias_nodes > ALIAS_NODES_MAX {
                    let message = format!("aliases add more than {ALIAS_NODES_MAX} values");
                    return Err(self.source.error(span.start, "too_large", message));
                }
                let node = target.clone();
                self.place(node, 0, span)
            }
            Event::Scalar(text, style, anchor, tag) => {
                let span = self.offsets.range(span);
                let scalar = self.scalar(text, style, tag.as_deref(), &span)?;
                self.place(Node { value: Value::Scalar(scalar), span: span.clone() }, anchor, span)
            }
            Event::SequenceStart(anchor, tag) => {
                let span = self.offsets.range(span);
                self.check_tag(tag.as_deref(), &span)?;
                self.open(Open::List { items: Vec::new(), start: span.start, anchor }, span.start)
            }
            Event::MappingStart(anchor, tag) => {
                let span = self.offsets.range(span);
                self.check_tag(tag.as_deref(), &span)?;
                let map = Open::Map { map: MapBuilder::default(), key: None, start: span.start, anchor };
                self.open(map, span.start)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let end = self.offsets.byte(span.end);
                match self.open.pop() {
                    Some(Open::List { items, start, anchor }) => {
                        let span = start..end.max(start);
                        self.place(Node { value: Value::List(items), span: span.clone() }, anchor, span)
                    }
                    Some(Open::Map { map, start, anchor, .. }) => {
                        let span = start..end.max(start);
                        self.place(Node { value: Value::Map(map.entries), span: span.clone() }, anchor, span)
                    }
                    None => Err(self.source.error(end, "bad_yaml", "not YAML: unexpected end of a collection")),
                }
            }
        }
    }

    fn open(&mut self, open: Open<'a>, at: usize) -> Result<(), ConfigError> {
        if self.open.len() >= DEPTH_MAX {
            return Err(self.source.error(at, "too_deep", format!("nested more than {DEPTH_MAX} deep")));
        }
        self.open.push(open);
        Ok(())
    }

    /// Puts a finished node where it belongs. `span` is where it stands, which for an alias is not where it was written.
    fn place(&mut self, node: Node<'a>, anchor: usize, span: Range<usize>) -> Result<(), ConfigError> {
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            None => self.documents.push(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { map, key, .. }) => match key.take() {
                None => {
                    let Value::Scalar(scalar) = node.value else {
                        return Err(self.source.error(span.start, "bad_key", "a key must be a single word or text"));
                    };
                    *key = Some((scalar.text, span));
                }
                Some((name, key_span)) if name == "<<" && node.scalar().is_none() => {
                    merge(map, node).map_err(|message| self.source.error(key_span.start, "bad_yaml", message))?;
                }
                Some((name, key_span)) => {
                    match map.find(&name) {
                        // A key of its own wins over a merged one, wherever the merge stands.
                        Some(at) if map.entries[at].key_span.is_empty() => {
                            map.entries[at] = Entry { key: name, key_span, node };
                        }
                        Some(at) => {
                            let first = self.source.position(map.entries[at].key_span.start);
                            let message = format!("key `{name}` is written twice, first at {first}");
                            return Err(self.source.error(key_span.start, "duplicate_key", message).key(&name));
                        }
                        None => map.push(Entry { key: name, key_span, node }),
                    }
                }
            },
        }
        Ok(())
    }

    fn scalar(
        &self,
        text: Cow<'a, str>,
        style: ScalarStyle,
        tag: Option<&Tag>,
        span: &Range<usize>,
    ) -> Result<Scalar<'a>, ConfigError> {
        self.check_tag(tag, span)?;
        let kind = match tag.map(|tag| tag.suffix.as_str()) {
            Some("str") => ScalarKind::Text,
            _ if style == ScalarStyle::Plain => plain_kind(&text),
            _ => ScalarKind::Text,
        };
        Ok(Scalar { text, kind })
    }

    fn check_tag(&self, tag: Option<&Tag>, span: &Range<usize>) -> Result<(), ConfigError> {
        let Some(tag) = tag else { return Ok(()) };
        let known = ["str", "int", "float", "bool", "null", "seq", "map"];
        if (tag.is_yaml_core_schema() && known.contains(&tag.suffix.as_str()))
            || (tag.handle.is_empty() && tag.suffix == "!")
        {
            return Ok(());
        }
        Err(self
            .source
            .error(span.start, "bad_yaml", format!("unknown YAML tag `{}{}`", tag.handle, tag.suffix))
            .hint("quote a value that begins with `!`"))
    }
}

/// Adds the keys of `node` (a map or a list of maps) that are not there yet. Merged entries carry an empty key span.
fn merge<'a>(map: &mut MapBuilder<'a>, node: Node<'a>) -> Result<(), &'static str> {
    match node.value {
        Value::Map(merged) => {
            for entry in merged {
                if map.find(&entry.key).is_none() {
                    let at = entry.key_span.start;
                    map.push(Entry { key_span: at..at, ..entry });
                }
            }
            Ok(())
        }
        Value::List(items) => items.into_iter().try_for_each(|item| match item.value {
            Value::Map(_) => merge(map, item),
            _ => Err("`<<` merges maps only"),
        }),
        Value::Scalar(_) => Err("`<<` merges maps only"),
    }
}

fn count(node: &Node<'_>) -> usize {
    match &node.value {
        Value::Scalar(_) => 1,
        Value::List(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Map(entries) => 1 + entries.iter().map(|entry| count(&entry.node)).sum::<usize>(),
    }
}
