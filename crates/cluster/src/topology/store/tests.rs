use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::sync::Notify;

use super::*;
use crate::placement::Span;
use crate::slots::SlotSet;
use crate::topology::{OverrideEntry, OwnerEntry};

/// A store with compaction, as etcd has it: a watch from before the compacted revision fails with a gap.
#[derive(Default)]
struct Compacting {
    state: Mutex<State>,
    changed: Notify,
    /// Watches wait here while a test keeps them from running.
    paused: tokio::sync::RwLock<()>,
}

#[derive(Default)]
struct State {
    revision: u64,
    document: Option<Document>,
    history: VecDeque<Document>,
    compacted: u64,
    gaps: u32,
}

impl Compacting {
    fn force(&self, document: Document) {
        let mut state = self.state.lock().expect("no panic");
        state.revision += 1;
        state.history.push_back(document.clone());
        state.document = Some(document);
        drop(state);
        self.changed.notify_waiters();
    }

    fn compact(&self) {
        let mut state = self.state.lock().expect("no panic");
        state.compacted = state.revision;
    }
}

impl TopologyStore for Compacting {
    fn load(&self) -> BoxFuture<'_, Result<Option<Snapshot>, StoreError>> {
        Box::pin(async move {
            let _running = self.paused.read().await;
            let state = self.state.lock().expect("no panic");
            let revision = Revision(state.revision);
            Ok(state.document.clone().map(|document| Snapshot { revision, document }))
        })
    }

    fn replace(&self, expected: Option<Revision>, document: Document) -> BoxFuture<'_, Result<Revision, StoreError>> {
        Box::pin(async move {
            let current = self.state.lock().expect("no panic").revision;
            if expected.map_or(0, |revision| revision.0) != current {
                let expected = expected.map(|revision| revision.0);
                return Err(StoreError::EpochMismatch { expected, current: Some(current) });
            }
            self.force(document);
            Ok(Revision(current + 1))
        })
    }

    fn history(&self) -> BoxFuture<'_, Result<Vec<HistoryEntry>, StoreError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn at_epoch(&self, epoch: u64) -> BoxFuture<'_, Result<Document, StoreError>> {
        Box::pin(async move {
            let state = self.state.lock().expect("no panic");
            let found = state.history.iter().find(|document| document.epoch == epoch);
            found.cloned().ok_or_else(|| StoreError::NotFound(epoch.to_string()))
        })
    }

    fn changed(&self, seen: Option<Revision>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let seen = seen.map_or(0, |revision| revision.0);
            loop {
                let notified = self.changed.notified();
                let _running = self.paused.read().await;
                {
                    let mut state = self.state.lock().expect("no panic");
                    if seen < state.compacted {
                        state.gaps += 1;
                        return Err(StoreError::Gap);
                    }
                    if seen != state.revision {
                        return Ok(());
                    }
                }
                drop(_running);
                notified.await;
            }
        })
    }
}

async fn apply(store: &dyn TopologyStore, document: Document, options: Apply) -> Result<Accepted, StoreError> {
    Prepared::new(store, document, options).await?.commit(store).await
}

async fn started(groups: u32, shards: u32) -> (tempfile::TempDir, FileStore, Topology) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = FileStore::new(folder.path().join("topology"));
    let document = Topology::initial(groups, shards).expect("legal").document().clone();
    let accepted = apply(&store, document, Apply::default()).await.expect("first");
    (folder, store, accepted.topology)
}

#[tokio::test]
async fn what_is_stored_is_what_is_loaded() {
    let (_folder, store, topology) = started(2, 3).await;
    let loaded = store.load().await.expect("readable").expect("there");
    assert_eq!(loaded.document, *topology.document());
    assert_eq!(topology.epoch(), 1);
    // Another handle on the same folder sees the same.
    let other = FileStore::new(store.folder());
    assert_eq!(other.load().await.expect("readable").expect("there").document, *topology.document());
}

#[tokio::test]
async fn only_what_changes_hands_gets_the_new_epoch() {
    let (_folder, store, topology) = started(1, 2).await;
    let mut document = topology.document().clone();
    let moved: SlotSet = [0].into_iter().collect();
    document.groups[0].owners[0].slots = document.groups[0].owners[0].slots.difference(&moved);
    document.groups[0].owners[1].slots.extend_from(&moved);
    let accepted = apply(&store, document, Apply { expected: Some(1), force: false }).await.expect("valid");
    let group = &accepted.topology.groups()[0];
    assert_eq!(accepted.topology.epoch(), 2);
    assert_eq!(group.owner(0).map(|owner| (owner.index, owner.epoch)), Some((1, 2)));
    assert_eq!(group.owner(1).map(|owner| (owner.index, owner.epoch)), Some((1, 1)));
    assert_eq!(group.owner(2).map(|owner| (owner.index, owner.epoch)), Some((0, 1)));
    assert_eq!(accepted.topology.tenant(5).expect("placed").epoch, 1);
    assert_eq!(accepted.plan.slots_moved(), 1);
}

