//! `metaroute registry deregister`.

use clap::Args;
use metaroute_core::InstanceId;
use serde::Serialize;

use super::{ServiceArgs, address, find};
use crate::failure::Outcome;
use crate::output::{Out, WARN, paint, tell};
use crate::source::{self, Source};
use crate::status::Status;

#[derive(Args)]
pub(crate) struct Deregister {
    #[command(flatten)]
    target: ServiceArgs,
    /// Where the instance is: HOST:PORT
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// Only the instance with this id, where several have the address
    #[arg(long, value_name = "ID")]
    id: Option<String>,
}

#[derive(Serialize)]
struct DeregisteredView<'a> {
    service: &'a str,
    address: String,
    /// How many there were.
    deregistered: usize,
}

impl Deregister {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let address = address(&self.address)?;
        let source = Source::one(&self.target.registry)?;
        let service = &self.target.service;
        let (found, liveness) = source::ask(&source, async |registry| {
            let liveness = registry.capabilities().liveness;
            let list = registry.instances(service).await?.map(|(snapshot, _)| snapshot.instances).unwrap_or_default();
            let found: Vec<InstanceId> =
                find(&list, &address, self.id.as_deref()).into_iter().map(|i| i.id.clone()).collect();
            let mut ids = found.clone();
            if ids.is_empty() {
                // What is not listed may be there all the same: too new, or not readable.
                ids.push(InstanceId::new(self.id.clone().unwrap_or_else(|| address.to_string())));
            }
            for id in &ids {
                registry.remove(service, id).await?;
            }
            Ok((found, liveness))
        })?;
        let deregistered = found.len();
        if !out.is_text() {
            out.json(&DeregisteredView { service, address: address.to_string(), deregistered })?;
            return Ok(Status::Done);
        }
        if deregistered == 0 {
            tell(format!("{}: {address} was not registered in {service}", paint(WARN, "note")));
        } else {
            for id in &found {
                out.line(format!("deregistered {id} from {service}"))?;
            }
            if liveness {
                tell(format!("{}: its owner, if it still runs, may register it again", paint(WARN, "note")));
            }
        }
        Ok(Status::Done)
    }
}
