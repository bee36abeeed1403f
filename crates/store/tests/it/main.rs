//! Behaviour of a store as its users see it.

mod model;
mod world;
