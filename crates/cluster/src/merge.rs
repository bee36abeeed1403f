//! Merging the answers of many shards into one ordered walk.
//!
//! Every source delivers its rows in the walk's order; the next row of the whole is the first among the sources' next
//! rows, once every source that may still deliver has shown one. Three things make it more than the textbook's k-way
//! merge. A source may stop before its end because its work budget ran out; then nothing behind the place where it
//! stopped may be given out, however many rows the others have, or rows would be skipped for good. Two sources may hold a
//! copy of one row while it changes groups; the copy with the higher version is the right one. And memory is bounded: at
//! most what the sources have shown, never whole answers.
//!
//! No I/O here: [`Merge::step`] says what it needs, and the router fetches it.

use std::collections::VecDeque;

use crate::protocol::{Position, Row};
use crate::query::Order;

/// Number of a source, from [`Merge::add`].
pub type SourceNumber = usize;

#[derive(Debug)]
struct Source {
    /// Rows with their bytes, which take a look at every value to count.
    rows: VecDeque<(Row, usize)>,
    end: Option<End>,
}

/// How a source ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It has nothing more.
    Finished,
    /// It stopped and goes on behind this position.
    StoppedAt(Position),
}

/// What happens next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// This source has to show its next rows, or its end.
    Need(SourceNumber),
    /// The next row.
    Row(Row),
    /// Nothing more can be given out because a source stopped; the walk goes on behind this position.
    Stop(Position),
    /// The walk is finished.
    End,
}

/// A merge in progress.
#[derive(Debug)]
pub struct Merge {
    order: Order,
    sources: Vec<Source>,
    bytes: usize,
}

impl Merge {
    /// A merge without sources: finished at once.
    pub fn new(order: Order) -> Merge {
        Merge { order, sources: Vec::new(), bytes: 0 }
    }

    /// Adds a source that has shown nothing yet. Its rows must lie behind everything already given out.
    pub fn add(&mut self) -> SourceNumber {
        self.sources.push(Source { rows: VecDeque::new(), end: None });
        self.sources.len() - 1
    }

    /// Lets a source that has ended and was given out go on, with rows that lie behind everything already given out.
    pub fn reopen(&mut self, source: SourceNumber) {
        self.sources[source].end = None;
    }

    /// Takes rows a source has shown, in the walk's order.
    pub fn push(&mut self, source: SourceNumber, rows: Vec<Row>) {
        let sized = rows.into_iter().map(|row| {
            let bytes = row.bytes();
            self.bytes += bytes;
            (row, bytes)
        });
        self.sources[source].rows.extend(sized);
    }

    /// Takes the end of a source. A failed source counts as finished; what it did not deliver is counted elsewhere.
    pub fn end(&mut self, source: SourceNumber, end: End) {
        self.sources[source].end = Some(end);
    }

    /// Takes what a source has shown out of the merge.
    pub fn take(&mut self, source: SourceNumber) -> Vec<Row> {
        let rows = std::mem::take(&mut self.sources[source].rows);
        self.bytes -= rows.iter().map(|(_, bytes)| bytes).sum::<usize>();
        rows.into_iter().map(|(row, _)| row).collect()
    }

    /// Bytes of the rows shown and not given out.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What happens next. Once it says [`Step::Stop`] or [`Step::End`] it says the same again until a source is added.
    pub fn step(&mut self) -> Step {
        let mut first: Option<(SourceNumber, Position)> = None;
        let mut stop: Option<Position> = None;
        for (number, source) in self.sources.iter().enumerate() {
            match (source.rows.front(), source.end) {
                (Some((row, _)), _) => {
                    let position = self.order.position(row.time, row.id);
                    if first.is_none_or(|(_, best)| self.order.compare(&position, &best).is_lt()) {
                        first = Some((number, position));
                    }
                }
                (None, None) => return Step::Need(number),
                (None, Some(End::Finished)) => {}
                (None, Some(End::StoppedAt(at))) => {
                    if stop.is_none_or(|best| self.order.compare(&at, &best).is_lt()) {
                        stop = Some(at);
                    }
                }
            }
        }
        let Some((number, position)) = first else {
            return stop.map_or(Step::End, Step::Stop);
        };
        if let Some(stop) = stop
            && self.order.compare(&position, &stop).is_gt()
        {
            return Step::Stop(stop);
        }
        let mut best = self.pop(number);
        // Other copies of the same row stand at the same position, so they are in front too.
        for number in number + 1..self.sources.len() {
            let same = self.sources[number]
                .rows
                .front()
                .is_some_and(|(row, _)| row.id == best.id && self.order.position(row.time, row.id) == position);
            if same {
                let copy = self.pop(number);
                if copy.version > best.version {
                    best = copy;
                }
            }
        }
        Step::Row(best)
    }

