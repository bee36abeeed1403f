//! The real binary, run as a person or a script runs it.

mod browser;
mod cases;
mod command_line;
mod console;
mod expr;
mod fleet;
mod import;
mod nacos_rule;
mod pages;
mod registry;
mod route;
mod rows;
mod run;
mod schemathesis;
mod seata;
mod store;
mod up;
mod watch;
