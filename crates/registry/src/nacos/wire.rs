//! The envelope of Nacos' gRPC: a type name, headers, and JSON.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::driver::{DriverError, ErrorKind};

/// The generated messages and clients.
#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    nonstandard_style,
    clippy::pedantic,
    reason = "generated; the .proto file has the comments"
)]
mod proto {
    tonic::include_proto!("_");
}

pub(super) use proto::Payload;
pub(super) use proto::bi_request_stream_client::BiRequestStreamClient;
pub(super) use proto::request_client::RequestClient;

/// Largest answer accepted. The reference client takes 10 MiB; ten thousand instances with full metadata need more.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Codes of Nacos that mean more than "failed".
pub(super) mod code {
    /// The server is starting.
    pub(crate) const STARTING: i64 = 300;
    /// The server does not know this connection.
    pub(crate) const UNREGISTERED: i64 = 301;
    /// The server does not know this kind of request.
    pub(crate) const NO_HANDLER: i64 = 302;
    /// What was sent is wrong.
    pub(crate) const PARAMETER: i64 = 400;
    /// Login needed, expired or not enough.
    pub(crate) const DENIED: [i64; 3] = [401, 403, 10001];
}

/// A request or an answer as it goes onto the wire.
pub(super) fn pack(kind: &str, body: &Map<String, Value>, client_ip: &str, token: Option<&str>) -> Payload {
    let mut headers = HashMap::new();
    if let Some(token) = token {
        headers.insert("accessToken".to_owned(), token.to_owned());
    }
    Payload {
        metadata: Some(proto::Metadata { r#type: kind.to_owned(), headers, client_ip: client_ip.to_owned() }),
        body: Some(proto::Body { type_url: String::new(), value: serde_json::to_vec(body).unwrap_or_default() }),
    }
}

/// What came over the wire.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Message {
    /// The simple class name.
    pub(super) kind: String,
    pub(super) body: Map<String, Value>,
}

impl Message {
    pub(super) fn text(&self, key: &str) -> &str {
        self.body.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn switch(&self, key: &str) -> bool {
        self.body.get(key).and_then(Value::as_bool).unwrap_or(false)
    }
}

/// Opens an envelope.
///
/// # Errors
/// A sentence that says what is wrong with it.
pub(super) fn unpack(payload: Payload) -> Result<Message, String> {
    let kind = payload.metadata.map(|metadata| metadata.r#type).unwrap_or_default();
    let bytes = payload.body.map(|body| body.value).unwrap_or_default();
    if bytes.is_empty() {
        return Ok(Message { kind, body: Map::new() });
    }
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(body)) => Ok(Message { kind, body }),
        Ok(_) => Err(format!("`{kind}` is no JSON object")),
        Err(error) => Err(format!("`{kind}` is not JSON: {error}")),
    }
}

/// A refusal by the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: i64,
    pub(super) message: String,
}

/// The refusal in an answer, if it is one.
pub(super) fn refusal(answer: &Message) -> Option<Refusal> {
    let number = |key: &str| answer.body.get(key).and_then(super::instances::number).map(|n| n as i64);
    let result = number("resultCode");
    if answer.kind != "ErrorResponse" && result.is_none_or(|code| code == 200) {
        return None;
    }
    let code = number("errorCode").filter(|code| *code != 0).or(result).unwrap_or(500);
    Some(Refusal { code, message: printable(answer.text("message")) })
}

/// What a server said, fit for one line of a message.
pub(super) fn printable(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect()
}

/// What a code means for who asked.
pub(super) fn error_of(server: &str, refusal: &Refusal) -> DriverError {
    let Refusal { code, message } = refusal;
    let kind = match *code {
        code::STARTING | code::UNREGISTERED => ErrorKind::Unreachable,
        code::NO_HANDLER => ErrorKind::Unsupported,
        code if code::DENIED.contains(&code) => ErrorKind::Denied,
        code::PARAMETER | 10000 | 20002 => ErrorKind::Invalid,
        // Overload and defects of the server pass; so they do with codes that nobody has told us about.
        500..=599 | 30000.. => ErrorKind::Unreachable,
        code if code < 0 => ErrorKind::Unreachable,
        _ => ErrorKind::Invalid,
    };
    let what = match *code {
        code::STARTING => " (it is starting)",
        code::UNREGISTERED => " (it does not know this connection)",
        _ => "",
    };
    DriverError::new(kind, format!("{server} answered {code}{what}: {message}"))
}

#[cfg(test)]
mod tests;
