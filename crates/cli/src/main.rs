//! The `metaroute` command.
fn main() {}
