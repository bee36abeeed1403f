//! `metaroute route`: the decision a client would make, on a real registry, with every reason shown.

mod diff;
pub(crate) mod explain;
mod import;
pub(crate) mod lint;
mod pick;
pub(crate) mod rules;
mod simulate;
pub(crate) mod watch;

use std::borrow::Cow;
use std::time::Duration;

use clap::{Args, Subcommand};
use metaroute_core::{GuardOptions, Instance, Options, Request, RuleSet, Selector, Update};
use metaroute_registry::several::Combine;

use crate::failure::{Failure, Outcome};
use crate::output::Out;
use crate::source::{self, Listing, Source};
use rules::{Chosen, RequestArgs, RuleArgs};

#[derive(Subcommand)]
pub(crate) enum RouteCommand {
    /// Show for every instance what kept or dropped it, and its exact probability
    #[command(after_help = "\
Examples:
  metaroute route explain orders --from fleet.yaml --rule 'version >= 2.3'
  metaroute route explain orders --from fleet.yaml --rules rules.yaml --req flag=canary
  metaroute route explain orders --from fleet.yaml --preset nacos-cluster \\
      --caller cluster=hz --caller target-version=2.3")]
    Explain(explain::Explain),
    /// Pick instances as a client would
    #[command(after_help = "\
Examples:
  metaroute route pick orders --from fleet.yaml
  metaroute route pick orders --from fleet.yaml -n 7 --balance smooth-weighted-round-robin
  metaroute route pick orders --from fleet.yaml --balance maglev --key user-42 --format json")]
    Pick(pick::Pick),
    /// Show how the shares change while the registry changes; Ctrl-C ends it
    #[command(after_help = "\
Examples:
  metaroute route watch orders --from fleet.yaml --rule 'version >= 2.3'
  metaroute route watch orders --from fleet.yaml --format ndjson")]
    Watch(watch::Watch),
    /// Show the exact shares before and after a change
    #[command(after_help = "\
Examples:
  metaroute route simulate orders --from fleet.yaml --down 'zone == b'
  metaroute route simulate orders --from fleet.yaml --rules rules.yaml --set-weight 'version == 2.3=5'
  metaroute route simulate orders --from fleet.yaml --add canaries.yaml")]
    Simulate(simulate::Simulate),
    /// Find what is doubtful in rules, on their own or against what is registered
    ///
    /// Status 1 when there is an error or a warning; notes alone are clean.
    #[command(after_help = "\
Examples:
  metaroute route lint --rules rules.yaml
  metaroute route lint --rules rules.yaml --from fleet.yaml --service orders
  metaroute route lint --seata application.yml")]
    Lint(lint::Lint),
    /// List the instances on which two rule sets, or two dialects, disagree
    ///
    /// Status 1 when there is a difference.
    #[command(after_help = "\
Examples:
  metaroute route diff orders --from fleet.yaml --a old.yaml --b new.yaml
  metaroute route diff orders --from fleet.yaml --rule 'version >= 2.10' --dialects v1,seata")]
    Diff(diff::Diff),
    /// Translate rules of another system, and list what does not translate
    ///
    /// Status 1 when something does not translate.
    #[command(after_help = "\
Examples:
  metaroute route import dubbo tag-router.yaml > rules.yaml
  metaroute route import kubernetes service.yaml
  echo 'Meta.version == \"2.3\" and \"canary\" in Tags' | metaroute route import bexpr -")]
    Import(import::Import),
}

impl RouteCommand {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        match self {
            Self::Explain(command) => command.run(out),
            Self::Pick(command) => command.run(out),
            Self::Watch(command) => command.run(out),
            Self::Simulate(command) => command.run(out),
            Self::Lint(command) => command.run(out),
            Self::Diff(command) => command.run(out),
            Self::Import(command) => command.run(out),
        }
    }
}

/// The service and where it is registered.
#[derive(Args)]
struct Target {
    /// The service; in Seata's layouts the cluster or the vgroup
    #[arg(value_name = "SERVICE")]
    service: String,
    /// Where it is registered: a fleet file or the address of a registry; `-` is a fleet file on stdin
    ///
    /// May be repeated, or name several with commas. Without it the registry of the Seata file is asked.
    #[arg(long, value_name = "REGISTRY_URL")]
    from: Vec<String>,
    /// How several registries become one: failover (the first that has instances) or merged
    #[arg(long, value_name = "HOW", default_value = "failover")]
    combine: Combine,
}

impl Target {
    /// Where to ask, and under which name.
    fn source<'a>(&'a self, chosen: Option<&'a Chosen>) -> Result<(Source, Cow<'a, str>), Failure> {
        if !self.from.is_empty() {
            let service = chosen.map_or(&*self.service, |chosen| chosen.lookup(&self.service));
            return Ok((Source::parse(&self.from, self.combine)?, service.into()));
        }
        let Some(config) = chosen.and_then(|chosen| chosen.seata.as_deref()) else {
            return Err(Failure::usage("missing_argument", "nowhere to look: --from is missing")
                .expected(["--from REGISTRY_URL"]));
        };
        let place = config.lookup(&self.service).map_err(|error| source::no_place(&error))?;
        Ok((Source::of(vec![place.url]), place.service.into()))
    }
}

/// What every decision needs.
#[derive(Args)]
struct Decision {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    rules: RuleArgs,
    #[command(flatten)]
    request: RequestArgs,
}

/// A decision with everything read.
struct Prepared {
    service: String,
    selector: Selector,
    request: Request,
    rules: RuleSet,
    options: Options,
    /// `None` when the registry knows no such service.
    instances: Option<Vec<Instance>>,
}

impl Decision {
    fn prepare(&self, out: &Out, seed: u64) -> Result<Prepared, Failure> {
        let chosen = self.rules.read(self.request.caller())?;
        let (source, service) = self.target.source(Some(&chosen))?;
        let listing = Listing::read(&source, &service)?;
        if out.is_text() {
            chosen.tell_notes();
            self.request.tell_unused(&chosen.set);
            listing.tell_notes();
        }
        let options = self.request.options(seed);
        let selector = selector(&chosen.set, &options, listing.instances.clone())?;
        let request = self.request.request(&selector);
        let instances = listing.instances;
        Ok(Prepared { service: self.target.service.clone(), selector, request, rules: chosen.set, options, instances })
    }
}

/// A selector over a list that is believed at once: somebody is looking at it.
fn selector(rules: &RuleSet, options: &Options, instances: Option<Vec<Instance>>) -> Result<Selector, Failure> {
    let options = Options { guard: GuardOptions::off(), ..options.clone() };
    let selector = Selector::new(rules.clone(), options).map_err(|error| Failure::rules(&error))?;
    let update = match instances {
        Some(instances) => Update::Snapshot(instances),
        None => Update::UnknownService,
    };
    selector.apply(update, Duration::ZERO);
    Ok(selector)
}
