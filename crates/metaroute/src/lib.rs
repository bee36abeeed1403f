//! Metadata routing for Rust services: registry, rules and selector in one call.
#![forbid(unsafe_code)]

pub mod failback;
pub mod rules_file;
