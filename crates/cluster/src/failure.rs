//! Why a request was refused or got no answer.
//!
//! One type with a stable code, because callers decide by the code: retry later, ask for permission, repair the query.
//! What each code is in HTTP terms only the server knows.

use std::fmt;

use crate::completeness::Meta;
use crate::scatter::Estimate;

/// Stable codes of failures, as clients see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the codes are the documented contract; a sentence each would only repeat the word")]
pub enum Code {
    BadRequest,
    BadExpression,
    UnknownField,
    CursorInvalid,
    OrderNotSupported,
    Forbidden,
    GlobalScanNotAllowed,
    UnknownStore,
    NotFound,
    NotCaughtUp,
    ReadOnly,
    ResultTooLarge,
    NoTopology,
    NotReady,
    Incomplete,
    CoverageGap,
    Overloaded,
    DeadlineExceeded,
    CorruptData,
    Internal,
}

impl Code {
    /// The stable word.
    pub fn as_str(self) -> &'static str {
        match self {
            Code::BadRequest => "bad_request",
            Code::BadExpression => "bad_expression",
            Code::UnknownField => "unknown_field",
            Code::CursorInvalid => "cursor_invalid",
            Code::OrderNotSupported => "order_not_supported",
            Code::Forbidden => "forbidden",
            Code::GlobalScanNotAllowed => "global_scan_not_allowed",
            Code::UnknownStore => "unknown_store",
            Code::NotFound => "not_found",
            Code::NotCaughtUp => "not_caught_up",
            Code::ReadOnly => "read_only",
            Code::ResultTooLarge => "result_too_large",
            Code::NoTopology => "no_topology",
            Code::NotReady => "not_ready",
            Code::Incomplete => "incomplete",
            Code::CoverageGap => "coverage_gap",
            Code::Overloaded => "overloaded",
            Code::DeadlineExceeded => "deadline_exceeded",
            Code::CorruptData => "corrupt_data",
            Code::Internal => "internal",
        }
    }

    /// Whether the same request may succeed a little later without anybody doing anything.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Code::NotCaughtUp
                | Code::NoTopology
                | Code::NotReady
                | Code::Incomplete
                | Code::CoverageGap
                | Code::Overloaded
                | Code::DeadlineExceeded
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A place in an expression, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The column, in Unicode scalars.
    pub column: u32,
}

/// Which rows of a write are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartialWrite {
    /// Ids that are stored, ascending.
    pub written: Vec<u64>,
    /// Ids that are not, or not completely, stored, ascending. Repeating the request is safe.
    pub failed: Vec<u64>,
}

/// A refused or failed request.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct Failure {
    /// The stable code.
    pub code: Code,
    /// What is wrong, for the client; one line with the offending value.
    pub message: String,
    /// Where in the `where` expression.
    pub at: Option<Place>,
    /// What would have been accepted.
    pub expected: Vec<String>,
    /// How to repair it.
    pub hint: Option<String>,
    /// What was reached, in every failure after the shards were asked.
    pub meta: Option<Box<Meta>>,
    /// For writes that failed in part: which rows are stored.
    pub rows: Option<Box<PartialWrite>>,
    /// What it would have cost, where it was refused for that.
    pub estimate: Option<Box<Estimate>>,
}

impl Failure {
    /// A failure with a message.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        let (at, expected, hint, meta, rows, estimate) = Default::default();
        Failure { code, message: message.into(), at, expected, hint, meta, rows, estimate }
    }

    /// The same with a suggestion.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// The same with what was reached.
    #[must_use]
    pub fn with_meta(mut self, meta: Meta) -> Failure {
        self.meta = Some(Box::new(meta));
        self
    }
}
