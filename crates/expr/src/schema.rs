//! Names to dense ids: the seam between an expression and whoever owns the records.
//!
//! Binding an expression asks a [`Schema`] once for every name it reads; evaluation then only ever sees a [`KeyId`] or
//! a [`SlotId`]. Instances use the ready [`KeyTable`], which interns names in order of first use; a table of rows brings
//! its own schema, where a column that does not exist is an error.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use crate::Type;
use crate::value::Value;

/// A dense number for a key of the record: a metadata key, a built-in attribute or a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub u32);

/// A dense number for a value that comes with the caller or the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// Where a slot's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SlotScope {
    /// `$caller.k`: the caller's own metadata.
    Caller,
    /// `$req.k`: this one request.
    Request,
}

impl fmt::Display for SlotScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SlotScope::Caller => "$caller",
            SlotScope::Request => "$req",
        })
    }
}

/// What every instance has besides its metadata: `$self.cluster` and its like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attribute {
    /// The cluster the instance belongs to.
    Cluster,
    /// The availability zone.
    Zone,
    /// The region.
    Region,
    /// The instance's identity.
    Id,
    /// The host name or IP address.
    Host,
    /// The port.
    Port,
    /// The weight, a number.
    Weight,
    /// Whether the registry calls it healthy.
    Healthy,
}

impl Attribute {
    /// Every attribute, in the order the documentation lists them.
    pub const ALL: [Attribute; 8] = [
        Attribute::Cluster,
        Attribute::Zone,
        Attribute::Region,
        Attribute::Id,
        Attribute::Host,
        Attribute::Port,
        Attribute::Weight,
        Attribute::Healthy,
    ];

    /// The name after `$self.`.
    pub fn name(self) -> &'static str {
        match self {
            Attribute::Cluster => "cluster",
            Attribute::Zone => "zone",
            Attribute::Region => "region",
            Attribute::Id => "id",
            Attribute::Host => "host",
            Attribute::Port => "port",
            Attribute::Weight => "weight",
            Attribute::Healthy => "healthy",
        }
    }

    /// The attribute's fixed type.
    pub fn type_of(self) -> Type {
        match self {
            Attribute::Port | Attribute::Weight => Type::Number,
            Attribute::Healthy => Type::Bool,
            _ => Type::Text,
        }
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name after `$self.` that is no attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownAttribute(String);

impl fmt::Display for UnknownAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown attribute `{}`", self.0)
    }
}

impl std::error::Error for UnknownAttribute {}

impl FromStr for Attribute {
    type Err = UnknownAttribute;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Attribute::ALL
            .into_iter()
            .find(|attribute| attribute.name() == name)
            .ok_or_else(|| UnknownAttribute(name.to_owned()))
    }
}

/// A name the owner of the records cannot give an id: an unknown column, or `$req` where there is no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// What is wrong, lowercase, with the name in it.
    pub message: String,
    /// Stable, snake_case.
    pub code: &'static str,
    /// What to write instead, where there is something.
    pub hint: Option<String>,
}

impl Unsupported {
    /// An unsupported name with the code `unsupported_name`.
    pub fn new(message: impl Into<String>) -> Self {
        Unsupported { message: message.into(), code: "unsupported_name", hint: None }
    }

    /// The same with another code.
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = code;
        self
    }

    /// The same with a suggestion.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Unsupported {}

/// Gives names their ids and types. Implemented by the owner of the records.
pub trait Schema {
    /// The id of a metadata key or column.
    ///
    /// # Errors
    /// An unknown column of a table. Instances accept every key, since any of them may have it one day.
    fn key(&mut self, name: &str) -> Result<KeyId, Unsupported>;

    /// The id under which the records answer for `$self.x`.
    ///
    /// # Errors
    /// The records have no such attribute (rows have none).
    fn attribute(&mut self, attribute: Attribute) -> Result<KeyId, Unsupported>;

    /// The id under which the context answers for `$caller.k` or `$req.k`.
    ///
    /// # Errors
    /// There is no such context (rows have none).
    fn slot(&mut self, scope: SlotScope, name: &str) -> Result<SlotId, Unsupported>;

    /// The declared type of a key, if it has one.
    fn declared(&self, name: &str) -> Option<Type>;

    /// Whether an undeclared key's type may be guessed from its name (`version`, `*-version`, `*_version`). Tables say
    /// no: they know every type.
    fn infers_types(&self) -> bool {
        true
    }
}

