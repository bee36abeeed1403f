//! Registries: where instances come from.
