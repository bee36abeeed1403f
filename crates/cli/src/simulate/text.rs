//! The tables for people.

use std::fmt;

use super::Report;

/// Windows with more seconds than this get no strip: it would not fit a terminal.
const STRIP_SECONDS_MAX: usize = 60;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let scenario = &self.scenario;
        let tick = if scenario.tick == "0s" { "none" } else { &scenario.tick };
        writeln!(f, "ticker {tick}, a call fails after {}, seed {}\n", scenario.latency, scenario.seed)?;

        let rows: Vec<[String; 5]> = self
            .policies
            .iter()
            .flat_map(|policy| {
                policy.windows.iter().map(|window| {
                    [
                        policy.policy.clone(),
                        window.window.clone(),
                        window.calls.to_string(),
                        window.peak_per_second.to_string(),
                        format!("{:.2}", window.mean_per_second),
                    ]
                })
            })
            .collect();
        let head = ["policy", "window", "calls", "peak/s", "mean/s"].map(str::to_owned);
        let mut widths = [0; 5];
        for row in std::iter::once(&head).chain(&rows) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        for row in std::iter::once(&head).chain(&rows) {
            let [policy, window, calls, peak, mean] = row;
            let [a, b, c, d, e] = widths;
            writeln!(f, "{policy:<a$}  {window:>b$}  {calls:>c$}  {peak:>d$}  {mean:>e$}")?;
        }
        self.strips(f)
    }
}

impl Report {
    /// The calls of each second as a strip of bars, all on the scale of the highest peak.
    fn strips(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.policies.first() else { return Ok(()) };
        // The longest window that fits shows the shorter ones too.
        let Some(at) = (0..first.windows.len())
            .filter(|at| first.windows[*at].per_second.len() <= STRIP_SECONDS_MAX)
            .max_by_key(|at| first.windows[*at].per_second.len())
        else {
            return Ok(());
        };
        let strips = || self.policies.iter().filter_map(|policy| Some((policy, policy.windows.get(at)?)));
        let Some(top) = strips().map(|(_, window)| window.peak_per_second).max().filter(|top| *top > 0) else {
            return Ok(());
        };
        writeln!(f, "\ncalls in each second of the first {}; a full bar is {top}", first.windows[at].window)?;
        let width = self.policies.iter().map(|policy| policy.policy.chars().count()).max().unwrap_or(0);
        for (policy, window) in strips() {
            let bars: String = window.per_second.iter().map(|calls| bar(*calls, top)).collect();
            writeln!(f, "{:<width$}  {bars}", policy.policy)?;
        }
        Ok(())
    }
}

/// One of eight heights, never empty when there was a call.
fn bar(calls: u64, top: u64) -> char {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    if calls == 0 {
        return '·';
    }
    let height = u128::from(calls) * BARS.len() as u128 / u128::from(top.max(calls));
    BARS[(height as usize).clamp(1, BARS.len()) - 1]
}
