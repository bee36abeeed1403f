//! Getting one shard to answer: pick a copy, ask, ask another when it fails or is slow.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use metaroute_core::{InstanceId, Outcome, OwnedPick};
use tracing::Instrument;

use super::{Inner, now};
use crate::protocol::{
    Direction, Head, Position, ReadEvent, ReadOp, ReadRequest, ReadStream, ShardError, ShardErrorKind, ShardId,
    WorkBudget,
};
use crate::replicas::NoReplica;
use crate::slots::SlotSet;

/// What all sub-requests of a query have in common.
#[derive(Clone, Debug)]
pub(super) struct Template {
    pub(super) request_id: Arc<str>,
    pub(super) store: Arc<str>,
    pub(super) filter: Option<Arc<str>>,
    pub(super) fields: Arc<[String]>,
    pub(super) budget: WorkBudget,
    pub(super) batch: Option<NonZeroU32>,
    pub(super) hedge: bool,
}

/// One sub-request.
#[derive(Clone, Debug)]
pub(super) struct Sub {
    pub(super) shard: ShardId,
    pub(super) slots: SlotSet,
    pub(super) epoch: u64,
    pub(super) op: ReadOp,
    /// Work it may cost.
    pub(super) budget: WorkBudget,
    /// Copies that have failed this very question.
    pub(super) avoid: Vec<InstanceId>,
}

impl Sub {
    /// The same question from behind a position on; `None` when nothing is left of it.
    pub(super) fn after(mut self, position: Position) -> Option<Sub> {
        match &mut self.op {
            ReadOp::Get { ids, direction, .. } => {
                let left: Vec<u64> = match direction {
                    Direction::Ascending => ids.iter().copied().filter(|id| *id > position.id).collect(),
                    Direction::Descending => ids.iter().copied().filter(|id| *id < position.id).collect(),
                };
                if left.is_empty() {
                    return None;
                }
                *ids = left.into();
            }
            ReadOp::List { after, .. } | ReadOp::Aggregate { after, .. } => *after = Some(position),
            ReadOp::Scan { after, .. } => *after = Some(position.id),
        }
        Some(self)
    }

    /// Rows it asks for at most.
    pub(super) fn limit(&self) -> Option<u32> {
        match self.op {
            ReadOp::List { limit, .. } | ReadOp::Scan { limit, .. } => Some(limit),
            ReadOp::Get { .. } | ReadOp::Aggregate { .. } => None,
        }
    }

    /// The same question with another limit.
    pub(super) fn limited(mut self, rows: u32) -> Sub {
        if let ReadOp::List { limit, .. } | ReadOp::Scan { limit, .. } = &mut self.op {
            *limit = rows;
        }
        self
    }
}

/// How asking a shard went.
pub(super) enum Opened {
    /// A copy answers at least for some slots, or knows where they are.
    Answering(Box<Answering>),
    /// No copy is ready.
    NotReady(String),
    /// No copy is known.
    NoReplica(String),
    /// None answered in time.
    TimedOut,
    /// All that were asked failed, or one said that the request is at fault.
    Failed(ShardError),
}

/// An answer whose first payload has arrived.
pub(super) struct Answering {
    pub(super) head: Head,
    pub(super) first: Option<ReadEvent>,
    pub(super) stream: ReadStream,
    pub(super) pick: OwnedPick,
    pub(super) started: Instant,
}

/// An outcome and what it took.
pub(super) struct Opening {
    pub(super) opened: Opened,
    pub(super) requests: u32,
    pub(super) hedged: u32,
}

type First = (Head, Option<ReadEvent>, ReadStream);

/// Asks one copy and waits for its head and the first thing behind it: a head alone says nothing about how fast the
/// rows come.
async fn first_payload(mut stream: ReadStream) -> Result<First, ShardError> {
    let broke_off = || ShardError::new(ShardErrorKind::Unavailable, "the answer broke off");
    let head = match stream.next().await.unwrap_or_else(|| Err(broke_off()))? {
        ReadEvent::Head(head) => head,
        _ => return Err(ShardError::new(ShardErrorKind::Internal, "the answer does not begin with its head")),
    };
    if head.answered.is_empty() {
        return Ok((head, None, stream));
    }
    let first = stream.next().await.unwrap_or_else(|| Err(broke_off()))?;
    Ok((head, Some(first), stream))
}

impl Inner {
    pub(super) fn request(&self, template: &Template, sub: &Sub) -> ReadRequest {
        ReadRequest {
            request_id: Arc::clone(&template.request_id),
            store: Arc::clone(&template.store),
            shard: sub.shard.clone(),
            slots: sub.slots.clone(),
            epoch: sub.epoch,
            filter: template.filter.clone(),
            fields: Arc::clone(&template.fields),
            op: sub.op.clone(),
            budget: sub.budget,
            batch: template.batch,
        }
    }

