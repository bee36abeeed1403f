//! Where the instances come from: `--from`.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use metaroute::seata::{NoPlace, RegistryType};
use metaroute_core::Instance;
use metaroute_registry::document::{Format, Note};
use metaroute_registry::several::Combine;
use metaroute_registry::{
    ConfigError, ConnectError, Cursor, DriverError, ErrorKind, Fleet, Options, Registry, RegistryUrl, Scheme, Snapshot,
};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::expr::read_text;
use crate::failure::Failure;
use crate::output::{WARN, paint, tell};
use crate::status::Status;

/// What a registry says about one service; by default that it knows no such service.
#[derive(Default)]
pub(crate) struct Listing {
    /// `None` when the registry knows no such service.
    pub(crate) instances: Option<Vec<Instance>>,
    /// What is odd about it.
    pub(crate) notes: Vec<Note>,
    /// How many entries could not be read.
    pub(crate) rejected: usize,
    /// Place in the registry's history.
    pub(crate) cursor: Option<Cursor>,
    /// How old it is and why, where the registry does not confirm it.
    pub(crate) stale: Option<(Duration, String)>,
}

/// Where to ask: one registry, several as one, or a fleet file on stdin.
pub(crate) struct Source {
    /// Empty for stdin.
    urls: Vec<RegistryUrl>,
    combine: Combine,
}

impl Source {
    /// What stands after `--from`, each an address, a path, several of them with commas, or `-`.
    ///
    /// # Errors
    /// Status 2 for what is no address.
    pub(crate) fn parse(from: &[String], combine: Combine) -> Result<Self, Failure> {
        if from == ["-"] {
            return Ok(Self { urls: Vec::new(), combine });
        }
        let mut urls = Vec::new();
        for text in from {
            urls.extend(addresses(text)?);
        }
        Ok(Self { urls, combine })
    }

    /// One address.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(crate) fn one(from: &str) -> Result<Self, Failure> {
        Self::parse(&[from.to_owned()], Combine::default())
    }

    /// Registries whose addresses are known.
    pub(crate) fn of(urls: Vec<RegistryUrl>) -> Self {
        Self { urls, combine: Combine::default() }
    }

    /// The addresses; none for stdin.
    pub(crate) fn urls(&self) -> &[RegistryUrl] {
        &self.urls
    }

    /// The fleet, where the source is one file.
    pub(crate) fn fleet(&self) -> Result<Option<Fleet>, Failure> {
        match self.urls.as_slice() {
            [] => fleet("-").map(Some),
            [url] if url.scheme() == Scheme::File => fleet_at(url).map(Some),
            _ => Ok(None),
        }
    }

    /// The registry. Nothing is contacted yet. Must be called inside a runtime.
    ///
    /// # Errors
    /// Status 2 when this build has none of that kind, a parameter is unknown, or it is stdin.
    pub(crate) fn connect(&self) -> Result<Registry, Failure> {
        self.connect_with(Options::default())
    }

    /// The same; the lists it gives are kept on disk, and serve while it cannot be reached.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub(crate) fn connect_keeping(&self) -> Result<Registry, Failure> {
        self.connect_with(Options { cache_dir: Options::default_cache_dir(), ..Options::default() })
    }

    fn connect_with(&self, options: Options) -> Result<Registry, Failure> {
        if self.urls.is_empty() {
            return Err(Failure::usage("bad_value", "a fleet file on stdin cannot be followed")
                .hint("give its path, so that changes can be seen"));
        }
        Registry::connect_all(&self.urls, self.combine, options).map_err(|error| match error {
            ConnectError::NotBuiltIn(_) => Failure::usage("unsupported_registry", error.to_string())
                .hint("build metaroute with the feature of that registry, or give a fleet file"),
            other => Failure::usage("bad_registry_url", other.to_string()),
        })
    }
}

