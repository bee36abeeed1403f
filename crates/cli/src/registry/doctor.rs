//! `metaroute registry doctor`: what is wrong with a registry as seen from here, and how to mend it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use metaroute_core::Instance;
use metaroute_registry::{DriverError, ErrorKind, Options, Registry, RegistryUrl, Scheme, View};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::failure::Outcome;
use crate::output::{BAD, FAINT, GOOD, Out, STRONG, WARN, paint, tell};
use crate::source::{self, Source, chain};
use crate::status::Status;

/// How long one server may take to accept a connection, or to answer a trifle.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// How long the registry may take to answer a real question.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long a change may take until it is seen. Eureka's caches alone take a minute.
const SEEN_WITHIN: Duration = Duration::from_secs(120);
/// How long all of the probe may take.
const PROBE_WITHIN: Duration = Duration::from_secs(240);
/// Clocks that differ by more are worth a word: certificates, tokens and log lines.
const SKEW_NOTED: Duration = Duration::from_secs(5);
/// Services that are looked into when none is named.
const SERVICES_LOOKED_INTO: usize = 20;

#[derive(Args)]
pub(crate) struct Doctor {
    /// The registry: an address or a fleet file
    #[arg(value_name = "REGISTRY_URL")]
    registry: String,
    /// A service to look into; the first few unless named
    #[arg(value_name = "SERVICE")]
    service: Option<String>,
    /// Also register an instance of weight 0 in a service of its own, change it and take it away, and measure how long
    /// each takes to be seen; then how long it outlives an owner that is killed. Takes 4 minutes at most
    #[arg(long)]
    probe: bool,
}

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    Skipped,
    Warning,
    Error,
}

#[derive(Serialize)]
struct Check {
    name: &'static str,
    status: Verdict,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// What an error means for the exit status.
    #[serde(skip)]
    exit: Status,
}

#[derive(Serialize)]
struct Report<'a> {
    registry: String,
    ok: bool,
    checks: &'a [Check],
}

impl Check {
    fn new(name: &'static str, status: Verdict, message: impl Into<String>) -> Self {
        let exit = match status {
            Verdict::Ok | Verdict::Skipped => Status::Done,
            Verdict::Warning => Status::No,
            Verdict::Error => Status::Usage,
        };
        Self { name, status, message: message.into(), hint: None, exit }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// What the registry answered instead.
    fn failed(name: &'static str, error: &DriverError) -> Self {
        let check = Self::new(name, Verdict::Error, chain(error));
        match error.kind() {
            ErrorKind::Unreachable => Self { exit: Status::Unreachable, ..check },
            ErrorKind::Denied => Self { exit: Status::Denied, ..check }
                .hint("check user, password or token of the address, and what they may do in the registry"),
            ErrorKind::Unsupported => Self { status: Verdict::Skipped, exit: Status::Done, ..check },
            _ => check.hint("check layout, namespace and group of the address"),
        }
    }
}

impl Doctor {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let source = Source::one(&self.registry)?;
        let mut checks = Vec::new();
        source::runtime()?.block_on(async {
            // An address that is no good ends it: there is nobody to ask.
            let registry = source.connect()?;
            for url in source.urls() {
                secrets(url, &mut checks);
                servers(url, &mut checks).await;
            }
            self.contents(&source, &registry, &mut checks).await;
            limits(&registry, &mut checks);
            if self.probe {
                if out.is_text() {
                    tell(format!("probing, which takes up to {} s …", PROBE_WITHIN.as_secs()));
                }
                probe(&source, &self.registry, &registry, &mut checks).await;
            }
            registry.shutdown(source::LEAVE_WITHIN).await;
            Ok::<_, crate::failure::Failure>(())
        })?;
        let rank = |status: Status| match status {
            Status::Done => 0,
            Status::No => 1,
            Status::Usage => 2,
            Status::Unreachable => 3,
            _ => 4,
        };
        let worst = checks.iter().map(|check| check.exit).max_by_key(|status| rank(*status)).unwrap_or(Status::Done);
        if out.is_text() {
            show(&source, &checks, out)?;
        } else {
            out.json(&Report { registry: source.to_string(), ok: worst == Status::Done, checks: &checks })?;
        }
        Ok(worst)
    }

