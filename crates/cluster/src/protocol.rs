//! What routers and shards say to each other.
//!
//! A request names the slots it is about and the epoch of the ownership it relies on, so a shard can answer slot by slot:
//! rows, "moved, ask that shard", or "not ready". That is what lets slots move while queries run: a row is neither
//! missed nor counted twice, and nothing is ever blocked.
//!
//! These are plain types. [`crate::wire`] turns them into protobuf messages; within one process nothing is encoded.
//! Columns go by name, because router and shard may have learned of a new column at different times.

use std::fmt;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use futures_util::Stream;
pub use metaroute_store::Sum;
use metaroute_store::{TimeKey, Value, Version};
use serde::Serialize;

use crate::slots::SlotSet;

/// A shard: its group's name and its own, unique in the group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId {
    /// The group.
    pub group: Arc<str>,
    /// The shard within it.
    pub shard: Arc<str>,
}

impl ShardId {
    /// A shard by names.
    pub fn new(group: impl Into<Arc<str>>, shard: impl Into<Arc<str>>) -> ShardId {
        ShardId { group: group.into(), shard: shard.into() }
    }
}

/// `group/shard`.
impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.shard)
    }
}

/// How far a copy of a shard is. Only a ready one answers queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ShardState {
    /// Filling itself.
    Loading,
    /// Full, and applying what changed meanwhile.
    CatchingUp,
    /// Serving.
    Ready,
    /// Finishing what it has begun and taking nothing new.
    Draining,
    /// Broken; somebody has to look.
    Failed,
}

impl ShardState {
    /// Every state.
    pub const ALL: [ShardState; 5] = [Self::Loading, Self::CatchingUp, Self::Ready, Self::Draining, Self::Failed];

    /// The word used in registries, answers and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loading => "LOADING",
            Self::CatchingUp => "CATCHING_UP",
            Self::Ready => "READY",
            Self::Draining => "DRAINING",
            Self::Failed => "FAILED",
        }
    }

    /// Whether queries may be answered.
    pub fn is_ready(self) -> bool {
        self == Self::Ready
    }
}

impl fmt::Display for ShardState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown shard state `{0}`")]
pub struct UnknownState(pub String);

impl FromStr for ShardState {
    type Err = UnknownState;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|state| state.name() == word).ok_or_else(|| UnknownState(word.to_owned()))
    }
}

/// Order of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Lowest first.
    #[default]
    Ascending,
    /// Highest first.
    Descending,
}

/// Where a row stands in a walk. Walks by id leave the time out on both sides, so that only the id counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The row's time; `None` (NULL, no time column, or a walk by id) is below every time.
    pub time: Option<TimeKey>,
    /// The row's id; breaks ties.
    pub id: u64,
}

impl Position {
    /// A position of a walk by id.
    pub fn of_id(id: u64) -> Position {
        Position { time: None, id }
    }
}

/// A row on its way to a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its id.
    pub id: u64,
    /// Its tenant.
    pub tenant: u64,
    /// Its time in key form; `None` for NULL or where the store has no time column.
    pub time: Option<TimeKey>,
    /// Its version; of two copies the higher one is right.
    pub version: Version,
    /// The asked-for columns in the asked-for order.
    pub values: Vec<Value>,
}

impl Row {
    /// About how many bytes it occupies in memory.
    pub fn bytes(&self) -> usize {
        let values: usize = self
            .values
            .iter()
            .map(|value| match value {
                Value::String(text) | Value::Json(text) | Value::Decimal(text) => text.len(),
                Value::Bytes(bytes) => bytes.len(),
                _ => 0,
            })
            .sum();
        size_of::<Row>() + self.values.len() * size_of::<Value>() + values
    }
}

/// How much a shard may do for one sub-request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkBudget {
    /// Entries it may look at, dead ones included.
    pub entries: u64,
    /// Bytes of row values it may return.
    pub bytes: u64,
}

impl Default for WorkBudget {
    /// 100,000 entries; bytes are bounded by the router's merge buffer.
    fn default() -> Self {
        WorkBudget { entries: 100_000, bytes: u64::MAX }
    }
}

/// A question about the slots of one shard.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadRequest {
    /// The client request it belongs to, for logs.
    pub request_id: Arc<str>,
    /// The store.
    pub store: Arc<str>,
    /// The shard it is for.
    pub shard: ShardId,
    /// The slots it is about; not empty.
    pub slots: SlotSet,
    /// The highest epoch among the owner entries of these slots, as the router knows them.
    pub epoch: u64,
    /// The row filter, in the expression language; `None` for all rows.
    pub filter: Option<Arc<str>>,
    /// Columns to return, by name.
    pub fields: Arc<[String]>,
    /// What to do.
    pub op: ReadOp,
    /// Work allowed.
    pub budget: WorkBudget,
    /// Rows of the first batch at most, and a quarter of it of each later one, for a reader that takes batches one by one and
    /// may stop before the end: all of them show the shard as it was at the beginning. `None`: as many as a message
    /// carries well.
    pub batch: Option<NonZeroU32>,
}

