//! Where the instances come from: `--from`.

use std::path::Path;
use std::time::Duration;

use metaroute_core::Instance;
use metaroute_registry::document::{Format, Note};
use metaroute_registry::{
    ConfigError, ConnectError, Cursor, DriverError, ErrorKind, Fleet, Registry, RegistryUrl, Scheme,
};
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
    /// How many entries could not be read.
    pub(crate) rejected: usize,
    /// Place in the registry's history.
    pub(crate) cursor: Option<Cursor>,
}

/// How long a registry may take to answer a question of the command line.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// How long saying good-bye may take once the answer is there.
pub(crate) const LEAVE_WITHIN: Duration = Duration::from_secs(1);

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
        let found = ask(&url, async |registry| registry.instances(service).await)?;
        Ok(match found {
            Some((snapshot, cursor)) => Self {
                instances: Some(snapshot.instances),
                notes: snapshot.notes,
                rejected: snapshot.rejected,
                cursor: Some(cursor),
            },
            None => Self { instances: None, notes: Vec::new(), rejected: 0, cursor: None },
        })
    }

    fn of(fleet: Fleet, service: &str) -> Self {
        let found = fleet.service(service);
        let rejected = found.map_or(0, |found| found.rejected);
        Self { instances: found.map(|found| found.instances.clone()), notes: fleet.notes, rejected, cursor: None }
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

/// Opens a registry, asks it something, and leaves it properly.
///
/// # Errors
/// Status 3 when it does not answer in time, and as [`registry_failure`].
pub(crate) fn ask<T>(
    url: &RegistryUrl,
    question: impl AsyncFnOnce(&Registry) -> Result<T, DriverError>,
) -> Result<T, Failure> {
    runtime()?.block_on(async {
        let registry = connect(url)?;
        let answer = answer(url, question(&registry)).await;
        registry.shutdown(LEAVE_WITHIN).await;
        answer
    })
}

/// What a registry answers, within the time people wait for it.
pub(crate) async fn answer<T>(
    url: &RegistryUrl,
    question: impl Future<Output = Result<T, DriverError>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(ANSWER_WITHIN, question).await {
        Ok(answer) => answer.map_err(|error| registry_failure(url, &error)),
        Err(_) => {
            let message = format!("{url} did not answer within {} s", ANSWER_WITHIN.as_secs());
            Err(Failure::new(Status::Unreachable, "registry_unreachable", message).hint(doctor(url)))
        }
    }
}

/// The registry at an address. Nothing is contacted yet. Must be called inside a runtime.
pub(crate) fn connect(url: &RegistryUrl) -> Result<Registry, Failure> {
    Registry::connect(url).map_err(|error| match error {
        ConnectError::NotBuiltIn(_) => Failure::usage("unsupported_registry", error.to_string())
            .hint("build metaroute with the feature of that registry, or give a fleet file: --from fleet.yaml"),
        other => Failure::usage("bad_registry_url", other.to_string()),
    })
}

/// What a registry at an address answered instead of what was asked for, with a way out.
pub(crate) fn registry_failure(url: &RegistryUrl, error: &DriverError) -> Failure {
    let failure = driver_failure(error);
    match error.kind() {
        _ if failure.hint.is_some() || url.scheme() == Scheme::File => failure,
        ErrorKind::Unreachable => failure.hint(doctor(url)),
        ErrorKind::Denied => {
            failure.hint("check user, password or token of the address; a secret may be given as env:NAME or file:PATH")
        }
        _ => failure,
    }
}

fn doctor(url: &RegistryUrl) -> String {
    format!("`metaroute registry doctor '{url}'` says more")
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
    Failure::new(status, code, chain(error))
}

/// An error with its causes, each once.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
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
