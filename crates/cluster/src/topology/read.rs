//! Reading a document from YAML or JSON so that every complaint has a place.

use metaroute_registry::document::{ConfigError, Fields, Format, Node, Source, Value};

use super::Topology;
use super::document::{
    BucketEntry, Defect, Document, FORMAT_VERSION, GroupEntry, OverrideEntry, OwnerEntry, RangeEntry, ReplicaEntry,
    ShardEntry, Step, Tenants,
};
use crate::placement::{SlotFunction, Span};
use crate::slots::SlotSet;

const DOCUMENT_KEYS: [&str; 6] = ["version", "epoch", "forced_over", "slot_functions", "tenants", "groups"];
const TENANTS_KEYS: [&str; 3] = ["buckets", "ranges", "overrides"];
const BUCKET_KEYS: [&str; 3] = ["buckets", "group", "epoch"];
const RANGE_KEYS: [&str; 4] = ["from", "to", "group", "epoch"];
const OVERRIDE_KEYS: [&str; 4] = ["tenant", "group", "epoch", "span"];
const SPAN_KEYS: [&str; 2] = ["base", "width"];
const GROUP_KEYS: [&str; 5] = ["name", "base_shards", "slots", "shards", "owners"];
const SHARD_KEYS: [&str; 2] = ["name", "replicas"];
const REPLICA_KEYS: [&str; 2] = ["address", "zone"];
const OWNER_KEYS: [&str; 3] = ["slots", "shard", "epoch"];

impl Document {
    /// Reads a document. `name` stands in messages for the file. Its shape is checked, its content is not.
    ///
    /// # Errors
    /// When the text is malformed, has an unknown key, or a value is of the wrong kind; with the place.
    pub fn parse(name: &str, text: &str, format: Format) -> Result<Document, ConfigError> {
        let source = Source::new(name, text);
        let root = source.parse(format)?;
        Reader { source }.document(&root)
    }
}

impl Topology {
    /// Reads and validates a document.
    ///
    /// # Errors
    /// As [`Document::parse`], and for the first defect in the content; with the place.
    pub fn parse(name: &str, text: &str, format: Format) -> Result<Topology, ConfigError> {
        let source = Source::new(name, text);
        let root = source.parse(format)?;
        let document = Reader { source }.document(&root)?;
        Topology::new(document).map_err(|defect| locate(source, &root, defect))
    }
}

/// The defect at the place its path leads to, or at the nearest place above.
fn locate(source: Source<'_>, root: &Node<'_>, defect: Defect) -> ConfigError {
    let mut node = root;
    for step in &defect.path {
        let next = match (step, &node.value) {
            (Step::Key(key), Value::Map(_)) => node.get(key),
            (Step::Item(index), Value::List(items)) => items.get(*index),
            _ => None,
        };
        let Some(next) = next else { break };
        node = next;
    }
    source.error(node.span.start, defect.code, defect.message)
}

struct Reader<'a> {
    source: Source<'a>,
}

impl<'a> Reader<'a> {
    fn document(&self, root: &Node<'a>) -> Result<Document, ConfigError> {
        if root.is_null() {
            return Err(self.source.error(0, "empty", "the topology document is empty"));
        }
        let fields = Fields::of(self.source, root, "the topology", &DOCUMENT_KEYS)?;
        let mut document = Document {
            version: self.optional(&fields, "version")?.unwrap_or(FORMAT_VERSION),
            epoch: self.optional(&fields, "epoch")?.unwrap_or(0),
            forced_over: self.optional(&fields, "forced_over")?,
            ..Document::default()
        };
        if let Some(node) = fields.get("slot_functions") {
            for entry in Fields::open(self.source, node, "`slot_functions`")?.entries() {
                let word = self.source.text_of(&entry.node, &entry.key)?;
                let function: SlotFunction = word.parse().map_err(|error: crate::placement::UnknownSlotFunction| {
                    self.source
                        .error(entry.node.span.start, "unknown_value", error.to_string())
                        .expected(["mod", "mix64"])
                })?;
                document.slot_functions.insert(entry.key.to_string(), function);
            }
        }
        if let Some(node) = fields.get("tenants") {
            document.tenants = self.tenants(node)?;
        }
        document.groups = self.list(&fields, "groups", |node| self.group(node))?;
        Ok(document)
    }

