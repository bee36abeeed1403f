//! Prints the tables of docs/benchmarks.md from what criterion measured last: `cargo run --bin report`.
//!
//! Numbers are medians. A ratio compares with the row marked as the base, from the same run on the same machine; only ratios
//! mean anything on another one.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

/// Medians in nanoseconds: group → contender → parameter.
type Medians = BTreeMap<String, BTreeMap<String, BTreeMap<u64, f64>>>;

fn main() -> Result<()> {
    let criterion = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/criterion");
    let medians = read(&criterion).with_context(|| format!("cannot read {}", criterion.display()))?;
    println!("{}\n", machine()?);
    for (group, contenders) in &medians {
        print!("{}", table(group, contenders));
    }
    Ok(())
}

fn read(criterion: &Path) -> Result<Medians> {
    let mut medians = Medians::new();
    for group in folders(criterion)? {
        for contender in folders(&group)? {
            for parameter in folders(&contender)? {
                let benchmark = parameter.join("new/benchmark.json");
                if !benchmark.is_file() {
                    continue;
                }
                let id = json(&benchmark)?;
                let estimates = json(&parameter.join("new/estimates.json"))?;
                let text = |key: &str| {
                    id[key].as_str().map(str::to_owned).with_context(|| format!("no {key} in {}", benchmark.display()))
                };
                let median = estimates["median"]["point_estimate"].as_f64().context("no median")?;
                let value = text("value_str")?.parse().context("a parameter that is no number")?;
                medians
                    .entry(text("group_id")?)
                    .or_default()
                    .entry(text("function_id")?)
                    .or_default()
                    .insert(value, median);
            }
        }
    }
    Ok(medians)
}

fn folders(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && entry.file_name() != "report" {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}

fn json(file: &Path) -> Result<Value> {
    serde_json::from_slice(&fs::read(file)?).with_context(|| format!("cannot read {}", file.display()))
}

/// Ours first, then by the last column; each cell has the time and how many times the first row's it is.
fn table(group: &str, contenders: &BTreeMap<String, BTreeMap<u64, f64>>) -> String {
    let mut parameters: Vec<u64> = contenders.values().flat_map(|row| row.keys().copied()).collect();
    parameters.sort_unstable();
    parameters.dedup();
    let mut rows: Vec<_> = contenders.iter().collect();
    let last = |row: &BTreeMap<u64, f64>| row.values().next_back().copied().unwrap_or(f64::MAX);
    rows.sort_by(|(a, left), (b, right)| {
        let ours = |name: &str| !name.starts_with("metaroute");
        ours(a).cmp(&ours(b)).then(last(left).total_cmp(&last(right)))
    });
    let mut text = format!("### {group}\n\n| |");
    for parameter in &parameters {
        text.push_str(&format!(" {} |", thousands(*parameter)));
    }
    text.push_str(&format!("\n|---|{}\n", "---:|".repeat(parameters.len())));
    let base = rows.first().map(|(_, row)| *row);
    for (name, row) in &rows {
        text.push_str(&format!("| {name} |"));
        for parameter in &parameters {
            let cell = row.get(parameter).map_or_else(String::new, |median| {
                let ratio = base.and_then(|base| base.get(parameter)).map(|base| median / base);
                match ratio {
                    Some(ratio) if !std::ptr::eq(*row, base.unwrap_or(row)) => {
                        format!("{} ({ratio:.1}×)", time(*median))
                    }
                    _ => time(*median),
                }
            });
            text.push_str(&format!(" {cell} |"));
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

fn time(ns: f64) -> String {
    match ns {
        ns if ns < 100.0 => format!("{ns:.1} ns"),
        ns if ns < 10_000.0 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns => format!("{:.2} ms", ns / 1e6),
    }
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn machine() -> Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown processor", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let load = fs::read_to_string("/proc/loadavg")?;
    Ok(format!(
        "Machine: {model}, {cores} cores seen, {}; {}. Measured {}, commit {}, load average then {}. Command: `cd bench && cargo bench`.",
        said("uname", &["-sr"])?,
        said("rustc", &["--version"])?,
        said("date", &["-u", "+%F"])?,
        said("git", &["rev-parse", "--short", "HEAD"])?,
        load.split(' ').next().unwrap_or("unknown"),
    ))
}

fn said(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output().with_context(|| format!("cannot run {program}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
