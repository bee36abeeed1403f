//! When is slow too slow.
//!
//! With a hundred shards a query meets the slowest percent of every one of them: 1 % slow shards make 63 % slow queries.
//! Asking a second copy once the first takes longer than nearly all answers do removes that tail for a few percent of
//! extra requests (Dean and Barroso, *The Tail at Scale*, 2013). "Nearly all" is measured here, per copy.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metaroute_core::InstanceId;

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

/// Most copies of one shard that are remembered; one that came later takes the place of the one least asked.
const COPIES_MAX: usize = 16;

/// Latencies by shard and copy.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    shards: Mutex<HashMap<ShardId, Vec<(InstanceId, Digest)>>>,
}

impl Latencies {
    /// Notes how long the first rows of an answer took.
    pub(super) fn record(&self, shard: &ShardId, copy: &InstanceId, latency: Duration) {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let copies = match shards.get_mut(shard) {
            Some(copies) => copies,
            None => shards.entry(shard.clone()).or_default(),
        };
        let at = match copies.iter().position(|(known, _)| known == copy) {
            Some(at) => at,
            None => {
                if copies.len() >= COPIES_MAX
                    && let Some((idle, _)) = copies.iter().enumerate().min_by_key(|(_, (_, digest))| digest.total)
                {
                    copies.swap_remove(idle);
                }
                copies.push((copy.clone(), Digest::default()));
                copies.len() - 1
            }
        };
        copies[at].1.record(latency);
    }

    /// How long to wait before a second copy is asked: as long as the best of the shard's copies takes for nearly all of
    /// its answers. A percentile over all of them would follow the sick one that hedging is there for.
    pub(super) fn hedge_after(&self, shard: &ShardId, most: Duration) -> Duration {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let best = shards.get(shard).and_then(|copies| copies.iter().filter_map(|(_, digest)| digest.p98()).min());
        best.map_or(most, |p98| p98.min(most)).max(DELAY_MIN)
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
        let (copy, sick) = (InstanceId::new("a"), InstanceId::new("b"));
        assert_eq!(latencies.hedge_after(&shard, MOST), MOST, "nothing is known yet");
        for n in 0..500 {
            let slow = n % 100 == 0;
            latencies.record(&shard, &copy, Duration::from_millis(if slow { 100 } else { 2 }));
        }
        let delay = latencies.hedge_after(&shard, MOST);
        assert!(delay >= Duration::from_millis(2) && delay <= Duration::from_micros(2_500), "{delay:?}");
        for _ in 0..500 {
            latencies.record(&shard, &sick, Duration::from_secs(1));
        }
        assert_eq!(latencies.hedge_after(&shard, MOST), delay, "another copy that is slow changes nothing");
        for n in 0..2 * COPIES_MAX {
            latencies.record(&shard, &InstanceId::new(format!("other-{n}")), Duration::from_secs(1));
        }
        assert_eq!(latencies.hedge_after(&shard, MOST), delay, "copies that come and go take no room");
        for _ in 0..2_000 {
            latencies.record(&shard, &copy, Duration::from_secs(1));
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
