//! Configuration of other products as they read it: flat names from several sources, of which the first that has a name
//! wins.
//!
//! Spring and Seata look a name up in the command line, the environment and files, in that order, and accept several
//! spellings: `load-balance`, `loadBalance`, `load_balance`, and `SEATA_CLIENT_LOADBALANCE_TYPE` in the environment.
//! [`Properties`] does the same over the documents that people have: multi-document YAML with profiles, Java properties,
//! HOCON, and `${name:default}` placeholders.
//!
//! Not for our own files: those are closed shapes read by [`rules_file`](crate::rules_file) and
//! [`fleet`](metaroute_registry::fleet).

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use metaroute_core::instance::MetaValue;
use metaroute_registry::document::{ConfigError, Format, Lines, Node, Note, Position, ScalarKind, Source, Value};

mod profile;

/// Most placeholders followed inside each other; more is a circle.
const PLACEHOLDER_DEPTH: usize = 16;

/// Most placeholders followed for one value; bounds values that repeat each other.
const PLACEHOLDERS_MAX: usize = 1000;

/// What surrounds a program: its arguments and environment variables. Handed in, so that tests and tools decide.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    arguments: Vec<(String, String)>,
    variables: BTreeMap<String, String>,
}

impl Surroundings {
    /// Nothing but what is added.
    pub fn none() -> Self {
        Self::default()
    }

    /// The environment variables of this process. Variables that are not UTF-8 are left out.
    pub fn of_process() -> Self {
        let variables =
            std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
        Self { variables: variables.collect(), ..Self::default() }
    }

    /// One more environment variable.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// One more command line argument: `--name=value`, `-Dname=value` or `name=value`. Other arguments are ignored.
    #[must_use]
    pub fn with_argument(mut self, argument: &str) -> Self {
        let argument = argument.strip_prefix("--").or_else(|| argument.strip_prefix("-D")).unwrap_or(argument);
        if let Some((name, value)) = argument.split_once('=') {
            self.arguments.push((name.to_owned(), value.to_owned()));
        }
        self
    }
}

/// What kind of source a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Arguments,
    /// Environment variables.
    Environment,
    /// A file.
    File,
}

/// One name and its value.
#[derive(Clone, Debug)]
pub struct Property {
    /// The name as written, joined by dots; for a variable its name.
    pub name: String,
    /// The value as written, placeholders unresolved. Nothing is the empty text, as Spring has it.
    pub text: String,
    /// What the format takes the value for; `Text` everywhere but in YAML, JSON, TOML and HOCON.
    pub kind: ScalarKind,
    /// What kind of source it came from.
    pub origin: Origin,
    /// The file it came from, or `command line` or `environment`.
    pub file: String,
    /// Its place in the file.
    pub at: Option<Position>,
    segments: Vec<String>,
}

impl Property {
    /// A note about this property.
    pub fn note(&self, code: &'static str, message: impl Into<String>) -> Note {
        Note { code, message: message.into(), file: self.file.as_str().into(), at: self.at }
    }

    /// The name below a prefix, as written; for a variable in lower case with dots for underscores, as Spring reads it.
    /// `None` when it is not below the prefix or is the prefix itself.
    pub fn below(&self, prefix: &str) -> Option<String> {
        if self.origin == Origin::Environment {
            return below_variable(&self.name, prefix);
        }
        let mut segments = self.segments.iter();
        for wanted in prefix.split('.') {
            if !same_part(segments.next()?, wanted) {
                return None;
            }
        }
        let rest: Vec<&str> = segments.map(String::as_str).collect();
        (!rest.is_empty()).then(|| rest.join("."))
    }

    fn is(&self, name: &str) -> bool {
        match self.origin {
            Origin::Environment => same_name(&self.name, name),
            _ => {
                let wanted = name.split('.');
                self.segments.len() == wanted.clone().count()
                    && self.segments.iter().zip(wanted).all(|(have, wanted)| same_part(have, wanted))
            }
        }
    }
}

/// Whether two name parts differ only where differences do not count.
fn same_part(a: &str, b: &str) -> bool {
    fn squash(part: &str) -> impl Iterator<Item = char> + '_ {
        part.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase)
    }
    squash(a).eq(squash(b))
}

/// A whole name without the differences that do not count between a variable and a dotted name.
fn squash_all(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '-' | '_' | '.')).flat_map(char::to_lowercase).collect()
}

