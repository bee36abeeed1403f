//! What the benchmarks share: one fleet, and each rival behind the same small shape.
//!
//! A comparison is only fair on the same instances, in the same process, in the same run. Every picker here is a value with a `pick` that
//! returns something of the chosen instance, so that the optimiser cannot drop the choice.
#![forbid(unsafe_code)]

pub mod clock;
pub mod fleet;
pub mod ours;
pub mod rivals;
