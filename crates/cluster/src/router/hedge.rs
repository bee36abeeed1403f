//! When is slow too slow.
//!
//! With a hundred shards a query meets the slowest percent of every one of them: 1 % slow shards make 63 % slow queries.
//! Asking a second copy once the first takes longer than nearly all answers do removes that tail for a few percent of
//! extra requests (Dean and Barroso, *The Tail at Scale*, 2013). "Nearly all" is measured here, per shard.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::protocol::ShardId;

/// Buckets grow by a quarter of a power of two, from 1 µs to beyond an hour.
const BUCKETS: usize = 128;
/// Below as many answers there is no percentile worth the name.
const SAMPLES_MIN: u32 = 50;
/// At as many answers all counts are halved, so that the digest follows the present.
const SAMPLES_MAX: u32 = 1_000;
/// A hedge before this would be sent for scheduling noise.
const DELAY_MIN: Duration = Duration::from_micros(500);

#[derive(Debug)]
struct Digest {
    counts: [u32; BUCKETS],
    total: u32,
}

impl Default for Digest {
    fn default() -> Self {
        Digest { counts: [0; BUCKETS], total: 0 }
    }
}

/// The bucket of a latency: four per doubling.
fn bucket(latency: Duration) -> usize {
    let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1);
    let doubling = micros.ilog2();
    // The two bits below the leading one.
    let quarter = if doubling >= 2 { micros >> (doubling - 2) & 3 } else { micros << (2 - doubling) & 3 };
    (doubling as usize * 4 + quarter as usize).min(BUCKETS - 1)
}

/// The upper edge of a bucket.
fn edge(bucket: usize) -> Duration {
    let (doubling, quarter) = (bucket as u32 / 4, bucket as u64 % 4);
    let micros = ((5 + quarter) << doubling.min(58)) / 4;
    Duration::from_micros(micros)
}

impl Digest {
    fn record(&mut self, latency: Duration) {
        self.counts[bucket(latency)] += 1;
        self.total += 1;
        if self.total >= SAMPLES_MAX {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
    }

    fn p98(&self) -> Option<Duration> {
        if self.total < SAMPLES_MIN {
            return None;
        }
        let rank = (u64::from(self.total) * 98).div_ceil(100) as u32;
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        at.map(edge)
    }
}

/// Latencies by shard.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    shards: Mutex<HashMap<ShardId, Arc<Mutex<Digest>>>>,
}

impl Latencies {
    fn digest(&self, shard: &ShardId) -> Arc<Mutex<Digest>> {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        match shards.get(shard) {
            Some(digest) => Arc::clone(digest),
            None => Arc::clone(shards.entry(shard.clone()).or_default()),
        }
    }

    /// Notes how long the first rows of an answer took.
    pub(super) fn record(&self, shard: &ShardId, latency: Duration) {
        self.digest(shard).lock().unwrap_or_else(PoisonError::into_inner).record(latency);
    }

    /// How long to wait before a second copy is asked.
    pub(super) fn hedge_after(&self, shard: &ShardId, most: Duration) -> Duration {
        let p98 = self.digest(shard).lock().unwrap_or_else(PoisonError::into_inner).p98();
        p98.map_or(most, |p98| p98.min(most)).max(DELAY_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_millis(50);

    #[test]
    fn the_delay_is_the_98th_percentile_but_bounded() {
        let latencies = Latencies::default();
        let shard = ShardId::new("g0", "s0");
        assert_eq!(latencies.hedge_after(&shard, MOST), MOST, "nothing is known yet");
        for n in 0..500 {
            let slow = n % 100 == 0;
            latencies.record(&shard, Duration::from_millis(if slow { 100 } else { 2 }));
        }
        let delay = latencies.hedge_after(&shard, MOST);
        assert!(delay >= Duration::from_millis(2) && delay <= Duration::from_micros(2_500), "{delay:?}");
        for _ in 0..2_000 {
            latencies.record(&shard, Duration::from_secs(1));
        }
        assert_eq!(latencies.hedge_after(&shard, MOST), MOST, "a sick host does not drag the delay along");
    }

    #[test]
    fn every_latency_has_a_bucket_whose_edge_is_above_it_by_a_quarter_at_most() {
        for micros in (1..5_000).chain([1 << 20, 123_456_789]) {
            let latency = Duration::from_micros(micros);
            let edge = edge(bucket(latency));
            assert!(edge >= latency, "{micros}: {edge:?}");
            assert!(edge <= latency + latency / 4 + Duration::from_micros(1), "{micros}: {edge:?}");
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
        assert_eq!(bucket(Duration::ZERO), 0);
    }
}
