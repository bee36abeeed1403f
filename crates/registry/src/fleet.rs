//! Fleet files: a list of services and their instances, written by hand or by a tool.
//!
//! A fleet file is the smallest registry there is: it serves tests, first steps, simulations and machines without a
//! registry. It is read whole. A malformed document or a misspelt key rejects the file, because half a file is worse
//! than the last good one; one bad *instance* (a negative weight, an address that is none, an id used twice) is left
//! out, counted and reported with its place, because the others still work.
//!
//! ```yaml
//! services:
//!   - name: orders
//!     instances:
//!       - {address: "10.0.0.1:8080", cluster: hz, zone: a, metadata: {version: 2.10, tier: 2}}
//!       - {id: b, address: "orders-b.internal:8080", weight: 0}
//! ```
//!
//! Metadata values keep what was written: the unquoted `2.10` above is a number with the digits `2.10`.

use std::collections::HashSet;
use std::path::Path;

use metaroute_core::instance::{Address, Incarnation, Instance, InstanceId, Locality, MetaValue, Metadata};

use crate::document::{ConfigError, Fields, Format, Lines, Node, Note, ScalarKind, Source, Value};

/// Most notes kept of one file; further oddities are counted only.
pub const NOTES_MAX: usize = 1000;

const FILE_KEYS: [&str; 2] = ["version", "services"];
const SERVICE_KEYS: [&str; 2] = ["name", "instances"];
const INSTANCE_KEYS: [&str; 11] = [
    "id",
    "address",
    "weight",
    "cluster",
    "zone",
    "region",
    "subzone",
    "healthy",
    "enabled",
    "incarnation",
    "metadata",
];

/// The content of a fleet file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fleet {
    /// Services in file order, names unique.
    pub services: Vec<FleetService>,
    /// What is odd, in file order, at most [`NOTES_MAX`].
    pub notes: Vec<Note>,
}

/// One service of a fleet file.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetService {
    /// Its name, not empty.
    pub name: Box<str>,
    /// Its usable instances in file order, ids unique, each without [`Instance::defect`].
    pub instances: Vec<Instance>,
    /// How many instances were left out; each has a note.
    pub rejected: usize,
}

impl Fleet {
    /// Reads a fleet from text. `name` stands in messages for the file.
    ///
    /// # Errors
    /// When the document as a whole cannot be used; the error says where and what was expected.
    pub fn parse(name: &str, text: &str, format: Format) -> Result<Self, ConfigError> {
        let source = Source::new(name, text);
        let root = source.parse(format)?;
        Reader { source, notes: Vec::new(), lines: None }.fleet(&root)
    }

    /// Reads a fleet file; its extension says the format.
    ///
    /// # Errors
    /// `unreadable` when the file cannot be read, `unknown_format` for an extension that stands for no
    /// [`Format`], else as [`Fleet::parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let (text, format) = read_text(path)?;
        Self::parse(&path.display().to_string(), &text, format)
    }

    /// The service of this name.
    pub fn service(&self, name: &str) -> Option<&FleetService> {
        self.services.iter().find(|service| &*service.name == name)
    }

    /// How many instances of all services were left out.
    pub fn rejected(&self) -> usize {
        self.services.iter().map(|service| service.rejected).sum()
    }
}

/// The text and format of a configuration file.
///
/// # Errors
/// `unreadable` with the reason, `not_utf8` with the place, `unknown_format` for an extension that stands for no format.
pub fn read_text(path: &Path) -> Result<(String, Format), ConfigError> {
    let name = path.display().to_string();
    let fail = |code, message: String| ConfigError { file: name.as_str().into(), ..ConfigError::new(code, message) };
    let Some(format) = Format::of_path(path) else {
        return Err(fail("unknown_format", "the file's extension stands for no known format".into()).expected([
            ".yaml",
            ".yml",
            ".json",
            ".toml",
            ".properties",
            ".conf",
        ]));
    };
    let bytes = std::fs::read(path).map_err(|error| fail("unreadable", format!("cannot be read: {error}")))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok((text, format)),
        Err(error) => {
            let good = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(&error.as_bytes()[..good]).into_owned();
            Err(Source::new(&name, &text).error(good, "not_utf8", "the file is not UTF-8"))
        }
    }
}

struct Reader<'a> {
    source: Source<'a>,
    notes: Vec<Note>,
    /// Made for the first note.
    lines: Option<Lines<'a>>,
}

