//! How traffic is split between groups of instances before weights decide inside a group.
//!
//! Pure arithmetic. *Tiers* are ordered (the caller's zone before the others); a tier keeps all traffic while enough
//! of it is healthy, and what it cannot take spills over to the next. The law is Envoy's priority load with an
//! overprovisioning factor, in exact fractions instead of its integer percentages.

/// How healthy a tier is. Instances of weight 0 and disabled ones are on neither side.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TierHealth {
    pub(crate) healthy: usize,
    pub(crate) total: usize,
}

impl TierHealth {
    fn ratio(self) -> f64 {
        if self.total == 0 { 0.0 } else { self.healthy as f64 / self.total as f64 }
    }
}

/// What a tier gets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TierLoad {
    /// Part of all traffic, 0 to 1.
    pub(crate) share: f64,
    /// Health is ignored inside this tier.
    pub(crate) panic: bool,
}

/// Splits traffic over ordered tiers into `loads` (same length as `tiers`). All shares are 0 when nothing can be
/// served: every tier is empty, or nothing is healthy and `panic` is off.
pub(crate) fn priority_loads(tiers: &[TierHealth], overflow: f64, panic: Option<f64>, loads: &mut [TierLoad]) {
    let available = |tier: &TierHealth| (tier.ratio() * overflow).min(1.0);
    let total: f64 = tiers.iter().map(available).sum();
    // With enough capacity somewhere no tier panics: its spill is taken by the others.
    let scarce = total < 1.0;
    let in_panic = |tier: &TierHealth| scarce && tier.total > 0 && panic.is_some_and(|limit| tier.ratio() < limit);
    if total == 0.0 {
        // Nothing is healthy: in panic traffic follows the number of instances.
        let members: usize = tiers.iter().filter(|tier| in_panic(tier)).map(|tier| tier.total).sum();
        for (tier, load) in tiers.iter().zip(loads) {
            let panic = in_panic(tier);
            *load = TierLoad { share: if panic { tier.total as f64 / members as f64 } else { 0.0 }, panic };
        }
        return;
    }
    let mut left = 1.0_f64;
    for (tier, load) in tiers.iter().zip(loads) {
        let share = if scarce { available(tier) / total } else { available(tier).min(left) };
        left -= share;
        // Rounding must not leave a crumb of traffic for a tier that should have none.
        if left < 1e-12 {
            left = 0.0;
        }
        *load = TierLoad { share, panic: in_panic(tier) };
    }
}

/// Splits traffic over localities by configured weight, scaled down where a locality lost more health than `overflow`
/// covers. A locality without members gets nothing and keeps nothing (envoy #4837). `None` when nothing can be served.
pub(crate) fn locality_shares(localities: &[(f64, TierHealth)], overflow: f64) -> Option<Vec<f64>> {
    let effective: Vec<f64> =
        localities.iter().map(|(weight, health)| weight * (health.ratio() * overflow).min(1.0)).collect();
    let total: f64 = effective.iter().sum();
    (total > 0.0).then(|| effective.iter().map(|e| e / total).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(percent: &[usize], overflow: f64, panic: Option<f64>) -> Vec<TierLoad> {
        let tiers: Vec<_> = percent.iter().map(|&healthy| TierHealth { healthy, total: 100 }).collect();
        let mut loads = vec![TierLoad::default(); tiers.len()];
        priority_loads(&tiers, overflow, panic, &mut loads);
        loads
    }

    fn shares(percent: &[usize]) -> Vec<f64> {
        loads(percent, 1.4, Some(0.5)).iter().map(|load| (load.share * 1000.0).round() / 10.0).collect()
    }

    /// `routing.md` T34 and 5.8: priority shares with factor 1.4.
    #[test]
    fn t34_priority_shares() {
        for (healthy, first) in [(100, 100.0), (72, 100.0), (71, 99.4), (50, 70.0), (25, 35.0), (0, 0.0)] {
            let shares = shares(&[healthy, 100]);
            assert_eq!(shares[0], first, "{healthy} %");
            assert!((shares[0] + shares[1] - 100.0).abs() < 1e-9);
        }
        assert_eq!(shares(&[60, 0, 100]), [84.0, 0.0, 16.0]);
        assert_eq!(shares(&[20, 20, 20]), [33.3, 33.3, 33.3]);
        assert!(loads(&[20, 20, 20], 1.4, Some(0.5)).iter().all(|load| load.panic));
        let both = loads(&[25, 25], 1.4, Some(0.5));
        assert!(both.iter().all(|load| load.panic && (load.share - 0.5).abs() < 1e-12));
        assert!(!loads(&[25, 100], 1.4, Some(0.5))[0].panic, "the second tier takes the spill");
    }

    #[test]
    fn nothing_healthy_serves_only_in_panic() {
        assert!(loads(&[0, 0], 1.4, None).iter().all(|load| load.share == 0.0));
        assert_eq!(loads(&[0, 0], 1.4, Some(0.5)), [TierLoad { share: 0.5, panic: true }; 2]);
    }

    /// `routing.md` 5.8: locality weights 60/20/20, the last zone half healthy.
    #[test]
    fn golden_locality_shares() {
        let full = TierHealth { healthy: 10, total: 10 };
        let half = TierHealth { healthy: 5, total: 10 };
        let check = |overflow, expected: [f64; 3]| {
            let shares = locality_shares(&[(60.0, full), (20.0, full), (20.0, half)], overflow).unwrap();
            for (share, expected) in shares.iter().zip(expected) {
                assert!((share * 100.0 - expected).abs() < 0.05, "{share} {expected}");
            }
        };
        check(1.0, [66.7, 22.2, 11.1]);
        check(1.4, [63.8, 21.3, 14.9]);
    }

    /// `routing.md` T25: a locality left empty by a rule loses its weight instead of failing half of the calls.
    #[test]
    fn t25_empty_locality_gets_nothing() {
        let full = TierHealth { healthy: 2, total: 2 };
        assert_eq!(locality_shares(&[(50.0, full), (50.0, TierHealth::default())], 1.4), Some(vec![1.0, 0.0]));
        assert_eq!(locality_shares(&[(50.0, TierHealth::default())], 1.4), None);
    }
}
