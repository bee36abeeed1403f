//! Behaviour of a store as its users see it.

mod hazards;
mod model;
mod rules;
mod world;
