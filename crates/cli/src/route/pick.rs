//! `metaroute route pick`.

use clap::Args;
use metaroute_core::NoPick;
use serde_json::json;

use super::Decision;
use crate::failure::Outcome;
use crate::output::{Format, Out, tell};
use crate::status::Status;
use crate::wire::{PickView, StageView};

#[derive(Args)]
pub(crate) struct Pick {
    #[command(flatten)]
    decision: Decision,
    /// How many picks
    #[arg(short = 'n', long = "count", value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Seed of the random choices, to repeat them
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl Pick {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        let prepared = self.decision.prepare(out, self.seed.unwrap_or_else(rand::random))?;
        let mut picker = prepared.selector.picker_aligned();
        // Instances do not change between picks, so either the first one fails or none does.
        let mut next = || picker.pick(&prepared.request).map(|pick| PickView::of(pick.instance(), pick.reason()));
        let first = match next() {
            Ok(first) => first,
            Err(none) => return none_picked(out, &none),
        };
        let mut picks = std::iter::once(first).chain((1..self.count).map_while(|_| next().ok()));
        match out.format {
            Format::Text => picks.try_for_each(|pick| out.line(pick.address))?,
            Format::Ndjson => picks.try_for_each(|pick| out.json(&pick))?,
            Format::Json => {
                out.raw("{\"picks\":[")?;
                for (number, pick) in picks.enumerate() {
                    if number > 0 {
                        out.raw(",")?;
                    }
                    out.raw(&serde_json::to_string(&pick).map_err(std::io::Error::from)?)?;
                }
                out.line("]}")?;
            }
        }
        Ok(Status::Done)
    }
}

fn none_picked(out: &mut Out, none: &NoPick) -> Outcome {
    match out.format {
        Format::Text => tell(format!("no instance: {none} [{}]", none.reason)),
        Format::Json | Format::Ndjson => {
            let stages: Vec<StageView> = none.stages.iter().map(StageView::of).collect();
            out.json(&json!({"picks": [], "reason": none.reason.code(), "stages": stages}))?;
        }
    }
    Ok(Status::No)
}
