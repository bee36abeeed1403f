//! Tokens: who logs in gets one for a while, and needs a new one before it ends or when the server forgot it.

use std::time::Duration;

use crate::web::{Method, StatusCode};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::wire::printable;
use crate::driver::{DriverError, ErrorKind};
use crate::http::{self, Http};

/// What a token without a lifetime is good for; the server's default is five hours.
const TTL_DEFAULT: Duration = Duration::from_secs(1800);

/// User and password, and the token they were last exchanged for. Neither shows in `Debug`; there is none.
pub(super) struct Login {
    user: String,
    password: String,
    /// Context path, `/nacos` mostly.
    context: String,
    token: Mutex<Option<Token>>,
}

struct Token {
    text: String,
    /// When to get another one: a tenth of its life before its end, as the reference client does.
    renew_at: Instant,
}

impl Login {
    pub(super) fn new(user: String, password: String, context: String) -> Self {
        Self { user, password, context, token: Mutex::new(None) }
    }

    /// A token that is still good.
    pub(super) async fn token(&self, http: &Http) -> Result<String, DriverError> {
        let mut token = self.token.lock().await;
        if let Some(token) = token.as_ref().filter(|token| Instant::now() < token.renew_at) {
            return Ok(token.text.clone());
        }
        self.log_in(http, &mut token).await
    }

    /// Another token than `refused`, which a server did not take: one that somebody else got meanwhile, or a new one.
    pub(super) async fn another(&self, http: &Http, refused: &str) -> Result<String, DriverError> {
        let mut token = self.token.lock().await;
        if let Some(token) = token.as_ref().filter(|token| token.text != refused) {
            return Ok(token.text.clone());
        }
        self.log_in(http, &mut token).await
    }

    async fn log_in(&self, http: &Http, slot: &mut Option<Token>) -> Result<String, DriverError> {
        // 3.x first; older servers do not know its path.
        let paths = [format!("{}/v3/auth/user/login", self.context), format!("{}/v1/auth/users/login", self.context)];
        let form = [("username", &self.user), ("password", &self.password)];
        let mut answer = http.send(Method::POST, &paths[0], http::CALL_TIMEOUT, |r| r.form(&form)).await?;
        if matches!(
            answer.status(),
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::GONE | StatusCode::NOT_IMPLEMENTED
        ) {
            answer = http.send(Method::POST, &paths[1], http::CALL_TIMEOUT, |r| r.form(&form)).await?;
        }
        let status = answer.status();
        let body = answer.text().await.unwrap_or_default();
        let Some((text, ttl)) = read_token(&body) else {
            *slot = None;
            let kind = if status.is_success() || status.is_client_error() {
                ErrorKind::Denied
            } else {
                ErrorKind::Unreachable
            };
            let said = printable(&body);
            return Err(DriverError::new(kind, format!("the login of `{}` was answered {status}: {said}", self.user)));
        };
        *slot = Some(Token { text: text.clone(), renew_at: Instant::now() + ttl - ttl / 10 });
        Ok(text)
    }
}

/// The token in an answer, and how long it lasts. Some versions wrap it in an envelope.
fn read_token(body: &str) -> Option<(String, Duration)> {
    let answer: Value = serde_json::from_str(body).ok()?;
    let data = answer.get("data").filter(|data| data.is_object()).unwrap_or(&answer);
    let token = data.get("accessToken")?.as_str().filter(|token| !token.is_empty())?;
    let ttl = data.get("tokenTtl").and_then(super::instances::number).filter(|ttl| *ttl >= 1.0);
    let ttl = ttl.map_or(TTL_DEFAULT, |ttl| Duration::from_secs(ttl.min(1e9) as u64));
    Some((token.to_owned(), ttl))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_with_and_without_an_envelope() {
        let plain = r#"{"accessToken":"abc","tokenTtl":18000,"globalAdmin":true,"username":"nacos"}"#;
        assert_eq!(read_token(plain), Some(("abc".into(), Duration::from_secs(18000))));
        let wrapped = r#"{"code":0,"message":"success","data":{"accessToken":"abc","tokenTtl":"60"}}"#;
        assert_eq!(read_token(wrapped), Some(("abc".into(), Duration::from_secs(60))));
        assert_eq!(read_token(r#"{"accessToken":"abc"}"#), Some(("abc".into(), TTL_DEFAULT)));
        for nothing in ["", "unknown user!", "{}", r#"{"accessToken":""}"#, r#"{"data":"unknown user!","code":403}"#] {
            assert_eq!(read_token(nothing), None, "{nothing}");
        }
    }
}
