//! `metaroute registry watch`: what changes, one line each.
//!
//! The first lines say what is there, as additions, so that whoever applies every line has the whole list. What cannot
//! be had at the start ends the command like any other; later trouble is a line, and waited out.

use std::collections::BTreeMap;

use clap::Args;
use metaroute_core::{Instance, InstanceId};
use metaroute_registry::{Registry, State, View};
use serde::Serialize;

use super::{ServiceArgs, line};
use crate::failure::Outcome;
use crate::output::{BAD, FAINT, GOOD, Out, WARN, paint};
use crate::route::watch::state_name;
use crate::source::{self, Source};
use crate::status::Status;
use crate::wire::InstanceView;

#[derive(Args)]
pub(crate) struct Watch {
    #[command(flatten)]
    target: ServiceArgs,
    /// Keep the list on disk, and begin with what was kept where the registry cannot be reached
    #[arg(long)]
    cached: bool,
}

/// One line of the stream.
#[derive(Serialize)]
struct Event<'a> {
    at: String,
    /// `state`, `added`, `removed` or `changed`.
    event: &'static str,
    service: &'a str,
    /// How far the list can be trusted.
    state: &'static str,
    cursor: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<InstanceView>,
    /// What it was before.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<InstanceView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// What became of one instance.
enum Change<'a> {
    Added(&'a Instance),
    Removed(&'a Instance),
    Changed(&'a Instance, &'a Instance),
}

type Known = BTreeMap<InstanceId, Instance>;

impl Watch {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let source = Source::one(&self.target.registry)?;
        source::runtime()?.block_on(async {
            let registry = if self.cached { source.connect_keeping()? } else { source.connect()? };
            let outcome = self.follow(&source, &registry, out).await;
            registry.shutdown(source::LEAVE_WITHIN).await;
            outcome
        })
    }

    async fn follow(&self, source: &Source, registry: &Registry, out: &mut Out) -> Outcome {
        let mut signals = source::Signals::take_over()?;
        let mut subscription = registry.subscribe(&self.target.service);
        let mut known = Known::new();
        let mut told: Option<(State, Option<String>)> = None;
        loop {
            let view = tokio::select! {
                view = subscription.changed() => view,
                () = signals.next() => return Ok(Status::Done),
            };
            let Ok(view) = view else { return Ok(Status::Done) };
            if told.is_none()
                && view.snapshot.is_none()
                && let Some(error) = &view.error
            {
                return Err(source::registry_failure(source, error));
            }
            let state = (view.state, view.error.as_ref().map(ToString::to_string));
            if told.as_ref() != Some(&state) {
                self.tell_state(&view, out)?;
                told = Some(state);
            }
            let now: Known = match &view.snapshot {
                Some(snapshot) => snapshot.instances.iter().map(|i| (i.id.clone(), i.clone())).collect(),
                None => Known::new(),
            };
            for change in changes(&known, &now) {
                self.tell(&view, &change, out)?;
            }
            out.flush()?;
            known = now;
        }
    }

    fn event<'a>(&'a self, view: &'a View, event: &'static str) -> Event<'a> {
        Event {
            at: format!("{:.3}", jiff::Timestamp::now()),
            event,
            service: &self.target.service,
            state: state_name(view.state),
            cursor: view.cursor.as_ref().map(|cursor| cursor.as_str()),
            instance: None,
            before: None,
            error: None,
        }
    }

    fn tell_state(&self, view: &View, out: &mut Out) -> std::io::Result<()> {
        let event = self.event(view, "state");
        let error = view.error.as_ref().map(ToString::to_string);
        if !out.is_text() {
            return out.json(&Event { error, ..event });
        }
        let state = if view.state == State::Fresh { event.state.to_owned() } else { paint(WARN, event.state) };
        let why = error.map_or(String::new(), |error| format!(": {error}"));
        out.line(format!("{}  {}  {state}{why}", paint(FAINT, &event.at), event.service))
    }

    fn tell(&self, view: &View, change: &Change<'_>, out: &mut Out) -> std::io::Result<()> {
        let (name, instance, before) = match change {
            Change::Added(instance) => ("added", *instance, None),
            Change::Removed(instance) => ("removed", *instance, None),
            Change::Changed(before, instance) => ("changed", *instance, Some(*before)),
        };
        let event = self.event(view, name);
        if !out.is_text() {
            let (instance, before) = (Some(InstanceView::of(instance)), before.map(InstanceView::of));
            return out.json(&Event { instance, before, ..event });
        }
        let sign = match change {
            Change::Added(_) => paint(GOOD, "+"),
            Change::Removed(_) => paint(BAD, "-"),
            Change::Changed(..) => "~".to_owned(),
        };
        out.line(format!("{}  {sign} {}", paint(FAINT, &event.at), line(instance)))
    }
}

/// What is different, in the order removed, changed, added.
fn changes<'a>(old: &'a Known, new: &'a Known) -> Vec<Change<'a>> {
    let removed = old.iter().filter(|(id, _)| !new.contains_key(*id)).map(|(_, was)| Change::Removed(was));
    let changed = new.iter().filter_map(|(id, is)| match old.get(id) {
        Some(was) if was != is => Some(Change::Changed(was, is)),
        _ => None,
    });
    let added = new.iter().filter(|(id, _)| !old.contains_key(*id)).map(|(_, is)| Change::Added(is));
    removed.chain(changed).chain(added).collect()
}
