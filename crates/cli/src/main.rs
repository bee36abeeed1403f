//! The `metaroute` command: routing by metadata from a terminal, and the server roles.
//!
//! Names, flags, exit statuses and JSON fields are a contract with other people's scripts. Each command is a module
//! with its arguments (and so its help) beside the code that carries it out; [`status`] and [`failure`] are the only
//! places that know exit statuses and the form of errors, [`output`] the only one that writes to stdout.
#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "a command fails once, and a request is answered once")]

mod cli;
mod client;
mod export;
mod expr;
mod failure;
mod import;
mod output;
mod pairs;
mod query;
mod registry;
mod route;
mod server;
mod services;
mod simulate;
mod source;
mod status;
mod store;
mod topology;
mod up;
mod usage;
mod wire;

use std::process::ExitCode;

/// Rows are made on one thread and freed on another, where the system's allocator is at its slowest.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::main()
}
