//! HTTP to the servers of one registry: one client, a list of servers of which one is used until it fails.
//!
//! A call goes to the server that answered last; when that cannot be reached, or says that it cannot serve (5xx), to the
//! next ones, each at most once. What is retried after that, and when, is decided above.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::driver::{DriverError, ErrorKind};
use crate::registry::ConnectError;
use crate::tls::Tls;
use crate::url::RegistryUrl;
use crate::web::{self, Client, Method, RequestBuilder, Response, StatusCode};

/// How long an ordinary call may take; long polls say their own.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The servers of one registry.
#[derive(Debug)]
pub(crate) struct Http {
    client: Client,
    /// `scheme://host:port`, without a slash at the end.
    bases: Vec<String>,
    current: AtomicUsize,
}

impl Http {
    pub(crate) fn new(url: &RegistryUrl, default_port: u16, tls: &Tls) -> Result<Self, ConnectError> {
        let scheme = if tls.on { "https" } else { "http" };
        let bases = url
            .hosts()
            .iter()
            .map(|host| {
                let mut host = host.clone();
                host.port = host.port.or(Some(default_port));
                format!("{scheme}://{host}")
            })
            .collect();
        let client = Client::new(tls.config()?);
        Ok(Self { client, bases, current: AtomicUsize::new(0) })
    }

    /// Sends a request to the first server that can serve it. `path` starts with a slash; `with` adds query, headers and
    /// body. Every answer below 500 is an answer.
    ///
    /// # Errors
    /// `Unreachable` when no server answered; the last one's answer is in the message.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        timeout: Duration,
        with: impl Fn(RequestBuilder) -> RequestBuilder,
    ) -> Result<Response, DriverError> {
        let first = self.current.load(Ordering::Relaxed);
        let mut last = None;
        for step in 0..self.bases.len() {
            let at = (first + step) % self.bases.len();
            let request = self.client.request(method.clone(), format!("{}{path}", self.bases[at])).timeout(timeout);
            match with(request).send().await {
                Ok(response) if response.status() < StatusCode::INTERNAL_SERVER_ERROR => {
                    self.current.store(at, Ordering::Relaxed);
                    return Ok(response);
                }
                Ok(response) => last = Some(refusal(&self.bases[at], response).await),
                Err(error) => last = Some(unreachable(&self.bases[at], error)),
            }
        }
        Err(last.unwrap_or_else(|| DriverError::new(ErrorKind::Unreachable, "the address names no server")))
    }

    /// Begins with the next server from now on, where one answers but is of no use.
    pub(crate) fn pass_on(&self) {
        let next = (self.current.load(Ordering::Relaxed) + 1) % self.bases.len().max(1);
        self.current.store(next, Ordering::Relaxed);
    }

    /// The servers, as `scheme://host:port`.
    pub(crate) fn bases(&self) -> &[String] {
        &self.bases
    }

    /// The client, for a call to one server in particular.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }
}

/// What an answer that is no success means: 401 and 403 are refusals, 429 and 5xx pass, everything else is our fault.
pub(crate) async fn refusal(server: &str, response: Response) -> DriverError {
    let status = response.status();
    let kind = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::Denied,
        StatusCode::TOO_MANY_REQUESTS => ErrorKind::Unreachable,
        status if status.is_server_error() => ErrorKind::Unreachable,
        _ => ErrorKind::Invalid,
    };
    let after = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    let body = response.text().await.unwrap_or_default();
    let mut body: String = body.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    body.truncate(body.trim_end().len());
    let separator = if body.is_empty() { "" } else { ": " };
    let error = DriverError::new(kind, format!("{server} answered {status}{separator}{body}"));
    match after {
        Some(seconds) => error.retry_after(Duration::from_secs(seconds)),
        None => error,
    }
}

/// A call that got no answer. The query of the URL may hold a secret and is not shown.
pub(crate) fn unreachable(server: &str, error: web::Error) -> DriverError {
    let what = if error.is_timeout() { "did not answer in time" } else { "cannot be reached" };
    DriverError::new(ErrorKind::Unreachable, format!("{server} {what}")).because(error)
}

/// A text as one segment of a path: everything but letters, digits, `-`, `_`, `.` and `~` percent-encoded.
pub(crate) fn segment(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            // Writing to a `String` cannot fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}