/// One key of a [`KeyTable`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A metadata key.
    Name(Box<str>),
    /// A built-in attribute.
    Attribute(Attribute),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Name(name) => f.write_str(name),
            Key::Attribute(attribute) => write!(f, "$self.{attribute}"),
        }
    }
}

/// The ready [`Schema`] for instances: keys, attributes and slots get ids in order of first use, nothing is refused.
///
/// ```
/// use metaroute_expr::{Expr, KeyTable};
///
/// let mut table = KeyTable::default();
/// Expr::parse("env == prod && zone == $caller.zone")?.bind(&mut table)?;
/// let names: Vec<String> = table.keys().iter().map(|key| key.to_string()).collect();
/// assert_eq!(names, ["env", "zone"]);
/// assert_eq!(&*table.slots()[0].1, "zone");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyTable {
    types: BTreeMap<String, Type>,
    keys: Vec<Key>,
    key_ids: HashMap<Key, KeyId>,
    slots: Vec<(SlotScope, Box<str>)>,
    slot_ids: HashMap<(SlotScope, Box<str>), SlotId>,
}

impl KeyTable {
    /// An empty table that knows these declared types.
    pub fn new(types: BTreeMap<String, Type>) -> Self {
        KeyTable { types, ..KeyTable::default() }
    }

    /// The keys so far; the position is the id.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The slots so far; the position is the id.
    pub fn slots(&self) -> &[(SlotScope, Box<str>)] {
        &self.slots
    }

    /// The id a metadata key already has.
    pub fn key_id(&self, name: &str) -> Option<KeyId> {
        self.key_ids.get(&Key::Name(name.into())).copied()
    }

    /// The id an attribute already has.
    pub fn attribute_id(&self, attribute: Attribute) -> Option<KeyId> {
        self.key_ids.get(&Key::Attribute(attribute)).copied()
    }

    /// The id a slot already has.
    pub fn slot_id(&self, scope: SlotScope, name: &str) -> Option<SlotId> {
        self.slot_ids.get(&(scope, name.into())).copied()
    }

    /// The declared types.
    pub fn types(&self) -> &BTreeMap<String, Type> {
        &self.types
    }

    fn intern(&mut self, key: Key) -> KeyId {
        if let Some(id) = self.key_ids.get(&key) {
            return *id;
        }
        let id = KeyId(u32::try_from(self.keys.len()).expect("fewer than 2^32 keys"));
        self.keys.push(key.clone());
        self.key_ids.insert(key, id);
        id
    }
}

impl Schema for KeyTable {
    fn key(&mut self, name: &str) -> Result<KeyId, Unsupported> {
        Ok(self.intern(Key::Name(name.into())))
    }

    fn attribute(&mut self, attribute: Attribute) -> Result<KeyId, Unsupported> {
        Ok(self.intern(Key::Attribute(attribute)))
    }

    fn slot(&mut self, scope: SlotScope, name: &str) -> Result<SlotId, Unsupported> {
        let slot = (scope, Box::from(name));
        if let Some(id) = self.slot_ids.get(&slot) {
            return Ok(*id);
        }
        let id = SlotId(u32::try_from(self.slots.len()).expect("fewer than 2^32 slots"));
        self.slots.push(slot.clone());
        self.slot_ids.insert(slot, id);
        Ok(id)
    }

    fn declared(&self, name: &str) -> Option<Type> {
        self.types.get(name).copied()
    }
}

/// One record: an instance or a row.
pub trait Record {
    /// The value under a key, or `None` where the key is missing. The empty string is present.
    fn get(&self, key: KeyId) -> Option<Value<'_>>;
}

/// A record without any key.
impl Record for () {
    fn get(&self, _: KeyId) -> Option<Value<'_>> {
        None
    }
}

impl<R: Record + ?Sized> Record for &R {
    fn get(&self, key: KeyId) -> Option<Value<'_>> {
        (**self).get(key)
    }
}

/// What the caller and the request say.
pub trait Context {
    /// The value of a slot, or `None` where it is absent.
    fn get(&self, slot: SlotId) -> Option<&str>;
}

/// A context without any value.
impl Context for () {
    fn get(&self, _: SlotId) -> Option<&str> {
        None
    }
}

impl<C: Context + ?Sized> Context for &C {
    fn get(&self, slot: SlotId) -> Option<&str> {
        (**self).get(slot)
    }
}
