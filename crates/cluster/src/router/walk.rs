//! A scattered walk: sources opened concurrently, merged as they are read, accounted for slot by slot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt};
use metaroute_core::{Outcome, OwnedPick};

use super::open::{Answering, Opened, Sub, Template};
use super::{HOPS_MAX, Inner, now};
use crate::completeness::{Ledger, MissingReason};
use crate::failure::{Code, Failure};
use crate::merge::{End, Merge, Step};
use crate::protocol::{
    Aggregate, Moved, Position, ReadEvent, ReadOp, ReadStream, Row, ShardError, ShardErrorKind, Trailer,
};
use crate::query::{Order, Path, Query};
use crate::scatter::Scatter;
use crate::slots::SlotSet;
use crate::topology::Topology;

/// Share of the time left that is kept for merging after the last shard is given up.
const MARGIN_SHARE: u32 = 10;
/// Most time kept for that.
const MARGIN_MAX: Duration = Duration::from_millis(50);

/// An open answer.
struct Source {
    sub: Sub,
    /// Slots it said it answers.
    answered: SlotSet,
    first: Option<ReadEvent>,
    stream: ReadStream,
    pick: Option<OwnedPick>,
    started: Instant,
    /// The last row it showed.
    last: Option<Position>,
    /// How many it showed.
    rows: usize,
    /// Entries it looked at, as far as it said.
    examined: u64,
    /// Whether it ended, in whatever way.
    done: bool,
}

/// A walk in progress.
pub(super) struct Walk {
    inner: Arc<Inner>,
    template: Template,
    topology: Arc<Topology>,
    order: Order,
    started: Instant,
    deadline: Instant,
    then: Then,
    merge: Merge,
    sources: Vec<Source>,
    /// Numbers of sources that ended and go on under the next free number.
    over: Vec<usize>,
    pub(super) ledger: Ledger,
}

/// What becomes of a source that stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// It is asked to go on.
    GoOn,
    /// When it has shown as many rows as it was asked for it is asked to go on, for up to as many as this; when it ran
    /// out of work, so does the walk.
    GoOnFor(u32),
}

/// Why a walk cannot go on at all.
fn fatal(error: &ShardError) -> Option<Failure> {
    let code = match error.kind {
        ShardErrorKind::BadRequest => Code::BadRequest,
        ShardErrorKind::UnknownStore => Code::UnknownStore,
        ShardErrorKind::ReadOnly => Code::ReadOnly,
        _ => return None,
    };
    Some(Failure::new(code, error.message.clone()))
}

impl Walk {
    pub(super) fn new(
        inner: Arc<Inner>,
        topology: Arc<Topology>,
        template: Template,
        query: &Query,
        path: Path,
        deadline: Instant,
        then: Then,
    ) -> Walk {
        Walk {
            ledger: Ledger::new(path, topology.epoch()),
            merge: Merge::new(query.order),
            order: query.order,
            started: now(),
            sources: Vec::new(),
            over: Vec::new(),
            inner,
            template,
            topology,
            deadline,
            then,
        }
    }

    /// Opens everything a query has to ask.
    pub(super) async fn open_all(
        &mut self,
        scatter: &Scatter,
        op: impl Fn(&crate::scatter::Target) -> Option<ReadOp>,
    ) -> Result<(), Failure> {
        self.ledger.want(scatter.wanted);
        for (group, slots) in &scatter.gaps {
            let detail = if group.is_empty() { "the tenant's bucket has no group" } else { "nobody owns these slots" };
            self.ledger.gap(group, slots.clone(), detail.to_owned());
        }
        let mut subs = Vec::new();
        for target in &scatter.targets {
            match op(target) {
                Some(op) => subs.push(Sub {
                    shard: target.shard.clone(),
                    slots: target.slots.clone(),
                    epoch: target.epoch,
                    op,
                    budget: self.template.budget,
                    avoid: Vec::new(),
                }),
                // Nothing of it is left to ask: the page before had it all.
                None => self.ledger.answered(&target.shard, target.slots.len()),
            }
        }
        self.add(subs).await
    }

