//! `metaroute simulate`: what a back-off policy does to a registry or a service that is down, before anybody tries it
//! for real.
//!
//! Two comparisons, both in virtual time and repeatable by their seed: `retry-storm` lets many clients fail together,
//! `subscribe-loop` follows one background loop through a long outage. The replay itself is
//! [`metaroute_core::resilience::storm`]; this module is flags, tables and pictures.

mod plot;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use metaroute_core::resilience::backoff::{ParsePolicyError, Policy, parse_duration};
use metaroute_core::resilience::storm::{Scenario, Start, StormError, WindowCount, replay};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::failure::{Failure, Outcome};
use crate::output::{Format, Out};
use crate::status::Status;

use plot::PlotError;

/// Replay back-off policies in virtual time.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum SimulateCommand {
    /// Many clients fail together and retry until they are answered, which never happens.
    ///
    /// The failed original calls are not counted, only the retries are. With the default flags this is the well-known
    /// comparison of a failback queue with a fixed wait of 5 s and one with exponential back-off, both looked at by
    /// a ticker once a second.
    #[command(after_help = "Examples:
  metaroute simulate retry-storm
  metaroute simulate retry-storm --policy fixed:5s --policy exponential:1s,2,30s,full --plot storm.png
  metaroute simulate retry-storm --clients 1000 --tick 0 --window 5m --format json

Policies:
  none                          try again at once
  fixed:WAIT                    as fixed:5s
  exponential:INITIAL,MULTIPLIER,CAP[,JITTER]
                                as exponential:1s,1.5,60s,0.5; JITTER is none, full, equal, decorrelated
                                or a randomisation factor between 0 and 1 (default 0.5)
  …,attempts=N  …,elapsed=TIME  limits, after any of them")]
    RetryStorm(RetryStorm),
    /// A background loop calls a dead registry over and over.
    ///
    /// The first call starts at 0 and counts. With the default flags this compares a loop that forgot to wait with
    /// exponential back-off.
    #[command(after_help = "Examples:
  metaroute simulate subscribe-loop
  metaroute simulate subscribe-loop --latency 5ms --policy none --policy fixed:3s --policy exponential:1s,1.5,30s
  metaroute simulate subscribe-loop --clients 50 --window 10m --plot loop.svg

The policies are those of `metaroute simulate retry-storm --help`.")]
    SubscribeLoop(SubscribeLoop),
}

/// Flags of `retry-storm`.
#[derive(Debug, clap::Args)]
pub(crate) struct RetryStorm {
    /// How many clients fail together.
    #[arg(long, value_name = "N", default_value_t = 100)]
    clients: u32,
    /// A policy to compare; repeat it for several.
    #[arg(long = "policy", value_name = "POLICY", default_values = ["fixed:5s", "exponential:1s,1.5,60s,0.5"])]
    policies: Vec<Named<Policy>>,
    /// Count the calls of this long from the start; repeat it for several.
    #[arg(long = "window", value_name = "TIME", default_values = ["12s", "60s"])]
    windows: Vec<Named<Duration>>,
    /// How often waiting calls are looked at; 0 gives each one its own timer.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    tick: Duration,
    /// How long a call takes to fail.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration)]
    latency: Duration,
    /// Same seed, same numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Also draw the calls per second into a .png or .svg file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Flags of `subscribe-loop`.
#[derive(Debug, clap::Args)]
pub(crate) struct SubscribeLoop {
    /// How many such loops run.
    #[arg(long, value_name = "N", default_value_t = 1)]
    clients: u32,
    /// A policy to compare; repeat it for several.
    #[arg(long = "policy", value_name = "POLICY", default_values = ["none", "exponential:1s,1.5,30s,0.5"])]
    policies: Vec<Named<Policy>>,
    /// Count the calls of this long from the start; repeat it for several.
    #[arg(long = "window", value_name = "TIME", default_values = ["60s", "1h"])]
    windows: Vec<Named<Duration>>,
    /// How often waiting calls are looked at; 0 gives each one its own timer.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration)]
    tick: Duration,
    /// How long a call takes to fail; a refused connection on a local network takes about 1 ms.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_duration)]
    latency: Duration,
    /// Same seed, same numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Also draw the calls per second into a .png or .svg file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// A value with the text it was written as, so that results carry the name the user gave.
#[derive(Debug, Clone)]
struct Named<T> {
    text: String,
    value: T,
}

impl FromStr for Named<Policy> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value = text.parse().map_err(|error: ParsePolicyError| with_cause(&error))?;
        Ok(Self { text: text.to_owned(), value })
    }
}

impl FromStr for Named<Duration> {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, ParsePolicyError> {
        Ok(Self { text: text.to_owned(), value: parse_duration(text)? })
    }
}

