//! How an API server says no.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::GROUP;

/// A `Status` object.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: StatusCode,
    reason: &'static str,
    pub(super) message: String,
    /// When to come back, in seconds.
    after: Option<u64>,
}

impl Refusal {
    pub(super) fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), after: None }
    }

    /// Asks to come back after so many seconds.
    pub(super) fn after(self, seconds: u64) -> Self {
        Self { after: Some(seconds), ..self }
    }

    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
    }

    pub(super) fn not_found(name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", format!("endpointslices.{GROUP} \"{name}\" not found"))
    }

    pub(super) fn gone() -> Self {
        Self::new(StatusCode::GONE, "Expired", "too old resource version")
    }

    pub(super) fn status(&self) -> Value {
        let mut details = Map::new();
        if let Some(seconds) = self.after {
            details.insert("retryAfterSeconds".into(), seconds.into());
        }
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message,
            "reason": self.reason, "details": details, "code": self.code.as_u16(),
        })
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.code, Json(self.status())).into_response();
        if let Some(seconds) = self.after {
            response.headers_mut().insert("retry-after", seconds.into());
        }
        response
    }
}
