//! `metaroute registry list`.

use clap::Args;
use serde::Serialize;

use crate::failure::{Failure, Outcome};
use crate::output::Out;
use crate::source::{self, Source};
use crate::status::Status;

#[derive(Args)]
pub(crate) struct List {
    /// The registry: an address or a fleet file; `-` is a fleet file on stdin
    #[arg(value_name = "REGISTRY_URL")]
    registry: String,
}

#[derive(Serialize)]
struct ServicesView {
    services: Vec<ServiceView>,
}

#[derive(Serialize)]
struct ServiceView {
    name: Box<str>,
}

impl List {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let names = self.names(out)?;
        if out.is_text() {
            for name in &names {
                out.line(name)?;
            }
        } else {
            out.json(&ServicesView { services: names.into_iter().map(|name| ServiceView { name }).collect() })?;
        }
        Ok(Status::Done)
    }

    fn names(&self, out: &Out) -> Result<Vec<Box<str>>, Failure> {
        let source = Source::one(&self.registry)?;
        let Some(fleet) = source.fleet()? else {
            return source::ask(&source, async |registry| registry.services().await);
        };
        if out.is_text() {
            source::tell_notes(&fleet.notes);
        }
        let mut names: Vec<Box<str>> = fleet.services.into_iter().map(|service| service.name).collect();
        names.sort();
        Ok(names)
    }
}
