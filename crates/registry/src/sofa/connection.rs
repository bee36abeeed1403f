//! One Bolt connection to a session server.
//!
//! A task writes, a task reads; calls hand frames to the first and wait for the second, so a call that is dropped half way
//! leaves no half frame behind. The connection is the liveness of everything published over it, so it never mends itself:
//! when it breaks, it is over, and whoever held it makes another one and publishes and subscribes anew.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use super::frame::{Command, Decoder, Frame, Kind, PROTOBUF};
use super::message::{
    DataBoxesPb, MultiReceivedDataPb, MultiSegmentDataPb, PACKAGE, ReceivedDataPb, RegisterResponsePb, ResultPb,
};
use crate::driver::{DriverError, ErrorKind};

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// How long a call may take.
const CALL: Duration = Duration::from_secs(8);
/// How often a sign of life is sent. Servers close a connection that is silent for 45 s.
const HEARTBEAT: Duration = Duration::from_secs(4);
/// A connection on which nothing arrives for so long is dead: three signs of life went unanswered.
const SILENCE: Duration = Duration::from_secs(12);
/// Frames that may wait to be written.
const QUEUE: usize = 64;

/// A connection. Dropping it ends its tasks and closes it.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    /// Where it leads, for messages.
    peer: SocketAddr,
    outgoing: mpsc::Sender<Frame>,
    tasks: [JoinHandle<()>; 2],
}

#[derive(Debug)]
struct Shared {
    ids: AtomicU32,
    waiting: Mutex<HashMap<u32, oneshot::Sender<Frame>>>,
    subscriptions: Mutex<HashMap<Box<str>, watch::Sender<Pushed>>>,
    /// Why it ended; `None` while it lives.
    ended: watch::Sender<Option<String>>,
}

/// What was pushed for one subscriber.
#[derive(Clone, Debug, Default)]
pub(super) struct Pushed {
    /// Counts the pushes that changed something.
    pub(super) changes: u64,
    /// By data centre.
    pub(super) segments: BTreeMap<String, Segment>,
    /// A push that could not be used.
    pub(super) unusable: Option<String>,
}

/// The part of one data centre.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Segment {
    pub(super) version: i64,
    /// Data boxes of all zones, sorted.
    pub(super) boxes: Vec<String>,
}

impl Pushed {
    /// Whether the server knows the data id. An empty list of version 1 is how it says that it does not.
    pub(super) fn known(&self) -> bool {
        self.segments.values().any(|segment| segment.version > 1 || !segment.boxes.is_empty())
    }

    /// Takes the part of one data centre; whether it changed anything. An older version than the one that is there is what a
    /// late server says.
    fn take(&mut self, part: Part) -> bool {
        if !part.encoding.is_empty() {
            self.unusable = Some(format!("a push is compressed ({}), which was not asked for", part.encoding));
            self.changes += 1;
            return true;
        }
        let known = self.segments.get(&part.segment);
        if known.is_some_and(|known| part.version < known.version) {
            return false;
        }
        let mut boxes: Vec<String> =
            part.zones.into_values().flat_map(|zone| zone.data).map(|data_box| data_box.data).collect();
        boxes.sort_unstable();
        let segment = Segment { version: part.version, boxes };
        if known == Some(&segment) && self.unusable.is_none() {
            return false;
        }
        self.segments.insert(part.segment, segment);
        self.unusable = None;
        self.changes += 1;
        true
    }
}

/// What a push says about one data centre.
#[derive(Clone, Debug)]
struct Part {
    segment: String,
    version: i64,
    /// Data boxes by zone.
    zones: HashMap<String, DataBoxesPb>,
    /// Of a compressed push.
    encoding: String,
}

/// Whom a push is for, and what it says.
type Addressed = (Vec<String>, Vec<Part>);

/// Reads a push by the name of its class: the codec byte says Hessian and is wrong. `None` for any other class.
fn parts(class: &str, content: &[u8]) -> Option<Result<Addressed, prost::DecodeError>> {
    match class.strip_prefix(PACKAGE)? {
        "ReceivedDataPb" => Some(ReceivedDataPb::decode(content).map(|data| {
            let ReceivedDataPb { segment, version, data: zones, encoding, subscriber_regist_ids, .. } = data;
            (subscriber_regist_ids, vec![Part { segment, version, zones, encoding }])
        })),
        "MultiReceivedDataPb" => Some(MultiReceivedDataPb::decode(content).map(|data| {
            let parts = data.multi_data.into_iter().map(|(segment, data)| {
                let MultiSegmentDataPb { version, unzip_data: zones, encoding, .. } = data;
                Part { segment, version, zones, encoding }
            });
            (data.subscriber_regist_ids, parts.collect())
        })),
        _ => None,
    }
}

