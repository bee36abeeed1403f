//! The driver for the metadata interface of a Seata Raft cluster.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::web::{Client, StatusCode};
use serde_json::Value;
use tokio::time::Instant;

use super::node::{self, Listing};
use super::session::{CALL, POLL_SLACK, Session};
use super::watching::{CALM, Failing, Place};
use crate::backend::{Params, bad};
use crate::driver::{Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Seen, SeenState, Snapshot};
use crate::http::unreachable;
use crate::registry::ConnectError;
use crate::url::RegistryUrl;

const PORT: u16 = 7091;
/// How often an idle stream is checked for life, and how long the answer may take.
const PING: Duration = Duration::from_secs(5);
/// An event beyond this is not metadata of a cluster.
const EVENT_MAX: usize = 4 * 1024 * 1024;

/// A Raft cluster, read only.
pub(crate) struct Raft {
    session: Session,
    poll: Duration,
    stream: Option<Client>,
    current: AtomicUsize,
    failing: Failing,
}

struct Found {
    server: usize,
    term: i64,
    state: State,
}

enum State {
    Unknown,
    /// The group is there and has no leader.
    Leaderless,
    Listed(Snapshot, u64),
}

impl Found {
    fn place(&self) -> Place {
        let print = match &self.state {
            State::Listed(_, print) => Some(*print),
            State::Unknown | State::Leaderless => None,
        };
        Place { server: self.server, term: self.term, print }
    }
}

impl Raft {
    pub(crate) fn new(url: &RegistryUrl) -> Result<Self, ConnectError> {
        let mut params = Params::of(url);
        let (session, tls) = Session::of(url, &mut params, PORT)?;
        let poll = Session::poll(&mut params)?;
        let stream = params.switch("stream", false)?;
        params.finish()?;
        if !url.path().is_empty() {
            return Err(bad("`seata-raft:` takes no path; the Raft group is the service"));
        }
        // The stream needs a connection that speaks HTTP/2 from its first byte and notices that the other end is gone.
        let stream = stream.then(|| Ok::<_, ConnectError>(Client::http2(tls.config()?, PING))).transpose()?;
        Ok(Self { session, poll, stream, current: AtomicUsize::new(0), failing: Failing::default() })
    }

    async fn look_at(&self, server: usize, group: &str) -> Result<Found, DriverError> {
        let answer = self
            .session
            .json(server, |client, base| {
                client.get(format!("{base}/metadata/v1/cluster")).query(&[("group", group)]).timeout(CALL)
            })
            .await?;
        Ok(read(server, &answer))
    }

    /// Asks the server that is read from, then the others. One that knows no leader is worth less than one that does.
    async fn look(&self, first: usize, group: &str) -> Result<Found, DriverError> {
        let mut second_best = None;
        let mut last = None;
        for step in 0..self.session.servers() {
            let server = (first + step) % self.session.servers();
            match self.look_at(server, group).await {
                Ok(found) if matches!(found.state, State::Listed(..)) => {
                    self.current.store(server, Ordering::Relaxed);
                    return Ok(found);
                }
                Ok(found) => second_best = second_best.or(Some(found)),
                Err(error) => last = Some(error),
            }
        }
        match (second_best, last) {
            (Some(found), _) => Ok(found),
            (None, Some(error)) => Err(error),
            (None, None) => Err(DriverError::new(ErrorKind::Unreachable, "the address names no server")),
        }
    }

    /// Waits until the server announces a change, or the time is up; whether it did.
    async fn poll(&self, place: Place, group: &str) -> Result<bool, DriverError> {
        let millis = self.poll.as_millis().to_string();
        let term = place.term.to_string();
        let response = self
            .session
            .send(place.server, |client, base| {
                client
                    .post(format!("{base}/metadata/v1/watch"))
                    .query(&[("timeout", &millis)])
                    .form(&[(group, &term)])
                    .timeout(self.poll + POLL_SLACK)
            })
            .await?;
        Ok(response.status() != StatusCode::NOT_MODIFIED)
    }

