//! DNS: services as SRV records, found but not registered.
//!
//! ```text
//! dns+srv://10.0.0.53/example.com                 _orders._tcp.example.com, asked of one server; several by commas
//! dns+srv:///example.com                          asked of the system's servers
//! dns+srv://127.0.0.1:8600/service.dc1.consul?proto=udp
//! dns+srv://10.0.0.53/example.com?layout=dns-sd   instances by name, each with its TXT record
//! ```
//!
//! | parameter | meaning | default |
//! |---|---|---|
//! | `proto` | the second label: `tcp` or `udp` | `tcp` |
//! | `layout` | `srv`: the SRV records of the service; `dns-sd`: its PTR records name instances (RFC 6763) | `srv` |
//! | `priorities` | `lowest`: only targets of the lowest priority number have a weight; `all`: all have their own | `lowest` |
//! | `min-ttl`, `max-ttl` | bounds of the time until the next question, which otherwise is the least TTL of the answers | `1s`, `5m` |
//! | `timeout` | how long one server may take to answer once; it is asked twice | `2s` |
//!
//! **Names.** A service `orders` is `_orders._tcp.DOMAIN`; one that begins with `_` is taken with its own labels
//! (`_orders._udp`). Names are compared without case and shown in lower case without the final dot.
//!
//! **Instances.** Each address (A, AAAA) of each target is one; targets are asked for where the answer did not bring their addresses
//! along. The id is `target:port`, or `target:port/address` where a target has several; with `layout=dns-sd` it is the
//! instance's label. Metadata: `target`, `priority` and the pairs of the TXT record at the service (`dns-sd`: at the instance).
//! A key without `=` is a flag with the value `true`. A root target (`.`) says that the service is not offered.
//!
//! **Weights** follow RFC 2782: only the lowest priority number is used, so the others get weight 0 (unless `priorities=all`,
//! for rules that read `priority`). A record of weight 0 is chosen seldom, not never: all of them together weigh 1, which is their
//! part in the RFC's own selection. The addresses of one target share its weight.
//!
//! **Answers.** NXDOMAIN is an unknown service, no record an empty one; a name that was there and vanished counts as empty.
//! SERVFAIL, REFUSED and silence are errors, and what was known stays. A target whose own answer fails is left out and
//! counted; where all fail it is an error. Truncated answers are asked for again over TCP and never used.
//!
//! **Watching** asks again when the least TTL has passed. There is no liveness: a record stays until somebody removes it.
//!
//! **Lossy.** Everything but address, weight and TXT.
//!
//! Proven against BIND 9.18, its records changed by `nsupdate`. Consul's own DNS shows three answers only; use `consul:`.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::backend::{Params, bad};
use crate::driver::{Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Seen, SeenState, Snapshot};
use crate::registry::ConnectError;
use crate::url::{Host, RegistryUrl};

mod records;

use records::{Listed, Target};

/// Questions at the same time.
const QUESTIONS_MAX: usize = 16;

/// One domain, asked of some servers.
pub(crate) struct Dns {
    hosts: Vec<Host>,
    domain: Name,
    proto: &'static str,
    browse: bool,
    lowest_only: bool,
    min_ttl: Duration,
    max_ttl: Duration,
    timeout: Duration,
    resolver: OnceCell<TokioResolver>,
    /// Times in cursors count from here.
    started: Instant,
    /// When a look failed last, plus one; 0 for never.
    failed_ms: AtomicU64,
}

/// What one question brought.
enum Reply {
    Records(Vec<Record>, Vec<Record>),
    /// The name exists without such records; for how long that holds.
    NoData(Option<u32>),
    NoName(Option<u32>),
}

/// What was told last, and when to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    digest: u64,
    seen_ms: u64,
    due_ms: u64,
    known: bool,
}

impl Place {
    fn of(cursor: &Cursor) -> Option<Self> {
        let mut parts = cursor.as_str().split(' ');
        let digest = u64::from_str_radix(parts.next()?, 16).ok()?;
        let (seen_ms, due_ms) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { digest, seen_ms, due_ms, known: parts.next()? == "known" })
    }

    fn cursor(self) -> Cursor {
        let known = if self.known { "known" } else { "unknown" };
        Cursor::new(format!("{:x} {} {} {known}", self.digest, self.seen_ms, self.due_ms))
    }
}

/// One look: what was there, and how long it may be believed.
struct Look {
    state: SeenState,
    ttl: Option<u32>,
}

