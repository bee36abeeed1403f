//! Quotas: who is turned away when there is more to do than can be done.
//!
//! Shedding at random hits quiet tenants as hard as the noisy one that caused the overload. Here capacity is shared
//! max-min fairly: a tenant that asks for less than its share gets all it asks for, and what it leaves goes to the
//! others (Bertsekas and Gallager, *Data Networks*, 1992, section 6.5.2). Time is cut into short windows; demand in the
//! window before decides the shares of the next, so a tenant that only now becomes busy is limited one window later.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Length of a window: short enough that nobody waits long, long enough that a quiet tenant's requests fall into it.
const WINDOW: Duration = Duration::from_millis(100);

/// Most tenants remembered in a window; the rest share what one would get.
const TENANTS_MAX: usize = 100_000;

/// Shares capacity between tenants.
#[derive(Debug)]
pub(crate) struct Admission {
    per_window: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    began: Instant,
    /// Demand and admitted cost of this window, by tenant.
    now: HashMap<u64, Use>,
    /// The share of a tenant that asks for more than that.
    share: f64,
    /// What those who ask for less left over in the window before, as debt or credit of the whole.
    carry: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    wanted: f64,
    given: f64,
}

/// A refused request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OverQuota {
    /// What the tenant may use now, per second.
    pub(crate) per_second: f64,
}

impl Admission {
    /// Shares this many cost units per second.
    pub(crate) fn new(per_second: f64) -> Admission {
        let per_window = per_second * WINDOW.as_secs_f64();
        let state = State { began: Instant::now(), now: HashMap::new(), share: per_window, carry: 0.0 };
        Admission { per_window, state: Mutex::new(state) }
    }

    /// Admits a request of this cost for a tenant, or says how much that tenant may use.
    pub(crate) fn admit(&self, tenant: u64, cost: f64, now: Instant) -> Result<(), OverQuota> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.turn(&mut state, now);
        let share = state.share;
        let key = if state.now.len() >= TENANTS_MAX && !state.now.contains_key(&tenant) { u64::MAX } else { tenant };
        let used = state.now.entry(key).or_default();
        used.wanted += cost;
        if used.given + cost <= share.max(cost) {
            used.given += cost;
            return Ok(());
        }
        Err(OverQuota { per_second: share / WINDOW.as_secs_f64() })
    }

    fn turn(&self, state: &mut State, now: Instant) {
        let passed = now.saturating_duration_since(state.began);
        if passed < WINDOW {
            return;
        }
        let demands: Vec<f64> = state.now.values().map(|used| used.wanted).collect();
        let given: f64 = state.now.values().map(|used| used.given).sum();
        // What was given beyond the capacity (single requests larger than a share) is taken from the next windows.
        let windows = (passed.as_secs_f64() / WINDOW.as_secs_f64()).floor().max(1.0);
        state.carry = (state.carry + given - self.per_window * windows).clamp(0.0, self.per_window * 10.0);
        let capacity = (self.per_window - state.carry).max(self.per_window * 0.1);
        state.share = fair_share(&demands, capacity);
        state.now.clear();
        state.began = now;
    }
}

/// The level up to which everybody gets what they ask for, so that all together get the capacity. At least an equal
/// share, whoever else is there.
fn fair_share(demands: &[f64], capacity: f64) -> f64 {
    let mut demands = demands.to_vec();
    demands.sort_by(f64::total_cmp);
    let mut left = capacity;
    for (at, demand) in demands.iter().enumerate() {
        let share = left / (demands.len() - at) as f64;
        if *demand > share {
            return share;
        }
        left -= demand;
    }
    // Everybody was satisfied: the next window may give the last one all that is left.
    demands.last().copied().unwrap_or(0.0) + left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_max_min_fair() {
        assert_eq!(fair_share(&[90.0, 1.0], 50.0), 49.0);
        assert_eq!(fair_share(&[90.0, 90.0], 50.0), 25.0);
        assert_eq!(fair_share(&[10.0, 20.0], 50.0), 40.0);
        assert_eq!(fair_share(&[], 50.0), 50.0);
    }

    /// Case 35: of 500 a second, one tenant asks for 900 and another for 10; the quiet one loses nothing.
    #[test]
    fn case_35_quiet_tenants_pay_nothing_for_noisy_ones() {
        let admission = Admission::new(500.0);
        let start = Instant::now();
        let mut refused = [0_u32; 2];
        let seconds = 10;
        // 900 a second and 10 a second, evenly.
        let mut requests: Vec<(u64, usize)> = (0..900 * seconds).map(|n| (n * 1_000_000 / 900, 0)).collect();
        requests.extend((0..10 * seconds).map(|n| (n * 1_000_000 / 10 + 7, 1)));
        requests.sort_unstable();
        for (at, who) in requests {
            let now = start + Duration::from_micros(at);
            if let Err(over) = admission.admit(who as u64, 1.0, now) {
                refused[who] += 1;
                assert!(over.per_second > 400.0, "{over:?}");
            }
        }
        assert_eq!(refused[1], 0, "the quiet tenant");
        let a_second = f64::from(refused[0]) / seconds as f64;
        assert!((380.0..440.0).contains(&a_second), "{a_second} a second refused of the noisy one");
    }

    #[test]
    fn a_request_larger_than_a_share_is_served_and_paid_for_later() {
        let admission = Admission::new(100.0);
        let start = Instant::now();
        assert!(admission.admit(1, 40.0, start).is_ok(), "never starved");
        let later = start + WINDOW;
        assert!(admission.admit(1, 1.0, later).is_ok());
        assert!(admission.admit(1, 8.0, later).is_err(), "the debt is not paid yet");
        let much_later = start + WINDOW * 20;
        assert!(admission.admit(1, 8.0, much_later).is_ok());
    }
}
