//! Calls to Seata's servers: one at a time by number, with a login per server, and with the `code` in the body checked.

use std::time::Duration;

use crate::web::header::{AUTHORIZATION, HeaderValue};
use crate::web::{Client, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::backend::{Params, bad};
use crate::driver::{DriverError, ErrorKind};
use crate::http::{Http, refusal, unreachable};
use crate::registry::ConnectError;
use crate::tls::Tls;
use crate::url::RegistryUrl;

/// How long an ordinary call may take. Seata's own client allows 3 s; a busy machine needs a little more.
pub(super) const CALL: Duration = Duration::from_secs(5);
/// How much longer than it asked for a long poll may take: servers look for polls that are over once a second.
pub(super) const POLL_SLACK: Duration = Duration::from_secs(4);
/// The reference client replaces a token of 30 minutes after 29.
const LOGIN_EVERY: Duration = Duration::from_secs(29 * 60);
/// The longest poll: the list is read again at least this often.
const POLL_MAX: Duration = Duration::from_secs(30);

/// The servers of one address and the logins at them.
pub(super) struct Session {
    http: Http,
    login: Option<Login>,
    /// One per server.
    tokens: Vec<Mutex<Option<Token>>>,
}

struct Login {
    user: String,
    password: String,
    every: Duration,
}

struct Token {
    header: HeaderValue,
    since: Instant,
}

impl Session {
    /// Reads `login-every` and the TLS parameters besides user and password.
    pub(super) fn of(
        url: &RegistryUrl,
        params: &mut Params<'_>,
        default_port: u16,
    ) -> Result<(Self, Tls), ConnectError> {
        let every = params.duration("login-every", LOGIN_EVERY)?;
        let tls = Tls::of(params, false)?;
        let password = url.password().map(|secret| secret.reveal()).transpose().map_err(|e| bad(e.to_string()))?;
        let login = match (url.user(), password) {
            (Some(user), Some(password)) => Some(Login { user: user.to_owned(), password, every }),
            (None, None) => None,
            _ => return Err(bad("a user and a password go together")),
        };
        let http = Http::new(url, default_port, &tls)?;
        let tokens = http.bases().iter().map(|_| Mutex::default()).collect();
        Ok((Self { http, login, tokens }, tls))
    }

    /// Reads `poll`.
    pub(super) fn poll(params: &mut Params<'_>) -> Result<Duration, ConnectError> {
        let poll = params.duration("poll", Duration::from_secs(10))?;
        if poll > POLL_MAX {
            return Err(bad(format!("parameter `poll` may be at most {} s", POLL_MAX.as_secs())));
        }
        Ok(poll)
    }

    /// How many servers there are.
    pub(super) fn servers(&self) -> usize {
        self.tokens.len()
    }

    /// A server as `scheme://host:port`.
    pub(super) fn base(&self, server: usize) -> &str {
        &self.http.bases()[server]
    }

    /// Asks servers, beginning with one, until one of them answers.
    ///
    /// # Errors
    /// The last one's.
    pub(super) async fn first_answer<T, A: Future<Output = Result<T, DriverError>>>(
        &self,
        first: usize,
        ask: impl Fn(usize) -> A,
    ) -> Result<T, DriverError> {
        let mut last = DriverError::new(ErrorKind::Unreachable, "the address names no server");
        for step in 0..self.servers() {
            match ask((first + step) % self.servers()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends a request to one server; the answer's status is a success or 304. A login that no longer holds is
    /// repeated once.
    pub(super) async fn send(
        &self,
        server: usize,
        request: impl Fn(&Client, &str) -> RequestBuilder,
    ) -> Result<Response, DriverError> {
        self.send_with(self.http.client(), server, request).await
    }

    /// As [`send`](Self::send), by another client.
    pub(super) async fn send_with(
        &self,
        client: &Client,
        server: usize,
        request: impl Fn(&Client, &str) -> RequestBuilder,
    ) -> Result<Response, DriverError> {
        let base = self.base(server);
        let mut again = self.login.is_some();
        loop {
            let mut request = request(client, base);
            if let Some(token) = self.token(server).await? {
                request = request.header(AUTHORIZATION, token);
            }
            let response = request.send().await.map_err(|error| unreachable(base, error))?;
            match response.status() {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if again => {
                    again = false;
                    self.forget(server).await;
                }
                status if status.is_success() || status == StatusCode::NOT_MODIFIED => return Ok(response),
                _ => return Err(refusal(base, response).await),
            }
        }
    }

    /// Sends a request to one server and reads the JSON of the answer. HTTP 200 alone says nothing: where the body has a
    /// `code`, it must be 200 too.
    pub(super) async fn json(
        &self,
        server: usize,
        request: impl Fn(&Client, &str) -> RequestBuilder,
    ) -> Result<Value, DriverError> {
        let base = self.base(server);
        let mut again = self.login.is_some();
        loop {
            let body = body(base, self.send(server, &request).await?).await?;
            match refused(base, &body) {
                None => return Ok(body),
                Some(error) if error.kind() == ErrorKind::Denied && again => {
                    again = false;
                    self.forget(server).await;
                }
                Some(error) => return Err(error),
            }
        }
    }

    async fn forget(&self, server: usize) {
        *self.tokens[server].lock().await = None;
    }

    /// The token for a server; logs in where there is none or it is old. Who comes meanwhile waits and shares it.
    async fn token(&self, server: usize) -> Result<Option<HeaderValue>, DriverError> {
        let Some(login) = &self.login else { return Ok(None) };
        let mut token = self.tokens[server].lock().await;
        if let Some(known) = token.as_ref().filter(|token| token.since.elapsed() < login.every) {
            return Ok(Some(known.header.clone()));
        }
        let base = self.base(server);
        let response = self
            .http
            .client()
            .post(format!("{base}/api/v1/auth/login"))
            .timeout(CALL)
            .json(&json!({ "username": login.user, "password": login.password }))
            .send()
            .await
            .map_err(|error| unreachable(base, error))?;
        if !response.status().is_success() {
            return Err(refusal(base, response).await);
        }
        let body = body(base, response).await?;
        if let Some(error) = refused(base, &body) {
            return Err(error);
        }
        let text = body.get("data").and_then(Value::as_str).unwrap_or_default();
        let mut header = HeaderValue::from_str(text)
            .ok()
            .filter(|header| !header.is_empty())
            .ok_or_else(|| DriverError::new(ErrorKind::Denied, format!("{base} answered a login without a token")))?;
        header.set_sensitive(true);
        *token = Some(Token { header: header.clone(), since: Instant::now() });
        Ok(Some(header))
    }
}

async fn body(base: &str, response: Response) -> Result<Value, DriverError> {
    let bytes = response.bytes().await.map_err(|error| unreachable(base, error))?;
    serde_json::from_slice(&bytes).map_err(|error| {
        DriverError::new(ErrorKind::Unreachable, format!("{base} did not answer with JSON")).because(error)
    })
}

/// What the `code` in a body says, if it is no success. 500 is what the server makes of every trouble of its own.
fn refused(base: &str, body: &Value) -> Option<DriverError> {
    let code = match body.get("code")? {
        Value::String(text) => text.clone(),
        Value::Null => return None,
        other => other.to_string(),
    };
    let kind = match &*code {
        "200" => return None,
        "401" | "403" => ErrorKind::Denied,
        code if code.starts_with('5') => ErrorKind::Unreachable,
        _ => ErrorKind::Invalid,
    };
    let message = body.get("message").and_then(Value::as_str).unwrap_or_default();
    let message: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    Some(DriverError::new(kind, format!("{base} answered code {code}: {message}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_in_the_body_decides_not_the_status() {
        let kind = |text: &str| {
            let body: Value = serde_json::from_str(text).expect("JSON");
            refused("s", &body).map(|error| error.kind())
        };
        assert_eq!(kind(r#"{"code":"200","message":"ok","success":true}"#), None);
        assert_eq!(kind(r#"{"code":200}"#), None);
        assert_eq!(kind(r#"{"clusterList":[],"term":0}"#), None);
        assert_eq!(
            kind(r#"{"code":"500","message":"node registered unsuccessfully!","success":false}"#),
            Some(ErrorKind::Unreachable)
        );
        assert_eq!(kind(r#"{"code":"401","message":"Login failed","data":null}"#), Some(ErrorKind::Denied));
        assert_eq!(kind(r#"{"code":"400"}"#), Some(ErrorKind::Invalid));
    }
}