/// What a read does.
#[derive(Clone, Debug, PartialEq)]
pub enum ReadOp {
    /// Rows by id, answered in order of id.
    Get {
        /// The ids, ascending and unique.
        ids: Arc<[u64]>,
        /// Only rows of this tenant.
        tenant: Option<u64>,
        /// Only rows with a time at or after; a bound leaves out rows without a time.
        from: Option<TimeKey>,
        /// Only rows with a time before.
        to: Option<TimeKey>,
        /// Order of the answer.
        direction: Direction,
    },
    /// A tenant's rows ordered by time, then id.
    List {
        /// Whose.
        tenant: u64,
        /// Earliest time, inclusive; a bound leaves out rows without a time.
        from: Option<TimeKey>,
        /// Latest time, exclusive.
        to: Option<TimeKey>,
        /// Start behind this position in the walk's order.
        after: Option<Position>,
        /// Order.
        direction: Direction,
        /// Rows at most.
        limit: u32,
    },
    /// Rows of all tenants ordered by id.
    Scan {
        /// Earliest time, inclusive; a bound leaves out rows without a time.
        from: Option<TimeKey>,
        /// Latest time, exclusive.
        to: Option<TimeKey>,
        /// Start behind this id in the walk's order.
        after: Option<u64>,
        /// Order.
        direction: Direction,
        /// Rows at most.
        limit: u32,
    },
    /// Number of rows and sums, over a tenant's rows or all.
    Aggregate {
        /// Whose; `None` for everybody's.
        tenant: Option<u64>,
        /// Earliest time, inclusive.
        from: Option<TimeKey>,
        /// Latest time, exclusive.
        to: Option<TimeKey>,
        /// Columns to sum, by name.
        sums: Arc<[String]>,
        /// Go on behind this position.
        after: Option<Position>,
    },
}

/// The part of an aggregate a sub-request computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Aggregate {
    /// Rows counted.
    pub rows: u64,
    /// One per asked-for column: the sum of its values that are not NULL. `None` where it does not fit 128 bits.
    pub sums: Vec<Option<Sum>>,
}

/// Slots that belong to another shard now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Which.
    pub slots: SlotSet,
    /// Their owner, in the same group.
    pub to: Arc<str>,
    /// The epoch of its ownership.
    pub epoch: u64,
}

/// Slots whose rows are not complete here yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReady {
    /// Which.
    pub slots: SlotSet,
    /// What the copy is doing. [`ShardState::Ready`] means that it could not learn of its ownership in time.
    pub state: ShardState,
    /// For a loading copy how far it is, in thousandths.
    pub loaded_permille: Option<u16>,
}

/// The first thing a shard says: how it answers each of the asked-for slots. Every one is in exactly one of the three.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Slots whose rows follow.
    pub answered: SlotSet,
    /// Slots to ask elsewhere.
    pub moved: Vec<Moved>,
    /// Slots to ask later.
    pub not_ready: Vec<NotReady>,
}

/// The last thing a shard says. Without it the answer did not finish.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trailer {
    /// Slots that the rows sent cover up to `next`; what is missing of the head's failed on the way.
    pub answered: SlotSet,
    /// Where to go on; `None` exactly when there is nothing more.
    pub next: Option<Position>,
    /// The aggregate, where one was asked for.
    pub aggregate: Option<Aggregate>,
    /// Entries looked at since the last batch.
    pub examined: u64,
    /// Rows read since then beside the index because a column is not in the listing.
    pub row_reads: u64,
    /// How far this copy's rows are in the change stream, by lane; empty without one.
    pub watermark: Vec<(String, String)>,
    /// How far the copy is behind its source.
    pub lag_ms: Option<u64>,
}

/// Rows, and what finding them took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The rows, in the order asked for. Not empty.
    pub rows: Vec<Row>,
    /// Entries looked at since the batch before.
    pub examined: u64,
    /// Rows read since then beside the index because a column is not in the listing.
    pub row_reads: u64,
}

/// One piece of an answer: a head, any number of row batches, a trailer.
#[derive(Clone, Debug, PartialEq)]
pub enum ReadEvent {
    /// How each slot is answered.
    Head(Head),
    /// Rows.
    Rows(Batch),
    /// The end.
    Trailer(Trailer),
}

/// An answer on its way. Dropping it tells the shard to stop.
pub type ReadStream = Pin<Box<dyn Stream<Item = Result<ReadEvent, ShardError>> + Send>>;

/// Changes for one shard, applied all or none.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteRequest {
    /// The client request it belongs to, for logs.
    pub request_id: Arc<str>,
    /// The store.
    pub store: Arc<str>,
    /// The shard it is for.
    pub shard: ShardId,
    /// The highest epoch among the owner entries of the changed slots.
    pub epoch: u64,
    /// Columns of every upsert's values, by name.
    pub columns: Arc<[String]>,
    /// The changes, in order; an id occurs once.
    pub ops: Vec<WriteOp>,
}

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteOp {
    /// Stores a row unless a version at or above this one is stored.
    Upsert {
        /// Its id.
        id: u64,
        /// Its version.
        version: Version,
        /// One value per column of the request.
        values: Vec<Value>,
    },
    /// Deletes a row unless a higher version is stored.
    Delete {
        /// Its id.
        id: u64,
        /// The version of the deletion.
        version: Version,
        /// Only if the row is this tenant's.
        tenant: Option<u64>,
    },
}

