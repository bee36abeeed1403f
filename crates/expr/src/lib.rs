//! The expression language that narrows instances and rows by metadata.
#![forbid(unsafe_code)]

mod ast;
mod bind;
mod columns;
pub mod decimal;
mod error;
mod expr;
mod inventory;
mod java;
mod lexer;
mod lint;
mod parser;
mod pattern;
mod print;
mod program;
mod schema;
mod seata;
mod suggest;
mod time;
mod types;
mod value;
pub mod version;

pub use error::{BindError, ParseError};
pub use expr::{Dialect, Expr, UnknownDialect};
pub use inventory::Inventory;
pub use lint::{Finding, LintInput, Severity, lint};
pub use program::{Atom, Column, Columns, Decision, Node, Outcome, Program, Scratch};
pub use schema::{
    Attribute, Context, Key, KeyId, KeyTable, Record, Schema, SlotId, SlotScope, UnknownAttribute, Unsupported,
};
pub use types::{TimeUnit, Type, UnknownType};
pub use value::{Parsed, Value};