#[tokio::test]
async fn the_second_of_two_changes_to_one_state_is_refused() {
    let (_folder, store, topology) = started(1, 2).await;
    let with = |tenant| {
        let mut document = topology.document().clone();
        let span = Some(Span { base: 0, width: 1 });
        document.tenants.overrides.push(OverrideEntry { tenant, group: "g0".into(), epoch: 0, span });
        document
    };
    let one = Prepared::new(&store, with(1), Apply::default()).await.expect("valid");
    let two = Prepared::new(&store, with(2), Apply::default()).await.expect("valid");
    one.commit(&store).await.expect("first");
    let error = two.commit(&store).await.expect_err("second");
    assert!(matches!(error, StoreError::EpochMismatch { expected: Some(1), current: Some(2) }), "{error}");
    let error = Prepared::new(&store, with(3), Apply { expected: Some(1), force: false }).await.expect_err("stale");
    assert!(matches!(error, StoreError::EpochMismatch { .. }));
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let (_folder, store, topology) = started(1, 2).await;
    let mut document = topology.document().clone();
    document.groups[0].owners[0].shard = "s1".into();
    let prepared = Prepared::new(&store, document, Apply::default()).await.expect("valid");
    assert_eq!(prepared.plan.slots_moved(), 2048);
    assert_eq!(prepared.after.epoch(), 2);
    drop(prepared);
    assert_eq!(store.load().await.expect("readable").expect("there").document, *topology.document());
}

/// Case 14: an empty or shrinking document is refused unless forced against the exact epoch.
#[tokio::test]
async fn case_14_an_empty_document_is_refused_unless_forced() {
    let (_folder, store, topology) = started(20, 2).await;
    let mut empty = topology.document().clone();
    empty.groups.clear();
    empty.tenants = Default::default();
    for options in [Apply::default(), Apply { expected: Some(1), force: false }, Apply { expected: None, force: true }]
    {
        let error = apply(&store, empty.clone(), options).await.expect_err("refused");
        assert!(matches!(error, StoreError::Shrinks { .. }), "{options:?}: {error}");
    }
    let error = apply(&store, empty.clone(), Apply { expected: Some(7), force: true }).await.expect_err("refused");
    assert!(matches!(error, StoreError::EpochMismatch { .. }));
    assert_eq!(
        store.load().await.expect("readable").expect("there").document.groups.len(),
        20,
        "the last good is kept"
    );
    let accepted = apply(&store, empty, Apply { expected: Some(1), force: true }).await.expect("forced");
    assert_eq!((accepted.topology.groups().len(), accepted.topology.epoch()), (0, 2));
    assert_eq!(accepted.topology.document().forced_over, Some(1));
}

#[tokio::test]
async fn case_14_losing_a_shard_is_refused_too() {
    let (_folder, store, topology) = started(1, 3).await;
    let mut document = topology.document().clone();
    let group = &mut document.groups[0];
    group.shards.pop();
    let OwnerEntry { slots, .. } = group.owners.pop().expect("three");
    group.owners[0].slots.extend_from(&slots);
    let error = apply(&store, document.clone(), Apply::default()).await.expect_err("refused");
    assert_eq!(error.to_string(), "refused: 1 shards would disappear: g0/s2");
    apply(&store, document, Apply { expected: Some(1), force: true }).await.expect("forced");
}

#[tokio::test]
async fn force_does_not_make_an_incomplete_document_valid() {
    let (_folder, store, topology) = started(1, 3).await;
    let mut document = topology.document().clone();
    document.groups[0].owners.pop();
    let error = apply(&store, document, Apply { expected: Some(1), force: true }).await.expect_err("gap");
    assert!(matches!(error, StoreError::Invalid(defect) if defect.code == "gap"));
}

#[tokio::test]
async fn rolling_back_is_a_new_epoch_with_the_old_content() {
    let (_folder, store, first) = started(1, 2).await;
    let mut document = first.document().clone();
    document.groups[0].owners[0].shard = "s1".into();
    apply(&store, document, Apply::default()).await.expect("valid");
    let back = Prepared::rollback(&store, 1, Apply { expected: Some(2), force: false }).await.expect("kept");
    let back = back.commit(&store).await.expect("stored").topology;
    assert_eq!(back.epoch(), 3);
    assert_eq!(back.groups()[0].owned_by(0), first.groups()[0].owned_by(0));
    assert_eq!(back.groups()[0].owner(0).expect("owned").epoch, 3, "it changed hands again");
    assert_eq!(back.groups()[0].owner(1).expect("owned").epoch, 1, "it never changed hands");
    let epochs: Vec<u64> = store.history().await.expect("readable").iter().map(|entry| entry.epoch).collect();
    assert_eq!(epochs, [3, 2, 1]);
    assert!(matches!(Prepared::rollback(&store, 9, Apply::default()).await, Err(StoreError::NotFound(_))));
}

