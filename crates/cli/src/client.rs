//! Asking a server: requests, and problems turned into failures with the exit status their code stands for.

use std::time::Duration;

use clap::Args;
use reqwest::{Method, Response};
use serde_json::Value;

use crate::failure::{At, Failure};
use crate::status::Status;

/// How long connecting may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Which server.
#[derive(Args, Debug, Clone)]
pub(crate) struct ServerArg {
    /// The server
    #[arg(long = "server", value_name = "URL", default_value = "http://127.0.0.1:7400", env = "METAROUTE_SERVER")]
    server: String,
}

/// A server to ask.
pub(crate) struct Client {
    base: String,
    http: reqwest::Client,
}

impl ServerArg {
    /// The client for it. Must be called inside a runtime.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let base = self.server.trim_end_matches('/').to_owned();
        if !base.starts_with("http://") {
            let message = format!("--server must be http://ADDRESS, not `{}`", self.server);
            return Err(Failure::usage("bad_value", message).hint("write --server http://127.0.0.1:7400"));
        }
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_WITHIN)
            // A proxy of the environment is not meant for a server on this machine.
            .no_proxy()
            .build()
            .map_err(|error| Failure::new(Status::Bug, "internal", chain(&error)))?;
        Ok(Client { base, http })
    }
}

pub(crate) use crate::source::chain;

impl Client {
    /// The server's address.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Sends a request. An answer that is no success becomes a failure.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, String)],
        body: Option<String>,
    ) -> Result<Response, Failure> {
        let url = format!("{}{path}", self.base);
        let mut request = self.http.request(method, &url);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let text = response.text().await.unwrap_or_default();
        Err(refused(status, &text))
    }

    /// The JSON of a small answer.
    pub(crate) async fn json(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, String)],
        body: Option<String>,
    ) -> Result<Value, Failure> {
        let response = self.send(method, path, headers, body).await?;
        let text = response.text().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_str(&text).map_err(|error| {
            let message = format!("{} answered something that is not JSON: {error}", self.base);
            Failure::new(Status::Unreachable, "bad_answer", message)
        })
    }

    /// A transfer that failed.
    pub(crate) fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), chain);
        Failure::new(Status::Unreachable, "server_unreachable", format!("{}: {cause}", self.base))
            .hint("is it running? `metaroute up` starts one; --server names another")
    }
}

/// A problem document as a failure.
fn refused(status: u16, text: &str) -> Failure {
    let document: Value = serde_json::from_str(text).unwrap_or_default();
    let word = |key: &str| document[key].as_str().map(str::to_owned);
    let code = word("code").unwrap_or_else(|| format!("http_{status}"));
    let message = word("detail").unwrap_or_else(|| format!("the server answered {status}"));
    let mut failure = Failure::new(exit(&code, status), code, message);
    failure.hint = word("hint");
    if let Some(expected) = document["expected"].as_array() {
        failure.expected = expected.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    }
    if let (Some(line), Some(column)) = (document["at"]["line"].as_u64(), document["at"]["column"].as_u64()) {
        failure.at = Some(At { file: None, line: line as u32, column: column as u32 });
    }
    failure
}

/// The exit status of a code.
fn exit(code: &str, status: u16) -> Status {
    match code {
        "not_found" | "epoch_mismatch" => Status::No,
        "not_caught_up" => Status::Incomplete,
        "unknown_store" | "result_too_large" | "body_too_large" => Status::Usage,
        "read_only" | "slots_not_empty" => Status::Denied,
        "corrupt_data" | "internal" => Status::Bug,
        _ => match status {
            400 | 404 | 405 | 413 => Status::Usage,
            401 | 403 | 429 => Status::Denied,
            409 | 412 => Status::No,
            503 | 504 => Status::Incomplete,
            _ => Status::Bug,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_documented_exit_statuses() {
        for (code, status, expected) in [
            ("bad_expression", 400, 2),
            ("global_scan_not_allowed", 403, 4),
            ("unknown_store", 404, 2),
            ("not_found", 404, 1),
            ("not_caught_up", 409, 5),
            ("read_only", 409, 4),
            ("slots_not_empty", 409, 4),
            ("epoch_mismatch", 412, 1),
            ("result_too_large", 413, 2),
            ("quota_exceeded", 429, 4),
            ("corrupt_data", 500, 70),
            ("incomplete", 503, 5),
            ("deadline_exceeded", 504, 5),
        ] {
            assert_eq!(exit(code, status) as u8, expected, "{code}");
        }
    }

    #[test]
    fn problems_keep_what_they_say() {
        let text =
            r#"{"code":"bad_expression","detail":"no","at":{"line":1,"column":7},"expected":["a word"],"hint":"h"}"#;
        let failure = refused(400, text);
        assert_eq!((failure.code.as_ref(), failure.status as u8), ("bad_expression", 2));
        assert_eq!(failure.at, Some(At { file: None, line: 1, column: 7 }));
        assert_eq!((failure.expected.as_slice(), failure.hint.as_deref()), (&["a word".to_owned()][..], Some("h")));
        assert_eq!(refused(502, "<html>").status as u8, 70);
    }
}
