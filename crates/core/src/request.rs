//! What a caller says about one request.

use crate::instance::InstanceId;

/// Number of a `$req` value, from [`crate::Selector::slot`]. Stable for the life of the selector, over rule reloads too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestSlot(pub(crate) u32);

/// A session that belongs to one instance. It is checked before preferences; only `must` rules may veto it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Affinity<'a> {
    /// A Seata transaction, `ip:port:number`; used by the balancer `xid`, and as the hash key of Seata's ring. Any other
    /// text is a request without an owner.
    Xid(&'a str),
    /// The instance a session is bound to, for example by a cookie; used by every balancer.
    Instance(&'a InstanceId),
}

/// The values of a request. Implement it on your own request type to pick without copying anything.
pub trait Context {
    /// The value of a `$req` key; `None` when the request has none.
    fn get(&self, slot: RequestSlot) -> Option<&str>;

    /// Key of the hash balancers. Without one they draw a key at random.
    fn key(&self) -> Option<&[u8]> {
        None
    }

    /// The session this request belongs to.
    fn affinity(&self) -> Option<Affinity<'_>> {
        None
    }
}

/// A request that says nothing.
impl Context for () {
    fn get(&self, _: RequestSlot) -> Option<&str> {
        None
    }
}

impl<C: Context + ?Sized> Context for &C {
    fn get(&self, slot: RequestSlot) -> Option<&str> {
        (**self).get(slot)
    }

    fn key(&self) -> Option<&[u8]> {
        (**self).key()
    }

    fn affinity(&self) -> Option<Affinity<'_>> {
        (**self).affinity()
    }
}

/// A request as owned values; made by [`crate::Selector::request`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub(crate) values: Vec<Option<Box<str>>>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) owner: Option<Owner>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Xid(Box<str>),
    Instance(InstanceId),
}

impl Request {
    /// With a hash key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// As part of a Seata transaction.
    #[must_use]
    pub fn with_xid(mut self, xid: impl Into<Box<str>>) -> Self {
        self.owner = Some(Owner::Xid(xid.into()));
        self
    }

    /// As part of a session bound to an instance.
    #[must_use]
    pub fn with_instance(mut self, id: InstanceId) -> Self {
        self.owner = Some(Owner::Instance(id));
        self
    }

    /// With a `$req` value.
    #[must_use]
    pub fn with(mut self, slot: RequestSlot, value: impl Into<Box<str>>) -> Self {
        let at = slot.0 as usize;
        if at >= self.values.len() {
            self.values.resize(at + 1, None);
        }
        self.values[at] = Some(value.into());
        self
    }
}

impl Context for Request {
    fn get(&self, slot: RequestSlot) -> Option<&str> {
        self.values.get(slot.0 as usize)?.as_deref()
    }

    fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }

    fn affinity(&self) -> Option<Affinity<'_>> {
        Some(match self.owner.as_ref()? {
            Owner::Xid(xid) => Affinity::Xid(xid),
            Owner::Instance(id) => Affinity::Instance(id),
        })
    }
}
