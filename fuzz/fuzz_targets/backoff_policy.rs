//! Policy texts: parsing is total, printing and parsing agree, and whatever parses keeps its law.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use metaroute_core::resilience::backoff::{Backoff, Failure, Policy, parse_duration};

/// A generator with no state worth seeding: the waits' bounds hold for any stream.
struct Counter(u64);

impl rand::TryRng for Counter {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        self.try_next_u64().map(|value| value as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Ok(self.0)
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        bytes.fill(self.0 as u8);
        Ok(())
    }
}

fuzz_target!(|input: (u8, &str)| {
    let (kind, text) = input;
    let _ = parse_duration(text);
    // The words would take the fuzzer a while to guess; what follows them is the interesting part.
    let text = format!("{}{text}", ["", "none", "fixed:", "exponential:", "exponential:1s,1.5,"][usize::from(kind) % 5]);
    let Ok(policy) = text.parse::<Policy>() else { return };
    assert_eq!(policy.to_string().parse::<Policy>(), Ok(policy));
    let mut rng = Counter(text.len() as u64);
    let mut backoff = Backoff::new(policy);
    let mut now = Duration::ZERO;
    for attempts in 1..50u32 {
        match backoff.on_failure(Failure::Transient, now, &mut rng) {
            Ok(wait) => {
                assert!(wait <= policy.wait_max());
                assert!(policy.attempts_max().is_none_or(|max| attempts < max.get()));
                now = now.saturating_add(wait);
                assert!(policy.elapsed_max().is_none_or(|max| now <= max));
            }
            Err(_) => return,
        }
    }
});
