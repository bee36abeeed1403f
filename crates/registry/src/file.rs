//! The file registry: a fleet file that is watched.
//!
//! The file is read whole, checked whole and swapped whole. A bad edit never reaches a subscriber: the last good content
//! keeps serving and the error shows in the subscription's state, and so does a file that was deleted.
//!
//! Changes are noticed by notifications on the *folder*, because editors and configuration tools replace a file by
//! renaming (and Kubernetes swaps a symbolic link beside it), and by looking at the file's time, size and identity every
//! [`FileOptions::poll`], because network mounts send no notifications and queues overflow.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use notify::Watcher;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::document::ConfigError;
use crate::driver::{Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Seen, SeenState, Snapshot};
use crate::fleet::{Fleet, read_text};

/// How a file is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// How long to wait after a notification for more of them. An editor makes several changes per save.
    pub debounce: Duration,
    /// How often to look at the file without a notification.
    pub poll: Duration,
}

impl Default for FileOptions {
    /// 100 ms and 2 s: a person's edit seems immediate, and looking costs one system call.
    fn default() -> Self {
        Self { debounce: Duration::from_millis(100), poll: Duration::from_secs(2) }
    }
}

/// A fleet file that is watched.
#[derive(Debug)]
pub struct FileDriver {
    path: PathBuf,
    options: FileOptions,
    content: watch::Sender<Content>,
    watcher: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    task: JoinHandle<()>,
    stop: Arc<Notify>,
}

/// The newest known state of the file.
#[derive(Clone, Debug, Default)]
struct Content {
    /// Grows with every change of what follows; 0 before the first look.
    revision: u64,
    /// The last good content.
    fleet: Option<Arc<Fleet>>,
    /// What is wrong with the file now.
    problem: Option<DriverError>,
}

impl FileDriver {
    /// Watches a file. Nothing is read before the first call.
    pub fn new(path: impl Into<PathBuf>, options: FileOptions) -> Self {
        Self { path: path.into(), options, content: watch::Sender::default(), watcher: Mutex::default() }
    }

    /// Starts the task that watches, once.
    fn start(&self) {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if watcher.is_some() {
            return;
        }
        let stop = Arc::new(Notify::new());
        let task = Watching {
            path: self.path.clone(),
            options: self.options,
            content: self.content.clone(),
            seen: None,
            stop: Arc::clone(&stop),
        };
        *watcher = Some(Running { task: tokio::spawn(task.run()), stop });
    }
}

impl Drop for FileDriver {
    fn drop(&mut self) {
        if let Some(running) = self.watcher.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            running.task.abort();
        }
    }
}

impl Driver for FileDriver {
    fn capabilities(&self) -> Capabilities {
        Capabilities::read_only()
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        self.start();
        Box::pin(async {
            let mut content = self.content.subscribe();
            let content = content.wait_for(|content| content.revision > 0).await.map_err(|_| gone())?;
            match (&content.fleet, &content.problem) {
                (Some(fleet), _) => {
                    let mut names: Vec<Box<str>> = fleet.services.iter().map(|service| service.name.clone()).collect();
                    names.sort();
                    Ok(names)
                }
                (None, Some(problem)) => Err(problem.clone()),
                (None, None) => Err(gone()),
            }
        })
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        self.start();
        // A cursor of another driver means nothing here: start over.
        let after: u64 = after.and_then(|cursor| cursor.as_str().parse().ok()).unwrap_or(0);
        Box::pin(async move {
            let mut content = self.content.subscribe();
            let content = content.wait_for(|content| content.revision > after).await.map_err(|_| gone())?;
            let state = match (&content.problem, &content.fleet) {
                (Some(problem), _) if problem.kind() == ErrorKind::Unreachable => {
                    SeenState::Unreachable(problem.clone())
                }
                (Some(problem), _) => SeenState::Unusable(problem.clone()),
                (None, Some(fleet)) => match fleet.service(service) {
                    Some(found) => SeenState::Service(Snapshot {
                        instances: found.instances.clone(),
                        rejected: found.rejected,
                        notes: fleet.notes.clone(),
                    }),
                    None => SeenState::UnknownService,
                },
                (None, None) => return Err(gone()),
            };
            Ok(Seen { cursor: Cursor::new(content.revision.to_string()), state })
        })
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            let running = self.watcher.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(running) = running {
                running.stop.notify_one();
                // A task that panicked has nothing left to stop.
                let _ = running.task.await;
            }
            Ok(())
        })
    }
}