    /// Reads events until one differs from the place or the time is up.
    async fn events(&self, client: &Client, place: Place, group: &str) -> Result<Option<Found>, DriverError> {
        let base = self.session.base(place.server);
        let millis = self.poll.as_millis().to_string();
        let term = place.term.to_string();
        let until = Instant::now() + self.poll;
        let answer = self.session.send_with(client, place.server, |client, base| {
            client
                .post(format!("{base}/metadata/v1/watch"))
                .query(&[("timeout", &millis)])
                .form(&[(group, &term)])
                .header("accept", "text/event-stream")
        });
        let mut response = match tokio::time::timeout(CALL, answer).await {
            Ok(response) => response?,
            Err(_) => {
                return Err(DriverError::new(ErrorKind::Unreachable, format!("{base} did not answer in time")));
            }
        };
        if response.status() == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        let mut lines = Lines::default();
        while let Ok(chunk) = tokio::time::timeout_at(until, response.chunk()).await {
            let Some(chunk) = chunk.map_err(|error| unreachable(base, error))? else { break };
            for line in lines.push(&chunk)? {
                let Some((event_group, metadata)) = event(&line) else { continue };
                if event_group.is_some_and(|name| name != group) {
                    continue;
                }
                let found = read(place.server, &metadata);
                // The stream opens with the state that is known, and may repeat an older one.
                let newer = found.term >= place.term;
                if newer && matches!(found.state, State::Listed(..)) && found.place().print != place.print {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// The next state that differs from a place; after a failure the next one at all, so that it is known to hold.
    async fn next(&self, group: &str, mut place: Place, failed: bool) -> Result<Found, DriverError> {
        if failed {
            return self.look(place.server, group).await;
        }
        loop {
            let waited = match &self.stream {
                Some(client) => self.events(client, place, group).await,
                None => self.poll(place, group).await.map(|_| None),
            };
            let found = match waited {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => self.look(place.server, group).await?,
                Err(error) if self.session.servers() == 1 => return Err(error),
                Err(_) => self.look(place.server + 1, group).await?,
            };
            let now = found.place();
            // Of another server an older term is the word of one that was left behind; of the same one it says that the
            // cluster was set up anew.
            if now.print != place.print && (now.term >= place.term || now.server == place.server) {
                return Ok(found);
            }
            tokio::time::sleep(CALM).await;
            place = Place { print: place.print, ..now };
        }
    }
}

/// Reads an answer of `/metadata/v1/cluster`, or the same inside an event.
fn read(server: usize, answer: &Value) -> Found {
    let term = answer.get("term").and_then(Value::as_i64).unwrap_or(0);
    let state = match answer.get("nodes").and_then(Value::as_array) {
        None if answer.get("storeMode").is_none_or(Value::is_null) => State::Unknown,
        None => State::Leaderless,
        Some(nodes) if nodes.is_empty() => State::Leaderless,
        Some(nodes) => {
            let mut listing = Listing::default();
            for node in nodes {
                let mut found = node::read(node);
                if let Ok(instance) = &mut found {
                    node::add_role(instance, node, answer.get("term"));
                }
                listing.add(node, found);
            }
            let (snapshot, print) = listing.finish();
            State::Listed(snapshot, print)
        }
    };
    Found { server, term, state }
}

/// Splits a stream of bytes into lines.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    fn push(&mut self, chunk: &[u8]) -> Result<Vec<String>, DriverError> {
        self.rest.extend_from_slice(chunk);
        let mut lines = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line).trim().to_owned());
        }
        if self.rest.len() > EVENT_MAX {
            return Err(DriverError::new(ErrorKind::Unreachable, format!("an event has more than {EVENT_MAX} bytes")));
        }
        Ok(lines)
    }
}

/// The group and the metadata of an event line `CW:{"group":…,"timestamp":…,"metadata":{…}}`; `None` for every other line.
fn event(line: &str) -> Option<(Option<String>, Value)> {
    let line = line.strip_prefix("data:").map_or(line, str::trim_start);
    let mut event: Value = serde_json::from_str(line.strip_prefix("CW:")?).ok()?;
    let group = event.get("group").and_then(Value::as_str).map(ToOwned::to_owned);
    Some((group, event.get_mut("metadata")?.take()))
}

impl Driver for Raft {
    fn capabilities(&self) -> Capabilities {
        Capabilities { register: false, list: false, liveness: true, weight: false }
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        let message = "a Seata Raft cluster does not say which groups it has; the usual one is `default`";
        Box::pin(async move { Err(DriverError::new(ErrorKind::Unsupported, message)) })
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(async move {
            let start = self.failing.start(service, after, self.session.servers());
            let found = match start.place {
                Some(place) => self.next(service, place, start.failed).await,
                None => self.look(self.current.load(Ordering::Relaxed), service).await,
            };
            let found = self.failing.note(service, start, found)?;
            let cursor = found.place().cursor();
            let state = match found.state {
                State::Listed(snapshot, _) => SeenState::Service(snapshot),
                State::Unknown => SeenState::UnknownService,
                State::Leaderless => {
                    let base = self.session.base(found.server);
                    let message = format!("{base} knows no leader of the group `{service}` at the moment");
                    SeenState::Unusable(DriverError::new(ErrorKind::Unreachable, message))
                }
            };
            Ok(Seen { cursor, state })
        })
    }
}

#[cfg(test)]
mod tests;
