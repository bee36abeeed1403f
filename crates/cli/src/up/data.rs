//! The rows of `metaroute up`: shards, router and stores in this process, over one data folder.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use metaroute_core::InstanceId;
use metaroute_registry::{Registration, Registry};
use metaroute_server::role::{RoleError, Standalone};
use metaroute_server::scan::{self, Progress, ScanError, ScanOptions, ScanTenant, Scanned};
use metaroute_server::{LocalOptions, OpenError, Service, ServiceOptions, WantedShape, stores};
use metaroute_store::Durability;
use tokio::task::JoinHandle;

use crate::failure::Failure;
use crate::output::tell;
use crate::source::chain;
use crate::status::Status;

/// How long a start waits for shards, so that most mistakes end it before it says that it is ready.
const SHARDS_WITHIN: Duration = Duration::from_millis(1_500);

#[derive(Args, Debug)]
pub(crate) struct DataArgs {
    /// Folder of the rows; without it a temporary one that is gone afterwards
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Server groups; a new folder takes 2, an old one what it was made with
    #[arg(long, value_name = "N")]
    groups: Option<u32>,
    /// Shards of each group; a new folder takes 2, an old one what it was made with
    #[arg(long, value_name = "N")]
    shards: Option<u32>,
    /// Declarations of further stores
    #[arg(long, value_name = "FILE")]
    stores: Option<PathBuf>,
    /// Fill the store file_metadata with the files of this tree; what has vanished since the last time is deleted
    #[arg(long, value_name = "DIR")]
    scan: Option<PathBuf>,
    /// Whose a scanned file is: its owner's, or its top folder's
    #[arg(long, value_enum, value_name = "RULE", default_value_t, requires = "scan")]
    scan_tenant: TenantRule,
    /// Also hash the contents of scanned files (BLAKE3); reads every file
    #[arg(long, requires = "scan")]
    scan_hash: bool,
    /// When a write is acknowledged: journal survives a killed process, fsync also a power failure
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    durability: Acknowledged,
    /// Cost units a second that all tenants share fairly; more is refused with 429
    #[arg(long, value_name = "N", value_parser = positive)]
    capacity: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum TenantRule {
    /// The owner's user id
    #[default]
    Owner,
    /// A number made of the top folder's name
    TopDir,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Acknowledged {
    #[default]
    Journal,
    Fsync,
}

fn positive(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0).ok_or_else(|| "must be a number above 0".to_owned())
}

/// The rows, being served.
pub(crate) struct Data {
    standalone: Standalone,
    /// Removed at the end.
    temporary: Option<tempfile::TempDir>,
    scan: Option<ScanOptions>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl DataArgs {
    /// Opens the data folder. Shards that take long go on opening in the background.
    pub(crate) async fn open(&self) -> Result<Data, Failure> {
        let declared = match &self.stores {
            None => Vec::new(),
            Some(path) => stores::read(path).map_err(|error| Failure::config(&error, Status::Usage))?,
        };
        let scan = self.scan.as_ref().map(|root| ScanOptions {
            root: root.clone(),
            tenant: match self.scan_tenant {
                TenantRule::Owner => ScanTenant::Owner,
                TenantRule::TopDir => ScanTenant::TopDir,
            },
            hash: self.scan_hash,
        });
        if let Some(scan) = &scan {
            scan.checked_root().map_err(|error| Failure::usage("bad_value", chain(&error)))?;
        }
        let temporary = match &self.data {
            Some(_) => None,
            None => Some(tempfile::Builder::new().prefix("metaroute-").tempdir().map_err(|error| {
                Failure::usage("no_data_folder", format!("a temporary folder cannot be made: {error}"))
                    .hint("--data DIR names one")
            })?),
        };
        let folder = match (&self.data, &temporary) {
            (Some(folder), _) => folder.clone(),
            (None, Some(folder)) => folder.path().to_owned(),
            (None, None) => return Err(Failure::new(Status::Bug, "internal", "no data folder")),
        };
        let options = LocalOptions {
            shape: WantedShape { groups: self.groups, shards: self.shards },
            stores: stores::with_built_in(declared),
            durability: match self.durability {
                Acknowledged::Journal => Durability::Journal,
                Acknowledged::Fsync => Durability::Fsync,
            },
            ..LocalOptions::new(folder)
        };
        let service = ServiceOptions { capacity: self.capacity, ..ServiceOptions::default() };
        let standalone = Standalone::open(options, service).await.map_err(|error| open_failure(&error))?;
        match tokio::time::timeout(SHARDS_WITHIN, standalone.local().opened()).await {
            Ok(Err(error)) => return Err(open_failure(&error)),
            Ok(Ok(())) => {}
            Err(_) => tell("shards are still opening; /readyz says when they are"),
        }
        Ok(Data { standalone, temporary, scan, tasks: Mutex::default() })
    }
}

fn open_failure(error: &OpenError) -> Failure {
    let (code, status) = match error {
        OpenError::OtherShape { .. } => ("other_shape", Status::Usage),
        OpenError::Shape(_) => ("bad_value", Status::Usage),
        OpenError::Locked(_) => ("data_in_use", Status::Usage),
        _ => ("data_unusable", Status::Usage),
    };
    let failure = Failure::new(status, code, chain(error));
    match error {
        OpenError::OtherShape { stored, .. } => failure.hint(format!(
            "leave the flags out, or give --groups {} --shards {}; another shape needs another folder",
            stored.groups, stored.shards
        )),
        OpenError::Locked(_) => failure.hint("another metaroute serves it; end that one, or name another folder"),
        _ => failure,
    }
}

/// What went wrong with a role, as a command's failure.
pub(crate) fn role_failure(error: &RoleError) -> Failure {
    match error {
        RoleError::Config(error) => Failure::config(error, Status::Usage),
        RoleError::Listen { .. } => Failure::usage("cannot_listen", chain(error)),
        RoleError::Registry(_) => Failure::usage("unsupported_registry", chain(error)),
        RoleError::Open(error) => open_failure(error),
        _ => Failure::usage("bad_config", chain(error)),
    }
}

impl Data {
    /// What the HTTP API about rows stands on.
    pub(crate) fn service(&self) -> &Arc<Service> {
        self.standalone.service()
    }