/// Secrets hidden.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, url) in self.urls.iter().enumerate() {
            write!(f, "{}{url}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// How long a registry may take to answer a question of the command line.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// How long saying good-bye may take once the answer is there.
pub(crate) const LEAVE_WITHIN: Duration = Duration::from_secs(1);

impl Listing {
    /// Asks the registry of a source.
    ///
    /// # Errors
    /// Status 3 when it cannot be reached or read, 2 when the address or its answer is no good.
    pub(crate) fn read(source: &Source, service: &str) -> Result<Self, Failure> {
        if let Some(fleet) = source.fleet()? {
            return Ok(Self::of(fleet, service));
        }
        let found = ask(source, async |registry| registry.instances(service).await)?;
        Ok(match found {
            Some((snapshot, cursor)) => Self::seen(snapshot, Some(cursor)),
            None => Self::default(),
        })
    }

    /// The same, but what is kept on disk serves where the registry cannot be reached; what it says is kept.
    ///
    /// # Errors
    /// As [`read`](Self::read), when nothing is kept.
    pub(crate) fn read_or_kept(source: &Source, service: &str) -> Result<Self, Failure> {
        runtime()?.block_on(async {
            let registry = source.connect_keeping()?;
            let mut subscription = registry.subscribe(service);
            let view = answer(source, async { Ok(subscription.changed().await) }).await?;
            registry.shutdown(LEAVE_WITHIN).await;
            let Ok(view) = view else { return Ok(Self::default()) };
            match (view.snapshot.clone(), &view.error) {
                (None, Some(error)) => Err(registry_failure(source, error)),
                (None, None) => Ok(Self::default()),
                (Some(snapshot), _) => {
                    let stale =
                        view.error.as_ref().map(|error| (view.age(tokio::time::Instant::now()), error.to_string()));
                    Ok(Self { stale, ..Self::seen(Snapshot::clone(&snapshot), view.cursor) })
                }
            }
        })
    }

    fn seen(snapshot: Snapshot, cursor: Option<Cursor>) -> Self {
        let Snapshot { instances, rejected, notes } = snapshot;
        Self { instances: Some(instances), notes, rejected, cursor, stale: None }
    }

    fn of(fleet: Fleet, service: &str) -> Self {
        let found = fleet.service(service);
        let rejected = found.map_or(0, |found| found.rejected);
        Self { instances: found.map(|found| found.instances.clone()), notes: fleet.notes, rejected, ..Self::default() }
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

/// The address of a registry that others can ask.
pub(crate) fn address(text: &str) -> Result<RegistryUrl, Failure> {
    match <[RegistryUrl; 1]>::try_from(addresses(text)?) {
        Ok([url]) => Ok(url),
        Err(_) => Err(Failure::usage("bad_registry_url", "one registry is wanted here, not several")),
    }
}

/// The addresses of registries that others can ask. Messages never show what could be a secret.
fn addresses(text: &str) -> Result<Vec<RegistryUrl>, Failure> {
    let urls = RegistryUrl::parse_list(text).map_err(|error: metaroute_registry::url::UrlError| {
        let failure = Failure::usage("bad_registry_url", error.message());
        match error.suggestion() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })?;
    if urls.iter().any(|url| url.scheme() == Scheme::Memory) {
        return Err(Failure::usage("unsupported_registry", "`memory:` is the registry of another process")
            .hint("`metaroute up` has one; ask it over HTTP, or give a fleet file"));
    }
    Ok(urls)
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
    source: &Source,
    question: impl AsyncFnOnce(&Registry) -> Result<T, DriverError>,
) -> Result<T, Failure> {
    runtime()?.block_on(async {
        let registry = source.connect()?;
        let answer = answer(source, question(&registry)).await;
        registry.shutdown(LEAVE_WITHIN).await;
        answer
    })
}

/// What a registry answers, within the time people wait for it.
pub(crate) async fn answer<T>(
    source: &Source,
    question: impl Future<Output = Result<T, DriverError>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(ANSWER_WITHIN, question).await {
        Ok(answer) => answer.map_err(|error| registry_failure(source, &error)),
        Err(_) => {
            let message = format!("{source} did not answer within {} s", ANSWER_WITHIN.as_secs());
            Err(Failure::new(Status::Unreachable, "registry_unreachable", message).hint(doctor(source)))
        }
    }
}

/// What a registry at an address answered instead of what was asked for, with a way out.
pub(crate) fn registry_failure(source: &Source, error: &DriverError) -> Failure {
    let failure = driver_failure(error);
    match error.kind() {
        _ if failure.hint.is_some() || source.urls.iter().all(|url| url.scheme() == Scheme::File) => failure,
        ErrorKind::Unreachable => failure.hint(doctor(source)),
        ErrorKind::Denied => {
            failure.hint("check user, password or token of the address; a secret may be given as env:NAME or file:PATH")
        }
        _ => failure,
    }
}

fn doctor(source: &Source) -> String {
    let urls: Vec<String> = source.urls.iter().map(|url| format!("`metaroute registry doctor '{url}'`")).collect();
    format!("{} says more", urls.join(" or "))
}

/// A Seata configuration whose registry cannot be asked.
pub(crate) fn no_place(error: &NoPlace) -> Failure {
    let failure = Failure::usage("unsupported_registry", chain(error));
    match error {
        NoPlace::NotARegistry(_) => failure.hint("name the registry: --from REGISTRY_URL"),
        NoPlace::UnknownType(_) => failure.expected(RegistryType::ALL.map(RegistryType::name)),
        NoPlace::NoList(cluster) => failure.hint(format!(
            "write `service.{cluster}.grouplist` (Spring: `seata.service.grouplist.{cluster}`), or name the registry: --from REGISTRY_URL"
        )),
        _ => failure,
    }
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