impl Dns {
    pub(crate) fn new(url: &RegistryUrl) -> Result<Self, ConnectError> {
        let mut params = Params::of(url);
        let proto = match params.text("proto") {
            None | Some("tcp") => "tcp",
            Some("udp") => "udp",
            Some(other) => return Err(bad(format!("parameter `proto={other}`: expected `tcp` or `udp`"))),
        };
        let browse = match params.text("layout") {
            None | Some("srv") => false,
            Some("dns-sd") => true,
            Some(other) => return Err(bad(format!("parameter `layout={other}`: expected `srv` or `dns-sd`"))),
        };
        let lowest_only = match params.text("priorities") {
            None | Some("lowest") => true,
            Some("all") => false,
            Some(other) => return Err(bad(format!("parameter `priorities={other}`: expected `lowest` or `all`"))),
        };
        let min_ttl = params.duration("min-ttl", Duration::from_secs(1))?;
        let max_ttl = params.duration("max-ttl", Duration::from_secs(300))?;
        let timeout = params.duration("timeout", Duration::from_secs(2))?;
        params.finish()?;
        if min_ttl > max_ttl {
            return Err(bad("`min-ttl` is longer than `max-ttl`"));
        }
        if url.user().is_some() || url.password().is_some() {
            return Err(bad("`dns+srv:` takes no user and password"));
        }
        if url.path().is_empty() {
            let host = url.hosts().first().map(ToString::to_string).unwrap_or_default();
            return Err(bad(format!(
                "`dns+srv:` needs a domain: write `dns+srv://SERVER/DOMAIN`, or `dns+srv:///{host}` to ask the system's servers for that domain"
            )));
        }
        let domain = name(url.path()).map_err(|error| bad(error.to_string()))?;
        Ok(Self {
            hosts: url.hosts().to_vec(),
            domain,
            proto,
            browse,
            lowest_only,
            min_ttl,
            max_ttl,
            timeout,
            resolver: OnceCell::new(),
            started: Instant::now(),
            failed_ms: AtomicU64::new(0),
        })
    }

    /// The resolver, made at the first question: a server may be given by name.
    async fn resolver(&self) -> Result<&TokioResolver, DriverError> {
        self.resolver
            .get_or_try_init(|| async {
                let provider = TokioRuntimeProvider::default();
                let mut builder = if self.hosts.is_empty() {
                    TokioResolver::builder(provider).map_err(|error| {
                        DriverError::new(ErrorKind::Unreachable, "the system's DNS servers are not known")
                            .because(error)
                    })?
                } else {
                    let mut servers = Vec::new();
                    for host in &self.hosts {
                        servers.push(server(host).await?);
                    }
                    let config = ResolverConfig::from_name_servers(servers);
                    TokioResolver::builder_with_config(config, provider)
                };
                let options = builder.options_mut();
                // What is believed for how long is decided here, once; and a truncated answer must not be remembered.
                options.cache_size = 0;
                options.use_hosts_file = ResolveHosts::Never;
                options.timeout = self.timeout;
                options.attempts = 1;
                builder.build().map_err(|error| {
                    DriverError::new(ErrorKind::Unreachable, "no DNS resolver can be made").because(error)
                })
            })
            .await
    }

    /// `_orders._tcp.DOMAIN`.
    fn service_name(&self, service: &str) -> Result<Name, DriverError> {
        let text = if service.starts_with('_') {
            format!("{service}.{}", self.domain)
        } else if service.is_empty() || service.contains('.') {
            let message = format!("`{service}` is no service name in DNS: one label, or labels that begin with `_`");
            return Err(DriverError::new(ErrorKind::Invalid, message));
        } else {
            format!("_{service}._{}.{}", self.proto, self.domain)
        };
        name(&text)
    }

    async fn ask(&self, name: &Name, kind: RecordType) -> Result<Reply, DriverError> {
        match self.resolver().await?.lookup(name.clone(), kind).await {
            Ok(found) => {
                let answers: Vec<Record> =
                    found.answers().iter().filter(|record| record.record_type() == kind).cloned().collect();
                if answers.is_empty() {
                    return Ok(Reply::NoData(None));
                }
                Ok(Reply::Records(answers, found.additionals().to_vec()))
            }
            Err(NetError::Dns(DnsError::NoRecordsFound(none))) => match none.response_code {
                ResponseCode::NXDomain => Ok(Reply::NoName(none.negative_ttl)),
                ResponseCode::NoError => Ok(Reply::NoData(none.negative_ttl)),
                code => Err(failed(name, kind, &format!("was answered {code}"))),
            },
            Err(NetError::Dns(DnsError::ResponseCode(code))) => {
                Err(failed(name, kind, &format!("was answered {code}")))
            }
            Err(error) => Err(failed(name, kind, "got no answer").because(error)),
        }
    }

    /// The pairs of a TXT record; where they cannot be had nothing is said about them, which would change how calls are
    /// routed, so that is an error.
    async fn text(&self, name: &Name) -> Result<(BTreeMap<String, String>, Option<u32>), DriverError> {
        Ok(match self.ask(name, RecordType::TXT).await? {
            Reply::Records(records, _) => (records::pairs(&records), records::least_ttl(&records)),
            Reply::NoData(ttl) | Reply::NoName(ttl) => (BTreeMap::new(), ttl),
        })
    }

