//! One connection to Redis: commands, and messages of channels that wake whoever follows a service.
//!
//! Commands and messages share a connection (RESP3, Redis 6 and newer). A message is only a hint that a look is
//! worthwhile, so it is folded into a small state at once and nothing queues up.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ErrorKind as RedisKind, FromRedisValue, Pipeline, PushInfo, PushKind, RedisConnectionInfo,
    RedisError, RedisResult, ServerErrorKind, Value,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::driver::{DriverError, ErrorKind};
use crate::socket::Socket;

/// How long an answer may take. Longer than a scan step of a busy server, short enough to notice a dead connection.
const ANSWER: Duration = Duration::from_secs(5);
/// How long the first exchange on a connection may take.
const HELLO: Duration = Duration::from_secs(5);
/// Keys looked at per step of a scan, and commands sent at once.
pub(super) const STEP: usize = 500;

/// A connection that works until it breaks once.
pub(super) struct Link {
    connection: MultiplexedConnection,
    task: JoinHandle<()>,
    /// Waits for what makes the connection useless without breaking it.
    guard: Option<JoinHandle<()>>,
    name: Box<str>,
    in_cluster: bool,
    broken: Arc<AtomicBool>,
    channels: Arc<Channels>,
    /// Channels that were asked for here, and those that the server refused.
    subscribed: tokio::sync::Mutex<HashMap<Box<str>, bool>>,
    /// The last scan of the whole key space, shared by everything that is followed.
    pub(super) scanned: tokio::sync::Mutex<Option<(Instant, Arc<HashSet<String>>)>>,
}

/// What was heard, by channel.
#[derive(Default)]
struct Channels {
    heard: Mutex<HashMap<Box<str>, Heard>>,
}

struct Heard {
    /// Counts messages; whoever waits for one waits for this.
    count: watch::Sender<u64>,
    /// Texts of messages since they were last taken, as they came.
    texts: Vec<Box<str>>,
}

/// Texts kept until somebody looks; after more than that, a look at everything is due anyway.
const TEXTS_MAX: usize = 10_000;

impl Channels {
    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Heard>> {
        // Every change is complete before the lock is released.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_in(&self, info: &PushInfo) {
        match info.kind {
            PushKind::Message => {
                let [channel, text] = info.data.as_slice() else { return };
                let (Some(channel), Some(text)) = (string(channel), string(text)) else { return };
                let mut heard = self.lock();
                let Some(heard) = heard.get_mut(&*channel) else { return };
                if heard.texts.len() < TEXTS_MAX {
                    heard.texts.push(text.into());
                }
                heard.count.send_modify(|count| *count += 1);
            }
            PushKind::Disconnection => self.wake_all(),
            _ => {}
        }
    }

    fn wake_all(&self) {
        for heard in self.lock().values() {
            heard.count.send_modify(|count| *count += 1);
        }
    }
}

impl Link {
    /// Connects and logs in.
    pub(super) async fn open(
        socket: &Socket,
        info: &RedisConnectionInfo,
        in_cluster: bool,
    ) -> Result<Self, DriverError> {
        let name = socket.name();
        let stream = socket.connect().await.map_err(|error| {
            DriverError::new(ErrorKind::Unreachable, format!("cannot reach Redis at {name}")).because(error)
        })?;
        let channels = Arc::new(Channels::default());
        let sink = Arc::clone(&channels);
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER)).set_push_sender(
            move |info: PushInfo| -> Result<(), redis::aio::SendError> {
                sink.take_in(&info);
                Ok(())
            },
        );
        let opened = timeout(HELLO, MultiplexedConnection::new_with_config(info, stream, config)).await;
        let (connection, driver) = match opened {
            Err(_) => return Err(silent(&name)),
            Ok(opened) => opened.map_err(|error| translate(&name, in_cluster, &error))?,
        };
        Ok(Self {
            connection,
            task: tokio::spawn(driver),
            guard: None,
            name: name.into(),
            in_cluster,
            broken: Arc::default(),
            channels,
            subscribed: tokio::sync::Mutex::default(),
            scanned: tokio::sync::Mutex::default(),
        })
    }

    /// Whether it broke, so that another one is needed.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst) || self.task.is_finished()
    }

    /// Gives the connection up once something has happened.
    pub(super) fn give_up_after(&mut self, event: impl Future<Output = ()> + Send + 'static) {
        let (broken, channels) = (Arc::clone(&self.broken), Arc::clone(&self.channels));
        self.guard = Some(tokio::spawn(async move {
            event.await;
            broken.store(true, Ordering::SeqCst);
            channels.wake_all();
        }));
    }

    /// Sends a command.
    pub(super) async fn ask<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, DriverError> {
        let mut connection = self.connection.clone();
        self.judge(command.query_async(&mut connection).await)
    }

    /// Sends several commands at once.
    pub(super) async fn ask_all<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, DriverError> {
        let mut connection = self.connection.clone();
        self.judge(commands.query_async(&mut connection).await)
    }

    /// Changes something and says so on a channel. Where that is forbidden others find it by looking.
    ///
    /// Not in one transaction: Redis before 7.2 puts a message that comes back to its own sender into the middle of the
    /// transaction's answer.
    pub(super) async fn change<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
        channel: &str,
        text: &str,
    ) -> Result<T, DriverError> {
        let out = self.ask_all(commands).await?;
        match self.ask::<Value>(redis::cmd("PUBLISH").arg(channel).arg(text)).await {
            Err(error) if error.kind() == ErrorKind::Denied => {
                tracing::warn!(channel, %error, "a change is not announced");
                Ok(out)
            }
            Err(error) => Err(error),
            Ok(_) => Ok(out),
        }
    }

    fn judge<T>(&self, answer: RedisResult<T>) -> Result<T, DriverError> {
        answer.map_err(|error| {
            let out = translate(&self.name, self.in_cluster, &error);
            // After a lost answer nothing on this connection can be relied on; a refusal is an answer. Where the keys are
            // somewhere else, so is the server to talk to.
            let lost = out.kind() == ErrorKind::Unreachable && !matches!(error.kind(), RedisKind::Server(_));
            if lost || is_elsewhere(&error) {
                self.broken.store(true, Ordering::SeqCst);
            }
            out
        })
    }

    /// Listens on a channel from now on; gives a counter of its messages. Where the server does not allow it there are
    /// no messages, and looking again and again has to do.
    pub(super) async fn listen(&self, channel: &str) -> Result<watch::Receiver<u64>, DriverError> {
        let counter = {
            let mut heard = self.channels.lock();
            let heard = heard
                .entry(channel.into())
                .or_insert_with(|| Heard { count: watch::Sender::new(0), texts: Vec::new() });
            heard.count.subscribe()
        };
        let mut subscribed = self.subscribed.lock().await;
        if !subscribed.contains_key(channel) {
            let mut connection = self.connection.clone();
            let allowed = match self.judge(connection.subscribe(channel).await) {
                Ok(()) => true,
                Err(error) if error.kind() == ErrorKind::Denied => {
                    tracing::warn!(channel, %error, "no messages from this channel, changes are found by looking");
                    false
                }
                Err(error) => return Err(error),
            };
            subscribed.insert(channel.into(), allowed);
        }
        Ok(counter)
    }

    /// The messages of a channel since this was last asked.
    pub(super) fn heard(&self, channel: &str) -> Vec<Box<str>> {
        match self.channels.lock().get_mut(channel) {
            Some(heard) => std::mem::take(&mut heard.texts),
            None => Vec::new(),
        }
    }

    /// All keys that match a pattern and hold a plain string.
    pub(super) async fn scan_strings(&self, pattern: &str) -> Result<HashSet<String>, DriverError> {
        let mut found = HashSet::new();
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP).arg("TYPE").arg("string");
            let (next, keys): (u64, Vec<Vec<u8>>) = self.ask(&scan).await?;
            // Ours are text; others match by accident.
            found.extend(keys.into_iter().filter_map(|key| String::from_utf8(key).ok()));
            cursor = next;
            if cursor == 0 {
                return Ok(found);
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(guard) = &self.guard {
            guard.abort();
        }
    }
}

