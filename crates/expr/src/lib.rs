//! The expression language that narrows instances and rows by metadata.
//!
//! Routing rules and row filters ask the same question: does this record, with these keys, satisfy that text? This crate
//! answers it and nothing else; it reads no file, no clock and no random source. The language itself is described in
//! `docs/expressions.md`.
//!
//! Three steps, so that the last one costs nanoseconds and never allocates:
//!
//! 1. [`Expr::parse`] turns a text into a tree, or into a [`ParseError`] with a place and a suggestion.
//! 2. [`Expr::bind`] turns names into dense ids through a [`Schema`] and fixes the type of every comparison.
//! 3. [`Program::eval`] runs over one [`Record`]; [`Program::eval_columns`] over dictionary-encoded [`Columns`], testing each
//!    comparison once per distinct value.
//!
//! [`lint`] says what a valid expression probably does not mean. [`Dialect::Seata`] gives the answers of Seata's
//! routing expressions, for moving away from them safely.
//!
//! ```
//! use metaroute_expr::{Expr, KeyId, KeyTable, Record, Value};
//!
//! struct Instance(&'static str);
//! impl Record for Instance {
//!     fn get(&self, _: KeyId) -> Option<Value<'_>> {
//!         Some(Value::Text(self.0))
//!     }
//! }
//!
//! let program = Expr::parse("version >= 2.9")?.bind(&mut KeyTable::default())?;
//! assert!(program.eval(&Instance("2.10"), &()));
//! assert!(!program.eval(&Instance("2.8"), &()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod ast;
mod atom;
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

pub use ast::Order;
pub use atom::{Atom, Outcome};
pub use columns::{Column, Columns, Scratch};
pub use error::{BindError, ParseError};
pub use expr::{Dialect, Expr, UnknownDialect};
pub use inventory::Inventory;
pub use lint::{Finding, LintInput, Severity, lint};
pub use program::{Decision, Node, Program};
pub use schema::{
    Attribute, Context, Key, KeyId, KeyTable, Record, Schema, SlotId, SlotScope, UnknownAttribute, Unsupported,
};
pub use types::{TimeUnit, Type, UnknownType};
pub use value::{Parsed, Value};

/// The language reference; its Rust example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/expressions.md")]
pub struct LanguageReference;
