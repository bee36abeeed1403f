//! Following the document.
//!
//! A watcher always knows the latest good topology and nothing else: readers see one value replaced by the next, never a
//! queue of changes. After a gap (the store forgot what happened in between) it lists again, so what disappeared
//! meanwhile disappears here too. A document that is invalid, or looks like an accident nobody forced, is reported and
//! not taken: the last good one stays in force.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{StoreError, TopologyStore};
use crate::topology::{Topology, shrinks};

/// First and longest pause after an error of the store.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What a watcher knows.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Watched {
    /// The last good topology; `None` before the first.
    pub topology: Option<Arc<Topology>>,
    /// Why the stored document is not in force, or the store could not be read; `None` when all is well.
    pub trouble: Option<String>,
}

/// The receiving side; clones see the same values.
#[derive(Clone, Debug)]
pub struct Watcher(watch::Receiver<Watched>);

impl Watcher {
    /// A watcher and the task that feeds it. The task runs until every clone of the watcher is dropped; whoever spawns
    /// it owns it.
    pub fn start(store: Arc<dyn TopologyStore>) -> (Watcher, impl Future<Output = ()> + Send + 'static) {
        let (sender, receiver) = watch::channel(Watched::default());
        (Watcher(receiver), follow(store, sender))
    }

    /// A watcher of something that never changes.
    pub fn fixed(topology: Topology) -> Watcher {
        let topology = Some(Arc::new(topology));
        Watcher(watch::channel(Watched { topology, trouble: None }).1)
    }

    /// The latest good topology.
    pub fn topology(&self) -> Option<Arc<Topology>> {
        self.0.borrow().topology.clone()
    }

    /// What is wrong, if anything.
    pub fn trouble(&self) -> Option<String> {
        self.0.borrow().trouble.clone()
    }

    /// Waits for a topology with at least this epoch; the caller sets the time limit. `None` when the feeding task
    /// ended.
    pub async fn at_least(&self, epoch: u64) -> Option<Arc<Topology>> {
        let mut receiver = self.0.clone();
        let reached = |watched: &Watched| watched.topology.as_ref().is_some_and(|topology| topology.epoch() >= epoch);
        let watched = receiver.wait_for(reached).await.ok()?;
        watched.topology.clone()
    }

    /// Waits for the next change of what is known; `false` when the feeding task ended.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

async fn follow(store: Arc<dyn TopologyStore>, sender: watch::Sender<Watched>) {
    let mut pause = PAUSE.0;
    loop {
        let step = async {
            let snapshot = store.load().await?;
            let seen = snapshot.as_ref().map(|snapshot| snapshot.revision);
            if let Some(snapshot) = snapshot {
                take(&sender, snapshot.document);
            }
            store.changed(seen).await
        };
        let outcome = tokio::select! {
            () = sender.closed() => return,
            outcome = step => outcome,
        };
        match outcome {
            Ok(()) => pause = PAUSE.0,
            // Changes were forgotten; the loop lists again and watches from there.
            Err(StoreError::Gap) => tracing::info!("topology is listed again after a gap"),
            Err(error) => {
                trouble(&sender, error.to_string());
                tokio::select! {
                    () = sender.closed() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
}

fn take(sender: &watch::Sender<Watched>, document: crate::topology::Document) {
    let known = sender.borrow().topology.clone();
    if let Some(known) = &known {
        if *known.document() == document {
            if sender.borrow().trouble.is_some() {
                sender.send_modify(|watched| watched.trouble = None);
            }
            return;
        }
        if document.epoch < known.epoch() {
            return trouble(sender, format!("stored epoch {} is below {}", document.epoch, known.epoch()));
        }
        let forced = document.forced_over.is_some_and(|over| over >= known.epoch());
        if !forced && let Some(reason) = shrinks(known, &document) {
            return trouble(sender, reason);
        }
    }
    let forced_empty = document.groups.is_empty() && document.forced_over.is_some();
    let checked = if forced_empty { Topology::with_gaps(document) } else { Topology::new(document) };
    match checked {
        Ok(topology) => {
            sender.send_replace(Watched { topology: Some(Arc::new(topology)), trouble: None });
        }
        Err(defect) => trouble(sender, defect.to_string()),
    }
}

fn trouble(sender: &watch::Sender<Watched>, reason: String) {
    tracing::error!(%reason, "topology not taken; the last good one stays in force");
    sender.send_modify(|watched| watched.trouble = Some(reason));
}