    async fn look(&self, service: &str) -> Result<Look, DriverError> {
        let name = self.service_name(service)?;
        let kind = if self.browse { RecordType::PTR } else { RecordType::SRV };
        let (answers, additionals) = match self.ask(&name, kind).await? {
            Reply::Records(answers, additionals) => (answers, additionals),
            Reply::NoData(ttl) => return Ok(Look { state: SeenState::Service(Snapshot::default()), ttl }),
            Reply::NoName(ttl) => return Ok(Look { state: SeenState::UnknownService, ttl }),
        };
        let mut ttl = records::least_ttl(&answers);
        let mut notes = Vec::new();
        let listed = if self.browse {
            self.instances(&answers, &mut ttl).await?
        } else {
            let (pairs, text_ttl) = self.text(&name).await?;
            ttl = records::least(ttl, text_ttl);
            let mut targets = records::targets(&answers);
            for target in &mut targets {
                target.pairs.clone_from(&pairs);
            }
            targets
        };
        let known = records::addresses(&additionals);
        let listed: Vec<Listed> = stream::iter(listed)
            .map(|target| self.resolve(target, &known))
            .buffer_unordered(QUESTIONS_MAX)
            .collect()
            .await;
        let mut rejected = 0;
        let mut failure = None;
        let mut found = Vec::new();
        for one in listed {
            ttl = records::least(ttl, one.ttl);
            match one.addresses {
                Ok(addresses) => found.push((one.target, addresses)),
                Err(why) => {
                    rejected += 1;
                    notes.push(records::note(&one.target, &why));
                    failure = Some(why);
                }
            }
        }
        match failure {
            // Nothing is left of what the servers listed: that is their trouble, not an empty service.
            Some(why) if found.is_empty() && why.kind() == ErrorKind::Unreachable => return Err(why),
            _ => {}
        }
        let mut snapshot = Snapshot { rejected, notes, instances: records::instances(found, self.lowest_only) };
        snapshot.notes.sort_by(|a, b| a.message.cmp(&b.message));
        snapshot.bound_notes();
        Ok(Look { state: SeenState::Service(snapshot), ttl })
    }

    /// The targets of the instances that PTR records name, each with its own SRV and TXT records.
    async fn instances(&self, pointers: &[Record], ttl: &mut Option<u32>) -> Result<Vec<Target>, DriverError> {
        let names: Vec<Name> = pointers
            .iter()
            .filter_map(|record| match &record.data {
                RData::PTR(instance) => Some(instance.0.clone()),
                _ => None,
            })
            .collect();
        let found: Vec<(Vec<Target>, Option<u32>)> = stream::iter(names)
            .map(|instance| async move {
                let (answers, srv_ttl) = match self.ask(&instance, RecordType::SRV).await? {
                    Reply::Records(answers, _) => {
                        let ttl = records::least_ttl(&answers);
                        (answers, ttl)
                    }
                    // Announced, and gone by now.
                    Reply::NoData(ttl) | Reply::NoName(ttl) => (Vec::new(), ttl),
                };
                let (pairs, text_ttl) = self.text(&instance).await?;
                let label = records::label(&instance);
                let mut targets = records::targets(&answers);
                for target in &mut targets {
                    target.pairs.clone_from(&pairs);
                    target.label = Some(label.clone());
                }
                Ok::<_, DriverError>((targets, records::least(srv_ttl, text_ttl)))
            })
            .buffer_unordered(QUESTIONS_MAX)
            .try_collect()
            .await?;
        let mut targets = Vec::new();
        for (some, some_ttl) in found {
            *ttl = records::least(*ttl, some_ttl);
            targets.extend(some);
        }
        Ok(targets)
    }

    /// The addresses of a target.
    async fn resolve(&self, target: Target, known: &HashMap<String, (Vec<IpAddr>, u32)>) -> Listed {
        if let Some((addresses, ttl)) = known.get(&target.host) {
            return Listed { target, addresses: Ok(addresses.clone()), ttl: Some(*ttl) };
        }
        let mut addresses = Vec::new();
        let mut ttl = None;
        let mut failure = None;
        for kind in [RecordType::A, RecordType::AAAA] {
            let reply = match name(&target.host) {
                Ok(name) => self.ask(&name, kind).await,
                Err(error) => Err(error),
            };
            match reply {
                Ok(Reply::Records(records, _)) => {
                    ttl = records::least(ttl, records::least_ttl(&records));
                    addresses.extend(records.iter().filter_map(|record| record.data.ip_addr()));
                }
                Ok(Reply::NoData(negative) | Reply::NoName(negative)) => ttl = records::least(ttl, negative),
                Err(error) => failure = Some(error),
            }
        }
        let addresses = match failure {
            Some(error) if addresses.is_empty() => Err(error),
            _ if addresses.is_empty() => Err(DriverError::new(ErrorKind::Invalid, "it has no address")),
            _ => Ok(addresses),
        };
        Listed { target, addresses, ttl }
    }