/// Whether two spellings name the same key.
pub fn same_name(a: &str, b: &str) -> bool {
    fn squash(name: &str) -> impl Iterator<Item = char> + '_ {
        name.chars().filter(|c| !matches!(c, '-' | '_' | '.')).flat_map(char::to_lowercase)
    }
    squash(a).eq(squash(b))
}

fn below_variable(variable: &str, prefix: &str) -> Option<String> {
    let mut rest = variable.chars();
    for wanted in prefix.chars().filter(|c| !matches!(c, '-' | '_' | '.')).flat_map(char::to_lowercase) {
        let found = rest.by_ref().find(|c| *c != '_')?;
        if !found.to_lowercase().eq([wanted]) {
            return None;
        }
    }
    let suffix = rest.as_str().strip_prefix('_')?;
    let suffix = suffix.trim_matches('_').to_lowercase().replace('_', ".");
    (!suffix.is_empty()).then_some(suffix)
}

/// A value below a prefix as metadata: with its kind where the file has one and no placeholder was replaced.
pub(crate) fn meta_value(property: &Property, resolved: String) -> MetaValue {
    match property.kind {
        ScalarKind::Number if resolved == property.text => MetaValue::Number(resolved.into()),
        ScalarKind::Bool => MetaValue::Bool(resolved.eq_ignore_ascii_case("true")),
        _ => MetaValue::Text(resolved.into()),
    }
}

/// Values by name from several sources, the strongest first.
#[derive(Clone, Debug, Default)]
pub struct Properties {
    layers: Vec<Layer>,
}

#[derive(Clone, Debug, Default)]
struct Layer {
    properties: Vec<Property>,
    /// Positions by squashed name; the last of a name.
    index: HashMap<String, usize>,
}

impl Layer {
    fn push(&mut self, property: Property) {
        self.index.insert(squash_all(&property.name), self.properties.len());
        self.properties.push(property);
    }

    fn get(&self, name: &str) -> Option<&Property> {
        let found = &self.properties[*self.index.get(&squash_all(name))?];
        // Without its dots a name may be taken for another one; then look closely.
        if found.is(name) {
            return Some(found);
        }
        self.properties.iter().rev().find(|property| property.is(name))
    }
}

impl Properties {
    /// The command line and the environment; files come after with [`add`](Self::add).
    pub fn new(surroundings: &Surroundings) -> Self {
        let property = |name: &str, value: &str, origin, file: &str| Property {
            name: name.to_owned(),
            text: value.to_owned(),
            kind: ScalarKind::Text,
            origin,
            file: file.to_owned(),
            at: None,
            segments: segments(name),
        };
        let mut arguments = Layer::default();
        for (name, value) in &surroundings.arguments {
            arguments.push(property(name, value, Origin::Arguments, "command line"));
        }
        let mut environment = Layer::default();
        for (name, value) in &surroundings.variables {
            environment.push(property(name, value, Origin::Environment, "environment"));
        }
        Self { layers: vec![arguments, environment] }
    }

    /// Adds a text that is weaker than everything so far. Documents of a YAML stream apply in order, those for a profile
    /// only when it is active.
    ///
    /// # Errors
    /// When the text is malformed.
    pub fn add(&mut self, name: &str, text: &str, format: Format) -> Result<(), ConfigError> {
        let source = Source::new(name, text);
        let place = Place { name, lines: source.lines() };
        let mut documents = Vec::new();
        if format == Format::Properties {
            let mut document = Vec::new();
            for entry in source.properties()? {
                flatten(&place, &mut segments(&entry.key), &entry.node, &mut document);
                if let Some(property) = document.last_mut() {
                    property.at = Some(place.lines.position(entry.key_span.start));
                }
            }
            documents.push(document);
        } else {
            for node in source.parse_all(format)? {
                if !node.is_null() && node.map().is_none() {
                    let message = format!("the file must be a map, not {}", node.kind());
                    return Err(source.error(node.span.start, "wrong_type", message).expected(["map"]));
                }
                let mut document = Vec::new();
                flatten(&place, &mut Vec::new(), &node, &mut document);
                documents.push(document);
            }
        }
        self.layers.push(Layer::default());
        for document in documents {
            if self.applies(&document) {
                let layer = self.layers.last_mut().expect("just pushed");
                for property in document {
                    layer.push(property);
                }
            }
        }
        Ok(())
    }