fn gone() -> DriverError {
    DriverError::new(ErrorKind::Unreachable, "the file is no longer watched")
}

/// What says that a file may have changed without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    len: u64,
    identity: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        #[cfg(unix)]
        let identity = std::os::unix::fs::MetadataExt::ino(&meta);
        #[cfg(not(unix))]
        let identity = 0;
        Some(Self { modified: meta.modified().ok(), len: meta.len(), identity })
    }
}

/// What notifications said since the last look.
#[derive(Default)]
struct Changed {
    any: Notify,
    ours: AtomicBool,
}

struct Watching {
    path: PathBuf,
    options: FileOptions,
    content: watch::Sender<Content>,
    /// The stamp at the last read; the outer `None` before the first.
    seen: Option<Option<Stamp>>,
    stop: Arc<Notify>,
}

impl Watching {
    async fn run(mut self) {
        let changed = Arc::new(Changed::default());
        let stop = Arc::clone(&self.stop);
        let mut watcher = None;
        loop {
            if watcher.is_none() {
                watcher = self.folder_watcher(&changed);
            }
            let noticed = tokio::select! {
                () = stop.notified() => return,
                noticed = self.look() => noticed,
            };
            if let Err(error) = noticed {
                tracing::warn!(path = %self.path.display(), %error, "looking at the fleet file failed");
            }
            tokio::select! {
                () = stop.notified() => return,
                () = tokio::time::sleep(self.options.poll) => {}
                () = changed.any.notified() => {
                    tokio::time::sleep(self.options.debounce).await;
                    // The same size within one tick of the clock is possible, so what was said to have changed is read;
                    // for other files of the folder (a link may have been swapped) looking is enough.
                    if changed.ours.swap(false, Ordering::AcqRel) {
                        self.seen = None;
                    }
                }
            }
        }
    }

    /// Notifications about the folder; `None` where there are none to be had, then looking has to do.
    fn folder_watcher(&self, changed: &Arc<Changed>) -> Option<notify::RecommendedWatcher> {
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let changed = Arc::clone(changed);
        let name = self.path.file_name().map(ToOwned::to_owned);
        let notice = move |event: notify::Result<notify::Event>| {
            let ours = match event {
                Ok(event) if event.kind.is_access() => return,
                Ok(event) => event.need_rescan() || event.paths.iter().any(|path| path.file_name() == name.as_deref()),
                // A lost watch.
                Err(_) => true,
            };
            changed.ours.fetch_or(ours, Ordering::AcqRel);
            changed.any.notify_one();
        };
        let mut watcher = notify::recommended_watcher(notice).ok()?;
        watcher.watch(folder, notify::RecursiveMode::NonRecursive).ok()?;
        Some(watcher)
    }

    /// Reads the file when it may have changed, and publishes what changed.
    async fn look(&mut self) -> Result<(), tokio::task::JoinError> {
        let path = self.path.clone();
        let seen = self.seen;
        let (stamp, result) = tokio::task::spawn_blocking(move || {
            let stamp = Stamp::of(&path);
            let unchanged = seen == Some(stamp) && stamp.is_some();
            (stamp, (!unchanged).then(|| read(&path)))
        })
        .await?;
        self.seen = Some(stamp);
        if let Some(result) = result {
            self.publish(result);
        }
        Ok(())
    }

    fn publish(&self, result: Result<Fleet, ConfigError>) {
        self.content.send_if_modified(|content| {
            match result {
                Ok(fleet) => {
                    if content.problem.is_none() && content.fleet.as_deref() == Some(&fleet) {
                        return false;
                    }
                    tracing::info!(path = %self.path.display(), services = fleet.services.len(), rejected = fleet.rejected(), "fleet file read");
                    content.fleet = Some(Arc::new(fleet));
                    content.problem = None;
                }
                Err(error) => {
                    if content.problem.as_ref().and_then(DriverError::config) == Some(&error) {
                        return false;
                    }
                    tracing::warn!(%error, "fleet file not usable, the last good content stays");
                    content.problem = Some(error.into());
                }
            }
            content.revision += 1;
            true
        });
    }
}

fn read(path: &Path) -> Result<Fleet, ConfigError> {
    let (text, format) = read_text(path)?;
    Fleet::parse(&path.display().to_string(), &text, format)
}

#[cfg(test)]
mod tests;
