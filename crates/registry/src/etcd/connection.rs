//! Calls to etcd: several servers, TLS, logins and deadlines.
//!
//! A call goes to the server that answered last; when that one does not answer, the others are tried once each. All
//! calls made here may be repeated. A silent connection is found out by HTTP/2 pings, also while nothing is asked.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::proto::auth_client::AuthClient;
use super::proto::{self, AuthenticateRequest};
use crate::backend::bad;
use crate::driver::{DriverError, ErrorKind};
use crate::registry::ConnectError;
use crate::socket::Socket;
use crate::tls::Tls;
use crate::url::{Host, RegistryUrl};

/// How long one call to one server may take, connecting included.
pub(super) const CALL: Duration = Duration::from_secs(5);
/// Pings on a silent connection. etcd cuts clients that ping more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(8);
/// An unanswered ping means that the connection is dead.
const PING_TIMEOUT: Duration = Duration::from_secs(4);
/// Largest answer taken: a page of the largest values, with room.
pub(super) const ANSWER_BYTES: usize = 64 << 20;

/// A call's future.
pub(super) type Call<'a, T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send + 'a>>;

pub(super) struct Connection {
    servers: Vec<Server>,
    /// The server that answered last.
    current: AtomicUsize,
    login: Option<Login>,
}

struct Server {
    name: Box<str>,
    endpoint: Endpoint,
    socket: Socket,
    /// Made at the first call, since it needs a runtime; connects when it is used.
    channel: OnceLock<Channel>,
}

struct Login {
    user: String,
    password: String,
    token: Mutex<Token>,
}

#[derive(Default)]
struct Token {
    /// None before the first login, and after a token was refused.
    value: Option<MetadataValue<Ascii>>,
    /// The server knows no users, so none is named.
    unneeded: bool,
}

/// One way to one server, with a login.
#[derive(Clone)]
pub(super) struct Way {
    index: usize,
    pub(super) channel: Channel,
    token: Option<MetadataValue<Ascii>>,
}

impl Way {
    /// A request with the token, and the wish that a server without a leader says so instead of keeping silent.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }
}

impl Connection {
    pub(super) fn new(url: &RegistryUrl, tls: &Tls) -> Result<Self, ConnectError> {
        let servers = url.hosts().iter().map(|host| Server::new(host, tls)).collect::<Result<_, _>>()?;
        let login = match (url.user(), url.password()) {
            (None, None) => None,
            (Some(user), Some(password)) => Some(Login {
                user: user.to_owned(),
                password: password.reveal().map_err(|error| bad(error.to_string()))?,
                token: Mutex::default(),
            }),
            _ => return Err(bad("etcd logs in with a user and a password: write `etcd://USER:PASSWORD@…`")),
        };
        Ok(Self { servers, current: AtomicUsize::new(0), login })
    }

    /// Makes a call that may be repeated: with a fresh login when the token is refused, at another server when one does
    /// not answer.
    pub(super) async fn call<'a, T>(&self, make: impl Fn(Way) -> Call<'a, T>) -> Result<T, DriverError> {
        let mut last = None;
        let mut logged_in = false;
        let mut left = self.servers.len();
        while left > 0 {
            let way = match self.way().await {
                Ok(way) => way,
                Err((index, error)) => {
                    if error.kind() != ErrorKind::Unreachable {
                        return Err(error);
                    }
                    self.turn(index);
                    last = Some(error);
                    left -= 1;
                    continue;
                }
            };
            let error = match timeout(CALL, make(way.clone())).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => {
                    if self.login.is_some() && is_stale_login(&status) && !logged_in {
                        self.forget_login();
                        logged_in = true;
                        continue;
                    }
                    self.error(way.index, &status)
                }
                Err(_) => self.silent(way.index),
            };
            if error.kind() != ErrorKind::Unreachable {
                return Err(error);
            }
            self.turn(way.index);
            last = Some(error);
            left -= 1;
        }
        Err(last.unwrap_or_else(|| DriverError::new(ErrorKind::Unreachable, "etcd has no server")))
    }

    /// The way to the current server, logged in.
    pub(super) async fn way(&self) -> Result<Way, (usize, DriverError)> {
        let index = self.current.load(Ordering::Relaxed) % self.servers.len();
        let channel = self.servers[index].channel();
        let token = match &self.login {
            None => None,
            Some(login) => self.token(index, login, channel.clone()).await.map_err(|error| (index, error))?,
        };
        Ok(Way { index, channel, token })
    }

    async fn token(
        &self,
        index: usize,
        login: &Login,
        channel: Channel,
    ) -> Result<Option<MetadataValue<Ascii>>, DriverError> {
        {
            let token = login.token.lock().unwrap_or_else(PoisonError::into_inner);
            if token.value.is_some() || token.unneeded {
                return Ok(token.value.clone());
            }
        }
        let mut client = AuthClient::new(channel);
        let request = AuthenticateRequest { name: login.user.clone(), password: login.password.clone() };
        let answer = match timeout(CALL, client.authenticate(request)).await {
            Err(_) => return Err(self.silent(index)),
            Ok(answer) => answer,
        };
        let found = match answer {
            Ok(answer) => {
                let value = answer.into_inner().token.parse().map_err(|_| {
                    DriverError::new(ErrorKind::Invalid, "etcd answered a login with a token that is no text")
                })?;
                Token { value: Some(value), unneeded: false }
            }
            // Nobody has to log in there.
            Err(status) if status.message().contains("authentication is not enabled") => {
                Token { value: None, unneeded: true }
            }
            Err(status) => return Err(self.error(index, &status)),
        };
        let value = found.value.clone();
        *login.token.lock().unwrap_or_else(PoisonError::into_inner) = found;
        Ok(value)
    }

    /// The next call logs in anew.
    pub(super) fn forget_login(&self) {
        if let Some(login) = &self.login {
            *login.token.lock().unwrap_or_else(PoisonError::into_inner) = Token::default();
        }
    }

    /// Whether calls are made in somebody's name.
    pub(super) fn logs_in(&self) -> bool {
        self.login.is_some()
    }

    /// The next call goes to the next server, unless another call turned there already.
    pub(super) fn turn_from(&self, way: &Way) {
        self.turn(way.index);
    }

    fn turn(&self, from: usize) {
        let next = (from + 1) % self.servers.len();
        let _ = self.current.compare_exchange(from, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// An error for a server that does not answer in time.
    pub(super) fn silent_on(&self, way: &Way) -> DriverError {
        self.silent(way.index)
    }

    fn silent(&self, index: usize) -> DriverError {
        let name = &self.servers[index].name;
        DriverError::new(ErrorKind::Unreachable, format!("etcd at {name} does not answer"))
    }

    /// An error from an answer.
    pub(super) fn error_on(&self, way: &Way, status: &Status) -> DriverError {
        self.error(way.index, status)
    }

    fn error(&self, index: usize, status: &Status) -> DriverError {
        let message = status.message().trim_start_matches("etcdserver: ");
        let name = &self.servers[index].name;
        let kind = kind_of(status);
        match reason(status) {
            Some(cause) if kind == ErrorKind::Unreachable => {
                DriverError::new(kind, format!("cannot reach etcd at {name}")).because(std::io::Error::other(cause))
            }
            _ => DriverError::new(kind, format!("etcd at {name}: {message}")),
        }
    }
}

/// What is at the bottom of a call that never reached a server. The status and the errors between show one another's
/// debug form, which is for nobody to read.
fn reason(status: &Status) -> Option<String> {
    let mut cause = std::error::Error::source(status)?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Some(cause.to_string())
}

/// Whose fault a refusal is.
fn kind_of(status: &Status) -> ErrorKind {
    let message = status.message();
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => ErrorKind::Denied,
        // The store is full (an alarm that an operator has to clear), or too much is asked of a busy server.
        Code::ResourceExhausted if message.contains("too many requests") => ErrorKind::Unreachable,
        Code::ResourceExhausted => ErrorKind::Denied,
        Code::InvalidArgument | Code::FailedPrecondition
            if ["authentication failed", "user name is empty", "auth", "permission denied"]
                .iter()
                .any(|word| message.contains(word)) =>
        {
            ErrorKind::Denied
        }
        Code::InvalidArgument | Code::FailedPrecondition => ErrorKind::Invalid,
        Code::Unimplemented => ErrorKind::Unsupported,
        _ => ErrorKind::Unreachable,
    }
}

