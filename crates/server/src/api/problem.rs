//! Everything that is not an answer: problem+json (RFC 9457) with a stable code.
//!
//! This is the one place that knows which code has which status. Clients decide by the code: ask again later, ask for
//! permission, repair the request.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use metaroute_cluster::{Code, Failure, Meta};
use serde_json::{Map, Value, json};

/// A refused or failed request.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) detail: String,
    at: Option<(u32, u32)>,
    expected: Vec<String>,
    hint: Option<String>,
    retry_after_s: Option<u64>,
    more: Map<String, Value>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        Problem {
            status,
            code,
            detail: detail.into(),
            at: None,
            expected: Vec::new(),
            hint: None,
            retry_after_s: None,
            more: Map::new(),
        }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "bad_request", detail)
    }

    pub(crate) fn unknown_store(name: &str) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "unknown_store", format!("there is no store `{name}`"))
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// The `Allow` header is added by whoever knows the route's methods.
    pub(crate) fn method_not_allowed() -> Problem {
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this resource does not take this method")
    }

    pub(crate) fn overloaded(detail: impl Into<String>) -> Problem {
        let mut problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail);
        problem.retry_after_s = Some(1);
        problem
    }

    pub(crate) fn quota_exceeded(per_second: f64) -> Problem {
        let detail = format!("this tenant may use {per_second:.0} cost units a second now");
        let mut problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "quota_exceeded", detail);
        problem.retry_after_s = Some(1);
        problem
    }

    pub(crate) fn body_too_large(limit: usize) -> Problem {
        let detail = format!("the body is longer than {} MiB", limit >> 20);
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail).hint("send it in several requests")
    }

    pub(crate) fn internal(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
    }

    /// The same under a finer code of the same status.
    #[must_use]
    pub(crate) fn code(mut self, code: &'static str) -> Problem {
        self.code = code;
        self
    }

    #[must_use]
    pub(crate) fn at(mut self, line: u32, column: u32) -> Problem {
        self.at = Some((line, column));
        self
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub(crate) fn expected(mut self, expected: impl IntoIterator<Item = impl Into<String>>) -> Problem {
        self.expected = expected.into_iter().map(Into::into).collect();
        self
    }

    /// The same with another member of the document.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: Value) -> Problem {
        self.more.insert(name.to_owned(), value);
        self
    }

    /// The same with what it covers, where that has to be said: no 503 or 504 about rows is without `meta`.
    #[must_use]
    pub(crate) fn covering(self, topology_epoch: impl FnOnce() -> u64) -> Problem {
        let partial = matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT);
        if !partial || self.more.contains_key("meta") {
            return self;
        }
        self.with("meta", Meta::of_nothing(topology_epoch()))
    }

    /// The document.
    pub(crate) fn document(&self) -> Value {
        let title = self.status.canonical_reason().unwrap_or("error");
        let mut out = Map::new();
        out.insert("type".into(), "about:blank".into());
        out.insert("title".into(), title.into());
        out.insert("status".into(), self.status.as_u16().into());
        out.insert("code".into(), self.code.into());
        out.insert("detail".into(), self.detail.as_str().into());
        if let Some((line, column)) = self.at {
            out.insert("at".into(), json!({"line": line, "column": column}));
        }
        if !self.expected.is_empty() {
            out.insert("expected".into(), self.expected.clone().into());
        }
        if let Some(hint) = &self.hint {
            out.insert("hint".into(), hint.as_str().into());
        }
        for (name, value) in &self.more {
            out.insert(name.clone(), value.clone());
        }
        out.into()
    }

    /// The HTTP answer. Problems are never kept by caches.
    pub(crate) fn response(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.document().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// `bad_request: limit must be 1 to 1000, not 0`.
impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

/// The status of a code.
fn status(code: Code) -> StatusCode {
    match code {
        Code::BadRequest | Code::BadExpression | Code::UnknownField | Code::CursorInvalid | Code::OrderNotSupported => {
            StatusCode::BAD_REQUEST
        }
        Code::Forbidden | Code::GlobalScanNotAllowed => StatusCode::FORBIDDEN,
        Code::UnknownStore | Code::NotFound => StatusCode::NOT_FOUND,
        Code::NotCaughtUp | Code::ReadOnly => StatusCode::CONFLICT,
        Code::ResultTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::NoTopology | Code::NotReady | Code::Incomplete | Code::CoverageGap | Code::Overloaded => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Problem {
        let status = status(failure.code);
        let mut problem = Problem::new(status, failure.code.as_str(), failure.message);
        problem.at = failure.at.map(|at| (at.line, at.column));
        problem.expected = failure.expected;
        problem.hint = failure.hint;
        if status == StatusCode::SERVICE_UNAVAILABLE {
            problem.retry_after_s = Some(1);
        }
        if let Some(meta) = failure.meta {
            if !meta.missing.is_empty() {
                problem.more.insert("missing_slots".into(), meta.missing_slots().into());
            }
            let meta = serde_json::to_value(&meta).expect("plain data serialises");
            problem.more.insert("meta".into(), meta);
        }
        if let Some(estimate) = failure.estimate {
            problem.more.insert("estimate".into(), json!(*estimate));
        }
        if let Some(rows) = failure.rows {
            let text = |ids: Vec<u64>| ids.into_iter().map(|id| id.to_string()).collect::<Vec<_>>();
            problem.more.insert("written".into(), text(rows.written).into());
            problem.more.insert("failed".into(), text(rows.failed).into());
        }
        problem
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_documented_statuses() {
        for (code, expected) in [
            (Code::BadExpression, 400),
            (Code::GlobalScanNotAllowed, 403),
            (Code::UnknownStore, 404),
            (Code::ReadOnly, 409),
            (Code::ResultTooLarge, 413),
            (Code::CorruptData, 500),
            (Code::CoverageGap, 503),
            (Code::DeadlineExceeded, 504),
        ] {
            assert_eq!(status(code).as_u16(), expected, "{code}");
        }
    }

    #[test]
    fn the_document_has_only_what_applies() {
        let problem = Problem::bad_request("limit must be 1 to 1000, not 0").hint("ask for less");
        assert_eq!(
            problem.document(),
            json!({"type": "about:blank", "title": "Bad Request", "status": 400, "code": "bad_request",
                   "detail": "limit must be 1 to 1000, not 0", "hint": "ask for less"})
        );
    }
}
