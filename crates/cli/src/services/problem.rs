//! Errors over HTTP: problem+json (RFC 9457) with the stable codes of the contract. The only place that knows which
//! status a failure has.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::failure::{At, Failure};

/// An error as the client sees it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// The HTTP status.
    #[schema(example = 400)]
    pub(crate) status: u16,
    /// The status in words.
    pub(crate) title: &'static str,
    /// Stable, snake_case.
    #[schema(example = "bad_expression")]
    pub(crate) code: &'static str,
    /// A finer code, where one code covers many mistakes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<String>,
    /// What is wrong, with the offending value.
    pub(crate) detail: String,
    /// Where in the expression or document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<At>,
    /// What could stand there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) expected: Vec<String>,
    /// A way out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status: status.as_u16(),
            title: status.canonical_reason().unwrap_or_default(),
            code,
            cause: None,
            detail: detail.into(),
            at: None,
            expected: Vec::new(),
            hint: None,
        }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    pub(crate) fn unknown_service(service: &str) -> Self {
        Self {
            cause: Some("unknown_service".into()),
            ..Self::not_found(format!("the registry knows no service `{service}`"))
        }
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this path does not take this method")
    }

    pub(crate) fn body_too_large(max: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", format!("the body has more than {max} bytes"))
    }

    pub(crate) fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "this is a bug of metaroute; the log says more")
    }
}

impl From<Failure> for Problem {
    /// What rules and expressions fail with; anything else would be ours.
    fn from(failure: Failure) -> Self {
        if failure.status != crate::status::Status::Usage {
            return Self::internal();
        }
        let code = if failure.code == "bad_expression" { "bad_expression" } else { "bad_request" };
        let cause = if code == "bad_request" { Some(failure.code) } else { failure.detail };
        Self {
            code,
            cause: cause.map(Into::into),
            at: failure.at,
            expected: failure.expected,
            hint: failure.hint,
            ..Self::bad_request(failure.message)
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self)).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}