    /// One line about where the rows are.
    pub(crate) fn about(&self) -> String {
        let local = self.standalone.local();
        let folder = local.data().display();
        let what = match &self.temporary {
            Some(_) => format!("rows are kept in {folder} until this ends; --data DIR keeps them"),
            None => format!("rows are kept in {folder}"),
        };
        format!("{what} ({})", local.shape())
    }

    /// Begins what runs beside the server: the scan, and the shards' entry in a registry that takes one.
    pub(crate) fn start(&self, registry: &Registry) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(options) = self.scan.clone() {
            let service = Arc::clone(self.service());
            let local = Arc::clone(self.standalone.local());
            tasks.push(tokio::spawn(async move {
                if let Err(error) = local.opened().await {
                    tell(format!("nothing is scanned: {}", chain(&error)));
                    return;
                }
                match scanned(&service, options).await {
                    Ok(done) => tell(summary(&done)),
                    Err(error) => tell(format!("the scan ended early: {}", scan_failure(&error))),
                }
            }));
        }
        if registry.capabilities().register {
            let local = Arc::clone(self.standalone.local());
            let registry = registry.clone();
            tasks.push(tokio::spawn(async move {
                let mut changes = local.changes();
                let mut known: HashMap<InstanceId, Registration> = HashMap::new();
                loop {
                    let instances = local.instances();
                    known.retain(|id, _| instances.iter().any(|instance| instance.id == *id));
                    for instance in instances {
                        let id = instance.id.clone();
                        let told = match known.get(&id) {
                            Some(registration) => registration.update(instance),
                            None => registry.register(metaroute_server::SERVICE, instance).map(|registration| {
                                known.insert(id, registration);
                            }),
                        };
                        if let Err(error) = told {
                            tracing::warn!(%error, "a shard is not registered");
                        }
                    }
                    if changes.changed().await.is_err() {
                        return;
                    }
                }
            }));
        }
    }

    /// Finishes what has begun, flushes and closes the stores; a temporary folder is removed.
    pub(crate) async fn shutdown(&self, within: Duration) {
        for task in std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner)) {
            task.abort();
        }
        self.standalone.shutdown(within).await;
        // The folder itself goes with the last handle on it.
    }
}

async fn scanned(service: &Arc<Service>, options: ScanOptions) -> Result<Scanned, ScanError> {
    let store = service.store("file_metadata").cloned().ok_or(ScanError::OtherStore)?;
    let (sender, mut receiver) = tokio::sync::watch::channel(Progress::default());
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(100));
    let root = options.root.display().to_string();
    let shown = bar.clone();
    let drawing = tokio::spawn(async move {
        while receiver.changed().await.is_ok() {
            let progress = receiver.borrow_and_update().clone();
            shown.set_message(line(&root, &progress));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let done = scan::run(service.router().clone(), store, options, sender).await;
    drawing.abort();
    bar.finish_and_clear();
    done
}

fn line(root: &str, progress: &Progress) -> String {
    let Progress { found, written, folders_left, deleted, walked, .. } = progress;
    if *walked {
        return format!("{root}: {written} rows written, {deleted} of vanished files deleted");
    }
    format!("{root}: {found} files found, {written} rows written, {folders_left} folders to go")
}

fn summary(done: &Scanned) -> String {
    let seconds = done.took.as_secs_f64();
    let rate = if seconds > 0.0 { done.written as f64 / seconds } else { 0.0 };
    let mut text = format!(
        "scanned: {} rows written in {seconds:.1} s ({rate:.0} a second), {} of vanished files deleted",
        done.written, done.deleted
    );
    if !done.unreadable.is_empty() {
        text.push_str(&format!("; {} folders could not be read", done.unreadable.len()));
    }
    for (tenant, files, name) in &done.tenants {
        let name = name.as_ref().map(|name| format!("  {name}")).unwrap_or_default();
        text.push_str(&format!("\n  user_id {tenant}: {files} files{name}"));
    }
    text
}

fn scan_failure(error: &ScanError) -> String {
    chain(error)
}
