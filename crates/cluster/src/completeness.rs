//! What an answer covers.
//!
//! Most scattered systems count a timed-out shard as a success, or say "partial" without saying what is missing. Here
//! every answer, also a refused one, carries a [`Meta`]: how many shards were asked and how each ended, how many slots
//! were wanted and answered, and by name what is missing and why. `complete` is true only when every wanted slot was
//! answered by a ready copy.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::protocol::ShardId;
use crate::query::Path;
use crate::slots::SlotSet;

/// How the shards ended. `ok + failed + timed_out + not_ready = total` always; the other numbers are extra.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShardCounts {
    /// Shards asked; several copies of one are one.
    pub total: u32,
    /// Answered.
    pub ok: u32,
    /// Could not be reached, or failed, or nobody owns the slots.
    pub failed: u32,
    /// Did not answer in time.
    pub timed_out: u32,
    /// Said that they are not ready, or have no ready copy.
    pub not_ready: u32,
    /// Answered from a copy known to lag behind.
    pub stale: u32,
    /// Sub-requests repeated because slots had moved.
    pub moved_retried: u32,
}

/// Numbers of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SlotCounts {
    /// Slots the request is about.
    pub wanted: u32,
    /// Slots answered by a ready copy.
    pub answered: u32,
}

/// Why slots are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MissingReason {
    /// The shard could not be reached, or failed.
    Failed,
    /// No copy of the shard is known.
    NoReplica,
    /// No answer in time.
    TimedOut,
    /// Not ready.
    NotReady,
    /// Nobody owns the slots, or they were still on the move after two hops.
    CoverageGap,
}

/// Slots without an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Their group.
    pub group: String,
    /// The shard that should have answered; empty where nobody owns them.
    pub shard: String,
    /// Which, as text (`0-4095/2`).
    #[serde(serialize_with = "as_text")]
    pub slots: SlotSet,
    /// Why.
    pub reason: MissingReason,
    /// What happened, for people.
    pub detail: String,
}

fn as_text<S: Serializer>(slots: &SlotSet, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(slots)
}

/// How fresh the answer is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Watermark {
    /// Lowest applied position by shard and lane (`g0/s0` → lane → position); empty without a change stream.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub positions: BTreeMap<String, BTreeMap<String, String>>,
    /// How far the slowest copy is behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_ms_max: Option<u64>,
}

/// What was asked, what was reached and what it cost. The `meta` block of every answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Meta {
    /// The path the query took.
    pub path: Path,
    /// Whether every wanted slot was answered by a ready copy.
    pub complete: bool,
    /// Epoch of the topology the router used.
    pub topology_epoch: u64,
    /// How the shards ended.
    pub shards: ShardCounts,
    /// What is missing; empty exactly when `complete`.
    pub missing: Vec<Missing>,
    /// Numbers of slots.
    pub slots: SlotCounts,
    /// Entries the shards looked at.
    pub examined: u64,
    /// Rows read beside the listing index.
    pub row_reads: u64,
    /// Rows in the answer.
    pub returned: u64,
    /// Bytes of the rows in the answer.
    pub bytes: u64,
    /// Time at the router.
    pub took_us: u64,
    /// Sub-requests sent a second time because the first was slow.
    pub hedged: u32,
    /// What the request cost: 1 per sub-request, plus examined / 100, plus KiB.
    pub cost: f64,
    /// How fresh the answer is.
    pub watermark: Watermark,
}

