//! Registries: where instances come from.
#![forbid(unsafe_code)]

pub mod document;
pub mod fleet;

pub use document::ConfigError;
pub use fleet::Fleet;
