//! What a process costs, for measurements on machines that do other things too.

use std::time::Duration;

/// The kernel's clock tick; 100 a second on every Linux that matters here.
const TICK: Duration = Duration::from_millis(10);

/// Processor time of a process so far, user and system, all threads, in ticks of 10 ms; of this process for `None`.
///
/// # Panics
/// Where there is no `/proc`, or no such process.
pub fn processor_time(process: Option<u32>) -> Duration {
    let id = process.map_or_else(|| "self".to_owned(), |id| id.to_string());
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).expect("Linux, and the process is there");
    // The name in brackets may hold anything; after it, user and system time are fields 12 and 13.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u32 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u32>().expect("a number")).sum();
    TICK * ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_costs_time() {
        let before = processor_time(None);
        let mut sum = 0_u64;
        while processor_time(Some(std::process::id())) < before + 2 * TICK {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(processor_time(None) >= before + 2 * TICK);
    }
}