    /// Opens sub-requests concurrently, follows slots that have moved, and notes what stays without an answer.
    pub(super) async fn add(&mut self, mut subs: Vec<Sub>) -> Result<(), Failure> {
        for hop in 0..=HOPS_MAX {
            let left = self.deadline.saturating_duration_since(now());
            let until = self.deadline - (left / MARGIN_SHARE).min(MARGIN_MAX);
            let (inner, template, deadline) = (&self.inner, &self.template, self.deadline);
            let openings = match &*subs {
                [sub] => vec![inner.open(template, sub, until, deadline).await],
                subs => join_all(subs.iter().map(|sub| inner.open(template, sub, until, deadline))).await,
            };
            let mut moved = Vec::new();
            for (sub, opening) in subs.into_iter().zip(openings) {
                self.ledger.sub_requests += u64::from(opening.requests);
                self.ledger.hedged += opening.hedged;
                match opening.opened {
                    Opened::Answering(answering) => moved.extend(self.opened(sub, *answering)),
                    Opened::NotReady(why) => self.ledger.lost(&sub.shard, sub.slots, MissingReason::NotReady, why),
                    Opened::NoReplica(why) => self.ledger.lost(&sub.shard, sub.slots, MissingReason::NoReplica, why),
                    Opened::TimedOut => {
                        self.ledger.lost(&sub.shard, sub.slots, MissingReason::TimedOut, "no answer in time".into());
                    }
                    Opened::Failed(error) => {
                        if let Some(failure) = fatal(&error) {
                            return Err(failure.with_meta(self.ledger.meta(self.started.elapsed())));
                        }
                        self.ledger.lost(&sub.shard, sub.slots, MissingReason::Failed, error.to_string());
                    }
                }
            }
            if moved.is_empty() {
                return Ok(());
            }
            if hop == HOPS_MAX {
                for (sub, moved) in moved {
                    let detail = format!("still on the move after {HOPS_MAX} hops, last seen going to {}", moved.to);
                    self.ledger.lost(&sub.shard, moved.slots, MissingReason::CoverageGap, detail);
                }
                return Ok(());
            }
            subs = self.follow(moved).await;
            self.ledger.moved_retried += subs.len() as u32;
        }
        Ok(())
    }

    /// Takes an answer's head. Returns the slots to be asked elsewhere.
    fn opened(&mut self, sub: Sub, answering: Answering) -> Vec<(Sub, Moved)> {
        let Answering { head, first, stream, pick, started } = answering;
        let mut open = sub.slots.clone();
        let mut claim = |slots: &SlotSet| {
            let claimed = open.intersection(slots);
            open = open.difference(&claimed);
            claimed
        };
        let answered = claim(&head.answered);
        let mut moved = Vec::new();
        for one in head.moved {
            let slots = claim(&one.slots);
            if !slots.is_empty() {
                moved.push((sub.clone(), Moved { slots, ..one }));
            }
        }
        self.ledger.answered(&sub.shard, answered.len());
        for not_ready in head.not_ready {
            let slots = claim(&not_ready.slots);
            let detail = match not_ready.loaded_permille {
                Some(permille) => format!("{} {}.{} %", not_ready.state, permille / 10, permille % 10),
                None => not_ready.state.to_string(),
            };
            if !slots.is_empty() {
                self.ledger.lost(&sub.shard, slots, MissingReason::NotReady, detail);
            }
        }
        if !open.is_empty() {
            let detail = "the shard said nothing about these slots".to_owned();
            self.ledger.lost(&sub.shard, open, MissingReason::Failed, detail);
        }
        if answered.is_empty() {
            pick.complete(Outcome::Success, started.elapsed());
        } else {
            let pick = Some(pick);
            let source =
                Source { sub, answered, first, stream, pick, started, last: None, rows: 0, examined: 0, done: false };
            match self.over.pop() {
                Some(number) => {
                    self.merge.reopen(number);
                    self.sources[number] = source;
                }
                // A source's number is its place in both lists.
                None => {
                    self.merge.add();
                    self.sources.push(source);
                }
            }
        }
        moved
    }