    /// Asks until a copy answers, nobody is left to ask, or `until`. The shards get `deadline`.
    pub(super) async fn open(&self, template: &Template, sub: &Sub, until: Instant, deadline: Instant) -> Opening {
        let mut opening = Opening { opened: Opened::TimedOut, requests: 0, hedged: 0 };
        opening.opened =
            self.try_open(template, sub, until, deadline, &mut opening.requests, &mut opening.hedged).await;
        opening
    }

    async fn try_open(
        &self,
        template: &Template,
        sub: &Sub,
        until: Instant,
        deadline: Instant,
        requests: &mut u32,
        hedged: &mut u32,
    ) -> Opened {
        let mut tried = sub.avoid.clone();
        let pick = match self.replicas.pick(&sub.shard, &tried) {
            Ok(pick) => pick,
            Err(NoReplica::NotReady(state)) => return Opened::NotReady(format!("no copy is ready, one is {state}")),
            Err(NoReplica::Unknown(why)) => return Opened::NoReplica(why),
            Err(NoReplica::Exhausted) => {
                return Opened::Failed(ShardError::new(ShardErrorKind::Unavailable, "every copy has failed"));
            }
        };
        self.hedges.deposit();
        self.retries.deposit();
        let mut ask = |pick: OwnedPick, tried: &mut Vec<InstanceId>| {
            tried.push(pick.instance().id.clone());
            *requests += 1;
            let started = now();
            let stream = self.client.read(pick.instance(), self.request(template, sub), deadline);
            let span = tracing::debug_span!("sub_request", shard = %sub.shard, request_id = &*template.request_id);
            Box::pin(async move { (pick, started, first_payload(stream).await) }.instrument(span))
        };
        let mut first = ask(pick, &mut tried);
        // A copy in this process often answers at once; then there is nothing to wait for.
        let mut at_once = first.as_mut().now_or_never();
        let mut running = FuturesUnordered::new();
        if at_once.is_none() {
            running.push(first);
        }
        let mut may_hedge = template.hedge && self.options.hedge.enabled && at_once.is_none();
        let hedge_at = match may_hedge {
            true => now() + self.latencies.hedge_after(&sub.shard, self.options.hedge.after_max),
            false => until,
        };
        loop {
            let answer = match at_once.take() {
                Some(answer) => answer,
                None => tokio::select! {
                    biased;
                    Some(answer) = running.next() => answer,
                    () = tokio::time::sleep_until(until.into()) => return Opened::TimedOut,
                    () = tokio::time::sleep_until(hedge_at.into()), if may_hedge => {
                        may_hedge = false;
                        // An exhausted budget or a missing copy only means that the first one is waited for.
                        if let Ok(pick) = self.replicas.pick(&sub.shard, &tried)
                            && self.hedges.try_withdraw()
                        {
                            *hedged += 1;
                            running.push(ask(pick, &mut tried));
                        }
                        continue;
                    }
                },
            };
            let (pick, started, result) = answer;
            let failed = match result {
                Ok((head, first, stream)) if !head.answered.is_empty() || !head.moved.is_empty() => {
                    self.latencies.record(&sub.shard, &pick.instance().id, started.elapsed());
                    return Opened::Answering(Box::new(Answering { head, first, stream, pick, started }));
                }
                Ok((head, ..)) => {
                    pick.complete(Outcome::Success, started.elapsed());
                    let state = head.not_ready.first().map(|not_ready| not_ready.state.name());
                    Opened::NotReady(format!("a copy says {}", state.unwrap_or("nothing about its slots")))
                }
                Err(error) if error.kind == ShardErrorKind::DeadlineExceeded => Opened::TimedOut,
                Err(error) if error.kind.is_worth_another_copy() => {
                    // Overload says nothing against the instance that cannot be seen in its load already.
                    if error.kind != ShardErrorKind::Overloaded {
                        pick.complete(Outcome::Failure, started.elapsed());
                    }
                    tracing::debug!(shard = %sub.shard, %error, "a copy failed");
                    Opened::Failed(error)
                }
                Err(error) => return Opened::Failed(error),
            };
            // Another copy may know better; it is paid for like every retry.
            match self.replicas.pick(&sub.shard, &tried) {
                Ok(pick) if self.retries.try_withdraw() => running.push(ask(pick, &mut tried)),
                _ if running.is_empty() => return failed,
                _ => {}
            }
        }
    }
}
