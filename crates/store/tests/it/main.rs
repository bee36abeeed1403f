//! Behaviour of a store as its users see it.

mod backup;
mod damage;
mod format;
mod hazards;
mod model;
mod rules;
mod world;