    /// Whether it lets us in, and whether what it holds can be read.
    async fn contents(&self, source: &Source, registry: &Registry, checks: &mut Vec<Check>) {
        let names = within(registry.services()).await;
        let listed = match names {
            // As every registry was once; it is wrong only for who expects something, and names it.
            Ok(names) if names.is_empty() => {
                let check = Check::new("access", Verdict::Ok, "it answers, and knows no service");
                checks.push(check.hint(elsewhere(source)));
                Vec::new()
            }
            Ok(names) => {
                checks.push(Check::new(
                    "access",
                    Verdict::Ok,
                    format!("it answers, and lists {} services", names.len()),
                ));
                names
            }
            Err(error) => {
                let failed = error.kind() != ErrorKind::Unsupported;
                let refused = Check::failed("access", &error);
                let kubernetes = source.urls().iter().any(|url| url.scheme() == Scheme::Kubernetes);
                checks.push(match error.kind() {
                    ErrorKind::Invalid if kubernetes => refused.hint("check the kubeconfig, its contexts and the namespace"),
                    ErrorKind::Denied if kubernetes => refused.hint(
                        "a Role must allow `list` and `watch` of `endpointslices` in `discovery.k8s.io` to whom the token is for",
                    ),
                    _ => refused,
                });
                if failed {
                    return;
                }
                Vec::new()
            }
        };
        let services: Vec<Box<str>> = match &self.service {
            Some(service) => vec![service.as_str().into()],
            None => listed.into_iter().take(SERVICES_LOOKED_INTO).collect(),
        };
        let (mut instances, mut usable, mut rejected, mut notes) = (0, 0, 0, Vec::new());
        for service in &services {
            match within(registry.instances(service)).await {
                Ok(Some((snapshot, _))) => {
                    instances += snapshot.instances.len();
                    usable += snapshot.instances.iter().filter(|i| i.enabled && i.healthy && i.weight > 0.0).count();
                    rejected += snapshot.rejected;
                    notes.extend(snapshot.notes.iter().map(ToString::to_string));
                }
                Ok(None) if self.service.is_some() => {
                    let check = Check::new("service", Verdict::Warning, format!("no service {service} is known"));
                    checks.push(check.hint(elsewhere(source)));
                    return;
                }
                Ok(None) => {}
                Err(error) => {
                    checks.push(Check::failed("service", &error));
                    return;
                }
            }
        }
        if services.is_empty() {
            return;
        }
        let what = if self.service.is_some() { "the service" } else { "the services looked into" };
        let counts = format!("{what} have {instances} instances, {usable} of them usable");
        checks.push(match (instances, usable) {
            (0, _) if self.service.is_none() => Check::new("service", Verdict::Ok, counts),
            (0, _) => {
                Check::new("service", Verdict::Warning, counts).hint("it is known, and nobody is registered in it")
            }
            (_, 0) => Check::new("service", Verdict::Warning, counts)
                .hint("all are unhealthy, switched off or of weight 0: nothing can be picked"),
            _ => Check::new("service", Verdict::Ok, counts),
        });
        checks.push(match rejected {
            0 if notes.is_empty() => Check::new("layout", Verdict::Ok, "every entry can be read"),
            0 => Check::new("layout", Verdict::Warning, notes.join("; ")),
            n => Check::new("layout", Verdict::Warning, format!("{n} entries cannot be read: {}", notes.join("; ")))
                .hint("somebody else's layout, or a damaged entry; they are left out of every list"),
        });
    }
}

async fn within<T>(question: impl Future<Output = Result<T, DriverError>>) -> Result<T, DriverError> {
    let silent = || DriverError::new(ErrorKind::Unreachable, format!("no answer within {} s", ANSWER_WITHIN.as_secs()));
    tokio::time::timeout(ANSWER_WITHIN, question).await.unwrap_or_else(|_| Err(silent()))
}

/// Where what is missing may be instead.
fn elsewhere(source: &Source) -> String {
    let looked: Vec<&str> = source.urls().iter().map(|url| url.scheme().name()).collect();
    let what = match looked.first() {
        Some(&"nacos") => "another namespace (the path) or group (`group=`)",
        Some(&"etcd" | &"redis" | &"zookeeper") => "another layout (`layout=`) or prefix",
        Some(&"namingserver") => "another namespace (the path); the service is the vgroup",
        Some(&"sofa") => "another group (`group=`) or instance id",
        Some(&"k8s") => "another namespace (the path) or context (`context=`)",
        Some(&"consul") => "another datacenter (`dc=`), or the token may not see it",
        _ => "another place",
    };
    format!("nothing was registered yet, or it is in {what}")
}