/// Why an instance is left out: where, and a code with a message.
struct Reject {
    offset: usize,
    code: &'static str,
    message: String,
}

impl<'a> Reader<'a> {
    fn fleet(mut self, root: &Node<'a>) -> Result<Fleet, ConfigError> {
        if root.is_null() {
            return Err(self
                .source
                .error(0, "missing_key", "the file is empty")
                .key("services")
                .expected(["services"]));
        }
        let fields = Fields::of(self.source, root, "the fleet file", &FILE_KEYS)?;
        if let Some(version) = fields.get("version").filter(|node| node.text() != Some("1")) {
            return Err(self
                .source
                .error(version.span.start, "unknown_version", format!("fleet file version `{version}` is not known"))
                .key("version")
                .expected(["1"]));
        }
        let services = self.source.list_of(fields.require("services", "the fleet file")?, "services")?;
        let mut names = HashSet::new();
        let mut out = Vec::with_capacity(services.len());
        for node in services {
            let service = self.service(node)?;
            if !names.insert(service.name.clone()) {
                let message = format!("service `{}` is listed twice", service.name);
                return Err(self.source.error(node.span.start, "duplicate_service", message).key("name"));
            }
            out.push(service);
        }
        Ok(Fleet { services: out, notes: self.notes })
    }

    fn service(&mut self, node: &Node<'a>) -> Result<FleetService, ConfigError> {
        let fields = Fields::of(self.source, node, "a service", &SERVICE_KEYS)?;
        let name_node = fields.require("name", "a service")?;
        let name = self.source.text_of(name_node, "name")?;
        if name.is_empty() {
            return Err(self
                .source
                .error(name_node.span.start, "missing_key", "the service name is empty")
                .key("name"));
        }
        let items = match fields.get("instances") {
            Some(node) => self.source.list_of(node, "instances")?,
            None => &[],
        };
        let mut service = FleetService { name: name.into(), instances: Vec::with_capacity(items.len()), rejected: 0 };
        let mut ids: HashSet<InstanceId> = HashSet::with_capacity(items.len());
        for (index, node) in items.iter().enumerate() {
            let outcome = self.instance(node)?.and_then(|instance| {
                if ids.insert(instance.id.clone()) {
                    Ok(instance)
                } else {
                    let at = node.get("id").map_or(node.span.start, |id| id.span.start);
                    let message = format!("id `{}` is used twice, the first one was kept", instance.id);
                    Err(Reject { offset: at, code: "duplicate_id", message })
                }
            });
            match outcome {
                Ok(instance) => service.instances.push(instance),
                Err(reject) => {
                    service.rejected += 1;
                    let message = format!("instance {} of `{name}` left out: {}", index + 1, reject.message);
                    self.note(reject.offset, reject.code, message);
                }
            }
        }
        Ok(service)
    }

    /// The outer error rejects the file, the inner one this instance.
    fn instance(&mut self, node: &Node<'a>) -> Result<Result<Instance, Reject>, ConfigError> {
        if node.map().is_none() {
            return Ok(Err(reject(node, "wrong_type", format!("an instance must be a map, not {}", node.kind()))));
        }
        let fields = Fields::of(self.source, node, "an instance", &INSTANCE_KEYS)?;
        Ok(self.instance_of(node, fields))
    }