    /// New sub-requests for slots that have moved.
    async fn follow(&mut self, moved: Vec<(Sub, Moved)>) -> Vec<Sub> {
        let mut subs: BTreeMap<(crate::protocol::ShardId, usize), Sub> = BTreeMap::new();
        for (number, (sub, moved)) in moved.into_iter().enumerate() {
            let group = Arc::clone(&sub.shard.group);
            match self.inner.learn(&group, &moved, self.deadline).await {
                Some(topology) => self.topology = topology,
                None => {
                    let detail = format!("moved to `{}`, which is not known here", moved.to);
                    self.ledger.lost(&sub.shard, moved.slots, MissingReason::CoverageGap, detail);
                    continue;
                }
            }
            let op = match &sub.op {
                ReadOp::Get { ids, tenant, from, to, direction } => {
                    let ids: Vec<u64> =
                        ids.iter().copied().filter(|&id| self.is_in(&group, &moved.slots, id)).collect();
                    ReadOp::Get { ids: ids.into(), tenant: *tenant, from: *from, to: *to, direction: *direction }
                }
                other => other.clone(),
            };
            let shard = crate::protocol::ShardId { group, shard: Arc::clone(&moved.to) };
            let budget = sub.budget;
            let fresh = Sub { shard, slots: moved.slots, epoch: moved.epoch, op, budget, avoid: Vec::new() };
            // Slots that come from several shards and go to one are asked in one request, where the question is the
            // same; ids are not, so those stay apart.
            let apart = if matches!(fresh.op, ReadOp::Get { .. }) { number + 1 } else { 0 };
            match subs.entry((fresh.shard.clone(), apart)) {
                std::collections::btree_map::Entry::Occupied(mut entry) if entry.get().op == fresh.op => {
                    entry.get_mut().slots.extend_from(&fresh.slots);
                    entry.get_mut().epoch = entry.get().epoch.max(fresh.epoch);
                }
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(fresh);
                }
                std::collections::btree_map::Entry::Occupied(_) => {
                    subs.insert((fresh.shard.clone(), number + 1), fresh);
                }
            }
        }
        subs.into_values().collect()
    }

    /// Whether an id falls into one of these slots of a group.
    fn is_in(&self, group: &str, slots: &SlotSet, id: u64) -> bool {
        let Some((index, _)) = self.topology.group(group) else { return false };
        let spans = self.topology.spans_of(index);
        spans.into_iter().any(|span| slots.contains(self.topology.slot(index, span, &self.template.store, id)))
    }

    /// The next step of the merged walk; never [`Step::Need`].
    pub(super) async fn next(&mut self) -> Result<Step, Failure> {
        loop {
            match self.merge.step() {
                Step::Need(source) => self.fill(source).await?,
                step => return Ok(step),
            }
        }
    }

    /// Reads a source's next event.
    async fn fill(&mut self, number: usize) -> Result<(), Failure> {
        let source = &mut self.sources[number];
        let event = match source.first.take() {
            Some(event) => Some(Ok(event)),
            // What is there already needs no timer.
            None => match source.stream.next().now_or_never() {
                Some(event) => event,
                None => match tokio::time::timeout_at(self.deadline.into(), source.stream.next()).await {
                    Ok(event) => event,
                    Err(_) => {
                        let detail = "the answer did not finish in time".to_owned();
                        self.break_off(number, MissingReason::TimedOut, detail);
                        return Ok(());
                    }
                },
            },
        };
        match event {
            Some(Ok(ReadEvent::Rows(batch))) => {
                if let Some(row) = batch.rows.last() {
                    source.last = Some(self.order.position(row.time, row.id));
                }
                source.rows += batch.rows.len();
                self.worked(number, batch.examined, batch.row_reads);
                self.merge.push(number, batch.rows);
                Ok(())
            }
            Some(Ok(ReadEvent::Trailer(trailer))) => {
                let full = |limit| self.sources[number].rows >= limit as usize;
                let is_full = self.sources[number].sub.limit().is_some_and(full);
                match (self.trailer(number, &trailer), self.then) {
                    (Some(sub), Then::GoOn) => self.go_on(number, sub).await,
                    (Some(mut sub), Then::GoOnFor(rows))
                        if is_full && sub.budget.entries > self.sources[number].examined =>
                    {
                        sub.budget.entries -= self.sources[number].examined;
                        self.go_on(number, sub.limited(rows)).await
                    }
                    (_, Then::GoOn) => {
                        self.merge.end(number, End::Finished);
                        Ok(())
                    }
                    (_, Then::GoOnFor(_)) => {
                        self.merge.end(number, trailer.next.map_or(End::Finished, End::StoppedAt));
                        Ok(())
                    }
                }
            }
            Some(Ok(ReadEvent::Head(_))) => {
                self.break_off(number, MissingReason::Failed, "a second head".to_owned());
                Ok(())
            }
            Some(Err(error)) => self.failed(number, error).await,
            None => {
                let error = ShardError::new(ShardErrorKind::Unavailable, "the answer broke off");
                self.failed(number, error).await
            }
        }
    }

    /// Accounts for work of a source.
    fn worked(&mut self, number: usize, examined: u64, row_reads: u64) {
        self.sources[number].examined += examined;
        self.ledger.examined += examined;
        self.ledger.row_reads += row_reads;
    }

    /// Accounts for a finished answer. Returns the question that goes on where it stopped.
    fn trailer(&mut self, number: usize, trailer: &Trailer) -> Option<Sub> {
        self.worked(number, trailer.examined, trailer.row_reads);
        let source = &mut self.sources[number];
        source.done = true;
        if let Some(pick) = source.pick.take() {
            pick.complete(Outcome::Success, source.started.elapsed());
        }
        let lost = source.answered.difference(&trailer.answered);
        let shard = source.sub.shard.clone();
        self.ledger.freshness(&shard, &trailer.watermark, trailer.lag_ms);
        let kept = source.answered.intersection(&trailer.answered);
        let more = trailer.next.and_then(|next| Sub { slots: kept, ..source.sub.clone() }.after(next));
        if !lost.is_empty() {
            let detail = "the shard lost these slots while it answered".to_owned();
            self.ledger.broke_off(&shard, lost, MissingReason::Failed, detail);
        }
        more.filter(|sub| !sub.slots.is_empty())
    }

    /// Continues a source that has ended. It leaves its number to what comes next: a long export asks a thousand times, and
    /// what every one of them kept would add up, buffers of its connection included.
    async fn go_on(&mut self, number: usize, sub: Sub) -> Result<(), Failure> {
        self.ledger.reopened(&sub.slots);
        self.merge.end(number, End::Finished);
        self.over.push(number);
        self.add(vec![sub]).await
    }

    /// A copy failed in the middle: another one goes on behind the last row, once.
    async fn failed(&mut self, number: usize, error: ShardError) -> Result<(), Failure> {
        if let Some(failure) = fatal(&error) {
            return Err(failure.with_meta(self.meta()));
        }
        let source = &mut self.sources[number];
        let instance = source.pick.as_ref().map(|pick| pick.instance().id.clone());
        if let Some(pick) = source.pick.take() {
            pick.complete(Outcome::Failure, source.started.elapsed());
        }
        let mut sub = Sub { slots: source.answered.clone(), ..source.sub.clone() };
        if let Some(last) = source.last {
            match sub.after(last) {
                Some(rest) => sub = rest,
                None => {
                    // It had shown every row it was asked for.
                    source.done = true;
                    self.merge.end(number, End::Finished);
                    return Ok(());
                }
            }
        }
        let again = error.kind.is_worth_another_copy() && sub.avoid.is_empty() && self.inner.retries.try_withdraw();
        match instance {
            Some(instance) if again => {
                source.done = true;
                sub.avoid.push(instance);
                self.go_on(number, sub).await
            }
            _ => {
                self.break_off(number, MissingReason::Failed, error.to_string());
                Ok(())
            }
        }
    }

    fn break_off(&mut self, number: usize, reason: MissingReason, detail: String) {
        let source = &mut self.sources[number];
        source.done = true;
        source.pick = None;
        let (shard, slots) = (source.sub.shard.clone(), std::mem::take(&mut source.answered));
        self.ledger.broke_off(&shard, slots, reason, detail);
        self.merge.end(number, End::Finished);
    }

    /// Fails when what is held is more than a request may hold. `kept` is what the caller holds besides.
    pub(super) fn check_size(&self, kept: usize) -> Result<(), Failure> {
        let most = self.inner.options.merge_bytes;
        if self.merge.bytes() + kept <= most {
            return Ok(());
        }
        let message = format!("the answer needs more than {most} bytes at the router");
        let failure = Failure::new(Code::ResultTooLarge, message).hint("ask for fewer rows or fewer fields, or export");
        Err(failure.with_meta(self.meta()))
    }

    /// Reads the trailers that have arrived already, for the accounts; what has not is called off by dropping it, and where
    /// the rest of an answer would only be made by asking for it, that is not asked for.
    pub(super) fn settle(&mut self, on_demand: bool) {
        for number in 0..self.sources.len() {
            while !self.sources[number].done {
                let source = &mut self.sources[number];
                let event = match source.first.take() {
                    Some(event) => Some(Ok(event)),
                    None if on_demand => None,
                    None => source.stream.next().now_or_never().flatten(),
                };
                match event {
                    Some(Ok(ReadEvent::Rows(batch))) => self.worked(number, batch.examined, batch.row_reads),
                    Some(Ok(ReadEvent::Trailer(trailer))) => {
                        // Rows behind the page are of no interest, nor is where the shard stopped.
                        let _ = self.trailer(number, &trailer);
                    }
                    _ => break,
                }
            }
            let source = &mut self.sources[number];
            if on_demand && let Some(pick) = source.pick.take() {
                // It gave all that was wanted of it.
                pick.complete(Outcome::Success, source.started.elapsed());
            }
        }
    }

    /// Reads the sources opened since `from` to their ends: their aggregates, and the questions that go on.
    pub(super) async fn aggregates(&mut self, from: usize) -> Result<(Vec<Aggregate>, Vec<Sub>), Failure> {
        let (mut parts, mut more) = (Vec::new(), Vec::new());
        for number in from..self.sources.len() {
            while !self.sources[number].done {
                let source = &mut self.sources[number];
                let event = match source.first.take() {
                    Some(event) => Some(Ok(event)),
                    None => match tokio::time::timeout_at(self.deadline.into(), source.stream.next()).await {
                        Ok(event) => event,
                        Err(_) => {
                            self.break_off(number, MissingReason::TimedOut, "no answer in time".into());
                            break;
                        }
                    },
                };
                match event {
                    Some(Ok(ReadEvent::Trailer(mut trailer))) => {
                        let Some(part) = trailer.aggregate.take() else {
                            self.break_off(number, MissingReason::Failed, "an answer without an aggregate".into());
                            break;
                        };
                        parts.push(part);
                        if let Some(sub) = self.trailer(number, &trailer) {
                            self.ledger.reopened(&sub.slots);
                            more.push(sub);
                        }
                    }
                    Some(Ok(_)) => self.break_off(number, MissingReason::Failed, "rows instead of an aggregate".into()),
                    Some(Err(error)) => {
                        if let Some(failure) = fatal(&error) {
                            return Err(failure.with_meta(self.meta()));
                        }
                        self.break_off(number, MissingReason::Failed, error.to_string());
                    }
                    None => self.break_off(number, MissingReason::Failed, "the answer broke off".into()),
                }
            }
        }
        Ok((parts, more))
    }

    /// Reads all rows of all sources, unmerged, with the shard each came from.
    pub(super) async fn rows_by_shard(&mut self) -> Result<Vec<(crate::protocol::ShardId, Row)>, Failure> {
        let mut rows = Vec::new();
        let mut number = 0;
        // Following a failed copy adds sources behind.
        while number < self.sources.len() {
            while !self.sources[number].done {
                self.fill(number).await?;
                let shard = self.sources[number].sub.shard.clone();
                rows.extend(self.merge.take(number).into_iter().map(|row| (shard.clone(), row)));
            }
            number += 1;
        }
        Ok(rows)
    }

    /// Asks for other columns than the query's.
    pub(super) fn retarget_fields(&mut self, fields: Arc<[String]>) {
        self.template.fields = fields;
    }

    pub(super) fn source_count(&self) -> usize {
        self.sources.len()
    }

    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(super) fn meta(&self) -> crate::completeness::Meta {
        self.ledger.meta(self.started.elapsed())
    }

    /// The accounts at the end, or why there is no answer.
    pub(super) fn verdict(&self, partial: bool) -> Result<crate::completeness::Meta, Failure> {
        self.check(partial).map(|()| self.meta())
    }

    /// Why there is no answer, as far as is known.
    pub(super) fn check(&self, partial: bool) -> Result<(), Failure> {
        if self.ledger.is_complete() || (partial && self.ledger.has_answers()) {
            return Ok(());
        }
        let meta = self.meta();
        let (code, what) = match self.ledger.worst() {
            Some(MissingReason::CoverageGap) => (Code::CoverageGap, "have no owner"),
            Some(MissingReason::TimedOut) => (Code::DeadlineExceeded, "were not answered in time"),
            Some(MissingReason::NotReady) => (Code::NotReady, "are not ready"),
            Some(MissingReason::Failed | MissingReason::NoReplica) | None => (Code::Incomplete, "could not be read"),
        };
        let missing = meta.missing_slots();
        let names: Vec<String> =
            meta.missing.iter().take(5).map(|missing| format!("{}/{}", missing.group, missing.shard)).collect();
        let message = format!("{missing} of {} slots {what} ({})", meta.slots.wanted, names.join(", "));
        Err(Failure::new(code, message).with_meta(meta))
    }
}
