//! A service as it is now, and waiting until it is something else: a read at a revision, then a watch from the next one.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at, timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::Etcd;
use super::connection::{ANSWER_BYTES, CALL, Way, range_end, range_start, revision};
use super::proto::watch_client::WatchClient;
use super::proto::watch_request::RequestUnion;
use super::proto::{WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse};
use crate::driver::{Cursor, DriverError, ErrorKind, Seen, SeenState};

/// How often a silent watch is asked where it stands.
const PROGRESS_EVERY: Duration = Duration::from_secs(8);
/// How long it may take to say so.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(6);
/// Changes that come together are read together.
const SETTLE: Duration = Duration::from_millis(10);

/// A place in the history: a revision, how many watches had broken by then, and whether the service was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    revision: i64,
    breaks: u64,
    known: bool,
}

impl Place {
    fn cursor(self) -> Cursor {
        let known = if self.known { "" } else { "?" };
        Cursor::new(format!("{}.{}{known}", self.revision, self.breaks))
    }

    fn of(cursor: &Cursor) -> Option<Self> {
        let text = cursor.as_str();
        let (text, known) = match text.strip_suffix('?') {
            Some(text) => (text, false),
            None => (text, true),
        };
        let (revision, breaks) = text.split_once('.')?;
        Some(Self { revision: revision.parse().ok()?, breaks: breaks.parse().ok()?, known })
    }
}

/// How a watch ended.
enum Watched {
    /// Something changed, or may have.
    Changed,
    /// The login was refused, which another one may mend.
    Refused(DriverError),
}

impl Etcd {
    /// The state of a service that is newer than a cursor.
    pub(super) async fn follow(&self, service: &str, after: Option<&Cursor>) -> Result<Seen, DriverError> {
        self.layout.check(service).map_err(|why| DriverError::new(ErrorKind::Invalid, why))?;
        let place = after.and_then(Place::of);
        let known = place.is_some_and(|place| place.known);
        let Some(place) = place.filter(|place| place.breaks == self.breaks.load(Ordering::SeqCst)) else {
            return self.look(service, known).await;
        };
        for refused in [false, true] {
            match self.changed(service, place.revision).await? {
                Watched::Changed => break,
                Watched::Refused(error) if refused || !self.connection.logs_in() => return Err(error),
                Watched::Refused(_) => self.connection.forget_login(),
            }
        }
        self.look(service, known).await
    }

    /// A service as it is now.
    pub(super) async fn look(&self, service: &str, known: bool) -> Result<Seen, DriverError> {
        // Read before: what breaks meanwhile makes the cursor too old.
        let breaks = self.breaks.load(Ordering::SeqCst);
        let prefixes = self.layout.prefixes(service);
        let (live, revision) = self.read(&prefixes[0], 0, false).await?;
        let meta = match prefixes.get(1) {
            Some(prefix) if !live.is_empty() => self.read(prefix, revision, false).await?.0,
            _ => Vec::new(),
        };
        let snapshot = self.layout.read(service, &live, &meta);
        let known = known || !snapshot.instances.is_empty() || snapshot.rejected > 0;
        let state = if known { SeenState::Service(snapshot) } else { SeenState::UnknownService };
        Ok(Seen { cursor: Place { revision, breaks, known }.cursor(), state })
    }

    /// Waits until something under a service's prefixes may have changed after a revision.
    async fn changed(&self, service: &str, after: i64) -> Result<Watched, DriverError> {
        let way = self.connection.way().await.map_err(|(_, error)| error)?;
        let (sender, requests) = mpsc::channel(4);
        for prefix in self.layout.prefixes(service) {
            let create = WatchCreateRequest {
                key: range_start(&prefix),
                range_end: range_end(&prefix),
                start_revision: after + 1,
                progress_notify: true,
                fragment: true,
            };
            // The channel is empty and has room for both.
            let _ = sender.try_send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) });
        }
        let mut client = WatchClient::new(way.channel.clone()).max_decoding_message_size(ANSWER_BYTES);
        let opened = timeout(CALL, client.watch(way.request(ReceiverStream::new(requests)))).await;
        let mut answers = match opened {
            Err(_) => return Err(self.lost(&way, self.connection.silent_on(&way))),
            Ok(Err(status)) => {
                let error = self.connection.error_on(&way, &status);
                return if error.kind() == ErrorKind::Denied {
                    Ok(Watched::Refused(error))
                } else {
                    Err(self.lost(&way, error))
                };
            }
            Ok(Ok(answers)) => answers.into_inner(),
        };
        let mut ask = interval_at(Instant::now() + PROGRESS_EVERY, PROGRESS_EVERY);
        let mut deadline = Instant::now() + CALL;
        loop {
            let answer: WatchResponse = tokio::select! {
                answer = answers.message() => match answer {
                    Ok(Some(answer)) => answer,
                    Ok(None) => {
                        let error = DriverError::new(ErrorKind::Unreachable, "etcd ended a watch");
                        return Err(self.lost(&way, error));
                    }
                    Err(status) => return Err(self.lost(&way, self.connection.error_on(&way, &status))),
                },
                _ = ask.tick() => {
                    let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
                    // A full channel means that the last request was not even sent: the deadline decides.
                    let _ = sender.try_send(WatchRequest { request_union: Some(progress) });
                    continue;
                }
                () = tokio::time::sleep_until(deadline) => {
                    return Err(self.lost(&way, self.connection.silent_on(&way)));
                }
            };
            deadline = Instant::now() + PROGRESS_EVERY + PROGRESS_TIMEOUT;
            if answer.canceled {
                // History before `compact_revision` is gone: only a full read says what happened.
                if answer.compact_revision > 0 {
                    return Ok(Watched::Changed);
                }
                let why = answer.cancel_reason.trim_start_matches("etcdserver: ");
                if ["permission denied", "auth token", "auth store", "user name is empty"]
                    .iter()
                    .any(|word| why.contains(word))
                {
                    let message = format!("etcd refuses a watch of `{service}`: {why}");
                    return Ok(Watched::Refused(DriverError::new(ErrorKind::Denied, message)));
                }
                let error = DriverError::new(ErrorKind::Unreachable, format!("etcd cancelled a watch: {why}"));
                return Err(self.lost(&way, error));
            }
            // A store whose history ends before our place is another store.
            if !answer.events.is_empty() || (answer.created && revision(answer.header.as_ref()) < after) {
                tokio::time::sleep(SETTLE).await;
                return Ok(Watched::Changed);
            }
        }
    }

    /// A watch broke: go elsewhere next, and trust no cursor from before.
    fn lost(&self, way: &Way, error: DriverError) -> DriverError {
        self.breaks.fetch_add(1, Ordering::SeqCst);
        self.connection.turn_from(way);
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_back_and_others_are_not() {
        for place in
            [Place { revision: 7, breaks: 0, known: true }, Place { revision: i64::MAX, breaks: 3, known: false }]
        {
            assert_eq!(Place::of(&place.cursor()), Some(place));
        }
        for text in ["", "7", "7.x", "x.1", "?"] {
            assert_eq!(Place::of(&Cursor::new(text)), None, "{text}");
        }
    }
}
