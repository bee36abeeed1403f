//! Registries: where instances come from.
//!
//! A registry module never filters, balances or guards. It delivers *snapshots with a cursor* ([`driver`]); one layer
//! above all of them ([`registry`]) keeps registrations alive, backs off, keeps the last good list and says how far it
//! can be trusted. What doubts a list is the one guard in the core's intake.
//!
//! Read here first: [`Registry`] and [`RegistryUrl`]. Back ends: [`mod@file`] and [`memory`].
#![forbid(unsafe_code)]

pub mod document;
pub mod driver;
pub mod file;
pub mod fleet;
pub mod memory;
pub mod registry;
pub mod url;

pub use document::ConfigError;
pub use driver::{Capabilities, Cursor, Driver, DriverError, ErrorKind, Snapshot};
pub use file::{FileDriver, FileOptions};
pub use fleet::Fleet;
pub use memory::Memory;
pub use registry::{ConnectError, Options, Registration, RegistrationState, Registry, State, Subscription, View};
pub use url::{RegistryUrl, Scheme};
