//! `metaroute registry instances`.

use clap::Args;
use serde::Serialize;

use super::{ServiceArgs, show};
use crate::failure::Outcome;
use crate::output::{BAD, Out, WARN, paint, tell};
use crate::source::{Listing, Source};
use crate::status::Status;
use crate::wire::InstanceView;

#[derive(Args)]
pub(crate) struct Instances {
    #[command(flatten)]
    target: ServiceArgs,
    /// Keep the list on disk, and show what was kept where the registry cannot be reached
    #[arg(long)]
    cached: bool,
}

/// The same as over HTTP, and why there is none.
#[derive(Serialize)]
struct InstancesView<'a> {
    service: &'a str,
    instances: Vec<InstanceView>,
    cursor: Option<&'a str>,
    /// The registry cannot confirm this list right now.
    stale: bool,
    /// How old a stale list is.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_seconds: Option<u64>,
    /// How many entries could not be read.
    #[serde(skip_serializing_if = "is_zero")]
    rejected: usize,
    /// Why there is no instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Instances {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let service = &self.target.service;
        let source = Source::one(&self.target.registry)?;
        let read = if self.cached { Listing::read_or_kept } else { Listing::read };
        let listing = read(&source, service)?;
        let mut instances = listing.instances.clone().unwrap_or_default();
        instances.sort_by(|a, b| (&a.address, &a.id).cmp(&(&b.address, &b.id)));
        let reason = match &listing.instances {
            None => Some("unknown_service"),
            Some(list) if list.is_empty() => Some("empty_registry"),
            Some(_) => None,
        };
        if out.is_text() {
            listing.tell_notes();
            if let Some((age, error)) = &listing.stale {
                tell(format!("{}: {error}; this list is {} s old", paint(WARN, "stale"), age.as_secs()));
            }
            match reason {
                Some("unknown_service") => tell(format!("{}: no service {service} is known", paint(BAD, "none"))),
                Some(_) => tell(format!("{}: {service} has no instance", paint(BAD, "none"))),
                None => out.table(&show(&instances))?,
            }
        } else {
            out.json(&InstancesView {
                service,
                instances: instances.iter().map(InstanceView::of).collect(),
                cursor: listing.cursor.as_ref().map(|cursor| cursor.as_str()),
                stale: listing.stale.is_some(),
                age_seconds: listing.stale.as_ref().map(|(age, _)| age.as_secs()),
                rejected: listing.rejected,
                reason,
            })?;
        }
        Ok(if reason.is_some() { Status::No } else { Status::Done })
    }
}
