//! Instances, rules, snapshots, selection and balancing, without I/O.
