//! The facade over real files, real registries and real servers.

mod live;
mod log;
mod wait;