/// One line: neither clap nor a [`Failure`] prints causes, and here the cause is the point.
fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Why a simulation has no result.
#[derive(Debug, thiserror::Error)]
enum SimulateError {
    /// The flags describe nothing that can be counted.
    #[error("`{policy}` cannot be simulated")]
    Storm {
        policy: String,
        #[source]
        source: StormError,
    },
    /// The picture could not be made.
    #[error(transparent)]
    Plot(#[from] PlotError),
}

impl From<SimulateError> for Failure {
    fn from(error: SimulateError) -> Self {
        let code = match &error {
            SimulateError::Storm { .. } => "bad_scenario",
            SimulateError::Plot(PlotError::Format(_)) => "bad_plot_format",
            SimulateError::Plot(PlotError::Write { .. }) => "cannot_write",
            SimulateError::Plot(PlotError::Draw(_)) => return Self::new(Status::Bug, "internal", with_cause(&error)),
        };
        Self::usage(code, with_cause(&error))
    }
}

/// The result of one command, in the shape of its JSON output.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(skip)]
    title: String,
    /// What time is counted from.
    #[serde(skip)]
    since: &'static str,
    scenario: ScenarioReport,
    policies: Vec<PolicyReport>,
}

#[derive(Debug, Serialize)]
struct ScenarioReport {
    clients: u32,
    tick: String,
    latency: String,
    seed: u64,
}

#[derive(Debug, Serialize)]
struct PolicyReport {
    policy: String,
    windows: Vec<WindowReport>,
}

#[derive(Debug, Serialize)]
struct WindowReport {
    window: String,
    calls: u64,
    peak_per_second: u64,
    mean_per_second: f64,
    per_second: Vec<u64>,
}

impl WindowReport {
    fn new(name: &str, count: WindowCount) -> Self {
        Self {
            window: name.to_owned(),
            calls: count.calls,
            peak_per_second: count.peak_per_second(),
            mean_per_second: (count.mean_per_second() * 1000.0).round() / 1000.0,
            per_second: count.per_second,
        }
    }
}

impl SimulateCommand {
    /// Replays every policy, prints the result and draws the plot if one was asked for.
    pub(crate) fn run(&self, out: &mut Out) -> Outcome {
        let report = self.report()?;
        match out.format {
            Format::Text => out.raw(&report.to_string())?,
            Format::Json => out.json(&report)?,
            Format::Ndjson => report.policies.iter().try_for_each(|policy| out.json(policy))?,
        }
        Ok(Status::Done)
    }

    /// The result without printing it; the plot is drawn.
    fn report(&self) -> Result<Report, SimulateError> {
        let (report, plot) = match self {
            Self::RetryStorm(flags) => (flags.report()?, &flags.plot),
            Self::SubscribeLoop(flags) => (flags.report()?, &flags.plot),
        };
        if let Some(path) = plot {
            plot::write(&report, path)?;
        }
        Ok(report)
    }
}

impl RetryStorm {
    fn report(&self) -> Result<Report, SimulateError> {
        let scenario =
            Scenario { clients: self.clients, start: Start::FailedTogether, tick: self.tick, latency: self.latency };
        let title = format!("Retry storm: {} that failed together", plural(self.clients, "client"));
        report(title, "the failure", scenario, &self.policies, &self.windows, self.seed)
    }
}

impl SubscribeLoop {
    fn report(&self) -> Result<Report, SimulateError> {
        let scenario =
            Scenario { clients: self.clients, start: Start::CallingTogether, tick: self.tick, latency: self.latency };
        let title = format!("Subscribe loop: {} against a dead registry", plural(self.clients, "client"));
        report(title, "the first call", scenario, &self.policies, &self.windows, self.seed)
    }
}

/// Replays every policy with the same seed, so that adding one does not change the numbers of the others.
fn report(
    title: String,
    since: &'static str,
    scenario: Scenario,
    policies: &[Named<Policy>],
    windows: &[Named<Duration>],
    seed: u64,
) -> Result<Report, SimulateError> {
    let lengths: Vec<_> = windows.iter().map(|window| window.value).collect();
    let policies = policies
        .iter()
        .map(|policy| {
            let counts = replay(&scenario, &policy.value, &lengths, &mut Xoshiro256PlusPlus::seed_from_u64(seed))
                .map_err(|source| SimulateError::Storm { policy: policy.text.clone(), source })?;
            let windows =
                windows.iter().zip(counts).map(|(window, count)| WindowReport::new(&window.text, count)).collect();
            Ok(PolicyReport { policy: policy.text.clone(), windows })
        })
        .collect::<Result<_, SimulateError>>()?;
    let scenario = ScenarioReport {
        clients: scenario.clients,
        tick: written(scenario.tick),
        latency: written(scenario.latency),
        seed,
    };
    Ok(Report { title, since, scenario, policies })
}

/// A duration as the flags take it; zero, which Rust prints in nanoseconds, reads better in seconds.
fn written(duration: Duration) -> String {
    if duration.is_zero() { "0s".to_owned() } else { format!("{duration:?}") }
}

fn plural(count: u32, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