/// Whether another login may help: tokens run out, are forgotten by a restarted server, and grow old when users change.
fn is_stale_login(status: &Status) -> bool {
    let message = status.message();
    status.code() == Code::Unauthenticated
        || message.contains("invalid auth token")
        || message.contains("revision of auth store is old")
        || message.contains("user name is empty")
}

impl Server {
    fn new(host: &Host, tls: &Tls) -> Result<Self, ConnectError> {
        let socket = Socket::new(host, 2379, tls, Some("h2"))?;
        let name = socket.name();
        // TLS is ours to make, so tonic never sees `https`.
        let endpoint = Endpoint::from_shared(format!("http://{name}"))
            .map_err(|error| bad(format!("bad server `{name}`: {error}")))?
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
        Ok(Self { name: name.into(), endpoint, socket, channel: OnceLock::new() })
    }

    fn channel(&self) -> Channel {
        let connect = || {
            let socket = self.socket.clone();
            self.endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
                let socket = socket.clone();
                async move { socket.connect().await.map(TokioIo::new) }
            }))
        };
        self.channel.get_or_init(connect).clone()
    }
}

/// The half-open range of all keys that start with a prefix: the prefix with its last byte that can grow grown by one.
/// For the empty prefix, and one of nothing but 0xff, every key from there on.
pub(super) fn range_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// Where to begin for all keys with a prefix; the empty key is none.
pub(super) fn range_start(prefix: &[u8]) -> Vec<u8> {
    if prefix.is_empty() { vec![0] } else { prefix.to_vec() }
}

/// A revision from an answer.
pub(super) fn revision(header: Option<&proto::ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_its_last_byte_grows() {
        assert_eq!(range_end(b"registry-seata-default-"), b"registry-seata-default.");
        assert_eq!(range_end(b"a\xff\xff"), b"b");
        assert_eq!(range_end(b"\xff\xff"), b"\0");
        assert_eq!(range_end(b""), b"\0");
        assert_eq!(range_start(b""), b"\0");
    }

    #[test]
    fn refusals_are_told_apart() {
        let kind = |code, message: &str| kind_of(&Status::new(code, message));
        assert_eq!(kind(Code::Unavailable, "etcdserver: no leader"), ErrorKind::Unreachable);
        assert_eq!(kind(Code::PermissionDenied, "etcdserver: permission denied"), ErrorKind::Denied);
        assert_eq!(kind(Code::InvalidArgument, "etcdserver: user name is empty"), ErrorKind::Denied);
        assert_eq!(kind(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"), ErrorKind::Denied);
        assert_eq!(kind(Code::ResourceExhausted, "etcdserver: too many requests"), ErrorKind::Unreachable);
        assert_eq!(kind(Code::InvalidArgument, "etcdserver: request is too large"), ErrorKind::Invalid);
    }
}