    fn tenants(&self, node: &Node<'a>) -> Result<Tenants, ConfigError> {
        let fields = Fields::of(self.source, node, "`tenants`", &TENANTS_KEYS)?;
        Ok(Tenants {
            buckets: self.list(&fields, "buckets", |node| {
                let fields = Fields::of(self.source, node, "a bucket entry", &BUCKET_KEYS)?;
                Ok(BucketEntry {
                    buckets: self.slots(&fields, "buckets")?,
                    group: self.text(&fields, "group")?,
                    epoch: self.optional(&fields, "epoch")?.unwrap_or(0),
                })
            })?,
            ranges: self.list(&fields, "ranges", |node| {
                let fields = Fields::of(self.source, node, "a range", &RANGE_KEYS)?;
                Ok(RangeEntry {
                    from: self.number(&fields, "from", "a range")?,
                    to: self.number(&fields, "to", "a range")?,
                    group: self.text(&fields, "group")?,
                    epoch: self.optional(&fields, "epoch")?.unwrap_or(0),
                })
            })?,
            overrides: self.list(&fields, "overrides", |node| {
                let fields = Fields::of(self.source, node, "an override", &OVERRIDE_KEYS)?;
                let span = fields.get("span").map(|node| {
                    let fields = Fields::of(self.source, node, "a span", &SPAN_KEYS)?;
                    Ok(Span {
                        base: self.number(&fields, "base", "a span")?,
                        width: self.number(&fields, "width", "a span")?,
                    })
                });
                Ok(OverrideEntry {
                    tenant: self.number(&fields, "tenant", "an override")?,
                    group: self.text(&fields, "group")?,
                    epoch: self.optional(&fields, "epoch")?.unwrap_or(0),
                    span: span.transpose()?,
                })
            })?,
        })
    }

    fn group(&self, node: &Node<'a>) -> Result<GroupEntry, ConfigError> {
        let fields = Fields::of(self.source, node, "a group", &GROUP_KEYS)?;
        Ok(GroupEntry {
            name: self.text(&fields, "name")?,
            base_shards: self.number(&fields, "base_shards", "a group")?,
            slots: self.number(&fields, "slots", "a group")?,
            shards: self.list(&fields, "shards", |node| {
                let fields = Fields::of(self.source, node, "a shard", &SHARD_KEYS)?;
                Ok(ShardEntry {
                    name: self.text(&fields, "name")?,
                    replicas: self.list(&fields, "replicas", |node| {
                        let fields = Fields::of(self.source, node, "a replica", &REPLICA_KEYS)?;
                        Ok(ReplicaEntry {
                            address: self.text(&fields, "address")?,
                            zone: fields.text("zone")?.map(str::to_owned),
                        })
                    })?,
                })
            })?,
            owners: self.list(&fields, "owners", |node| {
                let fields = Fields::of(self.source, node, "an owner entry", &OWNER_KEYS)?;
                Ok(OwnerEntry {
                    slots: self.slots(&fields, "slots")?,
                    shard: self.text(&fields, "shard")?,
                    epoch: self.optional(&fields, "epoch")?.unwrap_or(0),
                })
            })?,
        })
    }

    /// The items of an optional list.
    fn list<T>(
        &self,
        fields: &Fields<'_, 'a>,
        key: &str,
        read: impl Fn(&Node<'a>) -> Result<T, ConfigError>,
    ) -> Result<Vec<T>, ConfigError> {
        match fields.get(key) {
            None => Ok(Vec::new()),
            Some(node) => self.source.list_of(node, key)?.iter().map(read).collect(),
        }
    }

    fn text(&self, fields: &Fields<'_, 'a>, key: &str) -> Result<String, ConfigError> {
        let node = fields.require(key, "the entry")?;
        Ok(self.source.text_of(node, key)?.to_owned())
    }

    /// A whole number, as a number or as text (64-bit ids are text in JSON).
    fn number<N: std::str::FromStr>(&self, fields: &Fields<'_, 'a>, key: &str, what: &str) -> Result<N, ConfigError> {
        let node = fields.require(key, what)?;
        self.number_of(node, key)
    }

    fn optional<N: std::str::FromStr>(&self, fields: &Fields<'_, 'a>, key: &str) -> Result<Option<N>, ConfigError> {
        fields.get(key).map(|node| self.number_of(node, key)).transpose()
    }

    fn number_of<N: std::str::FromStr>(&self, node: &Node<'a>, key: &str) -> Result<N, ConfigError> {
        let text = self.source.text_of(node, key)?;
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| digits).ok_or_else(|| {
            self.source
                .error(node.span.start, "wrong_type", format!("`{key}` must be a whole number in range, not `{node}`"))
                .key(key)
                .expected(["number"])
        })
    }

    fn slots(&self, fields: &Fields<'_, 'a>, key: &str) -> Result<SlotSet, ConfigError> {
        let node = fields.require(key, "the entry")?;
        let text = self.source.text_of(node, key)?;
        text.parse().map_err(|error: crate::slots::BadSlots| {
            self.source.error(node.span.start, "bad_slots", error.to_string()).key(key)
        })
    }
}