impl Meta {
    /// Appends what `serde_json` would write. The block is most of a small answer, and field by field through a
    /// serialiser it took longer than reading the row.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        fn put<T: Serialize>(out: &mut Vec<u8>, before: &str, value: T) {
            out.extend_from_slice(before.as_bytes());
            serde_json::to_writer(out, &value).expect("plain data into memory always serialises");
        }
        let Meta { path, complete, topology_epoch, shards, missing, slots, examined, row_reads, returned, .. } = self;
        let Meta { bytes, took_us, hedged, cost, watermark, .. } = self;
        put(out, "{\"path\":", path);
        put(out, ",\"complete\":", complete);
        put(out, ",\"topology_epoch\":", topology_epoch);
        let ShardCounts { total, ok, failed, timed_out, not_ready, stale, moved_retried } = shards;
        put(out, ",\"shards\":{\"total\":", total);
        put(out, ",\"ok\":", ok);
        put(out, ",\"failed\":", failed);
        put(out, ",\"timed_out\":", timed_out);
        put(out, ",\"not_ready\":", not_ready);
        put(out, ",\"stale\":", stale);
        put(out, ",\"moved_retried\":", moved_retried);
        put(out, "},\"missing\":", missing);
        let SlotCounts { wanted, answered } = slots;
        put(out, ",\"slots\":{\"wanted\":", wanted);
        put(out, ",\"answered\":", answered);
        put(out, "},\"examined\":", examined);
        put(out, ",\"row_reads\":", row_reads);
        put(out, ",\"returned\":", returned);
        put(out, ",\"bytes\":", bytes);
        put(out, ",\"took_us\":", took_us);
        put(out, ",\"hedged\":", hedged);
        put(out, ",\"cost\":", cost);
        put(out, ",\"watermark\":", watermark);
        out.push(b'}');
    }

    /// The block of a request that ended before anything was asked: everything is 0, and the path is `null` because it
    /// may not have been read yet.
    pub fn of_nothing(topology_epoch: u64) -> serde_json::Value {
        let mut meta = serde_json::to_value(Ledger::new(Path::A, topology_epoch).meta(std::time::Duration::ZERO))
            .expect("plain data serialises");
        meta["path"] = serde_json::Value::Null;
        meta["complete"] = false.into();
        meta
    }

    /// How many wanted slots have no answer.
    pub fn missing_slots(&self) -> u32 {
        self.missing.iter().map(|missing| missing.slots.len()).sum()
    }
}

/// The price of a request: 1 per sub-request + examined / 100 + KiB, rounded to hundredths.
///
/// ```
/// use metaroute_cluster::completeness::cost;
/// assert_eq!(cost(12, 600, 2048), 20.0);
/// ```
pub fn cost(sub_requests: u64, examined: u64, bytes: u64) -> f64 {
    let exact = sub_requests as f64 + examined as f64 / 100.0 + bytes as f64 / 1024.0;
    (exact * 100.0).round() / 100.0
}

/// How asking one shard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ended {
    Ok,
    NotReady,
    TimedOut,
    Failed,
}

/// Keeps the books while a request runs.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: Path,
    wanted: u32,
    answered: u32,
    shards: BTreeMap<ShardId, Ended>,
    missing: Vec<Missing>,
    pub(crate) epoch: u64,
    pub(crate) sub_requests: u64,
    pub(crate) moved_retried: u32,
    pub(crate) hedged: u32,
    pub(crate) examined: u64,
    pub(crate) row_reads: u64,
    pub(crate) returned: u64,
    pub(crate) bytes: u64,
    watermark: Watermark,
}

impl Ledger {
    pub(crate) fn new(path: Path, epoch: u64) -> Ledger {
        Ledger {
            path,
            wanted: 0,
            answered: 0,
            shards: BTreeMap::new(),
            missing: Vec::new(),
            epoch,
            sub_requests: 0,
            moved_retried: 0,
            hedged: 0,
            examined: 0,
            row_reads: 0,
            returned: 0,
            bytes: 0,
            watermark: Watermark::default(),
        }
    }

    /// Notes slots the request is about.
    pub(crate) fn want(&mut self, slots: u32) {
        self.wanted += slots;
    }

    /// Notes that a shard answered slots.
    pub(crate) fn answered(&mut self, shard: &ShardId, slots: u32) {
        self.answered += slots;
        self.shards.entry(shard.clone()).or_insert(Ended::Ok);
    }

    /// Notes that answered slots are asked again for what follows: they count when that answers too.
    pub(crate) fn reopened(&mut self, slots: &SlotSet) {
        self.answered = self.answered.saturating_sub(slots.len());
    }

    /// Takes back slots that were noted as answered and broke off.
    pub(crate) fn broke_off(&mut self, shard: &ShardId, slots: SlotSet, reason: MissingReason, detail: String) {
        self.answered = self.answered.saturating_sub(slots.len());
        self.lost(shard, slots, reason, detail);
    }

    /// Notes slots that a shard did not answer.
    pub(crate) fn lost(&mut self, shard: &ShardId, slots: SlotSet, reason: MissingReason, detail: String) {
        let ended = match reason {
            MissingReason::NotReady => Ended::NotReady,
            MissingReason::TimedOut => Ended::TimedOut,
            MissingReason::Failed | MissingReason::NoReplica | MissingReason::CoverageGap => Ended::Failed,
        };
        let entry = self.shards.entry(shard.clone()).or_insert(ended);
        *entry = (*entry).max(ended);
        if !slots.is_empty() {
            self.missing.push(Missing {
                group: shard.group.to_string(),
                shard: shard.shard.to_string(),
                slots,
                reason,
                detail,
            });
        }
    }

