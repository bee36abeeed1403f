//! `metaroute registry register`: an owner for a registration, until it is told to stop.

use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::Duration;

use clap::Args;
use metaroute::properties::Surroundings;
use metaroute::seata::SeataConfig;
use metaroute_core::{Address, Instance};
use metaroute_registry::{Registration, RegistrationState, Registry};
use serde::Serialize;

use super::{InstanceArgs, address};
use crate::failure::{Failure, Outcome};
use crate::output::{Out, WARN, paint, tell};
use crate::source::{self, Signals, Source, no_place, tell_notes};
use crate::status::Status;

/// How long a registry may take to let go at the end.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// The port of a Seata server that names none.
const SEATA_PORT: u16 = 8091;

#[derive(Args)]
pub(crate) struct Register {
    /// The registry; with --seata may be left out
    #[arg(value_name = "REGISTRY_URL")]
    registry: Option<String>,
    /// The service; in Seata's layouts the cluster or the vgroup; with --seata may be left out
    #[arg(value_name = "SERVICE")]
    service: Option<String>,
    /// Where the instance is: HOST:PORT; with --seata and SEATA_IP set may be left out
    #[arg(value_name = "ADDRESS")]
    address: Option<String>,
    #[command(flatten)]
    instance: InstanceArgs,
    /// Take metadata, registries and clusters from the configuration of a Seata server
    #[arg(long, value_name = "FILE")]
    seata: Option<PathBuf>,
    /// Write it and leave: only where registrations need nobody who keeps them alive
    #[arg(long, conflicts_with = "drain")]
    once: bool,
    /// Leave without losing a request, within this time: announce weight 0, wait until that is seen, deregister
    #[arg(long, value_name = "DURATION", value_parser = metaroute_core::resilience::backoff::parse_duration)]
    drain: Option<Duration>,
}

/// What is registered where.
struct Entry {
    source: Source,
    service: String,
    instance: Instance,
}

/// One that is.
struct Held {
    entry: Entry,
    registry: Registry,
    registration: Registration,
}

/// One line of what happens.
#[derive(Serialize)]
struct Event<'a> {
    at: String,
    /// `registered`, `pending`, `refused`, `draining` or `deregistered`.
    event: &'static str,
    service: &'a str,
    id: &'a str,
    address: String,
    registry: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Register {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let entries = self.entries(out)?;
        if self.once {
            for entry in &entries {
                entry.put(out)?;
            }
            return Ok(Status::Done);
        }
        source::runtime()?.block_on(async {
            let mut signals = Signals::take_over()?;
            let mut held = Vec::new();
            let outcome = hold(entries, &mut held, &mut signals, out).await;
            let left = leave(held, self.drain.filter(|_| outcome.is_ok()), out).await;
            outcome.and(left)
        })
    }

    fn entries(&self, out: &Out) -> Result<Vec<Entry>, Failure> {
        let given: Vec<&str> =
            [&self.registry, &self.service, &self.address].into_iter().flatten().map(String::as_str).collect();
        if let Some(file) = &self.seata {
            return self.seata_entries(file, &given, out);
        }
        let [registry, service, place] = given.as_slice() else {
            return Err(Failure::usage("missing_argument", "a registry, a service and an address are needed")
                .hint("usage: metaroute registry register REGISTRY_URL SERVICE ADDRESS"));
        };
        let place = address(place)?;
        let source = Source::one(registry)?;
        if source.urls().is_empty() {
            return Err(Failure::usage("bad_value", "a fleet file on stdin cannot be written"));
        }
        Ok(vec![Entry { source, service: (*service).to_owned(), instance: self.instance(place) }])
    }

    /// The arguments that were given are the last ones: an address, a service and an address, or all three.
    fn seata_entries(&self, file: &Path, given: &[&str], out: &Out) -> Result<Vec<Entry>, Failure> {
        let config = SeataConfig::read(file, &Surroundings::of_process())
            .map_err(|error| Failure::config(&error, Status::Usage))?;
        if out.is_text() {
            tell_notes(&config.notes);
        }
        let is_registry = |text: &str| text.contains("://") || text.starts_with("file:");
        let (registry, service, place) = match given {
            [] => (None, None, None),
            [place] => (None, None, Some(*place)),
            [registry, place] if is_registry(registry) => (Some(*registry), None, Some(*place)),
            [service, place] => (None, Some(*service), Some(*place)),
            [registry, service, place, ..] => (Some(*registry), Some(*service), Some(*place)),
        };
        let place = match place {
            Some(place) => address(place)?,
            None => own_address()?,
        };
        let mut instance = Instance::new(place);
        instance.metadata = config.metadata.clone();
        let entry = |source: Source, found: String, cluster: Option<String>| {
            let mut instance = instance.clone();
            instance.cluster = cluster.unwrap_or_default().into();
            let service = service.map_or(found, str::to_owned);
            Entry { source, service, instance: self.over(instance) }
        };
        let places = match (config.registrations(), registry) {
            (Ok(places), _) => places,
            (Err(_), Some(_)) => Vec::new(),
            (Err(error), None) => return Err(no_place(&error)),
        };
        Ok(match registry {
            Some(registry) => {
                let first = places.into_iter().next();
                let (found, cluster) =
                    first.map_or_else(|| ("default".to_owned(), None), |place| (place.service, place.cluster));
                vec![entry(Source::one(registry)?, found, cluster)]
            }
            None => places
                .into_iter()
                .map(|place| entry(Source::of(vec![place.url]), place.service, place.cluster))
                .collect(),
        })
    }

    fn instance(&self, address: Address) -> Instance {
        self.over(Instance::new(address))
    }

    fn over(&self, instance: Instance) -> Instance {
        let instance = match &self.instance.id {
            Some(id) => instance.with_id(id.as_str()),
            None => instance,
        };
        self.instance.over(instance)
    }
}

