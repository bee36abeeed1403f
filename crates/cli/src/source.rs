//! Where the instances come from: `--from`.

use std::path::Path;
use std::time::Duration;

use metaroute_core::Instance;
use metaroute_registry::document::{Format, Note};
use metaroute_registry::{ConfigError, ConnectError, DriverError, ErrorKind, Fleet, Registry, RegistryUrl, Scheme};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::expr::read_text;
use crate::failure::Failure;
use crate::output::{WARN, paint, tell};
use crate::status::Status;

/// What a registry says about one service.
pub(crate) struct Listing {
    /// `None` when the registry knows no such service.
    pub(crate) instances: Option<Vec<Instance>>,
    /// What is odd about it.
    pub(crate) notes: Vec<Note>,
}

/// How long a registry may take to answer a question of the command line.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

impl Listing {
    /// Asks the registry at an address (`-` is a fleet file on stdin).
    ///
    /// # Errors
    /// Status 3 when it cannot be reached or read, 2 when the address or its answer is no good.
    pub(crate) fn read(from: &str, service: &str) -> Result<Self, Failure> {
        if from == "-" {
            return Ok(Self::of(fleet(from)?, service));
        }
        let url = address(from)?;
        if url.scheme() == Scheme::File {
            return Ok(Self::of(fleet_at(&url)?, service));
        }
        runtime()?.block_on(async {
            let registry = Registry::connect(&url).map_err(|error| not_built_in(&error))?;
            let found = tokio::time::timeout(ANSWER_WITHIN, registry.instances(service)).await.map_err(|_| {
                let message = format!("{url} did not answer within {} s", ANSWER_WITHIN.as_secs());
                Failure::new(Status::Unreachable, "registry_unreachable", message)
            })?;
            let found = found.map_err(|error| driver_failure(&error))?;
            Ok(match found {
                Some((snapshot, _)) => Self { instances: Some(snapshot.instances), notes: snapshot.notes },
                None => Self { instances: None, notes: Vec::new() },
            })
        })
    }

    fn of(fleet: Fleet, service: &str) -> Self {
        let instances = fleet.service(service).map(|found| found.instances.clone());
        Self { instances, notes: fleet.notes }
    }

    /// Tells people what is odd.
    pub(crate) fn tell_notes(&self) {
        tell_notes(&self.notes);
    }
}

/// Tells people what is odd about files.
pub(crate) fn tell_notes(notes: &[Note]) {
    for note in notes {
        tell(format!("{}: {note}", paint(WARN, "note")));
    }
}

/// The address of a registry that this build can read. Messages never show what could be a secret.
pub(crate) fn address(text: &str) -> Result<RegistryUrl, Failure> {
    let url: RegistryUrl = text.parse().map_err(|error: metaroute_registry::url::UrlError| {
        let failure = Failure::usage("bad_registry_url", error.message());
        match error.suggestion() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })?;
    if url.scheme() == Scheme::Memory {
        return Err(Failure::usage("unsupported_registry", "`memory:` is the registry of another process")
            .hint("`metaroute up` has one; ask it over HTTP, or give a fleet file"));
    }
    Ok(url)
}

/// A fleet file by its address or path; `-` is YAML on stdin.
pub(crate) fn fleet(from: &str) -> Result<Fleet, Failure> {
    if from == "-" {
        let text = read_text(Path::new("-"))?;
        return Fleet::parse("-", &text, Format::Yaml).map_err(|error| Failure::config(&error, Status::Usage));
    }
    let url = address(from)?;
    if url.scheme() != Scheme::File {
        return Err(Failure::usage("bad_value", format!("`{url}` is no fleet file")));
    }
    fleet_at(&url)
}

fn fleet_at(url: &RegistryUrl) -> Result<Fleet, Failure> {
    fleet_file(Path::new(url.path()))
}

/// A fleet file by its path.
pub(crate) fn fleet_file(path: &Path) -> Result<Fleet, Failure> {
    Fleet::read(path).map_err(|error| registry_file_failure(&error))
}

/// A registry file that cannot be read is an unreachable registry; one that cannot be understood is bad configuration.
pub(crate) fn registry_file_failure(error: &ConfigError) -> Failure {
    let status = if error.code == "unreadable" { Status::Unreachable } else { Status::Usage };
    Failure::config(error, status)
}

/// What a registry answered instead of instances.
pub(crate) fn driver_failure(error: &DriverError) -> Failure {
    if let Some(config) = error.config() {
        return registry_file_failure(config);
    }
    let (status, code) = match error.kind() {
        ErrorKind::Unreachable => (Status::Unreachable, "registry_unreachable"),
        ErrorKind::Denied => (Status::Denied, "forbidden"),
        ErrorKind::Unsupported => (Status::Usage, "unsupported"),
        _ => (Status::Usage, "bad_registry_data"),
    };
    Failure::new(status, code, error.to_string())
}

pub(crate) fn not_built_in(error: &ConnectError) -> Failure {
    Failure::usage("unsupported_registry", error.to_string()).hint("this build reads fleet files: --from fleet.yaml")
}

/// A runtime for commands that wait for something.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Status::Bug, "internal", format!("cannot start the async runtime: {error}")))
}

/// Ctrl-C and SIGTERM. From the moment it exists they no longer end the process by themselves, so it is made before
/// anybody is told that the process is ready.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Takes the signals over. Must be called inside a runtime.
    pub(crate) fn take_over() -> Result<Self, Failure> {
        let take = |kind| {
            signal(kind)
                .map_err(|error| Failure::new(Status::Bug, "internal", format!("cannot handle signals: {error}")))
        };
        Ok(Self { interrupt: take(SignalKind::interrupt())?, terminate: take(SignalKind::terminate())? })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