    fn instance_of(&mut self, node: &Node<'a>, fields: Fields<'_, 'a>) -> Result<Instance, Reject> {
        let Some(address_node) = fields.get("address") else {
            return Err(reject(node, "missing_key", "it has no `address`".into()));
        };
        let address: Address = match address_node.text().map(str::parse) {
            Some(Ok(address)) => address,
            Some(Err(error)) => return Err(reject(address_node, "bad_address", error.to_string())),
            None => {
                let message = format!("`address` must be host:port, not {}", address_node.kind());
                return Err(reject(address_node, "bad_address", message));
            }
        };
        let mut instance = Instance::new(address);
        let text = |key: &str| -> Result<Option<Box<str>>, Reject> {
            match fields.get(key) {
                None => Ok(None),
                Some(node) => match node.text() {
                    Some(text) => Ok(Some(text.into())),
                    None => Err(reject(node, "wrong_type", format!("`{key}` must be text, not {}", node.kind()))),
                },
            }
        };
        let switch = |key: &str| -> Result<bool, Reject> {
            fields.bool(key).map(|value| value.unwrap_or(true)).map_err(|error| {
                let at = fields.get(key).map_or(node.span.start, |node| node.span.start);
                Reject { offset: at, code: error.code, message: error.message.into() }
            })
        };
        if let Some(id) = text("id")? {
            instance.id = InstanceId::new(id);
        }
        if let Some(incarnation) = text("incarnation")? {
            instance.incarnation = Incarnation::new(incarnation);
        }
        if let Some(cluster) = text("cluster")? {
            instance.cluster = cluster;
        }
        instance.locality = Locality {
            region: text("region")?.unwrap_or_default(),
            zone: text("zone")?.unwrap_or_default(),
            subzone: text("subzone")?.unwrap_or_default(),
        };
        instance.healthy = switch("healthy")?;
        instance.enabled = switch("enabled")?;
        if let Some(weight) = fields.get("weight") {
            instance.weight = self.weight(weight)?;
        }
        if let Some(metadata) = fields.get("metadata") {
            let Some(entries) = metadata.map() else {
                let message = format!("`metadata` must be a map, not {}", metadata.kind());
                return Err(reject(metadata, "wrong_type", message));
            };
            instance.metadata = entries
                .iter()
                .filter_map(|entry| Some((Box::from(entry.key.as_ref()), meta_value(&entry.node)?)))
                .collect::<Metadata>();
        }
        match instance.defect() {
            None => Ok(instance),
            Some(defect) => {
                let at =
                    if matches!(defect, metaroute_core::instance::Defect::Weight(_)) { "weight" } else { "metadata" };
                Err(reject(fields.get(at).unwrap_or(node), "bad_instance", defect.to_string()))
            }
        }
    }

    /// A weight. What is no number is 1 with a note; what is a number but no weight rejects the instance.
    fn weight(&mut self, node: &Node<'a>) -> Result<f64, Reject> {
        match node.text().and_then(parse_number) {
            Some(weight) if weight.is_nan() || weight < 0.0 => {
                Err(reject(node, "bad_weight", format!("weight `{node}` is not 0 or more")))
            }
            Some(weight) => Ok(weight),
            None => {
                let message = format!("weight `{node}` is not a number, 1 is used");
                self.note(node.span.start, "weight_default", message);
                Ok(1.0)
            }
        }
    }

    fn note(&mut self, offset: usize, code: &'static str, message: String) {
        if self.notes.len() >= NOTES_MAX {
            return;
        }
        let lines = self.lines.get_or_insert_with(|| self.source.lines());
        let at = Some(lines.position(offset));
        self.notes.push(Note { code, message, file: self.source.name.into(), at });
    }
}

fn reject(node: &Node<'_>, code: &'static str, message: String) -> Reject {
    Reject { offset: node.span.start, code, message }
}

/// A weight as files and registries write it: a decimal, perhaps with exponent, white space around it ignored. YAML's
/// spellings of infinite and not-a-number count as numbers, so that they are rejected and not taken for 1.
pub fn parse_number(text: &str) -> Option<f64> {
    let text = text.trim();
    match text.to_ascii_lowercase().trim_start_matches(['+', '-']) {
        ".inf" => return Some(if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY }),
        ".nan" => return Some(f64::NAN),
        _ => {}
    }
    text.parse().ok()
}

/// A metadata value with its kind; `None` for null, which is an absent key. A list of single values stays a list,
/// anything richer becomes JSON text.
pub fn meta_value(node: &Node<'_>) -> Option<MetaValue> {
    Some(match &node.value {
        Value::Scalar(scalar) => match scalar.kind {
            ScalarKind::Null => return None,
            ScalarKind::Bool => MetaValue::Bool(scalar.text.eq_ignore_ascii_case("true")),
            ScalarKind::Number => MetaValue::Number(scalar.text.as_ref().into()),
            ScalarKind::Text => MetaValue::Text(scalar.text.as_ref().into()),
        },
        Value::List(items) => match items.iter().map(|item| item.text().map(Box::from)).collect::<Option<Box<[_]>>>() {
            Some(items) => MetaValue::List(items),
            None => MetaValue::Json(node.to_json().into()),
        },
        Value::Map(_) => MetaValue::Json(node.to_json().into()),
    })
}

#[cfg(test)]
mod tests;