fn secrets(url: &RegistryUrl, checks: &mut Vec<Check>) {
    let password = url.password().into_iter();
    let mut all = password.chain(url.secret_names().filter_map(|name| url.secret(name))).peekable();
    if all.peek().is_none() {
        return;
    }
    checks.push(if all.any(|secret| secret.to_string() == "***") {
        Check::new("secrets", Verdict::Warning, format!("the address of `{}` has a secret written out", url.scheme()))
            .hint("other users of this machine can read it in the list of processes; write env:NAME or file:PATH")
    } else {
        Check::new("secrets", Verdict::Ok, "secrets are kept outside the address")
    });
}

/// The port a kind of registry usually has, where a TCP connection to it means anything.
fn port(scheme: Scheme) -> Option<u16> {
    Some(match scheme {
        Scheme::Nacos => 8848,
        Scheme::Consul => 8500,
        Scheme::Eureka => 8761,
        Scheme::Zookeeper => 2181,
        Scheme::Redis => 6379,
        Scheme::Etcd => 2379,
        Scheme::NamingServer => 8081,
        Scheme::SeataRaft => 7091,
        Scheme::Sofa => 9603,
        Scheme::Kubernetes => 6443,
        _ => return None,
    })
}

/// Each server: its name, its port, its clock.
async fn servers(url: &RegistryUrl, checks: &mut Vec<Check>) {
    let scheme = url.scheme();
    let Some(usual) = port(scheme) else {
        if scheme == Scheme::File {
            let readable = std::fs::metadata(url.path());
            checks.push(match readable {
                Ok(_) => Check::new("server", Verdict::Ok, format!("{} is there", url.path())),
                Err(error) => Check {
                    exit: Status::Unreachable,
                    ..Check::new("server", Verdict::Error, format!("{}: {error}", url.path()))
                },
            });
        }
        return;
    };
    if scheme == Scheme::Kubernetes && url.hosts().is_empty() {
        checks.push(cluster(url));
        return;
    }
    let usual = if scheme == Scheme::Redis && url.param("sentinel").is_some() { 26379 } else { usual };
    let plain = scheme == Scheme::Kubernetes && url.param("tls") == Some("false");
    let usual = if plain { 8001 } else { usual };
    let encrypted = match scheme {
        Scheme::Kubernetes => !plain,
        _ => url.tls() || matches!(url.param("tls"), Some("true" | "")),
    };
    let mut ports = vec![None];
    if scheme == Scheme::Nacos && url.param("api") != Some("http") {
        ports.push(Some("gRPC"));
    }
    let several = url.hosts().len() > 1;
    let (mut up, mut down) = (0, Vec::new());
    for host in url.hosts() {
        let http = host.port.unwrap_or(usual);
        for kind in &ports {
            let port = match kind {
                None => http,
                Some(_) => url.param("grpc-port").and_then(|p| p.parse().ok()).unwrap_or(http.saturating_add(1000)),
            };
            let place = format!(
                "{}:{port}",
                if host.name.contains(':') { format!("[{}]", host.name) } else { host.name.to_string() }
            );
            match connect(&place).await {
                Ok((mut stream, took)) => {
                    up += 1;
                    let what = kind.map_or(String::new(), |kind| format!(" ({kind})"));
                    checks.push(Check::new(
                        "server",
                        Verdict::Ok,
                        format!("{place}{what} accepts connections, {} ms", took.as_millis()),
                    ));
                    if kind.is_none() && !encrypted {
                        clock(url, &place, &mut stream, checks).await;
                    } else if kind.is_none() && scheme != Scheme::Kubernetes && question(url, &place).is_some() {
                        // What is wrong with TLS the registry itself says better.
                        let secure = metaroute_registry::secure::over(url, &host.name, stream);
                        if let Ok(Ok(mut secure)) = tokio::time::timeout(CONNECT_WITHIN, secure).await {
                            clock(url, &place, &mut secure, checks).await;
                        }
                    }
                }
                Err(error) => down.push((place, kind.is_some(), error)),
            }
        }
    }
    for (place, grpc, error) in down {
        let verdict = if several && up > 0 { Verdict::Warning } else { Verdict::Error };
        let check = Check::new("server", verdict, format!("{place}: {error}"));
        let exit = if verdict == Verdict::Error { Status::Unreachable } else { Status::No };
        let hint = if grpc {
            "Nacos clients of version 2 and later need this port too: open it, name it with `grpc-port=`, or use `api=http`"
        } else {
            "is it running, is the port right, does a firewall stand between?"
        };
        checks.push(Check { exit, ..check }.hint(hint));
    }
}

