//! The store's own write gate.
//!
//! An LSM engine that is fed faster than it compacts first answers reads slower and then stops
//! writes dead: this one sleeps without end or error at 30 runs in level 0 or 4 sealed memtables. The
//! gate keeps writes well below that: from half the limit on it delays them, more the closer the
//! limit, and at the limit it closes until the debt is down to half. Whoever waits has a deadline, and
//! the time waited is a number to watch.
//!
//! The decision is a pure function of the engine's numbers; waiting is done by the callers.

use std::time::Duration;

use crate::engine::EngineGauges;

/// Where the gate slows and stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateLimits {
    /// Runs in level 0 at which writes stop; they go on at half of it. 8 to 12 keeps listings fast.
    pub l0_runs: usize,
    /// Sealed memtables above which writes stop; they go on when one less than this is left. The
    /// engine itself stops at 4.
    pub sealed_memtables: usize,
    /// Size of the active memtable at which writes stop. The engine's own limit is only when it asks
    /// for a new one (hazard 3).
    pub active_memtable_bytes: u64,
    /// Longest delay per MiB written just below the limit.
    pub delay_per_mib: Duration,
}

impl Default for GateLimits {
    fn default() -> Self {
        GateLimits {
            l0_runs: 12,
            sealed_memtables: 2,
            active_memtable_bytes: 64 << 20,
            delay_per_mib: Duration::from_millis(100),
        }
    }
}

/// What the gate says to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// Go.
    Open,
    /// Go, but only after this long per MiB.
    Slow(Duration),
    /// Wait.
    Closed(Debt),
}

/// What the engine has to work off before writes go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debt {
    /// Runs in level 0.
    L0Runs(usize),
    /// Memtables waiting to be flushed.
    SealedMemtables(usize),
    /// Bytes in the active memtable.
    ActiveMemtable(u64),
}

impl std::fmt::Display for Debt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Debt::L0Runs(n) => write!(f, "{n} runs in level 0"),
            Debt::SealedMemtables(n) => write!(f, "{n} memtables waiting to be flushed"),
            Debt::ActiveMemtable(n) => write!(f, "active memtable of {n} bytes"),
        }
    }
}

/// The gate: limits and whether it is closed at the moment.
#[derive(Debug)]
pub(crate) struct Gate {
    limits: GateLimits,
    closed: bool,
}

impl Gate {
    pub(crate) fn new(limits: GateLimits) -> Gate {
        let limits = GateLimits {
            l0_runs: limits.l0_runs.max(2),
            sealed_memtables: limits.sealed_memtables.clamp(1, 3),
            ..limits
        };
        Gate { limits, closed: false }
    }

    pub(crate) fn observe(&mut self, gauges: &EngineGauges) -> GateState {
        let limits = &self.limits;
        let half_l0 = limits.l0_runs / 2;
        let (l0_max, sealed_max, active_max) = if self.closed {
            (half_l0, limits.sealed_memtables - 1, limits.active_memtable_bytes / 2)
        } else {
            (limits.l0_runs - 1, limits.sealed_memtables, limits.active_memtable_bytes - 1)
        };
        let debt = if gauges.l0_runs > l0_max {
            Some(Debt::L0Runs(gauges.l0_runs))
        } else if gauges.sealed_memtables > sealed_max {
            Some(Debt::SealedMemtables(gauges.sealed_memtables))
        } else if gauges.active_memtable_bytes > active_max {
            Some(Debt::ActiveMemtable(gauges.active_memtable_bytes))
        } else {
            None
        };
        self.closed = debt.is_some();
        if let Some(debt) = debt {
            return GateState::Closed(debt);
        }
        let over = gauges.l0_runs.saturating_sub(half_l0);
        if over == 0 {
            return GateState::Open;
        }
        let range = (limits.l0_runs - half_l0) as u32;
        GateState::Slow(limits.delay_per_mib * over as u32 / range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(l0_runs: usize) -> EngineGauges {
        EngineGauges { l0_runs, ..EngineGauges::default() }
    }

    #[test]
    fn case_42_slows_before_it_stops_and_goes_on_at_half() {
        let mut gate = Gate::new(GateLimits { l0_runs: 8, ..GateLimits::default() });
        assert_eq!(gate.observe(&at(4)), GateState::Open);
        let mut last = Duration::ZERO;
        for runs in 5..8 {
            let GateState::Slow(delay) = gate.observe(&at(runs)) else { panic!("{runs} runs") };
            assert!(delay > last, "the delay must grow");
            last = delay;
        }
        assert_eq!(gate.observe(&at(8)), GateState::Closed(Debt::L0Runs(8)));
        assert_eq!(gate.observe(&at(5)), GateState::Closed(Debt::L0Runs(5)), "hysteresis");
        assert_eq!(gate.observe(&at(4)), GateState::Open);
        assert!(matches!(gate.observe(&at(7)), GateState::Slow(_)), "open again up to the limit");
    }

    #[test]
    fn memtables_close_it_too() {
        let mut gate = Gate::new(GateLimits::default());
        let sealed = |n| EngineGauges { sealed_memtables: n, ..EngineGauges::default() };
        assert_eq!(gate.observe(&sealed(2)), GateState::Open);
        assert_eq!(gate.observe(&sealed(3)), GateState::Closed(Debt::SealedMemtables(3)));
        assert_eq!(gate.observe(&sealed(2)), GateState::Closed(Debt::SealedMemtables(2)));
        assert_eq!(gate.observe(&sealed(1)), GateState::Open);
        let active = |n| EngineGauges { active_memtable_bytes: n, ..EngineGauges::default() };
        assert!(matches!(gate.observe(&active(64 << 20)), GateState::Closed(_)));
        assert!(matches!(gate.observe(&active(33 << 20)), GateState::Closed(_)));
        assert_eq!(gate.observe(&active(32 << 20)), GateState::Open);
    }
}