    /// Notes slots nobody owns. No shard was asked for them.
    pub(crate) fn gap(&mut self, group: &str, slots: SlotSet, detail: String) {
        if !slots.is_empty() {
            let reason = MissingReason::CoverageGap;
            self.missing.push(Missing { group: group.to_owned(), shard: String::new(), slots, reason, detail });
        }
    }

    /// Notes how fresh a shard's answer is.
    pub(crate) fn freshness(&mut self, shard: &ShardId, positions: &[(String, String)], lag_ms: Option<u64>) {
        if !positions.is_empty() {
            let lanes = self.watermark.positions.entry(shard.to_string()).or_default();
            lanes.extend(positions.iter().cloned());
        }
        self.watermark.lag_ms_max = self.watermark.lag_ms_max.max(lag_ms);
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.wanted == self.answered
    }

    /// Whether at least one slot was answered.
    pub(crate) fn has_answers(&self) -> bool {
        self.answered > 0
    }

    /// The worst reason among the missing slots.
    pub(crate) fn worst(&self) -> Option<MissingReason> {
        self.missing.iter().map(|missing| missing.reason).max_by_key(|reason| match reason {
            MissingReason::CoverageGap => 4,
            MissingReason::Failed | MissingReason::NoReplica => 3,
            MissingReason::TimedOut => 2,
            MissingReason::NotReady => 1,
        })
    }

    /// The block as of now.
    pub(crate) fn meta(&self, took: std::time::Duration) -> Meta {
        let count = |ended| self.shards.values().filter(|&&have| have == ended).count() as u32;
        let shards = ShardCounts {
            total: self.shards.len() as u32,
            ok: count(Ended::Ok),
            failed: count(Ended::Failed),
            timed_out: count(Ended::TimedOut),
            not_ready: count(Ended::NotReady),
            // Copies that lag exist only behind a change stream.
            stale: 0,
            moved_retried: self.moved_retried,
        };
        let mut missing = self.missing.clone();
        missing.sort_by(|a, b| (&a.group, &a.shard, a.reason).cmp(&(&b.group, &b.shard, b.reason)));
        Meta {
            path: self.path,
            complete: self.is_complete(),
            topology_epoch: self.epoch,
            shards,
            missing,
            slots: SlotCounts { wanted: self.wanted, answered: self.answered },
            examined: self.examined,
            row_reads: self.row_reads,
            returned: self.returned,
            bytes: self.bytes,
            took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            hedged: self.hedged,
            cost: cost(self.sub_requests, self.examined, self.bytes),
            watermark: self.watermark.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_not_complete() {
        let meta = Meta::of_nothing(7);
        assert_eq!((&meta["path"], &meta["complete"]), (&serde_json::Value::Null, &false.into()));
        assert_eq!((&meta["topology_epoch"], &meta["shards"]["total"]), (&7.into(), &0.into()));
    }

    #[test]
    fn the_block_is_written_as_the_serialiser_would() {
        let mut ledger = Ledger::new(Path::B, 7);
        let shard = |name: &str| ShardId::new("g\"0", name);
        ledger.want(4_096);
        ledger.answered(&shard("s0"), 2_048);
        let check = |ledger: &Ledger, complete: bool| {
            let meta = ledger.meta(std::time::Duration::from_micros(1_234));
            assert_eq!(meta.complete, complete);
            let mut out = Vec::new();
            meta.write_json(&mut out);
            let expected = serde_json::to_string(&meta).expect("plain data");
            assert_eq!(String::from_utf8(out).expect("UTF-8"), expected);
        };
        ledger.answered(&shard("s1"), 2_048);
        (ledger.examined, ledger.row_reads, ledger.returned, ledger.bytes) = (202, 3, 100, 20_480);
        (ledger.sub_requests, ledger.moved_retried, ledger.hedged) = (5, 1, 2);
        check(&ledger, true);
        ledger.freshness(&shard("s0"), &[("lane".to_owned(), "gtid:1-2".to_owned())], Some(17));
        let some = (7..4_000).step_by(9).collect();
        ledger.broke_off(&shard("s1"), some, MissingReason::TimedOut, "no \"answer\"\nin time".to_owned());
        ledger.gap("g1", (0..5).collect(), "nobody".to_owned());
        check(&ledger, false);
    }
}