/// Where the address of a Kubernetes cluster is written, when it does not stand in ours.
fn cluster(url: &RegistryUrl) -> Check {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let usual = || Some(PathBuf::from(set("HOME")?).join(".kube/config")).filter(|file| file.is_file());
    let said = match (url.param("kubeconfig"), set("KUBECONFIG")) {
        (Some(file), _) => match std::fs::metadata(file) {
            Ok(_) => format!("the cluster is that of the kubeconfig {file}"),
            Err(error) => {
                return Check::new("server", Verdict::Error, format!("{file}: {error}"))
                    .hint("`kubeconfig=` names a file that this process can read");
            }
        },
        (None, Some(files)) => format!("the cluster is that of KUBECONFIG, {}", files.display()),
        (None, None) => match (usual(), set("KUBERNETES_SERVICE_HOST")) {
            (Some(file), _) => format!("the cluster is that of the kubeconfig {}", file.display()),
            (None, Some(host)) if url.param("context").is_none() => {
                format!("the cluster is the one that runs this process, at {}", host.display())
            }
            _ => {
                return Check::new(
                    "server",
                    Verdict::Error,
                    "there is no kubeconfig, and no cluster runs this process",
                )
                .hint("name a file with `kubeconfig=`, or a server: k8s://HOST:6443/NAMESPACE");
            }
        },
    };
    Check::new("server", Verdict::Ok, said)
}

async fn connect(place: &str) -> Result<(TcpStream, Duration), String> {
    let addresses: Vec<SocketAddr> = match tokio::time::timeout(CONNECT_WITHIN, tokio::net::lookup_host(place)).await {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(error)) => return Err(format!("its name cannot be resolved: {error}")),
        Err(_) => return Err("its name is not resolved in time".to_owned()),
    };
    let start = Instant::now();
    match tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(addresses.as_slice())).await {
        Ok(Ok(stream)) => Ok((stream, start.elapsed())),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no connection within {} s", CONNECT_WITHIN.as_secs())),
    }
}

/// What a server answers with the time.
fn question(url: &RegistryUrl, place: &str) -> Option<String> {
    match url.scheme() {
        Scheme::Redis if url.password().is_none() => Some("TIME\r\n".to_owned()),
        Scheme::Consul
        | Scheme::Eureka
        | Scheme::Nacos
        | Scheme::NamingServer
        | Scheme::SeataRaft
        | Scheme::Sofa
        | Scheme::Kubernetes => Some(format!("GET / HTTP/1.0\r\nHost: {place}\r\n\r\n")),
        _ => None,
    }
}

/// How far the server's clock is from ours, where it tells the time to everybody.
async fn clock(
    url: &RegistryUrl,
    place: &str,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    checks: &mut Vec<Check>,
) {
    let Some(question) = question(url, place) else { return };
    let asked = SystemTime::now();
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(CONNECT_WITHIN, async {
        stream.write_all(question.as_bytes()).await?;
        stream.flush().await?;
        stream.read(&mut answer).await
    });
    let Ok(Ok(length)) = read.await else { return };
    let answer = String::from_utf8_lossy(&answer[..length]);
    let Some(theirs) = told_time(url.scheme(), &answer) else { return };
    // Whatever lies between asking and answering is no skew, nor are the parts of a second that HTTP leaves out.
    let skew = match theirs.duration_since(asked) {
        Ok(ahead) => ahead.saturating_sub(asked.elapsed().unwrap_or_default()),
        Err(behind) => behind.duration().saturating_sub(Duration::from_secs(1)),
    };
    checks.push(if skew > SKEW_NOTED {
        Check::new("clock", Verdict::Warning, format!("the clock of {place} is {} s from ours", skew.as_secs()))
            .hint("set both by NTP: tokens, certificates and the ages of entries depend on them")
    } else {
        Check::new("clock", Verdict::Ok, format!("the clock of {place} agrees with ours"))
    });
}

/// The time in an answer: HTTP's `Date`, or what Redis says to `TIME`.
fn told_time(scheme: Scheme, answer: &str) -> Option<SystemTime> {
    if scheme == Scheme::Redis {
        let seconds = answer.strip_prefix("*2\r\n$")?.split("\r\n").nth(1)?.parse().ok()?;
        return Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    }
    let date = answer.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("date").then(|| value.trim().to_owned())
    })?;
    // HTTP dates are RFC 2822 dates in GMT.
    let time = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_second().try_into().ok()?))
}

