//! `metaroute route watch`: the shares, live.
//!
//! What cannot be had at the start ends the command like any other; once there is a list, trouble with the registry is
//! shown and waited out, as a client would.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use metaroute_core::{Explained, Explanation, GuardOptions, InstanceId, Options, RuleSet, Selector, Update};
use metaroute_registry::{Registry, State, View};
use serde::Serialize;
use serde_json::Number;

use super::Target;
use super::explain::{percent, print, sentence};
use super::rules::{RequestArgs, RuleArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{BAD, Format, GOOD, Out, STRONG, WARN, paint};
use crate::source::{self, Source};
use crate::status::Status;
use crate::wire;

#[derive(Args)]
pub(crate) struct Watch {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    rules: RuleArgs,
    #[command(flatten)]
    request: RequestArgs,
}

/// One line of the stream.
#[derive(Serialize)]
struct Event<'a> {
    at: String,
    /// `snapshot` first, then `changed`, or `state` when only the registry's state changed.
    event: &'static str,
    service: &'a str,
    state: &'static str,
    revision: u64,
    outcome: &'static str,
    reason: String,
    changes: Vec<Change>,
    instances: Vec<Share>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct Share {
    id: String,
    address: String,
    kept: bool,
    probability: Number,
}

/// One instance that is not as it was.
#[derive(Serialize)]
struct Change {
    id: String,
    address: String,
    /// `added`, `removed`, `changed` (the instance itself) or `share` (only its share).
    change: &'static str,
    before: Option<Number>,
    after: Option<Number>,
}

impl Watch {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let chosen = self.rules.read(self.request.caller())?;
        if out.is_text() {
            chosen.tell_notes();
            self.request.tell_unused(&chosen.set);
        }
        let (source, service) = self.target.source(Some(&chosen))?;
        let options = Options { guard: GuardOptions::off(), ..self.request.options(0) };
        let selector = Selector::new(chosen.set.clone(), options).map_err(|error| Failure::rules(&error))?;
        let runtime = source::runtime()?;
        runtime.block_on(async {
            let registry = source.connect()?;
            let outcome = self.follow(&source, &registry, &service, &selector, &chosen.set, out).await;
            registry.shutdown(Duration::from_secs(1)).await;
            outcome
        })
    }

    async fn follow(
        &self,
        source: &Source,
        registry: &Registry,
        service: &str,
        selector: &Selector,
        rules: &RuleSet,
        out: &mut Out,
    ) -> Outcome {
        let mut subscription = registry.subscribe(service);
        let start = Instant::now();
        let mut last: Option<Explanation> = None;
        let mut signals = source::Signals::take_over()?;
        loop {
            let view = tokio::select! {
                view = subscription.changed() => view,
                () = signals.next() => return Ok(Status::Done),
            };
            let Ok(view) = view else { return Ok(Status::Done) };
            let update = match (view.state, &view.snapshot) {
                (State::Unresolved, _) => continue,
                (State::UnknownService, _) => Some(Update::UnknownService),
                (_, Some(snapshot)) => Some(Update::Snapshot(snapshot.instances.clone())),
                (_, None) => match &view.error {
                    Some(error) if last.is_none() => return Err(source::registry_failure(source, error)),
                    // Trouble after "no such service", which left no list to keep.
                    Some(_) => None,
                    None => continue,
                },
            };
            if let Some(update) = update {
                selector.apply(update, start.elapsed());
            }
            let now = selector.explain(&self.request.request(selector));
            self.show(out, &view, last.as_ref(), &now, rules)?;
            out.flush()?;
            last = Some(now);
        }
    }

    fn show(
        &self,
        out: &mut Out,
        view: &View,
        before: Option<&Explanation>,
        now: &Explanation,
        rules: &RuleSet,
    ) -> std::io::Result<()> {
        let changes = before.map_or_else(Vec::new, |before| changes(before, now));
        let service = &self.target.service;
        let at = jiff::Timestamp::now();
        if out.format != Format::Text {
            let event = match before {
                None => "snapshot",
                Some(_) if changes.is_empty() => "state",
                Some(_) => "changed",
            };
            return out.json(&Event {
                at: format!("{at:.3}"),
                event,
                service,
                state: state_name(view.state),
                revision: now.revision,
                outcome: wire::outcome(now.outcome),
                reason: wire::reason(now.outcome),
                changes,
                instances: now.instances.iter().map(share).collect(),
                error: view.error.as_ref().map(ToString::to_string),
            });
        }
        let heading = format!("{at:.0}  revision {}", now.revision);
        let state = match view.state {
            State::Fresh => String::new(),
            other => format!("  {}", paint(WARN, state_name(other))),
        };
        out.line(format!("{}{state}", paint(STRONG, &heading)))?;
        if let Some(error) = &view.error {
            out.line(format!("  {}", paint(WARN, &error.to_string())))?;
        }
        if before.is_none() {
            return print(out, service, now, rules);
        }
        for change in &changes {
            let value = |share: &Option<Number>| percent(share.as_ref().and_then(Number::as_f64).unwrap_or(0.0));
            let sign = match change.change {
                "added" => paint(GOOD, "+"),
                "removed" => paint(BAD, "-"),
                _ => "~".to_owned(),
            };
            let what = if change.change == "changed" { ", the instance changed" } else { "" };
            let (address, was, is) = (&change.address, value(&change.before), value(&change.after));
            out.line(format!("  {sign} {address}  {was} → {is}{what}"))?;
        }
        out.line(format!("  {}", sentence(service, now, rules)))
    }
}

fn share(explained: &Explained) -> Share {
    Share {
        id: explained.instance.id.to_string(),
        address: explained.instance.address.to_string(),
        kept: explained.kept,
        probability: wire::number(explained.probability),
    }
}

pub(crate) fn state_name(state: State) -> &'static str {
    match state {
        State::Unresolved => "unresolved",
        State::Fresh => "fresh",
        State::Stale => "stale",
        State::Unreachable => "unreachable",
        State::UnknownService => "unknown_service",
        _ => "other",
    }
}

fn changes(before: &Explanation, now: &Explanation) -> Vec<Change> {
    let by_id = |explanation: &'_ Explanation| -> BTreeMap<InstanceId, Explained> {
        explanation.instances.iter().map(|e| (e.instance.id.clone(), e.clone())).collect()
    };
    let (mut old, new) = (by_id(before), by_id(now));
    let mut changes = Vec::new();
    let mut add = |explained: &Explained, change, before: Option<f64>, after: Option<f64>| {
        changes.push(Change {
            id: explained.instance.id.to_string(),
            address: explained.instance.address.to_string(),
            change,
            before: before.map(wire::number),
            after: after.map(wire::number),
        });
    };
    for (id, is) in &new {
        match old.remove(id) {
            None => add(is, "added", None, Some(is.probability)),
            Some(was) => {
                let (before, after) = (Some(was.probability), Some(is.probability));
                if was.instance != is.instance {
                    add(is, "changed", before, after);
                } else if was.probability != is.probability {
                    add(is, "share", before, after);
                }
            }
        }
    }
    for was in old.values() {
        add(was, "removed", Some(was.probability), None);
    }
    changes
}