impl Connection {
    /// Connects to a session server `host:port`.
    ///
    /// # Errors
    /// `Unreachable`.
    pub(super) async fn open(server: &str) -> Result<Self, DriverError> {
        let stream = match tokio::time::timeout(CONNECT, TcpStream::connect(server)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                return Err(unreachable(format!("session server {server} cannot be reached")).because(error));
            }
            Err(_) => return Err(unreachable(format!("session server {server} did not answer in time"))),
        };
        let broken = |error| unreachable(format!("the connection to {server} broke")).because(error);
        stream.set_nodelay(true).map_err(broken)?;
        let peer = stream.peer_addr().map_err(broken)?;
        let (incoming, outgoing) = stream.into_split();
        let (sender, frames) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared {
            ids: AtomicU32::new(1),
            waiting: Mutex::default(),
            subscriptions: Mutex::default(),
            ended: watch::Sender::new(None),
        });
        let reader = tokio::spawn(read(incoming, Arc::clone(&shared), sender.clone()));
        let writer = tokio::spawn(write(outgoing, frames, Arc::clone(&shared)));
        Ok(Self { shared, peer, outgoing: sender, tasks: [reader, writer] })
    }

    /// Whether it still works, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        self.shared.ended.borrow().is_none()
    }

    /// Sends a message and waits for the answer to a registration.
    ///
    /// # Errors
    /// `Unreachable` when there is none; else what the server has against it.
    pub(super) async fn register(&self, name: &str, message: &impl Message) -> Result<(), DriverError> {
        let answer = self.call(name, message.encode_to_vec()).await?;
        let response = RegisterResponsePb::decode(&*answer.content).map_err(|error| {
            unreachable(format!("{} answered with something else than {}", self.peer, answer.class)).because(error)
        })?;
        if response.success {
            return Ok(());
        }
        let kind = if response.refused { ErrorKind::Denied } else { ErrorKind::Invalid };
        Err(DriverError::new(kind, format!("{} refuses: {}", self.peer, printable(response.message.as_bytes()))))
    }

    async fn call(&self, name: &str, content: Vec<u8>) -> Result<Frame, DriverError> {
        let id = self.shared.id();
        let (answer, answered) = oneshot::channel();
        self.shared.waiting().insert(id, answer);
        let _forget = Forget { shared: &self.shared, id };
        let frame = Frame {
            kind: Kind::Request { timeout: i32::try_from(CALL.as_millis()).unwrap_or(i32::MAX) },
            command: Command::Message,
            id,
            codec: PROTOBUF,
            class: format!("{PACKAGE}{name}"),
            content,
        };
        let exchange = async {
            self.outgoing.send(frame).await.map_err(|_| self.broken())?;
            answered.await.map_err(|_| self.broken())
        };
        let answer = tokio::select! {
            answer = tokio::time::timeout(CALL, exchange) => answer
                .unwrap_or_else(|_| Err(unreachable(format!("{} did not answer in time", self.peer))))?,
            error = self.ended() => return Err(error),
        };
        match answer.kind {
            Kind::Response { status: 0 } => Ok(answer),
            Kind::Response { status } => Err(failed(self.peer, status, &answer.content)),
            Kind::Request { .. } | Kind::OneWay { .. } => Err(self.broken()),
        }
    }

    /// Waits until the connection has ended; says why.
    pub(super) async fn ended(&self) -> DriverError {
        let mut ended = self.shared.ended.subscribe();
        // The sender lives as long as this.
        let _ = ended.wait_for(Option::is_some).await;
        self.broken()
    }

    fn broken(&self) -> DriverError {
        let why = self.shared.ended.borrow().clone().unwrap_or_else(|| "it was closed".to_owned());
        unreachable(format!("the connection to {} ended: {why}", self.peer))
    }

    /// What is pushed to a subscriber, from now on.
    pub(super) fn listen(&self, regist_id: &str) -> watch::Receiver<Pushed> {
        self.shared.subscriptions().entry(regist_id.into()).or_default().subscribe()
    }

    /// Forgets a subscriber.
    pub(super) fn forget(&self, regist_id: &str) {
        self.shared.subscriptions().remove(regist_id);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.end("it was closed");
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Removes a call that nobody waits for any more.
struct Forget<'a> {
    shared: &'a Shared,
    id: u32,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.shared.waiting().remove(&self.id);
    }
}