/// What it can do, and what it accepts.
fn limits(registry: &Registry, checks: &mut Vec<Check>) {
    let can = registry.capabilities();
    if !can.register {
        checks.push(Check::new("limits", Verdict::Skipped, "it is only read"));
        return;
    }
    let limits = registry.limits();
    let mut texts = Vec::new();
    let mut add = |limit: Option<usize>, what: &str| texts.extend(limit.map(|limit| format!("{what} {limit}")));
    add(limits.keys, "keys up to");
    add(limits.key_bytes, "bytes in a key up to");
    add(limits.value_bytes, "bytes in a value up to");
    add(limits.total_chars, "characters in all up to");
    if !limits.reserved_prefixes.is_empty() {
        texts.push(format!("reserved: {}…", limits.reserved_prefixes.join("…, ")));
    }
    let limits = if texts.is_empty() { "no limits of its own".to_owned() } else { texts.join(", ") };
    let liveness = if can.liveness {
        "an instance disappears with its owner"
    } else {
        "an instance stays until it is deregistered"
    };
    let weight = if can.weight { "" } else { "; weights are not carried" };
    checks.push(Check::new("limits", Verdict::Ok, format!("metadata: {limits}; {liveness}{weight}")));
}

/// Registers, changes and deregisters an instance, and waits each time until another connection sees it.
async fn probe(source: &Source, text: &str, writer: &Registry, checks: &mut Vec<Check>) {
    if !writer.capabilities().register {
        checks.push(Check::new("probe", Verdict::Skipped, "it is only read"));
        return;
    }
    let Ok(reader) = Registry::connect_all(source.urls(), Default::default(), Options::default()) else { return };
    let service = format!("metaroute-doctor-{}", std::process::id());
    let end = tokio::time::Instant::now() + PROBE_WITHIN;
    let step = probe_steps(&service, writer, &reader, end).await;
    let went_well = step.is_ok();
    match step {
        Ok(times) => {
            let times: Vec<String> =
                times.iter().map(|(what, took)| format!("{what} after {} ms", took.as_millis())).collect();
            checks.push(Check::new("probe", Verdict::Ok, times.join(", ")));
        }
        Err((what, Some(error))) => {
            let check = Check::failed("probe", &error);
            checks.push(Check { message: format!("{what}: {}", check.message), ..check });
        }
        Err((what, None)) => {
            let message = format!("{what} was not seen within {} s", SEEN_WITHIN.as_secs());
            checks.push(
                Check::new("probe", Verdict::Error, message)
                    .hint("is the same namespace, group and layout read and written?"),
            );
        }
    }
    if went_well && writer.capabilities().liveness {
        checks.push(match expiry(text, &service, &reader, end).await {
            Ok(Some(took)) => Check::new(
                "expiry",
                Verdict::Ok,
                format!("an instance whose owner was killed is gone after {:.1} s", took.as_secs_f64()),
            ),
            Ok(None) => Check::new(
                "expiry",
                Verdict::Warning,
                format!("an instance whose owner was killed was still there after {} s", SEEN_WITHIN.as_secs()),
            )
            .hint("the registry waits for long; where the address takes `ttl=`, a shorter one helps"),
            Err(why) => Check::new("expiry", Verdict::Skipped, why),
        });
        // Where it is still there: nobody wants it.
        if let Ok(address) = metaroute_core::Address::new("127.0.0.1", 9) {
            let _ = within(writer.remove(&service, &Instance::new(address).id)).await;
        }
    }
    reader.shutdown(source::LEAVE_WITHIN).await;
}

/// A process of this program that keeps an instance registered; killed when dropped.
struct Owner(Child);

