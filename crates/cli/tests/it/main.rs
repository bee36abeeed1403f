//! The real binary, run as a person or a script runs it.

mod command_line;
mod expr;
mod run;
mod simulate;