impl WriteOp {
    /// The id of the row.
    pub fn id(&self) -> u64 {
        match self {
            WriteOp::Upsert { id, .. } | WriteOp::Delete { id, .. } => *id,
        }
    }
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It took effect.
    Applied {
        /// Whether a live row was there before.
        replaced: bool,
    },
    /// Something newer, or the very same, is stored; nothing changed.
    Stale,
    /// A delete met another tenant's row; nothing changed.
    OtherTenant,
}

/// A shard's answer to changes, after the acknowledged durability.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteAnswer {
    /// All were applied; one outcome per change, in order.
    Applied(Vec<WriteOutcome>),
    /// Nothing was applied because these slots belong elsewhere.
    Moved(Vec<Moved>),
    /// Nothing was applied because the copy is not ready.
    NotReady(ShardState),
}

/// Why a sub-request got no answer. Nothing is known about its slots then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct ShardError {
    /// What class of failure.
    pub kind: ShardErrorKind,
    /// What happened, for the log.
    pub message: String,
}

impl ShardError {
    /// An error of a class.
    pub fn new(kind: ShardErrorKind, message: impl Into<String>) -> ShardError {
        ShardError { kind, message: message.into() }
    }
}

/// Classes of [`ShardError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ShardErrorKind {
    /// It could not be reached, or broke off.
    Unavailable,
    /// It has too much to do.
    Overloaded,
    /// It did not finish in time.
    DeadlineExceeded,
    /// The request is at fault, whichever copy is asked.
    BadRequest,
    /// It knows no such store.
    UnknownStore,
    /// Its data is damaged.
    CorruptData,
    /// It takes no writes.
    ReadOnly,
    /// The request was called off.
    Cancelled,
    /// A bug.
    Internal,
}

impl ShardErrorKind {
    /// The stable word.
    pub fn code(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Overloaded => "overloaded",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::BadRequest => "bad_request",
            Self::UnknownStore => "unknown_store",
            Self::CorruptData => "corrupt_data",
            Self::ReadOnly => "read_only",
            Self::Cancelled => "cancelled",
            Self::Internal => "internal",
        }
    }

    /// Whether another copy of the shard may answer the same request.
    pub fn is_worth_another_copy(self) -> bool {
        matches!(self, Self::Unavailable | Self::Overloaded | Self::CorruptData | Self::Internal)
    }
}

impl fmt::Display for ShardErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// A future that owns what it needs.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A copy of a shard as it answers requests: the shard role implements it over a store.
///
/// Both calls return at once; work happens while the stream or future is polled, or on threads of the shard's own, and
/// ends soon after the stream or future is dropped. An answer after `deadline` helps nobody and may be left out.
pub trait Shard: Send + Sync + 'static {
    /// Answers a read: one [`ReadEvent::Head`], rows, one [`ReadEvent::Trailer`]; or an error at any point.
    fn read(&self, request: ReadRequest, deadline: Instant) -> ReadStream;

    /// Applies changes.
    fn write(&self, request: WriteRequest, deadline: Instant) -> BoxFuture<Result<WriteAnswer, ShardError>>;
}

/// The producing side of a [`ReadStream`] that is fed from another task or thread.
#[derive(Clone, Debug)]
pub struct ReadSender(tokio::sync::mpsc::Sender<Result<ReadEvent, ShardError>>);

/// The reader of an answer has gone away; stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody reads the answer any more")]
pub struct ReaderGone;

/// A stream and its producing side; at most `capacity` events wait in between.
pub fn read_channel(capacity: usize) -> (ReadSender, ReadStream) {
    let (sender, receiver) = tokio::sync::mpsc::channel(capacity.max(1));
    (ReadSender(sender), Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver)))
}

impl ReadSender {
    /// Sends an event, waiting while the reader is behind.
    ///
    /// # Errors
    /// When the reader is gone.
    pub async fn send(&self, event: Result<ReadEvent, ShardError>) -> Result<(), ReaderGone> {
        self.0.send(event).await.map_err(|_| ReaderGone)
    }

    /// The same from a thread that may block.
    ///
    /// # Errors
    /// When the reader is gone.
    ///
    /// # Panics
    /// On a thread that runs async tasks.
    pub fn blocking_send(&self, event: Result<ReadEvent, ShardError>) -> Result<(), ReaderGone> {
        self.0.blocking_send(event).map_err(|_| ReaderGone)
    }

    /// Whether the reader is gone.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Waits until the reader is gone.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}

/// The answer that is one error.
pub fn failed_read(error: ShardError) -> ReadStream {
    Box::pin(futures_util::stream::iter([Err(error)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_one_spelling() {
        for state in ShardState::ALL {
            assert_eq!(state.name().parse(), Ok(state));
        }
        assert!("ready".parse::<ShardState>().is_err());
    }
}
