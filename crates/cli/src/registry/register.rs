//! `metaroute registry register`: an owner for a registration, until it is told to stop.

use std::time::Duration;

use clap::Args;
use metaroute_core::Instance;
use metaroute_registry::{Registration, RegistrationState, Registry, RegistryUrl};
use serde::Serialize;

use super::{InstanceArgs, ServiceArgs, address};
use crate::failure::{Failure, Outcome};
use crate::output::{Out, WARN, paint, tell};
use crate::source::{self, Signals};
use crate::status::Status;

/// How long the registry may take to let go at the end.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

#[derive(Args)]
pub(crate) struct Register {
    #[command(flatten)]
    target: ServiceArgs,
    /// Where the instance is: HOST:PORT
    #[arg(value_name = "ADDRESS")]
    address: String,
    #[command(flatten)]
    instance: InstanceArgs,
    /// Write it and leave: only where registrations need nobody who keeps them alive
    #[arg(long, conflicts_with = "drain")]
    once: bool,
    /// Leave without losing a request, within this time: announce weight 0, wait until that is seen, deregister
    #[arg(long, value_name = "DURATION", value_parser = metaroute_core::resilience::backoff::parse_duration)]
    drain: Option<Duration>,
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

/// What is registered where.
struct Task<'a> {
    url: &'a RegistryUrl,
    service: &'a str,
    instance: &'a Instance,
    out: &'a mut Out,
}

impl Register {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let address = address(&self.address)?;
        let url = source::address(&self.target.registry)?;
        let instance = match &self.instance.id {
            Some(id) => Instance::new(address).with_id(id.as_str()),
            None => Instance::new(address),
        };
        let instance = self.instance.over(instance);
        let mut task = Task { url: &url, service: &self.target.service, instance: &instance, out };
        if self.once {
            return task.put();
        }
        source::runtime()?.block_on(async {
            let registry = source::connect(&url)?;
            let outcome = task.hold(&registry, self.drain).await;
            registry.shutdown(source::LEAVE_WITHIN).await;
            outcome
        })
    }
}

impl Task<'_> {
    fn put(&mut self) -> Outcome {
        let (service, instance) = (self.service, self.instance);
        source::ask(self.url, async |registry| registry.put(service, instance).await).map_err(
            |failure| match failure.code.as_ref() {
                "unsupported" => failure.hint("leave out --once: the command then stays and keeps it alive"),
                _ => failure,
            },
        )?;
        self.tell("registered", None)?;
        Ok(Status::Done)
    }

    async fn hold(&mut self, registry: &Registry, drain: Option<Duration>) -> Outcome {
        let mut signals = Signals::take_over()?;
        let registration = registry.register(self.service, self.instance.clone());
        let mut registration = registration.map_err(|error| source::registry_failure(self.url, &error))?;
        let first = source::answer(self.url, async {
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
            () = signals.next() => return self.leave(registration, None).await,
        }
        self.tell("registered", None)?;
        loop {
            let state = tokio::select! {
                state = registration.changed() => state,
                () = signals.next() => return self.leave(registration, drain).await,
            };
            match state {
                RegistrationState::Registered => self.tell("registered", None)?,
                RegistrationState::Pending(error) => {
                    let why = error.map_or_else(|| "the registry lost it".to_owned(), |error| error.to_string());
                    self.tell("pending", Some(why))?;
                }
                RegistrationState::Refused(error) => self.tell("refused", Some(error.to_string()))?,
                _ => return Ok(Status::Done),
            }
        }
    }

    async fn leave(&mut self, registration: Registration, drain: Option<Duration>) -> Outcome {
        let gone = match drain {
            Some(within) => {
                self.tell("draining", None)?;
                registration.drain(within).await.deregistered
            }
            None => tokio::time::timeout(LEAVE_WITHIN, registration.deregister()).await.is_ok(),
        };
        if !gone {
            let message = format!("{} could not be deregistered in time", self.instance.id);
            return Err(Failure::new(Status::Unreachable, "registry_unreachable", message)
                .hint("where the registry has a liveness of its own, it disappears by itself"));
        }
        self.tell("deregistered", None)?;
        Ok(Status::Done)
    }

    /// One line, at once: somebody waits for it.
    fn tell(&mut self, event: &'static str, error: Option<String>) -> std::io::Result<()> {
        let (service, instance, registry) = (self.service, self.instance, self.url.to_string());
        if !self.out.is_text() {
            let (id, address) = (instance.id.as_str(), instance.address.to_string());
            let at = format!("{:.3}", jiff::Timestamp::now());
            self.out.json(&Event { at, event, service, id, address, registry, error })?;
            return self.out.flush();
        }
        match error {
            Some(error) => tell(format!("{}: {error}", paint(WARN, event))),
            None => self.out.line(format!("{event} {} {service} {registry}", instance.address))?,
        }
        self.out.flush()
    }
}