    async fn follow(&self, service: &str, after: Option<&Cursor>) -> Result<Seen, DriverError> {
        let mut after = after.and_then(Place::of);
        // Whoever was told of a failure wants to hear that it is over, at once and also where nothing changed meanwhile.
        let confirm = after.is_some_and(|after| self.failed_ms.load(Ordering::Relaxed) > after.seen_ms);
        loop {
            if let Some(after) = after.filter(|_| !confirm) {
                // Another connection's cursor counts from elsewhere.
                let due = self.started + Duration::from_millis(after.due_ms);
                tokio::time::sleep_until(due.min(Instant::now() + self.max_ttl)).await;
            }
            let looked = self.look(service).await;
            let seen_ms = millis(self.started.elapsed());
            if looked.is_err() {
                self.failed_ms.fetch_max(seen_ms + 1, Ordering::Relaxed);
            }
            let Look { mut state, ttl } = looked?;
            let was_known = after.is_some_and(|after| after.known);
            if was_known && matches!(state, SeenState::UnknownService) {
                // A name without records does not exist. One that was there is empty.
                state = SeenState::Service(Snapshot::default());
            }
            let wait =
                ttl.map_or(self.min_ttl, |ttl| Duration::from_secs(ttl.into())).clamp(self.min_ttl, self.max_ttl);
            let place = Place {
                digest: digest(&state),
                seen_ms,
                due_ms: seen_ms.saturating_add(millis(wait)),
                known: matches!(state, SeenState::Service(_)),
            };
            match after {
                Some(before) if !confirm && before.digest == place.digest && before.known == place.known => {
                    after = Some(place);
                }
                _ => return Ok(Seen { cursor: place.cursor(), state }),
            }
        }
    }

    /// The kinds of services that a domain announces (RFC 6763, 9).
    async fn names(&self) -> Result<Vec<Box<str>>, DriverError> {
        if !self.browse {
            let message = "DNS lists services only where they are announced; try `layout=dns-sd`";
            return Err(DriverError::new(ErrorKind::Unsupported, message));
        }
        let kinds = name(&format!("_services._dns-sd._udp.{}", self.domain))?;
        let Reply::Records(records, _) = self.ask(&kinds, RecordType::PTR).await? else { return Ok(Vec::new()) };
        let mut names: Vec<Box<str>> =
            records.iter().filter_map(|record| records::announced(record, self.proto)).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// An absolute name.
fn name(text: &str) -> Result<Name, DriverError> {
    let mut name = Name::from_utf8(text).map_err(|error| {
        DriverError::new(ErrorKind::Invalid, format!("`{text}` is not a name in DNS")).because(error)
    })?;
    name.set_fqdn(true);
    Ok(name)
}

fn failed(name: &Name, kind: RecordType, how: &str) -> DriverError {
    DriverError::new(ErrorKind::Unreachable, format!("the question for {kind} of `{name}` {how}"))
}

/// A server by address, or by a name that the system knows.
async fn server(host: &Host) -> Result<NameServerConfig, DriverError> {
    let port = host.port.unwrap_or(53);
    let ip = match host.name.parse::<IpAddr>() {
        Ok(ip) => ip,
        Err(_) => {
            let found: Result<Option<SocketAddr>, _> =
                tokio::net::lookup_host((&*host.name, port)).await.map(|mut found| found.next());
            match found {
                Ok(Some(address)) => address.ip(),
                Ok(None) => {
                    let message = format!("the DNS server `{host}` has no address");
                    return Err(DriverError::new(ErrorKind::Unreachable, message));
                }
                Err(error) => {
                    let message = format!("the address of the DNS server `{host}` is not known");
                    return Err(DriverError::new(ErrorKind::Unreachable, message).because(error));
                }
            }
        }
    };
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = port;
        connection
    });
    Ok(NameServerConfig::new(ip, true, connections.into()))
}

/// A number for what subscribers see.
fn digest(state: &SeenState) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let SeenState::Service(snapshot) = state {
        for instance in &snapshot.instances {
            instance.id.hash(&mut hasher);
            instance.address.hash(&mut hasher);
            instance.weight.to_bits().hash(&mut hasher);
            instance.metadata.hash(&mut hasher);
        }
        for note in &snapshot.notes {
            note.message.hash(&mut hasher);
        }
    }
    hasher.finish()
}

impl Driver for Dns {
    fn capabilities(&self) -> Capabilities {
        Capabilities { list: self.browse, ..Capabilities::read_only() }
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(self.names())
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(self.follow(service, after))
    }
}

#[cfg(test)]
mod tests;