impl Owner {
    fn start(registry: &str, service: &str) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let child = Command::new(program)
            .args(["registry", "register", registry, service, "127.0.0.1:9", "--weight", "0", "--format", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        child.map(Self).map_err(|error| format!("no process to kill: {error}"))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How long an instance outlives a process that registered it and was killed. `Ok(None)` when it did for too long.
async fn expiry(
    registry: &str,
    service: &str,
    reader: &Registry,
    end: tokio::time::Instant,
) -> Result<Option<Duration>, String> {
    let mut owner = Owner::start(registry, service)?;
    let lines = owner.0.stdout.take().map(BufReader::new);
    let registered = tokio::task::spawn_blocking(move || {
        lines.into_iter().flat_map(BufRead::lines).map_while(Result::ok).any(|line| line.contains("\"registered\""))
    });
    // The task ends with the process, which ends with this.
    if !matches!(tokio::time::timeout(ANSWER_WITHIN, registered).await, Ok(Ok(true))) {
        return Err("the process that was to be killed could not register".to_owned());
    }
    let mut view = reader.subscribe(service);
    let usable = |view: &View| view.snapshot.iter().flat_map(|s| &s.instances).any(|instance| instance.healthy);
    let there = tokio::time::timeout_at(end, view.wait_for(usable)).await;
    if !matches!(there, Ok(Ok(_))) {
        return Err("what another process registered was not seen".to_owned());
    }
    drop(owner);
    let killed = tokio::time::Instant::now();
    let end = end.min(killed + SEEN_WITHIN);
    match tokio::time::timeout_at(end, view.wait_for(|view| !usable(view))).await {
        Ok(Ok(_)) => Ok(Some(killed.elapsed())),
        _ => Ok(None),
    }
}

type Steps = Result<Vec<(&'static str, Duration)>, (&'static str, Option<DriverError>)>;

async fn probe_steps(service: &str, writer: &Registry, reader: &Registry, end: tokio::time::Instant) -> Steps {
    // Port 9 is "discard": nobody will answer there, and with weight 0 nobody is sent there.
    let address = metaroute_core::Address::new("127.0.0.1", 9).map_err(|_| ("an address", None))?;
    let instance = Instance::new(address).with_weight(0.0);
    let mut view = reader.subscribe(service);
    let mut times = Vec::new();
    let mut start = Instant::now();
    let mut registration = writer.register(service, instance.clone()).map_err(|error| ("registering", Some(error)))?;
    match tokio::time::timeout(ANSWER_WITHIN, registration.registered()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(("registering", Some(error))),
        Err(_) => {
            let silent = DriverError::new(ErrorKind::Unreachable, "no answer in time");
            return Err(("registering", Some(silent)));
        }
    }
    let has = |view: &View, key: Option<&str>| {
        view.snapshot.iter().flat_map(|s| &s.instances).any(|i| key.is_none_or(|key| i.metadata.contains_key(key)))
    };
    let mut seen = async |what: &'static str, wanted: &(dyn Fn(&View) -> bool + Sync), start: Instant| {
        match tokio::time::timeout_at(
            end.min(tokio::time::Instant::now() + SEEN_WITHIN),
            view.wait_for(|view| wanted(view)),
        )
        .await
        {
            Ok(Ok(_)) => Ok((what, start.elapsed())),
            _ => Err((what, None)),
        }
    };
    times.push(seen("a registration is seen", &|view| has(view, None), start).await?);
    start = Instant::now();
    registration.update(instance.with_meta("probe", "2")).map_err(|error| ("an update", Some(error)))?;
    times.push(seen("an update is seen", &|view| has(view, Some("probe")), start).await?);
    start = Instant::now();
    registration.deregister().await;
    times.push(seen("a deregistration is seen", &|view| !has(view, None), start).await?);
    Ok(times)
}

fn show(source: &Source, checks: &[Check], out: &mut Out) -> std::io::Result<()> {
    out.line(paint(STRONG, &source.to_string()))?;
    for check in checks {
        let sign = match check.status {
            Verdict::Ok => paint(GOOD, "✓"),
            Verdict::Skipped => paint(FAINT, "-"),
            Verdict::Warning => paint(WARN, "!"),
            Verdict::Error => paint(BAD, "✗"),
        };
        out.line(format!("{sign} {:<8} {}", check.name, check.message))?;
        if let Some(hint) = &check.hint {
            out.line(format!("  {:<8} {}", "", paint(FAINT, hint)))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_read_from_http_and_from_redis() {
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let http = "HTTP/1.1 200 OK\r\nVary: Accept\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n";
        assert_eq!(told_time(Scheme::Consul, http), Some(then));
        assert_eq!(told_time(Scheme::Redis, "*2\r\n$9\r\n784111777\r\n$6\r\n123456\r\n"), Some(then));
        for answer in ["", "HTTP/1.1 200 OK\r\n\r\n", "Date: yesterday", "-NOAUTH Authentication required.\r\n"] {
            assert_eq!(told_time(Scheme::Consul, answer).or(told_time(Scheme::Redis, answer)), None);
        }
    }
}
