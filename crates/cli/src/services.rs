//! The services of a registry over HTTP, for every process that has a registry: `metaroute up` and routers.

mod api;
mod body;
mod hub;
mod metrics;
mod problem;

pub(crate) use api::beside;
pub(crate) use hub::Hub;