    fn pop(&mut self, source: SourceNumber) -> Row {
        let (row, bytes) = self.sources[source].rows.pop_front().expect("the caller saw it");
        self.bytes -= bytes;
        row
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use metaroute_store::{TimeKey, Version};
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::Direction;
    use crate::query::OrderBy;

    const BY_ID: Order = Order { by: OrderBy::Id, direction: Direction::Ascending };
    const NEWEST: Order = Order { by: OrderBy::Time, direction: Direction::Descending };

    fn row(id: u64, time: u64, version: u64) -> Row {
        Row { id, tenant: 1, time: Some(TimeKey(time)), version: Version::from(version), values: Vec::new() }
    }

    /// Runs a merge whose sources have shown everything.
    fn run(order: Order, sources: Vec<(Vec<Row>, End)>) -> (Vec<u64>, Step) {
        let mut merge = Merge::new(order);
        for (rows, end) in sources {
            let source = merge.add();
            merge.push(source, rows);
            merge.end(source, end);
        }
        let mut ids = Vec::new();
        loop {
            match merge.step() {
                Step::Row(row) => ids.push(row.id),
                last => return (ids, last),
            }
        }
    }

    #[test]
    fn nothing_is_given_out_before_every_source_has_shown_its_next() {
        let mut merge = Merge::new(BY_ID);
        let (a, b) = (merge.add(), merge.add());
        merge.push(a, vec![row(5, 0, 1)]);
        assert_eq!(merge.step(), Step::Need(b));
        merge.push(b, vec![row(3, 0, 1)]);
        assert_eq!(merge.step(), Step::Row(row(3, 0, 1)));
        assert_eq!(merge.step(), Step::Need(b));
        merge.end(b, End::Finished);
        assert_eq!(merge.step(), Step::Row(row(5, 0, 1)));
        merge.end(a, End::Finished);
        assert_eq!((merge.step(), merge.bytes()), (Step::End, 0));
    }

    #[test]
    fn no_row_passes_a_source_that_stopped() {
        let stopped = End::StoppedAt(Position::of_id(4));
        let (ids, last) = run(
            BY_ID,
            vec![(vec![row(1, 0, 1)], stopped), (vec![row(2, 0, 1), row(4, 0, 1), row(5, 0, 1)], End::Finished)],
        );
        assert_eq!((ids, last), (vec![1, 2, 4], Step::Stop(Position::of_id(4))));
    }

    #[test]
    fn of_two_copies_the_higher_version_is_kept() {
        for (first, second) in [(1, 2), (2, 1)] {
            let mut merge = Merge::new(BY_ID);
            for version in [first, second] {
                let source = merge.add();
                merge.push(source, vec![row(7, 0, version)]);
                merge.end(source, End::Finished);
            }
            assert_eq!(merge.step(), Step::Row(row(7, 0, 2)));
            assert_eq!(merge.step(), Step::End);
        }
    }

    #[test]
    fn ties_in_time_are_ordered_by_id_in_the_same_direction() {
        let (ids, _) = run(
            NEWEST,
            vec![
                (vec![row(9, 5, 1), row(2, 5, 1)], End::Finished),
                (vec![row(1, 6, 1), row(4, 5, 1), row(8, 4, 1)], End::Finished),
            ],
        );
        assert_eq!(ids, [1, 9, 4, 2, 8]);
    }

    #[test]
    fn rows_without_a_time_come_last_when_the_newest_is_first() {
        let timeless = Row { time: None, ..row(3, 0, 1) };
        let (ids, _) = run(NEWEST, vec![(vec![timeless], End::Finished), (vec![row(1, 0, 1)], End::Finished)]);
        assert_eq!(ids, [1, 3]);
    }

    proptest! {
        /// Merging any split of any rows gives the rows in order, each once, at its highest version.
        #[test]
        fn a_merge_is_the_sorted_union(
            rows in prop::collection::vec((0u64..60, 0u64..8, 1u64..9, 0usize..5), 0..120),
            newest: bool,
        ) {
            let order = if newest { NEWEST } else { BY_ID };
            // One time per id, as one row has; versions and sources vary.
            let mut wanted: BTreeMap<u64, Row> = BTreeMap::new();
            let mut sources: Vec<BTreeMap<u64, Row>> = vec![BTreeMap::new(); 5];
            for (id, _, version, source) in rows {
                let row = row(id, id % 8, version);
                let keep = |kept: &mut BTreeMap<u64, Row>| {
                    let entry = kept.entry(id).or_insert_with(|| row.clone());
                    if row.version > entry.version {
                        *entry = row.clone();
                    }
                };
                keep(&mut sources[source]);
                keep(&mut wanted);
            }
            let sorted = |rows: BTreeMap<u64, Row>| {
                let mut rows: Vec<Row> = rows.into_values().collect();
                rows.sort_by(|a, b| order.compare(&order.position(a.time, a.id), &order.position(b.time, b.id)));
                rows
            };
            let mut merge = Merge::new(order);
            let mut feeds: Vec<VecDeque<Row>> = Vec::new();
            for source in sources {
                merge.add();
                feeds.push(sorted(source).into());
            }
            let mut got = Vec::new();
            loop {
                match merge.step() {
                    Step::Row(row) => got.push(row),
                    Step::Need(source) => match feeds[source].pop_front() {
                        Some(row) => merge.push(source, vec![row]),
                        None => merge.end(source, End::Finished),
                    },
                    Step::End => break,
                    Step::Stop(_) => prop_assert!(false, "nobody stopped"),
                }
            }
            prop_assert_eq!(got, sorted(wanted));
            prop_assert_eq!(merge.bytes(), 0);
        }
    }
}
