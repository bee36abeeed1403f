//! Watches: events from a version on, bookmarks, and their end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use super::refusal::Refusal;
use super::selector::selected;
use super::store::Change;
use super::{GROUP, KIND, Seen, Shared};

/// One watch that is open.
struct Following {
    shared: Arc<Shared>,
    namespace: String,
    fits: Box<dyn Fn(&Value) -> bool + Send + Sync>,
    from: u64,
    bookmarks: bool,
    until: Instant,
    /// From the moment it counts as open, so that no call to end it is missed.
    ended: watch::Receiver<u64>,
    out: mpsc::Sender<Result<Bytes, Infallible>>,
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut inner = self.shared.inner();
        inner.open_watches = inner.open_watches.saturating_sub(1);
    }
}

/// Answers with a stream of events.
pub(super) fn begin_watch(shared: &Arc<Shared>, seen: &Seen, namespace: &str) -> Result<Response, Refusal> {
    let names = ["labelSelector", "fieldSelector", "watch", "resourceVersion", "timeoutSeconds", "allowWatchBookmarks"];
    seen.has_only(&names)?;
    let fits = selected(seen)?;
    let number = |name: &str| seen.query.get(name).map(|text| text.parse::<u64>()).transpose();
    let from = number("resourceVersion").map_err(|_| Refusal::bad("resourceVersion: Invalid value"))?;
    let seconds = number("timeoutSeconds").map_err(|_| Refusal::bad("timeoutSeconds: Invalid value"))?.unwrap_or(1800);
    let mut inner = shared.inner();
    let from = from.unwrap_or(inner.store.version);
    if from > inner.store.version {
        let message = format!("Too large resource version: {from}, current: {}", inner.store.version);
        return Err(Refusal::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message).after(1));
    }
    let gone = from < inner.store.compacted;
    if gone && inner.behaviour.gone_by_status {
        return Err(Refusal::gone());
    }
    let (out, events) = mpsc::channel(16);
    let ended = shared.ended.subscribe();
    inner.open_watches += 1;
    let nervous = inner.behaviour.nervous;
    drop(inner);
    let following = Following {
        shared: Arc::clone(shared),
        namespace: namespace.to_owned(),
        fits: Box::new(fits),
        from,
        bookmarks: seen.query.get("allowWatchBookmarks").is_some_and(|value| value == "true"),
        until: Instant::now() + Duration::from_secs(if nervous { 0 } else { seconds }),
        ended,
        out,
    };
    tokio::spawn(async move {
        if gone {
            let _ = following.send("ERROR", &Refusal::gone().status()).await;
        } else {
            following.run().await;
        }
    });
    let mut response = Response::new(Body::from_stream(ReceiverStream::new(events)));
    response.headers_mut().insert("content-type", "application/json".parse().expect("a header"));
    Ok(response)
}

impl Following {
    async fn send(&self, kind: &str, object: &Value) -> bool {
        let line = format!("{}\n", json!({ "type": kind, "object": object }));
        self.out.send(Ok(line.into())).await.is_ok()
    }

    async fn bookmark(&self, version: u64) -> bool {
        let object = json!({
            "kind": KIND, "apiVersion": format!("{GROUP}/v1"), "endpoints": null, "addressType": "",
            "metadata": {"resourceVersion": version.to_string(), "creationTimestamp": null},
        });
        if self.bookmarks {
            if !self.send("BOOKMARK", &object).await {
                return false;
            }
            let mut inner = self.shared.inner();
            inner.bookmarked = inner.bookmarked.max(version);
        }
        true
    }

    async fn run(mut self) {
        let mut changed = self.shared.changed.subscribe();
        loop {
            let (changes, every, upto) = {
                let inner = self.shared.inner();
                let mine = |change: &&Change| change.version > self.from && change.namespace == self.namespace;
                let changes: Vec<Change> = inner.store.history.iter().filter(mine).cloned().collect();
                (changes, inner.behaviour.bookmark_every, inner.store.version)
            };
            // What came after its end is not told.
            if self.ended.has_changed().is_ok_and(|ended| ended) {
                return;
            }
            for change in changes {
                let before = change.before.filter(|object| (self.fits)(object));
                let after = change.after.filter(|object| (self.fits)(object));
                let (kind, mut object) = match (before, after) {
                    (None, None) => continue,
                    (None, Some(object)) => ("ADDED", object),
                    (Some(_), Some(object)) => ("MODIFIED", object),
                    (Some(object), None) => ("DELETED", object),
                };
                // The last state of a deleted object carries the version of the deletion.
                object["metadata"]["resourceVersion"] = change.version.to_string().into();
                if !self.send(kind, &object).await {
                    return;
                }
            }
            self.from = upto;
            let pause = every.unwrap_or(Duration::from_secs(3600));
            tokio::select! {
                _ = changed.changed() => {}
                _ = self.ended.changed() => return,
                () = self.out.closed() => return,
                () = tokio::time::sleep_until(self.until.into()) => return,
                () = tokio::time::sleep(pause) => {
                    if !self.bookmark(upto).await {
                        return;
                    }
                }
            }
        }
    }
}