#[tokio::test]
async fn history_is_bounded() {
    let (_folder, store, topology) = started(1, 1).await;
    for _ in 0..HISTORY_MAX + 5 {
        apply(&store, topology.document().clone(), Apply::default()).await.expect("valid");
    }
    let history = store.history().await.expect("readable");
    assert_eq!(history.len(), HISTORY_MAX);
    assert_eq!(history[0].epoch, HISTORY_MAX as u64 + 6);
}

#[tokio::test]
async fn a_damaged_file_is_an_error_and_not_an_empty_topology() {
    let (_folder, store, _) = started(1, 1).await;
    std::fs::write(store.folder().join("current.json"), "{\"version\": 1, \"gro").expect("writable");
    assert!(matches!(store.load().await, Err(StoreError::Damaged(_))));
}

async fn wait_for(watcher: &Watcher, what: impl Fn(&Watched) -> bool) -> Watched {
    let mut receiver = watcher.clone();
    loop {
        let watched = Watched { topology: receiver.topology(), trouble: receiver.trouble() };
        if what(&watched) {
            return watched;
        }
        assert!(receiver.changed().await, "the watcher ended");
    }
}

#[tokio::test]
async fn a_watcher_follows_changes_and_ends_with_its_readers() {
    let (_folder, store, topology) = started(1, 2).await;
    let (watcher, follow) = Watcher::start(Arc::new(store.clone()));
    let task = tokio::spawn(follow);
    wait_for(&watcher, |watched| watched.topology.is_some()).await;
    apply(&store, topology.document().clone(), Apply::default()).await.expect("valid");
    assert_eq!(watcher.at_least(2).await.expect("running").epoch(), 2);
    drop(watcher);
    task.await.expect("ended");
}

/// Case 15: the watcher was paused past a compaction; it lists again and a group deleted meanwhile disappears.
#[tokio::test]
async fn case_15_a_gap_is_followed_by_a_full_list() {
    let store = Arc::new(Compacting::default());
    let three = Topology::initial(3, 1).expect("legal").document().clone();
    store.force(three.clone());
    let (watcher, follow) = Watcher::start(store.clone());
    let task = tokio::spawn(follow);
    wait_for(&watcher, |watched| watched.topology.is_some()).await;
    let paused = store.paused.write().await;
    let mut two = Topology::initial(2, 1).expect("legal").document().clone();
    for epoch in 2..10 {
        two.epoch = epoch;
        two.forced_over = Some(epoch - 1);
        store.force(two.clone());
    }
    store.compact();
    drop(paused);
    let watched = wait_for(&watcher, |watched| watched.topology.as_ref().is_some_and(|t| t.epoch() == 9)).await;
    assert_eq!(watched.topology.expect("there").groups().len(), 2);
    two.epoch = 10;
    store.force(two);
    assert_eq!(watcher.at_least(10).await.expect("running").epoch(), 10, "it watches on from the list");
    task.abort();
}

#[tokio::test]
async fn case_14_a_watcher_keeps_the_last_good_one() {
    let store = Arc::new(Compacting::default());
    let good = Topology::initial(20, 1).expect("legal").document().clone();
    store.force(good.clone());
    let (watcher, follow) = Watcher::start(store.clone());
    let task = tokio::spawn(follow);
    wait_for(&watcher, |watched| watched.topology.is_some()).await;
    let mut empty = good.clone();
    empty.epoch = 2;
    empty.groups.clear();
    empty.tenants = Default::default();
    store.force(empty.clone());
    let watched = wait_for(&watcher, |watched| watched.trouble.is_some()).await;
    assert_eq!(watched.topology.expect("kept").groups().len(), 20);
    let mut overlapping = good.clone();
    overlapping.epoch = 3;
    overlapping.tenants.buckets[0].buckets.insert(1);
    store.force(overlapping);
    let watched =
        wait_for(&watcher, |watched| watched.trouble.as_ref().is_some_and(|trouble| trouble.contains("two owners")))
            .await;
    assert_eq!(watched.topology.expect("kept").groups().len(), 20);
    empty.epoch = 4;
    empty.forced_over = Some(3);
    store.force(empty);
    assert_eq!(watcher.at_least(4).await.expect("running").groups().len(), 0, "forced over a later epoch");
    task.abort();
}
