//! The routing core: instances with metadata, rules, snapshots, selection and balancing. No I/O, no clock, no task.
#![forbid(unsafe_code)]

pub mod resilience;
