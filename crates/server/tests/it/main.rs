//! The HTTP API over real stores: cases from the field by number, a model, and other languages.

mod cases;
mod cluster;
mod documented;
mod languages;
mod model;
mod paging;
mod refusals;
mod roles;
mod schemathesis;
mod topology;