    /// Adds a file, and before it the files beside it for the active profiles (`application-prod.yml` beside
    /// `application.yml`), the last profile strongest.
    ///
    /// # Errors
    /// When a file cannot be read or is malformed.
    pub fn add_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let (text, format) = read(path)?;
        let at = self.layers.len();
        self.add(&path.display().to_string(), &text, format)?;
        let profiles = self.profiles();
        let (Some(stem), Some(extension)) = (path.file_stem(), path.extension()) else { return Ok(()) };
        for profile in profiles {
            let name = format!("{}-{profile}.{}", stem.to_string_lossy(), extension.to_string_lossy());
            let beside = path.with_file_name(name);
            if profile.contains(['/', '\\']) || !beside.is_file() {
                continue;
            }
            let (text, format) = read(&beside)?;
            self.add(&beside.display().to_string(), &text, format)?;
            let layer = self.layers.pop().expect("just added");
            self.layers.insert(at, layer);
        }
        Ok(())
    }

    /// The active profiles, in order.
    pub fn profiles(&self) -> Vec<String> {
        let mut unresolved = Vec::new();
        self.get("spring.profiles.active")
            .map(|property| self.resolve(property, &mut unresolved))
            .map(|text| split_list(&text))
            .unwrap_or_default()
    }

    fn applies(&self, document: &[Property]) -> bool {
        let condition = document.iter().find(|p| p.is("spring.config.activate.on-profile") || p.is("spring.profiles"));
        condition.is_none_or(|condition| profile::accepts(&condition.text, &self.profiles()))
    }

    /// The strongest value of a name.
    pub fn get(&self, name: &str) -> Option<&Property> {
        self.layers.iter().find_map(|layer| layer.get(name))
    }

    /// The strongest value of any of several names among the properties that `accept` accepts; of two in the same source
    /// the name that stands first wins.
    pub fn get_any(&self, names: &[&str], accept: impl Fn(&str, &Property) -> bool) -> Option<&Property> {
        self.layers
            .iter()
            .find_map(|layer| names.iter().find_map(|name| layer.get(name).filter(|property| accept(name, property))))
    }

    /// The strongest value of every name below any of some prefixes, among the properties that `accept` accepts. Of two
    /// prefixes in the same source the one that stands first wins, of two lines in the same source the later one.
    ///
    /// Names are compared as written, with `relaxed` by [`same_name`]. A variable's name has lost its case and dashes, so
    /// it stands for the name of a weaker source that it could be, where there is one.
    pub fn merged(
        &self,
        prefixes: &[&str],
        relaxed: bool,
        accept: impl Fn(&str, &Property) -> bool,
    ) -> BTreeMap<String, &Property> {
        let mut out: BTreeMap<String, &Property> = BTreeMap::new();
        for layer in self.layers.iter().rev() {
            for prefix in prefixes.iter().rev() {
                for property in layer.properties.iter().filter(|property| accept(prefix, property)) {
                    let Some(name) = property.below(prefix) else { continue };
                    let known = if relaxed || property.origin == Origin::Environment {
                        out.keys().find(|known| same_name(known, &name)).cloned()
                    } else {
                        None
                    };
                    out.insert(known.unwrap_or(name), property);
                }
            }
        }
        out
    }

    /// Every property of every file, as written.
    pub fn of_files(&self) -> impl Iterator<Item = &Property> {
        self.layers.iter().flat_map(|layer| &layer.properties).filter(|property| property.origin == Origin::File)
    }

    /// The value with its placeholders replaced. One that stands for nothing stays as written and is noted.
    pub fn resolve(&self, property: &Property, notes: &mut Vec<Note>) -> String {
        if !property.text.contains("${") {
            return property.text.clone();
        }
        let mut out = String::new();
        let mut steps = PLACEHOLDERS_MAX;
        self.resolve_into(&property.text, property, &mut steps, 0, &mut out, notes);
        out
    }

    fn resolve_into(
        &self,
        text: &str,
        property: &Property,
        steps: &mut usize,
        depth: usize,
        out: &mut String,
        notes: &mut Vec<Note>,
    ) {
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            if let Some(before) = rest[..at].strip_suffix('\\') {
                out.push_str(before);
                out.push_str("${");
                rest = &rest[at + 2..];
                continue;
            }
            let Some(end) = closing(&rest[at..]) else { break };
            out.push_str(&rest[..at]);
            let whole = &rest[at..at + end + 1];
            let inner = &rest[at + 2..at + end];
            rest = &rest[at + end + 1..];
            if depth >= PLACEHOLDER_DEPTH || *steps == 0 {
                // Said once per value: the steps are used up from here on.
                if *steps > 0 {
                    *steps = 0;
                    let message = format!("`{whole}` in `{}` never ends", property.name);
                    notes.push(property.note("unresolved_placeholder", message));
                }
                out.push_str(whole);
                continue;
            }
            *steps -= 1;
            // The name itself may hold placeholders; its default begins at the first colon outside of them.
            let (name, default) = match split_default(inner) {
                Some((name, default)) => (name, Some(default)),
                None => (inner, None),
            };
            let mut wanted = String::new();
            self.resolve_into(name, property, steps, depth + 1, &mut wanted, notes);
            match (self.get(wanted.trim()), default) {
                (Some(found), _) if !std::ptr::eq(found, property) => {
                    self.resolve_into(&found.text, found, steps, depth + 1, out, notes);
                }
                (_, Some(default)) => self.resolve_into(default, property, steps, depth + 1, out, notes),
                _ => {
                    let message = format!("`{whole}` in `{}` stands for nothing and has no default", property.name);
                    notes.push(property.note("unresolved_placeholder", message));
                    out.push_str(whole);
                }
            }
        }
        out.push_str(rest);
    }
}