impl Shared {
    fn id(&self) -> u32 {
        // 0 is what an uninitialised id would be; it comes once in four billion.
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u32, oneshot::Sender<Frame>>> {
        // Nothing panics while it is held.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscriptions(&self) -> MutexGuard<'_, HashMap<Box<str>, watch::Sender<Pushed>>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection for everybody who waits; the first reason stays.
    fn end(&self, why: impl Into<String>) {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(why.into());
            }
            first
        });
        self.waiting().clear();
    }

    /// What to do with a frame; gives an answer to send.
    fn receive(&self, frame: Frame) -> Option<Frame> {
        let answer = |command, codec, class: String, content| Frame {
            kind: Kind::Response { status: 0 },
            command,
            id: frame.id,
            codec,
            class,
            content,
        };
        match (frame.kind, frame.command) {
            (Kind::Response { .. }, Command::Message) => {
                if let Some(waiting) = self.waiting().remove(&frame.id) {
                    // Whoever asked may have gone.
                    let _ = waiting.send(frame);
                }
                None
            }
            // That it arrived is all there is to it.
            (Kind::Response { .. }, Command::Heartbeat) => None,
            (_, Command::Heartbeat) => Some(answer(Command::Heartbeat, frame.codec, String::new(), Vec::new())),
            (kind, Command::Message) => {
                self.pushed(&frame);
                // Any answer stops the server from repeating itself, and a repetition would help nobody.
                let done = ResultPb { success: true, message: String::new() }.encode_to_vec();
                let answered = answer(Command::Message, PROTOBUF, format!("{PACKAGE}ResultPb"), done);
                matches!(kind, Kind::Request { .. }).then_some(answered)
            }
        }
    }

    /// Takes a push.
    fn pushed(&self, frame: &Frame) {
        let (subscribers, parts) = match parts(&frame.class, &frame.content) {
            Some(Ok(push)) => push,
            Some(Err(error)) => return tracing::warn!(%error, "a push that cannot be decoded"),
            None => return tracing::debug!(class = frame.class, "a message that is not understood"),
        };
        let subscriptions = self.subscriptions();
        for id in &subscribers {
            if let Some(subscription) = subscriptions.get(id.as_str()) {
                // All data centres of a push are one change.
                subscription.send_if_modified(|pushed| {
                    parts.iter().fold(false, |changed, part| pushed.take(part.clone()) | changed)
                });
            }
        }
    }
}

async fn read(mut stream: OwnedReadHalf, shared: Arc<Shared>, outgoing: mpsc::Sender<Frame>) {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let len = match tokio::time::timeout(SILENCE, stream.read(&mut buffer)).await {
            Ok(Ok(0)) => return shared.end("the server closed it"),
            Ok(Ok(len)) => len,
            Ok(Err(error)) => return shared.end(error.to_string()),
            Err(_) => return shared.end(format!("nothing arrived for {} s", SILENCE.as_secs())),
        };
        decoder.push(&buffer[..len]);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => {
                    if let Some(answer) = shared.receive(frame)
                        && outgoing.send(answer).await.is_err()
                    {
                        return shared.end("it was closed");
                    }
                }
                Ok(None) => break,
                Err(error) => return shared.end(error.to_string()),
            }
        }
    }
}

async fn write(mut stream: OwnedWriteHalf, mut frames: mpsc::Receiver<Frame>, shared: Arc<Shared>) {
    let mut heartbeat = tokio::time::interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let frame = tokio::select! {
            frame = frames.recv() => match frame {
                Some(frame) => frame,
                None => return,
            },
            _ = heartbeat.tick() => Frame::heartbeat(shared.id()),
        };
        match tokio::time::timeout(SILENCE, stream.write_all(&frame.encode())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return shared.end(error.to_string()),
            Err(_) => return shared.end(format!("nothing could be sent for {} s", SILENCE.as_secs())),
        }
    }
}

fn unreachable(message: String) -> DriverError {
    DriverError::new(ErrorKind::Unreachable, message)
}

/// What a status that is no success means. The body is Hessian even where protobuf was asked; only its text is of interest.
fn failed(peer: SocketAddr, status: u16, body: &[u8]) -> DriverError {
    let text = printable(body);
    let (kind, what) = match status {
        // A server without protobuf classes: everything before SOFARegistry 6.
        2 | 6 if text.contains("No user processor found") => {
            (ErrorKind::Unsupported, "does not speak protobuf; SOFARegistry 6 or later is needed")
        }
        9 | 17 | 18 => (ErrorKind::Invalid, "cannot decode what was sent"),
        4 => (ErrorKind::Unreachable, "is too busy"),
        _ => (ErrorKind::Unreachable, "failed"),
    };
    DriverError::new(kind, format!("{peer} {what} (Bolt status {status}: {text})"))
}

/// The readable parts of bytes, joined and bounded.
fn printable(bytes: &[u8]) -> String {
    let mut parts = bytes.split(|byte| !(b' '..=b'~').contains(byte)).filter(|part| part.len() >= 8);
    let mut out = String::new();
    while let Some(part) = parts.next()
        && out.len() < 200
    {
        if !out.is_empty() {
            out.push(' ');
        }
        out.extend(part.iter().take(160).map(|byte| char::from(*byte)));
    }
    out
}

#[cfg(test)]
mod tests;
