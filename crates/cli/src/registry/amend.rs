//! `metaroute registry update`.

use clap::Args;
use metaroute_core::Instance;
use metaroute_registry::DriverError;
use serde::Serialize;

use super::{InstanceArgs, ServiceArgs, address, find, line};
use crate::failure::{Failure, Outcome};
use crate::output::Out;
use crate::source::{self, Source};
use crate::status::Status;
use crate::wire::InstanceView;

#[derive(Args)]
pub(crate) struct Update {
    #[command(flatten)]
    target: ServiceArgs,
    /// Where the instance is: HOST:PORT
    #[arg(value_name = "ADDRESS")]
    address: String,
    #[command(flatten)]
    instance: InstanceArgs,
    /// A metadata key to take away; may be repeated
    #[arg(long, value_name = "KEY")]
    unset: Vec<String>,
}

#[derive(Serialize)]
struct UpdatedView<'a> {
    service: &'a str,
    instance: InstanceView,
    before: InstanceView,
}

/// What the registry held.
enum Held {
    /// One instance, and what it became.
    One(Box<Instance>, Box<Instance>),
    /// Not exactly one; their ids.
    Others(Vec<String>),
}

impl Update {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let address = address(&self.address)?;
        if self.instance.says_nothing() && self.unset.is_empty() {
            return Err(Failure::usage("missing_argument", "nothing to change was named")
                .hint("name at least one of --meta, --unset, --weight, --cluster, --zone, --region, --enabled"));
        }
        let source = Source::one(&self.target.registry)?;
        let service = &self.target.service;
        let held = source::ask(&source, async |registry| {
            let list = registry.instances(service).await?.map(|(snapshot, _)| snapshot.instances).unwrap_or_default();
            let found = find(&list, &address, self.instance.id.as_deref());
            let [before] = found.as_slice() else {
                return Ok(Held::Others(found.iter().map(|instance| instance.id.to_string()).collect()));
            };
            let mut after = self.instance.over((*before).clone());
            after.metadata.retain(|key, _| !self.unset.iter().any(|unset| **unset == **key));
            // Health is what the registry finds out, not what is written.
            registry.amend(service, &after).await?;
            Ok::<_, DriverError>(Held::One(Box::new((*before).clone()), Box::new(after)))
        });
        let held = held.map_err(|failure| match failure.code.as_ref() {
            "unsupported" => failure.hint("change it where it is registered, or in the registry's own console"),
            _ => failure,
        })?;
        match held {
            Held::One(before, after) => {
                if out.is_text() {
                    out.line(format!("updated {}", line(&after)))?;
                } else {
                    let (before, instance) = (InstanceView::of(&before), InstanceView::of(&after));
                    out.json(&UpdatedView { service, instance, before })?;
                }
                Ok(Status::Done)
            }
            Held::Others(ids) if ids.is_empty() => {
                let message = format!("no instance of {service} is registered at {address}");
                Err(Failure::new(Status::No, "unknown_instance", message))
            }
            Held::Others(ids) => {
                let message = format!("{} instances of {service} are registered at {address}", ids.len());
                Err(Failure::usage("bad_value", message).hint("say which one: --id ID").expected(ids))
            }
        }
    }
}