/// The byte of the `}` that closes the `${` a text begins with.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'$' if bytes.get(at + 1) == Some(&b'{') => {
                depth += 1;
                at += 1;
            }
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

fn split_default(inner: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b':' if depth == 0 => return Some((&inner[..at], &inner[at + 1..])),
            _ => {}
        }
    }
    None
}

/// The items of a comma list, trimmed, without blank ones.
pub fn split_list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

/// The parts of a name: split at dots, with `[x]` a part of its own.
fn segments(name: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut part = String::new();
    let mut rest = name.chars();
    while let Some(c) = rest.next() {
        match c {
            '.' => out.push(std::mem::take(&mut part)),
            '[' if rest.as_str().contains(']') => {
                if !part.is_empty() {
                    out.push(std::mem::take(&mut part));
                }
                out.push(rest.by_ref().take_while(|c| *c != ']').collect());
                // The dot after a bracket only separates.
                match rest.as_str().strip_prefix('.') {
                    Some(after) => rest = after.chars(),
                    None if rest.as_str().is_empty() => return out,
                    None => {}
                }
            }
            c => part.push(c),
        }
    }
    out.push(part);
    out
}

fn flatten(place: &Place<'_>, path: &mut Vec<String>, node: &Node<'_>, out: &mut Vec<Property>) {
    match &node.value {
        Value::Map(entries) => {
            for entry in entries {
                let depth = path.len();
                path.extend(segments(&entry.key));
                let before = out.len();
                flatten(place, path, &entry.node, out);
                path.truncate(depth);
                // The place of a single value is its key: that is what a message is about.
                if entry.node.map().is_none() && out.len() == before + 1 {
                    out[before].at = Some(place.lines.position(entry.key_span.start));
                }
            }
        }
        Value::List(items) if items.iter().all(|item| item.scalar().is_some()) => {
            let text = items.iter().filter_map(Node::text).collect::<Vec<_>>().join(",");
            out.push(property(place, path, text, ScalarKind::Text, node));
        }
        Value::List(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push(index.to_string());
                flatten(place, path, item, out);
                path.pop();
            }
        }
        Value::Scalar(scalar) => {
            out.push(property(place, path, node.text().unwrap_or_default().to_owned(), scalar.kind, node));
        }
    }
}

/// Where a document stands.
struct Place<'a> {
    name: &'a str,
    lines: Lines<'a>,
}

fn property(place: &Place<'_>, path: &[String], text: String, kind: ScalarKind, node: &Node<'_>) -> Property {
    Property {
        name: path.join("."),
        text,
        kind,
        origin: Origin::File,
        file: place.name.to_owned(),
        at: Some(place.lines.position(node.span.start)),
        segments: path.to_vec(),
    }
}

/// The text and format of a configuration file of another product; `config.txt` is Java properties.
fn read(path: &Path) -> Result<(String, Format), ConfigError> {
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("txt")) {
        let fail = |message: String| ConfigError::new("unreadable", message);
        return match std::fs::read_to_string(path) {
            Ok(text) => Ok((text, Format::Properties)),
            Err(error) => Err(fail(format!("{}: cannot be read: {error}", path.display()))),
        };
    }
    metaroute_registry::fleet::read_text(path)
}

#[cfg(test)]
mod tests;
