//! The commands behind the README test line and CI.
fn main() {}