/// A text in whatever form the server sent it.
pub(super) fn string(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

fn silent(name: &str) -> DriverError {
    DriverError::new(ErrorKind::Unreachable, format!("Redis at {name} does not answer"))
}

/// Whether the server says that another one has, or takes, what it was asked for. A transaction says it of its first command
/// and then fails as a whole.
fn is_elsewhere(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain};
    match error.kind() {
        RedisKind::Server(ServerErrorKind::ExecAbort) => {
            let detail = error.to_string();
            let all = [Ask, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain];
            all.iter().any(|kind| detail.contains(&format!("{kind:?}")))
        }
        RedisKind::Server(Ask | ClusterDown | MasterDown | Moved | ReadOnly | TryAgain) => true,
        _ => false,
    }
}

fn translate(name: &str, in_cluster: bool, error: &RedisError) -> DriverError {
    if error.is_timeout() {
        return silent(name);
    }
    let detail = error.to_string();
    let refused = |kind| DriverError::new(kind, format!("Redis at {name}: {detail}"));
    match error.kind() {
        RedisKind::AuthenticationFailed => refused(ErrorKind::Denied),
        RedisKind::RESP3NotSupported => DriverError::new(
            ErrorKind::Unsupported,
            format!("Redis at {name} is older than 6.0 and does not know the protocol RESP3"),
        ),
        RedisKind::Server(kind) => match kind {
            ServerErrorKind::NoPerm => refused(ErrorKind::Denied),
            ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::CrossSlot if !in_cluster => {
                DriverError::new(
                    ErrorKind::Unsupported,
                    format!("Redis at {name} is part of a Redis Cluster; write `cluster=true&layout=plain`"),
                )
            }
            ServerErrorKind::ExecAbort if !in_cluster && detail.contains("Moved") => DriverError::new(
                ErrorKind::Unsupported,
                format!("Redis at {name} is part of a Redis Cluster; write `cluster=true&layout=plain`"),
            ),
            _ if is_elsewhere(error) => refused(ErrorKind::Unreachable),
            // A transaction fails for what one of its commands is refused for.
            ServerErrorKind::ExecAbort if detail.contains("NoPerm") => refused(ErrorKind::Denied),
            ServerErrorKind::ResponseError | ServerErrorKind::ExecAbort => refused(ErrorKind::Invalid),
            _ => refused(ErrorKind::Unreachable),
        },
        _ => match error.code() {
            Some("NOAUTH" | "WRONGPASS" | "NOPERM" | "OOM") => refused(ErrorKind::Denied),
            Some("MISCONF" | "LOADING" | "MASTERDOWN" | "BUSY" | "NOREPLICAS") => refused(ErrorKind::Unreachable),
            Some(_) => refused(ErrorKind::Invalid),
            None => DriverError::new(ErrorKind::Unreachable, format!("lost Redis at {name}")).because(error.clone()),
        },
    }
}