/// What a Seata server calls its own: `SEATA_IP` and `SEATA_PORT`.
fn own_address() -> Result<Address, Failure> {
    let missing = || {
        Failure::usage("missing_argument", "the address of the server is missing")
            .hint("give HOST:PORT, or set SEATA_IP (and SEATA_PORT)")
    };
    let host = std::env::var("SEATA_IP").map_err(|_| missing())?;
    let port = match std::env::var("SEATA_PORT") {
        Ok(port) => port.trim().parse().map_err(|_| Failure::usage("bad_value", format!("SEATA_PORT is `{port}`")))?,
        Err(_) => SEATA_PORT,
    };
    Address::new(host.trim(), port).map_err(|error| Failure::usage("bad_value", error.to_string()))
}

impl Entry {
    fn put(&self, out: &mut Out) -> Result<(), Failure> {
        source::ask(&self.source, async |registry| registry.put(&self.service, &self.instance).await).map_err(
            |failure| match failure.code.as_ref() {
                "unsupported" => failure.hint("leave out --once: the command then stays and keeps it alive"),
                _ => failure,
            },
        )?;
        Ok(self.tell("registered", None, out)?)
    }

    /// One line, at once: somebody waits for it.
    fn tell(&self, event: &'static str, error: Option<String>, out: &mut Out) -> std::io::Result<()> {
        let Self { service, instance, source } = self;
        let registry = source.to_string();
        if !out.is_text() {
            let (id, address) = (instance.id.as_str(), instance.address.to_string());
            let at = format!("{:.3}", jiff::Timestamp::now());
            out.json(&Event { at, event, service, id, address, registry, error })?;
            return out.flush();
        }
        match error {
            Some(error) => tell(format!("{}: {registry}: {error}", paint(WARN, event))),
            None => out.line(format!("{event} {} {service} {registry}", instance.address))?,
        }
        out.flush()
    }
}

/// Registers, and stays until a signal or the end of all registrations.
async fn hold(entries: Vec<Entry>, held: &mut Vec<Held>, signals: &mut Signals, out: &mut Out) -> Outcome {
    for entry in entries {
        let registry = entry.source.connect()?;
        let registration = match registry.register(&entry.service, entry.instance.clone()) {
            Ok(registration) => registration,
            Err(error) => return Err(source::registry_failure(&entry.source, &error)),
        };
        held.push(Held { entry, registry, registration });
        let Some(Held { entry, registration, .. }) = held.last_mut() else { continue };
        let first = source::answer(&entry.source, async {
            loop {
                match registration.changed().await {
                    RegistrationState::Pending(Some(error)) | RegistrationState::Refused(error) => return Err(error),
                    RegistrationState::Registered | RegistrationState::Ended => return Ok(()),
                    _ => {}
                }
            }
        });
        tokio::select! {
            first = first => first?,
            () = signals.next() => return Ok(Status::Done),
        }
        entry.tell("registered", None, out)?;
    }
    loop {
        let (at, state) = tokio::select! {
            next = next(held) => next,
            () = signals.next() => return Ok(Status::Done),
        };
        let entry = &held[at].entry;
        match state {
            RegistrationState::Registered => entry.tell("registered", None, out)?,
            RegistrationState::Pending(error) => {
                let why = error.map_or_else(|| "the registry lost it".to_owned(), |error| source::chain(&error));
                entry.tell("pending", Some(why), out)?;
            }
            RegistrationState::Refused(error) => entry.tell("refused", Some(source::chain(&error)), out)?,
            _ => return Ok(Status::Done),
        }
    }
}

/// The next change of any of them.
async fn next(held: &mut [Held]) -> (usize, RegistrationState) {
    let mut waits: Vec<_> = held.iter_mut().map(|one| Box::pin(one.registration.changed())).collect();
    std::future::poll_fn(|cx| {
        for (at, wait) in waits.iter_mut().enumerate() {
            if let Poll::Ready(state) = wait.as_mut().poll(cx) {
                return Poll::Ready((at, state));
            }
        }
        Poll::Pending
    })
    .await
}

/// Deregisters, last first.
async fn leave(held: Vec<Held>, drain: Option<Duration>, out: &mut Out) -> Outcome {
    let mut outcome = Ok(Status::Done);
    for Held { entry, registry, registration } in held.into_iter().rev() {
        let registered = matches!(registration.state(), RegistrationState::Registered);
        let gone = match drain {
            Some(within) => {
                entry.tell("draining", None, out)?;
                registration.drain(within).await.deregistered
            }
            None => tokio::time::timeout(LEAVE_WITHIN, registration.deregister()).await.is_ok(),
        };
        registry.shutdown(source::LEAVE_WITHIN).await;
        if gone && registered {
            entry.tell("deregistered", None, out)?;
        } else if !gone {
            let message = format!("{} could not be deregistered in time from {}", entry.instance.id, entry.source);
            outcome = Err(Failure::new(Status::Unreachable, "registry_unreachable", message)
                .hint("where the registry has a liveness of its own, it disappears by itself"));
        }
    }
    outcome
}
