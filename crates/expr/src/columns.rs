//! Evaluation over dictionary-encoded columns: test once per distinct value, then look rows up.
//!
//! Ten thousand instances rarely have more than a few dozen versions or zones. An atom that reads one key is therefore
//! tested on the column's dictionary, and a row's answer is one bit picked by the row's code. The tree is combined on
//! whole bit words. All memory lives in a [`Scratch`] that the caller keeps.

use crate::atom::{Atom, Outcome};
use crate::program::{Node, Program};
use crate::schema::{Context, KeyId, Record};
use crate::value::{Parsed, Value};

/// Records stored column by column.
pub trait Columns {
    /// The number of rows.
    fn len(&self) -> usize;

    /// Whether there is no row.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The column of a key, or `None` where no row has it.
    fn column(&self, key: KeyId) -> Option<Column<'_>>;
}

/// One dictionary-encoded column.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    /// Per row the position of its value in `values`, or [`ABSENT`](Column::ABSENT). Rows past the end, and codes that
    /// are no position, are missing.
    pub codes: &'a [u32],
    /// The distinct values.
    pub values: &'a [Parsed],
}

impl<'a> Column<'a> {
    /// The code of a row without the key.
    pub const ABSENT: u32 = u32::MAX;

    fn value(&self, row: usize) -> Option<Value<'a>> {
        let code = *self.codes.get(row)?;
        self.values.get(code as usize).map(Value::Parsed)
    }
}

/// Memory that evaluation reuses from call to call.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// One bit per row; a stack of them.
    stack: Vec<u64>,
    /// One bit per distinct value of the column at hand.
    dictionary: Vec<u64>,
}

/// One row seen as a record.
struct Row<'a, V: ?Sized> {
    columns: &'a V,
    row: usize,
}

impl<V: Columns + ?Sized> Record for Row<'_, V> {
    fn get(&self, key: KeyId) -> Option<Value<'_>> {
        self.columns.column(key)?.value(self.row)
    }
}

struct Run<'a, V: ?Sized, C: ?Sized> {
    program: &'a Program,
    columns: &'a V,
    context: &'a C,
    /// Rows answered, and the words that hold their bits.
    rows: usize,
    words: usize,
}

pub(crate) fn evaluate<V: Columns + ?Sized, C: Context + ?Sized>(
    program: &Program,
    columns: &V,
    context: &C,
    out: &mut [u64],
    scratch: &mut Scratch,
) {
    let rows = columns.len().min(out.len().saturating_mul(64));
    let run = Run { program, columns, context, rows, words: rows.div_ceil(64) };
    scratch.stack.clear();
    scratch.stack.resize(run.words, 0);
    if !run.node(&program.root, 0, scratch) {
        scratch.stack[..run.words].fill(u64::MAX);
    }
    let (bits, beyond) = out.split_at_mut(run.words);
    bits.copy_from_slice(&scratch.stack[..run.words]);
    beyond.fill(0);
    if let (Some(last), used @ 1..) = (bits.last_mut(), rows % 64) {
        *last &= u64::MAX >> (64 - used);
    }
}

impl<V: Columns + ?Sized, C: Context + ?Sized> Run<'_, V, C> {
    /// Leaves the node's bits at `base` of the stack; false where the node is removed. Bits beyond the last row are
    /// arbitrary.
    fn node(&self, node: &Node, base: usize, scratch: &mut Scratch) -> bool {
        let (children, and) = match node {
            Node::Atom(atom) => return self.atom(&self.program.atoms[*atom], base, scratch),
            Node::Not(inner) => {
                let known = self.node(inner, base, scratch);
                self.at(base, scratch).iter_mut().for_each(|word| *word = !*word);
                return known;
            }
            Node::And(children) => (children, true),
            Node::Or(children) => (children, false),
        };
        if children.is_empty() {
            self.at(base, scratch).fill(if and { u64::MAX } else { 0 });
            return true;
        }
        let mut known = false;
        for child in children {
            let target = if known { base + self.words } else { base };
            if scratch.stack.len() < target + self.words {
                scratch.stack.resize(target + self.words, 0);
            }
            if !self.node(child, target, scratch) {
                continue;
            }
            if known {
                let (into, from) = scratch.stack[base..].split_at_mut(self.words);
                for (into, from) in into.iter_mut().zip(from) {
                    if and { *into &= *from } else { *into |= *from }
                }
            }
            known = true;
        }
        known
    }

    fn at<'s>(&self, base: usize, scratch: &'s mut Scratch) -> &'s mut [u64] {
        &mut scratch.stack[base..base + self.words]
    }

    fn atom(&self, atom: &Atom, base: usize, scratch: &mut Scratch) -> bool {
        if atom.is_removed(self.context) {
            return false;
        }
        let mut keys = atom.keys();
        let Some(first) = keys.next() else {
            let holds = atom.test(&(), self.context) == Outcome::True;
            self.at(base, scratch).fill(if holds { u64::MAX } else { 0 });
            return true;
        };
        if keys.any(|key| key != first) {
            self.row_by_row(atom, base, scratch);
            return true;
        }
        let Some(column) = self.columns.column(first) else {
            self.at(base, scratch).fill(0);
            return true;
        };
        if column.values.len() > self.rows {
            self.row_by_row(atom, base, scratch);
            return true;
        }
        let Scratch { stack, dictionary } = scratch;
        dictionary.clear();
        dictionary.resize(column.values.len().div_ceil(64), 0);
        let mut hits = 0;
        for (code, value) in column.values.iter().enumerate() {
            let hit = atom.test_value(Some(Value::Parsed(value)), self.context) == Outcome::True;
            hits += usize::from(hit);
            dictionary[code / 64] |= u64::from(hit) << (code % 64);
        }
        let words = &mut stack[base..base + self.words];
        if hits == 0 {
            words.fill(0);
            return true;
        }
        let codes = &column.codes[..column.codes.len().min(self.rows)];
        let mut chunks = codes.chunks(64);
        for word in words {
            let chunk = chunks.next().unwrap_or(&[]);
            *word = 0;
            for (bit, code) in chunk.iter().enumerate() {
                let code = *code as usize;
                let held = dictionary.get(code / 64).map_or(0, |bits| bits >> (code % 64) & 1);
                *word |= held << bit;
            }
        }
        true
    }

    /// For atoms over several keys, and for dictionaries with more entries than rows.
    fn row_by_row(&self, atom: &Atom, base: usize, scratch: &mut Scratch) {
        for (index, word) in self.at(base, scratch).iter_mut().enumerate() {
            *word = 0;
            for row in index * 64..self.rows.min(index * 64 + 64) {
                let holds = atom.test(&Row { columns: self.columns, row }, self.context) == Outcome::True;
                *word |= u64::from(holds) << (row % 64);
            }
        }
    }
}
